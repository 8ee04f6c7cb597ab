"""Hardware, models, runs, techniques and the library's pages by any of their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from app.domain.technique import Technique
from app.services.catalogue import all_hardware, all_models, hardware_matches, model_matches
from app.services.context import Context
from app.services.hardware_pages import HardwareLine, hardware_line
from app.services.listing import linked_runs
from app.services.model_pages import ModelLine, model_line
from app.services.reference_pages import Place, find_places
from app.services.techniques import TechniqueFilter, find_techniques
from app.storage.records import RunFilter, RunSummary

SEARCH_LIMIT: Final = 8


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The first few matches of each kind, and how many there are."""

    hardware: tuple[HardwareLine, ...]
    hardware_total: int
    models: tuple[ModelLine, ...]
    models_total: int
    runs: tuple[RunSummary, ...]
    runs_total: int
    techniques: tuple[Technique, ...] = ()
    techniques_total: int = 0
    places: tuple[Place, ...] = ()

    @property
    def total(self) -> int:
        return self.hardware_total + self.models_total + self.runs_total + self.techniques_total + len(self.places)


def search(ctx: Context, text: str) -> SearchResult:
    """Whatever has every word in its names (techniques and library pages: in what they say); exact names first."""
    wanted = text.strip()
    if not wanted:
        return SearchResult((), 0, (), 0, (), 0)
    hardware = [entry for entry in all_hardware(ctx) if hardware_matches(entry.profile, wanted)]
    models = [entry for entry in all_models(ctx) if model_matches(entry.model, wanted)]
    hardware.sort(key=lambda entry: _closeness(wanted, entry.name, entry.profile.aliases))
    models.sort(key=lambda entry: _closeness(wanted, entry.name, entry.model.aliases))
    techniques = find_techniques(ctx, TechniqueFilter(text=wanted))
    techniques.sort(key=lambda entry: _closeness(wanted, entry.name, (entry.id,)))
    runs = linked_runs(ctx, RunFilter(text=wanted), limit=SEARCH_LIMIT)
    return SearchResult(
        tuple(hardware_line(entry) for entry in hardware[:SEARCH_LIMIT]),
        len(hardware),
        tuple(model_line(entry) for entry in models[:SEARCH_LIMIT]),
        len(models),
        runs.items,
        runs.total,
        tuple(techniques[:SEARCH_LIMIT]),
        len(techniques),
        find_places(wanted),
    )


def _closeness(wanted: str, name: str, aliases: Iterable[str]) -> int:
    """0 for the name itself, 1 for an alias, 2 for a name that starts so, 3 for the rest; sorting is stable."""
    low = wanted.casefold()
    if name.casefold() == low:
        return 0
    if any(alias.casefold() == low for alias in aliases):
        return 1
    return 2 if name.casefold().startswith(low) else 3
