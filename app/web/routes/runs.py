"""The list of runs with its drop zone, and what an upload came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from app.domain.errors import DomainError
from app.importers.base import UnreadableUpload
from app.importers.registry import IMPORTERS
from app.importers.table import UnmappedTable
from app.services import run_list, runs, tables
from app.services.context import Context
from app.services.examples import remove_examples
from app.services.jobs import Job
from app.services.run_list import RunQuery
from app.services.upload_run import UploadOutcome, submit_file
from app.storage.errors import Busy, StorageError
from app.web import formatting, rendering
from app.web.deps import Ctx
from app.web.uploads import MAX_FILES, ReceivedFile, received

router = APIRouter(include_in_schema=False)

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
    names = {id_: name for known in runs.known_names(ctx) for id_, name in known}
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
        return rendering.redirect(
            request, f"/runs/{only.outcome.runs[0].id}" + ("" if only.outcome.created else "?again=1")
        )
    if only is not None and isinstance(only.refusal, UnmappedTable) and only.refusal.upload_id:
        return rendering.redirect(request, f"/tables/files/{only.refusal.upload_id}")
    if only is not None and only.job is not None:
        return rendering.redirect(request, f"/jobs/{only.job.id}")
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


@router.post("/runs/examples/remove")
def remove_example_runs(request: Request, ctx: Ctx, back: Literal["/", "/runs"] = "/runs") -> Response:
    """`back` names the page that the button stood on."""
    remove_examples(ctx)
    return rendering.redirect(request, back)
