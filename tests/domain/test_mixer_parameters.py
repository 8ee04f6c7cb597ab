"""Parameters of state mixers and shared blocks against the tensors of released checkpoints, added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.domain.mixer_parameters import (
    per_rank,
    rwkv_ffn_parameters,
    shared_block_parameters,
    shared_block_use_parameters,
    state_mixer_parameters,
)
from app.domain.model import (
    Attention,
    DenseMlp,
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Rwkv5,
    Rwkv7,
    RwkvFfn,
    SharedAttentionBlock,
    StateMixer,
)

# Tensors of one layer, each product written as rows times columns.
MAMBA_130M = 768 * 3072 + 1536 * 4 + 1536 + 1536 * 80 + 48 * 1536 + 1536 + 1536 * 16 + 1536 + 1536 * 768
MAMBA2_1_3B = 2048 * (8192 + 256 + 64) + 4352 * 4 + 4352 + 3 * 64 + 4096 + 4096 * 2048
QWEN3_NEXT = 2048 * 12288 + 2048 * 64 + 8192 * 4 + 2 * 32 + 128 + 4096 * 2048
KIMI_K3 = (
    3 * 7168 * 12288 + 3 * 12288 * 4 + 96 + 7168 * 128 + 128 * 12288 + 12288 + 7168 * 96 + 7168 * 12288 + 128
    + 12288 * 7168
)  # fmt: skip
MINIMAX_M1 = 6144 * 24576 + 6144 * 8192 + 8192 + 8192 * 6144
RWKV5_3B = 5 * 2560 * 2560 + 8 * 2560
RWKV7_0_4B = 4 * 1024 * 1024 + 2 * 1024 * (64 + 64 + 32 + 128) + (6 + 3 + 3 + 2) * 1024


@pytest.mark.parametrize(
    ("mixer", "hidden", "expected"),
    [
        (Mamba1(1536, 16, 4, 48), 768, MAMBA_130M),
        (Mamba2(64, 64, 1, 128, 4), 2048, MAMBA2_1_3B),
        (GatedDeltaNet(16, 32, 128, 128, 4), 2048, QWEN3_NEXT),
        (KimiDeltaAttention(96, 128, 4), 7168, KIMI_K3),
        (LightningAttention(64, 128), 6144, MINIMAX_M1),
        (Rwkv5(40, 64), 2560, RWKV5_3B),
        (Rwkv7(16, 64, 64, 64, 32, 128), 1024, RWKV7_0_4B),
    ],
)
def test_one_layer(mixer: StateMixer, hidden: int, expected: int) -> None:
    assert state_mixer_parameters(mixer, hidden) == expected


def test_a_whole_checkpoint_adds_up() -> None:
    """mamba-130m publishes 129,135,360: 24 layers with one norm each, a final norm and the tied embedding."""
    assert 24 * (state_mixer_parameters(Mamba1(1536, 16, 4, 48), 768) + 768) + 768 + 50280 * 768 == 129_135_360


def test_jambas_inner_norms_have_a_gain_for_each_map() -> None:
    plain, normed = Mamba1(8192, 16, 4, 256), Mamba1(8192, 16, 4, 256, inner_norms=True)
    assert state_mixer_parameters(normed, 4096) - state_mixer_parameters(plain, 4096) == 256 + 16 + 16


def test_a_low_rank_gate_replaces_the_full_one() -> None:
    full, low = KimiDeltaAttention(96, 128, 4), KimiDeltaAttention(96, 128, 4, gate_rank=128)
    saved = 7168 * 12288 - 128 * (7168 + 12288)
    assert state_mixer_parameters(full, 7168) - state_mixer_parameters(low, 7168) == saved


def test_channel_mixing_of_rwkv5() -> None:
    assert rwkv_ffn_parameters(RwkvFfn(8960), 2560) == 2 * 2560 * 8960 + 2560 * 2560 + 2 * 2560


def test_zamba2s_shared_blocks() -> None:
    """Two sets of weights, nine uses: together 426,327,040 parameters beside the 54 state-space layers."""
    block = SharedAttentionBlock(Attention(32, 32, 160, 160), 5120, DenseMlp(10240), weight_sets=2, lora_rank=128)
    one_set = 3 * 5120 * 5120 + 5120 * 2560 + 3 * 2560 * 10240 + 5120 + 2560
    one_use = 128 * (2560 + 20480) + 2560 * 2560
    assert shared_block_parameters(block, 2560) == one_set
    assert shared_block_use_parameters(block, 2560) == one_use
    assert 2 * one_set + 9 * one_use == 426_327_040


def test_ranks_share_matrices_and_copy_what_does_not_divide() -> None:
    mamba2 = Mamba2(64, 64, 8, 128, 4)
    whole = state_mixer_parameters(mamba2, 2688)
    assert state_mixer_parameters(mamba2, 2688, 8) == whole / 8  # groups, heads and channels all divide by 8
    sixteen = 2688 * (2 * 256 + 2 * 128 + 4) + (256 + 256) * 5 + 3 * 4 + 256 + 256 * 2688
    assert state_mixer_parameters(mamba2, 2688, 16) == sixteen  # each rank keeps one whole group
    assert per_rank(8, 16) == 1.0
    swept = state_mixer_parameters(mamba2, 2688, np.array([1.0, 8.0, 16.0]))
    assert np.array_equal(np.asarray(swept), [whole, whole / 8, sixteen])
