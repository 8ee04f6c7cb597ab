"""Kernels of stored runs: rows, families, pages, parts of a timeline, and two runs held side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.services import kernels
from app.services.context import Context
from app.services.kernels import KernelQuery
from app.services.upload_run import upload_file
from app.storage import runs
from app.storage.errors import InvalidQuery
from app.storage.records import StoredRun

UPLOADS = Path(__file__).parents[1] / "fixtures/uploads"


def uploaded(context: Context, file: str) -> StoredRun:
    path = UPLOADS / file
    return upload_file(context, path.read_bytes(), path.name).runs[0]


def native(context: Context, name: str, *rows: dict[str, object]) -> StoredRun:
    document = {"bytebound": 1, "runs": [{"name": name, "metrics": {"latency_s": 1.0}, "kernels": list(rows)}]}
    return upload_file(context, json.dumps(document).encode(), f"{name}.json").runs[0]


def test_rows_families_and_pages(context: Context) -> None:
    run = uploaded(context, "torch-profiler-trace/own-ddp2-rank0.json.gz")
    rows = kernels.rows_of(run)
    families = kernels.families_of(rows)
    assert families[0].family == "collective"
    assert families[0].time_s == pytest.approx(4069.765e-6)
    assert families[0].on_path_s == pytest.approx(3462.374e-6)  # where nothing computes beside it
    assert sum(family.time_s for family in families) == pytest.approx(sum(row.time_s or 0 for row in rows))
    assert sum(family.share for family in families) == pytest.approx(1)

    found = kernels.kernels_page(rows, KernelQuery(q="NVJET tnt", family="gemm", sort="name"), limit=1)
    assert found.page.total == sum("nvjet" in row.name and "TNT" in row.name for row in rows)
    assert len(found.page.items) == 1
    rest = kernels.kernels_page(rows, KernelQuery(q="NVJET tnt", family="gemm", sort="name"), cursor=found.page.next)
    names = [row.name for row in (*found.page.items, *rest.page.items)]
    assert names == sorted(names, key=str.casefold)
    rates = kernels.sorted_rows(rows, "-flop_per_s")
    assert rates[0].flop_per_s is not None
    assert rates[-1].flop_per_s is None  # what is not reported comes last, whatever the order
    for query, cursor in ((KernelQuery(sort="colour"), None), (KernelQuery(), "-1"), (KernelQuery(), "x")):
        with pytest.raises(InvalidQuery):
            kernels.kernels_page(rows, query, cursor=cursor)


def test_lists_do_not_read_the_kernels(context: Context) -> None:
    run = uploaded(context, "torch-profiler-trace/own-decode-2layer-b4.json.gz")
    with context.storage.read() as session:
        light = runs.get_run(session=session, run_id=run.id, with_kernels=False)
        whole = runs.get_run(session=session, run_id=run.id)
    assert (light.parsed.kernels, light.parsed.timeline) == ((), None)
    assert light.parsed.metrics == whole.parsed.metrics
    assert whole.parsed.timeline == run.parsed.timeline


def test_a_harness_of_one_s_own_may_lack_all_but_the_name(context: Context) -> None:
    run = native(
        context, "own", {"name": "flash_fwd_kernel", "time_s": 3.0}, {"name": "x"}, {"name": "nvjet", "time_s": 1}
    )
    rows = kernels.rows_of(run)
    assert [row.family for row in rows] == ["attention", "other", "gemm"]
    assert [row.share for row in rows] == [0.75, None, 0.25]
    assert kernels.timeline_view(run) is None


def test_a_part_of_a_timeline(context: Context) -> None:
    run = uploaded(context, "torch-profiler-trace/own-ddp2-rank0.json.gz")
    whole = kernels.timeline_view(run)
    assert whole is not None
    assert len(whole.bars) == 412
    assert not whole.merged
    assert whole.span_s == pytest.approx(22720.503e-6)
    assert [(lane.device, lane.stream) for lane in whole.lanes] == [(0, 7), (0, 17)]
    few = kernels.timeline_view(run, most=50)
    assert few is not None
    assert len(few.bars) <= 50
    assert few.merged
    assert sum(bar.count for bar in few.bars) == 412
    assert sum(bar.busy_s for bar in few.bars) == pytest.approx(sum(bar.busy_s for bar in whole.bars))
    part = kernels.timeline_view(run, 0.020, 0.0219)
    assert part is not None
    assert {bar.lane for bar in part.bars} == {1}  # the last all-reduce alone, and it began earlier
    for start, end in ((0.02, 0.01), (-1.0, None), (float("nan"), None)):
        with pytest.raises(InvalidQuery):
            kernels.timeline_view(run, start, end)


def test_two_runs_by_exact_name(context: Context) -> None:
    before = native(
        context,
        "before",
        {"name": "nvjet_a", "time_s": 4.0, "count": 2},
        {"name": "old_norm_kernel", "family": "norm", "time_s": 1.0, "count": 1},
        {"name": "same", "time_s": 1.0, "count": 1},
    )
    after = native(
        context,
        "after",
        {"name": "nvjet_a", "time_s": 3.0, "count": 3},
        {"name": "new_norm_kernel", "family": "norm", "time_s": 0.5, "count": 1},
        {"name": "same", "time_s": 1.001, "count": 1},
    )
    found = kernels.comparison_of(context, after.id, before.id)
    assert {row.name: row.change for row in found.rows} == {
        "nvjet_a": "faster",
        "old_norm_kernel": "removed",
        "new_norm_kernel": "added",
        "same": "same",
    }
    gemm = found.rows[0]
    assert (gemm.name, gemm.difference_s, gemm.ratio) == ("nvjet_a", -1.0, 0.75)
    assert gemm.mean_ratio == pytest.approx(0.5)  # 2 s a launch before, 1 s after
    assert sum(row.difference_s for row in found.families) == pytest.approx(found.after_s - found.before_s)
    assert sum(row.difference_s for row in found.rows) == pytest.approx(4.501 - 6)
    assert next(row for row in found.families if row.family == "norm").difference_s == pytest.approx(-0.5)
    only = kernels.changes_page(found, change="added")
    assert [row.name for row in only.items] == ["new_norm_kernel"]
    assert kernels.changes_page(found, sort="-ratio").items[0].name == "same"
    itself = kernels.comparison_of(context, after.id, after.id)
    assert {row.change for row in itself.rows} == {"same"}
    empty = native(context, "empty")
    with pytest.raises(InvalidQuery, match="no kernels"):
        kernels.comparison_of(context, after.id, empty.id)
