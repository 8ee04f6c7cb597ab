"""The ends of a decoder: embedding, norms, output head, sampling or loss."""

from __future__ import annotations

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise
from app.domain.model import DenseMlp
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
        norm = norm.having(act_backward=(3.0 * elements * ctx.activation, 1.0 * elements * ctx.activation))
    return [norm]


def last_norm(ctx: StepContext, count: float, tokens: Grid | None = None) -> list[Op]:
    """The norm behind the last layer: nobody adds to its sum, which is written for a backward pass only."""
    (norm,) = norm_rows(ctx, "final norm", "head", count, residual=True, tokens=tokens)
    one = norm.act_write / 2.0
    return [norm.having(act_write=norm.act_write if ctx.training else one, act_backward=(2.0 * one, one))]


def embedding_rows(ctx: StepContext) -> list[Op]:
    """Gather of one table row a token (F-4.9), or the products that make tokens of patches or sound; and a norm."""
    t, h = ctx.tokens, ctx.hidden
    rows: list[Op] = []
    if ctx.model.vocab_size:
        rows.append(
            Op(
                "embedding",
                "embedding",
                "gather",
                count=ctx.runs,
                weights=t * h * ctx.weight,
                act_write=t * h * ctx.activation,
                formula="tokens hidden gathered",
            )
        )
    for product in ctx.model.front:
        rows.append(
            ctx.gemm(
                product.name,
                "embedding",
                m=t * product.per_token,
                n=product.outputs,
                k=product.inputs,
                count=ctx.runs,
                formula=f"2 tokens {product.inputs} {product.outputs}"
                + (f" {product.per_token}" if product.per_token > 1 else ""),
            )
        )
    if ctx.model.embedding_norm:
        rows += norm_rows(ctx, "embedding norm", "embedding", ctx.runs, residual=False)
    return rows


def pooling_rows(ctx: StepContext) -> list[Op]:
    """What follows an encoder's last layer: a norm over all tokens, and where it pools, one vector a sequence."""
    count = ctx.runs
    rows: list[Op] = []
    if ctx.model.final_norm:
        rows += last_norm(ctx, count)
    h = ctx.hidden

    def product(name: str, m: Grid, n: Grid, k: Grid, formula: str) -> Op:
        return ctx.gemm(name, "head", m=m, n=n, k=k, count=count, formula=formula)

    if ctx.model.pooling == "dense":
        rows.append(product("pooler", ctx.batch, h, h, "2 sequences hidden hidden"))
    elif ctx.model.pooling == "attention":
        rows += [
            product("pooling key and value", ctx.tokens, 2 * h, h, "2 tokens hidden 2 hidden"),
            product("pooling output", ctx.batch, h, h, "2 sequences hidden hidden"),
        ]
        mlp = ctx.model.layers[-1].mlp
        if isinstance(mlp, DenseMlp):
            rows += [
                product("pooling mlp up", ctx.batch, mlp.intermediate, h, "2 sequences hidden intermediate"),
                product("pooling mlp down", ctx.batch, h, mlp.intermediate, "2 sequences intermediate hidden"),
            ]
    return rows


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
        rows += last_norm(ctx, count, positions)
    rows.append(
        ctx.gemm(
            "output head",
            "head",
            m=positions,
            n=vocab,
            k=ctx.hidden,
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
