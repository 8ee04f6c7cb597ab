"""A diagnosis in the API's shape and in words, with the pages that it opens; what a run's page says of it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from app.domain.decision_tree import (
    Check,
    Evidence,
    Leaf,
    Node,
    Reached,
    Step,
    Tree,
    Trees,
    decide,
)
from app.domain.levers.registry import LEVERS
from app.domain.words import share_text, time_text
from app.services.context import Context
from app.services.contracts import BoundRequest
from app.services.diagnose import (
    Diagnosis,
    DiagnosisRequest,
    Subject,
    gather,
    row_for,
    scenario_of,
    step_of_saving,
    walked,
)
from app.services.diagnose_confirm import Confirm, confirm, with_levers
from app.services.diagnose_remarks import remark_json
from app.services.diagnose_trees import metric_json
from app.services.diagnose_trials import Trial, addressed, freed
from app.services.diagnose_words import limit_words, value_text
from app.services.run_json import row_request, workload_body
from app.services.runs import RunView
from app.services.what_if import WhatIf, nearest_state

SNAPSHOT_VERSION = 1
TRIAGE_DIRECTIONS = 3


# ---- triage ----------------------------------------------------------------------------------------------------------


def triage_json(ctx: Context, view: RunView) -> dict[str, Any] | None:
    """What a run's page says at once: the question the tree would ask first, and its most promising directions.

    None where the run could be held against no bound and states nothing that a question reads.
    """
    stated = any(name in ctx.catalog.trees.metrics for name in view.run.parsed.evidence)
    if view.analysis.main is None and not stated:
        return None
    scenario = scenario_of(view)
    tree = ctx.catalog.trees.scenarios[scenario]
    request = DiagnosisRequest(scenario=scenario, run=view.run.id)
    subject = Subject(tree, view, row_for(view, scenario))
    found = walked(ctx, subject, gather(ctx, subject), request)
    directions = []
    for reached, leaf, trials in found.directions[:TRIAGE_DIRECTIONS]:
        saves = [trial for trial in trials if trial.saving is not None and trial.saving > 0]
        kept = [trial for trial in saves if ctx.catalog.techniques[trial.technique].book_as != "algorithmic"]
        # the best, and the best that keeps the model as it is
        shown = list({trial.technique: trial for trial in (*saves[:1], *kept[:1])}.values())
        directions.append(
            {
                "leaf": leaf.id,
                "title": leaf.title,
                "status": reached.status,
                "under": reached.under and reached.status == "possible",
                "techniques": [
                    {
                        "id": trial.technique,
                        "name": ctx.catalog.techniques[trial.technique].name,
                        "book_as": ctx.catalog.techniques[trial.technique].book_as,
                        "predicted_saving_s": trial.saving,
                        "already_in_bound": trial.already,
                        "at_most": trial.at_most,
                    }
                    for trial in shown
                ],
            }
        )
    asked = found.walked.next
    return {
        "scenario": scenario,
        "scenario_title": tree.title,
        "headline": headline(ctx, found),
        "next": None if asked is None else {"node": asked.id, "question": asked.question},
        "answered": sum(step.decided_by == "data" for step in found.walked.steps),
        "directions": directions,
        "url": f"/diagnose?{urlencode({'scenario': scenario, 'run': view.run.id})}",
    }


# ---- a diagnosis -----------------------------------------------------------------------------------------------------


def diagnosis_json(ctx: Context, found: Diagnosis) -> dict[str, Any]:
    """The answer of `POST /diagnoses`, which is also what is stored: everything that a reader sees."""
    trees, walk_ = ctx.catalog.trees, found.walked
    return {
        "version": SNAPSHOT_VERSION,
        "scenario": found.subject.scenario.id,
        "scenario_title": found.subject.scenario.title,
        "subject": subject_json(found.subject),
        "headline": headline(ctx, found),
        "remarks": [remark_json(remark) for remark in found.remarks],
        "path": [step_json(trees, step) for step in walk_.steps],
        "next": None if walk_.next is None else next_json(trees, walk_.next, found.evidence),
        "directions": [direction_json(ctx, found, *item) for item in found.directions],
        "also_check": list(walk_.also_check),
        "also_check_titles": {leaf: trees.leaves[leaf].title for leaf in walk_.also_check},
        "evidence": [evidence_json(trees, item) for item in sorted(found.evidence.values(), key=lambda e: e.name)],
        "request": found.request.model_dump(mode="json", exclude={"title", "notes"}, exclude_defaults=True)
        | {"scenario": found.request.scenario},
    }


def subject_json(subject: Subject) -> dict[str, Any]:
    """What is diagnosed, by name; the measured and the least time of the step where there are any."""
    row, estimate = subject.row, subject.estimate
    workload = None
    if row is not None:
        workload = workload_body(row)
    elif subject.request is not None:
        workload = subject.request.workload.model_dump(mode="json", exclude_unset=True)
    return {
        "kind": "run" if subject.view is not None else "estimate" if estimate is not None else "evidence",
        "words": subject.words,
        "run": None if subject.view is None else {"id": subject.view.run.id, "name": subject.view.run.name},
        "hardware": None if subject.hardware is None else subject.hardware.name,
        "model": None if subject.model is None else subject.model.name,
        "what": None if row is None else row.what,
        "measured_s": None if row is None else row.measured,
        "bound_s": row.bound if row is not None else None if estimate is None else float(estimate.bound.overlapped),
        "expected_s": None if row is not None or estimate is None else estimate.expected.time,
        "workload": workload,
    }


def headline(ctx: Context, found: Diagnosis) -> str:
    """The answer in a sentence or two."""
    walk_, directions = found.walked, found.directions
    first = next((item for item in directions if item[0].status == "found"), None)
    if first is not None:
        reached, leaf, trials = first
        why = next((step for step in reversed(walk_.steps) if step.node.id in reached.via), None)
        told = "" if why is None else f" {_because(ctx.catalog.trees, why)}"
        return f"{leaf.title}.{told}{_best_words(ctx, found.tried(leaf), leaf, trials)}"
    likely = [leaf.title for reached, leaf, _ in directions if reached.status in ("likely", "possible") and reached.via]
    if walk_.next is not None:
        asked = sum(step.decided_by == "data" for step in walk_.steps)
        so_far = f"{asked} question{'s' if asked != 1 else ''} answered by data" if asked else "Nothing is decided yet"
        if likely:
            return f"{so_far}; what is known points to: {_joined(likely[:3])}."
        return f"{so_far}; too little is known for a direction. Next: {walk_.next.question}"
    if directions:
        return f"Not decided; open are: {_joined([leaf.title for _, leaf, _ in directions[:3]])}."
    return "No direction."


def _best_words(ctx: Context, subject: Subject, leaf: Leaf, trials: Sequence[Trial]) -> str:
    """What the best technique would save. What changes the model is named only where nothing else helps."""

    def best(found: Sequence[Trial]) -> Trial | None:
        kept = (trial for trial in found if ctx.catalog.techniques[trial.technique].book_as != "algorithmic")
        return next(kept, next(iter(found), None))

    if leaf.goal == "memory":
        frees = [trial for trial in trials if trial.applies and not trial.already and freed(trial) > 0]
        most = best(frees)
        if most is None:
            return ""
        return f" {ctx.catalog.techniques[most.technique].name} would free {freed(most) / 2**30:.3g} GiB of a device."
    saves = [trial for trial in trials if trial.saving is not None and trial.saving > 0]
    first = best(saves)
    if first is None or first.saving is None:
        return ""
    name = ctx.catalog.techniques[first.technique].name
    limit = "at most " if first.at_most else ""
    whole = step_of_saving(subject, first)
    share = f", {share_text(first.saving / whole)} of the step" if whole else ""
    return f" {name} would save {limit}{time_text(first.saving)}{share}."


def _joined(titles: Sequence[str]) -> str:
    lowered = [title[:1].lower() + title[1:] for title in titles]
    return lowered[0] if len(lowered) == 1 else f"{'; '.join(lowered[:-1])}; or {lowered[-1]}"


def _because(trees: Trees, step: Step) -> str:
    """The comparison that decided a step, in words."""
    if step.decided_by == "user" and not step.checks:
        return ""
    told = [check for check in step.checks if check.evidence is not None and check.outcome == step.answer]
    if not told or step.overridden:
        return "You answered so." if step.decided_by == "user" else ""
    return " ".join(_comparison(trees, check) for check in (told[:1] if step.node.condition.join == "any" else told))


def _comparison(trees: Trees, check: Check) -> str:
    metric = trees.metrics[check.test.metric]
    assert check.evidence is not None
    against = "" if check.threshold is None else f", against {value_text(metric, check.threshold)}"
    told = value_text(metric, check.evidence.value)
    return f"{metric.label}: {limit_words(check.evidence.limit, told)}{told}{against}."


def check_json(trees: Trees, check: Check) -> dict[str, Any]:
    metric = trees.metrics[check.test.metric]
    evidence, threshold = check.evidence, check.test.threshold
    return {
        "name": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "value": None if evidence is None else evidence.value,
        "value_text": None if evidence is None else value_text(metric, evidence.value),
        "limit": None if evidence is None else evidence.limit or None,
        "op": check.test.op,
        "threshold": check.threshold,
        "threshold_text": _threshold_text(trees, check),
        "threshold_name": threshold.name,
        "origin": threshold.origin,
        "origin_note": threshold.note,
        "source": None if evidence is None else evidence.source,
        "kind": None if evidence is None else evidence.kind,
        "outcome": check.outcome,
        "near": check.near,
        "distance": check.distance,
    }


def _threshold_text(trees: Trees, check: Check) -> str:
    metric = trees.metrics[check.test.metric]
    if check.test.of is None:
        return value_text(metric, check.test.threshold.value)
    factor = float(check.test.threshold.value)
    other = trees.metrics[check.test.of].label
    words = other if factor == 1 else f"{factor:g} x {other}"
    return words if check.threshold is None else f"{words} = {value_text(metric, check.threshold)}"


def step_json(trees: Trees, step: Step) -> dict[str, Any]:
    return {
        "node": step.node.id,
        "question": step.node.question,
        "why": step.node.why,
        "answer": step.answer,
        "decided_by": step.decided_by,
        "near_threshold": step.near,
        "overridden": step.overridden,
        "by_data": step.by_data,
        "depth": step.depth,
        "finding": step.decided_by != "assumed" and step.node.finds(step.answer),
        "evidence": [check_json(trees, check) for check in step.checks],
    }


def next_json(trees: Trees, node: Node, evidence: Mapping[str, Evidence]) -> dict[str, Any]:
    """The question to ask, what it needs, and where each missing value is found.

    A value of which only a limit is known is missing too: the limit does not settle the question.
    """
    checks = decide(node.condition, evidence)[2]
    known = {name for name, item in evidence.items() if not item.limit}
    return {
        "node": node.id,
        "question": node.question,
        "why": node.why,
        "needs": [metric_json(trees.metrics[name]) for name in node.condition.needs if name not in known],
        "choices": ["yes", "no", "unknown"],
        "join": node.condition.join,
        "evidence": [check_json(trees, check) for check in checks],
    }


def evidence_json(trees: Trees, item: Evidence) -> dict[str, Any]:
    metric = trees.metrics[item.name]
    return {
        "name": item.name,
        "label": metric.label,
        "unit": metric.unit,
        "value": item.value,
        "value_text": value_text(metric, item.value),
        "limit": item.limit or None,
        "kind": item.kind,
        "source": item.source,
    }


def direction_json(
    ctx: Context, found: Diagnosis, reached: Reached, leaf: Leaf, trials: Sequence[Trial]
) -> dict[str, Any]:
    opens = confirm_of(ctx, found.tried(leaf), leaf, trials)
    return {
        "leaf": leaf.id,
        "title": leaf.title,
        "why": leaf.why,
        "status": reached.status,
        "addresses": addresses_json(ctx.catalog.trees, leaf, found.evidence),
        "via": list(reached.via),
        "because": [_reason(ctx, found.subject.scenario, name) for name in reached.via],
        "techniques": [trial_json(ctx, found.tried(leaf), trial) for trial in trials],
        "confirm": leaf.confirm,
        "confirm_url": None if opens is None else opens.url,
        "confirm_words": None if opens is None else opens.words,
        "goal": leaf.goal,
        "measure_next": leaf.measure_next,
        "avoid": leaf.avoid,
    }


def addresses_json(trees: Trees, leaf: Leaf, evidence: Mapping[str, Evidence]) -> dict[str, Any] | None:
    """The share of the step that a direction is about, where somebody measured or stated it."""
    about = addressed(leaf, evidence)
    if about is None:
        return None
    return {"metric": about.metric, "label": trees.metrics[about.metric].label, "share": about.share}


def _reason(ctx: Context, tree: Tree, name: str) -> str:
    """The question, or the symptom, that speaks for a direction."""
    node = tree.nodes.get(name)
    return node.question if node is not None else f"{ctx.catalog.trees.symptoms[name].see}."


def trial_json(ctx: Context, subject: Subject, trial: Trial) -> dict[str, Any]:
    technique = ctx.catalog.techniques[trial.technique]
    lever = LEVERS.get(trial.technique)
    whole = step_of_saving(subject, trial)
    return {
        "id": technique.id,
        "name": technique.name,
        "summary": technique.summary,
        "book_as": technique.book_as,
        "memory_lever": technique.memory_lever,
        "hurts": technique.hurts,
        "lever": trial.lever,
        "applies": trial.applies,
        "reason": trial.reason or None if trial.lever else technique.no_lever,
        "already_in_bound": trial.already,
        "at_most": trial.at_most,
        "params": dict(trial.params),
        "tried_with": _tried_with(trial),
        "predicted_saving_s": trial.saving,
        "predicted_saving_share": trial.saving / whole if trial.saving is not None and whole else None,
        "bound_saving_s": trial.bound_saving,
        "bound_before_s": trial.before,
        "bound_after_s": trial.after,
        "expected_before_s": trial.expected_before,
        "expected_after_s": trial.expected_after,
        "changes": dict(trial.extra),
        "model": None if lever is None else lever.model,
        "notes": list(trial.notes),
        "explore_url": explore_url(subject, trial) if trial.lever and trial.applies else None,
    }


def _tried_with(trial: Trial) -> str | None:
    """The numbers that a lever was tried with, in words."""
    lever = LEVERS.get(trial.technique)
    if lever is None or not trial.params:
        return None
    return "; ".join(f"{param.meaning}: {trial.params[param.name]:.4g}" for param in lever.params)


def request_of(subject: Subject) -> BoundRequest | None:
    """The estimate's question at the step that is diagnosed, where its device and model have names."""
    if subject.row is None or subject.view is None:
        return subject.request
    return row_request(subject.view, subject.row)


def lab_state(subject: Subject) -> WhatIf | None:
    """The lab at this step, or as near to it as its controls come; None where device or model have no name."""
    request, model = request_of(subject), subject.model
    return None if request is None or model is None else nearest_state(request, model)


def explore_url(subject: Subject, trial: Trial) -> str | None:
    """The lab at this step with a technique on, with the numbers that it was tried with."""
    state = lab_state(subject)
    if state is None:
        return None
    return f"/explore?{urlencode(with_levers(state, [(trial.technique, trial.params)]).query())}"


def confirm_of(ctx: Context, subject: Subject, leaf: Leaf, trials: Sequence[Trial]) -> Confirm | None:
    """The page that can confirm or refute a direction, on the walked step."""
    model, workload = subject.model, subject.workload
    step = None if model is None or workload is None else (model, workload)
    run_id = None if subject.view is None else subject.view.run.id
    return confirm(leaf, lab_state(subject), step, trials, ctx.catalog.techniques, run_id)
