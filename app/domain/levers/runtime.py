"""Levers of the runtime: launches, recomputation, sharding of state."""

from __future__ import annotations

from app.domain.levers.base import Lever, Param, Params, Scenario
from app.domain.levers.conditions import Objection, first_of, needs_more_than_one, only_in


def _launches_one_by_one(scenario: Scenario) -> str | None:
    return None if scenario.workload.launch_mode == "eager" else "the launch mode is graph already"


def _recomputes_less_than(level: str) -> Objection:
    order = ("none", "selective", "full")

    def check(scenario: Scenario) -> str | None:
        now = scenario.workload.recompute
        return None if order.index(now) < order.index(level) else f"recompute is {now} already"

    return check


def _shard(scenario: Scenario, params: Params) -> Scenario:
    return scenario.with_parallel(zero_stage=int(params["stage"]))


def _keeps_all_state(scenario: Scenario) -> str | None:
    stage = scenario.workload.parallel.zero_stage
    return None if stage == 0 else f"ZeRO stage {stage} is on already"


RUNTIME_LEVERS: tuple[Lever, ...] = (
    Lever(
        "cuda-graph",
        "Graph replay",
        "runtime",
        "Launches cost nothing on the host: the launch mode becomes graph.",
        _launches_one_by_one,
        change=lambda s, _: s.with_workload(launch_mode="graph"),
        memory_lever="allocator",
    ),
    Lever(
        "selective-recompute",
        "Selective recomputation of attention",
        "runtime",
        "The attention core runs again in the backward pass (F-3.4).",
        first_of(only_in("train"), _recomputes_less_than("selective")),
        change=lambda s, _: s.with_workload(recompute="selective"),
        memory_lever="recompute",
        excludes=("full-recompute",),
    ),
    Lever(
        "full-recompute",
        "Full recomputation of layers",
        "runtime",
        "Every layer's forward pass runs again in the backward pass; only layer inputs are kept (F-3.4, F-6.5).",
        first_of(only_in("train"), _recomputes_less_than("full")),
        change=lambda s, _: s.with_workload(recompute="full"),
        memory_lever="recompute",
        excludes=("selective-recompute",),
    ),
    Lever(
        "zero-fsdp",
        "ZeRO or FSDP sharding of state",
        "communication",
        "Optimizer state, gradients and parameters are kept by one replica each, by stage (F-6.2, F-6.3).",
        first_of(only_in("train"), needs_more_than_one("dp", "replicas"), _keeps_all_state),
        change=_shard,
        memory_lever="shard",
        params=(Param("stage", 3, 1, 3, "ZeRO stage", whole=True),),
    ),
)
"""Runtime levers, in the order of the technique library."""
