"""Encoders, encoder-decoders, towers, cross-attention, sparse attention, prediction modules and denoisers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.blocks.compressed import entries_seen
from app.domain.denoiser import DiffusionTransformer, LatentGrid, UNet
from app.domain.errors import InvalidInput
from app.domain.layout import layout_of
from app.domain.memory import memory_use, running_parameters, sharded_parameters
from app.domain.model import (
    Attention,
    CompressedAttention,
    DenseMlp,
    InputProduct,
    LatentAttention,
    LayerGroup,
    ModelSpec,
    PredictionModules,
    SelfAndCrossAttention,
    SparseIndexer,
    Tower,
)
from app.domain.step import cost_table
from app.domain.workload import Parallel, Workload
from tests.domain.architectures import LLAMA3_8B, row_of, step_total

SELF = Attention(4, 4, 16, 16)
SEEING = replace(SELF, kind="bidirectional")
MLP = DenseMlp(128, gated=False)
ENCODER = ModelSpec("e", "E", "encoder", 64, 0, (LayerGroup(2, SEEING, MLP),), learned_positions=50)
BOTH = SelfAndCrossAttention(SELF, replace(SELF, kind="cross"))
PAIR = ModelSpec("t", "T", "enc-dec", 64, 1000, (LayerGroup(3, BOTH, MLP, norms=3),), encoder=ENCODER)


# -- encoders ---------------------------------------------------------------------------------------------------------


def test_every_token_of_an_encoder_sees_every_other_and_nothing_is_cached() -> None:
    table = cost_table(ENCODER, Workload(phase="prefill", batch=3, seq_len=10))
    assert row_of(table, "attention") == 4 * 4 * 16 * 3 * 10 * 10
    assert step_total(table, "kv_read") == step_total(table, "kv_write") == 0
    assert "output head" not in {op.name for op in table.ops}
    assert memory_use(ENCODER, Workload(phase="prefill", batch=3, seq_len=10), None).objects["kv_cache"] == 0


def test_patches_enter_by_a_product_and_a_pooler_leaves_one_vector() -> None:
    model = replace(ENCODER, front=(InputProduct("patch embedding", 588, 64),), pooling="dense")
    table = cost_table(model, Workload(phase="prefill", batch=3, seq_len=10))
    assert row_of(table, "patch embedding") == 2 * 30 * 588 * 64
    assert row_of(table, "pooler") == 2 * 3 * 64 * 64


def test_an_encoder_has_no_context() -> None:
    with pytest.raises(InvalidInput, match="caches nothing") as refused:
        cost_table(ENCODER, Workload(phase="prefill", seq_len=10, context_len=5))
    assert refused.value.loc == ("workload", "context_len")


# -- encoder-decoders -------------------------------------------------------------------------------------------------


def test_a_prompt_runs_the_encoder_and_caches_its_keys_and_values() -> None:
    table = cost_table(PAIR, Workload(phase="prefill", batch=2, seq_len=5, source_len=30))
    assert row_of(table, "encoder attention") == 4 * 4 * 16 * 2 * 30 * 30
    assert row_of(table, "cross key and value projection") == 2 * (2 * 30) * 128 * 64
    assert row_of(table, "cross-attention") == 4 * 4 * 16 * (2 * 5) * 30
    assert row_of(table, "cross cache append", "kv_write") == 2 * 30 * 128 * 2
    assert row_of(table, "cross-attention", "kv_read") == 0
    assert row_of(table, "rotary and cache append", "kv_write") == 2 * 5 * 128 * 2


def test_without_rotary_positions_only_the_cache_is_written() -> None:
    plain = replace(LLAMA3_8B, rotary=False)
    table = cost_table(plain, Workload(phase="prefill", batch=2, seq_len=5))
    keys_and_values = 2 * 5 * 2 * 8 * 128 * 2
    assert row_of(table, "cache append", "act_read") == row_of(table, "cache append", "kv_write") == keys_and_values
    assert row_of(table, "cache append") == 0
    trained = cost_table(plain, Workload(phase="train", batch=1, seq_len=64))
    assert not any("append" in op.name for op in trained.ops)


def test_a_decoded_token_only_reads_what_the_encoder_left() -> None:
    table = cost_table(PAIR, Workload(batch=2, context_len=7, source_len=30))
    names = {op.name for op in table.ops}
    assert not any(name.startswith("encoder") for name in names)
    assert "cross key and value projection" not in names
    assert row_of(table, "cross-attention", "kv_read") == 2 * 30 * 128 * 2
    assert row_of(table, "attention", "kv_read") == 2 * 7 * 128 * 2
    # 7 + 1 tokens take a page of 16; the source's keys and values stay as they are
    held = memory_use(PAIR, Workload(batch=2, context_len=7, source_len=30), None).objects["kv_cache"]
    assert held == 2 * 3 * 128 * (16 + 30) * 2


def test_the_source_has_the_encoders_own_length_unless_it_is_given() -> None:
    table = cost_table(PAIR, Workload(phase="prefill", seq_len=5))
    assert row_of(table, "cross-attention") == 4 * 4 * 16 * 5 * 50
    assert "source_len was not given: 50 is assumed." in table.assumptions
    for workload, place in (
        (Workload(source_len=3), "source_len"),
        (Workload(visual_tokens=3), "visual_tokens"),
        (Workload(width=512), "width"),
        (Workload(prediction_modules=1), "prediction_modules"),
    ):
        with pytest.raises(InvalidInput) as refused:
            cost_table(LLAMA3_8B, workload)
        assert refused.value.loc == ("workload", place)


# -- towers and cross-attention to a picture --------------------------------------------------------------------------

TOWER = Tower("vision", ENCODER, merge=4, projector_elements=64 * 8 * 10, item_tokens=9)
SEES = ModelSpec("v", "V", "vlm", 64, 1000, (LayerGroup(2, SELF, MLP),), tower=TOWER, tower_params=1)


def test_a_tower_runs_when_a_sequence_has_its_tokens() -> None:
    """18 tokens are two pictures of 9, each of 36 patches that see each other."""
    words = cost_table(SEES, Workload(phase="prefill", batch=3, seq_len=40))
    assert not any(op.name.startswith("vision") for op in words.ops)
    assert any("the vision tower does not run" in note for note in words.assumptions)
    table = cost_table(SEES, Workload(phase="prefill", batch=3, seq_len=40, visual_tokens=18))
    assert row_of(table, "vision attention") == 4 * 4 * 16 * (3 * 2) * 36 * 36
    assert row_of(table, "vision projector") == 2 * (3 * 18) * 64 * 8 * 10
    assert not any(op.name.startswith("vision") for op in cost_table(SEES, Workload(visual_tokens=18)).ops)
    with pytest.raises(InvalidInput, match="among the 10 new tokens"):
        cost_table(SEES, Workload(phase="prefill", seq_len=10, visual_tokens=18))


def test_windows_limit_what_patches_see() -> None:
    """36 patches in windows of 4: every patch sees 4."""
    local = replace(ENCODER, layers=(LayerGroup(1, replace(SEEING, window=4), MLP),))
    model = replace(SEES, tower=replace(TOWER, stack=local))
    table = cost_table(model, Workload(phase="prefill", batch=1, seq_len=40, visual_tokens=9))
    assert row_of(table, "vision attention") == 4 * 4 * 16 * 36 * 4


def test_a_towers_parameters_lie_in_memory_only_when_it_runs() -> None:
    with_it, without = (Workload(phase="prefill", seq_len=40, visual_tokens=n) for n in (9, 0))
    layout = layout_of(SEES, without, 8)
    extra = running_parameters(SEES, with_it, layout).total - running_parameters(SEES, without, layout).total
    assert extra == sharded_parameters(ENCODER).total + 64 * 8 * 10


def test_layers_that_attend_to_a_picture_are_skipped_without_one() -> None:
    cross = LayerGroup(1, replace(SELF, kind="cross"), MLP)
    model = replace(SEES, layers=(*SEES.layers, cross), tower=replace(TOWER, merge=1))
    one = cost_table(model, Workload(batch=2, context_len=7))
    assert "visual_tokens was not given: one picture of 9 tokens is assumed." in one.assumptions
    assert row_of(one, "cross-attention", "kv_read") == 2 * 9 * 128 * 2
    none = cost_table(model, Workload(batch=2, context_len=7, visual_tokens=0))
    assert "cross-attention" not in {op.name for op in none.ops}
    assert step_total(none, "flop", kind="gemm") < step_total(one, "flop", kind="gemm")


# -- sparse attention -------------------------------------------------------------------------------------------------


def test_an_indexer_scores_every_key_and_attention_reads_the_best() -> None:
    """DeepSeek-V3.2's shape: 64 index heads of 128, 2,048 keys, at a context of 10,000."""
    mla = LatentAttention(128, 512, 128, 64, 128, 1536, indexer=SparseIndexer(64, 128, 2048))
    model = ModelSpec("d", "D", "decoder", 7168, 1000, (LayerGroup(1, mla, DenseMlp(128)),))
    table = cost_table(model, Workload(batch=2, context_len=10_000))
    assert row_of(table, "attention") == 2 * 128 * (2 * 512 + 64) * 2 * 2048
    assert row_of(table, "attention", "kv_read") == 2 * 2047 * 576 * 2
    assert row_of(table, "index query") == 2 * 2 * 64 * 128 * 1536
    assert row_of(table, "index scores") == 2 * 64 * 129 * 2 * 10_001
    assert row_of(table, "index scores", "kv_read") == 2 * 10_000 * 132  # 128 bytes and a 4-byte scale
    short = cost_table(model, Workload(batch=2, context_len=100))
    assert row_of(short, "attention", "kv_read") == 2 * 100 * 576 * 2


def test_keys_that_nobody_counts_still_limit_attention() -> None:
    attention = Attention(8, 2, 64, 64, indexer=SparseIndexer(4, 128, 256, counted=False))
    model = ModelSpec("d", "D", "decoder", 512, 1000, (LayerGroup(1, attention, DenseMlp(128)),))
    table = cost_table(model, Workload(phase="prefill", seq_len=1000))
    assert row_of(table, "attention") == 4 * 8 * 64 * (256 * 257 / 2 + 744 * 256)
    assert "index scores" not in {op.name for op in table.ops}
    assert any("what the indexer itself costs" in note.lower() for note in table.assumptions)


def test_an_output_gate_is_as_wide_as_the_queries() -> None:
    gated = replace(SELF, output_gate=True)
    tables = [
        cost_table(ModelSpec("m", "M", "decoder", 64, 1000, (LayerGroup(1, a, MLP),)), Workload(batch=3))
        for a in (SELF, gated)
    ]
    assert row_of(tables[1], "qkv projection") - row_of(tables[0], "qkv projection") == 2 * 3 * 64 * 64
    assert row_of(tables[1], "output gate", "act_read") == 3 * 2 * 64 * 2


# -- prediction modules -----------------------------------------------------------------------------------------------


def test_prediction_modules_run_when_asked_for() -> None:
    model = replace(LLAMA3_8B, prediction=PredictionModules(2, (replace(LLAMA3_8B.layers[0], count=1),)))
    plain = cost_table(model, Workload(phase="train", seq_len=64))
    assert any("prediction modules do not run" in note for note in plain.assumptions)
    table = cost_table(model, Workload(phase="train", seq_len=64, prediction_modules=1))
    assert row_of(table, "prediction projection") == 2 * 64 * 4096 * 8192
    assert row_of(table, "prediction output head") == row_of(table, "output head")
    layer = 2 * 64 * (41_943_040 + 176_160_768)
    more = step_total(table, "flop", kind="gemm") - step_total(plain, "flop", kind="gemm")
    assert more == 3 * (layer + 2 * 64 * 4096 * 8192 + 2 * 64 * 4096 * 128_256)
    drafts = cost_table(model, Workload(batch=8, seq_len=3, context_len=100, prediction_modules=2))
    heads = [i for i, op in enumerate(drafts.ops) if op.name == "prediction output head"]
    assert [drafts["flop"][i] for i in heads] == [2 * 8 * 4096 * 128_256] * 2  # one token a sequence
    with pytest.raises(InvalidInput, match="has 2 prediction modules"):
        cost_table(model, Workload(prediction_modules=3))
    with pytest.raises(InvalidInput, match="pipeline stages of a model with prediction modules"):
        cost_table(model, Workload(prediction_modules=1, parallel=Parallel(pp=2)))


# -- denoisers --------------------------------------------------------------------------------------------------------

PICTURE = LatentGrid(4, 8, None, (1, 2, 2), 256, 256, 1)
CLIP = LatentGrid(16, 8, 4, (1, 2, 2), 720, 480, 49)
DIT = DiffusionTransformer(128, 4, 32, 512, 3, 0, "none", "per block", 128, PICTURE, 8, 0, 0, classes=10)


def denoiser(made: DiffusionTransformer | UNet) -> ModelSpec:
    return ModelSpec("x", "X", "dit", 0, 0, (), denoiser=made)


def test_latent_tokens() -> None:
    """256 / 8 / 2 = 16 a side. CogVideoX: 49 frames are 13 latent ones of 60 x 90, so 13 * 30 * 45 = 17,550 tokens."""
    assert PICTURE.tokens(256, 256, 1) == 256
    assert PICTURE.tokens(512, 256, 1) == 512
    assert CLIP.tokens(720, 480, 49) == 17_550


def test_a_class_conditioned_transformer_by_hand() -> None:
    table = cost_table(denoiser(DIT), Workload(phase="prefill", batch=2))
    t = 2 * 256
    assert row_of(table, "patch embedding") == 2 * t * 16 * 128
    assert row_of(table, "query, key and value") == 2 * t * 128 * 384
    assert row_of(table, "mlp up") == 2 * t * 128 * 512
    assert row_of(table, "modulation") == 2 * 2 * 128 * 6 * 128  # once a sample, not once a token
    assert row_of(table, "attention") == 4 * 4 * 32 * 2 * 256 * 256
    assert row_of(table, "final projection") == 2 * t * 128 * 4 * 8
    assert row_of(table, "attention", "count") == 3
    assert table.tokens == t
    assert step_total(table, "kv_read") == 0


def test_joint_streams_attend_to_each_other_and_cross_attention_reads_text() -> None:
    joint = replace(DIT, text_attention="joint", text_tokens=44, text_width=96, single_blocks=2)
    table = cost_table(denoiser(joint), Workload(phase="prefill"))
    assert row_of(table, "attention") == 4 * 128 * 300 * 300
    assert row_of(table, "attention", "count") == 3 + 2
    assert row_of(table, "text query, key and value") == 2 * 44 * 128 * 384
    assert row_of(table, "fused query, key, value and mlp up") == 2 * 300 * 128 * (384 + 512)
    cross = replace(DIT, text_attention="cross", modulation="shared", text_tokens=44, text_width=96)
    table = cost_table(denoiser(cross), Workload(phase="prefill"))
    assert row_of(table, "attention") == 4 * 128 * 256 * 256
    assert row_of(table, "cross-attention") == 4 * 128 * 256 * 44
    assert row_of(table, "modulation", "count") == 1


def test_a_step_follows_the_size_of_the_picture() -> None:
    twice = cost_table(denoiser(DIT), Workload(phase="prefill", width=512, height=256))
    assert twice.tokens == 512
    assert any("512 x 256 pixels" in note for note in twice.assumptions)
    with pytest.raises(InvalidInput, match="single pictures"):
        cost_table(denoiser(DIT), Workload(phase="prefill", frames=5))
    with pytest.raises(InvalidInput, match="less than one token"):
        cost_table(denoiser(DIT), Workload(phase="prefill", width=8))
    with pytest.raises(InvalidInput, match="follow from width, height and frames"):
        cost_table(denoiser(DIT), Workload(phase="prefill"), grid={"seq_len": [1, 2]})


def test_two_ranks_halve_blocks_and_sum_twice_each() -> None:
    one = cost_table(denoiser(DIT), Workload(phase="prefill"))
    two = cost_table(denoiser(DIT), Workload(phase="prefill", parallel=Parallel(tp=2)))
    for name in ("query, key and value", "mlp down", "attention"):
        assert row_of(two, name) == row_of(one, name) / 2
    sums = [op for op in two.ops if op.kind == "collective"]
    assert [op.count for op in sums] == [3, 3]
    assert sums[0].net["scale_up"] == 256 * 128 * 2  # ring of two: each sends the array once


def test_a_u_net_by_hand() -> None:
    """One level of 32 channels without attention, one with: 8 x 8 latents, then 4 x 4."""
    grid = LatentGrid(4, 8, None, (1, 1, 1), 64, 64, 1)
    net = UNet((32, 64), (0, 1), 1, 1, None, 16, 48, 0, grid, text_tokens=7)
    table = cost_table(denoiser(net), Workload(phase="prefill", batch=3))
    assert row_of(table, "input convolution") == 18 * 3 * 64 * 4 * 32
    assert row_of(table, "downsampling") == 18 * 3 * 16 * 32 * 32
    assert row_of(table, "down transformer attention") == 4 * 64 * 3 * 16 * 16
    assert row_of(table, "down transformer cross key and value") == 2 * 3 * 7 * 128 * 48
    assert row_of(table, "upsampling") == 18 * 3 * 64 * 64 * 64
    ups = [table["flop"][i] for i, op in enumerate(table.ops) if op.name == "up residual convolution"]
    # widths with what is carried over: 64 + 64 and 64 + 32 at 4 x 4, then 64 + 32 and 32 + 32 at 8 x 8
    assert ups == [
        18 * 3 * 16 * 128 * 64,
        18 * 3 * 16 * 96 * 64,
        18 * 3 * 64 * 96 * 32,
        18 * 3 * 64 * 64 * 32,
    ]
    with pytest.raises(InvalidInput, match="not divided over ranks"):
        cost_table(denoiser(net), Workload(phase="prefill", parallel=Parallel(tp=2)))


def test_training_a_denoiser_does_three_times_the_forward_pass() -> None:
    forward = cost_table(denoiser(DIT), Workload(phase="prefill"))
    train = cost_table(denoiser(DIT), Workload(phase="train", optimizer="none"))
    assert step_total(train, "flop", kind="gemm") == 3 * step_total(forward, "flop", kind="gemm")
    assert step_total(train, "flop", kind="attention") == 3 * step_total(forward, "flop", kind="attention")


def test_of_two_stored_networks_a_step_updates_one() -> None:
    one, two = (cost_table(denoiser(replace(DIT, networks=n)), Workload(phase="train")) for n in (1, 2))
    assert row_of(two, "optimizer step", "state") == row_of(one, "optimizer step", "state")
    held = [memory_use(denoiser(replace(DIT, networks=n)), Workload(phase="train"), None) for n in (1, 2)]
    assert held[1].objects["parameters"] == 2 * held[0].objects["parameters"]


# -- compressed attention ---------------------------------------------------------------------------------------------


def test_entries_that_queries_see() -> None:
    """Positions 1 to 10 with an entry for 4 tokens see 0, 0, 0, 1, 1, 1, 1, 2, 2, 2: 10 in all; at most 1: 7."""
    assert entries_seen(10, 0, 4) == 10
    assert entries_seen(10, 0, 4, 1) == 7
    assert entries_seen(3, 7, 4) == 2 + 2 + 2
    assert entries_seen(1, 1000, 128) == 7


def test_compressed_attention_by_hand() -> None:
    """Window of 8, one entry for 4 tokens of which 5 are picked, at a context of 99."""
    attention = CompressedAttention(4, 32, 48, 24, 2, window=8, ratio=4, indexer=SparseIndexer(2, 16, 5), streams=4)
    model = ModelSpec("d", "D", "decoder", 64, 1000, (LayerGroup(1, attention, MLP),), residual_streams=4)
    table = cost_table(model, Workload(batch=3, context_len=99))
    assert row_of(table, "attention") == 4 * 4 * 32 * 3 * (8 + 5)
    assert row_of(table, "attention", "kv_read") == 3 * (7 + 5) * 32 * 2
    assert row_of(table, "entry and weight") == 2 * 3 * 64 * 2 * 64
    assert row_of(table, "grouped output down") == 2 * 3 * 4 * 32 * 24
    assert row_of(table, "output projection") == 2 * 3 * 48 * 64
    assert row_of(table, "index scores") == 2 * 2 * 17 * 3 * 25
    assert row_of(table, "index scores", "kv_read") == 3 * 24 * 16 * (1 + 4 / 128)
    assert row_of(table, "stream maps") == 2 * 3 * 24 * 4 * 64
    # what waits is written and read (two widths of 32, values and weights), a quarter of an entry is finished
    assert row_of(table, "pooling", "kv_write") == 3 * (2 * 64 + 32 / 4) * 2
    prompt = cost_table(model, Workload(phase="prefill", seq_len=10))
    assert row_of(prompt, "attention") == 4 * 4 * 32 * ((8 * 9 / 2 + 2 * 8) + 10)
