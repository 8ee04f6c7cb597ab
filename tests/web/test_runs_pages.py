"""Pages of runs as a browser gets them, with and without htmx."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.services.context import Context
from app.services.examples import offer_examples
from tests.services.native_runs import native

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
LINKS = {"part": "links", "hardware": "H200 SXM", "model": "Llama 3.1 8B"}


def uploaded(client: TestClient, data: bytes | None = None, name: str = "result.json") -> str:
    answer = client.post("/runs", files={"file": (name, data or native())})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].split("?")[0]


def test_an_empty_list_says_how_to_fill_it(client: TestClient):
    page = client.get("/runs")
    assert page.status_code == 200
    assert "No runs yet" in page.text
    assert "curl -sS -F file=@result.json" in page.text
    assert 'enctype="multipart/form-data"' in page.text


def test_a_plain_form_leads_to_the_run_and_the_same_file_to_the_same_run(client: TestClient):
    location = uploaded(client)
    page = client.get(location)
    assert "Decode reaches" in page.text
    again = client.post("/runs", files={"file": ("again.json", native())})
    assert again.status_code == 303
    assert again.headers["location"] == f"{location}?again=1"
    assert "stored already" in client.get(again.headers["location"]).text


def test_the_drop_zone_is_told_where_to_go(client: TestClient):
    answer = client.post("/runs", files={"file": ("result.json", native())}, headers=HTMX)
    assert answer.status_code == 200
    assert answer.headers["hx-redirect"].startswith("/runs/")


def test_several_files_are_answered_one_by_one(client: TestClient):
    files = [("file", ("good.json", native())), ("file", ("<b>bad.json", b'{"a": 1}'))]
    for headers in (HTMX, {}):
        answer = client.post("/runs", files=files, headers=headers)
        assert answer.status_code == 200
        assert "good.json" in answer.text
        assert "&lt;b&gt;bad" in answer.text
        assert "<b>bad" not in answer.text
        assert "nothing was stored" in answer.text
        assert ("<!doctype html>" in answer.text) is (headers == {})


def test_an_unreadable_file_is_answered_with_what_would_be_read(client: TestClient):
    answer = client.post("/runs", files={"file": ("x.json", b'{"epoch": 1}')}, headers=HTMX)
    assert answer.status_code == 422
    for words in ("epoch", "What was tried", "/formats", "/api/v1/schema/run.json"):
        assert words in answer.text
    page = client.post("/runs", files={"file": ("x.json", b'{"epoch": 1}')})
    assert page.status_code == 422
    assert "<!doctype html>" in page.text
    assert "nothing was stored" in page.text


def test_an_empty_form_is_a_422(client: TestClient):
    assert client.post("/runs", files={"other": ("x", b"y")}).status_code == 422


def test_text_of_files_is_escaped_everywhere(client: TestClient):
    evil = "<script>alert(1)</script>"
    data = native(name=evil, hardware=evil, model=evil, software={evil: evil}, notes=evil, kernels=[{"name": evil}])
    location = uploaded(client, data, f"{evil}.json")
    for path in (location, "/runs", f"{location}/delete"):
        text = client.get(path).text
        assert "<script>alert" not in text, path
        assert "&lt;script&gt;" in text or "\\u003cscript" in text, path


def test_names_of_a_sweep_are_escaped_in_the_chart_too(client: TestClient):
    import json

    one = json.loads(native())["runs"][0]
    runs = [
        {**one, "name": f"</script><img src=x onerror=alert({n})>", "series": {"concurrency": n}} for n in (1, 2, 3)
    ]
    text = client.get(uploaded(client, json.dumps({"bytebound": 1, "runs": runs}).encode())).text
    assert "<img src=x" not in text
    assert 'id="sweep-decode"' in text


def test_linking_by_form_computes_the_bound(client: TestClient):
    location = uploaded(client, native(hardware=None, model=None))
    page = client.get(location).text
    assert "Link a hardware profile and a model" in page
    answer = client.post(location, data=LINKS)
    assert (answer.status_code, answer.headers["location"]) == (303, location)
    assert "Decode reaches" in client.get(location).text
    part = client.post(location, data=LINKS | {"tp": "2", "weights": "fp8"}, headers=HTMX)
    assert part.status_code == 200
    assert "<!doctype html>" not in part.text
    assert "fp8 weights" in part.text
    stated = client.get(f"/api/v1{location}").json()["workload"]["stated"]
    assert stated == {"parallel": {"tp": 2}, "dtypes": {"weights": "fp8"}}


def test_one_form_links_every_run_of_a_file(client: TestClient):
    location = uploaded(client, (UPLOADS / "vllm-bench-serve" / "3.json").read_bytes())
    assert "Also for the other 11 runs" in client.get(location).text
    assert client.post(location, data=LINKS | {"tp": "2", "batch": "9", "whole_file": "1"}).status_code == 303
    items = client.get("/api/v1/runs").json()["items"]
    assert {item["hardware"] for item in items} == {"nvidia-h200-sxm"}
    bounds = [client.get(f"/api/v1/runs/{item['id']}").json()["bound"]["rows"][0]["workload"] for item in items]
    assert {bound["parallel"]["tp"] for bound in bounds} == {2}
    assert [bound["batch"] for bound in bounds].count(9) == 1  # the shape is each run's own


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hardware": "no such device"}, "no such device"),
        ({"tp": "two"}, "is not a whole number"),
        ({"tp": "0"}, "greater than or equal to 1"),
        ({"weights": "bf17"}, "bf17"),
    ],
)
def test_a_wrong_field_keeps_what_was_typed_and_says_why(client: TestClient, changes: dict[str, str], says: str):
    location = uploaded(client)
    before = client.get(f"/api/v1{location}").json()
    for headers in (HTMX, {}):
        answer = client.post(location, data=LINKS | changes | {"batch": "7"}, headers=headers)
        assert answer.status_code == 422
        assert "field-error" in answer.text or "block-error" in answer.text
        assert 'value="7"' in answer.text
        if says != "bf17":
            assert says in answer.text
    assert client.get(f"/api/v1{location}").json() == before


def test_naming_tagging_and_a_baseline_by_form(client: TestClient):
    base = uploaded(client).rsplit("/", 1)[-1]
    location = uploaded(client, native(metrics={"tpot_s": {"mean": 0.02}}))
    about = {"part": "about", "name": "new name", "tags": "a, b", "notes": "warm", "baseline": base}
    assert client.post(location, data=about).status_code == 303
    page = client.get(location).text
    for words in ("new name", "Against the baseline", "100\u202f% worse", "Time per output token (TPOT) mean"):
        assert words in page
    run = client.get(f"/api/v1{location}").json()
    assert (run["tags"], run["notes"], run["baseline"]) == (["a", "b"], "warm", base)
    refused = client.post(location, data=about | {"name": "", "notes": "kept text"}, headers=HTMX)
    assert refused.status_code == 422
    assert "kept text" in refused.text


def test_deleting_asks_first(client: TestClient):
    location = uploaded(client)
    assert "Delete this run?" in client.get(f"{location}/delete").text
    assert client.get(location).status_code == 200
    answer = client.post(f"{location}/delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    assert client.get(location).status_code == 404
    assert client.post(f"{location}/delete").status_code == 404


def test_the_list_filters_as_a_page_and_as_a_part(client: TestClient):
    uploaded(client, native(name="kept"))
    uploaded(client, (UPLOADS / "vllm-bench-serve" / "1.json").read_bytes())
    page = client.get("/runs?format=bytebound")
    assert "kept" in page.text
    assert "DeepSeek" not in page.text.split('id="runs-list"')[1]
    part = client.get("/runs?q=deepseek", headers=HTMX)
    assert "<!doctype html>" not in part.text
    assert "DeepSeek" in part.text
    assert "No run matches" in client.get("/runs?q=nothinglikethis").text
    assert client.get("/runs?sort=nonsense").status_code == 422


def test_a_number_says_where_in_the_file_it_was_read(client: TestClient):
    location = uploaded(client, (UPLOADS / "vllm-bench-serve" / "1.json").read_bytes())
    page = client.get(location).text
    assert "/mean_tpot_ms" in page
    assert "31.44076407637815 ms" in page
    assert "Not reported:" in page


def test_the_example_is_marked_and_leaves_with_one_click(client: TestClient, context: Context):
    offered = offer_examples(context)
    page = client.get("/runs").text
    assert "Remove the example" in page
    assert "Remove the example" in client.get(f"/runs/{offered[0].id}").text
    assert client.post("/runs/examples/remove").status_code == 303
    assert "No runs yet" in client.get("/runs").text
