"""The technique library: what each technique saves, where, at what price, and whether an estimate can apply it."""

from __future__ import annotations

from typing import Any

from app.domain.levers.registry import LEVERS
from app.domain.technique import Technique
from app.services.catalogue import DEFAULT_LIMIT, page_of, words_match
from app.services.context import Context
from app.services.levers import lever_json
from app.storage.errors import NotFound
from app.storage.records import Page


def list_techniques(
    ctx: Context,
    *,
    text: str | None = None,
    family: str | None = None,
    phase: str | None = None,
    lever: bool | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
) -> Page[Technique]:
    """Techniques by name. Every word of `text` must begin one in the name, the id or the summary.

    `lever` keeps those that an estimate can apply, or the others. Raises InvalidQuery for a limit or cursor that is
    none.
    """
    found = [
        technique
        for technique in ctx.catalog.techniques.values()
        if (family is None or technique.family == family)
        and (phase is None or phase in technique.phases)
        and (lever is None or (technique.id in LEVERS) == lever)
        and words_match(text, (technique.name, technique.id, technique.summary))
    ]
    return page_of(sorted(found, key=lambda technique: (technique.name.casefold(), technique.id)), limit, cursor)


def get_technique(ctx: Context, id_: str) -> Technique:
    """The technique with this id. Raises NotFound."""
    technique = ctx.catalog.techniques.get(id_.casefold())
    if technique is None:
        raise NotFound("technique", id_)
    return technique


def technique_json(technique: Technique) -> dict[str, Any]:
    """A technique in the API's shape. What is not known is null or an empty list."""
    lever = LEVERS.get(technique.id)
    return {
        "id": technique.id,
        "name": technique.name,
        "family": technique.family,
        "summary": technique.summary,
        "saves": list(technique.saves),
        "memory_lever": technique.memory_lever,
        "phases": list(technique.phases),
        "architectures": list(technique.architectures),
        "gpu_generations": list(technique.gpu_generations),
        "book_as": technique.book_as,
        "hurts": technique.hurts,
        "gains": [
            {
                "figure": gain.figure,
                "conditions": gain.conditions,
                "source": gain.source,
                "url": gain.url,
                "read": gain.read,
            }
            for gain in technique.gains
        ],
        "references": [{"title": reference.title, "url": reference.url} for reference in technique.references],
        "lever": lever is not None,
        "params": [] if lever is None else lever_json(lever)["params"],
        "model": None if lever is None else lever.model,
        "ideal": None if lever is None else lever.ideal,
        "excludes": [] if lever is None else list(lever.excludes),
        "members": [] if lever is None else list(lever.members),
        "no_lever": technique.no_lever,
    }
