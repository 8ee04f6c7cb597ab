"""Whether a difference is more than noise: rank test, bootstrap interval and change points, all from SciPy.

SciPy takes a second to import, so it is imported where it is first needed. Every random draw is seeded: the same runs
get the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_SAMPLES = 5
"""Samples that each side needs: with fewer a one-sided rank test cannot fall far below 5 % whatever they are."""

MOST_SAMPLES = 5_000
"""Samples of a side that are used; more change no answer and cost time. A seeded draw where there are more."""

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
RESAMPLES = 2_000
LEAST_SEGMENT = 3
"""Runs that a stretch between two change points has at least: fewer are an outlier."""

_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
LOCATION_STATS = (None, "mean", "p50")


@dataclass(frozen=True, slots=True)
class Noise:
    """What samples say of a regression. `low` and `high` are its bootstrap interval, `p_value` that of the rank test.

    `significant` is whether noise does not explain a worsening: the interval lies above zero and, for mean and median,
    the one-sided Mann-Whitney test rejects too. (Ranks speak of location, so tails are judged by the interval alone.)
    """

    p_value: float
    low: float
    high: float
    samples: tuple[int, int]
    significant: bool


def noise_of(
    run: Sequence[float], baseline: Sequence[float], stat: str | None, *, lower_is_better: bool
) -> Noise | None:
    """The noise of `run` against `baseline`; None with too few samples or a statistic that samples have none of."""
    statistic = _statistic(stat)
    x, y = _drawn(run), _drawn(baseline)
    if statistic is None or x.size < LEAST_SAMPLES or y.size < LEAST_SAMPLES:
        return None
    reference = float(statistic(y, -1))
    if reference == 0 or not math.isfinite(reference):
        return None
    from scipy import stats

    sign = 1.0 if lower_is_better else -1.0

    def regression(a: Array, b: Array, axis: int = -1) -> Array:
        before = statistic(b, axis)
        return np.asarray(sign * (statistic(a, axis) - before) / np.abs(before))

    worse: Any = "greater" if lower_is_better else "less"
    p_value = float(stats.mannwhitneyu(x, y, alternative=worse).pvalue)
    if np.ptp(x) == 0 and np.ptp(y) == 0:
        low = high = float(regression(x, y))
    else:
        # percentile intervals: the accelerated ones fail on tails of few samples
        found = stats.bootstrap(
            (x, y),
            regression,
            n_resamples=RESAMPLES,
            batch=max(1, 2_000_000 // (x.size + y.size)),
            vectorized=True,
            confidence_level=CONFIDENCE,
            method="percentile",
            random_state=np.random.default_rng(0),
        ).confidence_interval
        low, high = float(found.low), float(found.high)
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(p_value)):
        return None
    significant = low > 0 and (stat not in LOCATION_STATS or p_value < SIGNIFICANT)
    return Noise(p_value, low, high, (len(run), len(baseline)), significant)


def _statistic(stat: str | None) -> Callable[[Array, int], Array] | None:
    if stat in (None, "mean"):
        return lambda values, axis: np.asarray(np.mean(values, axis=axis))
    percentile = _PERCENTILES.get(str(stat))
    if percentile is None:
        return None
    return lambda values, axis: np.asarray(np.percentile(values, percentile, axis=axis))


def _drawn(values: Sequence[float]) -> Array:
    found = np.asarray([v for v in values if math.isfinite(v)], dtype=np.float64)
    if found.size <= MOST_SAMPLES:
        return found
    return np.random.default_rng(0).choice(found, MOST_SAMPLES, replace=False)


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """From run `index` on, values differ from those of the stretch before: `before` and `after` are the medians."""

    index: int
    before: float
    after: float
    p_value: float


METHOD = (
    "Binary segmentation: the split with the largest standardised difference of means is kept where at most 5 % of "
    "2,000 random orders of the same values have one as large (scipy.stats.permutation_test), each stretch has three "
    "runs or more, and the medians differ by 1 % or more; then each side is searched again."
)


def change_points(values: Sequence[float], *, least_change: float = 0.01) -> tuple[ChangePoint, ...]:
    """Where a history changes its level, by METHOD; oldest first. None in fewer than 2 * LEAST_SEGMENT values."""
    data = np.asarray(values, dtype=np.float64)
    if data.size < 2 * LEAST_SEGMENT or not np.all(np.isfinite(data)):
        return ()
    cuts: list[tuple[int, float]] = []
    _segment(data, 0, data.size, least_change, cuts)
    cuts.sort()
    edges = [0, *(place for place, _ in cuts), data.size]
    return tuple(
        ChangePoint(
            place,
            float(np.median(data[edges[number] : place])),
            float(np.median(data[place : edges[number + 2]])),
            p_value,
        )
        for number, (place, p_value) in enumerate(cuts)
    )


def _segment(data: Array, start: int, end: int, least_change: float, cuts: list[tuple[int, float]]) -> None:
    stretch = data[start:end]
    if stretch.size < 2 * LEAST_SEGMENT or np.ptp(stretch) == 0:
        return
    strength = _split_strengths(stretch[None, :])[0]
    place = int(np.argmax(strength)) + LEAST_SEGMENT
    before, after = float(np.median(stretch[:place])), float(np.median(stretch[place:]))
    scale = max(abs(before), abs(after))
    if scale == 0 or abs(after - before) < least_change * scale:
        return
    from scipy import stats

    def strongest(order: Array, axis: int = -1) -> Array:
        values = np.atleast_2d(np.moveaxis(np.asarray(order), axis, -1))
        found = _split_strengths(values.reshape(-1, values.shape[-1])).max(axis=-1)
        return np.asarray(found.reshape(values.shape[:-1]) if np.ndim(order) > 1 else found[0])

    test = stats.permutation_test(
        (stretch,),
        strongest,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, 1_000_000 // stretch.size),
        alternative="greater",
        random_state=np.random.default_rng(0),
    )
    p_value = float(test.pvalue)
    if not p_value <= SIGNIFICANT:
        return
    cuts.append((start + place, p_value))
    _segment(data, start, start + place, least_change, cuts)
    _segment(data, start + place, end, least_change, cuts)


def _split_strengths(rows: Array) -> Array:
    """By row and split that leaves LEAST_SEGMENT values on both sides: |difference of means| times sqrt(weight)."""
    n = rows.shape[1]
    left = np.arange(LEAST_SEGMENT, n - LEAST_SEGMENT + 1)
    sums = np.cumsum(rows, axis=1)
    total = sums[:, -1:]
    before = sums[:, left - 1]
    means = np.abs(before / left - (total - before) / (n - left))
    return np.asarray(means * np.sqrt(left * (n - left) / n))
