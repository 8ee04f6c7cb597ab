"""Form text to inputs of the services. What a person typed is kept, so that an error never loses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.services.what_if import FIELD_OF_LOC, FIELDS, WhatIf

MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class FormErrors:
    """Messages by field name; `general` belongs to no single field."""

    by_field: Mapping[str, str] = field(default_factory=dict)
    general: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.by_field or self.general)


@dataclass(frozen=True, slots=True)
class LabForm:
    """The lab's controls as typed, and as a state where every one of them could be read."""

    typed: Mapping[str, str]
    state: WhatIf
    errors: FormErrors


_WHOLE: Mapping[str, tuple[str, int, int]] = {
    "batch": ("Batch", 1, 10_000_000),
    "seq": ("Sequence length", 1, 100_000_000),
    "context": ("Context", 0, 100_000_000),
    "drafts": ("Draft tokens", 0, 1024),
    "tp": ("Tensor parallel", 1, 4096),
    "dp": ("Data parallel", 1, 1_000_000),
    "micro_batches": ("Micro-batches", 1, 1_000_000),
    "zero": ("ZeRO stage", 0, 3),
}
_MULTIPLES: Mapping[str, int] = {"k": 1024, "m": 1024**2}
"""Token counts may be typed as people say them: 8k is 8,192 (binary, as context lengths are)."""


def lab_form(query: Mapping[str, str]) -> LabForm:
    """Read the lab's controls from an address. An unreadable one keeps its default in the state and has a message."""
    plain = WhatIf()
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in FIELDS:
        text = query.get(name, "").strip()
        if not text:
            continue
        if name in _WHOLE:
            label, least, most = _WHOLE[name]
            number = _whole(text)
            if number is None:
                errors[name] = (
                    f"{label}: {text[:40]!r} is not a whole number: write for example {getattr(plain, name)}."
                )
            elif not least <= number <= most:
                errors[name] = f"{label} must be between {least:,} and {most:,}, not {number:,}."
            else:
                values[name] = number
        elif len(text) > MAX_TEXT:
            errors[name] = f"At most {MAX_TEXT} characters."
        else:
            values[name] = text
    typed = {name: query.get(name, str(getattr(plain, name))) for name in FIELDS}
    return LabForm(typed=typed, state=WhatIf(**values), errors=FormErrors(errors))


def _whole(text: str) -> int | None:
    """A whole number as typed: 4096, 4,096, 4_096, 4 096 or 4k. None where it is none."""
    plain = text.lower().replace(",", "").replace("_", "").replace(" ", "").replace("\u202f", "")
    factor = _MULTIPLES.get(plain[-1:], 1)
    digits = plain[:-1] if factor != 1 else plain
    if not digits.isascii() or not digits.removeprefix("-").isdigit() or len(digits) > 15:
        return None
    return int(digits) * factor


def lab_errors(error: ValidationError | InvalidInput | MissingFigure | UnsupportedArchitecture) -> FormErrors:
    """What a refused estimate says, beside the control it belongs to."""
    if isinstance(error, ValidationError):
        by_field: dict[str, str] = {}
        general: list[str] = []
        for problem in error.errors():
            name = FIELD_OF_LOC.get(tuple(str(part) for part in problem["loc"]))
            if name is None:
                general.append(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}")
            else:
                by_field[name] = problem["msg"]
        return FormErrors(by_field, tuple(general))
    if isinstance(error, InvalidInput):
        name = FIELD_OF_LOC.get(tuple(str(part) for part in error.loc))
        return FormErrors({name: _sentence(error.reason)}) if name else FormErrors(general=(_sentence(str(error)),))
    if isinstance(error, MissingFigure):
        name = "activations" if "throughput" in error.figure else "hardware"
        return FormErrors({name: _sentence(str(error))})
    return FormErrors({"model": _sentence(str(error))})


def _sentence(text: str) -> str:
    first = text.split(" ", 1)[0]
    start = text if "_" in first else text[:1].upper() + text[1:]  # a field's own name keeps its spelling
    return start + ("" if text.endswith((".", "?")) else ".")
