"""Checks the whole catalogue: `python -m app.catalog.check [folder]`, and `bytebound catalog-lint`."""

from __future__ import annotations

import sys
from pathlib import Path

from app.catalog.hardware_codec import hardware_figures
from app.catalog.loader import CatalogError, catalog_errors, load_catalog
from app.domain.errors import UnsupportedArchitecture
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


def main(arguments: list[str]) -> int:
    """Print every error; 0 when there is none."""
    folder = Path(arguments[0]) if arguments else None
    errors = lint_catalog(folder)
    for error in errors:
        sys.stdout.write(f"{error}\n")
    if errors:
        return 1
    catalog = load_catalog(folder)
    sys.stdout.write(f"{len(catalog.hardware)} hardware profiles and {len(catalog.models)} models, all valid\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
