"""What a device must hold: sums, the largest batch, pages, windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidInput
from app.domain.layout import layout_of
from app.domain.memory import (
    OBJECTS,
    kv_bytes_per_token,
    memory_by_stage,
    memory_use,
    micro_batches_in_flight,
    sharded_parameters,
    stage_layers,
)
from app.domain.memory_reserve import Reserve, communication_buffers, reserve_edit
from app.domain.model import ModelSpec
from app.domain.step import cost_table
from app.domain.workload import Dtypes, KvSettings, Parallel, Workload
from tests.domain.architectures import ALL, DEEPSEEK_V3, LLAMA3_8B, WINDOWED
from tests.domain.test_properties import workloads

some = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@some
@given(st.sampled_from(ALL), workloads(), st.floats(1e8, 1e13))
def test_objects_add_up_and_the_largest_batch_is_the_largest(
    model: ModelSpec, workload: Workload, capacity: float
) -> None:
    use = memory_use(model, workload, capacity)
    assert tuple(use.objects) == OBJECTS
    assert all(size >= 0 for size in use.objects.values())
    assert use.peak == sum(use.objects.values())
    assert use.fits == (use.peak <= capacity)
    assert use.largest_batch is not None
    if use.largest_batch > 0:
        assert memory_use(model, replace(workload, batch=use.largest_batch), capacity).fits
    assert not memory_use(model, replace(workload, batch=use.largest_batch + 1), capacity).fits


@some
@given(st.sampled_from(ALL), workloads())
def test_a_batch_fits_in_exactly_what_it_takes(model: ModelSpec, workload: Workload) -> None:
    use = memory_use(model, workload, memory_use(model, workload, None).peak)
    assert use.fits
    assert use.largest_batch == workload.batch


@some
@given(st.sampled_from(ALL), workloads("train"))
def test_recomputation_and_sharding_never_take_more(model: ModelSpec, workload: Workload) -> None:
    def peak(**changes: object) -> float:
        return memory_use(model, replace(workload, **changes), None).peak

    two_layers = model.num_layers >= 4  # one layer's activations come back beside the checkpoints
    assert not two_layers or peak(recompute="full") < peak(recompute="none")
    stages = [peak(parallel=replace(workload.parallel, dp=8, zero_stage=stage)) for stage in (0, 1, 2, 3)]
    assert stages == sorted(stages, reverse=True)
    assert stages[3] < stages[0]


def test_pages_are_whole() -> None:
    """Lengths 100, 513, 1000, 37 and 2048 at 16 a page take 112, 528, 1008, 48 and 2048 slots: 3744 for 3698 tokens."""

    def slots(length: int) -> float:
        return memory_use(LLAMA3_8B, Workload(context_len=length - 1), None).objects["kv_cache"] / 131_072

    assert [slots(n) for n in (100, 513, 1000, 37, 2048)] == [112, 528, 1008, 48, 2048]
    one = memory_use(LLAMA3_8B, Workload(context_len=99, kv=KvSettings(page_tokens=1)), None)
    assert one.objects["kv_cache"] == 100 * 131_072


def test_layers_with_a_window_stop_growing() -> None:
    """Twelve layers of 8 * 256 elements in bf16; ten keep 1024 tokens at most."""
    token = 8 * 256 * 2
    assert kv_bytes_per_token(WINDOWED, 2.0) == 12 * token
    for length in (512, 1024, 8192):
        kept = kv_bytes_per_token(WINDOWED, 2.0, context_len=length) * length
        assert kept == pytest.approx((10 * min(length, 1024) + 2 * length) * token, rel=1e-12)


def test_prefill_keeps_logits_of_the_last_position_only() -> None:
    prefill = memory_use(LLAMA3_8B, Workload(phase="prefill", batch=3, seq_len=2048), None)
    drafts = memory_use(LLAMA3_8B, Workload(batch=3, seq_len=5, context_len=2048), None)
    assert prefill.objects["logits"] == 3 * 128_256 * 4
    assert drafts.objects["logits"] == 15 * 128_256 * 4


def test_stored_bits_set_the_weights() -> None:
    use = memory_use(LLAMA3_8B, Workload(dtypes=Dtypes(weights="int4", weights_bits=4.5)), None)
    assert use.objects["parameters"] == 8_030_261_248 * 4.5 / 8


def test_parts_of_a_rank() -> None:
    """Llama-3-8B in two: matrices halve, the 65 gain vectors stay whole; from 16 ranks on a KV head is copied."""
    one, two, sixteen = (sharded_parameters(LLAMA3_8B, tp) for tp in (1, 2, 16))
    assert (one.attention, one.mlp) == (32 * 41_943_040, 32 * 176_160_768)
    assert (two.attention, two.mlp, two.embedding, two.head) == tuple(
        part / 2 for part in (one.attention, one.mlp, one.embedding, one.head)
    )
    assert one.norms == two.norms == 65 * 4096
    # queries and output 2 * 4096 * 256 a layer, one head of keys and values 2 * 4096 * 128
    assert sixteen.attention == 32 * (2 * 4096 * 256 + 2 * 4096 * 128)


def test_the_largest_batch_of_training_counts_activations_and_logits() -> None:
    """Llama-3-8B, 4096 tokens, everything sharded over 1024 ranks: states 16 / 1024 bytes a parameter; a sequence keeps
    32 * (4096 * (2 * (4 * 4096 + 8192 + 2048 + 3 * 14336) + 4 * 32)) bytes of activations and 8 bytes a logit."""
    step = Workload(phase="train", seq_len=4096, parallel=Parallel(dp=1024, zero_stage=3))
    use = memory_use(LLAMA3_8B, step, 80e9)
    activations = 32 * 4096 * (2 * (4 * 4096 + 8192 + 2048 + 3 * 14336) + 4 * 32)
    assert use.objects["activations"] == activations
    sequence = activations + 4096 * 128_256 * 8
    assert use.largest_batch == int((80e9 - 8_030_261_248 / 64) / sequence) == 3


def test_every_stage_of_a_pipeline_holds_its_own_micro_batches() -> None:
    """Four stages, sixteen micro-batches. 1F1B: one for itself and each stage after it. GPipe: all of them everywhere.
    Two chunks: stage k runs 4 + 2 (3 - k) + 1 chunks of half a stage before its first backward pass."""

    def held(**parallel: Any) -> list[float]:
        asked = Workload(phase="train", seq_len=8, parallel=Parallel(pp=4, **parallel))
        return [micro_batches_in_flight(asked, stage) for stage in range(4)]

    assert held(micro_batches=16) == [4, 3, 2, 1]
    assert held(micro_batches=2) == [2, 2, 2, 1]
    assert held(micro_batches=16, schedule="gpipe") == [16] * 4
    assert held(micro_batches=16, virtual_stages=2) == [5.5, 4.5, 3.5, 2.5]
    assert held(micro_batches=3, virtual_stages=2) == [3, 3, 3, 2.5]


def test_a_pipeline_from_both_ends_holds_two_stages_and_one_micro_batch_more() -> None:
    """32 layers on 4 stages: device 0 holds layers 1-8 and 25-32 with both tables, and 5 micro-batches of 8 layers."""
    both = Parallel(pp=4, micro_batches=8, schedule="dualpipe")
    plain = replace(both, schedule="1f1b")
    asked = Workload(phase="train", seq_len=4096, parallel=both)
    dual, one = memory_by_stage(LLAMA3_8B, asked), memory_by_stage(LLAMA3_8B, replace(asked, parallel=plain))
    whole = sharded_parameters(LLAMA3_8B)
    ends = whole.embedding + whole.head
    assert dual[0]["parameters"] == 2 * (ends + (whole.total - ends) / 2)
    assert dual[1]["parameters"] == 2 * one[1]["parameters"]
    for held in ("gradients", "optimizer"):
        assert dual[0][held] == pytest.approx(one[0][held] + one[3][held])
    assert [micro_batches_in_flight(asked, stage) for stage in range(4)] == [5] * 4
    # 1F1B holds 4 in the first stage and 1 in the last
    for stage in range(4):
        assert dual[stage]["activations"] == pytest.approx(one[3]["activations"] * 5)
    assert dual[0]["logits"] == dual[3]["logits"] == one[3]["logits"]
    assert dual[1]["logits"] == 0
    assert memory_use(LLAMA3_8B, asked, None).objects == dual[0]
    # ZeRO spreads what a device holds over both ends: the pair holds as much as the two stages of a plain pipeline
    spread = memory_by_stage(LLAMA3_8B, replace(asked, parallel=replace(both, dp=8, zero_stage=1)))
    apart = memory_by_stage(LLAMA3_8B, replace(asked, parallel=replace(plain, dp=8, zero_stage=1)))
    assert spread[0]["optimizer"] == pytest.approx((apart[0]["optimizer"] + apart[3]["optimizer"]) / 2)
    assert spread[0]["parameters"] == dual[0]["parameters"]


@pytest.mark.parametrize(
    ("parallel", "phase", "place", "words"),
    [
        (Parallel(pp=3, micro_batches=12), "train", "pp", "must be even"),
        (Parallel(pp=4, micro_batches=6), "train", "micro_batches", "at least twice the 4 stages"),
        (Parallel(pp=4, micro_batches=9), "train", "micro_batches", "an even number"),
        (Parallel(micro_batches=8), "train", "schedule", "needs pipeline parallelism"),
        (Parallel(pp=4, micro_batches=8, virtual_stages=2), "train", "virtual_stages", "no chunks"),
        (Parallel(pp=4, micro_batches=8), "decode", "schedule", "only training"),
    ],
)
def test_what_a_pipeline_from_both_ends_needs(parallel: Parallel, phase: str, place: str, words: str) -> None:
    asked = Workload(phase=phase, parallel=replace(parallel, schedule="dualpipe"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=words) as caught:
        memory_use(LLAMA3_8B, asked, None)
    assert caught.value.loc == ("workload", "parallel", place)


def test_both_ends_reduce_their_gradients_together() -> None:
    """Two stages of gradients over all that hold them: 2 x (n - 1)/n x bytes, and n is twice the replicas."""
    both = Parallel(pp=4, micro_batches=8, schedule="dualpipe")

    def reduced(parallel: Parallel) -> float:
        table = cost_table(LLAMA3_8B, Workload(phase="train", seq_len=4096, parallel=parallel))
        rows = [i for i, op in enumerate(table.ops) if op.base.startswith("gradient all-reduce")]
        return float(sum((table.net[tier] * table["count"])[rows].sum() for tier in ("scale_up", "scale_out")))

    held = memory_by_stage(LLAMA3_8B, Workload(phase="train", seq_len=4096, parallel=both))[0]["gradients"]
    assert reduced(both) == pytest.approx(2 * 1 / 2 * held)
    assert reduced(replace(both, dp=2)) == pytest.approx(2 * 3 / 4 * held)
    assert reduced(replace(both, schedule="1f1b")) == 0


def test_layers_that_are_left_over_go_to_the_first_stages() -> None:
    """61 layers on 16 stages: 13 of four and three of three."""
    layout = layout_of(DEEPSEEK_V3, Workload(phase="train", seq_len=8, parallel=Parallel(pp=16)), 8)
    layers = [stage_layers(DEEPSEEK_V3, layout, stage) for stage in range(16)]
    assert layers == [4] * 13 + [3] * 3
    assert stage_layers(DEEPSEEK_V3, layout) == 4


def test_a_layer_is_brought_back_once_whatever_is_under_way() -> None:
    """Llama-3-8B in four stages with full recomputation: four micro-batches keep eight layer inputs each, and one layer
    is whole: 2 (4 * 4096 + 8192 + 2048 + 3 * 14336) + 4 * 32 bytes a token."""
    step = Workload(phase="train", seq_len=1024, recompute="full", parallel=Parallel(pp=4, micro_batches=8))
    kept = 4 * 8 * 1024 * 4096 * 2
    whole = 1024 * (2 * (4 * 4096 + 8192 + 2048 + 3 * 14336) + 4 * 32)
    assert memory_by_stage(LLAMA3_8B, step)[0]["activations"] == kept + whole


@some
@given(st.sampled_from(ALL), workloads("train"), st.sampled_from([1, 2, 4]))
def test_the_answer_is_the_fullest_stage(model: ModelSpec, workload: Workload, pp: int) -> None:
    asked = replace(workload, parallel=replace(workload.parallel, pp=pp, micro_batches=4))
    stages = memory_by_stage(model, asked)
    assert len(stages) == pp
    assert memory_use(model, asked, None).peak == max(sum(objects.values()) for objects in stages.values())


@some
@given(st.sampled_from(ALL), workloads(), st.floats(1e8, 1e13), st.floats(0, 0.5))
def test_a_reserve_only_adds_and_the_largest_batch_still_is(
    model: ModelSpec, workload: Workload, capacity: float, lost: float
) -> None:
    layout = layout_of(model, workload, 8)
    edit = reserve_edit(model, layout, Reserve(fragmentation=lost))
    use = memory_use(model, workload, capacity, edit=edit)
    least = memory_use(model, workload, capacity)
    assert all(size >= least.objects[name] for name, size in use.objects.items())
    assert least.largest_batch is not None
    assert use.largest_batch is not None
    assert use.largest_batch <= least.largest_batch
    if use.largest_batch:
        assert memory_use(model, replace(workload, batch=use.largest_batch), capacity, edit=edit).fits
    assert not memory_use(model, replace(workload, batch=use.largest_batch + 1), capacity, edit=edit).fits
    nothing = reserve_edit(model, layout, Reserve(0.0, 0.0, 0.0, 0))
    if workload.parallel.devices == 1:
        assert memory_use(model, workload, None, edit=nothing).objects == least.objects


def test_buffers_of_a_layout_by_hand() -> None:
    """Llama-3-8B, 1024 tokens of 4096 channels in bf16 are 8 MiB: TP takes one, a hand-over in training four."""
    mib = 2**20
    step = Workload(phase="train", seq_len=1024, parallel=Parallel(tp=2, pp=2, dp=2, micro_batches=2))
    layout = layout_of(LLAMA3_8B, step, 8)
    held = memory_use(LLAMA3_8B, step, None).objects
    assert communication_buffers(LLAMA3_8B, step, layout, Reserve(), held) == {
        "gradient buckets": 50 * mib,
        "tensor exchange": 8 * mib,
        "stage hand-over": 32 * mib,
    }
    decode = Workload(batch=64, context_len=100, parallel=Parallel(tp=2))
    assert communication_buffers(LLAMA3_8B, decode, layout_of(LLAMA3_8B, decode, 8), Reserve(), held) == {
        "tensor exchange": 64 * 4096 * 2
    }
