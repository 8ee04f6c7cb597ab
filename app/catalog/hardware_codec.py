"""A hardware profile to and from JSON: one shape for the shipped files, the API and a team's stored profiles.

Every figure is SI and says so in its name. A figure that nobody states is left out, never zero and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.catalog.fields import Fields, Loc, Range, as_loc, slug
from app.domain.errors import InvalidInput
from app.domain.hardware import FigureSource, HardwareProfile, Link

PEAK_PRECISIONS = ("fp64", "fp64_tensor", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")
"""Keys of flop_per_s. fp64 and fp32 are vector rates, the others matrix-unit rates that accumulate in 32 bits."""

READS = ("primary", "secondary", "derived", "measured", "recalled", "entered")
"""How a source was read; `recalled` figures come from general knowledge and want confirming."""

CAPACITY = Range(1e6, 1e15, "bytes", "80 GB is 80e9")
CACHE = Range(1024, 1e12, "bytes", "50 MiB is 52428800")
MEMORY_RATE = Range(1e8, 1e17, "bytes per second", "3.35 TB/s is 3.35e12")
LINK_RATE = Range(1e7, 1e16, "bytes per second", "450 GB/s one way is 450e9; 400 Gbit/s is 50e9")
COMPUTE_RATE = Range(1e9, 1e19, "FLOP per second", "989.4 TFLOP/s is 989.4e12")
EXP_RATE = Range(1e8, 1e17, "exponentials per second", "3.86 tera-exponentials per second is 3.86e12")
CLOCK = Range(1e6, 1e11, "hertz", "1830 MHz is 1.83e9")
POWER = Range(0.1, 1e6, "watts", "give the board power of one device")
OVERHEAD = Range(1e-9, 0.1, "seconds", "2 microseconds is 2e-6")

# fmt: off
_TOP = (
    "id", "name", "vendor", "architecture", "generation", "device_class", "status", "release_year",
    "form_factor", "memory_type", "memory_bytes", "memory_note", "peak", "achievable", "scale_up",
    "scale_out", "pcie_bandwidth_bytes_per_s", "l2_bytes", "last_level_cache_bytes",
    "shared_memory_per_unit_bytes", "compute_units", "compute_unit_kind", "boost_clock_hz", "board_power_w",
    "launch_overhead_s", "graph_node_overhead_s", "compute_capability", "gfx", "registers_note",
    "accumulate_note", "tile_facts", "aliases", "notes", "sources", "copied_from",
)
# fmt: on
_READ_ONLY = (
    "shipped",
    "revision",
    "created_at",
    "updated_at",
)  # the API adds it to answers; an edited answer may be sent back
_PEAK = ("flop_per_s", "memory_bandwidth_bytes_per_s", "exponentials_per_s")
_ACHIEVABLE = (
    "flop_per_s",
    "memory_bandwidth_bytes_per_s",
    "l2_bandwidth_bytes_per_s",
    "scale_up_bus_bandwidth_bytes_per_s",
    "note",
)
_SCALE_UP = (
    "name",
    "bandwidth_bytes_per_s",
    "peer_to_peer_bytes_per_s",
    "domain_size",
    "topology",
    "in_network_reduction",
    "note",
)
_SCALE_OUT = ("name", "bandwidth_bytes_per_s", "note")
_SOURCE = ("fields", "read", "url", "note")
_TILE_NUMBERS = (
    "schedulable_units",
    "max_threads_per_unit",
    "max_blocks_per_unit",
    "exponentials_per_clock_per_unit",
)
_TILE_PAIRS = ("gemm_tile_mn_example", "matrix_unit_dim")
_TILE = (*_TILE_NUMBERS, *_TILE_PAIRS, "schedulable_unit", "note")

_HINTS = {
    "memory_gb": "give memory_bytes; 80 GB is 80e9",
    "memory_capacity_bytes": "give memory_bytes",
    "hbm_bytes": "give memory_bytes",
    "memory_bandwidth_gbps": "give peak.memory_bandwidth_bytes_per_s; 3350 GB/s is 3.35e12",
    "memory_bandwidth_bytes_per_s": "it belongs inside peak: peak.memory_bandwidth_bytes_per_s",
    "peak_tflops": "give peak.flop_per_s by precision; 989.4 TFLOP/s is 989.4e12",
    "flop_per_s": "it belongs inside peak (vendor) or achievable (measured)",
    "sm_count": 'give compute_units, and compute_unit_kind "SM"',
    "cu_count": 'give compute_units, and compute_unit_kind "CU"',
    "tdp_w": "give board_power_w",
    "boost_clock_mhz": "give boost_clock_hz; 1830 MHz is 1.83e9",
    "l2_mb": "give l2_bytes; 50 MiB is 52428800",
    "gbit_per_s_per_device": "give bandwidth_bytes_per_s; 400 Gbit/s is 50e9",
    "hbm_gbps": "give memory_bandwidth_bytes_per_s; 3350 GB/s is 3.35e12",
}

# fmt: off
_TEXT_FIELDS = (
    "architecture", "generation", "device_class", "status", "form_factor", "memory_type", "memory_note",
    "compute_unit_kind", "compute_capability", "gfx", "registers_note", "accumulate_note",
)
# fmt: on
_NUMBER_FIELDS = {
    "memory_bytes": ("memory_capacity", CAPACITY),
    "pcie_bandwidth_bytes_per_s": ("pcie_bandwidth", LINK_RATE),
    "l2_bytes": ("l2_capacity", CACHE),
    "last_level_cache_bytes": ("last_level_cache_capacity", CACHE),
    "shared_memory_per_unit_bytes": ("shared_memory_per_unit", CACHE),
    "boost_clock_hz": ("boost_clock", CLOCK),
    "board_power_w": ("board_power", POWER),
    "launch_overhead_s": ("launch_overhead", OVERHEAD),
    "graph_node_overhead_s": ("graph_node_overhead", OVERHEAD),
}


def hardware_from_json(
    data: object, loc: str | Sequence[str | int] = ("hardware",), *, shipped: bool = False
) -> HardwareProfile:
    """A profile from its JSON object.

    An inline or team profile needs `name`, `peak.memory_bandwidth_bytes_per_s` and one entry of `peak.flop_per_s`;
    figures that no source covers are recorded as entered. A shipped one (`shipped=True`) may lack peaks, must have an
    id, and gets no source that it does not state. Raises InvalidInput with the path of the field.
    """
    fields = Fields(data, as_loc(loc), [*_TOP, *_READ_ONLY], _HINTS)
    fields.require("name", "give the device a name")
    name = fields.line("name", 200) or ""
    if shipped:
        fields.require("id", "a shipped profile is found by its id")
    fields.flag("shipped")
    peak, memory_bandwidth, exponentials = _peak(fields, required=not shipped)
    profile = HardwareProfile(
        id=fields.identifier("id", slug(name)),
        name=name,
        vendor=fields.text("vendor", 200) or "unspecified",
        memory_bandwidth=memory_bandwidth,
        peak=peak,
        peak_exponentials=exponentials,
        release_year=fields.integer("release_year", 1990, 2100),
        compute_units=fields.integer("compute_units", 1, 10_000_000),
        scale_up=_scale_up(fields),
        scale_out=_scale_out(fields),
        tile_facts=_tile_facts(fields),
        aliases=fields.texts("aliases"),
        notes=fields.texts("notes"),
        sources=_sources(fields),
        shipped=shipped,
        copied_from=fields.identifier("copied_from", "") or None,
        **_achievable(fields, peak, memory_bandwidth),
        **{key: fields.text(key) for key in _TEXT_FIELDS},  # type: ignore[arg-type]
        **{attr: fields.number(key, allowed) for key, (attr, allowed) in _NUMBER_FIELDS.items()},  # type: ignore[arg-type]
    )
    if shipped:
        return profile
    uncovered = tuple(f for f in hardware_figures(profile) if not profile.sources_of(f))
    if uncovered:
        profile = replace(profile, sources=(*profile.sources, FigureSource(uncovered, "entered")))
    return profile


def hardware_to_json(profile: HardwareProfile) -> dict[str, Any]:
    """The JSON object of a profile; `hardware_from_json` gives back an equal profile."""
    scale_up = profile.scale_up and {
        "name": profile.scale_up.name,
        "bandwidth_bytes_per_s": profile.scale_up.bandwidth,
        "peer_to_peer_bytes_per_s": profile.scale_up.peer_to_peer,
        "domain_size": profile.scale_up.domain_size,
        "topology": profile.scale_up.topology,
        "in_network_reduction": profile.scale_up.in_network_reduction or None,
        "note": profile.scale_up.note,
    }
    scale_out = profile.scale_out and {
        "name": profile.scale_out.name,
        "bandwidth_bytes_per_s": profile.scale_out.bandwidth,
        "note": profile.scale_out.note,
    }
    whole: dict[str, Any] = {
        **{key: getattr(profile, key) for key in ("id", "name", "vendor", "release_year", *_TEXT_FIELDS)},
        **{key: getattr(profile, attr) for key, (attr, _) in _NUMBER_FIELDS.items()},
        "peak": {
            "flop_per_s": dict(profile.peak),
            "memory_bandwidth_bytes_per_s": profile.memory_bandwidth,
            "exponentials_per_s": profile.peak_exponentials,
        },
        "achievable": {
            "flop_per_s": dict(profile.achievable_flop),
            "memory_bandwidth_bytes_per_s": profile.achievable_memory_bandwidth,
            "l2_bandwidth_bytes_per_s": profile.achievable_l2_bandwidth,
            "scale_up_bus_bandwidth_bytes_per_s": profile.achievable_scale_up_bandwidth,
            "note": profile.achievable_note,
        },
        "scale_up": scale_up,
        "scale_out": scale_out,
        "compute_units": profile.compute_units,
        "tile_facts": {k: list(v) if isinstance(v, tuple) else v for k, v in profile.tile_facts.items()},
        "copied_from": profile.copied_from,
    }
    stated = {key: _stated(whole[key]) for key in _TOP if key in whole}
    return {
        **{key: value for key, value in stated.items() if value is not None and value != {}},
        "aliases": list(profile.aliases),
        "notes": list(profile.notes),
        "sources": [
            _stated({"fields": list(s.fields), "read": s.read, "url": s.url, "note": s.note}) for s in profile.sources
        ],
    }


def hardware_figures(profile: HardwareProfile) -> dict[str, float]:
    """Every number of a profile by its dotted name in the JSON shape, as sources name it."""
    return dict(_figures(hardware_to_json(profile)))


def mark_entered(
    original: HardwareProfile, edited: HardwareProfile, measured: FigureSource | None = None
) -> HardwareProfile:
    """The edited profile with each figure that differs from the original's marked as entered.

    `measured` is the source of the figures that it names, whether they differ or not; those are not entered.
    A changed figure keeps no source of the original: names that covered it are replaced by the figures beside it.
    """
    before, after = hardware_figures(original), hardware_figures(edited)
    own = () if measured is None else measured.fields
    changed = tuple(name for name, value in after.items() if before.get(name) != value or name in own)
    if not changed:
        return edited
    kept = []
    for source in edited.sources:
        fields: list[str] = []
        for name in source.fields:
            if any(c == name or c.startswith(name + ".") for c in changed):
                fields += [f for f in after if f.startswith(name + ".") and f not in changed]
            else:
                fields.append(name)
        if fields and source.read != "entered":
            kept.append(replace(source, fields=tuple(fields)))
    entered = ({f for s in edited.sources if s.read == "entered" for f in s.fields} | set(changed)) - set(own)
    if measured is not None:
        kept.append(measured)
    if entered:
        kept.append(FigureSource(tuple(sorted(entered)), "entered"))
    return replace(edited, sources=tuple(kept))


def _peak(fields: Fields, *, required: bool) -> tuple[dict[str, float], float | None, float | None]:
    if required:
        fields.require("peak", "give peak.flop_per_s and peak.memory_bandwidth_bytes_per_s")
    part = Fields(fields.object("peak") or {}, fields.at("peak"), _PEAK, _HINTS)
    flop = _rates(part)
    if required:
        part.require("memory_bandwidth_bytes_per_s", "give the memory bandwidth; 3.35 TB/s is 3.35e12")
        if not flop:
            raise part.fail("flop_per_s", 'is missing: give at least one dense peak, as {"bf16": 989.4e12}')
    return flop, part.number("memory_bandwidth_bytes_per_s", MEMORY_RATE), part.number("exponentials_per_s", EXP_RATE)


def _achievable(fields: Fields, peak: Mapping[str, float], memory_bandwidth: float | None) -> dict[str, Any]:
    part = Fields(fields.object("achievable") or {}, fields.at("achievable"), _ACHIEVABLE, _HINTS)
    flop = _rates(part)
    for precision, value in flop.items():
        # Boosting boards exceed their rated peak, by up to 1.85 in the shipped data; a unit slip is 1000.
        if precision in peak and value > 3 * peak[precision]:
            raise InvalidInput(
                (*part.at("flop_per_s"), precision),
                f"{value:g} is {value / peak[precision]:.1f} times the peak {peak[precision]:g}: check the unit",
            )
    memory = part.number("memory_bandwidth_bytes_per_s", MEMORY_RATE)
    if memory is not None and memory_bandwidth is not None and memory > 1.1 * memory_bandwidth:
        raise part.fail(
            "memory_bandwidth_bytes_per_s", f"{memory:g} exceeds the peak {memory_bandwidth:g}: check the unit"
        )
    return {
        "achievable_flop": flop,
        "achievable_memory_bandwidth": memory,
        "achievable_l2_bandwidth": part.number("l2_bandwidth_bytes_per_s", MEMORY_RATE),
        "achievable_scale_up_bandwidth": part.number("scale_up_bus_bandwidth_bytes_per_s", LINK_RATE),
        "achievable_note": part.text("note"),
    }


def _rates(part: Fields) -> dict[str, float]:
    rates = Fields(part.object("flop_per_s") or {}, part.at("flop_per_s"), PEAK_PRECISIONS)
    found = {key: rates.number(key, COMPUTE_RATE) for key in PEAK_PRECISIONS}
    return {key: value for key, value in found.items() if value is not None}


def _scale_up(fields: Fields) -> Link | None:
    if not fields.has("scale_up"):
        return None
    part = Fields(fields.data["scale_up"], fields.at("scale_up"), _SCALE_UP, _HINTS)
    bandwidth = part.number("bandwidth_bytes_per_s", LINK_RATE)
    pair = part.number("peer_to_peer_bytes_per_s", LINK_RATE)
    if pair is not None and bandwidth is not None and pair > bandwidth:
        raise part.fail(
            "peer_to_peer_bytes_per_s",
            f"a pair cannot get {pair:g} when the device has {bandwidth:g} one way: is one of them bidirectional?",
        )
    return Link(
        name=part.line("name", 200) or "scale-up link",
        bandwidth=bandwidth,
        peer_to_peer=pair,
        domain_size=part.integer("domain_size", 1, 1_000_000),
        topology=part.text("topology"),
        note=part.text("note"),
        in_network_reduction=part.flag("in_network_reduction") or False,
    )


def _scale_out(fields: Fields) -> Link | None:
    if not fields.has("scale_out"):
        return None
    part = Fields(fields.data["scale_out"], fields.at("scale_out"), _SCALE_OUT, _HINTS)
    return Link(
        name=part.line("name", 200) or "network",
        bandwidth=part.number("bandwidth_bytes_per_s", LINK_RATE),
        note=part.text("note"),
    )


def _tile_facts(fields: Fields) -> dict[str, Any]:
    part = Fields(fields.object("tile_facts") or {}, fields.at("tile_facts"), _TILE)
    facts: dict[str, Any] = {}
    for key in part.data:
        if not part.has(key):
            continue
        if key in _TILE_NUMBERS:
            facts[key] = part.integer(key, 1, 10_000_000)
        elif key in _TILE_PAIRS:
            pair = part.items(key, 2)
            if len(pair) != 2 or not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in pair):
                raise part.fail(key, "expected two whole numbers, rows and columns")
            facts[key] = tuple(pair)
        else:
            facts[key] = part.text(key)
    return facts


def _source_link(part: Fields) -> str | None:
    """A web address, or that of a run here: a measurement of a team's own is a source like any other."""
    text = part.text("url", 2000)
    return text if text is not None and re.fullmatch(r"/runs/[\w-]{1,80}", text) else part.link("url")


def _sources(fields: Fields) -> tuple[FigureSource, ...]:
    found = []
    for i, entry in enumerate(fields.items("sources", 200)):
        part = Fields(entry, (*fields.at("sources"), i), _SOURCE)
        names = part.texts("fields")
        if not names:
            raise part.fail("fields", "is missing: name the figures this source states, as peak.flop_per_s.bf16")
        for j, name in enumerate(names):
            if not known_field(name):
                raise InvalidInput((*part.at("fields"), j), f"{name[:100]!r} is not a field of a hardware profile")
        part.require("read", f"use one of {', '.join(READS)}")
        found.append(FigureSource(names, part.choice("read", READS) or "", _source_link(part), part.text("note")))
    return tuple(found)


_NESTED: Mapping[str, Sequence[str]] = {
    "peak": _PEAK,
    "achievable": _ACHIEVABLE,
    "scale_up": _SCALE_UP,
    "scale_out": _SCALE_OUT,
    "tile_facts": _TILE,
    "peak.flop_per_s": PEAK_PRECISIONS,
    "achievable.flop_per_s": PEAK_PRECISIONS,
}


def known_field(name: str) -> bool:
    """Whether a dotted name is a field of the shape."""
    head, _, last = name.rpartition(".")
    return last in _TOP if not head else last in _NESTED.get(head, ())


def _figures(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _figures(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _stated(value: Any) -> Any:
    if isinstance(value, Mapping):
        inner = {key: _stated(v) for key, v in value.items()}
        return {key: v for key, v in inner.items() if v is not None and v != {}}
    return value


__all__ = [
    "PEAK_PRECISIONS",
    "READS",
    "Loc",
    "hardware_figures",
    "hardware_from_json",
    "hardware_to_json",
    "known_field",
    "mark_entered",
]
