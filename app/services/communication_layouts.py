"""Layouts whose exchanges pace a step: sharded training, pipelines, and sequences divided over a ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.catalog.calibration import load_calibration
from app.domain.calibration import forecast_rows
from app.domain.collectives import (
    LinkModel,
    fastest_algorithm,
    node_count,
    wire_bytes,
)
from app.domain.cost import Tier
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.layout import Group, layout_of
from app.domain.lower_bound import ceilings
from app.domain.model import Attention, LatentAttention, ModelSpec
from app.domain.overlap import (
    SCHEDULES,
    ChunkedTimeline,
    PipelineTimeline,
    beyond,
    chunked_timeline,
    dualpipe_bubble,
    pipeline_timeline,
    tokens_that_hide_a_gather,
    tokens_that_hide_a_ring_hop,
)
from app.domain.step import bubble_share
from app.domain.units import Bytes, Ratio, Seconds
from app.domain.workload import Parallel, Workload
from app.services.communication import LinkFact, filled_notes, link_facts, link_notes, require_links
from app.services.communication_requests import (
    ContextParallelRequest,
    PipelineRequest,
    ShardingRequest,
)
from app.services.context import Context
from app.services.estimate import BoundEstimate, bound_of
from app.services.references import resolve_hardware, resolve_model

# ---- sharded training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HiddenExchange:
    """What the estimates of this module share whose exchange runs beside computing: `tokens` of a rank, and the fewest
    that hide it."""

    hardware: HardwareProfile
    model: ModelSpec
    tokens: float
    tokens_to_hide: float
    links: tuple[LinkFact, ...]
    assumptions: tuple[str, ...]

    @property
    def hides(self) -> bool:
        return self.tokens >= self.tokens_to_hide


@dataclass(frozen=True, slots=True)
class StageRow:
    """One ZeRO stage of the same step: memory of a device by object, and what data parallelism sends in a step."""

    stage: int
    estimate: BoundEstimate
    sent: Bytes
    exchange: Seconds

    def held(self, name: str) -> Bytes:
        return float(self.estimate.memory.objects.get(name, 0.0))


@dataclass(frozen=True, slots=True)
class ShardingEstimate(HiddenExchange):
    request: ShardingRequest
    stages: tuple[StageRow, ...]
    units: int
    unit_bytes: Bytes
    gather: Seconds
    scatter: Seconds
    forward: Seconds
    backward: Seconds
    forward_line: ChunkedTimeline
    backward_line: ChunkedTimeline

    @property
    def exposed(self) -> Seconds:
        """Gathers and reductions of one micro-batch's passes that compute does not hide."""
        return beyond(self.forward_line.total + self.backward_line.total, self.units * (self.forward + self.backward))


def estimate_sharding(ctx: Context, request: ShardingRequest) -> ShardingEstimate:
    """ZeRO stages 0 to 3 of one training step, and how stage 3 hides its gathers, unit by unit on every rank."""
    hardware, notes = resolve_hardware(ctx, request.hardware)
    model, model_notes = resolve_model(ctx, request.model)
    workload = request.workload.to_domain()
    if workload.phase != "train":
        raise InvalidInput(("workload", "phase"), "only training shards optimizer state: use train")
    p = workload.parallel
    if p.dp * p.cp < 2:
        raise InvalidInput(("workload", "parallel", "dp"), "sharding needs at least 2 data-parallel ranks")
    facts = link_facts(hardware, request.links)
    models = {fact.tier: fact.model for fact in facts}
    stages = []
    for stage in range(4):
        at = replace(workload, parallel=replace(p, zero_stage=stage))
        estimate = bound_of(hardware, model, at, assumptions=(*notes, *model_notes))
        rows = [
            (
                float(estimate.bound.op_net_bytes[i]),
                float(estimate.bound.op_net[i]),
                float(estimate.bound.table["count"][i]),
            )
            for i, op in enumerate(estimate.bound.table.ops)
            if op.stage == "data parallel"
        ]
        sent, time = sum(b * c for b, _, c in rows), sum(t * c for _, t, c in rows)
        stages.append(StageRow(stage, estimate, sent, time))
    sharded = stages[3].estimate
    layout = layout_of(model, sharded.workload, hardware.ranks_per_node)
    group = layout.data_group
    ranks, local = int(float(group.size)), int(float(group.local))
    require_links(hardware, models, ranks, local)
    units = max(model.num_layers // p.pp, 1)
    gather, unit_bytes = _row_time(sharded, "parameter all-gather", "all_gather", group, units, models)
    scatter, _ = _row_time(sharded, "gradient reduce-scatter", "reduce_scatter", group, units, models)
    forward, backward = _layer_seconds(sharded, units)
    drawn = min(units, 128)
    # what leaves a node is divided among its ranks, so the bytes of a parameter on the slow tier are fewer
    shares = wire_bytes("all_gather", 1.0, ranks, local)
    bandwidth = 1.0 / sum(float(shares[tier]) / models[tier].bandwidth for tier in _tiers(ranks, local))
    roofs = ceilings(hardware, "achievable")
    rate = roofs.flop_rate(sharded.workload.dtypes.activations)
    item = min(workload.dtypes.bytes_of("weights"), workload.dtypes.bytes_of("communication"))
    return ShardingEstimate(
        hardware=hardware,
        model=model,
        request=request,
        stages=tuple(stages),
        units=drawn,
        unit_bytes=unit_bytes,
        gather=gather,
        scatter=scatter,
        forward=forward,
        backward=backward,
        forward_line=chunked_timeline(
            [forward] * drawn, [gather] * drawn, communication_first=True, ahead=request.prefetch
        ),
        backward_line=chunked_timeline(
            [backward] * drawn, [gather + scatter] * drawn, communication_first=True, ahead=request.prefetch
        ),
        tokens=float(sharded.workload.new_tokens) / p.cp,
        tokens_to_hide=tokens_that_hide_a_gather(item, rate, bandwidth),
        links=facts,
        assumptions=tuple(
            dict.fromkeys(
                (
                    *filled_notes(request),
                    *sharded.assumptions,
                    *link_notes(facts)[:-1],
                    "A unit is one layer; embedding and head are spread evenly over the units.",
                    "Every rank gathers every unit whole, uses it and drops it; each parameter is cut over all ranks.",
                    "In the backward pass a unit's gradients are reduced behind the gather of the next unit.",
                )
            )
        ),
    )


def _tiers(ranks: int, local: int) -> tuple[Tier, ...]:
    tiers: tuple[Tier, ...] = ("scale_up",) if min(ranks, local) > 1 else ()
    return (*tiers, "scale_out") if node_count(ranks, local) > 1 else tiers


def _row_time(
    estimate: BoundEstimate, name: str, kind: str, group: Group, units: int, models: Mapping[Tier, LinkModel]
) -> tuple[Seconds, Bytes]:
    """Alpha-beta time and array size of one unit's share of a data-parallel row, experts' rows included."""
    ranks, local = int(float(group.size)), int(float(group.local))
    of_one = wire_bytes(kind, 1.0, ranks, local)
    tier: Tier = "scale_up" if float(of_one["scale_up"]) > 0 else "scale_out"
    table = estimate.bound.table
    size = sum(float(table.net[tier][i]) / float(of_one[tier]) for i, op in enumerate(table.ops) if op.name == name)
    unit = size / units
    if unit <= 0:
        return 0.0, 0.0
    return fastest_algorithm(kind, unit, ranks, local, models, False)[1], unit


_ENDS = ("embedding", "head", "data parallel", "optimizer", "pipeline")


def _layer_seconds(estimate: BoundEstimate, units: int) -> tuple[Seconds, Seconds]:
    """Forecast compute of one layer and micro-batch, forward and backward (with what is recomputed)."""
    bound, workload = estimate.bound, estimate.workload
    seconds = forecast_rows(bound, load_calibration()).seconds
    passes = units * workload.parallel.micro_batches
    forward = backward = 0.0
    for op, time in zip(bound.table.ops, seconds.tolist(), strict=True):
        if op.stage in _ENDS:
            continue
        if op.direction == "forward":
            forward += time
        else:
            backward += time
    return forward / passes, backward / passes


# ---- pipelines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineEstimate:
    """The schedule asked for, the closed form of its bubble (None where it has none for such times), and the others."""

    request: PipelineRequest
    timeline: PipelineTimeline
    formula: Ratio | None
    others: tuple[tuple[str, int, PipelineTimeline], ...]


def estimate_pipeline(request: PipelineRequest) -> PipelineEstimate:
    """Simulate a schedule, and the same step by the other schedules. Raises InvalidInput for what has none."""

    def simulate(schedule: str, chunks: int) -> PipelineTimeline:
        return pipeline_timeline(
            schedule,
            request.stages,
            request.micro_batches,
            forward=request.forward_s,
            backward=request.backward_s,
            weight_gradient=request.weight_gradient_s,
            chunks=chunks,
            hand_over=request.hand_over_s,
        )

    timeline = simulate(request.schedule, request.virtual_stages)
    others = []
    for schedule in SCHEDULES:
        chunks = max(request.virtual_stages, 2) if schedule == "interleaved" else 1
        try:
            others.append((schedule, chunks, simulate(schedule, chunks)))
        except InvalidInput:
            continue  # this many stages or micro-batches do not go with it
    return PipelineEstimate(request, timeline, _bubble_formula(request), tuple(others))


def _bubble_formula(request: PipelineRequest) -> Ratio | None:
    """The cost table's own closed form; for a zero bubble it stands for a backward pass of two equal halves only."""
    equal = request.weight_gradient_s in (None, request.backward_s / 2) and request.backward_s == 2 * request.forward_s
    if request.schedule == "dualpipe":
        gradient = request.backward_s / 2 if request.weight_gradient_s is None else request.weight_gradient_s
        if request.hand_over_s or gradient != request.forward_s or gradient * 2 != request.backward_s:
            return None
        work = request.micro_batches * (request.forward_s + request.backward_s)
        return dualpipe_bubble(request.stages, request.forward_s, request.backward_s, gradient) / work
    if request.hand_over_s or (
        request.schedule == "zero_bubble" and (not equal or request.micro_batches < request.stages)
    ):
        return None
    return bubble_share(
        Workload(
            phase="train",
            parallel=Parallel(
                pp=request.stages,
                micro_batches=request.micro_batches,
                virtual_stages=request.virtual_stages,
                schedule="1f1b" if request.schedule == "interleaved" else request.schedule,
            ),
        )
    )


# ---- context parallelism --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """One way to exchange keys and values: bytes and bound of one layer's exchange, and the whole step."""

    exchange: str
    estimate: BoundEstimate | None
    reason: str | None
    sent: Bytes
    bound: Seconds
    attention: Seconds


@dataclass(frozen=True, slots=True)
class ContextParallelEstimate(HiddenExchange):
    request: ContextParallelRequest
    rows: tuple[ExchangeRow, ...]
    hop: Seconds
    block: Seconds
    line: ChunkedTimeline
    slowest: LinkFact

    @property
    def exposed(self) -> Seconds:
        """Time of one layer's ring that attention does not hide."""
        return beyond(self.line.total, self.block * len(self._hops))

    @property
    def _hops(self) -> range:
        return range(self.line.chunks)


def estimate_context_parallel(ctx: Context, request: ContextParallelRequest) -> ContextParallelEstimate:
    """Ring against all-to-all context parallelism of one prefill or training step, and what hides a ring's hop."""
    hardware, notes = resolve_hardware(ctx, request.hardware)
    model, model_notes = resolve_model(ctx, request.model)
    workload = request.workload.to_domain()
    p = workload.parallel
    if workload.phase == "decode":
        raise InvalidInput(("workload", "phase"), "a decoded token has no sequence to exchange: use prefill or train")
    if p.cp < 2:
        raise InvalidInput(("workload", "parallel", "cp"), "context parallelism needs at least 2 ranks")
    attention = next((m for _, m in model.attention_groups() if _is_full(m)), None)
    if attention is None:
        raise InvalidInput(("model",), f"{model.name} has no full attention with keys and values that a ring passes on")
    facts = link_facts(hardware, request.links)
    models = {fact.tier: fact.model for fact in facts}
    rows = []
    for exchange in ("ring", "all_to_all"):
        if exchange == "all_to_all" and isinstance(attention, LatentAttention):
            reason = "latents have no heads of keys to trade for sequence: they go around the ring"
            rows.append(ExchangeRow(exchange, None, reason, 0.0, 0.0, 0.0))
            continue
        at = replace(workload, parallel=replace(p, context_exchange=exchange))
        try:
            estimate = bound_of(hardware, model, at, assumptions=(*notes, *model_notes))
        except InvalidInput as error:
            if exchange == "ring":
                raise
            rows.append(ExchangeRow(exchange, None, error.reason, 0.0, 0.0, 0.0))
            continue
        rows.append(_exchange_row(exchange, estimate))
    ring = rows[0]
    assert ring.estimate is not None
    layout = layout_of(model, ring.estimate.workload, hardware.ranks_per_node)
    ranks, local = int(float(layout.context_group.size)), int(float(layout.context_group.local))
    require_links(hardware, models, ranks, local)
    slowest = min((f for f in facts if f.tier in _tiers(ranks, local)), key=lambda f: f.model.bandwidth)
    whole = _block_bytes(ring, ranks, local)
    hop = slowest.model.alpha + whole / slowest.model.bandwidth
    block = ring.attention / p.cp
    roofs = ceilings(hardware, "achievable")
    rate = roofs.flop_rate(workload.dtypes.activations)
    return ContextParallelEstimate(
        hardware=hardware,
        model=model,
        request=request,
        rows=tuple(rows),
        hop=hop,
        block=block,
        line=chunked_timeline([block] * p.cp, [0.0] + [hop] * (p.cp - 1), communication_first=True, ahead=1),
        tokens=float(workload.seq_len) / p.cp,
        tokens_to_hide=tokens_that_hide_a_ring_hop(
            whole / (workload.batch * workload.seq_len / p.cp),
            _flop_of_a_pair(attention) / p.tp,
            rate,
            slowest.model.bandwidth,
        ),
        slowest=slowest,
        links=facts,
        assumptions=tuple(
            dict.fromkeys(
                (
                    *filled_notes(request),
                    *ring.estimate.assumptions,
                    *link_notes(facts)[:-1],
                    "The condition for hiding a hop counts a block without a mask; a causal mask halves its products.",
                )
            )
        ),
    )


def _is_full(attention: Attention | LatentAttention) -> bool:
    """Whether every token attends to everything before it (or to everything) of its own sequence."""
    if isinstance(attention, LatentAttention):
        return attention.indexer is None
    return attention.window is None and attention.kind != "cross"


def _flop_of_a_pair(attention: Attention | LatentAttention) -> float:
    """FLOP of one query and one key over all heads: the score and the weighted sum, a latent expanded to its heads."""
    if isinstance(attention, LatentAttention):
        width = attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim
    else:
        width = attention.head_dim + attention.v_head_dim
    return 2.0 * attention.heads * width


def _exchange_row(exchange: str, estimate: BoundEstimate) -> ExchangeRow:
    bound, table = estimate.bound, estimate.bound.table
    names = {"ring": "key and value exchange", "all_to_all": "context all-to-all"}
    sent = time = attention = 0.0
    seconds = forecast_rows(bound, load_calibration()).seconds
    for i, op in enumerate(table.ops):
        if op.direction != "forward":
            continue
        if op.name == names[exchange]:
            sent = max(sent, float(bound.op_net_bytes[i]))
            time = max(time, float(bound.op_net[i]))
        if op.name == "attention":
            attention = max(attention, float(seconds[i] / table["count"][i]))
    return ExchangeRow(exchange, estimate, None, sent, time, attention)


def _block_bytes(ring: ExchangeRow, ranks: int, local: int) -> Bytes:
    """Keys and values of one rank: what one hop of the ring sends."""
    of_one = wire_bytes("all_gather", 1.0, ranks, local)
    return ring.sent / (float(of_one["scale_up"]) + float(of_one["scale_out"])) / ranks
