"""The bars of a comparison: kinds kept apart, names escaped and all different, the table holds the same numbers."""

from __future__ import annotations

from typing import Any

from app.charts.comparison import bar_names, comparison_bars, shown_value, static_bars


def cell(value: float, kind: str = "measured", verdict: str = "better", ratio: float | None = 1.25, **more: Any) -> Any:
    plain = {"words": "1.25×, better", "reason": None, "of_bound": None, "expected_low": None, "expected_high": None}
    return {"value": value, "kind": kind, "verdict": verdict, "ratio": ratio, **plain, **more}


ITEMS = [{"label": "base"}, {"label": "<b>new</b>"}, {"label": "bound"}, {"label": "silent"}]
ROW = {
    "metric": "tpot_s.mean",
    "label": "TPOT mean",
    "unit": "s",
    "cells": [
        cell(0.01, verdict="baseline", ratio=1.0),
        cell(0.0125),
        cell(0.005, "bound", "of_bound", 0.5, expected_low=0.006, expected_high=0.009),
        None,
    ],
}


def test_measured_bound_and_expected_are_different_traces() -> None:
    spec = comparison_bars(ITEMS, ROW, baseline=0, title="t")
    by_name = {trace["name"]: trace for trace in spec.data}
    assert by_name["measured"]["x"] == [10.0, 12.5]  # ms
    assert by_name["measured"]["meta"] == {"kind": "measured"}
    assert (by_name["bound"]["x"], by_name["bound"]["meta"]) == ([5.0], {"kind": "bound"})
    assert [round(x, 9) for x in (*by_name["expected range"]["base"], *by_name["expected range"]["x"])] == [6.0, 3.0]
    assert spec.layout["xaxis"]["title"]["text"] == "TPOT mean, ms"
    assert spec.layout["shapes"][0]["x0"] == 10.0


def test_a_label_cannot_bring_markup_into_the_chart() -> None:
    spec = comparison_bars(ITEMS, ROW, baseline=0, title="t")
    assert spec.data[0]["y"] == ["base (baseline)", "&lt;b&gt;new&lt;/b&gt;"]
    assert "<b>" not in str(spec.data) + str(spec.layout)


def test_what_is_not_reported_has_no_bar_and_says_so() -> None:
    spec = comparison_bars(ITEMS, ROW, baseline=0, title="t")
    assert spec.layout["annotations"][3]["text"] == "silent: not reported"
    assert spec.table["rows"][3] == ["silent", None, None, "not reported", ""]
    assert spec.table["rows"][1][:3] == ["<b>new</b>", 0.0125, 1.25]


def test_long_names_that_begin_alike_stay_apart() -> None:
    names = bar_names([{"label": "x" * 60 + "1"}, {"label": "x" * 60 + "2"}], baseline=0)
    assert len(set(names)) == 2
    names = bar_names([{"label": "y" * 60 + str(n)} for n in range(3)], baseline=2)
    assert len(set(names)) == 3


def test_plain_bars_are_shares_of_the_widest() -> None:
    bars = static_bars(ITEMS, ROW, 0)
    assert [round(bar["share"], 9) for bar in bars] == [0.8, 1.0, 0.4, 0.0]
    assert [bar["text"] for bar in bars] == ["10 ms", "12.5 ms, 1.25×", "5 ms", "not reported"]


def test_values_have_readable_units() -> None:
    assert [
        shown_value(v, u) for v, u in ((2610.4, "tokens/s"), (9.18, "1/s"), (3e12, "B/s"), (2**34, "B"), (0.5, "1"))
    ] == [
        "2,610 tokens/s",
        "9.18 per s",
        "3 TB/s",
        "16 GiB",
        "0.5",
    ]
