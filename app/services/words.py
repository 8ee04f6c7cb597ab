"""Quantities as the sentences of services say them."""

from __future__ import annotations


def time_words(value: float) -> str:
    """A time in the unit that fits: 14.7 ms."""
    if value == 0:
        return "0 s"
    sign = "-" if value < 0 else ""
    size = abs(value)
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if size >= factor * 0.9995:
            return f"{sign}{size / factor:.3g} {unit}" if size < 1000 else f"{sign}{size:,.0f} s"
    return f"{sign}{size / 1e-9:.3g} ns"


def size_words(value: float) -> str:
    """A size in the binary prefix that fits: 1.5 MiB."""
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if value >= factor * 0.9995:
            return f"{value / factor:,.3g} {unit}" if value < 1000 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value:.3g} B"


def gib_words(value: float) -> str:
    """A size in GiB whatever it is, so that it reads beside a device's memory."""
    return f"{value / 2**30:.3g} GiB" if value < 1000 * 2**30 else f"{value / 2**30:,.0f} GiB"


def rate_words(value: float) -> str:
    """A bandwidth in the decimal prefix that fits: 450 GB/s."""
    for factor, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= factor * 0.9995:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} B/s"


def count_words(value: float) -> str:
    """A mean count or a rate: whole from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
