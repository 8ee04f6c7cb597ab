"""Communication beside computation: chunked overlap and pipeline schedules as timelines, and when a transfer hides.

Everything here schedules durations that somebody else computed; no kernel or collective is priced here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from app.domain.errors import InvalidInput
from app.domain.units import Bytes, BytesPerSecond, Flop, FlopPerSecond, Ratio, Seconds

OVERLAP_EFFICIENCY: Mapping[str, Ratio] = {"L0": 0.0, "L1": 0.3, "L2": 0.7, "L3": 0.9}
"""Share of the compute beside a collective that hides it, by level (judgement, F-1.5): none, stream, chunk, tile."""

LEVELS: tuple[str, ...] = tuple(OVERLAP_EFFICIENCY)


@dataclass(frozen=True, slots=True)
class UnitCurve:
    """Share of its fastest link's rate that a collective reaches with so many compute units, as it was measured.

    `units` rise and `shares` end at 1: from the last number on, more units move no more.
    """

    units: tuple[int, ...]
    shares: tuple[Ratio, ...]

    def __post_init__(self) -> None:
        if len(self.units) != len(self.shares) or not self.units or self.shares[-1] != 1.0:
            raise ValueError("a curve needs as many shares as units, the last of them 1")
        for steps in (self.units, self.shares):
            if any(later <= before for before, later in pairwise((0, *steps))):
                raise ValueError("units and shares must rise from above 0")

    @property
    def enough(self) -> int:
        """The fewest units that were seen to reach the whole rate."""
        return self.units[-1]

    def share(self, units: float) -> Ratio:
        """Straight between the measured points, from nothing with no units."""
        return float(np.interp(units, (0, *self.units), (0.0, *self.shares)))


def rate_of_units(units: float, rates: Iterable[BytesPerSecond], curve: UnitCurve) -> BytesPerSecond:
    """Bytes per second that so many compute units move at most, whatever link they serve: their share of the fastest of
    the links' `rates`. No units are copy engines, which nothing limits."""
    return math.inf if units <= 0 else curve.share(units) * max(rates)


def exposed_communication(step: Seconds, compute_only: Seconds, other: Seconds = 0.0) -> Seconds:
    """Communication on the critical path (F-1.5): what a step takes beyond its compute alone and its other waits.

    Durations of streams are never added up: they run beside each other. Raises InvalidInput where the parts exceed the
    step, since then one of them was not measured in the same step.
    """
    for name, value in (("step_s", step), ("compute_only_s", compute_only), ("other_s", other)):
        if value < 0 or not math.isfinite(value):
            raise InvalidInput((name,), "must be a time of 0 or more")
    left = step - compute_only - other
    if left < -1e-9 * step:
        raise InvalidInput(
            ("compute_only_s",),
            f"compute alone and the rest take {compute_only + other:.4g} s, more than the step of {step:.4g} s: "
            "measure both with the same batch",
        )
    return max(left, 0.0)


def exposed_forecast(communication: Seconds, window: Seconds, level: str) -> Seconds:
    """Rest of a collective that a level of overlap leaves beside `window` seconds of independent compute (F-1.5)."""
    return max(0.0, communication - window * OVERLAP_EFFICIENCY[level])


def tokens_that_hide_a_gather(item: Bytes, rate: FlopPerSecond, bandwidth: BytesPerSecond) -> float:
    """Tokens of a device from which a unit's forward products take as long as gathering its parameters (F-6.4).

    A parameter costs 2 FLOP a token and `item` bytes once, so its number cancels.
    """
    return item * rate / (2.0 * bandwidth)


def tokens_that_hide_a_ring_hop(
    sent_a_token: Bytes, flop_a_pair: Flop, rate: FlopPerSecond, bandwidth: BytesPerSecond
) -> float:
    """Tokens of a rank from which attending to a block of keys takes as long as sending the next block (F-7.5).

    A rank of `c` tokens computes `c c flop_a_pair` and sends `c sent_a_token`, both of its share of the heads.
    """
    return rate / bandwidth * sent_a_token / flop_a_pair


# ---- a collective and a product in chunks ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """Something that runs on one lane of a timeline. `what` is compute, communication, launch, F, B or W."""

    lane: int
    what: str
    index: int
    start: Seconds
    end: Seconds
    part: int = 0

    @property
    def duration(self) -> Seconds:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ChunkedTimeline:
    """Two lanes, compute (0) and communication (1), cut into chunks."""

    chunks: int
    segments: tuple[Segment, ...]
    total: Seconds

    def exposed(self, compute_only: Seconds) -> Seconds:
        """Time beyond the uncut product by itself: communication that shows, launches, and what cutting costs."""
        return self.total - compute_only


def chunked_timeline(
    compute: Sequence[Seconds],
    communication: Sequence[Seconds],
    *,
    launch: Seconds = 0.0,
    contention: Ratio = 0.0,
    communication_first: bool = False,
    ahead: int | None = None,
) -> ChunkedTimeline:
    """Run equal numbers of compute and communication chunks, each pair in order, the two lanes beside each other.

    A chunk of the second lane waits for the same chunk of the first. Every chunk is launched on its own (`launch` of
    its lane's time before it). While something is being sent, compute runs at `1 - contention` of its speed, because
    the sending kernels occupy that share of the device. With `ahead` the first lane starts a
    chunk only when at most so many of its chunks wait for the second lane: 0 means that nothing runs beside anything.
    """
    if len(compute) != len(communication) or not compute:
        raise InvalidInput(("chunks",), "there must be as many compute as communication chunks, at least one")
    if not 0.0 <= contention < 1.0:
        raise InvalidInput(("contention",), "must be from 0 up to less than 1")
    order = (1, 0) if communication_first else (0, 1)
    work = (compute, communication)
    n = len(compute)
    done = [0, 0]  # chunks finished, by lane
    stage: list[str] = ["idle", "idle"]
    left = [0.0, 0.0]
    since = [0.0, 0.0]
    segments: list[Segment] = []
    now = 0.0
    while done[order[1]] < n:
        for lane in (0, 1):
            if stage[lane] != "idle" or done[lane] >= n:
                continue
            other = 1 - lane
            free = lane == order[0] or done[other] > done[lane]
            if ahead is not None and lane == order[0]:
                free = done[lane] - done[other] <= ahead
            if free:
                stage[lane], left[lane], since[lane] = "launch", launch, now
        for lane in (0, 1):
            if stage[lane] == "launch" and left[lane] <= 0.0:
                _close(segments, lane, "launch", done[lane], since[lane], now)
                stage[lane], left[lane], since[lane] = "run", work[lane][done[lane]], now
        speed = [1.0, 1.0]
        if stage[0] == "run" and stage[1] == "run":
            speed[0] = 1.0 - contention
        step = min(left[lane] / speed[lane] for lane in (0, 1) if stage[lane] != "idle")
        now += step
        for lane in (0, 1):
            if stage[lane] == "idle":
                continue
            rest = left[lane] - step * speed[lane]
            left[lane] = 0.0 if rest <= 1e-12 * max(work[lane][done[lane]], launch, step) else rest
            if left[lane] == 0.0 and stage[lane] == "run":
                _close(segments, lane, ("compute", "communication")[lane], done[lane], since[lane], now)
                done[lane] += 1
                stage[lane] = "idle"
    return ChunkedTimeline(n, tuple(segments), now)


def beyond(total: Seconds, part: Seconds) -> Seconds:
    """What a simulated total has beyond a part of it, without the rounding of its many steps."""
    rest = total - part
    return rest if rest > 1e-9 * total else 0.0


def _close(segments: list[Segment], lane: int, what: str, index: int, start: Seconds, end: Seconds) -> None:
    if end > start:
        segments.append(Segment(lane, what, index, start, end))


def chunk_counts(most: int, limit: int = 128) -> tuple[int, ...]:
    """Numbers of chunks worth trying: powers of two and the numbers half way between them, up to `most`."""
    found = {1} | {2**i for i in range(1, 31)} | {3 * 2**i for i in range(29)}
    return tuple(sorted(n for n in found if n <= min(most, limit)))


def split_rows(rows: int, chunks: int) -> tuple[int, ...]:
    """`rows` cut into `chunks` parts that differ by one row at most."""
    if not 1 <= chunks <= rows:
        raise InvalidInput(("chunks",), f"must be from 1 to the {rows:,} rows of the product, not {chunks}")
    each, more = divmod(rows, chunks)
    return tuple(each + (1 if i < more else 0) for i in range(chunks))


# ---- pipeline schedules ---------------------------------------------------------------------------------------------

SCHEDULES: tuple[str, ...] = ("gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe")
MAX_PIPELINE_TASKS = 40_000
"""Forward and backward passes of one simulation; beyond it nobody reads the drawing."""

Task: TypeAlias = tuple[str, int, int]
"""What (F, B or W), micro-batch, and chunk of the stage."""

Entry = TypeVar("Entry")
"""One entry of a stage's list: a pass, or several that start together."""


@dataclass(frozen=True, slots=True)
class PipelineTimeline:
    """A step of a pipeline, stage by stage. `work` is what one stage computes in it."""

    stages: int
    segments: tuple[Segment, ...]
    total: Seconds
    work: Seconds
    in_flight: tuple[int, ...]
    parameter_copies: int = 1

    @property
    def bubble(self) -> Seconds:
        """Time that a stage waits in a step."""
        return beyond(self.total, self.work)

    @property
    def bubble_of_work(self) -> Ratio:
        """Waiting over working."""
        return self.bubble / self.work

    @property
    def bubble_share(self) -> Ratio:
        """Waiting over the whole step."""
        return self.bubble / self.total


def pipeline_timeline(
    schedule: str,
    stages: int,
    micro_batches: int,
    *,
    forward: Seconds,
    backward: Seconds,
    weight_gradient: Seconds | None = None,
    chunks: int = 1,
    hand_over: Seconds = 0.0,
) -> PipelineTimeline:
    """Simulate a training step: every stage works through its own list of passes, each as soon as its input is there.

    `forward` and `backward` are the times of one micro-batch on one whole stage, the backward pass with its weight
    gradients (`weight_gradient`, by default half of it; `zero_bubble` and `dualpipe` run them apart). `chunks` model
    parts lie on each stage (`interleaved`). `hand_over` passes between two stages. In `dualpipe` half of the
    micro-batches enter at either end, every device holds a stage of each direction, and a forward pass of one
    micro-batch beside the backward pass of another takes as long as both. Raises InvalidInput for what has no schedule.
    """
    _check_pipeline(schedule, stages, micro_batches, chunks)
    gradient = backward / 2.0 if weight_gradient is None else weight_gradient
    if not 0.0 <= gradient <= backward:
        raise InvalidInput(("weight_gradient_s",), "must be from 0 to the time of the backward pass")
    if schedule == "dualpipe":
        return _both_ways(stages, micro_batches, forward, backward, gradient, hand_over)
    apart = schedule == "zero_bubble"
    durations = {
        "F": forward / chunks,
        "B": (backward - gradient if apart else backward) / chunks,
        "W": gradient / chunks,
    }
    orders = [_stage_order(schedule, stages, micro_batches, chunks, stage) for stage in range(stages)]
    last = stages * chunks - 1
    finished: dict[tuple[str, int, int], float] = {}
    free = [0.0] * stages
    segments: list[Segment] = []

    def run(stage: int, task: Task) -> bool:
        what, batch, chunk = task
        part = chunk * stages + stage
        before = _input_of(what, batch, part, last)
        if before is not None and before not in finished:
            return False
        ready = 0.0
        if before is not None:
            ready = finished[before] + (hand_over if before[2] != part else 0.0)
        start = max(free[stage], ready)
        end = start + durations[what]
        segments.append(Segment(stage, what, batch, start, end, chunk))
        finished[(what, batch, part)] = free[stage] = end
        return True

    _work_off(orders, run)
    return PipelineTimeline(
        stages=stages,
        segments=tuple(segments),
        total=max(free),
        work=micro_batches * (forward + backward),
        in_flight=tuple(_most_in_flight(order) for order in orders),
    )


def _work_off(orders: Sequence[Sequence[Entry]], run: Callable[[int, Entry], bool]) -> None:
    """Give every stage its list in order until all are done; `run` says False where an entry's input is not there yet.

    Raises InvalidInput where the stages wait for each other for ever.
    """
    place = [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while place[stage] < len(order) and run(stage, order[place[stage]]):
                place[stage] += 1
                moved = True
    if any(place[stage] < len(order) for stage, order in enumerate(orders)):
        raise InvalidInput(("micro_batches",), "this schedule never ends with so many micro-batches")


def _check_pipeline(schedule: str, stages: int, micro_batches: int, chunks: int) -> None:
    if schedule not in SCHEDULES:
        raise InvalidInput(("schedule",), f"unknown schedule {schedule!r}: use one of {', '.join(SCHEDULES)}")
    objection = dualpipe_objection(stages, micro_batches) if schedule == "dualpipe" else None
    if objection is not None:
        raise InvalidInput((objection[0],), objection[1])
    if schedule == "interleaved" and micro_batches % stages:
        raise InvalidInput(
            ("micro_batches",), f"{micro_batches} micro-batches: an interleaved pipeline takes a multiple of {stages}"
        )
    if schedule == "interleaved" and chunks < 2:
        raise InvalidInput(("virtual_stages",), "interleaving needs at least 2 chunks on each stage")
    if schedule != "interleaved" and chunks != 1:
        raise InvalidInput(("virtual_stages",), "only an interleaved pipeline has chunks: use 1")
    tasks = stages * micro_batches * chunks
    if tasks > MAX_PIPELINE_TASKS:
        raise InvalidInput(
            ("micro_batches",),
            f"{tasks:,} passes (stages, micro-batches and chunks multiplied) are too many to simulate: "
            f"at most {MAX_PIPELINE_TASKS:,}",
        )


def _input_of(what: str, batch: int, part: int, last: int) -> tuple[str, int, int] | None:
    """The pass whose result a pass needs."""
    if what == "F":
        return ("F", batch, part - 1) if part else None
    if what == "W":
        return ("B", batch, part)
    return ("B", batch, part + 1) if part < last else ("F", batch, part)


def _stage_order(schedule: str, stages: int, batches: int, chunks: int, stage: int) -> list[Task]:
    """The passes of one stage in the order it runs them."""
    if schedule == "gpipe":
        return [("F", i, 0) for i in range(batches)] + [("B", i, 0) for i in reversed(range(batches))]
    if schedule == "interleaved":
        return _interleaved_order(stages, batches, chunks, stage)
    order: list[Task] = [("F", i, 0) for i in range(min(stages - stage - 1, batches))]
    ahead, apart = len(order), schedule == "zero_bubble"
    for i in range(batches):
        if ahead + i < batches:
            order.append(("F", ahead + i, 0))
        order.append(("B", i, 0))
        if apart and i >= stage:
            # a later stage keeps more weight gradients back, to fill its wait at the end
            order.append(("W", i - stage, 0))
    if apart:
        order += [("W", i, 0) for i in range(max(batches - stage, 0), batches)]
    return order


@dataclass(frozen=True, slots=True)
class _Pass:
    """One entry of a device's list in DualPipe: passes that start together and end together.

    A part is (what, micro-batch, direction): F, B (whole backward pass), b (input gradients only) or W.
    """

    parts: tuple[Task, ...]


def _both_ways(
    stages: int, micro_batches: int, forward: Seconds, backward: Seconds, gradient: Seconds, hand_over: Seconds
) -> PipelineTimeline:
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, and the schedule published with it), simulated.

    Direction 0 enters at device 0, direction 1 at the last one; a device is stage d of one and p - 1 - d of the other.
    """
    durations = {"F": forward, "B": backward, "b": backward - gradient, "W": gradient}
    orders = [_dualpipe_order(stages, micro_batches, device) for device in range(stages)]
    finished: dict[tuple[str, int, int, int], float] = {}
    free = [0.0] * stages
    segments: list[Segment] = []

    def run(device: int, passes: _Pass) -> bool:
        ready = [_ready(part, device, stages, finished, hand_over) for part in passes.parts]
        if any(time is None for time in ready):
            return False
        now = max([free[device], *(time for time in ready if time is not None)])
        for what, batch, direction in passes.parts:
            end = now + durations[what]
            shown = "B" if what == "b" else what
            number = batch + direction * (micro_batches // 2)
            segments.append(Segment(device, shown, number, now, end, direction))
            now = end
        for what, batch, direction in passes.parts:
            finished["B" if what == "b" else what, batch, direction, device] = now
        free[device] = now
        return True

    _work_off(orders, run)
    return PipelineTimeline(
        stages=stages,
        segments=tuple(segments),
        total=max(free),
        work=micro_batches * (forward + backward),
        in_flight=tuple(_most_held(order) for order in orders),
        parameter_copies=2,
    )


def _ready(
    part: Task, device: int, stages: int, finished: Mapping[tuple[str, int, int, int], float], hand_over: Seconds
) -> Seconds | None:
    """When a pass has its input; None while that is not there."""
    what, batch, direction = part
    step = 1 if direction == 0 else -1
    if what == "W":
        return finished.get(("B", batch, direction, device))
    before = device - step if what == "F" else device + step
    if what == "F" and not 0 <= before < stages:
        return 0.0
    if what != "F" and not 0 <= before < stages:
        return finished.get(("F", batch, direction, device))
    end = finished.get(("F" if what == "F" else "B", batch, direction, before))
    return None if end is None else end + hand_over


def _dualpipe_order(stages: int, micro_batches: int, device: int) -> list[_Pass]:
    """What one device runs, in the eight phases of the published schedule. `near` is the direction that enters at the
    closer end; weight gradients that were put off are worked off first in, first out."""
    half, rank = stages // 2, min(device, stages - 1 - device)
    near = 0 if device < half else 1
    far = 1 - near
    order: list[_Pass] = []
    forwards, backwards = [0, 0], [0, 0]
    put_off: list[Task] = []

    def ahead(direction: int) -> Task:
        forwards[direction] += 1
        return ("F", forwards[direction] - 1, direction)

    def back(direction: int, *, later: bool = False) -> Task:
        batch = backwards[direction]
        backwards[direction] += 1
        if later:
            put_off.append(("W", batch, direction))
        return ("b" if later else "B", batch, direction)

    def run(*parts: Task) -> None:
        order.append(_Pass(parts))

    for _ in range(2 * (half - rank - 1)):
        run(ahead(near))
    for _ in range(rank + 1):
        run(ahead(near))
        run(ahead(far))
    for _ in range(half - rank - 1):
        run(back(far, later=True))
        run(put_off.pop(0))
        run(ahead(far))
    for turn in range(micro_batches // 2 - stages + rank + 1):
        if turn == 0 and rank == half - 1:
            # the two devices in the middle have nothing to run the first pass beside
            run(ahead(near))
            run(back(far))
        else:
            run(ahead(near), back(far))
        run(ahead(far), back(near))
    for _ in range(half - rank - 1):
        run(back(far))
        run(ahead(far), back(near))
    later = False
    for turn in range(rank + 1):
        later = later or (turn == (rank + 1) // 2 and rank % 2 == 1)
        run(back(far, later=later))
        later = later or (turn == (rank + 1) // 2 and rank % 2 == 0)
        run(back(near, later=later))
    for _ in range(half - rank - 1):
        run(put_off.pop(0))
        run(back(near, later=True))
    while put_off:
        run(put_off.pop(0))
    return order


def _most_held(order: Sequence[_Pass]) -> int:
    """Most forward passes of a device whose activations are held at once, over both directions."""
    held = most = 0
    for item in order:
        for what, _, _ in item.parts:
            held += {"F": 1, "B": -1, "b": 0, "W": -1}[what]
            most = max(most, held)
    return most


def dualpipe_objection(stages: int, micro_batches: int) -> tuple[Literal["stages", "micro_batches"], str] | None:
    """Which of the two numbers DualPipe cannot run with, and why; the conditions are its published schedule's own."""
    if stages % 2:
        return "stages", f"{stages} stages: DualPipe runs from both ends, so their number must be even"
    if micro_batches % 2 or micro_batches < 2 * stages:
        return (
            "micro_batches",
            f"{micro_batches} micro-batches: DualPipe takes an even number, at least twice the {stages} stages",
        )
    return None


def dualpipe_bubble(stages: int, forward: Seconds, backward: Seconds, gradient: Seconds) -> Seconds:
    """Bubble of DualPipe: (p/2 - 1)(F&B + B - 3W), with F&B a forward beside a backward pass (F-8, its README)."""
    return (stages / 2 - 1) * (forward + backward + backward - 3.0 * gradient)


def _interleaved_order(stages: int, batches: int, chunks: int, stage: int) -> list[Task]:
    """Depth-first order over the chunks, groups of as many micro-batches as there are stages."""
    total = batches * chunks

    def at(step: int, what: str) -> Task:
        group, inside = divmod(step, stages * chunks)
        chunk = inside // stages
        return what, group * stages + inside % stages, chunk if what == "F" else chunks - 1 - chunk

    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [at(i, "F") for i in range(warm)]
    for i in range(total - warm):
        order += [at(warm + i, "F"), at(i, "B")]
    return order + [at(i, "B") for i in range(total - warm, total)]


def _most_in_flight(order: Sequence[Task]) -> int:
    """Most forward passes of a stage whose activations are held at once: until the last gradient that needs them."""
    frees = "W" if any(what == "W" for what, _, _ in order) else "B"
    held = most = 0
    for what, _, _ in order:
        held += 1 if what == "F" else -1 if what == frees else 0
        most = max(most, held)
    return most
