"""Checks the whole catalogue: `python -m app.catalog.check [folder]`, and `bytebound catalog-lint`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from app.catalog.hardware_codec import hardware_figures
from app.catalog.loader import Catalog, CatalogError, catalog_errors, load_catalog
from app.domain.errors import UnsupportedArchitecture
from app.domain.levers.registry import LEVERS
from app.domain.parameters import count_parameters

COUNT_TOLERANCE = 1e-3


def lint_catalog(folder: Path | None = None) -> list[CatalogError]:
    """Everything that is wrong with a catalogue; empty when it is sound.

    Beyond what loading checks: each hardware figure has a source, and each model's count agrees with its record.
    """
    errors = catalog_errors(folder)
    if errors:
        return errors
    catalog = load_catalog(folder)
    errors += list(_levers(catalog))
    for profile in catalog.hardware.values():
        for name in hardware_figures(profile):
            if not profile.sources_of(name):
                errors.append(CatalogError(f"hardware/{profile.id}.json", "has no source", name))
    for model in catalog.models.values():
        file = f"models/{model.id}.json"
        try:
            count = count_parameters(model)
        except UnsupportedArchitecture as error:
            errors.append(CatalogError(file, error.reason))
            continue
        recorded = model.recorded_total_params
        if count.counted and recorded and abs(count.total - recorded) > COUNT_TOLERANCE * recorded:
            reason = f"is {recorded:.0f}, but the layers add up to {count.total}"
            errors.append(CatalogError(file, reason, "computed_total_params"))
    return errors


def _levers(catalog: Catalog) -> Iterator[CatalogError]:
    """Techniques and levers that do not agree: each technique is a lever or says why it is none."""
    for technique in catalog.techniques.values():
        file = f"techniques/{technique.id}.json"
        lever = LEVERS.get(technique.id)
        if lever is None:
            if technique.no_lever is None:
                yield CatalogError(file, "is missing: no lever has this id, so say why", "no_lever")
            continue
        if technique.no_lever is not None:
            yield CatalogError(file, "must be left out: there is a lever of this id", "no_lever")
        if technique.book_as != lever.book_as:
            yield CatalogError(file, f"is {technique.book_as}, but the lever books as {lever.book_as}", "book_as")
        if technique.memory_lever != lever.memory_lever:
            reason = f"is {technique.memory_lever}, but the lever's is {lever.memory_lever}"
            yield CatalogError(file, reason, "memory_lever")
    if catalog.techniques:
        for id_ in LEVERS:
            if id_ not in catalog.techniques:
                yield CatalogError(f"techniques/{id_}.json", "is missing: there is a lever of this id")


def main(arguments: list[str]) -> int:
    """Print every error; 0 when there is none."""
    folder = Path(arguments[0]) if arguments else None
    errors = lint_catalog(folder)
    for error in errors:
        sys.stdout.write(f"{error}\n")
    if errors:
        return 1
    catalog = load_catalog(folder)
    hardware, models, techniques = len(catalog.hardware), len(catalog.models), len(catalog.techniques)
    sys.stdout.write(f"{hardware} hardware profiles, {models} models and {techniques} techniques, all valid\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
