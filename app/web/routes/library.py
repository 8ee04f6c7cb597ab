"""Pages of the library: its entrance with the list of techniques, and one page for each technique."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError

from app.charts.base import ChartSpec
from app.charts.lever_effect import lever_effect
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.levers.registry import LEVERS
from app.domain.library import TryOut
from app.domain.precision import PRECISIONS
from app.domain.technique import Technique
from app.services import library_pages, reference_pages, techniques
from app.services.context import Context
from app.services.library_pages import TechniqueQuery
from app.services.technique_effect import (
    Effect,
    Refusal,
    accepted_try_outs,
    effect_of,
    stated_fields,
    with_lever,
    workload_query,
)
from app.services.what_if import WhatIf, choices
from app.web import rendering
from app.web.deps import Ctx
from app.web.forms import LabForm, lab_errors, lab_form
from app.web.routes.explore import (
    conditions_of,
    explore_address,
    model_fields,
    picker_options,
    side_by_side,
)
from app.web.routes.hardware import offered

router = APIRouter(include_in_schema=False)

Text = Annotated[str, Query(max_length=200)]

ANY = {
    "saves": "Anything",
    "family": "Any family",
    "phase": "Any phase",
    "architecture": "Any architecture",
    "gpu": "Any generation",
    "book_as": "Any book",
    "memory_lever": "Any, or none",
    "lever": "All",
}
"""What each select of the list says when it does not filter."""

WORKLOAD_FIELDS = ("model", "hardware", "phase", "batch", "seq", "context", "tp")
"""Fields of a workload that a technique's page always shows."""
MORE_FIELDS = (
    "dp", "pp", "ep", "micro_batches", "zero", "recompute", "weights", "activations", "kv", "routing", "alpha",
    "launch",
)  # fmt: skip
"""Those that it shows folded; what is in neither is carried along where it is not the default."""


@router.get("/library")
def library(
    request: Request,
    ctx: Ctx,
    q: Text = "",
    saves: Text = "",
    family: Text = "",
    phase: Text = "",
    architecture: Text = "",
    gpu: Text = "",
    book_as: Text = "",
    memory_lever: Text = "",
    lever: Text = "",
) -> HTMLResponse:
    filters = {
        "q": q.strip(),
        "saves": saves,
        "family": family,
        "phase": phase,
        "architecture": architecture,
        "gpu": gpu,
        "book_as": book_as,
        "memory_lever": memory_lever,
        "lever": lever,
    }
    query = TechniqueQuery(**filters)
    found = library_pages.browse_techniques(ctx, query)
    context = {
        "query": query,
        "found": found,
        "places": [] if query.filters_anything else reference_pages.places(),
        "choices": {name: offered(words, found.choices[name], filters[name]) for name, words in ANY.items()},
        **words_of(),
    }
    address = rendering.query("/library", **filters)
    return rendering.page(
        request, "library.html", context, part="library_list.html", headers={"HX-Replace-Url": address}
    )


def words_of() -> dict[str, Any]:
    """The words that lists and pages of techniques print for keys."""
    return {
        "family_labels": library_pages.FAMILY_LABELS,
        "saves_labels": library_pages.SAVES_LABELS,
        "saves_resource": library_pages.SAVES_RESOURCE,
        "phase_labels": library_pages.PHASE_LABELS,
        "architecture_labels": library_pages.ARCHITECTURE_LABELS,
        "generation_labels": library_pages.GENERATION_LABELS,
        "book_words": library_pages.BOOK_WORDS,
        "lever_labels": library_pages.LEVER_LABELS,
    }


@router.get("/library/techniques")
def technique_list(request: Request) -> Response:
    """The list is the library's entrance."""
    return RedirectResponse(rendering.query("/library", **request.query_params), status_code=303)


# ---- one technique --------------------------------------------------------------------------------------------------


@router.get("/library/techniques/{technique}")
def technique_page(request: Request, ctx: Ctx, technique: Annotated[str, Path(max_length=200)]) -> Response:
    """The technique with this id; with a workload in the address, what its lever does to that one."""
    entry = techniques.get_technique(ctx, technique)
    address = address_of(entry)
    if technique != entry.id:
        return RedirectResponse(rendering.query(address, **request.query_params), status_code=303)
    context: dict[str, Any] = {
        "sheet": library_pages.technique_sheet(ctx, entry),
        "technique": entry,
        "address": address,
        "api_url": f"/api/v1/techniques/{quote(entry.id, safe='')}",
        **words_of(),
    }
    if entry.id not in LEVERS:
        return rendering.page(request, "technique.html", context)
    fitting = accepted_try_outs(ctx, entry)
    form, effect = _answered(ctx, entry, request.query_params, fitting)
    context |= _effect_context(ctx, entry, form, effect, fitting, own=bool(stated_fields(request.query_params)))
    status = 422 if form.errors else 200
    if rendering.wants_fragment(request):
        context["partial"] = True
        template = "explore_problem.html" if form.errors else "technique_effect.html"
        headers = {} if form.errors else {"HX-Replace-Url": context["here"]}
        return rendering.fragment(request, template, context, status, headers=headers)
    options = choices(ctx, form.state)
    context |= picker_options(options)
    return rendering.page(request, "technique.html", context, status)


def address_of(technique: Technique) -> str:
    """Address of a technique's page."""
    return f"/library/techniques/{quote(technique.id, safe='')}"


def _answered(
    ctx: Context, technique: Technique, query: Mapping[str, str], fitting: tuple[TryOut, ...]
) -> tuple[LabForm, Effect | Refusal | None]:
    """The form as typed, else filled with the first workload that fits; and the effect on it where there is one."""
    asked = stated_fields(query)
    if not asked:
        asked = workload_query(WhatIf(**fitting[0].state)) if fitting else {}
    numbers = {name: text for name, text in query.items() if name.startswith("lever.")}
    form = lab_form({**asked, **numbers, "levers": technique.id, "beside": ""})
    if form.errors:
        return form, None
    try:
        return form, effect_of(ctx, technique.id, form.state)
    except (ValidationError, InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
        return LabForm(form.typed, form.state, lab_errors(error)), None


def _effect_context(
    ctx: Context,
    technique: Technique,
    form: LabForm,
    effect: Effect | Refusal | None,
    fitting: tuple[TryOut, ...],
    *,
    own: bool,
) -> dict[str, Any]:
    state = form.state
    workload = workload_query(state)
    of_model = model_fields(ctx, state)
    shown = (*WORKLOAD_FIELDS, *MORE_FIELDS, *of_model["inputs"], "levers", "beside")
    numbers = [
        (param, dict(state.chosen_levers()).get(technique.id, {}).get(param.name, param.default))
        for param in LEVERS[technique.id].params
    ]
    lever_query = {
        f"lever.{technique.id}.{param.name}": f"{value:g}" for param, value in numbers if value != param.default
    }
    return {
        "form": form,
        "partial": False,
        "precisions": list(PRECISIONS),
        "fields": (*WORKLOAD_FIELDS, *MORE_FIELDS, "levers"),
        **of_model,
        "hidden_fields": {name: text for name, text in state.query().items() if name not in shown},
        "numbers": numbers,
        "try_outs": [
            (item.title, rendering.query(address_of(technique), **workload_query(WhatIf(**item.state))))
            for item in fitting
        ],
        "effect": effect if isinstance(effect, Effect) else None,
        "refusal": effect if isinstance(effect, Refusal) else None,
        "charts": {"effect": effect_chart(technique, effect)} if isinstance(effect, Effect) else {},
        "figures": side_by_side(effect.before, effect.after, effect.labels) if isinstance(effect, Effect) else None,
        "conditions": conditions_of(effect.before) if isinstance(effect, Effect) else "",
        "explore_url": explore_address(with_lever(state, technique)),
        "here": rendering.query(address_of(technique), **workload, **lever_query),
        "workload_query": workload if own else {},
    }


def effect_chart(technique: Technique, effect: Effect) -> ChartSpec:
    """The chart of a technique's page: both sides of the ledger's one row."""
    return lever_effect(
        (effect.before.bound, effect.before.expected),
        (effect.after.bound, effect.after.expected),
        labels=effect.labels,
        title=f"What {technique.name} changes in a step: outlined {effect.labels[0].lower()}, filled "
        f"{effect.labels[1].lower()}",
        caption=conditions_of(effect.before),
    )
