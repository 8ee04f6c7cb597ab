"""The points of a micro-benchmark's run as charts, with the other runs of its file that belong beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from app.domain.run import ParsedRun
from app.services.context import Context
from app.storage import runs
from app.storage.records import RunSummary, StoredRun

MOST_RUNS = 60
MOST_LINES = 6
"""Lines that one chart tells apart; the run's own come first."""

MOST_CHARTS = 3


@dataclass(frozen=True, slots=True)
class MeasuredAt:
    """One point of a line: its place on the axis, its value in SI units, its name and the run it is of."""

    x: float
    y: float
    name: str
    run_id: str


@dataclass(frozen=True, slots=True)
class PointChart:
    """One measured quantity over what was varied. `lines` maps labels to points by rising x; the run's own come first.

    `own` says how many of them are this run's. Where the axis is not `ordered`, its values are names with numbers; a
    `linear` one is never drawn as a logarithm.
    """

    key: str
    label: str
    unit: str
    x_label: str
    x_unit: str
    lines: Mapping[str, tuple[MeasuredAt, ...]]
    own: int
    ordered: bool = True
    linear: bool = False


def sweep_of(parsed: ParsedRun) -> Mapping[str, Any] | None:
    """What an importer says of the rows of a swept run; None where the rows are something else."""
    sweep = parsed.workload.extra.get("sweep")
    return sweep if isinstance(sweep, Mapping) and parsed.kernels else None


def point_charts(ctx: Context, run: StoredRun, siblings: Sequence[RunSummary]) -> tuple[PointChart, ...]:
    """A chart for each quantity that at least two of the run's points state; none where the rows are no sweep."""
    sweep = sweep_of(run.parsed)
    if sweep is None:
        return ()
    others = _alike(ctx, run, siblings, sweep)
    charts = []
    for axis in [axis for axis in sweep.get("y", ()) if axis.get("charted", True)][:MOST_CHARTS]:
        own = _lines(run, sweep, axis["key"], several=True)
        if max((len(line) for line in own.values()), default=0) < 2:
            continue
        lines = dict(own)
        for other, told in others:
            for name, line in _lines(other, told, axis["key"], several=False).items():
                if len(lines) < MOST_LINES and len(line) > 1:
                    lines.setdefault(name, line)
        charts.append(
            PointChart(
                key=axis["key"],
                label=axis["label"],
                unit=axis["unit"],
                x_label=sweep["x_label"],
                x_unit=sweep["x_unit"],
                lines=dict(list(lines.items())[:MOST_LINES]),
                own=min(len(own), MOST_LINES),
                ordered=bool(sweep.get("ordered", True)),
            )
        )
    return tuple(charts)


def _alike(
    ctx: Context, run: StoredRun, siblings: Sequence[RunSummary], sweep: Mapping[str, Any]
) -> list[tuple[StoredRun, Mapping[str, Any]]]:
    """Runs of the same file whose points go into the same chart."""
    found = []
    with ctx.storage.read() as session:
        for summary in siblings[:MOST_RUNS]:
            if summary.id == run.id:
                continue
            other = runs.get_run(session=session, run_id=summary.id)
            told = sweep_of(other.parsed)
            if told is not None and told.get("group") == sweep.get("group") and told.get("x") == sweep.get("x"):
                found.append((other, told))
            if len(found) >= MOST_LINES:
                break
    return found


def _lines(run: StoredRun, sweep: Mapping[str, Any], key: str, *, several: bool) -> dict[str, tuple[MeasuredAt, ...]]:
    """The points by line. Of another run, without `several`, only the first line is shown: the one it is known by."""
    x, parts = sweep["x"], sweep.get("lines", ())
    found: dict[str, list[MeasuredAt]] = {}
    for row in run.parsed.kernels:
        where, value = row.get(x), row.get(key)
        if not _is_number(where) or not _is_number(value):
            continue
        words = [_word(part, row[part]) for part in parts if part in row]
        name = ", ".join([str(sweep.get("label", "")), *words]) if words else str(sweep.get("label", ""))
        found.setdefault(name, []).append(MeasuredAt(float(where), float(value), str(row.get("name", "")), run.id))
    ordered = {name: tuple(sorted(line, key=lambda point: point.x)) for name, line in found.items()}
    if several or len(ordered) < 2:
        return ordered
    name, line = next(iter(ordered.items()))
    return {name: line}


def best_point(run: ParsedRun) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The axis that a swept run is known by, and its row: the highest rate, or the time of the largest size.

    Where the rows are ranks, a step waits for the slowest; rows that are problems have no one to stand for them.
    """
    sweep = sweep_of(run)
    if sweep is None or sweep["x"] == "problem":
        return None
    for axis in sweep.get("y", ()):
        rows = [row for row in run.kernels if _is_number(row.get(axis["key"])) and not row.get("wrong")]
        if not rows:
            continue
        if axis["unit"].endswith("/s"):
            return axis, max(rows, key=lambda row: row[axis["key"]])
        if not sweep.get("ordered", True):
            return axis, max(rows, key=lambda row: row[axis["key"]])
        return axis, max(rows, key=lambda row: row[sweep["x"]] if _is_number(row.get(sweep["x"])) else 0.0)
    return None


_STEP_CHARTS = (
    ("step_time_s", "Step time", "s"),
    ("tokens_per_s_per_device", "Throughput of a device", "tokens/s"),
    ("loss", "Loss", ""),
)


def step_charts(run: StoredRun) -> tuple[PointChart, ...]:
    """Step time (or throughput, where no times are logged) and loss over the steps of a training log."""
    steps = run.parsed.workload.extra.get("steps")
    if not isinstance(steps, Mapping) or not steps.get("steady_from"):
        return ()
    first, last = float(steps["steady_from"]), float(steps["last"])
    charts: list[PointChart] = []
    for key, label, unit in _STEP_CHARTS:
        values = run.parsed.samples.get(key, ())
        if len(values) < 3 or (key == "tokens_per_s_per_device" and charts):
            continue
        # Steps are logged at even distances, and an even part of them is kept.
        each = (last - first) / (len(values) - 1)
        line = tuple(
            MeasuredAt(round(first + place * each), value, f"Step {first + place * each:.0f}", "")
            for place, value in enumerate(values)
        )
        charts.append(PointChart(key, label, unit, "Step", "", {label: line}, 1, linear=True))
    return tuple(charts)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _word(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value if key in ("placement", "type", "redop") else f"{key} {value}"
    return f"{key} {value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{key} {value:g}"


def points_table(run: ParsedRun, most: int) -> Mapping[str, Any] | None:
    """The rows as a table: what was varied, then what was measured, with the file's place of each as a note."""
    sweep = sweep_of(run)
    if sweep is None:
        return None
    rows = run.kernels[:most]
    axes = [axis for axis in sweep.get("y", ()) if any(axis["key"] in row for row in rows)]
    known = {"name", "family", "at", "time_s", *(axis["key"] for axis in axes)}
    x = sweep["x"]
    further = [
        key
        for key in dict.fromkeys(k for row in rows for k in row)
        if key not in known and key != x and len({str(row.get(key)) for row in rows}) > 1 and key not in sweep["lines"]
    ][:4]
    columns: list[dict[str, Any]] = [{"label": "Point", "head": True, "wrap": True}]
    columns += [{"label": axis["label"], "unit": axis["unit"]} for axis in axes]
    columns += [_column(key) for key in further]
    table = [
        [
            {"text": str(row.get("name", "")), "note": str(row.get("at", ""))},
            *(row.get(axis["key"]) for axis in axes),
            *(row.get(key) for key in further),
        ]
        for row in rows
    ]
    return {"columns": columns, "rows": table}


_UNIT_OF_SUFFIX = (("_bytes_per_s", "B/s"), ("_flop_per_s", "FLOP/s"), ("_bytes", "B"), ("_s", "s"))


def _column(key: str) -> dict[str, Any]:
    for suffix, unit in _UNIT_OF_SUFFIX:
        if key.endswith(suffix):
            return {"label": key.removesuffix(suffix).replace("_", " ").capitalize(), "unit": unit}
    return {"label": key.replace("_", " "), "numeric": True}
