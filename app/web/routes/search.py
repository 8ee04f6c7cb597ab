"""The search box of every page: hardware, models and runs by any of their names."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from app.services.search import search
from app.web import rendering
from app.web.deps import Ctx

router = APIRouter(include_in_schema=False)


@router.get("/search")
def search_page(request: Request, ctx: Ctx, q: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    wanted = q.strip()
    context = {"q": wanted, "found": search(ctx, wanted)}
    return rendering.page(
        request,
        "search.html",
        context,
        part="search_results.html",
        headers={"HX-Replace-Url": rendering.query("/search", q=wanted)},
    )
