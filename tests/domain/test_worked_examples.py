"""Examples worked by hand, most of them with public reference figures; none is an output of the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.blocks.attention import attended_pairs
from app.domain.collectives import LinkModel, algorithm_time, wire_bytes
from app.domain.cost import CostTable, Op
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import ceilings, lower_bound, ridge
from app.domain.memory import kv_bytes_per_token, memory_use, optimizer_bytes_per_parameter, sharded_parameters
from app.domain.model import ModelSpec
from app.domain.precision import PRECISIONS, attention_precision
from app.domain.routing import distinct_experts
from app.domain.single_op import attention_table, elementwise_table, gemm_table
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Routing, Workload
from tests.domain.architectures import (
    DEEPSEEK_V3,
    GPT3_175B,
    H100,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    row_of,
    step_total,
)

MIB = 2.0**20


@pytest.mark.parametrize(
    ("bf16", "bandwidth", "expected"),
    [(312e12, 2.039e12, 153.0), (989.4e12, 3.35e12, 295.3), (989.4e12, 4.8e12, 206.1), (2250e12, 8e12, 281.3)],
    ids=["A100 80GB", "H100 SXM", "H200", "B200"],
)
def test_ridge_points(bf16: float, bandwidth: float, expected: float) -> None:
    profile = HardwareProfile("x", "x", "x", None, bandwidth, {"bf16": bf16})
    assert ridge(ceilings(profile), "bf16") == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LLAMA3_8B, 8_030_261_248),
        (LLAMA3_70B, 70_553_706_496),
        (MIXTRAL_8X7B, 46_702_792_704),
        (DEEPSEEK_V3, 671_026_419_200),
        # 12 h^2 a layer, biases left out of this stack: 96 * 12 * 12288^2 = 173_946_175_488; norms with bias
        # (2 * 96 + 1) * 2 * 12288 = 4_743_168; tied table 50257 * 12288 = 617_558_016; positions 2048 * 12288
        (GPT3_175B, 173_946_175_488 + 4_743_168 + 617_558_016 + 25_165_824),
    ],
    ids=lambda value: value.id if isinstance(value, ModelSpec) else None,
)
def test_parameters_of_one_device(model: ModelSpec, expected: int) -> None:
    assert sharded_parameters(model).total == expected


def test_llama_3_8b_training_flop() -> None:
    """S = 8192 causal: attention 4 * 32 * 128 * 8192 * 8193 / 2 a layer; linear forward 2 * 7_504_658_432 a token."""
    table = cost_table(LLAMA3_8B, Workload(phase="train", batch=1, seq_len=8192))
    assert row_of(table, "attention") == 549_822_922_752
    linear = step_total(table, "flop", direction="forward", kind="gemm")
    assert linear == 15_009_316_864 * 8192
    useful = sum(
        step_total(table, "flop", direction=direction, kind=kind)
        for direction in ("forward", "backward")
        for kind in ("gemm", "attention")
    )
    # 51_470_401_536 a token with S^2 / 2 pairs; the diagonal's other half adds 3 * 32 * 4 * 32 * 128 / 2 = 786_432
    assert useful == (51_470_401_536 + 786_432) * 8192


def test_prefill_needs_logits_of_the_last_positions_only() -> None:
    """Two prompts of 1024: 2 * 2048 * 32 * (41_943_040 + 176_160_768) FLOP in layers and the head after."""
    prompt = cost_table(LLAMA3_8B, Workload(phase="prefill", batch=2, seq_len=1024))
    assert row_of(prompt, "output head") == 2 * 2 * 4096 * 128256
    assert step_total(prompt, "flop", kind="gemm") == 2 * 2048 * 6_979_321_856 + 2 * 2 * 4096 * 128256
    assert row_of(prompt, "final norm", "act_read") == 2 * 2 * 4096 * 2
    assert row_of(prompt, "final norm", "act_write") == 2 * 4096 * 2  # nobody reads the sum again
    assert row_of(prompt, "sampling", "act_read") == 2 * 128256 * 2
    drafts = cost_table(LLAMA3_8B, Workload(batch=2, seq_len=5, context_len=100))
    assert row_of(drafts, "output head") == 2 * 10 * 4096 * 128256


def test_sliding_window_pairs_against_causal() -> None:
    """W = 1024 of S = 8192: 1024 * 1025 / 2 + 7168 * 1024 pairs of 8192 * 8193 / 2."""
    windowed, causal = attended_pairs(8192, 0, window=1024), attended_pairs(8192, 0)
    assert (windowed, causal) == (7_864_832, 33_558_528)
    assert windowed / causal == pytest.approx(0.23436, abs=1e-5)


def test_optimizer_step_of_8b() -> None:
    """28 bytes a parameter: 8.03e9 * 28 / 3.35e12 = 67.1 ms; ZeRO-1 over 64 ranks divides by 64."""
    table = cost_table(LLAMA3_8B, Workload(phase="train"))
    moved = row_of(table, "optimizer step", "state")
    assert moved == 8_030_261_248 * 28
    assert moved / 3.35e12 == pytest.approx(67.116e-3, rel=1e-3)
    sharded = cost_table(LLAMA3_8B, Workload(phase="train", parallel=Parallel(dp=64, zero_stage=1)))
    assert row_of(sharded, "optimizer step", "state") == moved / 64


@pytest.mark.parametrize(
    ("optimizer", "dtypes", "state", "traffic"),
    [
        ("adamw", Dtypes(), 12, 28),  # read g 2, m 4, v 4, master 4; write m 4, v 4, master 4, weight 2
        ("adamw8bit", Dtypes(), 6, 16),  # read 2 + 1 + 1 + 4, write 1 + 1 + 4 + 2
        ("sgd", Dtypes(), 8, 20),  # momentum and master: read 2 + 4 + 4, write 4 + 4 + 2
        ("adamw", Dtypes(weights="fp32", gradients="fp32"), 8, 28),  # no master copy: read 4 * 4, write 3 * 4
        ("none", Dtypes(), 0, 0),
    ],
)
def test_optimizer_bytes(optimizer: str, dtypes: Dtypes, state: float, traffic: float) -> None:
    found = optimizer_bytes_per_parameter(optimizer, dtypes)
    assert (found.state, found.traffic) == (state, traffic)


def test_weights_alone_set_the_pace_of_one_sequence() -> None:
    """70e9 bf16 parameters at 3.35 TB/s: 41.79 ms a token, 23.93 tokens/s."""
    table = CostTable.of([Op("weights", "all", "gemm", weights=140e9)], tokens=1.0)
    bound = lower_bound(table, ceilings(H100))
    assert float(bound.overlapped) == pytest.approx(41.791e-3, rel=1e-4)
    assert bound.tokens_per_second == pytest.approx(23.929, rel=1e-4)
    assert bound.binding == "hbm"


@pytest.mark.parametrize(("batch", "quoted"), [(1, 5.3150e-3), (64, 8.4701e-3)])
def test_llama_3_70b_on_eight_devices(batch: int, quoted: float) -> None:
    """TP8, context 4096, bf16. The quoted times read all 70_553_706_496 parameters; the table of 1_050_673_152 is only
    gathered from and the gains (1_318_912) stay in cache, so 69_501_714_432 are read: 17_375_428_608 bytes a device.
    KV: 80 layers, one head of 128 a device: 40_960 bytes a token, 4096 read and one written. Gather: 16_384 a token.
    """
    table = cost_table(LLAMA3_70B, Workload(batch=batch, context_len=4096, parallel=Parallel(tp=8)))
    bound = lower_bound(table, ceilings(H100))
    hbm = 17_375_428_608 + batch * (16_384 + 4097 * 40_960)
    assert bound.hbm_bytes == hbm
    assert float(bound.terms["hbm"]) == pytest.approx(hbm / 3.35e12, rel=1e-12)
    assert bound.binding == "hbm"
    assert float(bound.overlapped) == pytest.approx(quoted, rel=0.015)
    assert float(bound.overlapped) < quoted
    # 160 all-reduces of batch * 8192 * 2 bytes, 2 * 7 / 8 of them sent
    assert bound.net_bytes == 160 * batch * 8192 * 2 * 1.75


def test_largest_batch_of_a_70b_on_eight_devices() -> None:
    """Weights (70_552_387_584 / 8 matrix elements and all 1_318_912 gains) 17_640_734_720 bytes of 80e9. A sequence:
    4097 cached tokens of 40_960, fp32 logits 4 * 128256 / 8, and 2 * (2 * 8192 + 2 * 28672 / 8) in the widest layer:
    167_924_352 bytes. 371 fit (371.35), 512 do not: 2 * 343.6 GB of KV and 141 GB of weights are more than 640 GB.
    """
    workload = Workload(batch=512, context_len=4096, parallel=Parallel(tp=8), kv=replace(Workload().kv, page_tokens=1))
    use = memory_use(LLAMA3_70B, workload, 80e9)
    assert use.objects["parameters"] == 17_640_734_720
    assert use.objects["kv_cache"] == 512 * 4097 * 40_960
    assert use.peak == 17_640_734_720 + 512 * 167_924_352
    assert use.fits is False
    assert use.largest_batch == 371
    assert memory_use(LLAMA3_70B, replace(workload, batch=371), 80e9).fits is True
    assert memory_use(LLAMA3_70B, replace(workload, batch=372), 80e9).fits is False


@pytest.mark.parametrize(
    ("model", "expected"),
    [(LLAMA3_8B, 131_072), (LLAMA3_70B, 327_680), (DEEPSEEK_V3, 70_272)],
    ids=lambda value: value.id if isinstance(value, ModelSpec) else None,
)
def test_kv_bytes_of_a_token(model: ModelSpec, expected: int) -> None:
    assert kv_bytes_per_token(model, 2.0) == expected


def test_kv_of_a_70b_batch() -> None:
    """32 sequences of 8192 tokens: 85.90 GB, exactly 80 GiB."""
    use = memory_use(LLAMA3_70B, Workload(batch=32, context_len=8191), None)
    assert use.objects["kv_cache"] == 80 * 2.0**30
    assert use.fits is None
    assert use.largest_batch is None


def test_kv_heads_are_copied_beyond_their_number() -> None:
    """8 KV heads over 16 ranks: one head each, twice the cache of the group as of 8 ranks."""
    assert kv_bytes_per_token(LLAMA3_70B, 2.0, 8) == 40_960
    assert kv_bytes_per_token(LLAMA3_70B, 2.0, 16) == 40_960
    assert kv_bytes_per_token(DEEPSEEK_V3, 2.0, 8) == 70_272  # the latent is kept whole by every rank


@pytest.mark.parametrize(
    ("zero_stage", "bytes_a_parameter", "of_7_5e9"),
    [(0, 16, 120e9), (1, 4 + 12 / 64, 31.40625e9), (2, 2 + 14 / 64, 16.640625e9), (3, 16 / 64, 1.875e9)],
)
def test_zero_stages(zero_stage: int, bytes_a_parameter: float, of_7_5e9: float) -> None:
    """Model states of 7.5e9 parameters on 64 ranks: the headline table of the ZeRO paper."""
    use = memory_use(LLAMA3_8B, Workload(phase="train", parallel=Parallel(dp=64, zero_stage=zero_stage)), None)
    states = sum(use.objects[name] for name in ("parameters", "gradients", "optimizer"))
    assert states == pytest.approx(8_030_261_248 * bytes_a_parameter, rel=1e-12)
    assert bytes_a_parameter * 7.5e9 == of_7_5e9


@pytest.mark.parametrize(
    ("zero_stage", "of_7_5e9"), [(0, 29.53125e9), (1, 29.53125e9), (2, 29.53125e9), (3, 44.296875e9)]
)
def test_data_parallel_wire_bytes(zero_stage: int, of_7_5e9: float) -> None:
    """64 ranks, bf16: 2 * 63 / 64 * 2 bytes a parameter, and 3 * 63 / 64 * 2 with parameters gathered twice."""
    workload = Workload(phase="train", parallel=Parallel(dp=64, zero_stage=zero_stage))
    table = cost_table(LLAMA3_8B, workload, ranks_per_node=64)
    sent = sum(float(table.net["scale_up"][i] * table["count"][i]) for i in range(len(table.ops)))
    assert sent == pytest.approx(8_030_261_248 * of_7_5e9 / 7.5e9, rel=1e-12)


def test_logits_of_a_training_step() -> None:
    """T = 16384, V = 128256: 4.20 GB in bf16, 8.41 GB in fp32; kept are the logits, their gradient and an fp32 copy."""
    use = memory_use(LLAMA3_8B, Workload(phase="train", batch=2, seq_len=8192), None)
    assert use.objects["logits"] == 4_202_692_608 + 4_202_692_608 + 8_405_385_216


def test_tensor_parallel_wire_bytes() -> None:
    """B1 S8192 H8192 t8 bf16: two all-reduces of 134.2 MB a layer send 469.8 MB, 1.305 ms at 360 GB/s."""
    table = cost_table(LLAMA3_70B, Workload(phase="prefill", seq_len=8192, parallel=Parallel(tp=8)))
    sent = [float(table.net["scale_up"][i]) for i, op in enumerate(table.ops) if op.kind == "collective"]
    assert sum(sent) == 469_762_048
    assert sum(sent) / 360e9 == pytest.approx(1.30489e-3, rel=1e-5)
    assert all(table.net["scale_out"] == 0)
    trained = cost_table(LLAMA3_70B, Workload(phase="train", seq_len=8192, parallel=Parallel(tp=8)))
    layer = sum(float(trained.net["scale_up"][i]) for i, op in enumerate(trained.ops) if op.kind == "collective")
    assert layer == 2 * 469_762_048


@pytest.mark.parametrize(("tokens", "expected"), [(1, 8.0), (8, 57.42), (32, 163.31), (64, 222.44), (256, 255.92)])
def test_distinct_experts(tokens: int, expected: float) -> None:
    """256 experts, 8 a token, uniform routing: 256 (1 - (1 - 8 / 256)^T)."""
    assert distinct_experts(Routing(), tokens, 256, 8) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("size", "ring", "tree"),
    [
        (16 * 1024, 42.072e-6, 18.082e-6),
        (MIB, 46.6e-6, 23.2e-6),
        (64 * MIB, 335.6e-6, 353.5e-6),
        (2**30, 4739.62e-6, 5387e-6),
    ],
)
def test_ring_and_tree_all_reduce(size: float, ring: float, tree: float) -> None:
    """8 ranks, 3 us a message, 400 GB/s: the tree wins for small arrays, the ring for large ones."""
    links = {"scale_up": LinkModel(3e-6, 400e9)}
    assert algorithm_time("all_reduce", "ring", size, 8, 8, links) == pytest.approx(ring, rel=1e-3)
    assert algorithm_time("all_reduce", "tree", size, 8, 8, links) == pytest.approx(tree, rel=2e-3)


def test_hierarchical_all_reduce() -> None:
    """1 GB over 4 nodes of 8: 4.375 ms in the nodes at 400 GB/s and 3.75 ms between them at 50 GB/s; a flat ring at
    50 GB/s takes 38.75 ms."""
    sent = wire_bytes("all_reduce", 1e9, 32, 8)
    assert sent == {"scale_up": 1.75e9, "scale_out": 187.5e6}
    assert sent["scale_up"] / 400e9 + sent["scale_out"] / 50e9 == pytest.approx(8.125e-3)
    flat = {"scale_up": LinkModel(0.0, 400e9), "scale_out": LinkModel(0.0, 50e9)}
    assert algorithm_time("all_reduce", "ring", 1e9, 32, 8, flat) == pytest.approx(38.75e-3)


@pytest.mark.parametrize(
    ("kind", "ranks", "up", "out"),
    [
        ("all_reduce", 2, 1.0, 0.0),
        ("all_reduce", 8, 1.75, 0.0),
        ("all_gather", 8, 7 / 8, 0.0),
        ("reduce_scatter", 16, 7 / 8, 1 / 16),  # 1/2 of the array leaves the node over 8 links
        ("all_gather", 16, 7 / 8, 1 / 16),
        ("all_to_all", 16, 7 / 16, 8 / 16),  # 7 peers in the node, 8 outside, 1/16 of the array each
        ("broadcast", 8, 1.0, 0.0),
        ("p2p", 2, 1.0, 0.0),
        ("p2p", 16, 0.0, 1.0),
        ("all_reduce", 1, 0.0, 0.0),
        ("all_gather", 1, 0.0, 0.0),
    ],
)
def test_wire_bytes(kind: str, ranks: int, up: float, out: float) -> None:
    assert wire_bytes(kind, 1.0, ranks, 8) == pytest.approx({"scale_up": up, "scale_out": out})


def test_a_reducing_switch_takes_the_array_once() -> None:
    """8 GPUs report 482 GB/s bus bandwidth over 450 GB/s links: 275 GB/s of array, below one array a link."""
    assert wire_bytes("all_reduce", 1.0, 8, 8, in_switch=True)["scale_up"] == 1.0
    assert wire_bytes("all_reduce", 1.0, 2, 8, in_switch=True)["scale_up"] == 1.0
    assert wire_bytes("all_reduce", 1.0, 1, 8, in_switch=True)["scale_up"] == 0.0
    assert wire_bytes("all_gather", 1.0, 8, 8, in_switch=True)["scale_up"] == 7 / 8
    assert 482.26e9 / 1.75 < 450e9


def test_activations_of_gpt_3() -> None:
    """S2048 B1 h12288 t8. The paper's 312 MiB a layer, S B h (10 + 24 / t), hold 2 bytes a hidden element of dropout
    masks, which this step has not: S B h (8 + 24 / 8) = 264 MiB, and 4 * 96 / 8 bytes a token of log-sum-exps.
    Full recomputation keeps the layers' inputs, 2 S B h = 48 MiB, and one layer while it runs backward.
    """
    step = Workload(phase="train", seq_len=2048, parallel=Parallel(tp=8))
    layer = 264 * MIB + 2048 * 4 * 96 / 8
    assert memory_use(GPT3_175B, step, None).objects["activations"] == 96 * layer
    full = memory_use(GPT3_175B, replace(step, recompute="full"), None)
    assert full.objects["activations"] == 96 * 48 * MIB + layer
    # sequence parallelism divides everything: 32 S B h / t = 96 MiB (the paper's 102 with its masks)
    sharded = replace(step, parallel=Parallel(tp=8, sequence_parallel=True))
    assert memory_use(GPT3_175B, sharded, None).objects["activations"] == 96 * (96 * MIB + 2048 * 4 * 96 / 8)


def test_sequence_parallelism_divides_the_norms_and_sends_the_same() -> None:
    step = Workload(phase="prefill", seq_len=8192, parallel=Parallel(tp=8))
    whole = cost_table(LLAMA3_70B, step)
    divided = cost_table(LLAMA3_70B, replace(step, parallel=Parallel(tp=8, sequence_parallel=True)))
    # norm with residual: two tensors read, two written
    assert row_of(whole, "mlp norm", "act_read") == 2 * 8192 * 8192 * 2
    assert row_of(divided, "mlp norm", "act_read") == 2 * 8192 * 8192 * 2 / 8
    assert (whole.net["scale_up"] == divided.net["scale_up"]).all()


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("fp32", 32),
        ("tf32", 32),
        ("fp8", 8),
        ("int4", 4.125),  # a 16-bit scale for 128, as Marlin quotes
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
        ("mxfp8", 8.25),
        ("fp6", 6),
    ],
)
def test_bits_with_scales(name: str, bits: float) -> None:
    assert PRECISIONS[name].element_bytes * 8 == bits
    assert Dtypes(weights=name).bytes_of("weights") * 8 == bits


def test_stated_bits_override_the_format() -> None:
    assert Dtypes(weights="int4", weights_bits=4.85).bytes_of("weights") == 4.85 / 8


@pytest.mark.parametrize(
    ("weights", "activations", "product"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "bf16", "bf16"),
        ("fp8", "fp8", "fp8"),
        ("fp32", "bf16", "bf16"),
        ("int4", "fp16", "fp16"),
    ],
)
def test_products_run_at_the_activations_precision(weights: str, activations: str, product: str) -> None:
    dtypes = Dtypes(weights=weights, activations=activations)
    table = cost_table(LLAMA3_8B, Workload(phase="train", dtypes=dtypes))
    assert {op.dtype for op in table.ops if op.kind == "gemm"} == {product}


def test_attention_runs_at_the_wider_precision() -> None:
    assert attention_precision("fp8", "bf16") == "bf16"
    assert attention_precision("bf16", "fp8") == "bf16"
    assert attention_precision("fp8", "fp8") == "fp8"


def test_single_products() -> None:
    """8192^3 in bf16: 1.112 ms at 989.4 TFLOP/s; a row times 8192^2: 134 MB, 40.1 us at 3.35 TB/s."""
    cold = replace(ceilings(H100), cache=0.0)
    square = lower_bound(gemm_table(8192, 8192, 8192, "bf16"), cold)
    assert float(square.overlapped) == pytest.approx(1.1113e-3, rel=1e-4)
    assert square.binding == "compute"
    row = lower_bound(gemm_table(1, 8192, 8192, "bf16"), cold)
    assert row.hbm_bytes == 2 * (8192 * 8192 + 2 * 8192)
    assert float(row.overlapped) == pytest.approx(40.07e-6, rel=1e-3)
    head = lower_bound(gemm_table(1, 51200, 4096, "bf16"), cold)
    assert float(head.overlapped) == pytest.approx(125.2e-6, rel=1e-3)


def test_grouped_product_reads_the_weights_of_busy_groups() -> None:
    table = gemm_table(0, 1536, 2048, "bf16", groups=[3, 0, 5])
    assert float(table.total("weights")) == 2 * 1536 * 2048 * 2
    assert float(table.total("flop")) == 2 * 8 * 1536 * 2048


def test_single_attention() -> None:
    """Decode of 64 sequences at 4096, 8 KV heads: 1.074 GB of K and V, 320.5 us at 3.35 TB/s, and q and o beside it.
    Backward over 32768 causal positions, batch 2, 64 heads of 128: 2.5 times the forward products, 35.2 ms at 2.5e15.
    """
    decode = attention_table(batch=64, seq_q=1, seq_kv=4096, heads=64, kv_heads=8, head_dim=128)
    kv, q = 64 * 4096 * 8 * 256 * 2, 64 * 64 * 128 * 2
    assert float(decode.total("act_read")) == kv + q
    assert kv / 3.35e12 == pytest.approx(320.5e-6, rel=1e-3)
    assert float(decode.total("flop")) == 4 * 64 * 128 * 4096 * 64
    backward = attention_table(batch=2, seq_q=32768, seq_kv=32768, heads=64, kv_heads=8, head_dim=128, direction="bwd")
    assert float(backward.total("executed")) == 2.5 * 4 * 64 * 128 * (32768 * 32769 / 2) * 2
    assert float(backward.total("executed")) / 2500e12 == pytest.approx(35.2e-3, rel=1e-3)
    assert float(backward.total("flop")) == 2.0 / 2.5 * float(backward.total("executed"))


def test_windowed_attention_reads_what_some_query_sees() -> None:
    """Four queries at the end of 100 keys with a window of 10: the first sees 87..96, the last 90..99: 13 keys."""
    table = attention_table(batch=1, seq_q=4, seq_kv=100, heads=1, kv_heads=1, head_dim=1, window=10)
    assert float(table.total("flop")) == 4 * 4 * 10
    assert float(table.total("act_read")) == (4 + 13 * 2) * 2


def test_norm_kernel() -> None:
    """16384 x 4096 read and written in bf16: 268 MB, 55.9 us at 4.8 TB/s."""
    table = elementwise_table(16384 * 4096, 1, 1, "bf16")
    moved = float(table.total("act_read") + table.total("act_write"))
    assert moved == 268_435_456
    assert moved / 4.8e12 == pytest.approx(55.9e-6, rel=1e-3)


def test_llama_3_1_8b_decode_step() -> None:
    """Batch 1 at context 4096: 7_504_658_432 matrix weights and 4095 cached tokens of 131_072 bytes: 3.24 ms."""
    table = cost_table(LLAMA3_8B, Workload(context_len=4095))
    bound = lower_bound(table, ceilings(replace(H100, memory_bandwidth=4.8e12)))
    assert bound.hbm_bytes == 2 * 7_504_658_432 + 4096 * 131_072 + 4096 * 2  # one token written, one row gathered
    assert float(bound.overlapped) == pytest.approx(3.24e-3, rel=2e-3)
