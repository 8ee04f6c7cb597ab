"""Backward rows from forward rows: one rule for each kind of operation, so that no block states its gradient twice."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, Tier
from app.domain.overlap import OVERLAP_EFFICIENCY
from app.domain.units import Grid

FLASH_BACKWARD_EXECUTED = 2.5
"""IO-aware attention backward issues five matrix products where the forward pass has two (F-3.3)."""


def backward_of(op: Op, ctx: StepContext) -> list[Op]:
    """What the backward pass does for one forward row.

    A product becomes two: the gradient of its input and the gradient of its weights, which is written once (read and
    written when micro-batches accumulate, F-4.11). Attention counts 2.0 times its forward FLOP as useful and 2.5 times
    as executed (F-3.3); a recurrence too, whose states are computed again. Collectives mirror (F-7.1), and bring inputs
    again that were not kept. Copies run the other way round. The loss already wrote its gradient in the forward pass.
    """
    if op.kind == "gemm":
        # the first micro-batch has nothing to add to, and where gradients are scattered each time none has
        passes = 1.0 if ctx.workload.parallel.zero_stage >= 2 else 2.0 - 1.0 / ctx.micro_batches
        return [
            op.having(
                name=f"{op.name}, input gradient",
                direction="backward",
                kv_read=0.0,
                kv_write=0.0,
                act_read=op.act_write,
                act_write=op.act_read,
            ),
            op.having(
                name=f"{op.name}, weight gradient",
                direction="backward",
                weights=0.0,
                kv_read=0.0,
                kv_write=0.0,
                state=op.weights / ctx.weight * ctx.gradient * passes,
                act_read=op.act_read + op.act_write,
                act_write=0.0,
            ),
        ]
    if op.kind in ("attention", "scan"):
        return [
            op.having(
                name=f"{op.name}, backward",
                direction="backward",
                flop=2.0 * op.flop,
                executed=FLASH_BACKWARD_EXECUTED * (op.flop if op.executed is None else op.executed),
                act_read=op.act_read + 2.0 * op.act_write,
                act_write=op.act_read,
            )
        ]
    if op.kind == "elementwise":
        if op.name in ("cross-entropy", "histogram"):
            return []
        read, written = op.act_backward or (op.act_read + op.act_write, op.act_read)
        return [
            op.having(
                name=f"{op.name}, backward",
                direction="backward",
                flop=2.0 * op.flop,
                act_read=read,
                act_write=written,
            )
        ]
    if op.kind == "copy":
        read, written = op.act_backward or (op.act_write, op.act_read)
        return [
            op.having(
                name=f"{op.name}, backward",
                direction="backward",
                act_read=read,
                act_write=written,
            )
        ]
    if op.kind == "collective":
        rows = [
            op.having(
                name=f"{op.name}, backward",
                direction="backward",
                net=_times(op.net, op.net_backward),
                net_in_switch=None if op.net_in_switch is None else _times(op.net_in_switch, op.net_backward),
                count=op.count * op.rounds_backward,
            )
        ]
        if op.gathered:
            rows.append(_inputs_again(op))
        return rows
    if op.kind == "gather":
        return [
            op.having(
                name=f"{op.name}, backward",
                direction="backward",
                weights=0.0,
                state=op.weights / ctx.weight * ctx.gradient,
                act_read=op.act_write,
                act_write=0.0,
            )
        ]
    raise AssertionError(f"no backward rule for {op.kind}")


def _inputs_again(op: Op) -> Op:
    """Sequence parallelism keeps a rank's own part of what a product read: weight gradients gather it once more, while
    gradients of the input are computed (arXiv 2205.05198, section 4.2.2)."""
    name = op.name.removesuffix("all-reduce")
    return op.having(
        name=f"{name}input all-gather, backward",
        direction="backward",
        net=_times(op.net, op.gathered),
        net_in_switch=None if op.net_in_switch is None else _times(op.net_in_switch, op.gathered),
        hops=op.hops * op.gathered,
        turns=op.turns * op.gathered,
        launches=op.launches * op.gathered,
        hidden=max(op.hidden, OVERLAP_EFFICIENCY["L2"]),
        formula="(t-1)/t tokens hidden bytes",
    )


def _times(net: Mapping[Tier, Grid], factor: float) -> Mapping[Tier, Grid]:
    return net if factor == 1.0 else {tier: size * factor for tier, size in net.items()}


def recomputed(op: Op) -> Op:
    """A forward row run again in the backward pass: executed, but not useful."""
    executed = op.flop if op.executed is None else op.executed
    return op.having(name=f"{op.name}, recomputed", direction="recompute", flop=0.0, executed=executed)
