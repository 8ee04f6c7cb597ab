"""The lint by hand: each contradiction, each doubt, and the one finding for all that is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.lint import ANALYSIS_CHECKS, CHECKS, grouped, lint
from app.domain.lint_facts import FACTS, STATABLE, missing
from app.domain.lint_subject import Subject
from app.domain.run import Finding, Metric, ParsedRun, RunWorkload
from app.domain.run_analysis import analyse_run

from .test_run_analysis import DEVICE, TINY, a_run

BIG = replace(DEVICE, peak={"bf16": 989.4e12}, memory_capacity=80e9, memory_bandwidth=3.35e12)


def subject(mode: str | None, metrics: dict[str, float] | None = None, **more) -> Subject:
    run = a_run(mode, metrics or {}, **{"concurrency": 8.0} | more.pop("workload", {}))
    run = replace(run, software={"vllm": "0.11.0"}, **more.pop("run", {}))
    return Subject(run, **({"hardware": BIG, "model": TINY} | more))


def found(s: Subject) -> dict[str, str]:
    """Check ids with their severities."""
    return {finding.check: finding.severity for finding in lint(s)}


CONTRADICTIONS: list[tuple[str, Subject]] = [
    ("percentiles-disordered", subject("serve", {"ttft_s.p50": 10, "ttft_s.p95": 9, "ttft_s.p99": 20})),
    ("percentiles-disordered", subject("serve", {"ttft_s.min": 2, "ttft_s.mean": 1, "ttft_s.p99": 3})),
    ("percentiles-disordered", subject("train", {"step_time_s.mean": 3, "step_time_s.max": 2})),
    ("negative-value", subject("train", {"step_time_s": -1.0})),
    # 100 s at 10 requests a second are 1000, not 900
    ("rate-mismatch", subject("serve", {"duration_s": 100, "requests_per_s": 10, "requests_completed": 900})),
    ("ttft-above-latency", subject("serve", {"ttft_s.mean": 3.0, "e2e_latency_s.mean": 2.0, "ttft_s.p99": 4})),
    ("tokens-above-total", subject("serve", {"output_tokens_per_s": 11, "total_tokens_per_s": 10})),
    ("part-above-whole", subject("train", run={"evidence": {"data_wait_share": 0.7, "exposed_comm_share": 0.45}})),
    (
        "part-above-whole",
        subject("kernel", run={"kernels": ({"share": 0.7}, {"share": 0.45})}),
    ),
    (
        "part-above-whole",
        subject(
            "train",
            {"step_time_s": 0.100},
            workload={"extra": {"breakdown_s": {"a": 0.070, "b": 0.045}, "breakdown_kind": "exclusive"}},
        ),
    ),
    ("step-below-stream", subject("train", {"step_time_s": 0.08}, run={"evidence": {"compute_only_s": 0.1}})),
    ("share-out-of-range", subject("train", run={"evidence": {"data_wait_share": 12.0}})),
    ("utilisation", subject("train", {"mfu": 0.55, "hfu": 0.50})),
    ("utilisation", subject("train", {"mfu": 41.0})),
    ("utilisation", subject("train", workload={"extra": {"useful_flop": 2.0, "executed_flop": 1.0}})),
    ("above-peak", subject("train", {"model_flop_per_s_per_device": 1.2e15})),
    ("above-peak", subject("decode", {"hbm_bytes_per_s": 4e12})),
    # 4 TB/s by counters where the memory has 3.35; 1.2 PFLOP/s where bf16 products have 989 TFLOP/s
    (
        "kernel-above-peak",
        subject("kernel", run={"kernels": ({"time_s": 1.0, "hbm_bytes": 4e12, "work_from": "counters"},)}),
    ),
    (
        "kernel-above-peak",
        subject(
            "kernel", run={"kernels": ({"time_s": 1.0, "flop": 1.2e15, "precision": "bf16", "work_from": "counters"},)}
        ),
    ),
    # 400 TFLOP/s at an MFU of 0.2021 rest on 1979 TFLOP/s, the sparse peak of a device with 989.4 dense
    ("sparse-peak", subject("train", {"model_flop_per_s_per_device": 400e12, "mfu": 400 / 1979})),
    ("memory-impossible", subject("train", {"peak_memory_bytes": 90e9})),
    ("forward-only", subject("train", workload={"extra": {"passes": "forward"}})),
    ("not-synchronised", subject("kernel", workload={"extra": {"synchronised": False}})),
    ("requests-failed", subject("serve", {"requests_completed": 0, "requests_failed": 20})),
]


@pytest.mark.parametrize(("check", "case"), CONTRADICTIONS, ids=[f"{i}-{c}" for i, (c, _) in enumerate(CONTRADICTIONS)])
def test_a_contradiction_is_an_error(check: str, case: Subject):
    assert found(case).get(check) == "error"


DOUBTS: list[tuple[str, str, Subject]] = [
    ("requests-failed", "warning", subject("serve", {"requests_completed": 90, "requests_failed": 10})),
    ("percentiles-missing", "warning", subject("serve", {"ttft_s.mean": 1.0})),
    ("noisy", "warning", subject("decode", {"decode_time_s.mean": 1.0, "decode_time_s.std": 0.2})),
    ("mean-above-median", "info", subject("train", {"step_time_s.mean": 1.4, "step_time_s.p50": 1.0})),
    ("warm-up", "warning", subject("kernel", workload={"extra": {"warmup_iters": 1}})),
    ("warm-up", "warning", subject("kernel", workload={"extra": {"warmup_excludes_compile": False}})),
    ("steady-load", "warning", subject("serve", workload={"extra": {"input_len_std": 0.0}, "request_rate": "inf"})),
    ("accept-rate", "warning", subject("serve", workload={"extra": {"speculative_decoding": True}})),
    (
        "theoretical-flop",
        "warning",
        subject("train", workload={"extra": {"flop_basis": "theoretical", "padding_fraction": 0.1}}),
    ),
    (
        "padded-tokens",
        "warning",
        subject("train", workload={"extra": {"tokens_basis": "padded", "padding_fraction": 0.1}}),
    ),
    # shapes tell the work of an operation, of which a kernel may be a part; bytes that they imply may come from caches
    (
        "kernel-above-peak",
        "warning",
        subject(None, run={"kernels": ({"time_s": 1.0, "flop": 1.2e15, "hbm_bytes": 9e12, "work_from": "shapes"},)}),
    ),
    ("bus-bandwidth", "warning", subject("kernel", {"bus_bandwidth_bytes_per_s": 2e9})),
    # 10,000 tokens/s for one second are not 8192
    (
        "tokens-per-step",
        "warning",
        subject(
            "train", {"total_tokens_per_s": 10_000, "step_time_s": 1.0}, workload={"extra": {"tokens_per_step": 8192}}
        ),
    ),
    ("six-pt", "warning", subject("train", workload={"extra": {"flop_formula": "6PT"}, "input_len": 4096})),
]


@pytest.mark.parametrize(("check", "severity", "case"), DOUBTS, ids=[f"{i}-{d[0]}" for i, d in enumerate(DOUBTS)])
def test_a_doubt_is_no_error(check: str, severity: str, case: Subject):
    assert found(case).get(check) == severity


def test_every_check_of_the_table_was_seen_to_speak():
    spoken = {check for check, _ in CONTRADICTIONS} | {check for check, _, _ in DOUBTS}
    spoken |= {"few-samples", "few-repetitions"}  # below, since they need counts
    assert {check.id for check in CHECKS} == spoken
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert {id_ for id_, *_ in ANALYSIS_CHECKS} == {"faster-than-bound", "does-not-fit"}


def test_percentiles_of_few_observations_and_measuring_once():
    few = (Metric("ttft_s", 1.0, "p99", count=50), Metric("tpot_s", 1.0, "p99", count=5000))
    findings = {f.check: f for f in lint(subject("serve", run={"metrics": few}))}
    assert findings["few-samples"].fields == ("ttft_s.p99",)
    once = (Metric("decode_time_s", 1.0, "mean", count=1),)
    assert found(subject("decode", run={"metrics": once}))["few-repetitions"] == "warning"
    five = (Metric("decode_time_s", 1.0, "mean", count=5),)
    assert "few-repetitions" not in found(subject("decode", run={"metrics": five}))


def test_a_good_run_has_nothing_to_say():
    run = a_run(
        "serve",
        {"ttft_s.mean": 1.0, "ttft_s.p50": 0.9, "ttft_s.p99": 2.0, "tpot_s.mean": 0.5, "tpot_s.p99": 0.6,
         "duration_s": 10, "requests_per_s": 1, "requests_completed": 10, "output_tokens_per_s": 16,
         "total_tokens_per_s": 116, "output_tokens": 160, "input_tokens": 1000},
        input_len=100, output_len=16,
    )  # fmt: skip
    run = replace(run, software={"vllm": "0.11.0"})
    analysis = analyse_run(run, DEVICE, TINY)
    assert lint(Subject(run, DEVICE, TINY, analysis=analysis)) == ()


def test_what_is_missing_is_one_finding_that_follows_the_links():
    bare = ParsedRun("bare", (Metric("ttft_s", 1.0, "p99", count=2000),), RunWorkload(mode="serve"))
    reader = Finding("missing-facts", "info", "Not in the file: hardware, p95.", ("hardware", "ttft_s.p95", "topology"))
    bare = replace(bare, findings=(reader,))
    (first,) = lint(Subject(bare))
    assert (first.check, first.severity) == ("missing-facts", "warning")
    assert first.fields == ("hardware", "model", "parallel", "dtypes", "version", "topology")
    assert "device, model, parallel layout and precision, so its distance from the bound" in first.message
    assert "software version and topology, so the run cannot be repeated" in first.message
    stated = {"parallel": {"tp": 2}, "dtypes": {"weights": "bf16"}}
    (later,) = lint(Subject(bare, DEVICE, TINY, stated, {"version": "0.11.0"}))
    assert (later.severity, later.fields) == ("info", ("topology",))


def test_narrow_weights_ask_for_a_quality_result():
    s = subject("decode", workload={"dtypes": {}, "weight_bytes": 4.5e9, "parameters": 8e9})
    assert "quality" in {fact.key for fact in missing(s)}
    assert "quality" not in {fact.key for fact in missing(replace(s, facts={"quality": "MMLU 68"}))}
    wide = subject("decode", workload={"dtypes": {}, "weight_bytes": 16.2e9, "parameters": 8e9})
    assert "quality" not in {fact.key for fact in missing(wide)}


def test_what_the_table_checks_itself_replaces_the_readers_word():
    reader = (Finding("some-failed", "warning", "10 failed"), Finding("left-out", "info", "prompts"))
    case = subject("serve", {"requests_completed": 90, "requests_failed": 10}, run={"findings": reader})
    checks = [finding.check for finding in lint(case)]
    assert "some-failed" not in checks
    assert "left-out" in checks
    assert checks.index("requests-failed") < checks.index("left-out")
    assert [severity for severity, _, _ in grouped(lint(case))] == ["warning", "info"]


def test_several_devices_may_use_more_memory_than_one():
    assert "memory-impossible" not in found(
        subject("train", {"peak_memory_bytes": 90e9}, stated={"parallel": {"tp": 2}})
    )


def test_a_fact_has_one_place_to_be_added():
    assert len({fact.key for fact in FACTS}) == len(FACTS)
    assert all(fact.form == "facts" for fact in STATABLE)
    assert all(fact.stops and fact.rule.startswith("BL-") for fact in FACTS)
