"""The expert layers of a step: stages, load, walls, links and other layouts of the same devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from app.catalog.calibration import load_calibration
from app.catalog.loader import load_catalog
from app.catalog.published import PublishedFigure, collective_units, published_experts
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.layout import Layout, layout_of
from app.domain.lower_bound import CeilingChoice
from app.domain.model import ModelSpec, MoeMlp
from app.domain.moe_pipeline import (
    EXCHANGES,
    OVERLAP_LEVELS,
    ExpertLoad,
    LinkIntensity,
    Pipeline,
    Walls,
    copy_intensity,
    exchanged_bytes,
    expert_flop,
    first_experts,
    link_intensities,
    nodes_of,
    pipeline,
    walls,
)
from app.domain.overlap import rate_of_units
from app.domain.workload import Parallel, Workload
from app.services import what_if
from app.services.communication_overlap import share_of_units, units_note
from app.services.context import Context
from app.services.contracts import BoundRequest, MoeRequest
from app.services.estimate import (
    BoundEstimate,
    bound_of,
    bound_on,
    estimate_bound,
    expected_json,
    sources_of,
    terms_json,
)
from app.services.page_state import address_of, communication_precision, step_dtypes
from app.services.references import own_names, parse_model, resolve_model
from app.services.what_if import WhatIf
from app.services.words import count_words, time_words

DEFAULT_HARDWARE = "nvidia-h800-sxm"
DEFAULT_MODEL = "deepseek-v3"
MAX_HISTOGRAM_TEXT = 12_000
"""Characters of a histogram in an address: browsers and proxies take some 16 KB."""

_LEVEL_NAMES = {level: name for name, level in OVERLAP_LEVELS.items()}


@dataclass(frozen=True, slots=True)
class MoeEstimate:
    """The expert layers of an estimated step. `step` is the answer of `POST /estimates/bound` to the same question."""

    step: BoundEstimate
    layout: Layout
    pipeline: Pipeline
    walls: Walls
    links: tuple[LinkIntensity, ...]
    copy_intensity: float
    ceilings: CeilingChoice = "peak"
    units: int = 0


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """Another layout of the same devices and tokens: its answer, or why it cannot be."""

    name: str
    parallel: Parallel
    batch: int
    found: MoeEstimate | None
    reason: str = ""


def bound_request(request: MoeRequest) -> BoundRequest:
    """The same question as a body of `POST /estimates/bound`: what the call names beside the workload goes into it."""
    workload = request.workload
    changes: dict[str, Any] = {}
    if request.capacity_factor is not None:
        changes["capacity_factor"] = request.capacity_factor
    if request.dispatch_dtype is not None:
        changes["dtype"] = request.dispatch_dtype
    if changes:
        workload = workload.model_copy(update={"dispatch": workload.dispatch.model_copy(update=changes)})
    if request.overlap is not None:
        workload = workload.model_copy(update={"overlap": _LEVEL_NAMES.get(request.overlap, request.overlap)})
    kept: dict[str, Any] = {name: getattr(request, name) for name in BoundRequest.model_fields}
    given = (request.model_fields_set & set(BoundRequest.model_fields)) | {"workload"}
    return BoundRequest.model_construct(given, **(kept | {"workload": workload}))


def estimate_moe(ctx: Context, request: MoeRequest) -> MoeEstimate:
    """Answer `POST /estimates/moe`. Raises as `estimate_bound` does, and InvalidInput for a model without experts."""
    first_experts(resolve_model(ctx, request.model)[0])
    return _layers_asked(estimate_bound(ctx, bound_request(request)), request)


def _layers_asked(step: BoundEstimate, request: MoeRequest) -> MoeEstimate:
    return expert_layers(step, request.ceilings, request.communication_units or 0)


def expert_layers(step: BoundEstimate, ceilings: CeilingChoice = "peak", units: int = 0) -> MoeEstimate:
    """The expert layers of an estimated step, whose exchanges take so many compute units (0: none is charged).

    Raises InvalidInput for a model without experts, or for more units than leave the experts any.
    """
    contention = share_of_units(step.hardware, units) if units else 0.0
    links = [rate for tier, rate in step.bound.ceilings.links.items() if tier != "host"]
    moved = rate_of_units(units, links, collective_units().curve) if links else math.inf
    moe = first_experts(step.model)
    layout = layout_of(step.model, step.workload, step.hardware.ranks_per_node)
    found = pipeline(step.bound, step.model, step.workload, layout, load_calibration(), contention, moved)
    dtype = step.workload.dtypes.activations
    return MoeEstimate(
        step=step,
        layout=layout,
        pipeline=found,
        walls=walls(found, step.memory.peak, step.memory.capacity),
        links=link_intensities(found, step.bound.ceilings, dtype),
        copy_intensity=copy_intensity(moe, step.workload.dtypes.bytes_of("communication")),
        ceilings=ceilings,
        units=units,
    )


# ---- other layouts of the same devices ------------------------------------------------------------------------------


def layout_choices(found: MoeEstimate) -> tuple[LayoutChoice, ...]:
    """The asked layout and its alternatives: same devices, same tokens of a step, same pipeline stages."""
    step = found.step
    asked, domain = step.workload.parallel, step.hardware.ranks_per_node
    ranks = asked.tp * asked.dp
    near = min(domain, ranks)
    experts = first_experts(step.model).experts
    wide = max((n for n in range(1, ranks + 1) if ranks % n == 0 and experts % n == 0), default=1)
    plain = replace(asked, etp=1, sequence_parallel=False)

    def spread(*, tp: int = 1, ep: int, etp: int = 1) -> Parallel:
        return replace(plain, tp=tp, dp=ranks // tp, ep=ep, etp=etp)

    wanted: list[tuple[str, Parallel]] = [("Asked", asked)]
    wanted.append(("Experts spread inside the node", spread(ep=near)))
    if wide > near:
        between = near * 4 if wide >= near * 8 else 0
        if between and wide % between == 0:
            wanted.append((f"Experts spread over {between // near} nodes", spread(ep=between)))
        wanted.append(("Experts spread over all ranks", spread(ep=wide)))
    if ranks % near == 0 and near > 1:
        rest = ranks // near
        across = max((n for n in range(1, rest + 1) if rest % n == 0 and experts % n == 0), default=1)
        wanted.append(("Each expert cut over the node, experts over nodes", spread(ep=across, etp=near)))
        wanted.append(("Tensor parallel node, experts follow it", spread(tp=near, ep=1)))
        wanted.append(("Folded: tensor parallel attention, experts over all ranks", spread(tp=near, ep=wide)))
    seen: set[tuple[int, ...]] = set()
    choices: list[LayoutChoice] = []
    for name, parallel in wanted:
        key = (parallel.tp, parallel.dp, parallel.ep, parallel.etp)
        if key in seen:
            continue
        seen.add(key)
        choices.append(_choice(found, name, parallel))
    return tuple(choices)


def _choice(found: MoeEstimate, name: str, parallel: Parallel) -> LayoutChoice:
    step = found.step
    asked = step.workload
    if parallel == asked.parallel:
        return LayoutChoice(name, parallel, asked.batch, found)
    sequences = asked.batch * asked.parallel.dp
    batch, left = divmod(sequences, parallel.dp)
    if left and asked.phase == "train" and sequences * asked.parallel.micro_batches % (asked.batch * parallel.dp) == 0:
        # a step of training keeps its sequences by fewer micro-batches
        micro = sequences * asked.parallel.micro_batches // (asked.batch * parallel.dp)
        parallel, batch, left = replace(parallel, micro_batches=micro), asked.batch, 0
    if left or not batch:
        reason = f"{sequences:,} sequences do not divide over {parallel.dp:,} replicas"
        return LayoutChoice(name, parallel, 0, None, reason)
    workload = replace(asked, parallel=parallel, batch=batch)
    if asked.dispatch.replicas % parallel.ep:
        workload = replace(workload, dispatch=replace(asked.dispatch, replicas=0))
    try:
        other = bound_of(step.hardware, step.model, workload, found.ceilings)
        return LayoutChoice(name, parallel, batch, expert_layers(other, found.ceilings, found.units))
    except (InvalidInput, MissingFigure) as error:
        reason = error.reason if isinstance(error, InvalidInput) else str(error)
        return LayoutChoice(name, parallel, batch, None, reason)


# ---- the answer in the API's shape ----------------------------------------------------------------------------------


def moe_json(found: MoeEstimate) -> dict[str, Any]:
    """Totals are those of one device and step over all its expert layers; the exposed time is that of the mean rank."""
    step, seen = found.step, found.pipeline
    bound = seen.bound
    return {
        "stages": stages_json(seen),
        "bound_s": float(bound.overlapped),
        "serial_bound_s": seen.serial,
        "expected": expected_json(seen.expected),
        "terms": terms_json(bound),
        "binding": bound.binding,
        "layers": seen.layers,
        "load": load_json(seen.load, found.layout),
        "overlap": seen.level,
        "exposed_communication_s": seen.exposed_communication,
        "overlap_levels": dict(seen.levels),
        "contention": seen.contention,
        "slowed_s": seen.slowed,
        "exchange_slowed_s": seen.exchange_slowed,
        "timeline": {
            level: [
                {"stage": b.stage, "lane": b.lane, "start_s": b.start, "end_s": b.end, "binding": b.binding}
                for b in bars
            ]
            for level, bars in seen.timelines.items()
        },
        "walls": {
            "memory_bytes": found.walls.memory,
            "capacity_bytes": found.walls.capacity,
            "communication_s": found.walls.communication,
            "compute_s": found.walls.compute,
            "binding": found.walls.binding,
        },
        "intensity": {
            "flop_per_net_byte": expert_flop(seen) / exchanged_bytes(seen) if exchanged_bytes(seen) else None,
            "flop_per_copied_byte": found.copy_intensity,
            "flop_per_net_byte_by_tier": {link.tier: link.intensity for link in found.links},
            "net_bytes_by_tier": {link.tier: link.net for link in found.links},
            "balance_point_by_tier": {link.tier: link.balance for link in found.links},
        },
        "step": {
            "bound_s": float(step.bound.overlapped),
            "serial_bound_s": float(step.bound.serial),
            "expected": expected_json(step.expected),
            "binding": step.bound.binding,
            "tokens": float(step.bound.table.tokens),
            "tokens_per_s": step.tokens_per_second,
            "fits": step.memory.fits,
        },
        "devices": int(float(step.bound.table.devices)),
        "hardware": {"id": step.hardware.id, "name": step.hardware.name},
        "model": {"id": step.model.id, "name": step.model.name},
        "assumptions": list(dict.fromkeys((*step.assumptions, *ASSUMPTIONS, *_contention_notes(found)))),
        "sources": sources_of(step.hardware, step.bound),
    }


ASSUMPTIONS: tuple[str, ...] = (
    "An exchange can hide behind the experts' products, their activation and the shared expert of the same direction: "
    "0, 30, 70 and 90 % of that time at L0 to L3, a judgement below published ceilings.",
    "Both tiers are driven at once: the slower one decides how long an exchange takes.",
    "Expected times of stages are fitted kernels one after another, without the factor of a whole step.",
)


def _contention_notes(found: MoeEstimate) -> tuple[str, ...]:
    if not found.units:
        return ("Kernels that communicate are not charged for the units they occupy.",)
    return (
        f"While an exchange is hidden, what hides it runs at {1 - found.pipeline.contention:.0%} of its speed: the "
        "exchange's kernels occupy the other compute units.",
        units_note(),
    )


def stages_json(seen: Pipeline) -> list[dict[str, Any]]:
    rows = []
    for stage in seen.stages:
        bound = stage.bound
        rows.append(
            {
                "stage": stage.stage,
                "flop": bound.total("flop"),
                "executed_flop": bound.total("executed"),
                "hbm_bytes": bound.hbm_bytes,
                "net_bytes": bound.net_bytes,
                "net_bytes_by_tier": dict(stage.net),
                "launches": bound.total("launches"),
                "time_s": stage.time,
                "imbalance_s": stage.imbalance,
                "expected": expected_json(stage.expected),
                "binding": stage.binding,
                "exposed_s": stage.exposed,
                "exposed_share": stage.exposed / stage.time if stage.time > 0 else None,
                "forward_s": stage.by_direction.get("forward", 0.0),
                "recompute_s": stage.by_direction.get("recompute", 0.0),
                "backward_s": stage.by_direction.get("backward", 0.0),
            }
        )
    return rows


def load_json(load: ExpertLoad, layout: Layout) -> dict[str, Any]:
    return {
        "tokens": load.tokens,
        "mean": load.mean,
        "p50": load.p50,
        "p99": load.p99,
        "max": load.maximum,
        "experts_touched": load.experts_touched,
        "imbalance": load.imbalance,
        "random_floor": load.floor,
        "rank_imbalance": load.rank_imbalance,
        "experts": load.experts,
        "top_k": load.top_k,
        "experts_per_rank": load.experts / layout.ep,
        "nodes": nodes_of(layout),
        "capacity": load.capacity,
        "dropped": load.dropped,
        "padding": load.padding,
        "tiles": [
            {"tile": tile, "rows": rows, "efficiency": load.mean * load.experts / rows if rows else None}
            for tile, rows in load.rows.items()
        ],
    }


def layouts_json(choices: tuple[LayoutChoice, ...]) -> list[dict[str, Any]]:
    rows = []
    for choice in choices:
        row: dict[str, Any] = {
            "name": choice.name,
            "parallel": {name: getattr(choice.parallel, name) for name in ("tp", "pp", "dp", "cp", "ep", "etp")},
            "batch": choice.batch,
            "micro_batches": choice.parallel.micro_batches,
            "reason": choice.reason or None,
        }
        if choice.found is not None:
            found = choice.found
            row |= {
                "serial_bound_s": found.pipeline.serial,
                "overlapped_s": found.pipeline.levels[found.pipeline.level],
                "communication_s": found.walls.communication,
                "compute_s": found.walls.compute,
                "exposed_communication_s": found.pipeline.exposed_communication,
                "memory_bytes": found.walls.memory,
                "capacity_bytes": found.walls.capacity,
                "binding": found.walls.binding,
                "tokens_per_s": found.step.tokens_per_second,
                "step_serial_bound_s": float(found.step.bound.serial),
            }
        rows.append(row)
    return rows


# ---- the page: a state that fits into an address, and its answer in words --------------------------------------------


@dataclass(frozen=True, slots=True)
class MoeState:
    """Everything the page's controls hold, each field one key of the address.

    `node_limit` and `capacity` are 0 where there is none; `dispatch` is the precision of dispatched tokens; `histogram`
    holds token counts by expert, parted by commas.
    """

    hardware: str = DEFAULT_HARDWARE
    model: str = DEFAULT_MODEL
    phase: str = "decode"
    batch: int = 128
    seq: int = 4096
    context: int = 4096
    weights: str = "fp8"
    activations: str = "fp8"
    kv: str = "bf16"
    tp: int = 1
    pp: int = 1
    dp: int = 64
    ep: int = 64
    etp: int = 1
    micro_batches: int = 1
    routing: str = "random"
    alpha: float = 0.5
    histogram: str = ""
    scheme: str = "hierarchical"
    dispatch: str = "fp8"
    node_limit: int = 4
    capacity: float = 0.0
    replicas: int = 0
    overlap: str = "stream"
    units: int = 0
    recompute: str = "none"
    zero: int = 1
    launch: str = "graph"
    ceilings: str = "peak"

    def query(self, **changes: Any) -> dict[str, str]:
        """The address of this state (with `changes`): only what differs from the defaults, in a fixed order."""
        return address_of(self, changes)

    def body(self) -> dict[str, Any]:
        """The same question as a body of `POST /estimates/bound`. Raises InvalidInput for an unreadable histogram."""
        train = self.phase == "train"
        dispatch: dict[str, Any] = {"scheme": self.scheme}
        if self.dispatch != communication_precision(self.activations):
            dispatch["dtype"] = self.dispatch
        if self.node_limit and self.scheme != "all_gather":
            dispatch["node_limit"] = self.node_limit
        if self.capacity:
            dispatch["capacity_factor"] = self.capacity
        if self.replicas:
            dispatch["replicas"] = self.replicas
        parallel: dict[str, Any] = {name: getattr(self, name) for name in ("tp", "pp", "dp", "ep", "etp")}
        if self.pp > 1 or train:
            parallel["micro_batches"] = self.micro_batches
        workload: dict[str, Any] = {
            "phase": self.phase,
            "batch": self.batch,
            "seq_len": 1 if self.phase == "decode" else self.seq,
            "context_len": 0 if train else self.context,
            "dtypes": step_dtypes(self.weights, self.activations, self.kv),
            "parallel": parallel,
            "launch_mode": self.launch,
            "routing": self._routing(),
            "dispatch": dispatch,
            "overlap": self.overlap,
        }
        if train:
            workload["recompute"] = self.recompute
            parallel["zero_stage"] = self.zero
        return {"hardware": self.hardware, "model": self.model, "workload": workload, "ceilings": self.ceilings}

    def _routing(self) -> dict[str, Any]:
        if self.routing == "zipf":
            return {"kind": "zipf", "alpha": self.alpha}
        if self.routing == "histogram":
            return {"kind": "histogram", "tokens_per_expert": read_histogram(self.histogram)}
        return {"kind": self.routing}


def state_of(request: MoeRequest, model: ModelSpec) -> MoeState | None:
    """The page's state that asks a request's question, or None where its controls cannot hold it.

    Raises InvalidInput for a histogram that its field cannot hold.
    """
    bound = bound_request(request)
    lab = what_if.nearest_state(bound, model)
    if lab is None:
        return None
    state = nearest_state(lab, bound.workload.to_domain(), request.communication_units or 0)
    return state if what_if.asks(BoundRequest.model_validate(state.body()), bound) else None


def nearest_state(lab: WhatIf, workload: Workload, units: int = 0) -> MoeState:
    """The page's state at a step: what its controls share with the lab's as they stand there, the rest as the workload
    has it."""
    names = (
        "hardware", "model", "phase", "batch", "seq", "weights", "activations", "kv", "tp", "pp", "dp", "ep", "etp",
        "micro_batches", "recompute", "launch", "ceilings",
    )  # fmt: skip
    dispatch, routing, plain, train = workload.dispatch, workload.routing, MoeState(), workload.phase == "train"
    return MoeState(
        **{name: getattr(lab, name) for name in names},
        context=plain.context if train else lab.context,
        zero=lab.zero if train else plain.zero,
        routing=routing.kind,
        alpha=routing.alpha,
        histogram=histogram_text(routing.tokens_per_expert),
        scheme=dispatch.scheme,
        dispatch=dispatch.dtype or workload.dtypes.communication,
        node_limit=dispatch.node_limit or 0,
        capacity=dispatch.capacity_factor or 0.0,
        replicas=dispatch.replicas,
        overlap=workload.overlap,
        units=units,
    )


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(MoeState))
"""Keys of the page's address, in the order of the controls."""

FIELD_OF_LOC: Mapping[tuple[str, ...], str] = {
    ("hardware",): "hardware",
    ("model",): "model",
    ("ceilings",): "ceilings",
    ("histogram",): "histogram",
    ("workload", "phase"): "phase",
    ("workload", "batch"): "batch",
    ("workload", "seq_len"): "seq",
    ("workload", "context_len"): "context",
    ("workload", "launch_mode"): "launch",
    ("workload", "overlap"): "overlap",
    ("communication_units",): "units",
    ("workload", "recompute"): "recompute",
    ("workload", "dtypes", "weights"): "weights",
    ("workload", "dtypes", "activations"): "activations",
    ("workload", "dtypes", "kv"): "kv",
    ("workload", "parallel", "tp"): "tp",
    ("workload", "parallel", "pp"): "pp",
    ("workload", "parallel", "dp"): "dp",
    ("workload", "parallel", "ep"): "ep",
    ("workload", "parallel", "etp"): "etp",
    ("workload", "parallel", "micro_batches"): "micro_batches",
    ("workload", "parallel", "zero_stage"): "zero",
    ("workload", "routing", "kind"): "routing",
    ("workload", "routing", "alpha"): "alpha",
    ("workload", "routing", "tokens_per_expert"): "histogram",
    ("workload", "dispatch", "scheme"): "scheme",
    ("workload", "dispatch", "dtype"): "dispatch",
    ("workload", "dispatch", "node_limit"): "node_limit",
    ("workload", "dispatch", "capacity_factor"): "capacity",
    ("workload", "dispatch", "replicas"): "replicas",
}
"""Where an error of the API's body belongs among the page's controls."""


def read_histogram(text: str) -> list[float]:
    """Token counts by expert as pasted: parted by commas, blanks or line breaks, brackets around them or not.

    Raises InvalidInput at `histogram`.
    """
    plain = text.strip().removeprefix("[").removesuffix("]")
    parts = [part for part in re.split(r"[\s,;]+", plain) if part]
    if not parts:
        raise InvalidInput(("histogram",), "paste one number of tokens for each expert")
    counts: list[float] = []
    for place, part in enumerate(parts):
        if not re.fullmatch(r"\d{1,15}(\.\d{0,6})?", part):
            raise InvalidInput(
                ("histogram",), f"entry {place + 1}, {part[:20]!r}, is not a number of tokens: write 0 or more"
            )
        counts.append(float(part))
    return counts


def histogram_text(counts: Sequence[float]) -> str:
    """Counts as an address holds them."""
    return ",".join(f"{count:.15g}" for count in counts)


@dataclass(frozen=True, slots=True)
class MoeAnswer:
    """What a state answers: the estimate, its sentences, other layouts, and the frozen question."""

    state: MoeState
    found: MoeEstimate
    layouts: tuple[LayoutChoice, ...]
    headline: str
    details: tuple[str, ...]
    request: Mapping[str, Any]
    bound_request: Mapping[str, Any]


def answer(ctx: Context, state: MoeState) -> MoeAnswer:
    """Evaluate a state of the page. Errors are those of `estimate_moe`."""
    body = state.body()
    asked = body | ({"communication_units": state.units} if state.units else {})
    found = estimate_moe(ctx, MoeRequest.model_validate(asked))
    return MoeAnswer(state, found, layout_choices(found), headline(found), details(found), asked, body)


def headline(found: MoeEstimate) -> str:
    """The answer in one sentence: the expert layers' time, and which wall the layout stands at."""
    seen, wall = found.pipeline, found.walls
    held = sum(group.count for group in found.step.model.layers if isinstance(group.mlp, MoeMlp))
    runs = f"{held:,} expert layers" if seen.layers == held else f"{_count(seen.layers)} runs of an expert layer"
    first = f"{runs} take at least {time_words(seen.serial)} one stage after another"
    if wall.binding == "memory" and wall.capacity is not None:
        over = (wall.memory - wall.capacity) / 2**30
        return f"{first}, but the step does not fit: {over:.3g} GiB too much on each device."
    if wall.communication <= 0:
        return f"{first}, all of it on the device: nothing is exchanged."
    links, device = f"{time_words(wall.communication)} of exchange", f"{time_words(wall.compute)} of work on the device"
    if wall.binding == "communication":
        return f"{first}, and links decide: {links} against {device}."
    return f"{first}, and the device decides: {device} against {links}."


def details(found: MoeEstimate) -> tuple[str, ...]:
    """What a reader asks next: what stays exposed, how uneven the load is, how full the tiles are."""
    seen, load = found.pipeline, found.pipeline.load
    sentences = []
    if found.walls.communication > 0:
        exchanged = sum(stage.time for stage in seen.stages if stage.stage in EXCHANGES)
        if exchanged > 0:
            sentences.append(
                f"At {seen.level} {time_words(seen.exposed_communication)} of dispatch and combine stay exposed, "
                f"{seen.exposed_communication / exchanged:.0%} of them."
            )
    extra = sum(stage.imbalance for stage in seen.stages)
    tail = f", which costs {time_words(extra)} a step" if extra > 0 else ""
    if load.imbalance > 1.0:
        sentences.append(
            f"The busiest of {load.experts:,} experts gets {load.imbalance:.3g} times the mean of "
            f"{count_words(load.mean)} tokens (random routing alone gives {load.floor:.3g})"
            + (f", the busiest rank {load.rank_imbalance:.3g} times{tail}." if load.rank_imbalance > 1.0005 else ".")
        )
    else:
        sentences.append(f"Each of {load.experts:,} experts gets {count_words(load.mean)} tokens a layer.")
    if load.capacity is not None:
        sentences.append(
            f"Capacity {load.capacity:,.0f} drops "
            + ("nothing" if load.dropped < 0.0005 else f"{load.dropped:.1%}")
            + f" and leaves {load.padding:.0%} padding."
        )
    if found.step.model.num_layers > 0:
        share = seen.serial / float(found.step.bound.serial) if float(found.step.bound.serial) else 0.0
        sentences.append(f"That is {share:.0%} of the step's serial bound.")
    return tuple(sentences)


def _count(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def lab_state(ctx: Context, found: MoeAnswer) -> WhatIf | None:
    """The what-if lab's state with the same step, dispatch as levers; None where the lab cannot ask the same."""
    body = {**found.bound_request, "workload": dict(found.bound_request["workload"])}
    dispatch = body["workload"].pop("dispatch")
    body["workload"].pop("overlap")  # the bound does not know it
    plain = what_if.state_of(BoundRequest.model_validate(body), found.found.step.model)
    levers: list[tuple[str, dict[str, float]]] = []
    if dispatch.get("dtype") == "fp8":
        levers.append(("fp8-dispatch", {}))
    if "node_limit" in dispatch:
        levers.append(("node-limited-routing", {"nodes": float(dispatch["node_limit"])}))
    if dispatch.get("replicas"):
        levers.append(("expert-replication", {"copies": float(dispatch["replicas"])}))
    if plain is None:
        return None
    state = plain.with_levers(levers)
    try:
        same = estimate_bound(ctx, state.request(found.found.step.model))
    except (InvalidInput, MissingFigure):
        return None
    return state if same.workload == replace(found.found.step.workload, overlap="none") else None


# ---- published figures beside their bounds ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A published figure with the bound of the same question, in seconds of one exchange or tokens/s of a device."""

    figure: PublishedFigure
    measured: float
    bound: float
    unit: str

    @property
    def share(self) -> float:
        """What was reached of the bound: at most 1."""
        return self.bound / self.measured if self.unit == "s" else self.measured / self.bound


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Published figures about experts with their bounds. They ask of shipped entries, or of models in full."""
    rows, shipped = [], load_catalog()
    for figure in published_experts()[0]:
        request = MoeRequest.model_validate(figure.request)
        hardware = shipped.hardware[str(request.hardware)]
        asked = request.model
        model = shipped.models[asked] if isinstance(asked, str) else parse_model(asked).model
        found = _layers_asked(bound_on(hardware, model, bound_request(request)), request)
        if figure.seconds is not None:
            stage = next(cost for cost in found.pipeline.stages if cost.stage == figure.stage)
            rows.append(PublishedRow(figure, figure.seconds, stage.time / found.pipeline.layers, "s"))
        elif figure.tokens_per_second_per_device is not None:
            step = found.step.bound
            most = float(step.table.tokens) / float(step.overlapped) / float(step.table.devices)
            rows.append(PublishedRow(figure, figure.tokens_per_second_per_device, most, "tokens/s"))
    return tuple(rows)


# ---- what the page's pickers offer -----------------------------------------------------------------------------------


def expert_models(ctx: Context) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Models with experts, by family; a team's own ones first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for model in ctx.catalog.models.values():
        if model.supported and model.is_moe:
            groups.setdefault(model.family or "Other", []).append((model.id, model.name))
    own = own_names(ctx)[1]
    shipped = tuple((name, tuple(items)) for name, items in groups.items())
    return (("Your own", own), *shipped) if own else shipped


PRESETS: Mapping[str, MoeState] = {
    "DeepSeek-V3 decode": MoeState(),
    "DeepSeek-V3 prefill": MoeState(
        hardware="nvidia-h100-sxm", phase="prefill", batch=4, context=0, dp=32, ep=32, overlap="chunk"
    ),
    "DeepSeek-V3 training": MoeState(
        hardware="nvidia-h100-sxm",
        phase="train",
        batch=1,
        weights="bf16",
        tp=2,
        pp=8,
        micro_batches=128,
        recompute="selective",
        overlap="chunk",
    ),
    "Mixtral on one node": MoeState(
        hardware="nvidia-h100-sxm",
        model="mixtral-8x7b",
        batch=32,
        context=2048,
        weights="bf16",
        activations="bf16",
        dispatch="bf16",
        dp=8,
        ep=8,
        node_limit=0,
        overlap="none",
    ),
}
"""Starting points of the page."""
