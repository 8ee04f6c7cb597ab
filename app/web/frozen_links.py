"""Addresses that ask a frozen question again on the page that it came from.

Each is made of the request alone, read back, and given only where it asks the same; a question that no controls hold
has none. Requests with a profile or model written out instead of named have none either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from app.catalog.codec import model_from_json
from app.domain.errors import DomainError
from app.domain.lengths import Lengths
from app.domain.memory_reserve import Reserve
from app.domain.model import ModelSpec
from app.services.contracts import BoundRequest, KvRequest, MemoryRequest, MoeRequest
from app.services.kv_what_if import MOST_DISTINCT, KvState, write_lengths
from app.services.memory_page import MemoryState
from app.services.moe import MoeState, bound_request, histogram_text
from app.services.what_if import asked_body, state_of
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


def page_address(item: Mapping[str, Any]) -> str:
    """The address of a frozen estimate's question; empty where no page holds it as it was asked."""
    kind, body = item["estimate"]["kind"], item["estimate"]["request"]
    try:
        if kind in _PAGES:
            if not isinstance(body["model"], str) or not isinstance(body["hardware"], str):
                return ""
            return _PAGES[kind](body, model_from_json(item["model"]["architecture"]).model)
        return _communication(kind, body)
    except (ValidationError, DomainError, TypeError, ValueError):
        return ""


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


def _lab(body: Mapping[str, Any], model: ModelSpec) -> str:
    state = state_of(BoundRequest.model_validate(body), model)
    return "" if state is None else rendering.query("/explore", **state.query())


def _memory(body: Mapping[str, Any], model: ModelSpec) -> str:
    request = MemoryRequest.model_validate(body)
    bound = BoundRequest(**{name: getattr(request, name) for name in BoundRequest.model_fields})
    lab = state_of(bound, model)
    told = request.reserve
    reserve = Reserve(told.fragmentation, told.workspace_bytes, told.bucket_bytes, told.gathered_layers)
    return "" if lab is None else rendering.query("/memory", **MemoryState(lab, reserve).query())


def _kv(body: Mapping[str, Any], _: ModelSpec) -> str:
    request = KvRequest.model_validate(body)
    parallel = {name: getattr(request.parallel, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    asked: dict[str, Any] = {"dist": "fixed", "batch": request.batch, "context": request.context_len or 0}
    lengths = Lengths.fixed(request.batch, request.context_len or 0)
    if request.run is not None:
        asked = {"dist": "run", "run": request.run, "batch": request.batch}
    elif request.sequences is not None:
        lengths = Lengths.of(request.sequences)
        if lengths.values.size > MOST_DISTINCT:
            return ""
        asked = {"dist": "list", "lengths": write_lengths(lengths)}
    state = KvState(
        hardware=str(request.hardware),
        model=str(request.model),
        prefix=request.shared_prefix_tokens,
        page=request.page_tokens,
        longest=request.reserved_len or 0,
        prediction=request.prediction_modules,
        weights=request.weights_dtype,
        activations=request.activations_dtype,
        kv=request.kv_dtype,
        reserve=round(request.reserve_fraction * 100),
        ceilings=request.ceilings,
        lines="-",
        **parallel,
        **asked,
    )
    again = KvRequest.model_validate(state.body(lengths))
    length_names = {"batch", "context_len", "sequences"}
    same = again.model_dump(exclude=length_names) == request.model_dump(exclude=length_names)
    return rendering.query("/kv", **state.query()) if same else ""


def _moe(body: Mapping[str, Any], _: ModelSpec) -> str:
    request = MoeRequest.model_validate(body)
    bound = bound_request(request)
    w = bound.workload
    p, d, plain = w.parallel, w.dispatch, MoeState()
    decode = w.phase == "decode"
    state = MoeState(
        hardware=str(request.hardware),
        model=str(request.model),
        phase=w.phase,
        batch=w.batch,
        seq=plain.seq if decode or w.seq_len is None else w.seq_len,
        context=plain.context if w.phase == "train" else w.context_len,
        weights=w.dtypes.weights,
        activations=w.dtypes.activations,
        kv=w.dtypes.kv,
        tp=p.tp,
        pp=p.pp,
        dp=p.dp,
        ep=p.ep,
        etp=p.etp,
        micro_batches=p.micro_batches,
        routing=w.routing.kind,
        alpha=w.routing.alpha,
        histogram=histogram_text(w.routing.tokens_per_expert),
        scheme=d.scheme,
        dispatch=d.dtype or w.dtypes.communication,
        node_limit=d.node_limit or 0,
        capacity=d.capacity_factor or 0.0,
        replicas=d.replicas,
        overlap=w.overlap,
        units=request.communication_units or 0,
        recompute=w.recompute,
        zero=p.zero_stage if w.phase == "train" else plain.zero,
        launch=w.launch_mode,
        ceilings=request.ceilings,
    )
    again = BoundRequest.model_validate(state.body())
    return rendering.query("/moe", **state.query()) if _compared(again) == _compared(bound) else ""


def _compared(request: BoundRequest) -> dict[str, Any]:
    body = asked_body(request)
    routing = body["workload"]["routing"]
    if routing["kind"] != "zipf":
        routing.pop("alpha")
    return body


_PAGES: Final[Mapping[str, Callable[[Mapping[str, Any], ModelSpec], str]]] = {
    "bound": _lab,
    "memory": _memory,
    "kv": _kv,
    "moe": _moe,
}
