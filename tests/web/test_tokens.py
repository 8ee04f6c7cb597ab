"""Contrast of the colours in tokens.css (WCAG 2 formula): text 4.5:1, chart marks and control frames 3:1."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from app.web.rendering import RESOURCES, STATIC

THEMES = ("light", "dark")
PAPERS = ("paper", "surface", "sunken")
TEXT = ("ink", "ink-quiet", "ink-faint", "accent", "accent-hover", "chart-text", "bad", "warn", "good", "info")
MARKS = ("edge", "focus", "chart-axis", "chart-mark")
SOFT = ("bad", "warn", "good", "info")

CSS = (STATIC / "css" / "tokens.css").read_text(encoding="utf-8")


def colours() -> dict[str, tuple[str, str]]:
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", CSS)
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_formula_itself() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("paper", PAPERS)
def test_text_can_be_read(theme: str, paper: str) -> None:
    all_colours, index = colours(), THEMES.index(theme)
    names = [*TEXT, *(f"resource-{known.key}-text" for known in RESOURCES)]
    ratios = {name: contrast(all_colours[name][index], all_colours[paper][index]) for name in names}
    assert not {name: ratio for name, ratio in ratios.items() if ratio < 4.5}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("paper", PAPERS)
def test_marks_can_be_seen(theme: str, paper: str) -> None:
    all_colours, index = colours(), THEMES.index(theme)
    names = [*MARKS, *(f"resource-{known.key}" for known in RESOURCES)]
    names += [name for name in all_colours if name.startswith("object-")]
    ratios = {name: contrast(all_colours[name][index], all_colours[paper][index]) for name in names}
    assert not {name: ratio for name, ratio in ratios.items() if ratio < 3}


@pytest.mark.parametrize("theme", THEMES)
def test_text_on_coloured_grounds_can_be_read(theme: str) -> None:
    all_colours, index = colours(), THEMES.index(theme)
    pairs = [(name, f"{name}-soft") for name in SOFT]
    pairs += [("on-accent", "accent"), ("on-accent", "accent-hover"), ("accent", "selected"), ("ink", "selected")]
    pairs += [("ink", "hover"), ("ink-quiet", "hover"), *(("ink", f"{name}-soft") for name in SOFT)]
    ratios = {pair: contrast(all_colours[pair[0]][index], all_colours[pair[1]][index]) for pair in pairs}
    assert not {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5}


@pytest.mark.parametrize("theme", THEMES)
def test_each_resource_has_a_colour_of_its_own(theme: str) -> None:
    all_colours, index = colours(), THEMES.index(theme)
    own = [all_colours[f"resource-{known.key}"][index] for known in RESOURCES]
    own += [all_colours["accent"][index]]
    for one, other in itertools.combinations(own, 2):
        distance = sum((int(one[i : i + 2], 16) - int(other[i : i + 2], 16)) ** 2 for i in (1, 3, 5)) ** 0.5
        assert distance > 50, (one, other)


def test_every_property_that_is_used_is_defined() -> None:
    css = CSS + (STATIC / "css" / "app.css").read_text(encoding="utf-8")
    defined = set(re.findall(r"(--[\w-]+)\s*:", css))
    given_by_templates = {"--chart-height"}
    used = set(re.findall(r"var\((--[\w-]+)", css))
    charts = Path(__file__).resolve().parents[2] / "app" / "charts"
    for file in charts.glob("*.py"):
        used |= set(re.findall(r"var\((--[\w-]+)\)", file.read_text(encoding="utf-8")))
    used |= set(re.findall(r'token\("(--[\w-]+[\w])"', (STATIC / "js" / "charts.js").read_text(encoding="utf-8")))
    assert not used - defined - given_by_templates
