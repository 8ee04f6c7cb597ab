"""The landing page: what is here, and the example that a new product shows."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

from app.services.context import Context
from app.services.examples import offer_examples
from tests.services.native_runs import native


def native_file(names: list[str]) -> bytes:
    """One file of our own format with a run for each name."""
    whole = json.loads(native())
    return json.dumps({**whole, "runs": [{**whole["runs"][0], "name": name} for name in names]}).encode()


LLAMA_ON_H200 = {"hardware": "H200 SXM", "model": "Llama 3.1 8B"}


def test_an_empty_product_says_what_would_be_here(client: TestClient):
    page = client.get("/").text
    assert "No runs yet" in page
    assert "Nothing is frozen yet" in page
    assert "Remove the example" not in page
    assert 'id="home-roofline"' in page


def test_the_example_is_marked_and_goes_with_one_click(client: TestClient, context: Context):
    offer_examples(context)
    page = client.get("/").text
    assert page.count('title="Ships with the product"') == 2
    assert "5 more runs of the file" in page
    assert re.search(r'class="ratio-text">\d+(\.\d+)?.?%<', page)
    action = re.search(r'action="(/runs/examples/remove[^"]*)"', page)
    assert action is not None
    answer = client.post(action[1])
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    assert "No runs yet" in client.get("/").text


@pytest.mark.parametrize("back", ["//example.org", "https://example.org", "/runs/x"])
def test_removing_the_example_leads_nowhere_else(client: TestClient, back: str):
    assert client.post("/runs/examples/remove", params={"back": back}).status_code == 422


def test_a_run_shows_its_part_of_the_bound_or_asks_what_ran(client: TestClient):
    client.post("/runs", files={"file": ("a.json", native(name="linked run"))}, data=LLAMA_ON_H200)
    client.post("/runs", files={"file": ("b.json", native(name="<i>unlinked", hardware="abacus", model="my own"))})
    page = client.get("/").text
    items = re.findall(r"<li>.*?</li>", page[page.index('id="recent-runs"') :], re.DOTALL)
    assert len([item for item in items if "/runs/" in item]) == 2
    newest, oldest = items[:2]
    assert "&lt;i&gt;unlinked" in newest
    assert "Say what ran" in newest
    assert "ratio-fill" not in newest
    assert "linked run" in oldest
    assert "ratio-fill" in oldest
    assert "All runs (2)" in page


def test_a_sweep_does_not_push_other_files_out(client: TestClient, context: Context):
    for number in range(4):
        client.post("/runs", files={"file": (f"{number}.json", native(name=f"single {number}"))})
    offer = client.post(
        "/runs", files={"file": ("sweep.json", native_file([f"point {number}" for number in range(30)]))}
    )
    assert offer.status_code == 303
    page = client.get("/").text
    assert "29 more runs of the file" in page
    for number in range(4):
        assert f"single {number}<" in page
    assert "All runs (34)" in page


def test_comparisons_stand_with_their_titles(client: TestClient):
    estimate = {"hardware": "nvidia-h200-sxm", "model": "llama-3.1-8b", "workload": {"phase": "decode"}}
    body = {"title": "Before & after", "items": [{"estimate": {"kind": "bound", "request": estimate}}]}
    made = client.post("/api/v1/comparisons", json=body)
    assert made.status_code == 201
    page = client.get("/").text
    assert f'href="/comparisons/{made.json()["id"]}">Before &amp; after</a>' in page
    assert "All comparisons (1)" in page


def test_a_picker_gets_the_answer_alone(client: TestClient):
    answer = client.get(
        "/", params={"hardware": "nvidia-h200-sxm"}, headers={"HX-Request": "true", "HX-Request-Type": "partial"}
    )
    assert answer.status_code == 200
    assert "<!doctype html>" not in answer.text
    assert "Recent runs" not in answer.text
