"""Why a lever makes no sense for a scenario: small tests that read as sentences and combine."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.levers.base import Scenario
from app.domain.model import Attention, MoeMlp
from app.domain.precision import PRECISIONS

Objection = Callable[[Scenario], str | None]


def never(_: Scenario) -> str | None:
    return None


def first_of(*objections: Objection) -> Objection:
    """The first objection that there is."""

    def check(scenario: Scenario) -> str | None:
        return next((reason for objection in objections if (reason := objection(scenario)) is not None), None)

    return check


def only_in(*phases: str) -> Objection:
    def check(scenario: Scenario) -> str | None:
        phase = scenario.workload.phase
        return None if phase in phases else f"it acts in {' and '.join(phases)}, not in {phase}"

    return check


def needs_experts(scenario: Scenario) -> str | None:
    return None if scenario.model.is_moe else f"{scenario.model.name} has no experts"


def needs_attention(scenario: Scenario) -> str | None:
    has = any(isinstance(group.mixer, Attention) for group in scenario.model.layers)
    return None if has else f"{scenario.model.name} has no multi-head attention layers"


def needs_gated_mlp(scenario: Scenario) -> str | None:
    gated = any(group.mlp is not None and getattr(group.mlp, "gated", False) for group in scenario.model.layers)
    return None if gated else f"{scenario.model.name} has no gated MLP"


def needs_more_than_one(degree: str, what: str) -> Objection:
    """For levers on a parallel degree (`tp`, `dp`, `pp`, `ep`, `cp`)."""

    def check(scenario: Scenario) -> str | None:
        return None if getattr(scenario.workload.parallel, degree) > 1 else f"it needs {what} ({degree} above 1)"

    return check


def wider_than(what: str, bits: float) -> Objection:
    """The object is stored in more than `bits` bits now."""

    def check(scenario: Scenario) -> str | None:
        dtypes = scenario.workload.dtypes
        now = dtypes.bytes_of(what) * 8
        return None if now > bits else f"{what} are stored in {now:g} bits already ({getattr(dtypes, what)})"

    return check


def activations_at_least(bits: int) -> Objection:
    def check(scenario: Scenario) -> str | None:
        name = scenario.workload.dtypes.activations
        return None if PRECISIONS[name].bits >= bits else f"activations are in {name} already"

    return check


def experts_of(scenario: Scenario) -> list[MoeMlp]:
    return [group.mlp for group in scenario.model.layers if isinstance(group.mlp, MoeMlp)]
