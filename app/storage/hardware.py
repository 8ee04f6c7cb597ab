"""A team's own hardware profiles; the shipped ones are files of the catalogue."""

from __future__ import annotations

from app.storage import runs
from app.storage.own import OwnEntries
from app.storage.records import StoredHardware
from app.storage.tables import HardwareRow

HARDWARE: OwnEntries[HardwareRow, StoredHardware] = OwnEntries(
    HardwareRow,
    StoredHardware,
    "hardware profile",
    lambda session, entry_id: runs.count_runs(session=session, hardware_id=entry_id),
)

add, get, find, list_all = HARDWARE.add, HARDWARE.get, HARDWARE.find, HARDWARE.list_all
update, delete = HARDWARE.update, HARDWARE.delete
