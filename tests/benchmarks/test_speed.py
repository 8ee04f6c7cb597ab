"""How long questions take: `make bench`. In the ordinary suite each runs once, which checks that it still runs.

A bound of Llama 3.1 8B must stay below a millisecond, one of DeepSeek-V3 with a layout and five levers below five, a
sweep of 100,000 points below two seconds. The whole answers beside them add forecast, memory and JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from app.catalog.loader import load_catalog
from app.domain.expected import expected_time
from app.domain.levers.base import LeverRequest
from app.domain.lower_bound import Bound, ceilings, lower_bound
from app.domain.memory import memory_use
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Workload
from app.services.estimate import BoundEstimate, bound_json, bound_of

H100 = load_catalog().hardware["nvidia-h100-sxm"]
POINTS = 100_000
PRECISIONS_OF_A_SWEEP = (
    Dtypes(),
    Dtypes(weights="fp8", activations="fp8"),
    Dtypes(weights="fp8", activations="fp8", kv="fp8"),
    Dtypes(weights="int4"),
)
LEVERS_OF_A_PATH = ("split-kv", "cascade-prefix", "fp8-gemm", "stream-k", "fp8-dispatch")

STEPS = {
    "8B decode": ("llama-3.1-8b", Workload(batch=32, context_len=2048)),
    "8B decode, TP8": ("llama-3.1-8b", Workload(batch=32, context_len=2048, parallel=Parallel(tp=8))),
    "8B train": (
        "llama-3.1-8b",
        Workload(phase="train", seq_len=4096, recompute="full", parallel=Parallel(dp=64, zero_stage=3)),
    ),
    "DeepSeek-V3 decode": ("deepseek-v3", Workload(batch=32, context_len=2048)),
    "Gemma 3 27B decode": ("gemma-3-27b", Workload(batch=32, context_len=2048)),
}


def answer(model_id: str, workload: Workload) -> Bound:
    """Everything that one answer of the lab computes."""
    model = load_catalog().models[model_id]
    bound = lower_bound(cost_table(model, workload), ceilings(H100), launch_mode=workload.launch_mode)
    expected_time(bound)
    memory_use(model, workload, H100.memory_capacity)
    return bound


@pytest.mark.parametrize("name", STEPS)
def test_single_answer(benchmark: BenchmarkFixture, name: str) -> None:
    bound = benchmark(answer, *STEPS[name])
    assert float(bound.overlapped) > 0


def questions() -> Iterator[BoundEstimate]:
    """DeepSeek-V3 over 32 devices with its ledger: another question each time, so that nothing is remembered."""
    model, hardware = load_catalog().models["deepseek-v3"], load_catalog().hardware["nvidia-h200-sxm"]
    levers = [LeverRequest(name) for name in LEVERS_OF_A_PATH]
    for context in range(4096, 10_000_000):
        workload = Workload(batch=32, context_len=context, parallel=Parallel(ep=32, dp=32))
        yield bound_of(hardware, model, workload, levers=levers)


def test_a_bound_of_llama(benchmark: BenchmarkFixture) -> None:
    model = load_catalog().models["llama-3.1-8b"]
    contexts = iter(range(4096, 10_000_000))
    estimate = benchmark(lambda: bound_of(H100, model, Workload(batch=32, context_len=next(contexts))))
    assert float(estimate.bound.overlapped) > 0


def test_a_bound_with_five_levers(benchmark: BenchmarkFixture) -> None:
    asked = questions()
    estimate = benchmark(lambda: next(asked))
    assert [row.lever.id for row in estimate.ledger] == list(LEVERS_OF_A_PATH)


def test_an_answer_with_five_levers(benchmark: BenchmarkFixture) -> None:
    """The whole answer of the API: forecasts and memory of all six steps included."""
    asked = questions()
    answer = benchmark(lambda: bound_json(next(asked)))
    assert len(answer["ledger"]) == len(LEVERS_OF_A_PATH)


@pytest.mark.parametrize("model_id", ["llama-3.1-8b", "deepseek-v3"])
def test_sweep(benchmark: BenchmarkFixture, model_id: str) -> None:
    """Batch, context and TP as axes of one table, and a table for each precision."""
    random = np.random.default_rng(1)
    points = POINTS // len(PRECISIONS_OF_A_SWEEP)
    grid = {
        "batch": random.integers(1, 512, points),
        "context_len": random.integers(0, 131_072, points),
        "tp": random.choice([1, 2, 4, 8], points),
    }
    model = load_catalog().models[model_id]

    def sweep() -> list[Bound]:
        return [
            lower_bound(cost_table(model, Workload(dtypes=dtypes), grid=grid), ceilings(H100))
            for dtypes in PRECISIONS_OF_A_SWEEP
        ]

    bounds = benchmark.pedantic(sweep, rounds=3, iterations=1)
    assert sum(bound.overlapped.size for bound in bounds) == POINTS
    assert all(np.all(bound.overlapped > 0) for bound in bounds)
