"""Tables of a run's page: its steps, its metrics, what its file says, and the runs beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.charts.kv import length_spread
from app.domain.run import METRIC_UNITS, STATS, Metric, ParsedRun
from app.domain.run_steps import WHAT_WORDS
from app.services import runs
from app.services.run_lengths import length_summaries
from app.services.runs import RunView
from app.storage.records import RunSummary
from app.web import formatting
from app.web.run_words import METRIC_WORDS, STAT_WORDS, key_words

MOST_SIBLINGS = 200


def bound_table(view: RunView) -> dict[str, Any] | None:
    """Every measured step against its bound; None where none could be held against one."""
    if not view.analysis.rows:
        return None
    rows = []
    for row in view.analysis.rows:
        w = row.workload
        tokens = f"{w.batch:,} × {w.seq_len:,}" if row.what != "decode" else f"{w.batch:,}"
        rows.append(
            [
                {"text": WHAT_WORDS[row.what], "note": row.how},
                _time_cell(row.measured, f"{row.measured_from}: {row.how}"),
                _time_cell(row.bound, "the busiest resource alone: the least time for what is stated"),
                _time_cell(row.serial_bound, "operations one after another"),
                None if row.expected is None else _time_cell(row.expected.time, row.expected.basis),
                row.of_bound,
                {"resource": row.binding},
                {"value": row.mfu, "source": {"kind": "computed", "note": f"at the dense {row.mfu_precision} peak"}}
                if row.mfu is not None
                else None,
                {"value": row.hfu, "source": {"kind": "computed", "note": "executed FLOP, recomputation included"}}
                if row.hfu is not None
                else None,
                {"value": row.mbu, "source": {"kind": "computed", "note": "least bytes over memory bandwidth"}},
                {"text": tokens},
                {"text": f"{w.context_len:,}"},
                {"text": f"{row.devices:,}"},
            ]
        )
    return {
        "columns": [
            {"label": "Step", "head": True},
            {"label": "Measured", "numeric": True},
            {"label": "Bound", "numeric": True, "title": "The busiest resource alone"},
            {"label": "Serial bound", "numeric": True, "title": "Operations one after another"},
            {"label": "Expected", "numeric": True, "title": "What a well-tuned stack takes"},
            {"label": "Of bound", "unit": "ratio", "title": "Bound over measured"},
            {"label": "Binds"},
            {"label": "MFU", "unit": "ratio"},
            {"label": "HFU", "unit": "ratio"},
            {"label": "MBU", "unit": "ratio"},
            {"label": "Batch", "numeric": True},
            {"label": "Context", "numeric": True},
            {"label": "Devices", "numeric": True},
        ],
        "rows": rows,
    }


def _time_cell(time: float, note: str) -> dict[str, Any]:
    """A time with a unit of its own: a decode step and a queued first token differ by thousands."""
    human = formatting.quantity(time, "s")
    return {"text": str(human), "value": time, "title": f"{human.exact} · {note}"}


def metric_group(title: str, rows: tuple[runs.MetricRow, ...]) -> dict[str, Any]:
    """A table of metrics: a row each, a column for each statistic that the file gives."""
    stats = [stat for stat in STATS if any(stat in row.stats for row in rows)]
    plain = any(row.plain is not None for row in rows)
    lines = []
    for row in rows:
        cells = [_metric_cell(row.plain)] if plain else []
        cells += [_metric_cell(row.stats.get(stat)) for stat in stats]
        lines.append(
            {
                "label": METRIC_WORDS.get(row.name, row.name),
                "name": row.name,
                "cells": cells,
                "better": row.better if title != runs.LOAD_GROUP else "",
            }
        )
    heads = (["Value"] if plain else []) + [STAT_WORDS[stat] for stat in stats]
    return {"title": title, "heads": heads, "rows": lines}


def _metric_cell(metric: Metric | None) -> dict[str, Any] | None:
    if metric is None:
        return None
    unit = "ratio" if metric.name in ("mfu", "hfu", "mbu") else metric.unit
    if metric.raw.startswith("computed"):
        written = metric.raw if metric.raw_unit in ("", metric.unit) else f"{metric.raw}, there in {metric.raw_unit}"
    else:
        written = f"written there as {metric.raw} {metric.raw_unit}".strip() if metric.raw else ""
    count = f"over {metric.count:,} observations" if metric.count else ""
    where = f"read from {metric.pointer}" if metric.pointer else "read from the file"
    note = ", ".join(part for part in (where, written, count) if part)
    return {
        "human": formatting.quantity(metric.value, unit),
        "value": metric.value,
        "source": {"kind": "measured", "note": note},
    }


_KIND_WORDS: Mapping[str, str] = {
    "serve": "serving load",
    "train": "training",
    "latency": "one batch, from prompt to last token",
}


def facts_of(view: RunView) -> list[tuple[str, str]]:
    """What the file says about the work and the software, in words."""
    parsed, w = view.run.parsed, view.run.parsed.workload
    found: list[tuple[str, Any]] = [
        ("Kind of run", _KIND_WORDS.get(w.mode or "", w.mode)),
        ("Model in the file", parsed.model_hint),
        ("Device in the file", parsed.hardware_hint),
        ("Request rate", "all at once" if w.request_rate == "inf" else _number(w.request_rate, " per s")),
        ("Concurrency", _number(w.concurrency)),
        ("Batch", _number(w.batch)),
        ("Prompt tokens", _number(w.input_len)),
        ("Output tokens", _number(w.output_len)),
        ("Context tokens", _number(w.context_len)),
        ("Layout in the file", ", ".join(f"{k.upper()} {v}" for k, v in parsed.parallel.items())),
        ("Precision in the file", ", ".join(f"{k} {v}" for k, v in w.dtypes.items())),
        ("Quantisation", w.extra.get("quantization")),
        ("Software", ", ".join(f"{k} {v}" for k, v in parsed.software.items())),
        ("Measured", formatting.when_stated(parsed.measured_at)),
        *((label, value if isinstance(value, str) else _number(value)) for label, value in _also(parsed).items()),
    ]
    return [(term, str(text)) for term, text in found if text not in (None, "")]


def _also(parsed: ParsedRun) -> dict[str, float | str]:
    """Values of the file that have no metric of their own; the label says the unit."""
    also = parsed.workload.extra.get("also")
    return dict(also) if isinstance(also, dict) else {}


def _number(value: float | str | None, unit: str = "") -> str | None:
    if value is None or value == "":
        return None
    return f"{value}{unit}" if isinstance(value, str) else f"{formatting.significant(float(f'{value:.6g}'))}{unit}"


def siblings_table(view: RunView) -> dict[str, Any]:
    """The runs of the same file, with the first four headline metrics that any of them has."""
    keys = [
        key
        for key in (
            "tpot_s",
            "ttft_s",
            "latency_s",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "output_tokens_per_s",
            "step_time_s",
            "samples_per_s",
            "kernel_time_s",
            "bus_bandwidth_bytes_per_s",
            "algorithm_bandwidth_bytes_per_s",
            "model_flop_per_s_per_device",
            "hbm_bytes_per_s",
            "duration_s",
            "loss",
        )
        if any(_headline(run, key) is not None for run in view.siblings)
    ][:4]
    rows = []
    for run in view.siblings[:MOST_SIBLINGS]:
        here = run.id == view.run.id
        first = {"text": run.name, "note": "this run"} if here else {"text": run.name, "href": f"/runs/{run.id}"}
        rows.append([first, *(_headline(run, key) for key in keys)])
    columns: list[dict[str, Any]] = [{"label": "Run", "head": True}]
    columns += [
        {"label": METRIC_WORDS[key], "numeric": True}
        if METRIC_UNITS[key] == "1"
        else {"label": METRIC_WORDS[key], "unit": METRIC_UNITS[key]}
        for key in keys
    ]
    return {"columns": columns, "rows": rows}


def _headline(run: RunSummary, name: str) -> float | None:
    return next((run.headline[key] for key in (name, f"{name}.mean", f"{name}.p50") if key in run.headline), None)


def lengths_section(parsed: ParsedRun) -> dict[str, Any] | None:
    """How long the run's requests were, where it lists them: a table, and a chart where they differ."""
    rows = length_summaries(parsed)
    if not rows:
        return None
    last = rows[-1]
    what = "Requests held" if len(rows) > 1 else f"{last.what}s had"
    title = f"{what} up to {last.most:,.0f} tokens, half of them at most {last.p50:,.0f}"
    spread = last.lengths if last.lengths.values.size > 1 else None
    return {
        "chart": None if spread is None else length_spread(spread, title=title, caption=last.what),
        "table": {
            "columns": [
                {"label": "Tokens of", "head": True},
                *({"label": name, "numeric": True} for name in ("Requests", "Mean", "Min", "p50", "p95", "p99", "Max")),
            ],
            "rows": [
                [row.what, *(_count_cell(value) for value in (row.count, row.mean, row.least, row.p50))]
                + [_count_cell(value) for value in (row.p95, row.p99, row.most)]
                for row in rows
            ],
        },
    }


def _count_cell(value: float) -> dict[str, Any]:
    return {"text": f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:,.4g}", "value": value}


def evaluations_table(parsed: ParsedRun) -> dict[str, Any] | None:
    """Evaluations that a training file lists, as it lists them."""
    told = parsed.workload.extra.get("evaluations")
    rows = [entry for entry in told if isinstance(entry, dict)][:MOST_SIBLINGS] if isinstance(told, list) else []
    keys = [key for key in dict.fromkeys(k for row in rows for k in row) if key != "at"]
    if not keys:
        return None
    units = {"runtime_s": "s", "samples_per_s": "1/s"}
    columns: list[dict[str, Any]] = [
        {"label": _EVALUATION_WORDS.get(key, key.replace("_", " ").capitalize()), "unit": units[key]}
        if key in units
        else {"label": _EVALUATION_WORDS.get(key, key.replace("_", " ").capitalize()), "numeric": key != "name"}
        for key in keys
    ]
    return {"columns": columns, "rows": [[row.get(key) for key in keys] for row in rows]}


_EVALUATION_WORDS: Mapping[str, str] = {
    "name": "Set",
    "samples": "After samples",
    "step": "After step",
    "runtime_s": "Time",
    "samples_per_s": "Samples per second",
    "loss": "Loss",
}


def baseline_table(view: RunView) -> dict[str, Any] | None:
    """The metrics that the run shares with its baseline; None where there are none."""
    rows = []
    for row in view.against_baseline:
        change = row.change
        word = "" if change is None else "the same" if change == 0 else "better" if change > 0 else "worse"
        rows.append(
            [
                key_words(row.key, begins=True),
                formatting.quantity(row.value, row.unit),
                formatting.quantity(row.baseline, row.unit),
                {
                    "text": "baseline is zero"
                    if change is None
                    else f"{formatting.percent(abs(change))} {word}".strip(),
                    "value": change,
                },
            ]
        )
    if not rows:
        return None
    columns = [
        {"label": "Metric", "head": True},
        {"label": "This run", "numeric": True},
        {"label": "Baseline", "numeric": True},
        {"label": "Change", "numeric": True},
    ]
    return {"columns": columns, "rows": rows}
