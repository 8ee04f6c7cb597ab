"""Units and numbers as people and tools write them, in SI units and as floats.

Several exports write the unit beside the number ("ms", "requests/sec") and group digits as the writer's country does.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

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
    if len(unit) > 40:
        return None
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
        word = _SPACES.sub("", cell.strip()) if len(cell) < 60 else ""
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
    word = _SPACES.sub("", text.strip()) if len(text) < 200 else text
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


# --- observations --------------------------------------------------------------------------------------------------

MAX_SAMPLES = 5000
"""Observations kept of one metric; more are thinned evenly, which keeps their distribution."""

MAX_HELD = 2_000_000
"""Observations held in memory while a file is read; of more, percentiles are those of a random half, quarter, ..."""

_BATCH = 4096

PERCENTILES: tuple[tuple[str, float], ...] = (("p50", 50), ("p75", 75), ("p90", 90), ("p95", 95), ("p99", 99))


class Observations:
    """Numbers of one metric as they come, in bounded memory: count, mean, extremes and deviation are of all of them.

    Percentiles interpolate between observations and the deviation is of the population, as the clients compute them.
    Of more than MAX_HELD numbers a random half is held on, the same one for lists that are filled alike.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._pending: list[float] = []
        self._held = array("d")
        self._count = 0
        self._every = 1
        self._shift = 0.0
        self._sum = self._squares = 0.0
        self._least, self._most = math.inf, -math.inf
        self._dice = np.random.default_rng(0)
        self.add(values)

    def add(self, values: Iterable[float]) -> None:
        """Take further numbers; those that are not finite are left out."""
        self._pending.extend(values)
        if len(self._pending) >= _BATCH:
            self._take_in()

    @np.errstate(all="ignore")  # overflow in a hostile list becomes a non-finite result, which is not kept
    def _take_in(self) -> None:
        found = np.array(self._pending, dtype=np.float64)
        self._pending.clear()
        found = found[np.isfinite(found)]
        if not found.size:
            return
        if not self._count:
            self._shift = float(found[0])
        moved = found - self._shift
        self._sum += float(moved.sum())
        self._squares += float((moved * moved).sum())
        self._least, self._most = min(self._least, float(found.min())), max(self._most, float(found.max()))
        self._count += int(found.size)
        if self._every > 1:
            found = found[self._dice.random(found.size) < 1 / self._every]
        self._held.frombytes(found.tobytes())
        while len(self._held) > MAX_HELD:
            held = np.frombuffer(self._held, dtype=np.float64)
            self._held = array("d", held[self._dice.random(held.size) < 0.5].tobytes())
            self._every *= 2

    @property
    def count(self) -> int:
        """All finite numbers that were taken."""
        self._take_in()
        return self._count

    @property
    def total(self) -> float:
        """Sum of all of them."""
        self._take_in()
        return self._sum + self._shift * self._count

    @np.errstate(all="ignore")
    def statistics(self) -> dict[str, float]:
        """By the names of `STATS`; a single observation has no deviation."""
        if not self.count:
            return {}
        held = np.frombuffer(self._held, dtype=np.float64)
        if self._every == 1:
            mean, std = float(held.mean()), float(held.std())
        else:
            offset = self._sum / self._count
            mean, std = self._shift + offset, math.sqrt(max(self._squares / self._count - offset * offset, 0.0))
        found = {"mean": mean}
        found |= {stat: float(np.percentile(held, rank)) for stat, rank in PERCENTILES}
        found |= {"min": self._least, "max": self._most}
        return found | ({"std": std} if self._count > 1 else {})

    def samples(self) -> tuple[float, ...]:
        """At most MAX_SAMPLES of them, evenly over the file. Lists that were filled alike are thinned alike."""
        self._take_in()
        return thinned(self._held)

    def __str__(self) -> str:
        count = self.count
        part = f", percentiles from {len(self._held):,} of them" if self._every > 1 else ""
        return f"computed from {count:,} observation{'s' if count > 1 else ''}{part}"


def add_statistics(record: Fields, name: str, values: Iterable[float] | Observations, *, at: str, unit: str) -> None:
    """Keep the statistics of observations (in SI units) that the record does not have yet."""
    seen = values if isinstance(values, Observations) else Observations(values)
    for stat, value in seen.statistics().items():
        record.add(name, value, at=at, raw=str(seen), raw_unit=unit, stat=stat, count=seen.count)


def thinned(values: Sequence[float]) -> tuple[float, ...]:
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
