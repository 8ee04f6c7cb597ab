"""Levers of the runtime: launches, recomputation, what moves to the host, and allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    Objection,
    first_of,
    launches_one_by_one,
    needs_no_experts,
    needs_nvidia,
    needs_words,
    only_in,
)
from app.domain.levers.edits import with_traffic
from app.domain.memory import memory_use, micro_batches_in_flight
from app.domain.model import Attention, InputProduct, LatentAttention
from app.domain.units import Grid
from app.domain.workload import Workload


def _does_not_recompute(*modules: str) -> Objection:
    """None of the modules runs again yet."""

    def check(scenario: Scenario) -> str | None:
        now = scenario.workload.recomputed & frozenset(modules)
        words = {"attention_core": "selective", "layer": "full"}
        return f"recompute is {words[min(now)]} already" if now else None

    return check


def _attention_only(scenario: Scenario, _: Params) -> Scenario:
    modules = tuple(name for name in scenario.workload.recompute_modules if name != "layer")
    return scenario.with_workload(recompute="selective", recompute_modules=modules)


def _one_kernel(scenario: Scenario, _: Params) -> Scenario:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        first, *rest = ops
        return [replace(first, launches=1.0 / first.count if isinstance(first.count, float) else 1.0)] + [
            op.having(launches=0.0) for op in rest
        ]

    return scenario.with_edit(Edit("megakernel", rows))


def _one_sum_a_layer(scenario: Scenario, _: Params) -> Scenario:
    model = scenario.model
    groups = tuple(replace(g, norms=1) if g.mixer is not None and g.mlp is not None else g for g in model.layers)
    return replace(scenario, model=replace(model, parallel_block=True, layers=groups))


def _is_sequential(scenario: Scenario) -> str | None:
    model = scenario.model
    if model.parallel_block:
        return f"{model.name} has parallel blocks already"
    if any(g.mixer is not None and not isinstance(g.mixer, (Attention, LatentAttention)) for g in model.layers):
        return f"{model.name} is not a stack of attention and MLP layers"
    return None if any(g.mixer and g.mlp for g in model.layers) else "no layer has both attention and an MLP"


def _activations_to_host(scenario: Scenario, params: Params) -> Scenario:
    share = params["share"]

    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        w = ctx.workload
        kept = memory_use(ctx.model, w, None, ranks_per_node=ctx.layout.ranks_per_node).objects["activations"]
        # a micro-batch after the other: what one holds, as often as the stage runs one
        size = share * kept / micro_batches_in_flight(w)
        out = Op(
            "activations to the host",
            "offload",
            "copy",
            count=float(ctx.micro_batches),
            net={"host": size},
            hidden=params["hidden"],
            formula="share of the saved activations over PCIe",
        )
        back = replace(out, name="activations to the host, back", direction="backward")
        return [*ops, out, back]

    def memory(objects: Mapping[str, float], _: Workload) -> Mapping[str, float]:
        return {**objects, "activations": objects["activations"] * (1.0 - share)}

    return scenario.with_edit(Edit("act-offload", rows, memory))


def _optimizer_to_host(scenario: Scenario, _: Params) -> Scenario:
    return scenario.with_workload(offload=replace(scenario.workload.offload, optimizer=True))


def _has_optimizer_state(scenario: Scenario) -> str | None:
    if scenario.workload.offload.optimizer:
        return "the optimizer lies on the host already"
    return "there is no optimizer state" if scenario.workload.optimizer == "none" else None


def _uses_adamw(scenario: Scenario) -> str | None:
    now = scenario.workload.optimizer
    return None if now == "adamw" else f"it replaces the states of adamw, and the optimizer is {now}"


def _fragmented(_: Scenario, params: Params) -> Edit:
    lost = params["lost"]

    def memory(objects: Mapping[str, float], _: Workload) -> Mapping[str, float]:
        held = sum(objects.values())
        return {**objects, "fragmentation": objects["fragmentation"] + held * lost / (1.0 - lost)}

    return Edit("static-pools", memory=memory)


def _input_products(scenario: Scenario) -> tuple[InputProduct, ...]:
    model = scenario.model
    return model.front + (model.tower.stack.front if model.tower is not None else ())


def _patches_copied(scenario: Scenario, _: Params) -> Edit:
    model = scenario.model
    prefix = "" if model.tower is None else f"{model.tower.modality} "
    names = {p.name for p in model.front}
    names |= {f"{prefix}{p.name}" for p in _input_products(scenario)}

    def matches(op: Op) -> bool:
        return op.direction == "forward" and op.kind == "gemm" and (op.base in names or op.stage == "convolution")

    def columns(op: Op, _: StepContext) -> tuple[Grid, Grid, Grid]:
        taps = 9.0 if op.stage == "convolution" else 1.0
        return op.act_read * taps, op.act_read * taps, 1.0

    return Edit("implicit-gemm", with_traffic(matches, columns))


def _has_convolutions(scenario: Scenario) -> str | None:
    model = scenario.model
    if model.front or (model.denoiser is not None and hasattr(model.denoiser, "channels")):
        return None
    if model.tower is None or not model.tower.stack.front:
        return f"{model.name} has no convolution or patch embedding that is described"
    return None if scenario.workload.visual_tokens else "the tower does not run: give visual_tokens"


RUNTIME_LEVERS: tuple[Lever, ...] = (
    Lever(
        "cuda-graph",
        "Graph replay",
        "runtime",
        "Launches cost nothing on the host: the launch mode becomes graph (F-11.2).",
        launches_one_by_one,
        change=lambda s, _: s.with_workload(launch_mode="graph"),
        memory_lever="allocator",
        excludes=("capacity-graph",),
    ),
    Lever(
        "megakernel",
        "The whole step in one kernel",
        "kernel",
        "One launch a step; bytes and FLOP stay (F-11.1).",
        first_of(only_in("decode"), needs_words, needs_nvidia(90)),
        change=_one_kernel,
        memory_lever="dematerialize",
        excludes=("moe-megakernel",),
    ),
    Lever(
        "ptb",
        "Attention and MLP from one input",
        "algorithmic",
        "One norm and one sum over the tensor group a layer instead of two (F-7.1).",
        first_of(only_in("train", "prefill"), needs_words, needs_no_experts, _is_sequential),
        change=_one_sum_a_layer,
    ),
    Lever(
        "selective-recompute",
        "Selective recomputation of attention",
        "runtime",
        "The attention core alone runs again in the backward pass, where whole layers did or nothing (F-3.4).",
        first_of(only_in("train"), _does_not_recompute("attention_core")),
        change=_attention_only,
        memory_lever="recompute",
        excludes=("full-recompute",),
    ),
    Lever(
        "full-recompute",
        "Full recomputation of layers",
        "runtime",
        "Every layer's forward pass runs again in the backward pass; only layer inputs are kept (F-3.4, F-6.5).",
        first_of(only_in("train"), _does_not_recompute("layer")),
        change=lambda s, _: s.with_workload(recompute="full"),
        memory_lever="recompute",
        excludes=("selective-recompute", "fwd-bwd-overlap"),
    ),
    Lever(
        "act-offload",
        "Activations in the host's memory",
        "runtime",
        "A share of the saved activations crosses PCIe out in the forward and back in the backward pass.",
        first_of(only_in("train"), needs_words),
        change=_activations_to_host,
        memory_lever="shard",
        params=(
            Param("share", 0.5, 0.01, 1, "share of the saved activations"),
            Param("hidden", 0.9, 0, 1, "share of the transfer that runs behind the layers"),
        ),
    ),
    Lever(
        "opt-8bit",
        "Optimizer moments in 8 bits",
        "algorithmic",
        "The optimizer becomes adamw8bit: one byte for each moment (F-4.10, F-6.1).",
        first_of(only_in("train"), _uses_adamw),
        change=lambda s, _: s.with_workload(optimizer="adamw8bit"),
        memory_lever="compress",
        excludes=("cpu-offload-opt",),
    ),
    Lever(
        "cpu-offload-opt",
        "Optimizer on the host",
        "runtime",
        "Optimizer state lies in the host's memory; gradients go out and parameters come back over PCIe once a step.",
        first_of(only_in("train"), _has_optimizer_state),
        change=_optimizer_to_host,
        memory_lever="shard",
        excludes=("opt-8bit", "multi-tensor-opt"),
    ),
    Lever(
        "static-pools",
        "Buffers allocated once",
        "runtime",
        "Without it a share of the reserved memory is lost to fragmentation (F-6.8).",
        only_in("train", "decode"),
        lack=_fragmented,
        memory_lever="allocator",
        params=(Param("lost", 0.1, 0, 0.9, "share of the reserved memory that holds nothing"),),
    ),
    Lever(
        "implicit-gemm",
        "Convolutions without a column copy",
        "kernel",
        "Without it the columns of a patch embedding or convolution are written and read as a copy.",
        first_of(only_in("train", "prefill"), _has_convolutions),
        lack=_patches_copied,
        memory_lever="dematerialize",
    ),
)
"""Runtime levers, in the order of the technique library."""
