"""The memory page: one address, answered as a page, or as the parts that changed when htmx asks."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.charts.memory import memory_bars, memory_waterfall, object_labels, stage_bars
from app.domain.activations import OFFLOAD_LABELS, RECOMPUTE_LABELS
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.fit_search import Fit
from app.domain.precision import PRECISIONS
from app.services.memory import gives_up, memory_json
from app.services.memory_page import (
    PRESETS,
    RESERVE_FIELDS,
    MemoryAnswer,
    MemoryState,
    answer,
    applied,
    cost_words,
)
from app.services.what_if import WhatIf, choices, module_options
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.forms import LabForm, lab_errors
from app.web.memory_form import RESERVE_CONTROLS, memory_form
from app.web.routes.explore import (
    SHOWN_FIELDS,
    conditions_of,
    lever_context,
    model_fields,
    picker_options,
    short_label,
    sources_table,
    summary,
)

router = APIRouter(include_in_schema=False)

LEVER_WORDS = {
    "dematerialize": "Dematerialise",
    "compress": "Compress",
    "pack": "Pack, page, lay out",
    "recompute": "Recompute",
    "shard": "Shard, offload",
    "allocator": "Allocate",
}
"""The six memory levers as the page prints them."""


@router.get("/memory")
def memory(request: Request, ctx: Ctx) -> HTMLResponse:
    form, state = memory_form(request.query_params)
    found: MemoryAnswer | None = None
    if not form.errors:
        try:
            found = answer(ctx, state)
        except (ValidationError, InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
            form = LabForm(form.typed, form.state, lab_errors(error))
    partial = rendering.wants_fragment(request)
    context: dict[str, Any] = {
        "form": form,
        "lab_page": "/memory",
        "fields": (*SHOWN_FIELDS, *RESERVE_FIELDS),
        "reserve_fields": RESERVE_CONTROLS,
        **model_fields(ctx, form.state),
        "modules": module_options(ctx, form.state),
        "partial": partial,
        "answer": found,
        "title": "Memory" if found is None else f"Memory of {found.estimate.bound.model.name}",
        "presets": [(name, address(preset)) for name, preset in PRESETS.items()],
        "summary": "These controls need a correction",
    }
    context |= lever_context(ctx, form, lambda lab: address(MemoryState(lab, state.reserve)))
    if found is not None:
        context |= result_context(found, str(request.base_url).rstrip("/"))
    status = 422 if form.errors else 200
    if partial:
        template = "explore_problem.html" if form.errors else "memory_result.html"
        headers = {} if found is None else {"HX-Replace-Url": address(found.state)}
        return rendering.fragment(request, template, context, status, headers=headers)
    options = choices(ctx, form.state)
    context |= {
        **picker_options(options),
        "precisions": list(PRECISIONS),
    }
    return rendering.page(request, "memory.html", context, status)


def address(state: MemoryState) -> str:
    return rendering.query("/memory", **state.query())


def result_context(found: MemoryAnswer, base: str) -> dict[str, Any]:
    """What the result's template shows: the answer in the API's shape, charts, tables and addresses."""
    estimate = found.estimate
    result = memory_json(estimate)
    bound = estimate.bound
    room = result["headroom_bytes"]
    lab: WhatIf = found.state.lab
    return {
        "result": result,
        "charts": charts_of(found, result),
        "objects": objects_table(found, result),
        "levers": levers_table(result),
        "module_table": modules_table(result),
        "fit": None if estimate.fit is None else fit_context(found, estimate.fit),
        "sources": sources_table(result),
        "summary": summary(lab, bound),
        "label": short_label(lab, bound),
        "address": base + address(found.state),
        "explore_url": rendering.query("/explore", **lab.query()),
        "curl": curl(base, found.request),
        "room_note": "not stated" if room is None else "free" if room >= 0 else "too much",
        "room": None if room is None else abs(room),
        "least_note": {True: "fits", False: "does not fit", None: ""}[result["least"]["fits"]],
        "expected_range": " to ".join(
            str(formatting.quantity(result["expected"][end], "s")) for end in ("low_s", "high_s")
        ),
    }


def charts_of(found: MemoryAnswer, result: dict[str, Any]) -> dict[str, Any]:
    """The bar against the capacity, the waterfall of the levers, and the stages of a pipeline."""
    estimate = found.estimate
    conditions, labels = conditions_of(estimate.bound), object_labels(estimate.bound.model)
    use, rows, capacity = estimate.use, result["levers"], result["capacity_bytes"]
    fits = {True: "Fits", False: "Does not fit", None: "Capacity unknown"}[use.fits]
    bars = [("With levers", use.objects)]
    if rows:
        bars.insert(0, ("Baseline", estimate.before.objects))
    charts = {
        "bars": memory_bars(
            bars,
            capacity,
            title=f"{fits}: {formatting.quantity(use.peak, 'B')} on the fullest device",
            caption=conditions,
            labels=labels,
        )
    }
    if rows:
        saved = estimate.before.peak - use.peak
        words = "take" if len(rows) > 1 else "takes"
        charts["levers"] = memory_waterfall(
            rows,
            capacity,
            title=f"{len(rows)} {'levers' if len(rows) > 1 else 'lever'} {words} {formatting.quantity(saved, 'B')} off",
            caption=conditions,
        )
    if len(result["stages"]) > 1:
        fullest = max(result["stages"], key=lambda stage: stage["peak_bytes"])
        charts["stages"] = stage_bars(
            result["stages"],
            capacity,
            title=f"Stage {fullest['stage'] + 1} of {found.state.lab.pp} is the fullest: "
            f"{formatting.quantity(fullest['peak_bytes'], 'B')}",
            caption=conditions,
            labels=labels,
        )
    return charts


def objects_table(found: MemoryAnswer, result: dict[str, Any]) -> dict[str, Any]:
    """Objects of the fullest device and their parts, beside what the bound counts."""
    least = result["least"]["peak_bytes"]
    notes, labels = object_notes(found), object_labels(found.estimate.bound.model)
    rows: list[list[Any]] = []
    for item in result["objects"]:
        if item["bytes"] <= 0:
            continue
        name = labels[item["object"]]
        share = item["bytes"] / result["peak_bytes"]
        rows.append([{"text": name}, item["bytes"], share, notes.get(item["object"], "")])
        rows += [
            [{"text": f"{name}: {part['part']}"}, part["bytes"], part["bytes"] / result["peak_bytes"], "part of it"]
            for part in item["parts"]
        ]
    rows.append([{"text": "Peak"}, result["peak_bytes"], 1.0, "the sum of the objects"])
    rows.append([{"text": "Least"}, least, least / result["peak_bytes"], "without buffers and reserve: the bound's"])
    if result["capacity_bytes"] is not None:
        capacity = result["capacity_bytes"]
        rows.append([{"text": "Capacity"}, capacity, capacity / result["peak_bytes"], "of the device"])
    return {
        "columns": [
            {"label": "Object", "head": True},
            {"label": "Size", "unit": "B"},
            {"label": "Of the peak", "unit": "ratio"},
            {"label": "Note", "wrap": True},
        ],
        "rows": rows,
    }


def object_notes(found: MemoryAnswer) -> dict[str, str]:
    """The conditions that decide each object, after the levers."""
    estimate = found.estimate
    w, reserve = estimate.bound.workload, estimate.reserve
    p, dtypes = w.parallel, w.dtypes
    shared = [f"{name} {size}" for name, size in (("TP", p.tp), ("PP", p.pp), ("EP", p.ep)) if size > 1]
    divided = f", divided by {', '.join(shared)}" if shared else ""
    zero = f"; ZeRO stage {p.zero_stage}" if p.zero_stage else ""
    fullest = max(estimate.stages, key=lambda stage: stage.peak)
    held = "" if p.pp == 1 else f"; {fullest.micro_batches:.3g} micro-batches held by stage {fullest.stage + 1}"
    sequence = "; sequence parallel" if p.sequence_parallel else ""
    modules = ", ".join(RECOMPUTE_LABELS[name].lower() for name in w.recompute_modules)
    moved = ", ".join(OFFLOAD_LABELS[name].lower() for name in w.offload.activations)
    chosen = (f" and {modules}" if modules else "") + (f"; on the host: {moved}" if moved else "")
    kept = f"{dtypes.activations}, recompute {w.recompute}{chosen}{sequence}{held}"
    return {
        "parameters": f"{dtypes.weights}{divided}{zero}"
        + ("; on the host: two of the largest parts are here" if w.offload.parameters else ""),
        "gradients": f"{dtypes.gradients}{zero}",
        "optimizer": f"{w.optimizer}, {dtypes.optimizer}{zero}",
        "activations": kept if w.phase == "train" else f"{dtypes.activations}, the widest layer",
        "logits": "of the last stage"
        if p.pp > 1
        else "logits, their gradient and an fp32 copy"
        if w.phase == "train"
        else "fp32",
        "kv_cache": f"{dtypes.kv}, pages of {w.kv.page_tokens} tokens",
        "workspace": "assumed: driver context, kernels, libraries",
        "communication": "assumed: as many buffers as the exchanges need",
        "fragmentation": f"assumed: {reserve.fragmentation * 100:.3g} % of what the allocator holds",
    }


def levers_table(result: dict[str, Any]) -> dict[str, Any]:
    """What each lever saves in bytes, and what it costs in work, traffic and time."""
    return {
        "columns": [
            {"label": "Lever", "head": True},
            {"label": "Saves", "unit": "B"},
            {"label": "Peak after", "unit": "B"},
            {"label": "Costs FLOP", "unit": "FLOP"},
            {"label": "Costs HBM", "unit": "B", "decimal": True},
            {"label": "Costs link", "unit": "B", "decimal": True},
            {"label": "Costs bound", "unit": "s", "title": "Change of the overlapped bound"},
            {"label": "Costs expected", "unit": "s", "title": "Change of the expected time"},
        ],
        "rows": [
            [
                {
                    "text": row["title"],
                    "title": row["notes"],
                    "note": LEVER_WORDS.get(row["memory_lever"] or "", "none of the six levers"),
                },
                row["saves_bytes"],
                row["after_bytes"],
                row["costs"]["flop"],
                row["costs"]["hbm_bytes"],
                row["costs"]["net_bytes"],
                row["costs"]["time_s"],
                row["costs"]["expected_time_s"],
            ]
            for row in result["levers"]
        ],
    }


def modules_table(result: dict[str, Any]) -> dict[str, Any]:
    """What each module saves when it is recomputed or moved to the host, and what a step pays for it."""

    def time(value: float | None) -> Any:
        return {"text": "no host link"} if value is None else value

    return {
        "columns": [
            {"label": "Module", "head": True},
            {"label": "Saves", "unit": "B"},
            {"label": "Executes FLOP", "unit": "FLOP"},
            {"label": "Costs HBM", "unit": "B", "decimal": True},
            {"label": "Costs link", "unit": "B", "decimal": True},
            {"label": "Over the host link", "unit": "B", "decimal": True},
            {"label": "Time on it", "unit": "s", "title": "The transfer alone, one way, at the profile's host link"},
            {"label": "Costs expected", "unit": "s", "title": "Change of the expected time of a step"},
        ],
        "rows": [
            [
                {
                    "text": f"{row['label']} {'recomputed' if row['move'] == 'recompute' else 'on the host'}",
                    "note": ", ".join(filter(None, ["chosen" if row["chosen"] else "", row["note"]])),
                },
                row["saves_bytes"],
                row["costs"]["executed_flop"],
                row["costs"]["hbm_bytes"],
                row["costs"]["net_bytes"],
                row["costs"]["host_bytes"],
                time(row["costs"]["host_time_s"]),
                time(row["costs"]["expected_time_s"]),
            ]
            for row in result["modules"]
        ],
    }


def fit_context(found: MemoryAnswer, fit: Fit) -> dict[str, Any]:
    """The search for the page: proposals with their tables and links, and what else was tried."""
    proposals = []
    for proposal in fit.proposals:
        peak, time = fit.start_peak, fit.start_time
        rows = []
        for step in proposal.steps:
            rows.append([{"text": step.move.label}, peak - step.peak, step.peak, step.time - time, gives_up(step.move)])
            peak, time = step.peak, step.time
        proposals.append(
            {
                "title": "Same numbers" if proposal.exact else "With narrower formats",
                "words": cost_words(proposal.time, fit.start_time),
                "peak": proposal.peak,
                "url": address(applied(found.state, proposal)),
                "columns": [
                    {"label": "Move", "head": True},
                    {"label": "Saves", "unit": "B"},
                    {"label": "Peak after", "unit": "B"},
                    {"label": "Costs expected", "unit": "s"},
                    {"label": "Gives up", "wrap": True},
                ],
                "rows": rows,
            }
        )
    made = [item for item in fit.tried if item.peak is not None]
    return {
        "proposals": proposals,
        "fits_already": fit.fits_already,
        "closest": fit.closest,
        "looked_at": fit.looked_at,
        "tried": {
            "columns": [
                {"label": "Move by itself", "head": True},
                {"label": "Peak", "unit": "B"},
                {"label": "Over capacity", "unit": "B"},
                {"label": "Costs expected", "unit": "s"},
            ],
            "rows": [
                [
                    {"text": item.label},
                    item.peak,
                    item.peak - fit.capacity if item.peak is not None else None,
                    None if item.time is None else item.time - fit.start_time,
                ]
                for item in made
            ],
        },
        "refused": [item for item in fit.tried if item.peak is None],
    }


def curl(base: str, body: Any) -> str:
    """The same question to the API, as a command to paste."""
    text = json.dumps(body, separators=(",", ":")).replace("'", "'\\''")
    return f"curl -sS {base}/api/v1/estimates/memory -H 'content-type: application/json' -d '{text}'"
