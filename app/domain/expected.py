"""What a well-tuned stack gets, with a low and a high: the bound's own rows with fitted efficiencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.calibration import (
    JUDGED_STEP,
    UNCALIBRATED,
    WIDENING,
    Calibration,
    Fit,
    combine,
    forecast_rows,
    on_stack,
    serving_step,
    shares_of,
    step_class,
    undecided_stack,
    waits_for_pieces,
)
from app.domain.lower_bound import Bound
from app.domain.units import Seconds
from app.domain.workload import Workload

NOTABLE_SHARE = 0.2
"""Share of a step's kernel time from which a class of kernels that nobody measured is worth a word."""

NAMED_SOURCES = 2
"""Sources up to which a forecast names them."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A forecast in seconds. Four of five measurements of its class lie between `low` and `high`."""

    time: Seconds
    low: Seconds
    high: Seconds
    basis: str


def expected_time(
    bound: Bound,
    calibration: Calibration = UNCALIBRATED,
    workload: Workload | None = None,
    stack: str | None = None,
) -> Expected:
    """Forecast of a single question, never below its bound.

    `bound` is that of vendor peaks: fits are shares of those. With a workload the table is a step; without one it is an
    operation by itself. After levers `stack` is the class of the step before them (`calibration.on_stack`). Without a
    calibration the forecast is a judgement, and says so.
    """
    forecast = forecast_rows(bound, calibration)
    seconds, fits = forecast.seconds, forecast.fits
    step = rows = serving = elsewhere = None
    if workload is None:
        middle = float(seconds.sum()) + float(bound.terms["imbalance"]) + float(bound.terms["sync"])
    else:
        key = step_class(bound.table, workload, bound.ceilings.family)
        key = on_stack(key, stack) if stack else key
        wide = undecided_stack(calibration, key, stack) if stack else None
        if wide is not None:
            elsewhere, key = calibration.step(key)[0], wide
        step = calibration.step(key)
        serving = serving_step(calibration, key, step[0])
        rows = shares_of(bound.table, seconds, forecast.starting, workload)
        middle = combine(bound, rows, step[0], workload)
    total = float(seconds.sum()) or 1.0
    shares: dict[str, float] = {}
    up_by: dict[str, tuple[Fit, int]] = {}
    for (fit, up), share in zip(fits, (seconds / total).tolist(), strict=True):
        if up and step is not None:
            shares[fit.key] = shares.get(fit.key, 0.0) + share
            up_by[fit.key] = (fit, up)
    if step is not None:
        fit, up = step
        basis = f"Sum of fitted kernels times {fit.parameters['factor']:.2f}, from steps: {_described(fit, up)}"
    elif fits:
        fit, up = fits[int(np.argmax(seconds))]
        basis = f"Fitted kernel: {_described(fit, up)}"
    else:
        fit, up = UNCALIBRATED.kernel("")
        basis = "Nothing to do."
    widening = WIDENING**up
    if step is not None:
        guessed = {key: share for key, share in shares.items() if share >= NOTABLE_SHARE}
        for key in guessed:
            basis += f" Its {_named(up_by[key][0])} kernels are a guess, {shares[key]:.0%} of their time."
        basis += _beside_kernels(fit, workload)
        widening *= WIDENING ** min(sum(share * up_by[key][1] for key, share in guessed.items()), 2.0)
    if calibration.date:
        basis += f" Calibration of {calibration.date}."
    floor = float(bound.overlapped)
    middle = max(middle, floor)
    quick = slow = middle
    if workload is not None and rows is not None and rows.hides:
        # whether a deployment hides all of the exchange or none is not known: the range holds both
        quick, slow = (combine(bound, rows, fit, workload, hidden) for hidden in (1.0, 0.0))
        basis += " From all to none of the exchange with experts hidden."
    low = max(quick * fit.low / widening, floor)
    if serving is not None and workload is not None and rows is not None:
        low = max(min(low, combine(bound, rows, serving, workload) * serving.low / widening), floor)
        basis += " Only local engines were measured: the range reaches what serving engines get from wide weights."
    high = slow * fit.high * widening
    if elsewhere is not None and workload is not None and rows is not None:
        high = max(high, combine(bound, rows, elsewhere, workload) * elsewhere.high)
        basis += (
            " Nobody measured dequantised weights on this stack: the range reaches what other engines take for them."
        )
    return Expected(time=middle, low=min(low, middle), high=max(high, middle), basis=basis)


def _beside_kernels(fit: Fit, workload: Workload | None) -> str:
    """What a step's forecast takes beside its kernels: the host's time, and the wait of a prompt's pieces."""
    text = ""
    if workload is not None and workload.launch_mode == "eager":
        host = fit.parameters.get("host", JUDGED_STEP.parameters["host"])
        text += f" The host takes {host * 1e6:.3g} us to issue a kernel."
    if workload is not None and waits_for_pieces(workload):
        stage = fit.parameters.get("stage", JUDGED_STEP.parameters["stage"])
        text += f" A prompt in pieces waits {stage:.0%} of its work for each further stage."
    return text


def _described(fit: Fit, up: int) -> str:
    """The sample and spread of a fit, and whether it is a guess."""
    if fit.judged:
        return (
            "a guess, no measurement speaks about this: default efficiencies, a judgement from published spreads; "
            f"{fit.low:.2f} to {fit.high:.2f} of the forecast."
        )
    by = " and ".join(fit.sources) if len(fit.sources) <= NAMED_SOURCES else f"{len(fit.sources)} sources"
    sample = f"{_named(fit)}, {fit.rows} measured by {by}"
    spread = f"four of five lie between {fit.low:.2f} and {fit.high:.2f} of the forecast"
    if up:
        return f"a guess, none measured on this device family or precision: {sample}, {spread}, widened."
    return f"{sample}, {spread}."


def _named(fit: Fit) -> str:
    return ", ".join(part for part in fit.key.split("/") if part not in ("any", "native"))
