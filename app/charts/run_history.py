"""A series of runs over time: values with their spread, the baseline as a line, change points as verticals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.charts.base import ChartSpec, label, seconds, time_axis, with_prefix


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One run: when, its value in SI, the spread where there is one, and what to say of it."""

    name: str
    when: datetime
    value: float
    low: float | None
    high: float | None
    url: str
    software: str
    samples: int
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """From the point `index` on the level is another."""

    index: int
    words: str


def run_history(
    points: Sequence[HistoryPoint],
    changes: Sequence[HistoryChange],
    baseline: float | None,
    *,
    y_label: str,
    unit: str,
    title: str,
    caption: str = "",
) -> ChartSpec:
    """Values over time; where several runs share a moment, over their number, so that none hides another."""
    factor, shown_unit = time_axis([p.value for p in points]) if unit == "s" else _scale(points, unit)
    timed = len({p.when for p in points}) == len(points) and len(points) > 1
    x: list[Any] = [p.when.isoformat() for p in points] if timed else list(range(1, len(points) + 1))
    spread = [p for p in points if p.low is not None and p.high is not None]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "Measured",
        "x": x,
        "y": [p.value / factor for p in points],
        "text": [_hover(p, unit) for p in points],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": "var(--chart-mark)", "width": 1.5},
        "marker": {
            "color": ["var(--accent)" if p.is_baseline else "var(--chart-mark)" for p in points],
            "symbol": ["diamond" if p.is_baseline else "circle" for p in points],
            "size": [12 if p.is_baseline else 8 for p in points],
        },
    }
    if spread:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [0.0 if p.high is None else max(p.high - p.value, 0.0) / factor for p in points],
            "arrayminus": [0.0 if p.low is None else max(p.value - p.low, 0.0) / factor for p in points],
            "color": "var(--chart-mark)",
            "thickness": 1,
            "width": 3,
        }
    data: list[dict[str, Any]] = [trace]
    if baseline is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Baseline",
                "x": [x[0], x[-1]],
                "y": [baseline / factor, baseline / factor],
                "line": {"color": "var(--accent)", "dash": "dash", "width": 1.5},
                "hovertemplate": f"Baseline: {_said(baseline, unit)}<extra></extra>",
            }
        )
    low = min([*(p.value if p.low is None else min(p.low, p.value) for p in points), baseline or points[0].value])
    high = max([*(p.value if p.high is None else max(p.high, p.value) for p in points), baseline or points[0].value])
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    floor = max(low - room, 0.0) if low >= 0 else low - room
    for number, change in enumerate(changes):
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Change point",
                "showlegend": number == 0,
                "x": [x[change.index], x[change.index]],
                "y": [floor / factor, (high + room) / factor],
                "line": {"color": "var(--resource-launch)", "dash": "dot", "width": 1.5},
                "hovertemplate": f"{label(change.words)}<extra></extra>",
            }
        )
    changed = {change.index: change.words for change in changes}
    rows = [
        [
            {"text": p.name, "href": p.url, "note": changed.get(place, "")},
            {"text": p.when.strftime("%Y-%m-%d %H:%M")},
            p.value,
            p.low,
            p.high,
            p.value / baseline - 1 if baseline else None,
            {"text": "baseline"} if p.is_baseline else {"text": ""},
            {"text": p.software},
        ]
        for place, p in enumerate(points)
    ]
    return ChartSpec(
        data=tuple(data),
        layout={
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": {"title": {"text": "Measured" if timed else "Run, oldest first"}}
            | ({"type": "date"} if timed else {"dtick": max(1, len(points) // 12)}),
            "yaxis": {
                "title": {"text": f"{y_label}{f', {shown_unit}' if shown_unit else ''}"},
                "range": [floor / factor, (high + room) / factor],
            },
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Run", "head": True, "wrap": True},
                {"label": "Measured"},
                {"label": y_label, "unit": unit},
                {"label": "Low", "unit": unit, "title": "10th percentile of the samples, or mean less deviation"},
                {"label": "High", "unit": unit, "title": "90th percentile of the samples, or mean plus deviation"},
                {"label": "From baseline", "unit": "ratio"},
                {"label": ""},
                {"label": "Software", "wrap": True},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


def _scale(points: Sequence[HistoryPoint], unit: str) -> tuple[float, str]:
    largest = max((abs(p.value) for p in points), default=0.0)
    if unit in ("FLOP/s", "B/s", "B"):
        for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if largest >= factor:
                return factor, f"{prefix}{unit}"
    return 1.0, "" if unit == "1" else unit


def _said(value: float, unit: str) -> str:
    return seconds(value) if unit == "s" else with_prefix(value, "" if unit == "1" else unit).strip()


def _hover(point: HistoryPoint, unit: str) -> str:
    lines = [label(point.name), f"{point.when:%Y-%m-%d %H:%M}: {_said(point.value, unit)}"]
    if point.low is not None and point.high is not None:
        lines.append(f"{_said(point.low, unit)} to {_said(point.high, unit)}")
    if point.samples:
        lines.append(f"{point.samples:,} samples")
    if point.software:
        lines.append(label(point.software[:120]))
    return "<br>".join(lines)
