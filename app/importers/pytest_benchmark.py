"""pytest-benchmark's JSON.

Fields are those of ionelmc/pytest-benchmark, tests/test_storage; files of 2015 and 2019 were at hand. All times are
seconds, whatever the console showed. One run is one benchmark: each has statistics of its own and is followed by name
from commit to commit. The node's name is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, hardware_tag
from app.importers.logs import Values
from app.importers.reading import Content, clean, pointer
from app.importers.spelled_out import with_words
from app.importers.sweep import most_runs

_STATS = (("mean", "mean"), ("median", "p50"), ("min", "min"), ("max", "max"), ("stddev", "std"))


def _looks_like(fields: Mapping[str, Any]) -> bool:
    benchmarks = fields.get("benchmarks")
    first = benchmarks[0] if isinstance(benchmarks, list) and benchmarks and isinstance(benchmarks[0], dict) else {}
    return "machine_info" in fields and "stats" in first


class PytestBenchmark:
    id = "pytest-benchmark"
    title = "pytest-benchmark (JSON)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if content.first_record is not None and _looks_like(content.first_record):
            return Sniff(0.95, "has machine_info and benchmarks with stats")
        return Sniff(0.0, "no machine_info with benchmarks[].stats")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        broken: list[str] = []
        for record in content.json.records():
            if not isinstance(record.value, dict) or not _looks_like(record.value):
                continue
            most_runs(len(runs) + len(record.value["benchmarks"]), content.limits.max_runs)
            names = [b.get("name") for b in record.value["benchmarks"] if isinstance(b, dict)]
            for index, told in enumerate(record.value["benchmarks"]):
                at = pointer(record.prefix, "benchmarks", index)
                run = _run(record.value, told, at, names) if isinstance(told, dict) else None
                if run is None:
                    broken.append(at)
                else:
                    runs.append(run)
        if not runs:
            raise UnreadableUpload("invalid", "No benchmark of this file has a time.")
        notes = serving.stranger_findings(broken)
        return ParsedUpload(self.id, tuple(runs), (*content.findings(), *content.json.findings(), *notes))


def _run(whole: Mapping[str, Any], told: Mapping[str, Any], at: str, names: list[Any]) -> ParsedRun | None:
    stats = told.get("stats")
    if not isinstance(stats, dict):
        return None
    record = Fields(stats, pointer(at, "stats"))
    rounds = record.count("rounds")
    for key, stat in _STATS:
        if key == "stddev" and (rounds == 1 or not record.number("stddev")):
            continue  # one round has no spread; its zero is no measurement
        record.metric("latency_s", key, raw_unit="s", stat=stat, count=rounds)
    if not any(m.stat in ("mean", "p50", "min") for m in record.metrics):
        return None
    data = record.raw("data")
    values = _rounds(data)
    # A part of the rounds says nothing about the others: only whole data becomes percentiles and samples.
    whole_data = values.count > 1 and rounds is not None and values.count == rounds
    if whole_data:
        found = values.statistics()
        for stat in ("p90", "p99"):
            if stat in found:
                raw = f"computed from {values.count} rounds"
                at_data = record.at("data")
                record.add("latency_s", found[stat], at=at_data, raw=raw, raw_unit="s", stat=stat, count=values.count)
    name = clean(str(told.get("name") or told.get("fullname") or "benchmark"), 200)
    if names.count(told.get("name")) > 1 and isinstance(told.get("fullname"), str):
        name = clean(told["fullname"], 200)
    info = whole.get("machine_info") if isinstance(whole.get("machine_info"), dict) else {}
    commit = whole.get("commit_info") if isinstance(whole.get("commit_info"), dict) else {}
    assert isinstance(info, dict)
    assert isinstance(commit, dict)
    extra_info = told.get("extra_info")
    labels = extra_info if isinstance(extra_info, dict) else {}
    tags = Fields(labels).unknown()
    params = told.get("params")
    series: dict[str, float | str] = {}
    for key, value in list(params.items())[:10] if isinstance(params, dict) else ():
        number = as_float(value)
        series[clean(key, 60)] = number if number is not None and math.isfinite(number) else clean(str(value)[:200], 80)
    extra: dict[str, Any] = {
        "group": clean(str(told["group"]), 80) if told.get("group") else None,
        "rounds": rounds,
        "iterations": record.count("iterations"),
        "quartile_1_s": record.number("q1"),
        "quartile_3_s": record.number("q3"),
        "tags": tags or None,
    }
    findings = [*serving.check_latencies(record.metrics), *record.findings()]
    if isinstance(data, list) and data and not whole_data and rounds is not None:
        findings.append(
            Finding(
                "rounds-incomplete",
                "info",
                f"The file keeps {values.count} of {rounds:,.0f} rounds; the times of single rounds were left out.",
            )
        )
    left_out = ["machine_info.node"] if info.get("node") else []
    left_out += [f"extra_info.{key}" for key in Fields(labels).left_out(())]
    findings += serving.left_out_findings(left_out)
    software = {"benchmark": _joined("pytest-benchmark", whole.get("version"))}
    if isinstance(info.get("python_version"), str):
        software["Python"] = clean(info["python_version"], 40)
    if isinstance(commit.get("id"), str):
        software["commit"] = clean(commit["id"], 40) + (" (with changes)" if commit.get("dirty") is True else "")
    return ParsedRun(
        name=name or "benchmark",
        metrics=tuple(record.metrics),
        workload=RunWorkload(mode="kernel", extra=with_words(extra)),
        # the device that people name beside a benchmark is what it measures; the processor only drives it
        hardware_hint=hardware_tag(labels) or hardware_tag(info) or _processor(info),
        software=software,
        samples={"latency_s": values.samples()} if whole_data else {},
        measured_at=clean(whole["datetime"], 40) if isinstance(whole.get("datetime"), str) else None,
        series=series,
        findings=tuple(findings),
    )


def _rounds(data: Any) -> Values:
    """Finite positive numbers of the rounds."""
    values = Values()
    for entry in data if isinstance(data, list) else ():
        number = as_float(entry)
        if number is not None and math.isfinite(number) and number > 0:
            values.add(number)
    return values


def _processor(info: Mapping[str, Any]) -> str | None:
    cpu = info.get("cpu")
    brand = cpu.get("brand_raw") or cpu.get("brand") if isinstance(cpu, dict) else None
    told = brand or info.get("processor") or info.get("machine")
    return (clean(told, 100) or None) if isinstance(told, str) else None


def _joined(name: str, version: Any) -> str:
    return f"{name} {clean(version, 40)}" if isinstance(version, str) and version else name
