"""google-benchmark's JSON.

Fields are those of google/benchmark, docs/user_guide.md and tools/gbench; a real report and the tool's own test input
were at hand. Every entry has a time unit of its own. One run is one benchmark: repetitions become samples, the tool's
mean, median and deviation are taken where it wrote them. Fits of complexity (BigO, RMS) are no measurements and are
left out, as are entries that stopped with an error. Host name and the path of the program are not kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, without_private
from app.importers.logs import Values
from app.importers.reading import Content, clean, pointer
from app.importers.spelled_out import with_words
from app.importers.sweep import most_runs

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_AGGREGATES = {"mean": "mean", "median": "p50", "stddev": "std", "min": "min", "max": "max"}
_KNOWN = (
    "name",
    "run_name",
    "run_type",
    "family_index",
    "per_family_instance_index",
    "repetitions",
    "repetition_index",
    "threads",
    "iterations",
    "real_time",
    "cpu_time",
    "time_unit",
    "aggregate_name",
    "aggregate_unit",
    "label",
    "error_occurred",
    "error_message",
    "skipped",
    "skip_message",
)
_SUFFIX = re.compile(r"_(mean|median|stddev|cv|BigO|RMS|min|max)$")


@dataclass(slots=True)
class _Benchmark:
    name: str
    times: Values = field(default_factory=Values)
    first: tuple[Mapping[str, Any], str] | None = None
    aggregates: dict[str, tuple[float, Any, str, str]] = field(default_factory=dict)
    failed: str = ""
    unread: int = 0


def _first_entry(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    entries = fields.get("benchmarks")
    return next((e for e in entries if isinstance(e, dict)), {}) if isinstance(entries, list) else {}


class GoogleBenchmark:
    id = "google-benchmark"
    title = "google-benchmark (JSON)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        entry = _first_entry(content.first_record or {})
        if "real_time" in entry or "run_type" in entry:
            return Sniff(0.9, "benchmarks with real_time or run_type")
        return Sniff(0.0, "no benchmarks[].real_time")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        notes: list[Finding] = []
        for record in content.json.records():
            if not isinstance(record.value, dict) or not _first_entry(record.value):
                continue
            found, fits = _benchmarks(record.value["benchmarks"], record.prefix)
            if fits:
                notes.append(
                    Finding(
                        "fits-left-out", "info", f"{fits} fits of complexity (BigO, RMS) are no measurements: left out."
                    )
                )
            failed = [b for b in found.values() if b.failed and not b.times.count and not b.aggregates]
            if failed:
                said = "; ".join(f"{b.name}: {b.failed}" for b in failed[:3])
                notes.append(Finding("benchmark-failed", "warning", f"{len(failed)} benchmark(s) stopped ({said})."))
            whole = [run for b in found.values() if (run := _run(b, record.value)) is not None]
            most_runs(len(runs) + len(whole), content.limits.max_runs)
            runs += whole
        if not runs:
            raise UnreadableUpload("invalid", "No benchmark of this file has a time.")
        return ParsedUpload(self.id, tuple(runs), (*content.findings(), *content.json.findings(), *notes))


def _benchmarks(entries: Any, prefix: str) -> tuple[dict[str, _Benchmark], int]:
    found: dict[str, _Benchmark] = {}
    fits = 0
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            continue
        at = pointer(prefix, "benchmarks", index)
        full = clean(str(entry.get("name") or "benchmark")[:400], 180) or "benchmark"
        aggregate = entry.get("aggregate_name")
        if aggregate is None and (match := _SUFFIX.search(full)) and "iterations" not in entry:
            aggregate = match[1]  # before run_type, aggregates were told by their names alone
        if aggregate in ("BigO", "RMS"):
            fits += 1
            continue
        name = clean(str(entry.get("run_name") or "")[:400], 180)
        if not name:
            name = full.removesuffix(f"_{aggregate}") if aggregate else full
        benchmark = found.setdefault(name, _Benchmark(name))
        if entry.get("error_occurred") is True or entry.get("skipped") is True:
            benchmark.failed = without_private(
                str(entry.get("error_message") or entry.get("skip_message") or "error"), 100
            )
            continue
        scale = _UNITS.get(str(entry.get("time_unit", "ns")))
        time = as_float(entry.get("real_time"))
        if scale is None or time is None or not math.isfinite(time) or time <= 0:
            benchmark.unread += 1
        elif aggregate is None:
            benchmark.times.add(time * scale)
            benchmark.first = benchmark.first or (entry, at)
        elif aggregate in _AGGREGATES:
            unit = str(entry.get("time_unit", "ns"))
            benchmark.aggregates.setdefault(_AGGREGATES[aggregate], (time * scale, entry["real_time"], unit, at))
            benchmark.first = benchmark.first or (entry, at)
    return found, fits


def _run(benchmark: _Benchmark, whole: Mapping[str, Any]) -> ParsedRun | None:
    if benchmark.first is None:
        return None
    entry, at = benchmark.first
    record = Fields(entry, at)
    times = benchmark.times
    repetitions = times.count or as_float(entry.get("repetitions"))
    unit = str(entry.get("time_unit", "ns"))
    for stat, (value, raw, written, where) in benchmark.aggregates.items():
        if stat != "std" or repetitions != 1:
            place = pointer(where, "real_time")
            record.add("latency_s", value, at=place, raw=raw, raw_unit=written, stat=stat, count=repetitions)
    if times.count == 1 and not benchmark.aggregates:
        record.add("latency_s", times.mean, at=record.at("real_time"), raw=entry["real_time"], raw_unit=unit)
    elif times.count > 1:
        for stat, value in times.statistics().items():
            raw = f"computed from {times.count} repetitions"
            record.add("latency_s", value, at=at, raw=raw, raw_unit=unit, stat=stat, count=times.count)
    record.ignore(*_KNOWN)
    scale = _UNITS.get(unit, 1e-9)
    cpu = as_float(entry.get("cpu_time"))
    context = whole.get("context") if isinstance(whole.get("context"), dict) else {}
    assert isinstance(context, dict)
    base, series = _arguments(benchmark.name)
    extra: dict[str, Any] = {
        "cpu_time_s": cpu * scale if cpu is not None and math.isfinite(cpu) and cpu > 0 else None,
        "iterations": record.count("iterations"),
        "threads": record.count("threads"),
        "label": record.text("label"),
        "counters": record.unknown() or None,
        "build": clean(context["library_build_type"], 40)
        if isinstance(context.get("library_build_type"), str)
        else None,
        "cpu_scaling": context.get("cpu_scaling_enabled")
        if isinstance(context.get("cpu_scaling_enabled"), bool)
        else None,
    }
    findings = serving.check_latencies(record.metrics)
    if benchmark.unread:
        findings.append(
            Finding(
                "no-time", "warning", f"{benchmark.unread} entries without a positive time or a known unit: left out."
            )
        )
    if context.get("cpu_scaling_enabled") is True:
        findings.append(
            Finding("cpu-scaling", "warning", "The processor's frequency scaling was on: times may vary between runs.")
        )
    left_out = [f"context.{key}" for key in ("host_name", "executable") if context.get(key)]
    findings += serving.left_out_findings(left_out)
    software = {"benchmark": "google-benchmark"}
    if isinstance(context.get("library_version"), str):
        software["benchmark"] += f" {clean(context['library_version'], 40)}"
    return ParsedRun(
        name=benchmark.name,
        metrics=tuple(record.metrics),
        workload=RunWorkload(mode="kernel", extra=with_words(extra)),
        hardware_hint=_processor(context),
        software=software,
        samples={"latency_s": times.samples()} if times.count > 1 else {},
        measured_at=clean(context["date"], 40) if isinstance(context.get("date"), str) else None,
        series={"benchmark": base} | series,
        findings=tuple(findings),
    )


def _processor(context: Mapping[str, Any]) -> str | None:
    cpus, speed = as_float(context.get("num_cpus")), as_float(context.get("mhz_per_cpu"))
    if cpus is None or not 0 < cpus < 10**6:
        return None
    at = f" at {speed / 1000:g} GHz" if speed is not None and 0 < speed < 10**6 else ""
    return f"processor with {cpus:.0f} logical CPUs{at}"


def _arguments(name: str) -> tuple[str, dict[str, float | str]]:
    """`BM_copy` and its arguments of `BM_copy/8/1024/threads:4`, so that sizes can be charted."""
    base, *parts = name.split("/")
    series: dict[str, float | str] = {}
    for place, part in enumerate(parts[:6], 1):
        key, colon, value = part.rpartition(":")
        number = as_float(value)
        if number is not None and math.isfinite(number):
            series[clean(key, 40) if colon else f"argument {place}"] = number
        elif part not in ("real_time", "manual_time", "process_time"):
            base = f"{base}/{part}"
    return base, series
