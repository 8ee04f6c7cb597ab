"""Worked cases: a run, an estimate or values from a report, and the direction that an expert would give.

`expect` are the leaves that may come first; `also` must be among the directions. Each case names where its numbers come
from. A case without `expect` holds too little to tell: the walk must ask, and must not name a direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.services.context import Context
from app.services.diagnose import DiagnosisRequest, diagnose, diagnosis_json
from app.services.runs import RunPatch, update_run
from app.services.upload_run import upload_file

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    scenario: str
    expect: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] | None = None
    upload: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    estimate: Mapping[str, Any] | None = None
    ended: bool | None = None


def decode_h200(time: float, batch: int, context: int, launch: str = "graph", **changes: Any) -> dict[str, Any]:
    return {
        "name": f"decode b{batch} c{context} {launch}",
        "hardware": "nvidia-h200-sxm",
        "model": "llama-3.1-8b",
        "workload": {
            "phase": "decode",
            "batch": batch,
            "context_len": context,
            "dtypes": {"weights": "bf16", "activations": "bf16", "kv": "bf16"},
            "parallel": {"tp": 1},
            "launch_mode": launch,
        },
        "metrics": {"tpot_s": {"p50": time}},
    } | changes


def step(phase: str, model: str = "llama-3.1-8b", hardware: str = "nvidia-h100-sxm", **workload: Any) -> dict[str, Any]:
    return {"hardware": hardware, "model": model, "workload": {"phase": phase, **workload}}


OWN = "own measurement on one H200 (catalogue: measurements, own-h200)"

CASES = (
    # ---- input and validity
    Case(
        "input-bound training",
        "profiling post: 622.37 ms a step, 43.79 ms with eight loader workers",
        "dense_train",
        ("L-data",),
        evidence={"data_wait_share": 1 - 43.79 / 622.37},
        ended=True,
    ),
    Case(
        "input starves every few steps",
        "profiling post: the median is fine, the mean is not",
        "vlm",
        ("L-data",),
        evidence={"data_wait_share": 0.21, "step_p95_over_p50": 4.1},
        ended=True,
    ),
    Case(
        "weights run in fp32 behind the configuration's back",
        "VLM one-GPU post: 310.7 ms, 101.1 ms once the weights really ran in bf16",
        "vlm",
        ("L-dtype",),
        evidence={"wrong_dtype_share": 0.85, "data_wait_share": 0.01},
        ended=True,
    ),
    Case(
        "faster than possible",
        "the H200 decode step with its time divided by eight",
        "decode",
        ("L-bound-broken",),
        run=decode_h200(0.00557966 / 8, 1, 511),
        ended=True,
    ),
    Case(
        "a record that nobody can repeat",
        "lint with errors",
        "decode",
        ("L-lint",),
        evidence={"lint_errors": 3, "mbu": 0.8},
        ended=True,
    ),
    # ---- dense training
    Case(
        "padding waste",
        "DDP length post: fixed sample counts, 39.5 % padding, 0.486 of the uniform throughput",
        "dense_train",
        ("L-pack",),
        evidence={"padding_fraction": 0.395, "data_wait_share": 0.0, "rank_token_max_over_mean": 1.3},
        also=("L-tokenbudget",),
        ended=True,
    ),
    Case(
        "padding alone is known",
        OWN + ", ddp_skew with a sorted token budget: 32 % padding",
        "dense_train",
        ("L-pack",),
        evidence={"padding_fraction": 0.321103},
    ),
    Case(
        "one rank carries the long samples",
        "DDP length post: length bucketing leaves ranks unequal",
        "dense_train",
        ("L-tokenbudget",),
        evidence={"data_wait_share": 0.0, "padding_fraction": 0.006, "rank_token_max_over_mean": 1.42},
        ended=True,
    ),
    Case(
        "graph breaks under torch.compile",
        "torch.compile post: breaks bring the launches back",
        "dense_train",
        ("L-breaks",),
        evidence={
            "data_wait_share": 0.0,
            "padding_fraction": 0,
            "rank_token_max_over_mean": 1,
            "launch_share": 0.4,
            "graph_breaks": 12,
            "recompiles_per_100_steps": 0,
        },
        ended=True,
    ),
    Case(
        "exposed gradient exchange, enough compute beside it",
        "Domino and FLUX reports: whole-tensor collectives leave communication on the path",
        "dense_train",
        ("L-chunk",),
        evidence={
            "data_wait_share": 0.0,
            "padding_fraction": 0.0,
            "rank_token_max_over_mean": 1.0,
            "launch_share": 0.02,
            "exposed_comm_share": 0.27,
            "comm_overlap_slowdown": 1.02,
            "binding": "compute",
        },
        ended=True,
    ),
    Case(
        "collectives and compute slow each other down",
        "field guide, symptom table: contention for multiprocessors and cache",
        "dense_train",
        ("L-contention",),
        evidence={"exposed_comm_share": 0.18, "comm_overlap_slowdown": 1.31},
    ),
    Case(
        "pipeline bubble",
        "Megatron-LM (arXiv 2104.04473): (p-1)/(m+p-1) with 8 stages and 16 micro-batches",
        "dense_train",
        ("L-bubble",),
        evidence={
            "data_wait_share": 0.0,
            "padding_fraction": 0.0,
            "rank_token_max_over_mean": 1.0,
            "launch_share": 0.0,
            "exposed_comm_share": 0.03,
            "bubble_share": 7 / 23,
        },
        ended=True,
    ),
    Case(
        "checkpointing although memory is free",
        "Korthikanti et al. (arXiv 2205.05198): full recomputation costs about a third of the forward FLOP again",
        "dense_train",
        ("L-lessrecompute",),
        evidence={"mfu": 0.36, "hfu": 0.47, "mem_peak_ratio": 0.55},
    ),
    Case(
        "logits fill the memory",
        "Cut Cross-Entropy (arXiv 2411.09009): Gemma 2 2B, 24 GB of loss memory",
        "dense_train",
        ("L-ce",),
        evidence={"logits_ratio": 24 / 80, "loss_share": 0.2},
    ),
    Case(
        "a healthy compute-bound job",
        "a step at 84 % of its bound whose products run at 74 % of their peak",
        "dense_train",
        ("L-codesign-dense",),
        evidence={
            "achieved_of_bound": 0.84,
            "gemm_of_peak": 0.74,
            "mfu": 0.62,
            "binding": "compute",
            "data_wait_share": 0.0,
            "padding_fraction": 0.0,
            "rank_token_max_over_mean": 1.0,
            "launch_share": 0.01,
            "exposed_comm_share": 0.02,
            "bubble_share": 0.0,
            "mem_peak_ratio": 0.8,
            "recompute_share": 0.0,
            "copy_share": 0.01,
            "loss_share": 0.04,
            "logits_ratio": 0.01,
            "pointwise_share": 0.06,
            "opt_share": 0.03,
        },
        ended=True,
    ),
    Case(
        "the same job with three numbers",
        "what a dashboard shows of it",
        "dense_train",
        ("L-codesign-dense",),
        evidence={"achieved_of_bound": 0.84, "gemm_of_peak": 0.74, "mfu": 0.62},
    ),
    # ---- decode
    Case(
        "launch-bound eager decode",
        OWN + ": 24.1 ms eager against 5.6 ms as a graph",
        "decode",
        ("L-graphs",),
        run=decode_h200(0.0241404, 1, 511, "eager"),
        ended=True,
    ),
    Case(
        "launch gaps from a profile",
        "a timeline with the device idle half of the step",
        "decode",
        ("L-graphs",),
        evidence={"mbu": 0.22, "launch_share": 0.53},
        ended=True,
    ),
    Case(
        "KV-bound long context",
        OWN + ": batch 32 at 16,384 tokens, 21.5 ms",
        "decode",
        ("L-kvbytes",),
        run=decode_h200(0.021515, 32, 16383),
        ended=True,
    ),
    Case(
        "KV-bound long context, before anybody runs it",
        "the cost table: KV is most of the bytes",
        "decode",
        ("L-kvbytes",),
        estimate=step("decode", batch=32, context_len=32768),
        ended=True,
    ),
    Case(
        "weight-bound small batch",
        "field guide: well-run decode reaches 0.6 to 0.8 of the bandwidth",
        "decode",
        ("L-weights",),
        evidence={
            "mbu": 0.79,
            "kv_byte_share": 0.01,
            "kv_pool_use": 0.05,
            "preemptions_per_min": 0,
            "batch_over_critical": 0.007,
            "latency_goal": "capacity",
        },
        ended=True,
    ),
    Case(
        "weight-bound small batch, half of the values",
        "the same with what a byte count gives",
        "decode",
        ("L-weights",),
        evidence={"mbu": 0.79, "kv_byte_share": 0.01, "batch_over_critical": 0.007},
        ended=False,
    ),
    Case(
        "weight-bound small batch, latency promised",
        "the cost table: compute is idle while the weights stream",
        "decode",
        ("L-spec",),
        estimate=step("decode", batch=1, context_len=512),
        evidence={"latency_goal": "latency"},
        ended=True,
    ),
    Case(
        "weight-bound small batch, near the threshold",
        OWN + ": 4.64 ms with fused kernels, MBU 0.68 against 0.70: both sides are named",
        "decode",
        ("L-skinny",),
        also=("L-weights", "L-spec"),
        run=decode_h200(0.00464237, 1, 511),
        ended=False,
    ),
    Case(
        "throughput wanted from a small batch",
        "critical batch of an H100 in bf16 is some 300 sequences",
        "decode",
        ("L-batch",),
        evidence={"latency_goal": "throughput", "preemptions_per_min": 0},
        estimate=step("decode", batch=4, context_len=1024),
        ended=True,
    ),
    Case(
        "preempted requests",
        "vLLM: num_preemptions rises when the KV pool is full",
        "decode",
        ("L-kvcap",),
        evidence={"mbu": 0.78, "kv_byte_share": 0.4, "kv_pool_use": 0.99, "preemptions_per_min": 12},
        ended=True,
    ),
    Case(
        "small all-reduces on the path of every token",
        "FlashInfer and TensorRT-LLM reports on one-shot all-reduce",
        "decode",
        ("L-tplat",),
        evidence={"mbu": 0.41, "launch_share": 0.02, "sampling_share": 0.03, "tp_latency_share": 0.34},
        ended=True,
    ),
    # ---- prefill
    Case(
        "TTFT is queueing, prompts share a system prompt",
        "serving counters of a chat service",
        "prefill",
        ("L-prefix",),
        evidence={"queue_share_ttft": 0.7, "prefix_repeat": 0.6, "prefix_hit": 0.05},
        ended=True,
    ),
    Case(
        "long prompts stall running requests",
        "Sarathi-Serve (arXiv 2403.02310): prefills in the batch delay every other token",
        "prefill",
        ("L-chunkprefill",),
        evidence={"queue_share_ttft": 0.1, "itl_p99_over_p50": 9.5},
        ended=True,
    ),
    Case(
        "attention dominates a 64K prompt",
        "the cost table of Llama 3.1 8B",
        "prefill",
        ("L-attn",),
        also=("L-fp8",),
        estimate=step("prefill", batch=1, seq_len=65536),
        ended=True,
    ),
    # ---- experts
    Case(
        "exposed all-to-all across nodes",
        "three-walls post: 30 % and more of a step is a question of placement",
        "moe",
        ("L-geometry",),
        evidence={"ep_spans_nodes": True, "a2a_share": 0.44},
        ended=True,
    ),
    Case(
        "exposed all-to-all across nodes, from the layout",
        "DeepSeek-V3 over 64-way expert parallelism, no overlap",
        "moe",
        ("L-geometry",),
        estimate=step(
            "train", "deepseek-v3", batch=1, seq_len=4096, parallel={"pp": 16, "ep": 64, "dp": 64, "micro_batches": 32}
        ),
        ended=True,
    ),
    Case(
        "all-to-all inside the node, memory left",
        "Megatron-Core MoE report (arXiv 2603.07685): hide it behind the other micro-batch",
        "moe",
        ("L-moe-overlap",),
        evidence={"ep_spans_nodes": False, "a2a_share": 0.18, "mem_peak_ratio": 0.7},
        ended=True,
    ),
    Case(
        "expert tail",
        "a router whose fullest rank has 2.4 times the mean, where random routing gives 1.3",
        "moe",
        ("L-balance",),
        evidence={"ep_spans_nodes": False, "a2a_share": 0.04, "load_max_over_mean": 2.4, "load_floor": 1.3},
        ended=True,
    ),
    Case(
        "expert tail, only the load is known",
        "as above, from a router's log",
        "moe",
        ("L-balance",),
        evidence={"load_max_over_mean": 2.4},
    ),
    Case(
        "sampling noise is no tail",
        "F-9.6: 8 tokens an expert on 64 experts are uneven by themselves; the small experts are the finding",
        "moe",
        ("L-groupgemm",),
        evidence={
            "ep_spans_nodes": False,
            "a2a_share": 0.02,
            "load_max_over_mean": 2.2,
            "load_floor": 2.1,
            "drop_fraction": 0.0,
            "padding_fraction": 0.02,
            "permute_share": 0.05,
            "tokens_per_touched_expert": 9.5,
            "tile_eff": 0.35,
        },
        ended=True,
    ),
    Case(
        "expert decode",
        OWN + ": Qwen3 30B A3B, batch 16, 22.9 ms as a graph",
        "moe",
        ("L-moe-decode",),
        run=decode_h200(0.0228834, 16, 4095, model="qwen3-30b-a3b"),
        evidence={"load_max_over_mean": 1.0, "drop_fraction": 0.0, "padding_fraction": 0.0, "permute_share": 0.04},
        ended=True,
    ),
    # ---- pictures, diffusion, state space
    Case(
        "visual tokens are most of the sequence",
        "Qwen2-VL: a 1280 x 960 picture makes 1,564 tokens beside a short prompt",
        "vlm",
        ("L-vtokens",),
        evidence={
            "data_wait_share": 0.0,
            "preprocess_share": 0.02,
            "padding_fraction": 0.05,
            "visual_token_share": 0.83,
        },
        ended=True,
    ),
    Case(
        "decoding pictures on the host",
        "VLM one-GPU post: the loader sets the pace",
        "vlm",
        ("L-prep",),
        evidence={"data_wait_share": 0.03, "preprocess_share": 0.3},
        ended=True,
    ),
    Case(
        "eager diffusion sampling",
        OWN + ": DiT XL/2, 20 steps, 181.9 ms eager against 57.6 ms as a graph",
        "diffusion",
        ("L-graphs",),
        evidence={"denoise_share": 0.97, "launch_share": 1 - 57.587 / 181.861},
        ended=True,
    ),
    Case(
        "fifty steps, nothing cached",
        "DeepCache README: 17.52 s, 6.71 s with a cache",
        "diffusion",
        ("L-difcache",),
        evidence={
            "denoise_share": 0.95,
            "launch_share": 0.02,
            "pointwise_share": 0.08,
            "gemm_of_peak": 0.7,
            "devices": 1,
            "cfg_passes": 2,
            "steps": 50,
            "cache_hit": 0,
            "quality_recorded": True,
        },
        ended=True,
    ),
    Case(
        "the same, and nobody looks at the pictures",
        "reporting checklist: quality before reducing work",
        "diffusion",
        ("L-quality-first",),
        evidence={
            "denoise_share": 0.95,
            "launch_share": 0.02,
            "pointwise_share": 0.08,
            "gemm_of_peak": 0.7,
            "devices": 1,
            "cfg_passes": 2,
            "steps": 50,
            "cache_hit": 0,
            "quality_recorded": False,
        },
        ended=True,
    ),
    Case(
        "a scan written in framework operators",
        "Mamba (arXiv 2312.00752): the state must not leave the chip",
        "ssm",
        ("L-scanfuse",),
        evidence={"data_wait_share": 0.0, "scan_share": 0.7, "launch_share": 0.5},
        ended=True,
    ),
    # ---- one or two values under any of the names
    Case("launch share alone", "a timeline", "decode", ("L-graphs",), evidence={"launch_share": 0.55}, ended=True),
    Case(
        "bandwidth busy, matrix units idle",
        "symptom table",
        "dense_train",
        ("L-fuse",),
        evidence={"mbu": 0.8, "mfu": 0.2},
    ),
    Case("a bad mean", "symptom table", "dense_train", ("L-data",), evidence={"step_p95_over_p50": 2.5}),
    Case(
        "all exchange is exposed",
        "a trace",
        "moe",
        ("L-geometry",),
        evidence={"exposed_comm_share": 0.4, "ep_spans_nodes": True},
        ended=True,
    ),
    Case(
        "exposed sums of a dense decode",
        "a trace",
        "decode",
        ("L-tplat",),
        evidence={"mbu": 0.4, "launch_share": 0.01, "sampling_share": 0.02, "exposed_comm_share": 0.3},
        ended=True,
    ),
    Case(
        "the pool is full",
        "vLLM counters",
        "decode",
        ("L-kvcap",),
        evidence={"kv_pool_use": 0.98, "preemptions_per_min": 4},
    ),
    Case(
        "states fill the device",
        "a memory snapshot",
        "dense_train",
        ("L-shard",),
        evidence={"mem_peak_ratio": 0.97, "state_ratio": 0.7},
    ),
    Case("fragmentation", "allocator statistics", "dense_train", ("L-alloc",), evidence={"mem_frag": 0.25}),
    Case("a heavy VAE", "a breakdown of one picture", "diffusion", ("L-vae",), evidence={"vae_share": 0.35}),
    Case("a scan bound by HBM", "a profile", "ssm", ("L-scanfuse",), evidence={"scan_share": 0.5, "binding": "hbm"}),
    Case(
        "a launch-bound trace",
        "tests/fixtures/uploads/torch-profiler-trace",
        "decode",
        ("L-graphs",),
        run={
            "name": "t",
            "metrics": {"duration_s": 1.0},
            "evidence": {"gpu_busy_share": 0.41, "gpu_idle_share": 0.59, "launch_share": 0.55},
        },
        ended=True,
    ),
    # ---- too little to tell
    Case("nothing is known", "an empty request", "dense_train", ended=False),
    Case(
        "only a loss and a step time",
        "a training log without a model",
        "dense_train",
        run={"name": "log", "workload": {"phase": "train"}, "metrics": {"step_time_s": {"mean": 1.2}, "loss": 2.1}},
        ended=False,
    ),
    Case(
        "a serving benchmark without a device",
        "tests/fixtures/uploads/vllm-bench-serve/2.json",
        "decode",
        upload="vllm-bench-serve/2.json",
        ended=False,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_direction_that_an_expert_would_give(context: Context, case: Case) -> None:
    body: dict[str, Any] = {"scenario": case.scenario, "evidence": dict(case.evidence), "answers": dict(case.answers)}
    if case.run is not None:
        data = json.dumps({"bytebound": 1, "runs": [case.run]}).encode()
        body["run"] = upload_file(context, data, "run.json").runs[0].id
    if case.upload:
        file = UPLOADS / case.upload
        body["run"] = upload_file(context, file.read_bytes(), file.name).runs[0].id
        if case.links:
            update_run(context, body["run"], RunPatch.model_validate(dict(case.links)))
    if case.estimate is not None:
        body["estimate"] = case.estimate
    found = diagnosis_json(context, diagnose(context, DiagnosisRequest.model_validate(body)))
    leaves = [item["leaf"] for item in found["directions"]]
    if not case.expect:
        assert found["next"] is not None
        assert leaves == []
        assert case.ended is False
        return
    assert leaves[0] in case.expect, (leaves, found["headline"])
    assert set(case.also) <= set(leaves), leaves
    if case.ended is not None:
        assert (found["next"] is None) == case.ended, found["headline"]
    for step_ in found["path"]:
        assert step_["evidence"] or step_["decided_by"] != "data"
        for check in step_["evidence"]:
            assert check["value"] is None or check["source"]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 25
    assert len({case.name for case in CASES}) == len(CASES)
