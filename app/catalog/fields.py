"""Reads JSON objects field by field: an InvalidInput names the field and says what would be right."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.domain.errors import InvalidInput

Loc: TypeAlias = tuple[str | int, ...]

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?")
MAX_TEXT = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What no text may hold: control characters, and those that are invisible or turn the direction of what follows."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be. `hint` says how the usual unit is written in SI, for values that miss by a factor."""

    low: float
    high: float
    unit: str
    hint: str


def as_loc(loc: str | Sequence[str | int]) -> Loc:
    """The path of a field as a tuple."""
    return (loc,) if isinstance(loc, str) else tuple(loc)


def json_type(value: object) -> str:
    """What JSON calls this value, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, Sequence) else type(value).__name__


def slug(name: str) -> str:
    """An identifier made of a name: lower case, every other character a dash."""
    made = re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-.")[:100].strip("-.")
    return made or "unnamed"


class Fields:
    """One JSON object with the path it came from. A field that is null counts as absent."""

    def __init__(
        self,
        data: object,
        loc: Loc,
        known: Collection[str],
        hints: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(data, Mapping):
            raise InvalidInput(loc, f"expected an object, got {json_type(data)}")
        self.data: Mapping[str, Any] = data
        self.loc = loc
        for key in data:
            if key not in known:
                raise InvalidInput((*loc, str(key)[:100]), unknown_field(str(key)[:100], known, hints or {}))

    def at(self, key: str | int) -> Loc:
        return (*self.loc, key)

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def fail(self, key: str, reason: str) -> InvalidInput:
        return InvalidInput(self.at(key), reason)

    def require(self, key: str, why: str) -> None:
        if not self.has(key):
            raise self.fail(key, f"is missing: {why}")

    def text(self, key: str, limit: int = MAX_TEXT) -> str | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.fail(key, f"expected text, got {json_type(value)}")
        if not value.strip():
            raise self.fail(key, "is empty: give text, or leave the field out")
        if len(value) > limit:
            raise self.fail(key, f"is {len(value)} characters long: at most {limit}")
        if _CONTROL.search(value):
            raise self.fail(key, "contains control characters")
        return value

    def line(self, key: str, limit: int) -> str | None:
        """Text of one line, as names are."""
        value = self.text(key, limit)
        if value is not None and ("\n" in value or "\t" in value):
            raise self.fail(key, "contains a line break or tab: write it on one line")
        return value

    def number(self, key: str, allowed: Range) -> float | None:
        value = self.data.get(key)
        if value is None:
            return None
        return checked_number(value, allowed, self.at(key))

    def integer(self, key: str, low: int, high: int) -> int | None:
        value = self.data.get(key)
        return None if value is None else checked_integer(value, low, high, self.at(key))

    def flag(self, key: str) -> bool | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise self.fail(key, f"expected true or false, got {json_type(value)}")
        return value

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        value = self.text(key)
        if value is not None and value not in choices:
            raise self.fail(key, f"unknown value {value[:60]!r}: use one of {', '.join(choices)}")
        return value

    def object(self, key: str) -> Mapping[str, Any] | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(key, f"expected an object, got {json_type(value)}")
        return value

    def items(self, key: str, limit: int = 2000) -> Sequence[Any]:
        value = self.data.get(key)
        if value is None:
            return ()
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise self.fail(key, f"expected a list, got {json_type(value)}")
        if len(value) > limit:
            raise self.fail(key, f"has {len(value)} entries: at most {limit}")
        return value

    def texts(self, key: str, limit: int = 200) -> tuple[str, ...]:
        found = []
        for i, value in enumerate(self.items(key, limit)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidInput((*self.loc, key, i), f"expected text, got {json_type(value)}")
            if len(value) > MAX_TEXT:
                raise InvalidInput((*self.loc, key, i), f"is {len(value)} characters long: at most {MAX_TEXT}")
            if _CONTROL.search(value):
                raise InvalidInput((*self.loc, key, i), "contains control characters")
            found.append(value)
        return tuple(found)

    def identifier(self, key: str, default: str) -> str:
        value = self.text(key, 100)
        if value is None:
            return default
        if not SLUG.fullmatch(value):
            raise self.fail(key, "use lower-case letters, digits, dots, dashes and underscores, 100 at most")
        return value

    def link(self, key: str) -> str | None:
        value = self.text(key, 2000)
        if value is not None and not re.match(r"https?://[^\s<>\"']+$", value):
            raise self.fail(key, "expected a web address that starts with http:// or https://")
        return value


def checked_number(value: object, allowed: Range, loc: Loc) -> float:
    """A finite number inside a range, as a float. Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(loc, f"expected a number of {allowed.unit}, got {json_type(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput(loc, f"expected a finite number of {allowed.unit}")
    if number < 0:
        raise InvalidInput(loc, f"{number:g} is negative: expected {allowed.unit}")
    if number < allowed.low or number > allowed.high:
        side = "small" if number < allowed.low else "large"
        raise InvalidInput(
            loc,
            f"{number:g} is too {side} to be {allowed.unit} "
            f"(expected {allowed.low:g} to {allowed.high:g}): {allowed.hint}",
        )
    return number


def checked_integer(value: object, low: int, high: int, loc: Loc) -> int:
    """A whole number inside a range; 32.0 counts, 32.5 does not. Raises InvalidInput."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = f"{value:g}" if isinstance(value, float) else json_type(value)
        raise InvalidInput(loc, f"expected a whole number, got {shown}")
    if not low <= value <= high:
        shown = str(value) if -(10**18) < value < 10**18 else "a number far outside"
        raise InvalidInput(loc, f"{shown} is out of range: expected {low} to {high}")
    return value


def unknown_field(key: str, known: Collection[str], hints: Mapping[str, str]) -> str:
    """The message for a field that is not in the shape: a known trap, else the nearest name, else all names."""
    if key in hints:
        return f"unknown field {key!r}: {hints[key]}"
    lowered = key.casefold()
    if "bidirectional" in lowered or "bidir" in lowered:
        return (
            f"unknown field {key!r}: link figures are one way per device; "
            "halve a vendor's bidirectional total and give bandwidth_bytes_per_s"
        )
    if "sparse" in lowered or "sparsity" in lowered:
        return f"unknown field {key!r}: peaks are dense; halve a figure that is printed with 2:4 sparsity"
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    if near:
        return f"unknown field {key!r}: did you mean {near[0]!r}?"
    return f"unknown field {key!r}: known fields are {', '.join(known)}"
