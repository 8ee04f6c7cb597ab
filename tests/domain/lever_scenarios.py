"""Scenarios for tests of levers: one where each technique makes sense, over phases, layouts, models and devices."""

from __future__ import annotations

from typing import NamedTuple

from app.catalog.loader import load_catalog
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import LeverRequest
from app.domain.model import ModelSpec
from app.domain.workload import Dtypes, Parallel, Routing, Workload
from app.services.estimate import BoundEstimate, bound_of

CATALOG = load_catalog()
SKEWED = Routing(kind="zipf", alpha=0.5)


class Question(NamedTuple):
    hardware: HardwareProfile
    model: ModelSpec
    workload: Workload


def _question(hardware: str, model: str, workload: Workload) -> Question:
    return Question(CATALOG.hardware[hardware], CATALOG.models[model], workload)


def _step(phase: str, batch: int, seq_len: int = 1, context_len: int = 0, **more: object) -> Workload:
    return Workload(phase=phase, batch=batch, seq_len=seq_len, context_len=context_len, **more)  # type: ignore[arg-type]


H100, A100, B200 = "nvidia-h100-sxm", "nvidia-a100-sxm4-80gb", "nvidia-b200-sxm"

QUESTIONS: dict[str, Question] = {
    "decode": _question(
        H100, "llama-3.1-8b", _step("decode", 16, context_len=8192, launch_mode="eager", parallel=Parallel(tp=2))
    ),
    "prefill": _question(H100, "llama-3.1-8b", _step("prefill", 2, 4096, parallel=Parallel(tp=2))),
    "train": _question(
        H100, "llama-3.1-8b", _step("train", 2, 4096, parallel=Parallel(tp=2, pp=2, dp=8, micro_batches=4))
    ),
    "train, sharded": _question(
        A100,
        "llama-3.1-8b",
        _step(
            "train",
            2,
            4096,
            parallel=Parallel(tp=2, dp=8, zero_stage=3),
            dtypes=Dtypes(gradients="fp32", communication="fp32"),
        ),
    ),
    "long training": _question(H100, "llama-3.1-8b", _step("train", 1, 32768, parallel=Parallel(tp=8))),
    "experts, train": _question(
        H100,
        "deepseek-v3",
        _step("train", 1, 4096, parallel=Parallel(pp=8, dp=64, ep=64, micro_batches=16), routing=SKEWED),
    ),
    "experts, train in a node": _question(
        H100, "deepseek-v3", _step("train", 1, 4096, parallel=Parallel(pp=8, dp=8, ep=8, micro_batches=16))
    ),
    "experts, decode": _question(
        H100,
        "deepseek-v3",
        _step("decode", 64, context_len=4096, launch_mode="eager", parallel=Parallel(dp=32, ep=32), routing=SKEWED),
    ),
    "experts, folded": _question(A100, "mixtral-8x7b", _step("train", 1, 4096, parallel=Parallel(tp=2, dp=4))),
    "blackwell": _question(B200, "llama-3.1-8b", _step("prefill", 2, 4096)),
    "fp8": _question(H100, "llama-3.1-8b", _step("prefill", 2, 4096, dtypes=Dtypes(weights="fp8", activations="fp8"))),
    "pictures": _question(H100, "qwen2.5-vl-7b", _step("prefill", 2, 2048, visual_tokens=1024)),
    "pictures, train": _question(H100, "qwen2.5-vl-7b", _step("train", 1, 2048, visual_tokens=1024)),
    "U-net": _question(H100, "sdxl-base", _step("prefill", 2)),
    "diffusion transformer": _question(B200, "flux.1-dev", _step("prefill", 2)),
    "cross-attention": _question(H100, "pixart-sigma-xl-2", _step("prefill", 2)),
    "scan": _question(H100, "mamba-1.4b", _step("prefill", 1, 4096)),
    "hybrid": _question(H100, "falcon-h1-0.5b", _step("prefill", 1, 4096)),
}


def asked(name: str, *levers: str | LeverRequest) -> BoundEstimate:
    """The estimate of a question after the levers."""
    question = QUESTIONS[name]
    requests = [LeverRequest(lever) if isinstance(lever, str) else lever for lever in levers]
    return bound_of(question.hardware, question.model, question.workload, levers=requests)
