"""Recomputation and offload module by module: what each choice saves on the fullest device, and what a step pays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from app.domain.activations import OFFLOAD_LABELS, RECOMPUTE_LABELS, modules_of
from app.domain.errors import MissingFigure
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import Scenario
from app.domain.lower_bound import CeilingChoice, Ceilings, ceilings
from app.domain.memory import memory_use
from app.domain.memory_reserve import Reserve
from app.domain.workload import Workload
from app.services.estimate import expected_step_time
from app.services.memory_scenarios import with_reserve

Move: TypeAlias = Literal["recompute", "offload"]


@dataclass(frozen=True, slots=True)
class ModuleChoice:
    """One module recomputed or moved to the host, against the same step without that choice.

    `saves` counts the peak with its reserve. Costs are those of one device and step: `flop` executed, not useful.
    `host_time` is the transfer's time on the host link alone; it and `expected` are None where the profile states none.
    """

    module: str
    move: Move
    label: str
    chosen: bool
    saves: float
    flop: float
    hbm_bytes: float
    net_bytes: float
    host_bytes: float
    host_time: float | None
    expected: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Figures:
    peak: float
    flop: float
    hbm_bytes: float
    net_bytes: float
    host_bytes: float
    expected: float | None


def module_choices(
    scenario: Scenario, hardware: HardwareProfile, reserve: Reserve, choice: CeilingChoice
) -> tuple[ModuleChoice, ...]:
    """Every module of the model that a step could recompute or move, in the order of a layer.

    A module that is chosen already is compared with the step without it.
    """
    roofs = ceilings(hardware, choice)
    rate = roofs.links.get("host")

    def figures(workload: Workload) -> _Figures:
        return _figures(replace(scenario, workload=workload), hardware, reserve, roofs, choice)

    now = figures(scenario.workload)
    rows = []
    for module, move, label, chosen, other in _toggled(scenario):
        then = figures(other)
        less, more = (now, then) if chosen else (then, now)
        host = less.host_bytes - more.host_bytes
        rows.append(
            ModuleChoice(
                module=module,
                move=move,
                label=label,
                chosen=chosen,
                saves=more.peak - less.peak,
                flop=less.flop - more.flop,
                hbm_bytes=less.hbm_bytes - more.hbm_bytes,
                net_bytes=less.net_bytes - more.net_bytes,
                host_bytes=host,
                host_time=None if rate is None else host / rate,
                expected=None if less.expected is None or more.expected is None else less.expected - more.expected,
                note=_note(module, move, hardware, rate),
            )
        )
    return tuple(rows)


def _figures(
    scenario: Scenario, hardware: HardwareProfile, reserve: Reserve, roofs: Ceilings, choice: CeilingChoice
) -> _Figures:
    domain = hardware.ranks_per_node
    edit = with_reserve(scenario, domain, reserve)
    peak = memory_use(scenario.model, scenario.workload, None, ranks_per_node=domain, edit=edit).peak
    table = scenario.table(domain)
    count = table["count"]
    wire = table.net_in_switch if roofs.in_switch_reduction else table.net
    try:
        expected: float | None = expected_step_time(hardware, scenario, choice)
    except MissingFigure:
        expected = None
    return _Figures(
        peak=peak,
        flop=float(table.total("executed")),
        hbm_bytes=float(np.sum(table.hbm_bytes(roofs.cache) * count)),
        net_bytes=float(np.sum((wire["scale_up"] + wire["scale_out"]) * count)),
        host_bytes=float(np.sum(wire["host"] * count)),
        expected=expected,
    )


def _toggled(scenario: Scenario) -> Iterator[tuple[str, Move, str, bool, Workload]]:
    """Each choice with whether it is made, and the workload that has it the other way."""
    w = scenario.workload
    again, held = modules_of(scenario.model)
    if w.phase == "train":
        whole = "layer" in w.recomputed
        for name in again:
            chosen = name in w.recomputed
            if whole and not chosen:
                continue  # it is part of what runs again already
            yield name, "recompute", RECOMPUTE_LABELS[name], chosen, _recompute(w, name, not chosen)
        to_host = w.offload.activations
        for module in held:
            if module != "layer" and "layer" in to_host:
                continue
            chosen = module in to_host
            kept = tuple(m for m in to_host if m != module) if chosen else (*to_host, module)
            offload = replace(w.offload, activations=kept)  # type: ignore[arg-type]
            yield module, "offload", f"{OFFLOAD_LABELS[module]} activations", chosen, replace(w, offload=offload)
        if w.optimizer != "none":
            offload = replace(w.offload, optimizer=not w.offload.optimizer)
            yield "optimizer", "offload", "Optimizer state", w.offload.optimizer, replace(w, offload=offload)
    offload = replace(w.offload, parameters=not w.offload.parameters)
    yield "parameters", "offload", "Parameters", w.offload.parameters, replace(w, offload=offload)


def _recompute(w: Workload, name: str, wanted: bool) -> Workload:
    """The workload with one module recomputed or not, written module by module."""
    named = tuple(m for m in RECOMPUTE_LABELS if m in w.recomputed and m != name)
    return replace(w, recompute="none", recompute_modules=(*named, name) if wanted else named)  # type: ignore[arg-type]


def _note(module: str, move: Move, hardware: HardwareProfile, rate: float | None) -> str:
    if move == "recompute":
        return "the IO-aware kernel keeps no scores: nothing to save" if module == "attention_core" else ""
    if rate is None:
        return f"{hardware.name} states no host link: no time"
    return "updated on the host, whose own time is not counted" if module == "optimizer" else ""


def modules_json(rows: tuple[ModuleChoice, ...]) -> list[dict[str, Any]]:
    return [
        {
            "module": row.module,
            "move": row.move,
            "label": row.label,
            "chosen": row.chosen,
            "saves_bytes": row.saves,
            "costs": {
                "executed_flop": row.flop,
                "hbm_bytes": row.hbm_bytes,
                "net_bytes": row.net_bytes,
                "host_bytes": row.host_bytes,
                "host_time_s": row.host_time,
                "expected_time_s": row.expected,
            },
            "note": row.note,
        }
        for row in rows
    ]
