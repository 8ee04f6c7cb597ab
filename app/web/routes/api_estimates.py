"""Bounds of steps and of single operations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from app.services.contracts import BoundRequest, KvRequest, MemoryRequest, OpRequest
from app.services.estimate import bound_json, estimate_bound, estimate_op, op_json
from app.services.kv import estimate_kv, kv_json
from app.services.memory import estimate_memory, memory_json
from app.services.thresholds import crossings, crossings_json
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import BoundAnswer, KvAnswer, MemoryAnswer, OpAnswer, ThresholdsAnswer

router = APIRouter(prefix="/api/v1/estimates", tags=["estimates"])

_BOUND_EXAMPLES = {
    "decode": {
        "summary": "One decode step",
        "value": {
            "hardware": "nvidia-h100-sxm",
            "model": "llama-3.1-8b",
            "workload": {"phase": "decode", "batch": 32, "context_len": 4096},
        },
    },
    "training": {
        "summary": "A training step, tensor parallel over eight devices",
        "value": {
            "hardware": "nvidia-h100-sxm",
            "model": "llama-3.1-8b",
            "workload": {
                "phase": "train",
                "batch": 1,
                "seq_len": 8192,
                "parallel": {"tp": 8, "sequence_parallel": True},
                "recompute": "full",
            },
        },
    },
}

_OP_EXAMPLES = {
    "gemm": {
        "summary": "A matrix product",
        "value": {
            "hardware": "nvidia-h100-sxm",
            "op": {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"},
        },
    },
    "attention": {
        "summary": "Attention of one decode step",
        "value": {
            "hardware": "nvidia-h100-sxm",
            "op": {
                "op": "attention",
                "batch": 32,
                "seq_q": 1,
                "seq_kv": 4096,
                "heads": 32,
                "kv_heads": 8,
                "head_dim": 128,
                "dtype": "bf16",
            },
        },
    },
}


@router.post("/bound", summary="Least time of a step", response_model=BoundAnswer)
def bound(ctx: Ctx, request: Annotated[BoundRequest, Body(openapi_examples=_BOUND_EXAMPLES)]) -> Response:
    """Least time of one training, prefill or decode step: its terms, one row per operation, and memory.

    Hardware and model are a catalogue id, an alias, a team's own id, or the object itself. Fields of the workload that
    are left out take their defaults, and `assumptions` lists them.
    """
    return FiniteJSONResponse(bound_json(estimate_bound(ctx, request)))


@router.post("/thresholds", summary="What would have to be true", response_model=ThresholdsAnswer)
def thresholds(ctx: Ctx, request: Annotated[BoundRequest, Body(openapi_examples=_BOUND_EXAMPLES)]) -> Response:
    """From where on another resource holds the step back, all else as asked: the batch at which compute takes longer
    than HBM, the context where reading the cache overtakes the weights, the tensor parallelism where the network takes
    longest.

    The body is that of a bound. `checks` are the steps next to each threshold: the last at which it does not hold and
    the first at which it does, with the two figures that it compares (`first >= second`), or the step at `highest`
    where it holds nowhere.
    """
    return FiniteJSONResponse(crossings_json(crossings(ctx, request)))


@router.post("/op", summary="Least time of one operation", response_model=OpAnswer)
def op(ctx: Ctx, request: Annotated[OpRequest, Body(openapi_examples=_OP_EXAMPLES)]) -> Response:
    """Least time of one matrix product, attention, elementwise operation or collective, its operands cold in memory."""
    return FiniteJSONResponse(op_json(estimate_op(ctx, request)))


_MEMORY_EXAMPLES = {
    "training": {
        "summary": "A training step that does not fit, and what would make it fit",
        "value": {
            "hardware": "nvidia-h100-sxm",
            "model": "llama-3.1-70b",
            "workload": {"phase": "train", "batch": 1, "seq_len": 8192, "parallel": {"tp": 8, "dp": 4}},
            "levers": ["full-recompute"],
            "make_it_fit": True,
        },
    },
}


@router.post("/memory", summary="Memory of a device", response_model=MemoryAnswer)
def memory(ctx: Ctx, request: Annotated[MemoryRequest, Body(openapi_examples=_MEMORY_EXAMPLES)]) -> Response:
    """Bytes on the fullest device by object and by pipeline stage, and what each lever saves and costs.

    `least` is what the bound of the same question counts; `peak_bytes` adds the `reserve`: buffers of the exchanges,
    the driver's workspace and what the allocator loses. With `make_it_fit` the answer proposes levers and layouts of
    the same devices that bring the peak under the capacity, cheapest first.
    """
    return FiniteJSONResponse(memory_json(estimate_memory(ctx, request)))


_KV_EXAMPLES = {
    "batch": {
        "summary": "A batch of equal sequences that share a prompt",
        "value": {
            "model": "llama-3.1-70b",
            "hardware": "nvidia-h200-sxm",
            "batch": 32,
            "context_len": 8192,
            "shared_prefix_tokens": 2000,
            "parallel": {"tp": 4},
        },
    },
    "lengths": {
        "summary": "A list of lengths",
        "value": {"model": "llama-3.1-8b", "sequences": [100, 513, 1000, 37, 2048], "page_tokens": 16},
    },
}


@router.post("/kv", summary="The KV cache of a batch", response_model=KvAnswer)
def kv(ctx: Ctx, request: Annotated[KvRequest, Body(openapi_examples=_KV_EXAMPLES)]) -> Response:
    """Bytes of a batch's KV cache by what they are, what fits on the devices, and how long a decode step reads it.

    Payload, pages, sharing and reservation are those of one replica with every byte once; `per_device` is its fullest
    device, with the copies that the layout keeps. `total_bytes` is payload and fragmentation less what the prefix
    saves, and the page tables. Without `hardware` what fits and the reading time are null.
    """
    return FiniteJSONResponse(kv_json(estimate_kv(ctx, request)))
