"""One metric of a comparison as bars: measured solid, bounds as outlines, the expected range as a line below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.charts.base import ChartSpec, label, names_above, seconds, short, time_axis, with_prefix

BAR = 0.44
"""Height of a bar, as a share of the room that an item has."""

MAX_NAME = 42
"""Characters of an item's label that a bar is named with; the whole label is in the table."""


def comparison_bars(
    items: Sequence[Mapping[str, Any]], row: Mapping[str, Any], *, baseline: int, title: str, caption: str = ""
) -> ChartSpec:
    """Horizontal bars of a frozen metric row, in the order of the items; what an item does not report has no bar.

    `items` and `row` are those of a comparison's snapshot. The dashed line is the baseline's value.
    """
    cells = row["cells"]
    factor, unit = _scale(row["unit"], [c["value"] for c in cells if c is not None])
    names = bar_names(items, baseline)
    traces: list[dict[str, Any]] = []
    shown = [(name, cell) for name, cell in zip(names, cells, strict=True) if cell is not None]
    for kind in ("measured", "bound", "expected"):
        mine = [(number, name, c) for number, (name, c) in enumerate(zip(names, cells, strict=True)) if _is(c, kind)]
        if not mine:
            continue
        colours = ["var(--chart-mark)" if number == baseline else "var(--accent)" for number, _, _ in mine]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": kind,
                "y": [name for _, name, _ in mine],
                "x": [c["value"] / factor for _, _, c in mine],
                "meta": {"kind": kind},
                "marker": {"color": colours},
                "text": [label(bar_text(c, row)) for _, _, c in mine],
                "customdata": [label(c["reason"] or c["words"]) for _, _, c in mine],
                "textposition": "auto",
                "insidetextanchor": "start",
                "hovertemplate": "%{y}: %{text}<br>%{customdata}<extra></extra>",
            }
        )
    bands = [(name, cell) for name, cell in shown if _band(cell)]
    if bands:
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "expected range",
                "y": [name for name, _ in bands],
                "x": [(c["expected_high"] - c["expected_low"]) / factor for _, c in bands],
                "base": [c["expected_low"] / factor for _, c in bands],
                # below its bar, so that it hides no number
                "offset": BAR / 2 + 0.06,
                "width": 0.12,
                "meta": {"kind": "expected"},
                "marker": {"color": "var(--chart-mark)"},
                "hovertemplate": "%{customdata}<extra></extra>",
                "customdata": [
                    f"expected {shown_value(c['expected_low'], row['unit'])}"
                    f" to {shown_value(c['expected_high'], row['unit'])}"
                    for _, c in bands
                ],
            }
        )
    shapes = []
    base = cells[baseline]
    if base is not None:
        at = base["value"] / factor
        shapes.append(
            {
                "type": "line",
                "x0": at,
                "x1": at,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": "var(--chart-axis)", "width": 1, "dash": "dash"},
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 110 + 54 * len(items),
            "bargap": 1 - BAR,
            "margin": {"l": 12, "r": 24, "t": 8, "b": 48},
            "xaxis": {
                "title": {"text": row["label"] if row["label"].endswith(unit) else f"{row['label']}, {unit}"},
                "rangemode": "tozero",
                "exponentformat": "SI",
            },
            "shapes": shapes,
            **names_above(
                names,
                BAR,
                words=[
                    name if cell is not None else f"{name}: not reported"
                    for name, cell in zip(names, cells, strict=True)
                ],
            ),
            "showlegend": len(traces) > 1,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table=metric_table(items, row),
        meta={"title": title, "caption": caption},
    )


def metric_table(items: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers as a table, as the table macro takes it."""
    return {
        "columns": [
            {"label": "Item", "head": True},
            {"label": row["label"], "unit": row["unit"]},
            {"label": "Ratio to baseline", "numeric": True},
            {"label": "In words", "wrap": True},
            {"label": "Kind"},
        ],
        "rows": [
            [item["label"], None, None, "not reported", ""]
            if cell is None
            else [item["label"], cell["value"], cell["ratio"], cell["reason"] or cell["words"], cell["kind"]]
            for item, cell in zip(items, row["cells"], strict=True)
        ],
    }


def bar_names(items: Sequence[Mapping[str, Any]], baseline: int) -> list[str]:
    """Short names for bars, all different, since bars of one name would lie on each other; escaped for plotly.js."""
    names: list[str] = []
    for number, item in enumerate(items):
        text = str(item["label"])
        plain = text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"
        name = label(plain) + (" (baseline)" if number == baseline else "")
        names.append(name if name not in names else f"{number + 1}. {name}")
    return names


def static_bars(items: Sequence[Mapping[str, Any]], row: Mapping[str, Any], baseline: int) -> list[dict[str, Any]]:
    """The bars as plain geometry for a drawing without plotly.js: widths are shares of the widest, 0 to 1."""
    largest = max((abs(c["value"]) for c in row["cells"] if c is not None), default=0.0) or 1.0
    bars = []
    for number, (item, cell) in enumerate(zip(items, row["cells"], strict=True)):
        bars.append(
            {
                "label": item["label"],
                "is_baseline": number == baseline,
                "share": 0.0 if cell is None else max(cell["value"], 0.0) / largest,
                "kind": None if cell is None else cell["kind"],
                "text": "not reported" if cell is None else bar_text(cell, row),
            }
        )
    return bars


def bar_text(cell: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What stands at a bar: the value with its unit, and its ratio to the baseline."""
    value = shown_value(cell["value"], row["unit"])
    if cell["verdict"] in ("better", "worse", "same", "changed"):
        return f"{value}, {cell['words'].split(',')[0]}" if cell["ratio"] is not None else value
    return value


def shown_value(value: float, unit: str) -> str:
    """A value with its unit, for labels drawn in a chart."""
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return f"{short(value / 2**30)} GiB" if abs(value) >= 2**20 else f"{short(value)} B"
    if unit in ("B/s", "FLOP/s", "W", "J"):
        return with_prefix(value, unit)
    if unit == "1":
        return short(value)
    number = f"{value:,.0f}" if abs(value) >= 1000 else short(value)
    return f"{number} {'per s' if unit == '1/s' else unit}"


def _is(cell: Mapping[str, Any] | None, kind: str) -> bool:
    return cell is not None and cell["kind"] == kind


def _band(cell: Mapping[str, Any]) -> bool:
    return cell["expected_low"] is not None and cell["expected_high"] is not None


def _scale(unit: str, values: Sequence[float]) -> tuple[float, str]:
    """Factor and unit of the axis."""
    if unit == "s":
        return time_axis(values)
    if unit == "B":
        return (2.0**30, "GiB") if max(values, default=0.0) >= 2**20 else (1.0, "B")
    if unit in ("B/s", "FLOP/s", "W", "J"):
        largest = max((abs(v) for v in values), default=0.0)
        for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if largest >= factor:
                return factor, f"{prefix}{unit}"
    return 1.0, {"1": "", "1/s": "per s"}.get(unit, unit)
