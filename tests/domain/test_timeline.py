"""Timelines by hand, and what must hold for any of them: parts add up, and streams have no order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.timeline import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    UNKNOWN,
    Activities,
    Split,
    Window,
    merged,
    shares,
    timeline,
    union_time,
)

Row = tuple[int, int, int, int, int, int, int]
"""start, end, launched, kind, device, stream, name; nanoseconds."""


def activities(rows: Sequence[Row]) -> Activities:
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    return Activities(
        start=columns[0],
        end=columns[1],
        launched=columns[2],
        kind=columns[3].astype(np.int8),
        device=columns[4].astype(np.int32),
        stream=columns[5],
        name=columns[6].astype(np.int32),
    )


def parts(split: Split) -> dict[str, float]:
    """Microseconds, rounded to what a nanosecond is."""
    names = (
        "span",
        "computing",
        "overlapped",
        "exposed",
        "copying",
        "launch_gap",
        "other_gap",
        "unknown_gap",
        "host_late",
    )
    return {name: round(getattr(split, name) * 1e6, 3) for name in names if getattr(split, name)}


BY_HAND = activities(
    [
        # 0..10 computes, 6..20 communicates on another stream: 4 overlapped, then 10 exposed
        (0, 10_000, -5_000, COMPUTE, 0, 7, 0),
        (6_000, 20_000, 1_000, COMMUNICATION, 0, 17, 1),
        # launched at 14, waits for the communication: of the exposed time 10..14 the host was late
        (20_000, 25_000, 14_000, COMPUTE, 0, 7, 2),
        # idle 25..30, launched at 26 after the device had run dry
        (30_000, 34_000, 26_000, COMPUTE, 0, 7, 0),
        # a copy of unknown launch after 2 idle, beside it nothing
        (36_000, 37_000, UNKNOWN, COPY, 0, 7, 3),
        # idle 37..40, launched long before
        (40_000, 44_000, 30_000, COMPUTE, 0, 7, 0),
    ]
)


def test_a_timeline_worked_by_hand() -> None:
    found = timeline(BY_HAND, [Window("first", 0, 25_000), Window("rest", 25_000, 50_000)])
    assert parts(found.whole) == {
        "span": 44,
        "computing": 6 + 5 + 4 + 4,
        "overlapped": 4,
        "exposed": 10,
        "copying": 1,
        "launch_gap": 5,
        "other_gap": 3,
        "unknown_gap": 2,
        "host_late": 4,
    }
    assert found.whole.busy == pytest.approx(34e-6)
    assert found.whole.communication == pytest.approx(14e-6)
    assert shares(found.whole)["launch_share"] == pytest.approx(5 / 44)
    first, rest = found.steps
    assert parts(first) == {"span": 25, "computing": 11, "overlapped": 4, "exposed": 10, "host_late": 4}
    # a window may reach beyond what ran: 44..50 is idle, and nothing tells why
    assert parts(rest) == {
        "span": 25,
        "computing": 8,
        "copying": 1,
        "launch_gap": 5,
        "other_gap": 3,
        "unknown_gap": 2 + 6,
    }
    # the communication holds the device only where nothing computes
    assert found.on_path == pytest.approx(np.array([10, 10, 5, 4, 1, 4]) * 1e-6)
    assert found.gap_before == pytest.approx(np.array([0, 0, 0, 5, 2, 3]) * 1e-6)
    (device,) = found.devices
    assert (device.gaps, device.launch_gaps) == (3, 1)
    assert device.longest_gap == pytest.approx(5e-6)


def test_kernels_side_by_side_share_the_device() -> None:
    found = timeline(activities([(0, 10, 0, COMPUTE, 0, 1, 0), (5, 15, 0, COMPUTE, 0, 2, 1)]))
    assert found.whole.busy == pytest.approx(15e-9)
    assert found.on_path == pytest.approx(np.array([7.5e-9, 7.5e-9]))


def test_devices_are_split_apart_and_then_added() -> None:
    rows = [(0, 10, 0, COMPUTE, 0, 1, 0), (20, 30, 0, COMMUNICATION, 0, 1, 1), (0, 40, 0, COMPUTE, 1, 1, 0)]
    found = timeline(activities(rows))
    assert [device.device for device in found.devices] == [0, 1]
    # the communication of device 0 is exposed though device 1 computes meanwhile
    assert found.whole.exposed == pytest.approx(10e-9)
    assert found.whole.span == pytest.approx(70e-9)


@pytest.mark.parametrize(
    "rows", [[], [(5, 5, 0, COMPUTE, 0, 1, 0)], [(5, 5, 0, COMPUTE, 0, 1, 0), (9, 9, 1, COPY, 0, 1, 0)]]
)
def test_nothing_that_lasts(rows: list[Row]) -> None:
    found = timeline(activities(rows), [Window("step", 0, 100)])
    assert found.whole.busy == 0
    assert shares(found.whole) == {}
    assert len(merged(activities(rows), np.zeros(len(rows), np.int32), 10)) == len(rows)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 500),
        st.integers(0, 60),
        st.one_of(st.just(UNKNOWN), st.integers(-100, 600)),
        st.sampled_from([COMPUTE, COMMUNICATION, COPY]),
        st.integers(0, 1),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.permutations([0, 1, 2, 3]), st.randoms(use_true_random=False))
def test_parts_add_up_and_streams_have_no_order(drawn: list[Row], streams: list[int], random: object) -> None:
    rows = [(start, start + length, *rest) for start, length, *rest in drawn]
    found = timeline(activities(rows), [Window("a", 100, 250), Window("b", 250, 400)])
    for split in (found.whole, *found.steps, *(device.whole for device in found.devices)):
        added = split.computing + split.overlapped + split.exposed + split.copying + split.idle
        assert added == pytest.approx(split.span, abs=1e-15)
        assert 0 <= split.host_late <= split.exposed + 1e-15
    # the same by brute force: one state for each nanosecond
    brute = dict.fromkeys(("computing", "overlapped", "exposed", "copying", "idle"), 0)
    for device in found.devices:
        mine = [row for row in rows if row[4] == device.device]
        for moment in range(device.start, device.end):
            kinds = {row[3] for row in mine if row[0] <= moment < row[1]}
            if COMPUTE in kinds:
                brute["overlapped" if COMMUNICATION in kinds else "computing"] += 1
            else:
                brute["exposed" if COMMUNICATION in kinds else "copying" if COPY in kinds else "idle"] += 1
    assert {name: round(getattr(found.whole, name) * 1e9) for name in brute} == brute
    assert found.on_path.sum() == pytest.approx(found.whole.busy, abs=1e-15)
    assert found.gap_before.sum() == pytest.approx(found.whole.idle, abs=1e-15)
    shuffled = [(*row[:5], streams[row[5]], row[6]) for row in rows]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = timeline(activities(shuffled), [Window("a", 100, 250), Window("b", 250, 400)])
    assert again.whole == found.whole
    assert again.steps == found.steps
    busy = [(row[0], row[1]) for row in rows if row[4] == found.devices[0].device]
    start, end = np.array(busy, np.int64).T
    assert union_time(start, end) == pytest.approx(found.devices[0].whole.busy, abs=1e-15)


@settings(max_examples=20, deadline=None)
@given(ROWS, st.integers(1, 50))
def test_merging_keeps_time_and_count(drawn: list[Row], most: int) -> None:
    rows = [(start, start + length, *rest) for start, length, *rest in drawn]
    found = activities(rows)
    lanes = found.stream.astype(np.int32)
    cells = merged(found, lanes, most)
    assert len(cells) <= max(most, len(set(lanes.tolist())))
    assert int(cells.count.sum()) == len(rows)
    assert int(cells.busy.sum()) == sum(row[1] - row[0] for row in rows)
    assert int(cells.start.min()) == min(row[0] for row in rows)
    assert int(cells.end.max()) == max(row[1] for row in rows)
