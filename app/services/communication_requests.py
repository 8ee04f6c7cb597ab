"""Bodies of the calls about communication, as the HTTP API takes them and the page of the same questions asks them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.services.contracts import Contract, Degree, PrecisionName, Reference, Size, WorkloadBody

Duration = Annotated[float, Field(ge=0, le=1e6)]
Bytes = Annotated[float, Field(gt=0, le=2.0**60)]
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]


class LinksBody(Contract):
    """The alpha-beta model's own numbers. What is left out takes the defaults that the answer states."""

    scale_up_alpha_s: Annotated[float, Field(ge=0, le=1)] | None = None
    scale_out_alpha_s: Annotated[float, Field(ge=0, le=1)] | None = None
    efficiency: Annotated[float, Field(ge=0.01, le=1)] | None = None


class CollectiveRequest(Contract):
    hardware: Reference
    kind: CollectiveName = "all_reduce"
    bytes: Bytes
    ranks: Annotated[int, Field(ge=2, le=1_048_576)]
    ranks_per_node: Degree | None = None
    in_switch_reduction: bool | None = None
    algorithm: Literal["ring", "tree", "hierarchical", "in_switch"] | None = None
    links: LinksBody = LinksBody()
    sizes: Annotated[list[Bytes], Field(min_length=1, max_length=200)] | None = None
    ceilings: Literal["peak", "achievable"] = "peak"


class ProductBody(Contract):
    m: Size
    n: Size
    k: Size
    dtype: PrecisionName = "bf16"


class OverlapRequest(Contract):
    hardware: Reference
    gemm: ProductBody
    kind: Literal["all_reduce", "reduce_scatter", "all_gather"] = "reduce_scatter"
    ranks: Annotated[int, Field(ge=2, le=1_048_576)]
    ranks_per_node: Degree | None = None
    in_switch_reduction: bool | None = None
    chunks: Annotated[int, Field(ge=1, le=256)] | None = None
    launch_s: Annotated[float, Field(ge=0, le=1)] | None = None
    contention: Annotated[float, Field(ge=0, le=0.9)] | None = None
    communication_units: Annotated[int, Field(ge=0, le=4096)] | None = None
    links: LinksBody = LinksBody()


class ExposedRequest(Contract):
    """Either the three times, or a run whose evidence holds them; times given beside a run replace the run's."""

    run: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    step_s: Duration | None = None
    compute_only_s: Duration | None = None
    other_s: Duration | None = None
    streams_s: Annotated[list[Duration], Field(max_length=64)] | None = None


class ShardingRequest(Contract):
    hardware: Reference
    model: Reference
    workload: WorkloadBody
    prefetch: Annotated[int, Field(ge=0, le=64)] = 1
    links: LinksBody = LinksBody()


class PipelineRequest(Contract):
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe"] = "1f1b"
    stages: Annotated[int, Field(ge=1, le=256)]
    micro_batches: Annotated[int, Field(ge=1, le=4096)]
    virtual_stages: Annotated[int, Field(ge=1, le=64)] = 1
    forward_s: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    backward_s: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    weight_gradient_s: Duration | None = None
    hand_over_s: Duration = 0.0


class ContextParallelRequest(Contract):
    hardware: Reference
    model: Reference
    workload: WorkloadBody
    links: LinksBody = LinksBody()
