"""A team's own models; the shipped ones are files of the catalogue."""

from __future__ import annotations

from app.storage import runs
from app.storage.own import OwnEntries
from app.storage.records import StoredModel
from app.storage.tables import ModelRow

MODELS: OwnEntries[ModelRow, StoredModel] = OwnEntries(
    ModelRow,
    StoredModel,
    "model",
    lambda session, entry_id: runs.count_runs(session=session, model_id=entry_id),
)

add, get, find, list_all = MODELS.add, MODELS.get, MODELS.find, MODELS.list_all
update, delete = MODELS.update, MODELS.delete
