"""SGLang's one-batch benchmarks (`sglang.bench_one_batch`, `sglang.bench_one_batch_server`), JSON lines.

Field meanings are those of sgl-project/sglang, python/sglang/bench_one_batch.py and bench_one_batch_server.py; files of
2025 were seen. One line is one shape: a batch of equal prompts, prefilled and decoded together. Times are seconds. The
first program runs the model without a server and times each phase; the second sends the batch to a server. `run_name`
is "default" unless somebody chose one, and equal shapes are repeats, so neither is a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields, as_float
from app.importers.reading import Content

_SHAPE = frozenset({"run_name", "batch_size", "input_len", "output_len"})
_TINY_SHARE = 0.05
"""Share of the whole latency below which the time after the first token is a difference of two almost equal numbers."""


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a line of these benchmarks."""
    return fields.keys() >= _SHAPE and ("prefill_latency" in fields or "latency" in fields)


class SglangBenchOneBatch:
    id = "sglang-bench-one-batch"
    title = "SGLang one-batch benchmark (sglang.bench_one_batch, bench_one_batch_server)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.95, "lines with batch_size, input_len, output_len and a latency"),
            "no batch_size, input_len and output_len beside a latency",
        )

    def parse(self, content: Content) -> ParsedUpload:
        runs, notes = serving.read_runs(content, looks_like, _run)
        return ParsedUpload(self.id, _told_apart(serving.with_series(runs)), tuple(notes))


def _run(record: Fields) -> ParsedRun:
    name = record.text("run_name")
    batch, inputs, outputs = (_above_zero(record, key) for key in ("batch_size", "input_len", "output_len"))
    findings: list[Finding] = []
    also: dict[str, float] = {}
    on_server = "latency" in record.fields
    if on_server:
        total = _time(record, "latency_s", "latency")
        _time(record, "ttft_s", "last_ttft")
        _rate(record, "prefill_tokens_per_s", "input_throughput")
        # The first versions divided by the whole latency, later ones by what is left of it after the first token.
        whole = batch * outputs / total if batch and outputs and total else None
        told = record.number("output_throughput")
        over_all = whole is not None and told is not None and abs(told - whole) <= 0.002 * whole
        after = _rate(record, "output_tokens_per_s" if over_all else "decode_tokens_per_s", "output_throughput")
        findings += [] if over_all else _exploded(batch, outputs, total, after)
        gauge = record.count("last_gen_throughput")
        if gauge:
            also["Server's own decode rate at the end (tokens/s)"] = gauge
        if (as_float(record.fields.get("acc_length")) or 0) > 0:
            record.metric("accepted_tokens_per_step", "acc_length", raw_unit="tokens/step")
        hits = record.number("cache_hit_rate")
        if hits is not None:
            also["Prefix cache hit rate"] = hits
    else:
        prefill = _time(record, "prefill_time_s", "prefill_latency")
        if prefill is not None:
            # The first token comes out of the prefill of the whole batch.
            record.add(
                "ttft_s",
                prefill,
                at=record.at("prefill_latency"),
                raw=record.fields["prefill_latency"],
                raw_unit="s",
            )
        _rate(record, "prefill_tokens_per_s", "prefill_throughput")
        _time(record, "tpot_s", "median_decode_latency", stat="p50")
        _rate(record, "decode_tokens_per_s", "median_decode_throughput", stat="p50")
        total = _time(record, "latency_s", "total_latency")
        record.ignore("output_throughput")
    overall = _rate(record, "total_tokens_per_s", "overall_throughput")
    record.ignore("acc_length", "cache_hit_rate")
    tags = record.unknown()
    if on_server and batch and outputs and total and not record.has("output_tokens_per_s"):
        also["Output tokens over the whole latency (tokens/s)"] = batch * outputs / total
    findings += _overall(batch, inputs, outputs, total, overall)
    findings += serving.check_latencies(record.metrics)
    findings += record.findings()
    findings += serving.left_out_findings(record.left_out(()))
    findings += serving.facts_finding(
        {
            "model": "model",
            "hardware": "hardware",
            "parallel": "parallel layout",
            "dtypes": "precision",
            "version": "SGLang version",
        }
    )
    extra: dict[str, Any] = {"also": also, "tags": tags}
    return ParsedRun(
        name=name if name and name != "default" else "SGLang one batch",
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="latency",
            batch=batch,
            input_len=inputs,
            output_len=outputs,
            extra={key: value for key, value in extra.items() if value},
        ),
        software={"engine": "SGLang", "client": f"sglang.bench_one_batch{'_server' if on_server else ''}"},
        findings=tuple(findings),
    )


def _above_zero(record: Fields, key: str) -> float | None:
    value = record.count(key)
    return value if value else None


def _time(record: Fields, name: str, key: str, stat: str | None = None) -> float | None:
    """A time in seconds; zero stands for a phase that did not take place."""
    return record.metric(name, key, raw_unit="s", stat=stat) if record.number(key) else None


def _rate(record: Fields, name: str, key: str, stat: str | None = None) -> float | None:
    return record.metric(name, key, raw_unit="tok/s", stat=stat) if record.number(key) else None


def _exploded(batch: float | None, outputs: float | None, total: float | None, after: float | None) -> list[Finding]:
    """Tokens over (latency - TTFT) say nothing where the two are almost equal."""
    if not batch or not outputs or not total or not after or after <= 0 or total <= 0:
        return []
    share = batch * outputs / after / total
    if share >= _TINY_SHARE:
        return []
    return [
        Finding(
            "implausible-rate",
            "warning",
            f"output_throughput counts only the {share:.1%} of the latency after the first token, so {after:,.0f} "
            f"tokens/s is no steady rate: over the whole latency the outputs come at {batch * outputs / total:,.0f}.",
            ("decode_tokens_per_s",),
        )
    ]


def _overall(
    batch: float | None, inputs: float | None, outputs: float | None, total: float | None, overall: float | None
) -> list[Finding]:
    if not batch or not inputs or not outputs or not total or not overall or total <= 0:
        return []
    computed = batch * (inputs + outputs) / total
    if abs(computed - overall) <= 0.02 * max(computed, overall):
        return []
    return [
        Finding(
            "rate-mismatch",
            "warning",
            f"overall_throughput says {overall:.6g} tokens/s, but the tokens of the batch over its latency give "
            f"{computed:.6g}.",
            ("total_tokens_per_s",),
        )
    ]


def _told_apart(runs: tuple[ParsedRun, ...]) -> tuple[ParsedRun, ...]:
    """Names with the shape, and numbered where a shape was repeated."""
    shapes = [_shape(run) for run in runs]
    seen: dict[str, int] = {}
    out: list[ParsedRun] = []
    for run, shape in zip(runs, shapes, strict=True):
        name = f"{run.name}, {shape}" if shape else run.name
        number = seen[name] = seen.get(name, 0) + 1
        out.append(replace(run, name=name if number == 1 else f"{name} (repeat {number})"))
    return tuple(out)


def _shape(run: ParsedRun) -> str:
    work = run.workload
    parts = [
        f"{word} {value:g}"
        for word, value in (("batch", work.batch), ("in", work.input_len), ("out", work.output_len))
        if value
    ]
    return ", ".join(parts)
