"""Comparisons over HTTP: the API's calls, the form, the page, the panel of links, and what a reader of a link gets."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

EVIL = "<script>alert(1)</script>"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
REQUEST = {"hardware": "nvidia-h100-sxm", "model": "llama-3.1-8b", "workload": {"phase": "decode", "batch": 8}}
FP8 = {**REQUEST, "workload": {"phase": "decode", "batch": 8, "dtypes": {"weights": "fp8"}}}


def estimate(request: Any = None, **more: Any) -> dict[str, Any]:
    return {"estimate": {"kind": "bound", "request": request or REQUEST}, **more}


def upload(client: TestClient, *rates: float) -> list[str]:
    runs = [
        {
            "name": f"run at {rate:g}",
            "workload": {"mode": "serve", "concurrency": 8},
            "metrics": {"output_tokens_per_s": rate, "ttft_s": {"p50": 1 / rate}},
        }
        for rate in rates
    ]
    body = json.dumps({"bytebound": 1, "runs": runs})
    answer = client.post("/api/v1/runs?filename=runs.json", content=body).json()
    return [run["id"] for run in answer["runs"]]


def create(client: TestClient, *items: Any, **more: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/comparisons", json={"title": "Before and after", "items": list(items), **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def link(client: TestClient, comparison_id: str, **body: Any) -> str:
    answer = client.post(f"/api/v1/comparisons/{comparison_id}/share", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["url"] == f"http://testserver/s/{answer.json()['token']}"
    return str(answer.json()["token"])


# ---- API ------------------------------------------------------------------------------------------------------------


def test_create_read_list_delete(client: TestClient) -> None:
    slow, fast = upload(client, 100, 124)
    made = create(client, {"run": slow}, {"run": fast, "book_as": "runtime"})
    assert made["url"] == f"/comparisons/{made['id']}"
    assert made["sentence"] == "“run at 124” reaches 1.24× the output tokens/s of “run at 100”."
    assert made["ledger"]["by_book"] == {"runtime": 1.24}
    assert client.get(f"/api/v1/comparisons/{made['id']}").json() == made
    listed = client.get("/api/v1/comparisons?q=after").json()
    assert (listed["total"], listed["items"][0]["id"]) == (1, made["id"])
    assert client.delete(f"/api/v1/comparisons/{made['id']}").status_code == 204
    assert client.get(f"/api/v1/comparisons/{made['id']}").status_code == 404
    assert client.delete(f"/api/v1/comparisons/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"items": [estimate()]}, ["title"]),
        ({"title": "t", "items": []}, ["items"]),
        ({"title": "t", "items": [estimate()] * 51}, ["items"]),
        ({"title": "t" * 201, "items": [estimate()]}, ["title"]),
        ({"title": "t", "items": [{"run": "gone"}]}, ["items", 0, "run"]),
        ({"title": "t", "items": [{"label": "neither"}]}, ["items", 0, "run"]),
        ({"title": "t", "items": [estimate(book_as="luck")]}, ["items", 0, "book_as"]),
        ({"title": "t", "items": [{"run": "x", "label": 5}]}, ["items", 0, "label"]),
        (
            {"title": "t", "items": [estimate({**REQUEST, "workload": {"batch": 0}})]},
            ["items", 0, "estimate", "request", "workload", "batch"],
        ),
        ({"title": "t", "items": [estimate()], "baseline": 3}, ["baseline"]),
        ({"title": "t", "items": [estimate()], "extra": 1}, ["extra"]),
        ({"title": "t", "items": [{"estimate": {"kind": "guess", "request": {}}}]}, ["items", 0, "estimate"]),
        ({"title": "t", "items": [{"estimate": "bound"}]}, ["items", 0, "estimate"]),
    ],
)
def test_bad_bodies_name_the_place(client: TestClient, body: Any, loc: list[Any]) -> None:
    answer = client.post("/api/v1/comparisons", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["loc"] for error in answer.json()["errors"]] == [loc]


def test_exports(client: TestClient) -> None:
    made = create(client, estimate(), estimate(FP8, label="FP8"))
    address = f"/api/v1/comparisons/{made['id']}/export"
    table = client.get(f"{address}?format=csv")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert table.headers["content-disposition"] == 'attachment; filename="before-and-after.csv"'
    assert "output_tokens_per_s,tokens/s,higher," in table.text
    assert client.get(f"{address}?format=json").json() == made
    assert client.get(f"{address}?format=pdf").status_code == 422
    assert client.get("/api/v1/comparisons/nothere/export").status_code == 404


def test_the_html_export_needs_nothing_from_outside(client: TestClient) -> None:
    made = create(client, estimate(label=EVIL), estimate(FP8, label="FP8"), title=EVIL)
    answer = client.get(f"/api/v1/comparisons/{made['id']}/export?format=html")
    page = answer.text
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert EVIL not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 3
    assert "<script" not in page
    assert "<svg" in page
    assert not re.search(r"(src|href|url|@import)\s*[=(]?\s*[\"']?(https?:)?//", page)
    assert not re.search(r"\b(src|href)=", page)


def test_a_link_opens_as_json_and_can_be_revoked(client: TestClient) -> None:
    made = create(client, estimate(), estimate(FP8))
    token = link(client, made["id"])
    assert len(token) == 22
    opened = client.get(f"/api/v1/shares/{token}")
    assert opened.headers["x-robots-tag"].startswith("noindex")
    assert opened.headers["referrer-policy"] == "no-referrer"
    shown = opened.json()
    assert (shown["title"], shown["moved"], shown["share"]["expires_at"]) == ("Before and after", [], None)
    assert shown["metrics"] == made["metrics"]
    assert "id" not in shown
    assert client.delete(f"/api/v1/shares/{token}").status_code == 204
    assert client.get(f"/api/v1/shares/{token}").status_code == 404
    assert client.delete(f"/api/v1/shares/{token}").status_code == 404


def test_links_are_listed_without_their_tokens(client: TestClient) -> None:
    made = create(client, estimate())
    token = link(client, made["id"], expires_in_s=3600)
    listed = client.get(f"/api/v1/comparisons/{made['id']}/shares")
    assert listed.json()["total"] == 1
    assert token not in listed.text


@pytest.mark.parametrize("body", [{"expires_in_s": 0}, {"expires_in_s": -5}, {"expires_in_s": 1e30}, {"expires": 5}])
def test_an_expiry_must_make_sense(client: TestClient, body: Any) -> None:
    made = create(client, estimate())
    assert client.post(f"/api/v1/comparisons/{made['id']}/share", json=body).status_code == 422


def test_sharing_what_is_not_there(client: TestClient) -> None:
    assert client.post("/api/v1/comparisons/nothere/share").status_code == 404


# ---- the reader of a link -------------------------------------------------------------------------------------------


def test_a_link_opens_in_a_fresh_browser_and_outlives_its_runs(client: TestClient) -> None:
    slow, fast = upload(client, 100, 124)
    made = create(client, {"run": slow}, {"run": fast}, notes="why we ship it")
    token = link(client, made["id"])
    before = client.get(f"/s/{token}")
    assert client.delete(f"/api/v1/runs/{fast}").status_code == 204
    client.cookies.clear()
    after = client.get(f"/s/{token}")
    assert after.status_code == 200
    assert after.text == before.text
    assert "set-cookie" not in after.headers
    for wanted in ("Before and after", "why we ship it", "1.24×, better", "Frozen 20", "version"):
        assert wanted in after.text


def test_a_reader_gets_no_controls_and_no_way_to_the_owner(client: TestClient) -> None:
    (run,) = upload(client, 100)
    made = create(client, {"run": run}, estimate())
    page = client.get(f"/s/{link(client, made['id'])}")
    assert '<meta name="robots" content="noindex' in page.text
    assert page.headers["x-robots-tag"].startswith("noindex")
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "private, no-store"
    assert made["id"] not in page.text
    assert f"/runs/{run}" not in page.text
    assert 'method="post"' not in page.text
    assert "data-tray" not in page.text


def test_unknown_revoked_and_expired_links_look_alike(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create(client, estimate())
    revoked, expired = link(client, made["id"]), link(client, made["id"], expires_in_s=1e-6)
    client.delete(f"/api/v1/shares/{revoked}")

    def said(path: str) -> tuple[int, str]:
        answer = client.get(path)
        request_id = answer.headers["x-request-id"]
        return answer.status_code, answer.text.replace(request_id, "")

    for prefix in ("/s/", "/api/v1/shares/"):
        answers = {said(prefix + token) for token in (revoked, expired, "A" * 22, "x")}
        assert len(answers) == 1
        assert answers.pop()[0] == 404
    assert client.get(f"/s/{revoked}/export").status_code == 404


def test_the_reader_can_export_and_choose_a_metric(client: TestClient) -> None:
    token = link(client, create(client, *({"run": run} for run in upload(client, 100, 124)))["id"])
    answer = client.get(f"/s/{token}/export?format=csv")
    assert answer.headers["x-robots-tag"].startswith("noindex")
    assert "output_tokens_per_s" in answer.text
    part = client.get(f"/s/{token}?metric=ttft_s.p50", headers=HTMX)
    assert "TTFT p50" in part.text
    assert "<html" not in part.text
    assert client.get(f"/s/{token}?metric=nonsense").status_code == 200


def test_moved_figures_are_said_above_the_frozen_ones(client: TestClient, context: Any) -> None:
    from app.storage import comparisons

    made = create(client, estimate(label="bound"))
    snapshot = {
        key: made[key]
        for key in ("version", "items", "sentence", "headline", "metrics", "differences", "ledger", "findings")
    }
    snapshot["items"][0]["estimate"]["answer"]["bound_s"] *= 2
    with context.storage.write() as session:
        old = comparisons.add(session=session, title="old", snapshot=snapshot, item_count=1, app_version="0.0.1")
    page = client.get(f"/s/{link(client, old.id)}").text
    assert "Today&#39;s version computes 1 figure of this page differently" in page
    assert "“bound”, bound of a step" in page


# ---- pages ----------------------------------------------------------------------------------------------------------


def test_an_empty_list_says_what_to_do(client: TestClient) -> None:
    page = client.get("/comparisons").text
    assert "Nothing is frozen yet" in page
    assert 'href="/comparisons/new"' in page


def test_the_list_searches_and_pages(client: TestClient) -> None:
    for number in range(3):
        create(client, estimate(), title=f"Nightly {number}")
    assert client.get("/comparisons").text.count("Nightly") == 3
    assert "Nightly 1" in client.get("/comparisons?q=nightly+1").text
    assert "No comparison holds" in client.get("/comparisons?q=weekly").text


def test_the_tray_fills_the_form(client: TestClient) -> None:
    (run,) = upload(client, 100)
    tray = [{"kind": "run", "id": run, "label": "mine"}, {"kind": "estimate", "request": REQUEST, "label": "roof"}]
    page = client.get("/comparisons/new", params={"items": json.dumps(tray)})
    assert page.status_code == 200
    assert page.text.count('name="item"') == 2
    assert "Llama 3.1 8B on H100" in page.text
    assert "“mine”" in page.text  # the preview is there without JavaScript


def test_runs_in_the_address_become_the_form(client: TestClient) -> None:
    slow, fast = upload(client, 100, 124)
    moved = client.get(f"/comparisons/new?run={slow}&run={fast}")
    assert moved.status_code == 303
    items = json.loads(parse_qs(urlsplit(moved.headers["location"]).query)["items"][0])
    assert [item["id"] for item in items] == [slow, fast]
    assert "1.24×" in client.get(moved.headers["location"]).text


def form_items(client: TestClient, address: str) -> tuple[list[Any], dict[str, list[str]]]:
    query = parse_qs(urlsplit(address).query)
    return json.loads(query.get("items", ["[]"])[0]), query


def test_buttons_of_the_form_change_its_address(client: TestClient) -> None:
    one, two, three = upload(client, 100, 110, 120)
    rows: dict[str, Any] = {
        "title": "kept",
        "item": [json.dumps({"kind": "run", "id": id_, "label": ""}) for id_ in (one, two)],
        "label": ["first", "second"],
        "book_as": ["", "kernel"],
        "baseline": "1",
    }

    def after(action: str, **more: Any) -> tuple[list[Any], dict[str, list[str]]]:
        answer = client.get("/comparisons/new", params={**rows, "action": action, **more})
        assert answer.status_code == 303
        return form_items(client, answer.headers["location"])

    items, query = after("up:1")
    assert [item["label"] for item in items] == ["second", "first"]
    assert query["title"] == ["kept"]
    assert "baseline" not in query  # it moved along and is now the first
    items, query = after("remove:0")
    assert [item["label"] for item in items] == ["second"]
    assert items[0]["book_as"] == "kernel"
    items, query = after("add", add=[three, two])
    assert [item["id"] for item in items] == [one, two, three]
    assert query["baseline"] == ["1"]
    assert len(after("remove:99")[0]) == 2
    assert len(after("nonsense")[0]) == 2


def post_form(client: TestClient, path: str, **changes: Any) -> Any:
    rows = {
        "title": "From the form",
        "notes": "line one\r\n\r\nline two",
        "baseline": "0",
        "item": [
            json.dumps({"kind": "estimate", "request": REQUEST}),
            json.dumps({"kind": "estimate", "request": FP8}),
        ],
        "label": ["BF16", "FP8"],
        "book_as": ["", "algorithmic"],
    }
    return client.post(path, data=rows | changes)


def test_the_form_freezes_and_leads_to_the_page(client: TestClient) -> None:
    answer = post_form(client, "/comparisons")
    assert answer.status_code == 303
    page = client.get(answer.headers["location"])
    assert page.status_code == 200
    for wanted in (
        "From the form",
        "line one",
        "line two",
        "By their bounds, “FP8” reaches",
        "Algorithmic",
        "/explore?",
    ):
        assert wanted in unescape(page.text)


def test_a_form_that_cannot_be_used_keeps_what_was_typed(client: TestClient) -> None:
    answer = post_form(client, "/comparisons", title="", notes="precious words")
    assert answer.status_code == 422
    assert "Give the comparison a title" in answer.text
    assert "precious words" in answer.text
    assert 'value="FP8"' in answer.text
    assert post_form(client, "/comparisons", item=[], label=[], book_as=[]).status_code == 422
    gone = post_form(
        client, "/comparisons", item=[json.dumps({"kind": "run", "id": "gone"})], label=["x"], book_as=[""]
    )
    assert gone.status_code == 422
    assert "There is no run" in unescape(gone.text)


@pytest.mark.parametrize(
    "item", ["{", "[]", "null", '{"kind":"run"}', '{"kind":"estimate","request":[1]}', "[" * 5000, '{"a":NaN}']
)
def test_hostile_rows_are_left_out_and_said(client: TestClient, item: str) -> None:
    answer = post_form(client, "/comparisons", item=[item], label=["x"], book_as=[""])
    assert answer.status_code == 422
    assert "cannot be read and was left out" in answer.text
    page = client.get("/comparisons/new", params={"items": item})
    assert page.status_code == 200


@pytest.mark.parametrize("request_", [{}, {"hardware": 5}, {"hardware": "x" * 999, "model": {}}, {"workload": "no"}])
def test_a_broken_estimate_in_the_tray_is_a_message(client: TestClient, request_: Any) -> None:
    tray = json.dumps([{"kind": "estimate", "request": request_}])
    page = client.get("/comparisons/new", params={"items": tray})
    assert page.status_code == 200
    assert "cannot be compared yet" in page.text


def test_the_preview_is_a_fragment(client: TestClient) -> None:
    answer = post_form(client, "/comparisons/preview", title="")
    assert answer.status_code == 200
    assert "<html" not in answer.text
    assert "comparison-results" in answer.text
    bad = post_form(client, "/comparisons/preview", item=['{"kind":"run","id":"gone"}'], label=[""], book_as=[""])
    assert bad.status_code == 422
    assert client.get("/comparisons").text.count("From the form") == 0


def test_runs_can_be_searched_for(client: TestClient) -> None:
    upload(client, 100, 124)
    part = client.get("/comparisons/new/runs?q=124", headers=HTMX).text
    assert "run at 124" in part
    assert "run at 100" not in part
    assert "No run matches" in client.get("/comparisons/new/runs?q=zebra").text


def test_hostile_titles_and_labels_are_text(client: TestClient) -> None:
    made = create(client, estimate(label=EVIL), estimate(FP8, label="</script><b>x"), title=EVIL, notes=EVIL)
    for path in (made["url"], "/comparisons", f"/s/{link(client, made['id'])}"):
        page = client.get(path).text
        assert EVIL not in page
        assert "<b>x" not in page
        assert "&lt;script&gt;alert(1)" in page
    block = re.search(r'<script type="application/json">(.*?)</script>', client.get(made["url"]).text, re.DOTALL)
    assert block is not None
    chart = json.loads(block[1])
    assert chart["data"][0]["y"] == ["&lt;script&gt;alert(1)&lt;/script&gt; (baseline)", "&lt;/script&gt;&lt;b&gt;x"]


def test_another_metric_is_a_fragment_and_an_address(client: TestClient) -> None:
    made = create(client, *({"run": run} for run in upload(client, 100, 124)))
    part = client.get(f"{made['url']}?metric=ttft_s.p50", headers=HTMX)
    assert "<html" not in part.text
    assert "TTFT p50: run at 124 at 0.806×, better" in part.text
    whole = client.get(f"{made['url']}?metric=ttft_s.p50").text
    assert "<html" in whole
    assert '<option value="ttft_s.p50" selected>' in whole


def test_a_deleted_run_is_no_longer_linked(client: TestClient) -> None:
    slow, fast = upload(client, 100, 124)
    made = create(client, {"run": slow}, {"run": fast})
    client.delete(f"/api/v1/runs/{fast}")
    page = client.get(made["url"]).text
    assert f'href="/runs/{slow}"' in page
    assert f'href="/runs/{fast}"' not in page
    assert "has been deleted since" in page


def test_the_panel_makes_shows_and_revokes_links(client: TestClient) -> None:
    made = create(client, estimate())
    answer = client.post(f"{made['url']}/shares", data={"expires": "604800"}, headers=HTMX)
    assert answer.status_code == 201
    assert "<html" not in answer.text
    token = re.search(r"http://testserver/s/([\w-]{22})", answer.text)
    assert token is not None
    assert client.get(f"/s/{token[1]}").status_code == 200
    page = client.get(made["url"]).text
    assert token[1] not in page  # shown once
    revoke = re.search(r'action="([^"]+/revoke)"', page)
    assert revoke is not None
    moved = client.post(revoke[1])
    assert (moved.status_code, moved.headers["location"]) == (303, f"{made['url']}#share")
    assert client.get(f"/s/{token[1]}").status_code == 404
    assert "revoked" in client.get(made["url"]).text


def test_without_javascript_the_new_link_comes_with_the_page(client: TestClient) -> None:
    made = create(client, estimate())
    answer = client.post(f"{made['url']}/shares", data={"expires": ""})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    assert "<html" in answer.text
    assert "http://testserver/s/" in answer.text


def test_a_link_of_another_comparison_cannot_be_revoked_here(client: TestClient) -> None:
    one, two = create(client, estimate()), create(client, estimate())
    link(client, one["id"])
    share_id = client.get(f"/api/v1/comparisons/{one['id']}/shares").json()["items"][0]["id"]
    assert client.post(f"{two['url']}/shares/{share_id}/revoke").status_code == 404
    assert client.post(f"{one['url']}/shares/{share_id}/revoke").status_code == 303


def test_deleting_from_the_page(client: TestClient) -> None:
    made = create(client, estimate())
    answer = client.post(f"{made['url']}/delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/comparisons")
    assert client.get(made["url"]).status_code == 404
    assert client.get(f"{made['url']}/delete").status_code == 405


def test_changes_from_another_site_are_refused(client: TestClient) -> None:
    made = create(client, estimate())
    answer = client.post(f"{made['url']}/delete", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
    assert client.get(made["url"]).status_code == 200
