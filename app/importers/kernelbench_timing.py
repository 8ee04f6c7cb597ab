"""KernelBench's baseline timings: level, problem, statistics in milliseconds.

Shape of ScalingIntelligence/KernelBench, results/timing; a file for one device was at hand. The unit is the project's
convention, the file does not state it. One run is one level on one device and its problems are the rows: a level is
what is compared between devices and compilers, a problem at a time. The run's own metrics are over its problems.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from typing import Any

from app.domain.run import Finding, ParsedRun
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float
from app.importers.reading import Content, clean, pointer
from app.importers.sweep import Axis, Point, Reading, most_runs, sweep_run

_NUMBERED = re.compile(r"^(\d{1,6})[_ -]")


def _looks_like(fields: Mapping[str, Any]) -> bool:
    levels = [level for level in fields.values() if isinstance(level, dict)]
    first = next((p for level in levels for p in level.values() if isinstance(p, dict)), {})
    return "num_trials" in first and "mean" in first


class KernelbenchTiming:
    id = "kernelbench-timing"
    title = "KernelBench timing (JSON)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if content.first_record is not None and _looks_like(content.first_record):
            return Sniff(0.9, "levels of problems with mean and num_trials")
        return Sniff(0.0, "no levels of problems with num_trials")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        for record in content.json.records():
            if not isinstance(record.value, dict) or not _looks_like(record.value):
                continue
            for level, problems in record.value.items():
                if isinstance(problems, dict):
                    runs += _runs(clean(level, 60), problems, pointer(record.prefix, level))
        most_runs(len(runs), content.limits.max_runs)
        if not runs:
            raise UnreadableUpload("invalid", "This KernelBench file holds no problem with a time.")
        return ParsedUpload(self.id, tuple(runs), (*content.findings(), *content.json.findings()))


def _runs(level: str, problems: Mapping[str, Any], at: str) -> list[ParsedRun]:
    """One run for each device that a level was timed on."""
    points: dict[str, list[Point]] = {}
    untimed: list[str] = []
    for place, (problem, told) in enumerate(problems.items(), 1):
        if not isinstance(told, dict):
            untimed.append(problem)
            continue
        mean = as_float(told.get("mean"))
        if mean is None or not math.isfinite(mean) or mean <= 0:
            untimed.append(problem)
            continue
        name = clean(re.sub(r"\.py$", "", problem), 160).strip("_") or "problem"
        number = _NUMBERED.match(problem)
        other: dict[str, Any] = {}
        for key, word in (("std", "time_std_s"), ("min", "time_min_s"), ("max", "time_max_s")):
            value = as_float(told.get(key))
            if value is not None and math.isfinite(value) and value >= 0:
                other[word] = value / 1000
        trials = as_float(told.get("num_trials"))
        if trials is not None and math.isfinite(trials) and trials >= 1:
            other["trials"] = int(trials)
        hardware = clean(str(told.get("hardware") or "")[:200], 80)
        points.setdefault(hardware, []).append(
            Point(
                pointer(at, problem),
                {"problem": float(number[1]) if number else float(place)},
                {"kernel_time_s.mean": Reading(mean / 1000, told["mean"], "ms")},
                other,
                name,
            )
        )
    return [_run(level, hardware, found, untimed, at) for hardware, found in points.items()]


def _run(level: str, hardware: str, points: list[Point], untimed: list[str], at: str) -> ParsedRun:
    times = [point.readings["kernel_time_s.mean"].value for point in points]
    record = Fields({})
    told = {"p50": statistics.median(times), "mean": statistics.fmean(times), "min": min(times), "max": max(times)}
    for stat, value in told.items():
        raw = f"computed from {len(times)} problems"
        record.add("kernel_time_s", value, at=at, raw=raw, raw_unit="ms", stat=stat, count=len(times))
    findings = []
    if untimed:
        shown = ", ".join(clean(name, 60) for name in untimed[:5])
        findings.append(Finding("not-timed", "warning", f"{len(untimed)} problem(s) have no time: {shown}."))
    return sweep_run(
        f"KernelBench {level}, {len(points)} problems",
        points,
        family="kernel",
        x=Axis("problem", "Problem", ordered=False),
        y=(Axis("time_s", "Time", "s"),),
        group=f"KernelBench {level}",
        label=hardware or "unknown device",
        head=Point(at, {}, {}),
        extra={"level": level, "problems": len(points), "unit_by_convention": "ms"},
        series={"level": level},
        hardware=hardware or None,
        software={"benchmark": "KernelBench"},
        findings=findings,
        metrics=record,
    )
