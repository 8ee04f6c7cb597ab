"""Evidence for the decision trees: from the cost table of a step, from a measured run, and from other evidence.

Everything is a view of a bound, a memory use or a run that somebody else computed. Where a cost table only limits a
measured quantity (a share of the step cannot exceed what the bound leaves), the evidence says so, and settles only what
the limit proves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.domain.calibration import kernel_features
from app.domain.collectives import LinkModel, fastest_algorithm
from app.domain.cost import Op, Tier
from app.domain.decision_tree import Evidence, Limit, Value
from app.domain.errors import DomainError
from app.domain.inputs import visual_tokens
from app.domain.kernels import family_of
from app.domain.layout import Layout, layout_of
from app.domain.lower_bound import Bound
from app.domain.memory import MemoryUse
from app.domain.model import ModelSpec
from app.domain.moe_pipeline import EXCHANGES, OVERLAP_LEVELS, expert_load, first_experts, stage_of
from app.domain.overlap import exposed_forecast
from app.domain.routing import rank_skew
from app.domain.run import ParsedRun
from app.domain.run_analysis import BoundRow
from app.domain.thresholds import thresholds
from app.domain.units import Bytes, Seconds
from app.domain.workload import Routing, Workload

Known = dict[str, Evidence]
Keep = Callable[[Op], bool]
Kind = Literal["measured", "derived", "estimated", "user"]

STRENGTH: Mapping[str, int] = {"user": 0, "measured": 1, "derived": 2, "estimated": 3}
"""What a person states goes first, then what was measured, then what follows from it, then what is only computed."""

USUAL_RESERVE = 0.1
"""Share of a device's memory that serving engines leave free by default."""

HALF_FULL = 0.5
"""Use of the KV pool under which no request is preempted: a mean this low leaves room for its peaks (our judgement)."""

LARGE_ATTENTION = 0.4
STREAMS_WELL = 0.5
"""As the decode tree asks: attention is worth a question from this share of a step, and streams well from this share of
the bandwidth. A cache too small to fill both can only be read badly."""

KERNEL_SHARES: Mapping[str, tuple[str, ...]] = {
    "attn_share": ("attention",),
    "gemm_share": ("gemm", "grouped-gemm", "convolution"),
    "pointwise_share": ("norm", "elementwise"),
    "copy_share": ("copy",),
    "opt_share": ("optimizer",),
    "expert_gemm_share": ("grouped-gemm",),
    "scan_share": ("scan",),
}
"""Evidence that is the time of some families of kernels over the time of all."""


def strongest(*sources: Iterable[Evidence]) -> Known:
    """One value a name: of several the strongest kind, of equal kinds an exact value before a limit, then the first."""
    best: Known = {}
    for item in (item for source in sources for item in source):
        known = best.get(item.name)
        if known is None or _rank(item) < _rank(known):
            best[item.name] = item
    return best


def _rank(item: Evidence) -> tuple[int, int]:
    if item.limit:
        # a limit never hides a value, whoever says it
        return (len(STRENGTH) + STRENGTH[item.kind], 1)
    return (STRENGTH[item.kind], 0)


def _exact(known: Mapping[str, Evidence], name: str) -> float | None:
    item = known.get(name)
    if item is None or item.limit or isinstance(item.value, (bool, str)):
        return None
    return float(item.value)


_IDLE: tuple[str, ...] = ("launch_share", "sampling_share", "data_wait_share")
"""Shares of a step in which the device waits for its host."""


# ---- from other evidence -----------------------------------------------------------------------------------------


def with_derived(known: Mapping[str, Evidence]) -> Known:
    """The evidence with what follows from it. A value that is known is never replaced."""
    return strongest(known.values(), _derived(known))


def _derived(known: Mapping[str, Evidence]) -> Iterator[Evidence]:
    mfu, hfu, mbu = (_exact(known, name) for name in ("mfu", "hfu", "mbu"))
    reached = _exact(known, "achieved_of_bound")
    binding = known["binding"].value if "binding" in known else None

    def made(name: str, value: float, source: str, *of: str, limit: Limit = "") -> Evidence:
        weakest = max((known[one].kind for one in of), key=lambda kind: STRENGTH[kind])
        kind: Kind = "estimated" if weakest == "estimated" else "derived"
        return Evidence(name, value, kind, source, limit)

    if mfu is not None and hfu is not None and hfu > 0:
        yield made("recompute_share", max(0.0, 1.0 - mfu / hfu), "(HFU - MFU) / HFU", "mfu", "hfu")
    load, floor = _exact(known, "load_max_over_mean"), _exact(known, "load_floor")
    if load is not None and floor is not None and floor > 0:
        yield made(
            "skew", load / floor, "fullest over mean load / its random floor", "load_max_over_mean", "load_floor"
        )
    elif load is None and "skew" not in known and (high := _exact(known, "load_p99_over_mean")) is not None:
        # the fullest expert has at least as many
        yield made("load_max_over_mean", max(high, 1.0), "at least the p99", "load_p99_over_mean", limit="at_least")
        of, names = (floor, ("load_p99_over_mean", "load_floor")) if floor else (1.0, ("load_p99_over_mean",))
        source = "p99 over mean load / the random floor" + ("" if floor else ", which is not known and taken as 1")
        yield made("skew", high / of, source, *names, limit="at_least" if floor else "")
    elif load is not None:
        source = "fullest over mean load; the floor of random routing is not known and taken as 1, so this is the most"
        yield made("skew", load, source, "load_max_over_mean")
    if reached is not None and reached <= 1:
        if mbu is None and binding == "hbm":
            yield made("mbu", reached, "HBM binds, so MBU is the share of the bound", "achieved_of_bound")
        elif mbu is None and binding in ("compute", "net"):
            source = "HBM does not bind, so MBU is at most the share of the bound"
            yield made("mbu", reached, source, "achieved_of_bound", limit="at_most")
        left = 1.0 - reached
        source = "at most what the bound leaves of the step"
        for name in ("data_wait_share", "launch_share", "copy_share"):
            yield made(name, left, source, "achieved_of_bound", limit="at_most")
        if binding in ("compute", "hbm"):
            yield made("exposed_comm_share", left, source, "achieved_of_bound", limit="at_most")
            yield made("a2a_share", left, source, "achieved_of_bound", limit="at_most")
    elif reached is None and mfu is not None:
        # not from an MBU below 1: a counter of the device also counts bytes that need not move
        source = "the bound is at least the compute term (MFU)"
        yield made("achieved_of_bound", mfu, source, "mfu", limit="at_least")
    for name, words in (("hfu", "HFU"), ("mbu", "MBU")):
        over = _exact(known, name)
        if reached is None and over is not None and over > 1:
            yield made(
                "achieved_of_bound", over, f"{words} is above 1, which no device reaches", name, limit="at_least"
            )
    idle = [(value, name) for name in _IDLE if (value := _exact(known, name)) is not None and 0 < value <= 1]
    if mbu is None and idle:
        share, name = max(idle)
        source = f"nothing moves while the device waits ({name})"
        yield made("mbu", 1.0 - share, source, name, limit="at_most")
    yield from _streaming(known, mbu, made)
    pool = _exact(known, "kv_pool_use")
    if pool is not None and pool < HALF_FULL:
        source = "a KV pool that is less than half full preempts nobody"
        yield made("preemptions_per_min", 0.0, source, "kv_pool_use")
    yield from _parts_of_a_generation(known, made)
    beside = [value for name in _PARTS if (value := _exact(known, name)) is not None]
    if beside:
        parts = [name for name in _PARTS if name in known]
        whole = len(beside) == len(_PARTS)
        source = "what VAE and text leave" if whole else "at most what VAE or text leaves"
        yield made("denoise_share", max(1.0 - sum(beside), 0.0), source, *parts, limit="" if whole else "at_most")
    gemm_share = _exact(known, "gemm_share")
    if mfu is not None and gemm_share:
        source = "MFU over the share of the products: the rate while they run"
        yield made("gemm_of_peak", min(mfu / gemm_share, 1.0), source, "mfu", "gemm_share")
    elif mfu is not None:
        yield made("gemm_of_peak", mfu, "at least MFU, which counts the whole step", "mfu", limit="at_least")
    a2a, exposed = _exact(known, "a2a_share"), _exact(known, "exposed_comm_share")
    if exposed is None and a2a is not None:
        source = "at least the exposed all-to-all"
        yield made("exposed_comm_share", a2a, source, "a2a_share", limit="at_least")
    if a2a is None and exposed is not None:
        spread = "ep_spans_nodes" in known and known["ep_spans_nodes"].value is True
        source = "all exposed communication, taken as all-to-all since the experts spread beyond one domain"
        if spread:
            yield made("a2a_share", exposed, source, "exposed_comm_share", "ep_spans_nodes")
        else:
            yield made("a2a_share", exposed, "at most all exposed communication", "exposed_comm_share", limit="at_most")
    if exposed is not None and not a2a:
        source = "exposed communication, which in a dense decode step is the tensor-parallel sums"
        yield made("tp_latency_share", exposed, source, "exposed_comm_share")
    devices = _exact(known, "devices")
    if devices == 1:
        for name in ("exposed_comm_share", "a2a_share", "tp_latency_share", "bubble_share"):
            yield made(name, 0.0, "one device", "devices")
        yield made("rank_token_max_over_mean", 1.0, "one device", "devices")


_PARTS: Mapping[str, str] = {"vae_share": "text_share", "text_share": "vae_share"}
"""What a generation has beside its denoiser: each part, and the other one."""


def _parts_of_a_generation(known: Mapping[str, Evidence], made: Callable[..., Evidence]) -> Iterator[Evidence]:
    """The part beside the denoiser that nobody stated: what the others leave, where they are known."""
    denoiser = _exact(known, "denoise_share")
    for name, other in _PARTS.items():
        share = _exact(known, other)
        if _exact(known, name) is not None or share is None:
            continue
        if denoiser is not None:
            source = "what the denoiser and the other part leave"
            yield made(name, max(1.0 - denoiser - share, 0.0), source, "denoise_share", other)
        else:
            yield made(name, max(1.0 - share, 0.0), "at most what the other part leaves", other, limit="at_most")


def _streaming(known: Mapping[str, Evidence], mbu: float | None, made: Callable[..., Evidence]) -> Iterator[Evidence]:
    """How long the attention of a decode step must take for its cache, and how well it streams it."""
    cached, attention = _exact(known, "kv_byte_share"), _exact(known, "attn_share")
    if mbu is None or mbu > 1:
        return
    if cached is not None:
        floor = mbu * cached
        source = "at least the time in which HBM can deliver the cache: MBU x KV share of the bytes"
        yield made("attn_share", floor, source, "mbu", "kv_byte_share", limit="at_least")
        if attention:
            source = "MBU x KV share of the bytes / attention share"
            yield made("attn_stream", min(floor / attention, 1.5), source, "mbu", "kv_byte_share", "attn_share")
        elif floor < LARGE_ATTENTION * STREAMS_WELL:
            source = "at most: the cache in the least time that makes attention worth asking about"
            yield made("attn_stream", floor / LARGE_ATTENTION, source, "mbu", "kv_byte_share", limit="at_most")
        else:
            # the weights are read beside it, not behind it
            least = floor / (1.0 - mbu * (1.0 - cached)) if mbu * (1.0 - cached) < 1.0 else floor
            source = "at least: the cache in all the time that the weights leave"
            yield made("attn_stream", min(least, 1.0), source, "mbu", "kv_byte_share", limit="at_least")
    elif attention:
        source = "at most: all bytes of the step in the time of attention"
        yield made("attn_stream", min(mbu / attention, 1.5), source, "mbu", "attn_share", limit="at_most")


# ---- from a cost table --------------------------------------------------------------------------------------------


def _estimated(name: str, value: Value, source: str, limit: Limit = "") -> Evidence:
    return Evidence(name, value, "estimated", source, limit)


@dataclass(frozen=True, slots=True)
class Sums:
    """The tensor-parallel all-reduces of a decode step: how many, of how many bytes, and the time of each."""

    count: float
    size: Bytes
    each: Seconds

    @property
    def time(self) -> Seconds:
        return self.count * self.each


NO_SUMS = Sums(0.0, 0.0, 0.0)


def all_reduces(
    bound: Bound,
    model: ModelSpec,
    workload: Workload,
    links: Mapping[Tier, LinkModel],
    ranks_per_node: int,
) -> Sums | None:
    """A decode step's tensor-parallel sums by the alpha-beta model of the links (F-7.3); None where that is unknown."""
    tp = workload.parallel.tp
    if workload.phase != "decode":
        return None
    if tp == 1:
        return NO_SUMS
    if "scale_up" not in links or (tp > ranks_per_node and "scale_out" not in links):
        return None
    count = _column(bound, "launches", lambda op: op.kind == "collective" and "all-reduce" in op.name)
    size = workload.batch * workload.seq_len * model.hidden_size * workload.dtypes.bytes_of("communication")
    reduces = bound.ceilings.in_switch_reduction
    _, each = fastest_algorithm("all_reduce", size, tp, ranks_per_node, links, reduces)
    return Sums(count, size, each) if count else None


def all_reduce_share(sums: Sums | None, step: Seconds) -> Iterator[Evidence]:
    """Their time over a step that has them in it."""
    if sums is None or step <= 0:
        return
    if not sums.count:
        yield _estimated("tp_latency_share", 0.0, "no tensor parallelism")
        return
    source = f"{sums.count:,.0f} all-reduces of {sums.size:,.0f} bytes at {sums.each * 1e6:.3g} us, over the step"
    yield _estimated("tp_latency_share", min(sums.time / step, 1.0), source)


def of_bound(
    bound: Bound,
    model: ModelSpec,
    workload: Workload,
    memory: MemoryUse,
    ranks_per_node: int,
    *,
    ran: bool = False,
) -> Iterator[Evidence]:
    """What the rows and the layout say, whatever was measured. Never raises for what a model lacks.

    `ran` is a step that did run, and so fitted, whatever its computed memory says.
    """
    terms = {name: float(bound.terms[name]) for name in ("compute", "hbm", "net")}
    ranked = sorted(terms, key=lambda name: -terms[name])

    yield _estimated("binding", ranked[0], "largest term of the bound")
    if terms[ranked[0]] > 0:
        yield _estimated("second_ratio", terms[ranked[1]] / terms[ranked[0]], "second over largest term of the bound")
    parallel = workload.parallel
    yield _estimated("devices", float(parallel.devices), "the layout")
    if model.is_moe or parallel.ep > 1:
        far = parallel.ep * parallel.etp > ranks_per_node
        yield _estimated("ep_spans_nodes", far, f"EP x ETP = {parallel.ep * parallel.etp}, {ranks_per_node} a domain")
    if parallel.pp == 1:
        yield _estimated("bubble_share", 0.0, "one pipeline stage")
    elif bound.table.bubble:
        yield _estimated("bubble_share", bound.table.bubble / (1.0 + bound.table.bubble), "the schedule, equal stages")
    yield from _memory(memory, workload, ran=ran)
    if workload.phase == "decode":
        yield from _decode(bound, model, workload, ranks_per_node)
    if workload.phase == "train":
        executed = bound.total("executed")
        again = _column(bound, "executed", lambda op: op.direction == "recompute")
        yield _estimated("recompute_share", again / executed if executed else 0.0, "recomputed over executed FLOP")
    else:
        for name in ("recompute_share", "opt_share"):
            yield _estimated(name, 0.0, f"no training: a {workload.phase} step")
    if model.is_moe:
        yield from _experts(model, workload, ranks_per_node)
    seen = float(visual_tokens(model, workload)) if model.tower is not None and workload.phase != "decode" else 0.0
    if seen:
        whole = float(workload.batch * workload.seq_len)
        yield _estimated("visual_token_share", min(seen / whole, 1.0), "visual over all tokens of the prompt")
    features = kernel_features(bound)
    binding = bound.op_binding()
    products = np.array([op.kind == "gemm" for op in bound.table.ops])
    computed = products & np.array([name == "compute" for name in binding])
    spent = bound.op_time * bound.table["count"]
    weight = computed * spent
    # products that stream their weights are as fast as these come, however their tiles fall
    if float(weight.sum()) > 0.5 * float((products * spent).sum()):
        share = float((features.utilisation * weight).sum() / weight.sum())
        source = "tiles of 128 over whole waves, weighted by time, of products that compute binds"
        yield _estimated("wave_eff", share, source)


def _memory(memory: MemoryUse, workload: Workload, *, ran: bool) -> Iterator[Evidence]:
    objects = memory.objects
    states = sum(objects.get(name, 0.0) for name in ("parameters", "gradients", "optimizer"))
    if memory.peak > 0:
        yield _estimated(
            "act_ratio", objects.get("activations", 0.0) / memory.peak, "activations over the computed peak"
        )
    if not memory.capacity or (ran and memory.peak > memory.capacity):
        return
    yield _estimated("logits_ratio", objects.get("logits", 0.0) / memory.capacity, "logits over the device's memory")
    yield _estimated("state_ratio", states / memory.capacity, "states over the device's memory")
    yield _estimated(
        "mem_peak_ratio", memory.peak / memory.capacity, "least bytes over the device's memory", "at_least"
    )
    pool = memory.capacity * (1.0 - USUAL_RESERVE) - states
    if workload.phase == "decode" and pool > 0:
        used = min(objects.get("kv_cache", 0.0) / pool, 1.0)
        source = f"KV bytes over what weights and a reserve of {USUAL_RESERVE:.0%} leave"
        yield _estimated("kv_pool_use", used, source)


def _decode(bound: Bound, model: ModelSpec, workload: Workload, ranks_per_node: int) -> Iterator[Evidence]:
    kv, weights = bound.total("kv_read"), bound.total("weights")
    if kv + weights > 0:
        yield _estimated("kv_byte_share", kv / (kv + weights), "KV over KV and weight bytes of a step")
    try:
        found = thresholds(model, workload, bound.ceilings, ranks_per_node, only=("compute-bound",))
    except DomainError:
        return
    for item in found:
        if item.value is not None:
            source = f"batch {workload.batch:,} over the critical batch {item.value:,}"
            yield _estimated("batch_over_critical", workload.batch / item.value, source)
        else:
            source = f"compute binds at no batch up to {item.highest:,}"
            yield _estimated("batch_over_critical", workload.batch / item.highest, source, "at_most")


def _experts(model: ModelSpec, workload: Workload, ranks_per_node: int) -> Iterator[Evidence]:
    try:
        layout: Layout = layout_of(model, workload, ranks_per_node)
        moe = first_experts(model)
        load = expert_load(moe, workload, layout)
    except DomainError:
        return
    copies = load.tokens * load.top_k
    if load.experts_touched > 0:
        yield _estimated("tokens_per_touched_expert", copies / load.experts_touched, "assignments over touched experts")
    noise = float(rank_skew(Routing(kind="random"), copies, moe.experts, layout.ep, top_k=moe.top_k))
    floor = 1.0 + noise if layout.ep > 1 else load.floor
    yield _estimated("load_floor", floor, f"random routing, {'ranks' if layout.ep > 1 else 'experts'} of one layer")
    if workload.routing.kind != "balanced":
        value = load.rank_imbalance if layout.ep > 1 else load.imbalance
        yield _estimated("load_max_over_mean", value, f"{workload.routing.kind} routing as stated")
    tile = 128 if workload.phase == "train" else 16
    rows = load.rows.get(tile)
    if rows:
        yield _estimated("tile_eff", min(copies / rows, 1.0), f"rows over those of tiles of {tile}")
    if load.capacity is not None:
        yield _estimated("drop_fraction", load.dropped, "capacity and routing as stated")


def _column(bound: Bound, name: str, keep: Keep) -> float:
    values = bound.table[name] * bound.table["count"]
    return math.fsum(value for op, value in zip(bound.table.ops, values.tolist(), strict=True) if keep(op))


def step_of(bound: Bound, workload: Workload, host: Seconds, sums: Sums | None) -> Seconds:
    """The time that an estimate is walked at: its bound, what launching one by one adds, and the latency of a decode
    step's all-reduces that the asked overlap leaves."""
    exposed = (
        0.0 if sums is None else exposed_forecast(sums.time, float(bound.overlapped), OVERLAP_LEVELS[workload.overlap])
    )
    return float(bound.overlapped) + host + exposed


def of_estimate(
    bound: Bound, workload: Workload, memory: MemoryUse, host: Seconds, step: Seconds
) -> Iterator[Evidence]:
    """An estimate walked at its bound: shares of the rows' least times, and what is exposed at the asked overlap.

    `host` is what launching one by one adds to the forecast, `step` the time of `step_of`. What a bound does not know
    (waiting for input, padding, schedulers) is taken as good, so that the walk ends at what the workload itself asks
    for.
    """
    if step <= 0:
        return
    for name, value, source in _NOT_IN_A_BOUND:
        yield _estimated(name, value, source, "at_most" if value == 1.0 and name != "gemm_of_peak" else "")
    beside = (
        "" if step <= float(bound.overlapped) * (1.0 + 1e-9) else ", beside launches and the latency of all-reduces"
    )
    yield _estimated("achieved_of_bound", float(bound.overlapped) / step, f"an estimate is at its bound{beside}")
    launched = f"what launching one by one adds to the forecast, {host:.3g} s" if host else "graphs are replayed"
    yield _estimated("launch_share", host / step, launched)
    yield _estimated("mbu", min(bound.hbm_bytes / bound.ceilings.memory / step, 1.0), "HBM term over the bound")
    tensor = [op.dtype for op in bound.table.ops if op.pipe == "tensor"]
    if tensor:
        rate = max(bound.ceilings.flop_rate(dtype) for dtype in tensor)
        useful = _column(bound, "flop", lambda op: op.pipe == "tensor")
        yield _estimated("mfu", min(useful / rate / step, 1.0), "useful FLOP over the bound")
    if memory.capacity:
        yield _estimated("mem_peak_ratio", memory.peak / memory.capacity, "least bytes over the device's memory")
    level = OVERLAP_LEVELS[workload.overlap]
    net = float(bound.terms["net"])
    window = max(float(bound.terms["compute"]), float(bound.terms["hbm"]))
    spent = (bound.op_time * bound.table["count"]).tolist()
    total = math.fsum(spent)

    def picked(keep: Keep) -> Seconds:
        return math.fsum(time for op, time in zip(bound.table.ops, spent, strict=True) if keep(op))

    # what is exposed lengthens the step that it is a share of
    exposed = exposed_forecast(net, window, level)
    words = f"network term that overlap {level} leaves, over the step with it"
    yield _estimated("exposed_comm_share", exposed / (window + exposed) if window + exposed else 0.0, words)

    def share(name: str, keep: Keep) -> Evidence:
        source = "of the operations' least times, one after another"
        return _estimated(name, picked(keep) / total if total else 0.0, source)

    yield share("attn_share", lambda op: op.kind == "attention")
    yield share("gemm_share", lambda op: op.kind == "gemm")
    yield share("pointwise_share", _pointwise)
    yield share("copy_share", lambda op: op.kind == "copy" and op.stage != "moe")
    yield share("scan_share", lambda op: op.kind == "scan")
    if workload.phase == "train":
        yield share("opt_share", lambda op: op.direction == "optimizer")
    yield share("loss_share", lambda op: op.stage == "head")
    if any(op.stage == "tower" for op in bound.table.ops):
        yield share("encoder_share", lambda op: op.stage == "tower")
    if any(op.stage == "moe" for op in bound.table.ops):
        yield share("expert_gemm_share", lambda op: stage_of(op) in ("gemm1", "gemm2"))
        yield share("permute_share", lambda op: stage_of(op) in _ROUTING)
        left = exposed_forecast(picked(lambda op: stage_of(op) in EXCHANGES), window, level)
        words = f"dispatch and combine that overlap {level} leaves, over the step with them"
        yield _estimated("a2a_share", left / (window + left) if window + left else 0.0, words)
        if workload.routing.kind == "balanced":
            yield _estimated("load_max_over_mean", 1.0, "balanced routing as stated")
        if workload.dispatch.capacity_factor is None:
            yield _estimated("drop_fraction", 0.0, "no capacity is stated")


_NOT_IN_A_BOUND: tuple[tuple[str, Value, str], ...] = (
    ("data_wait_share", 0.0, "a bound does not wait for input"),
    ("wrong_dtype_share", 0.0, "the precisions are as stated"),
    ("padding_fraction", 0.0, "every token of the workload counts"),
    ("rank_token_max_over_mean", 1.0, "ranks are equal in the estimate"),
    ("comm_overlap_slowdown", 1.0, "a bound overlaps without contention"),
    ("gemm_of_peak", 1.0, "a bound runs products at their roof"),
    ("mem_frag", 0.0, "a bound counts no fragmentation"),
    ("sampling_share", 0.0, "no scheduler in the estimate"),
    ("queue_share_ttft", 0.0, "one step by itself has no queue"),
    ("itl_p99_over_p50", 1.0, "one step by itself"),
    ("preemptions_per_min", 0.0, "one step by itself"),
    ("preprocess_share", 0.0, "inputs are ready in the estimate"),
)
"""What a bound takes as good; any of them can be stated instead."""

DENOISER_ALONE: tuple[Evidence, ...] = tuple(
    _estimated(name, 0.0, "the estimate is of the denoiser alone") for name in ("vae_share", "text_share")
)
"""What an estimate of a denoiser leaves out of the generation; either can be stated instead."""


_ROUTING = ("router", "topk", "histogram", "permute", "unpermute")


def _pointwise(op: Op) -> bool:
    return op.kind == "elementwise" and stage_of(op) not in _ROUTING and op.direction != "optimizer"


# ---- from a measured run ------------------------------------------------------------------------------------------


def of_run(run: ParsedRun, names: Iterable[str]) -> Iterator[Evidence]:
    """What the file states, under the names of the trees, and what its statistics and kernels say."""
    wanted = set(names)

    def told(name: str, value: float, source: str, kind: Kind = "measured", limit: Limit = "") -> Evidence:
        return Evidence(name, value, kind, source, limit)

    for name, value in run.evidence.items():
        if name in wanted and math.isfinite(value):
            flag = name in ("ep_spans_nodes", "quality_recorded")
            yield Evidence(name, bool(value) if flag else float(value), "measured", "stated by the file")
    for name, of, words in (
        ("data_wait_share", "gpu_idle_share", "at most the time in which the device is idle"),
        ("mbu", "gpu_busy_share", "at most the time in which the device is busy"),
    ):
        limit = run.evidence.get(of)
        if limit is not None and 0 <= limit <= 1:
            yield told(name, float(limit), f"{words} ({of} of the file)", limit="at_most")
    for name in ("mfu", "hfu", "mbu"):
        share = run.value(name)
        if share is not None and 0 <= share <= 1.5:
            yield told(name, share, "reported by the file")
    for name, metric, high in (("step_p95_over_p50", "step_time_s", "p95"), ("itl_p99_over_p50", "itl_s", "p99")):
        top, middle = run.value(metric, high), run.value(metric, "p50")
        if top is not None and middle:
            yield told(name, max(top / middle, 1.0), f"{metric}.{high} over {metric}.p50")
    samples = [value for value in run.samples.get("step_time_s", ()) if value > 0]
    if len(samples) >= 20:
        p95, p50 = (float(np.percentile(samples, q)) for q in (95, 50))
        yield told("step_p95_over_p50", max(p95 / p50, 1.0), f"{len(samples):,} samples of step_time_s")
    for name in ("steps", "padding_fraction", "accept_rate", "cache_hit"):
        value = run.workload.extra.get({"steps": "diffusion_steps"}.get(name, name), run.workload.extra.get(name))
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            yield told(name, float(value), "stated by the file")
    goal = run.workload.extra.get("latency_goal", run.workload.extra.get("objective"))
    if goal in ("latency", "throughput", "capacity"):
        yield Evidence("latency_goal", str(goal), "measured", "stated by the file")
    if any("quality" in name or "accuracy" in name for name in (*run.evidence, *run.workload.extra)):
        yield Evidence("quality_recorded", True, "measured", "the file states a quality")
    yield from _kernels(run)


def _kernels(run: ParsedRun) -> Iterator[Evidence]:
    """Shares of kernel time by family: of the device's busy time, so at least those of the step where it waits."""
    spent: dict[str, float] = {}
    for kernel in run.kernels:
        time = kernel.get("time_s")
        if isinstance(time, (int, float)) and not isinstance(time, bool) and math.isfinite(time) and time > 0:
            family = kernel.get("family")
            known = family if isinstance(family, str) and family else family_of(str(kernel.get("name", "")))
            spent[known] = spent.get(known, 0.0) + float(time)
    total = math.fsum(spent.values())
    if total <= 0 or len(run.kernels) < 2:
        return
    for name, families in KERNEL_SHARES.items():
        picked = math.fsum(spent.get(family, 0.0) for family in families)
        source = f"{', '.join(families)} among {len(run.kernels):,} kernels of the file"
        yield Evidence(name, picked / total, "measured", source)


def of_row(row: BoundRow, run: ParsedRun, capacity: Bytes | None, host: Seconds = 0.0) -> Iterator[Evidence]:
    """What the distance from the bound says of a measured step. `host` is as for `of_estimate`."""
    measured = row.measured
    kind: Kind = "derived"
    yield Evidence("achieved_of_bound", row.of_bound, kind, f"bound over measured {row.what} step")
    if row.of_bound <= 1:
        yield Evidence("mbu", row.mbu, kind, "HBM bytes of the bound over the measured time and the bandwidth")
        if row.mfu is not None:
            yield Evidence("mfu", row.mfu, kind, f"useful FLOP over the measured time and the {row.mfu_precision} peak")
        floor = max(row.terms["compute"], row.terms["hbm"]) / measured
        source = "at most what compute and HBM leave of the measured step"
        for name in ("exposed_comm_share", "a2a_share"):
            yield Evidence(name, max(1.0 - floor, 0.0), kind, source, "at_most")
        if row.what == "prefill" and row.measured_from.startswith("ttft_s"):
            source = "at most what the bound of the prefill leaves of TTFT"
            yield Evidence("queue_share_ttft", max(1.0 - row.of_bound, 0.0), kind, source, "at_most")
    if row.what == "prefill" and not row.measured_from.startswith("ttft_s"):
        source = "a prefill was timed by itself"
        yield Evidence("queue_share_ttft", 0.0, kind, source)
        yield Evidence("itl_p99_over_p50", 1.0, kind, source)
    if host:
        source = "what launching one by one adds to the forecast, over the measured step"
        yield Evidence("launch_share", min(host / measured, 1.0), "estimated", source)
    elif run.workload.extra.get("launch_mode") == "graph":
        yield Evidence("launch_share", 0.0, "estimated", "the file says that graphs are replayed")
    for part in row.gap:
        share = _GAP_SHARES.get(part.term)
        if share is not None and part.time > 0 and share not in run.evidence:
            # prefills are taken at their bound, and so are a least
            limit: Limit = "at_least" if part.term == "prefill_interference" else ""
            source = f"gap to the bound: {part.basis}"
            yield Evidence(share, min(part.time / measured, 1.0), "derived", source, limit)
    peak = run.value("peak_memory_bytes") or run.value("peak_memory_bytes", "max")
    if peak is not None and capacity:
        yield Evidence("mem_peak_ratio", peak / capacity, "measured", "peak_memory_bytes over the device's memory")


_GAP_SHARES: Mapping[str, str] = {
    "queueing": "queue_share_ttft",
    "data_wait": "data_wait_share",
    "prefill_interference": "prefill_between_share",
}
"""Terms of a run's gap that are the evidence of a question."""
