"""Our own format: what a harness of one's own writes, in SI units under the names of the HTTP API.

RUN_SCHEMA is the whole statement of the format. It is checked strictly, since whoever writes it can correct it: an
unknown field is a typing mistake until shown otherwise, and every fault is named with its JSON pointer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from app.domain.precision import PRECISIONS
from app.domain.run import METRIC_UNITS, STATS, Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields
from app.importers.reading import Content, clean, pointer
from app.importers.schema import Problem, problems

_VALUE: dict[str, Any] = {"type": ["number", "null"], "description": "null where it was not measured"}
_DEGREE = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
_COUNT = {"type": ["number", "null"], "minimum": 0, "maximum": 1e15}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 500}
_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
_OPTIONAL_NAME = {"type": ["string", "null"], "maxLength": 200}
_SCALAR = {"type": ["string", "number", "boolean", "null"], "maxLength": 500}
_PRECISION = {"enum": list(PRECISIONS)}
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp")

_PARALLEL: dict[str, Any] = {
    "type": "object",
    "description": "Parallel degrees of one model replica set; devices = tp * pp * dp * cp",
    "properties": dict.fromkeys(_DEGREES, _DEGREE)
    | {
        "sequence_parallel": {"type": "boolean"},
        "zero_stage": {"type": "integer", "minimum": 0, "maximum": 3},
        "micro_batches": _DEGREE,
        "virtual_stages": _DEGREE,
        "nodes": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
    },
    "additionalProperties": False,
}

_WORKLOAD: dict[str, Any] = {
    "type": "object",
    "description": "What was run: the fields of the API's workload object, and those that describe a serving load",
    "properties": {
        "mode": {"enum": ["serve", "prefill", "decode", "train", "latency", "kernel"]},
        "phase": {"enum": ["train", "prefill", "decode"]},
        "batch": _COUNT,
        "seq_len": {**_COUNT, "description": "new tokens of one sequence"},
        "context_len": {**_COUNT, "description": "tokens already in the KV cache, per sequence"},
        "concurrency": {**_COUNT, "description": "requests in flight, on average"},
        "request_rate": {
            "type": ["number", "string", "null"],
            "minimum": 0,
            "maxLength": 20,
            "description": 'or "inf"',
        },
        "input_len": {**_COUNT, "description": "mean prompt tokens"},
        "output_len": {**_COUNT, "description": "mean output tokens"},
        "weight_bytes": {"type": "number", "exclusiveMinimum": 0, "description": "weights as stored"},
        "parameters": {"type": "number", "exclusiveMinimum": 0},
        "dtypes": {
            "type": "object",
            "properties": dict.fromkeys(
                ("weights", "activations", "kv", "gradients", "optimizer", "communication"), _PRECISION
            ),
            "additionalProperties": False,
        },
        "parallel": _PARALLEL,
        "recompute": {"enum": ["none", "selective", "full"]},
        "optimizer": {"enum": ["adamw", "adamw8bit", "sgd", "none"]},
        "launch_mode": {"enum": ["graph", "eager"]},
        "overlap": {"enum": ["none", "stream", "chunk", "tile"]},
        "routing": {"type": "object"},
        "kv": {"type": "object"},
        "levers": {"type": "array", "maxItems": 100},
        "extra": {
            "type": "object",
            "description": "anything else worth knowing; shown, never computed with",
            "additionalProperties": _SCALAR,
            "maxProperties": 100,
        },
    },
    "additionalProperties": False,
}

_METRIC: dict[str, Any] = {
    "type": ["number", "null", "object"],
    "properties": dict.fromkeys(STATS, _VALUE) | {"count": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
    "minProperties": 1,
}

_RUN: dict[str, Any] = {
    "type": "object",
    "required": ["name", "metrics"],
    "properties": {
        "name": _NAME,
        "hardware": {**_OPTIONAL_NAME, "description": "a catalogue id, an alias, or the device's own name"},
        "model": {**_OPTIONAL_NAME, "description": "a catalogue id, an alias, or a repository name"},
        "workload": _WORKLOAD,
        "parallel": _PARALLEL,
        "software": {
            "type": "object",
            "description": "name: version",
            "additionalProperties": _TEXT,
            "maxProperties": 100,
        },
        "metrics": {
            "type": "object",
            "description": "SI units; the unit is in the name. A number, or one number a statistic",
            "properties": {name: {**_METRIC, "description": f"in {unit}"} for name, unit in METRIC_UNITS.items()},
            "additionalProperties": False,
            "minProperties": 1,
        },
        "kernels": {
            "type": "array",
            "maxItems": 100_000,
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 2000},
                    "family": _TEXT,
                    "count": _COUNT,
                    "time_s": {"type": ["number", "null"], "minimum": 0},
                    "share": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
                    "flop": {"type": ["number", "null"], "minimum": 0},
                    "hbm_bytes": {"type": ["number", "null"], "minimum": 0},
                    "l2_bytes": {"type": ["number", "null"], "minimum": 0},
                },
                "additionalProperties": _SCALAR,
                "maxProperties": 60,
            },
        },
        "samples": {
            "type": "object",
            "description": "every observation of a metric, in order",
            "properties": {name: {"type": "array", "maxItems": 1_000_000, "items": _VALUE} for name in METRIC_UNITS},
            "additionalProperties": False,
        },
        "evidence": {
            "type": "object",
            "description": "measured values that the decision trees ask for, by metric id; yes and no as booleans",
            "additionalProperties": {"type": ["number", "boolean", "null"]},
            "maxProperties": 500,
        },
        "measured_at": {**_OPTIONAL_NAME, "description": "ISO 8601"},
        "series": {
            "type": "object",
            "description": "what tells this run from the others of the file, for a chart",
            "additionalProperties": {"type": ["number", "string"], "maxLength": 200},
            "maxProperties": 20,
        },
        "notes": {"type": ["string", "null"], "maxLength": 10_000},
    },
    "additionalProperties": False,
}

RUN_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Bytebound runs, version 1",
    "description": "Measured runs of one's own harness, in SI units",
    "type": "object",
    "required": ["bytebound", "runs"],
    "properties": {
        "bytebound": {"const": 1, "description": "version of this format"},
        "runs": {"type": "array", "minItems": 1, "maxItems": 10_000, "items": _RUN},
    },
    "additionalProperties": False,
}
"""JSON Schema (2020-12) of the format; the API serves it as it stands."""

_MOST_PROBLEMS = 20
_KEPT_AS_TOLD = ("recompute", "optimizer", "launch_mode", "overlap", "routing", "kv", "levers")


class Native:
    id = "bytebound"
    title = "Bytebound's own format"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        first = content.first_record
        if first is not None and "bytebound" in first:
            return Sniff(1.0, "has the key bytebound")
        return Sniff(0.0, "no key bytebound")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        found: list[Problem] = []
        document = content.json
        if document.cut_at is not None:
            raise UnreadableUpload(
                "cut-off",
                f"This is a file in Bytebound's own format that is cut off at byte {document.cut_at}.",
                hint="The writer or the copy was interrupted: upload the whole file.",
            )
        for record in document.records():
            # Bounded: each message looks for the name that was meant, and a hostile file has a million of them.
            faults = list(islice(problems(record.value, RUN_SCHEMA, record.prefix), _MOST_PROBLEMS + 1))
            if faults:
                found += faults
                if len(found) > _MOST_PROBLEMS:
                    break
                continue
            if len(runs) + len(record.value["runs"]) > content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} runs.",
                    hint="Split it into several files.",
                )
            for index, run in enumerate(record.value["runs"]):
                runs.append(_run(run, pointer(record.prefix, "runs", index)))
        if found:
            said = "; ".join(f"{at or 'the file'} {message}" for at, message in found[:3])
            more = (
                f" and {'at least ' if len(found) > _MOST_PROBLEMS else ''}{len(found) - 3} more"
                if len(found) > 3
                else ""
            )
            raise UnreadableUpload(
                "invalid",
                f"The file does not follow Bytebound's own format: {said}{more}.",
                hint="The schema is at /api/v1/schema/run.json.",
                problems=found[:_MOST_PROBLEMS],
            )
        return ParsedUpload(self.id, tuple(runs), (*content.findings(), *document.findings()))


def _run(run: Mapping[str, Any], prefix: str) -> ParsedRun:
    record = Fields(run, prefix)
    missing: list[str] = []
    for name, told in run["metrics"].items():
        at = pointer(prefix, "metrics", name)
        if isinstance(told, dict):
            count = told.get("count")
            for stat, value in told.items():
                if stat != "count":
                    _add(record, missing, name, stat, value, pointer(at, stat), count)
        else:
            _add(record, missing, name, None, told, at, None)
    samples = {
        name: tuple(float(v) for v in values if v is not None and _finite(v))
        for name, values in run.get("samples", {}).items()
    }
    for name, values in samples.items():
        if len(values) != len(run["samples"][name]):
            missing.append(f"samples.{name}")
        _summarise(record, name, values, pointer(prefix, "samples", name))
    evidence = {
        clean(key, 120): float(value)
        for key, value in run.get("evidence", {}).items()
        if value is not None and _finite(value)
    }
    missing += [
        f"evidence.{clean(k, 80)}" for k, v in run.get("evidence", {}).items() if v is not None and not _finite(v)
    ]
    kernels = tuple(_scalars(kernel) for kernel in run.get("kernels", ()))
    workload, parallel = _workload(run, missing)
    findings = [*serving.check_latencies(record.metrics), *serving.check_rates(record)]
    if missing:
        fields = tuple(dict.fromkeys(missing))
        findings.append(
            Finding(
                "non-finite",
                "warning",
                f"Not a finite number in the file, so the value is missing: {', '.join(fields[:8])}"
                + (f" and {len(fields) - 8} more." if len(fields) > 8 else "."),
                fields,
            )
        )
    return ParsedRun(
        name=clean(run["name"], 200) or "run",
        metrics=tuple(record.metrics),
        workload=workload,
        model_hint=_text(run, "model"),
        hardware_hint=_text(run, "hardware"),
        parallel=parallel,
        software={clean(k, 80): clean(v, 200) for k, v in run.get("software", {}).items()},
        kernels=kernels,
        samples={name: values for name, values in samples.items() if values},
        evidence=evidence,
        measured_at=_text(run, "measured_at"),
        notes=clean(run["notes"], 10_000) if run.get("notes") else None,
        series={
            clean(k, 80): float(v) if not isinstance(v, str) else clean(v, 200)
            for k, v in run.get("series", {}).items()
            if isinstance(v, str) or _finite(v)
        },
        findings=tuple(findings),
    )


def _add(
    record: Fields, missing: list[str], name: str, stat: str | None, value: Any, at: str, count: int | None
) -> None:
    if value is None:
        return
    if not _finite(value):
        missing.append(f"{name}.{stat}" if stat else name)
        return
    record.add(name, float(value), at=at, raw=value, raw_unit=METRIC_UNITS[name], stat=stat, count=count)


def _summarise(record: Fields, name: str, values: tuple[float, ...], at: str) -> None:
    """Statistics of the samples that the file does not state itself."""
    if not values:
        return
    ordered = sorted(values)
    count = len(ordered)
    # Divided before summing: the sum of extreme values need not be finite.
    mean = sum(value / count for value in ordered)
    stats = {"mean": mean, "p50": _middle(ordered), "min": ordered[0], "max": ordered[-1]}
    for stat, value in stats.items():
        record.add(
            name,
            value,
            at=at,
            raw=f"computed from {count} observations",
            raw_unit=METRIC_UNITS[name],
            stat=stat,
            count=count,
        )


def _middle(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _workload(run: Mapping[str, Any], missing: list[str]) -> tuple[RunWorkload, dict[str, int]]:
    told: Mapping[str, Any] = run.get("workload", {})
    layout: dict[str, Any] = {**told.get("parallel", {}), **run.get("parallel", {})}
    parallel = {degree: int(layout[degree]) for degree in _DEGREES if degree in layout}
    numbers: dict[str, float | None] = {}
    for key in ("batch", "concurrency", "input_len", "output_len", "context_len", "weight_bytes", "parameters"):
        value = told.get(key)
        if value is not None and not _finite(value):
            missing.append(f"workload.{key}")
            value = None
        numbers[key] = None if value is None else float(value)
    extra: dict[str, Any] = {key: _plain(told[key]) for key in _KEPT_AS_TOLD if key in told}
    extra |= {key: value for key, value in layout.items() if key not in _DEGREES and value is not None}
    if "extra" in told:
        extra["tags"] = _scalars(told["extra"])
    mode = told.get("mode") or told.get("phase")
    seq_len = told.get("seq_len")
    if seq_len is not None and _finite(seq_len):
        extra["seq_len"] = float(seq_len)
        if mode in ("prefill", "train") and numbers["input_len"] is None:
            numbers["input_len"] = float(seq_len)
    rate = told.get("request_rate")
    if isinstance(rate, str):
        rate = clean(rate, 20)
    elif rate is not None:
        rate = float(rate) if _finite(rate) else "inf"
    workload = RunWorkload(mode=mode, request_rate=rate, dtypes=dict(told.get("dtypes", {})), extra=extra, **numbers)
    return workload, parallel


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _scalars(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars fit to store: cleaned text, finite numbers."""
    return {
        clean(key, 120): value
        for key, raw in fields.items()
        if (value := _plain(raw)) is not None and not isinstance(value, (dict, list))
    }


def _plain(value: Any) -> Any:
    """A JSON value without control characters and non-finite numbers."""
    if isinstance(value, str):
        return clean(value, 2000)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if _finite(value) and abs(value) < 1e300 else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {clean(str(key), 120): _plain(item) for key, item in value.items()}


def _text(run: Mapping[str, Any], key: str) -> str | None:
    value = run.get(key)
    return (clean(value, 200) or None) if isinstance(value, str) else None
