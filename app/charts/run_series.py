"""Measured times of a file's runs over the value that tells them apart, beside their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.base import ChartSpec, label, seconds, time_axis

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One run of a line: `x` on the axis, seconds measured, and the bound where there is one."""

    name: str
    x: float
    measured: float
    bound: float | None
    url: str = ""


def run_series(
    lines: Mapping[str, Sequence[SeriesPoint]], *, x_label: str, y_label: str, title: str, caption: str = ""
) -> ChartSpec:
    """Measured points joined by a line for each label, and the bound of each as a thin outline below."""
    points = [point for line in lines.values() for point in line]
    factor, unit = time_axis([p.measured for p in points] + [p.bound for p in points if p.bound is not None])
    traces: list[dict[str, Any]] = []
    for place, (name, line) in enumerate(lines.items()):
        shown = label(name)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"Measured, {shown}" if shown else "Measured",
                "x": [p.x for p in line],
                "y": [p.measured / factor for p in line],
                "text": [f"{label(p.name)}<br>{seconds(p.measured)}" for p in line],
                "hovertemplate": "%{text}<extra></extra>",
                "line": {"color": "var(--chart-mark)", "dash": _DASHES[place % len(_DASHES)], "width": 1.5},
                "marker": {"color": "var(--chart-mark)", "symbol": _SYMBOLS[place % len(_SYMBOLS)], "size": 8},
            }
        )
        bounded = [p for p in line if p.bound is not None]
        if bounded:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"Bound, {shown}" if shown else "Bound",
                    "x": [p.x for p in bounded],
                    "y": [(p.bound or 0.0) / factor for p in bounded],
                    "text": [f"Bound of {label(p.name)}<br>{seconds(p.bound or 0.0)}" for p in bounded],
                    "hovertemplate": "%{text}<extra></extra>",
                    "line": {"color": "var(--accent)", "dash": _DASHES[place % len(_DASHES)], "width": 1},
                    "marker": {
                        "color": "var(--paper)",
                        "symbol": _SYMBOLS[place % len(_SYMBOLS)],
                        "size": 7,
                        "line": {"color": "var(--accent)", "width": 1.5},
                    },
                }
            )
    rows = [
        [
            {"text": point.name, "href": point.url},
            point.x,
            point.measured,
            point.bound,
            None if point.bound is None else point.bound / point.measured,
        ]
        for point in points
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "margin": {"l": 60, "r": 16, "t": 8, "b": 52},
            "xaxis": {"title": {"text": label(x_label)}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"{label(y_label)}, {unit}"}, "rangemode": "tozero"},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Run", "head": True},
                {"label": x_label, "numeric": True},
                {"label": "Measured", "unit": "s"},
                {"label": "Bound", "unit": "s"},
                {"label": "Of bound", "unit": "ratio"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )
