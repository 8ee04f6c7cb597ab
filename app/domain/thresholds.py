"""What would have to be true: the batch, context or layout at which another resource takes over.

Each answer is read off a sweep through the same cost table and the same roofs as the estimate itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.domain.layout import heads_of
from app.domain.lower_bound import Bound, Ceilings, lower_bound
from app.domain.model import ModelSpec
from app.domain.step import cost_table
from app.domain.workload import Workload

HIGHEST_BATCH = 2**20
HIGHEST_CONTEXT = 2**24
HIGHEST_TP = 1024

Test = Callable[[Bound], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least value of one axis at which a statement becomes true; None: not up to `highest`.

    `already` says that it is true for the asked step.
    """

    id: str
    statement: str
    axis: str
    value: int | None
    highest: int
    already: bool


STATEMENTS: tuple[str, ...] = ("compute-bound", "kv-over-weights", "network-bound")


def thresholds(
    model: ModelSpec,
    workload: Workload,
    roofs: Ceilings,
    ranks_per_node: int,
    only: Collection[str] = STATEMENTS,
) -> tuple[Threshold, ...]:
    """The statements that make sense for a workload, of those asked for. Raises what `cost_table` raises."""

    def bound_over(axis: str, values: NDArray[np.float64]) -> Bound:
        table = cost_table(model, workload, ranks_per_node=ranks_per_node, grid={axis: values})
        return lower_bound(table, roofs, launch_mode=workload.launch_mode)

    found: list[Threshold] = []
    if "compute-bound" in only:
        found.append(
            _least(
                "compute-bound",
                "compute takes longer than HBM",
                "batch",
                workload.batch,
                HIGHEST_BATCH,
                bound_over,
                lambda bound: np.asarray(bound.terms["compute"] >= bound.terms["hbm"]),
            )
        )
    if "kv-over-weights" in only and workload.phase == "decode" and any(True for _ in model.attention_groups()):
        found.append(
            _least(
                "kv-over-weights",
                "a step reads more bytes of KV cache than of weights",
                "context_len",
                workload.context_len,
                HIGHEST_CONTEXT,
                bound_over,
                lambda bound: np.asarray(bound.table.total("kv_read") >= bound.table.total("weights")),
            )
        )
    degrees = [float(t) for t in range(1, min(heads_of(model), HIGHEST_TP) + 1) if _divides_all(model, t)]
    if "network-bound" in only and len(degrees) > 1 and not workload.parallel.sequence_parallel:
        found.append(
            _least(
                "network-bound",
                "the network takes longer than compute and HBM",
                "tp",
                workload.parallel.tp,
                int(degrees[-1]),
                bound_over,
                lambda bound: np.asarray(bound.terms["net"] >= np.maximum(bound.terms["compute"], bound.terms["hbm"])),
                np.array(degrees),
            )
        )
    return tuple(found)


def _divides_all(model: ModelSpec, degree: int) -> bool:
    return all(attention.heads % degree == 0 for _, attention in model.attention_groups())


def _least(
    id_: str,
    statement: str,
    axis: str,
    now: int,
    highest: int,
    bound_over: Callable[[str, NDArray[np.float64]], Bound],
    test: Test,
    choices: NDArray[np.float64] | None = None,
) -> Threshold:
    """The least value on the axis for which the test holds, to the whole number, by two sweeps."""
    already = bool(np.ravel(test(bound_over(axis, np.array([float(now)]))))[0])
    start = 0.0 if axis == "context_len" else 1.0
    coarse = choices if choices is not None else np.unique(np.floor(np.geomspace(1, highest, 160)))
    if choices is None and start == 0.0:
        coarse = np.concatenate([[0.0], coarse])
    true_at = np.flatnonzero(test(bound_over(axis, coarse)))
    if true_at.size == 0:
        return Threshold(id_, statement, axis, None, highest, already)
    first = int(true_at[0])
    value = int(coarse[first])
    if choices is None and first > 0:
        low, high = int(coarse[first - 1]), value
        while high - low > 1:
            points = np.unique(np.linspace(low, high, 130).astype(np.int64)).astype(np.float64)
            holds = np.flatnonzero(test(bound_over(axis, points)))
            high = int(points[holds[0]])
            low = int(points[holds[0] - 1]) if holds[0] > 0 else low
            if holds[0] == 0:
                break
        value = high
    return Threshold(id_, statement, axis, value, highest, already)
