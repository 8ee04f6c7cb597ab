"""optimum-benchmark: CSV of 2023, one report of 0.5 in its three forms, and JSON as the tool's source writes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

CSV = data("optimum-benchmark/1.csv")


def latency(*times: float) -> dict[str, Any]:
    mean = sum(times) / len(times)
    return {"unit": "s", "values": list(times), "count": len(times), "mean": mean, "p50": mean, "stdev": 0.0}


def memory(allocated: float) -> dict[str, Any]:
    return {
        "unit": "MB",
        "max_ram": 4000.0,
        "max_global_vram": allocated + 2000,
        "max_process_vram": 0.0,
        "max_reserved": allocated + 1000,
        "max_allocated": allocated,
    }


REPORT: dict[str, Any] = {
    "load_model": {"memory": memory(99_000.0), "latency": latency(12.0), "throughput": None},
    "prefill": {
        "memory": memory(16_000.0),
        "latency": latency(0.1, 0.2),
        "throughput": {"unit": "tokens/s", "value": 800.0},
        "energy": {"unit": "kWh", "cpu": 0.0, "ram": 0.0, "gpu": 1e-6, "total": 1e-6},
    },
    "decode": {
        "memory": memory(17_000.0),
        "latency": latency(2.0, 2.2),
        "throughput": {"unit": "tokens/s", "value": 60.0},
    },
    "per_token": {"memory": None, "latency": latency(0.02, 0.03, 0.025), "throughput": None},
}
CONFIG: dict[str, Any] = {
    "name": "cuda_pytorch_llama",
    "backend": {
        "name": "pytorch",
        "version": "2.5.1",
        "model": "meta-llama/Llama-3.1-8B",
        "task": "text-generation",
        "device": "cuda",
        "device_ids": "0,1",
        "torch_dtype": "bfloat16",
        "hub_kwargs": {"token": "hf_abcdefghijkl"},
    },
    "scenario": {
        "name": "inference",
        "input_shapes": {"batch_size": 2, "sequence_length": 40},
        "generate_kwargs": {"max_new_tokens": 64, "min_new_tokens": 64},
    },
    "environment": {
        "cpu": " AMD EPYC",
        "gpu": ["NVIDIA A10G", "NVIDIA A10G"],
        "transformers_version": "4.47.0",
        "processor": "x86_64",
    },
}


def read(document: object) -> ParsedUpload:
    return parse_upload(json.dumps(document).encode())


def only(document: object) -> ParsedRun:
    (run,) = read(document).runs
    return run


def test_rows_are_runs_with_their_setting() -> None:
    runs = upload("optimum-benchmark/1.csv").runs
    first = runs[0]
    assert first.name == "Llama-2-7b-hf, batch 16"
    # The list of devices counts a display adapter, which is none.
    assert first.hardware_hint == "NVIDIA A100-SXM4-80GB"
    assert first.workload.dtypes == {"weights": "fp16", "activations": "fp16"}
    assert (first.workload.batch, first.workload.input_len, first.workload.output_len) == (16, 512, 100)
    assert runs[2].workload.extra["quantization"] == "gptq, 4 bits"
    assert runs[2].workload.dtypes["weights"] == "int4"
    assert {run.series["experiment"] for run in runs} == {"llama_baseline", "llama_gptq", "llama_bnb"}
    assert {m.key: m.pointer for m in first.metrics}["latency_s"] == "line 2: generate.latency(s)"


def test_columns_parted_by_semicolons_with_decimal_commas() -> None:
    text = (
        data("optimum-benchmark/2.csv").decode().replace(",", ";").replace(".00649", ",00649").replace("154.0", "154,0")
    )
    odd = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert b"0,00649" in odd
    assert values(parse_upload(odd).runs[0]) == values(upload("optimum-benchmark/2.csv").runs[0])


def test_a_cut_last_row_and_cells_without_a_figure() -> None:
    cut = parse_upload(CSV[: CSV.rindex(b"4.02")])
    assert len(cut.runs) == 14
    assert "cut-off" in checks(cut)
    row = CSV.split(b"\n")[1].replace(b",0.838,19.1,28107,4.3,372.0,28107,", b",nan,,-,inf,0,n/a,")
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(CSV.split(b"\n")[0] + b"\n" + row + b"\n")
    assert caught.value.reason == "invalid"


def test_a_python_list_in_a_cell_is_not_run() -> None:
    hostile = CSV.replace(b"['NVIDIA A100-SXM4-80GB', ", b"[__import__('os').getpid(), ", 1)
    assert parse_upload(hostile).runs[0].hardware_hint is None
    deep = CSV.replace(b"\"['NVIDIA", b'"' + b"[" * 5000 + b"'NVIDIA", 1)
    assert parse_upload(deep).runs


def test_json_report_phase_by_phase() -> None:
    run = only(REPORT)
    found = values(run)
    assert found["prefill_time_s.mean"] == pytest.approx(0.15)
    assert found["ttft_s.max"] == 0.2
    assert found["decode_time_s.mean"] == pytest.approx(2.1)
    assert found["itl_s.p95"] == pytest.approx(0.0295)
    assert found["tpot_s.mean"] == pytest.approx(0.025)
    assert found["prefill_tokens_per_s"] == 800.0
    assert found["decode_tokens_per_s"] == 60.0
    # the most of any phase; loading the model is none
    assert found["peak_memory_bytes"] == 17_000e6
    assert found["reserved_memory_bytes"] == 18_000e6
    assert found["device_memory_bytes"] == 19_000e6
    assert run.workload.extra["also"]["Energy of prefill (J)"] == pytest.approx(3.6)
    assert {m.key: m.pointer for m in run.metrics}["peak_memory_bytes"] == "/decode/memory/max_allocated"
    assert run.samples["prefill_time_s"] == (0.1, 0.2)


def test_json_with_its_configuration() -> None:
    found = read({"config": CONFIG, "report": REPORT})
    (run,) = found.runs
    assert found.format == "optimum-benchmark"
    assert run.name == "Llama-3.1-8B, batch 2"
    assert run.hardware_hint == "NVIDIA A10G"
    assert (run.workload.batch, run.workload.input_len, run.workload.output_len) == (2, 40, 64)
    assert run.workload.dtypes == {"weights": "bf16", "activations": "bf16"}
    assert run.software["torch"] == "2.5.1"
    assert run.workload.extra["also"]["Devices"] == 2
    assert {m.key: m.pointer for m in run.metrics}["prefill_time_s.mean"] == "/report/prefill/latency/mean"
    assert "hf_abc" not in repr(run)


def test_training_and_plain_forward() -> None:
    train = only({"train": {"latency": latency(1.0, 1.2), "throughput": {"unit": "samples/s", "value": 30.0}}})
    assert train.workload.mode == "train"
    assert values(train)["step_time_s.mean"] == pytest.approx(1.1)
    assert values(train)["samples_per_s"] == 30.0
    forward = only({"forward": {"latency": latency(0.5), "throughput": {"unit": "samples/s", "value": 2.0}}})
    assert values(forward)["latency_s.mean"] == 0.5
    assert "latency_s.std" not in values(forward)


@pytest.mark.parametrize(
    "target",
    [
        {"latency": {"unit": "parsec", "values": [1.0], "mean": 1.0}},
        {"latency": {"unit": "s", "values": [None, "x", float("nan"), -1], "mean": float("inf"), "p50": "NaN"}},
        {"latency": {"unit": "s"}, "memory": {"unit": "MB", "max_allocated": "lots"}, "throughput": [1]},
    ],
)
def test_odd_targets_give_fewer_figures(target: dict[str, Any]) -> None:
    run = only({"prefill": target, "decode": {"latency": latency(2.0)}})
    assert values(run)["decode_time_s.mean"] == 2.0
    assert "prefill_time_s.mean" not in values(run)


def test_one_report_in_its_three_forms() -> None:
    """The printed forms say, rounded, what the JSON says; each figure points to its line."""
    whole, text, markdown = (upload(f"optimum-benchmark/{file}").runs[0] for file in ("3.json", "4.txt", "5.md"))
    assert values(whole)["latency_s.p50"] == 11.300766840518918
    assert (whole.model_hint, whole.workload.batch, whole.workload.input_len) == ("BAAI/bge-base-en-v1.5", 64, 128)
    assert "8259CL" in (whole.hardware_hint or "")  # the machine has a T4, but the run's device is its processor
    for run, line in ((text, 16), (markdown, 24)):
        for key, value in values(run).items():
            assert value == pytest.approx(values(whole)[key], rel=1e-3), key
        assert {"latency_s.mean", "latency_s.p99", "latency_s.std", "samples_per_s"} <= values(run).keys()
        mean = next(metric for metric in run.metrics if metric.stat == "mean")
        assert (mean.pointer, mean.raw, mean.raw_unit, mean.count) == (f"line {line}", "11.329571", "s", 10)
    logged = b"\r\n".join(
        b"[09:11][BENCHMARK][INFO] - " + line for line in data("optimum-benchmark/4.txt").splitlines()
    )
    assert values(parse_upload(b"starting\r\n" + logged).runs[0]) == values(text)
    cut = parse_upload(data("optimum-benchmark/5.md")[:300])
    assert not cut.runs[0].metrics  # it ends within the report of loading
