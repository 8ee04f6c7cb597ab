"""The engine, and the two kinds of session.

SQLite needs three things that its driver does not do by itself: pragmas on every connection, transactions that begin
when we say so, and a write lock that is taken at the beginning. A transaction that reads first and writes later fails
at once ("database is locked") when another one committed in between, whatever the busy timeout; so write sessions open
with BEGIN IMMEDIATE and the second writer waits its turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlmodel import Session

from app.storage.errors import StorageError, translated

BUSY_TIMEOUT_MS = 5000
"""How long a writer waits for another before it gives up with Busy."""

_WRITES = "bytebound_writes"
_AFTER_COMMIT = "bytebound_after_commit"


def dump_json(value: Any) -> str:
    """JSON text for a column. NaN and infinity raise ValueError: SQLite would store text that is not JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """Read-only mappings (frozen records hold them) are not dicts for the JSON module."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


def create_storage_engine(target: Path | str) -> Engine:
    """An engine for a SQLite file (a Path) or for a database URL. The file's folder is made where it is missing."""
    url: URL | str
    if isinstance(target, Path):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder {target.parent}: {error.strerror}") from error
        url = URL.create("sqlite", database=str(target))
    else:
        url = target
    try:
        # More connections than the web server has threads, so that none waits for a connection.
        engine = create_engine(url, json_serializer=dump_json, pool_size=10, max_overflow=40)
    except (ArgumentError, ModuleNotFoundError, SQLAlchemyError) as error:
        raise StorageError(f"the database URL cannot be used: {error}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = bool(connection.get_execution_options().get(_WRITES, False))
    # A connection is shared by both kinds of session in turn; a read session that writes is a programming error.
    connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """A session that sees one consistent state and cannot change it."""
    with translated(), Session(engine, expire_on_commit=False, autoflush=False) as session:
        yield session


@contextmanager
def write_session(engine: Engine) -> Iterator[Session]:
    """A session that holds the write lock from its first statement, commits at the end, and undoes all on an error.

    Raises Busy when another writer keeps the lock. What `after_commit` registered runs once the commit has succeeded.
    """
    with translated():
        with Session(engine.execution_options(**{_WRITES: True}), expire_on_commit=False) as session:
            yield session
            session.commit()
            callbacks = session.info.pop(_AFTER_COMMIT, [])
        for callback in callbacks:
            callback()


def after_commit(session: Session, callback: Callable[[], None]) -> None:
    """Run `callback` when the write session has committed; never when it is undone."""
    session.info.setdefault(_AFTER_COMMIT, []).append(callback)


def engine_of(session: Session) -> Engine:
    """The engine behind a session."""
    bind = session.get_bind()
    return bind.engine if isinstance(bind, Connection) else bind
