"""Pages of micro-benchmarks, collectives and training logs: charts of points and steps, and the overlay of /comm."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"


def stored(client: TestClient, file: str) -> list[dict]:
    data = (UPLOADS / file).read_bytes()
    answer = client.post(f"/api/v1/runs?filename={Path(file).name}", content=data)
    assert answer.status_code == 201, answer.text
    return answer.json()["runs"]


def test_a_collective_is_charted_over_its_sizes_beside_the_others(client: TestClient) -> None:
    runs = stored(client, "nccl-tests/1.txt")
    page = client.get(f"/runs/{runs[0]['id']}").text
    assert "All-reduce: 482 GB/s of bus bandwidth, 16 GiB, out-of-place." in page
    assert "Link a model" not in page
    assert 'id="points-bus_bandwidth_bytes_per_s"' in page
    assert "Bus bandwidth over message size: up to 482 GB/s at 16 GiB" in page
    assert "all-gather, out-of-place" in page  # another run of the file, in the same chart
    assert "Not kept with the run" in page
    assert "node-01" not in page
    kernels = client.get(f"/api/v1/runs/{runs[0]['id']}/kernels").json()
    assert "bus_bandwidth_bytes_per_s" in str(kernels)


@pytest.mark.parametrize(
    ("file", "kind", "ranks", "points"), [("1.txt", "p2p", 8, 10), ("3.txt", "all_reduce", 16, 32)]
)
def test_measured_collectives_stand_beside_the_model(
    client: TestClient, file: str, kind: str, ranks: int, points: int
) -> None:
    run = stored(client, f"nccl-tests/{file}")[-1]
    hardware = run["hardware"]["id"]
    body = {"hardware": hardware, "kind": kind, "bytes": 2**30, "ranks": ranks}
    found = client.post("/api/v1/estimates/collective", json=body).json()
    mine = [point for point in found["measured"] if point["uploaded"]]
    assert len(mine) == points
    assert {point["ranks"] for point in mine} == {ranks}
    largest = max(mine, key=lambda point: point["bytes"])
    assert largest["bytes"] == 2**34
    assert f"Uploaded, {ranks} ranks" in client.get(f"/comm?hardware={hardware}&kind={kind}&ranks={ranks}").text
    link = f"/comm?hardware={hardware}&amp;kind={kind}"
    assert link in client.get(f"/runs/{run['id']}").text


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("megatron-log/2.txt", ("Step time over step", "Loss over step", "Left out as warm-up", "49 logged, 1 to 49")),
        (
            "hf-trainer-state/1.json",
            ("eval_g5", "60.4", "Evaluations", "No train_runtime", "Loss over step", "30 logged"),
        ),
        ("mlperf-mllog/1.txt", ("Evaluations", "After samples", "18.51015 min")),
        (
            "kernelbench-timing/1.json",
            ("Time over problem", "6.64 ms in the median of 100 problems.", "1_Square_matrix_multiplication"),
        ),
        ("liger-kernel-csv/1.csv", ("Time over vocab size", "huggingface", "Time p20")),
        ("pytest-benchmark/3.json", ("A call takes 144 ns in the median.",)),
        ("torchtitan-log/1.txt", ("repeat a step", "68.57 GiB")),
    ],
)
def test_pages_say_what_the_file_holds(client: TestClient, file: str, words: tuple[str, ...]) -> None:
    run = stored(client, file)[0]
    page = client.get(f"/runs/{run['id']}").text
    for word in words:
        assert word in page, word


def test_lists_show_a_number_of_every_kind(client: TestClient) -> None:
    for file in ("nccl-tests/3.txt", "triton-perf-report/1.csv", "kernelbench-timing/1.json", "torchtitan-log/1.txt"):
        stored(client, file)
    page = client.get("/runs").text
    for words in ("bus bandwidth", "of a device", "a kernel", "a device"):
        assert words in page
    assert "not reported" not in page.partition("<tbody")[2].partition("</tbody>")[0]


def test_words_of_a_file_stay_words_in_its_charts(client: TestClient) -> None:
    data = (UPLOADS / "liger-kernel-csv/1.csv").read_bytes().replace(b"vocab size", b"<b>size</b>")
    run = client.post("/api/v1/runs?filename=x.csv", content=data).json()["runs"][0]
    page = client.get(f"/runs/{run['id']}").text
    assert "<b>" not in page
    assert "&lt;b&gt;size" in page
