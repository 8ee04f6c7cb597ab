"""What training keeps for the backward pass, tensor by tensor: which module it belongs to and which one makes it again.

Recomputation and offload are chosen by module. A tensor is *freed* by recomputing the module that produces it, and it
is *moved* to the host with the module that holds it. `layer` stands for everything between a layer's input and output:
`selective` recomputation is the module `attention_core`, `full` is `layer`, and both are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from app.domain.cost import Op
from app.domain.denoiser import Denoiser, UNet, unet_steps
from app.domain.inputs import source_tokens, visual_tokens
from app.domain.layout import Layout
from app.domain.model import (
    STATE_MIXERS,
    Attention,
    CompressedAttention,
    DenseMlp,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerGroup,
    LightningAttention,
    Mamba1,
    Mamba2,
    ModelSpec,
    MoeMlp,
    Rwkv5,
    Rwkv7,
    RwkvFfn,
    ShortConvolution,
    mixer_parts,
)
from app.domain.units import Bytes
from app.domain.workload import Workload

RECOMPUTE_LABELS: Mapping[str, str] = {
    "attention_core": "Attention core",
    "norms": "Norms",
    "qkv_projection": "QKV projection",
    "mla_up_projection": "MLA up-projection",
    "state_mixer": "State mixer",
    "mlp_activation": "MLP activation",
    "mlp": "Dense MLP",
    "moe_experts": "Routed experts",
    "shared_experts": "Shared experts",
    "moe_layer": "Expert layer",
    "layer": "Whole layer",
}
"""Modules that can be run again in the backward pass, in the order of a layer."""

OFFLOAD_LABELS: Mapping[str, str] = {
    "norms": "Norm",
    "attention": "Attention",
    "state_mixer": "State mixer",
    "mlp": "MLP",
    "moe_experts": "Routed expert",
    "layer": "All",
}
"""Modules whose saved activations can lie in the host's memory."""

_PREFETCHED = 2.0
"""Layers of offloaded tensors on the device at once: the one that runs and the one that is under way."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One thing that the backward pass of a layer needs. `size` is bytes a token, `made_by` the modules that produce it
    again when they are recomputed, `held_by` the module that it moves with."""

    size: Bytes
    held_by: str
    made_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """Bytes of one micro-batch in a stage's layers: `kept` on the device, `moved` to the host. `live` comes back once,
    for the layer whose backward pass runs."""

    kept: Bytes
    live: Bytes
    moved: Bytes


def layer_tensors(model: ModelSpec, workload: Workload, layout: Layout, group: LayerGroup) -> list[Tensor]:
    """What one layer of a group keeps for its backward pass (F-6.5 for gated blocks, F-6.7 for experts)."""
    tp = workload.parallel.tp
    a = workload.dtypes.bytes_of("activations")
    h = _stream(model, workload)
    tensors = [Tensor(2.0 * h, "norms")]  # the inputs of both norms
    for mixer in mixer_parts(group.mixer):
        held = "state_mixer" if isinstance(mixer, STATE_MIXERS) else "attention"
        tensors.append(Tensor(h, held, frozenset({"norms"})))
        tensors += _of_mixer(mixer, tp, a)
    m = group.mlp
    if isinstance(m, DenseMlp):
        inner = m.intermediate / tp * a
        tensors.append(Tensor(h, "mlp", frozenset({"norms"})))
        tensors.append(Tensor((2.0 if m.gated else 1.0) * inner, "mlp", frozenset({"mlp"})))
        tensors.append(Tensor(inner, "mlp", frozenset({"mlp", "mlp_activation"})))
    elif isinstance(m, RwkvFfn):
        tensors.append(Tensor(h, "mlp", frozenset({"norms"})))
        tensors.append(Tensor(2.0 * h + 2.0 * m.intermediate / tp * a, "mlp", frozenset({"mlp"})))
    elif isinstance(m, MoeMlp):
        copies = layout.dp * layout.cp * m.top_k / (float(layout.expert_replicas) * layout.ep) * a
        wide, inner = copies * model.hidden_size, copies * m.expert_intermediate / float(layout.etp)
        shared = m.shared_intermediate / tp * a
        whole, experts, beside = "moe_layer", {"moe_experts", "moe_layer"}, {"shared_experts", "moe_layer"}
        tensors += [
            Tensor(h, "mlp", frozenset({"norms"})),
            Tensor(8.0 * m.top_k, "moe_experts", frozenset({whole})),  # routing maps
            Tensor(wide, "moe_experts", frozenset({whole})),  # tokens in
            Tensor(2.0 * inner, "moe_experts", frozenset(experts)),
            Tensor(inner, "moe_experts", frozenset(experts | {"mlp_activation"})),
            Tensor(wide, "moe_experts", frozenset(experts)),  # tokens out
            Tensor(2.0 * shared, "mlp", frozenset(beside)),
            Tensor(shared, "mlp", frozenset(beside | {"mlp_activation"})),
        ]
    return [tensor for tensor in tensors if tensor.size > 0]


def _of_mixer(mixer: object, tp: int, a: Bytes) -> list[Tensor]:
    """What one mixer keeps beside its input, for each token."""
    if isinstance(mixer, Attention):
        width = mixer.head_dim + mixer.v_head_dim
        keys = max(mixer.kv_heads / tp, 1.0) * width
        # keys and values of another input come from another projection, which is kept
        made = frozenset[str]() if mixer.kind == "cross" else frozenset({"qkv_projection"})
        return [
            Tensor((mixer.heads * mixer.head_dim / tp + keys) * a, "attention", made),
            Tensor(mixer.heads * mixer.v_head_dim / tp * a, "attention"),  # what the output projection reads
            Tensor(4.0 * mixer.heads / tp, "attention"),  # log-sum-exp in fp32
        ]
    if isinstance(mixer, LatentAttention):
        q_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        expanded = mixer.heads * (2 * q_dim + mixer.v_head_dim) / tp
        return [
            Tensor(((mixer.q_lora_rank or 0) + mixer.cached_elements) * a, "attention"),
            Tensor(expanded * a, "attention", frozenset({"mla_up_projection"})),
            Tensor(mixer.heads * mixer.v_head_dim / tp * a, "attention"),
            Tensor(4.0 * mixer.heads / tp, "attention"),
        ]
    if isinstance(mixer, CompressedAttention):
        kept = float(mixer.q_lora_rank + mixer.head_dim + 2 * mixer.pooled_width)
        kept += (2.0 * mixer.heads * mixer.head_dim + mixer.o_groups * mixer.o_lora_rank) / tp
        return [Tensor(kept * a, "attention"), Tensor(4.0 * mixer.heads / tp, "attention")]
    return [Tensor(_state_width(mixer, tp) * a, "state_mixer", frozenset({"state_mixer"}))]


def _state_width(mixer: object, tp: int) -> float:
    """Elements a token that the backward pass of a state mixer needs beside its input."""
    if isinstance(mixer, Mamba1):
        # input and gate, convolved input, step, both maps, output
        return 5.0 * mixer.inner / tp + mixer.dt_rank + 2 * mixer.state
    if isinstance(mixer, Mamba2):
        return (3.0 * mixer.inner + 2 * mixer.conv_channels + mixer.heads) / tp
    if isinstance(mixer, GatedDeltaNet):
        return (4.0 * mixer.key_width + 4.0 * mixer.value_width) / tp
    if isinstance(mixer, KimiDeltaAttention):
        return 9.0 * mixer.width / tp
    if isinstance(mixer, ShortConvolution):
        # input and both gates, the convolved input, output
        return 5.0 * mixer.width / tp
    if isinstance(mixer, (LightningAttention, Rwkv5)):
        return 5.0 * mixer.width / tp
    return 8.0 * mixer.width / tp if isinstance(mixer, Rwkv7) else 0.0


def saved_activations(
    model: ModelSpec, workload: Workload, layout: Layout, tokens: float, share: float
) -> SavedActivations:
    """Bytes that a stage's layers save for the backward pass. `share` is the stage's part of the layers.

    What runs beside them counts like them: an encoder over its source, a tower over the patches behind the workload's
    tokens, with the projector's input, and prediction modules over every token, with what their norms and projection
    read. The backward pass of one follows that of the other, so only the largest is brought back at a time.
    """
    if model.denoiser is not None:
        return SavedActivations(_saved_by_denoiser(model.denoiser, workload, tokens), 0.0, 0.0)
    parts = [_saved_by_layers(model, model.layers, workload, layout, tokens, share)]
    if model.encoder is not None:
        source = float(workload.batch * source_tokens(model, workload))
        parts.append(saved_activations(model.encoder, workload, layout, source, 1.0))
    visual = visual_tokens(model, workload) if model.tower is not None else 0
    if model.tower is not None and visual:
        words = float(workload.batch * visual)
        parts.append(saved_activations(model.tower.stack, workload, layout, words * model.tower.merge, 1.0))
        reads = words * model.tower.projector_elements / model.hidden_size * workload.dtypes.bytes_of("activations")
        parts.append(_outside_layers([Tensor(reads, "norms")], workload, 1.0))
    if model.prediction is not None:
        h = _stream(model, workload)
        front = [Tensor(2.0 * h, "norms"), Tensor(2.0 * h, "norms", frozenset({"norms", "layer"}))]
        for _ in range(workload.prediction_modules):
            parts.append(_outside_layers(front, workload, tokens))
            parts.append(_saved_by_layers(model, model.prediction.layers, workload, layout, tokens, 1.0))
    return SavedActivations(
        kept=sum(part.kept for part in parts),
        live=max(part.live for part in parts),
        moved=sum(part.moved for part in parts),
    )


def _stream(model: ModelSpec, workload: Workload) -> Bytes:
    """Bytes a token of the residual stream on one rank: sequence parallelism keeps 1/tp of everything so wide."""
    p = workload.parallel
    return model.hidden_size / (p.tp if p.sequence_parallel else 1) * workload.dtypes.bytes_of("activations")


def _saved_by_layers(
    model: ModelSpec, groups: Iterable[LayerGroup], workload: Workload, layout: Layout, tokens: float, share: float
) -> SavedActivations:
    again, to_host = workload.recomputed, frozenset(workload.offload.activations)
    kept = moved = brought = fetched = 0.0
    for group in groups:
        tensors = layer_tensors(model, workload, layout, group)
        if "layer" in again:
            # only the layer's input stays; the whole layer comes back
            brought = max(brought, tokens * sum(tensor.size for tensor in tensors))
            left = [Tensor(_stream(model, workload), "norms")]
        else:
            brought = max(brought, tokens * sum(tensor.size for tensor in tensors if tensor.made_by & again))
            left = [tensor for tensor in tensors if not tensor.made_by & again]
        away = tokens * sum(tensor.size for tensor in left if tensor.held_by in to_host or "layer" in to_host)
        kept += group.count * (tokens * sum(tensor.size for tensor in left) - away)
        moved += group.count * away
        fetched = max(fetched, away)
    return SavedActivations(kept * share, brought + min(_PREFETCHED * fetched, moved * share), moved * share)


def _outside_layers(tensors: Iterable[Tensor], workload: Workload, tokens: float) -> SavedActivations:
    """What is read before or behind a stack's layers: freed and moved like what lies in them, and fetched whole."""
    again, to_host = workload.recomputed, frozenset(workload.offload.activations)
    back = tokens * sum(tensor.size for tensor in tensors if tensor.made_by & again)
    left = [tensor for tensor in tensors if not tensor.made_by & again]
    away = tokens * sum(tensor.size for tensor in left if tensor.held_by in to_host or "layer" in to_host)
    return SavedActivations(tokens * sum(tensor.size for tensor in left) - away, back + away, away)


def _saved_by_denoiser(denoiser: Denoiser, workload: Workload, tokens: float) -> float:
    """Activations of a denoiser's backward pass: what products and attention read, for every block (F-6.7)."""
    a, tp = workload.dtypes.bytes_of("activations"), workload.parallel.tp
    if isinstance(denoiser, UNet):
        parts = 0.0
        for step in unet_steps(denoiser):
            wide = {"convolution": 1.0, "residual": 4.0, "transformer": 2.0 + 16.0 * step.depth}[step.kind]
            parts += wide * step.outputs / step.factor**2
        return tokens * parts * a
    text = float(workload.batch * denoiser.text_tokens)
    joint = denoiser.text_attention in ("joint", "joint, shared weights")
    width = 4.0 * denoiser.hidden + (4.0 * denoiser.attention_width + 2.0 * denoiser.intermediate) / tp
    if "layer" in workload.recomputed:
        width = float(denoiser.hidden)
    blocks = denoiser.double_blocks + denoiser.single_blocks
    return blocks * (tokens + (text if joint else 0.0)) * width * a


# ---- which rows run again -------------------------------------------------------------------------------------------

RESIDUAL_NORMS: tuple[str, ...] = ("attention norm", "mixer norm", "cross-attention norm", "mlp norm")
"""Norms of a layer that are fused with the residual addition, by the names of their rows."""

_NAMES: Mapping[str, frozenset[str]] = {
    "norms": frozenset(RESIDUAL_NORMS),
    "qkv_projection": frozenset({"qkv projection", "query and key norm", "rotary and cache append"}),
    "mla_up_projection": frozenset({"query up", "query projection", "latent norm", "key and value up"}),
    "mlp_activation": frozenset({"activation", "expert activation", "shared expert activation"}),
    "moe_experts": frozenset({"expert gate and up", "expert up", "expert activation", "expert down"}),
    "shared_experts": frozenset(
        {f"shared expert {name}" for name in ("gate and up", "up", "activation", "down", "gate")}
    ),
}
"""Forward rows of each module that is part of a stage, by name."""

_FRONT = frozenset({"hidden state norm", "embedding norm"})
"""Norms of a prediction module before its layers: no sum is fused with them."""

_STAGES: Mapping[str, str] = {"mlp": "mlp", "moe_layer": "moe", "state_mixer": "state mixer"}
"""Modules that are a whole stage of a layer, without its norm: a checkpoint runs its exchanges again too."""


def modules_of(model: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules that a model has: those that can be recomputed, and those whose activations can be moved."""
    if model.denoiser is not None:
        return ("attention_core", "layer"), ()
    again, held = {"layer"}, {"layer"}
    stacks = [model]
    if model.encoder is not None:
        stacks.append(model.encoder)
    if model.tower is not None:
        stacks.append(model.tower.stack)
    if model.prediction is not None:
        stacks.append(replace(model, layers=model.prediction.layers))
    plain = Workload(phase="train")
    one = Layout(1.0, 1, 1, 1, 1, 1.0, 1.0, 8, True)
    for stack in stacks:
        for group in stack.layers:
            for tensor in layer_tensors(stack, plain, one, group):
                again |= tensor.made_by
                held.add(tensor.held_by)
    if any(not isinstance(m, STATE_MIXERS) for stack in stacks for g in stack.layers for m in mixer_parts(g.mixer)):
        again.add("attention_core")
    return tuple(m for m in RECOMPUTE_LABELS if m in again), tuple(m for m in OFFLOAD_LABELS if m in held)


def recomputed_rows(model: ModelSpec, workload: Workload, layers: list[Op]) -> list[Op]:
    """Forward rows of a step's layers that run again in the backward pass, each once."""
    modules = workload.recomputed & frozenset(modules_of(model)[0]) if workload.recomputed else frozenset()
    if not modules:
        return []
    tower = None if model.tower is None else f"{model.tower.modality} "
    rows: list[Op] = []
    for op in layers:
        beside = next((prefix for prefix in ("prediction ", tower) if prefix and op.base.startswith(prefix)), "")
        name = op.base.removeprefix(beside).removeprefix("encoder ")
        if "layer" in modules:
            # a stage keeps what it received, so nothing is handed over again; of what runs beside the layers, the ends
            # of a tower and a module's projection keep what they read
            if op.stage == "pipeline":
                continue
            if not beside or (op.stage not in ("embedding", "head") and name != "projection"):
                rows.append(op)
        elif op.kind == "attention" and "attention_core" in modules:
            rows.append(op)
        elif any(_belongs(op, name, module) for module in modules):
            rows.append(_from_the_sum(op) if name in _NAMES["norms"] else op)
        elif beside == "prediction " and name in _FRONT and "norms" in modules:
            rows.append(op)
    return rows


def _from_the_sum(op: Op) -> Op:
    """A norm run again: the sum that it was fused with is kept, so one tensor is read and one written."""
    return op.having(flop=op.flop * 4.0 / 5.0, act_read=op.act_read / 2.0, act_write=op.act_write / 2.0)


def _belongs(op: Op, name: str, module: str) -> bool:
    if module in _NAMES:
        return name in _NAMES[module]
    return module in _STAGES and op.stage == _STAGES[module] and not name.endswith("norm")
