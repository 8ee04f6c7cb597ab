"""The bound: a cost table on a hardware profile.

`T >= max(F / P, B_hbm / BW, B_net / BW_net, launches t) + T_sync + T_imbalance` (formula F-1.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np

from app.domain.collectives import default_alpha
from app.domain.cost import TIERS, Array, CostTable, Tier, over_operations
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.hardware import DEFAULT_RANKS_PER_NODE, HardwareProfile
from app.domain.precision import PRECISIONS
from app.domain.units import Bytes, BytesPerSecond, FlopPerSecond, Grid, PerSecond, Seconds

CeilingChoice: TypeAlias = Literal["peak", "achievable"]
RESOURCES: tuple[str, ...] = ("compute", "hbm", "net", "launch", "sync", "imbalance")
"""The terms of a bound, in the order that every table and chart shows them."""

UNKNOWN_CACHE: Bytes = 32 * 2.0**20
"""Last-level cache taken where a profile states none: larger than on most devices without a figure (judgement)."""

LEAST_LAUNCH: Seconds = 1.6e-6
"""Launch cost taken where a profile states none: the smallest queued-kernel cost in the catalogue (NVIDIA H200)."""


_LINK_FIGURES: Mapping[Tier, str] = {
    "scale_up": "scale_up.bandwidth_bytes_per_s or pcie_bandwidth_bytes_per_s, or ask for one device",
    "scale_out": "scale_out.bandwidth_bytes_per_s, or a layout within one node",
    "host": "pcie_bandwidth_bytes_per_s, or leave nothing on the host",
}
"""What a profile needs for each tier of links."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The roofs a table is held against: rates of one device.

    `flop` maps a peak name to FLOP/s, `links` a tier to bytes/s one way. `names` says for every roof where it comes
    from (`peak`, `achievable`, or `peak, raised to the measured ...`), `assumptions` what stands for a missing figure.
    `l2` is what somebody reached from the last-level cache: a roof to draw, which no bound uses. `family`, `units` and
    `far_start` are no roofs: the device family that a forecast is fitted for, its compute units, and what a message to
    another node takes to start.
    """

    flop: Mapping[str, FlopPerSecond]
    memory: BytesPerSecond
    links: Mapping[Tier, BytesPerSecond]
    exponentials: PerSecond | None
    launch: Seconds
    far_start: Seconds
    cache: Bytes
    in_switch_reduction: bool
    profile: str
    family: str = ""
    units: int | None = None
    l2: BytesPerSecond | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    def flop_rate(self, dtype: str) -> FlopPerSecond:
        """Roof of products of a precision. Raises MissingFigure with the precisions the profile has."""
        key = PRECISIONS[dtype].peak
        rate = self.flop.get(key)
        if rate is None:
            stated = ", ".join(sorted(self.flop))
            hint = f"choose a precision that it has ({stated})" if stated else "it states no dense peak"
            raise MissingFigure(self.profile, f"peak {key} throughput", f"{hint}, or another device")
        return rate

    def notes_for(self, table: CostTable, *, eager: bool) -> list[str]:
        """The assumptions that matter to a table: precisions that it multiplies in, exponentials, links, launches."""
        used = {"fp32" if op.pipe == "vector" else PRECISIONS[op.dtype].peak for op in table.ops if op.pipe != "none"}
        idle = tuple(
            f"{start}{key}:" for key in self.flop if key not in used for start in ("No measured ceiling for ", "")
        )
        linked = table.devices > 1 or any(np.any(sent > 0) for sent in table.net.values())
        return [
            note
            for note in self.assumptions
            if not note.startswith(idle)
            and (eager or "launch overhead" not in note)
            and (linked or "scale-up" not in note)
            and ("scale-out" not in note or np.any(table.net["scale_out"] > 0))
            and (np.any(table["exponentials"] > 0) or "xponentials" not in note)
            and ("fp32" in used or not note.startswith("No fp32 rate"))
        ]

    def link_rate(self, tier: Tier) -> BytesPerSecond:
        rate = self.links.get(tier)
        if rate is None:
            raise MissingFigure(
                self.profile, f"{tier.replace('_', '-')} link bandwidth", f"give it {_LINK_FIGURES[tier]}"
            )
        return rate


def ceilings(profile: HardwareProfile, choice: CeilingChoice = "peak") -> Ceilings:
    """The roofs of a profile.

    `peak` takes vendor dense peaks. Where somebody measured more than the vendor states (consumer cards that boost
    above their nominal clock), the measurement is the roof: a bound that reality has beaten bounds nothing.
    `achievable` takes measured ceilings where the profile has them and peaks elsewhere, and says which.
    Raises MissingFigure without a memory bandwidth.
    """
    if choice not in ("peak", "achievable"):
        raise InvalidInput(("ceilings",), f"unknown ceilings {choice!r}: use peak or achievable")
    if profile.memory_bandwidth is None:
        raise MissingFigure(profile.name, "memory bandwidth", "a roofline needs one")
    names: dict[str, str] = {}
    notes: list[str] = []

    def roof(name: str, peak: float, measured: float | None) -> float:
        if choice == "achievable":
            names[name] = "achievable" if measured is not None else "peak"
            if measured is None:
                notes.append(f"No measured ceiling for {name}: the vendor peak is used.")
            return peak if measured is None else measured
        if measured is not None and measured > peak:
            names[name] = "peak, raised to the measured ceiling"
            notes.append(f"{name}: somebody measured more than the vendor peak, so the measurement is the roof.")
            return measured
        names[name] = "peak"
        return peak

    flop = {key: roof(key, rate, profile.achievable_flop.get(key)) for key, rate in profile.peak.items()}
    memory = roof("memory bandwidth", profile.memory_bandwidth, profile.achievable_memory_bandwidth)
    links: dict[Tier, float] = {}
    if profile.scale_up is not None and profile.scale_up.bandwidth is not None:
        links["scale_up"] = roof(
            "scale-up bandwidth", profile.scale_up.bandwidth, profile.achievable_scale_up_bandwidth
        )
    elif profile.pcie_bandwidth is not None:
        links["scale_up"] = profile.pcie_bandwidth
        names["scale-up bandwidth"] = "PCIe"
        notes.append("No scale-up fabric: devices of one host exchange over PCIe.")
    if profile.scale_out is not None and profile.scale_out.bandwidth is not None:
        links["scale_out"] = profile.scale_out.bandwidth
    elif profile.pcie_bandwidth is not None and profile.ranks_per_node < DEFAULT_RANKS_PER_NODE:
        # bridges join pairs of cards, of which a host has more
        links["scale_out"] = profile.pcie_bandwidth
        names["scale-out bandwidth"] = "PCIe"
        notes.append(
            f"No scale-out link: devices beyond the {profile.ranks_per_node} of a fabric are taken as in one host,"
            " over PCIe."
        )
    if profile.pcie_bandwidth is not None:
        links["host"] = profile.pcie_bandwidth
    if profile.launch_overhead is None:
        notes.append(f"No launch overhead in the profile: {LEAST_LAUNCH * 1e6:g} us a kernel is assumed in eager mode.")
    domain = None if profile.scale_up is None else profile.scale_up.domain_size
    if domain is None or domain <= 1:
        notes.append(f"No scale-up domain in the profile: {profile.ranks_per_node} devices of one host are assumed.")
    if profile.peak_exponentials is None:
        notes.append("No rate of exponentials in the profile: they hold no attention or activation back.")
    else:
        notes.append(
            "Exponentials run on the special-function unit; a kernel that emulates some of them could be faster."
        )
    if "fp32" not in profile.peak:
        notes.append("No fp32 rate in the profile: work outside the products takes no time to compute.")
    if profile.cache_capacity is None:
        notes.append(f"No cache size in the profile: {UNKNOWN_CACHE / 2**20:g} MiB is assumed.")
    return Ceilings(
        flop=flop,
        memory=memory,
        links=links,
        exponentials=profile.peak_exponentials,
        far_start=default_alpha(
            "scale_up" if "scale-out bandwidth" in names else "scale_out",
            "" if profile.scale_out is None else profile.scale_out.name,
        ),
        launch=LEAST_LAUNCH if profile.launch_overhead is None else profile.launch_overhead,
        cache=UNKNOWN_CACHE if profile.cache_capacity is None else profile.cache_capacity,
        in_switch_reduction=profile.scale_up is not None and profile.scale_up.in_network_reduction,
        profile=profile.name,
        family=profile.family,
        units=profile.compute_units,
        l2=profile.achievable_l2_bandwidth,
        names=names,
        assumptions=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class RowTimes:
    """What one execution of each row takes: seconds of each unit and link, and the bytes behind them."""

    tensor: Array
    vector: Array
    exponent: Array
    compute: Array
    hbm_bytes: Array
    hbm: Array
    net_bytes: Array
    net: Array
    longest: Array

    def part(self, rows: slice) -> RowTimes:
        return RowTimes(*[getattr(self, name)[rows] for name in RowTimes.__slots__])

    def no_faster(self, seconds: Array) -> RowTimes:
        """The rows where each takes so long at least."""
        return replace(self, longest=np.maximum(self.longest, seconds))


@dataclass(frozen=True)  # no slots: the rows of a large sweep are worked out when somebody asks for them
class Bound:
    """Least time of a step, and what it is made of. Arrays have shape `(*sweep)`, `op_*` have `(operations, *sweep)`.

    `overlapped` is the floor: every resource works all the time. `serial` adds each operation's own maximum, as when no
    operation overlaps another, with its own wait for the pipeline (`serial_waiting`). `terms` are the summed seconds of
    each resource; `compute` is the busiest of the tensor, vector and special-function units (`units`).
    Per-operation values are those of one execution.
    """

    table: CostTable
    ceilings: Ceilings
    overlapped: Array
    serial: Array
    serial_waiting: Array
    terms: Mapping[str, Array]
    units: Mapping[str, Array]
    known_rows: RowTimes | None = None

    @cached_property
    def rows(self) -> RowTimes:
        """What one execution of each row takes."""
        if self.known_rows is not None:
            return self.known_rows
        return _row_times(self.table, self.ceilings, self.table.hbm_bytes(self.ceilings.cache))

    @property
    def op_hbm_bytes(self) -> Array:
        return self.rows.hbm_bytes

    @property
    def op_net_bytes(self) -> Array:
        return self.rows.net_bytes

    @property
    def op_compute(self) -> Array:
        return self.rows.compute

    @property
    def op_hbm(self) -> Array:
        return self.rows.hbm

    @property
    def op_net(self) -> Array:
        return self.rows.net

    @property
    def op_time(self) -> Array:
        return self.rows.longest

    @property
    def binding(self) -> str:
        """The resource with the largest term (for a sweep, of its first point)."""
        return self.ranked_terms()[0][0]

    def ranked_terms(self) -> list[tuple[str, float]]:
        """Terms from the largest to the smallest; equal ones in the fixed order of resources."""
        return sorted(((name, float(np.ravel(self.terms[name])[0])) for name in RESOURCES), key=lambda item: -item[1])

    def op_binding(self) -> list[str]:
        """For each operation, the resource that its time is made of."""
        stacked = np.stack([self.op_compute, self.op_hbm, self.op_net])
        first = stacked.reshape(3, stacked.shape[1], -1)[:, :, 0]
        names = ("compute", "hbm", "net")
        return [names[int(i)] if first[int(i), j] > 0 else "launch" for j, i in enumerate(np.argmax(first, axis=0))]

    def total(self, name: str) -> float:
        """Total of a cost-table column for a single question."""
        return float(self.table.total(name))

    @property
    def hbm_bytes(self) -> float:
        return float(over_operations(self.op_hbm_bytes * self.table["count"]))

    @property
    def net_bytes(self) -> float:
        return float(over_operations(self.op_net_bytes * self.table["count"]))

    @property
    def intensity(self) -> float:
        """FLOP executed per HBM byte; 0 when nothing is computed."""
        bytes_ = self.hbm_bytes
        return self.total("executed") / bytes_ if bytes_ else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all devices together over the overlapped floor."""
        return float(np.asarray(self.table.tokens) / self.overlapped)


def lower_bound(
    table: CostTable,
    roofs: Ceilings,
    *,
    launch_mode: str = "graph",
    sync: Seconds = 0.0,
    imbalance: Seconds = 0.0,
) -> Bound:
    """Evaluate a cost table on a device's roofs.

    Graph replay launches for free; eager mode can go no faster than one kernel every `roofs.launch` seconds, however
    much the host runs ahead. Raises MissingFigure when a row needs a roof that the profile lacks.
    """
    bounds = [
        _summed(part, roofs, _row_times(part, roofs, part.hbm_bytes(roofs.cache)), launch_mode, sync, imbalance)
        for part in table.blocks()
    ]
    if len(bounds) == 1:
        return bounds[0]
    return Bound(
        table=table,
        ceilings=roofs,
        overlapped=np.concatenate([bound.overlapped for bound in bounds]),
        serial=np.concatenate([bound.serial for bound in bounds]),
        serial_waiting=np.concatenate([bound.serial_waiting for bound in bounds]),
        terms={name: np.concatenate([bound.terms[name] for bound in bounds]) for name in RESOURCES},
        units={name: np.concatenate([bound.units[name] for bound in bounds]) for name in bounds[0].units},
    )


def lower_bounds(tables: Sequence[CostTable], roofs: Ceilings, launch_modes: Sequence[str]) -> list[Bound]:
    """The same of several single questions, with the rows of all of them worked out in one go.

    Raises MissingFigure without saying whose row it was.
    """
    if len(tables) == 1:
        return [lower_bound(tables[0], roofs, launch_mode=launch_modes[0])]
    every = _joined(tables)
    ends = list(accumulate(len(table.ops) for table in tables))
    parts = [slice(end - len(table.ops), end) for table, end in zip(tables, ends, strict=True)]
    streamed = every.streamed_bytes()
    for table, part in zip(tables, parts, strict=True):
        if table.stays_in(roofs.cache, streamed[part]):
            streamed[part] = 0.0
    rows = _row_times(every, roofs, streamed + every.spilled_bytes(roofs.cache))
    return [
        _summed(table, roofs, rows.part(part), mode)
        for table, part, mode in zip(tables, parts, launch_modes, strict=True)
    ]


_READ = ("count", "executed", "exponentials", "weights", "kv_read", "kv_write", "state", "act_read", "act_write")
"""Columns that the time of a row depends on."""


def _joined(tables: Sequence[CostTable]) -> CostTable:
    """One table with the rows of all, and only what the time of a row depends on."""

    def join(columns: Sequence[Mapping[Any, Array]], names: Sequence[Any]) -> dict[Any, Array]:
        return {name: np.concatenate([column[name] for column in columns]) for name in names}

    return CostTable(
        ops=tuple(op for table in tables for op in table.ops),
        columns=join([table.columns for table in tables], _READ),
        net=join([table.net for table in tables], TIERS),
        net_in_switch=join([table.net_in_switch for table in tables], TIERS),
        tokens=0.0,
        devices=0.0,
    )


def _row_times(table: CostTable, roofs: Ceilings, hbm_bytes: Array) -> RowTimes:
    units_used = [(op.dtype, op.pipe) for op in table.ops]
    rates = {used: _seconds_per_flop(roofs, *used) if used[0] else 0.0 for used in set(units_used)}
    on_tensor = np.array([pipe == "tensor" for _, pipe in units_used], dtype=np.float64)
    seconds_per_flop = np.array([rates[used] for used in units_used], dtype=np.float64)
    tensor = table["executed"] * _column(seconds_per_flop * on_tensor, table)
    vector = table["executed"] * _column(seconds_per_flop * (1.0 - on_tensor), table)
    exponent = table["exponentials"] / roofs.exponentials if roofs.exponentials else table["exponentials"] * 0.0
    compute = np.maximum(tensor + vector, exponent)
    hbm = hbm_bytes / roofs.memory
    wire = table.net_in_switch if roofs.in_switch_reduction else table.net
    net = np.zeros_like(hbm)
    for tier in TIERS:
        if (wire[tier] * table["count"]).any():
            # a device drives all its links at once, so the slowest one decides
            net = np.maximum(net, wire[tier] / roofs.link_rate(tier))
    return RowTimes(
        tensor=tensor,
        vector=vector,
        exponent=exponent,
        compute=compute,
        hbm_bytes=hbm_bytes,
        hbm=hbm,
        net_bytes=wire["scale_up"] + wire["scale_out"] + wire["host"],
        net=net,
        longest=np.maximum(np.maximum(compute, hbm), net),
    )


def _summed(
    table: CostTable,
    roofs: Ceilings,
    rows: RowTimes,
    launch_mode: str,
    sync: Seconds = 0.0,
    imbalance: Seconds = 0.0,
) -> Bound:
    count = table["count"]
    units = {
        "tensor": over_operations(rows.tensor * count),
        "vector": over_operations(rows.vector * count),
        "special function": over_operations(rows.exponent * count),
    }
    launch = table.total("launches") * (roofs.launch if launch_mode == "eager" else 0.0)
    zero = np.zeros(rows.hbm.shape[1:])
    worked = rows.longest * count
    terms: dict[str, Array] = {
        "compute": np.maximum(np.maximum(units["tensor"], units["vector"]), units["special function"]),
        "hbm": over_operations(rows.hbm * count),
        "net": over_operations(rows.net * count),
        "launch": np.asarray(launch),
        "sync": zero + sync,
        "imbalance": imbalance + _waiting_for_the_busiest(table, roofs, rows),
    }
    busiest = np.maximum(np.maximum(terms["compute"], terms["hbm"]), np.maximum(terms["net"], terms["launch"]))
    serial_waiting = terms["sync"] + terms["imbalance"]
    if table.bubble:
        # a stage waits for its neighbours as long as they work: in proportion to what it runs for micro-batches itself
        runs = _column(table.pipelined, table) * count
        shares = [rows.compute * runs, rows.hbm * runs, rows.net * runs]
        serial_waiting = serial_waiting + table.bubble * over_operations(rows.longest * runs)
        terms["sync"] = terms["sync"] + table.bubble * np.maximum.reduce([over_operations(share) for share in shares])
    waiting = terms["sync"] + terms["imbalance"]
    return Bound(
        table=table,
        ceilings=roofs,
        overlapped=busiest + waiting,
        serial=np.maximum(over_operations(worked), terms["launch"]) + serial_waiting,
        serial_waiting=serial_waiting,
        terms=terms,
        units=units,
        known_rows=rows,
    )


def _waiting_for_the_busiest(table: CostTable, roofs: Ceilings, rows: RowTimes) -> Array:
    """What the busiest rank takes beyond the mean one (F-9.7). Its load grows all but the weights that it reads."""
    skew = table["skew"]
    if not skew.any():
        return over_operations(skew * 0.0)
    spilled = table.spilled_bytes(roofs.cache) / roofs.memory
    busiest = np.maximum(np.maximum(rows.compute, rows.net) * (1.0 + skew), rows.hbm + skew * spilled)
    return over_operations((np.maximum(busiest, rows.longest) - rows.longest) * table["count"])


def repeated_bound(cold: Bound, roofs: Ceilings) -> Seconds:
    """Least time of a single kernel that runs again and again on the same operands, as benchmarks do: up to a cache's
    worth of them is still there from the last run. `cold` is its bound with nothing in cache."""
    others = max(float(cold.terms[name]) for name in ("compute", "net", "launch"))
    return max(float(cold.table.repeated_bytes(roofs.cache)) / roofs.memory, others)


def _seconds_per_flop(roofs: Ceilings, dtype: str, pipe: str) -> float:
    if pipe == "vector":
        # without a vector rate the pointwise work is free: the bound stays a bound
        rate = roofs.flop.get("fp32")
        return 0.0 if rate is None else 1.0 / rate
    return 1.0 / roofs.flop_rate(dtype)


def _column(values: Array, table: CostTable) -> Array:
    """A per-operation constant, shaped to multiply the columns of a sweep."""
    return values.reshape((-1,) + (1,) * (table["count"].ndim - 1))


def ridge(roofs: Ceilings, dtype: str) -> Grid:
    """Arithmetic intensity at which memory and compute roofs meet, FLOP/byte (F-1.2)."""
    return roofs.flop_rate(dtype) / roofs.memory
