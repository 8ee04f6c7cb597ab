"""InferenceX (formerly InferenceMAX): the aggregate of a run (`agg_*.json`), and the client's result beside it.

Field meanings are those of SemiAnalysisAI/InferenceX, utils/process_result.py. All latencies are SECONDS: the script
divides the client's milliseconds by 1000 and drops the suffix. The results of its side studies have the same names, and
are otherwise vLLM client results; read as milliseconds they would be wrong by a factor of 1000.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff
from app.importers.fields import Fields, GatheredFields, is_number, model_name
from app.importers.measures import degree, word
from app.importers.precision import dtypes_of
from app.importers.reading import Content, clean, pointer
from app.importers.vllm_bench_serve import local_time

_WORD = r"mean|median|std|min|max|p(?:\d{1,2}(?:\.\d{1,4})?|100)"
_STATISTIC = re.compile(
    rf"(?P<word>{_WORD})_(?P<what>ttft|tpot|itl|e2el|intvty)"
    rf"|(?P<newer>ttft|tpot|itl|e2el|e2e_latency|intvty)_(?P<stat>{_WORD})"
)
"""Until 2026 the statistic stands before the metric, since then behind it."""
_MODEL_RATES = (
    ("tput_per_gpu", "tokens_per_s_per_device"),
    ("output_tput_per_gpu", "output_tokens_per_s_per_device"),
)
_LABELS = ("image", "infmax_model_prefix", "spec_decoding", "mtp", "disagg", "is_multinode", "dp_attention")
_RUNNER = ("hw", "device", "hardware")
_LAYOUT = (("tp", "tp"), ("pp", "pp"), ("ep", "ep"))


def _has_seconds(fields: Mapping[str, Any]) -> bool:
    return any(key in fields for key in ("median_ttft", "mean_ttft", "ttft_p50", "ttft_mean"))


def looks_like_aggregate(fields: Mapping[str, Any]) -> bool:
    """Whether an object is an aggregate; the dashboard's API has its numbers under `metrics`, the file at the top.

    Forks of the script, vLLM's own nightly among them, call the runner `device`.
    """
    metrics = fields.get("metrics")
    nested = isinstance(metrics, dict) and "tput_per_gpu" in metrics
    return any(key in fields for key in _RUNNER) and ("tput_per_gpu" in fields or nested)


def looks_like_result(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a client's result whose latencies are in seconds."""
    return _has_seconds(fields) and is_number(fields.get("request_throughput")) and not looks_like_aggregate(fields)


class InferencexAgg:
    id = "inferencex-agg"
    title = "InferenceX aggregate (agg_*.json)"
    tried_on_real_file = False

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content, looks_like_aggregate, Sniff(0.97, "has tput_per_gpu and a runner"), "no hw with tput_per_gpu"
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like_aggregate, _aggregate)


class InferencexResult:
    id = "inferencex-result"
    title = "InferenceX serving result with latencies in seconds"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content,
            looks_like_result,
            Sniff(0.97, "has median_ttft or mean_ttft without _ms, which are seconds"),
            "no request_throughput with median_ttft or mean_ttft",
        )

    def parse(self, content: Content) -> ParsedUpload:
        return serving.read_results(self.id, content, looks_like_result, _result)


def _statistics(record: Fields, counts: Mapping[str, float | None]) -> dict[str, float]:
    """Read `{statistic}_{metric}` in seconds. Percentiles that the project has no name for are returned."""
    others: dict[str, float] = {}
    for key in sorted(record.fields, key=lambda k: not k.startswith("median")):
        match = _STATISTIC.fullmatch(key)
        if match is None:
            continue
        word, what = (match["word"], match["what"]) if match["word"] else (match["stat"], match["newer"])
        stat = serving.statistic_name(word)
        if what == "intvty":
            # 1 / TPOT of the same statistic: for the mean and the median that is a rate of a user, a p99 would be the
            # slow tail under the name of the fast one, and the inverse of a deviation means nothing.
            if stat in ("mean", "p50") and record.number(key):
                record.metric("output_tokens_per_s_per_user", key, raw_unit="tok/s/user", stat=stat)
            record.ignore(key)
            continue
        name = serving.LATENCY_METRICS[what]
        if stat is not None:
            record.metric(name, key, raw_unit="s", stat=stat, count=counts.get(name))
        elif len(others) < serving.MOST_OTHER_PERCENTILES and (value := record.number(key)) is not None:
            others[f"{name}.{word}"] = value
    return others


def _too_slow_for_seconds(record: Fields) -> list[Finding]:
    """A file with these names whose values are milliseconds after all: an output token takes no minute."""
    tpot = record.value("tpot_s", "p50") or record.value("tpot_s", "mean")
    duration = record.value("duration_s")
    e2e = record.value("e2e_latency_s", "p50") or record.value("e2e_latency_s", "mean")
    too_long = duration is not None and e2e is not None and e2e > duration
    if not too_long and (tpot is None or tpot < 30):
        return []
    return [
        Finding(
            "unit-doubtful",
            "error",
            "Read as seconds, as this format has them, the latencies are longer than "
            + ("the whole run" if too_long else "half a minute a token")
            + ": they may be milliseconds.",
            ("tpot_s", "e2e_latency_s"),
        )
    ]


# --- the aggregate -------------------------------------------------------------------------------------------------


def _aggregate(top: Fields) -> ParsedRun:
    record = _flat(top)
    for key, name in _MODEL_RATES:
        if record.number(key):
            record.metric(name, key, raw_unit="tok/s/GPU")
    others = _statistics(record, {})
    findings: list[Finding] = []
    inputs, outputs, concurrency = (record.count(key) or None for key in ("isl", "osl", "conc"))
    if concurrency is not None:
        record.metric("concurrency", "conc", raw_unit="requests")
    hardware, model = next((told for key in _RUNNER if (told := record.text(key))), None), record.text("model")
    framework, precision = record.text("framework"), record.text("precision")
    prefix = record.text("infmax_model_prefix")
    parallel, devices = _layout(record, findings)
    whole = _whole_system(record, None if findings else devices)
    also: dict[str, float | str] = {}
    if (value := record.number("input_tput_per_gpu")) is not None:
        also["Input throughput of a device (tokens/s)"] = value
    if devices is not None:
        also["Devices"] = devices
    labels = {key: text for key in _LABELS if (text := _label(record, key)) is not None}
    tags = record.unknown()
    shown_model = model_name(model) if model else prefix
    software = {"client": "InferenceX"}
    if framework:
        software["engine"] = framework
    extra: dict[str, Any] = {
        "precision": precision,
        "percentiles": others,
        "also": also,
        "server": labels,
        "tags": tags,
    }
    findings += serving.check_latencies(record.metrics)
    findings += _too_slow_for_seconds(record)
    findings += record.findings()
    findings += serving.left_out_findings(record.left_out(()))
    unknown = {"version": "engine version"}
    if not whole:
        unknown["output_tokens_per_s"] = "rates of the whole system"
    if not parallel:
        unknown["parallel"] = "parallel layout"
    findings += serving.missing_facts(record.metrics, unknown)
    return ParsedRun(
        name=", ".join(
            part
            for part in (
                shown_model.rsplit("/", 1)[-1] if shown_model else "InferenceX",
                hardware,
                f"{inputs:g} in, {outputs:g} out" if inputs and outputs else None,
                f"{concurrency:g} at once" if concurrency else None,
            )
            if part
        ),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=concurrency,
            input_len=inputs,
            output_len=outputs,
            dtypes=dtypes_of(None, None, None) | ({"weights": w} if (w := _weights(precision)) else {}),
            extra={key: value for key, value in extra.items() if value not in (None, {})},
        ),
        model_hint=shown_model,
        hardware_hint=_device(hardware) if hardware else None,
        parallel=parallel,
        software=software,
        findings=tuple(findings),
    )


def _whole_system(record: Fields, devices: int | None) -> bool:
    """Rates of the system, which are those of a device times the devices that the script divided by.

    Where prefill and decode are apart, or prefill is split over further devices, that number is not sure.
    """
    if devices is None or (degree(record.raw("pcp_size")) or 1) > 1:
        return False
    for key, name in (("output_tput_per_gpu", "output_tokens_per_s"), ("tput_per_gpu", "total_tokens_per_s")):
        value = record.number(key)
        if value:
            raw = f"{value:.10g} x {devices} devices"
            record.add(name, value * devices, at=record.at(key), raw=raw, raw_unit="tok/s")
    return record.has("output_tokens_per_s")


def _device(runner: str) -> str:
    """The device that a runner's name stands for: `h200` and `h200-cw` are SXM modules, as all of theirs are."""
    match = re.match(r"(h100|h200)(?![a-z0-9])", runner.lower())
    return (
        f"{match[1].upper()} SXM ({clean(runner, 40)})"
        if match
        else re.sub(r"^((?:g?b[23]00|mi3\d\dx)).*$", r"\1", runner.lower())
    )


def _weights(precision: str | None) -> str | None:
    return dtypes_of(None, precision).get("weights") or dtypes_of(precision).get("weights")


def _flat(top: Fields) -> Fields:
    """The aggregate with the numbers of a nested `metrics` beside its labels."""
    metrics = top.fields.get("metrics")
    if not isinstance(metrics, dict):
        return top
    inner = {key: value for key, value in metrics.items() if key not in top.fields}
    pointers = {key: pointer(top.prefix, "metrics", key) for key in inner}
    outer = {key: value for key, value in top.fields.items() if key != "metrics"}
    return GatheredFields(outer | inner, pointers, top.prefix)


def _label(record: Fields, key: str) -> str | bool | None:
    value = record.raw(key)
    if isinstance(value, bool):
        return value
    text = word(value)
    if text in ("true", "false"):
        return text == "true"
    return None if text in (None, "none", "None") else text


def _layout(record: Fields, findings: list[Finding]) -> tuple[dict[str, int], int | None]:
    """Parallel degrees, and the number of devices. Where prefill and decode are apart, those of a decode worker."""
    several = record.fields.get("is_multinode") in (True, "true", "True") or "decode_tp" in record.fields
    side = "decode_" if several and "decode_tp" in record.fields else ""
    parallel = {short: found for key, short in _LAYOUT if (found := degree(record.raw(f"{side}{key}"))) is not None}
    record.ignore(*(f"{part}{key}" for part in ("", "prefill_", "decode_") for key, _ in _LAYOUT))
    if not side:
        devices = parallel.get("tp", 1) * parallel.get("pp", 1) if parallel else None
        return parallel, devices
    counts = [degree(record.raw(key)) for key in ("num_prefill_gpu", "num_decode_gpu")]
    findings.append(
        Finding(
            "disaggregated",
            "warning",
            "Prefill and decode ran on separate devices"
            + (f" ({counts[0]} and {counts[1]})" if all(counts) else "")
            + "; the layout shown is that of a decode worker, and output per device may count decode devices only.",
            ("parallel", "output_tokens_per_s_per_device"),
        )
    )
    return parallel, sum(c for c in counts if c) or None


# --- the client's result in seconds --------------------------------------------------------------------------------


def _result(record: Fields) -> ParsedRun:
    completed = record.metric("requests_completed", "completed", raw_unit="requests")
    asked = record.count("num_prompts")
    failed = record.metric("requests_failed", "failed", raw_unit="requests")
    if failed is None:
        failed = serving.add_failures_of_asked(record, asked, completed)
    record.metric("duration_s", "duration", raw_unit="s")
    inputs = record.metric("input_tokens", "total_input_tokens", raw_unit="tokens")
    outputs = record.metric("output_tokens", "total_output_tokens", raw_unit="tokens")
    findings = serving.check_outcome(completed, failed)
    others: dict[str, float] = {}
    rates = (
        ("request_throughput", "requests_per_s", "req/s"),
        ("request_goodput", "goodput_requests_per_s", "req/s"),
        ("input_throughput", "input_tokens_per_s", "tok/s"),
        ("output_throughput", "output_tokens_per_s", "tok/s"),
        ("total_token_throughput", "total_tokens_per_s", "tok/s"),
    )
    if completed == 0:
        record.ignore(*(key for key in record.fields if _STATISTIC.fullmatch(key)), *(key for key, _, _ in rates))
    else:
        for key, name, unit in rates:
            record.metric(name, key, raw_unit=unit)
        others = _statistics(
            record, {name: completed for name in ("ttft_s", "tpot_s", "e2e_latency_s") if completed is not None}
        )
        findings += serving.not_observed(record)
    rate = serving.request_rate(record)
    cap = record.metric("concurrency", "max_concurrency", raw_unit="requests")
    record.ignore("tokenizer_id", "good_completed", "best_of")
    written = record.text("model_id")
    model = model_name(written) if written else None
    measured_at = local_time(record.text("date"))
    software = {"client": "InferenceX client"}
    for key in ("backend", "endpoint_type"):
        if told := record.text(key):
            software[key] = told
    extra: dict[str, Any] = {
        "num_prompts": asked,
        "burstiness": record.number("burstiness"),
        "percentiles": others,
        "tags": record.unknown(),
    }
    findings += serving.check_latencies(record.metrics)
    findings += serving.check_rates(record)
    findings += _too_slow_for_seconds(record)
    findings += record.findings()
    findings += serving.check_samples(record.metrics)
    findings += serving.left_out_findings(record.left_out(()))
    if completed != 0:
        unknown = {
            "hardware": "hardware",
            "parallel": "parallel layout",
            "dtypes": "precision",
            "version": "server version",
        }
        findings += serving.missing_facts(record.metrics, unknown)
    return ParsedRun(
        name=serving.run_name(model, rate, cap),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="serve",
            concurrency=cap,
            request_rate=rate,
            input_len=serving.mean_length(inputs, completed),
            output_len=serving.mean_length(outputs, completed),
            extra={key: value for key, value in extra.items() if value not in (None, {})},
        ),
        model_hint=model,
        software=software,
        measured_at=measured_at,
        findings=tuple(findings),
    )
