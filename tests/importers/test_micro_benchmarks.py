"""Micro-benchmarks and collectives: the figures of real files, and the odd forms of each."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.base import UnreadableUpload
from app.importers.nccl_tests import library_version
from app.importers.reading import Limits
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values


def runs_of(text: str, name: str | None = None) -> tuple[ParsedRun, ...]:
    return parse_upload(text.encode(), name).runs


def row(run: ParsedRun, **wanted: Any) -> Mapping[str, Any]:
    return next(r for r in run.kernels if wanted.items() <= r.items())


def told(run: ParsedRun) -> str:
    return " ".join(finding.message for finding in run.findings)


# --- nccl-tests ----------------------------------------------------------------------------------------------------

NCCL = {
    # last size, out of place: time in us, algbw, busbw; in place: busbw; all in GB/s
    "1.txt": (17179869184, 46779.2, 367.25, 367.25, 367.23),
    "2.csv": (4294967296, 95080.0, 45.17, 90.17, 90.18),
    "3.txt": (17179869184, 66023.0, 260.21, 487.9, 488.14),
    "4.txt": (8589934592, 33508.0, 256.36, 224.31, 226.16),
    "5.txt": (8589934592, 37613.0, 228.38, 228.38, 228.83),
}


@pytest.mark.parametrize("file", NCCL)
def test_nccl_file_has_its_figures(file: str) -> None:
    size, time, algorithm, bus, bus_in_place = NCCL[file]
    run = upload(f"nccl-tests/{file}").runs[-1]
    assert run.value("latency_s") == pytest.approx(time * 1e-6)
    assert run.value("algorithm_bandwidth_bytes_per_s") == pytest.approx(algorithm * 1e9)
    assert run.value("bus_bandwidth_bytes_per_s") == pytest.approx(bus * 1e9)
    assert run.series["size_bytes"] == size
    inside = row(run, size_bytes=size, placement="in-place")
    # the CSV's in-place busbw is its last column; a reader keyed by name would find it twice
    if file == "2.csv":
        assert inside["algorithm_bandwidth_bytes_per_s"] == pytest.approx(45.18e9)
        assert len({r["size_bytes"] for r in run.kernels}) == 30
    assert inside["bus_bandwidth_bytes_per_s"] == pytest.approx(bus_in_place * 1e9)


def test_several_collectives_of_a_log_are_several_runs() -> None:
    runs = upload("nccl-tests/1.txt").runs
    assert [run.workload.extra["collective"] for run in runs] == [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "send_recv",
    ]
    means = [run.value("bus_bandwidth_bytes_per_s", "mean") for run in runs]
    assert means == pytest.approx([437.957e9, 328.618e9, 330.721e9, 313.838e9, 279.874e9])
    for run in runs:
        assert run.hardware_hint == "NVIDIA H100 80GB HBM3"
        assert (run.workload.extra["ranks"], run.workload.extra["nodes"]) == (8, 1)
        assert run.software == {"benchmark": "nccl-tests 2.17.8", "NCCL": "2.29.2"}
        assert "node-01" not in repr(run)
        assert "4180122" not in repr(run)
        assert checks(run) == {"left-out"}


def test_a_nameless_table_is_read_by_its_factor_or_by_the_files_name() -> None:
    (tagged,) = upload("nccl-tests/3.txt").runs  # rows with launcher tags in the middle
    assert (tagged.workload.extra["collective"], tagged.workload.extra["ranks"]) == ("all_reduce", 16)
    assert (tagged.workload.extra["nodes"], len(tagged.kernels)) == (2, 64)
    assert "busbw is 1.875 times algbw with 16 ranks" in told(tagged)
    (reduce,) = upload("nccl-tests/5.txt").runs
    assert reduce.workload.extra["collective"] == "reduce"
    # all-gather and all-to-all have the same factor: open, unless the name of the file says it
    (open_,) = upload("nccl-tests/4.txt").runs
    assert "collective" not in open_.workload.extra
    assert open_.workload.extra["sizes_of_zero_left_out"] == 5
    (named,) = parse_upload(data("nccl-tests/4.txt"), "nccl_alltoall.log").runs
    assert named.workload.extra["collective"] == "all_to_all"
    assert "from the file's name" in told(named)


HEAD = """\
mpirun -np 2 /opt/nccl-tests/build/all_gather_perf -b 8 -e 1G
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#  Rank  0 Group  0 Pid 1 on anna-laptop device  0 [0x1b] AMD Instinct MI300X
#  Rank  1 Group  0 Pid 2 on anna-laptop device  1 [0x1c] AMD Instinct MI300X
RCCL version 2.20.5-HEAD:abc
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""


def test_nccl_odd_rows() -> None:
    rows = [
        "           8         2     float    none      -1    10.00    0.00    0.00      0      N/A     N/A   N/A   N/A",
        "\x1b[1m  1048576  262144  float  none  -1  1.2e+01   87.38   43.69      0    12.00   87.38   43.69      0",
        "node-7:12:12 [0] NCCL INFO Launch mode Parallel",
        "     2097152   524288   float   none   -1    20.00  104.86   52.43      3    20.00  104.86   52.43      0",
        "     4194304       1048576     float    none      -1    40.00  104",
    ]
    (run,) = runs_of("\ufeff" + (HEAD + "\n".join(rows) + "\n").replace("\n", "\r\n"))
    assert run.workload.extra["collective"] == "all_gather"
    assert run.software["RCCL"].startswith("2.20.5")
    # a row with wrong values is no measurement: the headline is the largest right one
    assert run.series["size_bytes"] == 1048576
    assert run.value("latency_s") == pytest.approx(12e-6)
    assert row(run, size_bytes=2097152.0, placement="out-of-place")["wrong"] == 3
    assert "bus_bandwidth_bytes_per_s" not in row(run, size_bytes=8.0)
    assert {"wrong-results", "rows-unread", "left-out"} == checks(run)
    assert "anna" not in repr(run)


REPORT = {
    "version": 3,
    "args": ["/home" + "/anna/all_reduce_perf", "-J", "x"],
    "env": ["HF_TOKEN=hf_abcdefghijklmnop"],
    "nccl_version": 22902,
    "config": {"nthreads": 1, "warmup_iters": 5, "iterations": 20},
    "devices": [{"rank": r, "hostname": "secret-host", "device_info": "NVIDIA H200"} for r in range(2)],
    "results": [
        {
            "size": 1048576,
            "count": 262144,
            "type": "float",
            "redop": "sum",
            "root": -1,
            "out_of_place": {"time": 20.0, "alg_bw": 52.43, "bus_bw": 52.43, "nwrong": "nan"},
            "in_place": {"cpu_time": 21.0, "alg_bw": 49.9, "bus_bw": 49.9, "nwrong": 0},
        },
        {"size": 2097152, "type": "float", "redop": "sum", "out_of_place": None, "in_place": {"time": "nan"}},
    ],
    "average_bus_bandwidth": {"bandwidth": 51.2, "okay": "true"},
}


def test_nccl_in_another_locale() -> None:
    """A decimal comma once counted as a thousands separator, and made a link a thousand times as fast."""
    text = data("nccl-tests/4.txt").decode()
    (told,) = parse_upload(re.sub(r"(\d)\.(\d)", r"\1,\2", text).encode()).runs
    assert values(told) == values(parse_upload(text.encode()).runs[0])


def test_nccl_json_report_without_its_environment() -> None:
    (run,) = runs_of(json.dumps(REPORT))
    assert run.workload.extra["collective"] == "all_reduce"
    assert run.workload.extra["ranks"] == 2
    assert run.value("latency_s") == pytest.approx(20e-6)
    assert run.value("bus_bandwidth_bytes_per_s", "mean") == pytest.approx(51.2e9)
    assert next(m for m in run.metrics if m.name == "latency_s").pointer == "/results/0/out_of_place"
    assert len(run.kernels) == 2
    assert run.software["NCCL"] == "2.29.2"
    for word in ("hf_abc", "secret-host", "anna"):
        assert word not in repr(run)
    assert "env" in told(run)


def test_rccl_rows_and_a_csv_with_commas_as_decimals() -> None:
    rows = [
        {"name": name, "ranks": 8, "size": 1024 * n, "type": "float", "redop": "sum", "inPlace": i, "time": 10 * n}
        | {"algBw": 0.5, "busBw": 0.9, "wrong": "0"}
        for name in ("AllReduce", "AllGather")
        for n in (1, 2)
        for i in (0, 1)
    ]
    reduce, gather = runs_of(json.dumps(rows))
    assert (reduce.series["collective"], gather.series["collective"]) == ("all_reduce", "all_gather")
    assert len(reduce.kernels) == 4
    (spread,) = runs_of(
        "size;count;type;redop;root;time;algbw;busbw;#wrong\n1048576;1;float;sum;-1;12,5;83,89;146,8;0\n"
    )
    assert spread.value("latency_s") == pytest.approx(12.5e-6)
    assert spread.value("bus_bandwidth_bytes_per_s") == pytest.approx(146.8e9)


def test_nccl_versions_and_a_test_that_never_ran() -> None:
    assert [library_version(code) for code in (2708, 21803, 22902)] == ["2.7.8", "2.18.3", "2.29.2"]
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(HEAD.encode())
    assert caught.value.reason == "cut-off"


# --- kernels -------------------------------------------------------------------------------------------------------


def test_triton_file_has_its_figures_and_says_what_it_concluded() -> None:
    cublas, triton = upload("triton-perf-report/1.csv").runs
    assert cublas.value("model_flop_per_s_per_device") == 75.360878e12
    assert triton.value("model_flop_per_s_per_device") == 79.973324e12
    assert row(triton, M=256.0)["model_flop_per_s_per_device"] == 5.269226e12
    assert len(triton.kernels) == 17
    assert triton.series == {"provider": "Triton", "M": 4096.0, "N": 4096.0, "K": 4096.0}
    assert "unit-concluded" in checks(triton)


@pytest.mark.parametrize(
    ("text", "metric", "value"),
    [
        (",size,Triton (GB/s),Torch (GB/s)\n0,4096.0,100.0,nan\n1,8192.0,200.5,0.0\n", "hbm_bytes_per_s", 200.5e9),
        ("N_CTX;Triton [FP16] (ms)\n1024;0,5\n2048;1,25\n", "kernel_time_s", 1.25e-3),
        # no unit, and growing with the work: a time of do_bench
        ("size,triton,torch\n1024,0.1,0.1\n65536,6.0,6.4\n", "kernel_time_s", 6e-3),
        ("size,triton,torch\r\n1024,100,90\r\n65536,700,690\r\n", "hbm_bytes_per_s", 700e9),
    ],
)
def test_triton_headers_with_and_without_units(text: str, metric: str, value: float) -> None:
    runs = runs_of(text)
    assert runs[0].value(metric) == pytest.approx(value)
    if "nan" in text:  # a provider that did not run is absent
        assert [run.series["provider"] for run in runs] == ["Triton"]


@pytest.mark.parametrize(
    "text",
    ["batch;lat (ms);tok/s\n1;12,5;80,1\n2;13,9;143\n", "batch,prefill tok/s,decode tok/s\n1,100,20\n2,300,40\n"],
)
def test_a_team_s_own_table_is_no_triton_report(text: str) -> None:
    """Tokens a second once became a bandwidth; such a table is asked about instead."""
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(text.encode())
    assert caught.value.reason == "needs-mapping"


def test_a_triton_report_with_its_spread() -> None:
    (run,) = runs_of(
        "BATCH,N_CTX,Triton (ms),Triton (ms)-min,Triton (ms)-max\n4,1024,2,1,3\n8,1024,5,4,6\n8,2048,9,8,11\n"
    )
    assert values(run) == pytest.approx({"kernel_time_s": 9e-3, "kernel_time_s.min": 8e-3, "kernel_time_s.max": 11e-3})
    assert run.workload.extra["sweep"]["lines"] == ["N_CTX"]


def test_liger_file_has_its_figures() -> None:
    runs = upload("liger-kernel-csv/1.csv").runs
    first = runs[0]
    assert sum(len(run.kernels) for run in runs) == 120 - 26  # speed and memory of a size share a row
    assert first.name == "cross_entropy forward, liger"
    small = row(first, V=4096.0)
    assert small["time_s"] == pytest.approx(0.5324159860610962e-3)
    assert (small["time_p20_s"], small["time_p80_s"]) == pytest.approx((0.5291008353233337e-3, 0.53476482629776e-3))
    assert first.hardware_hint == "NVIDIA A100-SXM4-80GB"
    assert first.workload.extra["config"] == {"B": 8.0, "T": 2048.0}
    full = next(run for run in runs if run.name == "cross_entropy full, liger")
    assert full.value("peak_memory_bytes", "p50") == 8192.328125 * 2**20
    assert full.value("kernel_time_s", "p50") == pytest.approx(25.22287940979004e-3)
    assert {run.workload.dtypes.get("activations") for run in runs} == {None, "bf16"}


def test_liger_resaved_by_a_spreadsheet_of_another_locale() -> None:
    lines = data("liger-kernel-csv/1.csv").decode().split("\n")[:9]
    rows = [[re.sub(r"^(\d+)\.(\d+)$", r"\1,\2", cell) for cell in row] for row in csv.reader(lines)]
    told = io.StringIO()
    csv.writer(told, delimiter=";").writerows(rows)
    assert [values(run) for run in runs_of(told.getvalue())] == [values(run) for run in runs_of("\n".join(lines))]


def test_liger_odd_rows() -> None:
    lines = data("liger-kernel-csv/1.csv").decode().split("\n")[:3]
    newer = lines[1].replace(",0.2.1", ",0.9.0").replace("A100-SXM4-80GB", "H100")
    text = lines[1].replace(",4096,", ",small,").replace('""B"": 8', '""hf_token"": ""hf_abcdefghijkl""')
    broken = lines[2].replace("0.8101439476013184", "nan")
    runs = runs_of("\r\n".join([*lines, lines[1], newer, text, broken, lines[2][:50]]))
    names = [run.name for run in runs]
    assert len(set(names)) == len(names) == 4
    assert names[1].endswith("repetition 2")
    assert any("0.9.0" in name for name in names)
    assert "hf_abc" not in repr(runs)
    found = parse_upload("\n".join([*lines, broken]).encode())
    assert checks(found) == {"rows-unread"}


FLASH = """\
### causal=False, headdim=64, batch_size=32, seqlen=512 ###
Flash2 fwd: 100.0 TFLOPs/s, bwd: 0.00 TFLOPs/s, fwd + bwd: nan TFLOPs/s
### causal=True, headdim=64, batch_size=16, seqlen=1024 ###
\x1b[32mFlash2 fwd: 1.234,5 TFLOPs/s, 2,5 ms, bwd: 90.0 TFLOPs/s
Flash2 fwd: 12
"""


def test_flash_attention_files_have_their_figures() -> None:
    runs = {run.name: run for run in upload("flash-attention-bench/1.txt").runs}
    assert row(runs["Flash2 forward, seqlen 1024"], seqlen=512.0)["model_flop_per_s_per_device"] == 252.49e12
    assert row(runs["Flash2 backward, seqlen 1024"], seqlen=512.0)["model_flop_per_s_per_device"] == 189.86e12
    both = runs["Flash2 forward and backward, seqlen 1024"]
    assert row(both, seqlen=512.0)["model_flop_per_s_per_device"] == 204.34e12
    assert row(runs["Pytorch forward, seqlen 1024"], seqlen=512.0)["model_flop_per_s_per_device"] == 43.18e12
    forward, _, two, *_ = upload("flash-attention-bench/2.txt").runs
    assert values(forward) == pytest.approx({"kernel_time_s": 1.433e-3, "model_flop_per_s_per_device": 1534.8e12})
    assert values(two) == pytest.approx({"kernel_time_s": 4.043e-3, "model_flop_per_s_per_device": 1359.8e12})
    assert two.series["implementation"] == "FA Python (2CTA)"
    # check: 4 x batch x heads x sequence squared x head size
    assert 4 * 4 * 16 * 8192**2 * 128 / forward.value("kernel_time_s") == pytest.approx(1534.8e12, rel=1e-3)  # type: ignore[operator]


def test_flash_attention_cases_that_did_not_run_are_absent() -> None:
    forward, backward = runs_of(FLASH)
    assert forward.value("model_flop_per_s_per_device") == 1234.5e12
    assert forward.value("kernel_time_s") == pytest.approx(2.5e-3)
    assert (len(forward.kernels), len(backward.kernels)) == (2, 1)
    assert backward.workload.extra["cases_not_run"] == 1


def test_deepep_files_have_their_figures() -> None:
    (run,) = upload("deepep-test/1.txt").runs
    first = row(run, rank=0.0)
    assert (first["algorithm_bandwidth_bytes_per_s"], first["time_s"]) == pytest.approx((42.25e9, 521.91e-6))
    assert run.workload.extra["ranks_shown"] == 6
    assert run.value("algorithm_bandwidth_bytes_per_s", "min") == 42.22e9
    assert run.value("latency_s", "max") == pytest.approx(522.24e-6)
    eight, sixteen, combine = upload("deepep-test/2.txt").runs
    assert eight.value("algorithm_bandwidth_bytes_per_s") == 4.47e9
    assert sixteen.value("algorithm_bandwidth_bytes_per_s") == 4.72e9
    assert combine.value("algorithm_bandwidth_bytes_per_s") == 4.71e9
    assert combine.kernels[0]["scale_up_bytes_per_s"] == 9.5e9


def test_deepep_version_2_and_split_times() -> None:
    text = """\
> Testing with do_handle_copy=1, use_fp8_dispatch=1, num_bias=0 ...
   * EP:   1/16 | dispatch: 34 GB/s (SO), 201 GB/s (SU), 866.000 us, 1234 bytes | copy: 200 GB/s, 5.0 us
   * EP:   0/16 | dispatch: 35 GB/s (SO), 203 GB/s (SU), 864.688 us, 1235 bytes
   @ EP:   0/16 | reduced combine: 0 GB/s (SO), 208 GB/s (SU), 1614.000 us, 3 bytes
[rank 0] Dispatch bandwidth: 40.5 GB/s, avg_t=180.0 us | Combine bandwidth: 50.0 GB/s, avg_t=290.0 us
[rank 0] Dispatch send/recv time: 30.10 + 20.00 us | Combine send/recv time: 40.00 + 30.00 us
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, transmit: 612.34 us, BW: 50.12 GB/s (RDMA), 98.76 GB/s (NVL)
[rank 1] Dispatch bandwidth: 4
"""
    runs = {run.name: run for run in runs_of(text.replace("\n", "\r\n"))}
    two = runs["DeepEP dispatch (FP8, handle copied), 16 ranks"]
    assert two.parallel == {"ep": 16}
    assert two.value("latency_s", "max") == pytest.approx(866e-6)
    assert row(two, rank=0.0)["scale_up_bytes_per_s"] == 203e9
    combined = runs["DeepEP reduced combine (FP8, handle copied), 16 ranks"]
    assert combined.value("algorithm_bandwidth_bytes_per_s") == 208e9  # nothing went between nodes: 0 is absent
    halves = next(run for name, run in runs.items() if "dispatch send and receive" in name)
    assert halves.value("latency_s") == pytest.approx(50.1e-6)
    tuned = runs["DeepEP dispatch (FP8)"]
    assert values(tuned) == pytest.approx({"algorithm_bandwidth_bytes_per_s": 50.12e9, "latency_s": 612.34e-6})


def test_kernelbench_file_has_its_figures() -> None:
    runs = upload("kernelbench-timing/1.json").runs
    assert [(run.series["level"], len(run.kernels)) for run in runs] == [
        ("level1", 100),
        ("level2", 100),
        ("level3", 50),
    ]
    first = runs[0].kernels[0]
    assert (first["time_s"], first["time_std_s"], first["time_min_s"], first["time_max_s"], first["trials"]) == (
        pytest.approx(3.68e-3),
        pytest.approx(0.011e-3),
        pytest.approx(3.65e-3),
        pytest.approx(3.74e-3),
        100,
    )
    assert first["at"] == "/level1/1_Square_matrix_multiplication_.py"
    assert runs[0].hardware_hint == "NVIDIA H100 PCIe"


def test_kernelbench_odd_problems() -> None:
    good = {"mean": 2.0, "num_trials": 5, "hardware": "A"}
    told_ = {
        "level1": {"1_a.py": good, "2_b.py": good | {"mean": float("nan")}, "c": good | {"hardware": "B"}, "4_d": 3}
    }
    first, second = runs_of(json.dumps(told_))
    assert (first.hardware_hint, second.hardware_hint) == ("A", "B")
    assert "2 problem(s) have no time" in told(first)


# --- general harnesses ---------------------------------------------------------------------------------------------

PYTEST = {
    "1.json": ("test_fib_10", 2, 2.408868133322941e-05, 2.2300000000363696e-05, 6.175090189861328e-06, 38523),
    "2.json": (
        "test_xfast_parametrized[0]",
        1,
        2.622408132654948e-07,
        2.2016643907464864e-07,
        2.140441942118885e-07,
        9987,
    ),
    "3.json": ("test_fib_1", 4, 1.4995610248628836e-07, 1.437600000020467e-07, 2.9351731952139377e-08, 68536),
}


@pytest.mark.parametrize("file", PYTEST)
def test_pytest_benchmark_file_has_its_figures(file: str) -> None:
    name, count, mean, median, deviation, rounds = PYTEST[file]
    runs = upload(f"pytest-benchmark/{file}").runs
    assert len(runs) == count
    run = runs[0]
    found = values(run)
    assert run.name == name
    assert (found["latency_s.mean"], found["latency_s.p50"], found["latency_s.std"]) == (mean, median, deviation)
    assert run.workload.extra["rounds"] == run.metrics[0].count == rounds
    assert not run.samples  # the collected files keep four of the rounds: a part says nothing of the whole


def test_pytest_benchmark_odd_entries() -> None:
    def entry(name: str, data: list[Any], **stats: Any) -> dict[str, Any]:
        return {"name": name, "fullname": f"a.py::{name}", "stats": {"mean": 0.5, "data": data, **stats}}

    document = {
        "machine_info": {"node": "anna-laptop", "cpu": {"brand_raw": "Some CPU"}},
        "benchmarks": [
            entry("test_a", [0.5] * 12, rounds=12, stddev=0.1) | {"params": {"n": 8, "kind": "x"}},
            entry("test_a", [0.5], rounds=1, stddev=0.0) | {"fullname": "b.py::test_a"},
            entry("test_c", [], mean=float("nan")),
            "odd",
        ],
    }
    found = parse_upload(json.dumps(document).encode())
    first, second = found.runs
    assert (first.name, second.name) == ("a.py::test_a", "b.py::test_a")
    assert first.series == {"n": 8.0, "kind": "x"}
    assert len(first.samples["latency_s"]) == 12
    assert "latency_s.std" not in values(second)
    assert checks(found) == {"not-a-result"}
    assert "anna" not in repr(found)


def test_google_benchmark_files_have_their_figures() -> None:
    first, second = upload("google-benchmark/1.json").runs
    assert (first.name, second.name) == ("fib_10", "fib_20")
    assert first.value("latency_s") == pytest.approx(214.98980114547953e-9)
    assert first.workload.extra["cpu_time_s"] == pytest.approx(213.65507206163295e-9)
    assert first.workload.extra["iterations"] == 3070566
    assert "host.local" not in repr(first)
    found = upload("google-benchmark/2.json")
    assert len(found.runs) == 14  # two of the 16 entries are fits of complexity
    assert checks(found) == {"fits-left-out"}
    times = {run.name: run.value("latency_s") for run in found.runs}
    assert times["BM_SameTimes"] == pytest.approx(10e-9)
    assert times["BM_NotBadTimeUnit"] == pytest.approx(0.4)  # a unit of its own


def test_google_benchmark_repetitions_errors_and_arguments() -> None:
    def entry(name: str, time: Any, **more: Any) -> dict[str, Any]:
        return {"name": name, "run_name": name, "run_type": "iteration", "real_time": time, "time_unit": "us"} | more

    document = {
        "benchmarks": [
            *(entry("BM_copy/8/threads:2", t, repetitions=3, bytes_per_second=1e9) for t in (1.0, 2.0, 6.0)),
            entry("BM_copy/8/threads:2", 3.0, run_type="aggregate", aggregate_name="mean"),
            entry("BM_copy/8/threads:2", 0.3, run_type="aggregate", aggregate_name="cv"),
            entry("BM_copy/16/threads:2", 7.0),
            entry("BM_bad", 0, error_occurred=True, error_message="<b>no</b>"),
            entry("BM_zero", 0),
            entry("BM_unit", 5, time_unit="fortnight"),
        ]
    }
    found = parse_upload(json.dumps(document).encode())
    first, second = found.runs
    assert values(first)["latency_s.mean"] == pytest.approx(3e-6)
    assert values(first)["latency_s.p50"] == pytest.approx(2e-6)
    assert len(first.samples["latency_s"]) == 3
    assert first.series == {"benchmark": "BM_copy", "argument 1": 8.0, "threads": 2.0}
    assert second.value("latency_s") == pytest.approx(7e-6)
    assert first.workload.extra["counters"] == {"bytes_per_second": 1e9}
    assert checks(found) == {"benchmark-failed"}


# --- all of them ---------------------------------------------------------------------------------------------------


def test_rows_point_into_the_file_and_sweeps_say_what_they_are() -> None:
    for file in (
        "nccl-tests/1.txt",
        "liger-kernel-csv/1.csv",
        "flash-attention-bench/1.txt",
        "triton-perf-report/1.csv",
    ):
        lines = data(file).decode().split("\n")
        for run in upload(file).runs:
            sweep = run.workload.extra["sweep"]
            assert sweep["points"] == len(run.kernels)
            assert sweep["y"]
            for point in run.kernels:
                assert sweep["x"] in point
                assert any(axis["key"] in point for axis in sweep["y"])
                assert lines[int(point["at"].removeprefix("line ")) - 1].strip()


def test_a_file_of_too_many_subjects_is_refused() -> None:
    head, first = data("liger-kernel-csv/1.csv").decode().split("\n")[:2]
    many = [first.replace("cross_entropy,", f"kernel_{n},") for n in range(50)]
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload("\n".join([head, *many]).encode(), None, Limits(max_runs=40))
    assert caught.value.reason == "too-large"


def test_a_long_nccl_log_is_read_piece_by_piece(tmp_path: Path) -> None:
    log = tmp_path / "debug.log"
    noise = "host:12:34 [0] NCCL INFO Channel 00/0 : 0[1b000] -> 1[43000] via P2P\n" * 3000
    last = "     1048576   262144   float   none   -1    12.00   87.38   43.69      0    12.00   87.38   43.69      0\n"
    log.write_text(HEAD + noise * 12 + last)
    (run,) = parse_upload(log, "debug.log", Limits(max_bytes=2**20)).runs
    assert run.value("bus_bandwidth_bytes_per_s") == pytest.approx(43.69e9)
