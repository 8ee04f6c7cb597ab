"""The indexer of sparse attention: it scores every visible key with a few small heads and keeps the best ones."""

from __future__ import annotations

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.model import SparseIndexer
from app.domain.precision import index_key_bytes
from app.domain.units import Grid


def indexer_rows(
    ctx: StepContext, indexer: SparseIndexer | None, query_input: int, pairs: Grid, count: float
) -> list[Op]:
    """Rows of `count` indexers: queries, keys and head weights, then scores over `pairs` visible (query, key) pairs.

    2 heads head_dim FLOP a pair, and one weighted sum over the heads. The indexer is whole on every rank. Scores are
    not written out: picking the best keys is fused with scoring.
    """
    if indexer is None or not indexer.counted:
        return []
    t = ctx.tokens
    width, key = indexer.heads * indexer.head_dim, indexer.head_dim
    # a decoded token's ranks hold and score a part of the context each
    size = index_key_bytes(ctx.kv) / (ctx.layout.cp if ctx.decoding else 1)

    def product(name: str, n: int, k: int, formula: str) -> Op:
        return ctx.gemm(name, "indexer", m=t, n=n, k=k, count=count, formula=formula)

    return [
        product("index query", width, query_input, "2 tokens query_rank index_heads index_dim"),
        product("index key and head weights", key + indexer.heads, ctx.hidden, "2 tokens hidden (index_dim + heads)"),
        Op(
            "index scores",
            "indexer",
            "attention",
            count=count,
            pipe="tensor",
            dtype=ctx.product,
            flop=2.0 * indexer.heads * (key + 1) * pairs,
            kv_read=0.0 if ctx.cacheless else ctx.batch * ctx.context_len * key * size,
            kv_write=0.0 if ctx.cacheless else t * key * size,
            act_read=t * (width + key + indexer.heads) * ctx.activation,
            act_write=t * indexer.top_keys * 4.0,
            formula="2 index_heads (index_dim + 1) visible pairs; top keys written as indices",
        ),
    ]
