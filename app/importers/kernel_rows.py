"""Rows of device functions as every importer of kernels makes them, and the stored form of a timeline.

A row is `{"name", "family", "count", "time_s", "share"}` and of these what the file tells: `mean_s`, `min_s`, `max_s`;
`flop`, `hbm_bytes` and `l2_bytes` of all launches together (`work_from` says whether counters measured them or shapes
imply them: bytes from shapes are the least possible); `precision`; `on_path_s` (time that it held the device alone, see
app/domain/timeline.py), `gap_before_s` (idle time that it ended), `launch_delay_s` (mean, from the host's call to the
start); `dram_peak_bytes_per_s` and `l2_peak_bytes_per_s` as counters tell them, with `dram_peak_from` and
`l2_peak_from` (peak, share, throughput); `is_copy` for what the driver does without a kernel; further counters under
the profiler's words.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np

from app.domain.kernels import kind_of
from app.domain.run import Finding
from app.domain.timeline import Activities, Cells, Split, Timeline
from app.importers.reading import clean

MAX_ROWS: Final = 5000
"""Different names kept of one file. The rest of the time becomes one row, so that sums stay true."""

MAX_NAME: Final = 1000
MAX_CELLS: Final = 4000
MAX_STEPS: Final = 200
REST: Final = "(further kernels)"


def kernel_name(name: str) -> str:
    """A name fit to store. Long ones that differ only beyond the limit stay apart by a checksum of the whole."""
    if len(name) <= MAX_NAME:
        return clean(name, MAX_NAME) or "(unnamed)"
    return f"{clean(name[: MAX_NAME - 12], MAX_NAME)}…{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


def with_shares(rows: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Rows by time, the longest first, each with its family and its share of the time of all; at most MAX_ROWS."""
    ordered = sorted(rows, key=lambda row: (-row["time_s"], row["name"]))
    if len(ordered) > MAX_ROWS:
        kept, rest = ordered[: MAX_ROWS - 1], ordered[MAX_ROWS - 1 :]
        summed = {key: sum(row[key] for row in rest) for key in ("count", "time_s")}
        for key in ("on_path_s", "gap_before_s"):
            if all(key in row for row in rest):
                summed[key] = sum(row[key] for row in rest)
        ordered = [*kept, {"name": REST, "family": "other", **summed}]
    total = sum(row["time_s"] for row in ordered)
    for row in ordered:
        row.setdefault("family", kind_of(row["name"]).family)
        row["share"] = row["time_s"] / total if total > 0 else 0.0
    return tuple(ordered)


def too_many_names(rows: int) -> tuple[Finding, ...]:
    """What to say where names were left out of the rows."""
    if rows <= MAX_ROWS:
        return ()
    return (
        Finding(
            "kernel-names-merged",
            "info",
            f"The file has {rows:,} different kernel names; the {rows - MAX_ROWS + 1:,} of least time are one row.",
        ),
    )


def split_json(split: Split) -> dict[str, float]:
    """A split's parts under their names in the API."""
    shown = {f"{field.name}_s": getattr(split, field.name) for field in fields(split)}
    return shown | {"busy_s": split.busy, "idle_s": split.idle, "communication_s": split.communication}


def timeline_json(found: Timeline, **more: Any) -> dict[str, Any]:
    """The stored form: the whole, each device, and whatever the importer knows besides."""
    return {
        **split_json(found.whole),
        "gaps": sum(device.gaps for device in found.devices),
        "launch_gaps": sum(device.launch_gaps for device in found.devices),
        "longest_gap_s": max((device.longest_gap for device in found.devices), default=0.0),
        "devices": [{"device": device.device, **split_json(device.whole)} for device in found.devices],
        **more,
    }


def drawing_json(
    cells: Cells, lanes: list[dict[str, Any]], names: Mapping[int, str], families: Mapping[int, str], origin: int
) -> dict[str, Any]:
    """The drawing: lanes, names, and for each cell its lane, start, length and busy time (ns from `origin`)."""
    used = np.unique(cells.name)
    place = {int(name): index for index, name in enumerate(used)}
    return {
        "lanes": lanes,
        "names": [names[int(name)] for name in used],
        "families": [families[int(name)] for name in used],
        "lane": cells.lane.tolist(),
        "start_ns": (cells.start - origin).tolist(),
        "length_ns": (cells.end - cells.start).tolist(),
        "busy_ns": cells.busy.tolist(),
        "name": [place[name] for name in cells.name.tolist()],
        "count": cells.count.tolist(),
    }


def lanes_of(activities: Activities) -> tuple[list[dict[str, Any]], Any]:
    """Every (device, stream) that ran something, in order, and the lane of each activity."""
    devices, device = np.unique(activities.device, return_inverse=True)
    streams, stream = np.unique(activities.stream, return_inverse=True)
    found, lane = np.unique(device.astype(np.int64) * len(streams) + stream, return_inverse=True)
    lanes = [{"device": int(devices[key // len(streams)]), "stream": int(streams[key % len(streams)])} for key in found]
    return lanes, lane.astype(np.int32)
