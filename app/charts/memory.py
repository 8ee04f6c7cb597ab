"""A device's memory by object, against its capacity."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from app.charts.base import ChartSpec, label
from app.domain.memory import MemoryUse
from app.domain.model import ModelSpec

LABELS = {
    "parameters": "Parameters",
    "gradients": "Gradients",
    "optimizer": "Optimizer state",
    "activations": "Activations",
    "logits": "Logits",
    "kv_cache": "KV cache",
    "workspace": "Workspace",
    "communication": "Communication buffers",
    "fragmentation": "Fragmentation",
}
"""Objects in words, for models that keep keys and values."""

_SHADES = {
    "parameters": "var(--object-parameters)",
    "gradients": "var(--object-gradients)",
    "optimizer": "var(--object-optimizer)",
    "activations": "var(--object-activations)",
    "logits": "var(--object-logits)",
    "kv_cache": "var(--object-kv-cache)",
    "workspace": "var(--object-other)",
    "communication": "var(--object-other) / 70%",
    "fragmentation": "var(--object-other) / 40%",
}
GIB = 2.0**30


def object_labels(model: ModelSpec) -> Mapping[str, str]:
    """Objects in words, the cache by what it is for a model: keys and values, a state, or both."""
    return {**LABELS, "kv_cache": model.cache_name[:1].upper() + model.cache_name[1:]}


def memory_bar(memory: MemoryUse, *, title: str, caption: str = "", labels: Mapping[str, str] = LABELS) -> ChartSpec:
    """One stacked bar with the capacity as a line; objects that hold nothing are left out."""
    gib = 2.0**30
    shown = [(name, size) for name, size in memory.objects.items() if size > 0]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": ["Device"],
            "x": [size / gib],
            "name": labels[name],
            "marker": {"color": _SHADES.get(name, "var(--object-other)")},
            "hovertemplate": f"{labels[name]}: %{{x:.3~g}} GiB<extra></extra>",
        }
        for name, size in shown
    ]
    shapes, annotations = [], []
    right = memory.peak / gib
    if memory.capacity is not None:
        capacity = memory.capacity / gib
        right = max(right, capacity)
        shapes.append(
            {
                "type": "line",
                "x0": capacity,
                "x1": capacity,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": "var(--chart-mark)", "width": 2, "dash": "dash"},
            }
        )
        room = capacity - memory.peak / gib
        words = f"{room:.3g} GiB free" if room >= 0 else f"{-room:.3g} GiB too much"
        annotations.append(
            {
                "x": capacity,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "xanchor": "right",
                "showarrow": False,
                "text": f"{capacity:.4g} GiB, {words}",
                "font": {"size": 12, "color": "var(--chart-text)"},
            }
        )
    rows: list[list[object]] = [[labels[name], size, size / memory.peak] for name, size in shown]
    rows.append(["Peak", memory.peak, 1.0])
    if memory.capacity is not None:
        rows.append(["Capacity", memory.capacity, memory.capacity / memory.peak])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "height": 140,
            "margin": {"l": 16, "r": 24, "t": 28, "b": 44},
            "xaxis": {"title": {"text": "GiB on one device"}, "range": [0, right * 1.03]},
            "yaxis": {"visible": False},
            "shapes": shapes,
            "annotations": annotations,
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Object"},
                {"label": "Size", "unit": "B"},
                {"label": "Of the peak", "unit": "ratio"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption, "legend": object_legend([name for name, _ in shown], labels)},
    )


def object_legend(shown: Sequence[str], labels: Mapping[str, str] = LABELS) -> list[dict[str, str]]:
    """What the colours of a memory chart mean, as a legend below it."""
    return [{"label": labels[name], "color": _css(_SHADES[name])} for name in shown]


def _css(shade: str) -> str:
    color, _, share = shade.partition(" / ")
    return f"color-mix(in srgb, {color} {share}, transparent)" if share else color


def memory_bars(
    bars: Sequence[tuple[str, Mapping[str, float]]],
    capacity: float | None,
    *,
    title: str,
    caption: str = "",
    labels: Mapping[str, str] = LABELS,
) -> ChartSpec:
    """Stacked bars beside each other, such as before and after the levers, against the capacity."""
    names = [label(name) for name, _ in bars]
    peaks = [sum(objects.values()) for _, objects in bars]
    shown = [name for name in LABELS if any(objects[name] > 0 for _, objects in bars)]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [objects[name] / GIB for _, objects in bars],
            "name": labels[name],
            "marker": {"color": _SHADES[name]},
            "hovertemplate": f"%{{y}}, {labels[name]}: %{{x:.3~g}} GiB<extra></extra>",
        }
        for name in shown
    ]
    right = max([*peaks, capacity or 0.0]) / GIB
    rows: list[list[object]] = [[labels[name], *(objects[name] for _, objects in bars)] for name in shown]
    rows.append(["Peak", *peaks])
    if capacity is not None:
        rows.append(["Capacity", *(capacity for _ in bars)])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "height": 100 + 40 * len(bars),
            "margin": {"l": 16 if len(bars) == 1 else 88, "r": 24, "t": 28, "b": 44},
            "xaxis": {"title": {"text": "GiB on one device"}, "range": [0, right * 1.03]},
            "yaxis": {"visible": len(bars) > 1, "autorange": "reversed", "automargin": True},
            "shapes": [] if capacity is None else [_capacity_line("x", capacity)],
            "annotations": [] if capacity is None else [_capacity_words(capacity, peaks[-1], right * GIB)],
            "showlegend": False,
        },
        table={
            "columns": [{"label": "Object"}, *({"label": name, "unit": "B"} for name, _ in bars)],
            "rows": rows,
        },
        meta={"title": title, "caption": caption, "legend": object_legend(shown, labels)},
    )


def memory_waterfall(
    rows: Sequence[Mapping[str, Any]], capacity: float | None, *, title: str, caption: str = ""
) -> ChartSpec:
    """From the baseline through the levers in order: what each takes off the peak, and what remains.

    `rows` are the levers of the memory answer of the API. A lever that adds bytes runs to the right.
    """
    steps = [(row["before_bytes"], row["after_bytes"]) for row in rows]
    first, last = steps[0][0], steps[-1][1]
    changes = [_saved(before - after) for before, after in steps]
    titles = [f"{_wrapped(row['title'])}<br>{words}" for row, words in zip(rows, changes, strict=True)]
    names = ["Baseline", *titles, "With all levers"]
    longest = max([first, capacity or 0.0, *(after for _, after in steps)]) / GIB
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [names[0], names[-1]],
            "x": [first / GIB, last / GIB],
            "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "var(--chart-mark)"}},
            "text": [_size(first), _size(last)],
            "textposition": "auto",
            # beside the line of the capacity, not under it
            "insidetextanchor": "end" if capacity is not None and capacity / GIB < 0.3 * longest * 1.2 else "start",
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "name": "peak",
        },
        {
            "type": "bar",
            "orientation": "h",
            "y": names[1:-1],
            "x": [abs(before - after) / GIB for before, after in steps],
            "base": [min(before, after) / GIB for before, after in steps],
            "marker": {"color": "var(--object-activations)"},
            "hovertext": [f"{label(row['title'])}: {words}" for row, words in zip(rows, changes, strict=True)],
            "hovertemplate": "%{hovertext}<extra></extra>",
            "name": "levers",
        },
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 90 + 66 * len(names),
            "margin": {"l": 120, "r": 24, "t": 28, "b": 44},
            "xaxis": {"title": {"text": "GiB on the fullest device"}, "range": [0, longest * 1.2], "nticks": 5},
            "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": names, "automargin": True},
            "shapes": [] if capacity is None else [_capacity_line("x", capacity)],
            "annotations": [] if capacity is None else [_capacity_words(capacity, last, longest * GIB)],
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Lever", "head": True},
                {"label": "Saved", "unit": "B"},
                {"label": "Peak after", "unit": "B"},
            ],
            "rows": [
                ["Baseline", None, first],
                *([row["title"], before - after, after] for row, (before, after) in zip(rows, steps, strict=True)),
            ],
        },
        meta={"title": title, "caption": caption},
    )


def stage_bars(
    stages: Sequence[Mapping[str, Any]],
    capacity: float | None,
    *,
    title: str,
    caption: str = "",
    labels: Mapping[str, str] = LABELS,
) -> ChartSpec:
    """A device of each pipeline stage as a stacked bar. `stages` are those of the memory answer of the API."""
    held = [{item["object"]: item["bytes"] for item in stage["objects"]} for stage in stages]
    names = [str(stage["stage"] + 1) for stage in stages]
    shown = [name for name in LABELS if any(objects.get(name, 0.0) > 0 for objects in held)]
    traces = [
        {
            "type": "bar",
            "x": names,
            "y": [objects[name] / GIB for objects in held],
            "name": labels[name],
            "marker": {"color": _SHADES[name]},
            "hovertemplate": f"Stage %{{x}}, {labels[name]}: %{{y:.3~g}} GiB<extra></extra>",
        }
        for name in shown
    ]
    top = max([*(stage["peak_bytes"] for stage in stages), capacity or 0.0]) / GIB
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "height": 340,
            "margin": {"l": 56, "r": 16, "t": 28, "b": 44},
            "xaxis": {"title": {"text": "Pipeline stage"}, "type": "category"},
            "yaxis": {"title": {"text": "GiB on one device"}, "range": [0, top * 1.08]},
            "shapes": [] if capacity is None else [_capacity_line("y", capacity)],
            "annotations": []
            if capacity is None
            else [
                {
                    "x": 1,
                    "xref": "paper",
                    "xanchor": "right",
                    "y": capacity / GIB,
                    "yanchor": "bottom",
                    "showarrow": False,
                    "text": f"{_size(capacity)} of a device",
                    "font": {"size": 12, "color": "var(--chart-text)"},
                }
            ],
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Stage", "numeric": True},
                {"label": "Layers", "numeric": True},
                {"label": "Micro-batches held", "numeric": True},
                {"label": "Peak", "unit": "B"},
                *({"label": labels[name], "unit": "B"} for name in shown),
            ],
            "rows": [
                [
                    stage["stage"] + 1,
                    stage["layers"],
                    stage["micro_batches_in_flight"],
                    stage["peak_bytes"],
                    *(objects[name] for name in shown),
                ]
                for stage, objects in zip(stages, held, strict=True)
            ],
        },
        meta={"title": title, "caption": caption, "legend": object_legend(shown, labels)},
    )


def _capacity_line(axis: str, capacity: float) -> dict[str, Any]:
    other = "y" if axis == "x" else "x"
    return {
        "type": "line",
        f"{axis}0": capacity / GIB,
        f"{axis}1": capacity / GIB,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": "paper",
        "line": {"color": "var(--chart-mark)", "width": 2, "dash": "dash"},
    }


def _capacity_words(capacity: float, peak: float, right: float) -> dict[str, Any]:
    room = capacity - peak
    return {
        "x": capacity / GIB,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": "right" if capacity > 0.5 * right else "left",
        "showarrow": False,
        "text": f"{_size(capacity)}, {_size(abs(room))} {'free' if room >= 0 else 'too much'}",
        "font": {"size": 12, "color": "var(--chart-text)"},
    }


def _wrapped(title: str, width: int = 18) -> str:
    """A long title on several lines, so that it leaves room for the bars of a narrow screen."""
    return "<br>".join(label(line) for line in textwrap.wrap(title, width))


def _saved(saved: float) -> str:
    if saved == 0:
        return "no change"
    return f"saves {_size(saved)}" if saved > 0 else f"adds {_size(-saved)}"


def _size(value: float) -> str:
    return f"{value / GIB:,.0f} GiB" if abs(value) >= 1000 * GIB else f"{value / GIB:.3g} GiB"
