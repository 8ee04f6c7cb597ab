"""The side file that vLLM's benchmarks write in the PyTorch benchmark format (`*.pytorch.json`).

Field meanings are those of vllm-project/vllm, vllm/benchmarks/lib/utils.py. Each record holds one metric of a run, the
whole command line, and the other figures under `metric.extra_info`. The records of one run are put together and read as
the plain result file would be; of the command line only the settings named below are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.run import Finding, ParsedRun
from app.importers import serving, vllm_bench_latency, vllm_bench_serve, vllm_bench_throughput
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, GatheredFields, listed, model_name
from app.importers.measures import degree, setting, within, word
from app.importers.precision import dtypes_of
from app.importers.reading import Content, pointer

_DEGREES: Mapping[str, str] = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
}
_SETTINGS = (
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "enable_expert_parallel",
    "block_size",
    "num_prompts",
    "dataset_name",
    "backend",
    "n",
    "load_format",
)
"""The only parts of the command line that are kept: what changes the speed."""


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a record of one metric."""
    metric = fields.get("metric")
    return isinstance(fields.get("benchmark"), dict) and isinstance(metric, dict) and "benchmark_values" in metric


class VllmPytorchSideFile:
    id = "vllm-pytorch-side-file"
    title = "vLLM result in the PyTorch benchmark format (*.pytorch.json)"
    tried_on_real_file = False

    def sniff(self, content: Content) -> Sniff:
        return serving.sniff_results(
            content,
            looks_like,
            Sniff(0.95, "records with benchmark, model and metric.benchmark_values"),
            "no records with benchmark and metric.benchmark_values",
        )

    def parse(self, content: Content) -> ParsedUpload:
        strangers: list[str] = []
        runs: list[ParsedRun] = []
        for gathered in _gather(content, strangers):
            run = _run(gathered)
            if run is None:
                strangers.append(gathered.prefix or "/")
                continue
            if len(runs) >= content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} results.",
                    hint="Split it into several files.",
                )
            runs.append(run)
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "The records hold no metric of vLLM's benchmarks.",
                hint="Upload the plain result file that stands beside it.",
            )
        notes = [*content.findings(), *content.json.findings(), *serving.stranger_findings(strangers)]
        return ParsedUpload(self.id, serving.with_series(runs), tuple(notes))


@dataclass(slots=True)
class _Gathered:
    """The records of one run: figures by the names that the plain file has, and the command line."""

    prefix: str
    args: dict[str, Any]
    model: str | None
    figures: dict[str, Any] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def put(self, key: str, value: Any, at: str) -> None:
        if key not in self.figures:
            self.figures[key] = value
            self.pointers[key] = at


def _gather(content: Content, strangers: list[str]) -> Iterator[_Gathered]:
    """Records in order; a metric that comes again, or another command line, begins the next run."""
    current: _Gathered | None = None
    for record in content.json.records():
        value = record.value
        if not isinstance(value, dict) or not looks_like(value):
            strangers.append(record.prefix or "/")
            continue
        args = within(value, "benchmark", "extra_info", "args")
        args = args if isinstance(args, dict) else {}
        name = word(within(value, "metric", "name")) or ""
        if current is None or name in current.names or args != current.args:
            if current is not None:
                yield current
            model = within(value, "model", "name")
            current = _Gathered(record.prefix, args, model_name(model) if isinstance(model, str) and model else None)
        current.names.add(name)
        values = within(value, "metric", "benchmark_values")
        at = pointer(record.prefix, "metric", "benchmark_values")
        if name == "latency":
            current.put("latencies", values, at)
        elif isinstance(values, list) and values:
            current.put(name, values[0], pointer(at, 0))
        info = within(value, "metric", "extra_info")
        for key, item in (info if isinstance(info, dict) else {}).items():
            current.put(key, item, pointer(record.prefix, "metric", "extra_info", key))
    if current is not None:
        yield current


def _run(gathered: _Gathered) -> ParsedRun | None:
    if gathered.model:
        gathered.figures.setdefault("model_id", gathered.model)
    figures = gathered.figures
    record = GatheredFields(figures, gathered.pointers, gathered.prefix)
    if "latencies" in figures and "avg_latency" in figures:
        figures.pop("model_id", None)
        run = vllm_bench_latency.read(record)
    elif figures.keys() >= {"elapsed_time", "requests_per_second"}:
        figures.pop("model_id", None)
        run = vllm_bench_throughput.read(record)
    elif any(serving.matches_statistic(key) for key in figures):
        run = vllm_bench_serve.read(record)
    else:
        return None
    return _with_command_line(run, gathered)


def _with_command_line(run: ParsedRun, gathered: _Gathered) -> ParsedRun:
    """Add what the command line says about model, layout, precision and work, and drop the notes that it answers."""
    args = Fields(gathered.args, pointer(gathered.prefix, "benchmark", "extra_info", "args"))
    parallel = {short: found for key, short in _DEGREES.items() if (found := degree(args.raw(key))) is not None}
    parallel |= run.parallel
    if args.raw("enable_expert_parallel") is True and parallel:
        parallel.setdefault("ep", parallel.get("tp", 1) * parallel.get("dp", 1))
    dtypes = dtypes_of(*(word(args.raw(key)) for key in ("dtype", "quantization", "kv_cache_dtype")))
    eager = args.raw("enforce_eager")
    settings: dict[str, Any] = {}
    for key in _SETTINGS:
        value = setting(args.raw(key))
        if value is not None and value != "auto":
            settings[key] = value
    batch, inputs, outputs = (args.count(key) for key in ("batch_size", "input_len", "output_len"))
    work = run.workload
    model = run.model_hint or gathered.model
    latency = work.mode == "latency"
    named = model.rsplit("/", 1)[-1] if model else None
    name = run.name
    if named and latency:
        name = f"{named}, batch {batch:g}" if batch else named
    elif named and not run.model_hint:
        name = f"{named}, all at once"
    known = {
        "model": model,
        "parallel": parallel,
        "dtypes": dtypes,
        "batch": batch,
        "input_len": inputs if latency else work.input_len or inputs,
    }
    return replace(
        run,
        name=name,
        model_hint=model,
        parallel=parallel,
        software={
            **run.software,
            **({"launch_mode": "eager" if eager else "graph"} if isinstance(eager, bool) else {}),
        },
        workload=replace(
            work,
            batch=batch if latency else work.batch,
            input_len=inputs if work.input_len is None else work.input_len,
            output_len=outputs if work.output_len is None else work.output_len,
            dtypes=dtypes,
            extra={**work.extra, **({"server": settings} if settings else {})},
        ),
        findings=(
            *(answered for note in run.findings if (answered := _answered(note, known)) is not None),
            *args.findings(),
            *serving.left_out_findings(
                ["the command line (except the settings that change the speed)"] if gathered.args else []
            ),
        ),
    )


_FACT_WORDS: Mapping[str, str] = {
    "model": "model",
    "hardware": "hardware",
    "parallel": "parallel layout",
    "dtypes": "precision",
    "version": "server version",
    "batch": "batch",
    "input_len": "prompt and output length",
}


def _answered(note: Finding, known: Mapping[str, Any]) -> Finding | None:
    """The note on missing facts without those that the command line gives."""
    if note.check != "missing-facts":
        return note
    open_ = [name for name in note.fields if not known.get(name)]
    words = tuple(dict.fromkeys(_FACT_WORDS.get(name, name.rsplit(".", 1)[-1]) for name in open_))
    if not open_:
        return None
    return replace(
        note,
        message=f"Not in the file: {listed(words)}. Add what you know, so that the run can be compared.",
        fields=tuple(open_),
    )
