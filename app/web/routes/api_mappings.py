"""How tables of a team's own are read: what was said of their columns, and the files that still wait for it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from app.services import run_json, tables
from app.services.tables import MappingBody
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.routes.api_jobs import Loose

router = APIRouter(prefix="/api/v1")

MappingId = Annotated[str, Path(max_length=80, description="Id of a mapping.")]


class ColumnAnswer(BaseModel):
    use: str
    metric: str | None
    stat: str | None
    unit: str


class MappingAnswer(Loose):
    """What the columns of a table mean. The id follows from the set of column names."""

    id: str
    columns: dict[str, ColumnAnswer]
    decimal: str
    mode: str | None


class MappingListAnswer(Loose):
    items: list[MappingAnswer]
    total: int
    waiting: list[dict[str, Any]]


@router.get("/mappings", tags=["runs"], summary="Remembered tables", response_model=MappingListAnswer)
def list_mappings(ctx: Ctx) -> Response:
    """Mappings, the one changed last first, and under `waiting` the tables that nobody explained yet."""
    items = [tables.mapping_json(stored) for stored in tables.list_mappings(ctx)]
    waiting = [run_json.upload_json(upload) for upload in tables.list_waiting(ctx)]
    return FiniteJSONResponse({"items": items, "total": len(items), "waiting": waiting})


@router.put("/mappings", tags=["runs"], summary="Explain a table's columns", response_model=MappingAnswer)
def put_mapping(ctx: Ctx, body: MappingBody) -> Response:
    """Say what the columns of a table mean, in place of what was said before of the same set of columns.

    Name every column, those to be ignored too: the next file with exactly these columns is read by it. Runs that are
    stored already stay as they are.
    """
    return FiniteJSONResponse(tables.mapping_json(tables.remember(ctx, body.to_mapping())))


@router.get("/mappings/{mapping}", tags=["runs"], summary="One remembered table", response_model=MappingAnswer)
def get_mapping(ctx: Ctx, mapping: MappingId) -> Response:
    """What was said of the columns."""
    return FiniteJSONResponse(tables.mapping_json(tables.get_mapping(ctx, mapping)))


@router.delete("/mappings/{mapping}", tags=["runs"], summary="Forget a table", status_code=204)
def delete_mapping(ctx: Ctx, mapping: MappingId) -> Response:
    """The next file with these columns is asked about again; runs that are stored stay."""
    tables.forget(ctx, mapping)
    return Response(status_code=204)
