"""What comparisons hold of communication: a product beside its exchange, the exposed time of a step, a pipeline.

Each is asked by the body of its own call, answered by the same service, and named by metrics that only its kind has, so
that a step of a pipeline is never held against a training step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from app.domain.comparison_items import Value
from app.services.communication_answers import exposed_json, overlap_json, pipeline_json
from app.services.communication_layouts import estimate_pipeline
from app.services.communication_overlap import estimate_exposed, estimate_overlap
from app.services.communication_page import KIND_WORDS, SCHEDULE_WORDS
from app.services.communication_requests import ExposedRequest, OverlapRequest, PipelineRequest
from app.services.compare_answer import Answered, Figure
from app.services.context import Context
from app.services.contracts import Contract
from app.services.words import time_words


class FrozenOverlap(Contract):
    """A product beside its exchange to freeze: the body of `POST /estimates/overlap`."""

    kind: Literal["overlap"]
    request: OverlapRequest


class FrozenExposed(Contract):
    """The exposed communication of a step to freeze: the body of `POST /estimates/exposed-communication`."""

    kind: Literal["exposed"]
    request: ExposedRequest


class FrozenPipeline(Contract):
    """A pipeline schedule to freeze: the body of `POST /estimates/pipeline`."""

    kind: Literal["pipeline"]
    request: PipelineRequest


FrozenCommunication: TypeAlias = FrozenOverlap | FrozenExposed | FrozenPipeline

CALLS: Mapping[str, str] = {
    "overlap": "Product and exchange",
    "exposed": "Exposed communication",
    "pipeline": "Pipeline",
}
"""The kinds in words, for what no model is named in."""


def answer_of(ctx: Context, asked: FrozenCommunication) -> Answered:
    """Ask what is to be frozen. Raises what the three calls raise."""
    if isinstance(asked, FrozenOverlap):
        return _overlap(ctx, asked.request)
    return _exposed(ctx, asked.request) if isinstance(asked, FrozenExposed) else _pipeline(asked.request)


def _short(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without the drawings, which a comparison does not show and the call makes again."""
    kept = {key: value for key, value in answer.items() if key not in ("timeline", "chunk_counts")}
    if "levels" in kept:
        kept["levels"] = [{k: v for k, v in row.items() if k != "timeline"} for row in kept["levels"]]
    return kept


def _overlap(ctx: Context, request: OverlapRequest) -> Answered:
    found = estimate_overlap(ctx, request)
    gemm, chunks = request.gemm, found.shown
    exchange = KIND_WORDS[request.kind].split(" ", 1)[1]
    work = f"{gemm.m:,} × {gemm.n:,} × {gemm.k:,} {gemm.dtype} with {exchange} over {request.ranks:,} ranks"
    cut = "uncut" if chunks == 1 else f"in {chunks} chunks"
    values = {
        "overlapped_time_s": found.level("L2").timeline.total,
        "serial_time_s": found.level("L0").timeline.total,
        "fused_time_s": found.level("L3").timeline.total,
        "exposed_communication_s": found.level("L2").exposed,
        "product_time_s": found.compute_only,
        "exchange_time_s": found.communication,
    }
    return Answered(
        kind="overlap",
        request=request.model_dump(mode="json"),
        answer=_short(overlap_json(found)),
        label=f"{work} on {found.hardware.name}, {cut}",
        values={name: Value(value, "expected") for name, value in values.items()},
        frozen={"mode": "overlap", "operation": work, "hardware": found.hardware.name, "chunks": chunks},
        hardware=found.hardware,
    )


def _exposed(ctx: Context, request: ExposedRequest) -> Answered:
    found = estimate_exposed(ctx, request)
    name = f"Exposed communication of {found.run_name}" if found.run_name else "Exposed communication"
    values = {
        "step_time_s": found.step,
        "compute_only_s": found.compute_only,
        "exposed_communication_s": found.exposed,
        "exposed_share": found.share,
    }
    return Answered(
        kind="exposed",
        request=request.model_dump(mode="json"),
        answer=exposed_json(found),
        label=f"{name}, step of {time_words(found.step)}",
        values={name: Value(value, "measured") for name, value in values.items()},
        frozen={"mode": "step"},
        run=request.run,
    )


def _pipeline(request: PipelineRequest) -> Answered:
    found = estimate_pipeline(request)
    line = found.timeline
    answer = pipeline_json(found)
    schedule = SCHEDULE_WORDS[request.schedule]
    if request.virtual_stages > 1:
        schedule += f" with {request.virtual_stages} chunks"
    times = [f"forward {time_words(request.forward_s)}", f"backward {time_words(request.backward_s)}"]
    if request.weight_gradient_s is not None:
        times.append(f"weight gradients {time_words(request.weight_gradient_s)} of it")
    if request.hand_over_s:
        times.append(f"hand-over {time_words(request.hand_over_s)}")
    values = {
        "pipeline_step_s": line.total,
        "bubble_s": line.bubble,
        "bubble_share": line.bubble_share,
        "in_flight_micro_batches": max(answer["in_flight_micro_batches"]),
        "parameter_copies": float(line.parameter_copies),
    }
    return Answered(
        kind="pipeline",
        request=request.model_dump(mode="json"),
        answer=_short(answer),
        label=f"{schedule}, {request.stages} stages, {request.micro_batches} micro-batches",
        values={name: Value(value, "expected") for name, value in values.items()},
        frozen={
            "mode": "pipeline",
            "schedule": schedule,
            "stages": request.stages,
            "micro_batches": request.micro_batches,
            "pass_times": ", ".join(times),
        },
    )


def asked_again(ctx: Context, item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Today's answer to a frozen item, from its frozen profile and, where a run told the times, from those times.

    Raises what the calls raise, and ValidationError for a request that is not taken any more.
    """
    kind, request = item["estimate"]["kind"], dict(item["estimate"]["request"])
    if kind == "overlap":
        return _overlap(ctx, OverlapRequest.model_validate(request | {"hardware": item["hardware"]["profile"]})).answer
    if kind == "exposed":
        answer = item["estimate"]["answer"]
        told = {name: answer[name] for name in ("step_s", "compute_only_s", "other_s")}
        return _exposed(ctx, ExposedRequest.model_validate(request | told | {"run": None})).answer
    return _pipeline(PipelineRequest.model_validate(request)).answer


FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "overlap": (
        ("time of product and exchange", "s", ("time_s",)),
        ("exposed communication", "s", ("exposed_s",)),
        ("exchange alone", "s", ("communication_s",)),
        ("product alone", "s", ("compute_only_s",)),
    ),
    "exposed": (
        ("exposed communication", "s", ("exposed_s",)),
        ("exposed share of the step", "1", ("exposed_share",)),
    ),
    "pipeline": (
        ("time of the pipeline's step", "s", ("time_s",)),
        ("pipeline bubble", "s", ("bubble_s",)),
        ("micro-batches in flight", "1", ("in_flight_micro_batches",)),
        ("stages held by a device", "1", ("parameter_copies",)),
    ),
}
"""What is held against today's answer when a link is opened; of a figure by stage, the largest."""
