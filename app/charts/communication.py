"""Collectives over message sizes, timelines of lanes, and times over numbers of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.base import ChartSpec, label, seconds, short, time_axis, with_prefix

ALGORITHM_LABELS: Mapping[str, str] = {
    "ring": "Ring",
    "tree": "Tree",
    "hierarchical": "Hierarchical",
    "in_switch": "In-switch",
}
_DASHES: Mapping[str, str] = {"ring": "solid", "tree": "dash", "hierarchical": "longdash", "in_switch": "dashdot"}
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x")

WORK_COLOURS: Mapping[str, str] = {
    "compute": "var(--resource-compute)",
    "communication": "var(--resource-link-near)",
    "launch": "var(--resource-launch)",
    "F": "var(--resource-compute)",
    "B": "var(--resource-hbm)",
    "W": "var(--resource-link-near)",
}
WORK_LABELS: Mapping[str, str] = {
    "compute": "Product",
    "communication": "Communication",
    "launch": "Launch",
    "F": "Forward",
    "B": "Backward",
    "W": "Weight gradients",
}


def binary_size(size: float) -> str:
    """A size with the binary prefix that fits: 1048576 is "1 MiB"."""
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if size >= factor * 0.9995:
            return f"{short(size / factor)} {unit}"
    return f"{short(size)} B"


def _size_axis(sizes: Sequence[float]) -> dict[str, Any]:
    shown = sorted(set(sizes))
    every = max(1, -(-(len(shown) - 1) // 4))  # five labels fit a phone
    ticks = shown[::every]
    return {
        "type": "log",
        "title": {"text": "Message size"},
        "tickvals": ticks,
        "ticktext": [binary_size(size) for size in ticks],
        "tickangle": 0,
    }


def collective_over_sizes(answer: Mapping[str, Any], *, what: str, title: str, caption: str) -> ChartSpec:
    """Bound, algorithms and measured points over message sizes; `what` is `bus` (bandwidth) or `time`.

    `answer` is that of the API. The bound is the accent line: for time nothing lies below it, for bandwidth above.
    """
    points = answer["sizes"]
    names = [row["algorithm"] for row in answer["algorithms"] if row["available"]]
    key, unit = ("bus_bandwidth_bytes_per_s", "B/s") if what == "bus" else ("time_s", "s")
    bound_key = "bound_bus_bandwidth_bytes_per_s" if what == "bus" else "bound_s"
    sizes = [point["bytes"] for point in points]

    def shown(value: float) -> str:
        return with_prefix(value, "B/s") if what == "bus" else seconds(value)

    factor, axis = (1e9, "GB/s") if what == "bus" else (1e-6, "µs")
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "Bound",
            "x": sizes,
            "y": [None if point[bound_key] is None else point[bound_key] / factor for point in points],
            "line": {"color": "var(--accent)", "width": 2},
            "text": ["" if p[bound_key] is None else f"Bound<br>{shown(p[bound_key])}" for p in points],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]
    for name in names:
        values = [point["algorithms"][name][key] for point in points]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": ALGORITHM_LABELS[name],
                "x": sizes,
                "y": [None if value is None else value / factor for value in values],
                "line": {
                    "color": "var(--chart-mark)",
                    "dash": _DASHES[name],
                    "width": 2.5 if name == answer["algorithm"] else 1.2,
                },
                "text": [
                    f"{ALGORITHM_LABELS[name]}, {binary_size(size)}<br>{'' if value is None else shown(value)}"
                    for size, value in zip(sizes, values, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    # runs inside one node say nothing about links between nodes, and the other way round
    across = answer["ranks"] > answer["ranks_per_node"]
    measured = [
        m
        for m in answer["measured"]
        if min(sizes) / 2 <= m["bytes"] <= max(sizes) * 2 and (m["ranks"] > answer["ranks_per_node"]) == across
    ]
    groups = sorted({(m["uploaded"], m["ranks"]) for m in measured}, key=lambda g: (g[1] != answer["ranks"], g))
    for place, (uploaded, ranks) in enumerate(groups):
        mine = [m for m in measured if (m["uploaded"], m["ranks"]) == (uploaded, ranks)]
        same = ranks == answer["ranks"]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{'Uploaded' if uploaded else 'Measured'}, {ranks} ranks",
                "x": [m["bytes"] for m in mine],
                "y": [m[key] / factor for m in mine],
                "marker": {
                    "color": "var(--chart-mark)" if same else "var(--paper)",
                    "symbol": _SYMBOLS[place % len(_SYMBOLS)],
                    "size": 9 if same else 7,
                    "line": {"color": "var(--chart-mark)", "width": 1.2},
                },
                "text": [
                    f"{label(m['name'])}<br>{ranks} ranks, {binary_size(m['bytes'])}: {shown(m[key])}" for m in mine
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    rows: list[list[Any]] = [
        [
            {"text": binary_size(point["bytes"]), "value": point["bytes"]},
            point[bound_key],
            *(point["algorithms"][name][key] for name in names),
            None,
            "model",
        ]
        for point in points
    ]
    rows += [
        [
            {"text": binary_size(m["bytes"]), "value": m["bytes"]},
            None,
            *(None for _ in names),
            m[key],
            {"text": f"{m['ranks']} ranks: {m['source']}", "href": m["url"]},
        ]
        for m in measured
    ]
    yaxis: dict[str, Any] = {"title": {"text": f"{'Bus bandwidth' if what == 'bus' else 'Time'}, {axis}"}}
    yaxis |= {"rangemode": "tozero"} if what == "bus" else {"type": "log", "exponentformat": "none", "dtick": 1}
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": 430,
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": _size_axis(sizes),
            "yaxis": yaxis,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "showlegend": True,
            "hovermode": "closest",
        },
        table={
            "columns": [
                {"label": "Size", "head": True},
                {"label": "Bound", "unit": unit},
                *({"label": ALGORITHM_LABELS[name], "unit": unit} for name in names),
                {"label": "Measured", "unit": unit},
                {"label": "From", "wrap": True},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """Something on a lane of a timeline; `text` stands in it where there is room."""

    lane: str
    what: str
    start: float
    end: float
    text: str = ""


def timeline(
    bars: Sequence[Bar],
    lanes: Sequence[str],
    *,
    title: str,
    caption: str = "",
    table: Mapping[str, Any] | None = None,
    marks: Sequence[tuple[float, str]] = (),
    labels: Mapping[str, str] | None = None,
) -> ChartSpec:
    """Lanes over time, one bar a piece of work. `marks` are vertical lines with a label, `labels` replaces names."""
    names = {**WORK_LABELS, **(labels or {})}
    end = max((bar.end for bar in bars), default=0.0)
    factor, unit = time_axis([end])
    # on a phone a border as wide as elsewhere would leave nothing of pieces as short as these
    shortest = min((bar.end - bar.start for bar in bars if bar.what != "launch"), default=end)
    border = 0.6 if shortest > end / 120 else 0.15
    traces = []
    for what in WORK_COLOURS:
        mine = [bar for bar in bars if bar.what == what]
        if not mine:
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": names[what],
                "y": [label(bar.lane) for bar in mine],
                "x": [(bar.end - bar.start) / factor for bar in mine],
                "base": [bar.start / factor for bar in mine],
                "marker": {"color": WORK_COLOURS[what], "line": {"color": "var(--paper)", "width": border}},
                "text": [label(bar.text) if bar.end - bar.start > 0.025 * end else "" for bar in mine],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "customdata": [
                    f"{names[what]} {label(bar.text)}<br>{seconds(bar.start) if bar.start else '0'} to "
                    f"{seconds(bar.end)}: {seconds(bar.end - bar.start)}"
                    for bar in mine
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "bargap": 0.25,
            "height": 96 + 30 * len(lanes),
            "margin": {"l": 112, "r": 20, "t": 8, "b": 44},
            "xaxis": {"title": {"text": f"Time, {unit}"}, "range": [0, end * 1.02 / factor if end else 1]},
            "yaxis": {
                "categoryorder": "array",
                "categoryarray": [label(lane) for lane in lanes],
                "range": [len(lanes) - 0.5, -0.5],
            },
            "shapes": [
                {
                    "type": "line",
                    "x0": at / factor,
                    "x1": at / factor,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": "var(--accent)", "width": 1.5, "dash": "dot"},
                }
                for at, _ in marks
            ],
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table=table
        or {
            "columns": [
                {"label": "Lane", "head": True},
                {"label": "What"},
                {"label": "Piece"},
                {"label": "From", "unit": "s"},
                {"label": "To", "unit": "s"},
            ],
            "rows": [[bar.lane, names[bar.what], bar.text, bar.start, bar.end] for bar in bars],
        },
        meta={"title": title, "caption": caption},
    )


def chunk_curve(answer: Mapping[str, Any], *, title: str, caption: str = "") -> ChartSpec:
    """Time over the number of chunks, the best marked, with the serial time and the product alone as lines."""
    points = answer["chunk_counts"]
    serial = next(row["time_s"] for row in answer["levels"] if row["level"] == "L0")
    best = next(point for point in points if point["chunks"] == answer["best_chunks"])
    factor, unit = time_axis([point["time_s"] for point in points] + [serial])
    xs = [point["chunks"] for point in points]

    def line(name: str, value: float, dash: str, colour: str) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [xs[0], xs[-1]],
            "y": [value / factor] * 2,
            "line": {"color": colour, "dash": dash, "width": 1.2},
            "hovertemplate": f"{name}: {seconds(value)}<extra></extra>",
        }

    return ChartSpec(
        data=(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "Chunks beside each other",
                "x": xs,
                "y": [point["time_s"] / factor for point in points],
                "line": {"color": "var(--chart-mark)", "width": 1.5},
                "marker": {"color": "var(--chart-mark)", "size": 6},
                "text": [
                    f"{point['chunks']} chunks: {seconds(point['time_s'])}"
                    + (f"<br>{point['waves_of_a_chunk']} waves a chunk" if point["waves_of_a_chunk"] else "")
                    for point in points
                ],
                "hovertemplate": "%{text}<extra></extra>",
            },
            line("One after the other", serial, "dash", "var(--resource-link-near)"),
            line("Product alone", answer["compute_only_s"], "dot", "var(--resource-compute)"),
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"Best: {best['chunks']} chunks",
                "x": [best["chunks"]],
                "y": [best["time_s"] / factor],
                "marker": {"color": "var(--accent)", "size": 12, "symbol": "diamond"},
                "hovertemplate": f"Best: {best['chunks']} chunks, {seconds(best['time_s'])}<extra></extra>",
            },
        ),
        layout={
            "height": 340,
            "margin": {"l": 60, "r": 16, "t": 8, "b": 52},
            "xaxis": {
                "type": "log",
                "title": {"text": "Chunks"},
                "tickvals": [x for x in xs if x & (x - 1) == 0],
                "ticktext": [str(x) for x in xs if x & (x - 1) == 0],
            },
            "yaxis": {"title": {"text": f"Time, {unit}"}, "rangemode": "tozero"},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Chunks", "head": True, "numeric": True},
                {"label": "Time", "unit": "s"},
                {"label": "Over the product alone", "unit": "s"},
                {"label": "Waves a chunk", "numeric": True},
            ],
            "rows": [
                [
                    point["chunks"],
                    point["time_s"],
                    point["time_s"] - answer["compute_only_s"],
                    point["waves_of_a_chunk"] or "not known",
                ]
                for point in points
            ],
        },
        meta={"title": title, "caption": caption},
    )


_OBJECTS = (
    ("Parameters", "parameters_bytes", "var(--object-parameters)"),
    ("Gradients", "gradients_bytes", "var(--object-gradients)"),
    ("Optimizer", "optimizer_bytes", "var(--object-optimizer)"),
)


def sharding_bars(answer: Mapping[str, Any], capacity: float | None, *, title: str, caption: str = "") -> ChartSpec:
    """Memory of a device at each ZeRO stage, stacked, against the capacity."""
    stages = answer["stages"]
    names = [f"ZeRO {row['zero_stage']}" for row in stages]
    rest = [row["peak_bytes"] - sum(row[key] for _, key, _ in _OBJECTS) for row in stages]
    series = [(name, [row[key] for row in stages], colour) for name, key, colour in _OBJECTS]
    series.append(("Activations and the rest", rest, "var(--object-activations)"))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [value / 2**30 for value in values],
            "marker": {"color": colour},
            "text": [binary_size(value) for value in values],
            "textposition": "none",
            "hovertemplate": f"{name}: %{{text}}<extra></extra>",
        }
        for name, values, colour in series
    ]
    most = max([row["peak_bytes"] for row in stages] + ([capacity] if capacity else []))
    shapes = []
    if capacity:
        shapes.append(
            {
                "type": "line",
                "x0": capacity / 2**30,
                "x1": capacity / 2**30,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "var(--bad)", "width": 2},
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "height": 260,
            "margin": {"l": 72, "r": 20, "t": 8, "b": 44},
            "xaxis": {"title": {"text": "Memory of a device, GiB"}, "range": [0, most * 1.05 / 2**30]},
            "yaxis": {"autorange": "reversed"},
            "shapes": shapes,
            "annotations": [
                {
                    "x": capacity / 2**30,
                    "y": 0,
                    "yref": "paper",
                    "yanchor": "bottom",
                    "xanchor": "right",
                    "xshift": -4,
                    "text": f"capacity {binary_size(capacity)}",
                    "showarrow": False,
                    "font": {"color": "var(--bad)"},
                }
            ]
            if capacity
            else [],
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table={
            "columns": [
                {"label": "Stage", "head": True},
                *({"label": name, "unit": "B"} for name, _, _ in series),
                {"label": "Peak", "unit": "B"},
                {"label": "Sent in a step", "unit": "B", "decimal": True},
            ],
            "rows": [
                [name, *(values[i] for _, values, _ in series), stages[i]["peak_bytes"], stages[i]["sent_bytes"]]
                for i, name in enumerate(names)
            ],
        },
        meta={"title": title, "caption": caption},
    )
