"""What a device's timeline says: busy, idle, gaps that the host left, and communication that nothing hid.

Times are whole nanoseconds (int64), so that the parts of a span add up to it exactly; results are seconds. Nothing is
ever summed over streams: at each instant a device is in one of five states, decided by what runs on all its streams
together.

    computing        a kernel computes and no communication runs
    overlapped       a kernel computes while communication runs
    exposed          communication runs and no kernel computes
    copying          only copies or fills run
    idle             nothing runs

Idle time is split by what ended it: where the call that launched the next activity came after the device had run dry,
the host was late (launch-bound); where it came before, the device waited for something else; where the profile does not
tell, it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.units import Seconds

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

COMPUTE, COMMUNICATION, COPY = 0, 1, 2
"""Classes of activities. A copy is a memcpy or memset of the driver, not a kernel that copies."""

UNKNOWN = np.iinfo(np.int64).min
"""A launch time that the profile does not carry."""

_NS = 1e-9

_STATES = ("computing", "overlapped", "exposed", "copying", "idle")


@dataclass(frozen=True, slots=True)
class Activities:
    """What ran on devices, one entry each, in any order. Arrays of one length.

    `start` and `end` are nanoseconds on one clock, `launched` the start of the host's call (UNKNOWN where not known),
    `kind` one of COMPUTE, COMMUNICATION and COPY, `device` and `stream` numbers without meaning, `name` the index of a
    name.
    """

    start: Ints
    end: Ints
    launched: Ints
    kind: NDArray[np.int8]
    device: NDArray[np.int32]
    stream: NDArray[np.int64]
    name: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)

    def at(self, chosen: NDArray[np.bool_] | Ints) -> Activities:
        """The chosen entries."""
        return Activities(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of one device's time (or several devices' added up) by what happened in it.

    computing + overlapped + exposed + copying + launch_gap + other_gap + unknown_gap = span. `host_late` is the part of
    `exposed` in which the host had not launched the next computing kernel yet: a faster link alone would not save it.
    """

    span: Seconds
    computing: Seconds
    overlapped: Seconds
    exposed: Seconds
    copying: Seconds
    launch_gap: Seconds
    other_gap: Seconds
    unknown_gap: Seconds
    host_late: Seconds

    @property
    def idle(self) -> Seconds:
        return self.launch_gap + self.other_gap + self.unknown_gap

    @property
    def busy(self) -> Seconds:
        return self.span - self.idle

    @property
    def communication(self) -> Seconds:
        """Time in which communication runs: the union of its intervals, not the sum over streams."""
        return self.overlapped + self.exposed

    def share(self, part: Seconds) -> float | None:
        """A part of the span; None where there is no span."""
        return part / self.span if self.span > 0 else None


@dataclass(frozen=True, slots=True)
class Window:
    """A named stretch of time, nanoseconds."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """One device: its span from the first activity's start to the last one's end, and steps within it."""

    device: int
    start: int
    end: int
    whole: Split
    steps: tuple[Split, ...]
    gaps: int
    longest_gap: Seconds
    launch_gaps: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """All devices of a profile.

    `on_path` is the time that each activity (in the order given) holds its device alone: at each instant the running
    activities of the highest class (computing before communication before copies) share it equally, so that its sum is
    the busy time. `gap_before` is the idle time that each activity ended.
    """

    devices: tuple[DeviceTimeline, ...]
    whole: Split
    steps: tuple[Split, ...]
    on_path: Floats
    gap_before: Floats


def timeline(activities: Activities, windows: Sequence[Window] = ()) -> Timeline:
    """Split the time of every device, and of each window within it. Without activities there are no devices.

    A window's span is the whole window on each device: outside the device's own span it is idle, of unknown cause.
    """
    on_path = np.zeros(len(activities))
    gap_before = np.zeros(len(activities))
    devices = []
    numbers = np.unique(activities.device)
    for device in numbers:
        places: Any = slice(None) if len(numbers) == 1 else np.flatnonzero(activities.device == device)
        one = _Device(activities if len(numbers) == 1 else activities.at(places))
        whole, *steps = one.splits([(one.first, one.last), *((window.start, window.end) for window in windows)])
        on_path[places] = one.on_path()
        gap_before[places] = one.gap_before * _NS
        devices.append(
            DeviceTimeline(
                device=int(device),
                start=one.first,
                end=one.last,
                whole=whole,
                steps=tuple(steps),
                gaps=len(one.gap_start),
                longest_gap=float((one.gap_end - one.gap_start).max(initial=0)) * _NS,
                launch_gaps=int((one.gap_cause == 0).sum()),
            )
        )
    return Timeline(
        devices=tuple(devices),
        whole=total(d.whole for d in devices),
        steps=tuple(total(d.steps[i] for d in devices) for i in range(len(windows) if devices else 0)),
        on_path=on_path,
        gap_before=gap_before,
    )


def total(splits: Iterable[Split]) -> Split:
    """Device-seconds of several splits."""
    found = tuple(splits)
    return Split(*(sum((getattr(split, field.name) for split in found), 0.0) for field in fields(Split)))


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The intervals merged: sorted, apart from each other. Empty ones (end not after start) are dropped."""
    kept = end > start
    order = np.argsort(start[kept], kind="stable")
    begin, until = start[kept][order], np.maximum.accumulate(end[kept][order]) if kept.any() else end[kept]
    if not len(begin):
        return begin, until
    fresh = np.ones(len(begin), bool)
    fresh[1:] = begin[1:] > until[:-1]
    last = np.append(np.flatnonzero(fresh)[1:] - 1, len(begin) - 1)
    return begin[fresh], until[last]


def union_time(start: Ints, end: Ints) -> Seconds:
    """Time in which at least one of the intervals runs."""
    begin, until = union(start, end)
    return float((until - begin).sum()) * _NS


def _itself(moment: Ints) -> Ints:
    return moment


def _within(begin: Ints, until: Ints, moments: Ints, clock: Callable[[Ints], Ints] = _itself) -> Ints:
    """For each moment, how far the clock went inside the stretches before it. They are sorted and do not overlap."""
    if not len(begin):
        return np.zeros_like(moments)
    began = clock(begin)
    so_far = np.concatenate([np.zeros(1, np.int64), np.cumsum(clock(until) - began)])
    place = np.searchsorted(begin, moments, side="right") - 1
    inside = np.maximum(place, 0)
    found: Ints = np.where(place < 0, 0, so_far[inside] + clock(np.minimum(moments, until[inside])) - began[inside])
    return found


class _Device:
    """The instants of one device at which anything begins or ends, and what holds between them."""

    # Of a trace with millions of activities each array here is tens of megabytes: what can be made of others again is
    # not kept, and indices are of 32 bits.

    def __init__(self, found: Activities) -> None:
        self.found = found
        self._positive = found.end > found.start
        # where nothing lasts there is no span
        self.first = int((found.start[self._positive] if self._positive.any() else found.start).min())
        self.last = int(found.end.max(where=self._positive, initial=self.first))
        self.times = self._instants()
        self._computes = self._running(COMPUTE)
        self._sends = self._running(COMMUNICATION)
        self._copies = self._running(COPY)
        idle = np.flatnonzero(self._in_state(4))
        self.gap_start, self.gap_end = self.times[idle], self.times[idle + 1]
        del idle
        order = self._by_start()
        self.gap_cause, self.gap_before = self._causes(order)
        self._late = self._late_host(order)

    def _instants(self) -> Ints:
        lasting = (self.found.start[self._positive], self.found.end[self._positive])
        times = np.concatenate([*lasting, np.array([self.first, self.last], np.int64)])
        del lasting
        times.sort()
        fresh = np.ones(len(times), bool)
        fresh[1:] = times[1:] != times[:-1]
        return times[fresh]

    def _running(self, kind: int) -> NDArray[np.int32]:
        """How many activities of a kind run from each instant to the next."""
        mine = self._positive & (self.found.kind == kind)
        if not mine.any():
            return np.broadcast_to(np.int32(0), (len(self.times) - 1,))
        change = np.zeros(len(self.times), np.int32)
        for moments, step in ((self.found.start, 1), (self.found.end, -1)):
            np.add.at(change, np.searchsorted(self.times, moments[mine]), step)
        return np.cumsum(change, out=change)[:-1]

    def _by_start(self) -> NDArray[np.int32]:
        """Activities that last, by their start; of those that begin together the one launched first comes first."""
        lasting = np.flatnonzero(self._positive).astype(np.int32)
        start, launched, name = (field[lasting] for field in (self.found.start, self.found.launched, self.found.name))
        launched[launched == UNKNOWN] = np.iinfo(np.int64).max
        return lasting[np.lexsort((name, launched, start))]

    def _in_state(self, state: int) -> NDArray[np.bool_]:
        """Between which instants the device is in a state of `_STATES`."""
        computes, sends = self._computes > 0, self._sends > 0
        if state == 0:
            return computes & ~sends
        if state == 1:
            return computes & sends
        if state == 2:
            return ~computes & sends
        copies = self._copies > 0
        return ~(computes | sends) & (copies if state == 3 else ~copies)

    def _integral(self, state: int) -> Ints:
        """At each instant, the time spent in a state so far."""
        so_far = np.zeros(len(self.times), np.int64)
        np.subtract(self.times[1:], self.times[:-1], out=so_far[1:], where=self._in_state(state))
        return np.cumsum(so_far, out=so_far)

    def _spent(self, so_far: Ints, moment: Ints) -> Ints:
        """Time spent in a state before each moment, by the state's integral."""
        if len(self.times) < 2:
            return np.zeros_like(moment)
        inside = np.clip(moment, self.first, self.last)
        place = np.clip(np.searchsorted(self.times, inside, side="right") - 1, 0, len(self.times) - 2)
        in_state = so_far[place + 1] > so_far[place]
        found: Ints = so_far[place] + np.where(in_state, inside - self.times[place], 0)
        return found

    def _causes(self, order: NDArray[np.int32]) -> tuple[NDArray[np.int8], Ints]:
        """For each gap 0 launch-bound, 1 other, 2 unknown; and for each activity the gap that it ended.

        Of activities that begin together the one launched first counts: had it been in the queue, there were no gap.
        """
        found, before = self.found, np.zeros(len(self.found), np.int64)
        cause = np.full(len(self.gap_start), 2, np.int8)
        if not len(self.gap_start):
            return cause, before
        ender = order[np.searchsorted(found.start[order], self.gap_end)]
        launched = found.launched[ender]
        cause[launched != UNKNOWN] = 1
        cause[launched >= self.gap_start] = 0
        np.add.at(before, ender, self.gap_end - self.gap_start)
        return cause, before

    def _late_host(self, order: NDArray[np.int32]) -> tuple[Ints, Ints]:
        """Stretches without computation in which the host had not launched the next computing kernel yet."""
        found = self.found
        mine = order[(found.kind[order] == COMPUTE) & (found.launched[order] != UNKNOWN)]
        free = self._computes == 0
        nothing = np.zeros(0, np.int64)
        if not len(mine) or not free.any():
            return nothing, nothing
        # stretches of several instants in a row are one
        begin = self.times[:-1][free & np.concatenate([[True], ~free[:-1]])]
        until = self.times[1:][free & np.concatenate([~free[1:], [True]])]
        start = found.start[mine]
        place = np.searchsorted(start, until)
        ended = place < len(mine)
        ended[ended] = start[place[ended]] == until[ended]
        begin, until, launched = begin[ended], until[ended], found.launched[mine[place[ended]]]
        stop = np.minimum(launched, until)
        late = stop > begin
        return begin[late], stop[late]

    def splits(self, windows: Sequence[tuple[int, int]]) -> list[Split]:
        """What happened in each window, given by the moments of its start and end."""
        start = np.array([window[0] for window in windows], np.int64)
        end = np.maximum(start, np.array([window[1] for window in windows], np.int64))

        def between(so_far: Callable[[Ints], Ints]) -> Ints:
            return so_far(end) - so_far(start)

        parts: list[Ints] = []
        for state in range(len(_STATES)):
            spent = partial(self._spent, self._integral(state))
            parts.append(between(spent))
            if state == 2:
                late = between(partial(_within, *self._late, clock=spent))
        gaps: list[Ints] = []
        for cause in range(3):
            mine = self.gap_cause == cause
            gaps.append(between(partial(_within, self.gap_start[mine], self.gap_end[mine])))
        span = end - start
        gaps[2] = gaps[2] + span - sum(parts)
        columns = (span, *parts[:4], *gaps, late)
        return [Split(*(float(column[place]) * _NS for column in columns)) for place in range(len(windows))]

    def on_path(self) -> Floats:
        """Seconds for which each activity holds the device, shared with those that run beside it in its class."""
        found = self.found
        held = np.zeros(len(found))
        for kind, (running, state) in enumerate(((self._computes, None), (self._sends, 2), (self._copies, 3))):
            mine = self._positive & (found.kind == kind)
            if not mine.any():
                continue
            alone = running > 0 if state is None else self._in_state(state)
            so_far = np.zeros(len(self.times))
            np.divide(self.times[1:] - self.times[:-1], running, out=so_far[1:], where=alone)
            np.cumsum(so_far, out=so_far)
            ends = np.searchsorted(self.times, found.end[mine])
            held[mine] = so_far[ends] - so_far[np.searchsorted(self.times, found.start[mine])]
        return held * _NS


# --- drawing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cells:
    """A timeline merged down for display: what ran on a lane from `start` to `end` (nanoseconds), for `busy` of it.

    `name` is the activity that took most of the cell, `count` how many activities it stands for.
    """

    lane: NDArray[np.int32]
    start: Ints
    end: Ints
    busy: Ints
    name: NDArray[np.int32]
    count: Ints

    def __len__(self) -> int:
        return len(self.start)


def merged(activities: Activities, lanes: NDArray[np.int32], most: int) -> Cells:
    """At most about `most` cells: activities of a lane that begin within the same small slot become one.

    The slot is widened until the bound holds, so a short timeline keeps every activity apart.
    """
    order = np.lexsort((activities.start, lanes))
    start, end = activities.start[order], np.maximum(activities.end, activities.start)[order]
    lane, name = lanes[order], activities.name[order]
    if not len(order):
        return Cells(lane, start, end, start, name, start)
    slot = np.arange(len(order))
    first, width = int(start.min()), 1
    if len(order) > most:
        width = max(1, (int(end.max()) - first) // most)
        while True:
            slot = (start - first) // width
            if 1 + int(((np.diff(slot) != 0) | (np.diff(lane) != 0)).sum()) <= most:
                break
            width *= 2
    fresh = np.ones(len(order), bool)
    fresh[1:] = (np.diff(slot) != 0) | (np.diff(lane) != 0)
    begins = np.flatnonzero(fresh)
    busy = end - start
    cell = np.cumsum(fresh) - 1
    return Cells(
        lane=lane[begins],
        start=start[begins],
        end=np.maximum.reduceat(end, begins),
        busy=np.add.reduceat(busy, begins),
        name=_heaviest(cell, name, busy),
        count=np.diff(np.append(begins, len(order))),
    )


def _heaviest(cell: Ints, name: NDArray[np.int32], busy: Ints) -> NDArray[np.int32]:
    """For each cell the name with the most time in it; of equals the lowest number."""
    names = int(name.max()) + 1
    keys, back = np.unique(cell.astype(np.int64) * names + name, return_inverse=True)
    time = np.zeros(len(keys), np.int64)
    np.add.at(time, back, busy)
    cells, of = keys // names, keys % names
    order = np.lexsort((of, -time, cells))
    firsts = np.searchsorted(cells[order], np.arange(int(cell[-1]) + 1))
    found: NDArray[np.int32] = of[order][firsts].astype(np.int32)
    return found


def shares(split: Split) -> Mapping[str, float]:
    """The parts of a split as shares of its span; empty where there is no span."""
    if split.span <= 0:
        return {}
    parts = {
        "gpu_busy_share": split.busy,
        "gpu_idle_share": split.idle,
        "launch_share": split.launch_gap,
        "exposed_comm_share": split.exposed,
    }
    return {name: part / split.span for name, part in parts.items()}
