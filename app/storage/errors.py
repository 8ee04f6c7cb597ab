"""What storage raises. Exceptions of SQLAlchemy and sqlite3 are translated and never leave the room."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc


class StorageError(Exception):
    """Base of everything that storage raises on purpose; raised itself when the database cannot be used at all."""


class NotFound(StorageError):
    """There is no such stored thing. `kind` is the noun of the API ("run"), `key` what was asked for."""

    def __init__(self, kind: str, key: str = "") -> None:
        self.kind = kind
        self.key = key
        super().__init__(f"no {kind} {key!r}" if key else f"no such {kind}")


class Conflict(StorageError):
    """The change contradicts what is stored: a name is taken, a thing is in use, a revision is old."""


class Busy(StorageError):
    """Another writer held the database for longer than a request may wait. Trying again later is right."""


class InvalidQuery(StorageError):
    """A list was asked for with a sort key, cursor, limit or filter that does not exist."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class InvalidValue(StorageError):
    """A value that must not be stored (NaN in JSON, a naive time, half a surrogate pair, a broken invariant)."""


class SchemaError(StorageError):
    """The database's tables are not those this version works with."""


class BackupError(StorageError):
    """A backup cannot be made or restored; the message says why and what to do."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn database exceptions that leave the block into this module's."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        raise _translation(error) from error
    except UnicodeEncodeError as error:
        # The driver raises these two itself, before SQLAlchemy can wrap them.
        raise InvalidValue("text holds half of a surrogate pair, which is not a character") from error
    except OverflowError as error:
        if "SQLite" not in str(error):
            raise
        raise InvalidValue("a whole number is larger than 64 bits") from error


def _translation(error: exc.SQLAlchemyError) -> StorageError:
    cause = getattr(error, "orig", None)
    if isinstance(error, exc.IntegrityError):
        text = str(cause)
        if "CHECK" in text or "NOT NULL" in text or "check constraint" in text or "not-null" in text:
            return InvalidValue(text)
        return Conflict(text)
    if isinstance(error, exc.TimeoutError):
        return Busy("all database connections are in use")
    if isinstance(cause, sqlite3.Error):
        # The extended code's low byte is the primary one: SQLITE_BUSY_SNAPSHOT is a SQLITE_BUSY too.
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy("the database is busy with another change")
        return StorageError(f"the database answered: {cause}")
    if isinstance(error, (exc.StatementError, exc.DataError)) and isinstance(
        cause, (ValueError, TypeError, OverflowError)
    ):
        return InvalidValue(str(cause))
    return StorageError(f"the database cannot be used: {cause or error}")
