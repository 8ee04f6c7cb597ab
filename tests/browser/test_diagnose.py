"""From a run's triage through the walk to a shared diagnosis, with the keyboard's and the reader's view on the way."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.browser.conftest import Opener

RUN = {
    "name": "Llama decode, batch 1",
    "hardware": "nvidia-h200-sxm",
    "model": "llama-3.1-8b",
    "workload": {"phase": "decode", "batch": 1, "context_len": 511, "parallel": {"tp": 1}, "launch_mode": "graph"},
    "metrics": {"tpot_s": {"p50": 0.0091}},
}


def test_from_triage_to_a_shared_walk(open_page: Opener) -> None:
    page = open_page("/runs")
    content = json.dumps({"bytebound": 1, "runs": [RUN]}).encode()
    page.locator(".drop-input").set_input_files({"name": "own.json", "mimeType": "application/json", "buffer": content})
    expect(page).to_have_url(re.compile(r"/runs/[a-z0-9]+$"))
    triage = page.locator("#triage")
    expect(triage).to_contain_text("The tree asks first: Do sampling, scheduling and text take more than a tenth")
    triage.get_by_role("link", name="Walk the tree").click()

    question = page.locator("#now")
    expect(question.get_by_role("heading", level=2)).to_contain_text("Do sampling")
    expect(page.locator("#path > li")).to_have_count(10)
    question.get_by_label("Sampling, scheduling and text in TPOT").fill("24 %")
    question.get_by_role("button", name="Use this value").click()
    expect(page).to_have_url(re.compile(r"values=sampling_share%3A0\.24"))
    expect(page.locator("main .answer")).to_contain_text("Sample on the device")
    # a person's answer goes over the value, and can be taken back
    step = page.locator("#step-dc3")
    step.get_by_text("Change", exact=True).click()
    step.get_by_role("button", name="No", exact=True).click()
    expect(page.locator("#step-dc3")).to_contain_text("against the data, which say yes")
    page.go_back()
    expect(page.locator("main .answer")).to_contain_text("Sample on the device")

    page.get_by_label("Title").fill("Why is it slow?")
    page.get_by_role("button", name="Save and freeze").click()
    expect(page).to_have_url(re.compile(r"/diagnose/[a-z0-9]+$"))
    page.get_by_role("button", name="Create link").click()
    link = page.locator("#share-url")
    expect(link).to_be_visible()
    reader = open_page(link.input_value(), width=360)
    expect(reader.get_by_role("heading", level=1)).to_have_text("Why is it slow?")
    expect(reader.locator("#path > li")).to_have_count(11)
    expect(reader.locator("main form")).to_have_count(0)
