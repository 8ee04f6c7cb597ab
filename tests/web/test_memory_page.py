"""The memory page and its API: one number everywhere, sums, stages, levers, and moves that make a step fit."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from app.web.formatting import exact

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
H100 = "nvidia-h100-sxm"
TRAIN_8B: dict[str, Any] = {"phase": "train", "batch": 1, "seq_len": 4096}


def text_of(body: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def ask(client: TestClient, path: str = "memory", **body: object) -> dict[str, Any]:
    answer = client.post(f"/api/v1/estimates/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def held(answer: dict[str, Any]) -> dict[str, float]:
    return {item["object"]: item["bytes"] for item in answer["objects"]}


def test_page_api_and_lab_give_the_same_number(client: TestClient) -> None:
    query = "phase=train&batch=1&seq=4096&dp=8&levers=zero-fsdp(stage=2)"
    body = {
        "hardware": H100,
        "model": "llama-3.1-8b",
        "workload": {**TRAIN_8B, "parallel": {"dp": 8}},
        "levers": [{"id": "zero-fsdp", "params": {"stage": 2}}],
    }
    memory, bound = ask(client, **body), ask(client, "bound", **body)
    page, lab = client.get(f"/memory?{query}").text, client.get(f"/explore?{query}").text
    assert f'data-exact="{exact(memory["peak_bytes"], "B")}"' in page
    assert memory["least"]["peak_bytes"] == bound["memory"]["peak_bytes"]
    for shown in (page, lab):
        assert f'data-exact="{exact(bound["memory"]["peak_bytes"], "B")}"' in shown
    least, full = held(bound["memory"]), held(memory)
    assert all(full[name] == size for name, size in least.items() if size)


def test_the_objects_of_a_training_step_by_hand(client: TestClient) -> None:
    """Llama 3.1 8B has 8,030,261,248 parameters: 2 bytes each, gradients again, 8 of moments, 4 of master copy."""
    answer = ask(client, hardware=H100, model="llama-3.1-8b", workload=TRAIN_8B)
    objects = held(answer)
    n = 8_030_261_248
    assert objects["parameters"] == objects["gradients"] == 2 * n
    assert objects["optimizer"] == 12 * n
    parts = {part["part"]: part["bytes"] for item in answer["objects"] for part in item["parts"]}
    assert parts == {"moments": 8 * n, "master weights": 4 * n}
    assert objects["workspace"] == 512 * 2**20
    payload = sum(size for name, size in objects.items() if name not in ("workspace", "fragmentation"))
    assert objects["fragmentation"] == pytest.approx(payload * 0.05 / 0.95)
    assert answer["peak_bytes"] == pytest.approx(sum(objects.values()))
    assert answer["headroom_bytes"] == pytest.approx(80e9 - answer["peak_bytes"])
    assert answer["fits"] is False


def test_without_a_reserve_the_peak_is_the_bound_s(client: TestClient) -> None:
    nothing = {"fragmentation": 0.0, "workspace_bytes": 0.0, "bucket_bytes": 0.0, "gathered_layers": 0}
    answer = ask(client, hardware=H100, model="llama-3.1-8b", workload={"context_len": 4096}, reserve=nothing)
    assert answer["peak_bytes"] == answer["least"]["peak_bytes"]
    assert answer["largest_batch"] == answer["least"]["largest_batch"]


def test_gathered_layers_of_a_fully_sharded_step(client: TestClient) -> None:
    """A layer of Llama 3.1 8B has 218,112,000 parameters with its norms; the final norm counts with all 32."""
    workload = {**TRAIN_8B, "parallel": {"dp": 8, "zero_stage": 3}}
    answer = ask(client, hardware=H100, model="llama-3.1-8b", workload=workload)
    # two layers of weights and the gradients of one, 2 bytes each
    assert held(answer)["communication"] == pytest.approx(3 * 2 * (218_112_000 + 4096 / 32))


def test_levers_telescope_and_say_what_they_cost(client: TestClient) -> None:
    workload = {**TRAIN_8B, "parallel": {"dp": 8}}
    levers = ["zero-fsdp", "full-recompute"]
    answer = ask(client, hardware=H100, model="llama-3.1-8b", workload=workload, levers=levers)
    assert [row["id"] for row in answer["levers"]] == levers
    assert [row["memory_lever"] for row in answer["levers"]] == ["shard", "recompute"]
    saved = sum(row["saves_bytes"] for row in answer["levers"])
    assert answer["baseline_bytes"] - saved == pytest.approx(answer["peak_bytes"])
    for row in answer["levers"]:
        assert row["saves_bytes"] == pytest.approx(sum(item["bytes"] for item in row["saves_by_object"]))
    shard, recompute = (row["costs"] for row in answer["levers"])
    assert shard["net_bytes"] > 0
    assert recompute["flop"] > 0
    assert recompute["net_bytes"] == 0


def test_stages_of_a_pipeline(client: TestClient) -> None:
    """80 layers in four stages: 1F1B holds 4, 3, 2 and 1 of eight micro-batches; only the ends have the vocabulary."""
    workload = {
        "phase": "train",
        "batch": 1,
        "seq_len": 4096,
        "parallel": {"tp": 8, "pp": 4, "micro_batches": 8, "sequence_parallel": True},
    }
    answer = ask(client, hardware=H100, model="llama-3.1-70b", workload=workload)
    stages = answer["stages"]
    assert [stage["layers"] for stage in stages] == [20, 20, 20, 20]
    assert [stage["micro_batches_in_flight"] for stage in stages] == [4, 3, 2, 1]
    by_stage = [held(stage) for stage in stages]
    assert by_stage[1]["activations"] == pytest.approx(by_stage[0]["activations"] * 3 / 4)
    table = 128_256 * 8192 / 8 * 2
    assert by_stage[0]["parameters"] - by_stage[1]["parameters"] == pytest.approx(table)
    assert by_stage[3]["parameters"] - by_stage[2]["parameters"] == pytest.approx(table)
    assert [stage["logits"] > 0 for stage in by_stage] == [False, False, False, True]
    assert answer["peak_bytes"] == max(stage["peak_bytes"] for stage in stages)


SEARCHES: list[dict[str, Any]] = [
    {
        "model": "llama-3.1-70b",
        "workload": {"phase": "train", "batch": 1, "seq_len": 8192, "parallel": {"tp": 8, "dp": 4}},
    },
    {"model": "llama-3.1-8b", "workload": {"phase": "train", "batch": 4, "seq_len": 8192, "parallel": {"dp": 8}}},
    {"model": "llama-3.1-70b", "workload": {"batch": 64, "context_len": 8192, "parallel": {"tp": 2, "dp": 4}}},
]


@pytest.mark.parametrize("question", SEARCHES, ids=["train 70B", "train 8B", "decode 70B"])
def test_what_is_proposed_fits_when_it_is_asked_for(client: TestClient, question: dict[str, Any]) -> None:
    found = ask(client, hardware=H100, make_it_fit=True, **question)
    fit = found["make_it_fit"]
    assert found["fits"] is False
    assert fit["proposals"]
    for proposal in fit["proposals"]:
        w = {**question["workload"], **proposal["workload"]}
        again = ask(client, hardware=H100, model=question["model"], workload=w, levers=proposal["levers"])
        assert again["fits"] is True
        assert again["peak_bytes"] == pytest.approx(proposal["peak_bytes"])
        assert again["devices"] == found["devices"]
        peak, time = fit["start_bytes"], fit["start_time_s"]
        for step in proposal["steps"]:
            peak, time = peak - step["saves_bytes"], time + step["costs_time_s"]
            assert step["gives_up"]
        assert (peak, time) == pytest.approx((proposal["peak_bytes"], proposal["time_s"]))
        # no fewer sequences than asked for
        p, asked = proposal["workload"]["parallel"], question["workload"]
        sequences = proposal["workload"]["batch"] * p["dp"] * p["micro_batches"]
        assert sequences == asked["batch"] * asked["parallel"].get("dp", 1)
    exact = [proposal["time_s"] for proposal in fit["proposals"] if proposal["exact"]]
    assert exact == sorted(exact)
    assert fit["tried"]
    assert all(item["reason"] for item in fit["tried"] if item["peak_bytes"] is None)
    assert ask(client, hardware=H100, make_it_fit=True, **question)["make_it_fit"] == fit


def test_moves_that_are_dear_alone_and_cheap_together_are_found(client: TestClient) -> None:
    """State on the host costs much by itself, little once it is sharded: no pair of moves tried by hand is cheaper."""
    workload = {"phase": "train", "batch": 4, "seq_len": 4096, "parallel": {"tp": 2, "dp": 2, "ep": 2}}
    question = {"hardware": H100, "model": "deepseek-v2-lite", "workload": workload}
    best = ask(client, **question, make_it_fit=True)["make_it_fit"]["proposals"][0]
    sharded = {"id": "zero-fsdp", "params": {"stage": 2}}
    by_hand = ask(client, **question, levers=[sharded, "cpu-offload-opt"])
    assert by_hand["fits"] is True
    assert best["time_s"] <= by_hand["expected"]["time_s"] * 1.005


def test_a_dear_narrow_format_has_a_cheap_one_behind_it(client: TestClient) -> None:
    """An fp8 cache fits with the weights on the host at several times the time; beside int4 weights it saves some."""
    workload = {"batch": 64, "context_len": 32768, "parallel": {"tp": 4}}
    fit = ask(client, hardware=H100, model="qwen3-32b", workload=workload, make_it_fit=True)["make_it_fit"]
    dear, cheap = [proposal for proposal in fit["proposals"] if not proposal["exact"]]
    assert cheap["time_s"] < fit["start_time_s"] < dear["time_s"]
    assert max(cheap["peak_bytes"], dear["peak_bytes"]) <= 80e9


def test_what_cannot_fit_says_how_close_it_came(client: TestClient) -> None:
    found = ask(client, hardware=H100, model="llama-3.1-405b", workload=TRAIN_8B, make_it_fit=True)
    assert found["make_it_fit"]["proposals"] == []
    assert 80e9 < found["make_it_fit"]["closest"]["peak_bytes"] < found["peak_bytes"]


def test_the_page_opens_with_an_example_that_does_not_fit_and_links_that_apply(client: TestClient) -> None:
    page = client.get("/memory")
    assert page.status_code == 200
    assert "Llama 3.1 70B training on 32 × H100" in text_of(page.text)
    assert "does not fit" in text_of(page.text)
    link = re.search(r'class="button button-primary" href="(/memory[^"]+)">Apply', page.text)
    assert link is not None
    applied = client.get(html.unescape(link[1]))
    assert re.search(r"fits: [\d.]+ GiB of 74.5 GiB", text_of(applied.text))
    assert "Make it fit" not in text_of(applied.text)


def test_the_address_holds_the_whole_state(client: TestClient) -> None:
    answer = client.get("/memory?phase=decode&batch=8&context=1k&lost=10&workspace=1 GiB&gathered=2", headers=PARTIAL)
    address = answer.headers["HX-Replace-Url"]
    query = parse_qs(urlsplit(address).query)
    assert query == {"phase": ["decode"], "batch": ["8"], "context": ["1024"], "lost": ["10"], "workspace": ["1024"]}
    assert client.get(address, headers=PARTIAL).headers["HX-Replace-Url"] == address


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("phase=decode&lost=most", "lost", "not a number"),
        ("phase=decode&lost=95", "lost", "between 0 and 90"),
        ("phase=decode&workspace=3 apples", "workspace", "not a unit"),
        ("phase=decode&bucket=-1", "bucket", "between 0"),
        ("phase=decode&gathered=1.5", "gathered", "whole number"),
        ("phase=decode&tp=3", "tp", "use 1, 2, 4, 8, 16, 32"),
        ("phase=decode&levers=no-such", "levers", "No lever"),
    ],
)
def test_a_wrong_value_is_answered_beside_its_control(client: TestClient, query: str, field: str, words: str) -> None:
    answer = client.get(f"/memory?{query}", headers=PARTIAL)
    assert answer.status_code == 422
    place = re.search(rf'hx-target="#lab-error-{field}"[^>]*>(.*?)</hx-partial>', answer.text, re.DOTALL)
    assert place is not None
    assert words in html.unescape(place[1])
    assert client.get(f"/memory?{query}").status_code == 422


def test_a_lab_address_asks_the_same_of_memory(client: TestClient) -> None:
    lab = client.get("/explore?model=llama-3.1-70b&tp=8").text
    link = re.search(r'href="(/memory[^"]+)"', lab.split("lab-memory", 1)[1])
    assert link is not None
    query = parse_qs(urlsplit(html.unescape(link[1])).query)
    assert query == {"phase": ["decode"], "model": ["llama-3.1-70b"], "tp": ["8"]}


def test_modules_are_one_question_on_every_page(client: TestClient) -> None:
    """Recompute and offload by module: page, lab and both calls agree, ticked boxes or one list."""
    modules = {"recompute_modules": ["norms", "mlp_activation"], "offload": {"optimizer": True, "activations": ["mlp"]}}
    body = {"hardware": H100, "model": "llama-3.1-8b", "workload": {**TRAIN_8B, **modules}}
    memory, bound = ask(client, **body), ask(client, "bound", **body)
    ticked = "recompute_modules=norms&recompute_modules=mlp_activation&offload=mlp&offload=optimizer"
    listed = "recompute_modules=norms,mlp_activation&offload=mlp,optimizer"
    for asked in (ticked, listed):
        query = f"phase=train&batch=1&seq=4096&{asked}"
        assert f'data-exact="{exact(memory["peak_bytes"], "B")}"' in client.get(f"/memory?{query}").text
        for page in ("/memory", "/explore"):
            shown = client.get(f"{page}?{query}").text
            assert f'data-exact="{exact(bound["memory"]["peak_bytes"], "B")}"' in shown
            assert re.search(r'value="mlp_activation"[^>]* checked', shown)
    assert memory["bound_s"] == bound["bound_s"]
    assert bound["executed_flop"] > bound["model_flop"]
    assert held(memory)["optimizer"] == 0
    # what a choice saves is what the peak has more without it
    row = next(r for r in memory["modules"] if (r["module"], r["move"]) == ("mlp_activation", "recompute"))
    body["workload"]["recompute_modules"] = ["norms"]  # type: ignore[index]
    assert row["chosen"]
    assert row["saves_bytes"] == pytest.approx(ask(client, **body)["peak_bytes"] - memory["peak_bytes"])
    assert row["costs"]["executed_flop"] == pytest.approx(5 * 14336 * 4096 * 32)
    assert row["costs"]["net_bytes"] == 0
    # what is made again need not be sent: the host link carries less
    assert row["costs"]["host_bytes"] == pytest.approx(-2 * 32 * 14336 * 2 * 4096)
    pcie = 63e9  # PCIe 5.0 with 16 lanes, as the profile states it
    away = next(r for r in memory["modules"] if r["module"] == "optimizer")
    assert away["costs"]["host_bytes"] == pytest.approx(2 * 8_030_261_248)
    assert away["costs"]["host_time_s"] == pytest.approx(2 * 8_030_261_248 / pcie)


def test_a_missing_host_link_is_said(client: TestClient) -> None:
    """Without a figure for the link the bytes stand there and the time does not; asking for it is refused."""
    profile = {"name": "Own", "vendor": "X", "memory_bytes": 8e10}
    profile["peak"] = {"flop_per_s": {"bf16": 5e14, "fp32": 5e13}, "memory_bandwidth_bytes_per_s": 2e12}  # type: ignore[assignment]
    body: dict[str, Any] = {"hardware": profile, "model": "llama-3.1-8b", "workload": TRAIN_8B}
    rows = ask(client, **body)["modules"]
    row = next(r for r in rows if r["module"] == "optimizer")
    assert row["costs"]["host_bytes"] > 0
    assert row["costs"]["host_time_s"] is None
    assert "states no host link" in row["note"]
    body["workload"] = {**TRAIN_8B, "offload": {"optimizer": True}}
    refused = client.post("/api/v1/estimates/memory", json=body)
    assert refused.status_code == 422
    assert "host link" in refused.text


def test_bad_modules_are_answered_beside_the_field(client: TestClient) -> None:
    for key, value in (("recompute_modules", "everything"), ("offload", "<script>,mlp")):
        for page in ("/memory", "/explore"):
            answer = client.get(f"{page}?phase=train&{key}={value}")
            assert answer.status_code == 422
            beside = answer.text.split(f'id="lab-error-{key}"', 1)[1].split("</p>", 1)[0]
            assert "Must be" in beside
            assert "<script>,mlp" not in answer.text
    # a module that the model lacks is no error: the model may have been changed under it
    assert client.get("/memory?phase=train&batch=1&recompute_modules=moe_experts").status_code == 200


def test_experts_get_the_copies_of_every_rank_of_a_divided_prompt(client: TestClient) -> None:
    """Qwen3 235B, 8192 tokens over four ranks: 2048 of each and 8 copies of them, wherever the experts lie. A tensor
    group of two shares out what it sends."""
    body = {"hardware": "nvidia-b200-sxm", "model": "qwen3-235b-a22b"}
    prompt = {"phase": "prefill", "seq_len": 8192, "parallel": {"cp": 4, "ep": 4}}
    wide = 2 * 4096 + 8 * (4096 + 2 * 1536)
    assert held(ask(client, **body, workload=prompt))["activations"] == 2048 * 2 * wide
    one, two = (
        ask(client, **body, workload={"phase": "prefill", "seq_len": 4096, "parallel": {"tp": tp, "dp": 8, "ep": 8}})
        for tp in (1, 2)
    )
    sent = [
        next(p["bytes"] for o in a["objects"] for p in o["parts"] if p["part"] == "expert exchange") for a in (one, two)
    ]
    assert sent == [2 * 8 * 4096 * 4096 * 2, 8 * 4096 * 4096 * 2]


def test_a_move_is_named_after_the_moves_before_it(client: TestClient) -> None:
    """A layout with other micro-batches first: the cut after it says how many there are then, and of how many."""
    workload = {
        "phase": "train",
        "batch": 32,
        "seq_len": 4096,
        "parallel": {"pp": 16, "dp": 16, "ep": 16, "micro_batches": 32},
    }
    answer = ask(client, hardware="nvidia-h200-sxm", model="deepseek-v3", workload=workload, make_it_fit=True)
    best = answer["make_it_fit"]["proposals"][0]
    parallel = best["workload"]["parallel"]
    moves = [step["move"] for step in best["steps"] if step["kind"] in ("layout", "micro-batches")]
    assert f"EP {parallel['ep']}" in moves[0]
    assert moves[1:] == [f"{parallel['micro_batches']:,} micro-batches of {best['workload']['batch']:,}"]
