"""What is run: phase, shapes, precisions, layout. The defaults are those of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from app.domain.errors import InvalidInput
from app.domain.precision import PRECISIONS, precision
from app.domain.units import Bytes

Phase: TypeAlias = Literal["train", "prefill", "decode"]
Recompute: TypeAlias = Literal["none", "selective", "full"]
Optimizer: TypeAlias = Literal["adamw", "adamw8bit", "sgd", "none"]
LaunchMode: TypeAlias = Literal["graph", "eager"]
RoutingKind: TypeAlias = Literal["balanced", "random", "zipf", "histogram"]
Schedule: TypeAlias = Literal["gpipe", "1f1b", "zero_bubble", "dualpipe"]
ContextExchange: TypeAlias = Literal["ring", "all_to_all"]
Overlap: TypeAlias = Literal["none", "stream", "chunk", "tile"]
RecomputeModule: TypeAlias = Literal[
    "attention_core",
    "norms",
    "qkv_projection",
    "mla_up_projection",
    "state_mixer",
    "mlp_activation",
    "mlp",
    "moe_experts",
    "shared_experts",
    "moe_layer",
    "layer",
]
OffloadModule: TypeAlias = Literal["norms", "attention", "state_mixer", "mlp", "moe_experts", "layer"]
DispatchScheme: TypeAlias = Literal["hierarchical", "deduplicated", "all_to_all", "all_gather"]

MAX_TOKENS = 2**40
"""Bound on every count a workload carries, so that products stay finite and exact in a float."""


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Precision by object. `weights_bits` overrides the average bits of a stored weight (a quantised file's own)."""

    weights: str = "bf16"
    activations: str = "bf16"
    kv: str = "bf16"
    gradients: str = "bf16"
    optimizer: str = "fp32"
    communication: str = "bf16"
    weights_bits: float | None = None

    def bytes_of(self, what: str) -> Bytes:
        """Average bytes per element of `weights`, `activations`, `kv`, `gradients`, `optimizer`, `communication`."""
        if what == "weights" and self.weights_bits is not None:
            return self.weights_bits / 8
        return PRECISIONS[str(getattr(self, what))].element_bytes


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parallel degrees. Devices = tp * pp * dp * cp; ep and etp regroup the tp * cp * dp devices of one stage.

    `schedule` is the pipeline's (with `virtual_stages` above 1 it is interleaved), `context_exchange` how context
    parallelism moves keys and values.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    micro_batches: int = 1
    virtual_stages: int = 1
    nodes: int | None = None
    schedule: Schedule = "1f1b"
    context_exchange: ContextExchange = "ring"

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    @property
    def stage_copies(self) -> int:
        """Devices of a pipeline that hold the same stage, and so the stages that each of them holds: 2 in DualPipe."""
        return 2 if self.schedule == "dualpipe" and self.pp > 1 else 1


@dataclass(frozen=True, slots=True)
class Routing:
    kind: RoutingKind = "balanced"
    alpha: float = 1.0
    tokens_per_expert: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How tokens reach their experts and come back.

    `scheme`: `hierarchical` sends a token once to each node and on from there to each rank, `deduplicated` once to each
    rank, `all_to_all` once for each expert, `all_gather` everything to everybody (and sums back by reduce-scatter).
    `dtype` is the precision of dispatched tokens (None: the communication precision; results come back in that one).
    `node_limit` is the most nodes a token's experts may lie on. `capacity_factor` gives every expert the same number of
    rows, so many times the mean load; what exceeds it is dropped (None: nothing padded, nothing dropped).
    `replicas` counts further copies of the busiest experts of a layer, over all ranks.
    """

    scheme: DispatchScheme = "hierarchical"
    dtype: str | None = None
    node_limit: int | None = None
    capacity_factor: float | None = None
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Offload:
    """What lies in the host's memory: saved activations of some modules (`layer`: of all), optimizer state, parameters.

    `hidden` is the share of the transfers that runs behind the layers; only the expected time knows it.
    """

    activations: tuple[OffloadModule, ...] = ()
    optimizer: bool = False
    parameters: bool = False
    hidden: float = 0.9

    @property
    def any(self) -> bool:
        return bool(self.activations) or self.optimizer or self.parameters


@dataclass(frozen=True, slots=True)
class KvSettings:
    page_tokens: int = 16
    shared_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """One step of a model: `batch` sequences of `seq_len` new tokens on top of `context_len` cached ones each.

    In decode `seq_len` is 1 (or drafts + 1); in prefill and training it is the sequence. What only some models have:
    `visual_tokens` of a picture or sound among the new tokens of a sequence, `source_len` tokens of an encoder's input,
    `width` x `height` pixels and `frames` of what a denoiser makes (its tokens replace `seq_len`), and
    `prediction_modules` that predict further tokens. None takes the model's own default, which the answer states.
    """

    phase: Phase = "decode"
    batch: int = 1
    seq_len: int = 1
    context_len: int = 0
    dtypes: Dtypes = field(default_factory=Dtypes)
    parallel: Parallel = field(default_factory=Parallel)
    recompute: Recompute = "none"
    optimizer: Optimizer = "adamw"
    launch_mode: LaunchMode = "graph"
    routing: Routing = field(default_factory=Routing)
    kv: KvSettings = field(default_factory=KvSettings)
    overlap: Overlap = "none"
    visual_tokens: int | None = None
    source_len: int | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    prediction_modules: int = 0
    dispatch: Dispatch = field(default_factory=Dispatch)
    recompute_modules: tuple[RecomputeModule, ...] = ()
    offload: Offload = field(default_factory=Offload)

    def __post_init__(self) -> None:
        _one_of("phase", self.phase, _PHASES)
        _one_of("recompute", self.recompute, _RECOMPUTE)
        _one_of("optimizer", self.optimizer, _OPTIMIZERS)
        _one_of("launch_mode", self.launch_mode, _LAUNCH_MODES)
        _one_of("overlap", self.overlap, _OVERLAPS)
        _one_of("schedule", self.parallel.schedule, _SCHEDULES)
        _one_of("context_exchange", self.parallel.context_exchange, _CONTEXT_EXCHANGES)
        _count("batch", self.batch, least=1)
        _count("seq_len", self.seq_len, least=1)
        _count("context_len", self.context_len, least=0)
        _count("prediction_modules", self.prediction_modules, least=0)
        for name, least in (("visual_tokens", 0), ("source_len", 1), ("width", 1), ("height", 1), ("frames", 1)):
            value = getattr(self, name)
            if value is not None:
                _count(name, value, least)
        for name in ("weights", "activations", "kv", "gradients", "optimizer", "communication"):
            precision(getattr(self.dtypes, name), ("workload", "dtypes", name))
        for name in ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batches", "virtual_stages"):
            _count(f"parallel.{name}", getattr(self.parallel, name), least=1)
        _check_dispatch(self.dispatch)
        for place, module in enumerate(self.recompute_modules):
            _one_of(f"recompute_modules.{place}", module, get_args(RecomputeModule))
        for place, held in enumerate(self.offload.activations):
            _one_of(f"offload.activations.{place}", held, get_args(OffloadModule))
        if not 0 <= self.offload.hidden <= 1:
            raise InvalidInput(("workload", "offload", "hidden"), "must be between 0 and 1")
        if self.phase != "train":
            for named, loc in (
                (bool(self.recompute_modules), ("recompute_modules",)),
                (bool(self.offload.activations), ("offload", "activations")),
                (self.offload.optimizer, ("offload", "optimizer")),
            ):
                if named:
                    raise InvalidInput(("workload", *loc), f"only training keeps this: leave it out in {self.phase}")

    @property
    def recomputed(self) -> frozenset[str]:
        """Modules that run again in the backward pass: those of the level and those named one by one.

        A whole layer has every other module in it.
        """
        level: dict[str, frozenset[str]] = {"selective": frozenset({"attention_core"}), "full": frozenset({"layer"})}
        modules = level.get(self.recompute, frozenset()) | frozenset(self.recompute_modules)
        return frozenset({"layer"}) if "layer" in modules else modules

    @property
    def new_tokens(self) -> int:
        """Tokens processed by one step of one replica."""
        return self.batch * self.seq_len


# Taken apart once: a path of levers makes dozens of workloads.
_PHASES = get_args(Phase)
_RECOMPUTE = get_args(Recompute)
_OPTIMIZERS = get_args(Optimizer)
_LAUNCH_MODES = get_args(LaunchMode)
_OVERLAPS = get_args(Overlap)
_SCHEDULES = get_args(Schedule)
_CONTEXT_EXCHANGES = get_args(ContextExchange)
_DISPATCH_SCHEMES = get_args(DispatchScheme)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(("workload", *name.split(".")), f"unknown {name} {value!r}: use one of {', '.join(known)}")


def _check_dispatch(dispatch: Dispatch) -> None:
    _one_of("dispatch.scheme", dispatch.scheme, _DISPATCH_SCHEMES)
    if dispatch.dtype is not None:
        precision(dispatch.dtype, ("workload", "dispatch", "dtype"))
    if dispatch.node_limit is not None:
        _count("dispatch.node_limit", dispatch.node_limit, least=1)
        if dispatch.scheme == "all_gather":
            raise InvalidInput(("workload", "dispatch", "node_limit"), "an all-gather reaches every node: leave it out")
    if dispatch.capacity_factor is not None and not 0 < dispatch.capacity_factor <= 1000:
        raise InvalidInput(("workload", "dispatch", "capacity_factor"), "must be above 0 and at most 1000")
    _count("dispatch.replicas", dispatch.replicas, least=0)


def _count(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidInput(("workload", *name.split(".")), f"must be at least {least}, not {value}")
    if value > MAX_TOKENS:
        raise InvalidInput(("workload", *name.split(".")), f"must be at most {MAX_TOKENS}, not {value}")


def default_seq_len(phase: str) -> int:
    """New tokens per sequence where the caller gave none: 1 in decode, 4096 otherwise (the API's default)."""
    return 1 if phase == "decode" else 4096


PRESETS: Mapping[str, Mapping[str, int | str]] = {
    "chat decode": {"phase": "decode", "batch": 32, "seq_len": 1, "context_len": 2048},
    "long-context decode": {"phase": "decode", "batch": 8, "seq_len": 1, "context_len": 65536},
    "prefill 8K": {"phase": "prefill", "batch": 1, "seq_len": 8192, "context_len": 0},
    "pre-training": {"phase": "train", "batch": 1, "seq_len": 4096, "context_len": 0},
}
"""Starting points that the what-if lab offers."""
