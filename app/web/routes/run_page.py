"""One run: its page, its file, its removal."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from app.services import run_changes, runs
from app.web import rendering
from app.web.deps import Ctx
from app.web.run_view import run_context
from app.web.uploads import attachment

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}")
def run_page(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    view = runs.get_view(ctx, run_id)
    context = run_context(ctx, view, partial=rendering.wants_fragment(request), asked=request.query_params)
    context["again"] = request.query_params.get("again") == "1"
    return rendering.page(request, "run.html", context, part="run_body.html")


@router.get("/runs/{run_id}/raw")
def run_raw(ctx: Ctx, run_id: str) -> Response:
    return attachment(*runs.raw_file(ctx, run_id))


@router.get("/runs/{run_id}/delete")
def confirm_delete(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    view = runs.get_view(ctx, run_id)
    return rendering.page(request, "run_delete.html", {"view": view})


@router.post("/runs/{run_id}/delete")
def delete(request: Request, ctx: Ctx, run_id: str) -> Response:
    run_changes.delete_run(ctx, run_id)
    return rendering.redirect(request, "/runs")
