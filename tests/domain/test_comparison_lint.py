"""The lint of a comparison by hand: noise, attribution, contradictions, and Amdahl's ceiling."""

from __future__ import annotations

import pytest

from app.domain.comparison import compare
from app.domain.comparison_items import Item, Value


def run(label: str, tokens: float, frozen: dict | None = None, **more) -> Item:
    told = {"mode": "decode", "model": "m", "hardware": "h"} | (frozen or {})
    return Item(label, "run", {"decode_tokens_per_s": Value(tokens)}, told, **more)


def checks(*items: Item) -> dict[str, str]:
    return {finding.check: finding.severity for finding in compare(items).findings}


def test_a_difference_below_twice_the_spread_is_noise():
    # pooled spread of 3 % and 4 %: sqrt((9 + 16) / 2) = 3.54 %; twice that is 7.07 %
    spread = {"decode_tokens_per_s": 0.03}, {"decode_tokens_per_s": 0.04}
    base = run("a", 100.0, spread=spread[0])
    assert checks(base, run("b", 107.0, spread=spread[1]))["BC-09"] == "warning"
    assert "BC-09" not in checks(base, run("b", 107.1, spread=spread[1]))
    # the time that a rate was made from spreads alike
    assert checks(base, run("b", 105.0, spread={"decode_time_s": 0.04}))["BC-09"] == "warning"


def test_what_was_not_repeated_is_said_and_serving_load_is_not_judged_so():
    base, other = run("a", 100.0), run("b", 120.0)
    assert checks(base, other)["repetitions-missing"] == "info"
    served = [run("a", 100.0, {"mode": "serve"}), run("b", 120.0, {"mode": "serve"})]
    assert "repetitions-missing" not in checks(*served)
    assert "repetitions-missing" not in checks(base, run("b", 100.0))  # nothing is claimed


def test_several_changes_need_a_run_that_changes_one():
    base = run("a", 100.0, {"dtypes.weights": "bf16", "launch_mode": "eager"})
    both = run("b", 150.0, {"dtypes.weights": "fp8", "launch_mode": "graph"})
    assert checks(base, both)["BC-08"] == "warning"
    ablation = run("c", 120.0, {"dtypes.weights": "bf16", "launch_mode": "graph"})
    assert "BC-08" not in checks(base, both, ablation)
    assert "BC-08" not in checks(base, ablation)
    elsewhere = run("d", 150.0, {"dtypes.weights": "fp8", "launch_mode": "graph", "hardware": "other"})
    assert "BC-08" not in checks(base, elsewhere)


def test_runs_that_contradict_themselves_are_not_ranked_in_silence():
    found = compare([run("a", 100.0), run("b", 120.0, contradictions=("faster-than-bound",))]).findings
    (error,) = [finding for finding in found if finding.check == "run-contradicts-itself"]
    assert error.severity == "error"
    assert "faster-than-bound" in error.message


def test_a_gain_above_what_the_changed_share_allows():
    # 30 % of the step: at most 1 / (1 - 0.3) = 1.4286 times
    base = run("a", 100.0)
    assert checks(base, run("b", 160.0, book_as="kernel", changed_share=0.3))["BC-12"] == "info"
    assert "BC-12" not in checks(base, run("b", 142.0, book_as="kernel", changed_share=0.3))
    assert "BC-12" not in checks(base, run("b", 160.0, book_as="kernel"))


@pytest.mark.parametrize("end_to_end", [False, True])
def test_a_kernel_gain_wants_an_end_to_end_run(end_to_end: bool):
    items = [run("a", 100.0, {"mode": "kernel"}), run("b", 120.0, {"mode": "kernel"}, book_as="kernel")]
    if end_to_end:
        items.append(run("c", 110.0))
    assert ("BC-10" in checks(*items)) is not end_to_end


def test_prepared_inputs_on_one_side_are_an_error():
    base = run("a", 100.0, {"mode": "kernel", "timed_region": "kernel"})
    other = run("b", 120.0, {"mode": "kernel", "timed_region": "conversion and kernel"})
    assert checks(base, other)["BC-02"] == "error"
    assert checks(base, run("c", 120.0, {"mode": "kernel"}))["not-stated"] == "info"
