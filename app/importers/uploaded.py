"""The way in for a file on disk: an archive or a single file, whatever it holds."""

from __future__ import annotations

from pathlib import Path

from app.importers.archive import is_zip, parse_zip
from app.importers.base import ParsedUpload
from app.importers.reading import DEFAULT_LIMITS, Limits, Progress
from app.importers.registry import NO_TABLES, Tables, parse_upload


def read_upload(
    path: Path,
    filename: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    tables: Tables = NO_TABLES,
) -> ParsedUpload:
    """Read a file into runs. For content that it cannot use it raises UnreadableUpload, and nothing else."""
    read = parse_zip if is_zip(path) else parse_upload
    return read(path, filename, limits, progress, tables)
