"""The library's reference pages and checklists for scripts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import Field

from app.catalog.library import load_library
from app.services import checklists, reference_pages
from app.services.checklists import ChecklistChange, ChecklistRequest, ChecklistShareRequest
from app.web.comparison_view import SHARE_HEADERS, public_base
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import Answer, Listing

router = APIRouter(prefix="/api/v1", tags=["library"])

Section = Annotated[str, Path(max_length=80, description="Id of a reference page.")]
ListId = Annotated[str, Path(max_length=80, description="Id of a list of the library.")]
TeamId = Annotated[str, Path(max_length=80, description="Id of a team's copy.")]
Token = Annotated[str, Path(max_length=200, description="Token of a link.")]


class LibraryPlace(Answer):
    id: str
    title: str
    line: str


class LibraryList(Answer):
    sections: list[LibraryPlace]
    checklists: list[LibraryPlace]


class ClaimSource(Answer):
    id: str
    title: str
    url: str | None
    read: Annotated[str, Field(description="primary, secondary, derived (counted), or assumed (our judgement).")]


class ClaimAnswer(Answer):
    text: str
    sources: list[ClaimSource]


class SectionAnswer(LibraryPlace):
    answer: ClaimAnswer
    entries: list[dict[str, Any]]


class SymptomTable(Answer):
    items: list[dict[str, Any]]


class ChecklistAnswer(LibraryPlace):
    kind: str
    scenario: str | None
    groups: list[dict[str, Any]]


class SharedChecklistAnswer(Answer):
    list: str
    title: str
    ticks: Annotated[dict[str, str], Field(description="Ticked items, each with when that was.")]
    items: int
    done: int
    created_at: str
    updated_at: str


class TeamChecklistAnswer(SharedChecklistAnswer):
    id: str
    url: str


class TeamChecklistList(Listing):
    items: list[TeamChecklistAnswer]


class ChecklistShareAnswer(Answer):
    token: str
    url: str
    id: str
    can_tick: bool
    created_at: str
    expires_at: str | None
    revoked_at: str | None


@router.get("/library", summary="Reference pages and checklists", response_model=LibraryList)
def list_library() -> Response:
    found = load_library()
    answer = {
        "sections": [{"id": s.id, "title": s.title, "line": s.line} for s in found.sections.values()],
        "checklists": [{"id": c.id, "title": c.title, "line": c.line} for c in found.checklists.values()],
    }
    return FiniteJSONResponse(answer)


@router.get("/library/symptoms", summary="The symptom table", response_model=SymptomTable)
def get_symptoms(ctx: Ctx) -> Response:
    """What a profile shows, what to check against which threshold, and the directions with their techniques."""
    return FiniteJSONResponse({"items": reference_pages.symptoms_json(ctx)})


@router.get("/library/{section}", summary="One reference page", response_model=SectionAnswer)
def get_section(ctx: Ctx, section: Section) -> Response:
    """Claims in our words, each with its sources; techniques and devices by id."""
    return FiniteJSONResponse(reference_pages.section_json(ctx, reference_pages.get_section(section)))


@router.get("/checklists/{checklist}", summary="One checklist", response_model=ChecklistAnswer)
def get_checklist(checklist: ListId) -> Response:
    return FiniteJSONResponse(checklists.checklist_json(checklists.get_checklist(checklist)))


@router.get("/team-checklists", summary="List teams' checklists", response_model=TeamChecklistList)
def list_team_checklists(
    ctx: Ctx,
    list: Annotated[str | None, Query(max_length=80, description="Id of the list that they are copies of.")] = None,
    sort: Annotated[str, Query(max_length=40)] = "-updated_at",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> Response:
    page = checklists.list_team(ctx, list_id=list, sort=sort, limit=limit, cursor=cursor)
    items = [checklists.team_json(team) for team in page.items]
    return FiniteJSONResponse({"items": items, "next": page.next, "total": page.total})


@router.post(
    "/team-checklists", status_code=201, summary="Start a team's checklist", response_model=TeamChecklistAnswer
)
def start_team_checklist(
    ctx: Ctx,
    body: Annotated[ChecklistRequest, Body(openapi_examples={"decode": {"value": {"list": "decode", "title": "Q3"}}})],
) -> Response:
    """A copy of one of the library's lists with nothing ticked."""
    team = checklists.start(ctx, body)
    headers = {"Location": f"/api/v1/team-checklists/{team.copy.id}"}
    return FiniteJSONResponse(checklists.team_json(team), status_code=201, headers=headers)


@router.get("/team-checklists/{team}", summary="One team's checklist", response_model=TeamChecklistAnswer)
def get_team_checklist(ctx: Ctx, team: TeamId) -> Response:
    return FiniteJSONResponse(checklists.team_json(checklists.get_team(ctx, team)))


@router.patch("/team-checklists/{team}", summary="Tick, untick, rename", response_model=TeamChecklistAnswer)
def change_team_checklist(ctx: Ctx, team: TeamId, body: ChecklistChange) -> Response:
    """Items that are not named stay as they are; what is ticked already keeps its time."""
    return FiniteJSONResponse(checklists.team_json(checklists.change(ctx, team, body)))


@router.delete("/team-checklists/{team}", status_code=204, summary="Delete a team's checklist and its links")
def delete_team_checklist(ctx: Ctx, team: TeamId) -> Response:
    checklists.delete(ctx, team)
    return Response(status_code=204)


@router.post(
    "/team-checklists/{team}/share", status_code=201, summary="Make a link", response_model=ChecklistShareAnswer
)
def share_team_checklist(
    request: Request, ctx: Ctx, team: TeamId, body: ChecklistShareRequest | None = None
) -> Response:
    """The token is answered once and never again."""
    token, record = checklists.share(ctx, team, body)
    url = f"{public_base(request, ctx)}/library/checklists/shares/{token}"
    answer = {"token": token, "url": url, **checklists.share_json(record)}
    return FiniteJSONResponse(answer, status_code=201)


@router.get("/team-checklists/{team}/shares", summary="Links to a team's checklist, without their tokens")
def list_team_checklist_shares(ctx: Ctx, team: TeamId) -> dict[str, Any]:
    links = [checklists.share_json(record) for record in checklists.list_shares(ctx, team)]
    return {"items": links, "next": None, "total": len(links)}


@router.delete("/team-checklists/{team}/shares/{share}", status_code=204, summary="Revoke a link")
def revoke_team_checklist_share(
    ctx: Ctx, team: TeamId, share: Annotated[str, Path(max_length=80, description="Id of a link.")]
) -> Response:
    checklists.revoke(ctx, team, share)
    return Response(status_code=204)


@router.get("/checklist-shares/{token}", summary="Open a link to a checklist", response_model=SharedChecklistAnswer)
def open_checklist_share(ctx: Ctx, token: Token) -> Response:
    """404 alike for unknown, revoked and expired links."""
    team, record = checklists.open_share(ctx, token)
    return FiniteJSONResponse(_opened(team, record.can_tick), headers=dict(SHARE_HEADERS))


@router.patch("/checklist-shares/{token}", summary="Tick through a link", response_model=SharedChecklistAnswer)
def tick_checklist_share(ctx: Ctx, token: Token, body: ChecklistChange) -> Response:
    """For links that allow it; a title in the body is left aside."""
    return FiniteJSONResponse(_opened(checklists.change_shared(ctx, token, body), True), headers=dict(SHARE_HEADERS))


def _opened(team: checklists.TeamChecklist, can_tick: bool) -> dict[str, Any]:
    """What a reader of a link gets: without the address that its owners use."""
    shown = {key: value for key, value in checklists.team_json(team).items() if key not in ("id", "url")}
    return {**shown, "can_tick": can_tick}
