"""Figures and table rows as markup, for macros/figure.html and macros/table.html.

A page of the lab holds hundreds of cells. Written as template macros they took most of the time of an answer, so the
cells are put together here; everything else about figures and tables is a template. Whatever is not markup already is
escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from numbers import Number
from typing import Any, Final, NamedTuple

from jinja2 import Environment
from markupsafe import Markup
from markupsafe import escape as escape_markup

from app.web import formatting
from app.web.formatting import Human, Scale

NONE: Final = Markup('<span class="fig-none">{}</span>').format(formatting.NOT_REPORTED)


_special = re.compile("[&<>\"']").search


def escape(value: object) -> str:
    """As markupsafe does it, a good deal faster for the many short texts that need no escaping."""
    if isinstance(value, Markup):
        return value.__html__()
    text = str(value)
    return str(escape_markup(text)) if _special(text) else text


class _Column(NamedTuple):
    """What all cells of a column share. `opening` stands before the attributes of a cell, `closing` after it.

    `unit` is what follows an exact number, escaped and with its space, or empty.
    """

    scale: Scale | None
    opening: str
    closing: str
    unit: str


class Cells:
    """Makes cells; badges come from macros/badge.html, so that they look alike everywhere."""

    def __init__(self, env: Environment, provenance: Callable[[object], Any]) -> None:
        self._env = env
        self._provenance = provenance
        self._badge_of_resource = lru_cache(maxsize=64)(self._resource_badge)

    def figure(
        self,
        value: object,
        unit: str = "1",
        source: object = None,
        badge: bool | str = "auto",
        decimal: bool = False,
        bare: bool = False,
    ) -> Markup:
        """A number with where it comes from: see macros/figure.html."""
        human = value if isinstance(value, Human) else formatting.quantity(value, unit, decimal=decimal)
        origin = None if source is None else self._provenance(source)
        if not human.exact and not origin:
            return Markup(f'<span class="fig-none">{escape(str(human))}</span>')
        exact, kind = escape(human.exact), "" if human.exact else " fig-none"
        said, told = "", exact
        if origin:
            sentence = escape(origin.sentence)
            said = f' data-origin="{sentence}"' + (f' data-origin-url="{escape(origin.url)}"' if origin.url else "")
            told = " · ".join(part for part in (exact, sentence) if part)
        text = escape(human.text if bare else str(human))
        made = (
            f'<span class="fig{kind}" tabindex="0" data-exact="{exact}"{said} title="{told}">'
            f'<span class="fig-text">{text}</span></span>'
        )
        if origin and (badge is True or (badge == "auto" and origin.weak)):
            made += f" {self._macro('source_badge', origin.kind)}"
        return Markup(made)

    def rows(
        self,
        columns: Sequence[Mapping[str, Any]],
        rows: Sequence[Sequence[object]],
        scales: Sequence[Scale | None],
    ) -> Markup:
        """The rows of a table's body: see macros/table.html."""
        shared = [
            _column(column, scale, index == 0)
            for index, (column, scale) in enumerate(zip(columns, scales, strict=True))
        ]
        made = []
        for row in rows:
            made.append("<tr>")
            for column, cell in zip(shared, row, strict=False):
                if type(cell) is float and isfinite(cell):
                    made.append(_number_cell(cell, column))
                elif type(cell) is str:
                    made.append(f"{column.opening}>{escape(cell)}{column.closing}")
                else:
                    content = self._content(cell, column.scale)
                    made.append(f"{column.opening}{_attributes(cell)}>{content}{column.closing}")
            made.append("</tr>\n")
        return Markup("".join(made))

    def _content(self, cell: Any, scale: Scale | None) -> str:
        if cell is None:
            return NONE
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        if isinstance(cell, (float, int)):
            return self._number(cell, scale)
        if isinstance(cell, str):
            return escape(cell)
        if isinstance(cell, Human):
            return self.figure(cell)
        if isinstance(cell, Number):
            return self._number(cell, scale)
        if not isinstance(cell, Mapping):
            return escape(cell)
        if cell.get("resource"):
            made: str = self._badge_of_resource(cell["resource"])
        elif "markup" in cell:
            made = escape(cell["markup"])
        elif "text" in cell:
            made = escape(cell["text"])
            if cell.get("href"):
                made = f'<a href="{escape(cell["href"])}">{made}</a>'
        elif "value" in cell:
            source = cell.get("source")
            if cell.get("unit"):
                made = self.figure(cell["value"], cell["unit"], source, decimal=bool(cell.get("decimal")))
            elif scale:
                made = self.figure(scale.show(cell["value"]), "", source, bare=True)
            else:
                made = self.figure(cell["value"], "1", source)
        else:
            made = ""
        if cell.get("badge"):
            made = f"{made} {self._macro('badge', cell['badge'], cell.get('badge_kind', 'neutral'))}"
        if cell.get("note"):
            made = f'{made}<span class="cell-note">{escape(cell["note"])}</span>'
        return made

    def _number(self, value: Any, scale: Scale | None) -> str:
        return escape(formatting.significant(value)) if scale is None else self.figure(scale.show(value), bare=True)

    def _resource_badge(self, key: str) -> str:
        return str(self._macro("resource_badge", key))

    def _macro(self, name: str, *arguments: object) -> Markup:
        module = self._env.get_template("macros/badge.html").module
        return Markup(getattr(module, name)(*arguments))


def _column(column: Mapping[str, Any], scale: Scale | None, first: bool) -> _Column:
    numeric = bool(column.get("numeric")) or scale is not None
    tag = "th" if column.get("head", first and not numeric) else "td"
    classes = " ".join(name for name, on in (("num", numeric), ("wrap", column.get("wrap"))) if on)
    opening = f"<{tag}" + (' scope="row"' if tag == "th" else "") + (f' class="{classes}"' if classes else "")
    unit = "" if scale is None else escape(formatting.exact(0.0, scale.unit)).removeprefix("0")
    return _Column(scale, opening, f"</{tag}>", unit)


def _number_cell(value: float, column: _Column) -> str:
    """The cell of a plain number, which most cells are: the same as the general way makes, without its detours."""
    scale = column.scale
    digits = formatting.digits(value)
    if scale is None:
        return f'{column.opening} data-value="{digits}">{formatting.significant(value)}{column.closing}'
    text = formatting.significant(value / scale.factor, padded=scale.padded)
    exact = digits + column.unit
    return (
        f'{column.opening} data-value="{digits}"><span class="fig" tabindex="0" data-exact="{exact}" title="{exact}">'
        f'<span class="fig-text">{text}</span></span>{column.closing}'
    )


def _attributes(cell: Any) -> str:
    """What a cell sorts by, and what stands on hover."""
    if cell is None or isinstance(cell, (str, bool)):
        return ""
    if isinstance(cell, (float, int)):
        plain = formatting.digits(float(cell)) if isinstance(cell, float) and isfinite(cell) else cell
        return f' data-value="{plain}"'
    if isinstance(cell, Mapping):
        value, title = cell.get("value"), cell.get("title")
        made = "" if value is None else f' data-value="{escape(value)}"'
        return made if title is None else f'{made} title="{escape(title)}"'
    if isinstance(cell, Number):
        return f' data-value="{escape(cell)}"'
    if isinstance(cell, Human) and cell.exact:
        return f' data-value="{escape(cell.exact.split(" ")[0])}"'
    return ""
