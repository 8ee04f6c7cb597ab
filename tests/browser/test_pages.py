"""Every page: a quiet console, nothing asked of other servers, no sideways scrolling on phones, charts in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opener, Watch
from tests.browser.pages import NAMES, Stored, address

CHARTS = "figure[data-chart]"


def drawn(page: Page) -> int:
    """Wait until every chart that can be seen is drawn; how many there are."""
    figures = page.locator(f"{CHARTS}:visible")
    number = figures.count()
    for index in range(number):
        expect(figures.nth(index).locator(".main-svg").first).to_be_visible()
    return number


def width_beyond(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_on_a_phone(open_page: Opener, watch: Watch, stored: Stored, name: str) -> None:
    if name == "missing":
        watch.expect("status of 404")
    page = open_page(address(name, stored), width=360, height=740, has_touch=True, is_mobile=True)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    drawn(page)
    assert width_beyond(page) <= 0, "the page scrolls sideways"
    # Everything that folds, unfolded.
    page.evaluate("document.querySelectorAll('main details').forEach(part => { part.open = true })")
    drawn(page)
    assert width_beyond(page) <= 0, "the page scrolls sideways when everything is unfolded"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_in_use(open_page: Opener, watch: Watch, stored: Stored, name: str, tmp_path: Path) -> None:
    """Hover, both pictures, the themes and print, under the content security policy and without a complaint."""
    if name == "missing":
        watch.expect("status of 404")
    page = open_page(address(name, stored))
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


def test_export_as_table_and_json(open_page: Opener, tmp_path: Path) -> None:
    page = open_page("/explore")
    figure = page.locator("#lab-roofline")
    expect(figure.locator(".main-svg").first).to_be_visible()
    for kind, start in (("CSV", "Operation"), ("JSON", "{")):
        with page.expect_download() as download:
            figure.get_by_role("button", name=kind).click()
        file = tmp_path / kind
        download.value.save_as(file)
        assert file.read_text(encoding="utf-8").lstrip("\ufeff").startswith(start)


def test_keys(open_page: Opener) -> None:
    """/ goes to the search, ? shows the keys, Escape closes; the first Tab leads past the top bar."""
    page = open_page("/runs")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#site-search")).to_be_focused()
    page.locator("#site-search").blur()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()


def test_a_theme_is_remembered(open_page: Opener) -> None:
    page = open_page("/runs", color_scheme="light")
    page.locator("[data-theme-choice] summary").click()
    page.locator("[data-theme-choice]").get_by_role("button", name="Dark").click()
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.goto("/hardware")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == dark
