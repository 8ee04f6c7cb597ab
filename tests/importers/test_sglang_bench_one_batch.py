"""SGLang's one-batch lines: phases, zeros that mean nothing, rates that explode, repeats, cut and odd text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

SERVER: dict[str, Any] = {
    "run_name": "nightly",
    "batch_size": 16,
    "input_len": 1024,
    "output_len": 16,
    "latency": 2.0,
    "input_throughput": 16_384.0,
    "output_throughput": 256.0,
    "overall_throughput": 8320.0,
    "last_ttft": 1.0,
    "last_gen_throughput": 250.0,
    "acc_length": -1.0,
    "cache_hit_rate": None,
}


def read(line: dict[str, Any]) -> ParsedRun:
    (run,) = parse_upload(json.dumps(line).encode()).runs
    return run


def test_lines_are_runs_with_their_shape() -> None:
    first, second = upload("sglang-bench-one-batch/1.jsonl").runs
    assert first.name == "SGLang one batch, batch 32, in 256, out 32"
    assert second.series == {"input_len": 1349, "output_len": 79}
    assert first.workload.mode == "latency"
    assert first.value("ttft_s") == first.value("prefill_time_s")


def test_a_rate_over_the_rest_of_the_latency_is_flagged_and_repeats_are_kept() -> None:
    runs = upload("sglang-bench-one-batch/2.jsonl").runs
    assert len(runs) == 3
    assert runs[1].name.endswith("(repeat 2)")
    for run in runs:
        assert "implausible-rate" in checks(run)
    assert runs[0].workload.extra["also"]["Output tokens over the whole latency (tokens/s)"] == pytest.approx(11671.66)


def test_the_newer_server_line() -> None:
    run = read(SERVER)
    found = values(run)
    assert run.name == "nightly, batch 16, in 1024, out 16"
    assert found["ttft_s"] == 1.0
    assert found["prefill_tokens_per_s"] == 16_384.0
    assert found["decode_tokens_per_s"] == 256.0
    assert "accepted_tokens_per_step" not in found
    assert checks(run) == {"missing-facts"}
    assert values(read(SERVER | {"acc_length": 2.5, "cache_hit_rate": 0.25}))["accepted_tokens_per_step"] == 2.5


def test_the_oldest_server_line_divides_by_the_whole_latency() -> None:
    found = values(read(SERVER | {"output_throughput": 128.0}))
    assert found["output_tokens_per_s"] == 128.0
    assert "decode_tokens_per_s" not in found


@pytest.mark.parametrize("nothing", [0.0, None, "", float("nan"), float("inf"), "n/a", True, [1]])
def test_what_is_no_time_is_missing(nothing: object) -> None:
    line = json.loads(data("sglang-bench-one-batch/1.jsonl").split(b"\n")[0])
    run = read(line | {"median_decode_latency": nothing, "median_decode_throughput": nothing})
    assert "tpot_s.p50" not in values(run)
    assert "decode_tokens_per_s.p50" not in values(run)


def test_a_contradiction_is_said() -> None:
    assert "rate-mismatch" in checks(read(SERVER | {"overall_throughput": 832.0}))


def test_marks_line_ends_and_a_cut_line() -> None:
    whole = data("sglang-bench-one-batch/1.jsonl")
    odd = b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n")
    assert [values(r) for r in parse_upload(odd).runs] == [
        values(r) for r in upload("sglang-bench-one-batch/1.jsonl").runs
    ]
    cut = parse_upload(whole + whole[:100])
    assert len(cut.runs) == 2
    assert "cut-off" in checks(cut)
