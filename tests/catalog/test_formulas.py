"""Every formula number that a text of the product names is stated in the library, where its link leads."""

from __future__ import annotations

import re
from pathlib import Path

from app.catalog.library import load_library
from app.domain.levers.registry import LEVERS
from app.web.rendering import formula_links

APP = Path(__file__).parents[2] / "app"
NUMBER = re.compile(r"\bF-\d+(?:\.\d+)?\b")
STATED = {point.label for entry in load_library().sections["formulas"].entries for point in entry.points}


def test_every_number_is_stated_and_every_statement_used() -> None:
    named = {number for path in APP.rglob("*.py") for number in NUMBER.findall(path.read_text(encoding="utf-8"))}
    assert named == STATED


def test_numbers_of_levers_lead_to_their_statement() -> None:
    entries = {entry.id for entry in load_library().sections["formulas"].entries}
    for lever in LEVERS.values():
        for anchor in re.findall(r'href="/library/formulas#([^"]+)"', formula_links(lever.model)):
            assert anchor in entries


def test_text_around_a_number_stays_text() -> None:
    assert formula_links("a < b (F-9.3)") == 'a &lt; b (<a href="/library/formulas#F-9">F-9.3</a>)'
