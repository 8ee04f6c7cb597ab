"""The expert layers of a step."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from app.services.contracts import MoeRequest
from app.services.moe import estimate_moe, layout_choices, layouts_json, moe_json
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import MoeAnswer

router = APIRouter(prefix="/api/v1/estimates", tags=["estimates"])

_EXAMPLES = {
    "decode": {
        "summary": "Decode of DeepSeek-V3 on 64 devices, tokens dispatched in fp8 to four nodes at most",
        "value": {
            "hardware": "nvidia-h800-sxm",
            "model": "deepseek-v3",
            "workload": {
                "phase": "decode",
                "batch": 128,
                "context_len": 4096,
                "dtypes": {"weights": "fp8", "activations": "fp8"},
                "parallel": {"dp": 64, "ep": 64},
                "routing": {"kind": "random"},
                "dispatch": {"node_limit": 4},
            },
            "dispatch_dtype": "fp8",
            "overlap": "L1",
        },
    },
}


@router.post("/moe", summary="Expert layers of a step, stage by stage", response_model=MoeAnswer)
def moe(ctx: Ctx, request: Annotated[MoeRequest, Body(openapi_examples=_EXAMPLES)]) -> Response:
    """Router, top-k, histogram, permutation, dispatch, both expert products, combine and shared expert of one step.

    Stages add up over all expert layers of one device. `dispatch_dtype`, `capacity_factor` and `overlap` replace what
    the workload says; `layouts` asks for other layouts of the same devices beside it.
    """
    found = estimate_moe(ctx, request)
    layouts = layouts_json(layout_choices(found)) if request.layouts else None
    return FiniteJSONResponse(moe_json(found) | {"layouts": layouts})
