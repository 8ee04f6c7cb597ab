"""What lists have in common: orders that an address can hold, names in the order people expect, linked runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from app.services.context import Context
from app.storage import runs as stored_runs
from app.storage.errors import InvalidQuery
from app.storage.records import Page, RunFilter, RunSummary

Line = TypeVar("Line")


def ordered(
    lines: Sequence[Line],
    sort: str,
    keys: Mapping[str, Callable[[Line], float | str | None]],
    *,
    usual: Callable[[Line], tuple[bool | str, ...]],
) -> list[Line]:
    """Lines in the order that `sort` asks for (`usual` without one); what a line does not state goes last either way.

    Raises InvalidQuery for a key that is not in `keys`.
    """
    if not sort:
        return sorted(lines, key=usual)
    name = sort.removeprefix("-")
    key = keys.get(name)
    if key is None:
        raise InvalidQuery("sort", f"unknown key {name[:40]!r}: use one of {', '.join(keys)}, with - for the other way")
    stated = [line for line in lines if key(line) is not None]
    absent = [line for line in lines if key(line) is None]
    return sorted(stated, key=lambda line: _comparable(key(line)), reverse=sort.startswith("-")) + absent


def _comparable(value: float | str | None) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (value or 0.0, "")


def linked_runs(ctx: Context, filters: RunFilter, *, limit: int) -> Page[RunSummary]:
    """The latest runs that match, and how many there are."""
    with ctx.storage.read() as session:
        return stored_runs.list_runs(session=session, filters=filters, limit=limit)


Order: TypeAlias = Literal["", "ascending", "descending"]


def order_of(sort: str, key: str) -> Order:
    """How a list is sorted by a column, as `aria-sort` says it."""
    if sort.removeprefix("-") != key or not sort:
        return ""
    return "descending" if sort.startswith("-") else "ascending"


def next_sort(sort: str, key: str, *, numeric: bool) -> str:
    """The order that a click on a column's heading asks for: largest first for numbers, then the other way."""
    now = order_of(sort, key)
    first = f"-{key}" if numeric else key
    if not now:
        return first
    return key if now == "descending" else f"-{key}"


def natural(name: str) -> str:
    """A key that sorts names as people count: H20 before H100."""
    return re.sub(r"\d+", lambda digits: f"{int(digits[0][:18]):018d}", name.casefold())
