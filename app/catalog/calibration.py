"""The shipped calibration: fitted efficiencies as `tools/calibrate.py` wrote them, and how they were validated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from app.domain.calibration import Calibration, Fit

FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class Validation:
    """How a source is predicted by a fit that has not seen it: absolute errors as shares."""

    source: str
    kind: str
    rows: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    calibration: Calibration
    validation: tuple[Validation, ...]
    sources: dict[str, str]


@cache
def load_calibrated() -> Calibrated:
    """The calibration with its validation. The file is the project's own: a broken one raises."""
    data = json.loads((files("app.catalog") / "data" / FILE).read_text(encoding="utf-8"))
    return Calibrated(
        Calibration(
            kernels={item["key"]: _fit(item) for item in data["kernels"]},
            steps={item["key"]: _fit(item) for item in data["steps"]},
            date=data["date"],
            note=data["note"],
        ),
        tuple(Validation(**item) for item in data["validation"]),
        data["sources"],
    )


def load_calibration() -> Calibration:
    """The shipped calibration."""
    return load_calibrated().calibration


def _fit(item: dict[str, Any]) -> Fit:
    return Fit(
        key=item["key"],
        parameters=item["parameters"],
        rows=item["rows"],
        sources=tuple(item["sources"]),
        low=item["low"],
        high=item["high"],
    )
