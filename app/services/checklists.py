"""Checklists of the library, and teams' copies of them: started, ticked, shared by a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field

from app.catalog.library import load_library
from app.domain.errors import InvalidInput
from app.domain.library import Checklist
from app.services.context import Context
from app.services.contracts import Contract
from app.services.share import MAX_EXPIRY_SECONDS
from app.storage import checklists as stored
from app.storage.errors import NotFound
from app.storage.records import Page, StoredChecklist, StoredChecklistShare

MAX_TITLE = 200


class ChecklistRequest(Contract):
    """Body of the call that starts a copy; without a title it has the list's."""

    list: Annotated[str, Field(min_length=1, max_length=100)]
    title: Annotated[str, Field(max_length=MAX_TITLE)] | None = None


class ChecklistChange(Contract):
    """Items to tick (true) and untick (false), and a new title."""

    ticks: Annotated[dict[str, bool], Field(max_length=200)] = Field(default_factory=dict)
    title: Annotated[str, Field(max_length=MAX_TITLE)] | None = None


class ChecklistShareRequest(Contract):
    """Body of the call that makes a link. With `can_tick` whoever has it may tick, without it only read."""

    can_tick: bool = False
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_EXPIRY_SECONDS)] | None = None


@dataclass(frozen=True, slots=True)
class TeamChecklist:
    """A team's copy with the list that it is a copy of."""

    copy: StoredChecklist
    checklist: Checklist

    @property
    def done(self) -> int:
        return sum(item.id in self.copy.ticks for item in self.checklist.items)


def get_checklist(id_: str) -> Checklist:
    """The library's list with this id. Raises NotFound."""
    found = load_library().checklists.get(id_.casefold())
    if found is None:
        raise NotFound("checklist", id_)
    return found


def start(ctx: Context, request: ChecklistRequest) -> TeamChecklist:
    """A team's own copy. Raises InvalidInput for a list that does not exist or a title that is none."""
    try:
        checklist = get_checklist(request.list)
    except NotFound:
        known = ", ".join(load_library().checklists)
        raise InvalidInput(("list",), f"no checklist is called {request.list[:60]!r}: use {known}") from None
    title = _title(request.title) or checklist.title
    with ctx.storage.write() as session:
        return TeamChecklist(stored.add(session=session, list_id=checklist.id, title=title), checklist)


def get_team(ctx: Context, id_: str) -> TeamChecklist:
    """A team's copy. Raises NotFound."""
    with ctx.storage.read() as session:
        return _with_list(stored.get(session=session, checklist_id=id_))


def list_team(
    ctx: Context, *, list_id: str | None = None, sort: str = "-updated_at", limit: int = 50, cursor: str | None = None
) -> Page[TeamChecklist]:
    """Teams' copies, the one changed last first. Raises InvalidQuery."""
    with ctx.storage.read() as session:
        page = stored.list_checklists(session=session, list_id=list_id, sort=sort, limit=limit, cursor=cursor)
    return Page(tuple(map(_with_list, page.items)), page.next, page.total)


def change(ctx: Context, id_: str, request: ChecklistChange) -> TeamChecklist:
    """Tick, untick, rename. Raises NotFound, or InvalidInput for an item that the list does not have."""
    team = get_team(ctx, id_)
    known = {item.id for item in team.checklist.items}
    for item in request.ticks:
        if item not in known:
            raise InvalidInput(("ticks", item[:100]), f"the list has no such item: use {', '.join(sorted(known))}")
    title = _title(request.title)
    with ctx.storage.write() as session:
        return _with_list(stored.change(session=session, checklist_id=id_, ticks=request.ticks, title=title))


def delete(ctx: Context, id_: str) -> None:
    """Delete a copy and its links. Raises NotFound."""
    with ctx.storage.write() as session:
        stored.delete(session=session, checklist_id=id_)


def share(ctx: Context, id_: str, request: ChecklistShareRequest | None = None) -> tuple[str, StoredChecklistShare]:
    """A new link: its token, which can never be read again, and its record. Raises NotFound."""
    asked = request or ChecklistShareRequest()
    seconds = asked.expires_in_s
    with ctx.storage.write() as session:
        return stored.create_share(
            session=session,
            checklist_id=id_,
            can_tick=asked.can_tick,
            expires_in=None if seconds is None else timedelta(seconds=max(seconds, 1e-6)),
        )


def open_share(ctx: Context, token: str) -> tuple[TeamChecklist, StoredChecklistShare]:
    """The copy behind a token. Unknown, expired and revoked tokens raise the same NotFound."""
    with ctx.storage.read() as session:
        copy, record = stored.open_share(session=session, token=token)
    return _with_list(copy), record


def change_shared(ctx: Context, token: str, request: ChecklistChange) -> TeamChecklist:
    """Tick through a link that allows it; a link for reading is refused like an unknown one (NotFound)."""
    team, record = open_share(ctx, token)
    if not record.can_tick:
        raise NotFound("share")
    return change(ctx, team.copy.id, ChecklistChange(ticks=request.ticks))


def list_shares(ctx: Context, id_: str) -> tuple[StoredChecklistShare, ...]:
    """All links to a copy, the newest first. Raises NotFound."""
    with ctx.storage.read() as session:
        stored.get(session=session, checklist_id=id_)
        return stored.list_shares(session=session, checklist_id=id_)


def revoke(ctx: Context, id_: str, share_id: str) -> StoredChecklistShare:
    """Close a link. Raises NotFound."""
    with ctx.storage.write() as session:
        return stored.revoke_share(session=session, checklist_id=id_, share_id=share_id)


def _with_list(copy: StoredChecklist) -> TeamChecklist:
    return TeamChecklist(copy, get_checklist(copy.list_id))


def _title(text: str | None) -> str | None:
    """A title on one line; None where there is none."""
    if text is None or not text.strip():
        return None
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise InvalidInput(("title",), "contains a line break or another control character: write it on one line")
    return text.strip()


# ---- in the API's shape ---------------------------------------------------------------------------------------------


def checklist_json(checklist: Checklist) -> dict[str, Any]:
    """A list of the library."""
    return {
        "id": checklist.id,
        "title": checklist.title,
        "line": checklist.line,
        "kind": checklist.kind,
        "scenario": checklist.scenario,
        "groups": [
            {
                "title": title,
                "items": [
                    {
                        "id": item.id,
                        "text": item.text,
                        "why": item.why,
                        "techniques": list(item.techniques),
                        "sources": [source_json(source) for source in item.sources],
                    }
                    for item in items
                ],
            }
            for title, items in checklist.groups
        ],
    }


def source_json(source: Any) -> dict[str, Any]:
    """A document that a claim rests on."""
    return {"id": source.id, "title": source.title, "url": source.url, "read": source.read}


def team_json(team: TeamChecklist) -> dict[str, Any]:
    """A team's copy: what is ticked and since when."""
    ticks: Mapping[str, Any] = team.copy.ticks
    return {
        "id": team.copy.id,
        "list": team.checklist.id,
        "title": team.copy.title,
        "ticks": {item.id: ticks[item.id].isoformat() for item in team.checklist.items if item.id in ticks},
        "items": len(team.checklist.items),
        "done": team.done,
        "created_at": team.copy.created_at.isoformat(),
        "updated_at": team.copy.updated_at.isoformat(),
        "url": f"/library/checklists/team/{team.copy.id}",
    }


def share_json(record: StoredChecklistShare) -> dict[str, Any]:
    """A link's record, without its token."""
    return {
        "id": record.id,
        "can_tick": record.can_tick,
        "created_at": record.created_at.isoformat(),
        "expires_at": None if record.expires_at is None else record.expires_at.isoformat(),
        "revoked_at": None if record.revoked_at is None else record.revoked_at.isoformat(),
    }
