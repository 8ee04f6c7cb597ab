"""Measured time as one bar: the bound, the named terms of the gap, and the rest."""

from __future__ import annotations

from typing import Any

from app.charts.base import RESOURCE_TOKENS, ChartSpec, seconds, time_axis
from app.domain.gap import GapPart
from app.domain.run_analysis import BoundRow

_OUTLINE = {"color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "var(--chart-mark)"}}


def run_gap(row: BoundRow, *, title: str, caption: str = "") -> ChartSpec:
    """One horizontal bar that adds up to the measured time, over the outline of the bound.

    A contradiction has no pieces: the measured bar then ends before the bound's outline.
    """
    factor, unit = time_axis([row.measured, row.bound])
    traces: list[dict[str, Any]] = []
    pieces = row.gap or (GapPart("other", "Measured, faster than the bound", row.measured, "unexplained"),)
    start = 0.0
    for piece in pieces:
        label, resource, time = piece.label, piece.resource, piece.time
        # the bound is solid; what lies above it is a tint of the resource that it is lost on
        marker: dict[str, Any] = {"color": RESOURCE_TOKENS[resource] + ("" if piece.term == "bound" else " / 45%")}
        wide = time > 0.12 * max(row.measured, row.bound)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": ["Measured"],
                "x": [time / factor],
                "base": [start / factor],
                "name": label,
                "marker": marker,
                "text": [seconds(time) if wide else ""],
                "textposition": "inside",
                "insidetextanchor": "middle",
                # a sliver is in the table; in the legend it would only promise what nobody can see
                "showlegend": time > 0.005 * row.measured,
                "hovertemplate": f"{label}: {seconds(time)}<extra></extra>",
            }
        )
        start += time
    traces.append(
        {
            "type": "bar",
            "orientation": "h",
            "y": ["Bound"],
            "x": [row.bound / factor],
            "base": [0],
            "name": "Bound",
            "marker": _OUTLINE,
            "text": [seconds(row.bound)],
            "textposition": "auto",
            "showlegend": False,
            "hovertemplate": f"Bound: {seconds(row.bound)}<extra></extra>",
        }
    )
    whole = row.gap_time
    rows: list[list[Any]] = [
        [
            {"text": piece.label, "note": piece.basis},
            piece.time,
            piece.time / row.measured,
            piece.time / whole if piece.term != "bound" and whole > 0 else None,
        ]
        for piece in pieces
    ]
    rows.append(["Measured", row.measured, 1.0, None])
    rows.append(["Bound", row.bound, row.of_bound, None])
    if row.expected is not None:
        rows.append([{"text": "Expected", "note": row.expected.basis}, row.expected.time, None, None])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 190,
            "bargap": 0.35,
            "margin": {"l": 78, "r": 16, "t": 4, "b": 44},
            "xaxis": {"title": {"text": f"Time, {unit}"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": ["Measured", "Bound"]},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Part", "head": True, "wrap": True},
                {"label": "Time", "unit": "s"},
                {"label": "Share of measured", "unit": "ratio"},
                {"label": "Share of the gap", "unit": "ratio"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )
