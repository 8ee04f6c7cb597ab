"""Form text to inputs of the services. What a person typed is kept, so that an error never loses it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict

from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.levers.registry import LEVERS
from app.services.what_if import FIELD_OF_LOC, FIELDS, WhatIf
from app.web.errors import must

MAX_TEXT = 200
_LONG: Mapping[str, int] = {"levers": 4000, "beside": 4000}
"""Longest text of fields that hold more than a name."""


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
    "visual_tokens": ("Visual tokens", 0, 100_000_000),
    "source_len": ("Source length", 0, 100_000_000),
    "width": ("Width", 0, 1_048_576),
    "height": ("Height", 0, 1_048_576),
    "frames": ("Frames", 0, 1_048_576),
    "prediction_modules": ("Prediction modules", 0, 64),
    "tp": ("Tensor parallel", 1, 4096),
    "pp": ("Pipeline parallel", 1, 4096),
    "dp": ("Data parallel", 1, 1_000_000),
    "cp": ("Context parallel", 1, 4096),
    "ep": ("Expert parallel", 1, 4096),
    "etp": ("Expert tensor parallel", 1, 4096),
    "sp": ("Sequence parallel", 0, 1),
    "micro_batches": ("Micro-batches", 1, 1_000_000),
    "virtual_stages": ("Chunks of a stage", 1, 4096),
    "zero": ("ZeRO stage", 0, 3),
}
_MULTIPLES: Mapping[str, int] = {"k": 1024, "m": 1024**2}
"""Token counts may be typed as people say them: 8k is 8,192 (binary, as context lengths are)."""


def lab_form(query: Mapping[str, str]) -> LabForm:
    """Read the lab's controls from an address. An unreadable one keeps its default in the state and has a message."""
    plain, query = WhatIf(), _joined(query)
    values, errors = read_controls(query, plain, _WHOLE, {"alpha": ("Zipf exponent", 0, 100)}, _LONG)
    typed = {name: query.get(name, str(getattr(plain, name))) for name in FIELDS}
    state = WhatIf(**values)
    try:
        state = _with_lever_fields(state, query, errors)
    except InvalidInput as error:
        errors["levers"] = sentence(error.reason)
    return LabForm(typed=typed, state=state, errors=FormErrors(errors))


_SEVERAL: Final = ("recompute_modules", "offload")
"""Fields whose key may stand in an address several times: boxes that are ticked."""


def _joined(query: Mapping[str, str]) -> Mapping[str, str]:
    """The address with the values of boxes parted by commas, as a state writes them."""
    if not isinstance(query, ImmutableMultiDict):
        return query
    return {**query, **{name: ",".join(query.getlist(name)) for name in _SEVERAL if name in query}}


def _with_lever_fields(state: WhatIf, query: Mapping[str, str], errors: dict[str, str]) -> WhatIf:
    """The levers of the address, with the numbers typed beside them and the one that is being added."""
    chosen = dict(state.chosen_levers())
    added = query.get("add_lever", "").strip()[:MAX_TEXT]
    if added:
        chosen.setdefault(added, {})
    for id_, params in chosen.items():
        for param in LEVERS[id_].params if id_ in LEVERS else ():
            text = query.get(f"lever.{id_}.{param.name}", "").strip()
            number = _decimal(text)
            if text and number is None:
                errors["levers"] = f"{LEVERS[id_].title}: {text[:40]!r} is not a number."
            elif number is not None and number != param.default:
                params[param.name] = number
            elif number is not None:
                params.pop(param.name, None)
    return state.with_levers(list(chosen.items()))


def _decimal(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def whole_between(text: str, control: tuple[str, int, int], example: object) -> int:
    """The whole number of a control, which is its label with the least and the most that it takes.

    Raises ValueError with what would be right.
    """
    label, least, most = control
    number = whole_number(text)
    if number is None:
        raise ValueError(f"{label}: {text[:40]!r} is not a whole number: write for example {example}.")
    if not least <= number <= most:
        raise ValueError(f"{label} must be between {least:,} and {most:,}, not {number:,}.")
    return number


def decimal_between(text: str, control: tuple[str, float, float]) -> float:
    """The number of a control, as `whole_between` takes it. Raises ValueError with what would be right."""
    label, least, most = control
    number = _decimal(text)
    if number is None or not least <= number <= most:
        raise ValueError(f"{label}: {text[:40]!r} is not a number from {least:g} to {most:,g}.")
    return number


def read_controls(
    query: Mapping[str, str],
    plain: Any,
    whole: Mapping[str, tuple[str, int, int]],
    decimal: Mapping[str, tuple[str, float, float]],
    longest: Mapping[str, int],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of a page's state that an address holds, and messages on those of them that cannot be read.

    `plain` is the state of an empty address; the other maps say which fields are numbers, and which may be long.
    """
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in (f.name for f in fields(plain)):
        text, most = query.get(name, "").strip(), longest.get(name, MAX_TEXT)
        if not text:
            continue
        try:
            if name in whole:
                values[name] = whole_between(text, whole[name], getattr(plain, name))
            elif name in decimal:
                values[name] = decimal_between(text, decimal[name])
            elif len(text) > most:
                errors[name] = f"At most {most:,} characters."
            else:
                values[name] = text
        except ValueError as error:
            errors[name] = str(error)
    return values, errors


def whole_number(text: str) -> int | None:
    """A whole number as typed: 4096, 4,096, 4_096, 4 096 or 4k. None where it is none."""
    plain = text.lower().replace(",", "").replace("_", "").replace(" ", "").replace("\u202f", "")
    factor = _MULTIPLES.get(plain[-1:], 1)
    digits = plain[:-1] if factor != 1 else plain
    if not digits.isascii() or not digits.removeprefix("-").isdigit() or len(digits) > 30:
        return None
    return int(digits) * factor


def lab_errors(error: ValidationError | InvalidInput | MissingFigure | UnsupportedArchitecture) -> FormErrors:
    """What a refused estimate says, beside the lab's control it belongs to."""
    return placed_errors(error, _field_of)


def placed_errors(
    error: ValidationError | InvalidInput | MissingFigure | UnsupportedArchitecture,
    field_of: Callable[[Sequence[object]], str | None],
) -> FormErrors:
    """What a refused estimate says, beside the control that `field_of` knows for the place in the body."""
    if isinstance(error, ValidationError):
        by_field: dict[str, str] = {}
        general: list[str] = []
        for problem in error.errors():
            name = field_of(problem["loc"])
            if name is None:
                general.append(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}")
            else:
                by_field[name] = sentence(problem["msg"])
        return FormErrors(by_field, tuple(general))
    if isinstance(error, InvalidInput):
        name = field_of(error.loc)
        return FormErrors({name: sentence(error.reason)}) if name else FormErrors(general=(sentence(str(error)),))
    if isinstance(error, MissingFigure):
        name = "activations" if "throughput" in error.figure else "hardware"
        return FormErrors({name: sentence(str(error))})
    return FormErrors({"model": sentence(str(error))})


def _field_of(loc: Sequence[object]) -> str | None:
    """The control that an error's place belongs to: its own, or that of the object it lies in."""
    parts = tuple(str(part) for part in loc)
    while (
        len(parts) > 1
        and parts not in FIELD_OF_LOC
        and (parts[0] == "levers" or parts[:2] in (("workload", "recompute_modules"), ("workload", "offload")))
    ):
        parts = parts[:-1]
    return FIELD_OF_LOC.get(parts)


def sentence(text: str) -> str:
    """A reason as a sentence beside its field; what a validator calls its input is the field itself."""
    text = must(text)
    first = text.split(" ", 1)[0]
    start = text if "_" in first else text[:1].upper() + text[1:]  # a field's own name keeps its spelling
    return start + ("" if text.endswith((".", "?")) else ".")


# ---- quantities as people type them ---------------------------------------------------------------------------------

_DECIMAL_PREFIXES: Final = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_PREFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


def _scaled(unit: str, *, binary: bool = False, factor: Decimal = Decimal(1)) -> dict[str, Decimal]:
    known = {f"{prefix}{unit}": factor * Decimal(10) ** power for prefix, power in _DECIMAL_PREFIXES.items()}
    if binary:
        known |= {f"{prefix}{unit}": factor * Decimal(2) ** power for prefix, power in _BINARY_PREFIXES.items()}
    return known


_EIGHTH: Final = Decimal(1) / 8
UNITS: Final[Mapping[str, Mapping[str, Decimal]]] = {
    "B": _scaled("B", binary=True),
    "B/s": {
        **_scaled("B/s", binary=True),
        **_scaled("Bps", binary=True),
        **_scaled("bit/s", factor=_EIGHTH),
        **_scaled("bps", factor=_EIGHTH),
    },
    "FLOP/s": {**_scaled("FLOP/s"), **_scaled("FLOPS"), **_scaled("OP/s"), **_scaled("OPS")},
    "exp/s": {**_scaled("exp/s"), **_scaled("/s")},
    "s": {
        "s": Decimal(1),
        "ms": Decimal("1e-3"),
        "us": Decimal("1e-6"),
        "µs": Decimal("1e-6"),
        "μs": Decimal("1e-6"),
        "ns": Decimal("1e-9"),
    },
    "Hz": _scaled("Hz"),
    "W": {**_scaled("W"), "mW": Decimal("1e-3")},
}
"""Units that may be typed, by the SI unit they are read into, with their factors."""

_GROUPING: Final = ",_ \u202f\u00a0"
"""What may part thousands."""

_QUANTITY: Final = re.compile(
    rf"(?P<number>[+-]?(?:\d{{1,3}}(?:[{_GROUPING}]\d{{3}})+|\d{{1,40}})?(?:\.\d{{0,40}})?(?:[eE][+-]?\d{{1,3}})?)"
    r"\s*(?P<unit>[^\d\s.,].*)?"
)


def parse_quantity(text: str, dimension: str, default_unit: str) -> float:
    """A quantity as typed, in the SI unit `dimension`: "3.35 TB/s", "80 GiB", "989.4"; a bare number is in the default.

    Decimal arithmetic, so that what is shown in a field and sent back unchanged is the same float again. Raises
    ValueError with a message for the person.
    """
    example = f"write for example 3.5 {default_unit}"
    found = _QUANTITY.fullmatch(text.strip()[:200])
    number = found["number"] if found else ""
    if found is None or not any(character.isdigit() for character in number.lower().split("e")[0]):
        hint = "write a decimal point" if re.fullmatch(r"\d+,\d+.*", text.strip()[:100]) else example
        raise ValueError(f"{text.strip()[:40]!r} is not a number with a unit: {hint}.")
    factor = _factor((found["unit"] or default_unit).strip(), dimension, default_unit)
    return float(Decimal(re.sub(f"[{_GROUPING}]", "", number)) * factor)


def _factor(unit: str, dimension: str, default_unit: str) -> Decimal:
    known = UNITS[dimension]
    if unit in known:
        return known[unit]
    plain = re.sub(r"\s+", "", unit)
    if dimension == "B/s" and re.fullmatch(r"[kKmMgGtTpP]?(b/s|bps|b/sec)", plain):
        raise ValueError(f"{unit[:20]!r} may mean bits or bytes: write GB/s or Gbit/s.")
    if dimension == "B" and re.fullmatch(r"[KMGT]i?b|b", plain):
        raise ValueError(f"{unit[:20]!r} means bits: write {unit[:-1][:20]}B.")
    # Elsewhere case only matters between milli and mega.
    alike = {name: factor for name, factor in known.items() if name.casefold() == plain.casefold()}
    if dimension == "FLOP/s":
        spelled = re.sub(
            r"(?i)^([kmgtpe]?)(flop|op)s?(/s|ps|/sec)?$", lambda m: f"{m[1].upper()}{m[2].upper()}/s", plain
        )
        alike = alike or {name: factor for name, factor in known.items() if name == spelled}
    if len(set(alike.values())) == 1:
        return next(iter(alike.values()))
    near = ", ".join(dict.fromkeys([default_unit, *_SUGGESTED[dimension]]))
    raise ValueError(f"{unit[:20]!r} is not a unit of this figure: use one of {near}.")


_SUGGESTED: Final[Mapping[str, tuple[str, ...]]] = {
    "B": ("KiB", "MiB", "GiB", "MB", "GB"),
    "B/s": ("GB/s", "TB/s", "Gbit/s"),
    "FLOP/s": ("GFLOP/s", "TFLOP/s", "PFLOP/s", "TOP/s"),
    "exp/s": ("Gexp/s", "Texp/s"),
    "s": ("ns", "us", "ms"),
    "Hz": ("MHz", "GHz"),
    "W": ("W", "kW"),
}


def quantity_text(value: float, dimension: str, unit: str) -> str:
    """A value as a field shows it: the bare number in the field's own unit, so that reading it gives the value again.

    Where that unit would take more than six decimals, the number stands in the next one that it is short in.
    """
    for other in dict.fromkeys([unit, *_SUGGESTED[dimension], dimension]):
        number = (Decimal(repr(value)) / UNITS[dimension][other]).normalize()
        exponent = number.as_tuple().exponent
        if isinstance(exponent, int) and exponent >= -6 and abs(number) < 10**12:
            return f"{number:f}" if other == unit else f"{number:f} {other}"
    return f"{value!r} {dimension}"


# ---- bodies of forms ------------------------------------------------------------------------------------------------


async def form_texts(request: Request) -> Mapping[str, str]:
    """The text fields of a posted form, the last of each name; files are left out."""
    async with request.form(max_files=1, max_fields=300) as form:
        return {name: value for name, value in form.multi_items() if isinstance(value, str)}


FormTexts = Annotated[Mapping[str, str], Depends(form_texts)]
"""`def route(form: FormTexts): ...`, so that a route that posts stays outside the event loop."""
