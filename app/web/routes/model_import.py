"""The page that takes a Hugging Face `config.json`: pasted or as a file, shown as it was understood, then stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import UploadFile

from app.catalog.hf import known_families, read_config_text
from app.catalog.hf.text import MAX_BYTES
from app.domain.errors import InvalidInput
from app.services import catalogue, model_pages
from app.services.catalogue import ModelEntry
from app.services.context import Context
from app.services.references import parse_model
from app.services.what_if import WhatIf, opening
from app.storage.errors import Conflict
from app.web import rendering
from app.web.deps import Ctx
from app.web.forms import sentence
from app.web.routes.explore import explore_address

router = APIRouter(include_in_schema=False)

MAX_NAME = 200
_PREVIEW = "/models/new/preview"


@dataclass(frozen=True, slots=True)
class ImportForm:
    """What was typed. `text` is what was pasted, or the file's content. `errors` are messages by field."""

    name: str = ""
    text: str | bytes = ""
    explore: bool = False
    name_error: str = ""
    config_error: str = ""

    @property
    def shown(self) -> str:
        """The text for the box; bytes that are no text are left out of it."""
        if isinstance(self.text, str):
            return self.text
        try:
            return self.text.decode("utf-8-sig") if len(self.text) <= MAX_BYTES else ""
        except UnicodeDecodeError:
            return ""


async def import_form(request: Request) -> ImportForm:
    """The posted form; a file that was chosen goes before what was pasted."""
    async with request.form(max_files=2, max_fields=20, max_part_size=MAX_BYTES + 1) as form:
        name, text, then = form.get("name"), form.get("config"), form.get("then")
        found: str | bytes = text.replace("\r\n", "\n") if isinstance(text, str) else ""
        for item in (form.get("file"), text):
            if isinstance(item, UploadFile) and (item.filename or item.size):
                found = await item.read(MAX_BYTES + 1)
        return ImportForm(name.strip() if isinstance(name, str) else "", found, then == "explore")


Posted = Annotated[ImportForm, Depends(import_form)]


@router.get("/models/new")
def new_model(request: Request, ctx: Ctx) -> HTMLResponse:
    return _page(request, ctx, ImportForm())


@router.post(_PREVIEW)
def preview(request: Request, ctx: Ctx, form: Posted) -> HTMLResponse:
    """What was understood of the text, or what is wrong with it; nothing is stored."""
    form, entry = _understood(form)
    status = 422 if form.config_error or form.name_error else 200
    if rendering.wants_fragment(request):
        return rendering.fragment(request, "model_preview.html", _context(ctx, form, entry), status)
    return _page(request, ctx, form, entry, status)


@router.get(_PREVIEW)
def preview_address() -> Response:
    """The address of a preview, opened again, is the empty form: what was pasted is not in an address."""
    return RedirectResponse("/models/new", status_code=303)


@router.post("/models/new")
def store(request: Request, ctx: Ctx, form: Posted) -> Response:
    """Store the model and go to its page, or to the lab with it."""
    form, entry = _understood(form, name_needed=True)
    if entry is None or form.name_error:
        return _page(request, ctx, form, entry, 422)
    try:
        saved = catalogue.save_model(ctx, {"name": form.name, "hf_config": read_config_text(form.text)})
    except InvalidInput as error:
        return _page(request, ctx, _with_error(form, error), entry, 422)
    except Conflict as error:
        return _page(request, ctx, replace(form, name_error=sentence(str(error))), entry, 409)
    if form.explore and saved.model.supported:
        return RedirectResponse(_explore_url(ctx, saved), status_code=303)
    return RedirectResponse(f"/models/{quote(saved.id, safe='')}", status_code=303)


def _understood(form: ImportForm, *, name_needed: bool = False) -> tuple[ImportForm, ModelEntry | None]:
    """The form with its messages, and the model that its text describes."""
    if len(form.name) > MAX_NAME:
        form = replace(form, name=form.name[:1000], name_error=f"At most {MAX_NAME} characters.")
    elif name_needed and not form.name:
        form = replace(form, name_error="Give the model a name: it also makes its address.")
    wanted = {} if form.name_error or not form.name else {"name": form.name}
    try:
        parsed = parse_model({"hf_config": read_config_text(form.text), **wanted})
    except InvalidInput as error:
        return _with_error(form, error), None
    return form, ModelEntry(parsed.model, assumptions=tuple(parsed.assumptions))


def _with_error(form: ImportForm, error: InvalidInput) -> ImportForm:
    if error.loc[:1] in (("name",), ("id",)):
        return replace(form, name_error=sentence(error.reason))
    path = ".".join(str(part) for part in error.loc[1:])
    return replace(form, config_error=sentence(f"{path}: {error.reason}" if path else f"The text {error.reason}"))


def _explore_url(ctx: Context, entry: ModelEntry) -> str:
    """The lab with this model, in a question that suits it.

    The precision of a quantised checkpoint is only offered on the model's page: whether a device can run it is another
    question.
    """
    return explore_address(opening(ctx, WhatIf(model=entry.id)))


def _context(ctx: Context, form: ImportForm, entry: ModelEntry | None) -> dict[str, Any]:
    return {
        "form": form,
        "entry": entry,
        "sheet": None if entry is None else model_pages.model_sheet(ctx, entry),
        "stored_as": None if entry is None else entry.model.record["hf_import"].get("stored_as"),
        "families": known_families(),
    }


def _page(
    request: Request, ctx: Context, form: ImportForm, entry: ModelEntry | None = None, status: int = 200
) -> HTMLResponse:
    context = _context(ctx, form, entry) | {"example": json.dumps(_EXAMPLE, indent=2), "preview_url": _PREVIEW}
    return rendering.page(request, "model_new.html", context, status)


_EXAMPLE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
"""What the empty box shows: the fields that a Llama needs."""
