"""What the server takes for an answer, from request to last byte, without a network: `make bench`.

A change in the what-if lab must be answered in less than 30 ms at the median; a single bound in less than 5.
"""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from pytest_benchmark.fixture import BenchmarkFixture

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
UPDATES = {
    "decode": {"phase": "decode", "batch": "32", "context": "8192"},
    "prefill, 8 devices": {"phase": "prefill", "batch": "4", "seq": "8192", "tp": "8"},
    "train": {"phase": "train", "batch": "1", "seq": "4096", "dp": "8", "zero": "3"},
    "mixture of experts": {"model": "deepseek-v3", "hardware": "nvidia-h200-sxm", "tp": "8"},
}
BOUND = {
    "hardware": "nvidia-h100-sxm",
    "model": "llama-3.1-8b",
    "workload": {"phase": "decode", "batch": 32, "context_len": 8192},
}


def update(client: TestClient, number: int, **asked: str) -> str:
    """One edit of the lab. `number` makes each a question of its own, so that nothing can be remembered."""
    answer = client.get("/explore", params=asked | {"batch": str(number)}, headers=HTMX)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_of_the_lab(benchmark: BenchmarkFixture, client: TestClient, name: str) -> None:
    numbers = iter(range(1, 10_000_000))
    text = benchmark(lambda: update(client, next(numbers), **UPDATES[name]))
    assert "lab-roofline" in text


def test_a_bound_by_the_api(benchmark: BenchmarkFixture, client: TestClient) -> None:
    answer = benchmark(lambda: client.post("/api/v1/estimates/bound", json=BOUND))
    assert answer.json()["bound_s"] > 0


@pytest.mark.parametrize("path", ["/", "/explore", "/runs", "/hardware", "/models"])
def test_a_page(benchmark: BenchmarkFixture, client: TestClient, path: str) -> None:
    answer = benchmark(lambda: client.get(path))
    assert answer.status_code == 200
