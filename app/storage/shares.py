"""Links to frozen comparisons and diagnoses, by a token that is stored as its digest only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias, TypeVar

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, select

from app.storage import comparisons, diagnoses
from app.storage.errors import NotFound, translated
from app.storage.records import StoredComparison, StoredDiagnosis, StoredShare, new_id, utc_now
from app.storage.tables import ComparisonRow, DiagnosisRow, DiagnosisShareRow, ShareRow
from app.storage.tokens import digest_of, expiry, new_token

Kind: TypeAlias = Literal["comparison", "diagnosis"]
Row: TypeAlias = ShareRow | DiagnosisShareRow
Table = TypeVar("Table", ShareRow, DiagnosisShareRow)


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
    expires_at = expiry(moment, expires_in)
    token, digest = new_token()
    row: Row
    if kind == "comparison":
        row = ShareRow(id=new_id(), token_sha256=digest, comparison_id=target_id, created_at=moment)
    else:
        row = DiagnosisShareRow(id=new_id(), token_sha256=digest, diagnosis_id=target_id, created_at=moment)
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
    return _links_of(session, ShareRow, col(ShareRow.comparison_id) == comparison_id)


def list_diagnosis_shares(*, session: Session, diagnosis_id: str) -> tuple[StoredShare, ...]:
    """All links to a diagnosis, the newest first, closed ones included."""
    return _links_of(session, DiagnosisShareRow, col(DiagnosisShareRow.diagnosis_id) == diagnosis_id)


def _links_of(session: Session, table: type[Table], target: ColumnElement[bool]) -> tuple[StoredShare, ...]:
    rows = session.exec(select(table).where(target).order_by(col(table.created_at).desc(), col(table.id)))
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
    digest = digest_of(token)
    if digest is None:
        return None
    return (
        session.exec(select(ShareRow).where(ShareRow.token_sha256 == digest)).first()
        or session.exec(select(DiagnosisShareRow).where(DiagnosisShareRow.token_sha256 == digest)).first()
    )


def _record(row: Row) -> StoredShare:
    return StoredShare(
        id=row.id,
        target_id=row.comparison_id if isinstance(row, ShareRow) else row.diagnosis_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
