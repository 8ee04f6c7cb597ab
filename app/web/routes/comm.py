"""The communication page: six questions under one address, each a page of its own, or its parts when htmx asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.charts.base import ChartSpec
from app.charts.communication import (
    ALGORITHM_LABELS,
    Bar,
    binary_size,
    chunk_curve,
    collective_over_sizes,
    sharding_bars,
    timeline,
)
from app.domain.errors import DomainError
from app.services.communication_page import (
    KIND_WORDS,
    QUESTIONS,
    SCHEDULE_WORDS,
    PageAnswer,
    answer,
)
from app.services.what_if import WhatIf, choices
from app.services.words import rate_words, time_words
from app.storage.errors import NotFound
from app.web import formatting, rendering
from app.web.communication_form import CONTROLS, CommunicationForm, communication_form, errors_of
from app.web.deps import Ctx
from app.web.routes.explore import picker_options, sources_table

router = APIRouter(include_in_schema=False)

DRAWN_UNITS = 12
"""Units of a sharded pass that the timeline shows."""

PRESETS: Mapping[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "collective": (
        ("Gradients, 4 nodes", {"ranks": "32"}),
        ("Decode, 256 KiB", {"size": "256 KiB"}),
        ("Expert all-to-all", {"kind": "all_to_all", "size": "64 MiB", "ranks": "32"}),
    ),
    "overlap": (
        ("Down projection", {}),
        ("QKV with gather", {"pattern": "all_gather", "n": "1280", "k": "8192"}),
        ("Few tokens", {"m": "256"}),
    ),
    "exposed": (("A product beside an all-reduce", {}),),
    "sharding": (("8 nodes", {}), ("One node", {"dp": "8"}), ("Few tokens", {"seq": "2048"})),
    "pipeline": (
        ("1F1B, 4 stages", {}),
        ("Interleaved", {"schedule": "interleaved", "virtual_stages": "2"}),
        ("Zero bubble", {"schedule": "zero_bubble"}),
        ("DualPipe", {"schedule": "dualpipe"}),
        ("GPipe", {"schedule": "gpipe"}),
    ),
    "context": (("128k prompt", {}), ("Short, 8k", {"prompt": "8192"}), ("Over nodes", {"cp": "32"})),
}


@router.get("/comm")
def comm(request: Request, ctx: Ctx) -> HTMLResponse:
    form = communication_form(request.query_params)
    found: PageAnswer | None = None
    if not form.errors:
        try:
            found = answer(ctx, form.question, form.values)
        except (ValidationError, DomainError, NotFound) as error:
            form = replace(form, errors=errors_of(form.question, error))
    partial = rendering.wants_fragment(request)
    base = str(request.base_url).rstrip("/")
    context: dict[str, Any] = {
        "form": form,
        "question": form.question,
        "controls": [CONTROLS[name] for name in form.question.controls],
        "kept": {
            name: text for name, text in form.query().items() if name not in form.question.controls and name != "view"
        },
        "questions": [
            {"id": q.id, "label": q.label, "url": rendering.query("/comm", **form.query(view=q.id))} for q in QUESTIONS
        ],
        "presets": presets(form),
        "partial": partial,
        "answer": found,
        "title": form.question.label,
        "summary": "These controls need a correction",
    }
    address = rendering.query("/comm", **form.query())
    if found is not None:
        context |= result_context(found, base, address)
    status = 422 if form.errors else 200
    if partial:
        template = "comm_problem.html" if form.errors else "comm_result.html"
        headers = {} if form.errors else {"HX-Replace-Url": address}
        return rendering.fragment(request, template, context, status, headers=headers)
    options = choices(ctx, WhatIf())
    context |= picker_options(options)
    return rendering.page(request, "comm.html", context, status)


def presets(form: CommunicationForm) -> list[tuple[str, str]]:
    """Starting points of the open question; the device and the model are kept."""
    kept = {name: form.typed[name] for name in ("hardware", "model") if form.typed[name] != CONTROLS[name].default}
    view = {} if form.question is QUESTIONS[0] else {"view": form.question.id}
    return [(name, rendering.query("/comm", **view, **kept, **query)) for name, query in PRESETS[form.question.id]]


def result_context(found: PageAnswer, base: str, address: str) -> dict[str, Any]:
    """What the result's template shows."""
    result = found.result
    call = found.question.call
    body = json.dumps(found.body, separators=(",", ":")).replace("'", "'\\''")
    return {
        "result": result,
        "address": base + address,
        "curl": f"curl -sS {base}/api/v1/estimates/{call} -H 'content-type: application/json' -d '{body}'",
        "summary": found.headline,
        "sources": sources_table(dict(result)) if result.get("sources") else None,
        "links": links_table(result["links"]) if result.get("links") else None,
        "label": found.headline[:200],
        **_VIEWS[found.question.id](found),
    }


def _amount(value: float | None, unit: str) -> dict[str, Any]:
    return {"text": str(formatting.quantity(value, unit)), "value": value}


def links_table(links: list[dict[str, Any]]) -> dict[str, Any]:
    """The alpha-beta model's numbers and what each rests on."""
    words = {"scale_up": "In a node", "scale_out": "Between nodes"}
    return {
        "columns": [
            {"label": "Link", "head": True},
            {"label": "Start-up of a message", "unit": "s"},
            {"label": "Rests on"},
            {"label": "Large messages reach", "unit": "B/s"},
            {"label": "Rests on"},
            {"label": "Link's rate", "unit": "B/s"},
        ],
        "rows": [
            [
                {"text": words[link["tier"]], "note": link["name"]},
                link["alpha_s"],
                link["alpha_basis"],
                link["bandwidth_bytes_per_s"],
                link["bandwidth_basis"],
                link["rate_bytes_per_s"],
            ]
            for link in links
        ],
    }


# ---- what each question shows ---------------------------------------------------------------------------------------


def collective_view(found: PageAnswer) -> dict[str, Any]:
    result = found.result
    kind = KIND_WORDS[result["kind"]].split(" ", 1)[1]
    conditions = f"{kind.capitalize()} over {result['ranks']:,} × {result['hardware']['name']}"
    best = [point for point in result["sizes"] if point["bound_bus_bandwidth_bytes_per_s"]]
    last = best[-1]["algorithms"][result["algorithm"]]["bus_bandwidth_bytes_per_s"] if best else None
    charts = {
        "bus": collective_over_sizes(
            result,
            what="bus",
            title=f"{ALGORITHM_LABELS[result['algorithm']]} reaches {rate_words(last)} bus bandwidth for large arrays"
            if last
            else "Bus bandwidth over message size",
            caption=conditions,
        ),
        "time": collective_over_sizes(
            result, what="time", title="Small arrays cost start-up, large ones bytes", caption=conditions
        ),
    }
    rows = []
    for row in result["algorithms"]:
        messages = ", ".join(f"{n} {_TIER[tier]}" for tier, n in row["messages"].items())
        sent = ", ".join(f"{binary_size(n)} {_TIER[tier]}" for tier, n in row["sent_bytes"].items())
        rows.append(
            [
                {
                    "text": ALGORITHM_LABELS[row["algorithm"]],
                    **({"badge": "shown"} if row["algorithm"] == result["algorithm"] else {}),
                },
                row["time_s"],
                row["bus_bandwidth_bytes_per_s"],
                messages or {"text": "none"},
                {"text": sent or row["reason"] or "none"},
            ]
        )
    halves = result["halves"]
    split: dict[str, Any] | None = None
    if halves:
        pair = halves["reduce_scatter_s"] + halves["all_gather_s"]
        split = {
            "pair": pair,
            "whole": halves["all_reduce_s"],
            "scatter": halves["reduce_scatter_s"],
            "gather": halves["all_gather_s"],
        }
    return {
        "charts": charts,
        "algorithms": {
            "columns": [
                {"label": "Algorithm", "head": True},
                {"label": "Time", "unit": "s"},
                {"label": "Bus bandwidth", "unit": "B/s"},
                {"label": "Messages in a row"},
                {"label": "Sent by a rank", "wrap": True},
            ],
            "rows": rows,
        },
        "split": split,
        "measured_rows": [
            [
                m["bytes"],
                m["ranks"],
                m["time_s"],
                m["bus_bandwidth_bytes_per_s"],
                {"text": m["source"], "href": m["url"], "note": m["name"]},
            ]
            for m in result["measured"]
        ],
    }


_TIER = {"scale_up": "in a node", "scale_out": "between nodes"}


def overlap_view(found: PageAnswer) -> dict[str, Any]:
    result = found.result
    gemm = found.body["gemm"]
    conditions = (
        f"{gemm['m']:,} × {gemm['n']:,} × {gemm['k']:,} {gemm['dtype']} on {found.body['ranks']:,} × "
        f"{result['hardware']['name']}"
    )
    bars, lanes = [], []
    for row in result["levels"]:
        names = {"compute": f"{row['level']} product", "communication": f"{row['level']} exchange"}
        lanes += list(names.values())
        for s in row["timeline"]:
            text = "" if s["what"] == "launch" or row["timeline"][-1]["index"] > 31 else str(s["index"] + 1)
            bars.append(Bar(names[s["lane"]], s["what"], s["start_s"], s["end_s"], text))
    table = {
        "columns": [
            {"label": "Level", "head": True},
            {"label": "Pieces", "numeric": True},
            {"label": "Time", "unit": "s"},
            {"label": "Exposed", "unit": "s"},
            {"label": "Usually exposed", "unit": "s", "title": "A judgement: the share that such a level hides"},
        ],
        "rows": [
            [
                {"text": row["level"], "note": row["how"]},
                row["chunks"],
                row["time_s"],
                row["exposed_s"],
                row["judged_exposed_s"],
            ]
            for row in result["levels"]
        ],
    }
    fastest = min(result["levels"], key=lambda row: row["time_s"])
    return {
        "charts": {
            "timeline": timeline(
                bars,
                lanes,
                title=f"{fastest['level']}, {fastest['how']}, ends first: {time_words(fastest['time_s'])}",
                caption=conditions,
                table=table,
                marks=[(result["compute_only_s"], "product alone")],
            ),
            "curve": chunk_curve(
                result,
                title="Uncut is best: every further chunk pays for starting"
                if result["best_chunks"] == 1
                else f"{result['best_chunks']} chunks are best; fewer expose, more pay for starting",
                caption=conditions,
            ),
        },
        "levels": table,
    }


def exposed_view(found: PageAnswer) -> dict[str, Any]:
    result = found.result
    parts = [
        ("compute", "Compute alone", result["compute_only_s"]),
        ("link-near", "Exposed communication", result["exposed_s"]),
        ("other", "Other waits", result["other_s"]),
    ]
    return {
        "is_example": all(
            found.body.get(name) == value for name, value in (("step_s", 6.73838e-3), ("compute_only_s", 6.35351e-3))
        ),
        "parts": [
            {"resource": key, "label": name, "value": value, "text": time_words(value)}
            for key, name, value in parts
            if value > 0
        ],
    }


def sharding_view(found: PageAnswer) -> dict[str, Any]:
    result = found.result
    workload = found.body["workload"]
    conditions = (
        f"{result['model']['name']} on {workload['parallel']['dp'] * workload['parallel']['tp']:,} × "
        f"{result['hardware']['name']}, {workload['batch']} × {workload['seq_len']:,} tokens a rank"
    )
    bars = []
    for s in result["forward_timeline"]:
        if s["index"] < DRAWN_UNITS:
            lane = "Compute" if s["lane"] == "compute" else "Gather"
            bars.append(Bar(lane, s["what"], s["start_s"], s["end_s"], str(s["index"] + 1)))
    fits = [row["zero_stage"] for row in result["stages"] if row["fits"]]
    if not fits:
        title = "No stage fits into the device"
    else:
        title = "Every stage fits" if len(fits) == 4 else f"From ZeRO {fits[0]} on it fits"
    table = sharding_bars(result, found.capacity, title=title, caption=conditions)
    return {
        "charts": {
            "memory": table,
            "timeline": timeline(
                bars,
                ["Gather", "Compute"],
                title="Gathers hide behind compute" if result["hides"] else "Gathers show: compute is too short",
                caption=f"The first {min(DRAWN_UNITS, result['units'])} of {result['units']} units, forward. "
                f"{conditions}",
                labels={"compute": "Unit's forward pass", "communication": "Gather of a unit"},
            ),
        },
        "stages": {
            "columns": [
                {"label": "Stage", "head": True},
                {"label": "Peak", "unit": "B"},
                {"label": "Fits"},
                {"label": "Sent by a rank in a step", "unit": "B", "decimal": True},
                {"label": "Exchange at the bound", "unit": "s"},
                {"label": "Step's bound", "unit": "s"},
            ],
            "rows": [
                [
                    f"ZeRO {row['zero_stage']}",
                    row["peak_bytes"],
                    {True: "yes", False: "no", None: "not known"}[row["fits"]],
                    row["sent_bytes"],
                    row["exchange_s"],
                    row["bound_s"],
                ]
                for row in result["stages"]
            ],
        },
    }


def pipeline_view(found: PageAnswer) -> dict[str, Any]:
    result, body = found.result, found.body
    stages = body["stages"]
    lanes = [f"Stage {i + 1}" for i in range(stages)]
    few = body["micro_batches"] <= 16
    bars = [
        Bar(lanes[s["lane"]], s["what"], s["start_s"], s["end_s"], str(s["index"] + 1) if few else "")
        for s in result["timeline"]
    ]
    twin = {
        "columns": [
            {"label": "Stage", "head": True},
            {"label": "Works", "unit": "s"},
            {"label": "Waits", "unit": "s"},
            {"label": "Micro-batches held", "numeric": True},
        ],
        "rows": [
            [lanes[i], result["work_s"], result["bubble_s"], {"text": f"{held:.3g}", "value": held}]
            for i, held in enumerate(result["in_flight_micro_batches"])
        ],
    }
    schedule = SCHEDULE_WORDS[body["schedule"]]
    chart: ChartSpec | None = None
    if bars and stages <= 64:
        chart = timeline(
            bars,
            lanes,
            title=f"{schedule}: every stage waits {result['bubble_share']:.1%} of the step",
            caption=f"{stages} stages, {body['micro_batches']} micro-batches",
            table=twin,
        )
    return {
        "charts": {"timeline": chart} if chart else {},
        "stages": twin,
        "schedules": {
            "columns": [
                {"label": "Schedule", "head": True},
                {"label": "Step", "unit": "s"},
                {"label": "Bubble", "unit": "ratio"},
                {"label": "Micro-batches held at most", "numeric": True},
                {"label": "Stages' parameters held", "numeric": True},
            ],
            "rows": [
                [
                    {
                        "text": SCHEDULE_WORDS[row["schedule"]]
                        + (f", {row['virtual_stages']} chunks" if row["virtual_stages"] > 1 else ""),
                    },
                    row["time_s"],
                    row["bubble_share"],
                    {"text": f"{row['in_flight_micro_batches']:.3g}", "value": row["in_flight_micro_batches"]},
                    {"text": str(row["parameter_copies"]), "value": row["parameter_copies"]},
                ]
                for row in result["schedules"]
            ],
        },
    }


def context_view(found: PageAnswer) -> dict[str, Any]:
    result = found.result
    workload = found.body["workload"]
    conditions = (
        f"{result['model']['name']} on {workload['parallel']['cp'] * workload['parallel']['tp']:,} × "
        f"{result['hardware']['name']}, {workload['seq_len']:,} tokens"
    )
    bars = [
        Bar(
            "Attention" if s["lane"] == "compute" else "Hop",
            s["what"],
            s["start_s"],
            s["end_s"],
            str(s["index"] + 1),
        )
        for s in result["timeline"]
        if s["index"] < 64
    ]
    words = {"ring": "Ring", "all_to_all": "All-to-all"}
    return {
        "charts": {
            "timeline": timeline(
                bars,
                ["Hop", "Attention"],
                title="Hops hide behind attention" if result["hides"] else "Hops show: attention is too short",
                caption=f"One layer's forward pass. {conditions}",
                labels={"compute": "Attention to a block", "communication": "Hop of keys and values"},
            )
        },
        "exchanges": {
            "columns": [
                {"label": "Exchange", "head": True},
                {"label": "Sent by a rank a layer", "unit": "B", "decimal": True},
                {"label": "Least time a layer", "unit": "s"},
                {"label": "Step's bound", "unit": "s"},
                {"label": "Step, expected", "unit": "s"},
            ],
            "rows": [
                [
                    {"text": words[row["exchange"]], **({"note": row["reason"]} if row["reason"] else {})},
                    row["sent_bytes"] if row["available"] else None,
                    row["bound_s"] if row["available"] else None,
                    row["step_bound_s"],
                    row["step_expected_s"],
                ]
                for row in result["exchanges"]
            ],
        },
    }


_VIEWS: Mapping[str, Callable[[PageAnswer], dict[str, Any]]] = {
    "collective": collective_view,
    "overlap": overlap_view,
    "exposed": exposed_view,
    "sharding": sharding_view,
    "pipeline": pipeline_view,
    "context": context_view,
}
