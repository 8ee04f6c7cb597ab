"""A measured run against its bound: which steps a file's numbers describe, and how far each is from the least time.

Every choice here leans one way: where a file leaves a quantity open, the value that makes the bound smaller is taken
(fewer sequences, shorter context, faster precision), so that a run that beats its bound is a contradiction in what was
stated and not a rounding of ours. The one exception is a layout nobody states: the fewest devices that hold the model
are assumed, and the assumption is named wherever the result is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.calibration import Calibration
from app.domain.errors import DomainError, InvalidInput
from app.domain.expected import Expected, expected_time
from app.domain.gap import RESOURCE_WORDS, GapPart, StepEvidence, gap_words, split_gap
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import RESOURCES, Bound, ceilings, lower_bound
from app.domain.model import ModelSpec
from app.domain.precision import PRECISIONS
from app.domain.run import Finding, ParsedRun
from app.domain.run_steps import (
    WHAT_WORDS,
    MeasuredStep,
    NotHeld,
    What,
    has_a_step,
    laid_out,
    stated_dtypes,
    stated_layout,
    steps_of,
    whole,
)
from app.domain.step import cost_table
from app.domain.units import Flop, Ratio, Seconds
from app.domain.words import share_text, time_text
from app.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class BoundRow:
    """One step of the run held against its bound.

    `of_bound` is bound over measured (F-1.3): 1 is the limit, and above 1 something stated is wrong; it is never
    clamped. `mfu` (useful) and `hfu` (executed, with recomputation) are at the dense peak of `mfu_precision`, `mbu` at
    the memory roof. `gap` starts with the bound and sums to `measured`; it is empty for a contradiction. `expected` is
    the forecast for this step, where a calibration was given. `measured_from` is the key of the metric, `how` how the
    number was made from it.
    """

    what: What
    measured: Seconds
    measured_from: str
    how: str
    bound: Seconds
    serial_bound: Seconds
    of_bound: Ratio
    binding: str
    terms: Mapping[str, Seconds]
    mfu: Ratio | None
    mfu_precision: str | None
    hfu: Ratio | None
    mbu: Ratio
    flop: Flop
    hbm_bytes: float
    kv_share: Ratio
    devices: int
    gap: tuple[GapPart, ...]
    workload: Workload
    detail: Bound
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    expected: Expected | None = None

    @property
    def contradicts(self) -> bool:
        """Whether the measurement is faster than its bound (beyond the rounding of a float)."""
        return self.of_bound > 1 + 1e-9

    @property
    def gap_time(self) -> Seconds:
        """Measured less bound; below zero for a contradiction."""
        return self.measured - self.bound

    @property
    def gap_terms(self) -> tuple[GapPart, ...]:
        """The named terms that add up to `gap_time`; none for a contradiction."""
        return tuple(part for part in self.gap if part.term != "bound")


@dataclass(frozen=True, slots=True)
class MeasuredAgainstBound:
    """Every step of a run that could be held against a bound, the main one first; what could not; and findings."""

    rows: tuple[BoundRow, ...] = ()
    not_held: tuple[NotHeld, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def main(self) -> BoundRow | None:
        return self.rows[0] if self.rows else None

    @property
    def verdict(self) -> str:
        """The main result in one sentence, or what is lacking for one."""
        if self.main is not None:
            return _verdict(self.main)
        if not self.not_held:
            return "Nothing in this run is the time of a step that a bound could be computed for."
        return self.not_held[0].reason

    @property
    def also(self) -> tuple[str, ...]:
        """A sentence for every other step, and for every other thing that is lacking."""
        said = [_verdict(row, short=True) for row in self.rows[1:]]
        reasons = [item.reason for item in self.not_held]
        return tuple(dict.fromkeys(text for text in (*said, *reasons) if text != self.verdict))

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields that a person would have to state for every step to have a bound."""
        return tuple(dict.fromkeys(name for item in self.not_held for name in item.needs))


def analyse_run(
    run: ParsedRun,
    hardware: HardwareProfile | None,
    model: ModelSpec | None,
    overrides: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
    evidence: Mapping[str, float] | None = None,
) -> MeasuredAgainstBound:
    """Hold every step that the run measured against its bound on `hardware`.

    `overrides` are fields of the API's workload object that a person states over the file's: `dtypes`, `parallel` and
    `launch_mode` count for every step; `batch`, `seq_len` and `context_len` for the step that `phase` names, or for the
    run's main step without one. Values are validated by the caller. With a `calibration` every step has an expected
    time, which splits its gap further (lists leave it out: it is the slow part). `evidence` are shares of the step that
    people state over the file's own. Never raises for what a file or a profile lacks.
    """
    stated = dict(overrides or {})
    shares = {**run.evidence, **dict(evidence or {})}
    if run.workload.mode == "kernel" and not stated.get("phase") and not has_a_step(run):
        reason = "These are times of kernels or collectives, not of a model's step, so no step's bound applies to them."
        return MeasuredAgainstBound(not_held=(NotHeld("run", reason, () if hardware else ("hardware",)),))
    missing = [name for name, given in (("hardware", hardware), ("model", model)) if given is None]
    if hardware is None or model is None:
        words = {"hardware": "a hardware profile", "model": "a model"}
        reason = f"Link {' and '.join(words[m] for m in missing)} to hold this run against its bound."
        return MeasuredAgainstBound(not_held=(NotHeld("run", reason, tuple(missing)),))
    parallel = stated_layout(run, stated)
    dtypes, dtype_notes = stated_dtypes(run, hardware, model, stated)
    launch: Any = stated.get("launch_mode", run.workload.extra.get("launch_mode", "graph"))
    template = Workload(dtypes=dtypes, launch_mode=launch if launch in ("graph", "eager") else "graph")
    steps: list[MeasuredStep] = []
    not_held: list[NotHeld] = []
    for found in steps_of(run, template, parallel, stated):
        if isinstance(found, MeasuredStep):
            steps.append(found)
        else:
            not_held.append(found)
    rows: list[BoundRow] = []
    findings: list[Finding] = []
    # prefill before decode: how much of a server's time its prompts take is part of what its decode steps wait for
    prefill_bound: Seconds | None = None
    for step in sorted(steps, key=lambda step: step.what != "prefill"):
        try:
            known = _step_evidence(step, run, shares, parallel, prefill_bound)
            row, notes = _row(step, hardware, model, parallel, dtype_notes, known, calibration)
            if row.what == "prefill" and row.workload.batch == 1:
                prefill_bound = row.bound
        except DomainError as error:
            reason = error.reason if isinstance(error, InvalidInput) else str(error)
            not_held.append(NotHeld(step.what, f"{WHAT_WORDS[step.what]} has no bound: {reason}."))
            continue
        rows.append(row)
        findings += [note for note in notes if note.check not in {f.check for f in findings}]
    rows.sort(key=lambda row: [step.what for step in steps].index(row.what))
    findings += [_contradiction(row, "tp" not in parallel, run) for row in rows if row.contradicts]
    return MeasuredAgainstBound(tuple(rows), tuple(not_held), tuple(findings))


def _step_evidence(
    step: MeasuredStep,
    run: ParsedRun,
    shares: Mapping[str, float],
    parallel: Mapping[str, Any],
    prefill_bound: Seconds | None,
) -> StepEvidence:
    """What splits the gap of a step: shares that are stated, and what a serving run's statistics imply."""
    known = {name: value for name, value in shares.items() if isinstance(value, (int, float)) and math.isfinite(value)}
    if run.workload.mode != "serve" and not step.measured_from.startswith(("tpot_s", "ttft_s")):
        return StepEvidence(known)
    if step.what == "prefill":
        return StepEvidence(known, least=run.value("ttft_s", "min") if run.value("ttft_s", "mean") else None)
    accepted = run.value("accepted_tokens_per_step")
    gap_mean, gap_median = run.value("itl_s", "mean"), run.value("itl_s", "p50")
    # chunks of several tokens make the gaps longer than a token: then they say nothing about a step
    comparable = gap_mean is not None and abs(gap_mean - step.measured) <= 0.1 * step.measured
    median = gap_median if comparable and (accepted is None or accepted <= 1) else None
    return StepEvidence(known, prefill_share=_prefill_share(run, parallel, prefill_bound), median_gap=median)


def _prefill_share(run: ParsedRun, parallel: Mapping[str, Any], prefill_bound: Seconds | None) -> Ratio | None:
    """The part of its time in which a replica computes prompts of others than the sequence that decodes, at least.

    Arriving requests a second times the bound of a prompt of the mean length. Of C sequences in a closed loop one is
    the sequence itself, so it sees the prompts of C - 1. None where prefill runs on servers of its own.
    """
    rate = run.value("requests_per_s")
    if prefill_bound is None or rate is None or rate <= 0 or any(f.check == "disaggregated" for f in run.findings):
        return None
    replicas = whole(parallel.get("dp"))
    in_loop = (run.workload.concurrency or math.inf) / replicas
    others = max(1 - 1 / in_loop, 0.0) if in_loop >= 1 else 0.0
    return rate / replicas * prefill_bound * others


# --- the row -------------------------------------------------------------------------------------------------------
def _row(
    step: MeasuredStep,
    hardware: HardwareProfile,
    model: ModelSpec,
    layout: Mapping[str, Any],
    dtype_notes: tuple[str, ...],
    known: StepEvidence,
    calibration: Calibration | None,
) -> tuple[BoundRow, list[Finding]]:
    model.require_supported()
    roofs = ceilings(hardware)
    workload, layout_notes, findings = laid_out(step, hardware, model, layout)
    table = cost_table(model, workload, ranks_per_node=hardware.ranks_per_node)
    bound = lower_bound(table, roofs, launch_mode=workload.launch_mode)
    floor, measured = float(bound.overlapped), step.measured
    if not math.isfinite(floor) or floor <= 0:
        raise InvalidInput(("workload",), "the step moves nothing and computes nothing")
    precision, useful, executed = _tensor_work(bound)
    expected = None if calibration is None else expected_time(bound, calibration, workload)
    rate = roofs.flop_rate(precision) if precision is not None else None
    hbm = bound.hbm_bytes
    kv = float(table.total("kv_read"))
    row = BoundRow(
        what=step.what,
        measured=measured,
        measured_from=step.measured_from,
        how=step.how,
        bound=floor,
        serial_bound=float(bound.serial),
        of_bound=floor / measured,
        binding=bound.binding,
        terms={name: float(bound.terms[name]) for name in RESOURCES},
        mfu=None if rate is None else useful / (measured * rate),
        mfu_precision=None if precision is None else PRECISIONS[precision].peak,
        hfu=None if rate is None else executed / (measured * rate),
        mbu=hbm / (measured * roofs.memory),
        flop=useful,
        hbm_bytes=hbm,
        kv_share=kv / hbm if hbm else 0.0,
        devices=workload.parallel.devices * whole(layout.get("pp")),
        gap=split_gap(measured, bound, step.what, known, expected),
        workload=workload,
        detail=bound,
        assumptions=(
            *step.assumptions,
            *layout_notes,
            *dtype_notes,
            *roofs.notes_for(table, eager=workload.launch_mode == "eager"),
            *table.assumptions,
        ),
        notes=step.notes,
        expected=expected,
    )
    return row, findings


def _tensor_work(bound: Bound) -> tuple[str | None, Flop, Flop]:
    """The precision of most products, and the useful and executed FLOP of all products of a device."""
    by_precision: dict[str, float] = {}
    executed = 0.0
    for i, op in enumerate(bound.table.ops):
        if op.pipe == "tensor":
            count = float(bound.table["count"][i])
            by_precision[op.dtype] = by_precision.get(op.dtype, 0.0) + float(bound.table["flop"][i]) * count
            executed += float(bound.table["executed"][i]) * count
    if not by_precision:
        return None, 0.0, 0.0
    return max(by_precision, key=lambda name: by_precision[name]), sum(by_precision.values()), executed


# --- words ---------------------------------------------------------------------------------------------------------
def _contradiction(row: BoundRow, layout_assumed: bool, run: ParsedRun) -> Finding:
    reasons: list[str] = []
    if layout_assumed:
        reasons.append("more devices shared the work than assumed (state the layout)")
    if "weights" not in run.workload.dtypes and row.workload.dtypes.weights_bits is None:
        reasons.append("weights were narrower than assumed (state the precision)")
    if row.what == "prefill":
        reasons.append("a prefix cache skipped part of the prompt")
    if row.what == "decode" and run.value("accepted_tokens_per_step") is None:
        reasons.append("speculative decoding yielded several tokens a step")
    reasons.append("the linked device or model is not the one that ran")
    reasons.append("a time in the file has another unit or meaning")
    return Finding(
        "faster-than-bound",
        "error",
        f"{WHAT_WORDS[row.what]} is faster than its bound: {time_text(row.measured)} measured against "
        f"{time_text(row.bound)} ({row.of_bound:.3g} times as fast as possible under what is stated). "
        f"Likely reasons: {'; '.join(reasons)}.",
        (row.measured_from, "hardware", "model", "parallel", "dtypes"),
    )


def _verdict(row: BoundRow, *, short: bool = False) -> str:
    unit = {"decode": "per step" if "accepted" in row.how else "per token", "train": "per step"}.get(row.what, "")
    if row.what == "prefill":
        unit = f"for {row.workload.batch * row.workload.seq_len:,} prompt tokens"
    subject = WHAT_WORDS[row.what]
    measured, bound = time_text(row.measured), time_text(row.bound)
    if row.contradicts:
        return (
            f"{subject} contradicts its bound: {measured} {unit} measured, but {bound} is the least for what is stated."
        )
    if row.measured_from.startswith("ttft_s") and row.of_bound < 0.5:
        # most of a TTFT may be waiting, which says nothing about the prefill itself
        tokens = row.workload.batch * row.workload.seq_len
        return (
            f"TTFT is {measured}, of which the prefill of {tokens:,} tokens takes {bound} at least "
            f"({RESOURCE_WORDS[row.binding]} {_verb(row.binding)})."
        )
    sentence = f"{subject} reaches {share_text(row.of_bound)} of its bound: {measured} {unit} against {bound}"
    if short:
        return f"{sentence}; {RESOURCE_WORDS[row.binding]} {_verb(row.binding)}."
    sentence += f"; {RESOURCE_WORDS[row.binding]} {_verb(row.binding)}"
    reads = ""
    if row.binding == "hbm" and row.what == "decode" and row.kv_share >= 0.05:
        reads = f"KV reads are {share_text(row.kv_share)} of its bytes"
    gap = _gap_sentence(row)
    *first, last = [part for part in (reads, gap) if part] or [""]
    return sentence + "".join(f", {part}" for part in first) + (f", and {last}." if last else ".")


def _gap_sentence(row: BoundRow) -> str:
    """The largest terms: "the gap of 79.6 ms is 60 % kernels below their roof and 40 % unexplained"."""
    named = gap_words(row.gap)
    if not named or row.gap_time < 0.005 * row.measured:
        return ""
    parts = [f"{share_text(share)} {words}" for words, share in named]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"the gap of {time_text(row.gap_time)} is {listed}"


def _verb(resource: str) -> str:
    return "bind" if resource == "launch" else "binds"
