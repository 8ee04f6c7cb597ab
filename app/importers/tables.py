"""CSV tables of micro-benchmarks: rows as mappings with their line numbers, whatever separates the cells."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from app.importers.logs import log_lines
from app.importers.reading import Content

_SEPARATORS = ",;\t"


def header_of(line: str) -> tuple[list[str], str]:
    """The names of a header line and what separates them."""
    separator = max(_SEPARATORS, key=line.count)
    return cells_of(line, separator), separator


def cells_of(line: str, separator: str) -> list[str]:
    """Cells of one line; none where it is no CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def csv_rows(content: Content, names: Sequence[str], separator: str) -> Iterator[tuple[int, list[str] | None]]:
    """Cells of each line below the header; None for a line that has not as many cells. Blank lines are skipped."""
    seen = False
    for number, line in log_lines(content):
        if not line.strip():
            continue
        cells = cells_of(line, separator)
        if not seen:
            seen = cells == list(names)
            continue
        if cells == list(names):  # files put one behind another repeat the header
            continue
        yield number, cells if len(cells) == len(names) else None
