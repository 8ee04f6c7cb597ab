"""Levers that store or multiply in fewer bits."""

from __future__ import annotations

from app.domain.levers.base import Lever
from app.domain.levers.conditions import activations_at_least, first_of, only_in, wider_than

WEIGHT_FORMATS = ("int4-marlin", "awq-gptq", "fp8-gemm", "mxfp8-nvfp4", "smoothquant-w8a8")
KV_FORMATS = ("kv-fp8", "kv-2bit")


def _others(own: str, family: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in family if name != own)


PRECISION_LEVERS: tuple[Lever, ...] = (
    Lever(
        "int4-marlin",
        "Prepacked INT4 weight-only products",
        "kernel",
        "Weights take 4 bits and a 16-bit scale for each group of 128; products run in the activations' format.",
        first_of(only_in("decode", "prefill"), wider_than("weights", 4.2)),
        change=lambda s, _: s.with_dtypes(weights="int4", weights_bits=None),
        memory_lever="compress",
        excludes=_others("int4-marlin", WEIGHT_FORMATS),
    ),
    Lever(
        "fp8-gemm",
        "FP8 linear layers",
        "kernel",
        "Weights and activations are stored and multiplied in fp8.",
        activations_at_least(16),
        change=lambda s, _: s.with_dtypes(weights="fp8", activations="fp8", weights_bits=None),
        memory_lever="compress",
        excludes=_others("fp8-gemm", WEIGHT_FORMATS),
    ),
    Lever(
        "kv-fp8",
        "FP8 KV cache",
        "kernel",
        "Keys and values are cached in one byte an element.",
        first_of(only_in("decode", "prefill"), wider_than("kv", 8)),
        change=lambda s, _: s.with_dtypes(kv="fp8"),
        memory_lever="compress",
        excludes=_others("kv-fp8", KV_FORMATS),
    ),
)
"""Narrower formats, in the order of the technique library."""
