"""The page of a large upload that is being read. It can be left, reloaded and come back to."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.importers.table import UnmappedTable
from app.services.context import Context
from app.services.jobs import Job
from app.services.upload_run import outcome_of
from app.storage.errors import NotFound
from app.web import rendering
from app.web.deps import Ctx
from app.web.routes.runs import FileAnswer, answer_of_error

router = APIRouter(include_in_schema=False)


@router.get("/jobs/{job_id}")
def job_page(request: Request, ctx: Ctx, job_id: str, follow: bool = False) -> Response:
    """The page; for htmx its row, and with `follow` the way to the run as soon as it is stored."""
    job = ctx.jobs.get(job_id)
    answer = answer_of_job(ctx, job)
    if answer.outcome is not None and answer.outcome.runs and (follow or not rendering.wants_fragment(request)):
        return rendering.redirect(request, f"/runs/{answer.outcome.runs[0].id}" + ("" if job.created else "?again=1"))
    if (
        isinstance(job.error, UnmappedTable)
        and job.error.upload_id
        and (follow or not rendering.wants_fragment(request))
    ):
        return rendering.redirect(request, f"/tables/files/{job.error.upload_id}")
    context = {"answer": answer, "follow": follow or not rendering.wants_fragment(request)}
    return rendering.page(request, "job.html", context, part="job.html")


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, ctx: Ctx, job_id: str) -> Response:
    job = ctx.jobs.get(job_id)
    job.cancel()
    if rendering.wants_fragment(request):
        return rendering.fragment(request, "job.html", {"answer": answer_of_job(ctx, job), "follow": False})
    return rendering.redirect(request, f"/jobs/{job_id}")


def answer_of_job(ctx: Context, job: Job) -> FileAnswer:
    """What a job came to so far, as the answer to its file."""
    if job.error is not None:
        return answer_of_error(job.file_name, job.error, job)
    if job.state == "done" and job.upload_id is not None:
        try:
            return FileAnswer(job.file_name, outcome_of(ctx, job.upload_id, job.created), job=job)
        except NotFound:
            pass  # its runs were deleted since
    return FileAnswer(job.file_name, job=job)
