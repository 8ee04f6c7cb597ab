"""Measured time above its bound, split into named terms that add up exactly to the gap.

What a file or a trace states comes first, since it was measured; then what serving data and the model imply; then what
kernels of this kind usually lose; and what is left is called unexplained. Every term is capped at what is still left,
so no time is explained twice and the sum is the gap, whatever was stated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from app.domain.expected import Expected
from app.domain.lower_bound import RESOURCES, Bound
from app.domain.units import Ratio, Seconds

RESOURCE_WORDS: Mapping[str, str] = {
    "compute": "compute",
    "hbm": "HBM",
    "net": "the network",
    "launch": "kernel launches",
    "sync": "synchronisation",
    "imbalance": "imbalance",
}

Term: TypeAlias = str

TERM_WORDS: Mapping[Term, str] = {
    "data_wait": "waiting for data",
    "exposed_communication": "exposed communication",
    "launch": "launch gaps",
    "host_idle": "device idle",
    "copies": "copies and layout changes",
    "imbalance": "imbalance between ranks",
    "bubble": "pipeline bubble",
    "queueing": "queueing",
    "prefill_interference": "prefills in between",
    "scheduling": "scheduling and stalls",
    "missing_overlap": "missing overlap",
    "synchronisation": "synchronisation",
    "kernel_inefficiency": "kernels below their roof",
    "unexplained": "unexplained",
}
"""Every term a gap can have, in the order in which they are taken, with the words of a sentence."""

NAMED_FROM: Ratio = 0.10
"""Share of the gap from which a sentence names a term (judgement: two or three terms are readable)."""


@dataclass(frozen=True, slots=True)
class GapPart:
    """One piece of the measured time. `resource` colours it: one of RESOURCES, or `other`.

    `term` is `bound` or a key of TERM_WORDS; `basis` says what the time rests on.
    """

    resource: str
    label: str
    time: Seconds
    term: Term = "bound"
    basis: str = ""


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """What is known of a measured step beside its time. None and absent mean "not known".

    `shares` are shares of the measured step by evidence name, as a file or a trace states them. `prefill_share` is the
    part of wall time that prefills of other requests take at their bound; `median_gap` the median time between tokens;
    `least` the smallest time of the same kind in the file (the TTFT of a request that waited least).
    """

    shares: Mapping[str, float]
    prefill_share: Ratio | None = None
    median_gap: Seconds | None = None
    least: Seconds | None = None


_STATED: tuple[tuple[str, Term, str, str], ...] = (
    ("data_wait_share", "data_wait", "other", "Waiting for data"),
    ("exposed_comm_share", "exposed_communication", "net", "Exposed communication"),
    ("launch_share", "launch", "launch", "Launch gaps"),
    ("gpu_idle_share", "host_idle", "launch", "Device idle"),
    ("copy_share", "copies", "hbm", "Copies and layout changes"),
    ("bubble_share", "bubble", "sync", "Pipeline bubble"),
    ("queue_share_ttft", "queueing", "sync", "Queueing"),
    ("sampling_share", "scheduling", "sync", "Sampling and scheduling"),
)
"""Evidence that is a share of the measured step on its critical path: (name, term, resource, label)."""

_IN_BOUND: Mapping[Term, str] = {"exposed_communication": "net", "launch": "launch", "bubble": "sync"}
"""Terms whose resource may be in the bound already; that part is no gap."""

_MODEL_TERM: Mapping[str, tuple[Term, str]] = {
    "compute": ("missing_overlap", "Compute, not overlapped"),
    "hbm": ("missing_overlap", "HBM, not overlapped"),
    "net": ("exposed_communication", "The network, not overlapped"),
    "launch": ("launch", "Kernel launches, not overlapped"),
    "sync": ("synchronisation", "Synchronisation"),
    "imbalance": ("imbalance", "Imbalance"),
}

_NOTHING = 1e-12
"""Share of a gap below which what is left is the rounding of a float."""


class _Splitter:
    """Takes terms off the gap until nothing is left of it."""

    def __init__(self, gap: Seconds) -> None:
        self.gap = gap
        self.parts: list[GapPart] = []

    @property
    def left(self) -> Seconds:
        return math.fsum([self.gap, *(-part.time for part in self.parts)])

    def close(self) -> None:
        """Name what is left, and give the finest piece the last digit, so that the sum is the gap to the bit."""
        rest = self.left
        if rest > _NOTHING * self.gap:
            self.parts.append(GapPart("other", "Not explained", rest, "unexplained", "What no other term explains."))
        rounding = self.left
        if rounding and self.parts:
            finest = min(range(len(self.parts)), key=lambda i: self.parts[i].time)
            self.parts[finest] = replace(self.parts[finest], time=self.parts[finest].time + rounding)

    def has(self, term: Term) -> bool:
        return any(part.term == term for part in self.parts)

    def take(self, term: Term, resource: str, label: str, time: Seconds, basis: str) -> None:
        left = self.left
        if not math.isfinite(time) or time <= 0 or left <= 0:
            return
        if time > left:
            time, basis = left, f"{basis} Only what was left of the gap is booked."
        self.parts.append(GapPart(resource, label, time, term, basis))


def split_gap(
    measured: Seconds,
    bound: Bound,
    what: str,
    evidence: StepEvidence,
    expected: Expected | None = None,
) -> tuple[GapPart, ...]:
    """The measured time in pieces: the bound first, then the terms of the gap, which add up to it exactly.

    Exactly means that `math.fsum` of the terms is `measured - bound`. Empty for a measurement that beats its bound.
    """
    floor, serial = float(bound.overlapped), float(bound.serial)
    if measured < floor:
        return ()
    binding = bound.binding
    words = RESOURCE_WORDS[binding]
    gap = _Splitter(measured - floor)
    _stated(gap, measured, bound, what, evidence.shares)
    if what == "decode":
        _serving(gap, measured, evidence)
    if what == "prefill" and evidence.least is not None and not gap.has("queueing"):
        gap.take(
            "queueing",
            "sync",
            "Waiting beside other requests",
            measured - max(evidence.least, floor),
            "Mean time to first token less the least one in the file, which waited least (its prompt may be shorter).",
        )
    overlap = 0.0
    # a run that is faster than operations one after another does overlap: nothing is blamed on that
    if serial > floor and measured >= serial:
        overlap = serial - floor
        _missing_overlap(gap, bound, overlap)
    if expected is not None:
        gap.take(
            "kernel_inefficiency",
            binding,
            "Kernels below their roof",
            expected.time - floor - overlap,
            f"Expected time less the bound{' and missing overlap' if overlap else ''}. {expected.basis}",
        )
    gap.close()
    return (GapPart(binding, f"Bound: {words}", floor, "bound", "The least time for what is stated."), *gap.parts)


def _stated(gap: _Splitter, measured: Seconds, bound: Bound, what: str, shares: Mapping[str, float]) -> None:
    """Terms that the file, a trace or a person states as shares of the step."""
    idle_inside = 0.0
    for name, term, resource, label in _STATED:
        share = shares.get(name)
        if share is None or not 0 < share <= 1 or (term == "queueing" and what != "prefill"):
            continue
        if term == "scheduling" and what != "decode":
            continue
        time, note = share * measured, ""
        if term == "host_idle":
            time -= idle_inside
            note = ", less what is named already" if idle_inside else ""
        held = _IN_BOUND.get(term)
        if held is not None and (held == bound.binding or held == "sync"):
            time -= float(bound.terms[held])
            note = ", less the part that is in the bound"
        if term in ("data_wait", "launch", "bubble"):  # a collective keeps the device busy
            idle_inside += max(time, 0.0)
        gap.take(term, resource, label, time, f"{name} {share:.3g} of the measured time{note}.")
    skew = shares.get("rank_token_max_over_mean")
    if skew is not None and skew > 1 and what == "train":
        gap.take(
            "imbalance",
            "imbalance",
            "Imbalance between ranks",
            measured * (1 - 1 / skew) - float(bound.terms["imbalance"]),
            f"The fullest rank has {skew:.3g} times the mean tokens (rank_token_max_over_mean); others wait for it.",
        )


def _serving(gap: _Splitter, measured: Seconds, evidence: StepEvidence) -> None:
    """What a decode step of a busy server waits for: prefills of other requests, and stalls beyond them."""
    prefills = 0.0
    if evidence.prefill_share:
        prefills = min(evidence.prefill_share, 1.0) * measured
        gap.take(
            "prefill_interference",
            "compute",
            "Prefills in between",
            prefills,
            f"Prompts that arrive while others decode, at the bound of their prefill: "
            f"{min(evidence.prefill_share, 1.0):.3g} of the time, at least.",
        )
    if evidence.median_gap is not None and not gap.has("scheduling"):
        gap.take(
            "scheduling",
            "sync",
            "Scheduling and stalls",
            measured - evidence.median_gap - prefills,
            "Mean time per token less the median gap between tokens: a few long gaps"
            f"{', beyond the prefills' if prefills else ''}.",
        )


def _missing_overlap(gap: _Splitter, bound: Bound, excess: Seconds) -> None:
    """What the serial bound adds to the overlapped one, shared out by what binds those operations."""
    spent: dict[str, float] = {}
    binding = bound.binding
    for i, resource in enumerate(bound.op_binding()):
        if resource != binding:
            time = float(bound.op_time[i] * bound.table["count"][i])
            spent[resource] = spent.get(resource, 0.0) + time
    total = math.fsum(spent.values())
    for resource in RESOURCES:
        if total > 0 and spent.get(resource, 0.0) > 0:
            term, label = _MODEL_TERM[resource]
            if gap.has(term) and term != "missing_overlap":
                continue  # stated by the file already: the model's guess would count it twice
            gap.take(
                term,
                resource,
                label,
                excess * spent[resource] / total,
                "Operations one after another instead of overlapped (serial bound less bound), by what binds them.",
            )


def gap_words(parts: tuple[GapPart, ...]) -> tuple[tuple[str, Ratio], ...]:
    """The largest terms of a gap with their shares of it, those worth a word in a sentence, largest first."""
    terms = [part for part in parts if part.term != "bound"]
    whole = math.fsum(part.time for part in terms)
    if whole <= 0:
        return ()
    by_term: dict[Term, float] = {}
    for part in terms:
        by_term[part.term] = by_term.get(part.term, 0.0) + part.time
    ranked = sorted(by_term.items(), key=lambda item: -item[1])
    named = [(TERM_WORDS[term], time / whole) for term, time in ranked if time / whole >= NAMED_FROM]
    return tuple(named[:3])
