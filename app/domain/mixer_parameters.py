"""Parameters of token mixers, whole or on one tensor-parallel rank.

One formula a mixer, with the degree `tp` in it: at 1 it is the count of the checkpoint. Matrices and everything that
belongs to a head or a channel are divided; what every rank needs whole (low-rank inner maps, norms of one head, input
maps shared by groups where there are fewer groups than ranks) is copied. Each formula was checked against the sizes of
released checkpoints.
"""

from __future__ import annotations

import numpy as np

from app.domain.model import (
    STATE_MIXERS,
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerGroup,
    LightningAttention,
    Mamba1,
    Mamba2,
    ParallelMixers,
    Rwkv5,
    RwkvFfn,
    SelfAndCrossAttention,
    SharedAttentionBlock,
    SharedBlockThenMixer,
    ShortConvolution,
    SparseIndexer,
    StateMixer,
)
from app.domain.units import Grid


def per_rank(units: int, tp: Grid) -> Grid:
    """Groups or heads of one rank; at least one, which is then copied between ranks."""
    share = np.maximum(units / np.asarray(tp, dtype=np.float64), 1.0)
    return float(share) if np.ndim(share) == 0 else share


def kv_heads_of_rank(attention: Attention, tp: Grid) -> Grid:
    """KV heads of one rank; with more ranks than heads each rank keeps a copy of one (F-5.1)."""
    heads = np.maximum(np.ceil(attention.kv_heads / np.asarray(tp, dtype=np.float64)), 1.0)
    return float(heads) if np.ndim(heads) == 0 else heads


def group_mixer_parameters(group: LayerGroup, hidden: int, tp: Grid = 1) -> Grid:
    """Mixer parameters of all layers of a group on one rank; weights that layers share are counted once."""
    mixer, h = group.mixer, hidden
    if isinstance(mixer, (Attention, LatentAttention)):
        return group.count * attention_parameters(mixer, h, tp)
    if isinstance(mixer, CompressedAttention):
        return group.count * compressed_parameters(mixer, h, tp)
    if isinstance(mixer, STATE_MIXERS):
        return group.count * state_mixer_parameters(mixer, h, tp)
    if isinstance(mixer, ParallelMixers):
        both = attention_parameters(mixer.attention, h, tp) + state_mixer_parameters(mixer.state, h, tp)
        return group.count * both
    if isinstance(mixer, SelfAndCrossAttention):
        return group.count * (attention_parameters(mixer.own, h, tp) + attention_parameters(mixer.cross, h, tp))
    if isinstance(mixer, SharedBlockThenMixer):
        each = state_mixer_parameters(mixer.mixer, h, tp) + shared_block_use_parameters(mixer.block, h, tp)
        return group.count * each + mixer.block.weight_sets * shared_block_parameters(mixer.block, h, tp)
    return 0.0


def attention_parameters(mixer: Attention | LatentAttention, hidden: int, tp: Grid = 1) -> Grid:
    """Parameters of one attention layer: projections, biases, query and key norms, indexer (F-2.1, F-2.2)."""
    h = hidden
    if isinstance(mixer, LatentAttention):
        q_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        rank = mixer.q_lora_rank
        query: Grid = h * mixer.heads * q_dim / tp
        if rank is not None:
            query = h * rank + rank + rank * mixer.heads * q_dim / tp
        up = mixer.kv_lora_rank * mixer.heads * (mixer.qk_nope_head_dim + mixer.v_head_dim) / tp
        latent = h * mixer.cached_elements + mixer.kv_lora_rank + up
        out = (2 if mixer.output_gate else 1) * mixer.heads * mixer.v_head_dim * h / tp
        return query + latent + out + indexer_parameters(mixer.indexer, rank or h, h)
    kv_heads = kv_heads_of_rank(mixer, tp) if mixer.own_kv else 0.0
    q, k, v = mixer.heads * mixer.head_dim / tp, kv_heads * mixer.head_dim, kv_heads * mixer.v_head_dim
    if mixer.v_from_k:
        v = 0.0
    total = ((2 if mixer.output_gate else 1) * q + k + v) * h + mixer.heads * mixer.v_head_dim / tp * h
    total = total + q * mixer.q_bias + k * mixer.k_bias + v * mixer.v_bias + h * mixer.o_bias
    if mixer.sinks:
        total = total + mixer.heads / tp
    if mixer.qk_norm == "head":
        total = total + mixer.head_dim * (2 if mixer.own_kv else 1)
    elif mixer.qk_norm == "full":
        total = total + mixer.head_dim * (mixer.heads + (mixer.kv_heads if mixer.own_kv else 0))
    return total + indexer_parameters(mixer.indexer, h, h)


def indexer_parameters(indexer: SparseIndexer | None, query_input: int, hidden: int) -> int:
    """Indexer of DeepSeek-V3.2: query heads from the query latent, one key a token with its LayerNorm, head weights.

    Every rank keeps it whole.
    """
    if indexer is None or not indexer.counted:
        return 0
    query = query_input * indexer.heads * indexer.head_dim
    return query + hidden * indexer.head_dim + 2 * indexer.head_dim + hidden * indexer.heads


def compressed_parameters(a: CompressedAttention, hidden: int, tp: Grid = 1) -> Grid:
    """Parameters of one layer's compressed attention, its pooling, its indexer and both hyper-connections.

    Heads and output groups are divided; the shared key, pooling, indexer and hyper-connections are copied.
    """
    h, d = hidden, a.head_dim
    queries = h * a.q_lora_rank + a.q_lora_rank + a.q_lora_rank * a.heads * d / tp
    outputs = a.heads * d * a.o_lora_rank / tp + a.o_groups * a.o_lora_rank * h / tp + a.heads / tp
    total = queries + h * d + d + outputs
    if a.ratio:
        total = total + 2 * h * a.pooled_width + a.ratio * a.pooled_width + d
    if a.indexer is not None:
        i = a.indexer
        pooled = 2 * i.head_dim
        total = total + 2 * h * pooled + a.ratio * pooled + i.head_dim
        total = total + a.q_lora_rank * i.heads * i.head_dim + h * i.heads
    if a.streams > 1:
        total = total + 2 * (a.mixed * a.streams * h + a.mixed + 3)
    return total


def state_mixer_parameters(mixer: StateMixer, hidden: int, tp: Grid = 1) -> Grid:
    """Parameters of one layer's state mixer on one rank: projections, convolution, decays, inner norms."""
    h = hidden
    if isinstance(mixer, Mamba1):
        i: Grid = mixer.inner / tp
        maps: Grid = float(mixer.dt_rank + 2 * mixer.state)
        into = h * 2 * i + i * (mixer.conv + 1) + i * maps
        steps = mixer.dt_rank * i + i
        return into + steps + i * mixer.state + i + i * h + (maps if mixer.inner_norms else 0)
    if isinstance(mixer, Mamba2):
        i, heads = mixer.inner / tp, mixer.heads / tp
        maps = 2 * per_rank(mixer.groups, tp) * mixer.state
        into = h * (2 * i + maps + heads) + (i + maps) * (mixer.conv + 1)
        return into + 3 * heads + (i if mixer.gated_norm else 0) + i * h
    if isinstance(mixer, GatedDeltaNet):
        k = per_rank(mixer.key_heads, tp) * mixer.key_head_dim
        v, heads = mixer.value_width / tp, mixer.value_heads / tp
        into = h * (2 * k + 2 * v + 2 * heads) + (2 * k + v) * mixer.conv
        return into + 2 * heads + mixer.value_head_dim + v * h
    if isinstance(mixer, KimiDeltaAttention):
        w, heads, d = mixer.width / tp, mixer.heads / tp, mixer.head_dim
        into = 3 * h * w + 3 * w * mixer.conv + h * heads
        decay = h * d + d * w + w + heads
        gate = h * w if mixer.gate_rank is None else h * mixer.gate_rank + mixer.gate_rank * w
        return into + decay + gate + d + w * h
    if isinstance(mixer, LightningAttention):
        w = mixer.width / tp
        return 3 * h * w + h * w + w + w * h
    w = mixer.width / tp
    if isinstance(mixer, ShortConvolution):
        return 3 * h * w + w * mixer.conv + w * h + (4 * w + h if mixer.bias else 0)
    if isinstance(mixer, Rwkv5):
        # mixes of the last token for four inputs; decay and bonus a channel; the head norm's gain and bias
        return 4 * h * w + w * h + 4 * h + 2 * w + 2 * w
    ranks = mixer.decay_rank + mixer.rate_rank + mixer.value_rank + mixer.gate_rank
    # six mixes; three offsets of the low-rank maps, two key scales and the bonus; the head norm
    return 3 * h * w + w * h + ranks * (h + w) + 6 * h + 6 * w + 2 * w


def rwkv_ffn_parameters(mlp: RwkvFfn, hidden: int, tp: Grid = 1) -> Grid:
    """Channel mixing: key, value and receptance matrices and the mixes of their two inputs."""
    return 2 * hidden * mlp.intermediate / tp + hidden * hidden / tp + 2 * hidden


def shared_block_parameters(block: SharedAttentionBlock, hidden: int, tp: Grid = 1) -> Grid:
    """One set of a shared block's weights: attention over the doubled input, MLP, norms of both inputs."""
    a = block.attention
    attention = block.input_width * (a.heads * a.head_dim + a.kv_heads * (a.head_dim + a.v_head_dim)) / tp
    attention = attention + a.heads * a.v_head_dim * hidden / tp
    mlp = (3 if block.mlp.gated else 2) * hidden * block.mlp.intermediate / tp
    return attention + mlp + block.input_width + hidden


def shared_block_use_parameters(block: SharedAttentionBlock, hidden: int, tp: Grid = 1) -> Grid:
    """What each use of a shared block adds: the low-rank update of the MLP's first matrix, and its own projection."""
    first = (2 if block.mlp.gated else 1) * block.mlp.intermediate
    return hidden * block.lora_rank + block.lora_rank * first / tp + hidden * hidden / tp
