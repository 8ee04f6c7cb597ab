"""One forward pass of a denoiser over the latent tokens of a batch of samples (F-13.4).

Products come from the list in `denoiser`; attention, modulated norms, activations and convolutions are added here.
Attention sees every latent token and, where streams are joint, every text token: nothing is causal or cached.
"""

from __future__ import annotations

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise
from app.domain.denoiser import (
    DiffusionTransformer,
    LatentGrid,
    Product,
    UNet,
    UNetStep,
    time_width,
    transformer_products,
    unet_steps,
)
from app.domain.errors import InvalidInput
from app.domain.units import Grid


def transformer_rows(ctx: StepContext, d: DiffusionTransformer) -> list[Op]:
    """Rows of a diffusion transformer; `ctx.tokens` are the latent tokens of all samples on one rank."""
    image, text = ctx.tokens, ctx.batch * d.text_tokens
    over = {"image": image, "text": text, "both": image + text, "sample": ctx.batch}
    heads = ctx.divide_heads(d.heads, "attention heads")
    rows: list[Op] = []
    for product in transformer_products(d):
        if over[product.over] is text and d.text_tokens == 0:
            continue
        rows += _product_rows(ctx, product, over[product.over])
    rows += _attention_rows(ctx, d, heads)
    rows += _pointwise_rows(ctx, d, image, text)
    return rows


def _product_rows(ctx: StepContext, p: Product, m: Grid) -> list[Op]:
    tp: Grid = ctx.tp
    stage = {"attention": "attention", "mlp": "mlp", "other": "conditioning"}[p.part]
    rows = [
        ctx.gemm(
            p.name,
            stage,
            m=m,
            n=p.outputs / (tp if p.split == "outputs" else 1),
            k=p.inputs / (tp if p.split == "inputs" else 1),
            count=p.count * ctx.runs,
            formula=f"2 {p.over} {p.inputs} {p.outputs}" + ("" if p.split == "whole" else " / tp"),
        )
    ]
    if p.split == "inputs":
        size = m * p.outputs * ctx.wire
        name = f"{p.name} all-reduce"
        rows += ctx.exchange(name, stage, "all_reduce", size, ctx.layout.tensor_group, p.count * ctx.runs)
    return rows


def _attention_rows(ctx: StepContext, d: DiffusionTransformer, heads: Grid) -> list[Op]:
    joint = d.text_attention in ("joint", "joint, shared weights")
    own = ctx.seq_len + (d.text_tokens if joint else 0)
    rows = [_attention(ctx, "attention", heads, d.head_dim, own, own, d.double_blocks + d.single_blocks)]
    if d.text_attention == "cross":
        rows.append(
            _attention(ctx, "cross-attention", heads, d.head_dim, ctx.seq_len, float(d.text_tokens), d.double_blocks)
        )
    if d.dual_attention:
        rows.append(_attention(ctx, "second attention", heads, d.head_dim, ctx.seq_len, ctx.seq_len, d.dual_attention))
    if d.refiners:
        text = float(d.text_tokens)
        rows.append(_attention(ctx, "text refiner attention", heads, d.head_dim, text, text, d.refiners))
    return rows


def _attention(ctx: StepContext, name: str, heads: Grid, head_dim: int, queries: Grid, keys: Grid, count: float) -> Op:
    """Attention of every one of `queries` tokens to every one of `keys` tokens, per sample."""
    width = heads * head_dim
    pairs = ctx.batch * queries * keys
    return Op(
        name,
        "attention",
        "attention",
        count=count * ctx.runs,
        pipe="tensor",
        dtype=ctx.attention_product,
        flop=4.0 * width * pairs,
        exponentials=heads * pairs,
        act_read=ctx.batch * (queries + 2 * keys) * width * ctx.activation,
        act_write=ctx.batch * queries * width * ctx.activation,
        formula="4 heads head_dim queries keys / tp",
    )


def _pointwise_rows(ctx: StepContext, d: DiffusionTransformer, image: Grid, text: Grid) -> list[Op]:
    """Norms with shift, scale and gated residual, and the activations of the MLPs."""
    h = d.hidden
    joint = d.text_attention in ("joint", "joint, shared weights")
    doubled = image + text if joint else image
    norms = 3 if d.text_attention == "cross" else 2
    rows = [
        _norm(ctx, "modulated norm", doubled * h, norms * d.double_blocks),
        _activation(ctx, "activation", doubled * d.intermediate / ctx.tp, d.double_blocks),
    ]
    if d.single_blocks:
        both = image + text
        rows += [
            _norm(ctx, "fused block norm", both * h, d.single_blocks),
            _activation(ctx, "fused block activation", both * d.intermediate / ctx.tp, d.single_blocks),
        ]
    if d.refiners:
        rows += [
            _norm(ctx, "text refiner norm", text * h, 2 * d.refiners),
            _activation(ctx, "text refiner activation", text * d.intermediate / ctx.tp, d.refiners),
        ]
    return [*rows, _norm(ctx, "final norm", image * h, 1)]


def _norm(ctx: StepContext, name: str, elements: Grid, count: float) -> Op:
    return elementwise(
        name,
        "norm",
        elements=elements / ctx.sequence_shards,
        reads=2,
        writes=2,
        activation=ctx.activation,
        flop_per_element=8,
        count=count * ctx.runs,
        formula="norm, shift and scale with the gated residual addition; reads 2, writes 2",
    )


def _activation(ctx: StepContext, name: str, elements: Grid, count: float, reads: int = 1) -> Op:
    return elementwise(
        name,
        "mlp",
        elements=elements,
        reads=reads,
        writes=1,
        activation=ctx.activation,
        flop_per_element=5,
        exponentials=elements,
        count=count * ctx.runs,
    )


def unet_rows(ctx: StepContext, u: UNet, width: int, height: int) -> list[Op]:
    """Rows of a U-net over latents of `width` x `height` pixels. A 3x3 convolution is a product over 9 inputs a pixel.

    Raises InvalidInput for tensor parallelism: convolutions are not divided by any engine.
    """
    if ctx.layout.tp != 1:
        raise InvalidInput(("workload", "parallel", "tp"), "a U-net is not divided over ranks: use 1, with dp")
    grid = u.latent
    t = time_width(u)
    rows = [
        _dense(ctx, "time step embedding", ctx.batch, t, u.channels[0]),
        _dense(ctx, "time step embedding 2", ctx.batch, t, t),
    ]
    if u.pooled_width:
        rows += [
            _dense(ctx, "conditioning embedding", ctx.batch, t, u.pooled_width),
            _dense(ctx, "conditioning embedding 2", ctx.batch, t, t),
        ]
    for step in unet_steps(u):
        pixels = ctx.batch * _pixels(grid, width, height, step.factor)
        if step.kind == "convolution":
            rows.append(_convolution(ctx, step.name, pixels, step.inputs, step.outputs))
        elif step.kind == "residual":
            rows += _residual(ctx, step, pixels, t)
        else:
            rows += _transformer(ctx, u, step, _pixels(grid, width, height, step.factor))
    rows.append(_group_norm(ctx, "output norm", ctx.batch * _pixels(grid, width, height, 1) * u.channels[0]))
    return rows


def _pixels(grid: LatentGrid, width: int, height: int, factor: int) -> float:
    return float(-(-(width // grid.spatial) // factor) * -(-(height // grid.spatial) // factor))


def _residual(ctx: StepContext, s: UNetStep, pixels: Grid, time: int) -> list[Op]:
    """Norm and activation, convolution, time embedding added, norm and activation, convolution, shortcut."""
    i, o = s.inputs, s.outputs
    rows = [
        _group_norm(ctx, f"{s.name} norm", pixels * i),
        _convolution(ctx, f"{s.name} convolution", pixels, i, o),
        _dense(ctx, f"{s.name} time embedding", ctx.batch, o, time),
        _group_norm(ctx, f"{s.name} norm 2", pixels * o),
        _convolution(ctx, f"{s.name} convolution 2", pixels, o, o),
    ]
    if i != o:
        rows.append(_dense(ctx, f"{s.name} shortcut", pixels, o, i))
    return rows


def _transformer(ctx: StepContext, u: UNet, s: UNetStep, pixels: float) -> list[Op]:
    """Projection in, blocks of self-attention, attention to text and a gated MLP, projection out."""
    c = s.outputs
    m, text, n = ctx.batch * pixels, ctx.batch * u.text_tokens, float(s.depth)
    heads = float(u.heads if u.heads is not None else c // (u.head_dim or 1))
    wide = c // int(heads)
    name = s.name
    return [
        _group_norm(ctx, f"{name} norm", m * c),
        _dense(ctx, f"{name} projection in", m, c, c),
        _dense(ctx, f"{name} query, key and value", m, 3 * c, c, n),
        _attention(ctx, f"{name} attention", heads, wide, pixels, pixels, n),
        _dense(ctx, f"{name} attention output", m, c, c, n),
        _dense(ctx, f"{name} cross query", m, c, c, n),
        _dense(ctx, f"{name} cross key and value", text, 2 * c, u.cross_width, n),
        _attention(ctx, f"{name} cross-attention", heads, wide, pixels, float(u.text_tokens), n),
        _dense(ctx, f"{name} cross output", m, c, c, n),
        _norm(ctx, f"{name} block norm", m * c, 3 * n),
        _dense(ctx, f"{name} mlp up", m, 8 * c, c, n),
        _activation(ctx, f"{name} gated activation", m * 4 * c, n, reads=2),
        _dense(ctx, f"{name} mlp down", m, c, 4 * c, n),
        _dense(ctx, f"{name} projection out", m, c, c),
    ]


def _dense(ctx: StepContext, name: str, m: Grid, n: int, k: int, count: float = 1.0) -> Op:
    return ctx.gemm(name, "denoiser", m=m, n=float(n), k=float(k), count=count * ctx.runs)


def _convolution(ctx: StepContext, name: str, pixels: Grid, inputs: int, outputs: int) -> Op:
    """3x3 convolution as a product; each input is read once, the nine taps come from cache."""
    return Op(
        name,
        "convolution",
        "gemm",
        count=ctx.runs,
        pipe="tensor",
        dtype=ctx.product,
        flop=18.0 * pixels * inputs * outputs,
        weights=9.0 * inputs * outputs * ctx.weight,
        act_read=pixels * inputs * ctx.activation,
        act_write=pixels * outputs * ctx.activation,
        formula="2 * 9 pixels inputs outputs",
    )


def _group_norm(ctx: StepContext, name: str, elements: Grid) -> Op:
    return elementwise(
        name,
        "norm",
        elements=elements,
        reads=1,
        writes=1,
        activation=ctx.activation,
        flop_per_element=8,
        exponentials=elements,
        count=ctx.runs,
        formula="group norm with its activation; reads 1, writes 1",
    )
