"""Runs for scripts: upload, list, read, change, delete, and a gate for continuous integration."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.importers.base import UnreadableUpload
from app.services import history, links, run_changes, run_json, run_list, runs
from app.services.check import CheckRequest, check_run
from app.services.context import Context
from app.services.jobs import Job
from app.services.run_changes import RunPatch
from app.services.run_json import lint_table
from app.services.run_list import RunQuery
from app.services.upload_run import submit_file
from app.storage.errors import Busy
from app.web import errors
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.routes.api_jobs import JobAnswer, Loose, job_json, refusal
from app.web.uploads import ReceivedFile, attachment, received

router = APIRouter(prefix="/api/v1")

RunId = Annotated[str, Path(max_length=80, description="Id of a run.")]
LinkId = Annotated[str, Path(max_length=80, description="Id of a remembered link.")]
Text = Annotated[str | None, Query(max_length=200)]

_UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "hardware": {"type": "string"},
                        "model": {"type": "string"},
                        "workload": {"type": "string", "description": "JSON text, or the id of a saved workload"},
                        "name": {"type": "string"},
                        "tags": {"type": "string", "description": "separated by commas"},
                        "baseline": {"type": "string", "description": "id of a run"},
                        "mapping": {"type": "string", "description": "JSON text: what a table's columns mean"},
                    },
                }
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


class RunAnswer(Loose):
    """A run: metrics in SI units by key (`ttft_s.p99`), links, findings, and its main step against the bound.

    `verdict` is its result in one sentence; `gap` are the named terms between bound and measured time, whose `time_s`
    add up to `measured_s - bound_s`; `missing` names the facts that nobody states, and `needs` what a bound lacks.
    """

    id: str
    name: str
    format: str
    created_at: str
    metrics: dict[str, Any]
    findings: list[dict[str, Any]]


class RunListAnswer(Loose):
    items: list[dict[str, Any]]
    next: str | None
    total: int


class UploadAnswer(Loose):
    """One upload; for several files `items` holds one answer for each, with its `status`."""

    upload: str
    format: str
    sha256: str
    runs: list[RunAnswer]
    findings: list[dict[str, Any]]


class SeriesListAnswer(Loose):
    items: list[dict[str, Any]]
    next: str | None
    total: int


class SeriesAnswer(Loose):
    """One series: `runs` from the oldest, `change_points` by the run from which the level is another."""

    key: str
    label: str
    metric: str | None
    baseline: str | None
    runs: list[dict[str, Any]]
    change_points: list[dict[str, Any]]


class LinksAnswer(Loose):
    items: list[dict[str, Any]]
    total: int


class ChecksAnswer(Loose):
    checks: list[dict[str, Any]]
    facts: list[dict[str, Any]]


class CheckAnswer(Loose):
    """`rows` has one entry for each rule, in their order; `decided_by` is limit, noise or missing."""

    passed: bool
    rows: list[dict[str, Any]]


@router.post(
    "/runs",
    tags=["runs"],
    summary="Upload files",
    status_code=201,
    response_model=UploadAnswer,
    openapi_extra=_UPLOAD_BODY,
    responses={
        200: {"description": "These bytes were stored already", "model": UploadAnswer},
        202: {"description": "The file is large and being read: ask for the job", "model": JobAnswer},
    },
)
async def post_runs(request: Request, ctx: Ctx) -> Response:
    """Send benchmark files as the form field `file`, or one as the body itself with `?filename=`.

    The format is found from the content. Device and model are guessed from what the file says unless given. The same
    bytes again answer 200 with the runs that are there. A large file answers 202 with a job that reads it. Of a zip
    archive every file is read; `members` says what each came to. A table of no known tool answers 422 with its
    `columns` and a guess of their `mapping`: send the file again with that, corrected, and the next files with the
    same columns are read by it. Several files are answered one by one under `items`,
    in order; files that cannot be read do not stop the others.
    """
    async with received(request, ctx) as found:
        fields = dict(found.fields)
        if len(found.files) == 1:
            status, answer = await run_in_threadpool(_store, request, ctx, found.files[0], fields)
            return FiniteJSONResponse(answer, status_code=status, headers=_location(status, answer))
        items = []
        for file in found.files:
            try:
                status, answer = await run_in_threadpool(_store, request, ctx, file, fields)
                items.append({"status": status, **answer})
            except (UnreadableUpload, Busy) as error:
                items.append({"file_name": file.name[:200], **refusal(request, error)})
    statuses = {item["status"] for item in items}
    overall = next((status for status in (201, 202, 200) if status in statuses), 422)
    counts = {
        "stored": sum(item["status"] == 201 for item in items),
        "stored_before": sum(item["status"] == 200 for item in items),
        "being_read": sum(item["status"] == 202 for item in items),
    }
    body: dict[str, Any] = {"items": items, "summary": {**counts, "refused": len(items) - sum(counts.values())}}
    if overall == 422:
        kind = errors.KINDS["unreadable-upload"]
        detail = f"None of the {len(items)} files can be read; `items` says why."
        body = {"type": kind.type, "title": kind.title, "status": 422, "detail": detail, **body}
        return FiniteJSONResponse(body, status_code=422, media_type=errors.PROBLEM_JSON)
    return FiniteJSONResponse(body, status_code=overall)


def _store(request: Request, ctx: Context, file: ReceivedFile, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    outcome = submit_file(ctx, file.take(), file.name, **fields)
    if isinstance(outcome, Job):
        return 202, job_json(request, ctx, outcome)
    return (201 if outcome.created else 200), run_json.outcome_json(ctx, outcome)


def _location(status: int, answer: dict[str, Any]) -> dict[str, str]:
    if status == 202:
        return {"Location": f"/api/v1/jobs/{answer['job']}"}
    return {"Location": f"/api/v1/runs/{answer['runs'][0]['id']}"} if answer["runs"] else {}


@router.get("/runs", tags=["runs"], summary="List runs", response_model=RunListAnswer)
def list_runs(
    ctx: Ctx,
    format: Text = None,
    model: Text = None,
    hardware: Text = None,
    tag: Text = None,
    q: Annotated[str | None, Query(max_length=200, description="Words that must all occur.")] = None,
    since: Annotated[str | None, Query(max_length=40, description="ISO 8601")] = None,
    sort: Annotated[str, Query(max_length=60, description="A key, with - before it for descending.")] = "-created_at",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> Response:
    """Runs with their headline metrics, newest first. `sort` takes created_at, name or a metric (`ttft_s.p99`)."""
    query = RunQuery(format=format, model=model, hardware=hardware, tag=tag, q=q, since=since, sort=sort)
    page = run_list.list_runs(ctx, query, limit=limit, cursor=cursor)
    items = [run_json.list_item_json(item) for item in page.items]
    return FiniteJSONResponse({"items": items, "next": page.next, "total": page.total})


@router.post("/runs/check", tags=["runs"], summary="Compare with a baseline", response_model=CheckAnswer)
def check(ctx: Ctx, body: CheckRequest) -> Response:
    """A gate for CI: `passed` is true when no metric is worse than its rule allows. What is not reported fails.

    `baseline` is a run's id, or `series`: the marked baseline of the run's history, else the median of its last runs.
    Where both sides carry samples of a metric, `noise` holds a bootstrap interval of the regression and a Mann-Whitney
    test, and a regression that they explain passes.
    """
    return FiniteJSONResponse(check_run(ctx, body))


@router.get("/runs/series", tags=["runs"], summary="List series", response_model=SeriesListAnswer)
def list_series(
    ctx: Ctx,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=20, pattern="^[0-9]{1,9}$")] = None,
) -> Response:
    """Series of two runs or more: the same workload on the same hardware. The one with the newest run comes first."""
    offset = int(cursor or 0)
    items, total = history.list_history(ctx, limit=limit, offset=offset)
    following = offset + len(items)
    return FiniteJSONResponse(
        {
            "items": [history.series_item_json(item) for item in items],
            "next": str(following) if items and following < total else None,
            "total": total,
        }
    )


@router.get("/runs/series/{series}", tags=["runs"], summary="One series", response_model=SeriesAnswer)
def get_series(
    ctx: Ctx, series: Annotated[str, Path(max_length=80, description="Key of a series.")], metric: Text = None
) -> Response:
    """The runs of a series from the oldest, with one metric's values and spread, the baseline and change points."""
    return FiniteJSONResponse(history.history_json(history.get_history(ctx, series, metric)))


@router.get("/runs/links", tags=["runs"], summary="Remembered links", response_model=LinksAnswer)
def remembered_links(ctx: Ctx) -> Response:
    """What files' wordings for devices and models mean to this team, as somebody corrected them once."""
    items = [links.link_json(ctx, link) for link in links.remembered_links(ctx)]
    return FiniteJSONResponse({"items": items, "total": len(items)})


@router.delete("/runs/links/{link}", tags=["runs"], summary="Forget a link", status_code=204)
def forget_link(ctx: Ctx, link: LinkId) -> Response:
    """Forget what a wording means. Runs that were linked by it keep their link."""
    links.forget_link(ctx, link)
    return Response(status_code=204)


@router.get("/runs/checks", tags=["runs"], summary="What is checked of a run", response_model=ChecksAnswer)
def lint_checks() -> Response:
    """Every check of the lint with the most severe finding it makes, and every fact that a file may lack."""
    return FiniteJSONResponse(lint_table())


@router.get("/runs/{run}", tags=["runs"], summary="One run", response_model=RunAnswer)
def get_run(ctx: Ctx, run: RunId) -> Response:
    """The run with every metric, where each was read from, its findings, and its steps against their bounds."""
    return FiniteJSONResponse(run_json.run_json(runs.get_view(ctx, run)))


@router.patch("/runs/{run}", tags=["runs"], summary="Link, rename, tag", response_model=RunAnswer)
def patch_run(ctx: Ctx, run: RunId, body: RunPatch) -> Response:
    """Change what people state about a run; what the file said stays. A field left out stays, null takes it back."""
    return FiniteJSONResponse(run_json.run_json(run_changes.update_run(ctx, run, body)))


@router.delete("/runs/{run}", tags=["runs"], summary="Delete a run", status_code=204)
def delete_run(ctx: Ctx, run: RunId) -> Response:
    """Delete a run. With the last run of its upload goes the file. Comparisons keep what they show."""
    run_changes.delete_run(ctx, run)
    return Response(status_code=204)


@router.get(
    "/runs/{run}/raw",
    tags=["runs"],
    summary="The file",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
def raw(ctx: Ctx, run: RunId) -> Response:
    """The uploaded file, byte for byte."""
    return attachment(*runs.raw_file(ctx, run))
