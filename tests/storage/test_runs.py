"""Runs: nothing is lost on the way through the database; lists filter, sort and page without repeating or hiding."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest
from sqlalchemy import event

from app.domain.run import Metric, ParsedRun
from app.storage import comparisons, runs, uploads, workloads
from app.storage.errors import Conflict, InvalidQuery, InvalidValue, NotFound
from app.storage.records import RunChanges, RunFilter
from app.storage.store import Storage
from tests.storage.stored import NOON, add_runs, parsed_run


def names(storage: Storage, **wanted: object) -> list[str]:
    with storage.read() as session:
        page = runs.list_runs(session=session, filters=RunFilter(**wanted), sort="name")  # type: ignore[arg-type]
    assert page.total == len(page.items)
    return [run.name for run in page.items]


def test_a_run_comes_back_as_it_was_parsed(storage: Storage) -> None:
    parsed = parsed_run("vllm 8 users")
    (added,) = add_runs(storage, parsed, hardware_id="nvidia-h100-sxm", hardware_is_guess=True, now=NOON)
    with storage.read() as session:
        stored = runs.get_run(session=session, run_id=added.id)
    assert stored == added
    assert stored.parsed == parsed
    assert stored.created_at == NOON
    assert stored.upload.file_name == "result.json"
    assert (stored.hardware_id, stored.hardware_is_guess, stored.model_id) == ("nvidia-h100-sxm", True, None)
    assert stored.headline == {"ttft_s.p99": 0.25, "output_tokens_per_s": 1234.5}


def test_the_least_a_run_can_have(storage: Storage) -> None:
    parsed = ParsedRun(name="bare", metrics=())
    (added,) = add_runs(storage, parsed)
    with storage.read() as session:
        assert runs.get_run(session=session, run_id=added.id).parsed == parsed


def test_a_name_given_by_a_person_replaces_the_files(storage: Storage) -> None:
    (added,) = add_runs(storage, parsed_run("from the file"), name="ours")
    assert added.name == added.parsed.name == "ours"


def test_an_unknown_run_is_not_found(storage: Storage) -> None:
    with storage.read() as session:
        with pytest.raises(NotFound) as caught:
            runs.get_run(session=session, run_id="nothing")
        with pytest.raises(NotFound):
            runs.get_summary(session=session, run_id="nothing")
    assert (caught.value.kind, caught.value.key) == ("run", "nothing")


def test_one_position_of_a_file_holds_one_run(storage: Storage) -> None:
    (added,) = add_runs(storage)
    with pytest.raises(Conflict), storage.write() as session:
        runs.add_run(session=session, upload_id=added.upload_id, position=0, parsed=parsed_run(), format="x")


def test_lists_never_read_the_large_part(storage: Storage) -> None:
    add_runs(storage)
    statements: list[str] = []
    event.listen(storage.engine, "before_cursor_execute", lambda *values: statements.append(values[2]))
    with storage.read() as session:
        runs.list_runs(session=session, filters=RunFilter(text="llama"))
        runs.run_facets(session=session)
    assert any("FROM runs" in statement for statement in statements)
    assert not any("run_details" in statement for statement in statements)


def test_filters(storage: Storage) -> None:
    add_runs(storage, parsed_run("a"), data=b"1", model_id="llama", hardware_id="h100", tags=("nightly", "é"), now=NOON)
    add_runs(storage, parsed_run("b"), data=b"2", model_id="qwen", hardware_id="h100", tags=("night",), is_example=True)
    add_runs(storage, parsed_run("c"), data=b"3", model_id="llama", hardware_id="b200", is_baseline=True)
    assert names(storage) == ["a", "b", "c"]
    assert names(storage, model="llama") == ["a", "c"]
    assert names(storage, model="llama", hardware="h100") == ["a"]
    assert names(storage, tag="night") == ["b"]
    assert names(storage, tag="é") == ["a"]
    assert names(storage, tag='"') == []
    assert names(storage, format="vllm-bench-serve") == ["a", "b", "c"]
    assert names(storage, format="ncu") == []
    assert names(storage, is_example=True) == ["b"]
    assert names(storage, is_baseline=True) == ["c"]
    assert names(storage, since=NOON + timedelta(microseconds=1)) == ["b", "c"]
    with storage.read() as session:
        facets = runs.run_facets(session=session)
        assert runs.count_runs(session=session) == 3
    assert facets.models == {"llama": 2, "qwen": 1}
    assert list(facets.hardware.items()) == [("h100", 2), ("b200", 1)]
    assert facets.tags == {"night": 1, "nightly": 1, "é": 1}
    assert facets.formats == {"vllm-bench-serve": 3}


def test_text_search_finds_beginnings_of_words_in_any_field(storage: Storage) -> None:
    add_runs(storage, parsed_run("Serving São Paulo"), data=b"1", tags=("nightly",))
    add_runs(storage, parsed_run("training", model_hint="Qwen3_30B", hardware_hint="MI300X", notes=None), data=b"2")
    assert names(storage, text="paul") == ["Serving São Paulo"]
    assert names(storage, text="aulo") == []
    assert names(storage, text="sao") == ["Serving São Paulo"]
    assert names(storage, text="Llama-3.1-8B H100") == ["Serving São Paulo"]
    assert names(storage, text="nightly warm") == ["Serving São Paulo"]
    assert names(storage, text="30b") == ["training"]
    assert names(storage, text="result") == ["Serving São Paulo", "training"]
    assert names(storage, text="paulo training") == []
    assert names(storage, text="  ") == ["Serving São Paulo", "training"]


@pytest.mark.parametrize(
    "typed",
    [
        'foo"',
        "H100 AND",
        "NOT",
        "(",
        "*",
        '"',
        "name:",
        "a NEAR b",
        "-",
        "^",
        "\0",
        "a\0b",
        "'; DROP TABLE runs; --",
        "%",
    ],
)
def test_what_people_type_is_never_an_operator(storage: Storage, typed: str) -> None:
    add_runs(storage)
    assert names(storage, text=typed) == []
    assert names(storage) == ["serving"]


def test_search_without_the_index_uses_like(storage: Storage) -> None:
    from sqlalchemy import text

    add_runs(storage, parsed_run("a 100% run"), data=b"1", tags=("nightly",))
    add_runs(storage, parsed_run("a_b"), data=b"2")
    with storage.write() as session:
        session.execute(text("DROP TABLE run_search"))
    assert names(storage, text="100% LLAMA night") == ["a 100% run"]
    assert names(storage, text="a_b") == ["a_b"]
    with storage.write() as session:
        (found,) = runs.list_runs(session=session, filters=RunFilter(text="a_b")).items
        runs.update_run(session=session, run_id=found.id, changes=RunChanges(name="renamed"))
        runs.delete_run(session=session, blobs=storage.blobs, run_id=found.id)


def test_search_follows_edits_and_deletion(storage: Storage) -> None:
    (added,) = add_runs(storage, parsed_run("before"))
    with storage.write() as session:
        runs.update_run(session=session, run_id=added.id, changes=RunChanges(name="after", tags=("fresh",)))
    assert names(storage, text="before") == []
    assert names(storage, text="after fresh") == ["after"]
    with storage.write() as session:
        runs.delete_run(session=session, blobs=storage.blobs, run_id=added.id)
    assert names(storage, text="after") == []


@pytest.mark.parametrize(
    "sort", ["name", "-name", "created_at", "-created_at", "ttft_s.p99", "-ttft_s.p99", "mfu", "-mfu"]
)
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_hold_every_run_once_in_order(storage: Storage, sort: str, limit: int) -> None:
    # Equal values, missing values and values that are not exact in decimal.
    mfu = [0.1, None, 1 / 3, 0.1, None, 0.30000000000000004, 0.3]
    for position, value in enumerate(mfu):
        metrics = (Metric("ttft_s", 0.5, "p99"), *((Metric("mfu", value),) if value is not None else ()))
        add_runs(
            storage,
            ParsedRun(name=f"run {position % 2}", metrics=metrics),
            data=b"%d" % position,
            now=NOON + timedelta(seconds=position % 3),
        )
    seen: list[str] = []
    order: list[object] = []
    with storage.read() as session:
        whole = [run.id for run in runs.list_runs(session=session, sort=sort).items]
        cursor = None
        while True:
            page = runs.list_runs(session=session, sort=sort, limit=limit, cursor=cursor)
            assert page.total == 7
            seen += [run.id for run in page.items]
            order += [run.headline.get("mfu") for run in page.items]
            cursor = page.next
            if cursor is None:
                break
    assert len(set(seen)) == 7
    assert seen == whole
    if sort == "mfu":
        assert order == [0.1, 0.1, 0.3, 0.30000000000000004, 1 / 3, None, None]
    if sort == "-mfu":
        assert order == [1 / 3, 0.30000000000000004, 0.3, 0.1, 0.1, None, None]


def test_a_new_run_neither_repeats_nor_hides_others_on_the_next_page(storage: Storage) -> None:
    for number in range(4):
        add_runs(storage, parsed_run(f"run {number}"), data=b"%d" % number, now=NOON + timedelta(seconds=number))
    with storage.read() as session:
        first = runs.list_runs(session=session, limit=2)
    add_runs(storage, parsed_run("newer"), data=b"new", now=NOON + timedelta(hours=1))
    with storage.read() as session:
        second = runs.list_runs(session=session, limit=2, cursor=first.next)
    assert [run.name for run in (*first.items, *second.items)] == ["run 3", "run 2", "run 1", "run 0"]


def test_a_metric_without_statistic_sorts_by_mean_or_median(storage: Storage) -> None:
    for number, (stat, value) in enumerate([("mean", 0.3), ("p50", 0.2), (None, 0.1), ("p99", 0.05)]):
        add_runs(storage, ParsedRun(str(stat), (Metric("ttft_s", value, stat),)), data=b"%d" % number)
    with storage.read() as session:
        found = [run.name for run in runs.list_runs(session=session, sort="ttft_s").items]
    assert found == ["None", "p50", "mean", "p99"]


@pytest.mark.parametrize("sort", ["id", "summary", "name; DROP TABLE runs", "--name", "", "ttft_s.p42"])
def test_unknown_sort_keys_are_refused(storage: Storage, sort: str) -> None:
    with storage.read() as session, pytest.raises(InvalidQuery) as caught:
        runs.list_runs(session=session, sort=sort)
    assert caught.value.field == "sort"


@pytest.mark.parametrize("limit", [0, -1, 201])
def test_limits_are_bounded(storage: Storage, limit: int) -> None:
    with storage.read() as session, pytest.raises(InvalidQuery, match="from 1 to 200"):
        runs.list_runs(session=session, limit=limit)


def _cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "é",
        "a" * 5000,
        _cursor("[]"),
        _cursor('["name","a"]'),
        _cursor('["-name","a",1]'),
        _cursor('["name",1.5,1]'),
        _cursor('["name",{"t":"2026-11-29T12:00:00+00:00"},1]'),
        _cursor('["name",{"t":"2026-11-29T12:00:00"},1]'),
        _cursor('["name",{"t":5},1]'),
        _cursor('["name",{},1]'),
        _cursor('["name",["a"],1]'),
        _cursor('["name","a",-1]'),
        _cursor('["name","a",1e99]'),
        _cursor('["name","a",99999999999999999999]'),
        _cursor("[" * 1500),
    ],
)
def test_a_cursor_from_elsewhere_is_refused(storage: Storage, cursor: str) -> None:
    add_runs(storage)
    with storage.read() as session, pytest.raises(InvalidQuery) as caught:
        runs.list_runs(session=session, sort="name", cursor=cursor)
    assert caught.value.field == "cursor"


def test_what_people_may_change(storage: Storage) -> None:
    (first,) = add_runs(storage, data=b"1", hardware_id="a", hardware_is_guess=True, tags=("x",))
    (second,) = add_runs(storage, data=b"2")
    with storage.write() as session:
        saved = workloads.add(session=session, name="chat", payload={"phase": "decode"})
        changed = runs.update_run(
            session=session,
            run_id=first.id,
            changes=RunChanges(
                name="new",
                hardware_id="b",
                hardware_is_guess=False,
                model_id="m",
                workload_id=saved.id,
                tags=(" y ", "x", "y", ""),
                baseline_run_id=second.id,
                is_baseline=True,
                workload_overrides={"batch": 4},
                notes="checked",
            ),
        )
    with storage.read() as session:
        stored = runs.get_run(session=session, run_id=first.id)
        assert runs.get_run(session=session, run_id=second.id) == second
    assert stored == changed
    assert (stored.name, stored.hardware_id, stored.hardware_is_guess, stored.model_id) == ("new", "b", False, "m")
    assert (stored.tags, stored.baseline_run_id, stored.is_baseline) == (("y", "x"), second.id, True)
    assert (stored.workload_id, stored.workload_overrides, stored.parsed.notes) == (saved.id, {"batch": 4}, "checked")
    assert stored.parsed.metrics == first.parsed.metrics
    with storage.write() as session:
        unlinked = runs.update_run(session=session, run_id=first.id, changes=RunChanges(hardware_id=None))
    assert (unlinked.hardware_id, unlinked.model_id, unlinked.name) == (None, "m", "new")


def test_links_must_lead_somewhere(storage: Storage) -> None:
    (added,) = add_runs(storage)
    for changes, error in (
        (RunChanges(workload_id="nothing"), NotFound),
        (RunChanges(baseline_run_id="nothing"), NotFound),
        (RunChanges(baseline_run_id=added.id), InvalidValue),
    ):
        with pytest.raises(error), storage.write() as session:
            runs.update_run(session=session, run_id=added.id, changes=changes)


def test_deleting_what_a_run_links_to_unlinks_it(storage: Storage) -> None:
    (baseline,) = add_runs(storage, data=b"1")
    with storage.write() as session:
        saved = workloads.add(session=session, name="chat", payload={})
    (run,) = add_runs(storage, data=b"2", workload_id=saved.id, baseline_run_id=baseline.id)
    with storage.write() as session:
        workloads.delete(session=session, entry_id=saved.id)
        runs.delete_run(session=session, blobs=storage.blobs, run_id=baseline.id)
    with storage.read() as session:
        left = runs.get_run(session=session, run_id=run.id)
    assert (left.workload_id, left.baseline_run_id) == (None, None)


def test_the_upload_goes_with_its_last_run(storage: Storage) -> None:
    first, second = add_runs(storage, parsed_run("a"), parsed_run("b"), data=b"two runs")
    digest = first.upload.sha256
    with storage.write() as session:
        runs.delete_run(session=session, blobs=storage.blobs, run_id=first.id)
    assert storage.blobs.exists(digest)
    with storage.read() as session:
        assert [run.id for run in runs.runs_of_upload(session=session, upload_id=first.upload_id)] == [second.id]
    with storage.write() as session:
        runs.delete_run(session=session, blobs=storage.blobs, run_id=second.id)
        # Not before the commit: an undone deletion must find its file.
        assert storage.blobs.exists(digest)
    assert not storage.blobs.exists(digest)
    with storage.read() as session, pytest.raises(NotFound):
        uploads.get(session=session, upload_id=first.upload_id)
    with storage.write() as session, pytest.raises(NotFound):
        runs.delete_run(session=session, blobs=storage.blobs, run_id=second.id)


def test_an_undone_deletion_keeps_the_file(storage: Storage) -> None:
    (added,) = add_runs(storage)

    def delete_halfway() -> None:
        with storage.write() as session:
            runs.delete_run(session=session, blobs=storage.blobs, run_id=added.id)
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        delete_halfway()
    assert storage.blobs.exists(added.upload.sha256)
    with storage.read() as session:
        assert runs.get_run(session=session, run_id=added.id) == added


def test_deleting_a_run_leaves_comparisons_as_they_were(storage: Storage) -> None:
    (added,) = add_runs(storage)
    with storage.write() as session:
        frozen = comparisons.add(
            session=session,
            title="t",
            snapshot={"items": [{"run": added.id, "ttft_s": 0.25}]},
            item_count=1,
            app_version="0.1.0",
        )
        runs.delete_run(session=session, blobs=storage.blobs, run_id=added.id)
    with storage.read() as session:
        assert comparisons.get(session=session, comparison_id=frozen.id) == frozen


def test_all_runs_one_after_the_other(storage: Storage) -> None:
    add_runs(storage, parsed_run("a"), parsed_run("b"), data=b"1")
    add_runs(storage, parsed_run("c"), data=b"2")
    with storage.read() as session:
        assert [run.name for run in runs.iterate_runs(session=session)] == ["a", "b", "c"]
