"""What the exports of GenAI-Perf and AIPerf have in common: measures with a unit, in JSON, CSV or a printed table.

Metric names and their meaning are those of triton-inference-server/perf_analyzer (genai-perf/docs) and of
ai-dynamo/aiperf (docs/metrics_reference.md). Their `inter_token_latency` is an average over the tokens of a request, so
it is TPOT here; `inter_chunk_latency` is the gap between two chunks, which is ITL. Units are read, never assumed: they
changed between releases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.fields import MAX_TAGS, Fields, as_float
from app.importers.measures import number_in, scale_to_si
from app.importers.reading import clean

DISTRIBUTIONS: Mapping[str, str] = {
    "time_to_first_token": "ttft_s",
    "inter_token_latency": "tpot_s",
    "inter_chunk_latency": "itl_s",
    "request_latency": "e2e_latency_s",
    "output_token_throughput_per_user": "output_tokens_per_s_per_user",
}
SCALARS: Mapping[str, str] = {
    "request_throughput": "requests_per_s",
    "output_token_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
    "request_goodput": "goodput_requests_per_s",
    "goodput": "goodput_requests_per_s",
    "benchmark_duration": "duration_s",
    "request_count": "requests_completed",
    "error_request_count": "requests_failed",
    "total_isl": "input_tokens",
    "total_input_sequence_length": "input_tokens",
    "total_osl": "output_tokens",
    "total_output_sequence_length": "output_tokens",
    "total_output_tokens": "output_tokens",
}
_ALSO: Mapping[str, str] = {
    "time_to_second_token": "Time to second token, mean",
    "time_to_first_output_token": "Time to first token after reasoning, mean",
    "prefill_throughput": "Prompt tokens over TTFT, mean of requests",
    "prefill_throughput_per_user": "Prompt tokens over TTFT, mean of requests",
    "reasoning_token_count": "Reasoning tokens of a request, mean",
    "good_request_count": "Requests within their objectives",
    "osl_mismatch_count": "Requests whose output had another length than asked for",
}
"""Measures that are shown but are no metric of their own."""

_STAT_OF: Mapping[str, str] = {
    "avg": "mean",
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p99.9": "p999",
    "p999": "p999",
    "min": "min",
    "max": "max",
    "std": "std",
}
_PER_REQUEST = ("ttft_s", "tpot_s", "e2e_latency_s", "output_tokens_per_s_per_user")


@dataclass(slots=True)
class Measure:
    """One measure: its statistics as written, with the number each of them is, and where they stand."""

    unit: str
    at: Callable[[str], str]
    numbers: dict[str, float] = field(default_factory=dict)
    written: dict[str, object] = field(default_factory=dict)

    def put(self, stat: str, number: float, written: object) -> None:
        self.numbers.setdefault(stat, number)
        self.written.setdefault(stat, written)

    def mean(self) -> float | None:
        return self.numbers.get("avg")


@dataclass(slots=True)
class Facts:
    """What a file says beside its measures."""

    client: str
    version: str | None = None
    model: str | None = None
    hardware: str | None = None
    concurrency: float | None = None
    request_rate: float | None = None
    measured_at: str | None = None
    also: dict[str, float | str] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_run(record: Fields, measures: Mapping[str, Measure], facts: Facts) -> ParsedRun:
    """A run out of the measures of one export."""
    requests = _number(measures, "request_count")
    findings = list(facts.findings)
    for key, name in SCALARS.items():
        measure = measures.get(key)
        if measure is not None and not ("goodput" in key and (measure.mean() or 0.0) < 0):  # -1: no objective was set
            _keep(record, name, key, measure, {"avg": None}, None)
    completed, failed = record.value("requests_completed"), record.value("requests_failed")
    findings += serving.check_outcome(completed, failed)
    others: dict[str, float] = {}
    for key, name in DISTRIBUTIONS.items():
        measure = measures.get(key)
        if measure is None or completed == 0:
            continue
        told = measure.numbers.get("count")
        count = told if told is not None else requests if name in _PER_REQUEST else None
        stats: dict[str, str | None] = {k: _STAT_OF[k] for k in measure.numbers if k in _STAT_OF}
        if count == 1:
            stats.pop("std", None)
        _keep(record, name, key, measure, stats, count)
        scale = scale_to_si(name, measure.unit)
        for stat, value in measure.numbers.items():
            ranked = re.fullmatch(r"p\d{1,2}(\.\d{1,4})?", stat) and stat not in _STAT_OF and scale is not None
            if ranked and len(others) < serving.MOST_OTHER_PERCENTILES:
                others[f"{name}.{stat}"] = value * (scale or 1.0)
    findings += serving.not_observed(record)
    inputs, outputs = (_number(measures, key) for key in ("input_sequence_length", "output_sequence_length"))
    also = dict(facts.also)
    for key, words in _ALSO.items():
        mean = _number(measures, key)
        if key == "time_to_first_output_token" and mean == _number(measures, "time_to_first_token"):
            continue  # nothing was reasoned
        if mean is not None and (mean or key.endswith("count")):
            unit = measures[key].unit
            also.setdefault(f"{words}{f' ({clean(unit, 30)})' if unit not in ('', 'requests', 'tokens') else ''}", mean)
    known = {*DISTRIBUTIONS, *SCALARS, *_ALSO, "input_sequence_length", "output_sequence_length"}
    unknown_measures = {
        clean(key, 80): {"mean": mean, "unit": clean(measure.unit, 30)}
        for key, measure in list(measures.items())[:300]
        if key not in known and (mean := measure.mean()) is not None
    }
    extra: dict[str, Any] = {
        "percentiles": others,
        "also": also,
        "server": facts.server,
        "other_measures": dict(list(unknown_measures.items())[:MAX_TAGS]),
    }
    findings += serving.check_latencies(record.metrics)
    findings += serving.check_rates(record)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(facts.left_out)
    unknown = {"parallel": "parallel layout", "dtypes": "precision", "version": "server version"}
    if facts.hardware is None:
        unknown = {"hardware": "hardware"} | unknown
    if facts.model is None:
        unknown = {"model": "model"} | unknown
    if facts.concurrency is None and facts.request_rate is None:
        unknown["concurrency"] = "concurrency"
    if completed != 0:
        findings += serving.missing_facts(record.metrics, unknown)
    software = {"client": facts.client}
    if facts.version:
        software["client version"] = facts.version
    name = serving.run_name(facts.model, facts.request_rate, facts.concurrency)
    return ParsedRun(
        name=name if facts.model else name.replace("serving run", f"{facts.client} run"),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=facts.concurrency,
            request_rate=facts.request_rate,
            input_len=inputs if inputs else None,
            output_len=outputs if outputs else None,
            extra={key: value for key, value in extra.items() if value},
        ),
        model_hint=facts.model,
        hardware_hint=facts.hardware,
        software=software,
        measured_at=facts.measured_at,
        findings=tuple(findings),
    )


def _keep(
    record: Fields,
    name: str,
    key: str,
    measure: Measure,
    stats: Mapping[str, str | None],
    count: float | None,
) -> None:
    scale = scale_to_si(name, measure.unit)
    if scale is None:
        record.wrong_type.append(f"{key} (in {clean(measure.unit, 30) or 'no unit'})")
        return
    for written, stat in stats.items():
        value = measure.numbers.get(written)
        if value is not None:
            record.add(
                name,
                value * scale,
                at=measure.at(written),
                raw=measure.written[written],
                raw_unit=measure.unit or "as counted",
                stat=stat,
                count=count,
            )


def _number(measures: Mapping[str, Measure], key: str) -> float | None:
    measure = measures.get(key)
    return measure.mean() if measure is not None else None


# --- JSON ----------------------------------------------------------------------------------------------------------

_NAMED = ("request_throughput", "request_latency", "time_to_first_token", "output_token_throughput")
_AIPERF_MARKS = ("aiperf_version", "schema_version", "was_cancelled", "error_summary", "benchmark_id")


def holds_measures(fields: Mapping[str, Any]) -> bool:
    """Whether an object is an export of either tool; the first AIPerf put the measures below `records`."""
    metrics = fields.get("records")
    source = metrics if isinstance(metrics, dict) else fields
    named = [source.get(key) for key in _NAMED]
    return any(isinstance(m, dict) and "unit" in m and "avg" in m for m in named)


def is_aiperf(fields: Mapping[str, Any]) -> bool:
    """Whether an export that holds measures is AIPerf's: the older tool has no version, errors or cancellation."""
    return isinstance(fields.get("records"), dict) or any(mark in fields for mark in _AIPERF_MARKS)


def measures_of(record: Fields) -> dict[str, Measure]:
    """The measures of a JSON export; null ones (not computed) are absent. Non-finite numbers are noted and left out."""
    nested = isinstance(record.fields.get("records"), dict)
    source: Mapping[str, Any] = record.fields["records"] if nested else record.fields
    found: dict[str, Measure] = {}
    for key, value in source.items():
        if not isinstance(value, dict) or "unit" not in value:
            continue
        path = ("records", key) if nested else (key,)
        unit = value.get("unit")
        measure = Measure(unit if isinstance(unit, str) else "", _below(record, path))
        for stat, written in value.items():
            if stat == "unit" or written is None:
                continue
            number = as_float(written)
            if number is None:
                if stat in _STAT_OF:
                    record.wrong_type.append(f"{key}.{stat}")
            elif number != number or number in (float("inf"), float("-inf")):
                record.non_finite.append(f"{key}.{stat}")
            else:
                measure.put(stat, number, written)
        found[key] = measure
    return found


def _below(record: Fields, path: tuple[str, ...]) -> Callable[[str], str]:
    return lambda stat: record.at(*path, stat)


# --- CSV and printed tables ----------------------------------------------------------------------------------------

_LABEL = re.compile(r"(?P<name>.*?)\s*(?:\((?P<unit>[^()]*)\))?\s*", re.DOTALL)


def label_of(text: str) -> tuple[str, str]:
    """`Time To First Token (ms)` is the key `time_to_first_token` and the unit `ms`."""
    match = _LABEL.fullmatch(text.strip()) if len(text) < 200 else None
    if match is None:
        return "", ""
    key = re.sub(r"[^a-z0-9]+", "_", match["name"].lower()).strip("_")
    return key, (match["unit"] or "").strip()


_UNITLESS: Mapping[str, str] = {"request_count": "requests", "error_request_count": "requests"}


def put_row(measures: dict[str, Measure], label: str, cells: Mapping[str, str], mark: str, at: str) -> None:
    """Add the row of a table. `cells` are by column (`avg`, `p99`, `Value`), `mark` is the decimal mark."""
    key, unit = label_of(label)
    if not key or key in measures:
        return
    measure = Measure(unit or _UNITLESS.get(key, ""), lambda stat: f"{at}: {stat}")
    for column, text in cells.items():
        number = number_in(text, mark)
        if number is not None:
            measure.put({"value": "avg"}.get(column.lower(), column.lower()), number, text.strip())
    if measure.numbers:
        measures[key] = measure
