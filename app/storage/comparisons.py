"""Frozen comparisons: added and deleted, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import defer
from sqlmodel import Session

from app.storage import frozen
from app.storage.errors import InvalidValue, translated
from app.storage.records import ComparisonSummary, Page, StoredComparison, new_id, utc_now, values_of
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
    return to_record(frozen.row_of(session, ComparisonRow, "comparison", comparison_id))


def list_comparisons(
    *, session: Session, text: str | None = None, sort: str = "-created_at", limit: int = 50, cursor: str | None = None
) -> Page[ComparisonSummary]:
    """One page of comparisons whose title or notes hold `text`. Snapshots are not read. Raises InvalidQuery."""
    query = select(ComparisonRow).options(defer(ComparisonRow.snapshot))  # type: ignore[arg-type]
    query = frozen.holding(query, text, (ComparisonRow.title, ComparisonRow.notes))
    return frozen.page_of(session, ComparisonRow, query, _summary, sort=sort, limit=limit, cursor=cursor)


def iterate_comparisons(*, session: Session) -> Iterator[StoredComparison]:
    """Every comparison, oldest first, one in memory at a time."""
    yield from frozen.each(session, ComparisonRow, to_record)


def delete(*, session: Session, comparison_id: str) -> None:
    """Delete a comparison and every link to it. Raises NotFound."""
    frozen.remove(session, frozen.row_of(session, ComparisonRow, "comparison", comparison_id))


def to_record(row: ComparisonRow) -> StoredComparison:
    return StoredComparison(**values_of(row, ComparisonSummary), snapshot=row.snapshot)


def _summary(row: ComparisonRow) -> ComparisonSummary:
    return ComparisonSummary(**values_of(row, ComparisonSummary))
