"""vLLM's latency and throughput files, and the side file of these and of serving runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.registry import IMPORTERS, parse_upload

from .fixture_files import checks, values

LATENCY: dict[str, Any] = {
    "avg_latency": 1.5,
    "std_latency": 0.5,
    "latencies": [1.0, 2.0, 1.5, 1.5],
    "percentiles": {"10": 1.15, "25": 1.375, "50": 1.5, "75": 1.625, "90": 1.85, "99": 1.985},
}
THROUGHPUT: dict[str, Any] = {
    "elapsed_time": 10.0,
    "num_requests": 100,
    "total_num_tokens": 36_000,
    "requests_per_second": 10.0,
    "tokens_per_second": 3600.0,
}
ARGS: dict[str, Any] = {
    "model": "/home/joe/models/Llama-3.1-8B-Instruct",
    "batch_size": 8,
    "input_len": 32,
    "output_len": 128,
    "dtype": "bfloat16",
    "quantization": "fp8",
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 1,
    "enable_expert_parallel": False,
    "enforce_eager": True,
    "hf_token": "hf_abcdefghijklmnop",
    "output_json": "/home/joe/out.json",
}


def side(metrics: dict[str, list[float]], extra: dict[str, Any], args: dict[str, Any] | None = None) -> list[Any]:
    return [
        {
            "benchmark": {"name": "vLLM benchmark", "extra_info": {"args": ARGS | (args or {})}},
            "model": {"name": ARGS["model"]},
            "metric": {"name": name, "benchmark_values": found, "extra_info": extra},
        }
        for name, found in metrics.items()
    ]


LATENCY_SIDE = side({"latency": LATENCY["latencies"]}, {k: v for k, v in LATENCY.items() if k != "latencies"})


def read(document: object) -> ParsedUpload:
    return parse_upload(json.dumps(document).encode())


def only(document: object) -> ParsedRun:
    (run,) = read(document).runs
    return run


def test_none_of_these_was_tried_on_a_real_file() -> None:
    untried = {i.id for i in IMPORTERS if not i.tried_on_real_file}
    assert {"vllm-bench-latency", "vllm-bench-throughput", "vllm-pytorch-side-file", "inferencex-agg"} <= untried


def test_latency_keeps_what_the_file_says_and_adds_the_missing_percentiles() -> None:
    run = only(LATENCY)
    assert run.workload.mode == "latency"
    assert run.samples["latency_s"] == (1.0, 2.0, 1.5, 1.5)
    found = values(run)
    assert found["latency_s.mean"] == 1.5
    assert found["latency_s.p99"] == 1.985
    assert found["latency_s.p95"] == pytest.approx(1.925)
    assert found["latency_s.max"] == 2.0
    assert {m.key: m.pointer for m in run.metrics}["latency_s.p99"] == "/percentiles/99"
    assert all(m.count == 4 for m in run.metrics)
    assert run.workload.extra["percentiles"] == {"latency_s.p10": 1.15, "latency_s.p25": 1.375}


def test_latency_survives_odd_percentiles_and_infinite_values() -> None:
    text = json.dumps(LATENCY | {"percentiles": {"p50": 1.5, "-3": 1, "x": 2, "50%": 9, "75": "NaN"}})
    run = parse_upload(text.replace("2.0, 1.5, 1.5]", "Infinity, null, -1]").encode()).runs[0]
    assert values(run)["latency_s.p50"] == 1.5
    assert run.samples["latency_s"] == (1.0,)


def test_one_iteration_has_no_spread() -> None:
    run = only({"avg_latency": 2.0, "std_latency": 0.0, "latencies": [2.0], "percentiles": {"50": 2.0}})
    assert "latency_s.std" not in values(run)


def test_throughput_counts_prompt_and_output_tokens_together() -> None:
    run = only(THROUGHPUT)
    assert values(run) == {
        "requests_completed": 100,
        "duration_s": 10.0,
        "requests_per_s": 10.0,
        "total_tokens_per_s": 3600.0,
    }
    assert run.workload.request_rate == "inf"
    assert run.workload.extra["also"] == {"Tokens in all": 36_000}
    assert checks(run) == {"missing-facts"}
    newer = only(
        THROUGHPUT | {"total_input_tokens": 32_000, "total_output_tokens": 4000, "output_tokens_per_second": 400}
    )
    assert values(newer)["output_tokens_per_s"] == 400
    assert newer.workload.output_len == 40


def test_throughput_that_contradicts_its_counts_is_flagged() -> None:
    assert "rate-mismatch" in checks(only(THROUGHPUT | {"tokens_per_second": 360.0}))
    assert "all-failed" in checks(only(THROUGHPUT | {"num_requests": 0, "requests_per_second": 0}))


def test_the_side_file_adds_model_layout_precision_and_work() -> None:
    run = only(LATENCY_SIDE)
    assert run.name == "Llama-3.1-8B-Instruct, batch 8"
    assert run.model_hint == "Llama-3.1-8B-Instruct"
    assert run.parallel == {"tp": 2, "pp": 1}
    assert run.workload.dtypes == {"weights": "fp8", "activations": "fp8"}
    assert (run.workload.batch, run.workload.input_len, run.workload.output_len) == (8, 32, 128)
    assert run.software["launch_mode"] == "eager"
    assert values(run) == values(only(LATENCY))
    pointers = {m.key: m.pointer for m in run.metrics}
    assert pointers["latency_s.mean"] == "/0/metric/extra_info/avg_latency"
    assert pointers["latency_s.max"] == "/0/metric/benchmark_values"
    missing = next(f for f in run.findings if f.check == "missing-facts")
    assert missing.fields == ("hardware",)
    kept = repr(run)
    assert "joe" not in kept
    assert "hf_abc" not in kept
    assert "left-out" in checks(run)


def test_the_side_file_of_a_throughput_run() -> None:
    extra = {k: THROUGHPUT[k] for k in ("elapsed_time", "num_requests", "total_num_tokens")}
    run = only(side({"requests_per_second": [10.0], "tokens_per_second": [3600.0]}, extra))
    assert values(run) == values(only(THROUGHPUT))
    assert {m.key: m.pointer for m in run.metrics}["total_tokens_per_s"] == "/1/metric/benchmark_values/0"


def test_the_side_file_of_a_serving_run() -> None:
    extra = {
        "completed": 8,
        "duration": 2.0,
        "request_throughput": 4.0,
        "output_throughput": 64.0,
        "request_rate": "inf",
    }
    run = only(side({"mean_ttft_ms": [20.0], "p99_ttft_ms": [30.0], "mean_tpot_ms": [5.0]}, extra))
    assert run.workload.mode == "serve"
    assert values(run)["ttft_s.p99"] == pytest.approx(0.03)
    assert values(run)["output_tokens_per_s"] == 64.0
    assert run.workload.request_rate == "inf"


def test_appended_runs_of_the_side_file_are_several_runs() -> None:
    other = [*side({"latency": [3.0]}, {"avg_latency": 3.0, "percentiles": {}}, {"batch_size": 16})]
    runs = read([*LATENCY_SIDE, *other, *LATENCY_SIDE]).runs
    assert [run.workload.batch for run in runs] == [8, 16, 8]
    assert [run.series["batch"] for run in runs] == [8, 16, 8]


@pytest.mark.parametrize(
    "record",
    [
        {"benchmark": {}, "metric": {"benchmark_values": 3}},
        {"benchmark": {"extra_info": []}, "metric": {"name": "latency", "benchmark_values": "x"}, "model": []},
    ],
)
def test_a_side_file_without_a_known_metric_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(UnreadableUpload) as caught:
        read([record])
    assert caught.value.reason == "invalid"
    assert caught.value.hint
