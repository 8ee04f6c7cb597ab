"""An exchange beside compute that could hide it: a product cut into chunks, and the exposed time of a run's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.catalog.published import collective_units
from app.domain.calibration import TILE
from app.domain.collectives import (
    Algorithm,
    fastest_algorithm,
)
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import ceilings
from app.domain.overlap import (
    LEVELS,
    ChunkedTimeline,
    chunk_counts,
    chunked_timeline,
    exposed_communication,
    exposed_forecast,
    rate_of_units,
    split_rows,
)
from app.domain.precision import PRECISIONS
from app.domain.units import Bytes, Ratio, Seconds
from app.services.communication import (
    ON_PROFILE,
    LinkFact,
    filled_notes,
    link_notes,
    ranks_of,
)
from app.services.communication_requests import (
    ExposedRequest,
    OverlapRequest,
)
from app.services.context import Context
from app.services.contracts import GemmBody, OpRequest
from app.services.estimate import op_on
from app.storage import runs as stored_runs

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


def units_note() -> str:
    """What the units of an exchange are taken to move: in words, with the measurement that it rests on."""
    found = collective_units()
    curve = found.curve
    shares = [f"{share:.0%} with {units}" for units, share in zip(curve.units, curve.shares, strict=True)]
    return (
        f"Of the rate of the device's fastest link a collective's compute units reach {', '.join(shares[:-1])} and "
        f"{shares[-1]} of them ({found.title}: {found.conditions}). That other devices and collectives do the same is "
        "a judgement."
    )


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
    group = ranks_of(ctx, request)
    hardware, per_node, models, in_switch = group.hardware, group.per_node, group.models, group.in_switch
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
        links=group.facts,
        basis=basis,
        assumptions=(
            *filled_notes(request),
            *group.notes,
            *link_notes(group.facts)[:-1],
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
    """`streams` are what a profiler's streams add up to: shown beside, never used. `traced` says that the times are
    those of a trace: its whole span stands for the step."""

    step: Seconds
    compute_only: Seconds
    other: Seconds
    exposed: Seconds
    streams: Seconds | None
    run: str | None
    run_name: str | None
    origins: Mapping[str, str]
    traced: bool = False

    @property
    def share(self) -> Ratio:
        return self.exposed / self.step if self.step else 0.0


def estimate_exposed(ctx: Context, request: ExposedRequest) -> ExposedEstimate:
    """Exposed communication from three times, or from a run's step time and its evidence (F-1.5).

    A run that is a trace and states neither has all three in its timeline: its span, the time when a kernel computes
    (alone or beside a collective), and copies and gaps. What is left is when nothing but communication runs.
    """
    values = {"step_s": request.step_s, "compute_only_s": request.compute_only_s, "other_s": request.other_s}
    origins = {name: "entered" for name, value in values.items() if value is not None}
    run_name = None
    traced = False
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
        unsaid = told["compute_only_s"] is values["step_s"] is values["compute_only_s"] is None
        of_trace = _of_trace(run.parsed.timeline or {}) if unsaid else {}
        if of_trace:
            told, traced = of_trace, True
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
        traced=traced,
    )


def _of_trace(timeline: Mapping[str, Any]) -> dict[str, float | None]:
    """The three times of a trace's timeline; empty where nothing ran on a device."""
    if not timeline.get("span_s"):
        return {}
    waits = ("copying_s", "launch_gap_s", "other_gap_s", "unknown_gap_s")
    return {
        "step_s": timeline["span_s"],
        "compute_only_s": timeline["computing_s"] + timeline["overlapped_s"],
        "other_s": sum(timeline[name] for name in waits),
    }
