"""The what-if lab: one address, answered as a page, or as the parts that changed when htmx asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.charts.base import ChartSpec
from app.charts.memory import memory_bar
from app.charts.roofline import roofline
from app.charts.terms import terms_waterfall
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.precision import PRECISIONS
from app.services.context import Context
from app.services.estimate import BoundEstimate, bound_json
from app.services.what_if import FIELDS, WhatIf, WhatIfAnswer, answer, choices
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.forms import LabForm, lab_errors, lab_form

router = APIRouter(include_in_schema=False)


@router.get("/explore")
def explore(request: Request, ctx: Ctx) -> HTMLResponse:
    form = lab_form(request.query_params)
    form, found = answered(ctx, form)
    partial = rendering.wants_fragment(request)
    base = str(request.base_url).rstrip("/")
    context: dict[str, Any] = {
        "form": form,
        "fields": FIELDS,
        "partial": partial,
        "answer": found,
        "title": lab_title(found),
        "presets": [(name, rendering.query("/explore", **query)) for name, query in form.state.presets().items()],
    }
    if found is not None:
        context |= result_context(found, base)
    else:
        context["summary"] = "These controls need a correction"
    status = 422 if form.errors else 200
    if partial:
        template = "explore_problem.html" if form.errors else "explore_result.html"
        return rendering.fragment(request, template, context, status)
    options = choices(ctx, form.state)
    context |= {
        "hardware_options": option_groups(options.hardware),
        "model_options": option_groups(options.models),
        "precisions": list(PRECISIONS),
    }
    return rendering.page(request, "explore.html", context, status)


def answered(ctx: Context, form: LabForm) -> tuple[LabForm, WhatIfAnswer | None]:
    """The form with all its messages, and the answer unless there are some."""
    if form.errors:
        return form, None
    try:
        return form, answer(ctx, form.state)
    except (ValidationError, InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
        return LabForm(form.typed, form.state, lab_errors(error)), None


def result_context(found: WhatIfAnswer, base: str) -> dict[str, Any]:
    """What the result's template shows: the answer in the API's shape, charts, tables and addresses."""
    estimate = found.estimate
    result = bound_json(estimate)
    address = base + rendering.query("/explore", **found.state.query())
    expected = result["expected"]
    memory = result["memory"]
    room = memory["headroom_bytes"]
    ridge = result["ridge_flop_per_byte"]
    return {
        "result": result,
        "charts": charts_of(estimate, found.headline),
        "operations": operations_table(result),
        "sources": sources_table(result),
        "summary": summary(found.state, estimate),
        "label": short_label(found.state, estimate),
        "address": address,
        "curl": curl(base, found.request),
        "expected_range": " to ".join(str(formatting.quantity(expected[end], "s")) for end in ("low_s", "high_s")),
        "memory_note": "capacity not stated"
        if room is None
        else f"{formatting.quantity(abs(room), 'B')} {'free' if room >= 0 else 'too much'}",
        "ridge_note": "" if ridge is None else f"ridge {formatting.significant(float(f'{ridge:.4g}'))}",
    }


def charts_of(estimate: BoundEstimate, headline: str) -> dict[str, ChartSpec]:
    """Roofline, terms and memory of one estimate."""
    bound = estimate.bound
    conditions = conditions_of(estimate)
    _, binding_time = bound.ranked_terms()[0]
    serial = float(bound.serial)
    memory = estimate.memory
    fit = "Fits" if memory.fits else "Does not fit" if memory.fits is False else "Capacity unknown"
    return {
        "roofline": roofline(bound, title=headline.split(":")[0], caption=conditions),
        "terms": terms_waterfall(
            bound,
            estimate.expected,
            title=f"{bound.binding.upper() if bound.binding == 'hbm' else bound.binding.capitalize()} alone takes "
            f"{binding_time / serial:.0%} of the serial bound",
            caption=conditions,
        ),
        "memory": memory_bar(
            memory, title=f"{fit}: {formatting.quantity(memory.peak, 'B')} on each device", caption=conditions
        ),
    }


def conditions_of(estimate: BoundEstimate) -> str:
    """Model, device and shape in one line, as captions and labels print them."""
    w = estimate.workload
    shape = {
        "decode": f"batch {w.batch:,}, context {w.context_len:,}",
        "prefill": f"batch {w.batch:,}, {w.seq_len:,} tokens after {w.context_len:,}",
        "train": f"batch {w.batch:,} × {w.seq_len:,} tokens",
    }[w.phase]
    devices = w.parallel.devices
    count = f"{devices:,} × " if devices > 1 else ""
    return (
        f"{estimate.model.name} on {count}{estimate.hardware.name}, {shape}, "
        f"{w.dtypes.weights} weights, {w.dtypes.kv} KV cache"
    )


def lab_title(found: WhatIfAnswer | None) -> str:
    return "What-if lab" if found is None else f"{found.estimate.model.name} on {found.estimate.hardware.name}"


def summary(state: WhatIf, estimate: BoundEstimate) -> str:
    """One line that stands for the folded controls."""
    tp = f", TP {state.tp}" if state.tp > 1 else ""
    return f"{estimate.model.name}, {estimate.hardware.name}, {state.phase} {state.batch}{tp}"


def short_label(state: WhatIf, estimate: BoundEstimate) -> str:
    """A name for this estimate in a comparison."""
    return f"{state.phase} {conditions_of(estimate)}"[:200]


def curl(base: str, body: Any) -> str:
    """The same question to the API, as a command to paste."""
    text = json.dumps(body, separators=(",", ":")).replace("'", "'\\''")
    return f"curl -sS {base}/api/v1/estimates/bound -H 'content-type: application/json' -d '{text}'"


def operations_table(result: dict[str, Any]) -> dict[str, Any]:
    """The per-operation table: one execution each, time also for all executions of a step."""
    total = sum(op["time_s"] * op["count"] for op in result["ops"]) or 1.0
    rows = [
        [
            {
                "text": op["name"],
                "note": op["stage"] if op["direction"] == "forward" else op["direction"],
                "title": op["formula"],
            },
            op["count"],
            op["flop"],
            op["hbm_bytes"],
            op["net_bytes"],
            op["launches"],
            op["intensity_flop_per_byte"],
            op["time_s"],
            op["time_s"] * op["count"],
            op["time_s"] * op["count"] / total,
            {"resource": op["binding"]},
            op["dtype"] or "",
        ]
        for op in result["ops"]
    ]
    return {
        "columns": [
            {"label": "Operation", "head": True},
            {"label": "Times", "numeric": True, "title": "Executions in one step"},
            {"label": "Useful FLOP", "unit": "FLOP"},
            {"label": "HBM", "unit": "B", "decimal": True, "title": "Fewest bytes that cross HBM"},
            {"label": "Link", "unit": "B", "decimal": True, "title": "Bytes sent one way"},
            {"label": "Launches", "numeric": True},
            {"label": "FLOP/B", "numeric": True},
            {"label": "Time each", "unit": "s"},
            {"label": "Time in step", "unit": "s"},
            {"label": "Share", "unit": "ratio"},
            {"label": "Binds"},
            {"label": "Computes in"},
        ],
        "rows": rows,
    }


def sources_table(result: dict[str, Any]) -> dict[str, Any]:
    """Each roof that was used, where it comes from and how that source was read."""
    rows = []
    for entry in result["sources"]:
        for source in entry["sources"]:
            shown = formatting.quantity(entry["value"], entry["unit"])
            rows.append(
                [
                    {"text": entry["figure"]},
                    {"text": str(shown), "value": entry["value"]},
                    source["read"],
                    {"text": source["url"] or "no document", "href": source["url"] or ""},
                    source["note"] or "",
                ]
            )
    return {
        "columns": [
            {"label": "Figure", "head": True},
            {"label": "Value", "numeric": True},
            {"label": "Read as"},
            {"label": "Source", "wrap": True},
            {"label": "Note", "wrap": True},
        ],
        "rows": rows,
    }


def option_groups(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> list[dict[str, Any]]:
    """Choices as the select field takes them."""
    return [{"group": name, "options": list(items)} for name, items in groups]
