"""The controls of the expert page as typed, and as a state where every one of them could be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.services.moe import FIELD_OF_LOC, FIELDS, MAX_HISTOGRAM_TEXT, MoeState
from app.web.forms import MAX_TEXT, FormErrors, sentence, whole_number

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
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in FIELDS:
        text = query.get(name, "").strip()
        most = MAX_HISTOGRAM_TEXT if name == "histogram" else MAX_TEXT
        if not text:
            continue
        if name in _WHOLE:
            label, least, greatest = _WHOLE[name]
            number = whole_number(text)
            if number is None:
                example = getattr(plain, name)
                errors[name] = f"{label}: {text[:40]!r} is not a whole number: write for example {example}."
            elif not least <= number <= greatest:
                errors[name] = f"{label} must be between {least:,} and {greatest:,}, not {number:,}."
            else:
                values[name] = number
        elif name in _DECIMAL:
            label, low, high = _DECIMAL[name]
            share = _decimal(text)
            if share is None or not low <= share <= high:
                errors[name] = f"{label}: {text[:40]!r} is not a number from {low:g} to {high:,g}."
            else:
                values[name] = share
        elif len(text) > most:
            errors[name] = f"At most {most:,} characters."
        else:
            values[name] = text
    typed = {name: query.get(name, _shown(getattr(plain, name))) for name in FIELDS}
    return MoeForm(typed, MoeState(**values), FormErrors(errors))


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _decimal(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def moe_errors(error: ValidationError | InvalidInput | MissingFigure | UnsupportedArchitecture) -> FormErrors:
    """What a refused estimate says, beside the control it belongs to."""
    if isinstance(error, ValidationError):
        by_field: dict[str, str] = {}
        general: list[str] = []
        for problem in error.errors():
            name = FIELD_OF_LOC.get(tuple(str(part) for part in problem["loc"] if not isinstance(part, int)))
            if name is None:
                general.append(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}")
            else:
                by_field[name] = sentence(problem["msg"])
        return FormErrors(by_field, tuple(general))
    if isinstance(error, InvalidInput):
        name = FIELD_OF_LOC.get(tuple(str(part) for part in error.loc))
        return FormErrors({name: sentence(error.reason)}) if name else FormErrors(general=(sentence(str(error)),))
    if isinstance(error, MissingFigure):
        return FormErrors({"activations" if "throughput" in error.figure else "hardware": sentence(str(error))})
    return FormErrors({"model": sentence(str(error))})
