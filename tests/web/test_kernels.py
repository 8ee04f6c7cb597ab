"""Kernels over HTTP: the calls, the run's page and its parts, and the page of two runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

UPLOADS = Path(__file__).parents[1] / "fixtures/uploads"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}


def uploaded(client: TestClient, file: str) -> str:
    answer = client.post("/api/v1/runs", params={"filename": Path(file).name}, content=(UPLOADS / file).read_bytes())
    assert answer.status_code == 201
    return str(answer.json()["runs"][0]["id"])


@pytest.fixture
def trace(client: TestClient) -> str:
    return uploaded(client, "torch-profiler-trace/own-ddp2-rank0.json.gz")


def test_the_calls(client: TestClient, trace: str) -> None:
    found = client.get(f"/api/v1/runs/{trace}/kernels", params={"family": "collective"}).json()
    assert found["total"] == 1
    assert found["items"][0]["count"] == 6
    assert found["items"][0]["time_s"] == pytest.approx(4069.765e-6)
    assert found["share"] == pytest.approx(found["items"][0]["share"])
    assert {"family": "gemm"}.items() <= found["families"][1].items()
    page = client.get(f"/api/v1/runs/{trace}/kernels", params={"limit": 40}).json()
    last = client.get(f"/api/v1/runs/{trace}/kernels", params={"limit": 40, "cursor": page["next"]}).json()
    assert last["next"] is None
    assert len({row["name"] for row in (*page["items"], *last["items"])}) == page["total"]
    line = client.get(f"/api/v1/runs/{trace}/timeline", params={"from_s": 0.001, "to_s": 0.003, "bars": 20}).json()
    assert 0 < len(line["bars"]) <= 20
    assert line["summary"]["exposed_s"] == pytest.approx(3462.374e-6)
    run = client.get(f"/api/v1/runs/{trace}").json()
    assert run["timeline"]["kernels"] == 396
    assert "drawing" not in run["timeline"]
    assert run["kernel_count"] == len(run["kernels"]) == page["total"]
    assert run["evidence"]["launch_share"] == pytest.approx(12989.252 / 22720.503, rel=1e-6)
    same = client.get(f"/api/v1/runs/{trace}/kernels/compare", params={"baseline": trace}).json()
    assert same["difference_s"] == 0
    assert same["counts"]["same"] == same["total"]
    assert "timeline" not in client.get("/api/v1/runs").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("kernels?sort=colour", 422),
        ("kernels?cursor=abc", 422),
        ("kernels?limit=0", 422),
        ("timeline?from_s=2&to_s=1", 422),
        ("timeline?from_s=nan", 422),
        ("kernels/compare", 422),
        ("kernels/compare?baseline=nothing", 404),
    ],
)
def test_wrong_questions(client: TestClient, trace: str, path: str, status: int) -> None:
    answer = client.get(f"/api/v1/runs/{trace}/{path}")
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_the_run_s_page_shows_where_the_time_goes(client: TestClient, trace: str) -> None:
    page = client.get(f"/runs/{trace}").text
    assert "exposed communication" in page
    for part in ("kernel-families", "kernel-lanes", "kernel-roofline", "kernel-table", "kernel-baseline"):
        assert f'id="{part}"' in page, part
    own = client.get(f"/runs/{trace}/kernels", params={"q": "nvjet", "sort": "-count"}).text
    assert "<title>Kernels of own-ddp2-rank0" in own
    assert "ncclDevKernel" not in own.split('id="kernel-table"')[1]
    table = client.get(f"/runs/{trace}/kernels", params={"family": "attention"}, headers=HTMX).text
    assert "<html" not in table
    assert "fmha_reduce_head" in table
    assert "nvjet" not in table
    line = client.get(
        f"/runs/{trace}/kernels", params={"part": "timeline", "from": "0.001", "to": "0.002"}, headers=HTMX
    )
    assert 'id="kernel-lanes"' in line.text
    assert "Zoom out" in line.text
    assert client.get(f"/runs/{trace}/kernels", params={"sort": "x"}).status_code == 422


def test_counters_make_points_and_no_timeline(client: TestClient) -> None:
    run = uploaded(client, "ncu-csv/own-roofline-metrics-stdout.csv.gz")
    page = client.get(f"/runs/{run}/kernels").text
    assert 'id="kernel-roofline"' in page
    assert "Link the device" in page
    assert 'id="kernel-lanes"' not in page
    client.patch(f"/api/v1/runs/{run}", json={"hardware": "h200-sxm"})
    linked = client.get(f"/runs/{run}/kernels").text
    assert "of the bf16 peak" in linked
    assert "A call takes" not in client.get(f"/runs/{run}").text
    assert "The L2 roof is what somebody achieved on such a device" in linked
    assert '"L2, achieved 6.13 TB/s"' in linked


def test_counters_draw_the_roofs_that_no_profile_states(client: TestClient) -> None:
    """A share of the peak beside the bytes gives the L2 roof; with no device linked, DRAM has one too."""
    lines = gzip.decompress((UPLOADS / "ncu-csv/own-roofline-metrics-stdout.csv.gz").read_bytes()).decode().split("\n")
    metric = '"lts__t_bytes.sum","byte",'
    share = '"lts__t_bytes.sum.pct_of_peak_sustained_elapsed","%","37.94"'
    more = [line[: line.index(metric)] + share for line in lines if metric in line and line.startswith('"0"')]
    told = "\n".join([*lines, *more])
    run = client.post("/api/v1/runs", params={"filename": "share.csv"}, content=told).json()["runs"][0]["id"]
    page = client.get(f"/runs/{run}/kernels").text
    assert "The L2 roof, 15.4\u202fTB/s," in page
    assert "The DRAM roof, 4.82\u202fTB/s," in page
    assert '"L2 15.4 TB/s"' in page
    row = client.get(f"/api/v1/runs/{run}/kernels", params={"q": "coopA"}).json()["items"][0]
    assert row["l2_peak_bytes_per_s"] == pytest.approx(1_033_161_600 / 176.896e-6 / 0.3794)


def test_two_runs_on_a_page(client: TestClient, trace: str) -> None:
    other = uploaded(client, "torch-profiler-trace/own-decode-2layer-b4.json.gz")
    page = client.get(f"/runs/{trace}/kernels/compare").text
    assert f'value="{other}"' in page
    page = client.get(f"/runs/{trace}/kernels/compare", params={"baseline": other}).text
    assert "Kernel time went from" in page
    assert "Both timelines" in page
    part = client.get(
        f"/runs/{trace}/kernels/compare", params={"baseline": other, "change": "added"}, headers=HTMX
    ).text
    assert "removed</span>" not in part
    wrong = client.get(f"/runs/{trace}/kernels/compare", params={"baseline": "<b>"})
    assert wrong.status_code == 422
    assert "&lt;b&gt;" in wrong.text


def test_a_run_without_kernels_says_how_to_get_them(client: TestClient) -> None:
    run = uploaded(client, "vllm-bench-serve/2.json")
    assert "This run has no kernels" in client.get(f"/runs/{run}/kernels").text
    assert client.get(f"/api/v1/runs/{run}/kernels").json()["total"] == 0
    assert client.get(f"/api/v1/runs/{run}/timeline").json()["summary"] is None


def test_hostile_names_are_escaped(client: TestClient) -> None:
    evil = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "<img src=x onerror=alert(1)>", "ts": 1, "dur": 2}]}'
    answer = client.post("/api/v1/runs", params={"filename": "evil.json"}, content=evil)
    run = answer.json()["runs"][0]["id"]
    for page in (f"/runs/{run}", f"/runs/{run}/kernels", f"/runs/{run}/kernels/compare?baseline={run}"):
        assert "<img src=x" not in client.get(page).text
