"""The gate for continuous integration: is a run worse than its baseline, by more than is allowed and noise?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from app.domain.comparison_items import FROZEN_FIELDS
from app.domain.comparison_metrics import metric_direction
from app.domain.errors import InvalidInput
from app.domain.run import HIGHER_IS_BETTER, LOWER_IS_BETTER, METRIC_UNITS, STATS, Finding
from app.services.context import Context
from app.services.contracts import Contract
from app.services.history import fill_series, in_order
from app.services.noise import CONFIDENCE, LOCATION_STATS, noise_of
from app.services.run_json import finding_json
from app.services.runs import get_view, series_of_run
from app.storage import runs
from app.storage.records import StoredRun

SERIES = "series"
"""The word for a baseline that is found in the run's own history."""

LAST = 5
"""Runs of the history that stand for a baseline where none is marked."""


class CheckRule(Contract):
    """A metric (`ttft_s.p99`, or a name alone for its plain value, mean or median) and how much worse it may be."""

    metric: Annotated[str, Field(min_length=1, max_length=80)]
    max_regression: Annotated[float, Field(ge=-1, le=1e6)]


class CheckRequest(Contract):
    """A run against a baseline: a run's id, or `series`; without one, the run's own baseline.

    `series` is the marked baseline of the run's history, else the median of its `last` runs before this one.
    `max_regression` 0.05 allows 5 % worse.
    """

    run: Annotated[str, Field(min_length=1, max_length=80)]
    baseline: Annotated[str, Field(min_length=1, max_length=80)] | None = None
    last: Annotated[int, Field(ge=1, le=50)] = LAST
    rules: Annotated[list[CheckRule], Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What a run is held against: one run, or several of which the median counts."""

    kind: str
    runs: tuple[StoredRun, ...]


def check_run(ctx: Context, request: CheckRequest) -> dict[str, Any]:
    """Whether no metric is worse than its rule allows. What cannot be compared does not pass.

    A regression is how much worse the run is, over the baseline's value: 0.1 is 10 % slower (or 10 % less throughput);
    below zero it is better. Where both carry samples of the metric, a regression above its limit that noise explains
    passes, and says so. Raises NotFound, or InvalidInput for a baseline that is not there or a metric that has no
    better direction.
    """
    with ctx.storage.read() as session:
        run = runs.get_run(session=session, run_id=request.run)
    against = _baseline(ctx, run, request)
    rows = [_check(rule, run, against, index) for index, rule in enumerate(request.rules)]
    return {
        "passed": all(row["passed"] for row in rows),
        "run": run.id,
        "baseline": against.runs[0].id if len(against.runs) == 1 else None,
        "baseline_kind": against.kind,
        "baseline_runs": [other.id for other in against.runs],
        "rows": rows,
        "findings": [finding_json(finding) for finding in _findings(ctx, run, against)],
    }


def _baseline(ctx: Context, run: StoredRun, request: CheckRequest) -> _Baseline:
    wanted = request.baseline or run.baseline_run_id
    if wanted is None:
        raise InvalidInput(
            ("baseline",), 'give one: the run has no baseline of its own. "series" takes it from the run\'s history'
        )
    if wanted != SERIES:
        with ctx.storage.read() as session:
            return _Baseline("run", (runs.get_run(session=session, run_id=wanted),))
    fill_series(ctx)
    key = series_of_run(ctx, run).key
    with ctx.storage.read() as session:
        found = in_order([r for r in runs.runs_of_series(session=session, key=key) if r.id != run.id])
        marked = next((other for other in reversed(found) if other.is_baseline), None)
        if marked is not None:
            return _Baseline("marked", (runs.get_run(session=session, run_id=marked.id),))
        order = {other.id: place for place, other in enumerate(in_order([*found, run]))}
        earlier = [other for other in found if order[other.id] < order[run.id]][-request.last :]
        if not earlier:
            raise InvalidInput(
                ("baseline",),
                "the run's history has no marked baseline and no earlier run: mark one, or name a run",
            )
        whole = tuple(runs.get_run(session=session, run_id=other.id) for other in earlier)
    return _Baseline("last" if len(whole) > 1 else "previous", whole)


def _check(rule: CheckRule, run: StoredRun, against: _Baseline, index: int) -> dict[str, Any]:
    name, _, stat = rule.metric.partition(".")
    loc = ("rules", index, "metric")
    if name not in METRIC_UNITS or (stat and stat not in STATS):
        raise InvalidInput(loc, f"unknown metric {rule.metric!r}: write for example ttft_s.p99 or output_tokens_per_s")
    if name not in LOWER_IS_BETTER and name not in HIGHER_IS_BETTER:
        raise InvalidInput(loc, f"{name} describes the load: neither more nor less of it is better")
    lower = name in LOWER_IS_BETTER
    value, before, used = _values(run, against, name, stat or None)
    row: dict[str, Any] = {
        "metric": rule.metric,
        "unit": METRIC_UNITS[name],
        "better": "lower" if lower else "higher",
        "value": value,
        "baseline": before,
        "ratio": None,
        "regression": None,
        "max_regression": rule.max_regression,
        "passed": False,
        "decided_by": "missing",
        "noise": None,
    }
    if value is None or before is None:
        lacking = " and ".join(who for who, v in (("the run", value), ("the baseline", before)) if v is None)
        return row | {"note": f"{rule.metric} is not reported by {lacking}"}
    if before == 0:
        same = value == 0
        note = "both are zero" if same else "the baseline is zero, so there is no ratio"
        better = value < 0 if lower else value > 0
        return row | {
            "regression": 0.0 if same else None, "passed": same or better, "decided_by": "limit", "note": note
        }  # fmt: skip
    regression = (value - before if lower else before - value) / abs(before)
    within = regression <= rule.max_regression + 1e-12
    row |= {"ratio": value / before, "regression": regression, "passed": within, "decided_by": "limit"}
    samples = [v for other in against.runs for v in other.parsed.samples.get(name, ())]
    noise = noise_of(run.parsed.samples.get(name, ()), samples, used, lower_is_better=lower)
    if noise is None:
        return row
    row["noise"] = {
        "test": "mann-whitney" if used in LOCATION_STATS else "bootstrap",
        "p_value": noise.p_value,
        "low": noise.low,
        "high": noise.high,
        "confidence": CONFIDENCE,
        "samples": list(noise.samples),
        "significant": noise.significant,
    }
    if not within and not noise.significant:
        row |= {
            "passed": True,
            "decided_by": "noise",
            "note": f"worse by {regression:.1%}, which noise explains: {CONFIDENCE:.0%} interval of the regression "
            f"{noise.low:+.1%} to {noise.high:+.1%}, p = {noise.p_value:.2g}. Repeat with more samples to be sure.",
        }
    elif within and noise.significant:
        row["note"] = f"worse by {regression:.1%} beyond noise, and within what is allowed"
    return row


def _values(
    run: StoredRun, against: _Baseline, name: str, stat: str | None
) -> tuple[float | None, float | None, str | None]:
    """The run's value, the baseline's (the median of several), and the statistic that both report."""
    value = before = None
    for wanted in (stat,) if stat else (None, "mean", "p50"):
        value = run.parsed.value(name, wanted)
        known = [v for other in against.runs if (v := other.parsed.value(name, wanted)) is not None]
        before = statistics.median(known) if known else None
        if value is not None and before is not None:
            return value, before, wanted
    return value, before, stat


_ALIKE = ("mode", "batch", "concurrency", "request_rate", "input_len", "output_len", "context_len", "launch_mode")


def _findings(ctx: Context, run: StoredRun, against: _Baseline) -> list[Finding]:
    """What a reader must know before believing the answer; it is said, and does not decide."""
    from app.services.compare import run_frozen

    here = get_view(ctx, run.id)
    found: list[Finding] = []
    errors = [finding.check for finding in here.findings if finding.severity == "error"]
    if errors:
        found.append(
            Finding(
                "run-contradicts-itself",
                "error",
                f"The run holds contradictions ({', '.join(dict.fromkeys(errors))}): explain them before its numbers "
                "decide anything.",
                tuple(dict.fromkeys(errors)),
            )
        )
    mine = run_frozen(here)
    keys = [
        known.key
        for known in FROZEN_FIELDS
        if known.key in (*_ALIKE, "model", "hardware", "devices", "parallel", "clocks")
        or known.key.startswith("dtypes.")
    ]
    differing: dict[str, str] = {}
    for other in against.runs:
        theirs = run_frozen(get_view(ctx, other.id))
        for key in keys:
            a, b = mine.get(key), theirs.get(key)
            if a is not None and b is not None and not _alike(a, b):
                differing.setdefault(key, f"{key} {_shown(a)} against {_shown(b)}")
    if run.format != against.runs[0].format:
        differing.setdefault("format", f"format {run.format} against {against.runs[0].format}")
    if differing:
        found.append(
            Finding(
                "unlike-baseline",
                "warning",
                f"The two are not of the same work: {', '.join(differing.values())}.",
                tuple(differing),
            )
        )
    return found


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= 0.02 * max(abs(a), abs(b))
    return str(a).casefold() == str(b).casefold()


def rule_metrics(run: StoredRun) -> Sequence[str]:
    """Keys of a run that a rule can be made for: those with a better direction, in the file's order."""
    return tuple(dict.fromkeys(m.key for m in run.parsed.metrics if metric_direction(m.key) is not None))
