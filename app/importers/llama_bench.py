"""llama.cpp's `llama-bench`, in each form it prints: JSON, JSON lines, CSV, SQL inserts and the markdown table.

Field meanings are those of ggml-org/llama.cpp, tools/llama-bench/llama-bench.cpp; builds 6865 to 10246 were seen. Every
row is one test of one setting: prompt processing (pp), generation (tg), or both in turn (pg), for a single sequence.
`n_depth` tokens are in the KV cache before the clock starts. Tokenisation and sampling are not timed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.domain.units import GIBI, KIBI, MEBI
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, model_name
from app.importers.logs import log_number, text_findings
from app.importers.reading import Content, clean
from app.importers.tables import cells_of, numbered_rows, whole_lines

NANO = 1e-9

_SETTINGS = (
    "n_batch",
    "n_ubatch",
    "n_threads",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "n_cpu_moe",
    "split_mode",
    "flash_attn",
    "devices",
    "tensor_split",
    "tensor_buft_overrides",
    "no_kv_offload",
    "no_op_offload",
    "load_mode",
    "use_mmap",
    "embeddings",
    "backends",
    "cpu_info",
    "model_type",
)
_OLD_BACKENDS = ("cuda", "vulkan", "kompute", "metal", "sycl", "rpc", "gpu_blas", "blas", "opencl")
"""Before `backends`, each backend was a column of its own holding true or false."""

_KV_PRECISION: Mapping[str, str] = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "q8_0": "int8",
    "q4_0": "int4",
    "q4_1": "int4",
    "iq4_nl": "int4",
}
_WEIGHT_PRECISION: Mapping[str, str] = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "MXFP4": "mxfp4"}
_QUANT_SUFFIX = re.compile(
    r"[-._ ](?:UD[-_])?((?:I?Q\d(?:_[A-Z0-9]+)*)|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4)$", re.IGNORECASE
)
_SPLIT_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
_TEST_NAME = re.compile(r"(pp|tg|pg)\s*(\d{1,12})(?:\s*\+\s*(?:tg)?\s*(\d{1,12}))?(?:\s*@\s*d\s*(\d{1,12}))?", re.ASCII)
_SIZE = re.compile(r"([\d.,]{1,20})\s*(KiB|MiB|GiB|TiB|B)", re.ASCII)
_PARAMETERS = re.compile(r"([\d.,]{1,20})\s*([KMBT]?)", re.ASCII)
_SIZE_UNIT = {"B": 1.0, "KiB": KIBI, "MiB": MEBI, "GiB": GIBI, "TiB": GIBI * KIBI}
_PARAMETER_UNIT = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_RATE = re.compile(r"(\d[\d.,]{0,29})(?:\s*(?:±|\ufffd|\+/-|\+-)\s*(\d[\d.,]{0,29}))?", re.ASCII)


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object or a row is one test of llama-bench."""
    return (
        "build_commit" in fields and "avg_ts" in fields and ("model_n_params" in fields or "model_filename" in fields)
    )


class LlamaBench:
    id = "llama-bench"
    title = "llama.cpp llama-bench (JSON, JSON lines, CSV, SQL or markdown)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if any(looks_like(fields) for fields in content.first_records):
            return Sniff(0.97, "objects with build_commit, model_n_params and avg_ts")
        if _sql_start(content) is not None:
            return Sniff(0.95, "INSERT INTO llama_bench")
        if _csv_header(content) is not None:
            return Sniff(0.95, "a CSV header with build_commit and avg_ts")
        if _markdown_header(content) is not None:
            return Sniff(0.9, "a markdown table with the columns model, test and t/s")
        return Sniff(0.0, "no build_commit with avg_ts, and no table with the columns model, test and t/s")

    def parse(self, content: Content) -> ParsedUpload:
        if any(looks_like(fields) for fields in content.first_records):
            rows = list(_json_rows(content))
            notes = [*content.findings(), *content.json.findings()]
        elif _sql_start(content) is not None:
            rows = list(_sql_rows(content))
            notes = list(content.findings())
        elif _csv_header(content) is not None:
            rows = list(_csv_rows(content))
            notes = list(text_findings(content))
        else:
            rows = list(_markdown_rows(content))
            notes = list(content.findings())
        runs: list[ParsedRun] = []
        unusable: list[str] = []
        for record in rows:
            run = _run(record)
            if run is None:
                unusable.append(record.prefix or "/")
            else:
                runs.append(run)
            if len(runs) > content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} tests.",
                    hint="Split it into several files.",
                )
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "This is llama-bench output without a finished test.",
                hint="Each row needs n_prompt or n_gen, and avg_ts or avg_ns.",
            )
        notes += serving.stranger_findings(unusable)
        notes += _evenness(runs)
        return ParsedUpload(self.id, _with_series(runs), tuple(notes))


# --- the five forms, each as rows of the same fields ---------------------------------------------------------------


def _json_rows(content: Content) -> Iterator[Fields]:
    for record in content.json.records():
        if isinstance(record.value, dict) and looks_like(record.value):
            yield Fields(record.value, record.prefix)


def _csv_header(content: Content) -> int | None:
    """Index of the header line; log lines may stand before it."""
    if "build_commit" not in content.head:
        return None
    for index, line in enumerate(content.lines[:200]):
        names = {name.strip().strip('"') for name in line.split(",")}
        if "build_commit" in names and "avg_ts" in names:
            return index
    return None


def _csv_rows(content: Content) -> Iterator[Fields]:
    start = _csv_header(content) or 0
    lines = whole_lines(content, ",")
    names = cells_of(lines[start], ",")
    for line, cells in numbered_rows(lines, ",", start + 1):
        if len(cells) != len(names) or cells == names:
            continue
        row = {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}
        yield Fields(row, f"line {line}: ")


_SQL_INSERT = re.compile(
    r"INSERT\s+INTO\s+(?:llama_bench|test)\s*\(([^()]*\bavg_ts\b[^()]*)\)\s*VALUES\s*\(", re.IGNORECASE
)
_SQL_VALUE = re.compile(r"\s*(?:'((?:[^']|'')*)'|([^',()\s]+))\s*([,)])")


def _sql_start(content: Content) -> int | None:
    match = _SQL_INSERT.search(content.head)
    return match.start() if match else None


def _sql_rows(content: Content) -> Iterator[Fields]:
    text = content.text
    line, counted_to = 1, 0
    for match in _SQL_INSERT.finditer(text):
        line += text.count("\n", counted_to, match.start())
        counted_to = match.start()
        names = [name.strip().strip("\"`'") for name in match[1].split(",")]
        values: list[str] = []
        pos = match.end()
        while len(values) <= len(names) and (cell := _SQL_VALUE.match(text, pos)):
            values.append(cell[1].replace("''", "'") if cell[1] is not None else cell[2])
            pos = cell.end()
            if cell[3] == ")":
                break
        if len(values) == len(names):
            yield Fields(dict(zip(names, values, strict=True)), f"line {line}: ")


def _markdown_cells(line: str) -> list[str]:
    inner = line.strip()
    return [cell.strip() for cell in inner[1:-1].split("|")] if inner.startswith("|") and inner.endswith("|") else []


def _markdown_header(content: Content) -> int | None:
    if "t/s" not in content.text:
        return None
    for index, line in enumerate(content.lines[:5000]):
        cells = _markdown_cells(line)
        if "model" in cells and "test" in cells and "t/s" in cells:
            return index
    return None


_MARKDOWN_COLUMNS: Mapping[str, str] = {
    "ngl": "n_gpu_layers",
    "fa": "flash_attn",
    "mmap": "use_mmap",
    "threads": "n_threads",
    "sm": "split_mode",
    "mg": "main_gpu",
    "nkvo": "no_kv_offload",
    "ts": "tensor_split",
    "ot": "tensor_buft_overrides",
    "dev": "devices",
    "embd": "embeddings",
    "backend": "backends",
    "ncmoe": "n_cpu_moe",
}


def _markdown_rows(content: Content) -> Iterator[Fields]:
    """Rows of the printed table. The device is in the log lines above it, the build in a line below."""
    lines = content.lines
    start = _markdown_header(content) or 0
    device = _device_of_log(lines[:start])
    build = next(
        (m for line in reversed(lines[-200:]) if (m := re.search(r"build: (\w{4,40}) \((\d{1,9})\)", line))), None
    )
    names = _markdown_cells(lines[start])
    for index in range(start + 1, len(lines)):
        cells = _markdown_cells(lines[index])
        if "model" in cells and "t/s" in cells:  # a second table in the same log
            names = cells
            continue
        if len(cells) != len(names) or all(set(cell) <= set(":- ") for cell in cells):
            continue
        row = dict(zip(names, cells, strict=True))
        test = _TEST_NAME.fullmatch(row.get("test", ""))
        rate = _RATE.fullmatch(row.get("t/s", ""))
        if test is None or rate is None:
            continue
        kind, first, second, depth = test[1], int(test[2]), test[3], test[4]
        fields: dict[str, Any] = {
            _MARKDOWN_COLUMNS.get(name, name): cell for name, cell in row.items() if name not in _MARKDOWN_OWN and cell
        }
        fields |= {
            "model_type": row.get("model", ""),
            "n_prompt": 0 if kind == "tg" else first,
            "n_gen": first if kind == "tg" else int(second or 0),
            "n_depth": int(depth or 0),
            "avg_ts": _rate(rate[1]),
        }
        if rate[2]:
            fields["stddev_ts"] = _rate(rate[2])
        if (size := _SIZE.fullmatch(row.get("size", ""))) and (number := log_number(size[1])) is not None:
            fields["model_size"] = number * _SIZE_UNIT[size[2]]
        if (params := _PARAMETERS.fullmatch(row.get("params", ""))) and (number := log_number(params[1])) is not None:
            fields["model_n_params"] = number * _PARAMETER_UNIT[params[2]]
        if device:
            fields["gpu_info"] = device
        if build:
            fields |= {"build_commit": build[1], "build_number": build[2]}
        yield Fields(fields, f"line {index + 1}: ")


def _rate(written: str) -> str:
    """A rate as the table has it; where somebody grouped its digits or wrote a decimal comma, as a plain number."""
    found = log_number(written, grouped=True) if "," in written else None
    return written if found is None else repr(found)


_MARKDOWN_OWN = frozenset({"model", "size", "params", "test", "t/s"})
_DEVICE_LINE = re.compile(r"(?:ggml_vulkan: \d+ = |\s*Device \d+: )([^|(,]{2,120})")


def _device_of_log(lines: Sequence[str]) -> str | None:
    found = [clean(m[1], 120) for line in lines[-200:] if (m := _DEVICE_LINE.match(line))]
    return ", ".join(dict.fromkeys(found)) or None


# --- one test ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Test:
    prompt: int
    generated: int
    depth: int

    @property
    def name(self) -> str:
        if self.generated == 0:
            word = f"pp{self.prompt}"
        elif self.prompt == 0:
            word = f"tg{self.generated}"
        else:
            word = f"pp{self.prompt}+tg{self.generated}"
        return f"{word} @ d{self.depth}" if self.depth else word


def _run(record: Fields) -> ParsedRun | None:
    """One test as a run; None when the row holds no finished test."""
    counts = [record.count(key) for key in ("n_prompt", "n_gen", "n_depth")]
    prompt, generated, depth = (int(c) if c is not None and c < 2**40 else 0 for c in counts)
    test = _Test(prompt, generated, depth)
    if prompt + generated == 0:
        return None
    samples_ns = _samples(record, "samples_ns")
    samples_ts = _samples(record, "samples_ts")
    repetitions = len(samples_ns) or len(samples_ts) or None
    scale = NANO / generated if prompt == 0 else NANO
    if generated == 0:
        mode, time, rate = "prefill", "prefill_time_s", "prefill_tokens_per_s"
    elif prompt == 0:
        mode, time, rate = "decode", "tpot_s", "decode_tokens_per_s"
    else:
        mode, time, rate = "latency", "latency_s", "total_tokens_per_s"
    names = (time, "ttft_s") if mode == "prefill" else (time,)
    kept: dict[str, tuple[float, ...]] = {}
    if record.number("avg_ts") == 0 and not record.number("avg_ns"):
        return None
    record.metric(rate, "avg_ts", raw_unit="tok/s", count=repetitions)
    if repetitions != 1:
        record.metric(rate, "stddev_ts", raw_unit="tok/s", stat="std", count=repetitions)
    for name in names:
        _times(record, name, scale, samples_ns, repetitions)
    if "avg_ns" not in record.fields and not samples_ns:
        _time_from_rate(record, names, 1 if mode == "decode" else prompt + generated, rate)
    elif mode == "decode":
        _times(record, "decode_time_s", NANO, samples_ns, repetitions)
    if samples_ns:
        kept[time] = tuple(value * scale for value in samples_ns)
    if samples_ts:
        kept[rate] = tuple(samples_ts)
        for stat, value in (("min", min(samples_ts)), ("max", max(samples_ts))):
            record.add(
                rate, value, at=record.at("samples_ts"), raw=value, raw_unit="tok/s", stat=stat, count=repetitions
            )
    if not any(m.name in (time, rate) and m.stat != "std" for m in record.metrics):
        return None
    weight_bytes = record.metric("weight_bytes", "model_size", raw_unit="bytes")
    parameters = record.metric("parameters", "model_n_params", raw_unit="parameters")

    filename = record.text("model_filename", 400)
    kind = record.text("model_type")
    model, quantisation = _model(filename, kind)
    hardware = record.text("gpu_info") or record.text("cpu_info")
    settings: dict[str, str | float | bool] = {}
    for key in _SETTINGS:
        setting = _setting(record, key)
        if setting is not None:
            settings[key] = setting
    backends = [key for key in _OLD_BACKENDS if record.raw(key) in (True, 1, "1", "true")]
    if backends and "backends" not in settings:
        settings["backends"] = ", ".join(backends)
    software = {"engine": "llama.cpp"}
    for key in ("build_number", "build_commit"):
        told = record.raw(key)
        if isinstance(told, (int, str)) and not isinstance(told, bool) and (word := clean(str(told)[:200], 60)):
            software[key] = word
    if "backends" in settings:
        software["backend"] = str(settings["backends"])
    dtypes = _dtypes(settings, quantisation)
    extra: dict[str, Any] = {"test": test.name} | settings
    if quantisation:
        extra["quantization"] = quantisation
    measured_at = record.text("test_time", 40)
    record.ignore("main_gpu", "cpu_mask", "cpu_strict", "poll", "gpu_info", "cpu_info", "stddev_ns", "stddev_ts")
    tags = record.unknown()
    if tags:
        extra["tags"] = tags

    findings = serving.check_latencies(record.metrics)
    findings += _rate_against_time(record, test, rate)
    findings += record.findings()
    unknown: dict[str, str] = {}
    if hardware is None:
        unknown["hardware"] = "hardware"
    if "build_commit" not in software and "build_number" not in software:
        unknown["version"] = "llama.cpp build"
    if weight_bytes is None:
        unknown["weight_bytes"] = "size of the weights"
    if repetitions is None:
        unknown["count"] = "number of repetitions"
    if unknown:
        findings += serving.facts_finding(unknown)
    return ParsedRun(
        name=f"{model or 'llama-bench'}, {test.name}",
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode=mode,
            batch=1.0,
            concurrency=1.0,
            input_len=float(prompt) if prompt else None,
            output_len=float(generated) if generated else None,
            context_len=float(depth),
            weight_bytes=weight_bytes,
            parameters=parameters,
            dtypes=dtypes,
            extra=extra,
        ),
        model_hint=model,
        hardware_hint=hardware,
        software=software,
        samples=kept,
        measured_at=measured_at,
        series={"n_prompt": float(prompt), "n_gen": float(generated), "n_depth": float(depth), "test": test.name},
        findings=tuple(findings),
    )


def _times(record: Fields, name: str, scale: float, samples: Sequence[float], repetitions: int | None) -> None:
    """Mean and deviation as the file gives them; median and extremes from its samples."""
    unit = "ns"
    mean = record.metric(name, "avg_ns", scale=scale, raw_unit=unit, stat="mean", count=repetitions)
    if mean is None and samples:
        record.add(
            name,
            sum(value / len(samples) for value in samples) * scale,
            at=record.at("samples_ns"),
            raw=f"mean of {len(samples)}",
            raw_unit=unit,
            stat="mean",
            count=len(samples),
        )
    # One repetition has no spread; the zero that the tool writes is not a measurement.
    if repetitions != 1 and record.number("stddev_ns"):
        record.metric(name, "stddev_ns", scale=scale, raw_unit=unit, stat="std", count=repetitions)
    if len(samples) > 1:
        for stat, value in (("p50", statistics.median(samples)), ("min", min(samples)), ("max", max(samples))):
            record.add(
                name,
                value * scale,
                at=record.at("samples_ns"),
                raw=f"{value:.0f}",
                raw_unit=unit,
                stat=stat,
                count=len(samples),
            )


def _time_from_rate(record: Fields, names: Sequence[str], tokens: int, rate: str) -> None:
    """The table prints rates only; the mean time is tokens over rate, up to the rounding of the table."""
    told = record.value(rate)
    if not told or told <= 0:
        return
    for name in names:
        record.add(
            name, tokens / told, at=record.at("t/s"), raw=f"{tokens} / {told:g}", raw_unit="tok / (tok/s)", stat="mean"
        )


def _samples(record: Fields, key: str) -> list[float]:
    """Finite positive numbers of an array; one that holds anything else is unusable as a whole."""
    value = record.raw(key)
    if not isinstance(value, list) or not value:
        return []
    numbers = [as_float(item) for item in value]
    good = [n for n in numbers if n is not None and math.isfinite(n) and n > 0]
    if len(good) != len(numbers):
        record.wrong_type.append(key)
        return []
    return good


def _setting(record: Fields, key: str) -> str | float | bool | None:
    value = record.raw(key)
    if isinstance(value, bool):
        return value
    number = as_float(value)
    if number is not None:
        return number if math.isfinite(number) else None
    return (clean(value, 200) or None) if isinstance(value, str) else None


def _model(filename: str | None, kind: str | None) -> tuple[str | None, str | None]:
    """Model name and quantisation out of the file name (`Llama-3.2-1B-Instruct-Q4_K_M.gguf`), else the type's words."""
    if filename:
        stem = _SPLIT_SUFFIX.sub("", re.sub(r"\.gguf$", "", model_name(filename), flags=re.IGNORECASE))
        # A split file carries `.gguf-00001-of-00004.gguf` in some names.
        stem = re.sub(r"\.gguf$", "", stem, flags=re.IGNORECASE).rsplit("/", 1)[-1]
        match = _QUANT_SUFFIX.search(stem)
        if match and match.start() > 0:
            return stem[: match.start()], match[1].upper()
        if stem:
            return stem, _quantisation_of_type(kind)
    return kind, _quantisation_of_type(kind)


def _quantisation_of_type(kind: str | None) -> str | None:
    match = re.search(r"\b(I?Q\d(?:_[A-Z0-9]+)*(?: - \w+)?|BF16|F16|F32|MXFP4)\b", kind or "")
    return match[1] if match else None


def _dtypes(settings: Mapping[str, Any], quantisation: str | None) -> dict[str, str]:
    """Precisions that have a name here. Block quantisations are stated by `weight_bytes` over `parameters` instead."""
    found: dict[str, str] = {}
    keys = settings.get("type_k"), settings.get("type_v")
    if keys[0] == keys[1] and isinstance(keys[0], str) and keys[0] in _KV_PRECISION:
        found["kv"] = _KV_PRECISION[keys[0]]
    if quantisation and (name := _WEIGHT_PRECISION.get(quantisation.upper().removesuffix("_MOE"))):
        found["weights"] = name
    return found


def _rate_against_time(record: Fields, test: _Test, rate: str) -> list[Finding]:
    """avg_ts is the mean of the repetitions' rates, so it may differ from tokens over mean time by their spread."""
    told, spread = record.value(rate), record.value(rate, "std") or 0.0
    nanoseconds = as_float(record.fields.get("avg_ns"))
    seconds = nanoseconds * NANO if nanoseconds is not None else 0.0
    if not told or not math.isfinite(seconds) or seconds <= 0:
        return []
    computed = (test.prompt + test.generated) / seconds
    relative = spread / told
    allowed = max(0.02, 3 * relative * relative)
    if abs(told - computed) <= allowed * max(told, computed):
        return []
    return [
        Finding(
            "rate-mismatch",
            "warning",
            f"{test.name}: avg_ts says {told:.6g} tokens/s, but the tokens over avg_ns give {computed:.6g}.",
            (rate,),
        )
    ]


def _evenness(runs: Sequence[ParsedRun]) -> list[Finding]:
    """The same relative spread in every test does not happen in a measurement."""
    spreads: list[float] = []
    for run in runs:
        for rate in ("prefill_tokens_per_s", "decode_tokens_per_s", "total_tokens_per_s"):
            mean, std = run.value(rate), run.value(rate, "std")
            if mean and std:
                spreads.append(std / mean)
    if len(spreads) < 4 or len(spreads) < len(runs) or max(spreads) - min(spreads) > 1e-4 * max(spreads):
        return []
    return [
        Finding(
            "too-even",
            "warning",
            f"Every test has the same relative spread ({max(spreads):.2%}): real repetitions differ from test to test.",
        )
    ]


_VARYING_SETTINGS = ("n_batch", "n_ubatch", "n_threads", "n_gpu_layers", "flash_attn", "type_k", "type_v", "backends")


def _with_series(runs: Sequence[ParsedRun]) -> tuple[ParsedRun, ...]:
    """Add the model and the settings that differ between the tests of the file to what tells the runs apart."""
    out: list[ParsedRun] = []
    varying = [key for key in _VARYING_SETTINGS if len({str(run.workload.extra.get(key)) for run in runs}) > 1]
    several_models = len({run.model_hint for run in runs}) > 1
    for run in runs:
        series: dict[str, float | str] = dict(run.series)
        name = run.name
        for key in varying:
            value = run.workload.extra.get(key)
            if value is not None:
                series[key] = float(value) if isinstance(value, (bool, float, int)) else str(value)
                name += f", {key} {series[key]:g}" if isinstance(series[key], float) else f", {series[key]}"
        if several_models and run.model_hint:
            series["model"] = run.model_hint
        out.append(replace(run, series=series, name=name))
    return tuple(out)
