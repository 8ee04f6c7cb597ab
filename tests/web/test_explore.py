"""The what-if lab: state in the address, layouts, levers, a second configuration, and what is said of wrong values."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}


def text_of(body: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def api(client: TestClient, **body: object) -> dict:  # type: ignore[type-arg]
    answer = client.post("/api/v1/estimates/bound", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_the_page_and_the_api_give_the_same_number(client: TestClient) -> None:
    page = client.get("/explore?batch=8&context=1000&tp=2")
    same = api(
        client,
        hardware="nvidia-h100-sxm",
        model="llama-3.1-8b",
        workload={"phase": "decode", "batch": 8, "context_len": 1000, "parallel": {"tp": 2}},
    )
    assert page.status_code == 200
    assert f'data-exact="{same["bound_s"]!r} s"' in page.text
    assert f'data-exact="{same["serial_bound_s"]!r} s"' in page.text


def test_the_address_keeps_only_what_differs(client: TestClient) -> None:
    answer = client.get("/explore?batch=64&hardware=nvidia-h200-sxm&tp=1&dp=1&kv=bf16", headers=PARTIAL)
    address = answer.headers["HX-Replace-Url"]
    assert parse_qs(urlsplit(address).query) == {"hardware": ["nvidia-h200-sxm"], "batch": ["64"]}


def test_lengths_are_read_as_people_type_them(client: TestClient) -> None:
    answer = client.get("/explore?context=8k&batch=1,024", headers=PARTIAL)
    query = parse_qs(urlsplit(answer.headers["HX-Replace-Url"]).query)
    assert query == {"batch": ["1024"], "context": ["8192"]}


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("batch=many", "batch", "not a whole number"),
        ("batch=0", "batch", "between 1"),
        ("tp=3", "tp", "use 1, 2, 4, 8, 16, 32"),
        ("pp=64", "pp", "at most 32"),
        ("ep=4", "ep", "no experts"),
        ("model=no-such-model", "model", "No model"),
        ("hardware=h100", "hardware", "nvidia-h100-pcie"),
        ("activations=fp8&weights=fp8&hardware=nvidia-a100-sxm4-80gb", "activations", "fp8"),
        ("levers=no-such", "levers", "No lever"),
        ("levers=kv-fp8((", "levers", "not a lever"),
        ("levers=full-recompute", "levers", "not in decode"),
        ("alpha=much&routing=zipf&model=mixtral-8x7b", "alpha", "not a number"),
    ],
)
def test_a_wrong_value_is_answered_beside_its_control(client: TestClient, query: str, field: str, words: str) -> None:
    answer = client.get(f"/explore?{query}", headers=PARTIAL)
    assert answer.status_code == 422
    place = re.search(rf'hx-target="#lab-error-{field}"[^>]*>(.*?)</hx-partial>', answer.text, re.DOTALL)
    assert place is not None
    assert words in html.unescape(place[1])
    whole = client.get(f"/explore?{query}")
    assert whole.status_code == 422
    assert words in text_of(whole.text)


def test_what_was_typed_stays_in_the_form(client: TestClient) -> None:
    page = client.get("/explore?batch=<b>many</b>")
    assert 'value="&lt;b&gt;many&lt;/b&gt;"' in page.text
    assert "<b>many</b>" not in page.text


def test_levers_are_added_numbered_moved_and_removed_by_address(client: TestClient) -> None:
    train = "/explore?phase=train&batch=1&dp=8"
    added = client.get(f"{train}&levers=fa1&add_lever=zero-fsdp&lever.zero-fsdp.stage=2", headers=PARTIAL)
    assert added.status_code == 200
    query = parse_qs(urlsplit(added.headers["HX-Replace-Url"]).query)
    assert query["levers"] == ["fa1,zero-fsdp(stage=2)"]
    page = client.get(f"{train}&levers=fa1,zero-fsdp(stage=2)").text
    links = {
        text_of(m[2]).strip(): html.unescape(m[1]) for m in re.finditer(r'<a href="([^"]+)">(Earlier|Remove)</a>', page)
    }
    assert parse_qs(urlsplit(links["Earlier"]).query)["levers"] == ["zero-fsdp(stage=2),fa1"]
    assert parse_qs(urlsplit(links["Remove"]).query)["levers"] == ["fa1"]
    assert "lab-ledger" in page


def test_the_ledger_of_the_page_is_that_of_the_api(client: TestClient) -> None:
    page = client.get("/explore?levers=kv-fp8,fused-norm")
    same = api(
        client,
        hardware="nvidia-h100-sxm",
        model="llama-3.1-8b",
        workload={"phase": "decode", "batch": 32, "context_len": 2048},
        levers=["kv-fp8", "fused-norm"],
    )
    assert [row["lever"] for row in same["ledger"]] == ["kv-fp8", "fused-norm"]
    assert f'data-exact="{same["bound_s"]!r} s"' in page.text


def test_a_second_configuration_stands_beside_and_can_be_swapped(client: TestClient) -> None:
    page = client.get("/explore?hardware=nvidia-h200-sxm&beside=batch%3D64")
    assert page.status_code == 200
    assert "Second configuration" in page.text
    swap = re.search(r'href="([^"]+)">Swap the two', page.text)
    assert swap is not None
    query = parse_qs(urlsplit(html.unescape(swap[1])).query)
    assert query["batch"] == ["64"]
    assert parse_qs(query["beside"][0]) == {"hardware": ["nvidia-h200-sxm"]}
    broken = client.get("/explore?beside=tp%3D3")
    assert broken.status_code == 200
    assert "cannot be calculated" in text_of(broken.text)


def test_what_would_have_to_be_true_is_counted_by_hand(client: TestClient) -> None:
    # Llama 3.1 8B, batch 32: weights 7,504,924,672 x 2 B and 32 embedding rows, cache 32 x 131,072 B a token of context
    weights = 7_504_924_672 * 2 + 32 * 4096 * 2
    context = -(-weights // (32 * 131_072))
    answer = client.get("/explore/thresholds")
    assert answer.status_code == 200
    assert f'data-exact="{context} tokens"' in answer.text
    assert client.get("/explore/thresholds?tp=3").status_code == 422


def test_thresholds_say_how_far_they_hold_and_survive_what_a_device_or_a_tower_lacks(client: TestClient) -> None:
    small = client.get("/explore/thresholds?model=granite-3.0-1b-a400m&phase=prefill&batch=1&seq=256&context=0").text
    assert 'data-exact="5 sequences"' in small
    assert 'data-exact="71 sequences"' in small
    # chunks of 8,192: 12 layers read the context, 36 what their chunk holds; 32,768 B a token and layer of 8 sequences
    chunked = client.get("/explore/thresholds?model=llama-4-scout&batch=8&context=1024").text
    assert 'data-exact="228284 tokens"' in chunked
    assert 'data-exact="229375 tokens"' in chunked
    assert 12 * 228_284 + 36 * (228_284 % 8192) == 98_140_422_144 / 32_768
    no_fabric = client.get("/explore/thresholds?hardware=nvidia-l40s")
    assert no_fabric.status_code == 200
    assert "up to" in no_fabric.text
    tower = client.get("/explore/thresholds?model=llama-3.2-11b-vision&phase=prefill&batch=1&seq=256&context=0")
    assert 'data-exact="8 devices"' in tower.text
    plain = client.get("/explore/thresholds?model=llama-3.1-8b&levers=kv-fp8").text
    assert 'data-exact="7158 tokens"' in plain  # 7,157.1 rounded up: half the bytes a token


def test_a_step_that_does_not_fit_prints_no_throughput(client: TestClient) -> None:
    page = text_of(client.get("/explore?model=llama-3.1-405b").text)
    assert "does not fit" in page
    assert "tokens/s" not in page.split("Throughput")[1].split("Memory of a device")[0]


def test_links_have_a_roofline_of_their_own(client: TestClient) -> None:
    assert "lab-links" not in client.get("/explore").text
    assert "lab-links" in client.get("/explore?tp=8").text


@pytest.mark.parametrize(
    ("model", "words", "control"),
    [
        ("flux.1-dev", "Denoising is bound", "f-width"),
        ("bert-base", "A forward pass is bound", ""),
        ("whisper-large-v3", "Prefill is bound", "f-source-len"),
        ("mamba2-2.7b", "Prefill is bound", ""),
        ("qwen3-vl-8b", "Prefill is bound", "f-visual-tokens"),
        ("deepseek-v3", "Prefill is bound", "f-prediction-modules"),
    ],
)
def test_every_kind_of_model_has_its_controls(client: TestClient, model: str, words: str, control: str) -> None:
    page = client.get(f"/explore?phase=prefill&batch=1&model={model}&visual_tokens=64&width=1024&height=1024")
    assert page.status_code == 200
    assert words in text_of(page.text)
    assert 'id="f-width"' not in page.text or control == "f-width"
    assert not control or f'id="{control}"' in page.text


def test_the_landing_page_opens_with_a_question_that_suits_model_and_device(client: TestClient) -> None:
    assert "Denoising is bound" in text_of(client.get("/?model=sdxl-base").text)
    assert client.get("/?hardware=nvidia-v100-sxm2-32gb").status_code == 200
