"""Parameter counts and KV-cache elements of a model, from its layers (formulas F-2.1 to F-2.5 and F-5.1).

Counted as released checkpoints do: one token embedding, the output head unless it is tied, biases and norm gains where
the model has them. Multi-token-prediction modules are not part of the model. What is left out: parameters that no
layer describes; a model that has some is not counted but quoted (`counted` is false). The formula of each mixer is in
`mixer_parameters`, that of a denoiser beside its dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain import mixer_parameters
from app.domain.denoiser import denoiser_parameters
from app.domain.errors import UnsupportedArchitecture
from app.domain.mixer_parameters import group_mixer_parameters, rwkv_ffn_parameters
from app.domain.model import (
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    Mixer,
    Mlp,
    ModelSpec,
    MoeMlp,
    OtherMixer,
    ParallelMixers,
    RwkvFfn,
    SelfAndCrossAttention,
    SharedBlockThenMixer,
)
from app.domain.units import Grid


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by part. `active` is what one token uses: `top_k` of the routed experts and everything else.

    `embedding`, `lm_head`, `attention`, `mlp`, `norms` and `other` add up to `total`; `attention` holds every kind of
    token mixer; `other` the position table, the head's bias, an encoder's input and pooling, the encoder of an
    encoder-decoder and the vision or audio tower (`tower`). Where `counted` is false, the parts are zero and the totals
    are the recorded or published ones; `note` says why.
    """

    total: int
    active: int
    embedding: int = 0
    lm_head: int = 0
    attention: int = 0
    mlp: int = 0
    norms: int = 0
    other: int = 0
    tower: int = 0
    counted: bool = True
    note: str | None = None


def count_parameters(model: ModelSpec) -> ParameterCount:
    """Parameters of a model.

    Raises UnsupportedArchitecture where the layers cannot be counted and the record has no total to quote.
    """
    reason = _uncountable(model)
    if reason is not None:
        return _recorded(model, reason)
    if model.denoiser is not None:
        parts = denoiser_parameters(model.denoiser)
        total, attention, mlp = int(parts.total), int(parts.attention), int(parts.mlp)
        rest = total - attention - mlp
        return ParameterCount(total, int(parts.active), attention=attention, mlp=mlp, other=rest)
    h = model.hidden_size
    norm = h * (2 if model.norm_has_bias else 1)
    embedding = model.vocab_size * h
    lm_head = embedding if has_own_head(model) else 0
    tower = model.tower_params
    attention = mlp = idle = norms = 0
    for group in model.layers:
        attention += int(group_mixer_parameters(group, h))
        mlp += group.count * mlp_parameters(group.mlp, h)
        idle += group.count * _idle_parameters(group.mlp, h)
        norms += group.count * group.norms * norm
    norms += norm if model.final_norm else 0
    other = model.learned_positions * h + (model.vocab_size if model.lm_head_bias else 0) + tower
    other += int(extra_parameters(model))
    if model.encoder is not None:
        other += count_parameters(model.encoder).total
    total = embedding + lm_head + attention + mlp + norms + other
    return ParameterCount(total, total - idle, embedding, lm_head, attention, mlp, norms, other, tower)


def has_own_head(model: ModelSpec) -> bool:
    """Whether a matrix of its own turns hidden states into logits."""
    return model.generates and not model.tied_embeddings


def extra_parameters(model: ModelSpec) -> int:
    """Parameters of a stack beside its layers, embedding and head, all kept whole by every rank.

    Products of the input, learned tokens, a second table, a norm behind the embedding, attention biases, and what pools
    an encoder's outputs: one product (BERT), or attention of one learned query with an MLP (SigLIP).
    """
    h = model.hidden_size
    norm = h * (2 if model.norm_has_bias else 1)
    total = (model.class_tokens + model.token_types) * h + model.relative_positions
    total += norm if model.embedding_norm else 0
    if model.residual_streams > 1:
        total += model.residual_streams**2 * h + model.residual_streams + 1
    for product in model.front:
        total += product.inputs * product.outputs + (product.outputs if product.bias else 0)
    if model.pooling == "dense":
        total += h * h + h
    elif model.pooling == "attention":
        total += h + 4 * (h * h + h) + norm + mlp_parameters(model.layers[-1].mlp, h)
    return total


def attention_parameters(mixer: Attention | LatentAttention, hidden: int) -> int:
    """Parameters of one attention layer: projections, biases, query and key norms (F-2.1, F-2.2)."""
    return int(mixer_parameters.attention_parameters(mixer, hidden))


def mlp_parameters(mlp: Mlp | None, hidden: int) -> int:
    """Parameters of one MLP, all experts included (F-2.3, F-2.4)."""
    if mlp is None:
        return 0
    if isinstance(mlp, RwkvFfn):
        return int(rwkv_ffn_parameters(mlp, hidden))
    if isinstance(mlp, DenseMlp):
        return _two_or_three_matrices(hidden, mlp.intermediate, mlp.gated, mlp.bias)
    routed_width = hidden if mlp.latent_size is None else mlp.latent_size
    expert = _two_or_three_matrices(routed_width, mlp.expert_intermediate, mlp.gated, mlp.expert_bias)
    total = mlp.experts * expert + hidden * mlp.experts + (mlp.experts if mlp.router_bias else 0)
    if mlp.latent_size is not None:
        total += 2 * hidden * mlp.latent_size
    if mlp.shared_intermediate:
        total += _two_or_three_matrices(hidden, mlp.shared_intermediate, mlp.gated, mlp.expert_bias)
        total += hidden if mlp.shared_expert_gate else 0
    if mlp.dense_intermediate:
        total += _two_or_three_matrices(hidden, mlp.dense_intermediate, mlp.gated, mlp.expert_bias)
    return total


def kv_elements_per_token(model: ModelSpec) -> int:
    """Elements that one more token adds to the KV cache, over all layers (F-5.1).

    Layers with a window count too, though they drop old tokens; layers that read another layer's cache,
    cross-attention, attention in both directions and mixers with a state of constant size add nothing.
    Raises UnsupportedArchitecture for a mixer whose cache is not known.
    """
    return sum(group.count * group_kv_elements(model, group) for group in model.layers)


def group_kv_elements(model: ModelSpec, group: LayerGroup) -> int:
    """KV elements that one token adds in one layer of this group. Raises UnsupportedArchitecture."""
    if isinstance(group.mixer, OtherMixer):
        raise UnsupportedArchitecture(model.name, f"the cache of layers of kind {group.mixer.name!r} is not known")
    return int(mixer_kv_elements(group.mixer))


def mixer_kv_elements(mixer: Mixer | None, tp: Grid = 1) -> Grid:
    """Elements that one token adds to one layer's cache on one rank of a tensor-parallel group (F-5.1).

    A latent is kept whole by every rank. Keys of an indexer are counted apart (`index_key_elements`).
    """
    if isinstance(mixer, LatentAttention):
        return float(mixer.cached_elements)
    if isinstance(mixer, CompressedAttention):
        return mixer.head_dim * (1 + (1 / mixer.ratio if mixer.ratio else 0.0))
    if isinstance(mixer, ParallelMixers):
        return mixer_kv_elements(mixer.attention, tp)
    if isinstance(mixer, SharedBlockThenMixer):
        return mixer_kv_elements(mixer.block.attention, tp)
    if isinstance(mixer, SelfAndCrossAttention):
        return mixer_kv_elements(mixer.own, tp)
    if isinstance(mixer, Attention) and mixer.own_kv and mixer.kind not in ("cross", "bidirectional"):
        return mixer_parameters.kv_heads_of_rank(mixer, tp) * (mixer.head_dim + mixer.v_head_dim)
    return 0.0


def index_key_elements(mixer: Attention | LatentAttention | CompressedAttention) -> float:
    """Elements of the key that one token adds to one layer's indexer; every rank keeps them whole."""
    if isinstance(mixer, CompressedAttention):
        return mixer.indexer.head_dim / mixer.ratio if mixer.indexer is not None else 0.0
    return mixer.indexer.head_dim if mixer.indexer is not None and mixer.indexer.counted else 0


def state_elements_per_sequence(model: ModelSpec, tp: Grid = 1) -> Grid:
    """Elements of recurrent and convolution states of one sequence on one rank, over all layers (F-5.1)."""
    total: Grid = 0.0
    for group, mixer in model.state_groups():
        total = total + group.count * (mixer.state_elements + mixer.conv_elements) / tp
    for group in model.layers:
        if isinstance(group.mlp, RwkvFfn):
            total = total + float(group.count * model.hidden_size)
    return total


def _uncountable(model: ModelSpec) -> str | None:
    if model.denoiser is not None:
        return None
    if not model.layers:
        return "no layers are described"
    for group in model.layers:
        if isinstance(group.mixer, OtherMixer):
            return f"layers of kind {group.mixer.name!r} are not counted"
    return model.undescribed


def _recorded(model: ModelSpec, reason: str) -> ParameterCount:
    for total, active, what in (
        (model.recorded_total_params, model.recorded_active_params, "recorded"),
        (model.published_total_params, model.published_active_params, "published"),
    ):
        if total is not None:
            return ParameterCount(
                round(total),
                round(total if active is None else active),
                counted=False,
                note=f"{reason}; the totals are the {what} ones",
            )
    raise UnsupportedArchitecture(model.name, f"{reason}, and no total is recorded")


def _two_or_three_matrices(hidden: int, width: int, gated: bool, bias: bool) -> int:
    into = 2 if gated else 1
    return (into + 1) * hidden * width + (into * width + hidden if bias else 0)


def _idle_parameters(mlp: Mlp | None, hidden: int) -> int:
    """Parameters of the routed experts that a token does not use."""
    if not isinstance(mlp, MoeMlp):
        return 0
    width = hidden if mlp.latent_size is None else mlp.latent_size
    expert = _two_or_three_matrices(width, mlp.expert_intermediate, mlp.gated, mlp.expert_bias)
    return (mlp.experts - mlp.top_k) * expert
