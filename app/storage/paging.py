"""Lists by key: a page begins after the last row of the one before, so new rows neither repeat nor hide others."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlmodel import Session

from app.storage.errors import InvalidQuery
from app.storage.records import MAX_PAGE


def rows_of_page(
    session: Session,
    query: Select[Any],
    *,
    sorts: Mapping[str, Any],
    tie_breaker: Any,
    sort: str,
    limit: int,
    cursor: str | None,
) -> tuple[list[Any], str | None, int]:
    """Rows of one page, the next page's cursor, and the number of rows on all pages.

    `sort` is a key of `sorts`, with `-` before it for descending; rows without a value come last either way. Each row
    has the columns of `query`, then two that the page needs. Raises InvalidQuery.
    """
    descending = sort.startswith("-")
    key = sort.removeprefix("-")
    if key not in sorts:
        plain = ", ".join(name for name in sorts if "." not in name)
        more = next((f" (or a statistic of one, such as {name})" for name in reversed(list(sorts)) if "." in name), "")
        raise InvalidQuery("sort", f"unknown key {key!r}: use one of {plain}{more}, with - before it to reverse")
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidQuery("limit", f"must be from 1 to {MAX_PAGE}, not {limit}")
    value = sorts[key]
    keys = query.with_only_columns(tie_breaker).order_by(None).subquery()
    total = session.execute(select(func.count()).select_from(keys)).scalar_one()
    if cursor:
        query = query.where(_after(value, tie_breaker, descending, *_decode(cursor, sort)))
    query = query.add_columns(value.label("page_value"), tie_breaker.label("page_seq")).order_by(
        value.is_(None),
        value.desc() if descending else value.asc(),
        tie_breaker.desc() if descending else tie_breaker.asc(),
    )
    rows = list(session.execute(query.limit(limit + 1)))
    following = None
    if len(rows) > limit:
        rows = rows[:limit]
        following = _encode(sort, rows[-1].page_value, rows[-1].page_seq)
    return rows, following, total


def _after(value: Any, seq: Any, descending: bool, last_value: Any, last_seq: int) -> ColumnElement[bool]:
    beyond = seq < last_seq if descending else seq > last_seq
    if last_value is None:
        return and_(value.is_(None), beyond)
    further = value < last_value if descending else value > last_value
    return or_(further, and_(value == last_value, beyond), value.is_(None))


def _encode(sort: str, value: Any, seq: int) -> str:
    written = {"t": value.isoformat()} if isinstance(value, datetime) else value
    text = json.dumps([sort, written, seq], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str, sort: str) -> tuple[Any, int]:
    refusal = InvalidQuery("cursor", "not a cursor of this list with this sort order: start again without one")
    if len(cursor) > 4000:
        raise refusal
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        written_sort, value, seq = json.loads(text)
        if isinstance(value, dict):
            value = datetime.fromisoformat(value["t"])
            if value.utcoffset() is None:
                raise refusal
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError):
        raise refusal from None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308
    if written_sort != sort or not isinstance(seq, int) or not 0 <= seq < 2**63:
        raise refusal
    if not (value is None or is_number or isinstance(value, (str, datetime))):
        raise refusal
    # A key's values are all times, all text or all numbers; another kind compares without error, but to nonsense.
    wanted = {"created_at": datetime, "name": str, "title": str}.get(sort.removeprefix("-"), (int, float))
    if value is not None and not isinstance(value, wanted):
        raise refusal
    return value, seq
