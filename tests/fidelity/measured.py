"""Published and own measurements beside the question that the estimators answer for each of them.

A row of `data/measurements.json` says what was run (`question`), on which profile, how long it took in seconds, and
where the number was read (`source`, a key of the file's `sources`). Questions:

* `{"op": "gemm" | "attention" | "elementwise" | "collective", ...}`: one operation with cold operands, the arguments
  those of the calculators in `app.domain.single_op`.
* `{"layer": "moe" | "latent attention", ...}`: the kernels of one layer by themselves.
* `{"step": {...}, "model": ..., "layers"?: ...}`: a step. `model` is a catalogue id or a stack of equal layers;
  `layers` replaces the number of layers where fewer of them were run.

Choices made in reading them: times printed as rates are converted back by the source's own formula; a context that
grows is its mean; recomputation that a source does not state is taken as none; sharded mixed-precision training is read
as bf16 weights and gradients; a quantised file's weights have the average bits of the file. None of these raises
the bound. In-switch reduction is taken where the source used or may have used it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.catalog.loader import load_catalog
from app.domain.cost import CostTable
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import Bound, ceilings, lower_bound
from app.domain.model import Attention, DenseMlp, LatentAttention, LayerGroup, ModelSpec, MoeMlp
from app.domain.single_op import attention_table, collective_table, elementwise_table, gemm_table
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Workload

FILE = Path(__file__).parent / "data" / "measurements.json"


@dataclass(frozen=True)
class Measurement:
    id: str
    kind: str
    hardware: str
    question: dict[str, Any]
    seconds: float
    source: str


def measurements(file: Path = FILE) -> list[Measurement]:
    return [Measurement(**row) for row in json.loads(file.read_text())["rows"]]


def bound_for(row: Measurement) -> Bound:
    """The bound of what was measured, on the vendor's peaks."""
    hardware = load_catalog().hardware[row.hardware]
    roofs = ceilings(hardware)
    question = dict(row.question)
    if "step" in question:
        return lower_bound(_step_table(hardware, question), roofs)
    table = _layer_table(question) if "layer" in question else _op_table(question)
    # a kernel by itself: its operands are cold and its results must reach memory
    return lower_bound(table, replace(roofs, cache=0.0))


def _op_table(question: dict[str, Any]) -> CostTable:
    calculators = {
        "gemm": gemm_table,
        "attention": attention_table,
        "elementwise": elementwise_table,
        "collective": collective_table,
    }
    return calculators[question.pop("op")](**question)


def _layer_table(question: dict[str, Any]) -> CostTable:
    dtypes = Dtypes(**question.get("dtypes", {}))
    workload = Workload(
        phase="decode", batch=question["tokens"], context_len=question.get("context_len", 0), dtypes=dtypes
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
        if (op.stage == "moe" and op.kind != "collective" and op.name not in ("router", "top-k", "mlp norm"))
        or op.kind == "attention"
    ]
    return CostTable.of(rows, tokens=table.tokens)


def _step_table(hardware: HardwareProfile, question: dict[str, Any]) -> CostTable:
    asked = question["model"]
    model = _stack(asked) if isinstance(asked, dict) else load_catalog().models[asked]
    if "layers" in question:
        (group,) = model.layers
        model = replace(model, layers=(replace(group, count=question["layers"]),))
    step = dict(question["step"])
    workload = Workload(
        **(step | {"dtypes": Dtypes(**step.get("dtypes", {})), "parallel": Parallel(**step.get("parallel", {}))})
    )
    domain = hardware.scale_up.domain_size if hardware.scale_up is not None else 8
    return cost_table(model, workload, ranks_per_node=domain)


def _stack(dims: dict[str, Any]) -> ModelSpec:
    attention = Attention(dims["heads"], dims["kv_heads"], dims["head_dim"], dims["head_dim"])
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
