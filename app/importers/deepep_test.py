"""What DeepEP's tests print: dispatch and combine of expert parallelism.

Lines of deepseek-ai/DeepEP, tests/ and docs/legacy.md: low-latency tests a line each rank, tuned results of the
normal kernels, and the elastic tests of version 2. Texts of the first two from its threads were at hand. Bandwidth is
logical: traffic that stays on a device is in it, per the project's README. One run is one operation in one setting;
its rows are the ranks, whose lines come in any order. The slowest rank is the one that a step waits for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.run import ParsedRun
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields
from app.importers.logs import NUMBER, Values, log_lines, log_number, text_findings
from app.importers.reading import Content, clean
from app.importers.sweep import Axis, Point, Reading, most_runs, sweep_run

MICRO = 1e-6
GIGA = 1e9

_RANK = re.compile(r"\[rank (\d{1,6})[^\]]{0,40}\]\s*(.*)")
_BANDWIDTH = re.compile(
    r"((?:[\w ]{0,24}\bdispatch \+ [\w ]{0,10}combine|dispatch|combine)) bandwidth: (" + NUMBER + r")\s*GB/s,?\s*"
    r"avg_t=(" + NUMBER + r")\s*us(?:,\s*min_t=(" + NUMBER + r")\s*us)?(?:,\s*max_t=(" + NUMBER + r")\s*us)?",
    re.I,
)
_HALVES = re.compile(r"(dispatch|combine) send/recv time: ([\d.]+)(?: \+ ([\d.]+))? us", re.I)
_TUNED = re.compile(r"\[tuning\] Best (dispatch|combine)(?:\s*\(([^)]{1,20})\))?\s*:\s*(.*)", re.I)
_RATE = re.compile(r"(" + NUMBER + r")\s*GB/s \((RDMA|NVL|SO|SU)\)", re.I)
_TUNED_TIME = re.compile(r"(?:\bt|transmit|avg_t)\s*[:=]\s*(" + NUMBER + r")\s*us", re.I)
_CHUNK = re.compile(r"(SMs|NVL chunk|RDMA chunk)\s+(\d{1,6})")
_ELASTIC = re.compile(
    r"EP:\s*(\d{1,6})\s*/\s*(\d{1,6})\s*\|\s*([a-z ]{3,30}?):\s*(.*?)(?:,\s*("
    + NUMBER
    + r")\s*us)(?:,\s*(\d{1,18}) bytes)?"
    r"(?=\s*(?:\||$))",
    re.I,
)
_MARKS = (
    re.compile(r"\[tuning\] Best (?:dispatch|combine)"),
    re.compile(r"\[rank \d[^\n]{0,120}bandwidth: [\d.]{1,12} GB/s, avg_t="),
    re.compile(r"EP:\s*\d{1,6}\s*/\s*\d{1,6}\s*\|[^\n]{0,80}GB/s \("),
)
"""What a line of each kind cannot lack; cheap enough to look for in any large text."""

_SETTING = re.compile(
    r"(num_tokens|hidden|num_topk|num_experts|num_ranks|num_sms|use_fp8_dispatch|do_handle_copy|num_bias)\s*=\s*(\d{1,9})"
)
_LINKS = {"RDMA": "scale_out", "NVL": "scale_up", "SO": "scale_out", "SU": "scale_up"}
_Y = (
    Axis("time_s", "Time", "s"),
    Axis("algorithm_bandwidth_bytes_per_s", "Logical bandwidth", "B/s"),
    Axis("scale_up_bytes_per_s", "Bandwidth within a node", "B/s"),
)


class DeepepTest:
    id = "deepep-test"
    title = "DeepEP test output"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        text = content.text
        if "GB/s" in text and any(mark.search(text) for mark in _MARKS):
            return Sniff(0.85, "dispatch and combine with their bandwidths")
        return Sniff(0.0, "no dispatch or combine bandwidth of DeepEP")

    def parse(self, content: Content) -> ParsedUpload:
        points: dict[tuple[str, str], list[Point]] = {}
        settings: dict[str, int] = {}
        sizes: dict[tuple[str, str], int] = {}
        case = ""
        for number, line in log_lines(content):
            told = {key: int(value) for key, value in _SETTING.findall(line)}
            if told:
                settings = {**settings, **told}
                if "Testing with" in line:
                    case = _case(told)
            if tuned := _TUNED.search(line):
                key = (tuned[1].lower(), clean(tuned[2] or "", 20))
                point = _tuned(tuned[3], number)
                if point is not None:
                    points.setdefault(key, []).append(point)
            elif "EP:" in line and (elastic := _ELASTIC.search(line)):
                key = (elastic[3].strip().lower(), case)
                point = _elastic(elastic, number)
                if point is not None:
                    points.setdefault(key, []).append(point)
                    sizes[key] = int(elastic[2])
            elif match := _RANK.search(line):
                _ranked(points, match, case, number)
        most_runs(len(points), content.limits.max_runs)
        if not points:
            raise UnreadableUpload("invalid", "This is DeepEP output without a finished measurement.")
        runs = tuple(_run(key, found, settings, sizes.get(key)) for key, found in points.items())
        return ParsedUpload(self.id, runs, text_findings(content))


def _case(told: Mapping[str, int]) -> str:
    words = []
    if "use_fp8_dispatch" in told:
        words.append("FP8" if told["use_fp8_dispatch"] else "BF16")
    if told.get("do_handle_copy"):
        words.append("handle copied")
    if told.get("num_bias"):
        words.append(f"{told['num_bias']} biases")
    return ", ".join(words)


def _good(written: str | None) -> float | None:
    value = log_number(written)
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _tuned(text: str, number: int) -> Point | None:
    readings: dict[str, Reading] = {}
    other: dict[str, Any] = {}
    for written, link in _RATE.findall(text):
        value = _good(written)
        if value is None:
            continue
        where = _LINKS[link.upper()]
        if where == "scale_up" and "algorithm_bandwidth_bytes_per_s" in readings:
            other["scale_up_bytes_per_s"] = value * GIGA
        else:
            readings["algorithm_bandwidth_bytes_per_s"] = Reading(value * GIGA, written, f"GB/s ({link.upper()})")
    time = _TUNED_TIME.search(text)
    took = _good(time[1]) if time else None
    if time and took is not None:
        readings["latency_s"] = Reading(took * MICRO, time[1], "us")
    if not readings:
        return None
    chunks = {key.lower().replace(" ", "_"): int(value) for key, value in _CHUNK.findall(text)}
    name = ", ".join(f"{key} {value}" for key, value in _CHUNK.findall(text)) or "best"
    return Point(f"line {number}", {}, readings, {**chunks, **other}, name)


def _elastic(match: re.Match[str], number: int) -> Point | None:
    point = _tuned(match[4], number) or Point(f"line {number}", {}, {})
    took = _good(match[5])
    if took is None:
        return None
    point.readings["latency_s"] = Reading(took * MICRO, match[5], "us")
    point.x = {"rank": float(match[1])}
    point.name = f"rank {match[1]}"
    if match[6]:
        point.other["bytes"] = int(match[6])
    return point


def _ranked(points: dict[tuple[str, str], list[Point]], match: re.Match[str], case: str, number: int) -> None:
    rank = match[1]
    for operation, rate, average, least, most in _BANDWIDTH.findall(match[2]):
        took, speed = _good(average), _good(rate)
        if took is None:
            continue
        readings = {"latency_s": Reading(took * MICRO, average, "us")}
        if speed is not None:
            readings["algorithm_bandwidth_bytes_per_s"] = Reading(speed * GIGA, rate, "GB/s")
        other: dict[str, Any] = {}
        for word, written in (("time_min_s", least), ("time_max_s", most)):
            value = _good(written)
            if value is not None:
                other[word] = value * MICRO
        key = (clean(operation.strip().lower(), 60), case)
        points.setdefault(key, []).append(
            Point(f"line {number}", {"rank": float(rank)}, readings, other, f"rank {rank}")
        )
    for operation, send, receive in _HALVES.findall(match[2]):
        parts = [value for value in (_good(send), _good(receive)) if value is not None]
        if not parts:
            continue
        raw = f"{send} + {receive}" if receive else send
        readings = {"latency_s": Reading(sum(parts) * MICRO, raw, "us")}
        key = (f"{operation.lower()} send and receive", case)
        points.setdefault(key, []).append(Point(f"line {number}", {"rank": float(rank)}, readings, {}, f"rank {rank}"))


def _run(key: tuple[str, str], points: Sequence[Point], settings: Mapping[str, int], ranks: int | None) -> ParsedRun:
    operation, case = key
    record = Fields({})
    where = points[0].at if len(points) == 1 else f"{points[0].at} to {points[-1].at}"
    for metric, unit, scale in (("latency_s", "us", MICRO), ("algorithm_bandwidth_bytes_per_s", "GB/s", GIGA)):
        found = [point.readings[metric] for point in points if metric in point.readings]
        if len(found) == 1:
            record.add(metric, found[0].value, at=where, raw=found[0].raw, raw_unit=found[0].unit)
        elif found:
            values = Values()
            for reading in found:
                values.add(reading.value)
            for stat, value in values.statistics().items():
                raw = f"computed from {len(found)} ranks: {value / scale:.6g}"
                record.add(metric, value, at=where, raw=raw, raw_unit=unit, stat=stat, count=len(found))
    seen = len({point.x["rank"] for point in points if "rank" in point.x})
    title = operation + (f" ({case})" if case else "")
    extra: dict[str, Any] = {"operation": operation, "case": case or None, "ranks_shown": seen or None, "ranks": ranks}
    extra |= settings
    unknown = {"hardware": "device", "links": "links between the nodes"}
    if ranks is None:
        unknown["ranks"] = "number of ranks"
    if "hidden" not in settings:
        unknown["shape"] = "tokens, hidden size and experts"
    return sweep_run(
        f"DeepEP {title}" + (f", {ranks} ranks" if ranks else f", {seen} ranks shown" if seen > 1 else ""),
        list(points),
        family="moe dispatch",
        x=Axis("rank", "Rank", ordered=False),
        y=_Y,
        group="deepep",
        label=title,
        head=Point(where, {}, {}),
        extra=extra,
        series={"operation": operation} | ({"case": case} if case else {}),
        parallel={"ep": ranks} if ranks else None,
        software={"benchmark": "DeepEP"},
        findings=serving.facts_finding(unknown),
        metrics=record,
    )
