"""What every chart is made of: traces and layout as plotly.js takes them, and the table that says the same."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TRACE_TYPES = frozenset({"scatter", "bar", "box", "heatmap", "histogram"})
"""Trace types of the bundled plotly.js that we use. It draws an unknown type as something else without a word."""

RESOURCE_TOKENS: Mapping[str, str] = {
    "compute": "var(--resource-compute)",
    "hbm": "var(--resource-hbm)",
    "net": "var(--resource-link-near)",
    "launch": "var(--resource-launch)",
    "sync": "var(--resource-sync)",
    "imbalance": "var(--resource-imbalance)",
    "other": "var(--resource-other)",
}
RESOURCE_LABELS: Mapping[str, str] = {
    "compute": "Compute",
    "hbm": "HBM",
    "net": "Network",
    "launch": "Launch",
    "sync": "Synchronisation",
    "imbalance": "Imbalance",
    "other": "Other",
}


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """A chart and its table twin.

    `table` is `{"columns": [...], "rows": [...]}` as the table macro takes it: the same numbers as the drawing, for
    readers without a picture. `meta` carries title (the finding in words) and caption (the conditions).
    """

    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    table: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for trace in self.data:
            if trace.get("type") not in TRACE_TYPES:
                raise ValueError(f"trace type {trace.get('type')!r} is not in the bundle")


def label(text: str) -> str:
    """A person's text inside a chart: plotly.js reads labels as a small HTML, so its signs are escaped."""
    return html.escape(text, quote=False)


def names_above(names: Sequence[str], bar: float, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Layout of horizontal bars, first on top, with their names above them: beside them a phone has no room for names.

    `bar` is the height of a bar over its place, `words` what stands there instead of the names.
    """
    return {
        "yaxis": {
            "autorange": "reversed",
            "categoryorder": "array",
            "categoryarray": list(names),
            "showticklabels": False,
            "ticks": "",
        },
        "annotations": [
            {
                "x": 0,
                "y": number - bar / 2,  # on an axis of names, places count from 0
                "text": text,
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 1,
                "showarrow": False,
                "align": "left",
                "font": {"size": 13, "color": "var(--chart-text)"},
            }
            for number, text in enumerate(words or names)
        ],
    }


def short(number: float, digits: int = 3) -> str:
    """`number` with a few significant digits and no exponent in the usual range, for labels drawn in a chart."""
    text = f"{number:.{digits}g}"
    return f"{number:,.0f}" if "e" in text and abs(number) < 1e15 else text


def with_prefix(number: float, unit: str) -> str:
    """`number` with a decimal prefix: 3.35e12 B/s is "3.35 TB/s"."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor * 0.9995:
            return f"{short(number / factor)} {prefix}{unit}"
    return f"{short(number)} {unit}"


def seconds(number: float) -> str:
    """A time with the prefix that fits: 0.0147 is "14.7 ms"."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(number) >= factor * 0.9995:
            return f"{short(number / factor)} {unit}"
    return f"{short(number / 1e-9)} ns"


def log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with a tick at each decade."""
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "title": {"text": title},
        "dtick": 1,
        "tickformat": "~s",
    }


def time_axis(values: Sequence[float]) -> tuple[float, str]:
    """Factor and unit in which all of `values` read best on one axis."""
    largest = max((abs(v) for v in values), default=0.0)
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if largest >= factor:
            return factor, unit
    return 1e-9, "ns"
