"""Hugging Face optimum-benchmark: reports as JSON, printed as Markdown or text, and the CSV reports of 2023.

Field meanings are those of huggingface/optimum-benchmark (benchmark/report.py, trackers); CSV files of 2023 and one
run's report of 0.5 in all three other forms were seen, all from public repositories. Latencies are seconds, memory is
in MB of 1e6 bytes summed over the devices, energy in kWh. A report holds targets (prefill, decode, per_token, forward,
train and others); generation of one batch is timed phase by phase.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import optimum_benchmark_printed as printed
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, model_name
from app.importers.logs import text_findings
from app.importers.measures import (
    add_statistics,
    decimal_mark,
    finite_numbers,
    number_in,
    scale_to_si,
    setting,
    thinned,
    within,
    word,
)
from app.importers.precision import dtypes_of
from app.importers.reading import Content, clean, pointer
from app.importers.tables import cells_of, numbered_rows, whole_lines

MEGA = 1e6

_TARGETS = frozenset(
    {"load", "load_model", "load_data", "first_generate", "generate", "prefill", "decode", "per_token"}
    | {"forward", "call", "per_step", "train", "overall", "warmup", "preprocess"}
)
_DISPLAY = re.compile(r"\bdisplay\b", re.IGNORECASE)


def _is_measurements(value: Any) -> bool:
    """Whether a value is what the tool measured of one target."""
    return isinstance(value, dict) and any(
        isinstance(value.get(key), dict) for key in ("latency", "memory", "throughput", "energy")
    )


def _report_of(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]] | None:
    """The targets of a report and where they stand: `benchmark.json` has them below `report`."""
    for path in (("report",), ()):
        report = within(fields, *path) if path else fields
        if isinstance(report, dict) and any(key in _TARGETS and _is_measurements(report[key]) for key in report):
            return report, path
    return None


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a report, with its configuration or without."""
    found = _report_of(fields)
    if found is None:
        return False
    latencies = [within(target, "latency") for target in found[0].values()]
    stated = any(isinstance(told, dict) and "unit" in told for told in latencies)
    return stated or isinstance(within(fields, "config", "scenario"), dict)


class OptimumBenchmark:
    id = "optimum-benchmark"
    title = "optimum-benchmark report (JSON, Markdown, text, or the CSV of 2023)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if any(looks_like(fields) for fields in content.first_records):
            return Sniff(0.95, "targets with latency, memory and throughput and their units")
        if _header(content) is not None:
            return Sniff(0.95, "a CSV header with forward.latency(s) or generate.latency(s)")
        if form := _printed_form(content):
            return Sniff(0.95, f"a target with what was measured of it, printed as {form}")
        return Sniff(0.0, "no targets with latency and unit, and no CSV header with forward.latency(s)")

    def parse(self, content: Content) -> ParsedUpload:
        if any(looks_like(fields) for fields in content.first_records):
            return serving.read_results(self.id, content, looks_like, _json_run)
        if _header(content) is None and (form := _printed_form(content)):
            return _printed_upload(content, self.id, form)
        return _csv_upload(content, self.id)


def _printed_form(content: Content) -> str | None:
    return printed.looks_printed(content.head.split("\n"), _TARGETS)


def _printed_upload(content: Content, format_id: str, form: str) -> ParsedUpload:
    lines = content.lines
    found = printed.of_markdown(lines) if form == "markdown" else printed.of_text(lines, _TARGETS)
    if not any(_is_measurements(measured) for measured in found.report.values()):
        raise UnreadableUpload(
            "invalid",
            "This is a printed report of optimum-benchmark without a figure.",
            hint="Check that the benchmark ran to its end, or upload benchmark.json.",
        )
    run = _json_run(Fields(found.report))
    metrics = tuple(
        replace(metric, pointer=f"line {line}") if (line := found.lines.get(metric.pointer)) is not None else metric
        for metric in run.metrics
    )
    return ParsedUpload(format_id, (replace(run, metrics=metrics),), text_findings(content))


# --- JSON ----------------------------------------------------------------------------------------------------------

_TIME_OF: Mapping[str, tuple[str, ...]] = {
    "prefill": ("prefill_time_s", "ttft_s"),
    "decode": ("decode_time_s",),
    "per_token": ("itl_s",),
    "generate": ("latency_s",),
    "forward": ("latency_s",),
    "call": ("latency_s",),
    "train": ("step_time_s",),
}
_TOKENS_OF: Mapping[str, str] = {
    "prefill": "prefill_tokens_per_s",
    "decode": "decode_tokens_per_s",
    "generate": "output_tokens_per_s",
}
_SAMPLES_OF = ("train", "generate", "forward", "call", "prefill")
_MEMORY = (
    ("max_allocated", "peak_memory_bytes"),
    ("max_reserved", "reserved_memory_bytes"),
    ("max_global_vram", "device_memory_bytes"),
)
_STATS = (("mean", "mean"), ("p50", "p50"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"), ("stdev", "std"))


def _json_run(record: Fields) -> ParsedRun:
    found = _report_of(record.fields)
    report, path = found if found is not None else ({}, ())
    config = record.fields.get("config")
    also: dict[str, float | str] = {}
    samples: dict[str, tuple[float, ...]] = {}
    for target in (*_TIME_OF, *(key for key in report if key not in _TIME_OF)):
        measured = report.get(target)
        if isinstance(measured, dict) and _is_measurements(measured):
            at = pointer(record.prefix, *path, target)
            _target(record, target, measured, at, also, samples)
    _memory(record, report, pointer(record.prefix, *path), also)
    return _finish(record, _Setting.of_json(config), also, samples, mode=_mode(report))


def _mode(report: Mapping[str, Any]) -> str:
    return "train" if _is_measurements(report.get("train")) else "latency"


def _target(
    record: Fields,
    target: str,
    measured: Mapping[str, Any],
    at: str,
    also: dict[str, float | str],
    samples: dict[str, tuple[float, ...]],
) -> None:
    latency = measured.get("latency")
    if isinstance(latency, dict):
        _latency(record, target, Fields(latency, pointer(at, "latency")), also, samples)
    throughput = measured.get("throughput")
    value = as_float(within(throughput, "value"))
    unit = (word(within(throughput, "unit"), 30) or "").lower()
    if value is not None and math.isfinite(value) and value > 0:
        name = _TOKENS_OF.get(target) if unit.startswith("token") else None
        if name is None and target in _SAMPLES_OF and not unit.startswith("token"):
            name = "samples_per_s" if target != "prefill" else None
        if name is not None and not record.has(name):
            place = pointer(at, "throughput", "value")
            record.add(name, value, at=place, raw=within(throughput, "value"), raw_unit=unit)
        elif name is None:
            also[f"Throughput of {clean(target, 40)} ({unit or 'no unit'})"] = value
    energy = measured.get("energy")
    spent = as_float(within(energy, "total"))
    scale = scale_to_si("energy_j", word(within(energy, "unit"), 20) or "")
    if spent is not None and scale is not None and math.isfinite(spent) and spent > 0:
        also[f"Energy of {clean(target, 40)} (J)"] = spent * scale


def _latency(
    record: Fields, target: str, told: Fields, also: dict[str, float | str], samples: dict[str, tuple[float, ...]]
) -> None:
    unit = told.text("unit", 20) or "s"
    scale = scale_to_si("latency_s", unit)
    if scale is None:
        record.wrong_type.append(f"{target}.latency (in {unit})")
        return
    values = [value * scale for value in finite_numbers(told.raw("values")) if value >= 0]
    count = told.count("count") or len(values) or None
    names = _TIME_OF.get(target)
    if names is None:
        mean = told.number("mean")
        if mean:
            also[f"Time of {clean(target, 40)}, mean (s)"] = mean * scale
        return
    if record.has(names[0], "mean"):  # a report of both forward and generate has one whole latency each
        return
    # A list of single times makes the statistics that older reports lack.
    for name in names:
        for key, stat in _STATS:
            if (key == "stdev" and count == 1) or told.fields.get(key) is None:
                continue
            number = told.number(key)
            if number is not None and (number or key == "stdev"):
                raw = told.fields[key]
                record.add(name, number * scale, at=told.at(key), raw=raw, raw_unit=unit, stat=stat, count=count)
        add_statistics(record, name, values, at=told.at("values"), unit=unit)
    record.non_finite += told.non_finite
    record.wrong_type += told.wrong_type
    if target == "per_token" and (mean := told.number("mean")):
        # Every sequence of the batch gets a token in each step, so the mean gap is the mean time per token.
        raw = told.fields["mean"]
        record.add("tpot_s", mean * scale, at=told.at("mean"), raw=raw, raw_unit=unit, stat="mean", count=count)
    if values:
        samples[names[0]] = thinned(values)


def _memory(record: Fields, report: Mapping[str, Any], at: str, also: dict[str, float | str]) -> None:
    """The most that any target needed, of each kind that the tool tells apart; loading the model is no run."""
    targets = [key for key in report if not key.startswith("load")] or list(report)
    for key, name in _MEMORY:
        found: list[tuple[float, str, object, str]] = []
        for target in targets:
            memory = within(report, target, "memory")
            unit = word(within(memory, "unit"), 20) or "MB"
            value, scale = as_float(within(memory, key)), scale_to_si(name, unit)
            if value is not None and scale is not None and math.isfinite(value) and value > 0:
                found.append((value * scale, pointer(at, target, "memory", key), within(memory, key), unit))
        if found:
            most, place, raw, unit = max(found, key=lambda item: item[0])
            record.add(name, most, at=place, raw=raw, raw_unit=unit)
    ram = [as_float(within(report, target, "memory", "max_ram")) for target in targets]
    most_ram = max((value for value in ram if value is not None and math.isfinite(value)), default=0.0)
    if most_ram > 0:
        also["Peak memory of the host (MB)"] = most_ram


# --- what was run --------------------------------------------------------------------------------------------------


_IN_SCHEME: tuple[tuple[str, str], ...] = (
    (r"fp8|float8|qfloat8", "fp8"),
    (r"nvfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"int4|nf4|awq|4bit", "int4"),
    (r"int8|8bit", "int8"),
)
"""How the weights are stored, by a word in the name of a quantisation scheme."""


class _Setting:
    """Model, device, precision and work of one experiment, from a configuration in JSON or from columns."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.model: str | None = None
        self.hardware: str | None = None
        self.task: str | None = None
        self.batch: float | None = None
        self.inputs: float | None = None
        self.outputs: float | None = None
        self.dtypes: dict[str, str] = {}
        self.quantization: str | None = None
        self.software: dict[str, str] = {}
        self.server: dict[str, Any] = {}
        self.devices: int | None = None

    @classmethod
    def of_json(cls, config: Any) -> _Setting:
        new = cls()
        backend, environment = within(config, "backend"), within(config, "environment")
        scenario = within(config, "scenario") or within(config, "benchmark")
        new.name = word(within(config, "name"), 120)
        model = word(within(backend, "model"), 300) or word(within(config, "model"), 300)
        new.model = model_name(model) if model else None
        new.task = word(within(backend, "task"), 60)
        gpus, cpu = within(environment, "gpu"), word(within(environment, "cpu"))
        device = word(within(backend, "device"), 40)
        new._device(gpus if isinstance(gpus, list) else [gpus], device, cpu)
        quantization = within(backend, "quantization_config")
        new._precision(
            word(within(backend, "torch_dtype"), 40) or word(within(backend, "dtype"), 40),
            " ".join(
                told
                for told in (
                    word(within(backend, "quantization_scheme"), 40),
                    word(within(quantization, "quant_type"), 60),
                    word(within(quantization, "weights"), 20),
                )
                if told
            ),
            4.0
            if within(quantization, "load_in_4bit") is True
            else 8.0
            if within(quantization, "load_in_8bit") is True
            else as_float(within(quantization, "bits")),
        )
        shapes = within(scenario, "input_shapes")
        new.batch = _above_zero(within(shapes, "batch_size"))
        new.inputs = _above_zero(within(shapes, "sequence_length"))
        generate = within(scenario, "generate_kwargs")
        new.outputs = _above_zero(within(generate, "max_new_tokens")) or _above_zero(within(scenario, "new_tokens"))
        new._software(
            word(within(backend, "name"), 40),
            word(within(backend, "version"), 40),
            {k: within(environment, f"{k}_version") for k in ("optimum_benchmark", "transformers", "optimum")},
        )
        for key in ("torch_compile", "attn_implementation", "device_map", "tp_plan"):
            value = setting(within(backend, key))
            if value is not None:
                new.server[key] = value
        ids = word(within(backend, "device_ids"), 60)
        if ids and re.fullmatch(r"[\d,\s]+", ids):
            new.devices = len([part for part in ids.split(",") if part.strip()])
        return new

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> _Setting:
        new = cls()
        new.name = clean(row.get("experiment_name", ""), 120) or None
        model = row.get("model", "").strip()
        new.model = model_name(model) if model else None
        new.task = clean(row.get("task", ""), 60) or None
        new._device(_python_list(row.get("environment.gpus", "")), row.get("device"), row.get("environment.cpu"))
        scheme = row.get("backend.quantization_strategy") or None
        four = row.get("backend.quantization_config.load_in_4bit") == "True"
        eight = row.get("backend.quantization_config.load_in_8bit") == "True"
        bits = as_float(row.get("backend.quantization_config.bits") or None)
        new._precision(row.get("backend.torch_dtype"), scheme, 4.0 if four else 8.0 if eight else bits)
        new.batch = _above_zero(row.get("benchmark.input_shapes.batch_size"))
        new.inputs = _above_zero(row.get("benchmark.input_shapes.sequence_length"))
        new.outputs = _above_zero(row.get("benchmark.new_tokens")) or _above_zero(
            row.get("benchmark.generate_kwargs.max_new_tokens")
        )
        new._software(
            clean(row.get("backend.name", ""), 40) or None,
            clean(row.get("backend.version", ""), 40) or None,
            {key: row.get(f"environment.{key}_version") for key in ("transformers", "optimum")},
        )
        for column, key in (
            ("backend.torch_compile", "torch_compile"),
            ("backend.bettertransformer", "bettertransformer"),
        ):
            if row.get(column) in ("True", "False"):
                new.server[key] = row[column] == "True"
        return new

    def _device(self, gpus: Sequence[Any], device: str | None, cpu: str | None) -> None:
        names = [name for gpu in gpus if (name := word(gpu)) and not _DISPLAY.search(name)]
        if device and device.strip().lower() == "cpu":
            self.hardware = clean(cpu or "", 120) or None
        elif names:
            self.hardware = ", ".join(dict.fromkeys(names))

    def _precision(self, dtype: str | None, scheme: str | None, bits: float | None) -> None:
        self.dtypes = dtypes_of(dtype)
        if scheme:
            self.quantization = clean(scheme, 40) + (f", {bits:g} bits" if bits and bits < 100 else "")
            told = [name for pattern, name in _IN_SCHEME if re.search(pattern, scheme, re.IGNORECASE)]
            weights = {4.0: "int4", 8.0: "int8"}.get(bits or 0.0) or (told[0] if told else None)
            if weights:
                self.dtypes["weights"] = weights
            else:
                self.dtypes.pop("weights", None)
            if weights == "fp8" and re.search("fbgemm|dynamic", scheme, re.IGNORECASE):
                self.dtypes["activations"] = "fp8"

    def _software(self, backend: str | None, version: str | None, others: Mapping[str, Any]) -> None:
        self.software = {"client": "optimum-benchmark"}
        if backend:
            self.software["backend"] = backend
        if version:
            self.software["torch" if backend == "pytorch" else "backend version"] = version
        for key, value in others.items():
            if text := word(value, 40):
                self.software[key] = text


def _above_zero(value: Any) -> float | None:
    number = as_float(value)
    return number if number is not None and math.isfinite(number) and 0 < number < 2**40 else None


def _python_list(text: str) -> list[str]:
    """The texts of a Python list written into a cell; nothing else is evaluated."""
    if not text.startswith("[") or len(text) > 10_000:
        return []
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return []
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _finish(
    record: Fields,
    told: _Setting,
    also: dict[str, float | str],
    samples: dict[str, tuple[float, ...]],
    mode: str,
    tags: Mapping[str, Any] | None = None,
) -> ParsedRun:
    if told.task:
        also = {"Task": told.task, **also}
    if told.devices:
        also["Devices"] = float(told.devices)
    extra: dict[str, Any] = {
        "quantization": told.quantization,
        "also": also,
        "server": told.server,
        "tags": dict(tags or {}),
    }
    findings = serving.check_latencies(record.metrics)
    findings += record.findings()
    unknown = {"parallel": "parallel layout"}
    for name, known, words in (
        ("model", told.model, "model"),
        ("hardware", told.hardware, "hardware"),
        ("dtypes", told.dtypes or told.quantization, "precision"),
        ("batch", told.batch, "batch"),
        ("input_len", told.inputs, "lengths"),
    ):
        if not known:
            unknown[name] = words
    findings += serving.facts_finding(unknown)
    shown = told.model.rsplit("/", 1)[-1] if told.model else None
    parts = [shown or told.name or "optimum-benchmark"]
    if told.quantization:
        parts.append(told.quantization.split(",")[0])
    if told.batch is not None:
        parts.append(f"batch {told.batch:g}")
    return ParsedRun(
        name=", ".join(parts),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode=mode,
            batch=told.batch,
            input_len=told.inputs,
            output_len=told.outputs if mode != "train" else None,
            dtypes=told.dtypes,
            extra={key: value for key, value in extra.items() if value},
        ),
        model_hint=told.model,
        hardware_hint=told.hardware,
        software=told.software,
        samples=samples,
        findings=tuple(findings),
    )


# --- CSV of 2023 ---------------------------------------------------------------------------------------------------

_MEASURED = ("forward.latency(s)", "generate.latency(s)")


def _header(content: Content) -> int | None:
    """Index of the header line."""
    head = content.head
    if not any(name in head for name in _MEASURED):
        return None
    for index, line in enumerate(content.lines[:50]):
        if any(name in line for name in _MEASURED):
            return index
    return None


def _csv_upload(content: Content, format_id: str) -> ParsedUpload:
    runs: list[ParsedRun] = []
    odd: list[int] = []
    for line, row, mark in _rows(content, odd):
        run = _csv_run(line, row, mark)
        if run is None:
            odd.append(line)
            continue
        if len(runs) >= content.limits.max_runs:
            raise UnreadableUpload(
                "too-large",
                f"The file holds more than {content.limits.max_runs} rows.",
                hint="Split it into several files.",
            )
        runs.append(run)
    if not runs:
        raise UnreadableUpload(
            "invalid",
            "This is a report of optimum-benchmark without a measured row.",
            hint="Check that the experiment ran to its end.",
        )
    notes = list(text_findings(content))
    if odd:
        places = ", ".join(str(line) for line in odd[:10])
        notes.append(
            Finding(
                "damaged-lines",
                "warning",
                f"{len(odd)} row(s) have no figure or another number of cells than the header (line {places}); the "
                "others were read.",
            )
        )
    return ParsedUpload(format_id, serving.with_series(runs), tuple(notes))


def _rows(content: Content, odd: list[int]) -> Iterator[tuple[int, dict[str, str], str]]:
    """Rows by column name with the line they begin on."""
    start = _header(content) or 0
    by = max(",;\t", key=content.lines[start].count)
    lines = whole_lines(content, by)
    names: list[str] = []
    for number, name in enumerate(cells_of(lines[start], by)):
        plain = name.strip() or f"column {number + 1}"
        names.append(plain if plain not in names else f"{plain} #{number + 1}")
    figures = [number for number, name in enumerate(names) if name.startswith(("forward.", "generate."))]
    rows = [(line, cells) for line, cells in numbered_rows(lines, by, start + 1) if any(cells)]
    mark = decimal_mark((row[number] for _, row in rows[:200] if len(row) == len(names) for number in figures), by)
    for line, row in rows:
        if len(row) != len(names):
            odd.append(line)
            continue
        yield line, dict(zip(names, row, strict=True)), mark


class _RowFields(Fields):
    """Figures of a row; the pointer is the line and the column."""

    def at(self, *keys: str | int) -> str:
        return f"{self.prefix}: {keys[0]}" if keys else self.prefix


def _csv_run(line: int, row: Mapping[str, str], mark: str) -> ParsedRun | None:
    figures = {
        key: number
        for key, cell in row.items()
        if key.startswith(("forward.", "generate.")) and (number := number_in(cell, mark)) is not None and number != 0
    }
    if not figures:
        return None
    record = _RowFields(figures, f"line {line}")
    settings = _Setting.of_row(row)
    generates = any(key.startswith("generate.") for key in figures)
    also: dict[str, float | str] = {}

    def keep(name: str, key: str, unit: str, scale: float = 1.0) -> None:
        value = figures.get(key)
        if value is not None:
            record.add(name, value * scale, at=record.at(key), raw=row[key], raw_unit=unit)

    if generates:
        # The forward pass of a model that generates is the prefill of the batch.
        keep("prefill_time_s", "forward.latency(s)", "s")
        keep("latency_s", "generate.latency(s)", "s")
        keep("output_tokens_per_s", "generate.throughput(tokens/s)", "tokens/s")
        told = figures.get("forward.throughput(samples/s)")
        if told is not None:
            also["Prompts prefilled a second"] = told
    else:
        keep("latency_s", "forward.latency(s)", "s")
        keep("samples_per_s", "forward.throughput(samples/s)", "samples/s")
    peaks = [k for k in ("generate.peak_memory(MB)", "forward.peak_memory(MB)") if k in figures]
    if peaks:
        keep("peak_memory_bytes", max(peaks, key=lambda k: figures[k]), "MB", MEGA)
        lower = min(peaks, key=lambda k: figures[k])
        if figures[lower] != max(figures[key] for key in peaks):
            also[f"Peak memory of {lower.split('.')[0]} (MB)"] = figures[lower]
    tags = {"experiment": settings.name} if settings.name else {}
    return _finish(record, settings, also, {}, mode="latency", tags=tags)
