"""The KV cache page and its call: the same numbers everywhere, state in the address, lists of lengths, wrong values."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from tests.services.native_runs import native

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}


def text_of(body: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def api(client: TestClient, **body: object) -> dict[str, Any]:
    answer = client.post("/api/v1/estimates/kv", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: TestClient, **body: object) -> list[tuple[list[Any], str]]:
    answer = client.post("/api/v1/estimates/kv", json=body)
    assert answer.status_code == 422, answer.text
    return [(error["loc"], error["msg"]) for error in answer.json()["errors"]]


# ---- the call -------------------------------------------------------------------------------------------------------


def test_worked_examples_over_the_api(client: TestClient):
    seventy = api(client, model="llama-3-70b", batch=32, context_len=8192)
    assert seventy["bytes_per_token"] == 327_680
    assert seventy["payload_bytes"] == 80 * 2**30
    assert seventy["max_batch"] is None
    assert seventy["read_s_per_step"] is None
    listed = api(client, model="llama-3-8b", sequences=[100, 513, 1000, 37, 2048], page_tokens=16)
    assert listed["fragmentation_bytes"] == (3744 - 3698) * 131_072
    assert listed["page_table_bytes"] == 4 * 234
    shared = api(client, model="llama-3-8b", batch=32, context_len=2500, shared_prefix_tokens=2000, page_tokens=1)
    assert shared["prefix_saved_bytes"] == 62_000 * 131_072
    assert api(client, model="deepseek-v3", batch=1, context_len=1)["bytes_per_token"] == 70_272


def test_parts_add_up(client: TestClient):
    for body in (
        {"model": "gemma-3-27b", "sequences": [100, 5000, 70_000], "shared_prefix_tokens": 90, "kv_dtype": "nvfp4"},
        {"model": "falcon-h1-7b", "batch": 9, "context_len": 4097, "parallel": {"tp": 2, "pp": 2}},
        {"model": "deepseek-v3.2", "batch": 3, "context_len": 100_001, "shared_prefix_tokens": 1000},
    ):
        found = api(client, **body)
        parts = found["payload_bytes"] + found["fragmentation_bytes"] - found["prefix_saved_bytes"]
        assert found["total_bytes"] == pytest.approx(parts + found["page_table_bytes"])
        assert found["bytes_per_token"] == pytest.approx(sum(row["bytes_per_token"] for row in found["by_layer_kind"]))


def test_copies_on_more_ranks_than_heads(client: TestClient):
    found = api(client, model="llama-3.1-70b", batch=4, context_len=4096, parallel={"tp": 16})
    assert found["copies"] == 2
    assert found["per_device_bytes"] - found["page_table_bytes"] == found["payload_bytes"] / 8
    latent = api(client, model="deepseek-v3", batch=4, context_len=4096, parallel={"tp": 8})
    assert latent["per_device_bytes"] == latent["total_bytes"]


def test_the_same_batch_as_in_the_bound(client: TestClient):
    body = {
        "hardware": "nvidia-h100-sxm",
        "model": "llama-3.1-8b",
        "workload": {"phase": "decode", "batch": 8, "context_len": 1000, "parallel": {"tp": 2}},
    }
    bound = client.post("/api/v1/estimates/bound", json=body).json()
    found = api(
        client,
        hardware="nvidia-h100-sxm",
        model="llama-3.1-8b",
        batch=8,
        context_len=1000,
        parallel={"tp": 2},
        reserve_fraction=0.0,
    )
    assert found["max_batch"] == bound["memory"]["largest_batch"]
    page = client.get("/kv?hardware=nvidia-h100-sxm&model=llama-3.1-8b&batch=8&context=1000&tp=2&reserve=0&prefix=0")
    assert page.status_code == 200
    assert f'data-exact="{bound["bound_s"]!r} s"' in page.text
    assert f'data-exact="{found["read_s_per_step"]!r} s"' in page.text
    for name in ("payload_bytes", "paged_bytes", "shared_bytes", "allocated_bytes", "per_device_bytes"):
        assert f'data-exact="{found[name]:.0f} B"' in page.text, name
    assert f'data-exact="{found["max_batch"]}"' in page.text
    assert f'data-exact="{found["max_context_len"]}"' in page.text
    lab = client.get("/explore?hardware=nvidia-h100-sxm&model=llama-3.1-8b&batch=8&context=1000&tp=2")
    assert f'data-exact="{bound["bound_s"]!r} s"' in lab.text


@pytest.mark.parametrize(
    ("body", "loc", "words"),
    [
        ({"model": "llama-3.1-8b"}, ["context_len"], "is needed"),
        ({"model": "llama-3.1-8b", "sequences": []}, ["sequences"], "at least 1"),
        ({"model": "llama-3.1-8b", "sequences": [5, -1]}, ["sequences", 1], "greater than or equal to 1"),
        ({"model": "llama-3.1-8b", "sequences": ["5"]}, ["sequences", 0], "integer"),
        ({"model": "llama-3.1-8b", "sequences": [1] * 100_001}, ["sequences"], "at most 100000"),
        ({"model": "llama-3.1-8b", "context_len": -1}, ["context_len"], "greater than or equal to 0"),
        (
            {"model": "llama-3.1-8b", "context_len": 9, "shared_prefix_tokens": 10},
            ["shared_prefix_tokens"],
            "at most 9",
        ),
        ({"model": "llama-3.1-8b", "context_len": 9, "parallel": {"tp": 3}}, ["parallel", "tp"], "use 1, 2, 4"),
        ({"model": "llama-3.1-8b", "context_len": 9, "parallel": {"pp": 64}}, ["parallel", "pp"], "at most 32"),
        ({"model": "bert-base", "context_len": 9}, ["model"], "keeps no cache"),
        ({"model": "flux.1-dev", "context_len": 9}, ["model"], "keeps no cache"),
        ({"model": "llama-3.1-8b", "context_len": 9, "reserve_fraction": 1.0}, ["reserve_fraction"], "less than 1"),
    ],
)
def test_the_call_refuses_the_impossible_at_its_place(
    client: TestClient, body: dict[str, Any], loc: list[Any], words: str
):
    errors = refused(client, **body)
    assert errors[0][0] == loc
    assert words in errors[0][1]


def test_what_does_not_fit_is_an_answer(client: TestClient):
    found = api(client, model="llama-3.1-405b", hardware="nvidia-h100-sxm", batch=1, context_len=100)
    assert found["max_batch"] == 0
    assert found["max_context_len"] == 0
    assert found["per_device"]["available_bytes"] < 0
    assert "weights alone are" in text_of(client.get("/kv?model=llama-3.1-405b&tp=1").text)
    endless = api(client, model="mamba2-2.7b", hardware="nvidia-h100-sxm", batch=1, context_len=100)
    assert endless["max_context_len"] is None


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_opens_with_an_answer(client: TestClient):
    page = client.get("/kv")
    assert page.status_code == 200
    words = text_of(page.text)
    assert "32 sequences of 8,192 tokens take" in words
    # 32 x 8,192 x 327,680 B less 31 shared prefixes of 64 pages, and the page tables
    total = 32 * 8192 * 327_680 - 31 * 1024 * 327_680 + 4 * 32 * 512
    assert f"{total / 2**30:.1f} GiB of cache" in words
    for chart in (
        "kv-numbers",
        "kv-batch",
        "kv-growth",
        "kv-pages",
        "kv-step",
        "kv-sequence",
        "kv-batches",
        "kv-steps",
    ):
        assert f'id="{chart}"' in page.text
        assert f'id="{chart}-table"' in page.text
    assert 'aria-current="page">KV cache' in page.text


def test_the_crossover_is_where_cache_and_weights_weigh_the_same(client: TestClient):
    # Llama 3.1 8B, batch 32: weights 7,504,924,672 x 2 B and 32 embedding rows, cache 32 x 131,072 B a token of context
    weights = 7_504_924_672 * 2 + 32 * 4096 * 2
    context = -(-weights // (32 * 131_072))
    page = text_of(client.get("/kv?model=llama-3.1-8b&tp=1").text)
    assert f"outweighs the weights from {context:,} tokens" in page


def test_the_address_keeps_only_what_differs(client: TestClient):
    answer = client.get("/kv?batch=64&context=8k&tp=4&dist=fixed", headers=PARTIAL)
    assert answer.status_code == 200
    assert parse_qs(urlsplit(answer.headers["HX-Replace-Url"]).query) == {"batch": ["64"]}
    again = client.get("/kv?dist=list&lengths=512,1k", headers=PARTIAL)
    assert again.status_code == 422


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("batch=many", "batch", "not a whole number"),
        ("batch=0", "batch", "between 1"),
        ("batch=99999999999999999999", "batch", "between 1 and 10,000,000"),
        ("context=-5", "context", "between 0"),
        ("tp=3", "tp", "use 1, 2, 4, 8, 16, 32"),
        ("page=nan", "page", "not a whole number"),
        ("reserve=100", "reserve", "between 0 and 99"),
        ("model=bert-base", "model", "keeps no cache"),
        ("model=no-such", "model", "No model"),
        ("hardware=h100", "hardware", "nvidia-h100-pcie"),
        ("kv=fp5", "kv", "must be 'fp64'"),
        ("context=100&prefix=1025", "prefix", "use at most 100"),
        ("dist=normal", "dist", "lognormal"),
        ("dist=uniform&low=9&high=5", "high", "at least the shortest"),
        ("dist=lognormal&mean=1000&p95=9000", "p95", "3.87 times it"),
        ("dist=list", "lengths", "No lengths"),
        ("dist=list&lengths=512,-7", "lengths", "number 2 must be from 1"),
        ("dist=list&lengths=512,nan", "lengths", "'nan' (number 2)"),
        ("dist=list&lengths=1x200000", "lengths", "ore than 100,000 lengths"),
        ("dist=run", "run", "hoose a run"),
        ("run=nothing", "run", "no run 'nothing'"),
        ("lines=a@b", "lines", "model@precision@tp"),
        ("lines=a@fp5@1", "lines", "unknown precision"),
        ("lines=" + ",".join(["llama-3.1-8b@bf16@1"] * 7), "lines", "at most 6"),
        ("hardware=nvidia-v100-sxm2-32gb", "activations", "bf16"),
    ],
)
def test_a_wrong_value_is_answered_beside_its_control(client: TestClient, query: str, field: str, words: str):
    whole = client.get(f"/kv?{query}")
    assert whole.status_code == 422
    beside = re.search(rf'id="lab-error-{field}"[^>]*>(.*?)</p>', whole.text, re.DOTALL)
    assert beside is not None
    assert words.lower() in html.unescape(beside[1]).lower()
    part = client.get(f"/kv?{query}", headers=PARTIAL)
    assert part.status_code == 422
    place = re.search(rf'hx-target="#lab-error-{field}"[^>]*>(.*?)</hx-partial>', part.text, re.DOTALL)
    assert place is not None
    assert words.lower() in html.unescape(place[1]).lower()


def test_what_was_typed_stays_in_the_form(client: TestClient):
    page = client.get("/kv?dist=list&lengths=<b>many</b>")
    assert 'value="&lt;b&gt;many&lt;/b&gt;"' in page.text
    assert "<b>many</b>" not in page.text


def test_a_list_is_pasted_or_uploaded_into_the_address(client: TestClient):
    for posted in (
        {"data": {"text": "100 513\n1000, 37;2048", "state": "prefix=0&tp=8"}},
        {"data": {"state": "prefix=0&tp=8"}, "files": {"file": ("a.json", b"[100, 513, 1000, 37, 2048.0]")}},
        {"data": {"state": "prefix=0&tp=8"}, "files": {"file": ("a.csv", b"tokens\n100\n513\n1000\n37\n2048\n")}},
    ):
        answer = client.post("/kv/lengths", **posted)  # type: ignore[arg-type]
        assert answer.status_code == 303, answer.text
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        assert query == {"dist": ["list"], "lengths": ["37,100,513,1000,2048"], "prefix": ["0"], "tp": ["8"]}
    page = client.get(answer.headers["location"])
    assert "5 sequences of 740 tokens on average" in text_of(page.text)


def test_a_long_list_is_grouped_and_keeps_its_tokens(client: TestClient):
    listed = [100 + i * 7 % 9000 for i in range(5000)]
    answer = client.post("/kv/lengths", files={"file": ("a.txt", "\n".join(map(str, listed)).encode())})
    address = answer.headers["location"]
    assert len(address) < 8000
    page = client.get(address)
    assert "5,000 lengths stand in groups" in text_of(page.text)
    assert f'data-exact="{sum(listed) * 327_680} B"' in page.text


@pytest.mark.parametrize(
    ("posted", "words"),
    [
        ({"data": {"text": "1 2 nan"}}, "'nan' (number 3) is not a length"),
        ({"data": {"text": "12 -3"}}, "number 2 must be from 1"),
        ({"data": {"text": "123 " * 1_000_000}}, "ore than 100,000 lengths"),
        ({"data": {"text": ""}}, "no lengths"),
        ({"files": {"file": ("a.bin", b"\xff\xfe\x00")}}, "not UTF-8"),
        ({"files": {"file": ("a.csv", b"prompt,answer\n1,2\n")}}, "several columns"),
        ({"data": {"text": "<img src=x onerror=alert(1)>"}}, "is not a length"),
    ],
)
def test_a_bad_list_is_answered_beside_the_field(client: TestClient, posted: dict[str, Any], words: str):
    answer = client.post("/kv/lengths", **posted)
    assert answer.status_code == 422
    assert words.lower() in text_of(answer.text).lower()
    assert "<img src=x" not in answer.text


def test_lines_are_added_and_removed_by_address(client: TestClient):
    added = client.get("/kv?lines=-&add=1&add_model=gemma-2-9b&add_kv=fp8&add_tp=2", headers=PARTIAL)
    query = parse_qs(urlsplit(added.headers["HX-Replace-Url"]).query)
    assert query["lines"] == ["gemma-2-9b@fp8@2"]
    page = client.get("/kv?lines=gemma-2-9b@fp8@2,no-such@bf16@1,llama-3.1-8b@bf16@3")
    assert page.status_code == 200
    assert "Gemma 2 9B, fp8, TP 2" in page.text
    assert "Not every line can be drawn" in page.text
    assert "is not a multiple of tensor parallel 3" in text_of(page.text)
    links = re.findall(r'<a href="([^"]+)" aria-label="Remove gemma', page.text)
    query = parse_qs(urlsplit(html.unescape(links[0])).query)
    assert query["lines"] == ["no-such@bf16@1,llama-3.1-8b@bf16@3"]


def test_lengths_come_from_a_run(client: TestClient):
    run = native(
        workload={"batch": 4, "parallel": {"tp": 1}},
        samples={"input_tokens": [100, 200, 300, 400], "output_tokens": [10, 20, 30, 40]},
    )
    stored = client.post("/api/v1/runs", files={"file": ("run.json", run)}).json()["runs"][0]["id"]
    short = client.get(f"/kv?dist=run&run={stored}&batch=4")
    assert short.status_code == 200
    assert "No shared prefix is counted" in short.text
    page = client.get(f"/kv?run={stored}&prefix=0")
    assert page.status_code == 200, text_of(page.text)[:2000]
    words = text_of(page.text)
    assert "4 sequences of 275 tokens on average" in words
    assert "prompt and answer of 4 requests" in words
    assert f'data-exact="{1100 * 131_072} B"' in page.text  # Llama 3.1 8B, as the run says


def test_request_lengths_of_a_serving_file_on_every_page(client: TestClient):
    """Lengths of an uploaded vLLM result: on its page, and the same cache by page and by call."""
    summary = {"completed": 4, "duration": 1.0, "request_throughput": 4.0, "model_id": "meta-llama/Llama-3.1-8B"}
    summary |= {"mean_ttft_ms": 10.0, "p99_ttft_ms": 12.0, "total_input_tokens": 1000, "total_output_tokens": 100}
    lists = {"input_lens": [100, 200, 300, 400], "output_lens": [10, 20, 30, 40], "max_concurrency": 4}
    upload = {"file": ("result.json", json.dumps(summary | lists).encode())}
    stored = client.post("/api/v1/runs", files=upload).json()["runs"][0]["id"]
    shown = client.get(f"/runs/{stored}").text
    assert "Request lengths" in shown
    assert re.search(r"Both: held at the end.*?275.*?110.*?440", text_of(shown))
    link = html.unescape(re.search(r'href="(/kv\?[^"]+)"[^>]*>Plan its KV cache', shown)[1])  # type: ignore[index]
    page = client.get(link).text  # nothing is shared unless somebody says so
    body = {"model": "llama-3.1-8b", "run": stored}
    whole = client.post("/api/v1/estimates/kv", json=body).json()
    assert whole["payload_bytes"] == 1100 * 131_072
    assert f'data-exact="{1100 * 131_072} B"' in page
    # the page's own command asks for as many sequences as the page
    assert f'"run":"{stored}","batch":4' in html.unescape(page)
    two = client.post("/api/v1/estimates/kv", json=body | {"batch": 2}).json()
    assert two["payload_bytes"] == (110 + 330) * 131_072  # the quartiles of four requests
    assert any("Lengths are those of the run" in note for note in whole["assumptions"])
    for wrong, field in (
        ({"run": "nothing"}, "run"),
        ({"context_len": 5}, "context_len"),
        ({"sequences": [1]}, "sequences"),
    ):
        refused = client.post("/api/v1/estimates/kv", json=body | wrong)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["loc"] == [field]


def test_a_run_with_means_only_and_one_without_lengths(client: TestClient):
    means = native(workload={"input_len": 1000, "output_len": 200, "concurrency": 8})
    stored = client.post("/api/v1/runs", files={"file": ("a.json", means)}).json()["runs"][0]["id"]
    assert "8 sequences of 1,200 tokens" in text_of(client.get(f"/kv?run={stored}").text)
    bare = native(workload={"batch": 2}, name="bare")
    stored = client.post("/api/v1/runs", files={"file": ("b.json", bare)}).json()["runs"][0]["id"]
    page = client.get(f"/kv?run={stored}")
    assert page.status_code == 422
    assert "states no lengths" in text_of(page.text)


def test_the_cache_can_be_compared(client: TestClient):
    page = client.get("/kv?dist=list&lengths=512x3,1024&page=32")
    item = re.search(r'data-tray-add="([^"]+)"', page.text)
    assert item is not None
    frozen = json.loads(html.unescape(item[1]))
    assert frozen["estimate"] == "kv"
    # beyond a thousand sequences a request holds their mean, and the step alone is compared
    many = client.get("/kv?dist=uniform&batch=2000").text
    assert '"estimate":' not in html.unescape(re.search(r'data-tray-add="([^"]+)"', many)[1])  # type: ignore[index]


@pytest.mark.parametrize(
    "query",
    [
        "model=mamba2-2.7b&tp=1",
        "model=deepseek-v4-flash&tp=8&weights=fp8",
        "model=whisper-base&tp=1&context=300&prefix=0",
        "model=zamba2-2.7b&tp=2",
        "model=llama-4-scout&tp=8&context=100000",
        "pp=2&dp=2&cp=2",
        "context=0&prefix=0",
        "dist=uniform&batch=10000000",
        "ceilings=achievable&kv=nvfp4",
        "longest=9000",
    ],
)
def test_every_kind_of_question_is_answered(client: TestClient, query: str):
    page = client.get(f"/kv?{query}")
    assert page.status_code == 200, text_of(page.text)[:1500]
    words = text_of(page.text)
    assert not re.search(r"\b(nan|NaN|inf|None)\b", words)
    assert "Infinity" not in page.text


def test_a_line_is_named_as_text(client: TestClient):
    page = client.get("/kv?lines=%3Cimg src=x onerror=alert(1)%3E@bf16@1")
    assert "<img src=x" not in page.text


def test_a_length_beyond_the_model_s_contexts_is_said(client: TestClient) -> None:
    asked = "model=llama-3.1-8b&hardware=nvidia-h200-sxm&batch=1&prefix=0"
    assert "goes beyond them" in client.get(f"/kv?{asked}&context=200000").text
    assert "goes beyond them" not in client.get(f"/kv?{asked}&context=100000").text


def test_prediction_modules_keep_a_cache(client: TestClient) -> None:
    """DeepSeek-V3's module is one more layer of 576 elements: 61 and 62 layers in bf16, in every answer."""
    body = {"model": "deepseek-v3", "hardware": "nvidia-h200-sxm", "batch": 64, "context_len": 4095}
    parallel = {"dp": 8, "ep": 8}
    plain, more = (api(client, **body, parallel=parallel, weights_dtype="fp8", prediction_modules=n) for n in (0, 1))
    assert plain["bytes_per_token"] == 61 * 576 * 2
    assert more["bytes_per_token"] == 62 * 576 * 2
    assert [row["layers"] for row in more["by_layer_kind"]] == [62]
    assert more["max_batch"] < plain["max_batch"]
    assert more["read_bytes_per_step"] / plain["read_bytes_per_step"] == pytest.approx(62 / 61)
    workload = {
        "batch": 64,
        "context_len": 4095,
        "parallel": parallel,
        "dtypes": {"weights": "fp8"},
        "prediction_modules": 1,
    }
    answer = client.post(
        "/api/v1/estimates/bound",
        json={"hardware": "nvidia-h200-sxm", "model": "deepseek-v3", "workload": workload},
    ).json()
    cached = next(item["bytes"] for item in answer["memory"]["objects"] if item["object"] == "kv_cache")
    assert cached == 64 * 4096 * 62 * 576 * 2
    answered = client.get("/kv?model=llama-3.1-8b&prediction=1&lines=-&tp=1")
    assert answered.status_code == 422
    assert "no prediction modules" in answered.text.split('id="lab-error-prediction"', 1)[1].split("</p>", 1)[0]


def test_copies_weigh_every_kind_of_layer_by_its_bytes(client: TestClient) -> None:
    """Qwen3-Next on four ranks keeps its two KV heads twice and each of its states once."""
    found = api(client, model="qwen3-next-80b-a3b", sequences=[100, 5000], parallel={"tp": 4})
    heads, states = 5100 * 12 * 2 * 2 * 256 * 2, found["state_bytes"]
    assert found["copies"] == pytest.approx((2 * heads + states) / (heads + states))


def test_a_step_reads_every_length_as_it_is(client: TestClient):
    """A window caps long sequences: at the mean length of a skewed list a step would read 2.7 times as much cache."""
    asked = "dist=list&lengths=1x99,512x40,8000x9,120000&model=gemma-3-27b&tp=2&prefix=0&kv=fp8&lines=-"
    words = text_of(client.get(f"/kv?{asked}").text)
    body = {"model": "gemma-3-27b", "kv_dtype": "fp8", "parallel": {"tp": 2}}
    found = api(client, **body, sequences=[1] * 99 + [512] * 40 + [8000] * 9 + [120_000])
    assert f"A decode step reads {found['read_bytes_per_step'] / 2**30:.3g} GiB of cache" in words
    assert "sequences of these lengths fit at most" in words
