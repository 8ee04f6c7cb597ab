"""How bounds and forecasts held against the carried measurements, as `tools/fidelity.py` recorded it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "fidelity.json"


def kind_title(kind: str) -> str:
    """A kind of measured row as pages print it."""
    words = kind.replace("gemm", "GEMM").replace("moe layer", "MoE layer")
    return words[:1].upper() + words[1:]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one kind, on one device or on all (`hardware` empty).

    `judged` rows are what a tuned stack runs; only they count in the errors. `beaten` rows took less than their bound.
    `over_bound` are the 10th, 25th, 50th, 75th and 90th percentiles of measured over bound, `over_expected` those of
    measured over forecast. Errors are absolute and relative to what was measured; `inside` is the share of judged rows
    between the forecast's low and high.
    """

    kind: str
    hardware: str
    rows: int
    judged: int
    beaten: int
    over_bound: tuple[float, ...]
    over_expected: tuple[float, ...]
    median_error: float
    p90_error: float
    worst_error: float
    inside: float

    @property
    def title(self) -> str:
        return kind_title(self.kind)


@dataclass(frozen=True, slots=True)
class Beaten:
    """A row that took less than its bound, and why: a property of that row."""

    id: str
    kind: str
    hardware: str
    of_bound: float
    explanation: str
    source: str
    url: str | None


@dataclass(frozen=True, slots=True)
class Fidelity:
    date: str
    rows: int
    sources: int
    kinds: tuple[Group, ...]
    devices: tuple[Group, ...]
    beaten: tuple[Beaten, ...]

    def kind(self, name: str) -> Group:
        return next(group for group in self.kinds if group.kind == name)


@cache
def load_fidelity() -> Fidelity:
    """The recorded result. The file is the project's own: a broken one raises."""
    data = json.loads((files("app.catalog") / "data" / FILE).read_text(encoding="utf-8"))
    return Fidelity(
        date=data["date"],
        rows=data["rows"],
        sources=data["sources"],
        kinds=tuple(_group(item) for item in data["kinds"]),
        devices=tuple(_group(item) for item in data["devices"]),
        beaten=tuple(Beaten(**item) for item in data["beaten"]),
    )


def fidelity_to_json(result: Fidelity) -> dict[str, Any]:
    """The record as it is written: plain values, lists for tuples."""
    return asdict(result)


def _group(item: Mapping[str, Any]) -> Group:
    lists = {name: tuple(item[name]) for name in ("over_bound", "over_expected")}
    return Group(**{**item, **lists})
