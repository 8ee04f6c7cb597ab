"""The expert page: state in the address, the API's numbers, messages beside controls, histograms by file."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import InvalidInput
from app.services.moe import PRESETS, read_histogram
from app.web.rendering import query

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
MIXTRAL = "/moe?model=mixtral-8x7b&hardware=nvidia-h100-sxm&batch=32&context=2048&dp=8&ep=8&node_limit=0"


def text_of(body: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def frozen(body: str) -> dict[str, Any]:
    """The question that the tray button would freeze."""
    found = re.search(r'data-tray-add="([^"]+)"', body)
    assert found is not None
    item: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert item["kind"] == "estimate"
    request: dict[str, Any] = item["request"]
    return request


def test_it_opens_with_a_computed_sentence(client: TestClient) -> None:
    page = client.get("/moe")
    assert page.status_code == 200
    words = text_of(page.text)
    assert "58 expert layers take at least" in words
    for name in ("Router", "Top-k", "Histogram", "Dispatch", "GEMM 1", "Combine", "Unpermute", "Shared expert"):
        assert name in words
    for chart in ("moe-stages", "moe-timeline", "moe-walls", "moe-load"):
        assert f'id="{chart}"' in page.text
        assert f'id="{chart}-table"' in page.text


@pytest.mark.parametrize("name", PRESETS)
def test_page_and_api_give_the_same_numbers(client: TestClient, name: str) -> None:
    page = client.get(query("/moe", **PRESETS[name].query()))
    assert page.status_code == 200
    request = frozen(page.text)
    moe = client.post("/api/v1/estimates/moe", json=request).json()
    bound = client.post("/api/v1/estimates/bound", json=request).json()
    assert moe["step"]["bound_s"] == bound["bound_s"]
    shown = (moe["bound_s"], moe["overlap_levels"][moe["overlap"]], moe["exposed_communication_s"])
    for value in (*shown, moe["expected"]["time_s"]):
        assert f'data-exact="{value!r} s"' in page.text
    for row in moe["stages"]:
        if row["time_s"] > 0:
            assert f'data-exact="{row["time_s"]!r} s"' in page.text


@pytest.mark.parametrize(
    "address",
    [
        "/moe",
        "/moe?node_limit=0&routing=zipf&replicas=64",
        f"{MIXTRAL}&dispatch=bf16&weights=bf16&activations=bf16",
        query("/moe", **PRESETS["DeepSeek-V3 training"].query()),
    ],
)
def test_page_api_and_lab_give_the_same_number(client: TestClient, address: str) -> None:
    page = client.get(address)
    link = re.search(r'href="([^"]+)">Open in the lab', page.text)
    assert link is not None
    lab = client.get(html.unescape(link[1]))
    step = client.post("/api/v1/estimates/moe", json=frozen(page.text)).json()["step"]
    assert lab.status_code == 200
    for name in ("bound_s", "serial_bound_s"):
        assert f'data-exact="{step[name]!r} s"' in lab.text


def test_the_lab_is_not_offered_for_what_it_has_no_control_for(client: TestClient) -> None:
    for asked in ("scheme=all_to_all", "capacity=1.25", "dispatch=fp16"):
        assert "Open in the lab" not in client.get(f"{MIXTRAL}&{asked}").text


def test_the_address_keeps_only_what_differs(client: TestClient) -> None:
    answer = client.get("/moe?batch=64&dp=64&scheme=all_to_all&capacity=1.25", headers=PARTIAL)
    found = parse_qs(urlsplit(answer.headers["HX-Replace-Url"]).query)
    assert found == {"batch": ["64"], "scheme": ["all_to_all"], "capacity": ["1.25"]}


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ("batch=many", "batch", "not a whole number"),
        ("batch=0", "batch", "between 1"),
        ("ep=7", "ep", "use 1, 2, 4"),
        ("ep=128", "ep", "must divide the 64 ranks"),
        ("model=llama-3.1-8b", "model", "no experts"),
        ("hardware=h100", "hardware", "nvidia-h100-pcie"),
        ("hardware=nvidia-a100-sxm4-80gb", "activations", "fp8"),
        ("dispatch=fp7", "dispatch", "fp16"),
        ("scheme=carrier-pigeon", "scheme", "hierarchical"),
        ("routing=histogram", "histogram", "one number of tokens for each expert"),
        ("routing=histogram&histogram=1,2", "histogram", "256 experts"),
        ("routing=histogram&histogram=1,x", "histogram", "Entry 2"),
        ("model=mixtral-8x7b&dp=8&ep=8&routing=histogram&histogram=0,0,0,0,0,1,3,6", "histogram", "50.0%"),
        ("capacity=lots", "capacity", "not a number"),
        ("replicas=5", "replicas", "do not divide"),
        ("alpha=nan&routing=zipf", "alpha", "not a number"),
    ],
)
def test_a_wrong_value_is_answered_beside_its_control(client: TestClient, asked: str, field: str, words: str) -> None:
    answer = client.get(f"/moe?{asked}", headers=PARTIAL)
    assert answer.status_code == 422
    place = re.search(rf'hx-target="#lab-error-{field}"[^>]*>(.*?)</hx-partial>', answer.text, re.DOTALL)
    assert place is not None
    assert words in html.unescape(place[1])
    whole = client.get(f"/moe?{asked}")
    assert whole.status_code == 422
    assert words in text_of(whole.text)


def test_every_control_has_a_place_for_its_message(client: TestClient) -> None:
    page = client.get("/moe").text
    form = page[page.index('id="lab-form"') :].split("</form>")[0]
    for name in set(re.findall(r'name="([^"]+)"', form)):
        assert f'id="lab-error-{name}"' in form, name


def test_a_file_of_counts_becomes_part_of_the_address(client: TestClient) -> None:
    table = "expert,tokens\n" + "\n".join(f"{i},{4 if i == 0 else 1}" for i in range(256))
    sent = client.post("/moe/histogram", files={"file": ("load.csv", table)}, data={"state": "batch=64"})
    assert sent.status_code == 303
    found = parse_qs(urlsplit(sent.headers["location"]).query)
    assert found["routing"] == ["histogram"]
    assert found["batch"] == ["64"]
    assert [float(part) for part in found["histogram"][0].split(",")] == [4.0] + [1.0] * 255
    page = client.get(sent.headers["location"])
    assert page.status_code == 200
    # 64 sequences of 64 ranks, 8 copies each: 4 / 259 of 32,768 against the mean of 128
    assert f"gets {4 / 259 * 32768 / 128:.3g} times the mean" in text_of(page.text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "one number of tokens for each expert"),
        (b"\xff\xfe\x00", "no text"),
        (b"1,2,<img src=x onerror=alert(1)>", "Entry 3"),
        (b"1 " * 150_000, "larger than"),
        (b"1.123456,12345678.123456," * 900, "too long for an address"),
    ],
)
def test_a_bad_file_is_answered_beside_the_histogram(client: TestClient, content: bytes, words: str) -> None:
    answer = client.post("/moe/histogram", files={"file": ("load.txt", content)})
    assert answer.status_code == 422
    assert words in text_of(answer.text)
    assert "<img src=x" not in answer.text


def test_counts_are_read_as_people_paste_them() -> None:
    assert read_histogram("[3, 1,\n2.5;0]") == [3.0, 1.0, 2.5, 0.0]
    for wrong in ("", "[]", "-1", "1e9", "nan", "0x10"):
        with pytest.raises(InvalidInput):
            read_histogram(wrong)


def test_published_figures_lie_within_their_bounds(client: TestClient) -> None:
    page = client.get("/moe/published")
    assert page.status_code == 200
    shares = [float(found) for found in re.findall(r'data-exact="(0\.\d+)(?: ratio| 1)?"', page.text)]
    assert len(shares) >= 15
    assert all(0.18 < share <= 1 for share in shares)
    assert "https://arxiv.org/abs/2603.07685" in page.text
    assert "MegaScale-MoE training on 1440 H800" in page.text


def test_training_shows_both_directions(client: TestClient) -> None:
    page = text_of(client.get(query("/moe", **PRESETS["DeepSeek-V3 training"].query())).text)
    assert "928 runs of an expert layer" in page  # 58 layers x 128 micro-batches on 8 stages
    assert "Forward Backward" in page


def test_what_does_not_fit_stands_at_the_memory_wall(client: TestClient) -> None:
    page = text_of(client.get("/moe?ep=8").text)
    assert "does not fit" in page
    assert "memory wall" in page
