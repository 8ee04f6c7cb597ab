"""Facts of a file that have no metric of their own, in words that a page can show as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS: Mapping[str, str] = {
    # training
    "global_batch": "Sequences a step",
    "devices": "Devices",
    "micro_batches": "Micro-batches a step",
    "virtual_stages": "Virtual stages",
    "zero_stage": "ZeRO stage",
    "recompute": "Recomputation",
    "optimizer": "Optimiser",
    "low_precision": "Low precision",
    "memory_kind": "Peak memory is",
    "num_layers": "Layers",
    "num_decoder_layers": "Layers",
    "hidden_size": "Hidden size",
    "ffn_hidden_size": "Feed-forward size",
    "num_attention_heads": "Attention heads",
    "num_query_groups": "Key and value heads",
    "num_experts": "Experts",
    "moe_router_topk": "Experts a token",
    "transformer_impl": "Implementation",
    "attention": "Attention",
    "quantization": "Quantisation",
    "epochs": "Epochs",
    "global_step": "Steps done",
    "max_steps": "Steps planned",
    "train_samples": "Training samples",
    "gradient_accumulation_steps": "Accumulation steps",
    "time_to_train": "Time to train",
    "benchmark": "Benchmark",
    "organisation": "Submitted by",
    "platform": "Platform",
    "division": "Division",
    "status": "Status",
    "lora_rank": "LoRA rank",
    # micro-benchmarks
    "collective": "Collective",
    "ranks": "Ranks",
    "ranks_shown": "Ranks in the file",
    "nodes": "Nodes",
    "type": "Element type",
    "redop": "Reduction",
    "iterations": "Iterations",
    "warmup_iters": "Warm-up iterations",
    "sizes_of_zero_left_out": "Sizes of zero left out",
    "operation": "Operation",
    "case": "Setting",
    "kernel": "Kernel",
    "provider": "Provider",
    "direction": "Direction",
    "implementation": "Implementation",
    "pass": "Pass",
    "causal": "Causal",
    "headdim": "Head size",
    "batch_size": "Batch",
    "nheads": "Heads",
    "nheads_kv": "Key and value heads",
    "cases_not_run": "Cases that did not run",
    "problems": "Problems",
    "unit_by_convention": "Unit, by convention",
    "rounds": "Rounds",
    "group": "Group",
    "threads": "Threads",
    "label": "Label",
    "build": "Build",
    "num_tokens": "Tokens",
    "hidden": "Hidden size",
    "num_topk": "Experts a token",
}


def spelled_out(extra: Mapping[str, Any]) -> dict[str, float | str]:
    """The known facts of `extra` by their words; nested ones become a sentence."""
    found: dict[str, float | str] = {}
    steps = extra.get("steps")
    if isinstance(steps, Mapping) and steps.get("logged"):
        text = f"{steps['logged']:,} logged, {steps['first']} to {steps['last']}"
        found["Steps"] = text + (f"; the first {steps['warm_up']} left out" if steps.get("warm_up") else "")
    for key, words in _WORDS.items():
        value = extra.get(key)
        if isinstance(value, bool):
            found.setdefault(words, "yes" if value else "no")
        elif isinstance(value, (int, float)):
            found.setdefault(words, float(value))
        elif isinstance(value, str) and value:
            found.setdefault(words, value.replace("_", "-") if key == "collective" else value)
    config = extra.get("config")
    if isinstance(config, Mapping) and config:
        found["Configuration"] = ", ".join(
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in config.items()
        )[:300]
    return found


def with_words(extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` without what is not known, and its facts in words under `also`, which the run's page shows."""
    known = {key: value for key, value in extra.items() if value is not None}
    words = spelled_out(known)
    return known | {"also": words} if words else known
