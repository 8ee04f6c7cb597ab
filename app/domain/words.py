"""Ratios, times and factors as sentences say them, with the digits that they can carry."""

from __future__ import annotations

import math

from app.domain.units import Ratio, Seconds

NARROW_SPACE = "\u202f"


def share_text(ratio: Ratio) -> str:
    """A ratio in per cent: two digits under 10 %, never rounded up to a full 100 %."""
    percent = ratio * 100
    if 99 <= percent < 100:
        text = f"{math.floor(percent * 10) / 10:.1f}"
    else:
        text = f"{percent:.0f}" if percent >= 9.95 else f"{percent:.2g}"
    return f"{text}{NARROW_SPACE}%"


def time_text(time: Seconds) -> str:
    """A time with three digits and the prefix that fits: 0.0147 is 14.7 ms."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if float(f"{time:.3g}") >= factor:
            scaled = time / factor
            places = max(0, 2 - math.floor(math.log10(float(f"{scaled:.3g}"))))
            return f"{scaled:,.{places}f}{NARROW_SPACE}{unit}"
    return f"{time * 1e9:.3g}{NARROW_SPACE}ns"


def factor_text(ratio: Ratio) -> str:
    """A factor with three significant digits: 1.2449 is "1.24×"."""
    if ratio >= 1000:
        return f"{ratio:,.0f}×"
    if ratio < 0.001:
        return f"{ratio:.2g}×"
    digits = max(0, 2 - math.floor(math.log10(float(f"{ratio:.3g}"))))
    return f"{ratio:.{min(digits, 5)}f}×"
