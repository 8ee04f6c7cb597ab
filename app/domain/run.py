"""A benchmark run: what a file reported, in SI units, each metric with the place it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]

STATS: tuple[str, ...] = ("mean", "p50", "p75", "p90", "p95", "p99", "p999", "min", "max", "std")
"""Statistics a metric may carry, in the order that tables show them; a plain value has none."""

METRIC_UNITS: dict[str, str] = {
    "ttft_s": "s",
    "tpot_s": "s",
    "itl_s": "s",
    "e2e_latency_s": "s",
    "step_time_s": "s",
    "prefill_time_s": "s",
    "decode_time_s": "s",
    "kernel_time_s": "s",
    "latency_s": "s",
    "duration_s": "s",
    "requests_per_s": "1/s",
    "goodput_requests_per_s": "1/s",
    "request_rate_per_s": "1/s",
    "samples_per_s": "1/s",
    "output_tokens_per_s": "tokens/s",
    "input_tokens_per_s": "tokens/s",
    "total_tokens_per_s": "tokens/s",
    "prefill_tokens_per_s": "tokens/s",
    "decode_tokens_per_s": "tokens/s",
    "peak_output_tokens_per_s": "tokens/s",
    "tokens_per_s_per_device": "tokens/s",
    "output_tokens_per_s_per_device": "tokens/s",
    "output_tokens_per_s_per_user": "tokens/s",
    "model_flop_per_s_per_device": "FLOP/s",
    "hbm_bytes_per_s": "B/s",
    "bus_bandwidth_bytes_per_s": "B/s",
    "algorithm_bandwidth_bytes_per_s": "B/s",
    "mfu": "1",
    "hfu": "1",
    "mbu": "1",
    "peak_memory_bytes": "B",
    "reserved_memory_bytes": "B",
    "device_memory_bytes": "B",
    "kv_cache_bytes": "B",
    "weight_bytes": "B",
    "requests_completed": "requests",
    "requests_failed": "requests",
    "input_tokens": "tokens",
    "output_tokens": "tokens",
    "concurrency": "requests",
    "peak_concurrency": "requests",
    "accepted_tokens_per_step": "tokens",
    "parameters": "parameters",
    "power_w": "W",
    "energy_j": "J",
    "loss": "1",
}
"""Canonical metric names and their units. The unit is part of the name wherever it has one.

`tokens_per_s_per_device` counts prompt and output tokens where a tool has both. `peak_memory_bytes` is the most that
tensors took, `reserved_memory_bytes` what the allocator held for them, `device_memory_bytes` what the device held.
"""

LOWER_IS_BETTER: frozenset[str] = frozenset(
    {
        "ttft_s",
        "tpot_s",
        "itl_s",
        "e2e_latency_s",
        "step_time_s",
        "prefill_time_s",
        "decode_time_s",
        "kernel_time_s",
        "latency_s",
        "duration_s",
        "peak_memory_bytes",
        "reserved_memory_bytes",
        "device_memory_bytes",
        "requests_failed",
        "energy_j",
        "power_w",
        "loss",
    }
)
HIGHER_IS_BETTER: frozenset[str] = frozenset(
    {
        "requests_per_s",
        "goodput_requests_per_s",
        "samples_per_s",
        "output_tokens_per_s",
        "input_tokens_per_s",
        "total_tokens_per_s",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "peak_output_tokens_per_s",
        "tokens_per_s_per_device",
        "output_tokens_per_s_per_device",
        "output_tokens_per_s_per_user",
        "model_flop_per_s_per_device",
        "hbm_bytes_per_s",
        "bus_bandwidth_bytes_per_s",
        "algorithm_bandwidth_bytes_per_s",
        "mfu",
        "hfu",
        "mbu",
        "accepted_tokens_per_step",
    }
)
"""Metrics in neither set describe the load, not the result; a comparison shows them without a verdict."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured number in SI units.

    `pointer` says where in the file it stood (JSON pointer, or `line 12`), `raw` what was written there and
    `raw_unit` in which unit. `count` is the number of observations behind a statistic, where known.
    """

    name: str
    value: float
    stat: str | None = None
    pointer: str = ""
    raw: str = ""
    raw_unit: str = ""
    count: int | None = None

    @property
    def unit(self) -> str:
        return METRIC_UNITS[self.name]

    @property
    def key(self) -> str:
        """`ttft_s.p99`, or just `output_tokens_per_s`."""
        return f"{self.name}.{self.stat}" if self.stat else self.name


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the reader of a run should know. `check` is a stable id, `fields` the fields it speaks of."""

    check: str
    severity: Severity
    message: str
    fields: tuple[str, ...] = ()
    technique: str | None = None


@dataclass(frozen=True, slots=True)
class RunWorkload:
    """What a file says about the work it measured; None means the file does not say.

    Lengths are means over requests. `mode` is serve, prefill, decode, train, latency or kernel.
    `weight_bytes` is the size of the weights as stored, which quantised files state directly.
    """

    mode: str | None = None
    batch: float | None = None
    concurrency: float | None = None
    request_rate: float | str | None = None
    input_len: float | None = None
    output_len: float | None = None
    context_len: float | None = None
    weight_bytes: float | None = None
    parameters: float | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParsedRun:
    """One run as an importer read it, before anything is stored or linked.

    `model_hint` and `hardware_hint` are the file's own words; the service matches them to the catalogue. `series` names
    the value that distinguishes runs of one file (for example {"concurrency": 8}), so that a sweep can be charted.
    `kernels` are rows of device functions by name, `timeline` what a profile's timeline came to and a drawing of it
    (app/importers/kernel_rows.py says what both hold).
    """

    name: str
    metrics: tuple[Metric, ...]
    workload: RunWorkload = field(default_factory=RunWorkload)
    model_hint: str | None = None
    hardware_hint: str | None = None
    parallel: Mapping[str, int] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[Mapping[str, Any], ...] = ()
    timeline: Mapping[str, Any] | None = None
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    evidence: Mapping[str, float] = field(default_factory=dict)
    measured_at: str | None = None
    notes: str | None = None
    series: Mapping[str, float | str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def value(self, name: str, *stats: str | None) -> float | None:
        """The first of the wanted statistics that the run reports; without `stats`, the plain value or the mean."""
        wanted = stats or (None, "mean")
        by_stat = {m.stat: m.value for m in self.metrics if m.name == name}
        return next((by_stat[s] for s in wanted if s in by_stat), None)
