"""The technique library: what each technique saves, where, at what price, and whether an estimate can apply it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.levers.registry import LEVERS
from app.domain.technique import Technique
from app.services.catalogue import DEFAULT_LIMIT, page_of, words_match
from app.services.context import Context
from app.services.levers import lever_json
from app.storage.errors import NotFound
from app.storage.records import Page

ANYWHERE = "any"
"""What an entry says that is tied to no architecture, or to no generation."""


@dataclass(frozen=True, slots=True)
class TechniqueFilter:
    """Which techniques a list holds; None does not filter.

    Every word of `text` must begin one in its names, the id, the family or the summary. `architecture` and `gpu` keep
    what suits it: an entry that names it, and one that is tied to none. `lever` keeps those that an estimate can
    apply, or the others.
    """

    text: str | None = None
    saves: str | None = None
    family: str | None = None
    phase: str | None = None
    architecture: str | None = None
    gpu: str | None = None
    book_as: str | None = None
    memory_lever: str | None = None
    lever: bool | None = None

    def keeps(self, technique: Technique) -> bool:
        return (
            (self.saves is None or self.saves in technique.saves)
            and (self.family is None or technique.family == self.family)
            and (self.phase is None or self.phase in technique.phases)
            and suits(self.architecture, technique.architectures)
            and suits(self.gpu, technique.gpu_generations)
            and (self.book_as is None or technique.book_as == self.book_as)
            and (self.memory_lever is None or technique.memory_lever == self.memory_lever)
            and (self.lever is None or (technique.id in LEVERS) == self.lever)
            and technique_matches(technique, self.text)
        )


def suits(wanted: str | None, named: Sequence[str]) -> bool:
    """Whether an entry that names these architectures or generations acts on the wanted one."""
    return wanted is None or wanted in named or ANYWHERE in named


def technique_matches(technique: Technique, text: str | None) -> bool:
    """Whether every word of `text` begins one in its names, the id, the family or the summary."""
    told = (technique.name, technique.id, technique.family, technique.summary, *technique.also_called)
    return words_match(text, told)


def find_techniques(ctx: Context, wanted: TechniqueFilter) -> list[Technique]:
    """Every technique that the filter keeps, by name."""
    found = (technique for technique in ctx.catalog.techniques.values() if wanted.keeps(technique))
    return sorted(found, key=lambda technique: (technique.name.casefold(), technique.id))


def list_techniques(
    ctx: Context, wanted: TechniqueFilter, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
) -> Page[Technique]:
    """One page of them. Raises InvalidQuery for a limit or cursor that is none."""
    return page_of(find_techniques(ctx, wanted), limit, cursor)


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
        "also_called": list(technique.also_called),
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
        "references": [{"title": document.title, "url": document.url} for document in technique.documents],
        "related": list(technique.related),
        "lever": lever is not None,
        "params": [] if lever is None else lever_json(lever)["params"],
        "model": None if lever is None else lever.model,
        "ideal": None if lever is None else lever.ideal,
        "excludes": [] if lever is None else list(lever.excludes),
        "members": [] if lever is None else list(lever.members),
        "no_lever": technique.no_lever,
    }
