"""What a walk remarks on: values that cannot all be true, trees that do not fit, steps that no device holds; and that
nothing is promised beyond what a direction addresses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.services.context import Context
from app.services.diagnose import DiagnosisRequest, diagnose
from app.services.diagnose_json import diagnosis_json
from app.services.upload_run import upload_file


def walked(ctx: Context, scenario: str, run: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    if run is not None:
        data = json.dumps({"bytebound": 1, "runs": [{"name": "run", **run}]}).encode()
        body["run"] = upload_file(ctx, data, "run.json").runs[0].id
    return diagnosis_json(ctx, diagnose(ctx, DiagnosisRequest.model_validate({"scenario": scenario, **body})))


def step(phase: str, model: str = "llama-3.1-8b", **workload: Any) -> dict[str, Any]:
    return {"hardware": "nvidia-h100-sxm", "model": model, "workload": {"phase": phase, **workload}}


DECODE = step("decode", batch=8, context_len=2048)
TRAINED = {
    "hardware": "nvidia-h100-sxm",
    "model": "llama-3.1-8b",
    "workload": {"phase": "train", "batch": 8, "seq_len": 2048, "parallel": {"dp": 8, "zero_stage": 3}},
    "metrics": {"step_time_s": {"mean": 4.1}},
}


@pytest.mark.parametrize(
    ("evidence", "names", "words"),
    [
        ({"launch_share": 0.6, "attn_share": 0.75}, ["launch_share", "attn_share"], "135"),
        ({"vae_share": 0.6, "text_share": 0.5}, ["vae_share", "text_share"], "110"),
        ({"mfu": 1.2}, ["mfu"], "above what a device can do"),
        ({"mfu": 0.5, "hfu": 0.4}, ["mfu", "hfu"], "HFU is the larger"),
        ({"mbu": 0.7, "launch_share": 0.5}, ["launch_share", "mbu"], "while the device waits"),
        ({"devices": 1, "exposed_comm_share": 0.3}, ["devices", "exposed_comm_share"], "nobody to exchange with"),
        ({"a2a_share": 0.4, "exposed_comm_share": 0.2}, ["a2a_share", "exposed_comm_share"], "a part of"),
    ],
)
def test_stated_values_that_cannot_all_be_true(
    context: Context, evidence: dict[str, Any], names: list[str], words: str
) -> None:
    remarks = walked(context, "dense_train", evidence=evidence)["remarks"]
    assert [(item["kind"], item["metrics"]) for item in remarks] == [("contradiction", names)]
    assert words in remarks[0]["text"]


def test_values_that_agree_are_not_remarked_on(context: Context) -> None:
    fine = {"launch_share": 0.2, "attn_share": 0.3, "gemm_share": 0.5, "mfu": 0.4, "hfu": 0.5, "mbu": 0.3, "devices": 8}
    assert walked(context, "dense_train", evidence=fine)["remarks"] == []


def test_the_users_word_against_the_estimate_and_the_run(context: Context) -> None:
    found = walked(context, "decode", estimate=DECODE, evidence={"binding": "compute", "kv_byte_share": 0.9})
    assert [item["metrics"] for item in found["remarks"]] == [["binding"], ["kv_byte_share"]]
    assert "the estimate says hbm" in found["remarks"][0]["text"]
    found = walked(
        context, "dense_train", run={**TRAINED, "evidence": {"data_wait_share": 0.4}}, evidence={"data_wait_share": 0.1}
    )
    assert ["data_wait_share"] in [item["metrics"] for item in found["remarks"]]


@pytest.mark.parametrize(
    ("scenario", "model", "phase", "offered"),
    [
        ("decode", "llama-3.1-8b", "train", "dense_train"),
        ("moe", "llama-3.1-8b", "decode", "decode"),
        ("ssm", "llama-3.1-8b", "prefill", "prefill"),
        ("decode", "qwen3-30b-a3b", "decode", "moe"),
        ("dense_train", "llama-3.1-8b", "train", None),
        ("moe", "qwen3-30b-a3b", "train", None),
    ],
)
def test_a_tree_that_does_not_fit_names_the_one_that_does(
    context: Context, scenario: str, model: str, phase: str, offered: str | None
) -> None:
    remarks = walked(context, scenario, estimate=step(phase, model, batch=1))["remarks"]
    assert [item["scenario"] for item in remarks if item["kind"] == "scenario"] == ([offered] if offered else [])


def test_a_decode_tree_on_a_training_log(context: Context, client: TestClient) -> None:
    found = walked(context, "decode", run=TRAINED)
    assert (found["remarks"][0]["kind"], found["remarks"][0]["scenario"]) == ("scenario", "dense_train")
    page = client.get("/diagnose", params={"scenario": "decode", "run": found["subject"]["run"]["id"]})
    assert "Another walk fits better" in page.text
    assert "scenario=dense_train" in page.text


def test_a_step_that_no_device_holds(context: Context) -> None:
    found = walked(context, "dense_train", estimate=step("train", batch=1, seq_len=2048))
    assert [item["kind"] for item in found["remarks"]] == ["memory"]
    assert "80 GB" in found["remarks"][0]["text"]


# ---- savings ------------------------------------------------------------------------------------------------------


def test_no_saving_exceeds_what_its_direction_addresses(context: Context) -> None:
    run = {
        "hardware": "nvidia-h200-sxm",
        "model": "llama-3.1-8b",
        "workload": {"phase": "decode", "batch": 1, "context_len": 511, "launch_mode": "eager"},
        "metrics": {"tpot_s": {"p50": 0.0241}},
        "evidence": {"launch_share": 0.2},
    }
    first = walked(context, "decode", run=run)["directions"][0]
    assert (first["leaf"], first["addresses"]["share"]) == ("L-graphs", 0.2)
    saved = {item["id"]: item["predicted_saving_s"] for item in first["techniques"] if item["predicted_saving_s"]}
    assert saved["cuda-graph"] == pytest.approx(0.2 * 0.0241)
    assert max(saved.values()) <= 0.2 * 0.0241 * (1 + 1e-9)


def test_a_measured_wait_is_what_a_loader_saves_at_most(context: Context) -> None:
    found = walked(context, "dense_train", run={**TRAINED, "evidence": {"data_wait_share": 0.42}})
    loader = next(item for item in found["directions"][0]["techniques"] if item["id"] == "dataloader")
    assert (loader["predicted_saving_s"], loader["at_most"]) == (pytest.approx(0.42 * 4.1), True)
    assert "Async" in found["headline"] or "save at most 1.72" in found["headline"]


def test_levers_take_the_numbers_that_are_known(context: Context) -> None:
    found = walked(context, "dense_train", run={**TRAINED, "evidence": {"padding_fraction": 0.35}})
    packed = {item["id"]: item["params"] for item in found["directions"][0]["techniques"]}
    assert packed["length-bucketing"] == {"padding": 0.35}
    shared = walked(context, "decode", estimate=step("decode", batch=32, context_len=16384))
    cascade = next(item for item in shared["directions"][0]["techniques"] if item["id"] == "cascade-prefix")
    assert cascade["predicted_saving_s"] is None  # nobody says that prompts have anything in common
    assert "state the prompt tokens that repeat" in cascade["reason"]


def test_what_an_estimate_has_already_is_not_proposed_again(context: Context) -> None:
    asked = {**step("decode", batch=32, context_len=16384), "levers": ["kv-fp8", "swa"]}
    found = walked(context, "decode", estimate=asked)
    tried = {item["id"]: item for direction in found["directions"] for item in direction["techniques"]}
    for id_ in {"kv-fp8", "swa"} & tried.keys():
        assert (tried[id_]["applies"], tried[id_]["reason"]) == (False, "the estimate has it already")


def test_less_recomputation_is_predicted_to_save_time(context: Context) -> None:
    asked = step("train", batch=1, seq_len=4096, recompute="full", parallel={"dp": 64, "zero_stage": 3})
    found = walked(context, "dense_train", estimate=asked, evidence={"exposed_comm_share": 0.0})
    assert found["directions"][0]["leaf"] == "L-lessrecompute"
    saving = found["directions"][0]["techniques"][0]
    # a forward pass of four is not done again: a quarter at most
    assert 0.1 < saving["predicted_saving_share"] < 0.25


@pytest.mark.parametrize(
    ("scenario", "estimate", "evidence", "place"),
    [
        ("decode", step("decode", batch=32, context_len=16384), {}, "/kv?"),
        (
            "dense_train",
            step("train", batch=1, parallel={"pp": 4, "micro_batches": 4}),
            {"bubble_share": 0.4},
            "/comm?",
        ),
        ("dense_train", step("train", batch=1), {"mem_peak_ratio": 0.97, "act_ratio": 0.6}, "/memory?"),
        ("moe", step("decode", "qwen3-30b-a3b", batch=4), {}, "/moe?"),
        ("decode", step("decode", batch=4, parallel={"tp": 8}), {"tp_latency_share": 0.4, "mbu": 0.3}, "/comm?"),
        ("dense_train", step("train", batch=4), {"padding_fraction": 0.3}, "/explore?"),
        ("dense_train", None, {"padding_fraction": 0.3}, "/library/techniques/length-bucketing"),
    ],
)
def test_what_confirms_a_direction_opens_on_the_same_step(
    context: Context,
    client: TestClient,
    scenario: str,
    estimate: dict[str, Any] | None,
    evidence: dict[str, Any],
    place: str,
) -> None:
    body = {"evidence": evidence} | ({} if estimate is None else {"estimate": estimate})
    first = walked(context, scenario, **body)["directions"][0]
    assert first["confirm_url"].startswith(place), first
    page = client.get(first["confirm_url"])
    assert page.status_code == 200, page.text[:500]
    if place in ("/kv?", "/memory?", "/moe?", "/explore?"):
        assert ("Llama 3.1 8B" if scenario != "moe" else "Qwen3 30B-A3B") in page.text
    if place == "/kv?":
        assert "H100" in page.text
        assert "16,384" in page.text
