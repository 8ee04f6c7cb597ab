"""CSV files that were cut in their last value, cells with line breaks, and private words that tools write down."""

from __future__ import annotations

import json

import pytest

from app.importers.fields import without_private
from app.importers.registry import Tables, parse_upload
from app.importers.table import Column, TableMapping
from tests.importers.fixture_files import checks, data, values

GENAI = data("genai-perf/1.csv").decode().rstrip("\n")
OPTIMUM = """experiment_name,backend.name,benchmark.name,benchmark.input_shapes.batch_size,forward.latency(s)
a,pytorch,inference,1,0.0123456789012345
b,pytorch,inference,2,0.0234567890123456
c,pytorch,inference,4,0.0456789012345678"""
MINE = "name,batch,latency\nfirst,1,12.375\nsecond,2,13.125\nthird,4,17.625"
MAPPING = Tables(
    chosen=TableMapping({"name": Column("name"), "latency": Column("metric", "latency_s", None, "ms")}, mode="latency")
)


@pytest.mark.parametrize(("whole", "tables"), [(GENAI, Tables()), (OPTIMUM, Tables()), (MINE, MAPPING)])
def test_a_csv_cut_in_its_last_number_does_not_give_another_number(whole: str, tables: Tables) -> None:
    def read(text: str) -> tuple[set[tuple[str, float]], set[str]]:
        found = parse_upload(text.encode(), tables=tables)
        return {item for run in found.runs for item in values(run).items()}, checks(found)

    told, found = read(whole + "\n")
    assert not found & {"cut-off", "open-end"}
    assert read(whole)[0] == told
    for lost in range(1, 4):
        kept, found = read(whole[:-lost])
        assert kept <= told, whole[-40:-lost]
        assert found & {"cut-off", "open-end"}, whole[-40:-lost]


def test_a_cell_may_hold_line_breaks() -> None:
    text = 'name;"latency\n(ms)";note\r\na;12,5;"warm\r\n""second"" try"\r\nb;13,5;5" disk\r\n'
    mapping = TableMapping(
        {"name": Column("name"), "latency (ms)": Column("metric", "latency_s", None, "ms"), "note": Column()}, ","
    )
    found = parse_upload(text.encode(), tables=Tables(chosen=mapping))
    assert [(run.name, values(run)) for run in found.runs] == [
        ("a", {"latency_s": 0.0125}),
        ("b", {"latency_s": 0.0135}),
    ]
    assert [run.metrics[0].pointer for run in found.runs] == ["line 3: /latency (ms)", "line 5: /latency (ms)"]
    assert not checks(found)


def test_what_tools_say_of_errors_is_kept_without_paths_and_keys() -> None:
    said = "open /srv/someone/jobs/x.bin failed: api_key=abc123def, N/A tokens/s, hf_abcdefghijklm at D:\\someone\\a.cc"
    assert without_private(said) == "open …/x.bin failed: api_key=…, N/A tokens/s, … at …/a.cc"
    entry = {"name": "BM_a", "run_type": "iteration", "real_time": 5.0, "time_unit": "us", "iterations": 3}
    failed = {"name": "BM_b", "error_occurred": True, "error_message": said, "run_type": "iteration"}
    found = parse_upload(json.dumps({"context": {}, "benchmarks": [entry, failed]}).encode())
    message = next(f.message for f in found.findings if f.check == "benchmark-failed")
    assert "someone" not in message
    assert "abc123" not in message


def test_a_device_named_beside_a_pytest_benchmark_is_the_device() -> None:
    told = {"name": "test_gemm", "extra_info": {"gpu": "NVIDIA H100 80GB HBM3", "api_key": "x"}, "stats": {"mean": 0.5}}
    info = {"node": "host", "cpu": {"brand_raw": "Some CPU"}}
    (run,) = parse_upload(json.dumps({"machine_info": info, "benchmarks": [told]}).encode()).runs
    assert run.hardware_hint == "NVIDIA H100 80GB HBM3"
    (left,) = (f for f in run.findings if f.check == "left-out")
    assert left.fields == ("machine_info.node", "extra_info.api_key")
    del told["extra_info"]
    assert (
        parse_upload(json.dumps({"machine_info": info, "benchmarks": [told]}).encode()).runs[0].hardware_hint
        == "Some CPU"
    )
