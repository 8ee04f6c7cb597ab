"""Levers that keep intermediates out of HBM. The bound takes most for granted: a baseline shows their absence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from app.domain.activations import RESIDUAL_NORMS
from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.levers.base import Edit, Lever, Param, Params, RowEdit, Scenario
from app.domain.levers.conditions import (
    first_of,
    needs_decoder,
    needs_gated_mlp,
    needs_mlp,
    needs_more_than_one,
    needs_multi_head_attention,
    needs_no_experts,
    needs_nvidia,
    needs_rotary,
    needs_words,
    only_in,
)
from app.domain.levers.edits import (
    each,
    executed,
    in_order,
    is_tensor_exchange,
    more_resident,
    named,
)
from app.domain.memory import MemoryEdit
from app.domain.model import DenseMlp, MoeMlp
from app.domain.units import Grid
from app.domain.workload import Workload

SUITES = ("liger-suite", "torch-compile", "coda-epilogue-programs")
IN_SUITES = ("fused-norm", "fused-rope", "fused-swiglu")

FP32 = 4.0


_RESIDUAL = tuple(f" {name}" for name in (*RESIDUAL_NORMS, "final norm"))


def is_residual_norm(op: Op) -> bool:
    """Norms that the residual addition is part of, those of an encoder or a tower too; not those behind a product."""
    return op.kind == "elementwise" and f" {op.base}".endswith(_RESIDUAL)


def is_gated_activation(op: Op) -> bool:
    """Activations behind a gate and an up projection: they read twice what they write."""
    return op.kind == "elementwise" and op.base.endswith("activation") and op.stage in ("mlp", "moe")


def _rotated_keys(op: Op, ctx: StepContext) -> Grid:
    """Bytes of the keys, or of the values, that an append row writes to the cache."""
    return op.kv_write / ctx.kv * ctx.activation / 2.0


def _norm_apart() -> RowEdit:
    """A kernel adds, another reads the sum and normalises it; on the way back one writes a gradient that the other adds
    to. Behind the last layer nobody adds on the way back, and a norm run again finds its sum."""

    def rows(op: Op, ctx: StepContext) -> Op:
        if op.direction == "backward":
            one, more = op.act_write, 0.0 if op.base.endswith("final norm") else 1.0
            added = more * one
            return op.having(act_read=op.act_read + added, act_write=op.act_write + added, launches=op.launches + more)
        if op.direction == "recompute" and "layer" not in ctx.workload.recomputed:
            return op
        one = op.act_read / 2.0
        return op.having(
            act_read=op.act_read + one, act_write=np.maximum(op.act_write, 2.0 * one), launches=op.launches + 1.0
        )

    return each(is_residual_norm, rows)


def _rotation_apart() -> RowEdit:
    def rows(op: Op, ctx: StepContext) -> Op:
        size = op.act_write + _rotated_keys(op, ctx)
        return op.having(act_read=op.act_read + size, act_write=op.act_write + size, launches=op.launches + 1.0)

    return each(named("rotary and cache append"), rows)


def _append_apart(_: Scenario, __: Params) -> Edit:
    def rows(op: Op, ctx: StepContext) -> Op:
        size = 2.0 * _rotated_keys(op, ctx)
        return op.having(act_read=op.act_read + size, act_write=op.act_write + size, launches=op.launches + 1.0)

    appends = each(named("rotary and cache append", "cache append", "latent norm"), rows)
    return Edit("kv-append-fused", appends)


def _gate_apart() -> RowEdit:
    def rows(op: Op, _: StepContext) -> Op:
        if op.direction == "backward":
            # the product's gradients read the activated gate and write its own, which the activation's reads
            size = op.act_write / 2.0
            return op.having(
                act_read=op.act_read + 2.0 * size, act_write=op.act_write + size, launches=op.launches + 1.0
            )
        size = op.act_write
        return op.having(act_read=op.act_read + size, act_write=op.act_write + size, launches=op.launches + 1.0)

    return each(is_gated_activation, rows)


def _kept_gate(scenario: Scenario) -> MemoryEdit:
    """The activated gate, which an unfused implementation keeps beside gate, up projection and product (F-6.5)."""

    def size(workload: Workload) -> float:
        p = workload.parallel
        if workload.phase != "train" or workload.recomputed & {"layer", "mlp_activation"}:
            return 0.0
        again = workload.recomputed
        width = 0.0
        for group in scenario.model.layers:
            if isinstance(group.mlp, DenseMlp) and group.mlp.gated and "mlp" not in again:
                width += group.count * group.mlp.intermediate / p.tp
            elif isinstance(group.mlp, MoeMlp) and group.mlp.gated and not again & {"moe_layer", "shared_experts"}:
                width += group.count * group.mlp.shared_intermediate / p.tp
        tokens = workload.new_tokens / p.cp
        return tokens * width * workload.dtypes.bytes_of("activations") / p.pp

    return more_resident("activations", size)


def _in_epilogues() -> RowEdit:
    """Activations computed where the product before them writes its result."""

    def edit(rows: list[Op], ctx: StepContext) -> list[Op]:
        out = list(rows)
        # traffic that another lever's absence adds stands between a product and what follows it
        places = [i for i, op in enumerate(out) if not op.name.startswith("unfused ")]
        for i, j in pairwise(places):
            product, activation = out[i], out[j]
            joined = (
                product.kind == "gemm"
                and product.direction in ("forward", "recompute")
                and activation.kind == "elementwise"
                and activation.base.endswith("activation")
                and activation.stage in ("mlp", "moe")
                and product.base.endswith(("gate and up", "up"))
            )
            if not joined:
                continue
            # training keeps what the activation was computed from
            kept = product.act_write if ctx.training else 0.0
            out[i] = product.having(act_write=kept + activation.act_write, made=product.act_write)
            out[j] = activation.having(act_read=0.0, act_write=0.0, launches=0.0)
        return out

    return edit


def _loss_in_product(scenario: Scenario, params: Params) -> Scenario:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        out: list[Op] = []
        heads = {op.base: op for op in ops if op.base.endswith("output head") and op.direction == "forward"}
        for op in ops:
            head = heads.get(op.base)
            if op.base == "cross-entropy":
                op = op.having(act_read=0.0, act_write=0.0, launches=0.0)
            elif head is not None and op.direction == "forward":
                op = op.having(act_write=0.0, made=op.act_write)
                again = op.having(name=f"{op.base}, recomputed", direction="recompute", flop=0.0)
                out.append(again.having(executed=executed(op)))
            elif head is not None and op.name.endswith("input gradient"):
                op = op.having(act_read=0.0, taken=op.act_read)
            elif head is not None:
                op = op.having(act_read=op.act_read - head.act_write, taken=op.act_read)
            out.append(op)
        return out

    chunk = params["chunk"]

    def memory(objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        p = workload.parallel
        tokens = workload.new_tokens / p.cp
        held = FP32 * (tokens + min(chunk, tokens) * scenario.model.vocab_size / p.tp)
        return {**objects, "logits": min(objects["logits"], held)}

    return scenario.with_edit(Edit("fused-linear-ce", rows, memory))


def _writes_logits(scenario: Scenario) -> str | None:
    return "the logits are never written already" if "fused-linear-ce" in scenario.applied else None


def _dropouts(scenario: Scenario, params: Params) -> Edit:
    per_layer = params["per_layer"]
    layers = scenario.model.num_layers

    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        elements = ctx.tokens * ctx.hidden / ctx.sequence_shards
        count = per_layer * layers * ctx.runs
        forward = Op(
            "dropout",
            "mlp",
            "elementwise",
            count=count,
            pipe="vector",
            dtype="fp32",
            executed=elements,
            act_read=elements * ctx.activation,
            act_write=elements * (ctx.activation + 1.0),
            formula="read and write tokens hidden, and a mask of one byte an element",
        )
        backward = forward.having(
            name="dropout, backward",
            direction="backward",
            act_read=elements * (ctx.activation + 1.0),
            act_write=elements * ctx.activation,
        )
        return [*ops, forward, backward]

    def masks(workload: Workload) -> float:
        p = workload.parallel
        if "layer" in workload.recomputed:
            return 0.0
        shards = p.tp if p.sequence_parallel else 1
        return per_layer * layers * workload.new_tokens * scenario.model.hidden_size / (p.cp * p.pp * shards)

    return Edit("fused-dropout", rows, more_resident("activations", masks))


def _sampling_apart(_: Scenario, params: Params) -> Edit:
    def rows(op: Op, ctx: StepContext) -> Op:
        size = params["passes"] * FP32 * op.act_read / ctx.activation
        return op.having(
            act_read=op.act_read + size, act_write=op.act_write + size, launches=op.launches + params["kernels"]
        )

    return Edit("fused-sampling", each(named("sampling"), rows))


def _optimizer_apart(scenario: Scenario, params: Params) -> Edit:
    tensors = max(sum(group.count for group in scenario.model.layers) * 9.0, 1.0)

    def rows(op: Op, _: StepContext) -> Op:
        parameters = op.flop / 12.0
        return op.having(
            state=op.state + params["passes"] * 3.0 * FP32 * parameters,
            launches=op.launches + params["passes"] * tensors,
        )

    return Edit("multi-tensor-opt", each(named("optimizer step"), rows))


def _has_optimizer(scenario: Scenario) -> str | None:
    return "there is no optimizer step" if scenario.workload.optimizer == "none" else None


def _sum_in_norm(scenario: Scenario, params: Params) -> Scenario:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        out = []
        for op in ops:
            if is_tensor_exchange(op) and op.direction == "forward":
                op = op.having(hidden=max(op.hidden, params["hidden"]))
            elif is_residual_norm(op) and not op.base.endswith("final norm"):
                # the sum is still on chip when it is normalised
                op = op.having(act_read=op.act_read / 2.0, launches=max(op.launches - 1.0, 0.0))
            out.append(op)
        return out

    return scenario.with_edit(Edit("fused-ar-norm", rows))


def _copies(_: Scenario, params: Params) -> Edit:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        size = ctx.tokens * ctx.hidden / ctx.sequence_shards * ctx.activation
        copy = Op(
            "layout copies",
            "mlp",
            "copy",
            count=params["per_layer"] * ctx.model.num_layers * ctx.runs,
            act_read=size,
            act_write=size,
            formula="read and write tokens hidden",
        )
        return [*ops, copy]

    return Edit("layout-unify", rows)


def _suite(id_: str) -> Edit:
    return Edit(id_, in_order(_norm_apart(), _rotation_apart(), _gate_apart()))


FUSION_LEVERS: tuple[Lever, ...] = (
    Lever(
        "gemm-epilogue",
        "Activation in the epilogue of its product",
        "kernel",
        "The product writes the activated result; in training also what it was computed from (F-4.1), together more"
        " than the cache may hold of either.",
        first_of(needs_words, needs_mlp),
        change=lambda s, _: s.with_edit(Edit("gemm-epilogue", _in_epilogues())),
        memory_lever="dematerialize",
        excludes=("coda-epilogue-programs",),
    ),
    Lever(
        "fused-norm",
        "Norm fused with the residual addition",
        "kernel",
        "Without it addition and norm are kernels of their own: the norm reads the sum once more (F-4.6).",
        needs_words,
        lack=lambda _s, _p: Edit("fused-norm", _norm_apart()),
        memory_lever="dematerialize",
        excludes=SUITES,
    ),
    Lever(
        "fused-rope",
        "Rotary embedding fused with the append",
        "kernel",
        "Without it queries and keys are read and written once more by a kernel of its own (F-4.6).",
        needs_rotary,
        lack=lambda _s, _p: Edit("fused-rope", _rotation_apart()),
        memory_lever="dematerialize",
        excludes=SUITES,
    ),
    Lever(
        "fused-swiglu",
        "Gate activation and product in one kernel",
        "kernel",
        "Without it the activated gate is written, read and in training kept: one more tensor of its width (F-4.6).",
        needs_gated_mlp,
        lack=lambda s, _p: Edit("fused-swiglu", _gate_apart(), _kept_gate(s)),
        memory_lever="recompute",
        excludes=SUITES,
    ),
    Lever(
        "fused-linear-ce",
        "Output head and cross-entropy in one kernel",
        "kernel",
        "Logits never reach HBM: a chunk and the log-sum-exp are held, and the product runs again (F-3.6, F-6.6).",
        first_of(only_in("train"), needs_decoder, _writes_logits),
        change=_loss_in_product,
        memory_lever="dematerialize",
        params=(Param("chunk", 1024, 1, 2**20, "positions whose logits are held at once", whole=True),),
        excludes=("liger-suite",),
    ),
    Lever(
        "liger-suite",
        "Set of fused training kernels",
        "kernel",
        "Fused norm, rotary embedding and gate activation are lacking before it; the loss moves into the output head.",
        first_of(only_in("train"), needs_decoder, needs_no_experts, _writes_logits),
        lack=lambda s, _p: replace(_suite("liger-suite"), memory=_kept_gate(s)),
        change=lambda s, p: _loss_in_product(s, p),
        memory_lever="dematerialize",
        params=(Param("chunk", 1024, 1, 2**20, "positions whose logits are held at once", whole=True),),
        excludes=(*SUITES[1:], *IN_SUITES, "fused-linear-ce"),
        members=(*IN_SUITES, "fused-linear-ce"),
    ),
    Lever(
        "fused-dropout",
        "Dropout inside the residual kernel",
        "kernel",
        "Without it each dropout reads and writes the residual stream and keeps a mask of one byte an element (F-4.8).",
        first_of(only_in("train"), needs_words),
        lack=_dropouts,
        memory_lever="recompute",
        params=(Param("per_layer", 2, 1, 8, "dropouts of a layer", whole=True),),
    ),
    Lever(
        "fused-sampling",
        "Sampling in one kernel",
        "kernel",
        "Without it so many passes read and write fp32 logits, by so many more kernels.",
        first_of(only_in("decode"), needs_decoder),
        lack=_sampling_apart,
        memory_lever="dematerialize",
        params=(
            Param("passes", 3, 0, 50, "further passes over the logits", whole=True),
            Param("kernels", 20, 0, 200, "further kernels of a step", whole=True),
        ),
    ),
    Lever(
        "coda-epilogue-programs",
        "Everything but attention as products with epilogues",
        "kernel",
        "Fused norm, rotary embedding and gate activation are lacking before; activations move into epilogues (F-4.6).",
        first_of(only_in("train", "prefill"), needs_words, needs_no_experts, needs_nvidia(90)),
        lack=lambda s, _p: replace(_suite("coda-epilogue-programs"), memory=_kept_gate(s)),
        change=lambda s, _: s.with_edit(Edit("coda-epilogue-programs", _in_epilogues())),
        memory_lever="dematerialize",
        excludes=(*SUITES[:2], *IN_SUITES, "gemm-epilogue"),
        members=(*IN_SUITES, "gemm-epilogue"),
    ),
    Lever(
        "torch-compile",
        "Compiler fusion of pointwise operations",
        "kernel",
        "Fused norm, rotary embedding and gate activation are lacking before it (F-4.6).",
        needs_words,
        lack=lambda s, _p: replace(_suite("torch-compile"), memory=_kept_gate(s)),
        memory_lever="dematerialize",
        excludes=("liger-suite", "coda-epilogue-programs", *IN_SUITES),
        members=IN_SUITES,
    ),
    Lever(
        "multi-tensor-opt",
        "Optimizer over all tensors in one kernel",
        "kernel",
        "Without it each pass reads two and writes one fp32 number a parameter, by one kernel a tensor (F-4.10).",
        first_of(only_in("train"), _has_optimizer),
        lack=_optimizer_apart,
        memory_lever="dematerialize",
        params=(Param("passes", 5, 1, 20, "elementwise passes beyond the fused one", whole=True),),
    ),
    Lever(
        "kv-append-fused",
        "Rotary embedding, conversion and append in one kernel",
        "kernel",
        "Without it new keys and values are written and read once more at the activations' width (F-4.7).",
        first_of(only_in("prefill", "decode"), needs_decoder, needs_multi_head_attention),
        lack=_append_apart,
        memory_lever="dematerialize",
    ),
    Lever(
        "fused-ar-norm",
        "All-reduce and norm in one kernel",
        "communication",
        "The norm reads only the residual, in no kernel of its own, and part of the exchange is hidden (F-1.5).",
        first_of(
            only_in("prefill", "decode"), needs_words, needs_more_than_one("tp", "tensor parallelism"), needs_nvidia(90)
        ),
        change=_sum_in_norm,
        memory_lever="dematerialize",
        params=(Param("hidden", 0.3, 0, 0.95, "share of the exchange that runs behind the norm"),),
    ),
    Lever(
        "layout-unify",
        "One layout from operation to operation",
        "kernel",
        "Without it so many copies a layer read and write the residual stream.",
        needs_words,
        lack=_copies,
        memory_lever="pack",
        params=(Param("per_layer", 1, 1, 16, "copies of a layer", whole=True),),
    ),
)
"""Fusions, in the order of the technique library."""
