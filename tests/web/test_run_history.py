"""Pages and calls of history, checks, remembered links and the gate."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.services.native_runs import native

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}


def sent(client: TestClient, value: float, name: str, **more: object) -> str:
    data = native(name=name, metrics={"tpot_s": {"mean": value}}, **more)
    return client.post("/api/v1/runs", params={"filename": "a.json"}, content=data).json()["runs"][0]["id"]


@pytest.fixture
def ids(client: TestClient) -> list[str]:
    return [sent(client, value, f"<b>run {place}") for place, value in enumerate((0.010, 0.011, 0.0105))]


def test_the_history_is_a_page_with_a_chart_and_its_table(client: TestClient, ids: list[str]):
    items = client.get("/api/v1/runs/series").json()
    assert (items["total"], items["items"][0]["runs"]) == (1, 3)
    key = items["items"][0]["key"]
    answer = client.get(f"/api/v1/runs/series/{key}").json()
    assert [run["id"] for run in answer["runs"]] == ids
    assert [run["value"] for run in answer["runs"]] == [0.010, 0.011, 0.0105]
    assert (answer["better"], answer["unit"], answer["baseline"]) == ("lower", "s", None)
    assert client.get("/api/v1/runs/series/nothing").status_code == 404
    assert client.get(f"/api/v1/runs/series/{key}", params={"metric": "mfu"}).status_code == 422
    client.patch(f"/api/v1/runs/{ids[0]}", json={"is_baseline": True})
    listed = client.get("/runs/series")
    assert f"/runs/series/{key}" in listed.text
    page = client.get(f"/runs/series/{key}")
    assert page.status_code == 200
    assert "series-chart" in page.text
    assert "&lt;b&gt;run 0" in page.text
    assert "<b>run" not in page.text
    assert "Baseline:" in page.text
    part = client.get(f"/runs/series/{key}?metric=nonsense", headers=HTMX)
    assert "no run of this series" in part.text.lower()
    assert "<!doctype" not in part.text
    assert client.get("/runs/series/nothing").status_code == 404


def test_a_run_leads_to_its_neighbours(client: TestClient, ids: list[str]):
    page = client.get(f"/runs/{ids[1]}").text
    assert "run 2 of 3" in page
    assert f'rel="prev" href="/runs/{ids[0]}"' in page
    assert f'rel="next" href="/runs/{ids[2]}"' in page
    assert "No history yet" not in page


def test_an_empty_history_says_how_it_begins(client: TestClient):
    assert "No history yet" in client.get("/runs/series").text


def test_the_check_is_a_form_whose_address_is_the_check(client: TestClient, ids: list[str]):
    assert client.get(f"/runs/{ids[0]}/check").status_code == 200  # nothing came before it, and nothing was asked
    first = client.get(f"/runs/{ids[2]}/check")
    assert first.status_code == 200
    assert "Passes against the median of the 2 runs before it" in first.text
    failed = client.get(f"/runs/{ids[1]}/check", params={"baseline": ids[0], "max.tpot_s.mean": "5"})
    assert "Fails against its baseline: 1 of 1 metric is worse than allowed" in failed.text
    assert f"bytebound check {ids[1]} --url http://testserver --baseline {ids[0]} --rule tpot_s.mean=5%" in failed.text
    for query in ({"baseline": "nothing", "max.tpot_s.mean": "5"}, {"baseline": ids[0], "max.tpot_s.mean": "much"}):
        refused = client.get(f"/runs/{ids[1]}/check", params=query)
        assert refused.status_code == 422
        assert "field-error" in refused.text


def test_the_gate_takes_the_series_for_a_baseline(client: TestClient, ids: list[str]):
    body = {"run": ids[2], "baseline": "series", "rules": [{"metric": "tpot_s.mean", "max_regression": 0.05}]}
    answer = client.post("/api/v1/runs/check", json=body).json()
    assert (answer["passed"], answer["baseline_kind"], answer["baseline_runs"]) == (True, "last", ids[:2])
    assert client.post("/api/v1/runs/check", json=body | {"last": 0}).status_code == 422


def test_findings_are_grouped_and_facts_can_be_added_on_the_page(client: TestClient):
    run = sent(client, 0.001, "too fast")
    page = client.get(f"/runs/{run}").text
    assert page.index("Contradictions") < page.index("What ran")
    assert "faster than its bound" in page
    assert 'name="fact_version"' in page
    form = {"part": "links", "hardware": "H100 SXM", "model": "Llama 3.1 8B", "fact_version": "<i>0.11"}
    assert client.post(f"/runs/{run}", data=form).status_code == 303
    assert client.get(f"/api/v1/runs/{run}").json()["facts"] == {"version": "<i>0.11"}
    assert "&lt;i&gt;0.11" in client.get(f"/runs/{run}").text
    refused = client.patch(f"/api/v1/runs/{run}", json={"facts": {"nonsense": "1"}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == ["facts", "nonsense"]


def test_checks_and_remembered_links_are_listed_and_forgotten(client: TestClient):
    table = client.get("/api/v1/runs/checks").json()
    assert {"percentiles-disordered", "faster-than-bound"} <= {check["id"] for check in table["checks"]}
    assert 'id="percentiles-disordered"' in client.get("/runs/checks").text
    assert "Nothing is remembered yet" in client.get("/runs/links").text
    run = sent(client, 0.01, "a run", hardware="<b>our lab</b>")
    answer = client.patch(f"/api/v1/runs/{run}", json={"hardware": "h100-sxm"}).json()
    assert answer["hardware"]["basis"] == "remembered"
    link = answer["hardware"]["remembered"]
    page = client.get("/runs/links").text
    assert "&lt;b&gt;our lab" in page
    gone = client.post(f"/runs/links/{link}/forget", data={"back": "https://elsewhere.example/runs/x"})
    assert (gone.status_code, gone.headers["location"]) == (303, "/runs/links")
    assert client.get("/api/v1/runs/links").json() == {"items": [], "total": 0}
    assert client.delete(f"/api/v1/runs/links/{link}").status_code == 404
