"""Charts of the expert layers: stages, overlap as a timeline, the three walls, and how tokens spread over experts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.base import RESOURCE_LABELS, RESOURCE_TOKENS, ChartSpec, label, seconds, short, time_axis
from app.domain.moe_pipeline import ExpertLoad, Pipeline

STAGE_LABELS: Mapping[str, str] = {
    "router": "Router",
    "topk": "Top-k",
    "histogram": "Histogram",
    "permute": "Permute",
    "dispatch": "Dispatch",
    "gemm1": "GEMM 1",
    "activation": "Activation",
    "gemm2": "GEMM 2",
    "combine": "Combine",
    "unpermute": "Unpermute",
    "shared": "Shared expert",
    "other": "Sums and projections",
}
LEVEL_WORDS: Mapping[str, str] = {"L0": "no overlap", "L1": "streams", "L2": "chunks", "L3": "tiles"}
LANES = {"compute": "device", "link": "links"}


def stage_bars(seen: Pipeline, *, title: str, caption: str = "") -> ChartSpec:
    """One bar a stage: what is on the critical path solid, what hides behind other work faint, the busiest rank's more.

    Stages that take no time by their bound (their tensors stay in cache) stand in the table only.
    """
    shown = [stage for stage in seen.stages if stage.time + stage.imbalance > 0]
    per = seen.layers or 1.0
    factor, unit = time_axis([(stage.time + stage.imbalance) / per for stage in shown])
    names = [STAGE_LABELS[stage.stage] for stage in shown]
    colours = [RESOURCE_TOKENS[stage.binding] for stage in shown]

    def bars(values: list[float], base: list[float], marker: dict[str, Any], name: str) -> dict[str, Any]:
        return {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [value / per / factor for value in values],
            "base": [value / per / factor for value in base],
            "marker": marker,
            "customdata": [seconds(value / per) for value in values],
            "hovertemplate": f"%{{y}}, {name}: %{{customdata}}<extra></extra>",
            "name": name,
        }

    exposed = [stage.exposed for stage in shown]
    hidden = [stage.time - stage.exposed for stage in shown]
    late = [stage.imbalance for stage in shown]
    traces = [bars(exposed, [0.0] * len(shown), {"color": colours}, "on the critical path")]
    if any(value > 0 for value in hidden):
        traces.append(bars(hidden, exposed, {"color": [f"{c} / 35%" for c in colours]}, "hidden"))
    if any(value > 0 for value in late):
        traces.append(
            bars(late, [s.time for s in shown], {"color": RESOURCE_TOKENS["imbalance"]}, "the busiest rank's more")
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 70 + 34 * max(len(names), 1),
            "margin": {"l": 116, "r": 16, "t": 8, "b": 44},
            "xaxis": {"title": {"text": f"Time of one layer, {unit}"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": names},
            "showlegend": False,
        },
        table=stage_table(seen),
        meta={"title": title, "caption": caption},
    )


def stage_table(seen: Pipeline) -> dict[str, Any]:
    """Stages over a whole step of one device, with what each is made of."""
    backward = any(direction != "forward" for stage in seen.stages for direction in stage.by_direction)
    columns: list[dict[str, Any]] = [
        {"label": "Stage", "head": True},
        {"label": "Useful FLOP", "numeric": True},
        {"label": "HBM", "numeric": True, "title": "Fewest bytes that cross HBM"},
        {"label": "Near link", "numeric": True, "title": "Bytes sent one way inside the scale-up domain"},
        {"label": "Far link", "numeric": True, "title": "Bytes sent one way to other nodes"},
        {"label": "Launches", "numeric": True},
        {"label": "Bound", "numeric": True, "title": "Least time in a step, mean rank"},
        {"label": "Busiest +", "numeric": True, "title": "What the busiest rank adds to the mean one"},
        {"label": "Expected", "numeric": True, "title": "What tuned kernels take, mean of four of five measurements"},
        {"label": "Binds"},
        {"label": "Exposed", "numeric": True, "title": "Of the bound, on the critical path at the asked overlap"},
        {"label": "Share", "unit": "ratio", "title": "Exposed over bound"},
    ]
    if backward:
        columns += [
            {"label": "Forward", "numeric": True, "title": "Of the bound"},
            {"label": "Backward", "numeric": True, "title": "Of the bound, with what is recomputed"},
        ]
    rows: list[list[Any]] = []
    for stage in seen.stages:
        row: list[Any] = [
            STAGE_LABELS[stage.stage],
            _amount(stage.bound.total("flop"), "FLOP"),
            _amount(stage.bound.hbm_bytes, "B"),
            _amount(stage.net["scale_up"], "B"),
            _amount(stage.net["scale_out"], "B"),
            stage.bound.total("launches"),
            _time(stage.time),
            _time(stage.imbalance),
            {
                **_time(stage.expected.time),
                "title": f"{seconds(stage.expected.low)} to {seconds(stage.expected.high)}. {stage.expected.basis}",
            },
            {"resource": stage.binding} if stage.time > 0 else {"text": "nothing"},
            _time(stage.exposed),
            stage.exposed / stage.time if stage.time > 0 else {"text": "no time"},
        ]
        if backward:
            forward = stage.by_direction.get("forward", 0.0)
            row += [_time(forward), _time(stage.time - forward)]
        rows.append(row)
    return {"columns": columns, "rows": rows}


def _time(value: float) -> dict[str, Any]:
    """A time in its own unit: stages of one table differ by a factor of a million."""
    return _amount(value, "s")


def _amount(value: float, unit: str) -> dict[str, Any]:
    """An amount in its own unit, bytes in decimal ones as they stand beside rates."""
    return {"text": "0", "value": 0.0} if value == 0 else {"value": value, "unit": unit, "decimal": True}


def overlap_timeline(seen: Pipeline, *, title: str, caption: str = "") -> ChartSpec:
    """The mean layer's forward pass at every level of overlap, the device on one lane and its links on the other."""
    ends = {level: max((bar.end for bar in bars), default=0.0) for level, bars in seen.timelines.items()}
    factor, unit = time_axis(list(ends.values()))
    lanes = [f"{level} {LANES[lane]}" for level in seen.timelines for lane in LANES]
    traces: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    longest = max(ends.values(), default=0.0) or 1.0
    bindings = dict.fromkeys(bar.binding for bars in seen.timelines.values() for bar in bars)
    for binding in bindings:
        mine = [(level, bar) for level, bars in seen.timelines.items() for bar in bars if bar.binding == binding]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": [f"{level} {LANES[bar.lane]}" for level, bar in mine],
                "x": [(bar.end - bar.start) / factor for _, bar in mine],
                "base": [bar.start / factor for _, bar in mine],
                "marker": {
                    "color": RESOURCE_TOKENS[binding],
                    "line": {"width": 1, "color": "var(--surface)"},
                },
                "text": [STAGE_LABELS[bar.stage] if bar.end - bar.start > longest * 0.09 else "" for _, bar in mine],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "inside",
                "customdata": [f"{STAGE_LABELS[bar.stage]}: {seconds(bar.end - bar.start)}" for _, bar in mine],
                "hovertemplate": "%{y}, %{customdata}<extra></extra>",
                "name": RESOURCE_LABELS[binding],
            }
        )
    for level, bars in seen.timelines.items():
        annotations.append(
            {
                "x": ends[level] / factor,
                "y": f"{level} {LANES['compute']}",
                "xanchor": "left",
                "showarrow": False,
                "text": f" {seconds(ends[level])}",
                "font": {"size": 12, "color": "var(--chart-text)"},
            }
        )
        rows += [
            [level, LANES[bar.lane], STAGE_LABELS[bar.stage], bar.start, bar.end, bar.end - bar.start]
            for bar in sorted(bars, key=lambda bar: (bar.start, bar.end))
        ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "bargap": 0.25,
            "height": 80 + 30 * len(lanes),
            "margin": {"l": 84, "r": 16, "t": 8, "b": 44},
            "xaxis": {"title": {"text": f"Forward pass of one layer, {unit}"}, "range": [0, longest * 1.14 / factor]},
            "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": lanes},
            "uniformtext": {"mode": "hide", "minsize": 11},
            "annotations": annotations,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table={
            "columns": [
                {"label": "Level", "head": True},
                {"label": "Lane"},
                {"label": "Stage"},
                {"label": "From", "unit": "s"},
                {"label": "To", "unit": "s"},
                {"label": "Time", "unit": "s"},
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


@dataclass(frozen=True, slots=True)
class Position:
    """A layout between the walls."""

    name: str
    mark: str
    communication: float
    compute: float
    memory: float
    capacity: float | None
    asked: bool = False

    @property
    def fits(self) -> bool | None:
        return None if self.capacity is None else self.memory <= self.capacity


def three_walls(positions: Sequence[Position], *, title: str, caption: str = "") -> ChartSpec:
    """Layouts between the walls: time on the device to the right, time on links upwards, crosses where memory is full.

    Above the diagonal links take longer than the device. A layout that exchanges nothing stands in the table only.
    """
    drawn = [p for p in positions if p.communication > 0 and p.compute > 0]
    values = [value for p in drawn for value in (p.communication, p.compute)] or [1e-3]
    factor, unit = time_axis(values)
    low, high = min(values) / factor / 3.0, max(values) / factor * 4.0
    places = _label_places(drawn, math.log(high / low))
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [low, high],
            "y": [low, high],
            "line": {"color": "var(--chart-axis)", "width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
            "name": "equal",
            "showlegend": False,
        }
    ]
    for name, full, symbol, colour in (
        ("fits", False, "circle", "var(--chart-mark)"),
        ("does not fit", True, "x-thin", "var(--bad)"),
    ):
        mine = [p for p in drawn if (p.fits is False) == full]
        if not mine:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [p.compute / factor for p in mine],
                "y": [p.communication / factor for p in mine],
                "text": [label(p.mark) for p in mine],
                "textposition": [places[drawn.index(p)] for p in mine],
                "textfont": {"size": 12, "color": "var(--chart-text)"},
                "cliponaxis": False,
                "marker": {
                    "symbol": [symbol if symbol != "circle" or p.asked else "circle-open" for p in mine],
                    "size": [15 if p.asked else 11 for p in mine],
                    "color": colour,
                    "line": {"width": 2.5 if symbol == "x-thin" else 2, "color": colour},
                },
                "customdata": [
                    f"{label(p.name)}: {seconds(p.communication)} of exchange, {seconds(p.compute)} on the device"
                    for p in mine
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
                "name": name,
            }
        )
    ends = [math.log10(low), math.log10(high)]
    annotations = [
        _corner(0.01, 0.99, "left", "top", "communication wall", "var(--resource-link-near-text)"),
        _corner(0.99, 0.02, "right", "bottom", "device wall (compute and HBM)", "var(--resource-compute-text)"),
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": 400,
            "margin": {"l": 64, "r": 16, "t": 30, "b": 48},
            "xaxis": {"type": "log", "range": ends, "title": {"text": f"On the device, {unit} a step"}, "dtick": 1},
            "yaxis": {"type": "log", "range": ends, "title": {"text": f"On links, {unit} a step"}, "dtick": 1},
            "annotations": annotations,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
        table={
            "columns": [
                {"label": "Layout", "head": True, "wrap": True},
                {"label": "On links", "unit": "s"},
                {"label": "On the device", "unit": "s"},
                {"label": "Memory of a device", "unit": "B"},
                {"label": "Of capacity", "unit": "ratio"},
                {"label": "Stands at"},
            ],
            "rows": [
                [
                    p.name,
                    p.communication,
                    p.compute,
                    p.memory,
                    None if p.capacity is None else p.memory / p.capacity,
                    "memory wall"
                    if p.fits is False
                    else "communication wall"
                    if p.communication > p.compute
                    else "device wall",
                ]
                for p in positions
            ],
        },
        meta={"title": title, "caption": caption},
    )


def _label_places(positions: Sequence[Position], span: float) -> list[str]:
    """Where each label stands, so that near marks do not write over each other: the asked one below its mark first, the
    others above theirs, and where something stands already on another side. `span` is the axis in logarithms."""
    sides = {"top center": (0, 1), "bottom center": (0, -1), "middle right": (1, 0), "middle left": (-1, 0)}
    sides |= {"top right": (1, 1), "bottom right": (1, -1), "top left": (-1, 1), "bottom left": (-1, -1)}
    at = [(math.log(p.compute) / span, math.log(p.communication) / span) for p in positions]
    labels: list[tuple[float, float]] = []
    chosen = [""] * len(positions)
    for place in sorted(range(len(positions)), key=lambda i: not positions[i].asked):
        x, y = at[place]
        marks = [mark for other, mark in enumerate(at) if other != place]

        def crowd(side: str, x: float = x, y: float = y, marks: Sequence[tuple[float, float]] = marks) -> int:
            left, up = x + 0.09 * sides[side][0], y + 0.055 * sides[side][1]
            hit = sum(abs(left - a) < 0.08 and abs(up - b) < 0.05 for a, b in marks)
            return hit + sum(abs(left - a) < 0.13 and abs(up - b) < 0.055 for a, b in labels)

        first = ["bottom center"] if positions[place].asked else []
        chosen[place] = min([*first, *sides], key=crowd)
        labels.append((x + 0.09 * sides[chosen[place]][0], y + 0.055 * sides[chosen[place]][1]))
    return chosen


def _corner(x: float, y: float, xanchor: str, yanchor: str, text: str, colour: str) -> dict[str, Any]:
    return {
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": xanchor,
        "yanchor": yanchor,
        "showarrow": False,
        "text": text,
        "font": {"size": 12, "color": colour},
    }


def expert_loads(load: ExpertLoad, *, title: str, caption: str = "") -> ChartSpec:
    """Tokens of an expert, from the emptiest to the busiest, against the mean and the capacity."""
    shares = [share * 100 for share, _ in load.curve]
    counts = [count for _, count in load.curve]
    lines = [("mean", load.mean, "dash")]
    if load.capacity is not None:
        lines.append(("capacity", load.capacity, "dot"))
    top = max([*counts, load.maximum, *(value for _, value, _ in lines)])
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "line": {"shape": "hvh", "width": 2, "color": "var(--resource-imbalance)"},
            "fill": "tozeroy",
            "fillcolor": "var(--resource-imbalance) / 15%",
            "x": shares,
            "y": counts,
            "name": "tokens",
            "hovertemplate": "%{x:.0f} % of the experts get %{y:.4~g} or fewer<extra></extra>",
        }
    ]
    annotations = []
    for name, value, dash in lines:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [0, 100],
                "y": [value, value],
                "line": {"width": 1.5, "dash": dash, "color": "var(--chart-mark)"},
                "hoverinfo": "skip",
                "name": name,
            }
        )
        annotations.append(
            {
                "x": 1,
                "y": value,
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"{name} {short(value)}",
                "font": {"size": 12, "color": "var(--chart-text)"},
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": 280,
            "margin": {"l": 64, "r": 16, "t": 12, "b": 48},
            "xaxis": {"title": {"text": "Experts from the emptiest, %"}, "range": [0, 100]},
            "yaxis": {"title": {"text": "Tokens in a layer"}, "range": [0, top * 1.12 or 1]},
            "annotations": annotations,
            "showlegend": False,
        },
        table={
            "columns": [
                {"label": "Share of the experts", "unit": "ratio"},
                {"label": "Tokens or fewer", "numeric": True},
            ],
            "rows": [[share / 100, count] for share, count in zip(shares, counts, strict=True)],
        },
        meta={"title": title, "caption": caption},
    )
