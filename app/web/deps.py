"""What routes are given: the running product's context, and who is asking."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from app.services.context import Context


async def get_context(request: Request) -> Context:
    """The context that `create_app` made. Asynchronous only to spare every request a hop through the thread pool."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(get_context)]
"""`def route(ctx: Ctx): ...`"""


def client_address(scope: Scope, trusted_proxies: Sequence[str]) -> str:
    """The address that limits count by: the peer, or what the trusted proxies in front of us say about it.

    `X-Forwarded-For` is read from its end, one entry for each trusted proxy: whatever a client writes itself stands
    further to the front and is never reached. An IPv6 client counts by its /64, since it owns all of that.
    """
    peer = scope.get("client")
    address = str(peer[0]) if peer else ""
    if trusted_proxies and _is_trusted(address, tuple(trusted_proxies)):
        hops = [hop.strip() for hop in ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")]
        for hop in reversed([hop for hop in hops if hop]):
            address = hop
            if not _is_trusted(hop, tuple(trusted_proxies)):
                break
    parsed = _parsed(address)
    if parsed is None:
        return address[:100]
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return str(parsed)


def _is_trusted(address: str, networks: tuple[str, ...]) -> bool:
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in _networks(networks))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = getattr(parsed, "ipv4_mapped", None)
    return mapped or parsed


@lru_cache(maxsize=8)
def _networks(networks: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(ipaddress.ip_network(network, strict=False) for network in networks)
