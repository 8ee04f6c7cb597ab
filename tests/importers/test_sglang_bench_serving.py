"""What is and is not taken from SGLang's lines, server configuration above all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload


def read(server: dict[str, Any] | None = None, **changes: Any) -> ParsedRun:
    line = json.loads(data("sglang-bench-serving/1.jsonl").split(b"\n")[0])
    line |= changes
    line["server_info"] |= server or {}
    found = parse_upload(json.dumps(line).encode())
    assert found.format == "sglang-bench-serving"
    return found.runs[0]


def test_measured_concurrency_and_server_facts() -> None:
    run = upload("sglang-bench-serving/1.jsonl").runs[0]
    assert run.name == "agg_n100_in128_out128_c8"
    assert run.model_hint == "Qwen/Qwen2.5-3B-Instruct"
    assert run.workload.concurrency == pytest.approx(7.771601081305936)
    assert run.workload.extra["max_concurrency"] == 8
    assert run.workload.request_rate == "inf"
    assert run.workload.input_len == pytest.approx(61.45)
    assert run.software["sglang"] == "0.5.5.post3"
    assert run.software["attention_backend"] == "fa3"
    assert run.parallel == {"tp": 1, "pp": 1, "dp": 1, "ep": 1}
    # 79.02 in the file; 2 301 720 tokens of 36 layers x 2 heads x 128 x K and V x 2 bytes = 36 864 bytes
    assert run.value("kv_cache_bytes") == pytest.approx(2_301_720 * 36_864, rel=1e-3)


def test_disaggregated_servers_are_said() -> None:
    run = upload("sglang-bench-serving/3.jsonl").runs[0]
    assert "disaggregated" in checks(run)
    assert run.workload.extra["server"]["prefill_servers"] == 1


def test_only_named_settings_of_the_server_are_kept() -> None:
    run = read(
        {
            "api_key": "sk-live-0123456789abcdef",
            "admin_api_key": "topsecret",
            "host": "10.1.2.3",
            "dist_init_addr": "10.1.2.3:5000",
            "tokenizer_path": "/home/joe/secret-project",
            "log_requests_format": "by joe",
            "model_path": "/home/joe/secret-project/Llama-3.1-8B",
        }
    )
    kept = repr(run)
    for word in ("0123456789abcdef", "topsecret", "10.1.2.3", "joe", "secret-project"):
        assert word not in kept
    assert run.model_hint == "Llama-3.1-8B"


def test_data_parallel_attention_shares_the_tensor_ranks() -> None:
    run = read({"tp_size": 8, "dp_size": 8, "ep_size": 8, "enable_dp_attention": True})
    assert run.parallel == {"tp": 1, "dp": 8, "pp": 1, "ep": 8}
    assert read({"tp_size": 4, "dp_size": 2}).parallel == {"tp": 4, "dp": 2, "pp": 1, "ep": 1}


@pytest.mark.parametrize(
    ("server", "dtypes"),
    [
        ({"dtype": "bfloat16"}, {"weights": "bf16", "activations": "bf16"}),
        (
            {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"},
            {"weights": "fp8", "activations": "fp8", "kv": "fp8"},
        ),
        ({"dtype": "half", "quantization": "awq"}, {"weights": "int4", "activations": "fp16"}),
        ({"dtype": "auto", "quantization": "something-new"}, {}),
    ],
)
def test_precision_is_taken_only_where_it_is_said(server: dict[str, str], dtypes: dict[str, str]) -> None:
    assert read(server).workload.dtypes == dtypes


def test_speculative_decoding_length() -> None:
    assert read(accept_length=2.7).value("accepted_tokens_per_step") == 2.7
    assert read(accept_length=-1.0).value("accepted_tokens_per_step") is None


@pytest.mark.parametrize(
    "info", [None, [], "x", 3, {"internal_states": 3}, {"internal_states": [None]}, {"prefill": [{}]}]
)
def test_a_strange_server_info_does_no_harm(info: object) -> None:
    line = json.loads(data("sglang-bench-serving/1.jsonl"))
    line["server_info"] = info
    run = parse_upload(json.dumps(line).encode()).runs[0]
    assert run.value("requests_per_s") == pytest.approx(22.909936340661435)
    assert run.parallel == {}


def test_several_lines_are_several_runs_and_a_cut_last_one_is_said() -> None:
    line = data("sglang-bench-serving/1.jsonl").strip()
    found = parse_upload(line + b"\n" + line + b"\n" + line[:5000])
    assert len(found.runs) == 2
    assert "cut-off" in checks(found)
    assert found.runs[1].metrics[0].pointer == "line 2: /completed"
