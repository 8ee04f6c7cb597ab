"""History: the runs of a series over time, its baseline, where it changed, and a run's place in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from app.domain.comparison_metrics import metric_direction, metric_label, metric_unit, split_key
from app.domain.errors import InvalidInput
from app.services import run_json
from app.services import runs as run_service
from app.services.context import Context
from app.services.noise import METHOD, ChangePoint, change_points
from app.storage import runs
from app.storage.errors import NotFound
from app.storage.records import UNSET, RunChanges, RunSummary, StoredRun

MOST_RUNS = 200
"""Newest runs of a series that are shown; older ones stay stored."""

BACKFILL = 500

METRIC_ORDER: tuple[str, ...] = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "tokens_per_s_per_device",
    "requests_per_s",
    "samples_per_s",
    "step_time_s",
    "tpot_s",
    "ttft_s",
    "itl_s",
    "latency_s",
    "kernel_time_s",
)


@dataclass(frozen=True, slots=True)
class SeriesItem:
    """A series in a list."""

    key: str
    label: str
    runs: int
    newest: RunSummary
    hardware: str | None
    model: str | None


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a series: its value of the shown metric, and the spread of its samples (10th to 90th percentile)."""

    run: StoredRun
    when: datetime
    value: float | None
    low: float | None
    high: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class History:
    """One series under one metric, points from the oldest. `changes` index into `valued`, the points with a value."""

    key: str
    label: str
    hardware: str | None
    model: str | None
    metrics: tuple[str, ...]
    metric: str | None
    points: tuple[Point, ...]
    baseline: Point | None
    changes: tuple[ChangePoint, ...]
    total: int

    @property
    def valued(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.value is not None)

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        shown = self.valued
        if self.metric is None or not shown:
            return "No run of this series reports a number that could be followed."
        label, last = metric_label(self.metric), shown[-1]
        count = f"{len(shown)} runs"
        if len(shown) == 1:
            return f"One run reports {label} so far: a history begins with the second."
        if self.changes:
            change = self.changes[-1]
            return (
                f"{label} over {count} changed {len(self.changes)} time{'s' if len(self.changes) > 1 else ''}, last at "
                f"“{shown[change.index].run.name}” by {_signed(change.after / change.before - 1)}"
                f"{_verdict(self.metric, change.after - change.before)}."
            )
        first = shown[0]
        reference, words = (self.baseline, "the baseline") if self.baseline is not None else (first, "the first run")
        if reference.value and last.value is not None:
            off = last.value / reference.value - 1
            judged = _verdict(self.metric, last.value - reference.value) if abs(off) >= 0.005 else ""
            return f"{label} over {count} has no change point; the last is {_signed(off)} from {words}{judged}."
        return f"{label} over {count} has no change point."


def _signed(ratio: float) -> str:
    return f"{'+' if ratio > 0 else '−' if ratio < 0 else ''}{abs(ratio) * 100:.2g}\u202f%"


def _verdict(key: str, difference: float) -> str:
    direction = metric_direction(key)
    if direction is None or difference == 0:
        return ""
    return ", better" if (difference > 0) == (direction == "higher") else ", worse"


def moment_of(run: RunSummary) -> datetime:
    """When a run was measured, where its file says so in a form that can be read; else when it was added."""
    if run.measured_at:
        try:
            moment = datetime.fromisoformat(run.measured_at)
        except ValueError:
            return run.created_at
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return run.created_at


def in_order(found: Sequence[RunSummary]) -> list[RunSummary]:
    """Oldest first by when they were measured; runs of one moment in the order in which they were added."""
    return sorted(found, key=lambda run: (moment_of(run), run.created_at, run.position))


def list_history(ctx: Context, *, limit: int = 50, offset: int = 0) -> tuple[tuple[SeriesItem, ...], int]:
    """Series of two runs or more, the one with the newest run first, and how many there are."""
    fill_series(ctx)
    with ctx.storage.read() as session:
        found, total = runs.list_series(session=session, limit=limit, offset=offset)
        whole = {item.key: runs.get_run(session=session, run_id=item.newest.id) for item in found}
    items = []
    for item in found:
        hardware, model, _ = run_service.linked(ctx, item.newest)
        label = run_service.series_of_run(ctx, whole[item.key]).label
        items.append(
            SeriesItem(
                item.key,
                label,
                item.runs,
                item.newest,
                hardware.name if hardware is not None else item.newest.hardware_hint,
                model.name if model is not None else item.newest.model_hint,
            )
        )
    return tuple(items), total


def get_history(ctx: Context, key: str, metric: str | None = None) -> History:
    """One series. Raises NotFound for an unknown key, InvalidInput for a metric that none of its runs reports."""
    fill_series(ctx)
    with ctx.storage.read() as session:
        total = runs.count_series(session=session, key=key)
        found = in_order(runs.runs_of_series(session=session, key=key, limit=MOST_RUNS))
        if not found:
            raise NotFound("series", key)
        whole = [runs.get_run(session=session, run_id=run.id) for run in found]
    newest = whole[-1]
    hardware, model, _ = run_service.linked(ctx, newest)
    metrics = _metrics(whole)
    if metric is not None and metric not in metrics:
        raise InvalidInput(("metric",), f"no run of this series reports {metric[:80]!r}")
    shown = metric or (metrics[0] if metrics else None)
    points = tuple(_point(run, shown) for run in whole)
    values = [point.value for point in points if point.value is not None]
    return History(
        key=key,
        label=run_service.series_of_run(ctx, newest).label,
        hardware=hardware.name if hardware is not None else newest.hardware_hint,
        model=model.name if model is not None else newest.model_hint,
        metrics=metrics,
        metric=shown,
        points=points,
        baseline=next((point for point in reversed(points) if point.run.is_baseline), None),
        changes=change_points(values),
        total=total,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands in its series: `number` of `total`, its neighbours in time, and the series' baseline."""

    key: str
    number: int
    total: int
    previous: RunSummary | None
    next: RunSummary | None
    baseline: RunSummary | None


def place_of(ctx: Context, run: RunSummary) -> Place | None:
    """The place of a run in its series; None where it is alone in it."""
    fill_series(ctx)
    if run.series_key is None:
        with ctx.storage.read() as session:
            run = runs.get_summary(session=session, run_id=run.id)
        if run.series_key is None:
            return None
    with ctx.storage.read() as session:
        found = in_order(runs.runs_of_series(session=session, key=run.series_key, limit=MOST_RUNS))
    here = next((place for place, other in enumerate(found) if other.id == run.id), None)
    if here is None or len(found) < 2:
        return None
    return Place(
        key=run.series_key,
        number=here + 1,
        total=len(found),
        previous=found[here - 1] if here > 0 else None,
        next=found[here + 1] if here + 1 < len(found) else None,
        baseline=next((other for other in reversed(found) if other.is_baseline), None),
    )


def fill_series(ctx: Context) -> None:
    """Work out the series of runs that were stored before series were kept."""
    with ctx.storage.read() as session:
        waiting = runs.runs_without_series(session=session, limit=BACKFILL)
    while waiting:
        with ctx.storage.write() as session:
            for run_id in waiting:
                run = runs.get_run(session=session, run_id=run_id)
                changes = dict.fromkeys(RunChanges.__slots__, UNSET)
                key = run_service.series_of_run(ctx, run).key
                runs.update_run(session=session, run_id=run_id, changes=RunChanges(**{**changes, "series_key": key}))  # type: ignore[arg-type]
        with ctx.storage.read() as session:
            waiting = runs.runs_without_series(session=session, limit=BACKFILL)


def _metrics(found: Sequence[StoredRun]) -> tuple[str, ...]:
    """Keys that runs report and that have a better direction: those of most runs first, then by METRIC_ORDER."""
    counts: dict[str, int] = {}
    for run in found:
        for key in dict.fromkeys(metric.key for metric in run.parsed.metrics):
            if metric_direction(key) is not None:
                counts[key] = counts.get(key, 0) + 1
    order = {name: place for place, name in enumerate(METRIC_ORDER)}
    stats = {None: 0, "mean": 1, "p50": 2, "p99": 3}

    def rank(key: str) -> tuple[int, int, int, str]:
        name, stat = split_key(key)
        return -counts[key], order.get(name, len(order)), stats.get(stat, len(stats)), key

    return tuple(sorted(counts, key=rank))


def _point(run: StoredRun, key: str | None) -> Point:
    value = low = high = None
    samples: tuple[float, ...] = ()
    if key is not None:
        name, stat = split_key(key)
        value = run.parsed.value(name, stat)
        samples = tuple(v for v in run.parsed.samples.get(name, ()) if math.isfinite(v))
        if len(samples) >= 2 and stat in (None, "mean", "p50"):
            low, high = (float(v) for v in np.percentile(np.asarray(samples), (10, 90)))
        elif value is not None and stat in (None, "mean") and (spread := run.parsed.value(name, "std")):
            low, high = value - spread, value + spread
    return Point(run, moment_of(run), value, low, high, len(samples))


# ---- JSON -----------------------------------------------------------------------------------------------------------


def series_item_json(item: SeriesItem) -> dict[str, Any]:
    return {
        "key": item.key,
        "label": item.label,
        "runs": item.runs,
        "newest": run_json.summary_json(item.newest),
        "hardware": item.newest.hardware_id,
        "model": item.newest.model_id,
    }


def history_json(history: History) -> dict[str, Any]:
    """A series in the API's shape: its runs oldest first, the baseline's id, and change points by run."""
    valued = history.valued
    return {
        "key": history.key,
        "label": history.label,
        "sentence": history.sentence,
        "metric": history.metric,
        "unit": None if history.metric is None else metric_unit(split_key(history.metric)[0]),
        "better": None if history.metric is None else metric_direction(history.metric),
        "metrics": list(history.metrics),
        "baseline": None if history.baseline is None else history.baseline.run.id,
        "total": history.total,
        "runs": [
            {
                "id": point.run.id,
                "name": point.run.name,
                "at": point.when.isoformat(),
                "value": point.value,
                "low": point.low,
                "high": point.high,
                "samples": point.samples,
                "software": dict(point.run.parsed.software),
                "is_baseline": point.run.is_baseline,
            }
            for point in history.points
        ],
        "change_points": [
            {
                "run": valued[change.index].run.id,
                "before": change.before,
                "after": change.after,
                "ratio": change.after / change.before if change.before else None,
                "p_value": change.p_value,
            }
            for change in history.changes
        ],
        "method": METHOD,
    }


def software_words(software: Mapping[str, str]) -> str:
    """Versions in a line, for a table."""
    return ", ".join(f"{key} {value}" for key, value in software.items() if key not in ("client", "endpoint_type"))
