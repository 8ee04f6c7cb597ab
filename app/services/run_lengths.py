"""Sequence lengths that a run carries: what its requests held of the cache when they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.domain.errors import InvalidInput
from app.domain.lengths import Lengths
from app.domain.run import ParsedRun
from app.domain.workload import MAX_TOKENS
from app.services.context import Context
from app.services.runs import get_view
from app.storage.errors import NotFound


def lengths_of_run(run: ParsedRun) -> tuple[Lengths, str] | None:
    """The lengths that a run's requests had when they ended, and how it states them; None where it does not."""
    prompts, answers = run.samples.get("input_tokens"), run.samples.get("output_tokens")
    if prompts and answers and len(prompts) == len(answers):
        ends = [a + b for a, b in zip(prompts, answers, strict=True) if 1 <= round(a + b) <= MAX_TOKENS]
        if ends:
            return Lengths.of(map(round, ends)), f"prompt and answer of {len(ends):,} requests"
    for name in ("sequence_tokens", "context_tokens", "input_tokens"):
        listed = [value for value in run.samples.get(name, ()) if 1 <= round(value) <= MAX_TOKENS]
        if listed:
            return Lengths.of(map(round, listed)), f"{len(listed):,} samples of {name}"
    told = run.workload
    for total, words in (
        ((told.input_len or 0) + (told.output_len or 0), "mean prompt and answer"),
        (told.context_len or 0, "context"),
    ):
        if 1 <= round(total) <= MAX_TOKENS:
            return Lengths.fixed(1, round(total)), f"{words}, {round(total):,} tokens"
    return None


def stored_lengths(ctx: Context, run_id: str) -> tuple[Lengths, str, str]:
    """Lengths of a stored run, how it states them, and its name. Raises InvalidInput at `run`."""
    try:
        run = get_view(ctx, run_id).run
    except NotFound as error:
        raise InvalidInput(("run",), f"there is no run {run_id[:40]!r}") from error
    found = lengths_of_run(run.parsed)
    if found is None:
        raise InvalidInput(("run",), f"{run.name} states no lengths: neither prompts nor answers nor a context")
    return found[0], found[1], run.name


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """How the lengths of a run's requests are spread, over all of them where only some are kept."""

    what: str
    count: int
    mean: float
    least: float
    p50: float
    p95: float
    p99: float
    most: float
    lengths: Lengths


_WHAT: Mapping[str, str] = {"input_tokens": "Prompt", "output_tokens": "Answer"}


def length_summaries(run: ParsedRun) -> tuple[LengthSummary, ...]:
    """Prompts, answers and both together, of a run that lists its requests."""
    told = run.workload.extra.get("request_lengths")
    stated = told if isinstance(told, Mapping) else {}
    found = [_summary(what, run.samples[name], stated.get(name)) for name, what in _WHAT.items() if _counts(run, name)]
    prompts, answers = run.samples.get("input_tokens", ()), run.samples.get("output_tokens", ())
    if found and len(prompts) == len(answers):
        both = [a + b for a, b in zip(prompts, answers, strict=True)]
        found.append(_summary("Both: held at the end", both, None))
    return tuple(found)


def _counts(run: ParsedRun, name: str) -> bool:
    values = run.samples.get(name, ())
    return bool(values) and any(round(value) >= 1 for value in values)


def _summary(what: str, values: object, stated: object) -> LengthSummary:
    kept = np.asarray(values, dtype=np.float64)
    p50, p95, p99 = (float(value) for value in np.percentile(kept, [50, 95, 99]))
    own = {
        "count": float(kept.size),
        "mean": float(kept.mean()),
        "min": float(kept.min()),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": float(kept.max()),
    }
    if isinstance(stated, Mapping):
        own |= {key: float(value) for key, value in stated.items() if key in own and isinstance(value, (int, float))}
    positive = [min(max(round(value), 1), MAX_TOKENS) for value in kept.tolist()]
    return LengthSummary(
        what,
        round(own["count"]),
        own["mean"],
        own["min"],
        own["p50"],
        own["p95"],
        own["p99"],
        own["max"],
        Lengths.of(positive),
    )
