"""YAML as benchmark tools write it: mappings, lists and scalars, with the same bounds and checks as JSON.

The text is hostile: it is read event by event with libyaml, tags that construct objects are refused, an alias counts
with everything it stands for, and depth, number of values and size are bounded before they cost.
"""

from __future__ import annotations

import re
from typing import Any

import yaml  # type: ignore[import-untyped]  # it ships without types

from app.importers.base import UnreadableUpload
from app.importers.reading import Limits, shown

MAX_BYTES = 16 * 2**20
"""YAML takes some fifty times as long to read as JSON; every tool that writes it offers JSON as well."""

MAX_ITEMS = 1_000_000

_INT = re.compile(r"[-+]?\d{1,300}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d{1,5})?", re.ASCII)
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NON_FINITE = {".nan": "nan", ".inf": "inf", "-.inf": "-inf", "+.inf": "inf"}
_PLAIN_TAGS = re.compile(r"tag:yaml\.org,2002:(?:str|int|float|bool|null|map|seq|timestamp|python/tuple)")


class _Damaged(Exception):
    """The text is no YAML that is read here; the message says why."""


def read_yaml(text: str, limits: Limits) -> Any:
    """The first document of the text. Raises UnreadableUpload for what is damaged, too large, too deep or ambiguous."""
    if len(text) > MAX_BYTES:
        raise UnreadableUpload(
            "too-large",
            f"The YAML file is larger than {MAX_BYTES // 2**20} MiB.",
            hint="Write the report as JSON: the tool offers both, and JSON is read much faster.",
        )
    try:
        return _Builder(limits).build(text)
    except _Damaged as error:
        raise UnreadableUpload(
            "damaged", f"This looks like YAML that is not read here: {error}.", hint="Write the report as JSON."
        ) from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" on line {where.line + 1}" if where is not None else ""
        raise UnreadableUpload(
            "damaged",
            f"This looks like YAML that is damaged{line}.",
            hint="If the writer or the copy was interrupted, upload the whole file; or write the report as JSON.",
        ) from None


class _Builder:
    """Objects out of events. A frame is a container, its size so far, its anchor and the key that waits for a value."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._items = 0
        self._anchors: dict[str, tuple[Any, int]] = {}

    def build(self, text: str) -> Any:
        stack: list[_Frame] = []
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._check_tag(event.tag)
                if len(stack) >= self._limits.max_depth:
                    raise UnreadableUpload(
                        "too-deep",
                        f"The YAML is nested more than {self._limits.max_depth} levels deep.",
                        hint="No benchmark format needs that; upload the file as the tool wrote it.",
                    )
                self._count(1)
                made: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
                stack.append(_Frame(made, event.anchor, self._items))
                continue
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                frame = stack.pop()
                value, size = frame.value, self._items - frame.begin + 1
                if frame.anchor:
                    self._anchors[frame.anchor] = (value, size)
            elif isinstance(event, yaml.ScalarEvent):
                self._check_tag(event.tag)
                self._count(1)
                value = _scalar(event)
                if event.anchor:
                    self._anchors[event.anchor] = (value, 1)
            elif isinstance(event, yaml.AliasEvent):
                known = self._anchors.get(event.anchor)
                if known is None:
                    raise _Damaged(f"{shown(event.anchor, 40)} is used before it ends")
                value, size = known
                self._count(size)
            else:
                continue
            if not stack:
                return value
            stack[-1].put(value)
        return None

    def _count(self, more: int) -> None:
        self._items += more
        if self._items > min(MAX_ITEMS, self._limits.max_items):
            raise UnreadableUpload(
                "too-large",
                f"The YAML holds more than {min(MAX_ITEMS, self._limits.max_items)} values.",
                hint="Write the report as JSON, or without single requests.",
            )

    def _check_tag(self, tag: str | None) -> None:
        if tag is not None and tag != "!" and not _PLAIN_TAGS.fullmatch(tag):
            raise _Damaged(f"it asks for an object of the kind {shown(tag, 60)}")


class _Frame:
    __slots__ = ("anchor", "begin", "key", "value", "wants_key")

    def __init__(self, value: Any, anchor: str | None, begin: int) -> None:
        self.value = value
        self.anchor = anchor
        self.begin = begin
        self.key = ""
        self.wants_key = True

    def put(self, value: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.wants_key:
            if isinstance(value, (dict, list)):
                raise _Damaged("a key is no plain text")
            self.key = value if isinstance(value, str) else str(value)
            self.wants_key = False
        else:
            if self.key in self.value and self.value[self.key] != value:
                raise UnreadableUpload(
                    "duplicate-key",
                    f"The key {shown(self.key)} stands twice in one mapping with different values.",
                    hint="Remove one of the two: it cannot be known which is meant.",
                )
            self.value[self.key] = value
            self.wants_key = True


def _scalar(event: Any) -> Any:
    text: str = event.value
    if len(text) > 320 or event.style in ("'", '"', "|", ">") or (event.tag or "").endswith(":str"):
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if text.lower() in _NON_FINITE:
        return float(_NON_FINITE[text.lower()])
    return text
