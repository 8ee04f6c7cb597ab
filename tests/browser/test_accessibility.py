"""axe-core on every page, narrow and wide, light and dark: nothing serious."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Opener, Watch
from tests.browser.pages import NAMES, Stored, address
from tests.browser.test_pages import drawn

AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")


def violations(page: Page) -> list[str]:
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{fault['id']} ({fault['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_serious(open_page: Opener, watch: Watch, stored: Stored, name: str) -> None:
    """Both widths and both themes in two rounds: wide and light, then narrow and dark."""
    if name == "missing":
        watch.expect("status of 404")
    page = open_page(address(name, stored), width=1440, color_scheme="light")
    drawn(page)
    # The tool evaluates text, which the page's policy forbids its own scripts; evaluated from outside, it may.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    faults = [f"1440 light: {fault}" for fault in violations(page)]
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 740})
    drawn(page)
    faults += [f"360 dark: {fault}" for fault in violations(page)]
    assert not faults, "\n".join(faults)
