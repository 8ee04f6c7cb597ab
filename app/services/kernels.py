"""Kernels of a run: rows to search, time by family, the timeline's parts, and two runs held side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.domain.kernels import FAMILY_IDS, FAMILY_TITLES, family_named, family_of
from app.services.context import Context
from app.storage import runs
from app.storage.errors import InvalidQuery
from app.storage.records import Page, StoredRun

MAX_PAGE = 200

NUMBERS: tuple[str, ...] = (
    "count",
    "time_s",
    "share",
    "mean_s",
    "min_s",
    "max_s",
    "flop",
    "hbm_bytes",
    "l2_bytes",
    "on_path_s",
    "gap_before_s",
    "launch_delay_s",
)
"""Fields of a row that are numbers and that lists may be sorted by, besides those that follow from them."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A device function of a run. Times in seconds, FLOP and bytes of all launches together; None: not reported.

    `work_from` says where FLOP and bytes come from: "counters" measured them, "shapes" imply them (bytes are then the
    least possible). `more` holds what the profiler says besides, under its own names.
    """

    name: str
    family: str
    count: float | None
    time_s: float | None
    share: float | None
    mean_s: float | None
    min_s: float | None
    max_s: float | None
    flop: float | None
    hbm_bytes: float | None
    l2_bytes: float | None
    on_path_s: float | None
    gap_before_s: float | None
    launch_delay_s: float | None
    precision: str | None
    work_from: str | None
    is_copy: bool
    more: Mapping[str, Any]

    @property
    def flop_per_s(self) -> float | None:
        return _rate(self.flop, self.time_s)

    @property
    def hbm_bytes_per_s(self) -> float | None:
        return _rate(self.hbm_bytes, self.time_s)

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of device memory."""
        return _rate(self.flop, self.hbm_bytes)


def _rate(amount: float | None, over: float | None) -> float | None:
    return amount / over if amount is not None and over else None


_RATES: Mapping[str, Callable[[KernelRow], float | None]] = {
    "flop_per_s": lambda row: row.flop_per_s,
    "hbm_bytes_per_s": lambda row: row.hbm_bytes_per_s,
}
SORTS: tuple[str, ...] = ("name", "family", *NUMBERS, *_RATES)


PeakBasis = Literal["peak", "share", "throughput"]


@dataclass(frozen=True, slots=True)
class CounterPeak:
    """The most that a level of memory could move at the clocks of the measurement, B/s, as a profiler's counters say.

    "peak": the counter's peak a cycle times the clock; "share": bytes over time over the counter's share of its peak;
    "throughput": bytes over time over the level's throughput, which is its busiest part's, so that the peak is at least
    this.
    """

    bytes_per_s: float
    basis: PeakBasis


def counter_peak(rows: Iterable[KernelRow], level: Literal["dram", "l2"]) -> CounterPeak | None:
    """The highest that a row tells, those that only bound it from below last; None where no row tells any."""
    found: list[CounterPeak] = []
    for row in rows:
        rate, basis = _number(row.more.get(f"{level}_peak_bytes_per_s")), row.more.get(f"{level}_peak_from")
        if rate and basis in ("peak", "share", "throughput"):
            found.append(CounterPeak(rate, basis))
    firm = [peak for peak in found if peak.basis != "throughput"]
    return max(firm or found, key=lambda peak: peak.bytes_per_s, default=None)


def rows_of(run: StoredRun) -> tuple[KernelRow, ...]:
    """The run's kernels as the file has them; what a harness of one's own wrote may lack anything but the name."""
    found = [_row(kernel) for kernel in run.parsed.kernels]
    total = sum(row.time_s or 0.0 for row in found)
    if total <= 0:
        return tuple(found)
    return tuple(
        row if row.share is not None or row.time_s is None else _with_share(row, row.time_s / total) for row in found
    )


def _row(kernel: Mapping[str, Any]) -> KernelRow:
    name = str(kernel.get("name") or "(unnamed)")
    family = kernel.get("family")
    numbers = {key: _number(kernel.get(key)) for key in NUMBERS}
    known = {*NUMBERS, "name", "family", "precision", "work_from", "is_copy"}
    return KernelRow(
        name=name,
        family=family_named(family) if isinstance(family, str) and family else family_of(name),
        precision=_text(kernel.get("precision")),
        work_from=_text(kernel.get("work_from")),
        is_copy=kernel.get("is_copy") is True,
        more={key: value for key, value in kernel.items() if key not in known},
        **numbers,
    )


def _with_share(row: KernelRow, share: float) -> KernelRow:
    fields = {name: getattr(row, name) for name in KernelRow.__dataclass_fields__}
    return KernelRow(**{**fields, "share": share})


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# --- one run -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """The kernels of one family: how many names, launches, their time, and their share of the time of all.

    `on_path_s` is the time for which the family held the device alone; None where no timeline tells.
    """

    family: str
    title: str
    names: int
    count: float
    time_s: float
    share: float
    on_path_s: float | None


def families_of(rows: Iterable[KernelRow]) -> tuple[FamilyRow, ...]:
    """Time by family, the longest first. Their times add up to that of all rows."""
    by_family: dict[str, list[KernelRow]] = {}
    for row in rows:
        by_family.setdefault(row.family, []).append(row)
    total = sum(row.time_s or 0.0 for found in by_family.values() for row in found)
    families = []
    for family, found in by_family.items():
        time = sum(row.time_s or 0.0 for row in found)
        held = [row.on_path_s for row in found]
        families.append(
            FamilyRow(
                family=family,
                title=FAMILY_TITLES.get(family, family),
                names=len(found),
                count=sum(row.count or 0.0 for row in found),
                time_s=time,
                share=time / total if total > 0 else 0.0,
                on_path_s=None if any(one is None for one in held) else sum(one or 0.0 for one in held),
            )
        )
    return tuple(sorted(families, key=lambda row: (-row.time_s, row.title)))


@dataclass(frozen=True, slots=True)
class KernelQuery:
    """What a list of kernels holds and in which order, as it stands in an address."""

    q: str | None = None
    family: str | None = None
    sort: str = "-time_s"


@dataclass(frozen=True, slots=True)
class KernelPage:
    """One page of a run's kernels. `time_s` and `share` are those of all rows that match."""

    page: Page[KernelRow]
    time_s: float
    share: float


def kernels_page(
    rows: Sequence[KernelRow], query: KernelQuery, *, limit: int = 50, cursor: str | None = None
) -> KernelPage:
    """The rows that match, sorted; what is not reported comes last. Raises InvalidQuery for a wrong sort or cursor."""
    words = (query.q or "").casefold().split()
    found = [
        row
        for row in rows
        if (not query.family or row.family == query.family) and all(word in row.name.casefold() for word in words)
    ]
    ordered = sorted_rows(found, query.sort)
    total, time = sum(row.time_s or 0.0 for row in rows), sum(row.time_s or 0.0 for row in found)
    return KernelPage(paged(ordered, limit, cursor), time, time / total if total > 0 else 0.0)


def sorted_rows(rows: Iterable[KernelRow], sort: str) -> list[KernelRow]:
    """Rows in order of a key, with - before it for descending."""
    key, descending = sort.removeprefix("-"), sort.startswith("-")
    if key not in SORTS:
        raise InvalidQuery("sort", f"sort by one of {', '.join(SORTS)}, with - before it for descending")
    if key in ("name", "family"):
        return sorted(rows, key=lambda row: (str(getattr(row, key)).casefold(), row.name), reverse=descending)
    value = _RATES.get(key) or (lambda row: getattr(row, key))
    sign = -1.0 if descending else 1.0
    known = [(number, row) for row in rows if (number := value(row)) is not None]
    unknown = [row for row in rows if value(row) is None]
    return [row for _, row in sorted(known, key=lambda pair: (sign * pair[0], pair[1].name))] + unknown


def paged(items: Sequence[Any], limit: int, cursor: str | None) -> Page[Any]:
    """A page of what never changes: the cursor counts what came before."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidQuery("limit", f"between 1 and {MAX_PAGE}")
    start = 0
    if cursor:
        if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 9:
            raise InvalidQuery("cursor", "take it from `next` of the page before")
        start = int(cursor)
    after = start + limit
    return Page(tuple(items[start:after]), str(after) if after < len(items) else None, len(items))


def run_with_kernels(ctx: Context, run_id: str) -> StoredRun:
    """The run with everything that its file said. Raises NotFound."""
    with ctx.storage.read() as session:
        return runs.get_run(session=session, run_id=run_id)


# --- the timeline --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of a device in a drawing."""

    device: int
    stream: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a lane: seconds from the profile's first start. `count` activities, of which `name` took most."""

    lane: int
    start_s: float
    length_s: float
    busy_s: float
    name: str
    family: str
    count: int


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The part of a timeline from `start_s` to `end_s`, merged down to a bounded number of bars."""

    lanes: tuple[Lane, ...]
    bars: tuple[Bar, ...]
    start_s: float
    end_s: float
    span_s: float
    steps: tuple[tuple[str, float, float], ...]
    merged: bool


MOST_BARS = 600
_NS = 1e-9


def timeline_view(
    run: StoredRun, start_s: float | None = None, end_s: float | None = None, most: int = MOST_BARS
) -> TimelineView | None:
    """What runs between two moments; None where the run has no drawing. Raises InvalidQuery for an impossible range."""
    told = run.parsed.timeline or {}
    drawing = told.get("drawing")
    if not drawing or not drawing["lane"]:
        return None
    starts, lengths = drawing["start_ns"], drawing["length_ns"]
    span = max(start + length for start, length in zip(starts, lengths, strict=True)) * _NS
    begin = 0.0 if start_s is None else start_s
    end = span if end_s is None else end_s
    for name, value in (("from_s", begin), ("to_s", end)):
        if not math.isfinite(value) or value < 0:
            raise InvalidQuery(name, "a time in seconds from the profile's first kernel, not below 0")
    begin, end = min(begin, span), min(end, span)
    if end <= begin:
        if start_s is not None or end_s is not None:
            raise InvalidQuery("to_s", f"must lie after from_s and before the end at {span:.9g} s")
        end = begin
    inside = [
        place
        for place in range(len(starts))
        if starts[place] * _NS < end and (starts[place] + lengths[place]) * _NS > begin
    ]
    steps = tuple(
        (str(step["name"]), float(step["start_s"]), float(step["start_s"]) + float(step["span_s"]))
        for step in told.get("steps", ())
        if step["start_s"] < end and step["start_s"] + step["span_s"] > begin
    )
    bars = _bars(drawing, inside, (end - begin) / max(most // 4, 1), most)
    return TimelineView(
        lanes=tuple(Lane(lane["device"], lane["stream"]) for lane in drawing["lanes"]),
        bars=bars,
        start_s=begin,
        end_s=end,
        span_s=span,
        steps=steps,
        merged=any(bar.count > 1 for bar in bars),
    )


def _bars(drawing: Mapping[str, Any], inside: list[int], slot: float, most: int) -> tuple[Bar, ...]:
    """The stored cells, those of a lane that begin in one slot made into one where there are too many."""
    names, families = drawing["names"], drawing["families"]

    def merged(places: list[int]) -> Bar:
        first = places[0]
        by_name: dict[int, int] = {}
        for place in places:
            by_name[drawing["name"][place]] = by_name.get(drawing["name"][place], 0) + drawing["busy_ns"][place]
        heaviest = min(by_name, key=lambda name: (-by_name[name], name))
        end = max(drawing["start_ns"][place] + drawing["length_ns"][place] for place in places)
        return Bar(
            lane=drawing["lane"][first],
            start_s=drawing["start_ns"][first] * _NS,
            length_s=(end - drawing["start_ns"][first]) * _NS,
            busy_s=sum(drawing["busy_ns"][place] for place in places) * _NS,
            name=names[heaviest],
            family=families[heaviest],
            count=sum(drawing["count"][place] for place in places),
        )

    groups: list[list[int]] = [[place] for place in inside]
    while len(groups) > most and slot > 0:
        joined: dict[tuple[int, int], list[int]] = {}
        for place in inside:  # in the order of lane and time, as stored
            key = (drawing["lane"][place], int(drawing["start_ns"][place] * _NS / slot))
            joined.setdefault(key, []).append(place)
        groups = list(joined.values())
        slot *= 2
    return tuple(merged(group) for group in groups)


# --- two runs ------------------------------------------------------------------------------------------------------

Change = Literal["added", "removed", "slower", "faster", "same"]
CHANGES: tuple[Change, ...] = ("slower", "faster", "added", "removed", "same")
SAME_WITHIN = 0.01
"""A kernel whose total time differs by less than this share counts as the same."""


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel in two runs, matched by its exact name. Times and counts are totals; None: not in that run."""

    name: str
    family: str
    change: Change
    before_s: float | None
    after_s: float | None
    before_count: float | None
    after_count: float | None

    @property
    def difference_s(self) -> float:
        """Seconds that the second run takes more (above 0) or less."""
        return (self.after_s or 0.0) - (self.before_s or 0.0)

    @property
    def ratio(self) -> float | None:
        return _rate(self.after_s, self.before_s)

    @property
    def mean_ratio(self) -> float | None:
        """How a single launch's mean time changed."""
        before, after = _rate(self.before_s, self.before_count), _rate(self.after_s, self.after_count)
        return _rate(after, before)


@dataclass(frozen=True, slots=True)
class FamilyChange:
    """A family in two runs; the differences of all families add up to that of the whole."""

    family: str
    title: str
    before_s: float
    after_s: float
    before_count: float
    after_count: float

    @property
    def difference_s(self) -> float:
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True)
class KernelComparison:
    """Two runs kernel by kernel: `before` is the baseline."""

    before: StoredRun
    after: StoredRun
    rows: tuple[KernelChange, ...]
    families: tuple[FamilyChange, ...]
    before_s: float
    after_s: float

    def counts(self) -> dict[Change, int]:
        """How many kernels changed in each way."""
        return {change: sum(row.change == change for row in self.rows) for change in CHANGES}


def compare_kernels(before: StoredRun, after: StoredRun) -> KernelComparison:
    """Kernels matched by exact name only: a renamed one is removed under its old name and added under its new one."""
    old, new = (_by_name(rows_of(run)) for run in (before, after))
    rows = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        family = (b or a or ("other", 0.0, 0.0))[0]
        rows.append(
            KernelChange(
                name=name,
                family=family,
                change=_change(None if a is None else a[1], None if b is None else b[1]),
                before_s=None if a is None else a[1],
                after_s=None if b is None else b[1],
                before_count=None if a is None else a[2],
                after_count=None if b is None else b[2],
            )
        )
    rows.sort(key=lambda row: (-abs(row.difference_s), row.name))
    families = []
    for family in dict.fromkeys([*FAMILY_IDS, *(row.family for row in rows)]):
        mine = [row for row in rows if row.family == family]
        if mine:
            families.append(
                FamilyChange(
                    family=family,
                    title=FAMILY_TITLES.get(family, family),
                    before_s=sum(row.before_s or 0.0 for row in mine),
                    after_s=sum(row.after_s or 0.0 for row in mine),
                    before_count=sum(row.before_count or 0.0 for row in mine),
                    after_count=sum(row.after_count or 0.0 for row in mine),
                )
            )
    return KernelComparison(
        before=before,
        after=after,
        rows=tuple(rows),
        families=tuple(sorted(families, key=lambda row: -abs(row.difference_s))),
        before_s=sum(row.before_s or 0.0 for row in rows),
        after_s=sum(row.after_s or 0.0 for row in rows),
    )


def _by_name(rows: Iterable[KernelRow]) -> dict[str, tuple[str, float, float]]:
    """Family, time and count of each name; a name that stands several times is added up."""
    found: dict[str, tuple[str, float, float]] = {}
    for row in rows:
        family, time, count = found.get(row.name, (row.family, 0.0, 0.0))
        found[row.name] = (family, time + (row.time_s or 0.0), count + (row.count or 0.0))
    return found


def _change(before: float | None, after: float | None) -> Change:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if abs(after - before) <= SAME_WITHIN * max(before, after):
        return "same"
    return "slower" if after > before else "faster"


def comparison_of(ctx: Context, after_id: str, before_id: str) -> KernelComparison:
    """Two stored runs, the second as the baseline. Raises NotFound, or InvalidQuery where one has no kernels."""
    after, before = run_with_kernels(ctx, after_id), run_with_kernels(ctx, before_id)
    for name, run in (("run", after), ("baseline", before)):
        if not run.parsed.kernels:
            raise InvalidQuery(name, f"the run {run.name!r} has no kernels: choose one of a profile")
    return compare_kernels(before, after)


COMPARE_SORTS: tuple[str, ...] = ("difference_s", "name", "family", "before_s", "after_s", "ratio", "mean_ratio")


def changes_page(
    found: KernelComparison,
    *,
    q: str | None = None,
    family: str | None = None,
    change: str | None = None,
    sort: str = "difference_s",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[KernelChange]:
    """Rows that match. `difference_s` sorts by size of the difference whatever its sign; the others by their value."""
    words = (q or "").casefold().split()
    key, descending = sort.removeprefix("-"), sort.startswith("-")
    if key not in COMPARE_SORTS:
        raise InvalidQuery("sort", f"sort by one of {', '.join(COMPARE_SORTS)}, with - before it for descending")
    if change and change not in CHANGES:
        raise InvalidQuery("change", f"one of {', '.join(CHANGES)}")
    rows = [
        row
        for row in found.rows
        if (not family or row.family == family)
        and (not change or row.change == change)
        and all(word in row.name.casefold() for word in words)
    ]
    if key in ("name", "family"):
        rows.sort(key=lambda row: (str(getattr(row, key)).casefold(), row.name), reverse=descending)
    elif key != "difference_s":
        known = [row for row in rows if getattr(row, key) is not None]
        rest = [row for row in rows if getattr(row, key) is None]
        rows = sorted(known, key=lambda row: (getattr(row, key), row.name), reverse=descending) + rest
    return paged(rows, limit, cursor)


# --- JSON ----------------------------------------------------------------------------------------------------------


def kernel_json(row: KernelRow) -> dict[str, Any]:
    """A row in the API's shape; what is not reported is left out."""
    shown: dict[str, Any] = {"name": row.name, "family": row.family}
    for name in NUMBERS:
        value = getattr(row, name)
        if value is not None:
            shown[name] = int(value) if name == "count" and float(value).is_integer() else value
    for name, value in (("flop_per_s", row.flop_per_s), ("hbm_bytes_per_s", row.hbm_bytes_per_s)):
        if value is not None:
            shown[name] = value
    for name in ("precision", "work_from"):
        if getattr(row, name) is not None:
            shown[name] = getattr(row, name)
    if row.is_copy:
        shown["is_copy"] = True
    return {**dict(row.more), **shown}


def family_json(row: FamilyRow) -> dict[str, Any]:
    shown = {"family": row.family, "names": row.names, "count": row.count, "time_s": row.time_s, "share": row.share}
    return shown if row.on_path_s is None else {**shown, "on_path_s": row.on_path_s}


def summary_json(run: StoredRun) -> dict[str, Any] | None:
    """The timeline without its drawing; None where the file tells nothing of time on the device or the host."""
    told = run.parsed.timeline
    return None if not told else {key: value for key, value in told.items() if key != "drawing"}


def timeline_json(run: StoredRun, view: TimelineView | None) -> dict[str, Any]:
    """The timeline's parts and the asked part of its drawing."""
    answer: dict[str, Any] = {"summary": summary_json(run), "lanes": [], "bars": [], "from_s": None, "to_s": None}
    if view is None:
        return answer
    return answer | {
        "from_s": view.start_s,
        "to_s": view.end_s,
        "lanes": [{"device": lane.device, "stream": lane.stream} for lane in view.lanes],
        "bars": [
            {name: getattr(bar, name) for name in ("lane", "start_s", "length_s", "busy_s", "name", "family", "count")}
            for bar in view.bars
        ],
    }


def change_json(row: KernelChange) -> dict[str, Any]:
    names = ("name", "family", "change", "before_s", "after_s", "before_count", "after_count")
    derived = ("difference_s", "ratio", "mean_ratio")
    return {name: getattr(row, name) for name in (*names, *derived)}


def comparison_json(found: KernelComparison, page: Page[KernelChange]) -> dict[str, Any]:
    """A comparison: totals, families and one page of rows."""
    return {
        "run": found.after.id,
        "baseline": found.before.id,
        "before_s": found.before_s,
        "after_s": found.after_s,
        "difference_s": found.after_s - found.before_s,
        "counts": dict(found.counts()),
        "families": [
            {
                "family": row.family,
                "before_s": row.before_s,
                "after_s": row.after_s,
                "difference_s": row.difference_s,
                "before_count": row.before_count,
                "after_count": row.after_count,
            }
            for row in found.families
        ],
        "items": [change_json(row) for row in page.items],
        "next": page.next,
        "total": page.total,
    }
