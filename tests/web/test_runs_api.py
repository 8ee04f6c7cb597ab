"""Runs over HTTP: every sample format through the real app, errors, links, raw files and the gate."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.services.native_runs import native

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"
FILES = sorted(path for path in UPLOADS.glob("*/*") if path.suffix in (".json", ".jsonl", ".txt"))
EXPECTED = json.loads((UPLOADS / "expected.json").read_text())
ONCE = (UPLOADS / "vllm-bench-serve" / "1.json").read_bytes()
MILLI = {"ms": 1e-3, "s": 1.0, "tok/s": 1.0, "req/s": 1.0, "requests": 1.0}


def send(client: TestClient, data: bytes, name: str = "result.json", **query: str):
    return client.post("/api/v1/runs", params={"filename": name, **query}, content=data)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_sample_is_stored_and_answered(client: TestClient, path: Path):
    data = path.read_bytes()
    answer = send(client, data, path.name)
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert body["format"] == path.parent.name
    assert body["runs"]
    assert answer.headers["location"] == f"/api/v1/runs/{body['runs'][0]['id']}"
    run = client.get(answer.headers["location"]).json()
    assert run["name"] == body["runs"][0]["name"]
    assert run["verdict"]
    assert client.get(f"/runs/{run['id']}").status_code == 200
    raw = client.get(f"/api/v1/runs/{run['id']}/raw")
    assert raw.content == data
    again = send(client, data, "copy-of-it.json")
    assert again.status_code == 200
    assert [r["id"] for r in again.json()["runs"]] == [r["id"] for r in body["runs"]]


@pytest.mark.parametrize(
    ("file", "key", "fact"),
    [
        ("vllm-bench-serve/1.json", "tpot_s.mean", "tpot_mean"),
        ("vllm-bench-serve/1.json", "ttft_s.p99", "ttft_p99"),
        ("vllm-bench-serve/1.json", "output_tokens_per_s", "output_throughput"),
        ("sglang-bench-serving/1.jsonl", "ttft_s.mean", "ttft_mean"),
        ("sglang-bench-serving/1.jsonl", "requests_completed", "completed"),
    ],
)
def test_metrics_are_those_of_the_file_in_si(client: TestClient, file: str, key: str, fact: str):
    told = EXPECTED[file][fact]
    metrics = send(client, (UPLOADS / file).read_bytes()).json()["runs"][0]["metrics"]
    assert metrics[key]["value"] == pytest.approx(told["value"] * MILLI[told["unit"]], rel=1e-9)
    assert metrics[key]["pointer"]


def test_a_form_takes_fields_and_several_files(client: TestClient):
    files = [
        ("file", ("good.json", native(), "application/json")),
        ("file", ("bad.json", b'{"a": 1}', "application/json")),
    ]
    answer = client.post("/api/v1/runs", files=files, data={"tags": "ci,nightly", "hardware": "h200-sxm"})
    assert answer.status_code == 201
    good, bad = answer.json()["items"]
    assert (good["status"], good["runs"][0]["tags"], good["runs"][0]["hardware"]["id"]) == (
        201,
        ["ci", "nightly"],
        "nvidia-h200-sxm",
    )
    assert (bad["status"], bad["reason"], bad["file_name"]) == (422, "not-recognised", "bad.json")
    assert bad["tried"]
    nothing = client.post(
        "/api/v1/runs", files=[("file", ("a", b"x", "text/plain")), ("file", ("b", b"y", "text/plain"))]
    )
    assert nothing.status_code == 422
    assert len(nothing.json()["items"]) == 2


def test_a_form_without_a_file_says_so(client: TestClient):
    answer = client.post("/api/v1/runs", data={"name": "x"}, files={"other": ("a", b"b")})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["file"]


def test_an_unreadable_file_is_told_what_was_seen_tried_and_accepted(client: TestClient):
    answer = send(client, b'{"epoch": 3}')
    assert answer.status_code == 422
    body = answer.json()
    assert body["type"].endswith("unreadable-upload")
    assert "epoch" in body["seen"]
    assert {tried["format"] for tried in body["tried"]} >= {"vllm-bench-serve", "llama-bench"}
    assert any("vLLM" in title for title in body["accepts"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b'{"bytebound": 1, "runs": ' + b"[" * 50 + b"]" * 50 + b"}",
        b'{"bytebound": 1, "bytebound": 2, "runs": []}',
        b"\xff\xfe\x00\x00",
        b'{"request_throughput": 1.0, "mean_ttft_ms": "soon"}',
        (UPLOADS / "vllm-bench-serve" / "1.json").read_bytes()[:400],
    ],
)
def test_hostile_files_are_refused_or_read_but_never_break(client: TestClient, data: bytes):
    answer = send(client, data)
    assert answer.status_code in (201, 422), answer.text
    page = client.post("/runs", files={"file": ("x.json", data)})
    assert page.status_code in (303, 422)
    if answer.status_code == 422:
        assert "nothing was stored" in page.text or "no file came" in page.text


def test_not_a_number_becomes_null_with_a_finding(client: TestClient):
    record = json.loads((UPLOADS / "vllm-bench-serve" / "1.json").read_text())
    record["mean_ttft_ms"] = float("nan")
    answer = send(client, json.dumps(record).encode())
    assert answer.status_code == 201
    assert "NaN" not in answer.text
    run = answer.json()["runs"][0]
    assert "ttft_s.mean" not in run["metrics"]
    assert any("ttft" in finding["message"] for finding in run["findings"])


def test_a_body_over_the_cap_is_413_with_and_without_a_length(settings: Settings):
    from dataclasses import replace

    app = create_app(replace(settings, max_upload_bytes=1000))
    with TestClient(app, follow_redirects=False) as client:
        assert send(client, b" " * 1001).status_code == 413
        chunks = (b" " * 500 for _ in range(3))
        assert client.post("/api/v1/runs?filename=x", content=chunks).status_code == 413
        assert client.post("/runs", files={"file": ("x.json", b" " * 2000)}).status_code == 413


def test_the_raw_file_is_a_download_that_no_browser_runs(client: TestClient):
    name = 'a"; evil=<script>.html'
    run = send(client, native(), name).json()["runs"][0]["id"]
    for path in (f"/api/v1/runs/{run}/raw", f"/runs/{run}/raw"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        disposition = answer.headers["content-disposition"]
        assert disposition.startswith('attachment; filename="')
        assert disposition.count('"') == 2


def test_the_raw_file_comes_as_it_was_sent_with_its_length(client: TestClient):
    sent = gzip.compress(native())
    run = send(client, sent, "result.json.gz").json()["runs"][0]["id"]
    answer = client.get(f"/runs/{run}/raw", headers={"Accept-Encoding": "gzip"})
    assert answer.content == sent
    assert answer.headers["content-length"] == str(len(sent))
    assert "content-encoding" not in answer.headers
    assert client.get(f"/runs/{run}/raw", headers={"Range": "bytes=2-5"}).content == sent[2:6]


def test_a_warning_can_be_acknowledged_with_a_note(client: TestClient):
    run = send(client, ONCE, "result.json").json()["runs"][0]
    warnings = [finding for finding in run["findings"] if finding["severity"] == "warning"]
    check = warnings[0]["check"]
    path = f"/api/v1/runs/{run['id']}"
    for body, said in (
        ({check: " "}, "say in a note"),
        ({check: "x" * 501}, "at most 500"),
        ({"nothing": "x"}, f"its warnings are {check}"),
    ):
        refused = client.patch(path, json={"acknowledge": body})
        assert refused.status_code == 422
        assert said in refused.text
    answer = client.patch(path, json={"acknowledge": {check: "known <b>machine</b>"}}).json()
    found = next(finding for finding in answer["findings"] if finding["check"] == check)
    assert found["severity"] == "warning"
    assert found["acknowledged"]["note"] == "known <b>machine</b>"
    frozen = client.post("/api/v1/comparisons", json={"title": "t", "items": [{"run": run["id"]}, {"run": run["id"]}]})
    page = client.get(f"/comparisons/{frozen.json()['id']}").text
    assert "known &lt;b&gt;machine&lt;/b&gt;" in page
    assert "known &lt;b&gt;machine" in client.get(f"/runs/{run['id']}").text
    again = client.patch(path, json={"acknowledge": {check: None}}).json()
    assert not any("acknowledged" in finding for finding in again["findings"])
    assert "known &lt;b&gt;machine" in client.get(f"/comparisons/{frozen.json()['id']}").text


def test_patch_links_renames_tags_and_states(client: TestClient):
    run = send(client, native(hardware=None, model=None)).json()["runs"][0]["id"]
    path = f"/api/v1/runs/{run}"
    assert "bound" in client.get(path).json()
    assert client.get(path).json()["bound"]["rows"] == []
    answer = client.patch(path, json={"hardware": "H200 SXM", "model": "meta-llama/Llama-3.1-8B", "name": "renamed"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["name"], body["hardware"]["id"], body["hardware"]["is_guess"]) == ("renamed", "nvidia-h200-sxm", False)
    assert 0 < body["efficiency"]["of_bound"] < 1
    assert body["bound"]["binding"] == "hbm"
    request = {"hardware": "nvidia-h200-sxm", "model": "llama-3.1-8b", "workload": body["bound"]["rows"][0]["workload"]}
    asked = client.post("/api/v1/estimates/bound", json=request)
    assert asked.json()["bound_s"] == pytest.approx(body["bound"]["bound_s"], rel=1e-12)
    stated = client.patch(
        path, json={"workload": {"batch": 64, "dtypes": {"weights": "fp8"}}, "tags": ["a", "b"]}
    ).json()
    assert stated["workload"]["stated"] == {"batch": 64, "dtypes": {"weights": "fp8"}}
    assert stated["bound"]["rows"][0]["workload"]["batch"] == 64
    assert stated["tags"] == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"hardware": "no such thing"}, 422),
        ({"name": ""}, 422),
        ({"workload": {"batch": -1}}, 422),
        ({"workload": {"batch": 1.5}}, 422),
        ({"parallel": {"tp": 0}}, 422),
        ({"baseline": "nobody"}, 422),
        ({"unknown": 1}, 422),
        ({"tags": "a"}, 422),
    ],
)
def test_a_wrong_patch_changes_nothing(client: TestClient, body: dict, status: int):
    run = send(client, native()).json()["runs"][0]["id"]
    before = client.get(f"/api/v1/runs/{run}").json()
    assert client.patch(f"/api/v1/runs/{run}", json=body).status_code == status
    assert client.get(f"/api/v1/runs/{run}").json() == before


def test_a_run_is_not_its_own_baseline(client: TestClient):
    run = send(client, native()).json()["runs"][0]["id"]
    assert client.patch(f"/api/v1/runs/{run}", json={"baseline": run}).status_code == 422


def test_delete_and_unknown_runs(client: TestClient):
    run = send(client, native()).json()["runs"][0]["id"]
    assert client.delete(f"/api/v1/runs/{run}").status_code == 204
    for path in (f"/api/v1/runs/{run}", f"/api/v1/runs/{run}/raw", f"/api/v1/runs/{run}/kernels", f"/runs/{run}"):
        assert client.get(path).status_code == 404, path
    assert client.delete(f"/api/v1/runs/{run}").status_code == 404


def test_lists_filter_sort_and_page(client: TestClient):
    for tpot in (0.03, 0.01, 0.02):
        send(client, native(name=f"run {tpot}", metrics={"tpot_s": {"mean": tpot}}), tags="t" if tpot > 0.01 else "")
    send(client, (UPLOADS / "vllm-bench-serve" / "1.json").read_bytes())

    def names(query: str) -> list[str]:
        answer = client.get(f"/api/v1/runs?{query}")
        assert answer.status_code == 200, answer.text
        return [item["name"] for item in answer.json()["items"]]

    assert names("format=bytebound&sort=tpot_s") == ["run 0.01", "run 0.02", "run 0.03"]
    assert names("tag=t&sort=-tpot_s.mean") == ["run 0.03", "run 0.02"]
    assert len(names("hardware=H100%20SXM")) == 3
    several = client.get("/api/v1/runs?hardware=h100")
    assert several.status_code == 422
    assert "nvidia-h100-sxm" in several.json()["candidates"]
    page = client.get("/runs?hardware=h100")
    assert (page.status_code, page.text.count("nvidia-h100-sxm")) == (422, 1)
    assert len(names("q=DeepSeek")) == 1
    assert names("since=2100-01-01") == []
    page = client.get("/api/v1/runs?limit=3").json()
    assert (len(page["items"]), page["total"]) == (3, 4)
    assert len(client.get("/api/v1/runs", params={"limit": 3, "cursor": page["next"]}).json()["items"]) == 1
    for wrong in ("sort=speed", "since=yesterday", "limit=0", "limit=201", "cursor=x"):
        assert client.get(f"/api/v1/runs?{wrong}").status_code == 422, wrong


def test_the_gate_over_http(client: TestClient):
    base = send(client, native()).json()["runs"][0]["id"]
    run = send(client, native(metrics={"tpot_s": {"mean": 0.02}})).json()["runs"][0]["id"]
    rule = {"metric": "tpot_s.mean", "max_regression": 0.05}
    answer = client.post("/api/v1/runs/check", json={"run": run, "baseline": base, "rules": [rule]})
    assert answer.status_code == 200
    row = answer.json()["rows"][0]
    assert (answer.json()["passed"], row["ratio"], row["regression"]) == (False, pytest.approx(2.0), pytest.approx(1.0))
    assert client.post("/api/v1/runs/check", json={"run": run, "rules": [rule]}).status_code == 422
    assert client.post("/api/v1/runs/check", json={"run": "x", "baseline": base, "rules": [rule]}).status_code == 404


def test_kernels_are_listed_where_there_are_some(client: TestClient):
    kernels = [{"name": "gemm", "time_s": 0.002, "share": 0.8}, {"name": "copy", "time_s": 0.0005}]
    run = send(client, native(kernels=kernels)).json()["runs"][0]["id"]
    answer = client.get(f"/api/v1/runs/{run}/kernels").json()
    assert (answer["total"], answer["items"][0]["name"]) == (2, "gemm")
    assert "gemm" in client.get(f"/runs/{run}").text


def test_faster_than_the_bound_is_an_error_finding(client: TestClient):
    run = send(client, native(metrics={"tpot_s": {"mean": 1e-6}})).json()["runs"][0]
    assert run["efficiency"]["of_bound"] > 1
    assert run["findings"][0]["check"] == "faster-than-bound"
    assert run["findings"][0]["severity"] == "error"
    page = client.get(f"/runs/{run['id']}").text
    assert "contradicts its bound" in page
