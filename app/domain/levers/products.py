"""Levers on matrix products: schedules that fill the device, and products computed together."""

from __future__ import annotations

import math
from collections.abc import Callable

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.levers.attention import REACH, effort_lever
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    first_of,
    needs_gated_mlp,
    needs_multi_head_attention,
    needs_nvidia,
    only_in,
)
from app.domain.levers.edits import each, ending, named, of_kind, one, with_traffic
from app.domain.units import Grid

TILE = 128
"""Rows and columns of the output tile that one thread block computes (F-11.3)."""


def waves_lost(rows: float, columns: float, units: int) -> float:
    """Time over that of full waves, for an output of `rows` x `columns` in tiles (F-11.3)."""
    tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE)
    return math.ceil(tiles / units) * units / tiles if tiles else 1.0


def _uneven_waves(_: Scenario, params: Params) -> Edit:
    units = int(params["units"])

    def rows(op: Op, ctx: StepContext) -> Op:
        tokens, output = one(ctx.tokens), one(op.act_write)
        if op.stage == "moe" or not output or not tokens:
            return op
        lost = waves_lost(tokens, output / (ctx.activation * tokens), units)
        if ctx.decoding:
            lost = max(lost / REACH, 1.0)  # a product that waits for memory needs fewer blocks to be fed
        return op if lost == 1.0 else op.having(effort=op.effort * lost)

    return Edit("stream-k", each(of_kind("gemm"), rows))


def _apart(id_: str, matches: Callable[[Op], bool], more: float) -> Edit:
    """The input of a joint product is read by `more` further kernels, and so many more gradients of it are added."""

    def passes(op: Op, _: StepContext) -> tuple[Grid, Grid, Grid]:
        if op.name.endswith("input gradient"):
            return more * op.act_write, more * op.act_write, more
        return (0.0, 0.0, more) if op.direction == "backward" else (more * op.act_read, 0.0, more)

    return Edit(id_, with_traffic(lambda op: op.kind == "gemm" and matches(op), passes))


PRODUCT_LEVERS: tuple[Lever, ...] = (
    effort_lever(
        "gemm-autotune",
        "Tiles tuned for the shape",
        "Without it products take so many times as long; bytes and FLOP stay (expected time only).",
        of_kind("gemm"),
        1.2,
        only_in("train", "prefill"),
    ),
    Lever(
        "stream-k",
        "Products split along the inner dimension",
        "kernel",
        "Without it a product waits for its last wave: ceil(tiles / units) units / tiles (F-11.3, expected time only).",
        lambda _: None,
        lack=_uneven_waves,
        params=(Param("units", 132, 1, 4096, "compute units of the device", whole=True),),
        excludes=("persistent-gemm",),
    ),
    effort_lever(
        "persistent-gemm",
        "Thread blocks that stay for several tiles",
        "Without it the ends of tiles do not overlap: products take so many times as long (expected time only).",
        of_kind("gemm"),
        1.05,
        needs_nvidia(90),
        excludes=("stream-k",),
    ),
    effort_lever(
        "warp-spec",
        "Warps for loading and warps for multiplying",
        "Without it products and attention take so many times as long (expected time only).",
        of_kind("gemm", "attention"),
        1.16,
        first_of(only_in("train", "prefill"), needs_nvidia(90)),
    ),
    Lever(
        "fused-qkv",
        "Query, key and value in one product",
        "kernel",
        "Without it the input is read by two more kernels, and three gradients of it are added (F-4.1).",
        needs_multi_head_attention,
        lack=lambda _s, _p: _apart("fused-qkv", named("qkv projection"), 2.0),
        memory_lever="dematerialize",
    ),
    Lever(
        "fused-gate-up",
        "Gate and up projection in one product",
        "kernel",
        "Without it the input is read by one more kernel, and two gradients of it are added (F-4.1).",
        needs_gated_mlp,
        lack=lambda _s, _p: _apart("fused-gate-up", ending("gate and up"), 1.0),
        memory_lever="dematerialize",
    ),
)
"""Matrix products, in the order of the technique library."""
