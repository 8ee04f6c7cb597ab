"""trtllm-bench reports, in the shape that the tool's source writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.registry import parse_upload

from .fixture_files import checks, values

PERCENTILES = {"p50": 20.0, "p90": 30.0, "p95": 35.0, "p99": 40.0, "minimum": 10.0, "maximum": 50.0, "average": 22.0}
REPORT: dict[str, Any] = {
    "engine": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "model_path": "/home/joe/hub/Llama",
        "engine_dir": "/home/joe/engines",
        "version": "1.2.0",
        "backend": "Pytorch",
        "dtype": "bfloat16",
        "kv_cache_dtype": "FP8",
        "quantization": "FP8",
    },
    "machine": {"name": "NVIDIA H200", "memory.total": 139.8, "clocks.mem": 3.2},
    "world_info": {
        "tp_size": 2,
        "pp_size": 1,
        "ep_size": None,
        "world_size": 2,
        "max_batch_size": 256,
        "max_num_tokens": 8192,
        "scheduling_policy": "GUARANTEED_NO_EVICT",
        "kv_cache_percentage": 0.9,
        "issue_rate": 1e15,
    },
    "request_info": {
        "num_requests": 1000,
        "avg_num_concurrent_requests": 100.5,
        "avg_input_length": 128.0,
        "avg_output_length": 64.0,
    },
    "performance": {
        "total_latency_ms": 20_000.0,
        "avg_request_latency_ms": 2000.0,
        "request_throughput_req_s": 50.0,
        "system_output_throughput_tok_s": 3200.0,
        "system_total_throughput_tok_s": 9600.0,
        "output_throughput_per_user_tok_s": 32.0,
        "output_throughput_per_gpu_tok_s": 1600.0,
        "request_latency_percentiles_ms": {key: value * 100 for key, value in PERCENTILES.items()},
    },
    "streaming_metrics": {
        "token_output_speed_tok_s": 45.0,
        "avg_ttft_ms": 22.0,
        "avg_tpot_ms": 22.0,
        "tpot_percentiles": PERCENTILES,
        "ttft_percentiles": PERCENTILES,
        "gen_tps_percentiles": {key: value + 20 for key, value in PERCENTILES.items()},
    },
    "decoding_stats": {"mode": "EAGLE", "acceptance_length_percentiles": {"average": 2.4}},
    "dataset": {"isl_stats": {}},
}


def read(**blocks: Any) -> ParsedRun:
    (run,) = parse_upload(json.dumps(REPORT | blocks).encode()).runs
    return run


def test_percentiles_without_a_suffix_are_milliseconds_too() -> None:
    run = read()
    found = values(run)
    assert found["ttft_s.p99"] == pytest.approx(0.04)
    assert found["tpot_s.mean"] == pytest.approx(0.022)
    assert found["e2e_latency_s.max"] == pytest.approx(5.0)
    assert found["duration_s"] == pytest.approx(20.0)
    assert found["output_tokens_per_s_per_device"] == 1600.0
    assert found["output_tokens_per_s_per_user.mean"] == 45.0
    assert found["accepted_tokens_per_step"] == 2.4
    pointers = {m.key: m.pointer for m in run.metrics}
    assert pointers["ttft_s.p99"] == "/streaming_metrics/ttft_percentiles/p99"


def test_what_the_report_says_of_model_machine_and_layout() -> None:
    run = read()
    assert run.name == "Llama-3.1-8B-Instruct, 128 in, 64 out, 100 at once"
    assert run.hardware_hint == "NVIDIA H200"
    assert run.parallel == {"tp": 2, "pp": 1}
    assert run.workload.dtypes == {"weights": "fp8", "activations": "fp8", "kv": "fp8"}
    assert run.software["tensorrt_llm"] == "1.2.0"
    assert "joe" not in repr(run)
    assert checks(run) == {"left-out"}


def test_older_reports_without_streaming_or_machine() -> None:
    run = read(streaming_metrics=None, machine=None, decoding_stats=None)
    assert "ttft_s.mean" not in values(run)
    missing = next(f for f in run.findings if f.check == "missing-facts")
    assert set(missing.fields) == {"hardware", "ttft_s"}


@pytest.mark.parametrize(
    "blocks",
    [
        {"streaming_metrics": {"ttft_percentiles": [], "avg_ttft_ms": "NaN", "tpot_percentiles": {"p50": "x"}}},
        {"machine": [1], "decoding_stats": 3, "world_info": {"tp_size": 1e400, "pp_size": "two"}},
        {"engine": {"model": None, "dtype": 3}, "request_info": {}, "performance": {"total_latency_ms": None}},
    ],
)
def test_odd_blocks_are_missing_values(blocks: dict[str, Any]) -> None:
    run = read(**blocks)
    json.dumps([m.value for m in run.metrics], allow_nan=False)
    assert run.name


def test_no_request_done_is_no_measurement() -> None:
    run = read(request_info={"num_requests": 0})
    assert "all-failed" in checks(run)
    assert "ttft_s.mean" not in values(run)
