"""Large uploads that are being read: how far they are, what they came to, and how to stop them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict

from app.services import run_json
from app.services.context import Context
from app.services.jobs import Job
from app.services.upload_run import outcome_of
from app.storage.errors import NotFound
from app.web import errors
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse

router = APIRouter(prefix="/api/v1")

JobId = Annotated[str, Path(max_length=80, description="Id of a job.")]


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class JobAnswer(Loose):
    """A large upload. `state` is waiting, reading, storing, done, failed or cancelled; `progress` is 0 to 1, or null.

    A job that is done carries `result`, as the upload would have been answered; one that failed carries `problem`.
    """

    job: str
    state: str
    file_name: str
    size_bytes: int
    progress: float | None


class JobListAnswer(Loose):
    items: list[JobAnswer]
    total: int


@router.get("/jobs", tags=["runs"], summary="Uploads being read", response_model=JobListAnswer)
def list_jobs(request: Request, ctx: Ctx) -> Response:
    """Jobs that wait or run, oldest first."""
    items = [job_json(request, ctx, job) for job in ctx.jobs.unfinished()]
    return FiniteJSONResponse({"items": items, "total": len(items)})


@router.get("/jobs/{job}", tags=["runs"], summary="How far an upload is", response_model=JobAnswer)
def get_job(request: Request, ctx: Ctx, job: JobId) -> Response:
    """Ask every second or so. Jobs are forgotten when the server stops; an upload is stored whole or not at all."""
    return FiniteJSONResponse(job_json(request, ctx, ctx.jobs.get(job)))


@router.delete("/jobs/{job}", tags=["runs"], summary="Stop reading an upload", response_model=JobAnswer)
def cancel_job(request: Request, ctx: Ctx, job: JobId) -> Response:
    """Nothing of a cancelled upload is stored. One that is being stored or done already stays as it is."""
    found = ctx.jobs.get(job)
    found.cancel()
    return FiniteJSONResponse(job_json(request, ctx, found))


def job_json(request: Request, ctx: Context, job: Job) -> dict[str, Any]:
    """What is known of a job, with its result or problem when it has one."""
    answer: dict[str, Any] = {
        "job": job.id,
        "url": f"/api/v1/jobs/{job.id}",
        "state": job.state,
        "file_name": job.file_name,
        "size_bytes": job.size_bytes,
        "progress": 1.0 if job.state == "done" else job.share,
        "created_at": job.created_at.isoformat(),
    }
    if job.error is not None:
        answer["problem"] = refusal(request, job.error)
    if job.state == "done" and job.upload_id is not None:
        try:
            answer["result"] = run_json.outcome_json(ctx, outcome_of(ctx, job.upload_id, job.created))
        except NotFound:
            answer["result"] = None  # its runs were deleted since
    return answer


def refusal(request: Request, error: Exception) -> dict[str, Any]:
    """Why a file was refused, with the members of a problem document."""
    found = errors.problem_of(request, error) or errors.problem(
        "unexpected", "The server met a fault of its own while it read the file; its log has the details."
    )
    answer: dict[str, Any] = {"status": found.status_code, "title": found.kind.title, "detail": found.detail}
    if found.errors:
        answer["errors"] = [{"loc": list(loc), "msg": message} for loc, message in found.errors[: errors.MAX_ERRORS]]
    return answer | dict(found.extra)
