"""Share links. The token is 128 random bits; only its SHA-256 is stored, so the database alone opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from sqlmodel import Session, col, select

from app.storage import comparisons, diagnoses
from app.storage.errors import InvalidValue, NotFound, translated
from app.storage.records import StoredComparison, StoredDiagnosis, StoredShare, new_id, utc_now
from app.storage.tables import ComparisonRow, DiagnosisRow, DiagnosisShareRow, ShareRow

MAX_TOKEN_LENGTH = 128

Kind: TypeAlias = Literal["comparison", "diagnosis"]
Row: TypeAlias = ShareRow | DiagnosisShareRow


def create(
    *,
    session: Session,
    comparison_id: str,
    expires_in: timedelta | None = None,
    now: datetime | None = None,
) -> tuple[str, StoredShare]:
    """A new link to a comparison: its token, which can never be read again, and its record. Raises NotFound."""
    return create_for("comparison", comparison_id, session=session, expires_in=expires_in, now=now)


def create_for(
    kind: Kind,
    target_id: str,
    *,
    session: Session,
    expires_in: timedelta | None = None,
    now: datetime | None = None,
) -> tuple[str, StoredShare]:
    """The same for any kind of frozen thing."""
    target = ComparisonRow if kind == "comparison" else DiagnosisRow
    if session.exec(select(target.id).where(target.id == target_id)).first() is None:
        raise NotFound(kind, target_id)
    moment = now or utc_now()
    if expires_in is not None and expires_in <= timedelta(0):
        raise InvalidValue("a link must expire in the future")
    try:
        expires_at = moment + expires_in if expires_in is not None else None
    except OverflowError:
        raise InvalidValue("a link cannot expire after the year 9999; leave the time out instead") from None
    token = secrets.token_urlsafe(16)
    row: Row
    if kind == "comparison":
        row = ShareRow(id=new_id(), token_sha256=_digest(token), comparison_id=target_id, created_at=moment)
    else:
        row = DiagnosisShareRow(id=new_id(), token_sha256=_digest(token), diagnosis_id=target_id, created_at=moment)
    row.expires_at = expires_at
    with translated():
        session.add(row)
        session.flush()
    return token, _record(row)


def open_share(*, session: Session, token: str, now: datetime | None = None) -> tuple[StoredComparison, StoredShare]:
    """The comparison behind a token. Unknown, expired and revoked tokens raise the same NotFound."""
    found, share = open_any(session=session, token=token, now=now)
    if not isinstance(found, StoredComparison):
        raise NotFound("share")
    return found, share


def open_any(
    *, session: Session, token: str, now: datetime | None = None
) -> tuple[StoredComparison | StoredDiagnosis, StoredShare]:
    """Whatever is behind a token; everything that opens nothing raises the same NotFound."""
    row = _row_of_token(session, token)
    if row is None or not _record(row).is_open(now or utc_now()):
        raise NotFound("share")
    share = _record(row)
    if isinstance(row, ShareRow):
        return comparisons.get(session=session, comparison_id=share.target_id), share
    return diagnoses.get(session=session, diagnosis_id=share.target_id), share


def list_shares(*, session: Session, comparison_id: str) -> tuple[StoredShare, ...]:
    """All links to a comparison, the newest first, closed ones included."""
    rows = session.exec(
        select(ShareRow)
        .where(ShareRow.comparison_id == comparison_id)
        .order_by(col(ShareRow.created_at).desc(), col(ShareRow.id))
    )
    return tuple(_record(row) for row in rows)


def list_diagnosis_shares(*, session: Session, diagnosis_id: str) -> tuple[StoredShare, ...]:
    """All links to a diagnosis, the newest first, closed ones included."""
    rows = session.exec(
        select(DiagnosisShareRow)
        .where(DiagnosisShareRow.diagnosis_id == diagnosis_id)
        .order_by(col(DiagnosisShareRow.created_at).desc(), col(DiagnosisShareRow.id))
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
    row: Row | None = session.get(ShareRow, share_id) or session.get(DiagnosisShareRow, share_id)
    if row is None:
        raise NotFound("share", share_id)
    return _record(row) if row.revoked_at is not None else _revoke(session, row, now or utc_now())


def _revoke(session: Session, row: Row, moment: datetime) -> StoredShare:
    row.revoked_at = moment
    with translated():
        session.add(row)
        session.flush()
    return _record(row)


def _row_of_token(session: Session, token: str) -> Row | None:
    if not token.isascii() or len(token) > MAX_TOKEN_LENGTH:
        return None
    digest = _digest(token)
    return (
        session.exec(select(ShareRow).where(ShareRow.token_sha256 == digest)).first()
        or session.exec(select(DiagnosisShareRow).where(DiagnosisShareRow.token_sha256 == digest)).first()
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def _record(row: Row) -> StoredShare:
    return StoredShare(
        id=row.id,
        target_id=row.comparison_id if isinstance(row, ShareRow) else row.diagnosis_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
