"""The same bytes are stored once, whoever sends them and whenever."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from app.domain.run import Finding
from app.storage import runs, uploads
from app.storage.blobs import BlobStore
from app.storage.errors import NotFound, StorageError
from app.storage.store import Storage
from tests.storage.stored import NOON, add_runs, parsed_run

DATA = b'{"completed": 200}'
SHA256 = hashlib.sha256(DATA).hexdigest()


def test_the_same_bytes_give_the_same_upload(storage: Storage) -> None:
    finding = Finding("nan", "warning", "a NaN was read as missing", ("/p99_ttft_ms",), None)
    with storage.write() as session:
        first, is_new = uploads.add_or_get(
            session=session,
            blobs=storage.blobs,
            data=DATA,
            file_name="a.json",
            format="vllm-bench-serve",
            media_type="application/json",
            findings=(finding,),
            now=NOON,
        )
    assert is_new
    with storage.write() as session:
        again, is_new = uploads.add_or_get(
            session=session, blobs=storage.blobs, data=DATA, file_name="other.json", format="other"
        )
    assert not is_new
    assert again == first
    assert (first.sha256, first.size_bytes, first.file_name) == (SHA256, 18, "a.json")
    assert first.created_at == NOON
    assert first.findings == (finding,)
    assert storage.blobs.read(SHA256) == DATA


def test_two_requests_at_once_store_one_upload_and_one_set_of_runs(storage: Storage) -> None:
    together = threading.Barrier(6)
    answers: list[tuple[str, bool, tuple[str, ...]]] = []

    def upload() -> None:
        together.wait(timeout=30)
        storage.blobs.put(DATA)
        with storage.write() as session:
            stored, is_new = uploads.add_or_get(
                session=session, blobs=storage.blobs, data=DATA, file_name="a.json", format="vllm-bench-serve"
            )
            if is_new:
                for position in range(2):
                    runs.add_run(
                        session=session,
                        upload_id=stored.id,
                        position=position,
                        parsed=parsed_run(),
                        format=stored.format,
                    )
            found = runs.runs_of_upload(session=session, upload_id=stored.id)
        answers.append((stored.id, is_new, tuple(run.id for run in found)))

    threads = [threading.Thread(target=upload) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert len({(upload_id, run_ids) for upload_id, _, run_ids in answers}) == 1
    assert sorted(is_new for _, is_new, _ in answers) == [False] * 5 + [True]
    with storage.read() as session:
        assert runs.list_runs(session=session).total == 2


def test_a_file_is_written_again_if_it_was_removed(storage: Storage) -> None:
    add_runs(storage, data=DATA)
    storage.blobs.delete(SHA256)
    with storage.write() as session:
        _, is_new = uploads.add_or_get(session=session, blobs=storage.blobs, data=DATA, file_name="a", format="b")
    assert not is_new
    assert storage.blobs.read(SHA256) == DATA


def test_removing_a_file_spares_one_that_was_uploaded_again(storage: Storage) -> None:
    add_runs(storage, data=DATA)
    with storage.read() as session:
        uploads.remove_unused_blob(session, storage.blobs, SHA256)
    assert storage.blobs.exists(SHA256)


def test_an_unknown_upload_is_not_found(storage: Storage) -> None:
    with storage.read() as session, pytest.raises(NotFound):
        uploads.get(session=session, upload_id="nothing")


def test_files_lie_by_hash_and_leave_no_parts_behind(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    assert blobs.put(DATA) == SHA256
    assert blobs.put(DATA) == SHA256
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [
        f"blobs/{SHA256[:2]}/{SHA256}"
    ]


def test_a_file_cut_short_by_a_crash_is_replaced(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    blobs.put(DATA)
    blobs.path(SHA256).write_bytes(DATA[:3])
    blobs.put(DATA)
    assert blobs.read(SHA256) == DATA


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a" * 63, "A" * 64, "/" + "a" * 63, "a" * 64 + "\n"])
def test_only_a_hash_names_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        BlobStore(tmp_path).read(name)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot store the file"):
        BlobStore(tmp_path / "blobs").put(DATA)
