"""The page of everything that uploads may look like."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.importers import guide
from app.web import rendering
from app.web.deps import Ctx

router = APIRouter(include_in_schema=False)


@router.get("/formats")
def formats_page(request: Request, ctx: Ctx) -> HTMLResponse:
    settings = ctx.settings
    limits = (
        ("A request", settings.max_upload_bytes),
        ("A file that is read piece by piece, unpacked", settings.max_stream_bytes),
        ("Any other file, unpacked", settings.max_text_bytes),
    )
    context = {
        "formats": guide.formats(),
        "refused": guide.refused_formats(),
        "untried": guide.UNTRIED,
        "limits": limits,
        "members": settings.max_zip_members,
        "base": settings.public_url or str(request.base_url).rstrip("/"),
    }
    return rendering.page(request, "formats.html", context)
