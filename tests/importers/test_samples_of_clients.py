"""Files of serving clients other than vLLM's and SGLang's import with the figures that were read off them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.base import ParsedUpload

from .fixture_files import UPLOADS, upload, values

EXPECTED: dict[str, dict[str, dict[str, Any]]] = json.loads((UPLOADS / "expected.json").read_text())
SCALE = {"ms": 1e-3, "ns": 1e-9, "MB": 1e6}

OWN_TPOT = "GuideLLM's time per output token, mean (ms)"
PREFILLED = "Prompts prefilled a second"

METRIC_OF: Mapping[str, Mapping[str, str]] = {
    "aiperf": {
        "request_throughput": "requests_per_s",
        "request_count": "requests_completed",
        "output_token_throughput": "output_tokens_per_s",
        "ttft_mean": "ttft_s.mean",
        "ttft_p99": "ttft_s.p99",
        "itl_mean": "tpot_s.mean",
        "itl_p99": "tpot_s.p99",
        "request_latency_p95": "e2e_latency_s.p95",
    },
    "aiperf-records": {"records": "requests_completed"},
    "genai-perf": {
        "Time To First Token (ms)": "ttft_s.mean",
        "Inter Token Latency (ms)": "tpot_s.mean",
        "Request Latency (ms)": "e2e_latency_s.mean",
        "Output Token Throughput (per sec)": "output_tokens_per_s",
        "Request Throughput (per sec)": "requests_per_s",
        "Request Count (count)": "requests_completed",
    },
    "genai-perf-table": {
        "Time to first token (ms)": "ttft_s.mean",
        "Inter token latency (ms)": "tpot_s.mean",
        "Request latency (ms)": "e2e_latency_s.mean",
        "Output token throughput (per sec)": "output_tokens_per_s",
        "Request throughput (per sec)": "requests_per_s",
    },
    "guidellm": {
        "successful": "requests_completed",
        "requests_per_second": "requests_per_s",
        "output_tokens_per_second": "output_tokens_per_s",
        "ttft_mean": "ttft_s.mean",
        "ttft_p99": "ttft_s.p99",
        "itl_mean": "tpot_s.mean",
        "request_latency_mean": "e2e_latency_s.mean",
    },
    "inferencex-result": {
        "duration": "duration_s",
        "completed": "requests_completed",
        "output_throughput": "output_tokens_per_s",
        "input_throughput": "input_tokens_per_s",
        "ttft_median": "ttft_s.p50",
        "ttft_p99": "ttft_s.p99",
        "tpot_median": "tpot_s.p50",
        "e2el_p99": "e2e_latency_s.p99",
    },
    "mlperf-loadgen-summary": {
        "Completed samples per second": "requests_per_s",
        "Samples per second": "requests_per_s",
        "Completed tokens per second": "output_tokens_per_s",
        "Tokens per second": "output_tokens_per_s",
        "99.00 percentile first token latency (ns)": "ttft_s.p99",
        "99.00 percentile time to output token (ns)": "tpot_s.p99",
        "99.00 percentile latency (ns)": "e2e_latency_s.p99",
    },
    "optimum-benchmark": {
        "generate.latency(s)": "latency_s",
        "generate.throughput(tokens/s)": "output_tokens_per_s",
        "generate.peak_memory(MB)": "peak_memory_bytes",
        "forward.peak_memory(MB)": "peak_memory_bytes",
        "forward.latency(s)": "prefill_time_s",
        "forward.latency": "latency_s",
        "forward.throughput": "samples_per_s",
        "forward.peak_memory": "peak_memory_bytes",
    },
    "serving-console": {
        "completed": "requests_completed",
        "duration": "duration_s",
        "request_throughput": "requests_per_s",
        "output_throughput": "output_tokens_per_s",
        "total_token_throughput": "total_tokens_per_s",
        "ttft_mean": "ttft_s.mean",
        "ttft_p99": "ttft_s.p99",
        "tpot_mean": "tpot_s.mean",
        "itl_p99": "itl_s.p99",
    },
    "sglang-bench-one-batch": {
        "prefill_latency": "prefill_time_s",
        "prefill_throughput": "prefill_tokens_per_s",
        "median_decode_latency": "tpot_s.p50",
        "median_decode_throughput": "decode_tokens_per_s.p50",
        "total_latency": "latency_s",
        "latency": "latency_s",
        "overall_throughput": "total_tokens_per_s",
        "output_throughput_reported": "decode_tokens_per_s",
    },
}
"""Figures that are a metric of the first run."""

OTHERWISE: Mapping[tuple[str, str], Callable[[ParsedUpload, ParsedRun], object]] = {
    ("aiperf-records", "first_ttft"): lambda _, run: run.samples["ttft_s"][0],
    ("aiperf-records", "first_request_latency"): lambda _, run: run.samples["e2e_latency_s"][0],
    ("aiperf-records", "first_osl"): lambda _, run: run.samples["output_tokens"][0],
    # The figure that was read off is the upper one of the two middle values.
    ("aiperf-records", "p50_ttft_over_file"): lambda _, run: sorted(run.samples["ttft_s"])[5],
    ("genai-perf", "Output Sequence Length (tokens)"): lambda _, run: run.workload.output_len,
    ("genai-perf", "Input Sequence Length (tokens)"): lambda _, run: run.workload.input_len,
    ("genai-perf-table", "Output sequence length"): lambda _, run: run.workload.output_len,
    ("genai-perf-table", "Input sequence length"): lambda _, run: run.workload.input_len,
    ("guidellm", "benchmarks"): lambda found, _: len(found.runs),
    # Its own time per output token is not TPOT: it is shown apart, in milliseconds.
    ("guidellm", "tpot_mean"): lambda _, run: run.workload.extra["also"][OWN_TPOT] / 1e3,
    ("serving-console", "records"): lambda found, _: len(found.runs),
    ("optimum-benchmark", "rows"): lambda found, _: len(found.runs),
    ("optimum-benchmark", "experiment"): lambda _, run: run.workload.extra["tags"]["experiment"],
    ("optimum-benchmark", "forward.throughput(samples/s)"): lambda _, run: run.workload.extra["also"][PREFILLED],
    ("mlperf-loadgen-summary", "scenario"): lambda _, run: run.workload.extra["also"]["Scenario"],
    ("mlperf-loadgen-summary", "result"): lambda _, run: run.workload.extra["also"]["Result"],
}
"""Figures that are something else."""


def unit_of(name: str, unit: str) -> str:
    """The unit of a figure; for printed tables it stands in the label."""
    label = re.search(r"\((ms)\)", name)
    return label[1] if label else re.split(r"[ (]", unit)[0]


CASES = [
    (file, name, figure["value"], unit_of(name, figure["unit"]))
    for file, figures in EXPECTED.items()
    for name, figure in figures.items()
    if file.split("/")[0] in METRIC_OF
]


@pytest.mark.parametrize(("file", "name", "value", "unit"), CASES)
def test_file_has_the_figures_that_were_read_off_it(file: str, name: str, value: Any, unit: str) -> None:
    found = upload(file)
    kind = file.split("/")[0]
    assert found.format == kind
    other = OTHERWISE.get((kind, name))
    if other is not None:
        told = other(found, found.runs[0])
        assert told == (pytest.approx(value * SCALE.get(unit, 1.0), rel=1e-12) if isinstance(value, float) else value)
        return
    key = METRIC_OF[kind][name]
    assert values(found.runs[0])[key] == pytest.approx(value * SCALE.get(unit, 1.0), rel=1e-12)


def test_every_format_here_has_real_files() -> None:
    assert {file.split("/")[0] for file, *_ in CASES} == set(METRIC_OF)
