"""Saved diagnoses: frozen walks, links to them, and whether a later walk of the same scenario moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app import __version__
from app.domain.errors import InvalidInput
from app.services.compare import checked_notes, checked_text
from app.services.context import Context
from app.services.diagnose import MAX_TITLE, DiagnosisRequest, diagnose
from app.services.diagnose_json import diagnosis_json
from app.services.diagnose_words import value_text
from app.services.share import share_json
from app.storage import diagnoses
from app.storage.records import DiagnosisSummary, Page, StoredDiagnosis, StoredShare

SAME = 1e-9
"""Relative change up to which two values are one: floats added in another order differ by less."""


def create_diagnosis(ctx: Context, request: DiagnosisRequest) -> StoredDiagnosis:
    """Walk and freeze what a reader will see. Raises InvalidInput."""
    title = checked_text(request.title, ("title",), MAX_TITLE)
    notes = checked_notes(request.notes)
    found = diagnose(ctx, request)
    snapshot = diagnosis_json(ctx, found)
    if not title:
        title = f"{found.subject.scenario.title}: {found.subject.words}"[:MAX_TITLE]
    with ctx.storage.write() as session:
        return diagnoses.add(
            session=session,
            scenario=request.scenario,
            title=title,
            notes=notes,
            headline=str(snapshot["headline"]),
            run_id=request.run,
            snapshot=snapshot,
            app_version=__version__,
        )


def get_diagnosis(ctx: Context, diagnosis_id: str) -> StoredDiagnosis:
    """Raises NotFound."""
    with ctx.storage.read() as session:
        return diagnoses.get(session=session, diagnosis_id=diagnosis_id)


def list_diagnoses(
    ctx: Context,
    *,
    scenario: str | None = None,
    run: str | None = None,
    text: str | None = None,
    sort: str = "-created_at",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[DiagnosisSummary]:
    """Raises InvalidQuery."""
    with ctx.storage.read() as session:
        return diagnoses.list_diagnoses(
            session=session, scenario=scenario, run_id=run, text=text, sort=sort, limit=limit, cursor=cursor
        )


def delete_diagnosis(ctx: Context, diagnosis_id: str) -> None:
    """Delete it with every link to it. Raises NotFound."""
    with ctx.storage.write() as session:
        diagnoses.delete(session=session, diagnosis_id=diagnosis_id)


# ---- JSON ---------------------------------------------------------------------------------------------------------


def summary_json(stored: DiagnosisSummary) -> dict[str, Any]:
    return {
        "id": stored.id,
        "url": f"/diagnose/{stored.id}",
        "title": stored.title,
        "notes": stored.notes,
        "scenario": stored.scenario,
        "run": stored.run_id,
        "headline": stored.headline,
        "app_version": stored.app_version,
        "created_at": stored.created_at.isoformat(),
    }


def stored_json(stored: StoredDiagnosis) -> dict[str, Any]:
    """A diagnosis in the API's shape: the frozen answer with its heading."""
    return {**stored.snapshot, **summary_json(stored)}


def shared_json(stored: StoredDiagnosis, share: StoredShare) -> dict[str, Any]:
    """What a reader of a link gets: without the addresses of its owner, with the link's dates."""
    shown = {key: value for key, value in stored_json(stored).items() if key not in ("id", "url", "run", "request")}
    subject = shown["subject"]
    shown["subject"] = {**subject, "run": subject["run"] and {"name": subject["run"]["name"]}}
    dates = {key: value for key, value in share_json(share).items() if key in ("created_at", "expires_at")}
    return {"kind": "diagnosis", **shown, "share": dates, "moved": []}


# ---- did it move? -------------------------------------------------------------------------------------------------


def moved_json(ctx: Context, before: StoredDiagnosis, after: StoredDiagnosis) -> dict[str, Any]:
    """Two walks of one scenario side by side: evidence, answers that changed, directions gone, kept and new.

    Raises InvalidInput for walks of two scenarios, whose questions differ.
    """
    if before.scenario != after.scenario:
        raise InvalidInput(
            ("since",),
            f"is a walk of {before.scenario}, and the other one of {after.scenario}: choose one of the same scenario",
        )
    one, two = before.snapshot, after.snapshot
    evidence = _evidence_rows(ctx, one, two)
    answers = _answer_rows(one, two)
    directions = _direction_rows(one, two)
    kind, times = _times_of(one, two)
    return {
        "scenario": after.scenario,
        "before": summary_json(before),
        "after": summary_json(after),
        "time_kind": kind,
        "before_s": times[0],
        "after_s": times[1],
        "sentence": _sentence(answers, directions, kind, times),
        "evidence": evidence,
        "answers": answers,
        "directions": directions,
    }


def _times_of(one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[str | None, list[float | None]]:
    """Times of a step that may be compared: both measured, or both expected. A measured one is never held against an
    expected one."""
    for kind in ("measured", "expected"):
        times = [snapshot["subject"][f"{kind}_s"] for snapshot in (one, two)]
        if None not in times:
            return kind, times
    return None, [None, None]


def _evidence_rows(ctx: Context, one: Mapping[str, Any], two: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Evidence that either walk's questions read, side by side."""
    read = [
        check["name"] for snapshot in (one, two) for step in snapshot["path"] for check in step["evidence"]
    ]  # in the order of the questions
    known = [{item["name"]: item for item in snapshot["evidence"]} for snapshot in (one, two)]
    rows = []
    for name in dict.fromkeys(read):
        metric = ctx.catalog.trees.metrics.get(name)
        pair = [side.get(name) for side in known]
        values = [None if item is None else item["value"] for item in pair]
        if values == [None, None]:
            continue  # both took the answer for granted
        rows.append(
            {
                "name": name,
                "label": metric.label if metric is not None else name,
                "unit": metric.unit if metric is not None else "",
                "before": values[0],
                "after": values[1],
                "before_text": None if metric is None or values[0] is None else value_text(metric, values[0]),
                "after_text": None if metric is None or values[1] is None else value_text(metric, values[1]),
                "before_limit": None if pair[0] is None else pair[0]["limit"],
                "after_limit": None if pair[1] is None else pair[1]["limit"],
                "moved": not _same(values[0], values[1]),
            }
        )
    return rows


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= SAME * max(abs(a), abs(b))
    return a == b


def _answer_rows(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every question that either walk answered; `changed` where both did, differently."""
    steps = [{step["node"]: step for step in snapshot["path"]} for snapshot in (one, two)]
    rows = []
    for node in dict.fromkeys([*steps[1], *steps[0]]):
        pair = [side.get(node) for side in steps]
        shown = pair[1] or pair[0]
        assert shown is not None
        answers = [None if step is None else step["answer"] for step in pair]
        rows.append(
            {
                "node": node,
                "question": shown["question"],
                "before": answers[0],
                "after": answers[1],
                "changed": None not in answers and answers[0] != answers[1],
            }
        )
    return rows


def _direction_rows(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Directions of both walks that count (found or likely): gone, still there, or new."""
    counted = [
        {item["leaf"]: item for item in snapshot["directions"] if item["status"] in ("found", "likely")}
        for snapshot in (one, two)
    ]
    rows = []
    for leaf in dict.fromkeys([*counted[0], *counted[1]]):
        shown = counted[1].get(leaf) or counted[0][leaf]
        state = "gone" if leaf not in counted[1] else "new" if leaf not in counted[0] else "stays"
        rows.append({"leaf": leaf, "title": shown["title"], "state": state})
    return rows


def _sentence(
    answers: list[dict[str, Any]], directions: list[dict[str, Any]], kind: str | None, times: list[float | None]
) -> str:
    """The result in a sentence or two."""
    parts = []
    before, after = times
    if before and after:
        ratio = before / after
        step = "The step" if kind == "measured" else "The expected step"
        if abs(ratio - 1) < 0.005:
            parts.append(f"{step} takes as long as before.")
        else:
            parts.append(
                f"{step} is {ratio:.3g} times as fast as before."
                if ratio > 1
                else f"{step} takes {1 / ratio:.3g} times as long as before."
            )
    gone = [row["title"] for row in directions if row["state"] == "gone"]
    new = [row["title"] for row in directions if row["state"] == "new"]
    if gone:
        parts.append(f"It moved: “{'”, “'.join(gone)}” {'is' if len(gone) == 1 else 'are'} no longer the direction.")
    elif any(row["changed"] for row in answers):
        parts.append("Some answers changed, but the direction stays.")
    else:
        parts.append("It did not move: every question has the answer it had.")
    if new:
        parts.append(f"Now: “{'”, “'.join(new)}”.")
    return " ".join(parts)
