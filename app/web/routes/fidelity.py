"""The page that holds every bound and forecast against what somebody measured."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.catalog.fidelity import kind_title
from app.charts.fidelity import fidelity_boxes
from app.services.fidelity import fidelity_page, target_of
from app.web import rendering
from app.web.deps import Ctx

router = APIRouter(include_in_schema=False)


@router.get("/library/fidelity")
def fidelity(request: Request, ctx: Ctx) -> HTMLResponse:
    """The recorded result; `make fidelity` renews it."""
    page = fidelity_page()
    chart = fidelity_boxes(
        page.judged_kinds,
        title="Measured times lie right of their bounds and around their forecasts",
        caption="Box: middle half; whiskers: 10th to 90th percentile; one is the bound or the forecast itself",
    )
    names = {id_: profile.name for id_, profile in ctx.catalog.hardware.items()}
    return rendering.page(
        request,
        "fidelity.html",
        {"page": page, "chart": chart, "device_names": names, "target_of": target_of, "kind_title": kind_title},
    )
