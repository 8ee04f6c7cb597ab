"""The result block that vLLM's and SGLang's serving clients print, alone or in a log.

The labels are those of vllm-project/vllm, vllm/benchmarks/serve.py, and of sgl-project/sglang, bench_serving.py. Each
label stands for a field of the result file that the same client writes, so a block is read as such a file, with the
line of each number as its pointer. The block rounds to two decimals; of the log around it only the load and the model's
name are taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.domain.run import Finding, ParsedRun
from app.importers import serving, sglang_bench_serving, vllm_bench_serve
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import GatheredFields, as_float
from app.importers.measures import number_in
from app.importers.reading import Content, clean

_HEADING = " Serving Benchmark Result "
_LONGEST = 300
"""Characters of a line that may be one of a block; a pattern is not tried on longer ones, which could cost minutes."""

_FIELD_OF: Mapping[str, str] = {
    "successful requests": "completed",
    "failed requests": "failed",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "request throughput (req/s)": "request_throughput",
    "request goodput (req/s)": "request_goodput",
    "input token throughput (tok/s)": "input_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "peak output token throughput (tok/s)": "max_output_tokens_per_s",
    "peak concurrent requests": "max_concurrent_requests",
    "total token throughput (tok/s)": "total_token_throughput",
    "total throughput (tok/s)": "total_token_throughput",
    "concurrency": "concurrency",
    "accept length": "accept_length",
    "backend": "backend",
    "traffic request rate": "request_rate",
    "max request concurrency": "max_concurrency",
    "max reqeuest concurrency": "max_concurrency",
    "maximum request concurrency": "max_concurrency",
    "burstiness factor": "burstiness",
}
"""By label in small letters; one client's spelling mistake is its own."""

_STATISTIC = re.compile(
    r"(?:^|\W)(?P<stat>Mean|Median|Std|Min|Max|P\d{1,2}(?:\.\d{1,4})?) (?P<what>TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)$"
)
_LINE = re.compile(r"^(?P<label>.{3,200}?):\s+(?P<value>[^\s:]{1,40}|not set)(?:\s+\([\w ]{1,40}\))?\s*$")
_MODEL = re.compile(r"\bmodel='(?P<name>[^']{1,300})'|--model[ =](?P<plain>[\w./@:-]{1,300})")
_UNSET = frozenset({"not set", "none", "n/a"})
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ServingConsole:
    id = "serving-console"
    title = "result block printed by vLLM's or SGLang's serving client"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if f"={_HEADING}=" in content.text:
            return Sniff(0.7, "a line Serving Benchmark Result")
        return Sniff(0.0, "no line Serving Benchmark Result")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        empty: list[str] = []
        for block in _blocks(content):
            if "completed" not in block.fields and "request_throughput" not in block.fields:
                empty.append(f"line {block.line}")
                continue
            if len(runs) >= content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} results.",
                    hint="Split it into several files.",
                )
            runs.append(_run(block))
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "This is the heading of a serving client's result without the figures below it.",
                hint="Run the client again with --save-result (vLLM) or --output-file (SGLang) and upload that file.",
            )
        notes = [*content.findings(), *serving.stranger_findings(empty)]
        return ParsedUpload(self.id, _named_apart(serving.with_series(runs)), tuple(notes))


def _named_apart(runs: Sequence[ParsedRun]) -> tuple[ParsedRun, ...]:
    """Names with a number where a log holds several results of the same load."""
    names = Counter(run.name for run in runs)
    seen: dict[str, int] = {}
    out: list[ParsedRun] = []
    for run in runs:
        number = seen[run.name] = seen.get(run.name, 0) + 1
        out.append(run if names[run.name] == 1 else replace(run, name=f"{run.name}, result {number}"))
    return tuple(out)


@dataclass(slots=True)
class _Block:
    """One printed result: fields by the names of the result file, each with its line."""

    line: int = 0
    fields: dict[str, str | float] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    model: str | None = None


def _blocks(content: Content) -> Iterator[_Block]:
    """Results in order. Load and model stand above a result, since the last one ended."""
    block, inside, model = _Block(), False, None
    for number, raw in enumerate(content.lines, start=1):
        line = _COLOUR.sub("", raw) if "\x1b" in raw else raw
        short = len(line) < _LONGEST
        if f"={_HEADING}=" in line:
            if inside:
                yield block
                block = _Block()
            block.line, block.model, inside = number, model, True
            continue
        if inside and short and re.fullmatch(r"[\W]*?={20,}\s*", line):
            yield block
            block, inside = _Block(), False
            continue
        if "model" in line and (found := _MODEL.search(line[:20_000])):
            model = found["name"] or found["plain"]
        match = _LINE.match(line) if short else None
        if match is None:
            continue
        key = _field_of(match["label"])
        if key is None or (not inside and key not in ("request_rate", "max_concurrency", "burstiness")):
            continue
        told = match["value"]
        if told.lower() in _UNSET:
            continue
        number_told = None if as_float(told) is not None else number_in(told)
        block.fields[key] = told if number_told is None else number_told
        block.lines[key] = f"line {number}"
    if inside:
        yield block


def _field_of(label: str) -> str | None:
    """The field that a label stands for; a log may put its own words before the label."""
    if found := _STATISTIC.search(label):
        what = {"E2E Latency": "e2e_latency"}.get(found["what"], found["what"].lower())
        return f"{found['stat'].lower()}_{what}_ms"
    words = re.sub(r"\s+", " ", label.lower()).strip()
    for start in range(len(words)):
        if (start == 0 or not words[start - 1].isalnum()) and words[start:] in _FIELD_OF:
            return _FIELD_OF[words[start:]]
    return None


def _run(block: _Block) -> ParsedRun:
    fields = dict(block.fields)
    of_sglang = "total_output_tokens_retokenized" in fields or "concurrency" in fields
    if of_sglang and "total_token_throughput" in fields:
        fields["total_throughput"] = fields.pop("total_token_throughput")
        block.lines["total_throughput"] = block.lines["total_token_throughput"]
    if block.model:
        fields["model" if of_sglang else "model_id"] = block.model
    record = GatheredFields(fields, block.lines, f"line {block.line}: ")
    run = sglang_bench_serving.read(record) if of_sglang else vllm_bench_serve.read(record)
    rounded = Finding(
        "rounded",
        "info",
        "The printed block rounds to two decimals: the file of --save-result (vLLM) or --output-file (SGLang) has all "
        "digits and more statistics.",
    )
    kept = [note for note in run.findings if note.check != "rate-mismatch" or not _only_rounding(run)]
    name = run.name.replace("serving run", "Serving run")
    return replace(run, name=clean(name, 200), findings=(*kept, rounded))


def _only_rounding(run: ParsedRun) -> bool:
    """Whether rates and counts differ by no more than the second decimal of the rate allows."""
    duration = run.value("duration_s")
    if duration is None:
        return False
    inputs, outputs = run.value("input_tokens"), run.value("output_tokens")
    both = inputs + outputs if inputs is not None and outputs is not None else None
    for name, count in (
        ("requests_per_s", run.value("requests_completed")),
        ("input_tokens_per_s", inputs),
        ("output_tokens_per_s", outputs),
        ("total_tokens_per_s", both),
    ):
        rate = run.value(name)
        if rate is not None and count and abs(rate * duration - count) > 0.02 * count + 0.0051 * duration:
            return False
    return True
