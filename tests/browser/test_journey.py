"""The whole way of a new user: a file on the drop zone, held against its bound, compared, shared, revoked."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opener, Watch
from tests.browser.pages import vllm_result

DROP = """([zone, name, content]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name));
    for (const kind of ["dragover", "drop"])
        zone.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


def drop(page: Page, name: str, content: bytes) -> None:
    zone = page.locator("form[data-drop]").element_handle()
    page.evaluate(DROP, [zone, name, base64.b64encode(content).decode()])


def test_from_drop_zone_to_shared_link(open_page: Opener, watch: Watch) -> None:
    page = open_page("/runs")
    drop(page, "serve-llama.json", vllm_result())
    expect(page).to_have_url(re.compile(r"/runs/[a-z0-9]+$"))
    run_address = page.url
    expect(page.get_by_text("vllm-bench-serve").first).to_be_visible()
    # Read off the file: 21 ms a token at the mean, 27.5 at p99, 1,000 tokens a second.
    expect(page.locator("main")).to_contain_text("Time per output token")
    expect(page.locator("main")).to_contain_text(re.compile(r"27\.5\s*ms"))
    expect(page.locator("main")).to_contain_text(re.compile(r"1,000\s*tokens/s"))

    page.get_by_label("Device", exact=True).fill("H100 SXM5 80GB")
    model = page.get_by_label("Model", exact=True)
    expect(model).to_have_value("Llama 3.1 8B")
    page.get_by_role("button", name=re.compile("bound|anew")).click()
    expect(page.locator("main")).to_contain_text(re.compile(r"Decode reaches \d+(\.\d+)?\s*% of its bound"))
    expect(page.locator("main")).to_contain_text("MBU")
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()

    page.get_by_role("button", name="Add to comparison").click()
    expect(page.locator("[data-tray-count]")).to_have_text("1")
    page.get_by_role("link", name="Open in the lab").click()
    expect(page.locator("#lab-result .answer")).to_contain_text("Decode is bound by")
    page.get_by_role("button", name="Add to comparison").click()
    expect(page.locator("[data-tray-count]")).to_have_text("2")

    page.locator("[data-tray] summary").click()
    page.locator("[data-tray-form]").get_by_role("button", name="Compare").click()
    expect(page.locator(".builder-item")).to_have_count(2)
    page.get_by_label("Title").fill("Served against its bound")
    page.get_by_role("button", name="Freeze").click()
    expect(page).to_have_url(re.compile(r"/comparisons/[a-z0-9]+$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Served against its bound")
    expect(page.locator("#metrics table").first).to_be_visible()
    expect(page.locator("#comparison-chart .main-svg").first).to_be_visible()

    page.get_by_role("button", name="Create link").click()
    link = page.locator("#share-url")
    expect(link).to_be_visible()
    address = link.input_value()
    said = page.locator("main .answer").first.inner_text()

    # What the link shows was frozen: a later edit of a part changes nothing.
    owner = open_page(run_address)
    owner.get_by_label("Device", exact=True).fill("H200 SXM")
    owner.get_by_role("button", name=re.compile("anew")).click()
    expect(owner.get_by_role("heading", level=1).locator("..")).to_contain_text("H200")

    reader = open_page(address)
    expect(reader.get_by_role("heading", level=1)).to_have_text("Served against its bound")
    expect(reader.locator("main .answer").first).to_have_text(said)
    expect(reader.locator("main")).to_contain_text("H100")
    expect(reader.get_by_role("navigation", name="Areas")).to_have_count(0)
    expect(reader.locator("main form[method=post]")).to_have_count(0)
    expect(reader.locator('meta[name="robots"]')).to_have_attribute("content", re.compile("noindex"))

    page.get_by_role("button", name=re.compile("^Revoke the link")).click()
    expect(page.locator(".share-list")).to_contain_text("revoked")
    watch.expect("status of 404")
    answer = reader.goto(address)
    assert answer is not None
    assert answer.status == 404
    expect(reader.locator("main")).not_to_contain_text("Served against its bound")


def test_the_same_file_twice_leads_to_the_same_run(open_page: Opener) -> None:
    content = vllm_result(date="20261122-120000")
    page = open_page("/runs")
    drop(page, "first.json", content)
    expect(page).to_have_url(re.compile(r"/runs/[a-z0-9]+$"))
    first = page.url
    page.goto("/runs")
    page.locator(".drop-input").set_input_files(
        {"name": "another-name.json", "mimeType": "application/json", "buffer": content}
    )
    expect(page).to_have_url(f"{first}?again=1")
    expect(page.locator("main")).to_contain_text("stored already")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", b"", "empty"),
        ("cut.json", vllm_result()[:200], "cut.json: nothing was stored"),
        ("other.json", b'{"epoch": 3}', "epoch"),
    ],
    ids=["empty", "cut off", "unknown"],
)
def test_a_file_that_cannot_be_read_is_explained_where_it_was_dropped(
    open_page: Opener, watch: Watch, name: str, content: bytes, said: str
) -> None:
    watch.expect("status of 422")
    page = open_page("/runs")
    drop(page, name, content)
    answer = page.locator("[data-drop-state]")
    expect(answer).to_contain_text(said)
    expect(answer.get_by_role("link", name="What can be read")).to_have_attribute("href", "/formats")
    expect(page).to_have_url(re.compile(r"/runs$"))
    # The next file goes through the same zone.
    drop(page, "good.json", vllm_result(date="20261123-080000"))
    expect(page).to_have_url(re.compile(r"/runs/[a-z0-9]+"))
