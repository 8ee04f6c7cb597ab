"""Comparing runs and estimates: one row for each metric, ratios to a baseline, what differs, and whose gain is whose.

Only like is held against like. Metrics align by name and statistic, so their units agree; a ratio is refused, with the
reason, where the items measured different phases or where a bound belongs to another model, device or load. A bound
beside a measurement says how far the measurement is from it; it is never called better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from app.domain.comparison_findings import findings_of
from app.domain.comparison_items import (
    BOOKS,
    FIELD_OF_KEY,
    LOAD_FIELDS,
    Book,
    Cell,
    Comparison,
    Item,
    Ledger,
    LedgerEntry,
    Row,
    Value,
    ValueKind,
    Verdict,
    changed_fields,
    differences_of,
    disagree,
    quoted,
    unlike,
)
from app.domain.comparison_metrics import (
    DERIVED_UNITS,
    Direction,
    metric_direction,
    metric_label,
    metric_unit,
    split_key,
)
from app.domain.errors import InvalidInput
from app.domain.run import METRIC_UNITS, STATS
from app.domain.words import factor_text, share_text

SAME_WITHIN = 0.005
"""Relative difference below which two values are called the same; a printed ratio would read 1.00."""

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
    differences = differences_of(items)
    return Comparison(
        baseline=baseline,
        rows=rows,
        headline=headline,
        sentence=_sentence(row, items, baseline),
        differences=differences,
        findings=tuple(findings_of(items, baseline, rows, row)),
        ledger=_ledger(row, items, baseline),
    )


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
        described = metric_direction(name) is None
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
            cells.append(_cell(value, item, base, items[baseline], direction))
    return Row(key, name, stat, metric_label(key), metric_unit(name), direction, tuple(cells))


def _cell(value: Value, item: Item, base: Value | None, base_item: Item, direction: Direction | None) -> Cell:
    def refused(reason: str) -> Cell:
        return Cell(value.value, value.kind, None, "refused", "no ratio", reason, low=value.low, high=value.high)

    if base is None or not math.isfinite(base.value):
        return refused("the baseline does not report it")
    if base.value <= 0 or value.value < 0 or (value.value == 0 and direction is not None):
        if base.value == value.value:
            return Cell(value.value, value.kind, None, "same", "the same", low=value.low, high=value.high)
        return refused("a ratio needs two values above zero")
    reason = unlike(item, base_item)
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
    differs = [f for f in ("model", "hardware", *LOAD_FIELDS) if disagree(item, base_item, f)]
    if differs and not is_expected:
        names = ", ".join(FIELD_OF_KEY[f].label for f in differs)
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
        words = f"{subject} {share_text(share)} {target}: a contradiction to explain"
        return Cell(
            value.value, value.kind, ratio, "contradiction", words, of_bound=share, low=value.low, high=value.high
        )
    words = f"{subject} {share_text(share)} {target}"
    return Cell(value.value, value.kind, ratio, "of_bound", words, of_bound=share, low=value.low, high=value.high)


def _judged(ratio: float, direction: Direction | None) -> tuple[Verdict, str]:
    if abs(ratio - 1) < SAME_WITHIN:
        return "same", f"{factor_text(ratio)}, the same"
    if direction is None:
        return "changed", factor_text(ratio)
    better = (ratio > 1) == (direction == "higher")
    return ("better" if better else "worse"), f"{factor_text(ratio)}, {'better' if better else 'worse'}"


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
        return f"Nothing can be held against {quoted(base.label)}{why}."
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
        said = f"{quoted(measured)} reaches {share_text(cell.of_bound)} of the {what} {quoted(estimate)} in {row.label}"
        return said + (", which cannot be: something stated is wrong" if cell.verdict == "contradiction" else "")
    by = {"bound": "By their bounds, ", "expected": "By what is expected, ", "measured": ""}[cell.kind]
    if cell.verdict == "same":
        return f"{by}{quoted(label)} and {quoted(base)} have the same {row.label}"
    verb = {"higher": "reaches", "lower": "takes", None: "has"}[row.direction]
    return f"{by}{quoted(label)} {verb} {factor_text(cell.ratio)} the {row.label} of {quoted(base)}"


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
            changed = changed_fields(item, items[previous])
            entries.append(LedgerEntry(number, previous, book, before.value, cell.value, gain, changed))
            by_book[book] = by_book.get(book, Fraction(1)) * gain
            total *= gain
            previous = number
    ordered = {book: by_book[book] for book in BOOKS if book in by_book}
    return Ledger(row.key, row.label, row.unit, tuple(entries), ordered, total, tuple(refused))


def _article(kind: ValueKind) -> str:
    return {"measured": "measured", "bound": "a bound", "expected": "a forecast"}[kind]
