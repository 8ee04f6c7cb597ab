"""The first screen: a roofline at once, that follows the pickers."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import Opener


def test_a_roofline_stands_there_at_once(open_page: Opener) -> None:
    page = open_page("/")
    chart = page.locator("#home-roofline")
    expect(chart.get_by_role("img", name=re.compile("^Chart. .*bound"))).to_be_visible()
    # Roofs and operations: lines and points of the drawing, not only its frame.
    expect(chart.locator(".scatterlayer .trace path.js-line").first).to_be_attached()
    expect(chart.locator(".scatterlayer .trace path.point").first).to_be_attached()
    expect(page.locator(".answer")).to_contain_text(re.compile(r"bound by .*tokens/s"))


def test_the_pickers_change_the_chart_and_the_address(open_page: Opener) -> None:
    page = open_page("/")
    answer = page.locator("#home-answer .answer")
    before = answer.inner_text()
    page.evaluate("window.stayed = true")
    page.get_by_label("Model", exact=True).select_option("llama-3.1-70b")
    expect(page.locator("#home-answer .chart-caption")).to_contain_text("Llama 3.1 70B")
    expect(answer).not_to_have_text(before)
    expect(page).to_have_url(re.compile(r"[?&]model=llama-3.1-70b"))
    page.get_by_label("Device", exact=True).select_option("nvidia-h200-sxm")
    expect(page.locator("#home-answer .chart-caption")).to_contain_text("H200")
    expect(page.locator("#home-roofline .main-svg").first).to_be_visible()
    assert page.evaluate("window.stayed")
    # The address holds it all: a reload, and the lab, show the same question.
    said = answer.inner_text()
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_have_value("llama-3.1-70b")
    expect(answer).to_have_text(said)
    page.get_by_role("link", name="Explore this").click()
    expect(page.locator("#lab-result .answer")).to_have_text(said)


def test_the_example_goes_with_one_click(open_page: Opener) -> None:
    page = open_page("/")
    recent = page.locator("#recent-runs")
    if not page.get_by_role("button", name="Remove the example").count():
        expect(recent.get_by_text("example", exact=True)).to_have_count(0)
        return
    expect(recent.locator(".ratio").first).to_be_visible()
    page.get_by_role("button", name="Remove the example").click()
    expect(page.get_by_role("button", name="Remove the example")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/$"))
