"""Runs against bounds worked out by hand.

Tiny: 64 wide, one layer, 4 heads of 16, gated MLP of 128, 100 words, head not tied. Weights that a decode step reads in
bf16: QKV 64*192, output 64*64, MLP 3*64*128, head 64*100 = 47,360 elements = 94,720 B. KV: 2*64 elements = 256 B a
token. The device reads 1 MB/s, computes 1 TFLOP/s and keeps the activations of a decode step in cache, but not the
weights: such a step takes one microsecond for each byte.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.hardware import HardwareProfile, Link
from app.domain.model import Attention, DenseMlp, LayerGroup, ModelSpec
from app.domain.run import Metric, ParsedRun, RunWorkload
from app.domain.run_analysis import BoundRow, analyse_run
from app.domain.words import share_text, time_text

TINY = ModelSpec(
    id="tiny",
    name="Tiny",
    kind="decoder",
    hidden_size=64,
    vocab_size=100,
    layers=(LayerGroup(1, Attention(4, 4, 16, 16), DenseMlp(128)),),
)
DEVICE = HardwareProfile(
    id="device",
    name="Device",
    vendor="Nobody",
    memory_capacity=1e9,
    memory_bandwidth=1e6,
    peak={"bf16": 1e12, "fp32": 1e12},
    l2_capacity=20_000,
    launch_overhead=1e-6,
    scale_up=Link("link", 1e9, domain_size=8),
)
BF16 = {"weights": "bf16", "activations": "bf16", "kv": "bf16"}
WEIGHTS = 94_720
KV_TOKEN = 256
EMBEDDING_ROW = 128


def decode_bytes(batch: int, context: int) -> int:
    """Weights once; for each sequence an embedding row, its cache read, and one token's cache written."""
    return WEIGHTS + batch * (EMBEDDING_ROW + context * KV_TOKEN + KV_TOKEN)


def a_run(mode: str | None, metrics: dict[str, float], parallel: dict[str, int] | None = None, **workload) -> ParsedRun:
    found = []
    for key, value in metrics.items():
        name, _, stat = key.partition(".")
        found.append(Metric(name, value, stat or None, pointer=f"/{key}"))
    told = RunWorkload(mode=mode, **({"dtypes": BF16} | workload))
    return ParsedRun("a run", tuple(found), told, parallel={"tp": 1} if parallel is None else parallel)


def only_row(run: ParsedRun, device: HardwareProfile = DEVICE, **overrides) -> BoundRow:
    analysis = analyse_run(run, device, TINY, overrides)
    assert len(analysis.rows) == 1, analysis
    return analysis.rows[0]


def test_a_decode_step_against_bytes_counted_by_hand():
    row = only_row(a_run("decode", {"tpot_s.mean": 0.2}, batch=1, context_len=99))
    assert decode_bytes(1, 99) == 120_448
    assert row.hbm_bytes == 120_448
    assert row.bound == pytest.approx(0.120448, rel=1e-12)
    assert row.of_bound == pytest.approx(0.120448 / 0.2, rel=1e-12)
    assert row.binding == "hbm"
    assert row.mbu == pytest.approx(0.60224, rel=1e-12)
    # products: 2 FLOP a weight, and 4*64 for each of the 100 visible tokens
    assert row.flop == 2 * 47_360 + 4 * 64 * 100
    assert row.mfu == pytest.approx(120_320 / (0.2 * 1e12), rel=1e-12)
    assert row.kv_share == pytest.approx(99 * 256 / 120_448, rel=1e-12)
    assert row.measured_from == "tpot_s.mean"
    analysis = analyse_run(a_run("decode", {"tpot_s.mean": 0.2}, batch=1, context_len=99), DEVICE, TINY)
    assert analysis.verdict == (
        "Decode reaches 60\u202f% of its bound: 200\u202fms per token against 120\u202fms; HBM binds, "
        "KV reads are 21\u202f% of its bytes, and the gap of 79.6\u202fms is 99.9\u202f% unexplained."
    )


def test_the_gap_adds_up_to_the_measured_time_and_names_the_rest():
    row = only_row(a_run("decode", {"tpot_s.mean": 0.2}, batch=1, context_len=99))
    assert sum(part.time for part in row.gap) == pytest.approx(0.2, rel=1e-12)
    assert (row.gap[0].resource, row.gap[0].time) == ("hbm", row.bound)
    assert row.gap[-1].resource == "other"
    assert row.gap[-1].time == pytest.approx(0.2 - row.serial_bound, rel=1e-9)


def test_a_run_between_the_two_bounds_has_no_overlap_to_blame():
    quick = a_run("decode", {"tpot_s.mean": 0.120448 * (1 + 1e-9)}, batch=1, context_len=99)
    row = only_row(quick)
    assert row.measured < row.serial_bound
    assert [part.resource for part in row.gap] == ["hbm", "other"]


def test_serving_decode_takes_its_batch_from_littles_law_rounded_down():
    # 510 tokens/s, of which 10 a second are first tokens: 500 decoded a second, each in 15 ms: 7.5 in flight
    run = a_run(
        "serve",
        {"tpot_s.mean": 0.5, "output_tokens_per_s": 25.0, "requests_per_s": 5.0},
        input_len=100.0,
        output_len=5.0,
    )
    row = only_row(run)  # no TTFT in the file, so no prefill row
    assert row.workload.batch == 10  # (25 - 5) * 0.5
    assert row.workload.context_len == 101  # 100 to 103 tokens cached while decoding 4 tokens: 101.5, rounded down
    assert row.hbm_bytes == decode_bytes(10, 101)
    partly = a_run(
        "serve", {"tpot_s.mean": 0.5, "output_tokens_per_s": 28.0, "requests_per_s": 5.0}, input_len=100, output_len=5
    )
    assert only_row(partly).workload.batch == 11  # 11.5


def test_serving_decode_never_assumes_less_than_one_sequence_nor_more_than_the_concurrency():
    metrics = {"tpot_s.mean": 0.5, "output_tokens_per_s": 0.2, "requests_per_s": 0.1}
    assert only_row(a_run("serve", metrics, input_len=10, output_len=2)).workload.batch == 1
    metrics["output_tokens_per_s"] = 100.0
    assert only_row(a_run("serve", metrics, input_len=10, output_len=2, concurrency=4.0)).workload.batch == 4
    without = a_run("serve", {"tpot_s.mean": 0.5}, input_len=10, output_len=2)
    row = only_row(without)
    assert row.workload.batch == 1
    assert any("not known" in text for text in row.assumptions)


def test_data_parallel_replicas_share_the_sequences_in_flight():
    metrics = {"tpot_s.mean": 0.5, "output_tokens_per_s": 27.0, "requests_per_s": 0.0}
    row = only_row(a_run("serve", metrics, {"tp": 1, "dp": 4}, input_len=10, output_len=2))
    assert row.workload.batch == 3  # 13.5 over 4
    assert row.devices == 4
    assert row.hbm_bytes == decode_bytes(3, 10)


def test_the_median_stands_in_where_there_is_no_mean():
    row = only_row(a_run("serve", {"tpot_s.p50": 0.3, "tpot_s.p99": 0.9}, input_len=10, output_len=2))
    assert (row.measured, row.measured_from) == (0.3, "tpot_s.p50")
    assert "median" in row.how


def test_accepted_drafts_make_a_step_longer_than_a_token():
    run = a_run("serve", {"tpot_s.mean": 0.1, "accepted_tokens_per_step": 2.5}, input_len=10, output_len=2)
    assert only_row(run).measured == pytest.approx(0.25)


def test_serving_prefill_is_one_prompt_of_the_mean_length_against_the_mean_ttft():
    run = a_run(
        "serve", {"tpot_s.mean": 1.0, "ttft_s.mean": 0.5, "ttft_s.p50": 0.4, "ttft_s.min": 0.05}, input_len=32.9
    )
    analysis = analyse_run(run, DEVICE, TINY)
    assert [row.what for row in analysis.rows] == ["decode", "prefill"]
    prefill = analysis.rows[1]
    assert prefill.measured == 0.5
    assert (prefill.workload.batch, prefill.workload.seq_len, prefill.workload.context_len) == (1, 32, 0)
    # all weights once (the head for the last position), 32 embedding rows, 32 tokens of cache written
    assert prefill.hbm_bytes == WEIGHTS + 32 * (EMBEDDING_ROW + KV_TOKEN)
    assert any("prefix cache" in note for note in prefill.notes)


def test_llama_bench_rows_are_one_sequence_with_half_of_the_generated_tokens_cached():
    decode = a_run("decode", {"tpot_s.mean": 0.2}, batch=1.0, output_len=128.0, context_len=1000.0)
    assert only_row(decode).workload.context_len == 1063  # contexts 1000 to 1127: 1063.5
    prefill = a_run("prefill", {"prefill_time_s.mean": 0.9}, batch=1.0, input_len=512.0, context_len=1024.0)
    row = only_row(prefill, replace(DEVICE, l2_capacity=300_000))  # activations of 512 tokens, but not what is streamed
    assert (row.workload.seq_len, row.workload.context_len, row.workload.batch) == (512, 1024, 1)
    assert row.hbm_bytes == WEIGHTS + 512 * (EMBEDDING_ROW + KV_TOKEN) + 1024 * KV_TOKEN


def test_a_harness_that_times_both_phases_of_a_batch_has_both_held():
    run = a_run(
        "latency", {"tpot_s.p50": 0.02, "prefill_time_s": 0.5, "latency_s": 3.0}, batch=8, input_len=512, output_len=64
    )
    rows = {row.what: row for row in analyse_run(run, DEVICE, TINY).rows}
    assert list(rows) == ["decode", "prefill"]
    assert (rows["decode"].workload.batch, rows["decode"].workload.context_len) == (8, 543)
    assert (rows["prefill"].workload.batch, rows["prefill"].workload.seq_len) == (8, 512)


def test_decode_time_of_a_whole_generation_is_divided_by_its_tokens():
    run = a_run("decode", {"decode_time_s.mean": 25.6}, batch=1.0, output_len=128.0, context_len=0.0)
    assert only_row(run).measured == pytest.approx(0.2)


def test_stored_bytes_of_a_quantised_file_set_the_bits_of_a_weight():
    run = a_run("decode", {"tpot_s.mean": 0.2}, context_len=99, weight_bytes=30_000.0, parameters=60_000.0, dtypes={})
    row = only_row(run)
    assert row.workload.dtypes.weights_bits == 4.0
    # half a byte a weight; the embedding row (64 elements) is stored like the rest
    assert row.hbm_bytes == 47_360 / 2 + 64 / 2 + 100 * KV_TOKEN


def test_unstated_weights_are_taken_as_the_checkpoint_is_published():
    """A DeepSeek file that names no precision must not contradict a bf16 bound that nobody stated."""
    run = a_run("decode", {"tpot_s.mean": 0.2}, batch=1, context_len=100, dtypes={})
    published = replace(TINY, weights_stored_as="fp8")
    wide, narrow = (analyse_run(run, DEVICE, model, {}).main for model in (TINY, published))
    assert wide is not None
    assert narrow is not None
    assert wide.workload.dtypes.weights == "bf16"
    assert narrow.workload.dtypes.weights == "fp8"
    assert narrow.workload.dtypes.activations == "bf16", "the device multiplies no fp8"
    assert "Weights in fp8, as the model is published: the file does not say." in narrow.assumptions
    assert narrow.bound < wide.bound
    stated = analyse_run(run, DEVICE, published, {"dtypes": {"weights": "bf16"}}).main
    assert stated is not None
    assert stated.bound == wide.bound


def test_a_training_step_needs_its_shape():
    bare = a_run("train", {"step_time_s.mean": 5.0})
    analysis = analyse_run(bare, DEVICE, TINY)
    assert analysis.rows == ()
    assert analysis.not_held[0].needs == ("seq_len", "batch")
    row = only_row(bare, batch=2, seq_len=16)
    assert (row.what, row.workload.batch, row.workload.seq_len) == ("train", 2, 16)
    # forward and backward are three times the forward products; causal attention sees 136 of 16*16 pairs
    forward = 2 * 2 * 16 * 47_360 + 4 * 64 * 136 * 2
    assert row.flop == pytest.approx(3 * forward, rel=1e-12)


def test_a_training_step_follows_from_the_tokens_of_a_device():
    run = a_run("train", {"tokens_per_s_per_device.mean": 1000.0}, {"dp": 4}, batch=2, input_len=512)
    (missing,) = analyse_run(run, DEVICE, TINY).not_held
    assert missing.needs == ("parallel",)
    row = only_row(run, parallel={"tp": 2, "dp": 4, "micro_batches": 3})
    assert row.measured == pytest.approx(2 * 512 * 3 / 1000.0 / 2)  # four replicas at a time, each on two devices


def test_faster_than_the_bound_is_shown_as_a_contradiction():
    run = a_run("decode", {"tpot_s.mean": 0.06}, {}, batch=1, context_len=99)
    analysis = analyse_run(run, DEVICE, TINY)
    row = analysis.rows[0]
    assert row.of_bound == pytest.approx(0.120448 / 0.06)  # above one, and not clamped
    assert row.contradicts
    assert row.gap == ()
    (finding,) = [f for f in analysis.findings if f.check == "faster-than-bound"]
    assert finding.severity == "error"
    assert "more devices" in finding.message  # the layout was assumed
    assert "contradicts its bound" in analysis.verdict
    stated = analyse_run(replace(run, parallel={"tp": 1}), DEVICE, TINY).findings
    assert "more devices" not in stated[0].message


def test_without_a_layout_the_fewest_devices_that_hold_the_step_are_assumed_and_named():
    run = a_run("decode", {"tpot_s.mean": 0.2}, {}, batch=1, context_len=99)
    row = only_row(run)
    assert row.workload.parallel.tp == 1
    assert any("One device is assumed" in text for text in row.assumptions)
    # all parameters: 47,360 + embedding 6,400 + norms 192 = 53,952 elements, 107,904 B: two devices of 80 kB hold them
    small = replace(DEVICE, memory_capacity=100_000.0)
    analysis = analyse_run(run, small, TINY)
    assert analysis.rows[0].workload.parallel.tp == 2
    assert any("Tensor parallel 2 is assumed" in text for text in analysis.rows[0].assumptions)
    tight = analyse_run(run, replace(DEVICE, memory_capacity=5_000.0), TINY)
    assert tight.findings[0].check == "does-not-fit"
    assert tight.rows[0].workload.parallel.tp == 4  # more than the heads cannot be divided


def test_a_stated_layout_that_does_not_fit_is_a_warning_not_a_refusal():
    run = a_run("decode", {"tpot_s.mean": 0.2}, batch=1, context_len=99)
    analysis = analyse_run(run, replace(DEVICE, memory_capacity=50_000.0), TINY)
    assert analysis.rows[0].bound == pytest.approx(0.120448)
    assert [f.check for f in analysis.findings] == ["does-not-fit"]


@pytest.mark.parametrize(
    ("mode", "metrics", "workload"),
    [
        ("serve", {"tpot_s.mean": 1e300, "output_tokens_per_s": 1e9}, {}),
        ("serve", {"tpot_s.mean": 0.1, "ttft_s.mean": 0.1}, {"input_len": 1e15, "output_len": 1e15}),
        ("decode", {"tpot_s.mean": 0.1}, {"batch": 0.4}),
        ("prefill", {"prefill_time_s.mean": 0.1}, {"input_len": 1e15}),
        ("train", {"step_time_s": 0.1}, {"input_len": 1e15, "batch": 1.0}),
        ("decode", {"tpot_s.mean": 0.0}, {}),
    ],
)
def test_absurd_numbers_are_answered_and_never_break(mode, metrics, workload):
    analysis = analyse_run(a_run(mode, metrics, **workload), DEVICE, TINY)
    assert analysis.verdict
    assert all(0 < row.of_bound < float("inf") for row in analysis.rows)


def test_what_a_person_states_goes_over_the_file():
    run = a_run("decode", {"tpot_s.mean": 0.2}, batch=1, context_len=99)
    row = only_row(run, batch=3, context_len=7, dtypes={"kv": "fp8"})
    # KV at one byte an element
    assert row.hbm_bytes == WEIGHTS + 3 * (EMBEDDING_ROW + 7 * 128 + 128)


def test_stated_fields_count_for_the_phase_they_are_stated_for():
    run = a_run("serve", {"tpot_s.mean": 1.0, "ttft_s.mean": 0.5}, input_len=32)
    rows = analyse_run(run, DEVICE, TINY, {"phase": "prefill", "seq_len": 8, "batch": 2}).rows
    assert rows[0].workload.batch == 1
    assert (rows[1].workload.seq_len, rows[1].workload.batch) == (8, 2)


@pytest.mark.parametrize(
    ("hardware", "model", "said"),
    [(None, TINY, "a hardware profile"), (DEVICE, None, "a model"), (None, None, "a hardware profile and a model")],
)
def test_what_is_not_linked_is_said(hardware, model, said):
    analysis = analyse_run(a_run("decode", {"tpot_s.mean": 0.2}), hardware, model)
    assert analysis.verdict == f"Link {said} to hold this run against its bound."


def test_times_of_no_known_step_are_not_guessed():
    analysis = analyse_run(a_run(None, {"latency_s.mean": 1.0}), DEVICE, TINY)
    assert analysis.rows == ()
    assert analysis.not_held[0].needs == ("phase",)
    assert analyse_run(a_run(None, {"latency_s.mean": 1.0}), DEVICE, TINY, {"phase": "decode"}).rows[0].measured == 1.0


def test_a_profile_without_the_precision_is_a_reason_and_not_an_error():
    run = a_run("decode", {"tpot_s.mean": 0.2}, dtypes={"weights": "fp8", "activations": "fp8"})
    analysis = analyse_run(run, DEVICE, TINY)
    assert analysis.rows == ()
    assert "fp8" in analysis.verdict


def test_expert_parallel_over_replicas_is_refused_with_the_reason():
    analysis = analyse_run(a_run("decode", {"tpot_s.mean": 0.2}, {"tp": 1, "dp": 8, "ep": 8}), DEVICE, TINY)
    assert analysis.rows == ()
    assert "cannot be held against a bound yet" in analysis.verdict


def test_pipeline_stages_of_a_decode_step_run_one_after_another():
    metrics = {"tpot_s.mean": 0.5, "output_tokens_per_s": 16.0, "requests_per_s": 0.0, "ttft_s.mean": 1.0}
    analysis = analyse_run(a_run("serve", metrics, {"tp": 1, "pp": 2}, input_len=10, output_len=2), DEVICE, TINY)
    assert [row.what for row in analysis.rows] == ["decode"]
    assert analysis.rows[0].workload.batch == 4  # 8 in flight, half of them in each stage
    assert analysis.rows[0].devices == 2
    assert analysis.not_held[0].what == "prefill"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0147, "14.7\u202fms"),
        (2.5, "2.50\u202fs"),
        (1.29e-5, "12.9\u202fµs"),
        (5e-8, "50\u202fns"),
        (0.9999, "1.00\u202fs"),
    ],
)
def test_times_in_words(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.61, "61"), (0.9996, "99.9"), (0.045, "4.5"), (1.0, "100"), (0.0046, "0.46")]
)
def test_shares_in_words(ratio, text):
    assert share_text(ratio) == f"{text}\u202f%"


@pytest.mark.parametrize(
    ("name", "file", "person", "weights", "activations"),
    [
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic", {}, {}, "fp8", "fp8"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", {}, {}, "int4", "bf16"),
        ("org/Llama-3.1-8B.w8a8", {"weights": "bf16", "activations": "bf16"}, {}, "int8", "int8"),
        ("org/Llama-3.1-8B-GPTQ-Int8", {}, {}, "int8", "int8"),
        ("org/Llama-3.1-8B-FP8", {}, {"weights": "bf16"}, "bf16", "bf16"),
        ("org/Llama-3.1-8B-Instruct", {}, {}, "bf16", "bf16"),
    ],
)
def test_the_name_of_a_quantised_checkpoint_says_its_precision(
    name: str, file: dict[str, str], person: dict[str, str], weights: str, activations: str
) -> None:
    """Or else the bound is one of 16-bit weights, which the run beats."""
    run = replace(a_run("decode", {"tpot_s.mean": 9.0}, batch=1, context_len=8, dtypes=file), model_hint=name)
    device = replace(DEVICE, peak={**DEVICE.peak, "fp8": 2e3, "int8": 2e3})
    (row,) = analyse_run(run, device, TINY, {"dtypes": person}).rows
    assert (row.workload.dtypes.weights, row.workload.dtypes.activations) == (weights, activations)
