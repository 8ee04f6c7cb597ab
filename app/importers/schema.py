"""A checker for the part of JSON Schema (2020-12) that our own format uses.

The published schema is the only statement of the rules: the same object is served to people and checked here, with
messages that say what to do. Keywords that are not listed in KEYWORDS would be ignored, so a test forbids them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from app.importers.reading import pointer, shown

Schema: TypeAlias = Mapping[str, Any]
Problem: TypeAlias = tuple[str, str]

KEYWORDS = frozenset(
    {
        "$schema",
        "$id",
        "title",
        "description",
        "type",
        "const",
        "enum",
        "properties",
        "required",
        "additionalProperties",
        "minProperties",
        "maxProperties",
        "items",
        "minItems",
        "maxItems",
        "minimum",
        "exclusiveMinimum",
        "maximum",
        "minLength",
        "maxLength",
    }
)

_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def problems(value: Any, schema: Schema, at: str = "") -> Iterator[Problem]:
    """Every violation as (JSON pointer, message), in document order. The root's pointer is empty."""
    types = schema.get("type")
    if types is not None:
        allowed: Sequence[str] = [types] if isinstance(types, str) else types
        if not any(_is(value, name) for name in allowed):
            yield at, f"must be {' or '.join(_WORDS[name] for name in allowed)}, not {_kind(value)}"
            return
    if "const" in schema and not _equal(value, schema["const"]):
        yield at, f"must be {schema['const']!r}"
    if "enum" in schema and not any(_equal(value, known) for known in schema["enum"]):
        known = ", ".join(str(k) for k in schema["enum"])
        yield at, f"must be one of {known}" + (f", not {shown(value)}" if isinstance(value, str) else "")
    if isinstance(value, dict):
        yield from _object_problems(value, schema, at)
    elif isinstance(value, list):
        yield from _list_problems(value, schema, at)
    elif isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield at, "must not be empty"
        if len(value) > schema.get("maxLength", math.inf):
            yield at, f"must have at most {schema['maxLength']} characters"
    elif _is(value, "number"):
        yield from _number_problems(value, schema, at)


def _object_problems(value: dict[str, Any], schema: Schema, at: str) -> Iterator[Problem]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield at, f"lacks {name}"
    if len(value) < schema.get("minProperties", 0):
        yield at, "must not be empty"
    if len(value) > schema.get("maxProperties", math.inf):
        yield at, f"must have at most {schema['maxProperties']} fields"
    for name, child in value.items():
        below = pointer(at, name)
        if name in properties:
            yield from problems(child, properties[name], below)
        elif rest is False:
            near = difflib.get_close_matches(name[:60], properties, n=1)
            yield below, f"is not a known field{f' (did you mean {near[0]}?)' if near else ''}"
        elif isinstance(rest, Mapping):
            yield from problems(child, rest, below)


def _list_problems(value: list[Any], schema: Schema, at: str) -> Iterator[Problem]:
    if len(value) < schema.get("minItems", 0):
        yield at, f"must have at least {schema['minItems']} item(s)"
    if len(value) > schema.get("maxItems", math.inf):
        yield at, f"must have at most {schema['maxItems']} items"
        return
    items: Schema = schema.get("items", {})
    if items:
        for index, item in enumerate(value):
            yield from problems(item, items, pointer(at, index))


def _number_problems(value: float, schema: Schema, at: str) -> Iterator[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        return  # becomes a missing value with a note, wherever it stands
    if value < schema.get("minimum", -math.inf):
        yield at, f"must be at least {schema['minimum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield at, f"must be above {schema['exclusiveMinimum']}"
    if value > schema.get("maximum", math.inf):
        yield at, f"must be at most {schema['maximum']}"


def _is(value: Any, name: str) -> bool:
    if name == "object":
        return isinstance(value, dict)
    if name == "array":
        return isinstance(value, list)
    if name == "string":
        return isinstance(value, str)
    if name == "boolean":
        return isinstance(value, bool)
    if name == "null":
        return value is None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return name == "number" or isinstance(value, int) or (math.isfinite(value) and value == int(value))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return f"the text {shown(value, 40)}"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else (str(value) if abs(value) < 10**20 else "a huge number")
    return _WORDS["object"] if isinstance(value, dict) else _WORDS["array"] if isinstance(value, list) else "null"


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
