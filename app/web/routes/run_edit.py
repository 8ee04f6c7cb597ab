"""What people may change of a run: names, links, facts, and findings that are acknowledged."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.domain.errors import InvalidInput
from app.services import run_changes, runs
from app.services.context import Context
from app.web import rendering
from app.web.deps import Ctx
from app.web.run_form import NotWhole, patch_of
from app.web.run_view import run_context

router = APIRouter(include_in_schema=False)


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
        view = run_changes.update_run(ctx, run_id, patch_of(view, typed, problems))
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
    except NotWhole:
        pass
    if not problems and not rendering.wants_fragment(request):
        return RedirectResponse(f"/runs/{run_id}{'#findings' if is_finding else ''}", status_code=303)
    partial = rendering.wants_fragment(request)
    context = run_context(ctx, view, typed if problems else None, problems, partial=partial)
    if problems:
        return rendering.page(request, "run.html", context, 422, part="run_body.html")
    return rendering.fragment(request, "run_body.html", context)
