"""Charts of a profile: time by family, kernels under the device's roofs, and what ran when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.base import RESOURCE_TOKENS, ChartSpec, label, log_axis, seconds, short, time_axis, with_prefix
from app.charts.ceilings import decade, note_at, roof_lines, slope
from app.domain.hardware import HardwareProfile
from app.domain.kernels import FAMILY_TITLES, short_name

FAMILY_COLOURS: Mapping[str, str] = {
    "gemm": "var(--resource-compute)",
    "grouped-gemm": "var(--resource-compute) / 65%",
    "attention": "var(--resource-link-far)",
    "convolution": "var(--resource-compute) / 40%",
    "scan": "var(--resource-link-far) / 55%",
    "norm": "var(--resource-hbm)",
    "elementwise": "var(--resource-hbm) / 60%",
    "copy": "var(--resource-other)",
    "collective": "var(--resource-link-near)",
    "moe": "var(--resource-imbalance)",
    "optimizer": "var(--resource-sync)",
    "softmax": "var(--resource-hbm) / 35%",
    "embedding": "var(--resource-imbalance) / 50%",
    "sampling": "var(--resource-sync) / 50%",
    "other": "var(--resource-other) / 50%",
}
"""A colour for each family: products blue, attention purple, what memory feeds orange, links green."""

LABELLED = 5
CLOSE = 0.25
"""Points closer than this, in decades on both axes, share one name."""


def _plain_colour(family: str) -> str:
    """A family's colour as style sheets write it."""
    token, _, share = FAMILY_COLOURS.get(family, FAMILY_COLOURS["other"]).partition(" / ")
    return f"color-mix(in srgb, {token} {share}, transparent)" if share else token


@dataclass(frozen=True, slots=True)
class FamilyTime:
    """One family: seconds over all its kernels, their share of all, and the time alone on the device where known."""

    family: str
    time: float
    share: float
    count: float
    names: int
    on_path: float | None


def family_times(families: Sequence[FamilyTime], *, title: str, caption: str = "") -> ChartSpec:
    """One horizontal bar a family, the longest on top."""
    factor, unit = time_axis([row.time for row in families])
    names = [FAMILY_TITLES.get(row.family, label(row.family)) for row in families]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [row.time / factor for row in families],
        "marker": {"color": [FAMILY_COLOURS.get(row.family, FAMILY_COLOURS["other"]) for row in families]},
        "text": [f"{row.share:.1%}" for row in families],
        "textposition": "auto",
        "customdata": [f"{seconds(row.time)}, {row.count:,.0f} launches of {row.names:,}" for row in families],
        "hovertemplate": "<b>%{y}</b><br>%{customdata} names<extra></extra>",
        "showlegend": False,
    }
    held = any(row.on_path is not None for row in families)
    columns = [
        {"label": "Family", "head": True},
        {"label": "Time", "unit": "s"},
        {"label": "Share", "unit": "ratio"},
        *([{"label": "Alone on the device", "unit": "s"}] if held else []),
        {"label": "Launches", "numeric": True},
        {"label": "Names", "numeric": True},
    ]
    rows = [
        [name, row.time, row.share, *([row.on_path] if held else []), row.count, row.names]
        for name, row in zip(names, families, strict=True)
    ]
    return ChartSpec(
        data=(trace,),
        layout={
            "height": 70 + 30 * max(len(families), 2),
            "margin": {"l": 190, "r": 16, "t": 4, "b": 44},
            "xaxis": {"title": {"text": f"Kernel time, {unit}"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "automargin": True},
            "bargap": 0.25,
        },
        table={"columns": columns, "rows": rows},
        meta={"title": title, "caption": caption},
    )


# --- roofline ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoofKernel:
    """A kernel with FLOP and bytes: rates in FLOP/s and B/s, `share` of the time of all kernels.

    `counted`: bytes are measured; else they are the least that its shapes allow.
    """

    name: str
    family: str
    time: float
    share: float
    flop: float
    hbm_bytes: float | None
    l2_bytes: float | None
    precision: str | None
    counted: bool
    l2_busy: float | None = None
    """Throughput of the busiest part of the L2, as a share of that part's peak."""


@dataclass(frozen=True, slots=True)
class CountedRoof:
    """The most that a level could move, B/s, as the report's counters tell it; `least`: it may be more."""

    rate: float
    least: bool


def kernel_roofline(
    kernels: Sequence[RoofKernel],
    profile: HardwareProfile | None,
    *,
    dram: CountedRoof | None = None,
    l2: CountedRoof | None = None,
    title: str,
    caption: str = "",
) -> ChartSpec | None:
    """Measured kernels at their intensity and rate: once over device-memory bytes, once over L2 bytes.

    A kernel's two points lie at one height; the distance between them is what the L2 saves. Roofs are the linked
    device's vendor peaks, with what was achieved dashed; the roof of the L2, and without a device that of its memory,
    is what the counters tell (dotted: at least that), and else that of the L2 what somebody achieved. None without a
    point.
    """
    levels = (
        ("DRAM", "circle", [(k, k.flop / k.hbm_bytes) for k in kernels if k.flop > 0 and k.hbm_bytes]),
        ("L2", "diamond-open", [(k, k.flop / k.l2_bytes) for k in kernels if k.flop > 0 and k.l2_bytes]),
    )
    points = [(k, x, k.flop / k.time) for _, _, found in levels for k, x in found if k.time > 0]
    if not points:
        return None
    peaks = _peaks(kernels, profile)
    memory = profile.memory_bandwidth if profile is not None else None
    if memory is None and dram is not None:
        memory = dram.rate
    else:
        dram = None
    l2 = l2 if levels[1][2] else None
    xs, ys = [x for _, x, _ in points], [y for _, _, y in points]
    for bandwidth in (memory, l2.rate if l2 is not None else None):
        if bandwidth is not None:
            xs += [rate / bandwidth for _, rate in peaks]
    ys += [rate for _, rate in peaks]
    x_low, x_high = decade(min(xs) / 1.5, math.floor), decade(max(xs) * 1.5, math.ceil)
    y_low, y_high = decade(min(ys) / 1.5, math.floor), max(ys) * 3
    area = (x_low, x_high, y_low, y_high)
    traces, notes = _roofs(profile, peaks, memory, area, least=dram is not None and dram.least)
    if l2 is not None:
        dash, before = ("dot", "At least ") if l2.least else ("solid", "")
        line, note = _slope("L2", l2.rate, peaks, area, "other", dash, before, named_at=0.8)
        traces.append(line)
        notes.append(note)
    elif levels[1][2] and profile is not None and profile.achievable_l2_bandwidth is not None:
        line, note = _slope("L2, achieved", profile.achievable_l2_bandwidth, peaks, area, "other", "dash", named_at=0.8)
        traces.append(line)
        notes.append(note)
    labelled = _labelled(levels[0][2] or levels[1][2])
    for level, symbol, found in levels:
        shown = [(k, x) for k, x in found if k.time > 0]
        if not shown:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": f"{level} bytes" + ("" if any(k.counted for k, _ in shown) else ", least by shape"),
                "x": [x for _, x in shown],
                "y": [k.flop / k.time for k, _ in shown],
                "text": [label(short_name(k.name, 26)) if (id(k), x) in labelled else "" for k, x in shown],
                "textposition": "top left",
                "textfont": {"size": 11},
                "customdata": [_hover(k, level, x) for k, x in shown],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {
                    "symbol": symbol,
                    "size": [9 + 22 * math.sqrt(min(max(k.share, 0.0), 1.0)) for k, _ in shown],
                    "color": [FAMILY_COLOURS.get(k.family, FAMILY_COLOURS["other"]) for k, _ in shown],
                    "line": {"width": 1.5, "color": "var(--chart-mark)"},
                },
            }
        )
    rows = [
        [
            {"text": short_name(k.name), "title": k.name},
            FAMILY_TITLES.get(k.family, k.family),
            k.time,
            k.share,
            k.flop / k.time if k.time > 0 else None,
            None if k.hbm_bytes is None or k.time <= 0 else k.hbm_bytes / k.time,
            None if k.hbm_bytes is None or memory is None or k.time <= 0 else k.hbm_bytes / k.time / memory,
            None if not k.hbm_bytes else k.flop / k.hbm_bytes,
            *(
                (
                    None if k.l2_bytes is None or k.time <= 0 else k.l2_bytes / k.time,
                    None if k.l2_bytes is None or l2 is None or k.time <= 0 else k.l2_bytes / k.time / l2.rate,
                    None if not k.l2_bytes else k.flop / k.l2_bytes,
                )
                if levels[1][2]
                else ()
            ),
        ]
        for k in kernels
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": 440,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
            "xaxis": log_axis("FLOP per byte of the level", x_low, x_high),
            "yaxis": log_axis("Reached, FLOP/s", y_low, y_high),
            "annotations": notes,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.04, "yanchor": "bottom"},
            "hovermode": "closest",
        },
        table={
            "columns": [
                {"label": "Kernel", "head": True},
                {"label": "Family"},
                {"label": "Time", "unit": "s"},
                {"label": "Share", "unit": "ratio"},
                {"label": "Reached", "unit": "FLOP/s"},
                {"label": "DRAM", "unit": "B/s"},
                {"label": "Of DRAM peak", "unit": "ratio"},
                {"label": "FLOP per DRAM byte", "numeric": True},
                *(
                    (
                        {"label": "L2", "unit": "B/s"},
                        {"label": "Of L2 peak", "unit": "ratio"},
                        {"label": "FLOP per L2 byte", "numeric": True},
                    )
                    if levels[1][2]
                    else ()
                ),
            ],
            "rows": rows,
        },
        meta={"title": title, "caption": caption},
    )


def _labelled(points: Sequence[tuple[RoofKernel, float]]) -> set[tuple[int, float]]:
    """The points with a name beside them: the largest, none close to one that has a name already."""
    chosen: list[tuple[RoofKernel, float]] = []
    for kernel, x in sorted(points, key=lambda point: -point[0].share):
        near = any(
            abs(math.log10(x / other_x)) < CLOSE
            and abs(math.log10(kernel.flop / kernel.time / (other.flop / other.time))) < CLOSE
            for other, other_x in chosen
        )
        if not near and len(chosen) < LABELLED:
            chosen.append((kernel, x))
    return {(id(kernel), x) for kernel, x in chosen}


def _hover(kernel: RoofKernel, level: str, intensity: float) -> str:
    size = (kernel.hbm_bytes if level == "DRAM" else kernel.l2_bytes) or 0.0
    what = "measured" if kernel.counted else "least by shape"
    return (
        f"<b>{label(short_name(kernel.name))}</b><br>{seconds(kernel.time)}, {kernel.share:.1%} of kernel time<br>"
        f"{with_prefix(kernel.flop / kernel.time, 'FLOP/s')}, "
        f"{with_prefix(size / kernel.time, 'B/s')} {level} ({what})<br>"
        f"{short(intensity)} FLOP per {level} byte"
        + (
            f"<br>busiest part of the L2 at {kernel.l2_busy:.0%}"
            if level == "L2" and kernel.l2_busy is not None
            else ""
        )
    )


def _peaks(kernels: Sequence[RoofKernel], profile: HardwareProfile | None) -> list[tuple[str, float]]:
    """The roofs of the formats that the kernels state, else of bf16 and fp32, the lowest first."""
    if profile is None:
        return []
    stated = {k.precision for k in kernels if k.precision in profile.peak}
    wanted = stated or {name for name in ("bf16", "fp32") if name in profile.peak}
    return roof_lines({name: profile.peak[name] for name in wanted if name is not None})


def _slope(
    name: str,
    bandwidth: float,
    peaks: Sequence[tuple[str, float]],
    area: tuple[float, float, float, float],
    resource: str,
    dash: str,
    before: str = "",
    named_at: float = 0.5,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A roof of a level of memory up to the highest peak, or to the edge of the drawing, and its name.

    `named_at` is the part of the line, from its foot, beside which the name stands.
    """
    x_low, x_high, y_low, y_high = area
    start = max(x_low, y_low / bandwidth)
    end = peaks[-1][1] / bandwidth if peaks else min(x_high, y_high / bandwidth)
    line = slope(name, bandwidth, start, max(end, start), solid=True)
    line["line"] = {**line["line"], "color": RESOURCE_TOKENS[resource], "dash": dash}
    text = f"{before}{name} {with_prefix(bandwidth, 'B/s')}"
    at = start ** (1 - named_at) * max(end, start) ** named_at
    return line, {**note_at(at, at * bandwidth, text, resource), "xanchor": "right", "yshift": 8}


def _roofs(
    profile: HardwareProfile | None,
    peaks: Sequence[tuple[str, float]],
    memory: float | None,
    area: tuple[float, float, float, float],
    *,
    least: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    x_low, x_high, y_low, _ = area
    if memory is not None:
        dash, before = ("dot", "At least ") if least else ("solid", "")
        line, note = _slope("DRAM", memory, peaks, area, "hbm", dash, before)
        traces.append(line)
        notes.append(note)
        reached = profile.achievable_memory_bandwidth if profile is not None else None
        if reached is not None and peaks:
            start = max(x_low, y_low / memory)
            traces.append(slope("DRAM, achieved", reached, start, peaks[-1][1] / reached, solid=False))
    for name, rate in peaks:
        text = f"{name} {with_prefix(rate, 'FLOP/s')}"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [x_low if memory is None else rate / memory, x_high],
                "y": [rate, rate],
                "line": {"color": RESOURCE_TOKENS["compute"], "width": 2},
                "hovertemplate": f"{label(text)}<extra></extra>",
                "showlegend": False,
            }
        )
        notes.append({**note_at(x_high, rate, label(text), "compute"), "xanchor": "right", "yshift": 9})
    return traces, notes


# --- timeline ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """A stretch of a lane: seconds from the profile's first kernel; `count` kernels, of which `name` took most."""

    lane: str
    start: float
    length: float
    busy: float
    name: str
    family: str
    count: int


def step_timeline(
    bars: Sequence[TimelineBar],
    lanes: Sequence[str],
    steps: Sequence[tuple[str, float, float]],
    window: tuple[float, float],
    *,
    title: str,
    caption: str = "",
) -> ChartSpec:
    """Bars on one lane a stream, coloured by family; dotted lines where marked steps begin."""
    begin, end = window
    factor, unit = time_axis([end - begin])
    families = list(dict.fromkeys(bar.family for bar in sorted(bars, key=lambda bar: -bar.busy)))
    traces = []
    for family in families:
        mine = [bar for bar in bars if bar.family == family]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": FAMILY_TITLES.get(family, label(family)),
                "y": [bar.lane for bar in mine],
                "x": [bar.length / factor for bar in mine],
                "base": [(bar.start - begin) / factor for bar in mine],
                "width": 0.72,
                "marker": {"color": FAMILY_COLOURS.get(family, FAMILY_COLOURS["other"]), "line": {"width": 0}},
                "customdata": [_bar_hover(bar) for bar in mine],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    shapes = [
        {
            "type": "line",
            "x0": (start - begin) / factor,
            "x1": (start - begin) / factor,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "var(--chart-axis)", "width": 1, "dash": "dot"},
        }
        for _, start, _ in steps
        if begin <= start <= end
    ]
    longest = sorted(bars, key=lambda bar: -bar.busy)[:100]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "overlay",
            "height": 84 + 46 * max(len(lanes), 1),
            "margin": {"l": 92, "r": 12, "t": 8, "b": 44},
            "xaxis": {
                "title": {"text": f"Time, {unit}" + ("" if begin == 0 else f" after {seconds(begin)}")},
                "range": [0, (end - begin) / factor],
            },
            "yaxis": {"categoryorder": "array", "categoryarray": list(lanes)[::-1], "automargin": True},
            "shapes": shapes,
            "showlegend": False,
            "hovermode": "closest",
            "bargap": 0.2,
        },
        table={
            "columns": [
                {"label": "Kernel", "head": True},
                {"label": "Family"},
                {"label": "Stream"},
                {"label": "Start", "unit": "s"},
                {"label": "Length", "unit": "s"},
                {"label": "Kernels", "numeric": True},
            ],
            "rows": [
                [
                    {"text": short_name(bar.name), "title": bar.name},
                    FAMILY_TITLES.get(bar.family, bar.family),
                    bar.lane,
                    bar.start,
                    bar.length,
                    bar.count,
                ]
                for bar in longest
            ],
        },
        meta={
            "title": title,
            "caption": caption,
            "legend": [
                {"label": FAMILY_TITLES.get(family, family), "color": _plain_colour(family)} for family in families
            ],
        },
    )


def _bar_hover(bar: TimelineBar) -> str:
    text = f"<b>{label(short_name(bar.name))}</b><br>{seconds(bar.length)} from {seconds(bar.start)}"
    return text if bar.count == 1 else f"{text}<br>{bar.count:,} kernels, busy {seconds(bar.busy)}; this one most"


# --- two runs ------------------------------------------------------------------------------------------------------


def family_changes(
    families: Sequence[tuple[str, float, float]], names: tuple[str, str], *, title: str, caption: str = ""
) -> ChartSpec:
    """Time by family in two runs, side by side: (family, before, after) in seconds."""
    factor, unit = time_axis([value for _, before, after in families for value in (before, after)])
    titles = [FAMILY_TITLES.get(family, label(family)) for family, _, _ in families]
    colours = [FAMILY_COLOURS.get(family, FAMILY_COLOURS["other"]) for family, _, _ in families]
    times = ([before for _, before, _ in families], [after for _, _, after in families])
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(name),
            "y": titles,
            "x": [time / factor for time in times[place]],
            "marker": {
                "color": colours if place else "rgba(0,0,0,0)",
                "line": {"width": 2, "color": colours if place else "var(--chart-mark)"},
            },
            "customdata": [seconds(time) for time in times[place]],
            "hovertemplate": f"<b>%{{y}}</b><br>{label(name)}: %{{customdata}}<extra></extra>",
        }
        for place, name in enumerate(names)
    ]
    return ChartSpec(
        data=tuple(traces),
        layout={
            "barmode": "group",
            "height": 90 + 44 * max(len(families), 2),
            "margin": {"l": 190, "r": 16, "t": 8, "b": 44},
            "xaxis": {"title": {"text": f"Kernel time, {unit}"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "automargin": True},
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        },
        table={
            "columns": [
                {"label": "Family", "head": True},
                {"label": "Before", "unit": "s"},
                {"label": "After", "unit": "s"},
                {"label": "Difference", "unit": "s"},
            ],
            "rows": [
                [name, before, after, after - before] for name, (_, before, after) in zip(titles, families, strict=True)
            ],
        },
        meta={"title": title, "caption": caption},
    )
