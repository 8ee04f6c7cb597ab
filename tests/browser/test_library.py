"""The library in use: find a technique, try it on another workload, take it to the lab; tick a list and share it."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import Opener, Watch


def test_from_a_search_to_the_lab(open_page: Opener, watch: Watch) -> None:
    watch.expect("status of 422")
    page = open_page("/library")
    page.get_by_label("Search techniques").fill("kv cache")
    page.get_by_label("Phase", exact=True).select_option("decode")
    expect(page).to_have_url(re.compile(r"q=kv\+cache.*phase=decode"))
    page.get_by_role("link", name="FP8 or INT8 KV cache").click()
    effect = page.locator("#technique-effect")
    expect(page.locator("#technique-chart .main-svg").first).to_be_visible()
    before = effect.locator(".effect-line").inner_text()
    page.get_by_label("Context, already cached").fill("64k")
    expect(effect.locator(".effect-line")).not_to_have_text(before)
    expect(effect.locator(".chart-caption")).to_contain_text("context 65,536")
    expect(page).to_have_url(re.compile(r"context=65536"))
    page.get_by_role("textbox", name="Batch").fill("none")
    expect(page.locator("#lab-error-batch")).to_contain_text("is not a whole number")
    expect(effect.locator(".chart-caption")).to_contain_text("context 65,536")
    page.get_by_role("textbox", name="Batch").fill("4")
    expect(page.locator("#lab-error-batch")).to_be_empty()
    page.get_by_role("link", name="Open in the what-if lab").click()
    expect(page.locator("#lab-ledger")).to_be_visible()
    expect(page.locator("#f-context")).to_have_value("65536")


def test_a_list_is_ticked_and_shared(open_page: Opener) -> None:
    page = open_page("/library/checklists/decode")
    page.get_by_label("Title").fill("Ours")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Ours")
    page.get_by_role("checkbox", name=re.compile("Replay graphs")).check()
    expect(page.get_by_role("status")).to_contain_text(["1 of 5 done"])
    page.reload()
    expect(page.get_by_role("checkbox", name=re.compile("Replay graphs"))).to_be_checked()
    page.get_by_label("Whoever has the link may").select_option("tick")
    page.get_by_role("button", name="Create link").click()
    reader = open_page(page.locator("#share-url").input_value(), java_script_enabled=False)
    reader.get_by_role("checkbox", name=re.compile("Use a paged decode kernel")).check()
    reader.get_by_role("button", name="Save the ticks").click()
    expect(reader.get_by_text("2 of 5 done")).to_be_visible()
    page.reload()
    expect(page.get_by_text("2 of 5 done")).to_be_visible()
