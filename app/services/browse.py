"""What the catalogue's pages show: lists that filter and sort, and whole entries with the source of every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from app.catalog.codec import PEAK_PRECISIONS, hardware_figures
from app.domain.errors import MissingFigure, UnsupportedArchitecture
from app.domain.hardware import FigureSource, HardwareProfile
from app.domain.lower_bound import Ceilings, ceilings
from app.domain.memory import kv_bytes_per_token
from app.domain.model import (
    DECODER_KINDS,
    Attention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    Mixer,
    Mlp,
    ModelSpec,
    MoeMlp,
    OtherMixer,
)
from app.domain.parameters import (
    ParameterCount,
    attention_parameters,
    group_kv_elements,
    kv_elements_per_token,
    mlp_parameters,
)
from app.domain.precision import PRECISIONS
from app.services.catalogue import (
    HardwareEntry,
    ModelEntry,
    all_hardware,
    all_models,
    hardware_matches,
    model_matches,
    model_sizes,
)
from app.services.context import Context
from app.storage import runs as stored_runs
from app.storage.errors import InvalidQuery
from app.storage.records import Page, RunFilter, RunSummary

STRENGTH: Final = ("measured", "primary", "derived", "entered", "secondary", "recalled")
"""How a source was read, the strongest first."""

WEAK: Final = frozenset({"secondary", "recalled"})

Sources: TypeAlias = tuple[FigureSource, ...]


def ranked_sources(profile: HardwareProfile, field_name: str) -> Sources:
    """The sources of a figure, the strongest first: a figure is as good as its best source."""
    return tuple(sorted(profile.sources_of(field_name), key=lambda source: STRENGTH.index(source.read)))


# ---- hardware: list -------------------------------------------------------------------------------------------------

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
    "name": lambda line: line.entry.name.casefold(),
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
        lines=tuple(_sorted(found, query.sort, HARDWARE_SORTS, own=lambda line: not line.entry.profile.shipped)),
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


# ---- hardware: one device -------------------------------------------------------------------------------------------


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

    @property
    def weakness(self) -> str:
        """`secondary` or `recalled` where nothing better is cited, else empty."""
        return self.sources[0].read if self.sources and self.sources[0].read in WEAK else ""


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
    runs = _runs(ctx, RunFilter(hardware=p.id), limit=5)
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
            note="" if reached is None else f"{reached:.0%} of peak",
        ),
        _figure(p, "l2_bytes", "L2 cache", p.l2_capacity, "B"),
        _figure(p, "last_level_cache_bytes", "Last-level cache", p.last_level_cache_capacity, "B"),
        _figure(
            p,
            "shared_memory_per_unit_bytes",
            f"Shared memory of one {p.compute_unit_kind or 'unit'}",
            p.shared_memory_per_unit,
            "B",
        ),
    )
    optional = ("l2_bytes", "last_level_cache_bytes", "shared_memory_per_unit_bytes")
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
                note="" if reached is None else f"{reached:.0%} of one way",
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
    tail = "" if reached is None else f" Of that peak {reached:.0%} was reached."
    return (
        f"Work below {ridge:,.3g} FLOP per byte is bound by memory: {_rate(p.peak[half])}FLOP/s dense {half} "
        f"over {_rate(roofs.memory)}B/s.{tail}"
    )


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


# ---- models: list ---------------------------------------------------------------------------------------------------

KIND_LABELS: Final[Mapping[str, str]] = {
    "decoder": "Dense decoder",
    "moe": "Mixture of experts",
    "vlm": "Vision-language",
    "hybrid": "Hybrid",
    "ssm": "State space",
    "encoder": "Encoder",
    "enc-dec": "Encoder-decoder",
    "dit": "Diffusion transformer",
    "unet": "U-Net",
}


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One model of the list. `refusal` says why the estimator cannot handle it, where it cannot."""

    entry: ModelEntry
    parameters: ParameterCount | None
    attention: str
    kv_bytes: float | None
    refusal: str

    @property
    def layers(self) -> int | None:
        return self.entry.model.num_layers or None

    @property
    def hidden(self) -> int | None:
        return self.entry.model.hidden_size or None


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """Filters and order of the model list, as they stand in an address; empty ones do not filter."""

    q: str = ""
    family: str = ""
    kind: str = ""
    estimable: str = ""
    sort: str = ""

    @property
    def filters_anything(self) -> bool:
        return bool(self.q or self.family or self.kind or self.estimable)


@dataclass(frozen=True, slots=True)
class ModelList:
    """The lines that match, what the filters offer as (value, label), and how many of the lines can be estimated."""

    lines: tuple[ModelLine, ...]
    total: int
    families: tuple[tuple[str, str], ...]
    kinds: tuple[tuple[str, str], ...]
    estimable: int


def _count(value: float | None) -> float | None:
    return None if value is None else float(value)


MODEL_SORTS: Final[Mapping[str, Callable[[ModelLine], float | str | None]]] = {
    "name": lambda line: line.entry.name.casefold(),
    "family": lambda line: (line.entry.model.family or "").casefold() or None,
    "total": lambda line: None if line.parameters is None else float(line.parameters.total),
    "active": lambda line: None if line.parameters is None else float(line.parameters.active),
    "layers": lambda line: _count(line.layers),
    "hidden": lambda line: _count(line.hidden),
    "attention": lambda line: line.attention or None,
    "kv": lambda line: line.kv_bytes,
    "context": lambda line: _count(line.entry.model.max_position),
    "year": lambda line: _count(line.entry.model.release_year),
}


def browse_models(ctx: Context, query: ModelQuery) -> ModelList:
    """The models that match. Raises InvalidQuery for an unknown sort key."""
    everything = all_models(ctx)
    found = [
        model_line(entry)
        for entry in everything
        if model_matches(entry.model, query.q)
        and (not query.family or (entry.model.family or "").casefold() == query.family.casefold())
        and (not query.kind or entry.model.kind == query.kind)
        and (not query.estimable or entry.model.supported == (query.estimable == "yes"))
    ]
    families = Counter(entry.model.family for entry in everything if entry.model.family)
    kinds = Counter(entry.model.kind for entry in everything)
    return ModelList(
        lines=tuple(_sorted(found, query.sort, MODEL_SORTS, own=lambda line: not line.entry.model.shipped)),
        total=len(everything),
        families=tuple((name, f"{name} ({number})") for name, number in sorted(families.items())),
        kinds=tuple((name, f"{KIND_LABELS.get(name, name)} ({number})") for name, number in sorted(kinds.items())),
        estimable=sum(line.entry.model.supported for line in found),
    )


def model_line(entry: ModelEntry) -> ModelLine:
    """One model as the list shows it."""
    sizes = model_sizes(entry.model)
    return ModelLine(
        entry=entry,
        parameters=sizes.parameters,
        attention=attention_words(entry.model),
        kv_bytes=sizes.kv_bytes,
        refusal=refusal_of(entry.model),
    )


def refusal_of(model: ModelSpec) -> str:
    """Why the estimator cannot handle a model, empty where it can."""
    try:
        model.require_supported()
    except UnsupportedArchitecture as error:
        return error.reason
    return ""


def attention_words(model: ModelSpec) -> str:
    """The kinds of token mixing of a model, each once, in the order of its layers."""
    return " + ".join(dict.fromkeys(_mixer_kind(group.mixer) for group in model.layers if group.mixer is not None))


_OTHER_MIXERS: Final = {
    "mamba1": "Mamba",
    "mamba2": "Mamba-2",
    "gated_deltanet": "gated DeltaNet",
    "kda": "Kimi delta attention",
    "lightning": "lightning attention",
    "rwkv5": "RWKV-5",
    "rwkv7": "RWKV-7",
    "v4_shared_kv": "shared-KV attention",
}


def _mixer_kind(mixer: Mixer | None) -> str:
    if isinstance(mixer, LatentAttention):
        return "sparse MLA" if mixer.indexer else "MLA"
    if isinstance(mixer, Attention):
        sort = {"full": "", "bidirectional": "bidirectional ", "cross": "cross-attention "}.get(
            mixer.kind, mixer.kind + " "
        )
        return f"{'sparse ' if mixer.indexer else ''}{sort}{mixer.variant}"
    return "" if mixer is None else _OTHER_MIXERS.get(mixer.name, mixer.name)


# ---- models: one model ----------------------------------------------------------------------------------------------

KV_FORMATS: Final = ("bf16", "fp8", "nvfp4", "int4")
KV_CONTEXTS: Final = (8192, 131_072)


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group of equal layers in words, with its parameters and cache. Unknown ones are None."""

    layers: str
    count: int
    mixer: str
    mlp: str
    mixer_parameters: float | None
    mlp_parameters: float | None
    kv_bytes: float | None


@dataclass(frozen=True, slots=True)
class KvLine:
    """The cache in one format: of one token, and of one sequence at several lengths."""

    precision: str
    per_token: float
    per_sequence: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ModelSheet:
    """Everything that a model's page shows."""

    entry: ModelEntry
    headline: str
    refusal: str
    groups: tuple[GroupLine, ...]
    parameters: ParameterCount | None
    parts: tuple[tuple[str, int], ...]
    against: tuple[tuple[str, float, float | None, float | None], ...]
    kv: tuple[KvLine, ...]
    kv_contexts: tuple[int, ...]
    facts: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]
    documents: tuple[FigureSource, ...]
    published: FigureSource | None
    is_published_rounded: bool
    runs: tuple[RunSummary, ...]
    run_count: int


def model_sheet(ctx: Context, entry: ModelEntry) -> ModelSheet:
    """The page of one model."""
    model = entry.model
    line = model_line(entry)
    count = line.parameters
    runs = _runs(ctx, RunFilter(model=model.id), limit=5)
    contexts = _contexts(model)
    return ModelSheet(
        entry=entry,
        headline=_model_headline(line),
        refusal=line.refusal,
        groups=tuple(_group_line(model, group) for group in model.layers),
        parameters=count,
        parts=_parts(count),
        against=_against(model, count),
        kv=_kv_lines(model, line.kv_bytes, contexts),
        kv_contexts=contexts,
        facts=tuple((term, text) for term, text in _model_facts(model) if text),
        remarks=tuple(str(note) for note in model.record.get("notes", ())),
        documents=tuple(
            FigureSource(("layers",), _text(model.record.get("read")) or "primary", str(url))
            for url in model.record.get("sources", ())
        ),
        published=_published(model),
        is_published_rounded=model.record.get("published_digits") == "rounded",
        runs=runs.items,
        run_count=runs.total,
    )


def _published(model: ModelSpec) -> FigureSource | None:
    """Where the published totals were read."""
    source = model.record.get("published_source")
    if not isinstance(source, Mapping):
        return None
    return FigureSource(
        ("published_total_params",),
        _text(source.get("read")) or "primary",
        _text(source.get("url")),
        _text(source.get("note")),
    )


def _model_headline(line: ModelLine) -> str:
    model, count = line.entry.model, line.parameters
    kind = KIND_LABELS.get(model.kind, model.kind)
    if count is None:
        first = f"{kind} whose parameters are not counted"
    elif count.active != count.total:
        first = f"{kind} with {_billions(count.total)} parameters, of which a token uses {_billions(count.active)}"
    else:
        first = f"{kind} with {_billions(count.total)} parameters"
    if line.kv_bytes:
        return f"{first}; each token adds {line.kv_bytes / 1024:,.4g} KiB of bf16 KV cache."
    return f"{first}."


def _billions(value: float) -> str:
    for factor, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= factor * 0.9995:
            return f"{value / factor:,.3g} {word}"
    return f"{value:,.0f}"


def _group_line(model: ModelSpec, group: LayerGroup) -> GroupLine:
    last = group.first_index + group.count - 1
    indices = f"{group.first_index}" if group.count == 1 else f"{group.first_index} to {last}"
    repeated = sum(1 for other in model.layers if other.first_index == group.first_index) > 1
    mixer = group.mixer
    attention = mixer if isinstance(mixer, (Attention, LatentAttention)) else None
    try:
        kv: float | None = group.count * group_kv_elements(model, group) * PRECISIONS["bf16"].element_bytes
    except UnsupportedArchitecture:
        kv = None
    return GroupLine(
        layers="interleaved" if repeated else indices,
        count=group.count,
        mixer=mixer_words(mixer),
        mlp=mlp_words(group.mlp),
        mixer_parameters=None
        if attention is None
        else float(group.count * attention_parameters(attention, model.hidden_size)),
        mlp_parameters=None
        if group.mlp is None or (isinstance(mixer, OtherMixer) and model.hidden_size == 0)
        else float(group.count * mlp_parameters(group.mlp, model.hidden_size)),
        kv_bytes=kv,
    )


def mixer_words(mixer: Mixer | None) -> str:
    """One layer's token mixing with its dimensions."""
    if mixer is None:
        return "none"
    if isinstance(mixer, OtherMixer):
        heads = mixer.detail.get("heads")
        return _mixer_kind(mixer) + (f", {heads} heads" if heads else "")
    if isinstance(mixer, LatentAttention):
        query = "" if mixer.q_lora_rank is None else f", query latent {mixer.q_lora_rank:,}"
        return (
            f"{_mixer_kind(mixer)}: {mixer.heads} heads, KV latent {mixer.kv_lora_rank} + rotary "
            f"{mixer.qk_rope_head_dim}, head {mixer.qk_nope_head_dim} + {mixer.qk_rope_head_dim}, "
            f"value {mixer.v_head_dim}{query}{_indexer_words(mixer)}"
        )
    value = "" if mixer.v_head_dim == mixer.head_dim else f", value {mixer.v_head_dim}"
    extras = [
        text
        for text, present in (
            (f"window {mixer.window or 0:,}", mixer.window is not None),
            ("biases on q, k, v", mixer.q_bias and mixer.k_bias and mixer.v_bias),
            ("output bias", mixer.o_bias),
            ("q/k norm", mixer.qk_norm is not None),
            ("sinks", mixer.sinks),
            ("values are keys", mixer.v_from_k),
            ("reads another layer's cache", not mixer.own_kv),
        )
        if present
    ]
    tail = f"; {', '.join(extras)}" if extras else ""
    return (
        f"{_mixer_kind(mixer)}: {mixer.heads} query, {mixer.kv_heads} KV heads × {mixer.head_dim}{value}"
        f"{tail}{_indexer_words(mixer)}"
    )


def _indexer_words(mixer: Attention | LatentAttention) -> str:
    return "" if mixer.indexer is None else f"; at most {mixer.indexer.top_keys:,} keys a query"


def mlp_words(mlp: Mlp | None) -> str:
    """One layer's MLP with its dimensions."""
    if mlp is None:
        return "none"
    if isinstance(mlp, DenseMlp):
        return f"{'gated' if mlp.gated else 'plain'} {mlp.intermediate:,}{', biases' if mlp.bias else ''}"
    return _moe_words(mlp)


def _moe_words(mlp: MoeMlp) -> str:
    parts = [f"{mlp.experts} experts × {mlp.expert_intermediate:,}, {mlp.top_k} a token"]
    if mlp.shared_experts:
        parts.append(f"{mlp.shared_experts} shared ({mlp.shared_intermediate:,})")
    if mlp.dense_intermediate:
        parts.append(f"dense {mlp.dense_intermediate:,} beside them")
    if mlp.latent_size is not None:
        parts.append(f"latent {mlp.latent_size:,}")
    return ", ".join(parts)


def _parts(count: ParameterCount | None) -> tuple[tuple[str, int], ...]:
    if count is None or not count.counted:
        return ()
    rows = (
        ("Token embedding", count.embedding),
        ("Output head", count.lm_head),
        ("Attention", count.attention),
        ("MLP and experts", count.mlp),
        ("Norms", count.norms),
        ("Vision or audio tower", count.tower),
        ("Positions and head bias", count.other - count.tower),
    )
    return tuple((label, value) for label, value in rows if value)


def _against(
    model: ModelSpec, count: ParameterCount | None
) -> tuple[tuple[str, float, float | None, float | None], ...]:
    """(what, counted, published, relative difference) of the totals."""
    if count is None:
        return ()
    rows = []
    for label, ours, published in (
        ("Total", count.total, model.published_total_params),
        ("Active for one token", count.active, model.published_active_params),
    ):
        difference = None if not published or not count.counted else (ours - published) / published
        rows.append((label, float(ours), published, difference))
    return tuple(rows)


def _contexts(model: ModelSpec) -> tuple[int, ...]:
    if not model.supported:
        return ()
    longest = model.max_position
    kept = [length for length in KV_CONTEXTS if longest is None or length < longest]
    return tuple([*kept, longest] if longest else kept)


def _kv_lines(model: ModelSpec, in_bf16: float | None, contexts: Sequence[int]) -> tuple[KvLine, ...]:
    if not in_bf16:
        return ()
    elements = kv_elements_per_token(model)
    lines = []
    for name in KV_FORMATS:
        size = PRECISIONS[name].element_bytes
        lines.append(
            KvLine(
                name,
                elements * size,
                tuple(float(kv_bytes_per_token(model, size, context_len=n)) * n for n in contexts),
            )
        )
    return tuple(lines)


def _model_facts(model: ModelSpec) -> Iterable[tuple[str, str | None]]:
    record = model.record
    yield "Family", model.family
    yield "Kind", KIND_LABELS.get(model.kind, model.kind)
    yield "Year", None if model.release_year is None else str(model.release_year)
    yield "Repository", model.hf_id
    yield "Hidden size", f"{model.hidden_size:,}" if model.hidden_size else None
    yield "Layers", f"{model.num_layers:,}" if model.num_layers else None
    yield "Vocabulary", f"{model.vocab_size:,}" if model.vocab_size else None
    yield "Embeddings", None if not model.vocab_size else "tied with the head" if model.tied_embeddings else "untied"
    yield "Context", None if model.max_position is None else f"{model.max_position:,} tokens"
    yield "Positions", _text(record.get("position_embedding"))
    yield "Norm", model.norm
    yield "Activation", model.activation
    yield "Block", "attention and MLP in parallel" if model.parallel_block else None
    yield "Layer pattern", _text(record.get("layer_pattern"))
    moe = record.get("moe")
    if isinstance(moe, Mapping):
        yield "Router", _text(moe.get("router_type"))
    mtp = record.get("mtp")
    if isinstance(mtp, Mapping) and isinstance(mtp.get("layers"), int):
        yield "Multi-token prediction", f"{mtp['layers']} extra layer(s), not in the totals"
    if model.undescribed and model.kind in DECODER_KINDS:
        yield "Not described", model.undescribed


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# ---- search ---------------------------------------------------------------------------------------------------------

SEARCH_LIMIT: Final = 8


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The first few matches of each kind, and how many there are."""

    hardware: tuple[HardwareLine, ...]
    hardware_total: int
    models: tuple[ModelLine, ...]
    models_total: int
    runs: tuple[RunSummary, ...]
    runs_total: int

    @property
    def total(self) -> int:
        return self.hardware_total + self.models_total + self.runs_total


def search(ctx: Context, text: str) -> SearchResult:
    """Hardware, models and runs in whose names every word occurs; exact names first."""
    wanted = text.strip()
    if not wanted:
        return SearchResult((), 0, (), 0, (), 0)
    hardware = [entry for entry in all_hardware(ctx) if hardware_matches(entry.profile, wanted)]
    models = [entry for entry in all_models(ctx) if model_matches(entry.model, wanted)]
    hardware.sort(key=lambda entry: _closeness(wanted, entry.name, entry.profile.aliases))
    models.sort(key=lambda entry: _closeness(wanted, entry.name, entry.model.aliases))
    runs = _runs(ctx, RunFilter(text=wanted), limit=SEARCH_LIMIT)
    return SearchResult(
        tuple(hardware_line(entry) for entry in hardware[:SEARCH_LIMIT]),
        len(hardware),
        tuple(model_line(entry) for entry in models[:SEARCH_LIMIT]),
        len(models),
        runs.items,
        runs.total,
    )


def _closeness(wanted: str, name: str, aliases: Iterable[str]) -> int:
    """0 for the name itself, 1 for an alias, 2 for a name that starts so, 3 for the rest; sorting is stable."""
    low = wanted.casefold()
    if name.casefold() == low:
        return 0
    if any(alias.casefold() == low for alias in aliases):
        return 1
    return 2 if name.casefold().startswith(low) else 3


# ---- shared ---------------------------------------------------------------------------------------------------------

Line = TypeVar("Line")


def _sorted(
    lines: Sequence[Line],
    sort: str,
    keys: Mapping[str, Callable[[Line], float | str | None]],
    *,
    own: Callable[[Line], bool],
) -> list[Line]:
    """Lines in the order that `sort` asks for; what a line does not state goes last either way."""
    if not sort:
        return sorted(lines, key=lambda line: not own(line))
    name = sort.removeprefix("-")
    key = keys.get(name)
    if key is None:
        raise InvalidQuery("sort", f"unknown key {name[:40]!r}: use one of {', '.join(keys)}, with - for the other way")
    stated = [line for line in lines if key(line) is not None]
    absent = [line for line in lines if key(line) is None]
    return sorted(stated, key=lambda line: _comparable(key(line)), reverse=sort.startswith("-")) + absent


def _comparable(value: float | str | None) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (value or 0.0, "")


def _runs(ctx: Context, filters: RunFilter, *, limit: int) -> Page[RunSummary]:
    with ctx.storage.read() as session:
        return stored_runs.list_runs(session=session, filters=filters, limit=limit)


Order: TypeAlias = Literal["", "ascending", "descending"]


def order_of(sort: str, key: str) -> Order:
    """How a list is sorted by a column, as `aria-sort` says it."""
    if sort.removeprefix("-") != key or not sort:
        return ""
    return "descending" if sort.startswith("-") else "ascending"


def next_sort(sort: str, key: str, *, numeric: bool) -> str:
    """The order that a click on a column's heading asks for: largest first for numbers, then the other way."""
    now = order_of(sort, key)
    first = f"-{key}" if numeric else key
    if not now:
        return first
    return key if now == "descending" else f"-{key}"
