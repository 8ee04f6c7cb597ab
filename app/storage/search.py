"""Text search over runs behind one function, so that another database can bring its own index."""

from __future__ import annotations

import re

from sqlalchemy import (
    ColumnElement,
    Integer,
    String,
    and_,
    cast,
    column,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    table,
    text,
)
from sqlmodel import Session, col

from app.storage.tables import RunRow

_INDEX = table("run_search", column("rowid", Integer))
_SCHEMA = table("sqlite_master", column("name", String))

MAX_WORDS = 16
"""Words of a search that count; more only cost time."""


def index_run(session: Session, row: RunRow, *, file_name: str, notes: str | None) -> None:
    """Enter a run into the index anew. The row must have been flushed."""
    if not _has_index(session):
        return
    unindex_run(session, row)
    labels = [row.format, row.hardware_id, row.hardware_hint, row.model_id, row.model_hint, file_name, *row.tags]
    session.execute(
        text("INSERT INTO run_search (rowid, name, labels, notes) VALUES (:seq, :name, :labels, :notes)"),
        {"seq": row.seq, "name": row.name, "labels": " ".join(filter(None, labels)), "notes": notes or ""},
    )


def unindex_run(session: Session, row: RunRow) -> None:
    """Take a run out of the index."""
    if _has_index(session):
        session.execute(text("DELETE FROM run_search WHERE rowid = :seq"), {"seq": row.seq})


def run_matches(session: Session, wanted: str) -> ColumnElement[bool]:
    """The condition that a run holds every word of `wanted`, each as the beginning of a word.

    A text without any letter or digit matches nothing.
    """
    words = [word for word in wanted.replace("\0", " ").split() if re.search(r"\w", word)][:MAX_WORDS]
    if not words:
        return false()
    if _has_index(session):
        # Quoted, nothing that a person types is an operator; the star after the quotes makes it a prefix.
        query = " ".join('"{}"*'.format(word.replace('"', '""')) for word in words)
        matching = select(_INDEX.c.rowid).where(literal_column("run_search").op("MATCH")(query))
        return col(RunRow.seq).in_(matching)
    return and_(*(_holds(word) for word in words))


def _holds(word: str) -> ColumnElement[bool]:
    pattern = "%" + re.sub(r"([\\%_])", r"\\\1", word.lower()) + "%"
    columns = (
        col(RunRow.name),
        col(RunRow.format),
        col(RunRow.hardware_id),
        col(RunRow.hardware_hint),
        col(RunRow.model_id),
        col(RunRow.model_hint),
        cast(col(RunRow.tags), String),
    )
    return or_(*(func.lower(column).like(pattern, escape="\\") for column in columns))


def _has_index(session: Session) -> bool:
    """Whether the database has the text index: SQLite built with FTS5 does, others search with LIKE."""
    if session.get_bind().dialect.name != "sqlite":
        return False
    return bool(session.execute(select(exists().where(_SCHEMA.c.name == "run_search"))).scalar())
