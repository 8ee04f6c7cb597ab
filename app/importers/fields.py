"""One object of a file, read field by field: every number keeps where it stood and what was written there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.domain.run import METRIC_UNITS, STATS, Finding, Metric
from app.importers.credentials import KEY_BEGINS
from app.importers.reading import clean, pointer

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NON_FINITE_WORDS = frozenset({"nan", "inf", "infinity", "-inf", "-infinity", "+inf", "-nan"})

_SECRET_NAME = re.compile(
    r"api_?key|secret|passw|credential|authorization|bearer|cookie|private|access_?key|(?:^|_)(?:auth|token)(?:_|$)|header"
    r"|(?:^|_)(?:env|user|username|host|hostname|email)(?:_|$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(rf"\b(?:{KEY_BEGINS}|Bearer\s)[\w-]{{8,}}|://[^/\s:@]+:[^/\s@]+@")

_SECRET_GIVEN = re.compile(
    r"(\b(?:[\w-]*(?:api[_-]?key|secret|passw\w*|credential|token))\b[\"']?\s*[=:]\s*)[^\s,;]+", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w./\\])(?:~?/|[A-Za-z]:[\\/])(?:[\w.@+-]+[\\/])+")

HARDWARE_TAGS = ("hardware", "gpu", "gpu_name", "gpu_type", "accelerator", "device_name")
"""Names under which people add the device to a result as a label."""

MAX_TAGS = 60
"""Unknown top-level fields kept of one run; more than that is not a set of labels."""


def is_number(value: object) -> bool:
    """A JSON number (booleans are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_float(value: object) -> float | None:
    """The value as a float, possibly a non-finite one; None when it is no number at all."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        word = value.strip()
        if word.lower() in _NON_FINITE_WORDS:
            return math.nan
        if len(word) < 60 and _NUMBER.fullmatch(word):
            return float(word)
    return None


def is_secret(name: str, value: object = None) -> bool:
    """Whether a field should not be kept: a credential, a header, a person or a machine, by name or by look."""
    if _SECRET_NAME.search(name):
        return True
    return isinstance(value, str) and bool(_SECRET_VALUE.search(value))


def without_private(text: str, limit: int = 200) -> str:
    """Free text of a tool (a message of an error) without credentials and without the directories of its machine."""
    text = text[: 8 * limit]
    return clean(_PATH.sub("…/", _SECRET_GIVEN.sub(r"\1…", _SECRET_VALUE.sub("…", text))), limit)


def hardware_tag(labels: Mapping[str, Any]) -> str | None:
    """The device that somebody added as a label; None where there is none."""
    found = (labels.get(key) for key in HARDWARE_TAGS)
    return next((clean(text, 200) for text in found if isinstance(text, str) and text.strip()), None)


class Fields:
    """A reader over one JSON object. It collects what was unusable, so that one finding can say so."""

    def __init__(self, fields: Mapping[str, Any], prefix: str = "") -> None:
        self.fields = fields
        self.prefix = prefix
        self.metrics: list[Metric] = []
        self.non_finite: list[str] = []
        self.wrong_type: list[str] = []
        self._used: set[str] = set()

    def at(self, *keys: str | int) -> str:
        """JSON pointer of a field of this object."""
        return pointer(self.prefix, *keys)

    def raw(self, key: str) -> Any:
        """The value as it stands, marked as used."""
        self._used.add(key)
        return self.fields.get(key)

    def ignore(self, *keys: str) -> None:
        """Mark fields as known, so that they are not kept as unknown ones."""
        self._used.update(keys)

    def number(self, key: str) -> float | None:
        """A finite number, or None with the reason noted (null and absent are silent)."""
        value = self.raw(key)
        if value is None:
            return None
        found = as_float(value)
        if found is None:
            self.wrong_type.append(key)
        elif not math.isfinite(found):
            self.non_finite.append(key)
            return None
        return found

    def count(self, key: str) -> float | None:
        """A number that counts something: finite and not negative."""
        found = self.number(key)
        if found is not None and found < 0:
            self.wrong_type.append(key)
            return None
        return found

    def text(self, key: str, limit: int = 200) -> str | None:
        """Cleaned text, or None when absent, empty or not text."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.wrong_type.append(key)
            return None
        return clean(value, limit) or None

    def metric(
        self,
        name: str,
        key: str,
        *,
        scale: float = 1.0,
        raw_unit: str = "",
        stat: str | None = None,
        count: float | None = None,
    ) -> float | None:
        """Read a field as a metric in SI units (`scale` converts) and return the SI value."""
        value = self.number(key)
        if value is None:
            return None
        return self.add(
            name, value * scale, at=self.at(key), raw=self.fields[key], raw_unit=raw_unit, stat=stat, count=count
        )

    def add(
        self,
        name: str,
        value: float,
        *,
        at: str,
        raw: object = "",
        raw_unit: str = "",
        stat: str | None = None,
        count: float | None = None,
    ) -> float | None:
        """Keep a metric; the first of a name and statistic wins. None when the value is not finite."""
        if not math.isfinite(value):
            return None
        known = name in METRIC_UNITS and (stat is None or stat in STATS)
        if not known:  # a mistake in an importer, not in a file
            raise ValueError(f"no such metric: {name}.{stat}")
        if not self.has(name, stat):
            self.metrics.append(
                Metric(
                    name=name,
                    value=float(value),
                    stat=stat,
                    pointer=at,
                    raw=clean(_written(raw), 60),
                    raw_unit=raw_unit,
                    count=int(count) if count is not None and 0 <= count < 2**53 else None,
                )
            )
        return float(value)

    def has(self, name: str, stat: str | None = None) -> bool:
        return any(m.name == name and m.stat == stat for m in self.metrics)

    def value(self, name: str, stat: str | None = None) -> float | None:
        return next((m.value for m in self.metrics if m.name == name and m.stat == stat), None)

    def unknown(self) -> dict[str, Any]:
        """Scalars under names that no reader asked for: sweep parameters, labels, fields of newer versions.

        Secrets are left out by name and by look; long and nested values are left out as well.
        """
        tags: dict[str, Any] = {}
        for key, value in self.fields.items():
            if len(tags) >= MAX_TAGS:
                break
            if key in self._used or value is None or is_secret(key, value):
                continue
            name = clean(key, 80)
            if isinstance(value, bool):
                tags[name] = value
            elif is_number(value):
                found = as_float(value)
                if found is not None and math.isfinite(found):
                    tags[name] = value if isinstance(value, int) and abs(value) < 2**53 else found
            elif isinstance(value, str) and value.strip():
                tags[name] = clean(value, 200)
        return tags

    def left_out(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys`, and the secret-looking fields, that the object holds with something in them."""
        named = [key for key in keys if self.fields.get(key)]
        secret = [
            key
            for key, value in self.fields.items()
            if key not in named and key not in self._used and value not in (None, "") and is_secret(key, value)
        ]
        return named + secret[:MAX_TAGS]

    def findings(self) -> list[Finding]:
        """At most one finding for non-finite values and one for values of the wrong kind."""
        out: list[Finding] = []
        if self.non_finite:
            names = tuple(dict.fromkeys(clean(k, 80) for k in self.non_finite[:MAX_TAGS]))
            out.append(
                Finding(
                    "non-finite",
                    "warning",
                    f"{listed(names)}: not a finite number in the file, so the value is missing.",
                    names,
                )
            )
        if self.wrong_type:
            names = tuple(dict.fromkeys(clean(k, 80) for k in self.wrong_type[:MAX_TAGS]))
            out.append(
                Finding(
                    "wrong-type",
                    "warning",
                    f"{listed(names)}: not of the kind this format has there, so the value is missing.",
                    names,
                )
            )
        return out


class GatheredFields(Fields):
    """Fields that stand in several places of a file, each with the pointer to its own place."""

    def __init__(self, fields: Mapping[str, Any], pointers: Mapping[str, str], prefix: str = "") -> None:
        super().__init__(fields, prefix)
        self._pointers = pointers

    def at(self, *keys: str | int) -> str:
        known = self._pointers.get(str(keys[0])) if keys else None
        return super().at(*keys) if known is None else pointer(known, *keys[1:])


def _written(raw: object) -> str:
    if isinstance(raw, int) and abs(raw) >= 2**1000:
        return "an integer of hundreds of digits"
    return str(raw)


def listed(names: tuple[str, ...]) -> str:
    most = 8
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def model_name(written: str) -> str:
    """A model as the file names it, without the directories of the machine it lay on.

    Hub names (`owner/name`) stay whole; absolute paths keep their last part, or the hub name inside a hub cache path.
    """
    path = written.replace("\\", "/").rstrip("/")
    cached = re.search(r"models--([^/]+?)--([^/]+)", path)
    if cached:
        return clean(f"{cached[1]}/{cached[2]}", 200)
    local = path.startswith(("/", "~", ".")) or re.match(r"[A-Za-z]:/", path) or path.count("/") > 1
    return clean(path.rsplit("/", 1)[-1] if local else path, 200)
