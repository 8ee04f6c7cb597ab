"""Twenty files dropped at once, a folder's worth: twenty answers in their order, with one summary."""

from __future__ import annotations

import base64
import json

from playwright.sync_api import expect

from tests.browser.conftest import Opener, Watch
from tests.browser.pages import vllm_result

DROP = """([zone, files]) => {
    const carried = new DataTransfer();
    for (const [name, content] of files)
        carried.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name));
    for (const kind of ["dragover", "drop"])
        zone.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


def test_twenty_files_give_twenty_answers_and_a_table_is_asked_about(open_page: Opener, watch: Watch) -> None:
    sent = [(f"{number:02}.json", vllm_result(duration=60.0 + number / 100)) for number in range(20)]
    sent[4] = ("04.json", b'{"epoch": 3}')
    sent[9] = ("09.csv", b"engine;latency (ms)\nmine;12,5\nyours;13,5\n")
    page = open_page("/runs")
    zone = page.locator("form[data-drop]").element_handle()
    page.evaluate(DROP, [zone, [[name, base64.b64encode(content).decode()] for name, content in sent]])
    answers = page.locator(".runs-answer")
    expect(answers).to_have_count(20)
    for number, (name, _) in enumerate(sent):
        expect(answers.nth(number)).to_contain_text(name)
    expect(page.locator(".runs-answers .answer")).to_have_text(
        "20 files: 18 read, with 18 runs, 1 kept until its columns are explained, 1 refused."
    )
    expect(answers.nth(4)).to_contain_text("nothing was stored")

    answers.nth(9).get_by_role("link", name="Say what the columns mean").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("What do these columns mean?")
    column = page.get_by_role("group", name="latency (ms)")
    expect(column.get_by_label("Metric", exact=True)).to_have_value("latency_s")
    column.get_by_label("Meaning").select_option("ignore")
    expect(column.get_by_label("Metric", exact=True)).to_be_hidden()
    column.get_by_label("Meaning").select_option("metric")
    page.get_by_role("button", name="Read the file by this").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("mine")
    assert json.loads(page.request.get(f"{watch.base}/api/v1/mappings").text())["total"] == 1
