"""What one lever does to a step: each resource's busy time before and after it, then the bounds and the forecast."""

from __future__ import annotations

from typing import Any

from app.charts.base import RESOURCE_LABELS, RESOURCE_TOKENS, ChartSpec, seconds, time_axis
from app.domain.expected import Expected
from app.domain.lower_bound import RESOURCES, Bound

MARK = "var(--chart-mark)"


def lever_effect(
    before: tuple[Bound, Expected],
    after: tuple[Bound, Expected],
    *,
    labels: tuple[str, str],
    title: str,
    caption: str = "",
) -> ChartSpec:
    """Pairs of horizontal bars in seconds a step: outlined before the lever, solid behind it.

    `labels` name the two, "Before" and "After" or "Without" and "With". Resources that neither uses are left out.
    """
    rows = effect_rows(before, after)
    shown = [(name, token, one, two) for name, token, one, two in rows if one > 0 or two > 0]
    factor, unit = time_axis([max(one, two) for _, _, one, two in shown])
    names = [name for name, _, _, _ in shown]
    colours = [token for _, token, _, _ in shown]
    longest = max(max(one, two) for _, _, one, two in shown)
    traces: list[dict[str, Any]] = []
    for place, words in enumerate(labels):
        values = [(one, two)[place] for _, _, one, two in shown]
        marker: dict[str, Any] = {"color": colours}
        if place == 0:
            marker = {"color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": colours}}
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [value / factor for value in values],
                "name": words,
                "marker": marker,
                "text": [seconds(value) if value > 0 else "none" for value in values],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": f"%{{y}}, {words.lower()}: %{{text}}<extra></extra>",
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "group",
            "bargap": 0.28,
            "bargroupgap": 0.06,
            "height": 66 + 44 * len(names),
            "margin": {"l": 118, "r": 24, "t": 8, "b": 44},
            "xaxis": {"title": {"text": f"Time of a step, {unit}"}, "range": [0, longest * 1.24 / factor]},
            "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": names},
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Part of the step", "head": True},
                *({"label": words, "unit": "s"} for words in labels),
                {"label": "Saved", "unit": "s"},
            ],
            "rows": [[name, one, two, one - two] for name, _, one, two in rows],
        },
        meta={"title": title, "caption": caption},
    )


def effect_rows(before: tuple[Bound, Expected], after: tuple[Bound, Expected]) -> list[tuple[str, str, float, float]]:
    """(label, colour, seconds before, seconds after): busy time of each resource, both bounds, the expected time."""
    (one, forecast_one), (two, forecast_two) = before, after
    rows = [
        (RESOURCE_LABELS[name], RESOURCE_TOKENS[name], float(one.terms[name]), float(two.terms[name]))
        for name in RESOURCES
    ]
    return [
        *rows,
        ("Bound", MARK, float(one.overlapped), float(two.overlapped)),
        ("Serial bound", MARK, float(one.serial), float(two.serial)),
        ("Expected", MARK, forecast_one.time, forecast_two.time),
    ]
