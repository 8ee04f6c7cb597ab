"""What the page of a run shows: a run against its bound, its findings, its forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.charts.run_gap import run_gap
from app.charts.run_points import value_words
from app.domain.collectives import COLLECTIVES
from app.domain.lint import ANALYSIS_CHECKS, CHECKS, grouped
from app.domain.lint_facts import STATABLE
from app.domain.precision import PRECISIONS
from app.domain.run import ParsedRun
from app.domain.run_analysis import BoundRow
from app.importers import guide
from app.services import run_json, runs
from app.services.ceilings import measured_ceilings
from app.services.context import Context
from app.services.diagnose_json import triage_json
from app.services.history import place_of
from app.services.run_lengths import lengths_of_run
from app.services.run_points import point_charts, points_table, step_charts, sweep_of
from app.services.run_sweep import sweeps_of
from app.services.runs import RunView
from app.services.what_if import nearest_state
from app.web import kernel_view, rendering
from app.web.run_charts import conditions_of, gap_title, micro_sentence, points_chart, sweep_chart
from app.web.run_form import (
    FIELD_WORDS,
    SHAPE_FIELDS,
    field_id,
    form_values,
    needs_links,
    shape_mode,
)
from app.web.run_tables import (
    baseline_table,
    bound_table,
    evaluations_table,
    facts_of,
    lengths_section,
    metric_group,
    siblings_table,
)
from app.web.run_words import key_words

MOST_POINTS = 200


def run_context(
    ctx: Context,
    view: RunView,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
    *,
    partial: bool = False,
    asked: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the run's templates show. `typed` holds a refused form, so that nothing typed is lost.

    `partial`: the answer goes to htmx, and the heading comes beside the body.
    """
    run, parsed = view.run, view.run.parsed
    main = view.analysis.main
    hardware, models = runs.known_names(ctx)
    sweeps = sweeps_of(ctx, view.siblings)
    mode = shape_mode(view)
    return {
        "partial": partial,
        "view": view,
        "run": run,
        "member": run_json.member_name(run),
        "untried": "" if guide.is_tried(run.format) else guide.UNTRIED,
        "mapping_id": next((f.fields[0] for f in run.upload.findings if f.check == "remembered-mapping"), ""),
        "parsed": parsed,
        "main": main,
        "values": form_values(view, typed),
        "problems": dict(problems or {}),
        "problem_list": [
            {"id": field_id(name), "label": FIELD_WORDS.get(name, name), "message": message}
            for name, message in (problems or {}).items()
            if name != "general"
        ],
        "saved_part": (typed or {}).get("part", ""),
        "again": False,
        "finding_groups": grouped(finding for finding in view.findings if finding not in view.acknowledged),
        "accepted": list(view.acknowledged.items()),
        "finding_words": _finding_words(view),
        "finding_links": _finding_links(view),
        "known_checks": KNOWN_CHECKS,
        "fact_fields": [fact for fact in STATABLE if fact.key in run.facts or fact in view.missing],
        "key_assumptions": [] if main is None else [note for note in main.assumptions if _is_open(note)],
        "gap": None if main is None else run_gap(main, title=gap_title(main), caption=conditions_of(view, main)),
        "bound_table": bound_table(view),
        "sweeps": [sweep_chart(sweep) for sweep in sweeps],
        "siblings": siblings_table(view) if len(view.siblings) > 1 else None,
        "sibling_count": len(view.siblings),
        "metric_groups": [metric_group(title, rows) for title, rows in view.metric_groups],
        "not_reported": [key_words(key) for key in view.not_reported],
        "facts": facts_of(view),
        "lab_url": _lab_url(view, main),
        "triage": triage_json(ctx, view),
        "lengths": lengths_section(parsed),
        "kv_url": _kv_url(run.id, parsed),
        "needs_links": needs_links(view),
        "hardware_names": [name for _, name in hardware],
        "model_names": [name for _, name in models],
        "shape_fields": SHAPE_FIELDS[mode],
        "assumed": {} if main is None else _assumed(main),
        "precisions": [("", "As the file says, or assumed"), *((name, name) for name in PRECISIONS)],
        "told": {**dict(parsed.workload.dtypes), **dict(parsed.parallel)},
        "ask_phase": parsed.workload.mode is None or parsed.workload.mode in ("latency", "kernel"),
        "baseline_rows": baseline_table(view),
        "ceilings": measured_ceilings(parsed, view.hardware),
        "place": place_of(ctx, run),
        "micro": "" if main is not None else micro_sentence(parsed),
        "comm_url": _comm_url(view),
        "points": [points_chart(chart) for chart in point_charts(ctx, run, view.siblings)],
        "points_table": points_table(parsed, MOST_POINTS),
        "point_count": len(parsed.kernels),
        "steps": [points_chart(chart) for chart in step_charts(run)],
        "evaluations": evaluations_table(parsed),
        "kernels": kernel_view.section(ctx, run, view.hardware, asked or {}, own_page=False)
        if sweep_of(parsed) is None
        else None,
        "tray_item": {"kind": "run", "id": run.id, "label": run.name},
    }


def _kv_url(run_id: str, parsed: ParsedRun) -> str:
    """The KV page with this run's lengths, where it states some."""
    if lengths_of_run(parsed) is None:
        return ""
    return rendering.query("/kv", run=run_id)


KNOWN_CHECKS = frozenset({*(check.id for check in CHECKS), *(id_ for id_, *_ in ANALYSIS_CHECKS)})


def _finding_words(view: RunView) -> str:
    words = {"error": "contradiction", "warning": "warning", "info": "note"}
    still_open = (finding for finding in view.findings if finding not in view.acknowledged)
    counts = [(len(found), words[severity]) for severity, _, found in grouped(still_open)]
    said = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts]
    return ", ".join(said + [f"{len(view.acknowledged)} acknowledged"] * bool(view.acknowledged))


def _finding_links(view: RunView) -> dict[str, str]:
    """Where a finding can be answered: the form that holds its fields."""
    stated = any(fact.form == "facts" for fact in view.missing)
    linked = any(fact.form == "links" for fact in view.missing)
    return {
        "missing-facts": "#links" if linked or not stated else "#facts",
        "faster-than-bound": "#links",
        "does-not-fit": "#links",
    }


def _is_open(note: str) -> bool:
    """Whether an assumption stands for something that the file leaves open and a person may know."""
    return note.endswith(("the file does not say.", "the file gives no layout.", "is known."))


def _assumed(row: BoundRow) -> dict[str, str]:
    """What the main step takes for fields that nobody stated: shown as placeholders of the form."""
    w = row.workload
    shown: dict[str, str] = {name: f"{getattr(w.parallel, name):,}" for name in ("tp", "dp")}
    return shown | {"batch": f"{w.batch:,}", "context_len": f"{w.context_len:,}", "seq_len": f"{w.seq_len:,}"}


def _comm_url(view: RunView) -> str:
    """The page of collectives with this run's own question, where it is one of a collective on a known device."""
    extra, series = view.run.parsed.workload.extra, view.run.parsed.series
    kind = {"send_recv": "p2p"}.get(str(extra.get("collective")), str(extra.get("collective")))
    size, ranks = series.get("size_bytes"), extra.get("ranks")
    if view.hardware is None or kind not in COLLECTIVES or not isinstance(size, float) or not isinstance(ranks, int):
        return ""
    return rendering.query("/comm", hardware=view.hardware.id, kind=kind, size=value_words(size, "B"), ranks=ranks)


def _lab_url(view: RunView, row: BoundRow | None) -> str:
    """The what-if lab at the very step that the run measured."""
    request = None if row is None else run_json.row_request(view, row)
    if request is None or view.model is None:
        return ""
    state = nearest_state(request, view.model)
    return "" if state is None else rendering.query("/explore", **state.query())
