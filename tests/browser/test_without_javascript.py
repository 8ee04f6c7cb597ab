"""Without JavaScript pages read and forms work."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, Watch
from tests.browser.pages import Stored, address, vllm_result

READ = ("landing", "lab", "run", "shared", "runs", "builder", "kv", "memory", "moe", "technique", "walked", "api")
"""One page of each kind. That every page has its heading and its tables in the HTML is tested without a browser."""


@pytest.mark.parametrize("name", READ)
def test_a_page_reads(open_page: Opener, stored: Stored, name: str) -> None:
    page = open_page(address(name, stored), java_script_enabled=False)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    twins = page.locator("figure[data-chart]:visible details.chart-table")
    expect(page.locator("figure[data-chart]:visible")).to_have_count(twins.count())
    for index in range(min(twins.count(), 2)):
        twins.nth(index).locator("summary").click()
        expect(twins.nth(index).locator("tbody tr").first).to_be_visible()
    # What only a script could do is not offered.
    expect(page.locator(".needs-js:visible")).to_have_count(0)


def test_the_lab_calculates(open_page: Opener) -> None:
    page = open_page("/explore", java_script_enabled=False)
    page.locator("#f-batch").fill("64")
    page.get_by_role("radio", name="Prefill").check()
    page.get_by_role("button", name="Calculate").click()
    expect(page).to_have_url(re.compile(r"phase=prefill.*batch=64|batch=64.*phase=prefill"))
    expect(page.locator("#lab-result .answer")).to_contain_text("Prefill")
    expect(page.locator("#f-batch")).to_have_value("64")


def test_a_wrong_value_is_explained(open_page: Opener, watch: Watch) -> None:
    watch.expect("status of 422")
    page = open_page("/explore", java_script_enabled=False)
    page.locator("#f-batch").fill("many")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#lab-error-batch")).to_contain_text("many")
    expect(page.locator("#f-batch")).to_have_value("many")


def test_upload_compare_and_share(open_page: Opener) -> None:
    page = open_page("/runs", java_script_enabled=False)
    page.locator(".drop-input").set_input_files(
        {"name": "plain.json", "mimeType": "application/json", "buffer": vllm_result(date="20261124-090000")}
    )
    page.get_by_role("button", name="Upload").click()
    expect(page).to_have_url(re.compile(r"/runs/[a-z0-9]+$"))
    page.locator("#run-about #f-name").fill("Uploaded without scripts")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Uploaded without scripts")

    page.goto("/comparisons/new")
    page.get_by_role("checkbox", name="Uploaded without scripts").check()
    page.get_by_role("button", name="Add the ticked runs").click()
    expect(page.locator(".builder-item")).to_have_count(1)
    page.get_by_label("Title").fill("Compared without scripts")
    page.get_by_role("button", name="Freeze").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compared without scripts")
    page.get_by_role("button", name="Create link").click()
    reader = open_page(page.locator("#share-url").input_value(), java_script_enabled=False)
    expect(reader.get_by_role("heading", level=1)).to_have_text("Compared without scripts")
