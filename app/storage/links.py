"""Links that are remembered: what a file's wording for a device or a model means to this team."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Session, col, select

from app.storage.errors import NotFound, translated
from app.storage.records import RememberedLink, new_id, utc_now
from app.storage.tables import RememberedLinkRow


def remember(
    *, session: Session, kind: str, hint_key: str, hint: str, target_id: str, now: datetime | None = None
) -> RememberedLink:
    """Keep what a wording means; what was kept for it before is replaced."""
    row = _row(session, kind, hint_key)
    if row is None:
        row = RememberedLinkRow(
            id=new_id(), kind=kind, hint_key=hint_key, hint=hint, target_id=target_id, created_at=now or utc_now()
        )
    elif row.target_id != target_id:
        row.target_id, row.hint, row.created_at = target_id, hint, now or utc_now()
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def find(*, session: Session, kind: str, hint_key: str) -> RememberedLink | None:
    row = _row(session, kind, hint_key)
    return None if row is None else _record(row)


def list_all(*, session: Session) -> tuple[RememberedLink, ...]:
    """Every remembered link, the newest first."""
    rows = session.exec(select(RememberedLinkRow).order_by(col(RememberedLinkRow.created_at).desc()))
    return tuple(_record(row) for row in rows)


def forget(*, session: Session, link_id: str) -> RememberedLink:
    """Delete one; runs keep the links they have. Raises NotFound."""
    row = session.get(RememberedLinkRow, link_id)
    if row is None:
        raise NotFound("remembered link", link_id)
    known = _record(row)
    with translated():
        session.delete(row)
        session.flush()
    return known


def _row(session: Session, kind: str, hint_key: str) -> RememberedLinkRow | None:
    return session.exec(
        select(RememberedLinkRow).where(RememberedLinkRow.kind == kind, RememberedLinkRow.hint_key == hint_key)
    ).first()


def _record(row: RememberedLinkRow) -> RememberedLink:
    return RememberedLink(row.id, row.kind, row.hint, row.target_id, row.created_at)
