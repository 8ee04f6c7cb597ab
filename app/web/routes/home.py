"""The landing page: a live roofline at once, three ways to start, and what is here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.services import compare, run_list
from app.services.context import Context
from app.services.run_list import RunListItem
from app.services.what_if import choices, opening
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.forms import lab_form
from app.web.routes.explore import answered, picker_options, result_context

router = APIRouter(include_in_schema=False)

RECENT_FILES = 5
RECENT_COMPARISONS = 4


@router.get("/")
def home(request: Request, ctx: Ctx) -> HTMLResponse:
    """Hardware and model come from the address; everything else is the lab's default question for the two."""
    asked = {name: request.query_params[name] for name in ("hardware", "model") if name in request.query_params}
    typed = lab_form(asked)
    form, found = answered(ctx, replace(typed, state=opening(ctx, typed.state)))
    context: dict[str, Any] = {
        "form": form,
        "answer": found,
        "explore_url": rendering.query("/explore", **form.state.query()),
    }
    if found is not None:
        context |= result_context(found, str(request.base_url).rstrip("/"))
    status = 422 if form.errors else 200
    if rendering.wants_fragment(request):
        return rendering.fragment(request, "home_answer.html", context, status)
    options = choices(ctx, form.state)
    context |= {
        **picker_options(options),
        **recent(ctx),
    }
    return rendering.page(request, "home.html", context, status)


def recent(ctx: Context) -> dict[str, Any]:
    """The newest files' runs with their distance from the bound, and the newest comparisons."""
    files, run_count = run_list.recent_files(ctx, RECENT_FILES)
    frozen = compare.list_comparisons(ctx, limit=RECENT_COMPARISONS)
    return {
        "recent_runs": [_line(file.newest, file.others) for file in files],
        "run_count": run_count,
        "recent_comparisons": frozen.items,
        "comparison_count": frozen.total,
    }


def _line(item: RunListItem, others: int) -> dict[str, Any]:
    """One file on the page: a sweep of many runs takes no more room than one result."""
    run = item.run
    return {
        "id": run.id,
        "name": run.name,
        "is_example": run.is_example,
        "model": item.model_name or run.model_hint or "model not linked",
        "hardware": item.hardware_name or run.hardware_hint or "device not linked",
        "linked": item.hardware_name is not None and item.model_name is not None,
        "of_bound": item.of_bound,
        "step": "" if item.measured is None else f"{item.what}, {formatting.quantity(item.measured, 's')}",
        "others": others,
    }
