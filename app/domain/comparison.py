"""Comparing runs and estimates: one row for each metric, ratios to a baseline, what differs, and whose gain is whose.

Only like is held against like. Metrics align by name and statistic, so their units agree; a ratio is refused, with the
reason, where the items measured different phases or where a bound belongs to another model, device or load. A bound
beside a measurement says how far the measurement is from it; it is never called better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from app.domain.errors import InvalidInput
from app.domain.run import HIGHER_IS_BETTER, LOWER_IS_BETTER, METRIC_UNITS, STATS, Finding

ValueKind: TypeAlias = Literal["measured", "bound", "expected"]
Book: TypeAlias = Literal["kernel", "communication", "runtime", "algorithmic"]
Verdict: TypeAlias = Literal["baseline", "better", "worse", "same", "changed", "of_bound", "contradiction", "refused"]
Direction: TypeAlias = Literal["higher", "lower"]

BOOKS: tuple[Book, ...] = ("kernel", "communication", "runtime", "algorithmic")
"""Headings under which a gain is booked. They are multiplied within a heading and never mixed in silence."""

SAME_WITHIN = 0.005
"""Relative difference below which two values are called the same; a printed ratio would read 1.00."""

DERIVED_UNITS: Mapping[str, str] = {
    "of_bound": "1",
    "step_bound_s": "s",
    "step_expected_s": "s",
    "step_serial_bound_s": "s",
    "operation_expected_s": "s",
    "overlapped_time_s": "s",
    "serial_time_s": "s",
    "fused_time_s": "s",
    "product_time_s": "s",
    "exchange_time_s": "s",
    "exposed_communication_s": "s",
    "exposed_share": "1",
    "compute_only_s": "s",
    "pipeline_step_s": "s",
    "bubble_s": "s",
    "bubble_share": "1",
    "in_flight_micro_batches": "1",
    "parameter_copies": "1",
    "least_memory_bytes": "B",
    "largest_batch": "1",
    "largest_context": "1",
    "kv_bytes_per_token": "B",
    "kv_payload_bytes": "B",
    "kv_paged_bytes": "B",
    "kv_total_bytes": "B",
    "kv_allocated_bytes": "B",
    "kv_per_device_bytes": "B",
    "kv_read_s": "s",
    "expert_layers_s": "s",
    "expert_bound_s": "s",
    "expert_serial_s": "s",
    "expert_expected_s": "s",
    "rank_imbalance": "1",
}
"""What no file reports, with the unit: the share of its own bound that a run reaches, an estimate's times, and what the
pages of memory, cache, experts and communication compute."""

_HIGHER_DERIVED = frozenset({"of_bound", "largest_batch", "largest_context"})
_LOWER = LOWER_IS_BETTER | (DERIVED_UNITS.keys() - _HIGHER_DERIVED)
_HIGHER = HIGHER_IS_BETTER | _HIGHER_DERIVED

_WORDS: Mapping[str, str] = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_latency_s": "end-to-end latency",
    "step_time_s": "step time",
    "prefill_time_s": "prefill time",
    "decode_time_s": "decode time",
    "kernel_time_s": "kernel time",
    "latency_s": "latency",
    "duration_s": "duration",
    "requests_per_s": "requests/s",
    "goodput_requests_per_s": "goodput, requests/s",
    "request_rate_per_s": "request rate",
    "samples_per_s": "samples/s",
    "output_tokens_per_s": "output tokens/s",
    "input_tokens_per_s": "input tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "prefill_tokens_per_s": "prefill tokens/s",
    "decode_tokens_per_s": "decode tokens/s",
    "peak_output_tokens_per_s": "peak output tokens/s",
    "tokens_per_s_per_device": "tokens/s a device",
    "output_tokens_per_s_per_device": "output tokens/s a device",
    "output_tokens_per_s_per_user": "output tokens/s a user",
    "model_flop_per_s_per_device": "model FLOP/s a device",
    "hbm_bytes_per_s": "HBM bandwidth",
    "bus_bandwidth_bytes_per_s": "bus bandwidth",
    "algorithm_bandwidth_bytes_per_s": "algorithm bandwidth",
    "mfu": "MFU",
    "hfu": "HFU",
    "mbu": "MBU",
    "peak_memory_bytes": "peak memory",
    "reserved_memory_bytes": "peak memory reserved",
    "device_memory_bytes": "peak memory of the device",
    "kv_cache_bytes": "KV cache",
    "weight_bytes": "weights",
    "requests_completed": "completed requests",
    "requests_failed": "failed requests",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "concurrency": "concurrency",
    "peak_concurrency": "peak concurrency",
    "accepted_tokens_per_step": "accepted tokens a step",
    "parameters": "parameters",
    "power_w": "power",
    "energy_j": "energy",
    "loss": "loss",
    "of_bound": "share of the bound",
    "step_bound_s": "bound of a step",
    "step_expected_s": "expected time of a step",
    "step_serial_bound_s": "serial bound of a step",
    "operation_expected_s": "expected time of the operation",
    "overlapped_time_s": "time of product and exchange",
    "serial_time_s": "time one after the other",
    "fused_time_s": "time in one kernel",
    "product_time_s": "time of the product alone",
    "exchange_time_s": "time of the exchange alone",
    "exposed_communication_s": "exposed communication",
    "exposed_share": "exposed share of the step",
    "compute_only_s": "step without communication",
    "pipeline_step_s": "time of the pipeline's step",
    "bubble_s": "pipeline bubble",
    "bubble_share": "bubble share of the step",
    "in_flight_micro_batches": "micro-batches in flight",
    "parameter_copies": "stages held by a device",
    "least_memory_bytes": "least memory",
    "largest_batch": "largest batch",
    "largest_context": "largest context",
    "kv_bytes_per_token": "cache of a token",
    "kv_payload_bytes": "cache payload",
    "kv_paged_bytes": "cache in pages",
    "kv_total_bytes": "cache in pages with a shared prefix",
    "kv_allocated_bytes": "cache reserved in one piece",
    "kv_per_device_bytes": "cache of a device",
    "kv_read_s": "cache read a step",
    "expert_layers_s": "expert layers at their overlap",
    "expert_bound_s": "bound of the expert layers",
    "expert_serial_s": "expert layers one stage after another",
    "expert_expected_s": "expected time of the expert layers",
    "rank_imbalance": "busiest rank over the mean",
}

_HEADLINE_ORDER: tuple[str, ...] = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "requests_per_s",
    "samples_per_s",
    "tokens_per_s_per_device",
    "step_time_s",
    "tpot_s",
    "itl_s",
    "ttft_s",
    "e2e_latency_s",
    "latency_s",
    "kernel_time_s",
    "step_bound_s",
    "bus_bandwidth_bytes_per_s",
    "hbm_bytes_per_s",
    "model_flop_per_s_per_device",
    "of_bound",
    "mfu",
    "mbu",
    "duration_s",
    "overlapped_time_s",
    "exposed_communication_s",
    "pipeline_step_s",
    "expert_layers_s",
    "kv_total_bytes",
    "peak_memory_bytes",
)

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

_FIELD: Mapping[str, FrozenField] = {f.key: f for f in FROZEN_FIELDS}
_LOAD_FIELDS = ("batch", "concurrency", "input_len", "output_len", "seq_len", "context_len", "cached_len")


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


# ---- entry ----------------------------------------------------------------------------------------------------------


def compare(items: Sequence[Item], baseline: int = 0, metric: str | None = None) -> Comparison:
    """Align `items` and hold each against `items[baseline]`; `metric` is the key that sentence and ledger use.

    Raises InvalidInput for an empty list, a baseline that is no item, or a metric that nobody reports.
    """
    if not items:
        raise InvalidInput(("items",), "give at least one run or estimate")
    if not 0 <= baseline < len(items):
        raise InvalidInput(("baseline",), f"must be one of the items 0 to {len(items) - 1}, not {baseline}")
    rows = tuple(_row(key, items, baseline) for key in _keys(items))
    if metric is not None and all(row.key != metric for row in rows):
        raise InvalidInput(("metric",), f"no item reports {metric!r}")
    headline = metric or _headline(rows, baseline)
    row = next((row for row in rows if row.key == headline), None)
    differences = _differences(items)
    return Comparison(
        baseline=baseline,
        rows=rows,
        headline=headline,
        sentence=_sentence(row, items, baseline),
        differences=differences,
        findings=tuple(_findings(items, baseline, differences, rows, row)),
        ledger=_ledger(row, items, baseline),
    )


def split_key(key: str) -> tuple[str, str | None]:
    """`ttft_s.p99` is (`ttft_s`, `p99`); a plain name has no statistic."""
    name, _, stat = key.partition(".")
    return name, stat or None


def metric_label(key: str) -> str:
    """A metric's key in words: `ttft_s.p99` is "TTFT p99"."""
    name, stat = split_key(key)
    words = _WORDS.get(name, name)
    return f"{words} {stat}" if stat else words


def metric_unit(name: str) -> str:
    """The SI unit of a metric by its name without statistic."""
    return METRIC_UNITS.get(name) or DERIVED_UNITS[name]


def metric_direction(key: str) -> Direction | None:
    """Whether higher or lower is better; None for metrics that describe the load, and for the spread of any."""
    name, stat = split_key(key)
    if stat == "std":
        return None
    return "lower" if name in _LOWER else "higher" if name in _HIGHER else None


def estimate_values(
    phase: str,
    seq_len: int,
    *,
    bound: float,
    serial_bound: float,
    expected: tuple[float, float, float],
    tokens_per_second: float | None,
    tokens_per_second_per_device: float | None,
    peak_memory: float,
    reported: Iterable[str] = (),
) -> dict[str, Value]:
    """An estimate's numbers under the names of the metrics that runs report, all as bounds.

    `expected` is (time, low, high). `reported` are the keys that the runs beside it have: a bound holds for every
    statistic, so it stands beside the mean or, without one, the median. A decode step of one new token is a TPOT, a
    prefill the least TTFT, a training step a step; a step that verifies drafts is none of these.
    """
    time, low, high = expected
    keys = list(reported)
    values = {
        "step_bound_s": Value(bound, "bound", low, high),
        "step_expected_s": Value(time, "expected", low, high),
        "step_serial_bound_s": Value(serial_bound, "bound"),
        "peak_memory_bytes": Value(peak_memory, "bound"),
    }
    times = {"decode": ("tpot_s", "itl_s"), "prefill": ("ttft_s", "prefill_time_s"), "train": ("step_time_s",)}[phase]
    if phase == "decode" and seq_len != 1:
        times = ()
    for name in times:
        for key in _beside(name, keys):
            values[key] = Value(bound, "bound", low, high)
    rates = {
        "decode": ("output_tokens_per_s", "decode_tokens_per_s"),
        "prefill": ("prefill_tokens_per_s", "input_tokens_per_s"),
        "train": ("total_tokens_per_s",),
    }[phase]
    if tokens_per_second is not None:
        slow, fast = (
            (tokens_per_second * bound / high if high else None),
            (tokens_per_second * bound / low if low else None),
        )
        found = [key for name in rates for key in _beside(name, keys)] or [rates[0]]
        for key in found:
            values[key] = Value(tokens_per_second, "bound", slow, fast)
    if tokens_per_second_per_device is not None:
        for key in _beside("tokens_per_s_per_device", keys) or ["tokens_per_s_per_device"]:
            values[key] = Value(tokens_per_second_per_device, "bound")
    return values


def _beside(name: str, keys: Sequence[str]) -> list[str]:
    """The key among `keys` that a bound of `name` stands beside: the plain value, the mean, or the median."""
    for key in (name, f"{name}.mean", f"{name}.p50"):
        if key in keys:
            return [key]
    return []


# ---- rows -----------------------------------------------------------------------------------------------------------


def _keys(items: Sequence[Item]) -> list[str]:
    """All keys that some item has: results first, in the order of the metric names, then what describes the load."""
    names = dict.fromkeys((*_HEADLINE_ORDER, *METRIC_UNITS, *DERIVED_UNITS))
    order = {name: number for number, name in enumerate(names)}
    stats = {stat: number for number, stat in enumerate((None, *STATS))}

    def rank(key: str) -> tuple[bool, int, int]:
        name, stat = split_key(key)
        described = name not in _LOWER and name not in _HIGHER
        return described, order.get(name, len(order)), stats.get(stat, len(stats))

    return sorted({key for item in items for key in item.values}, key=rank)


def _row(key: str, items: Sequence[Item], baseline: int) -> Row:
    name, stat = split_key(key)
    direction = metric_direction(key)
    base = items[baseline].values.get(key)
    cells: list[Cell | None] = []
    for number, item in enumerate(items):
        value = item.values.get(key)
        if value is None or not math.isfinite(value.value):
            cells.append(None)
        elif number == baseline:
            cells.append(Cell(value.value, value.kind, 1.0, "baseline", "baseline", low=value.low, high=value.high))
        else:
            cells.append(_cell(key, value, item, base, items[baseline], direction))
    return Row(key, name, stat, metric_label(key), metric_unit(name), direction, tuple(cells))


def _cell(key: str, value: Value, item: Item, base: Value | None, base_item: Item, direction: Direction | None) -> Cell:
    def refused(reason: str) -> Cell:
        return Cell(value.value, value.kind, None, "refused", "no ratio", reason, low=value.low, high=value.high)

    if base is None or not math.isfinite(base.value):
        return refused("the baseline does not report it")
    if base.value <= 0 or value.value < 0 or (value.value == 0 and direction is not None):
        if base.value == value.value:
            return Cell(value.value, value.kind, None, "same", "the same", low=value.low, high=value.high)
        return refused("a ratio needs two values above zero")
    reason = unlike(item, base_item, key)
    if reason:
        return refused(reason)
    ratio = value.value / base.value
    kinds = {value.kind, base.kind}
    if len(kinds) == 2 and "measured" in kinds:
        return _of_bound(value, item, base, base_item, ratio, direction)
    verdict, words = _judged(ratio, direction)
    return Cell(value.value, value.kind, ratio, verdict, words, low=value.low, high=value.high)


def _of_bound(
    value: Value, item: Item, base: Value, base_item: Item, ratio: float, direction: Direction | None
) -> Cell:
    """A measurement beside a bound (or a forecast): the share of it that is reached, whichever side it stands on."""
    is_expected = "expected" in (value.kind, base.kind)
    other = "expected" if is_expected else "bound"
    differs = [f for f in ("model", "hardware", *_LOAD_FIELDS) if _disagree(item, base_item, f)]
    if differs and not is_expected:
        names = ", ".join(_FIELD[f].label for f in differs)
        return Cell(
            value.value,
            value.kind,
            None,
            "refused",
            "no ratio",
            f"{'the baseline is' if value.kind == 'measured' else 'it is'} a bound for another {names}",
            low=value.low,
            high=value.high,
        )
    measured_over = 1 / ratio if value.kind != "measured" else ratio
    share = measured_over if direction == "higher" else 1 / measured_over
    subject = "reaches" if value.kind == "measured" else "baseline reaches"
    target = f"of the {other}" if value.kind == "measured" else "of it"
    if share > 1 + 1e-9 and not is_expected and direction is not None:
        words = f"{subject} {_percent(share)} {target}: a contradiction to explain"
        return Cell(
            value.value, value.kind, ratio, "contradiction", words, of_bound=share, low=value.low, high=value.high
        )
    words = f"{subject} {_percent(share)} {target}"
    return Cell(value.value, value.kind, ratio, "of_bound", words, of_bound=share, low=value.low, high=value.high)


def _judged(ratio: float, direction: Direction | None) -> tuple[Verdict, str]:
    if abs(ratio - 1) < SAME_WITHIN:
        return "same", f"{times(ratio)}, the same"
    if direction is None:
        return "changed", times(ratio)
    better = (ratio > 1) == (direction == "higher")
    return ("better" if better else "worse"), f"{times(ratio)}, {'better' if better else 'worse'}"


def unlike(item: Item, other: Item, key: str = "") -> str:
    """Why two items have no ratio at all; empty where they have one."""
    here, there = _phases(item), _phases(other)
    if here and there and not here & there:
        return f"{item.frozen.get('mode')} against {other.frozen.get('mode')}: different work, no ratio"
    return ""


def _phases(item: Item) -> frozenset[str]:
    return _PHASES_OF.get(str(item.frozen.get("mode")), frozenset())


def _headline(rows: Sequence[Row], baseline: int) -> str | None:
    """The metric that says most: ratios for as many items as possible, then the order of _HEADLINE_ORDER."""
    best: tuple[int, str] | None = None
    for name in _HEADLINE_ORDER:
        for row in rows:
            if row.name != name or row.stat not in (None, "mean", "p50") or row.cells[baseline] is None:
                continue
            score = sum(cell is not None and cell.ratio is not None for cell in row.cells)
            if best is None or score > best[0]:
                best = (score, row.key)
    return best[1] if best else (rows[0].key if rows else None)


# ---- sentence -------------------------------------------------------------------------------------------------------


def times(ratio: float) -> str:
    """A factor with three significant digits: 1.2449 is "1.24×"."""
    if ratio >= 1000:
        return f"{ratio:,.0f}×"
    if ratio < 0.001:
        return f"{ratio:.2g}×"
    digits = max(0, 2 - math.floor(math.log10(float(f"{ratio:.3g}"))))
    return f"{ratio:.{min(digits, 5)}f}×"


def _percent(share: float) -> str:
    size = share * 100
    if 99 <= size < 100:
        return f"{math.floor(size * 10) / 10:.1f}\u202f%"
    return f"{size:.0f}\u202f%" if size >= 9.95 else f"{size:.2g}\u202f%"


def _quoted(label: str) -> str:
    return f"“{label}”"


def _sentence(row: Row | None, items: Sequence[Item], baseline: int) -> str:
    if len(items) == 1:
        return "One item stands alone here: a comparison needs a second one."
    base = items[baseline]
    if row is None:
        return "No item reports a number that could be compared."
    others = [
        (items[number], cell)
        for number, cell in enumerate(row.cells)
        if number != baseline and cell is not None and cell.ratio is not None
    ]
    if not others:
        reasons = dict.fromkeys(cell.reason for cell in row.cells if cell is not None and cell.reason)
        why = f": {'; '.join(reasons)}" if reasons else ", because no other item reports what the baseline reports"
        return f"Nothing can be held against {_quoted(base.label)}{why}."
    if len(others) == 1:
        return f"{_claim(others[0][0].label, others[0][1], row, base.label)}."
    compared = [(item, cell) for item, cell in others if cell.verdict not in ("of_bound", "contradiction")]
    bounds = [(item, cell) for item, cell in others if cell.verdict in ("of_bound", "contradiction")]
    parts = []
    if compared and row.direction is None:
        parts.append(f"{row.label} differs between the items")
    elif compared:
        best = _extreme(compared, row.direction == "higher")
        parts.append(
            _claim(best[0].label, best[1], row, base.label) + (", the best of the others" if len(compared) > 1 else "")
        )
    if bounds:
        parts.append(_claim(bounds[0][0].label, bounds[0][1], row, base.label))
    return "; ".join(parts) + "."


def _extreme(pairs: Sequence[tuple[Item, Cell]], highest: bool) -> tuple[Item, Cell]:
    return (max if highest else min)(pairs, key=lambda pair: pair[1].value)


def _claim(label: str, cell: Cell, row: Row, base: str) -> str:
    assert cell.ratio is not None
    if cell.of_bound is not None:
        measured, estimate = (label, base) if cell.kind == "measured" else (base, label)
        what = "expected figure" if "expected" in row.name else "bound"
        said = f"{_quoted(measured)} reaches {_percent(cell.of_bound)} of the {what} {_quoted(estimate)} in {row.label}"
        return said + (", which cannot be: something stated is wrong" if cell.verdict == "contradiction" else "")
    by = {"bound": "By their bounds, ", "expected": "By what is expected, ", "measured": ""}[cell.kind]
    if cell.verdict == "same":
        return f"{by}{_quoted(label)} and {_quoted(base)} have the same {row.label}"
    verb = {"higher": "reaches", "lower": "takes", None: "has"}[row.direction]
    return f"{by}{_quoted(label)} {verb} {times(cell.ratio)} the {row.label} of {_quoted(base)}"


# ---- what differs ---------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
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


def _disagree(a: Item, b: Item, key: str) -> bool:
    """Whether both state the field, and differently: numbers by more than a per mille, or the tolerances above."""
    left, right = a.frozen.get(key), b.frozen.get(key)
    if left is None or right is None:
        return False
    if key == "mode" and (a.kind != b.kind or "step" in (left, right)) and _phases(a) & _phases(b):
        return False  # a decode step is part of what a serving run does, and "step" does not say which one it is
    if key == "context_len" and all(item.kind == "run" and "output_len" in item.frozen for item in (a, b)):
        return False  # it follows from the lengths, which are compared themselves
    numbers = [isinstance(x, (int, float)) and not isinstance(x, bool) for x in (left, right)]
    if all(numbers):
        tolerance = _TOLERANCE.get(key, 1e-3) if a.kind == b.kind else _TOLERANCE_TO_ESTIMATE.get(key, 1e-3)
        return not math.isclose(left, right, rel_tol=tolerance)
    return bool(_text(left).casefold() != _text(right).casefold())


def _differences(items: Sequence[Item]) -> tuple[Difference, ...]:
    found = []
    for known in FROZEN_FIELDS:
        if any(_disagree(a, b, known.key) for number, a in enumerate(items) for b in items[number + 1 :]):
            values = tuple(None if (v := item.frozen.get(known.key)) is None else _text(v) for item in items)
            found.append(Difference(known.key, known.label, values))
    return tuple(found)


def _changed(item: Item, other: Item) -> tuple[str, ...]:
    """What differs between two items, in words: "weights bf16 → fp8"."""
    return tuple(
        f"{known.label} {_text(other.frozen[known.key])} → {_text(item.frozen[known.key])}"
        for known in FROZEN_FIELDS
        if _disagree(item, other, known.key)
    )


# ---- findings -------------------------------------------------------------------------------------------------------


def _findings(
    items: Sequence[Item],
    baseline: int,
    differences: Sequence[Difference],
    rows: Sequence[Row],
    headline: Row | None,
) -> list[Finding]:
    """What a reader must know before believing a ratio: the rules BC-01 to BC-12 of the benchmark lint.

    BC-13 needs no check: published gains of techniques are never multiplied here, since every estimate computes anew.
    """
    base = items[baseline]
    others = [item for number, item in enumerate(items) if number != baseline]
    found: list[Finding] = []

    def against(rule: str) -> list[tuple[Item, list[str]]]:
        keys = [known.key for known in FROZEN_FIELDS if known.rule == rule]
        pairs = [(item, [key for key in keys if _disagree(item, base, key)]) for item in others]
        return [(item, fields) for item, fields in pairs if fields]

    def add(
        rule: str, severity: Literal["error", "warning", "info"], text: str, hits: list[tuple[Item, list[str]]]
    ) -> None:
        if hits:
            fields = tuple(dict.fromkeys(key for _, keys in hits for key in keys))
            found.append(Finding(rule, severity, f"{text} {_named(hits, base)}", fields))

    unlike_items = [item for item in others if unlike(item, base)]
    if unlike_items:
        found.append(
            Finding(
                "not-comparable",
                "error",
                f"Not the same work as the baseline {_quoted(base.label)}: "
                + "; ".join(f"{_quoted(item.label)} measures {item.frozen.get('mode')}" for item in unlike_items)
                + f", the baseline {base.frozen.get('mode')}. No ratios are given.",
                ("mode",),
            )
        )
    models = against("BC-01")
    add(
        "BC-01",
        "error",
        "Not the same model: only an algorithmic comparison, with quality on both sides, may do this.",
        [hit for hit in models if hit[0].book_as != "algorithmic"],
    )
    add(
        "BC-01",
        "warning",
        "Different models booked as algorithmic, without a quality figure on both sides.",
        [hit for hit in models if hit[0].book_as == "algorithmic" and not (hit[0].has_quality and base.has_quality)],
    )
    add(
        "BC-02",
        "error",
        "Not the same timed region: one side was given prepared inputs, or counts their conversion.",
        against("BC-02"),
    )
    add(
        "BC-03",
        "warning",
        "Not the same launch mode, and the gain is not booked as runtime: it may be launch overhead.",
        [hit for hit in against("BC-03") if hit[0].book_as != "runtime" and hit[0].kind == base.kind],
    )
    precisions = against("BC-04")
    measured = [h for h in precisions if h[0].kind == base.kind == "run"]
    add(
        "BC-04",
        "error",
        "Not the same precision, and no quality figure on both sides.",
        [hit for hit in measured if not (hit[0].has_quality and base.has_quality)],
    )
    add(
        "BC-04",
        "info",
        "Not the same precision: an estimate says nothing about quality.",
        [hit for hit in precisions if "estimate" in (hit[0].kind, base.kind)],
    )
    add(
        "BC-05",
        "warning",
        "Not the same workload: read this as a scaling study, or repeat it at equal load.",
        [(item, fields) for item, found_ in against("BC-05") if (fields := _without_mode(item, base, found_))],
    )
    diffusion = against("BC-06")
    add(
        "BC-06",
        "error",
        "Fewer steps, other guidance or caching is an algorithmic change, not a gain of kernel or runtime.",
        [hit for hit in diffusion if hit[0].book_as in ("kernel", "runtime")],
    )
    add(
        "BC-06",
        "warning",
        "Not the same diffusion settings: this is an algorithmic change and needs a quality figure.",
        [hit for hit in diffusion if hit[0].book_as not in ("kernel", "runtime")],
    )
    add(
        "BC-07",
        "warning",
        "Not the same hardware or layout: compare the share of the bound that each reaches, not seconds.",
        against("BC-07"),
    )
    add("BC-11", "warning", "Tokens are not counted alike: compare real tokens/s without padding.", against("BC-11"))
    contradictions = [
        row.label for row in rows if any(c is not None and c.verdict == "contradiction" for c in row.cells)
    ]
    if contradictions:
        found.append(
            Finding(
                "faster-than-bound",
                "error",
                "A measurement is faster than its bound in "
                + ", ".join(contradictions)
                + ": check precision, device count, batch and units.",
                ("values",),
            )
        )
    found += _doubts(items, baseline, headline)
    unstated = _unstated(items)
    if unstated:
        found.append(
            Finding(
                "not-stated",
                "info",
                "Not every item states "
                + ", ".join(_FIELD[key].label for key in unstated)
                + ": whether they agree there is not known.",
                unstated,
            )
        )
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


_CHANGES: Mapping[str, tuple[str, ...]] = {
    "precision": ("dtypes.weights", "dtypes.activations", "dtypes.kv", "dtypes.gradients", "dtypes.optimizer"),
    "launch mode": ("launch_mode",),
    "layout": ("parallel", "devices", "nodes"),
    "software": ("engine", "software"),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "diffusion settings": ("steps", "guidance", "cache"),
}
"""Fields that change together when one thing is changed."""


def _changes(item: Item, base: Item) -> set[str]:
    return {name for name, keys in _CHANGES.items() if any(_disagree(item, base, key) for key in keys)}


def _doubts(items: Sequence[Item], baseline: int, headline: Row | None) -> list[Finding]:
    """What makes the headline ratio hard to believe or to attribute: contradictions, noise, several changes at once."""
    base = items[baseline]
    runs = [item for item in items if item.kind == "run"]
    others = [(number, item) for number, item in enumerate(items) if number != baseline and item.kind == base.kind]
    found: list[Finding] = []
    broken = [item for item in runs if item.contradictions]
    if broken:
        said = "; ".join(f"{_quoted(item.label)}: {', '.join(item.contradictions)}" for item in broken[:4])
        found.append(
            Finding(
                "run-contradicts-itself",
                "error",
                f"Runs hold contradictions and are not to be ranked before they are explained: {said}.",
                tuple(dict.fromkeys(check for item in broken for check in item.contradictions)),
            )
        )
    several = [
        (item, sorted(changed))
        for _, item in others
        if base.kind == "run"
        and len(changed := _changes(item, base)) > 1
        # another model or device is no optimisation: BC-01 and BC-07 speak of those
        and not any(_disagree(item, base, key) for key in ("model", "hardware"))
        # an ablation is a run beside it that changes just one of these things
        and not any(len(one := _changes(other, base)) == 1 and one <= changed for _, other in others)
    ]
    if several:
        said = "; ".join(f"{_quoted(item.label)} changes {', '.join(changed)}" for item, changed in several[:4])
        found.append(
            Finding(
                "BC-08",
                "warning",
                f"Several changes at once, and no run that changes one alone: the gain cannot be attributed. {said}.",
                tuple(dict.fromkeys(name for _, changed in several for name in changed)),
            )
        )
    found += _noise(items, baseline, headline, [number for number, _ in others])
    kernels = [item for _, item in others if item.book_as == "kernel" and item.frozen.get("mode") == "kernel"]
    if kernels and all(item.frozen.get("mode") == "kernel" for item in runs):
        found.append(
            Finding(
                "BC-10",
                "warning",
                "A kernel's gain without an end-to-end run on both sides: copies, breaks or contention can undo it.",
                ("mode",),
            )
        )
    found += _above_share(base, headline, others)
    return found


def _noise(items: Sequence[Item], baseline: int, headline: Row | None, others: Sequence[int]) -> list[Finding]:
    base = items[baseline]
    if headline is None or base.kind != "run" or base.frozen.get("mode") == "serve":
        return []
    within, unrepeated = [], []
    for number in others:
        cell = headline.cells[number]
        if cell is None or cell.ratio is None or cell.verdict not in ("better", "worse"):
            continue
        spreads = [_spread(item, headline.name) for item in (items[number], base)]
        if any(spread is None for spread in spreads):
            unrepeated.append(items[number])
            continue
        pooled = math.sqrt(sum(spread * spread for spread in spreads if spread is not None) / 2)
        if abs(cell.ratio - 1) < 2 * pooled:
            within.append((items[number], pooled))
    found = []
    if within:
        said = "; ".join(f"{_quoted(item.label)} (runs vary by {_percent(pooled)})" for item, pooled in within[:4])
        found.append(
            Finding(
                "BC-09",
                "warning",
                f"The difference in {headline.label} is within noise, less than twice the spread: {said}.",
                (headline.key,),
            )
        )
    if unrepeated:
        found.append(
            Finding(
                "repetitions-missing",
                "info",
                f"Whether the difference in {headline.label} is noise is not known: not both sides report repetitions "
                f"of it ({', '.join(_quoted(item.label) for item in unrepeated[:4])}).",
                (headline.key,),
            )
        )
    return found


def _spread(item: Item, name: str) -> float | None:
    """Relative spread of a metric; a rate spreads as the time that it was made from."""
    if name in item.spread:
        return item.spread[name]
    return max(item.spread.values()) if item.spread else None


def _above_share(base: Item, headline: Row | None, others: Sequence[tuple[int, Item]]) -> list[Finding]:
    """F-1.4: replacing a share f of a step gains at most 1 / (1 - f)."""
    found: list[Finding] = []
    if headline is None or headline.direction is None:
        return found
    for number, item in others:
        share = item.changed_share if item.changed_share is not None else base.changed_share
        cell = headline.cells[number]
        if share is None or not 0 < share < 1 or cell is None or not cell.ratio or item.book_as is None:
            continue
        gain = cell.ratio if headline.direction == "higher" else 1 / cell.ratio
        ceiling = 1 / (1 - share)
        if gain > ceiling * (1 + 1e-9):
            found.append(
                Finding(
                    "BC-12",
                    "info",
                    f"{_quoted(item.label)} gains {times(gain)}, but the changed part is {_percent(share)} of the step "
                    f"and allows {times(ceiling)} at most: something else changed too.",
                    (headline.key, "changed_share"),
                )
            )
    return found


def _without_mode(item: Item, base: Item, fields: list[str]) -> list[str]:
    """The fields without the mode where that has a finding of its own."""
    return [key for key in fields if key != "mode" or not unlike(item, base)]


def _named(hits: Sequence[tuple[Item, list[str]]], base: Item) -> str:
    """Which items differ from the baseline in what: up to four of them by name."""
    parts = [
        f"{_quoted(item.label)} has "
        + ", ".join(
            f"{_FIELD[key].label} {_text(item.frozen[key])} instead of {_text(base.frozen[key])}" for key in fields
        )
        for item, fields in hits[:4]
    ]
    more = f"; {len(hits) - 4} more differ too" if len(hits) > 4 else ""
    return "; ".join(parts) + more + "."


def _unstated(items: Sequence[Item]) -> tuple[str, ...]:
    """Main facts that some item does not state. A field that nobody states is not the comparison's affair."""
    runs = [item for item in items if item.kind == "run"]
    watched: tuple[str, ...] = ("model", "hardware", "concurrency", "dtypes.weights", "launch_mode")
    if any(item.frozen.get("mode") == "kernel" for item in runs):
        watched = (*watched, "clocks", "timed_region")
    if len(items) < 2 or not runs:
        return ()
    return tuple(
        key
        for key in watched
        if any(item.frozen.get(key) is None for item in items)
        and any(item.frozen.get(key) is not None for item in items)
    )


# ---- ledger ---------------------------------------------------------------------------------------------------------


def _ledger(row: Row | None, items: Sequence[Item], baseline: int) -> Ledger | None:
    """The chain of booked changes on the headline metric; None where no item says how to book it."""
    booked = [number for number, item in enumerate(items) if number != baseline and item.book_as is not None]
    if row is None or row.direction is None or not booked:
        return None
    base = row.cells[baseline]
    refused: list[tuple[int, str]] = []
    entries: list[LedgerEntry] = []
    by_book: dict[Book, Fraction] = {}
    total = Fraction(1)
    previous = baseline
    for number in booked:
        item, cell, before = items[number], row.cells[number], row.cells[previous]
        book = item.book_as
        assert book is not None
        if base is None or base.value <= 0:
            refused.append((number, f"the baseline does not report {row.label}"))
        elif cell is None or cell.value <= 0:
            refused.append((number, f"it does not report {row.label}"))
        elif unlike(item, items[previous]):
            refused.append((number, unlike(item, items[previous])))
        elif cell.kind != base.kind:
            refused.append((number, f"it is {_article(cell.kind)}, the baseline {_article(base.kind)}"))
        else:
            assert before is not None
            # exact: products of rounded quotients would miss the total by a last digit
            after_over_before = Fraction(cell.value) / Fraction(before.value)
            gain = after_over_before if row.direction == "higher" else 1 / after_over_before
            changed = _changed(item, items[previous])
            entries.append(LedgerEntry(number, previous, book, before.value, cell.value, gain, changed))
            by_book[book] = by_book.get(book, Fraction(1)) * gain
            total *= gain
            previous = number
    ordered = {book: by_book[book] for book in BOOKS if book in by_book}
    return Ledger(row.key, row.label, row.unit, tuple(entries), ordered, total, tuple(refused))


def _article(kind: ValueKind) -> str:
    return {"measured": "measured", "bound": "a bound", "expected": "a forecast"}[kind]
