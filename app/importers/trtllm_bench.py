"""TensorRT-LLM's `trtllm-bench throughput --report_json` (and `latency`, where it writes a report).

Field meanings are those of NVIDIA/TensorRT-LLM, tensorrt_llm/bench/dataclasses/reporting.py. Times are milliseconds, in
percentile blocks without the suffix too. Every block is optional: older versions lack some, and without --streaming
there are no token times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.domain.run import ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields, is_secret, model_name
from app.importers.measures import degree, setting, within, word
from app.importers.precision import dtypes_of
from app.importers.reading import Content

MILLI = 1e-3

_PERCENTILES: Mapping[str, str] = {
    "average": "mean",
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "minimum": "min",
    "maximum": "max",
}
_RATES = (
    ("request_throughput_req_s", "requests_per_s", "req/s"),
    ("system_output_throughput_tok_s", "output_tokens_per_s", "tok/s"),
    ("system_total_throughput_tok_s", "total_tokens_per_s", "tok/s"),
    ("output_throughput_per_gpu_tok_s", "output_tokens_per_s_per_device", "tok/s/GPU"),
)
_SETTINGS = ("max_batch_size", "max_num_tokens", "scheduling_policy", "kv_cache_percentage")


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a report of trtllm-bench."""
    return all(isinstance(fields.get(key), dict) for key in ("engine", "world_info", "request_info", "performance"))


class TrtllmBench:
    id = "trtllm-bench"
    title = "TensorRT-LLM benchmark (trtllm-bench --report_json)"
    tried_on_real_file = False

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.97, "has engine, world_info, request_info and performance"),
            "no engine, world_info, request_info and performance",
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like, _run)


def _block(record: Fields, key: str) -> Fields:
    value = record.raw(key)
    block = Fields(value if isinstance(value, dict) else {}, record.at(key))
    # One list of metrics and of notes for all blocks.
    block.metrics, block.non_finite, block.wrong_type = record.metrics, record.non_finite, record.wrong_type
    return block


def _run(record: Fields) -> ParsedRun:
    engine, world, asked, performance, streaming = (
        _block(record, key) for key in ("engine", "world_info", "request_info", "performance", "streaming_metrics")
    )
    requests = asked.metric("requests_completed", "num_requests", raw_unit="requests")
    findings = serving.check_outcome(requests, None)
    also: dict[str, float | str] = {}
    performance.metric("duration_s", "total_latency_ms", scale=MILLI, raw_unit="ms")
    concurrency = asked.metric("concurrency", "avg_num_concurrent_requests", raw_unit="requests")
    if requests != 0:
        for key, name, unit in _RATES:
            performance.metric(name, key, raw_unit=unit)
        performance.metric("e2e_latency_s", "avg_request_latency_ms", scale=MILLI, raw_unit="ms", stat="mean")
        _percentiles(performance, "request_latency_percentiles_ms", "e2e_latency_s", MILLI, "ms", requests)
        streaming.metric("ttft_s", "avg_ttft_ms", scale=MILLI, raw_unit="ms", stat="mean", count=requests)
        streaming.metric("tpot_s", "avg_tpot_ms", scale=MILLI, raw_unit="ms", stat="mean", count=requests)
        _percentiles(streaming, "ttft_percentiles", "ttft_s", MILLI, "ms", requests)
        _percentiles(streaming, "tpot_percentiles", "tpot_s", MILLI, "ms", requests)
        user = "output_tokens_per_s_per_user"
        streaming.metric(user, "token_output_speed_tok_s", raw_unit="tok/s/user", stat="mean", count=requests)
        _percentiles(streaming, "gen_tps_percentiles", user, 1.0, "tok/s/user", requests)
        with_ttft = performance.number("output_throughput_per_user_tok_s")
        if with_ttft is not None:
            also["Output throughput of a user, TTFT counted in (tokens/s)"] = with_ttft
        accepted = within(record.raw("decoding_stats"), "acceptance_length_percentiles", "average")
        if isinstance(accepted, (int, float)) and not isinstance(accepted, bool) and 0 < accepted < 1e6:
            record.add(
                "accepted_tokens_per_step",
                float(accepted),
                at=record.at("decoding_stats", "acceptance_length_percentiles", "average"),
                raw=accepted,
                raw_unit="tokens/step",
            )
        energy = _block(record, "energy")
        energy.metric("energy_j", "total_energy_j", raw_unit="J")
        energy.metric("power_w", "average_gpu_power", raw_unit="W", stat="mean")
        findings += serving.not_observed(record)
    inputs, outputs = (asked.count(key) or None for key in ("avg_input_length", "avg_output_length"))
    # infinity means "as fast as possible": a load, not a value that is missing
    rate = None if world.raw("issue_rate") in (math.inf, "inf") else world.number("issue_rate")
    if rate is not None and 0 < rate < 1e9:
        also["Requests issued per second"] = rate

    model = engine.text("model") or engine.text("model_path", 400)
    machine = record.raw("machine")
    hardware = word(within(machine, "name"))
    parallel = {
        short: found
        for key, short in (("tp_size", "tp"), ("pp_size", "pp"), ("ep_size", "ep"))
        if (found := degree(world.raw(key))) is not None
    }
    size = degree(world.raw("world_size"))
    if size is not None:
        also["Devices"] = float(size)
    backend = engine.text("backend")
    version = engine.text("version")
    software = {"engine": "TensorRT-LLM", "client": "trtllm-bench"}
    if version:
        software["tensorrt_llm"] = version
    if backend:
        software["backend"] = backend
    words = [engine.text(key, 60) for key in ("dtype", "quantization", "kv_cache_dtype")]
    settings: dict[str, Any] = {key: told for key in _SETTINGS if (told := setting(world.raw(key))) is not None}
    mode = word(within(record.raw("decoding_stats"), "mode"), 60)
    if mode:
        settings["speculative decoding"] = mode
    left_out = [f"engine.{key}" for key in ("model_path", "engine_dir") if engine.fields.get(key)]
    left_out += [key for key in record.fields if is_secret(key)]
    extra: dict[str, Any] = {
        "quantization": words[1],
        "also": also,
        "server": settings,
    }
    findings += serving.check_latencies(record.metrics)
    findings += serving.check_rates(record)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(left_out)
    unknown: dict[str, str] = {}
    if hardware is None:
        unknown["hardware"] = "hardware"
    if not parallel:
        unknown["parallel"] = "parallel layout"
    if not streaming.fields:
        unknown["ttft_s"] = "token times (run with --streaming)"
        findings += serving.facts_finding(unknown)
    elif requests != 0:
        findings += serving.missing_facts(record.metrics, unknown)
    shown = model_name(model) if model else None
    return ParsedRun(
        name=", ".join(
            part
            for part in (
                shown.rsplit("/", 1)[-1] if shown else "TensorRT-LLM",
                f"{inputs:.6g} in, {outputs:.6g} out" if inputs and outputs else None,
                f"{concurrency:.3g} at once" if concurrency else None,
            )
            if part
        ),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=concurrency,
            input_len=inputs,
            output_len=outputs,
            dtypes=dtypes_of(*words),
            extra={key: value for key, value in extra.items() if value},
        ),
        model_hint=shown,
        hardware_hint=hardware,
        parallel=parallel,
        software=software,
        findings=tuple(findings),
    )


def _percentiles(block: Fields, key: str, name: str, scale: float, unit: str, count: float | None) -> None:
    value = block.raw(key)
    inner = Fields(value if isinstance(value, dict) else {}, block.at(key))
    inner.metrics, inner.non_finite, inner.wrong_type = block.metrics, block.non_finite, block.wrong_type
    for written, stat in _PERCENTILES.items():
        inner.metric(name, written, scale=scale, raw_unit=unit, stat=stat, count=count)
