"""Units and numbers as people and tools write them, in SI units and as floats.

Several exports write the unit beside the number ("ms", "requests/sec") and group digits as the writer's country does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.run import METRIC_UNITS
from app.importers.fields import Fields, as_float, is_number
from app.importers.reading import clean

_TIME: Mapping[str, float] = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "msec": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "usec": 1e-6,
    "microseconds": 1e-6,
    "ns": 1e-9,
    "nanoseconds": 1e-9,
    "min": 60.0,
    "minutes": 60.0,
}
_BYTES: Mapping[str, float] = {
    "b": 1.0,
    "bytes": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
}
_WATT: Mapping[str, float] = {"w": 1.0, "mw": 1e-3, "kw": 1e3}
_JOULE: Mapping[str, float] = {"j": 1.0, "mj": 1e6, "kj": 1e3, "wh": 3.6e3, "kwh": 3.6e6}
"""DCGM-based exports write MJ for megajoules; case is lost here on purpose, as nobody writes millijoules for a run."""

_PER_SECOND = re.compile(r"(?P<what>[a-z ]*?)\s*(?:/|per)\s*(?:s|sec|second)(?:\s*/\s*(?P<each>user|gpu))?")


def scale_to_si(name: str, unit: str) -> float | None:
    """What a value of the metric `name` in `unit` is multiplied with to be in SI units; None for another kind of unit.

    An empty unit counts as that of the metric itself only where the metric is a plain count.
    """
    word = unit.strip().lower()
    wanted = METRIC_UNITS[name]
    if wanted == "s":
        return _TIME.get(word)
    if wanted == "B":
        return _BYTES.get(word)
    if wanted == "W":
        return _WATT.get(word)
    if wanted == "J":
        return _JOULE.get(word)
    if wanted in ("1/s", "tokens/s"):
        match = _PER_SECOND.fullmatch(word)
        if match is None:
            return None
        what = match["what"].strip()
        if what in ("", "tokens" if wanted == "tokens/s" else "requests"):
            return 1.0
        return (
            1.0 if what in ("token", "tok", "tps", "request", "req", "samples", "sample", "images", "steps") else None
        )
    return 1.0 if word in ("", wanted, wanted.rstrip("s"), "count") else None


# --- numbers in text -----------------------------------------------------------------------------------------------

_GROUPED_BY_COMMA = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_BY_POINT = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?")
_COMMA_DECIMAL = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_POINT_DECIMAL = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SPACES = re.compile(r"(?<=\d)[ \u00a0\u202f\u2009'’](?=\d{3}(?!\d))")
_ABSENT = frozenset({"", "-", "–", "—", "n/a", "na", "nan", "none", "null", "inf", "-inf", "infinity"})


def decimal_mark(cells: Iterable[str], delimiter: str = ",") -> str:
    """The decimal mark of a table's numbers, `.` or `,`.

    `12,5` and `1.234,5` are only read with a comma, `12.5` and `1,234.5` only with a point; `1,234` and `1.234` may be
    either. Without a clear case, a table whose cells are separated by semicolons is taken as written with a comma.
    """
    comma = point = 0
    for cell in cells:
        word = _SPACES.sub("", cell.strip())
        if _COMMA_DECIMAL.fullmatch(word):
            comma += not _GROUPED_BY_COMMA.fullmatch(word)
        elif _POINT_DECIMAL.fullmatch(word):
            point += not _GROUPED_BY_POINT.fullmatch(word)
        elif _GROUPED_BY_POINT.fullmatch(word):
            comma += 1
        elif _GROUPED_BY_COMMA.fullmatch(word):
            point += 1
    if comma == point:
        return "," if delimiter == ";" else "."
    return "," if comma > point else "."


def number_in(text: str, mark: str = ".") -> float | None:
    """A number as people and spreadsheets write it, with grouped digits. None for what is no number or not finite."""
    word = _SPACES.sub("", text.strip())
    if len(word) > 60 or word.lower() in _ABSENT:
        return None
    if mark == ",":
        if _GROUPED_BY_POINT.fullmatch(word):
            word = word.replace(".", "")
        word = word.replace(",", ".") if word.count(",") == 1 else word
    elif _GROUPED_BY_COMMA.fullmatch(word):
        word = word.replace(",", "")
    if not _PLAIN.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else None


def is_absent(text: str) -> bool:
    """Whether a cell says that there is no value."""
    return text.strip().lower() in _ABSENT


# --- observations --------------------------------------------------------------------------------------------------

MAX_SAMPLES = 5000
"""Observations kept of one metric; more are thinned evenly, which keeps their distribution."""

STATISTICS: tuple[tuple[str, Callable[[NDArray[np.float64]], Any]], ...] = (
    ("mean", np.mean),
    ("p50", lambda v: np.percentile(v, 50)),
    ("p75", lambda v: np.percentile(v, 75)),
    ("p90", lambda v: np.percentile(v, 90)),
    ("p95", lambda v: np.percentile(v, 95)),
    ("p99", lambda v: np.percentile(v, 99)),
    ("min", np.min),
    ("max", np.max),
    ("std", np.std),
)
"""Percentiles interpolate between observations and the deviation is of the population, as the clients compute them."""


@np.errstate(all="ignore")  # overflow in a hostile list becomes a non-finite result, which is not kept
def add_statistics(
    record: Fields, name: str, values: Iterable[float], *, at: str, unit: str, skip: Iterable[str] = ()
) -> None:
    """Keep the statistics of a list of observations (in SI units) that the record does not have yet."""
    array = np.fromiter(values, dtype=np.float64)
    array = array[np.isfinite(array)]
    if not array.size:
        return
    left = set(skip)
    for stat, compute in STATISTICS:
        if stat in left or (array.size == 1 and stat == "std"):
            continue
        record.add(
            name,
            float(compute(array)),
            at=at,
            raw=f"computed from {array.size} observation{'s' if array.size > 1 else ''}",
            raw_unit=unit,
            stat=stat,
            count=array.size,
        )


def thinned(values: list[float]) -> tuple[float, ...]:
    """At most MAX_SAMPLES of the values, evenly over the list. Lists of equal length are thinned alike."""
    if len(values) <= MAX_SAMPLES:
        return tuple(values)
    return tuple(values[int(i * len(values) / MAX_SAMPLES)] for i in range(MAX_SAMPLES))


def finite_numbers(value: Any) -> list[float]:
    """The finite numbers of a list; anything else in it is left out."""
    if not isinstance(value, list):
        return []
    found: list[float] = []
    for item in value:
        number = as_float(item) if is_number(item) else None
        if number is not None and math.isfinite(number):
            found.append(number)
    return found


def degree(value: Any) -> int | None:
    """A parallel degree: a whole number from 1 to 100 000, or None."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,6}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 100_000:
        return None
    return int(value) if value == int(value) else None


def word(value: Any, limit: int = 120) -> str | None:
    """Cleaned text of a field that should be text; numbers are written out."""
    if isinstance(value, str):
        return clean(value, limit) or None
    number = as_float(value) if is_number(value) else None
    return f"{number:g}" if number is not None and math.isfinite(number) else None


def setting(value: Any) -> str | float | bool | None:
    """A setting fit to be kept: text, a finite number, or true and false."""
    if isinstance(value, bool):
        return value
    number = as_float(value) if is_number(value) else None
    if number is not None:
        return number if math.isfinite(number) else None
    return word(value, 80)


def within(value: Any, *keys: str | int) -> Any:
    """A value deep in the JSON, or None where something on the way is missing or of another kind."""
    for key in keys:
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and -len(value) <= key < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value
