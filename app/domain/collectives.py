"""Bytes on the wire of a collective, one way and per device, and its alpha-beta time (formulas F-10.1 to F-10.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np

from app.domain.cost import Tier
from app.domain.errors import InvalidInput
from app.domain.units import Bytes, BytesPerSecond, Grid, Seconds

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
COLLECTIVES: tuple[str, ...] = get_args(CollectiveKind)
Algorithm: TypeAlias = Literal["ring", "tree", "hierarchical", "in_switch"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

LINK_EFFICIENCY = 0.8
"""Share of a link's rate that large messages reach where nobody measured it (judgement, F-10.3)."""


IN_SWITCH_SHARE = 0.8
"""Share of what other algorithms reach of a link at which a reducing switch is fed: 0.81 to 0.85 by all-reduces of
eight H200, 0.75 of eight B200, each over what its ring reaches or would (ML Engineering, network chapter)."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A tier in the alpha-beta model: seconds that a message takes to start, and bytes/s one way once it flows."""

    alpha: Seconds
    bandwidth: BytesPerSecond


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
    if isinstance(ranks, float) and isinstance(ranks_per_node, float):
        up, out = _shares_of_one(kind, ranks, ranks_per_node, in_switch)
    else:
        up, out = _wire_shares(kind, ranks, ranks_per_node, in_switch)
    return {"scale_up": _plain(up * size), "scale_out": _plain(out * size)}


def _wire_shares(kind: str, ranks: Grid, ranks_per_node: Grid, in_switch: bool) -> tuple[Grid, Grid]:
    """What one rank sends on either tier, over the collective's size: the same whatever the size is."""
    local = np.minimum(ranks, ranks_per_node)
    nodes = np.ceil(np.asarray(ranks, dtype=np.float64) / np.maximum(ranks_per_node, 1))
    up = wire_factor(kind, local)
    if in_switch and kind == "all_reduce":
        up = np.where(np.asarray(local) > 1, np.minimum(up, 1.0), 0.0)
    if kind == "all_to_all":
        # every rank sends its 1/n share to each peer: the peers of its own node by one tier, the rest by the other
        total = np.maximum(ranks, 1.0)
        up, out = (local - 1.0) / total, (total - local) / total
    elif kind == "p2p":
        out = np.where(nodes > 1, 1.0, 0.0)
        up = np.where(nodes > 1, 0.0, up)
    elif kind == "broadcast":
        out = np.where(nodes > 1, 1.0 / np.maximum(local, 1.0), 0.0)
    else:
        out = wire_factor(kind, nodes) / np.maximum(local, 1.0)
    return _plain(up), _plain(out)


@lru_cache(maxsize=4096)  # a step has few groups and many exchanges
def _shares_of_one(kind: str, ranks: float, ranks_per_node: float, in_switch: bool) -> tuple[Grid, Grid]:
    return _wire_shares(kind, ranks, ranks_per_node, in_switch)


def ring_steps(kind: str, ranks: int) -> int:
    """Messages that follow one another around a ring: an all-to-all exchanges with one peer after the other, a
    broadcast passes pieces along a chain (F-10.2)."""
    return {"all_reduce": 2 * (ranks - 1), "p2p": min(ranks - 1, 1)}.get(kind, ranks - 1)


def far_hops(kind: str, ranks: Grid, ranks_per_node: Grid) -> Grid:
    """Messages between nodes that follow one another where little is sent, by the algorithm that needs fewest.

    A tree of nodes is log2 of them deep, and an all-reduce goes up and down again (F-10.2). In an all-to-all every pair
    sends at once, as kernels for few tokens do. 0 in one node.
    """
    if isinstance(ranks, float) and isinstance(ranks_per_node, float):
        return _hops_of_one(kind, ranks, ranks_per_node)
    return _far_hops(kind, ranks, ranks_per_node)


def _far_hops(kind: str, ranks: Grid, ranks_per_node: Grid) -> Grid:
    nodes = np.ceil(np.asarray(ranks, dtype=np.float64) / np.maximum(ranks_per_node, 1.0))
    depth = np.ceil(np.log2(np.maximum(nodes, 1.0)))
    if kind in ("all_to_all", "p2p"):
        return _plain(np.minimum(depth, 1.0))
    return _plain(depth * (2.0 if kind == "all_reduce" else 1.0))


@lru_cache(maxsize=4096)
def _hops_of_one(kind: str, ranks: float, ranks_per_node: float) -> Grid:
    return _far_hops(kind, ranks, ranks_per_node)


def near_turns(kind: str, ranks: Grid, ranks_per_node: Grid) -> Grid:
    """Messages inside a node that follow one another where little is sent (F-10.2).

    A ring passes n-1, and an all-reduce passes them twice or goes up and down a tree, of which each level takes two:
    one that adds and one that hands on. In an all-to-all every pair sends at once.
    """
    local = np.minimum(ranks, np.maximum(ranks_per_node, 1.0))
    if kind in ("all_to_all", "p2p"):
        return _plain(np.minimum(local - 1.0, 1.0))
    depth = np.ceil(np.log2(np.maximum(local, 1.0)))
    if kind == "broadcast":
        return _plain(depth)
    return _plain(np.minimum(2.0 * (local - 1.0), 4.0 * depth) if kind == "all_reduce" else local - 1.0)


def default_alpha(tier: Tier, fabric: str) -> Seconds:
    """Start-up cost of a message where nobody measured it (judgement, F-10.3): 3 us inside a node, between nodes 15 us
    over Ethernet and 8 us over everything else, a fabric that may be either included."""
    if tier == "scale_up":
        return 3e-6
    name = fabric.lower()
    ethernet = any(word in name for word in ("ethernet", "gbe", "roce", "efa"))
    return 15e-6 if ethernet and not any(word in name for word in ("infiniband", "hdr", "ndr", "xdr")) else 8e-6


def node_count(ranks: int, ranks_per_node: int) -> int:
    """Nodes that a group lies on."""
    return -(-ranks // ranks_per_node)


def unavailable(kind: str, algorithm: str, ranks: int, ranks_per_node: int, in_switch: bool) -> str | None:
    """Why an algorithm does not exist for a collective of such a group; None where it does."""
    if algorithm not in ALGORITHMS:
        return f"unknown algorithm {algorithm!r}: use one of {', '.join(ALGORITHMS)}"
    many = node_count(ranks, ranks_per_node) > 1
    if algorithm == "tree" and kind in ("all_to_all", "p2p"):
        return "every rank has something else for every other: there is no tree to send it down"
    if algorithm == "hierarchical" and kind == "p2p":
        return "two ranks have no hierarchy"
    if algorithm == "hierarchical" and not many:
        return f"{ranks} ranks share one node: there is a single level"
    if algorithm == "in_switch" and kind != "all_reduce":
        return "a switch that reduces saves bytes of an all-reduce only"
    if algorithm == "in_switch" and not in_switch:
        return "the switches of this fabric do not reduce"
    return None


def algorithm_costs(
    kind: str, algorithm: str, size: Grid, ranks: int, ranks_per_node: int
) -> tuple[Mapping[Tier, int], Mapping[Tier, Grid]]:
    """Messages one after another, and bytes that the busiest rank sends, by tier (F-10.2, F-10.3).

    A flat ring over several nodes counts as if every hop were the slow one, since the slowest hop sets its pace. The
    levels of a hierarchical algorithm and of an exchange with one peer after the other follow one another. A reducing
    switch pulls the array out of every rank once, and each rank sends its reduced share on: (n+1)/n of the array,
    which is what NCCL's tests document; a barrier before and after makes four messages.
    """
    local, nodes = min(ranks, ranks_per_node), node_count(ranks, ranks_per_node)
    slow: Tier = "scale_out" if nodes > 1 else "scale_up"
    if algorithm == "tree":
        depth = int(np.ceil(np.log2(max(ranks, 1))))
        both_ways = kind == "all_reduce"
        sent = 2.0 * size if both_ways else wire_factor(kind, ranks) * size
        return {slow: 2 * depth if both_ways else depth}, {slow: sent}
    if algorithm == "ring" and kind not in ("all_to_all", "p2p"):
        return {slow: ring_steps(kind, ranks)}, {slow: wire_factor(kind, ranks) * size}
    sent_by_tier = wire_bytes(kind, size, ranks, ranks_per_node, in_switch=algorithm == "in_switch")
    if kind == "p2p":
        return {slow: ring_steps(kind, ranks)}, {slow: sent_by_tier[slow]}
    if algorithm == "ring":
        return {"scale_up": local - 1, "scale_out": ranks - local}, sent_by_tier
    up = ring_steps(kind, local)
    if algorithm == "in_switch":
        up = 4 * min(local - 1, 1)
        sent_by_tier = {**sent_by_tier, "scale_up": sent_by_tier["scale_up"] * (local + 1) / local}
    if kind == "all_to_all":
        # what leaves the node is first handed to the rank that sends it on, so all of it moves inside the node
        sent_by_tier = {**sent_by_tier, "scale_up": wire_factor(kind, local) * size}
    return {"scale_up": up, "scale_out": ring_steps(kind, nodes)}, sent_by_tier


def algorithm_time(
    kind: str, algorithm: str, size: Grid, ranks: int, ranks_per_node: int, links: Mapping[Tier, LinkModel]
) -> Grid:
    """Alpha-beta time of a collective: start-up costs and bytes of every tier, added up (F-10.2, F-10.3).

    `links` must hold every tier that the algorithm uses; `unavailable` says which algorithms exist.
    """
    messages, sent = algorithm_costs(kind, algorithm, size, ranks, ranks_per_node)
    total: Grid = 0.0
    for tier, steps in messages.items():
        if not steps:
            continue
        link = links[tier]
        if algorithm == "in_switch" and tier == "scale_up":
            link = LinkModel(link.alpha, link.bandwidth * IN_SWITCH_SHARE)
        if algorithm in ("ring", "tree") and kind not in ("all_to_all", "p2p") and tier == "scale_out":
            # some hops stay inside a node; whichever tier is slower sets the pace
            near = links.get("scale_up", link)
            link = LinkModel(max(link.alpha, near.alpha), min(link.bandwidth, near.bandwidth))
        total = total + steps * link.alpha + sent[tier] / link.bandwidth
    return total


def fastest_algorithm(
    kind: str, size: Bytes, ranks: int, ranks_per_node: int, links: Mapping[Tier, LinkModel], in_switch: bool
) -> tuple[Algorithm, Seconds]:
    """The algorithm that the alpha-beta model finds fastest for one size, and its time."""
    times = {
        name: float(algorithm_time(kind, name, size, ranks, ranks_per_node, links))
        for name in ALGORITHMS
        if unavailable(kind, name, ranks, ranks_per_node, in_switch) is None
    }
    best = min(times, key=times.__getitem__)
    return best, times[best]


def bus_bandwidth(kind: str, size: Grid, ranks: int, time: Grid) -> Grid:
    """Bytes that each rank of a ring would send over the time taken: comparable with a link's rate (F-10.1)."""
    return wire_factor(kind, ranks) * size / time


def _plain(value: Grid) -> Grid:
    """A float where the formula was asked about one point: NumPy scalars do not leave this module."""
    return float(value) if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
