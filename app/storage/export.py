"""Everything that is stored, as plain JSON values: what `bytebound export` writes, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlmodel import Session

from app.domain.run import RunWorkload
from app.storage import checklists, comparisons, diagnoses, hardware, links, mappings, models, runs, workloads
from app.storage.records import RunSummary, StoredHardware, StoredModel, StoredRun, StoredWorkload

VERSION = 1
"""Version of the lines' shape, in the first line."""


def exported_items(*, session: Session, app_version: str) -> Iterator[dict[str, Any]]:
    """A heading, then the team's hardware, models, workloads, remembered links and column mappings, all runs,
    comparisons, diagnoses and checklists.

    Each has a `kind`, and each kind comes oldest first. Uploaded files are not part of it (a backup has them); a run
    names its own by `sha256`.
    """
    yield {"kind": "export", "version": VERSION, "app_version": app_version}
    for profile in hardware.list_all(session=session):
        yield {"kind": "hardware", **_entry(profile)}
    for model in models.list_all(session=session):
        yield {"kind": "model", **_entry(model)}
    for workload in workloads.list_all(session=session):
        yield {"kind": "workload", **_entry(workload)}
    for link in reversed(links.list_all(session=session)):
        told = _plain(asdict(link))
        yield {"kind": "remembered_link", "of": told.pop("kind"), **told}
    for mapping in reversed(mappings.list_all(session=session)):
        yield {"kind": "column_mapping", **_plain(asdict(mapping))}
    for run in runs.iterate_runs(session=session):
        yield {"kind": "run", **run_json(run)}
    for comparison in comparisons.iterate_comparisons(session=session):
        yield {"kind": "comparison", **_plain(asdict(comparison))}
    for diagnosis in diagnoses.iterate_diagnoses(session=session):
        yield {"kind": "diagnosis", **_plain(asdict(diagnosis))}
    for checklist in checklists.iterate_checklists(session=session):
        ticks = {item: moment.isoformat() for item, moment in checklist.ticks.items()}
        yield {"kind": "checklist", **_plain(asdict(checklist)), "ticks": ticks}


def run_head(run: RunSummary) -> dict[str, Any]:
    """What every JSON of a run begins with, exported or answered."""
    return {
        "id": run.id,
        "name": run.name,
        "format": run.format,
        "created_at": run.created_at.isoformat(),
        "measured_at": run.measured_at,
        "tags": list(run.tags),
        "is_example": run.is_example,
        "is_baseline": run.is_baseline,
    }


def run_json(run: StoredRun) -> dict[str, Any]:
    """A run with every metric in SI units and the place in the file that it was read from."""
    parsed = run.parsed
    return {
        **run_head(run),
        "upload": {
            "id": run.upload.id,
            "sha256": run.upload.sha256,
            "file_name": run.upload.file_name,
            "position": run.position,
        },
        "hardware": run.hardware_id,
        "hardware_hint": run.hardware_hint,
        "hardware_is_guess": run.hardware_is_guess,
        "model": run.model_id,
        "model_hint": run.model_hint,
        "model_is_guess": run.model_is_guess,
        "facts": dict(run.facts),
        "acknowledged": [asdict(one) for one in run.acknowledged],
        "series_name": run.series_name,
        "workload_id": run.workload_id,
        "workload": _workload(parsed.workload),
        "workload_overrides": dict(run.workload_overrides),
        "baseline_run": run.baseline_run_id,
        "metrics": [{**asdict(metric), "unit": metric.unit} for metric in parsed.metrics],
        "parallel": dict(parsed.parallel),
        "software": dict(parsed.software),
        "series": dict(parsed.series),
        "kernels": [dict(kernel) for kernel in parsed.kernels],
        "timeline": None if parsed.timeline is None else dict(parsed.timeline),
        "samples": {name: list(values) for name, values in parsed.samples.items()},
        "evidence": dict(parsed.evidence),
        "findings": [_plain(asdict(finding)) for finding in parsed.findings],
        "notes": parsed.notes,
    }


def _workload(workload: RunWorkload) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name in RunWorkload.__dataclass_fields__
        if (value := getattr(workload, name)) is not None
    }


def _entry(entry: StoredHardware | StoredModel | StoredWorkload) -> dict[str, Any]:
    return _plain(asdict(entry))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
