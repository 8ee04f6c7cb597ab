"""The form that builds a comparison: what an address or a posted form says, kept as typed, and as a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import FormData, QueryParams

from app.domain.errors import InvalidInput
from app.services.compare import MAX_ITEMS, ComparisonRequest
from app.services.compare_communication import CALLS
from app.services.compare_pages import PAGES
from app.web.errors import must
from app.web.rendering import query
from app.web.security import NotStrictJson, check_json

MAX_ADDRESS = 8000
"""Longest address that an edit is redirected to; a longer state is shown without changing the address."""


@dataclass(frozen=True, slots=True)
class BuiltItem:
    """One row of the form: a run's id or an estimate's request, with what a person typed about it.

    `question` is the kind of an estimate that its request does not tell: overlap, exposed, pipeline, memory, kv or moe.
    """

    kind: str
    run: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""
    label: str = ""
    book_as: str = ""

    def body(self) -> dict[str, Any]:
        """As the API takes it."""
        body: dict[str, Any] = {"run": self.run}
        if self.kind == "estimate":
            # an operation's body names it; a step's has a workload instead
            kind = self.question or ("op" if "op" in self.request else "bound")
            body = {"estimate": {"kind": kind, "request": dict(self.request)}}
        if self.label.strip():
            body["label"] = self.label
        if self.book_as:
            body["book_as"] = self.book_as
        return body

    def tray(self) -> dict[str, Any]:
        """As the tray and the form's address hold it."""
        what = {"kind": "run", "id": self.run} if self.kind == "run" else {"kind": "estimate", "request": self.request}
        if self.question:
            what["estimate"] = self.question
        return what | {"label": self.label} | ({"book_as": self.book_as} if self.book_as else {})


@dataclass(frozen=True, slots=True)
class ComparisonForm:
    """The whole form as typed. `errors` are (field, message); the field is an element's id, empty for the form."""

    title: str = ""
    notes: str = ""
    baseline: int = 0
    items: tuple[BuiltItem, ...] = ()
    search: str = ""
    errors: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        """The address of this state."""
        items = json.dumps([item.tray() for item in self.items], ensure_ascii=False, separators=(",", ":"))
        return query(
            "/comparisons/new",
            title=self.title,
            notes=self.notes,
            baseline=self.baseline or None,
            q=self.search,
            items=items if self.items else None,
        )

    def request(self, title: str | None = None) -> ComparisonRequest:
        """As the API takes it. Raises ValidationError."""
        return ComparisonRequest.model_validate(
            {
                "title": self.title if title is None else title,
                "notes": self.notes,
                "baseline": self.baseline,
                "items": [item.body() for item in self.items],
            }
        )

    def error_of(self, name: str) -> str:
        return next((message for where, message in self.errors if where == name), "")

    def refused(self, error: ValidationError | InvalidInput) -> ComparisonForm:
        """The same form with what was wrong with it."""
        return replace(self, errors=(*self.errors, *_messages(error)))


def read_form(values: QueryParams | FormData) -> ComparisonForm:
    """Read an address or a posted form: `items` of the tray, `run` any number of times, and the form's own rows."""
    errors: list[tuple[str, str]] = []
    items: list[BuiltItem] = []
    for text in _texts(values, "items")[:1]:
        try:
            found = _json(text)
        except ValueError:
            found = None
        if not isinstance(found, list):
            errors.append(("", "The list of items in the address cannot be read: add them anew."))
            continue
        for entry in found:
            item = _tray_item(entry)
            if item is None:
                errors.append(("", "An entry of the tray is neither a run nor an estimate and was left out."))
            else:
                items.append(item)
    items += [BuiltItem("run", run=id_) for id_ in _texts(values, "run") if id_.strip()]
    labels, books = _texts(values, "label"), _texts(values, "book_as")
    for number, text in enumerate(_texts(values, "item")):
        try:
            item = _tray_item(_json(text))
        except ValueError:
            item = None
        if item is None:
            errors.append(("", f"Item {number + 1} of the form cannot be read and was left out."))
            continue
        label = labels[number] if number < len(labels) else item.label
        book = books[number] if number < len(books) else item.book_as
        items.append(replace(item, label=label, book_as=book))
    if len(items) > MAX_ITEMS:
        errors.append(("", f"A comparison holds at most {MAX_ITEMS} items; {len(items) - MAX_ITEMS} were left out."))
    kept = tuple(items[:MAX_ITEMS])
    return ComparisonForm(
        title=_text(values, "title"),
        notes=_text(values, "notes"),
        baseline=_place(_text(values, "baseline"), len(kept)),
        items=kept,
        search=_text(values, "q")[:200],
        errors=tuple(dict.fromkeys(errors)),
    )


def edited(form: ComparisonForm, action: str, added: Sequence[str]) -> ComparisonForm:
    """The form after one of its buttons: remove:N, up:N, down:N, or add with the ids of the chosen runs."""
    verb, _, place = action.partition(":")
    items = list(form.items)
    number = int(place) if place.isascii() and place.isdigit() and len(place) < 4 else -1
    baseline = items[form.baseline] if items else None
    if verb == "remove" and 0 <= number < len(items):
        gone = items.pop(number)
        if gone is baseline:
            baseline = items[0] if items else None
    other = number - 1 if verb == "up" else number + 1
    if verb in ("up", "down") and 0 <= number < len(items) and 0 <= other < len(items):
        items[number], items[other] = items[other], items[number]
    known = {item.run for item in items if item.kind == "run"}
    items += [BuiltItem("run", run=id_) for id_ in dict.fromkeys(added) if id_ not in known]
    items = items[:MAX_ITEMS]
    place_now = next((place for place, item in enumerate(items) if item is baseline), 0)
    return replace(form, items=tuple(items), baseline=place_now)


def _texts(values: QueryParams | FormData, name: str) -> list[str]:
    return [value for value in values.getlist(name) if isinstance(value, str)]


def _text(values: QueryParams | FormData, name: str) -> str:
    found = _texts(values, name)
    return found[-1] if found else ""


def _place(text: str, count: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    return number if number < count else 0


def _json(text: str) -> Any:
    """Strict JSON, or ValueError."""
    try:
        check_json(text.encode("utf-8", "surrogatepass"))
    except NotStrictJson as error:
        raise ValueError(str(error)) from error
    return json.loads(text)


def _tray_item(entry: Any) -> BuiltItem | None:
    if not isinstance(entry, dict):
        return None
    label = entry.get("label") if isinstance(entry.get("label"), str) else ""
    book = entry.get("book_as") if isinstance(entry.get("book_as"), str) else ""
    if entry.get("kind") == "run" and isinstance(entry.get("id"), str):
        return BuiltItem("run", run=entry["id"], label=label or "", book_as=book or "")
    if entry.get("kind") == "estimate" and isinstance(entry.get("request"), dict):
        asked = entry.get("estimate")
        question = asked if isinstance(asked, str) and (asked in CALLS or asked in PAGES) else ""
        return BuiltItem("estimate", request=entry["request"], question=question, label=label or "", book_as=book or "")
    return None


def _messages(error: ValidationError | InvalidInput) -> list[tuple[str, str]]:
    if isinstance(error, InvalidInput):
        return [_message(error.loc, error.reason)]
    return [_message(tuple(one["loc"]), must(one["msg"])) for one in error.errors()[:10]]


def _message(loc: tuple[str | int, ...], reason: str) -> tuple[str, str]:
    """Which element of the form a place in the request belongs to, and what to say beside it."""
    said = reason[:1].upper() + reason[1:]
    if loc[:1] in (("title",), ("notes",), ("baseline",)):
        if loc[0] == "title" and "at least 1 character" in reason:
            said = "Give the comparison a title: it is what a reader sees first."
        return str(loc[0]), said
    if len(loc) >= 2 and loc[0] == "items" and isinstance(loc[1], int):
        last = str(loc[-1])
        return (f"label-{loc[1]}" if last == "label" else f"item-{loc[1]}"), said
    if loc[:1] == ("items",):
        return "", "Add at least one run or estimate."
    return "", f"{'.'.join(map(str, loc))}: {reason}"
