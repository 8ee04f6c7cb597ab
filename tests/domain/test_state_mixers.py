"""Layers with a state of constant size: FLOP, state and bytes of hand-sized models (F-13.5, F-5.1)."""

from __future__ import annotations

import pytest

from app.domain.blocks.state_mixers import CHUNK, chunked_flop
from app.domain.errors import InvalidInput
from app.domain.memory import memory_use
from app.domain.model import (
    Attention,
    DenseMlp,
    GatedDeltaNet,
    KimiDeltaAttention,
    LayerGroup,
    LightningAttention,
    Mamba1,
    Mamba2,
    ModelSpec,
    ParallelMixers,
    Rwkv5,
    Rwkv7,
    RwkvFfn,
    SharedAttentionBlock,
    SharedBlockThenMixer,
    StateMixer,
)
from app.domain.step import cost_table
from app.domain.workload import Parallel, Workload
from tests.domain.architectures import row_of, step_total

H = 256
MAMBA1 = Mamba1(inner=512, state=16, conv=4, dt_rank=16)
MAMBA2 = Mamba2(heads=8, head_dim=64, groups=2, state=128, conv=4)
DELTA = GatedDeltaNet(key_heads=2, value_heads=4, key_head_dim=64, value_head_dim=64, conv=4)
KIMI = KimiDeltaAttention(heads=4, head_dim=64, conv=4, gate_rank=64)
LIGHTNING = LightningAttention(heads=4, head_dim=64)
RWKV5, RWKV7 = Rwkv5(heads=4, head_dim=64), Rwkv7(4, 64, 32, 32, 32, 64)
ALL: tuple[StateMixer, ...] = (MAMBA1, MAMBA2, DELTA, KIMI, LIGHTNING, RWKV5, RWKV7)


def one_layer(mixer: StateMixer) -> ModelSpec:
    return ModelSpec("m", "M", "ssm", H, 1000, (LayerGroup(1, mixer, None, norms=1),))


def by_type(value: object) -> str:
    return type(value).__name__


def test_the_recurrence_and_its_chunked_form() -> None:
    """K = V = 128: 4 K V = 65,536; within a chunk of 16 tokens 17 (K + V) = 4,352 more. A delta rule reads the state
    once more, 6 K V = 98,304, and solves for its keys: 17 (3 K + 2 V) = 10,880 more.
    """
    assert chunked_flop(128, 128, delta=False) == (65_536, 65_536 + 4_352)
    assert chunked_flop(128, 128, delta=True) == (98_304, 98_304 + 10_880)
    assert CHUNK == 16


@pytest.mark.parametrize("mixer", ALL, ids=by_type)
def test_decode_reads_and_writes_the_state_once_whatever_the_context(mixer: StateMixer) -> None:
    tables = [cost_table(one_layer(mixer), Workload(batch=3, context_len=n)) for n in (10, 100_000)]
    (scan,) = [i for i, op in enumerate(tables[0].ops) if op.kind == "scan"]
    for table in tables:
        assert table["kv_read"][scan] == table["kv_write"][scan] == 3 * mixer.state_elements * 2
        assert table.ops[scan].pipe == "vector"
    assert step_total(tables[0], "kv_read") == step_total(tables[1], "kv_read")
    assert step_total(tables[0], "kv_read") == 3 * 2 * (mixer.state_elements + mixer.conv_elements)


@pytest.mark.parametrize("mixer", ALL, ids=by_type)
def test_a_prompt_writes_the_state_once_and_training_never(mixer: StateMixer) -> None:
    prompt = cost_table(one_layer(mixer), Workload(phase="prefill", batch=2, seq_len=512))
    assert step_total(prompt, "kv_read") == 0
    assert step_total(prompt, "kv_write") == 2 * 2 * (mixer.state_elements + mixer.conv_elements)
    chunk = cost_table(one_layer(mixer), Workload(phase="prefill", batch=2, seq_len=512, context_len=512))
    assert step_total(chunk, "kv_read") == step_total(prompt, "kv_write")
    train = cost_table(one_layer(mixer), Workload(phase="train", batch=2, seq_len=512))
    assert step_total(train, "kv_read") == step_total(train, "kv_write") == 0


def test_mamba1_by_hand() -> None:
    """Fused scan: reads x, step, gate (3 channels) and both maps (2 states), writes one; 9 operations a state."""
    table = cost_table(one_layer(MAMBA1), Workload(phase="prefill", batch=2, seq_len=100))
    t = 200
    assert row_of(table, "input projection") == 2 * t * H * 1024
    assert row_of(table, "step and map projection") == 2 * t * 512 * (16 + 32)
    assert row_of(table, "step expansion") == 2 * t * 16 * 512
    assert row_of(table, "selective scan") == 9 * t * 512 * 16
    assert row_of(table, "selective scan", "act_read") == t * (3 * 512 + 2 * 16) * 2
    assert row_of(table, "selective scan", "act_write") == t * 512 * 2
    assert row_of(table, "output projection") == 2 * t * 512 * H


def test_mamba2_by_hand() -> None:
    table = cost_table(one_layer(MAMBA2), Workload(phase="prefill", batch=1, seq_len=100))
    assert row_of(table, "input projection") == 2 * 100 * H * (2 * 512 + 2 * 2 * 128 + 8)
    assert row_of(table, "state-space dual") == 4 * 100 * 8 * 128 * 64
    assert row_of(table, "state-space dual", "executed") == 100 * 8 * (4 * 128 * 64 + 17 * (128 + 64))
    assert row_of(table, "state-space dual", "act_read") == 100 * (512 + 512 + 8) * 2
    assert row_of(table, "causal convolution", "act_read") == 100 * (512 + 512) * 2


def test_a_delta_rule_by_hand() -> None:
    table = cost_table(one_layer(DELTA), Workload(phase="prefill", batch=1, seq_len=100))
    assert row_of(table, "query, key, value and gate") == 2 * 100 * H * (2 * 128 + 2 * 256)
    assert row_of(table, "decay and rate") == 2 * 100 * H * 8
    assert row_of(table, "gated delta rule") == 6 * 100 * 4 * 64 * 64


def test_rwkv5_with_its_channel_mixing_by_hand() -> None:
    model = ModelSpec("m", "M", "ssm", H, 1000, (LayerGroup(1, RWKV5, RwkvFfn(896)),))
    table = cost_table(model, Workload(batch=5, context_len=9))
    assert row_of(table, "receptance, key, value and gate") == 4 * 2 * 5 * H * 256
    assert row_of(table, "key") == 2 * 5 * H * 896
    assert row_of(table, "value") == 2 * 5 * 896 * H
    assert row_of(table, "receptance") == 2 * 5 * H * H
    last_inputs = 2 * 5 * H * 2  # of both halves of the layer
    assert step_total(table, "kv_read") == last_inputs + 5 * 256 * 64 * 2


def test_the_backward_pass_counts_two_forward_passes_and_executes_half_a_one_more() -> None:
    table = cost_table(one_layer(MAMBA2), Workload(phase="train", batch=1, seq_len=64))
    forward = row_of(table, "state-space dual")
    assert row_of(table, "state-space dual, backward") == 2 * forward
    assert row_of(table, "state-space dual, backward", "executed") == 2.5 * row_of(
        table, "state-space dual", "executed"
    )


@pytest.mark.parametrize("mixer", ALL, ids=by_type)
def test_two_ranks_share_the_work_and_the_state(mixer: StateMixer) -> None:
    one = cost_table(one_layer(mixer), Workload(batch=2, context_len=5))
    two = cost_table(one_layer(mixer), Workload(batch=2, context_len=5, parallel=Parallel(tp=2)))
    (scan,) = [i for i, op in enumerate(one.ops) if op.kind == "scan"]
    assert two["kv_read"][scan] == one["kv_read"][scan] / 2
    assert two["flop"][scan] == one["flop"][scan] / 2
    assert [op.name for op in two.ops if op.kind == "collective"] == ["state mixer all-reduce"]
    with pytest.raises(InvalidInput, match="is not a multiple of tensor parallel 3"):
        cost_table(one_layer(mixer), Workload(parallel=Parallel(tp=3)))
    with pytest.raises(InvalidInput, match="recurrent state"):
        cost_table(one_layer(mixer), Workload(phase="prefill", seq_len=64, parallel=Parallel(cp=2)))


def test_attention_and_a_state_in_parallel_share_one_all_reduce() -> None:
    both = ParallelMixers(Attention(4, 2, 64, 64), MAMBA2)
    model = ModelSpec("m", "M", "hybrid", H, 1000, (LayerGroup(3, both, DenseMlp(512)),))
    table = cost_table(model, Workload(batch=1, context_len=50, parallel=Parallel(tp=2)))
    names = [op.name for op in table.ops if op.kind == "collective"]
    assert names == ["state mixer all-reduce", "mlp all-reduce"]
    assert row_of(table, "attention", "count") == row_of(table, "state-space dual", "count") == 3
    assert row_of(table, "attention", "kv_read") == 50 * 1 * 128 * 2


def test_a_shared_block_is_read_at_each_use_and_stored_once_a_set() -> None:
    block = SharedAttentionBlock(Attention(8, 8, 64, 64), 512, DenseMlp(1024), weight_sets=2, lora_rank=16)
    layers = (
        LayerGroup(6, MAMBA2, None, norms=1),
        LayerGroup(3, SharedBlockThenMixer(block, MAMBA2), None, norms=1),
    )
    model = ModelSpec("m", "M", "hybrid", H, 1000, layers, tied_embeddings=True)
    table = cost_table(model, Workload(batch=1, context_len=10))
    assert row_of(table, "qkv projection") == 2 * 512 * 3 * 512
    assert row_of(table, "qkv projection", "count") == 3
    assert row_of(table, "low-rank up") == 2 * 16 * 2 * 1024
    assert row_of(table, "attention", "kv_read") == 10 * 1024 * 2
    state = 9 * 2 * (MAMBA2.state_elements + MAMBA2.conv_elements)
    pages = 16 * 3 * 1024 * 2
    assert memory_use(model, Workload(batch=1, context_len=10), None).objects["kv_cache"] == state + pages
