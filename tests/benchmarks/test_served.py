"""What the server takes for an answer, from request to last byte, without a network or a client: `make bench`.

A change in the what-if lab must be answered in less than 30 ms at the median; a single bound in less than 5.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI
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


@dataclass(frozen=True)
class Server:
    """The app as a server calls it. A test client's own work would be half of what a small answer takes."""

    app: FastAPI
    runner: asyncio.Runner

    def answer(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """The text of a GET, or of a POST where there is a body. Only a 200 is an answer."""
        sent = b"" if body is None else json.dumps(body).encode()
        fields = {"host": "testserver", "content-type": "application/json", "content-length": str(len(sent))}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET" if body is None else "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query or {}).encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (fields | dict(headers or {})).items()],
            "client": ("127.0.0.1", 50000),
            "server": ("testserver", 80),
            "state": {},
        }
        parts: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            parts.append(message)

        self.runner.run(self.app(scope, receive, send))  # type: ignore[arg-type]
        assert parts[0]["status"] == 200
        return b"".join(part.get("body", b"") for part in parts).decode()


@pytest.fixture
def server(app: FastAPI) -> Iterator[Server]:
    with asyncio.Runner() as runner:
        yield Server(app, runner)


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_of_the_lab(benchmark: BenchmarkFixture, server: Server, name: str) -> None:
    # each edit of the lab is a question of its own, so that nothing can be remembered
    numbers = iter(range(1, 10_000_000))
    text = benchmark(lambda: server.answer("/explore", UPDATES[name] | {"batch": str(next(numbers))}, headers=HTMX))
    assert "lab-roofline" in text


def test_a_bound_by_the_api(benchmark: BenchmarkFixture, server: Server) -> None:
    text = benchmark(lambda: server.answer("/api/v1/estimates/bound", body=BOUND))
    assert json.loads(text)["bound_s"] > 0


@pytest.mark.parametrize("path", ["/", "/explore", "/runs", "/hardware", "/models"])
def test_a_page(benchmark: BenchmarkFixture, server: Server, path: str) -> None:
    assert "</html>" in benchmark(lambda: server.answer(path))
