"""InferenceX: seconds throughout, which throughput of a device, rates of a user, layouts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.registry import parse_upload

from .fixture_files import checks, data, values

AGGREGATE: dict[str, Any] = {
    "hw": "h200",
    "conc": 64,
    "image": "registry.example/vllm:latest",
    "model": "deepseek-ai/DeepSeek-R1-0528",
    "infmax_model_prefix": "dsr1",
    "framework": "sglang",
    "precision": "fp8",
    "spec_decoding": "none",
    "disagg": False,
    "isl": 1024,
    "osl": 8192,
    "is_multinode": False,
    "tp": 8,
    "ep": 1,
    "dp_attention": "false",
    "tput_per_gpu": 500.0,
    "output_tput_per_gpu": 440.0,
    "input_tput_per_gpu": 60.0,
    "mean_ttft": 0.9,
    "median_ttft": 0.8,
    "p99_ttft": 4.0,
    "mean_tpot": 0.02,
    "median_tpot": 0.019,
    "p99_tpot": 0.025,
    "std_tpot": 0.002,
    "mean_intvty": 50.0,
    "median_intvty": 52.6,
    "p99_intvty": 40.0,
    "std_intvty": 500.0,
    "median_e2el": 150.0,
    "p90_e2el": 170.0,
}


def read(document: object) -> ParsedRun:
    (run,) = parse_upload(json.dumps(document).encode()).runs
    return run


def test_an_aggregate_is_in_seconds_and_a_device() -> None:
    run = read(AGGREGATE)
    found = values(run)
    assert found["ttft_s.p99"] == 4.0
    assert found["tpot_s.p50"] == 0.019
    assert found["tokens_per_s_per_device"] == 500.0
    assert found["output_tokens_per_s_per_device"] == 440.0
    assert found["output_tokens_per_s_per_user.p50"] == 52.6
    assert not {key for key in found if key.startswith("output_tokens_per_s_per_user") and key.endswith(("p99", "std"))}
    assert run.name == "DeepSeek-R1-0528, h200, 1024 in, 8192 out, 64 at once"
    assert found["output_tokens_per_s"] == 440.0 * 8
    assert found["total_tokens_per_s"] == 500.0 * 8
    assert run.hardware_hint == "H200 SXM (h200)"
    assert read(AGGREGATE | {"hw": "mi355x-amd"}).hardware_hint == "mi355x"
    fork = {key: value for key, value in AGGREGATE.items() if key != "hw"} | {"device": "mi300x", "disagg": "false"}
    assert read(fork).hardware_hint == "mi300x"
    assert read(fork).workload.extra["server"]["disagg"] is False
    assert run.parallel == {"tp": 8, "ep": 1}
    assert run.workload.dtypes == {"weights": "fp8"}
    assert run.software["engine"] == "sglang"
    assert run.workload.extra["also"]["Devices"] == 8


def test_a_list_of_aggregates_is_a_sweep() -> None:
    runs = parse_upload(json.dumps([AGGREGATE | {"conc": c} for c in (4, 16, 64)]).encode()).runs
    assert [run.series for run in runs] == [{"concurrency": c} for c in (4.0, 16.0, 64.0)]


def test_separate_prefill_and_decode() -> None:
    several = {key: value for key, value in AGGREGATE.items() if key not in ("tp", "ep", "dp_attention")}
    run = read(
        several
        | {
            "is_multinode": True,
            "disagg": True,
            "prefill_tp": 4,
            "prefill_ep": 4,
            "decode_tp": 8,
            "decode_ep": 8,
            "num_prefill_gpu": 8,
            "num_decode_gpu": 24,
        }
    )
    assert run.parallel == {"tp": 8, "ep": 8}
    assert "disaggregated" in checks(run)
    assert run.workload.extra["also"]["Devices"] == 32
    assert "output_tokens_per_s" not in values(run)


def test_numbers_under_metrics_keep_their_pointer() -> None:
    labels = {k: v for k, v in AGGREGATE.items() if not isinstance(v, float)}
    run = read(labels | {"metrics": {k: v for k, v in AGGREGATE.items() if isinstance(v, float)}, "error": None})
    assert values(run) == values(read(AGGREGATE))
    assert {m.key: m.pointer for m in run.metrics}["ttft_s.p99"] == "/metrics/p99_ttft"


def test_the_result_in_seconds_is_never_read_as_milliseconds() -> None:
    document = json.loads(data("inferencex-result/1.json"))
    found = parse_upload(json.dumps(document | {"p99_ttft_ms": 3.0}).encode())
    assert found.format == "inferencex-result"
    assert values(found.runs[0])["ttft_s.p50"] == pytest.approx(19.096958566457033)
    assert "unit-doubtful" in checks(read(document | {"median_tpot": 750.8, "median_e2el": 114346.3}))


def test_failures_and_zeros_are_not_measurements() -> None:
    document = json.loads(data("inferencex-result/1.json"))
    assert values(read(document | {"completed": 600}))["requests_failed"] == 40
    none = read(document | {"completed": 0, "median_ttft": 0.0, "request_throughput": 0.0})
    assert "all-failed" in checks(none)
    assert "ttft_s.p50" not in values(none)
