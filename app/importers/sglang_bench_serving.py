"""SGLang's serving client (`python -m sglang.bench_serving`), JSON lines.

Field meanings are those of sgl-project/sglang, python/sglang/bench_serving.py; files of 0.5.5 were seen. A line carries
the server's whole launch configuration: only the settings named below are read, so that keys and addresses in it are
neither kept nor shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.domain.units import GIBI
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields, as_float, is_number, model_name
from app.importers.precision import dtypes_of
from app.importers.reading import Content, clean
from app.importers.request_lengths import RequestLengths, request_lengths

_RATES = (
    ("request_throughput", "requests_per_s", "req/s"),
    ("input_throughput", "input_tokens_per_s", "tok/s"),
    ("output_throughput", "output_tokens_per_s", "tok/s"),
    ("total_throughput", "total_tokens_per_s", "tok/s"),
    ("max_output_tokens_per_s", "peak_output_tokens_per_s", "tok/s"),
)
_NOT_KEPT = ("generated_texts", "prompts", "input_texts")

_SOFTWARE_SETTINGS = ("attention_backend", "sampling_backend", "moe_runner_backend", "moe_a2a_backend")
_SERVER_SETTINGS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "mem_fraction_static",
    "max_running_requests",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "schedule_policy",
    "page_size",
    "disable_radix_cache",
    "disable_cuda_graph",
    "disable_overlap_schedule",
    "enable_dp_attention",
    "enable_torch_compile",
    "enable_mixed_chunk",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "speculative_eagle_topk",
    "disaggregation_mode",
    "context_length",
)
"""The only parts of `server_info` that are read: what changes the speed."""


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a line of this client."""
    if "total_output_tokens_retokenized" in fields:
        return True
    return "mean_ttft_ms" in fields and "mean_e2e_latency_ms" in fields


class SglangBenchServing:
    id = "sglang-bench-serving"
    title = "SGLang serving benchmark (sglang.bench_serving)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if content.first_record is None:
            return Sniff(0.0, "no JSON object in the file")
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.98, "has fields that only SGLang's client writes"),
            "no total_output_tokens_retokenized, and no mean_ttft_ms beside mean_e2e_latency_ms",
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like, read)


def read(record: Fields) -> ParsedRun:
    """One line as a run."""
    completed = record.metric("requests_completed", "completed", raw_unit="requests")
    failed = serving.add_failures_in_details(record)
    record.metric("duration_s", "duration", raw_unit="s")
    inputs = record.metric("input_tokens", "total_input_tokens", raw_unit="tokens")
    outputs = record.metric("output_tokens", "total_output_tokens", raw_unit="tokens")
    findings = serving.check_outcome(completed, failed)
    others: dict[str, float] = {}
    in_flight: float | None = None
    if completed == 0:
        record.ignore(*(key for key in record.fields if serving.matches_statistic(key)))
        record.ignore(*(key for key, _, _ in _RATES), "concurrency", "max_concurrent_requests", "accept_length")
        record.ignore(*serving.DETAIL_ARRAYS)
    else:
        for key, name, unit in _RATES:
            record.metric(name, key, raw_unit=unit)
        in_flight = record.metric("concurrency", "concurrency", raw_unit="requests")
        record.metric("peak_concurrency", "max_concurrent_requests", raw_unit="requests")
        if (as_float(record.fields.get("accept_length")) or 0) > 0:
            record.metric("accepted_tokens_per_step", "accept_length", raw_unit="tokens/step")
        record.ignore("accept_length")
        gaps = outputs - completed if outputs is not None and completed is not None else None
        others = serving.read_statistics(
            record, {"ttft_s": completed, "tpot_s": completed, "e2e_latency_s": completed, "itl_s": gaps}
        )
        findings += serving.recompute(record)
        findings += serving.not_observed(record)
    rate = serving.request_rate(record)
    cap = record.count("max_concurrency")

    server = _Server(record)
    tag = record.text("tag")
    software = {"client": "sglang.bench_serving"} | server.software
    if backend := record.text("backend"):
        software["backend"] = backend
    extra: dict[str, Any] = {
        "max_concurrency": cap,
        "dataset": record.text("dataset_name"),
        "random_range_ratio": record.number("random_range_ratio"),
        "random_input_len": record.count("random_input_len"),
        "random_output_len": record.count("random_output_len"),
        "sharegpt_output_len": record.count("sharegpt_output_len"),
        "percentiles": others,
        "server": server.settings,
    }
    record.ignore("server_info", "total_input_text_tokens", "total_output_tokens_retokenized", *_NOT_KEPT)
    if record.fields.get("total_input_vision_tokens") == 0:
        record.ignore("total_input_vision_tokens")
    left_out = [*record.left_out(_NOT_KEPT), *serving.error_texts(record)]
    if server.held:
        left_out.append("server_info (except the settings that change the speed)")
    extra["tags"] = record.unknown()
    extra = {key: value for key, value in extra.items() if value not in (None, {})}

    lengths = RequestLengths() if completed == 0 else request_lengths(record)
    if lengths.summary:
        extra["request_lengths"] = lengths.summary
    findings += lengths.findings
    findings += serving.check_latencies(record.metrics)
    findings += serving.check_rates(record)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(left_out)
    findings += server.findings
    if completed != 0:
        unknown = {"hardware": "hardware"}
        if not server.parallel:
            unknown["parallel"] = "parallel layout"
        if "weights" not in server.dtypes:
            unknown["dtypes"] = "precision (left to the model's own)" if server.held else "precision"
        if "sglang" not in server.software:
            unknown["version"] = "server version"
        findings += serving.missing_facts(record.metrics, unknown)
    load = in_flight if in_flight is not None else cap
    return ParsedRun(
        name=tag or serving.run_name(server.model, rate, cap),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=load,
            request_rate=rate,
            input_len=serving.mean_length(inputs, completed),
            output_len=serving.mean_length(outputs, completed),
            dtypes=server.dtypes,
            extra=extra,
        ),
        model_hint=server.model,
        parallel=server.parallel,
        software=software,
        samples=lengths.samples,
        findings=tuple(findings),
    )


class _Server:
    """The whitelisted part of `server_info`.

    A plain server puts its arguments at the top; behind a router there are only `internal_states`, `prefill` and
    `decode`, each a list with one entry a server.
    """

    def __init__(self, record: Fields) -> None:
        info = record.raw("server_info")
        self.held = isinstance(info, dict) and bool(info)
        self.findings: list[Finding] = []
        top: dict[str, Any] = info if isinstance(info, dict) else {}
        prefill, decode, states = (_objects(top.get(key)) for key in ("prefill", "decode", "internal_states"))
        # The decode server is the one that TPOT is about.
        sources = [top, *decode[:1], *states[:1], *prefill[:1]]
        self._sources = [s for s in sources if s]
        self.model = self._model(record)
        self.parallel = self._parallel()
        self.settings = self._settings()
        if prefill or decode:
            self.settings["prefill_servers"] = len(prefill)
            self.settings["decode_servers"] = len(decode)
            self.findings.append(
                Finding(
                    "disaggregated",
                    "warning",
                    f"Prefill and decode ran on separate servers ({len(prefill)} and {len(decode)}); "
                    "the layout shown is that of one decode server.",
                    ("parallel",),
                )
            )
        self.software = self._software()
        self.dtypes = self._dtypes()
        self._memory(record, states)

    def _first(self, key: str) -> Any:
        return next((s[key] for s in self._sources if s.get(key) is not None), None)

    def _text(self, key: str) -> str | None:
        value = self._first(key)
        return (clean(value, 200) or None) if isinstance(value, str) else None

    def _model(self, record: Fields) -> str | None:
        written = self._text("model_path") or self._text("served_model_name") or record.text("model")
        return model_name(written) if written else None

    def _parallel(self) -> dict[str, int]:
        degrees: dict[str, int] = {}
        for key, degree in (("tp_size", "tp"), ("pp_size", "pp"), ("dp_size", "dp"), ("ep_size", "ep")):
            value = as_float(self._first(key))
            if value is not None and 1 <= value <= 100_000 and value == int(value):
                degrees[degree] = int(value)
        tp, dp = degrees.get("tp", 1), degrees.get("dp", 1)
        if self._first("enable_dp_attention") is True and dp > 1 and tp % dp == 0:
            # With data-parallel attention the dp groups share the tp ranks instead of multiplying them.
            degrees["tp"] = tp // dp
        return degrees

    def _settings(self) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key in _SERVER_SETTINGS:
            value = self._first(key)
            if isinstance(value, bool):
                kept[key] = value
            elif is_number(value):
                number = as_float(value)
                if number is not None and math.isfinite(number):
                    kept[key] = number
            elif isinstance(value, str) and value not in ("", "null", "auto"):
                kept[key] = clean(value, 80)
        return kept

    def _software(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if version := self._text("version"):
            found["sglang"] = version
        for key in _SOFTWARE_SETTINGS:
            value = self._text(key)
            if value and value not in ("auto", "none"):
                found[key] = value
        eager = self._first("disable_cuda_graph")
        if isinstance(eager, bool):
            found["launch_mode"] = "eager" if eager else "graph"
        return found

    def _dtypes(self) -> dict[str, str]:
        return dtypes_of(self._text("dtype"), self._text("quantization"), self._text("kv_cache_dtype"))

    def _memory(self, record: Fields, states: list[dict[str, Any]]) -> None:
        """Size of the KV pool. The server divides by 2**30 though it calls the unit GB: pool / capacity in the files
        seen gives the bytes of a token exactly so."""
        usage = states[0].get("memory_usage") if states else None
        if not isinstance(usage, dict):
            return
        pool = as_float(usage.get("kvcache"))
        if pool is not None and pool > 0 and math.isfinite(pool):
            record.add(
                "kv_cache_bytes",
                pool * GIBI,
                at=record.at("server_info", "internal_states", 0, "memory_usage", "kvcache"),
                raw=usage["kvcache"],
                raw_unit="GiB",
            )
        tokens = as_float(usage.get("token_capacity"))
        if tokens is not None and tokens > 0 and math.isfinite(tokens):
            self.settings["kv_token_capacity"] = tokens


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
