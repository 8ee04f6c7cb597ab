"""Comparisons worked out by hand: ratios, what is refused, findings, ledger and the sentence."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from app.domain.comparison import compare, estimate_values
from app.domain.comparison_items import FROZEN_FIELDS, Comparison, Item, Value
from app.domain.comparison_metrics import metric_direction, metric_label
from app.domain.errors import InvalidInput
from app.domain.run import METRIC_UNITS
from app.domain.words import factor_text

SERVE = {
    "mode": "serve",
    "model": "Llama 3.1 8B",
    "hardware": "H100 SXM",
    "concurrency": 32.0,
    "dtypes.weights": "bf16",
    "launch_mode": "graph",
}


def run(label: str, metrics: dict[str, float], book: Any = None, quality: bool = False, **frozen: Any) -> Item:
    stated = {**SERVE, **{key.replace("__", "."): value for key, value in frozen.items()}}
    return Item(
        label,
        "run",
        {key: Value(value) for key, value in metrics.items()},
        {key: value for key, value in stated.items() if value is not None},
        book,
        quality,
    )


def bound(label: str, metrics: dict[str, float], **frozen: Any) -> Item:
    stated = {**SERVE, "mode": "decode", **{key.replace("__", "."): value for key, value in frozen.items()}}
    return Item(label, "estimate", {key: Value(value, "bound") for key, value in metrics.items()}, stated)


def cell(result: Comparison, metric: str, item: int) -> Any:
    return next(row for row in result.rows if row.key == metric).cells[item]


def checks(result: Comparison, severity: str) -> list[str]:
    return [finding.check for finding in result.findings if finding.severity == severity]


def test_ratios_and_directions_in_words() -> None:
    result = compare(
        [
            run("base", {"output_tokens_per_s": 1000.0, "ttft_s.p99": 0.2, "concurrency": 32.0}),
            run("candidate", {"output_tokens_per_s": 1240.0, "ttft_s.p99": 0.25, "concurrency": 64.0}),
        ]
    )
    assert cell(result, "output_tokens_per_s", 0).verdict == "baseline"
    faster, slower = cell(result, "output_tokens_per_s", 1), cell(result, "ttft_s.p99", 1)
    assert (faster.ratio, faster.verdict, faster.words) == (1.24, "better", "1.24×, better")
    assert (slower.ratio, slower.verdict, slower.words) == (1.25, "worse", "1.25×, worse")
    load = cell(result, "concurrency", 1)
    assert (load.ratio, load.verdict, load.words) == (2.0, "changed", "2.00×")
    assert result.sentence == "“candidate” reaches 1.24× the output tokens/s of “base”."


def test_a_lower_time_is_better_and_a_spread_is_neither() -> None:
    result = compare(
        [run("a", {"tpot_s.mean": 0.02, "tpot_s.std": 0.001}), run("b", {"tpot_s.mean": 0.016, "tpot_s.std": 0.002})]
    )
    assert cell(result, "tpot_s.mean", 1).words == "0.800×, better"
    assert cell(result, "tpot_s.std", 1).verdict == "changed"
    assert result.sentence == "“b” takes 0.800× the TPOT mean of “a”."


def test_within_half_a_per_cent_is_the_same() -> None:
    result = compare([run("a", {"output_tokens_per_s": 1000.0}), run("b", {"output_tokens_per_s": 1004.0})])
    assert cell(result, "output_tokens_per_s", 1).verdict == "same"
    assert result.sentence == "“b” and “a” have the same output tokens/s."


def test_what_only_some_report_is_absent_for_the_rest() -> None:
    result = compare([run("a", {"output_tokens_per_s": 10.0}), run("b", {"ttft_s.p50": 0.1})])
    assert cell(result, "output_tokens_per_s", 1) is None
    assert cell(result, "ttft_s.p50", 0) is None
    refused = cell(result, "ttft_s.p50", 1)
    assert (refused.ratio, refused.reason) == (None, "the baseline does not report it")


def test_statistics_do_not_align_with_one_another() -> None:
    result = compare([run("a", {"ttft_s.p50": 0.1}), run("b", {"ttft_s.p99": 0.1})])
    assert [row.key for row in result.rows] == ["ttft_s.p50", "ttft_s.p99"]
    assert all(row.reported == 1 for row in result.rows)


def test_another_baseline_turns_the_ratio_over() -> None:
    items = [run("a", {"output_tokens_per_s": 1000.0}), run("b", {"output_tokens_per_s": 1250.0})]
    assert cell(compare(items, 1), "output_tokens_per_s", 0).ratio == 0.8


def test_different_phases_have_no_ratio() -> None:
    result = compare(
        [
            run("pp512", {"tokens_per_s_per_device": 9000.0}, mode="prefill"),
            run("tg128", {"tokens_per_s_per_device": 130.0}, mode="decode"),
        ]
    )
    refused = cell(result, "tokens_per_s_per_device", 1)
    assert (refused.verdict, refused.ratio) == ("refused", None)
    assert refused.reason == "decode against prefill: different work, no ratio"
    assert [finding.check for finding in result.findings] == ["not-comparable"]
    assert result.sentence == "Nothing can be held against “pp512”: decode against prefill: different work, no ratio."


def test_zero_gives_no_ratio() -> None:
    result = compare([run("a", {"requests_failed": 0.0}), run("b", {"requests_failed": 3.0})])
    assert cell(result, "requests_failed", 1).reason == "a ratio needs two values above zero"
    assert (
        cell(
            compare([run("a", {"requests_failed": 0.0}), run("b", {"requests_failed": 0.0})]), "requests_failed", 1
        ).verdict
        == "same"
    )


def test_a_measurement_reaches_a_share_of_a_bound_and_is_not_worse_than_it() -> None:
    measured = run("measured", {"tpot_s.mean": 0.02, "output_tokens_per_s": 1600.0})
    floor = bound("bound", {"tpot_s.mean": 0.016, "output_tokens_per_s": 2000.0})
    against_run = compare([measured, floor])
    assert cell(against_run, "tpot_s.mean", 1).of_bound == pytest.approx(0.8)
    assert cell(against_run, "tpot_s.mean", 1).words == "baseline reaches 80\u202f% of it"
    against_bound = compare([floor, measured])
    assert cell(against_bound, "output_tokens_per_s", 1).of_bound == pytest.approx(0.8)
    assert cell(against_bound, "output_tokens_per_s", 1).words == "reaches 80\u202f% of the bound"
    assert against_bound.sentence == "“measured” reaches 80\u202f% of the bound “bound” in output tokens/s."


def test_faster_than_the_bound_is_a_contradiction() -> None:
    result = compare([bound("bound", {"tpot_s.mean": 0.016}), run("measured", {"tpot_s.mean": 0.012})])
    assert cell(result, "tpot_s.mean", 1).verdict == "contradiction"
    assert "faster-than-bound" in checks(result, "error")


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [("model", "Llama 3.1 70B", "model"), ("hardware", "A100", "hardware"), ("concurrency", 8.0, "concurrency")],
)
def test_a_bound_of_something_else_is_refused(field: str, value: Any, word: str) -> None:
    result = compare([run("measured", {"tpot_s.mean": 0.02}), bound("bound", {"tpot_s.mean": 0.01}, **{field: value})])
    refused = cell(result, "tpot_s.mean", 1)
    assert refused.ratio is None
    assert refused.reason == f"it is a bound for another {word}"


def test_a_bound_stands_beside_the_mean_or_else_the_median() -> None:
    def values(phase: str, reported: list[str], seq_len: int = 1) -> dict[str, Value]:
        return estimate_values(
            phase,
            seq_len,
            bound=0.01,
            serial_bound=0.012,
            expected=(0.014, 0.0125, 0.02),
            tokens_per_second=100.0,
            tokens_per_second_per_device=50.0,
            peak_memory=1e9,
            reported=reported,
        )

    decode = values("decode", ["tpot_s.mean", "tpot_s.p99", "output_tokens_per_s", "itl_s.p50"])
    assert decode["tpot_s.mean"] == Value(0.01, "bound", 0.0125, 0.02)
    assert decode["itl_s.p50"].value == 0.01
    assert "tpot_s.p99" not in decode
    # 100 tokens/s at 10 ms: 80 at 12.5 ms and 50 at 20 ms
    assert decode["output_tokens_per_s"] == Value(100.0, "bound", 50.0, 80.0)
    assert values("prefill", ["ttft_s.p50"], 4096)["ttft_s.p50"].value == 0.01
    assert values("train", ["step_time_s"], 4096)["step_time_s"].value == 0.01
    assert "tpot_s.mean" not in values("decode", ["tpot_s.mean"], seq_len=4)
    assert values("decode", [])["output_tokens_per_s"].value == 100.0


@pytest.mark.parametrize(
    ("changes", "rule", "severity"),
    [
        ({"model": "Llama 3.1 70B"}, "BC-01", "error"),
        ({"launch_mode": "eager"}, "BC-03", "warning"),
        ({"dtypes__weights": "fp8"}, "BC-04", "error"),
        ({"concurrency": 64.0}, "BC-05", "warning"),
        ({"hardware": "A100 SXM"}, "BC-07", "warning"),
        ({"devices": 8, "parallel": "TP 8"}, None, ""),
    ],
)
def test_each_difference_has_its_rule(changes: dict[str, Any], rule: str | None, severity: str) -> None:
    result = compare([run("a", {"output_tokens_per_s": 1.0}), run("b", {"output_tokens_per_s": 1.0}, **changes)])
    found = [(f.check, f.severity) for f in result.findings if f.check.startswith("BC-")]
    # the last case states what the baseline leaves open: unknown is not different
    assert found == ([(rule, severity)] if rule else [])


def test_alike_items_have_no_findings() -> None:
    result = compare([run("a", {"output_tokens_per_s": 1.0}), run("b", {"output_tokens_per_s": 1.0})])
    assert (result.findings, result.differences) == ((), ())


def test_a_difference_names_field_and_values() -> None:
    result = compare([run("a", {"ttft_s.p50": 1.0}), run("b", {"ttft_s.p50": 1.0}, concurrency=64.0)])
    (difference,) = result.differences
    assert (difference.field, difference.values) == ("concurrency", ("32", "64"))
    assert "“b” has concurrency 64 instead of 32." in result.findings[0].message


def test_wording_and_rounding_are_no_difference() -> None:
    result = compare(
        [
            run("a", {"ttft_s.p50": 1.0}, input_len=1000.0),
            run("b", {"ttft_s.p50": 1.0}, model="llama 3.1 8b", input_len=1012.0),
        ]
    )
    assert result.differences == ()


def test_a_context_that_follows_from_the_lengths_is_not_a_second_difference() -> None:
    lengths = {"input_len": 1000.0, "output_len": 200.0, "context_len": 1100.0}
    items = [
        run("a", {"ttft_s.p50": 1.0}, **lengths),
        run("b", {"ttft_s.p50": 1.0}, **{**lengths, "output_len": 400.0, "context_len": 1200.0}),
    ]
    assert [difference.field for difference in compare(items).differences] == ["output_len"]


def test_an_algorithmic_change_may_change_the_model_when_quality_is_given() -> None:
    def found(quality: bool, book: Any) -> list[tuple[str, str]]:
        items = [
            run("a", {"output_tokens_per_s": 1.0}, quality=quality),
            run("b", {"output_tokens_per_s": 2.0}, book, quality, model="Distilled"),
        ]
        return [(f.check, f.severity) for f in compare(items).findings]

    assert found(True, "algorithmic") == []
    assert found(False, "algorithmic") == [("BC-01", "warning")]
    assert found(True, "kernel") == [("BC-01", "error")]


def test_launch_mode_booked_as_runtime_is_what_it_claims() -> None:
    items = [run("a", {"tpot_s.mean": 2.0}, launch_mode="eager"), run("b", {"tpot_s.mean": 1.0}, "runtime")]
    assert [f.check for f in compare(items).findings] == []


def test_fewer_steps_are_no_kernel_gain() -> None:
    items = [run("a", {"latency_s": 2.0}, steps=50), run("b", {"latency_s": 1.0}, "kernel", steps=25)]
    assert [(f.check, f.severity) for f in compare(items).findings] == [("BC-06", "error")]


def test_padded_tokens_are_not_real_tokens() -> None:
    items = [
        run("a", {"total_tokens_per_s": 2.0}, tokens_basis="real"),
        run("b", {"total_tokens_per_s": 3.0}, tokens_basis="padded"),
    ]
    assert [(f.check, f.severity) for f in compare(items).findings] == [("BC-11", "warning")]


def test_facts_that_one_side_leaves_out_are_named_once() -> None:
    result = compare([run("a", {"ttft_s.p50": 1.0}), run("b", {"ttft_s.p50": 1.0}, launch_mode=None, hardware=None)])
    assert [(f.check, f.severity, f.fields) for f in result.findings] == [
        ("not-stated", "info", ("hardware", "launch_mode"))
    ]


def test_the_ledger_multiplies_to_the_total_exactly() -> None:
    result = compare(
        [
            run("base", {"output_tokens_per_s": 1000.1}),
            run("kernel", {"output_tokens_per_s": 1103.7}, "kernel"),
            run("not booked", {"output_tokens_per_s": 5.0}),
            run("graph", {"output_tokens_per_s": 1300.3}, "runtime"),
            run("kernel 2", {"output_tokens_per_s": 1207.9}, "kernel"),
        ]
    )
    ledger = result.ledger
    assert ledger is not None
    assert [(e.item, e.previous, e.book_as) for e in ledger.entries] == [
        (1, 0, "kernel"),
        (3, 1, "runtime"),
        (4, 3, "kernel"),
    ]
    product = Fraction(1)
    for gain in ledger.by_book.values():
        product *= gain
    assert product == ledger.total == Fraction(1207.9) / Fraction(1000.1)
    assert list(ledger.by_book) == ["kernel", "runtime"]
    assert float(ledger.entries[2].gain) == pytest.approx(1207.9 / 1300.3)


def test_the_ledger_of_a_time_gains_when_it_falls_and_says_what_changed() -> None:
    result = compare(
        [
            run("base", {"step_time_s.mean": 0.4}, mode="train"),
            run("fp8", {"step_time_s.mean": 0.2}, "algorithmic", mode="train", dtypes__weights="fp8"),
        ]
    )
    assert result.ledger is not None
    assert result.ledger.total == 2
    assert result.ledger.entries[0].changed == ("weights bf16 → fp8",)


def test_the_ledger_refuses_what_is_not_of_a_kind() -> None:
    estimate = bound("bound", {"output_tokens_per_s": 5000.0})
    booked = Item(estimate.label, estimate.kind, estimate.values, estimate.frozen, "kernel")
    result = compare(
        [
            run("base", {"output_tokens_per_s": 1000.0}),
            booked,
            run("silent", {"loss": 1.0}, "runtime"),
            run("good", {"output_tokens_per_s": 1500.0}, "runtime"),
        ]
    )
    assert result.ledger is not None
    assert result.ledger.refused == (
        (1, "it is a bound, the baseline measured"),
        (2, "it does not report output tokens/s"),
    )
    assert [(e.item, e.previous) for e in result.ledger.entries] == [(3, 0)]


def test_without_books_there_is_no_ledger() -> None:
    assert compare([run("a", {"ttft_s.p50": 1.0}), run("b", {"ttft_s.p50": 1.0})]).ledger is None


def test_one_item_and_no_items() -> None:
    assert (
        compare([run("a", {"ttft_s.p50": 1.0})]).sentence
        == "One item stands alone here: a comparison needs a second one."
    )
    with pytest.raises(InvalidInput, match="items"):
        compare([])
    with pytest.raises(InvalidInput, match="baseline"):
        compare([run("a", {"ttft_s.p50": 1.0})], 1)
    with pytest.raises(InvalidInput, match="metric"):
        compare([run("a", {"ttft_s.p50": 1.0})], 0, "mfu")


def test_several_items_are_told_by_the_best() -> None:
    items = [run(name, {"output_tokens_per_s": rate}) for name, rate in (("a", 100.0), ("b", 150.0), ("c", 80.0))]
    assert compare(items).sentence == "“b” reaches 1.50× the output tokens/s of “a”, the best of the others."


def test_every_metric_has_words_and_factors_have_three_digits() -> None:
    assert metric_label("ttft_s.p99") == "TTFT p99"
    assert all(metric_label(name) != name for name in METRIC_UNITS if "_" in name)
    assert metric_direction("ttft_s.p99") == "lower"
    assert metric_direction("request_rate_per_s") is None
    assert [factor_text(x) for x in (1.2449, 0.8, 12.34, 0.01234, 1234.5, 0.99996)] == [
        "1.24×",
        "0.800×",
        "12.3×",
        "0.0123×",
        "1,234×",
        "1.00×",
    ]


def test_frozen_fields_are_named_once() -> None:
    keys = [field.key for field in FROZEN_FIELDS]
    assert len(keys) == len(set(keys))
