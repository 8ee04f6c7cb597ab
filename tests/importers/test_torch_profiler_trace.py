"""PyTorch traces: real files with the values read off them, and everything that a trace may be broken by."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.importers.base import UnreadableUpload
from app.importers.reading import DEFAULT_LIMITS, Content
from app.importers.registry import detect, parse_upload
from app.importers.torch_profiler_trace import TorchProfilerTrace

from .fixture_files import checks, data, upload, values

US = 1e-6

# Figures that were computed from the files when they were collected: microseconds and counts. The collected busy time
# comes from sums of binary fractions and is exact to a few nanoseconds.
KNOWN: dict[str, dict[str, Any]] = {
    "1": {"events": 220, "kernels": 14, "kernel_time_s": 110.881, "kernel_busy_s": 110.881, "top": ("Cijk_Alik", 17.6)},
    "own-decode-2layer-b4": {
        "events": 1698,
        "kernels": 192,
        "kernel_time_s": 1327.202,
        "busy_s": 1326.274,
        "span_s": 10332.312,
        "communication_kernels": 0,
        "top": ("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT", 344.864),
    },
    "own-ddp2-rank0": {
        "events": 4687,
        "kernels": 396,
        "kernel_time_s": 10011.924,
        "busy_s": 9416.153,
        "span_s": 22720.503,
        "communication_kernels": 6,
        "communication_kernel_time_s": 4069.765,
        "top": ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(", 4069.765),
    },
}


@pytest.mark.parametrize("file", KNOWN)
def test_real_traces_have_their_figures(file: str) -> None:
    found = upload(f"torch-profiler-trace/{file}.json.gz")
    (run,) = found.runs
    assert found.format == "torch-profiler-trace"
    assert run.timeline is not None
    for name, value in KNOWN[file].items():
        if name == "top":
            top = next(row for row in run.kernels if not row.get("is_copy"))
            assert top["name"].startswith(value[0])
            assert top["time_s"] == pytest.approx(value[1] * US, rel=1e-12)
        elif name.endswith("_s"):
            assert run.timeline[name] == pytest.approx(value * US, rel=3e-7), name
        else:
            assert run.timeline[name] == value, name
    kernels = [row for row in run.kernels if not row.get("is_copy")]
    assert sum(row["count"] for row in kernels) == run.timeline["kernels"]
    assert sum(row["time_s"] for row in kernels) == pytest.approx(values(run)["kernel_time_s"])
    assert sum(row["share"] for row in run.kernels) == pytest.approx(1)
    assert sum(row["on_path_s"] for row in run.kernels) == pytest.approx(run.timeline["busy_s"])
    assert sum(row["gap_before_s"] for row in run.kernels) == pytest.approx(run.timeline["idle_s"])
    assert sum(family["time_s"] for family in run.timeline["families"]) == pytest.approx(
        sum(row["time_s"] for row in run.kernels)
    )


def test_exposed_communication_of_two_ranks_by_hand() -> None:
    """Each all-reduce less the kernels beside it, added by hand in decimals: 3462.374 us of 4069.765."""
    (run,) = upload("torch-profiler-trace/own-ddp2-rank0.json.gz").runs
    assert run.timeline is not None
    exposed = [49.248, 143.969 - 71.905, 206.912, 306.880 - 124.192, 1052.706 - 411.294, 2310.050]
    assert run.timeline["exposed_s"] == pytest.approx(sum(exposed) * US, rel=1e-9)
    assert run.timeline["communication_s"] == pytest.approx(4069.765 * US)
    assert run.evidence["exposed_comm_share"] == pytest.approx(3462.374 / 22720.503)
    assert (run.timeline["rank"], run.timeline["world_size"]) == (0, 2)
    assert run.hardware_hint == "NVIDIA H200"
    assert run.workload.mode == "train"
    assert run.software["nccl"] == "2.28.9"


def test_shapes_give_flop_and_least_bytes_of_products_and_attention() -> None:
    (run,) = upload("torch-profiler-trace/own-decode-2layer-b4.json.gz").runs
    rows = {row["name"]: row for row in run.kernels}
    head = rows["nvjet_sm90_tst_256x8_64x6_2x1_v_bz_TNT"]  # [4, 4096] x [4096, 32000] in bf16, three times
    assert head["flop"] == 3 * 2 * 4 * 4096 * 32000
    assert head["hbm_bytes"] == 3 * 2 * (4 * 4096 + 4096 * 32000 + 4 * 32000)
    assert (head["work_from"], head["precision"]) == ("shapes", "bf16")
    attention = next(row for row in run.kernels if "flash_fwd_splitkv_kernel" in row["name"])
    # 4 sequences, one query of 32 heads over 1024 keys of 8 heads, 128 wide; two layers, three steps
    assert attention["flop"] == 6 * 4 * 4 * 32 * 1024 * 128
    assert attention["hbm_bytes"] == 6 * 2 * 4 * 128 * (2 * 32 + 2 * 1024 * 8)
    assert all("flop" not in row for row in run.kernels if row["family"] == "elementwise")
    assert run.workload.extra["launch_mode"] == "eager"
    assert [step["name"] for step in (run.timeline or {})["steps"]] == ["decode_step"] * 3
    assert "step_time_s.mean" not in values(run)  # only the profiler's own steps are step times


def test_a_last_step_without_a_launch_is_none() -> None:
    (run,) = upload("torch-profiler-trace/1.json.gz").runs
    assert values(run)["step_time_s.mean"] == pytest.approx(9288.291 * US)
    assert "one-step" in checks(run)
    assert run.hardware_hint == "AMD Radeon Graphics"


# --- made traces ---------------------------------------------------------------------------------------------------


def kernel(ts: float, dur: float, name: str = "gemm_kernel", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": {"device": 0, "stream": 7, **args}}


def trace(*events: Any, **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **more, "traceEvents": list(events)}).encode()


def test_steps_drop_the_first_and_split_what_follows() -> None:
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": 100 * i, "dur": length}
        for i, length in enumerate((100, 100, 90))
    ]
    events = [kernel(100 * i + 10, 40 if i else 80) for i in range(3)]
    (run,) = parse_upload(trace(*steps, *events)).runs
    assert run.samples["step_time_s"] == pytest.approx((100 * US, 90 * US))
    assert run.timeline is not None
    spans = [step["span_s"] for step in run.timeline["steps"]]
    assert spans == pytest.approx([100 * US, 100 * US, 90 * US])
    assert run.evidence["gemm_share"] == pytest.approx((40 + 40) / 190)
    assert "launch_share" not in run.evidence  # nothing tells when the kernels were launched
    assert "no-launch-times" in checks(run)


def test_all_to_all_is_known_by_the_collective_and_moe_by_its_names() -> None:
    send = {"Collective name": "all_to_allv", "stream": 9}
    events = [
        kernel(0, 10, "ncclDevKernel_SendRecv(X)", **send),
        kernel(10, 5, "fused_moe_kernel"),
        kernel(15, 5, "void vllm::moe::topkGatingSoftmax<4>(float const*)"),
        kernel(20, 10, "void deep_ep::internode_ll::combine<true>(void*)"),
    ]
    evidence = parse_upload(trace(*events)).runs[0].evidence
    assert evidence["a2a_share"] == pytest.approx(20 / 30)
    assert evidence["exposed_comm_share"] == pytest.approx(20 / 30)
    assert evidence["expert_gemm_share"] == pytest.approx(5 / 30)
    assert evidence["permute_share"] == pytest.approx(5 / 30)


def test_old_traces_with_capital_categories_and_text_numbers() -> None:
    event = {
        "ph": "X",
        "cat": "Kernel",
        "name": "k",
        "ts": "10",
        "dur": "5",
        "args": {"stream": "7", "correlation": "3"},
    }
    call = {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1, "args": {"correlation": 3}}
    (run,) = parse_upload(trace(call, event)).runs
    assert values(run)["kernel_time_s"] == pytest.approx(5 * US)
    assert run.kernels[0]["launch_delay_s"] == pytest.approx(8 * US)
    bare = parse_upload(json.dumps([event, event]).encode())
    assert values(bare.runs[0])["kernel_time_s"] == pytest.approx(10 * US)


def test_a_trace_without_a_device_says_so() -> None:
    (run,) = parse_upload(trace({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2})).runs
    assert not run.kernels
    assert run.timeline is None
    assert "no-device-events" in checks(run)
    assert not values(run)
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 2, "name": "x"}]}')
    assert caught.value.reason == "not-supported"


@pytest.mark.parametrize("share", [0.8, 0.97])
def test_a_cut_off_trace_gives_what_it_holds_whole(share: float) -> None:
    whole = gzip.decompress(data("torch-profiler-trace/own-decode-2layer-b4.json.gz"))
    cut = parse_upload(whole[: int(len(whole) * share)])
    (run,) = cut.runs
    assert "cut-off" in checks(run)
    assert run.timeline is not None
    assert 0 < run.timeline["kernels"] <= 192
    packed = gzip.compress(whole)
    (run,) = parse_upload(packed[: int(len(packed) * share)]).runs
    assert "cut-off" in checks(run)


@pytest.mark.parametrize(
    "event",
    [
        '"args": {"memory bandwidth (GB/s)": nan}',
        '"args": {"x": -inf, "stream": 7}',
        '"args": {"x": Infinity}, "y": NaN',
        '"args": {"path": "C:\\data\\new"}',
        '"args": {"text": "a\tb\x01"}',
    ],
)
def test_what_is_no_json_is_mended(event: str) -> None:
    events = ",\n".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k{i}", "ts": {i * 10}, "dur": 4, {event}}}' for i in range(5)
    )
    (run,) = parse_upload(f'{{"schemaVersion": 1, "traceEvents": [{events}]}}'.encode()).runs
    assert values(run)["kernel_time_s"] == pytest.approx(20 * US)
    assert "damaged" in checks(run)


def test_damage_in_the_middle_keeps_what_stands_before() -> None:
    good = json.dumps(kernel(1, 2))
    (run,) = parse_upload(f'{{"traceEvents": [{good}, {good}, {{"ph": ]]], {good}]}}'.encode()).runs
    assert values(run)["kernel_time_s"] == pytest.approx(4 * US)
    assert "damaged" in checks(run)
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kern')
    assert caught.value.reason == "cut-off"


def test_hostile_events_cost_only_themselves() -> None:
    events = [
        kernel(1, 2),
        kernel(1e300, 2),
        kernel(5, -3),
        {"ph": "X", "cat": "kernel", "ts": None, "dur": {}},
        {"ph": "X", "cat": "kernel", "name": {"a": 1}, "ts": 10, "dur": 1, "args": []},
        {"ph": "X", "cat": ["kernel"], "ts": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9, "args": {"Input Dims": [[-1, 2], "x"]}},
        {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Total Allocated": "NaN"}},
        kernel(20, 2, "<script>alert(1)</script>\u202e", stream=-5, correlation=10**30),
        kernel(30, 2, "x" * 5000),
        kernel(40, 2, "x" * 4999 + "y"),
        7,
        "text",
        None,
        [1],
    ]
    (run,) = parse_upload(trace(*events, deviceProperties=[{"name": 3}, 5], distributedInfo=[1])).runs
    assert {"unusable-events"} <= checks(run)
    assert run.timeline is not None
    assert run.timeline["kernels"] == 5
    assert all(len(row["name"]) <= 1000 for row in run.kernels)
    assert len(run.kernels) == 5  # names that differ only far behind stay apart
    assert all("\u202e" not in row["name"] for row in run.kernels)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_byte_order_marks_are_no_damage(encoding: str) -> None:
    """Editors and shells of Windows put them before a trace; a big-endian mark needs writing by hand."""
    text = gzip.decompress(data("torch-profiler-trace/1.json.gz")).decode()
    told = ("\ufeff" if encoding == "utf-16-be" else "") + text
    found, plain = parse_upload(told.encode(encoding)), parse_upload(text.encode())
    assert found.runs[0].metrics == plain.runs[0].metrics
    assert found.runs[0].kernels == plain.runs[0].kernels
    assert "damaged" not in {finding.check for finding in (*found.findings, *found.runs[0].findings)}


def test_recognised_by_the_beginning_alone() -> None:
    assert detect(Content(b'\n {"schemaVersion": 1, "deviceProperties": [')).id == "torch-profiler-trace"
    assert TorchProfilerTrace().sniff(Content(b'{"a": 1}')).confidence == 0


def test_thousands_of_events_are_not_thousands_of_results() -> None:
    """The beginning of a long trace, an event a line, is no list of results to the formats that are."""
    events = ",\n".join(json.dumps(kernel(i * 10, 5, "k" * 300)) for i in range(3000))
    long = f'{{"schemaVersion": 1, "traceEvents": [\n{events}]}}'.encode()
    assert len(long) > 2**20
    found = parse_upload(long, "long.json", replace(DEFAULT_LIMITS, max_runs=1000))
    assert found.runs[0].kernels[0]["count"] == 3000


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """30 MB of stacks and operations around few kernels: a fraction of that is held."""
    stack = {"ph": "X", "cat": "python_function", "name": "nn.Module: Block_0", "tid": 1, "args": {"Python id": 3}}
    file = tmp_path / "large.json"
    with file.open("w") as out:
        out.write('{"schemaVersion": 1, "traceEvents": [')
        for i in range(4000):
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": i}}
            events = [{**stack, "ts": i * 100 + j, "dur": 3, "more": "x" * 2500} for j in range(3)]
            events += [{**call, "ts": i * 100, "dur": 1}, kernel(i * 100 + 5, 50.5, f"k{i % 40}", correlation=i)]
            out.write(",\n".join(json.dumps(event) for event in events) + ("," if i < 3999 else "]}"))
    assert file.stat().st_size > 30e6
    told: list[int] = []
    tracemalloc.start()
    try:
        (run,) = parse_upload(file, "large.json", progress=lambda done, _: told.append(done)).runs
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values(run)["kernel_time_s"] == pytest.approx(4000 * 50.5 * US)
    assert len(run.kernels) == 40
    assert peak < 12e6
    assert told[-1] == file.stat().st_size
