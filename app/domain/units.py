"""Quantities are floats in SI base units; the alias in a signature says which (docs/units.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Unit:
    """The SI unit of an annotated float, read by formatters and by the dimension tests."""

    symbol: str


Seconds: TypeAlias = Annotated[float, Unit("s")]
Bytes: TypeAlias = Annotated[float, Unit("B")]  # a float: 4-bit weights and scales are fractions of a byte
Flop: TypeAlias = Annotated[float, Unit("FLOP")]
FlopPerSecond: TypeAlias = Annotated[float, Unit("FLOP/s")]
BytesPerSecond: TypeAlias = Annotated[float, Unit("B/s")]
FlopPerByte: TypeAlias = Annotated[float, Unit("FLOP/B")]
PerSecond: TypeAlias = Annotated[float, Unit("1/s")]
Watts: TypeAlias = Annotated[float, Unit("W")]
Joules: TypeAlias = Annotated[float, Unit("J")]
Ratio: TypeAlias = Annotated[float, Unit("1")]

Grid: TypeAlias = float | NDArray[np.float64]
"""A number, or an array of them: every formula takes either, so one question is a sweep of shape ()."""

KILO, MEGA, GIGA, TERA = 1e3, 1e6, 1e9, 1e12
KIBI, MEBI, GIBI = 2.0**10, 2.0**20, 2.0**30
