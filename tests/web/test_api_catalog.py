"""Hardware, models, workloads and formats over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

H100 = "nvidia-h100-sxm"
OWN = {
    "name": "Lab accelerator",
    "vendor": "Acme",
    "memory_bytes": 64e9,
    "peak": {"flop_per_s": {"bf16": 4e14}, "memory_bandwidth_bytes_per_s": 2e12},
}
OWN_MODEL = {
    "name": "Lab 1B",
    "hidden_size": 2048,
    "num_layers": 16,
    "num_attention_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}


def created(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{path}/{found['id']}"
    assert client.get(answer.headers["location"]).json() == found
    return found


def everything(client: TestClient, path: str, limit: int = 200) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = client.get(path, params={"limit": limit, **({"cursor": cursor} if cursor else {})}).json()
        items += page["items"]
        assert len(page["items"]) <= limit
        assert page["total"] >= len(items)
        if page["next"] is None:
            assert page["total"] == len(items)
            return items
        cursor = page["next"]


# ---- lists ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/v1/hardware", "/api/v1/models"])
def test_pages_of_a_list_hold_everything_once(client: TestClient, path: str) -> None:
    whole = [item["id"] for item in everything(client, path)]
    in_small_pages = [item["id"] for item in everything(client, path, limit=23)]
    assert in_small_pages == whole
    assert len(set(whole)) == len(whole) > 40


def test_lists_are_searched_by_every_word(client: TestClient) -> None:
    found = client.get("/api/v1/hardware", params={"q": "HOPPER sxm"}).json()
    assert H100 in [item["id"] for item in found["items"]]
    assert all("Hopper" in item["architecture"] for item in found["items"])
    assert client.get("/api/v1/hardware", params={"q": "hopper nothing-like-it"}).json()["total"] == 0
    assert client.get("/api/v1/models", params={"q": "llama 3.1", "kind": "moe"}).json()["total"] == 0
    amd = client.get("/api/v1/hardware", params={"vendor": "amd", "limit": 200}).json()["items"]
    assert {item["vendor"] for item in amd} == {"AMD"}


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=many", "cursor=nonsense", "cursor=WzEsMl0", "cursor=Ww", "cursor=%00"]
)
@pytest.mark.parametrize("kind", ["hardware", "models", "workloads"])
def test_a_page_that_does_not_exist_is_refused(client: TestClient, kind: str, query: str) -> None:
    answer = client.get(f"/api/v1/{kind}?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == [query.partition("=")[0]]


def test_an_own_entry_stands_in_the_list_and_survives_paging(client: TestClient) -> None:
    own = created(client, "/api/v1/hardware", OWN)
    first = client.get("/api/v1/hardware", params={"limit": 5}).json()
    created(client, "/api/v1/hardware", {**OWN, "name": "AAA first of all"})
    rest = client.get("/api/v1/hardware", params={"limit": 200, "cursor": first["next"]}).json()["items"]
    assert not {item["id"] for item in first["items"]} & {item["id"] for item in rest}
    assert own["id"] in {item["id"] for item in [*first["items"], *rest]}


# ---- hardware -------------------------------------------------------------------------------------------------------


def test_a_profile_has_peak_and_achievable_ceilings_with_sources(client: TestClient) -> None:
    profile = client.get(f"/api/v1/hardware/{H100}").json()
    assert profile["shipped"] is True
    assert profile["memory_bytes"] == 80e9
    assert profile["peak"]["flop_per_s"]["bf16"] == 989.4e12
    assert profile["peak"]["memory_bandwidth_bytes_per_s"] == 3.35e12
    assert profile["achievable"]["flop_per_s"]["bf16"] < 989.4e12
    assert profile["sources"]
    for name in ("H100 SXM", "h100-sxm", "NVIDIA-H100-SXM"):
        assert client.get(f"/api/v1/hardware/{name}").json()["id"] == H100


def test_names_in_the_path_that_mean_nothing_or_too_much(client: TestClient) -> None:
    assert client.get("/api/v1/hardware/no-such-thing").status_code == 404
    shared = client.get("/api/v1/hardware/h100")
    assert shared.status_code == 409
    assert H100 in shared.json()["candidates"]
    for name in ("%00", "%F0%9F%92%A9", "a" * 201, "..%2f..%2fetc%2fpasswd", "%ED%A0%80"):
        assert client.get(f"/api/v1/hardware/{name}").status_code in (404, 422)


def test_a_shipped_profile_is_not_changed_but_copied(client: TestClient) -> None:
    assert client.delete(f"/api/v1/hardware/{H100}").status_code == 409
    assert client.put(f"/api/v1/hardware/{H100}", json=OWN).status_code == 409
    copy = created(client, "/api/v1/hardware", {"copy_of": "H100 SXM", "name": "H100 at 500 W"})
    assert (copy["id"], copy["copied_from"], copy["shipped"]) == ("h100-at-500-w", H100, False)
    assert copy["peak"] == client.get(f"/api/v1/hardware/{H100}").json()["peak"]


def test_a_changed_figure_of_a_copy_is_marked_as_entered(client: TestClient) -> None:
    copy = created(client, "/api/v1/hardware", {"copy_of": H100, "name": "Slow memory"})
    copy["peak"]["memory_bandwidth_bytes_per_s"] = 3e12
    edited = client.put("/api/v1/hardware/slow-memory", json=copy).json()
    assert edited["revision"] == 2
    entered = [field for source in edited["sources"] if source["read"] == "entered" for field in source["fields"]]
    assert entered == ["peak.memory_bandwidth_bytes_per_s"]
    body = {"hardware": "slow-memory", "model": "llama-3.1-8b"}
    bound = client.post("/api/v1/estimates/bound", json=body).json()
    assert bound["hardware"]["id"] == "slow-memory"
    reads = {entry["figure"]: {source["read"] for source in entry["sources"]} for entry in bound["sources"]}
    assert reads["peak.memory_bandwidth_bytes_per_s"] == {"entered"}


def test_an_edit_of_an_old_revision_is_refused(client: TestClient) -> None:
    first = created(client, "/api/v1/hardware", OWN)
    assert client.put("/api/v1/hardware/lab-accelerator", json={**first, "vendor": "Mine"}).status_code == 200
    late = client.put("/api/v1/hardware/lab-accelerator", json={**first, "vendor": "Yours"})
    assert late.status_code == 409
    assert client.get("/api/v1/hardware/lab-accelerator").json()["vendor"] == "Mine"


def test_an_own_profile_lives_and_dies(client: TestClient) -> None:
    created(client, "/api/v1/hardware", OWN)
    assert client.post("/api/v1/hardware", json=OWN).status_code == 409
    assert client.delete("/api/v1/hardware/lab-accelerator").status_code == 204
    assert client.get("/api/v1/hardware/lab-accelerator").status_code == 404
    assert client.delete("/api/v1/hardware/lab-accelerator").status_code == 404
    assert client.put("/api/v1/hardware/lab-accelerator", json=OWN).status_code == 404


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": None}, "name"),
        ({"peak": {}}, "peak.memory_bandwidth_bytes_per_s"),
        ({"peak": {"flop_per_s": {"bf16": 989.4}, "memory_bandwidth_bytes_per_s": 2e12}}, "peak.flop_per_s.bf16"),
        ({"peak": {"flop_per_s": {"bf8": 1e14}, "memory_bandwidth_bytes_per_s": 2e12}}, "peak.flop_per_s.bf8"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_gb": 80}, "memory_gb"),
        ({"revision": "one"}, "revision"),
        ({"id": "Not A Slug"}, "id"),
    ],
)
def test_what_is_no_profile_is_refused_at_the_field(client: TestClient, change: dict[str, Any], place: str) -> None:
    answer = client.post("/api/v1/hardware", json={**OWN, **change})
    assert answer.status_code == 422
    assert ".".join(answer.json()["errors"][0]["loc"]) == place


@pytest.mark.parametrize("name", ["nvidia-h100-sxm", "H100 SXM", "H100"])
def test_a_name_that_means_a_shipped_profile_is_taken(client: TestClient, name: str) -> None:
    assert client.post("/api/v1/hardware", json={**OWN, "name": name}).status_code == 409


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"copy_of": "no-such-thing", "name": "X"}, "copy_of"),
        ({"copy_of": "h100", "name": "X"}, "copy_of"),
        ({"copy_of": H100}, "name"),
        ({"copy_of": H100, "name": "X", "peak": {}}, "peak"),
        ({"copy_of": 5, "name": "X"}, "copy_of"),
    ],
)
def test_a_copy_needs_a_source_and_a_name(client: TestClient, body: dict[str, Any], place: str) -> None:
    answer = client.post("/api/v1/hardware", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == [place]


# ---- models ---------------------------------------------------------------------------------------------------------


def test_names_with_slashes_are_found_as_they_are_written(client: TestClient) -> None:
    for name in ("meta-llama/Llama-3.1-8B", "meta-llama%2Fllama-3.1-8b"):
        assert client.get(f"/api/v1/models/{name}").json()["id"] == "llama-3.1-8b"
        assert client.get(f"/models/{name}").headers["location"] == "/models/llama-3.1-8b"
    assert client.get("/api/v1/hardware/GroqChip / LPU v1").json()["id"] == "groq-lpu-v1"
    assert client.get("/api/v1/models/meta-llama/Llama-99").status_code == 404
    assert client.get("/models/meta-llama/Llama-99").status_code == 404
    assert client.get("/models/llama-3.1-8b/copy").status_code == 200


def test_a_model_says_what_it_weighs(client: TestClient) -> None:
    model = client.get("/api/v1/models/llama-3.1-8b").json()
    # Per layer 2*4096^2 + 2*4096*1024 + 3*4096*14336 + 2*4096; 32 of them, two tables of 128256*4096, one norm.
    assert model["params_total"] == model["params_active"] == 8_030_261_248
    assert model["kv_bytes_per_token"] == 131_072  # 32 layers * 2 * 8 heads * 128 * 2 bytes
    assert model["shipped"] is True
    assert client.get("/api/v1/models/Llama 3.1 8B").json() == model


def test_a_mixture_has_fewer_active_parameters(client: TestClient) -> None:
    model = client.get("/api/v1/models/mixtral-8x7b").json()
    assert model["params_active"] < model["params_total"]


def test_an_own_model_lives_and_dies(client: TestClient) -> None:
    model = created(client, "/api/v1/models", OWN_MODEL)
    # 16 layers of 2*2048^2 + 2*2048*512 + 3*2048*8192 + 2*2048, one table of 128256*2048, one norm.
    assert model["params_total"] == 16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048) + 128257 * 2048
    bound = client.post("/api/v1/estimates/bound", json={"hardware": H100, "model": model["id"]})
    assert bound.status_code == 200
    edited = client.put(f"/api/v1/models/{model['id']}", json={**model, "num_layers": 8, "layers": None})
    assert edited.status_code == 200, edited.text
    assert edited.json()["params_total"] < model["params_total"]
    assert client.delete(f"/api/v1/models/{model['id']}").status_code == 204
    assert client.get(f"/api/v1/models/{model['id']}").status_code == 404


def test_defaults_that_were_filled_in_are_listed(client: TestClient) -> None:
    body = {key: value for key, value in OWN_MODEL.items() if key not in ("num_kv_heads", "head_dim")}
    answer = client.post("/api/v1/models", json=body)
    assert answer.status_code == 201
    assert any("kv_heads" in text for text in answer.json()["assumptions"])
    bound = client.post("/api/v1/estimates/bound", json={"hardware": H100, "model": answer.json()["id"]}).json()
    assert set(answer.json()["assumptions"]) <= set(bound["assumptions"])


def test_a_model_that_cannot_be_understood_is_refused(client: TestClient) -> None:
    unknown = client.post("/api/v1/models", json={**OWN_MODEL, "attention_flavour": "sweet"})
    assert unknown.status_code == 422
    assert unknown.json()["errors"][0]["loc"] == ["attention_flavour"]
    config = client.post("/api/v1/models", json={"name": "X", "hf_config": {"model_type": "no-such-family"}})
    assert config.status_code == 422
    assert config.json()["errors"][0]["loc"] == ["hf_config", "model_type"]


def test_a_config_file_is_imported_as_it_is(client: TestClient) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "transformers_version": "4.35.0",
    }
    model = created(client, "/api/v1/models", {"name": "Tiny", "hf_config": config})
    # 22 layers of 2*2048^2 + 2*2048*256 + 3*2048*5632 + 2*2048, two tables of 32000*2048, one norm.
    assert model["params_total"] == 1_100_048_384
    assert model["kv_bytes_per_token"] == 22 * 2 * 4 * 64 * 2
    bound = client.post("/api/v1/estimates/bound", json={"hardware": H100, "model": model["id"]})
    assert bound.status_code == 200
    inline = client.post("/api/v1/estimates/bound", json={"hardware": H100, "model": {"hf_config": config}})
    assert inline.json()["bound_s"] == bound.json()["bound_s"]


def test_a_shipped_model_is_not_changed_but_copied(client: TestClient) -> None:
    assert client.delete("/api/v1/models/llama-3.1-8b").status_code == 409
    assert client.put("/api/v1/models/llama-3.1-8b", json=OWN_MODEL).status_code == 409
    copy = created(client, "/api/v1/models", {"copy_of": "llama-3.1-8b", "name": "Our Llama"})
    assert (copy["id"], copy["copied_from"], copy["params_total"]) == ("our-llama", "llama-3.1-8b", 8_030_261_248)


def test_every_shipped_entry_can_be_opened(client: TestClient) -> None:
    for kind in ("hardware", "models"):
        for item in everything(client, f"/api/v1/{kind}"):
            assert client.get(f"/api/v1/{kind}/{item['id']}").json()["id"] == item["id"]


def test_an_answer_can_be_sent_back_as_an_object(client: TestClient) -> None:
    created(client, "/api/v1/models", OWN_MODEL)
    for hardware, model in ((H100, "llama-3.1-8b"), (created(client, "/api/v1/hardware", OWN)["id"], "lab-1b")):
        body = {
            "hardware": client.get(f"/api/v1/hardware/{hardware}").json(),
            "model": client.get(f"/api/v1/models/{model}").json(),
        }
        inline = client.post("/api/v1/estimates/bound", json=body)
        by_name = client.post("/api/v1/estimates/bound", json={"hardware": hardware, "model": model})
        assert inline.status_code == 200, inline.text
        assert inline.json()["bound_s"] == by_name.json()["bound_s"]


# ---- workloads and formats ------------------------------------------------------------------------------------------


def test_a_workload_is_saved_with_its_defaults(client: TestClient) -> None:
    body = {"name": "Chat", "model": "Llama 3.1 8B", "workload": {"phase": "decode", "batch": 32}}
    saved = created(client, "/api/v1/workloads", body)
    assert saved["model"] == "llama-3.1-8b"
    assert saved["workload"]["batch"] == 32
    assert saved["workload"]["dtypes"]["weights"] == "bf16"
    assert client.get("/api/v1/workloads").json()["items"] == [saved]
    change = {"name": "Chat", "workload": {"batch": 64}, "revision": 1}
    assert client.put(f"/api/v1/workloads/{saved['id']}", json=change).json()["revision"] == 2
    assert client.put(f"/api/v1/workloads/{saved['id']}", json=change).status_code == 409
    assert client.delete(f"/api/v1/workloads/{saved['id']}").status_code == 204
    assert client.get(f"/api/v1/workloads/{saved['id']}").status_code == 404
    assert client.put(f"/api/v1/workloads/{saved['id']}", json=body).status_code == 404


def test_a_saved_workload_can_be_estimated_as_it_stands(client: TestClient) -> None:
    saved = created(client, "/api/v1/workloads", {"name": "W", "workload": {"phase": "prefill", "seq_len": 512}})
    body = {"hardware": H100, "model": "llama-3.1-8b", "workload": saved["workload"]}
    assert client.post("/api/v1/estimates/bound", json=body).json()["tokens"] == 512


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"workload": {}}, "name"),
        ({"name": "  ", "workload": {}}, "name"),
        ({"name": "W", "workload": {"batch": 0}}, "workload.batch"),
        ({"name": "W", "model": "no-such-thing"}, "model"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(client: TestClient, body: dict[str, Any], place: str) -> None:
    answer = client.post("/api/v1/workloads", json=body)
    assert answer.status_code == 422
    assert ".".join(answer.json()["errors"][0]["loc"]) == place


def test_formats_have_the_names_that_uploads_answer(client: TestClient) -> None:
    formats = client.get("/api/v1/formats").json()
    ids = {item["id"] for item in formats["items"]}
    assert {"vllm-bench-serve", "sglang-bench-serving", "llama-bench", "bytebound"} <= ids
    assert formats["total"] == len(formats["items"])


def test_the_schema_of_our_own_format(client: TestClient) -> None:
    answer = client.get("/api/v1/schema/run.json")
    assert answer.headers["content-type"] == "application/schema+json"
    assert answer.json()["required"] == ["bytebound", "runs"]
