"""Precisions as engines name them, in the names used here. A word that is not listed states nothing."""

from __future__ import annotations

from collections.abc import Mapping

_PRECISION_OF: Mapping[str, str] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp32": "fp32",
    "float": "fp32",
    "fp8": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
    "int4": "int4",
    "fp4": "fp4",
    "fp4_e2m1": "fp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
}
_QUANTIZATION: Mapping[str, tuple[str, str | None]] = {
    # scheme: (weights, activations); weight-only schemes leave the activations as they are
    "fp8": ("fp8", "fp8"),
    "w8a8_fp8": ("fp8", "fp8"),
    "modelopt_fp8": ("fp8", "fp8"),
    "fp8_block_scales": ("fp8", "fp8"),
    "w8a8_int8": ("int8", "int8"),
    "w8a8_sq_per_channel": ("int8", "int8"),
    "w8a16": ("int8", None),
    "int8": ("int8", None),
    "modelopt_fp4": ("nvfp4", "nvfp4"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": ("mxfp4", None),
    "w4a8_mxfp4_fp8": ("mxfp4", "fp8"),
    "awq": ("int4", None),
    "awq_marlin": ("int4", None),
    "w4a16": ("int4", None),
    "w4a16_awq": ("int4", None),
    "w4a16_gptq": ("int4", None),
    "w4a8_awq": ("int4", "fp8"),
}


def precision_of(word: str | None) -> str | None:
    """The name used here for a data type (`torch.bfloat16`, `BF16`, `half`)."""
    return _PRECISION_OF.get((word or "").strip().lower().removeprefix("torch."))


def dtypes_of(dtype: str | None, quantization: str | None = None, kv_cache: str | None = None) -> dict[str, str]:
    """Precisions of weights, activations and KV cache, only those that the three words state."""
    found: dict[str, str] = {}
    plain = precision_of(dtype)
    if plain:
        found |= {"weights": plain, "activations": plain}
    scheme = _QUANTIZATION.get((quantization or "").strip().lower())
    if scheme:
        weights, activations = scheme
        found["weights"] = weights
        if activations:
            found["activations"] = activations
    cache = precision_of(kv_cache)
    if cache:
        found["kv"] = cache
    return found
