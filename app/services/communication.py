"""Links of a device, and collectives over them.

Bytes and bounds are those of the cost table and of single operations; start-up costs come from the alpha-beta model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from app.catalog.measurements import load_measurements
from app.domain.collectives import (
    ALGORITHMS,
    IN_SWITCH_SHARE,
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
)
from app.domain.cost import Tier
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import ceilings
from app.domain.units import Bytes, BytesPerSecond, Seconds
from app.services.communication_requests import (
    CollectiveRequest,
    LinksBody,
    OverlapRequest,
)
from app.services.context import Context
from app.services.contracts import CollectiveBody, Contract, OpRequest
from app.services.estimate import OpEstimate, op_on
from app.services.references import resolve_hardware
from app.storage import runs as stored_runs
from app.storage.records import RunFilter, StoredRun

ON_PROFILE = "profile"
"""Stands for the hardware of a question that is put to a profile at hand."""

MEASURED_RUNS_READ = 200
"""Newest runs of a device that are looked through for bus bandwidths."""

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


def require_links(hardware: HardwareProfile, models: Mapping[Tier, LinkModel], ranks: int, per_node: int) -> None:
    """Raises MissingFigure where ranks lie apart on a tier that the device has no link for."""
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


def filled_notes(request: Contract) -> list[str]:
    """Defaults that were taken; those of the links are told with their numbers."""
    return [note for note in request.filled_defaults() if not note.startswith("links")]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of an exchange: their device, how many share a node, and the links between them.

    `in_switch` says whether switches add up, `notes` what stands for figures that the device does not state.
    """

    hardware: HardwareProfile
    per_node: int
    facts: tuple[LinkFact, ...]
    models: Mapping[Tier, LinkModel]
    in_switch: bool
    notes: tuple[str, ...]


def ranks_of(ctx: Context, request: CollectiveRequest | OverlapRequest) -> Ranks:
    """The ranks that a call asks about. Raises what an unknown device raises, and MissingFigure for a missing link."""
    hardware, notes = resolve_hardware(ctx, request.hardware)
    per_node = request.ranks_per_node or hardware.ranks_per_node
    facts = link_facts(hardware, request.links)
    models = {fact.tier: fact.model for fact in facts}
    require_links(hardware, models, request.ranks, per_node)
    in_switch = request.in_switch_reduction
    if in_switch is None:
        in_switch = hardware.scale_up is not None and hardware.scale_up.in_network_reduction
    return Ranks(hardware, per_node, facts, models, in_switch, tuple(notes))


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
    group = ranks_of(ctx, request)
    hardware, per_node, models, in_switch = group.hardware, group.per_node, group.models, group.in_switch
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
    asked = (request.kind, request.ranks, per_node)
    rows = tuple(_algorithm_row(asked, name, request.bytes, models, in_switch) for name in ALGORITHMS)
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
        links=group.facts,
        algorithms=rows,
        chosen=chosen,
        curve=curve,
        measured=(*carried_measurements(hardware, request.kind), *_uploaded_measurements(ctx, hardware, request.kind)),
        halves=_halves(request, per_node, models, in_switch),
        assumptions=(*filled_notes(request), *group.notes, *link_notes(group.facts), *_algorithm_notes(request, group)),
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


def link_notes(facts: Sequence[LinkFact]) -> list[str]:
    """What the two numbers of each link are taken to be."""
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


def _algorithm_notes(request: CollectiveRequest, group: Ranks) -> list[str]:
    notes = []
    if group.in_switch and request.kind == "all_reduce":
        notes.append(f"A switch that reduces is fed at {IN_SWITCH_SHARE:.0%} of what large messages reach (measured).")
    if node_count(request.ranks, group.per_node) > 1:
        notes.append("A flat ring over several nodes goes at the pace of one link between nodes.")
    return notes


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
