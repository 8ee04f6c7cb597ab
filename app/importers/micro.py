"""The importers of micro-benchmarks and collectives, more specific formats first."""

from __future__ import annotations

from app.importers.base import Importer

MICRO: tuple[Importer, ...] = ()
