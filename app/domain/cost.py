"""The cost table: what a workload asks of a device, operation by operation, before any device is named.

Every page, estimate and chart is a view of this table. A row is one operation of the modelled device (the one on the
critical path); its columns say what ONE execution costs, and `count` how often a step executes it.
Columns are arrays of shape `(operations, *sweep)`: a single question is a sweep of shape `()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.domain.units import Bytes, Flop, Grid

Array: TypeAlias = NDArray[np.float64]
Pipe: TypeAlias = Literal["tensor", "vector", "none"]
Tier: TypeAlias = Literal["scale_up", "scale_out", "host"]
Direction: TypeAlias = Literal["forward", "backward", "recompute", "optimizer"]
Kind: TypeAlias = Literal["gemm", "attention", "scan", "elementwise", "copy", "gather", "collective", "optimizer"]

TIERS: tuple[Tier, ...] = ("scale_up", "scale_out", "host")
"""Links of a device, from the fastest: to its neighbours, to other nodes, and to the memory of its host."""


@dataclass(frozen=True)  # no slots: `_fill` and `having` write the instance's dictionary
class Op:
    """One row as its block states it. All quantities are per execution and per device.

    flop          useful floating-point operations (a multiply-add is two)
    executed      operations really issued: recomputed scores and forward passes included
    exponentials  evaluations on the special-function unit
    weights       bytes of weights read
    kv_read/kv_write      bytes of the KV cache
    state         bytes of gradients and optimizer state, read and written
    act_read/act_write    bytes of activations; they may stay in cache between two operations
    taken, made   bytes of what a product takes and computes, where its kernel reads and writes something else: they
                  tell its shape
    act_backward  bytes of activations read and written by the row's backward pass, where its kind's rule is not exact
    net           bytes sent one way on each tier, by the ring algorithm
    hops          messages between nodes that follow one another (the bound does not know what each takes to start)
    turns         messages inside a node that follow one another (the bound does not know what each takes to start)
    longest       keys of the query that sees most, where queries see unequally many (0: all see as many)
    effort        expected time over that of a well-tuned kernel, launches apart (the bound does not know it)
    hidden        share of a collective that runs behind independent work (the serial bound does not know it)
    skew          load of the busiest rank over the mean rank's, less one (routing): so much more it computes, moves of
                  activations and sends; weights are read once whatever the load
    net_backward  how many times as much a collective's backward pass sends
    rounds_backward  exchanges of a collective's backward pass, each like the forward one
    gathered      share of a collective that brought inputs, which the backward pass brings again where none are kept
    net_in_switch bytes sent one way where the switch reduces (None: the switch cannot help)
    groups        products with weights of their own that one kernel computes (heads, experts touched)
    """

    name: str
    stage: str
    kind: Kind
    count: Grid = 1.0
    direction: Direction = "forward"
    pipe: Pipe = "none"
    dtype: str = ""
    flop: Grid = 0.0
    executed: Grid | None = None
    exponentials: Grid = 0.0
    weights: Grid = 0.0
    kv_read: Grid = 0.0
    kv_write: Grid = 0.0
    state: Grid = 0.0
    act_read: Grid = 0.0
    act_write: Grid = 0.0
    taken: Grid | None = None
    made: Grid | None = None
    act_backward: tuple[Grid, Grid] | None = None
    net: Mapping[Tier, Grid] = field(default_factory=dict)
    net_in_switch: Mapping[Tier, Grid] | None = None
    net_backward: float = 1.0
    rounds_backward: float = 1.0
    gathered: float = 0.0
    hops: Grid = 0.0
    turns: Grid = 0.0
    longest: Grid = 0.0
    launches: Grid = 1.0
    effort: float = 1.0
    hidden: float = 0.0
    skew: Grid = 0.0
    groups: Grid = 1.0
    formula: str = ""

    @property
    def base(self) -> str:
        """The name of the forward row that this one belongs to."""
        return _base(self.name)

    @property
    def in_layer(self) -> str:
        """The forward row's name as a layer of the model has it; a prediction module is such a layer beside it."""
        return _in_layer(self.name)

    def having(self, **changes: Any) -> Op:
        """The row with other figures: `dataclasses.replace` at a tenth of its cost, as levers change most rows."""
        if not _FIELDS.issuperset(changes):
            raise _unknown(changes)
        new = object.__new__(Op)
        object.__setattr__(new, "__dict__", {**self.__dict__, **changes})
        return new


@lru_cache(maxsize=2048)  # every lever asks every row
def _base(name: str) -> str:
    return name.split(",", 1)[0]


@lru_cache(maxsize=2048)
def _in_layer(name: str) -> str:
    return _base(name).removeprefix("prediction ")


def _fill(self: Op, name: str, stage: str, kind: Kind, **cells: Any) -> None:
    """Keep only what a row says; the rest is read from the class.

    The `__init__` of a frozen dataclass sets every field by a call of its own: a step has hundreds of rows, and to
    make them that way takes a third of the time of its bound.
    """
    if not _FIELDS.issuperset(cells):
        raise _unknown(cells)
    cells["name"], cells["stage"], cells["kind"] = name, stage, kind
    object.__setattr__(self, "__dict__", cells)


def _unknown(cells: Mapping[str, Any]) -> TypeError:
    return TypeError(f"a row has no {', '.join(sorted(cells.keys() - _FIELDS))}")


_FIELDS = frozenset(Op.__dataclass_fields__)
Op.__init__ = _fill  # type: ignore[method-assign, assignment]
Op.net = MappingProxyType({})


POINTS_AT_ONCE = 4096
"""Points of a sweep whose columns are held together: they stay in a processor's cache."""

COLUMNS: tuple[str, ...] = (
    "count",
    "flop",
    "executed",
    "exponentials",
    "weights",
    "kv_read",
    "kv_write",
    "state",
    "act_read",
    "act_write",
    "taken",
    "made",
    "hops",
    "launches",
    "effort",
    "hidden",
    "skew",
    "groups",
)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Operations as rows, costs as columns of shape `(operations, *sweep)`.

    `tokens` is what one step of all devices together processes (train, prefill) or emits (decode); `devices` how many
    devices run it. `bubble` is the time a device waits for the pipeline over the time it works on micro-batches.
    `assumptions` lists every default and simplification that shaped the rows.
    """

    ops: tuple[Op, ...]
    columns: Mapping[str, Array]
    net: Mapping[Tier, Array]
    net_in_switch: Mapping[Tier, Array]
    tokens: Grid
    devices: Grid
    bubble: float = 0.0
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        ops: Sequence[Op],
        *,
        tokens: Grid,
        devices: Grid = 1.0,
        bubble: float = 0.0,
        assumptions: tuple[str, ...] = (),
    ) -> CostTable:
        """Stack rows into columns. Rows whose count is zero everywhere are dropped."""
        return stacked([Step(ops, tokens, devices, bubble, assumptions)])[0]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def blocks(self) -> list[CostTable]:
        """The table of a large sweep in parts along its first axis, each with few points; or this one alone."""
        if not (isinstance(self.columns, _Swept) and isinstance(self.net, _Swept)):
            return [self]
        assert isinstance(self.net_in_switch, _Swept)
        shape = self.columns.shape
        size = max(POINTS_AT_ONCE * shape[0] // math.prod(shape), 1)
        parts = [slice(start, start + size) for start in range(0, shape[0], size)]
        return [
            replace(
                self,
                columns=self.columns.part(part),
                net=self.net.part(part),
                net_in_switch=self.net_in_switch.part(part),
                tokens=_some(self.tokens, part, shape),
                devices=_some(self.devices, part, shape),
            )
            for part in parts
        ]

    def total(self, name: str) -> Array:
        """Sum of a column over the step: each row's value times its count."""
        return over_operations(self.columns[name] * self.columns["count"])

    @property
    def pipelined(self) -> Array:
        """1.0 for rows that run for each micro-batch and wait for the pipeline, 0.0 for those of the whole step."""
        return np.array([op.direction != "optimizer" and op.stage != "data parallel" for op in self.ops], dtype=float)

    def streamed_bytes(self) -> Array:
        """Bytes that cross HBM whatever the cache: weights, KV cache, gradients and optimizer state."""
        c = self.columns
        return np.asarray(c["weights"] + c["kv_read"] + c["kv_write"] + c["state"])

    def hbm_bytes(self, cache: Bytes = 0.0) -> Array:
        """Fewest HBM bytes of one execution of each row, on a device whose last-level cache holds `cache` bytes.

        Activations are handed from one operation to the next. Up to `cache` bytes of what an operation reads can still
        lie in cache from its producer, and up to `cache` bytes of what it writes can wait there for its consumer, so
        only the rest must cross HBM. Weights, KV cache and optimizer state do not profit: they are too large to
        survive from one step to the next, unless all of a step's together fit into the cache: then none is counted.
        """
        streamed = self.streamed_bytes()
        stays = self.stays_in(cache, streamed)
        if stays.any():
            streamed = np.where(stays, 0.0, streamed)
        return np.asarray(streamed + self.spilled_bytes(cache))

    def spilled_bytes(self, cache: Bytes = 0.0) -> Array:
        """Activations of one execution of each row that a cache cannot hold between producer and consumer."""
        read = np.maximum(self.columns["act_read"] - cache, 0.0)
        return np.asarray(read + np.maximum(self.columns["act_write"] - cache, 0.0))

    def stays_in(self, cache: Bytes, streamed: Array) -> NDArray[np.bool_]:
        """Whether all that a step streams fits into the cache together, and so stays there from step to step."""
        return np.asarray(cache > 0 and over_operations(streamed * self.columns["count"]) <= cache)

    def repeated_bytes(self, cache: Bytes) -> Array:
        """Fewest HBM bytes of the whole table when it runs again and again on the same operands."""
        return np.maximum(over_operations(self.hbm_bytes() * self.columns["count"]) - cache, 0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """Rows that are not stacked yet, with what belongs to no row: the arguments of `CostTable.of`."""

    ops: Sequence[Op]
    tokens: Grid
    devices: Grid = 1.0
    bubble: float = 0.0
    assumptions: tuple[str, ...] = ()


def stacked(steps: Sequence[Step]) -> list[CostTable]:
    """Tables of several steps. A path of levers shares most rows between its steps: each row is looked at once."""
    if all(np.ndim(step.tokens) == np.ndim(step.devices) == 0 for step in steps):
        tables = _of_one_point(steps)
        if tables is not None:
            return tables
    return [_of_a_sweep(step) for step in steps]


_CELLS = attrgetter(*COLUMNS)
_NOTHING = "nothing"
"""The column of zeros that stands for every tier without traffic."""


def _cells(rows: Sequence[Op]) -> dict[str, Sequence[Grid]]:
    """What rows say, by column; the traffic of each tier that any row uses, and one column of nothing."""
    cells = list(zip(*map(_CELLS, rows), strict=True)) if rows else [()] * len(COLUMNS)
    columns: dict[str, Sequence[Grid]] = dict(zip(COLUMNS, cells, strict=True))
    for name, instead in (("executed", "flop"), ("taken", "act_read"), ("made", "act_write")):
        columns[name] = [
            usual if stated is None else stated for usual, stated in zip(columns[instead], columns[name], strict=True)
        ]
    wires = [op.net for op in rows]
    switched = [op.net if op.net_in_switch is None else op.net_in_switch for op in rows]
    return {**columns, **_by_tier("net", wires), **_by_tier("in switch", switched), _NOTHING: (0.0,) * len(rows)}


def _by_tier(tag: str, wires: list[Mapping[Tier, Grid]]) -> dict[str, Sequence[Grid]]:
    used = {tier for wire in wires if wire for tier in wire}
    return {f"{tag} {tier}": [wire.get(tier, 0.0) if wire else 0.0 for wire in wires] for tier in used}


def _of_one_point(steps: Sequence[Step]) -> list[CostTable] | None:
    """Tables whose cells are one number each, or None where some cell is a sweep: faster than looking at each cell."""
    rows = [[op for op in step.ops if _ever(op.count)] for step in steps]
    every = rows[0] if len(rows) == 1 else list({id(op): op for mine in rows for op in mine}.values())
    columns = _cells(every)
    try:
        flat = np.array(list(chain.from_iterable(columns.values())), dtype=np.float64)
    except ValueError:
        return None
    if flat.ndim != 1:
        return None
    cells = flat.reshape(len(columns), -1)
    if len(steps) == 1:
        return [_table(steps[0], every, dict(zip(columns, cells, strict=True)))]
    place = {id(op): i for i, op in enumerate(every)}
    return [
        _table(step, mine, dict(zip(columns, cells.take([place[id(op)] for op in mine], axis=1), strict=True)))
        for step, mine in zip(steps, rows, strict=True)
    ]


def _ever(count: Grid) -> bool:
    return count > 0 if isinstance(count, (float, int)) else bool(np.any(count > 0))


def _of_a_sweep(step: Step) -> CostTable:
    rows = [op for op in step.ops if _ever(op.count)]
    cells = _cells(rows)
    grids = {np.shape(cell) for column in cells.values() for cell in column if not isinstance(cell, (float, int))}
    shape = np.broadcast_shapes(np.shape(step.tokens), np.shape(step.devices), *grids)
    columns = _Swept(cells, shape)
    if math.prod(shape) <= POINTS_AT_ONCE:
        return _table(step, rows, dict(columns))
    return _table(step, rows, columns)


class _Swept(Mapping[Any, Array]):
    """Columns of a sweep, each stacked when it is asked for: all of a large one together take gigabytes."""

    def __init__(self, cells: Mapping[Any, Sequence[Grid]], shape: tuple[int, ...]) -> None:
        self.cells, self.shape = cells, shape

    def __getitem__(self, name: Any) -> Array:
        return _stack(self.cells[name], self.shape)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def named(self, names: Mapping[Any, str]) -> _Swept:
        """Some of the columns, by other names."""
        return _Swept({name: self.cells[old] for name, old in names.items()}, self.shape)

    def part(self, points: slice) -> dict[Any, Array]:
        """The columns of some points of the first axis."""
        shape = (len(range(self.shape[0])[points]), *self.shape[1:])
        return {
            name: _stack([_some(cell, points, self.shape) for cell in column], shape)
            for name, column in self.cells.items()
        }


def _some(cell: Grid, points: slice, shape: tuple[int, ...]) -> Grid:
    """Some points of the first axis of what spreads over a sweep."""
    varies = np.ndim(cell) == len(shape) and np.shape(cell)[0] > 1
    return np.asarray(cell)[points] if varies else cell


def _table(step: Step, rows: Sequence[Op], columns: Mapping[str, Array]) -> CostTable:
    names = {name: name for name in COLUMNS}
    net = {tier: f"net {tier}" if f"net {tier}" in columns else _NOTHING for tier in TIERS}
    switched = {tier: f"in switch {tier}" if f"in switch {tier}" in columns else _NOTHING for tier in TIERS}
    parts: list[Mapping[Any, Array]] = [
        columns.named(chosen) if isinstance(columns, _Swept) else {name: columns[old] for name, old in chosen.items()}
        for chosen in (names, net, switched)
    ]
    return CostTable(
        ops=tuple(rows),
        columns=parts[0],
        net=parts[1],
        net_in_switch=parts[2],
        tokens=step.tokens,
        devices=step.devices,
        bubble=step.bubble,
        assumptions=step.assumptions,
    )


def _stack(column: Sequence[Grid], shape: tuple[int, ...]) -> Array:
    """One column. A read-only view where every cell is one number: most columns of a sweep do not vary in it."""
    if not any(np.shape(cell) for cell in column if not isinstance(cell, (float, int))):
        flat = np.array(column, dtype=np.float64)
        return flat if shape == () else np.broadcast_to(flat.reshape((-1,) + (1,) * len(shape)), (flat.size, *shape))
    rows: Array = np.empty((len(column), *shape))
    for row, cell in zip(rows, column, strict=True):
        row[...] = cell
    return rows


def over_operations(values: Array) -> Array:
    """Sum over the rows, first to last: the same additions for one question as for each point of a sweep.

    Whoever adds up the rows of an answer in their order gets its totals to the last bit.
    """
    if values.ndim == 1:
        one = 0.0
        for value in values.tolist():
            one += value
        return np.asarray(one)
    total: Array = np.zeros(values.shape[1:])
    for row in values:
        total += row
    return total


def gemm(
    name: str,
    stage: str,
    *,
    m: Grid,
    n: Grid,
    k: Grid,
    dtype: str,
    weight: Bytes,
    activation: Bytes,
    output: Bytes | None = None,
    count: Grid = 1.0,
    groups: Grid = 1.0,
    direction: Direction = "forward",
    formula: str = "2 m n k",
) -> Op:
    """A product of activations (m x k) with weights (k x n), `groups` times with weights of their own.

    `weight`, `activation` and `output` are bytes per element. FLOP by F-3.1, bytes by F-4.1.
    """
    out = activation if output is None else output
    return Op(
        name=name,
        stage=stage,
        kind="gemm",
        count=count,
        direction=direction,
        pipe="tensor",
        dtype=dtype,
        flop=2.0 * m * n * k * groups,
        weights=1.0 * k * n * weight * groups,
        act_read=1.0 * m * k * activation * groups,
        act_write=1.0 * m * n * out * groups,
        groups=groups,
        formula=formula,
    )


def elementwise(
    name: str,
    stage: str,
    *,
    elements: Grid,
    reads: float,
    writes: float,
    activation: Bytes,
    flop_per_element: float,
    count: Grid = 1.0,
    exponentials: Grid = 0.0,
    direction: Direction = "forward",
    launches: float = 1.0,
    formula: str = "",
) -> Op:
    """A pointwise or row-wise operation over `elements`, reading and writing that many tensors of that size (F-4.6)."""
    flop: Flop | Grid = 1.0 * elements * flop_per_element
    return Op(
        name=name,
        stage=stage,
        kind="elementwise",
        count=count,
        direction=direction,
        pipe="vector",
        dtype="fp32",
        flop=flop,
        exponentials=exponentials,
        act_read=elements * reads * activation,
        act_write=elements * writes * activation,
        launches=launches,
        formula=formula or _pointwise(flop_per_element, reads, writes),
    )


@lru_cache
def _pointwise(flop_per_element: float, reads: float, writes: float) -> str:
    return f"{flop_per_element:g} per element; reads {reads:g}, writes {writes:g}"
