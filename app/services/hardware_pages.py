"""The hardware list and one device: every figure with its sources, `peak` beside what was reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from app.catalog.codec import PEAK_PRECISIONS, hardware_figures
from app.domain.errors import MissingFigure
from app.domain.hardware import FigureSource, HardwareProfile
from app.domain.lower_bound import Ceilings, ceilings
from app.services.catalogue import HardwareEntry, all_hardware, hardware_matches
from app.services.context import Context
from app.services.listing import linked_runs, natural, ordered
from app.storage.records import RunFilter, RunSummary

STRENGTH: Final = ("measured", "primary", "derived", "entered", "secondary", "recalled")
"""How a source was read, the strongest first."""

WEAK: Final = frozenset({"secondary", "recalled"})

Sources: TypeAlias = tuple[FigureSource, ...]


def ranked_sources(profile: HardwareProfile, field_name: str) -> Sources:
    """The sources of a figure, the strongest first: a figure is as good as its best source."""
    return tuple(sorted(profile.sources_of(field_name), key=lambda source: STRENGTH.index(source.read)))


# ---- list -----------------------------------------------------------------------------------------------------------

CLASS_LABELS: Final[Mapping[str, str]] = {
    "datacenter-gpu": "Data-centre GPU",
    "datacenter-asic": "Data-centre ASIC",
    "datacenter-npu": "Data-centre NPU",
    "cloud-asic": "Cloud ASIC",
    "inference-asic": "Inference ASIC",
    "wafer-scale": "Wafer scale",
    "workstation-gpu": "Workstation GPU",
    "consumer-gpu": "Consumer GPU",
    "unified-soc": "SoC, unified memory",
    "edge-soc": "Edge SoC",
    "cpu": "CPU",
}

HALF_PRECISIONS: Final = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class HardwareLine:
    """One device of the list. `half` is the 16-bit format whose figures stand in the line; absent figures are None."""

    entry: HardwareEntry
    memory: float | None
    bandwidth: float | None
    half: str | None
    half_peak: float | None
    half_achievable: float | None
    fp8_peak: float | None
    ridge: float | None
    link: float | None
    power: float | None
    year: int | None

    @property
    def half_reached(self) -> float | None:
        """Share of the 16-bit peak that somebody reached."""
        return share(self.half_achievable, self.half_peak)

    def sources(self, column: str) -> Sources:
        """The sources of a column's figure, the strongest first."""
        profile = self.entry.profile
        field_name = {
            "memory": "memory_bytes",
            "bandwidth": "peak.memory_bandwidth_bytes_per_s",
            "half": f"peak.flop_per_s.{self.half}",
            "half_achievable": f"achievable.flop_per_s.{self.half}",
            "fp8": "peak.flop_per_s.fp8",
            "link": "scale_up.bandwidth_bytes_per_s",
            "power": "board_power_w",
        }[column]
        return ranked_sources(profile, field_name)


@dataclass(frozen=True, slots=True)
class HardwareQuery:
    """Filters and order of the hardware list, as they stand in an address; empty ones do not filter."""

    q: str = ""
    vendor: str = ""
    kind: str = ""
    precision: str = ""
    sort: str = ""

    @property
    def filters_anything(self) -> bool:
        return bool(self.q or self.vendor or self.kind or self.precision)


@dataclass(frozen=True, slots=True)
class HardwareList:
    """The lines that match, and what the filters offer as (value, label)."""

    lines: tuple[HardwareLine, ...]
    total: int
    vendors: tuple[tuple[str, str], ...]
    kinds: tuple[tuple[str, str], ...]


HARDWARE_SORTS: Final[Mapping[str, Callable[[HardwareLine], float | str | None]]] = {
    "name": lambda line: natural(line.entry.name),
    "vendor": lambda line: line.entry.profile.vendor.casefold(),
    "memory": lambda line: line.memory,
    "bandwidth": lambda line: line.bandwidth,
    "half": lambda line: line.half_peak,
    "achievable": lambda line: line.half_achievable,
    "fp8": lambda line: line.fp8_peak,
    "ridge": lambda line: line.ridge,
    "link": lambda line: line.link,
    "power": lambda line: line.power,
    "year": lambda line: None if line.year is None else float(line.year),
}
"""Sort keys of the list; `-` before one turns the order. Without one a team's own come first, then by name."""


def browse_hardware(ctx: Context, query: HardwareQuery) -> HardwareList:
    """The devices that match. Raises InvalidQuery for an unknown sort key."""
    everything = all_hardware(ctx)
    found = [
        hardware_line(entry)
        for entry in everything
        if hardware_matches(entry.profile, query.q)
        and (not query.vendor or entry.profile.vendor.casefold() == query.vendor.casefold())
        and (not query.kind or entry.profile.device_class == query.kind)
        and (not query.precision or query.precision in entry.profile.peak)
    ]
    vendors = Counter(entry.profile.vendor for entry in everything)
    kinds = Counter(entry.profile.device_class for entry in everything if entry.profile.device_class)
    return HardwareList(
        lines=tuple(
            ordered(
                found,
                query.sort,
                HARDWARE_SORTS,
                usual=lambda line: (line.entry.profile.shipped, natural(line.entry.name)),
            )
        ),
        total=len(everything),
        vendors=tuple((name, f"{name} ({number})") for name, number in sorted(vendors.items())),
        kinds=tuple((name, f"{CLASS_LABELS.get(name, name)} ({number})") for name, number in sorted(kinds.items())),
    )


def hardware_line(entry: HardwareEntry) -> HardwareLine:
    """One device as the list shows it."""
    p = entry.profile
    half = next((name for name in HALF_PRECISIONS if name in p.peak), None)
    roofs = roofs_of(p)
    return HardwareLine(
        entry=entry,
        memory=p.memory_capacity,
        bandwidth=p.memory_bandwidth,
        half=half,
        half_peak=None if half is None else p.peak[half],
        half_achievable=None if half is None else p.achievable_flop.get(half),
        fp8_peak=p.peak.get("fp8"),
        ridge=None if half is None else ridge_of(roofs, half),
        link=None if p.scale_up is None else p.scale_up.bandwidth,
        power=p.board_power,
        year=p.release_year,
    )


def roofs_of(profile: HardwareProfile) -> Ceilings | None:
    """The peak roofs of a profile, None where it states no memory bandwidth."""
    try:
        return ceilings(profile)
    except MissingFigure:
        return None


def ridge_of(roofs: Ceilings | None, precision: str) -> float | None:
    """Intensity in FLOP per byte at which a precision's roof meets the memory's (F-1.2), where both are known."""
    if roofs is None or precision not in roofs.flop:
        return None
    return roofs.flop[precision] / roofs.memory


def share(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole` where both are stated."""
    return None if part is None or not whole else part / whole


# ---- one device -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a profile with its sources, the strongest first. `value` is SI, None where it is not stated."""

    field: str
    label: str
    value: float | None
    unit: str
    sources: Sources = ()
    decimal: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class PrecisionFigures:
    """A format's vendor peak beside what was reached, and where its roof meets the memory's."""

    precision: str
    peak: Figure
    achievable: Figure
    reached: float | None
    ridge: float | None


@dataclass(frozen=True, slots=True)
class HardwareSheet:
    """Everything that a device's page shows. Groups hold (term, text) facts and figures in reading order."""

    entry: HardwareEntry
    headline: str
    sourcing: str
    precisions: tuple[PrecisionFigures, ...]
    memory: tuple[Figure, ...]
    links: tuple[tuple[str, tuple[Figure, ...], str], ...]
    execution: tuple[Figure, ...]
    facts: tuple[tuple[str, str], ...]
    remarks: tuple[tuple[str, str], ...]
    sources: tuple[tuple[FigureSource, tuple[str, ...]], ...]
    runs: tuple[RunSummary, ...]
    run_count: int
    can_estimate: bool


def hardware_sheet(ctx: Context, entry: HardwareEntry) -> HardwareSheet:
    """The page of one device."""
    p = entry.profile
    roofs = roofs_of(p)
    figures = hardware_figures(p)
    weak = Counter(cited[0].read for name in figures if (cited := ranked_sources(p, name)) and cited[0].read in WEAK)
    runs = linked_runs(ctx, RunFilter(hardware=p.id), limit=5)
    return HardwareSheet(
        entry=entry,
        headline=_hardware_headline(p, roofs),
        sourcing=_sourcing(len(figures), weak),
        precisions=tuple(_precision(p, roofs, name) for name in PEAK_PRECISIONS if _states(p, name)),
        memory=_memory_figures(p),
        links=_links(p),
        execution=_execution(p),
        facts=tuple((term, text) for term, text in _facts(p) if text),
        remarks=tuple((term, text) for term, text in _remarks(p) if text),
        sources=tuple((source, covered) for source in p.sources if (covered := _covered(source, p, figures))),
        runs=runs.items,
        run_count=runs.total,
        can_estimate=roofs is not None and bool(p.peak),
    )


def _states(p: HardwareProfile, precision: str) -> bool:
    return precision in p.peak or precision in p.achievable_flop


def _figure(
    p: HardwareProfile, field: str, label: str, value: float | None, unit: str, *, decimal: bool = False, note: str = ""
) -> Figure:
    return Figure(field, label, value, unit, ranked_sources(p, field), decimal, note)


def _precision(p: HardwareProfile, roofs: Ceilings | None, name: str) -> PrecisionFigures:
    unit = "OP/s" if name.startswith("int") else "FLOP/s"
    return PrecisionFigures(
        precision=name,
        peak=_figure(p, f"peak.flop_per_s.{name}", f"{name} peak", p.peak.get(name), unit),
        achievable=_figure(p, f"achievable.flop_per_s.{name}", f"{name} achieved", p.achievable_flop.get(name), unit),
        reached=share(p.achievable_flop.get(name), p.peak.get(name)),
        ridge=ridge_of(roofs, name),
    )


def _memory_figures(p: HardwareProfile) -> tuple[Figure, ...]:
    reached = share(p.achievable_memory_bandwidth, p.memory_bandwidth)
    rows = (
        _figure(p, "memory_bytes", "Capacity", p.memory_capacity, "B", decimal=True, note=p.memory_type or ""),
        _figure(p, "peak.memory_bandwidth_bytes_per_s", "Peak bandwidth", p.memory_bandwidth, "B/s"),
        _figure(
            p,
            "achievable.memory_bandwidth_bytes_per_s",
            "Achieved bandwidth",
            p.achievable_memory_bandwidth,
            "B/s",
            note="" if reached is None else f"{_percent(reached)} of peak",
        ),
        _figure(p, "l2_bytes", "L2 cache", p.l2_capacity, "B"),
        _figure(p, "achievable.l2_bandwidth_bytes_per_s", "Achieved L2 bandwidth", p.achievable_l2_bandwidth, "B/s"),
        _figure(p, "last_level_cache_bytes", "Last-level cache", p.last_level_cache_capacity, "B"),
        _figure(
            p,
            "shared_memory_per_unit_bytes",
            f"Shared memory of one {p.compute_unit_kind or 'unit'}",
            p.shared_memory_per_unit,
            "B",
        ),
    )
    optional = (
        "l2_bytes",
        "achievable.l2_bandwidth_bytes_per_s",
        "last_level_cache_bytes",
        "shared_memory_per_unit_bytes",
    )
    return tuple(row for row in rows if row.value is not None or row.field not in optional)


def _links(p: HardwareProfile) -> tuple[tuple[str, tuple[Figure, ...], str], ...]:
    tiers: list[tuple[str, tuple[Figure, ...], str]] = []
    if p.scale_up is not None:
        up = p.scale_up
        reached = share(p.achievable_scale_up_bandwidth, up.bandwidth)
        rows = (
            _figure(p, "scale_up.bandwidth_bytes_per_s", "One way, one device", up.bandwidth, "B/s"),
            _figure(p, "scale_up.peer_to_peer_bytes_per_s", "One way, one pair", up.peer_to_peer, "B/s"),
            _figure(
                p,
                "achievable.scale_up_bus_bandwidth_bytes_per_s",
                "Achieved bus bandwidth",
                p.achievable_scale_up_bandwidth,
                "B/s",
                note="" if reached is None else f"{_percent(reached)} of one way",
            ),
            _figure(p, "scale_up.domain_size", "Devices in the domain", up.domain_size, "devices"),
        )
        reduces = "switches can reduce" if up.in_network_reduction else ""
        about = "; ".join(text for text in (up.topology, reduces, up.note) if text)
        kept = tuple(row for row in rows if row.value is not None) or rows[:1]
        tiers.append((f"Scale-up: {up.name}", kept, about))
    if p.scale_out is not None:
        out = p.scale_out
        row = _figure(p, "scale_out.bandwidth_bytes_per_s", "One way, one device", out.bandwidth, "B/s")
        tiers.append((f"Scale-out: {out.name}", (row,), out.note or ""))
    if p.pcie_bandwidth is not None:
        row = _figure(p, "pcie_bandwidth_bytes_per_s", "One way", p.pcie_bandwidth, "B/s")
        tiers.append(("Host link: PCIe", (row,), ""))
    return tuple(tiers)


def _execution(p: HardwareProfile) -> tuple[Figure, ...]:
    kind = p.compute_unit_kind or "compute units"
    facts = p.tile_facts
    rows = (
        _figure(p, "compute_units", "Compute units", p.compute_units, kind),
        _figure(p, "boost_clock_hz", "Boost clock", p.boost_clock, "Hz"),
        _figure(p, "peak.exponentials_per_s", "Exponentials", p.peak_exponentials, "exp/s"),
        _figure(p, "launch_overhead_s", "Launch of one queued kernel", p.launch_overhead, "s"),
        _figure(p, "graph_node_overhead_s", "One node of a graph", p.graph_node_overhead, "s"),
        _figure(p, "board_power_w", "Board power", p.board_power, "W"),
        _figure(
            p,
            "tile_facts.schedulable_units",
            f"Schedulable units ({facts.get('schedulable_unit', 'unit')})",
            facts.get("schedulable_units"),
            "units",
        ),
        _figure(
            p, "tile_facts.max_threads_per_unit", "Threads of one unit", facts.get("max_threads_per_unit"), "threads"
        ),
        _figure(p, "tile_facts.max_blocks_per_unit", "Blocks of one unit", facts.get("max_blocks_per_unit"), "blocks"),
        _figure(
            p,
            "tile_facts.exponentials_per_clock_per_unit",
            "Exponentials a clock and unit",
            facts.get("exponentials_per_clock_per_unit"),
            "1",
        ),
    )
    return tuple(row for row in rows if row.value is not None)


def _facts(p: HardwareProfile) -> Iterable[tuple[str, str | None]]:
    yield "Vendor", p.vendor
    yield "Architecture", p.architecture
    yield "Generation", p.generation
    yield "Class", CLASS_LABELS.get(p.device_class or "", p.device_class)
    yield "Form factor", p.form_factor
    yield "Year", None if p.release_year is None else str(p.release_year)
    yield "Status", p.status
    yield "Compute capability", p.compute_capability
    yield "LLVM target", p.gfx
    for key, label in (("gemm_tile_mn_example", "Usual GEMM tile"), ("matrix_unit_dim", "Matrix unit")):
        pair = p.tile_facts.get(key)
        yield label, None if pair is None else " × ".join(str(side) for side in pair)


def _remarks(p: HardwareProfile) -> Iterable[tuple[str, str | None]]:
    yield "Memory", p.memory_note
    yield "Achieved figures", p.achievable_note
    yield "Accumulation", p.accumulate_note
    yield "Registers", p.registers_note
    yield "Tiles", p.tile_facts.get("note")
    for note in p.notes:
        yield "Note", note


_FACT_FIELDS: Final = {
    "form_factor": "form_factor",
    "memory_type": "memory_type",
    "generation": "generation",
    "architecture": "architecture",
    "achievable.note": "achievable_note",
    "registers_note": "registers_note",
    "accumulate_note": "accumulate_note",
    "memory_note": "memory_note",
    "release_year": "release_year",
}


def _covered(source: FigureSource, p: HardwareProfile, figures: Mapping[str, float]) -> tuple[str, ...]:
    """What a source still states: names that stand for a figure or a text that the profile has."""
    texts = {name for name, attr in _FACT_FIELDS.items() if getattr(p, attr) is not None}
    known = {*figures, *texts}
    return tuple(
        name
        for name in source.fields
        if name in known or any(other.startswith(f"{name}.") for other in known) or name not in _FACT_FIELDS
    )


def _hardware_headline(p: HardwareProfile, roofs: Ceilings | None) -> str:
    half = next((name for name in (*HALF_PRECISIONS, "fp32") if name in p.peak), None)
    if roofs is None or half is None:
        lacking = " and ".join(
            word
            for word, known in (("a memory bandwidth", roofs is not None), ("a compute peak", bool(p.peak)))
            if not known
        )
        if not lacking:
            lacking = "a 16-bit or fp32 peak"
        return f"No roofline: nobody states {lacking} for this device."
    ridge = ridge_of(roofs, half)
    reached = share(p.achievable_flop.get(half), p.peak.get(half))
    tail = "" if reached is None else f" {_percent(reached)} of that peak was reached."
    return (
        f"Work below {ridge:,.3g} FLOP per byte is bound by memory: {_rate(p.peak[half])}FLOP/s dense {half} "
        f"over {_rate(roofs.memory)}B/s.{tail}"
    )


def _percent(value: float) -> str:
    return f"{value * 100:.0f}\u202f%"


def _rate(value: float) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= factor * 0.9995:
            return f"{value / factor:,.3g} {prefix}"
    return f"{value:,.3g} "


def _sourcing(total: int, weak: Mapping[str, int]) -> str:
    """How far the figures can be trusted, in words."""
    if not total:
        return "This profile has no figures yet."
    secondary, recalled = weak.get("secondary", 0), weak.get("recalled", 0)
    if not secondary and not recalled:
        return f"Each of the {total} figures rests on its maker's own text, a measurement, a formula or a team's entry."
    parts = []
    if secondary:
        parts.append(f"{secondary} rest on somebody else's table only (secondary)")
    if recalled:
        parts.append(f"{recalled} {'is' if recalled == 1 else 'are'} from memory without any document (recalled)")
    return f"Of the {total} figures {' and '.join(parts)}. They are marked; check them before relying on them."
