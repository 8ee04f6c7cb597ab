"""Lengths of single requests in serving results: which are kept, what is cut, and what is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.registry import parse_upload
from app.importers.request_lengths import MOST_KEPT

from .fixture_files import upload

SUMMARY = {
    "completed": 3, "duration": 2.0, "request_throughput": 1.5, "output_throughput": 3.0, "total_input_tokens": 60,
    "total_output_tokens": 6, "mean_ttft_ms": 10.0, "median_ttft_ms": 10.0, "p99_ttft_ms": 11.0,
}  # fmt: skip


def read(tool: str, **fields: Any) -> ParsedRun:
    only = {"total_output_tokens_retokenized": 6} if tool == "sglang-bench-serving" else {}
    found = parse_upload(json.dumps(SUMMARY | only | fields).encode(), "result.json")
    assert found.format == tool
    return found.runs[0]


def checks(run: ParsedRun) -> set[str]:
    return {finding.check for finding in run.findings if finding.check.startswith("lengths")}


@pytest.mark.parametrize("tool", ["vllm-bench-serve", "sglang-bench-serving"])
def test_lengths_of_requests_that_did_not_fail(tool: str) -> None:
    """The clients write one entry a request; a failed one has an error text and is no answer."""
    run = read(tool, input_lens=[10, 20, 30, 40], output_lens=[1, 2, 3, 0], errors=["", "", "", "timeout"])
    assert run.samples == {"input_tokens": (10.0, 20.0, 30.0), "output_tokens": (1.0, 2.0, 3.0)}
    assert run.workload.extra["request_lengths"]["input_tokens"]["mean"] == 20
    assert not checks(run)


def test_what_is_no_count_leaves_with_its_answer() -> None:
    run = read("vllm-bench-serve", input_lens=[10, "20", 30, -1, 50.5], output_lens=[1, 2, None, 4, 5])
    assert run.samples == {"input_tokens": (10.0,), "output_tokens": (1.0,)}
    assert checks(run) == {"lengths-unread"}


def test_lists_of_other_lengths_are_not_paired() -> None:
    run = read("vllm-bench-serve", input_lens=[10, 20], output_lens=[1, 2, 3])
    assert run.samples == {"input_tokens": (10.0, 20.0), "output_tokens": (1.0, 2.0, 3.0)}
    assert checks(run) == {"lengths-apart"}


def test_long_lists_are_cut_evenly_and_said() -> None:
    """Of three times as many requests every third is kept, the middle one; the summary is of all."""
    count = 3 * MOST_KEPT
    run = read("sglang-bench-serving", input_lens=list(range(1, count + 1)), output_lens=[2] * count)
    assert len(run.samples["input_tokens"]) == MOST_KEPT
    assert run.samples["input_tokens"][:3] == (2.0, 5.0, 8.0)
    assert run.workload.extra["request_lengths"]["input_tokens"] == {
        "count": count,
        "mean": (count + 1) / 2,
        "min": 1,
        "p50": (count + 1) / 2,
        "p95": pytest.approx(1 + 0.95 * (count - 1)),
        "p99": pytest.approx(1 + 0.99 * (count - 1)),
        "max": count,
    }
    message = next(finding.message for finding in run.findings if finding.check == "lengths-cut")
    assert "12,288" in message
    assert "4,096" in message


@pytest.mark.parametrize("broken", [{}, "text", [[1], {}, True, 1e400], [float("nan")] * 3, [10**400]])
def test_hostile_lists_do_no_harm(broken: object) -> None:
    assert read("vllm-bench-serve", input_lens=broken, output_lens=broken).samples == {}


def test_the_collected_file_has_fifty_equal_requests() -> None:
    """50 prompts of 30,000 tokens with answers of 100, as its totals of 1,500,000 and 5,000 say."""
    run = upload("vllm-bench-serve/4.json").runs[0]
    assert run.samples["input_tokens"] == (30000.0,) * 50
    assert run.samples["output_tokens"] == (100.0,) * 50
