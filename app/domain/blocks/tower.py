"""Stacks beside the main one: an encoder, a vision or audio tower with its projector, prediction modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.blocks.cross import first_pass
from app.domain.blocks.ends import embedding_rows, head_rows, norm_rows, pooling_rows
from app.domain.cost import Op
from app.domain.model import Attention, LayerGroup, ModelSpec, PredictionModules, Tower
from app.domain.units import Grid

LayerRows = Callable[[StepContext, LayerGroup], list[Op]]
"""Makes the rows of a layer group; given by the step, which knows every kind of layer."""


def stack_rows(ctx: StepContext, layer_rows: LayerRows) -> list[Op]:
    """An encoder's rows from its input to its pooled output."""
    rows = embedding_rows(ctx)
    for group in ctx.model.layers:
        rows += layer_rows(_windows(ctx, group), group)
    return rows + pooling_rows(ctx)


def _windows(ctx: StepContext, group: LayerGroup) -> StepContext:
    """Attention within windows of a picture: as if each window were a sequence of its own."""
    mixer = group.mixer
    if not isinstance(mixer, Attention) or mixer.kind != "bidirectional" or mixer.window is None:
        return ctx
    return replace(ctx, batch=ctx.batch * ctx.seq_len / mixer.window, seq_len=float(mixer.window))


def encoder_rows(ctx: StepContext, encoder: ModelSpec, source: int, layer_rows: LayerRows) -> list[Op]:
    """The encoder of an encoder-decoder over `source` tokens a sequence: once, before anything is cached."""
    first = first_pass(ctx)
    inner = replace(ctx, model=encoder, seq_len=float(source), context_len=0.0)
    rows = stack_rows(inner, layer_rows)
    return [op.having(name=f"encoder {op.name}", count=op.count * first) for op in rows]


def tower_rows(ctx: StepContext, tower: Tower, tokens: int, layer_rows: LayerRows) -> list[Op]:
    """A tower that makes `tokens` tokens of the language model a sequence, and the projector behind it.

    Pictures of a fixed size are worked on one by one; where sizes differ, all tokens are one picture.
    """
    if tokens == 0 or ctx.decoding:
        return []
    patches = float(tokens * tower.merge)
    item = patches if tower.item_tokens is None else float(tower.item_tokens * tower.merge)
    inner = replace(ctx, model=tower.stack, batch=ctx.batch * patches / item, seq_len=item, context_len=0.0)
    rows = stack_rows(inner, layer_rows)
    if tower.projector_elements:
        rows.append(
            ctx.gemm(
                "projector",
                "head",
                m=ctx.batch * tokens,
                n=ctx.hidden,
                k=tower.projector_elements / ctx.hidden,
                count=ctx.runs,
                formula="2 visual_tokens projector_elements",
            )
        )
    return [op.having(name=f"{tower.modality} {op.name}") for op in rows]


def prediction_rows(
    ctx: StepContext, modules: PredictionModules, count: int, layer_rows: LayerRows
) -> tuple[list[Op], list[Op]]:
    """Layers and heads of `count` prediction modules: norms of state and embedding, projection, layers, logits.

    In training a module sees every token; in decode one token a sequence, the draft; a prompt's tokens fill its cache.
    """
    inner = replace(ctx, seq_len=1.0) if ctx.decoding else ctx
    t: Grid = inner.tokens
    layers: list[Op] = []
    heads: list[Op] = []
    for _ in range(count):
        layers += norm_rows(inner, "hidden state norm", "prediction", ctx.runs, residual=False)
        layers += norm_rows(inner, "embedding norm", "prediction", ctx.runs, residual=False)
        layers.append(
            ctx.gemm(
                "projection",
                "prediction",
                m=t,
                n=ctx.hidden,
                k=2 * ctx.hidden,
                count=ctx.runs,
                formula="2 tokens 2 hidden hidden",
            )
        )
        for group in modules.layers:
            layers += layer_rows(inner, group)
        heads += head_rows(inner)
    return (
        [op.having(name=f"prediction {op.name}") for op in layers],
        [op if op.name == "cross-entropy" else op.having(name=f"prediction {op.name}") for op in heads],
    )
