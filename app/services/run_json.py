"""Runs, uploads and the lint in the API's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from app.domain.lint import ANALYSIS_CHECKS, CHECKS
from app.domain.lint_facts import FACTS
from app.domain.run import METRIC_UNITS, Finding, Metric
from app.domain.run_analysis import BoundRow, MeasuredAgainstBound
from app.services import kernels
from app.services.context import Context
from app.services.contracts import BoundRequest, WorkloadBody
from app.services.links import Kind
from app.services.run_list import RunListItem
from app.services.run_points import sweep_of
from app.services.runs import RunView, view_of
from app.services.upload_run import UploadOutcome
from app.storage.export import run_head
from app.storage.records import Acknowledgement, RunSummary, StoredRun, StoredUpload

MOST_WHOLE_RUNS = 200
MOST_KERNELS = 100
"""Kernel rows in the answer of one run, those with the most time; `/kernels` has all."""


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
        **run_head(run),
        "upload_id": run.upload_id,
        "position": run.position,
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


def row_request(view: RunView, row: BoundRow) -> BoundRequest | None:
    """The estimate's question at a measured step; None where device or model are unknown, or no request can say it."""
    if view.hardware is None or view.model is None:
        return None
    try:
        body = {"hardware": view.hardware.id, "model": view.model.id, "workload": workload_body(row)}
        return BoundRequest.model_validate(body)
    except ValidationError:
        return None


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
