"""A diagnosis' values in words."""

from __future__ import annotations

from app.domain.decision_tree import TreeMetric, Value
from app.domain.words import share_text

TIMES: frozenset[str] = frozenset(
    {
        "batch_over_critical",
        "comm_overlap_slowdown",
        "itl_p99_over_p50",
        "load_floor",
        "load_max_over_mean",
        "load_p99_over_mean",
        "rank_time_max_over_mean",
        "rank_token_max_over_mean",
        "recompiles_per_100_steps",
        "second_ratio",
        "skew",
        "step_p95_over_p50",
    }
)
"""Ratios that people read as "times" and not as a percentage."""

LEAST_RATIO = 0.001
"""Ratio under which its size says nothing more to a reader."""


def value_text(metric: TreeMetric, value: Value) -> str:
    """A value with its unit, as a sentence says it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if metric.unit == "1":
        if metric.name not in TIMES:
            return share_text(value)
        return f"under {LEAST_RATIO:g}" if 0 < value < LEAST_RATIO else f"{value:.3g}"
    unit = _ONE.get(metric.unit, metric.unit) if value == 1 else metric.unit
    per = {"1/min": " a minute", "1/step": " a step"}.get(metric.unit, f" {unit}")
    return f"{value:,.4g}{per}"


_ONE = {"devices": "device", "errors": "error", "steps": "step", "passes": "pass", "tokens": "token"}

LIMIT_WORDS = {"at_most": "at most ", "at_least": "at least ", "": ""}


def limit_words(limit: str | None, value_words: str) -> str:
    """What stands before a value that is a limit; a value that says so itself needs nothing."""
    return "" if value_words.startswith("under ") else LIMIT_WORDS[limit or ""]
