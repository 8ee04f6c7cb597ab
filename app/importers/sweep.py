"""Tables of measured points: one run for each subject, its points as kernel rows.

A micro-benchmark writes a line for every size, implementation and pass. As a run each they would flood every list,
and no two of them would be worth comparing. So one run is one subject under test (a collective, a kernel of one
provider, a column of a report) in one setting, and what it was swept over are its rows. The metrics of the run are
those of its largest point, which `series` names: two files of the same sweep then compare like with like. What the
rows mean stands in `workload.extra["sweep"]`, so that a page can chart them, with the other subjects of the file as
further lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import METRIC_UNITS, Finding, ParsedRun, RunWorkload
from app.importers.base import UnreadableUpload
from app.importers.fields import Fields
from app.importers.reading import clean
from app.importers.spelled_out import with_words

MOST_POINTS = 5_000
"""Rows of one run; a table of more is no sweep that anybody looks at."""

TIMES = ("kernel_time_s", "latency_s")


@dataclass(frozen=True, slots=True)
class Reading:
    """One number of a point: SI value, what was written and in which unit, and a statistic where it is one."""

    value: float
    raw: object
    unit: str


@dataclass(slots=True)
class Point:
    """One line of a table. `x` are its coordinates, `readings` its numbers by metric key (`kernel_time_s.p50`)."""

    at: str
    x: dict[str, float | str]
    readings: dict[str, Reading] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    def value(self, key: str) -> float | None:
        return self.readings[key].value if key in self.readings else None


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied or measured: its key in a row, its words, and its unit (empty for plain counts).

    One that is not `charted` stands in the table only, where it says the same as another one by a factor. Values of one
    that is not `ordered` (ranks, problems) are names with numbers: no line joins them.
    """

    key: str
    label: str
    unit: str = ""
    charted: bool = True
    ordered: bool = True


def row_of(point: Point, family: str) -> dict[str, Any]:
    """The point as a kernel row. `time_s` is its median or mean time; statistics beside it keep their names."""
    row: dict[str, Any] = {"name": point.name or "point", "family": family}
    for key in (f"{name}{stat}" for name in TIMES for stat in ("", ".p50", ".mean")):
        if key in point.readings:
            row["time_s"] = point.readings[key].value
            break
    row |= point.x
    for key, reading in point.readings.items():
        name, _, stat = key.partition(".")
        if name in TIMES:
            if stat not in ("", "p50", "mean") or row["time_s"] != reading.value:
                row[f"time_{stat}_s" if stat else "time_s"] = reading.value
        else:
            row[f"{name}.{stat}" if stat not in ("", "p50") else name] = reading.value
    row |= {key: value for key, value in point.other.items() if value is not None}
    row["at"] = point.at
    return row


def sweep_run(
    name: str,
    points: Sequence[Point],
    *,
    family: str,
    x: Axis,
    y: Sequence[Axis],
    group: str,
    label: str,
    lines: Sequence[str] = (),
    head: Point | None = None,
    extra: Mapping[str, Any] | None = None,
    series: Mapping[str, float | str] | None = None,
    counts: Mapping[str, int] | None = None,
    model: str | None = None,
    hardware: str | None = None,
    parallel: Mapping[str, int] | None = None,
    software: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    measured_at: str | None = None,
    findings: Iterable[Finding] = (),
    metrics: Fields | None = None,
) -> ParsedRun:
    """A run of these points, which must not be empty.

    `head` is the point whose numbers become the run's metrics, without it the largest by `x`. `lines` are row keys
    that part the points into lines; runs of the same `group` share a chart, and `label` tells this one apart there.
    `metrics` are further ones, of the table as a whole.
    """
    if len(points) > MOST_POINTS:
        raise UnreadableUpload(
            "too-large", f"{name} has more than {MOST_POINTS} rows.", hint="Split the file, or leave rows out."
        )
    head = head or largest(points, x.key)
    record = metrics or Fields({})
    for key, reading in head.readings.items():
        metric, _, stat = key.partition(".")
        if metric in METRIC_UNITS:
            record.add(
                metric,
                reading.value,
                at=head.at,
                raw=reading.raw,
                raw_unit=reading.unit,
                stat=stat or None,
                count=(counts or {}).get(metric),
            )
    told = {key: value for key, value in (extra or {}).items() if value is not None}
    shown = [axis for axis in y if any(axis.key in row_of(point, family) for point in points)]
    told["sweep"] = {
        "x": x.key,
        "x_label": x.label,
        "x_unit": x.unit,
        "ordered": x.ordered,
        "y": [{"key": axis.key, "label": axis.label, "unit": axis.unit, "charted": axis.charted} for axis in shown],
        "lines": list(lines),
        "group": group,
        "label": label,
        "points": len(points),
    }
    told_series = dict(series or {}) | {key: value for key, value in head.x.items() if key == x.key}
    return ParsedRun(
        name=clean(name, 200),
        metrics=tuple(record.metrics),
        workload=RunWorkload(mode="kernel", dtypes=dict(dtypes or {}), extra=with_words(told)),
        model_hint=model,
        hardware_hint=hardware,
        parallel=dict(parallel or {}),
        software=dict(software or {}),
        kernels=tuple(row_of(point, family) for point in points),
        measured_at=measured_at,
        series=told_series,
        findings=tuple(findings),
    )


def largest(points: Sequence[Point], key: str) -> Point:
    """The point with the largest numeric coordinate; the last one where the coordinate is no number."""
    numbers = [point for point in points if isinstance(point.x.get(key), (int, float))]
    return max(numbers, key=lambda point: float(point.x[key])) if numbers else points[-1]


def most_runs(count: int, limit: int) -> None:
    """Raises UnreadableUpload where a file would become more runs than are stored."""
    if count > limit:
        raise UnreadableUpload(
            "too-large",
            f"The file holds {count} subjects, more than {limit}.",
            hint="Filter it by kernel, device or version, and upload the parts.",
        )


def size_words(size: float) -> str:
    """A size as it is in the file, all its digits: 134217728, not 1.34218e+08."""
    return f"{size:.0f}" if size == round(size) and abs(size) < 1e15 else f"{size:g}"


def bytes_word(size: float) -> str:
    """A message size as people say it: 8 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.0f} B"
