"""What the memory, cache and expert pages add to a comparison: their own numbers, frozen, shared, and a way back."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.catalog.loader import load_catalog
from app.services.contracts import BoundRequest
from app.services.what_if import nearest_state, state_of

PAGES: dict[str, tuple[tuple[str, str], dict[str, tuple[str, ...]]]] = {
    "memory": (
        (
            "phase=train&batch=1&seq=4096&dp=8&zero=3&recompute_modules=norms&lost=8&gathered=3",
            "phase=decode&batch=16&context=4096&model=mixtral-8x7b&tp=2&levers=kv-fp8",
        ),
        {"peak_memory_bytes": ("peak_bytes",), "least_memory_bytes": ("least", "peak_bytes")},
    ),
    "kv": (
        ("dist=list&lengths=512x3,9000&page=64&prefix=128&lines=-", "model=deepseek-v3&weights=fp8&tp=16&prediction=1"),
        {"kv_total_bytes": ("total_bytes",), "largest_batch": ("max_batch",), "kv_read_s": ("read_s_per_step",)},
    ),
    "moe": (
        (
            "overlap=tile&units=20&capacity=1.5",
            "model=mixtral-8x7b&routing=histogram&histogram=1,2,3,4,5,6,7,8&ep=8&dp=8&phase=train",
        ),
        {"expert_bound_s": ("bound_s",), "exposed_communication_s": ("exposed_communication_s",)},
    ),
}


def tray(page: str) -> dict[str, Any]:
    return json.loads(html.unescape(re.search(r'data-tray-add="([^"]+)"', page)[1]))  # type: ignore[index, no-any-return]


@pytest.mark.parametrize("kind", PAGES)
def test_what_a_page_answers_is_frozen_shared_and_asked_again(client: TestClient, kind: str) -> None:
    queries, metrics = PAGES[kind]
    asked = [tray(client.get(f"/{kind}?{query}").text) for query in queries]
    assert all(item["estimate"] == kind for item in asked)
    answers = [client.post(f"/api/v1/estimates/{kind}", json=item["request"]).json() for item in asked]
    items = [{"estimate": {"kind": kind, "request": item["request"]}} for item in asked]
    made = client.post("/api/v1/comparisons", json={"title": "t", "items": items})
    assert made.status_code == 201, made.text
    found = made.json()
    rows = {row["metric"]: row for row in found["metrics"]}
    for metric, path in metrics.items():
        for cell, answer in zip(rows[metric]["cells"], answers, strict=True):
            for name in path:
                answer = answer[name]
            assert cell["value"] == answer
    page = client.get(f"/comparisons/{found['id']}").text
    links = re.findall(r'<a href="([^"]+)">Open on the', page)
    assert [tray(client.get(html.unescape(link)).text) for link in links] == asked
    for format_ in ("csv", "json", "html"):
        assert client.get(f"/api/v1/comparisons/{found['id']}/export?format={format_}").status_code == 200
    share = client.post(f"/api/v1/comparisons/{found['id']}/share", json={}).json()
    assert client.get(f"/api/v1/shares/{share['token']}").json()["moved"] == []
    assert found["items"][0]["label"] in html.unescape(client.get(f"/s/{share['token']}").text)
    form = client.get("/comparisons/new", params={"title": "t", "items": json.dumps(asked)})
    assert form.status_code == 200
    assert "What differs" in form.text


def test_the_nearest_state_of_the_lab_keeps_all_that_has_a_control() -> None:
    model = load_catalog().models["llama-3.1-8b"]
    parallel = {"dp": 8, "pp": 2, "zero_stage": 3, "sequence_parallel": True}
    workload = {"phase": "train", "seq_len": 4096, "parallel": parallel, "recompute_modules": ["norms"]}
    plain = {"hardware": "nvidia-h100-sxm", "model": model.id, "ceilings": "achievable", "levers": ["fused-norm"]}
    odd = BoundRequest.model_validate({**plain, "workload": {**workload, "dtypes": {"weights_bits": 4.5}}})
    even = BoundRequest.model_validate({**plain, "workload": workload})
    assert state_of(odd, model) is None
    assert nearest_state(odd, model) == state_of(even, model) is not None
