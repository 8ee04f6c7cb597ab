"""Numbers as people read them: a prefix chosen by size, three significant digits, the exact SI value kept beside.

Rules, in one place:

- At least three significant digits, and never a digit before the point rounded away: 14.7 ms, 0.0123, 4,342 tokens/s.
- Times take ns, µs, ms, s, then min, h and d. Rates take decimal prefixes (GB/s, TFLOP/s, as vendors and the roofline
  use them). Sizes take binary prefixes (MiB, GiB, as memory is sold and filled); `decimal=True` gives GB instead, for
  traffic that stands beside a rate. B/s and FLOP/s are never mixed with binary prefixes.
- Counts (tokens, requests, ...) are exact up to ten million, then "12.3 million tokens".
- Number and unit are joined by a narrow no-break space; thousands are grouped by commas.
- What is absent or not a number reads "not reported". Infinity reads "unbounded".
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, SupportsFloat

from markupsafe import Markup, escape

NARROW_SPACE: Final = "\u202f"
NOT_REPORTED: Final = "not reported"
UNBOUNDED: Final = "unbounded"
MINUS: Final = "\u2212"


@dataclass(frozen=True, slots=True)
class Human:
    """A quantity ready to print. `text` has no unit, `unit_text` may be empty, `exact` is the SI value in full."""

    text: str
    unit_text: str = ""
    exact: str = ""

    @property
    def is_number(self) -> bool:
        """False for "not reported" and "unbounded", which tables set in a quieter style."""
        return bool(self.exact)

    def __str__(self) -> str:
        return f"{self.text}{NARROW_SPACE}{self.unit_text}" if self.unit_text else self.text


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit for a whole column: `unit_text` goes into the header, `show` prints a cell without unit.

    `padded`: whole numbers get their three digits too, because others in the column have fractions.
    """

    unit: str
    unit_text: str
    factor: float
    padded: bool = False

    def show(self, value: object) -> Human:
        number = _finite(value)
        if number is None:
            return _absent(value)
        return Human(significant(number / self.factor, padded=self.padded), "", exact(number, self.unit))


_DECIMAL: Final = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E"), (1e21, "Z"))
_BINARY: Final = tuple(
    (2.0 ** (10 * power), prefix) for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
)
_TIME: Final = (
    (1e-9, "ns"),
    (1e-6, "µs"),
    (1e-3, "ms"),
    (1.0, "s"),
    (60.0, "min"),
    (3600.0, "h"),
    (86400.0, "d"),
)
# A prefix takes over when the value, rounded, reaches this many of it; seconds stay seconds up to ten minutes.
_TIME_FROM: Final = (0.0, 1e-6, 1e-3, 1.0, 600.0, 7200.0, 3 * 86400.0)
_LARGE_COUNTS: Final = ((1e6, "million"), (1e9, "billion"), (1e12, "trillion"), (1e15, "quadrillion"))
_EXACT_COUNT_BELOW: Final = 1e7

_WITH_DECIMAL_PREFIX: Final = frozenset({"B/s", "FLOP", "FLOP/s", "OP/s", "W", "J", "Hz", "bit/s", "exp/s"})
_WITHOUT_PREFIX: Final = frozenset({"1", "", "FLOP/B", "°C", "USD", "requests/s", "samples/s", "steps/s"})
_ALIASES: Final = {"1/s": "per s", "count": "", "flop": "FLOP", "bytes": "B", "seconds": "s"}


def quantity(value: object, unit: str, *, decimal: bool = False) -> Human:
    """`value` in the SI unit `unit` as text. Unknown units are counts. See the module for the rules.

    `unit`: s, B, B/s, FLOP, FLOP/s, FLOP/B, tokens/s, 1/s, W, J, 1 (a plain number), ratio (as per cent) or the name
    of what is counted (tokens, requests, parameters). `decimal` prints B as GB (1e9) instead of GiB (2**30).
    """
    number = _finite(value)
    if number is None:
        return _absent(value)
    if unit in ("ratio", "%"):
        return Human(_percent_digits(number), "%", exact(number, "1"))
    scale = scale_for((number,), unit, decimal=decimal)
    return Human(significant(number / scale.factor), scale.unit_text, exact(number, unit))


def scale_for(values: Iterable[object], unit: str, *, decimal: bool = False) -> Scale:
    """The unit in which all `values` read best in one column: that of the largest one."""
    # Most cells of a page are plain floats; they are spared the general way.
    sizes = [
        abs(number)
        for value in values
        if (number := value if type(value) is float and value - value == 0.0 else _finite(value)) is not None
    ]
    scale = _scale(max(sizes, default=0.0), unit, decimal)
    factor = scale.factor
    padded = any(not (size / factor).is_integer() for size in sizes)
    return Scale(scale.unit, scale.unit_text, factor, padded) if padded else scale


def _scale(largest: float, unit: str, decimal: bool) -> Scale:
    if unit in ("ratio", "%"):
        return Scale("1", "%", 0.01)
    unit = _ALIASES.get(unit, unit)
    if unit == "s":
        factor, text = _pick_time(largest)
        return Scale("s", text, factor)
    if unit == "B":
        factor, prefix = _pick(largest, _DECIMAL if decimal else _BINARY, 1000.0 if decimal else 1024.0)
        return Scale("B", f"{prefix}B", factor)
    if unit in _WITH_DECIMAL_PREFIX:
        factor, prefix = _pick(largest, _DECIMAL, 1000.0)
        return Scale(unit, f"{prefix}{unit}", factor)
    if unit in _WITHOUT_PREFIX:
        return Scale(unit, "" if unit == "1" else unit, 1.0)
    if largest >= _EXACT_COUNT_BELOW or (unit == "parameters" and largest >= 1e6):
        factor, word = next(
            (step for step in reversed(_LARGE_COUNTS) if _rounded(largest / step[0]) >= 1.0), _LARGE_COUNTS[0]
        )
        return Scale(unit, f"{word} {unit}".strip(), factor)
    return Scale(unit, unit, 1.0)


def significant(number: float, *, padded: bool = False) -> str:
    """At least three significant digits, thousands grouped; whole numbers stay whole unless `padded`."""
    if number == 0:
        return "0"
    size = abs(number)
    if size >= 1e15 or size < 1e-4:
        mantissa, exponent = f"{size:.2e}".split("e")
        return _signed(number, f"{mantissa}e{int(exponent)}")
    if not padded and float(number).is_integer():
        return _signed(number, f"{size:,.0f}")
    # Most numbers lie where rounding cannot add a digit before the point.
    if 1.0 <= size < 9.99:
        return _signed(number, f"{size:.2f}")
    if 10.0 <= size < 99.9:
        return _signed(number, f"{size:.1f}")
    if size >= 100.0:
        return _signed(number, f"{size:,.0f}")
    # Rounding first decides how many places are left: 9.996 is 10.0, not 10.00. The exponent stands behind "d.dde".
    places = max(0, 2 - int(f"{size:.2e}"[5:]))
    return _signed(number, f"{size:,.{places}f}")


def breakable(name: str) -> Markup:
    """A dotted name that may break behind its dots and underscores instead of inside a word."""
    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(name))))


def percent(value: object) -> str:
    """A ratio as per cent with its sign: 0.61 -> "61 %", 0.045 -> "4.5 %". Above one stays above 100 %."""
    human = quantity(value, "ratio")
    return str(human)


def signed_percent(value: object) -> str:
    """A relative difference with its sign: 0.012 -> "+1.2 %", 0 -> "0 %"."""
    number = _finite(value)
    if number is not None and 0 < abs(number) < 1e-4:
        return f"under 0.01{NARROW_SPACE}%"
    human = quantity(value, "ratio")
    return f"+{human}" if number is not None and number > 0 else str(human)


def short_count(value: object) -> Human:
    """A large count without the name of what is counted: 6.71e11 -> "671 billion"."""
    human = quantity(value, "parameters")
    return replace(human, unit_text=human.unit_text.removesuffix("parameters").strip())


def whole_count(value: object) -> Human:
    """A count with all its digits: 671,026,419,200."""
    number = _finite(value)
    return _absent(value) if number is None else Human(f"{number:,.0f}", "", exact(number, ""))


def times(value: object) -> str:
    """A factor: 1.24 -> "1.24×"."""
    number = _finite(value)
    return str(_absent(value)) if number is None else f"{significant(number)}×"


def count(value: object, noun: str = "", plural: str = "") -> str:
    """A whole count with its noun: (1, "run") -> "1 run", (12, "run") -> "12 runs"."""
    number = _finite(value)
    if number is None:
        return str(_absent(value))
    text = significant(number)
    if not noun:
        return text
    return f"{text} {noun if number == 1 else plural or noun + 's'}"


def exact(number: float, unit: str) -> str:
    """The SI value in full, as it would be typed: every digit the float holds, no grouping."""
    shown = _ALIASES.get(unit, unit)
    return digits(float(number)) if shown in ("", "1") else f"{digits(float(number))} {shown}"


def digits(number: float) -> str:
    """Every digit of a float, whole numbers without a point: 5000.0 -> "5000"."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e21 else repr(number)


def when(moment: datetime | str | None) -> str:
    """A moment (or its ISO form) to the minute, in UTC and saying so: one form for every reader of a shared page."""
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def when_stated(text: str | None) -> str:
    """A moment as a file states it, to the minute: in UTC where it names its zone, else as it stands; "" for none."""
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if len(text) <= len("2026-11-29"):
        return text
    return moment.strftime("%Y-%m-%d %H:%M") if moment.tzinfo is None else when(moment)


def _number(value: object) -> float | None:
    """A float from anything numeric (NumPy scalars included); None for text, booleans and what is absent."""
    if isinstance(value, float):
        return float(value)
    if value is None or isinstance(value, (str, bytes, bool)):
        return None
    return float(value) if isinstance(value, SupportsFloat) else None


def _finite(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _absent(value: object) -> Human:
    number = _number(value)
    if number is not None and math.isinf(number):
        return Human(UNBOUNDED if number > 0 else f"{MINUS}{UNBOUNDED}")
    return Human(NOT_REPORTED)


def _rounded(size: float) -> float:
    """`size` to three significant digits, so that 999.96 counts as 1000 when a prefix is chosen."""
    return float(f"{size:.3g}")


def _pick(size: float, steps: tuple[tuple[float, str], ...], base: float) -> tuple[float, str]:
    chosen = steps[0]
    for lower, upper in itertools.pairwise(steps):
        shown = size / lower[0]
        if (round(shown) if shown >= 100 else shown) < base:
            return lower
        chosen = upper
    return chosen


def _pick_time(size: float) -> tuple[float, str]:
    if size == 0:
        return (1.0, "s")
    chosen, rounded = _TIME[0], _rounded(size)
    for step, start in zip(_TIME, _TIME_FROM, strict=True):
        if rounded >= start:
            chosen = step
    return chosen


def _percent_digits(ratio: float) -> str:
    size = abs(ratio) * 100
    if size == 0:
        return "0"
    if 99 <= size < 100:  # never round up to a full 100 %
        return _signed(ratio, f"{min(math.floor(size * 10) / 10, 99.9):.1f}")
    if size >= 1e15:
        mantissa, exponent = f"{abs(ratio):.2e}".split("e")  # the largest floats have no hundredfold
        return _signed(ratio, f"{mantissa}e{int(exponent) + 2}")
    if size >= 9.95:
        return _signed(ratio, f"{size:,.0f}")
    if size >= 0.01:
        places = max(1, 1 - math.floor(math.log10(size)))
        return _signed(ratio, f"{size:.{places}f}".rstrip("0").rstrip("."))
    return _signed(ratio, f"{size:.1e}")


def _signed(number: float, digits: str) -> str:
    return f"{MINUS}{digits}" if number < 0 else digits
