"""vLLM's latency benchmark (`vllm bench latency --output-json`): one batch from prompt to last token, over and over.

Field meanings are those of vllm-project/vllm, vllm/benchmarks/latency.py. Times are seconds of a whole batch. Batch,
lengths, model and layout are not in the file; the side file in the PyTorch format has them (vllm_pytorch_side_file).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.domain.run import ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields, as_float
from app.importers.measures import add_statistics, finite_numbers, thinned
from app.importers.reading import Content


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a result of this benchmark."""
    return {"avg_latency", "latencies", "percentiles"} <= fields.keys() and not any("ttft" in key for key in fields)


class VllmBenchLatency:
    id = "vllm-bench-latency"
    title = "vLLM latency benchmark (vllm bench latency)"
    tried_on_real_file = False

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.95, "has avg_latency, latencies and percentiles"),
            "no avg_latency with latencies and percentiles",
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like, read)


def read(record: Fields) -> ParsedRun:
    """One result as a run, without what only the command line knew."""
    values = [value for value in finite_numbers(record.raw("latencies")) if value >= 0]
    count = len(values) or None
    record.metric("latency_s", "avg_latency", raw_unit="s", stat="mean", count=count)
    if count != 1 and record.number("std_latency"):
        record.metric("latency_s", "std_latency", raw_unit="s", stat="std", count=count)
    others: dict[str, float] = {}
    percentiles = record.raw("percentiles")
    for key, value in (percentiles if isinstance(percentiles, dict) else {}).items():
        rank, number = as_float(re.sub(r"^p|%$", "", str(key)[:20])), as_float(value)
        if rank is None or number is None or not 0 <= rank <= 100 or not abs(number) < float("inf"):
            continue
        stat = serving.STAT_OF_PERCENTILE.get(rank)
        if stat is not None:
            at = record.at("percentiles", key)
            record.add("latency_s", number, at=at, raw=value, raw_unit="s", stat=stat, count=count)
        elif len(others) < serving.MOST_OTHER_PERCENTILES:
            others[f"latency_s.p{rank:g}"] = number
    add_statistics(record, "latency_s", values, at=record.at("latencies"), unit="s")
    tags = record.unknown()
    extra: dict[str, Any] = {"iterations": count, "percentiles": others, "tags": tags}
    findings = serving.check_latencies(record.metrics)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(record.left_out(()))
    findings += serving.facts_finding(
        {
            "model": "model",
            "hardware": "hardware",
            "parallel": "parallel layout",
            "dtypes": "precision",
            "batch": "batch",
            "input_len": "prompt and output length",
        }
    )
    return ParsedRun(
        name="vLLM latency of a batch",
        metrics=tuple(record.metrics),
        workload=RunWorkload(mode="latency", extra={k: v for k, v in extra.items() if v not in (None, {})}),
        software={"client": "vllm bench latency"},
        samples={"latency_s": thinned(values)} if values else {},
        findings=tuple(findings),
    )
