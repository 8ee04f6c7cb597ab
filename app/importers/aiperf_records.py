"""NVIDIA AIPerf: the records of single requests (`profile_export.jsonl`), put together into one run here.

Field meanings are those of ai-dynamo/aiperf (docs on profile exports); files of late 2025 were seen. A line is one
request. Failed, cancelled and warm-up requests are counted and left out of the statistics. Percentiles interpolate
between observations and rates are over the time from the first request's start to the last one's end, as the tool's own
summary has them. The file is read line by line, as one of an hour's load has hundreds of megabytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, is_number, listed
from app.importers.measures import Observations, add_statistics, finite_numbers, scale_to_si, within, word
from app.importers.perf_export import DISTRIBUTIONS
from app.importers.reading import Content, JsonDocument, JsonReader, clean

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


_START = re.compile(r'^\s*\{"metadata":\s*\{[^{}]{0,4000}"request_start_ns"')
_LONGEST_LINE = 64 * 2**20
"""Characters of one record; a request of a million tokens has some twenty million."""


class AiperfRecords:
    id = "aiperf-records"
    title = "AIPerf records of single requests (profile_export.jsonl)"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        # The first line may be longer than the beginning that is looked at.
        if any(looks_like(fields) for fields in content.first_records) or _START.match(content.head):
            return Sniff(0.95, "lines with metadata and metrics of value and unit")
        return Sniff(0.0, "no lines with metadata and metrics of value and unit")

    def parse(self, content: Content) -> ParsedUpload:
        found, notes, strangers = _Requests(), JsonDocument(), []
        first = last = 0
        number = 0
        for number, value in _records(content, notes):
            if looks_like(value):
                found.add(value)
                first, last = first or number, number
            else:
                strangers.append(f"line {number}")
        if not found.seen:
            return _spread_out(content)
        span = f"lines {first} to {last}: " if last > first else f"line {first}: "
        findings = (*notes.findings(), *serving.stranger_findings(strangers))
        return ParsedUpload(self.id, serving.with_series([_run(found, span)]), findings)


def _spread_out(content: Content) -> ParsedUpload:
    """Records that somebody wrote over several lines, or into a list. Raises UnreadableUpload where there are none."""
    found = _Requests()
    strangers = []
    for record in content.json.records() if not content.is_large else ():
        if isinstance(record.value, dict) and looks_like(record.value):
            found.add(record.value)
        else:
            strangers.append(record.prefix or "/")
    if not found.seen:
        raise UnreadableUpload("invalid", "No record of a request is in the file.", hint="Upload the file as written.")
    notes = (*content.findings(), *content.json.findings(), *serving.stranger_findings(strangers))
    return ParsedUpload("aiperf-records", serving.with_series([_run(found, "")]), notes)


def _records(content: Content, notes: JsonDocument) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object with the line it begins on. What cannot be read is noted."""
    position = 0
    for number, line in _whole_lines(content):
        position += len(line) + 1
        if not line.strip():
            continue
        if not line.lstrip().startswith(("{", "[")):
            notes.skipped_lines += not notes.values
            continue
        document = JsonReader(line, content.limits).read()
        if not document.values:
            notes.damaged_lines.append(number)
            notes.cut_at = position - 1 if document.cut_at is not None else None
            continue
        notes.values = document.values[:1]
        notes.cut_at = None
        for record in document.records():
            if isinstance(record.value, dict):
                yield number, record.value
    if notes.cut_at is not None:
        notes.damaged_lines.pop()
    if len(notes.damaged_lines) > 1000:
        del notes.damaged_lines[1000:]


def _whole_lines(content: Content) -> Iterator[tuple[int, str]]:
    """Lines put together again from the pieces that long ones are handed out in."""
    pieces: list[str] = []
    length, at = 0, 0
    for number, piece in content.each_line():
        if pieces and number != at:
            yield at, "".join(pieces)
            pieces, length = [], 0
        at = number
        pieces.append(piece)
        length += len(piece)
        if length > _LONGEST_LINE:
            raise UnreadableUpload(
                "too-large",
                f"Line {number} is longer than {_LONGEST_LINE // 2**20} million characters.",
                hint="Each request stands on a line of its own; upload the summary that the tool writes.",
            )
    if pieces:
        yield at, "".join(pieces)


@dataclass(slots=True)
class _Requests:
    """What the lines add up to. `values` are in SI units; the two `pair` lists hold the tokens of the same requests."""

    seen: int = 0
    warm_up: int = 0
    failed: int = 0
    cancelled: int = 0
    values: dict[str, Observations] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    wrong_units: set[str] = field(default_factory=set)
    inputs: Observations = field(default_factory=Observations)
    outputs: Observations = field(default_factory=Observations)
    pair_inputs: Observations = field(default_factory=Observations)
    pair_outputs: Observations = field(default_factory=Observations)
    timed: int = 0
    """Requests with a start and an end, the only ones that the four fields below count."""
    first_start: int = 2**63
    last_end: int = 0
    busy_ns: int = 0
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
                into.add([length])
        if lengths[0] is not None and lengths[1] is not None:
            self.pair_inputs.add([lengths[0]])
            self.pair_outputs.add([lengths[1]])
        start, end = (_nanoseconds(metadata.get(key)) for key in ("request_start_ns", "request_end_ns"))
        if start is not None and end is not None:
            self.timed += 1
            self.first_start, self.last_end = min(self.first_start, start), max(self.last_end, end)
            self.busy_ns += end - start

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
        # One number a request, or one for each gap between its chunks.
        numbers: list[Any] = value if isinstance(value, list) else [value]
        if set(map(type, numbers)) != {float}:
            numbers = finite_numbers(numbers)
        into = self.values.get(name)
        if into is None:
            into = self.values[name] = Observations()
        into.add([number * scale for number in numbers])


def _nanoseconds(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else None


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
    samples = {name: values.samples() for name, values in found.values.items() if values.count}
    if found.pair_inputs.count == found.completed and found.completed:
        samples["input_tokens"] = found.pair_inputs.samples()
        samples["output_tokens"] = found.pair_outputs.samples()
    inputs = found.inputs.total if found.inputs.count == found.completed else None
    outputs = found.outputs.total if found.outputs.count == found.completed else None
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
    if not found.completed or found.timed != found.completed:
        return None
    span = found.last_end - found.first_start
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
    in_flight = found.busy_ns * 1e-9 / duration
    if not 0 < in_flight < 2**40:
        return None
    return record.add("concurrency", in_flight, at=at, raw="sum of the requests' times / duration", raw_unit="requests")
