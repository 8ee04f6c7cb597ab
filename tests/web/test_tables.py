"""Cells of tables: what each kind prints, sorts by and escapes."""

from __future__ import annotations

import numpy as np
import pytest
from markupsafe import Markup

from app.web.formatting import Human, quantity
from app.web.rendering import column_scales, environment

MARKUP = "<b>&\"'"
ESCAPED = "&lt;b&gt;&amp;&#34;&#39;"


def row_of(cell: object, **column: object) -> str:
    columns = [{"label": "x", "head": False, **column}]
    return str(environment().globals["table_rows"](columns, [[cell]], column_scales(columns, [[cell]])))


@pytest.mark.parametrize(
    ("cell", "row"),
    [
        (None, '<tr><td><span class="fig-none">not reported</span></td></tr>'),
        (True, "<tr><td>yes</td></tr>"),
        (1234, '<tr><td data-value="1234">1,234</td></tr>'),
        (np.float64(2.5), '<tr><td data-value="2.5">2.50</td></tr>'),
        (np.int64(3), '<tr><td data-value="3">3</td></tr>'),
        (MARKUP, f"<tr><td>{ESCAPED}</td></tr>"),
        (Markup("<i>x</i>"), "<tr><td><i>x</i></td></tr>"),
        ({"markup": MARKUP, "value": 7}, f'<tr><td data-value="7">{ESCAPED}</td></tr>'),
        ({"text": MARKUP, "href": MARKUP}, f'<tr><td><a href="{ESCAPED}">{ESCAPED}</a></td></tr>'),
        (
            {"text": "t", "title": MARKUP, "note": MARKUP},
            f'<tr><td title="{ESCAPED}">t<span class="cell-note">{ESCAPED}</span></td></tr>',
        ),
    ],
)
def test_a_cell(cell: object, row: str) -> None:
    assert row_of(cell).strip() == row


def test_a_column_with_a_unit_prints_in_it_and_keeps_the_exact_value() -> None:
    row = row_of(0.0147, unit="s")
    assert 'class="num"' in row
    assert 'data-value="0.0147"' in row
    assert 'data-exact="0.0147 s"' in row
    assert '<span class="fig-text">14.7</span>' in row


@pytest.mark.parametrize("value", [0.0, 0.0147, -2.5, 1e-30, 3.2e14, 12345.0])
@pytest.mark.parametrize("unit", ["", "s", "B", "FLOP", "ratio"])
def test_the_short_way_for_numbers_makes_what_the_general_way_makes(value: float, unit: str) -> None:
    column = {"unit": unit} if unit else {"numeric": True}
    assert row_of(value, **column) == row_of(np.float64(value), **column)


def test_what_is_no_number_says_so() -> None:
    assert "not reported" in row_of(float("nan"), unit="s")
    assert "unbounded" in row_of(float("inf"), unit="s")


def test_a_badge_is_escaped_and_a_resource_has_its_colour() -> None:
    assert ESCAPED in row_of({"text": "x", "badge": MARKUP})
    assert 'data-resource="hbm"' in row_of({"resource": "hbm"})
    assert MARKUP not in row_of({"resource": MARKUP})


def test_a_first_column_of_words_heads_its_rows() -> None:
    rows = environment().globals["table_rows"]
    columns = [{"label": "a"}, {"label": "b"}]
    assert str(rows(columns, [["x", "y"]], [None, None])).startswith('<tr><th scope="row">x</th><td>y</td>')


def test_a_figure_says_where_it_comes_from() -> None:
    figure = environment().globals["figure_markup"]
    source = {"kind": "recalled", "note": MARKUP, "url": "https://example.org/a?b=1&c=2"}
    made = str(figure(3.35e12, "B/s", source))
    assert f'data-origin="recalled: {ESCAPED}"' in made
    assert 'data-origin-url="https://example.org/a?b=1&amp;c=2"' in made
    assert "badge-source-recalled" in made
    assert "badge" not in str(figure(1.0, "s", "computed"))
    assert "data-origin-url" not in str(figure(1.0, "s", {"url": "javascript:alert(1)"}))
    assert str(figure(None)) == '<span class="fig-none">not reported</span>'
    assert ESCAPED in str(figure(Human(MARKUP, "", MARKUP)))
    assert "14.7" in str(figure(quantity(0.0147, "s"), bare=True))
