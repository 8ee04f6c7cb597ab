"""AIPerf and GenAI-Perf: JSON in its generations, CSV, printed tables and records of single requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.domain.run import ParsedRun
from app.importers import measures
from app.importers.base import UnreadableUpload
from app.importers.reading import Limits
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

SUMMARY: dict[str, Any] = json.loads(data("aiperf/1.json"))
TABLE = data("genai-perf-table/1.txt").decode()
RECORDS = data("aiperf-records/1.jsonl").splitlines()


def read(document: object) -> ParsedRun:
    (run,) = parse_upload(json.dumps(document).encode()).runs
    return run


def test_an_average_over_tokens_is_tpot_and_a_gap_is_itl() -> None:
    found = values(upload("aiperf/1.json").runs[0])
    assert found["tpot_s.mean"] == pytest.approx(18.19909533160138e-3)
    assert found["itl_s.max"] == pytest.approx(28.467239e-3)


def test_model_load_device_and_power_come_from_the_file() -> None:
    run = upload("aiperf/1.json").runs[0]
    assert run.model_hint == "Qwen/Qwen3-0.6B"
    assert run.hardware_hint == "NVIDIA RTX 6000 Ada Generation"
    assert run.series == {"concurrency": 1.0}
    assert values(run)["power_w.mean"] == pytest.approx(129.8854497206704)
    assert values(run)["device_memory_bytes.max"] == pytest.approx(49.661607936e9)
    newer = upload("aiperf/4.json").runs[0]
    assert newer.model_hint == "nvidia/Qwen3.6-35B-A3B-NVFP4"
    assert newer.workload.concurrency == 16
    assert newer.software["client version"] == "0.10.0"
    assert {m.key: m.count for m in newer.metrics}["ttft_s.p99"] == 96


def test_private_parts_are_left_out_and_said() -> None:
    changed = SUMMARY | {
        "input_config": {
            "endpoint": {
                "model_names": ["/home/joe/Qwen"],
                "url": "http://joe:pw@10.1.2.3",
                "api_key": "sk-abcdefgh123",
            },
            "cli_command": "aiperf --api-key sk-abcdefgh123",
        }
    }
    run = read(changed)
    kept = repr(run)
    for word in ("joe", "10.1.2.3", "sk-abcdefgh", "test-host", "localhost", "00000000-0000"):
        assert word not in kept
    finding = next(f for f in run.findings if f.check == "left-out")
    assert "cli_command" in finding.message
    assert run.model_hint == "Qwen"


def test_the_first_aiperf_had_its_measures_below_records() -> None:
    records = {key: value for key, value in SUMMARY.items() if isinstance(value, dict) and "unit" in value}
    found = parse_upload(json.dumps({"records": records, "input_config": SUMMARY["input_config"]}).encode())
    assert found.format == "aiperf"
    pointers = {m.key: m.pointer for m in found.runs[0].metrics}
    assert pointers["ttft_s.p99"] == "/records/time_to_first_token/p99"


def test_without_the_marks_of_aiperf_it_is_genai_perf() -> None:
    older = {key: SUMMARY[key] for key in ("time_to_first_token", "inter_token_latency", "request_throughput")}
    found = parse_upload(json.dumps(older | {"input_config": {"model": ["gpt2"], "concurrency": 4}}).encode())
    assert found.format == "genai-perf"
    assert found.runs[0].model_hint == "gpt2"
    assert found.runs[0].workload.concurrency == 4


def test_units_are_read_and_a_strange_one_is_not_guessed() -> None:
    ttft = SUMMARY["time_to_first_token"]
    in_seconds = {k: v / 1e3 if isinstance(v, float) else v for k, v in ttft.items()} | {"unit": "s"}
    assert values(read(SUMMARY | {"time_to_first_token": in_seconds}))["ttft_s.p50"] == pytest.approx(0.030668548)
    run = read(SUMMARY | {"time_to_first_token": ttft | {"unit": "furlongs"}})
    assert "ttft_s.p50" not in values(run)
    assert "wrong-type" in checks(run)


def test_measures_of_newer_versions_are_kept_aside() -> None:
    run = read(SUMMARY | {"http_req_duration": {"unit": "ms", "avg": 12.5, "p99": 20.0}})
    assert run.workload.extra["other_measures"]["http_req_duration"] == {"mean": 12.5, "unit": "ms"}
    assert "http_req_duration" not in run.series


def test_failed_cancelled_and_not_finite() -> None:
    errors = [{"error_details": {"code": 500, "type": "Timeout", "message": "host db1 of joe"}, "count": 3}]
    run = read(SUMMARY | {"was_cancelled": True, "error_summary": errors})
    assert values(run)["requests_failed"] == 3
    assert {"cancelled", "some-failed"} <= checks(run)
    assert "db1" not in repr(run)
    text = json.dumps(
        SUMMARY | {"request_latency": {"unit": "ms", "avg": float("nan"), "p50": 3.0, "max": float("inf")}}
    )
    odd = parse_upload(text.encode()).runs[0]
    assert values(odd)["e2e_latency_s.p50"] == pytest.approx(0.003)
    assert "e2e_latency_s.mean" not in values(odd)
    assert "non-finite" in checks(odd)
    none = read(SUMMARY | {"request_count": {"unit": "requests", "avg": 0.0}})
    assert "all-failed" in checks(none)
    assert "ttft_s.mean" not in values(none)


# --- CSV -----------------------------------------------------------------------------------------------------------

GENAI_CSV = data("genai-perf/1.csv").decode()
AIPERF_CSV = """Metric,avg,min,max,sum,p1,p50,p99,std
Inter Token Latency (ms),4.50,4.00,5.00,225.00,4.10,4.50,4.90,0.20
Time to First Token (ms),60.00,20.00,110.00,3000.00,21.00,58.00,105.00,11.00
Request Latency (ms),2000.00,1500,7000.00,100000,1510,1900,6900,150

Metric,Value
Benchmark Duration (sec),80.25
Output Token Throughput (tokens/sec),311.53
Request Count,50
Request Throughput (requests/sec),0.62


Endpoint,GPU_Index,GPU_Name,GPU_UUID,Metric,avg,min,max,Hostname
localhost:9400,0,NVIDIA H200,GPU-1234abcd,GPU Power Usage (W),500.1,100,600,db1.joe.example
"""
"""Made-up numbers in the shape that the exporter's source writes."""


def test_genai_perf_csv_with_grouped_digits() -> None:
    found = parse_upload(GENAI_CSV.encode())
    assert found.format == "genai-perf"
    assert "rounded" in checks(found.runs[0])
    got = values(found.runs[0])
    assert got["ttft_s.mean"] == pytest.approx(1.14631)
    assert got["tpot_s.p99"] == pytest.approx(0.03523)
    assert got["requests_completed"] == 40
    assert got["output_tokens_per_s"] == 261.25
    assert found.runs[0].workload.input_len == pytest.approx(3000.05)
    pointers = {m.key: m.pointer for m in found.runs[0].metrics}
    assert pointers["ttft_s.mean"] == "line 2: avg"


def european(text: str) -> str:
    """The table as a spreadsheet of a country with decimal commas saves it."""
    rows = []
    for line in text.splitlines():
        cells = line.replace('","', '"#"').replace('",', '"#').replace(',"', '#"').split("#")
        flat = [c for cell in cells for c in ([cell.strip('"')] if cell.startswith('"') else cell.split(","))]
        rows.append(";".join(c.replace(",", "!").replace(".", ",").replace("!", ".") for c in flat))
    return "\r\n".join(rows) + "\r\n"


def test_the_same_csv_with_decimal_commas_mark_and_line_ends() -> None:
    odd = b"\xef\xbb\xbf" + european(GENAI_CSV).encode()
    assert b"1.146,31" in odd
    assert values(parse_upload(odd).runs[0]) == values(parse_upload(GENAI_CSV.encode()).runs[0])


def test_aiperf_csv_with_telemetry_and_appended_runs() -> None:
    found = parse_upload((AIPERF_CSV + AIPERF_CSV).encode())
    assert found.format == "aiperf"
    assert len(found.runs) == 2
    assert checks(found) == {"form-not-tried"}
    run = found.runs[0]
    assert run.hardware_hint == "NVIDIA H200"
    assert values(run)["duration_s"] == 80.25
    assert values(run)["ttft_s.std"] == pytest.approx(0.011)
    for word in ("db1", "joe", "GPU-1234"):
        assert word not in repr(found)
    assert "left-out" in checks(run)


def test_a_csv_cut_off_in_a_row_keeps_what_is_whole() -> None:
    cut = GENAI_CSV[: GENAI_CSV.index("Inter Token") + 30]
    assert values(parse_upload(cut.encode()).runs[0])["e2e_latency_s.mean"] == pytest.approx(6.4062)
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(GENAI_CSV[:42].encode() + b"\nHorses,1\n")
    assert caught.value.reason == "invalid"


# --- the printed table ---------------------------------------------------------------------------------------------


def test_a_narrow_terminal_breaks_labels_over_lines() -> None:
    broken = TABLE.replace(
        "│          Time to first token (ms) │  13.68 │  11.07 │  21.50 │  18.81 │  14.29 │  13.97 │",
        "│               Time to first token │  13.68 │  11.07 │  21.50 │  18.81 │  14.29 │  13.97 │\n"
        "│                              (ms) │        │        │        │        │        │        │",
    )
    assert broken != TABLE
    assert values(parse_upload(broken.encode()).runs[0]) == values(upload("genai-perf-table/1.txt").runs[0])


def test_a_log_with_colours_and_two_tables() -> None:
    coloured = "".join(f"\x1b[1;36m{line}\x1b[0m\n" for line in TABLE.splitlines())
    found = parse_upload(("2026 INFO start\n" + coloured + TABLE.replace("13.68", "1,213.68")).encode())
    assert [run.name for run in found.runs] == ["GenAI-Perf run 1", "GenAI-Perf run 2"]
    assert values(found.runs[0])["ttft_s.mean"] == pytest.approx(0.01368)
    assert values(found.runs[1])["ttft_s.mean"] == pytest.approx(1.21368)


def test_a_table_of_something_else_is_not_taken() -> None:
    for text in ("│ Statistic │ avg │\n│ Horses │ 3 │ tokens\n", TABLE.split("Time to first")[0]):
        with pytest.raises(UnreadableUpload):
            parse_upload(text.encode())


# --- records -------------------------------------------------------------------------------------------------------


def changed(index: int, **changes: Any) -> bytes:
    line = json.loads(RECORDS[index])
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            line[part][name] = value
        else:
            line[part] = value
    return json.dumps(line).encode()


def test_records_are_put_together_as_numpy_does() -> None:
    run = upload("aiperf-records/1.jsonl").runs[0]
    ttft = [json.loads(line)["metrics"]["time_to_first_token"]["value"] / 1e3 for line in RECORDS]
    found = values(run)
    assert found["ttft_s.p95"] == pytest.approx(float(np.percentile(ttft, 95)))
    assert found["ttft_s.std"] == pytest.approx(float(np.std(ttft)))
    assert found["requests_per_s"] == pytest.approx(10 / found["duration_s"])
    assert found["total_tokens_per_s"] == pytest.approx(3000 / found["duration_s"])
    assert {m.key: m.count for m in run.metrics}["itl_s.p99"] == 1990
    assert {m.key: m.pointer for m in run.metrics}["ttft_s.p50"] == "lines 1 to 10: /metrics/time_to_first_token/value"
    assert len(run.samples["itl_s"]) == 1990


def test_failed_cancelled_and_warm_up_requests_are_no_observations() -> None:
    lines = [
        changed(0, error={"type": "Timeout", "message": "from 10.1.2.3"}, metrics={}),
        changed(1, metadata__was_cancelled=True),
        changed(2, metadata__benchmark_phase="warmup"),
        *RECORDS[3:],
        RECORDS[0][:200],
    ]
    found = parse_upload(b"\n".join(lines))
    (run,) = found.runs
    assert values(run)["requests_completed"] == 7
    assert values(run)["requests_failed"] == 1
    assert {"some-failed", "cancelled"} <= checks(run)
    assert "cut-off" in checks(found)
    assert {m.key: m.count for m in run.metrics}["ttft_s.p50"] == 7
    assert "10.1.2.3" not in repr(run)


def test_odd_records_give_fewer_figures_and_nothing_wrong() -> None:
    odd = changed(0, metrics__time_to_first_token={"value": "soon", "unit": "ms"}, metadata__request_start_ns=None)
    run = parse_upload(odd).runs[0]
    found = values(run)
    assert "ttft_s.mean" not in found
    assert "duration_s" not in found
    assert "requests_per_s" not in found
    assert found["e2e_latency_s.mean"] == pytest.approx(3.6442601)
    assert "e2e_latency_s.std" not in found
    strange = changed(0, metrics__time_to_first_token={"value": 3.0, "unit": "parsecs"})
    assert "wrong-type" in checks(parse_upload(strange).runs[0])
    failed = changed(0, error={"code": 1})
    assert "all-failed" in checks(parse_upload(failed).runs[0])


def test_prompts_in_raw_records_are_left_out() -> None:
    run = parse_upload(changed(0, payload={"prompt": "my secret"}, responses=["an answer"])).runs[0]
    assert "my secret" not in repr(run)
    finding = next(f for f in run.findings if f.check == "left-out")
    assert "payload" in finding.message


def test_a_large_file_is_read_line_by_line_and_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    many = b"\n".join(RECORDS * 40)
    whole = parse_upload(many).runs[0]
    monkeypatch.setattr(measures, "MAX_HELD", 20_000)
    found = parse_upload(many, None, Limits(max_bytes=2**20))
    assert found.format == "aiperf-records"
    (run,) = found.runs
    by_key = {m.key: m for m in run.metrics}
    # all observations make mean, extremes and deviation; percentiles are those of a part
    for stat in ("mean", "min", "max", "std"):
        assert by_key[f"itl_s.{stat}"].value == pytest.approx(whole.value("itl_s", stat), rel=1e-9)
    assert by_key["itl_s.p99"].value == pytest.approx(whole.value("itl_s", "p99"), rel=0.01)
    assert by_key["itl_s.p50"].raw.startswith("computed from 79,600 observations, percentiles from 1")
    assert by_key["itl_s.p50"].count == 79_600
    assert run.value("ttft_s", "p99") == whole.value("ttft_s", "p99")
    assert len(run.samples["itl_s"]) == measures.MAX_SAMPLES


def test_records_in_a_list_or_over_several_lines() -> None:
    expected = values(upload("aiperf-records/1.jsonl").runs[0])
    found = parse_upload(json.dumps([json.loads(line) for line in RECORDS], indent=1).encode())
    assert values(found.runs[0]) == expected
    odd = b"\xef\xbb\xbf" + b"log line\r\n" + b"\r\n".join(RECORDS) + b"\r\n"
    assert values(parse_upload(odd).runs[0]) == expected
    assert checks(parse_upload(odd)) == {"skipped-lines"}
    long = changed(0, metrics__inter_chunk_latency={"value": [18.5] * 60_000, "unit": "ms"})
    assert {m.key: m.count for m in parse_upload(long).runs[0].metrics}["itl_s.p50"] == 60_000
