"""A device's roofs without any work under them: the memory slope and one line for each precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.charts.base import RESOURCE_TOKENS, ChartSpec, label, log_axis, short, with_prefix
from app.domain.hardware import HardwareProfile

DRAWN = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")
"""Formats that model work runs in; fp64 stands in the table only."""


def ceilings_chart(profile: HardwareProfile, *, height: int = 380) -> ChartSpec | None:
    """Attainable FLOP/s against intensity under the vendor's dense peaks, with what was reached dashed below.

    Formats of one peak share a line. None where the profile states no memory bandwidth or no peak.
    """
    memory = profile.memory_bandwidth
    peaks = roof_lines({name: rate for name, rate in profile.peak.items() if name in DRAWN} or dict(profile.peak))
    if memory is None or not peaks:
        return None
    ridges = [rate / memory for _, rate in peaks]
    x_low = decade(min(ridges) / 20, math.floor)
    x_high = decade(max(ridges) * 8, math.ceil)
    y_low, y_high = x_low * memory, peaks[-1][1] * 3
    traces = [slope("Memory", memory, x_low, peaks[-1][1] / memory, solid=True)]
    reached_memory = profile.achievable_memory_bandwidth
    if reached_memory is not None:
        traces.append(slope("Memory, achieved", reached_memory, x_low, peaks[-1][1] / reached_memory, solid=False))
    notes = [_note(math.sqrt(x_low * ridges[0]), memory, f"Memory {with_prefix(memory, 'B/s')}")]
    cache = profile.achievable_l2_bandwidth
    if cache is not None:
        traces.append(slope("L2, achieved", cache, x_low, peaks[-1][1] / cache, solid=False))
    for name, rate in peaks:
        ridge = rate / memory
        text = f"{name} {with_prefix(rate, 'FLOP/s')}"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [ridge, x_high],
                "y": [rate, rate],
                "line": {"color": RESOURCE_TOKENS["compute"], "width": 2},
                "marker": {"symbol": "diamond", "size": [9, 0.1], "color": RESOURCE_TOKENS["compute"]},
                "hovertemplate": f"{label(text)}<br>ridge at {short(ridge)} FLOP/B<extra></extra>",
                "showlegend": False,
            }
        )
        notes.append(
            {
                **note_at(x_high, rate, f"{label(text)}, ridge {short(ridge)}", "compute"),
                "xanchor": "right",
                "yshift": 9,
            }
        )
    for name, rate in roof_lines({key: rate for key, rate in profile.achievable_flop.items() if key in DRAWN}):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name}, achieved",
                # Ends early, so that it does not run through the names of the peaks at the right.
                "x": [rate / memory, (rate / memory) ** 0.65 * x_high**0.35],
                "y": [rate, rate],
                "line": {"color": RESOURCE_TOKENS["compute"], "width": 1.5, "dash": "dash"},
                "hovertemplate": f"{label(name)} achieved {with_prefix(rate, 'FLOP/s')}<extra></extra>",
                "showlegend": False,
            }
        )
    return ChartSpec(
        data=tuple(traces),
        layout={
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
            "xaxis": log_axis("Intensity, FLOP per byte of memory", x_low, x_high),
            "yaxis": log_axis("Attainable, FLOP/s", y_low, y_high),
            "annotations": notes,
            "hovermode": "closest",
        },
        table=_table(profile, memory),
        meta={
            "title": f"Roofs of {profile.name}",
            "caption": "Solid: vendor peaks, dense. Dashed: achieved by a named measurement. Both axes logarithmic.",
        },
    )


def roof_lines(rates: Mapping[str, float]) -> list[tuple[str, float]]:
    """One line for each different rate, the lowest first, named by its formats."""
    by_rate: dict[float, list[str]] = {}
    for name, rate in rates.items():
        by_rate.setdefault(rate, []).append(name)
    return [(", ".join(names), rate) for rate, names in sorted(by_rate.items())]


def slope(name: str, bandwidth: float, x_low: float, x_high: float, *, solid: bool) -> dict[str, Any]:
    """A memory roof between two intensities: solid for a peak, dashed for what was achieved."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x_low, x_high],
        "y": [x_low * bandwidth, x_high * bandwidth],
        "line": {
            "color": RESOURCE_TOKENS["hbm"],
            "width": 2 if solid else 1.5,
            "dash": "solid" if solid else "dash",
        },
        "hovertemplate": f"{name} {with_prefix(bandwidth, 'B/s')}<extra></extra>",
        "showlegend": False,
    }


def _note(x: float, bandwidth: float, text: str) -> dict[str, Any]:
    return {**note_at(x, x * bandwidth, text, "hbm"), "xanchor": "right", "yshift": 8}


def note_at(x: float, y: float, text: str, resource: str) -> dict[str, Any]:
    """Words at a point of two logarithmic axes, in a resource's colour."""
    return {
        "x": math.log10(x),
        "y": math.log10(y),
        "text": text,
        "showarrow": False,
        "font": {"color": f"var(--resource-{resource}-text)", "size": 12},
    }


def _table(profile: HardwareProfile, memory: float) -> dict[str, Any]:
    rows: list[list[Any]] = [["Memory", memory, profile.achievable_memory_bandwidth, None]]
    if profile.achievable_l2_bandwidth is not None:
        rows.append(["L2", None, profile.achievable_l2_bandwidth, None])
    columns = [
        {"label": "Roof"},
        {"label": "Peak", "numeric": True, "title": "FLOP/s, for memory and L2 B/s"},
        {"label": "Achieved", "numeric": True, "title": "FLOP/s, for memory and L2 B/s"},
        {"label": "Ridge, FLOP/B", "numeric": True},
    ]
    for name in dict.fromkeys([*profile.peak, *profile.achievable_flop]):
        rate = profile.peak.get(name)
        rows.append([name, rate, profile.achievable_flop.get(name), None if rate is None else rate / memory])
    return {"columns": columns, "rows": [_cells(row) for row in rows]}


def _cells(row: list[Any]) -> list[Any]:
    name, peak, achieved, ridge = row
    unit = "B/s" if name in ("Memory", "L2") else "FLOP/s"
    shown = [
        {"text": "not reported"} if value is None else {"text": with_prefix(value, unit), "value": value}
        for value in (peak, achieved)
    ]
    return [name, *shown, {"text": ""} if ridge is None else {"text": short(ridge), "value": ridge}]


def decade(value: float, rounding: Any) -> float:
    """The power of ten below or above (math.floor, math.ceil)."""
    return float(10.0 ** rounding(math.log10(value)))
