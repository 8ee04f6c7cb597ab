"""Parallel layouts: groups and nodes, what each degree does to rows, bytes and memory, and the pipeline's bubble."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from app.catalog.loader import load_catalog
from app.domain.blocks.mlp import expected_destinations
from app.domain.errors import InvalidInput
from app.domain.layout import layout_of
from app.domain.lower_bound import ceilings, lower_bound
from app.domain.memory import memory_use, micro_batches_in_flight, stage_parameters
from app.domain.step import bubble_share, cost_table
from app.domain.workload import Dtypes, Parallel, Workload
from tests.domain.architectures import row_of

CATALOG = load_catalog()
H100 = CATALOG.hardware["nvidia-h100-sxm"]
LLAMA_8B = CATALOG.models["llama-3.1-8b"]
LLAMA_70B = CATALOG.models["llama-3.1-70b"]
MIXTRAL = CATALOG.models["mixtral-8x7b"]
DEEPSEEK = CATALOG.models["deepseek-v3"]
SPARSE_LATENT = CATALOG.models["deepseek-v3.2"]


def step(model, phase="train", batch=1, seq_len=4096, context_len=0, **parallel):  # type: ignore[no-untyped-def]
    workload = Workload(
        phase=phase,
        batch=batch,
        seq_len=1 if phase == "decode" else seq_len,
        context_len=context_len,
        parallel=Parallel(**parallel),
    )
    return workload, cost_table(model, workload)


def bytes_on(table, name: str, tier: str) -> float:  # type: ignore[no-untyped-def]
    return sum(
        float(table.net[tier][i] * table["count"][i]) for i, op in enumerate(table.ops) if op.name.startswith(name)
    )


# ---- where ranks lie ----


def test_groups_count_the_ranks_that_share_a_node() -> None:
    layout = layout_of(LLAMA_70B, Workload(phase="train", seq_len=4096, parallel=Parallel(tp=4, pp=2, dp=8)), 8)
    assert layout.devices == 64
    assert (layout.tensor_group.size, layout.tensor_group.local) == (4, 4)
    assert (layout.data_group.size, layout.data_group.local) == (8, 2)  # two tensor groups of 4 in a node of 8
    assert layout.far_hand_overs(1) == 1.0  # 32 ranks a stage


def test_experts_regroup_the_ranks_of_a_stage() -> None:
    layout = layout_of(DEEPSEEK, Workload(phase="decode", parallel=Parallel(dp=32, ep=32)), 8)
    assert (layout.expert_group.size, layout.expert_group.local, layout.expert_replicas) == (32, 8, 1)
    folded = layout_of(MIXTRAL, Workload(phase="decode", parallel=Parallel(tp=4, dp=2)), 8)
    assert folded.folded
    assert (folded.etp, folded.expert_replicas) == (4, 2)


@pytest.mark.parametrize(
    ("parallel", "field", "words"),
    [
        ({"pp": 33}, "pp", "at most 32"),
        ({"virtual_stages": 2}, "virtual_stages", "needs pipeline"),
        ({"pp": 8, "virtual_stages": 8}, "virtual_stages", "too many"),
        ({"ep": 2}, "ep", "no experts"),
        ({"cp": 3}, "cp", "do not divide"),
        ({"dp": 3, "nodes": 2}, "nodes", "do not divide"),
        ({"tp": 5}, "tp", "use 1, 2, 4, 8, 16, 32"),
    ],
)
def test_a_layout_that_does_not_fit_the_model_is_refused_with_what_would(parallel, field, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=words) as refused:
        step(LLAMA_8B, **parallel)
    assert refused.value.loc == ("workload", "parallel", field)


def test_expert_parallel_must_divide_experts_and_ranks() -> None:
    with pytest.raises(InvalidInput, match="8 experts do not divide by expert parallel 3"):
        step(MIXTRAL, dp=3, ep=3)
    with pytest.raises(InvalidInput, match="must divide the 2 ranks"):
        step(MIXTRAL, dp=2, ep=4)


# ---- work is divided, not lost ----


@pytest.mark.parametrize("phase", ["train", "prefill"])
def test_model_flop_of_all_devices_together_do_not_depend_on_the_layout(phase: str) -> None:
    def product_flop(table) -> float:  # type: ignore[no-untyped-def]
        return sum(
            float(table["flop"][i] * table["count"][i])
            for i, op in enumerate(table.ops)
            if op.pipe == "tensor" and op.name.split(",")[0] != "output head"
        ) * float(table.devices)

    for model in (LLAMA_8B, MIXTRAL):
        _, alone = step(model, phase, batch=8)
        for tp, cp, pp in itertools.product((1, 2), (1, 2), (1, 4)):
            _, table = step(model, phase, batch=8, tp=tp, cp=cp, pp=pp)
            assert product_flop(table) == pytest.approx(product_flop(alone), rel=1e-3 if model is MIXTRAL else 1e-12)


def test_expert_parallel_keeps_expert_work_and_reads_each_expert_once() -> None:
    _, alone = step(DEEPSEEK, "decode", batch=256, context_len=1024)
    _, spread = step(DEEPSEEK, "decode", batch=8, context_len=1024, dp=32, ep=32)

    def of(table, column: str) -> float:  # type: ignore[no-untyped-def]
        return sum(
            float(table[column][i] * table["count"][i]) for i, op in enumerate(table.ops) if op.name == "expert down"
        )

    assert of(spread, "flop") * 32 == pytest.approx(of(alone, "flop"))
    assert of(spread, "weights") * 32 == pytest.approx(of(alone, "weights"))


# ---- bytes on links, by hand ----


def test_ring_attention_passes_every_key_and_value_once() -> None:
    # 8192 tokens over 4 ranks: a rank receives 3/4 of 8192 x 8 heads x (128 + 128) x 2 B in each of 32 layers
    _, table = step(LLAMA_8B, "prefill", seq_len=8192, cp=4)
    assert bytes_on(table, "key and value exchange", "scale_up") == 32 * 0.75 * 8192 * 8 * 256 * 2


def test_a_ring_turns_twice_on_the_way_back() -> None:
    # 16 ranks of 2 nodes: keys and values come round once more, and their gradients go home; 32 layers, a message each
    _, table = step(LLAMA_8B, seq_len=8192, cp=16)
    for tier in ("scale_up", "scale_out"):
        there, both = (bytes_on(table, name, tier) for name in ("key and value exchange, b", "key and value exchange"))
        assert both == there * 1.5 > 0
    for name, times in (("key and value exchange", 32), ("key and value exchange, backward", 64)):
        assert row_of(table, name, "hops") * row_of(table, name, "count") == times


def test_all_to_all_context_parallelism_moves_queries_keys_values_and_outputs() -> None:
    # F-7.4: (n-1)/n of the local 2048 tokens' q, k, v and o: (32 + 8 + 8 + 32) heads x 128 x 2 B
    _, table = step(LLAMA_8B, "prefill", seq_len=8192, cp=4, context_exchange="all_to_all")
    assert bytes_on(table, "context all-to-all", "scale_up") == 32 * 0.75 * 2048 * 80 * 128 * 2


def test_an_all_to_all_sends_a_key_to_every_rank_that_needs_it() -> None:
    # 16 ranks, 8 KV heads: each is needed by two ranks. Own 512 tokens' (32 + 16 + 16 + 32) heads x 128 x 2 B, 15/16
    _, table = step(LLAMA_8B, "prefill", seq_len=8192, cp=16, context_exchange="all_to_all")
    assert bytes_on(table, "context all-to-all", "scale_up") + bytes_on(
        table, "context all-to-all", "scale_out"
    ) == pytest.approx(32 * 15 / 16 * 512 * 96 * 128 * 2)
    # of its two query heads' whole sequence each rank reads the keys and values too; there and back between 2 nodes
    assert row_of(table, "attention", "act_read") == 8192 * (2 + 1 + 1) * 128 * 2
    assert row_of(table, "context all-to-all", "hops") == 2
    with pytest.raises(InvalidInput, match="8 query heads of a rank do not divide by context parallel 16"):
        step(LLAMA_8B, "prefill", seq_len=8192, tp=4, cp=16, context_exchange="all_to_all")


def test_distinct_destinations_of_a_token() -> None:
    # EX-29: 256 experts, 8 chosen
    for places, distinct in ((2, 1.99302), (4, 3.61421), (8, 5.29465), (32, 7.26680)):
        assert expected_destinations(places, 256, 8) == pytest.approx(distinct, rel=1e-4)


def test_dispatch_crosses_to_a_node_once_and_to_a_rank_once() -> None:
    # 64 ranks of 8 nodes, one token a rank, hidden 7168 in bf16: 5.29465 nodes, 7/8 of them remote; EX-29
    _, table = step(DEEPSEEK, "decode", batch=1, dp=64, ep=64)
    per_layer = 7168 * 2
    remote_nodes = 5.29465 * 7 / 8
    remote_ranks = float(expected_destinations(64, 256, 8)) * 63 / 64
    assert bytes_on(table, "dispatch", "scale_out") == pytest.approx(58 * per_layer * remote_nodes, rel=1e-4)
    assert bytes_on(table, "dispatch", "scale_up") == pytest.approx(
        58 * per_layer * (remote_ranks - remote_nodes), rel=1e-4
    )


def test_a_stage_hands_over_the_hidden_state() -> None:
    _, table = step(LLAMA_8B, "train", batch=2, pp=4, micro_batches=8)
    forward = sum(
        float((table.net["scale_up"][i] + table.net["scale_out"][i]) * table["count"][i])
        for i, op in enumerate(table.ops)
        if op.name == "stage hand-over"
    )
    assert forward == 8 * 3 / 4 * 2 * 4096 * 4096 * 2  # of the mean stage: 3 of 4 stages send


def test_experts_reduce_their_gradients_over_their_own_replicas_only() -> None:
    workload, table = step(MIXTRAL, "train", dp=16, ep=8)
    layout = layout_of(MIXTRAL, workload, 8)
    parameters = stage_parameters(MIXTRAL, layout)
    assert layout.expert_replicas == 2
    names = {op.name for op in table.ops}
    assert {"gradient all-reduce", "expert gradient all-reduce"} <= names
    # 8 experts of 3 x 4096 x 14336 in 32 layers, one of each layer's on a rank
    assert parameters.experts == 32 * 3 * 4096 * 14336
    sent = bytes_on(table, "expert gradient all-reduce", "scale_up") + bytes_on(
        table, "expert gradient all-reduce", "scale_out"
    )
    assert sent == pytest.approx(2 * (2 - 1) / 2 * parameters.experts * 2)


def test_weight_gradients_gather_a_sequence_parallel_input_once_more() -> None:
    # there 2 x 7/8 of the array for each half of a layer, back the same and 7/8 again: nothing whole was kept
    _, plain = step(LLAMA_70B, tp=8)
    _, split = step(LLAMA_70B, tp=8, sequence_parallel=True)
    array = 4096 * 8192 * 2
    assert bytes_on(plain, "", "scale_up") == 80 * 2 * 2 * 1.75 * array
    assert bytes_on(split, "", "scale_up") == 80 * 2 * (2 * 1.75 + 0.875) * array
    # routed experts keep their copies: of a layer without shared ones only attention gathers
    _, experts = step(MIXTRAL, tp=2, sequence_parallel=True)
    assert bytes_on(experts, "moe input", "scale_up") == 0 < bytes_on(experts, "attention input", "scale_up")


def test_sharded_gradients_are_reduced_for_each_micro_batch() -> None:
    # F-6.3: 8.03e9 parameters over 8 ranks; stage 1 adds up where it is, stage 3 gathers for both passes as well
    array = 7 / 8 * 8_030_261_248 * 2
    for stage, arrays in ((0, 2), (1, 1 + 1), (2, 4 + 1), (3, 4 + 8)):
        _, table = step(LLAMA_8B, dp=8, zero_stage=stage, micro_batches=4)
        assert bytes_on(table, "", "scale_up") == pytest.approx(arrays * array), stage


def test_ranks_that_divide_an_expert_need_each_token_once() -> None:
    # Mixtral, two of eight experts: 4 ranks hold 2 experts each, of which a token reaches 1.571 ranks, by halves
    _, table = step(MIXTRAL, dp=8, ep=4, etp=2)
    reached = 4 * (1 - 6 * 5 / (8 * 7))
    tokens = 8 * 4096 * reached / 4
    for name in ("expert tensor gather", "expert tensor scatter"):
        assert bytes_on(table, name, "scale_up") == pytest.approx(32 * 2 * tokens / 2 * 4096 * 2)


@pytest.mark.parametrize(
    ("parallel", "hand_overs", "far"),
    [
        ({"tp": 8, "pp": 4}, 3, 3),  # a node each
        ({"tp": 4, "pp": 4}, 3, 1),  # two stages in a node
        ({"tp": 2, "pp": 4}, 3, 0),
        ({"tp": 4, "pp": 4, "virtual_stages": 2}, 7, 3),  # and once from the last stage back to the first
    ],
)
def test_hand_overs_cross_where_a_node_ends(parallel, hand_overs, far) -> None:  # type: ignore[no-untyped-def]
    _, table = step(LLAMA_8B, "prefill", micro_batches=4, **parallel)
    array = 4096 * 4096 * 2
    for tier, number in (("scale_up", hand_overs - far), ("scale_out", far)):
        assert bytes_on(table, "stage hand-over", tier) == pytest.approx(number / 4 * 4 * array)


# ---- the pipeline ----


def test_bubbles_of_the_schedules() -> None:
    # EX-28: 8 stages, 32 micro-batches
    def share(**parallel) -> float:  # type: ignore[no-untyped-def]
        bubble = bubble_share(Workload(phase="train", seq_len=8, parallel=Parallel(pp=8, micro_batches=32, **parallel)))
        return bubble / (1 + bubble)

    assert share() == pytest.approx(0.179487, rel=1e-4)
    assert share(virtual_stages=4) == pytest.approx(0.051852, rel=1e-4)
    assert share(schedule="zero_bubble") == pytest.approx(0.067961, rel=1e-4)


def test_one_micro_batch_passes_the_stages_one_after_the_other() -> None:
    roofs = ceilings(H100)
    _, alone = step(LLAMA_70B, "decode", batch=8, context_len=1024, tp=4)
    _, staged = step(LLAMA_70B, "decode", batch=8, context_len=1024, tp=4, pp=2)
    one, two = lower_bound(alone, roofs), lower_bound(staged, roofs)
    assert float(two.overlapped) >= float(one.overlapped)
    assert float(two.overlapped) == pytest.approx(float(one.overlapped), rel=0.01)  # the same work in the same order
    assert float(two.terms["sync"]) == pytest.approx(float(two.overlapped) / 2)


def test_a_full_pipeline_of_decode_steps_does_not_wait() -> None:
    _, table = step(LLAMA_70B, "decode", batch=8, context_len=1024, pp=4, micro_batches=4)
    assert table.bubble == 0
    assert table.tokens == 32


def test_micro_batches_in_flight() -> None:
    def held(**parallel) -> float:  # type: ignore[no-untyped-def]
        return micro_batches_in_flight(Workload(phase="train", seq_len=8, parallel=Parallel(**parallel)))

    assert held(pp=4, micro_batches=16) == 4
    assert held(pp=4, micro_batches=2) == 2
    assert held(pp=4, micro_batches=16, schedule="gpipe") == 16
    assert held(pp=4, micro_batches=16, virtual_stages=2) == 4 * (1 + 3 / 8)


# ---- memory ----


def test_zero_shards_dense_and_expert_parameters_over_their_own_replicas() -> None:
    layout_ = {"dp": 16, "ep": 8}
    plain = memory_use(MIXTRAL, step(MIXTRAL, "train", **layout_)[0], None)
    sharded = memory_use(MIXTRAL, step(MIXTRAL, "train", zero_stage=3, **layout_)[0], None)
    layout = layout_of(MIXTRAL, step(MIXTRAL, "train", **layout_)[0], 8)
    parameters = stage_parameters(MIXTRAL, layout)
    assert plain.objects["parameters"] == 2 * (parameters.dense + parameters.experts)
    assert sharded.objects["parameters"] == 2 * (parameters.dense / 16 + parameters.experts / 2)
    assert sharded.objects["optimizer"] == 12 * (parameters.dense / 16 + parameters.experts / 2)


def test_deepseek_on_32_h200_fits_with_expert_parallelism_and_not_on_one() -> None:
    h200 = CATALOG.hardware["nvidia-h200-sxm"]
    fp8 = Dtypes(weights="fp8", activations="fp8")
    spread = Workload(phase="decode", batch=64, context_len=4096, dtypes=fp8, parallel=Parallel(dp=32, ep=32))
    alone = replace(spread, parallel=Parallel())
    assert memory_use(DEEPSEEK, spread, h200.memory_capacity).fits
    assert memory_use(DEEPSEEK, alone, h200.memory_capacity).fits is False


def test_context_parallelism_divides_the_cache_of_decode() -> None:
    whole = memory_use(LLAMA_8B, step(LLAMA_8B, "decode", context_len=131_071)[0], None)
    shared = memory_use(LLAMA_8B, step(LLAMA_8B, "decode", context_len=131_071, cp=4)[0], None)
    assert shared.objects["kv_cache"] == whole.objects["kv_cache"] / 4
    _, table = step(LLAMA_8B, "decode", context_len=131_071, cp=4)
    assert float(table.total("kv_read")) == pytest.approx(131_071 * 131_072 / 4)
    # latents and an indexer's keys too, and what a token appends
    (_, one), (_, four) = (step(SPARSE_LATENT, "decode", context_len=8192, cp=cp) for cp in (1, 4))
    for column in ("kv_read", "kv_write"):
        assert float(four.total(column)) == pytest.approx(float(one.total(column)) / 4)


def test_the_first_stage_holds_the_most_activations() -> None:
    workload, _ = step(LLAMA_70B, "train", pp=8, micro_batches=16, tp=8)
    use = memory_use(LLAMA_70B, workload, None)
    single, _ = step(LLAMA_70B, "train", tp=8)
    alone = memory_use(LLAMA_70B, single, None)
    # ten of eighty layers, eight micro-batches of them
    assert use.objects["activations"] == pytest.approx(alone.objects["activations"])
    assert use.objects["logits"] == 0


def test_a_sweep_over_tensor_parallelism_equals_single_questions_with_other_degrees_set() -> None:
    workload = Workload(phase="decode", batch=16, context_len=2048, parallel=Parallel(dp=8, pp=2, micro_batches=2))
    degrees = np.array([1.0, 2.0, 4.0, 8.0])
    roofs = ceilings(H100)
    sweep = lower_bound(cost_table(LLAMA_70B, workload, grid={"tp": degrees}), roofs)
    for i, tp in enumerate((1, 2, 4, 8)):
        one = lower_bound(cost_table(LLAMA_70B, replace(workload, parallel=replace(workload.parallel, tp=tp))), roofs)
        assert float(sweep.overlapped[i]) == float(one.overlapped)
