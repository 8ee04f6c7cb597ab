"""A team's own hardware profiles; the shipped ones are files of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from app.storage import runs
from app.storage.errors import Conflict, NotFound, translated
from app.storage.records import StoredHardware, utc_now
from app.storage.tables import HardwareRow


def add(
    *,
    session: Session,
    hardware_id: str,
    name: str,
    payload: Mapping[str, Any],
    copied_from: str | None = None,
    now: datetime | None = None,
) -> StoredHardware:
    """Store a new hardware profile. Raises Conflict when the id is taken."""
    if session.get(HardwareRow, hardware_id) is not None:
        raise Conflict(f"a hardware profile {hardware_id!r} is stored already")
    moment = now or utc_now()
    row = HardwareRow(
        id=hardware_id, name=name, copied_from=copied_from, payload=dict(payload), created_at=moment, updated_at=moment
    )
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def get(*, session: Session, hardware_id: str) -> StoredHardware:
    """The hardware profile, or NotFound."""
    return _record(_row(session, hardware_id))


def find(*, session: Session, hardware_id: str) -> StoredHardware | None:
    """The hardware profile, or None."""
    row = session.get(HardwareRow, hardware_id)
    return _record(row) if row else None


def list_all(*, session: Session) -> tuple[StoredHardware, ...]:
    """All hardware profiles of the team, by name."""
    rows = session.exec(select(HardwareRow).order_by(func.lower(col(HardwareRow.name)), col(HardwareRow.id)))
    return tuple(_record(row) for row in rows)


def update(
    *,
    session: Session,
    hardware_id: str,
    name: str,
    payload: Mapping[str, Any],
    expected_revision: int | None = None,
    now: datetime | None = None,
) -> StoredHardware:
    """Replace name and payload. With `expected_revision`, Conflict if somebody else has edited it since."""
    row = _row(session, hardware_id)
    if expected_revision is not None and row.revision != expected_revision:
        raise Conflict(f"{hardware_id!r} has been edited since (revision {row.revision}): load it again, then edit")
    row.name = name
    row.payload = dict(payload)
    row.revision += 1
    row.updated_at = now or utc_now()
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def delete(*, session: Session, hardware_id: str) -> None:
    """Delete a hardware profile. Raises Conflict while runs are linked to it, since they would point at nothing."""
    row = _row(session, hardware_id)
    linked = runs.count_runs(session=session, hardware_id=hardware_id)
    if linked:
        raise Conflict(
            f"{linked} {'run is' if linked == 1 else 'runs are'} linked to {hardware_id!r}: link them elsewhere first"
        )
    with translated():
        session.delete(row)
        session.flush()


def _row(session: Session, hardware_id: str) -> HardwareRow:
    row = session.get(HardwareRow, hardware_id)
    if row is None:
        raise NotFound("hardware profile", hardware_id)
    return row


def _record(row: HardwareRow) -> StoredHardware:
    return StoredHardware(
        id=row.id,
        name=row.name,
        copied_from=row.copied_from,
        payload=row.payload,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
