"""Pages of the hardware catalogue: the list, one device with the source of every figure, and a team's own profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.catalog.codec import PEAK_PRECISIONS
from app.catalog.names import AmbiguousName
from app.charts.ceilings import ceilings_chart
from app.domain.errors import InvalidInput
from app.services import catalogue, hardware_pages, listing
from app.services.catalogue import HardwareEntry, ModelEntry
from app.services.context import Context
from app.services.hardware_pages import HardwareQuery
from app.services.what_if import WhatIf, opening
from app.storage.errors import Conflict
from app.web import rendering
from app.web.deps import Ctx
from app.web.formatting import Scale
from app.web.forms import FormErrors, FormTexts, sentence
from app.web.hardware_form import GROUPS, HardwareForm, differences, read_form, shown_form
from app.web.routes.explore import explore_address

Entry = TypeVar("Entry", HardwareEntry, ModelEntry)

router = APIRouter(include_in_schema=False)

Name = Annotated[str, Path(max_length=200)]
Text = Annotated[str, Query(max_length=200)]

COLUMNS: tuple[dict[str, Any], ...] = (
    {"key": "name", "label": "Device", "numeric": False},
    {"key": "memory", "label": "Memory", "unit_text": "GB", "numeric": True},
    {"key": "bandwidth", "label": "Bandwidth", "unit_text": "TB/s", "numeric": True},
    {"key": "half", "label": "16-bit peak", "unit_text": "TFLOP/s", "numeric": True, "title": "Dense bf16, or fp16"},
    {"key": "achievable", "label": "Achieved", "unit_text": "TFLOP/s", "numeric": True, "title": "Of that, measured"},
    {"key": "fp8", "label": "fp8 peak", "unit_text": "TFLOP/s", "numeric": True, "title": "Dense"},
    {"key": "ridge", "label": "Ridge", "unit_text": "FLOP/B", "numeric": True, "title": "16-bit peak over bandwidth"},
    {"key": "link", "label": "Scale-up", "unit_text": "GB/s", "numeric": True, "title": "One way, one device"},
    {"key": "power", "label": "Power", "unit_text": "W", "numeric": True},
    {"key": "year", "label": "Year", "numeric": True},
)

SCALES: Mapping[str, Scale] = {
    "memory": Scale("B", "GB", 1e9),
    "bandwidth": Scale("B/s", "TB/s", 1e12, padded=True),
    "half": Scale("FLOP/s", "TFLOP/s", 1e12),
    "fp8": Scale("FLOP/s", "TFLOP/s", 1e12),
    "ridge": Scale("FLOP/B", "FLOP/B", 1.0),
    "link": Scale("B/s", "GB/s", 1e9),
    "power": Scale("W", "W", 1.0),
}
"""Units of the list's columns: those that vendors print, whatever a device's size."""


# ---- list -----------------------------------------------------------------------------------------------------------


@router.get("/hardware")
def hardware_list(
    request: Request,
    ctx: Ctx,
    q: Text = "",
    vendor: Text = "",
    kind: Text = "",
    precision: Text = "",
    sort: Text = "",
) -> HTMLResponse:
    query = HardwareQuery(q=q.strip(), vendor=vendor, kind=kind, precision=precision, sort=sort)
    found = hardware_pages.browse_hardware(ctx, query)
    filters = {"q": query.q, "vendor": vendor, "kind": kind, "precision": precision}
    context = {
        "query": query,
        "found": found,
        "columns": [column | heading_of("/hardware", filters, sort, column) for column in COLUMNS],
        "class_labels": hardware_pages.CLASS_LABELS,
        "scales": SCALES,
        "choices": {
            "vendor": offered("Any vendor", found.vendors, vendor),
            "kind": offered("Any class", found.kinds, kind),
            "precision": offered("Any", [(name, name) for name in PEAK_PRECISIONS], precision),
        },
    }
    address = rendering.query("/hardware", **filters, sort=sort)
    return rendering.page(
        request, "hardware_list.html", context, part="hardware_list.html", headers={"HX-Replace-Url": address}
    )


def heading_of(base: str, filters: Mapping[str, str], sort: str, column: Mapping[str, Any]) -> dict[str, str]:
    """Where a column's heading leads, and how the list is sorted by it now."""
    key = column["key"]
    return {
        "url": rendering.query(base, **filters, sort=listing.next_sort(sort, key, numeric=column["numeric"])),
        "order": listing.order_of(sort, key),
    }


def offered(everything: str, options: Any, chosen: str) -> list[tuple[str, str]]:
    """Options of a filter's select; what the address asks for is among them even when nothing has it."""
    listed = [("", everything), *options]
    known = {value.casefold() for value, _ in listed}
    return listed if chosen.casefold() in known else [*listed, (chosen, f"{chosen} (0)")]


# ---- one device -----------------------------------------------------------------------------------------------------


@router.get("/hardware/{hardware}")
def hardware_page(request: Request, ctx: Ctx, hardware: Name) -> Response:
    """The device with this id; another name of it leads there, a name of several to the list of them."""
    try:
        entry = catalogue.get_hardware(ctx, hardware)
    except AmbiguousName:
        return RedirectResponse(rendering.query("/hardware", q=hardware), status_code=303)
    if entry.id != hardware:
        return RedirectResponse(address_of(entry), status_code=303)
    return _sheet(request, ctx, entry)


def _sheet(request: Request, ctx: Context, entry: HardwareEntry, problem: str = "", status: int = 200) -> HTMLResponse:
    sheet = hardware_pages.hardware_sheet(ctx, entry)
    context = {
        "sheet": sheet,
        "entry": entry,
        "profile": entry.profile,
        "address": address_of(entry),
        "explore_url": explore_address(opening(ctx, WhatIf(hardware=entry.id))),
        "api_url": f"/api/v1{address_of(entry)}",
        "runs_url": rendering.query("/runs", hardware=entry.id),
        "origin": origin_of(entry.profile.copied_from, partial(catalogue.get_hardware, ctx), address_of),
        "chart": ceilings_chart(entry.profile),
        "problem": problem,
    }
    return rendering.page(request, "hardware.html", context, status)


def origin_of(
    source: str | None, get: Callable[[str], Entry], address: Callable[[Entry], str]
) -> tuple[str, str] | None:
    """(name, address) of what an entry was copied from; without an address where that is gone."""
    if source is None:
        return None
    try:
        original = get(source)
    except LookupError:
        return source, ""
    return original.name, address(original)


def address_of(entry: HardwareEntry) -> str:
    """Address of a device's page."""
    return f"/hardware/{quote(entry.id, safe='')}"


# ---- a team's own profiles ------------------------------------------------------------------------------------------


@router.get("/hardware/{hardware}/copy")
def copy_page(request: Request, ctx: Ctx, hardware: Name) -> Response:
    entry = catalogue.get_hardware(ctx, hardware)
    return _form_page(request, entry, shown_form(_copy_base(entry)), copying=True)


@router.post("/hardware/{hardware}/copy")
def copy(request: Request, ctx: Ctx, hardware: Name, texts: FormTexts) -> Response:
    """Store a copy with what was changed; what cannot be stored comes back as it was typed."""
    entry = catalogue.get_hardware(ctx, hardware)
    form = read_form(texts, _copy_base(entry))
    if form.errors:
        return _form_page(request, entry, form, copying=True, status=422)
    try:
        made = catalogue.copy_hardware(ctx, entry.id, name=form.data["name"], data=form.data)
    except InvalidInput as error:
        return _form_page(request, entry, form.with_error(error), copying=True, status=422)
    except Conflict as error:
        taken = HardwareForm(form.typed, FormErrors({"name": sentence(str(error))}), form.data)
        return _form_page(request, entry, taken, copying=True, status=409)
    return RedirectResponse(address_of(made), status_code=303)


@router.get("/hardware/{hardware}/edit")
def edit_page(request: Request, ctx: Ctx, hardware: Name) -> Response:
    """The form of an own profile; a shipped one stays as it is, so that its copy is offered instead."""
    entry = catalogue.get_hardware(ctx, hardware)
    if entry.profile.shipped:
        return RedirectResponse(f"{address_of(entry)}/copy", status_code=303)
    return _form_page(request, entry, shown_form(entry.profile), copying=False)


@router.post("/hardware/{hardware}/edit")
def edit(request: Request, ctx: Ctx, hardware: Name, texts: FormTexts) -> Response:
    """Store a new version unless somebody else stored one since the form was opened."""
    entry = catalogue.get_hardware(ctx, hardware)
    form = read_form(texts, entry.profile)
    revision = texts.get("revision", "")
    if not (revision.isascii() and revision.isdigit() and len(revision) < 10):
        lost = FormErrors(form.errors.by_field, (*form.errors.general, "The form lost its revision: save again."))
        form = HardwareForm(form.typed, lost, form.data)
    if form.errors:
        return _form_page(request, entry, form, copying=False, status=422, revision=revision)
    try:
        saved = catalogue.save_hardware(ctx, {**form.data, "revision": int(revision)}, id_=entry.id)
    except InvalidInput as error:
        return _form_page(request, entry, form.with_error(error), copying=False, status=422, revision=revision)
    except Conflict:
        if entry.profile.shipped:
            raise
        current = catalogue.get_hardware(ctx, entry.id)
        return _form_page(request, current, form, copying=False, status=409, changed=differences(current.profile, form))
    return RedirectResponse(address_of(saved), status_code=303)


@router.post("/hardware/{hardware}/delete")
def delete(request: Request, ctx: Ctx, hardware: Name) -> Response:
    """Delete an own profile; while runs are linked to it the page says so instead."""
    try:
        catalogue.delete_hardware(ctx, hardware)
    except Conflict as error:
        entry = catalogue.get_hardware(ctx, hardware)
        return _sheet(request, ctx, entry, problem=sentence(str(error)), status=409)
    return RedirectResponse("/hardware", status_code=303)


def _copy_base(entry: HardwareEntry) -> Any:
    """What a copy starts from: the profile without its names."""
    return entry.profile.renamed(entry.id, f"Copy of {entry.name}"[:200])


def _form_page(
    request: Request,
    entry: HardwareEntry,
    form: HardwareForm,
    *,
    copying: bool,
    status: int = 200,
    revision: str = "",
    changed: list[tuple[str, str, str]] | None = None,
) -> HTMLResponse:
    context = {
        "entry": entry,
        "form": form,
        "groups": GROUPS,
        "copying": copying,
        "revision": revision or entry.revision or "",
        "changed": changed,
        "address": address_of(entry),
    }
    return rendering.page(request, "hardware_edit.html", context, status)
