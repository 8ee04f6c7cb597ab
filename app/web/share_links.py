"""The panel of links that a page's owner makes and revokes, and the same for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.services import share
from app.services.context import Context
from app.storage.errors import NotFound
from app.storage.records import StoredChecklistShare, StoredShare, utc_now
from app.web import rendering
from app.web.comparison_view import public_base
from app.web.errors import FiniteJSONResponse

EXPIRIES: Final = (
    ("", "never"),
    ("86400", "in a day"),
    ("604800", "in a week"),
    ("2592000", "in 30 days"),
    ("31536000", "in a year"),
)
"""Seconds that the form offers, and their words."""

PANEL: Final = "share_panel.html"


def lifetime(texts: Mapping[str, str]) -> float | None:
    """Seconds that a posted form gives a link; None for a link without an end."""
    chosen = texts.get("expires", "")
    return float(chosen) if chosen in {value for value, _ in EXPIRIES if value} else None


def panel(
    address: str, records: Iterable[StoredShare | StoredChecklistShare], may: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """The context of the panel. `address` is the page's own; `may` is what a link can allow, where one can choose."""
    now = utc_now()
    return {
        "share_base": address,
        "links": [(record, _state(record, record.is_open(now))) for record in records],
        "expiries": list(EXPIRIES),
        "may": list(may),
        "new_link": "",
        "new_share": None,
    }


def _state(record: StoredShare | StoredChecklistShare, is_open: bool) -> str:
    return "revoked" if record.revoked_at is not None else "open" if is_open else "expired"


def made(
    request: Request,
    template: str,
    context: Mapping[str, Any],
    address: str,
    record: StoredShare | StoredChecklistShare,
) -> HTMLResponse:
    """The page with the new link in it: `address` holds a token that is shown this once."""
    # the page holds a secret once: it must not come back from a cache
    return rendering.page(
        request,
        template,
        {**context, "new_link": address, "new_share": record},
        201,
        part=PANEL,
        headers={"Cache-Control": "no-store"},
    )


def revoke(ctx: Context, share_id: str, links: Iterable[StoredShare]) -> None:
    """Close one of the `links` of a frozen thing. Raises NotFound for the link of another."""
    if all(record.id != share_id for record in links):
        raise NotFound("share", share_id)
    share.revoke_share_by_id(ctx, share_id)


def revoked(request: Request, context: Mapping[str, Any]) -> Response:
    """The panel without the link, or 303 to it."""
    if rendering.wants_fragment(request):
        return rendering.fragment(request, PANEL, context)
    return RedirectResponse(f"{context['share_base']}#share", status_code=303)


# ---- for scripts ----------------------------------------------------------------------------------------------------


def made_answer(request: Request, ctx: Context, token: str, record: StoredShare) -> Response:
    """The one answer that holds the token."""
    answer = {"token": token, "url": reader_address(request, ctx, token), **share.share_json(record)}
    return FiniteJSONResponse(answer, status_code=201, headers={"Location": f"/api/v1/shares/{token}"})


def links_answer(records: Iterable[StoredShare]) -> dict[str, Any]:
    """Links without their tokens."""
    links = [share.share_json(record) for record in records]
    return {"items": links, "next": None, "total": len(links)}


def reader_address(request: Request, ctx: Context, token: str) -> str:
    """Where a reader opens a link to a frozen thing."""
    return f"{public_base(request, ctx)}/s/{token}"
