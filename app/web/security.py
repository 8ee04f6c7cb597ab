"""What stands in front of every route: headers, host and same-origin checks, rate limits, body caps and strict JSON.

Plain ASGI middleware; `protect` puts it together. Each refusal is an answer of `errors`, so it has the same shape as
any other.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.settings import RateLimits, Settings
from app.web import errors
from app.web.deps import client_address

MAX_JSON_BYTES: Final = 4 * 2**20
"""Largest body of any request that is not an upload."""

MAX_JSON_DEPTH: Final = 64

MAX_DROPPED_BYTES: Final = 64 * 2**20
"""How much of a refused body is still taken off the line, so that its sender gets to read the refusal."""

UPLOAD_PATHS: Final = frozenset({"/runs", "/api/v1/runs"})
"""POST here carries files: the large cap applies and the body is not looked at."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        # The hash is that of empty text: the chart library adds an empty <style> and fills it through the CSSOM.
        "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Pages show a team's data; a browser may keep them but must ask again.
    "Cache-Control": "private, no-cache",
}
"""Set on every answer that does not say otherwise itself."""


# ---- envelope -------------------------------------------------------------------------------------------------------


class Envelope:
    """Request id, security headers, HEAD, and the answer to exceptions that nobody expected.

    HEAD is answered as GET without its body, so that no route has to list it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(6)
        is_head = scope["method"] == "HEAD"
        state = {**scope.get("state", {}), "request_id": request_id}
        scope = {**scope, "state": state, "method": "GET" if is_head else scope["method"]}
        started = False

        async def dressed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = request_id
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self.app(scope, receive, dressed)
        except Exception as error:
            if started:
                raise  # half an answer is out; the server has to close the connection
            await errors.unexpected(Request(scope, receive), error)(scope, receive, dressed)


# ---- host -----------------------------------------------------------------------------------------------------------


class KnownHost:
    """Refuses requests for another site's name, while the server listens on this machine alone.

    Such a server has no accounts because nobody else reaches it. But a page of any site may point its own name at
    127.0.0.1, and the browser then takes this server for that site and lets its scripts read and change everything
    (DNS rebinding). The name stays in the Host header. Addresses, localhost, names without a dot (nobody outside can
    make them lead here) and the public address are ours.
    """

    def __init__(self, app: ASGIApp, host: str, public_url: str | None = None) -> None:
        self.app = app
        self.is_local = _is_loopback(host)
        self.public_name = urlsplit(public_url).hostname if public_url is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.is_local:
            named = Headers(scope=scope).get("host", "")
            if not self._is_ours(named):
                reason = (
                    f"This server listens on its own machine alone and is not called {named[:200]!r}. If readers do "
                    "reach it by that name, set BYTEBOUND_PUBLIC_URL to their address."
                )
                await _refuse(scope, receive, send, errors.problem("unknown-host", reason))
                return
        await self.app(scope, receive, send)

    def _is_ours(self, named: str) -> bool:
        try:
            name = (urlsplit(f"//{named}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if "." not in name or name.endswith(".localhost") or name == self.public_name:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


# ---- same origin ----------------------------------------------------------------------------------------------------


class SameOrigin:
    """Refuses changes that a browser sends from a page of another site.

    Browsers say where a request comes from in headers that scripts cannot set, so no token is needed. A request
    without those headers is not from a browser (curl, a CI job) and carries no user's authority that could be misused.
    """

    def __init__(self, app: ASGIApp, public_origin: str | None = None) -> None:
        self.app = app
        self.public_origin = public_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
            reason = self._refusal(Headers(scope=scope))
            if reason is not None:
                await _refuse(scope, receive, send, errors.problem("cross-site", reason))
                return
        await self.app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        if headers.get("authorization", "").lower().startswith("bearer ") and "cookie" not in headers:
            return None  # a browser attaches no bearer token by itself
        site = headers.get("sec-fetch-site")
        if site is not None:
            if site in ("same-origin", "none"):
                return None
            return f"The browser says that this change comes from another site (Sec-Fetch-Site: {site[:40]})."
        origin = headers.get("origin")
        if origin is None:
            return None
        if self.public_origin is not None and origin.lower() == self.public_origin:
            return None
        if self.public_origin is None and _host_of(origin) == headers.get("host", "").lower() != "":
            return None
        return (
            f"The change comes from {origin[:200]}, which is not the address of this server. Behind a proxy, "
            "set BYTEBOUND_PUBLIC_URL to the address that readers use."
        )


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


# ---- rate limits ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class TokenBuckets:
    """Allowances that refill steadily: `per_minute` at once, then one more every 60 / `per_minute` seconds.

    `clock` is a monotonic time in seconds. Buckets that are full again are forgotten, so memory stays bounded by the
    clients of the last minute.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic, most: int = 20_000) -> None:
        self.per_minute = per_minute
        self.clock = clock
        self.most = most
        self._buckets: dict[str, _Bucket] = {}

    def take(self, client: str) -> float:
        """Take one token: 0 when there was one, else the seconds until there is."""
        now, rate = self.clock(), self.per_minute / 60
        bucket = self._buckets.get(client)
        if bucket is None:
            self._make_room(now, rate)
            bucket = self._buckets[client] = _Bucket(float(self.per_minute), now)
        bucket.tokens = min(float(self.per_minute), bucket.tokens + (now - bucket.filled_at) * rate)
        bucket.filled_at = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) / rate

    def _make_room(self, now: float, rate: float) -> None:
        if len(self._buckets) < self.most:
            return
        full = [key for key, b in self._buckets.items() if b.tokens + (now - b.filled_at) * rate >= self.per_minute]
        for key in full or list(self._buckets)[: self.most // 10]:
            del self._buckets[key]


_ESTIMATING: Final = (
    "/explore",
    "/memory",
    "/kv",
    "/moe",
    "/comm",
    "/diagnose",
    "/library/techniques",
    "/api/v1/diagnoses",
    "/api/v1/estimates",
)
"""Pages and calls that compute, and what lies below them."""


def limited_class(method: str, path: str) -> str | None:
    """Which allowance a request draws on: uploads, estimates, share_lookups, or none."""
    if method == "POST" and path in UPLOAD_PATHS:
        return "uploads"
    if any(path == place or path.startswith(f"{place}/") for place in _ESTIMATING):
        return "estimates"
    if path.startswith(("/s/", "/api/v1/shares/", "/library/checklists/shares/", "/api/v1/checklist-shares/")):
        return "share_lookups"
    return None


_CALLED: Final = {"uploads": "uploads", "estimates": "estimates", "share_lookups": "opened links"}


class RateLimit:
    """Refuses a client that asks too often for what costs time or could be guessed at."""

    def __init__(
        self,
        app: ASGIApp,
        limits: RateLimits,
        trusted_proxies: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.trusted_proxies = trusted_proxies
        allowed = {
            "uploads": limits.uploads_per_minute,
            "estimates": limits.estimates_per_minute,
            "share_lookups": limits.share_lookups_per_minute,
        }
        self.buckets = {name: TokenBuckets(number, clock) for name, number in allowed.items() if number > 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = limited_class(scope["method"], scope["path"]) if scope["type"] == "http" else None
        buckets = self.buckets.get(name) if name else None
        if name is not None and buckets is not None:
            wait = buckets.take(client_address(scope, self.trusted_proxies))
            if wait > 0:
                seconds = int(wait) + 1
                found = errors.problem(
                    "too-many-requests",
                    f"More than {buckets.per_minute} {_CALLED[name]} a minute. Try again in {seconds} s.",
                    headers={"Retry-After": str(seconds)},
                    extra={"retry_after_s": seconds},
                )
                await _refuse(scope, receive, send, found)
                return
        await self.app(scope, receive, send)


# ---- bodies ---------------------------------------------------------------------------------------------------------


class BodyLimits:
    """Caps the bytes of a body as they arrive, and lets only strict JSON through to the API's JSON calls.

    Counting works with and without Content-Length. An upload is passed on piece by piece; everything else is small
    and is read here first.
    """

    def __init__(self, app: ASGIApp, max_upload_bytes: int) -> None:
        self.app = app
        self.max_upload = max_upload_bytes
        self.max_json = min(MAX_JSON_BYTES, max_upload_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self.app(scope, receive, send)
            return
        is_upload = scope["method"] == "POST" and scope["path"] in UPLOAD_PATHS
        cap = self.max_upload if is_upload else self.max_json
        headers = Headers(scope=scope)
        counted = _counted(receive, cap)
        try:
            announced = headers.get("content-length", "0")
            if announced.isascii() and announced.isdigit() and int(announced[:20]) > cap:
                if "expect" not in headers:  # whoever waits for leave to send reads the answer anyway
                    await _dropped(receive)
                _too_large(cap)
            if is_upload or not scope["path"].startswith("/api/"):
                await self.app(scope, counted, send)
                return
            body = await _whole(counted)
            if body:
                if not _is_json(headers.get("content-type", "")):
                    raise HTTPException(415, "Send JSON, with the header Content-Type: application/json.")
                if len(body) > 65_536:  # long enough to hold up others
                    await anyio.to_thread.run_sync(check_json, body)
                else:
                    check_json(body)
        except HTTPException as error:
            await _refuse(scope, receive, send, errors.problem_of(Request(scope), error))
            return
        except NotStrictJson as error:
            await _refuse(scope, receive, send, errors.problem("malformed", str(error)))
            return
        except _Left:
            return
        await self.app(scope, _replayed(body, receive), send)


class _Left(Exception):
    """The client went away before its body was complete."""


def _counted(receive: Receive, cap: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > cap:
                if message.get("more_body", False):
                    await _dropped(receive)
                # Frameworks turn any other exception that leaves `receive` into a vague 400.
                _too_large(cap)
        return message

    return counted


async def _dropped(receive: Receive) -> None:
    """Take the rest of a body off the line, up to a bound.

    A connection that is closed with bytes unread is reset, and its sender sees "connection reset" instead of 413.
    """
    left = MAX_DROPPED_BYTES
    with anyio.move_on_after(10):
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return


def _too_large(cap: int) -> NoReturn:
    size = f"{cap / 2**20:g} MiB" if cap >= 2**20 else f"{cap} bytes"
    raise HTTPException(413, f"The body is larger than {size}, the most that is taken here.")


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Left
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _is_json(content_type: str) -> bool:
    media_type = content_type.split(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


class NotStrictJson(ValueError):
    """The body is no JSON by the standard, or could be read in two ways. The message is for the sender."""


_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def check_json(body: bytes) -> None:
    """Raise NotStrictJson unless the body is one strict JSON value.

    Refused besides broken syntax: NaN and Infinity, numbers beyond a float's range, a key that stands twice in an
    object, nesting deeper than `MAX_JSON_DEPTH`, and escapes of half a character, which no text can hold.
    """
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_no_constant, parse_float=_in_range, object_pairs_hook=_without_repeats)
    except NotStrictJson:
        raise
    except UnicodeDecodeError as error:
        raise NotStrictJson(f"The body is not UTF-8 text: byte {error.start} cannot be read.") from None
    except json.JSONDecodeError as error:
        raise NotStrictJson(f"The body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        _too_deep()
    except ValueError:
        raise NotStrictJson("The body holds a whole number with thousands of digits.") from None
    if text.startswith("\ufeff") or body.startswith(b"\xef\xbb\xbf"):
        raise NotStrictJson("The body starts with a byte order mark, which JSON does not have.")
    _check_depth(value)
    if _HALF_CHARACTER.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise NotStrictJson("The body holds an escape for half a character (an unpaired surrogate).") from None


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        inner: list[Any] = []
        for container in level:
            children = container.values() if isinstance(container, dict) else container
            if isinstance(container, (dict, list)):
                inner.extend(child for child in children if isinstance(child, (dict, list)))
        if not inner:
            return
        level = inner
    _too_deep()


def _too_deep() -> NoReturn:
    raise NotStrictJson(f"The JSON is nested deeper than {MAX_JSON_DEPTH} levels.") from None


def _no_constant(text: str) -> NoReturn:
    raise NotStrictJson(f"The body holds {text}, which is not JSON: leave the field out, or send null.")


def _in_range(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise NotStrictJson(f"The number {text[:40]} is larger than any that can be computed with.")
    return number


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise NotStrictJson(f"The key {key[:100]!r} stands twice in one object: which of the two is meant?")
            seen.add(key)
    return found


# ---- all together ---------------------------------------------------------------------------------------------------


async def _refuse(scope: Scope, receive: Receive, send: Send, found: errors.Problem | None) -> None:
    assert found is not None
    await errors.answer(Request(scope, receive), found)(scope, receive, send)


def protect(app: FastAPI, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
    """Put everything of this module in front of an app."""
    # Added last means outermost.
    app.add_middleware(BodyLimits, max_upload_bytes=settings.max_upload_bytes)
    app.add_middleware(RateLimit, limits=settings.rate_limits, trusted_proxies=settings.trusted_proxies, clock=clock)
    app.add_middleware(SameOrigin, public_origin=settings.public_origin)
    app.add_middleware(KnownHost, host=settings.host, public_url=settings.public_url)
    app.add_middleware(Envelope)
