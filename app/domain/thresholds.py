"""What would have to be true: the batch, context or layout at which another resource takes over.

Each answer is read off a sweep through the same cost table and the same roofs as the estimate itself. A statement may
stop holding again further on (a cache that fills, a chunk that is new), so each answer says how far it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidInput, MissingFigure
from app.domain.layout import heads_of
from app.domain.lower_bound import Bound, Ceilings, lower_bound
from app.domain.model import Attention, ModelSpec
from app.domain.step import cost_table
from app.domain.workload import Workload

HIGHEST_BATCH = 2**20
HIGHEST_CONTEXT = 2**24
HIGHEST_TP = 1024
HEADLESS_TP = 64
"""Highest degree that is tried where no attention heads limit it."""

Test = Callable[[Bound], NDArray[np.bool_]]
Evaluate = Callable[[Workload], Bound]
"""The bound of one changed workload. Raises what `cost_table` raises."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least value of one axis at which a statement becomes true; None: not up to `highest`.

    `until` is the last value of those that follow at which it still holds, None where it holds up to `highest`; `again`
    says that it comes true once more behind that. `already` says that it is true for the asked step. `before` is the
    value next to `value` at which it does not hold, None where there is none.
    """

    id: str
    statement: str
    axis: str
    value: int | None
    highest: int
    already: bool
    until: int | None = None
    again: bool = False
    before: int | None = None


STATEMENTS: tuple[str, ...] = ("compute-bound", "kv-over-weights", "network-bound")

TESTS: dict[str, Callable[[Bound], tuple[NDArray[np.float64], NDArray[np.float64]]]] = {
    "compute-bound": lambda bound: (bound.terms["compute"], bound.terms["hbm"]),
    "kv-over-weights": lambda bound: (bound.table.total("kv_read"), bound.table.total("weights")),
    "network-bound": lambda bound: (bound.terms["net"], np.maximum(bound.terms["compute"], bound.terms["hbm"])),
}
"""The two figures of each statement: it is true where the first is no smaller than the second."""


def thresholds(
    model: ModelSpec,
    workload: Workload,
    roofs: Ceilings,
    ranks_per_node: int,
    only: Collection[str] = STATEMENTS,
    evaluate: Evaluate | None = None,
) -> tuple[Threshold, ...]:
    """The statements that make sense for a workload, of those asked for. Raises what `cost_table` raises.

    With `evaluate` each point is asked on its own, which is for questions that a grid cannot state (levers).
    """

    def plain(changed: Workload) -> Bound:
        table = cost_table(model, changed, ranks_per_node=ranks_per_node)
        return lower_bound(table, roofs, launch_mode=changed.launch_mode)

    one = evaluate or plain

    def sweep(axis: str, values: NDArray[np.float64], test: Test) -> NDArray[np.bool_]:
        if evaluate is None:
            table = cost_table(model, workload, ranks_per_node=ranks_per_node, grid={axis: values})
            found = test(lower_bound(table, roofs, launch_mode=workload.launch_mode))
            return np.broadcast_to(found, values.shape)
        return np.array([_holds(axis, int(value), test) for value in values])

    def _holds(axis: str, value: int, test: Test) -> bool:
        try:
            return bool(np.ravel(test(one(changed(workload, axis, value))))[0])
        except (InvalidInput, MissingFigure):
            return False  # a lever that makes no sense there

    # what a chunk of local attention reads falls back to nothing at its end
    chunks = {a.window for _, a in model.attention_groups() if isinstance(a, Attention) and a.kind == "chunked"}
    ends = () if evaluate else tuple(end for chunk in chunks if chunk for end in range(chunk, HIGHEST_CONTEXT, chunk))
    search = _Search(sweep, *((33, 9) if evaluate else (160, 130)), ends)
    found: list[Threshold] = []

    def least(id_: str, statement: str, axis: str, highest: int) -> None:
        now = workload.batch if axis == "batch" else workload.context_len
        found.append(search.least(id_, statement, axis, now, highest))

    if "compute-bound" in only:
        least("compute-bound", "compute takes longer than HBM", "batch", HIGHEST_BATCH)
    if "kv-over-weights" in only and workload.phase == "decode" and any(True for _ in model.attention_groups()):
        statement = f"a step reads more bytes of {model.cache_name} than of weights"
        least("kv-over-weights", statement, "context_len", HIGHEST_CONTEXT)
    if "network-bound" in only:
        bounds = dict(_by_degree(model, workload, one))
        if len(bounds) > 1:
            holds = {degree: _true("network-bound", bound) for degree, bound in bounds.items()}
            found.append(
                _of_run(
                    "network-bound",
                    "the network takes longer than compute and HBM",
                    "tp",
                    list(holds),
                    list(holds.values()),
                    holds.get(workload.parallel.tp, False),
                )
            )
    return tuple(found)


def changed(workload: Workload, axis: str, value: int) -> Workload:
    """The workload with another value on the axis of a threshold. Tensor parallel 1 has no sequence to divide."""
    if axis == "batch":
        return replace(workload, batch=value)
    if axis == "context_len":
        return replace(workload, context_len=value)
    divided = workload.parallel.sequence_parallel and value > 1
    return replace(workload, parallel=replace(workload.parallel, tp=value, sequence_parallel=divided))


def _true(id_: str, bound: Bound) -> bool:
    first, second = TESTS[id_](bound)
    return bool(np.ravel(first >= second)[0])


def _by_degree(model: ModelSpec, workload: Workload, one: Evaluate) -> Iterator[tuple[int, Bound]]:
    """The step at each tensor-parallel degree that the model, the rest of the layout and the device's links allow."""
    heads = heads_of(model)
    degrees = [2**power for power in range(HEADLESS_TP.bit_length())] if heads == 1 else range(1, heads + 1)
    for degree in degrees:
        if (heads % degree and heads > 1) or degree > HIGHEST_TP:
            continue
        try:
            yield degree, one(changed(workload, "tp", degree))
        except (InvalidInput, MissingFigure):
            continue  # heads of another stack, experts that no longer fit the ranks, no link to another node


def _of_run(id_: str, statement: str, axis: str, values: list[int], holds: list[bool], already: bool) -> Threshold:
    """The first run of values for which a statement holds, of a short list that has every value."""
    if not any(holds):
        return Threshold(id_, statement, axis, None, values[-1], already)
    first = holds.index(True)
    end = holds.index(False, first) if False in holds[first:] else None
    return Threshold(
        id_,
        statement,
        axis,
        values[first],
        values[-1],
        already,
        until=None if end is None else values[end - 1],
        again=end is not None and any(holds[end:]),
        before=values[first - 1] if first else None,
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds to the whole number where a statement holds: `coarse` points over the axis, `fine` ones between two."""

    sweep: Callable[[str, NDArray[np.float64], Test], NDArray[np.bool_]]
    coarse: int
    fine: int
    chunk_ends: tuple[int, ...] = ()

    def least(self, id_: str, statement: str, axis: str, now: int, highest: int) -> Threshold:
        def holds(values: NDArray[np.float64]) -> NDArray[np.bool_]:
            def test(bound: Bound) -> NDArray[np.bool_]:
                first, second = TESTS[id_](bound)
                return np.asarray(first >= second)

            return self.sweep(axis, values, test)

        already = bool(holds(np.array([float(now)]))[0])
        points = np.unique(np.floor(np.geomspace(1, highest, self.coarse)))
        # the asked value is one of the points: what is true there is never missed
        points = np.union1d(points, [float(now)])
        if axis == "context_len":
            points = np.union1d(points, [0.0, *(end - before for end in self.chunk_ends for before in (1.0, 0.0))])
        true = [bool(each) for each in holds(points)]
        run = _of_run(id_, statement, axis, [int(point) for point in points], true, already)
        if run.value is None:
            return replace(run, highest=highest)
        value, before, until = run.value, run.before, run.until
        if before is not None:
            value = self._turn(holds, before, value, True)
            before = value - 1
        if until is not None:
            until = self._turn(holds, until, int(points[np.searchsorted(points, until) + 1]), False) - 1
        return replace(run, value=value, before=before, until=until, highest=highest)

    def _turn(self, holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]], low: int, high: int, to: bool) -> int:
        """The least value above `low` at which the test turns to `to`, as it is at `high` and is not at `low`."""
        while high - low > 1:
            points = np.unique(np.linspace(low, high, self.fine + 1).astype(np.int64))[1:]
            turned = int(np.flatnonzero(holds(points.astype(np.float64)) == to)[0])
            high = int(points[turned])
            low = int(points[turned - 1]) if turned > 0 else low
        return high
