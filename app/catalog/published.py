"""Published figures that a page sets beside its own answer: what was measured, under which conditions, and where.

A figure carries the body of the estimate that asks the same question. It has either the `seconds` of one `stage` of one
layer, or `tokens_per_second_per_device` of a whole step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from app.domain.overlap import UnitCurve


@dataclass(frozen=True, slots=True)
class PublishedSource:
    title: str
    url: str
    read: str


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    name: str
    conditions: str
    source: PublishedSource
    request: Mapping[str, Any]
    stage: str | None = None
    seconds: float | None = None
    tokens_per_second_per_device: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedNote:
    """A published statement that no estimate of ours asks."""

    text: str
    source: PublishedSource


@cache
def published_experts() -> tuple[tuple[PublishedFigure, ...], tuple[PublishedNote, ...]]:
    """Figures about mixtures of experts."""
    text = files("app.catalog").joinpath("data/published/experts.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return (
        tuple(PublishedFigure(**{**row, "source": PublishedSource(**row["source"])}) for row in data["figures"]),
        tuple(PublishedNote(row["text"], PublishedSource(**row["source"])) for row in data["notes"]),
    )


@dataclass(frozen=True, slots=True)
class PublishedUnits:
    """What compute units move in a collective, and on what it was measured."""

    curve: UnitCurve
    conditions: str
    title: str
    read: str


@cache
def collective_units() -> PublishedUnits:
    """Rate of a collective by the compute units that its kernels occupy."""
    data = json.loads(files("app.catalog").joinpath("data/published/collective-units.json").read_text(encoding="utf-8"))
    curve = UnitCurve(tuple(data["units"]), tuple(data["share_of_rate"]))
    return PublishedUnits(curve, data["conditions"], data["source"], data["read"])
