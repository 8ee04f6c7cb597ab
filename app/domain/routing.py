"""How tokens spread over experts: which are touched, and what the busiest rank has above the mean (F-9.5, F-9.6)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidInput
from app.domain.units import Grid
from app.domain.workload import Routing

EXACT_UP_TO = 500.0
"""Mean load up to which the expected maximum is summed exactly; above it exp(-load) would underflow."""


def expert_shares(routing: Routing, experts: int) -> NDArray[np.float64] | None:
    """Share of the token copies that each expert gets; None where all are alike.

    `zipf` ranks experts by popularity, the n-th one getting n**-alpha; `histogram` is as measured.
    Raises InvalidInput for a histogram of another length or without tokens.
    """
    if routing.kind == "zipf":
        weights = np.arange(1, experts + 1, dtype=np.float64) ** -routing.alpha
    elif routing.kind == "histogram":
        loc = ("workload", "routing", "tokens_per_expert")
        if len(routing.tokens_per_expert) != experts:
            raise InvalidInput(loc, f"has {len(routing.tokens_per_expert)} entries for {experts} experts")
        weights = np.asarray(routing.tokens_per_expert, dtype=np.float64)
        if weights.sum() <= 0:
            raise InvalidInput(loc, "holds no tokens")
    else:
        return None
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def distinct_experts(routing: Routing, tokens: Grid, experts: int, top_k: int) -> Grid:
    """Experts that at least one of `tokens` tokens reaches, expected: E (1-(1-k/E)^T) where all are alike (F-9.5)."""
    shares = expert_shares(routing, experts)
    exponent = np.asarray(tokens, dtype=np.float64)
    if shares is None:
        touched = experts * (1.0 - (1.0 - top_k / experts) ** exponent)
    else:
        chosen = np.minimum(shares * top_k, 1.0)  # an expert is chosen at most once by a token
        touched = (1.0 - (1.0 - chosen) ** exponent[..., None]).sum(axis=-1)
    return float(touched) if np.ndim(touched) == 0 else touched


def rank_skew(routing: Routing, copies: Grid, experts: int, ranks: int) -> Grid:
    """Load of the busiest of `ranks` ranks over the mean, less one. `copies` are all token copies together.

    Balanced routing has none. Random routing has the noise of balls in bins. Zipf and histogram place neighbours on one
    rank in the order given, and have no noise on top.
    """
    if ranks <= 1 or routing.kind == "balanced":
        return 0.0
    shares = expert_shares(routing, experts)
    if shares is not None:
        per_rank = shares.reshape(ranks, -1).sum(axis=1)
        return float(per_rank.max() * ranks - 1.0)
    loads = np.atleast_1d(np.asarray(copies, dtype=np.float64) / ranks)
    skew = np.array([expected_maximum(load, ranks) / load - 1.0 for load in loads.ravel()]).reshape(loads.shape)
    return float(skew[0]) if np.ndim(copies) == 0 else skew


def expected_maximum(mean: float, bins: int) -> float:
    """Expected fullest of `bins` bins with Poisson load `mean` (F-9.6): sum over m of 1 - P(X < m)^bins."""
    if mean <= 0:
        return 0.0
    if mean > EXACT_UP_TO:
        return mean + math.sqrt(2.0 * mean * math.log(bins))
    probability = math.exp(-mean)
    below, total = probability, 0.0  # P(X < 1)
    for m in range(1, int(mean + 12 * math.sqrt(mean) + 60)):
        total += 1.0 - below**bins
        probability *= mean / m
        below = min(below + probability, 1.0)
    return total
