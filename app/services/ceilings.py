"""Ceilings that a run measured, and how a team's profile takes them over with the run as their source.

A run states them as `evidence` under the names that a hardware profile has for them: `achievable.flop_per_s.bf16`,
`achievable.memory_bandwidth_bytes_per_s`, `launch_overhead_s`, ... The probe writes such runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.catalog.codec import PEAK_PRECISIONS, hardware_to_json
from app.domain.errors import InvalidInput
from app.domain.hardware import FigureSource, HardwareProfile
from app.domain.run import ParsedRun
from app.services.catalogue import HardwareEntry, copy_hardware, get_hardware, save_hardware
from app.services.context import Context
from app.services.run_changes import RunPatch, update_run
from app.services.runs import get_view

_RATES: Final = {
    "achievable.memory_bandwidth_bytes_per_s": ("Memory bandwidth", "B/s"),
    "achievable.l2_bandwidth_bytes_per_s": ("L2 bandwidth", "B/s"),
    "achievable.scale_up_bus_bandwidth_bytes_per_s": ("Scale-up bus bandwidth", "B/s"),
    "launch_overhead_s": ("Launch, one kernel behind the other", "s"),
    "graph_node_overhead_s": ("Launch, node of a graph", "s"),
}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One figure that a run measured. `peak` and `now` are what the linked profile states, None where it does not."""

    figure: str
    label: str
    unit: str
    measured: float
    peak: float | None = None
    now: float | None = None


def measured_ceilings(run: ParsedRun, profile: HardwareProfile | None = None) -> tuple[Ceiling, ...]:
    """The ceilings among a run's evidence, in the order of a profile's page, beside what `profile` has."""
    found = []
    for figure, label, unit in _known():
        value = run.evidence.get(figure)
        if value is not None and value > 0:
            peak, now = (None, None) if profile is None else _stated(profile, figure)
            found.append(Ceiling(figure, label, unit, value, peak, now))
    return tuple(found)


def take_ceilings(
    ctx: Context,
    run_id: str,
    hardware: str | None = None,
    figures: Iterable[str] | None = None,
    name: str | None = None,
) -> tuple[HardwareEntry, bool]:
    """Write a run's ceilings into a profile and link the run to it; whether the profile is new.

    `hardware` is any name of a profile, by default the run's own. A team's own profile is changed; of a shipped one a
    copy is made, called `name` or after the device. `figures` names those that are taken, by default all. Raises
    InvalidInput at `run`, `hardware` or `figures`, NotFound for an unknown run, and what `save_hardware` raises.
    """
    view = get_view(ctx, run_id)
    measured = {ceiling.figure: ceiling for ceiling in measured_ceilings(view.run.parsed)}
    if not measured:
        raise InvalidInput(("run",), "it holds no measured ceilings: those of the probe do")
    wanted = list(measured) if figures is None else list(dict.fromkeys(figures))
    unknown = [figure for figure in wanted if figure not in measured]
    if unknown:
        raise InvalidInput(("figures",), f"the run did not measure {unknown[0][:80]!r}; it has {', '.join(measured)}")
    if not wanted:
        raise InvalidInput(("figures",), "choose at least one")
    target = hardware or (None if view.hardware is None else view.hardware.id)
    if target is None:
        raise InvalidInput(("hardware",), "the run is linked to no device: name the profile that was measured")
    try:
        profile = get_hardware(ctx, target).profile
    except LookupError as error:
        raise InvalidInput(("hardware",), str(error)) from error
    source = FigureSource(tuple(wanted), "measured", f"/runs/{view.run.id}", view.run.name[:200])
    data = _with(hardware_to_json(profile), {figure: measured[figure].measured for figure in wanted})
    if profile.shipped:
        data["aliases"] = []  # the shipped profile goes on being found by them
        entry = copy_hardware(ctx, profile.id, name=name or f"{profile.name}, measured", data=data, source=source)
    else:
        entry = save_hardware(ctx, {**data, **({"name": name} if name else {})}, id_=profile.id, source=source)
    update_run(ctx, view.run.id, RunPatch(hardware=entry.id))
    return entry, profile.shipped


def _known() -> Iterable[tuple[str, str, str]]:
    for precision in PEAK_PRECISIONS:
        yield f"achievable.flop_per_s.{precision}", f"{precision} products", "FLOP/s"
    for figure, (label, unit) in _RATES.items():
        yield figure, label, unit


def _stated(profile: HardwareProfile, figure: str) -> tuple[float | None, float | None]:
    """Peak and achieved value of a figure; a launch cost has no peak."""
    precision = figure.removeprefix("achievable.flop_per_s.")
    if precision != figure:
        return profile.peak.get(precision), profile.achievable_flop.get(precision)
    if figure == "achievable.memory_bandwidth_bytes_per_s":
        return profile.memory_bandwidth, profile.achievable_memory_bandwidth
    if figure == "achievable.l2_bandwidth_bytes_per_s":
        return None, profile.achievable_l2_bandwidth
    if figure == "achievable.scale_up_bus_bandwidth_bytes_per_s":
        return profile.scale_up.bandwidth if profile.scale_up else None, profile.achievable_scale_up_bandwidth
    return None, profile.launch_overhead if figure == "launch_overhead_s" else profile.graph_node_overhead


def _with(data: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """A profile's JSON with other figures, named by their dotted paths."""
    changed = dict(data)
    for figure, value in values.items():
        _put(changed, figure.split("."), value)
    return changed


def _put(data: dict[str, Any], path: Sequence[str], value: float) -> None:
    if len(path) == 1:
        data[path[0]] = value
        return
    data[path[0]] = dict(data.get(path[0]) or {})
    _put(data[path[0]], path[1:], value)
