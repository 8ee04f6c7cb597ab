"""A model and a workload become a cost table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from app.domain.activations import modules_of, recomputed_rows, saved_activations
from app.domain.backward import backward_of, recomputed
from app.domain.blocks.attention import attention_rows, latent_attention_rows
from app.domain.blocks.compressed import compressed_attention_rows
from app.domain.blocks.context import StepContext
from app.domain.blocks.cross import cross_attention_rows
from app.domain.blocks.diffusion import transformer_rows, unet_rows
from app.domain.blocks.ends import embedding_rows, head_rows, norm_rows, pooling_rows
from app.domain.blocks.mlp import mlp_rows, moe_rows
from app.domain.blocks.shared import shared_block_rows
from app.domain.blocks.state_mixers import rwkv_ffn_rows, state_mixer_rows
from app.domain.blocks.tower import encoder_rows, prediction_rows, tower_rows
from app.domain.cost import CostTable, Op, Step, stacked
from app.domain.denoiser import DiffusionTransformer, UNet
from app.domain.errors import InvalidInput
from app.domain.hardware import DEFAULT_RANKS_PER_NODE
from app.domain.inputs import (
    check_inputs,
    input_assumptions,
    latent_tokens,
    picture,
    source_tokens,
    visual_tokens,
)
from app.domain.layout import Layout, layout_of
from app.domain.memory import StageParameters, optimizer_bytes_per_parameter, running_parameters
from app.domain.model import (
    STATE_MIXERS,
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    Mixer,
    Mlp,
    ModelSpec,
    MoeMlp,
    ParallelMixers,
    RwkvFfn,
    SelfAndCrossAttention,
    SharedBlockThenMixer,
)
from app.domain.overlap import dualpipe_bubble
from app.domain.precision import PRECISIONS
from app.domain.units import Grid
from app.domain.workload import MAX_TOKENS, Workload


def cost_table(
    model: ModelSpec,
    workload: Workload,
    *,
    ranks_per_node: int = DEFAULT_RANKS_PER_NODE,
    grid: Mapping[str, Any] | None = None,
    edits: Sequence[Callable[[list[Op], StepContext], list[Op]]] = (),
) -> CostTable:
    """Rows of one step on the modelled device, after the `edits` that levers make.

    `grid` replaces `batch`, `seq_len`, `context_len` or `tp` by arrays of shapes that broadcast: a sweep through the
    same formulas. `ranks_per_node` is the scale-up domain: a tensor-parallel group beyond it crosses the slow tier.
    Raises UnsupportedArchitecture, or InvalidInput for a layout that does not divide the model or a bad grid.
    """
    return stacked([step_rows(model, workload, ranks_per_node, grid).edited(edits)])[0]


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step before any edit, with what they were built for: several steps can be made of them."""

    ctx: StepContext
    rows: tuple[Op, ...]
    assumptions: tuple[str, ...]

    def edited(self, edits: Sequence[Callable[[list[Op], StepContext], list[Op]]] = ()) -> Step:
        ctx, rows = self.ctx, list(self.rows)
        for edit in edits:
            rows = edit(rows, ctx)
        return Step(
            rows,
            tokens=ctx.replica_tokens * ctx.layout.dp * ctx.micro_batches,
            devices=ctx.layout.devices,
            bubble=bubble_share(ctx.workload),
            assumptions=self.assumptions,
        )


@dataclass(frozen=True, slots=True)
class Passes:
    """Rows of one pass over the model (before the layers, of them, after them), and of its way back by whether
    gradients are scattered for each micro-batch."""

    forward: tuple[list[Op], list[Op], list[Op]]
    backward: dict[bool, tuple[list[Op], list[Op], list[Op]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownRows:
    """What the steps of one path of levers share: whole steps by model and workload, passes by what they depend on.

    Models are known by identity, so whoever holds it holds them too.
    """

    steps: dict[tuple[int, Workload], StepRows] = field(default_factory=dict)
    passes: dict[tuple[object, ...], Passes] = field(default_factory=dict)


def _pass_key(ctx: StepContext) -> tuple[object, ...]:
    """What the rows of a pass depend on; not how much of it is kept, updated, scheduled or launched."""
    w = ctx.workload
    return (
        id(ctx.model),
        ctx.layout,
        *(w.phase, w.batch, w.seq_len, w.context_len, w.dtypes, w.routing, w.dispatch),
        *(w.visual_tokens, w.source_len, w.width, w.height, w.frames, w.prediction_modules),
        *(w.parallel.micro_batches, w.parallel.sequence_parallel, w.parallel.context_exchange),
    )


def step_rows(
    model: ModelSpec,
    workload: Workload,
    ranks_per_node: int,
    grid: Mapping[str, Any] | None = None,
    known: KnownRows | None = None,
) -> StepRows:
    """The rows that `cost_table` starts from. Arguments and errors are its own; `known` serves and gains passes."""
    model.require_supported()
    check_inputs(model, workload)
    axes = _axes(model, workload, grid or {})
    if workload.phase == "train" and np.any(axes["context_len"] > 0):
        raise InvalidInput(("workload", "context_len"), "must be 0 in training: nothing is cached")
    layout = layout_of(model, workload, ranks_per_node, axes.pop("tp"))
    ctx = StepContext(model=model, workload=workload, layout=layout, **axes)
    passes = None if known is None else known.passes.get(_pass_key(ctx))
    if passes is None:
        passes = Passes(_forward_rows(ctx))
        if known is not None:
            known.passes[_pass_key(ctx)] = passes
    before, layers, after = passes.forward
    handed = _hand_over(ctx)
    rows = [*before, *layers, *handed, *after]
    transfers = _host_transfers(ctx, rows) if workload.offload.any else []
    if ctx.training:
        rows += [recomputed(op) for op in recomputed_rows(model, workload, [*layers, *handed])]
        rows += _way_back(ctx, passes, handed)
        rows += _update_rows(ctx)
    return StepRows(ctx, (*_in_one_format(ctx, rows), *transfers), _assumptions(model, workload, layout))


def _in_one_format(ctx: StepContext, rows: list[Op]) -> list[Op]:
    """Attention whose operands are stored in other formats than it multiplies in: its shape is told in that format."""
    item = PRECISIONS[ctx.attention_product].element_bytes
    if item == ctx.activation and (item == ctx.kv or ctx.cacheless):
        return rows
    stored, cached = item / ctx.activation, item / ctx.kv - 1.0
    return [
        op.having(taken=op.act_read * stored + op.kv_read * cached, made=op.act_write * stored)
        if op.kind == "attention" and op.dtype == ctx.attention_product
        else op
        for op in rows
    ]


def _forward_rows(ctx: StepContext) -> tuple[list[Op], list[Op], list[Op]]:
    """Rows of one forward pass: what comes before the layers, the layers, and what comes after them."""
    model, workload = ctx.model, ctx.workload
    if isinstance(model.denoiser, UNet):
        width, height, _ = picture(model, workload)
        return [], unet_rows(ctx, model.denoiser, width, height), []
    if model.denoiser is not None:
        return [], transformer_rows(ctx, model.denoiser), []
    layers: list[Op] = []
    if model.encoder is not None:
        layers += encoder_rows(ctx, model.encoder, source_tokens(model, workload), _layer_rows)
    if model.tower is not None:
        layers += tower_rows(ctx, model.tower, visual_tokens(model, workload), _layer_rows)
    for group in model.layers:
        layers += _layer_rows(ctx, group)
    after = head_rows(ctx) if model.generates else pooling_rows(ctx)
    if model.prediction is not None and workload.prediction_modules:
        more, heads = prediction_rows(ctx, model.prediction, workload.prediction_modules, _layer_rows)
        layers += more
        after += heads
    return embedding_rows(ctx), layers, after


def bubble_share(workload: Workload) -> float:
    """Time a stage waits over the time it works on micro-batches (F-8).

    Training: (p-1)/m for GPipe and 1F1B, divided by the chunks where interleaved; a third of it for the zero-bubble
    schedule, which fills with weight gradients; DualPipe's own form, with a backward pass of two forward passes, half
    of it for weight gradients. Inference: stages wait only where there are fewer micro-batches than stages, since one
    step follows the other.
    """
    p = workload.parallel
    if workload.phase != "train":
        return max(p.pp - p.micro_batches, 0) / p.micro_batches
    if p.stage_copies > 1:
        return dualpipe_bubble(p.pp, 1.0, 2.0, 1.0) / (3.0 * p.micro_batches)
    schedule = 3.0 if p.schedule == "zero_bubble" else float(p.virtual_stages)
    return (p.pp - 1) / (schedule * p.micro_batches)


def _hand_over(ctx: StepContext) -> list[Op]:
    """Activations that a stage sends to the next one, once for each chunk and micro-batch (F-7.6)."""
    p = ctx.workload.parallel
    if p.pp == 1:
        return []
    size = ctx.tokens * ctx.hidden * ctx.wire / ctx.sequence_shards
    far = ctx.layout.far_hand_overs(p.virtual_stages)
    hops = (p.pp * p.virtual_stages - 1) / p.pp  # of the mean stage: the last chunk sends nothing
    return [
        Op(
            "stage hand-over",
            "pipeline",
            "collective",
            count=hops * ctx.micro_batches,
            net={"scale_up": size * (1.0 - far), "scale_out": size * far},
            hops=far,
            turns=1.0,
            formula="tokens hidden bytes to the next stage",
        )
    ]


def _axes(model: ModelSpec, workload: Workload, grid: Mapping[str, Any]) -> dict[str, Grid]:
    """The numbers that a sweep may vary, as floats: whole numbers up to 2**53 stay exact, and nothing overflows."""
    axes: dict[str, Grid] = {
        "batch": float(workload.batch),
        "seq_len": float(workload.seq_len),
        "context_len": float(workload.context_len),
        "tp": float(workload.parallel.tp),
    }
    if model.denoiser is not None:
        axes["seq_len"] = float(latent_tokens(model, workload))
    for name, values in grid.items():
        if name not in axes:
            raise InvalidInput(("axes", name), f"cannot be swept: use {', '.join(axes)}")
        if model.denoiser is not None and name in ("seq_len", "context_len"):
            raise InvalidInput(("axes", name), "a denoiser's tokens follow from width, height and frames")
        axis = np.asarray(values, dtype=np.float64)
        least = 0 if name == "context_len" else 1
        if not np.all((axis >= least) & (axis <= MAX_TOKENS) & (axis == np.floor(axis))):
            raise InvalidInput(("axes", name), f"must hold whole numbers from {least} to {MAX_TOKENS}")
        axes[name] = axis if axis.ndim else float(axis)
    return axes


def _layer_rows(ctx: StepContext, group: LayerGroup) -> list[Op]:
    count = group.count * ctx.runs
    if isinstance(group.mixer, Attention) and group.mixer.kind == "cross" and not _source(ctx):
        return []  # without another input the whole layer is skipped
    halves = _halves(group)
    rows: list[Op] = []
    shared_norm = ctx.model.parallel_block and group.norms == 1
    extra = max(group.norms - len(halves), 0)
    mixers = halves if group.mlp is None else halves[:-1]
    for parts, half, behind in (
        (mixers, group.mixer, (extra + 1) // 2),
        (halves[len(mixers) :], group.mlp, extra // 2),
    ):
        for name, stage in () if shared_norm and rows else parts:
            rows += norm_rows(ctx, f"{name} norm", stage, count, residual=True)
        rows += _half_rows(ctx, half, count)
        for _ in range(behind if parts else 0):
            rows += norm_rows(ctx, f"post-{parts[0][0]} norm", parts[0][1], count, residual=False)
    if ctx.model.parallel_block and group.mixer is not None and group.mlp is not None:
        # both halves add into one sum, so one all-reduce serves the layer; other exchanges stay
        first = next(i for i, op in enumerate(rows) if op.name.endswith("all-reduce"))
        del rows[first]
    return rows


_STATE_FIRST = (*STATE_MIXERS, SharedBlockThenMixer)
"""Mixers whose norm is before a state-space mixer alone."""


def _halves(group: LayerGroup) -> list[tuple[str, str]]:
    """The parts of a layer that add into the residual stream, each by name with the stage of its rows."""
    halves: list[tuple[str, str]] = []
    if isinstance(group.mixer, _STATE_FIRST):
        halves.append(("mixer", "state mixer"))
    elif isinstance(group.mixer, ParallelMixers):
        halves.append(("mixer", "attention"))  # one norm for attention and state mixer
    elif group.mixer is not None:
        halves.append(("attention", "attention"))
    if isinstance(group.mixer, SelfAndCrossAttention):
        halves.append(("cross-attention", "cross-attention"))
    if group.mlp is not None:
        halves.append(("mlp", "moe" if isinstance(group.mlp, MoeMlp) else "mlp"))
    return halves


def _half_rows(ctx: StepContext, half: Mixer | Mlp | None, count: float) -> list[Op]:
    """Rows of the mixers or the MLPs of `count` layers. Groups of layers often differ in one of the two only, so what
    was built for one of them serves the others, with their count."""
    known = ctx.halves.get(half)
    if known is None:
        if isinstance(half, (DenseMlp, RwkvFfn, MoeMlp)):
            rows = _mlp_rows(ctx, half, count)
        else:
            rows = _mixer_rows(ctx, half, count)
        ctx.halves[half] = count, rows
        return rows
    before, rows = known
    return [op.having(count=op.count / before * count) for op in rows]


def _mlp_rows(ctx: StepContext, mlp: Mlp, count: float) -> list[Op]:
    if isinstance(mlp, RwkvFfn):
        return rwkv_ffn_rows(ctx, mlp, count)
    return moe_rows(ctx, mlp, count) if isinstance(mlp, MoeMlp) else mlp_rows(ctx, mlp, count)


def _mixer_rows(ctx: StepContext, mixer: Mixer | None, count: float) -> list[Op]:
    if isinstance(mixer, Attention):
        if mixer.kind == "cross":
            return cross_attention_rows(ctx, mixer, count, _source(ctx))
        return attention_rows(ctx, mixer, count)
    if isinstance(mixer, LatentAttention):
        return latent_attention_rows(ctx, mixer, count)
    if isinstance(mixer, CompressedAttention):
        return compressed_attention_rows(ctx, mixer, count)
    if isinstance(mixer, STATE_MIXERS):
        return state_mixer_rows(ctx, mixer, count)
    if isinstance(mixer, ParallelMixers):
        # the outputs are added, so one all-reduce serves both
        *attention, _ = attention_rows(ctx, mixer.attention, count)
        return attention + state_mixer_rows(ctx, mixer.state, count)
    if isinstance(mixer, SharedBlockThenMixer):
        return shared_block_rows(ctx, mixer.block, count) + state_mixer_rows(ctx, mixer.mixer, count)
    if isinstance(mixer, SelfAndCrossAttention):
        own = attention_rows(ctx, mixer.own, count)
        return own + cross_attention_rows(ctx, mixer.cross, count, _source(ctx))
    return []


def _source(ctx: StepContext) -> int:
    return source_tokens(ctx.model, ctx.workload)


def _way_back(ctx: StepContext, passes: Passes, handed: list[Op]) -> list[Op]:
    """Rows of the backward pass, ends of the model first."""

    def back(ops: list[Op]) -> list[Op]:
        return [row for op in ops for row in backward_of(op, ctx)]

    scattered = ctx.workload.parallel.zero_stage >= 2
    found = passes.backward.get(scattered)
    if found is None:
        before, layers, after = passes.forward
        found = passes.backward[scattered] = (back(before), back(layers), back(after))
    before, layers, after = found
    return [*after, *layers, *back(handed), *before]


def _update_rows(ctx: StepContext) -> list[Op]:
    """What follows the passes: the optimizer, and the exchange of gradients and parameters between replicas."""
    workload = ctx.workload
    rows: list[Op] = []
    parameters = running_parameters(ctx.model, ctx.workload, ctx.layout)
    if isinstance(ctx.model.denoiser, DiffusionTransformer):
        # of several stored networks a step updates the one that it runs
        parameters = replace(parameters, dense=parameters.dense / ctx.model.denoiser.networks)
    updated = parameters.sharded(ctx.layout) if workload.parallel.zero_stage >= 1 else parameters.total
    per_parameter = optimizer_bytes_per_parameter(workload.optimizer, workload.dtypes)
    if workload.optimizer != "none" and workload.offload.optimizer:
        rows.append(_update_on_host(ctx, updated))
    elif workload.optimizer != "none":
        rows.append(
            Op(
                "optimizer step",
                "optimizer",
                "optimizer",
                direction="optimizer",
                pipe="vector",
                dtype="fp32",
                flop=12.0 * updated,
                state=updated * per_parameter.traffic,
                formula=f"{per_parameter.traffic:g} bytes a parameter, read and written once",
            )
        )
    return rows + _gradient_exchange(ctx, parameters)


def _update_on_host(ctx: StepContext, updated: Grid) -> Op:
    """The optimizer step in the host's memory: gradients go out while parameters come back, both ways at once. Where
    the parameters lie on the host as well, nothing comes back."""
    dtypes = ctx.workload.dtypes
    gradients, weights = dtypes.bytes_of("gradients"), dtypes.bytes_of("weights")
    each = gradients if ctx.workload.offload.parameters else max(gradients, weights)
    return Op(
        "optimizer step",
        "optimizer",
        "copy",
        direction="optimizer",
        launches=0.0,
        net={"host": updated * each},
        formula="gradients out while parameters come back, once a step",
    )


def _host_transfers(ctx: StepContext, forward: Sequence[Op]) -> list[Op]:
    """Activations and parameters that lie in the host's memory: what crosses its link in a step, one way each."""
    workload = ctx.workload
    offload, training = workload.offload, ctx.training
    rows: list[Op] = []
    if training and offload.activations:
        saved = saved_activations(ctx.model, workload, ctx.layout, float(np.max(ctx.tokens)), 1.0 / ctx.layout.pp)
        out = Op(
            "activations to the host",
            "offload",
            "copy",
            count=float(ctx.micro_batches) if saved.moved else 0.0,
            net={"host": saved.moved},
            hidden=offload.hidden,
            formula="saved activations of the offloaded modules, once out and once back",
        )
        rows += [out, replace(out, name="activations to the host, back", direction="backward")]
    if offload.parameters:
        parameters = running_parameters(ctx.model, workload, ctx.layout)
        zero = workload.parallel.zero_stage
        share = parameters.sharded(ctx.layout) / parameters.total if zero >= 3 else 1.0
        # what the products of one pass read has to come in; a layer that is fetched again is read again
        size = sum((op.weights * op.count for op in forward), start=0.0) * share
        fetch = Op(
            "parameters from the host",
            "offload",
            "copy",
            net={"host": size},
            hidden=offload.hidden,
            formula="weights that one pass over the layers reads",
        )
        rows.append(fetch)
        if training:
            rows.append(replace(fetch, name="parameters from the host, backward", direction="backward"))
        if training and workload.optimizer != "none" and not offload.optimizer:
            updated = parameters.sharded(ctx.layout) if zero >= 1 else parameters.total
            back = updated * workload.dtypes.bytes_of("weights")
            name = "updated parameters to the host"
            rows.append(replace(fetch, name=name, direction="optimizer", net={"host": back}))
    return rows


def _gradient_exchange(ctx: StepContext, parameters: StageParameters) -> list[Op]:
    """Data-parallel traffic of a step (F-6.3): gradients reduced, with ZeRO-2 and 3 for each micro-batch, and with
    ZeRO-3 parameters gathered twice for each.

    Context parallelism replicates the dense parameters like data parallelism does; experts are replicated less.
    """
    parallel, dtypes = ctx.workload.parallel, ctx.workload.dtypes
    # wider parameters and gradients travel in the communication precision (mixed-precision sharding does so)
    gradient = min(dtypes.bytes_of("gradients"), ctx.wire)
    weight = min(dtypes.bytes_of("weights"), ctx.wire)
    # a micro-batch passes one of the stages that a device holds
    passes = float(parallel.micro_batches) / parallel.stage_copies
    gathers = 2.0 * passes if parallel.zero_stage == 3 else 1.0
    # who keeps a share of the gradients has nowhere to add up the others': they are reduced for each micro-batch
    scatters = passes if parallel.zero_stage >= 2 else 1.0
    rows: list[Op] = []
    for what, size, group in (
        ("", parameters.dense, ctx.layout.data_group),
        ("expert ", parameters.experts, ctx.layout.expert_data_group),
    ):
        if not np.any(np.asarray(size) > 0):
            continue
        stage = "data parallel"
        if parallel.zero_stage == 0:
            rows += ctx.exchange(f"{what}gradient all-reduce", stage, "all_reduce", size * gradient, group, 1.0)
        else:
            rows += ctx.exchange(
                f"{what}gradient reduce-scatter", stage, "reduce_scatter", size * gradient, group, scatters
            )
            rows += ctx.exchange(f"{what}parameter all-gather", stage, "all_gather", size * weight, group, gathers)
    return [row.having(direction="backward") for row in rows]


_EXCHANGE_NOTES: Mapping[str, str] = {
    "hierarchical": "A token crosses to a node once and to a rank once; its experts are taken as evenly spread.",
    "deduplicated": "A token is sent once straight to each rank that holds one of its experts, evenly spread.",
    "all_to_all": "A token is sent once for each of its experts, evenly spread.",
    "all_gather": "Every token goes to every rank that shares the experts, and sums come back.",
}


def _assumptions(model: ModelSpec, workload: Workload, layout: Layout) -> tuple[str, ...]:
    p = workload.parallel
    notes = [
        "Rows are those of one device; attention, norms, activations and sampling are each one fused kernel.",
        "Useful FLOP count causal attention as the visible pairs only.",
        *input_assumptions(model, workload),
    ]
    if model.undescribed is not None:
        notes.append(f"Not counted: {model.undescribed}.")
    if model.is_moe:
        notes.append("Expert weights are read for the expected number of distinct experts that the routing reaches.")
        if workload.routing.kind in ("zipf", "histogram") and p.ep > 1:
            notes.append("Experts lie on ranks in the order given, neighbours together; nothing rebalances them.")
    if any(isinstance(m, LatentAttention) for _, m in model.attention_groups()):
        absorbed = workload.phase == "decode"
        notes.append(f"Latent attention runs {'absorbed' if absorbed else 'expanded to keys and values'}.")
    if p.tp > 1 and model.vocab_size:
        ends = "the embedding table" + (" and of the head's gradients" if workload.phase == "train" else "")
        notes.append(
            f"Exchanges of tensor parallelism are those of the layers (F-7.1); sums of {ends} are not counted."
        )
    if p.pp > 1:
        notes.append(
            "Rows are those of the mean pipeline stage: embedding, layers and head are spread evenly; the update and"
            " the exchange of gradients are those of the fullest stage."
        )
    if p.stage_copies > 1:
        notes.append(
            "DualPipe: a device holds two stages, so what lies there whole is held twice and what ZeRO divides is"
            " spread over twice as many devices; the two that hold the same stages reduce their gradients together."
            " p + 1 micro-batches are in flight; the bubble is (p/2 - 1)(F&B + B - 3W) with B = 2F, W = F and F&B = 3F"
            " (DeepSeek-V3, arXiv 2412.19437)."
        )
    if model.is_moe and layout.folded and p.tp > 1:
        notes.append("Experts follow tensor parallelism: neither ep nor etp was given.")
    if p.ep > 1:
        note = _EXCHANGE_NOTES[workload.dispatch.scheme]
        if workload.routing.kind in ("zipf", "histogram"):
            note = note.replace("evenly spread", "spread over ranks as the routing has them")
        notes.append(note)
    if model.is_moe and workload.dispatch.node_limit is not None and p.ep > 1:
        notes.append(f"The experts of a token lie on at most {workload.dispatch.node_limit} nodes.")
    if model.is_moe and workload.dispatch.capacity_factor is not None:
        notes.append("Every expert works on its whole capacity; copies above it are dropped and never sent.")
    if model.is_moe and workload.dispatch.replicas:
        notes.append("Replicas are laid on the emptiest ranks; moving their weights there is not counted.")
    if p.cp > 1 and workload.phase != "decode":
        notes.append("Context parallelism divides causal work evenly (zig-zag placement).")
        latent = any(isinstance(m, LatentAttention) for _, m in model.attention_groups())
        if p.context_exchange == "all_to_all" and latent:
            notes.append("Latents go around a ring: they have no heads of keys that an all-to-all could trade.")
    notes += _module_notes(model, workload)
    if workload.phase == "train" and model.generates:
        notes.append("Logits are produced for every position; the loss writes its gradient in one pass.")
    return tuple(notes)


def _module_notes(model: ModelSpec, workload: Workload) -> list[str]:
    """What recomputation and offload by module take for granted."""
    offload = workload.offload
    notes: list[str] = []
    if not (workload.recompute_modules or offload.any):
        return notes
    again, held = modules_of(model)
    absent: list[str] = [name for name in workload.recompute_modules if name not in again]
    absent += [name for name in offload.activations if name not in held]
    if absent:
        notes.append(f"{model.name} has no {', '.join(dict.fromkeys(absent))}: choosing it changes nothing.")
    if workload.recompute_modules:
        notes.append("Of what is recomputed one layer at a time is back in memory.")
    if offload.activations or offload.parameters:
        notes.append("Of what lies on the host two layers are on the device: the running one and the next.")
    if offload.any:
        notes.append(
            f"The expected time takes {offload.hidden:.0%} of the transfers of activations and parameters as hidden "
            "behind the layers; the update on the host itself takes no time here."
        )
    return notes
