"""Prompt and answer lengths of single requests, as serving clients write them beside their summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.run import Finding
from app.importers.fields import Fields

MOST_KEPT = 4096
"""Requests whose lengths are kept with a run; of more, as many are taken evenly over the run."""

MOST_TOKENS = 2.0**40


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """`samples` by name, with a `summary` over all requests, and what is said about it."""

    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    summary: dict[str, dict[str, float]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def request_lengths(record: Fields) -> RequestLengths:
    """The lengths in `input_lens` and `output_lens`, tokens of each request that did not fail.

    A prompt belongs to the answer in the same place: where both lists have one entry a request they stay together.
    Entries that are no counts are left out and said.
    """
    prompts, answers = _list(record, "input_lens"), _list(record, "output_lens")
    if not prompts and not answers:
        return RequestLengths()
    errors = _list(record, "errors")
    known = {"input_tokens": prompts, "output_tokens": answers}
    together = len(prompts) == len(answers)
    columns = {name: _counts(values) for name, values in known.items() if values}
    good = {name: ~np.isnan(column) & ~_failed(errors, column.size) for name, column in columns.items()}
    if together:
        both = np.logical_and.reduce(list(good.values()))
        good = {name: np.array(both) for name in columns}
    findings = []
    unread = sum(int(np.isnan(column).sum()) for column in columns.values())
    if unread:
        findings.append(
            Finding(
                "lengths-unread",
                "warning",
                f"{unread:,} of the lengths of single requests are no whole counts of tokens and were left out.",
                ("input_lens", "output_lens"),
            )
        )
    if prompts and answers and not together:
        findings.append(
            Finding(
                "lengths-apart",
                "warning",
                f"{len(prompts):,} prompt lengths stand beside {len(answers):,} answer lengths, so no prompt is known "
                "to belong to an answer.",
                ("input_lens", "output_lens"),
            )
        )
    samples: dict[str, tuple[float, ...]] = {}
    summary: dict[str, dict[str, float]] = {}
    whole = 0
    for name, column in columns.items():
        values = column[good[name]]
        if not values.size or not values.any():
            continue
        whole = max(whole, values.size)
        summary[name] = _summary(values)
        samples[name] = tuple(values[_evenly(values.size)].tolist())
    if whole > MOST_KEPT:
        findings.append(
            Finding(
                "lengths-cut",
                "info",
                f"Of {whole:,} requests the lengths of {MOST_KEPT:,} are kept, taken evenly over the run. "
                f"All of them: {'; '.join(_words(name, stats) for name, stats in summary.items())}.",
                ("input_lens", "output_lens"),
            )
        )
    return RequestLengths(samples, summary, tuple(findings))


def _list(record: Fields, key: str) -> list[Any]:
    value = record.raw(key)
    return value if isinstance(value, list) else []


def _counts(values: list[Any]) -> NDArray[np.float64]:
    """Whole counts of tokens; anything else becomes NaN."""
    return np.array([float(item) if _is_count(item) else np.nan for item in values], dtype=np.float64)


def _is_count(item: Any) -> bool:
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return False
    return 0 <= item <= MOST_TOKENS and item == int(item)


def _failed(errors: list[Any], requests: int) -> NDArray[np.bool_]:
    failed = [isinstance(text, str) and text != "" for text in errors[:requests]]
    return np.array(failed + [False] * (requests - len(failed)), dtype=bool)


def _evenly(count: int) -> NDArray[np.int64]:
    """Places of the kept requests: all, or the middles of equal shares of the run."""
    if count <= MOST_KEPT:
        return np.arange(count, dtype=np.int64)
    return np.floor((np.arange(MOST_KEPT) + 0.5) * count / MOST_KEPT).astype(np.int64)


def _summary(values: NDArray[np.float64]) -> dict[str, float]:
    p50, p95, p99 = (float(value) for value in np.percentile(values, [50, 95, 99]))
    return {
        "count": float(values.size),
        "mean": float(values.mean()),
        "min": float(values.min()),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": float(values.max()),
    }


def _words(name: str, stats: dict[str, float]) -> str:
    what = "prompts" if name == "input_tokens" else "answers"
    return (
        f"{what} mean {stats['mean']:,.4g}, p50 {stats['p50']:,.6g}, p95 {stats['p95']:,.6g}, "
        f"p99 {stats['p99']:,.6g}, max {stats['max']:,.6g} tokens"
    )
