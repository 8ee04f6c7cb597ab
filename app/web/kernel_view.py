"""What the templates of a run's kernels show: sentence, parts of the time, charts, and the table with its links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.charts.kernels import (
    CountedRoof,
    FamilyTime,
    RoofKernel,
    TimelineBar,
    family_changes,
    family_times,
    kernel_roofline,
    step_timeline,
)
from app.domain.hardware import HardwareProfile
from app.domain.kernels import FAMILY_TITLES, short_name
from app.domain.words import share_text
from app.services import kernels
from app.services.context import Context
from app.services.kernels import KernelComparison, KernelQuery, KernelRow
from app.services.run_list import RunQuery, list_runs
from app.storage.records import StoredRun
from app.web import formatting, rendering

PAGE = 25
MOST_STEPS = 40
MOST_ROOF = 200
CANDIDATES = 60

_COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    # key, heading, unit, which rows need it: empty for always
    ("count", "Launches", "count", ""),
    ("time_s", "Time", "s", ""),
    ("share", "Share", "ratio", ""),
    ("mean_s", "Mean", "s", "mean_s"),
    ("on_path_s", "Alone", "s", "on_path_s"),
    ("gap_before_s", "Idle before", "s", "gap_before_s"),
    ("launch_delay_s", "Launch to start", "s", "launch_delay_s"),
    ("flop_per_s", "Reached", "FLOP/s", "flop"),
    ("hbm_bytes_per_s", "DRAM", "B/s", "hbm_bytes"),
)
_HINTS: Mapping[str, str] = {
    "on_path_s": "Time for which the kernel held the device alone, or its part where several of its class ran",
    "gap_before_s": "Idle time of the device that ended with this kernel",
    "launch_delay_s": "Mean time from the host's launch call to the start on the device",
    "share": "Of the time of all rows",
    "hbm_bytes_per_s": "Bytes over time: measured by counters, or the least that the shapes allow",
}

_PARTS: tuple[tuple[str, str, str], ...] = (
    ("computing_s", "compute", "Computing alone"),
    ("overlapped_s", "link-far", "Computing beside communication"),
    ("exposed_s", "link-near", "Exposed communication"),
    ("copying_s", "hbm", "Copies alone"),
    ("launch_gap_s", "launch", "Idle: the host was late"),
    ("other_gap_s", "sync", "Idle: waiting for something else"),
    ("unknown_gap_s", "other", "Idle: cause not in the file"),
)


def section(
    ctx: Context, run: StoredRun, hardware: HardwareProfile | None, asked: Mapping[str, str], *, own_page: bool
) -> dict[str, Any] | None:
    """Everything about a run's kernels; None where the run has none and tells nothing of time. Raises InvalidQuery."""
    rows = kernels.rows_of(run)
    summary = kernels.summary_json(run) or {}
    if not rows and not summary:
        return None
    families = kernels.families_of(rows)
    base = f"/runs/{run.id}/kernels"
    return {
        "base": base,
        "own_page": own_page,
        "answer": _answer(rows, families, summary),
        "binding": _binding(summary),
        "split": _split(summary),
        "stats": _stats(summary),
        "families": _families_chart(families, summary) if families else None,
        "roofline": _roofline(rows, hardware),
        "roofline_note": _roofline_note(rows, hardware),
        "timeline": timeline_part(run, asked, base),
        "steps": _steps_table(summary, base),
        "devices": _devices_table(summary),
        "host": _host(summary),
        "calls": _calls_table(summary),
        "table": table_part(rows, asked, base) if rows else None,
        "others": others(ctx, run),
    }


# --- in words ------------------------------------------------------------------------------------------------------


def _answer(rows: tuple[KernelRow, ...], families: tuple[kernels.FamilyRow, ...], summary: Mapping[str, Any]) -> str:
    span = summary.get("span_s") or 0.0
    said = []
    if span > 0:
        said.append(f"The device is busy {share_text(summary['busy_s'] / span)} of {formatting.quantity(span, 's')}")
        if summary["launch_gap_s"] / span >= 0.005:
            said.append(f"idle {share_text(summary['launch_gap_s'] / span)} because the host launched late")
        if summary["exposed_s"] > 0:
            said.append(
                f"in exposed communication {share_text(summary['exposed_s'] / span)} "
                f"({formatting.quantity(summary['exposed_s'], 's')} of "
                f"{formatting.quantity(summary['communication_s'], 's')} communicating)"
            )
        elif summary["communication_s"] > 0:
            said.append("and all communication is hidden behind computation")
    sentence = ", ".join(said)
    if families:
        first = families[0]
        time = sum(row.time_s or 0.0 for row in rows)
        largest = f"{first.title[:1].lower() + first.title[1:] if first.title[1:2].islower() else first.title}"
        takes = "takes" if len(rows) == 1 else "take"
        head = f"{formatting.count(len(rows), 'kernel')} {takes} {formatting.quantity(time, 's')}"
        sentence = f"{sentence}. {head}" if sentence else head
        sentence += f"; {share_text(first.share)} of it is {largest}"
    return f"{sentence}." if sentence else "The file tells only what the host did."


def _binding(summary: Mapping[str, Any]) -> str:
    """The resource whose colour the sentence takes: what most of the span went to."""
    if not summary.get("span_s"):
        return ""
    return max(_PARTS, key=lambda part: float(summary.get(part[0]) or 0.0))[1]


def _split(summary: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    span = summary.get("span_s") or 0.0
    if span <= 0:
        return None
    return [
        {
            "resource": resource,
            "label": title,
            "value": summary[key],
            "text": f"{formatting.quantity(summary[key], 's')}, {share_text(summary[key] / span)}",
            "rest": key == "unknown_gap_s",
        }
        for key, resource, title in _PARTS
        if summary[key] > 0
    ]


def _stats(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    span = summary.get("span_s") or 0.0
    if span <= 0:
        return []
    computed = "from the starts and ends of every activity on the device"
    found: list[dict[str, Any]] = [
        {"label": "GPU busy", "value": summary["busy_s"] / span, "unit": "ratio", "resource": "compute"},
        {"label": "GPU idle", "value": summary["idle_s"] / span, "unit": "ratio", "resource": "other"},
    ]
    if summary["unknown_gap_s"] < summary["idle_s"]:
        found.append(
            {"label": "Launch-bound", "value": summary["launch_gap_s"] / span, "unit": "ratio", "resource": "launch"}
        )
    if summary["communication_s"] > 0:
        late = summary["host_late_s"] / summary["exposed_s"] if summary["exposed_s"] > 0 else 0.0
        found += [
            {
                "label": "Exposed communication",
                "value": summary["exposed_s"] / span,
                "unit": "ratio",
                "resource": "link-near",
                "note": f"of it {share_text(late)} before the host had launched what comes next" if late > 0 else "",
            },
            {
                "label": "Communication hidden",
                "value": summary["overlapped_s"] / summary["communication_s"],
                "unit": "ratio",
                "resource": "link-far",
            },
        ]
    return [{**stat, "source": {"kind": "computed", "note": computed}} for stat in found]


def _families_chart(families: tuple[kernels.FamilyRow, ...], summary: Mapping[str, Any]) -> Any:
    first = families[0]
    spec = family_times(
        [FamilyTime(row.family, row.time_s, row.share, row.count, row.names, row.on_path_s) for row in families],
        title=f"{first.title} takes {share_text(first.share)} of the kernel time",
        caption="Times of all streams added; copies of the driver included. A family may take less of the timeline."
        if summary.get("span_s")
        else "Times of all kernels added.",
    )
    return spec


def _host(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    host = summary.get("host") or {}
    found: list[tuple[str, str]] = []
    for key, words in (("launches", "Kernel launches"), ("graph_launches", "Graph launches"), ("waits", "Waits")):
        if host.get(key):
            time = host.get(f"{key}_time_s")
            said = f", {formatting.quantity(time, 's')} in the calls" if time is not None else ""
            found.append((words, f"{formatting.significant(host[key])}{said}"))
    if host.get("median_launch_delay_s") is not None:
        found.append(("Median from launch to start", str(formatting.quantity(host["median_launch_delay_s"], "s"))))
    for key, words in (("gaps", "Idle gaps"), ("launch_gaps", "of them launch-bound")):
        if summary.get(key) is not None:
            found.append((words, formatting.significant(summary[key])))
    if summary.get("longest_gap_s"):
        found.append(("Longest gap", str(formatting.quantity(summary["longest_gap_s"], "s"))))
    if "rank" in summary:
        world = f" of {summary['world_size']}" if "world_size" in summary else ""
        found.append(("Rank", f"{summary['rank']}{world}"))
    return found


# --- tables --------------------------------------------------------------------------------------------------------


def _steps_table(summary: Mapping[str, Any], base: str) -> dict[str, Any] | None:
    steps = list(summary.get("steps") or ())
    if not steps:
        return None
    rows = [
        [
            {
                "text": str(step["name"]),
                "href": rendering.query(base, **_range(step["start_s"], step["start_s"] + step["span_s"]))
                + "#kernel-timeline",
            },
            step["span_s"],
            step["busy_s"],
            step["exposed_s"],
            step["overlapped_s"],
            step["launch_gap_s"],
            step["other_gap_s"] + step["unknown_gap_s"],
        ]
        for step in steps[:MOST_STEPS]
    ]
    columns = [
        {"label": "Step", "head": True},
        {"label": "Time", "unit": "s", "title": "From its beginning to the next one's"},
        {"label": "Busy", "unit": "s"},
        {"label": "Exposed communication", "unit": "s"},
        {"label": "Hidden communication", "unit": "s"},
        {"label": "Host late", "unit": "s"},
        {"label": "Other idle", "unit": "s"},
    ]
    return {"columns": columns, "rows": rows, "more": len(steps) - len(rows)}


def _devices_table(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    devices = list(summary.get("devices") or ())
    if len(devices) < 2:
        return None
    keys = ("span_s", "busy_s", "exposed_s", "overlapped_s", "launch_gap_s", "idle_s")
    rows = [[f"device {device['device']}", *(device[key] for key in keys)] for device in devices[:64]]
    labels = ("Span", "Busy", "Exposed communication", "Hidden communication", "Host late", "Idle")
    columns: list[dict[str, Any]] = [{"label": "Device", "head": True}]
    return {"columns": columns + [{"label": text, "unit": "s"} for text in labels], "rows": rows}


def _calls_table(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    host = summary.get("host") or {}
    rows = [["call", row] for row in (host.get("calls") or ())[:15]]
    rows += [["range", row] for row in (host.get("ranges") or ())[:15]]
    if not rows:
        return None
    columns = [
        {"label": "On the host", "head": True, "wrap": True},
        {"label": "Kind"},
        {"label": "Times", "numeric": True},
        {"label": "Time", "unit": "s"},
    ]
    return {
        "columns": columns,
        "rows": [[row["name"], kind, row["count"], row["time_s"]] for kind, row in rows],
    }


def table_part(rows: tuple[KernelRow, ...], asked: Mapping[str, str], base: str) -> dict[str, Any]:
    """The searchable table: one page of rows, headings that sort, and links to the other pages."""
    query = KernelQuery(
        q=asked.get("q", "").strip()[:200] or None,
        family=asked.get("family", "").strip()[:60] or None,
        sort=asked.get("sort", "").strip()[:40] or "-time_s",
    )
    cursor = asked.get("cursor", "").strip()[:12] or None
    found = kernels.kernels_page(rows, query, limit=PAGE, cursor=cursor)
    kept = {"q": query.q, "family": query.family}
    shown = [column for column in _COLUMNS if not column[3] or any(getattr(row, column[3]) is not None for row in rows)]
    headings = [
        {
            "label": label,
            "key": key,
            "numeric": True,
            "title": _HINTS.get(key, ""),
            **_sorting(base, kept, query, key),
        }
        for key, label, _, _ in shown
    ]
    scales = [None if unit in ("", "count") else _scale(found.page.items, key, unit) for key, _, unit, _ in shown]
    for heading, scale in zip(headings, scales, strict=True):
        heading["unit_text"] = scale.unit_text if scale is not None and scale.unit_text != "%" else ""
    start = int(cursor) if cursor and cursor.isdigit() else 0
    families = sorted({row.family for row in rows}, key=lambda family: FAMILY_TITLES.get(family, family))
    state = {**kept, "sort": None if query.sort == "-time_s" else query.sort}
    previous = str(max(start - PAGE, 0)) if start else None
    return {
        "query": query,
        "families": [("", "Any family"), *((family, FAMILY_TITLES.get(family, family)) for family in families)],
        "name_heading": {
            "label": "Kernel",
            "key": "name",
            "numeric": False,
            "title": "",
            **_sorting(base, kept, query, "name"),
        },
        "headings": headings,
        "lines": [_line(row, shown, scales) for row in found.page.items],
        "total": found.page.total,
        "of": len(rows),
        "text": f"{start + 1:,} to {start + len(found.page.items):,}" if found.page.items else "",
        "matching": f"{formatting.quantity(found.time_s, 's')}, {share_text(found.share)} of the time"
        if query.q or query.family
        else "",
        "next_url": rendering.query(base, **state, cursor=found.page.next) + "#kernel-table" if found.page.next else "",
        "previous_url": rendering.query(base, **state, cursor=None if previous == "0" else previous) + "#kernel-table"
        if previous
        else "",
    }


def _sorting(base: str, kept: Mapping[str, Any], query: KernelQuery, key: str) -> dict[str, str]:
    current = query.sort.removeprefix("-")
    words = key in ("name", "family")
    descending = query.sort.startswith("-")
    following = key if words else f"-{key}"
    if current == key:
        following = key if descending else f"-{key}"
    order = "" if current != key else "descending" if descending else "ascending"
    return {"url": rendering.query(base, **kept, sort=following), "order": order}


def _scale(rows: tuple[KernelRow, ...], key: str, unit: str) -> formatting.Scale:
    return formatting.scale_for([getattr(row, key) for row in rows], unit)


def _line(
    row: KernelRow, shown: list[tuple[str, str, str, str]], scales: list[formatting.Scale | None]
) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    for (key, _, unit, _), scale in zip(shown, scales, strict=True):
        value = getattr(row, key)
        if value is None:
            cells.append({"text": None})
        elif unit == "count":
            cells.append({"text": formatting.significant(value)})
        elif unit == "ratio":
            cells.append({"text": formatting.percent(value)})
        else:
            note = f"{row.work_from}" if key in ("flop_per_s", "hbm_bytes_per_s") and row.work_from else ""
            assert scale is not None
            cells.append({"human": scale.show(value), "source": _source(note) if note else None})
    short = short_name(row.name)
    family = FAMILY_TITLES.get(row.family, row.family)
    return {"short": short, "name": row.name, "differs": short != row.name, "family": family, "cells": cells}


def _source(work_from: str) -> dict[str, str]:
    if work_from == "counters":
        return {"kind": "measured", "note": "the device's counters, over the kernel's time"}
    return {"kind": "computed", "note": "from the shapes that the trace recorded; bytes are the least possible"}


# --- roofline ------------------------------------------------------------------------------------------------------


def _roofline(rows: tuple[KernelRow, ...], hardware: HardwareProfile | None) -> Any:
    points = [
        RoofKernel(
            name=row.name,
            family=row.family,
            time=row.time_s,
            share=row.share or 0.0,
            flop=row.flop,
            hbm_bytes=row.hbm_bytes,
            l2_bytes=row.l2_bytes,
            precision=row.precision,
            counted=row.work_from == "counters",
            l2_busy=_share(row.more.get("l2_throughput")),
        )
        for row in kernels.sorted_rows(rows, "-time_s")
        if row.flop and row.time_s and (row.hbm_bytes or row.l2_bytes)
    ][:MOST_ROOF]
    if not points:
        return None
    counted = any(point.counted for point in points)
    device = hardware.name if hardware is not None else "no device linked"
    dram, l2 = kernels.counter_peak(rows, "dram"), kernels.counter_peak(rows, "l2")
    return kernel_roofline(
        points,
        hardware,
        dram=_counted(dram),
        l2=_counted(l2),
        title=_roofline_title(points, hardware, dram),
        caption=f"{device}; "
        + (
            "solid points over DRAM bytes, open ones over L2 bytes, both by counters"
            if counted
            else "FLOP and least bytes from the shapes in the trace: the true intensity lies at or left of each point"
        )
        + ". Area: share of kernel time.",
    )


def _share(value: object) -> float | None:
    return value if isinstance(value, float) and 0 <= value < 10 else None


def _counted(peak: kernels.CounterPeak | None) -> CountedRoof | None:
    return None if peak is None else CountedRoof(peak.bytes_per_s, peak.basis == "throughput")


def _roofline_title(
    points: list[RoofKernel], hardware: HardwareProfile | None, dram: kernels.CounterPeak | None
) -> str:
    """What the kernel with the most time reaches of the roof that it is nearer to."""
    top = points[0]
    reached, moved = top.flop / top.time, None if top.hbm_bytes is None else top.hbm_bytes / top.time
    peak = hardware.peak.get(top.precision) if hardware is not None and top.precision else None
    memory = hardware.memory_bandwidth if hardware is not None else dram.bytes_per_s if dram is not None else None
    of_peak = reached / peak if peak else 0.0
    of_memory = moved / memory if moved is not None and memory else 0.0
    name = short_name(top.name, 40)
    # without a compute roof to hold against, only a kernel near that of the memory is said to be held by it
    if moved is not None and of_memory > (of_peak if peak else 0.5 if hardware is None else 0.0):
        least = "" if top.counted else "at least "
        rate = formatting.quantity(moved, "B/s", decimal=True)
        return f"{name} moves {least}{rate}, {share_text(of_memory)} of the DRAM peak"
    said = f"{name} reaches {formatting.quantity(reached, 'FLOP/s')}"
    return f"{said}, {share_text(of_peak)} of the {top.precision} peak" if peak else said


_PEAK_WORDS: Mapping[str, str] = {
    "peak": "the counter's peak a cycle times the clock",
    "share": "bytes over time, over the counter's share of its peak",
    "throughput": "bytes over time, over the level's throughput in per cent, which is its busiest part's; the peak is "
    "this or more",
}


def _roofline_note(rows: tuple[KernelRow, ...], hardware: HardwareProfile | None) -> str:
    """Where the roofs come from that no profile states, and which are missing for want of what."""
    if not any(row.flop for row in rows):
        return ""
    dram, l2 = kernels.counter_peak(rows, "dram"), kernels.counter_peak(rows, "l2")
    said = []
    if hardware is None:
        if dram is None:
            said.append("Link the device to see its roofs.")
        else:
            said.append(f"{_peak_said('DRAM', dram)} Link the device to see its compute roofs.")
    if any(row.flop and row.l2_bytes for row in rows):
        if l2 is not None:
            said.append(
                f"{_peak_said('L2', l2)} A kernel may be held earlier, by the part of the L2 that its hover names."
            )
        elif hardware is not None and hardware.achievable_l2_bandwidth is not None:
            said.append(
                "The L2 roof is what somebody achieved on such a device: this report lacks the counters that tell its "
                "own. Add lts__t_bytes.sum.pct_of_peak_sustained_elapsed to the metrics."
            )
        else:
            said.append(
                "The open points have no roof: the profile states no L2 bandwidth, and this report lacks the counters "
                "that tell it. Add lts__t_bytes.sum.pct_of_peak_sustained_elapsed to the metrics."
            )
    return " ".join(said)


def _peak_said(level: str, peak: kernels.CounterPeak) -> str:
    rate = formatting.quantity(peak.bytes_per_s, "B/s", decimal=True)
    return f"The {level} roof, {rate}, is the report's own at the clocks of the measurement: {_PEAK_WORDS[peak.basis]}."


# --- timeline ------------------------------------------------------------------------------------------------------


def timeline_part(run: StoredRun, asked: Mapping[str, str], base: str) -> dict[str, Any] | None:
    """The drawing of a stretch of time, and links that move or zoom it. Raises InvalidQuery for an impossible range."""
    view = kernels.timeline_view(run, _seconds(asked.get("from")), _seconds(asked.get("to")))
    if view is None:
        return None
    lanes = [_lane(lane, view.lanes) for lane in view.lanes]
    spec = step_timeline(
        [TimelineBar(lanes[b.lane], b.start_s, b.length_s, b.busy_s, b.name, b.family, b.count) for b in view.bars],
        lanes,
        view.steps,
        (view.start_s, view.end_s),
        title=f"{formatting.quantity(view.end_s - view.start_s, 's')} of {formatting.quantity(view.span_s, 's')}"
        f" on {formatting.count(len(lanes), 'stream')}",
        caption="One lane a stream. "
        + (
            "A bar may stand for several short kernels; zoom in to part them."
            if view.merged
            else "Every kernel is drawn."
        ),
    )
    start, end, span = view.start_s, view.end_s, view.span_s
    width, middle = end - start, (start + end) / 2
    moves = []
    if width < span * 0.999:
        wide = min(width * 4, span)
        left = min(max(middle - wide / 2, 0.0), span - wide)
        moves.append(("Whole", rendering.query(base)))
        moves.append(("Zoom out", rendering.query(base, **_range(left, left + wide))))
        if start > 0:
            back = max(start - width * 0.75, 0.0)
            moves.append(("Earlier", rendering.query(base, **_range(back, back + width))))
        if end < span:
            on = min(start + width * 0.75, span - width)
            moves.append(("Later", rendering.query(base, **_range(on, on + width))))
    if width > 2e-6:
        thirds = [("start", start), ("middle", start + width * 3 / 8), ("end", end - width / 4)]
        moves += [(f"Zoom to the {name}", rendering.query(base, **_range(at, at + width / 4))) for name, at in thirds]
    links = [(words, url, f"{url}{'&' if '?' in url else '?'}part=timeline") for words, url in moves]
    return {"spec": spec, "moves": links, "bars": len(view.bars)}


def _lane(lane: kernels.Lane, lanes: tuple[kernels.Lane, ...]) -> str:
    several = len({other.device for other in lanes}) > 1
    return f"GPU {lane.device}, stream {lane.stream}" if several else f"stream {lane.stream}"


def _range(start: float, end: float) -> dict[str, str]:
    return {"from": f"{start:.9g}", "to": f"{end:.9g}"}


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


# --- two runs ------------------------------------------------------------------------------------------------------


def others(ctx: Context, run: StoredRun) -> list[tuple[str, str]]:
    """Runs of the same format that this one can be compared with, the newest first."""
    page = list_runs(ctx, RunQuery(format=run.format), limit=CANDIDATES)
    return [
        (item.run.id, f"{item.run.name} ({item.run.created_at:%Y-%m-%d})")
        for item in page.items
        if item.run.id != run.id
    ]


_CHANGE_WORDS: Mapping[str, str] = {
    "slower": "slower",
    "faster": "faster",
    "added": "added",
    "removed": "removed",
    "same": "the same",
}


def comparison(found: KernelComparison, asked: Mapping[str, str]) -> dict[str, Any]:
    """What the page of two runs shows. Raises InvalidQuery for a wrong filter, sort or cursor."""
    base = f"/runs/{found.after.id}/kernels/compare"
    query = {key: asked.get(key, "").strip()[:200] or None for key in ("q", "family", "change")}
    sort = asked.get("sort", "").strip()[:40] or "difference_s"
    cursor = asked.get("cursor", "").strip()[:12] or None
    page = kernels.changes_page(found, **query, sort=sort, limit=PAGE, cursor=cursor)
    state = {"baseline": found.before.id, **query, "sort": None if sort == "difference_s" else sort}
    start = int(cursor) if cursor and cursor.isdigit() else 0
    previous = str(max(start - PAGE, 0)) if start else None
    difference, counts = found.after_s - found.before_s, found.counts()
    changed = next((row for row in found.families if row.difference_s), None)
    sentence = (
        f"Kernel time went from {formatting.quantity(found.before_s, 's')} to {formatting.quantity(found.after_s, 's')}"
    )
    if found.before_s > 0:
        sentence += f", {formatting.signed_percent(difference / found.before_s)}"
    if changed is not None:
        more = "more" if changed.difference_s > 0 else "less"
        sentence += f"; {changed.title} takes {formatting.quantity(abs(changed.difference_s), 's')} {more}"
    parts = _parts_beside(found)
    times = formatting.scale_for([value for row in page.items for value in (row.before_s, row.after_s)], "s")
    return {
        "answer": f"{sentence}.",
        "counts": [(change, _CHANGE_WORDS[change], counts[change]) for change in kernels.CHANGES if counts[change]],
        "chart": family_changes(
            [(row.family, row.before_s, row.after_s) for row in found.families],
            (f"{found.before.name} (before)", f"{found.after.name} (after)"),
            title="Kernel time by family",
            caption="Times of all streams added. The differences of the families add up to that of the whole.",
        ),
        "query": {**{key: value or "" for key, value in query.items()}, "sort": sort},
        "families": [
            ("", "Any family"),
            *sorted(((row.family, row.title) for row in found.families), key=lambda pair: pair[1]),
        ],
        "changes": [("", "Any change"), *((change, _CHANGE_WORDS[change]) for change in kernels.CHANGES)],
        "base": base,
        "unit": times.unit_text,
        "parts": parts,
        "lines": [_change_line(row, times) for row in page.items],
        "headings": [_change_heading(base, state, sort, *column) for column in _CHANGE_COLUMNS],
        "total": page.total,
        "text": f"{start + 1:,} to {start + len(page.items):,}" if page.items else "",
        "next_url": rendering.query(base, **state, cursor=page.next) if page.next else "",
        "previous_url": rendering.query(base, **state, cursor=None if previous == "0" else previous)
        if previous
        else "",
        "swap_url": rendering.query(f"/runs/{found.before.id}/kernels/compare", baseline=found.after.id),
    }


def _parts_beside(found: KernelComparison) -> dict[str, Any] | None:
    """The parts of both timelines; None unless both runs have one."""
    before, after = (kernels.summary_json(run) or {} for run in (found.before, found.after))
    if not before.get("span_s") or not after.get("span_s"):
        return None
    parts = [("span_s", "Whole span"), *((key, title) for key, _, title in _PARTS)]
    rows = [
        [title, before[key], before[key] / before["span_s"], after[key], after[key] / after["span_s"]]
        for key, title in parts
        if before[key] > 0 or after[key] > 0
    ]
    columns = [
        {"label": "Part of the timeline", "head": True},
        {"label": "Before", "unit": "s"},
        {"label": "Share before", "unit": "ratio"},
        {"label": "After", "unit": "s"},
        {"label": "Share after", "unit": "ratio"},
    ]
    return {"columns": columns, "rows": rows}


_CHANGE_COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("name", "Kernel", False),
    ("before_s", "Before", True),
    ("after_s", "After", True),
    ("difference_s", "Difference", True),
    ("ratio", "Total, after over before", True),
    ("mean_ratio", "One launch, after over before", True),
)


def _change_heading(
    base: str, state: Mapping[str, Any], sort: str, key: str, label: str, numeric: bool
) -> dict[str, Any]:
    current, descending = sort.removeprefix("-"), sort.startswith("-")
    if key == "difference_s":
        following, order = "difference_s", "descending" if current == key else ""
    else:
        following = (key if descending else f"-{key}") if current == key else (f"-{key}" if numeric else key)
        order = "" if current != key else "descending" if descending else "ascending"
    return {
        "key": key,
        "label": label,
        "numeric": numeric,
        "order": order,
        "url": rendering.query(base, **{**state, "sort": None if following == "difference_s" else following}),
    }


def _change_line(row: kernels.KernelChange, times: formatting.Scale) -> dict[str, Any]:
    short = short_name(row.name)
    return {
        "short": short,
        "name": row.name,
        "differs": short != row.name,
        "family": FAMILY_TITLES.get(row.family, row.family),
        "change": _CHANGE_WORDS[row.change],
        "kind": {"slower": "bad", "added": "warn", "faster": "good", "removed": "info"}.get(row.change, "neutral"),
        "before": None if row.before_s is None else times.show(row.before_s),
        "after": None if row.after_s is None else times.show(row.after_s),
        "before_count": None if row.before_count is None else formatting.count(row.before_count, "launch", "launches"),
        "after_count": None if row.after_count is None else formatting.count(row.after_count, "launch", "launches"),
        "difference": times.show(row.difference_s),
        "ratio": None if row.ratio is None else formatting.times(row.ratio),
        "mean_ratio": None if row.mean_ratio is None else formatting.times(row.mean_ratio),
    }
