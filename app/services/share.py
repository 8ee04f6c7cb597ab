"""Links to frozen comparisons and diagnoses: made, opened, checked against today's code, revoked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field, ValidationError

from app.domain.errors import DomainError
from app.services.compare import comparison_json
from app.services.compare_answer import Figure
from app.services.compare_communication import FIGURES as COMMUNICATION_FIGURES
from app.services.compare_communication import asked_again as communication_asked_again
from app.services.compare_pages import PAGE_FIGURES, page_asked_again
from app.services.context import Context
from app.services.contracts import BoundRequest, Contract, OpRequest
from app.services.estimate import bound_json, estimate_bound, estimate_op, op_json
from app.storage import shares
from app.storage.records import StoredComparison, StoredDiagnosis, StoredShare

ROUNDING = 1e-9
"""Relative change of a figure that counts as moved: floats added in another order differ by less."""

MAX_EXPIRY_SECONDS = 100 * 366 * 86400


class ShareRequest(Contract):
    """Body of the call that makes a link; without `expires_in_s` it works until it is revoked."""

    expires_in_s: Annotated[float, Field(gt=0, le=MAX_EXPIRY_SECONDS)] | None = None


@dataclass(frozen=True, slots=True)
class MovedFigure:
    """A figure of a frozen estimate that today's code computes differently. `now` is None where it refuses to."""

    item: int
    label: str
    figure: str
    unit: str
    frozen: float | None
    now: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OpenedShare:
    """What a reader of a link sees."""

    comparison: StoredComparison
    share: StoredShare
    moved: tuple[MovedFigure, ...]


def create_share(ctx: Context, comparison_id: str, request: ShareRequest | None = None) -> tuple[str, StoredShare]:
    """A new link: its token, which can never be read again, and its record. Raises NotFound."""
    return create_share_for(ctx, "comparison", comparison_id, request)


def create_share_for(
    ctx: Context, kind: shares.Kind, target_id: str, request: ShareRequest | None = None
) -> tuple[str, StoredShare]:
    """The same for a comparison or a diagnosis."""
    seconds = None if request is None else request.expires_in_s
    with ctx.storage.write() as session:
        return shares.create_for(
            kind,
            target_id,
            session=session,
            expires_in=None if seconds is None else timedelta(seconds=max(seconds, 1e-6)),
        )


def open_share(ctx: Context, token: str, now: datetime | None = None) -> OpenedShare:
    """The frozen comparison behind a token, with the figures that moved since. Changes nothing.

    Unknown, expired and revoked tokens raise the same NotFound.
    """
    with ctx.storage.read() as session:
        comparison, share = shares.open_share(session=session, token=token, now=now)
    return OpenedShare(comparison, share, moved_figures(ctx, comparison.snapshot))


def open_any(ctx: Context, token: str) -> OpenedShare | tuple[StoredDiagnosis, StoredShare]:
    """What is behind a token: a comparison with what moved since, or a diagnosis. Raises NotFound."""
    with ctx.storage.read() as session:
        found, share = shares.open_any(session=session, token=token)
    if isinstance(found, StoredDiagnosis):
        return found, share
    return OpenedShare(found, share, moved_figures(ctx, found.snapshot))


def list_diagnosis_shares(ctx: Context, diagnosis_id: str) -> tuple[StoredShare, ...]:
    """All links to a diagnosis, the newest first, closed ones included."""
    with ctx.storage.read() as session:
        return shares.list_diagnosis_shares(session=session, diagnosis_id=diagnosis_id)


def list_shares(ctx: Context, comparison_id: str) -> tuple[StoredShare, ...]:
    """All links to a comparison, the newest first, closed ones included."""
    with ctx.storage.read() as session:
        return shares.list_shares(session=session, comparison_id=comparison_id)


def revoke_share(ctx: Context, token: str) -> StoredShare:
    """Close a link by its token. Raises NotFound where it opens nothing."""
    with ctx.storage.write() as session:
        return shares.revoke(session=session, token=token)


def revoke_share_by_id(ctx: Context, share_id: str) -> StoredShare:
    """Close a link by its record's id, which opens nothing itself. Raises NotFound."""
    with ctx.storage.write() as session:
        return shares.revoke_by_id(session=session, share_id=share_id)


def moved_figures(ctx: Context, snapshot: Mapping[str, Any]) -> tuple[MovedFigure, ...]:
    """Figures of the frozen estimates that today's code computes differently from the frozen profile and model."""
    return tuple(moved for item in snapshot["items"] if item["kind"] == "estimate" for moved in _moved(ctx, item))


def _moved(ctx: Context, item: Mapping[str, Any]) -> Iterator[MovedFigure]:
    index, label, answer = item["index"], item["label"], item["estimate"]["answer"]
    figures = _FIGURES[item["estimate"]["kind"]]
    try:
        today = _asked_again(ctx, item)
    except (DomainError, ValidationError) as error:
        words, unit, path = figures[0]
        yield MovedFigure(index, label, words, unit, _read(answer, path), None, str(error).split("\n")[0][:300])
        return
    if today is None:
        return
    for words, unit, path in figures:
        before, now = _read(answer, path), _read(today, path)
        if not _same(before, now):
            yield MovedFigure(index, label, words, unit, before, now)


def _asked_again(ctx: Context, item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Today's answer to a frozen question, from the frozen profile and model and not those that have their names today;
    None where it takes a run, which may be gone."""
    kind = item["estimate"]["kind"]
    if kind in COMMUNICATION_FIGURES:
        return communication_asked_again(ctx, item)
    if kind in PAGE_FIGURES:
        return page_asked_again(ctx, item)
    frozen = {**item["estimate"]["request"], "hardware": item["hardware"]["profile"]}
    if kind == "op":
        return op_json(estimate_op(ctx, OpRequest.model_validate(frozen)))
    frozen["model"] = item["model"]["architecture"]
    return bound_json(estimate_bound(ctx, BoundRequest.model_validate(frozen)))


_FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "bound": (
        ("bound of a step", "s", ("bound_s",)),
        ("serial bound of a step", "s", ("serial_bound_s",)),
        ("expected time of a step", "s", ("expected", "time_s")),
        ("tokens/s at most", "tokens/s", ("tokens_per_s",)),
        ("memory of a device", "B", ("memory", "peak_bytes")),
    ),
    "op": (
        ("bound of the operation", "s", ("bound_s",)),
        ("expected time of the operation", "s", ("expected", "time_s")),
    ),
    **COMMUNICATION_FIGURES,
    **PAGE_FIGURES,
}
"""What is held against today's answer, by the kind of question; the first is named where today's code refuses it."""


def _read(answer: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """A figure of an answer; of several by stage, the largest."""
    found: Any = answer
    for name in path:
        found = found[name]
    return max(found) if isinstance(found, list | tuple) else found


def _same(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return math.isclose(before, now, rel_tol=ROUNDING, abs_tol=1e-300)


def moved_json(moved: MovedFigure) -> dict[str, Any]:
    return {
        "item": moved.item,
        "label": moved.label,
        "figure": moved.figure,
        "unit": moved.unit,
        "frozen": moved.frozen,
        "now": moved.now,
        "reason": moved.reason or None,
    }


def share_json(share: StoredShare) -> dict[str, Any]:
    """A link's record, without its token."""
    return {
        "id": share.id,
        "created_at": share.created_at.isoformat(),
        "expires_at": None if share.expires_at is None else share.expires_at.isoformat(),
        "revoked_at": None if share.revoked_at is None else share.revoked_at.isoformat(),
    }


def opened_json(opened: OpenedShare) -> dict[str, Any]:
    """What a reader gets: the comparison without the addresses of its owner, the link's dates, what moved."""
    shown = comparison_json(opened.comparison)
    shown = {key: value for key, value in shown.items() if key not in ("id", "url")}
    dates = {key: value for key, value in share_json(opened.share).items() if key in ("created_at", "expires_at")}
    return {**shown, "share": dates, "moved": [moved_json(moved) for moved in opened.moved]}
