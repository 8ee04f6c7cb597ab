"""The mixture-of-experts layers of a step, stage by stage: views of its cost table, with no costs of their own.

A stage is a set of rows by name, in every direction. Its bound is the bound of those rows alone; what remains exposed
of dispatch and combine at a level of overlap follows F-1.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from app.domain.calibration import Calibration
from app.domain.cost import TIERS, CostTable, Direction, Op, Tier
from app.domain.errors import InvalidInput
from app.domain.expected import Expected, expected_time
from app.domain.layout import Layout
from app.domain.lower_bound import Bound, Ceilings, lower_bound
from app.domain.model import ModelSpec, MoeMlp
from app.domain.overlap import LEVELS, exposed_forecast
from app.domain.routing import (
    busiest_expert,
    distinct_experts,
    dropped_share,
    expert_capacity,
    load_quantile,
    rank_skew,
    tiled_rows,
)
from app.domain.units import Bytes, BytesPerSecond, Flop, FlopPerByte, Ratio, Seconds
from app.domain.workload import Overlap, Routing, Workload

Stage: TypeAlias = Literal[
    "router",
    "topk",
    "histogram",
    "permute",
    "dispatch",
    "gemm1",
    "activation",
    "gemm2",
    "combine",
    "unpermute",
    "shared",
    "other",
]
STAGES: tuple[str, ...] = get_args(Stage)
"""In the order that a token takes. `other` is what only some layouts and models have: sums over the tensor group, a
dense layer beside the experts, projections to and from a latent width."""

_STAGE_OF: Mapping[str, Stage] = {
    "router": "router",
    "top-k": "topk",
    "histogram": "histogram",
    "permute": "permute",
    "dispatch": "dispatch",
    "expert tensor gather": "dispatch",
    "expert gate and up": "gemm1",
    "expert up": "gemm1",
    "expert activation": "activation",
    "expert down": "gemm2",
    "expert tensor scatter": "combine",
    "combine": "combine",
    "unpermute": "unpermute",
}
EXCHANGES: tuple[str, ...] = ("dispatch", "combine")
EXPERTS: tuple[str, ...] = ("gemm1", "activation", "gemm2")
WINDOW: tuple[str, ...] = (*EXPERTS, "shared")
"""Stages that an exchange can run beside: they need other tokens, or none of the exchanged ones."""

OVERLAP_LEVELS: Mapping[Overlap, str] = {"none": "L0", "stream": "L1", "chunk": "L2", "tile": "L3"}
CURVE_SHARES: tuple[Ratio, ...] = tuple((place + 0.5) / 40 for place in range(40))
"""Shares of the experts that a load curve is given for."""

TILES: tuple[int, ...] = (16, 64, 128)
"""Row tiles of grouped products that the quantisation is stated for."""


def stage_of(op: Op) -> Stage | None:
    """The stage that a row belongs to; None for rows outside the expert layers and for their norms."""
    if op.stage != "moe" or op.base.endswith("mlp norm"):
        return None
    if op.base in _STAGE_OF:
        return _STAGE_OF[op.base]
    return "shared" if op.base.startswith("shared expert") else "other"


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage over a whole step of one device. `time` is the mean rank's; `imbalance` what the busiest adds to it.

    `exposed` is the part of `time` on the critical path at the asked level of overlap; `by_direction` the time of
    forward, recomputed and backward rows.
    """

    stage: Stage
    bound: Bound
    expected: Expected
    time: Seconds
    imbalance: Seconds
    binding: str
    net: Mapping[Tier, Bytes]
    by_direction: Mapping[Direction, Seconds]
    exposed: Seconds


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Token copies of one expert in one layer, expected. Ranks are those that share one copy of the experts.

    `imbalance` is the busiest expert over the mean, `floor` what random routing alone gives, `rank_imbalance` the
    busiest rank over the mean. `rows` are what products of each tile work on, `dropped` the share above capacity.
    `curve` is the load that a share of the experts does not exceed.
    """

    tokens: float
    experts: int
    top_k: int
    mean: float
    p50: float
    p99: float
    maximum: float
    experts_touched: float
    imbalance: Ratio
    floor: Ratio
    rank_imbalance: Ratio
    capacity: float | None
    dropped: Ratio
    padding: Ratio
    rows: Mapping[int, float]
    curve: tuple[tuple[Ratio, float], ...]


@dataclass(frozen=True, slots=True)
class Walls:
    """What holds the layout back: resident bytes against capacity, time on links against time on the device."""

    memory: Bytes
    capacity: Bytes | None
    communication: Seconds
    compute: Seconds
    binding: Literal["memory", "communication", "compute"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A stage on a lane of the timeline of one layer's forward pass."""

    stage: Stage
    lane: Literal["compute", "link"]
    start: Seconds
    end: Seconds
    binding: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The expert layers of a step. `layers` is how many of them the mean pipeline stage runs forward in a step."""

    bound: Bound
    expected: Expected
    stages: tuple[StageCost, ...]
    load: ExpertLoad
    layers: float
    level: str
    levels: Mapping[str, Seconds]
    exposed_communication: Seconds
    timelines: Mapping[str, tuple[Bar, ...]]
    contention: Ratio = 0.0
    slowed: Seconds = 0.0
    exchange_slowed: Seconds = 0.0

    @property
    def serial(self) -> Seconds:
        """Stages one after the other on the busiest rank."""
        return sum(stage.time + stage.imbalance for stage in self.stages)


def pipeline(
    step: Bound,
    model: ModelSpec,
    workload: Workload,
    layout: Layout,
    calibration: Calibration,
    contention: Ratio = 0.0,
    exchange_rate: BytesPerSecond = math.inf,
) -> Pipeline:
    """The expert layers of a step's bound. Raises InvalidInput for a model without experts.

    `contention` is the share of the compute units that the exchanges' kernels occupy: as long as an exchange is hidden,
    what hides it runs at `1 - contention` of its speed. `exchange_rate` is what those units move together, over all
    links: an exchange takes that long at least.
    """
    moe = first_experts(model)
    table, roofs, mode = step.table, step.ceilings, workload.launch_mode
    rows: dict[str, list[Op]] = {}
    for op in table.ops:
        stage = stage_of(op)
        if stage is not None:
            rows.setdefault(stage, []).append(op)
    every = [op for stage in STAGES for op in rows.get(stage, [])]
    level = OVERLAP_LEVELS[workload.overlap]
    bounds = {stage: lower_bound(_part(table, ops), roofs, launch_mode=mode) for stage, ops in rows.items()}
    full = sum(_seconds(bounds[name]) for name in EXCHANGES if name in bounds)
    bounds |= {name: _at_most(bounds[name], exchange_rate) for name in EXCHANGES if name in bounds}
    hidden = {name: _hidden(bounds, name) for name in LEVELS}
    stages = tuple(
        _stage(stage, bounds[stage], calibration, hidden[level].get(stage, 0.0)) for stage in STAGES if stage in bounds
    )
    whole = lower_bound(_part(table, every), roofs, launch_mode=mode)
    serial = sum(stage.time + stage.imbalance for stage in stages)
    exchanged = sum(stage.time for stage in stages if stage.stage in EXCHANGES)
    return Pipeline(
        bound=whole,
        expected=expected_time(whole, calibration),
        stages=stages,
        load=expert_load(moe, workload, layout),
        layers=sum(float(op.count) for op in rows["router"] if op.direction == "forward"),
        level=level,
        levels={name: serial - sum(hidden[name].values()) * (1.0 - contention) for name in LEVELS},
        exposed_communication=exchanged - sum(hidden[level].values()),
        timelines={name: _timeline(bounds, name, contention) for name in LEVELS},
        contention=contention,
        slowed=contention * sum(hidden[level].values()),
        exchange_slowed=exchanged - full,
    )


def first_experts(model: ModelSpec) -> MoeMlp:
    """The experts of a model's first layer that has some. Raises InvalidInput where there are none."""
    for group in model.layers:
        if isinstance(group.mlp, MoeMlp):
            return group.mlp
    raise InvalidInput(("model",), f"{model.name} has no experts: choose a mixture-of-experts model")


def _part(table: CostTable, ops: list[Op]) -> CostTable:
    return CostTable.of(ops, tokens=table.tokens, devices=table.devices)


def _at_most(bound: Bound, rate: BytesPerSecond) -> Bound:
    """A bound whose operations send no more than `rate` bytes per second on all links together."""
    if math.isinf(rate):
        return bound
    return replace(bound, known_rows=bound.rows.no_faster(bound.op_net_bytes / rate))


def _seconds(bound: Bound, direction: str | None = None) -> Seconds:
    """Summed operation times; of one direction where one is named."""
    times = (bound.op_time * bound.table["count"]).tolist()
    return float(
        sum(time for op, time in zip(bound.table.ops, times, strict=True) if direction in (None, op.direction))
    )


def _stage(stage: str, bound: Bound, calibration: Calibration, hidden: Seconds) -> StageCost:
    time = _seconds(bound)
    ranked = [item for item in bound.ranked_terms() if item[0] not in ("imbalance", "sync")]
    directions = dict.fromkeys(op.direction for op in bound.table.ops)
    wire = bound.table.net_in_switch if bound.ceilings.in_switch_reduction else bound.table.net
    return StageCost(
        stage=stage,  # type: ignore[arg-type]
        bound=bound,
        expected=expected_time(bound, calibration),
        time=time,
        imbalance=float(bound.terms["imbalance"]),
        binding=ranked[0][0] if ranked[0][1] > 0 else "launch",
        net={tier: float((wire[tier] * bound.table["count"]).sum()) for tier in TIERS},
        by_direction={direction: _seconds(bound, direction) for direction in directions},
        exposed=max(time - hidden, 0.0),
    )


def _hidden(bounds: Mapping[str, Bound], level: str) -> Mapping[str, Seconds]:
    """Seconds of each exchange that run behind the window of the same direction (F-1.5)."""
    hidden = dict.fromkeys(EXCHANGES, 0.0)
    directions = {op.direction for name in EXCHANGES if name in bounds for op in bounds[name].table.ops}
    for direction in sorted(directions):
        window = sum(_seconds(bounds[name], direction) for name in WINDOW if name in bounds)
        times = {name: _seconds(bounds[name], direction) for name in EXCHANGES if name in bounds}
        total = sum(times.values())
        for name, time in times.items():
            behind = total - exposed_forecast(total, window, level)
            hidden[name] += behind * time / total if total > 0 else 0.0
    return hidden


def _timeline(bounds: Mapping[str, Bound], level: str, contention: Ratio = 0.0) -> tuple[Bar, ...]:
    """The mean layer's forward pass: what is hidden of an exchange lies beside the experts, the rest around them.

    What an exchange takes of the compute units makes the experts beside it longer.
    """
    routers = bounds["router"].table
    layers = sum(float(op.count) for op in routers.ops if op.direction == "forward")
    each = {stage: _seconds(bound, "forward") / layers for stage, bound in bounds.items()}
    window = sum(each.get(name, 0.0) for name in WINDOW)
    exchanged = sum(each.get(name, 0.0) for name in EXCHANGES)
    share = 1.0 - exposed_forecast(exchanged, window, level) / exchanged if exchanged > 0 else 0.0
    slower = 1.0 + contention * exchanged * share / window if window > 0 else 1.0
    bars: list[Bar] = []

    def put(stage: str, start: Seconds, lane: Literal["compute", "link"] = "compute") -> Seconds:
        time = each.get(stage, 0.0) * (slower if stage in WINDOW else 1.0)
        if time > 0:
            bars.append(Bar(stage, lane, start, start + time, _binding(bounds[stage])))  # type: ignore[arg-type]
        return start + time

    now = 0.0
    for stage in ("router", "topk", "histogram", "permute"):
        now = put(stage, now)
    end = put("dispatch", now, "link")
    now = end - each.get("dispatch", 0.0) * share
    for stage in ("gemm1", "activation", "gemm2", "shared"):
        now = put(stage, now)
    now = put("combine", now - each.get("combine", 0.0) * share, "link")
    now = put("unpermute", now)
    put("other", now, "link" if each.get("other", 0.0) > 0 and _binding(bounds["other"]) == "net" else "compute")
    return tuple(bars)


def _binding(bound: Bound) -> str:
    return next((name for name, _ in bound.ranked_terms() if name not in ("imbalance", "sync")), "launch")


def expert_load(moe: MoeMlp, workload: Workload, layout: Layout) -> ExpertLoad:
    """How the tokens of one micro-batch spread over the experts (F-9.5, F-9.6, F-9.8, F-9.9)."""
    routing, dispatch = workload.routing, workload.dispatch
    tokens = float(layout.expert_tokens(float(workload.new_tokens)))
    copies = tokens * moe.top_k
    mean = copies / moe.experts
    busiest = busiest_expert(routing, copies, moe.experts, top_k=moe.top_k)
    noise = busiest_expert(Routing(kind="random"), copies, moe.experts, top_k=moe.top_k)
    factor = dispatch.capacity_factor
    capacity = None if factor is None else float(expert_capacity(copies, moe.experts, factor))
    dropped = 0.0 if capacity is None else float(dropped_share(routing, copies, moe.experts, capacity, top_k=moe.top_k))
    kept = copies * (1.0 - dropped)
    skew = rank_skew(routing, copies, moe.experts, layout.ep, top_k=moe.top_k, replicas=dispatch.replicas)
    return ExpertLoad(
        tokens=tokens,
        experts=moe.experts,
        top_k=moe.top_k,
        mean=mean,
        p50=load_quantile(routing, copies, moe.experts, 0.5, top_k=moe.top_k),
        p99=load_quantile(routing, copies, moe.experts, 0.99, top_k=moe.top_k),
        maximum=busiest,
        experts_touched=float(distinct_experts(routing, tokens, moe.experts, moe.top_k)),
        imbalance=busiest / mean,
        floor=noise / mean,
        rank_imbalance=1.0 + (0.0 if capacity is not None else float(skew)),
        capacity=capacity,
        dropped=dropped,
        padding=0.0 if capacity is None else 1.0 - kept / (capacity * moe.experts),
        rows={tile: tiled_rows(routing, copies, moe.experts, tile, top_k=moe.top_k) for tile in TILES},
        curve=tuple(
            (share, load_quantile(routing, copies, moe.experts, share, top_k=moe.top_k)) for share in CURVE_SHARES
        ),
    )


def walls(found: Pipeline, memory: Bytes, capacity: Bytes | None) -> Walls:
    """The three walls of a layout: it does not fit, or links take longer than the device, or the device longer."""
    on_links = sum(stage.time for stage in found.stages if stage.stage in EXCHANGES)
    on_links += sum(
        float(time) * float(count)
        for stage in found.stages
        if stage.stage == "other"
        for op, time, count in zip(stage.bound.table.ops, stage.bound.op_time, stage.bound.table["count"], strict=True)
        if op.kind == "collective"
    )
    on_device = found.serial - on_links
    full = capacity is not None and memory > capacity
    return Walls(
        memory=memory,
        capacity=capacity,
        communication=on_links,
        compute=on_device,
        binding="memory" if full else "communication" if on_links > on_device else "compute",
    )


@dataclass(frozen=True, slots=True)
class LinkIntensity:
    """FLOP of the experts for a byte on one tier, against the rate of the device over that of the link (F-9.4)."""

    tier: Tier
    net: Bytes
    intensity: FlopPerByte | None
    balance: FlopPerByte
    rate: BytesPerSecond


def expert_flop(found: Pipeline) -> Flop:
    """Useful FLOP of the routed experts' products in a step of one device."""
    return sum(stage.bound.total("flop") for stage in found.stages if stage.stage in ("gemm1", "gemm2"))


def exchanged_bytes(found: Pipeline) -> Bytes:
    """Bytes that one device sends in dispatch and combine, over all tiers."""
    return sum(sum(stage.net.values()) for stage in found.stages if stage.stage in EXCHANGES)


def link_intensities(found: Pipeline, roofs: Ceilings, dtype: str) -> tuple[LinkIntensity, ...]:
    """For each tier that the profile has: intensity of the experts' products against its balance point."""
    flop = expert_flop(found)
    answer = []
    for tier in TIERS[:2]:
        rate = roofs.links.get(tier)
        if rate is None:
            continue
        sent = sum(stage.net[tier] for stage in found.stages if stage.stage in EXCHANGES)
        answer.append(LinkIntensity(tier, sent, flop / sent if sent > 0 else None, roofs.flop_rate(dtype) / rate, rate))
    return tuple(answer)


def copy_intensity(moe: MoeMlp, element: Bytes) -> FlopPerByte:
    """FLOP of an expert for each byte of a copy that crosses to it and back (F-9.4): 3 I / b where it is gated."""
    matrices = 3 if moe.gated else 2
    return matrices * moe.expert_intermediate / element


def nodes_of(layout: Layout) -> int:
    """Nodes that one copy of the experts spreads over."""
    group = layout.expert_group
    return int(np.ceil(float(group.size) / float(group.local)))
