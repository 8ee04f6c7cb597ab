"""The expert page: one address, answered as a page, or as the parts that changed when htmx asks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from app.catalog.published import collective_units, published_experts
from app.charts.moe import STAGE_LABELS, Position, expert_loads, overlap_timeline, stage_bars, stage_table, three_walls
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.moe_pipeline import EXCHANGES
from app.domain.precision import PRECISIONS
from app.services.context import Context
from app.services.moe import (
    FIELDS,
    MAX_HISTOGRAM_TEXT,
    PRESETS,
    LayoutChoice,
    MoeAnswer,
    MoeEstimate,
    answer,
    expert_models,
    histogram_text,
    lab_state,
    moe_json,
    published_rows,
    read_histogram,
)
from app.services.what_if import WhatIf, choices
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.moe_form import MoeForm, moe_errors, moe_form
from app.web.routes.explore import conditions_of, option_groups, sources_table

router = APIRouter(include_in_schema=False)

MAX_FILE = 200_000
"""Bytes of an uploaded histogram that are read."""


@router.get("/moe")
def moe(request: Request, ctx: Ctx) -> HTMLResponse:
    return _respond(request, ctx, moe_form(request.query_params))


@router.post("/moe/histogram")
async def upload_histogram(request: Request, ctx: Ctx) -> Any:
    """Take tokens by expert from a file into the address: the page itself stays a link."""
    async with request.form(max_files=1, max_fields=20, max_part_size=MAX_FILE) as form:
        file, state = form.get("file"), form.get("state")
        data = (
            await file.read(MAX_FILE + 1) if isinstance(file, UploadFile) else str(file or "").encode()[: MAX_FILE + 1]
        )
    query = dict(parse_qsl(state)) if isinstance(state, str) and len(state) <= 2 * MAX_HISTOGRAM_TEXT else {}
    asked = moe_form({name: text for name, text in query.items() if name in FIELDS})
    try:
        counts = read_histogram(_text_of(data))
        text = histogram_text(counts)
        if len(text) > MAX_HISTOGRAM_TEXT:
            raise InvalidInput(("histogram",), f"{len(counts):,} counts are too long for an address: round them")
    except InvalidInput as error:
        return _respond(request, ctx, MoeForm(asked.typed, asked.state, moe_errors(error)))
    wanted = replace(asked.state, routing="histogram", histogram=text)
    return RedirectResponse(rendering.query("/moe", **wanted.query()), 303)


def _text_of(data: bytes) -> str:
    """The counts of a file: bare numbers, a JSON list, or the last number of each line of a table."""
    if len(data) > MAX_FILE:
        raise InvalidInput(("histogram",), f"the file is larger than {MAX_FILE:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(("histogram",), "the file is no text: send numbers, a JSON list or a CSV table") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 2 and all(line.count(",") == lines[0].count(",") >= 1 for line in lines):
        cells = [line.rsplit(",", 1)[1].strip() for line in lines]
        return "\n".join(cells[0 if cells[0].replace(".", "", 1).isdigit() else 1 :])
    return text


@router.get("/moe/published")
def published(request: Request) -> HTMLResponse:
    """Published figures beside the bounds of the same questions, asked for when their tab is opened."""
    context = {"published": published_table(), "notes": published_experts()[1]}
    return rendering.page(request, "moe_published.html", context, part="moe_published.html")


def _respond(request: Request, ctx: Context, form: MoeForm) -> HTMLResponse:
    found: MoeAnswer | None = None
    if not form.errors:
        try:
            found = answer(ctx, form.state)
        except (ValidationError, InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
            form = MoeForm(form.typed, form.state, moe_errors(error))
    partial = rendering.wants_fragment(request)
    context: dict[str, Any] = {
        "form": form,
        "fields": FIELDS,
        "model_inputs": (),
        "inputs": (),
        "partial": partial,
        "answer": found,
        "title": "Experts" if found is None else f"Experts of {found.found.step.model.name}",
        "presets": [(name, rendering.query("/moe", **state.query())) for name, state in PRESETS.items()],
        "summary": "These controls need a correction",
    }
    if found is not None:
        context |= result_context(ctx, found, str(request.base_url).rstrip("/"))
    status = 422 if form.errors else 200
    if partial:
        template = "explore_problem.html" if form.errors else "moe_result.html"
        headers = {} if found is None else {"HX-Replace-Url": rendering.query("/moe", **found.state.query())}
        return rendering.fragment(request, template, context, status, headers=headers)
    context |= {
        "hardware_options": option_groups(choices(ctx, WhatIf(hardware=form.state.hardware)).hardware),
        "model_options": option_groups(expert_models(ctx)),
        "precisions": list(PRECISIONS),
        "units_enough": collective_units().curve.enough,
    }
    return rendering.page(request, "moe.html", context, status)


def result_context(ctx: Context, found: MoeAnswer, base: str) -> dict[str, Any]:
    """What the result's template shows: the answer in the API's shape, charts, tables and addresses."""
    estimate = found.found
    result = moe_json(estimate)
    state = found.state
    expected = result["expected"]
    room = None if estimate.walls.capacity is None else estimate.walls.capacity - estimate.walls.memory
    return {
        "result": result,
        "charts": charts_of(found),
        "stages": stage_table(estimate.pipeline),
        "layouts": layouts_table(found.layouts),
        "links": links_table(estimate),
        "load": load_table(result["load"]),
        "sources": sources_table(result),
        "summary": summary(estimate),
        "label": f"Experts at {result['overlap']}, {conditions(estimate)}"[:200],
        "conditions": conditions(estimate),
        "address": base + rendering.query("/moe", **state.query()),
        "state_query": rendering.query("", **state.query()).removeprefix("?"),
        "lab_url": rendering.query("/explore", **lab.query()) if (lab := lab_state(ctx, found)) else "",
        "curl": curl(base, found.request),
        "expected_range": " to ".join(str(formatting.quantity(expected[end], "s")) for end in ("low_s", "high_s")),
        "room_note": "capacity not stated"
        if room is None
        else f"{formatting.quantity(abs(room), 'B')} {'free' if room >= 0 else 'too much'}",
        "exchanged": sum(stage.time for stage in estimate.pipeline.stages if stage.stage in EXCHANGES),
        "overlapped": result["overlap_levels"][result["overlap"]],
    }


def conditions(found: MoeEstimate) -> str:
    """What was asked, in one line: model, devices and shape, the layout of the experts, routing and dispatch."""
    w = found.step.workload
    p, d = w.parallel, w.dispatch
    scheme = {
        "hierarchical": "once a node",
        "deduplicated": "once a rank",
        "all_to_all": "every copy",
        "all_gather": "all-gather",
    }[d.scheme]
    limit = f", {d.node_limit} nodes at most" if d.node_limit else ""
    etp = f", ETP {p.etp}" if p.etp > 1 else ""
    return (
        f"{conditions_of(found.step)}, EP {p.ep}{etp}, {w.routing.kind} routing, {scheme} in "
        f"{d.dtype or w.dtypes.communication}{limit}"
    )


def charts_of(found: MoeAnswer) -> dict[str, Any]:
    estimate = found.found
    seen, line = estimate.pipeline, conditions(estimate)
    longest = max(seen.stages, key=lambda stage: stage.time)
    saved = seen.levels["L0"] - seen.levels["L3"]
    wall = {"memory": "memory", "communication": "communication", "compute": "device"}[estimate.walls.binding]
    load = seen.load
    charts = {
        "stages": stage_bars(
            seen,
            title=f"{STAGE_LABELS[longest.stage]} takes most: {longest.time / seen.serial:.0%} of the expert layers"
            if seen.serial
            else "Stages",
            caption=line,
        ),
        "timeline": overlap_timeline(
            seen,
            title=f"Overlap saves {formatting.quantity(saved, 's')} a step at best"
            if saved > 0
            else "There is no exchange to hide",
            caption=line,
        ),
        "walls": three_walls(
            [position(choice) for choice in found.layouts if choice.found is not None],
            title=f"The asked layout stands at the {wall} wall",
            caption=f"Same devices and tokens, other layouts. {line}",
        ),
        "load": expert_loads(
            load,
            title=f"The busiest expert gets {load.imbalance:.3g} times the mean"
            if load.imbalance > 1
            else "Every expert gets the same",
            caption=line,
        ),
    }
    return charts


def layout_mark(choice: LayoutChoice) -> str:
    """A layout in a few letters."""
    p = choice.parallel
    parts = [f"{name.upper()}{getattr(p, name)}" for name in ("tp", "ep", "etp") if getattr(p, name) > 1]
    return "·".join(parts) or f"DP{p.dp}"


def position(choice: LayoutChoice) -> Position:
    assert choice.found is not None
    wall = choice.found.walls
    return Position(
        choice.name,
        layout_mark(choice),
        wall.communication,
        wall.compute,
        wall.memory,
        wall.capacity,
        asked=choice.name == "Asked",
    )


def layouts_table(found: tuple[LayoutChoice, ...]) -> dict[str, Any]:
    """Layouts of the same devices side by side, figures of one device and step."""
    places = {"memory": "memory wall", "communication": "communication wall", "compute": "device wall"}
    rows: list[list[Any]] = []
    for choice in found:
        degrees = " ".join(f"{name.upper()} {getattr(choice.parallel, name)}" for name in ("tp", "dp", "ep", "etp"))
        head = {"text": choice.name, "note": f"{degrees}. {choice.reason}" if choice.reason else degrees}
        if choice.found is None:
            rows.append([head, "cannot be", *[{"text": ""}] * 7])
            continue
        seen, wall = choice.found.pipeline, choice.found.walls
        most = choice.found.step.tokens_per_second
        rows.append(
            [
                head,
                places[wall.binding],
                seen.levels[seen.level],
                wall.compute,
                wall.communication,
                seen.exposed_communication,
                wall.memory,
                float(choice.found.step.bound.serial),
                {"text": "does not fit"}
                if most is None
                else {"text": str(formatting.quantity(most, "tokens/s")), "value": most},
            ]
        )
    return {
        "columns": [
            {"label": "Layout", "head": True, "wrap": True},
            {"label": "Stands at"},
            {"label": "Expert layers", "unit": "s", "title": "At the asked level of overlap"},
            {"label": "On the device", "unit": "s", "title": "Expert layers without their exchanges"},
            {"label": "On links", "unit": "s"},
            {"label": "Exposed", "unit": "s", "title": "Of dispatch and combine, at the asked level of overlap"},
            {"label": "Memory", "unit": "B"},
            {"label": "Whole step", "unit": "s", "title": "Serial bound, attention and the rest included"},
            {"label": "At most", "numeric": True, "title": "Tokens of all devices over the step's floor"},
        ],
        "rows": rows,
    }


def links_table(found: MoeEstimate) -> dict[str, Any]:
    """Each tier's bytes, and the experts' FLOP for each of them against what the link can feed."""
    rows = []
    for link in found.links:
        name = "Near, in the node" if link.tier == "scale_up" else "Far, between nodes"
        if link.intensity is None:
            verdict = "nothing is sent"
        else:
            verdict = "products decide" if link.intensity >= link.balance else "the link decides"
        rows.append(
            [
                name,
                link.net,
                {"text": str(formatting.quantity(link.rate, "B/s", decimal=True)), "value": link.rate},
                link.intensity if link.intensity is not None else {"text": "none sent"},
                link.balance,
                verdict,
            ]
        )
    return {
        "columns": [
            {"label": "Link", "head": True},
            {"label": "Sent in a step", "unit": "B", "decimal": True},
            {"label": "Rate one way", "numeric": True},
            {"label": "FLOP/B", "numeric": True, "title": "FLOP of the experts for a byte on this tier"},
            {"label": "Balance", "numeric": True, "title": "FLOP/s of the device over bytes/s of the link"},
            {"label": "So"},
        ],
        "rows": rows,
    }


def load_table(load: dict[str, Any]) -> dict[str, Any]:
    """Loads of one layer in numbers."""
    rows: list[list[Any]] = [
        ["Tokens that share the experts", load["tokens"], "tokens of all ranks that share one copy"],
        ["Mean of an expert", load["mean"], f"{load['top_k']} of {load['experts']} experts a token"],
        ["Median", load["p50"], ""],
        ["99th percentile", load["p99"], ""],
        [
            "Busiest expert",
            load["max"],
            f"{load['imbalance']:.3g} times the mean; random routing alone {load['random_floor']:.3g}",
        ],
        ["Busiest rank over the mean", load["rank_imbalance"], "what lengthens the products"],
        ["Experts touched", load["experts_touched"], f"of {load['experts']}, {load['experts_per_rank']:g} on a rank"],
    ]
    if load["capacity"] is not None:
        rows += [
            ["Capacity of an expert", load["capacity"], ""],
            ["Dropped", load["dropped"], "share of the copies above capacity"],
            ["Padding", load["padding"], "share of the rows that no token fills"],
        ]
    rows += [
        [
            f"Rows in tiles of {tile['tile']}",
            tile["rows"],
            "" if tile["efficiency"] is None else f"{tile['efficiency']:.1%} useful; the bound counts whole rows only",
        ]
        for tile in load["tiles"]
    ]
    return {
        "columns": [
            {"label": "Of one layer", "head": True},
            {"label": "Value", "numeric": True},
            {"label": "Meaning", "wrap": True},
        ],
        "rows": rows,
    }


def published_table() -> dict[str, Any]:
    rows = []
    for row in published_rows():
        figure = row.figure
        rows.append(
            [
                {"text": figure.name, "note": figure.conditions},
                {"text": str(formatting.quantity(row.measured, row.unit)), "value": row.measured},
                {"text": str(formatting.quantity(row.bound, row.unit)), "value": row.bound},
                row.share,
                {"text": figure.source.title, "href": figure.source.url, "note": f"read as {figure.source.read}"},
            ]
        )
    return {
        "columns": [
            {"label": "Published", "head": True, "wrap": True},
            {"label": "Measured", "numeric": True, "sort": False},
            {"label": "Bound", "numeric": True, "sort": False, "title": "Least time, or most tokens/s of a device"},
            {"label": "Of bound", "unit": "ratio"},
            {"label": "Source", "wrap": True},
        ],
        "rows": rows,
    }


def summary(found: MoeEstimate) -> str:
    """One line that stands for the folded controls."""
    step = found.step
    w = step.workload
    return f"{step.model.name}, {step.hardware.name}, {w.phase} {w.batch}, EP {w.parallel.ep}"


def curl(base: str, body: Any) -> str:
    """The same question to the API, as a command to paste."""
    text = json.dumps(body, separators=(",", ":")).replace("'", "'\\''")
    return f"curl -sS {base}/api/v1/estimates/moe -H 'content-type: application/json' -d '{text}'"
