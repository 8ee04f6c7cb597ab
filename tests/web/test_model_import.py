"""A config.json over HTTP: stored, estimated inline, and pasted into the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

FOLDER = Path(__file__).parents[1] / "fixtures" / "hf-configs"
HTMX = {"HX-Request": "true"}


def config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return data


# -- API --------------------------------------------------------------------------------------------------------------


def test_a_config_is_stored_with_what_was_filled_in(client: TestClient) -> None:
    answer = client.post("/api/v1/models", json={"name": "Our GPT-2", "hf_config": config("gpt2")})
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["location"] == "/api/v1/models/our-gpt-2"
    assert made["params_total"] == 124_439_808
    assert made["num_kv_heads"] == 12
    assert "num_key_value_heads is not given: taken as 12, one for each query head" in made["assumptions"]
    again = client.get("/api/v1/models/our-gpt-2").json()
    assert again["assumptions"] == made["assumptions"]
    assert again["hf_import"]["model_type"] == "gpt2"


def test_what_was_answered_can_be_put_back(client: TestClient) -> None:
    made = client.post("/api/v1/models", json={"name": "Our GPT-2", "hf_config": config("gpt2")}).json()
    put = client.put("/api/v1/models/our-gpt-2", json=made)
    assert put.status_code == 200
    assert put.json()["assumptions"] == made["assumptions"]
    replaced = client.put("/api/v1/models/our-gpt-2", json={"name": "Our GPT-2", "hf_config": config("gpt2-medium")})
    assert replaced.status_code == 200
    assert replaced.json()["params_total"] == 354_823_168


def test_an_estimate_takes_a_config_inline(client: TestClient) -> None:
    body = {
        "hardware": "nvidia-h100-sxm",
        "workload": {"phase": "decode", "batch": 8, "context_len": 1024},
    }
    inline = client.post("/api/v1/estimates/bound", json={**body, "model": {"hf_config": config("llama-3.1-8b")}})
    by_name = client.post("/api/v1/estimates/bound", json={**body, "model": "llama-3.1-8b"})
    assert inline.status_code == by_name.status_code == 200
    for key in ("bound_s", "flop", "hbm_bytes"):
        assert inline.json()[key] == by_name.json()[key]
    assert any("attention_bias" in text or "head_dim" in text for text in inline.json()["assumptions"])


@pytest.mark.parametrize(
    ("data", "loc", "words"),
    [
        ({"model_type": "esm"}, ["hf_config", "model_type"], "'esm' is an architecture that is not known here"),
        ({"model_type": "llama", "hidden_size": 64}, ["hf_config", "num_attention_heads"], "is missing"),
        ("text", ["hf_config"], "expected an object, got text"),
    ],
)
def test_a_refusal_names_the_field(client: TestClient, data: object, loc: list[str], words: str) -> None:
    answer = client.post("/api/v1/models", json={"name": "Ours", "hf_config": data})
    assert answer.status_code == 422
    error = answer.json()["errors"][0]
    assert error["loc"][: len(loc)] == loc or error["loc"][0] == "hf_config"
    if data != {"model_type": "llama", "hidden_size": 64}:
        assert error["loc"] == loc
    assert words in error["msg"]
    body = {"hardware": "nvidia-h100-sxm", "model": {"hf_config": data}}
    inline = client.post("/api/v1/estimates/bound", json=body)
    assert inline.status_code == 422
    assert inline.json()["errors"][0]["loc"][:2] == ["model", "hf_config"]


def test_nothing_else_stands_beside_a_config(client: TestClient) -> None:
    answer = client.post("/api/v1/models", json={"name": "Ours", "hf_config": config("gpt2"), "hidden_size": 1})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["hidden_size"]


def test_a_name_that_is_taken_is_a_conflict(client: TestClient) -> None:
    for name in ("Llama 3.1 8B", "new"):
        answer = client.post("/api/v1/models", json={"name": name, "hf_config": config("gpt2")})
        assert answer.status_code == 409


# -- page -------------------------------------------------------------------------------------------------------------


def test_the_empty_page(client: TestClient) -> None:
    page = client.get("/models/new")
    assert page.status_code == 200
    assert "Nothing to show yet" in page.text
    assert 'name="config"' in page.text
    assert "qwen3_moe" in page.text


def test_a_preview_shows_what_was_understood(client: TestClient) -> None:
    form = {"name": "", "config": json.dumps(config("gpt2"))}
    part = client.post("/models/new/preview", data=form, headers=HTMX)
    assert part.status_code == 200
    assert "<html" not in part.text
    assert "Dense decoder with 124 million parameters" in part.text
    assert "head_dim is not given: taken as 64" in part.text
    whole = client.post("/models/new/preview", data=form)
    assert "<html" in whole.text
    assert "Dense decoder with 124 million parameters" in whole.text
    assert client.get("/models/gpt-2-ours").status_code == 404


def test_a_preview_of_something_broken_says_where(client: TestClient) -> None:
    part = client.post("/models/new/preview", data={"config": '{"a": 1,\n"a": 2}'}, headers=HTMX)
    assert part.status_code == 422
    assert "twice in one object (line 2, column 1)" in part.text


def test_a_file_goes_before_the_box(client: TestClient) -> None:
    data = json.dumps(config("gpt2")).encode()
    part = client.post(
        "/models/new/preview", data={"config": "{}"}, files={"file": ("config.json", data)}, headers=HTMX
    )
    assert part.status_code == 200
    assert "124 million" in part.text
    empty = client.post("/models/new/preview", data={"config": data.decode()}, files={"file": ("", b"")}, headers=HTMX)
    assert empty.status_code == 200


@pytest.mark.parametrize(
    ("then", "address"), [("page", "/models/pasted-gpt-2"), ("explore", "/explore?model=pasted-gpt-2")]
)
def test_saving_leads_on(client: TestClient, then: str, address: str) -> None:
    form = {"name": "Pasted GPT-2", "config": json.dumps(config("gpt2")), "then": then}
    saved = client.post("/models/new", data=form)
    assert saved.status_code == 303
    assert saved.headers["location"] == address
    assert client.get(address).status_code == 200


def test_saving_keeps_what_was_typed_when_it_is_refused(client: TestClient) -> None:
    text = json.dumps(config("gpt2"))
    unnamed = client.post("/models/new", data={"name": " ", "config": text})
    assert unnamed.status_code == 422
    assert "Give the model a name" in unnamed.text
    assert "n_embd" in unnamed.text
    taken = client.post("/models/new", data={"name": "Llama 3.1 8B", "config": text})
    assert taken.status_code == 409
    assert "already means" in taken.text
    broken = client.post("/models/new", data={"name": "Ours", "config": '{"model_type": "<b>x</b>"}'})
    assert broken.status_code == 422
    assert "<b>x</b>" not in broken.text
    assert "&lt;b&gt;x&lt;/b&gt;" in broken.text


def test_what_cannot_be_estimated_is_kept_with_its_reason(client: TestClient) -> None:
    bert = {
        "model_type": "recurrent_gemma", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 1536, "vocab_size": 1000, "lru_width": 256,
    }  # fmt: skip
    form = {"name": "Small Griffin", "config": json.dumps(bert), "then": "explore"}
    part = client.post("/models/new/preview", data=form, headers=HTMX)
    assert "can be kept, not estimated yet" in part.text
    assert "rg_lru" in part.text
    saved = client.post("/models/new", data=form)
    assert saved.headers["location"] == "/models/small-griffin"
    assert "rg_lru" in client.get("/models/small-griffin").text
