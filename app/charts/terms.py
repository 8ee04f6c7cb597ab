"""The terms of a bound as a waterfall: what each resource adds when no operation overlaps another."""

from __future__ import annotations

from typing import Any

from app.charts.base import RESOURCE_LABELS, RESOURCE_TOKENS, ChartSpec, seconds, time_axis
from app.domain.expected import Expected
from app.domain.lower_bound import RESOURCES, Bound

ROUNDING = 1e-9
"""Share of a time below which a difference of sums is no time at all."""


def serial_parts(bound: Bound) -> dict[str, float]:
    """Seconds of the serial bound by the resource that binds each operation; their sum is the serial bound."""
    parts = dict.fromkeys(RESOURCES, 0.0)
    for binding, time, count in zip(bound.op_binding(), bound.op_time, bound.table["count"], strict=True):
        parts[binding] += float(time * count)
    imbalance = float(bound.terms["imbalance"])
    parts["imbalance"] += imbalance
    parts["sync"] += float(bound.serial_waiting) - imbalance
    # in eager mode the kernels may take longer to launch than to run
    rest = float(bound.serial) - sum(parts.values())
    if rest > ROUNDING * float(bound.serial):
        parts["launch"] += rest
    return parts


def terms_beside(one: tuple[Bound, str], two: tuple[Bound, str], *, title: str, caption: str = "") -> ChartSpec:
    """Two serial bounds as stacked bars, split by the resource that binds each operation."""
    parts = [(name, serial_parts(bound)) for bound, name in (one, two)]
    longest = max(sum(values.values()) for _, values in parts)
    factor, unit = time_axis([longest])
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [name for name, _ in parts],
            "x": [values[resource] / factor for _, values in parts],
            "name": RESOURCE_LABELS[resource],
            "marker": {"color": RESOURCE_TOKENS[resource]},
            "text": [seconds(values[resource]) if values[resource] > 0.06 * longest else "" for _, values in parts],
            "textposition": "inside",
            "hovertemplate": f"{RESOURCE_LABELS[resource]}: %{{x:.4~g}} {unit}<extra></extra>",
        }
        for resource in RESOURCES
        if any(values[resource] > 0 for _, values in parts)
    ]
    rows = [
        [RESOURCE_LABELS[resource], *(values[resource] for _, values in parts)]
        for resource in RESOURCES
        if any(values[resource] > 0 for _, values in parts)
    ]
    rows.append(["Serial bound", *(sum(values.values()) for _, values in parts)])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "height": 190,
            "margin": {"l": 72, "r": 24, "t": 8, "b": 44},
            "xaxis": {"title": {"text": f"Serial bound of a step, {unit}"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed"},
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table={
            "columns": [{"label": "Binds"}, *({"label": name, "unit": "s"} for name, _ in parts)],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


def terms_waterfall(bound: Bound, expected: Expected, *, title: str, caption: str = "") -> ChartSpec:
    """Horizontal waterfall to the serial bound, then the overlapped floor and the expected range for comparison."""
    parts = serial_parts(bound)
    shown = [(name, value) for name, value in parts.items() if value > 0]
    serial, floor = float(bound.serial), float(bound.overlapped)
    factor, unit = time_axis([serial, floor, expected.high])
    names = [RESOURCE_LABELS[name] for name, _ in shown] + ["Serial bound", "Overlapped bound", "Expected"]
    starts, running = [], 0.0
    for _, value in shown:
        starts.append(running)
        running += value
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names[: len(shown)],
            "x": [value / factor for _, value in shown],
            "base": [start / factor for start in starts],
            "marker": {"color": [RESOURCE_TOKENS[name] for name, _ in shown]},
            "text": [seconds(value) for _, value in shown],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "name": "by binding resource",
        },
        {
            "type": "bar",
            "orientation": "h",
            "y": names[len(shown) : len(shown) + 2],
            "x": [serial / factor, floor / factor],
            "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "var(--chart-mark)"}},
            "text": [seconds(serial), seconds(floor)],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "name": "bound",
        },
        {
            "type": "bar",
            "orientation": "h",
            "y": names[-1:],
            "x": [(expected.high - expected.low) / factor],
            "base": [expected.low / factor],
            "marker": {"color": "var(--chart-mark) / 30%"},
            "text": [f"{seconds(expected.low)} to {seconds(expected.high)}"],
            "textposition": "auto",
            "hovertemplate": "Expected: %{text}<extra></extra>",
            "name": "expected range",
        },
    ]
    rows = [
        [RESOURCE_LABELS[name], float(bound.terms[name]), parts[name], parts[name] / serial if serial else None]
        for name in RESOURCES
    ]
    rows.append(["Sum of the serial parts", None, sum(parts.values()), 1.0])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 56 + 34 * len(names),
            "margin": {"l": 132, "r": 24, "t": 8, "b": 44},
            "xaxis": {
                "title": {"text": f"Time of a step, {unit}"},
                "range": [0, max(serial, floor, expected.high) * 1.22 / factor],
            },
            "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": names},
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Resource"},
                {"label": "Busy for", "unit": "s", "title": "Seconds the resource works in a step"},
                {"label": "Binds for", "unit": "s", "title": "Seconds of operations that this resource binds"},
                {"label": "Share of serial bound", "unit": "ratio"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )
