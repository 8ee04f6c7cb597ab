"""CSV tables: rows as cells with their line numbers, whatever separates the cells, and a last row that is not whole.

A quoted cell may hold line breaks. The last line of a file that was cut often ends in the midst of a number, which
would read as a smaller one: where the other cells tell, that cell is emptied, so that its value is missing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence

from app.importers.reading import Content

_SEPARATORS = ",;\t"

_MOST_LINES, _MOST_CHARACTERS = 40, 20_000
"""Of one row whose quoted cells hold line breaks; a quotation mark that is never closed costs no more than that."""


def header_of(line: str) -> tuple[list[str], str]:
    """The names of a header line and what separates them."""
    separator = max(_SEPARATORS, key=line.count)
    return cells_of(line, separator), separator


def cells_of(line: str, separator: str) -> list[str]:
    """Cells of one row, which may have line breaks in quotes; none where it is no CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader(line.splitlines(keepends=True), delimiter=separator), [])]
    except csv.Error:
        return []


def numbered_rows(lines: Sequence[str], separator: str, start: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Cells of every row from index `start` on, blank ones too, with the number (from 1) of the line it begins on.

    Lines are joined while a quoted cell is open. A quotation mark that is not closed within a few lines is text, and
    its line is a row by itself.
    """
    place = start
    while place < len(lines):
        count = _lines_of_row(lines, place, separator) if '"' in lines[place] else 1
        yield place + 1, cells_of("\n".join(lines[place : place + count]), separator)
        place += count


def _lines_of_row(lines: Sequence[str], place: int, separator: str) -> int:
    row = lines[place]
    for count in range(1, _MOST_LINES + 1):
        if not _is_open(row, separator):
            return count
        if place + count >= len(lines) or len(row) > _MOST_CHARACTERS:
            break
        row += "\n" + lines[place + count]
    return 1


def _is_open(row: str, separator: str) -> bool:
    """Whether the row ends inside a quoted cell."""
    try:
        next(csv.reader(row.splitlines(keepends=True), delimiter=separator, strict=True), None)
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False


def csv_rows(content: Content, names: Sequence[str], separator: str) -> Iterator[tuple[int, list[str] | None]]:
    """Cells of each row below the header; None for a row that has not as many cells. Blank lines are skipped."""
    seen = False
    for number, cells in numbered_rows(whole_lines(content, separator), separator):
        if not any(cells):
            continue
        if not seen:
            seen = cells == list(names)
            continue
        if cells == list(names):  # files put one behind another repeat the header
            continue
        yield number, cells if len(cells) == len(names) else None


# --- a last line that breaks off -----------------------------------------------------------------------------------

_COMPARED = 64
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:[,.' ]\d{3})+(?:[.,]\d*)?|\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d*)?", re.ASCII)
_UNFINISHED = re.compile(r"(?:[eE][-+]?\d?|[.,])$")
_LONG = 4
"""Decimals from which on a number is written as far as it goes: one that has fewer than every other was cut."""


def whole_lines(content: Content, separator: str) -> list[str]:
    """The lines of the content, of which the last one ends without a number that was cut.

    Where the file has no line end and its last row fewer cells than the one above, that row is left out
    (`content.cut_line`). Where its last number has fewer decimals than those beside it, or no end of its quotes, that
    cell is emptied (`content.cut_cell`); where nothing tells, `content.open_line` has the row's number.
    """
    content.cut_line = content.cut_cell = content.open_line = None
    lines = content.lines
    if not lines or not lines[-1].strip():
        return lines
    last = lines[-1]
    cells = cells_of(last, separator)
    above = next((cells_of(line, separator) for line in reversed(lines[-_COMPARED - 1 : -1]) if line.strip()), [])
    if 1 < len(cells) < len(above):
        content.cut_line = len(lines)
        return lines[:-1]
    open_quote = '"' in last and _is_open(last, separator)
    if len(cells) < 2 or not _NUMBER.fullmatch(cells[-1]):
        return lines
    earlier = [cells_of(line, separator) for line in lines[-_COMPARED - 1 : -1]]
    if last.rstrip().endswith('"') and not open_quote:
        return lines
    if open_quote or _is_cut(cells, earlier, separator):
        content.cut_cell = len(lines)
        begin = last.rfind('"') if open_quote else last.rfind(separator) + 1
        return [*lines[:-1], last[:begin]]
    content.open_line = len(lines)
    return lines


def _is_cut(cells: Sequence[str], earlier: Sequence[Sequence[str]], separator: str) -> bool:
    """Whether the last of the cells lacks what the numbers above it have, or (of the first row) those beside it."""
    own = cells[-1]
    if _UNFINISHED.search(own):
        return True
    numbers = [[cell for cell in row if _NUMBER.fullmatch(cell)] for row in earlier]
    comma = separator != "," and any(re.fullmatch(r"-?\d+,\d+", cell) for row in (*numbers, cells) for cell in row)
    above = [row[-1] for row in earlier if len(row) == len(cells) and _NUMBER.fullmatch(row[-1])]
    beside = [cell for cell in (*(c for row in numbers for c in row), *cells[:-1]) if _NUMBER.fullmatch(cell)]
    others = above or (beside if len(beside) > 2 else [])
    decimals = {_decimals(cell, "," if comma else ".") for cell in others}
    least = min(decimals, default=0)
    return _decimals(own, "," if comma else ".") < least and (len(decimals) == 1 or least >= _LONG)


def _decimals(number: str, mark: str) -> int:
    whole = re.split("[eE]", number)[0]
    return len(whole) - whole.rfind(mark) - 1 if mark in whole else 0
