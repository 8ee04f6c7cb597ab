"""A team's own hardware, models and workloads."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType

import pytest

from app.storage import hardware, models, workloads
from app.storage.errors import Conflict, NotFound
from app.storage.store import Storage
from tests.storage.stored import NOON, add_runs

PROFILE = {"name": "Lab", "memory_bytes": 8.0e10, "peak": {"flop_per_s": {"bf16": 9.89e14}}}


@pytest.mark.parametrize("entries", [hardware, models])
def test_an_entry_is_stored_edited_and_deleted(storage: Storage, entries: ModuleType) -> None:
    lab = {"entry_id": "lab-1"}
    with storage.write() as session:
        added = entries.add(
            session=session, **lab, name="Lab", payload=PROFILE, copied_from="nvidia-h100-sxm", now=NOON
        )
        entries.add(session=session, entry_id="other", name="a lab", payload={})
    assert (added.id, added.revision, added.copied_from, added.created_at) == ("lab-1", 1, "nvidia-h100-sxm", NOON)
    later = NOON + timedelta(hours=1)
    with storage.write() as session:
        edited = entries.update(session=session, **lab, name="Lab 2", payload={"a": 1}, expected_revision=1, now=later)
    assert (edited.name, edited.payload, edited.revision) == ("Lab 2", {"a": 1}, 2)
    assert (edited.created_at, edited.updated_at) == (NOON, later)
    with storage.read() as session:
        assert entries.get(session=session, **lab) == edited
        assert entries.find(session=session, **lab) == edited
        assert [entry.name for entry in entries.list_all(session=session)] == ["a lab", "Lab 2"]
    with storage.write() as session:
        entries.delete(session=session, **lab)
    with storage.read() as session:
        assert entries.find(session=session, **lab) is None


@pytest.mark.parametrize(("entries", "link"), [(hardware, "hardware_id"), (models, "model_id")])
def test_what_contradicts_is_refused(storage: Storage, entries: ModuleType, link: str) -> None:
    lab = {"entry_id": "lab-1"}
    with storage.write() as session:
        entries.add(session=session, **lab, name="Lab", payload={})
    with pytest.raises(Conflict, match="stored already"), storage.write() as session:
        entries.add(session=session, **lab, name="Lab again", payload={})
    with pytest.raises(Conflict, match="edited since"), storage.write() as session:
        entries.update(session=session, **lab, name="x", payload={}, expected_revision=2)
    for call in (entries.get, entries.delete):
        with pytest.raises(NotFound), storage.write() as session:
            call(session=session, entry_id="nothing")
    add_runs(storage, **{link: "lab-1"})
    with pytest.raises(Conflict, match="1 run is linked to 'lab-1'"), storage.write() as session:
        entries.delete(session=session, **lab)


def test_a_workload_is_stored_edited_and_deleted(storage: Storage) -> None:
    with storage.write() as session:
        added = workloads.add(session=session, name="chat", payload={"batch": 1}, model_id="llama", now=NOON)
        edited = workloads.update(
            session=session, entry_id=added.id, name="chat 2", payload={"batch": 2}, model_id=None, expected_revision=1
        )
    assert (added.revision, added.model_id, added.payload) == (1, "llama", {"batch": 1})
    assert (edited.id, edited.revision, edited.model_id, edited.payload) == (added.id, 2, None, {"batch": 2})
    with pytest.raises(Conflict), storage.write() as session:
        workloads.update(session=session, entry_id=added.id, name="x", payload={}, expected_revision=1)
    with storage.read() as session:
        assert workloads.list_all(session=session) == (edited,)
    with storage.write() as session:
        workloads.delete(session=session, entry_id=added.id)
    with storage.read() as session, pytest.raises(NotFound):
        workloads.get(session=session, entry_id=added.id)
