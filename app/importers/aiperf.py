"""NVIDIA AIPerf: the summary export (`profile_export_aiperf.json`) and its CSV twin.

Field meanings are those of ai-dynamo/aiperf (export models, docs on profile exports); JSON files of late 2025 and of
0.10.0 were seen. Absent measures are null. The file holds the command line, addresses of servers and host names and
serial numbers of GPUs: none of these is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.domain.run import Finding, ParsedRun
from app.importers import perf_export, serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields, as_float, is_secret, listed, model_name
from app.importers.measures import scale_to_si, setting, within, word
from app.importers.perf_csv import csv_kind, csv_runs
from app.importers.perf_export import Facts
from app.importers.reading import Content, clean, pointer


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a summary export of AIPerf."""
    return perf_export.holds_measures(fields) and perf_export.is_aiperf(fields)


class Aiperf:
    id = "aiperf"
    title = "AIPerf export (JSON or CSV)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if any(looks_like(fields) for fields in content.first_records):
            return Sniff(0.95, "measures with unit and avg, and the marks of AIPerf")
        if csv_kind(content) == "aiperf":
            return Sniff(0.9, "a CSV of measures with the columns of AIPerf")
        return Sniff(0.0, "no measures with unit and avg beside error_summary, was_cancelled or a schema_version")

    def parse(self, content: Content) -> ParsedUpload:
        if any(looks_like(fields) for fields in content.first_records):
            runs, notes = serving.read_runs(content, looks_like, _run)
            return ParsedUpload(self.id, serving.with_series(runs), tuple(notes))
        found = csv_runs(content, self.id, "AIPerf")
        untried = Finding(
            "form-not-tried", "info", "The CSV form has not been tried on a real file yet; the JSON beside it has."
        )
        return replace(found, findings=(*found.findings, untried))


def _run(record: Fields) -> ParsedRun:
    measures = perf_export.measures_of(record)
    config = record.raw("input_config")
    facts = Facts(
        "AIPerf", version=record.text("aiperf_version", 40), measured_at=_to_seconds(record.text("start_time", 40))
    )
    facts.model = model_of(config)
    load_of(config, facts)
    _devices(record, facts)
    _outcome(record, facts)
    facts.left_out += _private(config, "input_config")
    facts.left_out += record.left_out(())
    return perf_export.read_run(record, measures, facts)


_PLACE = re.compile(r"\w+://|[~/]|[A-Za-z]:[\\/]")
_MOST_PRIVATE, _DEEPEST = 12, 6


def _private(value: Any, name: str, depth: int = 0) -> list[str]:
    """Fields of the configuration that may be private: commands, addresses, paths, credentials, headers, prompts."""
    if not value or depth > _DEEPEST:
        return []
    own = name.rsplit(".", 1)[-1]
    if is_secret(own, value) or re.search(r"command|prompt|url|path|directory|\bfile\b", own, re.IGNORECASE):
        return [name] if isinstance(value, (str, list, dict)) else []
    if isinstance(value, str):
        return [name] if _PLACE.match(value) else []
    if isinstance(value, dict):
        return [f for key, inner in value.items() for f in _private(inner, f"{name}.{key}", depth + 1)][:_MOST_PRIVATE]
    items = value if isinstance(value, list) else []
    return list(dict.fromkeys(f for inner in items[:100] for f in _private(inner, name, depth + 1)))[:_MOST_PRIVATE]


def _to_seconds(written: str | None) -> str | None:
    """A time without the fraction of its last second."""
    return re.sub(r"(?<=:\d\d)\.\d+", "", written) if written is not None else None


def model_of(config: Any) -> str | None:
    """The model, whose place in the configuration moved from release to release."""
    candidates = (
        within(config, "tokenizer", "name"),
        within(config, "models", "items", 0, "name"),
        within(config, "endpoint", "model_names", 0),
        within(config, "model_names", 0),
        within(config, "model", 0),
        within(config, "model"),
        within(config, "models", 0),
    )
    tokenizer, *named = [model_name(c) if isinstance(c, str) and c.strip() else None for c in candidates]
    found = next((name for name in named if name), None)
    # A served model's own name may be any word; the tokenizer is named as its repository is.
    return found if found and "/" in found else tokenizer if tokenizer and "/" in tokenizer else found


def load_of(config: Any, facts: Facts) -> None:
    """Concurrency and rate of the measured phase, and how the endpoint was asked."""
    load = within(config, "loadgen")
    phases = within(config, "phases")
    measured = [
        phase
        for phase in (phases if isinstance(phases, list) else [])
        if isinstance(phase, dict) and phase.get("exclude_from_results") is not True and phase.get("name") != "warmup"
    ]
    sources: list[Any] = [*measured[:1], load, within(config, "perf_analyzer", "stimulus"), config]
    for source in sources:
        concurrency = as_float(within(source, "concurrency"))
        if facts.concurrency is None and concurrency is not None and 0 < concurrency < 2**40:
            facts.concurrency = concurrency
        for key in ("request_rate", "rate"):
            rate = as_float(within(source, key))
            if facts.request_rate is None and rate is not None and 0 < rate < 2**40:
                facts.request_rate = rate
    endpoint = within(config, "endpoint")
    for key, value in (
        ("endpoint", within(endpoint, "type")),
        ("streaming", within(endpoint, "streaming")),
        ("arrivals", within(load, "arrival_pattern")),
    ):
        if (told := setting(value)) is not None:
            facts.server[key] = told


def _outcome(record: Fields, facts: Facts) -> None:
    """Failures and cancellation."""
    if record.raw("was_cancelled") is True:
        facts.findings.append(
            Finding("cancelled", "warning", "The run was cancelled before its end; the figures are of what was done.")
        )
    errors = record.raw("error_summary")
    failed = within(record.fields.get("records", record.fields), "error_request_count", "avg")
    if not isinstance(errors, list):
        return
    counts = [as_float(within(error, "count")) for error in errors]
    total = sum(c for c in counts if c is not None and 0 <= c < 2**53)
    if failed is None:
        record.add(
            "requests_failed",
            total,
            at=record.at("error_summary"),
            raw=f"{len(errors)} kinds of error",
            raw_unit="requests",
        )
    if any(within(error, "error_details", "message") for error in errors[:20]):
        facts.left_out.append("error_summary (the messages)")
    kinds = [
        clean(str(kind), 60)
        for error in errors[:20]
        if (kind := within(error, "error_details", "type") or within(error, "error_details", "code")) is not None
    ]
    if kinds:
        facts.also["Kinds of error"] = listed(tuple(dict.fromkeys(kinds)))


def _gpus(record: Fields) -> Iterator[tuple[dict[str, Any], str]]:
    """Every GPU once, with its pointer: several exporters on a host report the same ones."""
    endpoints = within(record.fields, "telemetry_data", "endpoints")
    seen: set[object] = set()
    for address, endpoint in (endpoints if isinstance(endpoints, dict) else {}).items():
        gpus = within(endpoint, "gpus")
        for key, gpu in (gpus if isinstance(gpus, dict) else {}).items():
            if not isinstance(gpu, dict):
                continue
            serial = gpu.get("gpu_uuid")
            mark = serial if isinstance(serial, str) and serial else (address, key)
            if mark in seen or len(seen) >= 10_000:
                continue
            seen.add(mark)
            # The address of the exporter is not part of the pointer: it names a host.
            yield gpu, pointer(record.prefix, "telemetry_data", "endpoints", "…", "gpus", str(key))


def _devices(record: Fields, facts: Facts) -> None:
    """Device, power and memory from the GPUs' own counters."""
    record.ignore("telemetry_data")
    names: list[str] = []
    power: list[float] = []
    memory: list[tuple[float, str, object, str]] = []
    power_at = ""
    for gpu, at in _gpus(record):
        name = word(gpu.get("gpu_name"))
        if name:
            names.append(name)
        used = within(gpu, "metrics", "gpu_power_usage")
        watts = as_float(within(used, "avg"))
        scale = scale_to_si("power_w", word(within(used, "unit")) or "")
        if watts is not None and scale is not None and 0 < watts < 1e9:
            power.append(watts * scale)
            power_at = power_at or f"{at}/metrics/gpu_power_usage/avg"
        held = within(gpu, "metrics", "gpu_memory_used")
        most = as_float(within(held, "max"))
        unit = word(within(held, "unit")) or ""
        scale = scale_to_si("device_memory_bytes", unit)
        if most is not None and scale is not None and 0 < most < 1e18:
            memory.append((most * scale, f"{at}/metrics/gpu_memory_used/max", within(held, "max"), unit))
    if names:
        facts.hardware = ", ".join(dict.fromkeys(names))
        facts.also["GPUs seen by telemetry"] = float(len(names))
        facts.left_out.append("telemetry_data (host names, addresses and serial numbers of GPUs)")
    if power:
        mean = sum(power) / len(power)
        raw = f"mean of {len(power)} devices" if len(power) > 1 else f"{mean:.6g}"
        record.add("power_w", mean, at=power_at, raw=raw, raw_unit="W", stat="mean")
    if memory:
        value, at, raw_value, unit = max(memory, key=lambda m: m[0])
        record.add("device_memory_bytes", value, at=at, raw=raw_value, raw_unit=unit, stat="max")
