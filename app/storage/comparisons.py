"""Frozen comparisons: added and deleted, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import String, func
from sqlalchemy import select as sql_select
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from app.storage.errors import InvalidValue, NotFound, translated
from app.storage.paging import rows_of_page
from app.storage.records import ComparisonSummary, Page, StoredComparison, new_id, utc_now
from app.storage.tables import ComparisonRow

SORT_KEYS: tuple[str, ...] = ("created_at", "title")


def add(
    *,
    session: Session,
    title: str,
    snapshot: Mapping[str, Any],
    item_count: int,
    app_version: str,
    notes: str = "",
    baseline: int = 0,
    now: datetime | None = None,
) -> StoredComparison:
    """Freeze a comparison. `snapshot` must hold everything that a reader sees; `baseline` is an item's index."""
    if not 0 <= baseline < item_count:
        raise InvalidValue(f"baseline {baseline} is not one of the {item_count} items")
    row = ComparisonRow(
        id=new_id(),
        title=title,
        notes=notes,
        baseline=baseline,
        item_count=item_count,
        app_version=app_version,
        snapshot=dict(snapshot),
        created_at=now or utc_now(),
    )
    with translated():
        session.add(row)
        session.flush()
    return to_record(row)


def get(*, session: Session, comparison_id: str) -> StoredComparison:
    """The comparison, or NotFound."""
    return to_record(_row(session, comparison_id))


def list_comparisons(
    *, session: Session, text: str | None = None, sort: str = "-created_at", limit: int = 50, cursor: str | None = None
) -> Page[ComparisonSummary]:
    """One page of comparisons whose title or notes hold `text`. Snapshots are not read. Raises InvalidQuery."""
    query = sql_select(ComparisonRow).options(defer(ComparisonRow.snapshot))  # type: ignore[arg-type]
    if text and text.strip():
        # autoescape: a typed % or _ is that sign and nothing else.
        query = query.where(
            col(ComparisonRow.title).icontains(text.strip(), autoescape=True)
            | col(ComparisonRow.notes).icontains(text.strip(), autoescape=True)
        )
    sorts: dict[str, Any] = {
        "created_at": col(ComparisonRow.created_at),
        "title": func.lower(col(ComparisonRow.title), type_=String),
    }
    rows, following, total = rows_of_page(
        session, query, sorts=sorts, tie_breaker=col(ComparisonRow.seq), sort=sort, limit=limit, cursor=cursor
    )
    return Page(tuple(ComparisonSummary(**_summary_fields(row[0])) for row in rows), following, total)


def iterate_comparisons(*, session: Session) -> Iterator[StoredComparison]:
    """Every comparison, oldest first, one in memory at a time."""
    for comparison_id in session.exec(select(ComparisonRow.id).order_by(col(ComparisonRow.seq))).all():
        yield get(session=session, comparison_id=comparison_id)
        session.expunge_all()


def delete(*, session: Session, comparison_id: str) -> None:
    """Delete a comparison and every link to it. Raises NotFound."""
    row = _row(session, comparison_id)
    with translated():
        session.delete(row)
        session.flush()


def _row(session: Session, comparison_id: str) -> ComparisonRow:
    row = session.exec(select(ComparisonRow).where(ComparisonRow.id == comparison_id)).first()
    if row is None:
        raise NotFound("comparison", comparison_id)
    return row


def to_record(row: ComparisonRow) -> StoredComparison:
    return StoredComparison(**_summary_fields(row), snapshot=row.snapshot)


def _summary_fields(row: ComparisonRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "title": row.title,
        "notes": row.notes,
        "baseline": row.baseline,
        "item_count": row.item_count,
        "app_version": row.app_version,
        "created_at": row.created_at,
    }
