"""Migrations: an empty file, drift, old data, two at once, a newer database, and readiness."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlmodel import SQLModel

from app.storage import migrate, runs
from app.storage.engine import create_storage_engine, read_session, write_session
from app.storage.errors import Conflict, SchemaError
from app.storage.records import RunFilter
from app.storage.tables import METADATA

ROOT = Path(__file__).resolve().parents[2]
HASH = "ab" * 32


def config(connection: sa.Connection | None = None) -> Config:
    made = Config(ROOT / "alembic.ini")
    made.attributes["connection"] = connection
    return made


def database_at(path: Path, revision: str) -> None:
    """A database as an older version left it, made by that version's own migration."""
    engine = migrate.migration_engine(path)
    with engine.begin() as connection:
        command.upgrade(config(connection), revision)
    engine.dispose()


def insert_old_data(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            "INSERT INTO uploads (id, sha256, size_bytes, file_name, format, findings, created_at) "
            "VALUES ('u1', ?, 3, 'old.json', 'llama-bench', '[]', '2026-11-01 08:00:00.000000')",
            (HASH,),
        )
        connection.execute(
            "INSERT INTO runs (seq, id, upload_id, position, name, format, created_at, hardware_is_guess, "
            "model_hint, model_is_guess, tags, is_example, is_baseline, summary) VALUES "
            "(7, 'r1', 'u1', 0, 'Old run', 'llama-bench', '2026-11-01 08:00:00.000000', 0, 'Mistral-7B', 1, "
            "'[\"nightly\"]', 0, 0, '{\"decode_tokens_per_s\":41.5}')"
        )
        connection.execute(
            "INSERT INTO run_details (run_id, metrics, workload, workload_overrides, parallel, software, series, "
            "kernels, samples, evidence, findings, notes) VALUES ('r1', "
            '\'[{"name":"decode_tokens_per_s","value":41.5,"pointer":"/0/avg_ts"}]\', \'{"mode":"decode"}\', '
            "'{}', '{}', '{}', '{}', '[]', '{}', '{}', '[]', 'kept through the upgrade')"
        )
        connection.execute(
            "INSERT INTO comparisons (id, title, notes, baseline, item_count, app_version, snapshot, created_at) "
            "VALUES ('c1', 'Old', '', 0, 1, '0.0.1', '{}', '2026-11-01 08:00:00.000000')"
        )
        connection.execute(
            "INSERT INTO shares (id, token_sha256, comparison_id, created_at) VALUES ('s1', ?, 'c1', "
            "'2026-11-01 08:00:00.000000')",
            (HASH,),
        )


def test_an_empty_file_gets_every_table(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "new.sqlite3"
    assert migrate.upgrade(path).revision is None
    again = migrate.upgrade(path)
    assert again.is_current
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert set(METADATA.tables) <= tables
    assert "run_search" in tables


def test_tables_and_migrations_agree(migrated_database: Path) -> None:
    engine = migrate.migration_engine(migrated_database)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or not str(name).startswith("run_search")},
        )
        assert compare_metadata(context, METADATA) == []
        command.check(config(connection))
    engine.dispose()


def test_constraints_agree_too(tmp_path: Path, migrated_database: Path) -> None:
    """Alembic does not compare CHECK constraints, so their texts are compared here."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'from_classes.sqlite3'}", poolclass=sa.NullPool)
    METADATA.create_all(engine)

    def constraints(path: Path) -> dict[str, set[str]]:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: {line.strip().rstrip(",") for line in text.splitlines() if "CONSTRAINT" in line}
            for name, text in rows
            if name in METADATA.tables
        }

    assert constraints(tmp_path / "from_classes.sqlite3") == constraints(migrated_database)


def test_drift_would_be_seen(migrated_database: Path) -> None:
    class Base(SQLModel):
        metadata = sa.MetaData()

    engine = migrate.migration_engine(migrated_database)
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    engine.dispose()
    assert len(differences) >= len(METADATA.tables)


def test_a_new_migration_needs_nothing_but_sqlalchemy(tmp_path: Path, migrated_database: Path) -> None:
    """Autogenerated files name types they do not import; ours are written as SQLAlchemy's own."""
    (tmp_path / "versions").mkdir()
    for name in ("env.py", "script.py.mako"):
        (tmp_path / name).write_text((ROOT / "migrations" / name).read_text())
    made = Config()
    made.set_main_option("script_location", str(tmp_path))
    made.set_main_option("path_separator", "os")
    engine = migrate.migration_engine(tmp_path / "new.sqlite3")
    with engine.begin() as connection:
        made.attributes["connection"] = connection
        command.revision(made, message="first", autogenerate=True, rev_id="0001")
        command.upgrade(made, "head")
        assert set(METADATA.tables) <= set(sa.inspect(connection).get_table_names())
    engine.dispose()


def test_old_data_are_kept_and_found(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite3"
    database_at(path, "0001")
    insert_old_data(path)
    engine = create_storage_engine(path)
    assert not migrate.is_current(engine)
    assert migrate.upgrade(engine).revision == "0001"
    assert migrate.is_current(engine)
    with read_session(engine) as session:
        run = runs.get_run(session=session, run_id="r1")
        assert session.execute(sa.text("SELECT count(*) FROM shares")).scalar() == 1
        found = runs.list_runs(session=session, filters=RunFilter(text="mistral nightly kept old.json")).items
    assert (run.name, run.tags, run.headline) == ("Old run", ("nightly",), {"decode_tokens_per_s": 41.5})
    assert run.parsed.notes == "kept through the upgrade"
    assert [one.id for one in found] == ["r1"]
    with pytest.raises(Conflict), write_session(engine) as session:
        session.execute(sa.text("DELETE FROM uploads"))
    engine.dispose()


def test_rows_that_refer_to_nothing_stop_the_upgrade_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite3"
    database_at(path, "0001")
    insert_old_data(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM comparisons")  # foreign keys are off on a bare connection
    with pytest.raises(SchemaError, match="a row of shares refers to a missing row of comparisons"):
        migrate.upgrade(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'run_search'").fetchall() == []


def test_two_that_start_at_once_migrate_once(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite3"
    together = threading.Barrier(3)
    errors: list[Exception] = []

    def start() -> None:
        try:
            together.wait(timeout=30)
            migrate.upgrade(path)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(migrate.head_revision(),)]


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "newer.sqlite3"
    migrate.upgrade(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match="newer version"):
        migrate.upgrade(path)


def test_readiness_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite3"
    engine = create_storage_engine(path)
    assert "revision none" in (migrate.readiness(engine) or "")
    engine.dispose()
    database_at(path, "0001")
    assert "revision 0001" in (migrate.readiness(engine) or "")
    migrate.upgrade(engine)
    assert migrate.readiness(engine) is None
    engine.dispose()
    path.write_bytes(b"no longer a database " * 100)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert "cannot be reached" in (migrate.readiness(engine) or "")
    engine.dispose()


def test_there_is_no_way_back(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite3"
    migrate.upgrade(path)
    engine = migrate.migration_engine(path)
    with engine.connect() as connection, pytest.raises(NotImplementedError, match="backup"):
        command.downgrade(config(connection), "-1")
    engine.dispose()


def test_installed_migrations_are_found_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "prefix" / "share" / "bytebound" / "migrations"
    installed.mkdir(parents=True)
    (installed / "env.py").write_text("")
    monkeypatch.setattr(migrate, "__file__", str(tmp_path / "site-packages" / "app" / "storage" / "migrate.py"))
    monkeypatch.setattr(migrate.sysconfig, "get_path", lambda _: str(tmp_path / "prefix"))
    migrate.migrations_folder.cache_clear()
    try:
        assert migrate.migrations_folder() == installed
        (installed / "env.py").unlink()
        migrate.migrations_folder.cache_clear()
        with pytest.raises(SchemaError, match="install Bytebound again"):
            migrate.migrations_folder()
    finally:
        migrate.migrations_folder.cache_clear()


def test_statements_for_postgresql_can_be_written() -> None:
    """No server is started here; the tables at least compile, with binary JSON and times with a zone."""
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    text = "".join(str(CreateTable(table).compile(dialect=postgresql.dialect())) for table in METADATA.sorted_tables)
    assert "summary JSONB NOT NULL" in text
    assert "created_at TIMESTAMP WITH TIME ZONE NOT NULL" in text
