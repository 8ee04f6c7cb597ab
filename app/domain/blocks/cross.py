"""Attention to another input: an encoder's output, or the tokens of a picture beside the text."""

from __future__ import annotations

import numpy as np

from app.domain.blocks.attention import local_kv_heads
from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.model import Attention
from app.domain.units import Grid


def first_pass(ctx: StepContext) -> Grid:
    """1 where nothing was cached before this step, so that the other input must be worked on; 0 where it was."""
    if ctx.decoding:
        return 0.0
    nothing = np.asarray(ctx.context_len) == 0
    return nothing.astype(np.float64) if np.ndim(nothing) else float(nothing)


def cross_attention_rows(ctx: StepContext, attention: Attention, count: float, source: int) -> list[Op]:
    """Rows of `count` cross-attention layers over `source` tokens a sequence (F-5.1: constant in the context).

    Keys and values of the other input are computed and cached once; later steps only read them. Every query sees every
    source token: tokens x source pairs.
    """
    heads = ctx.divide_heads(attention.heads, "num_attention_heads")
    kv_heads = local_kv_heads(ctx, attention)
    t, h = ctx.tokens, ctx.hidden
    width = kv_heads * (attention.head_dim + attention.v_head_dim)
    others = ctx.batch * source
    first = first_pass(ctx)
    pairs = t * source

    def product(name: str, m: Grid, n: Grid, k: Grid, formula: str, times: Grid = 1.0) -> Op:
        return ctx.gemm(name, "cross-attention", m=m, n=n, k=k, count=count * times, formula=formula)

    rows = [
        product("cross query projection", t, heads * attention.head_dim, h, "2 tokens hidden heads head_dim / tp"),
        product("cross key and value projection", others, width, h, "2 source_tokens hidden kv_width / tp", first),
    ]
    if not ctx.training:
        rows.append(
            Op(
                "cross cache append",
                "cross-attention",
                "copy",
                count=count * first,
                kv_write=others * width * ctx.kv,
                act_read=others * width * ctx.activation,
                formula="source_tokens kv_width kv_bytes written to the cache",
            )
        )
    rows += [
        Op(
            "cross-attention",
            "cross-attention",
            "attention",
            count=count,
            pipe="tensor",
            dtype=ctx.attention_product,
            flop=2.0 * heads * (attention.head_dim + attention.v_head_dim) * pairs,
            exponentials=heads * pairs,
            kv_read=0.0 if ctx.training else others * width * ctx.kv * (1.0 - first),
            act_read=(t * heads * attention.head_dim + others * width * first) * ctx.activation,
            act_write=t * heads * attention.v_head_dim * ctx.activation,
            formula="2 heads (head_dim + v_head_dim) tokens source_tokens / tp",
        ),
        product("cross output projection", t, h, heads * attention.v_head_dim, "2 tokens heads v_head_dim hidden / tp"),
        ctx.all_reduce("cross-attention all-reduce", "cross-attention", count),
    ]
    return rows
