"""What people change of a run: its links, what they state, facts, notes, acknowledgements, and its deletion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from app.domain.errors import InvalidInput
from app.domain.lint_facts import STATABLE, Fact
from app.importers.reading import clean
from app.services.acknowledgements import checked_acknowledgements
from app.services.context import Context
from app.services.contracts import Contract
from app.services.links import Kind, learn
from app.services.references import resolve_hardware, resolve_model
from app.services.runs import RunView, get_view, series_of_run
from app.services.upload_run import checked_baseline, checked_name, checked_overrides, checked_tags, stated_workload
from app.storage import runs
from app.storage.records import UNSET, RunChanges, StoredRun

MAX_NOTES = 10_000
MAX_SERIES = 120
MAX_FACT = 300


class RunPatch(Contract):
    """What may be changed of a run; fields left out stay. null unlinks, and takes back what was stated.

    `workload` as an object replaces the stated fields, which go over those of a linked saved workload; as text it links
    a saved one; null drops both. `parallel` changes only the layout. `facts` adds what no file carries, by the keys
    that `missing` names; null takes one back. `acknowledge` accepts warnings with a note, by the finding's check; null
    takes that back. `series` puts the run into a series by that name. A link that is changed is remembered for files of
    the same wording, unless `remember` is false.
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
    for other in (sibling.id for sibling in view.siblings if sibling.id != view.run.id):
        if any(f.check == check and f.severity == "warning" for f in get_view(ctx, other).findings):
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
