"""What a lever is, and the ledger of applying some in order.

A scenario is a question (model and workload) with edits of its cost table and of its memory. Levers are of two kinds. A
*change* turns a scenario into another one: narrower weights, more recomputation, another layout. An *ideal* lever is
something that the bound takes for granted, such as fused attention: applying it shows what it is worth, so the baseline
of a ledger that lists it is the same scenario *without* it. A technique may be both: several kernels under one name, of
which the bound has some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from app.domain.blocks.context import StepContext
from app.domain.cost import CostTable, Op, Step, stacked
from app.domain.errors import DomainError, InvalidInput
from app.domain.hardware import DEFAULT_RANKS_PER_NODE
from app.domain.memory import MemoryEdit
from app.domain.model import ModelSpec
from app.domain.step import KnownRows, step_rows
from app.domain.technique import Book, MemoryLever
from app.domain.workload import Workload

Params: TypeAlias = Mapping[str, float]
RowEdit: TypeAlias = Callable[[list[Op], StepContext], list[Op]]
"""Rows of a step to other rows. Backward rows are there already: a row's `base` name is its forward name."""


TableEdit: TypeAlias = Callable[[CostTable], CostTable]
"""What belongs to no row: tokens that a step emits, and the wait for the pipeline."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of rows, memory or the table, under the id of the lever that made it or that it lacks."""

    lever: str
    rows: RowEdit | None = None
    memory: MemoryEdit | None = None
    table: TableEdit | None = None


def graph_launched(workload: Workload) -> Workload:
    """The workload by which rows and memory are known again: how kernels are launched changes neither."""
    return workload if workload.launch_mode == "graph" else replace(workload, launch_mode="graph")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question with its edits, applied in order. `applied` are the levers it has.

    `device` is the generation where it is known (`sm90`, `gfx942`), for levers that need certain hardware;
    `ranks_per_node` are its neighbours, for what a lever keeps in a node.
    """

    model: ModelSpec
    workload: Workload
    edits: tuple[Edit, ...] = ()
    applied: tuple[str, ...] = ()
    device: str | None = None
    ranks_per_node: int = DEFAULT_RANKS_PER_NODE

    def table(self, ranks_per_node: int) -> CostTable:
        """The rows of a step after the edits. Raises what `cost_table` raises."""
        return tables((self,), ranks_per_node, KnownRows())[0]

    def step(self, ranks_per_node: int, known: KnownRows) -> Step:
        """The rows of a step after the edits, before they are stacked. `known` gains those before the edits."""
        key = (id(self.model), graph_launched(self.workload))
        rows = known.steps.get(key)
        if rows is None:
            rows = known.steps[key] = step_rows(self.model, self.workload, ranks_per_node, known=known)
        return rows.edited([edit.rows for edit in self.edits if edit.rows is not None])

    def edited_memory(self, objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        """Resident bytes after the edits. `workload` is this scenario's own, or the same with another batch."""
        for edit in self.edits:
            if edit.memory is not None:
                objects = edit.memory(objects, workload)
        return objects

    def with_edit(self, edit: Edit) -> Scenario:
        return replace(self, edits=(*self.edits, edit))

    def without(self, lever: str) -> Scenario:
        return replace(self, edits=tuple(edit for edit in self.edits if edit.lever != lever))

    def with_workload(self, **changes: object) -> Scenario:
        return replace(self, workload=replace(self.workload, **changes))  # type: ignore[arg-type]

    def with_dtypes(self, **changes: object) -> Scenario:
        return self.with_workload(dtypes=replace(self.workload.dtypes, **changes))  # type: ignore[arg-type]

    def with_parallel(self, **changes: object) -> Scenario:
        return self.with_workload(parallel=replace(self.workload.parallel, **changes))  # type: ignore[arg-type]


def tables(scenarios: Sequence[Scenario], ranks_per_node: int, known: KnownRows) -> list[CostTable]:
    """Cost tables of scenarios. Raises what `cost_table` raises.

    `known` keeps rows of one path of levers, where most steps ask about the same model and workload.
    """
    found = stacked([scenario.step(ranks_per_node, known) for scenario in scenarios])
    for place, scenario in enumerate(scenarios):
        for edit in scenario.edits:
            if edit.table is not None:
                found[place] = edit.table(found[place])
    return found


@dataclass(frozen=True, slots=True)
class Param:
    """A number that a lever takes. `meaning` has its unit."""

    name: str
    default: float
    least: float
    most: float
    meaning: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Lever:
    """A technique that can be applied to an estimate.

    `objection` says why it makes no sense for a scenario, or None. `change` turns a scenario into the next one, `lack`
    is the edit that an implementation without it shows; a lever has one of them or both. A `lack` only ever adds: the
    bound stays one. `model` says how it is modelled. `members` are the levers that this one is made of.
    """

    id: str
    title: str
    book_as: Book
    model: str
    objection: Callable[[Scenario], str | None]
    change: Callable[[Scenario, Params], Scenario] | None = None
    lack: Callable[[Scenario, Params], Edit] | None = None
    memory_lever: MemoryLever | None = None
    params: tuple[Param, ...] = ()
    excludes: tuple[str, ...] = ()
    members: tuple[str, ...] = ()

    @property
    def ideal(self) -> bool:
        """Whether the bound has it already, so that applying it ends at the plain bound."""
        return self.lack is not None and self.change is None


@dataclass(frozen=True, slots=True)
class Asked:
    """A lever with its numbers, at its place in the request."""

    lever: Lever
    params: Params
    place: int


@dataclass(frozen=True, slots=True)
class LeverPath:
    """Scenarios from the baseline to the last lever: the first has none of them, number i + 1 has `asked[i]` too."""

    asked: tuple[Asked, ...]
    scenarios: tuple[Scenario, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeverRequest:
    """A lever as named by a caller."""

    id: str
    params: Params = field(default_factory=dict)


def lever_path(
    registry: Mapping[str, Lever],
    model: ModelSpec,
    workload: Workload,
    requests: Sequence[LeverRequest],
    *,
    device: str | None = None,
    ranks_per_node: int = DEFAULT_RANKS_PER_NODE,
) -> LeverPath:
    """Check the requests and build the scenarios. Raises InvalidInput at `levers`, with the reason.

    The asked workload is where the path starts from, with every *ideal* lever of the list taken away; after the last
    lever it has them again, so a path of ideal levers only ends at the bound without any. A lever is held against the
    scenario at its place: conversions can be fused once something is converted.
    """
    asked = tuple(_asked(registry, request, place) for place, request in enumerate(requests))
    _refuse_clashes(asked)
    start = plain = Scenario(model, workload, device=device, ranks_per_node=ranks_per_node)
    for item in asked:
        if item.lever.lack is not None:
            start = start.with_edit(item.lever.lack(plain, item.params))
    scenarios = [start]
    for item in asked:
        before = now = scenarios[-1]
        _check(item, now)
        if item.lever.lack is not None:
            now = now.without(item.lever.id)
        if item.lever.change is not None:
            try:
                now = item.lever.change(now, item.params)
            except InvalidInput as error:
                raise refused(item, error) from error
        if item.lever.lack is not None and len(now.edits) == len(before.edits):
            # what stands for a lack acts where the lack did: levers before it have met it already
            place = next(i for i, edit in enumerate(before.edits) if edit.lever == item.lever.id)
            *others, instead = now.edits
            now = replace(now, edits=(*others[:place], instead, *others[place:]))
        scenarios.append(replace(now, applied=(*now.applied, item.lever.id)))
    return LeverPath(asked, tuple(scenarios))


def refused(item: Asked, error: DomainError) -> InvalidInput:
    """An error that a lever brought about, at the lever's place."""
    reason = error.reason if isinstance(error, InvalidInput) else str(error)
    return InvalidInput(("levers", item.place), f"{item.lever.id}: {reason}")


def _asked(registry: Mapping[str, Lever], request: LeverRequest, place: int) -> Asked:
    lever = registry.get(request.id)
    if lever is None:
        raise InvalidInput(
            ("levers", place), f"no lever is called {request.id[:80]!r}: GET /api/v1/techniques lists those there are"
        )
    known = {param.name: param for param in lever.params}
    values = {param.name: param.default for param in lever.params}
    for name, value in request.params.items():
        param = known.get(name)
        if param is None:
            names = ", ".join(known) or "no parameters"
            raise InvalidInput(("levers", place, "params", name), f"{lever.id} takes {names}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not param.least <= value <= param.most:
            raise InvalidInput(
                ("levers", place, "params", name), f"must be a number from {param.least:g} to {param.most:g}"
            )
        if param.whole and value != int(value):
            raise InvalidInput(("levers", place, "params", name), "must be a whole number")
        values[name] = value
    return Asked(lever, values, place)


def _refuse_clashes(asked: Sequence[Asked]) -> None:
    seen: dict[str, int] = {}
    for item in asked:
        if item.lever.id in seen:
            raise InvalidInput(("levers", item.place), f"{item.lever.id} is listed twice")
        for other in seen:
            clash = other in item.lever.excludes or item.lever.id in asked[seen[other]].lever.excludes
            if clash:
                raise InvalidInput(
                    ("levers", item.place), f"{item.lever.id} and {other} act on the same thing: keep one of them"
                )
        seen[item.lever.id] = item.place


def _check(item: Asked, scenario: Scenario) -> None:
    reason = item.lever.objection(scenario)
    if reason is not None:
        raise InvalidInput(("levers", item.place), f"{item.lever.id}: {reason}")
