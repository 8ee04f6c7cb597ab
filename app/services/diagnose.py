"""Diagnosis: evidence of a run or an estimate walks a decision tree, and each technique at its end is tried on the
workload's own cost table."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.domain.decision_tree import (
    Evidence,
    Leaf,
    Reached,
    Tree,
    Trees,
    Value,
    Walk,
    walk,
)
from app.domain.errors import DomainError, InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import LeverRequest
from app.domain.model import STATE_MIXERS, ModelSpec
from app.domain.run_analysis import BoundRow
from app.domain.tree_evidence import (
    DENOISER_ALONE,
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
from app.domain.workload import Workload
from app.services.communication import link_models
from app.services.context import Context
from app.services.contracts import BoundRequest, Contract
from app.services.diagnose_remarks import Remark, contradictions, misfit, too_large
from app.services.diagnose_trials import Trial, TriedStep, Trier, addressed, capped, freed, freeing, trier
from app.services.diagnose_words import TIMES
from app.services.estimate import BoundEstimate, bound_of, estimate_bound
from app.services.runs import RunView, get_view
from app.storage.errors import NotFound

MAX_TITLE = 200
MAX_NOTES = 20_000


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
            if estimate.model.denoiser is not None:
                sources.append(DENOISER_ALONE)
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
        number = float(_digits(lowered.rstrip("%").strip()))
    except ValueError:
        return lowered
    return number / 100.0 if percent else number


_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
"""A number whose commas part thousands."""


def _digits(text: str) -> str:
    """The number with a decimal point: a comma parts thousands where it can, else it is the decimal one."""
    if _GROUPS.fullmatch(text):
        return text.replace(",", "")
    return text.replace(",", ".") if text.count(",") == 1 and "." not in text else text


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
    launched: Subject | None = None

    def tried(self, leaf: Leaf) -> Subject:
        """The step that the techniques of a direction were tried on."""
        return self.launched if self.launched is not None and about_launches(leaf) else self.subject


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
    found = walk(subject.scenario, evidence, request.answers, ctx.catalog.trees.symptoms.values())
    launched = _as_launched(ctx, subject, evidence, found)
    plain = trier(tried_step(subject), evidence)
    gapped = plain if launched is subject else trier(tried_step(launched), evidence)
    directions = []
    for reached in found.directions:
        leaf = ctx.catalog.trees.leaves[reached.leaf]
        on, attempt = (launched, gapped) if about_launches(leaf) else (subject, plain)
        directions.append((reached, leaf, _ranked(ctx, leaf, attempt, on, evidence)))
    ordered = tuple(_by_saving(ctx, directions, evidence))
    return Diagnosis(subject, evidence, found, ordered, request, launched=launched)


def about_launches(leaf: Leaf) -> bool:
    """Whether a direction removes launches: the others are tried on a step without gaps, which is what they leave."""
    return "launch_share" in leaf.addresses


def _as_launched(ctx: Context, subject: Subject, evidence: Mapping[str, Evidence], found: Walk) -> Subject:
    """The subject whose step is launched one by one where launch gaps are known, by a value or by a person's answer,
    and no file says otherwise: what removes launches is tried on a step that has them."""
    row, view = subject.row, subject.view
    if row is None or view is None or row.workload.launch_mode != "graph":
        return subject
    if view.run.parsed.workload.extra.get("launch_mode") == "graph":
        return subject
    gaps = evidence.get("launch_share")
    usual = float(ctx.catalog.trees.thresholds["launch_hi"].value)
    told = gaps is not None and not gaps.limit and gaps.kind in ("user", "measured") and float(gaps.value) > usual
    said = any(
        step.decided_by == "user" and step.answer == "yes" and step.node.condition.needs == ("launch_share",)
        for step in found.steps
    )
    if not (told or said):
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
    trials = [capped(trial, about, step_of_saving(subject, trial), label) for trial in map(attempt, leaf.techniques)]
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


def step_of_saving(subject: Subject, trial: Trial) -> float | None:
    """The step that a saving is a share of: measured, else as the forecast has it."""
    return subject.row.measured if subject.row is not None else trial.expected_before


def _by_saving(
    ctx: Context,
    directions: Sequence[tuple[Reached, Leaf, tuple[Trial, ...]]],
    evidence: Mapping[str, Evidence],
) -> list[tuple[Reached, Leaf, tuple[Trial, ...]]]:
    """Directions of one standing by their best predicted saving; those that a symptom names go before the others.

    Savings that keep what is computed go before those that need a quality result beside them, as in the headline.
    Where nothing is predicted, a direction whose share of the step is known goes before one of which nobody knows it;
    else the walk's own order stays.
    """

    def best(trials: Iterable[Trial]) -> float:
        return max((trial.saving for trial in trials if trial.saving is not None), default=0.0)

    def key(item: tuple[Reached, Leaf, tuple[Trial, ...]]) -> tuple[Any, ...]:
        reached, leaf, trials = item
        kept = (trial for trial in trials if ctx.catalog.techniques[trial.technique].book_as != "algorithmic")
        return reached.order, -max(best(kept), 0.0), -max(best(trials), 0.0), addressed(leaf, evidence) is None

    return sorted(directions, key=key)
