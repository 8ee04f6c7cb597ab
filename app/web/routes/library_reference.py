"""Reference pages of the library, and its checklists: read, started by a team, ticked, shared by a link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.catalog.library import load_library
from app.domain.errors import InvalidInput
from app.services import checklists, reference_pages
from app.services.checklists import ChecklistChange, ChecklistRequest, ChecklistShareRequest, TeamChecklist
from app.services.context import Context
from app.web import rendering, share_links
from app.web.comparison_view import SHARE_HEADERS, public_base
from app.web.deps import Ctx
from app.web.forms import FormTexts, sentence

router = APIRouter(include_in_schema=False)

Id = Annotated[str, Path(max_length=80)]
Token = Annotated[str, Path(max_length=200)]

RECENT = 20
MAY: tuple[tuple[str, str], ...] = (("read", "read"), ("tick", "read and tick"))
"""What whoever has a link may do."""

ORIGIN_WORDS: Mapping[str, str] = {
    "judgement": "our judgement",
    "source": "from a source",
    "derived": "derived",
    "definition": "by definition",
}


@router.get("/library/symptoms")
def symptoms(request: Request, ctx: Ctx) -> HTMLResponse:
    context = {
        "lines": reference_pages.symptom_lines(ctx),
        "origin_words": ORIGIN_WORDS,
        "has_diagnosis": has_diagnosis(),
    }
    return rendering.page(request, "library_symptoms.html", context)


def has_diagnosis() -> bool:
    """Whether there is a diagnosis to lead to."""
    return any(area.id == "diagnose" for area in rendering.AREAS)


# ---- checklists -----------------------------------------------------------------------------------------------------


@router.get("/library/checklists")
def checklist_list(request: Request, ctx: Ctx) -> HTMLResponse:
    """The lists of the library, and what teams have started."""
    found = load_library().checklists.values()
    context = {
        "kinds": [
            (title, [checklist for checklist in found if checklist.kind == kind])
            for kind, title in (
                ("priorities", "Priority lists by scenario"),
                ("plan", "Plan"),
                ("reporting", "Reporting"),
            )
        ],
        "teams": checklists.list_team(ctx, limit=RECENT),
    }
    return rendering.page(request, "checklists.html", context)


@router.get("/library/checklists/{checklist}")
def checklist_page(request: Request, ctx: Ctx, checklist: Id) -> HTMLResponse:
    return _list_page(request, ctx, checklist)


@router.post("/library/checklists/{checklist}")
def start(request: Request, ctx: Ctx, checklist: Id, texts: FormTexts) -> Response:
    """Start a team's copy; a title that is none comes back as it was typed."""
    found = checklists.get_checklist(checklist)
    title = texts.get("title", "")
    if len(title) > checklists.MAX_TITLE:
        return _list_page(request, ctx, checklist, title, f"At most {checklists.MAX_TITLE} characters.")
    try:
        team = checklists.start(ctx, ChecklistRequest(list=found.id, title=title))
    except InvalidInput as error:
        return _list_page(request, ctx, checklist, title, sentence(error.reason))
    return RedirectResponse(address_of(team), status_code=303)


def address_of(team: TeamChecklist) -> str:
    """Address of a team's copy."""
    return f"/library/checklists/team/{team.copy.id}"


def _list_page(request: Request, ctx: Context, id_: str, title: str | None = None, error: str = "") -> HTMLResponse:
    found = checklists.get_checklist(id_)
    sources = tuple(dict.fromkeys(source for item in found.items for source in item.sources))
    context = {
        "checklist": found,
        "techniques": ctx.catalog.techniques,
        "sources": sources,
        "numbers": {source.id: place for place, source in enumerate(sources, 1)},
        "teams": checklists.list_team(ctx, list_id=found.id, limit=RECENT),
        "has_diagnosis": has_diagnosis(),
        "title": found.title if title is None else title,
        "error": error,
    }
    return rendering.page(request, "checklist.html", context, 422 if error else 200)


@router.get("/library/checklists/team/{team}")
def team_page(request: Request, ctx: Ctx, team: Id) -> HTMLResponse:
    found = checklists.get_team(ctx, team)
    return rendering.page(request, "checklist_team.html", _team_context(ctx, found))


@router.post("/library/checklists/team/{team}/ticks")
def tick(request: Request, ctx: Ctx, team: Id, texts: FormTexts) -> Response:
    found = checklists.change(ctx, team, _changed(checklists.get_team(ctx, team), texts))
    return _ticked(request, ctx, found, address_of(found))


@router.post("/library/checklists/team/{team}/shares")
def create_link(request: Request, ctx: Ctx, team: Id, texts: FormTexts) -> Response:
    """The page with the new link in it: its token can be shown this once and is in no address of ours."""
    found = checklists.get_team(ctx, team)
    asked = ChecklistShareRequest(can_tick=texts.get("may") == "tick", expires_in_s=share_links.lifetime(texts))
    token, record = checklists.share(ctx, found.copy.id, asked)
    address = f"{public_base(request, ctx)}/library/checklists/shares/{token}"
    return share_links.made(request, "checklist_team.html", _team_context(ctx, found), address, record)


@router.post("/library/checklists/team/{team}/shares/{share_id}/revoke")
def revoke_link(request: Request, ctx: Ctx, team: Id, share_id: Id) -> Response:
    checklists.revoke(ctx, team, share_id)
    return share_links.revoked(request, _team_context(ctx, checklists.get_team(ctx, team)))


@router.post("/library/checklists/team/{team}/delete")
def delete(ctx: Ctx, team: Id) -> Response:
    checklists.delete(ctx, team)
    return RedirectResponse("/library/checklists", status_code=303)


@router.get("/library/checklists/shares/{token}")
def shared(request: Request, ctx: Ctx, token: Token) -> HTMLResponse:
    """What the reader of a link sees. 404 alike for unknown, revoked and expired links."""
    found, record = checklists.open_share(ctx, token)
    context = _items_context(ctx, found, f"/library/checklists/shares/{token}", can_tick=record.can_tick)
    return rendering.page(request, "checklist_shared.html", {**context, "share": record}, headers=SHARE_HEADERS)


@router.post("/library/checklists/shares/{token}/ticks")
def tick_shared(request: Request, ctx: Ctx, token: Token, texts: FormTexts) -> Response:
    team, _ = checklists.open_share(ctx, token)
    found = checklists.change_shared(ctx, token, _changed(team, texts))
    response = _ticked(request, ctx, found, f"/library/checklists/shares/{token}")
    response.headers.update(SHARE_HEADERS)
    return response


def _changed(team: TeamChecklist, texts: Mapping[str, str]) -> ChecklistChange:
    """What a form changed against what it had shown, so that nobody undoes the ticks of others."""
    was = set(texts.get("was", "").split())
    now = {item.id: bool(texts.get(f"tick.{item.id}")) for item in team.checklist.items}
    return ChecklistChange(ticks={id_: ticked for id_, ticked in now.items() if ticked != (id_ in was)})


def _ticked(request: Request, ctx: Context, team: TeamChecklist, address: str) -> Response:
    if rendering.wants_fragment(request):
        context = _items_context(ctx, team, address, can_tick=True)
        return rendering.fragment(request, "checklist_items.html", context)
    return RedirectResponse(address, status_code=303)


def _items_context(ctx: Context, team: TeamChecklist, address: str, *, can_tick: bool) -> dict[str, Any]:
    return {
        "team": team,
        "checklist": team.checklist,
        "techniques": ctx.catalog.techniques,
        "address": address,
        "can_tick": can_tick,
    }


def _team_context(ctx: Context, team: TeamChecklist) -> dict[str, Any]:
    address = address_of(team)
    links = checklists.list_shares(ctx, team.copy.id)
    return _items_context(ctx, team, address, can_tick=True) | share_links.panel(address, links, MAY)


# ---- reference pages, last: their address could be any of those above ---------------------------------------------


@router.get("/library/{section}")
def section_page(request: Request, ctx: Ctx, section: Id) -> HTMLResponse:
    sheet = reference_pages.section_sheet(ctx, reference_pages.get_section(section))
    return rendering.page(request, "library_section.html", {"sheet": sheet, "section": sheet.section})
