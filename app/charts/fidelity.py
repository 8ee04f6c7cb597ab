"""Measured times over bounds and over forecasts, kind by kind, as boxes on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from app.catalog.fidelity import Group
from app.charts.base import ChartSpec, label

LINE = 16
"""Pixels of one line of a kind's name: a row is as high as the longest name."""

_MARKS = (
    ("over bound", "over_bound", "rgba(0,0,0,0)", "var(--chart-mark)"),
    ("over forecast", "over_expected", "var(--resource-compute) / 45%", "var(--resource-compute)"),
)


def fidelity_boxes(groups: Sequence[Group], *, title: str, caption: str) -> ChartSpec:
    """Two boxes a kind: quartiles, with whiskers to the 10th and 90th percentile. One is the bound or the forecast."""
    names = [group.title for group in groups]
    folded = [_folded(name) for name in names]
    most_lines = max([2, *(text.count("<br>") + 1 for text in folded)])
    traces: list[dict[str, Any]] = []
    for name, column, fill, line in _MARKS:
        values = [getattr(group, column) for group in groups]
        traces.append(
            {
                "type": "box",
                "orientation": "h",
                "y": names,
                "lowerfence": [v[0] for v in values],
                "q1": [v[1] for v in values],
                "median": [v[2] for v in values],
                "q3": [v[3] for v in values],
                "upperfence": [v[4] for v in values],
                "name": f"Measured {name}",
                "fillcolor": fill,
                "line": {"color": line, "width": 1.2},
                "whiskerwidth": 0.5,
                "hoverinfo": "x+y+name",
            }
        )
    far = max((group.over_bound[4] for group in groups), default=10.0)
    return ChartSpec(
        data=tuple(traces),
        layout={
            "boxmode": "group",
            "boxgap": 0.25,
            "boxgroupgap": 0.1,
            "height": 60 + LINE * most_lines * len(groups),
            "margin": {"l": 8, "r": 16, "t": 4, "b": 44},
            "xaxis": {
                "title": {"text": "Measured time as a multiple"},
                "type": "log",
                "range": [-0.5, math.log10(max(far, 18.0)) + 0.05],
                "tickvals": [0.5, 1, 3, 10, 30, 100],
                "ticktext": ["0.5", "1", "3", "10", "30", "100"],
            },
            "yaxis": {
                "autorange": "reversed",
                "automargin": True,
                "categoryorder": "array",
                "categoryarray": names,
                "tickvals": names,
                "ticktext": folded,
                "tickfont": {"size": 11},
            },
            "shapes": [
                {
                    "type": "line",
                    "x0": 1,
                    "x1": 1,
                    "y0": 0,
                    "y1": 1,
                    "yref": "paper",
                    "line": {"color": "var(--chart-mark)", "width": 1, "dash": "dot"},
                }
            ],
            "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Kind"},
                {"label": "Over bound, 10th", "numeric": True},
                {"label": "median", "numeric": True},
                {"label": "90th", "numeric": True},
                {"label": "Over forecast, 10th", "numeric": True},
                {"label": "median", "numeric": True},
                {"label": "90th", "numeric": True},
            ],
            "rows": [
                [g.title, *(g.over_bound[i] for i in (0, 2, 4)), *(g.over_expected[i] for i in (0, 2, 4))]
                for g in groups
            ],
        },
        meta={"title": title, "caption": caption},
    )


def _folded(kind: str, width: int = 17) -> str:
    """A kind on lines that leave a phone room for the boxes."""
    lines = [""]
    for word in kind.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(label(line) for line in lines)
