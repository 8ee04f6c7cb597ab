"""The roofline: attainable FLOP/s against arithmetic intensity, with the operations of a step on it (F-1.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from app.charts.base import RESOURCE_LABELS, RESOURCE_TOKENS, ChartSpec, label, log_axis, seconds, short, with_prefix
from app.domain.cost import TIERS, Tier
from app.domain.lower_bound import Bound, Ceilings
from app.domain.precision import PRECISIONS

LABELLED = 5
"""Most labels in the drawing; the rest are named on hover and in the table."""

CLOSE = 0.18
"""Points closer than this, in decades on both axes, share one label."""

_TIERS: Mapping[Tier, tuple[str, str, str, str]] = {
    "scale_up": ("scale-up", "link-near", "solid", "circle-open"),
    "scale_out": ("scale-out", "link-far", "dash", "diamond-open"),
    "host": ("host link", "other", "dot", "square-open"),
}
"""Words, colour, dash and mark of a link's tier."""

PHONE_PLOT = (215.0, 205.0)
"""Pixels that a phone leaves for the drawing: where labels keep apart there, they do everywhere."""

_LETTER, _LINE = 6.6, 15.0
"""Width of a letter and height of a line of a label, in pixels."""

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def roofline(bound: Bound, *, title: str, caption: str = "", height: int = 420) -> ChartSpec:
    """A step's operations under the roofs that their precisions have.

    A point lies at its intensity (FLOP executed per HBM byte) at the rate of taking exactly its bound, so it touches
    a roof (of a precision, or of fp32 outside the matrix units) unless a link or the exponent unit holds it back.
    Points are outlines, since they are bounds, not measurements; their area grows with the share of the step's time.
    Operations that compute nothing or touch no memory have no place on the chart and stand in the table only.
    """
    rows = _operations(bound)
    points = [r for r in rows if r["flop"] > 0 and r["bytes"] > 0 and r["time"] > 0]
    peaks = _peaks(bound)
    x_low, x_high, y_low, y_high = _window(points, peaks, bound.ceilings)
    traces: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    memory = bound.ceilings.memory
    top = max(rate for _, rate in peaks)
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x_low, top / memory],
            "y": [x_low * memory, top],
            "line": {"color": RESOURCE_TOKENS["hbm"], "width": 2},
            "name": "HBM",
            "hovertemplate": f"HBM {with_prefix(memory, 'B/s')}<extra></extra>",
            "showlegend": False,
        }
    )
    cache = bound.ceilings.l2
    named = _labels(points)
    free = _FreeSpot((x_low, x_high, y_low, y_high), points, named)
    for name, rate in peaks:
        free.take(x_high, rate, f"{name} {with_prefix(rate, 'FLOP/s')}")
    # beside a second slope the name of the first stands on its other side
    annotations.append(free.on_slope(memory, peaks[0][1], f"HBM {with_prefix(memory, 'B/s')}", above=cache is None))
    if cache is not None:
        start = max(x_low, y_low / cache)
        name = f"L2 {with_prefix(cache, 'B/s')}"
        caption = f"{caption}; the roof of L2 is an achieved rate" if caption else "The roof of L2 is an achieved rate"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [start, top / cache],
                "y": [start * cache, top],
                "line": {"color": RESOURCE_TOKENS["hbm"], "width": 1.5, "dash": "dash"},
                "name": "L2",
                "hovertemplate": f"{name}, achieved, by operands that lie in cache<extra></extra>",
                "showlegend": False,
            }
        )
        annotations.append(free.on_slope(cache, peaks[0][1], name, above=True))
    for number, (name, rate) in enumerate(peaks):
        ridge = rate / memory
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [ridge, x_high],
                "y": [rate, rate],
                "line": {
                    "color": RESOURCE_TOKENS["compute"],
                    "width": 2,
                    "dash": _DASHES[min(number, len(_DASHES) - 1)],
                },
                "marker": {"symbol": "diamond", "size": [9, 0.1], "color": RESOURCE_TOKENS["compute"]},
                "name": name,
                "hovertemplate": f"{name} {with_prefix(rate, 'FLOP/s')}; ridge at {short(ridge)} FLOP/B<extra></extra>",
                "showlegend": False,
            }
        )
        annotations.append(
            _note(x_high, rate, f"{name} {with_prefix(rate, 'FLOP/s')}", "compute", xanchor="right", yshift=10)
        )
        annotations.append(_note(ridge, rate, f"ridge {short(ridge)}", "compute", xanchor="left", yshift=-12))
    vector = _vector_roof(bound)
    if vector is not None and vector < top:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [max(vector / memory, x_low), x_high],
                "y": [vector, vector],
                "line": {"color": RESOURCE_TOKENS["compute"], "width": 1.5, "dash": "longdashdot"},
                "name": "fp32 vector",
                "hovertemplate": f"fp32 outside the matrix units, {with_prefix(vector, 'FLOP/s')}<extra></extra>",
                "showlegend": False,
            }
        )
        words = f"fp32 vector {with_prefix(vector, 'FLOP/s')}"
        annotations.append(_note(x_high, vector, words, "compute", xanchor="right", yshift=10))
        free.take(x_high, vector, words)
    exponent = _exponent_roof(bound)
    if exponent is not None and exponent < top * 1.2:
        low = exponent / memory
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [max(low, x_low), x_high],
                "y": [exponent, exponent],
                "line": {"color": RESOURCE_TOKENS["compute"], "width": 1.5, "dash": "dot"},
                "name": "exponent unit",
                "hovertemplate": f"Attention by exponents, {with_prefix(exponent, 'FLOP/s')}<extra></extra>",
                "showlegend": False,
            }
        )
        annotations.append(
            _note(
                x_high,
                exponent,
                f"attention, exponent unit {with_prefix(exponent, 'FLOP/s')}",
                "compute",
                xanchor="right",
                yshift=-10,
            )
        )
    traces += _point_traces(points, named)
    table_rows = [
        [
            r["name"],
            r["count"],
            r["flop"],
            r["bytes"],
            r["intensity"],
            r["rate"],
            r["time"] * r["count"],
            {"value": r["share"], "text": f"{r['share']:.1%}"},
            {"resource": r["binding"]},
        ]
        for r in rows
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
            "xaxis": log_axis("Arithmetic intensity, FLOP per HBM byte", x_low, x_high),
            "yaxis": log_axis("Attainable, FLOP/s", y_low, y_high),
            "annotations": annotations,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.08, "yanchor": "bottom"},
            "hovermode": "closest",
        },
        table={
            "columns": [
                {"label": "Operation"},
                {"label": "Times", "numeric": True},
                {"label": "FLOP each", "unit": "FLOP"},
                {"label": "HBM each", "unit": "B", "decimal": True},
                {"label": "FLOP per byte", "numeric": True},
                {"label": "Rate at bound", "unit": "FLOP/s"},
                {"label": "Time in step", "unit": "s"},
                {"label": "Share", "numeric": True},
                {"label": "Binds"},
            ],
            "rows": table_rows,
        },
        meta={"title": title, "caption": caption},
    )


def link_roofline(bound: Bound, *, title: str, caption: str = "", height: int = 420) -> ChartSpec:
    """The step against its links: FLOP of the whole step per byte that one device sends, one slope for each tier.

    A point is a stage of the step: its operations together with the bytes that it sends.
    Left of the ridge the link would hold the stage back if nothing else ran meanwhile.
    """
    table, roofs = bound.table, bound.ceilings
    wire = table.net_in_switch if roofs.in_switch_reduction else table.net
    peaks = _peaks(bound)
    top = peaks[-1][1]
    stages: dict[tuple[str, str], tuple[float, float]] = {}
    work: dict[str, float] = {}
    for i, op in enumerate(table.ops):
        work[op.stage] = work.get(op.stage, 0.0) + float(table["executed"][i] * table["count"][i])
    for tier in TIERS:
        for i, op in enumerate(table.ops):
            sent = float(wire[tier][i] * table["count"][i])
            if sent > 0:
                # data-parallel and pipeline exchanges stand against the whole step's work
                flop = work[op.stage] if work[op.stage] > 0 else sum(work.values())
                before, _ = stages.get((op.stage, tier), (0.0, flop))
                stages[op.stage, tier] = (before + sent, flop)
    tiers = [tier for tier in TIERS if any(key[1] == tier for key in stages)]
    ridges = [top / roofs.links[tier] for tier in tiers]
    xs = [flop / sent for sent, flop in stages.values()] + ridges
    x_low, x_high = _decade(min(xs) / 2, math.floor), _decade(max(xs) * 2, math.ceil)
    y_low = _decade(x_low * min(roofs.links[tier] for tier in tiers), math.floor)
    y_low = max(y_low, top / 1e6)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x_low, x_high],
            "y": [top, top],
            "line": {"color": RESOURCE_TOKENS["compute"], "width": 2},
            "name": peaks[-1][0],
            "hovertemplate": f"{peaks[-1][0]} {with_prefix(top, 'FLOP/s')}<extra></extra>",
            "showlegend": False,
        }
    ]
    annotations = [
        _note(x_high, top, f"{peaks[-1][0]} {with_prefix(top, 'FLOP/s')}", "compute", xanchor="right", yshift=10)
    ]
    rows: list[list[Any]] = []
    for tier, ridge in zip(tiers, ridges, strict=True):
        rate = roofs.links[tier]
        words, token, dash, symbol = _TIERS[tier]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [max(x_low, y_low / rate), ridge],
                "y": [max(x_low, y_low / rate) * rate, top],
                "line": {
                    "color": f"var(--resource-{token})",
                    "width": 2,
                    "dash": dash,
                },
                "name": words,
                "hovertemplate": f"{words} {with_prefix(rate, 'B/s')}<extra></extra>",
                "showlegend": False,
            }
        )
        annotations.append(
            _note(ridge, top, f"{words} {with_prefix(rate, 'B/s')}, ridge {short(ridge)}", token, yshift=-14)
        )
        mine = [(stage, sent, flop) for (stage, on), (sent, flop) in stages.items() if on == tier]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [flop / sent for _, sent, flop in mine],
                "y": [min(top, flop / sent * rate) for _, sent, flop in mine],
                "text": [label(stage) for stage, _, _ in mine],
                "textposition": "bottom right",
                "marker": {
                    "symbol": symbol,
                    "size": 14,
                    "color": f"var(--resource-{token})",
                    "line": {"width": 2, "color": f"var(--resource-{token})"},
                },
                "name": f"{words} exchanges",
                "hovertemplate": "<b>%{text}</b><br>%{x:.3~s} FLOP per link byte<extra></extra>",
            }
        )
        rows += [[stage, words, sent, flop, flop / sent, ridge, sent / rate] for stage, sent, flop in mine]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
            "xaxis": log_axis("FLOP per byte sent one way", x_low, x_high),
            "yaxis": log_axis("Attainable, FLOP/s", y_low, top * 3),
            "annotations": annotations,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.08, "yanchor": "bottom"},
            "hovermode": "closest",
        },
        table={
            "columns": [
                {"label": "Exchange"},
                {"label": "Tier"},
                {"label": "Sent", "unit": "B", "decimal": True},
                {"label": "FLOP beside it", "unit": "FLOP"},
                {"label": "FLOP per byte", "numeric": True},
                {"label": "Ridge", "numeric": True},
                {"label": "Time on the link", "unit": "s"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


def _operations(bound: Bound) -> list[dict[str, Any]]:
    table = bound.table
    total = float((bound.op_time * table["count"]).sum()) or 1.0
    binding = bound.op_binding()
    rows: list[dict[str, Any]] = []
    for i, op in enumerate(table.ops):
        flop, size = float(table["executed"][i]), float(bound.op_hbm_bytes[i])
        time, count = float(bound.op_time[i]), float(table["count"][i])
        rows.append(
            {
                "name": op.name,
                "count": count,
                "flop": flop,
                "bytes": size,
                "intensity": flop / size if size > 0 else None,
                "rate": flop / time if time > 0 else None,
                "time": time,
                "share": time * count / total,
                "binding": binding[i],
            }
        )
    return rows


def _peaks(bound: Bound) -> list[tuple[str, float]]:
    """Compute roofs of the precisions that the step's products use, the lowest first."""
    keys = dict.fromkeys(PRECISIONS[op.dtype].peak for op in bound.table.ops if op.pipe == "tensor")
    if not keys:
        keys = dict.fromkeys(["fp32"] if "fp32" in bound.ceilings.flop else list(bound.ceilings.flop)[:1])
    return sorted(((key, bound.ceilings.flop[key]) for key in keys), key=lambda item: item[1])


def _vector_roof(bound: Bound) -> float | None:
    """FLOP/s outside the matrix units, where some operation that has a place on the chart is held back by it."""
    rows = zip(bound.table.ops, bound.op_binding(), bound.op_hbm_bytes, strict=True)
    held = any(op.pipe == "vector" and binding == "compute" and size > 0 for op, binding, size in rows)
    return bound.ceilings.flop.get("fp32") if held else None


def _exponent_roof(bound: Bound) -> float | None:
    """FLOP/s that attention reaches when its exponentials take all the time (F-3.5); None without such a figure.

    The slowest attention of the step counts: the fewer FLOP go with an exponential, the lower its roof.
    """
    if bound.ceilings.exponentials is None:
        return None
    table = bound.table
    ratios = [
        float(table["executed"][i] / table["exponentials"][i])
        for i, op in enumerate(table.ops)
        if op.kind == "attention" and float(table["exponentials"][i]) > 0
    ]
    return bound.ceilings.exponentials * min(ratios) if ratios else None


def _window(
    points: list[dict[str, Any]], peaks: list[tuple[str, float]], roofs: Ceilings
) -> tuple[float, float, float, float]:
    """Axis limits in whole decades around what is drawn."""
    ridge_low, ridge_high = peaks[0][1] / roofs.memory, peaks[-1][1] / roofs.memory
    xs = [p["intensity"] for p in points] + [ridge_low, ridge_high]
    x_low, x_high = _decade(min(xs) / 1.5, math.floor), _decade(max(max(xs) * 1.5, ridge_high * 8), math.ceil)
    ys = [p["rate"] for p in points] + [peaks[0][1]]
    y_low, y_high = _decade(min(ys) / 1.5, math.floor), peaks[-1][1] * 3
    return x_low, x_high, y_low, y_high


def _decade(value: float, rounding: Any) -> float:
    return float(10.0 ** rounding(math.log10(value)))


def _point_traces(points: list[dict[str, Any]], named: Mapping[int, str]) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for resource, symbol in (("compute", "circle"), ("hbm", "square"), ("net", "diamond"), ("launch", "x")):
        mine = [p for p in points if p["binding"] == resource]
        if not mine:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": f"{RESOURCE_LABELS[resource]} binds",
                "x": [p["intensity"] for p in mine],
                "y": [p["rate"] for p in mine],
                "text": [label(named.get(id(p), "")) for p in mine],
                "textposition": "bottom right",
                "cliponaxis": False,
                "customdata": [
                    [label(p["name"]), seconds(p["time"] * p["count"]), f"{p['share']:.1%}", short(p["count"])]
                    for p in mine
                ],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:.3~g} FLOP/B, %{y:.3~s}FLOP/s<br>"
                "%{customdata[1]} in the step (%{customdata[2]}), %{customdata[3]} times<extra></extra>",
                "marker": {
                    "symbol": f"{symbol}-open",
                    "size": [_size(p) for p in mine],
                    "color": RESOURCE_TOKENS[resource],
                    "line": {"width": 2, "color": RESOURCE_TOKENS[resource]},
                },
            }
        )
    return traces


def _labels(points: list[dict[str, Any]]) -> dict[int, str]:
    """Labels by point: the largest of each crowd speaks for it, since many products of a step lie on one spot."""
    crowds: list[list[dict[str, Any]]] = []
    for point in sorted(points, key=lambda p: -p["share"]):
        near = (
            crowd
            for crowd in crowds
            if abs(math.log10(crowd[0]["intensity"] / point["intensity"])) < CLOSE
            and abs(math.log10(crowd[0]["rate"] / point["rate"])) < CLOSE
        )
        found = next(near, None)
        if found is None:
            crowds.append([point])
        else:
            found.append(point)
    labels: dict[int, str] = {}
    for crowd in crowds[:LABELLED]:
        if sum(p["share"] for p in crowd) >= 0.02:
            others = len(crowd) - 1
            labels[id(crowd[0])] = crowd[0]["name"] + (f" and {others} more" if others else "")
    return labels


def _size(point: Mapping[str, Any]) -> float:
    """Pixels across a point."""
    return 7 + 30 * math.sqrt(float(point["share"]))


class _FreeSpot:
    """Finds the place on a slope where its name covers the fewest points and labels, in pixels of a phone's plot."""

    def __init__(
        self,
        window: tuple[float, float, float, float],
        points: Sequence[Mapping[str, Any]],
        named: Mapping[int, str],
    ) -> None:
        x_low, x_high, y_low, y_high = (math.log10(edge) for edge in window)
        self._low = (x_low, y_low)
        self._scale = (PHONE_PLOT[0] / (x_high - x_low), PHONE_PLOT[1] / (y_high - y_low))
        self._taken: list[tuple[float, float, float, float]] = []
        for point in points:
            x, y, half = *self._at(point["intensity"], point["rate"]), _size(point) / 2.0
            self._taken.append((x - half, y - half, x + half, y + half))
            if words := named.get(id(point)):
                width = min(len(words) * _LETTER, PHONE_PLOT[0])
                left = min(x + half, PHONE_PLOT[0] - width)  # the page moves what would leave the drawing
                self._taken.append((left, y - half - _LINE, left + width, y - half))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across, up = math.log10(x) - self._low[0], math.log10(y) - self._low[1]
        return across * self._scale[0], up * self._scale[1]

    def take(self, x: float, y: float, words: str) -> None:
        """Keep free what is written left above a place."""
        right, up = self._at(x, y)
        self._taken.append((right - len(words) * _LETTER, up, right, up + _LINE))

    def on_slope(self, rate: float, top: float, words: str, *, above: bool) -> dict[str, Any]:
        """The name of a slope of `rate` bytes/s that ends at `top` FLOP/s: left above it, or right beneath it."""
        width = len(words) * _LETTER
        first = max(self._low[0], self._low[1] - math.log10(rate))
        last = max(math.log10(top / rate), first + 0.3)
        best, least, kept = first, math.inf, (0.0, 0.0, 0.0, 0.0)
        for place in range(1, 40):
            spot = first + (last - first) * place / 40
            x, y = self._at(10.0**spot, 10.0**spot * rate)
            box = (x - width, y, x, y + _LINE) if above else (x, y - _LINE - 3, x + width, y - 3)
            outside = max(-box[0], 0.0) + max(box[2] - PHONE_PLOT[0], 0.0) + max(-box[1], 0.0)
            covered = sum(_overlap(box, other) for other in self._taken)
            # of free places the one nearest to the middle
            cost = covered + outside * _LINE + abs(place - 20) / 40
            if cost < least:
                best, least, kept = spot, cost, box
        self._taken.append(kept)
        side: dict[str, Any] = {"xanchor": "right", "yshift": 8} if above else {"xanchor": "left", "yshift": -10}
        return _note(10.0**best, 10.0**best * rate, words, "hbm", **side)


def _overlap(one: tuple[float, float, float, float], two: tuple[float, float, float, float]) -> float:
    """Square pixels that two boxes share."""
    across = min(one[2], two[2]) - max(one[0], two[0])
    up = min(one[3], two[3]) - max(one[1], two[1])
    return max(across, 0.0) * max(up, 0.0)


def _note(x: float, y: float, text: str, resource: str, *, xanchor: str = "left", yshift: int = 0) -> dict[str, Any]:
    return {
        "x": math.log10(x),
        "y": math.log10(y),
        "text": text,
        "showarrow": False,
        "xanchor": xanchor,
        "yshift": yshift,
        "font": {"color": f"var(--resource-{resource}-text)", "size": 12},
    }
