"""Uploaded files as they came, each named by the SHA-256 of its bytes, in `blobs/ab/abcdef...`."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from app.storage.errors import NotFound, StorageError
from app.storage.spool import Spooled

_SHA256 = re.compile(r"[0-9a-f]{64}")


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_name(sha256: str) -> str:
    """Path of a file inside the blob folder. Raises NotFound for what is not a SHA-256: no other path can be made."""
    if not _SHA256.fullmatch(sha256):
        raise NotFound("file", sha256[:80])
    return f"{sha256[:2]}/{sha256}"


@dataclass(frozen=True, slots=True)
class BlobStore:
    """Files under `root`. A file is complete as soon as it has its name, and never changes."""

    root: Path

    def path(self, sha256: str) -> Path:
        return self.root / blob_name(sha256)

    def put(self, data: bytes | Spooled, sha256: str | None = None) -> str:
        """Keep `data` and return its SHA-256 (pass it if it is known already). The same bytes are written once.

        A spooled file is moved, not copied.
        """
        digest = data.sha256 if isinstance(data, Spooled) else sha256 or sha256_of(data)
        path = self.path(digest)
        try:
            if path.is_file() and path.stat().st_size == (data.size if isinstance(data, Spooled) else len(data)):
                return digest
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, Spooled):
                data.move_to(path)
                sync_folder(path.parent)
                return digest
            temporary = path.with_name(f".{digest}.{secrets.token_hex(6)}")
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(path.parent)
        except OSError as error:
            raise StorageError(f"cannot store the file: {error.strerror or error}") from error
        return digest

    def read(self, sha256: str) -> bytes:
        """The bytes, or NotFound."""
        try:
            return self.path(sha256).read_bytes()
        except FileNotFoundError:
            raise NotFound("file", sha256) from None
        except OSError as error:
            raise StorageError(f"cannot read the file {sha256}: {error.strerror or error}") from error

    def exists(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def delete(self, sha256: str) -> None:
        """Remove a file; nothing happens if it is gone already."""
        self.path(sha256).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # Windows cannot open folders
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
