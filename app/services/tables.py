"""Tables of a team's own: what their columns mean is said once and remembered for files with the same columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from app.domain.errors import InvalidInput
from app.importers.reading import Content
from app.importers.registry import Tables
from app.importers.table import Column, TableMapping, TableView, Use, columns_key, mapping_problems, table_of, view_of
from app.services.context import Context
from app.services.contracts import Contract
from app.storage import mappings, uploads
from app.storage.errors import Conflict
from app.storage.records import StoredMapping, StoredUpload

Mode = Literal["serve", "prefill", "decode", "train", "latency", "kernel"]
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


class ColumnBody(Contract):
    """What one column means. `metric`, `stat` and `unit` are for a metric: `latency_s`, `p99`, `ms`."""

    use: Use = "ignore"
    metric: Annotated[str, Field(max_length=60)] | None = None
    stat: Annotated[str, Field(max_length=10)] | None = None
    unit: Annotated[str, Field(max_length=20)] = ""


class MappingBody(Contract):
    """How a table is read: every column by its name, and the decimal sign of its numbers.

    Columns left out are ignored. `mode` says what kind of work the rows measure.
    """

    columns: dict[ColumnName, ColumnBody] = Field(min_length=1, max_length=200)
    decimal: Literal[".", ","] = "."
    mode: Mode | None = None

    def to_mapping(self) -> TableMapping:
        """Raises InvalidInput under `mapping` where it cannot be used."""
        columns = {
            name: Column(body.use, body.metric, body.stat or None, body.unit)
            if body.use == "metric"
            else Column(body.use)
            for name, body in self.columns.items()
        }
        found = TableMapping(columns, self.decimal, self.mode)
        problems = mapping_problems(found)
        if problems:
            loc, reason = problems[0]
            raise InvalidInput(("mapping", *loc), reason)
        return found


def mapping_of(given: str | Mapping[str, Any]) -> TableMapping:
    """A mapping as the API takes it, an object or its JSON text. Raises InvalidInput naming the field."""
    fields: Any = given
    if isinstance(given, str):
        try:
            fields = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                ("mapping",), f"is no JSON: {error}" if isinstance(error, ValueError) else "is too deep"
            ) from error
    try:
        return MappingBody.model_validate(fields).to_mapping()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = str(first["msg"]).replace("Input should be", "must be")
        raise InvalidInput(("mapping", *first["loc"]), reason) from error


def remembered(ctx: Context, chosen: TableMapping | None = None) -> Tables:
    """Every remembered mapping, as the reader of a file takes them."""
    with ctx.storage.read() as session:
        stored = mappings.list_all(session=session)
    return Tables({one.columns_sha256: from_stored(one) for one in stored}, chosen)


def from_stored(stored: StoredMapping) -> TableMapping:
    payload = stored.payload
    columns = {name: Column(**column) for name, column in payload["columns"].items()}
    return TableMapping(columns, payload["decimal"], payload["mode"], stored.id)


def payload_of(mapping: TableMapping) -> dict[str, Any]:
    """A mapping in the API's shape."""
    columns = {name: asdict(column) for name, column in mapping.columns.items()}
    return {"columns": columns, "decimal": mapping.decimal, "mode": mapping.mode}


def remember(ctx: Context, mapping: TableMapping) -> StoredMapping:
    """Keep a mapping that names all columns of the tables it is for, in place of an earlier one of these columns."""
    with ctx.storage.write() as session:
        return mappings.save(session=session, columns_sha256=columns_key(mapping.columns), payload=payload_of(mapping))


def list_mappings(ctx: Context) -> tuple[StoredMapping, ...]:
    with ctx.storage.read() as session:
        return mappings.list_all(session=session)


def get_mapping(ctx: Context, mapping_id: str) -> StoredMapping:
    with ctx.storage.read() as session:
        return mappings.get(session=session, mapping_id=mapping_id)


def forget(ctx: Context, mapping_id: str) -> None:
    with ctx.storage.write() as session:
        mappings.delete(session=session, mapping_id=mapping_id)


def mapping_json(stored: StoredMapping) -> dict[str, Any]:
    return {
        "id": stored.id,
        **stored.payload,
        "created_at": stored.created_at.isoformat(),
        "updated_at": stored.updated_at.isoformat(),
    }


def view_json(view: TableView) -> dict[str, Any]:
    """What a refusal of an unknown table carries: its columns with some cells, and guesses to send back corrected."""
    return {
        "rows": view.row_count,
        "columns": [
            {"name": c.name, "samples": list(c.samples), "is_secret": c.is_secret, "guess": asdict(c.guess)}
            for c in view.columns
        ],
        "mapping": payload_of(view.guesses),
    }


# --- files that wait -----------------------------------------------------------------------------------------------


def list_waiting(ctx: Context) -> tuple[StoredUpload, ...]:
    """Tables that were sent and not explained yet, the newest first."""
    with ctx.storage.read() as session:
        return uploads.list_waiting(session=session)


def waiting_table(ctx: Context, upload_id: str) -> tuple[StoredUpload, TableView | None]:
    """A waiting table and what is to be said of it. Raises NotFound, and Conflict where it was read already."""
    with ctx.storage.read() as session:
        upload = uploads.get(session=session, upload_id=upload_id)
    if upload.waiting is None:
        raise Conflict(f"{upload.file_name!r} does not wait any more: it was read")
    table = table_of(Content(ctx.storage.blobs.path(upload.sha256), upload.file_name))
    return upload, None if table is None else view_of(table)


def discard(ctx: Context, upload_id: str) -> None:
    """Delete a waiting table. Raises NotFound, and Conflict where it was read already."""
    with ctx.storage.write() as session:
        uploads.discard_waiting(session=session, blobs=ctx.storage.blobs, upload_id=upload_id)
