"""Teams' copies of checklists: what is ticked and since when, and links to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import String, func
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from app.storage.errors import NotFound, translated
from app.storage.paging import rows_of_page
from app.storage.records import Page, StoredChecklist, StoredChecklistShare, new_id, utc_now
from app.storage.tables import ChecklistRow, ChecklistShareRow
from app.storage.tokens import digest_of, expiry, new_token

SORT_KEYS: tuple[str, ...] = ("updated_at", "created_at", "title")


def add(*, session: Session, list_id: str, title: str, now: datetime | None = None) -> StoredChecklist:
    """A new copy with nothing ticked."""
    moment = now or utc_now()
    row = ChecklistRow(id=new_id(), list_id=list_id, title=title, created_at=moment, updated_at=moment)
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def get(*, session: Session, checklist_id: str) -> StoredChecklist:
    """The copy, or NotFound."""
    return _record(_row(session, checklist_id))


def list_checklists(
    *,
    session: Session,
    list_id: str | None = None,
    sort: str = "-updated_at",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[StoredChecklist]:
    """One page of copies. Raises InvalidQuery."""
    query = sql_select(ChecklistRow)
    if list_id is not None:
        query = query.where(col(ChecklistRow.list_id) == list_id)
    sorts: dict[str, Any] = {
        "updated_at": col(ChecklistRow.updated_at),
        "created_at": col(ChecklistRow.created_at),
        "title": func.lower(col(ChecklistRow.title), type_=String),
    }
    rows, following, total = rows_of_page(
        session, query, sorts=sorts, tie_breaker=col(ChecklistRow.seq), sort=sort, limit=limit, cursor=cursor
    )
    return Page(tuple(_record(row[0]) for row in rows), following, total)


def iterate_checklists(*, session: Session) -> Iterator[StoredChecklist]:
    """Every copy, oldest first."""
    for row in session.exec(select(ChecklistRow).order_by(col(ChecklistRow.seq))):
        yield _record(row)


def change(
    *,
    session: Session,
    checklist_id: str,
    ticks: Mapping[str, bool] | None = None,
    title: str | None = None,
    now: datetime | None = None,
) -> StoredChecklist:
    """Tick and untick items, or rename. What is ticked already keeps its time. Raises NotFound."""
    row = _row(session, checklist_id)
    moment = now or utc_now()
    kept = dict(row.ticks)
    for item, ticked in (ticks or {}).items():
        if not ticked:
            kept.pop(item, None)
        elif item not in kept:
            kept[item] = moment.isoformat()
    renamed = title is not None and title != row.title
    if kept == row.ticks and not renamed:
        return _record(row)
    row.ticks, row.title, row.updated_at = kept, row.title if title is None else title, moment
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def delete(*, session: Session, checklist_id: str) -> None:
    """Delete a copy and every link to it. Raises NotFound."""
    row = _row(session, checklist_id)
    with translated():
        session.delete(row)
        session.flush()


# ---- links ----------------------------------------------------------------------------------------------------------


def create_share(
    *,
    session: Session,
    checklist_id: str,
    can_tick: bool = False,
    expires_in: timedelta | None = None,
    now: datetime | None = None,
) -> tuple[str, StoredChecklistShare]:
    """A new link: its token, which can never be read again, and its record. Raises NotFound."""
    _row(session, checklist_id)
    moment = now or utc_now()
    token, digest = new_token()
    row = ChecklistShareRow(
        id=new_id(),
        token_sha256=digest,
        checklist_id=checklist_id,
        can_tick=can_tick,
        created_at=moment,
        expires_at=expiry(moment, expires_in),
    )
    with translated():
        session.add(row)
        session.flush()
    return token, _share(row)


def open_share(
    *, session: Session, token: str, now: datetime | None = None
) -> tuple[StoredChecklist, StoredChecklistShare]:
    """The copy behind a token. Unknown, expired and revoked tokens raise the same NotFound."""
    digest = digest_of(token)
    found = select(ChecklistShareRow).where(ChecklistShareRow.token_sha256 == digest)
    row = None if digest is None else session.exec(found).first()
    if row is None or not _share(row).is_open(now or utc_now()):
        raise NotFound("share")
    return get(session=session, checklist_id=row.checklist_id), _share(row)


def list_shares(*, session: Session, checklist_id: str) -> tuple[StoredChecklistShare, ...]:
    """All links to a copy, the newest first, closed ones included."""
    rows = session.exec(
        select(ChecklistShareRow)
        .where(ChecklistShareRow.checklist_id == checklist_id)
        .order_by(col(ChecklistShareRow.created_at).desc(), col(ChecklistShareRow.id))
    )
    return tuple(_share(row) for row in rows)


def revoke_share(
    *, session: Session, checklist_id: str, share_id: str, now: datetime | None = None
) -> StoredChecklistShare:
    """Close a link to this copy for good. Closing it twice changes nothing. Raises NotFound."""
    row = session.get(ChecklistShareRow, share_id)
    if row is None or row.checklist_id != checklist_id:
        raise NotFound("share", share_id)
    if row.revoked_at is None:
        row.revoked_at = now or utc_now()
        with translated():
            session.add(row)
            session.flush()
    return _share(row)


def _row(session: Session, checklist_id: str) -> ChecklistRow:
    row = session.exec(select(ChecklistRow).where(ChecklistRow.id == checklist_id)).first()
    if row is None:
        raise NotFound("checklist", checklist_id)
    return row


def _record(row: ChecklistRow) -> StoredChecklist:
    ticks = {item: datetime.fromisoformat(moment) for item, moment in row.ticks.items()}
    return StoredChecklist(
        id=row.id,
        list_id=row.list_id,
        title=row.title,
        ticks=dict(sorted(ticks.items(), key=lambda tick: tick[1])),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _share(row: ChecklistShareRow) -> StoredChecklistShare:
    return StoredChecklistShare(
        id=row.id,
        checklist_id=row.checklist_id,
        can_tick=row.can_tick,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
