"""Levers on attention: kernels that avoid traffic or run faster, and architectures that attend to less."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.errors import InvalidInput
from app.domain.inputs import visual_tokens
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    Objection,
    first_of,
    needs_attention,
    needs_full_attention,
    needs_multi_head_attention,
    needs_nvidia,
    needs_pictures,
    only_in,
)
from app.domain.levers.edits import (
    attention_layers,
    computed,
    each,
    is_attention,
    more_resident,
    one,
    padded,
    plain_attention,
    reading,
    seen,
    slower,
    with_mixer,
    with_mixers,
    with_traffic,
)
from app.domain.mixer_parameters import kv_heads_of_rank
from app.domain.model import Attention, LatentAttention, LayerGroup, Mixer
from app.domain.precision import PRECISIONS
from app.domain.technique import MemoryLever
from app.domain.units import Grid
from app.domain.workload import Workload

KERNELS = ("fa2", "fa3", "fa4")
DECODE_KERNELS = ("split-kv", "flashinfer")
FEWER_HEADS = ("gqa-mqa", "mla")

REACH = 2.0
"""How many times its even share of the memory bandwidth one compute unit can draw (judgement)."""


def effort_lever(
    id_: str,
    title: str,
    model: str,
    rows: Callable[[Op], bool],
    slower_by: float,
    objection: Objection,
    *,
    memory_lever: MemoryLever | None = None,
    excludes: tuple[str, ...] = (),
) -> Lever:
    """A kernel that the forecast takes for granted: without it the rows take `slower` times as long."""
    return Lever(
        id_,
        title,
        "kernel",
        model,
        objection,
        lack=lambda _, p: Edit(id_, slower(rows, p["slower"])),
        memory_lever=memory_lever,
        params=(Param("slower", slower_by, 1, 20, "time without it over time with it"),),
        excludes=tuple(name for name in excludes if name != id_),
    )


def _unfused_attention(scenario: Scenario, _: Params) -> Edit:
    def passes(op: Op, ctx: StepContext) -> tuple[Grid, Grid, Grid]:
        # scores and probabilities, heads x pairs each: written and read once more (F-4.3), by three kernels
        size = 2.0 * op.exponentials * ctx.activation
        return size, size, 2.0

    # softmax output, and what dropout would keep beside it (F-6.5: 5 n_q S / H of the input's bytes)
    return Edit("fa1", with_traffic(is_attention, passes), more_resident("activations", _saved_scores(scenario, 2.5)))


def _saved_scores(scenario: Scenario, elements: float) -> Callable[[Workload], float]:
    """Bytes of `elements` numbers a head and pair that training keeps, of all layers of a rank."""

    def size(workload: Workload) -> float:
        p = workload.parallel
        if workload.phase != "train" or workload.recomputed & {"attention_core", "layer"}:
            return 0.0
        heads = sum(count * mixer.heads for count, mixer in attention_layers(scenario.model))
        pairs = workload.batch * float(workload.seq_len) ** 2
        return elements * heads * pairs * workload.dtypes.bytes_of("activations") / (p.tp * p.pp * p.cp)

    return size


def _saved_probabilities(scenario: Scenario, _: Params) -> Edit:
    def passes(op: Op, ctx: StepContext) -> tuple[Grid, Grid, Grid]:
        # probabilities are written in the forward pass and read in the backward pass
        size = op.exponentials * ctx.activation
        return (size, 0.0, 0.0) if op.direction == "backward" else (0.0, size, 0.0)

    kept = more_resident("activations", _saved_scores(scenario, 1.0))
    return Edit("attn-bwd-recompute", with_traffic(is_attention, passes), kept)


def _padded_attention(_: Scenario, params: Params) -> Edit:
    return Edit("attn-varlen", padded(is_attention, 1.0 / (1.0 - params["padding"])))


def _without_split(scenario: Scenario, params: Params) -> Edit:
    def rows(op: Op, ctx: StepContext) -> Op:
        heads = [
            one(kv_heads_of_rank(mixer, ctx.tp)) if isinstance(mixer, Attention) else math.ceil(mixer.heads / 64)
            for _, mixer in attention_layers(ctx.model)
        ]
        blocks = one(ctx.batch) * max(heads)
        return op.having(effort=op.effort * max(params["units"] / (REACH * blocks), 1.0))

    return Edit("split-kv", each(is_attention, rows))


def _shared_prefix(scenario: Scenario, params: Params) -> Scenario:
    share = params["share"]

    def rows(op: Op, ctx: StepContext) -> Op:
        return reading(op, op.kv_read * (share / ctx.batch + 1.0 - share))

    return scenario.with_edit(Edit("cascade-prefix", each(is_attention, rows)))


def _serves_several(scenario: Scenario) -> str | None:
    w = scenario.workload
    if w.batch < 2:
        return "one sequence shares its prefix with nobody (batch is 1)"
    return None if w.context_len else "nothing is cached yet (context_len is 0)"


def _fewer_kv_heads(scenario: Scenario, params: Params) -> Scenario:
    wanted = int(params["kv_heads"])

    def narrow(mixer: Mixer | None) -> Mixer | None:
        if isinstance(mixer, Attention) and mixer.kv_heads > wanted and mixer.heads % wanted == 0:
            return replace(mixer, kv_heads=wanted)
        return mixer

    model = with_mixer(scenario.model, narrow)
    if model == scenario.model:
        heads = ", ".join(sorted({f"{a.heads} query and {a.kv_heads} KV heads" for a in plain_attention(model)}))
        raise InvalidInput("kv_heads", f"{wanted} KV heads are no fewer, or do not divide the heads ({heads})")
    return replace(scenario, model=model)


def _has_more_kv_heads(scenario: Scenario) -> str | None:
    most = max((a.kv_heads for a in plain_attention(scenario.model)), default=0)
    tp = scenario.workload.parallel.tp
    if most > tp:
        return None
    if tp > 1:
        return f"each of {tp} ranks keeps one KV head already"
    return f"{scenario.model.name} has one KV head already"


def _latent(scenario: Scenario, params: Params) -> Scenario:
    def compress(mixer: Mixer | None) -> Mixer | None:
        if not isinstance(mixer, Attention) or mixer.kind == "cross":
            return mixer
        return LatentAttention(
            heads=mixer.heads,
            kv_lora_rank=int(params["kv_rank"]),
            qk_nope_head_dim=mixer.head_dim,
            qk_rope_head_dim=int(params["rope"]),
            v_head_dim=mixer.v_head_dim,
        )

    return replace(scenario, model=with_mixer(scenario.model, compress))


def _windows(scenario: Scenario, params: Params) -> Scenario:
    window, kept = int(params["window"]), params["full_share"]
    longest = scenario.workload.context_len + scenario.workload.seq_len
    if longest <= window:
        raise InvalidInput("window", f"sequences of {longest} tokens fit into a window of {window}: use a smaller one")

    def split(group: LayerGroup) -> tuple[LayerGroup, ...]:
        mixer = group.mixer
        if not isinstance(mixer, Attention) or mixer.kind != "full":
            return (group,)
        full = min(math.ceil(kept * group.count), group.count)
        sliding = replace(group, count=group.count - full, mixer=replace(mixer, kind="sliding", window=window))
        return tuple(part for part in (sliding, replace(group, count=full)) if part.count)

    return replace(scenario, model=with_mixers(scenario.model, split))


def _has_full_layers(scenario: Scenario) -> str | None:
    has = any(a.kind == "full" and a.indexer is None for a in plain_attention(scenario.model))
    return None if has else f"{scenario.model.name} has no plain layers that see the whole context"


def _kept_blocks(scenario: Scenario, params: Params) -> Scenario:
    # the kept pairs, and one compressed key a block that every query is scored against (half of the two products)
    share = min(params["kept"] + 0.5 / params["block"], 1.0)

    def rows(op: Op, _: StepContext) -> Op:
        fewer = op.having(
            flop=op.flop * share,
            executed=None if op.executed is None else op.executed * share,
            exponentials=op.exponentials * share,
            longest=op.longest * share,
            kv_read=op.kv_read * share,
        )
        if op.direction == "backward":
            return fewer
        # as many queries and heads as before, each of fewer keys
        return fewer.having(taken=computed(op) + share * (seen(op) - computed(op)) - fewer.kv_read)

    return scenario.with_edit(Edit("nsa-block-sparse", each(is_attention, rows)))


def _skipped_blocks(scenario: Scenario, params: Params) -> Scenario:
    skipped = params["skipped"]

    def rows(op: Op, _: StepContext) -> Op:
        # scores are needed to know what to skip; exponents, values and their product are not
        half, left = 1.0 - skipped / 2.0, 1.0 - skipped
        fewer = op.having(
            flop=op.flop * half,
            executed=None if op.executed is None else op.executed * half,
            exponentials=op.exponentials * left,
            longest=op.longest * left,
            kv_read=op.kv_read * half,
        )
        # as many queries and heads as before: what is left of an exponential has more FLOP, as if heads were wider
        wider = half / left if left else 1.0
        if op.direction == "backward":
            return fewer.having(taken=computed(op) + wider * (seen(op) - computed(op)))
        made = computed(op) * wider
        return fewer.having(taken=made + half * (seen(op) - computed(op)) - fewer.kv_read, made=made)

    return scenario.with_edit(Edit("skip-softmax", each(is_attention, rows)))


def _window_copies(_: Scenario, __: Params) -> Edit:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        tower = ctx.model.tower
        if tower is None:
            return ops
        layers = sum(g.count for g in tower.stack.layers if _windowed(g.mixer))
        tokens = ctx.batch * visual_tokens(ctx.model, ctx.workload) * tower.merge
        size = 2.0 * tokens * tower.stack.hidden_size * ctx.activation
        copy = Op(
            f"{tower.modality} window partition and reverse",
            "attention",
            "copy",
            count=layers * ctx.runs,
            act_read=size,
            act_write=size,
            launches=2.0,
            formula="4 tokens hidden: windows copied out and back",
        )
        return [*ops, copy]

    return Edit("window-attn-inkernel", rows)


def _windowed(mixer: Mixer | None) -> bool:
    return isinstance(mixer, Attention) and mixer.kind == "bidirectional" and mixer.window is not None


def _has_windows(scenario: Scenario) -> str | None:
    tower = scenario.model.tower
    has = tower is not None and any(_windowed(g.mixer) for g in tower.stack.layers)
    return None if has else f"the tower of {scenario.model.name} attends within no windows"


def _in_fp8(scenario: Scenario, _: Params) -> Scenario:
    def rows(op: Op, _: StepContext) -> Op:
        share = PRECISIONS["fp8"].element_bytes / PRECISIONS[op.dtype].element_bytes
        return op.having(dtype="fp8", taken=seen(op) * share - op.kv_read, made=computed(op) * share)

    return scenario.with_edit(Edit("fp8-attn", each(is_attention, rows)))


def _attends_in_16_bits(scenario: Scenario) -> str | None:
    dtypes = scenario.workload.dtypes
    bits = max(PRECISIONS[dtypes.activations].bits, PRECISIONS[dtypes.kv].bits)
    return None if bits > 8 else "attention runs in 8 bits already"


_PROCESSING = only_in("train", "prefill")

ATTENTION_LEVERS: tuple[Lever, ...] = (
    Lever(
        "fa1",
        "IO-aware tiled attention",
        "kernel",
        "Without it scores and probabilities are written to HBM and read back, by three kernels, not one (F-4.3).",
        first_of(_PROCESSING, needs_attention),
        lack=_unfused_attention,
        memory_lever="dematerialize",
        excludes=("attn-bwd-recompute",),
    ),
    effort_lever(
        "fa2",
        "Second generation of tiled attention",
        "Without its work partition attention takes so many times as long; bytes and FLOP stay (expected time only).",
        is_attention,
        2.0,
        first_of(_PROCESSING, needs_attention, needs_nvidia(80)),
        memory_lever="dematerialize",
        excludes=KERNELS,
    ),
    effort_lever(
        "fa3",
        "Asynchronous attention for Hopper",
        "Without its asynchronous pipeline attention takes so many times as long (expected time only).",
        is_attention,
        1.75,
        first_of(_PROCESSING, needs_attention, needs_nvidia(90, 90)),
        memory_lever="dematerialize",
        excludes=KERNELS,
    ),
    effort_lever(
        "fa4",
        "Attention scheduled for Blackwell",
        "Without it attention takes so many times as long; the exponent unit is a roof of its own (F-3.5).",
        is_attention,
        1.3,
        first_of(_PROCESSING, needs_attention, needs_nvidia(100, 109)),
        memory_lever="dematerialize",
        excludes=KERNELS,
    ),
    Lever(
        "attn-varlen",
        "Attention over sequences of their own length",
        "kernel",
        "Without it attention also works on padding: at least 1 / (1 - padding) times the pairs and bytes.",
        first_of(_PROCESSING, needs_attention),
        lack=_padded_attention,
        memory_lever="pack",
        params=(Param("padding", 0.3, 0, 0.95, "share of the padded tokens that are padding"),),
        excludes=("length-bucketing", "token-budget", "seq-packing", "mm-packing"),
    ),
    Lever(
        "split-kv",
        "Cache split over thread blocks in decode",
        "kernel",
        "Without it batch x KV heads blocks read the cache, each at most twice a unit's share of the bandwidth"
        " (expected time only).",
        first_of(only_in("decode"), needs_attention),
        lack=_without_split,
        params=(Param("units", 132, 1, 4096, "compute units of the device", whole=True),),
        excludes=("flashinfer",),
    ),
    effort_lever(
        "flashinfer",
        "Load-balanced attention engine for paged caches",
        "Without its balanced plan attention over uneven sequences takes so many times as long (expected time only).",
        is_attention,
        1.3,
        first_of(only_in("prefill", "decode"), needs_attention),
        memory_lever="pack",
        excludes=DECODE_KERNELS,
    ),
    Lever(
        "cascade-prefix",
        "Shared prefix read once",
        "kernel",
        "The shared part of the cache is read once for the batch, each sequence's own part as before (F-5.4).",
        first_of(only_in("decode"), needs_full_attention, _serves_several),
        change=_shared_prefix,
        memory_lever="pack",
        params=(Param("share", 0.5, 0, 1, "share of each sequence's context that all have in common"),),
    ),
    Lever(
        "gqa-mqa",
        "Fewer KV heads",
        "algorithmic",
        "Key and value heads are replaced by so many; the cache shrinks in proportion (F-5.1).",
        first_of(needs_multi_head_attention, _has_more_kv_heads),
        change=_fewer_kv_heads,
        memory_lever="compress",
        params=(Param("kv_heads", 1, 1, 1024, "KV heads of a layer", whole=True),),
        excludes=FEWER_HEADS[1:],
    ),
    Lever(
        "mla",
        "Latent attention",
        "algorithmic",
        "Attention layers become latent ones: kv_rank + rope elements a token are cached, absorbed in decode (F-5.1)."
        " Their products are larger, and each tensor-parallel rank reads the whole latent: where few KV heads are"
        " cached it costs time.",
        needs_multi_head_attention,
        change=_latent,
        memory_lever="compress",
        params=(
            Param("kv_rank", 512, 16, 8192, "elements of the latent", whole=True),
            Param("rope", 64, 0, 512, "elements of the shared rotary key", whole=True),
        ),
        excludes=(*FEWER_HEADS[:1], "swa"),
    ),
    Lever(
        "swa",
        "Sliding windows",
        "algorithmic",
        "Layers see their last `window` keys only, except `full_share` of them (F-3.2, F-5.1).",
        first_of(needs_multi_head_attention, _has_full_layers),
        change=_windows,
        memory_lever="compress",
        params=(
            Param("window", 4096, 1, 2**20, "keys that a query sees", whole=True),
            Param("full_share", 0.0, 0, 1, "share of the layers that still see everything"),
        ),
    ),
    Lever(
        "nsa-block-sparse",
        "Trained block-sparse attention",
        "algorithmic",
        "Pairs and cache reads times the kept share, plus one compressed key a block that every query is scored with.",
        needs_full_attention,
        change=_kept_blocks,
        params=(
            Param("kept", 0.1, 0.001, 1, "share of the pairs that are kept"),
            Param("block", 64, 8, 1024, "tokens of a block", whole=True),
        ),
        excludes=("skip-softmax", "swa"),
    ),
    Lever(
        "window-attn-inkernel",
        "Windows of a picture without copies",
        "kernel",
        "Without it each windowed layer copies its tokens into windows and back: 4 tokens x hidden elements.",
        first_of(_PROCESSING, needs_pictures, _has_windows),
        lack=_window_copies,
        memory_lever="dematerialize",
    ),
    Lever(
        "attn-bwd-recompute",
        "Attention backward from its log-sum-exp",
        "kernel",
        "Without it probabilities are written in the forward pass, kept, and read in the backward pass (F-3.3).",
        first_of(only_in("train"), needs_attention),
        lack=_saved_probabilities,
        memory_lever="recompute",
        excludes=("fa1",),
    ),
    Lever(
        "fp8-attn",
        "Attention products in fp8",
        "kernel",
        "Scores and values run at the fp8 peak; what is read and written stays as it is. Over few keys measured fp8"
        " kernels lose a little.",
        first_of(only_in("prefill"), needs_attention, _attends_in_16_bits, needs_nvidia(89)),
        change=_in_fp8,
        memory_lever="compress",
    ),
    Lever(
        "skip-softmax",
        "Negligible blocks skipped after their scores",
        "algorithmic",
        "Skipped pairs need their score, but no exponent, no value and no second product; few keys may lose a little.",
        first_of(only_in("prefill", "decode"), needs_attention),
        change=_skipped_blocks,
        params=(Param("skipped", 0.5, 0, 0.99, "share of the pairs that are skipped"),),
        excludes=("nsa-block-sparse",),
    ),
)
"""Attention, in the order of the technique library."""
