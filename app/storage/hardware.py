"""A team's own hardware profiles; the shipped ones are files of the catalogue."""

from __future__ import annotations

from app.storage import runs
from app.storage.own import OwnEntries
from app.storage.records import StoredHardware
from app.storage.tables import HardwareRow


def _record(row: HardwareRow) -> StoredHardware:
    return StoredHardware(
        id=row.id,
        name=row.name,
        copied_from=row.copied_from,
        payload=row.payload,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


HARDWARE: OwnEntries[HardwareRow, StoredHardware] = OwnEntries(
    HardwareRow,
    _record,
    "hardware profile",
    lambda session, entry_id: runs.count_runs(session=session, hardware_id=entry_id),
)

add, get, find, list_all = HARDWARE.add, HARDWARE.get, HARDWARE.find, HARDWARE.list_all
update, delete = HARDWARE.update, HARDWARE.delete
