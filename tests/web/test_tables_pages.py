"""A table of a team's own: asked about once, kept meanwhile, remembered, changed, forgotten; by page and API."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

TABLE = """run;batch;latency (ms);tok/s;TTFT p99 [ms];GPU;power;api_key
first;1;12,5;1.234,5;=1+1;H100 SXM;700;sk-abcdefghijkl
second;2;13,75;2.345,0;N/A;H100 SXM;;sk-abcdefghijkl
third;4;15;3.456,7;120,5;H100 SXM;710;sk-abcdefghijkl
"""


def send(client: TestClient, text: str, name: str = "sweep.csv", **query: str):
    return client.post("/api/v1/runs", params={"filename": name, **query}, content=text.encode())


def test_the_api_asks_once_and_remembers(client: TestClient):
    asked = send(client, TABLE, tags="night")
    assert asked.status_code == 422
    body = asked.json()
    assert (body["reason"], body["rows"]) == ("needs-mapping", 3)
    assert "sk-abcdef" not in asked.text
    guesses = {column["name"]: column["guess"] for column in body["columns"]}
    assert guesses["run"]["use"] == "name"
    assert guesses["batch"]["use"] == "batch"
    assert guesses["GPU"]["use"] == "hardware"
    assert guesses["latency (ms)"] == {"use": "metric", "metric": "latency_s", "stat": None, "unit": "ms"}
    assert guesses["tok/s"] == {"use": "metric", "metric": "output_tokens_per_s", "stat": None, "unit": "tokens/s"}
    assert guesses["TTFT p99 [ms]"] == {"use": "metric", "metric": "ttft_s", "stat": "p99", "unit": "ms"}
    assert guesses["api_key"]["use"] == "ignore"
    assert body["mapping"]["decimal"] == ","
    listed = client.get("/api/v1/mappings").json()
    assert (listed["total"], [one["id"] for one in listed["waiting"]]) == (0, [body["upload"]])
    assert send(client, TABLE).json()["upload"] == body["upload"]

    stored = send(client, TABLE, mapping=json.dumps(body["mapping"]), tags="night")
    assert stored.status_code == 201, stored.text
    assert stored.json()["upload"] == body["upload"]
    first, second, third = stored.json()["runs"]
    assert [run["name"] for run in (first, second, third)] == ["first", "second", "third"]
    # Read off the table: 12,5 ms, 1.234,5 tokens/s; formula, N/A and the empty cell are not reported.
    assert first["metrics"]["latency_s"]["value"] == pytest.approx(0.0125)
    assert first["metrics"]["output_tokens_per_s"]["value"] == pytest.approx(1234.5)
    assert first["metrics"]["latency_s"]["pointer"] == "line 2: /latency (ms)"
    assert "ttft_s.p99" not in first["metrics"]
    assert "power_w" not in second["metrics"]
    assert third["metrics"]["ttft_s.p99"]["value"] == pytest.approx(0.1205)
    assert third["metrics"]["power_w"]["value"] == 710
    assert first["hardware"]["id"] == "nvidia-h100-sxm"
    assert first["series"] == {"batch": 1}
    assert first["tags"] == ["night"]
    assert "sk-abcdef" not in stored.text
    assert any(finding["check"] == "not-numbers" for finding in stored.json()["findings"])

    again = send(client, TABLE.replace("12,5", "11,5"), name="next.csv")
    assert again.status_code == 201
    (note,) = [f for f in again.json()["findings"] if f["check"] == "remembered-mapping"]
    assert f'href="/tables/{note["fields"][0]}"' in client.get(f"/runs/{again.json()['runs'][0]['id']}").text
    (kept,) = client.get("/api/v1/mappings").json()["items"]
    assert kept["id"] == note["fields"][0]
    assert client.get(f"/api/v1/runs/{first['id']}/raw").text == TABLE
    for run in stored.json()["runs"]:
        assert client.delete(f"/api/v1/runs/{run['id']}").status_code == 204
    assert send(client, TABLE).status_code == 201
    assert client.delete(f"/api/v1/mappings/{kept['id']}").status_code == 204
    assert send(client, TABLE.replace("12,5", "10,5")).status_code == 422


def test_the_page_keeps_the_file_until_its_columns_are_explained(client: TestClient):
    sent = client.post("/runs", files={"file": ("mine.tsv", b"name\ttime\tloss\na<b>\t3\t2.5\n\t4\t2.25\n")})
    page = sent.headers["location"]
    assert re.fullmatch(r"/tables/files/[a-z0-9]+", page)
    shown = client.get(page).text
    assert "a&lt;b&gt;" in shown
    assert "mine.tsv" in client.get("/runs").text
    assert "mine.tsv" in client.get("/tables").text
    form = {"decimal": ".", "mode": "train"}
    for number, (name, use, metric, unit) in enumerate(
        [("name", "name", "", ""), ("time", "metric", "step_time_s", ""), ("loss", "metric", "loss", "")]
    ):
        keys = {"name": name, "use": use, "metric": metric, "unit": unit, "stat": ""}
        form |= {f"{key}-{number}": value for key, value in keys.items()}
    refused = client.post(page, data=form)
    assert refused.status_code == 422
    assert "Say the unit: s, ms, us" in refused.text
    read = client.post(page, data=form | {"unit-1": "ms"})
    assert read.status_code == 303
    run = client.get("/api/v1" + read.headers["location"]).json()
    assert run["metrics"]["step_time_s"]["value"] == pytest.approx(0.003)
    assert run["metrics"]["loss"]["value"] == 2.5
    assert client.get(page).status_code == 409
    assert client.post(page + "/discard").status_code == 409

    (kept,) = client.get("/api/v1/mappings").json()["items"]
    address = f"/tables/{kept['id']}"
    assert "step_time_s" in client.get(address).text
    assert client.post(address, data=form | {"unit-1": "us"}).status_code == 303
    later = send(client, "loss\tname\ttime\n1.5\tz\t7\n").json()["runs"][0]
    assert later["metrics"]["step_time_s"]["value"] == pytest.approx(7e-6)
    assert client.post(address + "/forget").status_code == 303
    assert client.get(address).status_code == 404


def test_a_waiting_file_can_be_discarded(client: TestClient):
    upload = send(client, "[" + json.dumps({"x": 1, "latency_ms": 2.0}) + "]", "t.json").json()["upload"]
    assert client.post(f"/tables/files/{upload}/discard").status_code == 303
    assert client.get(f"/tables/files/{upload}").status_code == 404
    assert client.get("/api/v1/mappings").json()["waiting"] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"lat_ms": 1, "b": 2}\n{"lat_ms": 3.5, "b": 4}\n', 0.001),
        ("lat_ms,b\n1,2\n", 0.001),
        ('\ufefflat_ms,b\r\n"1,000.5",2\r\n', 1.0005),
        ("# made by hand\nlat_ms|b\n1 s|2\n", 1.0),
        ("lat_ms\tb\n1\u202f000\t2\n", 1.0),
    ],
)
def test_tables_are_read_as_they_are_written(client: TestClient, text: str, value: float):
    mapping = {"columns": {"lat_ms": {"use": "metric", "metric": "latency_s", "unit": "ms"}, "b": {"use": "batch"}}}
    answer = send(client, text, mapping=json.dumps(mapping))
    assert answer.status_code == 201, answer.text
    assert answer.json()["runs"][0]["metrics"]["latency_s"]["value"] == pytest.approx(value)


@pytest.mark.parametrize(
    ("mapping", "at"),
    [
        ("{", ["mapping"]),
        ('{"columns": {}}', ["mapping", "columns"]),
        (
            '{"columns": {"a": {"use": "metric", "metric": "latency_s", "unit": "GB"}}}',
            ["mapping", "columns", "a", "unit"],
        ),
        ('{"columns": {"a": {"use": "metric", "metric": "speed"}}}', ["mapping", "columns", "a", "metric"]),
        ('{"columns": {"a": {"use": "batch"}}}', ["mapping", "columns"]),
        ('{"columns": {"a": {"use": "what"}}}', ["mapping", "columns", "a", "use"]),
        ('{"columns": {"z": {"use": "metric", "metric": "loss"}}}', None),
    ],
)
def test_a_wrong_mapping_names_its_field(client: TestClient, mapping: str, at: list[str] | None):
    answer = send(client, "a,b\n1,2\n", mapping=mapping)
    assert answer.status_code == 422
    if at is None:
        assert "columns that the table does not have" in answer.json()["seen"]
    else:
        assert answer.json()["errors"][0]["loc"] == at


@pytest.mark.parametrize(
    "text",
    [
        "hello, world\nfoo, bar\n",
        "1,2\n3,4\n",
        "a\n1\n",
        '{"a": 1}',
        "a,b\n" + "1,2\n" * 1001,
        "workload_name,command,gpu\nx,y,1\n",
    ],
)
def test_what_is_no_table_is_refused_as_before(client: TestClient, text: str):
    answer = send(client, text)
    assert answer.status_code == 422
    assert answer.json()["reason"] in ("not-recognised", "not-supported", "too-large")
    assert client.get("/api/v1/mappings").json()["waiting"] == []
