"""What the library holds beside the techniques: workloads to try them on, and its reference pages.

Everything is read once from `data/library/*.json` and checked: each claim names its source, each technique exists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, TypeVar

from app.catalog.fields import Fields, Loc
from app.catalog.loader import CatalogError, load_catalog
from app.catalog.technique_codec import PHASES
from app.domain.errors import InvalidInput

FOLDER = "library"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TryOut:
    """A workload that techniques are tried on. `state` holds fields of the what-if lab by name, as its address does.

    `phases` are those of the library that it stands for: a denoiser's forward pass is a prefill to an estimate, and
    `denoise` to a reader. `opens` are techniques whose pages open on it, though an earlier one would do.
    """

    id: str
    title: str
    phases: tuple[str, ...]
    state: Mapping[str, Any]
    opens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """The reference part of the library."""

    try_outs: tuple[TryOut, ...]


def load_library(folder: Traversable | None = None) -> Library:
    """The reference part of the library; without a folder the shipped one. Raises CatalogError for what is wrong."""
    return _shipped() if folder is None else _load(folder)


@cache
def _shipped() -> Library:
    return _load(resources.files("app.catalog") / "data" / FOLDER)


def _load(folder: Traversable) -> Library:
    return Library(try_outs=_read(folder, "workloads", _try_outs))


def _read(folder: Traversable, name: str, parse: Callable[[Any], T]) -> T:
    file = f"{FOLDER}/{name}.json"
    try:
        return parse(json.loads((folder / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise CatalogError(file, f"cannot be read: {error}") from error
    except InvalidInput as error:
        raise CatalogError(file, error.reason, ".".join(map(str, error.loc))) from error


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
        id=stated(fields, "id", fields.identifier("id", "")),
        title=stated(fields, "title", fields.line("title", 80)),
        phases=among(fields, "phases", PHASES),
        state=MappingProxyType(dict(state)),
        opens=technique_ids(fields, "opens"),
    )


# ---- shared ---------------------------------------------------------------------------------------------------------


def stated(fields: Fields, key: str, value: T | None) -> T:
    """A field that must be there."""
    if value is None or value == "":
        raise fields.fail(key, "is missing")
    return value


def among(fields: Fields, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """A list of words that must all be known."""
    found = fields.texts(key)
    for i, word in enumerate(found):
        if word not in known:
            raise InvalidInput((*fields.at(key), i), f"unknown value {word[:60]!r}: use {', '.join(known)}")
    return found


def technique_ids(fields: Fields, key: str) -> tuple[str, ...]:
    """Ids of techniques that must all exist."""
    found = fields.texts(key)
    known = load_catalog().techniques
    for i, id_ in enumerate(found):
        if id_ not in known:
            raise InvalidInput((*fields.at(key), i), f"no technique is called {id_[:60]!r}")
    return found
