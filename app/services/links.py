"""Which device and model a file means: what people remembered for its wording, else what the catalogue makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from app.catalog.names import AmbiguousName, UnknownName, normal
from app.importers.reading import clean
from app.services.context import Context
from app.services.references import own_hardware, own_model
from app.storage import links
from app.storage.records import RememberedLink, RunSummary

Kind: TypeAlias = Literal["hardware", "model"]
KINDS: tuple[Kind, ...] = ("hardware", "model")
MAX_HINT = 500


@dataclass(frozen=True, slots=True)
class LinkBasis:
    """What a link rests on, in words. `kind` is remembered, guess, stated, or none where nothing is linked.

    `remembered` is the memory of the file's wording, where there is one: it can be forgotten.
    """

    kind: Literal["remembered", "guess", "stated", "none"]
    text: str
    remembered: RememberedLink | None = None


def link_for(ctx: Context, kind: Kind, hint: str | None, parameters: float | None = None) -> tuple[str | None, bool]:
    """The id that a new file's wording is linked to, and whether that is a guess that nobody confirmed."""
    if not hint:
        return None, False
    known = remembered_for(ctx, kind, hint)
    if known is not None and _exists(ctx, kind, known.target_id):
        return known.target_id, False
    guess = ctx.catalog.guess_hardware(hint) if kind == "hardware" else ctx.catalog.guess_model(hint, parameters)
    return (None, False) if guess is None else (guess.id, True)


def bases_of(ctx: Context, run: RunSummary, parameters: float | None = None) -> dict[Kind, LinkBasis]:
    """Why a run is linked as it is, for its device and its model."""
    with ctx.storage.read() as session:
        known = {
            kind: links.find(session=session, kind=kind, hint_key=hint_key(hint)) if hint else None
            for kind, hint in (("hardware", run.hardware_hint), ("model", run.model_hint))
        }
    return {
        "hardware": _basis(
            ctx, "hardware", run.hardware_hint, run.hardware_id, run.hardware_is_guess, None, known["hardware"]
        ),
        "model": _basis(ctx, "model", run.model_hint, run.model_id, run.model_is_guess, parameters, known["model"]),
    }


def _basis(
    ctx: Context,
    kind: Kind,
    hint: str | None,
    linked: str | None,
    is_guess: bool,
    parameters: float | None,
    known: RememberedLink | None,
) -> LinkBasis:
    if linked is None:
        return LinkBasis("none", _not_linked(ctx, kind, hint), known)
    if is_guess and hint:
        guess = ctx.catalog.guess_hardware(hint) if kind == "hardware" else ctx.catalog.guess_model(hint, parameters)
        why = guess.why if guess is not None and guess.id == linked else f"the file says {_quoted(hint)}"
        return LinkBasis("guess", f"A guess: {why}. Save to confirm it, or choose another.", known)
    if known is not None and known.target_id == linked:
        return LinkBasis("remembered", f"Remembered: files that say {_quoted(hint)} are linked to this.", known)
    return LinkBasis("stated", f"Chosen by hand; the file says {_quoted(hint)}." if hint else "Chosen by hand.", known)


def _not_linked(ctx: Context, kind: Kind, hint: str | None) -> str:
    """Why a run is linked to nothing: the file says nothing, nothing known, or a name that several things go by."""
    if not hint:
        return f"The file names no {'device' if kind == 'hardware' else 'model'}."
    try:
        resolve = ctx.catalog.resolve_hardware if kind == "hardware" else ctx.catalog.resolve_model
        return f"The file says {_quoted(hint)}: {resolve(hint).name}."
    except AmbiguousName as error:
        entries = ctx.catalog.hardware if kind == "hardware" else ctx.catalog.models
        names = [entries[id_].name for id_ in error.candidates if id_ in entries]
        return f"The file says {_quoted(hint)}, which may be {', '.join(names[:-1])} or {names[-1]}: choose one."
    except UnknownName:
        return f"The file says {_quoted(hint)}, which names nothing here."


def remembered_for(ctx: Context, kind: Kind, hint: str) -> RememberedLink | None:
    """What was remembered for a wording, whatever its case and spaces."""
    key = hint_key(hint)
    if not key:
        return None
    with ctx.storage.read() as session:
        return links.find(session=session, kind=kind, hint_key=key)


def remembered_links(ctx: Context) -> tuple[RememberedLink, ...]:
    """Everything that is remembered, the newest first."""
    with ctx.storage.read() as session:
        return links.list_all(session=session)


def forget_link(ctx: Context, link_id: str) -> RememberedLink:
    """Forget one; the runs linked so far keep their link. Raises NotFound."""
    with ctx.storage.write() as session:
        return links.forget(session=session, link_id=link_id)


def learn(ctx: Context, session: Any, kind: Kind, hint: str | None, linked: str, parameters: float | None) -> None:
    """Remember what a person linked a wording to; where that is what the catalogue says anyway, only forget.

    `session` is the write session in which the run is changed, so that both happen or neither.
    """
    if not hint or not hint_key(hint):
        return
    guess = ctx.catalog.guess_hardware(hint) if kind == "hardware" else ctx.catalog.guess_model(hint, parameters)
    known = links.find(session=session, kind=kind, hint_key=hint_key(hint))
    if guess is not None and guess.id == linked:
        if known is not None:
            links.forget(session=session, link_id=known.id)
        return
    links.remember(session=session, kind=kind, hint_key=hint_key(hint), hint=clean(hint, MAX_HINT), target_id=linked)


def hint_key(hint: str) -> str:
    """A wording without case, spaces, dashes and underscores, cut at a length no real one has."""
    return normal(clean(hint, MAX_HINT))


def link_json(ctx: Context, link: RememberedLink) -> dict[str, Any]:
    return {
        "id": link.id,
        "kind": link.kind,
        "hint": link.hint,
        "target": link.target_id,
        "exists": _exists(ctx, link.kind, link.target_id),
        "created_at": link.created_at.isoformat(),
    }


def _exists(ctx: Context, kind: str, id_: str) -> bool:
    if kind == "hardware":
        return id_ in ctx.catalog.hardware or own_hardware(ctx, id_) is not None
    return id_ in ctx.catalog.models or own_model(ctx, id_) is not None


def _quoted(text: str | None) -> str:
    return f"“{clean(text or '', 120)}”"
