"""The ends of a decoder: embedding, norms, output head, sampling or loss."""

from __future__ import annotations

from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise, gemm
from app.domain.units import Grid


def norm_rows(
    ctx: StepContext, name: str, stage: str, count: float, *, residual: bool, tokens: Grid | None = None
) -> list[Op]:
    """A norm over the hidden size of `tokens` (all new ones by default), fused with the residual addition (F-4.6)."""
    elements = (ctx.tokens if tokens is None else tokens) * ctx.hidden / ctx.sequence_shards
    norm = elementwise(
        name,
        stage,
        elements=elements,
        reads=2 if residual else 1,
        writes=2 if residual else 1,
        activation=ctx.activation,
        flop_per_element=5 if residual else 4,
        count=count,
    )
    if residual:
        # both summands have one and the same gradient: read the sum and the gradients of both results, write one
        norm = replace(norm, act_backward=(3.0 * elements * ctx.activation, 1.0 * elements * ctx.activation))
    return [norm]


def embedding_rows(ctx: StepContext) -> list[Op]:
    """Gather of one table row a token (F-4.9)."""
    t, h = ctx.tokens, ctx.hidden
    return [
        Op(
            "embedding",
            "embedding",
            "gather",
            count=ctx.runs,
            weights=t * h * ctx.weight,
            act_write=t * h * ctx.activation,
            formula="tokens hidden gathered",
        )
    ]


def logit_tokens(ctx: StepContext) -> Grid:
    """Positions whose logits are needed: all in training and for drafted tokens, the last one of a prompt (F-3.1)."""
    return ctx.batch if ctx.workload.phase == "prefill" else ctx.tokens


def head_rows(ctx: StepContext) -> list[Op]:
    """Final norm, output projection and what consumes the logits."""
    positions = logit_tokens(ctx)
    vocab = ctx.model.vocab_size / ctx.tp
    count = ctx.runs
    rows: list[Op] = []
    if ctx.model.final_norm:
        rows += norm_rows(ctx, "final norm", "head", count, residual=True, tokens=positions)
    rows.append(
        gemm(
            "output head",
            "head",
            m=positions,
            n=vocab,
            k=ctx.hidden,
            dtype=ctx.product,
            weight=ctx.weight,
            activation=ctx.activation,
            count=count,
            formula="2 positions hidden vocabulary / tp",
        )
    )
    rows.append(
        elementwise(
            "cross-entropy" if ctx.training else "sampling",
            "head",
            elements=positions * vocab,
            reads=1,
            writes=1 if ctx.training else 0,
            activation=ctx.activation,
            flop_per_element=4,
            exponentials=positions * vocab,
            count=count,
        )
    )
    return rows
