"""A ledger of levers: what each step saves, booked, from the baseline to the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.charts.base import ChartSpec, label, names_above, seconds, time_axis

BAR = 0.5
"""Height of a bar over the place that it has; its name stands in the rest."""

BOOK_LABELS: Mapping[str, str] = {
    "kernel": "Kernel",
    "communication": "Communication",
    "runtime": "Runtime",
    "algorithmic": "Algorithmic",
}
BOOK_TOKENS: Mapping[str, str] = {
    "kernel": "var(--resource-compute)",
    "communication": "var(--resource-link-near)",
    "runtime": "var(--resource-launch)",
    "algorithmic": "var(--resource-link-far)",
}


def ledger_waterfall(rows: Sequence[Mapping[str, Any]], *, title: str, caption: str = "") -> ChartSpec:
    """Horizontal waterfall of the serial bound: baseline, one bar a lever, what remains.

    `rows` are those of the API's ledger. The serial bound is drawn because every operation counts in it; what a lever
    does to the overlapped bound and to the forecast stands in the table. A lever that costs time runs to the right.
    """
    steps = [(row["before"]["serial_bound_s"], row["after"]["serial_bound_s"]) for row in rows]
    first, last = steps[0][0], steps[-1][1]
    longest = max(first, *(after for _, after in steps))
    factor, unit = time_axis([longest])
    names = ["Baseline", *(label(row["title"]) for row in rows), "With all levers"]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [names[0], names[-1]],
            "x": [first / factor, last / factor],
            "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "var(--chart-mark)"}},
            "text": [seconds(first), seconds(last)],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "name": "bound",
        }
    ]
    for book, words in BOOK_LABELS.items():
        mine = [
            (name, before, after)
            for name, row, (before, after) in zip(names[1:-1], rows, steps, strict=True)
            if row["book_as"] == book
        ]
        if not mine:
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": [name for name, _, _ in mine],
                "x": [abs(before - after) / factor for _, before, after in mine],
                "base": [min(before, after) / factor for _, before, after in mine],
                "marker": {"color": BOOK_TOKENS[book]},
                "text": [_change(before - after) for _, before, after in mine],
                "textposition": "auto",
                "hovertemplate": f"{words}, %{{y}}: %{{text}}<extra></extra>",
                "name": words,
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 100 + 50 * len(names),
            "bargap": 1 - BAR,
            "margin": {"l": 12, "r": 24, "t": 8, "b": 44},
            "xaxis": {
                "title": {"text": f"Serial bound of a step, {unit}"},
                "range": [0, longest * 1.2 / factor],
            },
            # a bar of no length has no room for its words
            **names_above(
                names,
                BAR,
                words=[
                    names[0],
                    *(
                        f"{name}: no change" if a == b else name
                        for name, (a, b) in zip(names[1:-1], steps, strict=True)
                    ),
                    names[-1],
                ],
            ),
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table=ledger_table(rows),
        meta={"title": title, "caption": caption},
    )


def _change(saved: float) -> str:
    if saved == 0:
        return "no change"
    return f"saves {seconds(saved)}" if saved > 0 else f"costs {seconds(-saved)}"


def ledger_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ledger in numbers: time by bound and forecast, bytes, FLOP, launches and memory that each step saves."""
    return {
        "columns": [
            {"label": "Lever", "head": True},
            {"label": "Booked as"},
            {"label": "Bound after", "unit": "s"},
            {"label": "Bound saved", "unit": "s"},
            {"label": "Serial saved", "unit": "s"},
            {"label": "Expected saved", "unit": "s"},
            {"label": "HBM saved", "unit": "B", "decimal": True},
            {"label": "Link saved", "unit": "B", "decimal": True},
            {"label": "FLOP saved", "unit": "FLOP"},
            {"label": "Launches saved", "numeric": True},
            {"label": "Memory saved", "unit": "B"},
        ],
        "rows": [
            [
                {"text": row["title"], "title": row["notes"]},
                BOOK_LABELS[row["book_as"]],
                row["after_s"],
                row["saved_s"],
                row["saved_serial_s"],
                row["saved_expected_s"],
                row["saved_bytes"],
                row["saved_net_bytes"],
                row["saved_flop"],
                row["saved_launches"],
                row["saved_memory_bytes"],
            ]
            for row in rows
        ],
    }
