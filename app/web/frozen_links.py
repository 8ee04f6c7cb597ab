"""Addresses that ask a frozen question again on the page that it came from.

Each is made of the request alone and given only where it asks the same; a question that no controls hold has none.
Requests with a profile or model written out instead of named have none either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from app.catalog.codec import model_from_json
from app.domain.errors import DomainError
from app.domain.model import ModelSpec
from app.services import kv_what_if, memory_page, moe, what_if
from app.services.contracts import BoundRequest, KvRequest, MemoryRequest, MoeRequest
from app.services.kv_what_if import KvState
from app.services.memory_page import MemoryState
from app.services.moe import MoeState
from app.services.what_if import WhatIf
from app.web import rendering
from app.web.communication_form import address_of_request

PAGE_NAMES: Final[Mapping[str, str]] = {
    "bound": "what-if lab",
    "op": "communication page",
    "overlap": "communication page",
    "exposed": "communication page",
    "pipeline": "communication page",
    "memory": "memory page",
    "kv": "KV cache page",
    "moe": "expert page",
}

_PATHS: Final[Mapping[str, str]] = {"bound": "/explore", "memory": "/memory", "kv": "/kv", "moe": "/moe"}


def page_address(item: Mapping[str, Any]) -> str:
    """The address of a frozen estimate's question; empty where no page holds it as it was asked."""
    kind, body = item["estimate"]["kind"], item["estimate"]["request"]
    try:
        if kind not in _PATHS:
            return _communication(kind, body)
        state = _state(kind, body, model_from_json(item["model"]["architecture"]).model)
        return "" if state is None else rendering.query(_PATHS[kind], **state.query())
    except (ValidationError, DomainError, TypeError, ValueError):
        return ""


def _state(kind: str, body: Mapping[str, Any], model: ModelSpec) -> WhatIf | MemoryState | KvState | MoeState | None:
    if kind == "bound":
        return what_if.state_of(BoundRequest.model_validate(body), model)
    if kind == "memory":
        return memory_page.state_of(MemoryRequest.model_validate(body), model)
    if kind == "kv":
        return kv_what_if.state_of(KvRequest.model_validate(body))
    return moe.state_of(MoeRequest.model_validate(body), model)


def _communication(kind: str, body: Mapping[str, Any]) -> str:
    if kind == "op":
        op = dict(body["op"])
        if op.pop("op") != "collective":
            return ""
        kind, body = "collective", {"hardware": body["hardware"], "ceilings": body["ceilings"], **op}
    if isinstance(body.get("hardware"), Mapping):
        return ""
    query = address_of_request(kind, body)
    return "" if query is None else rendering.query("/comm", **query)
