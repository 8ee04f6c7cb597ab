"""What the lint checks, and the links that are remembered: pages beside the runs."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from app.domain.lint import ANALYSIS_CHECKS, CHECKS
from app.domain.lint_facts import FACTS
from app.services import links
from app.services.runs import known_names
from app.web import rendering
from app.web.deps import Ctx

router = APIRouter(include_in_schema=False)

_OWN_PAGE = re.compile(r"/runs/[A-Za-z0-9_-]{1,80}")


@router.get("/runs/checks")
def checks_page(request: Request) -> HTMLResponse:
    """Every check of the lint, by severity, and every fact that is asked for."""
    order = ("error", "warning", "info")
    table = [(check.id, check.rule, check.severity, check.title, ", ".join(check.needs)) for check in CHECKS]
    table += [(id_, rule, severity, title, "bound") for id_, rule, severity, title in ANALYSIS_CHECKS]
    rows = sorted(table, key=lambda row: order.index(row[2]))
    return rendering.page(request, "run_checks.html", {"checks": rows, "facts": FACTS})


@router.get("/runs/links")
def links_page(request: Request, ctx: Ctx) -> HTMLResponse:
    """What files' wordings mean here."""
    hardware, models = known_names(ctx)
    names = {"hardware": dict(hardware), "model": dict(models)}
    rows = [
        {"link": link, "target": names[link.kind].get(link.target_id), "url": f"/{_AREA[link.kind]}/{link.target_id}"}
        for link in links.remembered_links(ctx)
    ]
    return rendering.page(request, "run_remembered.html", {"rows": rows})


_AREA = {"hardware": "hardware", "model": "models"}


@router.post("/runs/links/{link_id}/forget")
async def forget(request: Request, ctx: Ctx, link_id: str) -> Response:
    """Forget one; runs keep their links."""
    form = await request.form(max_files=0, max_fields=4)
    back = form.get("back")
    await run_in_threadpool(links.forget_link, ctx, link_id)
    # only pages of our own: an address in a form is not to be trusted
    target = back if isinstance(back, str) and _OWN_PAGE.fullmatch(back) else "/runs/links"
    return RedirectResponse(target, status_code=303)
