"""The bound of what was measured: a carried row's question, asked of the same estimators as every page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.catalog.loader import Catalog
from app.catalog.measurements import Measurement
from app.domain.cost import CostTable
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import Bound, ceilings, lower_bound
from app.domain.model import Attention, DenseMlp, LatentAttention, LayerGroup, ModelSpec, MoeMlp
from app.domain.single_op import attention_table, collective_table, elementwise_table, gemm_table
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Workload

CALCULATORS: Mapping[str, Callable[..., CostTable]] = {
    "gemm": gemm_table,
    "attention": attention_table,
    "elementwise": elementwise_table,
    "collective": collective_table,
}


def bound_of_measurement(row: Measurement, catalog: Catalog) -> Bound:
    """The bound of a row's question on the vendor's peaks. Raises as the estimators do."""
    hardware = catalog.hardware[row.hardware]
    roofs = ceilings(hardware)
    question = dict(row.question)
    if "op" not in question and question.get("in_switch") is False:
        roofs = replace(roofs, in_switch_reduction=False)
    if "op" in question:
        table = CALCULATORS[question.pop("op")](**question)
        # a kernel by itself: its operands are cold and its results must reach memory
        return lower_bound(table, replace(roofs, cache=0.0))
    if "layer" in question and question["layer"] != "decoder":
        return lower_bound(_layer_table(question), replace(roofs, cache=0.0))
    table, workload = _step_table(hardware, question, catalog)
    if "layer" in question:
        ends = ("embedding", "head")
        rows = [
            op for op in table.ops if op.stage not in ends and not (question.get("alone") and op.kind == "collective")
        ]
        table = CostTable.of(rows, tokens=table.tokens, devices=table.devices)
    return lower_bound(table, roofs, launch_mode=workload.launch_mode)


def workload_of(row: Measurement) -> Workload | None:
    """The workload of a step or of a stack of layers; None for a kernel or a layer by itself."""
    return _workload(row.question["step"]) if "step" in row.question else None


def _layer_table(question: Mapping[str, Any]) -> CostTable:
    """The kernels of one feed-forward layer of experts, or of one latent attention, by themselves."""
    experts_over = question.get("ep", 1)
    workload = Workload(
        phase="decode",
        batch=question["tokens"],
        context_len=question.get("context_len", 0),
        dtypes=Dtypes(**question.get("dtypes", {})),
    )
    layer: MoeMlp | LatentAttention
    if question["layer"] == "moe":
        layer = MoeMlp(question["experts"], question["top_k"], question["expert_intermediate"])
        group = LayerGroup(1, None, layer)
    else:
        layer = LatentAttention(**question["dims"])
        group = LayerGroup(1, layer, None)
    model = ModelSpec("layer", "layer", "decoder", question.get("hidden", 7168), 1, (group,), activation="silu")
    table = cost_table(model, workload)
    rows = [
        op
        for op in table.ops
        if (op.stage == "moe" and op.kind != "collective" and not op.name.endswith(("router", "top-k", "norm")))
        or op.kind == "attention"
    ]
    if experts_over > 1:
        # one rank of an expert-parallel group sees every token and computes its share of the copies
        rows = [
            replace(
                op,
                flop=op.flop / experts_over,
                weights=op.weights / experts_over,
                exponentials=op.exponentials / experts_over,
                act_read=op.act_read / experts_over,
                act_write=op.act_write / experts_over,
            )
            for op in rows
        ]
    return CostTable.of(rows, tokens=table.tokens)


def _step_table(hardware: HardwareProfile, question: Mapping[str, Any], catalog: Catalog) -> tuple[CostTable, Workload]:
    asked = question["model"]
    model = _stack(asked) if isinstance(asked, Mapping) else catalog.models[asked]
    if "layers" in question:
        (group,) = model.layers
        model = replace(model, layers=(replace(group, count=question["layers"]),))
    workload = _workload(question["step"])
    return cost_table(model, workload, ranks_per_node=hardware.ranks_per_node), workload


def _workload(step: Mapping[str, Any]) -> Workload:
    return Workload(
        **{
            **step,
            "dtypes": Dtypes(**step.get("dtypes", {})),
            "parallel": Parallel(**step.get("parallel", {})),
            "recompute_modules": tuple(step.get("recompute_modules", ())),
        }
    )


def _stack(dims: Mapping[str, Any]) -> ModelSpec:
    """A stack of equal layers by its dimensions."""
    attention = Attention(dims["heads"], dims["kv_heads"], dims["head_dim"], dims["head_dim"])
    if dims.get("bidirectional"):
        attention = replace(attention, kind="bidirectional")
    group = LayerGroup(dims["layers"], attention, DenseMlp(dims["intermediate"], dims["gated"]))
    return ModelSpec(
        "stack",
        "stack of equal layers",
        "decoder",
        dims["hidden"],
        dims["vocab"],
        (group,),
        tied_embeddings=dims["tied"],
        activation=dims["activation"],
    )
