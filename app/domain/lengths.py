"""Sequence lengths: a list, or a distribution turned into quantiles, so that the same question has the same lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidInput
from app.domain.units import Grid
from app.domain.workload import MAX_TOKENS

MOST_QUANTILES = 4096
"""Quantiles that a distribution over more sequences than that is cut into."""

WIDEST_TAIL = math.exp(NormalDist().inv_cdf(0.95) ** 2 / 2)
"""The 95th percentile over the mean of the widest lognormal that has such a pair at all: 3.87."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens in ascending order, and how many sequences have each."""

    values: NDArray[np.float64]
    counts: NDArray[np.float64]

    @classmethod
    def of(cls, lengths: Iterable[float], counts: Iterable[float] | None = None) -> Lengths:
        """From whole numbers of at least 1, `counts` times each. Raises InvalidInput at `sequences` and the place."""
        values = np.asarray(list(lengths), dtype=np.float64)
        times = np.ones_like(values) if counts is None else np.asarray(list(counts), dtype=np.float64)
        if values.size == 0:
            raise InvalidInput(("sequences",), "must hold at least one length")
        wrong = np.flatnonzero(~((values >= 1) & (values <= MAX_TOKENS) & (values == np.floor(values))))
        if wrong.size:
            place = int(wrong[0])
            raise InvalidInput(
                ("sequences", place), f"must be a whole number of tokens from 1 to {MAX_TOKENS}, not {values[place]:g}"
            )
        distinct, where = np.unique(values, return_inverse=True)
        return cls(distinct, np.asarray(np.bincount(where, weights=times, minlength=distinct.size), dtype=np.float64))

    @classmethod
    def fixed(cls, sequences: int, length: int) -> Lengths:
        """`sequences` of one length, which may be 0: nothing is cached yet."""
        return cls(np.array([float(length)]), np.array([float(sequences)]))

    @classmethod
    def uniform(cls, sequences: int, low: int, high: int) -> Lengths:
        """Quantiles of the whole numbers from `low` to `high`. Raises InvalidInput at `high`."""
        if high < low:
            raise InvalidInput(("high",), f"must be at least the shortest length, {low}, not {high}")
        at, counts = _midpoints(sequences)
        return cls.of(np.floor(low + at * (high - low + 1)), counts)

    @classmethod
    def lognormal(cls, sequences: int, mean: float, p95: float) -> Lengths:
        """Quantiles of the lognormal with this mean and 95th percentile. Raises InvalidInput at `p95`.

        ln p95 = mu + z s and ln mean = mu + s^2 / 2, so s = z - sqrt(z^2 - 2 ln(p95 / mean)): of the two solutions the
        one with the lighter tail. None has a 95th percentile beyond exp(z^2 / 2) times its mean.
        """
        z = NormalDist().inv_cdf(0.95)
        ratio = p95 / mean
        if not 1 <= ratio <= WIDEST_TAIL:
            raise InvalidInput(
                ("p95",),
                f"must be from the mean, {mean:,.6g}, to {WIDEST_TAIL:.3g} times it, {mean * WIDEST_TAIL:,.0f}: no "
                "lognormal has another 95th percentile",
            )
        spread = z - math.sqrt(max(z * z - 2 * math.log(ratio), 0.0))
        middle = math.log(mean) - spread * spread / 2
        at, counts = _midpoints(sequences)
        normal = NormalDist()
        drawn = [math.exp(middle + spread * normal.inv_cdf(float(share))) for share in at]
        return cls.of((min(max(round(length), 1), MAX_TOKENS) for length in drawn), counts)

    @property
    def sequences(self) -> float:
        return float(self.counts.sum())

    @property
    def tokens(self) -> float:
        return float((self.values * self.counts).sum())

    @property
    def mean(self) -> float:
        return self.tokens / self.sequences

    @property
    def longest(self) -> float:
        return float(self.values[-1])

    def quantile(self, share: float) -> float:
        """The least length that at least `share` of the sequences do not exceed."""
        running = np.cumsum(self.counts)
        return float(self.values[int(np.searchsorted(running, share * running[-1] * (1 - 1e-12)))])

    def total(self, of_lengths: Grid) -> float:
        """Sum over all sequences of something given for each of `values`."""
        return float((np.asarray(of_lengths, dtype=np.float64) * self.counts).sum())

    def resampled(self, sequences: int) -> Lengths:
        """So many sequences with lengths spread like these: the quantiles of the list."""
        at, counts = _midpoints(sequences)
        return Lengths.of((self.quantile(float(share)) for share in at), counts)

    def grouped(self, most: int) -> Lengths:
        """At most `most` (3 or more) distinct lengths: neighbours become two whole lengths around their mean.

        The number of sequences, the number of tokens and the longest stay exactly what they were.
        """
        if self.values.size <= most:
            return self
        # the longest is what gets reserved and what must not fall short of a prefix: it stays by itself
        rest, pairs = self.counts[:-1], max((most - 1) // 2, 1)
        running = np.cumsum(rest)
        group = np.minimum((running - rest / 2) * pairs / running[-1], pairs - 1).astype(np.int64)
        values = [float(self.values[-1])]
        counts = [float(self.counts[-1])]
        for number in np.unique(group):
            mine = group == number
            sequences = int(rest[mine].sum())
            tokens = int((self.values[:-1][mine] * rest[mine]).sum())
            below, more = divmod(tokens, sequences)
            values += [float(below)] + ([below + 1.0] if more else [])
            counts += [float(sequences - more)] + ([float(more)] if more else [])
        return Lengths.of(values, counts)


def _midpoints(sequences: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The middles of equal shares, one for each sequence, and how many sequences each stands for."""
    shares = min(sequences, MOST_QUANTILES)
    at = (np.arange(shares, dtype=np.float64) + 0.5) / shares
    whole, more = divmod(sequences, shares)
    counts = np.full(shares, float(whole))
    if more:
        # the rest goes to shares spread over the whole range, so that no end is favoured
        counts[np.floor((np.arange(more) + 0.5) * shares / more).astype(np.int64)] += 1.0
    return at, counts
