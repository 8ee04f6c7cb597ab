"""What a well-tuned stack gets, with a low and a high: the bound's own rows with efficiencies below one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.cost import over_operations
from app.domain.lower_bound import Bound
from app.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Share of each roof that kernels reach, and the least time of one kernel."""

    compute: float
    memory: float
    net: float
    kernel_floor: Seconds


LOW = Efficiencies(compute=0.80, memory=0.92, net=0.85, kernel_floor=0.7e-6)
EXPECTED = Efficiencies(compute=0.65, memory=0.80, net=0.70, kernel_floor=1.6e-6)
HIGH = Efficiencies(compute=0.40, memory=0.60, net=0.40, kernel_floor=3.0e-6)
"""Judgement from published spreads: GEMM 0.44 to 0.84 of peak, decode attention 0.54 to 0.88 of HBM, in-node NCCL 0.16
to 0.78, and 0.66 to 2.6 microseconds for the smallest kernels. They are not fitted to any one device or kernel."""

BASIS = (
    "Default efficiencies, a judgement from published kernel measurements, not calibrated by kind, shape and device: "
    f"{EXPECTED.compute:.0%} of compute, {EXPECTED.memory:.0%} of HBM, {EXPECTED.net:.0%} of links and "
    f"{EXPECTED.kernel_floor * 1e6:g} us a kernel at least; operations one after another."
)


@dataclass(frozen=True, slots=True)
class Expected:
    time: Seconds
    low: Seconds
    high: Seconds
    basis: str


def expected_time(bound: Bound) -> Expected:
    """Forecast for a single question. Never below the bound: the low end is raised to it."""
    floor = float(bound.overlapped)
    low, middle, high = (max(_serial(bound, e), floor) for e in (LOW, EXPECTED, HIGH))
    return Expected(time=middle, low=min(low, middle), high=max(middle, high), basis=BASIS)


def _serial(bound: Bound, e: Efficiencies) -> Seconds:
    net = bound.op_net / e.net * (1.0 - bound.table["hidden"])
    per_op = np.maximum(np.maximum(bound.op_compute / e.compute, bound.op_hbm / e.memory), net)
    floored = np.maximum(per_op, e.kernel_floor * bound.table["launches"]) * bound.table["effort"]
    seconds = floored * bound.table["count"]
    kernels = float(over_operations(seconds))
    waiting = float(bound.terms["imbalance"])
    if bound.table.bubble:
        waiting += bound.table.bubble * float(over_operations(seconds * bound.table.pipelined))
    else:
        waiting += float(bound.terms["sync"])
    return max(kernels, float(bound.terms["launch"])) + waiting
