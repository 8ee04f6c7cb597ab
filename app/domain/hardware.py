"""One device and its links, as cited or measured. Every figure is SI; a missing one is None, never a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from app.domain.units import Bytes, BytesPerSecond, FlopPerSecond, PerSecond, Seconds, Watts

DEFAULT_RANKS_PER_NODE = 8
"""Devices of one host where a profile states no scale-up domain."""


@dataclass(frozen=True)  # no slots: the prefixes are worked out once
class FigureSource:
    """Where some figures of a profile come from.

    `fields` are dotted names in the catalogue's own shape (`peak.flop_per_s.bf16`, `memory_bytes`); a name also covers
    everything below it. `read` says how the source was read: primary, secondary, derived, measured or recalled
    (`entered` for what a team typed).
    """

    fields: tuple[str, ...]
    read: str
    url: str | None = None
    note: str | None = None

    def covers(self, field_name: str) -> bool:
        return f"{field_name}.".startswith(self._prefixes)

    @cached_property
    def _prefixes(self) -> tuple[str, ...]:
        return tuple(f"{field}." for field in self.fields)


@dataclass(frozen=True, slots=True)
class Link:
    """A fabric as one device sees it. `bandwidth` is one way, per device; a pair may get less (`peer_to_peer`).

    `domain_size` counts the devices that reach each other over it, None where it depends on the platform.
    """

    name: str
    bandwidth: BytesPerSecond | None
    domain_size: int | None = None
    peer_to_peer: BytesPerSecond | None = None
    topology: str | None = None
    note: str | None = None
    in_network_reduction: bool = False
    """Whether the fabric's switches can reduce (NVLink SHARP): an all-reduce then sends its array only once."""


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """A device with peak (vendor, dense) and achievable (measured or published) ceilings.

    `peak` and `achievable_flop` map a precision name to FLOP/s (`fp32`, `fp64` are vector rates, `fp64_tensor`, `tf32`
    and below are matrix-unit rates). `peak_exponentials` is exponentials per second of the special-function units.
    """

    id: str
    name: str
    vendor: str
    memory_capacity: Bytes | None
    memory_bandwidth: BytesPerSecond | None
    peak: Mapping[str, FlopPerSecond]
    architecture: str | None = None
    generation: str | None = None
    device_class: str | None = None
    status: str | None = None
    release_year: int | None = None
    form_factor: str | None = None
    memory_type: str | None = None
    memory_note: str | None = None
    achievable_flop: Mapping[str, FlopPerSecond] = field(default_factory=dict)
    achievable_memory_bandwidth: BytesPerSecond | None = None
    achievable_l2_bandwidth: BytesPerSecond | None = None
    achievable_scale_up_bandwidth: BytesPerSecond | None = None
    achievable_note: str | None = None
    peak_exponentials: PerSecond | None = None
    l2_capacity: Bytes | None = None
    last_level_cache_capacity: Bytes | None = None
    shared_memory_per_unit: Bytes | None = None
    compute_units: int | None = None
    boost_clock: PerSecond | None = None
    scale_up: Link | None = None
    scale_out: Link | None = None
    pcie_bandwidth: BytesPerSecond | None = None
    board_power: Watts | None = None
    launch_overhead: Seconds | None = None
    graph_node_overhead: Seconds | None = None
    compute_unit_kind: str | None = None
    compute_capability: str | None = None
    gfx: str | None = None
    tile_facts: Mapping[str, Any] = field(default_factory=dict)
    registers_note: str | None = None
    accumulate_note: str | None = None
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    sources: tuple[FigureSource, ...] = ()
    shipped: bool = True
    copied_from: str | None = None

    @property
    def ranks_per_node(self) -> int:
        """Devices that reach each other by the fast fabric; where none is stated, the usual eight of one host."""
        size = None if self.scale_up is None else self.scale_up.domain_size
        return size if size is not None and size > 1 else DEFAULT_RANKS_PER_NODE

    @property
    def cache_capacity(self) -> Bytes | None:
        """The largest cache in front of memory: what a working set must exceed to need HBM at all."""
        known = [c for c in (self.l2_capacity, self.last_level_cache_capacity) if c is not None]
        return max(known) if known else None

    @property
    def family(self) -> str:
        """Devices that kernels are tuned for together, by vendor and architecture: what a forecast is fitted for."""
        return device_family(self.vendor, self.architecture, self.generation, self.device_class)

    def sources_of(self, field_name: str) -> tuple[FigureSource, ...]:
        """The sources whose fields cover `field_name` (catalogue spelling)."""
        return tuple(s for s in self.sources if s.covers(field_name))

    def renamed(self, id_: str, name: str) -> HardwareProfile:
        """A team's own copy of this profile; the original keeps its aliases."""
        return replace(self, id=id_, name=name, aliases=(), shipped=False, copied_from=self.id)


def device_family(
    vendor: str, architecture: str | None, generation: str | None = None, device_class: str | None = None
) -> str:
    """Family of a device: data-centre and graphics parts of one architecture differ, since their memories do."""
    maker, arch = vendor.strip().lower(), (architecture or "").lower()
    if maker == "nvidia":
        # consumer boards multiply at half the rate of the professional ones with the same memory
        graphics = "geforce" if device_class == "consumer-gpu" else "graphics"
        if "blackwell" in arch:
            return f"blackwell {graphics}" if "gb20" in arch or device_class == "edge-soc" else "blackwell"
        if "ampere" in arch:
            return "ampere" if (generation or "GA100").upper() == "GA100" else f"ampere {graphics}"
        if arch.startswith("ada"):
            return f"ada {graphics}"
        return next((name for name in ("hopper", "volta", "turing", "rubin") if arch.startswith(name)), maker)
    if maker == "amd":
        return next((name for name in ("cdna", "rdna") if arch.startswith(name)), maker)
    if maker == "intel" and arch == "gaudi":
        return "gaudi"
    return maker
