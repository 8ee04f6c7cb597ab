"""The roofline: attainable FLOP/s against arithmetic intensity, with the operations of a step on it (F-1.2)."""

from __future__ import annotations

import math
from typing import Any

from app.charts.base import RESOURCE_LABELS, RESOURCE_TOKENS, ChartSpec, label, log_axis, seconds, short, with_prefix
from app.domain.cost import TIERS
from app.domain.lower_bound import Bound, Ceilings
from app.domain.precision import PRECISIONS

LABELLED = 5
"""Most labels in the drawing; the rest are named on hover and in the table."""

CLOSE = 0.18
"""Points closer than this, in decades on both axes, share one label."""

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def roofline(bound: Bound, *, title: str, caption: str = "", height: int = 420) -> ChartSpec:
    """A step's operations under the roofs that their precisions have.

    A point lies at its intensity (FLOP executed per HBM byte) at the rate of taking exactly its bound, so it touches
    a roof unless a link or the exponent unit holds it back. Points are outlines, since they are
    bounds, not measurements; their area grows with the share of the step's time. Operations that compute nothing or
    touch no memory have no place on the chart and stand in the table only.
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
    start = max(x_low, y_low / memory)
    slope_at = math.sqrt(start * (peaks[0][1] / memory)) if peaks[0][1] / memory > start else start * 2
    cache = bound.ceilings.l2
    # beside a second slope the name of the first stands on its other side
    side: dict[str, Any] = {"xanchor": "right", "yshift": 8} if cache is None else {"xanchor": "left", "yshift": -10}
    annotations.append(_note(slope_at, slope_at * memory, f"HBM {with_prefix(memory, 'B/s')}", "hbm", **side))
    if cache is not None:
        start = max(x_low, y_low / cache)
        name = f"L2 {with_prefix(cache, 'B/s')}, achieved"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [start, top / cache],
                "y": [start * cache, top],
                "line": {"color": RESOURCE_TOKENS["hbm"], "width": 1.5, "dash": "dash"},
                "name": "L2",
                "hovertemplate": f"{name}, by operands that lie in cache<extra></extra>",
                "showlegend": False,
            }
        )
        annotations.append(_note(slope_at, slope_at * cache, name, "hbm", xanchor="right", yshift=8))
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
    traces += _point_traces(points)
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
        rate, token = roofs.links[tier], "link-near" if tier == "scale_up" else "link-far"
        words, dash = ("scale-up", "solid") if tier == "scale_up" else ("scale-out", "dash")
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
                    "symbol": "circle-open" if tier == "scale_up" else "diamond-open",
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


def _point_traces(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    named = _labels(points)
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
                    "size": [7 + 30 * math.sqrt(p["share"]) for p in mine],
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
