"""What every page has: exports of its charts, keys, a theme that is remembered."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import Opener


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
