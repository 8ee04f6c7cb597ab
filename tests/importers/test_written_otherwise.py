"""Files that break off within their last number, and numbers and tables as other people write them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.domain.lint import lint
from app.domain.lint_subject import Subject
from app.domain.run import Metric, ParsedRun, RunWorkload
from app.domain.run_analysis import analyse_run
from app.domain.series import series_of
from app.importers.registry import parse_upload
from app.importers.table import UnmappedTable

MEGATRON = (
    " iteration {0:8d}/ 100 | consumed samples: {0:12d} | elapsed time per iteration (ms): 4000.5 | throughput per GPU "
    "(TFLOP/s/GPU): 410.5 | learning rate: 3.0E-04 | global batch size:  1024 | lm loss: 2.123456E+00 |"
)
TITAN = "step: {0:2d}  loss: 2.5000  memory: 48.25GiB(34.52%)  tps: 7,124  tflops: 413.10  mfu: 41.23%"
MAXTEXT = (
    "completed step: {0}, seconds: 3.000, TFLOP/s/device: 210.500, Tokens/s/device: 2730.667, total_weights: 65536, "
    "loss: 9.125"
)


@pytest.mark.parametrize("line", [MEGATRON, TITAN, MAXTEXT])
def test_a_log_that_breaks_off_within_a_number_gives_no_other_number(line: str) -> None:
    lines = [line.format(number) for number in range(1, 16)]
    whole = {m.key: m.value for m in parse_upload("\n".join(lines).encode()).runs[0].metrics}
    text = "\n".join(lines[:-1]) + "\n"
    for cut in range(8, len(lines[-1])):
        found = parse_upload((text + lines[-1][:cut]).encode())
        got = {m.key: m.value for m in found.runs[0].metrics}
        assert got == pytest.approx(whole), lines[-1][:cut]
    assert any(f.check == "cut-off" for f in parse_upload((text + lines[-1][:60]).encode()).findings)
    assert not any(f.check == "cut-off" for f in parse_upload("\n".join(lines).encode()).findings)


def test_llama_bench_with_grouped_digits_and_the_older_table_of_its_sql() -> None:
    table = "| model | size | params | backend | test | t/s |\n|---|---|---|---|---|---|\n"
    rows = "".join(
        f"| qwen3 8B Q8_0 | 8.11 GiB | 8.19 B | CUDA | {test} | {rate} |\n"
        for test, rate in (("pp512", "2,345.67 ± 3,20"), ("tg64", "41.20 ± 0.10"))
    )
    first, second = parse_upload((table + rows).encode()).runs
    assert {first.value("prefill_tokens_per_s"), second.value("decode_tokens_per_s")} == {2345.67, 41.2}
    assert first.value("prefill_tokens_per_s", "std") == 3.2
    sql = (
        "INSERT INTO test (build_commit, model_type, n_prompt, n_gen, avg_ns, avg_ts) "
        "VALUES ('abc', 'llama 8B Q4_K - Medium', '0', '128', '1000000000', '128.0');\n"
    )
    assert parse_upload(sql.encode()).runs[0].value("decode_tokens_per_s") == 128.0


def test_an_ncu_page_saved_with_semicolons() -> None:
    header = ("ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    section = "GPU Speed Of Light Throughput"
    cells = (
        header,
        ("0", "7", "void gemm<float, 128>(int; float*)", section, "Duration", "us", "1.102,34"),
        ("0", "7", "void gemm<float, 128>(int; float*)", section, "DRAM Throughput", "%", "45,67"),
    )
    text = "\n".join(";".join(f'"{cell}"' for cell in row) for row in cells)
    found = parse_upload(text.encode())
    assert (found.format, found.runs[0].value("kernel_time_s")) == ("ncu-csv", pytest.approx(1.10234e-3))


def test_a_column_of_tokens_per_s_is_guessed_as_a_rate() -> None:
    head = "config,throughput_tokens_per_s,tok_per_sec,requests per second,bandwidth_gb_per_s"
    with pytest.raises(UnmappedTable) as refused:
        parse_upload(f"{head}\na,2000.5,9.5,3.5,800.5\nb,2100.5,9.6,3.6,810.5\n".encode())
    guesses = {column.name: column.guess for column in refused.value.view.columns}
    assert [(guesses[name].metric, guesses[name].unit) for name in head.split(",")[1:]] == [
        ("output_tokens_per_s", "tokens/s"),
        (None, ""),  # the same metric again
        ("requests_per_s", "1/s"),
        ("hbm_bytes_per_s", "GB/s"),
    ]


def a_run(mode: str, **workload: object) -> ParsedRun:
    return ParsedRun(name="run", metrics=(), workload=RunWorkload(mode=mode, **workload))  # type: ignore[arg-type]


def test_a_series_goes_by_the_concurrency_that_was_asked_for() -> None:
    def key(measured: float, asked: int | None) -> str:
        run = a_run("serve", concurrency=measured, extra={} if asked is None else {"max_concurrency": asked})
        return series_of(run, name="run", format="f", hardware="h", model="m", stated={}).key

    assert key(15.87, 16) == key(15.93, 16) != key(15.9, 32)
    assert key(15.87, None) == key(15.93, None) != key(31.9, None)
    assert key(128, None) != key(127, None)


def test_newer_names_and_blocks_of_tools() -> None:
    aggregate = {"hw": "b200", "framework": "sglang", "precision": "fp8", "model": "m", "conc": 8, "isl": 1024, "tp": 8,
                 "tput_per_gpu": 1000.0, "output_tput_per_gpu": 800.0, "ttft_p50": 0.25, "e2e_latency_p99": 2.5,
                 "tpot_mean": 0.021, "tpot_p97": 0.03, "intvty_p50": 50.0}  # fmt: skip
    (run,) = parse_upload(json.dumps(aggregate).encode()).runs
    assert run.value("ttft_s", "p50") == 0.25
    assert run.value("e2e_latency_s", "p99") == 2.5
    assert run.value("tpot_s", "mean") == 0.021
    assert run.value("output_tokens_per_s_per_user", "p50") == 50.0
    assert run.workload.extra["percentiles"] == {"tpot_s.p97": 0.03}
    report = {"engine": {"model": "m"}, "world_info": {}, "request_info": {"num_requests": 2}, "performance": {},
              "energy": {"total_energy_j": 56.1, "average_gpu_power": 11.83}}  # fmt: skip
    (run,) = parse_upload(json.dumps(report).encode()).runs
    assert (run.value("energy_j"), run.value("power_w", "mean")) == (56.1, 11.83)
    backend = {"model": "m", "torch_dtype": "bfloat16", "quantization_scheme": "fbgemm_fp8", "quantization_config": {}}
    latency = {"unit": "s", "values": [0.03, 0.031], "mean": 0.0305, "count": 2}
    for changes, dtypes in (
        ({}, {"weights": "fp8", "activations": "fp8"}),
        ({"quantization_scheme": "bnb", "quantization_config": {"load_in_4bit": True}}, {"weights": "int4"}),
        ({"quantization_scheme": "torchao", "quantization_config": {"quant_type": "int8_weight_only"}},
         {"weights": "int8"}),
    ):  # fmt: skip
        config = {"backend": backend | changes, "scenario": {"input_shapes": {"batch_size": 1}}}
        (run,) = parse_upload(json.dumps({"config": config, "report": {"prefill": {"latency": latency}}}).encode()).runs
        assert dict(run.workload.dtypes) == {"activations": "bf16"} | dtypes
    served = {"request_throughput": 1.0, "mean_ttft_ms": 5.0, "dtype": "bfloat16", "quantization": "awq"}
    (run,) = parse_upload(json.dumps(served).encode()).runs
    assert dict(run.workload.dtypes) == {"weights": "int4", "activations": "bf16"}
    export = {"request_latency": {"unit": "ms", "avg": 5.0}, "request_goodput": {"unit": "requests/sec", "avg": -1.0}}
    (run,) = parse_upload(json.dumps(export).encode()).runs
    assert run.value("goodput_requests_per_s") is None


def test_two_ranks_that_reduce_are_no_send_and_receive() -> None:
    table = (
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
        "#   Rank  0 Pid  1 on  node device  0 [0x07] NVIDIA A100-SXM4-80GB\n"
        "#   Rank  1 Pid  1 on  node device  1 [0x0b] NVIDIA A100-SXM4-80GB\n"
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "  1073741824     268435456   float     sum   4620.1  232.41  232.41  1e-07   4601.0  233.37  233.37  1e-07\n"
    )
    (run,) = parse_upload(table.encode()).runs
    assert run.series["collective"] == "all_reduce"


def test_a_quoted_last_cell_is_whole_and_sizes_keep_their_digits() -> None:
    quoted = parse_upload(b'build_commit,n_prompt,n_gen,n_params,avg_ns,avg_ts\n"a","512","0","7","1000","512000.5"')
    assert not quoted.findings
    triton = parse_upload(b"N,Triton (GB/s)\n1024.0,100.5\n134217728.0,3012.125\n").runs[0]
    assert triton.name == "Triton, N 134217728"
    assert triton.metrics[0].raw == "3012.125"


def test_runs_of_unknown_device_and_model_are_of_no_common_series() -> None:
    def key(latency: float, hardware: str | None, name: str = "run") -> str:
        run = replace(a_run("serve", concurrency=8), metrics=(Metric("e2e_latency_s", latency, None, "/x", "1", "s"),))
        return series_of(run, name=name, format="f", hardware=hardware, model=None, stated={}).key

    assert key(1.0, "h") == key(1.1, "h") != key(1.0, "h", "another program")
    assert key(1.0, None) == key(1.0, None) != key(1.1, None)


def test_times_of_kernels_are_not_said_to_want_a_model() -> None:
    run = replace(a_run("kernel"), metrics=(Metric("latency_s", 1e-3, None, "/x", "1", "ms"),))
    held = analyse_run(run, None, None)
    assert "a model's step" in held.verdict
    assert held.needs == ("hardware",)


def test_no_observation_is_not_the_largest_of_none() -> None:
    metric = Metric("itl_s", 0.1, "p99", "/p99_itl_ms", "100", "ms", 0)
    assert not [f for f in lint(Subject(replace(a_run("serve"), metrics=(metric,)))) if f.check == "few-samples"]


def test_an_unlimited_issue_rate_is_a_load_and_not_missing() -> None:
    report = {
        "engine": {"model": "m", "version": "1", "backend": "Pytorch"},
        "world_info": {"tp_size": 1, "pp_size": 1, "issue_rate": float("inf")},
        "request_info": {"num_requests": 10, "avg_input_length": 8, "avg_output_length": 8},
        "performance": {"total_latency_ms": 1000.0, "request_throughput_req_s": 10.0},
    }
    (run,) = parse_upload(json.dumps(report).encode()).runs
    assert "non-finite" not in {f.check for f in run.findings}


def test_vllm_says_how_many_tokens_a_draft_yields() -> None:
    record = {"completed": 9, "total_input_tokens": 90, "total_output_tokens": 90, "request_rate": "inf", "duration": 1}
    record |= {"request_throughput": 9.0, "mean_ttft_ms": 1.0, "spec_decode_acceptance_length": 2.75}
    assert parse_upload(json.dumps(record).encode()).runs[0].value("accepted_tokens_per_step") == 2.75
