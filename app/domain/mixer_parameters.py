"""Parameters of the layers that are neither plain attention nor a plain MLP, whole or on one tensor-parallel rank.

One formula a mixer, with the degree `tp` in it: at 1 it is the count of the checkpoint. Matrices and everything that
belongs to a head or a channel are divided; what every rank needs whole (low-rank inner maps, norms of one head, input
maps shared by groups where there are fewer groups than ranks) is copied. Each formula was checked against the sizes of
released checkpoints.
"""

from __future__ import annotations

import numpy as np

from app.domain.model import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Rwkv5,
    RwkvFfn,
    SharedAttentionBlock,
    StateMixer,
)
from app.domain.units import Grid


def per_rank(units: int, tp: Grid) -> Grid:
    """Groups or heads of one rank; at least one, which is then copied between ranks."""
    share = np.maximum(units / np.asarray(tp, dtype=np.float64), 1.0)
    return float(share) if np.ndim(share) == 0 else share


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
