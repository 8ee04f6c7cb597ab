"""Pages of a team's own tables: the step that explains columns, files that wait for it, and what is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from app.domain.errors import InvalidInput
from app.domain.run import METRIC_UNITS, STATS
from app.importers.base import UnreadableUpload
from app.importers.table import MAX_COLUMNS, UNITS, TableColumn, TableView, Use
from app.services import tables
from app.services.context import Context
from app.services.upload_run import explain_table
from app.web import rendering
from app.web.deps import Ctx
from app.web.run_words import METRIC_WORDS, STAT_WORDS

router = APIRouter(include_in_schema=False)

USE_WORDS: Mapping[Use, str] = {
    "ignore": "Nothing: leave it out",
    "metric": "A measured value",
    "series": "An axis of the sweep",
    "name": "The run's name",
    "model": "The model",
    "hardware": "The device",
    "precision": "The precision of the weights",
    "batch": "The batch size",
    "concurrency": "Requests in flight",
    "input_len": "Input tokens of a request",
    "output_len": "Output tokens of a request",
    "context_len": "Tokens in the cache",
}
MODE_WORDS: tuple[tuple[str, str], ...] = (
    ("", "Not said"),
    ("serve", "Serving requests"),
    ("prefill", "Prefill"),
    ("decode", "Decode"),
    ("train", "Training"),
    ("latency", "Latency of a batch"),
    ("kernel", "Kernels"),
)
DECIMALS: tuple[tuple[str, str], ...] = ((".", "Point: 1,234.5"), (",", "Comma: 1.234,5"))


@router.get("/tables")
def tables_page(request: Request, ctx: Ctx) -> HTMLResponse:
    context = {"waiting": tables.list_waiting(ctx), "mappings": tables.list_mappings(ctx), "words": _described}
    return rendering.page(request, "tables.html", context)


@router.get("/tables/files/{upload_id}")
def explain_page(request: Request, ctx: Ctx, upload_id: str) -> HTMLResponse:
    upload, view = tables.waiting_table(ctx, upload_id)
    return _explain(request, upload, view, _rows(view.columns if view else ()), view)


@router.post("/tables/files/{upload_id}")
async def explain(request: Request, ctx: Ctx, upload_id: str) -> Response:
    typed = await _typed(request)
    return await run_in_threadpool(_read_by, request, ctx, upload_id, typed)


def _read_by(request: Request, ctx: Context, upload_id: str, typed: Mapping[str, str]) -> Response:
    upload, view = tables.waiting_table(ctx, upload_id)
    body = _body(typed)
    problem, at = "", ""
    try:
        outcome = explain_table(ctx, upload_id, body)
        return RedirectResponse(f"/runs/{outcome.runs[0].id}", status_code=303)
    except InvalidInput as error:
        at, problem = _column_at(error), error.reason
    except UnreadableUpload as error:
        problem = str(error)
    rows = _rows(view.columns if view else (), body["columns"], at, problem)
    return _explain(request, upload, view, rows, body, "" if at in body["columns"] else problem, status=422)


def _explain(
    request: Request, upload: Any, view: TableView | None, rows: Any, stated: Any, problem: str = "", status: int = 200
) -> HTMLResponse:
    decimal, mode = (stated["decimal"], stated["mode"]) if isinstance(stated, dict) else (".", None)
    if isinstance(stated, TableView):
        decimal, mode = stated.decimal, stated.mode
    context = {"upload": upload, "view": view, "problem": problem, **_choices(rows, decimal, mode)}
    return rendering.page(request, "table_explain.html", context, status)


@router.post("/tables/files/{upload_id}/discard")
def discard(ctx: Ctx, upload_id: str) -> Response:
    tables.discard(ctx, upload_id)
    return RedirectResponse("/tables", status_code=303)


@router.get("/tables/{mapping_id}")
def mapping_page(request: Request, ctx: Ctx, mapping_id: str) -> HTMLResponse:
    stored = tables.get_mapping(ctx, mapping_id)
    mapping = tables.from_stored(stored)
    columns = [TableColumn(name, (), column) for name, column in mapping.columns.items()]
    context = {"mapping": stored, "problem": "", **_choices(_rows(columns), mapping.decimal, mapping.mode)}
    return rendering.page(request, "table_mapping.html", context)


@router.post("/tables/{mapping_id}")
async def change_mapping(request: Request, ctx: Ctx, mapping_id: str) -> Response:
    typed = await _typed(request)
    return await run_in_threadpool(_change, request, ctx, mapping_id, typed)


def _change(request: Request, ctx: Context, mapping_id: str, typed: Mapping[str, str]) -> Response:
    stored = tables.get_mapping(ctx, mapping_id)
    body = _body(typed)
    try:
        tables.remember(ctx, tables.mapping_of(body))
        return RedirectResponse("/tables", status_code=303)
    except InvalidInput as error:
        at, problem = _column_at(error), error.reason
    columns = [TableColumn(name, (), column) for name, column in tables.from_stored(stored).columns.items()]
    rows = _rows(columns, body["columns"], at, problem)
    shown = "" if at in body["columns"] else problem
    context = {"mapping": stored, "problem": shown, **_choices(rows, body["decimal"], body["mode"])}
    return rendering.page(request, "table_mapping.html", context, 422)


@router.post("/tables/{mapping_id}/forget")
def forget(ctx: Ctx, mapping_id: str) -> Response:
    tables.forget(ctx, mapping_id)
    return RedirectResponse("/tables", status_code=303)


# ---- the form -------------------------------------------------------------------------------------------------------


def _rows(
    columns: Sequence[TableColumn], typed: Mapping[str, Any] | None = None, at: str = "", problem: str = ""
) -> list[dict[str, Any]]:
    """One row of the form for each column: the guess, or what was typed over it."""
    rows = []
    for column in columns:
        stated = (typed or {}).get(column.name) or asdict(column.guess)
        error = problem if column.name == at else ""
        rows.append({"column": column, **stated, "error": error[:1].upper() + error[1:] + "." * bool(error)})
    return rows


def _choices(rows: Any, decimal: str, mode: str | None) -> dict[str, Any]:
    by_unit: dict[str, list[tuple[str, str]]] = {}
    for name, unit in METRIC_UNITS.items():
        by_unit.setdefault(unit, []).append((name, METRIC_WORDS.get(name, name)))
    units = dict.fromkeys(unit for known in UNITS.values() for unit in known if unit)
    return {
        "rows": rows,
        "decimal": decimal,
        "mode": mode or "",
        "decimals": DECIMALS,
        "modes": MODE_WORDS,
        "uses": tuple(USE_WORDS.items()),
        "metrics": [("", "Choose"), *({"group": f"in {unit}", "options": names} for unit, names in by_unit.items())],
        "stats": [("", "Plain value"), *((stat, STAT_WORDS[stat]) for stat in STATS)],
        "units": [("", "As counted"), *units],
    }


async def _typed(request: Request) -> Mapping[str, str]:
    form = await request.form(max_files=0, max_fields=5 * MAX_COLUMNS + 10)
    return {key: value.strip()[:200] for key, value in form.items() if isinstance(value, str)}


def _body(typed: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API's mapping object."""
    columns: dict[str, Any] = {}
    for number in range(MAX_COLUMNS):
        name = typed.get(f"name-{number}")
        if not name:
            break
        column: dict[str, Any] = {"use": typed.get(f"use-{number}", "ignore")}
        if column["use"] == "metric":
            column |= {
                "metric": typed.get(f"metric-{number}") or None,
                "stat": typed.get(f"stat-{number}") or None,
                "unit": typed.get(f"unit-{number}", ""),
            }
        columns[name] = {"metric": None, "stat": None, "unit": "", **column}
    return {"columns": columns, "decimal": typed.get("decimal", "."), "mode": typed.get("mode") or None}


def _column_at(error: InvalidInput) -> str:
    return str(error.loc[2]) if len(error.loc) > 2 and error.loc[1] == "columns" else ""


def _described(payload: Mapping[str, Any]) -> str:
    """What a mapping makes of its columns, in one line."""
    said = []
    for name, column in payload["columns"].items():
        if column["use"] == "metric":
            stat = f" {STAT_WORDS[column['stat']]}" if column["stat"] else ""
            said.append(f"{name}: {METRIC_WORDS.get(column['metric'], column['metric'])}{stat}")
    return "; ".join(said)
