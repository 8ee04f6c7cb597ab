"""`quantization_config`: how a checkpoint stores its weights. It suggests a precision and changes no layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.catalog.hf.config import Config


class Stored(NamedTuple):
    """How weights are stored: a precision of this product where one fits, and the format in words."""

    precision: str | None
    words: str


_PLAIN = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32"}


def read_stored(*configs: Config | None) -> Stored | None:
    """How the checkpoint stores its weights; None where the configuration says nothing about it."""
    for config in configs:
        quantization = None if config is None else config.within("quantization_config")
        quantization = quantization or (None if config is None else config.within("compression_config"))
        if quantization is not None:
            return _quantized(quantization)
    for config in configs:
        if config is not None:
            word = config.text("torch_dtype", "dtype")
            if word is not None:
                word = word.removeprefix("torch.")
                return Stored(_PLAIN.get(word), word)
    return None


def _quantized(q: Config) -> Stored:
    method = (q.text("quant_method", "quant_algo") or "").lower().replace("-", "_")
    if method in ("fp8", "fbgemm_fp8", "finegrained_fp8"):
        block = q.integers("weight_block_size", 1, 1_000_000)
        blocks = f", one scale for a block of {' x '.join(map(str, block))}" if block else ""
        return Stored("fp8", f"fp8{blocks}")
    if method in ("mxfp4", "mxfp8", "nvfp4"):
        return Stored(method, method)
    if method in ("gptq", "awq", "autoround", "auto_round", "hqq", "aqlm", "eetq", "gptq_marlin"):
        inner = q.within("quant_config")
        inner = (None if inner is None else inner.within("weight_quant_params")) or q  # where HQQ says it
        bits = inner.integer(("bits", "nbits", "w_bit", "nbits_per_codebook"), 1, 16) or (
            8 if method == "eetq" else None
        )
        if method == "aqlm" and bits is not None:
            # so many codebooks give one index for each group of weights
            together = q.integer("in_group_size", 1, 1_000_000) or 1
            each = bits * (q.integer("num_codebooks", 1, 64) or 1) / together
            return Stored(None, f"aqlm with {each:g} bits, groups of {together} weights")
        group = inner.integer(("group_size", "q_group_size"), -1, 1_000_000)
        grouped = f", one scale for {group} weights" if group is not None and group > 0 else ""
        return Stored({4: "int4", 8: "int8"}.get(bits or 0), f"{method} with {bits or 'unknown'} bits{grouped}")
    if method in ("bitsandbytes", "bnb"):
        if q.data.get("load_in_4bit") is True:
            return Stored("int4", f"bitsandbytes {q.text('bnb_4bit_quant_type') or '4-bit'}")
        return Stored("int8", "bitsandbytes 8-bit")
    if method in ("compressed_tensors", "compressed_tensors_fp8"):
        return _compressed(q)
    if method in ("modelopt", "modelopt_fp4", "modelopt_mixed"):
        algorithm = (q.text("quant_algo") or "").lower()
        known = {"fp8": "fp8", "nvfp4": "nvfp4", "mxfp8": "mxfp8", "w4a16_awq": "int4", "w4a8_awq": "int4"}
        return Stored(known.get(algorithm), f"modelopt {algorithm or 'without an algorithm'}")
    if method == "torchao":
        kind = _torchao_kind(q.data.get("quant_type"))
        formats = (("int4", "int4"), ("int8", "int8"), ("float8", "fp8"))
        return Stored(next((p for word, p in formats if word in kind), None), f"torchao {kind}".strip())
    return Stored(None, f"{method or 'an unnamed method'}")


def _torchao_kind(said: Any) -> str:
    """Name of torchao's method: text, or the type of an object that describes it."""
    if isinstance(said, Mapping):
        default = said.get("default")
        said = default.get("_type") if isinstance(default, Mapping) else None
    return said.lower()[:100] if isinstance(said, str) else ""


def _compressed(q: Config) -> Stored:
    """compressed-tensors: the first group that says how its weights are stored."""
    groups: Any = q.data.get("config_groups")
    layout = q.text("format") or ""
    if isinstance(groups, Mapping):
        for group in list(groups.values())[:100]:
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(weights, Mapping):
                continue
            bits, kind = weights.get("num_bits"), weights.get("type")
            if isinstance(bits, int) and kind in ("int", "float"):
                word = f"{'fp' if kind == 'float' else 'int'}{bits}"
                if word == "fp4" and "nvfp4" in layout:
                    word = "nvfp4"
                return Stored(
                    word if word in ("fp8", "fp4", "nvfp4", "int8", "int4") else None, f"compressed-tensors {word}"
                )
    return Stored(None, "compressed-tensors")


def stored_sentence(stored: Stored, quantized: bool) -> str | None:
    """What an estimate should know about it; None where nothing has to be said."""
    if not quantized:
        return None
    advice = (
        f"estimate with {stored.precision} weights to see it"
        if stored.precision
        else "choose the nearest weight precision by hand"
    )
    return f"the checkpoint stores its weights as {stored.words}: the architecture is the same, {advice}"
