"""Attention layers: projections, cache, scores and values, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.blocks.sparse import indexer_rows
from app.domain.cost import Op, elementwise
from app.domain.errors import InvalidInput
from app.domain.model import Attention, LatentAttention
from app.domain.units import Grid


def attended_pairs(
    seq_len: Grid, context_len: Grid, *, causal: bool = True, window: int | None = None, chunked: bool = False
) -> Grid:
    """(query, key) pairs of one sequence: `seq_len` new queries on top of `context_len` cached keys (F-3.2).

    `window` keys at most per query, itself included; with `chunked` a query sees only its own block of `window` tokens.
    Without `causal` every query sees every key.
    """
    q, c = seq_len, context_len
    if not causal:
        return q * (q + c)
    if window is None:
        return q * c + q * (q + 1) / 2
    if chunked:
        return _chunk_sum(c + q, window) - _chunk_sum(c, window)
    growing = np.clip(window - np.asarray(c), 0, q)  # queries that still see everything before them
    pairs = growing * c + growing * (growing + 1) / 2 + (q - growing) * window
    return float(pairs) if np.ndim(pairs) == 0 else pairs


def _chunk_sum(n: Grid, chunk: int) -> Grid:
    """Keys seen by the first `n` positions together when each sees only its own chunk."""
    whole = np.floor_divide(n, chunk)
    rest = n - whole * chunk
    return whole * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2


def cached_tokens_read(context_len: Grid, attention: Attention | LatentAttention) -> Grid:
    """Cached tokens of one sequence that some query of the step must see; of picked keys, those of one query."""
    if attention.indexer is not None:
        return np.minimum(context_len, attention.indexer.top_keys - 1)
    if isinstance(attention, Attention) and attention.window is not None:
        if attention.kind == "chunked":
            return np.remainder(context_len, attention.window)
        # the oldest of the window's keys is the new token's own past: the token itself is one of the window
        return np.minimum(context_len, attention.window - 1)
    return context_len


def attention_pairs(ctx: StepContext, attention: Attention | LatentAttention) -> Grid:
    """Pairs of the whole batch that one rank works on: context parallelism divides them evenly (zig-zag placement)."""
    window = attention.window if isinstance(attention, Attention) else None
    if attention.indexer is not None:
        # a query that sees fewer keys than the indexer picks attends to all of them, like one inside a window
        window = attention.indexer.top_keys if window is None else min(window, attention.indexer.top_keys)
    chunked = isinstance(attention, Attention) and attention.kind == "chunked"
    causal = not (isinstance(attention, Attention) and attention.kind == "bidirectional")
    pairs = attended_pairs(ctx.seq_len, ctx.context_len, causal=causal, window=window, chunked=chunked)
    return ctx.batch * pairs / ctx.layout.cp


def longest_row(ctx: StepContext, attention: Attention | LatentAttention) -> Grid:
    """Keys of the last query, which sees most; 0 where every query sees as many."""
    if isinstance(attention, Attention) and attention.kind == "bidirectional":
        return 0.0
    window = attention.window if isinstance(attention, Attention) else None
    if attention.indexer is not None:
        window = min(window or attention.indexer.top_keys, attention.indexer.top_keys)
    keys = ctx.context_len + ctx.seq_len
    return keys if window is None else np.minimum(keys, window)


def visible_pairs(ctx: StepContext) -> Grid:
    """Causal pairs of the whole batch that an indexer scores on one rank."""
    return ctx.batch * attended_pairs(ctx.seq_len, ctx.context_len) / ctx.layout.cp


def local_kv_heads(ctx: StepContext, attention: Attention) -> Grid:
    """KV heads of one rank; with more ranks than heads each rank keeps a copy of one (F-5.1)."""
    heads = np.maximum(np.ceil(attention.kv_heads / np.asarray(ctx.tp, dtype=np.float64)), 1.0)
    return float(heads) if np.ndim(heads) == 0 else heads


@dataclass(frozen=True, slots=True)
class ContextShare:
    """What context parallelism does to one attention layer, on one rank.

    `cached` bytes are read from its part of the cache, `received` bytes of keys and values came from other ranks beyond
    as many as it sent and are read like activations, `rows` are the exchanges.
    """

    cached: Grid
    received: Grid
    rows: list[Op]


def context_share(
    ctx: StepContext,
    attention: Attention | LatentAttention,
    kv_width: Grid,
    query_width: Grid,
    output_width: Grid,
    heads: Grid,
    count: float,
) -> ContextShare:
    """Cache reads and exchanges of one attention layer (F-7.4, F-7.5).

    `kv_width` elements a token are cached on a rank of the tensor group, `query_width` is what an all-to-all moves of
    queries and outputs, `output_width` and `heads` are those of a partial result.
    Decode: each rank attends to its part of the context and the partial results are summed. Prefill and training, ring:
    keys and values pass every rank, those of a window only as far as it reaches. All-to-all: ranks exchange sequence
    for heads before and after, and each holds its heads' whole cache; a KV head that several ranks need is sent to each
    of them. Latent attention has no heads of keys to trade and always goes around the ring.
    """
    layout = ctx.layout
    cached_tokens = 0.0 if ctx.cacheless else ctx.batch * cached_tokens_read(ctx.context_len, attention)
    if layout.cp == 1:
        return ContextShare(cached_tokens * kv_width * ctx.kv, 0.0, [])
    group = layout.context_group
    if ctx.decoding:
        size = ctx.tokens * (output_width * ctx.activation + 4.0 * heads)
        rows = ctx.exchange("context combine", "attention", "all_reduce", size, group, count)
        return ContextShare(cached_tokens * kv_width * ctx.kv / layout.cp, 0.0, rows)
    if ctx.workload.parallel.context_exchange == "all_to_all" and isinstance(attention, Attention):
        if np.any(np.remainder(heads, layout.cp) != 0):
            raise InvalidInput(
                ("workload", "parallel", "cp"),
                f"{np.min(heads):g} query heads of a rank do not divide by context parallel {layout.cp}, as an "
                "all-to-all needs: use fewer ranks, less tensor parallelism, or a ring",
            )
        one_head = attention.head_dim + attention.v_head_dim
        keys = np.maximum(kv_width, layout.cp * one_head) if attention.own_kv else 0.0
        size = ctx.tokens * (query_width + keys) * ctx.wire
        # one exchange before attention and one after it, in one row
        rows = [
            row.having(hops=2.0 * row.hops, turns=2.0 * row.turns, launches=2.0)
            for row in ctx.exchange("context all-to-all", "attention", "all_to_all", size, group, count)
        ]
        width = np.maximum(kv_width / layout.cp, one_head)
        copies = ctx.tokens * np.maximum(layout.cp * one_head - kv_width, 0.0)
        return ContextShare(cached_tokens * width * ctx.kv, copies * ctx.activation, rows)
    own = 1.0 / layout.cp
    foreign = ctx.batch * (ctx.context_len + ctx.seq_len) * (1.0 - own)
    if isinstance(attention, Attention) and attention.window is not None:
        foreign = np.minimum(foreign, ctx.batch * (attention.window - 1.0))
    # an all-gather of this size brings `foreign` tokens to every rank
    size = foreign / (1.0 - own) * kv_width * ctx.wire
    # on the way back keys and values come round again, and then their gradients go home
    rows = ctx.exchange("key and value exchange", "attention", "all_gather", size, group, count, backward=2.0)
    return ContextShare(cached_tokens * own * kv_width * ctx.kv, foreign * kv_width * ctx.activation, rows)


def _before_attention(ctx: StepContext, q_width: Grid, k_width: Grid, v_width: Grid, count: float) -> list[Op]:
    """Queries and keys are rotated while keys and values go to the cache; without a rotation the append is left, and
    where nothing is cached either the projections' results are what attention reads."""
    t = ctx.tokens
    kv_write = 0.0 if ctx.cacheless else t * (k_width + v_width) * ctx.kv / (ctx.layout.cp if ctx.decoding else 1)
    row = Op(
        "cache append",
        "attention",
        "elementwise",
        count=count,
        act_read=t * (k_width + v_width) * ctx.activation,
        kv_write=kv_write,
        formula="tokens kv_width kv_bytes written to the cache",
    )
    if ctx.model.rotary:
        rotated = t * (q_width + k_width) * ctx.activation
        row = row.having(
            name="rotary and cache append",
            pipe="vector",
            dtype="fp32",
            flop=6.0 * t * (q_width + k_width),
            act_read=rotated + (0.0 if ctx.cacheless else t * v_width * ctx.activation),
            act_write=t * (q_width + (k_width if ctx.cacheless else 0.0)) * ctx.activation,
            act_backward=(rotated, rotated),  # a rotation is undone without what went into it
        )
    elif ctx.cacheless:
        return []
    return [row]


def attention_rows(ctx: StepContext, attention: Attention, count: float, input_width: int | None = None) -> list[Op]:
    """Rows of `count` multi-head attention layers (F-2.1, F-3.2, F-4.4, F-4.5, F-4.7).

    `input_width` is what the query, key and value projections read, the hidden size by default. An output gate is a
    projection as wide as the queries that scales the heads' outputs.
    """
    heads = ctx.divide_heads(attention.heads, "num_attention_heads")
    kv_heads = local_kv_heads(ctx, attention) if attention.own_kv else 0.0
    t, h = ctx.tokens, ctx.hidden
    q_width = heads * attention.head_dim
    o_width = heads * attention.v_head_dim
    k_width, v_width = kv_heads * attention.head_dim, kv_heads * attention.v_head_dim
    read_width = local_kv_heads(ctx, attention) * (attention.head_dim + attention.v_head_dim)
    shared = context_share(ctx, attention, read_width, q_width + o_width, o_width, heads, count)
    pairs = attention_pairs(ctx, attention)
    flop = 2.0 * heads * (attention.head_dim + attention.v_head_dim) * pairs

    rows = [
        ctx.gemm(
            "qkv projection",
            "attention",
            m=t,
            n=q_width * (2 if attention.output_gate else 1) + k_width + (0.0 if attention.v_from_k else v_width),
            k=h if input_width is None else input_width,
            count=count,
            formula="2 tokens hidden (heads head_dim + kv_heads (head_dim + v_head_dim)) / tp",
        ),
        *_before_attention(ctx, q_width, k_width, v_width, count),
        Op(
            "attention",
            "attention",
            "attention",
            count=count,
            pipe="tensor",
            dtype=ctx.attention_product,
            flop=flop,
            exponentials=heads * pairs,
            longest=longest_row(ctx, attention),
            kv_read=shared.cached,
            act_read=t * (q_width + read_width) * ctx.activation + shared.received,
            act_write=t * o_width * ctx.activation,
            formula="2 heads (head_dim + v_head_dim) pairs / tp",
        ),
        *shared.rows,
        *_output_gate(ctx, attention.output_gate, o_width, count),
        ctx.gemm(
            "output projection",
            "attention",
            m=t,
            n=h,
            k=o_width,
            count=count,
            formula="2 tokens heads v_head_dim hidden / tp",
        ),
    ]
    if attention.qk_norm is not None:
        rows.insert(
            1,
            elementwise(
                "query and key norm",
                "attention",
                elements=t * (q_width + k_width),
                reads=1,
                writes=1,
                activation=ctx.activation,
                flop_per_element=4,
                count=count,
            ),
        )
    rows += indexer_rows(ctx, attention.indexer, h, visible_pairs(ctx), count)
    rows.append(ctx.all_reduce("attention all-reduce", "attention", count))
    return rows


def _output_gate(ctx: StepContext, present: bool, width: Grid, count: float) -> list[Op]:
    if not present:
        return []
    return [
        elementwise(
            "output gate",
            "attention",
            elements=ctx.tokens * width,
            reads=2,
            writes=1,
            activation=ctx.activation,
            flop_per_element=4,
            exponentials=ctx.tokens * width,
            count=count,
        )
    ]


def latent_attention_rows(ctx: StepContext, mla: LatentAttention, count: float) -> list[Op]:
    """Rows of `count` MLA layers (F-2.2): absorbed in decode, unabsorbed in prefill and training (F-3.2).

    Absorbed: queries are mapped into the latent space and attend to the latent itself, so the cache is read once for
    all heads. Unabsorbed: the latent of every visible token is expanded to keys and values first.
    The latent is not divided by tensor parallelism: each rank keeps all of it (F-5.1).
    """
    heads = ctx.divide_heads(mla.heads, "num_attention_heads")
    t, h = ctx.tokens, ctx.hidden
    q_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    pairs = attention_pairs(ctx, mla)
    absorbed = ctx.workload.phase == "decode"

    def product(name: str, m: Grid, n: Grid, k: Grid, formula: str, groups: Grid = 1.0) -> Op:
        return ctx.gemm(name, "attention", m=m, n=n, k=k, count=count, groups=groups, formula=formula)

    rows: list[Op] = []
    if mla.q_lora_rank is not None:
        rows.append(
            product("query and latent down", t, mla.q_lora_rank + mla.cached_elements, h, "2 tokens hidden ranks")
        )
        rows.append(product("query up", t, heads * q_dim, mla.q_lora_rank, "2 tokens q_rank heads q_dim / tp"))
    else:
        rows.append(product("latent down", t, mla.cached_elements, h, "2 tokens hidden (kv_rank + rope)"))
        rows.append(product("query projection", t, heads * q_dim, h, "2 tokens hidden heads q_dim / tp"))
    latents = mla.kv_lora_rank + (mla.q_lora_rank or 0)
    rotated = heads * mla.qk_rope_head_dim
    rows.append(
        Op(
            "latent norm, rotary and cache append",
            "attention",
            "elementwise",
            count=count,
            pipe="vector",
            dtype="fp32",
            flop=6.0 * t * (rotated + mla.qk_rope_head_dim + latents),
            act_read=t * (rotated + mla.qk_rope_head_dim + latents) * ctx.activation,
            act_write=t * (rotated + (mla.q_lora_rank or 0)) * ctx.activation
            + (t * mla.cached_elements * ctx.activation if ctx.cacheless else 0.0),
            # a rotation is undone without what went into it, a norm is not
            act_backward=(
                t * (rotated + mla.qk_rope_head_dim + 2 * latents) * ctx.activation,
                t * (rotated + mla.qk_rope_head_dim + latents) * ctx.activation,
            ),
            kv_write=0.0
            if ctx.cacheless
            else t * mla.cached_elements * ctx.kv / (ctx.layout.cp if ctx.decoding else 1),
            formula="tokens (kv_rank + rope) kv_bytes written to the cache",
        )
    )
    partial = heads * mla.kv_lora_rank
    shared = context_share(ctx, mla, float(mla.cached_elements), 0.0, partial, heads, count)
    if absorbed:
        rows.append(
            product(
                "query absorb",
                t,
                mla.kv_lora_rank,
                mla.qk_nope_head_dim,
                "2 tokens nope kv_rank a head",
                heads,
            )
        )
        rows.append(
            Op(
                "attention",
                "attention",
                "attention",
                count=count,
                pipe="tensor",
                dtype=ctx.attention_product,
                flop=2.0 * heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim) * pairs,
                exponentials=heads * pairs,
                kv_read=shared.cached,
                act_read=t * (heads + 1) * mla.cached_elements * ctx.activation,
                act_write=t * heads * mla.kv_lora_rank * ctx.activation,
                formula="2 heads (2 kv_rank + rope) pairs / tp",
            )
        )
        rows.append(
            product("value absorb", t, mla.v_head_dim, mla.kv_lora_rank, "2 tokens kv_rank v_dim a head", heads)
        )
    else:
        # every rank expands the whole sequence's latents, of picked keys those that one query may see
        visible = ctx.batch * (cached_tokens_read(ctx.context_len, mla) + ctx.seq_len)
        rows.append(
            product(
                "key and value up",
                visible,
                heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                mla.kv_lora_rank,
                "2 visible tokens kv_rank heads (nope + v_dim) / tp",
            ).having(kv_read=shared.cached)
        )
        rows.append(
            Op(
                "attention",
                "attention",
                "attention",
                count=count,
                pipe="tensor",
                dtype=ctx.attention_product,
                flop=2.0 * heads * (q_dim + mla.v_head_dim) * pairs,
                exponentials=heads * pairs,
                longest=longest_row(ctx, mla),
                act_read=(
                    t * heads * q_dim
                    + visible * (heads * (mla.qk_nope_head_dim + mla.v_head_dim) + mla.qk_rope_head_dim)
                )
                * ctx.activation,
                act_write=t * heads * mla.v_head_dim * ctx.activation,
                formula="2 heads (nope + rope + v_dim) pairs / tp",
            )
        )
    rows += shared.rows
    if mla.output_gate:
        rows.append(product("gate projection", t, heads * mla.v_head_dim, h, "2 tokens hidden heads v_dim / tp"))
        rows += _output_gate(ctx, True, heads * mla.v_head_dim, count)
    rows += indexer_rows(ctx, mla.indexer, mla.q_lora_rank or h, visible_pairs(ctx), count)
    rows.append(product("output projection", t, h, heads * mla.v_head_dim, "2 tokens heads v_dim hidden / tp"))
    rows.append(ctx.all_reduce("attention all-reduce", "attention", count))
    return rows
