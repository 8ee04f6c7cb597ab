"""vLLM's offline throughput benchmark (`vllm bench throughput --output-json`): all prompts handed over at once.

Field meanings are those of vllm-project/vllm, vllm/benchmarks/throughput.py. `tokens_per_second` counts prompt and
output tokens. Model, lengths and layout are not in the file; the side file in the PyTorch format has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields
from app.importers.reading import Content

_KEYS = frozenset({"elapsed_time", "num_requests", "requests_per_second", "tokens_per_second"})


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a result of this benchmark."""
    return fields.keys() >= _KEYS


class VllmBenchThroughput:
    id = "vllm-bench-throughput"
    title = "vLLM throughput benchmark (vllm bench throughput)"
    tried_on_real_file = False

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.95, "has elapsed_time, num_requests, requests_per_second and tokens_per_second"),
            "no elapsed_time with requests_per_second and tokens_per_second",
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like, read)


def read(record: Fields) -> ParsedRun:
    """One result as a run, without what only the command line knew."""
    completed = record.metric("requests_completed", "num_requests", raw_unit="requests")
    record.metric("duration_s", "elapsed_time", raw_unit="s")
    findings = serving.check_outcome(completed, None)
    inputs = record.metric("input_tokens", "total_input_tokens", raw_unit="tokens")
    outputs = record.metric("output_tokens", "total_output_tokens", raw_unit="tokens")
    total = record.count("total_num_tokens")
    record.ignore("requests_per_second", "tokens_per_second", "output_tokens_per_second")
    if completed != 0:
        record.metric("requests_per_s", "requests_per_second", raw_unit="req/s")
        record.metric("total_tokens_per_s", "tokens_per_second", raw_unit="tok/s")
        record.metric("output_tokens_per_s", "output_tokens_per_second", raw_unit="tok/s")
    extra: dict[str, Any] = {"also": {"Tokens in all": total} if total is not None else {}, "tags": record.unknown()}
    findings += _total_against_rate(record, total)
    findings += serving.check_rates(record)
    findings += record.findings()
    findings += serving.left_out_findings(record.left_out(()))
    if completed != 0:
        unknown = {
            "model": "model",
            "hardware": "hardware",
            "parallel": "parallel layout",
            "dtypes": "precision",
            "input_len": "prompt and output length",
        }
        if outputs is not None:
            unknown.pop("input_len")
        findings += serving.facts_finding(unknown)
    return ParsedRun(
        name=f"vLLM throughput{f' of {completed:g} requests' if completed else ''}",
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            request_rate="inf",
            input_len=serving.mean_length(inputs, completed),
            output_len=serving.mean_length(outputs, completed),
            extra={key: value for key, value in extra.items() if value},
        ),
        software={"client": "vllm bench throughput"},
        findings=tuple(findings),
    )


def _total_against_rate(record: Fields, total: float | None) -> list[Finding]:
    """All tokens over the time against the rate, where the file does not part prompt and output tokens."""
    rate, duration = record.value("total_tokens_per_s"), record.value("duration_s")
    if record.value("input_tokens") is not None or total is None or not total or rate is None or not duration:
        return []
    if abs(rate * duration - total) <= 0.02 * total:
        return []
    return [
        Finding(
            "rate-mismatch",
            "warning",
            f"total_tokens_per_s x duration_s is {rate * duration:.6g}, but {total:.6g} tokens were counted.",
            ("total_tokens_per_s",),
        )
    ]
