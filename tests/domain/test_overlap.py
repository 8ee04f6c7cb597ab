"""Timelines of chunks and pipelines: numbers worked by hand, and the closed forms that simulations must come out at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.domain.errors import InvalidInput
from app.domain.overlap import (
    chunk_counts,
    chunked_timeline,
    dualpipe_bubble,
    exposed_communication,
    exposed_forecast,
    pipeline_timeline,
    split_rows,
    tokens_that_hide_a_gather,
    tokens_that_hide_a_ring_hop,
)
from app.domain.step import bubble_share
from app.domain.workload import Parallel, Workload


def test_exposed_communication_is_what_compute_and_waits_leave() -> None:
    assert exposed_communication(0.100, 0.080, 0.005) == pytest.approx(0.015)
    assert exposed_communication(0.100, 0.100) == 0.0
    with pytest.raises(InvalidInput, match="same batch"):
        exposed_communication(0.100, 0.095, 0.010)


@pytest.mark.parametrize(("level", "rest"), [("L0", 10.0), ("L1", 7.0), ("L2", 3.0), ("L3", 1.0)])
def test_exposed_forecast_by_level(level: str, rest: float) -> None:
    assert exposed_forecast(10.0, 10.0, level) == pytest.approx(rest)
    assert exposed_forecast(1.0, 100.0, "L1") == 0.0


def test_tokens_that_hide_a_parameter_gather() -> None:
    """bf16, half of 989.4 TFLOP/s, 50 GB/s."""
    assert tokens_that_hide_a_gather(2.0, 0.5 * 989.4e12, 50e9) == pytest.approx(9894)


@pytest.mark.parametrize(
    ("bandwidth", "heads", "kv_heads", "tokens"), [(50e9, 64, 64, 19_788), (50e9, 64, 8, 2473.5), (450e9, 64, 64, 2198)]
)
def test_tokens_that_hide_a_ring_hop(bandwidth: float, heads: int, kv_heads: int, tokens: float) -> None:
    """bf16, heads of 128: a token's keys and values against the four FLOP an element of a pair, on 989.4 TFLOP/s."""
    sent, flop = 2 * kv_heads * 128 * 2.0, 4 * heads * 128.0
    assert tokens_that_hide_a_ring_hop(sent, flop, 989.4e12, bandwidth) == pytest.approx(tokens, rel=1e-3)


# ---- chunks ----


def test_one_chunk_is_one_after_the_other() -> None:
    line = chunked_timeline([6.0], [4.0], launch=0.5)
    assert line.total == pytest.approx(11.0)
    assert line.exposed(6.0) == pytest.approx(5.0)


def test_two_halves_hide_the_first_exchange() -> None:
    """Products 0-3 and 3-6; exchanges 3-5 and 6-8."""
    line = chunked_timeline([3.0, 3.0], [2.0, 2.0])
    assert line.total == pytest.approx(8.0)
    starts = [(s.what, s.start, s.end) for s in line.segments]
    assert starts == [
        ("compute", 0.0, 3.0),
        ("communication", 3.0, 5.0),
        ("compute", 3.0, 6.0),
        ("communication", 6.0, 8.0),
    ]


def test_a_longer_exchange_sets_the_pace() -> None:
    """First product 0-1, then four exchanges of 2 without a gap."""
    assert chunked_timeline([1.0] * 4, [2.0] * 4).total == pytest.approx(9.0)
    assert chunked_timeline([1.0] * 4, [2.0] * 4, communication_first=True).total == pytest.approx(9.0)
    assert chunked_timeline([2.0] * 4, [1.0] * 4, communication_first=True).total == pytest.approx(9.0)


def test_nothing_beside_anything_adds_up() -> None:
    assert chunked_timeline([1.0] * 4, [2.0] * 4, ahead=0).total == pytest.approx(12.0)


def test_a_prefetch_depth_of_one_hides_what_is_shorter_than_the_compute() -> None:
    """Gathers of 1 before products of 3: only the first gather shows; without prefetch all four do."""
    gathered = [chunked_timeline([3.0] * 4, [1.0] * 4, communication_first=True, ahead=n).total for n in (0, 1, 2)]
    assert gathered == pytest.approx([16.0, 13.0, 13.0])


def test_compute_is_slower_while_something_is_sent() -> None:
    """Product 0-3; beside the exchange (3-5) the second product does 1 of its 3, then 2 more: 3-7; exchange 7-9."""
    assert chunked_timeline([3.0, 3.0], [2.0, 2.0], contention=0.5).total == pytest.approx(9.0)


def test_launches_make_many_chunks_lose_and_few_chunks_expose() -> None:
    def total(chunks: int) -> float:
        return chunked_timeline([64.0 / chunks] * chunks, [32.0 / chunks] * chunks, launch=1.0).total

    times = {chunks: total(chunks) for chunks in chunk_counts(64)}
    # the products and a launch each, then the last exchange with its launch: 64 + c + 1 + 32 / c
    for chunks in (1, 2, 4, 8, 16):
        assert times[chunks] == pytest.approx(65.0 + chunks + 32.0 / chunks)
    best = min(times, key=times.__getitem__)
    assert best == 6
    assert times[1] > times[best] < times[64]


def test_rows_are_split_evenly() -> None:
    assert split_rows(10, 4) == (3, 3, 2, 2)
    with pytest.raises(InvalidInput, match="from 1 to the 3 rows"):
        split_rows(3, 4)


# ---- pipelines ----


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 2.0), (3.0, 4.0)])
def test_simulated_bubbles_are_the_closed_forms(stages: int, groups: int, forward: float, backward: float) -> None:
    batches, whole = stages * groups, forward + backward
    for schedule in ("gpipe", "1f1b"):
        line = pipeline_timeline(schedule, stages, batches, forward=forward, backward=backward)
        assert line.bubble == pytest.approx((stages - 1) * whole), schedule
    for chunks in (2, 4):
        line = pipeline_timeline("interleaved", stages, batches, forward=forward, backward=backward, chunks=chunks)
        assert line.bubble == pytest.approx((stages - 1) * whole / chunks)
    equal = pipeline_timeline("zero_bubble", stages, batches, forward=1.0, backward=2.0, weight_gradient=1.0)
    assert equal.bubble == pytest.approx((stages - 1) * 1.0)  # F + B - 2 W


@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (4, 10), (8, 20), (16, 32)])
def test_a_pipeline_from_both_ends_is_its_closed_form(stages: int, batches: int) -> None:
    """DualPipe's own table: bubble (p/2 - 1)(F&B + B - 3W) and p + 1 micro-batches held, with W = F and B = 2 F."""
    line = pipeline_timeline("dualpipe", stages, batches, forward=1.0, backward=2.0)
    assert line.bubble == pytest.approx(dualpipe_bubble(stages, 1.0, 2.0, 1.0)) == pytest.approx(stages - 2)
    assert line.in_flight == (stages + 1,) * stages
    assert line.parameter_copies == 2
    for device in range(stages):
        mine = sorted((s.start, s.end, s.what, s.index) for s in line.segments if s.lane == device)
        assert sum(end - start for start, end, _, _ in mine) == pytest.approx(line.work)
        assert all(one[1] <= two[0] + 1e-9 for one, two in pairwise(mine))
        assert sorted(index for _, _, what, index in mine if what == "F") == list(range(batches))
        # a backward pass follows its forward pass, weight gradients follow that
        first = {(what, index): start for start, _, what, index in reversed(mine)}
        assert all(first["B", i] > first["F", i] for i in range(batches))
        assert all(first["W", i] > first["B", i] for i in range(batches) if ("W", i) in first)
    # a pass waits for the neighbour that hands it over, with the time in between
    late = pipeline_timeline("dualpipe", stages, batches, forward=1.0, backward=2.0, hand_over=0.1)
    ends = {(s.what, s.index, s.lane): s.end for s in late.segments}
    for s in late.segments:
        before = s.lane - 1 if s.index < batches // 2 else s.lane + 1
        if s.what == "F" and 0 <= before < stages:
            assert s.start >= ends["F", s.index, before] + 0.1 - 1e-9
    for wrong in ((3, 12), (4, 9), (4, 6)):
        with pytest.raises(InvalidInput, match="DualPipe"):
            pipeline_timeline("dualpipe", *wrong, forward=1.0, backward=2.0)


@pytest.mark.parametrize(
    ("schedule", "chunks", "share"),
    [("1f1b", 1, 0.179487), ("interleaved", 4, 0.051852), ("zero_bubble", 1, 0.067961)],
)
def test_eight_stages_and_thirty_two_micro_batches(schedule: str, chunks: int, share: float) -> None:
    line = pipeline_timeline(schedule, 8, 32, forward=1.0, backward=2.0, chunks=chunks)
    assert line.bubble_share == pytest.approx(share, abs=1e-6)
    named = "1f1b" if schedule == "interleaved" else schedule
    workload = Workload(
        phase="train",
        parallel=Parallel(pp=8, micro_batches=32, virtual_stages=chunks, schedule=named),  # type: ignore[arg-type]
    )
    assert line.bubble_of_work == pytest.approx(bubble_share(workload))


def test_no_stage_does_two_things_at_once_and_no_pass_starts_before_its_input() -> None:
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 3), ("zero_bubble", 1)):
        line = pipeline_timeline(schedule, 4, 8, forward=1.0, backward=2.0, chunks=chunks, hand_over=0.1)
        ends = {(s.what, s.index, s.part * 4 + s.lane): s.end for s in line.segments}
        for stage in range(4):
            mine = sorted((s for s in line.segments if s.lane == stage), key=lambda s: s.start)
            assert all(a.end <= b.start + 1e-9 for a, b in pairwise(mine)), schedule
        for s in line.segments:
            part = s.part * 4 + s.lane
            if s.what == "F" and part:
                assert s.start >= ends["F", s.index, part - 1] + 0.1 - 1e-9
            if s.what == "B" and part < 4 * chunks - 1:
                assert s.start >= ends["B", s.index, part + 1] + 0.1 - 1e-9


def test_what_is_held_in_flight() -> None:
    assert pipeline_timeline("gpipe", 4, 16, forward=1.0, backward=2.0).in_flight == (16, 16, 16, 16)
    assert pipeline_timeline("1f1b", 4, 16, forward=1.0, backward=2.0).in_flight == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("schedule", "batches", "chunks", "field"),
    [
        ("interleaved", 6, 2, "micro_batches"),
        ("interleaved", 8, 1, "virtual_stages"),
        ("1f1b", 8, 2, "virtual_stages"),
        ("dualpipe", 6, 1, "micro_batches"),
        ("chimera", 8, 1, "schedule"),
        ("1f1b", 20_000, 1, "micro_batches"),
    ],
)
def test_impossible_pipelines_are_refused(schedule: str, batches: int, chunks: int, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        pipeline_timeline(schedule, 4, batches, forward=1.0, backward=2.0, chunks=chunks)
    assert refused.value.loc == (field,)
