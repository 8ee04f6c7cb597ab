"""Alpha-beta times of collectives by algorithm: worked examples, limits, and that no algorithm beats the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from app.catalog.calibration import load_calibration
from app.catalog.loader import load_catalog
from app.domain.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    LinkModel,
    algorithm_costs,
    algorithm_time,
    bus_bandwidth,
    default_alpha,
    far_hops,
    fastest_algorithm,
    near_turns,
    unavailable,
    wire_bytes,
)
from app.domain.cost import Tier
from app.domain.expected import expected_time
from app.domain.lower_bound import ceilings, lower_bound
from app.domain.single_op import collective_table

NEAR, FAR = LinkModel(3e-6, 400e9), LinkModel(8e-6, 50e9)
LINKS: dict[Tier, LinkModel] = {"scale_up": NEAR, "scale_out": FAR}
FREE: dict[Tier, LinkModel] = {"scale_up": LinkModel(0.0, 400e9), "scale_out": LinkModel(0.0, 50e9)}


@pytest.mark.parametrize(
    ("size", "ring", "tree"),
    [
        (2**14, 42.072e-6, 18.082e-6),
        (2**20, 46.6e-6, 23.2e-6),
        (2**26, 335.6e-6, 353.5e-6),
        (2**30, 4739.62e-6, 5387e-6),
    ],
)
def test_eight_ranks_in_a_node(size: float, ring: float, tree: float) -> None:
    assert algorithm_time("all_reduce", "ring", size, 8, 8, LINKS) == pytest.approx(ring, rel=2e-3)
    assert algorithm_time("all_reduce", "tree", size, 8, 8, LINKS) == pytest.approx(tree, rel=2e-3)
    assert fastest_algorithm("all_reduce", size, 8, 8, LINKS, False)[0] == ("tree" if tree < ring else "ring")


def test_one_gigabyte_over_four_nodes() -> None:
    assert algorithm_time("all_reduce", "hierarchical", 1e9, 32, 8, FREE) == pytest.approx(8.125e-3)
    assert algorithm_time("all_reduce", "ring", 1e9, 32, 8, FREE) == pytest.approx(38.75e-3)


def test_eighty_layers_of_small_all_reduces() -> None:
    """Two of 10 us in each of 80 layers are 1.6 ms a token, whatever the bandwidth."""
    ten: dict[Tier, LinkModel] = {"scale_up": LinkModel(10e-6 / 6, 1e30)}
    assert 2 * 80 * float(algorithm_time("all_reduce", "tree", 16384.0, 8, 8, ten)) == pytest.approx(1.6e-3)


def test_messages_by_hand() -> None:
    """32 ranks on 4 nodes of 8."""
    assert algorithm_costs("all_reduce", "hierarchical", 1.0, 32, 8)[0] == {"scale_up": 14, "scale_out": 6}
    assert algorithm_costs("all_to_all", "ring", 1.0, 32, 8)[0] == {"scale_up": 7, "scale_out": 24}
    messages, sent = algorithm_costs("all_to_all", "hierarchical", 1.0, 32, 8)
    assert messages == {"scale_up": 7, "scale_out": 3}
    assert sent == {"scale_up": 7 / 8, "scale_out": 24 / 32}
    assert algorithm_costs("broadcast", "tree", 1.0, 8, 8) == ({"scale_up": 3}, {"scale_up": 1.0})
    messages, sent = algorithm_costs("all_reduce", "in_switch", 1.0, 8, 8)
    assert messages["scale_up"] == 4
    assert sent["scale_up"] == pytest.approx(9 / 8)


def test_bus_bandwidth_of_a_reported_run() -> None:
    """8 H200 take 62.34 ms for an all-reduce of 16 GiB: 482.3 GB/s bus bandwidth."""
    assert bus_bandwidth("all_reduce", 2.0**34, 8, 62.3414e-3) == pytest.approx(482.26e9, rel=1e-4)
    assert bus_bandwidth("all_gather", 1e9, 8, 1e-3) == pytest.approx(875e9)


def test_what_does_not_exist_says_why() -> None:
    assert "single level" in (unavailable("all_reduce", "hierarchical", 8, 8, False) or "")
    assert "no tree" in (unavailable("all_to_all", "tree", 8, 8, False) or "")
    assert "do not reduce" in (unavailable("all_reduce", "in_switch", 8, 8, False) or "")
    assert "all-reduce only" in (unavailable("all_gather", "in_switch", 8, 8, True) or "")
    assert unavailable("all_reduce", "in_switch", 8, 8, True) is None


def test_a_reducing_switch_is_fed_below_the_rate_of_a_ring() -> None:
    # eight H200, 1 GiB: 4 x 3 us + 9/8 x 1.0737 GB / (0.8 x 367 GB/s) = 4.126 ms, measured 4.05 (464 GB/s bus)
    links: dict[Tier, LinkModel] = {"scale_up": LinkModel(3e-6, 367e9)}
    assert algorithm_time("all_reduce", "in_switch", 2.0**30, 8, 8, links) == pytest.approx(4.126e-3, rel=1e-3)


def test_default_alphas() -> None:
    assert default_alpha("scale_up", "NVLink 4") == 3e-6
    assert default_alpha("scale_out", "ConnectX-7 NDR") == 8e-6
    assert default_alpha("scale_out", "400GbE RoCE") == 15e-6
    assert default_alpha("scale_out", "ConnectX-7 NDR/RoCE") == 8e-6


@pytest.mark.parametrize(
    ("kind", "ranks", "hops"),
    [
        ("all_reduce", 8, 0),  # one node
        ("all_reduce", 9, 2),  # two nodes: up and down
        ("all_reduce", 64, 6),
        ("all_gather", 64, 3),
        ("all_to_all", 64, 1),
        ("p2p", 16, 1),
    ],
)
def test_hops_between_nodes(kind: str, ranks: int, hops: float) -> None:
    assert far_hops(kind, ranks, 8) == hops
    assert far_hops(kind, np.array([1.0, ranks]), 8).tolist() == [0.0, hops]  # type: ignore[union-attr]


def test_a_small_collective_across_nodes_waits_for_its_messages() -> None:
    """The forecast of 8 KiB grows by the start-up cost of each hop; in one node it holds only the fitted latency."""
    hardware = load_catalog().hardware["nvidia-h100-sxm"]
    times = {
        ranks: expected_time(
            lower_bound(collective_table("all_reduce", 8192, ranks, 8, False), ceilings(hardware)), load_calibration()
        ).time
        for ranks in (8, 16, 64)
    }
    assert times[16] - times[8] == pytest.approx(2 * 8e-6, rel=0.05)
    assert times[64] - times[8] == pytest.approx(6 * 8e-6, rel=0.05)


CASES = [
    (kind, algorithm, ranks)
    for kind, algorithm, ranks in itertools.product(COLLECTIVES, ALGORITHMS, (2, 3, 8, 9, 16, 64, 1024))
    if unavailable(kind, algorithm, ranks, 8, True) is None
]


@pytest.mark.parametrize(("kind", "algorithm", "ranks"), CASES)
def test_no_algorithm_beats_the_bound_and_none_gets_faster_with_size(kind: str, algorithm: str, ranks: int) -> None:
    sizes = np.logspace(0, 12, 25)
    for near, far in ((400e9, 50e9), (50e9, 400e9)):
        links: dict[Tier, LinkModel] = {"scale_up": LinkModel(3e-6, near), "scale_out": LinkModel(8e-6, far)}
        times = np.asarray(algorithm_time(kind, algorithm, sizes, ranks, 8, links))
        sent = wire_bytes(kind, sizes, ranks, 8, in_switch=algorithm == "in_switch")
        bound = np.maximum(np.asarray(sent["scale_up"]) / near, np.asarray(sent["scale_out"]) / far)
        assert np.all(times >= bound * (1 - 1e-12))
        assert np.all(np.diff(times) >= 0)


@pytest.mark.parametrize(
    ("kind", "ranks", "turns"),
    [
        ("all_reduce", 2, 2.0),  # a ring of two: one message to add, one to hand on
        ("all_reduce", 4, 6.0),  # a ring's 2 x 3, fewer than a tree's 2 x 2 levels of two
        ("all_reduce", 8, 12.0),  # a tree's 2 x 3 levels of two, fewer than a ring's 2 x 7
        ("all_gather", 8, 7.0),
        ("reduce_scatter", 64, 7.0),  # only the eight of a node
        ("all_to_all", 8, 1.0),
        ("broadcast", 8, 3.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_messages_inside_a_node_that_follow_one_another(kind: str, ranks: int, turns: float) -> None:
    assert near_turns(kind, ranks, 8) == turns
