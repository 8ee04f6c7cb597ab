"""Brings a database's tables to this version's, and says whether they are there. Forward only.

All migrations of one upgrade run in one transaction that holds the write lock from its beginning: a second process that
starts at the same time waits, then finds nothing left to do, and a failing migration leaves the database as it was.
"""

from __future__ import annotations

import sysconfig
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text

from app.storage.engine import create_storage_engine
from app.storage.errors import SchemaError, StorageError, translated

# Alembic keeps the running migration in module globals.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The revision that a database has (None without tables) and the one that this version works with."""

    revision: str | None
    head: str

    @property
    def is_current(self) -> bool:
        return self.revision == self.head


def upgrade(target: Engine | Path | str) -> SchemaState:
    """Migrate the database of an engine, a SQLite file or a URL to the newest revision; return what it was before.

    Raises SchemaError where the database belongs to a newer version or its data contradict a constraint, Busy where
    another process keeps it locked. In either case nothing has changed.
    """
    given = target if isinstance(target, Engine) else None
    checking = given or create_storage_engine(target)  # type: ignore[arg-type]
    try:
        before = schema_state(checking)
        if before.is_current:
            return before
        _require_known(before.revision)
        with _ONE_AT_A_TIME, translated():
            engine = migration_engine(checking.url)
            with engine.begin() as connection:
                config = _config()
                config.attributes["connection"] = connection
                try:
                    command.upgrade(config, "head")
                except CommandError as error:
                    raise SchemaError(f"the database cannot be migrated: {error}") from error
                _check_foreign_keys(connection)
        return before
    finally:
        if given is None:
            checking.dispose()


def schema_state(engine: Engine) -> SchemaState:
    """Which revision the database has. Raises Busy or StorageError where it cannot be reached."""
    with translated(), engine.connect() as connection:
        revisions = MigrationContext.configure(connection).get_current_heads()
    return SchemaState(", ".join(sorted(revisions)) or None, head_revision())


def is_current(engine: Engine) -> bool:
    """Whether the tables are those of this version. Raises Busy or StorageError without a database to ask."""
    return schema_state(engine).is_current


def readiness(engine: Engine) -> str | None:
    """None when requests can be served, otherwise why not. Never raises."""
    try:
        state = schema_state(engine)
    except StorageError as error:
        return f"the database cannot be reached: {error}"
    if state.is_current:
        return None
    found = state.revision or "none"
    return f"the database has revision {found}, this version needs {state.head}: run `bytebound migrate`"


@cache
def head_revision() -> str:
    """The newest revision that this version knows."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise SchemaError(f"no migrations in {migrations_folder()}")
    return head


def known_revisions() -> frozenset[str]:
    """Every revision from which this version can migrate."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


@cache
def migrations_folder() -> Path:
    """Where the migrations lie: beside the package in a checkout, among the installed data files otherwise."""
    checkout = Path(__file__).resolve().parents[2] / "migrations"
    installed = Path(sysconfig.get_path("data")) / "share" / "bytebound" / "migrations"
    for folder in (checkout, installed):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaError(f"the migrations are missing: looked in {checkout} and {installed}; install Bytebound again")


def migration_engine(target: URL | Path | str) -> Engine:
    """An engine for migrating only: one connection, write lock at the beginning, foreign keys not enforced.

    Altering a SQLite table means building it anew and dropping the old one; with foreign keys enforced that drop would
    delete every row that refers to it. They are checked at the end instead.
    """
    url = URL.create("sqlite", database=str(target)) if isinstance(target, Path) else target
    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = OFF")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _check_foreign_keys(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    broken = connection.execute(text("PRAGMA foreign_key_check")).first()
    if broken is not None:
        raise SchemaError(f"a row of {broken[0]} refers to a missing row of {broken[2]}: nothing was migrated")


def _require_known(revision: str | None) -> None:
    if revision is not None and revision not in known_revisions():
        raise SchemaError(
            f"the database has revision {revision}, which this version does not know: it was written by a newer "
            "version of Bytebound. Install that version, or restore a backup"
        )


def _config() -> Config:
    config = Config()
    # The value passes through configparser, where a percent sign starts an interpolation.
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
