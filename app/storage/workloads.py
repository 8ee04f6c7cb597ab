"""Saved workloads. Runs that are linked to one that is deleted keep what they know themselves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlmodel import Session

from app.storage.own import OwnEntries
from app.storage.records import StoredWorkload, new_id
from app.storage.tables import WorkloadRow

WORKLOADS: OwnEntries[WorkloadRow, StoredWorkload] = OwnEntries(WorkloadRow, StoredWorkload, "workload")

get, find, list_all = WORKLOADS.get, WORKLOADS.find, WORKLOADS.list_all
update, delete = WORKLOADS.update, WORKLOADS.delete


def add(
    *,
    session: Session,
    name: str,
    payload: Mapping[str, Any],
    model_id: str | None = None,
    now: datetime | None = None,
) -> StoredWorkload:
    """Store a new workload under an id of its own."""
    return WORKLOADS.add(session=session, entry_id=new_id(), name=name, payload=payload, now=now, model_id=model_id)
