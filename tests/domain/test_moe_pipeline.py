"""The expert layers by hand: wire bytes, loads, capacity, tiles, stages and walls of DeepSeek-V3."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from app.domain.blocks.mlp import expected_destinations
from app.domain.calibration import UNCALIBRATED
from app.domain.errors import InvalidInput
from app.domain.layout import layout_of
from app.domain.lower_bound import ceilings, lower_bound
from app.domain.moe_pipeline import (
    STAGES,
    Pipeline,
    copy_intensity,
    first_experts,
    link_intensities,
    pipeline,
    walls,
)
from app.domain.routing import (
    busiest_expert,
    distinct_experts,
    dropped_share,
    expert_capacity,
    expert_shares,
    load_quantile,
    rank_skew,
    replicated_skew,
    tiled_rows,
)
from app.domain.step import cost_table
from app.domain.workload import Dispatch, Dtypes, Parallel, Routing, Workload
from tests.domain.architectures import DEEPSEEK_V3, H100, LLAMA3_8B

FP8 = Dtypes(weights="fp8", activations="fp8")
RANDOM = Routing("random")


def layers(dispatch: Dispatch = Dispatch(), *, tokens: int = 4096, **changes: object) -> Pipeline:  # noqa: B008
    """One prefill of 64 ranks that share the experts, one token sequence of `tokens` each."""
    asked = Workload(phase="prefill", seq_len=tokens, dtypes=FP8, parallel=Parallel(dp=64, ep=64), dispatch=dispatch)
    workload = replace(asked, **changes)  # type: ignore[arg-type]
    bound = lower_bound(cost_table(DEEPSEEK_V3, workload), ceilings(H100), launch_mode=workload.launch_mode)
    return pipeline(bound, DEEPSEEK_V3, workload, layout_of(DEEPSEEK_V3, workload, 8), UNCALIBRATED)


def sent(found: Pipeline, stage: str) -> float:
    """Bytes a rank sends in one layer's exchange."""
    cost = next(cost for cost in found.stages if cost.stage == stage)
    return sum(cost.net.values()) / found.layers


def test_every_copy_on_the_wire() -> None:
    """EX-29: 4096 tokens, 8 copies of 7168: 238.4 MB remote of 242.2 in fp8 with scales, 462.4 of 469.8 in bf16."""
    found = layers(Dispatch(scheme="all_to_all", dtype="fp8"))
    assert sent(found, "dispatch") == pytest.approx(242_221_056 * 63 / 64, rel=1e-9)
    assert sent(found, "combine") == pytest.approx(469_762_048 * 63 / 64, rel=1e-9)


@pytest.mark.parametrize(("places", "distinct"), [(2, 1.99302), (4, 3.61421), (8, 5.29465), (32, 7.26680)])
def test_distinct_places_of_eight_copies(places: int, distinct: float) -> None:
    """EX-29, of 256 experts."""
    assert expected_destinations(places, 256, 8) == pytest.approx(distinct, rel=1e-4)


def test_two_levels_send_a_token_once_to_each_node() -> None:
    """Eight nodes: 5.29465 distinct ones, 7/8 of them remote, 4096 tokens of 14,336 bytes."""
    combine = next(cost for cost in layers().stages if cost.stage == "combine")
    assert combine.net["scale_out"] / 58 == pytest.approx(5.29465 * 7 / 8 * 4096 * 14_336, rel=1e-4)


def test_a_node_limit_caps_the_slow_tier() -> None:
    """Four of eight nodes: 4 x 7/8 copies leave the node instead of 5.29465 x 7/8."""
    limited = next(cost for cost in layers(Dispatch(node_limit=4)).stages if cost.stage == "combine")
    assert limited.net["scale_out"] / 58 == pytest.approx(4 * 7 / 8 * 4096 * 14_336, rel=1e-12)
    wide = next(cost for cost in layers(Dispatch(node_limit=8)).stages if cost.stage == "combine")
    assert wide.net == next(cost for cost in layers().stages if cost.stage == "combine").net


def test_schemes_send_less_the_more_they_know() -> None:
    every, ranks, nodes = (
        next(c for c in layers(Dispatch(scheme=scheme)).stages if c.stage == "dispatch")  # type: ignore[arg-type]
        for scheme in ("all_to_all", "deduplicated", "hierarchical")
    )
    assert every.net["scale_out"] > ranks.net["scale_out"] > nodes.net["scale_out"]
    assert sum(ranks.net.values()) == pytest.approx(sum(nodes.net.values()))  # each rank gets it once either way


@pytest.mark.parametrize("ep", [2, 4, 8, 16, 32])
def test_an_all_gather_pays_from_as_many_experts_a_token_as_ranks(ep: int) -> None:
    """F-9.11: (ep - 1) tokens against k (1 - 1/ep) of them, so k = ep is where they meet; here k is 8, in one node."""

    def exchanged(scheme: str) -> float:
        workload = Workload(
            phase="prefill",
            seq_len=64,
            parallel=Parallel(dp=ep, ep=ep),
            dispatch=Dispatch(scheme=scheme),  # type: ignore[arg-type]
        )
        table = cost_table(DEEPSEEK_V3, workload, ranks_per_node=64)
        return sum(float(op.net["scale_up"]) for op in table.ops if op.name in ("dispatch", "combine"))

    gathered, sent_each = exchanged("all_gather"), exchanged("all_to_all")
    assert gathered == pytest.approx(2 * (ep - 1) * 64 * 7168 * 2)
    assert (gathered <= sent_each * (1 + 1e-12)) == (ep <= 8)


def test_intensity_against_each_link() -> None:
    """EX-30: 3072 FLOP for a byte of a bf16 copy; 989.4e12 / 450e9 = 2199 near, 989.4e12 / 50e9 = 19,788 far."""
    assert copy_intensity(first_experts(DEEPSEEK_V3), 2.0) == 3072
    found = layers(Dispatch(scheme="all_to_all"), dtypes=Dtypes())
    near, far = link_intensities(found, ceilings(H100), "bf16")
    assert (near.balance, far.balance) == (pytest.approx(989.4e12 / 450e9), pytest.approx(989.4e12 / 50e9))
    assert near.intensity is not None
    assert far.intensity is not None
    # 7 of 64 places are near and 56 far, so the whole intensity is 3072 x 64 / 63
    assert near.intensity * near.net == pytest.approx(far.intensity * far.net)
    assert near.intensity * near.net / (near.net + far.net) == pytest.approx(3072 * 64 / 63)


@pytest.mark.parametrize(("tokens", "touched"), [(1, 8.0), (8, 57.42), (32, 163.31), (64, 222.44), (256, 255.92)])
def test_experts_touched(tokens: int, touched: float) -> None:
    """EX-31."""
    assert distinct_experts(RANDOM, tokens, 256, 8) == pytest.approx(touched, rel=1e-3)


@pytest.mark.parametrize(("tokens", "most"), [(64, 6.992), (256, 17.070), (4096, 161.139)])
def test_busiest_expert_of_random_routing(tokens: int, most: float) -> None:
    """EX-32: 8 copies a token over 256 experts."""
    assert busiest_expert(RANDOM, tokens * 8, 256) == pytest.approx(most, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "tile", "efficiency"), [(64, 64, 0.036), (4096, 128, 0.674), (4096, 64, 0.806), (512, 128, 0.125)]
)
def test_tiles_of_grouped_products(tokens: int, tile: int, efficiency: float) -> None:
    """EX-33, simulated there."""
    assert tokens * 8 / tiled_rows(RANDOM, tokens * 8, 256, tile) == pytest.approx(efficiency, rel=0.03)


def test_capacity_and_padding() -> None:
    """EX-34: 4096 tokens, 2 of 8 experts, factor 1.25: 1280 rows each, a fifth of 10,240 is padding, none dropped."""
    capacity = expert_capacity(8192.0, 8, 1.25)
    assert capacity == 1280
    assert 1 - 8192 / (capacity * 8) == pytest.approx(0.2)
    assert dropped_share(Routing(), 8192.0, 8, capacity) == 0


def test_what_a_histogram_drops() -> None:
    """Loads 6, 2, 0, 0 of 8 and a capacity of 3: three of eight are dropped."""
    routing = Routing("histogram", tokens_per_expert=(6.0, 2.0, 0.0, 0.0))
    assert dropped_share(routing, 8.0, 4, 3.0) == pytest.approx(3 / 8)
    assert load_quantile(routing, 8.0, 4, 0.5) == 0
    assert load_quantile(routing, 8.0, 4, 0.99) == 6
    assert tiled_rows(routing, 8.0, 4, 4) == 8 + 4


def test_what_random_routing_drops() -> None:
    """Poisson load of mean 1 above a capacity of 1: E max(X - 1, 0) = exp(-1)."""
    assert dropped_share(RANDOM, 4.0, 4, 1.0) == pytest.approx(math.exp(-1))


def test_capacity_pads_products_and_drops_copies() -> None:
    found = layers(Dispatch(capacity_factor=1.25))
    plain = layers()
    padded, bare = (next(c for c in each.stages if c.stage == "gemm1") for each in (found, plain))
    assert padded.bound.total("flop") == pytest.approx(bare.bound.total("flop"))
    assert padded.bound.total("executed") == pytest.approx(1.25 * bare.bound.total("flop"))
    assert found.load.padding == pytest.approx(0.2)
    narrow = layers(Dispatch(capacity_factor=0.5))
    assert narrow.load.dropped == pytest.approx(0.5)
    assert sent(narrow, "dispatch") == pytest.approx(0.5 * sent(plain, "dispatch"))


def test_no_expert_gets_a_token_twice() -> None:
    """Zipf with a large exponent: the first experts get every token once, and shares still add up to one."""
    shares = expert_shares(Routing("zipf", 3.0), 256, 8)
    assert shares is not None
    assert shares.max() == pytest.approx(1 / 8)
    assert shares.sum() == pytest.approx(1)
    assert np.all(np.diff(shares) <= 1e-15)


def test_replicas_spread_a_hot_expert() -> None:
    """Shares 1/2, 1/6, 1/6, 1/6 on 4 ranks: twice the mean; four copies more share the first one out."""
    shares = [1 / 2, 1 / 6, 1 / 6, 1 / 6]
    assert replicated_skew(shares, 4, 0) == pytest.approx(1.0)
    assert replicated_skew(shares, 4, 4) == pytest.approx(0.0, abs=0.2)
    routing = Routing("histogram", tokens_per_expert=(3.0, 1.0, 1.0, 1.0))
    assert rank_skew(routing, 6.0, 4, 4) == pytest.approx(1.0)
    assert rank_skew(routing, 6.0, 4, 4, replicas=4) < 0.2


def test_replicas_must_divide_over_the_ranks() -> None:
    with pytest.raises(InvalidInput) as refused:
        layers(Dispatch(replicas=3))
    assert refused.value.loc == ("workload", "dispatch", "replicas")


def test_stages_hold_every_row_of_the_expert_layers() -> None:
    workload = Workload(phase="train", seq_len=256, dtypes=FP8, parallel=Parallel(dp=64, ep=64), recompute="full")
    table = cost_table(DEEPSEEK_V3, workload)
    bound = lower_bound(table, ceilings(H100))
    found = pipeline(bound, DEEPSEEK_V3, workload, layout_of(DEEPSEEK_V3, workload, 8), UNCALIBRATED)
    assert [cost.stage for cost in found.stages] == [s for s in STAGES if s != "other"]
    for column in ("flop", "executed", "weights", "launches"):
        rows = sum(
            float(table[column][i] * table["count"][i])
            for i, op in enumerate(table.ops)
            if op.stage == "moe" and op.base != "mlp norm"
        )
        assert sum(cost.bound.total(column) for cost in found.stages) == pytest.approx(rows)
    gemm = next(cost for cost in found.stages if cost.stage == "gemm1")
    assert set(gemm.by_direction) == {"forward", "recompute", "backward"}
    assert sum(gemm.by_direction.values()) == pytest.approx(gemm.time)
    assert found.layers == 58


def test_overlap_hides_no_more_than_its_share_of_the_window() -> None:
    found = layers()
    comm = sum(cost.time for cost in found.stages if cost.stage in ("dispatch", "combine"))
    window = sum(cost.time for cost in found.stages if cost.stage in ("gemm1", "activation", "gemm2", "shared"))
    assert found.levels["L0"] == pytest.approx(found.serial)
    for level, share in (("L1", 0.3), ("L2", 0.7), ("L3", 0.9)):
        assert found.serial - found.levels[level] == pytest.approx(min(comm, share * window))
    assert found.level == "L0"
    assert found.exposed_communication == pytest.approx(comm)
    chunked = layers(overlap="chunk")
    assert sum(cost.exposed + cost.imbalance for cost in chunked.stages) == pytest.approx(chunked.levels["L2"])


def test_the_timeline_ends_where_its_level_says() -> None:
    found = layers()
    for level, bars in found.timelines.items():
        assert max(bar.end for bar in bars) * 58 == pytest.approx(found.levels[level])
        for lane in ("compute", "link"):
            own = sorted((bar.start, bar.end) for bar in bars if bar.lane == lane)
            assert all(after[0] >= before[1] - 1e-15 for before, after in pairwise(own))


def test_the_walls() -> None:
    found = layers()
    assert walls(found, 90e9, 80e9).binding == "memory"
    near = walls(found, 1.0, 80e9)
    assert near.binding == ("communication" if near.communication > near.compute else "compute")
    alone = layers(parallel=Parallel())
    assert walls(alone, 1.0, None).communication == 0
    assert walls(alone, 1.0, None).binding == "compute"


def test_a_dense_model_has_no_expert_layers() -> None:
    workload = Workload()
    bound = lower_bound(cost_table(LLAMA3_8B, workload), ceilings(H100))
    with pytest.raises(InvalidInput, match="no experts"):
        pipeline(bound, LLAMA3_8B, workload, layout_of(LLAMA3_8B, workload, 8), UNCALIBRATED)
