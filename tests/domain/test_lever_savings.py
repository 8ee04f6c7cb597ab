"""Savings of levers worked out by hand, on architectures written out here and a device without a cache.

Sizes: Llama 3 8B has 32 layers, hidden 4096, 32 heads and 8 KV heads of 128, MLP 14336, vocabulary 128256. DeepSeek-V3
has 58 expert layers of 256 experts (8 a token, width 2048), hidden 7168. bf16 is 2 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import LeverRequest, lever_path
from app.domain.levers.batching import accepted_tokens
from app.domain.levers.products import waves_lost
from app.domain.levers.registry import LEVERS
from app.domain.model import ModelSpec
from app.domain.routing import replicated_skew
from app.domain.workload import Dtypes, Parallel, Routing, Workload
from app.services.estimate import bound_json, bound_of
from tests.domain.architectures import DEEPSEEK_V3, GPT3_175B, H100, LLAMA3_8B, MIXTRAL_8X7B
from tests.domain.lever_scenarios import B200, CATALOG, asked

DEVICE = replace(H100, l2_capacity=0.0, pcie_bandwidth=64e9)
LAYERS, HIDDEN, WIDTH, VOCABULARY = 32, 4096, 14336, 128256
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
LAYER_WEIGHTS = HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * WIDTH
CONTEXT, BATCH = 4096, 8
DECODE = Workload(phase="decode", batch=BATCH, context_len=CONTEXT)
PREFILL = Workload(phase="prefill", batch=1, seq_len=1024)
TRAIN = Workload(phase="train", batch=1, seq_len=1024)
CACHE = LAYERS * BATCH * CONTEXT * 2 * KV_HEADS * HEAD_DIM * 2
"""Bytes of the decode question's cached context: 2 x KV heads x head size x 2 bytes a token and layer."""


def row(
    model: ModelSpec, workload: Workload, lever: str, *, device: HardwareProfile = DEVICE, **params: float
) -> dict[str, Any]:
    """The ledger's row of one lever."""
    found = bound_json(bound_of(device, model, workload, levers=[LeverRequest(lever, params)]))
    ledger: list[dict[str, Any]] = found["ledger"]
    return ledger[0]


def saved(model: ModelSpec, workload: Workload, lever: str, figure: str = "saved_bytes", **params: float) -> float:
    return float(row(model, workload, lever, **params)[figure])


def test_one_qkv_product_reads_its_input_once() -> None:
    tokens = 1024
    assert saved(LLAMA3_8B, PREFILL, "fused-qkv") == pytest.approx(LAYERS * 2 * tokens * HIDDEN * 2)
    assert saved(LLAMA3_8B, PREFILL, "fused-qkv", "saved_launches") == 2 * LAYERS


def test_separate_attention_writes_scores_and_probabilities() -> None:
    pairs = 1024 * 1025 / 2
    assert saved(LLAMA3_8B, PREFILL, "fa1") == pytest.approx(LAYERS * 4 * HEADS * pairs * 2)


def test_saved_probabilities_are_written_and_read_once() -> None:
    pairs = 1024 * 1025 / 2
    assert saved(LLAMA3_8B, TRAIN, "attn-bwd-recompute") == pytest.approx(LAYERS * 2 * HEADS * pairs * 2)
    # kept for the backward pass: heads x sequence squared in bf16
    kept = saved(LLAMA3_8B, TRAIN, "attn-bwd-recompute", "saved_memory_bytes")
    assert kept == pytest.approx(LAYERS * HEADS * 1024**2 * 2)


def test_a_gate_apart_writes_and_reads_one_tensor_as_wide_as_the_mlp() -> None:
    assert saved(LLAMA3_8B, PREFILL, "fused-swiglu") == pytest.approx(LAYERS * 2 * 1024 * WIDTH * 2)
    # back, it is read again, its gradient written and read
    assert saved(LLAMA3_8B, TRAIN, "fused-swiglu") == pytest.approx(LAYERS * 5 * 1024 * WIDTH * 2)
    assert saved(LLAMA3_8B, TRAIN, "fused-swiglu", "saved_memory_bytes") == pytest.approx(LAYERS * 1024 * WIDTH * 2)


def test_a_norm_apart_reads_the_sum_once_more() -> None:
    tensor = 1024 * HIDDEN * 2
    # two norms a layer; behind the last one the sum is also written, which a prompt needs for one position
    assert saved(LLAMA3_8B, PREFILL, "fused-norm") == pytest.approx(2 * LAYERS * tensor + 2 * HIDDEN * 2)
    # back, the norm writes a gradient that an addition reads; the last one has nothing to add
    assert saved(LLAMA3_8B, TRAIN, "fused-norm") == pytest.approx(2 * LAYERS * 3 * tensor + tensor)
    assert saved(LLAMA3_8B, TRAIN, "fused-norm", "saved_launches") == 4 * LAYERS + 1


def test_rotary_apart_moves_queries_and_keys_twice() -> None:
    width = (HEADS + KV_HEADS) * HEAD_DIM
    assert saved(LLAMA3_8B, PREFILL, "fused-rope") == pytest.approx(LAYERS * 2 * 1024 * width * 2)


def test_an_epilogue_writes_the_product_and_not_its_inputs() -> None:
    # gate and up written (2 widths) and read (2), product written (1): only the last is left
    assert saved(LLAMA3_8B, PREFILL, "gemm-epilogue") == pytest.approx(LAYERS * 4 * 1024 * WIDTH * 2)


def test_four_bit_weights_keep_a_scale_for_each_group() -> None:
    weights = (
        LAYERS * LAYER_WEIGHTS + VOCABULARY * HIDDEN + BATCH * HIDDEN
    )  # head, and the embedding rows that are read
    assert saved(LLAMA3_8B, DECODE, "int4-marlin") == pytest.approx(weights * 2 * (1 - 4.125 / 16))
    assert saved(LLAMA3_8B, DECODE, "awq-gptq", bits=3, group=64) == pytest.approx(weights * 2 * (1 - 3.25 / 16))


def test_fp8_cache_is_half_the_bytes() -> None:
    new = LAYERS * BATCH * 2 * KV_HEADS * HEAD_DIM * 2
    assert saved(LLAMA3_8B, DECODE, "kv-fp8") == pytest.approx((CACHE + new) / 2)


def test_two_bit_cache_keeps_its_newest_tokens() -> None:
    recent = 128 / (CONTEXT + 1)
    share = recent + (1 - recent) * (2 + 32 / 32) / 16
    new = LAYERS * BATCH * 2 * KV_HEADS * HEAD_DIM * 2
    assert saved(LLAMA3_8B, DECODE, "kv-2bit") == pytest.approx((CACHE + new) * (1 - share))


def test_fewer_kv_heads_shrink_cache_and_projection() -> None:
    # 8 KV heads to 2: three quarters of the cache and of the key and value weights go
    weights = LAYERS * HIDDEN * 2 * 6 * HEAD_DIM * 2
    tokens = LAYERS * BATCH * 2 * 6 * HEAD_DIM * 2
    # new keys and values: written by the product, read by the append, written to the cache, read by attention
    assert saved(LLAMA3_8B, DECODE, "gqa-mqa", kv_heads=2) == pytest.approx(CACHE * 0.75 + weights + 4 * tokens)


def test_latent_attention_caches_rank_and_rotary() -> None:
    gpt = Workload(phase="decode", batch=1, context_len=2048)
    memory = saved(GPT3_175B, gpt, "mla", "saved_memory_bytes")
    pages = 2064  # 2049 tokens in pages of 16
    cache = 96 * pages * 2 * (2 * 96 * 128 - (512 + 64))
    # a layer of multi-head attention has 4 x 12288^2 weights; a latent one queries, down, up and output
    parameters = 96 * 2 * (4 * 12288**2 - (12288 * 96 * 192 + 12288 * 576 + 512 * 96 * 256 + 96 * 128 * 12288))
    assert memory == pytest.approx(cache + parameters, rel=1e-3)


def test_windows_read_no_more_than_themselves() -> None:
    # half of the layers see 1024 keys, the new token among them
    one_token = BATCH * 2 * KV_HEADS * HEAD_DIM * 2
    expected = LAYERS / 2 * (CONTEXT - 1023) * one_token
    assert saved(LLAMA3_8B, DECODE, "swa", window=1024, full_share=0.5) == pytest.approx(expected)


def test_a_shared_prefix_is_read_once() -> None:
    # 8 sequences share half of their context: 8 halves become one
    assert saved(LLAMA3_8B, DECODE, "cascade-prefix", share=0.5) == pytest.approx(CACHE * 0.5 * 7 / 8)


def test_block_sparse_attention_reads_kept_blocks_and_one_key_a_block() -> None:
    share = 0.1 + 0.5 / 64
    assert saved(LLAMA3_8B, DECODE, "nsa-block-sparse", kept=0.1, block=64) == pytest.approx(CACHE * (1 - share))


def test_prefix_hits_leave_the_rest_to_compute() -> None:
    # F-5.5: linear work falls with the hits, attention still covers cached pairs
    found = row(LLAMA3_8B, PREFILL, "prefix-cache", hit=0.75)
    linear = (
        2 * 768 * LAYERS * (HIDDEN * (HEADS + 2 * KV_HEADS) * HEAD_DIM + HEADS * HEAD_DIM * HIDDEN + 3 * HIDDEN * WIDTH)
    )
    pairs = 768 * 769 / 2
    attention = LAYERS * 4 * HEADS * HEAD_DIM * pairs
    assert found["saved_flop"] == pytest.approx(linear + attention, rel=2e-3)  # and some pointwise work
    assert found["before"]["tokens"] == found["after"]["tokens"] == 1024


def test_the_cache_on_the_host_crosses_pcie() -> None:
    found = row(LLAMA3_8B, DECODE, "kv-offload", share=0.25)
    assert found["saved_net_bytes"] == pytest.approx(-CACHE / 4)
    assert found["saved_bytes"] == pytest.approx(CACHE / 4)
    assert found["after"]["bound_s"] >= CACHE / 4 / 64e9
    with pytest.raises(InvalidInput, match="host link bandwidth") as refusal:
        row(LLAMA3_8B, DECODE, "kv-offload", device=H100)
    assert refusal.value.loc == ("levers", 0)


def test_a_reserved_cache_is_a_multiple_of_the_used_one() -> None:
    pages = -(-(CONTEXT + 1) // 16) * 16
    cache = LAYERS * BATCH * pages * 2 * KV_HEADS * HEAD_DIM * 2
    assert saved(LLAMA3_8B, DECODE, "paged-kv", "saved_memory_bytes", reserved=3) == pytest.approx(2 * cache)


def test_loss_in_the_output_head() -> None:
    found = row(LLAMA3_8B, TRAIN, "fused-linear-ce", chunk=64)
    logits = 1024 * VOCABULARY
    assert found["saved_flop"] == pytest.approx(-2 * logits * HIDDEN)
    # logits: written, read and replaced by their gradient, which is read twice; the head's weights are read once more
    moved = 5 * logits * 2 - (VOCABULARY * HIDDEN + 1024 * HIDDEN) * 2
    assert found["saved_bytes"] == pytest.approx(moved)
    # bf16 logits and gradient and an fp32 copy, against a chunk in fp32 and one number a position
    held = logits * 8 - 4 * (1024 + 64 * VOCABULARY)
    assert found["saved_memory_bytes"] == pytest.approx(held)


def test_eight_bit_moments_by_the_formula() -> None:
    parameters = 8_030_261_248
    found = row(LLAMA3_8B, TRAIN, "opt-8bit")
    assert found["saved_bytes"] == pytest.approx((28 - 16) * parameters)
    assert found["saved_memory_bytes"] == pytest.approx(6 * parameters)


def test_an_optimizer_over_single_tensors_passes_over_fp32() -> None:
    found = row(LLAMA3_8B, TRAIN, "multi-tensor-opt", passes=4)
    assert found["saved_bytes"] == pytest.approx(4 * 12 * 8_030_261_248)
    assert found["saved_launches"] == 4 * 32 * 9


def test_state_on_the_host_leaves_the_device() -> None:
    found = row(LLAMA3_8B, TRAIN, "cpu-offload-opt")
    assert found["saved_memory_bytes"] == pytest.approx(12 * 8_030_261_248)
    assert found["saved_net_bytes"] == pytest.approx(-2 * 8_030_261_248)


def test_padding_is_work_on_nothing() -> None:
    plain = bound_json(bound_of(DEVICE, LLAMA3_8B, TRAIN))
    found = row(LLAMA3_8B, TRAIN, "seq-packing", padding=0.2)
    moving = plain["executed_flop"] - 12 * 8_030_261_248
    assert found["saved_flop"] == pytest.approx(moving * (1 / 0.8 - 1))


def test_speculation_emits_what_is_accepted() -> None:
    # EX-45: acceptance 0.8, four drafts
    assert accepted_tokens(0.8, 4) == pytest.approx(3.3616)
    assert accepted_tokens(0.6, 4) == pytest.approx(2.3056)
    assert accepted_tokens(0.8, 8) == pytest.approx(4.32891, rel=1e-5)
    assert accepted_tokens(1.0, 4) == 5.0
    assert accepted_tokens(0.0, 4) == 1.0
    found = row(LLAMA3_8B, DECODE, "spec-decode", drafts=4, acceptance=0.8, draft_cost=0.0)
    assert found["after"]["tokens"] == pytest.approx(BATCH * 3.3616)
    assert found["after_s_per_token"] < found["before_s_per_token"] / 3
    costly = row(LLAMA3_8B, DECODE, "spec-decode", drafts=4, acceptance=0.8, draft_cost=0.05)
    # four drafts read a twentieth of the weights and of the cache each
    head_and_layers = 7_504_924_672 * 2
    drafts = 4 * 0.05 * (head_and_layers + CACHE)
    assert found["after"]["hbm_bytes"] + drafts == pytest.approx(costly["after"]["hbm_bytes"], rel=2e-3)


def test_dispatch_in_fp8_is_half_and_a_scale() -> None:
    workload = Workload(phase="decode", batch=64, context_len=1024, parallel=Parallel(dp=32, ep=32))
    found = row(DEEPSEEK_V3, workload, "fp8-dispatch")
    plain = bound_json(bound_of(DEVICE, DEEPSEEK_V3, workload))
    dispatch = next(op for op in plain["ops"] if op["name"] == "dispatch")
    assert found["saved_net_bytes"] == pytest.approx(dispatch["net_bytes"] * 58 * (1 - 1.03125 / 2))


def test_copies_sent_one_by_one_are_top_k_a_token() -> None:
    # 64 ranks in nodes of 8: of 8 copies of a token 7/64 stay near and 56/64 leave, 64 tokens of 7168 in bf16 each
    workload = Workload(phase="decode", batch=64, context_len=1024, parallel=Parallel(dp=64, ep=64))
    found = row(DEEPSEEK_V3, workload, "deepep", slower=1)
    plain = bound_json(bound_of(DEVICE, DEEPSEEK_V3, workload))
    one = next(op for op in plain["ops"] if op["name"] == "dispatch")["net_bytes"]
    size = 64 * 7168 * 2
    # EX-29: 5.295 distinct nodes among 8; near, forwarding sends more than single copies would
    far = size * (8 * 56 / 64 - 5.29465 * 7 / 8)
    assert found["saved_net_bytes"] == pytest.approx(2 * 58 * far, rel=1e-4)
    assert one * 2 * 58 == pytest.approx(found["after"]["net_bytes"])


def test_routing_to_four_nodes_caps_what_leaves() -> None:
    workload = Workload(phase="decode", batch=64, context_len=1024, parallel=Parallel(dp=64, ep=64))
    found = bound_json(
        bound_of(DEVICE, DEEPSEEK_V3, workload, levers=[LeverRequest("node-limited-routing", {"nodes": 4})])
    )
    dispatch = next(op for op in found["ops"] if op["name"] == "dispatch")
    assert dispatch["time_s"] == pytest.approx(64 * 7168 * 2 * 4 * 7 / 8 / 50e9)


def test_experts_one_by_one_are_launches() -> None:
    workload = Workload(phase="decode", batch=8, context_len=16)
    # 8 experts, two products a layer (gate and up, down): seven launches more each
    assert saved(MIXTRAL_8X7B, workload, "grouped-gemm", "saved_launches") == 32 * 2 * 7


def test_no_permuted_copy() -> None:
    workload = Workload(phase="prefill", batch=1, seq_len=1024)
    # read tokens, write two copies
    assert saved(MIXTRAL_8X7B, workload, "scattermoe") == pytest.approx(32 * 3 * 1024 * 4096 * 2)


def test_expert_outputs_are_not_kept() -> None:
    workload = Workload(phase="train", batch=1, seq_len=1024)
    assert saved(MIXTRAL_8X7B, workload, "mem-eff-permutation", "saved_memory_bytes") == pytest.approx(
        32 * 2 * 1024 * 4096 * 2
    )


def test_copies_of_a_busy_expert_level_the_ranks() -> None:
    # shares 0.4 0.2 0.2 0.2, two ranks with as many slots each: 0.4 and 0.2 lie together
    assert replicated_skew([0.4, 0.2, 0.2, 0.2], 2, 0) == pytest.approx(0.2)
    # both copies go to the first expert: two of 0.2 and one of its thirds on one rank
    assert replicated_skew([0.4, 0.2, 0.2, 0.2], 2, 2) == pytest.approx((0.2 + 0.2 + 0.4 / 3) * 2 - 1)
    routing = Routing(kind="histogram", tokens_per_expert=(4, 2, 2, 2, 2, 2, 2, 4))
    workload = Workload(phase="decode", batch=64, context_len=16, parallel=Parallel(dp=8, ep=8), routing=routing)
    plain = bound_json(bound_of(DEVICE, MIXTRAL_8X7B, workload))
    # eight experts with twice the mean on two of them; each of the copies takes weights of its own
    levers = [LeverRequest("expert-replication", {"copies": 8})]
    level = bound_json(bound_of(DEVICE, MIXTRAL_8X7B, workload, levers=levers))
    assert 0 <= level["terms"]["imbalance_s"] < plain["terms"]["imbalance_s"]
    copies = 32 * 3 * 4096 * 14336 * 2
    assert level["memory"]["peak_bytes"] - plain["memory"]["peak_bytes"] == pytest.approx(copies)


def test_rings_through_all_ranks_are_limited_by_the_outer_link() -> None:
    # EX-36 in bytes: 32 ranks, 8 a node; flat 2 x 31/32 of the array leave the node, in two levels 2 x 3/4 / 8
    workload = replace(TRAIN, parallel=Parallel(dp=32))
    gradients = 8_030_261_248 * 2
    assert saved(LLAMA3_8B, workload, "hierarchical-coll", "saved_net_bytes") == pytest.approx(2 * 31 / 32 * gradients)
    # 2 x 31 messages one after another in a flat ring, 2 x log2(4 nodes) in two levels
    (step,) = bound_of(DEVICE, LLAMA3_8B, workload, levers=[LeverRequest("hierarchical-coll")]).ledger
    assert [float(end.bound.table.total("hops")) for end in (step.before, step.after)] == [62, 4]


@pytest.mark.parametrize(("ranks_per_node", "local"), [(8, 4), (16, 8), (64, 32)])
def test_quantised_gathers_keep_their_copy_in_the_node_of_the_profile(ranks_per_node: int, local: int) -> None:
    # pairs of tensor ranks: half of 8.03e9 parameters in 2 bytes, divided by the pairs of a node
    assert DEVICE.scale_up is not None
    device = replace(DEVICE, scale_up=replace(DEVICE.scale_up, domain_size=ranks_per_node))
    workload = replace(TRAIN, parallel=Parallel(tp=2, dp=32, zero_stage=3))
    found = row(LLAMA3_8B, workload, "zeropp", device=device)
    copy = LAYERS * (LAYER_WEIGHTS / 2 + 2 * HIDDEN) + HIDDEN + VOCABULARY * HIDDEN
    assert -found["saved_memory_bytes"] == pytest.approx(0 if local == 32 else copy * 2 / local)
    # of three exchanges: half a gather and a quarter of a scatter leave the node; 1.5 gathers and a quarter stay in it
    nodes = 64 / ranks_per_node
    out, up = (nodes - 1) / nodes / local, (local - 1) / local
    before, after = copy * 2 * 3 * (out + up), copy * 2 * (0.75 * out + 1.75 * up)
    assert found["saved_net_bytes"] == pytest.approx(before - after)


def test_products_of_wider_formats_gain_nothing_by_their_class() -> None:
    # nobody measured training in tf32: its stack is that of 16-bit products, or narrowing them would cost time
    (step,) = asked("experts, folded", "true-bf16").ledger
    factors = [end.expected.basis.split(", from")[0] for end in (step.before, step.after)]
    assert factors[0] == factors[1]
    assert step.before.expected.time > 1.2 * step.after.expected.time


def test_gradients_in_bf16_cross_in_half() -> None:
    dtypes = Dtypes(gradients="fp32", communication="fp32")
    workload = replace(TRAIN, parallel=Parallel(dp=8), dtypes=dtypes)
    gradients = 8_030_261_248 * 4
    assert saved(LLAMA3_8B, workload, "grad-bf16-a2a", "saved_net_bytes") == pytest.approx(2 * 7 / 8 * gradients / 2)


def test_bubbles_by_the_table() -> None:
    # EX-28: 8 stages, 32 micro-batches: 7/32 of the work, a quarter of it with four chunks, a third without bubbles
    workload = replace(TRAIN, parallel=Parallel(pp=8, micro_batches=32), optimizer="none")
    plain = bound_json(bound_of(DEVICE, LLAMA3_8B, workload))
    wait = plain["terms"]["sync_s"]
    for lever, params, share in (("pp-interleave", {"chunks": 4}, 1 / 4), ("zero-bubble", {}, 1 / 3)):
        found = bound_json(bound_of(DEVICE, LLAMA3_8B, workload, levers=[LeverRequest(lever, params)]))
        assert found["terms"]["sync_s"] == pytest.approx(wait * share)
    experts = replace(workload, parallel=Parallel(pp=8, micro_batches=32, dp=8, ep=8))
    both = bound_json(bound_of(DEVICE, DEEPSEEK_V3, experts, levers=[LeverRequest("dualpipe")]))
    one = bound_json(bound_of(DEVICE, DEEPSEEK_V3, experts))
    # (p/2 - 1) 2F over 32 x 3F
    assert both["terms"]["sync_s"] / one["terms"]["sync_s"] == pytest.approx(3 * 2 / 96 / (7 / 32))


def test_one_sum_a_layer_in_parallel_blocks() -> None:
    workload = replace(PREFILL, parallel=Parallel(tp=8))
    # one all-reduce of 2 x 7/8 of the activation less in each layer
    expected = LAYERS * 2 * 7 / 8 * 1024 * HIDDEN * 2
    assert saved(LLAMA3_8B, workload, "ptb", "saved_net_bytes") == pytest.approx(expected)


def test_waves_that_are_not_full() -> None:
    # EX-38
    assert 1 / waves_lost(4096, 4096, 132) == pytest.approx(0.96970, rel=1e-4)
    assert 1 / waves_lost(2304, 4096, 132) == pytest.approx(0.87273, rel=1e-4)
    assert 1 / waves_lost(128, 8192, 132) == pytest.approx(0.48485, rel=1e-4)


@pytest.mark.parametrize("lever", ["fa2", "fa3", "gemm-autotune", "warp-spec", "cap-comm-sms", "tp-chunk-overlap"])
def test_efficiency_moves_the_forecast_and_never_the_bound(lever: str) -> None:
    workload = replace(PREFILL, parallel=Parallel(tp=8))
    found = row(LLAMA3_8B, workload, lever)
    for name in ("bound_s", "serial_bound_s", "hbm_bytes", "net_bytes", "executed_flop", "launches", "memory_bytes"):
        assert found["before"][name] == found["after"][name]
    assert found["saved_expected_s"] > 0


def test_conversions_can_be_fused_once_something_is_converted() -> None:
    with pytest.raises(InvalidInput, match="nothing is converted"):
        lever_path(LEVERS, LLAMA3_8B, PREFILL, [LeverRequest("quant-epilogue"), LeverRequest("fp8-gemm")])
    both = bound_json(
        bound_of(DEVICE, LLAMA3_8B, PREFILL, levers=[LeverRequest("fp8-gemm"), LeverRequest("quant-epilogue")])
    )
    plain = bound_json(bound_of(DEVICE, LLAMA3_8B, PREFILL))
    assert both["baseline"]["hbm_bytes"] == plain["hbm_bytes"]
    assert both["ledger"][1]["saved_bytes"] > 0


def test_a_device_of_another_generation_is_refused_where_it_is_known() -> None:
    for device, reason in (("sm80", "sm90"), ("gfx942", "sm90"), ("sm100", "sm90")):
        with pytest.raises(InvalidInput, match=reason):
            lever_path(LEVERS, LLAMA3_8B, PREFILL, [LeverRequest("fa3")], device=device)
    for known in ("sm90", None):
        assert lever_path(LEVERS, LLAMA3_8B, PREFILL, [LeverRequest("fa3")], device=known).asked


def test_numbers_that_do_not_fit_the_question_are_refused_at_the_lever() -> None:
    for lever, params, words in (
        ("gqa-mqa", {"kv_heads": 5}, "do not divide"),
        ("swa", {"window": 100_000}, "fit into a window"),
        ("cascade-prefix", {"share": 2}, "from 0 to 1"),
        ("spec-decode", {"drafts": 2.5}, "whole number"),
        ("mtp", {}, "prediction modules"),
    ):
        with pytest.raises(InvalidInput, match=words) as refusal:
            row(LLAMA3_8B, DECODE, lever, **params)
        assert refusal.value.loc[:2] == ("levers", 0)


EXPERTS_TRAIN = Workload(
    phase="train", batch=1, seq_len=4096, parallel=Parallel(tp=4, pp=2, dp=16, ep=16, micro_batches=8)
)


@pytest.mark.parametrize(
    ("model", "workload", "levers"),
    [
        # a padded exchange inside the node lies beside one that leaves it
        ("qwen3-235b-a22b", EXPERTS_TRAIN, ("dropless-blocksparse", "hybridep")),
        # engines that dequantise are no reason to change the engine
        ("llama-3.1-8b", PREFILL, ("int4-marlin",)),
        ("llama-3.1-70b", Workload(batch=64, context_len=4096, parallel=Parallel(tp=8)), ("int4-marlin",)),
        # fewer keys a query, or narrower ones, leave queries, heads and waves as they are
        ("llama-3.1-8b", replace(PREFILL, seq_len=4096), ("fp8-attn", "nsa-block-sparse")),
        ("llama-3.1-8b", DECODE, ("skip-softmax", "kv-2bit")),
        # half batches hide more of the exchange than the shared expert does
        ("deepseek-v3", replace(PREFILL, batch=2, parallel=Parallel(dp=32, ep=32)), ("shared-expert-overlap",)),
        # pictures of a fixed size stay as large when more of their patches become one token
        ("gemma-3-27b", replace(PREFILL, seq_len=2048, visual_tokens=1024), ("resampler",)),
        # adapters are in the step's one kernel already
        ("llama-3.1-8b", DECODE, ("megakernel", "lora-sgmv")),
    ],
)
def test_what_saves_never_costs_a_forecast(model: str, workload: Workload, levers: tuple[str, ...]) -> None:
    requests = [LeverRequest(lever) for lever in levers]
    ledger = bound_of(CATALOG.hardware[B200], CATALOG.models[model], workload, levers=requests).ledger
    times = [ledger[0].before.expected.time, *(step.after.expected.time for step in ledger)]
    assert times == sorted(times, reverse=True)


def test_a_loss_in_its_product_costs_the_product_again_and_no_more() -> None:
    workload = Workload(phase="train", batch=1, seq_len=4096, dtypes=Dtypes(weights="fp8", activations="fp8"))
    found = row(LLAMA3_8B, workload, "fused-linear-ce")
    assert -0.02 < found["saved_expected_s"] / found["before"]["expected_s"] < 0


@pytest.mark.parametrize("levers", [("gemm-epilogue", "fused-gate-up"), ("fused-swiglu", "gemm-epilogue")])
def test_an_epilogue_leaves_the_shape_of_its_product(levers: tuple[str, ...]) -> None:
    """It writes the activated half of what the product computes: less traffic, and never a slower forecast."""
    workload = Workload(phase="prefill", batch=4, seq_len=4096)
    ledger = bound_of(DEVICE, DEEPSEEK_V3, workload, levers=[LeverRequest(lever) for lever in levers]).ledger
    times = [ledger[0].before.expected.time, *(step.after.expected.time for step in ledger)]
    assert times == sorted(times, reverse=True)
    table = ledger[-1].after.bound.table
    (place,) = (i for i, op in enumerate(table.ops) if op.name == "expert gate and up")
    assert table["made"][place] == pytest.approx(2.0 * table["act_write"][place])
