"""Stored runs: lists, one run against its bound, changes, and the gate for continuous integration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from pydantic import Field

from app.catalog.calibration import load_calibration
from app.catalog.names import AmbiguousName, UnknownName
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.lint import ANALYSIS_CHECKS, CHECKS, lint
from app.domain.lint_facts import FACTS, STATABLE, Fact, missing
from app.domain.lint_subject import Subject
from app.domain.model import ModelSpec
from app.domain.run import (
    HIGHER_IS_BETTER,
    LOWER_IS_BETTER,
    METRIC_UNITS,
    STATS,
    Finding,
    Metric,
    ParsedRun,
)
from app.domain.run_analysis import BoundRow, MeasuredAgainstBound, analyse_run
from app.domain.series import Series, series_of
from app.importers.reading import clean
from app.services import kernels
from app.services.acknowledgements import acknowledged_of, checked_acknowledgements
from app.services.context import Context
from app.services.contracts import Contract, WorkloadBody
from app.services.links import Kind, LinkBasis, bases_of, learn
from app.services.references import own_hardware, own_model, own_names, resolve_hardware, resolve_model
from app.services.run_points import sweep_of
from app.services.upload_run import (
    UploadOutcome,
    checked_baseline,
    checked_name,
    checked_overrides,
    checked_tags,
    merged_fields,
    stated_workload,
)
from app.storage import runs
from app.storage.errors import InvalidQuery, NotFound
from app.storage.records import (
    UNSET,
    Acknowledgement,
    Page,
    RunChanges,
    RunFacets,
    RunFilter,
    RunSummary,
    StoredRun,
    StoredUpload,
)

MAX_NOTES = 10_000
MAX_SERIES = 120
MAX_FACT = 300
MOST_WHOLE_RUNS = 200
MOST_KERNELS = 100
"""Kernel rows in the answer of one run, those with the most time; `/kernels` has all."""

SEVERITIES = ("error", "warning", "info")

METRIC_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Latency",
        (
            "ttft_s",
            "tpot_s",
            "itl_s",
            "e2e_latency_s",
            "step_time_s",
            "prefill_time_s",
            "decode_time_s",
            "latency_s",
            "kernel_time_s",
        ),
    ),
    (
        "Throughput",
        (
            "output_tokens_per_s",
            "total_tokens_per_s",
            "input_tokens_per_s",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "peak_output_tokens_per_s",
            "tokens_per_s_per_device",
            "output_tokens_per_s_per_device",
            "output_tokens_per_s_per_user",
            "requests_per_s",
            "goodput_requests_per_s",
            "samples_per_s",
            "model_flop_per_s_per_device",
            "hbm_bytes_per_s",
            "bus_bandwidth_bytes_per_s",
            "algorithm_bandwidth_bytes_per_s",
            "accepted_tokens_per_step",
        ),
    ),
    (
        "Use of the device",
        (
            "mfu",
            "hfu",
            "mbu",
            "peak_memory_bytes",
            "reserved_memory_bytes",
            "device_memory_bytes",
            "kv_cache_bytes",
            "power_w",
            "energy_j",
        ),
    ),
)
"""Metrics by what they say; every other one describes the load."""

LOAD_GROUP = "Load"

EXPECTED_METRICS: Mapping[str, tuple[str, ...]] = {
    "serve": (
        "ttft_s.p50",
        "ttft_s.p95",
        "ttft_s.p99",
        "tpot_s.p50",
        "tpot_s.p99",
        "itl_s.p99",
        "e2e_latency_s",
        "output_tokens_per_s",
        "requests_failed",
        "peak_memory_bytes",
        "power_w",
    ),
    "decode": ("tpot_s", "decode_tokens_per_s", "peak_memory_bytes", "power_w"),
    "prefill": ("prefill_time_s", "prefill_tokens_per_s", "peak_memory_bytes", "power_w"),
    "train": ("step_time_s", "total_tokens_per_s", "mfu", "loss", "peak_memory_bytes", "power_w"),
}
"""What a reader looks for in a run of each mode, so that the page can say what the file does not report."""


# --- one run -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric with the statistics that the file reports; `plain` is a value without a statistic."""

    name: str
    unit: str
    plain: Metric | None
    stats: Mapping[str, Metric]
    better: str


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A metric of the run beside its baseline's. `change` is how much better (above 0) or worse the run is."""

    key: str
    unit: str
    value: float
    baseline: float
    change: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its page and the API show it."""

    run: StoredRun
    hardware: HardwareProfile | None
    model: ModelSpec | None
    stated: Mapping[str, Any]
    analysis: MeasuredAgainstBound
    findings: tuple[Finding, ...]
    acknowledged: Mapping[Finding, Acknowledgement]
    metric_groups: tuple[tuple[str, tuple[MetricRow, ...]], ...]
    not_reported: tuple[str, ...]
    siblings: tuple[RunSummary, ...]
    baseline: RunSummary | None
    missing: tuple[Fact, ...]
    series: Series
    bases: Mapping[Kind, LinkBasis]

    @property
    def against_baseline(self) -> tuple[BaselineRow, ...]:
        """Headline metrics that both report and that have a better direction."""
        if self.baseline is None:
            return ()
        rows = []
        for key, value in self.run.headline.items():
            before = self.baseline.headline.get(key)
            name = key.partition(".")[0]
            if before is None or name not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
                continue
            change = None
            if before:
                change = (before - value if name in LOWER_IS_BETTER else value - before) / abs(before)
            rows.append(BaselineRow(key, METRIC_UNITS[name], value, before, change))
        return tuple(rows)

    @property
    def parallel(self) -> dict[str, Any]:
        """The layout as the file and people state it; the main row's where nobody does."""
        told = {**self.run.parsed.parallel, **dict(self.stated.get("parallel") or {})}
        return {key: value for key, value in told.items() if value is not None}


def get_view(ctx: Context, run_id: str) -> RunView:
    """Everything about one run. Raises NotFound."""
    with ctx.storage.read() as session:
        run = runs.get_run(session=session, run_id=run_id)
        siblings = runs.runs_of_upload(session=session, upload_id=run.upload_id)
        baseline = (
            runs.get_summary(session=session, run_id=run.baseline_run_id) if run.baseline_run_id is not None else None
        )
    return view_of(ctx, run, siblings, baseline)


def view_of(
    ctx: Context, run: StoredRun, siblings: Sequence[RunSummary] = (), baseline: RunSummary | None = None
) -> RunView:
    """The view of a run that is read already."""
    hardware, model, lost = linked(ctx, run)
    stated = stated_fields(ctx, run)
    analysis = analyse_run(run.parsed, hardware, model, stated, load_calibration(), evidence_of(run))
    subject = Subject(run.parsed, hardware, model, stated, run.facts, analysis)
    findings = sorted(
        (*lint(subject), *lost, *run.upload.findings), key=lambda finding: SEVERITIES.index(finding.severity)
    )
    findings = list(dict.fromkeys(findings))
    return RunView(
        run=run,
        hardware=hardware,
        model=model,
        stated=stated,
        analysis=analysis,
        findings=tuple(findings),
        acknowledged=acknowledged_of(run, findings),
        metric_groups=grouped_metrics(run.parsed.metrics),
        not_reported=_not_reported(run.parsed),
        siblings=tuple(siblings),
        baseline=baseline,
        missing=missing(subject),
        series=series_of_run(ctx, run),
        bases=bases_of(ctx, run, run.parsed.workload.parameters),
    )


def linked(ctx: Context, run: RunSummary) -> tuple[HardwareProfile | None, ModelSpec | None, list[Finding]]:
    """The linked profile and model; a link to what does not exist (any more) is a finding."""
    hardware: HardwareProfile | None = None
    model: ModelSpec | None = None
    lost: list[Finding] = []
    if run.hardware_id is not None:
        hardware = ctx.catalog.hardware.get(run.hardware_id) or own_hardware(ctx, run.hardware_id)
        if hardware is None:
            lost.append(_lost("hardware", run.hardware_id))
    if run.model_id is not None:
        model = ctx.catalog.models.get(run.model_id) or own_model(ctx, run.model_id)
        if model is None:
            lost.append(_lost("model", run.model_id))
    return hardware, model, lost


def _lost(field: str, id_: str) -> Finding:
    return Finding(
        "link-lost", "warning", f"The run is linked to {id_!r}, which does not exist: link another.", (field,)
    )


def stated_fields(ctx: Context, run: StoredRun) -> dict[str, Any]:
    """Workload fields that people state: those of the saved workload, and the run's own over them."""
    return merged_fields(ctx, run.workload_id, run.workload_overrides)


def series_of_run(ctx: Context, run: StoredRun) -> Series:
    """The series that a run belongs to, by what is linked and stated now."""
    return series_of(
        run.parsed,
        name=run.name,
        format=run.format,
        hardware=run.hardware_id,
        model=run.model_id,
        stated=stated_fields(ctx, run),
        tags=run.tags,
        series_name=run.series_name,
    )


def evidence_of(run: StoredRun) -> dict[str, float]:
    """Facts that people added and that are numbers: shares of a step, as a file's own evidence."""
    return {key: float(value) for key, value in run.facts.items() if isinstance(value, (int, float))}


def grouped_metrics(metrics: Sequence[Metric]) -> tuple[tuple[str, tuple[MetricRow, ...]], ...]:
    """Metrics by group in a fixed order, one row for each name. The first value of a key counts."""
    by_name: dict[str, dict[str | None, Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, {}).setdefault(metric.stat, metric)
    placed = {name for _, names in METRIC_GROUPS for name in names}
    rest = tuple(name for name in METRIC_UNITS if name not in placed)
    groups = []
    for title, names in (*METRIC_GROUPS, (LOAD_GROUP, rest)):
        rows = tuple(
            MetricRow(
                name=name,
                unit=METRIC_UNITS[name],
                plain=by_name[name].get(None),
                stats={stat: by_name[name][stat] for stat in STATS if stat in by_name[name]},
                better="lower" if name in LOWER_IS_BETTER else "higher" if name in HIGHER_IS_BETTER else "",
            )
            for name in names
            if name in by_name
        )
        if rows:
            groups.append((title, rows))
    return tuple(groups)


def _not_reported(run: ParsedRun) -> tuple[str, ...]:
    wanted = EXPECTED_METRICS.get(run.workload.mode or "", ())
    keys = {metric.key for metric in run.metrics} | {metric.name for metric in run.metrics}
    return tuple(key for key in wanted if key not in keys)


def raw_file(ctx: Context, run_id: str) -> tuple[StoredUpload, Path]:
    """The upload of a run and the file with its bytes as they came. Raises NotFound."""
    with ctx.storage.read() as session:
        upload = runs.get_run(session=session, run_id=run_id, with_kernels=False).upload
    if not ctx.storage.blobs.exists(upload.sha256):
        raise NotFound("file", upload.sha256)
    return upload, ctx.storage.blobs.path(upload.sha256)


# --- lists ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunListItem:
    """A run in a list, with its main step against the bound where that can be computed."""

    run: RunSummary
    hardware_name: str | None
    model_name: str | None
    what: str | None
    measured: float | None
    of_bound: float | None
    binding: str | None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Filters and order of a list, as they stand in an address. `hardware` and `model` may be any name they go by."""

    format: str | None = None
    model: str | None = None
    hardware: str | None = None
    tag: str | None = None
    q: str | None = None
    since: str | None = None
    sort: str = "-created_at"

    @property
    def filters_anything(self) -> bool:
        return any(getattr(self, name) for name in ("format", "model", "hardware", "tag", "q", "since"))


def list_runs(ctx: Context, query: RunQuery, *, limit: int = 50, cursor: str | None = None) -> Page[RunListItem]:
    """One page of runs. Raises InvalidQuery for an unknown sort key, cursor, limit or date."""
    filters = RunFilter(
        format=query.format or None,
        hardware=_id_of(ctx.catalog.resolve_hardware, query.hardware),
        model=_id_of(ctx.catalog.resolve_model, query.model),
        tag=query.tag or None,
        text=query.q or None,
        since=_moment(query.since),
    )
    with ctx.storage.read() as session:
        page = runs.list_runs(session=session, filters=filters, sort=query.sort, limit=limit, cursor=cursor)
    return Page(tuple(_list_item(ctx, run) for run in page.items), page.next, page.total)


@dataclass(frozen=True, slots=True)
class RecentFile:
    """The newest run of an uploaded file, and how many runs the file has besides."""

    newest: RunListItem
    others: int


def recent_files(ctx: Context, limit: int) -> tuple[tuple[RecentFile, ...], int]:
    """The newest files, one line each however many runs they hold, and how many runs there are in all."""
    with ctx.storage.read() as session:
        page = runs.list_runs(session=session, filters=RunFilter(newest_of_file=True), limit=limit)
        number = runs.runs_per_upload(session=session, upload_ids=[run.upload_id for run in page.items])
        total = runs.count_runs(session=session)
    files = tuple(RecentFile(_list_item(ctx, run), number[run.upload_id] - 1) for run in page.items)
    return files, total


def facets(ctx: Context) -> RunFacets:
    """What the list can be filtered by, with counts."""
    with ctx.storage.read() as session:
        return runs.run_facets(session=session)


def _id_of(resolve: Any, name: str | None) -> str | None:
    """The id of a catalogue name; what the catalogue does not know may be a team's own id."""
    if not name:
        return None
    try:
        return str(resolve(name).id)
    except (UnknownName, AmbiguousName):
        return name


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidQuery("since", "write a date or time like 2026-11-29 or 2026-11-29T12:00:00Z") from error


_Brief = tuple[str, float, float, str] | None


class _Briefs:
    """Main results of runs on shipped hardware and models, so that lists do not compute them again and again.

    A run's measurements never change, and what may change (links, stated fields) is part of the key.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._known: dict[tuple[str, ...], _Brief] = {}
        self._lock = Lock()

    def get(self, ctx: Context, run: StoredRun) -> _Brief:
        hardware, model, _ = linked(ctx, run)
        if hardware is None or model is None:
            return None
        stated = stated_fields(ctx, run)
        key = (run.id, hardware.id, model.id, json.dumps(stated, sort_keys=True, default=str))
        shipped = hardware.id in ctx.catalog.hardware and model.id in ctx.catalog.models
        if shipped and key in self._known:
            return self._known[key]
        main = analyse_run(run.parsed, hardware, model, stated).main
        brief = None if main is None else (main.what, main.measured, main.of_bound, main.binding)
        if shipped:
            with self._lock:
                if len(self._known) >= self._size:
                    self._known.clear()
                self._known[key] = brief
        return brief


_briefs = _Briefs()


def _list_item(ctx: Context, run: RunSummary) -> RunListItem:
    hardware, model, _ = linked(ctx, run)
    brief: _Brief = None
    if hardware is not None and model is not None:
        with ctx.storage.read() as session:
            whole = runs.get_run(session=session, run_id=run.id, with_kernels=False)
        brief = _briefs.get(ctx, whole)
    what, measured, of_bound, binding = brief or (None, None, None, None)
    return RunListItem(
        run=run,
        hardware_name=hardware.name if hardware is not None else None,
        model_name=model.name if model is not None else None,
        what=what,
        measured=measured,
        of_bound=of_bound,
        binding=binding,
    )


# --- changes -------------------------------------------------------------------------------------------------------


class RunPatch(Contract):
    """What may be changed of a run; fields left out stay. null unlinks, and takes back what was stated.

    `workload` as an object replaces the stated fields, which go over those of a linked saved workload; as text it links
    a saved one; null drops both. `parallel` changes only the layout. `facts` adds what no file carries, by the keys
    that `missing` names; null takes one back. `acknowledge` accepts warnings with a note, by the finding's check; null
    takes that back. `series` puts the run into a series by that name. A link that is changed
    is remembered for files of the same wording, unless `remember` is false.
    """

    name: str | None = None
    tags: Annotated[list[str], Field(max_length=100)] | None = None
    hardware: str | None = None
    model: str | None = None
    workload: str | dict[str, Any] | None = None
    parallel: dict[str, Any] | None = None
    notes: Annotated[str, Field(max_length=MAX_NOTES)] | None = None
    baseline: str | None = None
    is_baseline: bool | None = None
    facts: Annotated[dict[str, str | float | None], Field(max_length=100)] | None = None
    acknowledge: Annotated[dict[str, str | None], Field(max_length=100)] | None = None
    series: Annotated[str, Field(max_length=MAX_SERIES)] | None = None
    remember: bool = True


def update_run(ctx: Context, run_id: str, patch: RunPatch) -> RunView:
    """Change a run and answer it anew. Raises NotFound or InvalidInput; nothing is changed then."""
    given = patch.model_fields_set
    changes: dict[str, Any] = {}
    if "name" in given:
        changes["name"] = checked_name(patch.name or "")
    if "tags" in given:
        changes["tags"] = checked_tags(patch.tags or ())
    if "notes" in given:
        changes["notes"] = patch.notes.strip() or None if patch.notes else None
    if "hardware" in given:
        profile = resolve_hardware(ctx, patch.hardware)[0] if patch.hardware else None
        changes |= {"hardware_id": profile.id if profile else None, "hardware_is_guess": False}
    if "model" in given:
        model = resolve_model(ctx, patch.model)[0] if patch.model else None
        changes |= {"model_id": model.id if model else None, "model_is_guess": False}
    if "baseline" in given:
        changes["baseline_run_id"] = checked_baseline(ctx, patch.baseline) if patch.baseline else None
        if patch.baseline == run_id:
            raise InvalidInput(("baseline",), "a run cannot be its own baseline")
    if "is_baseline" in given:
        changes["is_baseline"] = bool(patch.is_baseline)
    if "workload" in given:
        stated = stated_workload(ctx, patch.workload)
        changes["workload_overrides"] = dict(stated.overrides or {})
        if not isinstance(patch.workload, dict):
            changes["workload_id"] = stated.workload_id
    if "series" in given:
        changes["series_name"] = checked_series(patch.series)
    acknowledged = checked_acknowledgements(get_view(ctx, run_id), patch.acknowledge) if patch.acknowledge else None
    with ctx.storage.write() as session:
        current = runs.get_run(session=session, run_id=run_id)
        if acknowledged is not None:
            changes["acknowledged"] = acknowledged
        if "facts" in given:
            changes["facts"] = _checked_facts(current.facts, patch.facts or {})
        if "parallel" in given:
            overrides = dict(changes.get("workload_overrides", current.workload_overrides))
            overrides.pop("parallel", None)
            if patch.parallel:
                overrides["parallel"] = _checked_parallel(patch.parallel)
            changes["workload_overrides"] = overrides
        changed = runs.update_run(session=session, run_id=run_id, changes=RunChanges(**{**_unset(), **changes}))
        links: tuple[tuple[Kind, str | None, str | None, str | None], ...] = (
            ("hardware", current.hardware_id, changed.hardware_id, changed.hardware_hint),
            ("model", current.model_id, changed.model_id, changed.model_hint),
        )
        for kind, before, now, hint in links:
            if patch.remember and now is not None and now != before and f"{kind}_id" in changes:
                learn(ctx, session, kind, hint, now, changed.parsed.workload.parameters)
        _set_series(ctx, session, changed)
    return get_view(ctx, run_id)


def acknowledge_in_file(ctx: Context, view: RunView, check: str, note: str) -> int:
    """Accept a warning with one note in the other runs of the same file that have it; how many were changed."""
    changed = 0
    with ctx.storage.read() as session:
        others = [s.id for s in runs.runs_of_upload(session=session, upload_id=view.run.upload_id)]
    for other in others:
        seen = view if other == view.run.id else get_view(ctx, other)
        if seen is view or not any(f.check == check and f.severity == "warning" for f in seen.findings):
            continue
        update_run(ctx, other, RunPatch(acknowledge={check: note}))
        changed += 1
    return changed


def _set_series(ctx: Context, session: Any, run: StoredRun) -> None:
    """Keep the series of a run in step with what is linked and stated."""
    key = series_of_run(ctx, run).key
    if key != run.series_key:
        changes = RunChanges(**{**_unset(), "series_key": key})
        runs.update_run(session=session, run_id=run.id, changes=changes)


def checked_series(text: str | None) -> str | None:
    """A series name as it will be stored; nothing for an empty one."""
    plain = (text or "").strip()
    if clean(plain, MAX_SERIES) != plain:
        raise InvalidInput(("series",), "holds control or direction characters: type it anew")
    return plain or None


def _checked_facts(current: Mapping[str, Any], given: Mapping[str, str | float | None]) -> dict[str, Any]:
    """The facts after a change. Raises InvalidInput at `facts` for an unknown one or a number out of its range."""
    known = {fact.key: fact for fact in STATABLE}
    facts = dict(current)
    for key, value in given.items():
        fact = known.get(key)
        if fact is None:
            raise InvalidInput(("facts", key[:80]), f"unknown: the facts of a run are {', '.join(sorted(known))}")
        if value is None or value == "":
            facts.pop(key, None)
            continue
        if fact.kind == "text":
            text = clean(str(value), MAX_FACT)
            facts[key] = text
            continue
        facts[key] = _checked_number(fact, value)
    return facts


def _checked_number(fact: Fact, value: str | float) -> float:
    try:
        number = float(value.strip().replace(",", ".").removesuffix("%")) if isinstance(value, str) else float(value)
    except ValueError:
        raise InvalidInput(("facts", fact.key), f"{str(value)[:30]!r} is not a number") from None
    if isinstance(value, str) and value.strip().endswith("%"):
        number /= 100
    most = 1.0 if fact.kind == "share" else 1e9
    if not math.isfinite(number) or not 0 <= number <= most:
        raise InvalidInput(("facts", fact.key), f"must lie between 0 and {most:g}")
    return number


def copy_to_file(ctx: Context, run_id: str) -> int:
    """Give the other runs of the same file this run's device, model, layout and precisions; how many were changed.

    Shapes stay: they are what the runs of a file differ by.
    """
    with ctx.storage.write() as session:
        run = runs.get_run(session=session, run_id=run_id)
        shared = {key: run.workload_overrides[key] for key in ("parallel", "dtypes") if key in run.workload_overrides}
        others = [s.id for s in runs.runs_of_upload(session=session, upload_id=run.upload_id) if s.id != run_id]
        for other in others:
            own = dict(runs.get_run(session=session, run_id=other).workload_overrides)
            for key in ("parallel", "dtypes"):
                own.pop(key, None)
            changes = RunChanges(
                hardware_id=run.hardware_id,
                hardware_is_guess=run.hardware_is_guess,
                model_id=run.model_id,
                model_is_guess=run.model_is_guess,
                workload_overrides={**own, **shared},
            )
            _set_series(ctx, session, runs.update_run(session=session, run_id=other, changes=changes))
    return len(others)


def _unset() -> dict[str, Any]:
    return dict.fromkeys(RunChanges.__slots__, UNSET)


def _checked_parallel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return dict(checked_overrides({"parallel": dict(fields)})["parallel"])


def delete_run(ctx: Context, run_id: str) -> None:
    """Delete a run; with the last run of its upload goes the file. Raises NotFound."""
    with ctx.storage.write() as session:
        runs.delete_run(session=session, blobs=ctx.storage.blobs, run_id=run_id)


# --- JSON ----------------------------------------------------------------------------------------------------------


def run_json(view: RunView) -> dict[str, Any]:
    """A run in the API's shape."""
    run, parsed = view.run, view.run.parsed
    main = view.analysis.main
    metrics: dict[str, Any] = {}
    for metric in parsed.metrics:
        metrics.setdefault(metric.key, _metric_json(metric))
    answer: dict[str, Any] = {
        **summary_json(run),
        "metrics": metrics,
        "workload": _workload_json(view),
        "hardware": _link_json(
            run.hardware_id, view.hardware, run.hardware_hint, run.hardware_is_guess, view, "hardware"
        ),
        "model": _link_json(run.model_id, view.model, run.model_hint, run.model_is_guess, view, "model"),
        "parallel": view.parallel,
        "software": dict(parsed.software),
        "series": dict(parsed.series),
        "history": {"key": view.series.key, "label": view.series.label, "name": run.series_name},
        "facts": dict(run.facts),
        "missing": [
            {"fact": fact.key, "label": fact.label, "stops": fact.stops, "add_by": _ADD_BY[fact.form]}
            for fact in view.missing
        ],
        "evidence": dict(parsed.evidence),
        "notes": parsed.notes,
        "not_reported": list(view.not_reported),
        "findings": [finding_json(finding, view.acknowledged.get(finding)) for finding in view.findings],
        "verdict": view.analysis.verdict,
        "also": list(view.analysis.also),
        "gap": [] if main is None else gap_json(main),
        "needs": list(view.analysis.needs),
        "upload": upload_json(run.upload) | {"runs": [sibling.id for sibling in view.siblings[:MOST_WHOLE_RUNS]]},
    }
    if (inside := member_name(run)) is not None:
        answer["upload"]["member"] = inside
    if parsed.kernels and sweep_of(parsed) is not None:  # points of a sweep, in its order
        answer["kernels"] = [dict(point) for point in parsed.kernels]
    elif parsed.kernels:
        rows = kernels.sorted_rows(kernels.rows_of(run), "-time_s")
        answer["kernel_count"] = len(rows)
        answer["kernels"] = [kernels.kernel_json(row) for row in rows[:MOST_KERNELS]]
    if parsed.timeline:
        answer["timeline"] = kernels.summary_json(run)
    if view.analysis.rows or view.analysis.not_held:
        answer["bound"] = bound_json(view.analysis)
    if main is not None:
        answer["efficiency"] = {"of_bound": main.of_bound, "mfu": main.mfu, "hfu": main.hfu, "mbu": main.mbu}
    return answer


_ADD_BY: Mapping[str, str | None] = {"links": "PATCH hardware, model, workload", "facts": "PATCH facts", "": None}


def summary_json(run: RunSummary) -> dict[str, Any]:
    """What lists answer of a run."""
    return {
        "id": run.id,
        "name": run.name,
        "format": run.format,
        "created_at": run.created_at.isoformat(),
        "measured_at": run.measured_at,
        "upload_id": run.upload_id,
        "position": run.position,
        "tags": list(run.tags),
        "is_example": run.is_example,
        "is_baseline": run.is_baseline,
        "baseline": run.baseline_run_id,
    }


def list_item_json(item: RunListItem) -> dict[str, Any]:
    """A run in a list: its links, headline metrics and distance from the bound."""
    run = item.run
    return {
        **summary_json(run),
        "hardware": run.hardware_id,
        "hardware_is_guess": run.hardware_is_guess,
        "model": run.model_id,
        "model_is_guess": run.model_is_guess,
        "metrics": {
            key: {"value": value, "unit": METRIC_UNITS[key.split(".")[0]]} for key, value in run.headline.items()
        },
        "efficiency": None if item.of_bound is None else {"of_bound": item.of_bound, "binding": item.binding},
    }


def upload_json(upload: StoredUpload) -> dict[str, Any]:
    return {
        "id": upload.id,
        "file_name": upload.file_name,
        "format": upload.format,
        "sha256": upload.sha256,
        "size_bytes": upload.size_bytes,
        "created_at": upload.created_at.isoformat(),
    }


def outcome_json(ctx: Context, outcome: UploadOutcome) -> dict[str, Any]:
    """The answer to an upload: whole runs, and beyond MOST_WHOLE_RUNS only what lists show of them."""
    answer: dict[str, Any] = {
        "upload": outcome.upload.id,
        "file_name": outcome.upload.file_name,
        "format": outcome.upload.format,
        "sha256": outcome.upload.sha256,
        "size_bytes": outcome.upload.size_bytes,
        "created": outcome.created,
        "runs": [
            run_json(view_of(ctx, run, outcome.runs)) if place < MOST_WHOLE_RUNS else summary_json(run)
            for place, run in enumerate(outcome.runs)
        ],
        "findings": [finding_json(finding) for finding in outcome.findings],
    }
    if outcome.upload.members:
        answer["members"] = [_member_json(member, outcome.runs) for member in outcome.upload.members]
    return answer


def _member_json(member: Mapping[str, Any], stored: Sequence[StoredRun]) -> dict[str, Any]:
    """One file of an archive: its format and runs, or why it gave none."""
    first, count = member["first"], member["count"]
    ids = [run.id for run in stored if first <= run.position < first + count]
    told = {key: member[key] for key in ("format", "reason", "seen", "hint") if member[key]}
    return {"name": member["name"], "runs": ids, "findings": member["findings"], **told}


def member_name(run: StoredRun) -> str | None:
    """The file of the archive that a run was read from; None for a file that came alone."""
    inside = (m["name"] for m in run.upload.members if m["first"] <= run.position < m["first"] + m["count"])
    return next(inside, None)


def finding_json(finding: Finding, acknowledged: Acknowledgement | None = None) -> dict[str, Any]:
    shown = asdict(finding)
    if acknowledged is not None:
        shown["acknowledged"] = {"note": acknowledged.note, "at": acknowledged.at}
    shown["fields"] = list(finding.fields)
    if finding.technique is None:
        del shown["technique"]
    return shown


def lint_table() -> dict[str, Any]:
    """The lint as a table: its checks, and the facts that a file may lack."""
    checks = [
        {
            "id": check.id,
            "rule": check.rule,
            "severity": check.severity,
            "title": check.title,
            "fields": list(check.needs),
            "technique": check.technique,
        }
        for check in CHECKS
    ]
    checks += [
        {"id": id_, "rule": rule, "severity": severity, "title": title, "fields": ["bound"], "technique": None}
        for id_, rule, severity, title in ANALYSIS_CHECKS
    ]
    facts = [
        {"id": fact.key, "rule": fact.rule, "label": fact.label, "stops": fact.stops, "add_by": _ADD_BY[fact.form]}
        for fact in FACTS
    ]
    return {"checks": checks, "facts": facts}


def bound_json(analysis: MeasuredAgainstBound) -> dict[str, Any]:
    """Measured against bound: the main step's numbers, every step, and what could not be held against a bound."""
    main = analysis.main
    answer: dict[str, Any] = {
        "verdict": analysis.verdict,
        "rows": [row_json(row) for row in analysis.rows],
        "not_held": [
            {"what": item.what, "reason": item.reason, "needs": list(item.needs)} for item in analysis.not_held
        ],
    }
    if main is not None:
        kept = (
            "what",
            "bound_s",
            "serial_bound_s",
            "measured_s",
            "of_bound",
            "binding",
            "terms",
            "devices",
            "expected",
        )
        shown = row_json(main)
        answer |= {key: shown[key] for key in kept}
    return answer


def row_json(row: BoundRow) -> dict[str, Any]:
    """One step against its bound. The workload has the shape that `POST /estimates/bound` takes."""
    return {
        "what": row.what,
        "measured_s": row.measured,
        "measured_from": row.measured_from,
        "how": row.how,
        "bound_s": row.bound,
        "serial_bound_s": row.serial_bound,
        "of_bound": row.of_bound,
        "contradicts": row.contradicts,
        "binding": row.binding,
        "terms": {f"{name}_s": value for name, value in row.terms.items()},
        "mfu": row.mfu,
        "mfu_precision": row.mfu_precision,
        "hfu": row.hfu,
        "mbu": row.mbu,
        "flop": row.flop,
        "hbm_bytes": row.hbm_bytes,
        "kv_share": row.kv_share,
        "devices": row.devices,
        "gap": [
            {"resource": part.resource, "label": part.label, "term": part.term, "time_s": part.time} for part in row.gap
        ],
        "gap_s": row.gap_time,
        "expected": None
        if row.expected is None
        else {
            "time_s": row.expected.time,
            "low_s": row.expected.low,
            "high_s": row.expected.high,
            "basis": row.expected.basis,
        },
        "workload": workload_body(row),
        "assumptions": list(dict.fromkeys(row.assumptions)),
        "notes": list(row.notes),
    }


def gap_json(row: BoundRow) -> list[dict[str, Any]]:
    """The terms between a step's bound and its measured time. `time_s` add up to `measured_s - bound_s`.

    `share` is the term's share of the gap; `basis` says what it rests on.
    """
    whole = row.gap_time
    return [
        {
            "term": part.term,
            "label": part.label,
            "resource": part.resource,
            "time_s": part.time,
            "share": part.time / whole if whole > 0 else 0.0,
            "basis": part.basis,
        }
        for part in row.gap_terms
    ]


def workload_body(row: BoundRow) -> dict[str, Any]:
    """The workload of a row as the API's object, without what is at its default."""
    w = row.workload
    body: dict[str, Any] = {
        "phase": w.phase,
        "batch": w.batch,
        "seq_len": w.seq_len,
        "context_len": w.context_len,
        "dtypes": {key: value for key, value in asdict(w.dtypes).items() if value is not None},
        "parallel": {key: value for key, value in asdict(w.parallel).items() if value not in (1, 0, False, None)},
        "launch_mode": w.launch_mode,
    }
    if w.phase == "train":
        body |= {"recompute": w.recompute, "optimizer": w.optimizer}
    return WorkloadBody.model_validate(body).model_dump(exclude_unset=True, mode="json")


def _metric_json(metric: Metric) -> dict[str, Any]:
    shown: dict[str, Any] = {"value": metric.value, "unit": metric.unit}
    for name in ("stat", "pointer", "raw", "raw_unit", "count"):
        value = getattr(metric, name)
        if value not in (None, ""):
            shown[name] = value
    return shown


def _workload_json(view: RunView) -> dict[str, Any]:
    told = asdict(view.run.parsed.workload)
    shown = {key: value for key, value in told.items() if value not in (None, {}, ())}
    if view.run.workload_id is not None:
        shown["workload_id"] = view.run.workload_id
    if view.stated:
        shown["stated"] = dict(view.stated)
    return shown


def _link_json(
    id_: str | None, thing: Any, hint: str | None, is_guess: bool, view: RunView, kind: Kind
) -> dict[str, Any] | None:
    if id_ is None and hint is None:
        return None
    basis = view.bases[kind]
    return {
        "id": id_,
        "name": thing.name if thing is not None else None,
        "hint": hint,
        "is_guess": is_guess,
        "basis": basis.kind,
        "basis_text": basis.text,
        "remembered": None if basis.remembered is None else basis.remembered.id,
    }


def known_names(ctx: Context) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(id, name) of every profile and of every model a run can be linked to, by name."""
    hardware, models = own_names(ctx)
    profiles = sorted(((p.id, p.name) for p in ctx.catalog.hardware.values()), key=lambda item: item[1].casefold())
    shipped = sorted(((m.id, m.name) for m in ctx.catalog.models.values()), key=lambda item: item[1].casefold())
    return [*hardware, *profiles], [*models, *shipped]
