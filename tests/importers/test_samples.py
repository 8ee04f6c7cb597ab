"""Files of real runs import with the figures that were read off them when they were collected (expected.json)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from app.domain.run import METRIC_UNITS, STATS, ParsedRun
from app.importers.registry import IMPORTERS

from .fixture_files import UPLOADS, checks, data, upload, values

EXPECTED: dict[str, dict[str, dict[str, Any]]] = json.loads((UPLOADS / "expected.json").read_text())

SI = {"s": 1.0, "ms": 1e-3, "ns": 1e-9, "req/s": 1.0, "tok/s": 1.0, "requests": 1.0, "bytes": 1.0, "parameters": 1.0}
SERVING_NAMES = {
    "duration": "duration_s",
    "completed": "requests_completed",
    "request_throughput": "requests_per_s",
    "output_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
}
LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e": "e2e_latency_s"}


def cases(prefix: str) -> list[tuple[str, str, float]]:
    return [
        (file, name, figure["value"] * SI.get(figure["unit"], 1.0))
        for file, figures in EXPECTED.items()
        if file.startswith(prefix)
        for name, figure in figures.items()
    ]


@pytest.mark.parametrize(("file", "name", "expected"), [*cases("vllm-bench-serve"), *cases("sglang-bench-serving")])
def test_serving_file_has_the_figures_of_its_first_run(file: str, name: str, expected: float) -> None:
    runs = upload(file).runs
    if name == "records":
        assert len(runs) == expected
        return
    if name == "last_output_throughput":
        assert values(runs[-1])["output_tokens_per_s"] == pytest.approx(expected)
        return
    key = SERVING_NAMES.get(name)
    if key is None:
        latency, stat = name.split("_")
        key = f"{LATENCIES[latency]}.{stat}"
    assert values(runs[0])[key] == pytest.approx(expected, rel=1e-12)


def of_test(runs: tuple[ParsedRun, ...], kind: str, tokens: int, depth: int) -> ParsedRun:
    wanted = {"n_prompt": tokens if kind == "pp" else 0, "n_gen": tokens if kind == "tg" else 0, "n_depth": depth}
    return next(run for run in runs if {key: run.series[key] for key in wanted} == wanted)


@pytest.mark.parametrize(("file", "name", "expected"), cases("llama-bench"))
def test_llama_bench_file_has_its_figures(file: str, name: str, expected: float) -> None:
    runs = upload(file).runs
    if name == "records":
        assert len(runs) == expected
    elif name.startswith("row"):
        run = runs[int(name.removeprefix("row"))]
        assert (
            run.value("prefill_tokens_per_s" if run.workload.mode == "prefill" else "decode_tokens_per_s") == expected
        )
    elif name == "model_size":
        assert all(run.workload.weight_bytes == expected == run.value("weight_bytes") for run in runs)
    elif name == "model_n_params":
        assert all(run.workload.parameters == expected == run.value("parameters") for run in runs)
    else:
        match = re.fullmatch(r"(pp|tg)(\d+)@d(\d+)_avg_(ts|ns)", name)
        assert match is not None
        run = of_test(runs, match[1], int(match[2]), int(match[3]))
        if match[4] == "ts":
            assert run.value("prefill_tokens_per_s" if match[1] == "pp" else "decode_tokens_per_s") == expected
        elif match[1] == "pp":
            assert run.value("prefill_time_s") == pytest.approx(expected)
            assert run.value("ttft_s") == pytest.approx(expected)
        else:
            assert run.value("decode_time_s") == pytest.approx(expected)
            assert run.value("tpot_s") == pytest.approx(expected / int(match[2]))


ALL_FILES = sorted(
    f"{folder.name}/{file.name}"
    for folder in UPLOADS.iterdir()
    if folder.name in {importer.id for importer in IMPORTERS}
    for file in folder.iterdir()
    if file.suffix in (".json", ".jsonl", ".txt", ".csv", ".sql")
)


@pytest.mark.parametrize("file", ALL_FILES)
def test_every_fixture_is_read_as_the_format_of_its_folder(file: str) -> None:
    found = upload(file)
    assert found.format == file.split("/")[0]
    assert found.runs
    for run in found.runs:
        assert run.name
        assert run.metrics
        for metric in run.metrics:
            assert metric.name in METRIC_UNITS
            assert metric.stat is None or metric.stat in STATS
            assert metric.pointer
            assert metric.raw
            assert metric.raw_unit


@pytest.mark.parametrize("file", ALL_FILES)
def test_a_whole_file_has_few_findings_and_no_error(file: str) -> None:
    found = upload(file)
    assert all(finding.severity == "info" for finding in found.findings)
    for run in found.runs:
        assert len(run.findings) <= 4
        assert all(finding.severity != "error" for finding in run.findings)


def test_pointers_lead_to_what_is_quoted() -> None:
    document = json.loads(data("llama-bench/1.json"))
    for index, run in enumerate(upload("llama-bench/1.json").runs):
        for metric in run.metrics:
            at, key = metric.pointer.split("/")[1:]
            assert int(at) == index
            if not key.startswith("samples"):
                assert str(document[index][key]) == metric.raw


def test_every_fixture_folder_names_its_sources() -> None:
    for folder in (f for f in UPLOADS.iterdir() if f.is_dir()):
        note = (folder / "NOTE.md").read_text()
        for file in folder.iterdir():
            assert file.name == "NOTE.md" or f"`{file.name}`" in note, file


def test_a_sweep_in_one_file_is_told_apart_by_its_load() -> None:
    runs = upload("vllm-bench-serve/3.json").runs
    assert runs[0].series["request_rate"] == 1.0
    assert runs[1].series["request_rate"] == 10.0
    assert len({run.name for run in runs}) > 1
    assert "some-failed" in {check for run in runs for check in checks(run)}
