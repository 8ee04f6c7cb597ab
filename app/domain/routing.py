"""How tokens spread over experts: which are touched, and what the busiest rank has above the mean (F-9.5, F-9.6)."""

from __future__ import annotations

import heapq
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidInput
from app.domain.units import Grid
from app.domain.workload import Routing

EXACT_UP_TO = 500.0
"""Mean load up to which the expected maximum is summed exactly; above it exp(-load) would underflow."""

ROUNDING = 1.01
"""By how much a histogram may give an expert more than a token's one copy: averages over layers are rounded."""


def expert_shares(routing: Routing, experts: int, top_k: int = 1) -> NDArray[np.float64] | None:
    """Share of the token copies that each expert gets; None where all are alike.

    `zipf` ranks experts by popularity, the n-th one getting n**-alpha, but none more than one copy of a token (what is
    above that goes to the others in proportion); `histogram` is as measured.
    Raises InvalidInput for a histogram of another length, without tokens, or that no router of `top_k` leaves.
    """
    if routing.kind == "zipf":
        weights = _capped(np.arange(1, experts + 1, dtype=np.float64) ** -routing.alpha, 1.0 / min(top_k, experts))
    elif routing.kind == "histogram":
        loc = ("workload", "routing", "tokens_per_expert")
        if len(routing.tokens_per_expert) != experts:
            raise InvalidInput(loc, f"has {len(routing.tokens_per_expert)} entries for {experts} experts")
        weights = np.asarray(routing.tokens_per_expert, dtype=np.float64)
        if weights.sum() <= 0:
            raise InvalidInput(loc, "holds no tokens")
        most, total = weights.max(), weights.sum()
        if most > total / min(top_k, experts) * ROUNDING:
            raise InvalidInput(
                loc,
                f"entry {int(weights.argmax()) + 1:,} has {most / total:.1%} of the copies: a token goes to {top_k} "
                f"different experts, so none has more than {1 / top_k:.1%}. Count all choices of the router",
            )
    else:
        return None
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _capped(weights: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Weights as shares of at most `most`, those in descending order."""
    shares: NDArray[np.float64] = weights / weights.sum()
    for full in range(len(shares)):
        if shares[full] <= most:
            break
        shares[full] = most
        rest = shares[full + 1 :]
        left = 1.0 - most * (full + 1)
        total = float(rest.sum())
        shares[full + 1 :] = rest / total * max(left, 0.0) if total > 0 else max(left, 0.0) / max(len(rest), 1)
    return shares


def distinct_experts(routing: Routing, tokens: Grid, experts: int, top_k: int) -> Grid:
    """Experts that at least one of `tokens` tokens reaches, expected: E (1-(1-k/E)^T) where all are alike (F-9.5)."""
    shares = expert_shares(routing, experts, top_k)
    exponent = np.asarray(tokens, dtype=np.float64)
    if shares is None:
        touched = experts * (1.0 - (1.0 - top_k / experts) ** exponent)
    else:
        chosen = np.minimum(shares * top_k, 1.0)  # an expert is chosen at most once by a token
        touched = (1.0 - (1.0 - chosen) ** exponent[..., None]).sum(axis=-1)
    return float(touched) if np.ndim(touched) == 0 else touched


def rank_skew(routing: Routing, copies: Grid, experts: int, ranks: int, *, top_k: int = 1, replicas: int = 0) -> Grid:
    """Load of the busiest of `ranks` ranks over the mean, less one. `copies` are all token copies together.

    Balanced routing has none. Random routing has the noise of balls in bins. Zipf and histogram place neighbours on one
    rank in the order given, and have no noise on top; `replicas` of the busiest experts are laid out anew.
    """
    if ranks <= 1 or routing.kind == "balanced":
        return 0.0
    shares = expert_shares(routing, experts, top_k)
    if shares is not None:
        per_rank = shares.reshape(ranks, -1).sum(axis=1)
        in_order = float(per_rank.max() * ranks - 1.0)
        return min(replicated_skew(shares.tolist(), ranks, replicas), in_order) if replicas else in_order
    loads = np.atleast_1d(np.asarray(copies, dtype=np.float64) / ranks)
    skew = np.array([expected_maximum(load, ranks) / load - 1.0 for load in loads.ravel()]).reshape(loads.shape)
    return float(skew[0]) if np.ndim(copies) == 0 else skew


def reached_places(routing: Routing, experts: int, places: int, top_k: int) -> NDArray[np.float64] | None:
    """Probability that a token has an expert at each of `places` ranks or nodes, which hold neighbours in equal numbers
    (choices taken as independent). None where routing says nothing of single experts, or they do not divide."""
    shares = expert_shares(routing, experts, top_k)
    if shares is None or experts % places:
        return None
    missed = np.prod(1.0 - np.minimum(shares * top_k, 1.0).reshape(places, -1), axis=1)
    return np.asarray(1.0 - missed)


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


def replicated_skew(shares: list[float], ranks: int, copies: int) -> float:
    """Busiest rank over the mean, less one, with `copies` further copies of the busiest experts in all.

    One after another goes to the expert with the most load a copy; then copies are laid on ranks from the largest load
    to the smallest, each on the emptiest rank with a free place.
    """
    waiting = [(-share, expert) for expert, share in enumerate(shares)]
    heapq.heapify(waiting)
    held = [1] * len(shares)
    for _ in range(copies):
        _, expert = waiting[0]
        held[expert] += 1
        heapq.heapreplace(waiting, (-shares[expert] / held[expert], expert))
    loads = sorted((share / n for share, n in zip(shares, held, strict=True) for _ in range(n)), reverse=True)
    places = -(-len(loads) // ranks)
    free = [(0.0, 0, rank) for rank in range(ranks)]
    busiest = 0.0
    for load in loads:
        total, taken, rank = heapq.heappop(free)
        busiest = max(busiest, total + load)
        if taken + 1 < places:
            heapq.heappush(free, (total + load, taken + 1, rank))
    return busiest * ranks - 1.0


# ---- loads of single experts ----------------------------------------------------------------------------------------

NORMAL_FROM = 1e5
"""Mean load from which a Poisson distribution is taken as a normal one: its tails then agree to three digits."""


def load_quantile(routing: Routing, copies: float, experts: int, share: float, *, top_k: int = 1) -> float:
    """Load that a `share` of the experts does not exceed. `copies` are all token copies together."""
    shares = expert_shares(routing, experts, top_k)
    if shares is not None:
        return float(np.sort(shares)[max(math.ceil(share * experts) - 1, 0)]) * copies
    mean = copies / experts
    if routing.kind == "balanced" or mean <= 0:
        return mean
    if mean > NORMAL_FROM:
        return mean + math.sqrt(mean) * NormalDist().inv_cdf(share)
    loads, probabilities = _poisson(mean)
    return float(loads[min(int(np.searchsorted(np.cumsum(probabilities), share)), len(loads) - 1)])


def busiest_expert(routing: Routing, copies: float, experts: int, *, top_k: int = 1) -> float:
    """Load of the busiest expert, expected (F-9.6)."""
    shares = expert_shares(routing, experts, top_k)
    if shares is not None:
        return float(shares.max()) * copies
    mean = copies / experts
    return mean if routing.kind == "balanced" else expected_maximum(mean, experts)


def expert_capacity(copies: Grid, experts: int, factor: float) -> Grid:
    """Rows that every expert gets (F-9.9): the mean load times the factor, rounded up."""
    rows = np.ceil(np.asarray(copies, dtype=np.float64) / experts * factor)
    return float(rows) if rows.ndim == 0 else rows


def dropped_share(routing: Routing, copies: Grid, experts: int, capacity: Grid, *, top_k: int = 1) -> Grid:
    """Share of the token copies above the capacity of their expert, expected (F-9.9)."""
    shares = expert_shares(routing, experts, top_k)

    def one(total: float, rows: float) -> float:
        if total <= 0:
            return 0.0
        mean = total / experts
        if shares is not None:
            return float(np.maximum(shares * total - rows, 0.0).sum()) / total
        if routing.kind == "balanced":
            return max(mean - rows, 0.0) / mean
        return _expected_excess(mean, rows) / mean

    if np.ndim(copies) == 0 and np.ndim(capacity) == 0:
        return one(float(copies), float(capacity))
    points: NDArray[np.float64] = np.vectorize(one, otypes=[np.float64])(copies, capacity)
    return points


def tiled_rows(routing: Routing, copies: float, experts: int, tile: int, *, top_k: int = 1) -> float:
    """Rows that grouped products work on when each expert's rows are rounded up to whole tiles (F-9.8)."""
    shares = expert_shares(routing, experts, top_k)
    if shares is not None:
        return tile * float(np.ceil(np.round(shares * copies, 9) / tile).sum())
    mean = copies / experts
    if routing.kind == "balanced":
        return tile * math.ceil(round(mean, 9) / tile) * experts
    if mean > NORMAL_FROM:
        return (mean + tile / 2) * experts
    loads, probabilities = _poisson(mean)
    return tile * experts * float((np.ceil(loads / tile) * probabilities).sum())


def _poisson(mean: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Loads within twelve deviations of the mean and their probabilities, by logarithms: nothing underflows."""
    reach = 12.0 * math.sqrt(mean) + 60.0
    first, last = max(math.floor(mean - reach), 0), math.ceil(mean + reach)
    loads = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log(mean) - np.log(np.maximum(loads, 1.0))
    steps[0] = first * math.log(mean) - mean - math.lgamma(first + 1)
    return loads, np.exp(np.cumsum(steps))


def _expected_excess(mean: float, rows: float) -> float:
    """Expected load above `rows` of a Poisson load."""
    if mean > NORMAL_FROM:
        deviation = math.sqrt(mean)
        z = (rows - mean) / deviation
        normal = NormalDist()
        return max(deviation * normal.pdf(z) - (rows - mean) * (1.0 - normal.cdf(z)), 0.0)
    loads, probabilities = _poisson(mean)
    return float((np.maximum(loads - rows, 0.0) * probabilities).sum())
