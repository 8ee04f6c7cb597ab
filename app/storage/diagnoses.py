"""Frozen diagnoses: added and deleted, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import String, func
from sqlalchemy import select as sql_select
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from app.storage.errors import NotFound, translated
from app.storage.paging import rows_of_page
from app.storage.records import DiagnosisSummary, Page, StoredDiagnosis, new_id, utc_now
from app.storage.tables import DiagnosisRow

SORT_KEYS: tuple[str, ...] = ("created_at", "title")


def add(
    *,
    session: Session,
    scenario: str,
    title: str,
    headline: str,
    snapshot: Mapping[str, Any],
    app_version: str,
    notes: str = "",
    run_id: str | None = None,
    now: datetime | None = None,
) -> StoredDiagnosis:
    """Freeze a diagnosis. `snapshot` must hold everything that a reader sees."""
    row = DiagnosisRow(
        id=new_id(),
        scenario=scenario,
        title=title,
        notes=notes,
        run_id=run_id,
        headline=headline,
        app_version=app_version,
        snapshot=dict(snapshot),
        created_at=now or utc_now(),
    )
    with translated():
        session.add(row)
        session.flush()
    return to_record(row)


def get(*, session: Session, diagnosis_id: str) -> StoredDiagnosis:
    """The diagnosis, or NotFound."""
    return to_record(_row(session, diagnosis_id))


def list_diagnoses(
    *,
    session: Session,
    scenario: str | None = None,
    run_id: str | None = None,
    text: str | None = None,
    sort: str = "-created_at",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[DiagnosisSummary]:
    """One page of diagnoses whose title, notes or answer hold `text`. Snapshots are not read. Raises InvalidQuery."""
    query = sql_select(DiagnosisRow).options(defer(DiagnosisRow.snapshot))  # type: ignore[arg-type]
    if scenario:
        query = query.where(col(DiagnosisRow.scenario) == scenario)
    if run_id:
        query = query.where(col(DiagnosisRow.run_id) == run_id)
    if text and text.strip():
        wanted = text.strip()
        columns = (DiagnosisRow.title, DiagnosisRow.notes, DiagnosisRow.headline)
        first, *others = (col(one).icontains(wanted, autoescape=True) for one in columns)
        for other in others:
            first = first | other
        query = query.where(first)
    sorts: dict[str, Any] = {
        "created_at": col(DiagnosisRow.created_at),
        "title": func.lower(col(DiagnosisRow.title), type_=String),
    }
    rows, following, total = rows_of_page(
        session, query, sorts=sorts, tie_breaker=col(DiagnosisRow.seq), sort=sort, limit=limit, cursor=cursor
    )
    return Page(tuple(DiagnosisSummary(**_summary_fields(row[0])) for row in rows), following, total)


def iterate_diagnoses(*, session: Session) -> Iterator[StoredDiagnosis]:
    """Every diagnosis, oldest first, one in memory at a time."""
    for diagnosis_id in session.exec(select(DiagnosisRow.id).order_by(col(DiagnosisRow.seq))).all():
        yield get(session=session, diagnosis_id=diagnosis_id)
        session.expunge_all()


def delete(*, session: Session, diagnosis_id: str) -> None:
    """Delete a diagnosis and every link to it. Raises NotFound."""
    row = _row(session, diagnosis_id)
    with translated():
        session.delete(row)
        session.flush()


def _row(session: Session, diagnosis_id: str) -> DiagnosisRow:
    row = session.exec(select(DiagnosisRow).where(DiagnosisRow.id == diagnosis_id)).first()
    if row is None:
        raise NotFound("diagnosis", diagnosis_id)
    return row


def to_record(row: DiagnosisRow) -> StoredDiagnosis:
    return StoredDiagnosis(**_summary_fields(row), snapshot=row.snapshot)


def _summary_fields(row: DiagnosisRow) -> dict[str, Any]:
    names = ("id", "scenario", "title", "notes", "run_id", "headline", "app_version", "created_at")
    return {name: getattr(row, name) for name in names}
