"""NVIDIA AIPerf: the records of single requests (`profile_export.jsonl`), put together into one run here.

Field meanings are those of ai-dynamo/aiperf (docs on profile exports); files of late 2025 were seen. A line is one
request. Failed, cancelled and warm-up requests are counted and left out of the statistics. Percentiles interpolate
between observations and rates are over the time from the first request's start to the last one's end, as the tool's own
summary has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, is_number, listed
from app.importers.measures import add_statistics, scale_to_si, thinned, within, word
from app.importers.perf_export import DISTRIBUTIONS
from app.importers.reading import Content, clean

_NOT_KEPT = ("payload", "request_payload", "responses", "response", "prompt", "outputs", "turns", "request")
_SUMMARISED = {**DISTRIBUTIONS}


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is the record of one request."""
    metrics = fields.get("metrics")
    if not isinstance(fields.get("metadata"), dict) or not isinstance(metrics, dict):
        return False
    if not metrics:
        return fields.get("error") is not None
    first = next(iter(metrics.values()))
    return isinstance(first, dict) and "value" in first and "unit" in first


class AiperfRecords:
    id = "aiperf-records"
    title = "AIPerf records of single requests (profile_export.jsonl)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if any(looks_like(fields) for fields in content.first_records):
            return Sniff(0.95, "lines with metadata and metrics of value and unit")
        return Sniff(0.0, "no lines with metadata and metrics of value and unit")

    def parse(self, content: Content) -> ParsedUpload:
        found = _Requests()
        strangers: list[str] = []
        first = last = ""
        for record in content.json.records():
            if isinstance(record.value, dict) and looks_like(record.value):
                found.add(record.value)
                first, last = first or record.prefix, record.prefix
            else:
                strangers.append(record.prefix or "/")
        if not found.seen:
            raise UnreadableUpload("invalid", "No record of a request is in the file.")
        notes = [*content.findings(), *content.json.findings(), *serving.stranger_findings(strangers)]
        return ParsedUpload(self.id, serving.with_series([_run(found, _span(first, last))]), tuple(notes))


def _span(first: str, last: str) -> str:
    """`lines 1 to 64: ` where the records are lines of the file."""
    if first == last or not first.startswith("line "):
        return first
    return f"lines {first[5:].split(':')[0]} to {last[5:].split(':')[0]}: "


@dataclass(slots=True)
class _Requests:
    """What the lines add up to. `values` are in SI units; `pairs` are prompt and output tokens of one request."""

    seen: int = 0
    warm_up: int = 0
    failed: int = 0
    cancelled: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    wrong_units: set[str] = field(default_factory=set)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    inputs: list[float] = field(default_factory=list)
    outputs: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    @property
    def completed(self) -> int:
        return self.seen - self.warm_up - self.failed - self.cancelled

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one request."""
        self.seen += 1
        metadata, metrics = line["metadata"], line["metrics"]
        self.left_out.update(key for key in _NOT_KEPT if line.get(key))
        if metadata.get("benchmark_phase") not in (None, "profiling"):
            self.warm_up += 1
            return
        error = line.get("error")
        if metadata.get("was_cancelled") is True:
            self.cancelled += 1
            return
        if error is not None:
            self.failed += 1
            kind = clean(word(within(error, "type")) or word(within(error, "code")) or "unnamed", 60)
            if len(self.errors) < 50:
                self.errors[kind] = self.errors.get(kind, 0) + 1
            return
        for key, name in _SUMMARISED.items():
            self._take(name, key, metrics.get(key))
        lengths = [_value(metrics.get(key)) for key in ("input_sequence_length", "output_sequence_length")]
        for into, length in zip((self.inputs, self.outputs), lengths, strict=True):
            if length is not None:
                into.append(length)
        if lengths[0] is not None and lengths[1] is not None:
            self.pairs.append((lengths[0], lengths[1]))
        for into_times, key in ((self.starts, "request_start_ns"), (self.ends, "request_end_ns")):
            time = metadata.get(key)
            if isinstance(time, int) and not isinstance(time, bool) and 0 < time < 2**63:
                into_times.append(time)

    def _take(self, name: str, key: str, measure: Any) -> None:
        if not isinstance(measure, dict):
            return
        unit = word(measure.get("unit"), 30) or ""
        scale = scale_to_si(name, unit)
        if scale is None:
            self.wrong_units.add(f"{key} (in {unit or 'no unit'})")
            return
        self.units.setdefault(name, unit)
        value = measure.get("value")
        into = self.values.setdefault(name, [])
        # One number a request, or one for each gap between its chunks.
        for item in value if isinstance(value, list) else [value]:
            number = as_float(item) if is_number(item) else None
            if number is not None and math.isfinite(number):
                into.append(number * scale)


def _value(measure: Any) -> float | None:
    value = within(measure, "value")
    number = as_float(value) if is_number(value) else None
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def _run(found: _Requests, span: str) -> ParsedRun:
    record = Fields({}, span)
    counted = f"counted in {found.seen} lines"
    record.add("requests_completed", found.completed, at=f"{span}/error", raw=counted, raw_unit="requests")
    record.add("requests_failed", found.failed, at=f"{span}/error", raw=counted, raw_unit="requests")
    findings = serving.check_outcome(float(found.completed), float(found.failed))
    key_of = {name: key for key, name in _SUMMARISED.items()}
    for name, values in found.values.items():
        at = f"{span}/metrics/{key_of[name]}/value"
        add_statistics(record, name, values, at=at, unit=found.units[name])
    duration = _duration(found)
    samples = {name: thinned(values) for name, values in found.values.items() if values}
    if len(found.pairs) == found.completed and found.pairs:
        samples["input_tokens"] = thinned([pair[0] for pair in found.pairs])
        samples["output_tokens"] = thinned([pair[1] for pair in found.pairs])
    inputs = sum(found.inputs) if len(found.inputs) == found.completed else None
    outputs = sum(found.outputs) if len(found.outputs) == found.completed else None
    together: float | None = None
    if found.completed:
        for name, key, total in (
            ("input_tokens", "input_sequence_length", inputs),
            ("output_tokens", "output_sequence_length", outputs),
        ):
            if total is not None and math.isfinite(total):
                at = f"{span}/metrics/{key}/value"
                record.add(name, total, at=at, raw=f"sum of {found.completed} requests", raw_unit="tokens")
        together = _rates(record, found, span, duration, inputs, outputs)
    names = record.wrong_type
    names.extend(sorted(found.wrong_units)[:20])
    also: dict[str, float | str] = {}
    if found.warm_up:
        also["Warm-up requests left out"] = float(found.warm_up)
    if found.cancelled:
        findings.append(
            Finding(
                "cancelled",
                "warning",
                f"{found.cancelled} of {found.seen} requests were cancelled and are in no statistic.",
                ("requests_completed",),
            )
        )
    if found.errors:
        also["Kinds of error"] = listed(tuple(f"{kind} ({count})" for kind, count in found.errors.items()))
    if found.completed and duration is not None:
        findings.append(
            Finding(
                "recomputed",
                "info",
                f"Statistics and rates were computed here from {found.completed} requests; a file that was shortened "
                "gives those of its part.",
            )
        )
    findings += serving.check_latencies(record.metrics)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings([*sorted(found.left_out), "ids of requests, workers and conversations"])
    if found.completed:
        unknown = {
            "model": "model",
            "hardware": "hardware",
            "parallel": "parallel layout",
            "dtypes": "precision",
            "concurrency": "concurrency asked for",
        }
        findings += serving.missing_facts(record.metrics, unknown)
    return ParsedRun(
        name="AIPerf requests" + (f", {together:.3g} in flight" if together is not None else ""),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=together,
            input_len=serving.mean_length(inputs, float(found.completed)),
            output_len=serving.mean_length(outputs, float(found.completed)),
            extra={"also": also} if also else {},
        ),
        software={"client": "AIPerf"},
        samples=samples,
        findings=tuple(findings),
    )


def _duration(found: _Requests) -> float | None:
    """Seconds from the first start to the last end, where every request has both."""
    if not found.completed or len(found.starts) != found.completed or len(found.ends) != found.completed:
        return None
    span = max(found.ends) - min(found.starts)
    return span * 1e-9 if span > 0 else None


def _rates(
    record: Fields, found: _Requests, span: str, duration: float | None, inputs: float | None, outputs: float | None
) -> float | None:
    """Rates over the duration, and the requests in flight on average (time of all requests over the duration)."""
    if duration is None:
        return None
    at = f"{span}/metadata"
    record.add("duration_s", duration, at=at, raw="last request_end_ns - first request_start_ns", raw_unit="ns")
    both = inputs + outputs if inputs is not None and outputs is not None else None
    for name, count, unit in (
        ("requests_per_s", float(found.completed), "req/s"),
        ("output_tokens_per_s", outputs, "tok/s"),
        ("total_tokens_per_s", both, "tok/s"),
    ):
        if count is not None and math.isfinite(count / duration):
            record.add(name, count / duration, at=at, raw=f"{count:.10g} / {duration:.10g}", raw_unit=unit)
    in_flight = sum((end - start) * 1e-9 for start, end in zip(found.starts, found.ends, strict=True)) / duration
    if not 0 < in_flight < 2**40:
        return None
    return record.add("concurrency", in_flight, at=at, raw="sum of the requests' times / duration", raw_unit="requests")
