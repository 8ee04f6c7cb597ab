"""The landing page: a live roofline at once, three ways to start, and what is here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.services.what_if import choices
from app.web import rendering
from app.web.deps import Ctx
from app.web.forms import lab_form
from app.web.routes.explore import answered, option_groups, result_context

router = APIRouter(include_in_schema=False)


@router.get("/")
def home(request: Request, ctx: Ctx) -> HTMLResponse:
    """Hardware and model come from the address; everything else is the lab's default question."""
    asked = {name: request.query_params[name] for name in ("hardware", "model") if name in request.query_params}
    form, found = answered(ctx, lab_form(asked))
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
        "hardware_options": option_groups(options.hardware),
        "model_options": option_groups(options.models),
    }
    return rendering.page(request, "home.html", context, status)
