"""Parameter counts and KV-cache elements of a model, from its layers (formulas F-2.1 to F-2.5 and F-5.1).

Counted as released checkpoints do: one token embedding, the output head unless it is tied, biases and norm gains where
the model has them. Multi-token-prediction modules are not part of the model. What is left out: parameters that no
layer describes; a model that has some is not counted but quoted (`counted` is false).
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import UnsupportedArchitecture
from app.domain.model import (
    DECODER_KINDS,
    Attention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    Mlp,
    ModelSpec,
    MoeMlp,
    OtherMixer,
    SparseIndexer,
)

STATE_MIXERS = frozenset({"mamba1", "mamba2", "gated_deltanet", "kda", "lightning", "rwkv5", "rwkv7"})
"""Mixers that keep a state of constant size instead of a cache that grows with the context."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by part. `active` is what one token uses: `top_k` of the routed experts and everything else.

    `embedding`, `lm_head`, `attention`, `mlp`, `norms` and `other` add up to `total`; `other` holds the position table,
    the head's bias and the vision or audio tower (`tower`). Where `counted` is false, the parts are zero and the totals
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
    h = model.hidden_size
    norm = h * (2 if model.norm_has_bias else 1)
    embedding = model.vocab_size * h
    lm_head = 0 if model.tied_embeddings else embedding
    tower = model.tower_params
    attention = mlp = idle = norms = 0
    for group in model.layers:
        attention += group.count * _mixer_parameters(group, h)
        mlp += group.count * mlp_parameters(group.mlp, h)
        idle += group.count * _idle_parameters(group.mlp, h)
        norms += group.count * group.norms * norm
    norms += norm if model.final_norm else 0
    other = model.learned_positions * h + (model.vocab_size if model.lm_head_bias else 0) + tower
    total = embedding + lm_head + attention + mlp + norms + other
    return ParameterCount(total, total - idle, embedding, lm_head, attention, mlp, norms, other, tower)


def attention_parameters(mixer: Attention | LatentAttention, hidden: int) -> int:
    """Parameters of one attention layer: projections, biases, query and key norms (F-2.1, F-2.2)."""
    if isinstance(mixer, LatentAttention):
        return _latent_parameters(mixer, hidden) + _indexer_parameters(
            mixer.indexer, mixer.q_lora_rank or hidden, hidden
        )
    q, k = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    v, o = mixer.kv_heads * mixer.v_head_dim, mixer.heads * mixer.v_head_dim
    total = hidden * (q + o) + (q if mixer.q_bias else 0) + (hidden if mixer.o_bias else 0)
    if mixer.own_kv:
        total += hidden * k + (k if mixer.k_bias else 0)
        if not mixer.v_from_k:
            total += hidden * v + (v if mixer.v_bias else 0)
    if mixer.qk_norm is not None:
        q_gain, k_gain = (mixer.head_dim, mixer.head_dim) if mixer.qk_norm == "head" else (q, k)
        total += q_gain + (k_gain if mixer.own_kv else 0)
    if mixer.sinks:
        total += mixer.heads
    return total + _indexer_parameters(mixer.indexer, hidden, hidden)


def mlp_parameters(mlp: Mlp | None, hidden: int) -> int:
    """Parameters of one MLP, all experts included (F-2.3, F-2.4)."""
    if mlp is None:
        return 0
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
    mixer = group.mixer
    if mixer is None:
        return 0
    if isinstance(mixer, LatentAttention):
        return mixer.cached_elements
    if isinstance(mixer, Attention):
        if not mixer.own_kv or mixer.kind in ("cross", "bidirectional"):
            return 0
        return mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
    if mixer.name in STATE_MIXERS:
        return 0
    if mixer.name.startswith("attention+"):
        kv_heads, head_dim = mixer.detail.get("kv_heads"), mixer.detail.get("head_dim")
        if isinstance(kv_heads, int) and isinstance(head_dim, int):
            return 2 * kv_heads * head_dim
    raise UnsupportedArchitecture(model.name, f"the cache of layers of kind {mixer.name!r} is not known")


def _uncountable(model: ModelSpec) -> str | None:
    if model.kind not in DECODER_KINDS:
        return f"{model.kind} models are not counted from their layers"
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


def _mixer_parameters(group: LayerGroup, hidden: int) -> int:
    return 0 if not isinstance(group.mixer, (Attention, LatentAttention)) else attention_parameters(group.mixer, hidden)


def _latent_parameters(mixer: LatentAttention, hidden: int) -> int:
    query_width = mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    if mixer.q_lora_rank is None:
        query = hidden * query_width
    else:
        query = hidden * mixer.q_lora_rank + mixer.q_lora_rank * query_width + mixer.q_lora_rank
    latent = hidden * (mixer.kv_lora_rank + mixer.qk_rope_head_dim) + mixer.kv_lora_rank
    expand = mixer.kv_lora_rank * mixer.heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    return query + latent + expand + mixer.heads * mixer.v_head_dim * hidden


def _indexer_parameters(indexer: SparseIndexer | None, query_input: int, hidden: int) -> int:
    """DeepSeek-V3.2 indexer: query heads from the query latent, one key per token with its LayerNorm, head weights."""
    if indexer is None or not indexer.counted:
        return 0
    query = query_input * indexer.heads * indexer.head_dim
    return query + hidden * indexer.head_dim + 2 * indexer.head_dim + hidden * indexer.heads


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
