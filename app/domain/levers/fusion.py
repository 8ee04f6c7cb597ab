"""Levers that keep intermediates out of HBM: the bound takes them for granted, so the baseline shows their absence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.levers.base import Edit, Lever, Params, RowEdit, Scenario
from app.domain.levers.conditions import first_of, needs_attention, needs_gated_mlp, never, only_in
from app.domain.model import Attention
from app.domain.units import Grid
from app.domain.workload import Workload


def more_traffic(
    matches: Callable[[Op], bool], reads: float, writes: float, launches: float, *, of: Callable[[Op], Grid]
) -> RowEdit:
    """Rows that match read and write so many more tensors of size `of(row)` bytes, in so many more kernels."""

    def edit(rows: list[Op], _: StepContext) -> list[Op]:
        return [
            replace(
                op,
                act_read=op.act_read + reads * of(op),
                act_write=op.act_write + writes * of(op),
                launches=op.launches + launches,
            )
            if matches(op)
            else op
            for op in rows
        ]

    return edit


def named(*names: str) -> Callable[[Op], bool]:
    return lambda op: op.base in names


def ending(*endings: str) -> Callable[[Op], bool]:
    return lambda op: op.base.endswith(endings)


def _written(op: Op) -> Grid:
    return op.act_write


def _unfused_attention(scenario: Scenario, _: Params) -> Edit:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        # scores and probabilities, heads x pairs each: written and read once more (F-4.3), by three kernels
        return [
            replace(
                op,
                act_read=op.act_read + 2.0 * op.exponentials * ctx.activation,
                act_write=op.act_write + 2.0 * op.exponentials * ctx.activation,
                launches=op.launches + 2.0,
            )
            if op.kind == "attention"
            else op
            for op in ops
        ]

    def memory(objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        if workload.phase != "train":
            return objects
        p, extra = workload.parallel, 0.0
        for group in scenario.model.layers:
            if isinstance(group.mixer, Attention):
                # softmax output, and what dropout would keep beside it (F-6.5: 5 n_q S / H of the input's bytes)
                extra += group.count * 2.5 * group.mixer.heads * workload.batch * float(workload.seq_len) ** 2 / p.tp
        kept = 0.0 if workload.recompute != "none" else extra * workload.dtypes.bytes_of("activations") / (p.pp * p.cp)
        return {**objects, "activations": objects["activations"] + kept}

    return Edit("fa1", rows, memory)


FUSION_LEVERS: tuple[Lever, ...] = (
    Lever(
        "fa1",
        "IO-aware tiled attention",
        "kernel",
        "Without it scores and probabilities are written to HBM and read back, by three kernels, not one (F-4.3).",
        first_of(only_in("train", "prefill"), needs_attention),
        lack=_unfused_attention,
        memory_lever="dematerialize",
    ),
    Lever(
        "fused-norm",
        "Norm fused with the residual addition",
        "kernel",
        "Without it the sum is written and read once more, and addition and norm are kernels of their own (F-4.6).",
        never,
        lack=lambda _s, _p: Edit("fused-norm", more_traffic(ending(" norm"), 1.0, 0.5, 2.0, of=_written)),
        memory_lever="dematerialize",
    ),
    Lever(
        "fused-gate-up",
        "Gate and up projection in one product",
        "kernel",
        "Without it the input is read twice, by one more kernel.",
        needs_gated_mlp,
        lack=lambda _s, _p: Edit(
            "fused-gate-up",
            more_traffic(ending("gate and up"), 1.0, 0.0, 1.0, of=lambda op: op.act_read),
        ),
        memory_lever="dematerialize",
    ),
)
"""Fusions, in the order of the technique library."""
