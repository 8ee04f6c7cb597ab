"""Frozen comparisons, and links that open them until they are closed."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from sqlalchemy import event, text

from app.storage import comparisons, shares
from app.storage.errors import InvalidQuery, InvalidValue, NotFound
from app.storage.records import StoredComparison
from app.storage.store import Storage
from tests.storage.stored import NOON

SNAPSHOT = {"items": [{"label": "before", "ttft_s": 0.3}, {"label": "after", "ttft_s": 0.1}]}


def add(storage: Storage, title: str = "Before and after", **changes: object) -> StoredComparison:
    values: dict[str, object] = {"snapshot": SNAPSHOT, "item_count": 2, "app_version": "0.1.0", "now": NOON}
    with storage.write() as session:
        return comparisons.add(session=session, title=title, **{**values, **changes})  # type: ignore[arg-type]


def test_a_comparison_comes_back_as_it_was_frozen(storage: Storage) -> None:
    added = add(storage, notes="why", baseline=1)
    with storage.read() as session:
        stored = comparisons.get(session=session, comparison_id=added.id)
    assert stored == added
    assert (stored.snapshot, stored.notes, stored.baseline, stored.created_at) == (SNAPSHOT, "why", 1, NOON)


def test_nothing_in_the_room_changes_a_comparison() -> None:
    assert not [name for name in dir(comparisons) if "update" in name or "edit" in name]


@pytest.mark.parametrize("baseline", [-1, 2])
def test_the_baseline_is_one_of_the_items(storage: Storage, baseline: int) -> None:
    with pytest.raises(InvalidValue, match="baseline"):
        add(storage, baseline=baseline)


def test_lists_search_titles_and_notes_and_do_not_read_snapshots(storage: Storage) -> None:
    add(storage, "alpha 50%")
    add(storage, "Beta", notes="about ALPHA", now=NOON + timedelta(seconds=1))
    add(storage, "gamma", now=NOON + timedelta(seconds=2))
    statements: list[str] = []
    event.listen(storage.engine, "before_cursor_execute", lambda *values: statements.append(values[2]))
    with storage.read() as session:
        page = comparisons.list_comparisons(session=session)
        assert [found.title for found in page.items] == ["gamma", "Beta", "alpha 50%"]
        by_title = comparisons.list_comparisons(session=session, sort="title", limit=2)
        assert [found.title for found in by_title.items] == ["alpha 50%", "Beta"]
        rest = comparisons.list_comparisons(session=session, sort="title", limit=2, cursor=by_title.next)
        assert ([found.title for found in rest.items], rest.next, rest.total) == (["gamma"], None, 3)
        assert [c.title for c in comparisons.list_comparisons(session=session, text="alpha").items] == [
            "Beta",
            "alpha 50%",
        ]
        assert comparisons.list_comparisons(session=session, text="0%").total == 1
        assert comparisons.list_comparisons(session=session, text="_").total == 0
        with pytest.raises(InvalidQuery):
            comparisons.list_comparisons(session=session, sort="snapshot")
    assert not [statement for statement in statements if "snapshot" in statement]


def test_a_link_opens_the_comparison(storage: Storage) -> None:
    added = add(storage)
    with storage.write() as session:
        token, share = shares.create(session=session, comparison_id=added.id, now=NOON)
    # 16 random bytes in URL-safe base64, as many as a random UUID has and more.
    assert len(token) == 22
    with storage.read() as session:
        assert shares.open_share(session=session, token=token, now=NOON + timedelta(days=9999)) == (added, share)


def test_the_database_alone_opens_nothing(storage: Storage) -> None:
    added = add(storage)
    with storage.write() as session:
        token, _ = shares.create(session=session, comparison_id=added.id)
    with storage.read() as session:
        row = session.execute(text("SELECT * FROM shares")).one()
    assert token not in map(str, row)
    assert hashlib.sha256(token.encode()).hexdigest() == row.token_sha256
    with storage.read() as session, pytest.raises(NotFound):
        shares.open_share(session=session, token=row.token_sha256)


def test_unknown_revoked_and_expired_links_look_the_same(storage: Storage) -> None:
    added = add(storage)
    with storage.write() as session:
        revoked, _ = shares.create(session=session, comparison_id=added.id, now=NOON)
        expired, share = shares.create(session=session, comparison_id=added.id, expires_in=timedelta(hours=1), now=NOON)
    assert share.expires_at == NOON + timedelta(hours=1)
    with storage.write() as session:
        shares.open_share(session=session, token=revoked, now=NOON)
        shares.open_share(session=session, token=expired, now=NOON + timedelta(minutes=59))
        assert shares.revoke(session=session, token=revoked, now=NOON).revoked_at == NOON
    messages = set()
    for token in (revoked, expired, "unknown", "", "a" * 100_000, "é", "\ud800"):
        for call in (shares.open_share, shares.revoke):
            with storage.write() as session, pytest.raises(NotFound) as caught:
                call(session=session, token=token, now=NOON + timedelta(hours=1))
            messages.add(str(caught.value))
    assert messages == {"no such share"}


def test_links_are_listed_and_closed_by_their_record(storage: Storage) -> None:
    added = add(storage)
    with storage.write() as session:
        token, first = shares.create(session=session, comparison_id=added.id, now=NOON)
        _, second = shares.create(session=session, comparison_id=added.id, now=NOON + timedelta(seconds=1))
        closed = shares.revoke_by_id(session=session, share_id=first.id, now=NOON + timedelta(seconds=2))
        again = shares.revoke_by_id(session=session, share_id=first.id, now=NOON + timedelta(seconds=3))
    assert closed == again
    with storage.read() as session:
        assert shares.list_shares(session=session, comparison_id=added.id) == (second, closed)
        with pytest.raises(NotFound):
            shares.open_share(session=session, token=token)
        with pytest.raises(NotFound):
            shares.revoke_by_id(session=session, share_id="nothing")


@pytest.mark.parametrize("expires_in", [timedelta(0), timedelta(seconds=-1), timedelta(days=999_999_999)])
def test_a_link_expires_in_a_future_that_the_calendar_has(storage: Storage, expires_in: timedelta) -> None:
    added = add(storage)
    with pytest.raises(InvalidValue), storage.write() as session:
        shares.create(session=session, comparison_id=added.id, expires_in=expires_in)


def test_only_what_exists_is_shared(storage: Storage) -> None:
    with pytest.raises(NotFound), storage.write() as session:
        shares.create(session=session, comparison_id="nothing")


def test_links_go_with_their_comparison(storage: Storage) -> None:
    added = add(storage)
    with storage.write() as session:
        token, _ = shares.create(session=session, comparison_id=added.id)
        comparisons.delete(session=session, comparison_id=added.id)
    with storage.write() as session:
        assert session.execute(text("SELECT count(*) FROM shares")).scalar() == 0
        for call in (comparisons.get, comparisons.delete):
            with pytest.raises(NotFound):
                call(session=session, comparison_id=added.id)
        with pytest.raises(NotFound):
            shares.open_share(session=session, token=token)
