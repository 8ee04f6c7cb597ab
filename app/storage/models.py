"""A team's own models; the shipped ones are files of the catalogue."""

from __future__ import annotations

from app.storage import runs
from app.storage.own import OwnEntries
from app.storage.records import StoredModel
from app.storage.tables import ModelRow


def _record(row: ModelRow) -> StoredModel:
    return StoredModel(
        id=row.id,
        name=row.name,
        copied_from=row.copied_from,
        payload=row.payload,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


MODELS: OwnEntries[ModelRow, StoredModel] = OwnEntries(
    ModelRow,
    _record,
    "model",
    lambda session, entry_id: runs.count_runs(session=session, model_id=entry_id),
)

add, get, find, list_all = MODELS.add, MODELS.get, MODELS.find, MODELS.list_all
update, delete = MODELS.update, MODELS.delete
