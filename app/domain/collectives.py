"""Bytes on the wire of a collective, one way and per device, and its alpha-beta time (formulas F-10.1 to F-10.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np

from app.domain.cost import Tier
from app.domain.errors import InvalidInput
from app.domain.units import Bytes, BytesPerSecond, Grid, Seconds

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
COLLECTIVES: tuple[str, ...] = get_args(CollectiveKind)


def wire_factor(kind: str, ranks: Grid) -> Grid:
    """Bytes that each rank sends one way, over the collective's size as nccl-tests counts it (F-10.1).

    The size is the whole array: what an all-gather ends with, what a reduce-scatter starts with.
    """
    n = np.maximum(ranks, 1.0)
    share = (n - 1.0) / n
    if kind == "all_reduce":
        return _plain(2.0 * share)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return _plain(share)
    if kind in ("broadcast", "p2p"):
        return _plain(np.where(np.asarray(n) > 1, 1.0, 0.0))
    raise InvalidInput(("op", "kind"), f"unknown collective {kind!r}: use one of {', '.join(COLLECTIVES)}")


def wire_bytes(
    kind: str, size: Grid, ranks: Grid, ranks_per_node: Grid, *, in_switch: bool = False
) -> Mapping[Tier, Grid]:
    """Fewest bytes one rank sends on each tier.

    Within a node everything goes by the scale-up fabric. Across nodes a hierarchical algorithm sends over the slow tier
    only what must leave the node: each local rank owns 1/ranks_per_node of the array (F-10.3).
    `in_switch`: the scale-up switch reduces, so an all-reduce sends its array once instead of 2(n-1)/n times.
    """
    local = np.minimum(ranks, ranks_per_node)
    nodes = np.ceil(np.asarray(ranks, dtype=np.float64) / np.maximum(ranks_per_node, 1))
    up = wire_factor(kind, local) * size
    if in_switch and kind == "all_reduce":
        up = np.where(np.asarray(local) > 1, np.minimum(up, size), 0.0)
    if kind == "all_to_all":
        # every rank sends its 1/n share to each peer: the peers of its own node by one tier, the rest by the other
        total = np.maximum(ranks, 1.0)
        up = size * (local - 1.0) / total
        out = size * (total - local) / total
    elif kind == "p2p":
        out = np.where(nodes > 1, size, 0.0)
        up = np.where(nodes > 1, 0.0, up)
    elif kind == "broadcast":
        out = np.where(nodes > 1, size / np.maximum(local, 1.0), 0.0)
    else:
        out = wire_factor(kind, nodes) * size / np.maximum(local, 1.0)
    return {"scale_up": _plain(up), "scale_out": _plain(out)}


def ring_time(kind: str, size: Bytes, ranks: int, alpha: Seconds, bandwidth: BytesPerSecond) -> Seconds:
    """Ring algorithm on one tier: steps times the start-up cost, plus the bytes each rank sends (F-10.2)."""
    steps = {"all_reduce": 2 * (ranks - 1), "broadcast": 1, "p2p": 1}.get(kind, ranks - 1)
    return steps * alpha + float(wire_factor(kind, ranks)) * size / bandwidth


def tree_time(size: Bytes, ranks: int, alpha: Seconds, bandwidth: BytesPerSecond) -> Seconds:
    """Tree all-reduce on one tier: up and down the tree, the whole array on each link (F-10.2)."""
    return 2 * float(np.ceil(np.log2(max(ranks, 1)))) * alpha + 2 * size / bandwidth


def _plain(value: Grid) -> Grid:
    """A float where the formula was asked about one point: NumPy scalars do not leave this module."""
    return float(value) if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
