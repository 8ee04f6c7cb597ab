"""Bodies of the estimate calls, as the HTTP API takes them and as comparisons freeze them.

Strict: a wrong type, an unknown key or a number that is not finite is refused with its place. A field left out takes
the default written here, and `filled_defaults` lists it, because an estimate must say what was assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.domain import workload as w
from app.domain.single_op import values_lie_in_keys
from app.domain.workload import MAX_TOKENS, default_seq_len

Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Pixels = Annotated[int, Field(ge=1, le=1_048_576)]
Degree = Annotated[int, Field(ge=1, le=1_048_576)]
PrecisionName = Literal[
    "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4", "mxfp8", "mxfp4", "nvfp4"
]
Reference = Annotated[str, Field(min_length=1, max_length=200)] | dict[str, Any]
"""A catalogue id or alias, a team's own id, or the object itself."""


class Contract(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    def filled_defaults(self, prefix: str = "") -> Iterator[str]:
        """One sentence for each field that was left out and now has its default, nested objects included."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Contract):
                if name in self.model_fields_set:
                    yield from value.filled_defaults(f"{prefix}{name}.")
                else:
                    yield f"{prefix}{name} was not given: {value.defaults_in_words()}."
            elif name not in self.model_fields_set and field.default is not None and value != []:
                yield f"{prefix}{name} was not given: {_in_words(value)} is assumed."

    def defaults_in_words(self) -> str:
        return f"{self.in_words()} are assumed"

    def in_words(self) -> str:
        """The fields and their values in one line; what is left open or empty says nothing."""
        stated = {name: getattr(self, name) for name in type(self).model_fields}
        return ", ".join(f"{name} {_in_words(value)}" for name, value in stated.items() if value not in (None, []))


def _in_words(value: Any) -> str:
    if isinstance(value, Contract):
        return f"({value.in_words()})"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


class DtypesBody(Contract):
    weights: PrecisionName = "bf16"
    activations: PrecisionName = "bf16"
    kv: PrecisionName = "bf16"
    gradients: PrecisionName = "bf16"
    optimizer: PrecisionName = "fp32"
    communication: PrecisionName = "bf16"
    weights_bits: Annotated[float, Field(gt=0.1, le=64)] | None = None


class ParallelBody(Contract):
    tp: Degree = 1
    pp: Degree = 1
    dp: Degree = 1
    cp: Degree = 1
    ep: Degree = 1
    etp: Degree = 1
    sequence_parallel: bool = False
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    micro_batches: Degree = 1
    virtual_stages: Degree = 1
    nodes: Degree | None = None
    schedule: Annotated[
        Literal["gpipe", "1f1b", "zero_bubble", "dualpipe"],
        Field(
            description="Pipeline schedule; with `virtual_stages` above 1 1F1B is interleaved. `dualpipe` (training "
            "only) takes an even number of stages and of micro-batches, at least twice the stages, and holds two "
            "stages on each device."
        ),
    ] = "1f1b"
    context_exchange: Literal["ring", "all_to_all"] = "ring"


class RoutingBody(Contract):
    kind: Literal["balanced", "random", "zipf", "histogram"] = "balanced"
    alpha: Annotated[float, Field(ge=0, le=100)] = 1.0
    tokens_per_expert: Annotated[
        list[Annotated[float, Field(ge=0, le=float(MAX_TOKENS))]], Field(max_length=100_000)
    ] = Field(default_factory=list)


class DispatchBody(Contract):
    scheme: Literal["hierarchical", "deduplicated", "all_to_all", "all_gather"] = "hierarchical"
    dtype: PrecisionName | None = None
    node_limit: Degree | None = None
    capacity_factor: Annotated[float, Field(gt=0, le=1000)] | None = None
    replicas: Annotated[int, Field(ge=0, le=100_000)] = 0


class OffloadBody(Contract):
    """What lies in the host's memory. `layer` among the activations stands for everything that layers save."""

    activations: Annotated[list[w.OffloadModule], Field(max_length=20)] = Field(default_factory=list)
    optimizer: bool = False
    parameters: bool = False
    hidden: Annotated[float, Field(ge=0, le=1)] = 0.9

    def to_domain(self) -> w.Offload:
        return w.Offload(tuple(self.activations), self.optimizer, self.parameters, self.hidden)


class KvBody(Contract):
    page_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 16
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0


class WorkloadBody(Contract):
    phase: Literal["train", "prefill", "decode"] = "decode"
    batch: Count = 1
    seq_len: Count | None = None
    context_len: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    dtypes: DtypesBody = DtypesBody()
    parallel: ParallelBody = ParallelBody()
    recompute: Literal["none", "selective", "full"] = "none"
    optimizer: Literal["adamw", "adamw8bit", "sgd", "none"] = "adamw"
    launch_mode: Literal["graph", "eager"] = "graph"
    routing: RoutingBody = RoutingBody()
    kv: KvBody = KvBody()
    overlap: Literal["none", "stream", "chunk", "tile"] = "none"
    visual_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    source_len: Count | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    frames: Pixels | None = None
    prediction_modules: Annotated[int, Field(ge=0, le=64)] = 0
    dispatch: DispatchBody = DispatchBody()
    recompute_modules: Annotated[list[w.RecomputeModule], Field(max_length=20)] | None = None
    offload: OffloadBody | None = None

    def filled_defaults(self, prefix: str = "") -> Iterator[str]:
        if self.seq_len is None:
            yield f"{prefix}seq_len was not given: {default_seq_len(self.phase)} is assumed."
        training_only = {"recompute", "optimizer"} if self.phase != "train" else set()
        skipped = {
            f"{prefix}{name} was not given"
            for name in (*training_only, "routing", "overlap", "prediction_modules", "dispatch")
        }
        for sentence in super().filled_defaults(prefix):
            if sentence.split(":")[0] not in skipped:
                yield sentence

    def to_domain(self) -> w.Workload:
        """The workload itself. Raises InvalidInput for a combination that makes no sense."""
        routing = self.routing
        return w.Workload(
            phase=self.phase,
            batch=self.batch,
            seq_len=default_seq_len(self.phase) if self.seq_len is None else self.seq_len,
            context_len=self.context_len,
            dtypes=w.Dtypes(**self.dtypes.model_dump()),
            parallel=w.Parallel(**self.parallel.model_dump()),
            recompute=self.recompute,
            optimizer=self.optimizer,
            launch_mode=self.launch_mode,
            routing=w.Routing(routing.kind, routing.alpha, tuple(routing.tokens_per_expert)),
            kv=w.KvSettings(self.kv.page_tokens, self.kv.shared_prefix_tokens),
            overlap=self.overlap,
            visual_tokens=self.visual_tokens,
            source_len=self.source_len,
            width=self.width,
            height=self.height,
            frames=self.frames,
            prediction_modules=self.prediction_modules,
            dispatch=w.Dispatch(**self.dispatch.model_dump()),
            recompute_modules=tuple(self.recompute_modules or ()),
            offload=w.Offload() if self.offload is None else self.offload.to_domain(),
        )


class LeverBody(Contract):
    id: Annotated[str, Field(min_length=1, max_length=200)]
    params: dict[str, Any] = Field(default_factory=dict)


class BoundRequest(Contract):
    hardware: Reference
    model: Reference
    workload: WorkloadBody = WorkloadBody()
    levers: Annotated[list[str | LeverBody], Field(max_length=100)] = Field(default_factory=list)
    ceilings: Literal["peak", "achievable"] = "peak"


MAX_SEQUENCES = 100_000
"""Most lengths of one list."""


class KvRequest(Contract):
    """A batch of sequences whose cache is asked for: all of `context_len` tokens, or one length each in `sequences`, or
    as long as the requests of a stored `run` were when they ended (`batch` of them, or as many as it lists).

    `reserve_fraction` of a device's memory is left to graphs, workspace and the runtime. `reserved_len` is what a
    contiguous cache would reserve for each sequence: by default the longest context that the model states.
    `prediction_modules` of multi-token prediction keep a cache beside the model's own layers.
    """

    model: Reference
    hardware: Reference | None = None
    kv_dtype: PrecisionName = "bf16"
    weights_dtype: PrecisionName = "bf16"
    activations_dtype: PrecisionName = "bf16"
    page_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 16
    batch: Count = 1
    context_len: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    sequences: Annotated[list[Count], Field(min_length=1, max_length=MAX_SEQUENCES)] | None = None
    run: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    reserved_len: Count | None = None
    parallel: ParallelBody = ParallelBody()
    prediction_modules: Annotated[int, Field(ge=0, le=64)] = 0
    reserve_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    ceilings: Literal["peak", "achievable"] = "peak"


Size = Annotated[int, Field(ge=1, le=2**40)]


class GemmBody(Contract):
    op: Literal["gemm"]
    m: Size = 1
    n: Size
    k: Size
    dtype: PrecisionName = "bf16"
    batch: Size = 1
    groups: Annotated[list[Annotated[int, Field(ge=0, le=2**40)]], Field(min_length=1, max_length=100_000)] | None = (
        None
    )


class AttentionBody(Contract):
    op: Literal["attention"]
    batch: Size = 1
    seq_q: Size
    seq_kv: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    v_head_dim: Size | None = None
    values_in_keys: Annotated[
        bool | None,
        Field(
            description="Values are the first elements of the keys and are read with them, as in absorbed latent "
            "attention. Left out: where several query heads share one KV head whose values are narrower than its keys."
        ),
    ] = None
    causal: bool = True
    window: Size | None = None
    dtype: PrecisionName = "bf16"
    direction: Literal["fwd", "bwd", "fwd_bwd"] = "fwd"

    def filled_defaults(self, prefix: str = "") -> Iterator[str]:
        yield from super().filled_defaults(prefix)
        if self.values_in_keys is None and values_lie_in_keys(
            self.heads, self.kv_heads, self.head_dim, self.v_head_dim
        ):
            yield f"{prefix}values_in_keys was not given: yes is assumed, as in absorbed latent attention."


class ElementwiseBody(Contract):
    op: Literal["elementwise"]
    elements: Size
    reads: Annotated[float, Field(ge=0, le=1000)] = 1.0
    writes: Annotated[float, Field(ge=0, le=1000)] = 1.0
    dtype: PrecisionName = "bf16"


class CollectiveBody(Contract):
    op: Literal["collective"]
    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
    bytes: Annotated[float, Field(gt=0, le=2.0**60)]
    ranks: Annotated[int, Field(ge=2, le=1_048_576)]
    ranks_per_node: Degree | None = None
    in_switch_reduction: bool | None = None
    algorithm: Literal["ring", "tree", "hierarchical"] | None = None


class OpRequest(Contract):
    hardware: Reference
    op: Annotated[GemmBody | AttentionBody | ElementwiseBody | CollectiveBody, Field(discriminator="op")]
    ceilings: Literal["peak", "achievable"] = "peak"


class ReserveBody(Contract):
    """What the software keeps beside the payload; a bound counts none of it."""

    fragmentation: Annotated[float, Field(ge=0, le=0.9)] = 0.05
    workspace_bytes: Annotated[float, Field(ge=0, le=2.0**50)] = 512 * 2.0**20
    bucket_bytes: Annotated[float, Field(ge=0, le=2.0**50)] = 25 * 2.0**20
    gathered_layers: Annotated[int, Field(ge=0, le=1024)] = 2


class MemoryRequest(BoundRequest):
    """The question of a bound, asked for what lies in memory; `make_it_fit` also searches for levers that do so."""

    reserve: ReserveBody = ReserveBody()
    make_it_fit: bool = False

    def bound(self) -> BoundRequest:
        """The same question as a body of `POST /estimates/bound`."""
        return BoundRequest.model_validate(self.model_dump(exclude={"reserve", "make_it_fit"}, exclude_unset=True))


class MoeRequest(BoundRequest):
    """The question of a bound, asked for its expert layers. What stands beside the workload replaces a field of it."""

    capacity_factor: Annotated[float, Field(gt=0, le=1000)] | None = None
    overlap: Literal["L0", "L1", "L2", "L3", "none", "stream", "chunk", "tile"] | None = None
    dispatch_dtype: PrecisionName | None = None
    communication_units: Annotated[int, Field(ge=0, le=4096)] | None = None
    layouts: bool = False
