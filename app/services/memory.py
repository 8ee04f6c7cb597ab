"""Memory of one device by object and by pipeline stage, what levers save and cost, and what would make a step fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.domain.fit_search import Fit, Move, Proposal, make_it_fit
from app.domain.hardware import HardwareProfile
from app.domain.layout import layout_of
from app.domain.levers.base import LeverRequest, Scenario, lever_path
from app.domain.levers.registry import LEVERS
from app.domain.lower_bound import CeilingChoice
from app.domain.memory import (
    MemoryUse,
    memory_by_stage,
    memory_use,
    micro_batches_in_flight,
    optimizer_bytes_per_parameter,
    stage_layers,
)
from app.domain.memory_reserve import Reserve, communication_buffers
from app.domain.model import ModelSpec
from app.domain.workload import Workload
from app.services.context import Context
from app.services.contracts import BoundRequest, MemoryRequest
from app.services.estimate import (
    BoundEstimate,
    capacity_sources,
    estimate_bound,
    expected_json,
    expected_step_time,
    generation_code,
    ledger_json,
    sources_of,
)
from app.services.memory_modules import ModuleChoice, module_choices, modules_json
from app.services.memory_scenarios import scenario_memory, with_reserve
from app.services.references import resolve_hardware, resolve_model

SHOWN_STAGES = 64
"""Pipeline stages that an answer lists; of more, as many are picked evenly, with the first and the last."""

PLANNED_ALLOCATION = "static-pools"
"""The lever that says itself how much the allocator loses, in the place of the stated share."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a device of one pipeline stage holds."""

    stage: int
    layers: int
    micro_batches: float
    objects: Mapping[str, float]

    @property
    def peak(self) -> float:
        return sum(self.objects.values())


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """A whole answer. `use` has the reserve in it, `bound.memory` is the same step without; `before` is the memory with
    none of the levers, `after` the one with the first, the first two, and so on."""

    bound: BoundEstimate
    use: MemoryUse
    reserve: Reserve
    before: MemoryUse
    after: tuple[MemoryUse, ...]
    stages: tuple[StageMemory, ...]
    buffers: Mapping[str, float]
    fit: Fit | None
    modules: tuple[ModuleChoice, ...] = ()

    @property
    def headroom(self) -> float | None:
        return None if self.use.capacity is None else self.use.capacity - self.use.peak


def estimate_memory(ctx: Context, request: MemoryRequest) -> MemoryEstimate:
    """Answer `POST /estimates/memory`. Raises what `estimate_bound` raises."""
    bound = estimate_bound(ctx, request.bound())
    hardware, _ = resolve_hardware(ctx, request.hardware)
    model, model_notes = resolve_model(ctx, request.model)
    workload = request.workload.to_domain()
    levers = lever_requests(request)
    reserve = reserve_of(request)
    bound = replace(bound, notes=(*bound.notes, *reserve_notes(reserve), *model_notes))
    domain = hardware.ranks_per_node
    path = lever_path(LEVERS, model, workload, levers, device=generation_code(hardware), ranks_per_node=domain)
    scenarios = path.scenarios
    uses = [scenario_memory(scenario, hardware, reserve) for scenario in scenarios]
    last = scenarios[-1]
    layout = layout_of(last.model, last.workload, domain)
    edit = with_reserve(last, domain, reserve)
    shown = _shown_stages(layout.pp)
    by_stage = memory_by_stage(last.model, last.workload, ranks_per_node=domain, edit=edit, stages=shown)
    stages = tuple(
        StageMemory(
            stage,
            stage_layers(last.model, layout, stage),
            micro_batches_in_flight(last.workload, stage) if last.workload.phase == "train" else 1.0,
            objects,
        )
        for stage, objects in by_stage.items()
    )
    fit = None
    if request.make_it_fit and hardware.memory_capacity is not None:
        fit = _search(hardware, model, workload, levers, reserve, request.ceilings, bound.worked.stack)
    return MemoryEstimate(
        bound=bound,
        use=uses[-1],
        reserve=reserve,
        before=uses[0],
        after=tuple(uses[1:]),
        stages=stages,
        buffers=communication_buffers(last.model, last.workload, layout, reserve, uses[-1].objects),
        fit=fit,
        modules=module_choices(last, hardware, reserve, request.ceilings),
    )


def lever_requests(request: BoundRequest) -> list[LeverRequest]:
    return [
        LeverRequest(item) if isinstance(item, str) else LeverRequest(item.id, item.params) for item in request.levers
    ]


def reserve_of(request: MemoryRequest) -> Reserve:
    """The reserve as asked. Where a lever plans allocations, what the allocator loses is that lever's own figure."""
    body = request.reserve
    planned = any((item if isinstance(item, str) else item.id) == PLANNED_ALLOCATION for item in request.levers)
    return Reserve(
        fragmentation=0.0 if planned else body.fragmentation,
        workspace=body.workspace_bytes,
        bucket=body.bucket_bytes,
        gathered_layers=body.gathered_layers,
    )


def _shown_stages(count: int) -> list[int]:
    if count <= SHOWN_STAGES:
        return list(range(count))
    return sorted({round(i * (count - 1) / (SHOWN_STAGES - 1)) for i in range(SHOWN_STAGES)})


def _search(
    hardware: HardwareProfile,
    model: ModelSpec,
    workload: Workload,
    levers: Sequence[LeverRequest],
    reserve: Reserve,
    choice: CeilingChoice,
    stack: str,
) -> Fit:
    domain = hardware.ranks_per_node
    capacity = hardware.memory_capacity
    assert capacity is not None

    def peak_of(scenario: Scenario) -> float:
        edit = with_reserve(scenario, domain, reserve)
        return memory_use(scenario.model, scenario.workload, None, ranks_per_node=domain, edit=edit).peak

    def time_of(scenario: Scenario) -> float:
        return expected_step_time(hardware, scenario, choice, stack)

    return make_it_fit(
        LEVERS,
        model,
        workload,
        levers,
        capacity,
        device=generation_code(hardware),
        ranks_per_node=domain,
        peak_of=peak_of,
        time_of=time_of,
    )


# ---- in the API's shape ---------------------------------------------------------------------------------------------


def memory_json(estimate: MemoryEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/memory`: bytes on the fullest device, the reserve included."""
    bound, use = estimate.bound, estimate.use
    return {
        "objects": objects_json(estimate),
        "peak_bytes": use.peak,
        "capacity_bytes": use.capacity,
        "fits": use.fits,
        "headroom_bytes": estimate.headroom,
        "largest_batch": use.largest_batch,
        "least": {
            "peak_bytes": bound.memory.peak,
            "fits": bound.memory.fits,
            "largest_batch": bound.memory.largest_batch,
        },
        "reserve": {
            "fragmentation": estimate.reserve.fragmentation,
            "workspace_bytes": estimate.reserve.workspace,
            "bucket_bytes": estimate.reserve.bucket,
            "gathered_layers": estimate.reserve.gathered_layers,
        },
        "baseline_bytes": estimate.before.peak,
        "levers": levers_json(estimate),
        "stages": [
            {
                "stage": stage.stage,
                "layers": stage.layers,
                "micro_batches_in_flight": stage.micro_batches,
                "peak_bytes": stage.peak,
                "objects": [{"object": name, "bytes": size} for name, size in stage.objects.items()],
            }
            for stage in estimate.stages
        ],
        "modules": modules_json(estimate.modules),
        "make_it_fit": None if estimate.fit is None else fit_json(estimate.fit),
        "bound_s": float(bound.bound.overlapped),
        "expected": expected_json(bound.expected),
        "devices": bound.workload.parallel.devices,
        "hardware": {"id": bound.hardware.id, "name": bound.hardware.name},
        "model": {"id": bound.model.id, "name": bound.model.name},
        "assumptions": list(dict.fromkeys(bound.assumptions)),
        "sources": [*capacity_sources(bound.hardware), *sources_of(bound.hardware, bound.bound)],
    }


def objects_json(estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """Objects with their parts, where they have some: moments and master weights, buffers by exchange."""
    w, objects = estimate.bound.workload, estimate.use.objects
    parts: dict[str, list[dict[str, Any]]] = {}
    optimizer = optimizer_bytes_per_parameter(w.optimizer, w.dtypes)
    if objects["optimizer"] > 0 and optimizer.state > 0:
        master = objects["optimizer"] * optimizer.master / optimizer.state
        parts["optimizer"] = [
            {"part": "moments", "bytes": objects["optimizer"] - master},
            {"part": "master weights", "bytes": master},
        ]
    if estimate.buffers:
        parts["communication"] = [{"part": name, "bytes": size} for name, size in estimate.buffers.items()]
    return [{"object": name, "bytes": size, "parts": parts.get(name, [])} for name, size in objects.items()]


def levers_json(estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """What each lever saves, in order, and what it costs one device in a step; what it spares is negative."""
    rows = []
    before = estimate.before
    for row, after in zip(estimate.bound.ledger, estimate.after, strict=True):
        booked = ledger_json(row)
        rows.append(
            {
                "id": row.lever.id,
                "title": row.lever.title,
                "memory_lever": row.lever.memory_lever,
                "book_as": row.lever.book_as,
                "params": dict(row.params),
                "saves_bytes": before.peak - after.peak,
                "before_bytes": before.peak,
                "after_bytes": after.peak,
                "saves_by_object": [
                    {"object": name, "bytes": size - after.objects[name]}
                    for name, size in before.objects.items()
                    if size != after.objects[name]
                ],
                "costs": {
                    "flop": -booked["saved_flop"],
                    "hbm_bytes": -booked["saved_bytes"],
                    "net_bytes": -booked["saved_net_bytes"],
                    "time_s": -booked["saved_s"],
                    "serial_time_s": -booked["saved_serial_s"],
                    "expected_time_s": -booked["saved_expected_s"],
                },
                "ideal": row.lever.ideal,
                "notes": booked["notes"],
            }
        )
        before = after
    return rows


def fit_json(fit: Fit) -> dict[str, Any]:
    """The search in the API's shape: proposals with the workload and the levers that ask for them."""
    return {
        "fits_already": fit.fits_already,
        "start_bytes": fit.start_peak,
        "start_time_s": fit.start_time,
        "proposals": [proposal_json(fit, proposal) for proposal in fit.proposals],
        "closest": None
        if fit.closest is None
        else {"moves": [move.label for move in fit.closest[0]], "peak_bytes": fit.closest[1]},
        "tried": [
            {"move": item.label, "peak_bytes": item.peak, "time_s": item.time, "reason": item.reason}
            for item in fit.tried
        ],
        "combinations": fit.looked_at,
    }


def proposal_json(fit: Fit, proposal: Proposal) -> dict[str, Any]:
    peak, time = fit.start_peak, fit.start_time
    steps = []
    for step in proposal.steps:
        steps.append(
            {
                "move": step.move.label,
                "kind": step.move.kind,
                "lever": None if step.move.lever is None else step.move.lever.id,
                "change": dict(step.move.change),
                "saves_bytes": peak - step.peak,
                "peak_bytes": step.peak,
                "costs_time_s": step.time - time,
                "gives_up": gives_up(step.move),
            }
        )
        peak, time = step.peak, step.time
    parallel = asdict(proposal.workload.parallel)
    return {
        "exact": proposal.exact,
        "peak_bytes": proposal.peak,
        "headroom_bytes": fit.capacity - proposal.peak,
        "time_s": proposal.time,
        "costs_time_s": proposal.time - fit.start_time,
        "steps": steps,
        "workload": {
            "batch": proposal.workload.batch,
            "parallel": parallel,
            "recompute_modules": list(proposal.workload.recompute_modules),
            "offload": asdict(proposal.workload.offload) if proposal.workload.offload.any else None,
        },
        "levers": [{"id": lever.id, "params": dict(lever.params)} for lever in proposal.levers],
    }


_GIVEN_UP: Mapping[str, str] = {
    "dematerialize": "a tensor that other code may want to read is never written",
    "compress": "numbers are kept or computed in fewer bits: accuracy has to be checked",
    "pack": "the allocation is tied to a page size",
    "recompute": "the backward pass runs work of the forward pass again",
    "shard": "the links carry what was held locally before",
    "allocator": "shapes and lifetimes are fixed in advance",
}


def gives_up(move: Move) -> str:
    """What a move takes for what it saves, in words."""
    if move.lever is not None:
        return _GIVEN_UP.get(str(LEVERS[move.lever.id].memory_lever), "")
    if move.kind == "module":
        return _GIVEN_UP["recompute"] if "recompute" in move.change else _GIVEN_UP["shard"]
    if move.kind == "micro-batches":
        return "products get smaller: more of them, each with fewer rows"
    if "zero_stage" in move.change and "tp" not in move.change:
        return _GIVEN_UP["shard"]
    return "other links carry other traffic; the job has to be laid out anew"


def reserve_notes(reserve: Reserve) -> tuple[str, ...]:
    """The reserve in words: it is assumed, and the bound counts none of it."""
    mib = 2.0**20
    return (
        f"Assumed beside the payload: {reserve.fragmentation * 100:.3g} % of the allocated bytes lost to "
        f"fragmentation, {reserve.workspace / mib:,.4g} MiB for the driver's context and workspaces, gradient buckets "
        f"of {reserve.bucket / mib:,.4g} MiB, {reserve.gathered_layers} layers gathered at once under ZeRO-3. "
        "A bound counts none of these.",
    )
