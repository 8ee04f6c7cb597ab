"""Attention to a window and to compressed entries, with widened residual streams (DeepSeek-V4).

Every token has one key that is also its value. Each `ratio` tokens are pooled into one entry of the same width, by
weights that each token brings along. A query sees the keys of its window and all finished entries before it, or the
best ones that an indexer picks.
"""

from __future__ import annotations

import numpy as np

from app.domain.blocks.attention import attended_pairs
from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise
from app.domain.model import CompressedAttention
from app.domain.precision import index_key_bytes
from app.domain.units import Grid


def entries_seen(seq_len: Grid, context_len: Grid, ratio: int, most: int | None = None) -> Grid:
    """(query, entry) pairs of one sequence: the query at position p sees the p // ratio finished entries, or `most`."""
    return _entry_sum(context_len + seq_len, ratio, most) - _entry_sum(context_len, ratio, most)


def _entry_sum(n: Grid, ratio: int, most: int | None) -> Grid:
    """Sum of min(p // ratio, most) over the positions p from 1 to n."""
    growing = n if most is None else np.minimum(n, ratio * most - 1)
    whole = np.floor_divide(growing, ratio)
    total: Grid = ratio * whole * (whole - 1) / 2 + whole * (growing - ratio * whole + 1)
    return total if most is None else total + (n - growing) * most


def compressed_attention_rows(ctx: StepContext, a: CompressedAttention, count: float) -> list[Op]:
    """Rows of `count` layers' attention with pooling, indexer and the mixing of residual streams."""
    heads = ctx.divide_heads(a.heads, "num_attention_heads")
    t, h, d = ctx.tokens, ctx.hidden, a.head_dim
    width = heads * d

    def product(name: str, n: Grid, k: Grid, formula: str, groups: Grid = 1.0) -> Op:
        return ctx.gemm(name, "attention", m=t, n=n, k=k, count=count, groups=groups, formula=formula)

    rows = [
        product("query and key down", a.q_lora_rank + d, h, "2 tokens hidden (q_rank + head_dim)"),
        product("query up", width, a.q_lora_rank, "2 tokens q_rank heads head_dim / tp"),
        Op(
            "norms, rotary and cache append",
            "attention",
            "elementwise",
            count=count,
            pipe="vector",
            dtype="fp32",
            flop=6.0 * t * (width + d),
            act_read=t * (width + d) * ctx.activation,
            act_write=t * (width + (d if ctx.cacheless else 0)) * ctx.activation,
            kv_write=0.0 if ctx.cacheless else t * d * ctx.kv,
            formula="tokens head_dim kv_bytes written to the window",
        ),
    ]
    pairs = attended_pairs(ctx.seq_len, ctx.context_len, window=a.window)
    read: Grid = np.minimum(ctx.context_len, a.window - 1)
    made: Grid = 0.0
    if a.ratio:
        most = None if a.indexer is None else a.indexer.top_keys
        rows += [
            product("entry and weight", 2 * a.pooled_width, h, "2 tokens hidden 2 pooled_width"),
            _pooling(ctx, "pooling", a.pooled_width, d, a.ratio, ctx.kv, count),
        ]
        pairs = pairs + entries_seen(ctx.seq_len, ctx.context_len, a.ratio, most)
        earlier = np.floor_divide(ctx.context_len, a.ratio)
        read = read + (earlier if most is None else np.minimum(earlier, most))
        made = ctx.seq_len / a.ratio
    if a.indexer is not None:
        rows += _indexer(ctx, a, count)
    rows += [
        Op(
            "attention",
            "attention",
            "attention",
            count=count,
            pipe="tensor",
            dtype=ctx.attention_product,
            flop=4.0 * width * ctx.batch * pairs,
            exponentials=heads * ctx.batch * pairs,
            kv_read=0.0 if ctx.cacheless else ctx.batch * read * d * ctx.kv,
            act_read=(t * (width + d) + ctx.batch * made * d) * ctx.activation,
            act_write=t * width * ctx.activation,
            formula="4 heads head_dim (window + entry pairs) / tp",
        ),
        product(
            "grouped output down",
            a.o_lora_rank,
            a.heads * d / a.o_groups,
            "2 tokens heads head_dim o_rank / tp",
            a.o_groups / ctx.tp,
        ),
        product("output projection", h, a.o_groups * a.o_lora_rank / ctx.tp, "2 tokens groups o_rank hidden / tp"),
        ctx.all_reduce("attention all-reduce", "attention", count),
    ]
    return rows + _streams(ctx, a, count)


def _pooling(ctx: StepContext, name: str, pooled: int, width: int, ratio: int, entry_bytes: float, count: float) -> Op:
    """Softmax over a window of tokens for each channel; `pooled` channels and as many weights a token."""
    t = ctx.tokens
    row = elementwise(
        name,
        "attention",
        elements=t * pooled,
        reads=2,
        writes=width / (ratio * pooled) if ctx.cacheless else 0,
        activation=ctx.activation,
        flop_per_element=5,
        exponentials=t * pooled,
        count=count,
        formula="a softmax over each window's tokens, channel by channel",
    )
    if ctx.cacheless:
        return row
    waiting = 2.0 * t * pooled * ctx.kv if ctx.decoding else 0.0
    return row.having(kv_read=waiting, kv_write=waiting + t / ratio * width * entry_bytes)


def _indexer(ctx: StepContext, a: CompressedAttention, count: float) -> list[Op]:
    """Entries of its own, narrower ones, and scores of every query against all of them; whole on every rank."""
    index = a.indexer
    if index is None:
        return []
    t, h, d = ctx.tokens, ctx.hidden, index.head_dim
    size = index_key_bytes(ctx.kv)

    def product(name: str, n: int, k: int, formula: str) -> Op:
        return ctx.gemm(name, "indexer", m=t, n=n, k=k, count=count, formula=formula)

    pairs = ctx.batch * entries_seen(ctx.seq_len, ctx.context_len, a.ratio)
    earlier = np.floor_divide(ctx.context_len, a.ratio)
    return [
        product("index query", index.heads * d, a.q_lora_rank, "2 tokens q_rank index_heads index_dim"),
        product(
            "index entry, weight and head weights", 4 * d + index.heads, h, "2 tokens hidden (4 index_dim + heads)"
        ),
        _pooling(ctx, "index pooling", 2 * d, d, a.ratio, size, count),
        Op(
            "index scores",
            "indexer",
            "attention",
            count=count,
            pipe="tensor",
            dtype=ctx.product,
            flop=2.0 * index.heads * (d + 1) * pairs,
            kv_read=0.0 if ctx.cacheless else ctx.batch * earlier * d * size,
            act_read=t * (index.heads * d + index.heads) * ctx.activation,
            formula="2 index_heads (index_dim + 1) entry pairs",
        ),
    ]


def _streams(ctx: StepContext, a: CompressedAttention, count: float) -> list[Op]:
    """Mixing of the residual streams before and behind both halves of a layer; the first stream is the norms' own."""
    if a.streams == 1:
        return []
    t, h = ctx.tokens, ctx.hidden
    maps = ctx.gemm(
        "stream maps",
        "residual",
        m=t,
        n=float(a.mixed),
        k=a.streams * h,
        count=2 * count,
        formula="2 tokens streams hidden (2 + streams) streams",
    )
    mixing = elementwise(
        "stream mixing",
        "residual",
        elements=t * h,
        reads=a.streams - 1,
        writes=a.streams - 1,
        activation=ctx.activation,
        flop_per_element=2.0 * a.streams * (a.streams + 2),
        count=2 * count,
    )
    return [maps.having(act_read=0.0), mixing]  # the maps read what the mixing reads anyway
