"""A device's memory by object, against its capacity."""

from __future__ import annotations

from app.charts.base import ChartSpec
from app.domain.memory import MemoryUse

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
_SHADES = {
    "parameters": "var(--object-parameters)",
    "gradients": "var(--object-gradients)",
    "optimizer": "var(--object-optimizer)",
    "activations": "var(--object-activations)",
    "logits": "var(--object-logits)",
    "kv_cache": "var(--object-kv-cache)",
}


def memory_bar(memory: MemoryUse, *, title: str, caption: str = "") -> ChartSpec:
    """One stacked bar with the capacity as a line; objects that hold nothing are left out."""
    gib = 2.0**30
    shown = [(name, size) for name, size in memory.objects.items() if size > 0]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": ["Device"],
            "x": [size / gib],
            "name": LABELS[name],
            "marker": {"color": _SHADES.get(name, "var(--object-other)")},
            "hovertemplate": f"{LABELS[name]}: %{{x:.3~g}} GiB<extra></extra>",
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
    rows: list[list[object]] = [[LABELS[name], size, size / memory.peak] for name, size in shown]
    rows.append(["Peak", memory.peak, 1.0])
    if memory.capacity is not None:
        rows.append(["Capacity", memory.capacity, memory.capacity / memory.peak])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "height": 190,
            "margin": {"l": 16, "r": 24, "t": 28, "b": 44},
            "xaxis": {"title": {"text": "GiB on one device"}, "range": [0, right * 1.03]},
            "yaxis": {"visible": False},
            "shapes": shapes,
            "annotations": annotations,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": -0.5, "yanchor": "top"},
        },
        table={
            "columns": [
                {"label": "Object"},
                {"label": "Size", "unit": "B"},
                {"label": "Of the peak", "unit": "ratio"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )
