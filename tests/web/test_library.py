"""The library's pages: the list and its filters, and what each technique's page calculates."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from fastapi.testclient import TestClient

from app.catalog.library import load_library
from app.catalog.loader import load_catalog
from app.domain.levers.registry import LEVERS
from app.domain.lower_bound import RESOURCES
from app.main import create_app
from app.settings import RateLimits, Settings
from app.web.forms import lab_form
from app.web.rendering import formula_links

TECHNIQUES = load_catalog().techniques
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}

BY_HAND: Mapping[str, Mapping[str, int]] = {
    "saves": {"flops": 38, "hbm": 55, "net": 21, "launches": 34, "sync": 9, "imbalance": 18, "capacity": 44},
    "phase": {"train": 87, "prefill": 64, "decode": 53, "denoise": 20, "preprocess": 2},
    "family": {
        "attention": 15, "gemm": 7, "fusion": 12, "precision": 8, "kv": 7, "moe": 21, "comm": 14, "memory": 7,
        "scheduler": 10, "compiler": 5, "multimodal": 7, "diffusion": 10, "ssm": 4,
    },
    "architecture": {
        "any": 75, "dense": 78, "gqa": 76, "mla": 76, "moe": 97, "vlm": 85, "dit": 84, "unet": 84, "ssm": 79,
    },
    "gpu": {"any": 103, "sm80": 108, "sm90": 124, "sm100": 120, "nvl72": 104, "mi300": 104},
    "book_as": {"kernel": 54, "communication": 22, "runtime": 29, "algorithmic": 22},
    "memory_lever": {
        "dematerialize": 30, "compress": 20, "pack": 16, "recompute": 5, "shard": 11, "allocator": 4,
    },
}  # fmt: skip
"""Counted in the list that the entries were written from, where an entry tied to nothing counts for everything."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("library"), rate_limits=RateLimits(0, 0, 0))
    assert settings.database_path is not None
    settings.database_path.write_bytes(migrated_database.read_bytes())
    with TestClient(create_app(settings), follow_redirects=False) as made:
        yield made


def listed(page: str) -> list[str]:
    """Ids of the techniques in a list, in its order."""
    return re.findall(r'class="technique-name"><a href="/library/techniques/([a-z0-9-]+)"', page)


def test_every_filter_keeps_what_was_counted_by_hand(client: TestClient) -> None:
    for name, counts in BY_HAND.items():
        for value, count in counts.items():
            assert len(listed(client.get("/library", params={name: value}, headers=HTMX).text)) == count, (name, value)
            answer = client.get("/api/v1/techniques", params={name: value, "limit": 1}).json()
            assert answer["total"] == count, (name, value)
    assert len(listed(client.get("/library", params={"lever": "yes"}).text)) == 120
    assert len(listed(client.get("/library", params={"lever": "no"}).text)) == 7


def test_filters_combine_and_stand_in_the_address(client: TestClient) -> None:
    asked = {"q": "exchange", "saves": "net", "phase": "train", "architecture": "moe", "lever": "yes"}
    page = client.get("/library", params=asked, headers=HTMX)
    found = listed(page.text)
    assert found
    for id_ in found:
        technique = TECHNIQUES[id_]
        assert "net" in technique.saves
        assert "train" in technique.phases
        assert {"moe", "any"} & set(technique.architectures)
    assert dict(parse_qsl(urlsplit(page.headers["HX-Replace-Url"]).query)) == asked
    whole = client.get("/library", params=asked).text
    assert listed(whole) == found
    assert 'value="exchange"' in whole
    assert '<option value="net" selected>' in whole


def test_made_for_an_architecture_comes_first(client: TestClient) -> None:
    found = listed(client.get("/library", params={"architecture": "moe"}).text)
    named = ["moe" in TECHNIQUES[id_].architectures for id_ in found]
    assert named == sorted(named, reverse=True)
    assert 20 < sum(named) < len(named)


def test_a_filter_that_is_none_finds_nothing_and_says_so(client: TestClient) -> None:
    for asked in ({"saves": "watts"}, {"lever": "maybe"}, {"q": "zzzz"}, {"q": "<i>zzz"}):
        page = client.get("/library", params=asked)
        assert page.status_code == 200
        assert "No technique matches" in page.text
        assert "<i>" not in page.text
    assert client.get("/library/techniques", params={"q": "kv"}).headers["location"] == "/library?q=kv"


def chart_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="technique-chart".*?<script type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    chart: dict[str, Any] = json.loads(found[1])
    return chart


def drawn_seconds(chart: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Seconds before and after, by what each pair of bars is called."""
    unit = chart["layout"]["xaxis"]["title"]["text"].rsplit(" ", 1)[1]
    factor = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    one, two = chart["data"]
    assert one["y"] == two["y"]
    return {name: (a * factor, b * factor) for name, a, b in zip(one["y"], one["x"], two["x"], strict=True)}


@pytest.mark.parametrize("family", BY_HAND["family"])
def test_every_page_opens_and_its_chart_says_what_the_api_says(client: TestClient, family: str) -> None:
    """The question is read from the page's own link to the lab, and asked of the API with the lever and without."""
    labels = {"compute": "Compute", "hbm": "HBM", "net": "Network", "launch": "Launch", "sync": "Synchronisation"}
    labels |= {"imbalance": "Imbalance"}
    for technique in TECHNIQUES.values():
        if technique.family != family:
            continue
        page = client.get(f"/library/techniques/{technique.id}")
        assert page.status_code == 200, technique.id
        text = html.unescape(page.text)
        assert technique.summary in text
        assert technique.hurts in text
        assert all(gain.figure in text and gain.conditions in text for gain in technique.gains)
        assert all(f'/library/techniques/{other}"' in page.text for other in technique.related)
        if technique.id not in LEVERS:
            assert technique.no_lever is not None
            assert technique.no_lever in text
            assert "data-chart" not in page.text
            continue
        assert html.unescape(formula_links(LEVERS[technique.id].model)) in text
        drawn = drawn_seconds(chart_of(page.text))
        lab = re.search(r'href="(/explore\?[^"]*)">Open in the what-if lab', page.text)
        assert lab is not None
        state = lab_form(dict(parse_qsl(urlsplit(html.unescape(lab[1])).query))).state
        body = state.request(load_catalog().models[state.model]).model_dump(mode="json")
        answer = client.post("/api/v1/estimates/bound", json=body).json()
        (row,) = answer["ledger"]
        assert row["lever"] == technique.id
        for name, key in (("Bound", "bound_s"), ("Serial bound", "serial_bound_s"), ("Expected", "expected_s")):
            assert drawn[name] == pytest.approx((row["before"][key], row["after"][key]), rel=1e-9), technique.id
        for name in RESOURCES:
            after = drawn.get(labels[name], (0.0, 0.0))[1]
            assert after == pytest.approx(answer["terms"][f"{name}_s"], rel=1e-9), (technique.id, name)
        if not row["ideal"] and LEVERS[technique.id].lack is None:
            plain = client.post("/api/v1/estimates/bound", json={**body, "levers": []}).json()["terms"]
            for name in RESOURCES:
                before = drawn.get(labels[name], (0.0, 0.0))[0]
                assert before == pytest.approx(plain[f"{name}_s"], rel=1e-9), (technique.id, name)


def test_the_readers_workload_is_kept(client: TestClient) -> None:
    asked = {"model": "llama-3.1-70b", "hardware": "nvidia-h200-sxm", "phase": "decode", "batch": "64", "tp": "4"}
    page = client.get("/library/techniques/kv-fp8", params=asked).text
    assert "Llama 3.1 70B on 4 × H200" in page
    assert re.search(r'href="/library/techniques/mla\?[^"]*batch=64[^"]*tp=4', page)
    assert re.search(r'href="/explore\?[^"]*levers=kv-fp8', page)
    numbers = client.get("/library/techniques/kv-2bit", params={**asked, "lever.kv-2bit.bits": "4"})
    assert 'value="4"' in numbers.text
    assert re.search(r"levers=kv-2bit%28bits%3D4%29", numbers.text)
    swapped = client.get("/library/techniques/kv-2bit", params={**asked, "lever.kv-2bit.bits": "4"}, headers=HTMX)
    assert "lever.kv-2bit.bits=4" in swapped.headers["HX-Replace-Url"]
    assert "<html" not in swapped.text


def test_a_refusal_gives_its_reason_and_a_wrong_field_its_message(client: TestClient) -> None:
    refused = client.get("/library/techniques/kv-fp8", params={"phase": "train"})
    assert refused.status_code == 200
    assert "It does not apply to this workload" in refused.text
    assert "It acts in decode and prefill, not in train." in refused.text
    assert "data-chart" not in refused.text
    wrong = client.get("/library/techniques/kv-fp8", params={"batch": "many"})
    assert wrong.status_code == 422
    assert "&#39;many&#39; is not a whole number" in wrong.text
    assert 'value="many"' in wrong.text
    outside = client.get("/library/techniques/zero-fsdp", params={"lever.zero-fsdp.stage": "9"})
    assert outside.status_code == 422
    assert "from 1 to 3" in outside.text
    heads = client.get("/library/techniques/gqa-mqa", params={"phase": "decode", "lever.gqa-mqa.kv_heads": "7"})
    assert heads.status_code == 200
    assert "7 KV heads are no fewer" in heads.text


def test_a_name_in_capitals_leads_to_the_page(client: TestClient) -> None:
    answer = client.get("/library/techniques/FA1", params={"phase": "train"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/library/techniques/fa1?phase=train")
    assert client.get("/library/techniques/no-such").status_code == 404


def words(page: str) -> str:
    """The text of a page as a reader sees it."""
    return " ".join(
        html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<script.*?</script>", "", page, flags=re.S))).split()
    )


def test_every_reference_page_shows_its_claims_with_numbered_sources(client: TestClient) -> None:
    for section in load_library().sections.values():
        page = client.get(f"/library/{section.id}").text
        text = words(page)
        for claim in section.claims:
            assert claim.text in text, claim.text
        for source in {source for claim in section.claims for source in claim.sources}:
            assert f'id="source-{source.id}"' in page
            assert f'href="#source-{source.id}"' in page
        answer = client.get(f"/api/v1/library/{section.id}").json()
        assert [entry["id"] for entry in answer["entries"]] == [entry.id for entry in section.entries]
        assert all(point["sources"] for entry in answer["entries"] for point in entry["points"])
    assert client.get("/library/no-such").status_code == 404


def test_pages_show_what_the_code_knows(client: TestClient) -> None:
    assert "70 % of the compute beside a collective hides it" in words(client.get("/library/overlap-levels").text)
    generations = client.get("/library/gpu-generations").text
    assert 'href="/hardware/nvidia-h100-sxm"' in generations
    assert 'href="/hardware/amd-mi300x"' in generations
    levers = client.get("/library/memory-levers").text
    for technique in TECHNIQUES.values():
        assert (f'/library/techniques/{technique.id}"' in levers) == (technique.memory_lever is not None), technique.id
    assert "1.5 to 2.0x over FlashAttention-2" in words(client.get("/library/attention-kernels").text)


def test_the_symptom_table_is_that_of_the_trees(client: TestClient) -> None:
    page = words(client.get("/library/symptoms").text)
    trees = load_catalog().trees
    for symptom in trees.symptoms.values():
        assert symptom.see in page
        assert symptom.cause in page
        assert symptom.avoid in page
        assert all(trees.leaves[leaf].title in page for leaf in symptom.go)
    assert "our judgement" in page
    items = client.get("/api/v1/library/symptoms").json()["items"]
    assert [item["id"] for item in items] == list(trees.symptoms)


def test_the_entrance_leads_everywhere(client: TestClient) -> None:
    page = client.get("/library").text
    places = re.findall(r'<li><a href="(/library/[^"]+)">', page)
    assert "/library/fidelity" in places
    assert "/library/symptoms" in places
    assert len(places) == 13
    for place in places:
        assert client.get(place).status_code == 200, place
    assert 'aria-current="page"' in page
    assert "library-places" not in client.get("/library", params={"q": "kv"}).text


def test_the_search_finds_techniques_and_pages(client: TestClient) -> None:
    page = client.get("/search", params={"q": "overlap"}).text
    assert 'href="/library/overlap-levels"' in page
    assert 'href="/library/techniques/fwd-bwd-overlap"' in page
    assert 'href="/library/techniques/fa3"' in client.get("/search", params={"q": "FlashAttention-3"}).text
    assert 'href="/library/gpu-generations"' in client.get("/search", params={"q": "hopper"}).text


def test_a_technique_says_where_it_comes_up(client: TestClient) -> None:
    page = client.get("/library/techniques/split-kv").text
    assert 'href="/library/attention-kernels#decode"' in page
    assert 'href="/library/checklists/decode#kernel"' in page
    assert 'href="/library/symptoms#s8"' in page
