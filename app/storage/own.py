"""What a team stores under a name of its own: hardware profiles, models and workloads share one way of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import func
from sqlmodel import Session, col, select

from app.storage.errors import Conflict, NotFound, translated
from app.storage.records import StoredHardware, StoredModel, StoredWorkload, utc_now, values_of
from app.storage.tables import HardwareRow, ModelRow, WorkloadRow

Row = TypeVar("Row", HardwareRow, ModelRow, WorkloadRow)
Record = TypeVar("Record", StoredHardware, StoredModel, StoredWorkload)


@dataclass(frozen=True, slots=True)
class OwnEntries(Generic[Row, Record]):
    """The entries of one table.

    `noun` is what messages call one of them, `record` is the detached record of a row, and `linked` counts the runs
    that point at an entry: it cannot be deleted while there are some.
    """

    row: type[Row]
    record: type[Record]
    noun: str
    linked: Callable[[Session, str], int] | None = None

    def add(
        self,
        *,
        session: Session,
        entry_id: str,
        name: str,
        payload: Mapping[str, Any],
        now: datetime | None = None,
        **columns: Any,
    ) -> Record:
        """Store a new entry, with further `columns` of its table. Raises Conflict when the id is taken."""
        if session.get(self.row, entry_id) is not None:
            raise Conflict(f"a {self.noun} {entry_id!r} is stored already")
        moment = now or utc_now()
        row = self.row(id=entry_id, name=name, payload=dict(payload), created_at=moment, updated_at=moment, **columns)
        with translated():
            session.add(row)
            session.flush()
        return self._record(row)

    def get(self, *, session: Session, entry_id: str) -> Record:
        """The entry, or NotFound."""
        return self._record(self._row(session, entry_id))

    def find(self, *, session: Session, entry_id: str) -> Record | None:
        """The entry, or None."""
        row = session.get(self.row, entry_id)
        return None if row is None else self._record(row)

    def list_all(self, *, session: Session) -> tuple[Record, ...]:
        """All entries of the team, by name."""
        rows = session.exec(select(self.row).order_by(func.lower(col(self.row.name)), col(self.row.id)))
        return tuple(self._record(row) for row in rows)

    def update(
        self,
        *,
        session: Session,
        entry_id: str,
        name: str,
        payload: Mapping[str, Any],
        expected_revision: int | None = None,
        now: datetime | None = None,
        **columns: Any,
    ) -> Record:
        """Replace name, payload and the given columns. With `expected_revision`, Conflict if it was edited since."""
        row = self._row(session, entry_id)
        if expected_revision is not None and row.revision != expected_revision:
            raise Conflict(f"{entry_id!r} has been edited since (revision {row.revision}): load it again, then edit")
        row.name = name
        row.payload = dict(payload)
        row.revision += 1
        row.updated_at = now or utc_now()
        for column, value in columns.items():
            setattr(row, column, value)
        with translated():
            session.add(row)
            session.flush()
        return self._record(row)

    def delete(self, *, session: Session, entry_id: str) -> None:
        """Delete an entry. Raises Conflict while runs are linked to it, since they would point at nothing."""
        row = self._row(session, entry_id)
        linked = 0 if self.linked is None else self.linked(session, entry_id)
        if linked:
            runs = "1 run is" if linked == 1 else f"{linked} runs are"
            raise Conflict(f"{runs} linked to {entry_id!r}: link them elsewhere first")
        with translated():
            session.delete(row)
            session.flush()

    def _record(self, row: Row) -> Record:
        return self.record(**values_of(row, self.record))

    def _row(self, session: Session, entry_id: str) -> Row:
        row = session.get(self.row, entry_id)
        if row is None:
            raise NotFound(self.noun, entry_id)
        return row
