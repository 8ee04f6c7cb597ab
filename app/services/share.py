"""Links to frozen comparisons and diagnoses: made, opened, checked against today's code, revoked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field, ValidationError

from app.domain.comparison import metric_label
from app.domain.errors import DomainError
from app.services.compare import comparison_json
from app.services.compare_communication import FIGURES, asked_again
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
    index, label = item["index"], item["label"]
    answer = item["estimate"]["answer"]
    if item["estimate"]["kind"] == "op":
        yield from _moved_op(ctx, item)
        return
    if item["estimate"]["kind"] in FIGURES:
        yield from _moved_communication(ctx, item)
        return
    if item["estimate"]["kind"] in PAGE_FIGURES:
        yield from _moved_page(ctx, item)
        return
    try:
        # the frozen profile and model, not those that have their names today
        request = BoundRequest.model_validate(
            {
                **item["estimate"]["request"],
                "hardware": item["hardware"]["profile"],
                "model": item["model"]["architecture"],
            }
        )
        today = bound_json(estimate_bound(ctx, request))
    except (DomainError, ValidationError) as error:
        reason = str(error).split("\n")[0][:300]
        yield MovedFigure(index, label, metric_label("step_bound_s"), "s", answer["bound_s"], None, reason)
        return
    for words, unit, read in _FIGURES:
        before, now = read(answer), read(today)
        if not _same(before, now):
            yield MovedFigure(index, label, words, unit, before, now)


def _moved_op(ctx: Context, item: Mapping[str, Any]) -> Iterator[MovedFigure]:
    index, label, answer = item["index"], item["label"], item["estimate"]["answer"]
    try:
        frozen = {**item["estimate"]["request"], "hardware": item["hardware"]["profile"]}
        today = op_json(estimate_op(ctx, OpRequest.model_validate(frozen)))
    except (DomainError, ValidationError) as error:
        reason = str(error).split("\n")[0][:300]
        yield MovedFigure(index, label, "bound of the operation", "s", answer["bound_s"], None, reason)
        return
    for words, read in (("bound of the operation", _bound), ("expected time of the operation", _expected)):
        if not _same(read(answer), read(today)):
            yield MovedFigure(index, label, words, "s", read(answer), read(today))


def _moved_communication(ctx: Context, item: Mapping[str, Any]) -> Iterator[MovedFigure]:
    index, label, answer = item["index"], item["label"], item["estimate"]["answer"]
    figures = FIGURES[item["estimate"]["kind"]]
    try:
        today = asked_again(ctx, item)
    except (DomainError, ValidationError) as error:
        words, unit, read = figures[0]
        yield MovedFigure(index, label, words, unit, read(answer), None, str(error).split("\n")[0][:300])
        return
    for words, unit, read in figures:
        if not _same(read(answer), read(today)):
            yield MovedFigure(index, label, words, unit, read(answer), read(today))


def _moved_page(ctx: Context, item: Mapping[str, Any]) -> Iterator[MovedFigure]:
    index, label, answer = item["index"], item["label"], item["estimate"]["answer"]
    figures = PAGE_FIGURES[item["estimate"]["kind"]]
    try:
        today = page_asked_again(ctx, item)
    except (DomainError, ValidationError) as error:
        words, unit, path = figures[0]
        yield MovedFigure(index, label, words, unit, _at_path(answer, path), None, str(error).split("\n")[0][:300])
        return
    if today is None:
        return
    for words, unit, path in figures:
        before, now = _at_path(answer, path), _at_path(today, path)
        if not _same(before, now):
            yield MovedFigure(index, label, words, unit, before, now)


def _at_path(answer: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = answer
    for name in path:
        found = found[name]
    return found


def _same(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return math.isclose(before, now, rel_tol=ROUNDING, abs_tol=1e-300)


def _bound(answer: Mapping[str, Any]) -> Any:
    return answer["bound_s"]


def _serial(answer: Mapping[str, Any]) -> Any:
    return answer["serial_bound_s"]


def _expected(answer: Mapping[str, Any]) -> Any:
    return answer["expected"]["time_s"]


def _rate(answer: Mapping[str, Any]) -> Any:
    return answer["tokens_per_s"]


def _memory(answer: Mapping[str, Any]) -> Any:
    return answer["memory"]["peak_bytes"]


_FIGURES = (
    ("bound of a step", "s", _bound),
    ("serial bound of a step", "s", _serial),
    ("expected time of a step", "s", _expected),
    ("tokens/s at most", "tokens/s", _rate),
    ("memory of a device", "B", _memory),
)
"""Figures of an estimate that a reader sees, and how they are read from its answer."""


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
