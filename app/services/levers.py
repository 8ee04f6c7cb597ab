"""Which techniques can be applied to a question, and why the others cannot."""

from __future__ import annotations

from typing import Any

from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import Lever, Scenario
from app.domain.levers.registry import FAMILIES, LEVERS
from app.domain.model import ModelSpec
from app.domain.workload import Workload
from app.services.estimate import generation_code

_FAMILY = {lever.id: family for family, levers in FAMILIES.items() for lever in levers}


def applicable(model: ModelSpec, workload: Workload, hardware: HardwareProfile | None = None) -> list[dict[str, Any]]:
    """Every lever in the order of the registry, with the reason why it makes no sense here, or None.

    Without `hardware` nothing is refused for the device's generation.
    """
    scenario = Scenario(model, workload, device=None if hardware is None else generation_code(hardware))
    return [{**lever_json(lever), "reason": _reason(lever, scenario)} for lever in LEVERS.values()]


def _reason(lever: Lever, scenario: Scenario) -> str | None:
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
