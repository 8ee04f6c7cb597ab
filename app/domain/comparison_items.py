"""What a comparison is made of: items with their values and conditions, rows of cells, ledgers, and what differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from app.domain.comparison_metrics import Direction
from app.domain.run import Finding

ValueKind: TypeAlias = Literal["measured", "bound", "expected"]
Book: TypeAlias = Literal["kernel", "communication", "runtime", "algorithmic"]
Verdict: TypeAlias = Literal["baseline", "better", "worse", "same", "changed", "of_bound", "contradiction", "refused"]


BOOKS: tuple[Book, ...] = ("kernel", "communication", "runtime", "algorithmic")
"""Headings under which a gain is booked. They are multiplied within a heading and never mixed in silence."""


# Phases that a mode of a run speaks of; a mode not listed (or none) may be any.
_PHASES_OF: Mapping[str, frozenset[str]] = {
    "serve": frozenset({"prefill", "decode"}),
    "latency": frozenset({"prefill", "decode"}),
    "prefill": frozenset({"prefill"}),
    "decode": frozenset({"decode"}),
    "train": frozenset({"train"}),
    "kernel": frozenset({"kernel"}),
    "step": frozenset({"prefill", "decode", "train"}),
    "overlap": frozenset({"overlap"}),
    "pipeline": frozenset({"pipeline"}),
    "cache": frozenset({"cache"}),
}


@dataclass(frozen=True, slots=True)
class FrozenField:
    """One thing that must be equal on both sides for a fair comparison, and the rule that says so."""

    key: str
    label: str
    rule: str | None = None


FROZEN_FIELDS: tuple[FrozenField, ...] = (
    FrozenField("model", "model", "BC-01"),
    FrozenField("parameters", "parameters", "BC-01"),
    FrozenField("mode", "mode", "BC-05"),
    FrozenField("operation", "operation", "BC-05"),
    FrozenField("stages", "pipeline stages", "BC-05"),
    FrozenField("micro_batches", "micro-batches", "BC-05"),
    FrozenField("pass_times", "times of a pass", "BC-05"),
    FrozenField("schedule", "pipeline schedule", None),
    FrozenField("chunks", "chunks of the product", None),
    FrozenField("lengths", "sequence lengths", None),
    FrozenField("page_tokens", "tokens a page", None),
    FrozenField("reserve", "memory in reserve", None),
    FrozenField("routing", "expert routing", None),
    FrozenField("dispatch", "dispatch to experts", None),
    FrozenField("overlap", "overlap of the exchange", None),
    FrozenField("batch", "batch", "BC-05"),
    FrozenField("concurrency", "concurrency", "BC-05"),
    FrozenField("request_rate", "request rate", "BC-05"),
    FrozenField("input_len", "input length", "BC-05"),
    FrozenField("output_len", "output length", "BC-05"),
    FrozenField("seq_len", "sequence length", "BC-05"),
    FrozenField("context_len", "context", "BC-05"),
    FrozenField("cached_len", "cached prompt", "BC-05"),
    FrozenField("resolution", "resolution", "BC-05"),
    FrozenField("dtypes.weights", "weights", "BC-04"),
    FrozenField("dtypes.activations", "activations", "BC-04"),
    FrozenField("dtypes.kv", "KV cache", "BC-04"),
    FrozenField("dtypes.gradients", "gradients", "BC-04"),
    FrozenField("dtypes.optimizer", "optimizer states", "BC-04"),
    FrozenField("steps", "diffusion steps", "BC-06"),
    FrozenField("guidance", "guidance", "BC-06"),
    FrozenField("cache", "step cache", "BC-06"),
    FrozenField("hardware", "hardware", "BC-07"),
    FrozenField("devices", "devices", "BC-07"),
    FrozenField("nodes", "nodes", "BC-07"),
    FrozenField("clocks", "clocks", "BC-07"),
    FrozenField("timed_region", "timed region", "BC-02"),
    FrozenField("parallel", "parallel layout", "BC-07"),
    FrozenField("launch_mode", "launch mode", "BC-03"),
    FrozenField("tokens_basis", "tokens counted", "BC-11"),
    FrozenField("padding_fraction", "padding", "BC-11"),
    FrozenField("ceilings", "ceilings", None),
    FrozenField("recompute", "recompute", None),
    FrozenField("optimizer", "optimizer", None),
    FrozenField("engine", "engine", None),
    FrozenField("software", "software", None),
)
"""Everything that is looked at, in the order that pages list it. A difference without a rule is named, no more."""

FIELD_OF_KEY: Mapping[str, FrozenField] = {f.key: f for f in FROZEN_FIELDS}
LOAD_FIELDS = ("batch", "concurrency", "input_len", "output_len", "seq_len", "context_len", "cached_len")


@dataclass(frozen=True, slots=True)
class Value:
    """A number of one item. `low` and `high` are the expected range around a bound, where there is one."""

    value: float
    kind: ValueKind = "measured"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One side of a comparison. `frozen` maps keys of FROZEN_FIELDS to what the item states; absent means unknown.

    `spread` is the standard deviation over the mean of a metric's repetitions, by metric name (no entry: not repeated,
    or requests that differ among themselves, whose spread is no noise). `contradictions` names the errors that the lint
    found in a run, `changed_share` the share of the step that the booked change touches.
    """

    label: str
    kind: Literal["run", "estimate"]
    values: Mapping[str, Value]
    frozen: Mapping[str, Any] = field(default_factory=dict)
    book_as: Book | None = None
    has_quality: bool = False
    spread: Mapping[str, float] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    changed_share: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One item's value of a metric beside the baseline's. `words` says the ratio; `reason` why there is none.

    `ratio` is value over baseline. `of_bound` is set where one of the two is a bound: the share of it that the
    measurement reaches (1 is the limit).
    """

    value: float
    kind: ValueKind
    ratio: float | None
    verdict: Verdict | None
    words: str
    reason: str = ""
    of_bound: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of all items; None where an item does not report it. `direction` is what counts as better."""

    key: str
    name: str
    stat: str | None
    label: str
    unit: str
    direction: Direction | None
    cells: tuple[Cell | None, ...]

    @property
    def reported(self) -> int:
        return sum(cell is not None for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Difference:
    """A frozen field on which items disagree. `values` has one entry for each item, None where it says nothing."""

    field: str
    label: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one item changed against the one before it. `gain` above 1 is better; gains multiply to the total."""

    item: int
    previous: int
    book_as: Book
    before: float
    after: float
    gain: Fraction
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """A chain from the baseline through the items that say how to book them, on one metric.

    `total` is exactly the product of the entries' gains and exactly last against first, since gains are fractions.
    `refused` names items that could not enter the chain, with the reason.
    """

    metric: str
    label: str
    unit: str
    entries: tuple[LedgerEntry, ...]
    by_book: Mapping[Book, Fraction]
    total: Fraction
    refused: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole result. `sentence` is the answer, `headline` the key of the metric that it speaks of."""

    baseline: int
    rows: tuple[Row, ...]
    headline: str | None
    sentence: str
    differences: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    ledger: Ledger | None


def unlike(item: Item, other: Item) -> str:
    """Why two items have no ratio at all; empty where they have one."""
    here, there = phases_of(item), phases_of(other)
    if here and there and not here & there:
        return f"{item.frozen.get('mode')} against {other.frozen.get('mode')}: different work, no ratio"
    return ""


def phases_of(item: Item) -> frozenset[str]:
    return _PHASES_OF.get(str(item.frozen.get("mode")), frozenset())


# ---- words of sentences and findings ---------------------------------------------------------------------------------


def quoted(label: str) -> str:
    return f"“{label}”"


# ---- what differs ---------------------------------------------------------------------------------------------------


def stated_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


# Measured mean lengths wobble; parameters are counted with and without embeddings.
_TOLERANCE: Mapping[str, float] = {"parameters": 0.02, "input_len": 0.02, "output_len": 0.02, "context_len": 0.02}

# An estimate is asked at round numbers for what a run did on average.
_TOLERANCE_TO_ESTIMATE: Mapping[str, float] = {"input_len": 0.1, "context_len": 0.1, "concurrency": 0.05}


def disagree(a: Item, b: Item, key: str) -> bool:
    """Whether both state the field, and differently: numbers by more than a per mille, or the tolerances above."""
    left, right = a.frozen.get(key), b.frozen.get(key)
    if left is None or right is None:
        return False
    if key == "mode" and (a.kind != b.kind or "step" in (left, right)) and phases_of(a) & phases_of(b):
        return False  # a decode step is part of what a serving run does, and "step" does not say which one it is
    if key == "context_len" and all(item.kind == "run" and "output_len" in item.frozen for item in (a, b)):
        return False  # it follows from the lengths, which are compared themselves
    numbers = [isinstance(x, (int, float)) and not isinstance(x, bool) for x in (left, right)]
    if all(numbers):
        tolerance = _TOLERANCE.get(key, 1e-3) if a.kind == b.kind else _TOLERANCE_TO_ESTIMATE.get(key, 1e-3)
        return not math.isclose(left, right, rel_tol=tolerance)
    return bool(stated_text(left).casefold() != stated_text(right).casefold())


def differences_of(items: Sequence[Item]) -> tuple[Difference, ...]:
    found = []
    for known in FROZEN_FIELDS:
        if any(disagree(a, b, known.key) for number, a in enumerate(items) for b in items[number + 1 :]):
            values = tuple(None if (v := item.frozen.get(known.key)) is None else stated_text(v) for item in items)
            found.append(Difference(known.key, known.label, values))
    return tuple(found)


def changed_fields(item: Item, other: Item) -> tuple[str, ...]:
    """What differs between two items, in words: "weights bf16 → fp8"."""
    return tuple(
        f"{known.label} {stated_text(other.frozen[known.key])} → {stated_text(item.frozen[known.key])}"
        for known in FROZEN_FIELDS
        if disagree(item, other, known.key)
    )
