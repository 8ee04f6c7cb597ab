"""Which levers and layouts bring a step's memory under a capacity, and what they cost.

The search is bounded and always goes the same way: moves are single changes in a fixed order, a beam of their
combinations is followed for a few steps, memory decides which combinations fit, and only those few that promise to be
cheapest are timed. What a step computes stays what it was: the same model, tokens, sequences and devices. Narrower
formats are proposed apart, since they change the numbers that are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from app.domain.activations import OFFLOAD_LABELS, RECOMPUTE_LABELS, modules_of
from app.domain.errors import DomainError, InvalidInput
from app.domain.layout import heads_of
from app.domain.levers.base import Lever, LeverRequest, Scenario, lever_path
from app.domain.model import ModelSpec
from app.domain.units import Bytes, Seconds
from app.domain.workload import Workload

Kind: TypeAlias = Literal["layout", "micro-batches", "lever", "module"]

WIDTH = 8
"""Combinations that are followed from one step to the next."""

DEPTH = 4
"""Moves in a proposal at most."""

TIMED = 8
"""Combinations that fit and are timed: so many of those that promise to be cheapest, and of those with fewest moves."""

ALIKE = 0.005
"""Share of a step's time by which two combinations differ and are called equally dear: no forecast is so exact."""

MAX_LAYOUTS = 18

LITTLE = 0.05
"""Share of what is too much that a move must save to be proposed where the others are enough without it."""


@dataclass(frozen=True, slots=True)
class Move:
    """One change: of the workload, or a lever more. `family` parts moves of which only one makes sense."""

    family: str
    label: str
    kind: Kind
    change: Mapping[str, object] = field(default_factory=dict)
    lever: LeverRequest | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A move of a proposal with the peak and the time of the step after it."""

    move: Move
    peak: Bytes
    time: Seconds


@dataclass(frozen=True, slots=True)
class Proposal:
    """Moves in order that end below the capacity. `exact` says that every number is computed in the same format."""

    workload: Workload
    levers: tuple[LeverRequest, ...]
    steps: tuple[Step, ...]
    exact: bool

    @property
    def peak(self) -> Bytes:
        return self.steps[-1].peak

    @property
    def time(self) -> Seconds:
        return self.steps[-1].time


@dataclass(frozen=True, slots=True)
class Tried:
    """A move by itself: its peak where it can be made, or the reason why it was left out."""

    label: str
    peak: Bytes | None
    time: Seconds | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the search found, cheapest first. `closest` is the lowest peak it met where nothing fits."""

    start_peak: Bytes
    start_time: Seconds
    capacity: Bytes
    proposals: tuple[Proposal, ...]
    tried: tuple[Tried, ...]
    closest: tuple[tuple[Move, ...], Bytes] | None
    looked_at: int

    @property
    def fits_already(self) -> bool:
        return self.start_peak <= self.capacity


@dataclass(frozen=True, slots=True)
class _Node:
    workload: Workload
    levers: tuple[LeverRequest, ...]
    moves: tuple[Move, ...]
    peak: Bytes
    cost: float
    exact: bool


class _Question:
    """The step that is asked about, with the two figures of a combination: its peak and its time."""

    def __init__(
        self,
        registry: Mapping[str, Lever],
        model: ModelSpec,
        device: str | None,
        ranks_per_node: int,
        peak_of: Callable[[Scenario], Bytes],
        time_of: Callable[[Scenario], Seconds],
    ) -> None:
        self.registry, self.model, self.device, self.ranks_per_node = registry, model, device, ranks_per_node
        self._peak_of, self._time_of = peak_of, time_of
        self.looked_at = 0

    def scenario(self, workload: Workload, levers: Sequence[LeverRequest]) -> Scenario:
        path = lever_path(
            self.registry, self.model, workload, levers, device=self.device, ranks_per_node=self.ranks_per_node
        )
        return path.scenarios[-1]

    def peak(self, scenario: Scenario) -> Bytes:
        self.looked_at += 1
        return self._peak_of(scenario)

    def time(self, node: _Node) -> Seconds | None:
        """Time of a step, None where the rows of this combination cannot be built."""
        try:
            return self._time_of(self.scenario(node.workload, node.levers))
        except DomainError:
            return None


def make_it_fit(
    registry: Mapping[str, Lever],
    model: ModelSpec,
    workload: Workload,
    levers: Sequence[LeverRequest],
    capacity: Bytes,
    *,
    device: str | None,
    ranks_per_node: int,
    peak_of: Callable[[Scenario], Bytes],
    time_of: Callable[[Scenario], Seconds],
) -> Fit:
    """Cheapest ordered moves that bring the peak of one device to `capacity` or below.

    `peak_of` and `time_of` answer for a scenario; times are those of a step of the same tokens. Raises what the
    question itself raises.
    """
    question = _Question(registry, model, device, ranks_per_node, peak_of, time_of)
    start_scenario = question.scenario(workload, levers)
    start = _Node(workload, tuple(levers), (), question.peak(start_scenario), 0.0, True)
    start_time = time_of(start_scenario)
    if start.peak <= capacity:
        return Fit(start.peak, start_time, capacity, (), (), None, question.looked_at)
    singles, refused = _singles(question, start, start_scenario, ranks_per_node)
    times = [question.time(node) for node in singles]
    # one that cannot be timed is taken as dear
    costs = [1.0 if time is None else time / start_time - 1.0 for time in times]
    tried = [Tried(node.moves[0].label, node.peak, time) for node, time in zip(singles, times, strict=True)]
    found: list[_Node] = []
    lowest = start
    beam = [start]
    seen: set[frozenset[str]] = set()
    for depth in range(DEPTH):
        reached: list[_Node] = []
        for node in beam:
            for index, single in enumerate(singles):
                move = single.moves[0]
                key = frozenset((move.label, *(other.label for other in node.moves)))
                if key in seen or any(move.family == other.family for other in node.moves):
                    continue
                seen.add(key)
                made = single if depth == 0 else _made(question, node, move)
                if made is None or (made.peak >= node.peak and move.family != "layout"):
                    continue
                made = replace(made, cost=node.cost + costs[index])
                (found if made.peak <= capacity else reached).append(made)
        lowest = min([lowest, *reached, *found], key=lambda node: node.peak)
        # what costs more already than enough others that fit is not followed
        limit = sorted(node.cost for node in found if node.exact)[:TIMED][-1:] or [float("inf")]
        beam = _kept([node for node in reached if node.cost <= limit[0]], capacity)
        if not beam:
            break
    proposals = _proposals(question, start, start_time, found, capacity)
    closest = None if proposals else (lowest.moves, lowest.peak)
    return Fit(start.peak, start_time, capacity, proposals, (*tried, *refused), closest, question.looked_at)


def _kept(nodes: list[_Node], capacity: Bytes) -> list[_Node]:
    """The combinations that are followed: those nearest to the capacity, and those that cost least for what is left."""
    near = sorted(nodes, key=lambda node: node.peak)[: WIDTH // 2]
    cheap = sorted(nodes, key=lambda node: (max(node.cost, 0.0) + 0.02) * (node.peak - capacity))
    return near + [node for node in cheap if node not in near][: WIDTH - len(near)]


# ---- moves ----------------------------------------------------------------------------------------------------------


def _singles(
    question: _Question, start: _Node, scenario: Scenario, ranks_per_node: int
) -> tuple[list[_Node], tuple[Tried, ...]]:
    """Every move by itself that lowers the peak, and what became of the others."""
    nodes: list[_Node] = []
    tried: list[Tried] = []
    layouts: list[_Node] = []
    for move in _layouts(question.model, start.workload, ranks_per_node):
        made = _made(question, start, move)
        if made is not None:
            layouts.append(made)
    # the best layouts by memory, and the nearest ones to what was asked
    best = sorted(layouts, key=lambda node: node.peak)[:4]
    nearest = [node for node in layouts if node not in best][:6]
    nodes += [node for node in layouts if node in best or node in nearest]
    for move in (
        *_micro_batches(start.workload),
        *_sharding(question, start.workload),
        *_modules(question.model, start.workload),
    ):
        made = _made(question, start, move)
        if made is not None:
            nodes.append(made)
    for lever in question.registry.values():
        if lever.memory_lever is None:
            continue
        for move, made, reason in _lever_moves(question, start, scenario, lever):
            if made is not None:
                nodes.append(made)
            elif reason:
                tried.append(Tried(move.label, None, reason=reason))
    # a layout that holds more by itself may hold less once its state is sharded
    return [node for node in nodes if node.peak < start.peak or node.moves[0].kind == "layout"], tuple(tried)


def _lever_moves(
    question: _Question, start: _Node, scenario: Scenario, lever: Lever
) -> Iterator[tuple[Move, _Node | None, str]]:
    """A lever with its default numbers (a sharding lever with each stage), made or with the reason why not."""
    stages = [param for param in lever.params if param.name == "stage"]
    variants: list[Mapping[str, float]] = [{}]
    if stages:
        variants = [{"stage": float(value)} for value in range(int(stages[0].least), int(stages[0].most) + 1)]
    for params in variants:
        words = ", ".join(f"{name} {value:g}" for name, value in params.items())
        label = f"{lever.title}, {words}" if words else lever.title
        move = Move(lever.id, label, "lever", lever=LeverRequest(lever.id, params))
        chosen = next((request for request in start.levers if request.id == lever.id), None)
        if chosen is not None:
            if params and params["stage"] > chosen.params.get("stage", stages[0].default):
                move = replace(move, label=f"{label} instead of {chosen.params.get('stage', stages[0].default):g}")
                made = _made(question, start, move)
                if made is not None:
                    yield move, made, ""
            elif not params:
                yield move, None, "chosen already"
            continue
        if lever.change is None:
            yield move, None, "the bound has it already"
            return
        reason = lever.objection(scenario)
        if reason is not None:
            yield move, None, reason
            return
        try:
            after = question.scenario(start.workload, (*start.levers, LeverRequest(lever.id, params)))
        except DomainError as error:
            yield move, None, error.reason if isinstance(error, InvalidInput) else str(error)
            continue
        reason = _another_question(scenario, after)
        if reason:
            yield move, None, reason
            return
        made = _made(question, start, move)
        if made is None:
            continue
        if made.peak >= start.peak:
            yield move, None, "saves no memory here"
            return
        yield move, made, ""


def _another_question(before: Scenario, after: Scenario) -> str:
    """Why a lever answers another question than the one that is asked, or nothing."""
    a, b = before.workload, after.workload
    if before.model != after.model:
        return "it makes another model"
    if a.parallel.devices != b.parallel.devices:
        return "it takes another number of devices"
    if (a.batch, a.seq_len, a.context_len) != (b.batch, b.seq_len, b.context_len):
        return "it changes the tokens of a step"
    if any(edit.table is not None and edit not in before.edits for edit in after.edits):
        return "it changes the tokens of a step"
    return ""


def _made(question: _Question, node: _Node, move: Move) -> _Node | None:
    """A combination with one move more, or None where that makes no sense."""
    workload, levers = node.workload, node.levers
    try:
        if move.lever is not None:
            levers = _with_lever(levers, move.lever)
        else:
            workload = _changed(workload, move)
            if _sequences(workload) != _sequences(node.workload):
                return None
            if move.kind == "micro-batches":  # how many there are depends on the moves before it
                move = replace(move, label=_micro_batch_words(workload))
        scenario = question.scenario(workload, levers)
        peak = question.peak(scenario)
    except DomainError:
        return None
    exact = node.exact and not _narrows(question, move)
    return _Node(workload, levers, (*node.moves, move), peak, node.cost, exact)


def _with_lever(levers: tuple[LeverRequest, ...], lever: LeverRequest) -> tuple[LeverRequest, ...]:
    """The levers with one more, or with other numbers in its place."""
    if any(request.id == lever.id for request in levers):
        return tuple(lever if request.id == lever.id else request for request in levers)
    return (*levers, lever)


def _changed(workload: Workload, move: Move) -> Workload:
    p = workload.parallel
    parts = move.change.get("parts")
    again, to_host = move.change.get("recompute"), move.change.get("offload")
    if again is not None:
        return replace(workload, recompute_modules=(*workload.recompute_modules, again))  # type: ignore[arg-type]
    if to_host == "parameters":
        return replace(workload, offload=replace(workload.offload, parameters=True))
    if to_host is not None:
        held = (*workload.offload.activations, to_host)
        return replace(workload, offload=replace(workload.offload, activations=held))  # type: ignore[arg-type]
    if isinstance(parts, int):
        batch = workload.batch // parts if workload.batch % parts == 0 else workload.batch
        return replace(workload, batch=batch, parallel=replace(p, micro_batches=p.micro_batches * parts))
    degrees = {name: value for name, value in move.change.items() if name != "batch"}
    batch = move.change.get("batch", workload.batch)  # type: ignore[assignment]
    return replace(workload, batch=batch, parallel=replace(p, **degrees))  # type: ignore[arg-type]


def _sequences(workload: Workload) -> int:
    """Sequences that all replicas together run in one step."""
    return workload.batch * workload.parallel.micro_batches * workload.parallel.dp


def _narrows(question: _Question, move: Move) -> bool:
    return move.lever is not None and question.registry[move.lever.id].memory_lever == "compress"


def _powers(most: int) -> list[int]:
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def _layouts(model: ModelSpec, workload: Workload, ranks_per_node: int) -> list[Move]:
    """Other layouts of the same devices and the same sequences of a step, nearest to the asked one first."""
    p = workload.parallel
    devices, sequences = p.devices, workload.batch * p.micro_batches * p.dp
    heads = heads_of(model)
    found: list[tuple[float, Move]] = []
    sizes = [n for n in sorted({*_powers(devices), p.tp, p.pp, p.cp}) if devices % n == 0]
    for tp in sizes:
        if tp > max(ranks_per_node, p.tp) or heads % tp:
            continue
        for pp in sizes:
            if devices % (tp * pp) or pp > max(model.num_layers, 1):
                continue
            for cp in sizes:
                if devices % (tp * pp * cp) or (cp != p.cp and (workload.phase == "decode" or workload.seq_len % cp)):
                    continue
                dp = devices // (tp * pp * cp)
                divided = _divided(workload, sequences, dp, pp)
                if (tp, pp, cp) == (p.tp, p.pp, p.cp) or divided is None:
                    continue
                batch, micro = divided
                ep = p.ep if (tp * cp * dp) % (p.ep * p.etp) == 0 else 1
                change = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "micro_batches": micro}
                if batch != workload.batch:
                    change["batch"] = batch
                if workload.phase == "train" and tp > 1:
                    change["sequence_parallel"] = True
                if pp == 1:
                    change["virtual_stages"] = 1
                if workload.phase == "train" and dp * cp == 1:
                    change["zero_stage"] = 0
                far = sum(abs(_log2(a / b)) for a, b in ((tp, p.tp), (pp, p.pp), (cp, p.cp)))
                degrees = {"TP": tp, "PP": pp, "CP": cp, "DP": dp}
                words = " × ".join(f"{name} {size}" for name, size in degrees.items() if size > 1) or "one device"
                if ep > 1 or p.ep > 1:
                    words += f", EP {ep}"
                if micro != p.micro_batches:
                    words += f", {micro} micro-batches"
                if batch != workload.batch:
                    words += f" of {batch}"
                found.append((far, Move("layout", f"Layout {words}", "layout", change)))
    found.sort(key=lambda item: (item[0], item[1].label))
    return [move for _, move in found[:MAX_LAYOUTS]]


def _divided(workload: Workload, sequences: int, dp: int, pp: int) -> tuple[int, int] | None:
    """Batch and micro-batches of a replica that keep the sequences of a step; None where they do not divide."""
    if workload.phase != "train":
        micro = pp if sequences % (dp * pp) == 0 else 1
        return (sequences // (dp * micro), micro) if sequences % (dp * micro) == 0 else None
    if sequences % (workload.batch * dp) == 0:
        return workload.batch, sequences // (workload.batch * dp)
    return (sequences // dp, 1) if sequences % dp == 0 else None


def _log2(ratio: float) -> float:
    n = 0.0
    while ratio >= 2:
        ratio, n = ratio / 2, n + 1
    while ratio <= 0.5:
        ratio, n = ratio * 2, n - 1
    return n


def _micro_batches(workload: Workload) -> Iterator[Move]:
    """A training batch in more and smaller micro-batches."""
    if workload.phase != "train":
        return
    for parts in (2, 4, 8):
        if workload.batch % parts == 0:
            move = Move("micro-batches", "", "micro-batches", {"parts": parts})
            yield replace(move, label=_micro_batch_words(_changed(workload, move)))


def _micro_batch_words(workload: Workload) -> str:
    return f"{workload.parallel.micro_batches:,} micro-batches of {workload.batch:,}"


def _modules(model: ModelSpec, workload: Workload) -> Iterator[Move]:
    """Modules that run again or whose activations move to the host, one at a time; whole layers are levers."""
    if not workload.offload.parameters:
        yield Move("offload parameters", "Parameters on the host", "module", {"offload": "parameters"})
    if workload.phase != "train" or "layer" in workload.recomputed:
        return
    again, held = modules_of(model)
    for name in again:
        if name not in ("attention_core", "layer") and name not in workload.recomputed:
            words = f"{RECOMPUTE_LABELS[name]} recomputed"
            yield Move(f"recompute {name}", words, "module", {"recompute": name})
    for module in held:
        if module != "layer" and not {module, "layer"} & set(workload.offload.activations):
            words = f"{OFFLOAD_LABELS[module]} activations on the host"
            yield Move(f"offload {module}", words, "module", {"offload": module})


def _sharding(question: _Question, workload: Workload) -> Iterator[Move]:
    """What the layout divides without other degrees, where no lever does it."""
    p = workload.parallel
    if workload.phase != "train":
        return
    if p.tp > 1 and not p.sequence_parallel and "tp-sp" not in question.registry:
        yield Move("tp-sp", "Sequence parallelism beside tensor parallelism", "layout", {"sequence_parallel": True})
    if p.zero_stage and p.dp * p.cp > 1:
        for stage in range(p.zero_stage + 1, 4):
            yield Move("zero-fsdp", f"ZeRO stage {stage}", "layout", {"zero_stage": stage})


# ---- what a combination costs ---------------------------------------------------------------------------------------


def _proposals(
    question: _Question, start: _Node, start_time: Seconds, found: Sequence[_Node], capacity: Bytes
) -> tuple[Proposal, ...]:
    """The cheapest combination that keeps every format, the cheapest one of another kind, and one with other formats.

    Of those the one that narrows least is taken, since a smaller format is nearly always faster too; where that one is
    dearer than the step was, one that is not, and narrows least of those, is proposed behind it.
    """
    # a move more than is enough is no other way
    sets = [frozenset(move.label for move in node.moves) for node in found]
    minimal = [node for node, own in zip(found, sets, strict=True) if not any(other < own for other in sets)]
    likely = sorted(minimal, key=lambda node: (node.cost, len(node.moves), node.peak))
    exact = _timed(question, [node for node in likely if node.exact])
    narrowed = [node for node in likely if not node.exact][: 4 * TIMED]
    least = min((_narrowness(question, node) for node in narrowed), default=(0.0, 0))
    narrow = _timed(question, [node for node in narrowed if _narrowness(question, node) == least])
    chosen: list[_Node] = []
    if exact:
        best = exact[0][1]
        chosen.append(best)
        families = {move.family for move in best.moves}
        other = next((n for _, n in exact[1:] if not families & {move.family for move in n.moves}), None)
        other = other or next((n for _, n in exact[1:] if {move.family for move in n.moves} != families), None)
        chosen += [other] if other else []
    if narrow and (not exact or narrow[0][0] < exact[0][0]):
        chosen.append(narrow[0][1])
        if narrow[0][0] > start_time * (1.0 + ALIKE):
            further = _timed(question, [node for node in narrowed if _narrowness(question, node) != least])
            cheaper = [item for item in further if item[0] <= start_time * (1.0 + ALIKE)]
            cheaper.sort(key=lambda item: (_narrowness(question, item[1]), item[0]))
            chosen += [node for _, node in cheaper[:1]]
    made = (_proposal(question, start, node, capacity) for node in chosen)
    kept: list[Proposal] = []
    for proposal in made:
        if proposal is not None and all(proposal.steps[-1] != other.steps[-1] for other in kept):
            kept.append(proposal)
    return tuple(kept)


def _narrowness(question: _Question, node: _Node) -> tuple[float, int]:
    """How far a combination narrows formats: fewer bits first, then more of them narrowed."""
    bits = []
    for move in node.moves:
        if not _narrows(question, move) or move.lever is None:
            continue
        stated = [param.default for param in question.registry[move.lever.id].params if param.name == "bits"]
        dtypes = question.scenario(node.workload, node.levers).workload.dtypes
        stored = min(dtypes.bytes_of(what) * 8 for what in ("weights", "activations", "kv"))
        bits.append(stated[0] if stated else stored)
    return (-min(bits, default=16.0), len(bits))


def _timed(question: _Question, nodes: list[_Node]) -> list[tuple[Seconds, _Node]]:
    """Combinations with their times, the cheapest first; of those that cost the same the one with the fewest moves.

    What moves cost by themselves is only a hint at what they cost together (state on the host costs little once it is
    sharded), so a few short combinations are timed whatever they promise.
    """
    short = sorted(nodes, key=lambda node: (len(node.moves), node.cost))[:TIMED]
    tried = nodes[:TIMED] + [node for node in short if node not in nodes[:TIMED]]
    timed = [(time, node) for node in tried if (time := question.time(node)) is not None]
    timed.sort(key=lambda item: (item[0], len(item[1].moves)))
    alike = [item for item in timed if item[0] <= timed[0][0] * (1.0 + ALIKE)]
    first = min(alike, key=lambda item: (len(item[1].moves), item[0]), default=None)
    return timed if first is None else [first, *(item for item in timed if item is not first)]


def _proposal(question: _Question, start: _Node, node: _Node, capacity: Bytes) -> Proposal | None:
    """The combination without moves that it does not need, one move after the other."""
    moves = node.moves
    for move in node.moves:
        rest = tuple(other for other in moves if other is not move)
        shorter = _walk(question, start, rest)
        if rest and shorter and shorter[-1].peak <= capacity:
            old, new = question.time(_walk(question, start, moves)[-1]), question.time(shorter[-1])
            little = shorter[-1].peak - _walk(question, start, moves)[-1].peak < LITTLE * (start.peak - capacity)
            if new is not None and (old is None or new <= old or little):
                moves = rest
    walked = _walk(question, start, moves)
    steps = []
    for made in walked:
        time = question.time(made)
        if time is None:
            return None
        steps.append(Step(made.moves[-1], made.peak, time))
    last = walked[-1]
    return Proposal(last.workload, last.levers, tuple(steps), last.exact)


def _walk(question: _Question, start: _Node, moves: Sequence[Move]) -> list[_Node]:
    walked: list[_Node] = []
    node = start
    for move in moves:
        made = _made(question, node, move)
        if made is None:
            return []
        walked.append(made)
        node = made
    return walked
