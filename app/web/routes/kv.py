"""The KV cache page: one address, answered as a page, or as the parts that changed when htmx asks."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from app.charts.base import ChartSpec
from app.charts.kv import (
    KIND_LABELS,
    Line,
    cache_bars,
    context_lines,
    length_spread,
    page_sizes,
    prefill_by_hits,
    sequence_growth,
    step_time,
)
from app.domain.cost import Array
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.precision import PRECISIONS
from app.services.context import Context
from app.services.kv import kv_json
from app.services.kv_what_if import (
    FIELDS,
    MOST_DISTINCT,
    Curve,
    KvAnswer,
    KvState,
    PageRow,
    answer_kv,
    by_kind,
    contexts_for,
    curves,
    fit_rows,
    format_rows,
    hit_rows,
    page_rows,
    read_lengths,
    state_of_run,
    step_split,
    write_lengths,
)
from app.services.run_list import RunQuery, list_runs
from app.services.what_if import WhatIf, choices
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.forms import FormErrors, sentence
from app.web.kv_form import KvForm, kv_errors, kv_form
from app.web.routes.explore import picker_options, sources_table

router = APIRouter(include_in_schema=False)

MAX_PASTED = 4 * 2**20


@router.get("/kv")
def kv(request: Request, ctx: Ctx) -> HTMLResponse:
    query = dict(request.query_params)
    if query.get("run") and "dist" not in query:
        query |= state_of_run(ctx, query["run"][:80], query)
    grouped = query.get("grouped", "")
    note = f"{int(grouped):,}" if grouped.isascii() and grouped.isdigit() and len(grouped) < 10 else ""
    return _page(request, ctx, kv_form(query), grouped=note)


@router.post("/kv/lengths")
async def lengths(request: Request, ctx: Ctx) -> Response:
    """A pasted or uploaded list becomes part of the address, in groups where it is too long for one."""
    async with request.form(max_files=1, max_fields=20, max_part_size=MAX_PASTED) as form:
        state, pasted, file = form.get("state"), form.get("text"), form.get("file")
        data = await file.read() if isinstance(file, UploadFile) and file.size else b""
    query = dict(parse_qsl(state[:20_000])) if isinstance(state, str) else {}
    return await run_in_threadpool(_take_lengths, request, ctx, query, pasted if isinstance(pasted, str) else "", data)


def _take_lengths(request: Request, ctx: Context, query: dict[str, str], pasted: str, data: bytes) -> Response:
    form = kv_form({name: text for name, text in query.items() if name in FIELDS} | {"dist": "list"})
    try:
        found = read_lengths(_column(data) if data else pasted)
    except InvalidInput as error:
        errors = FormErrors({**form.errors.by_field, "lengths": sentence(error.reason)})
        return _page(request, ctx, KvForm(form.typed, form.state, errors), pasted=pasted[:6000])
    held = found.grouped(MOST_DISTINCT)
    grouped = f"{found.sequences:.0f}" if held is not found else ""
    address = rendering.query("/kv", **form.state.query(lengths=write_lengths(held)), grouped=grouped)
    return RedirectResponse(address, 303)


def _column(data: bytes) -> str:
    """A file of lengths as text: a heading line is left out, several columns are refused."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(("lengths",), "the file is not UTF-8 text: give a list or one column of numbers") from error
    first, _, rest = text.partition("\n")
    if first.strip() and not any(character.isdigit() for character in first) and rest.strip():
        if any(sign in first for sign in ",;\t"):
            raise InvalidInput(("lengths",), "the file has several columns: keep the one with the lengths")
        return rest
    return text


def _page(request: Request, ctx: Context, form: KvForm, *, pasted: str = "", grouped: str = "") -> HTMLResponse:
    form, found = _answered(ctx, form)
    partial = rendering.wants_fragment(request)
    base = str(request.base_url).rstrip("/")
    context: dict[str, Any] = {
        "form": form,
        "fields": FIELDS,
        "partial": partial,
        "answer": found,
        "pasted": pasted,
        "grouped": grouped,
        "state_query": rendering.query("", **form.state.query()).lstrip("?"),
        "title": "KV cache" if found is None else f"KV cache of {found.estimate.model.name}",
        "line_rows": _line_rows(form.state),
        "precisions": list(PRECISIONS),
    }
    if found is not None:
        context |= _result(ctx, found, base)
    else:
        context["summary"] = "These controls need a correction"
    status = 422 if form.errors else 200
    if partial:
        template = "kv_problem.html" if form.errors else "kv_result.html"
        headers = {"HX-Replace-Url": rendering.query("/kv", **form.state.query())} if not form.errors else {}
        return rendering.fragment(request, template, context, status, headers=headers)
    options = choices(ctx, WhatIf())
    runs = [(item.run.id, item.run.name) for item in list_runs(ctx, RunQuery(), limit=50).items]
    if form.state.run and form.state.run not in dict(runs):
        runs.insert(0, (form.state.run[:80], form.state.run[:80]))
    context |= {
        **picker_options(options),
        "run_options": [("", "Choose a run" if runs else "No runs yet"), *runs],
    }
    return rendering.page(request, "kv.html", context, status)


def _answered(ctx: Context, form: KvForm) -> tuple[KvForm, KvAnswer | None]:
    """The form with all its messages, and the answer unless there are some."""
    if form.errors:
        return form, None
    try:
        return form, answer_kv(ctx, form.state)
    except (ValidationError, InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
        return KvForm(form.typed, form.state, kv_errors(error)), None


def _line_rows(state: KvState) -> list[dict[str, str]]:
    """The further lines with a link that removes each."""
    try:
        lines = state.further()
    except InvalidInput:
        return []
    return [
        {
            "text": f"{model}, {kv}, TP {tp}",
            "remove": rendering.query("/kv", **state.with_lines(lines[:place] + lines[place + 1 :]).query()),
        }
        for place, (model, kv, tp) in enumerate(lines)
    ]


def _result(ctx: Context, found: KvAnswer, base: str) -> dict[str, Any]:
    """What the result's template shows: the answer in the API's shape, charts, tables and addresses."""
    estimate, state = found.estimate, found.state
    result = kv_json(estimate)
    contexts = contexts_for(found)
    lines = curves(ctx, found, contexts)
    body = json.dumps(found.request, separators=(",", ":"))
    said = _conditions(found)
    exact = not {"sequences", "run"}.isdisjoint(found.request) or estimate.lengths.values.size == 1
    return {
        "result": result,
        "step_s": float(found.step.bound.overlapped),
        "charts": _charts(found, contexts, lines),
        "tables": _tables(found),
        "problems": [(line.name, line.problem) for line in lines if line.problem],
        "sources": sources_table(result),
        "summary": f"{estimate.model.name}, {estimate.hardware.name if estimate.hardware else ''}, "
        f"{found.asked.words}" + (f", TP {state.tp}" if state.tp > 1 else ""),
        # more lengths than an address carries stand for their mean in a request: then the step alone is compared
        "tray": {"kind": "estimate", "estimate": "kv", "request": found.request, "label": f"KV cache, {said}"[:200]}
        if exact
        else {"kind": "estimate", "request": found.bound_request, "label": f"decode {said}"[:200]},
        "address": base + rendering.query("/kv", **state.query()),
        "explore": rendering.query("/explore", **_lab(found)),
        "curl": f"curl -sS {base}/api/v1/estimates/kv -H 'content-type: application/json' -d '{_quoted(body)}'"
        if exact
        else "",
        "most": formatting.Human("none") if result["max_batch"] is None else result["max_batch"],
        "furthest": formatting.Human("no end")
        if estimate.max_context is not None and not np.isfinite(estimate.max_context)
        else result["max_context_len"],
        "devices_of_replica": state.tp * state.pp * state.cp,
    }


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")


def _lab(found: KvAnswer) -> dict[str, str]:
    """The lab's address of the decode step of this batch."""
    state = found.state
    return WhatIf(
        hardware=state.hardware,
        model=state.model,
        batch=found.estimate.workload.batch,
        context=found.estimate.workload.context_len,
        weights=state.weights,
        activations=state.activations,
        kv=state.kv,
        tp=state.tp,
        pp=state.pp,
        dp=state.dp,
        cp=state.cp,
        ep=state.ep,
        prediction_modules=state.prediction,
        ceilings=state.ceilings,
    ).query()


def _conditions(found: KvAnswer) -> str:
    """Model, device and lengths in one line, as captions print them."""
    estimate = found.estimate
    devices = estimate.workload.parallel.devices
    count = f"{devices:,} × " if devices > 1 else ""
    name = estimate.hardware.name if estimate.hardware else ""
    return f"{estimate.model.name} on {count}{name}, {found.asked.words}, {found.state.kv} KV cache"


def _charts(found: KvAnswer, contexts: Array, lines: tuple[Curve, ...]) -> dict[str, ChartSpec]:
    estimate, caption = found.estimate, _conditions(found)
    device, now = estimate.device, float(max(estimate.workload.context_len, 1))
    drawn = [line for line in lines if not line.problem]
    payload = float(device.payload)
    over = float(device.reserved) / payload if payload else 1.0
    where = f"on {estimate.hardware.name if estimate.hardware else ''}, {found.state.weights} weights"
    charts = {
        "numbers": cache_bars(
            device,
            estimate.for_cache,
            title=f"Pages hold what is there; reserving {estimate.longest:,.0f} tokens each takes {over:,.3g} times "
            "as much"
            if over > 1.005
            else "Pages, sharing and a reservation take about what is there",
            caption=caption,
        ),
        "growth": _growth(found, contexts),
        "pages": _pages(found),
        "step": _step(found, contexts),
        "sequence": context_lines(
            contexts,
            [Line(line.name, line.sequence) for line in drawn if line.sequence is not None],
            what="Cache of one sequence",
            unit="B",
            point=None,
            title=_extremes(contexts, now, drawn, "sequence", "B", "keeps"),
            caption="Whole model, each byte once, before pages and copies",
        ),
        "steps": context_lines(
            contexts,
            [Line(line.name, line.step) for line in drawn if line.step is not None],
            what="Decode step",
            unit="s",
            point=(now, float(found.step.bound.overlapped)),
            title=_extremes(contexts, now, drawn, "step", "s", "takes"),
            caption=f"Overlapped bound of a decode step with {_many(estimate.workload.batch)} {where}",
        ),
    }
    if estimate.max_batch is not None:
        batches = [Line(line.name, line.batch) for line in drawn if line.batch is not None]
        charts["batch"] = context_lines(
            contexts,
            batches[:1],
            what="Sequences that fit",
            unit="sequences",
            point=(now, float(estimate.workload.batch)),
            title=f"{_many(estimate.max_batch)} of {estimate.workload.context_len:,} tokens fit at most"
            if estimate.lengths.values.size == 1
            else f"{_many(estimate.max_batch)} of these lengths fit at most; the line is for equal ones",
            caption=f"{caption}; {estimate.reserve:.0%} of the memory in reserve. Below the line everything fits",
        )
        charts["batches"] = context_lines(
            contexts,
            batches,
            what="Sequences that fit",
            unit="sequences",
            point=(now, float(estimate.workload.batch)),
            title=_extremes(contexts, now, drawn, "batch", "sequences", "fits"),
            caption=f"In one replica {where}, {estimate.reserve:.0%} of the memory in reserve",
        )
    if estimate.lengths.values.size > 1:
        spread = estimate.lengths
        charts["lengths"] = length_spread(
            spread,
            title=f"Half of the sequences have at most {spread.quantile(0.5):,.0f} tokens, 5 % more than "
            f"{spread.quantile(0.95):,.0f}",
            caption=f"{found.asked.words}; the line is the mean, {spread.mean:,.0f}",
        )
    hits = hit_rows(found)
    if hits:
        own = min(estimate.prefix / estimate.workload.context_len, 1.0)
        charts["hits"] = prefill_by_hits(
            [row.hit for row in hits],
            [row.time for row in hits],
            [row.computed for row in hits],
            now=own,
            title=_hit_title(found),
            caption=f"One prompt of {estimate.workload.context_len:,} tokens; the line is the shared prefix",
        )
    return charts


def _extremes(contexts: Array, now: float, lines: list[Curve], what: str, unit: str, verb: str) -> str:
    """The finding of a chart with several lines: which of them has the least and which the most where it was asked."""
    place = int(np.argmin(np.abs(contexts - now)))
    held = [(line.name, getattr(line, what)) for line in lines]
    values = [(name, float(values[place])) for name, values in held if values is not None]
    known = sorted(((name, value) for name, value in values if np.isfinite(value)), key=lambda item: item[1])
    at = f"At {contexts[place]:,.0f} tokens "
    if not known:
        return f"{at}no line has an end"

    def amount(value: float) -> str:
        return _many(value) if unit == "sequences" else str(formatting.quantity(value, unit))

    (least, low), (most, high) = known[0], known[-1]
    if len(known) == 1 or low == high:
        return f"{at}{most} {verb} {amount(high)}"
    return f"{at}{least} {verb} least, {amount(low)}, and {most} most, {amount(high)}"


def _many(number: float) -> str:
    return f"{number:,.0f} {'sequence' if number == 1 else 'sequences'}"


def _hit_title(found: KvAnswer) -> str:
    rows = hit_rows(found)
    share = found.estimate.prefix / found.estimate.workload.context_len
    at = min(rows, key=lambda row: abs(row.hit - share))
    first = formatting.quantity(rows[0].time, "s")
    if at.hit == 0:
        return f"Without a hit the prompt takes {first} at least"
    return f"A hit on the shared prefix takes prefill from {first} to {formatting.quantity(at.time, 's')} at least"


def _growth(found: KvAnswer, contexts: Array) -> ChartSpec:
    estimate = found.estimate
    kinds = by_kind(found, contexts)
    held = {kind: sizes for kind, sizes in kinds.items() if np.any(sizes > 0)}
    growing = [KIND_LABELS[kind] for kind, sizes in held.items() if sizes[-1] > sizes[-2] * 1.0001]
    end = formatting.quantity(float(sum(sizes[-1] for sizes in held.values())), "B")
    what = "it grows with every token"
    if not growing:
        what = "it stops growing"
    elif len(growing) < len(held):
        words = " and ".join(name[:1].lower() + name[1:] for name in growing)
        what = f"only {words} {'grows' if len(growing) == 1 else 'grow'} on"
    return sequence_growth(
        contexts,
        kinds,
        now=float(max(estimate.workload.context_len, 1)),
        title=f"One sequence keeps {end} at {contexts[-1]:,.0f} tokens; {what}",
        caption=f"{estimate.model.name}, {found.state.kv} KV cache, each byte once",
    )


def _pages(found: KvAnswer) -> ChartSpec:
    rows = page_rows(found)
    payload = max(rows[0].payload, 1.0)
    now = next(row for row in rows if row.page == found.estimate.page)
    best = min(rows, key=lambda row: row.fragmentation + row.table)
    return page_sizes(
        [row.page for row in rows],
        {
            "Empty in this batch": [row.fragmentation / payload for row in rows],
            "Empty on average": [row.expected for row in rows],
            "Page tables": [row.table / payload for row in rows],
        },
        now=found.estimate.page,
        title=_page_title(now, best, payload),
        caption=f"{_conditions(found)}; the line is the chosen size. Bytes only: kernels read small pages more slowly",
    )


def _page_title(now: PageRow, best: PageRow, payload: float) -> str:
    if now.fragmentation == 0:
        whole = f"These lengths fill whole pages of {now.page:,} tokens"
        return f"{whole}; lengths of any kind would leave {now.expected:.2%} of the payload empty"
    lost = f"Pages of {now.page:,} tokens leave {now.fragmentation / payload:.2%} of the payload empty"
    return lost if best.page == now.page else f"{lost}; least is lost with {best.page:,}"


def _step(found: KvAnswer, contexts: Array) -> ChartSpec:
    estimate = found.estimate
    split = step_split(found, contexts)
    crossover = found.crossover
    title = (
        "The cache never outweighs the weights at this batch"
        if crossover is None
        else f"From {crossover:,} tokens a sequence on, a step reads more cache than weights"
        if crossover > 0
        else "A step reads more cache than weights at any context"
    )
    return step_time(
        contexts,
        {"Weights": split.weights, "KV cache": split.cache, "Rest of the bound": split.rest},
        split.bound,
        now=float(max(estimate.workload.context_len, 1)),
        crossover=crossover,
        title=title,
        caption=f"{_conditions(found)}; HBM time of one device and what the bound adds to it",
    )


def _tables(found: KvAnswer) -> dict[str, Any]:
    estimate = found.estimate
    dp = estimate.workload.parallel.dp
    devices = estimate.workload.parallel.devices // dp
    layers = [
        [
            KIND_LABELS[row.kind],
            row.layers,
            {"text": "" if row.heads is None else f"{row.heads:,}", "value": row.heads or 0},
            {"text": "none" if row.window is None else f"{row.window:,}", "value": row.window or 0},
            row.per_token,
            row.per_sequence,
            row.per_rank + row.per_rank_sequence,
            {"text": formatting.times(row.copies), "value": row.copies},
        ]
        for row in estimate.layers
    ]
    fits = [
        [
            int(row.batch),
            _context_cell(row.context),
            _context_cell(row.batch * row.context),
            *([int(row.batch * dp), _context_cell(row.batch * row.context * dp)] if dp > 1 else []),
        ]
        for row in fit_rows(found)
    ]
    all_replicas = [
        {"label": f"Sequences, {dp} replicas", "numeric": True},
        {"label": f"Cached tokens, {dp} replicas", "numeric": True},
    ]
    formats = [
        [
            row.name,
            {"text": f"{row.bits:g}", "value": row.bits},
            {"text": f"{row.effective_bits:g}", "value": row.effective_bits},
            row.bytes_per_token,
            row.total,
            _context_cell(row.max_batch),
            _context_cell(row.max_context),
        ]
        for row in format_rows(found)
    ]
    return {
        "layers": {
            "columns": [
                {"label": "Kind", "head": True},
                {"label": "Layers", "numeric": True},
                {"label": "KV heads", "numeric": True},
                {"label": "Window", "numeric": True},
                {"label": "A token", "unit": "B", "title": "Of the whole model, up to the window"},
                {"label": "A sequence", "unit": "B", "title": "Whatever its length"},
                {"label": "On one rank", "unit": "B", "title": "A token's or a sequence's bytes on one rank"},
                {"label": "Copies", "numeric": True, "title": "How often the tensor-parallel group keeps each byte"},
            ],
            "rows": layers,
        },
        "fits": {
            "columns": [
                {"label": "Batch of a replica" if dp > 1 else "Batch", "numeric": True},
                {"label": "Largest context", "numeric": True},
                {
                    "label": f"Cached tokens, {devices} {'device' if devices == 1 else 'devices'}",
                    "numeric": True,
                    "title": "A prefix counts for each sequence that has it",
                },
                *(all_replicas if dp > 1 else []),
            ],
            "rows": fits,
        },
        "formats": {
            "columns": [
                {"label": "Cache format", "head": True},
                {"label": "Bits", "numeric": True},
                {"label": "With scales", "numeric": True},
                {"label": "A token", "unit": "B"},
                {"label": "This batch", "unit": "B"},
                {"label": "Largest batch", "numeric": True},
                {"label": "Largest context", "numeric": True},
            ],
            "rows": formats,
        },
    }


def _context_cell(value: float | None) -> Any:
    if value is None:
        return None
    if not np.isfinite(value):
        return {"text": "no end", "value": 1e300}
    return {"text": f"{max(value, 0):,.0f}", "value": max(value, 0.0)}
