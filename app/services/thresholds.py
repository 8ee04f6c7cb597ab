"""What would have to be true for another resource to hold a step back, with the figures on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.errors import InvalidInput, MissingFigure
from app.domain.lower_bound import ceilings
from app.domain.thresholds import TESTS, Threshold, changed, thresholds
from app.domain.workload import Workload
from app.services.context import Context
from app.services.contracts import BoundRequest
from app.services.estimate import BoundEstimate, bound_of, lever_requests
from app.services.references import resolve_hardware, resolve_model

COMPARED: dict[str, tuple[str, str, str]] = {
    "compute-bound": ("compute", "HBM", "s"),
    "kv-over-weights": ("cache", "weights", "B"),
    "network-bound": ("network", "the longer of compute and HBM", "s"),
}
"""What each threshold compares, and in which unit."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A threshold's statement at one value of its axis: the two figures that it compares, and the whole estimate."""

    value: int
    first: float
    second: float
    estimate: BoundEstimate

    @property
    def holds(self) -> bool:
        return self.first >= self.second


@dataclass(frozen=True, slots=True)
class Crossing:
    """A threshold and the steps next to it: where it is not true yet, where it becomes true and ends to be."""

    threshold: Threshold
    checks: tuple[Checked, ...]


def crossings(ctx: Context, request: BoundRequest) -> tuple[Crossing, ...]:
    """Where another resource takes over (F-1.2, F-4.12), by sweeps through the estimate's own table.

    Raises InvalidInput, MissingFigure or UnsupportedArchitecture as `estimate_bound` does.
    """
    model, _ = resolve_model(ctx, request.model)
    hardware, _ = resolve_hardware(ctx, request.hardware)
    workload = request.workload.to_domain()
    levers = lever_requests(request)

    def estimate(asked: Workload) -> BoundEstimate:
        return bound_of(hardware, model, asked, request.ceilings, levers=levers)

    def checked(item: Threshold, value: int) -> Checked | None:
        try:
            there = estimate(changed(workload, item.axis, value))
        except (InvalidInput, MissingFigure):
            return None  # a shared prefix longer than the context, a lever that makes no sense there
        first, second = TESTS[item.id](there.bound)
        return Checked(value, float(first), float(second), there)

    estimate(workload)  # what makes the asked step impossible is said as it is for a bound
    found = thresholds(
        model,
        workload,
        ceilings(hardware, request.ceilings),
        hardware.ranks_per_node,
        evaluate=(lambda asked: estimate(asked).bound) if levers else None,
    )
    answers = []
    for item in found:
        behind = None if item.until is None or item.axis == "tp" else item.until + 1
        around = (item.highest,) if item.value is None else (item.before, item.value, item.until, behind)
        values = dict.fromkeys(value for value in around if value is not None)
        checks = (checked(item, value) for value in values)
        answers.append(Crossing(item, tuple(check for check in checks if check is not None)))
    return tuple(answers)


def crossings_json(found: Sequence[Crossing]) -> dict[str, Any]:
    """The answer in the API's shape."""
    return {
        "thresholds": [
            {
                "id": item.threshold.id,
                "statement": item.threshold.statement,
                "axis": item.threshold.axis,
                "already": item.threshold.already,
                "from": item.threshold.value,
                "until": item.threshold.until,
                "again": item.threshold.again,
                "highest": item.threshold.highest,
                "compares": list(COMPARED[item.threshold.id][:2]),
                "unit": COMPARED[item.threshold.id][2],
                "checks": [
                    {
                        "value": check.value,
                        "holds": check.holds,
                        "first": check.first,
                        "second": check.second,
                        "bound_s": float(check.estimate.bound.overlapped),
                        "memory_bytes": check.estimate.memory.peak,
                        "fits": check.estimate.memory.fits,
                    }
                    for check in item.checks
                ],
            }
            for item in found
        ]
    }
