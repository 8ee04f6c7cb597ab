"""Series, their history, and the gate: what belongs together, where it changed, and what is noise."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from app.domain.errors import InvalidInput
from app.services import noise as noise_module
from app.services import run_changes, runs
from app.services.check import CheckRequest, check_run
from app.services.context import Context
from app.services.history import get_history, list_history, place_of
from app.services.noise import change_points, noise_of
from app.services.run_changes import RunPatch
from app.services.upload_run import upload_file
from app.storage.errors import NotFound

from .native_runs import native


def sent(context: Context, day: int, value: float, **changes: object) -> str:
    """A run of a training step of `value` seconds, measured on a day of one month."""
    told: dict[str, object] = {
        "name": f"step on day {day}",
        "measured_at": f"2026-11-{day:02d}T12:00:00Z",
        "workload": {"phase": "train", "batch": 1, "seq_len": 4096, "parallel": {"tp": 1}},
        "software": {"engine": "ours", "commit": f"c{day}"},
        "metrics": {"step_time_s": {"mean": value}},
    }
    outcome = upload_file(context, native(**(told | changes)), f"{day}.json")
    return outcome.runs[0].id


def patched(context: Context, run: str, **fields: object) -> runs.RunView:
    return run_changes.update_run(context, run, RunPatch.model_validate(fields))


def checked(context: Context, run: str, limit: float = 0.05, metric: str = "step_time_s.mean", **more: object) -> dict:
    body = {"run": run, "rules": [{"metric": metric, "max_regression": limit}], **more}
    return check_run(context, CheckRequest.model_validate(body))


def test_a_series_is_the_same_work_on_the_same_device_whatever_the_version(context: Context):
    late, early = sent(context, 9, 1.0), sent(context, 3, 1.1)
    other = sent(context, 4, 1.0, workload={"phase": "train", "batch": 2, "seq_len": 4096, "parallel": {"tp": 1}})
    items, total = list_history(context)
    assert (total, [item.runs for item in items]) == (1, [2])
    history = get_history(context, items[0].key)
    assert [point.run.id for point in history.points] == [early, late]  # by when they were measured
    assert history.metric == "step_time_s.mean"
    assert "last is −9.1" in history.sentence
    assert place_of(context, runs.get_view(context, other).run) is None
    place = place_of(context, runs.get_view(context, late).run)
    assert place is not None
    assert (place.number, place.total, place.next) == (2, 2, None)
    assert place.previous is not None
    assert place.previous.id == early
    with pytest.raises(NotFound):
        get_history(context, "nothing")
    with pytest.raises(InvalidInput):
        get_history(context, items[0].key, "ttft_s.mean")


def test_a_run_moves_with_its_links_and_an_explicit_name_goes_over_everything(context: Context):
    one, two = sent(context, 1, 1.0), sent(context, 2, 1.0)
    patched(context, two, hardware="h200-sxm")
    assert list_history(context)[1] == 0
    patched(context, two, hardware="h100-sxm")
    assert list_history(context)[1] == 1
    unlike = sent(context, 3, 1.0, workload={"phase": "train", "batch": 8, "seq_len": 512, "parallel": {"tp": 1}})
    patched(context, one, series="Nightly")
    patched(context, unlike, tags=["series:nightly"])
    (item,), _ = list_history(context)
    assert (item.label.casefold(), item.runs) == ("nightly", 2)


def test_runs_of_before_get_their_series_when_it_is_asked_for(context: Context):
    from app.storage.records import UNSET, RunChanges
    from app.storage.runs import update_run

    for day in (1, 2):
        run = sent(context, day, 1.0)
        unset = dict.fromkeys(RunChanges.__slots__, UNSET)
        with context.storage.write() as session:
            update_run(session=session, run_id=run, changes=RunChanges(**{**unset, "series_key": None}))
    # the gate asks first: earlier runs must not be missed
    assert checked(context, sent(context, 3, 1.0), baseline="series")["baseline_kind"] == "last"
    assert list_history(context)[1] == 1


def test_a_level_that_changes_is_found_and_noise_is_not():
    draw = np.random.default_rng(3)
    flat = list(1.0 + 0.02 * draw.standard_normal(24))
    assert change_points(flat) == ()
    step = [*flat[:10], *(1.15 * value for value in flat[10:])]
    (change,) = change_points(step)
    assert change.index == 10
    assert change.after / change.before == pytest.approx(1.15, abs=0.03)
    assert change.p_value < 0.01
    both = [*step[:18], *(value / 1.3 for value in step[18:])]
    assert [change.index for change in change_points(both)] == [10, 18]
    assert change_points([1.0] * 8) == ()
    assert change_points([1.0, 2.0, 1.0, 2.0]) == ()  # too short to tell
    assert change_points([1.0] * 6 + [1.001] * 6) == ()  # below a per cent


def test_rank_test_and_interval_agree_with_a_difference_by_hand():
    base = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    worse = [value + 6 for value in base]  # every value above every value: U is the largest there is
    noise = noise_of(worse, base, "mean", lower_is_better=True)
    assert noise is not None
    assert noise.p_value == pytest.approx(1 / 924)  # one order of C(12, 6)
    assert noise.significant
    assert noise.low < 6 / 12.5 < noise.high
    better = noise_of(base, worse, "mean", lower_is_better=True)
    assert better is not None
    assert not better.significant
    assert better.p_value > 0.99
    assert noise_of(base[:4], base, "mean", lower_is_better=True) is None
    assert noise_of(base, base, "max", lower_is_better=True) is None
    rate = noise_of(base, worse, None, lower_is_better=False)
    assert rate is not None
    assert rate.significant


def test_the_gate_fails_beyond_the_limit_and_what_is_not_reported(context: Context):
    base, run = sent(context, 1, 1.0), sent(context, 2, 1.06)
    answer = checked(context, run, baseline=base)
    (row,) = answer["rows"]
    assert (answer["passed"], row["decided_by"]) == (False, "limit")
    assert row["regression"] == pytest.approx(0.06)
    assert row["ratio"] == pytest.approx(1.06)
    assert checked(context, run, 0.07, baseline=base)["passed"]
    missing = checked(context, run, metric="ttft_s.p99", baseline=base)
    assert (missing["passed"], missing["rows"][0]["decided_by"]) == (False, "missing")
    assert "not reported" in missing["rows"][0]["note"]
    json.dumps(answer, allow_nan=False)


def test_the_series_gives_the_marked_baseline_or_the_median_of_the_last_runs(context: Context):
    ids = [sent(context, day, value) for day, value in ((1, 1.0), (2, 1.1), (3, 0.9), (4, 1.5), (5, 1.2))]
    answer = checked(context, ids[4], baseline="series", last=3)
    assert answer["baseline_kind"] == "last"
    assert answer["baseline_runs"] == ids[1:4]
    assert answer["rows"][0]["baseline"] == pytest.approx(1.1)  # the median of 1.1, 0.9 and 1.5
    assert answer["rows"][0]["regression"] == pytest.approx(0.1 / 1.1)
    patched(context, ids[0], is_baseline=True)
    marked = checked(context, ids[4], baseline="series")
    assert (marked["baseline_kind"], marked["baseline"]) == ("marked", ids[0])
    alone = sent(context, 6, 1.0, workload={"phase": "train", "batch": 64, "seq_len": 64, "parallel": {"tp": 1}})
    with pytest.raises(InvalidInput, match="no earlier run"):
        checked(context, alone, baseline="series")
    with pytest.raises(InvalidInput, match="series"):
        checked(context, alone)


def test_a_regression_that_noise_explains_passes_and_says_so(context: Context):
    wide = [1.0, 1.5, 0.7, 1.3, 0.9, 1.2, 0.8]
    tight = [1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00]

    def run(day: int, values: list[float], factor: float) -> str:
        return sent(context, day, 1.0, metrics={"loss": 2.0}, samples={"step_time_s": [v * factor for v in values]})

    noisy = checked(context, run(2, wide, 1.07), baseline=run(1, wide, 1.0))
    (row,) = noisy["rows"]
    assert (noisy["passed"], row["decided_by"]) == (True, "noise")
    assert row["noise"]["low"] < 0 < row["noise"]["high"]
    assert row["noise"]["samples"] == [7, 7]
    assert "noise explains" in row["note"]
    clear = checked(context, run(4, tight, 1.07), baseline=run(3, tight, 1.0))
    (row,) = clear["rows"]
    assert (clear["passed"], row["decided_by"]) == (False, "limit")
    assert row["noise"]["p_value"] < 0.01
    assert row["noise"]["significant"]


def test_unlike_work_and_contradictions_are_said(context: Context):
    base = sent(context, 1, 1.0)
    other = sent(context, 2, 1e-6, workload={"phase": "train", "batch": 4, "seq_len": 4096, "parallel": {"tp": 1}})
    found = {finding["check"]: finding["message"] for finding in checked(context, other, baseline=base)["findings"]}
    assert "batch 4 against 1" in found["unlike-baseline"]
    assert "faster-than-bound" in found["run-contradicts-itself"]


def test_dates_that_cannot_be_read_fall_back_to_when_a_run_was_added(context: Context):
    run = sent(context, 1, 1.0, measured_at="yesterday at noon")
    from app.services.history import moment_of

    assert moment_of(runs.get_view(context, run).run) <= datetime.now(UTC)


def test_scipy_is_imported_where_it_is_first_needed():
    sources = (Path(noise_module.__file__).parents[1]).rglob("*.py")
    early = [path.name for path in sources if re.search(r"^(import|from) scipy", path.read_text(), re.MULTILINE)]
    assert early == []
