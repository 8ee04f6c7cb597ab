"""Files on their way in: hashed as they arrive, moved into place, and cleaned away after a process that was killed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import migrate, uploads
from app.storage.spool import Spool
from app.storage.store import Storage, opened_storage
from tests.storage.stored import NOON

ROOT = Path(__file__).resolve().parents[2]
DATA = b'{"completed": 200}'
SHA256 = hashlib.sha256(DATA).hexdigest()


def test_a_file_is_hashed_while_it_arrives_and_moved_without_a_copy(storage: Storage) -> None:
    writer = storage.spool.new()
    for byte in DATA:
        writer.write(bytes([byte]))
    spooled = writer.finish()
    assert (spooled.sha256, spooled.size) == (SHA256, len(DATA))
    inode = spooled.path.stat().st_ino
    with storage.write() as session:
        upload, is_new = uploads.add_or_get(
            session=session, blobs=storage.blobs, data=spooled, file_name="a", format="b", now=NOON
        )
    spooled.discard()
    assert is_new
    assert (upload.sha256, upload.size_bytes) == (SHA256, len(DATA))
    assert storage.blobs.path(SHA256).stat().st_ino == inode
    assert storage.blobs.read(SHA256) == DATA
    assert [path.name for path in storage.spool.root.rglob("*") if path.is_file()] == ["lock"]
    storage.spool.close()
    assert not storage.spool.root.exists()


def test_what_is_being_written_is_not_taken_for_left_behind(tmp_path: Path) -> None:
    busy, other = Spool(tmp_path), Spool(tmp_path)
    writer = busy.new()
    assert list(other.left_behind()) == []
    writer.write(DATA)
    assert writer.finish().path.read_bytes() == DATA
    busy.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from app.settings import Settings
from app.storage import migrate, uploads
from app.storage.store import open_storage
storage = open_storage(Settings(data_dir=Path(sys.argv[1])))
when = sys.argv[2]
writer = storage.spool.new()
writer.write(b'{"completed": 200}')
spooled = writer.finish()
with storage.write() as session:
    uploads.add_or_get(session=session, blobs=storage.blobs, data=spooled, file_name="a", format="b")
    if when == "moved":
        os.kill(os.getpid(), signal.SIGKILL)
if when == "committed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
@pytest.mark.parametrize("when", ["moved", "committed"])
def test_a_killed_process_leaves_bytes_and_rows_or_neither(settings: Settings, when: str) -> None:
    with opened_storage(settings) as storage:
        migrate.upgrade(storage.engine)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(settings.data_dir), when], env=environ, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    assert settings.spool_dir.exists()
    with opened_storage(settings) as storage:
        assert uploads.recover(storage.engine, storage.blobs, storage.spool) == 1
        assert list(settings.spool_dir.iterdir()) == []
        with storage.read() as session:
            stored = uploads.find_by_sha256(session=session, sha256=SHA256)
        assert (stored is not None) is (when == "committed")
        assert storage.blobs.exists(SHA256) is (when == "committed")
        spooled = storage.spool.copy(DATA)
        with storage.write() as session:
            _, is_new = uploads.add_or_get(
                session=session, blobs=storage.blobs, data=spooled, file_name="a", format="b"
            )
        spooled.discard()
        assert is_new is (when != "committed")
        assert storage.blobs.read(SHA256) == DATA
