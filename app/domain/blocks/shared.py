"""A whole attention and MLP block that several layers share (Zamba2)."""

from __future__ import annotations

from app.domain.blocks.attention import attention_rows
from app.domain.blocks.context import StepContext
from app.domain.blocks.ends import norm_rows
from app.domain.blocks.mlp import mlp_rows
from app.domain.cost import Op, elementwise
from app.domain.model import SharedAttentionBlock
from app.domain.units import Grid

STAGE = "shared block"


def shared_block_rows(ctx: StepContext, block: SharedAttentionBlock, count: float) -> list[Op]:
    """Rows of `count` uses: each reads the weights again, since a set is larger than any last-level cache.

    The norm over the doubled input, attention, a norm, the MLP with a low-rank addition to its first matrix, and the
    projection of the result that is added to the layer's input.
    """
    t, h, rank = ctx.tokens, ctx.hidden, block.lora_rank
    first = (2 if block.mlp.gated else 1) * block.mlp.intermediate / ctx.tp

    def product(name: str, n: Grid, k: Grid, formula: str) -> Op:
        return ctx.gemm(name, STAGE, m=t, n=n, k=k, count=count, formula=formula)

    return [
        elementwise(
            "norm of layer input and embedding",
            STAGE,
            elements=t * block.input_width,
            reads=1,
            writes=1,
            activation=ctx.activation,
            flop_per_element=4,
            count=count,
        ),
        *attention_rows(ctx, block.attention, count, block.input_width),
        *norm_rows(ctx, "shared-mlp norm", STAGE, count, residual=False),
        product("low-rank down", rank, h, "2 tokens hidden rank"),
        product("low-rank up", first, rank, "2 tokens rank 2 intermediate / tp"),
        *mlp_rows(ctx, block.mlp, count),
        product("block projection", h / ctx.tp, h, "2 tokens hidden hidden / tp"),
    ]
