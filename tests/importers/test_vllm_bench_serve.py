"""Versions and quirks of vLLM's serving client that the collected files do not all show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import Finding, ParsedRun
from app.importers.base import ParsedUpload
from app.importers.registry import parse_upload

from .fixture_files import checks, upload, values

PLAIN: dict[str, Any] = {
    "date": "20260102-030405",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 2000,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "duration": 100.0,
    "completed": 2000,
    "failed": 0,
    "total_input_tokens": 2_000_000,
    "total_output_tokens": 400_000,
    "request_throughput": 20.0,
    "output_throughput": 4000.0,
    "total_token_throughput": 24000.0,
    "mean_ttft_ms": 120.0,
    "median_ttft_ms": 100.0,
    "std_ttft_ms": 30.0,
    "p99_ttft_ms": 300.0,
    "mean_tpot_ms": 8.0,
    "median_tpot_ms": 7.5,
    "std_tpot_ms": 1.0,
    "p99_tpot_ms": 12.0,
    "mean_itl_ms": 8.0,
    "median_itl_ms": 7.0,
    "std_itl_ms": 2.0,
    "p99_itl_ms": 20.0,
}


def read(**changes: Any) -> ParsedUpload:
    fields = {key: value for key, value in (PLAIN | changes).items() if value is not ...}
    return parse_upload(json.dumps(fields).encode())


def run_of(**changes: Any) -> ParsedRun:
    return read(**changes).runs[0]


def finding(run: ParsedRun, check: str) -> Finding:
    return next(f for f in run.findings if f.check == check)


def test_plain_file_is_in_si_units_and_has_one_note() -> None:
    run = run_of()
    got = values(run)
    assert got["ttft_s.mean"] == pytest.approx(0.120)
    assert got["ttft_s.p50"] == pytest.approx(0.100)
    assert got["ttft_s.p99"] == pytest.approx(0.300)
    assert got["tpot_s.mean"] == pytest.approx(0.008)
    assert got["output_tokens_per_s"] == 4000.0
    assert run.workload.mode == "serve"
    assert run.workload.concurrency == 16
    assert run.workload.request_rate == "inf"
    assert run.workload.input_len == 1000
    assert run.workload.output_len == 200
    assert run.model_hint == "meta-llama/Llama-3.1-8B-Instruct"
    assert run.measured_at == "2026-01-02T03:04:05"
    assert checks(run) == {"missing-facts"}
    assert {"hardware", "parallel", "dtypes", "ttft_s.p95"} <= set(finding(run, "missing-facts").fields)


def test_a_metric_keeps_where_it_stood_and_what_was_written() -> None:
    metric = next(m for m in run_of().metrics if m.key == "ttft_s.p99")
    assert (metric.pointer, metric.raw, metric.raw_unit, metric.count) == ("/p99_ttft_ms", "300.0", "ms", 2000)


def test_percentiles_of_any_list_are_read_by_pattern() -> None:
    run = run_of(
        **{
            "p50_ttft_ms": 101.0,
            "p90_ttft_ms": 200.0,
            "p95_ttft_ms": 250.0,
            "p99.9_ttft_ms": 400.0,
            "p25_ttft_ms": 80.0,
        }
    )
    got = values(run)
    assert got["ttft_s.p50"] == pytest.approx(0.100)  # the median was there first
    assert got["ttft_s.p90"] == pytest.approx(0.200)
    assert got["ttft_s.p95"] == pytest.approx(0.250)
    assert got["ttft_s.p999"] == pytest.approx(0.400)
    assert run.workload.extra["percentiles"] == {"ttft_s.p25": pytest.approx(0.080)}


def test_p95_is_never_made_up() -> None:
    assert not any(metric.stat in ("p90", "p95") for metric in run_of().metrics)


@pytest.mark.parametrize("key", ["request_goodput", "request_goodput:"])
def test_goodput_under_both_spellings(key: str) -> None:
    assert values(run_of(**{key: 12.5}))["goodput_requests_per_s"] == 12.5


def test_unknown_keys_become_tags_and_a_sweep_is_charted_by_them() -> None:
    lines = [PLAIN | {"max_num_seqs": n, "note": "x"} for n in (4, 8)]
    found = parse_upload("\n".join(json.dumps(line) for line in lines).encode())
    assert [run.workload.extra["tags"]["max_num_seqs"] for run in found.runs] == [4, 8]
    assert [run.series for run in found.runs] == [{"max_num_seqs": 4.0}, {"max_num_seqs": 8.0}]


def test_metadata_names_layout_hardware_and_version() -> None:
    run = run_of(tensor_parallel_size="8", pp=2, gpu="H200", version="0.11.0", dtype="bfloat16")
    assert run.parallel == {"tp": 8, "pp": 2}
    assert run.hardware_hint == "H200"
    assert run.software["version"] == "0.11.0"
    assert set(finding(run, "missing-facts").fields) == {"ttft_s.p95", "tpot_s.p95", "itl_s.p95"}


def test_a_list_of_results_points_into_the_list() -> None:
    found = parse_upload(json.dumps([PLAIN, PLAIN | {"mean_ttft_ms": 60.0}]).encode())
    assert len(found.runs) == 2
    assert next(m for m in found.runs[1].metrics if m.key == "ttft_s.mean").pointer == "/1/mean_ttft_ms"


def test_pretty_printed_results_one_after_another() -> None:
    text = json.dumps(PLAIN, indent=2) + "\n" + json.dumps(PLAIN | {"completed": 1999}, indent=2)
    assert [run.value("requests_completed") for run in parse_upload(text.encode()).runs] == [2000, 1999]


def test_nothing_is_measured_when_all_requests_failed() -> None:
    zeros = {key: 0.0 for key in PLAIN if key.endswith(("_ms", "throughput"))}
    run = run_of(completed=0, failed=2000, total_output_tokens=0, total_input_tokens=0, **zeros)
    assert finding(run, "all-failed").severity == "error"
    assert set(values(run)) <= {
        "requests_completed", "requests_failed", "duration_s", "input_tokens", "output_tokens", "concurrency",
    }  # fmt: skip
    assert run.workload.input_len is None


def test_some_failures_are_said() -> None:
    run = run_of(completed=1900, failed=100, request_throughput=19.0)
    assert "100 of 2000" in finding(run, "some-failed").message


def test_failures_of_an_old_client_follow_from_the_prompts_asked() -> None:
    run = run_of(completed=1900, failed=..., request_throughput=19.0)
    assert run.value("requests_failed") == 100


def test_nan_is_missing_with_a_note_and_infinity_a_label() -> None:
    text = json.dumps(PLAIN | {"mean_tpot_ms": float("nan"), "p99_tpot_ms": float("inf"), "request_rate": float("inf")})
    assert "NaN" in text
    run = parse_upload(text.encode()).runs[0]
    assert run.value("tpot_s", "mean") is None
    assert run.value("tpot_s", "p99") is None
    assert run.value("tpot_s", "p50") == pytest.approx(0.0075)
    assert set(finding(run, "non-finite").fields) == {"mean_tpot_ms", "p99_tpot_ms"}
    assert run.workload.request_rate == "inf"


def test_non_finite_words_and_overflowing_literals_are_missing() -> None:
    text = json.dumps(PLAIN | {"mean_ttft_ms": "nan", "duration": 0}).replace(
        '"p99_ttft_ms": 300.0', '"p99_ttft_ms": 1e999'
    )
    run = parse_upload(text.encode()).runs[0]
    assert set(finding(run, "non-finite").fields) == {"mean_ttft_ms", "p99_ttft_ms"}


@pytest.mark.parametrize("wrong", [[1], {"a": 1}, True, "fast", ""])
def test_a_value_of_the_wrong_kind_is_missing_with_a_note(wrong: object) -> None:
    run = run_of(mean_ttft_ms=wrong)
    assert run.value("ttft_s", "mean") is None
    assert finding(run, "wrong-type").fields == ("mean_ttft_ms",)


def test_one_token_outputs_have_no_token_times() -> None:
    zeros = {f"{s}_{m}_ms": 0.0 for s in ("mean", "median", "std", "p99") for m in ("tpot", "itl")}
    run = run_of(total_output_tokens=2000, output_throughput=20.0, total_token_throughput=20020.0, **zeros)
    assert not any(metric.name in ("tpot_s", "itl_s") for metric in run.metrics)
    assert set(finding(run, "not-observed").fields) == {"tpot_s", "itl_s"}


def test_contradictions_are_flagged_and_kept() -> None:
    run = run_of(p99_ttft_ms=50.0)
    assert finding(run, "percentiles-disordered").severity == "error"
    assert run.value("ttft_s", "p99") == pytest.approx(0.050)
    assert finding(run_of(mean_tpot_ms=-3.0), "negative-latency").fields == ("tpot_s.mean",)
    assert "percentiles-disordered" in checks(run_of(min_ttft_ms=130.0))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"request_throughput": 21.0}, "requests_per_s"),
        ({"output_throughput": 4100.0}, "output_tokens_per_s"),
        ({"total_token_throughput": 4000.0}, "total_tokens_per_s"),
    ],
)
def test_rates_that_do_not_fit_the_counts_are_flagged(changes: dict[str, float], field: str) -> None:
    assert finding(run_of(**changes), "rate-mismatch").fields == (field,)


def test_rates_within_two_percent_are_not_flagged() -> None:
    assert "rate-mismatch" not in checks(run_of(request_throughput=20.3))


def test_few_observations_behind_a_p99() -> None:
    run = run_of(num_prompts=50, completed=50, total_output_tokens=100_000, total_input_tokens=50_000,
                 request_throughput=0.5, output_throughput=1000.0, total_token_throughput=1500.0)  # fmt: skip
    assert set(finding(run, "few-samples").fields) == {"ttft_s.p99", "tpot_s.p99"}  # 99 950 gaps are enough


def test_means_alone_lack_percentiles() -> None:
    dropped: dict[str, Any] = {key: ... for key in PLAIN if key.startswith("p99_")}
    assert finding(run_of(**dropped), "percentiles-missing").severity == "warning"


def test_detail_arrays_give_what_the_summary_lacks_and_are_dropped() -> None:
    # Two requests: 3 and 2 tokens, gaps 10+20 ms and 40 ms; a third one failed.
    run = run_of(
        completed=2, failed=1, num_prompts=3, total_input_tokens=20, total_output_tokens=5, duration=1.0,
        request_throughput=2.0, output_throughput=5.0, total_token_throughput=25.0,
        mean_ttft_ms=200.0, median_ttft_ms=200.0, p99_ttft_ms=299.0, std_ttft_ms=100.0,
        mean_tpot_ms=..., median_tpot_ms=..., std_tpot_ms=..., p99_tpot_ms=...,
        mean_itl_ms=..., median_itl_ms=..., std_itl_ms=..., p99_itl_ms=...,
        input_lens=[10, 10, 10], output_lens=[3, 2, 0], ttfts=[0.1, 0.3, 0.0],
        itls=[[0.010, 0.020], [0.040], []], errors=["", "", "connection reset"],
        generated_texts=["private one", "private two", ""],
    )  # fmt: skip
    got = values(run)
    assert got["itl_s.mean"] == pytest.approx(0.070 / 3)
    assert got["itl_s.max"] == pytest.approx(0.040)
    assert got["tpot_s.mean"] == pytest.approx((0.015 + 0.040) / 2)
    assert got["e2e_latency_s.min"] == pytest.approx(0.130)
    assert got["e2e_latency_s.max"] == pytest.approx(0.340)
    assert got["ttft_s.mean"] == pytest.approx(0.200)  # the file's own
    assert got["requests_failed"] == 1
    # of the details only the lengths of the requests that did not fail stay with the run
    assert run.samples == {"input_tokens": (10.0, 10.0), "output_tokens": (3.0, 2.0)}
    assert "private one" not in repr(run)
    assert "generated_texts" in finding(run, "left-out").fields
    assert "details-disagree" not in checks(run)


def test_detail_arrays_that_contradict_the_summary_are_flagged() -> None:
    run = run_of(ttfts=[1.0, 1.0], itls=[[0.008], [0.008]], output_lens=[2, 2], errors=["", ""])
    assert "ttft_s.mean" in finding(run, "details-disagree").fields


@pytest.mark.parametrize("broken", [None, "x", [[]], [None], [["a"]], [[1e400]], {"0": 1}, [[[1]]], [10**400]])
def test_broken_detail_arrays_do_no_harm(broken: object) -> None:
    run = run_of(ttfts=broken, itls=broken, output_lens=broken, errors=broken)
    assert run.value("ttft_s", "mean") == pytest.approx(0.120)


def test_the_collected_detail_file_agrees_with_its_own_summary() -> None:
    run = upload("vllm-bench-serve/4.json").runs[0]
    assert "details-disagree" not in checks(run)
    assert run.value("ttft_s", "max") == pytest.approx(161.68715918398811)
    assert run.model_hint == "DeepSeek-R1"  # the directories of the machine are not kept


def test_secrets_and_addresses_are_not_kept() -> None:
    run = run_of(
        api_key="sk-abcdefghijklmnop",
        header="Authorization: Bearer abc",
        server_url="http://joe:pass@10.0.0.1/v1",
        hf="hf_abcdefghijklmnop",
        username="joe",
        fine="yes",
    )
    assert run.workload.extra["tags"] == {"fine": "yes"}
    assert {"api_key", "header", "server_url", "hf", "username"} <= set(finding(run, "left-out").fields)
    assert "abcdefghijklmnop" not in repr(run)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("/home/joe/models/Llama-3.1-8B", "Llama-3.1-8B"),
        ("C:\\models\\Llama-3.1-8B", "Llama-3.1-8B"),
        ("/home/joe/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/abc123", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("./out/final", "final"),
    ],
)
def test_model_names_without_the_directories_of_a_machine(written: str, hint: str) -> None:
    assert run_of(model_id=written).model_hint == hint


def test_very_old_files_without_total_throughput() -> None:
    run = run_of(total_token_throughput=..., failed=..., input_throughput=20000.0, best_of=1)
    assert run.value("input_tokens_per_s") == 20000.0
    assert "rate-mismatch" not in checks(run)


def test_the_placeholder_for_audio_is_no_tag() -> None:
    assert "tags" not in run_of(rtfx=0.0).workload.extra


def test_html_and_control_characters_in_names_are_harmless_text() -> None:
    run = run_of(label="<script>alert(1)</script>\x00\x1b[31m\u202e", **{"ke\x07y<b>": "v\x00"})
    assert run.name.startswith("<script>")
    assert not any(ord(c) < 32 for c in run.name)
    assert "\u202e" not in run.name
    (key,) = run.workload.extra["tags"]
    assert not any(ord(c) < 32 for c in key)


def test_lone_surrogates_can_be_stored() -> None:
    text = json.dumps(PLAIN).replace('"backend": "vllm"', '"backend": "\\ud800", "\\udc00k": "x"')
    repr(parse_upload(text.encode()).runs[0]).encode("utf-8")
    run = parse_upload(text.encode()).runs[0]
    run.software["backend"].encode("utf-8")
    for key in run.workload.extra["tags"]:
        key.encode("utf-8")
