"""Estimates of communication: collectives, overlap, exposed time, sharding, pipelines, context parallelism."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Response
from pydantic import Field

from app.services import communication_answers as answers
from app.services.communication import estimate_collective
from app.services.communication_layouts import estimate_context_parallel, estimate_pipeline, estimate_sharding
from app.services.communication_overlap import estimate_exposed, estimate_overlap
from app.services.communication_requests import (
    CollectiveRequest,
    ContextParallelRequest,
    ExposedRequest,
    OverlapRequest,
    PipelineRequest,
    ShardingRequest,
)
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import Answer, ExpectedTime, FigureSources, Named, Resource

router = APIRouter(prefix="/api/v1/estimates", tags=["estimates"])

Basis = Literal["assumed", "measured", "entered"]


class LinkAnswer(Answer):
    tier: Literal["scale_up", "scale_out"]
    name: str
    rate_bytes_per_s: float
    alpha_s: Annotated[float, Field(description="What a message takes to start.")]
    alpha_basis: Basis
    bandwidth_bytes_per_s: Annotated[float, Field(description="What large messages reach.")]
    bandwidth_basis: Basis


class SegmentAnswer(Answer):
    lane: str | int
    what: str
    index: int
    start_s: float
    end_s: float


class AlgorithmAnswer(Answer):
    algorithm: Literal["ring", "tree", "hierarchical", "in_switch"]
    available: bool
    reason: Annotated[str | None, Field(description="Why there is no such algorithm here.")]
    messages: Annotated[dict[str, int], Field(description="Messages one after another, by tier.")]
    sent_bytes: Annotated[dict[str, float], Field(description="Bytes of the busiest rank one way, by tier.")]
    time_s: float | None
    bus_bandwidth_bytes_per_s: float | None


class MeasuredAnswer(Answer):
    bytes: float
    ranks: int
    time_s: float
    bus_bandwidth_bytes_per_s: float
    name: str
    source: str
    url: str
    uploaded: bool


class CollectiveAnswer(Answer):
    bound_s: Annotated[float, Field(description="The same as that of `/estimates/op`.")]
    expected: ExpectedTime
    time_s: Annotated[float, Field(description="Alpha-beta time of the algorithm asked for, or of the fastest.")]
    algorithm: str
    algorithm_bandwidth_bytes_per_s: float | None
    bus_bandwidth_bytes_per_s: float | None
    binding: Resource
    net_bytes: float
    algorithms: list[AlgorithmAnswer]
    links: list[LinkAnswer]
    sizes: Annotated[list[dict[str, Any]], Field(description="Bound and algorithms over message sizes.")]
    measured: list[MeasuredAnswer]
    hardware: Named
    assumptions: list[str]
    sources: list[FigureSources]


class LevelAnswer(Answer):
    level: Literal["L0", "L1", "L2", "L3"]
    how: str
    chunks: int
    time_s: float
    exposed_s: float
    judged_exposed_s: Annotated[float, Field(description="Rest that a usual share of hiding leaves; a judgement.")]
    timeline: list[SegmentAnswer]


class OverlapAnswer(Answer):
    compute_s: float
    communication_s: float
    communication_bytes: float
    communication_units: Annotated[
        float | None, Field(description="Compute units of the exchange; 0 are copy engines, null is not known.")
    ]
    link_share: Annotated[
        float, Field(description="Share of the links' rate that those units reach: below 1 they slow the exchange.")
    ]
    compute_only_s: float
    best_chunks: int
    chunks: int
    time_s: float
    exposed_s: Annotated[
        float, Field(description="Time beyond the uncut product; may be negative beside a slower cut.")
    ]
    levels: list[LevelAnswer]
    chunk_counts: list[dict[str, Any]]
    links: list[LinkAnswer]
    assumptions: list[str]


class ExposedAnswer(Answer):
    exposed_s: Annotated[float, Field(description="Step less compute alone less other waits.")]
    exposed_share: float
    step_s: float
    compute_only_s: float
    other_s: float
    streams_sum_s: Annotated[float | None, Field(description="For comparison only: streams run beside each other.")]
    assumptions: list[str]


class ShardingStageAnswer(Answer):
    zero_stage: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    peak_bytes: float
    fits: bool | None
    sent_bytes: float
    exchange_s: float
    bound_s: float


class ShardingAnswer(Answer):
    stages: list[ShardingStageAnswer]
    units: int
    unit_bytes: float
    gather_s: float
    reduce_scatter_s: float
    forward_s: float
    backward_s: float
    exposed_s: float
    tokens_per_device: float
    tokens_to_hide: Annotated[float, Field(description="From so many tokens a gather hides behind the forward pass.")]
    hides: bool
    links: list[LinkAnswer]
    hardware: Named
    model: Named
    assumptions: list[str]
    sources: list[FigureSources]


class PipelineAnswer(Answer):
    schedule: str
    time_s: float
    work_s: float
    bubble_s: float
    bubble_of_work: float
    bubble_share: float
    formula_bubble_of_work: Annotated[float | None, Field(description="Null where no closed form fits the times.")]
    parameter_copies: Annotated[int, Field(description="Stages whose parameters a device holds: 2 in DualPipe.")]
    in_flight_micro_batches: Annotated[list[float], Field(description="Most at once, stage by stage.")]
    schedules: list[dict[str, Any]]
    timeline: list[SegmentAnswer]
    assumptions: list[str]


class ContextParallelAnswer(Answer):
    exchanges: list[dict[str, Any]]
    hop_s: float
    block_s: float
    exposed_s: float
    tokens_per_rank: float
    tokens_to_hide: float
    hides: bool
    timeline: list[SegmentAnswer]
    links: list[LinkAnswer]
    hardware: Named
    model: Named
    assumptions: list[str]


_COLLECTIVE = {
    "all-reduce": {
        "summary": "1 GiB over eight devices of a node",
        "value": {"hardware": "nvidia-h200-sxm", "kind": "all_reduce", "bytes": 1073741824, "ranks": 8},
    }
}
_OVERLAP = {
    "down projection": {
        "summary": "A row-parallel product and its reduce-scatter",
        "value": {
            "hardware": "nvidia-h200-sxm",
            "gemm": {"m": 8192, "n": 8192, "k": 3584, "dtype": "bf16"},
            "kind": "reduce_scatter",
            "ranks": 8,
        },
    }
}
_EXPOSED = {
    "three times": {
        "summary": "A step, the same step without communication, and its other waits",
        "value": {"step_s": 0.120, "compute_only_s": 0.097, "other_s": 0.004},
    }
}
_SHARDING = {
    "llama": {
        "summary": "Fully sharded training over eight nodes",
        "value": {
            "hardware": "nvidia-h200-sxm",
            "model": "llama-3.1-8b",
            "workload": {"phase": "train", "batch": 1, "seq_len": 8192, "parallel": {"dp": 64}},
        },
    }
}
_PIPELINE = {
    "interleaved": {
        "summary": "Eight stages of four chunks",
        "value": {"schedule": "interleaved", "stages": 8, "micro_batches": 32, "virtual_stages": 4},
    }
}
_CONTEXT = {
    "prefill": {
        "summary": "A long prompt over eight devices",
        "value": {
            "hardware": "nvidia-h200-sxm",
            "model": "llama-3.1-8b",
            "workload": {"phase": "prefill", "seq_len": 131072, "parallel": {"cp": 8}},
        },
    }
}


@router.post("/collective", summary="Time of a collective by algorithm", response_model=CollectiveAnswer)
def collective(ctx: Ctx, request: Annotated[CollectiveRequest, Body(openapi_examples=_COLLECTIVE)]) -> Response:
    """Bound, forecast and alpha-beta time of a collective, for one size and over many, with measured ones beside.

    `bytes` is the whole array, as nccl-tests counts its size. `links` replaces the start-up costs and the share of a
    link's rate that large messages reach; without it the profile's measured bandwidth, or stated defaults, are taken.
    """
    return FiniteJSONResponse(answers.collective_json(estimate_collective(ctx, request)))


@router.post("/overlap", summary="A collective beside a product", response_model=OverlapAnswer)
def overlap(ctx: Ctx, request: Annotated[OverlapRequest, Body(openapi_examples=_OVERLAP)]) -> Response:
    """Timelines of a product and its collective at four levels of overlap, and the time over numbers of chunks."""
    return FiniteJSONResponse(answers.overlap_json(estimate_overlap(ctx, request)))


@router.post("/exposed-communication", summary="Exposed communication of a step", response_model=ExposedAnswer)
def exposed(ctx: Ctx, request: Annotated[ExposedRequest, Body(openapi_examples=_EXPOSED)]) -> Response:
    """What a step takes beyond its compute alone and its other waits, from three times or from a run.

    A run gives `step_time_s` and, among its evidence, `compute_only_s` and `other_s`. A run that is a trace without
    them gives its span, the time when kernels compute, and copies and gaps.
    """
    return FiniteJSONResponse(answers.exposed_json(estimate_exposed(ctx, request)))


@router.post("/sharding", summary="ZeRO stages of a training step", response_model=ShardingAnswer)
def sharding(ctx: Ctx, request: Annotated[ShardingRequest, Body(openapi_examples=_SHARDING)]) -> Response:
    """Memory and traffic of ZeRO stages 0 to 3, and whether stage 3 hides its gathers behind compute."""
    return FiniteJSONResponse(answers.sharding_json(estimate_sharding(ctx, request)))


@router.post("/pipeline", summary="A pipeline schedule", response_model=PipelineAnswer)
def pipeline(request: Annotated[PipelineRequest, Body(openapi_examples=_PIPELINE)]) -> Response:
    """A simulated training step of a pipeline: its bubble, what each stage holds in flight, and its timeline."""
    return FiniteJSONResponse(answers.pipeline_json(estimate_pipeline(request)))


@router.post("/context-parallel", summary="Ring against all-to-all", response_model=ContextParallelAnswer)
def context_parallel(ctx: Ctx, request: Annotated[ContextParallelRequest, Body(openapi_examples=_CONTEXT)]) -> Response:
    """What context parallelism sends in a prefill or training step, and whether attention hides a ring's hops."""
    return FiniteJSONResponse(answers.context_parallel_json(estimate_context_parallel(ctx, request)))
