"""Pages of a run's history: all series, one series over time, and the check of a run against a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.charts.run_history import HistoryChange, HistoryPoint, run_history
from app.domain.comparison_metrics import metric_label, metric_unit, split_key
from app.domain.errors import InvalidInput
from app.services.check import LAST, SERIES, CheckRequest, check_run, rule_metrics
from app.services.context import Context
from app.services.history import History, get_history, list_history, place_of, software_words
from app.services.noise import METHOD
from app.services.runs import RunView, get_view
from app.storage.errors import NotFound
from app.web import formatting, rendering
from app.web.deps import Ctx

router = APIRouter(include_in_schema=False)

PAGE = 50
MOST_RULES = 12
DEFAULT_LIMIT = "5"
"""Per cent that a new check allows: below it most runs differ by chance."""

_FIRST = ("output_tokens_per_s", "total_tokens_per_s", "decode_tokens_per_s", "prefill_tokens_per_s", "tpot_s.mean",
          "tpot_s", "ttft_s.mean", "ttft_s.p99", "tpot_s.p99", "step_time_s.mean", "step_time_s", "latency_s.mean",
          "decode_time_s.mean", "prefill_time_s.mean", "requests_per_s", "peak_memory_bytes")  # fmt: skip


@router.get("/runs/series")
def series_list(request: Request, ctx: Ctx) -> HTMLResponse:
    text = request.query_params.get("page", "1")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
    number = max(number, 1)
    items, total = list_history(ctx, limit=PAGE, offset=(number - 1) * PAGE)
    context = {
        "items": items,
        "total": total,
        "next_url": f"/runs/series?page={number + 1}" if number * PAGE < total else "",
        "previous_url": f"/runs/series?page={number - 1}" if number > 1 else "",
    }
    return rendering.page(request, "run_series_list.html", context)


@router.get("/runs/series/{key}")
def series_page(request: Request, ctx: Ctx, key: str) -> HTMLResponse:
    """One series; `metric` picks what is followed. An unknown one falls back to the first, and is named."""
    asked = request.query_params.get("metric", "").strip()[:80] or None
    unknown = ""
    try:
        history = get_history(ctx, key, asked)
    except InvalidInput as error:
        history, unknown = get_history(ctx, key), error.reason
    context = {
        "history": history,
        "unknown": unknown,
        "metric_options": [(name, metric_label(name)) for name in history.metrics],
        "chart": _chart(history),
        "method": METHOD,
    }
    return rendering.page(request, "run_series.html", context, part="run_series_body.html")


def _chart(history: History) -> Any:
    points = history.valued
    if history.metric is None or not points:
        return None
    key = history.metric
    unit = metric_unit(split_key(key)[0])
    baseline = history.baseline.value if history.baseline is not None else None
    return run_history(
        [
            HistoryPoint(
                point.run.name,
                point.when,
                float(point.value or 0.0),
                point.low,
                point.high,
                f"/runs/{point.run.id}",
                software_words(point.run.parsed.software),
                point.samples,
                point.run.is_baseline,
            )
            for point in points
        ],
        [
            HistoryChange(
                change.index,
                f"change: {formatting.quantity(change.before, unit)} → {formatting.quantity(change.after, unit)}"
                f" (medians), p = {change.p_value:.2g}",
            )
            for change in history.changes
        ],
        baseline,
        y_label=metric_label(key)[:1].upper() + metric_label(key)[1:],
        unit=unit,
        title=history.sentence[:1].upper() + history.sentence[1:],
        caption=", ".join(part for part in (history.model, history.hardware, history.label) if part),
    )


# ---- check ----------------------------------------------------------------------------------------------------------


@router.get("/runs/{run_id}/check")
def check_page(request: Request, ctx: Ctx, run_id: str) -> HTMLResponse:
    """A plain GET form: the address is the check, and can be sent to somebody."""
    view = get_view(ctx, run_id)
    asked = request.query_params
    metrics = _offered(view)
    limits = {key: asked[f"max.{key}"].strip()[:20] for key in metrics if f"max.{key}" in asked}
    place = place_of(ctx, view.run)
    baseline = asked.get("baseline", "").strip()[:80]
    if not baseline and not limits:
        baseline = view.run.baseline_run_id or (SERIES if place is not None else "")
        limits = {key: DEFAULT_LIMIT for key in metrics[:4] if not key.endswith((".min", ".max"))}
    problems: dict[str, str] = {}
    rules = []
    for key, text in limits.items():
        if text:
            limit = _per_cent(text)
            if limit is None:
                problems[f"max.{key}"] = f"{text[:20]!r} is not a percentage: write for example 5."
            else:
                rules.append({"metric": key, "max_regression": limit})
    answer: Mapping[str, Any] | None = None
    if baseline and rules and not problems:
        answer, problem = _checked(ctx, {"run": run_id, "baseline": baseline, "rules": rules})
        if problem:
            problems["baseline"] = problem
    elif limits and not rules and not problems:
        problems["general"] = "State a limit for one metric at least."
    context = {
        "view": view,
        "run": view.run,
        "place": place,
        "metrics": [(key, metric_label(key)) for key in metrics],
        "limits": limits,
        "baseline": baseline,
        "series_word": SERIES,
        "last": LAST,
        "problems": problems,
        "answer": answer,
        "table_spec": None if answer is None else _table(answer),
        "names": {} if answer is None else _names(ctx, answer["baseline_runs"]),
        "command": _command(ctx, request, run_id, baseline or SERIES, rules),
    }
    # opened from the run nothing was asked yet: what its history lacks is then no fault of the visitor
    return rendering.page(request, "run_check.html", context, 422 if problems and asked else 200)


def _offered(view: RunView) -> list[str]:
    """Metrics that the form has a field for: the usual ones first, then what else the run reports."""
    known = rule_metrics(view.run)
    first = [key for key in _FIRST if key in known]
    # one extreme value says little about a change: last
    rest = sorted((key for key in known if key not in first), key=lambda key: key.endswith((".min", ".max")))
    return [*first, *rest][:MOST_RULES]


def _per_cent(text: str) -> float | None:
    plain = text.replace(",", ".").replace("\u202f", "").replace(" ", "").removesuffix("%")
    try:
        value = float(plain) / 100
    except ValueError:
        return None
    return value if -1 <= value <= 1e6 else None


def _checked(ctx: Context, body: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    try:
        return check_run(ctx, CheckRequest.model_validate(body)), ""
    except InvalidInput as error:
        return None, error.reason[:1].upper() + error.reason[1:] + "."
    except NotFound:
        return None, f"There is no run {str(body['baseline'])[:40]!r}: give a run's id, or “series”."
    except ValidationError as error:
        return None, str(error.errors(include_url=False)[0]["msg"])


def _names(ctx: Context, ids: list[str]) -> dict[str, str]:
    return {id_: get_view(ctx, id_).run.name for id_ in ids}


def _table(answer: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for row in answer["rows"]:
        unit, noise = row["unit"], row["noise"]
        regression = row["regression"]
        words = "not comparable"
        if regression is not None:
            words = f"{formatting.percent(abs(regression))} {'worse' if regression > 0 else 'better'}"
            words = "the same" if regression == 0 else words
        between = ""
        if noise is not None:
            between = (
                f"{_signed(noise['low'])} to {_signed(noise['high'])}, p = {noise['p_value']:.2g} "
                f"({noise['samples'][0]:,} and {noise['samples'][1]:,} samples)"
            )
        rows.append(
            [
                {"text": metric_label(row["metric"]), "note": row.get("note", "")},
                None if row["value"] is None else formatting.quantity(row["value"], unit),
                None if row["baseline"] is None else formatting.quantity(row["baseline"], unit),
                {"text": words, "value": regression},
                {"text": formatting.percent(row["max_regression"]), "value": row["max_regression"]},
                {"text": between or "no samples on both sides"},
                {
                    "badge": "passes" if row["passed"] else "fails",
                    "text": "",
                    "badge_kind": "good" if row["passed"] else "bad",
                },
            ]
        )
    columns = [
        {"label": "Metric", "head": True, "wrap": True},
        {"label": "This run", "numeric": True},
        {"label": "Baseline", "numeric": True},
        {"label": "Change", "numeric": True},
        {"label": "Allowed", "numeric": True},
        {
            "label": "Noise",
            "title": "95 % bootstrap interval of the worsening, and the Mann-Whitney test",
            "wrap": True,
        },
        {"label": ""},
    ]
    return {"columns": columns, "rows": rows}


def _signed(ratio: float) -> str:
    return f"{'+' if ratio > 0 else '−' if ratio < 0 else ''}{formatting.percent(abs(ratio))}"


def _command(ctx: Context, request: Request, run_id: str, baseline: str, rules: list[dict[str, Any]]) -> str:
    """The same check on a command line."""
    base = ctx.settings.public_url or str(request.base_url).rstrip("/")
    said = " ".join(f"--rule {rule['metric']}={rule['max_regression'] * 100:g}%" for rule in rules)
    return f"bytebound check {run_id} --url {base} --baseline {baseline} {said}".strip()
