"""Ceilings that a run measured: offered on its page, and taken over by a profile there or through the API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field

from app.domain.errors import InvalidInput
from app.probe import source_text
from app.services import catalogue
from app.services.catalogue import hardware_json
from app.services.ceilings import measured_ceilings, take_ceilings
from app.services.context import Context
from app.services.contracts import Contract
from app.services.runs import get_view
from app.storage.errors import Conflict
from app.web import rendering
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.forms import FormTexts, sentence
from app.web.routes.hardware import address_of
from app.web.schemas import HardwareAnswer

router = APIRouter()

PROBE_NAME = "bytebound_probe.py"


class CeilingsRequest(Contract):
    """`run` measured them; `figures` are names of a profile's figures, by default all that the run has."""

    run: Annotated[str, Field(min_length=1, max_length=80)]
    figures: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=40)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None


@router.post(
    "/api/v1/hardware/{hardware}/ceilings",
    tags=["hardware"],
    summary="Take a run's measured ceilings",
    response_model=HardwareAnswer,
    responses={201: {"model": HardwareAnswer, "description": "A copy of a shipped profile was made"}},
)
def take(ctx: Ctx, hardware: Annotated[str, Path(max_length=200)], body: CeilingsRequest) -> Response:
    """Set achievable ceilings and launch costs of a profile to what a run measured, with the run as their source.

    A profile of your own is changed (200). Of a shipped one a copy is made (201), called `name`. The run is linked to
    the profile.
    """
    entry, made = take_ceilings(ctx, body.run, hardware, body.figures, body.name)
    headers = {"Location": f"/api/v1{address_of(entry)}"} if made else {}
    return FiniteJSONResponse(hardware_json(entry), status_code=201 if made else 200, headers=headers)


@router.get("/probe", include_in_schema=False)
def probe_page(request: Request) -> HTMLResponse:
    """What the probe is, and how to run it."""
    base = str(request.base_url).rstrip("/")
    return rendering.page(request, "probe.html", {"base": base, "file_name": PROBE_NAME})


@router.get("/probe/bytebound_probe.py", include_in_schema=False)
def probe_file() -> Response:
    """The probe as one file."""
    headers = {"Content-Disposition": f'attachment; filename="{PROBE_NAME}"', "Cache-Control": "no-cache"}
    return Response(source_text(), media_type="text/x-python; charset=utf-8", headers=headers)


@router.get("/runs/{run_id}/ceilings", include_in_schema=False)
def offer(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    """The figures that a run measured beside what a profile states, to choose from."""
    return _offer(request, ctx, run_id)


@router.post("/runs/{run_id}/ceilings", include_in_schema=False)
def accept(request: Request, ctx: Ctx, run_id: str, texts: FormTexts) -> Response:
    figures = [name.removeprefix("figure:") for name in texts if name.startswith("figure:")]
    try:
        entry, _ = take_ceilings(ctx, run_id, texts.get("hardware") or None, figures, texts.get("name") or None)
    except InvalidInput as error:
        return _offer(request, ctx, run_id, texts, sentence(error.reason), str(error.loc[-1]) if error.loc else "", 422)
    except Conflict as error:
        return _offer(request, ctx, run_id, texts, sentence(str(error)), "name", 409)
    return rendering.redirect(request, address_of(entry))


def _offer(
    request: Request,
    ctx: Context,
    run_id: str,
    texts: FormTexts | None = None,
    problem: str = "",
    field: str = "",
    status: int = 200,
) -> HTMLResponse:
    view = get_view(ctx, run_id)
    target = (texts or {}).get("hardware") or request.query_params.get("hardware", "")[:200]
    profile = view.hardware
    if target:
        try:
            profile = catalogue.get_hardware(ctx, target).profile
        except LookupError as error:
            problem, field, status = problem or sentence(str(error)), field or "hardware", max(status, 422)
    ceilings = measured_ceilings(view.run.parsed, profile)
    chosen = (
        {c.figure for c in ceilings} if texts is None else {c.figure for c in ceilings if f"figure:{c.figure}" in texts}
    )
    own = [entry for entry in catalogue.all_hardware(ctx) if not entry.profile.shipped]
    shipped = [entry for entry in catalogue.all_hardware(ctx) if entry.profile.shipped]
    context = {
        "run": view.run,
        "profile": profile,
        "ceilings": ceilings,
        "chosen": chosen,
        "problem": problem,
        "problem_field": field,
        "hardware": target or ("" if profile is None else profile.id),
        "name": (texts or {}).get("name", ""),
        "hardware_options": [
            ("", "Choose the device"),
            {"group": "Your own", "options": [(e.id, e.name) for e in own]},
            {"group": "Copy of a shipped one", "options": [(e.id, e.name) for e in shipped]},
        ],
    }
    return rendering.page(request, "run_ceilings.html", context, status)
