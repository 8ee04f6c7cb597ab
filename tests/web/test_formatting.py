"""Numbers as people read them. Expected texts are written by hand from the rules in the module."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web.formatting import count, percent, quantity, scale_for, significant, times, when, when_stated

THIN = "\u202f"
UNITS = ["s", "B", "B/s", "FLOP", "FLOP/s", "FLOP/B", "tokens/s", "1/s", "W", "J", "1", "ratio", "tokens", "parameters"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0147, "s", "14.7 ms"),
        (0, "s", "0 s"),
        (3.2e-7, "s", "320 ns"),
        (4.5e-6, "s", "4.50 µs"),
        (0.9996e-3, "s", "1.00 ms"),  # rounds up into the next prefix, never "1,000 µs"
        (12.34, "s", "12.3 s"),
        (599, "s", "599 s"),
        (5400, "s", "90 min"),
        (86400, "s", "24 h"),
        (10 * 86400, "s", "10 d"),
        (80e9, "B", "74.5 GiB"),
        (2**30, "B", "1 GiB"),
        (1023.7 * 2**20, "B", "1.00 GiB"),
        (512, "B", "512 B"),
        (0.5, "B", "0.500 B"),
        (3.35e12, "B/s", "3.35 TB/s"),
        (900e9, "B/s", "900 GB/s"),
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (1.979e15, "FLOP/s", "1.98 PFLOP/s"),
        (295.37, "FLOP/B", "295 FLOP/B"),
        (4342.2, "tokens/s", "4,342 tokens/s"),
        (12.345, "tokens/s", "12.3 tokens/s"),
        (123456, "tokens", "123,456 tokens"),
        (25_000_000, "tokens", "25 million tokens"),
        (8_030_261_248, "parameters", "8.03 billion parameters"),
        (700, "W", "700 W"),
        (0.61, "ratio", "61 %"),
        (0.045, "ratio", "4.5 %"),
        (0.0004, "ratio", "0.04 %"),
        (0.9996, "ratio", "99.9 %"),  # not full until it is
        (1.0, "ratio", "100 %"),
        (1.42, "ratio", "142 %"),
        (0.61, "1", "0.610"),
        (-0.0147, "s", "\u221214.7 ms"),
        (2.5, "1/s", "2.50 per s"),
    ],
)
def test_a_quantity_reads_as_the_field_writes_it(value: float, unit: str, text: str) -> None:
    assert str(quantity(value, unit)).replace(THIN, " ") == text


def test_traffic_can_be_printed_in_decimal_units() -> None:
    assert str(quantity(80e9, "B", decimal=True)) == f"80{THIN}GB"


def test_number_and_unit_do_not_part_at_a_line_end() -> None:
    human = quantity(0.0147, "s")
    assert (human.text, human.unit_text) == ("14.7", "ms")
    assert str(human) == "14.7\u202fms"


def test_the_exact_value_keeps_every_digit_and_the_si_unit() -> None:
    assert quantity(0.1 + 0.2, "s").exact == "0.30000000000000004 s"
    assert quantity(80e9, "B").exact == "80000000000 B"
    assert quantity(np.float64(0.1), "s").exact == "0.1 s"
    assert quantity(0.61, "ratio").exact == "0.61"


@pytest.mark.parametrize("value", [None, float("nan"), np.float64("nan"), "nan", True])
@pytest.mark.parametrize("unit", UNITS)
def test_what_is_absent_says_so(value: object, unit: str) -> None:
    human = quantity(value, unit)
    assert str(human) == "not reported"
    assert not human.is_number


def test_infinity_is_unbounded() -> None:
    assert str(quantity(float("inf"), "s")) == "unbounded"
    assert str(quantity(float("-inf"), "s")) == "\u2212unbounded"
    assert percent(float("inf")) == "unbounded"


def test_the_largest_ratio_is_written_out() -> None:
    assert str(quantity(1.797693134862316e306, "ratio")) == "1.80e308\u202f%"


@given(st.floats(), st.sampled_from(UNITS))
def test_no_number_prints_as_a_programming_word(value: float, unit: str) -> None:
    human = quantity(value, unit)
    assert not any(word in f"{human} {human.exact}".lower() for word in ("nan", "none", "inf"))
    assert human.text


@given(st.floats(min_value=1e-9, max_value=1e17), st.sampled_from(["s", "B", "B/s", "FLOP/s"]))
def test_a_prefix_keeps_the_digits_before_the_point_few(value: float, unit: str) -> None:
    whole = quantity(value, unit).text.split(".")[0].replace(",", "")
    limit = {"B": 1024, "s": 6000}.get(unit, 1000)
    assert (unit == "s" and value > 1e5) or int(whole.split("e")[0]) < limit


def test_a_column_shares_the_unit_of_its_largest_value() -> None:
    scale = scale_for([0.0005, 0.0147, None], "s")
    assert scale.unit_text == "ms"
    assert [scale.show(v).text for v in (0.0147, 0.0005, 0.018, None)] == ["14.7", "0.500", "18.0", "not reported"]
    assert scale.show(0.0005).exact == "0.0005 s"


def test_a_column_of_whole_numbers_stays_whole() -> None:
    scale = scale_for([32, 4096], "tokens")
    assert [scale.show(v).text for v in (32, 4096)] == ["32", "4,096"]


def test_an_empty_column_still_has_a_unit() -> None:
    assert scale_for([None], "B/s").unit_text == "B/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9.996, "10.0"), (99.96, "100"), (0.01234, "0.0123"), (1234.5, "1,234"), (5e-5, "5.00e-5"), (42, "42")],
)
def test_three_significant_digits_and_no_whole_digit_lost(value: float, text: str) -> None:
    assert significant(value) == text


def test_counts_have_a_noun_that_agrees() -> None:
    assert count(1, "run") == "1 run"
    assert count(1204, "run") == "1,204 runs"
    assert count(2, "entry", "entries") == "2 entries"
    assert count(None, "run") == "not reported"


def test_factors_carry_the_sign() -> None:
    assert times(1.239) == "1.24×"
    assert times(None) == "not reported"


def test_moments_are_in_utc_and_say_so() -> None:
    cet = timezone(timedelta(hours=1))
    assert when(datetime(2026, 11, 29, 22, 5, tzinfo=cet)) == "2026-11-29 21:05 UTC"
    assert when(datetime(2026, 1, 2, 3, 4, 59, tzinfo=UTC)) == "2026-01-02 03:04 UTC"
    assert when(None) == ""


def test_a_files_own_time_is_read_as_it_stands() -> None:
    assert when_stated("2026-11-29T10:15:00") == "2026-11-29 10:15"
    assert when_stated("2026-11-29T10:15:00+02:00") == "2026-11-29 08:15 UTC"
    assert when_stated("2026-11-29") == "2026-11-29"
    assert when_stated("last Tuesday") == "last Tuesday"
    assert when_stated(None) == ""
