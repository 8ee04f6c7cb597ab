"""The technique library over HTTP, and levers by the names it gives."""

from __future__ import annotations

from fastapi.testclient import TestClient


def test_a_technique_has_its_lever_and_its_numbers(client: TestClient) -> None:
    found = client.get("/api/v1/techniques/spec-decode").json()
    assert found["lever"] is True
    assert found["book_as"] == "algorithmic"
    assert [param["name"] for param in found["params"]] == ["drafts", "acceptance", "draft_cost"]
    assert found["gains"][0]["conditions"]
    assert found["model"].endswith(".")
    without = client.get("/api/v1/techniques/dataloader").json()
    assert without["lever"] is False
    assert without["params"] == []
    assert without["no_lever"]


def test_techniques_are_listed_in_pages_and_filtered(client: TestClient) -> None:
    first = client.get("/api/v1/techniques", params={"limit": 100}).json()
    second = client.get("/api/v1/techniques", params={"limit": 100, "cursor": first["next"]}).json()
    names = [item["name"].casefold() for item in first["items"] + second["items"]]
    assert names == sorted(names)
    assert len(names) == first["total"]
    assert second["next"] is None
    levers = client.get("/api/v1/techniques", params={"lever": "true", "limit": 1}).json()["total"]
    others = client.get("/api/v1/techniques", params={"lever": "false", "limit": 1}).json()["total"]
    assert levers + others == first["total"]
    assert levers >= 100
    by_other_names = client.get("/api/v1/techniques", params={"q": "gradient checkpointing"}).json()["items"]
    assert {item["id"] for item in by_other_names} == {"full-recompute", "selective-recompute"}
    moe = client.get("/api/v1/techniques", params={"family": "moe", "phase": "decode", "q": "kernel"}).json()
    assert moe["items"]
    assert all(item["family"] == "moe" and "decode" in item["phases"] for item in moe["items"])


def test_what_is_asked_wrongly_is_refused(client: TestClient) -> None:
    assert client.get("/api/v1/techniques/no-such").status_code == 404
    assert client.get("/api/v1/techniques", params={"family": "x"}).status_code == 422
    assert client.get("/api/v1/techniques", params={"limit": 0}).status_code == 422
    assert client.get("/api/v1/techniques", params={"cursor": "?"}).status_code in (400, 422)


def test_a_listed_lever_can_be_asked_for(client: TestClient) -> None:
    body = {
        "hardware": "nvidia-h100-sxm",
        "model": "llama-3.1-8b",
        "workload": {"phase": "decode", "batch": 8, "context_len": 4096},
        "levers": ["kv-fp8", {"id": "spec-decode", "params": {"drafts": 3}}],
    }
    answer = client.post("/api/v1/estimates/bound", json=body)
    assert answer.status_code == 200
    first, second = answer.json()["ledger"]
    assert first["after"] == second["before"]
    assert second["after_s_per_token"] < second["before_s_per_token"]
    refused = client.post("/api/v1/estimates/bound", json={**body, "levers": ["kv-fp8", "kv-2bit"]})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"][:2] == ["levers", 1]
