"""Runs of one file as a sweep: which value tells them apart, and their step times over it, beside the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.run_analysis import analyse_run
from app.services.context import Context
from app.services.run_points import sweep_of
from app.services.runs import linked, stated_fields
from app.storage import runs
from app.storage.records import RunSummary, StoredRun

MOST_RUNS = 120
"""Runs of one file that are charted; more would be neither readable nor quick."""

MOST_LINES = 6

X_PREFERENCE: tuple[str, ...] = (
    "concurrency",
    "request_rate",
    "n_depth",
    "context_len",
    "batch",
    "n_prompt",
    "input_len",
    "output_len",
    "n_gen",
    "tp",
)
X_WORDS: Mapping[str, str] = {
    "concurrency": "Requests in flight",
    "request_rate": "Requests per second asked for",
    "n_depth": "Tokens in the cache before the test",
    "context_len": "Context tokens",
    "batch": "Batch",
    "n_prompt": "Prompt tokens",
    "n_gen": "Generated tokens",
    "input_len": "Mean prompt tokens",
    "output_len": "Mean output tokens",
    "tp": "Tensor parallel",
}
WHAT_TITLES: Mapping[str, str] = {
    "decode": "Time per decoded token",
    "prefill": "Time of a prefill",
    "train": "Time of a training step",
    "whole": "Time from prompt to last token",
    "kernel": "Time of a call",
}
_TIMES: Mapping[str, tuple[str, ...]] = {
    "decode": ("tpot_s",),
    "prefill": ("prefill_time_s", "ttft_s"),
    "train": ("step_time_s",),
    "whole": ("latency_s",),
    "kernel": ("kernel_time_s", "latency_s"),
}
_WANTED: Mapping[str, tuple[str, ...]] = {
    "serve": ("decode", "prefill"),
    "latency": ("decode", "prefill", "whole"),
}


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One run: its value on the axis, its measured time in seconds, and the bound where there is one."""

    run_id: str
    name: str
    x: float
    measured: float
    bound: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """One kind of step over one value. `lines` maps a label (empty for a single line) to its points by rising x."""

    what: str
    title: str
    x_key: str
    x_label: str
    lines: Mapping[str, tuple[SweepPoint, ...]]


def sweeps_of(ctx: Context, siblings: Sequence[RunSummary]) -> tuple[Sweep, ...]:
    """Charts that the runs of one file make up; none where nothing varies."""
    if len(siblings) < 2:
        return ()
    with ctx.storage.read() as session:
        whole = [runs.get_run(session=session, run_id=run.id, with_kernels=False) for run in siblings[:MOST_RUNS]]
    measured: dict[str, list[tuple[StoredRun, float, float | None]]] = {}
    for run in whole:
        for what, time, bound in _times_of(ctx, run):
            measured.setdefault(what, []).append((run, time, bound))
    found = (_sweep(what, points) for what, points in measured.items())
    return tuple(sweep for sweep in found if sweep is not None)


def _times_of(ctx: Context, run: StoredRun) -> list[tuple[str, float, float | None]]:
    hardware, model, _ = linked(ctx, run)
    rows = analyse_run(run.parsed, hardware, model, stated_fields(ctx, run)).rows
    if rows:
        return [(row.what, row.measured, row.bound) for row in rows]
    if sweep_of(run.parsed) is not None:  # its points are charted by themselves
        return []
    mode = run.parsed.workload.mode or ""
    wanted = _WANTED.get(mode, (mode,) if mode in _TIMES else ())
    times: list[tuple[str, float, float | None]] = []
    for what in wanted:
        values = [run.parsed.value(name, "mean", None, "p50") for name in _TIMES[what]]
        value = next((v for v in values if v is not None and v > 0), None)
        if value is not None:
            times.append((what, value, None))
    return times


def _sweep(what: str, points: Sequence[tuple[StoredRun, float, float | None]]) -> Sweep | None:
    series: list[dict[str, float | str]] = [
        {**{f"software {key}": version for key, version in run.parsed.software.items()}, **run.parsed.series}
        for run, _, _ in points
    ]
    keys = list(dict.fromkeys(key for told in series for key in told))
    numbers = {key: {s[key] for s in series if isinstance(s.get(key), (int, float))} for key in keys}
    varying = [key for key, values in numbers.items() if len(values) > 1]
    if not varying:
        return None
    rank = {key: place for place, key in enumerate(X_PREFERENCE)}
    x_key = max(varying, key=lambda key: (len(numbers[key]), -rank.get(key, len(rank))))
    # A value that is another one in every run (a mean length, the rate that belongs to a concurrency) makes no lines.
    told_of = {key: [str(s[key]) for s in series if key in s] for key in keys}
    others = [
        key
        for key, told in told_of.items()
        if key not in (x_key, "test")
        and (len(set(told)) > 1 or len(told) < len(series))
        and (len(set(told)) < len(told) or len(told) == 1)
    ]
    lines: dict[str, list[SweepPoint]] = {}
    for (run, time, bound), told in zip(points, series, strict=True):
        x = told.get(x_key)
        if not isinstance(x, (int, float)):
            continue
        label = ", ".join(f"{_word(key)} {_shown(told[key])}" for key in others if key in told)
        lines.setdefault(label, []).append(SweepPoint(run.id, run.name, float(x), time, bound))
    if len(lines) > MOST_LINES:  # too many to tell apart: one cloud of points
        lines = {"": [point for line in lines.values() for point in line]}
    waited = what == "prefill" and any(run.parsed.workload.mode == "serve" for run, _, _ in points)
    return Sweep(
        what=what,
        title="Time to first token" if waited else WHAT_TITLES[what],
        x_key=x_key,
        x_label=X_WORDS.get(x_key, x_key),
        lines={label: tuple(sorted(line, key=lambda point: point.x)) for label, line in lines.items()},
    )


def _word(key: str) -> str:
    key = key.removeprefix("software ")
    return {"n_prompt": "prompt", "n_gen": "generated", "n_depth": "depth"}.get(key, key.replace("_", " "))


def _shown(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else value
