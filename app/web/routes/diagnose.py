"""Pages of the diagnosis: choose a tree, walk it, save it, share it, and see whether a later walk moved."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.domain.errors import InvalidInput
from app.services import diagnose, diagnose_json, diagnose_trees, diagnoses, run_list, runs, share
from app.services.context import Context
from app.services.run_list import RunQuery
from app.services.share import ShareRequest
from app.storage.errors import NotFound
from app.storage.records import StoredDiagnosis
from app.web import rendering, share_links
from app.web.deps import Ctx
from app.web.diagnose_form import MAX_ADDRESS, DiagnoseForm, form_of, read_form
from app.web.diagnose_view import told, view
from app.web.forms import FormTexts, sentence

router = APIRouter(include_in_schema=False)

DiagnosisId = Annotated[str, Path(max_length=80)]
PAGE = 50
OFFERED_RUNS = 20
RECENT = 5


@router.get("/diagnose")
def walk_page(request: Request, ctx: Ctx) -> Response:
    """The picker without a scenario, else the walk. The state is the address; what a form adds is taken into it."""
    values = request.query_params
    form = read_form(ctx.catalog.trees, values)
    adds = ["answer", "metric", *(key for key in values if key.startswith("value."))]
    if any(values.get(key) for key in adds) and not form.errors and len(form.address()) <= MAX_ADDRESS:
        return RedirectResponse(f"{form.address()}#now", status_code=303)
    return _walk_page(request, ctx, form)


def _walk_page(request: Request, ctx: Context, form: DiagnoseForm, status: int = 200) -> Response:
    if not form.scenario:
        return _picker(request, ctx, form, 422 if form.errors else status)
    problems = list(form.errors.values())
    try:
        found = diagnose_json.diagnosis_json(ctx, diagnose.diagnose(ctx, form.request(ctx)))
    except (ValidationError, InvalidInput) as error:
        return _picker(request, ctx, form, 422, [*problems, _words(error)])
    known = {item["name"] for item in found["evidence"] if item["kind"] in ("user", "measured") and not item["limit"]}
    context = {
        **view(ctx.catalog.trees, found),
        "form": form,
        "problems": problems,
        "live": True,
        "shared": False,
        "metrics": sorted(
            ((m.name, m.label) for m in ctx.catalog.trees.metrics.values() if m.name not in known),
            key=lambda pair: pair[1],
        ),
        "earlier": _earlier(ctx, form),
    }
    return rendering.page(request, "diagnose.html", context, 422 if problems else status)


def _words(error: ValidationError | InvalidInput) -> str:
    if isinstance(error, InvalidInput):
        place = ".".join(str(part) for part in error.loc)
        return sentence(f"{place}: {error.reason}" if place else error.reason)
    first = error.errors()[0]
    return sentence(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")


def _earlier(ctx: Context, form: DiagnoseForm) -> tuple[Any, ...]:
    """The newest saved walks of the same scenario."""
    return diagnoses.list_diagnoses(ctx, scenario=form.scenario, limit=RECENT).items


def _picker(
    request: Request, ctx: Context, form: DiagnoseForm, status: int = 200, problems: list[str] | None = None
) -> HTMLResponse:
    text = request.query_params.get("q", "")[:200]
    saved = diagnoses.list_diagnoses(ctx, text=text, limit=PAGE)
    chosen = next((one for one in _offered(ctx) if one["id"] == form.run), None)
    if form.run and chosen is None:
        chosen = _named(ctx, form.run)
    return rendering.page(
        request,
        "diagnose_start.html",
        {
            "form": form,
            "problems": [*form.errors.values()] if problems is None else problems,
            "scenarios": diagnose_trees.ordered(ctx.catalog.trees),
            "symptoms": diagnose_trees.symptoms_json(ctx),
            "offered": _offered(ctx),
            "chosen": chosen,
            "saved": saved,
            "titles": {tree.id: tree.title for tree in ctx.catalog.trees.scenarios.values()},
            "q": text,
        },
        status,
    )


def _offered(ctx: Context) -> list[dict[str, Any]]:
    items = run_list.list_runs(ctx, RunQuery(), limit=OFFERED_RUNS).items
    return [
        {"id": item.run.id, "name": item.run.name, "note": item.model_name or item.run.model_hint or ""}
        for item in items
    ]


def _named(ctx: Context, run: str) -> dict[str, Any] | None:
    try:
        view_ = runs.get_view(ctx, run)
    except NotFound:
        return None
    return {"id": view_.run.id, "name": view_.run.name, "note": ""}


# ---- saved --------------------------------------------------------------------------------------------------------


@router.post("/diagnose")
async def save(request: Request, ctx: Ctx) -> Response:
    """Freeze the walk, then 303 to it."""
    form = read_form(ctx.catalog.trees, await request.form(max_files=0))
    return await run_in_threadpool(_save, request, ctx, form)


def _save(request: Request, ctx: Context, form: DiagnoseForm) -> Response:
    if not form.scenario or form.errors:
        return _walk_page(request, ctx, form, 422)
    try:
        stored = diagnoses.create_diagnosis(ctx, form.request(ctx))
    except (ValidationError, InvalidInput) as error:
        return _walk_page(request, ctx, _refused(form, error), 422)
    return RedirectResponse(f"/diagnose/{stored.id}", status_code=303)


def _refused(form: DiagnoseForm, error: ValidationError | InvalidInput) -> DiagnoseForm:
    return DiagnoseForm(
        scenario=form.scenario,
        run=form.run,
        lab=form.lab,
        answers=form.answers,
        evidence=form.evidence,
        title=form.title,
        notes=form.notes,
        errors={"title": _words(error)},
    )


@router.get("/diagnose/{diagnosis_id}")
def saved_page(request: Request, ctx: Ctx, diagnosis_id: DiagnosisId) -> HTMLResponse:
    stored = diagnoses.get_diagnosis(ctx, diagnosis_id)
    return rendering.page(request, "diagnosis.html", _saved_context(ctx, stored))


def _saved_context(ctx: Context, stored: StoredDiagnosis) -> dict[str, Any]:
    others = diagnoses.list_diagnoses(ctx, scenario=stored.scenario, limit=PAGE).items
    return {
        **view(ctx.catalog.trees, stored.snapshot),
        **_share_context(ctx, stored),
        "diagnosis": stored,
        "form": form_of(ctx, stored.snapshot),
        "others": [one for one in others if one.id != stored.id],
        "run_exists": stored.run_id is not None and _named(ctx, stored.run_id) is not None,
        "live": False,
        "shared": False,
    }


def _share_context(ctx: Context, stored: StoredDiagnosis) -> dict[str, Any]:
    return share_links.panel(f"/diagnose/{stored.id}", share.list_diagnosis_shares(ctx, stored.id))


@router.get("/diagnose/{diagnosis_id}/moved")
def moved_page(
    request: Request, ctx: Ctx, diagnosis_id: DiagnosisId, since: Annotated[str, Query(max_length=80)] = ""
) -> HTMLResponse:
    """This walk beside an earlier one."""
    after = diagnoses.get_diagnosis(ctx, diagnosis_id)
    before = diagnoses.get_diagnosis(ctx, since)
    if before.created_at > after.created_at:
        before, after = after, before
    try:
        moved = diagnoses.moved_json(ctx, before, after)
    except InvalidInput as error:
        return rendering.error(request, 422, "These walks cannot be compared", _words(error))
    return rendering.page(
        request, "diagnosis_moved.html", {"moved": moved, "before": before, "after": after, "told": told}
    )


@router.post("/diagnose/{diagnosis_id}/delete")
def delete(ctx: Ctx, diagnosis_id: DiagnosisId) -> Response:
    diagnoses.delete_diagnosis(ctx, diagnosis_id)
    return RedirectResponse("/diagnose", status_code=303)


@router.post("/diagnose/{diagnosis_id}/shares")
def create_link(request: Request, ctx: Ctx, diagnosis_id: DiagnosisId, texts: FormTexts) -> Response:
    """The page with the new link in it: its token can be shown this once and is in no address of ours."""
    stored = diagnoses.get_diagnosis(ctx, diagnosis_id)
    asked = ShareRequest(expires_in_s=share_links.lifetime(texts))
    token, record = share.create_share_for(ctx, "diagnosis", diagnosis_id, asked)
    address = share_links.reader_address(request, ctx, token)
    return share_links.made(request, "diagnosis.html", _saved_context(ctx, stored), address, record)


@router.post("/diagnose/{diagnosis_id}/shares/{share_id}/revoke")
def revoke_link(
    request: Request, ctx: Ctx, diagnosis_id: DiagnosisId, share_id: Annotated[str, Path(max_length=80)]
) -> Response:
    stored = diagnoses.get_diagnosis(ctx, diagnosis_id)
    share_links.revoke(ctx, share_id, share.list_diagnosis_shares(ctx, diagnosis_id))
    return share_links.revoked(request, _share_context(ctx, stored))
