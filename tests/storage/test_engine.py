"""Sessions: pragmas, locks, undo, and errors that are ours."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from types import MappingProxyType

import pytest
from sqlalchemy import text

from app.storage import hardware
from app.storage.engine import after_commit, create_storage_engine, dump_json, read_session, write_session
from app.storage.errors import Busy, Conflict, InvalidValue, StorageError
from app.storage.store import Storage


def test_every_connection_has_the_pragmas(storage: Storage) -> None:
    with storage.read() as session:
        values = {
            name: session.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert values == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 5000}


def test_an_error_undoes_everything(storage: Storage) -> None:
    ran: list[str] = []

    def stop_halfway() -> None:
        with storage.write() as session:
            hardware.add(session=session, entry_id="lab", name="Lab", payload={})
            after_commit(session, lambda: ran.append("after"))
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        stop_halfway()
    with storage.read() as session:
        assert hardware.list_all(session=session) == ()
    assert ran == []


def test_a_read_session_cannot_write(storage: Storage) -> None:
    with pytest.raises(StorageError, match="readonly"), storage.read() as session:
        hardware.add(session=session, entry_id="lab", name="Lab", payload={})
    # The same pooled connection can write again afterwards.
    with storage.write() as session:
        hardware.add(session=session, entry_id="lab", name="Lab", payload={})


def test_a_reader_sees_one_state_while_others_write(storage: Storage) -> None:
    with storage.read() as reading:
        assert hardware.list_all(session=reading) == ()
        with storage.write() as session:
            hardware.add(session=session, entry_id="lab", name="Lab", payload={})
        assert hardware.list_all(session=reading) == ()
    with storage.read() as reading:
        assert [profile.id for profile in hardware.list_all(session=reading)] == ["lab"]


def test_reading_then_writing_waits_for_another_writer_instead_of_failing(storage: Storage) -> None:
    """The trap: with deferred transactions the second of these two fails at once with "database is locked"."""
    with storage.write() as session:
        hardware.add(session=session, entry_id="lab", name="0", payload={})
    together = threading.Barrier(4)
    errors: list[Exception] = []

    def add_one() -> None:
        try:
            together.wait(timeout=30)
            for _ in range(10):
                with storage.write() as session:
                    seen = int(hardware.get(session=session, entry_id="lab").name)
                    hardware.update(session=session, entry_id="lab", name=str(seen + 1), payload={})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with storage.read() as session:
        assert hardware.get(session=session, entry_id="lab").name == "40"


def test_a_writer_that_waits_too_long_is_told_busy(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.storage.engine.BUSY_TIMEOUT_MS", 1)
    impatient = create_storage_engine(Path(str(storage.engine.url.database)))
    with storage.write() as session:
        hardware.add(session=session, entry_id="lab", name="Lab", payload={})
        with pytest.raises(Busy), write_session(impatient) as second:
            hardware.list_all(session=second)
    impatient.dispose()


def test_a_file_that_is_no_database_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    path.write_text("this is no database, and long enough that SQLite looks at it" * 20)
    engine = create_storage_engine(path)
    with pytest.raises(StorageError, match="not a database"), read_session(engine) as session:
        session.execute(text("SELECT 1"))
    engine.dispose()


def test_a_url_without_its_driver_is_explained() -> None:
    with pytest.raises(StorageError, match="database URL"):
        create_storage_engine("postgresql+nosuchdriver://localhost/bytebound")


def test_values_that_are_no_json_are_refused(storage: Storage) -> None:
    for payload in ({"x": float("nan")}, {"x": float("inf")}, {"x": object()}):
        with pytest.raises(InvalidValue), storage.write() as session:
            hardware.add(session=session, entry_id="lab", name="Lab", payload=payload)


def test_half_a_surrogate_pair_is_refused(storage: Storage) -> None:
    with pytest.raises(InvalidValue, match="surrogate"), storage.write() as session:
        hardware.add(session=session, entry_id="lab", name="bad \ud800", payload={})


def test_floats_come_back_exactly(storage: Storage) -> None:
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 3.35e12, 2.0**53 + 2]
    with storage.write() as session:
        hardware.add(session=session, entry_id="lab", name="Lab", payload={"values": values})
    with storage.read() as session:
        assert hardware.get(session=session, entry_id="lab").payload == {"values": values}


def test_read_only_mappings_are_json() -> None:
    assert dump_json(MappingProxyType({"a": (1, 2)})) == '{"a":[1,2]}'


def test_foreign_keys_are_enforced(storage: Storage) -> None:
    with pytest.raises(Conflict), storage.write() as session:
        session.execute(
            text(
                "INSERT INTO shares (id, token_sha256, comparison_id, created_at) "
                "VALUES ('s', :digest, 'nothing', '2026-11-29 12:00:00.000000')"
            ),
            {"digest": "0" * 64},
        )


def test_invariants_are_checked_by_the_database(storage: Storage) -> None:
    with pytest.raises(InvalidValue, match="sha256_is_hex"), storage.write() as session:
        session.execute(
            text(
                "INSERT INTO uploads (id, sha256, size_bytes, file_name, format, findings, created_at) "
                "VALUES ('u', 'short', 1, 'a', 'b', '[]', '2026-11-29 12:00:00.000000')"
            )
        )


def test_nothing_of_the_driver_is_needed_to_handle_errors() -> None:
    assert not issubclass(Busy, sqlite3.Error)
    assert issubclass(Busy, StorageError)
