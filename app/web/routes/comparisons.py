"""Pages of comparisons: the list, the form that builds one with a live preview, one of them, and its links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.catalog.names import AmbiguousName, UnknownName
from app.domain.errors import InvalidInput
from app.services import compare, share
from app.services.compare import MAX_ITEMS, MAX_LABEL, MAX_NOTES, MAX_TITLE, ComparisonRequest
from app.services.compare_communication import CALLS
from app.services.compare_pages import PAGES
from app.services.context import Context
from app.services.run_list import RunQuery, list_runs
from app.services.share import ShareRequest
from app.storage.errors import NotFound
from app.storage.records import StoredComparison
from app.web import rendering, share_links
from app.web.comparison_form import MAX_ADDRESS, BuiltItem, ComparisonForm, edited, read_form
from app.web.comparison_view import BOOK_WORDS, download, view
from app.web.deps import Ctx
from app.web.forms import FormTexts

router = APIRouter(include_in_schema=False)

ComparisonId = Annotated[str, Path(max_length=80)]
PAGE = 50
OFFERED_RUNS = 30


# ---- list -----------------------------------------------------------------------------------------------------------


@router.get("/comparisons")
def comparison_list(
    request: Request,
    ctx: Ctx,
    q: Annotated[str, Query(max_length=200)] = "",
    sort: Annotated[str, Query(max_length=40)] = "-created_at",
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> HTMLResponse:
    page = compare.list_comparisons(ctx, text=q, sort=sort, limit=PAGE, cursor=cursor)
    following = rendering.query("/comparisons", q=q, sort=sort if sort != "-created_at" else None, cursor=page.next)
    return rendering.page(
        request,
        "comparisons.html",
        {"page": page, "q": q, "sort": sort, "next_url": following if page.next else "", "cursor": cursor},
    )


# ---- building -------------------------------------------------------------------------------------------------------


@router.get("/comparisons/new")
def new_comparison(request: Request, ctx: Ctx) -> Response:
    """The form. Its whole state is the address; a button's action becomes an address without it."""
    values = request.query_params
    form = read_form(values)
    action = values.get("action", "")
    if action or "item" in values or "run" in values:
        form = edited(form, action, [one for one in values.getlist("add") if one])
        if len(form.address) <= MAX_ADDRESS and not form.errors:
            return RedirectResponse(form.address, status_code=303)
    return _form_page(request, ctx, form)


@router.post("/comparisons/preview")
async def preview(request: Request, ctx: Ctx) -> Response:
    """The table that these rows would give, for htmx while somebody types."""
    form = read_form(await request.form(max_files=0))
    return await run_in_threadpool(_preview, request, ctx, form)


@router.post("/comparisons")
async def create(request: Request, ctx: Ctx) -> Response:
    """Freeze, then 303 to the comparison; a form that cannot be used comes back as typed."""
    form = read_form(await request.form(max_files=0))
    return await run_in_threadpool(_create, request, ctx, form)


@router.get("/comparisons/new/runs")
def offered_runs(request: Request, ctx: Ctx, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Runs to choose from, for htmx while somebody searches."""
    return rendering.fragment(request, "comparison_runs.html", {"offered": _offered(ctx, q), "search": q})


def _create(request: Request, ctx: Context, form: ComparisonForm) -> Response:
    if form.errors:
        return _form_page(request, ctx, form, 422)
    try:
        stored = compare.create_comparison(ctx, form.request())
    except (ValidationError, InvalidInput) as error:
        return _form_page(request, ctx, form.refused(error), 422)
    return RedirectResponse(f"/comparisons/{stored.id}", status_code=303)


def _preview(request: Request, ctx: Context, form: ComparisonForm) -> Response:
    context = _preview_context(ctx, form)
    return rendering.fragment(request, "comparison_preview.html", context, 422 if context["problems"] else 200)


def _preview_context(ctx: Context, form: ComparisonForm) -> dict[str, Any]:
    """The body of the comparison that the form would freeze, or what is wrong with its items."""
    found: dict[str, Any] = {"form": form, "problems": [], "body": None}
    if not form.items:
        return found
    try:
        # the title is not needed for the table
        request: ComparisonRequest = replace(form, notes="").request(title="preview")
        found["body"] = view(compare.preview(ctx, request.items, request.baseline), request.baseline)
    except (ValidationError, InvalidInput) as error:
        found["problems"] = [message for where, message in form.refused(error).errors if where != "title"]
    return found


@dataclass(frozen=True, slots=True)
class _ShownItem:
    """A row of the form as it is shown: what it is, and the name that it has without a label."""

    item: BuiltItem
    name: str
    note: str


def _form_page(request: Request, ctx: Context, form: ComparisonForm, status: int = 200) -> HTMLResponse:
    context = _preview_context(ctx, form)
    return rendering.page(
        request,
        "comparison_new.html",
        {
            **context,
            "shown": [_shown(ctx, item) for item in form.items],
            "offered": _offered(ctx, form.search),
            "search": form.search,
            "books": list(BOOK_WORDS.items()),
            "limits": {"title": MAX_TITLE, "label": MAX_LABEL, "notes": MAX_NOTES, "items": MAX_ITEMS},
        },
        status,
    )


def _shown(ctx: Context, item: BuiltItem) -> _ShownItem:
    if item.kind == "run":
        try:
            summary = compare.run_summary(ctx, item.run)
        except NotFound:
            return _ShownItem(item, item.label or item.run[:80], "This run does not exist (any more): remove it.")
        return _ShownItem(item, summary.name, f"run, {summary.format}")
    request = item.request
    if item.question:
        what = CALLS.get(item.question) or f"{PAGES[item.question]}, {_name(ctx, request, 'model')}"
        on = f" on {_name(ctx, request, 'hardware')}" if "hardware" in request else ""
        return _ShownItem(item, f"{what}{on}", "estimate")
    op = request.get("op")
    if isinstance(op, dict):
        what = str(op.get("kind") or op.get("op") or "operation")[:40].replace("_", "-")
        return _ShownItem(item, f"{what} on {_name(ctx, request, 'hardware')}", "estimate")
    workload = request.get("workload") if isinstance(request.get("workload"), dict) else {}
    phase = str((workload or {}).get("phase", "decode"))[:40]
    return _ShownItem(item, f"{phase}, {_name(ctx, request, 'model')} on {_name(ctx, request, 'hardware')}", "estimate")


def _name(ctx: Context, request: Any, what: Literal["model", "hardware"]) -> str:
    reference = request.get(what)
    if isinstance(reference, dict):
        return str(reference.get("name", f"its own {what}"))[:200]
    try:
        resolve = ctx.catalog.resolve_model if what == "model" else ctx.catalog.resolve_hardware
        return str(resolve(str(reference)).name)
    except (UnknownName, AmbiguousName):
        return str(reference)[:200]


def _offered(ctx: Context, q: str) -> list[Any]:
    return list(list_runs(ctx, RunQuery(q=q or None), limit=OFFERED_RUNS).items)


# ---- one comparison -------------------------------------------------------------------------------------------------


@router.get("/comparisons/{comparison_id}")
def comparison(
    request: Request, ctx: Ctx, comparison_id: ComparisonId, metric: Annotated[str, Query(max_length=80)] = ""
) -> HTMLResponse:
    stored = compare.get_comparison(ctx, comparison_id)
    context = _page_context(ctx, stored, metric)
    return rendering.page(request, "comparison.html", context, part="comparison_chart.html")


@router.get("/comparisons/{comparison_id}/export")
def export(
    ctx: Ctx, comparison_id: ComparisonId, format: Annotated[Literal["csv", "json", "html"], Query()] = "html"
) -> Response:
    return download(compare.get_comparison(ctx, comparison_id), format)


@router.post("/comparisons/{comparison_id}/delete")
def delete(ctx: Ctx, comparison_id: ComparisonId) -> Response:
    compare.delete_comparison(ctx, comparison_id)
    return RedirectResponse("/comparisons", status_code=303)


@router.post("/comparisons/{comparison_id}/shares")
def create_link(request: Request, ctx: Ctx, comparison_id: ComparisonId, texts: FormTexts) -> Response:
    """The page with the new link in it: its token can be shown this once and is in no address of ours."""
    stored = compare.get_comparison(ctx, comparison_id)
    asked = ShareRequest(expires_in_s=share_links.lifetime(texts))
    token, record = share.create_share(ctx, comparison_id, asked)
    address = share_links.reader_address(request, ctx, token)
    return share_links.made(request, "comparison.html", _page_context(ctx, stored, ""), address, record)


@router.post("/comparisons/{comparison_id}/shares/{share_id}/revoke")
def revoke_link(
    request: Request, ctx: Ctx, comparison_id: ComparisonId, share_id: Annotated[str, Path(max_length=80)]
) -> Response:
    stored = compare.get_comparison(ctx, comparison_id)
    share_links.revoke(ctx, share_id, share.list_shares(ctx, comparison_id))
    return share_links.revoked(request, _share_context(ctx, stored))


def _page_context(ctx: Context, stored: StoredComparison, metric: str) -> dict[str, Any]:
    return {
        **view(stored.snapshot, stored.baseline, metric),
        **_share_context(ctx, stored),
        "comparison": stored,
        "address": f"/comparisons/{stored.id}",
        "linked_runs": compare.existing_runs(ctx, stored.snapshot),
        "shared": False,
    }


def _share_context(ctx: Context, stored: StoredComparison) -> dict[str, Any]:
    return share_links.panel(f"/comparisons/{stored.id}", share.list_shares(ctx, stored.id))
