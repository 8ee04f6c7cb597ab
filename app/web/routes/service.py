"""Is the process up, can it serve, and which version is it?"""

from __future__ import annotations

import platform
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from app import __version__
from app.storage import migrate
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse

router = APIRouter(tags=["service"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    reason: str | None = None


class Version(BaseModel):
    name: str
    version: str
    python: str
    api: str
    schema_revision: str


@router.get("/healthz", summary="The process answers")
async def healthz() -> Health:
    """200 as long as the process runs; nothing else is looked at."""
    return Health()


@router.get(
    "/readyz",
    summary="Requests can be served",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Not ready; `reason` says why and what to do."}},
)
def readyz(ctx: Ctx) -> Any:
    """Whether the database can be reached and has the tables of this version."""
    reason = migrate.readiness(ctx.storage.engine)
    if reason is None:
        return FiniteJSONResponse({"status": "ready", "reason": None})
    return FiniteJSONResponse({"status": "not ready", "reason": reason}, status_code=503)


@router.get("/version", summary="Version of the product, its API and its tables")
def version() -> Version:
    return Version(
        name="bytebound",
        version=__version__,
        python=platform.python_version(),
        api="v1",
        schema_revision=migrate.head_revision(),
    )
