"""One consistent file with everything: the database, copied while the server runs, and every upload it refers to.

The file is a plain tar: `manifest.json`, `bytebound.sqlite3`, then `blobs/ab/abcdef...`. A backup is only given its
name when it is complete, and a restore only replaces anything when everything in the backup has been checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO

from app.settings import DATABASE_FILE_NAME, Settings
from app.storage.blobs import blob_name, sync_folder
from app.storage.errors import BackupError, NotFound
from app.storage.migrate import known_revisions
from app.storage.records import utc_now

MANIFEST_NAME = "manifest.json"
FORMAT = 1
"""Version of the layout above; a restore refuses others."""

_ATTEMPTS = 5
_CHUNK = 2**20
_MAX_MANIFEST_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds, or what a restore put in place. `kept_aside` is where replaced data lie now."""

    path: Path
    revision: str
    uploads: int
    runs: int
    comparisons: int
    size_bytes: int
    kept_aside: Path | None = None


class _FileGone(Exception):
    """An upload was deleted after the database had been copied."""


# ---- making ----


def backup(settings: Settings, target: Path, *, now: datetime | None = None) -> BackupReport:
    """Write a backup to `target`, which must not exist. Works while the server runs, without stopping its writers.

    Raises BackupError, and then leaves nothing behind: where the database is not SQLite, where it or an upload is
    damaged or missing, and where `target` exists or cannot be written.
    """
    database = _database_file(settings)
    target = target.absolute()
    if os.path.lexists(target):
        raise BackupError(f"{target} exists already: a backup never overwrites a file; choose another name")
    if not database.is_file():
        raise BackupError(f"there is no database at {database}: nothing to back up")
    if not target.parent.is_dir():
        raise BackupError(f"the folder {target.parent} does not exist")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                report = _write(settings, database, temporary, now or utc_now())
                break
            except _FileGone as error:
                # Deleted between the two copies; a new copy of the database no longer refers to it.
                if attempt == _ATTEMPTS:
                    raise BackupError(f"the upload {error} is missing in {settings.blob_dir}") from None
        _name_for_good(temporary, target)
    except OSError as error:
        raise BackupError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return BackupReport(target, *report, size_bytes=target.stat().st_size)


def _write(settings: Settings, database: Path, temporary: Path, moment: datetime) -> tuple[str, int, int, int]:
    with tempfile.TemporaryDirectory(prefix=".bytebound-backup-", dir=temporary.parent) as folder:
        copy = Path(folder) / DATABASE_FILE_NAME
        _copy_database(database, copy)
        revision, counts, blobs = _checked_contents(copy)
        manifest = {
            "bytebound_backup": FORMAT,
            "created_at": moment.isoformat(),
            "revision": revision,
            "counts": counts,
            "database": {"sha256": _file_digest(copy), "size_bytes": copy.stat().st_size},
            "blobs": [{"sha256": digest, "size_bytes": size} for digest, size in blobs],
        }
        with temporary.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                data = json.dumps(manifest, indent=1).encode()
                _add(archive, MANIFEST_NAME, io.BytesIO(data), len(data), moment)
                with copy.open("rb") as source:
                    _add(archive, DATABASE_FILE_NAME, source, copy.stat().st_size, moment)
                for digest, size in blobs:
                    _add_blob(archive, settings.blob_dir / blob_name(digest), digest, size, moment)
            file.flush()
            os.fsync(file.fileno())
    return revision, counts["uploads"], counts["runs"], counts["comparisons"]


def _copy_database(database: Path, copy: Path) -> None:
    """A consistent copy by SQLite itself, on a connection of its own: writers go on, and the copy has no log file."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        raise BackupError(f"cannot copy the database {database}: {error}") from error


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes], size: int, moment: datetime) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    member.mtime = int(moment.timestamp())
    archive.addfile(member, source)


def _add_blob(archive: tarfile.TarFile, path: Path, digest: str, size: int, moment: datetime) -> None:
    try:
        source = path.open("rb")
    except FileNotFoundError:
        raise _FileGone(digest) from None
    with source:
        reader = _HashingReader(source)
        if os.fstat(source.fileno()).st_size != size:
            raise BackupError(f"the upload {digest} is damaged: its file has another size than the database says")
        _add(archive, f"blobs/{blob_name(digest)}", reader, size, moment)  # type: ignore[arg-type]
        if reader.digest() != digest:
            raise BackupError(f"the upload {digest} is damaged: its bytes have another SHA-256")


class _HashingReader:
    """Hashes what the archive reads, so that each file is read once."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


def _name_for_good(temporary: Path, target: Path) -> None:
    """Rename without overwriting: a link fails where the name is taken, a rename would not."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise BackupError(f"{target} has appeared meanwhile: a backup never overwrites a file") from None
    except OSError:
        # A file system without hard links; the check is then not one step with the rename.
        if os.path.lexists(target):
            raise BackupError(f"{target} has appeared meanwhile: a backup never overwrites a file") from None
        os.rename(temporary, target)
    sync_folder(target.parent)


# ---- restoring ----


def restore(settings: Settings, source: Path, *, force: bool = False, now: datetime | None = None) -> BackupReport:
    """Put a backup's contents into the settings' data folder. The server must not be running.

    Everything is checked first: names inside the archive, sizes, every SHA-256, the database's integrity, its revision
    (not newer than this version), and that each upload's file is there. A data folder that holds something is refused
    unless `force`; then the old contents are moved aside within it, not deleted. Raises BackupError.
    """
    database = _database_file(settings)
    moment = now or utc_now()
    occupied = _contents(settings.data_dir) or database.exists()
    if occupied and not force:
        raise BackupError(
            f"{settings.data_dir} already holds data: restore into an empty folder, or use --force, which moves what "
            "is there aside"
        )
    if occupied and database.is_file():
        _require_unused(database)
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        database.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".bytebound-restore-", dir=settings.data_dir))
    except OSError as error:
        raise BackupError(f"cannot write to {settings.data_dir}: {error.strerror or error}") from error
    try:
        report = _unpack(source, staging)
        kept = _move_aside(settings.data_dir, database, staging, moment) if occupied else None
        if (staging / "blobs").exists():
            os.replace(staging / "blobs", settings.blob_dir)
        # The database comes last: with it the restore is complete.
        shutil.move(staging / DATABASE_FILE_NAME, database)
        sync_folder(settings.data_dir)
    except OSError as error:
        raise BackupError(f"cannot restore {source}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    revision, uploads, runs, comparisons = report
    return BackupReport(database, revision, uploads, runs, comparisons, database.stat().st_size, kept)


def _unpack(source: Path, staging: Path) -> tuple[str, int, int, int]:
    try:
        # Without compression and read as a stream: a small file cannot unfold into a large one.
        with source.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            _extract(archive, staging, source)
    except FileNotFoundError:
        raise BackupError(f"there is no file {source}") from None
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise BackupError(f"{source} is not a Bytebound backup, or it is cut off: {error}") from error
    return _check_staged(staging, source)


def _extract(archive: tarfile.TarFile, staging: Path, source: Path) -> None:
    """Unpack what the manifest names, each as it says. Raises BackupError for anything else."""
    expected: dict[str, tuple[str, int]] | None = None
    seen: set[str] = set()
    for member in archive:
        if not member.isreg() or member.issparse() or member.name in seen:
            raise BackupError(f"{source} holds {member.name[:200]!r}, which a backup never does")
        seen.add(member.name)
        opened = archive.extractfile(member)
        if opened is None:
            raise BackupError(f"{source} cannot be read at {member.name[:200]!r}")
        if expected is None:
            # The manifest comes first; whatever it does not name is refused, so no path is ever taken from a member.
            if member.name != MANIFEST_NAME or member.size > _MAX_MANIFEST_BYTES:
                raise BackupError(f"{source} is not a Bytebound backup: it does not begin with {MANIFEST_NAME}")
            expected = _read_manifest(opened.read(), source)
            continue
        if member.name not in expected:
            raise BackupError(f"{source} holds {member.name[:200]!r}, which its manifest does not name")
        digest, size = expected.pop(member.name)
        path = staging.joinpath(*PurePosixPath(member.name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.size != size or _copy(opened, path) != digest:
            raise BackupError(f"{source} is damaged: {member.name} has other contents than its manifest says")
    if expected is None:
        raise BackupError(f"{source} is not a Bytebound backup: it is empty")
    if expected:
        raise BackupError(f"{source} is incomplete: {min(expected)} is missing")


def _read_manifest(data: bytes, source: Path) -> dict[str, tuple[str, int]]:
    """The digest and the size of every file that a backup holds. Raises BackupError."""
    try:
        manifest = json.loads(data)
        version = manifest["bytebound_backup"]
        if version != FORMAT:
            raise BackupError(f"{source} has backup format {version!r}, this version of Bytebound reads {FORMAT}")
        expected = {DATABASE_FILE_NAME: (str(manifest["database"]["sha256"]), int(manifest["database"]["size_bytes"]))}
        for blob in manifest["blobs"]:
            expected[f"blobs/{blob_name(blob['sha256'])}"] = (blob["sha256"], int(blob["size_bytes"]))
    except (ValueError, KeyError, TypeError, RecursionError, NotFound) as error:
        raise BackupError(f"{source} is not a Bytebound backup: its manifest cannot be read") from error
    return expected


def _check_staged(staging: Path, source: Path) -> tuple[str, int, int, int]:
    revision, counts, blobs = _checked_contents(staging / DATABASE_FILE_NAME)
    if revision not in known_revisions():
        raise BackupError(
            f"{source} has database revision {revision}, which this version does not know: it was made by a newer "
            "version of Bytebound. Install that version first"
        )
    for digest, size in blobs:
        path = staging / "blobs" / blob_name(digest)
        if not path.is_file() or path.stat().st_size != size:
            raise BackupError(f"{source} is incomplete: the file of upload {digest} is missing")
    return revision, counts["uploads"], counts["runs"], counts["comparisons"]


def _require_unused(database: Path) -> None:
    """Refuse while another process has the database open: it would go on writing to the file that is moved aside."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
            # Leaving WAL mode needs the only connection there is.
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise BackupError(f"{database} is in use: stop the server, then restore") from error
        raise BackupError(f"cannot open {database}: {error}") from error
    except sqlite3.DatabaseError:
        return  # not a database any more: one more reason to restore


def _move_aside(data_dir: Path, database: Path, staging: Path, moment: datetime) -> Path:
    aside = data_dir / f"before-restore-{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    aside.mkdir()
    files = [data_dir / name for name in _contents(data_dir) if data_dir / name not in (staging, aside)]
    beside = [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]
    for path in dict.fromkeys([*files, *beside]):
        if path.exists() and not path.name.startswith("before-restore-"):
            shutil.move(path, aside / path.name)
    return aside


# ---- both ----


def _database_file(settings: Settings) -> Path:
    database = settings.database_path
    if database is None:
        raise BackupError("the database is a server: back it up with its own tools (pg_dump), and copy the data folder")
    return database


def _contents(folder: Path) -> list[str]:
    """Names in a folder, without what earlier restores left behind."""
    if not folder.is_dir():
        return []
    return sorted(name for name in os.listdir(folder) if not name.startswith(".bytebound-restore-"))


def _checked_contents(database: Path) -> tuple[str, dict[str, int], list[tuple[str, int]]]:
    """Revision, row counts and the uploads (SHA-256, size) of a database file that passes SQLite's own checks."""
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            answer = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if answer != "ok":
                raise BackupError(f"the database is damaged: {answer}")
            if connection.execute("PRAGMA foreign_key_check").fetchone():
                raise BackupError("the database is damaged: a row refers to another that is missing")
            revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            counts = {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("uploads", "runs", "comparisons")
            }
            blobs = connection.execute("SELECT sha256, size_bytes FROM uploads ORDER BY sha256").fetchall()
    except sqlite3.Error as error:
        raise BackupError(f"this is not a database of Bytebound: {error}") from error
    if revision is None:
        raise BackupError("this is not a database of Bytebound: it has no revision")
    return revision[0], counts, blobs


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: IO[bytes], path: Path) -> str:
    """Write `source` to a new file and return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for chunk in _chunks(source):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK):
        yield chunk
