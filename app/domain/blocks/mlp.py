"""Feed-forward layers, dense and mixture of experts."""

from __future__ import annotations

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise, gemm
from app.domain.model import DenseMlp, MoeMlp
from app.domain.units import Grid


def mlp_rows(ctx: StepContext, mlp: DenseMlp, count: float, stage: str = "mlp") -> list[Op]:
    """Rows of `count` dense feed-forward layers: two or three matrices (F-2.3), split over tensor parallelism."""
    width = mlp.intermediate / ctx.tp
    rows = _matrices(ctx, stage, "", ctx.tokens, width, mlp.gated, count)
    rows.append(ctx.all_reduce(f"{stage} all-reduce", stage, count))
    return rows


def expected_distinct_experts(tokens: Grid, experts: int, top_k: int) -> Grid:
    """Experts that at least one of `tokens` tokens reaches, expected under uniform routing (F-9.5)."""
    touched = experts * (1.0 - (1.0 - top_k / experts) ** np.asarray(tokens, dtype=np.float64))
    return float(touched) if np.ndim(touched) == 0 else touched


def moe_rows(ctx: StepContext, moe: MoeMlp, count: float) -> list[Op]:
    """Rows of `count` mixture-of-experts layers whose experts are split over the tensor-parallel group.

    Weights: the expected number of distinct experts touched, each read once (F-9.5). FLOP: `top_k` experts a token
    (F-2.4), plus the shared ones. Permutation traffic by F-9.2. With a latent size, the routed experts work on that
    width between two projections that every rank keeps whole.
    """
    t = ctx.tokens
    h = ctx.hidden if moe.latent_size is None else moe.latent_size
    touched = expected_distinct_experts(t, moe.experts, moe.top_k)
    copies = t * moe.top_k
    width = moe.expert_intermediate / ctx.tp
    matrices_in = 2 if moe.gated else 1

    def expert_gemm(name: str, n: Grid, k: Grid, formula: str) -> Op:
        return Op(
            name,
            "moe",
            "gemm",
            count=count,
            pipe="tensor",
            dtype=ctx.product,
            flop=2.0 * copies * n * k,
            weights=touched * n * k * ctx.weight,
            act_read=copies * k * ctx.activation,
            act_write=copies * n * ctx.activation,
            formula=formula,
        )

    rows = [
        gemm(
            "router",
            "moe",
            m=t,
            n=moe.experts,
            k=ctx.hidden,
            dtype=ctx.product,
            weight=ctx.weight,
            activation=ctx.activation,
            output=4.0,
            count=count,
            formula="2 tokens hidden experts",
        ),
        elementwise(
            "top-k",
            "moe",
            elements=t * moe.experts,
            reads=1,
            writes=0,
            activation=4.0,
            flop_per_element=2,
            exponentials=t * moe.experts,
            count=count,
        ),
        Op(
            "permute",
            "moe",
            "copy",
            count=count,
            act_read=t * h * ctx.activation,
            act_write=copies * h * ctx.activation,
            formula="read tokens hidden, write tokens top_k hidden",
        ),
        expert_gemm(
            "expert gate and up" if moe.gated else "expert up",
            matrices_in * width,
            h,
            f"2 tokens top_k hidden {matrices_in} expert_intermediate / tp",
        ),
        elementwise(
            "expert activation",
            "moe",
            elements=copies * width,
            reads=matrices_in,
            writes=1,
            activation=ctx.activation,
            flop_per_element=5,
            exponentials=copies * width * ctx.activation_exponentials,
            count=count,
        ),
        expert_gemm("expert down", h, width, "2 tokens top_k expert_intermediate hidden / tp"),
        Op(
            "unpermute",
            "moe",
            "copy",
            count=count,
            pipe="vector",
            dtype="fp32",
            flop=2.0 * copies * h,
            act_read=copies * h * ctx.activation,
            act_write=t * h * ctx.activation,
            formula="read tokens top_k hidden, write tokens hidden",
        ),
    ]
    if moe.latent_size is not None:
        rows += [_product(ctx, "latent down", t, h, ctx.hidden, count, "2 tokens hidden latent")]
        rows += [_product(ctx, "latent up", t, ctx.hidden, h, count, "2 tokens latent hidden")]
    if moe.shared_expert_gate:
        rows += [_product(ctx, "shared expert gate", t, 1, ctx.hidden, count, "2 tokens hidden")]
    for prefix, intermediate in (
        ("shared expert ", moe.shared_intermediate),
        ("dense ", moe.dense_intermediate),
    ):
        if intermediate:
            rows += _matrices(ctx, "moe", prefix, t, intermediate / ctx.tp, moe.gated, count)
    rows.append(ctx.all_reduce("moe all-reduce", "moe", count))
    return rows


def _matrices(
    ctx: StepContext, stage: str, prefix: str, tokens: Grid, width: Grid, gated: bool, count: float
) -> list[Op]:
    matrices_in = 2 if gated else 1

    def product(name: str, n: Grid, k: Grid, formula: str) -> Op:
        return _product(ctx, f"{prefix}{name}", tokens, n, k, count, formula, stage)

    return [
        product(
            "gate and up" if gated else "up",
            matrices_in * width,
            ctx.hidden,
            f"2 tokens hidden {matrices_in} intermediate / tp",
        ),
        elementwise(
            f"{prefix}activation",
            stage,
            elements=tokens * width,
            reads=matrices_in,
            writes=1,
            activation=ctx.activation,
            flop_per_element=5,
            exponentials=tokens * width * ctx.activation_exponentials,
            count=count,
        ),
        product("down", ctx.hidden, width, "2 tokens intermediate hidden / tp"),
    ]


def _product(
    ctx: StepContext, name: str, tokens: Grid, n: Grid, k: Grid, count: float, formula: str, stage: str = "moe"
) -> Op:
    return gemm(
        name,
        stage,
        m=tokens,
        n=n,
        k=k,
        dtype=ctx.product,
        weight=ctx.weight,
        activation=ctx.activation,
        count=count,
        formula=formula,
    )
