"""Metrics and statistics in the words of the run pages."""

from __future__ import annotations

from collections.abc import Mapping

METRIC_WORDS: Mapping[str, str] = {
    "ttft_s": "Time to first token (TTFT)",
    "tpot_s": "Time per output token (TPOT)",
    "itl_s": "Inter-token latency (ITL)",
    "e2e_latency_s": "End-to-end latency",
    "step_time_s": "Step time",
    "prefill_time_s": "Prefill time",
    "decode_time_s": "Decode time",
    "kernel_time_s": "Kernel time",
    "latency_s": "Latency",
    "duration_s": "Duration",
    "requests_per_s": "Requests per second",
    "goodput_requests_per_s": "Goodput",
    "request_rate_per_s": "Request rate asked for",
    "samples_per_s": "Samples per second",
    "output_tokens_per_s": "Output throughput",
    "input_tokens_per_s": "Input throughput",
    "total_tokens_per_s": "Total throughput",
    "prefill_tokens_per_s": "Prefill throughput",
    "decode_tokens_per_s": "Decode throughput",
    "peak_output_tokens_per_s": "Peak output throughput",
    "tokens_per_s_per_device": "Throughput of a device",
    "output_tokens_per_s_per_device": "Output throughput of a device",
    "output_tokens_per_s_per_user": "Output throughput of a user",
    "model_flop_per_s_per_device": "Model FLOP/s of a device",
    "hbm_bytes_per_s": "HBM traffic",
    "bus_bandwidth_bytes_per_s": "Bus bandwidth",
    "algorithm_bandwidth_bytes_per_s": "Algorithm bandwidth",
    "mfu": "MFU",
    "hfu": "HFU",
    "mbu": "MBU",
    "peak_memory_bytes": "Peak memory",
    "reserved_memory_bytes": "Peak memory reserved",
    "device_memory_bytes": "Peak memory of the device",
    "kv_cache_bytes": "KV cache",
    "weight_bytes": "Weights as stored",
    "requests_completed": "Requests completed",
    "requests_failed": "Requests failed",
    "input_tokens": "Input tokens",
    "output_tokens": "Output tokens",
    "concurrency": "Requests in flight",
    "peak_concurrency": "Most requests in flight",
    "accepted_tokens_per_step": "Tokens accepted a step",
    "parameters": "Parameters",
    "power_w": "Power",
    "energy_j": "Energy",
    "loss": "Loss",
}
STAT_WORDS: Mapping[str, str] = {
    "mean": "Mean",
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "min": "Min",
    "max": "Max",
    "std": "Std",
}


def key_words(key: str, *, begins: bool = False) -> str:
    """A metric's key in words, as they stand inside a sentence or (`begins`) at its beginning; abbreviations stay."""
    name, _, stat = key.partition(".")
    words = METRIC_WORDS.get(name, name)
    inside = words[:1].isupper() and not words[:2].isupper()
    words = words[:1].lower() + words[1:] if inside and not begins else words
    return f"{words} {STAT_WORDS.get(stat, stat).lower()}".strip()
