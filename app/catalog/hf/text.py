"""Pasted or uploaded text to a JSON object, strictly: what is wrong is told with its line and column."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from app.catalog.fields import Loc, json_type
from app.domain.errors import InvalidInput

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_TOKENS = 300_000

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|"')
_NOT_JSON = {
    "NaN": "NaN is no JSON number",
    "Infinity": "Infinity is no JSON number",
    "-Infinity": "-Infinity is no JSON number",
    "True": "JSON writes true in lower case",
    "False": "JSON writes false in lower case",
    "None": "JSON writes null, not None",
}


def read_config_text(text: str | bytes, loc: Loc = ("hf_config",)) -> dict[str, Any]:
    """The object that a `config.json` holds.

    Raises InvalidInput at `loc` for text that is no JSON object, with line and column; a key that occurs twice, NaN
    and nesting deeper than any configuration has are refused too.
    """
    if isinstance(text, bytes):
        if len(text) > MAX_BYTES:
            raise InvalidInput(loc, _too_long(len(text)))
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InvalidInput(loc, "is not UTF-8 text: give the config.json of the repository") from None
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES:
        raise InvalidInput(loc, _too_long(len(text)))
    if not text.strip():
        raise InvalidInput(loc, "is empty: paste the content of a config.json")
    _scan(text, loc)
    try:
        found = json.loads(text, parse_int=_integer)
    except json.JSONDecodeError as error:
        reason = f"{error.msg[0].lower()}{error.msg[1:]}"
        raise InvalidInput(
            loc, f"is not valid JSON: {reason} (line {error.lineno}, column {error.colno}){_hint(text, error.pos)}"
        ) from None
    except (ValueError, RecursionError):
        raise InvalidInput(loc, "is not valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidInput(loc, f"expected the object of a config.json, got {json_type(found)}")
    return found


def _scan(text: str, loc: Loc) -> None:
    """Look for what `json.loads` accepts in silence. Errors of syntax are left to it."""
    keys: list[set[str] | None] = []
    last_string: tuple[str, int] | None = None
    for number, match in enumerate(_TOKEN.finditer(text)):
        token, at = match.group(), match.start()
        if number > MAX_TOKENS:
            raise InvalidInput(loc, f"has more than {MAX_TOKENS:,} values: a config.json is short")
        if token[0] == '"':
            last_string = (token, at)
            continue
        if token == ":" and last_string is not None and keys and keys[-1] is not None:
            key, where = last_string
            if key in keys[-1]:
                raise InvalidInput(loc, f"has the key {key[:100]} twice in one object ({_place(text, where)})")
            keys[-1].add(key)
        elif token in "{[":
            keys.append(set() if token == "{" else None)
            if len(keys) > MAX_DEPTH:
                raise InvalidInput(loc, f"is nested deeper than {MAX_DEPTH} levels ({_place(text, at)})")
        elif token in "}]":
            if keys:
                keys.pop()
        elif token in _NOT_JSON:
            raise InvalidInput(loc, f"is not valid JSON: {_NOT_JSON[token]} ({_place(text, at)})")
        last_string = None


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"


def _hint(text: str, at: int) -> str:
    before, here = text[:at].rstrip()[-1:], text[at : at + 1]
    if here == "'":
        return ": JSON quotes with double quotes; this looks like Python"
    if here in ("}", "]") and before == ",":
        return ": remove the comma before it"
    if text[at : at + 2] in ("//", "/*") or here == "#":
        return ": JSON has no comments"
    return ""


def _integer(digits: str) -> int | float:
    # a number of thousands of digits is refused by the field that it stands in, not by Python's own limit
    return int(digits) if len(digits) <= 40 else math.copysign(math.inf, -1 if digits.startswith("-") else 1)


def _too_long(size: int) -> str:
    return f"is {size:,} bytes long: a config.json has a few kilobytes, at most {MAX_BYTES:,} are read"
