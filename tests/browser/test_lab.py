"""The what-if lab under somebody's hands: typing, wrong values, slow answers, the back button."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Opener, Watch

PART = re.compile(r"/explore\?.*")


def answer_of(page: Page) -> str:
    return page.locator("#lab-result .answer").inner_text()


def caption(page: Page):
    return page.locator("#lab-roofline .chart-caption")


def test_typing_updates_in_place(open_page: Opener) -> None:
    page = open_page("/explore")
    page.evaluate("window.stayed = true")
    batch = page.locator("#f-batch")
    batch.fill("64")
    expect(caption(page)).to_contain_text("batch 64")
    expect(batch).to_be_focused()
    expect(page).to_have_url(re.compile(r"[?&]batch=64"))

    page.get_by_role("radio", name="Prefill").check()
    expect(page.locator("#lab-result .answer")).to_contain_text("Prefill")
    expect(page).to_have_url(re.compile(r"[?&]phase=prefill"))
    expect(page.get_by_label("Sequence length")).to_be_visible()
    expect(page.get_by_label("Draft tokens")).to_be_hidden()

    tensor_parallel = page.locator("#f-tp")
    tensor_parallel.focus()
    tensor_parallel.press("Control+a")
    tensor_parallel.press_sequentially("4")
    expect(caption(page)).to_contain_text("4 × ")
    expect(page).to_have_url(re.compile(r"[?&]tp=4"))
    expect(tensor_parallel).to_be_focused()
    assert page.evaluate("window.stayed"), "the page was loaded again"


def test_the_place_on_the_page_stays(open_page: Opener) -> None:
    page = open_page("/explore", height=600)
    expect(page.locator("#lab-terms .main-svg").first).to_be_attached()
    page.locator("#f-batch").focus()
    page.evaluate("window.scrollTo(0, 400)")
    before = page.evaluate("window.scrollY")
    assert before > 100
    page.keyboard.press("Control+a")
    page.keyboard.type("96")
    expect(caption(page)).to_contain_text("batch 96")
    expect(page.locator("#lab-roofline .main-svg").first).to_be_attached()
    assert page.evaluate("window.scrollY") == before


def test_the_chosen_tab_stays(open_page: Opener) -> None:
    page = open_page("/explore")
    page.locator("#lab-tabs label", has_text="Operations").click()
    table = page.locator("#lab-operations")
    expect(table).to_be_visible()
    page.locator("#f-batch").fill("48")
    expect(caption(page)).to_contain_text("batch 48")
    expect(table).to_be_visible()
    expect(page.locator("#lab-terms")).to_be_hidden()


def test_the_operations_sort(open_page: Opener) -> None:
    page = open_page("/explore")
    page.locator("#lab-tabs label", has_text="Operations").click()
    table = page.locator("#lab-operations")
    heading = table.get_by_role("columnheader", name="HBM")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    column = heading.evaluate("cell => cell.cellIndex")
    values = table.evaluate(
        "(table, column) => Array.from(table.tBodies[0].rows, row => Number(row.cells[column].dataset.value))", column
    )
    assert len(values) > 3
    assert values == sorted(values, reverse=True)


def test_a_slow_answer_never_overtakes_a_later_one(open_page: Opener) -> None:
    page = open_page("/explore")
    batch = page.locator("#f-batch")
    held: list[Route] = []
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.url))

    def answered(route: Route) -> None:
        if "batch=111" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route(PART, answered)
    with page.expect_request(lambda request: "batch=111" in request.url):
        batch.fill("111")
    batch.fill("222")
    expect(caption(page)).to_contain_text("batch 222")
    assert len(held) == 1
    # The slow one was given up when the later edit went out; answering it now must change nothing.
    assert [url for url in ended if "batch=111" in url]
    held[0].continue_()
    page.unroute(PART)
    expect(page).to_have_url(re.compile(r"[?&]batch=222"))
    batch.fill("223")
    expect(caption(page)).to_contain_text("batch 223")
    expect(page.locator("#lab-result")).not_to_have_attribute("aria-busy", "true")


def test_a_wrong_value_is_named_beside_its_field(open_page: Opener, watch: Watch) -> None:
    watch.expect("status of 422")
    page = open_page("/explore")
    page.evaluate("window.stayed = true")
    said = answer_of(page)
    batch = page.locator("#f-batch")
    batch.fill("many")
    message = page.locator("#lab-error-batch")
    expect(message).to_contain_text("many")
    expect(batch).to_be_focused()
    expect(batch).to_have_value("many")
    field, below = batch.bounding_box(), message.bounding_box()
    assert field is not None
    assert below is not None
    assert 0 <= below["y"] - field["y"] < 120, "the message stands under its field"
    expect(page.locator("#lab-result .answer")).to_have_text(said)
    expect(page.locator("#lab-problem")).to_contain_text("last answer")
    batch.fill("16")
    expect(message).to_be_empty()
    expect(page.locator("#lab-problem")).to_be_empty()
    expect(caption(page)).to_contain_text("batch 16,")
    assert page.evaluate("window.stayed")


def test_leaving_and_coming_back_shows_the_same_state(open_page: Opener) -> None:
    page = open_page("/")
    page.get_by_role("navigation", name="Areas").get_by_role("link", name="Explore").click()
    page.locator("#f-batch").fill("80")
    expect(caption(page)).to_contain_text("batch 80")
    expect(page).to_have_url(re.compile(r"batch=80"))
    said, address = answer_of(page), page.url
    page.get_by_role("navigation", name="Areas").get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    page.go_back()
    expect(page).to_have_url(address)
    expect(page.locator("#f-batch")).to_have_value("80")
    expect(page.locator("#lab-result .answer")).to_have_text(said)
    # Edits do not fill the history: one step back is where the reader came from.
    page.go_back()
    expect(page).to_have_url(re.compile(r"/$"))


def test_the_address_opens_the_same_state_elsewhere(open_page: Opener) -> None:
    page = open_page("/explore")
    page.get_by_label("Device", exact=True).select_option("nvidia-h200-sxm")
    page.locator("#f-context").fill("8k")
    expect(caption(page)).to_contain_text("context 8,192")
    expect(caption(page)).to_contain_text("H200")
    other = open_page(page.url)
    expect(caption(other)).to_have_text(caption(page).inner_text())
    expect(other.locator("#lab-result .answer")).to_have_text(answer_of(page))
