"""optimum-benchmark's report as it prints it: Markdown (`benchmark_report.md`) and indented text (also in a log).

Both say what the JSON report says, rounded, without the configuration. Names and units of every figure stand in the
file. Layout: huggingface/optimum-benchmark, benchmark/report.py and trackers; one report of 0.5 was seen in each form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.importers.fields import as_float
from app.importers.reading import pointer

KINDS = frozenset({"latency", "memory", "throughput", "energy", "efficiency"})
MOST_TARGETS = 60

_HEADING = re.compile(r"(#{1,2}) ([a-z_]{1,40}):?\s*")
_ROW = re.compile(r"\|\s*([A-Za-z_0-9 ]{1,40}?)\s*\|\s*([^|\s]{1,40})\s*\|\s*([^|]{1,20}?)\s*\|\s*")
_LOGGED = re.compile(r"^(?:\[[^\]]{0,60}\]){1,6} - ")
_ITEM = re.compile(r"(\t*| *)(?:\+ )?([A-Za-z_][A-Za-z_0-9 ]{0,40}):(?: (\S{1,40})(?: \(([^)]{1,20})\))?)?\s*")


@dataclass(frozen=True, slots=True)
class Printed:
    """A report in the shape of the JSON one, and the line of each figure by the pointer it would have there."""

    report: Mapping[str, Any]
    lines: Mapping[str, int]


class _Reading:
    def __init__(self) -> None:
        self.report: dict[str, dict[str, dict[str, Any]]] = {}
        self.lines: dict[str, int] = {}
        self.target: str | None = None
        self.kind: str | None = None

    def begin(self, target: str) -> None:
        self.target, self.kind = (target, None) if len(self.report) < MOST_TARGETS else (None, None)

    def figure(self, name: str, text: str, unit: str, line: int) -> None:
        if self.target is None or self.kind is None or as_float(text) is None:
            return
        key = re.sub(r"_memory$", "", name.strip().lower().replace(" ", "_"))
        key = "value" if key == self.kind else key
        told = self.report.setdefault(self.target, {}).setdefault(self.kind, {})
        if key in told:
            return
        told[key] = text
        if unit not in ("-", "%", ""):
            told.setdefault("unit", unit)
        self.lines[pointer("", self.target, self.kind, key)] = line


def of_markdown(lines: Sequence[str]) -> Printed:
    """Headings of one sign name the target, of two what was measured, and tables hold metric, value and unit."""
    found = _Reading()
    for number, line in enumerate(lines, 1):
        if heading := _HEADING.fullmatch(line):
            if heading[1] == "#":
                found.begin(heading[2])
            else:
                found.kind = heading[2] if heading[2] in KINDS else None
        elif row := _ROW.fullmatch(line):
            found.figure(row[1], row[2], row[3].strip(), number)
    return Printed(found.report, found.lines)


def of_text(lines: Sequence[str], targets: frozenset[str]) -> Printed:
    """Lines `target:`, below it `+ latency:`, below that `+ mean: 1.5 (s)`, each one tab further in."""
    found = _Reading()
    for number, line in enumerate(lines, 1):
        item = _ITEM.fullmatch(_LOGGED.sub("", line))
        if item is None:
            continue
        name, value = item[2], item[3]
        if value is not None:
            found.figure(name, value, item[4] or "", number)
        elif name in KINDS:
            found.kind = name
        elif name in targets:
            found.begin(name)
    return Printed(found.report, found.lines)


def looks_printed(lines: Sequence[str], targets: frozenset[str]) -> str | None:
    """`markdown` or `text` where a target is followed by something measured of it, else None."""
    for form, target, kind in (
        ("markdown", re.compile(r"# ([a-z_]{1,40}):\s*"), re.compile(r"## ([a-z]{1,20}):\s*")),
        ("text", re.compile(r"(?:\+ )?([a-z_]{1,40}):\s*"), re.compile(r"(?:\t| {2,8})\+ ([a-z]{1,20}):\s*")),
    ):
        waiting = False
        for line in lines:
            plain = _LOGGED.sub("", line)
            if not plain.strip():
                continue
            if waiting and (match := kind.fullmatch(plain)) and match[1] in KINDS:
                return form
            match = target.fullmatch(plain)
            waiting = match is not None and match[1] in targets
    return None
