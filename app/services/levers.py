"""Which techniques can be applied to a question, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import Lever, LeverRequest, Scenario, lever_path
from app.domain.levers.registry import FAMILIES, LEVERS
from app.domain.model import ModelSpec
from app.domain.workload import Workload
from app.services.estimate import generation_code

_FAMILY = {lever.id: family for family, levers in FAMILIES.items() for lever in levers}


def refusals(
    model: ModelSpec,
    workload: Workload,
    hardware: HardwareProfile | None = None,
    chosen: Sequence[LeverRequest] = (),
) -> list[tuple[Lever, str | None]]:
    """Every lever with the reason why it cannot be added behind `chosen`, or None.

    Without `hardware` nothing is refused for the device's generation. Where the chosen ones do not go together, each
    lever is held against the question alone.
    """
    device = None if hardware is None else generation_code(hardware)
    try:
        scenario = lever_path(LEVERS, model, workload, chosen, device=device).scenarios[-1]
    except InvalidInput:
        scenario = Scenario(model, workload, device=device)
    taken = [request.id for request in chosen]
    return [(lever, _why_not(lever, scenario, taken)) for lever in LEVERS.values()]


def _why_not(lever: Lever, scenario: Scenario, taken: Sequence[str]) -> str | None:
    if lever.id in taken:
        return "it is chosen already"
    clash = next((LEVERS[other].title for other in taken if other in lever.excludes), None)
    return f"{clash} is chosen already" if clash else why_not(lever, scenario)


def why_not(lever: Lever, scenario: Scenario) -> str | None:
    """Why a lever makes no sense: its objection, or what is wrong with its default numbers here."""
    reason = lever.objection(scenario)
    if reason is None and lever.change is not None:
        try:
            lever.change(scenario, {param.name: param.default for param in lever.params})
        except InvalidInput as error:
            return error.reason
    return reason


def lever_json(lever: Lever) -> dict[str, Any]:
    """What a lever is, for pages and for the technique library."""
    return {
        "id": lever.id,
        "family": _FAMILY[lever.id],
        "title": lever.title,
        "book_as": lever.book_as,
        "memory_lever": lever.memory_lever,
        "model": lever.model,
        "ideal": lever.ideal,
        "params": [
            {
                "name": param.name,
                "default": param.default,
                "least": param.least,
                "most": param.most,
                "meaning": param.meaning,
                "whole": param.whole,
            }
            for param in lever.params
        ],
        "excludes": list(lever.excludes),
        "members": list(lever.members),
    }
