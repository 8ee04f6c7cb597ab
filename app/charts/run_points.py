"""Points of a micro-benchmark, or of a log's steps, over what was varied: one measured quantity a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.base import ChartSpec, label, seconds, short, time_axis, with_prefix
from app.charts.communication import binary_size

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
_MOST_MARKED = 80
"""Points of a line that get marks; a longer line is drawn alone."""

_LOG_X = 30.0
_LOG_Y = 50.0
"""Ratios of the largest to the least value from which an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class PointOfLine:
    """`x` on the axis and `y` in SI units; `name` and `url` are those of the run or row."""

    x: float
    y: float
    name: str = ""
    url: str = ""


def value_words(value: float, unit: str) -> str:
    """A value as people read it: 482 GB/s, 12.3 ms, 8 MiB."""
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return binary_size(value)
    return with_prefix(value, unit) if unit else short(value)


def run_points(
    lines: Mapping[str, Sequence[PointOfLine]],
    *,
    own: int,
    x_label: str,
    x_unit: str,
    y_label: str,
    y_unit: str,
    title: str,
    caption: str = "",
    ordered: bool = True,
    linear: bool = False,
) -> ChartSpec:
    """The first `own` lines are those of the run at hand and drawn strongly, the others stand beside it.

    Points over an axis that is not `ordered` (ranks, problems) are not joined. A wide axis is logarithmic unless it is
    `linear` (steps of a training).
    """
    points = [point for line in lines.values() for point in line]
    factor, unit = _scale([point.y for point in points], y_unit)
    traces: list[dict[str, Any]] = []
    for place, (name, line) in enumerate(lines.items()):
        colour = "var(--accent)" if place < own else "var(--chart-mark)"
        marked = len(line) <= _MOST_MARKED
        traces.append(
            {
                "type": "scatter",
                "mode": "markers" if not ordered else "lines+markers" if marked else "lines",
                "name": label(name) or y_label,
                "x": [point.x for point in line],
                "y": [point.y / factor for point in line],
                "text": [
                    f"{label(point.name or name)}<br>{_at(point.x, x_label, x_unit)}: {value_words(point.y, y_unit)}"
                    for point in line
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "line": {"color": colour, "dash": _DASHES[place % len(_DASHES)], "width": 2 if place < own else 1.2},
                "marker": {"color": colour, "symbol": _SYMBOLS[place % len(_SYMBOLS)], "size": 7 if place < own else 5},
            }
        )
    rows = [
        [
            {"text": point.name or name, "href": point.url} if point.url else point.name or name,
            name,
            {"text": value_words(point.x, x_unit) if x_unit else short(point.x, 6), "value": point.x},
            point.y,
        ]
        for name, line in lines.items()
        for point in line
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "margin": {"l": 60, "r": 16, "t": 8, "b": 52},
            "xaxis": _x_axis([point.x for point in points], x_label, x_unit, ordered and not linear),
            "yaxis": {"title": {"text": f"{y_label}, {unit}" if unit else y_label}, **_y_kind(points)},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "showlegend": len(lines) > 1,
        },
        table={
            "columns": [
                {"label": "Point", "head": True, "wrap": True},
                {"label": "Line"},
                {"label": x_label, "numeric": True},
                {"label": y_label, "unit": y_unit} if y_unit else {"label": y_label, "numeric": True},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


def _at(x: float, x_label: str, x_unit: str) -> str:
    return value_words(x, x_unit) if x_unit else f"{label(x_label)} {short(x, 6)}"


def _scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Factor and unit in which all values read best on one axis."""
    if unit == "s":
        return time_axis(values)
    largest = max((abs(value) for value in values), default=0.0)
    if unit == "B":
        for size, word in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
            if largest >= size:
                return size, word
        return 1.0, "B"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit and largest >= factor:
            return factor, f"{prefix}{unit}"
    return 1.0, unit


def _x_axis(values: Sequence[float], x_label: str, x_unit: str, may_be_log: bool) -> dict[str, Any]:
    shown = sorted(set(values))
    if not may_be_log or len(shown) < 2 or shown[0] <= 0 or shown[-1] / shown[0] < _LOG_X:
        return {"title": {"text": label(x_label)}, "rangemode": "normal"}
    apart = math.log(shown[-1] / shown[0]) / 5  # five labels fit a phone
    ticks = [shown[0]]
    for value in shown[1:]:
        if math.log(value / ticks[-1]) >= apart:
            ticks.append(value)
    return {
        "type": "log",
        "title": {"text": label(x_label)},
        "tickvals": ticks,
        "ticktext": [value_words(tick, x_unit) if x_unit else short(tick, 6) for tick in ticks],
        "tickangle": 0,
    }


def _y_kind(points: Sequence[PointOfLine]) -> dict[str, Any]:
    values = [point.y for point in points]
    if values and min(values) > 0 and max(values) / min(values) >= _LOG_Y:
        return {"type": "log"}
    return {"rangemode": "tozero"}
