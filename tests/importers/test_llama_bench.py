"""The five printed forms of llama-bench, and the quirks of old and interrupted files."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import pytest

from app.importers.base import UnreadableUpload
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

ROWS: list[dict[str, Any]] = json.loads(data("llama-bench/two-devices.json"))
FLAT = [{key: value for key, value in row.items() if not key.startswith("samples_")} for row in ROWS]


def words(row: dict[str, Any]) -> list[str]:
    return [str(int(v)) if isinstance(v, bool) else str(v) for v in row.values()]


def as_csv() -> bytes:
    out = io.StringIO()
    out.write(",".join(FLAT[0]) + "\n")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(words(row) for row in FLAT)
    return out.getvalue().encode()


def as_sql() -> bytes:
    columns = ",\n  ".join(f"{name} TEXT" for name in FLAT[0])
    inserts = [
        f"INSERT INTO llama_bench ({', '.join(FLAT[0])}) VALUES ({', '.join(repr(w) for w in words(row))});"
        for row in FLAT
    ]
    return f"CREATE TABLE IF NOT EXISTS llama_bench (\n  {columns}\n);\n\n".encode() + "\n".join(inserts).encode()


FORMS = {
    "json": json.dumps(ROWS).encode(),
    "jsonl": "\n".join(json.dumps(row) for row in ROWS).encode(),
    "csv": as_csv(),
    "sql": as_sql(),
    "csv after log": b"ggml_cuda_init: found 1 CUDA devices:\n  Device 0: X, compute capability 9.0\n" + as_csv(),
    "json after log": b"ggml_cuda_init: found 1 CUDA devices:\n" + json.dumps(ROWS, indent=2).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_tests(form: str) -> None:
    found = parse_upload(FORMS[form])
    assert found.format == "llama-bench"
    assert [run.series["test"] for run in found.runs] == ["pp512", "tg64", "tg64 @ d4096", "pp128+tg32"]
    prefill, decode, deep, both = found.runs
    # 102 ms, 320 ms, 401 ms and 250 ms in the file
    assert prefill.value("prefill_time_s") == pytest.approx(0.102)
    assert prefill.value("ttft_s") == pytest.approx(0.102)
    assert prefill.value("prefill_tokens_per_s") == pytest.approx(5020.894922)
    assert decode.value("tpot_s") == pytest.approx(0.320 / 64)
    assert decode.value("decode_tokens_per_s") == pytest.approx(200.130336)
    assert deep.workload.context_len == 4096
    assert both.value("latency_s") == pytest.approx(0.250)
    assert both.value("total_tokens_per_s") == pytest.approx(640.170735)
    assert {run.workload.mode for run in found.runs} == {"prefill", "decode", "latency"}
    for run in found.runs:
        assert run.workload.batch == 1
        assert run.workload.weight_bytes == 640_000_000
        assert run.workload.parameters == 1_200_000_000
        assert run.workload.dtypes == {"kv": "int8", "weights": "mxfp4"}
        assert run.model_hint == "tiny-moe-1b"
        assert run.hardware_hint == "Example GPU A, Example GPU B"
        assert "somebody" not in repr(run)


def test_samples_are_kept_in_si_and_give_median_and_extremes() -> None:
    decode = parse_upload(FORMS["json"]).runs[1]
    assert decode.samples["tpot_s"] == pytest.approx((0.32 / 64, 0.33 / 64, 0.31 / 64))
    got = values(decode)
    assert got["tpot_s.p50"] == pytest.approx(0.32 / 64)
    assert got["tpot_s.min"] == pytest.approx(0.31 / 64)
    assert got["tpot_s.max"] == pytest.approx(0.33 / 64)
    assert got["tpot_s.std"] == pytest.approx(0.01 / 64)


def test_one_repetition_has_no_spread() -> None:
    run = upload("llama-bench/2.jsonl").runs[0]
    assert not any(metric.stat == "std" for metric in run.metrics)


def test_markdown_table_after_a_log() -> None:
    prefill, decode = upload("llama-bench/5.txt").runs
    assert prefill.series == {"n_prompt": 2048.0, "n_gen": 0.0, "n_depth": 32768.0, "test": "pp2048 @ d32768"}
    assert values(prefill)["prefill_tokens_per_s.std"] == 1.18
    assert values(decode)["decode_tokens_per_s"] == 49.21
    assert decode.value("tpot_s") == pytest.approx(1 / 49.21)
    assert decode.hardware_hint == "AMD Radeon 8060S Graphics"
    assert decode.software["build_commit"] == "1a68ec937"
    assert decode.workload.weight_bytes == pytest.approx(21.27 * 2**30)
    assert decode.workload.parameters == pytest.approx(35.51e9)
    assert decode.metrics[0].pointer == "line 6: /avg_ts"


@pytest.mark.parametrize("sign", ["±".encode(), "±".encode("cp1252"), b"+/-"])
def test_markdown_survives_a_console_that_cannot_write_plus_minus(sign: bytes) -> None:
    found = parse_upload(data("llama-bench/5.txt").replace("±".encode(), sign))
    assert values(found.runs[1])["decode_tokens_per_s.std"] == 0.38
    assert ("encoding" in checks(found)) is (sign == b"\xb1")


def test_old_test_names_with_a_blank() -> None:
    table = data("llama-bench/5.txt").replace(b"pp2048 @ d32768", b"pp 2048").replace(b"tg32 @ d32768", b"tg 32")
    assert [run.series["test"] for run in parse_upload(table).runs] == ["pp2048", "tg32"]


def test_an_interrupted_list_gives_the_finished_tests() -> None:
    text = json.dumps(ROWS, indent=2)
    found = parse_upload(text[: text.rindex('"avg_ns"')].encode())
    assert len(found.runs) == 3
    assert "cut-off" in checks(found)


def test_files_before_backends_was_a_field() -> None:
    row = {key: value for key, value in ROWS[0].items() if key not in ("backends", "n_depth")}
    run = parse_upload(json.dumps([row | {"cuda": True, "metal": False, "blas": True}]).encode()).runs[0]
    assert run.software["backend"] == "cuda, blas"
    assert run.workload.context_len == 0


def test_a_rate_that_does_not_fit_the_time_is_flagged() -> None:
    run = parse_upload(json.dumps([ROWS[0] | {"avg_ts": 9000.0}]).encode()).runs[0]
    assert "rate-mismatch" in checks(run)


def test_the_same_spread_everywhere_is_flagged() -> None:
    even = [row | {"stddev_ts": row["avg_ts"] * 0.015, "samples_ts": [], "samples_ns": []} for row in ROWS]
    assert "too-even" in checks(parse_upload(json.dumps(even).encode()))
    assert "too-even" not in checks(parse_upload(json.dumps(ROWS).encode()))


def test_settings_that_differ_tell_runs_apart() -> None:
    rows = [ROWS[1], ROWS[1] | {"n_threads": 16}]
    runs = parse_upload(json.dumps(rows).encode()).runs
    assert [run.series["n_threads"] for run in runs] == [8.0, 16.0]
    assert runs[0].name != runs[1].name


@pytest.mark.parametrize(
    "change",
    [
        {"n_prompt": 0, "n_gen": 0},
        {"n_prompt": None},
        {"avg_ns": None, "avg_ts": None, "samples_ns": None, "samples_ts": None},
        {"avg_ns": float("nan"), "avg_ts": "nan", "samples_ns": ["x"], "samples_ts": {}},
    ],
)
def test_a_file_without_a_finished_test_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnreadableUpload) as refused:
        parse_upload(json.dumps([ROWS[0] | change]).encode())
    assert refused.value.reason == "invalid"


def test_a_log_without_a_table_is_named() -> None:
    with pytest.raises(UnreadableUpload, match="log without a result table"):
        parse_upload(b"ggml_vulkan: Found 1 Vulkan devices:\nggml_vulkan: 0 = X | uma: 1\n")


def test_sql_with_quotes_inside_values() -> None:
    text = as_sql().replace(b"Example CPU 16-Core", b"Joe''s, (old) CPU")
    assert len(parse_upload(text).runs) == 4
    assert parse_upload(text).runs[0].workload.extra["cpu_info"] == "Joe's, (old) CPU"


@pytest.mark.parametrize("extreme", [1e-320, 1e308, 5e-324, 10**300])
def test_extreme_figures_stay_finite(extreme: float) -> None:
    change = {"avg_ns": extreme, "avg_ts": extreme, "stddev_ts": extreme, "samples_ns": [extreme] * 3}
    run = parse_upload(json.dumps([ROWS[0] | change]).encode()).runs[0]
    assert all(math.isfinite(metric.value) for metric in run.metrics)
