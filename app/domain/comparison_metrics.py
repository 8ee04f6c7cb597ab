"""Metrics that comparisons hold, by name: units, words, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from app.domain.run import HIGHER_IS_BETTER, LOWER_IS_BETTER, METRIC_UNITS

Direction: TypeAlias = Literal["higher", "lower"]

DERIVED_UNITS: Mapping[str, str] = {
    "of_bound": "1",
    "step_bound_s": "s",
    "step_expected_s": "s",
    "step_serial_bound_s": "s",
    "operation_expected_s": "s",
    "overlapped_time_s": "s",
    "serial_time_s": "s",
    "fused_time_s": "s",
    "product_time_s": "s",
    "exchange_time_s": "s",
    "exposed_communication_s": "s",
    "exposed_share": "1",
    "compute_only_s": "s",
    "pipeline_step_s": "s",
    "bubble_s": "s",
    "bubble_share": "1",
    "in_flight_micro_batches": "1",
    "parameter_copies": "1",
    "least_memory_bytes": "B",
    "largest_batch": "1",
    "largest_context": "1",
    "kv_bytes_per_token": "B",
    "kv_payload_bytes": "B",
    "kv_paged_bytes": "B",
    "kv_total_bytes": "B",
    "kv_allocated_bytes": "B",
    "kv_per_device_bytes": "B",
    "kv_read_s": "s",
    "expert_layers_s": "s",
    "expert_bound_s": "s",
    "expert_serial_s": "s",
    "expert_expected_s": "s",
    "rank_imbalance": "1",
}
"""What no file reports, with the unit: the share of its own bound that a run reaches, an estimate's times, and what the
pages of memory, cache, experts and communication compute."""

_HIGHER_DERIVED = frozenset({"of_bound", "largest_batch", "largest_context"})
_LOWER = LOWER_IS_BETTER | (DERIVED_UNITS.keys() - _HIGHER_DERIVED)
_HIGHER = HIGHER_IS_BETTER | _HIGHER_DERIVED

_WORDS: Mapping[str, str] = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_latency_s": "end-to-end latency",
    "step_time_s": "step time",
    "prefill_time_s": "prefill time",
    "decode_time_s": "decode time",
    "kernel_time_s": "kernel time",
    "latency_s": "latency",
    "duration_s": "duration",
    "requests_per_s": "requests/s",
    "goodput_requests_per_s": "goodput, requests/s",
    "request_rate_per_s": "request rate",
    "samples_per_s": "samples/s",
    "output_tokens_per_s": "output tokens/s",
    "input_tokens_per_s": "input tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "prefill_tokens_per_s": "prefill tokens/s",
    "decode_tokens_per_s": "decode tokens/s",
    "peak_output_tokens_per_s": "peak output tokens/s",
    "tokens_per_s_per_device": "tokens/s a device",
    "output_tokens_per_s_per_device": "output tokens/s a device",
    "output_tokens_per_s_per_user": "output tokens/s a user",
    "model_flop_per_s_per_device": "model FLOP/s a device",
    "hbm_bytes_per_s": "HBM bandwidth",
    "bus_bandwidth_bytes_per_s": "bus bandwidth",
    "algorithm_bandwidth_bytes_per_s": "algorithm bandwidth",
    "mfu": "MFU",
    "hfu": "HFU",
    "mbu": "MBU",
    "peak_memory_bytes": "peak memory",
    "reserved_memory_bytes": "peak memory reserved",
    "device_memory_bytes": "peak memory of the device",
    "kv_cache_bytes": "KV cache",
    "weight_bytes": "weights",
    "requests_completed": "completed requests",
    "requests_failed": "failed requests",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "concurrency": "concurrency",
    "peak_concurrency": "peak concurrency",
    "accepted_tokens_per_step": "accepted tokens a step",
    "parameters": "parameters",
    "power_w": "power",
    "energy_j": "energy",
    "loss": "loss",
    "of_bound": "share of the bound",
    "step_bound_s": "bound of a step",
    "step_expected_s": "expected time of a step",
    "step_serial_bound_s": "serial bound of a step",
    "operation_expected_s": "expected time of the operation",
    "overlapped_time_s": "time of product and exchange",
    "serial_time_s": "time one after the other",
    "fused_time_s": "time in one kernel",
    "product_time_s": "time of the product alone",
    "exchange_time_s": "time of the exchange alone",
    "exposed_communication_s": "exposed communication",
    "exposed_share": "exposed share of the step",
    "compute_only_s": "step without communication",
    "pipeline_step_s": "time of the pipeline's step",
    "bubble_s": "pipeline bubble",
    "bubble_share": "bubble share of the step",
    "in_flight_micro_batches": "micro-batches in flight",
    "parameter_copies": "stages held by a device",
    "least_memory_bytes": "least memory",
    "largest_batch": "largest batch",
    "largest_context": "largest context",
    "kv_bytes_per_token": "cache of a token",
    "kv_payload_bytes": "cache payload",
    "kv_paged_bytes": "cache in pages",
    "kv_total_bytes": "cache in pages with a shared prefix",
    "kv_allocated_bytes": "cache reserved in one piece",
    "kv_per_device_bytes": "cache of a device",
    "kv_read_s": "cache read a step",
    "expert_layers_s": "expert layers at their overlap",
    "expert_bound_s": "bound of the expert layers",
    "expert_serial_s": "expert layers one stage after another",
    "expert_expected_s": "expected time of the expert layers",
    "rank_imbalance": "busiest rank over the mean",
}


def split_key(key: str) -> tuple[str, str | None]:
    """`ttft_s.p99` is (`ttft_s`, `p99`); a plain name has no statistic."""
    name, _, stat = key.partition(".")
    return name, stat or None


def metric_label(key: str) -> str:
    """A metric's key in words: `ttft_s.p99` is "TTFT p99"."""
    name, stat = split_key(key)
    words = _WORDS.get(name, name)
    return f"{words} {stat}" if stat else words


def metric_unit(name: str) -> str:
    """The SI unit of a metric by its name without statistic."""
    return METRIC_UNITS.get(name) or DERIVED_UNITS[name]


def metric_direction(key: str) -> Direction | None:
    """Whether higher or lower is better; None for metrics that describe the load, and for the spread of any."""
    name, stat = split_key(key)
    if stat == "std":
        return None
    return "lower" if name in _LOWER else "higher" if name in _HIGHER else None
