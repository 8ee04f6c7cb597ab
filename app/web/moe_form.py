"""The controls of the expert page as typed, and as a state where every one of them could be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.services.moe import FIELD_OF_LOC, FIELDS, MAX_HISTOGRAM_TEXT, MoeState
from app.web.forms import FormErrors, placed_errors, read_controls

_WHOLE: Mapping[str, tuple[str, int, int]] = {
    "batch": ("Batch", 1, 10_000_000),
    "seq": ("Sequence length", 1, 100_000_000),
    "context": ("Context", 0, 100_000_000),
    "tp": ("Tensor parallel", 1, 4096),
    "pp": ("Pipeline parallel", 1, 4096),
    "dp": ("Data parallel", 1, 1_000_000),
    "ep": ("Expert parallel", 1, 4096),
    "etp": ("Expert tensor parallel", 1, 4096),
    "micro_batches": ("Micro-batches", 1, 1_000_000),
    "zero": ("ZeRO stage", 0, 3),
    "node_limit": ("Node limit", 0, 100_000),
    "replicas": ("Replicas", 0, 100_000),
    "units": ("Units for the exchange", 0, 4096),
}
_DECIMAL: Mapping[str, tuple[str, float, float]] = {
    "alpha": ("Zipf exponent", 0.0, 100.0),
    "capacity": ("Capacity factor", 0.0, 1000.0),
}


@dataclass(frozen=True, slots=True)
class MoeForm:
    typed: Mapping[str, str]
    state: MoeState
    errors: FormErrors


def moe_form(query: Mapping[str, str]) -> MoeForm:
    """Read the controls from an address. An unreadable one keeps its default in the state and has a message."""
    plain = MoeState()
    values, errors = read_controls(query, plain, _WHOLE, _DECIMAL, {"histogram": MAX_HISTOGRAM_TEXT})
    typed = {name: query.get(name, _shown(getattr(plain, name))) for name in FIELDS}
    return MoeForm(typed, MoeState(**values), FormErrors(errors))


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def moe_errors(error: ValidationError | InvalidInput | MissingFigure | UnsupportedArchitecture) -> FormErrors:
    """What a refused estimate says, beside the control it belongs to."""
    return placed_errors(error, _field_of)


def _field_of(loc: Sequence[object]) -> str | None:
    return FIELD_OF_LOC.get(tuple(str(part) for part in loc if not isinstance(part, int)))
