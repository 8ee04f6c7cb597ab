"""How tables with certain columns are read, as somebody said once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from app.storage.errors import NotFound, translated
from app.storage.records import StoredMapping, utc_now
from app.storage.tables import MappingRow

_ID_LENGTH = 16


def save(
    *, session: Session, columns_sha256: str, payload: Mapping[str, Any], now: datetime | None = None
) -> StoredMapping:
    """Keep the mapping of a set of columns, in place of an earlier one."""
    moment = now or utc_now()
    row = session.get(MappingRow, columns_sha256[:_ID_LENGTH])
    if row is None:
        row = MappingRow(
            id=columns_sha256[:_ID_LENGTH],
            columns_sha256=columns_sha256,
            payload=dict(payload),
            created_at=moment,
            updated_at=moment,
        )
    else:
        row.payload, row.updated_at = dict(payload), moment
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def get(*, session: Session, mapping_id: str) -> StoredMapping:
    """The mapping, or NotFound."""
    row = session.get(MappingRow, mapping_id)
    if row is None:
        raise NotFound("mapping", mapping_id[:80])
    return _record(row)


def list_all(*, session: Session) -> tuple[StoredMapping, ...]:
    """Every mapping, the one changed last first."""
    rows = session.exec(select(MappingRow).order_by(col(MappingRow.updated_at).desc(), col(MappingRow.id)))
    return tuple(_record(row) for row in rows)


def delete(*, session: Session, mapping_id: str) -> None:
    """Forget a mapping; runs that were read by it stay. Raises NotFound."""
    row = session.get(MappingRow, mapping_id)
    if row is None:
        raise NotFound("mapping", mapping_id[:80])
    with translated():
        session.delete(row)
        session.flush()


def _record(row: MappingRow) -> StoredMapping:
    return StoredMapping(row.id, row.columns_sha256, row.payload, row.created_at, row.updated_at)
