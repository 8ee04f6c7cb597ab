"""What storage does alike with every kind of frozen thing, whose rows are added and deleted, and never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from sqlalchemy import Select, String, func
from sqlmodel import Session, col, select

from app.storage.errors import NotFound, translated
from app.storage.paging import rows_of_page
from app.storage.records import Page
from app.storage.tables import ComparisonRow, DiagnosisRow

Row = TypeVar("Row", ComparisonRow, DiagnosisRow)
Record = TypeVar("Record")


def row_of(session: Session, table: type[Row], what: str, id_: str) -> Row:
    """The row. Raises NotFound of a `what`."""
    row = session.exec(select(table).where(col(table.id) == id_)).first()
    if row is None:
        raise NotFound(what, id_)
    return row


def page_of(
    session: Session,
    table: type[Row],
    query: Select[Any],
    record: Callable[[Row], Record],
    *,
    sort: str,
    limit: int,
    cursor: str | None,
) -> Page[Record]:
    """One page of the rows of `query`, by `created_at` or `title`. Raises InvalidQuery."""
    sorts: dict[str, Any] = {
        "created_at": col(table.created_at),
        "title": func.lower(col(table.title), type_=String),
    }
    rows, following, total = rows_of_page(
        session, query, sorts=sorts, tie_breaker=col(table.seq), sort=sort, limit=limit, cursor=cursor
    )
    return Page(tuple(record(row[0]) for row in rows), following, total)


def holding(query: Select[Any], text: str | None, columns: Sequence[str]) -> Select[Any]:
    """The rows of which one of `columns` holds `text`; all of them for an empty one."""
    wanted = (text or "").strip()
    if not wanted:
        return query
    # autoescape: a typed % or _ is that sign and nothing else.
    return query.where(reduce(or_, (col(column).icontains(wanted, autoescape=True) for column in columns)))


def each(session: Session, table: type[Row], record: Callable[[Row], Record]) -> Iterator[Record]:
    """Every one, oldest first, one in memory at a time."""
    for seq in session.exec(select(table.seq).order_by(col(table.seq))).all():
        yield record(session.exec(select(table).where(col(table.seq) == seq)).one())
        session.expunge_all()


def remove(session: Session, row: ComparisonRow | DiagnosisRow) -> None:
    """Delete a row and, through the database, every link to it."""
    with translated():
        session.delete(row)
        session.flush()
