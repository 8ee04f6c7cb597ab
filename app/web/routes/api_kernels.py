"""Kernels of runs for scripts: rows, the timeline and its parts, and two runs kernel by kernel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict

from app.services import kernels
from app.services.kernels import KernelQuery
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse

router = APIRouter(prefix="/api/v1", tags=["runs"])

RunId = Annotated[str, Path(max_length=80, description="Id of a run.")]
Words = Annotated[str | None, Query(max_length=200, description="Words that the name must hold, all of them.")]
FamilyName = Annotated[str | None, Query(max_length=60, description="gemm, attention, norm, collective, ...")]
Limit = Annotated[int, Query(ge=1, le=kernels.MAX_PAGE)]
Cursor = Annotated[str | None, Query(max_length=20, description="`next` of the page before.")]


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class KernelsAnswer(Loose):
    """Kernel rows; `time_s` and `share` are of all rows that match, `families` of all rows of the run."""

    items: list[dict[str, Any]]
    next: str | None
    total: int
    time_s: float
    share: float
    families: list[dict[str, Any]]


class TimelineAnswer(Loose):
    """The timeline's parts, and what runs between two moments as bars of a bounded number."""

    summary: dict[str, Any] | None
    from_s: float | None
    to_s: float | None
    lanes: list[dict[str, Any]]
    bars: list[dict[str, Any]]


class KernelChangesAnswer(Loose):
    """Two runs kernel by kernel. Families add up to the totals."""

    run: str
    baseline: str
    before_s: float
    after_s: float
    difference_s: float
    counts: dict[str, int]
    families: list[dict[str, Any]]
    items: list[dict[str, Any]]
    next: str | None
    total: int


@router.get("/runs/{run}/kernels", summary="Kernels of a run", response_model=KernelsAnswer)
def get_kernels(
    ctx: Ctx,
    run: RunId,
    q: Words = None,
    family: FamilyName = None,
    sort: Annotated[str, Query(max_length=60, description="A field of a row, with - for descending.")] = "-time_s",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Kernel rows with family, count, time and share, and FLOP and bytes where counters or shapes tell them.

    `work_from` says which: `counters` measured both, from `shapes` the bytes are the least possible. A run without
    kernels has an empty list.
    """
    rows = kernels.rows_of(kernels.run_with_kernels(ctx, run))
    found = kernels.kernels_page(rows, KernelQuery(q, family, sort), limit=limit, cursor=cursor)
    return FiniteJSONResponse(
        {
            "items": [kernels.kernel_json(row) for row in found.page.items],
            "next": found.page.next,
            "total": found.page.total,
            "time_s": found.time_s,
            "share": found.share,
            "families": [kernels.family_json(row) for row in kernels.families_of(rows)],
        }
    )


@router.get("/runs/{run}/timeline", summary="Timeline of a run", response_model=TimelineAnswer)
def get_timeline(
    ctx: Ctx,
    run: RunId,
    from_s: Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)] = None,
    to_s: Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)] = None,
    bars: Annotated[int, Query(ge=1, le=4000, description="Most bars of the answer, about.")] = kernels.MOST_BARS,
) -> Response:
    """Busy, idle and exposed time of a profile, by step and device, and its drawing between two moments.

    Times count from the profile's first kernel. A bar with a `count` above one stands for several kernels of a stream.
    """
    found = kernels.run_with_kernels(ctx, run)
    return FiniteJSONResponse(kernels.timeline_json(found, kernels.timeline_view(found, from_s, to_s, bars)))


@router.get("/runs/{run}/kernels/compare", summary="Two runs kernel by kernel", response_model=KernelChangesAnswer)
def compare_kernels(
    ctx: Ctx,
    run: RunId,
    baseline: Annotated[str, Query(max_length=80, description="Id of the run to compare with.")],
    q: Words = None,
    family: FamilyName = None,
    change: Annotated[str | None, Query(max_length=20, description="added, removed, faster, slower or same")] = None,
    sort: Annotated[str, Query(max_length=60)] = "difference_s",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Kernels of two runs matched by exact name, by total time and count; the largest differences first."""
    found = kernels.comparison_of(ctx, run, baseline)
    page = kernels.changes_page(found, q=q, family=family, change=change, sort=sort, limit=limit, cursor=cursor)
    return FiniteJSONResponse(kernels.comparison_json(found, page))
