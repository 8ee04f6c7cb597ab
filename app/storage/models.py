"""A team's own models; the shipped ones are files of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from app.storage import runs
from app.storage.errors import Conflict, NotFound, translated
from app.storage.records import StoredModel, utc_now
from app.storage.tables import ModelRow


def add(
    *,
    session: Session,
    model_id: str,
    name: str,
    payload: Mapping[str, Any],
    copied_from: str | None = None,
    now: datetime | None = None,
) -> StoredModel:
    """Store a new model. Raises Conflict when the id is taken."""
    if session.get(ModelRow, model_id) is not None:
        raise Conflict(f"a model {model_id!r} is stored already")
    moment = now or utc_now()
    row = ModelRow(
        id=model_id, name=name, copied_from=copied_from, payload=dict(payload), created_at=moment, updated_at=moment
    )
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def get(*, session: Session, model_id: str) -> StoredModel:
    """The model, or NotFound."""
    return _record(_row(session, model_id))


def find(*, session: Session, model_id: str) -> StoredModel | None:
    """The model, or None."""
    row = session.get(ModelRow, model_id)
    return _record(row) if row else None


def list_all(*, session: Session) -> tuple[StoredModel, ...]:
    """All models of the team, by name."""
    rows = session.exec(select(ModelRow).order_by(func.lower(col(ModelRow.name)), col(ModelRow.id)))
    return tuple(_record(row) for row in rows)


def update(
    *,
    session: Session,
    model_id: str,
    name: str,
    payload: Mapping[str, Any],
    expected_revision: int | None = None,
    now: datetime | None = None,
) -> StoredModel:
    """Replace name and payload. With `expected_revision`, Conflict if somebody else has edited it since."""
    row = _row(session, model_id)
    if expected_revision is not None and row.revision != expected_revision:
        raise Conflict(f"{model_id!r} has been edited since (revision {row.revision}): load it again, then edit")
    row.name = name
    row.payload = dict(payload)
    row.revision += 1
    row.updated_at = now or utc_now()
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def delete(*, session: Session, model_id: str) -> None:
    """Delete a model. Raises Conflict while runs are linked to it, since they would point at nothing."""
    row = _row(session, model_id)
    linked = runs.count_runs(session=session, model_id=model_id)
    if linked:
        raise Conflict(
            f"{linked} {'run is' if linked == 1 else 'runs are'} linked to {model_id!r}: link them elsewhere first"
        )
    with translated():
        session.delete(row)
        session.flush()


def _row(session: Session, model_id: str) -> ModelRow:
    row = session.get(ModelRow, model_id)
    if row is None:
        raise NotFound("model", model_id)
    return row


def _record(row: ModelRow) -> StoredModel:
    return StoredModel(
        id=row.id,
        name=row.name,
        copied_from=row.copied_from,
        payload=row.payload,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
