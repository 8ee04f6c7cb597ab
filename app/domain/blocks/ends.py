"""The ends of a decoder: embedding, norms, output head, sampling or loss."""

from __future__ import annotations

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise, gemm
from app.domain.units import Grid


def norm_rows(ctx: StepContext, name: str, stage: str, count: float, *, residual: bool) -> list[Op]:
    """A norm over the hidden size, fused with the residual addition where there is one (F-4.6)."""
    return [
        elementwise(
            name,
            stage,
            elements=ctx.tokens * ctx.hidden,
            reads=2 if residual else 1,
            writes=2 if residual else 1,
            activation=ctx.activation,
            flop_per_element=5 if residual else 4,
            count=count,
        )
    ]


def embedding_rows(ctx: StepContext) -> list[Op]:
    """Gather of one table row a token (F-4.9)."""
    t, h = ctx.tokens, ctx.hidden
    return [
        Op(
            "embedding",
            "embedding",
            "gather",
            count=ctx.micro_batches,
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
    count = float(ctx.micro_batches)
    rows: list[Op] = []
    if ctx.model.final_norm:
        rows += norm_rows(ctx, "final norm", "head", count, residual=True)
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
