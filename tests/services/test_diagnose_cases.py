"""Worked cases: a run, an estimate or values from a report, and the direction that an expert would give.

`expect` is the leaf that must come first; `also` must be among the directions. Each case names where its numbers come
from. A case without `expect` holds too little to tell: the walk must ask, and must not name a direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from app.services.context import Context
from app.services.diagnose import DiagnosisRequest, diagnose
from app.services.diagnose_json import diagnosis_json
from app.services.upload_run import upload_file

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    scenario: str = ""
    expect: str = ""
    also: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] | None = None
    upload: str = ""
    estimate: Mapping[str, Any] | None = None
    ended: bool | None = None

    def walks(self, scenario: str, expect: str = "", *also: str, ended: bool | None = None) -> Case:
        return replace(self, scenario=scenario, expect=expect, also=also, ended=ended)

    def of(
        self, *, run: Mapping[str, Any] | None = None, upload: str = "", estimate: Mapping[str, Any] | None = None
    ) -> Case:
        return replace(self, run=run, upload=upload, estimate=estimate)

    def given(self, **evidence: Any) -> Case:
        return replace(self, evidence=evidence)


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

FED: Mapping[str, Any] = {"data_wait_share": 0.0, "padding_fraction": 0.0, "rank_token_max_over_mean": 1.0}
"""Training whose input is in order."""

FIFTY_STEPS: Mapping[str, Any] = {
    "denoise_share": 0.95,
    "launch_share": 0.02,
    "pointwise_share": 0.08,
    "gemm_of_peak": 0.7,
    "devices": 1,
    "cfg_passes": 2,
    "steps": 50,
    "cache_hit": 0,
}
"""Sampling of a picture with nothing left out."""

CASES = (
    # ---- input and validity
    Case("input-bound training", "profiling post: 622.37 ms a step, 43.79 ms with eight loader workers")
    .walks("dense_train", "L-data", ended=True)
    .given(data_wait_share=1 - 43.79 / 622.37),
    Case("input starves every few steps", "profiling post: the median is fine, the mean is not")
    .walks("vlm", "L-data", ended=True)
    .given(data_wait_share=0.21, step_p95_over_p50=4.1),
    Case(
        "weights run in fp32 behind the configuration's back",
        "VLM one-GPU post: 310.7 ms, 101.1 ms once the weights really ran in bf16",
    )
    .walks("vlm", "L-dtype", ended=True)
    .given(wrong_dtype_share=0.85, data_wait_share=0.01),
    Case("faster than possible", "the H200 decode step with its time divided by eight")
    .walks("decode", "L-bound-broken", ended=True)
    .of(run=decode_h200(0.00557966 / 8, 1, 511)),
    Case("a record that nobody can repeat", "lint with errors")
    .walks("decode", "L-lint", ended=True)
    .given(lint_errors=3, mbu=0.8),
    # ---- dense training
    Case("padding waste", "DDP length post: fixed sample counts, 39.5 % padding, 0.486 of the uniform throughput")
    .walks("dense_train", "L-pack", "L-tokenbudget", ended=True)
    .given(padding_fraction=0.395, data_wait_share=0.0, rank_token_max_over_mean=1.3),
    Case("padding alone is known", OWN + ", ddp_skew with a sorted token budget: 32 % padding")
    .walks("dense_train", "L-pack")
    .given(padding_fraction=0.321103),
    Case("one rank carries the long samples", "DDP length post: length bucketing leaves ranks unequal")
    .walks("dense_train", "L-tokenbudget", ended=True)
    .given(data_wait_share=0.0, padding_fraction=0.006, rank_token_max_over_mean=1.42),
    Case("graph breaks under torch.compile", "torch.compile post: breaks bring the launches back")
    .walks("dense_train", "L-breaks", ended=True)
    .given(
        data_wait_share=0.0,
        padding_fraction=0,
        rank_token_max_over_mean=1,
        launch_share=0.4,
        graph_breaks=12,
        recompiles_per_100_steps=0,
    ),
    Case(
        "exposed gradient exchange, enough compute beside it",
        "Domino and FLUX reports: whole-tensor collectives leave communication on the path",
    )
    .walks("dense_train", "L-chunk", ended=True)
    .given(**FED, launch_share=0.02, exposed_comm_share=0.27, comm_overlap_slowdown=1.02, binding="compute"),
    Case(
        "collectives and compute slow each other down",
        "field guide, symptom table: contention for multiprocessors and cache",
    )
    .walks("dense_train", "L-contention")
    .given(exposed_comm_share=0.18, comm_overlap_slowdown=1.31),
    Case("pipeline bubble", "Megatron-LM (arXiv 2104.04473): (p-1)/(m+p-1) with 8 stages and 16 micro-batches")
    .walks("dense_train", "L-bubble", ended=True)
    .given(**FED, launch_share=0.0, exposed_comm_share=0.03, bubble_share=7 / 23),
    Case(
        "checkpointing although memory is free",
        "Korthikanti et al. (arXiv 2205.05198): full recomputation costs about a third of the forward FLOP again",
    )
    .walks("dense_train", "L-lessrecompute")
    .given(mfu=0.36, hfu=0.47, mem_peak_ratio=0.55),
    Case("logits fill the memory", "Cut Cross-Entropy (arXiv 2411.09009): Gemma 2 2B, 24 GB of loss memory")
    .walks("dense_train", "L-ce")
    .given(logits_ratio=24 / 80, loss_share=0.2),
    Case("a healthy compute-bound job", "a step at 84 % of its bound whose products run at 74 % of their peak")
    .walks("dense_train", "L-codesign-dense", ended=True)
    .given(
        **FED,
        achieved_of_bound=0.84,
        gemm_of_peak=0.74,
        mfu=0.62,
        binding="compute",
        launch_share=0.01,
        exposed_comm_share=0.02,
        bubble_share=0.0,
        mem_peak_ratio=0.8,
        recompute_share=0.0,
        copy_share=0.01,
        loss_share=0.04,
        logits_ratio=0.01,
        pointwise_share=0.06,
        opt_share=0.03,
    ),
    Case("the same job with three numbers", "what a dashboard shows of it")
    .walks("dense_train", "L-codesign-dense")
    .given(achieved_of_bound=0.84, gemm_of_peak=0.74, mfu=0.62),
    # ---- decode
    Case("launch-bound eager decode", OWN + ": 24.1 ms eager against 5.6 ms as a graph")
    .walks("decode", "L-graphs", ended=True)
    .of(run=decode_h200(0.0241404, 1, 511, "eager")),
    Case("launch gaps from a profile", "a timeline with the device idle half of the step")
    .walks("decode", "L-graphs", ended=True)
    .given(mbu=0.22, launch_share=0.53),
    Case("KV-bound long context", OWN + ": batch 32 at 16,384 tokens, 21.5 ms")
    .walks("decode", "L-kvbytes", ended=True)
    .of(run=decode_h200(0.021515, 32, 16383)),
    Case("KV-bound long context, before anybody runs it", "the cost table: KV is most of the bytes")
    .walks("decode", "L-kvbytes", ended=True)
    .of(estimate=step("decode", batch=32, context_len=32768)),
    Case("weight-bound small batch", "field guide: well-run decode reaches 0.6 to 0.8 of the bandwidth")
    .walks("decode", "L-weights", ended=True)
    .given(
        mbu=0.79,
        kv_byte_share=0.01,
        kv_pool_use=0.05,
        preemptions_per_min=0,
        batch_over_critical=0.007,
        latency_goal="capacity",
    ),
    Case("weight-bound small batch, half of the values", "the same with what a byte count gives")
    .walks("decode", "L-weights", ended=False)
    .given(mbu=0.79, kv_byte_share=0.01, batch_over_critical=0.007),
    Case("weight-bound small batch, latency promised", "the cost table: compute is idle while the weights stream")
    .walks("decode", "L-spec", ended=True)
    .of(estimate=step("decode", batch=1, context_len=512))
    .given(latency_goal="latency"),
    Case(
        "weight-bound small batch, near the threshold",
        OWN + ": 4.64 ms with fused kernels, MBU 0.68 against 0.70: both sides are named",
    )
    .walks("decode", "L-skinny", "L-weights", "L-spec", ended=False)
    .of(run=decode_h200(0.00464237, 1, 511)),
    Case("throughput wanted from a small batch", "critical batch of an H100 in bf16 is some 300 sequences")
    .walks("decode", "L-batch", ended=True)
    .of(estimate=step("decode", batch=4, context_len=1024))
    .given(latency_goal="throughput", preemptions_per_min=0),
    Case("preempted requests", "vLLM: num_preemptions rises when the KV pool is full")
    .walks("decode", "L-kvcap", ended=True)
    .given(mbu=0.78, kv_byte_share=0.4, kv_pool_use=0.99, preemptions_per_min=12),
    Case("small all-reduces on the path of every token", "FlashInfer and TensorRT-LLM reports on one-shot all-reduce")
    .walks("decode", "L-tplat", ended=True)
    .given(mbu=0.41, launch_share=0.02, sampling_share=0.03, tp_latency_share=0.34),
    # ---- prefill
    Case("TTFT is queueing, prompts share a system prompt", "serving counters of a chat service")
    .walks("prefill", "L-prefix", ended=True)
    .given(queue_share_ttft=0.7, prefix_repeat=0.6, prefix_hit=0.05),
    Case(
        "long prompts stall running requests",
        "Sarathi-Serve (arXiv 2403.02310): prefills in the batch delay every other token",
    )
    .walks("prefill", "L-chunkprefill", ended=True)
    .given(queue_share_ttft=0.1, itl_p99_over_p50=9.5),
    Case("attention dominates a 64K prompt", "the cost table of Llama 3.1 8B")
    .walks("prefill", "L-attn", "L-fp8", ended=True)
    .of(estimate=step("prefill", batch=1, seq_len=65536)),
    # ---- experts
    Case("exposed all-to-all across nodes", "three-walls post: 30 % and more of a step is a question of placement")
    .walks("moe", "L-geometry", ended=True)
    .given(ep_spans_nodes=True, a2a_share=0.44),
    Case("exposed all-to-all across nodes, from the layout", "DeepSeek-V3 over 64-way expert parallelism, no overlap")
    .walks("moe", "L-geometry", ended=True)
    .of(
        estimate=step(
            "train", "deepseek-v3", batch=1, seq_len=4096, parallel={"pp": 16, "ep": 64, "dp": 64, "micro_batches": 32}
        )
    ),
    Case(
        "all-to-all inside the node, memory left",
        "Megatron-Core MoE report (arXiv 2603.07685): hide it behind the other micro-batch",
    )
    .walks("moe", "L-moe-overlap", ended=True)
    .given(ep_spans_nodes=False, a2a_share=0.18, mem_peak_ratio=0.7),
    Case("expert tail", "a router whose fullest rank has 2.4 times the mean, where random routing gives 1.3")
    .walks("moe", "L-balance", ended=True)
    .given(ep_spans_nodes=False, a2a_share=0.04, load_max_over_mean=2.4, load_floor=1.3),
    Case("expert tail, only the load is known", "as above, from a router's log")
    .walks("moe", "L-balance")
    .given(load_max_over_mean=2.4),
    Case(
        "sampling noise is no tail",
        "F-9.6: 8 tokens an expert on 64 experts are uneven by themselves; the small experts are the finding",
    )
    .walks("moe", "L-groupgemm", ended=True)
    .given(
        ep_spans_nodes=False,
        a2a_share=0.02,
        load_max_over_mean=2.2,
        load_floor=2.1,
        drop_fraction=0.0,
        padding_fraction=0.02,
        permute_share=0.05,
        tokens_per_touched_expert=9.5,
        tile_eff=0.35,
    ),
    Case("expert decode", OWN + ": Qwen3 30B A3B, batch 16, 22.9 ms as a graph")
    .walks("moe", "L-moe-decode", ended=True)
    .of(run=decode_h200(0.0228834, 16, 4095, model="qwen3-30b-a3b"))
    .given(load_max_over_mean=1.0, drop_fraction=0.0, padding_fraction=0.0, permute_share=0.04),
    # ---- pictures, diffusion, state space
    Case(
        "visual tokens are most of the sequence",
        "Qwen2-VL: a 1280 x 960 picture makes 1,564 tokens beside a short prompt",
    )
    .walks("vlm", "L-vtokens", ended=True)
    .given(data_wait_share=0.0, preprocess_share=0.02, padding_fraction=0.05, visual_token_share=0.83),
    Case("decoding pictures on the host", "VLM one-GPU post: the loader sets the pace")
    .walks("vlm", "L-prep", ended=True)
    .given(data_wait_share=0.03, preprocess_share=0.3),
    Case("eager diffusion sampling", OWN + ": DiT XL/2, 20 steps, 181.9 ms eager against 57.6 ms as a graph")
    .walks("diffusion", "L-graphs", ended=True)
    .given(denoise_share=0.97, launch_share=1 - 57.587 / 181.861),
    Case("fifty steps, nothing cached", "DeepCache README: 17.52 s, 6.71 s with a cache")
    .walks("diffusion", "L-difcache", ended=True)
    .given(**FIFTY_STEPS, quality_recorded=True),
    Case("the same, and nobody looks at the pictures", "reporting checklist: quality before reducing work")
    .walks("diffusion", "L-quality-first", ended=True)
    .given(**FIFTY_STEPS, quality_recorded=False),
    Case("a scan written in framework operators", "Mamba (arXiv 2312.00752): the state must not leave the chip")
    .walks("ssm", "L-scanfuse", ended=True)
    .given(data_wait_share=0.0, scan_share=0.7, launch_share=0.5),
    # ---- from public reports and measurements, each under the values that a user has of it
    Case("a loader of 85 % of the epoch", "lag-llama issue 51: 84.7 of 99.7 s in train_dataloader_next")
    .walks("dense_train", "L-data", ended=True)
    .given(data_wait_share="84.9 %", mfu=0.05),
    Case("13 of 55 seconds before each step", "finetrainers issue 174: HunyuanVideo on 8 GPUs")
    .walks("vlm", "L-data", ended=True)
    .given(data_wait_share=13 / 55, visual_token_share=0.9),
    Case("510 MHz instead of 1755", "matt.sh on thermal throttling: 88 degrees, a step of 0.7 s takes 1.2 to 1.4")
    .walks("dense_train", "L-slow-device", "L-tile")
    .given(clock_ratio=510 / 1755, data_wait_share=0.01, gemm_share=0.7, gemm_of_peak=0.2, wave_eff=0.95),
    Case("one hot device of sixteen", "J. Zhang on thermal throttling and FSDP: every rank waits for it")
    .walks("dense_train", "L-slow-device", ended=True)
    .given(rank_time_max_over_mean=1.6, rank_token_max_over_mean=1.0),
    Case("ten seconds of exchange for one of compute", "a 128-GPU case study of nydux.ai: MFU 7 %")
    .walks("dense_train", "L-cutbytes")
    .given(mfu=0.07, exposed_comm_share=0.8, binding="net"),
    Case("gathers of ZeRO 3 for a thousand tokens", "F-6.4: too few tokens to hide a gather")
    .walks("dense_train", "L-cutbytes", ended=True)
    .of(estimate=step("train", "llama-3.1-70b", batch=1, seq_len=1024, parallel={"dp": 64, "zero_stage": 3})),
    Case("a healthy job, before anybody runs it", "the cost table: logits of 8 % of a memory that is half empty")
    .walks("dense_train", "L-codesign-dense", ended=True)
    .of(
        estimate=step(
            "train", batch=2, seq_len=4096, parallel={"dp": 8, "zero_stage": 3}, overlap="stream", recompute="selective"
        )
    ),
    Case("full recomputation in 180 GB", "the cost table of a B200: memory is free")
    .walks("dense_train", "L-lessrecompute", ended=True)
    .of(
        estimate=step(
            "train",
            hardware="nvidia-b200-sxm",
            batch=1,
            seq_len=4096,
            recompute="full",
            parallel={"dp": 8, "zero_stage": 3},
            overlap="stream",
        )
    ),
    Case("an MFU that no device has", "a peak with sparsity taken for the dense one, the wrong way round")
    .walks("dense_train", "L-bound-broken", ended=True)
    .given(mfu=1.3),
    Case("a draft that guesses badly", "vLLM issue 8439: n-gram drafts of 5 tokens, slower than without")
    .walks("decode", "L-drafts", ended=True)
    .given(accept_rate=0.15, mbu=0.5, batch_over_critical=0.6),
    Case("preemption at low bandwidth", "vLLM issue 18115: 8 requests, the pool fills, generation breaks down")
    .walks("decode", "L-kvcap", ended=True)
    .given(mbu=0.45, preemptions_per_min=30, kv_pool_use=0.99, launch_share=0.02, attn_share=0.3),
    Case("unpacked weights at batch 256", "AutoAWQ issue 106: half the speed of fp16, since compute binds")
    .walks("decode", "L-fp8", ended=True)
    .given(
        mbu=0.3,
        launch_share=0.02,
        sampling_share=0.03,
        tp_latency_share=0,
        attn_share=0.2,
        batch_over_critical=1.7,
    ),
    Case("long contexts on a stack that is not perfect", "attention streams at 0.68 of the bandwidth: fewer bytes")
    .walks("decode", "L-kvbytes", ended=True)
    .given(mbu=0.6, kv_byte_share=0.88, attn_share=0.78, launch_share=0.02, sampling_share=0.02, tp_latency_share=0),
    Case("long contexts, attention unmeasured", "the cache alone takes 56 % of the step")
    .walks("decode", "L-kvbytes")
    .given(mbu=0.62, kv_byte_share=0.9),
    Case("attention of few sequences", "it streams at 0.17 of the bandwidth: most of the device is empty")
    .walks("decode", "L-splitkv", ended=True)
    .given(mbu=0.2, kv_byte_share=0.6, attn_share=0.7, launch_share=0.02, sampling_share=0.02, tp_latency_share=0),
    Case("tensor parallelism over PCIe", "the alpha-beta model of eight L40S: 65 sums for 2 GB of weights each")
    .walks("decode", "L-tplat", ended=True)
    .of(estimate=step("decode", hardware="nvidia-l40s", batch=8, context_len=1024, parallel={"tp": 8})),
    Case("prefixes that nobody reuses, no queue", "vLLM counters of an agent service")
    .walks("prefill", "L-prefix", ended=True)
    .given(queue_share_ttft=0.1, prefix_repeat=0.8, prefix_hit=0.05),
    Case("a queue for memory", "vLLM counters: requests wait, the pool is full")
    .walks("prefill", "L-kvcap", ended=True)
    .given(queue_share_ttft=0.8, kv_pool_use=0.99, preemptions_per_min=20, prefix_repeat=0.02),
    Case("a processor at 100 %", "vLLM issues 4806 and 6560: scheduling and text in one Python process")
    .walks("prefill", "L-sampling", ended=True)
    .given(queue_share_ttft=0.05, sampling_share=0.4),
    # ---- one or two values under any of the names
    Case("launch share alone", "a timeline").walks("decode", "L-graphs", ended=True).given(launch_share=0.55),
    Case("bandwidth busy, matrix units idle", "symptom table").walks("dense_train", "L-fuse").given(mbu=0.8, mfu=0.2),
    Case("a bad mean", "symptom table").walks("dense_train", "L-data").given(step_p95_over_p50=2.5),
    Case("all exchange is exposed", "a trace")
    .walks("moe", "L-geometry", ended=True)
    .given(exposed_comm_share=0.4, ep_spans_nodes=True),
    Case("exposed sums of a dense decode", "a trace")
    .walks("decode", "L-tplat", ended=True)
    .given(mbu=0.4, launch_share=0.01, sampling_share=0.02, exposed_comm_share=0.3),
    Case("the pool is full", "vLLM counters").walks("decode", "L-kvcap").given(kv_pool_use=0.98, preemptions_per_min=4),
    Case("states fill the device", "a memory snapshot")
    .walks("dense_train", "L-shard")
    .given(mem_peak_ratio=0.97, state_ratio=0.7),
    Case("fragmentation", "allocator statistics").walks("dense_train", "L-alloc").given(mem_frag=0.25),
    Case("a heavy VAE", "a breakdown of one picture").walks("diffusion", "L-vae").given(vae_share=0.35),
    Case("a scan bound by HBM", "a profile").walks("ssm", "L-scanfuse").given(scan_share=0.5, binding="hbm"),
    Case("a launch-bound trace", "tests/fixtures/uploads/torch-profiler-trace")
    .walks("decode", "L-graphs", ended=True)
    .of(
        run={
            "name": "t",
            "metrics": {"duration_s": 1.0},
            "evidence": {"gpu_busy_share": 0.41, "gpu_idle_share": 0.59, "launch_share": 0.55},
        }
    ),
    # ---- part of what a question needs, or a value that only another one gives
    Case("prompts repeat, nobody counted the hits", "the log of an agent service")
    .walks("prefill", "L-prefix")
    .given(prefix_repeat=0.7),
    Case("a quarter is recomputed, memory unknown", "HFU and MFU of a log")
    .walks("dense_train", "L-lessrecompute")
    .given(recompute_share=0.25),
    Case("idle units, launches not measured", "symptom table: launches before narrow products")
    .walks("decode", "L-graphs", "L-skinny")
    .given(mbu=0.15, mfu=0.01),
    Case("memory full at moderate bandwidth", "symptom table: logits before activations and the allocator")
    .walks("dense_train", "L-ce", "L-act", "L-alloc")
    .given(mem_peak_ratio=0.97, mbu=0.3),
    Case("a heavy text encoder", "a breakdown of one picture").walks("diffusion", "L-text").given(text_share=0.35),
    Case("the rest beside denoiser and text is the VAE", "a breakdown of one picture")
    .walks("diffusion", "L-vae", ended=True)
    .given(denoise_share=0.7, text_share=0.05),
    Case("only the p99 of the experts' load", "a router's log over layers and steps")
    .walks("moe", "L-balance")
    .given(load_p99_over_mean=3.0),
    Case("weight-bound small batch, nothing promised", "the weights are 99 % of the bytes, a draft's hits are unknown")
    .walks("decode", "L-weights", "L-spec", ended=False)
    .of(run=decode_h200(0.0041, 1, 511)),
    Case("a picture before anybody draws it", "the estimate is of the denoiser alone, many steps without a cache")
    .walks("diffusion", "L-difcache", ended=True)
    .of(estimate=step("prefill", "dit-xl-2", batch=2, seq_len=256))
    .given(steps=50, cache_hit=0, quality_recorded=True),
    Case("experts in other nodes, said by the file", "the native format takes yes and no")
    .walks("moe", "L-geometry", ended=True)
    .of(
        run={
            "name": "t",
            "metrics": {"step_time_s": 1.0},
            "evidence": {"ep_spans_nodes": True, "a2a_share": 0.41},
        }
    ),
    Case("prefills in between", "a saturated vLLM service: prompts take a third of the time between tokens")
    .walks("decode", "L-chunkprefill", ended=True)
    .given(mbu=0.16, mfu=0.2, prefill_between_share=0.38),
    Case("a small model in eager frameworks", "AIPerf on an RTX 6000 Ada: 7 % of the bound, the rest unexplained")
    .walks("decode", "L-graphs", "L-skinny", ended=False)
    .of(
        run={
            "name": "one request at a time",
            "hardware": "nvidia-rtx-6000-ada",
            "model": "qwen3-0.6b",
            "workload": {"phase": "decode", "batch": 1, "context_len": 198},
            "metrics": {"tpot_s": {"p50": 0.0182}},
        }
    ),
    Case("experts of a large decode batch", OWN + ": Qwen3 30B A3B, batch 256: waves say nothing of streamed products")
    .walks("moe", ended=False)
    .of(run=decode_h200(0.0318, 256, 1024, model="qwen3-30b-a3b")),
    # ---- too little to tell
    Case("nothing is known", "an empty request").walks("dense_train", ended=False),
    Case("only a loss and a step time", "a training log without a model")
    .walks("dense_train", ended=False)
    .of(run={"name": "log", "workload": {"phase": "train"}, "metrics": {"step_time_s": {"mean": 1.2}, "loss": 2.1}}),
    Case("a serving benchmark without a device", "tests/fixtures/uploads/vllm-bench-serve/2.json")
    .walks("decode", ended=False)
    .of(upload="vllm-bench-serve/2.json"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_direction_that_an_expert_would_give(context: Context, case: Case) -> None:
    body: dict[str, Any] = {"scenario": case.scenario, "evidence": dict(case.evidence)}
    if case.run is not None:
        data = json.dumps({"bytebound": 1, "runs": [case.run]}).encode()
        body["run"] = upload_file(context, data, "run.json").runs[0].id
    if case.upload:
        file = UPLOADS / case.upload
        body["run"] = upload_file(context, file.read_bytes(), file.name).runs[0].id
    if case.estimate is not None:
        body["estimate"] = case.estimate
    found = diagnosis_json(context, diagnose(context, DiagnosisRequest.model_validate(body)))
    leaves = [item["leaf"] for item in found["directions"]]
    if not case.expect:
        assert found["next"] is not None
        assert leaves == []
        assert case.ended is False
        return
    assert leaves[0] == case.expect, (leaves, found["headline"])
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
