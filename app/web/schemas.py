"""Bodies and answers of the catalogue and estimate calls, as the API's description shows them.

Answer models are documentation that the contract tests hold the code to: routes answer plain data, because checking
hundreds of rows again on the way out would cost more than computing them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.domain.moe_pipeline import Stage
from app.services.contracts import Contract, WorkloadBody


class Answer(BaseModel):
    """Answers may gain fields."""

    model_config = ConfigDict(extra="allow")


class Listing(Answer):
    next: Annotated[str | None, Field(description="Give it as `cursor` for the next page; null on the last one.")]
    total: Annotated[int, Field(description="How many there are on all pages.")]


# ---- estimates ------------------------------------------------------------------------------------------------------

Resource = Literal["compute", "hbm", "net", "launch", "sync", "imbalance"]


class ExpectedTime(Answer):
    time_s: float
    low_s: float
    high_s: float
    basis: str


class Terms(Answer):
    compute_s: float
    hbm_s: float
    net_s: float
    launch_s: float
    sync_s: float
    imbalance_s: float


class OpRow(Answer):
    """One operation: quantities of one execution on one device. Times `count`, they add up to the totals."""

    name: str
    stage: str
    count: float
    pipe: str | None
    dtype: str | None
    flop: float
    executed_flop: float
    hbm_bytes: float
    net_bytes: float
    tier: Literal["scale_up", "scale_out", "host"] | None
    launches: float
    time_s: float
    binding: Resource
    intensity_flop_per_byte: float | None


class MemoryObject(Answer):
    object: str
    bytes: float


class Memory(Answer):
    peak_bytes: float
    capacity_bytes: float | None
    fits: bool | None
    headroom_bytes: float | None
    objects: list[MemoryObject]


class Roof(Answer):
    roof: str
    name: str
    rate: float
    unit: str
    basis: str
    figure: str


class Source(Answer):
    read: str
    url: str | None
    note: str | None


class FigureSources(Answer):
    figure: str
    value: float
    unit: str
    sources: list[Source]


class Named(Answer):
    id: str
    name: str


class BoundAnswer(Answer):
    bound_s: Annotated[float, Field(description="Least time with everything overlapped.")]
    serial_bound_s: Annotated[float, Field(description="Least time with nothing overlapped.")]
    expected: ExpectedTime
    terms: Terms
    binding: Resource
    flop: float
    executed_flop: float
    model_flop: float
    hbm_bytes: float
    net_bytes: float
    launches: float
    intensity_flop_per_byte: float | None
    ridge_flop_per_byte: float | None
    tokens: float
    tokens_per_s: Annotated[float | None, Field(description="Null for a step that does not fit into memory.")]
    tokens_per_s_per_device: float | None
    devices: int
    ops: list[OpRow]
    memory: Memory
    roofs: list[Roof]
    ledger: list[dict[str, Any]]
    hardware: Named
    model: Named
    assumptions: list[str]
    sources: list[FigureSources]


class ThresholdCheck(Answer):
    value: int
    holds: bool
    first: float
    second: float
    bound_s: float
    memory_bytes: float
    fits: bool | None


class ThresholdRow(Answer):
    id: Literal["compute-bound", "kv-over-weights", "network-bound"]
    statement: str
    axis: Literal["batch", "context_len", "tp"]
    already: Annotated[bool, Field(description="It holds for the step as asked.")]
    from_: Annotated[int | None, Field(alias="from", description="The least value at which it holds; null for none.")]
    until: Annotated[int | None, Field(description="The last value of that run; null where it holds up to `highest`.")]
    again: Annotated[bool, Field(description="It holds once more further on.")]
    highest: int
    compares: list[str]
    unit: Literal["s", "B"]
    checks: list[ThresholdCheck]


class ThresholdsAnswer(Answer):
    thresholds: list[ThresholdRow]


class OpAnswer(Answer):
    bound_s: Annotated[float, Field(description="Operands cold in memory, results written to it.")]
    serial_bound_s: float
    repeated_bound_s: Annotated[
        float,
        Field(
            description="The bound of a call repeated on the same operands, as benchmarks do: up to a last-level cache "
            "of bytes may stay there from one call to the next. At most `bound_s`."
        ),
    ]
    expected: ExpectedTime
    terms: Terms
    binding: Resource
    flop: float
    executed_flop: float
    hbm_bytes: float
    net_bytes: float
    intensity_flop_per_byte: float | None
    ceilings_used: list[Roof]
    ops: list[OpRow]
    assumptions: list[str]
    sources: list[FigureSources]


class MemoryPart(Answer):
    part: str
    bytes: float


class MemoryObjectParts(MemoryObject):
    parts: list[MemoryPart]


class LeastMemory(Answer):
    peak_bytes: float
    fits: bool | None
    largest_batch: int | None


class LeverCosts(Answer):
    flop: float
    hbm_bytes: float
    net_bytes: float
    time_s: float
    serial_time_s: float
    expected_time_s: float


class MemoryLeverRow(Answer):
    id: str
    memory_lever: str | None
    saves_bytes: float
    costs: Annotated[LeverCosts, Field(description="Of one device and step; what a lever saves is negative.")]


class ModuleCosts(Answer):
    executed_flop: float
    hbm_bytes: float
    net_bytes: float
    host_bytes: Annotated[float, Field(description="Bytes over the host link, one way.")]
    host_time_s: Annotated[float | None, Field(description="Null where the profile states no host link.")]
    expected_time_s: float | None


class ModuleChoiceOut(Answer):
    """One module recomputed or kept on the host, against the same step without that choice."""

    module: str
    move: Literal["recompute", "offload"]
    label: str
    chosen: bool
    saves_bytes: float
    costs: ModuleCosts
    note: str


class StageMemoryOut(Answer):
    stage: int
    layers: int
    micro_batches_in_flight: float
    peak_bytes: float
    objects: list[MemoryObject]


class MemoryAnswer(Answer):
    objects: list[MemoryObjectParts]
    peak_bytes: Annotated[float, Field(description="The sum of the objects, the reserve included.")]
    capacity_bytes: float | None
    fits: bool | None
    headroom_bytes: float | None
    largest_batch: int | None
    least: Annotated[LeastMemory, Field(description="Without the reserve: what the bound counts.")]
    baseline_bytes: Annotated[float, Field(description="The peak before the first lever.")]
    levers: list[MemoryLeverRow]
    stages: list[StageMemoryOut]
    modules: list[ModuleChoiceOut]
    make_it_fit: dict[str, Any] | None
    bound_s: float
    expected: ExpectedTime
    devices: int
    hardware: Named
    model: Named
    assumptions: list[str]
    sources: list[FigureSources]


class MoeStageRow(Answer):
    """One stage of the expert layers, over a whole step of one device."""

    stage: Stage
    flop: float
    executed_flop: float
    hbm_bytes: float
    net_bytes: float
    net_bytes_by_tier: dict[str, float]
    launches: float
    time_s: float
    imbalance_s: Annotated[float, Field(description="What the busiest rank adds to the mean one.")]
    expected: ExpectedTime
    binding: Resource
    exposed_s: Annotated[float, Field(description="On the critical path at the asked level of overlap.")]
    exposed_share: float | None
    forward_s: float
    recompute_s: float
    backward_s: float


class ExpertLoadOut(Answer):
    """Token copies of one expert in one layer, expected."""

    mean: float
    p50: float
    p99: float
    max: float
    experts_touched: float
    imbalance: Annotated[float, Field(description="The busiest expert over the mean.")]
    random_floor: Annotated[float, Field(description="What random routing alone gives.")]
    rank_imbalance: Annotated[float, Field(description="The busiest rank over the mean: what costs time.")]
    capacity: float | None
    dropped: float
    padding: float


class WallsOut(Answer):
    memory_bytes: float
    capacity_bytes: float | None
    communication_s: float
    compute_s: float
    binding: Literal["memory", "communication", "compute"]


class LinkIntensityOut(Answer):
    flop_per_net_byte: float | None
    flop_per_copied_byte: float
    balance_point_by_tier: dict[str, float]


class MoeAnswer(Answer):
    stages: list[MoeStageRow]
    bound_s: Annotated[float, Field(description="Least time of the expert layers with everything overlapped.")]
    serial_bound_s: Annotated[float, Field(description="One stage after another on the busiest rank.")]
    expected: ExpectedTime
    binding: Resource
    layers: Annotated[float, Field(description="Expert layers that a device runs forward in a step.")]
    load: ExpertLoadOut
    exposed_communication_s: float
    overlap_levels: Annotated[dict[str, float], Field(description="Seconds at L0 to L3.")]
    contention: Annotated[float, Field(description="Share of the compute units that a hidden exchange occupies.")]
    slowed_s: Annotated[float, Field(description="What that adds at the asked level; it is in `overlap_levels`.")]
    exchange_slowed_s: Annotated[
        float, Field(description="What dispatch and combine take longer because so few units move less than a link.")
    ]
    walls: WallsOut
    intensity: LinkIntensityOut
    step: Annotated[dict[str, Any], Field(description="The whole step, as `POST /estimates/bound` answers it.")]
    layouts: list[dict[str, Any]] | None
    devices: int
    hardware: Named
    model: Named
    assumptions: list[str]
    sources: list[FigureSources]


class KvLayers(Answer):
    kind: Literal["full", "sliding", "chunked", "latent", "compressed", "index", "state", "cross", "shared"]
    layers: int
    kv_heads: int | None
    bytes_per_token: Annotated[float, Field(description="Of the whole model, for each token up to the window.")]
    bytes_per_sequence: Annotated[float, Field(description="Whatever the length: states and another input.")]
    window: int | None
    copies: Annotated[float, Field(description="How often the tensor-parallel group keeps each byte.")]


class KvDevice(Answer):
    payload_bytes: float
    paged_bytes: float
    shared_bytes: float
    allocated_bytes: float
    weights_bytes: float
    beside_bytes_per_sequence: Annotated[float, Field(description="Activations and logits while it decodes.")]
    available_bytes: Annotated[float | None, Field(description="Left for the cache after reserve and weights.")]


class KvLengths(Answer):
    mean: float
    p50: float
    p95: float
    max: float


class KvAnswer(Answer):
    bytes_per_token: float
    payload_bytes: float
    fragmentation_bytes: float
    page_table_bytes: float
    prefix_saved_bytes: float
    total_bytes: float
    paged_bytes: float
    shared_bytes: float
    allocated_bytes: Annotated[float, Field(description="Reserved in one piece for each sequence, at `reserved_len`.")]
    state_bytes: float
    per_device_bytes: float
    per_device: KvDevice
    by_layer_kind: list[KvLayers]
    copies: float
    sequences: float
    lengths: KvLengths
    devices: int
    max_batch: Annotated[int | None, Field(description="Such sequences in a replica; null without a capacity.")]
    max_batch_all_replicas: int | None
    max_context_len: Annotated[int | None, Field(description="At this batch; null without a capacity or an end.")]
    read_bytes_per_step: float
    read_s_per_step: float | None
    read_s_per_step_cascade: Annotated[float | None, Field(description="With the shared prefix read once for all.")]
    model: Named
    hardware: Named | None
    assumptions: list[str]
    sources: list[FigureSources]


# ---- catalogue ------------------------------------------------------------------------------------------------------


class Peak(Answer):
    flop_per_s: Annotated[dict[str, float], Field(description="Dense rate by precision.")] = {}
    memory_bandwidth_bytes_per_s: float | None = None
    exponentials_per_s: float | None = None


class Achievable(Answer):
    flop_per_s: dict[str, float] = {}
    memory_bandwidth_bytes_per_s: float | None = None
    l2_bandwidth_bytes_per_s: float | None = None
    scale_up_bus_bandwidth_bytes_per_s: float | None = None
    note: str | None = None


class LinkOut(Answer):
    name: str
    bandwidth_bytes_per_s: Annotated[float | None, Field(description="One way, per device.")] = None


class ProfileSource(Answer):
    fields: list[str]
    read: str
    url: str | None = None
    note: str | None = None


class Stamped(Answer):
    shipped: bool
    revision: Annotated[int | None, Field(description="Of a team's own entry: counts its edits from 1.")] = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class HardwareAnswer(Stamped):
    """A figure that nobody states is absent, never zero."""

    id: str
    name: str
    vendor: str
    peak: Peak = Peak()
    achievable: Achievable = Achievable()
    memory_bytes: float | None = None
    scale_up: LinkOut | None = None
    scale_out: LinkOut | None = None
    aliases: list[str]
    notes: list[str]
    sources: list[ProfileSource]
    copied_from: str | None = None


class HardwareList(Listing):
    items: list[HardwareAnswer]


class ModelSummary(Stamped):
    id: str
    name: str
    family: str | None
    kind: str
    release_year: int | None
    hf_id: str | None
    hidden_size: int
    num_layers: int
    vocab_size: int
    params_total: int | None
    params_active: int | None
    kv_bytes_per_token: Annotated[float | None, Field(description="In bf16; null without a growing cache.")]
    estimable: Annotated[bool, Field(description="Whether its layers can be turned into costs.")]
    aliases: list[str]


class ModelList(Listing):
    items: list[ModelSummary]


class ModelAnswer(Stamped):
    """The architecture as it was given, and what follows from it."""

    id: str
    name: str
    kind: str
    params_total: int | None
    params_active: int | None
    kv_bytes_per_token: float | None
    estimable: bool
    assumptions: Annotated[list[str], Field(description="Every default that was filled in.")]


class CopyBody(Contract):
    copy_of: Annotated[str, Field(min_length=1, max_length=200, description="Id or alias of the entry to copy.")]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    id: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class SavedWorkloadBody(Contract):
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
    workload: WorkloadBody = WorkloadBody()
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    revision: Annotated[int, Field(ge=1, le=2**53)] | None = None


class WorkloadAnswer(Answer):
    id: str
    name: str
    model: str | None
    workload: dict[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime


class WorkloadList(Listing):
    items: list[WorkloadAnswer]


class Format(Answer):
    id: str
    title: str
    tool: str
    make: Annotated[str, Field(description="How such a file is made: a command line, or a sentence.")]
    reads: Annotated[str, Field(description="What is read from it.")]
    streams: Annotated[bool, Field(description="Read piece by piece, up to the larger limit.")]
    tried_on_real_file: Annotated[
        bool, Field(description="False where only the tool's source or manual was at hand when its reader was written.")
    ]


class RefusedFormat(Answer):
    id: str
    title: str
    advice: str


class FormatList(Listing):
    items: list[Format]
    refused: Annotated[list[RefusedFormat], Field(description="Recognised and not read, with what to do instead.")]


# ---- techniques -----------------------------------------------------------------------------------------------------


class LeverParam(Answer):
    name: str
    default: float
    least: float
    most: float
    meaning: str
    whole: bool


class PublishedGain(Answer):
    figure: str
    conditions: str
    source: str
    url: str | None
    read: str


class TechniqueReference(Answer):
    title: str
    url: str | None


class TechniqueAnswer(Answer):
    id: str
    name: str
    also_called: Annotated[list[str], Field(description="Other names that people search by.")]
    family: str
    summary: str
    saves: list[str]
    memory_lever: str | None
    phases: list[str]
    architectures: list[str]
    gpu_generations: list[str]
    book_as: Literal["kernel", "communication", "runtime", "algorithmic"]
    hurts: Annotated[str, Field(description="When it costs more than it gains.")]
    gains: list[PublishedGain]
    references: Annotated[list[TechniqueReference], Field(description="Every document that the entry rests on.")]
    related: Annotated[list[str], Field(description="Ids of techniques to look at next.")]
    lever: Annotated[bool, Field(description="Whether `levers` of an estimate takes it.")]
    params: list[LeverParam]
    model: Annotated[str | None, Field(description="How an estimate models it, with the formula.")]
    ideal: Annotated[
        bool | None, Field(description="True where the bound has it already, so that a ledger starts without it.")
    ]
    excludes: list[str]
    members: list[str]
    no_lever: Annotated[str | None, Field(description="Why an estimate cannot apply it.")]


class TechniqueList(Listing):
    items: list[TechniqueAnswer]
