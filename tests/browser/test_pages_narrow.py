"""Every page on a phone: no sideways scrolling, nothing grave for readers, a quiet console."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener, Watch
from tests.browser.looking import barriers, drawn, width_beyond
from tests.browser.pages import NAMES, Stored, address


@pytest.mark.parametrize("name", NAMES)
def test_a_page_on_a_phone(open_page: Opener, watch: Watch, stored: Stored, name: str) -> None:
    if name == "missing":
        watch.expect("status of 404")
    page = open_page(address(name, stored), width=360, height=740, has_touch=True, is_mobile=True, color_scheme="light")
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    drawn(page)
    assert width_beyond(page) <= 0, "the page scrolls sideways"
    # Everything that folds, unfolded.
    page.evaluate("document.querySelectorAll('main details').forEach(part => { part.open = true })")
    drawn(page)
    assert width_beyond(page) <= 0, "the page scrolls sideways when everything is unfolded"
    assert not (found := barriers(page)), "\n".join(found)
