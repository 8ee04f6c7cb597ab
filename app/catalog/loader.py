"""Reads the shipped catalogue once, checks every entry, and finds entries by the names people and files use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.catalog.hardware_codec import hardware_from_json
from app.catalog.model_codec import model_from_json
from app.catalog.names import AmbiguousName, Guess, NameIndex, UnknownName, guess_device, guess_model_name, normal
from app.catalog.technique_codec import technique_from_json
from app.catalog.tree_codec import TreeProblem, trees_from_files
from app.domain.decision_tree import Trees
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.model import ModelSpec
from app.domain.technique import Technique

HARDWARE, MODELS, TECHNIQUES, TREES = "hardware", "models", "techniques", "trees"

__all__ = ["AmbiguousName", "Catalog", "CatalogError", "Guess", "UnknownName", "catalog_errors", "load_catalog"]


class CatalogError(Exception):
    """A broken catalogue entry: the file, the field where there is one, and the reason."""

    def __init__(self, file: str, reason: str, field_path: str = "") -> None:
        self.file = file
        self.field_path = field_path
        self.reason = reason
        super().__init__(f"{file}: {field_path + ': ' if field_path else ''}{reason}")


@dataclass(frozen=True)
class Catalog:
    """The shipped hardware profiles, models, techniques and decision trees by id, with look-ups by name."""

    hardware: Mapping[str, HardwareProfile]
    models: Mapping[str, ModelSpec]
    techniques: Mapping[str, Technique]
    trees: Trees
    _devices: NameIndex = field(repr=False, compare=False)
    _models: NameIndex = field(repr=False, compare=False)

    def resolve_hardware(self, name: str) -> HardwareProfile:
        """The profile with this id or alias; case, spaces, dashes and underscores do not matter.

        Raises AmbiguousName with the candidates, or UnknownName with near names.
        """
        return self.hardware[self._devices.resolve(name)]

    def resolve_model(self, name: str) -> ModelSpec:
        """The model with this id, alias or Hugging Face repository name. Raises AmbiguousName or UnknownName."""
        return self.models[self._models.resolve(name)]

    def guess_hardware(self, hint: str) -> Guess | None:
        """The profile that a file's own words for its device mean, or None where that is not sure."""
        return guess_device(self._devices, hint)

    def guess_model(self, hint: str, parameter_count: float | None = None) -> Guess | None:
        """The model that a file's own words (a path, a repository, "llama 1B Q4_K - Medium") mean, or None.

        `parameter_count` is what the file says the model has; it settles names without a version.
        """
        return guess_model_name(self._models, self.models, hint, parameter_count)


def load_catalog(folder: Path | None = None) -> Catalog:
    """The catalogue of a folder with `hardware`, `models` and perhaps `techniques` and `trees`; or the shipped one.

    Raises CatalogError for the first broken entry.
    """
    return _shipped() if folder is None else _load(folder)


def catalog_errors(folder: Path | None = None) -> list[CatalogError]:
    """Every broken entry, for `catalog-lint`: reading goes on after an error."""
    return _read(_shipped_folder() if folder is None else folder)[-1]


@cache
def _shipped() -> Catalog:
    return _load(_shipped_folder())


def _shipped_folder() -> Traversable:
    return resources.files("app.catalog") / "data"


def _load(folder: Traversable) -> Catalog:
    hardware, models, techniques, trees, errors = _read(folder)
    if errors:
        raise errors[0]
    return Catalog(
        MappingProxyType(hardware),
        MappingProxyType(models),
        MappingProxyType(techniques),
        trees,
        NameIndex(
            "hardware profile",
            {p.id: (p.name, *p.aliases) for p in hardware.values()},
            {p.id: _memory_words(p.memory_capacity) for p in hardware.values()},
        ),
        NameIndex("model", {m.id: _model_names(m) for m in models.values()}),
    )


def _memory_words(capacity: float | None) -> tuple[str, ...]:
    """How a name may state a device's memory: decimal or binary gigabytes."""
    return () if capacity is None else (f"{capacity / 1e9:.0f}gb", f"{capacity / 2**30:.0f}gb")


def _model_names(model: ModelSpec) -> tuple[str, ...]:
    return (model.name, *((model.hf_id,) if model.hf_id else ()), *model.aliases)


def _read(
    folder: Traversable,
) -> tuple[dict[str, HardwareProfile], dict[str, ModelSpec], dict[str, Technique], Trees, list[CatalogError]]:
    errors: list[CatalogError] = []
    hardware: dict[str, HardwareProfile] = {}
    models: dict[str, ModelSpec] = {}
    for file, data in _entries(folder, HARDWARE, errors):
        try:
            profile = hardware_from_json(data, (), shipped=True)
        except InvalidInput as error:
            errors.append(_broken(file, error))
        else:
            hardware[profile.id] = profile
    for file, data in _entries(folder, MODELS, errors):
        try:
            parsed = model_from_json(data, (), shipped=True)
        except InvalidInput as error:
            errors.append(_broken(file, error))
            continue
        if parsed.assumptions:
            errors.append(CatalogError(file, f"a shipped model leaves nothing open, but {parsed.assumptions[0]}"))
        models[parsed.model.id] = parsed.model
    errors += _clashes(HARDWARE, {p.id: p.aliases for p in hardware.values()})
    errors += _clashes(MODELS, {m.id: m.aliases for m in models.values()})
    techniques: dict[str, Technique] = {}
    if (folder / TECHNIQUES).is_dir():
        for file, data in _entries(folder, TECHNIQUES, errors):
            try:
                technique = technique_from_json(data)
            except InvalidInput as error:
                errors.append(_broken(file, error))
            else:
                techniques[technique.id] = technique
    errors += _dangling(techniques)
    return hardware, models, techniques, _trees(folder, techniques, errors), errors


def _trees(folder: Traversable, techniques: Mapping[str, Technique], errors: list[CatalogError]) -> Trees:
    """The decision trees; none where the folder has none, or where a file of theirs is broken."""
    none = Trees({}, {}, {}, {}, {})
    if not (folder / TREES).is_dir():
        return none
    before = len(errors)
    files = {file.partition("/")[2]: data for file, data in _entries(folder, TREES, errors)}
    if len(errors) > before:
        return none
    try:
        return trees_from_files(files, techniques)
    except TreeProblem as problem:
        errors.append(CatalogError(f"{TREES}/{problem.file}", problem.reason, problem.field_path))
        return none


def _dangling(techniques: Mapping[str, Technique]) -> Iterator[CatalogError]:
    """Related techniques that do not exist."""
    for technique in techniques.values():
        for place, other in enumerate(technique.related):
            if other not in techniques:
                reason = f"no technique is called {other[:60]!r}"
                yield CatalogError(f"{TECHNIQUES}/{technique.id}.json", reason, f"related.{place}")


def _clashes(kind: str, aliases: Mapping[str, tuple[str, ...]]) -> Iterator[CatalogError]:
    """Ids that a look-up could not tell apart, and aliases that are another entry's id."""
    by_name: dict[str, str] = {}
    for id_ in aliases:
        other = by_name.setdefault(normal(id_), id_)
        if other != id_:
            yield CatalogError(f"{kind}/{id_}.json", f"{id_!r} reads like {other!r}", "id")
    for id_, names in aliases.items():
        for name in names:
            owner = by_name.get(normal(name), id_)
            if owner != id_:
                yield CatalogError(f"{kind}/{id_}.json", f"{name!r} is the id of another entry, {owner}", "aliases")


def _entries(folder: Traversable, kind: str, errors: list[CatalogError]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    place = folder / kind
    if not place.is_dir():
        errors.append(CatalogError(kind, "the folder is missing"))
        return
    seen: dict[str, str] = {}
    for item in sorted(place.iterdir(), key=lambda entry: entry.name):
        if not item.name.endswith(".json"):
            continue
        file = f"{kind}/{item.name}"
        try:
            data = json.loads(item.read_text("utf-8"), object_pairs_hook=_no_repeats, parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            errors.append(CatalogError(file, f"is not UTF-8 text: byte {error.start}"))
        except json.JSONDecodeError as error:
            errors.append(CatalogError(file, f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"))
        except _Refused as error:
            errors.append(CatalogError(file, str(error)))
        else:
            problem = _identity(data, item.name, seen)
            if problem is None:
                yield file, data
            else:
                errors.append(CatalogError(file, problem, "id"))


def _identity(data: Any, file_name: str, seen: dict[str, str]) -> str | None:
    """What is wrong with an entry's id: two entries with one id, or a file of another name."""
    id_ = data.get("id") if isinstance(data, dict) else None
    if not isinstance(id_, str):
        return None  # the codec says what is wrong
    if id_ in seen:
        return f"{id_!r} is taken by {seen[id_]}"
    seen[id_] = file_name
    return None if file_name == f"{id_}.json" else f"{id_!r} does not match the file name: call the file {id_}.json"


class _Refused(ValueError):
    pass


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused(f"states {key!r} twice in one object")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise _Refused(f"holds {text}, which is not a JSON number")


def _broken(file: str, error: InvalidInput) -> CatalogError:
    return CatalogError(file, error.reason, ".".join(str(part) for part in error.loc))
