"""Building blocks of edits: which rows, and what happens to them. Rows are never changed in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.cost import CostTable, Op, Tier
from app.domain.levers.base import RowEdit, TableEdit
from app.domain.memory import MemoryEdit
from app.domain.model import Attention, LatentAttention, LayerGroup, Mixer, ModelSpec
from app.domain.units import Grid
from app.domain.workload import Workload

Matches = Callable[[Op], bool]
Net = Mapping[Tier, Grid]

# ---- which rows -----------------------------------------------------------------------------------------------------


def named(*names: str) -> Matches:
    """Rows of these forward rows, in every direction, those of prediction modules too."""
    return lambda op: op.in_layer in names


def ending(*endings: str) -> Matches:
    return lambda op: op.base.endswith(endings)


def of_kind(*kinds: str) -> Matches:
    return lambda op: op.kind in kinds


def is_attention(op: Op) -> bool:
    """Scores and values of an attention layer; an indexer's scores are none."""
    return op.kind == "attention" and op.stage != "indexer"


def is_expert_exchange(op: Op) -> bool:
    return op.in_layer in ("dispatch", "combine")


def is_expert_product(op: Op) -> bool:
    return op.in_layer in ("expert gate and up", "expert up", "expert down")


def is_data_parallel(op: Op) -> bool:
    return op.stage == "data parallel"


def is_tensor_exchange(op: Op) -> bool:
    """Collectives that wait between the halves of a layer, because tensor parallelism split its products."""
    if op.kind != "collective" or op.stage in ("data parallel", "pipeline"):
        return False
    return op.base.endswith(("all-reduce", "moe all-gather", "input all-gather"))


# ---- what happens to them -------------------------------------------------------------------------------------------


def each(matches: Matches, change: Callable[[Op, StepContext], Op]) -> RowEdit:
    """`change` for every row that matches."""

    def edit(rows: list[Op], ctx: StepContext) -> list[Op]:
        return [change(op, ctx) if matches(op) else op for op in rows]

    return edit


def with_traffic(matches: Matches, more: Callable[[Op, StepContext], tuple[Grid, Grid, Grid]]) -> RowEdit:
    """Bytes read, bytes written and kernels that rows need beside what they are, as rows of their own.

    A product's or attention's own bytes say what shape it has, which the forecast goes by: they stay as they are.
    """

    def edit(rows: list[Op], ctx: StepContext) -> list[Op]:
        out: list[Op] = []
        for op in rows:
            out.append(op)
            if matches(op):
                read_, written_, kernels = more(op, ctx)
                out.append(
                    Op(
                        f"unfused {op.name}",
                        op.stage,
                        "copy",
                        count=op.count,
                        direction=op.direction,
                        act_read=read_,
                        act_write=written_,
                        launches=kernels,
                        formula="what a kernel that fuses it keeps on chip",
                    )
                )
        return out

    return edit


def in_order(*edits: RowEdit) -> RowEdit:
    """One edit after the other."""

    def edit(rows: list[Op], ctx: StepContext) -> list[Op]:
        for one in edits:
            rows = one(rows, ctx)
        return rows

    return edit


def more_traffic(
    matches: Matches, reads: float, writes: float, launches: float, *, of: Callable[[Op], Grid]
) -> RowEdit:
    """Rows read and write so many more tensors of `of(row)` bytes, in so many more kernels."""
    return each(
        matches,
        lambda op, _: op.having(
            act_read=op.act_read + reads * of(op),
            act_write=op.act_write + writes * of(op),
            launches=op.launches + launches,
        ),
    )


def slower(matches: Matches, factor: float) -> RowEdit:
    """Rows take so many times as long as a well-tuned kernel: expected time only."""
    return each(matches, lambda op, _: op.having(effort=op.effort * factor))


def hidden(matches: Matches, share: float) -> RowEdit:
    """A share of the exchange runs behind other work: expected time only (F-1.5)."""
    return each(matches, lambda op, _: op.having(hidden=max(op.hidden, share)))


def padded(matches: Matches, factor: float) -> RowEdit:
    """Rows work on `factor` times as many tokens, of which only the asked ones are useful. Weights are read once."""
    return each(
        matches,
        lambda op, _: op.having(
            executed=executed(op) * factor,
            exponentials=op.exponentials * factor,
            kv_write=op.kv_write * factor,
            act_read=op.act_read * factor,
            act_write=op.act_write * factor,
            taken=None if op.taken is None else op.taken * factor,
            made=None if op.made is None else op.made * factor,
            net=net_times(op.net, factor),
            net_in_switch=None if op.net_in_switch is None else net_times(op.net_in_switch, factor),
        ),
    )


def executed(op: Op) -> Grid:
    return op.flop if op.executed is None else op.executed


def net_times(net: Net, factor: Grid, tier: Tier | None = None) -> Net:
    """Wire bytes times `factor`, of one tier or of all."""
    return {name: size * factor if tier in (None, name) else size for name, size in net.items()}


def exchanged(op: Op, change: Callable[[Net], Net]) -> Op:
    """A row with other wire bytes, by the ring algorithm and where the switch reduces."""
    return op.having(net=change(op.net), net_in_switch=None if op.net_in_switch is None else change(op.net_in_switch))


def computed(op: Op) -> Grid:
    """Bytes that a row computes, as its shape has them."""
    return op.act_write if op.made is None else op.made


def seen(op: Op) -> Grid:
    """Bytes that a row of attention takes with its cache, as its shape has them."""
    return (op.act_read if op.taken is None else op.taken) + op.kv_read


def reading(op: Op, cached: Grid) -> Op:
    """The row with so many bytes of its cache read. Attention sees as many keys as before."""
    return op.having(kv_read=cached, taken=seen(op) - cached) if op.kind == "attention" else op.having(kv_read=cached)


def written(op: Op) -> Grid:
    return op.act_write


def read(op: Op) -> Grid:
    return op.act_read


def one(value: Grid) -> float:
    """The largest point of a grid, for figures that rows hold as one number."""
    return value if isinstance(value, float) else float(np.max(value))


# ---- memory and the table -------------------------------------------------------------------------------------------


def resident(**factors: float) -> MemoryEdit:
    """Objects in memory times a factor each."""

    def edit(objects: Mapping[str, float], _: Workload) -> Mapping[str, float]:
        return {name: size * factors.get(name, 1.0) for name, size in objects.items()}

    return edit


def more_resident(name: str, size: Callable[[Workload], float]) -> MemoryEdit:
    """`size` bytes more of an object (fewer where negative, never less than none)."""

    def edit(objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        return {**objects, name: max(objects[name] + size(workload), 0.0)}

    return edit


def tokens_times(factor: float) -> TableEdit:
    """A step counts for so many times as many tokens."""

    def edit(table: CostTable) -> CostTable:
        return replace(table, tokens=table.tokens * factor)

    return edit


# ---- models ---------------------------------------------------------------------------------------------------------


def with_mixers(model: ModelSpec, change: Callable[[LayerGroup], tuple[LayerGroup, ...]]) -> ModelSpec:
    """The model with each layer group replaced by one or more."""
    groups: list[LayerGroup] = []
    index = 0
    for group in model.layers:
        for new in change(group):
            groups.append(replace(new, first_index=index))
            index += new.count
    return replace(model, layers=tuple(groups))


def with_mixer(model: ModelSpec, change: Callable[[Mixer | None], Mixer | None]) -> ModelSpec:
    return with_mixers(model, lambda group: (replace(group, mixer=change(group.mixer)),))


def plain_attention(model: ModelSpec) -> list[Attention]:
    """Multi-head attention to a sequence's own tokens, by layer group."""
    return [g.mixer for g in model.layers if isinstance(g.mixer, Attention) and g.mixer.kind != "cross"]


def attention_layers(model: ModelSpec) -> list[tuple[int, Attention | LatentAttention]]:
    """Layers of each attention, with how many there are."""
    return [(group.count, mixer) for group, mixer in model.attention_groups()]
