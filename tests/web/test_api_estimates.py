"""Bounds over HTTP. The numbers are worked out by hand in the comments."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

H100 = "nvidia-h100-sxm"
LLAMA = "llama-3.1-8b"


def bound(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/estimates/bound", json={"hardware": H100, "model": LLAMA, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refusal(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/estimates/bound", json={"hardware": H100, "model": LLAMA, **body})
    assert answer.status_code == 422, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_decode_of_one_sequence_takes_the_time_to_read_the_weights(client: TestClient) -> None:
    answer = bound(client, workload={"phase": "decode"})
    # Matrices: 32 layers of 2*4096*4096 + 2*4096*1024 + 3*4096*14336, and a head of 4096*128256, in 2 bytes each.
    weights = 2 * (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256)
    assert weights == 15_009_316_864
    assert answer["bound_s"] == pytest.approx(weights / 3.35e12, rel=1e-3)  # 4.48 ms
    assert answer["binding"] == "hbm"
    # Two FLOP a weight and token; attention over an empty context adds next to nothing.
    assert answer["flop"] == pytest.approx(weights, rel=1e-3)
    assert answer["tokens_per_s"] == pytest.approx(3.35e12 / weights, rel=1e-3)  # 223 tokens/s
    assert answer["memory"]["capacity_bytes"] == 80e9
    assert answer["memory"]["fits"] is True


def test_values_that_may_lie_in_keys_are_said_to(client: TestClient) -> None:
    op = {"op": "attention", "seq_q": 1, "seq_kv": 4096, "heads": 128, "kv_heads": 1, "head_dim": 576, "causal": False}
    note = "op.values_in_keys was not given"
    for more, said in (({"v_head_dim": 512}, True), ({"v_head_dim": 512, "values_in_keys": False}, False), ({}, False)):
        answer = client.post("/api/v1/estimates/op", json={"hardware": "h100-sxm", "op": {**op, **more}}).json()
        assert any(text.startswith(note) for text in answer["assumptions"]) is said


def test_a_collective_by_itself_takes_the_algorithm_that_was_asked(client: TestClient) -> None:
    """24 ranks on three nodes: a ring and a tree send everything at the slow link's pace, 50 GB/s one way."""
    op = {"op": "collective", "kind": "all_reduce", "bytes": 3.3e7, "ranks": 24, "ranks_per_node": 8}
    factors = {"ring": 2 * 23 / 24, "tree": 2.0, "hierarchical": 2 * 2 / 3 / 8}
    for name, factor in factors.items():
        body = {"hardware": "h100-sxm", "op": {**op, "algorithm": name}}
        answer = client.post("/api/v1/estimates/op", json=body).json()
        assert answer["bound_s"] == pytest.approx(factor * 3.3e7 / 50e9, rel=1e-9) or name == "hierarchical"
        assert answer["bound_s"] >= factor * 3.3e7 / 50e9
    body = {"hardware": "h100-sxm", "op": {**op, "kind": "all_to_all", "algorithm": "tree"}}
    refused = client.post("/api/v1/estimates/op", json=body)
    assert (refused.status_code, "no tree" in refused.text) == (422, True)


def test_operations_add_up_to_the_totals(client: TestClient) -> None:
    workload = {"phase": "train", "batch": 2, "seq_len": 2048, "parallel": {"tp": 4}}
    answer = bound(client, workload=workload)
    for total in ("flop", "executed_flop", "hbm_bytes", "net_bytes", "launches"):
        assert answer[total] == pytest.approx(sum(op["count"] * op[total] for op in answer["ops"]), rel=1e-12)
    assert answer["net_bytes"] > 0
    assert answer["bound_s"] <= answer["serial_bound_s"]


def test_what_was_assumed_and_cited_is_said(client: TestClient) -> None:
    answer = bound(client, workload={"phase": "decode", "batch": 4})
    assert any(text.startswith("workload.context_len was not given: 0") for text in answer["assumptions"])
    assert not any("workload.batch" in text for text in answer["assumptions"])
    nothing = client.post("/api/v1/estimates/bound", json={"hardware": "h100-sxm", "model": "llama-3.1-8b"}).json()
    told = next(text for text in nothing["assumptions"] if text.startswith("workload was not given"))
    assert "dtypes (weights bf16, activations bf16, " in told
    assert "sequence_parallel no, " in told
    assert not {"None", "[]", "=", "'"} & set(told)
    figures = {source["figure"] for source in answer["sources"]}
    assert {"peak.flop_per_s.bf16", "peak.memory_bandwidth_bytes_per_s"} <= figures
    assert all(source["sources"] for source in answer["sources"])


def test_a_step_that_does_not_fit_has_a_bound_and_no_throughput(client: TestClient) -> None:
    answer = bound(client, workload={"phase": "decode", "batch": 1_000_000, "context_len": 8192})
    assert answer["memory"]["fits"] is False
    assert answer["bound_s"] > 0
    assert answer["tokens_per_s"] is None


def test_names_of_all_kinds_mean_the_same(client: TestClient) -> None:
    by_id = bound(client)
    by_alias = bound(client, hardware="H100 SXM", model="meta-llama/Llama-3.1-8B")
    assert by_alias["bound_s"] == by_id["bound_s"]
    assert by_alias["hardware"]["id"] == H100


def test_hardware_and_model_may_be_given_as_objects(client: TestClient) -> None:
    hardware = {
        "name": "Round numbers",
        "peak": {"flop_per_s": {"bf16": 1e15}, "memory_bandwidth_bytes_per_s": 1e12},
    }
    model = {
        "name": "One layer",
        "hidden_size": 1024,
        "num_layers": 1,
        "num_attention_heads": 8,
        "num_kv_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    }
    answer = bound(client, hardware=hardware, model=model)
    # 4*1024^2 + 3*1024*4096 + 1024*32000 weights of 2 bytes at 1 TB/s: 99.1 us.
    assert answer["bound_s"] == pytest.approx(2 * (4 * 1024**2 + 3 * 1024 * 4096 + 1024 * 32000) / 1e12, rel=2e-3)
    assert answer["memory"]["fits"] is None
    assert any("no memory capacity" in text for text in answer["assumptions"])
    assert {source["read"] for entry in answer["sources"] for source in entry["sources"]} == {"entered"}


def test_an_unknown_name_is_refused_with_near_ones(client: TestClient) -> None:
    body = refusal(client, model="llama-3.1-8bb")
    assert body["errors"][0]["loc"] == ["model"]
    assert "llama-3.1-8b" in body["candidates"]
    assert "did you mean" in body["detail"]


def test_an_ambiguous_name_is_refused_with_its_candidates(client: TestClient) -> None:
    body = refusal(client, hardware="H100")
    assert body["errors"][0]["loc"] == ["hardware"]
    assert H100 in body["candidates"]


def test_a_precision_that_the_device_has_not_is_not_guessed(client: TestClient) -> None:
    workload = {"phase": "decode", "dtypes": {"weights": "fp8", "activations": "fp8"}}
    body = refusal(client, hardware="nvidia-a100-sxm4-80gb", workload=workload)
    assert "fp8" in body["detail"]
    assert body["figure"]


def test_heads_that_do_not_divide_are_refused_at_the_field(client: TestClient) -> None:
    body = refusal(client, workload={"parallel": {"tp": 3}})
    assert body["errors"][0]["loc"] == ["workload", "parallel", "tp"]


@pytest.mark.parametrize("field", ["hardware", "model"])
def test_a_field_of_an_object_is_named_with_its_whole_path(client: TestClient, field: str) -> None:
    body = refusal(client, **{field: {"name": "X", "peak": {"flop_per_s": {"bf16": 400}}, "hidden_size": -1}})
    assert body["errors"][0]["loc"][0] == field


def test_a_matrix_product(client: TestClient) -> None:
    op = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
    answer = client.post("/api/v1/estimates/op", json={"hardware": H100, "op": op}).json()
    # 2 * 4096^3 = 137.4 GFLOP at 989.4 TFLOP/s: 138.9 us; 3 * 4096^2 * 2 bytes are 100.7 MB.
    assert answer["flop"] == 137_438_953_472
    assert answer["hbm_bytes"] == 100_663_296
    assert answer["bound_s"] == pytest.approx(137_438_953_472 / 989.4e12, rel=1e-3)
    assert answer["binding"] == "compute"
    assert answer["expected"]["low_s"] <= answer["expected"]["time_s"] <= answer["expected"]["high_s"]


def test_an_elementwise_operation_is_bound_by_memory(client: TestClient) -> None:
    op = {"op": "elementwise", "elements": 2**30, "reads": 2, "writes": 1, "dtype": "bf16"}
    answer = client.post("/api/v1/estimates/op", json={"hardware": H100, "op": op}).json()
    assert answer["hbm_bytes"] == 3 * 2 * 2**30
    assert answer["bound_s"] == pytest.approx(3 * 2 * 2**30 / 3.35e12)
    assert answer["binding"] == "hbm"


def test_achievable_ceilings_are_never_faster(client: TestClient) -> None:
    workload = {"phase": "prefill", "seq_len": 2048}
    peak = bound(client, workload=workload)
    achievable = bound(client, workload=workload, ceilings="achievable")
    assert achievable["bound_s"] > peak["bound_s"]


def test_thresholds_hold_on_one_side_and_not_on_the_other(client: TestClient) -> None:
    body = {
        "hardware": "nvidia-h100-sxm",
        "model": "granite-3.0-1b-a400m",
        "workload": {"phase": "prefill", "batch": 1, "seq_len": 256},
    }
    rows = client.post("/api/v1/estimates/thresholds", json=body).json()["thresholds"]
    compute = next(row for row in rows if row["id"] == "compute-bound")
    assert (compute["from"], compute["until"]) == (5, 71)
    assert [(check["value"], check["holds"]) for check in compute["checks"]] == [
        (4, False), (5, True), (71, True), (72, False),
    ]  # fmt: skip
    for check in compute["checks"]:
        body["workload"] = {"phase": "prefill", "batch": check["value"], "seq_len": 256}
        terms = client.post("/api/v1/estimates/bound", json=body).json()["terms"]
        assert (terms["compute_s"], terms["hbm_s"]) == (check["first"], check["second"])
