"""Share links. The token is 128 random bits; only its SHA-256 is stored, so the database alone opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from sqlmodel import Session, col, select

from app.storage.comparisons import to_record
from app.storage.errors import InvalidValue, NotFound, translated
from app.storage.records import StoredComparison, StoredShare, new_id, utc_now
from app.storage.tables import ComparisonRow, ShareRow

MAX_TOKEN_LENGTH = 128


def create(
    *,
    session: Session,
    comparison_id: str,
    expires_in: timedelta | None = None,
    now: datetime | None = None,
) -> tuple[str, StoredShare]:
    """A new link to a comparison: its token, which can never be read again, and its record. Raises NotFound."""
    if session.exec(select(ComparisonRow.id).where(ComparisonRow.id == comparison_id)).first() is None:
        raise NotFound("comparison", comparison_id)
    moment = now or utc_now()
    if expires_in is not None and expires_in <= timedelta(0):
        raise InvalidValue("a link must expire in the future")
    try:
        expires_at = moment + expires_in if expires_in is not None else None
    except OverflowError:
        raise InvalidValue("a link cannot expire after the year 9999; leave the time out instead") from None
    token = secrets.token_urlsafe(16)
    row = ShareRow(
        id=new_id(),
        token_sha256=_digest(token),
        comparison_id=comparison_id,
        created_at=moment,
        expires_at=expires_at,
    )
    with translated():
        session.add(row)
        session.flush()
    return token, _record(row)


def open_share(*, session: Session, token: str, now: datetime | None = None) -> tuple[StoredComparison, StoredShare]:
    """The comparison behind a token. Unknown, expired and revoked tokens raise the same NotFound."""
    row = _row_of_token(session, token)
    if row is None or not _record(row).is_open(now or utc_now()):
        raise NotFound("share")
    comparison = session.exec(select(ComparisonRow).where(ComparisonRow.id == row.comparison_id)).one()
    return to_record(comparison), _record(row)


def list_shares(*, session: Session, comparison_id: str) -> tuple[StoredShare, ...]:
    """All links to a comparison, the newest first, closed ones included."""
    rows = session.exec(
        select(ShareRow)
        .where(ShareRow.comparison_id == comparison_id)
        .order_by(col(ShareRow.created_at).desc(), col(ShareRow.id))
    )
    return tuple(_record(row) for row in rows)


def revoke(*, session: Session, token: str, now: datetime | None = None) -> StoredShare:
    """Close the link with this token for good. Raises NotFound where it does not open anything (any more)."""
    moment = now or utc_now()
    row = _row_of_token(session, token)
    if row is None or not _record(row).is_open(moment):
        raise NotFound("share")
    return _revoke(session, row, moment)


def revoke_by_id(*, session: Session, share_id: str, now: datetime | None = None) -> StoredShare:
    """Close a link named by its record's id. Closing it twice changes nothing. Raises NotFound."""
    row = session.get(ShareRow, share_id)
    if row is None:
        raise NotFound("share", share_id)
    return _record(row) if row.revoked_at is not None else _revoke(session, row, now or utc_now())


def _revoke(session: Session, row: ShareRow, moment: datetime) -> StoredShare:
    row.revoked_at = moment
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def _row_of_token(session: Session, token: str) -> ShareRow | None:
    if not token.isascii() or len(token) > MAX_TOKEN_LENGTH:
        return None
    return session.exec(select(ShareRow).where(ShareRow.token_sha256 == _digest(token))).first()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def _record(row: ShareRow) -> StoredShare:
    return StoredShare(
        id=row.id,
        comparison_id=row.comparison_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
