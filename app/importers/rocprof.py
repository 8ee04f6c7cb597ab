"""ROCm profiles as CSV: rocprof's statistics, rocprofv3's kernel traces, and the tables of rocprof-compute (Omniperf).

A table of dispatches with start and end gives a timeline without launch times; statistics give rows only. Bytes come
from the counters of the L2's memory side where the table has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from app.domain.kernels import FAMILY_IDS, kind_of
from app.domain.run import Finding, ParsedRun, RunWorkload
from app.domain.timeline import COMMUNICATION, COMPUTE, UNKNOWN, Activities, merged, timeline, union_time
from app.importers import kernel_rows
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields
from app.importers.logs import text_findings
from app.importers.reading import Content, clean
from app.importers.tables import cells_of, numbered_rows, whole_lines

_STATS: Final = frozenset({"name", "calls", "totaldurationns"})
_DISPATCHES: Final = frozenset({"kernel_name", "start_timestamp", "end_timestamp"})
_API: Final = re.compile(r"(?:__)?(?:hip|hsa_|roctx)")
_COMPUTE_COLUMNS: Final = frozenset({"gpu_id", "grid_size", "lds_per_workgroup"})
_MOST_CALLS: Final = 100


class _Tables:
    """What the two formats share: a CSV whose header tells what it holds."""

    tried_on_real_file = True
    id = ""
    title = ""

    def parse(self, content: Content) -> ParsedUpload:
        """One run with a row for each kernel name. Raises UnreadableUpload where no kernel has a duration."""
        header, rows = _table(content)
        names = {name.lower() for name in header}
        run = _of_stats(content, rows) if names >= _STATS else _of_dispatches(content, rows)
        return ParsedUpload(self.id, (run,), text_findings(content))


class Rocprof(_Tables):
    """rocprof and rocprofv3; see the module."""

    id = "rocprof"
    title = "rocprof CSV"

    def sniff(self, content: Content) -> Sniff:
        """Statistics by name, or a trace of dispatches that is not rocprof-compute's."""
        names = _header_names(content)
        if names >= _STATS:
            return Sniff(0.9, "Name, Calls, TotalDurationNs")
        if names >= _DISPATCHES and not names >= _COMPUTE_COLUMNS:
            return Sniff(0.9, "dispatches with Start_Timestamp and End_Timestamp")
        return Sniff(0, "no statistics and no dispatches")


class RocprofCompute(_Tables):
    """rocprof-compute and Omniperf; see the module."""

    id = "rocprof-compute-csv"
    title = "rocprof-compute CSV"

    def sniff(self, content: Content) -> Sniff:
        """Dispatches with the columns of both generations of the tool."""
        names = _header_names(content)
        found = names >= _DISPATCHES | _COMPUTE_COLUMNS
        return Sniff(0.92, "dispatches of rocprof-compute") if found else Sniff(0, "no dispatches with GPU_ID")


def _header_names(content: Content) -> set[str]:
    first = next((line for line in content.head.split("\n") if line.strip()), "")
    return {name.lower() for name in cells_of(first, ",")} if len(first) < 60_000 else set()


def _table(content: Content) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header and the rows by lower-case column; rows of another width are left out."""
    header: list[str] = []
    rows: list[tuple[int, dict[str, str]]] = []
    for line, cells in numbered_rows(whole_lines(content, ","), ","):
        if not header:
            header = cells if any(cells) else []
        elif len(cells) == len(header):
            rows.append((line, dict(zip((name.lower() for name in header), cells, strict=True))))
    return header, rows


def _title(content: Content) -> str:
    name = re.sub(r"\.csv(?:\.gz)?$", "", content.filename or "", flags=re.IGNORECASE)
    return clean(name.replace("\\", "/").rsplit("/", 1)[-1], 120) or "rocprof"


def _count(text: str | None) -> int | None:
    plain = (text or "").strip()
    return int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 19 else None


# --- statistics ----------------------------------------------------------------------------------------------------


def _of_stats(content: Content, rows: list[tuple[int, dict[str, str]]]) -> ParsedRun:
    """Statistics are of kernels, or of the host's calls: the names tell."""
    found: list[dict[str, Any]] = []
    for line, cells in rows:
        times, total = _count(cells["calls"]), _count(cells["totaldurationns"])
        if times is None or total is None:
            continue
        row: dict[str, Any] = {
            "name": kernel_rows.kernel_name(cells["name"].strip()),
            "count": times,
            "time_s": total * 1e-9,
            "line": line,
        }
        for key, column in (("mean_s", "averagens"), ("min_s", "minns"), ("max_s", "maxns")):
            try:
                value = float(cells.get(column, ""))
            except ValueError:
                continue
            if 0 <= value < 1e18:
                row[key] = value * 1e-9
        found.append(row)
    if not found:
        raise UnreadableUpload(
            "invalid",
            "This is a rocprof table of statistics without a row.",
            hint="Check that the program ran a kernel.",
        )
    calls = [row for row in found if _API.match(row["name"])]
    kernels = [row for row in found if not _API.match(row["name"])]
    record = Fields({})
    findings: list[Finding] = []
    if kernels:
        _kernel_time(record, kernels, "TotalDurationNs of all kernels, added")
    else:
        findings.append(
            Finding(
                "no-kernel-report",
                "warning",
                "These are statistics of the host's calls: nothing is known of the device's time. The file "
                "results.stats.csv beside it has the kernels.",
            )
        )
    return ParsedRun(
        name=_title(content),
        metrics=tuple(record.metrics),
        workload=RunWorkload(),
        software={"profiler": "rocprof"},
        kernels=kernel_rows.with_shares(kernels),
        timeline=_host(calls) if calls else None,
        findings=(*findings, *kernel_rows.too_many_names(len(kernels))),
    )


def _kernel_time(record: Fields, rows: list[dict[str, Any]], said: str) -> None:
    record.add(
        "kernel_time_s",
        sum(row["time_s"] for row in rows),
        at=f"line {min(row['line'] for row in rows)}",
        raw=said,
        raw_unit="ns",
        count=sum(row["count"] for row in rows),
    )


def _host(calls: list[dict[str, Any]]) -> dict[str, Any]:
    host: dict[str, Any] = {}
    for key, word in (("launches", "LaunchKernel"), ("graph_launches", "GraphLaunch"), ("waits", "Synchronize")):
        found = [row for row in calls if word in row["name"]]
        if found:
            host[key] = sum(row["count"] for row in found)
            host[f"{key}_time_s"] = sum(row["time_s"] for row in found)
    ordered = sorted(calls, key=lambda row: -row["time_s"])[:_MOST_CALLS]
    return {"host": {**host, "calls": [{key: row[key] for key in ("name", "count", "time_s")} for row in ordered]}}


# --- dispatches ----------------------------------------------------------------------------------------------------


def _of_dispatches(content: Content, rows: list[tuple[int, dict[str, str]]]) -> ParsedRun:
    """Kernels with start and end, in nanoseconds on the device's clock."""
    kept: list[tuple[int, dict[str, str], int, int]] = []
    rounded = 0
    for line, cells in rows:
        start, end = _count(cells["start_timestamp"]), _count(cells["end_timestamp"])
        if start is None or end is None or end <= start:
            # a spreadsheet has turned 811000123456789 into 8.11E+14: both ends are alike then
            rounded += bool(re.search(r"[eE]\+", cells["start_timestamp"] + cells["end_timestamp"]))
            continue
        kept.append((line, cells, start, end))
    if not kept:
        hint = "A spreadsheet rounded the timestamps: upload the file as the tool wrote it." if rounded else ""
        raise UnreadableUpload(
            "invalid",
            "This is a table of dispatches in which no kernel has a duration.",
            hint=hint or "Check that the program ran a kernel.",
        )
    findings: list[Finding] = []
    if len(kept) < len(rows):
        why = "their timestamps were rounded by a spreadsheet" if rounded else "they have no usable start and end"
        findings.append(
            Finding(
                "no-duration",
                "warning",
                f"{len(rows) - len(kept):,} of {len(rows):,} dispatches were left out: {why}.",
                ("Start_Timestamp", "End_Timestamp"),
            )
        )
    names: dict[str, int] = {}
    number = [
        names.setdefault(kernel_rows.kernel_name(cells["kernel_name"].strip()), len(names)) for _, cells, _, _ in kept
    ]
    ran = _activities(kept, number, list(names))
    split = timeline(ran)
    found = _rows(kept, number, list(names), split.on_path, split.gap_before)
    record = Fields({})
    _kernel_time(record, found, f"End_Timestamp - Start_Timestamp of {len(kept)} dispatches, added")
    origin = int(ran.start.min())
    record.add(
        "duration_s",
        float(ran.end.max() - ran.start.min()) * 1e-9,
        at=f"line {kept[0][0]}",
        raw="from the first start to the last end",
        raw_unit="ns",
    )
    lanes, lane = kernel_rows.lanes_of(ran)
    listed = dict(enumerate(names))
    families = np.array([FAMILY_IDS.index(kind_of(name).family) for name in names])[ran.name]
    time = np.bincount(families, weights=(ran.end - ran.start).astype(float), minlength=len(FAMILY_IDS)) * 1e-9
    held = np.bincount(families, weights=split.on_path, minlength=len(FAMILY_IDS))
    many = np.bincount(families, minlength=len(FAMILY_IDS))
    drawn = kernel_rows.timeline_json(
        split,
        events=len(rows),
        kernels=len(kept),
        copies=0,
        kernel_time_s=float((ran.end - ran.start).sum()) * 1e-9,
        kernel_busy_s=sum(
            union_time(ran.start[ran.device == device], ran.end[ran.device == device])
            for device in np.unique(ran.device)
        ),
        communication_kernels=int((ran.kind == COMMUNICATION).sum()),
        communication_kernel_time_s=float((ran.end - ran.start)[ran.kind == COMMUNICATION].sum()) * 1e-9,
        families=[
            {"family": name, "count": int(many[i]), "time_s": float(time[i]), "on_path_s": float(held[i])}
            for i, name in enumerate(FAMILY_IDS)
            if many[i]
        ],
        steps=[],
        drawing=kernel_rows.drawing_json(
            merged(ran, lane, kernel_rows.MAX_CELLS),
            lanes,
            listed,
            {place: kind_of(name).family for place, name in listed.items()},
            origin,
        ),
    )
    return ParsedRun(
        name=_title(content),
        metrics=tuple(record.metrics),
        workload=RunWorkload(mode="kernel"),
        software={"profiler": "rocprof"},
        kernels=kernel_rows.with_shares(found),
        timeline=drawn,
        findings=(*findings, *kernel_rows.too_many_names(len(found))),
    )


def _activities(kept: list[tuple[int, dict[str, str], int, int]], number: list[int], names: list[str]) -> Activities:
    kinds = [COMMUNICATION if kind_of(name).communicates else COMPUTE for name in names]
    agents: dict[str, int] = {}

    def device(cells: Mapping[str, str]) -> int:
        return agents.setdefault(cells.get("agent_id") or cells.get("gpu_id") or "", len(agents))

    return Activities(
        start=np.array([start for _, _, start, _ in kept], np.int64),
        end=np.array([end for _, _, _, end in kept], np.int64),
        launched=np.full(len(kept), UNKNOWN, np.int64),
        kind=np.array([kinds[place] for place in number], np.int8),
        device=np.array([device(cells) for _, cells, _, _ in kept], np.int32),
        stream=np.array(
            [_count(cells.get("queue_id") or cells.get("queue-id")) or 0 for _, cells, _, _ in kept], np.int64
        ),
        name=np.array(number, np.int32),
    )


def _rows(
    kept: list[tuple[int, dict[str, str], int, int]], number: list[int], names: list[str], on_path: Any, gaps: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": name, "count": 0, "time_s": 0.0} for name in names]
    sizes: list[float | None] = [0.0] * len(names)
    for place, (line, cells, start, end), held, gap in zip(number, kept, on_path, gaps, strict=True):
        row, length = found[place], (end - start) * 1e-9
        row.setdefault("line", line)
        row["count"] += 1
        row["time_s"] += length
        row["min_s"], row["max_s"] = min(row.get("min_s", length), length), max(row.get("max_s", length), length)
        row["on_path_s"] = row.get("on_path_s", 0.0) + float(held)
        row["gap_before_s"] = row.get("gap_before_s", 0.0) + float(gap)
        moved, before = _bytes(cells), sizes[place]
        sizes[place] = None if moved is None or before is None else before + moved
    for row, size in zip(found, sizes, strict=True):
        row["mean_s"] = row["time_s"] / row["count"]
        if size is not None:
            row["hbm_bytes"], row["work_from"] = size, "counters"
    return found


def _bytes(cells: Mapping[str, str]) -> float | None:
    """Bytes between L2 and memory: requests of 128, 64 and 32 bytes for reads, of 64 and 32 for writes."""

    def counter(*names: str) -> float | None:
        for name in names:
            value = _sum(cells, name)
            if value is not None:
                return value
        return None

    reads, small = counter("tcc_ea0_rdreq", "tcc_ea_rdreq"), counter("tcc_ea0_rdreq_32b", "tcc_ea_rdreq_32b")
    writes, large = counter("tcc_ea0_wrreq", "tcc_ea_wrreq"), counter("tcc_ea0_wrreq_64b", "tcc_ea_wrreq_64b")
    if reads is None or small is None or writes is None or large is None:
        return None
    wide = counter("tcc_bubble") or 0.0
    return 128 * wide + 64 * (reads - small - wide) + 32 * small + 64 * large + 32 * (writes - large)


def _sum(cells: Mapping[str, str], name: str) -> float | None:
    """A counter's sum over channels: stated as such, or one column for each channel."""
    values = [cells[f"{name}_sum"]] if f"{name}_sum" in cells else list(_channels(cells, name))
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return sum(numbers) if numbers and all(0 <= value < 1e18 for value in numbers) else None


def _channels(cells: Mapping[str, str], name: str) -> Iterator[str]:
    place = 0
    while f"{name}[{place}]" in cells:
        yield cells[f"{name}[{place}]"]
        place += 1
