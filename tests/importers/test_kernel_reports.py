"""Nsight Compute, Nsight Systems and ROCm reports: real files with their figures, and how tools print numbers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.importers.base import UnreadableUpload
from app.importers.printed_tables import comma_is_decimal, number, unit_factor
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

US, NS = 1e-6, 1e-9

OWN = {  # microseconds of the eight kernels, in the order of the file, on each of the pages
    "own-kernels-details": (177.09, 58.88, 44.9, 106.91, 40.03, 161.7, 61.15, 23.58),
    "own-kernels-raw": (177.088, 58.88, 44.896, 106.912, 40.032, 161.696, 61.152, 23.584),
    "own-roofline-metrics-stdout": (176.896, 64.128, 44.576, 106.464, 40.352, 160.576, 60.064, 22.464),
}

OWN_CHOSEN = "own-roofline-metrics-stdout"


def by_line(file: str) -> list[Mapping[str, Any]]:
    """The rows of a report in the order of the file."""
    return sorted(upload(f"ncu-csv/{file}.csv.gz").runs[0].kernels, key=lambda row: int(row["line"]))


@pytest.mark.parametrize("file", OWN)
def test_ncu_pages_have_their_durations(file: str) -> None:
    found = upload(f"ncu-csv/{file}.csv.gz")
    (run,) = found.runs
    assert found.format == "ncu-csv"
    rows = by_line(file)
    assert [row["time_s"] for row in rows] == pytest.approx([us * US for us in OWN[file]], rel=1e-12)
    assert values(run)["kernel_time_s"] == pytest.approx(sum(OWN[file]) * US)
    assert [row["family"] for row in rows] == [
        "gemm",
        "gemm",
        "elementwise",
        "softmax",
        "norm",
        "attention",
        "embedding",
        "elementwise",
    ]
    assert rows[0]["registers"] == 168
    assert rows[0]["occupancy"] == pytest.approx(0.1464, abs=5e-5)
    assert run.workload.mode == "kernel"
    assert "profiled-alone" in checks(run)
    assert "127.0.0.1" not in repr(run)


def test_ncu_counters_become_bytes_and_flop() -> None:
    rows = by_line("own-roofline-metrics-stdout")
    gemm, skinny, add = rows[0], rows[1], rows[2]
    assert gemm["flop"] == 2 * 4096**3
    assert gemm["hbm_bytes"] == 149_078_528 + 28_157_696
    assert gemm["l2_bytes"] == 1_033_161_600
    assert (gemm["precision"], gemm["work_from"]) == ("bf16", "counters")
    assert skinny["flop"] == 1_879_048_192  # executed: the tile has eight columns for the one that is asked for
    assert "flop" not in add  # only fused multiply-adds were counted, and the kernel adds
    raw = by_line("own-kernels-raw")
    assert raw[2]["flop"] == pytest.approx(2 * 8192 * 4096, rel=1e-6)
    assert "flop" not in raw[0]  # the raw page has no count of what the tensor cores did
    assert raw[0]["l2_bytes"] == 31_674_120 * 32
    assert upload("ncu-csv/own-kernels-raw.csv.gz").runs[0].hardware_hint == "NVIDIA H200"


def test_ncu_reports_tell_their_own_memory_roofs() -> None:
    """One device, three pages: each tells the 4.8 TB/s of its memory, by another of its counters."""
    raw, details, chosen = (by_line(file)[0] for file in ("own-kernels-raw", "own-kernels-details", OWN_CHOSEN))
    assert raw["dram_peak_bytes_per_s"] == pytest.approx(1504 * 3.198711e9)
    assert raw["dram_peak_from"] == "peak"
    assert [row["dram_peak_from"] for row in (details, chosen)] == ["throughput", "throughput"]
    for row in (details, chosen):
        assert row["dram_peak_bytes_per_s"] == pytest.approx(raw["dram_peak_bytes_per_s"], rel=2e-3)
    assert raw["l2_peak_bytes_per_s"] == pytest.approx(31_674_120 * 32 / 177.088e-6 / 0.37222479)
    assert raw["l2_peak_from"] == "share"
    assert "l2_peak_from" not in chosen  # its counters have the bytes and no share of a peak
    assert unit_factor("Kbyte/cycle") == (1e3, "B/cycle")


def test_ncu_of_2020_has_other_words() -> None:
    columns = ("0", "1", "app", "h", "cuda_step", "2020-May-29 12:02:46", "1", "7", "GPU Speed Of Light")
    told = (("Memory Frequency", "cycle/second", "768683274.02"), ("SOL FB", "%", "46.47"), ("SM [%]", "%", "22.48"))
    names = "ID,Process ID,Process Name,Host Name,Kernel Name,Kernel Time,Context,Stream,Section Name"
    rows = [(*names.split(","), "Metric Name", "Metric Unit", "Metric Value")]
    rows += [(*columns, *metric) for metric in (*told, ("SOL L2", "%", "13.61"), ("Duration", "nsecond", "8992"))]
    (run,) = parse_upload("\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows).encode()).runs
    assert run.kernels[0]["time_s"] == pytest.approx(8992 * NS)
    ratios = ("dram_throughput", "compute_throughput", "l2_throughput", "dram_frequency_hz")
    assert [run.kernels[0][key] for key in ratios] == pytest.approx([0.4647, 0.2248, 0.1361, 768_683_274.02])


def test_ncu_in_a_program_s_output() -> None:
    (run,) = upload("ncu-csv/1.csv").runs
    (row,) = run.kernels
    assert row["time_s"] == pytest.approx(406_240 * NS)
    assert row["dram_throughput"] == pytest.approx(0.0074)
    assert row["compute_throughput"] == pytest.approx(0.2359)
    assert row["memory_throughput"] == pytest.approx(0.2168)
    assert row["sm_frequency_hz"] == pytest.approx(1_239_496_049.13)
    assert run.workload.extra["compute_capability"] == "10.0"


NCU = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Section Name","Metric Name","Metric Unit",'
    '"Metric Value"'
)


def ncu(*rows: tuple[str, str, str]) -> bytes:
    before = '"0","1","p","h","k<1, 2>(int)","GPU Speed Of Light Throughput"'
    lines = [f'{before},"{name}","{unit}","{value}"' for name, unit, value in rows]
    return "\r\n".join(["==PROF== x", NCU, *lines, 'a line with one " in it', *lines[:1], ""]).encode()


def test_ncu_of_another_locale_and_unit() -> None:
    (run,) = parse_upload(ncu(("Duration", "ms", "1.234,5"), ("DRAM Throughput", "%", "7,25"))).runs
    assert run.kernels[0]["time_s"] == pytest.approx(1.2345)
    assert run.kernels[0]["dram_throughput"] == pytest.approx(0.0725)
    assert "decimal-comma" in checks(run)
    (run,) = parse_upload(ncu(("Duration", "us", "1,234.5"), ("DRAM Throughput", "%", "n/a"))).runs
    assert run.kernels[0]["time_s"] == pytest.approx(1234.5 * US)
    assert "dram_throughput" not in run.kernels[0]
    with pytest.raises(UnreadableUpload, match="without the duration"):
        parse_upload(ncu(("DRAM Throughput", "%", "7.25")))


NSYS_TEXT = """Generating SQLite file report.sqlite
[3/8] Executing 'nvtx_sum' stats report

 Time (%)  Total Time (ns)  Instances   Avg (ns)     Style      Range
 --------  ---------------  ---------  -----------  -------  ------------
     95.0        3,481,709          1  3,481,709.0  PushPop  Profile_Loop

[5/8] Executing 'cuda_api_sum' stats report

 Time (%)  Total Time (ns)  Num Calls    Avg (ns)    Med (ns)            Name
 --------  ---------------  ---------  ------------  --------  ----------------------
     96.9      106,912,410          3  35,637,470.0   6,584.0  cudaMalloc
      2.9        3,201,638      1,010       3,169.9   2,922.0  cudaLaunchKernel

[6/8] Executing 'cuda_gpu_kern_sum' stats report

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)           Name
 --------  ---------------  ---------  --------  --------  --------  --------  ----------------------
     90.0        1,831,281      1,010   1,813.1   1,823.0     1,791     4,705  vectorAdd(const float *, int)
     10.0          203,475          2 101,737.5 101,737.5   100,000   103,475  nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT

[7/8] Executing 'cuda_gpu_mem_time_sum' stats report

 Time (%)  Total Time (ns)  Count  Avg (ns)      Operation
 --------  ---------------  -----  --------  ------------------
    100.0            2,432      2   1,216.0  [CUDA memcpy HtoD]

[8/8] Executing 'cuda_gpu_mem_size_sum' stats report

 Total (MB)  Count  Avg (MB)      Operation
 ----------  -----  --------  ------------------
      0.008      2     0.004  [CUDA memcpy HtoD]
"""
NSYS_CSV = """Processing [report.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,1831281,1010,1813.1,1823.0,1791,4705,93.3,"vectorAdd(const float *, int)"
10.0,203475,2,101737.5,101737.5,100000,103475,100.0,nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT

Processing [report.sqlite] with [/opt/nsys/reports/cuda_api_sum.py]...
Time (%),Total Time (ns),Num Calls,Avg (ns),Name
100.0,3201638,1010,3169.9,cudaLaunchKernel
"""
NSYS_OLD = """"Time(%)","Total Time (ns)","Instances","Average","Minimum","Maximum","Name"
90.0,1831281,1010,1813.1,1791,4705,"vectorAdd(const float *, int)"
10.0,203475,2,101737.5,100000,103475,"nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT"
"""
NSYS_JSON = json.dumps(
    [
        {"Time (%)": 90.0, "Total Time (ns)": 1831281, "Instances": 1010, "Avg (ns)": 1813.1, "Name": "vectorAdd(int)"},
        {"Time (%)": 10.0, "Total Time (ns)": 203475, "Instances": 2, "Avg (ns)": 101737.5, "Name": "nvjet_x"},
    ]
)


@pytest.mark.parametrize("text", [NSYS_TEXT, NSYS_CSV, NSYS_OLD, NSYS_JSON], ids=["text", "csv", "old", "json"])
def test_nsys_reports(text: str) -> None:
    found = parse_upload(text.encode())
    (run,) = found.runs
    assert found.format == "nsys-stats"
    first = run.kernels[0]
    assert first["name"].startswith("vectorAdd")
    assert (first["count"], first["family"]) == (1010, "elementwise")
    assert first["time_s"] == pytest.approx(1_831_281 * NS)
    assert first["mean_s"] == pytest.approx(1813.1 * NS)
    assert values(run)["kernel_time_s"] == pytest.approx((1_831_281 + 203_475) * NS)
    assert next(m for m in run.metrics if m.name == "kernel_time_s").count == 1012


def test_nsys_keeps_the_host_s_side_and_copies() -> None:
    (run,) = parse_upload(NSYS_TEXT.encode()).runs
    assert run.timeline is not None
    host = run.timeline["host"]
    assert (host["launches"], host["launches_time_s"]) == (1010, pytest.approx(3_201_638 * NS))
    assert [call["name"] for call in host["calls"]] == ["cudaMalloc", "cudaLaunchKernel"]
    assert host["ranges"] == [{"name": "Profile_Loop", "count": 1, "time_s": pytest.approx(3_481_709 * NS)}]
    copy = next(row for row in run.kernels if row.get("is_copy"))
    assert (copy["family"], copy["count"]) == ("copy", 2)


def test_nsys_without_kernels_says_so() -> None:
    (run,) = parse_upload(NSYS_CSV.split("\n\n")[1].encode()).runs
    assert not run.kernels
    assert "no-kernel-report" in checks(run)


STATS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'


def test_rocprof_statistics() -> None:
    (run,) = parse_upload(f'{STATS}"elementwise_kernel",2,10560,5280,100.0\n'.encode()).runs
    assert run.kernels[0]["time_s"] == pytest.approx(10_560 * NS)
    assert run.kernels[0]["mean_s"] == pytest.approx(5280 * NS)
    host = f'{STATS}"hipMemcpyWithStream",6,276004952,46000825,96.6\n"hipLaunchKernel",1,9406206,9406206,3.3\n'
    (run,) = parse_upload(host.encode()).runs
    assert run.timeline is not None
    assert run.timeline["host"]["calls"][0]["time_s"] == pytest.approx(276_004_952 * NS)
    assert run.timeline["host"]["launches"] == 1
    assert "no-kernel-report" in checks(run)


@pytest.mark.parametrize(("file", "ns"), [("1", (16879, 14280, 45159)), ("3", (20480, 16320, 15520))])
def test_rocprof_compute_dispatches_of_both_generations(file: str, ns: tuple[int, ...]) -> None:
    found = upload(f"rocprof-compute-csv/{file}.csv")
    (run,) = found.runs
    assert found.format == "rocprof-compute-csv"
    assert run.timeline is not None
    assert tuple(run.timeline["drawing"]["length_ns"]) == ns
    (row,) = run.kernels
    assert (row["count"], row["min_s"], row["max_s"]) == (3, pytest.approx(min(ns) * NS), pytest.approx(max(ns) * NS))
    assert run.timeline["unknown_gap_s"] == pytest.approx(run.timeline["idle_s"])


def test_rocprofv3_trace_with_counters_and_two_devices() -> None:
    head = "Kind,Agent_Id,Queue_Id,Kernel_Name,Start_Timestamp,End_Timestamp"
    counters = "TCC_EA_RDREQ_sum,TCC_EA_RDREQ_32B_sum,TCC_EA_WRREQ[0],TCC_EA_WRREQ[1],TCC_EA_WRREQ_64B_sum"
    rows = [
        "KERNEL_DISPATCH,4,1,Cijk_Alik_Bljk_x,1000,3000,100,10,6,4,8",
        "KERNEL_DISPATCH,5,1,Cijk_Alik_Bljk_x,1000,2000,100,10,6,4,8",
    ]
    found = parse_upload("\n".join([f"{head},{counters}", *rows]).encode())
    assert found.format == "rocprof"
    (row,) = found.runs[0].kernels
    assert row["hbm_bytes"] == 2 * (90 * 64 + 10 * 32 + 8 * 64 + 2 * 32)
    assert len((found.runs[0].timeline or {})["devices"]) == 2


def test_rounded_timestamps_are_refused() -> None:
    rounded = data("rocprof-compute-csv/1.csv").replace(b"716479545398906,716479545415785", b"7.16E+14,7.16E+14")
    (run,) = parse_upload(rounded).runs
    assert run.kernels[0]["count"] == 2
    assert "no-duration" in checks(run)
    text = "Kernel_Name,Start_Timestamp,End_Timestamp\nk,8.1E+14,8.1E+14\n"
    with pytest.raises(UnreadableUpload, match="spreadsheet"):
        parse_upload(text.encode())


def test_system_description_is_refused_by_name() -> None:
    with pytest.raises(UnreadableUpload, match="without a measurement"):
        parse_upload(b"workload_name,command,ip_blocks\nvcopy,./vcopy,SQ\n")


def test_printed_numbers() -> None:
    assert number("1,234.5") == 1234.5
    assert number("1.234,5", decimal_comma=True) == 1234.5
    assert number("1\u202f234") == 1234
    assert [number(text) for text in ("n/a", "", "PolicySpread", "inf", "nan", "1e999")] == [None] * 6
    assert comma_is_decimal(["1.234,5", "12"])
    assert not comma_is_decimal(["1,234", "12"])
    assert not comma_is_decimal(["1,234.5", "7.25"])
    assert unit_factor("Tbyte/s") == (1e12, "B/s")
    assert unit_factor("usecond") == (1e-6, "s")
    assert unit_factor("Ghz") == (1e9, "Hz")
    assert unit_factor("register/thread") is None


def test_a_packed_report_is_the_same() -> None:
    assert parse_upload(gzip.compress(data("ncu-csv/1.csv"))) == parse_upload(data("ncu-csv/1.csv"))
