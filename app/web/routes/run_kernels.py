"""Pages of a run's kernels: time by family, timeline, roofline, the searchable table, and two runs kernel by kernel."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.services import kernels, runs
from app.storage.errors import InvalidQuery, NotFound
from app.web import kernel_view, rendering
from app.web.deps import Ctx

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/kernels")
def run_kernels(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    """The whole page, or for htmx the table or the timeline alone (`part`)."""
    asked = request.query_params
    run = kernels.run_with_kernels(ctx, run_id)
    base = f"/runs/{run.id}/kernels"
    if rendering.wants_fragment(request):
        if asked.get("part") == "timeline":
            part = kernel_view.timeline_part(run, asked, base)
            return rendering.fragment(request, "kernel_timeline.html", {"timeline": part})
        rows = kernels.rows_of(run)
        context = {"table": kernel_view.table_part(rows, asked, base) if rows else None}
        return rendering.fragment(request, "kernel_table.html", context)
    hardware, _, _ = runs.linked(ctx, run)
    found = kernel_view.section(ctx, run, hardware, asked, own_page=True)
    return rendering.page(request, "run_kernels.html", {"run": run, "kernels": found})


@router.get("/runs/{run_id}/kernels/compare")
def compare(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    """Two runs kernel by kernel; without a baseline, or with a wrong one, the form that asks for it."""
    asked = request.query_params
    baseline = asked.get("baseline", "").strip()[:80]
    run = kernels.run_with_kernels(ctx, run_id)
    context = {
        "run": run,
        "others": kernel_view.others(ctx, run),
        "baseline": baseline,
        "problem": "",
        "before": None,
        "changes": None,
    }
    if baseline:
        try:
            found = kernels.comparison_of(ctx, run_id, baseline)
            context |= {"before": found.before, "changes": kernel_view.comparison(found, asked)}
        except NotFound:
            context["problem"] = (
                f"There is no run {baseline!r}: choose one from the list, or copy the id from its page."
            )
        except InvalidQuery as error:
            if error.field not in ("run", "baseline"):
                raise
            context["problem"] = f"{error.reason[:1].upper()}{error.reason[1:]}."
    status = 422 if context["problem"] else 200
    return rendering.page(request, "kernel_compare.html", context, status, part="kernel_changes.html")
