"""Pages of runs: the list with its drop zone, a run against its bound, and what people may change of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.charts.kv import length_spread
from app.charts.run_gap import run_gap
from app.charts.run_points import PointOfLine, run_points, value_words
from app.charts.run_series import SeriesPoint, run_series
from app.domain.collectives import COLLECTIVES
from app.domain.errors import DomainError, InvalidInput
from app.domain.lint import ANALYSIS_CHECKS, CHECKS, grouped
from app.domain.lint_facts import STATABLE
from app.domain.precision import PRECISIONS
from app.domain.run import METRIC_UNITS, STATS, Metric, ParsedRun
from app.domain.run_analysis import WHAT_WORDS, BoundRow, share_text
from app.importers import guide
from app.importers.base import UnreadableUpload
from app.importers.registry import IMPORTERS
from app.importers.table import UnmappedTable
from app.services import run_changes, run_json, run_list, runs, tables
from app.services.ceilings import measured_ceilings
from app.services.context import Context
from app.services.diagnose import triage_json
from app.services.examples import remove_examples
from app.services.history import place_of
from app.services.jobs import Job
from app.services.run_changes import RunPatch
from app.services.run_lengths import length_summaries, lengths_of_run
from app.services.run_list import RunQuery
from app.services.run_points import PointChart, best_point, point_charts, points_table, step_charts, sweep_of
from app.services.run_sweep import Sweep, sweeps_of
from app.services.runs import RunView
from app.services.upload_run import UploadOutcome, submit_file
from app.services.what_if import nearest_state
from app.storage.errors import Busy, StorageError
from app.web import formatting, kernel_view, rendering
from app.web.deps import Ctx
from app.web.uploads import MAX_FILES, ReceivedFile, attachment, received

router = APIRouter(include_in_schema=False)

METRIC_WORDS: Mapping[str, str] = {
    "ttft_s": "Time to first token (TTFT)",
    "tpot_s": "Time per output token (TPOT)",
    "itl_s": "Inter-token latency (ITL)",
    "e2e_latency_s": "End-to-end latency",
    "step_time_s": "Step time",
    "prefill_time_s": "Prefill time",
    "decode_time_s": "Decode time",
    "kernel_time_s": "Kernel time",
    "latency_s": "Latency",
    "duration_s": "Duration",
    "requests_per_s": "Requests per second",
    "goodput_requests_per_s": "Goodput",
    "request_rate_per_s": "Request rate asked for",
    "samples_per_s": "Samples per second",
    "output_tokens_per_s": "Output throughput",
    "input_tokens_per_s": "Input throughput",
    "total_tokens_per_s": "Total throughput",
    "prefill_tokens_per_s": "Prefill throughput",
    "decode_tokens_per_s": "Decode throughput",
    "peak_output_tokens_per_s": "Peak output throughput",
    "tokens_per_s_per_device": "Throughput of a device",
    "output_tokens_per_s_per_device": "Output throughput of a device",
    "output_tokens_per_s_per_user": "Output throughput of a user",
    "model_flop_per_s_per_device": "Model FLOP/s of a device",
    "hbm_bytes_per_s": "HBM traffic",
    "bus_bandwidth_bytes_per_s": "Bus bandwidth",
    "algorithm_bandwidth_bytes_per_s": "Algorithm bandwidth",
    "mfu": "MFU",
    "hfu": "HFU",
    "mbu": "MBU",
    "peak_memory_bytes": "Peak memory",
    "reserved_memory_bytes": "Peak memory reserved",
    "device_memory_bytes": "Peak memory of the device",
    "kv_cache_bytes": "KV cache",
    "weight_bytes": "Weights as stored",
    "requests_completed": "Requests completed",
    "requests_failed": "Requests failed",
    "input_tokens": "Input tokens",
    "output_tokens": "Output tokens",
    "concurrency": "Requests in flight",
    "peak_concurrency": "Most requests in flight",
    "accepted_tokens_per_step": "Tokens accepted a step",
    "parameters": "Parameters",
    "power_w": "Power",
    "energy_j": "Energy",
    "loss": "Loss",
}
STAT_WORDS: Mapping[str, str] = {
    "mean": "Mean",
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "min": "Min",
    "max": "Max",
    "std": "Std",
}
SORTS: tuple[tuple[str, str], ...] = (
    ("-created_at", "Newest first"),
    ("created_at", "Oldest first"),
    ("name", "Name"),
    ("tpot_s", "Least time per token"),
    ("ttft_s", "Least time to first token"),
    ("-output_tokens_per_s", "Most output tokens/s"),
    ("step_time_s", "Least step time"),
)
PAGE = 50
MOST_SIBLINGS = 200
MOST_POINTS = 200

PRECISION_FIELDS = ("weights", "activations", "kv")
LAYOUT_FIELDS = ("tp", "pp", "dp", "ep")
SHAPE_FIELDS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "serve": (
        ("batch", "Sequences decoded together", "Of one replica; else from Little's law"),
        ("context_len", "Context in decode", "Tokens in the cache; else from the lengths in the file"),
    ),
    "decode": (
        ("batch", "Batch", "Sequences of one replica"),
        ("context_len", "Context", "Tokens in the cache"),
    ),
    "prefill": (
        ("batch", "Batch", "Prompts at once"),
        ("seq_len", "Prompt", "New tokens of a prompt"),
        ("context_len", "Context", "Tokens in the cache before"),
    ),
    "train": (
        ("batch", "Batch of a replica", "Sequences of one micro-batch"),
        ("seq_len", "Sequence length", "Tokens of a sequence"),
    ),
}


# ---- list and upload ------------------------------------------------------------------------------------------------


@router.get("/runs")
def runs_page(request: Request, ctx: Ctx) -> HTMLResponse:
    return _list_page(request, ctx)


def _list_page(request: Request, ctx: Context, status: int = 200, **more: Any) -> HTMLResponse:
    asked = request.query_params
    query = RunQuery(
        **{name: asked.get(name, "").strip()[:200] or None for name in ("format", "model", "hardware", "tag", "q")},
        since=asked.get("since", "").strip()[:40] or None,
        sort=asked.get("sort", "").strip()[:60] or "-created_at",
    )
    cursor = asked.get("cursor", "")[:4000] or None
    page = run_list.list_runs(ctx, query, limit=PAGE, cursor=cursor)
    facets = run_list.facets(ctx)
    names = {**dict(runs.known_names(ctx)[0]), **dict(runs.known_names(ctx)[1])}
    chosen = {
        "format": query.format,
        "model": query.model,
        "hardware": query.hardware,
        "tag": query.tag,
        "q": query.q,
        "since": query.since,
        "sort": None if query.sort == "-created_at" else query.sort,
    }
    context: dict[str, Any] = {
        "query": query,
        "page": page,
        "rows": [_list_row(item) for item in page.items],
        "any_runs": bool(facets.formats),
        "examples": any(item.run.is_example for item in page.items),
        "choices": {
            "format": [("", "Any format"), *((key, f"{key} ({n})") for key, n in facets.formats.items())],
            "hardware": [
                ("", "Any device"),
                *((key, f"{names.get(key, key)} ({n})") for key, n in facets.hardware.items()),
            ],
            "model": [("", "Any model"), *((key, f"{names.get(key, key)} ({n})") for key, n in facets.models.items())],
            "tag": [("", "Any tag"), *((key, f"{key} ({n})") for key, n in facets.tags.items())],
        },
        "sorts": SORTS,
        "next_url": rendering.query("/runs", **chosen, cursor=page.next) if page.next else "",
        "first_url": rendering.query("/runs", **chosen) if cursor else "",
        "max_upload": ctx.settings.max_upload_bytes,
        "max_files": MAX_FILES,
        "formats": [importer.title for importer in IMPORTERS],
        "base": ctx.settings.public_url or str(request.base_url).rstrip("/"),
        "answers": (),
        "summary": "",
        "waiting": tables.list_waiting(ctx),
        "jobs": [FileAnswer(job.file_name, job=job) for job in ctx.jobs.unfinished()],
        **more,
    }
    return rendering.page(request, "runs.html", context, status, part="runs_list.html")


def _list_row(item: run_list.RunListItem) -> dict[str, Any]:
    run = item.run
    shown = next(
        ((words, unit, run.headline[key]) for key, words, unit in _HEADLINES if key in run.headline),
        None,
    )
    return {
        "item": item,
        "run": run,
        "measured": None if item.measured is None else formatting.quantity(item.measured, "s"),
        "headline": None if shown is None else (shown[0], formatting.quantity(shown[2], shown[1])),
        "created": run.created_at.astimezone(UTC).strftime("%Y-%m-%d"),
    }


_HEADLINES: tuple[tuple[str, str, str], ...] = (
    ("output_tokens_per_s", "output", "tokens/s"),
    ("decode_tokens_per_s", "decode", "tokens/s"),
    ("prefill_tokens_per_s", "prefill", "tokens/s"),
    ("total_tokens_per_s", "total", "tokens/s"),
    ("tpot_s.mean", "per token", "s"),
    ("tpot_s.p50", "per token", "s"),
    ("step_time_s.mean", "a step", "s"),
    ("step_time_s", "a step", "s"),
    ("bus_bandwidth_bytes_per_s", "bus bandwidth", "B/s"),
    ("model_flop_per_s_per_device", "of a device", "FLOP/s"),
    ("kernel_time_s", "a kernel", "s"),
    ("kernel_time_s.p50", "a kernel", "s"),
    ("latency_s.mean", "latency", "s"),
    ("latency_s", "latency", "s"),
    ("hbm_bytes_per_s", "memory traffic", "B/s"),
    ("algorithm_bandwidth_bytes_per_s", "bandwidth", "B/s"),
    ("tokens_per_s_per_device.mean", "a device", "tokens/s"),
    ("tokens_per_s_per_device", "a device", "tokens/s"),
    ("samples_per_s", "samples", "1/s"),
    ("loss", "loss", "1"),
)


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """What one file of an upload came to, for the page: runs, a refusal, another problem, or a job that reads it."""

    name: str
    outcome: UploadOutcome | None = None
    refusal: UnreadableUpload | None = None
    problem: str = ""
    job: Job | None = None

    @property
    def is_read(self) -> bool:
        return self.outcome is not None

    @property
    def is_refused(self) -> bool:
        return self.refusal is not None or bool(self.problem)


@router.post("/runs")
async def upload(request: Request, ctx: Ctx) -> Response:
    """One readable file leads to its run; several, or one that cannot be read, are answered one by one."""
    answers = []
    async with received(request, ctx) as found:
        for file in found.files:
            answers.append(await run_in_threadpool(_stored, ctx, file, dict(found.fields)))
    only = answers[0] if len(answers) == 1 else None
    if only is not None and only.outcome is not None and only.outcome.runs and not only.outcome.upload.members:
        return redirect(request, f"/runs/{only.outcome.runs[0].id}" + ("" if only.outcome.created else "?again=1"))
    if only is not None and isinstance(only.refusal, UnmappedTable) and only.refusal.upload_id:
        return redirect(request, f"/tables/files/{only.refusal.upload_id}")
    if only is not None and only.job is not None:
        return redirect(request, f"/jobs/{only.job.id}")
    status = 422 if all(answer.is_refused for answer in answers) else 200
    context = {"answers": answers, "summary": summary_of(answers)}
    if rendering.wants_fragment(request):
        return rendering.fragment(request, "runs_answers.html", context, status)
    return await run_in_threadpool(_list_page, request, ctx, status, **context)


def _stored(ctx: Context, file: ReceivedFile, fields: dict[str, Any]) -> FileAnswer:
    name = file.name.replace("\\", "/").rsplit("/", 1)[-1][:120]
    try:
        outcome = submit_file(ctx, file.take(), file.name, **fields)
    except (UnreadableUpload, Busy) as error:
        return answer_of_error(name, error)
    return FileAnswer(name, job=outcome) if isinstance(outcome, Job) else FileAnswer(name, outcome)


def answer_of_error(name: str, error: Exception, job: Job | None = None) -> FileAnswer:
    """A file that came to nothing, with the reason."""
    if isinstance(error, UnreadableUpload):
        return FileAnswer(name, refusal=error, job=job)
    known = isinstance(error, (StorageError, DomainError))
    return FileAnswer(name, problem=f"{error}." if known else "The server met a fault of its own.", job=job)


def summary_of(answers: Sequence[FileAnswer]) -> str:
    """One sentence on several files; nothing for one."""
    if len(answers) < 2:
        return ""
    new = sum(answer.outcome is not None and answer.outcome.created for answer in answers)
    before = sum(answer.is_read for answer in answers) - new
    explain = sum(isinstance(answer.refusal, UnmappedTable) for answer in answers)
    refused = sum(answer.is_refused for answer in answers) - explain
    reading = len(answers) - new - before - refused - explain
    runs_made = sum(len(a.outcome.runs) for a in answers if a.outcome is not None and a.outcome.created)
    counts = (
        (new, f"read, with {formatting.count(runs_made, 'run')}"),
        (before, "stored before"),
        (reading, "being read"),
        (explain, "kept until its columns are explained" if explain == 1 else "kept until their columns are explained"),
        (refused, "refused"),
    )
    return f"{len(answers)} files: " + ", ".join(f"{number} {words}" for number, words in counts if number) + "."


def redirect(request: Request, url: str) -> Response:
    """A 303 for browsers; htmx and the drop zone are told in a header, so that they load the page themselves."""
    if rendering.wants_fragment(request):
        return Response(status_code=200, headers={"HX-Redirect": url, "Vary": rendering.VARY})
    return RedirectResponse(url, status_code=303)


@router.post("/runs/examples/remove")
def remove_example_runs(request: Request, ctx: Ctx, back: Literal["/", "/runs"] = "/runs") -> Response:
    """`back` names the page that the button stood on."""
    remove_examples(ctx)
    return redirect(request, back)


# ---- one run --------------------------------------------------------------------------------------------------------


@router.get("/runs/{run_id}")
def run_page(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    view = runs.get_view(ctx, run_id)
    context = _run_context(ctx, view, partial=rendering.wants_fragment(request), asked=request.query_params)
    context["again"] = request.query_params.get("again") == "1"
    return rendering.page(request, "run.html", context, part="run_body.html")


@router.get("/runs/{run_id}/raw")
def run_raw(ctx: Ctx, run_id: str) -> Response:
    return attachment(*runs.raw_file(ctx, run_id))


@router.get("/runs/{run_id}/delete")
def confirm_delete(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    view = runs.get_view(ctx, run_id)
    return rendering.page(request, "run_delete.html", {"view": view})


@router.post("/runs/{run_id}/delete")
def delete(request: Request, ctx: Ctx, run_id: str) -> Response:
    run_changes.delete_run(ctx, run_id)
    return redirect(request, "/runs")


@router.post("/runs/{run_id}")
async def change(request: Request, ctx: Ctx, run_id: str) -> Response:
    """The run's forms: `part` says which. An error keeps what was typed and stands beside its field."""
    form = await request.form(max_files=0, max_fields=60)
    typed = {key: value.strip()[:12_000] for key, value in form.items() if isinstance(value, str)}
    return await run_in_threadpool(_change, request, ctx, run_id, typed)


def _change(request: Request, ctx: Context, run_id: str, typed: dict[str, str]) -> Response:
    view = runs.get_view(ctx, run_id)
    problems: dict[str, str] = {}
    is_finding = typed.get("part") == "finding"
    try:
        view = run_changes.update_run(ctx, run_id, _patch(view, typed, problems))
        if is_finding and typed.get("all_runs") == "1":
            run_changes.acknowledge_in_file(ctx, view, typed["check"], typed["note"])
        if typed.get("whole_file") == "1":
            run_changes.copy_to_file(ctx, run_id)
            view = runs.get_view(ctx, run_id)
    except InvalidInput as error:
        name = str(error.loc[-1]) if error.loc else ""
        name = f"fact_{name}" if error.loc[:1] == ("facts",) else name
        name = "note" if error.loc[:1] == ("acknowledge",) else name
        problems[name if name in typed else "general"] = error.reason[:1].upper() + error.reason[1:] + "."
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][-1]) if first["loc"] else ""
        problems[name if name in typed else "general"] = str(first["msg"])
    except _NotWhole:
        pass
    if not problems and not rendering.wants_fragment(request):
        return RedirectResponse(f"/runs/{run_id}{'#findings' if is_finding else ''}", status_code=303)
    partial = rendering.wants_fragment(request)
    context = _run_context(ctx, view, typed if problems else None, problems, partial=partial)
    if problems:
        return rendering.page(request, "run.html", context, 422, part="run_body.html")
    return rendering.fragment(request, "run_body.html", context)


class _NotWhole(Exception):
    """A number of the form cannot be read; its message is noted already."""


def _patch(view: RunView, typed: Mapping[str, str], problems: dict[str, str]) -> RunPatch:
    if typed.get("part") == "finding":
        note = None if typed.get("reopen") == "1" else typed.get("note", "")
        return RunPatch(acknowledge={typed.get("check", ""): note})
    if typed.get("part") == "about":
        return RunPatch.model_validate(
            {
                "name": typed.get("name", ""),
                "tags": [typed.get("tags", "")],
                "notes": typed.get("notes") or None,
                "baseline": typed.get("baseline") or None,
                "is_baseline": typed.get("is_baseline") == "1",
                "series": typed.get("series") or None,
            }
        )
    stated = dict(view.run.workload_overrides)
    mode = _mode(view)
    for name in ("batch", "seq_len", "context_len"):
        if any(name == field for field, _, _ in SHAPE_FIELDS[mode]):
            _set(stated, name, _whole(name, typed, problems))
    layout = dict(stated.get("parallel") or {})
    for name in LAYOUT_FIELDS:
        _set(layout, name, _whole(name, typed, problems))
    dtypes = dict(stated.get("dtypes") or {})
    for name in PRECISION_FIELDS:
        _set(dtypes, name, typed.get(name) or None)
    _set(stated, "parallel", layout or None)
    _set(stated, "dtypes", dtypes or None)
    if "phase" in typed:
        _set(stated, "phase", typed["phase"] or None)
    if problems:
        raise _NotWhole
    facts = {fact.key: typed[f"fact_{fact.key}"] or None for fact in STATABLE if f"fact_{fact.key}" in typed}
    patch: dict[str, Any] = {"workload": stated, "facts": facts, "remember": typed.get("remember") == "1"}
    for name in ("hardware", "model"):
        if name in typed:
            patch[name] = typed[name] or None
    return RunPatch.model_validate(patch)


def _set(fields: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        fields.pop(name, None)
    else:
        fields[name] = value


def _whole(name: str, typed: Mapping[str, str], problems: dict[str, str]) -> int | None:
    text = typed.get(name, "").replace(",", "").replace("\u202f", "").replace(" ", "").replace("_", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 13:
        problems[name] = f"{typed[name][:30]!r} is not a whole number: write for example 8, or leave it empty."
        return None
    return int(text)


def _mode(view: RunView) -> str:
    mode = view.run.parsed.workload.mode or ""
    if mode in SHAPE_FIELDS:
        return mode
    phase = str(view.stated.get("phase") or "")
    return phase if phase in SHAPE_FIELDS else "prefill"


def _run_context(
    ctx: Context,
    view: RunView,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
    *,
    partial: bool = False,
    asked: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the run's templates show. `typed` holds a refused form, so that nothing typed is lost.

    `partial`: the answer goes to htmx, and the heading comes beside the body.
    """
    run, parsed = view.run, view.run.parsed
    main = view.analysis.main
    hardware, models = runs.known_names(ctx)
    sweeps = sweeps_of(ctx, view.siblings)
    mode = _mode(view)
    overrides = run.workload_overrides
    layout = dict(overrides.get("parallel") or {})
    dtypes = dict(overrides.get("dtypes") or {})
    values = {
        "hardware": view.hardware.name if view.hardware else run.hardware_id or "",
        "model": view.model.name if view.model else run.model_id or "",
        **{name: layout.get(name, "") for name in LAYOUT_FIELDS},
        **{name: dtypes.get(name, "") for name in PRECISION_FIELDS},
        **{name: overrides.get(name, "") for name, _, _ in SHAPE_FIELDS[mode]},
        "phase": overrides.get("phase", ""),
        "name": run.name,
        "tags": ", ".join(run.tags),
        "notes": parsed.notes or "",
        "baseline": run.baseline_run_id or "",
        "is_baseline": "1" if run.is_baseline else "",
        "series": run.series_name or "",
        "remember": "1" if typed is None else "",
        **{f"fact_{fact.key}": run.facts.get(fact.key, "") for fact in STATABLE},
        # checkboxes that are off are not sent: after a refusal, what was sent counts
        "whole_file": "1" if typed is None and len(view.siblings) > 1 and _needs_links(view) else "",
    }
    return {
        "partial": partial,
        "view": view,
        "run": run,
        "member": run_json.member_name(run),
        "untried": "" if guide.is_tried(run.format) else guide.UNTRIED,
        "mapping_id": next((f.fields[0] for f in run.upload.findings if f.check == "remembered-mapping"), ""),
        "parsed": parsed,
        "main": main,
        "values": values | dict(typed or {}),
        "problems": dict(problems or {}),
        "problem_list": [
            {"id": _field_id(name), "label": _FIELD_WORDS.get(name, name), "message": message}
            for name, message in (problems or {}).items()
            if name != "general"
        ],
        "saved_part": (typed or {}).get("part", ""),
        "again": False,
        "finding_groups": grouped(finding for finding in view.findings if finding not in view.acknowledged),
        "accepted": list(view.acknowledged.items()),
        "finding_words": _finding_words(view),
        "finding_links": _finding_links(view),
        "known_checks": KNOWN_CHECKS,
        "fact_fields": [fact for fact in STATABLE if fact.key in run.facts or fact in view.missing],
        "key_assumptions": [] if main is None else [note for note in main.assumptions if _is_open(note)],
        "gap": None if main is None else run_gap(main, title=_gap_title(main), caption=_conditions(view, main)),
        "bound_table": _bound_table(view),
        "sweeps": [_sweep_chart(sweep) for sweep in sweeps],
        "siblings": _siblings_table(view) if len(view.siblings) > 1 else None,
        "sibling_count": len(view.siblings),
        "metric_groups": [_metric_group(title, rows) for title, rows in view.metric_groups],
        "not_reported": [_key_words(key) for key in view.not_reported],
        "facts": _facts(view),
        "lab_url": _lab_url(view, main),
        "triage": triage_json(ctx, view),
        "lengths": _lengths_of(parsed),
        "kv_url": _kv_url(run.id, parsed),
        "needs_links": _needs_links(view),
        "hardware_names": [name for _, name in hardware],
        "model_names": [name for _, name in models],
        "shape_fields": SHAPE_FIELDS[mode],
        "assumed": {} if main is None else _assumed(main),
        "precisions": [("", "As the file says, or assumed"), *((name, name) for name in PRECISIONS)],
        "told": {**dict(parsed.workload.dtypes), **dict(parsed.parallel)},
        "ask_phase": parsed.workload.mode is None or parsed.workload.mode in ("latency", "kernel"),
        "baseline_rows": _baseline_table(view),
        "ceilings": measured_ceilings(parsed, view.hardware),
        "place": place_of(ctx, run),
        "micro": "" if main is not None else _micro_sentence(parsed),
        "comm_url": _comm_url(view),
        "points": [_points_chart(chart) for chart in point_charts(ctx, run, view.siblings)],
        "points_table": points_table(parsed, MOST_POINTS),
        "point_count": len(parsed.kernels),
        "steps": [_points_chart(chart) for chart in step_charts(run)],
        "evaluations": _evaluations_table(parsed),
        "kernels": kernel_view.section(ctx, run, view.hardware, asked or {}, own_page=False)
        if sweep_of(parsed) is None
        else None,
        "tray_item": {"kind": "run", "id": run.id, "label": run.name},
    }


def _kv_url(run_id: str, parsed: ParsedRun) -> str:
    """The KV page with this run's lengths, where it states some."""
    if lengths_of_run(parsed) is None:
        return ""
    return rendering.query("/kv", run=run_id)


def _lengths_of(parsed: ParsedRun) -> dict[str, Any] | None:
    """How long the run's requests were, where it lists them: a table, and a chart where they differ."""
    rows = length_summaries(parsed)
    if not rows:
        return None
    last = rows[-1]
    what = "Requests held" if len(rows) > 1 else f"{last.what}s had"
    title = f"{what} up to {last.most:,.0f} tokens, half of them at most {last.p50:,.0f}"
    spread = last.lengths if last.lengths.values.size > 1 else None
    return {
        "chart": None if spread is None else length_spread(spread, title=title, caption=last.what),
        "table": {
            "columns": [
                {"label": "Tokens of", "head": True},
                *({"label": name, "numeric": True} for name in ("Requests", "Mean", "Min", "p50", "p95", "p99", "Max")),
            ],
            "rows": [
                [row.what, *(_count_cell(value) for value in (row.count, row.mean, row.least, row.p50))]
                + [_count_cell(value) for value in (row.p95, row.p99, row.most)]
                for row in rows
            ],
        },
    }


def _count_cell(value: float) -> dict[str, Any]:
    return {"text": f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:,.4g}", "value": value}


KNOWN_CHECKS = frozenset({*(check.id for check in CHECKS), *(id_ for id_, *_ in ANALYSIS_CHECKS)})


def _finding_words(view: RunView) -> str:
    words = {"error": "contradiction", "warning": "warning", "info": "note"}
    still_open = (finding for finding in view.findings if finding not in view.acknowledged)
    counts = [(len(found), words[severity]) for severity, _, found in grouped(still_open)]
    said = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts]
    return ", ".join(said + [f"{len(view.acknowledged)} acknowledged"] * bool(view.acknowledged))


def _finding_links(view: RunView) -> dict[str, str]:
    """Where a finding can be answered: the form that holds its fields."""
    stated = any(fact.form == "facts" for fact in view.missing)
    linked = any(fact.form == "links" for fact in view.missing)
    return {
        "missing-facts": "#links" if linked or not stated else "#facts",
        "faster-than-bound": "#links",
        "does-not-fit": "#links",
    }


_FIELD_WORDS: Mapping[str, str] = {
    **{f"fact_{fact.key}": fact.label for fact in STATABLE},
    "hardware": "Device",
    "model": "Model",
    "tp": "Tensor parallel",
    "pp": "Pipeline stages",
    "dp": "Data parallel",
    "ep": "Expert parallel",
    "kv": "KV cache",
    "batch": "Batch",
    "seq_len": "Tokens",
    "context_len": "Context",
}


def _field_id(name: str) -> str:
    """The id that the field macro gives a field of this name."""
    return f"f-{name.replace('_', '-')}"


def _needs_links(view: RunView) -> bool:
    return view.hardware is None or view.model is None


def _gap_title(row: BoundRow) -> str:
    if row.contradicts:
        return "The measured time is below the bound: something stated is wrong"
    rest = next((part.time for part in row.gap if part.term == "unexplained"), 0.0)
    if rest <= 0:
        return "Bound and named terms explain the whole time"
    return f"{share_text(rest / row.measured)} of the measured time is not explained"


def _conditions(view: RunView, row: BoundRow) -> str:
    w = row.workload
    shape = {
        "decode": f"batch {w.batch:,}, context {w.context_len:,}",
        "prefill": f"{w.batch:,} × {w.seq_len:,} prompt tokens"
        + (f" after {w.context_len:,}" if w.context_len else ""),
        "train": f"batch {w.batch:,} × {w.seq_len:,} tokens",
    }[row.what]
    model = view.model.name if view.model else ""
    hardware = view.hardware.name if view.hardware else ""
    devices = f"{row.devices:,} × " if row.devices > 1 else ""
    weights = f"{w.dtypes.weights_bits:.3g}-bit" if w.dtypes.weights_bits is not None else w.dtypes.weights
    return f"{WHAT_WORDS[row.what]}: {model} on {devices}{hardware}, {shape}, {weights} weights, {w.dtypes.kv} KV cache"


def _bound_table(view: RunView) -> dict[str, Any] | None:
    if not view.analysis.rows:
        return None
    rows = []
    for row in view.analysis.rows:
        w = row.workload
        tokens = f"{w.batch:,} × {w.seq_len:,}" if row.what != "decode" else f"{w.batch:,}"
        rows.append(
            [
                {"text": WHAT_WORDS[row.what], "note": row.how},
                _time_cell(row.measured, f"{row.measured_from}: {row.how}"),
                _time_cell(row.bound, "the busiest resource alone: the least time for what is stated"),
                _time_cell(row.serial_bound, "operations one after another"),
                None if row.expected is None else _time_cell(row.expected.time, row.expected.basis),
                row.of_bound,
                {"resource": row.binding},
                {"value": row.mfu, "source": {"kind": "computed", "note": f"at the dense {row.mfu_precision} peak"}}
                if row.mfu is not None
                else None,
                {"value": row.hfu, "source": {"kind": "computed", "note": "executed FLOP, recomputation included"}}
                if row.hfu is not None
                else None,
                {"value": row.mbu, "source": {"kind": "computed", "note": "least bytes over memory bandwidth"}},
                {"text": tokens},
                {"text": f"{w.context_len:,}"},
                {"text": f"{row.devices:,}"},
            ]
        )
    return {
        "columns": [
            {"label": "Step", "head": True},
            {"label": "Measured", "numeric": True},
            {"label": "Bound", "numeric": True, "title": "The busiest resource alone"},
            {"label": "Serial bound", "numeric": True, "title": "Operations one after another"},
            {"label": "Expected", "numeric": True, "title": "What a well-tuned stack takes"},
            {"label": "Of bound", "unit": "ratio", "title": "Bound over measured"},
            {"label": "Binds"},
            {"label": "MFU", "unit": "ratio"},
            {"label": "HFU", "unit": "ratio"},
            {"label": "MBU", "unit": "ratio"},
            {"label": "Batch", "numeric": True},
            {"label": "Context", "numeric": True},
            {"label": "Devices", "numeric": True},
        ],
        "rows": rows,
    }


def _time_cell(time: float, note: str) -> dict[str, Any]:
    """A time with a unit of its own: a decode step and a queued first token differ by thousands."""
    human = formatting.quantity(time, "s")
    return {"text": str(human), "value": time, "title": f"{human.exact} · {note}"}


def _metric_group(title: str, rows: tuple[runs.MetricRow, ...]) -> dict[str, Any]:
    stats = [stat for stat in STATS if any(stat in row.stats for row in rows)]
    plain = any(row.plain is not None for row in rows)
    lines = []
    for row in rows:
        cells = [_metric_cell(row.plain)] if plain else []
        cells += [_metric_cell(row.stats.get(stat)) for stat in stats]
        lines.append(
            {
                "label": METRIC_WORDS.get(row.name, row.name),
                "name": row.name,
                "cells": cells,
                "better": row.better if title != runs.LOAD_GROUP else "",
            }
        )
    heads = (["Value"] if plain else []) + [STAT_WORDS[stat] for stat in stats]
    return {"title": title, "heads": heads, "rows": lines}


def _metric_cell(metric: Metric | None) -> dict[str, Any] | None:
    if metric is None:
        return None
    unit = "ratio" if metric.name in ("mfu", "hfu", "mbu") else metric.unit
    if metric.raw.startswith("computed"):
        written = metric.raw if metric.raw_unit in ("", metric.unit) else f"{metric.raw}, there in {metric.raw_unit}"
    else:
        written = f"written there as {metric.raw} {metric.raw_unit}".strip() if metric.raw else ""
    count = f"over {metric.count:,} observations" if metric.count else ""
    where = f"read from {metric.pointer}" if metric.pointer else "read from the file"
    note = ", ".join(part for part in (where, written, count) if part)
    return {
        "human": formatting.quantity(metric.value, unit),
        "value": metric.value,
        "source": {"kind": "measured", "note": note},
    }


def _key_words(key: str) -> str:
    name, _, stat = key.partition(".")
    words = METRIC_WORDS.get(name, name)
    words = words[:1].lower() + words[1:] if words[:1].isupper() and not words[:2].isupper() else words
    return f"{words} {STAT_WORDS.get(stat, stat)}".strip()


KIND_WORDS: Mapping[str, str] = {
    "serve": "serving load",
    "train": "training",
    "latency": "one batch, from prompt to last token",
}


def _facts(view: RunView) -> list[tuple[str, str]]:
    """What the file says about the work and the software, in words."""
    parsed, w = view.run.parsed, view.run.parsed.workload
    found: list[tuple[str, Any]] = [
        ("Kind of run", KIND_WORDS.get(w.mode or "", w.mode)),
        ("Model in the file", parsed.model_hint),
        ("Device in the file", parsed.hardware_hint),
        ("Request rate", "all at once" if w.request_rate == "inf" else _number(w.request_rate, " per s")),
        ("Concurrency", _number(w.concurrency)),
        ("Batch", _number(w.batch)),
        ("Prompt tokens", _number(w.input_len)),
        ("Output tokens", _number(w.output_len)),
        ("Context tokens", _number(w.context_len)),
        ("Layout in the file", ", ".join(f"{k.upper()} {v}" for k, v in parsed.parallel.items())),
        ("Precision in the file", ", ".join(f"{k} {v}" for k, v in w.dtypes.items())),
        ("Quantisation", w.extra.get("quantization")),
        ("Software", ", ".join(f"{k} {v}" for k, v in parsed.software.items())),
        ("Measured", formatting.when_stated(parsed.measured_at)),
        *((label, value if isinstance(value, str) else _number(value)) for label, value in _also(parsed).items()),
    ]
    return [(term, str(text)) for term, text in found if text not in (None, "")]


def _also(parsed: ParsedRun) -> dict[str, float | str]:
    """Values of the file that have no metric of their own; the label says the unit."""
    also = parsed.workload.extra.get("also")
    return dict(also) if isinstance(also, dict) else {}


def _number(value: float | str | None, unit: str = "") -> str | None:
    if value is None or value == "":
        return None
    return f"{value}{unit}" if isinstance(value, str) else f"{formatting.significant(float(f'{value:.6g}'))}{unit}"


def _is_open(note: str) -> bool:
    """Whether an assumption stands for something that the file leaves open and a person may know."""
    return note.endswith(("the file does not say.", "the file gives no layout.", "is known."))


def _assumed(row: BoundRow) -> dict[str, str]:
    """What the main step takes for fields that nobody stated: shown as placeholders of the form."""
    w = row.workload
    shown: dict[str, str] = {name: f"{getattr(w.parallel, name):,}" for name in ("tp", "dp")}
    return shown | {"batch": f"{w.batch:,}", "context_len": f"{w.context_len:,}", "seq_len": f"{w.seq_len:,}"}


def _siblings_table(view: RunView) -> dict[str, Any]:
    keys = [
        key
        for key in (
            "tpot_s",
            "ttft_s",
            "latency_s",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "output_tokens_per_s",
            "step_time_s",
            "samples_per_s",
            "kernel_time_s",
            "bus_bandwidth_bytes_per_s",
            "algorithm_bandwidth_bytes_per_s",
            "model_flop_per_s_per_device",
            "hbm_bytes_per_s",
            "duration_s",
            "loss",
        )
        if any(_headline(run, key) is not None for run in view.siblings)
    ][:4]
    rows = []
    for run in view.siblings[:MOST_SIBLINGS]:
        here = run.id == view.run.id
        first = {"text": run.name, "note": "this run"} if here else {"text": run.name, "href": f"/runs/{run.id}"}
        rows.append([first, *(_headline(run, key) for key in keys)])
    columns: list[dict[str, Any]] = [{"label": "Run", "head": True}]
    columns += [
        {"label": METRIC_WORDS[key], "numeric": True}
        if METRIC_UNITS[key] == "1"
        else {"label": METRIC_WORDS[key], "unit": METRIC_UNITS[key]}
        for key in keys
    ]
    return {"columns": columns, "rows": rows}


def _headline(run: Any, name: str) -> float | None:
    return next((run.headline[key] for key in (name, f"{name}.mean", f"{name}.p50") if key in run.headline), None)


def _sweep_chart(sweep: Sweep) -> dict[str, Any]:
    lines = {
        name: [SeriesPoint(p.name, p.x, p.measured, p.bound, f"/runs/{p.run_id}") for p in line]
        for name, line in sweep.lines.items()
    }
    bounded = [p for line in sweep.lines.values() for p in line if p.bound is not None]
    title = f"{sweep.title} over {sweep.x_label[:1].lower()}{sweep.x_label[1:]}"
    if bounded:
        best = max(bounded, key=lambda p: (p.bound or 0.0) / p.measured)
        title += f": at best {share_text((best.bound or 0.0) / best.measured)} of the bound"
    return {
        "id": f"sweep-{sweep.what}",
        "spec": run_series(lines, x_label=sweep.x_label, y_label=sweep.title, title=title),
    }


def _micro_sentence(parsed: ParsedRun) -> str:
    """What a micro-benchmark comes to, which no model of a step says: its best rate, or the time of a call."""
    best = best_point(parsed)
    if best is not None:
        axis, row = best
        subject = str(parsed.workload.extra["sweep"].get("label") or parsed.name)
        subject = subject[:1].upper() + subject[1:] if subject.islower() else subject
        value, where = value_words(row[axis["key"]], axis["unit"]), str(row.get("name", ""))
        word = axis["label"][:1].lower() + axis["label"][1:]
        of_what = "" if word in ("rate", "time") or not axis["unit"].endswith("/s") else f" of {word}"
        return f"{subject}: {value}{of_what}, {where}."
    problems = parsed.workload.extra.get("problems")
    typical = parsed.value("kernel_time_s", "p50")
    if problems and typical:
        return f"{value_words(typical, 's')} in the median of {problems} problems."
    if parsed.workload.mode != "kernel":
        return ""
    for name in ("latency_s", "kernel_time_s"):
        for stat, words in (("p50", " in the median"), ("mean", " on average"), (None, "")):
            took = parsed.value(name, stat)
            if name == "kernel_time_s" and stat is None and parsed.kernels:
                continue  # a profile's plain kernel time is that of all its kernels
            if took is not None and took > 0:
                return f"A call takes {value_words(took, 's')}{words}."
    return ""


def _comm_url(view: RunView) -> str:
    """The page of collectives with this run's own question, where it is one of a collective on a known device."""
    extra, series = view.run.parsed.workload.extra, view.run.parsed.series
    kind = {"send_recv": "p2p"}.get(str(extra.get("collective")), str(extra.get("collective")))
    size, ranks = series.get("size_bytes"), extra.get("ranks")
    if view.hardware is None or kind not in COLLECTIVES or not isinstance(size, float) or not isinstance(ranks, int):
        return ""
    return rendering.query("/comm", hardware=view.hardware.id, kind=kind, size=value_words(size, "B"), ranks=ranks)


def _points_chart(chart: PointChart) -> dict[str, Any]:
    lines = {
        name: [PointOfLine(p.x, p.y, p.name, f"/runs/{p.run_id}" if p.run_id else "") for p in line]
        for name, line in chart.lines.items()
    }
    spec = run_points(
        lines,
        own=chart.own,
        x_label=chart.x_label,
        x_unit=chart.x_unit,
        y_label=chart.label,
        y_unit=chart.unit,
        title=_points_title(chart),
        ordered=chart.ordered,
        linear=chart.linear,
    )
    return {"id": f"points-{chart.key.replace('.', '-')}", "spec": spec}


def _points_title(chart: PointChart) -> str:
    """What the run's own lines come to: the best rate and where it is, or the range of the times."""
    own = [point for line in list(chart.lines.values())[: chart.own] for point in line]
    # Names of dimensions (V, BT, M) keep their capitals.
    varied = chart.x_label if len(chart.x_label) <= 2 else chart.x_label[:1].lower() + chart.x_label[1:]
    over = f"{chart.label} over {varied}"
    if not own:
        return over
    least, most = min(own, key=lambda p: p.y), max(own, key=lambda p: p.y)
    if chart.unit.endswith("/s"):
        where = value_words(most.x, chart.x_unit) if chart.x_unit else f"{varied} {most.x:g}"
        return f"{over}: up to {value_words(most.y, chart.unit)} at {where}"
    return f"{over}: {value_words(least.y, chart.unit)} to {value_words(most.y, chart.unit)}"


def _evaluations_table(parsed: ParsedRun) -> dict[str, Any] | None:
    """Evaluations that a training file lists, as it lists them."""
    told = parsed.workload.extra.get("evaluations")
    rows = [entry for entry in told if isinstance(entry, dict)][:MOST_SIBLINGS] if isinstance(told, list) else []
    keys = [key for key in dict.fromkeys(k for row in rows for k in row) if key != "at"]
    if not keys:
        return None
    units = {"runtime_s": "s", "samples_per_s": "1/s"}
    columns: list[dict[str, Any]] = [
        {"label": EVALUATION_WORDS.get(key, key.replace("_", " ").capitalize()), "unit": units[key]}
        if key in units
        else {"label": EVALUATION_WORDS.get(key, key.replace("_", " ").capitalize()), "numeric": key != "name"}
        for key in keys
    ]
    return {"columns": columns, "rows": [[row.get(key) for key in keys] for row in rows]}


EVALUATION_WORDS: Mapping[str, str] = {
    "name": "Set",
    "samples": "After samples",
    "step": "After step",
    "runtime_s": "Time",
    "samples_per_s": "Samples per second",
    "loss": "Loss",
}


def _baseline_table(view: RunView) -> dict[str, Any] | None:
    rows = []
    for row in view.against_baseline:
        change = row.change
        word = "" if change is None else "the same" if change == 0 else "better" if change > 0 else "worse"
        rows.append(
            [
                _key_words(row.key).capitalize() if not row.key[:1].isupper() else row.key,
                formatting.quantity(row.value, row.unit),
                formatting.quantity(row.baseline, row.unit),
                {
                    "text": "baseline is zero"
                    if change is None
                    else f"{formatting.percent(abs(change))} {word}".strip(),
                    "value": change,
                },
            ]
        )
    if not rows:
        return None
    columns = [
        {"label": "Metric", "head": True},
        {"label": "This run", "numeric": True},
        {"label": "Baseline", "numeric": True},
        {"label": "Change", "numeric": True},
    ]
    return {"columns": columns, "rows": rows}


def _lab_url(view: RunView, row: BoundRow | None) -> str:
    """The what-if lab at the very step that the run measured."""
    request = None if row is None else run_json.row_request(view, row)
    if request is None or view.model is None:
        return ""
    state = nearest_state(request, view.model)
    return "" if state is None else rendering.query("/explore", **state.query())
