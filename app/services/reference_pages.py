"""What the library's reference pages hold: claims with numbered sources, beside what the catalogue knows itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.catalog.library import load_library
from app.domain.decision_tree import Leaf, Symptom, TreeMetric, TreeTest
from app.domain.hardware import HardwareProfile
from app.domain.library import Checklist, Claim, DeviceMatch, Entry, LibrarySource, Section
from app.domain.lint_rules import rule_words
from app.domain.overlap import OVERLAP_EFFICIENCY
from app.domain.technique import Gain, Technique
from app.services.catalogue import HardwareEntry, words_match
from app.services.checklists import source_json
from app.services.context import Context
from app.services.hardware_pages import HardwareLine, hardware_line
from app.storage.errors import NotFound

SEE_ALSO: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "gpu-generations": (("Devices with their figures and sources", "/hardware"),),
    "attention-kernels": (("All techniques on attention", "/library?family=attention"), ("KV cache", "/kv")),
    "overlap-levels": (
        ("A collective beside a product, in chunks", "/comm"),
        ("Expert layers at each level", "/moe"),
    ),
    "memory-levers": (("What lies in a device, and what each lever saves", "/memory"),),
    "criteria": (("Algorithmic speed-ups, booked apart", "/library/algorithmic"),),
    "algorithmic": (("All algorithmic techniques", "/library?book_as=algorithmic"), ("Comparisons", "/comparisons")),
    "formulas": (("Bounds against measurements", "/library/fidelity"), ("A step, term by term", "/explore")),
    "benchmark-mistakes": (
        ("The reporting checklist", "/library/checklists/reporting"),
        ("Upload a run and see its findings", "/runs"),
    ),
}
"""Where a reader of a section goes next: (words, address)."""


@dataclass(frozen=True, slots=True)
class EntrySheet:
    """An entry with what the code knows of it: devices, techniques in full, gains, modelled overlap, checks of runs."""

    entry: Entry
    techniques: tuple[Technique, ...]
    devices: tuple[HardwareLine, ...]
    gains: tuple[Gain, ...]
    overlap: float | None
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SectionSheet:
    """A reference page. `numbers` are the places of sources in the list at its end, from 1."""

    section: Section
    entries: tuple[EntrySheet, ...]
    sources: tuple[LibrarySource, ...]
    numbers: Mapping[str, int]
    see_also: tuple[tuple[str, str], ...]


def get_section(id_: str) -> Section:
    """The reference page with this id. Raises NotFound."""
    found = load_library().sections.get(id_.casefold())
    if found is None:
        raise NotFound("section of the library", id_)
    return found


def section_sheet(ctx: Context, section: Section) -> SectionSheet:
    """Everything that a reference page shows."""
    sources, numbers = numbered(section.claims)
    return SectionSheet(
        section=section,
        entries=tuple(_entry_sheet(ctx, entry) for entry in section.entries),
        sources=sources,
        numbers=numbers,
        see_also=SEE_ALSO.get(section.id, ()),
    )


def numbered(claims: Iterable[Claim]) -> tuple[tuple[LibrarySource, ...], dict[str, int]]:
    """The sources of some claims, each once, in the order of their first use, and the number of each."""
    found = tuple(dict.fromkeys(source for claim in claims for source in claim.sources))
    return found, {source.id: place for place, source in enumerate(found, 1)}


def _entry_sheet(ctx: Context, entry: Entry) -> EntrySheet:
    known = ctx.catalog.techniques
    ids = entry.techniques
    if entry.memory_lever is not None:
        ids = tuple(sorted(t.id for t in known.values() if t.memory_lever == entry.memory_lever))
    own = known.get(entry.id)
    return EntrySheet(
        entry=entry,
        techniques=tuple(known[id_] for id_ in ids),
        devices=() if entry.devices is None else _devices(ctx, entry.devices),
        gains=() if own is None else own.gains,
        overlap=None if entry.level is None else OVERLAP_EFFICIENCY[entry.level],
        rules=tuple(words for rule in entry.rules for words in rule_words(rule)),
    )


def _devices(ctx: Context, match: DeviceMatch) -> tuple[HardwareLine, ...]:
    found = [profile for profile in ctx.catalog.hardware.values() if _is_of(profile, match)]
    found.sort(key=lambda profile: (profile.release_year or 0, profile.name))
    return tuple(hardware_line(HardwareEntry(profile)) for profile in found)


def _is_of(profile: HardwareProfile, match: DeviceMatch) -> bool:
    return (
        profile.vendor == match.vendor
        and profile.architecture in match.architectures
        and (not match.capabilities or profile.compute_capability in match.capabilities)
    )


# ---- symptoms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SymptomLine:
    """A symptom with what to check, and the directions with their techniques."""

    symptom: Symptom
    checks: tuple[tuple[TreeMetric, TreeTest], ...]
    directions: tuple[tuple[Leaf, tuple[Technique, ...]], ...]
    scenarios: tuple[tuple[str, str], ...]


def symptom_lines(ctx: Context) -> tuple[SymptomLine, ...]:
    """The symptom table, from the files that the diagnosis walks."""
    trees, known = ctx.catalog.trees, ctx.catalog.techniques
    return tuple(
        SymptomLine(
            symptom=symptom,
            checks=tuple((trees.metrics[test.metric], test) for test in symptom.condition.tests),
            directions=tuple(
                (trees.leaves[leaf], tuple(known[id_] for id_ in trees.leaves[leaf].techniques)) for leaf in symptom.go
            ),
            scenarios=tuple((id_, trees.scenarios[id_].title) for id_ in symptom.scenarios),
        )
        for symptom in trees.symptoms.values()
    )


# ---- the whole library ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the library, as its entrance and the search show it."""

    title: str
    line: str
    url: str
    group: str
    words: tuple[str, ...] = ()


def places() -> tuple[Place, ...]:
    """Every reference page, in the order of the entrance."""
    library = load_library()
    sections, lists = library.sections, library.checklists

    def section(id_: str, group: str) -> Place:
        found = sections[id_]
        return Place(found.title, found.line, f"/library/{id_}", group, tuple(e.title for e in found.entries))

    def checklist(found: Checklist, group: str, title: str = "") -> Place:
        words = tuple(item.text for item in found.items)
        return Place(title or found.title, found.line, f"/library/checklists/{found.id}", group, words)

    priorities = [found for found in lists.values() if found.kind == "priorities"]
    return (
        Place(
            "Symptom table",
            "What a profile shows, what to check, and the direction it points to.",
            "/library/symptoms",
            "Find the bottleneck",
        ),
        Place(
            "Priority lists",
            "What to do first in each scenario, as lists that a team can tick and share.",
            "/library/checklists",
            "Find the bottleneck",
            tuple(found.title for found in priorities),
        ),
        checklist(lists["month-plan"], "Find the bottleneck"),
        section("gpu-generations", "Know the machine"),
        section("attention-kernels", "Know the machine"),
        section("overlap-levels", "Know the machine"),
        section("memory-levers", "Know the machine"),
        section("criteria", "Change the model"),
        section("algorithmic", "Change the model"),
        checklist(lists["reporting"], "Trust the numbers"),
        section("benchmark-mistakes", "Trust the numbers"),
        section("formulas", "Trust the numbers"),
        Place(
            "Bounds and forecasts against measurements",
            "Every carried measurement beside its bound and its forecast.",
            "/library/fidelity",
            "Trust the numbers",
            ("fidelity", "accuracy", "calibration"),
        ),
    )


def find_places(text: str) -> tuple[Place, ...]:
    """Reference pages and lists in whose title, line or entries every word begins one."""
    library = load_library()
    lists = tuple(
        Place(f"Priority list: {found.title}", found.line, f"/library/checklists/{found.id}", "")
        for found in library.checklists.values()
        if found.kind == "priorities"
    )
    return tuple(
        place for place in (*places(), *lists) if words_match(text, (place.title, place.line, "library", *place.words))
    )


def mentions(ctx: Context, technique: Technique) -> tuple[tuple[str, str], ...]:
    """(words, address) of every place of the library that names a technique."""
    library = load_library()
    found = [
        (f"{section.title}: {entry.title}", f"/library/{section.id}#{entry.id}")
        for section in library.sections.values()
        for entry in section.entries
        if technique.id in entry.techniques or (entry.memory_lever and entry.memory_lever == technique.memory_lever)
    ]
    found += [
        (f"Priorities, {checklist.title}: {item.text}", f"/library/checklists/{checklist.id}#{item.id}")
        for checklist in library.checklists.values()
        for item in checklist.items
        if technique.id in item.techniques
    ]
    found += [
        (f"Symptom: {symptom.see}", f"/library/symptoms#{symptom.id}")
        for symptom in ctx.catalog.trees.symptoms.values()
        if any(technique.id in ctx.catalog.trees.leaves[leaf].techniques for leaf in symptom.go)
    ]
    return tuple(found)


# ---- in the API's shape ---------------------------------------------------------------------------------------------


def section_json(ctx: Context, section: Section) -> dict[str, Any]:
    """A reference page: its claims with their sources, and the techniques and devices that belong to it."""
    sheet = section_sheet(ctx, section)
    return {
        "id": section.id,
        "title": section.title,
        "line": section.line,
        "answer": _claim_json(section.answer),
        "entries": [
            {
                "id": item.entry.id,
                "title": item.entry.title,
                "summary": _claim_json(item.entry.summary),
                "points": [{"label": point.label, **_claim_json(point.claim)} for point in item.entry.points],
                "techniques": [technique.id for technique in item.techniques],
                "hardware": [line.entry.id for line in item.devices],
                "hidden_share": item.overlap,
                "rules": list(item.entry.rules),
            }
            for item in sheet.entries
        ],
    }


def _claim_json(claim: Claim) -> dict[str, Any]:
    return {"text": claim.text, "sources": [source_json(source) for source in claim.sources]}


def symptoms_json(ctx: Context) -> list[dict[str, Any]]:
    """The symptom table."""
    return [
        {
            "id": line.symptom.id,
            "see": line.symptom.see,
            "checks": [
                {
                    "metric": metric.name,
                    "op": test.op,
                    "value": test.threshold.value,
                    "unit": test.threshold.unit,
                    "origin": test.threshold.origin,
                    "how": metric.how,
                }
                for metric, test in line.checks
            ],
            "join": line.symptom.condition.join,
            "cause": line.symptom.cause,
            "directions": [
                {"leaf": leaf.id, "title": leaf.title, "techniques": [t.id for t in techniques]}
                for leaf, techniques in line.directions
            ],
            "avoid": line.symptom.avoid,
            "scenarios": [id_ for id_, _ in line.scenarios],
        }
        for line in symptom_lines(ctx)
    ]
