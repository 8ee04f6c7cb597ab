"""Files on their way into storage: written here as they arrive, hashed meanwhile, then moved to their place.

Every process that receives files has a folder of its own below the spool, with a lock that the system frees when the
process ends in whatever way. So a later start can tell what was left behind from what somebody is still writing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import IO

from app.storage.errors import StorageError

if sys.platform != "win32":
    import fcntl

_LOCK = "lock"
_MOVED = ".moved"
_OLD_S = 24 * 3600
_PIECE = 2**20


class Spooled:
    """A complete file in the spool. Whoever holds it calls `discard` in the end, also after it was moved away."""

    def __init__(self, path: Path, sha256: str, size: int) -> None:
        self.path = path
        self.sha256 = sha256
        self.size = size

    def move_to(self, target: Path) -> None:
        """Give the file its place. Until `discard`, a note says that storing it may still fail."""
        self.path.with_name(self.path.name + _MOVED).touch()
        os.replace(self.path, target)

    def discard(self) -> None:
        """Forget the file; nothing happens where it is stored or gone already."""
        self.path.unlink(missing_ok=True)
        self.path.with_name(self.path.name + _MOVED).unlink(missing_ok=True)


class SpoolWriter:
    """A file that is arriving: `write` pieces, then `finish` or `discard`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("xb")
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, piece: bytes) -> None:
        """Raises StorageError where the disk does not take it."""
        with _storage_errors():
            self._file.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def finish(self) -> Spooled:
        """The complete file, safe on disk."""
        digest = self._hash.hexdigest()
        path = self._path.with_name(f"{self._path.stem}.{digest}")
        with _storage_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._path, path)
        return Spooled(path, digest, self.size)

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class Spool:
    """The folder `root`; it lies on the same file system as the blobs, so that moving a file copies nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own: Path | None = None
        self._held: int | None = None
        self._opening = Lock()

    def new(self) -> SpoolWriter:
        """A file to write to."""
        with _storage_errors():
            return SpoolWriter(self._folder() / f"{secrets.token_hex(8)}.part")

    def copy(self, source: bytes | Path) -> Spooled:
        """A copy of bytes or of a file that lies elsewhere."""
        writer = self.new()
        try:
            if isinstance(source, bytes):
                writer.write(source)
            else:
                with source.open("rb") as file:
                    while piece := file.read(_PIECE):
                        writer.write(piece)
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def _folder(self) -> Path:
        with self._opening:
            if self._own is None:
                own = self.root / secrets.token_hex(8)
                own.mkdir(parents=True)
                self._held = os.open(own / _LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                if sys.platform != "win32":
                    fcntl.flock(self._held, fcntl.LOCK_EX)
                self._own = own
            return self._own

    def left_behind(self) -> Iterator[Path]:
        """Folders of processes that are gone. Each is removed when the next one is asked for."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if folder != self._own and folder.is_dir() and _is_left(folder):
                yield folder
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove this process's own folder."""
        with self._opening:
            if self._held is not None:
                os.close(self._held)
            if self._own is not None:
                shutil.rmtree(self._own, ignore_errors=True)
                with contextlib.suppress(OSError):
                    self.root.rmdir()  # only where nobody else has a folder there
            self._own = self._held = None


def moved_files(folder: Path) -> Iterator[str]:
    """SHA-256 of the files that were moved out of a spool folder without being known as stored."""
    for note in folder.glob(f"*{_MOVED}"):
        yield note.name.removesuffix(_MOVED).rpartition(".")[2]


def _is_left(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as lock:
            if sys.platform == "win32":  # no such locks: what is old enough counts as left behind
                return _age_s(folder) > _OLD_S
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        # Either its owner is about to make the lock, or it was killed just before.
        return _age_s(folder) > 60
    except OSError:
        return False
    return True


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot store the file: {error.strerror or error}") from error
