"""Forecasts from fits: hand-worked values of the form, parents where nothing is measured, and what the basis says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.catalog.calibration import load_calibrated, load_calibration
from app.catalog.loader import load_catalog
from app.domain.calibration import (
    HIDDEN_DISPATCH,
    Calibration,
    Fit,
    combine,
    hides_exchange,
    kernel_features,
    on_stack,
    shares_of,
    step_class,
)
from app.domain.expected import expected_time
from app.domain.hardware import device_family
from app.domain.levers.base import LeverRequest
from app.domain.lower_bound import Bound, ceilings, lower_bound
from app.domain.single_op import attention_table, collective_table, elementwise_table, gemm_table
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Workload
from app.services.estimate import bound_of

HARDWARE = load_catalog().hardware
H200 = HARDWARE["nvidia-h200-sxm"]


def cold(table: object, device: str = "nvidia-h200-sxm") -> Bound:
    return lower_bound(table, replace(ceilings(HARDWARE[device]), cache=0.0))  # type: ignore[arg-type]


def fitted(key: str, **parameters: float) -> Calibration:
    return Calibration({key: Fit(key, parameters, 10, ("somebody",), 0.9, 1.2)}, {}, "2026-01-01")


def test_a_copy_is_its_floor_and_its_bytes() -> None:
    # 2 x 2^20 elements of 4 bytes: 8.389 MB at 4.8 TB/s are 1.748 us; at 0.8 of it 2.185 us, and 2 us to start
    bound = cold(elementwise_table(2**20, 1, 1, "fp32"))
    forecast = expected_time(bound, fitted("elementwise", floor=2e-6, memory=0.8))
    assert forecast.time == pytest.approx(2e-6 + 8 * 2**20 / 4.8e12 / 0.8)
    assert forecast.low == pytest.approx(0.9 * forecast.time / 1.15**2)
    assert forecast.high == pytest.approx(1.2 * forecast.time * 1.15**2)
    assert "a guess" in forecast.basis


def test_shapes_are_read_off_a_products_row() -> None:
    # 4096 / 128 squared is 1024 tiles on 132 units: 8 waves of 1056
    features = kernel_features(cold(gemm_table(4096, 4096, 2048, "bf16")))
    assert features.keys == ("gemm/16bit/hopper",)
    assert features.length[0] == pytest.approx(2048)
    assert features.utilisation[0] == pytest.approx(1024 / 1056)


def test_one_row_too_many_costs_a_wave_of_tiles() -> None:
    fit = fitted("gemm/16bit/hopper", floor=1e-6, compute=0.7, memory=0.8, wave=1.0)
    even = expected_time(cold(gemm_table(4096, 4096, 4096, "bf16")), fit).time
    odd = expected_time(cold(gemm_table(4097, 4096, 4096, "bf16")), fit).time
    # 32 x 33 tiles still take 8 waves, so the tile that is nearly empty costs nothing here but its padding
    assert odd == pytest.approx(even, rel=0.01)
    full = expected_time(cold(gemm_table(4096 + 128, 4096, 4096, "bf16")), fit).time
    more = expected_time(cold(gemm_table(4096 + 256, 4096, 4096, "bf16")), fit).time
    assert more / full > 1.1  # 34 x 32 tiles are 1088: a ninth wave


@pytest.mark.parametrize("phase", ["prefill", "decode", "train"])
def test_attention_keeps_its_shape_whatever_its_operands_are_stored_in(phase: str) -> None:
    model = load_catalog().models["llama-3.1-8b"]
    asked = Workload(phase=phase, batch=4, seq_len=1 if phase == "decode" else 2048, context_len=4096)  # type: ignore[arg-type]
    asked = replace(asked, context_len=0) if phase == "train" else asked
    found = []
    for dtypes in (Dtypes(), Dtypes(activations="fp8"), Dtypes(kv="fp8")):
        features = kernel_features(cold(cost_table(model, replace(asked, dtypes=dtypes))))
        places = [i for i, key in enumerate(features.keys) if key.startswith("attention")]
        found.append([[getattr(features, name)[i] for name in ("utilisation", "length", "waves")] for i in places])
    for other in found[1:]:
        assert np.array(other) == pytest.approx(np.array(found[0]), rel=1e-12)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (gemm_table(0, 1536, 2048, "bf16", groups=[4] * 16), "gemm grouped/16bit/hopper"),
        (gemm_table(16, 512, 128, "bf16", batch=128), "gemm/16bit/hopper"),
        (attention_table(batch=8, seq_q=1, seq_kv=4096, heads=32, kv_heads=8, head_dim=128), "attention decode"),
        (attention_table(batch=1, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8, head_dim=128), "attention/16bit"),
        (
            attention_table(batch=1, seq_q=512, seq_kv=512, heads=8, kv_heads=8, head_dim=64, direction="bwd"),
            "attention backward",
        ),
        (collective_table("all_reduce", 2.0**20, 8, 8, True), "collective/any/hopper"),
    ],
)
def test_rows_find_their_class(table: object, kind: str) -> None:
    assert kernel_features(cold(table)).keys[0].startswith(kind)


def test_attention_rows_give_their_keys_and_heads() -> None:
    prefill = kernel_features(
        cold(attention_table(batch=2, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8, head_dim=128))
    )
    # the mean causal query sees 4097 / 2 keys and the last one 4096: 4095 / 4097 more
    assert prefill.length[0] == pytest.approx(4097 / 2 / (4095 / 4097))
    # 2 x 4096 x 32 / 128 are 2048 tiles on 132 units: 15.5 waves, and the last of them are the longest
    assert prefill.utilisation[0] == pytest.approx(15.515 / (15.515 + 1.35 * 4095 / 4097), rel=1e-3)
    whole = kernel_features(
        cold(attention_table(batch=2, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8, head_dim=128, causal=False))
    )
    assert np.isinf(whole.length[0])
    assert whole.utilisation[0] == pytest.approx(15.515 / 16, rel=1e-3)
    decode = kernel_features(cold(attention_table(batch=8, seq_q=1, seq_kv=4096, heads=32, kv_heads=8, head_dim=128)))
    assert decode.waves[0] == pytest.approx(8 * 8 / 132, rel=0.01)


def test_the_form_of_a_single_product_is_its_fit() -> None:
    fit = load_calibration().kernel("gemm/16bit/hopper")[0]
    forecast = expected_time(cold(gemm_table(8192, 8192, 8192, "bf16")), load_calibration())
    # own measurement: 1376 us; the bound is 1111 us
    assert 1.2e-3 < forecast.time < 1.6e-3
    assert f"{fit.rows} measured" in forecast.basis
    assert "guess" not in forecast.basis


@pytest.mark.parametrize("device", ["amd-mi300x", "google-tpu-v5e", "apple-m4"])
def test_where_nobody_measured_the_range_widens_and_the_basis_says_so(device: str) -> None:
    profile = HARDWARE[device]
    dtype = "bf16" if "bf16" in profile.peak else "fp16"
    model = load_catalog().models["llama-3.1-8b"]
    workload = Workload("decode", 4, context_len=1024, dtypes=Dtypes(dtype, dtype, dtype), parallel=Parallel())
    table = cost_table(model, workload)
    guess = expected_time(lower_bound(table, ceilings(profile)), load_calibration(), workload)
    fit, _ = load_calibration().step(step_class(table, workload, profile.family))
    # wider than the measurements that it rests on
    assert guess.high / guess.time > 1.1 * fit.high or "guess" not in guess.basis
    if device == "google-tpu-v5e":
        assert "guess" in guess.basis


def test_an_eager_step_waits_for_the_host() -> None:
    model = load_catalog().models["llama-3.1-8b"]
    graph = Workload("decode", 1, context_len=4096)
    eager = replace(graph, launch_mode="eager")
    bound = lower_bound(cost_table(model, graph), ceilings(H200))
    late = lower_bound(cost_table(model, eager), ceilings(H200), launch_mode="eager")
    fast = expected_time(bound, load_calibration(), graph)
    slow = expected_time(late, load_calibration(), eager)
    # measured: 5.7 ms in a graph, 12.6 to 26.8 ms eager
    assert 4.5e-3 < fast.time < 7e-3
    assert 1.0e-2 < slow.time < 2.7e-2


def test_families_part_professional_and_consumer_boards() -> None:
    assert HARDWARE["nvidia-h20"].family == HARDWARE["nvidia-h200-sxm"].family == "hopper"
    assert HARDWARE["nvidia-a40"].family != HARDWARE["nvidia-a100-sxm4-80gb"].family
    assert HARDWARE["nvidia-rtx-4090"].family != HARDWARE["nvidia-l40s"].family
    assert device_family("Some Maker", None) == "some maker"


def test_every_source_is_predicted_unseen() -> None:
    calibrated = load_calibrated()
    assert {v.source for v in calibrated.validation} == set(calibrated.sources)
    assert all(0 <= v.median <= v.p90 for v in calibrated.validation)


def test_fits_are_shares_of_peaks_with_few_parameters() -> None:
    for fit in load_calibration().kernels.values():
        assert all(0 < fit.parameters.get(name, 1.0) <= 1.0 for name in ("compute", "memory", "link"))
        assert len(fit.parameters) <= 6
        assert fit.low < 1 < fit.high
        assert fit.rows > 0
        assert fit.sources


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_narrower_products_gain_no_more_in_the_forecast_than_bytes_and_peaks_allow(phase: str) -> None:
    """Half the bytes at twice the peak: a class of fp8 steps measured on another engine must not add to that."""
    for id_ in ("mixtral-8x7b", "llama-3.1-70b"):
        workload = Workload(phase=phase, batch=64, context_len=8000 * (phase == "decode"), parallel=Parallel(tp=8))
        ledger = bound_of(
            HARDWARE["nvidia-h100-sxm"], load_catalog().models[id_], workload, levers=[LeverRequest("fp8-gemm")]
        ).ledger
        before, after = ledger[0].before.expected.time, ledger[0].after.expected.time
        assert 0.5 * before <= after < before, id_


@pytest.mark.parametrize(
    ("device", "reaches"),
    [("nvidia-h100-sxm", True), ("nvidia-b200-sxm", True), ("nvidia-rtx-4090", False), ("apple-m2-ultra", False)],
)
def test_a_range_that_local_engines_measured_reaches_serving_engines(device: str, reaches: bool) -> None:
    """llama.cpp multiplies narrow weights slowly on devices of a data centre, where others serve them."""
    model, wide = (
        load_catalog().models["llama-3.1-8b"],
        Workload(phase="prefill", seq_len=2048, dtypes=Dtypes(weights="fp16", activations="fp16", kv="fp16")),
    )
    narrow = replace(wide, dtypes=replace(wide.dtypes, weights="int4"))
    before, after = (bound_of(HARDWARE[device], model, workload).expected for workload in (wide, narrow))
    assert ("serving engines" in after.basis) is reaches
    assert after.low < before.time or not reaches
    assert "llama-bench" in after.basis or "local engines" in after.basis


@pytest.mark.parametrize(
    ("changes", "halves"),
    [
        ({}, True),
        ({"seq_len": 2, "prediction_modules": 1}, True),  # the module's own exchange too
        ({"batch": 1}, False),  # one sequence has no halves
        ({"parallel": Parallel(ep=8, dp=8)}, False),  # one node
        ({"phase": "train", "context_len": 0, "seq_len": 4096}, False),
    ],
)
def test_serving_hides_the_exchange_with_other_nodes(changes: dict[str, Any], halves: bool) -> None:
    """Two half batches: the exchange is shown beyond the work of the other half, and a share of what lies behind it."""
    workload = replace(Workload(batch=128, context_len=4096, parallel=Parallel(ep=128, dp=128)), **changes)
    table = cost_table(load_catalog().models["deepseek-v3"], workload)
    bound = lower_bound(table, ceilings(HARDWARE["nvidia-h100-sxm"]))
    assert hides_exchange(table, workload) is halves
    fit = Fit("", {"factor": 1.5}, 0, (), 1.0, 1.0)
    for slower in (0.1, 1.0, 10.0):
        seconds = np.array([slower if op.in_layer in ("dispatch", "combine") else 1.0 for op in table.ops])
        exchange = float(sum(seconds[i] for i, op in enumerate(table.ops) if op.in_layer in ("dispatch", "combine")))
        work = 1.5 * (float(seconds.sum()) - exchange)
        sent = 0.8 * exchange  # the rest starts messages, which is never hidden
        shown = max(sent - work, 0.0) + (1.0 - HIDDEN_DISPATCH) * min(sent, work) + 0.2 * exchange
        if workload.phase == "decode":
            afar = workload.parallel.ep > 8
            expected = work + (shown if halves else exchange if afar else 1.5 * exchange)
            shares = shares_of(table, seconds, 0.2 * seconds, workload)
            assert combine(bound, shares, fit, workload) == pytest.approx(expected)


def test_dualpipe_hides_what_is_sent_to_experts() -> None:
    """DeepSeek-V3 was trained at 1,543 tokens a second and device: 14.8 T in 2.664 M hours (arXiv 2412.19437)."""
    model, hardware = load_catalog().models["deepseek-v3"], HARDWARE["nvidia-h800-sxm"]
    layout = Parallel(ep=64, pp=16, dp=128, micro_batches=120, zero_stage=1)
    fp8 = Dtypes(weights="fp8", activations="fp8")
    one_way, both_ways = (
        bound_of(hardware, model, Workload(phase="train", seq_len=4096, dtypes=fp8, parallel=p))
        for p in (layout, replace(layout, schedule="dualpipe"))
    )
    assert both_ways.expected.time < 0.8 * one_way.expected.time
    tokens = float(both_ways.bound.table.tokens) / 2048
    assert both_ways.expected.low < tokens / 1543 < both_ways.expected.high
    assert any("other direction" in note for note in both_ways.assumptions)


def test_a_second_sequence_does_not_make_a_step_across_nodes_quicker() -> None:
    """One sequence cannot be halved and two can; few bytes are hidden, and messages start all the same."""
    model = load_catalog().models["qwen3-30b-a3b"]
    one, two = (
        bound_of(
            HARDWARE["nvidia-h100-sxm"], model, Workload(batch=n, context_len=2048, parallel=Parallel(ep=16, dp=16))
        ).expected.time
        for n in (1, 2)
    )
    assert one <= two


def test_the_range_holds_all_and_none_of_the_hidden_exchange() -> None:
    model, hardware = load_catalog().models["deepseek-v3"], HARDWARE["nvidia-h100-sxm"]
    far, near = (
        bound_of(hardware, model, Workload(batch=128, context_len=4096, parallel=Parallel(ep=n, dp=n))).expected
        for n in (64, 8)
    )
    assert far.high / far.time > near.high / near.time
    assert far.low / far.time < near.low / near.time
    assert "hidden" in far.basis
    assert "hidden" not in near.basis


@pytest.mark.parametrize(
    ("key", "stack", "expected"),
    [
        (
            "train/dense/16bit/hopper",
            "train/dense/16bit model parallel/hopper",
            "train/dense/16bit model parallel/hopper",
        ),
        ("train/dense/fp8 model parallel/hopper", "train/dense/16bit/hopper", "train/dense/fp8/hopper"),
        ("prefill/dense/dequantised/hopper", "prefill/dense/native/hopper", "prefill/dense/native/hopper"),
        ("prefill/dense/dequantised int8/hopper", "prefill/dense/native/hopper", "prefill/dense/native/hopper"),
        ("decode/dense/dequantised/hopper", "decode/dense/native/hopper", "decode/dense/dequantised/hopper"),
    ],
)
def test_a_lever_keeps_the_software_of_the_step_before_it(key: str, stack: str, expected: str) -> None:
    assert on_stack(key, stack) == expected


def test_training_that_divides_the_model_is_a_class_of_its_own() -> None:
    """Published steps of Megatron-LM and its kin lie a quarter below those of PyTorch's data parallelism."""
    model = load_catalog().models["llama-3.1-8b"]
    for parallel, divided in ((Parallel(dp=8, zero_stage=3), False), (Parallel(tp=8), True), (Parallel(pp=4), True)):
        workload = Workload(phase="train", seq_len=4096, parallel=parallel)
        key = step_class(cost_table(model, workload), workload, "hopper")
        assert key == f"train/dense/16bit{' model parallel' if divided else ''}/hopper"


@pytest.mark.parametrize(("device", "rate"), [("nvidia-rtx-4090", 10358.75), ("nvidia-rtx-3090", 3654.78)])
def test_quantised_products_in_eight_bits_are_not_forecast_as_dequantised(device: str, rate: float) -> None:
    """llama.cpp, pull request 7676: Llama 3 8B in four and in five bits, 512 tokens at so many a second."""
    bits = {"nvidia-rtx-4090": 4.63, "nvidia-rtx-3090": 5.57}[device]
    dtypes = Dtypes("int8", "int8", "fp16", weights_bits=bits)
    workload = Workload("prefill", 1, seq_len=512, dtypes=dtypes)
    table = cost_table(load_catalog().models["llama-3-8b"], workload)
    assert "/dequantised int8/" in step_class(table, workload, HARDWARE[device].family)
    forecast = expected_time(lower_bound(table, ceilings(HARDWARE[device])), load_calibration(), workload)
    assert 0.7 < forecast.time * rate / 512 < 1.4
