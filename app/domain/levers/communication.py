"""Levers on layouts and their exchanges: overlap, fewer bytes, other algorithms, other schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.collectives import ring_steps
from app.domain.cost import Op, Tier
from app.domain.layout import Group, layout_of
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    first_of,
    needs_devices,
    needs_more_than_one,
    needs_multi_head_attention,
    needs_nvidia,
    needs_words,
    only_in,
)
from app.domain.levers.edits import (
    each,
    exchanged,
    hidden,
    is_data_parallel,
    is_tensor_exchange,
    more_resident,
    net_times,
    of_kind,
    one,
    slower,
)
from app.domain.memory import running_parameters
from app.domain.units import Grid
from app.domain.workload import Workload

TENSOR_OVERLAP = ("tp-chunk-overlap", "flux")
SCHEDULES = ("pp-interleave", "zero-bubble", "dualpipe")
CONTEXT = ("ring-cp", "ulysses")
_HIDDEN = "share of the exchange that runs behind products"
_TENSOR = needs_more_than_one("tp", "tensor parallelism")


def _others(own: str, family: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in family if name != own)


def _behind_products(id_: str) -> Callable[[Scenario, Params], Scenario]:
    return lambda scenario, params: scenario.with_edit(Edit(id_, hidden(is_tensor_exchange, params["hidden"])))


def _layout(**fixed: Any) -> Callable[[Scenario, Params], Scenario]:
    return lambda scenario, _: scenario.with_parallel(**fixed)


def _no_sequence_parallelism(scenario: Scenario) -> str | None:
    on = scenario.workload.parallel.sequence_parallel
    return "sequence parallelism is on already" if on else None


def _keeps_all_state(scenario: Scenario) -> str | None:
    stage = scenario.workload.parallel.zero_stage
    return None if stage == 0 else f"ZeRO stage {stage} is on already"


def _gathers_parameters(scenario: Scenario) -> str | None:
    stage = scenario.workload.parallel.zero_stage
    return None if stage == 3 else f"only ZeRO stage 3 gathers parameters, and this is stage {stage}"


def _quantised_gathers(scenario: Scenario, _: Params) -> Scenario:
    gradients, weights = _gradient_bytes(scenario), _weight_bytes(scenario)
    narrow = min(1.0, 1.0 / weights)

    def rows(op: Op, ctx: StepContext) -> Op:
        if op.base.endswith("gradient reduce-scatter"):
            return exchanged(op, lambda net: net_times(net, min(1.0, 0.5 / gradients)))
        # of two gathers one in 8 bits, the other from the copy in the node: half the messages cross nodes
        rest = exchanged(
            op, lambda net: net_times(net_times(net, narrow / 2, "scale_out"), (1 + narrow) / 2, "scale_up")
        )
        return rest.having(hops=0.5 * op.hops)

    def copy(workload: Workload) -> float:
        # the ranks of a node that hold the same parameters keep the copy between them; one node's need none
        layout = layout_of(scenario.model, workload, scenario.ranks_per_node)
        held = running_parameters(scenario.model, workload, layout)
        copied = 0.0
        for size, group in ((held.dense, layout.data_group), (held.experts, layout.expert_data_group)):
            ranks, local = one(group.size), one(group.local)
            copied += one(size) / local if ranks > local else 0.0
        return copied * workload.dtypes.bytes_of("weights")

    return scenario.with_edit(Edit("zeropp", each(is_data_parallel, rows), more_resident("parameters", copy)))


def _gradient_bytes(scenario: Scenario) -> float:
    dtypes = scenario.workload.dtypes
    return min(dtypes.bytes_of("gradients"), dtypes.bytes_of("communication"))


def _weight_bytes(scenario: Scenario) -> float:
    dtypes = scenario.workload.dtypes
    return min(dtypes.bytes_of("weights"), dtypes.bytes_of("communication"))


def _gradients_are_wide(scenario: Scenario) -> str | None:
    now = _gradient_bytes(scenario)
    return None if now > 2 else f"gradients cross the links in {now:g} bytes already"


def _gradients_in_bf16(scenario: Scenario, _: Params) -> Scenario:
    share = 2.0 / _gradient_bytes(scenario)

    def rows(op: Op, _: StepContext) -> Op:
        return exchanged(op, lambda net: net_times(net, share))

    def gradients(op: Op) -> bool:
        return is_data_parallel(op) and "gradient" in op.base

    return scenario.with_edit(Edit("grad-bf16-a2a", each(gradients, rows)))


def _flat_rings(_: Scenario, __: Params) -> Edit:
    def rows(op: Op, ctx: StepContext) -> Op:
        expert = op.base.startswith("expert ")
        group: Group = ctx.layout.expert_data_group if expert else ctx.layout.data_group
        size, local = one(group.size), one(group.local)
        near = op.net.get("scale_up", 0.0)
        if local <= 1 or size <= local:
            return op
        # a ring through all ranks leaves a node with everything that it passes on: (n-1)/n instead of the local share
        flat = near * local / (local - 1.0) * (size - 1.0) / size
        net: dict[Tier, Grid] = {**op.net, "scale_out": op.net.get("scale_out", 0.0) + flat}
        # each of its messages waits for the one before, and some of them always cross to another node
        kind = "all_reduce" if op.base.endswith("all-reduce") else "all_gather"
        hops = float(ring_steps(kind, round(size)))
        return op.having(net=net, net_in_switch=net, hops=np.maximum(op.hops, hops))

    return Edit("hierarchical-coll", each(is_data_parallel, rows))


def _interleave(scenario: Scenario, params: Params) -> Scenario:
    return scenario.with_parallel(virtual_stages=int(params["chunks"]), schedule="1f1b")


def _is_plain_schedule(scenario: Scenario) -> str | None:
    p = scenario.workload.parallel
    if p.virtual_stages > 1:
        return f"the pipeline is interleaved already ({p.virtual_stages} chunks)"
    other = {"zero_bubble": "zero-bubble", "dualpipe": "DualPipe"}.get(p.schedule)
    return f"the schedule is {other} already" if other else None


def _context(exchange: str) -> Callable[[Scenario, Params], Scenario]:
    def change(scenario: Scenario, params: Params) -> Scenario:
        p = scenario.workload.parallel
        degree = p.cp if p.cp > 1 else int(params["cp"])
        return scenario.with_parallel(cp=degree, context_exchange=exchange)

    return change


def _one_stack(scenario: Scenario) -> str | None:
    model = scenario.model
    if any(True for _ in model.state_groups()):
        return f"{model.name} has layers with a recurrent state, which context parallelism does not divide here"
    beside = model.encoder is not None or (model.tower is not None and scenario.workload.visual_tokens)
    return "context parallelism of a second stack beside the layers cannot be estimated" if beside else None


def _no_context(exchange: str) -> Callable[[Scenario], str | None]:
    def check(scenario: Scenario) -> str | None:
        p = scenario.workload.parallel
        on = p.cp > 1 and p.context_exchange == exchange
        return f"context parallelism of {p.cp} by {exchange.replace('_', '-')} is on already" if on else None

    return check


def _processors_taken(_: Scenario, params: Params) -> Edit:
    share = min(params["taken"] / params["units"], 0.95)
    return Edit("cap-comm-sms", slower(of_kind("gemm", "attention"), 1.0 / (1.0 - share)))


COMMUNICATION_LEVERS: tuple[Lever, ...] = (
    Lever(
        "tp-sp",
        "Sequence parallelism beside tensor parallelism",
        "communication",
        "Norms and the residual stream are divided over the tensor group; links carry what a ring carries, so that a"
        " reducing switch no longer helps, and weight gradients gather their inputs again (F-6.5, F-7.1).",
        first_of(only_in("train", "prefill"), needs_words, _TENSOR, _no_sequence_parallelism),
        change=_layout(sequence_parallel=True),
        memory_lever="shard",
        excludes=("sp-ep-geometry",),
    ),
    Lever(
        "tp-chunk-overlap",
        "Exchange in chunks behind products",
        "communication",
        "A share of the tensor group's exchange runs behind chunks of the products (F-1.5, L2; expected time only).",
        first_of(only_in("train", "prefill"), _TENSOR),
        change=_behind_products("tp-chunk-overlap"),
        params=(Param("hidden", 0.7, 0, 0.98, _HIDDEN),),
        excludes=_others("tp-chunk-overlap", TENSOR_OVERLAP),
    ),
    Lever(
        "flux",
        "Exchange and product in one kernel",
        "communication",
        "A share of the tensor group's exchange runs behind tiles of the products (F-1.5, L3; expected time only).",
        first_of(_TENSOR, needs_nvidia(80, 90)),
        change=_behind_products("flux"),
        params=(Param("hidden", 0.9, 0, 0.98, _HIDDEN),),
        excludes=_others("flux", TENSOR_OVERLAP),
    ),
    Lever(
        "one-shot-ar",
        "All-reduce in one step",
        "communication",
        "Without it a small all-reduce takes the steps of a ring: so many times as long (F-10.2, expected time only).",
        first_of(only_in("decode"), _TENSOR, needs_nvidia(90)),
        lack=lambda _, p: Edit("one-shot-ar", slower(is_tensor_exchange, p["slower"])),
        params=(Param("slower", 4, 1, 50, "time of a small all-reduce without it over with it"),),
    ),
    Lever(
        "zero-fsdp",
        "ZeRO or FSDP sharding of state",
        "communication",
        "Optimizer state, gradients and parameters are kept by one replica each, by stage (F-6.2). It saves memory:"
        " stage 1 sends what stage 0 does, from stage 2 on gradients are reduced for every micro-batch, and stage 3"
        " gathers parameters for both passes of each (F-6.3).",
        first_of(only_in("train"), needs_more_than_one("dp", "replicas"), _keeps_all_state),
        change=lambda s, p: s.with_parallel(zero_stage=int(p["stage"])),
        memory_lever="shard",
        params=(Param("stage", 3, 1, 3, "ZeRO stage", whole=True),),
    ),
    Lever(
        "zeropp",
        "Quantised gathers and a copy in the node",
        "communication",
        "One gather of two in 8 bits, the other from a copy in the node (more memory); gradients in 4 bits (F-6.3).",
        first_of(only_in("train"), needs_more_than_one("dp", "replicas"), _gathers_parameters),
        change=_quantised_gathers,
        memory_lever="compress",
    ),
    Lever(
        "grad-bf16-a2a",
        "Gradients exchanged in bf16",
        "communication",
        "Gradients cross the links in two bytes and are added up in fp32 where they arrive (F-6.3).",
        first_of(only_in("train"), needs_more_than_one("dp", "replicas"), _gradients_are_wide),
        change=_gradients_in_bf16,
        memory_lever="compress",
    ),
    Lever(
        "hierarchical-coll",
        "Collectives in two levels",
        "communication",
        "Without it data-parallel exchanges are one ring through all ranks, limited by a node's outer link (F-10.3).",
        first_of(only_in("train"), needs_more_than_one("dp", "replicas")),
        lack=_flat_rings,
    ),
    Lever(
        "pp-interleave",
        "Interleaved pipeline",
        "runtime",
        "Each stage holds so many chunks of layers: the bubble is divided, hand-overs multiply, which a small model or"
        " a slow link pays for (F-8).",
        first_of(only_in("train"), needs_more_than_one("pp", "pipeline parallelism"), _is_plain_schedule),
        change=_interleave,
        params=(Param("chunks", 2, 2, 64, "chunks of layers of a stage", whole=True),),
        excludes=_others("pp-interleave", SCHEDULES),
    ),
    Lever(
        "zero-bubble",
        "Pipeline filled with weight gradients",
        "runtime",
        "The schedule becomes zero-bubble: a third of the wait of 1F1B (F-8).",
        first_of(only_in("train"), needs_more_than_one("pp", "pipeline parallelism"), _is_plain_schedule),
        change=_layout(schedule="zero_bubble"),
        excludes=_others("zero-bubble", SCHEDULES),
    ),
    Lever(
        "ring-cp",
        "Ring attention",
        "communication",
        "Sequences are divided over ranks; keys and values pass every rank, and gradients are reduced over them"
        " (F-7.5).",
        first_of(only_in("train", "prefill"), needs_words, _one_stack, _no_context("ring")),
        change=_context("ring"),
        memory_lever="shard",
        params=(Param("cp", 2, 2, 4096, "context-parallel degree, where there is none yet", whole=True),),
        excludes=_others("ring-cp", CONTEXT),
    ),
    Lever(
        "ulysses",
        "Sequence exchanged for heads",
        "communication",
        "Sequences are divided over ranks, which exchange sequence for heads around attention and reduce gradients"
        " (F-7.4).",
        first_of(only_in("train", "prefill"), needs_multi_head_attention, _one_stack, _no_context("all_to_all")),
        change=_context("all_to_all"),
        memory_lever="shard",
        params=(Param("cp", 2, 2, 4096, "context-parallel degree, where there is none yet", whole=True),),
        excludes=_others("ulysses", CONTEXT),
    ),
    Lever(
        "cap-comm-sms",
        "Few compute units for communication",
        "communication",
        "Without it kernels that communicate take units from the products beside them (F-1.5, expected time only).",
        first_of(only_in("train", "prefill"), needs_devices),
        lack=_processors_taken,
        params=(
            Param("taken", 20, 1, 128, "compute units that communication takes without it", whole=True),
            Param("units", 132, 8, 4096, "compute units of the device", whole=True),
        ),
    ),
)
"""Communication, in the order of the technique library."""
