"""What lies in a device's memory, object by object."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from app.domain.activations import saved_activations
from app.domain.denoiser import DiffusionTransformer, UNet, denoiser_parameters, unet_steps
from app.domain.inputs import latent_tokens, source_tokens, visual_tokens
from app.domain.layout import Layout, layout_of
from app.domain.mixer_parameters import group_mixer_parameters, kv_heads_of_rank, rwkv_ffn_parameters
from app.domain.model import (
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    ModelSpec,
    MoeMlp,
    RwkvFfn,
)
from app.domain.parameters import (
    extra_parameters,
    has_own_head,
    index_key_elements,
    mixer_kv_elements,
    state_elements_per_sequence,
)
from app.domain.precision import index_key_bytes
from app.domain.units import Bytes, Grid
from app.domain.workload import MAX_TOKENS, Dtypes, Workload


@dataclass(frozen=True, slots=True)
class ShardedParameters:
    """Parameters of all layers on one device of a tensor-parallel group, by what they belong to.

    `experts` are the routed experts' matrices; the router and shared experts belong to `mlp`.
    """

    embedding: Grid
    head: Grid
    attention: Grid
    mlp: Grid
    experts: Grid
    norms: Grid

    @property
    def total(self) -> Grid:
        return self.embedding + self.head + self.attention + self.mlp + self.experts + self.norms


def sharded_parameters(model: ModelSpec, tp: Grid = 1, *, expert_shards: Grid | None = None) -> ShardedParameters:
    """Parameters of one rank of a tensor-parallel group of `tp` (F-2.1 to F-2.5, F-5.1 for replicated KV heads).

    Matrices are divided; norms are kept whole by every rank; a KV head is copied where there are more ranks than heads.
    Routed experts are divided over `expert_shards` ranks (by default those of the tensor-parallel group).
    """
    shards = tp if expert_shards is None else expert_shards
    if model.denoiser is not None:
        parts = denoiser_parameters(model.denoiser, tp)
        rest = parts.total - parts.attention - parts.mlp
        return ShardedParameters(rest, 0.0, parts.attention, parts.mlp, 0.0, 0.0)
    h = model.hidden_size
    table = model.vocab_size * h / tp
    positions: Grid = float(model.learned_positions * h + extra_parameters(model))
    norm_width = h * (2 if model.norm_has_bias else 1)
    attention: Grid = 0.0
    mlp: Grid = 0.0
    experts: Grid = 0.0
    norms: Grid = float(norm_width if model.final_norm else 0)
    for group in model.layers:
        attention = attention + group_mixer_parameters(group, h, tp)
        mlp = mlp + group.count * _mlp_parameters(group, h, tp)
        experts = experts + group.count * _expert_parameters(group, h, shards)
        norms = norms + group.count * group.norms * norm_width
    head: Grid = table if has_own_head(model) else 0.0
    if model.lm_head_bias:
        head = head + model.vocab_size / tp
    if model.encoder is not None:
        encoder = sharded_parameters(model.encoder, tp)
        attention, mlp, norms = attention + encoder.attention, mlp + encoder.mlp, norms + encoder.norms
        positions = positions + encoder.embedding
    return ShardedParameters(
        embedding=table + positions, head=head, attention=attention, mlp=mlp, experts=experts, norms=norms
    )


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters of one device of a pipeline stage: `dense` are replicated by data and context parallelism, `experts`
    only by what expert parallelism leaves."""

    dense: Grid
    experts: Grid

    @property
    def total(self) -> Grid:
        return self.dense + self.experts

    def sharded(self, layout: Layout) -> Grid:
        """Parameters of one device when each is kept by one of its replicas only (ZeRO)."""
        replicas = self.dense / (layout.dp * layout.cp) + self.experts / layout.expert_replicas
        return replicas / layout.stage_copies


Stage: TypeAlias = int | Literal["heaviest"]
"""A pipeline stage counted from 0, or one that holds the most of everything."""


def stage_layers(model: ModelSpec, layout: Layout, stage: Stage = "heaviest") -> int:
    """Layers of a stage: as many as divide evenly, and one more in the first stages where some are left over."""
    each, left = divmod(model.num_layers, layout.pp)
    return each + (1 if left and (stage == "heaviest" or stage < left) else 0)


def _layer_share(model: ModelSpec, layout: Layout, stage: Stage) -> float:
    return stage_layers(model, layout, stage) / model.num_layers if model.num_layers else 1.0


def stage_parameters(model: ModelSpec, layout: Layout, stage: Stage = "heaviest") -> StageParameters:
    """Parameters of a device of one stage, or of the heaviest that there could be.

    The first stage also holds the embedding, the last one the output head (a copy of the embedding where the two are
    tied).
    """
    whole = sharded_parameters(model, layout.tp, expert_shards=layout.ep * layout.etp)
    share = _layer_share(model, layout, stage)
    head = whole.embedding if model.tied_embeddings and layout.pp > 1 else whole.head
    ends: Grid
    if layout.pp == 1:
        ends = whole.embedding + whole.head
    elif stage == "heaviest":
        ends = np.maximum(whole.embedding, head)
    else:
        ends = whole.embedding if stage == 0 else head if stage == layout.pp - 1 else 0.0
    return StageParameters((whole.attention + whole.mlp + whole.norms) * share + ends, whole.experts * share)


def _mlp_parameters(group: LayerGroup, h: int, tp: Grid) -> Grid:
    m = group.mlp
    if isinstance(m, RwkvFfn):
        return rwkv_ffn_parameters(m, h, tp)
    if isinstance(m, DenseMlp):
        return _matrices(h, m.intermediate, m.gated, m.bias, tp)
    if isinstance(m, MoeMlp):
        router = h * m.experts + (m.experts if m.router_bias else 0)
        beside = sum(
            _matrices(h, width, m.gated, m.expert_bias, tp)
            for width in (m.shared_intermediate, m.dense_intermediate)
            if width
        )
        latent = 0 if m.latent_size is None else 2 * h * m.latent_size
        gate = h if m.shared_expert_gate and m.shared_intermediate else 0
        return router + beside + latent + gate
    return 0.0


def _expert_parameters(group: LayerGroup, h: int, shards: Grid) -> Grid:
    m = group.mlp
    if not isinstance(m, MoeMlp):
        return 0.0
    routed = h if m.latent_size is None else m.latent_size
    return m.experts * _matrices(routed, m.expert_intermediate, m.gated, m.expert_bias, shards)


def _matrices(h: int, width: int, gated: bool, bias: bool, tp: Grid) -> Grid:
    matrices = 3 if gated else 2
    return matrices * h * width / tp + (((matrices - 1) * width / tp + h) if bias else 0)


def _with_replicas(model: ModelSpec, replicas: int) -> float:
    """Experts held by all ranks with so many further copies a layer, over those without."""
    if not replicas:
        return 1.0
    layers = [group for group in model.layers if isinstance(group.mlp, MoeMlp)]
    sizes = [group.count * float(_expert_parameters(group, model.hidden_size, 1.0)) for group in layers]
    experts = [group.mlp.experts for group in layers if isinstance(group.mlp, MoeMlp)]
    more = [size * replicas / number for size, number in zip(sizes, experts, strict=True)]
    return 1.0 + sum(more) / sum(sizes) if sizes else 1.0


def largest_unit(model: ModelSpec, layout: Layout) -> float:
    """Parameters of the largest part that is fetched at once where they lie on the host: a layer, or a table."""
    parts = sharded_parameters(model, layout.tp, expert_shards=layout.ep * layout.etp)
    if model.denoiser is not None:
        denoiser = model.denoiser
        if isinstance(denoiser, UNet):
            return float(parts.total) / max(len(list(unet_steps(denoiser))), 1)
        return float(parts.total) / max(denoiser.double_blocks + denoiser.single_blocks, 1)
    h, shards = model.hidden_size, layout.ep * layout.etp
    layers = [
        float(group_mixer_parameters(group, h, layout.tp)) / max(group.count, 1)
        + float(_mlp_parameters(group, h, layout.tp) + _expert_parameters(group, h, shards))
        for group in model.layers
    ]
    return max([*layers, float(parts.embedding), float(parts.head)])


def running_parameters(
    model: ModelSpec, workload: Workload, layout: Layout, stage: Stage = "heaviest"
) -> StageParameters:
    """Parameters of a device with those of the tower and the prediction modules that the workload asks for.

    In a pipeline that runs from both ends a device also holds the stage at its other end.
    """
    if layout.stage_copies > 1:
        near = 0 if stage == "heaviest" else stage
        ends = [stage_parameters(model, layout, held) for held in (near, layout.pp - 1 - near)]
        own = StageParameters(ends[0].dense + ends[1].dense, ends[0].experts + ends[1].experts)
    else:
        own = stage_parameters(model, layout, stage)
    dense: Grid = own.dense
    experts: Grid = own.experts * _with_replicas(model, workload.dispatch.replicas)
    if model.tower is not None and visual_tokens(model, workload):
        tower = sharded_parameters(model.tower.stack, layout.tp)
        dense = dense + tower.total + model.tower.projector_elements
    if model.prediction is not None and workload.prediction_modules:
        n, h = workload.prediction_modules, model.hidden_size
        alone = replace(model, layers=model.prediction.layers, encoder=None, vocab_size=0, learned_positions=0)
        module = sharded_parameters(alone, layout.tp, expert_shards=layout.ep * layout.etp)
        # the projection of state and embedding, and their norms
        dense = dense + n * (module.total - module.experts + 2 * h * h + 2 * h)
        experts = experts + n * module.experts
    return StageParameters(dense, experts)


@dataclass(frozen=True, slots=True)
class OptimizerBytes:
    """Bytes a parameter: `state` resident (moments and `master` copy), `traffic` read and written by one step."""

    state: Bytes
    traffic: Bytes
    master: Bytes = 0.0


def optimizer_bytes_per_parameter(optimizer: str, dtypes: Dtypes) -> OptimizerBytes:
    """Optimizer bytes by kind (F-4.10, F-6.1). A master copy in fp32 is kept where weights are stored narrower."""
    if optimizer == "none":
        return OptimizerBytes(0.0, 0.0)
    w, g, s = dtypes.bytes_of("weights"), dtypes.bytes_of("gradients"), dtypes.bytes_of("optimizer")
    master = 4.0 if w < 4 else 0.0
    source = master or w  # what the update reads
    moments = {"adamw": 2 * s, "adamw8bit": 2.0, "sgd": s}[optimizer]
    return OptimizerBytes(moments + master, g + moments + source + moments + master + w, master)


def kv_bytes_per_token(model: ModelSpec, kv: Bytes, tp: Grid = 1, *, context_len: Grid | None = None) -> Grid:
    """Cache bytes one more token of one sequence takes on one rank (F-5.1).

    Layers with a window stop growing at it: with `context_len` given, the average over a sequence of that length.
    """
    total: Grid = 0.0
    for group, a in model.attention_groups():
        total = total + group.count * mixer_kv_elements(a, tp) * kv * _kept_share(a, context_len)
        total = total + group.count * index_key_elements(a) * index_key_bytes(kv)
    for group in model.layers:
        mixer = group.mixer
        if isinstance(mixer, CompressedAttention):
            window = mixer.head_dim * _window_share(mixer.window, context_len)
            entries = mixer_kv_elements(mixer) - mixer.head_dim
            total = total + group.count * (window + entries) * kv
            total = total + group.count * index_key_elements(mixer) * index_key_bytes(kv)
    return total


def state_bytes_per_sequence(model: ModelSpec, kv: Bytes, tp: Grid = 1, *, other_tokens: int = 0) -> Grid:
    """Bytes of one sequence on one rank that do not grow with its context (F-5.1).

    Recurrent and convolution states, and the keys and values of `other_tokens` tokens of another input that
    cross-attention layers keep. States are in the precision of the cache.
    """
    total = state_elements_per_sequence(model, tp) * kv
    for group, a in model.attention_groups():
        if isinstance(a, Attention) and a.kind == "cross":
            width = kv_heads_of_rank(a, tp) * (a.head_dim + a.v_head_dim)
            total = total + group.count * width * other_tokens * kv
    return total


def _kept_share(a: Attention | LatentAttention, context_len: Grid | None) -> Grid:
    return 1.0 if isinstance(a, LatentAttention) else _window_share(a.window, context_len)


def _window_share(window: int | None, context_len: Grid | None) -> Grid:
    if context_len is None or window is None:
        return 1.0
    kept = np.minimum(context_len, window) / np.maximum(context_len, 1)
    return float(kept) if np.ndim(kept) == 0 else kept


OBJECTS: tuple[str, ...] = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "kv_cache",
    "workspace",
    "communication",
    "fragmentation",
)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on one device by object; objects that hold nothing are zero. `peak` is their sum."""

    objects: dict[str, float]
    capacity: Bytes | None
    largest_batch: int | None

    @property
    def peak(self) -> Bytes:
        return sum(self.objects.values())

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the capacity; None where the profile states no capacity."""
        return None if self.capacity is None else self.peak <= self.capacity


MemoryEdit: TypeAlias = Callable[[Mapping[str, float], Workload], Mapping[str, float]]
"""Resident bytes by object to other ones: what a lever does to memory."""


def memory_use(
    model: ModelSpec,
    workload: Workload,
    capacity: Bytes | None,
    *,
    ranks_per_node: int = 8,
    edit: MemoryEdit | None = None,
) -> MemoryUse:
    """Least resident bytes of the fullest device during the step, and the largest batch that would fit.

    Parameters, gradients and optimizer state by F-6.1 and F-6.2; KV cache by F-5.1 in whole pages (F-5.3); activations
    by F-6.5 in the form for gated blocks; logits by F-6.6. Of a pipeline the first stage is looked at, which holds the
    most micro-batches, and the last one, which holds the logits. No allocator reserve is assumed: a real engine keeps
    some. Raises InvalidInput for a layout that does not divide the model.
    """
    layout = layout_of(model, workload, ranks_per_node)

    def held_at(stage: int, asked: Workload) -> Mapping[str, float]:
        return _edited(model, asked, layout, stage, edit)

    stages = {stage: held_at(stage, workload) for stage in dict.fromkeys((0, layout.pp - 1))}
    fullest = max(stages.values(), key=lambda objects: sum(objects.values()))
    largest: int | None = None
    if capacity is not None:
        largest = min(_largest_batch(held_at, stage, held, workload, capacity) for stage, held in stages.items())
    return MemoryUse(objects=dict(fullest), capacity=capacity, largest_batch=largest)


def memory_by_stage(
    model: ModelSpec,
    workload: Workload,
    *,
    ranks_per_node: int = 8,
    edit: MemoryEdit | None = None,
    stages: Sequence[int] | None = None,
) -> dict[int, dict[str, float]]:
    """Resident bytes by object of a device of each pipeline stage, or of those asked for.

    The fullest of them is what `memory_use` answers. Raises InvalidInput as it does.
    """
    layout = layout_of(model, workload, ranks_per_node)
    return {
        stage: dict(_edited(model, workload, layout, stage, edit))
        for stage in (range(layout.pp) if stages is None else stages)
    }


def _edited(
    model: ModelSpec, workload: Workload, layout: Layout, stage: int, edit: MemoryEdit | None
) -> Mapping[str, float]:
    objects = _objects(model, workload, layout, stage)
    return objects if edit is None else edit(objects, workload)


def _largest_batch(
    held_at: Callable[[int, Workload], Mapping[str, float]],
    stage: int,
    objects: Mapping[str, float],
    workload: Workload,
    capacity: Bytes,
) -> int:
    """Whole sequences that fit on a stage: the guess that bytes grow evenly with them, held against what they take."""

    def fits(batch: int) -> bool:
        return batch < 1 or sum(held_at(stage, replace(workload, batch=batch)).values()) <= capacity

    fixed = sum(objects[name] for name in ("parameters", "gradients", "optimizer"))
    grown = sum(objects.values()) - fixed
    guess = math.floor((capacity - fixed) * workload.batch / grown) if grown > 0 else 0
    low = min(max(guess, 0), MAX_TOKENS)
    if low < MAX_TOKENS and fits(low) and not fits(low + 1):
        return low
    high = low + 1
    step = 1
    while low and not fits(low):
        high, low, step = low, max(low - step, 0), step * 2
    while high <= MAX_TOKENS and fits(high):
        low, high, step = high, high + step, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        if middle <= MAX_TOKENS and fits(middle):
            low = middle
        else:
            high = middle
    return low


def micro_batches_in_flight(workload: Workload, stage: int = 0) -> float:
    """Micro-batches whose activations a stage holds at once, in units of its own layers (F-8).

    GPipe runs all forward passes first, on every stage; 1F1B and zero bubble hold one for the stage itself and for each
    one after it; interleaved in v chunks, a stage runs ((v-1) p + 2 (p-1-stage) + 1) of them before its first backward
    pass. Never more than there are. DualPipe holds p + 1 on every device, over both directions.
    """
    p = workload.parallel
    if p.pp == 1:
        return 1.0
    if p.schedule == "dualpipe":
        return float(min(p.pp + 1, p.micro_batches))
    if p.schedule == "gpipe":
        return float(p.micro_batches)
    later = p.pp - 1 - stage
    chunks = (p.virtual_stages - 1) * p.pp + 2 * later + 1 if p.virtual_stages > 1 else later + 1
    return min(chunks / p.virtual_stages, float(p.micro_batches))


def _objects(model: ModelSpec, workload: Workload, layout: Layout, stage: int) -> dict[str, float]:
    p, dtypes = workload.parallel, workload.dtypes
    parameters = running_parameters(model, workload, layout, stage)
    whole, sharded = float(parameters.total), float(parameters.sharded(layout))
    stages = (stage, layout.pp - 1 - stage) if layout.stage_copies > 1 else (stage,)
    share = sum(_layer_share(model, layout, held) for held in stages) / len(stages)
    objects = dict.fromkeys(OBJECTS, 0.0)
    held = sharded if p.zero_stage >= 3 else whole
    if workload.offload.parameters:
        held = min(held, 2.0 * largest_unit(model, layout) * (sharded / whole if p.zero_stage >= 3 else 1.0))
    objects["parameters"] = held * dtypes.bytes_of("weights")
    decoding = workload.phase == "decode"
    tokens = workload.new_tokens / (1 if decoding else p.cp)
    if model.denoiser is not None:
        tokens = float(workload.batch * latent_tokens(model, workload))
    a = dtypes.bytes_of("activations")
    has_head = model.generates and layout.pp - 1 in stages
    if workload.phase == "train":
        objects["gradients"] = (sharded if p.zero_stage >= 2 else whole) * dtypes.bytes_of("gradients")
        state = optimizer_bytes_per_parameter(workload.optimizer, dtypes).state
        if not workload.offload.optimizer:
            objects["optimizer"] = (sharded if p.zero_stage >= 1 else whole) * state
        saved = saved_activations(model, workload, layout, tokens, share)
        objects["activations"] = micro_batches_in_flight(workload, stage) * saved.kept + saved.live
        if has_head:
            # bf16 logits with their gradient, and the fp32 copy the softmax works on (F-6.6); the loss of a prediction
            # module writes its gradient in the forward pass, where it waits for the backward one
            objects["logits"] = tokens * model.vocab_size / p.tp * (a + a + 4.0 + workload.prediction_modules * a)
    else:
        context = workload.context_len + workload.seq_len
        pages = -(-context // workload.kv.page_tokens) * workload.kv.page_tokens
        caching = model.with_prediction(workload.prediction_modules)
        per_token = kv_bytes_per_token(caching, dtypes.bytes_of("kv"), p.tp, context_len=pages)
        # every micro-batch in the pipeline keeps its own cache
        objects["kv_cache"] = float(workload.batch * p.micro_batches * pages * per_token) * share / p.cp
        fixed = state_bytes_per_sequence(
            caching, dtypes.bytes_of("kv"), p.tp, other_tokens=source_tokens(model, workload)
        )
        objects["kv_cache"] += float(workload.batch * p.micro_batches * fixed) * share
        # context parallelism divides a prompt, and all ranks of it decode the same token
        copies = 1.0 if decoding else float(p.cp)
        objects["activations"] = tokens * a * _widest_layer(model, layout, copies)
        if model.encoder is not None and not decoding:
            source = workload.batch * source_tokens(model, workload)
            objects["activations"] = max(objects["activations"], source * a * _widest_layer(model.encoder, layout))
        if model.tower is not None and not decoding:
            patches = workload.batch * visual_tokens(model, workload) * model.tower.merge
            objects["activations"] = max(objects["activations"], patches * a * _widest_layer(model.tower.stack, layout))
        if has_head:
            positions = workload.batch if workload.phase == "prefill" else tokens
            objects["logits"] = positions * model.vocab_size / p.tp * 4.0
    return objects


def _widest_layer(model: ModelSpec, layout: Layout, sequence_parts: float = 1.0) -> float:
    """Elements that live at once inside the widest layer of an inference step, for each token of a rank.

    `sequence_parts` ranks hold a part of each sequence: experts get the copies of all of them.
    """
    widest = 0.0
    tp = float(layout.tp)
    if isinstance(model.denoiser, DiffusionTransformer):
        return 2.0 * model.denoiser.hidden + model.denoiser.intermediate / tp
    if isinstance(model.denoiser, UNet):
        return 4.0 * model.denoiser.channels[0]
    for group in model.layers:
        width = 2.0 * model.hidden_size
        if isinstance(group.mlp, DenseMlp):
            width += (2 if group.mlp.gated else 1) * group.mlp.intermediate / tp
        elif isinstance(group.mlp, MoeMlp):
            m = group.mlp
            copies = layout.dp * sequence_parts * m.top_k / (float(layout.expert_replicas) * layout.ep)
            width += copies * (model.hidden_size + (2 if m.gated else 1) * m.expert_intermediate / float(layout.etp))
        widest = max(widest, width)
    return widest
