"""Estimates: a question about hardware, model and workload becomes numbers with their terms, rows and sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from app.catalog.calibration import load_calibration
from app.domain.calibration import HIDDEN_DISPATCH, HIDDEN_EXCHANGE, UNKNOWN_UNITS, hides_exchange, step_class
from app.domain.collectives import COLLECTIVES
from app.domain.cost import TIERS, CostTable, over_operations
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.expected import Expected, expected_time
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import (
    Lever,
    LeverPath,
    LeverRequest,
    Params,
    Scenario,
    graph_launched,
    lever_path,
    refused,
    tables,
)
from app.domain.levers.registry import LEVERS
from app.domain.lower_bound import (
    RESOURCES,
    Bound,
    CeilingChoice,
    Ceilings,
    ceilings,
    lower_bound,
    lower_bounds,
    repeated_bound,
)
from app.domain.memory import MemoryUse, memory_use
from app.domain.model import ModelSpec
from app.domain.overlap import OVERLAP_EFFICIENCY
from app.domain.precision import PRECISIONS
from app.domain.single_op import attention_table, collective_table, elementwise_table, gemm_table
from app.domain.step import KnownRows
from app.domain.workload import Workload
from app.services.context import Context
from app.services.contracts import AttentionBody, BoundRequest, CollectiveBody, GemmBody, OpRequest
from app.services.references import resolve_hardware, resolve_model


@dataclass(slots=True)
class Worked:
    """What the steps of one path of levers share: most levers leave the rows, or the memory, of the step before.

    `stack` is the class of the first step, whose residual factor the others are forecast with.
    """

    rows: KnownRows = field(default_factory=KnownRows)
    memory: dict[tuple[object, ...], MemoryUse] = field(default_factory=dict)
    stack: str = ""


@dataclass(frozen=True)  # no slots: forecast and memory are worked out when they are first asked for
class BoundEstimate:
    """A whole answer: what was asked, the bound with its table, the forecast and the memory of one device.

    With levers it is the last step of their path, and `ledger` has the steps. `notes` are the assumptions of whoever
    asked.
    """

    hardware: HardwareProfile
    scenario: Scenario
    bound: Bound
    notes: tuple[str, ...]
    worked: Worked
    ledger: tuple[LedgerRow, ...] = ()

    @property
    def model(self) -> ModelSpec:
        return self.scenario.model

    @property
    def workload(self) -> Workload:
        return self.scenario.workload

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """Every default and simplification that shaped the answer."""
        workload, table, roofs = self.workload, self.bound.table, self.bound.ceilings
        notes = [
            *self.notes,
            *roofs.notes_for(table, eager=workload.launch_mode == "eager"),
            *table.assumptions,
            *_hop_notes(table, roofs),
        ]
        if hides_exchange(table, workload):
            what, behind = (
                ("the exchange with experts", "the other direction's micro-batch")
                if workload.phase == "train"
                else ("the exchange with experts in other nodes", "the other half of the batch")
            )
            notes.append(
                f"The expected time of a step takes {HIDDEN_DISPATCH:.0%} of {what} as hidden behind {behind}, but for "
                "what messages take to start (judgement). That of a single stage hides none."
            )
        if any(op.base.endswith("input all-gather") for op in table.ops):
            notes.append(
                f"The expected time takes {OVERLAP_EFFICIENCY['L2']:.0%} of what weight gradients gather again as "
                "hidden beside gradients of inputs (judgement)."
            )
        if any(op.stage == "data parallel" for op in table.ops):
            notes.append(
                f"The expected time takes {HIDDEN_EXCHANGE:.0%} of what replicas exchange as hidden behind the step's "
                "work (judgement)."
            )
        streamed = float(over_operations(table.streamed_bytes() * table["count"]))
        if 0 < streamed <= roofs.cache:
            notes.append("The step's weights, cache and state fit the last-level cache together: none crosses HBM.")
        if self.hardware.memory_capacity is None:
            notes.append("The profile states no memory capacity: whether the step fits is not known.")
        if roofs.units is None:
            notes.append(f"No compute units in the profile: the expected time takes {UNKNOWN_UNITS:g}.")
        return tuple(notes)

    @cached_property
    def expected(self) -> Expected:
        """What a well-tuned stack takes, from the fitted kernels and steps."""
        if self.ledger:
            return self.ledger[-1].after.expected
        return _forecast(self.hardware, self.bound, self.workload, self.worked.stack)

    @cached_property
    def memory(self) -> MemoryUse:
        """What lies in the fullest device's memory."""
        edits = tuple(edit.memory for edit in self.scenario.edits if edit.memory is not None)
        key = (id(self.model), graph_launched(self.workload), edits)
        known = self.worked.memory.get(key)
        if known is None:
            known = self.worked.memory[key] = memory_use(
                self.model,
                self.workload,
                self.hardware.memory_capacity,
                ranks_per_node=self.hardware.ranks_per_node,
                edit=self.scenario.edited_memory,
            )
        return known

    @cached_property
    def totals(self) -> dict[str, Any]:
        """The figures that a ledger follows, of one device and step."""
        bound = self.bound
        return {
            "bound_s": float(bound.overlapped),
            "serial_bound_s": float(bound.serial),
            "expected_s": self.expected.time,
            "executed_flop": bound.total("executed"),
            "hbm_bytes": bound.hbm_bytes,
            "net_bytes": bound.net_bytes,
            "launches": bound.total("launches"),
            "memory_bytes": self.memory.peak,
            "tokens": float(bound.table.tokens),
            "devices": int(bound.table.devices),
        }

    @property
    def runs(self) -> bool:
        """Whether such a step can run at all: it must fit into memory where the capacity is known."""
        return self.memory.fits is not False

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all devices over the floor; None for a step that does not fit, which has no throughput."""
        return self.bound.tokens_per_second if self.runs else None


@dataclass(frozen=True, slots=True)
class OpEstimate:
    """`repeated` is the bound in seconds where the call runs again and again on the same operands."""

    hardware: HardwareProfile
    bound: Bound
    repeated: float
    expected: Expected
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What one lever changed: the estimates before and after it. A row's `before` is the last row's `after`."""

    lever: Lever
    params: Params
    before: BoundEstimate
    after: BoundEstimate


def bound_of(
    hardware: HardwareProfile,
    model: ModelSpec,
    workload: Workload,
    choice: CeilingChoice = "peak",
    assumptions: tuple[str, ...] = (),
    levers: Sequence[LeverRequest] = (),
) -> BoundEstimate:
    """Bound, forecast and memory of one step, after the levers.

    Raises InvalidInput, MissingFigure or UnsupportedArchitecture.
    """
    roofs = ceilings(hardware, choice)
    device, domain = generation_code(hardware), hardware.ranks_per_node
    path = lever_path(LEVERS, model, workload, levers, device=device, ranks_per_node=domain)
    worked = Worked()
    try:
        steps = _evaluate(hardware, path.scenarios, roofs, assumptions, worked)
    except (InvalidInput, MissingFigure) as error:
        raise _where(error, hardware, path, roofs) from error
    ledger = tuple(
        LedgerRow(item.lever, item.params, before, after)
        for item, before, after in zip(path.asked, steps[:-1], steps[1:], strict=True)
    )
    return replace(steps[-1], ledger=ledger)


def _where(
    error: InvalidInput | MissingFigure, hardware: HardwareProfile, path: LeverPath, roofs: Ceilings
) -> InvalidInput | MissingFigure:
    """The error of a path at the lever that brought it about: what only a lever makes impossible is refused there."""
    plain = replace(path.scenarios[0], edits=())
    asked = [None, next((item for item in path.asked if item.lever.lack is not None), None), *path.asked]
    for item, scenario in zip(asked, (plain, *path.scenarios), strict=True):
        try:
            _evaluate(hardware, [scenario], roofs, (), Worked())
        except (InvalidInput, MissingFigure) as found:
            return found if item is None else refused(item, found)
    return error


def _evaluate(
    hardware: HardwareProfile,
    scenarios: Sequence[Scenario],
    roofs: Ceilings,
    notes: tuple[str, ...],
    worked: Worked,
) -> list[BoundEstimate]:
    found = tables(scenarios, hardware.ranks_per_node, worked.rows)
    worked.stack = worked.stack or step_class(found[0], scenarios[0].workload, roofs.family)
    bounds = lower_bounds(found, roofs, [scenario.workload.launch_mode for scenario in scenarios])
    return [
        BoundEstimate(hardware=hardware, scenario=scenario, bound=bound, notes=notes, worked=worked)
        for scenario, bound in zip(scenarios, bounds, strict=True)
    ]


def _hop_notes(table: CostTable, roofs: Ceilings) -> list[str]:
    """What the forecast takes for messages between nodes, which no profile states."""
    if not table["hops"].any():
        return []
    to = "across PCIe" if roofs.names.get("scale-out bandwidth") == "PCIe" else "to another node"
    return [f"The expected time takes {roofs.far_start * 1e6:g} us for a message {to} to start (judgement)."]


def expected_step_time(
    hardware: HardwareProfile, scenario: Scenario, choice: CeilingChoice = "peak", stack: str = ""
) -> float:
    """Expected seconds of one step of a scenario, on another step's `stack` where one is given.

    Raises what `bound_of` raises.
    """
    return _evaluate(hardware, [scenario], ceilings(hardware, choice), (), Worked(stack=stack))[0].expected.time


def _forecast(
    hardware: HardwareProfile, bound: Bound, workload: Workload | None = None, stack: str | None = None
) -> Expected:
    """What a well-tuned stack takes. Fits are shares of vendor peaks, whatever ceilings the bound was asked with."""
    peaks = bound
    if "achievable" in bound.ceilings.names.values():
        roofs = replace(ceilings(hardware), cache=bound.ceilings.cache)
        mode = "graph" if workload is None else workload.launch_mode
        peaks = lower_bound(bound.table, roofs, launch_mode=mode)
    forecast = expected_time(peaks, load_calibration(), workload, stack)
    floor = float(bound.overlapped)
    if forecast.low >= floor:
        return forecast
    return replace(
        forecast, time=max(forecast.time, floor), low=max(forecast.low, floor), high=max(forecast.high, floor)
    )


def estimate_bound(ctx: Context, request: BoundRequest) -> BoundEstimate:
    """Answer `POST /estimates/bound`."""
    hardware, hardware_notes = resolve_hardware(ctx, request.hardware)
    model, model_notes = resolve_model(ctx, request.model)
    return bound_on(hardware, model, request, (*hardware_notes, *model_notes))


def bound_on(
    hardware: HardwareProfile, model: ModelSpec, request: BoundRequest, notes: tuple[str, ...] = ()
) -> BoundEstimate:
    """The same on a profile and a model that are known already; the request's own names are not looked at."""
    return bound_of(
        hardware,
        model,
        request.workload.to_domain(),
        request.ceilings,
        assumptions=(
            # a denoiser's tokens follow from the picture
            *(
                note
                for note in request.filled_defaults()
                if not (model.denoiser and note.startswith("workload.seq_len"))
            ),
            *notes,
        ),
        levers=lever_requests(request),
    )


def lever_requests(request: BoundRequest) -> list[LeverRequest]:
    """The levers of a request as the domain takes them."""
    return [
        LeverRequest(item) if isinstance(item, str) else LeverRequest(item.id, item.params) for item in request.levers
    ]


def estimate_op(ctx: Context, request: OpRequest) -> OpEstimate:
    """Answer `POST /estimates/op`: one operation, its operands cold in memory."""
    hardware, notes = resolve_hardware(ctx, request.hardware)
    return op_on(hardware, request, notes)


def op_on(hardware: HardwareProfile, request: OpRequest, notes: tuple[str, ...] = ()) -> OpEstimate:
    """The same on a profile that is known already; the request's own `hardware` is not looked at."""
    roofs = ceilings(hardware, request.ceilings)
    table = _op_table(request, hardware)
    # one cold operation: what it reads is not in cache, and what it writes must reach memory
    cold = Ceilings(**{name: getattr(roofs, name) for name in Ceilings.__slots__} | {"cache": 0.0})
    bound = lower_bound(table, cold)
    # a benchmark that calls it in a loop may find a cache's worth of its operands where the last call left them
    repeated = repeated_bound(bound, roofs)
    defaults = tuple(request.filled_defaults())
    inner = tuple(request.op.filled_defaults("op."))
    return OpEstimate(
        hardware=hardware,
        bound=bound,
        repeated=repeated,
        expected=_forecast(hardware, bound),
        assumptions=(
            *defaults,
            *inner,
            *notes,
            *(note for note in roofs.notes_for(table, eager=False) if "cache size" not in note),
            *_hop_notes(table, roofs),
            "Operands are read from HBM once and results written once.",
        ),
    )


def _op_table(request: OpRequest, hardware: HardwareProfile) -> CostTable:
    op = request.op
    if isinstance(op, GemmBody):
        return gemm_table(op.m, op.n, op.k, op.dtype, batch=op.batch, groups=op.groups)
    if isinstance(op, AttentionBody):
        return attention_table(**op.model_dump(exclude={"op"}))
    if isinstance(op, CollectiveBody):
        per_node = op.ranks_per_node or hardware.ranks_per_node
        in_switch = (
            hardware.scale_up is not None and hardware.scale_up.in_network_reduction
            if op.in_switch_reduction is None
            else op.in_switch_reduction
        )
        assert op.kind in COLLECTIVES
        return collective_table(op.kind, op.bytes, op.ranks, per_node, in_switch, op.algorithm)
    return elementwise_table(op.elements, op.reads, op.writes, op.dtype)


def generation_code(hardware: HardwareProfile) -> str | None:
    """The generation as kernels name it (`sm90`, `gfx942`), the vendor where it has no such code, None if unknown."""
    if hardware.compute_capability is not None:
        return f"sm{hardware.compute_capability.replace('.', '')}"
    if hardware.gfx is not None or hardware.vendor == "NVIDIA":
        return hardware.gfx
    return hardware.vendor


def used_roofs(bound: Bound) -> list[dict[str, Any]]:
    """The roofs that some row is held against: name, rate, and where it comes from (`peak`, `achievable`, ...)."""
    roofs = bound.ceilings
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys(PRECISIONS[op.dtype].peak for op in bound.table.ops if op.pipe == "tensor"):
        rows.append(
            {
                "roof": "compute",
                "name": key,
                "rate": roofs.flop[key],
                "unit": "FLOP/s",
                "basis": roofs.names[key],
                "figure": f"peak.flop_per_s.{key}",
            }
        )
    rows.append(
        {
            "roof": "hbm",
            "name": "HBM",
            "rate": roofs.memory,
            "unit": "B/s",
            "basis": roofs.names["memory bandwidth"],
            "figure": "peak.memory_bandwidth_bytes_per_s",
        }
    )
    for tier in TIERS:
        if np.any(bound.table.net[tier] > 0):
            rows.append(
                {
                    "roof": "net",
                    "name": f"{tier.replace('_', '-')} link",
                    "rate": roofs.links[tier],
                    "unit": "B/s",
                    "basis": (basis := roofs.names.get(f"{tier.replace('_', '-')} bandwidth", "peak")),
                    "figure": "pcie_bandwidth_bytes_per_s"
                    if tier == "host" or basis == "PCIe"
                    else f"{tier}.bandwidth_bytes_per_s",
                }
            )
    if roofs.exponentials is not None:
        rows.append(
            {
                "roof": "compute",
                "name": "exponentials",
                "rate": roofs.exponentials,
                "unit": "1/s",
                "basis": "peak",
                "figure": "peak.exponentials_per_s",
            }
        )
    return rows


def cited_figure(hardware: HardwareProfile, figure: str, value: float, unit: str) -> dict[str, Any]:
    """A figure that an answer rests on, with the sources that the profile cites for it."""
    cited = [{"read": s.read, "url": s.url, "note": s.note} for s in hardware.sources_of(figure)]
    plain = [{"read": "entered" if not hardware.shipped else "unknown", "url": None, "note": None}]
    return {"figure": figure, "value": value, "unit": unit, "sources": cited or plain}


def capacity_sources(hardware: HardwareProfile) -> list[dict[str, Any]]:
    """Where the capacity was read."""
    if hardware.memory_capacity is None:
        return []
    return [cited_figure(hardware, "memory_bytes", hardware.memory_capacity, "B")]


def sources_of(hardware: HardwareProfile, bound: Bound) -> list[dict[str, Any]]:
    """For each roof used, and the launch overhead where it counts: the figure, its value, and its sources."""
    rows = []
    for roof in used_roofs(bound):
        figure = roof["figure"]
        if roof["basis"] not in ("peak", "PCIe"):
            figure = _MEASURED.get(figure, figure.replace("peak.", "achievable."))
        rows.append(cited_figure(hardware, figure, roof["rate"], roof["unit"]))
    if "fp32" in bound.ceilings.flop and any(op.pipe == "vector" for op in bound.table.ops):
        group = "peak" if bound.ceilings.names["fp32"] == "peak" else "achievable"
        rate = bound.ceilings.flop["fp32"]
        rows.append(cited_figure(hardware, f"{group}.flop_per_s.fp32", rate, "FLOP/s"))
    if float(bound.terms["launch"]) > 0 and hardware.launch_overhead is not None:
        rows.append(cited_figure(hardware, "launch_overhead_s", hardware.launch_overhead, "s"))
    return rows


_MEASURED = {"scale_up.bandwidth_bytes_per_s": "achievable.scale_up_bus_bandwidth_bytes_per_s"}


def _drawn_sources(hardware: HardwareProfile) -> list[dict[str, Any]]:
    """The cache's roof: drawn where the profile has it, and no bound's."""
    rate = hardware.achievable_l2_bandwidth
    return [] if rate is None else [cited_figure(hardware, "achievable.l2_bandwidth_bytes_per_s", rate, "B/s")]


def bound_json(estimate: BoundEstimate) -> dict[str, Any]:
    """The answer in the API's shape. Totals are those of one device: the sums of the rows times count."""
    bound = estimate.bound
    memory = estimate.memory
    tensor = [op.dtype for op in bound.table.ops if op.pipe == "tensor"]
    main = max(set(tensor), key=tensor.count) if tensor else None
    per_second = estimate.tokens_per_second
    devices = float(bound.table.devices)
    return {
        "bound_s": float(bound.overlapped),
        "serial_bound_s": float(bound.serial),
        "expected": expected_json(estimate.expected),
        "terms": terms_json(bound),
        "binding": bound.binding,
        "flop": bound.total("flop"),
        "executed_flop": bound.total("executed"),
        "model_flop": model_flop(bound.table),
        "hbm_bytes": bound.hbm_bytes,
        "net_bytes": bound.net_bytes,
        "launches": bound.total("launches"),
        "intensity_flop_per_byte": bound.intensity,
        "ridge_flop_per_byte": None if main is None else bound.ceilings.flop_rate(main) / bound.ceilings.memory,
        "tokens": float(bound.table.tokens),
        "tokens_per_s": per_second,
        "tokens_per_s_per_device": None if per_second is None else per_second / devices,
        "devices": int(devices),
        "ops": ops_json(bound),
        "memory": {
            "peak_bytes": memory.peak,
            "capacity_bytes": memory.capacity,
            "fits": memory.fits,
            "headroom_bytes": None if memory.capacity is None else memory.capacity - memory.peak,
            "largest_batch": memory.largest_batch,
            "objects": [{"object": name, "bytes": size} for name, size in memory.objects.items()],
        },
        "roofs": used_roofs(bound),
        "baseline": None if not estimate.ledger else dict(estimate.ledger[0].before.totals),
        "ledger": [ledger_json(row) for row in estimate.ledger],
        "hardware": {"id": estimate.hardware.id, "name": estimate.hardware.name},
        "model": {"id": estimate.model.id, "name": estimate.model.name},
        "assumptions": list(dict.fromkeys(estimate.assumptions)),
        "sources": [
            *sources_of(estimate.hardware, bound),
            *_drawn_sources(estimate.hardware),
            *capacity_sources(estimate.hardware),
        ],
    }


def ledger_json(row: LedgerRow) -> dict[str, Any]:
    """One lever's row: every figure before, after and saved. Rows telescope: a row starts where the last one ended."""
    before, after = dict(row.before.totals), dict(row.after.totals)
    notes = [row.lever.model]
    per_token = [None if not t["tokens"] else t["bound_s"] / t["tokens"] for t in (before, after)]
    if before["devices"] != after["devices"]:
        notes.append(f"It changes the devices from {before['devices']:,} to {after['devices']:,}.")
    if before["tokens"] != after["tokens"]:
        notes.append(f"It changes the tokens of a step from {before['tokens']:,.6g} to {after['tokens']:,.6g}.")
    used, uses = (f"{totals['memory_bytes'] / 2**30:,.2f}" for totals in (before, after))
    if row.lever.memory_lever is not None and after["memory_bytes"] > before["memory_bytes"] and uses != used:
        notes.append(f"It raises the memory of a device here, from {used} to {uses} GiB.")
    return {
        "lever": row.lever.id,
        "title": row.lever.title,
        "params": dict(row.params),
        "book_as": row.lever.book_as,
        "memory_lever": row.lever.memory_lever,
        "ideal": row.lever.ideal,
        "before_s": before["bound_s"],
        "after_s": after["bound_s"],
        "saved_s": before["bound_s"] - after["bound_s"],
        "before_s_per_token": per_token[0],
        "after_s_per_token": per_token[1],
        "saved_serial_s": before["serial_bound_s"] - after["serial_bound_s"],
        "saved_expected_s": before["expected_s"] - after["expected_s"],
        "saved_bytes": before["hbm_bytes"] - after["hbm_bytes"],
        "saved_net_bytes": before["net_bytes"] - after["net_bytes"],
        "saved_flop": before["executed_flop"] - after["executed_flop"],
        "saved_launches": before["launches"] - after["launches"],
        "saved_memory_bytes": before["memory_bytes"] - after["memory_bytes"],
        "before": before,
        "after": after,
        "notes": " ".join(notes),
    }


def op_json(estimate: OpEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/op`."""
    bound = estimate.bound
    return {
        "bound_s": float(bound.overlapped),
        "serial_bound_s": float(bound.serial),
        "repeated_bound_s": estimate.repeated,
        "expected": expected_json(estimate.expected),
        "terms": terms_json(bound),
        "binding": bound.binding,
        "flop": bound.total("flop"),
        "executed_flop": bound.total("executed"),
        "hbm_bytes": bound.hbm_bytes,
        "net_bytes": bound.net_bytes,
        "intensity_flop_per_byte": bound.intensity,
        "ceilings_used": used_roofs(bound),
        "ops": ops_json(bound),
        "assumptions": list(dict.fromkeys(estimate.assumptions)),
        "sources": sources_of(estimate.hardware, bound),
    }


def expected_json(expected: Expected) -> dict[str, Any]:
    return {"time_s": expected.time, "low_s": expected.low, "high_s": expected.high, "basis": expected.basis}


def terms_json(bound: Bound) -> dict[str, float]:
    return {f"{name}_s": float(bound.terms[name]) for name in RESOURCES}


def ops_json(bound: Bound) -> list[dict[str, Any]]:
    """One entry an operation; every quantity is that of one execution on one device."""
    table = bound.table
    columns = (
        *(table[name].tolist() for name in ("count", "flop", "executed", "launches")),
        *(figures.tolist() for figures in (bound.op_hbm_bytes, bound.op_net_bytes, bound.op_time)),
        bound.op_binding(),
    )
    return [
        {
            "name": op.name,
            "stage": op.stage,
            "direction": op.direction,
            "kind": op.kind,
            "count": count,
            "pipe": op.pipe,
            "dtype": op.dtype or None,
            "flop": flop,
            "executed_flop": executed,
            "hbm_bytes": hbm,
            "net_bytes": net,
            "tier": _farthest_tier(table, row) if net > 0 else None,
            "launches": launches,
            "time_s": time,
            "binding": binding,
            "intensity_flop_per_byte": executed / hbm if hbm > 0 else None,
            "formula": op.formula,
        }
        for row, (op, count, flop, executed, launches, hbm, net, time, binding) in enumerate(
            zip(table.ops, *columns, strict=True)
        )
    ]


def _farthest_tier(table: CostTable, row: int) -> str:
    return next((tier for tier in reversed(TIERS) if float(table.net[tier][row]) > 0), TIERS[0])


def model_flop(table: CostTable) -> float:
    """Useful FLOP of the matrix products of one device: the numerator of MFU (F-1.3)."""
    return float(sum(table["flop"][i] * table["count"][i] for i, op in enumerate(table.ops) if op.pipe == "tensor"))


def known_precisions(hardware: HardwareProfile) -> list[str]:
    """Precisions whose products the profile has a peak for, in the API's order."""
    return [name for name, p in PRECISIONS.items() if p.peak in hardware.peak]


def preferred_precision(hardware: HardwareProfile) -> str:
    """bf16 where the profile has it, else fp16, else fp32. Raises MissingFigure where it has none of them."""
    for name in ("bf16", "fp16", "fp32"):
        if name in hardware.peak:
            return name
    raise MissingFigure(hardware.name, "peak 16-bit or fp32 throughput", "an estimate needs one of them")
