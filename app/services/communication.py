"""Communication: collectives, overlap with products, exposed time, sharding, pipelines, context parallelism.

Bytes and bounds are those of the cost table and of single operations; start-up costs come from the alpha-beta model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from app.catalog.calibration import load_calibration
from app.catalog.measurements import load_measurements
from app.catalog.published import collective_units
from app.domain.calibration import TILE, step_seconds
from app.domain.collectives import (
    ALGORITHMS,
    LINK_EFFICIENCY,
    Algorithm,
    LinkModel,
    algorithm_costs,
    algorithm_time,
    bus_bandwidth,
    default_alpha,
    fastest_algorithm,
    node_count,
    unavailable,
    wire_bytes,
)
from app.domain.cost import Tier
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.hardware import HardwareProfile
from app.domain.layout import Group, layout_of
from app.domain.lower_bound import ceilings
from app.domain.model import Attention, LatentAttention, ModelSpec
from app.domain.overlap import (
    LEVELS,
    SCHEDULES,
    ChunkedTimeline,
    PipelineTimeline,
    beyond,
    chunk_counts,
    chunked_timeline,
    dualpipe_bubble,
    exposed_communication,
    exposed_forecast,
    pipeline_timeline,
    rate_of_units,
    split_rows,
    tokens_that_hide_a_gather,
    tokens_that_hide_a_ring_hop,
)
from app.domain.precision import PRECISIONS
from app.domain.step import bubble_share
from app.domain.units import Bytes, BytesPerSecond, Ratio, Seconds
from app.domain.workload import Parallel, Workload
from app.services.communication_requests import (
    CollectiveRequest,
    ContextParallelRequest,
    ExposedRequest,
    LinksBody,
    OverlapRequest,
    PipelineRequest,
    ShardingRequest,
)
from app.services.context import Context
from app.services.contracts import CollectiveBody, Contract, GemmBody, OpRequest
from app.services.estimate import BoundEstimate, OpEstimate, bound_of, op_on
from app.services.references import resolve_hardware, resolve_model
from app.storage import runs as stored_runs
from app.storage.records import RunFilter, StoredRun

ON_PROFILE = "profile"
"""Stands for the hardware of a question that is put to a profile at hand."""

MOST_CONTENTION: Ratio = 0.9
"""Share of the compute units that an exchange may occupy at most."""

UNKNOWN_CONTENTION: Ratio = 0.1
"""The same as a share of the device, where a profile states no compute units (judgement)."""

LEVEL_WORDS: Mapping[str, str] = {
    "L0": "one after the other",
    "L1": "two halves on two streams",
    "L2": "chunks",
    "L3": "tiles inside one kernel",
}

MEASURED_RUNS_READ = 200
"""Newest runs of a device that are looked through for bus bandwidths."""


def units_note() -> str:
    """What the units of an exchange are taken to move: in words, with the measurement that it rests on."""
    found = collective_units()
    curve = found.curve
    shares = ", ".join(f"{units} {share:.0%}" for units, share in zip(curve.units, curve.shares, strict=True))
    return (
        f"So many compute units reach this share of the rate of the device's fastest link: {shares} ({found.title}, "
        f"{found.read}: {found.conditions}). That other devices and collectives follow the same curve is a judgement."
    )


_SIZE_KEYS = ("message_bytes", "size_bytes", "bytes", "size")


@dataclass(frozen=True, slots=True)
class LinkFact:
    """A tier in the alpha-beta model, and what each of its two numbers rests on: assumed, measured or entered."""

    tier: Tier
    name: str
    rate: BytesPerSecond
    model: LinkModel
    alpha_basis: str
    bandwidth_basis: str


def link_facts(hardware: HardwareProfile, links: LinksBody | None = None) -> tuple[LinkFact, ...]:
    """The tiers of a device. A measured bus bandwidth of the profile goes before the default share of the rate."""
    asked = links or LinksBody()
    rates = ceilings(hardware).links
    facts = []
    for tier, alpha in (("scale_up", asked.scale_up_alpha_s), ("scale_out", asked.scale_out_alpha_s)):
        rate = rates.get(tier)  # type: ignore[call-overload]
        if rate is None:
            continue
        fabric = hardware.scale_up if tier == "scale_up" else hardware.scale_out
        own = fabric is not None and fabric.bandwidth is not None
        measured = hardware.achievable_scale_up_bandwidth if tier == "scale_up" and own else None
        if asked.efficiency is not None:
            bandwidth, basis = rate * asked.efficiency, "entered"
        elif measured is not None:
            bandwidth, basis = min(measured, rate), "measured"
        else:
            bandwidth, basis = rate * LINK_EFFICIENCY, "assumed"
        name = fabric.name if own and fabric is not None else "PCIe"
        start = default_alpha(tier, name) if alpha is None else alpha  # type: ignore[arg-type]
        facts.append(
            LinkFact(
                tier,  # type: ignore[arg-type]
                name,
                rate,
                LinkModel(start, bandwidth),
                "assumed" if alpha is None else "entered",
                basis,
            )
        )
    return tuple(facts)


def link_models(hardware: HardwareProfile, links: LinksBody | None = None) -> dict[Tier, LinkModel]:
    return {fact.tier: fact.model for fact in link_facts(hardware, links)}


def _require_links(hardware: HardwareProfile, models: Mapping[Tier, LinkModel], ranks: int, per_node: int) -> None:
    needed: list[Tier] = []
    if min(ranks, per_node) > 1:
        needed.append("scale_up")
    if node_count(ranks, per_node) > 1:
        needed.append("scale_out")
    for tier in needed:
        if tier not in models:
            raise MissingFigure(
                hardware.name,
                f"{tier.replace('_', '-')} link bandwidth",
                f"{ranks} ranks, {per_node} in a node, need it: give the profile a link or change the ranks",
            )


def _filled(request: Contract) -> list[str]:
    """Defaults that were taken; those of the links are told with their numbers."""
    return [note for note in request.filled_defaults() if not note.startswith("links")]


def _reduces(hardware: HardwareProfile, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    return hardware.scale_up is not None and hardware.scale_up.in_network_reduction


# ---- collectives ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One algorithm for the size asked about; `reason` says why it does not exist, then the rest is empty."""

    algorithm: Algorithm
    reason: str | None
    messages: Mapping[Tier, int]
    sent: Mapping[Tier, Bytes]
    time: Seconds | None


@dataclass(frozen=True, slots=True)
class SizePoint:
    size: Bytes
    bound: Seconds
    times: Mapping[str, Seconds]


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A measured collective: carried with the product, or uploaded (then `url` is the run's page)."""

    size: Bytes
    ranks: int
    seconds: Seconds
    bus_bandwidth: BytesPerSecond
    name: str
    source: str
    url: str
    uploaded: bool = False


@dataclass(frozen=True, slots=True)
class CollectiveEstimate:
    hardware: HardwareProfile
    request: CollectiveRequest
    ranks_per_node: int
    in_switch: bool
    op: OpEstimate
    links: tuple[LinkFact, ...]
    algorithms: tuple[AlgorithmRow, ...]
    chosen: AlgorithmRow
    curve: tuple[SizePoint, ...]
    measured: tuple[MeasuredPoint, ...]
    halves: Mapping[str, Seconds]
    assumptions: tuple[str, ...]

    @property
    def bound(self) -> Seconds:
        return float(self.op.bound.overlapped)

    @property
    def time(self) -> Seconds:
        assert self.chosen.time is not None
        return self.chosen.time

    def bus(self, time: Seconds, size: Bytes | None = None) -> BytesPerSecond | None:
        """Bus bandwidth of a time for a size; None for no time at all."""
        request = self.request
        if time <= 0:
            return None
        return float(bus_bandwidth(request.kind, request.bytes if size is None else size, request.ranks, time))


def default_sizes() -> list[Bytes]:
    """1 KiB to 16 GiB in powers of two."""
    return [2.0**power for power in range(10, 35)]


def estimate_collective(ctx: Context, request: CollectiveRequest) -> CollectiveEstimate:
    """Answer `POST /estimates/collective`. Raises InvalidInput or MissingFigure."""
    hardware, notes = resolve_hardware(ctx, request.hardware)
    per_node = request.ranks_per_node or hardware.ranks_per_node
    facts = link_facts(hardware, request.links)
    models = {fact.tier: fact.model for fact in facts}
    _require_links(hardware, models, request.ranks, per_node)
    in_switch = _reduces(hardware, request.in_switch_reduction)
    op = op_on(
        hardware,
        OpRequest(
            hardware=ON_PROFILE,
            op=CollectiveBody(
                op="collective",
                kind=request.kind,
                bytes=request.bytes,
                ranks=request.ranks,
                ranks_per_node=per_node,
                in_switch_reduction=in_switch,
            ),
            ceilings=request.ceilings,
        ),
    )
    group = (request.kind, request.ranks, per_node)
    rows = tuple(_algorithm_row(group, name, request.bytes, models, in_switch) for name in ALGORITHMS)
    if request.algorithm is not None:
        chosen = next(row for row in rows if row.algorithm == request.algorithm)
        if chosen.reason is not None:
            raise InvalidInput(("algorithm",), chosen.reason)
    else:
        chosen = min((row for row in rows if row.time is not None), key=lambda row: row.time or 0.0)
    names = [row.algorithm for row in rows if row.reason is None]
    sizes = request.sizes or default_sizes()
    times = {
        name: np.asarray(algorithm_time(request.kind, name, np.asarray(sizes), request.ranks, per_node, models))
        for name in names
    }
    per_byte = float(op.bound.overlapped) / request.bytes  # a bound of bytes alone is proportional to the size
    curve = tuple(
        SizePoint(size, size * per_byte, {name: float(times[name][i]) for name in names})
        for i, size in enumerate(sizes)
    )
    return CollectiveEstimate(
        hardware=hardware,
        request=request,
        ranks_per_node=per_node,
        in_switch=in_switch,
        op=op,
        links=facts,
        algorithms=rows,
        chosen=chosen,
        curve=curve,
        measured=(*carried_measurements(hardware, request.kind), *_uploaded_measurements(ctx, hardware, request.kind)),
        halves=_halves(request, per_node, models, in_switch),
        assumptions=(*_filled(request), *notes, *_link_notes(facts), *_ring_notes(request, per_node)),
    )


def _algorithm_row(
    group: tuple[str, int, int], name: Algorithm, size: Bytes, models: Mapping[Tier, LinkModel], in_switch: bool
) -> AlgorithmRow:
    kind, ranks, per_node = group
    reason = unavailable(kind, name, ranks, per_node, in_switch)
    if reason is not None:
        return AlgorithmRow(name, reason, {}, {}, None)
    messages, sent = algorithm_costs(kind, name, size, ranks, per_node)
    return AlgorithmRow(
        algorithm=name,
        reason=None,
        messages={tier: count for tier, count in messages.items() if count},
        sent={tier: float(sent[tier]) for tier, count in messages.items() if count},
        time=float(algorithm_time(kind, name, size, ranks, per_node, models)),
    )


def _halves(
    request: CollectiveRequest, per_node: int, models: Mapping[Tier, LinkModel], in_switch: bool
) -> Mapping[str, Seconds]:
    """An all-reduce against the reduce-scatter and all-gather that it is made of, each by its fastest algorithm."""
    if request.kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        return {}
    return {
        kind: fastest_algorithm(kind, request.bytes, request.ranks, per_node, models, in_switch)[1]
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    }


def _link_notes(facts: Sequence[LinkFact]) -> list[str]:
    notes = []
    for fact in facts:
        tier = fact.tier.replace("_", "-")
        if fact.alpha_basis == "assumed":
            notes.append(f"A message on the {tier} link ({fact.name}) takes {fact.model.alpha * 1e6:g} us to start.")
        if fact.bandwidth_basis == "assumed":
            notes.append(f"Large messages reach {LINK_EFFICIENCY:.0%} of the {tier} link's rate.")
        elif fact.bandwidth_basis == "measured":
            notes.append(f"Large messages reach the bus bandwidth measured on the {tier} link.")
    notes.append("The model counts no kernel launch; the bound counts bytes alone, on the link's full rate.")
    return notes


def _ring_notes(request: CollectiveRequest, per_node: int) -> list[str]:
    if node_count(request.ranks, per_node) == 1:
        return []
    return ["A flat ring over several nodes goes at the pace of one link between nodes."]


def carried_measurements(hardware: HardwareProfile, kind: str) -> tuple[MeasuredPoint, ...]:
    """Measured collectives that the product carries for a device, by size."""
    return _carried(hardware.id if hardware.shipped else hardware.copied_from or "", kind)


@cache
def _carried(hardware_id: str, kind: str) -> tuple[MeasuredPoint, ...]:
    points = []
    for row in load_measurements().rows:
        q = row.question
        if q.get("op") != "collective" or q["kind"] != kind or row.hardware != hardware_id:
            continue
        points.append(
            MeasuredPoint(
                size=float(q["size"]),
                ranks=int(q["ranks"]),
                seconds=row.seconds,
                bus_bandwidth=float(bus_bandwidth(kind, float(q["size"]), int(q["ranks"]), row.seconds)),
                name=row.engine or row.id,
                source=row.source.title,
                url=row.source.url or "",
            )
        )
    return tuple(sorted(points, key=lambda p: (p.ranks, p.size, p.seconds)))


def _uploaded_measurements(ctx: Context, hardware: HardwareProfile, kind: str) -> tuple[MeasuredPoint, ...]:
    """Uploaded runs of the device that report a bus bandwidth with its message size, and name this collective."""
    points: list[MeasuredPoint] = []
    with ctx.storage.read() as session:
        filters = RunFilter(hardware=hardware.id)
        page = stored_runs.list_runs(session=session, filters=filters, limit=MEASURED_RUNS_READ)
        found = [
            stored_runs.get_run(session=session, run_id=summary.id)
            for summary in page.items
            if any(key.startswith("bus_bandwidth_bytes_per_s") for key in summary.headline)
        ]
    for run in found:
        told = {**run.parsed.workload.extra, **run.parsed.series}
        named = " ".join(str(told.get(key, "")) for key in ("collective", "kind", "op")) + " " + run.name
        ranks = int(next((told[key] for key in ("ranks", "world") if isinstance(told.get(key), (int, float))), 0))
        ranks = ranks or max(run.parsed.parallel.values(), default=0)
        if ranks >= 2 and _names(named, kind):
            points += _points_of(run, told, kind, ranks)
    return tuple(sorted(points, key=lambda p: (p.ranks, p.size)))


def _points_of(run: StoredRun, told: Mapping[str, Any], kind: str, ranks: int) -> list[MeasuredPoint]:
    """The sizes of a swept run, out of place where it has both; of another one its single bandwidth."""
    by_size: dict[float, MeasuredPoint] = {}
    for row in run.parsed.kernels:
        count, took = _positive(row.get("size_bytes")), _positive(row.get("time_s"))
        if count is None or took is None or row.get("wrong"):
            continue
        rate = _positive(row.get("bus_bandwidth_bytes_per_s"))
        rate = rate if rate is not None else _positive(float(bus_bandwidth(kind, count, ranks, took)))
        if rate is not None and (count not in by_size or row.get("placement") == "out-of-place"):
            by_size[count] = _uploaded_point(run, count, ranks, took, rate)
    if by_size:
        return list(by_size.values())
    value = run.parsed.value("bus_bandwidth_bytes_per_s")
    size = next((told[key] for key in _SIZE_KEYS if isinstance(told.get(key), (int, float))), None)
    if not value or not size or value <= 0 or size <= 0:
        return []
    seconds = float(bus_bandwidth(kind, float(size), ranks, 1.0)) / value
    return [_uploaded_point(run, float(size), ranks, seconds, value)]


def _positive(value: Any) -> float | None:
    """A finite number above zero; rows of one's own format may hold anything under any name."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < 1e30 and value > 1e-30 else None


def _uploaded_point(run: StoredRun, size: float, ranks: int, seconds: float, rate: float) -> MeasuredPoint:
    return MeasuredPoint(size, ranks, seconds, rate, run.name, "uploaded run", f"/runs/{run.id}", True)


def _names(text: str, kind: str) -> bool:
    plain = text.lower().replace("-", "").replace("_", "").replace(" ", "")
    words = {"p2p": ("sendrecv", "p2p"), "all_to_all": ("alltoall",)}.get(kind, (kind.replace("_", ""),))
    return any(word in plain for word in words)


# ---- a collective beside a product ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkPoint:
    chunks: int
    time: Seconds
    waves: int


@dataclass(frozen=True, slots=True)
class LevelRow:
    """A level of overlap: its timeline, and the share of the collective that judgement says it leaves."""

    level: str
    timeline: ChunkedTimeline
    exposed: Seconds
    forecast: Seconds


@dataclass(frozen=True, slots=True)
class OverlapEstimate:
    hardware: HardwareProfile
    request: OverlapRequest
    bytes: Bytes
    compute: Seconds
    communication: Seconds
    algorithm: str
    launch: Seconds
    contention: Ratio
    units: int | None
    taken: float | None
    unlimited: Seconds
    undisturbed: Seconds
    levels: tuple[LevelRow, ...]
    curve: tuple[ChunkPoint, ...]
    best: int
    shown: int
    links: tuple[LinkFact, ...]
    basis: str
    assumptions: tuple[str, ...]

    @property
    def compute_only(self) -> Seconds:
        """The uncut product with its launch."""
        return self.launch + self.compute

    @property
    def link_share(self) -> Ratio:
        """Time of the exchange if its units moved as much as the links carry, over its time with those that it has."""
        return self.unlimited / self.communication if self.communication > 0 else 1.0

    @property
    def slowed(self) -> Seconds:
        """What the units that the exchange occupies add to the chunked step, beside what too few of them do."""
        return max(self.level("L2").timeline.total - self.undisturbed, 0.0)

    def level(self, name: str) -> LevelRow:
        return next(row for row in self.levels if row.level == name)


def estimate_overlap(ctx: Context, request: OverlapRequest) -> OverlapEstimate:
    """Cut a product and its collective into chunks and let them run beside each other.

    A reduce-scatter or all-reduce sends the product's output, an all-gather brings its input. A chunk's product is the
    forecast of a product of that many rows, which knows weights read again and waves that are not full. The exchange's
    units are lost to the product beside it, and fewer than a link needs slow the exchange.
    """
    hardware, notes = resolve_hardware(ctx, request.hardware)
    per_node = request.ranks_per_node or hardware.ranks_per_node
    facts = link_facts(hardware, request.links)
    models = {fact.tier: fact.model for fact in facts}
    _require_links(hardware, models, request.ranks, per_node)
    in_switch = _reduces(hardware, request.in_switch_reduction)
    gemm = request.gemm
    item = PRECISIONS[gemm.dtype].element_bytes
    size = float(gemm.m) * (gemm.k if request.kind == "all_gather" else gemm.n) * item
    launch = ceilings(hardware).launch if request.launch_s is None else request.launch_s
    units, curve = hardware.compute_units, collective_units().curve
    contention = request.contention
    if request.communication_units is not None:
        contention = share_of_units(hardware, request.communication_units, contention)
    if contention is None:
        contention = UNKNOWN_CONTENTION if units is None else min(curve.enough / units, 0.5)
        taken = None if units is None else contention * units
    elif request.communication_units is not None:
        taken = float(request.communication_units)
    else:
        taken = None if units is None else contention * units
    moved = rate_of_units(taken or 0.0, [model.bandwidth for model in models.values()], curve)
    limited = {tier: replace(model, bandwidth=min(model.bandwidth, moved)) for tier, model in models.items()}
    first = request.kind == "all_gather"
    basis = ""
    known: dict[int, Seconds] = {}

    def product(rows: int) -> Seconds:
        nonlocal basis
        if rows not in known:
            body = GemmBody(op="gemm", m=rows, n=gemm.n, k=gemm.k, dtype=gemm.dtype)
            found = op_on(hardware, OpRequest(hardware=ON_PROFILE, op=body)).expected
            known[rows], basis = found.time, basis or found.basis
        return known[rows]

    def exchange(share: float) -> tuple[Algorithm, Seconds]:
        return fastest_algorithm(request.kind, size * share, request.ranks, per_node, limited, in_switch)

    def chunked(chunks: int, ahead: int | None = None, lost: Ratio = contention or 0.0) -> ChunkedTimeline:
        rows = split_rows(gemm.m, chunks)
        return chunked_timeline(
            [product(r) for r in rows],
            [exchange(r / gemm.m)[1] for r in rows],
            launch=launch,
            contention=lost,
            communication_first=first,
            ahead=ahead,
        )

    algorithm, communication = exchange(1.0)
    compute = product(gemm.m)
    if request.chunks is not None and request.chunks > gemm.m:
        raise InvalidInput(("chunks",), f"must be at most the {gemm.m:,} rows of the product, not {request.chunks}")
    counts = sorted({*chunk_counts(gemm.m), *([request.chunks] if request.chunks else [])})
    lines = {chunks: chunked(chunks) for chunks in counts}
    best = min(lines, key=lambda chunks: lines[chunks].total)
    shown = request.chunks or best
    waves = _waves(gemm.m, gemm.n, units)
    tiles = min(max(waves, 1), 64)
    # one kernel: its tiles are cut anyway, and the exchange starts up once
    start = min(communication, fastest_algorithm(request.kind, 1e-9, request.ranks, per_node, limited, in_switch)[1])
    fused = chunked_timeline(
        [launch + compute / tiles, *[compute / tiles] * (tiles - 1)],
        [start + (communication - start) / tiles, *[(communication - start) / tiles] * (tiles - 1)],
        contention=contention,
        communication_first=first,
    )
    halves = chunked(min(2, gemm.m))
    found_lines = {"L0": chunked(1, ahead=0), "L1": halves, "L2": lines[shown], "L3": fused}
    levels = tuple(
        LevelRow(
            level,
            found_lines[level],
            found_lines[level].exposed(launch + compute),
            exposed_forecast(communication, compute, level),
        )
        for level in LEVELS
    )
    return OverlapEstimate(
        hardware=hardware,
        request=request,
        bytes=size,
        compute=compute,
        communication=communication,
        algorithm=algorithm,
        launch=launch,
        contention=contention,
        units=units,
        taken=taken,
        unlimited=fastest_algorithm(request.kind, size, request.ranks, per_node, models, in_switch)[1],
        undisturbed=chunked(shown, lost=0.0).total,
        levels=levels,
        curve=tuple(
            ChunkPoint(chunks, lines[chunks].total, _waves(split_rows(gemm.m, chunks)[0], gemm.n, units))
            for chunks in counts
        ),
        best=best,
        shown=shown,
        links=facts,
        basis=basis,
        assumptions=(
            *_filled(request),
            *notes,
            *_link_notes(facts)[:-1],
            f"Each chunk's product and exchange are launched one by one, {launch * 1e6:.3g} us each.",
            f"While something is sent, the product runs at {1 - contention:.0%} of its speed: the exchange's kernels "
            "occupy the rest.",
            *([] if not taken else [units_note()]),
            "L3 is one kernel whose tiles send as they finish: one launch, one start-up cost.",
        ),
    )


def share_of_units(hardware: HardwareProfile, taken: int, contention: Ratio | None = None) -> Ratio:
    """Share of a device's compute units that an exchange's kernels occupy.

    Raises InvalidInput at `communication_units` where the share is stated as well, nearly everything would be taken, or
    the profile does not say how many there are.
    """
    where = ("communication_units",)
    if contention is not None:
        raise InvalidInput(where, "contention is the same as a share: give one of them")
    if hardware.compute_units is None:
        raise InvalidInput(where, f"{hardware.name} does not state its compute units: give contention as a share")
    share = taken / hardware.compute_units
    if share > MOST_CONTENTION:
        most = int(hardware.compute_units * MOST_CONTENTION)
        raise InvalidInput(
            where, f"{taken} of {hardware.compute_units} units leave the product too few: at most {most}"
        )
    return share


def _waves(rows: int, columns: int, units: int | None) -> int:
    """Rounds of output tiles that a product takes; 0 where the compute units are not known."""
    return 0 if not units else -(-(-(-rows // TILE) * -(-columns // TILE)) // units)


# ---- exposed communication of a run ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExposedEstimate:
    """`streams` are what a profiler's streams add up to: shown beside, never used."""

    step: Seconds
    compute_only: Seconds
    other: Seconds
    exposed: Seconds
    streams: Seconds | None
    run: str | None
    run_name: str | None
    origins: Mapping[str, str]

    @property
    def share(self) -> Ratio:
        return self.exposed / self.step if self.step else 0.0


def estimate_exposed(ctx: Context, request: ExposedRequest) -> ExposedEstimate:
    """Exposed communication from three times, or from a run's step time and its evidence (F-1.5)."""
    values = {"step_s": request.step_s, "compute_only_s": request.compute_only_s, "other_s": request.other_s}
    origins = {name: "entered" for name, value in values.items() if value is not None}
    run_name = None
    if request.run is not None:
        with ctx.storage.read() as session:
            run = stored_runs.get_run(session=session, run_id=request.run)
        run_name = run.name
        evidence = run.parsed.evidence
        told = {
            "step_s": run.parsed.value("step_time_s", None, "mean", "p50"),
            "compute_only_s": evidence.get("compute_only_s"),
            "other_s": evidence.get("other_s"),
        }
        for name, value in told.items():
            if values[name] is None and value is not None:
                values[name], origins[name] = value, "measured"
    for name, words in (
        ("step_s", "the time of a step"),
        ("compute_only_s", "the time of the same step without communication"),
    ):
        if values[name] is None:
            where = f"run {run_name!r} does not hold {words}: give it here" if run_name else f"give {words}"
            raise InvalidInput((name,), where)
    step, compute = values["step_s"] or 0.0, values["compute_only_s"] or 0.0
    other = values["other_s"]
    if other is None:
        other, origins["other_s"] = 0.0, "assumed"
    if step <= 0:
        raise InvalidInput(("step_s",), "must be more than 0")
    return ExposedEstimate(
        step=step,
        compute_only=compute,
        other=other,
        exposed=exposed_communication(step, compute, other),
        streams=sum(request.streams_s) if request.streams_s else None,
        run=request.run,
        run_name=run_name,
        origins=origins,
    )


# ---- sharded training -----------------------------------------------------------------------------------------------


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
class ShardingEstimate:
    hardware: HardwareProfile
    model: ModelSpec
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
    tokens: float
    tokens_to_hide: float
    slowest: LinkFact
    rate: float
    links: tuple[LinkFact, ...]
    assumptions: tuple[str, ...]

    @property
    def exposed(self) -> Seconds:
        """Gathers and reductions of one micro-batch's passes that compute does not hide."""
        return self.forward_line.total + self.backward_line.total - self.units * (self.forward + self.backward)

    @property
    def hides(self) -> bool:
        return self.tokens >= self.tokens_to_hide


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
    _require_links(hardware, models, ranks, local)
    units = max(model.num_layers // p.pp, 1)
    gather, unit_bytes = _row_time(sharded, "parameter all-gather", "all_gather", group, units, models)
    scatter, _ = _row_time(sharded, "gradient reduce-scatter", "reduce_scatter", group, units, models)
    forward, backward = _layer_seconds(sharded, units)
    drawn = min(units, 128)
    slowest = min((f for f in facts if f.tier in _tiers(ranks, local)), key=lambda f: f.model.bandwidth)
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
        slowest=slowest,
        rate=rate,
        links=facts,
        assumptions=tuple(
            dict.fromkeys(
                (
                    *_filled(request),
                    *sharded.assumptions,
                    *_link_notes(facts)[:-1],
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
    _, _, _, seconds = step_seconds(bound, load_calibration(), workload)
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
class ContextParallelEstimate:
    hardware: HardwareProfile
    model: ModelSpec
    request: ContextParallelRequest
    rows: tuple[ExchangeRow, ...]
    hop: Seconds
    block: Seconds
    line: ChunkedTimeline
    tokens: float
    tokens_to_hide: float
    slowest: LinkFact
    rate: float
    links: tuple[LinkFact, ...]
    assumptions: tuple[str, ...]

    @property
    def hides(self) -> bool:
        return self.tokens >= self.tokens_to_hide

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
    _require_links(hardware, models, ranks, local)
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
        rate=rate,
        links=facts,
        assumptions=tuple(
            dict.fromkeys(
                (
                    *_filled(request),
                    *ring.estimate.assumptions,
                    *_link_notes(facts)[:-1],
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
    seconds = step_seconds(bound, load_calibration(), estimate.workload)[3]
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
