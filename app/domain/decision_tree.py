"""A decision tree over evidence: nodes with measurable tests, and the walk from the first question to a direction.

A test has three outcomes. Evidence that is missing, or that is only known to be at most or at least some value, may
leave it unknown; the walk then stops and asks. Beyond an open question both branches are explored without asking, and a
direction there is *likely* where something that is known speaks for it. An answer of "unknown" explores both branches
as part of the walk itself. Nothing here reads files, runs or the clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Answer: TypeAlias = Literal["yes", "no", "unknown"]
DecidedBy: TypeAlias = Literal["data", "user", "assumed"]
Status: TypeAlias = Literal["found", "likely", "afterwards", "possible"]
Value: TypeAlias = float | bool | str
Limit: TypeAlias = Literal["", "at_most", "at_least"]
Op: TypeAlias = Literal["<", "<=", ">", ">=", "=="]

NEAR = 0.10
"""How near to a threshold, relative to it, an answer is called near (our judgement)."""

STATUSES: tuple[Status, ...] = ("found", "likely", "afterwards", "possible")
"""From the surest: where the walk ends; what known values decide behind an open question; what would be next once the
first is cured; and what is not ruled out."""

UNSURE = 2
"""Open questions between a finding and a direction from which the direction is no longer called likely (judgement)."""

ROUNDING = 1e-9
"""Relative distance within which a value is its threshold: floats that are equal on paper differ by less."""

OTHER: Mapping[str, str] = {"yes": "no", "no": "yes"}


@dataclass(frozen=True, slots=True)
class TreeMetric:
    """A quantity that a test reads. `find` maps a tool to how the value is found in it.

    `kind` is number, flag or choice; a number lies from `least` to `most` (None: no upper limit).
    """

    name: str
    label: str
    unit: str
    kind: Literal["number", "flag", "choice"]
    how: str
    find: Mapping[str, str]
    choices: tuple[str, ...] = ()
    least: float = 0.0
    most: float | None = None


@dataclass(frozen=True, slots=True)
class TreeThreshold:
    """The value that a test holds a metric against. `origin`: judgement, source, derived or definition."""

    name: str
    metric: str
    value: Value
    unit: str
    origin: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class TreeTest:
    """One comparison. With `of` the threshold is a factor of another metric's value."""

    threshold: TreeThreshold
    op: Op
    of: str | None = None

    @property
    def metric(self) -> str:
        return self.threshold.metric

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.metric,) if self.of is None else (self.metric, self.of)


@dataclass(frozen=True, slots=True)
class Condition:
    """Tests that hold all together, or any of them."""

    tests: tuple[TreeTest, ...]
    join: Literal["all", "any"] = "all"

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for test in self.tests for name in test.needs))


@dataclass(frozen=True, slots=True)
class Node:
    """A question. `if_yes` and `if_no` name a node or a leaf; `finding` is the answer that names a problem."""

    id: str
    question: str
    condition: Condition
    if_yes: str
    if_no: str
    finding: Literal["yes", "no", "both", "none"]
    why: str

    def target(self, answer: str) -> str:
        return self.if_yes if answer == "yes" else self.if_no

    def finds(self, answer: str) -> bool:
        return self.finding in (answer, "both")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A direction with its techniques, the best first. `confirm` names the page that can confirm or refute it.

    `addresses` are metrics whose value is the share of the step that the direction is about, the most exact first.
    With the goal memory, techniques are ranked by the memory that they free, and none may take more.
    """

    id: str
    title: str
    why: str
    techniques: tuple[str, ...]
    confirm: str
    measure_next: str
    avoid: str
    addresses: tuple[str, ...] = ()
    goal: Literal["time", "memory"] = "time"


@dataclass(frozen=True, slots=True)
class Tree:
    """The questions of one scenario. `assume` has the answers of questions that nobody needs to be asked first."""

    id: str
    title: str
    line: str
    start: str
    nodes: Mapping[str, Node]
    leaves: Mapping[str, Leaf]
    assume: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a profile shows at a glance, its usual cause, and the directions that it speaks for."""

    id: str
    see: str
    condition: Condition
    cause: str
    go: tuple[str, ...]
    avoid: str
    scenarios: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trees:
    """All of them, with the one table of thresholds and the glossary of metrics."""

    scenarios: Mapping[str, Tree]
    metrics: Mapping[str, TreeMetric]
    thresholds: Mapping[str, TreeThreshold]
    leaves: Mapping[str, Leaf]
    symptoms: Mapping[str, Symptom]


# ---- evidence and tests -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """A value with where it comes from. `limit` says that the true value is at most, or at least, this one."""

    name: str
    value: Value
    kind: Literal["measured", "derived", "estimated", "user"]
    source: str
    limit: Limit = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison as it came out. `value` is None where nothing is known; `near` within NEAR of the threshold."""

    test: TreeTest
    evidence: Evidence | None
    threshold: Value | None
    outcome: Answer
    near: bool

    @property
    def distance(self) -> float | None:
        """How far the value lies above the threshold, relative to it; None where there is no such number."""
        if self.evidence is None or self.threshold is None:
            return None
        return _distance(self.evidence.value, self.threshold)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _distance(value: Value, threshold: Value) -> float | None:
    if not (_is_number(value) and _is_number(threshold)) or not threshold:
        return None
    return float(value) / float(threshold) - 1.0


def check(test: TreeTest, evidence: Mapping[str, Evidence]) -> Check:
    """Hold one test against what is known."""
    found = evidence.get(test.metric)
    threshold: Value | None = test.threshold.value
    if test.of is not None:
        other = evidence.get(test.of)
        exact = other is not None and not other.limit and _is_number(other.value)
        threshold = float(threshold) * float(other.value) if exact and other is not None else None  # type: ignore[arg-type]
    if found is None or threshold is None:
        return Check(test, found, threshold, "unknown", near=False)
    holds = _holds(found.value, test.op, threshold)
    distance = _distance(found.value, threshold)
    near = distance is not None and abs(distance) <= NEAR + ROUNDING and test.threshold.origin != "definition"
    if found.limit:
        # "at most 0.1" refutes "> 0.15" and proves "< 0.15", but says nothing about "> 0.05"
        settles = (found.limit == "at_most") == ((test.op in ("<", "<=")) == holds)
        if test.op == "==" or not settles:
            return Check(test, found, threshold, "unknown", near=False)
        near = False  # how near the limit is says nothing of the value
    return Check(test, found, threshold, "yes" if holds else "no", near)


def _holds(value: Value, op: str, threshold: Value) -> bool:
    if op == "==":
        if _is_number(value) and _is_number(threshold):
            return abs(float(value) - float(threshold)) <= ROUNDING * max(abs(float(threshold)), 1.0)
        return value == threshold
    a, b = float(value), float(threshold)
    equal = abs(a - b) <= ROUNDING * max(abs(b), 1e-12)
    if op in ("<=", ">="):
        return equal or (a < b if op == "<=" else a > b)
    return not equal and (a < b if op == "<" else a > b)


def decide(condition: Condition, evidence: Mapping[str, Evidence]) -> tuple[Answer, bool, tuple[Check, ...]]:
    """The answer, whether a near threshold could turn it, and every comparison."""
    checks = tuple(check(test, evidence) for test in condition.tests)
    outcomes = [item.outcome for item in checks]
    settling: Answer = "no" if condition.join == "all" else "yes"
    if settling in outcomes:
        # it turns only if every comparison that settles it turns
        return settling, all(item.near for item in checks if item.outcome == settling), checks
    if "unknown" in outcomes:
        return "unknown", False, checks
    return "yes" if settling == "no" else "no", any(item.near for item in checks), checks


# ---- the walk ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """A question on the way and how it was answered. `by_data` is the data's own answer where a person overrode it."""

    node: Node
    answer: Answer
    decided_by: DecidedBy
    near: bool
    checks: tuple[Check, ...]
    by_data: Answer = "unknown"
    depth: int = 0

    @property
    def overridden(self) -> bool:
        """Whether a person's answer stands against the data's."""
        return self.decided_by == "user" and self.by_data != "unknown" and self.by_data != self.answer


@dataclass(frozen=True, slots=True)
class Reached:
    """A direction. `via` are the nodes (or the symptom) that speak for it, the last one first.

    `under` marks a possible direction right below the finding that leads to it: only which of its kind it is is open.
    `named` is its place among those that a symptom names, None where none does.
    """

    leaf: str
    status: Status
    via: tuple[str, ...] = ()
    under: bool = field(default=False, compare=False)
    named: int | None = field(default=None, compare=False)

    @property
    def standing(self) -> tuple[bool, float]:
        """The order of directions. One of those below a known finding goes before what comes after that finding."""
        silent = not self.via and self.status != "found"
        place = float(STATUSES.index(self.status))
        return silent, STATUSES.index("afterwards") - 0.5 if self.under and self.status == "possible" else place

    @property
    def order(self) -> tuple[tuple[bool, float], float]:
        """By standing, then by what a symptom names: it explains the values that it was read from."""
        return self.standing, math.inf if self.named is None else float(self.named)


@dataclass(frozen=True, slots=True)
class Walk:
    """How far the answers lead. `next` is the question to ask; without one the walk is at its end.

    `directions` come in the order of STATUSES. `also_check` are leaves on the other side of a near threshold or of an
    "unknown".
    """

    tree: Tree
    steps: tuple[Step, ...]
    next: Node | None
    directions: tuple[Reached, ...]
    also_check: tuple[str, ...]

    @property
    def ended(self) -> bool:
        return self.next is None


def walk(
    tree: Tree,
    evidence: Mapping[str, Evidence],
    answers: Mapping[str, str] | None = None,
    symptoms: Iterable[Symptom] = (),
) -> Walk:
    """Walk from the start. `answers` of a person (yes, no, unknown, by node) stand over the evidence.

    A node is visited once, so the walk always ends. Answers of nodes that are not on the way change nothing. While a
    question is open, `symptoms` that the evidence shows speak for their leaves, unless the tree rules these out.
    """
    return _Walker(tree, evidence, dict(answers or {})).run(tuple(symptoms))


class _Walker:
    def __init__(self, tree: Tree, evidence: Mapping[str, Evidence], answers: Mapping[str, str]) -> None:
        self.tree = tree
        self.evidence = evidence
        self.answers = answers
        self.steps: list[Step] = []
        self.next: Node | None = None
        self.reached: dict[str, Reached] = {}
        self.also: list[str] = []
        self.beside: list[tuple[str, tuple[str, ...]]] = []  # beyond near thresholds
        self.spoken: dict[str, int] = {}  # leaves that a symptom speaks for, the likelier ones first
        self.seen: set[str] = set()

    def run(self, symptoms: tuple[Symptom, ...]) -> Walk:
        self._follow(self.tree.start)
        for leaf, reasons in self.beside:
            self._reach(leaf, "possible", reasons)
        if self.next is not None:
            left = {leaf for leaf, *_ in self._explore(self.tree.start, ())}
            for symptom in symptoms:
                if decide(symptom.condition, self.evidence)[0] == "yes":
                    for leaf in symptom.go:
                        if leaf in left:
                            self._reach(leaf, "possible", (symptom.id,))
                            self.spoken.setdefault(leaf, len(self.spoken))
        found = [leaf for leaf, item in self.reached.items() if item.status == "found"]
        also = tuple(leaf for leaf in dict.fromkeys(self.also) if leaf not in found)
        return Walk(self.tree, tuple(self.steps), self.next, tuple(self._ordered()), also)

    def _ordered(self) -> list[Reached]:
        """By standing; of equal ones those first that a symptom names, in its own order."""
        found = [replace(item, named=self.spoken.get(item.leaf)) for item in self.reached.values()]
        return sorted(found, key=lambda item: item.order)

    def _reach(self, leaf: str, status: Status, via: tuple[str, ...], *, under: bool = False) -> None:
        """Keep the strongest way to a leaf."""
        known = self.reached.get(leaf)
        found = Reached(leaf, status, via, under)
        if known is None or found.standing < known.standing:
            self.reached[leaf] = found

    def _follow(self, place: str, *, certain: bool = True, depth: int = 0, via: tuple[str, ...] = ()) -> None:
        """The walk itself, whose every step is shown. `via` are the findings so far."""
        told = False
        while place in self.tree.nodes:
            if place in self.seen:
                return
            self.seen.add(place)
            node = self.tree.nodes[place]
            step = self._step(node, depth)
            if step is None:
                self.next = self.next or node
                self._look(node.id, via, "likely")
                return
            self.steps.append(step)
            if step.answer == "unknown":
                for answer in _finding_first(node):
                    self._follow(node.target(answer), certain=False, depth=depth + 1, via=via)
                return
            told = step.decided_by != "assumed"
            other = OTHER[step.answer]
            if step.near and told:
                self._other_side(node, other)
            if told and node.finds(step.answer):
                via = (node.id, *via)
                if node.finding != "both" and node.target(other) in self.tree.nodes:
                    self._look(node.target(other), (), "afterwards")
            place = node.target(step.answer)
        self._reach(place, "found" if certain else "likely" if via and told else "possible", via)
        if not certain and not via:
            self.also.append(place)

    def _step(self, node: Node, depth: int) -> Step | None:
        """The step of a node, or None where nobody knows and nobody was asked."""
        answer, near, checks = decide(node.condition, self.evidence)
        told = self.answers.get(node.id)
        if told in ("yes", "no", "unknown"):
            mine: Answer = "yes" if told == "yes" else "no" if told == "no" else "unknown"
            return Step(node, mine, "user", False, checks, answer, depth)
        if answer != "unknown":
            return Step(node, answer, "data", near, checks, answer, depth)
        assumed = self.tree.assume.get(node.id)
        if assumed is not None:
            return Step(node, "yes" if assumed == "yes" else "no", "assumed", False, checks, answer, depth)
        return None

    def _half_known(self, node: Node) -> bool:
        """Whether a finding that needs several things is known to hold in one of them, and refuted in none.

        What is only computed says too little for that: half of a finding would then show on every estimate.
        """
        if node.finding != "yes" or node.condition.join != "all" or len(node.condition.tests) < 2:
            return False
        if node.id in self.answers:
            return False
        checks = decide(node.condition, self.evidence)[2]
        holding = [item.evidence for item in checks if item.outcome == "yes" and item.evidence is not None]
        return all(item.outcome != "no" for item in checks) and any(item.kind != "estimated" for item in holding)

    def _other_side(self, node: Node, answer: str) -> None:
        """Leaves on the other side of a near threshold; crossing it may itself be the finding."""
        place = node.target(answer)
        via = (node.id,) if node.finds(answer) else ()
        for leaf, reasons, _, _ in self._explore(place, via):
            if reasons or leaf == place:
                self.also.append(leaf)
            if reasons:
                self.beside.append((leaf, reasons))

    def _look(self, place: str, via: tuple[str, ...], status: Status) -> None:
        """Leaves beyond an open question, or beyond a finding, that something known speaks for; nobody is asked."""
        for leaf, reasons, direct, behind in self._explore(place, via):
            if not reasons or (status == "afterwards" and not direct):
                continue
            if direct:
                self._reach(leaf, "afterwards" if behind else status, reasons)
            else:
                self._reach(leaf, "possible", reasons, under=not behind)

    def _explore(
        self,
        place: str,
        via: tuple[str, ...],
        seen: set[tuple[str, bool]] | None = None,
        direct: bool = False,
        behind: bool = False,
        unsure: int = 0,
    ) -> Iterator[tuple[str, tuple[str, ...], bool, bool]]:
        """Every leaf that is not ruled out from here, the findings on the way, whether its last question is decided,
        and whether it lies behind a finding that points elsewhere.

        `unsure` counts questions on the way that nobody can answer: below the finding of one nothing is known to hold,
        and past a few of them each may be the cause as well. The next known finding begins anew.
        """
        if place not in self.tree.nodes:
            yield place, via, direct, behind
            return
        seen = set() if seen is None else seen
        if (place, behind) in seen or (place, False) in seen:
            return
        seen.add((place, behind))
        node = self.tree.nodes[place]
        step = self._step(node, 0)
        if step is None or step.answer == "unknown":
            hinted, asks = self._half_known(node), node.finding in ("yes", "no")
            for answer in reversed(_finding_first(node)):
                reasons = (node.id, *via) if hinted and node.finds(answer) else via
                asked = 0 if not asks else UNSURE if node.finds(answer) else 1
                yield from self._explore(node.target(answer), reasons, seen, False, behind, unsure + asked)
            return
        told = step.decided_by != "assumed"
        finds = told and node.finds(step.answer)
        reasons = (node.id, *via) if finds else via
        unsure = 0 if finds else unsure
        yield from self._explore(node.target(step.answer), reasons, seen, told and unsure < UNSURE, behind, unsure)
        if finds and node.finding != "both":
            # what comes behind this finding
            yield from self._explore(node.target(OTHER[step.answer]), (), seen, False, True)


def _finding_first(node: Node) -> tuple[str, str]:
    return ("no", "yes") if node.finding == "no" else ("yes", "no")
