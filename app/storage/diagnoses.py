"""Frozen diagnoses: added and deleted, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import defer
from sqlmodel import Session, col

from app.storage import frozen
from app.storage.errors import translated
from app.storage.records import DiagnosisSummary, Page, StoredDiagnosis, new_id, utc_now, values_of
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
    return to_record(frozen.row_of(session, DiagnosisRow, "diagnosis", diagnosis_id))


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
    query = select(DiagnosisRow).options(defer(DiagnosisRow.snapshot))  # type: ignore[arg-type]
    if scenario:
        query = query.where(col(DiagnosisRow.scenario) == scenario)
    if run_id:
        query = query.where(col(DiagnosisRow.run_id) == run_id)
    query = frozen.holding(query, text, (DiagnosisRow.title, DiagnosisRow.notes, DiagnosisRow.headline))
    return frozen.page_of(session, DiagnosisRow, query, _summary, sort=sort, limit=limit, cursor=cursor)


def iterate_diagnoses(*, session: Session) -> Iterator[StoredDiagnosis]:
    """Every diagnosis, oldest first, one in memory at a time."""
    yield from frozen.each(session, DiagnosisRow, to_record)


def delete(*, session: Session, diagnosis_id: str) -> None:
    """Delete a diagnosis and every link to it. Raises NotFound."""
    frozen.remove(session, frozen.row_of(session, DiagnosisRow, "diagnosis", diagnosis_id))


def to_record(row: DiagnosisRow) -> StoredDiagnosis:
    return StoredDiagnosis(**values_of(row, DiagnosisSummary), snapshot=row.snapshot)


def _summary(row: DiagnosisRow) -> DiagnosisSummary:
    return DiagnosisSummary(**values_of(row, DiagnosisSummary))
