"""How long questions take: `make bench`. In the ordinary suite each runs once, which checks that it still runs.

A single answer (table, bound, forecast, memory) should stay below a millisecond and must stay below five; a sweep of
100,000 points must answer while a person waits.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from app.catalog.loader import load_catalog
from app.domain.expected import expected_time
from app.domain.levers.base import LeverRequest
from app.domain.lower_bound import Bound, ceilings, lower_bound
from app.domain.memory import memory_use
from app.domain.step import cost_table
from app.domain.workload import Parallel, Workload
from app.services.estimate import BoundEstimate, bound_json, bound_of

H100 = load_catalog().hardware["nvidia-h100-sxm"]
POINTS = 100_000
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


def test_a_ledger_of_five_levers(benchmark: BenchmarkFixture) -> None:
    """DeepSeek-V3 over 32 devices: the whole answer of the API, ledger and forecasts of all six steps included."""
    model, hardware = load_catalog().models["deepseek-v3"], load_catalog().hardware["nvidia-h200-sxm"]
    levers = [LeverRequest(name) for name in LEVERS_OF_A_PATH]
    contexts = iter(range(4096, 10_000_000))

    def ask() -> BoundEstimate:
        # another question each time, so that nothing is remembered from the last one
        workload = Workload(batch=32, context_len=next(contexts), parallel=Parallel(ep=32, dp=32))
        return bound_of(hardware, model, workload, levers=levers)

    estimate = ask()
    benchmark(lambda: bound_json(ask()))
    assert [row.lever.id for row in estimate.ledger] == list(LEVERS_OF_A_PATH)


@pytest.mark.parametrize("model_id", ["llama-3.1-8b", "deepseek-v3"])
def test_sweep(benchmark: BenchmarkFixture, model_id: str) -> None:
    random = np.random.default_rng(1)
    grid = {
        "batch": random.integers(1, 512, POINTS),
        "context_len": random.integers(0, 131_072, POINTS),
        "tp": random.choice([1, 2, 4, 8], POINTS),
    }
    model = load_catalog().models[model_id]

    def sweep() -> Bound:
        return lower_bound(cost_table(model, Workload(), grid=grid), ceilings(H100))

    bound = benchmark.pedantic(sweep, rounds=3, iterations=1)
    assert bound.overlapped.shape == (POINTS,)
    assert np.all(bound.overlapped > 0)
