"""Uploaded files: one row and one file for each content, however often it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from app.domain.run import Finding
from app.storage.blobs import BlobStore, sha256_of
from app.storage.engine import after_commit, engine_of, write_session
from app.storage.errors import Conflict, NotFound, translated
from app.storage.records import StoredUpload, new_id, utc_now
from app.storage.spool import Spool, Spooled, moved_files
from app.storage.tables import UploadRow


def add_or_get(
    *,
    session: Session,
    blobs: BlobStore,
    data: bytes | Spooled,
    file_name: str,
    format: str,
    media_type: str | None = None,
    findings: tuple[Finding, ...] = (),
    members: Sequence[Mapping[str, Any]] = (),
    waiting: Mapping[str, Any] | None = None,
    sha256: str | None = None,
    now: datetime | None = None,
) -> tuple[StoredUpload, bool]:
    """Keep an upload; True beside it if it is new, False if these very bytes are stored already.

    Two requests at the same time get the same upload: the write session's lock makes the second one wait. A spooled
    file is only moved here; call `blobs.put(data)` with bytes before the session begins, so that no other writer waits
    for them to be written.
    """
    digest = data.sha256 if isinstance(data, Spooled) else sha256 or sha256_of(data)
    stored = find_by_sha256(session=session, sha256=digest)
    if stored is not None:
        blobs.put(data, digest)
        return stored, False
    row = UploadRow(
        id=new_id(),
        sha256=digest,
        size_bytes=data.size if isinstance(data, Spooled) else len(data),
        file_name=file_name,
        media_type=media_type,
        format=format,
        findings=[asdict(finding) for finding in findings],
        members=[dict(member) for member in members] or None,
        waiting=None if waiting is None else dict(waiting),
        created_at=now or utc_now(),
    )
    try:
        with translated(), session.begin_nested():
            session.add(row)
            session.flush()
    except Conflict:
        # Only where the database's write sessions run side by side: the other request was first.
        stored = find_by_sha256(session=session, sha256=digest)
        if stored is None:
            raise
        blobs.put(data, digest)
        return stored, False
    blobs.put(data, digest)
    return to_record(row), True


def get(*, session: Session, upload_id: str) -> StoredUpload:
    """The upload, or NotFound."""
    row = session.get(UploadRow, upload_id)
    if row is None:
        raise NotFound("upload", upload_id)
    return to_record(row)


def find_by_sha256(*, session: Session, sha256: str) -> StoredUpload | None:
    """The upload of these bytes, if there is one."""
    row = session.exec(select(UploadRow).where(UploadRow.sha256 == sha256)).first()
    return to_record(row) if row else None


def list_waiting(*, session: Session) -> tuple[StoredUpload, ...]:
    """Tables without runs whose columns are not explained, the newest first."""
    rows = session.exec(
        select(UploadRow).where(col(UploadRow.waiting).is_not(None)).order_by(col(UploadRow.created_at).desc())
    )
    return tuple(to_record(row) for row in rows)


def end_waiting(*, session: Session, upload_id: str, findings: tuple[Finding, ...]) -> StoredUpload | None:
    """Note that a waiting upload gets its runs now; None where somebody else was first. Raises NotFound."""
    row = session.get(UploadRow, upload_id)
    if row is None:
        raise NotFound("upload", upload_id)
    if row.waiting is None:
        return None
    with translated():
        row.waiting = None
        row.findings = [asdict(finding) for finding in findings]
        session.add(row)
        session.flush()
    return to_record(row)


def discard_waiting(*, session: Session, blobs: BlobStore, upload_id: str) -> None:
    """Delete a waiting upload and its file. Raises NotFound, and Conflict where it has runs."""
    row = session.get(UploadRow, upload_id)
    if row is None:
        raise NotFound("upload", upload_id[:80])
    if row.waiting is None:
        raise Conflict(f"{row.file_name!r} does not wait any more: delete its runs instead")
    digest = row.sha256
    with translated():
        session.delete(row)
        session.flush()
    after_commit(session, lambda: remove_unused_blob(session, blobs, digest))


def remove_unused_blob(session: Session, blobs: BlobStore, sha256: str) -> None:
    """Remove an upload's file unless the same bytes were uploaded again meanwhile. Run it after the row is gone."""
    with write_session(engine_of(session)) as checking:
        if find_by_sha256(session=checking, sha256=sha256) is None:
            blobs.delete(sha256)


def recover(engine: Engine, blobs: BlobStore, spool: Spool) -> int:
    """Remove what processes that were killed in the middle of an upload left; the number of such processes.

    A file that was moved to its place without its rows being committed goes; everything that has rows stays.
    """
    found = 0
    for folder in spool.left_behind():
        found += 1
        for digest in moved_files(folder):
            with contextlib.suppress(NotFound), Session(engine) as session:  # NotFound: a note that is not ours
                remove_unused_blob(session, blobs, digest)
    return found


def to_record(row: UploadRow) -> StoredUpload:
    return StoredUpload(
        id=row.id,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        file_name=row.file_name,
        media_type=row.media_type,
        format=row.format,
        findings=tuple(finding_of(finding) for finding in row.findings),
        created_at=row.created_at,
        members=tuple(row.members or ()),
        waiting=row.waiting,
    )


def finding_of(stored: dict[str, Any]) -> Finding:
    """A finding from its JSON form."""
    return Finding(**{**stored, "fields": tuple(stored.get("fields", ()))})
