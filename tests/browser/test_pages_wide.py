"""Every page at a desk: charts in use, both themes, print, nothing grave for readers, a quiet console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, Watch
from tests.browser.looking import CHARTS, barriers, drawn
from tests.browser.pages import NAMES, Stored, address


@pytest.mark.parametrize("name", NAMES)
def test_a_page_in_use(open_page: Opener, watch: Watch, stored: Stored, name: str, tmp_path: Path) -> None:
    """Hover, both pictures, the themes and print, under the content security policy and without a complaint."""
    if name == "missing":
        watch.expect("status of 404")
    page = open_page(address(name, stored), width=1440, color_scheme="light")
    if drawn(page):
        figure = page.locator(f"{CHARTS}:visible").first
        figure.locator(".nsewdrag").first.hover()
        assert not figure.get_by_title(re.compile("share|cloud|edit", re.IGNORECASE)).count()
        # a picture is drawn by the same code on every page: the lab's and a run's stand for all
        for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")) if name in ("lab", "run") else ():
            with page.expect_download() as download:
                figure.get_by_role("button", name=kind).click()
            file = tmp_path / kind
            download.value.save_as(file)
            assert file.read_bytes().startswith(start)
            assert download.value.suggested_filename.endswith(f".{kind.lower()}")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(paper)
    menu = page.locator("[data-theme-choice]")
    menu.locator("summary").click()
    menu.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) != light
    drawn(page)
    page.emulate_media(media="print")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".topbar")).to_be_hidden()
    page.emulate_media(media="screen")
    drawn(page)
    assert not (found := barriers(page)), "\n".join(found)
