"""The database and the files of one data folder, opened together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import Session

from app.settings import Settings
from app.storage.blobs import BlobStore
from app.storage.engine import create_storage_engine, read_session, write_session
from app.storage.errors import StorageError
from app.storage.spool import Spool


@dataclass(frozen=True, slots=True)
class Storage:
    """What services work with: `with storage.write() as session: ...`, and `storage.blobs` for files."""

    engine: Engine
    blobs: BlobStore
    spool: Spool

    def read(self) -> AbstractContextManager[Session]:
        """See `read_session`."""
        return read_session(self.engine)

    def write(self) -> AbstractContextManager[Session]:
        """See `write_session`."""
        return write_session(self.engine)

    def close(self) -> None:
        """Close all connections; the last one tidies the write-ahead log away."""
        self.spool.close()
        self.engine.dispose()


def open_storage(settings: Settings) -> Storage:
    """Storage in the settings' data folder, which is made if it is missing. Tables are made by `migrate.upgrade`.

    Raises StorageError where the folder cannot be used.
    """
    prepare_folder(settings.data_dir)
    target = settings.database_path or settings.database_url or ""
    return Storage(create_storage_engine(target), BlobStore(settings.blob_dir), Spool(settings.spool_dir))


@contextmanager
def opened_storage(settings: Settings) -> Iterator[Storage]:
    """Storage for the length of a block."""
    storage = open_storage(settings)
    try:
        yield storage
    finally:
        storage.close()


def prepare_folder(folder: Path) -> None:
    """Make the data folder and make sure that files can be made in it. Raises StorageError that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the data folder {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"the data folder {folder} is not writable")
