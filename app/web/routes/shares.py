"""What the reader of a share link sees: the frozen comparison or diagnosis, read-only."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from app.services import share
from app.web import rendering
from app.web.comparison_view import SHARE_HEADERS, download, view
from app.web.deps import Ctx
from app.web.diagnose_view import view as diagnose_view

router = APIRouter(include_in_schema=False)

Token = Annotated[str, Path(max_length=200)]


@router.get("/s/{token}")
def shared(request: Request, ctx: Ctx, token: Token, metric: Annotated[str, Query(max_length=80)] = "") -> HTMLResponse:
    """404 alike for unknown, revoked and expired links."""
    opened = share.open_any(ctx, token)
    if not isinstance(opened, share.OpenedShare):
        diagnosis, link = opened
        context = {
            **diagnose_view(ctx.catalog.trees, diagnosis.snapshot),
            "diagnosis": diagnosis,
            "share": link,
            "live": False,
            "shared": True,
        }
        return rendering.page(request, "diagnosis_shared.html", context, headers=SHARE_HEADERS)
    stored = opened.comparison
    context = {
        **view(stored.snapshot, stored.baseline, metric),
        "comparison": stored,
        "share": opened.share,
        "moved": opened.moved,
        "address": f"/s/{token}",
        "linked_runs": frozenset(),
        "shared": True,
    }
    return rendering.page(request, "shared.html", context, part="comparison_chart.html", headers=SHARE_HEADERS)


@router.get("/s/{token}/export")
def export(ctx: Ctx, token: Token, format: Annotated[Literal["csv", "json", "html"], Query()] = "html") -> Response:
    response = download(share.open_share(ctx, token).comparison, format)
    response.headers.update(SHARE_HEADERS)
    return response
