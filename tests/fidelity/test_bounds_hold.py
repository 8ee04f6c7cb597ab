"""A bound that somebody has beaten bounds nothing: every carried measurement must take at least as long, or say why.

Everything is asked anew here; the record in `app/catalog/data/fidelity.json` is what the errors are held against.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.catalog.calibration import load_calibration
from app.catalog.fidelity import load_fidelity
from app.catalog.loader import load_catalog
from app.catalog.measurements import Measurement, MeasurementSource, load_measurements
from app.services.fidelity import Judged, evaluate, judge, judge_all, target_of

TOLERANCE = 0.01
"""How much a recorded error may grow, in points: rounding and new rows of a table, not a worse forecast."""


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return judge_all(load_catalog(), load_calibration())


def test_every_source_and_most_rows_are_asked(judged: list[Judged]) -> None:
    assert len(judged) >= 3000
    assert len({item.row.id for item in judged}) == len(judged)
    assert all(item.row.source.title and item.row.published for item in judged)
    assert {"own-h200", "aiconfigurator", "llm-foundry", "llama-bench", "cudnn"} <= {i.row.collection for i in judged}


def test_no_unexplained_measurement_beats_its_bound(judged: list[Judged]) -> None:
    beaten = [item for item in judged if item.of_bound < 1.0]
    unexplained = [f"{item.row.id}: {item.of_bound:.3f} of the bound" for item in beaten if not item.explanation]
    assert not unexplained
    assert len(beaten) <= len(judged) / 500, "explanations are for exceptions"


def test_bounds_say_something(judged: list[Judged]) -> None:
    """A bound of zero always holds: of each kind that a tuned stack runs, the middle row is within seven floors."""
    loose = [g for g in evaluate(judged, "").kinds if g.judged >= 5 and g.over_bound[2] > 7]
    assert not loose


def test_forecasts_stay_between_their_ends_and_above_the_bound(judged: list[Judged]) -> None:
    for item in judged:
        assert item.bound <= item.low * (1 + 1e-9), item.row.id
        assert item.low <= item.expected <= item.high, item.row.id


def test_errors_are_not_worse_than_recorded(judged: list[Judged]) -> None:
    now, recorded = evaluate(judged, ""), load_fidelity()
    assert {g.kind for g in now.kinds} == {g.kind for g in recorded.kinds}, "run `make fidelity`"
    worse = [
        f"{g.kind}: {g.median_error:.1%} (recorded {recorded.kind(g.kind).median_error:.1%})"
        for g in now.kinds
        if g.judged and g.median_error > recorded.kind(g.kind).median_error + TOLERANCE
    ]
    assert not worse, "run `make calibrate fidelity` and look at what changed"


def test_targets_are_reached() -> None:
    missed = [
        f"{g.kind}: {g.median_error:.1%} of {target_of(g.kind):.0%}"
        for g in load_fidelity().kinds
        if g.judged and g.median_error > target_of(g.kind)
    ]
    assert not missed


def test_ranges_hold_for_most(judged: list[Judged]) -> None:
    """Low and high are percentiles of a class: about four of five rows lie between them."""
    tuned = [item for item in judged if item.row.tuned]
    inside = sum(item.low <= item.row.seconds <= item.high for item in tuned)
    assert 0.72 <= inside / len(tuned) <= 0.95


def test_left_out_rows_say_why() -> None:
    left = load_measurements().left_out
    assert sum(item.rows for item in left) > 500
    assert all(item.why and item.rows > 0 for item in left)


def test_data_files_stay_small() -> None:
    folder = Path(__file__).parents[2] / "app" / "catalog" / "data"
    for file in (*folder.glob("measurements/*.json"), folder / "calibration.json", folder / "fidelity.json"):
        assert file.stat().st_size < 2**20, file.name
        json.loads(file.read_text())


def test_kernels_repeated_in_cache_explain_themselves() -> None:
    """A benchmark that finds its operands where the last call left them beats a cold bound, down to what is left."""
    catalog, calibration = load_catalog(), load_calibration()
    source = MeasurementSource("a benchmark that repeats its call", None, "measured")
    # 2 x 1 x 8192 x 128 x 8 keys and values of 2 bytes: 33.6 MB at 864 GB/s are 38.9 us; the L40S has 96 MiB of cache
    question = {"op": "attention", "batch": 1, "seq_q": 1, "seq_kv": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128}
    for seconds, cached in ((30e-6, True), (40e-6, False)):
        row = Measurement("r", "c", "attention, decode", "nvidia-l40s", question, seconds, source, "")
        judged = judge(row, catalog, calibration)
        assert judged.bound == pytest.approx(38.9e-6, rel=0.01)
        assert ("33.6 MB of operands, 101 MB of cache" in judged.explanation) is cached
    # the same with 64 sequences does not fit: 2148 MB less 101 MB still take 2.37 ms
    many = Measurement("r", "c", "", "nvidia-l40s", {**question, "batch": 64}, 2.2e-3, source, "")
    assert judge(many, catalog, calibration).of_bound < 1
    assert not judge(many, catalog, calibration).explanation
