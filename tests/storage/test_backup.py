"""Backups: consistent while others write, whole, never overwriting. Restores: all is checked before anything moves."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import comparisons, hardware, migrate, runs, shares
from app.storage.backup import backup, restore
from app.storage.errors import BackupError, NotFound
from app.storage.records import RunFilter
from app.storage.store import Storage, opened_storage
from tests.storage.stored import add_runs, parsed_run


@pytest.fixture
def elsewhere(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "elsewhere")


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The backup with other members, in a file of its own."""
    contents = members(path)
    change(contents)
    other = path.with_name("changed.tar")
    with tarfile.open(other, "w") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return other


def with_manifest(contents: dict[str, bytes], **changes: object) -> None:
    manifest = json.loads(contents["manifest.json"])
    contents["manifest.json"] = json.dumps({**manifest, **changes}).encode()


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_everything_comes_back(storage: Storage, settings: Settings, elsewhere: Settings, tmp_path: Path) -> None:
    first, second = add_runs(storage, parsed_run("a"), parsed_run("b"), data=b"first file")
    (third,) = add_runs(storage, parsed_run("c", model_hint="Qwen3"), data=b"second file")
    with storage.write() as session:
        profile = hardware.add(session=session, entry_id="lab", name="Lab", payload={"memory_bytes": 8e10})
        comparison = comparisons.add(
            session=session, title="t", snapshot={"items": [1]}, item_count=1, app_version="0.1.0"
        )
        token, _ = shares.create(session=session, comparison_id=comparison.id)
    target = tmp_path / "all.tar"
    report = backup(settings, target)
    assert (report.path, report.uploads, report.runs, report.comparisons) == (target, 2, 3, 1)
    assert report.size_bytes == target.stat().st_size
    assert files_below(tmp_path / "data").count("bytebound.sqlite3") == 1
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name or path.name.startswith(".")] == []

    assert restore(elsewhere, target).kept_aside is None
    with opened_storage(elsewhere) as restored:
        assert migrate.is_current(restored.engine)
        with restored.read() as session:
            for run in (first, second, third):
                assert runs.get_run(session=session, run_id=run.id) == run
            assert hardware.get(session=session, entry_id="lab") == profile
            assert shares.open_share(session=session, token=token)[0] == comparison
            assert runs.list_runs(session=session, filters=RunFilter(text="qwen3")).items[0].id == third.id
        assert restored.blobs.read(first.upload.sha256) == b"first file"
        assert restored.blobs.read(third.upload.sha256) == b"second file"
        with restored.write() as session:
            runs.delete_run(session=session, blobs=restored.blobs, run_id=third.id)
    assert not [name for name in files_below(elsewhere.data_dir) if "restore" in name]


def test_a_backup_taken_while_others_write_is_one_state(
    storage: Storage, settings: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    """A writer adds and deletes uploads without pause; each backup must hold whole transactions and all their files."""
    written, stop = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def write_on() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                pair = add_runs(storage, parsed_run(f"{number} a"), parsed_run(f"{number} b"), data=b"%d" % number)
                if number % 3 == 0:
                    with storage.write() as session:
                        for run in pair:
                            runs.delete_run(session=session, blobs=storage.blobs, run_id=run.id)
                written.set()
        except Exception as error:
            errors.append(error)

    writer = threading.Thread(target=write_on)
    writer.start()
    reports = []
    try:
        for number in range(4):
            written.clear()
            assert written.wait(timeout=30)  # it is writing while the backup runs
            reports.append(backup(settings, tmp_path / f"{number}.tar"))
    finally:
        stop.set()
        writer.join()
    assert errors == []
    for number, report in enumerate(reports):
        into = Settings(data_dir=tmp_path / f"restored {number}")
        restore(into, report.path)
        with opened_storage(into) as restored, restored.read() as session:
            found = list(runs.iterate_runs(session=session))
            assert len(found) == report.runs
            for run in found:
                assert len(runs.runs_of_upload(session=session, upload_id=run.upload_id)) == 2
                assert restored.blobs.read(run.upload.sha256) == run.name.split()[0].encode()
    assert reports[0].runs > 0


def test_an_upload_deleted_between_the_two_copies_is_left_out(
    storage: Storage, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone,) = add_runs(storage, data=b"gone")
    (kept,) = add_runs(storage, data=b"kept")
    from app.storage import backup as module

    copy_database = module._copy_database

    def copy_then_delete(database: Path, copy: Path) -> None:
        copy_database(database, copy)
        with storage.read() as session:
            there = runs.list_runs(session=session).total
        if there == 2:
            with storage.write() as session:
                runs.delete_run(session=session, blobs=storage.blobs, run_id=gone.id)

    monkeypatch.setattr(module, "_copy_database", copy_then_delete)
    report = backup(settings, tmp_path / "b.tar")
    assert (report.uploads, report.runs) == (1, 1)
    assert f"blobs/{kept.upload.sha256[:2]}/{kept.upload.sha256}" in members(tmp_path / "b.tar")


def test_an_existing_file_is_never_overwritten(storage: Storage, settings: Settings, tmp_path: Path) -> None:
    target = tmp_path / "taken.tar"
    target.write_text("precious")
    with pytest.raises(BackupError, match="never overwrites"):
        backup(settings, target)
    assert target.read_text() == "precious"
    (tmp_path / "dangling.tar").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BackupError, match="never overwrites"):
        backup(settings, tmp_path / "dangling.tar")


def test_a_name_taken_meanwhile_is_not_overwritten_either(
    storage: Storage, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.storage import backup as module

    target, write = tmp_path / "b.tar", module._write

    def write_while_another_takes_the_name(*arguments: object) -> object:
        target.write_text("precious")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write", write_while_another_takes_the_name)
    with pytest.raises(BackupError, match="meanwhile"):
        backup(settings, target)
    assert target.read_text() == "precious"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_a_damaged_upload_stops_the_backup(storage: Storage, settings: Settings, tmp_path: Path, damage: str) -> None:
    (run,) = add_runs(storage, data=b"some bytes")
    path = storage.blobs.path(run.upload.sha256)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"some" if damage == "short" else b"some bites")
    with pytest.raises(BackupError, match=run.upload.sha256):
        backup(settings, tmp_path / "b.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_without_a_database_there_is_nothing_to_back_up(elsewhere: Settings, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="nothing to back up"):
        backup(elsewhere, tmp_path / "b.tar")
    assert not elsewhere.data_dir.exists()
    server = Settings(data_dir=tmp_path, database_url="postgresql+psycopg://localhost/bytebound")
    with pytest.raises(BackupError, match="pg_dump"):
        backup(server, tmp_path / "b.tar")


def test_a_folder_that_does_not_exist_is_said(storage: Storage, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="does not exist"):
        backup(settings, tmp_path / "nowhere" / "b.tar")


def test_a_folder_with_data_is_only_replaced_by_force(
    storage: Storage, settings: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    (wanted,) = add_runs(storage, parsed_run("wanted"), data=b"wanted")
    backup(settings, tmp_path / "b.tar")
    with opened_storage(elsewhere) as other:
        migrate.upgrade(other.engine)
        (old,) = add_runs(other, parsed_run("old"), data=b"old")
    (elsewhere.data_dir / "notes.txt").write_text("keep me")
    with pytest.raises(BackupError, match="--force"):
        restore(elsewhere, tmp_path / "b.tar")
    report = restore(elsewhere, tmp_path / "b.tar", force=True)
    with opened_storage(elsewhere) as restored, restored.read() as session:
        assert runs.get_run(session=session, run_id=wanted.id) == wanted
        with pytest.raises(NotFound):
            runs.get_run(session=session, run_id=old.id)
    assert report.kept_aside is not None
    assert (report.kept_aside / "notes.txt").read_text() == "keep me"
    # What was there before still works where it lies.
    with opened_storage(Settings(data_dir=report.kept_aside)) as before, before.read() as session:
        assert runs.get_run(session=session, run_id=old.id) == old
        assert before.blobs.read(old.upload.sha256) == b"old"
    again = restore(elsewhere, tmp_path / "b.tar", force=True)
    assert again.kept_aside != report.kept_aside
    assert report.kept_aside.is_dir()


def test_a_running_server_is_noticed(storage: Storage, settings: Settings, tmp_path: Path) -> None:
    (run,) = add_runs(storage)
    backup(settings, tmp_path / "b.tar")
    with storage.read() as session:
        runs.list_runs(session=session)
        with pytest.raises(BackupError, match="stop the server"):
            restore(settings, tmp_path / "b.tar", force=True)
    with storage.read() as session:
        assert runs.get_run(session=session, run_id=run.id) == run


def test_a_database_outside_the_data_folder_goes_where_it_belongs(
    storage: Storage, settings: Settings, tmp_path: Path
) -> None:
    add_runs(storage)
    backup(settings, tmp_path / "b.tar")
    apart = Settings(data_dir=tmp_path / "files", database_url=f"sqlite:///{tmp_path / 'db' / 'apart.sqlite3'}")
    restore(apart, tmp_path / "b.tar")
    assert (tmp_path / "db" / "apart.sqlite3").is_file()
    with pytest.raises(BackupError, match="--force"):
        restore(Settings(data_dir=tmp_path / "new", database_url=apart.database_url), tmp_path / "b.tar")


EVIL = "blobs/../../../evil"


def _extra(contents: dict[str, bytes]) -> None:
    contents[EVIL] = b"evil"


def _evil_manifest(contents: dict[str, bytes]) -> None:
    contents[EVIL] = b"evil"
    digest = hashlib.sha256(b"evil").hexdigest()
    with_manifest(contents, blobs=[{"sha256": "../../../evil", "size_bytes": 4, "digest": digest}])


def _other_bytes(contents: dict[str, bytes]) -> None:
    name = next(name for name in contents if name.startswith("blobs/"))
    contents[name] = b"other bytes"[: len(contents[name])]


def _without_upload(contents: dict[str, bytes]) -> None:
    del contents[next(name for name in contents if name.startswith("blobs/"))]


def _without_upload_and_mention(contents: dict[str, bytes]) -> None:
    _without_upload(contents)
    with_manifest(contents, blobs=[])


def _damaged_database(contents: dict[str, bytes]) -> None:
    data = bytearray(contents["bytebound.sqlite3"])
    data[4096:] = bytes(len(data) - 4096)
    _new_database(contents, bytes(data))


def _new_database(contents: dict[str, bytes], data: bytes) -> None:
    contents["bytebound.sqlite3"] = data
    with_manifest(contents, database={"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_extra, "does not name"),
        (_evil_manifest, "manifest cannot be read"),
        (_other_bytes, "damaged"),
        (_without_upload, "incomplete"),
        (_without_upload_and_mention, "file of upload"),
        (_damaged_database, "database"),
        (lambda contents: _new_database(contents, b"no database"), "not a database"),
        (lambda contents: contents.pop("bytebound.sqlite3"), "incomplete"),
        (lambda contents: contents.pop("manifest.json"), "does not begin with"),
        (lambda contents: contents.update({"manifest.json": b"[]"}), "manifest cannot be read"),
        (lambda contents: contents.update({"manifest.json": b"[" * 100_000}), "manifest cannot be read"),
        (lambda contents: with_manifest(contents, bytebound_backup=99), "format 99"),
        (lambda contents: contents.clear(), "empty"),
    ],
)
def test_a_backup_that_is_not_whole_changes_nothing(
    storage: Storage,
    settings: Settings,
    elsewhere: Settings,
    tmp_path: Path,
    change: Callable[[dict[str, bytes]], None],
    message: str,
) -> None:
    add_runs(storage, data=b"some bytes!")
    backup(settings, tmp_path / "b.tar")
    changed = rewritten(tmp_path / "b.tar", change)
    with pytest.raises(BackupError, match=message):
        restore(elsewhere, changed)
    assert files_below(elsewhere.data_dir) == []
    assert not list(tmp_path.rglob("evil"))


def test_a_newer_backup_is_refused(storage: Storage, settings: Settings, elsewhere: Settings, tmp_path: Path) -> None:
    add_runs(storage)
    assert settings.database_path is not None
    with closing(sqlite3.connect(settings.database_path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    backup(settings, tmp_path / "b.tar")
    with pytest.raises(BackupError, match="newer version"):
        restore(elsewhere, tmp_path / "b.tar")
    assert files_below(elsewhere.data_dir) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_only_plain_files_are_taken_from_a_backup(elsewhere: Settings, tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "b.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(BackupError, match="never does"):
        restore(elsewhere, path)


def test_a_backup_that_was_cut_off_is_refused(
    storage: Storage, settings: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    add_runs(storage, data=b"x" * 5000)
    backup(settings, tmp_path / "b.tar")
    whole = (tmp_path / "b.tar").read_bytes()
    for length in (0, 100, 600, 5000, len(whole) // 2, len(whole) - 12_000):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(BackupError):
            restore(elsewhere, tmp_path / "cut.tar")
    assert files_below(elsewhere.data_dir) == []


@pytest.mark.parametrize("content", [b"plain text, not an archive", b"\x1f\x8b" + b"0" * 600, b"\0" * 1024])
def test_other_files_are_refused(elsewhere: Settings, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(BackupError, match="not a Bytebound backup"):
        restore(elsewhere, tmp_path / "other")
    with pytest.raises(BackupError, match="no file"):
        restore(elsewhere, tmp_path / "nothing.tar")


def test_a_refused_restore_by_force_leaves_the_data(storage: Storage, settings: Settings, tmp_path: Path) -> None:
    (run,) = add_runs(storage)
    storage.close()
    (tmp_path / "other").write_bytes(b"no backup")
    with pytest.raises(BackupError):
        restore(settings, tmp_path / "other", force=True)
    with storage.read() as session:
        assert runs.get_run(session=session, run_id=run.id) == run
