"""What comparisons hold of the memory, cache and expert pages: each as its own call answers it, with its own metrics.

A step's bound knows none of a reserve, of pages and prefixes or of a level of overlap; these items do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from app.domain.comparison_items import Value
from app.services.compare_answer import Answered, Figure
from app.services.context import Context
from app.services.contracts import Contract, KvRequest, MemoryRequest, MoeRequest
from app.services.kv import estimate_kv, kv_json
from app.services.memory import estimate_memory, memory_json
from app.services.moe import bound_request, estimate_moe, moe_json


class FrozenMemory(Contract):
    """A device's memory to freeze: the body of `POST /estimates/memory`; the search for what would fit is left out."""

    kind: Literal["memory"]
    request: MemoryRequest


class FrozenKv(Contract):
    """A batch's cache to freeze: the body of `POST /estimates/kv`."""

    kind: Literal["kv"]
    request: KvRequest


class FrozenMoe(Contract):
    """Expert layers to freeze: the body of `POST /estimates/moe`."""

    kind: Literal["moe"]
    request: MoeRequest


FrozenPage: TypeAlias = FrozenMemory | FrozenKv | FrozenMoe

PAGES: Mapping[str, str] = {"memory": "Memory of a device", "kv": "KV cache", "moe": "Expert layers"}
"""The kinds in words, for what nobody named."""


def page_answer(ctx: Context, asked: FrozenPage) -> Answered:
    """Ask what is to be frozen. Raises what the three calls raise."""
    if isinstance(asked, FrozenMemory):
        return _memory(ctx, asked.request)
    return _kv(ctx, asked.request) if isinstance(asked, FrozenKv) else _moe(ctx, asked.request)


def _memory(ctx: Context, request: MemoryRequest) -> Answered:
    request = request.model_copy(update={"make_it_fit": False})
    found = estimate_memory(ctx, request)
    answer = memory_json(found)
    values = {
        "peak_memory_bytes": Value(answer["peak_bytes"], "expected"),
        "least_memory_bytes": Value(answer["least"]["peak_bytes"], "bound"),
        "largest_batch": _or_none(answer["largest_batch"], "expected"),
        "step_expected_s": Value(answer["expected"]["time_s"], "expected"),
    }
    kept: tuple[str, ...] = (
        "objects",
        "peak_bytes",
        "capacity_bytes",
        "fits",
        "headroom_bytes",
        "largest_batch",
        "least",
        "reserve",
    )
    kept += ("baseline_bytes", "levers", "bound_s", "expected", "devices", "assumptions", "sources")
    reserve = found.reserve
    return Answered(
        kind="memory",
        request=request.model_dump(mode="json"),
        answer={name: answer[name] for name in kept},
        label=f"Memory of {found.bound.model.name} on {found.bound.hardware.name}",
        values=_stated(values),
        frozen={
            "reserve": f"{reserve.fragmentation * 100:.3g} % lost, {reserve.workspace / 2**20:,.4g} MiB workspace, "
            f"buckets of {reserve.bucket / 2**20:,.4g} MiB, {reserve.gathered_layers} gathered layers"
        },
        model=found.bound.model,
        hardware=found.bound.hardware,
        step=(found.bound, request.bound()),
    )


def _kv(ctx: Context, request: KvRequest) -> Answered:
    found = estimate_kv(ctx, request)
    answer = kv_json(found)
    values = {
        "kv_bytes_per_token": Value(answer["bytes_per_token"], "bound"),
        "kv_payload_bytes": Value(answer["payload_bytes"], "bound"),
        "kv_paged_bytes": Value(answer["paged_bytes"], "bound"),
        "kv_total_bytes": Value(answer["total_bytes"], "bound"),
        "kv_allocated_bytes": Value(answer["allocated_bytes"], "bound"),
        "kv_per_device_bytes": Value(answer["per_device_bytes"], "bound"),
        "largest_batch": _or_none(answer["max_batch"], "expected"),
        "largest_context": _or_none(answer["max_context_len"], "expected"),
        "kv_read_s": _or_none(answer["read_s_per_step"], "bound"),
    }
    where = "" if found.hardware is None else f" on {found.hardware.name}"
    parallel = found.workload.parallel
    dtypes = found.workload.dtypes
    frozen: dict[str, Any] = {
        "model": found.model.name,
        "mode": "cache",
        "concurrency": found.lengths.sequences,
        "context_len": found.lengths.mean,
        "lengths": _spread(found.lengths.values.size, answer["lengths"]),
        "page_tokens": found.page,
        "cached_len": found.prefix or None,
        "reserve": None if found.hardware is None else f"{found.reserve * 100:.3g} % of the memory",
        "hardware": None if found.hardware is None else found.hardware.name,
        "devices": parallel.devices,
        "layout": {name: getattr(parallel, name) for name in ("tp", "pp", "dp", "cp", "ep", "micro_batches")},
        "dtypes.kv": dtypes.kv,
        "dtypes.weights": dtypes.weights,
    }
    return Answered(
        kind="kv",
        request=request.model_dump(mode="json"),
        answer=answer,
        label=f"KV cache of {found.model.name}, {found.lengths.sequences:,.0f} sequences{where}",
        values=_stated(values),
        frozen={name: value for name, value in frozen.items() if value is not None},
        model=found.model,
        hardware=found.hardware,
        run=request.run,
    )


def _moe(ctx: Context, request: MoeRequest) -> Answered:
    request = request.model_copy(update={"layouts": False})
    found = estimate_moe(ctx, request)
    answer = moe_json(found)
    dispatch, routing = found.step.workload.dispatch, found.step.workload.routing
    expected = answer["expected"]
    values = {
        "expert_layers_s": Value(answer["overlap_levels"][answer["overlap"]], "expected"),
        "expert_bound_s": Value(answer["bound_s"], "bound", expected["low_s"], expected["high_s"]),
        "expert_serial_s": Value(answer["serial_bound_s"], "bound"),
        "expert_expected_s": Value(expected["time_s"], "expected", expected["low_s"], expected["high_s"]),
        "exposed_communication_s": Value(answer["exposed_communication_s"], "expected"),
        "rank_imbalance": Value(answer["load"]["rank_imbalance"], "expected"),
        "peak_memory_bytes": Value(answer["walls"]["memory_bytes"], "bound"),
    }
    alpha = f" {routing.alpha:g}" if routing.kind == "zipf" else ""
    parts = [dispatch.scheme.replace("_", " "), dispatch.dtype or found.step.workload.dtypes.communication]
    parts += [f"{dispatch.node_limit} nodes at most"] if dispatch.node_limit else []
    parts += [f"capacity {dispatch.capacity_factor:g}"] if dispatch.capacity_factor else []
    parts += [f"{dispatch.replicas} replicas"] if dispatch.replicas else []
    overlap = found.pipeline.level + (f", {found.units} units" if found.units else "")
    return Answered(
        kind="moe",
        request=request.model_dump(mode="json"),
        answer={name: value for name, value in answer.items() if name != "timeline"},
        label=f"Experts of {found.step.model.name} on {found.step.hardware.name}",
        values=values,
        frozen={"routing": routing.kind + alpha, "dispatch": ", ".join(parts), "overlap": overlap},
        model=found.step.model,
        hardware=found.step.hardware,
        step=(found.step, bound_request(request)),
    )


def _or_none(value: float | None, kind: Literal["bound", "expected"]) -> Value | None:
    return None if value is None else Value(float(value), kind)


def _stated(values: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if value is not None}


def _spread(distinct: int, lengths: Mapping[str, float]) -> str:
    if distinct == 1:
        return f"all {lengths['mean']:,.0f}"
    return f"median {lengths['p50']:,.0f}, 95th percentile {lengths['p95']:,.0f}, longest {lengths['max']:,.0f}"


def page_asked_again(ctx: Context, item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Today's answer to a frozen item, from its frozen profile and model; None where it takes a run, which may be gone.

    Raises what the calls raise, and ValidationError for a request that is not taken any more.
    """
    kind, request = item["estimate"]["kind"], dict(item["estimate"]["request"])
    if request.get("run"):
        return None
    request["model"] = item["model"]["architecture"]
    if item["hardware"] is not None:
        request["hardware"] = item["hardware"]["profile"]
    if kind == "memory":
        return _memory(ctx, MemoryRequest.model_validate(request)).answer
    if kind == "kv":
        return _kv(ctx, KvRequest.model_validate(request)).answer
    return _moe(ctx, MoeRequest.model_validate(request)).answer


PAGE_FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "memory": (
        ("memory of a device", "B", ("peak_bytes",)),
        ("least memory of a device", "B", ("least", "peak_bytes")),
        ("largest batch", "1", ("largest_batch",)),
        ("expected time of a step", "s", ("expected", "time_s")),
    ),
    "kv": (
        ("cache in pages with a shared prefix", "B", ("total_bytes",)),
        ("cache of a device", "B", ("per_device_bytes",)),
        ("largest batch", "1", ("max_batch",)),
        ("largest context", "1", ("max_context_len",)),
    ),
    "moe": (
        ("bound of the expert layers", "s", ("bound_s",)),
        ("expert layers one stage after another", "s", ("serial_bound_s",)),
        ("expected time of the expert layers", "s", ("expected", "time_s")),
        ("exposed communication", "s", ("exposed_communication_s",)),
    ),
}
"""What is held against today's answer when a link is opened."""
