"""Pages of the model catalogue: the list, one architecture in numbers, and a team's own models as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.catalog.codec import model_to_json
from app.catalog.names import AmbiguousName
from app.domain.errors import InvalidInput
from app.services import catalogue, model_pages
from app.services.catalogue import ModelEntry
from app.services.context import Context
from app.services.model_pages import ModelQuery
from app.services.what_if import WhatIf, opening
from app.storage.errors import Conflict
from app.web import rendering
from app.web.deps import Ctx
from app.web.formatting import Scale
from app.web.forms import FormTexts, sentence
from app.web.routes.explore import explore_address
from app.web.routes.hardware import heading_of, offered, origin_of
from app.web.security import NotStrictJson, check_json

router = APIRouter(include_in_schema=False)

Name = Annotated[str, Path(max_length=200)]
Text = Annotated[str, Query(max_length=200)]

MAX_JSON_TEXT = 200_000

COLUMNS: tuple[dict[str, Any], ...] = (
    {"key": "name", "label": "Model", "numeric": False},
    {"key": "total", "label": "Parameters", "unit_text": "billion", "numeric": True},
    {"key": "active", "label": "Active", "unit_text": "billion", "numeric": True, "title": "Used by one token"},
    {"key": "layers", "label": "Layers", "numeric": True},
    {"key": "hidden", "label": "Hidden", "numeric": True},
    {"key": "attention", "label": "Attention", "numeric": False},
    {"key": "kv", "label": "KV a token", "unit_text": "KiB", "numeric": True, "title": "In bf16, over all layers"},
    {"key": "context", "label": "Context", "unit_text": "tokens", "numeric": True},
    {"key": "year", "label": "Year", "numeric": True},
)
SCALES: Mapping[str, Scale] = {
    "parameters": Scale("parameters", "billion", 1e9, padded=True),
    "kv": Scale("B", "KiB", 1024.0),
}


# ---- list -----------------------------------------------------------------------------------------------------------


@router.get("/models")
def model_list(
    request: Request,
    ctx: Ctx,
    q: Text = "",
    family: Text = "",
    kind: Text = "",
    estimable: Text = "",
    sort: Text = "",
) -> HTMLResponse:
    query = ModelQuery(q=q.strip(), family=family, kind=kind, estimable=estimable, sort=sort)
    found = model_pages.browse_models(ctx, query)
    filters = {"q": query.q, "family": family, "kind": kind, "estimable": estimable}
    context = {
        "query": query,
        "found": found,
        "columns": [column | heading_of("/models", filters, sort, column) for column in COLUMNS],
        "kind_labels": model_pages.KIND_LABELS,
        "scales": SCALES,
        "choices": {
            "family": offered("Any family", found.families, family),
            "kind": offered("Any kind", found.kinds, kind),
            "estimable": offered("All", [("yes", "Yes"), ("no", "Not yet")], estimable),
        },
    }
    address = rendering.query("/models", **filters, sort=sort)
    return rendering.page(
        request, "model_list.html", context, part="model_list.html", headers={"HX-Replace-Url": address}
    )


# ---- one model ------------------------------------------------------------------------------------------------------


@router.get("/models/{model}")
def model_page(request: Request, ctx: Ctx, model: Name) -> Response:
    """The model with this id; another name of it leads there, a name of several to the list of them."""
    try:
        entry = catalogue.get_model(ctx, model)
    except AmbiguousName:
        return RedirectResponse(rendering.query("/models", q=model), status_code=303)
    if entry.id != model:
        return RedirectResponse(address_of(entry), status_code=303)
    return _sheet(request, ctx, entry)


def _sheet(request: Request, ctx: Context, entry: ModelEntry, problem: str = "", status: int = 200) -> HTMLResponse:
    context = {
        "sheet": model_pages.model_sheet(ctx, entry),
        "entry": entry,
        "model": entry.model,
        "address": address_of(entry),
        "explore_url": explore_address(opening(ctx, WhatIf(model=entry.id))),
        "api_url": f"/api/v1{address_of(entry)}",
        "runs_url": rendering.query("/runs", model=entry.id),
        "origin": origin_of(entry.model.copied_from, partial(catalogue.get_model, ctx), address_of),
        "problem": problem,
    }
    return rendering.page(request, "model.html", context, status)


def address_of(entry: ModelEntry) -> str:
    """Address of a model's page."""
    return f"/models/{quote(entry.id, safe='')}"


# ---- a team's own models --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelForm:
    """What stands in the editor. `error` belongs to the field `wrong` (name or json)."""

    name: str
    text: str
    error: str = ""
    wrong: str = ""


@router.get("/models/{model}/copy")
def copy_page(request: Request, ctx: Ctx, model: Name) -> Response:
    entry = catalogue.get_model(ctx, model)
    return _form_page(request, entry, _shown(entry, name=f"Copy of {entry.name}"[:200]), copying=True)


@router.post("/models/{model}/copy")
def copy(request: Request, ctx: Ctx, model: Name, texts: FormTexts) -> Response:
    """Store a copy with what was changed; what cannot be stored comes back as it was typed."""
    entry = catalogue.get_model(ctx, model)
    form = _typed(texts)
    try:
        data = _parsed(form)
        made = catalogue.copy_model(ctx, entry.id, name=form.name, data=data)
    except _Refused as error:
        return _form_page(request, entry, error.form, copying=True, status=422)
    except InvalidInput as error:
        return _form_page(request, entry, _with_error(form, error), copying=True, status=422)
    except Conflict as error:
        taken = ModelForm(form.name, form.text, sentence(str(error)), "name")
        return _form_page(request, entry, taken, copying=True, status=409)
    return RedirectResponse(address_of(made), status_code=303)


@router.get("/models/{model}/edit")
def edit_page(request: Request, ctx: Ctx, model: Name) -> Response:
    """The editor of an own model; a shipped one stays as it is, so that its copy is offered instead."""
    entry = catalogue.get_model(ctx, model)
    if entry.model.shipped:
        return RedirectResponse(f"{address_of(entry)}/copy", status_code=303)
    return _form_page(request, entry, _shown(entry, name=entry.name), copying=False)


@router.post("/models/{model}/edit")
def edit(request: Request, ctx: Ctx, model: Name, texts: FormTexts) -> Response:
    """Store a new version unless somebody else stored one since the editor was opened."""
    entry = catalogue.get_model(ctx, model)
    form = _typed(texts)
    revision = texts.get("revision", "")
    try:
        data = _parsed(form)
        if not (revision.isascii() and revision.isdigit() and len(revision) < 10):
            raise _Refused(ModelForm(form.name, form.text, "The form lost its revision: save again.", "json"))
        whole = {**data, "name": form.name, "revision": int(revision), "copied_from": entry.model.copied_from}
        saved = catalogue.save_model(ctx, whole, id_=entry.id)
    except _Refused as error:
        return _form_page(request, entry, error.form, copying=False, status=422)
    except InvalidInput as error:
        return _form_page(request, entry, _with_error(form, error), copying=False, status=422, revision=revision)
    except Conflict:
        if entry.model.shipped:
            raise
        current = catalogue.get_model(ctx, entry.id)
        stored = _shown(current, name=current.name)
        return _form_page(request, current, form, copying=False, status=409, stored=stored)
    return RedirectResponse(address_of(saved), status_code=303)


@router.post("/models/{model}/delete")
def delete(request: Request, ctx: Ctx, model: Name) -> Response:
    """Delete an own model; while runs are linked to it the page says so instead."""
    try:
        catalogue.delete_model(ctx, model)
    except Conflict as error:
        entry = catalogue.get_model(ctx, model)
        return _sheet(request, ctx, entry, problem=sentence(str(error)), status=409)
    return RedirectResponse("/models", status_code=303)


class _Refused(Exception):
    """The editor's text is no JSON object."""

    def __init__(self, form: ModelForm) -> None:
        self.form = form
        super().__init__(form.error)


_NOT_EDITED = ("id", "name", "copied_from")
_DERIVED = ("computed_total_params", "computed_active_params", "computed_breakdown")


def _shown(entry: ModelEntry, *, name: str) -> ModelForm:
    """The editor filled with a model. Totals that follow from the layers are left out, since an edit changes them."""
    sizes = catalogue.model_sizes(entry.model)
    hidden = {*_NOT_EDITED, *(_DERIVED if sizes.parameters is not None and sizes.parameters.counted else ())}
    data = {key: value for key, value in model_to_json(entry.model).items() if key not in hidden}
    if entry.model.shipped:
        data.pop("aliases", None)
    return ModelForm(name, json.dumps(data, indent=2, ensure_ascii=False))


def _typed(texts: Mapping[str, str]) -> ModelForm:
    return ModelForm(texts.get("name", "").strip()[:1000], texts.get("json", "").replace("\r\n", "\n"))


def _parsed(form: ModelForm) -> dict[str, Any]:
    """The editor's text as an object. Raises _Refused with what is wrong and where."""

    def refuse(message: str) -> _Refused:
        return _Refused(ModelForm(form.name, form.text, message, "json"))

    if not form.name:
        raise _Refused(ModelForm(form.name, form.text, "Give the model a name.", "name"))
    if len(form.text) > MAX_JSON_TEXT:
        raise refuse(f"The text is {len(form.text):,} characters long: at most {MAX_JSON_TEXT:,}.")
    try:
        check_json(form.text.encode("utf-8", "surrogatepass"))
    except NotStrictJson as error:
        raise refuse(sentence(str(error).replace("The body", "The text"))) from None
    data = json.loads(form.text)
    if not isinstance(data, dict):
        raise refuse('Write one object, in braces: {"hidden_size": 4096, ...}.')
    data.pop("id", None)  # the id is the address, which does not change
    data.pop("name", None)
    return data


def _with_error(form: ModelForm, error: InvalidInput) -> ModelForm:
    if error.loc and error.loc[0] == "name":
        return ModelForm(form.name, form.text, sentence(error.reason), "name")
    return ModelForm(form.name, form.text, str(error) + ("" if str(error).endswith((".", "?")) else "."), "json")


def _form_page(
    request: Request,
    entry: ModelEntry,
    form: ModelForm,
    *,
    copying: bool,
    status: int = 200,
    revision: str = "",
    stored: ModelForm | None = None,
) -> HTMLResponse:
    context = {
        "entry": entry,
        "form": form,
        "copying": copying,
        "revision": revision or entry.revision or "",
        "stored": stored,
        "address": address_of(entry),
    }
    return rendering.page(request, "model_edit.html", context, status)


@router.get("/models/{model:path}")
def repository_page(request: Request, ctx: Ctx, model: Name) -> Response:
    """A name with slashes, as repositories have; behind every page of one model, since it would take them all."""
    return model_page(request, ctx, model)
