"""The what-if lab: one address, answered as a page, or as the parts that changed when htmx asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.charts.base import RESOURCE_LABELS, ChartSpec
from app.charts.ledger import BOOK_LABELS, ledger_waterfall
from app.charts.memory import memory_bar, object_labels
from app.charts.roofline import link_roofline, roofline
from app.charts.terms import terms_beside, terms_waterfall
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.inputs import latent_tokens
from app.domain.levers.registry import LEVERS
from app.domain.precision import PRECISIONS
from app.domain.words import share_text
from app.domain.workload import PRESETS
from app.services.context import Context
from app.services.diagnose import scenario_for
from app.services.estimate import BoundEstimate, bound_json, ledger_json
from app.services.references import resolve_model
from app.services.thresholds import COMPARED, Crossing
from app.services.what_if import (
    FIELDS,
    LabChoices,
    WhatIf,
    WhatIfAnswer,
    answer,
    choices,
    inputs_of,
    lever_choices,
    module_options,
    unused_by,
    what_would_have_to_be_true,
)
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.forms import LabForm, lab_errors, lab_form

router = APIRouter(include_in_schema=False)

SHOWN_FIELDS = tuple(name for name in FIELDS if name != "beside")
"""Controls with a place for their message."""

MODEL_INPUTS = ("visual_tokens", "source_len", "width", "height", "frames", "prediction_modules")
"""Controls that are shown only for models that have a use for them."""


@router.get("/explore")
def explore(request: Request, ctx: Ctx) -> HTMLResponse:
    form = lab_form(request.query_params)
    form, found = answered(ctx, form)
    partial = rendering.wants_fragment(request)
    base = str(request.base_url).rstrip("/")
    of_model = model_fields(ctx, form.state)
    generates = "context" not in of_model["unused"]
    context: dict[str, Any] = {
        "form": form,
        "fields": SHOWN_FIELDS,
        **of_model,
        "modules": module_options(ctx, form.state),
        "partial": partial,
        "answer": found,
        "title": lab_title(found),
        "presets": presets_of(form.state, generates),
    }
    context |= lever_context(ctx, form)
    if found is not None:
        context |= result_context(found, base)
        context |= beside_context(ctx, found)
    else:
        context["summary"] = "These controls need a correction"
    status = 422 if form.errors else 200
    if partial:
        template = "explore_problem.html" if form.errors else "explore_result.html"
        headers = {"HX-Replace-Url": rendering.query("/explore", **form.state.query())} if not form.errors else {}
        return rendering.fragment(request, template, context, status, headers=headers)
    options = choices(ctx, form.state)
    context |= {
        **picker_options(options),
        "precisions": list(PRECISIONS),
    }
    return rendering.page(request, "explore.html", context, status)


@router.get("/explore/thresholds")
def explore_thresholds(request: Request, ctx: Ctx) -> HTMLResponse:
    """What would have to be true, asked for when its tab is opened: it takes a few sweeps."""
    form = lab_form(request.query_params)
    context: dict[str, Any] = {"thresholds": None, "problem": ""}
    if form.errors:
        context["problem"] = "; ".join((*form.errors.by_field.values(), *form.errors.general))
    else:
        try:
            found = what_would_have_to_be_true(ctx, form.state)
            context |= {
                "thresholds": [item.threshold for item in found],
                "beside": thresholds_table(form.state, found),
                "levers": bool(form.state.chosen_levers()),
            }
        except (ValidationError, InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
            context["problem"] = str(error)
    return rendering.page(
        request, "explore_thresholds.html", context, 422 if context["problem"] else 200, part="explore_thresholds.html"
    )


AXES: Mapping[str, tuple[str, str]] = {
    "batch": ("batch", "batch"),
    "context_len": ("context", "context"),
    "tp": ("tensor parallel", "tp"),
}
"""An axis of thresholds in words, and its key in the page's address."""


def thresholds_table(state: WhatIf, found: Sequence[Crossing]) -> dict[str, Any]:
    """The estimates next to each threshold, each a link to that step in the lab."""

    def figure(words: str, value: float, unit: str) -> dict[str, Any]:
        return {"text": f"{words} {formatting.quantity(value, unit, decimal=True)}", "value": value}

    rows = []
    for item, check in ((crossing.threshold, check) for crossing in found for check in crossing.checks):
        first, second, unit = COMPARED[item.id]
        words, key = AXES[item.axis]
        memory = check.estimate.memory
        fits = {True: "fits", False: "does not fit", None: "capacity not stated"}[memory.fits]
        here = {key: check.value} | ({"sp": 0} if key == "tp" and check.value == 1 else {})
        rows.append(
            [
                {"text": f"{words} {check.value:,}", "href": rendering.query("/explore", **state.query(**here))},
                figure(first, check.first, unit),
                figure(second, check.second, unit),
                f"{check.first / check.second:.5g}" if check.second > 0 else "nothing to compare",
                {"text": f"{formatting.quantity(memory.peak, 'B')}, {fits}", "value": memory.peak},
            ]
        )
    return {
        "columns": [
            {"label": "Step", "head": True},
            {"label": "First", "wrap": True},
            {"label": "Second", "wrap": True},
            {"label": "First over second", "numeric": True},
            {"label": "Memory of a device", "wrap": True},
        ],
        "rows": rows,
    }


def presets_of(state: WhatIf, generates: bool) -> list[tuple[str, str]]:
    """The starting points that suit a model, as names and addresses: without one token after the other none decodes."""
    return [
        (name, rendering.query("/explore", **query))
        for name, query in state.presets().items()
        if generates or PRESETS[name]["phase"] != "decode"
    ]


def model_fields(ctx: Context, state: WhatIf) -> dict[str, Any]:
    """Which controls the chosen model has a use for: those of MODEL_INPUTS that are `inputs`, and what is `unused`."""
    try:
        model = resolve_model(ctx, state.model)[0]
    except InvalidInput:
        return {"model_inputs": MODEL_INPUTS, "inputs": (), "unused": ()}
    return {"model_inputs": MODEL_INPUTS, "inputs": inputs_of(model), "unused": unused_by(model)}


def explore_address(state: WhatIf) -> str:
    return rendering.query("/explore", **state.query())


def lever_context(ctx: Context, form: LabForm, address_of: Callable[[WhatIf], str] = explore_address) -> dict[str, Any]:
    """The lever picker: what is chosen, with links that move and remove, and what can be added or why not."""
    state = form.state
    try:
        chosen = state.chosen_levers()
    except InvalidInput:
        chosen = []

    def address(levers: list[tuple[str, dict[str, float]]]) -> str:
        return address_of(state.with_levers(levers))

    rows = []
    for place, (id_, params) in enumerate(chosen):
        lever = LEVERS.get(id_)
        rest = chosen[:place] + chosen[place + 1 :]
        earlier = [*chosen[: place - 1], chosen[place], chosen[place - 1], *chosen[place + 1 :]] if place else []
        rows.append(
            {
                "id": id_,
                "lever": lever,
                "params": [(param, params.get(param.name, param.default)) for param in (lever.params if lever else ())],
                "remove": address(rest),
                "earlier": address(earlier) if earlier else "",
            }
        )
    taken = {id_ for id_, _ in chosen}
    options = [choice for choice in lever_choices(ctx, state) if choice.lever.id not in taken]
    books = [
        {
            "group": words,
            "options": [(c.lever.id, c.lever.title) for c in options if c.lever.book_as == book and not c.reason],
        }
        for book, words in BOOK_LABELS.items()
    ]
    return {
        "chosen_levers": rows,
        "lever_options": [("", "Add a lever"), *(group for group in books if group["options"])],
        "refused_levers": [choice for choice in options if choice.reason],
    }


def beside_context(ctx: Context, found: WhatIfAnswer) -> dict[str, Any]:
    """The second configuration, where the address holds one: its answer next to this one, figure by figure."""
    here = found.state
    links = {
        "pin": rendering.query("/explore", **here.query(beside=urlencode(replace(here, beside="").query()) or "-")),
        "unpin": rendering.query("/explore", **replace(here, beside="").query()),
        "diagnose": rendering.query(
            "/diagnose",
            scenario=scenario_for(found.estimate.model, here.phase),
            lab=urlencode(replace(here, beside="").query()) or urlencode({"model": here.model}),
        ),
    }
    if not here.beside:
        return {"beside": None, "beside_links": links}
    asked = dict(parse_qsl(here.beside)) if here.beside != "-" else {}
    form, other = answered(ctx, lab_form(asked))
    if other is None:
        problem = "; ".join((*form.errors.by_field.values(), *form.errors.general))
        return {"beside": {"problem": problem}, "beside_links": links}
    swapped = replace(other.state, beside=urlencode(replace(here, beside="").query()) or "-")
    links["swap"] = rendering.query("/explore", **swapped.query())
    return {
        "beside": {
            "headline": other.headline,
            "conditions": conditions_of(other.estimate),
            "table": side_by_side(found.estimate, other.estimate),
            "chart": terms_beside(
                (found.estimate.bound, "This"),
                (other.estimate.bound, "Second"),
                title="What each configuration waits for, one operation after the other",
                caption=f"This: {conditions_of(found.estimate)}. Second: {conditions_of(other.estimate)}.",
            ),
        },
        "beside_links": links,
    }


def side_by_side(
    one: BoundEstimate, two: BoundEstimate, labels: tuple[str, str] = ("This", "Second")
) -> dict[str, Any]:
    """The figures of two estimates and their ratio."""
    here, there = bound_json(one), bound_json(two)
    rows = [
        ("Overlapped bound", "s", here["bound_s"], there["bound_s"]),
        ("Serial bound", "s", here["serial_bound_s"], there["serial_bound_s"]),
        ("Expected", "s", here["expected"]["time_s"], there["expected"]["time_s"]),
        ("Throughput", "tokens/s", here["tokens_per_s"], there["tokens_per_s"]),
        ("Throughput a device", "tokens/s", here["tokens_per_s_per_device"], there["tokens_per_s_per_device"]),
        ("Devices", "1", here["devices"], there["devices"]),
        ("HBM bytes a device", "B", here["hbm_bytes"], there["hbm_bytes"]),
        ("Link bytes a device", "B", here["net_bytes"], there["net_bytes"]),
        ("Executed FLOP a device", "FLOP", here["executed_flop"], there["executed_flop"]),
        ("Memory of a device", "B", here["memory"]["peak_bytes"], there["memory"]["peak_bytes"]),
        ("Largest batch, sequences", "1", here["memory"]["largest_batch"], there["memory"]["largest_batch"]),
    ]

    def shown(value: float | None, unit: str) -> dict[str, Any]:
        return {"text": str(formatting.quantity(value, unit)), "value": value}

    return {
        "columns": [
            {"label": "Figure", "head": True},
            *({"label": words, "numeric": True} for words in labels),
            {"label": f"{labels[0]} over {labels[1].lower()}", "numeric": True},
        ],
        "rows": [
            [name, shown(a, unit), shown(b, unit), formatting.times(a / b) if a is not None and b else "not comparable"]
            for name, unit, a, b in rows
        ]
        + [["Binds", {"resource": here["binding"]}, {"resource": there["binding"]}, ""]],
    }


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
        "memory_url": rendering.query("/memory", **({"phase": found.state.phase} | found.state.query())),
        "thresholds_url": rendering.query("/explore/thresholds", **found.state.query()),
        "curl": curl(base, found.request),
        "expected_range": " to ".join(str(formatting.quantity(expected[end], "s")) for end in ("low_s", "high_s")),
        "throughput": result["tokens_per_s"] if estimate.runs else formatting.Human("none"),
        "memory_note": "capacity not stated"
        if room is None
        else f"{formatting.quantity(abs(room), 'B')} {'free' if room >= 0 else 'too much'}",
        "ridge_note": "" if ridge is None else f"ridge {formatting.significant(float(f'{ridge:.4g}'))}",
    }


def charts_of(estimate: BoundEstimate, headline: str) -> dict[str, ChartSpec]:
    """Roofline, terms and memory of one estimate; with links a roofline of each, with levers their ledger."""
    bound = estimate.bound
    conditions = conditions_of(estimate)
    _, binding_time = bound.ranked_terms()[0]
    serial = float(bound.serial)
    memory = estimate.memory
    fit = "Fits" if memory.fits else "Does not fit" if memory.fits is False else "Capacity unknown"
    charts: dict[str, ChartSpec] = {}
    if float(np.max(bound.op_net_bytes, initial=0.0)) > 0:
        charts["links"] = link_roofline(
            bound, title=f"Links are busy for {formatting.quantity(float(bound.terms['net']), 's')}", caption=conditions
        )
    if estimate.ledger:
        rows = [ledger_json(row) for row in estimate.ledger]
        first, last = rows[0]["before"]["serial_bound_s"], rows[-1]["after"]["serial_bound_s"]
        charts["ledger"] = ledger_waterfall(
            rows,
            title=f"{len(rows)} {'lever takes' if len(rows) == 1 else 'levers take'} the serial bound from "
            f"{formatting.quantity(first, 's')} to {formatting.quantity(last, 's')}",
            caption=conditions,
        )
    return charts | {
        "roofline": roofline(bound, title=headline.split(":")[0], caption=conditions),
        "terms": terms_waterfall(
            bound,
            estimate.expected,
            title=f"{RESOURCE_LABELS[bound.binding]} alone takes {share_text(binding_time / serial)} of the serial "
            "bound",
            caption=conditions,
        ),
        "memory": memory_bar(
            memory,
            title=f"{fit}: {formatting.quantity(memory.peak, 'B')} on each device",
            caption=conditions,
            labels=object_labels(estimate.model),
        ),
    }


def conditions_of(estimate: BoundEstimate) -> str:
    """Model, device and shape in one line, as captions and labels print them."""
    w = estimate.workload
    tokens = f"{latent_tokens(estimate.model, w):,} latent" if estimate.model.denoiser else f"{w.seq_len:,}"
    shape = {
        "decode": f"batch {w.batch:,}, context {w.context_len:,}",
        "prefill": f"batch {w.batch:,}, {tokens} tokens" + (f" after {w.context_len:,}" if w.context_len else ""),
        "train": f"batch {w.batch:,} × {tokens} tokens",
    }[w.phase]
    devices = w.parallel.devices
    count = f"{devices:,} × " if devices > 1 else ""
    cached = estimate.bound.total("kv_read") + estimate.bound.total("kv_write") > 0
    return f"{estimate.model.name} on {count}{estimate.hardware.name}, {shape}, {w.dtypes.weights} weights" + (
        f", {w.dtypes.kv} {estimate.model.cache_name}" if cached else ""
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
            {"text": op["name"], "note": op["stage"] if op["direction"] == "forward" else op["direction"]},
            op["count"],
            op["flop"],
            op["hbm_bytes"],
            op["net_bytes"],
            op["launches"],
            op["intensity_flop_per_byte"] if op["hbm_bytes"] else {"text": "none", "title": "No bytes cross HBM"},
            op["time_s"],
            op["time_s"] * op["count"],
            op["time_s"] * op["count"] / total,
            {"resource": op["binding"]},
            op["dtype"] or "",
            op["formula"],
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
            {
                "label": "Formula",
                "wrap": True,
                "title": "What the FLOP, or the bytes of work that computes nothing, are",
            },
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
                    {"text": entry["figure"], "markup": formatting.breakable(entry["figure"])},
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


def picker_options(offered: LabChoices) -> dict[str, Any]:
    """What the pickers of devices and models offer."""
    return {"hardware_options": option_groups(offered.hardware), "model_options": option_groups(offered.models)}
