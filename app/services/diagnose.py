"""Diagnosis: evidence of a run or an estimate walks a decision tree, and each technique at its end is tried on the
workload's own cost table."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import BeforeValidator, Field

from app.domain.decision_tree import (
    Answer,
    Check,
    Evidence,
    Leaf,
    Node,
    Reached,
    Step,
    Tree,
    TreeMetric,
    Trees,
    Value,
    Walk,
    decide,
    walk,
)
from app.domain.errors import DomainError, InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import LeverRequest
from app.domain.levers.registry import LEVERS
from app.domain.model import STATE_MIXERS, ModelSpec
from app.domain.run_analysis import BoundRow
from app.domain.tree_evidence import (
    Sums,
    all_reduce_share,
    all_reduces,
    of_bound,
    of_estimate,
    of_row,
    of_run,
    step_of,
    strongest,
    with_derived,
)
from app.domain.words import share_text, time_text
from app.domain.workload import Workload
from app.services.communication import link_models
from app.services.context import Context
from app.services.contracts import BoundRequest, Contract
from app.services.diagnose_confirm import Confirm, confirm, with_levers
from app.services.diagnose_remarks import Remark, contradictions, misfit, remark_json, too_large
from app.services.diagnose_trials import Trial, TriedStep, Trier, addressed, capped, freed, freeing, trier
from app.services.diagnose_words import TIMES, limit_words, value_text
from app.services.estimate import BoundEstimate, bound_of, estimate_bound
from app.services.run_json import row_request, workload_body
from app.services.runs import RunView, get_view
from app.services.what_if import WhatIf, nearest_state
from app.storage.errors import NotFound

MAX_TITLE = 200
MAX_NOTES = 20_000
SNAPSHOT_VERSION = 1
ScenarioName = Literal["dense_train", "prefill", "decode", "moe", "vlm", "diffusion", "ssm"]
AnswerName = Literal["yes", "no", "unknown"]
Name = Annotated[str, Field(min_length=1, max_length=80)]

_ROW_OF: Mapping[str, tuple[str, ...]] = {
    "dense_train": ("train",),
    "prefill": ("prefill", "decode"),
    "decode": ("decode", "prefill"),
}
"""Which measured step a scenario is about, where a run has several; the others take the run's main one."""

CONTRADICTION = "faster-than-bound"


# ---- what is asked ------------------------------------------------------------------------------------------------


def _unwrapped(value: Any) -> Any:
    """An estimate may be written as in a comparison: {"kind": "bound", "request": {...}}."""
    if isinstance(value, Mapping) and set(value) == {"kind", "request"} and value["kind"] == "bound":
        return value["request"]
    return value


class DiagnosisRequest(Contract):
    """Body of `POST /diagnoses`. `evidence` are values that no file carries, by the metrics of `GET /scenarios`; they
    count as the user's word. `answers` are a person's, by node, and stand over the evidence."""

    scenario: ScenarioName
    run: Name | None = None
    estimate: Annotated[BoundRequest, BeforeValidator(_unwrapped)] | None = None
    evidence: Annotated[dict[str, bool | float | str | None], Field(max_length=200)] = Field(default_factory=dict)
    answers: Annotated[dict[str, AnswerName], Field(max_length=200)] = Field(default_factory=dict)
    title: Annotated[str, Field(max_length=MAX_TITLE)] = ""
    notes: Annotated[str, Field(max_length=MAX_NOTES)] = ""


# ---- the subject: what the evidence is of -----------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """What is diagnosed: a run, an estimate, both or neither, and the step that techniques are tried on."""

    scenario: Tree
    view: RunView | None = None
    row: BoundRow | None = None
    estimate: BoundEstimate | None = None
    request: BoundRequest | None = None

    @property
    def hardware(self) -> HardwareProfile | None:
        if self.row is not None and self.view is not None:
            return self.view.hardware
        return None if self.estimate is None else self.estimate.hardware

    @property
    def model(self) -> ModelSpec | None:
        if self.row is not None and self.view is not None:
            return self.view.model
        return None if self.estimate is None else self.estimate.model

    @property
    def workload(self) -> Workload | None:
        if self.row is not None:
            return self.row.workload
        return None if self.estimate is None else self.estimate.workload

    @property
    def words(self) -> str:
        """Whom the walk is about, in words."""
        if self.view is not None:
            return self.view.run.name
        if self.estimate is not None:
            phase = self.estimate.workload.phase.capitalize()
            return f"{phase} of {self.estimate.model.name} on {self.estimate.hardware.name}"
        return "stated evidence"


def subject_of(ctx: Context, request: DiagnosisRequest) -> Subject:
    """The run and the estimate of a request. Raises InvalidInput at `run` or `estimate` for what cannot be had."""
    tree = ctx.catalog.trees.scenarios[request.scenario]
    view: RunView | None = None
    if request.run is not None:
        try:
            view = get_view(ctx, request.run)
        except NotFound as error:
            raise InvalidInput(("run",), f"there is no run {request.run[:40]!r}") from error
    estimate: BoundEstimate | None = None
    if request.estimate is not None:
        try:
            estimate = estimate_bound(ctx, request.estimate)
        except InvalidInput as error:
            raise InvalidInput(("estimate", *error.loc), error.reason) from error
        except DomainError as error:
            raise InvalidInput(("estimate",), str(error)) from error
    return Subject(tree, view, None if view is None else row_for(view, request.scenario), estimate, request.estimate)


def row_for(view: RunView, scenario: str) -> BoundRow | None:
    """The measured step that a scenario asks about."""
    rows = view.analysis.rows
    for what in _ROW_OF.get(scenario, ()):
        found = next((row for row in rows if row.what == what), None)
        if found is not None:
            return found
    return view.analysis.main


def scenario_of(view: RunView) -> ScenarioName:
    """The scenario that fits a run best: by what the model is, then by what was measured."""
    main = view.analysis.main
    mode = main.what if main is not None else view.run.parsed.workload.mode
    if view.model is None:
        # a trace without a model is told by its kernels
        shares = view.run.parsed.evidence
        if shares.get("expert_gemm_share", 0.0) > 0.01:
            return "moe"
        if shares.get("scan_share", 0.0) > 0.05:
            return "ssm"
        if mode is None and shares.get("opt_share", 0.0) > 0:
            mode = "train"
    return scenario_for(view.model, mode)


def scenario_for(model: ModelSpec | None, phase: str | None) -> ScenarioName:
    """The scenario of a model's step."""
    if model is not None:
        if model.denoiser is not None:
            return "diffusion"
        if model.is_moe:
            return "moe"
        if any(isinstance(mixer, STATE_MIXERS) for _, mixer in model.state_groups()):
            return "ssm"
        if model.tower is not None and phase == "train":
            return "vlm"
    if phase == "train":
        return "dense_train"
    return "prefill" if phase == "prefill" else "decode"


# ---- evidence -----------------------------------------------------------------------------------------------------


def gather(ctx: Context, subject: Subject, stated: Mapping[str, Value | None] | None = None) -> dict[str, Evidence]:
    """Everything that is known, each value with its source: the user's word, the run, its bound, the estimate.

    A measured value always wins over a computed one. Raises InvalidInput at `evidence` for a name or value that no
    question reads.
    """
    return _joined_evidence([_stated(ctx.catalog.trees, stated or {}), *sources_of(ctx, subject)])


def _joined_evidence(sources: Sequence[Iterable[Evidence]]) -> dict[str, Evidence]:
    return with_derived(with_derived(strongest(*sources)))


def sources_of(ctx: Context, subject: Subject) -> list[tuple[Evidence, ...]]:
    """What the run, its bound and the estimate say, each by itself."""
    trees = ctx.catalog.trees
    sources: list[Iterable[Evidence]] = []
    if subject.view is not None:
        view = subject.view
        sources.append(of_run(view.run.parsed, trees.metrics))
        errors = [f for f in view.findings if f.severity == "error" and f.check != CONTRADICTION]
        words = ", ".join(dict.fromkeys(f.check for f in errors)) or "no finding is an error"
        sources.append([Evidence("lint_errors", float(len(errors)), "measured", f"findings of the run: {words}")])
        row = subject.row
        if row is not None and view.hardware is not None and view.model is not None:
            held = bound_of(view.hardware, view.model, row.workload)
            sources.append(of_row(row, view.run.parsed, view.hardware.memory_capacity, _host_time(held)))
            sources += _of_table(held, _sums(held), row.measured, ran=True)
    if subject.estimate is not None:
        estimate = subject.estimate
        host = _host_time(estimate)
        sums = _sums(estimate)
        step = step_of(estimate.bound, estimate.workload, host, sums)
        sources += _of_table(estimate, sums, step)
        if subject.view is None:
            sources.append(of_estimate(estimate.bound, estimate.workload, estimate.memory, host, step))
    return [tuple(source) for source in sources]


def _of_table(
    estimate: BoundEstimate, sums: Sums | None, step: float, *, ran: bool = False
) -> list[Iterable[Evidence]]:
    """What a step's table, memory and layout say; `step` is its time, measured or least."""
    per_node = estimate.hardware.ranks_per_node
    return [
        all_reduce_share(sums, step),
        of_bound(estimate.bound, estimate.model, estimate.workload, estimate.memory, per_node, ran=ran),
    ]


def _sums(estimate: BoundEstimate) -> Sums | None:
    hardware = estimate.hardware
    links, per_node = link_models(hardware), hardware.ranks_per_node
    return all_reduces(estimate.bound, estimate.model, estimate.workload, links, per_node)


def _host_time(estimate: BoundEstimate) -> float:
    """What launching kernels one by one adds to the forecast; 0 where graphs are replayed."""
    if estimate.workload.launch_mode != "eager":
        return 0.0
    graph = bound_of(estimate.hardware, estimate.model, replace(estimate.workload, launch_mode="graph"))
    return max(estimate.expected.time - graph.expected.time, 0.0)


def _stated(trees: Trees, values: Mapping[str, Value | None]) -> list[Evidence]:
    return [
        Evidence(name, checked_value(trees, name, value), "user", "stated by the user")
        for name, value in values.items()
        if value is not None
    ]


def read_value(told: str) -> Value:
    """A value given as text: yes and no, a number with or without a per cent sign, or a word."""
    lowered = told.strip().lower()
    if lowered in ("yes", "true"):
        return True
    if lowered in ("no", "false"):
        return False
    percent = lowered.endswith("%")
    try:
        number = float(lowered.rstrip("%").replace(",", "").strip())
    except ValueError:
        return lowered
    return number / 100.0 if percent else number


def checked_value(trees: Trees, name: str, value: Value) -> Value:
    """A stated value, which may be text, as the tests take it.

    Raises InvalidInput at `evidence` with what would be right.
    """
    loc = ("evidence", name[:80])
    metric = trees.metrics.get(name)
    if isinstance(value, str):
        value = read_value(value)
    if metric is None:
        near = difflib.get_close_matches(name, list(trees.metrics), n=1, cutoff=0.6)
        hint = f": did you mean {near[0]!r}?" if near else ": GET /api/v1/scenarios lists those there are"
        raise InvalidInput(loc, f"no question reads {name[:60]!r}{hint}")
    if metric.kind == "choice":
        if value not in metric.choices:
            raise InvalidInput(loc, f"must be one of {', '.join(metric.choices)}")
        return value
    if metric.kind == "flag":
        if value in (0, 1):
            return bool(value)
        raise InvalidInput(loc, "must be true or false")
    if isinstance(value, (bool, str)):
        unit = "" if metric.name in TIMES else "such as 0.25 or 25%" if metric.unit == "1" else f"of {metric.unit}"
        raise InvalidInput(loc, f"must be a number {unit}".strip())
    number = float(value)
    if not math.isfinite(number) or number < metric.least or (metric.most is not None and number > metric.most):
        limits = f"from {metric.least:g}" + ("" if metric.most is None else f" to {metric.most:g}")
        share = metric.most is not None and metric.unit == "1" and number > 1 and number / 100 <= metric.most
        hint = f": write {number / 100:g} for {number:g} %" if share and metric.name not in TIMES else ""
        raise InvalidInput(loc, f"must be a number {limits}{hint}")
    return number


# ---- the diagnosis ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnosis:
    """A walk with everything that its page shows."""

    subject: Subject
    evidence: Mapping[str, Evidence]
    walked: Walk
    directions: tuple[tuple[Reached, Leaf, tuple[Trial, ...]], ...]
    request: DiagnosisRequest
    remarks: tuple[Remark, ...] = ()


def diagnose(ctx: Context, request: DiagnosisRequest) -> Diagnosis:
    """Walk the tree. Raises InvalidInput for what the request names and nobody knows."""
    trees = ctx.catalog.trees
    nodes = {name for tree in trees.scenarios.values() for name in tree.nodes}
    for name in request.answers:
        if name not in nodes:
            raise InvalidInput(("answers", name[:80]), "no tree asks this: GET /api/v1/scenarios lists the nodes")
    told = {
        name: value if value is None else checked_value(trees, name, value) for name, value in request.evidence.items()
    }
    request = request.model_copy(update={"evidence": told})
    subject = subject_of(ctx, request)
    sources = sources_of(ctx, subject)
    stated = _stated(ctx.catalog.trees, request.evidence)
    evidence = _joined_evidence([stated, *sources])
    found = walked(ctx, subject, evidence, request)
    known, others = strongest(stated, *sources), with_derived(strongest(*sources))
    remarks = [*_misfit(ctx, subject), *contradictions(ctx.catalog.trees, known, others, _speaker(subject))]
    large = None if subject.estimate is None else too_large(subject.estimate.memory)
    return replace(found, remarks=tuple(remarks if large is None else [large, *remarks]))


def _speaker(subject: Subject) -> str:
    return "the run" if subject.view is not None else "the estimate"


def _misfit(ctx: Context, subject: Subject) -> tuple[Remark, ...]:
    """A remark on a tree that is about something else than the run or the estimate."""
    view, estimate = subject.view, subject.estimate
    if view is not None:
        mode = view.run.parsed.workload.mode
        phases = tuple(dict.fromkeys(row.what for row in view.analysis.rows)) or ((mode,) if mode else ())
        if not phases and view.model is None:
            return ()
        model, fitting = view.model, scenario_of(view)
    elif estimate is not None:
        phases = (estimate.workload.phase,)
        model, fitting = estimate.model, scenario_for(estimate.model, estimate.workload.phase)
    else:
        return ()
    found = misfit(ctx.catalog.trees, subject.scenario, model, phases, fitting)
    return () if found is None else (found,)


def walked(ctx: Context, subject: Subject, evidence: Mapping[str, Evidence], request: DiagnosisRequest) -> Diagnosis:
    """The walk over evidence that is gathered already."""
    subject = _as_launched(ctx, subject, evidence)
    found = walk(subject.scenario, evidence, request.answers, ctx.catalog.trees.symptoms.values())
    attempt = trier(tried_step(subject), evidence)
    directions = [
        (reached, leaf, _ranked(ctx, leaf, attempt, subject, evidence))
        for reached in found.directions
        for leaf in (ctx.catalog.trees.leaves[reached.leaf],)
    ]
    return Diagnosis(subject, evidence, found, tuple(_by_saving(directions)), request)


def _as_launched(ctx: Context, subject: Subject, evidence: Mapping[str, Evidence]) -> Subject:
    """The subject whose step is launched one by one where launch gaps are known and no file says otherwise: what
    removes launches is tried on a step that has them."""
    gaps, row, view = evidence.get("launch_share"), subject.row, subject.view
    if gaps is None or gaps.limit or gaps.kind not in ("user", "measured") or row is None or view is None:
        return subject
    stated = view.run.parsed.workload.extra.get("launch_mode")
    usual = float(ctx.catalog.trees.thresholds["launch_hi"].value)
    if stated == "graph" or row.workload.launch_mode != "graph" or float(gaps.value) <= usual:
        return subject
    return replace(subject, row=replace(row, workload=replace(row.workload, launch_mode="eager")))


def tried_step(subject: Subject) -> TriedStep | None:
    """The step that techniques are tried on: the run's, else the estimate's, before the levers that it asks for."""
    hardware, model, workload = subject.hardware, subject.model, subject.workload
    if hardware is None or model is None or workload is None:
        return None
    if subject.row is not None:
        return TriedStep(hardware, model, workload, measured=(subject.row.measured, subject.row.bound))
    ceilings = "peak" if subject.request is None else subject.request.ceilings
    ledger = () if subject.estimate is None else subject.estimate.ledger
    if ledger:
        start = ledger[0].before.scenario
        model, workload = start.model, start.workload
    chosen = tuple(LeverRequest(row.lever.id, row.params) for row in ledger)
    return TriedStep(hardware, model, workload, ceilings, chosen)


def _ranked(
    ctx: Context, leaf: Leaf, attempt: Trier, subject: Subject, evidence: Mapping[str, Evidence]
) -> tuple[Trial, ...]:
    """Techniques by what they save here; those without a number in the leaf's order, those that do not apply last."""
    about = addressed(leaf, evidence)
    label = "" if about is None else ctx.catalog.trees.metrics[about.metric].label.lower()
    trials = [capped(trial, about, _whole(subject, trial), label) for trial in map(attempt, leaf.techniques)]
    memory = leaf.goal == "memory"
    if memory:
        trials = [freeing(trial) for trial in trials]
    order = {trial.technique: place for place, trial in enumerate(trials)}

    def key(trial: Trial) -> tuple[int, float, int]:
        if not trial.applies:
            return 2, 0.0, order[trial.technique]
        if memory:
            return (1 if trial.already else 0), -freed(trial), order[trial.technique]
        if trial.saving is None:
            return 1, 0.0, order[trial.technique]
        return 0 if trial.saving > 0 else 1, -trial.saving, order[trial.technique]

    return tuple(sorted(trials, key=key))


def _whole(subject: Subject, trial: Trial) -> float | None:
    """The step that a saving is a share of: measured, else as the forecast has it."""
    return subject.row.measured if subject.row is not None else trial.expected_before


def _by_saving(
    directions: Sequence[tuple[Reached, Leaf, tuple[Trial, ...]]],
) -> list[tuple[Reached, Leaf, tuple[Trial, ...]]]:
    """Directions of one standing by their best predicted saving; the walk's own order where nothing is predicted."""

    def best(item: tuple[Reached, Leaf, tuple[Trial, ...]]) -> float:
        return max((trial.saving for trial in item[2] if trial.saving is not None), default=0.0)

    return sorted(directions, key=lambda item: (item[0].standing, -max(best(item), 0.0)))


# ---- triage -----------------------------------------------------------------------------------------------------

TRIAGE_DIRECTIONS = 3


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


# ---- JSON ---------------------------------------------------------------------------------------------------------


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
        return f"{leaf.title}.{told}{_best_words(ctx, found.subject, leaf, trials)}"
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
    return f" {name} would save {limit}{time_text(first.saving)}{_of_measured(subject, first.saving)}."


def _joined(titles: Sequence[str]) -> str:
    lowered = [title[:1].lower() + title[1:] for title in titles]
    return lowered[0] if len(lowered) == 1 else f"{'; '.join(lowered[:-1])}; or {lowered[-1]}"


def _of_measured(subject: Subject, saving: float) -> str:
    whole = subject.row.measured if subject.row is not None else None
    if whole is None and subject.estimate is not None:
        whole = subject.estimate.expected.time
    return "" if not whole else f", {share_text(saving / whole)} of the step"


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
    """The question to ask, what it needs, and where each missing value is found."""
    checks = decide(node.condition, evidence)[2]
    return {
        "node": node.id,
        "question": node.question,
        "why": node.why,
        "needs": [metric_json(trees.metrics[name]) for name in node.condition.needs if name not in evidence],
        "choices": ["yes", "no", "unknown"],
        "join": node.condition.join,
        "evidence": [check_json(trees, check) for check in checks],
    }


def metric_json(metric: TreeMetric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "kind": metric.kind,
        "how": metric.how,
        "find": dict(metric.find),
        "choices": list(metric.choices),
        "least": metric.least,
        "most": metric.most,
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
    opens = confirm_of(ctx, found.subject, leaf, trials)
    return {
        "leaf": leaf.id,
        "title": leaf.title,
        "why": leaf.why,
        "status": reached.status,
        "addresses": addresses_json(ctx.catalog.trees, leaf, found.evidence),
        "via": list(reached.via),
        "because": [_reason(ctx, found.subject.scenario, name) for name in reached.via],
        "techniques": [trial_json(ctx, found.subject, trial) for trial in trials],
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
    whole = _whole(subject, trial)
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


# ---- the trees themselves -----------------------------------------------------------------------------------------


def scenarios_json(ctx: Context) -> list[dict[str, Any]]:
    """The scenarios with their questions and directions, for `GET /scenarios`."""
    return [_tree_json(ctx.catalog.trees, tree) for tree in ordered(ctx.catalog.trees)]


SCENARIO_ORDER: tuple[str, ...] = ("dense_train", "prefill", "decode", "moe", "vlm", "diffusion", "ssm")


def ordered(trees: Trees) -> list[Tree]:
    return sorted(trees.scenarios.values(), key=lambda tree: SCENARIO_ORDER.index(tree.id))


def _tree_json(trees: Trees, tree: Tree) -> dict[str, Any]:
    return {
        "id": tree.id,
        "title": tree.title,
        "line": tree.line,
        "start": tree.start,
        "assume": dict(tree.assume),
        "nodes": [_node_json(trees, node) for node in tree.nodes.values()],
        "leaves": [
            {
                "id": leaf.id,
                "title": leaf.title,
                "why": leaf.why,
                "techniques": list(leaf.techniques),
                "confirm": leaf.confirm,
                "measure_next": leaf.measure_next,
                "avoid": leaf.avoid,
            }
            for leaf in tree.leaves.values()
        ],
    }


def _node_json(trees: Trees, node: Node) -> dict[str, Any]:
    tests = [
        {
            "metric": test.metric,
            "op": test.op,
            "threshold": test.threshold.value,
            "of": test.of,
            "unit": test.threshold.unit,
            "origin": test.threshold.origin,
            "note": test.threshold.note,
        }
        for test in node.condition.tests
    ]
    return {
        "id": node.id,
        "question": node.question,
        "why": node.why,
        "join": node.condition.join,
        "tests": tests,
        "needs": list(node.condition.needs),
        "if_yes": node.if_yes,
        "if_no": node.if_no,
    }


def symptoms_json(ctx: Context, evidence: Mapping[str, Evidence] | None = None) -> list[dict[str, Any]]:
    """The symptom table. With evidence, whether each symptom shows there."""
    trees = ctx.catalog.trees
    rows = []
    for symptom in trees.symptoms.values():
        answer: Answer = decide(symptom.condition, evidence or {})[0]
        rows.append(
            {
                "id": symptom.id,
                "see": symptom.see,
                "cause": symptom.cause,
                "avoid": symptom.avoid,
                "shows": answer,
                "join": symptom.condition.join,
                "tests": [
                    {
                        "metric": test.metric,
                        "label": trees.metrics[test.metric].label,
                        "op": test.op,
                        "threshold": test.threshold.value,
                        "threshold_text": value_text(trees.metrics[test.metric], test.threshold.value),
                        "unit": test.threshold.unit,
                        "origin": test.threshold.origin,
                    }
                    for test in symptom.condition.tests
                ],
                "go": [{"leaf": leaf, "title": trees.leaves[leaf].title} for leaf in symptom.go],
                "scenarios": [{"id": id_, "title": trees.scenarios[id_].title} for id_ in symptom.scenarios],
            }
        )
    return rows
