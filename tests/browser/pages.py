"""Which pages the browser tests look at, and the file that they upload."""

from __future__ import annotations

import json
from dataclasses import dataclass

from app.web.errors import is_api
from app.web.routes import ROUTERS


@dataclass(frozen=True)
class Stored:
    """What the pages show: addresses of a run and of a comparison with a link."""

    run: str
    comparison: str
    shared: str


FIXED = {
    "landing": "/",
    "lab": "/explore",
    "runs": "/runs",
    "comparisons": "/comparisons",
    "builder": "/comparisons/new",
    "hardware": "/hardware",
    "profile": "/hardware/nvidia-h100-sxm",
    "models": "/models",
    "model": "/models/llama-3.1-8b",
    "import": "/models/new",
    "technique": "/library/techniques/kv-fp8",
    "generations": "/library/gpu-generations",
    "search": "/search?q=llama",
    "walk": "/diagnose?scenario=moe&values=load_max_over_mean:2.4&answers=mo1:unknown",
    "walked": "/diagnose?scenario=decode&lab=hardware%3Dnvidia-h100-sxm%26batch%3D32%26context%3D16384",
    "api": "/api/docs",
    "missing": "/nothing-here",
}
PARTS = {
    "/library/techniques",
    "/comparisons/new/runs",
    "/explore/thresholds",
    "/models/new/preview",
    "/probe/bytebound_probe.py",
}
"""Addresses that answer with a part of a page or a file, or that lead to another one."""

# A new page is looked at from the day it exists.
FIXED |= {
    path.strip("/"): path
    for path in sorted({route.path for router in ROUTERS for route in router.routes if "GET" in (route.methods or ())})
    if "{" not in path and not is_api(path) and path not in PARTS and path not in FIXED.values()
    # a search is looked at with words in it
    if not any(known.startswith(f"{path}?") for known in FIXED.values())
}
NAMES = (*FIXED, "run", "comparison", "shared")


def address(name: str, stored: Stored) -> str:
    """The path of a page by its name here."""
    return FIXED.get(name) or str(getattr(stored, name))


def vllm_result(**changes: object) -> bytes:
    """A result as `vllm bench serve` saves it, made up here: 200 requests of 1,000 + 200 tokens, in 40 seconds."""
    return json.dumps(
        {
            "date": "20261120-101500",
            "endpoint_type": "vllm",
            "backend": "vllm",
            "label": None,
            "model_id": "meta-llama/Llama-3.1-8B-Instruct",
            "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
            "num_prompts": 200,
            "request_rate": "inf",
            "burstiness": 1.0,
            "max_concurrency": 32,
            "duration": 40.0,
            "completed": 200,
            "failed": 0,
            "total_input_tokens": 200_000,
            "total_output_tokens": 40_000,
            "request_throughput": 5.0,
            "output_throughput": 1_000.0,
            "total_token_throughput": 6_000.0,
            "mean_ttft_ms": 310.0,
            "median_ttft_ms": 290.0,
            "std_ttft_ms": 55.0,
            "p99_ttft_ms": 640.0,
            "mean_tpot_ms": 21.0,
            "median_tpot_ms": 20.6,
            "std_tpot_ms": 1.2,
            "p99_tpot_ms": 27.5,
            "mean_itl_ms": 21.0,
            "median_itl_ms": 19.8,
            "std_itl_ms": 6.0,
            "p99_itl_ms": 61.0,
            **changes,
        }
    ).encode()
