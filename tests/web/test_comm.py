"""The communication page: its six questions, the same numbers as the API and the lab, and what wrong values get."""

from __future__ import annotations

import gzip
import html
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from app.services.compare_communication import FrozenPipeline, answer_of
from app.services.share import moved_figures
from app.web.formatting import exact

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
VIEWS = ("collective", "overlap", "exposed", "sharding", "pipeline", "context")
H200 = "nvidia-h200-sxm"
UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"


def text_of(body: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def api(client: TestClient, call: str, **body: object) -> dict:  # type: ignore[type-arg]
    answer = client.post(f"/api/v1/estimates/{call}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("view", VIEWS)
def test_every_question_starts_filled_and_comes_as_a_part_too(client: TestClient, view: str) -> None:
    page = client.get(f"/comm?view={view}")
    assert page.status_code == 200
    assert 'class="answer"' in page.text
    assert "Assumptions and sources" in page.text
    part = client.get(f"/comm?view={view}", headers=PARTIAL)
    assert part.status_code == 200
    assert "<html" not in part.text
    assert 'class="answer"' in part.text


def test_the_page_opens_with_a_real_collective_and_measured_points(client: TestClient) -> None:
    page = text_of(client.get("/comm").text)
    assert "An all-reduce of 1 GiB over 8 × H200 SXM 141GB" in page
    assert "Measured with 8 ranks at 1 GiB: 4.05 ms, 464 GB/s" in page


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"])
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_page_api_and_single_operation_give_the_same_bound(client: TestClient, kind: str, ranks: int) -> None:
    size = 64 * 2**20
    asked = {"kind": kind, "bytes": size, "ranks": ranks}
    found = api(client, "collective", hardware=H200, **asked)
    single = api(client, "op", hardware=H200, op={"op": "collective", **asked})
    assert found["bound_s"] == single["bound_s"]
    assert found["expected"] == single["expected"]
    page = client.get(f"/comm?kind={kind}&size=64 MiB&ranks={ranks}")
    assert f'data-exact="{single["bound_s"]!r} s"' in page.text
    assert f'data-exact="{found["time_s"]!r} s"' in page.text


def test_the_lab_asks_the_same_collective(client: TestClient) -> None:
    """Llama 3.1 8B over 8 devices adds up 4096 tokens x 4096 x 2 B after attention: one row of the lab."""
    step = api(
        client,
        "bound",
        hardware=H200,
        model="llama-3.1-8b",
        workload={"phase": "prefill", "batch": 1, "seq_len": 4096, "parallel": {"tp": 8}},
    )
    row = next(op for op in step["ops"] if op["net_bytes"] > 0 and "attention" in op["stage"])
    found = api(client, "collective", hardware=H200, kind="all_reduce", bytes=4096 * 4096 * 2, ranks=8)
    assert found["bound_s"] == pytest.approx(row["time_s"], rel=1e-12)
    assert found["net_bytes"] == pytest.approx(row["net_bytes"], rel=1e-12)
    lab = client.get(f"/explore?hardware={H200}&phase=prefill&batch=1&seq=4096&context=0&tp=8")
    assert f'data-value="{row["time_s"]}"' in lab.text
    page = client.get("/comm?size=32 MiB")
    assert f'data-exact="{found["bound_s"]!r} s"' in page.text


def test_sharding_asks_the_lab_s_step(client: TestClient) -> None:
    """8,030,261,248 bf16 parameters over 8 ranks: gathered twice and reduced once, 3 x 7/8 x 2 B each."""
    workload = {"phase": "train", "batch": 1, "seq_len": 4096, "parallel": {"dp": 8}}
    found = api(client, "sharding", hardware=H200, model="llama-3.1-8b", workload=workload)
    assert found["stages"][3]["sent_bytes"] == pytest.approx(3 * 7 / 8 * 2 * 8_030_261_248)
    for stage in range(4):
        same = api(
            client,
            "bound",
            hardware=H200,
            model="llama-3.1-8b",
            workload=workload | {"parallel": {"dp": 8, "zero_stage": stage}},
        )
        assert found["stages"][stage]["bound_s"] == same["bound_s"]
        assert found["stages"][stage]["peak_bytes"] == same["memory"]["peak_bytes"]
    page = client.get("/comm?view=sharding&seq=4096&dp=8")
    assert f'data-exact="{found["tokens_to_hide"]!r} tokens"' in page.text
    tray = re.search(r'data-tray-add="([^"]+)"', page.text)
    assert tray is not None
    request = json.loads(html.unescape(tray[1]))["request"]
    assert request["workload"]["parallel"]["zero_stage"] == 3
    assert api(client, "bound", **request)["bound_s"] == found["stages"][3]["bound_s"]


def test_hiding_a_gather_needs_the_tokens_of_the_formula(client: TestClient) -> None:
    """On the sharded ranks' own link: 2 B x 799e12 / 2 over 367 GB/s / (7/8)."""
    found = api(
        client,
        "sharding",
        hardware=H200,
        model="llama-3.1-8b",
        workload={"phase": "train", "seq_len": 4096, "parallel": {"dp": 8}},
    )
    assert found["tokens_to_hide"] == pytest.approx(799e12 / (367e9 * 8 / 7), rel=1e-6)


def test_pipelines_of_page_and_api(client: TestClient) -> None:
    found = api(client, "pipeline", schedule="1f1b", stages=8, micro_batches=32)
    assert found["bubble_share"] == pytest.approx(0.179487, abs=1e-6)
    assert found["formula_bubble_of_work"] == pytest.approx(found["bubble_of_work"])
    page = client.get("/comm?view=pipeline&stages=8&micro_batches=32").text
    assert "1F1B over 8 stages waits 17.9% of the step" in text_of(page)


def test_context_parallel_by_hand(client: TestClient) -> None:
    """Llama 3.1 8B, 8 KV heads of 128: a rank of 16,384 tokens sends 7 x 16,384 x 2 x 1024 x 2 B in a layer's ring;
    the condition is 799e12 / 367e9 x 8 / 32."""
    found = api(
        client,
        "context-parallel",
        hardware=H200,
        model="llama-3.1-8b",
        workload={"phase": "prefill", "seq_len": 131072, "parallel": {"cp": 8}},
    )
    ring = found["exchanges"][0]
    assert ring["sent_bytes"] == pytest.approx(7 * 16384 * 2 * 1024 * 2)
    assert found["hop_s"] == pytest.approx(3e-6 + 16384 * 2 * 1024 * 2 / 367e9)
    assert found["tokens_to_hide"] == pytest.approx(799e12 / 367e9 * 8 / 32)
    assert found["hides"] is True


@pytest.mark.parametrize(
    ("model", "elements", "traded"),
    [
        # attention and MLP side by side, 8 key and value heads of 64 beside 232 query heads
        ("falcon-180b", 2 * 8 * 64, 2 * (232 + 8) * 64),
        ("deepseek-v3", 512 + 64, None),  # the latent and its rotary key, which no heads are traded for
        ("gemma-3-27b", 2 * 16 * 128, 2 * (32 + 16) * 128),  # its full layers
    ],
)
def test_what_a_ring_and_an_all_to_all_send_by_hand(
    client: TestClient, model: str, elements: int, traded: int | None
) -> None:
    found = api(
        client,
        "context-parallel",
        hardware=H200,
        model=model,
        workload={"phase": "prefill", "seq_len": 8192, "parallel": {"cp": 4}},
    )
    ring, trade = found["exchanges"]
    assert ring["sent_bytes"] == pytest.approx(3 * 2048 * elements * 2)
    assert trade["available"] is (traded is not None)
    assert trade["sent_bytes"] == (None if traded is None else pytest.approx(3 / 4 * 2048 * traded * 2))


def test_exposed_time_is_never_a_sum_of_streams(client: TestClient) -> None:
    page = text_of(client.get("/comm?view=exposed").text)
    assert "385 µs of the step is exposed communication, 5.7%" in page
    found = api(client, "exposed-communication", step_s=0.1, compute_only_s=0.08, streams_s=[0.09, 0.07])
    assert found["exposed_s"] == pytest.approx(0.02)
    assert found["streams_sum_s"] == pytest.approx(0.16)


def test_exposed_time_of_a_trace_is_when_only_collectives_ran(client: TestClient) -> None:
    """Unions of intervals, added up by hand: 4,069.76 us of collectives, 5,942.16 us of other kernels, 607.39 both."""
    trace = gzip.decompress((UPLOADS / "torch-profiler-trace" / "own-ddp2-rank0.json.gz").read_bytes())
    stored = client.post("/api/v1/runs?filename=trace.json", content=trace).json()["runs"][0]["id"]
    found = api(client, "exposed-communication", run=stored)
    assert found["exposed_s"] == pytest.approx(4069.765e-6 - 607.391e-6, rel=1e-5)
    assert found["compute_only_s"] == pytest.approx(5942.159e-6, rel=1e-5)
    page = text_of(client.get(f"/comm?view=exposed&run={stored}").text)
    assert "3.46 ms of the trace is exposed communication, 15.2%" in page


def test_exposed_time_of_a_run_comes_from_its_evidence(client: TestClient) -> None:
    run = {
        "name": "sharded step",
        "metrics": {"step_time_s": 0.2},
        "evidence": {"compute_only_s": 0.15, "other_s": 0.01},
    }
    stored = client.post(
        "/api/v1/runs?filename=run.json", content=json.dumps({"bytebound": 1, "runs": [run]}).encode()
    ).json()
    found = api(client, "exposed-communication", run=stored["runs"][0]["id"])
    assert found["exposed_s"] == pytest.approx(0.04)
    page = client.get(f"/comm?view=exposed&step=&compute_only=&streams=&run={stored['runs'][0]['id']}")
    assert "40 ms of the step is exposed" in text_of(page.text)
    # the example's times give way to the run's
    assert "40 ms of the step is exposed" in text_of(client.get(f"/comm?view=exposed&run={found['run']}").text)
    lost = client.post("/api/v1/estimates/exposed-communication", json={"run": "nothing"})
    assert lost.status_code == 404
    wrong = client.get("/comm?view=exposed&run=nothing")
    assert wrong.status_code == 422
    assert "no such run" in text_of(wrong.text)
    # frozen beside the run's own step, with the run's times: deleting the run changes nothing of it
    id_ = stored["runs"][0]["id"]
    items = [{"estimate": {"kind": "exposed", "request": {"run": id_}}}, {"run": id_}]
    made = client.post("/api/v1/comparisons", json={"title": "t", "items": items}).json()
    cells = {row["metric"]: row["cells"] for row in made["metrics"]}
    assert cells["exposed_communication_s"][0]["value"] == found["exposed_s"]
    assert cells["step_time_s"][1]["words"] == "1.00×, the same"
    share = client.post(f"/api/v1/comparisons/{made['id']}/share", json={}).json()
    assert client.delete(f"/api/v1/runs/{id_}").status_code == 204
    assert client.get(f"/api/v1/shares/{share['token']}").json()["moved"] == []
    assert client.get(f"/s/{share['token']}").status_code == 200


def test_uploaded_bus_bandwidths_stand_beside_the_model(client: TestClient) -> None:
    run = {
        "name": "all_reduce_perf 1 GiB",
        "hardware": H200,
        "metrics": {"bus_bandwidth_bytes_per_s": 4.5e11},
        "series": {"size_bytes": 2**30, "ranks": 8},
    }
    stored = client.post("/api/v1/runs?filename=run.json", content=json.dumps({"bytebound": 1, "runs": [run]}).encode())
    assert stored.status_code == 201, stored.text
    found = api(client, "collective", hardware=H200, bytes=2**30, ranks=8)
    (mine,) = [m for m in found["measured"] if m["uploaded"]]
    assert mine["bus_bandwidth_bytes_per_s"] == 4.5e11
    assert mine["time_s"] == pytest.approx(1.75 * 2**30 / 4.5e11)
    assert "Uploaded, 8 ranks" in client.get("/comm").text


def test_odd_rows_of_an_uploaded_run_are_left_out(client: TestClient) -> None:
    odd = [{"name": "x", "size_bytes": "many", "time_s": 1e-3}, {"name": "y", "size_bytes": True, "time_s": 0}]
    run = {
        "name": "all_reduce of our own",
        "hardware": H200,
        "metrics": {"bus_bandwidth_bytes_per_s": 4e11},
        "series": {"ranks": 8},
        "kernels": [*odd, {"name": "z", "size_bytes": 2**20, "time_s": 1e-5, "wrong": None}],
    }
    body = json.dumps({"bytebound": 1, "runs": [run]}).encode()
    assert client.post("/api/v1/runs?filename=run.json", content=body).status_code == 201
    (mine,) = [m for m in api(client, "collective", hardware=H200, bytes=2**30, ranks=8)["measured"] if m["uploaded"]]
    assert (mine["bytes"], mine["time_s"]) == (2**20, 1e-5)


def test_too_few_and_too_many_chunks_lose(client: TestClient) -> None:
    found = api(client, "overlap", hardware=H200, gemm={"m": 8192, "n": 8192, "k": 3584}, ranks=8)
    times = {point["chunks"]: point["time_s"] for point in found["chunk_counts"]}
    best = times[found["best_chunks"]]
    assert best < times[1]
    assert best < times[max(times)]
    assert [row["level"] for row in found["levels"]] == ["L0", "L1", "L2", "L3"]
    assert found["levels"][0]["time_s"] == pytest.approx(
        found["compute_s"] + found["communication_s"] + 2 * found["launch_s"]
    )
    assert found["levels"][0]["time_s"] > found["levels"][1]["time_s"] > found["levels"][2]["time_s"]
    gemm = api(client, "op", hardware=H200, op={"op": "gemm", "m": 8192, "n": 8192, "k": 3584, "dtype": "bf16"})
    assert found["compute_s"] == gemm["expected"]["time_s"]


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("size=much", "size", "not a number"),
        ("size=3 Gb", "size", "bits"),
        ("ranks=1", "ranks", "between 2"),
        ("hardware=no-such", "hardware", "No hardware"),
        ("algorithm=tree&kind=all_to_all", "algorithm", "no tree"),
        ("algorithm=hierarchical", "algorithm", "single level"),
        ("efficiency=7", "efficiency", "0.01 to 1"),
        ("hardware=nvidia-rtx-4090&ranks=16", "hardware", "scale-out"),
        ("view=overlap&chunks=300", "chunks", "between 1 and 256"),
        ("view=overlap&m=4&chunks=8", "chunks", "at most the 4 rows"),
        ("view=overlap&dtype=nvfp4", "dtype", "fp4 throughput"),
        ("view=exposed&compute_only=9 ms", "compute_only", "same batch"),
        ("view=exposed&step=", "step", "the time of a step"),
        ("view=sharding&model=flux.1-dev&tp=7", "tp", "7"),
        ("view=pipeline&schedule=interleaved&virtual_stages=2&micro_batches=6", "micro_batches", "multiple of 4"),
        ("view=pipeline&virtual_stages=2", "virtual_stages", "Only an interleaved"),
        ("view=context&cp=7", "cp", "do not divide"),
        ("view=context&model=mamba2-2.7b", "model", "full attention"),
    ],
)
def test_a_wrong_value_is_answered_beside_its_control(client: TestClient, query: str, field: str, words: str) -> None:
    answer = client.get(f"/comm?{query}", headers=PARTIAL)
    assert answer.status_code == 422, text_of(answer.text)[:300]
    place = re.search(rf'hx-target="#lab-error-{field}"[^>]*>(.*?)</hx-partial>', answer.text, re.DOTALL)
    assert place is not None
    assert words in html.unescape(place[1]), text_of(answer.text)
    whole = client.get(f"/comm?{query}")
    assert whole.status_code == 422
    assert words in text_of(whole.text)


def test_the_address_keeps_only_what_differs_and_other_questions_keep_their_controls(client: TestClient) -> None:
    answer = client.get("/comm?view=pipeline&stages=8&micro_batches=8&schedule=1f1b&ranks=16", headers=PARTIAL)
    query = parse_qs(urlsplit(answer.headers["HX-Replace-Url"]).query)
    assert query == {"view": ["pipeline"], "stages": ["8"], "ranks": ["16"]}
    page = client.get("/comm?view=pipeline&ranks=16").text
    assert '<input type="hidden" name="ranks" value="16">' in page
    tabs = re.search(r'<a href="(/comm[^"]*)"[^>]*>Overlap</a>', page)
    assert tabs is not None
    assert parse_qs(urlsplit(html.unescape(tabs[1])).query) == {"view": ["overlap"], "ranks": ["16"]}


def test_every_sub_page_leads_here(client: TestClient) -> None:
    assert 'href="/comm"' in client.get("/memory").text


def test_units_given_to_an_exchange_slow_the_product(client: TestClient) -> None:
    """33 of 132 units are a quarter: the same as the share, and the page shows what that costs."""
    body = {"hardware": "nvidia-h100-sxm", "gemm": {"m": 8192, "n": 8192, "k": 3584}, "ranks": 8}
    units = api(client, "overlap", **body, communication_units=33)
    share = api(client, "overlap", **body, contention=0.25)
    none = api(client, "overlap", **body, communication_units=0)
    assert units["contention"] == 0.25
    assert units["levels"] == share["levels"]
    assert none["slowed_s"] == 0 < units["slowed_s"] < none["communication_s"]
    page = client.get("/comm?view=overlap&hardware=nvidia-h100-sxm&units=33").text
    assert f'data-exact="{exact(units["slowed_s"], "s")}"' in page
    for query, words in (("units=131", "at most 118"), ("units=8&contention=0.1", "give one of them")):
        answer = client.get(f"/comm?view=overlap&hardware=nvidia-h100-sxm&{query}")
        assert answer.status_code == 422
        assert words in answer.text.split('id="lab-error-units"', 1)[1].split("</p>", 1)[0]


def test_a_pipeline_from_both_ends_on_the_page(client: TestClient) -> None:
    found = api(client, "pipeline", schedule="dualpipe", stages=8, micro_batches=32)
    assert found["bubble_of_work"] == pytest.approx(6 / 96) == found["formula_bubble_of_work"]
    assert found["in_flight_micro_batches"] == [9] * 8
    assert found["parameter_copies"] == 2
    page = client.get("/comm?view=pipeline&schedule=dualpipe&stages=8&micro_batches=32").text
    assert "DualPipe over 8 stages waits" in page
    assert "parameters of two stages" in page
    answer = client.get("/comm?view=pipeline&schedule=dualpipe&stages=3&micro_batches=12")
    assert answer.status_code == 422
    assert "must be even" in answer.text.split('id="lab-error-stages"', 1)[1].split("</p>", 1)[0]


def test_the_bound_waits_for_a_pipeline_from_both_ends_as_the_simulation_does(client: TestClient) -> None:
    """The wait of a bound over the work of its micro-batches is the simulation's bubble, and memory holds the same."""
    for stages, batches in ((4, 8), (8, 32)):
        found = api(client, "pipeline", schedule="dualpipe", stages=stages, micro_batches=batches)

        def step(call: str, schedule: str, pp: int = stages, m: int = batches) -> Any:
            parallel = {"pp": pp, "micro_batches": m, "schedule": schedule}
            workload = {"phase": "train", "seq_len": 4096, "optimizer": "none", "parallel": parallel}
            body = {"hardware": "nvidia-h100-sxm", "model": "llama-3.1-8b", "workload": workload}
            return client.post(f"/api/v1/estimates/{call}", json=body)

        dual, plain = step("bound", "dualpipe").json(), step("bound", "1f1b").json()
        share = plain["terms"]["sync_s"] / ((stages - 1) / batches)  # the work of a stage
        assert dual["terms"]["sync_s"] / share == pytest.approx(found["bubble_of_work"])
        assert any("DualPipe" in note for note in dual["assumptions"])
        held = {row["object"]: row["bytes"] for row in step("memory", "dualpipe").json()["objects"]}
        before = {row["object"]: row["bytes"] for row in step("memory", "1f1b").json()["objects"]}
        assert held["activations"] / before["activations"] == pytest.approx(
            found["in_flight_micro_batches"][0] / stages
        )
        wrong = step("bound", "dualpipe", 8, 12)
        assert wrong.status_code == 422
        assert wrong.json()["errors"][0]["loc"] == ["workload", "parallel", "micro_batches"]
    for page in ("explore", "memory"):
        asked = "model=llama-3.1-8b&hardware=nvidia-h100-sxm&phase=train&schedule=dualpipe&micro_batches=8"
        answer = client.get(f"/{page}?{asked}&pp=4")
        assert answer.status_code == 200
        assert "DualPipe" in answer.text
        answer = client.get(f"/{page}?{asked}&pp=3")
        assert answer.status_code == 422
        assert "must be even" in answer.text.split('id="lab-error-pp"', 1)[1].split("</p>", 1)[0]


def test_a_collective_goes_into_a_comparison(client: TestClient) -> None:
    """Two collectives side by side: frozen, shown, shared, exported; the bound is that of the page."""
    sizes = {}
    items = []
    for size in ("64 MiB", "128 MiB"):
        page = client.get(f"/comm?kind=all_gather&size={size}&ranks=8").text
        item = json.loads(html.unescape(re.search(r'data-tray-add="([^"]+)"', page)[1]))  # type: ignore[index]
        items.append({"estimate": {"kind": "op", "request": item["request"]}})
        asked = {name: value for name, value in item["request"]["op"].items() if name != "op"}
        sizes[size] = api(client, "collective", **asked, hardware=item["request"]["hardware"])
    made = client.post("/api/v1/comparisons", json={"title": "t", "items": items})
    assert made.status_code == 201, made.text
    found = made.json()
    rows = {row["metric"]: row for row in found["metrics"]}
    for place, size in enumerate(sizes):
        assert rows["kernel_time_s"]["cells"][place]["value"] == sizes[size]["bound_s"]
    assert "bus_bandwidth_bytes_per_s" in rows
    assert any("operation" in difference["field"] for difference in found["differences"])
    shown = client.get(f"/comparisons/{found['id']}").text
    assert "all-gather of 64 MiB over 8 ranks" in shown
    for format_ in ("csv", "json", "html"):
        assert client.get(f"/api/v1/comparisons/{found['id']}/export?format={format_}").status_code == 200
    share = client.post(f"/api/v1/comparisons/{found['id']}/share", json={}).json()
    read = client.get(f"/api/v1/shares/{share['token']}").json()
    assert read["moved"] == []
    assert client.get(f"/s/{share['token']}").status_code == 200
    wrong = {"estimate": {"kind": "op", "request": items[0]["estimate"]["request"] | {"hardware": "nope"}}}
    refused = client.post("/api/v1/comparisons", json={"title": "t", "items": [wrong]})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == ["items", 0, "estimate", "request", "hardware"]
    wrong = {"estimate": {"kind": "op", "request": {"hardware": "nvidia-h100-sxm", "op": {"op": "collective"}}}}
    assert client.post("/api/v1/comparisons", json={"title": "t", "items": [wrong]}).status_code == 422


COMPARED = {
    "overlap": (
        tuple(f"hardware=nvidia-h100-sxm&m=8192&n=8192&k=3584&chunks={chunks}" for chunks in (1, 4)),
        {"overlapped_time_s": "time_s", "exposed_communication_s": "exposed_s", "exchange_time_s": "communication_s"},
    ),
    "exposed": (
        ("step=1&compute_only=0.8", "step=0.9&compute_only=0.8"),
        {"exposed_communication_s": "exposed_s", "exposed_share": "exposed_share", "step_time_s": "step_s"},
    ),
    "pipeline": (
        ("schedule=1f1b&stages=8&micro_batches=32", "schedule=dualpipe&stages=8&micro_batches=32"),
        {"pipeline_step_s": "time_s", "bubble_s": "bubble_s", "bubble_share": "bubble_share"},
    ),
}
CALL_OF = {"overlap": "overlap", "exposed": "exposed-communication", "pipeline": "pipeline"}


def on_the_page(client: TestClient, view: str, query: str) -> dict[str, Any]:
    """What the page adds to the tray."""
    return _tray(client.get(f"/comm?view={view}&{query}").text)


@pytest.mark.parametrize("view", COMPARED)
def test_overlap_exposed_time_and_pipelines_go_into_a_comparison(client: TestClient, view: str) -> None:
    """Two of a kind side by side: the numbers of the call, frozen, shown, shared and exported."""
    queries, metrics = COMPARED[view]
    tray = [on_the_page(client, view, query) for query in queries]
    assert all(item["estimate"] == view for item in tray)
    items = [{"estimate": {"kind": view, "request": item["request"]}} for item in tray]
    answers = [api(client, CALL_OF[view], **item["request"]) for item in tray]
    made = client.post("/api/v1/comparisons", json={"title": "t", "items": items})
    assert made.status_code == 201, made.text
    found = made.json()
    rows = {row["metric"]: row for row in found["metrics"]}
    for metric, name in metrics.items():
        cells = rows[metric]["cells"]
        assert [cell["value"] for cell in cells] == [answer[name] for answer in answers]
        assert cells[1]["ratio"] == pytest.approx(answers[1][name] / answers[0][name])
        assert rows[metric]["better"] == "lower"
    assert all(set(item["estimate"]["request"]) >= set(items[0]["estimate"]["request"]) for item in found["items"])
    assert "Nothing can be held" not in found["sentence"]
    shown = client.get(f"/comparisons/{found['id']}").text
    for item in found["items"]:
        assert html.escape(item["label"]) in shown
    for format_ in ("csv", "json", "html"):
        exported = client.get(f"/api/v1/comparisons/{found['id']}/export?format={format_}")
        assert exported.status_code == 200
        assert found["items"][0]["label"] in html.unescape(exported.text)
    share = client.post(f"/api/v1/comparisons/{found['id']}/share", json={}).json()
    assert client.get(f"/api/v1/shares/{share['token']}").json()["moved"] == []
    assert client.get(f"/s/{share['token']}").status_code == 200
    form = client.get("/comparisons/new", params={"title": "t", "items": json.dumps(tray)})
    assert form.status_code == 200
    assert "What differs" in form.text  # the preview of what would be frozen
    assert all(item["label"] in html.unescape(form.text) for item in tray)


def test_a_moved_figure_of_a_pipeline_is_said() -> None:
    """A frozen answer that today's code would give otherwise, or not at all."""
    request = {"schedule": "1f1b", "stages": 4, "micro_batches": 8}
    item: dict[str, Any] = {"index": 0, "label": "one", "kind": "estimate"}
    told = answer_of(None, FrozenPipeline(kind="pipeline", request=request))  # type: ignore[arg-type]
    frozen = {"kind": "pipeline", "request": told.request, "answer": dict(told.answer)}
    assert moved_figures(None, {"items": [{**item, "estimate": frozen}]}) == ()  # type: ignore[arg-type]
    frozen["answer"] = {**told.answer, "bubble_s": 1.0}
    (moved,) = moved_figures(None, {"items": [{**item, "estimate": frozen}]})  # type: ignore[arg-type]
    assert (moved.figure, moved.frozen, moved.now) == ("pipeline bubble", 1.0, 9.0)
    frozen["request"] = {**told.request, "schedule": "dualpipe", "stages": 3}
    (moved,) = moved_figures(None, {"items": [{**item, "estimate": frozen}]})  # type: ignore[arg-type]
    assert moved.now is None
    assert "must be even" in moved.reason


def test_kinds_that_are_not_alike_have_no_ratio(client: TestClient) -> None:
    """A pipeline, a step's exposed time and an overlap: a finding says that none is like another."""
    asked = [on_the_page(client, view, COMPARED[view][0][0]) for view in ("exposed", "overlap", "pipeline")]
    items = [{"estimate": {"kind": item["estimate"], "request": item["request"]}} for item in asked]
    found = client.post("/api/v1/comparisons", json={"title": "t", "items": items}).json()
    row = next(row for row in found["metrics"] if row["metric"] == "exposed_communication_s")
    assert row["cells"][1]["ratio"] is None
    assert "overlap against step" in row["cells"][1]["reason"]
    assert any(finding["check"] == "not-comparable" for finding in found["findings"])
    assert found["sentence"].startswith("Nothing can be held")
    for kind, request, place in (
        ("pipeline", {"schedule": "dualpipe", "stages": 3, "micro_batches": 12}, "stages"),
        ("exposed", {"step_s": 1.0, "compute_only_s": 2.0}, "compute_only_s"),
        ("exposed", {"run": "nothing"}, "run"),
        ("overlap", {"hardware": "nope", "gemm": {"m": 8, "n": 8, "k": 8}, "ranks": 8}, "hardware"),
    ):
        wrong = {"title": "t", "items": [{"estimate": {"kind": kind, "request": request}}]}
        refused = client.post("/api/v1/comparisons", json=wrong)
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"][0]["loc"] == ["items", 0, "estimate", "request", place]


def test_fewer_units_slow_the_exchange_too(client: TestClient) -> None:
    """As measured on two H200: 8 units reach 48 % of the link's rate, 24 all of it; copy engines take none at all."""
    body = {"hardware": "nvidia-h100-sxm", "gemm": {"m": 8192, "n": 8192, "k": 3584}, "ranks": 8}
    links = {"scale_up_alpha_s": 0.0}
    counts = (2, 4, 8, 12, 14, 16, 24, 32, 0)
    found = {n: api(client, "overlap", **body, links=links, communication_units=n) for n in counts}
    shares = [0.125, 0.25, 0.48, 0.68, 0.755, 0.83, 1, 1, 1]
    assert [found[n]["link_share"] for n in counts] == pytest.approx(shares)
    assert [found[24]["communication_s"] / found[n]["communication_s"] for n in counts] == pytest.approx(shares)
    unsaid = api(client, "overlap", **body, links=links)
    assert unsaid["levels"] == found[24]["levels"]
    assert any("own measurement" in note and "83% with 16" in note for note in unsaid["assumptions"])
    assert found[0]["time_s"] < found[24]["time_s"] < min(found[8]["time_s"], found[32]["time_s"])
    page = client.get("/comm?view=overlap&hardware=nvidia-h100-sxm&alpha_up=0&units=8").text
    assert "at 48 % of the link" in page or "at 48\u202f% of the link" in page


@pytest.mark.parametrize(
    "query",
    [
        "kind=all_to_all&size=3.7 MiB&ranks=32&in_switch=no&ceilings=achievable",
        "view=overlap&m=4100&pattern=all_gather&units=12&alpha_up=2.5 us&efficiency=0.7&launch=1.1 us",
        "view=exposed&step=1.5 ms&compute_only=1.1 ms&other=0.1 ms&streams=1 ms; 0.3 ms",
        "view=pipeline&schedule=interleaved&stages=6&micro_batches=18&virtual_stages=3&hand_over=12 us",
    ],
)
def test_a_frozen_item_leads_back_to_its_question(client: TestClient, query: str) -> None:
    """The link of a comparison's item opens the page on the same body, whatever units its times were typed in."""
    frozen = _tray(client.get(f"/comm?{query}").text)
    estimate = {"kind": frozen.get("estimate", "op" if "op" in frozen["request"] else "bound")}
    body = {"title": "back", "items": [{"estimate": estimate | {"request": frozen["request"]}}]}
    made = client.post("/api/v1/comparisons", json=body)
    assert made.status_code == 201, made.text
    page = client.get(f"/comparisons/{made.json()['id']}").text
    link = html.unescape(page.split("Open on the communication page", 1)[0].rsplit('href="', 1)[1].split('"', 1)[0])
    again = client.get(link)
    assert again.status_code == 200
    assert _tray(again.text) == frozen


def _tray(page: str) -> dict[str, Any]:
    return json.loads(html.unescape(re.search(r'data-tray-add="([^"]+)"', page)[1]))  # type: ignore[index, no-any-return]
