"""vLLM's serving client (`vllm bench serve`, before 2025 `benchmark_serving.py`).

Field meanings are those of vllm-project/vllm, vllm/benchmarks/serve.py; files of 0.8 to 0.25 were seen. The file
describes the client's side only: hardware, layout and precision of the server are not in it unless the user passed
them as --metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.domain.run import ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import HARDWARE_TAGS, Fields, as_float, is_number, model_name
from app.importers.measures import word
from app.importers.precision import dtypes_of
from app.importers.reading import Content, clean
from app.importers.request_lengths import RequestLengths, request_lengths

_PARALLEL_TAGS: Mapping[str, str] = {
    "tp": "tp",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pp": "pp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "dp": "dp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "ep": "ep",
    "ep_size": "ep",
}
_VERSION_TAGS = ("version", "vllm_version", "framework", "engine", "engine_version")
_NOT_KEPT = ("generated_texts", "prompts", "input_texts")
_RATES = (
    ("request_throughput", "requests_per_s", "req/s"),
    ("output_throughput", "output_tokens_per_s", "tok/s"),
    ("input_throughput", "input_tokens_per_s", "tok/s"),
    ("total_token_throughput", "total_tokens_per_s", "tok/s"),
    ("max_output_tokens_per_s", "peak_output_tokens_per_s", "tok/s"),
)


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a result of this client (SGLang's is not; nor is its cousin in seconds)."""
    if "median_ttft" in fields or "mean_ttft" in fields or "total_output_tokens_retokenized" in fields:
        return False
    if "mean_e2e_latency_ms" in fields:
        return False
    if is_number(fields.get("request_throughput")) and any(serving.matches_statistic(key) for key in fields):
        return True
    return all(key in fields for key in ("completed", "total_input_tokens", "request_rate"))


class VllmBenchServe:
    id = "vllm-bench-serve"
    title = "vLLM serving benchmark (vllm bench serve)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        """One object, a list of them, or one a line."""
        if content.first_record is None:
            return Sniff(0.0, "no JSON object in the file")
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.95, "has request_throughput and latency statistics in milliseconds"),
            "no request_throughput with statistics such as mean_ttft_ms",
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like, read)


def read(record: Fields) -> ParsedRun:
    """One result as a run."""
    completed = record.metric("requests_completed", "completed", raw_unit="requests")
    failed = record.metric("requests_failed", "failed", raw_unit="requests")
    asked = record.count("num_prompts")
    if failed is None:
        failed = serving.add_failures_in_details(record)
    if failed is None:
        failed = serving.add_failures_of_asked(record, asked, completed)
    record.metric("duration_s", "duration", raw_unit="s")
    inputs = record.metric("input_tokens", "total_input_tokens", raw_unit="tokens")
    outputs = record.metric("output_tokens", "total_output_tokens", raw_unit="tokens")
    nothing_done = completed == 0
    findings = serving.check_outcome(completed, failed)
    others: dict[str, float] = {}
    if nothing_done:
        # The client writes zeros for everything that it could not observe.
        record.ignore(*(key for key in record.fields if serving.matches_statistic(key)))
        record.ignore(*(key for key, _, _ in _RATES), "request_goodput", "request_goodput:", "max_concurrent_requests")
        record.ignore(*serving.DETAIL_ARRAYS)
    else:
        for key, name, unit in _RATES:
            record.metric(name, key, raw_unit=unit)
        # Old clients wrote the key with a colon in it.
        for key in ("request_goodput", "request_goodput:"):
            record.metric("goodput_requests_per_s", key, raw_unit="req/s")
        record.metric("peak_concurrency", "max_concurrent_requests", raw_unit="requests")
        if (as_float(record.fields.get("spec_decode_acceptance_length")) or 0) > 0:
            record.metric("accepted_tokens_per_step", "spec_decode_acceptance_length", raw_unit="tokens/step")
        gaps = outputs - completed if outputs is not None and completed is not None else None
        others = serving.read_statistics(
            record, {"ttft_s": completed, "tpot_s": completed, "e2e_latency_s": completed, "itl_s": gaps}
        )
        findings += serving.recompute(record)
        findings += serving.not_observed(record)
    rate = serving.request_rate(record)
    cap = record.metric("concurrency", "max_concurrency", raw_unit="requests")
    record.ignore("num_prompts", "tokenizer_id", "best_of", *_NOT_KEPT)
    if record.fields.get("rtfx") in (0, 0.0):  # audio only; zero is a placeholder
        record.ignore("rtfx")

    model = record.text("model_id")
    measured_at = local_time(record.text("date"))
    label = record.text("label")
    hardware = next((t for key in HARDWARE_TAGS if (t := _tag(record, key))), None)
    parallel = _parallel(record)
    software = {"client": "vllm bench serve"}
    for key in ("backend", "endpoint_type", *_VERSION_TAGS):
        if told := _tag(record, key):
            software[key] = told
    burstiness = record.number("burstiness")
    extra: dict[str, Any] = {"num_prompts": asked, "burstiness": burstiness, "percentiles": others}
    left_out = [*record.left_out(_NOT_KEPT), *serving.error_texts(record)]
    tags = record.unknown()
    dtypes = dtypes_of(*(word(tags.get(key)) for key in ("dtype", "quantization", "kv_cache_dtype")))
    extra |= {"tags": tags}
    extra = {key: value for key, value in extra.items() if value not in (None, {})}

    lengths = RequestLengths() if completed == 0 else request_lengths(record)
    if lengths.summary:
        extra["request_lengths"] = lengths.summary
    findings += lengths.findings
    findings += serving.check_latencies(record.metrics)
    findings += serving.check_rates(record)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(left_out)
    unknown = {"dtypes": "precision", "version": "server version"}
    if hardware is None:
        unknown = {"hardware": "hardware"} | unknown
    if not parallel:
        unknown = {"parallel": "parallel layout"} | unknown
    if "version" in software or "vllm_version" in software or "engine_version" in software:
        unknown.pop("version")
    if "weights" in dtypes or "quantization" in tags:
        unknown.pop("dtypes")
    if not nothing_done:
        findings += serving.missing_facts(record.metrics, unknown)
    shown_model = model_name(model) if model else None
    return ParsedRun(
        name=label or serving.run_name(shown_model, rate, cap),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=cap,
            request_rate=rate,
            input_len=serving.mean_length(inputs, completed),
            output_len=serving.mean_length(outputs, completed),
            dtypes=dtypes,
            extra=extra,
        ),
        model_hint=shown_model,
        hardware_hint=hardware,
        parallel=parallel,
        software=software,
        samples=lengths.samples,
        measured_at=measured_at,
        findings=tuple(findings),
    )


def _tag(record: Fields, key: str) -> str | None:
    """A label the user may have added; numbers are fine too."""
    value = record.raw(key)
    if isinstance(value, str):
        return clean(value, 200) or None
    number = as_float(value) if is_number(value) else None
    return f"{number:g}" if number is not None else None


def _parallel(record: Fields) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, degree in _PARALLEL_TAGS.items():
        value = as_float(record.fields.get(key))
        if value is not None and 1 <= value <= 100_000 and value == int(value):
            record.ignore(key)
            found.setdefault(degree, int(value))
    return found


def local_time(written: str | None) -> str | None:
    """`20250419-061438` is the client's local time; the zone is not known, so none is claimed."""
    if written is None or not re.fullmatch(r"\d{8}-\d{6}", written, re.ASCII):
        return written
    try:
        # No zone on purpose: the file has none.
        return datetime.strptime(written, "%Y%m%d-%H%M%S").isoformat()  # noqa: DTZ007
    except ValueError:
        return None
