"""Pages of the diagnosis: picker, a walk whose state is its address, saving, sharing, comparing, triage on a run."""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

LAB = "hardware%3Dnvidia-h100-sxm%26batch%3D32%26context%3D16384"


def run_of(client: TestClient, time: float = 0.0141, **workload: object) -> str:
    told = {"phase": "decode", "batch": 16, "context_len": 16383, "parallel": {"tp": 1}, "launch_mode": "graph"}
    run = {
        "name": "decode <b>long</b>",
        "hardware": "nvidia-h200-sxm",
        "model": "llama-3.1-8b",
        "workload": told | workload,
        "metrics": {"tpot_s": {"p50": time}},
    }
    body = json.dumps({"bytebound": 1, "runs": [run]})
    return str(client.post("/api/v1/runs?filename=r.json", content=body).json()["runs"][0]["id"])


def text(html: str) -> str:
    plain = re.sub(r"<[^>]+>", " ", html.split("<main", 1)[1].split("</main>", 1)[0])
    return re.sub(r"\s+", " ", unescape(plain)).replace(" .", ".")


def test_the_picker_offers_scenarios_symptoms_and_runs(client: TestClient) -> None:
    run = run_of(client)
    page = client.get("/diagnose")
    assert page.status_code == 200
    assert page.text.count('href="/diagnose?scenario=') >= 17
    assert f'<option value="{run}">' in page.text
    shown = text(page.text)
    assert "Matrix units are busy and still far from their peak" in shown
    assert "No diagnosis is saved yet" in shown
    chosen = client.get("/diagnose", params={"run": run})
    assert f"scenario=decode&amp;run={run}" in chosen.text
    assert client.get("/diagnose", params={"scenario": "poetry"}).status_code == 422
    assert client.get("/diagnose", params={"scenario": "decode", "run": "gone"}).status_code == 422


def test_answers_become_the_address_and_back_takes_them_away(client: TestClient) -> None:
    start = "/diagnose?scenario=dense_train&values=data_wait_share%3A0.01"
    page = client.get(start)
    assert "Is more than a tenth of the executed tokens padding?" in page.text
    assert "How to find out" in page.text
    answered = client.get(f"{start}&answer=dt1%3Ano")
    assert answered.status_code == 303
    there = answered.headers["location"]
    assert parse_qs(urlsplit(there).query)["answers"] == ["dt1:no"]
    assert urlsplit(there).fragment == "now"
    second = client.get(there)
    assert "Do some ranks carry clearly more tokens than others?" in second.text
    assert f'href="{start.replace("&", "&amp;")}#now">Back' in second.text
    measured = client.get(there.partition("#")[0] + "&value.rank_token_max_over_mean=1.4")
    assert parse_qs(urlsplit(measured.headers["location"]).query)["values"] == [
        "data_wait_share:0.01,rank_token_max_over_mean:1.4"
    ]
    end = client.get(measured.headers["location"])
    assert "Give ranks equal tokens, not equal samples" in text(end.text)
    assert "answered by you" in text(end.text)


def test_a_value_in_per_cent_and_a_refused_one(client: TestClient) -> None:
    start = "/diagnose?scenario=decode"
    taken = client.get(f"{start}&value.mbu=31%25")
    assert "values=mbu%3A0.31" in taken.headers["location"]
    refused = client.get(f"{start}&metric=launch_share&value=20")
    assert refused.status_code == 422
    assert "write 0.2 for 20" in text(refused.text)
    word = client.get(f"{start}&value.mbu=fast")
    assert word.status_code == 422
    assert 'value="fast"' in word.text


def test_a_step_of_the_lab_walks_to_its_end_with_savings(client: TestClient) -> None:
    lab = client.get("/explore?batch=32&context=16384")
    link = unescape(re.search(r'href="(/diagnose\?[^"]+)"', lab.text)[1])  # type: ignore[index]
    page = client.get(link)
    shown = text(page.text)
    assert "Read fewer KV bytes. KV cache among the bytes: 82" in shown
    assert "Open in the lab" in shown
    assert re.search(r"levers=kv-fp8", page.text)
    assert client.get("/diagnose?scenario=decode&lab=batch%3Dmany").status_code == 422


def test_saved_shared_and_compared(client: TestClient) -> None:
    run = run_of(client)
    fields = {"scenario": "decode", "run": run, "title": "long <i>context</i>", "notes": "before\nthe fix"}
    made = client.post("/diagnose", data=fields)
    assert made.status_code == 303
    address = made.headers["location"]
    saved = client.get(address)
    assert saved.status_code == 200
    assert "<i>context" not in saved.text
    assert "Read fewer KV bytes" in saved.text
    later = run_of(client, 0.0072, batch=16, context_len=4095)
    after = client.post("/diagnose", data={**fields, "run": later, "title": "after"}).headers["location"]
    moved = client.get(f"{after}/moved", params={"since": address.rsplit("/", 1)[1]})
    assert moved.status_code == 200
    assert "times as fast as before" in text(moved.text)
    shared = client.post(f"{address}/shares", data={"expires": "86400"})
    assert shared.status_code == 201
    link = re.search(r"/s/[\w-]{20,}", shared.text)[0]  # type: ignore[index]
    reader = client.get(link)
    assert reader.status_code == 200
    assert reader.headers["x-robots-tag"].startswith("noindex")
    assert "Read fewer KV bytes" in reader.text
    assert "/explore?" not in reader.text
    assert "<form" not in reader.text.split("</main>")[0]
    assert client.post(f"{address}/delete").status_code == 303
    assert client.get(link).status_code == 404
    assert client.get(address).status_code == 404
    assert "after" in client.get("/diagnose?q=after").text


def test_triage_on_a_run_page(client: TestClient) -> None:
    run = run_of(client)
    page = client.get(f"/runs/{run}")
    shown = text(page.text)
    assert "Triage Decode and low latency" in shown
    assert "Read fewer KV bytes by data" in shown
    assert "FP8 or INT8 KV cache:" in shown
    assert f'href="/diagnose?scenario=decode&amp;run={run}"' in page.text
    open_ = client.get(f"/runs/{run_of(client, 0.0091, batch=1, context_len=511)}")
    assert "The tree asks first:" in text(open_.text)
    bare = {"bytebound": 1, "runs": [{"name": "bare", "metrics": {"tpot_s": 0.01}}]}
    made = client.post("/api/v1/runs?filename=b.json", content=json.dumps(bare)).json()
    assert "Triage" not in client.get(f"/runs/{made['runs'][0]['id']}").text


@pytest.mark.parametrize(
    "query",
    [
        "scenario=decode&answers=dc1:perhaps,nothing,::&values=mbu:nan,mbu:1e999,x:1,binding:\u202e",
        "scenario=moe&answer=mo1:yes:no&metric=skew&value=-3",
        "scenario=diffusion&values=quality_recorded:yes,steps:1e9,latency_goal:latency&answers=df1:unknown",
    ],
)
def test_hostile_addresses_are_answered(client: TestClient, query: str) -> None:
    answer = client.get(f"/diagnose?{query}")
    assert answer.status_code in (200, 303, 422)
