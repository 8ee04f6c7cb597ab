"""What a test sees on an open page: its charts, what sticks out sideways, what axe-core calls grave."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from playwright.sync_api import Page, expect

CHARTS = "figure[data-chart]"
AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")
SHORTEN = """alike => {
  for (const parent of document.querySelectorAll('main, main *:not(svg, svg *, pre *)')) {
    const seen = new Map()
    for (const child of [...parent.children]) {
      const kind = `${child.tagName} ${child.className}`
      const number = (seen.get(kind) ?? 0) + 1
      seen.set(kind, number)
      if (number > alike) child.remove()
    }
  }
}"""
ALIKE = 8
"""Of rows, cards and options that one template makes, so many stand for all of them."""


def drawn(page: Page) -> int:
    """Wait until every chart that can be seen is drawn; how many there are."""
    figures = page.locator(f"{CHARTS}:visible")
    number = figures.count()
    for index in range(number):
        expect(figures.nth(index).locator(".main-svg").first).to_be_visible()
    return number


def width_beyond(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def barriers(page: Page) -> list[str]:
    """What axe-core finds serious or critical on the page as it looks now, a line each; the page is of no use later.

    Long lists are cut first: the time it takes grows with their length, what it finds does not.
    """
    page.evaluate(SHORTEN, ALIKE)
    # The tool evaluates text, which the page's policy forbids its own scripts; evaluated from outside, it may.
    page.evaluate(_axe())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{fault['id']} ({fault['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]


@cache
def _axe() -> str:
    return AXE.read_text(encoding="utf-8")
