"""GuideLLM's report (`benchmarks.json`, `benchmarks.yaml`): one file is a whole sweep, each benchmark in it one run.

Field meanings are those of vllm-project/guidellm (schemas and benchmark objects); reports of 0.3 and of 0.8 in
development were seen. Names that end in `_ms` are milliseconds, other times are seconds. `inter_token_latency_ms` is
(latency - TTFT) / (tokens - 1), which is TPOT here; 0.8 weights it by tokens. `time_per_output_token_ms` is another
thing, and not the same in all versions: until 0.3 the same difference over all tokens, later the whole latency over
all tokens; it is shown under its own name only. Rates are distributions weighted by time: their mean is the rate of the
run, their p99 a moment's peak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, is_number, is_secret, model_name
from app.importers.measures import finite_numbers, thinned, within, word
from app.importers.reading import Content, pointer
from app.importers.yaml_text import read_yaml

_DISTRIBUTIONS: Mapping[str, tuple[str, float, str]] = {
    "time_to_first_token_ms": ("ttft_s", 1e-3, "ms"),
    "inter_token_latency_ms": ("tpot_s", 1e-3, "ms"),
    "request_latency": ("e2e_latency_s", 1.0, "s"),
}
_RATES: Mapping[str, tuple[str, str]] = {
    "requests_per_second": ("requests_per_s", "req/s"),
    "output_tokens_per_second": ("output_tokens_per_s", "tok/s"),
    "tokens_per_second": ("total_tokens_per_s", "tok/s"),
}
_STATS: Mapping[str, str] = {"mean": "mean", "median": "p50", "min": "min", "max": "max", "std_dev": "std"}
_PERCENTILES: Mapping[str, str] = {
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p999": "p999",
}
_OTHER_PERCENTILES: Mapping[str, str] = {"p001": "p0.1", "p01": "p1", "p05": "p5", "p10": "p10", "p25": "p25"}
_YAML_START = re.compile(r"^benchmarks:", re.MULTILINE)
_YAML_MARKS = re.compile(r"time_to_first_token_ms:|type_: generative_benchmark|guidellm_version:")


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a report."""
    benchmarks = fields.get("benchmarks")
    return isinstance(benchmarks, list) and any(_is_benchmark(item) for item in benchmarks[:20])


def _is_benchmark(item: Any) -> bool:
    metrics = within(item, "metrics")
    return isinstance(metrics, dict) and ("time_to_first_token_ms" in metrics or "request_latency" in metrics)


class Guidellm:
    id = "guidellm"
    title = "GuideLLM report (JSON or YAML)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if any(looks_like(fields) for fields in content.first_records):
            return Sniff(0.95, "benchmarks with metrics such as time_to_first_token_ms")
        if _is_yaml(content):
            return Sniff(0.9, "YAML with benchmarks and time_to_first_token_ms")
        return Sniff(0.0, "no benchmarks with metrics such as time_to_first_token_ms")

    def parse(self, content: Content) -> ParsedUpload:
        notes = list(content.findings())
        reports: list[tuple[str, dict[str, Any]]] = []
        if any(looks_like(fields) for fields in content.first_records):
            notes += content.json.findings()
            strangers = []
            for record in content.json.records():
                if isinstance(record.value, dict) and looks_like(record.value):
                    reports.append((record.prefix, record.value))
                else:
                    strangers.append(record.prefix or "/")
            notes += serving.stranger_findings(strangers)
        else:
            document = read_yaml(content.text, content.limits)
            if isinstance(document, dict) and looks_like(document):
                reports.append(("", document))
            notes.append(
                Finding("form-not-tried", "info", "The YAML form has not been tried on a real file yet; JSON has.")
            )
        runs: list[ParsedRun] = []
        unusable: list[str] = []
        for prefix, report in reports:
            for index, item in enumerate(report["benchmarks"]):
                at = pointer(prefix, "benchmarks", index)
                if not _is_benchmark(item):
                    unusable.append(at)
                    continue
                if len(runs) >= content.limits.max_runs:
                    raise UnreadableUpload(
                        "too-large",
                        f"The file holds more than {content.limits.max_runs} benchmarks.",
                        hint="Split it into several files.",
                    )
                runs.append(_run(Fields(item, at), report))
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "This is a GuideLLM report without a benchmark in it.",
                hint="A sweep that was stopped before its first strategy ended leaves none.",
            )
        notes += serving.stranger_findings(unusable)
        return ParsedUpload(self.id, _with_series(runs), tuple(notes))


def _is_yaml(content: Content) -> bool:
    if content.starts_as_json:
        return False
    head = content.head
    return _YAML_START.search(head) is not None and _YAML_MARKS.search(head) is not None


def _run(record: Fields, report: Mapping[str, Any]) -> ParsedRun:
    item = record.fields
    totals_at = ("request_totals",) if isinstance(item.get("request_totals"), dict) else ("metrics", "request_totals")
    totals = within(item, *totals_at)
    counts: dict[str, float | None] = {}
    for key in ("successful", "errored", "incomplete"):
        number = as_float(within(totals, key))
        counts[key] = number if number is not None and 0 <= number < 2**53 else None
    completed, failed = counts["successful"], counts["errored"]
    for name, key in (("requests_completed", "successful"), ("requests_failed", "errored")):
        if (value := counts[key]) is not None:
            at = record.at(*totals_at, key)
            record.add(name, value, at=at, raw=within(totals, key), raw_unit="requests")
    findings = serving.check_outcome(completed, failed)
    duration = _duration(record)
    others: dict[str, float] = {}
    also: dict[str, float | str] = {}
    if completed != 0:
        for key, (name, scale, unit) in _DISTRIBUTIONS.items():
            _distribution(record, key, name, scale, unit, others)
        for key, (name, unit) in _RATES.items():
            mean = _stat(record, key, "mean")
            if mean is not None:
                at = record.at("metrics", key, "successful", "mean")
                record.add(name, mean, at=at, raw=mean, raw_unit=unit)
        own = _stat(record, "time_per_output_token_ms", "mean")
        if own:
            also["GuideLLM's time per output token, mean (ms)"] = own
            findings.append(_own_tpot(own, record))
        findings += serving.not_observed(record)
    inputs, outputs = (_stat(record, key, "mean") for key in ("prompt_token_count", "output_token_count"))
    for name, key in (("input_tokens", "prompt_token_count"), ("output_tokens", "output_token_count")):
        total = _stat(record, key, "total_sum")
        if total is not None and completed != 0:
            at = record.at("metrics", key, "successful", "total_sum")
            record.add(name, total, at=at, raw=total, raw_unit="tokens")
    together = _stat(record, "request_concurrency", "mean")
    if together is not None and completed != 0:
        at = record.at("metrics", "request_concurrency", "successful", "mean")
        record.add("concurrency", together, at=at, raw=together, raw_unit="requests")
    strategy, rate, streams = _strategy(item)
    if rate is not None:
        record.add("request_rate_per_s", rate[0], at=record.at(*rate[1]), raw=rate[0], raw_unit="req/s")
    incomplete = counts["incomplete"]
    if incomplete:
        # Normal at the end of a run that was limited by time; no statistic counts them.
        also["Requests still running when the time was up"] = incomplete
    model, client_version, target = _about(item, report)
    samples = _samples(item, completed)
    left_out = [name for name, found in (("prompts and outputs of requests", _has_requests(item)),) if found]
    if target:
        left_out.append("address of the server")
    backend = within(item, "config", "backend") or within(report, "config", "spec", "backend")
    left_out += [f"backend.{key}" for key in (backend if isinstance(backend, dict) else {}) if _held(backend, key)]
    if within(item, "worker", "backend_info", "headers"):
        left_out.append("backend_info.headers")
    started = as_float(item.get("start_time"))
    if started is None:
        started = as_float(within(item, "scheduler_metrics", "measure_start_time"))
    software = {"client": "GuideLLM"}
    if client_version:
        software["guidellm"] = client_version
    extra: dict[str, Any] = {"strategy": strategy, "streams": streams, "percentiles": others, "also": also}
    findings += serving.check_latencies(record.metrics)
    if duration is not None:
        findings += serving.check_rates(record)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(left_out)
    if completed != 0:
        unknown = {
            "hardware": "hardware",
            "parallel": "parallel layout",
            "dtypes": "precision",
            "version": "server version",
        }
        if model is None:
            unknown = {"model": "model"} | unknown
        findings += serving.missing_facts(record.metrics, unknown)
    parts = [model.rsplit("/", 1)[-1] if model else "GuideLLM run"]
    if rate is not None:
        parts.append(f"{strategy} {rate[0]:g} req/s")
    elif streams is not None:
        parts.append(f"{streams:g} at once" if strategy == "concurrent" else f"{strategy}")
    elif strategy:
        parts.append(strategy)
    return ParsedRun(
        name=", ".join(parts),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=streams if streams is not None else together if completed != 0 else None,
            request_rate=rate[0] if rate is not None else "inf" if strategy == "throughput" else None,
            input_len=inputs if inputs else None,
            output_len=outputs if outputs else None,
            extra={key: value for key, value in extra.items() if value not in (None, {})},
        ),
        model_hint=model,
        software=software,
        samples=samples,
        measured_at=_when(started),
        findings=tuple(findings),
    )


def _duration(record: Fields) -> float | None:
    """Seconds of the measured part: stated, or from its two ends."""
    told = as_float(record.fields.get("duration"))
    if told is not None and math.isfinite(told) and told > 0:
        return record.metric("duration_s", "duration", raw_unit="s")
    for where, first, last in (
        ("scheduler_metrics", "measure_start_time", "measure_end_time"),
        ("", "start_time", "end_time"),
    ):
        source = record.fields.get(where) if where else record.fields
        ends = [as_float(within(source, key)) for key in (first, last)]
        if ends[0] is not None and ends[1] is not None and 0 < ends[1] - ends[0] < 1e9:
            at = record.at(where, last) if where else record.at(last)
            raw = f"{last} - {first}"
            return record.add("duration_s", ends[1] - ends[0], at=at, raw=raw, raw_unit="s")
    return None


def _stat(record: Fields, key: str, stat: str) -> float | None:
    """One number of a distribution over successful requests; an empty distribution holds zeros that mean nothing."""
    branch = within(record.fields, "metrics", key, "successful")
    count = as_float(within(branch, "count"))
    value = within(branch, stat)
    number = as_float(value) if is_number(value) else None
    if number is None or count == 0:
        return None
    if not math.isfinite(number):
        record.non_finite.append(f"{key}.{stat}")
        return None
    return number


def _distribution(record: Fields, key: str, name: str, scale: float, unit: str, others: dict[str, float]) -> None:
    branch = within(record.fields, "metrics", key, "successful")
    if not isinstance(branch, dict):
        return
    count = as_float(branch.get("count"))
    percentiles = branch.get("percentiles")
    inner = percentiles if isinstance(percentiles, dict) else {}
    for written, stat in _STATS.items():
        value = _stat(record, key, written)
        if value is not None and not (written == "std_dev" and count == 1):
            at = record.at("metrics", key, "successful", written)
            record.add(name, value * scale, at=at, raw=branch[written], raw_unit=unit, stat=stat, count=count)
    for written, told in inner.items():
        value = as_float(told) if is_number(told) else None
        if value is None or not math.isfinite(value) or count == 0:
            continue
        if (known := _PERCENTILES.get(written)) is not None:
            at = record.at("metrics", key, "successful", "percentiles", written)
            record.add(name, value * scale, at=at, raw=told, raw_unit=unit, stat=known, count=count)
        elif (rank := _OTHER_PERCENTILES.get(written)) is not None:
            others[f"{name}.{rank}"] = value * scale


def _own_tpot(own: float, record: Fields) -> Finding:
    """Which of its two meanings the tool's own time per output token has here, by the numbers themselves."""
    tpot = record.value("tpot_s", "mean")
    ttft, e2e = record.value("ttft_s", "mean"), record.value("e2e_latency_s", "mean")
    outputs = _stat(record, "output_token_count", "mean")
    meaning = "whose meaning changed between versions"
    if ttft is not None and e2e is not None and outputs:
        without, whole = (e2e - ttft) / outputs * 1e3, e2e / outputs * 1e3
        meaning = (
            "which here is the whole latency over all tokens, TTFT counted in"
            if abs(own - whole) < abs(own - without)
            else "which here divides the time after the first token by all tokens"
        )
    kept = f"inter_token_latency_ms ({tpot * 1e3:.4g})" if tpot is not None else "inter_token_latency_ms"
    return Finding(
        "own-tpot",
        "info",
        f"TPOT is {kept}; the file's time_per_output_token_ms ({own:.4g}), {meaning}, is shown apart.",
        ("tpot_s",),
    )


def _strategy(item: Mapping[str, Any]) -> tuple[str | None, tuple[float, tuple[str, ...]] | None, float | None]:
    """Kind of load, the rate asked for with its place, and the number of parallel streams."""
    for path in (("args", "strategy"), ("config", "strategy")):
        strategy = within(item, *path)
        if not isinstance(strategy, dict):
            continue
        kind = word(strategy.get("type_") or strategy.get("kind"), 40)
        rate = as_float(strategy.get("rate"))
        asked = (rate, (*path, "rate")) if rate is not None and 0 < rate < 2**40 else None
        streams = as_float(strategy.get("streams"))
        if streams is None and kind == "concurrent":
            streams = as_float(strategy.get("max_concurrency"))
        if kind == "synchronous":
            streams = 1.0
        return kind, asked, streams if streams is not None and 0 < streams < 2**40 else None
    return None, None, None


def _about(item: Mapping[str, Any], report: Mapping[str, Any]) -> tuple[str | None, str | None, bool]:
    """Model, version of the tool, and whether the file names the server."""
    model = next(
        (
            found
            for found in (
                word(within(item, "worker", "backend_model"), 300),
                word(within(item, "config", "backend", "model"), 300),
                word(within(report, "config", "spec", "backend", "model"), 300),
                word(within(item, "benchmarker", "backend", "model"), 300),
                word(within(report, "args", "model"), 300),
            )
            if found
        ),
        None,
    )
    target = within(item, "worker", "backend_target") or within(item, "config", "backend", "target")
    return (
        model_name(model) if model else None,
        word(within(report, "metadata", "guidellm_version"), 40),
        bool(target),
    )


def _held(backend: Any, key: str) -> bool:
    return bool(backend[key]) and is_secret(key)


def _requests(item: Mapping[str, Any]) -> list[Any]:
    found = within(item, "requests", "successful")
    return found if isinstance(found, list) else []


def _has_requests(item: Mapping[str, Any]) -> bool:
    groups = item.get("requests")
    return any(isinstance(group, list) and group for group in (groups.values() if isinstance(groups, dict) else ()))


def _samples(item: Mapping[str, Any], completed: float | None) -> dict[str, tuple[float, ...]]:
    """Times of single requests, only where the file lists all of them: a part would give other statistics."""
    requests = _requests(item)
    if not requests or completed is None or len(requests) != completed:
        return {}
    kept: dict[str, tuple[float, ...]] = {}
    for key, (name, scale, _) in _DISTRIBUTIONS.items():
        values = finite_numbers([within(request, key) for request in requests])
        if len(values) == len(requests):
            kept[name] = thinned([value * scale for value in values])
    for name, keys in (
        ("input_tokens", ("prompt_tokens",)),
        ("output_tokens", ("output_tokens",)),
    ):
        values = finite_numbers([next((within(r, key) for key in keys), None) for r in requests])
        if len(values) == len(requests):
            kept[name] = thinned(values)
    return kept


def _when(seconds: float | None) -> str | None:
    """Seconds of the epoch as a time in UTC."""
    if seconds is None or not 1e9 < seconds < 1e10:
        return None
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")


def _with_series(runs: list[ParsedRun]) -> tuple[ParsedRun, ...]:
    """What tells the benchmarks of a sweep apart is the load; lengths differ a little in each by chance."""
    series: list[dict[str, float | str]] = []
    for run in runs:
        told: dict[str, float | str] = {}
        if run.workload.concurrency is not None:
            told["concurrency"] = run.workload.concurrency
        if isinstance(run.workload.request_rate, float):
            told["request_rate"] = run.workload.request_rate
        if isinstance(strategy := run.workload.extra.get("strategy"), str):
            told["strategy"] = strategy
        if run.model_hint:
            told["model"] = run.model_hint
        series.append(told)
    keys = {key for told in series for key in told}
    keep = {
        key
        for key in keys
        if (len(runs) == 1 and key in ("concurrency", "request_rate")) or len({told.get(key) for told in series}) > 1
    }
    return tuple(
        replace(run, series={key: value for key, value in told.items() if key in keep})
        for run, told in zip(runs, series, strict=True)
    )
