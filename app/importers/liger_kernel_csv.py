"""Liger-Kernel's benchmark table (`all_benchmark_data.csv` and its kin).

Columns are those of linkedin/Liger-Kernel, benchmark/scripts/utils.py; a part of the project's own file was at hand.
Speed is in milliseconds, memory in MB of 2**20 bytes, each as the median with the 20th and 80th percentile. One run
is one kernel of one provider in one direction, configuration, device and version; the rows are its sizes. Speed and
memory of the same size share a row.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun
from app.domain.units import MEBI
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import as_float, is_secret
from app.importers.logs import text_findings
from app.importers.reading import Content, clean
from app.importers.sweep import Axis, Point, Reading, most_runs, sweep_run
from app.importers.tables import csv_rows, header_of

_START = ("kernel_name", "kernel_provider", "kernel_operation_mode")
_TIME_UNITS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
_MEMORY_UNITS = {"mb": float(MEBI), "gb": float(MEBI) * 1024, "kb": 1024.0}
_PRECISIONS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
_Y = (Axis("time_s", "Time", "s"), Axis("peak_memory_bytes", "Peak memory", "B"))


@dataclass(slots=True)
class _Subject:
    names: Mapping[str, str]
    points: dict[str, Point] = field(default_factory=dict)
    unread: int = 0


_NUMBERS = frozenset({"x_value", "y_value_50", "y_value_20", "y_value_80"})
_DECIMAL_COMMA = re.compile(r"^\s*(-?\d+),(\d+(?:[eE][-+]?\d+)?)\s*$")


class LigerKernelCsv:
    id = "liger-kernel-csv"
    title = "Liger-Kernel benchmark CSV"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        line = next((line for line in content.head.split("\n") if line.strip()), "")
        names, _ = header_of(line.strip())
        if tuple(names[:3]) == _START and "y_value_50" in names:
            return Sniff(0.95, "a CSV header with kernel_name, kernel_provider and kernel_operation_mode")
        return Sniff(0.0, "no CSV header with kernel_name and kernel_provider")

    def parse(self, content: Content) -> ParsedUpload:
        line = next(line for line in content.head.split("\n") if line.strip())
        names, separator = header_of(line.strip())
        subjects: dict[tuple[str, ...], _Subject] = {}
        unread: list[int] = []
        for number, cells in csv_rows(content, names, separator):
            row = dict(zip(names, cells, strict=True)) if cells is not None else {}
            if separator != ",":  # a spreadsheet that parts cells otherwise may write a decimal comma
                row = {k: _DECIMAL_COMMA.sub(r"\1.\2", v) if k in _NUMBERS else v for k, v in row.items()}
            if cells is None or not _add(subjects, row, number):
                unread.append(number)
        most_runs(len(subjects), content.limits.max_runs)
        runs = tuple(_run(key, subject, subjects) for key, subject in subjects.items() if subject.points)
        if not runs:
            raise UnreadableUpload("invalid", "This is a Liger-Kernel table without a measurement.")
        findings = list(text_findings(content))
        if unread:
            shown = ", ".join(str(n) for n in unread[:8])
            findings.append(
                Finding(
                    "rows-unread",
                    "warning",
                    f"{len(unread)} row(s) hold no measurement that can be read (line {shown}).",
                )
            )
        return ParsedUpload(self.id, runs, tuple(findings))


_KEY = (*_START, "extra_benchmark_config_str", "gpu_name", "liger_version", "x_name")


def _add(subjects: dict[tuple[str, ...], _Subject], row: Mapping[str, str], number: int) -> bool:
    metric, unit = row.get("metric_name", ""), row.get("metric_unit", "").lower()
    if metric == "speed" and unit in _TIME_UNITS:
        key, scale, low = "kernel_time_s", _TIME_UNITS[unit], "time_p{}_s"
    elif metric == "memory" and unit in _MEMORY_UNITS:
        key, scale, low = "peak_memory_bytes", _MEMORY_UNITS[unit], "peak_memory_p{}_bytes"
    else:
        return False
    median = as_float(row.get("y_value_50"))
    if median is None or not math.isfinite(median) or median <= 0:
        return False
    base = tuple(row.get(name, "")[:1000] for name in _KEY)
    attempt = 0
    x_text = clean(row.get("x_value", ""), 60)
    while True:  # the same size measured again is a repetition: a subject of its own, so that neither is lost
        whole = (*base, str(attempt))
        subject = subjects.setdefault(whole, _Subject({**row}))
        point = subject.points.get(x_text)
        if point is None or key not in point.readings:
            break
        attempt += 1
    if point is None:
        x = as_float(row.get("x_value"))
        name = clean(row.get("x_name", "") or "x", 40)
        value: float | str = x if x is not None and math.isfinite(x) else x_text
        point = Point(f"line {number}", {name: value}, name=f"{name} {x_text}")
        subject.points[x_text] = point
    point.readings[key] = Reading(median * scale, row["y_value_50"], unit if key == "kernel_time_s" else "MiB")
    for quantile in ("20", "80"):
        told = as_float(row.get(f"y_value_{quantile}"))
        if told is not None and math.isfinite(told) and told > 0:
            point.other[low.format(quantile)] = told * scale
    return True


def _run(key: tuple[str, ...], subject: _Subject, subjects: Mapping[tuple[str, ...], _Subject]) -> ParsedRun:
    row, attempt = subject.names, key[-1]
    kernel, provider, mode = (clean(row[name], 60) for name in _START)
    config = _config(row.get("extra_benchmark_config_str", ""))
    device, version = clean(row.get("gpu_name", ""), 80), clean(row.get("liger_version", ""), 40)
    points = list(subject.points.values())
    x = clean(row.get("x_name", "") or "x", 40)
    timed = [p for p in points if "kernel_time_s" in p.readings]
    numbers = [p for p in timed or points if isinstance(p.x[x], (int, float))]
    head = max(numbers, key=lambda p: float(p.x[x])) if numbers else points[-1]
    alike = [k for k in subjects if k[:3] == key[:3] and k != key]
    name = f"{kernel} {mode}, {provider}"
    if config and any(k[3] != key[3] for k in alike):
        name += f", {_words(config)}"
    if any(k[5] != key[5] for k in alike):
        name += f", {version}"
    if device and any(k[4] != key[4] for k in alike):
        name += f", {device}"
    if attempt != "0":
        name += f", repetition {int(attempt) + 1}"
    head.readings = {_with_stat(k): r for k, r in head.readings.items()}
    series: dict[str, float | str] = {"kernel": kernel, "provider": provider, "direction": mode}
    precision = _PRECISIONS.get(str(config.get("dtype", "")))
    unknown = {} if device else {"hardware": "device"}
    if precision is None:
        unknown["dtypes"] = "precision"
    findings = serving.facts_finding(unknown) if unknown else []
    return sweep_run(
        name,
        points,
        family=kernel,
        x=Axis(x, _label(row, x)),
        y=_Y,
        group=", ".join((kernel, mode, _words(config, 30), device, version, attempt))[:400],
        label=provider,
        head=head,
        extra={"kernel": kernel, "provider": provider, "direction": mode, "config": config or None},
        series=series,
        hardware=device or None,
        software={"Liger-Kernel": version} if version else {},
        dtypes={"activations": precision} if precision else None,
        measured_at=clean(row.get("timestamp", ""), 40) or None,
        findings=findings,
    )


def _label(row: Mapping[str, str], x: str) -> str:
    """The file's own words for the axis, as a heading."""
    words = clean(row.get("x_label", ""), 60) or x
    return words[:1].upper() + words[1:]


def _with_stat(key: str) -> str:
    return f"{key}.p50" if "." not in key else key


def _config(cell: str) -> dict[str, Any]:
    """The JSON object in the cell, its scalars only."""
    try:
        told = json.loads(cell) if len(cell) < 2000 else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    found: dict[str, Any] = {}
    for key, value in list(told.items())[:30]:
        if is_secret(key, value):
            continue
        number = as_float(value) if isinstance(value, (int, float)) else None
        if isinstance(value, bool):
            found[clean(key, 60)] = value
        elif number is not None and math.isfinite(number):
            found[clean(key, 60)] = number
        elif isinstance(value, str):
            found[clean(key, 60)] = clean(value, 100)
    return found


def _words(config: Mapping[str, Any], most: int = 4) -> str:
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(config.items())[:most])
