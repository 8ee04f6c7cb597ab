"""What the library holds beside the techniques: workloads to try them on, reference pages, checklists.

Everything is read once from `data/library` and checked: each claim names its sources, every source and technique that
is named exists, and no source is listed that nothing rests on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args

from app.catalog.fields import Fields, Loc
from app.catalog.links import checked_link
from app.catalog.loader import CatalogError, load_catalog
from app.catalog.technique_codec import PHASES
from app.domain.errors import InvalidInput
from app.domain.library import (
    Checklist,
    ChecklistItem,
    ChecklistKind,
    Claim,
    DeviceMatch,
    Entry,
    Library,
    LibrarySource,
    Point,
    Section,
    TryOut,
)
from app.domain.lint_rules import rule_words
from app.domain.overlap import LEVELS
from app.domain.technique import MemoryLever

FOLDER = "library"
SECTIONS = (
    "gpu-generations", "attention-kernels", "overlap-levels", "memory-levers", "criteria", "algorithmic",
    "benchmark-mistakes", "formulas",
)  # fmt: skip
"""Reference pages, in the order of the library's entrance."""
CHECKLISTS = (
    "dense-train", "prefill", "decode", "moe", "vlm", "diffusion", "ssm", "month-plan", "reporting",
)  # fmt: skip
READ = ("primary", "secondary", "derived", "assumed")

T = TypeVar("T")


def load_library(folder: Traversable | None = None) -> Library:
    """The reference part of the library; without a folder the shipped one. Raises CatalogError for what is wrong."""
    return _shipped() if folder is None else _load(folder)


@cache
def _shipped() -> Library:
    return _load(resources.files("app.catalog") / "data" / FOLDER)


def _load(folder: Traversable) -> Library:
    sources = _read(folder, "sources", _sources)
    sections = {name: _read(folder, f"sections/{name}", lambda data: _section(data, sources)) for name in SECTIONS}
    checklists = {
        name: _read(folder, f"checklists/{name}", lambda data: _checklist(data, sources)) for name in CHECKLISTS
    }
    for kind, found in (("sections", sections), ("checklists", checklists)):
        for name, item in found.items():
            if item.id != name:
                raise CatalogError(f"{FOLDER}/{kind}/{name}.json", f"{item.id!r} does not match the file name", "id")
    used = {source.id for section in sections.values() for claim in section.claims for source in claim.sources}
    used |= {source.id for checklist in checklists.values() for item in checklist.items for source in item.sources}
    for id_ in sources:
        if id_ not in used:
            raise CatalogError(f"{FOLDER}/sources.json", f"nothing rests on {id_!r}: leave it out")
    return Library(
        try_outs=_read(folder, "workloads", _try_outs),
        sections=MappingProxyType(sections),
        checklists=MappingProxyType(checklists),
        sources=MappingProxyType(sources),
    )


def _read(folder: Traversable, name: str, parse: Callable[[Any], T]) -> T:
    file = f"{FOLDER}/{name}.json"
    try:
        return parse(json.loads((folder / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise CatalogError(file, f"cannot be read: {error}") from error
    except InvalidInput as error:
        raise CatalogError(file, error.reason, ".".join(map(str, error.loc))) from error


# ---- claims and their sources ---------------------------------------------------------------------------------------

Sources = Mapping[str, LibrarySource]


def _sources(data: Any) -> dict[str, LibrarySource]:
    fields = Fields(data, (), ("sources",))
    found = [_source(item, ("sources", i)) for i, item in enumerate(fields.items("sources"))]
    return _by_id(found, "sources")


def _source(data: Any, loc: Loc) -> LibrarySource:
    fields = Fields(data, loc, ("id", "title", "url", "read"))
    return LibrarySource(
        id=_stated(fields, "id", fields.identifier("id", "")),
        title=_stated(fields, "title", fields.line("title", 200)),
        read=_stated(fields, "read", fields.choice("read", READ)),
        url=checked_link(fields, "url"),
    )


def _rests_on(fields: Fields, sources: Sources) -> tuple[LibrarySource, ...]:
    names = fields.texts("sources", 8)
    if not names:
        raise fields.fail("sources", "is missing: say what this rests on, or name `judgement`")
    for i, name in enumerate(names):
        if name not in sources:
            raise InvalidInput((*fields.at("sources"), i), f"no source is called {name[:60]!r}")
    return tuple(sources[name] for name in names)


def _claim(data: Any, loc: Loc, sources: Sources) -> Claim:
    fields = Fields(data, loc, ("text", "sources"))
    return Claim(_sentence(fields, "text"), _rests_on(fields, sources))


def _point(data: Any, loc: Loc, sources: Sources) -> Point:
    fields = Fields(data, loc, ("label", "text", "sources"))
    label = _stated(fields, "label", fields.line("label", 40))
    return Point(label, Claim(_sentence(fields, "text"), _rests_on(fields, sources)))


def _sentence(fields: Fields, key: str) -> str:
    text = _stated(fields, key, fields.line(key, 600))
    if not text.endswith((".", "?")):
        raise fields.fail(key, "must be a sentence, with a full stop at its end")
    return text


# ---- reference pages ------------------------------------------------------------------------------------------------


def _section(data: Any, sources: Sources) -> Section:
    fields = Fields(data, (), ("id", "title", "line", "answer", "entries"))
    entries = [_entry(item, ("entries", i), sources) for i, item in enumerate(fields.items("entries", 60))]
    if not entries:
        raise fields.fail("entries", "is missing: a page without entries says nothing")
    return Section(
        id=_stated(fields, "id", fields.identifier("id", "")),
        title=_stated(fields, "title", fields.line("title", 80)),
        line=_sentence(fields, "line"),
        answer=_claim(fields.object("answer"), ("answer",), sources),
        entries=tuple(_by_id(entries, "entries").values()),
    )


def _entry(data: Any, loc: Loc, sources: Sources) -> Entry:
    known = ("id", "title", "summary", "points", "techniques", "matches", "memory_lever", "level", "rules")
    fields = Fields(data, loc, known)
    return Entry(
        id=_stated(fields, "id", fields.line("id", 60)),
        title=_stated(fields, "title", fields.line("title", 80)),
        summary=_claim(fields.object("summary"), (*loc, "summary"), sources),
        points=tuple(_point(item, (*loc, "points", i), sources) for i, item in enumerate(fields.items("points", 12))),
        techniques=_techniques(fields, "techniques"),
        devices=_devices(fields),
        memory_lever=fields.choice("memory_lever", get_args(MemoryLever)),
        level=fields.choice("level", LEVELS),
        rules=_rules(fields),
    )


def _rules(fields: Fields) -> tuple[str, ...]:
    found = fields.texts("rules", 8)
    for i, rule in enumerate(found):
        if not rule_words(rule):
            raise InvalidInput((*fields.at("rules"), i), f"nothing is done for a rule {rule[:20]!r}")
    return found


def _devices(fields: Fields) -> DeviceMatch | None:
    data = fields.object("matches")
    if data is None:
        return None
    inner = Fields(data, fields.at("matches"), ("vendor", "architectures", "capabilities"))
    found = DeviceMatch(
        vendor=_stated(inner, "vendor", inner.line("vendor", 40)),
        architectures=inner.texts("architectures", 12),
        capabilities=inner.texts("capabilities", 12),
    )
    for i, name in enumerate(found.architectures):
        if not any(p.vendor == found.vendor and p.architecture == name for p in load_catalog().hardware.values()):
            raise InvalidInput((*inner.at("architectures"), i), f"no device of the catalogue is {name[:60]!r}")
    return found


# ---- checklists -----------------------------------------------------------------------------------------------------


def _checklist(data: Any, sources: Sources) -> Checklist:
    fields = Fields(data, (), ("id", "title", "line", "kind", "scenario", "groups"))
    scenario = fields.line("scenario", 60)
    trees = load_catalog().trees.scenarios
    if scenario is not None and scenario not in trees:
        raise fields.fail("scenario", f"no scenario is called {scenario[:60]!r}: use {', '.join(trees)}")
    groups = tuple(_group(item, ("groups", i), sources) for i, item in enumerate(fields.items("groups", 20)))
    items = [item for _, members in groups for item in members]
    if not items:
        raise fields.fail("groups", "is missing: a checklist needs something to do")
    _by_id(items, "groups")
    return Checklist(
        id=_stated(fields, "id", fields.identifier("id", "")),
        title=_stated(fields, "title", fields.line("title", 80)),
        line=_sentence(fields, "line"),
        kind=cast(ChecklistKind, _stated(fields, "kind", fields.choice("kind", get_args(ChecklistKind)))),
        groups=groups,
        scenario=scenario,
    )


def _group(data: Any, loc: Loc, sources: Sources) -> tuple[str, tuple[ChecklistItem, ...]]:
    fields = Fields(data, loc, ("title", "items"))
    title = _stated(fields, "title", fields.line("title", 80))
    return title, tuple(_item(item, (*loc, "items", i), sources) for i, item in enumerate(fields.items("items", 40)))


def _item(data: Any, loc: Loc, sources: Sources) -> ChecklistItem:
    fields = Fields(data, loc, ("id", "text", "why", "techniques", "sources"))
    return ChecklistItem(
        id=_stated(fields, "id", fields.identifier("id", "")),
        text=_stated(fields, "text", fields.line("text", 300)),
        why=_sentence(fields, "why"),
        techniques=_techniques(fields, "techniques"),
        sources=_rests_on(fields, sources),
    )


# ---- workloads to try techniques on ---------------------------------------------------------------------------------


def _try_outs(data: Any) -> tuple[TryOut, ...]:
    fields = Fields(data, (), ("workloads",))
    return tuple(_try_out(item, ("workloads", i)) for i, item in enumerate(fields.items("workloads")))


def _try_out(data: Any, loc: Loc) -> TryOut:
    fields = Fields(data, loc, ("id", "title", "phases", "opens", "state"))
    state = fields.object("state")
    if not state:
        raise fields.fail("state", "is missing: name fields of the what-if lab")
    return TryOut(
        id=_stated(fields, "id", fields.identifier("id", "")),
        title=_stated(fields, "title", fields.line("title", 80)),
        phases=_among(fields, "phases", PHASES),
        state=MappingProxyType(dict(state)),
        opens=_techniques(fields, "opens"),
    )


# ---- shared ---------------------------------------------------------------------------------------------------------


def _stated(fields: Fields, key: str, value: T | None) -> T:
    if value is None or value == "":
        raise fields.fail(key, "is missing")
    return value


def _by_id(items: list[Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        if item.id in found:
            raise InvalidInput((where,), f"{item.id!r} is listed twice")
        found[item.id] = item
    return found


def _among(fields: Fields, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    found = fields.texts(key)
    for i, word in enumerate(found):
        if word not in known:
            raise InvalidInput((*fields.at(key), i), f"unknown value {word[:60]!r}: use {', '.join(known)}")
    return found


def _techniques(fields: Fields, key: str) -> tuple[str, ...]:
    """Ids of techniques, each of which must exist."""
    found = fields.texts(key)
    known = load_catalog().techniques
    for i, id_ in enumerate(found):
        if id_ not in known:
            raise InvalidInput((*fields.at(key), i), f"no technique is called {id_[:60]!r}")
    return found
