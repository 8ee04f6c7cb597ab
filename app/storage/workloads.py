"""Saved workloads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from app.storage.errors import Conflict, NotFound, translated
from app.storage.records import StoredWorkload, new_id, utc_now
from app.storage.tables import WorkloadRow


def add(
    *,
    session: Session,
    name: str,
    payload: Mapping[str, Any],
    model_id: str | None = None,
    now: datetime | None = None,
) -> StoredWorkload:
    """Store a new workload."""
    moment = now or utc_now()
    row = WorkloadRow(
        id=new_id(), name=name, model_id=model_id, payload=dict(payload), created_at=moment, updated_at=moment
    )
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def get(*, session: Session, workload_id: str) -> StoredWorkload:
    """The workload, or NotFound."""
    return _record(_row(session, workload_id))


def find(*, session: Session, workload_id: str) -> StoredWorkload | None:
    """The workload, or None."""
    row = session.get(WorkloadRow, workload_id)
    return _record(row) if row else None


def list_all(*, session: Session) -> tuple[StoredWorkload, ...]:
    """All saved workloads, by name."""
    rows = session.exec(select(WorkloadRow).order_by(func.lower(col(WorkloadRow.name)), col(WorkloadRow.id)))
    return tuple(_record(row) for row in rows)


def update(
    *,
    session: Session,
    workload_id: str,
    name: str,
    payload: Mapping[str, Any],
    model_id: str | None = None,
    expected_revision: int | None = None,
    now: datetime | None = None,
) -> StoredWorkload:
    """Replace name, payload and model. With `expected_revision`, Conflict if somebody else has edited it since."""
    row = _row(session, workload_id)
    if expected_revision is not None and row.revision != expected_revision:
        raise Conflict(f"{workload_id!r} has been edited since (revision {row.revision}): load it again, then edit")
    row.name = name
    row.payload = dict(payload)
    row.model_id = model_id
    row.revision += 1
    row.updated_at = now or utc_now()
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def delete(*, session: Session, workload_id: str) -> None:
    """Delete a workload. Runs that were linked to it keep what they know themselves."""
    row = _row(session, workload_id)
    with translated():
        session.delete(row)
        session.flush()


def _row(session: Session, workload_id: str) -> WorkloadRow:
    row = session.get(WorkloadRow, workload_id)
    if row is None:
        raise NotFound("workload", workload_id)
    return row


def _record(row: WorkloadRow) -> StoredWorkload:
    return StoredWorkload(
        id=row.id,
        name=row.name,
        model_id=row.model_id,
        payload=row.payload,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
