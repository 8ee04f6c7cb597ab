"""The page that holds bounds and forecasts against measurements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.catalog.fidelity import Group, load_fidelity
from app.charts.fidelity import fidelity_boxes
from app.main import create_app
from app.services.fidelity import FidelityPage, fidelity_page, report
from app.settings import RateLimits, Settings


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[str]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("fidelity"), rate_limits=RateLimits(0, 0, 0))
    assert settings.database_path is not None
    settings.database_path.write_bytes(migrated_database.read_bytes())
    with TestClient(create_app(settings)) as client:
        answer = client.get("/library/fidelity")
        assert answer.status_code == 200
        yield answer.text


def test_the_page_opens_with_the_answer(page: str) -> None:
    record = load_fidelity()
    assert fidelity_page().sentence in page
    assert f"{record.rows:,} measured times" in page


def test_every_kind_and_every_row_below_its_bound_is_listed(page: str) -> None:
    record = load_fidelity()
    words = re.sub(r"<[^>]+>", " ", page)
    assert all(group.title in words for group in record.kinds)
    assert all(item.id in page and item.explanation in page for item in record.beaten)
    assert "unexplained" not in words


def test_the_report_says_the_same() -> None:
    shown = fidelity_page()
    text = report(shown)
    assert text.startswith("# ")
    assert shown.sentence in text
    assert all(f"| {group.kind} |" in text for group in shown.fidelity.kinds)
    written = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text()
    assert written == text, "run `make fidelity`"


def test_an_unexplained_row_is_said_in_the_first_sentence() -> None:
    shown = fidelity_page()
    (one, *_) = shown.fidelity.beaten
    broken = FidelityPage(
        type(shown.fidelity)(
            shown.fidelity.date,
            shown.fidelity.rows,
            shown.fidelity.sources,
            shown.fidelity.kinds,
            shown.fidelity.devices,
            (type(one)(one.id, one.kind, one.hardware, one.of_bound, "", one.source, one.url),),
        ),
        shown.calibrated,
        shown.left_out,
    )
    assert "1 of them unexplained" in broken.sentence
    assert "**none**" in report(broken)


def test_boxes_carry_percentiles_and_a_table() -> None:
    group = Group("gemm", "", 9, 9, 0, (1.1, 1.2, 1.5, 2.0, 3.0), (0.8, 0.9, 1.0, 1.1, 1.3), 0.1, 0.2, 0.3, 0.8)
    spec = fidelity_boxes([group], title="t", caption="c")
    bound, forecast = spec.data
    assert (bound["q1"], bound["median"], bound["upperfence"]) == ([1.2], [1.5], [3.0])
    assert forecast["lowerfence"] == [0.8]
    assert spec.table["rows"] == [["GEMM", 1.1, 1.5, 3.0, 0.8, 1.0, 1.3]]
