"""Charts of a KV cache: what a batch takes, how it grows, pages, what fits, and what a decode step waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.charts.base import ChartSpec, label, seconds, short, time_axis
from app.domain.kv_cache import CacheUse
from app.domain.lengths import Lengths

Array = NDArray[np.float64]

KIND_LABELS: Mapping[str, str] = {
    "full": "Full attention",
    "sliding": "Sliding window",
    "chunked": "Chunked attention",
    "latent": "Latent (MLA)",
    "compressed": "Compressed entries",
    "index": "Index keys",
    "state": "Recurrent state",
    "cross": "Cross-attention",
    "shared": "Shared with another layer",
}
_KIND_COLOURS: Mapping[str, str] = {
    "full": "var(--object-kv-cache)",
    "sliding": "var(--object-logits)",
    "chunked": "var(--object-activations)",
    "latent": "var(--object-parameters)",
    "compressed": "var(--object-parameters)",
    "index": "var(--object-gradients)",
    "state": "var(--object-optimizer)",
    "cross": "var(--object-other)",
    "shared": "var(--object-other)",
}
NUMBER_LABELS: Mapping[str, str] = {
    "payload": "Payload",
    "paged": "In pages",
    "shared": "Prefix shared",
    "reserved": "Reserved in one piece",
}
_LINES = (
    ("var(--accent)", "solid", "circle"),
    ("var(--object-optimizer)", "dash", "square"),
    ("var(--object-activations)", "dot", "diamond"),
    ("var(--object-parameters)", "dashdot", "triangle-up"),
    ("var(--resource-hbm)", "longdash", "x"),
    ("var(--resource-link-far)", "longdashdot", "cross"),
    ("var(--chart-mark)", "solid", "star"),
)
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def _context_axis(contexts: Array) -> dict[str, Any]:
    """A logarithmic axis over exactly these contexts."""
    return {
        "title": {"text": "Context of a sequence, tokens"},
        "type": "log",
        "range": [float(np.log10(contexts[0])), float(np.log10(contexts[-1]))],
    }


def _close_ticks(values: Sequence[float]) -> dict[str, Any]:
    """Labels at 1, 2 and 5 where a logarithmic axis spans less than two decades: powers of ten would be too few."""
    shown = [value for value in values if value > 0]
    if not shown or max(shown) > 100 * min(shown):
        return {}
    low, high = int(np.floor(np.log10(min(shown)))), int(np.ceil(np.log10(max(shown))))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return {"tickvals": ticks, "ticktext": [short(tick) for tick in ticks]}


def _share_ticks(shares: Iterable[Sequence[float]]) -> dict[str, Any]:
    """Per cents as people write them on a logarithmic axis, which ends at one in a million: below it nothing counts."""
    shown = [value * 100 for values in shares for value in values if value > 1e-6]
    low = int(np.floor(np.log10(min(shown, default=0.01))))
    high = int(np.ceil(np.log10(max(shown, default=1.0))))
    powers = range(low, high + 1)
    return {
        "range": [low - 0.2, high + 0.2],
        "tickvals": [10.0**power for power in powers],
        "ticktext": [f"{10.0**power:.{max(-power, 0)}f}" for power in powers],
    }


def byte_axis(values: Sequence[float]) -> tuple[float, str]:
    """Factor and unit in which all of `values` read best on one axis."""
    largest = max((abs(v) for v in values), default=0.0)
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if largest >= factor:
            return factor, unit
    return 1.0, "B"


def size(value: float) -> str:
    factor, unit = byte_axis([value])
    return f"{short(value / factor)} {unit}"


def cache_bars(use: CacheUse, room: float | None, *, title: str, caption: str = "") -> ChartSpec:
    """The four numbers of one device as bars, with the room that a device has for them as a line."""
    values = {name: float(getattr(use, name)) for name in NUMBER_LABELS}
    factor, unit = byte_axis([*values.values(), room or 0.0])
    names = list(reversed(values))
    shades = {"payload": "", "paged": " / 80%", "shared": " / 60%", "reserved": " / 35%"}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [NUMBER_LABELS[name] for name in names],
            "x": [values[name] / factor for name in names],
            "text": [size(values[name]) for name in names],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "marker": {
                "color": [f"var(--object-kv-cache){shades[name]}" for name in names],
                "line": {"color": "var(--object-kv-cache)", "width": 1},
            },
        }
    ]
    shapes, annotations = [], []
    right = max(values.values())
    if room is not None and room > 0:
        right = max(right, room)
        shapes.append(_upright(room / factor))
        annotations.append(_note(room / factor, f"{size(room)} for the cache", "right" if room > right / 2 else "left"))
    rows: list[list[object]] = [[NUMBER_LABELS[name], value] for name, value in values.items()]
    rows.append(["Page tables", float(use.page_table)])
    if room is not None:
        rows.append(["Room for the cache", room])
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": 220,
            "margin": {"l": 138, "r": 24, "t": 28, "b": 44},
            "xaxis": {"title": {"text": f"On one device, {unit}"}, "range": [0, right / factor * 1.05]},
            "shapes": shapes,
            "annotations": annotations,
            "showlegend": False,
        },
        table={
            "columns": [{"label": "On one device", "head": True}, {"label": "Bytes", "unit": "B"}],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


def sequence_growth(
    contexts: Array, kinds: Mapping[str, Array], *, now: float, title: str, caption: str = ""
) -> ChartSpec:
    """What one sequence keeps as it grows, stacked by kind of layer."""
    shown = {kind: sizes for kind, sizes in kinds.items() if np.any(sizes > 0)}
    total = np.sum(list(shown.values()), axis=0) if shown else np.zeros_like(contexts)
    factor, unit = byte_axis(total.tolist())
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": KIND_LABELS[kind],
            "x": contexts.tolist(),
            "y": (sizes / factor).tolist(),
            "stackgroup": "kinds",
            "line": {"color": _KIND_COLOURS[kind], "width": 1},
            "fillcolor": f"{_KIND_COLOURS[kind]} / 55%",
            "text": [size(value) for value in sizes.tolist()],
            "hovertemplate": f"{KIND_LABELS[kind]}: %{{text}} at %{{x:,d}} tokens<extra></extra>",
        }
        for kind, sizes in shown.items()
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": _context_axis(contexts),
            "yaxis": {"title": {"text": f"Bytes of one sequence, {unit}"}, "rangemode": "tozero"},
            "shapes": [_upright(now)],
            "legend": _LEGEND,
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Context", "numeric": True},
                *({"label": KIND_LABELS[kind], "unit": "B"} for kind in shown),
                {"label": "Together", "unit": "B"},
            ],
            "rows": [
                [int(contexts[i]), *(float(sizes[i]) for sizes in shown.values()), float(total[i])]
                for i in range(contexts.size)
            ],
        },
        meta={"title": title, "caption": caption},
    )


def page_sizes(
    pages: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    *,
    now: int,
    title: str,
    caption: str = "",
) -> ChartSpec:
    """What pages cost, as shares of the payload, over page sizes: empty slots and page tables."""
    traces = []
    styles = (
        ("var(--object-kv-cache)", "solid", "circle"),
        ("var(--object-activations)", "dot", "diamond"),
        ("var(--object-optimizer)", "dash", "square"),
    )
    for (name, values), (colour, dash, symbol) in zip(shares.items(), styles, strict=False):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": list(pages),
                "y": [value * 100 if value > 0 else None for value in values],
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"color": colour, "symbol": symbol, "size": 7},
                "hovertemplate": f"{name}: %{{y:.3~g}} % at %{{x}} tokens a page<extra></extra>",
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": {
                "title": {"text": "Tokens a page"},
                "type": "log",
                "tickvals": list(pages) if len(pages) < 9 else list(pages)[::2],
                "ticktext": [f"{page:,}" for page in (pages if len(pages) < 9 else pages[::2])],
            },
            "yaxis": {"title": {"text": "Of the payload, %"}, "type": "log", **_share_ticks(shares.values())},
            "shapes": [_upright(float(now))],
            "legend": _LEGEND,
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Tokens a page", "numeric": True},
                *({"label": name, "unit": "ratio"} for name in shares),
            ],
            "rows": [[page, *(float(values[i]) for values in shares.values())] for i, page in enumerate(pages)],
        },
        meta={"title": title, "caption": caption},
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One named line over contexts; a value that cannot be drawn is not finite or zero."""

    name: str
    values: Array


def context_lines(
    contexts: Array,
    lines: Sequence[Line],
    *,
    what: str,
    unit: str,
    point: tuple[float, float] | None,
    title: str,
    caption: str = "",
) -> ChartSpec:
    """Several lines over the context, both axes logarithmic. `unit` is B, s or what is counted."""
    values = [v for line in lines for v in line.values.tolist() if np.isfinite(v)]
    factor, shown = byte_axis(values) if unit == "B" else time_axis(values) if unit == "s" else (1.0, unit)

    def text(value: float) -> str:
        if not np.isfinite(value):
            return "not drawn" if np.isnan(value) else "without an end"
        return size(value) if unit == "B" else seconds(value) if unit == "s" else f"{value:,.0f} {unit}"

    traces: list[dict[str, Any]] = []
    for line, (colour, dash, _) in zip(lines, _LINES, strict=False):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label(line.name),
                "x": contexts.tolist(),
                "y": [value / factor if np.isfinite(value) and value > 0 else None for value in line.values.tolist()],
                "text": [text(value) for value in line.values.tolist()],
                "hovertemplate": f"{label(line.name)}<br>%{{text}} at %{{x:,d}} tokens<extra></extra>",
                "line": {"color": colour, "dash": dash, "width": 2.5 if not traces else 1.75},
            }
        )
    if point is not None and point[0] > 0 and point[1] > 0:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "Asked",
                "x": [point[0]],
                "y": [point[1] / factor],
                "hovertemplate": f"Asked: {text(point[1])} at %{{x:,d}} tokens<extra></extra>",
                "marker": {"color": "var(--chart-mark)", "symbol": "circle", "size": 10},
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": _context_axis(contexts),
            "yaxis": {
                "title": {"text": f"{what}, {shown}" if unit in ("B", "s") else what},
                "type": "log",
                **_close_ticks([value / factor for value in values]),
            },
            "legend": _LEGEND,
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Context", "numeric": True},
                *(
                    {"label": line.name, "unit": unit} if unit in ("B", "s") else {"label": line.name, "numeric": True}
                    for line in lines
                ),
            ],
            "rows": [
                [int(contexts[i]), *(_cell(float(line.values[i])) for line in lines)] for i in range(contexts.size)
            ],
        },
        meta={"title": title, "caption": caption},
    )


def _cell(value: float) -> object:
    return value if np.isfinite(value) else {"text": "all shared" if np.isnan(value) else "no end"}


def step_time(
    contexts: Array,
    parts: Mapping[str, Array],
    bound: Array,
    *,
    now: float,
    crossover: int | None,
    title: str,
    caption: str = "",
) -> ChartSpec:
    """A decode step over the context: reading weights, reading the cache and the rest, stacked up to the bound."""
    factor, unit = time_axis(bound.tolist())
    colours = {
        "Weights": "var(--object-parameters)",
        "KV cache": "var(--object-kv-cache)",
        "Rest of the bound": "var(--object-other)",
    }
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": contexts.tolist(),
            "y": (times / factor).tolist(),
            "stackgroup": "step",
            "line": {"color": colours[name], "width": 1},
            "fillcolor": f"{colours[name]} / 55%",
            "text": [seconds(value) for value in times.tolist()],
            "hovertemplate": f"{name}: %{{text}} at %{{x:,d}} tokens<extra></extra>",
        }
        for name, times in parts.items()
    ]
    shapes, annotations = [_upright(now)], []
    if crossover is not None and contexts[0] <= crossover <= contexts[-1]:
        shapes.append(_upright(float(crossover), dash="dot"))
        annotations.append(
            _note(
                float(np.log10(crossover)),
                f"cache = weights at {crossover:,}",
                # on the side away from the line of the asked context, if there is room
                "left" if crossover < float(contexts[0] ** 0.3 * contexts[-1] ** 0.7) else "right",
            )
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "margin": {"l": 64, "r": 16, "t": 28, "b": 52},
            "xaxis": _context_axis(contexts),
            "yaxis": {"title": {"text": f"Decode step, {unit}"}, "rangemode": "tozero"},
            "shapes": shapes,
            "annotations": annotations,
            "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
            "showlegend": True,
        },
        table={
            "columns": [
                {"label": "Context", "numeric": True},
                *({"label": name, "unit": "s"} for name in parts),
                {"label": "Bound", "unit": "s"},
            ],
            "rows": [
                [int(contexts[i]), *(float(times[i]) for times in parts.values()), float(bound[i])]
                for i in range(contexts.size)
            ],
        },
        meta={"title": title, "caption": caption},
    )


def prefill_by_hits(
    hits: Sequence[float],
    times: Sequence[float],
    computed: Sequence[float],
    *,
    now: float,
    title: str,
    caption: str = "",
) -> ChartSpec:
    """Prefill time of a prompt over the share of it that is found in the cache."""
    factor, unit = time_axis(times)
    return ChartSpec(
        data=(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Prefill bound",
                "x": [hit * 100 for hit in hits],
                "y": [time / factor for time in times],
                "text": [
                    f"{seconds(time)}, {tokens:,.0f} tokens" for time, tokens in zip(times, computed, strict=True)
                ],
                "hovertemplate": "%{x:.3~g} % found: %{text} computed<extra></extra>",
                "line": {"color": "var(--accent)", "width": 2},
            },
        ),
        layout={
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": {"title": {"text": "Prompt found in the cache, %"}, "range": [0, 100]},
            "yaxis": {"title": {"text": f"Prefill of one prompt, {unit}"}, "rangemode": "tozero"},
            "shapes": [_upright(now * 100)],
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Found in the cache", "unit": "ratio"},
                {"label": "Tokens computed", "numeric": True},
                {"label": "Prefill bound", "unit": "s"},
            ],
            "rows": [[hit, tokens, time] for hit, tokens, time in zip(hits, computed, times, strict=True)],
        },
        meta={"title": title, "caption": caption},
    )


def length_spread(lengths: Lengths, *, title: str, caption: str = "") -> ChartSpec:
    """How the lengths are spread: the share of sequences that are at most so long."""
    shares = [i / 40 for i in range(41)]
    values = [lengths.quantile(max(share, 1e-9)) for share in shares]
    return ChartSpec(
        data=(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Sequences",
                "x": values,
                "y": [share * 100 for share in shares],
                "line": {"color": "var(--accent)", "width": 2, "shape": "hv"},
                "hovertemplate": "%{y:.3~g} % of the sequences have at most %{x:,d} tokens<extra></extra>",
            },
        ),
        layout={
            "height": 220,
            "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
            "xaxis": {"title": {"text": "Length, tokens"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "Sequences, %"}, "range": [0, 102]},
            "shapes": [_upright(lengths.mean)],
            "showlegend": False,
        },
        table={
            "columns": [{"label": "Share of the sequences", "unit": "ratio"}, {"label": "At most", "numeric": True}],
            "rows": [[share, value] for share, value in zip(shares, values, strict=True)],
        },
        meta={"title": title, "caption": caption},
    )


def _upright(x: float, dash: str = "dash") -> dict[str, Any]:
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": "var(--chart-mark)", "width": 1.5, "dash": dash},
    }


def _note(x: float, text: str, side: str) -> dict[str, Any]:
    """Words at the top of an upright line; on a logarithmic axis `x` is the logarithm."""
    return {
        "x": x,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": side,
        "showarrow": False,
        "text": label(text),
        "font": {"size": 12, "color": "var(--chart-text)"},
    }
