"""Levers that store or multiply in fewer bits."""

from __future__ import annotations

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.errors import InvalidInput
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    activations_at_least,
    activations_at_most,
    first_of,
    needs_nvidia,
    only_in,
    weights_at_least,
    wider_than,
)
from app.domain.levers.edits import each, resident, with_traffic
from app.domain.precision import PRECISIONS
from app.domain.units import Grid

WEIGHT_FORMATS = ("int4-marlin", "awq-gptq", "fp8-gemm", "mxfp8-nvfp4", "smoothquant-w8a8", "svdquant")
INT4_BITS = 4 + 16 / 128
OTHERS_WITH_FP8 = ("gfx942", "gfx950", "AMD", "AWS", "Google", "Huawei", "Intel")
INFERENCE = only_in("decode", "prefill")


def _others(own: str) -> tuple[str, ...]:
    return tuple(name for name in WEIGHT_FORMATS if name != own)


def _check_narrower(scenario: Scenario, bits: float) -> None:
    now = scenario.workload.dtypes.bytes_of("weights") * 8
    if bits >= now:
        name = scenario.workload.dtypes.weights
        raise InvalidInput("bits", f"with its scale a weight would take {bits:g} bits, and has {now:g} now ({name})")


def _group_scaled(scenario: Scenario, params: Params) -> Scenario:
    bits = params["bits"] + params["scale_bits"] / params["group"]
    _check_narrower(scenario, bits)
    return scenario.with_dtypes(weights="int4", weights_bits=bits)


def _block_scaled(scenario: Scenario, params: Params) -> Scenario:
    name = "mxfp8" if params["bits"] == 8 else "nvfp4"
    _check_narrower(scenario, PRECISIONS[name].element_bytes * 8)
    return scenario.with_dtypes(weights=name, activations=name, weights_bits=None)


def _converted_apart(_: Scenario, params: Params) -> Edit:
    def passes(op: Op, ctx: StepContext) -> tuple[Grid, Grid, Grid]:
        if ctx.activation > 8.25 / 8:
            return 0.0, 0.0, 0.0  # nothing is narrow yet
        return 2.0 * op.act_read / ctx.activation, op.act_read, 1.0

    return Edit("quant-epilogue", with_traffic(lambda op: op.kind == "gemm" and op.direction == "forward", passes))


def _in_fp32(_: Scenario, __: Params) -> Edit:
    def rows(op: Op, _: StepContext) -> Op:
        return op.having(
            weights=op.weights * 2.0,
            act_read=op.act_read * 2.0,
            act_write=op.act_write * 2.0,
            taken=None if op.taken is None else op.taken * 2.0,
            made=None if op.made is None else op.made * 2.0,
            dtype="tf32" if op.pipe == "tensor" else op.dtype,
        )

    computing = each(lambda op: op.kind in ("gemm", "attention", "elementwise", "scan", "gather", "copy"), rows)
    return Edit("true-bf16", computing, resident(parameters=2.0, activations=2.0))


def _trains_in_16_bits(scenario: Scenario) -> str | None:
    dtypes = scenario.workload.dtypes
    for what in ("weights", "activations"):
        if dtypes.bytes_of(what) != 2:
            return f"{what} are in {getattr(dtypes, what)}, not in 16 bits"
    return None


PRECISION_LEVERS: tuple[Lever, ...] = (
    Lever(
        "int4-marlin",
        "Prepacked INT4 weight-only products",
        "kernel",
        "Weights take 4 bits and a 16-bit scale for each group of 128; products keep the activations' format (F-5.6):"
        " few tokens gain; many, or a small model, gain nothing and may lose what dequantising takes.",
        first_of(INFERENCE, wider_than("weights", INT4_BITS), needs_nvidia(80)),
        change=lambda s, _: s.with_dtypes(weights="int4", weights_bits=None),
        memory_lever="compress",
        excludes=_others("int4-marlin"),
    ),
    Lever(
        "awq-gptq",
        "Calibrated weight quantisation",
        "algorithmic",
        "Weights take `bits` and a scale for each group; products run in the activations' format (F-5.6): few tokens"
        " gain; many, or a small model, gain nothing and may lose what dequantising takes.",
        first_of(INFERENCE, wider_than("weights", INT4_BITS)),
        change=_group_scaled,
        memory_lever="compress",
        params=(
            Param("bits", 4, 2, 8, "bits of a weight", whole=True),
            Param("group", 128, 16, 1024, "weights that share a scale", whole=True),
            Param("scale_bits", 16, 4, 64, "bits of a scale, with its zero point", whole=True),
        ),
        excludes=_others("awq-gptq"),
    ),
    Lever(
        "fp8-gemm",
        "FP8 linear layers",
        "kernel",
        "Weights and activations are stored and multiplied in fp8. Measured kernels take longer to start, fused"
        " experts reach less of the peak, and training steps have more beside their products: a small model, long"
        " sequences in training or experts with many tokens may lose.",
        first_of(activations_at_least(16), weights_at_least(8), needs_nvidia(89, also=OTHERS_WITH_FP8)),
        change=lambda s, _: s.with_dtypes(weights="fp8", activations="fp8", weights_bits=None),
        memory_lever="compress",
        excludes=_others("fp8-gemm"),
    ),
    Lever(
        "mxfp8-nvfp4",
        "Block-scaled MXFP8 or NVFP4",
        "kernel",
        "Weights and activations take 8.25 (MXFP8) or 4.5 bits (NVFP4) and multiply at that format's peak (F-5.6)."
        " Measured kernels take longer to start: a small model may lose.",
        first_of(activations_at_least(16), needs_nvidia(100, also=("gfx950",))),
        change=_block_scaled,
        memory_lever="compress",
        params=(Param("bits", 8, 4, 8, "8 for MXFP8, less for NVFP4", whole=True),),
        excludes=_others("mxfp8-nvfp4"),
    ),
    Lever(
        "smoothquant-w8a8",
        "INT8 weights and activations with outliers moved",
        "algorithmic",
        "Weights and activations take one byte and multiply at the int8 peak. Measured kernels take longer to start: a"
        " small model may lose.",
        first_of(INFERENCE, activations_at_least(16), wider_than("weights", 8)),
        change=lambda s, _: s.with_dtypes(weights="int8", activations="int8", weights_bits=None),
        memory_lever="compress",
        excludes=_others("smoothquant-w8a8"),
    ),
    Lever(
        "quant-epilogue",
        "Conversion inside the neighbouring kernel",
        "kernel",
        "Without it each product's input is read in 16 bits and written narrow by a kernel of its own.",
        activations_at_most(8, "nothing is converted"),
        lack=_converted_apart,
        memory_lever="dematerialize",
    ),
    Lever(
        "true-bf16",
        "Weights that really run in 16 bits",
        "kernel",
        "Without it weights and activations take four bytes and products run at the tf32 peak.",
        first_of(only_in("train"), _trains_in_16_bits),
        lack=_in_fp32,
        memory_lever="compress",
        excludes=("fp8-gemm", "mxfp8-nvfp4"),
    ),
)
"""Narrower formats, in the order of the technique library."""
