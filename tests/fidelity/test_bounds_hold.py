"""A bound that somebody has beaten bounds nothing: every carried measurement must take at least as long.

`measured / bound` is also how loose the bound is; the medians by kind are in the assertion messages.
"""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import median

import pytest

from app.domain.expected import expected_time
from tests.fidelity.measured import FILE, Measurement, bound_for, measurements

ROWS = measurements()


def medians() -> str:
    ratios = defaultdict(list)
    for row in ROWS:
        ratios[row.kind].append(row.seconds / float(bound_for(row).overlapped))
    return "measured / bound, median (least) by kind: " + "; ".join(
        f"{kind} {median(found):.2f} ({min(found):.2f}, {len(found)} rows)" for kind, found in sorted(ratios.items())
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_measurement_beats_the_bound(row: Measurement) -> None:
    bound = bound_for(row)
    floor = float(bound.overlapped)
    assert 0 < floor <= float(bound.serial) * (1 + 1e-12)
    assert row.seconds >= floor, f"{row.id}: {row.seconds:g} s beats the floor {floor:g} s. {medians()}"


def test_bounds_say_something() -> None:
    """A bound of zero always holds: for each kind, half of the measurements are within five times the floor."""
    loose: dict[str, list[float]] = defaultdict(list)
    for row in ROWS:
        loose[row.kind].append(row.seconds / float(bound_for(row).overlapped))
    assert all(median(values) < 5 for values in loose.values()), medians()


def test_forecast_ranges_hold_for_most() -> None:
    """The forecast is a judgement, not a bound: two thirds of the measurements lie between its low and its high."""
    outside = []
    for row in ROWS:
        forecast = expected_time(bound_for(row))
        if not forecast.low <= row.seconds <= forecast.high:
            outside.append(f"{row.id} {row.seconds / forecast.time:.2f} of the forecast")
    assert len(outside) <= len(ROWS) / 3, "; ".join(outside)


def test_every_row_names_a_source() -> None:
    data = json.loads(FILE.read_text())
    used = {row.source for row in ROWS}
    assert used == set(data["sources"])
    assert all(source["title"] for source in data["sources"].values())
    assert len({row.id for row in ROWS}) == len(ROWS) >= 60
