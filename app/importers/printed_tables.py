"""Numbers and tables as profilers print them for people: grouped digits, changing units, CSV in the midst of a log."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence

from app.importers.fields import as_float

_SPACES = str.maketrans("", "", " \u00a0\u202f\u2009'’_")
_COMMA_FRACTION = re.compile(r"-?\d+,(?:\d{1,2}|\d{4,})|-?\d{1,3}(?:\.\d{3})+,\d+")
_POINT_FRACTION = re.compile(r"-?\d+\.(?:\d{1,2}|\d{4,})|-?\d{1,3}(?:,\d{3})+\.\d+")

PREFIXES: dict[str, float] = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
TIMES: dict[str, float] = {
    "ns": 1e-9,
    "nsecond": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "usecond": 1e-6,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
}


def comma_is_decimal(texts: Iterable[str]) -> bool:
    """Whether numbers of a file have a decimal comma: it needs one that cannot be read otherwise, and none against it.

    "1,234" alone says nothing; "1,23" and "1.234,5" do.
    """
    commas = points = 0
    for text in texts:
        plain = text.strip()
        commas += _COMMA_FRACTION.fullmatch(plain) is not None
        points += _POINT_FRACTION.fullmatch(plain) is not None
    return commas > points


def number(text: str, decimal_comma: bool = False) -> float | None:
    """A printed number, or None for what is none ("n/a", "PolicySpread"), not-a-number and infinity included."""
    plain = text.strip().translate(_SPACES)
    plain = plain.replace(".", "").replace(",", ".") if decimal_comma else plain.replace(",", "")
    found = as_float(plain) if plain[:1] in "-+.0123456789" else None
    return found if found is not None and abs(found) < 1e300 else None


def unit_factor(unit: str) -> tuple[float, str] | None:
    """Factor to SI and the SI unit (s, B, B/s, B/cycle, Hz, 1) of a unit as profilers write it; None if unknown."""
    plain = unit.strip()
    lowered = plain.lower()
    if lowered in TIMES:
        return TIMES[lowered], "s"
    if lowered == "%":
        return 0.01, "1"
    match = re.fullmatch(r"([kmgtp]?)(byte|b|hz|cycle)(?:/(\w+))?", lowered)
    if match is None:
        return None
    prefix, what, per = PREFIXES[match[1]], match[2], match[3]
    if per is None:
        return None if what == "cycle" else (prefix, "Hz" if what == "hz" else "B")
    if per == "cycle":
        return (prefix, "B/cycle") if what in ("byte", "b") else None
    if per not in TIMES or what == "hz":
        return None
    return prefix / TIMES[per], "Hz" if what == "cycle" else "B/s"


def csv_rows(
    lines: Sequence[str], is_header: re.Pattern[str], last_needed: str = ""
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Rows of CSV tables that stand in a log: (line number from 1, header, row) for each row as wide as its header.

    Rows that end early are filled up where they reach the column `last_needed`. Every line is read by itself, so that
    a line of other text, even one with a quotation mark, costs only itself.
    """
    header: list[str] | None = None
    needed, by = 0, ","
    for place, line in enumerate(lines):
        if is_header.search(line):
            by = max(",;", key=line.count)
            header = [name.strip().lstrip("\ufeff") for name in csv_fields(line, by)]
            needed = header.index(last_needed) + 1 if last_needed in header else len(header)
        elif header is not None and line:
            row = csv_fields(line, by)
            if needed <= len(row) <= len(header):
                yield place + 1, header, row + [""] * (len(header) - len(row))


def csv_fields(line: str, by: str = ",") -> list[str]:
    """The cells of one line of CSV; none where it is no CSV."""
    try:
        return next(csv.reader([line], delimiter=by), [])
    except csv.Error:
        return []
