"""Levers on the KV cache: fewer bytes, less waste, shared or moved elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.errors import InvalidInput
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    Objection,
    first_of,
    needs_attention,
    needs_decoder,
    only_in,
    wider_than,
)
from app.domain.levers.edits import each, reading, resident, tokens_times
from app.domain.model import Attention, Mamba2, Mixer
from app.domain.workload import Workload

KV_FORMATS = ("kv-fp8", "kv-2bit")
FP8_SCALED_BITS = 8 + 16 / 128
"""One 16-bit scale for 128 elements (F-5.6)."""

DRIVER_PAGE = 2 * 2**20
"""Bytes of the pages that a driver maps."""


def _reads_cache(op: Op) -> bool:
    """Rows that read keys, values or latents; states of recurrent layers are none."""
    return op.kind == "attention" or op.in_layer == "key and value up"


def _appends(op: Op) -> bool:
    return op.in_layer in ("rotary and cache append", "cache append", "latent norm", "cross cache append")


def _times(reads: float) -> Edit:
    def rows(op: Op, _: StepContext) -> Op:
        return reading(op, op.kv_read * reads).having(kv_write=op.kv_write * reads)

    return Edit("", each(lambda op: _reads_cache(op) or _appends(op), rows), resident(kv_cache=reads))


def _in_fp8(scenario: Scenario, _: Params) -> Scenario:
    return scenario.with_dtypes(kv="fp8")


def _in_two_bits(scenario: Scenario, params: Params) -> Scenario:
    w = scenario.workload
    now = w.dtypes.bytes_of("kv") * 8
    context = max(w.context_len + w.seq_len, 1)
    recent = min(params["residual"] / context, 1.0)
    # two numbers a group: scale and zero point
    bits = params["bits"] + 2 * 16 / params["group"]
    share = min(recent + (1.0 - recent) * bits / now, 1.0)
    return scenario.with_edit(replace(_times(share), lever="kv-2bit"))


def _prefix_hits(scenario: Scenario, params: Params) -> Scenario:
    w = scenario.workload
    cached = min(math.floor(params["hit"] * w.seq_len), w.seq_len - 1)
    if cached < 1:
        raise InvalidInput("hit", f"less than one of {w.seq_len} tokens is hit: use a larger share")
    computed = scenario.with_workload(seq_len=w.seq_len - cached, context_len=w.context_len + cached)
    total = w.context_len + w.seq_len

    def memory(objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        # the sequences of the batch hold one copy of the prefix (F-5.4)
        batch = workload.batch
        unique = (cached + batch * (total - cached)) / (batch * total)
        return {**objects, "kv_cache": objects["kv_cache"] * unique}

    shared = memory if params["one_prefix"] else None
    # the step still serves the whole prompts
    return computed.with_edit(Edit("prefix-cache", memory=shared, table=tokens_times(w.seq_len / (w.seq_len - cached))))


def _on_host(scenario: Scenario, params: Params) -> Scenario:
    share = params["share"]

    def rows(op: Op, _: StepContext) -> Op:
        far = op.kv_read * share
        return reading(op, op.kv_read - far).having(net={**op.net, "host": op.net.get("host", 0.0) + far})

    return scenario.with_edit(Edit("kv-offload", each(_reads_cache, rows), resident(kv_cache=1.0 - share)))


def _has_cache(scenario: Scenario) -> str | None:
    return None if scenario.workload.context_len else "nothing is cached yet (context_len is 0)"


def _preallocated(id_: str, params: Params) -> Edit:
    return Edit(id_, memory=resident(kv_cache=params["reserved"]))


def _driver_pages(scenario: Scenario, _: Params) -> Scenario:
    w = scenario.workload
    widths = [a.kv_heads * a.head_dim for _, a in scenario.model.attention_groups() if isinstance(a, Attention)]
    width = max(widths) / w.parallel.tp if widths else float(scenario.model.hidden_size)
    tokens = max(math.ceil(DRIVER_PAGE / (width * w.dtypes.bytes_of("kv"))), 1)
    return scenario.with_workload(kv=replace(w.kv, page_tokens=tokens))


def _mostly_state(scenario: Scenario, params: Params) -> Scenario:
    h = scenario.model.hidden_size
    head_dim = 64
    state = Mamba2(heads=2 * h // head_dim, head_dim=head_dim, groups=8, state=int(params["state"]), conv=4)
    kept = params["attention_share"]

    def replaced(mixer: Mixer | None) -> Mixer | None:
        return state if isinstance(mixer, Attention) and mixer.kind != "cross" else mixer

    groups = []
    for group in scenario.model.layers:
        stay = math.ceil(kept * group.count)
        changed = replace(group, count=group.count - stay, mixer=replaced(group.mixer))
        groups += [part for part in (changed, replace(group, count=stay)) if part.count]
    return replace(scenario, model=replace(scenario.model, layers=tuple(groups)))


def _has_attention_to_replace(scenario: Scenario) -> str | None:
    model = scenario.model
    has = any(isinstance(group.mixer, Attention) and group.mixer.kind != "cross" for group in model.layers)
    if not has:
        return f"{model.name} has no layers of plain attention to replace"
    return None if model.hidden_size % 64 == 0 else "its hidden size is no multiple of 64"


_INFERENCE: Objection = first_of(only_in("decode", "prefill"), needs_decoder, needs_attention)
_RESERVED = Param("reserved", 2.5, 1, 100, "cache reserved over cache used, without it")

CACHE_LEVERS: tuple[Lever, ...] = (
    Lever(
        "paged-kv",
        "Paged KV cache",
        "runtime",
        "Without it the cache is reserved for the longest answer: so many times what is used (F-5.3).",
        _INFERENCE,
        lack=lambda _s, p: _preallocated("paged-kv", p),
        memory_lever="pack",
        params=(_RESERVED,),
        excludes=("vattention",),
    ),
    Lever(
        "kv-fp8",
        "FP8 KV cache",
        "kernel",
        "Keys and values are cached in one byte an element (F-5.6). Where activations have one too, attention becomes"
        " fp8, whose measured kernels lose a little over few keys.",
        first_of(_INFERENCE, wider_than("kv", FP8_SCALED_BITS)),
        change=_in_fp8,
        memory_lever="compress",
        excludes=KV_FORMATS[1:],
    ),
    Lever(
        "kv-2bit",
        "KV cache in two bits",
        "algorithmic",
        "All but the last `residual` tokens take `bits` and a 16-bit scale and zero point for each group (F-5.6).",
        first_of(_INFERENCE, wider_than("kv", 8)),
        change=_in_two_bits,
        memory_lever="compress",
        params=(
            Param("bits", 2, 1, 4, "bits of a cached element", whole=True),
            Param("group", 32, 8, 1024, "elements that share a scale", whole=True),
            Param("residual", 128, 0, 2**20, "newest tokens kept as they are", whole=True),
        ),
        excludes=KV_FORMATS[:1],
    ),
    Lever(
        "prefix-cache",
        "Prefix cache",
        "runtime",
        "The hit share of a prompt is read from the cache, only the rest is computed (F-5.4, F-5.5); short prompts"
        " wait for weights all the same.",
        first_of(only_in("prefill"), needs_decoder, needs_attention),
        change=_prefix_hits,
        memory_lever="pack",
        params=(
            Param("hit", 0.5, 0.001, 0.999, "share of the prompt's tokens that are cached"),
            Param("one_prefix", 1, 0, 1, "1 where all sequences share one prefix, else 0", whole=True),
        ),
    ),
    Lever(
        "kv-offload",
        "Cache kept in the host's memory",
        "runtime",
        "A share of the cache lies in the host's memory and is read over PCIe instead of from HBM.",
        first_of(_INFERENCE, _has_cache),
        change=_on_host,
        memory_lever="shard",
        params=(Param("share", 0.5, 0.01, 1, "share of the cache that lies in the host's memory"),),
    ),
    Lever(
        "vattention",
        "Contiguous virtual memory for the cache",
        "runtime",
        "Without it the cache is reserved for the longest answer; with it pages are the driver's, 2 MiB (F-5.3).",
        _INFERENCE,
        lack=lambda _s, p: _preallocated("vattention", p),
        change=_driver_pages,
        memory_lever="allocator",
        params=(_RESERVED,),
        excludes=("paged-kv",),
    ),
    Lever(
        "ssm-hybrid",
        "State-space layers instead of most attention layers",
        "algorithmic",
        "Attention layers become Mamba-2 layers of twice the hidden width, except `attention_share` of them (F-5.1)."
        " Those have more weights than attention with few KV heads: it pays for long contexts.",
        _has_attention_to_replace,
        change=_mostly_state,
        memory_lever="compress",
        params=(
            Param("attention_share", 0.125, 0, 1, "share of the layers that stay attention"),
            Param("state", 128, 8, 1024, "state elements of a channel", whole=True),
        ),
        excludes=("mla", "gqa-mqa", "swa"),
    ),
)
"""KV cache, in the order of the technique library."""
