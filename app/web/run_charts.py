"""Charts of a run's page, and the sentences that they come to."""

from __future__ import annotations

from typing import Any

from app.charts.run_points import PointOfLine, run_points, value_words
from app.charts.run_series import SeriesPoint, run_series
from app.domain.run import ParsedRun
from app.domain.run_analysis import BoundRow
from app.domain.run_steps import WHAT_WORDS
from app.domain.words import share_text
from app.services.run_points import PointChart, best_point
from app.services.run_sweep import Sweep
from app.services.runs import RunView


def gap_title(row: BoundRow) -> str:
    """What the chart of the gap comes to."""
    if row.contradicts:
        return "The measured time is below the bound: something stated is wrong"
    rest = next((part.time for part in row.gap if part.term == "unexplained"), 0.0)
    if rest <= 0:
        return "Bound and named terms explain the whole time"
    return f"{share_text(rest / row.measured)} of the measured time is not explained"


def conditions_of(view: RunView, row: BoundRow) -> str:
    """What a step was measured with, in one line."""
    w = row.workload
    shape = {
        "decode": f"batch {w.batch:,}, context {w.context_len:,}",
        "prefill": f"{w.batch:,} × {w.seq_len:,} prompt tokens"
        + (f" after {w.context_len:,}" if w.context_len else ""),
        "train": f"batch {w.batch:,} × {w.seq_len:,} tokens",
    }[row.what]
    model = view.model.name if view.model else ""
    hardware = view.hardware.name if view.hardware else ""
    devices = f"{row.devices:,} × " if row.devices > 1 else ""
    weights = f"{w.dtypes.weights_bits:.3g}-bit" if w.dtypes.weights_bits is not None else w.dtypes.weights
    return f"{WHAT_WORDS[row.what]}: {model} on {devices}{hardware}, {shape}, {weights} weights, {w.dtypes.kv} KV cache"


def sweep_chart(sweep: Sweep) -> dict[str, Any]:
    """The runs of a sweep beside their bounds."""
    lines = {
        name: [SeriesPoint(p.name, p.x, p.measured, p.bound, f"/runs/{p.run_id}") for p in line]
        for name, line in sweep.lines.items()
    }
    bounded = [p for line in sweep.lines.values() for p in line if p.bound is not None]
    title = f"{sweep.title} over {sweep.x_label[:1].lower()}{sweep.x_label[1:]}"
    if bounded:
        best = max(bounded, key=lambda p: (p.bound or 0.0) / p.measured)
        title += f": at best {share_text((best.bound or 0.0) / best.measured)} of the bound"
    return {
        "id": f"sweep-{sweep.what}",
        "spec": run_series(lines, x_label=sweep.x_label, y_label=sweep.title, title=title),
    }


def micro_sentence(parsed: ParsedRun) -> str:
    """What a micro-benchmark comes to, which no model of a step says: its best rate, or the time of a call."""
    best = best_point(parsed)
    if best is not None:
        axis, row = best
        subject = str(parsed.workload.extra["sweep"].get("label") or parsed.name)
        subject = subject[:1].upper() + subject[1:] if subject.islower() else subject
        value, where = value_words(row[axis["key"]], axis["unit"]), str(row.get("name", ""))
        word = axis["label"][:1].lower() + axis["label"][1:]
        of_what = "" if word in ("rate", "time") or not axis["unit"].endswith("/s") else f" of {word}"
        return f"{subject}: {value}{of_what}, {where}."
    problems = parsed.workload.extra.get("problems")
    typical = parsed.value("kernel_time_s", "p50")
    if problems and typical:
        return f"{value_words(typical, 's')} in the median of {problems} problems."
    if parsed.workload.mode != "kernel":
        return ""
    for name in ("latency_s", "kernel_time_s"):
        for stat, words in (("p50", " in the median"), ("mean", " on average"), (None, "")):
            took = parsed.value(name, stat)
            if name == "kernel_time_s" and stat is None and parsed.kernels:
                continue  # a profile's plain kernel time is that of all its kernels
            if took is not None and took > 0:
                return f"A call takes {value_words(took, 's')}{words}."
    return ""


def points_chart(chart: PointChart) -> dict[str, Any]:
    """The points of a run beside those of its siblings."""
    lines = {
        name: [PointOfLine(p.x, p.y, p.name, f"/runs/{p.run_id}" if p.run_id else "") for p in line]
        for name, line in chart.lines.items()
    }
    spec = run_points(
        lines,
        own=chart.own,
        x_label=chart.x_label,
        x_unit=chart.x_unit,
        y_label=chart.label,
        y_unit=chart.unit,
        title=_points_title(chart),
        ordered=chart.ordered,
        linear=chart.linear,
    )
    return {"id": f"points-{chart.key.replace('.', '-')}", "spec": spec}


def _points_title(chart: PointChart) -> str:
    """What the run's own lines come to: the best rate and where it is, or the range of the times."""
    own = [point for line in list(chart.lines.values())[: chart.own] for point in line]
    # Names of dimensions (V, BT, M) keep their capitals.
    varied = chart.x_label if len(chart.x_label) <= 2 else chart.x_label[:1].lower() + chart.x_label[1:]
    over = f"{chart.label} over {varied}"
    if not own:
        return over
    least, most = min(own, key=lambda p: p.y), max(own, key=lambda p: p.y)
    if chart.unit.endswith("/s"):
        where = value_words(most.x, chart.x_unit) if chart.x_unit else f"{varied} {most.x:g}"
        return f"{over}: up to {value_words(most.y, chart.unit)} at {where}"
    return f"{over}: {value_words(least.y, chart.unit)} to {value_words(most.y, chart.unit)}"
