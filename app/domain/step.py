"""A model and a workload become a cost table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.domain.backward import backward_of, recomputed
from app.domain.blocks.attention import attention_rows, latent_attention_rows
from app.domain.blocks.context import StepContext
from app.domain.blocks.ends import embedding_rows, head_rows, norm_rows
from app.domain.blocks.mlp import mlp_rows, moe_rows
from app.domain.collectives import wire_bytes
from app.domain.cost import CostTable, Op
from app.domain.errors import InvalidInput
from app.domain.memory import optimizer_bytes_per_parameter, sharded_parameters
from app.domain.model import Attention, DenseMlp, LatentAttention, LayerGroup, ModelSpec, MoeMlp
from app.domain.units import Grid
from app.domain.workload import MAX_TOKENS, Workload

DEFAULT_RANKS_PER_NODE = 8


def cost_table(
    model: ModelSpec,
    workload: Workload,
    *,
    ranks_per_node: int = DEFAULT_RANKS_PER_NODE,
    grid: Mapping[str, Any] | None = None,
) -> CostTable:
    """Rows of one step on the modelled device.

    `grid` replaces `batch`, `seq_len`, `context_len` or `tp` by arrays of shapes that broadcast: a sweep through the
    same formulas. `ranks_per_node` is the scale-up domain: a tensor-parallel group beyond it crosses the slow tier.
    Raises UnsupportedArchitecture, or InvalidInput for a layout that does not divide the model or a bad grid.
    """
    model.require_supported()
    _check_layout(model, workload)
    axes = _axes(workload, grid or {})
    if workload.phase == "train" and np.any(axes["context_len"] > 0):
        raise InvalidInput(("workload", "context_len"), "must be 0 in training: nothing is cached")
    ctx = StepContext(model=model, workload=workload, ranks_per_node=ranks_per_node, **axes)
    layers: list[Op] = []
    for group in model.layers:
        layers += _layer_rows(ctx, group)
    ends_before, ends_after = embedding_rows(ctx), head_rows(ctx)
    rows = ends_before + layers + ends_after
    if ctx.training:
        rows += _training_rows(ctx, ends_before, layers, ends_after)
    parallel = workload.parallel
    tokens: Grid = ctx.tokens * parallel.dp * parallel.micro_batches
    return CostTable.of(rows, tokens=tokens, devices=ctx.tp * parallel.dp, assumptions=_assumptions(model, workload))


def _axes(workload: Workload, grid: Mapping[str, Any]) -> dict[str, Grid]:
    """The numbers that a sweep may vary, as floats: whole numbers up to 2**53 stay exact, and nothing overflows."""
    axes: dict[str, Grid] = {
        "batch": float(workload.batch),
        "seq_len": float(workload.seq_len),
        "context_len": float(workload.context_len),
        "tp": float(workload.parallel.tp),
    }
    for name, values in grid.items():
        if name not in axes:
            raise InvalidInput(("axes", name), f"cannot be swept: use {', '.join(axes)}")
        axis = np.asarray(values, dtype=np.float64)
        least = 0 if name == "context_len" else 1
        if not np.all((axis >= least) & (axis <= MAX_TOKENS) & (axis == np.floor(axis))):
            raise InvalidInput(("axes", name), f"must hold whole numbers from {least} to {MAX_TOKENS}")
        axes[name] = axis if axis.ndim else float(axis)
    return axes


def _layer_rows(ctx: StepContext, group: LayerGroup) -> list[Op]:
    count = float(group.count * ctx.micro_batches)
    residual_norms = [f"{name} norm" for name, part in (("attention", group.mixer), ("mlp", group.mlp)) if part]
    rows: list[Op] = []
    stages = {"attention norm": "attention", "mlp norm": "moe" if isinstance(group.mlp, MoeMlp) else "mlp"}
    shared_norm = ctx.model.parallel_block and group.norms == 1
    for name in residual_norms[:1] if shared_norm else residual_norms:
        rows += norm_rows(ctx, name, stages[name], count, residual=True)
    for extra in range(max(group.norms - len(residual_norms), 0)):
        rows += norm_rows(ctx, ("post-attention norm", "post-mlp norm")[extra % 2], "mlp", count, residual=False)
    if isinstance(group.mixer, Attention):
        rows += attention_rows(ctx, group.mixer, count)
    elif isinstance(group.mixer, LatentAttention):
        rows += latent_attention_rows(ctx, group.mixer, count)
    if isinstance(group.mlp, DenseMlp):
        rows += mlp_rows(ctx, group.mlp, count)
    elif isinstance(group.mlp, MoeMlp):
        rows += moe_rows(ctx, group.mlp, count)
    if ctx.model.parallel_block and group.mixer is not None and group.mlp is not None:
        # both halves add into one sum, so one all-reduce serves the layer
        first = next(i for i, op in enumerate(rows) if op.kind == "collective")
        del rows[first]
    return rows


def _training_rows(ctx: StepContext, before: list[Op], layers: list[Op], after: list[Op]) -> list[Op]:
    workload = ctx.workload
    again = {
        "none": [],
        "selective": [op for op in layers if op.kind == "attention"],
        "full": layers,
    }[workload.recompute]
    rows = [recomputed(op) for op in again]
    for op in (*after, *layers, *before):
        rows += backward_of(op, ctx)
    dp = workload.parallel.dp
    parameters = sharded_parameters(ctx.model, ctx.tp).total
    shards = dp if workload.parallel.zero_stage >= 1 else 1
    per_parameter = optimizer_bytes_per_parameter(workload.optimizer, workload.dtypes)
    if workload.optimizer != "none":
        rows.append(
            Op(
                "optimizer step",
                "optimizer",
                "optimizer",
                direction="optimizer",
                pipe="vector",
                dtype="fp32",
                flop=12.0 * parameters / shards,
                state=parameters * per_parameter.traffic / shards,
                formula=f"{per_parameter.traffic:g} bytes a parameter, read and written once",
            )
        )
    if dp > 1:
        rows += _gradient_exchange(ctx, parameters)
    return rows


def _gradient_exchange(ctx: StepContext, parameters: Grid) -> list[Op]:
    """Data-parallel traffic of a step (F-6.3): gradients reduced, and with ZeRO-3 parameters gathered twice."""
    parallel, dtypes = ctx.workload.parallel, ctx.workload.dtypes
    # ranks of one data-parallel group that share a scale-up domain with it
    local = np.maximum(np.floor_divide(ctx.ranks_per_node, ctx.tp), 1.0)

    def exchange(name: str, kind: str, size: Grid, count: float) -> Op:
        return Op(
            name,
            "data parallel",
            "collective",
            count=count,
            direction="backward",
            net=wire_bytes(kind, size, parallel.dp, local),
            net_in_switch=wire_bytes(kind, size, parallel.dp, local, in_switch=True),
            formula=f"{kind} of {'parameters' if kind == 'all_gather' else 'gradients'} over dp",
        )

    # wider parameters and gradients travel in the communication precision (mixed-precision sharding does so)
    wire = dtypes.bytes_of("communication")
    gradients = parameters * min(dtypes.bytes_of("gradients"), wire)
    weights = parameters * min(dtypes.bytes_of("weights"), wire)
    if parallel.zero_stage == 0:
        return [exchange("gradient all-reduce", "all_reduce", gradients, 1.0)]
    gathers = 2.0 * parallel.micro_batches if parallel.zero_stage == 3 else 1.0
    return [
        exchange("gradient reduce-scatter", "reduce_scatter", gradients, 1.0),
        exchange("parameter all-gather", "all_gather", weights, gathers),
    ]


def _check_layout(model: ModelSpec, workload: Workload) -> None:
    parallel = workload.parallel
    for name, what in (
        ("pp", "pipeline"),
        ("cp", "context"),
        ("ep", "expert"),
        ("etp", "expert tensor"),
        ("virtual_stages", "interleaved pipeline"),
    ):
        if getattr(parallel, name) > 1:
            raise InvalidInput(
                ("workload", "parallel", name),
                f"{what} parallelism cannot be estimated yet: use 1, with tensor (tp) and data (dp) parallelism",
            )
    if parallel.zero_stage not in (0, 1, 2, 3):
        raise InvalidInput(("workload", "parallel", "zero_stage"), "must be 0, 1, 2 or 3")
    if workload.phase != "train" and parallel.zero_stage:
        raise InvalidInput(("workload", "parallel", "zero_stage"), "only training shards optimizer state: use 0")


def _assumptions(model: ModelSpec, workload: Workload) -> tuple[str, ...]:
    notes = [
        "Rows are those of one device; attention, norms, activations and sampling are each one fused kernel.",
        "Useful FLOP count causal attention as the visible pairs only.",
    ]
    if model.kind == "vlm":
        notes.append("Only the language model is counted; the vision tower and its tokens are not.")
    if model.is_moe:
        notes.append("Expert weights are read for the expected number of distinct experts under uniform routing.")
    if any(isinstance(m, LatentAttention) for _, m in model.attention_groups()):
        absorbed = workload.phase == "decode"
        notes.append(f"Latent attention runs {'absorbed' if absorbed else 'expanded to keys and values'}.")
    if workload.phase == "train":
        notes.append("Logits are produced for every position; the loss writes its gradient in one pass.")
    return tuple(notes)
