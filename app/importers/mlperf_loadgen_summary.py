"""MLPerf inference: the summary that LoadGen writes (`mlperf_log_summary.txt`).

The lines are those of mlcommons/inference, loadgen/results.cc, as seen in the results of round 5.1. Times are
nanoseconds. Figures are of the whole system under test: how many accelerators it has, and which, stands in another
file. A sample is one request of a language model; tokens are output tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields
from app.importers.measures import number_in
from app.importers.reading import Content, clean

NANO = 1e-9

_BANNER = "MLPerf Results Summary"
_LINE = re.compile(r"\s*(?P<key>[^:]{1,80}?)\s*:\s*(?P<value>.{1,200}?)\s*")
_PERCENTILE = re.compile(
    r"(?P<rank>\d{1,2}(?:\.\d{1,4})?)(?:th)? percentile (?P<what>.*latency|time to output token) \(ns\)"
)
_STATISTIC = re.compile(r"(?P<stat>min|max|mean) (?P<what>.*latency|time to output token) \(ns\)")
_METRIC_OF = {
    "latency": "e2e_latency_s",
    "first token latency": "ttft_s",
    "time to output token": "tpot_s",
}
_LIMITS = (
    ("ttft_latency (ns)", "TTFT allowed (s)"),
    ("tpot_latency (ns)", "TPOT allowed (s)"),
    ("target_latency (ns)", "Latency allowed (s)"),
)


class MlperfLoadgenSummary:
    id = "mlperf-loadgen-summary"
    title = "MLPerf LoadGen summary (mlperf_log_summary.txt)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        head = content.head
        if _BANNER in head and re.search(r"^Scenario\s*:", head, re.MULTILINE):
            return Sniff(0.97, "MLPerf Results Summary with a scenario")
        if len(content.text) < 2000 and "encountered during test" in head:
            return Sniff(0.5, "the closing lines of LoadGen, without figures")
        return Sniff(0.0, "no MLPerf Results Summary")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        empty = 0
        for block in _blocks(content):
            run = _run(block)
            if run is None:
                empty += 1
                continue
            if len(runs) >= content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} summaries.",
                    hint="Split it into several files.",
                )
            runs.append(run)
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "This is an MLPerf LoadGen summary without a figure, as an accuracy run leaves it.",
                hint="Upload the mlperf_log_summary.txt of the performance run.",
            )
        notes = list(content.findings())
        if empty:
            notes.append(
                Finding("not-a-result", "warning", f"{empty} summary block(s) hold no figure and were left out.")
            )
        return ParsedUpload(self.id, serving.with_series(runs), tuple(notes))


@dataclass(slots=True)
class _Block:
    """One summary: its fields with the line each stands on, and the lines under `Result is`."""

    fields: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


class _BlockFields(Fields):
    """Fields of lines: the pointer of each is its line."""

    def __init__(self, block: _Block) -> None:
        super().__init__(block.fields)
        self._lines = block.lines

    def at(self, *keys: str | int) -> str:
        line = self._lines.get(str(keys[0])) if keys else None
        return f"line {line}" if line is not None else super().at(*keys)

    def number(self, key: str) -> float | None:
        """LoadGen writes plain numbers; a spreadsheet or an editor may have grouped their digits."""
        value = self.raw(key)
        if value is None:
            return None
        found = number_in(value)
        if found is None:
            self.wrong_type.append(key)
        return found


def _blocks(content: Content) -> Iterator[_Block]:
    block: _Block | None = None
    under_result = False
    for index, text in enumerate(content.lines, start=1):
        line = text.strip()
        if line == _BANNER:
            if block is not None:
                yield block
            block, under_result = _Block(), False
            continue
        if block is None or not line or set(line) <= {"="}:
            under_result = under_result and bool(line)
            continue
        match = _LINE.fullmatch(text) if len(text) < 400 else None
        if match is None:
            continue
        key, value = " ".join(match["key"].split()), match["value"]
        if key == "Result is":
            under_result = True
        elif under_result and text.startswith((" ", "\t")):
            if value.lower() not in ("yes", "no"):
                continue
            if value.lower() == "no":
                block.reasons.append(clean(key, 80))
        if key in block.fields:
            # Some figures are printed twice, first short and then in their own section; only another value matters.
            first, again = number_in(block.fields[key]), number_in(value)
            if first is not None and again is not None and abs(first - again) > 1e-3 * max(abs(first), abs(again)):
                block.conflicts.append(key)
            continue
        if len(block.fields) < 300:
            block.fields[key] = value
            block.lines[key] = index
    if block is not None:
        yield block


def _run(block: _Block) -> ParsedRun | None:
    record = _BlockFields(block)
    others: dict[str, float] = {}
    for key in block.fields:
        lowered = key.lower()
        if match := _STATISTIC.fullmatch(lowered):
            name, stat = _METRIC_OF.get(match["what"]), match["stat"]
        elif match := _PERCENTILE.fullmatch(lowered):
            name, stat = _METRIC_OF.get(match["what"]), serving.statistic_name(f"p{float(match['rank']):g}")
            if name is not None and stat is None and (value := record.number(key)) is not None:
                others[f"{name}.p{float(match['rank']):g}"] = value * NANO
        else:
            continue
        if name is not None and stat is not None and record.number(key):
            record.metric(name, key, scale=NANO, raw_unit="ns", stat=stat)
    tokens = any(key in block.fields for key in ("Tokens per second", "Completed tokens per second"))
    for key in ("Completed samples per second", "Samples per second"):
        record.metric("requests_per_s" if tokens else "samples_per_s", key, raw_unit="samples/s")
    for key in ("Completed tokens per second", "Tokens per second"):
        record.metric("output_tokens_per_s", key, raw_unit="tok/s")
    if not record.metrics:
        return None
    scenario, mode, result = (record.text(key) for key in ("Scenario", "Mode", "Result is"))
    rate: float | str | None = None
    if scenario == "Offline":
        rate = "inf"
        record.ignore("target_qps")
    elif scenario in ("Server", "Interactive"):
        rate = record.metric("request_rate_per_s", "target_qps", raw_unit="samples/s")
    also: dict[str, float | str] = {}
    if scenario:
        also["Scenario"] = scenario
    if result:
        also["Result"] = result
    for key, words in _LIMITS:
        if key in block.fields and (value := record.number(key)):
            also[words] = value * NANO
    scheduled = record.number("Scheduled samples per second")
    if scheduled is not None:
        also["Samples scheduled per second"] = scheduled
    findings: list[Finding] = []
    if result and result.upper() != "VALID":
        because = f" ({'; '.join(block.reasons)}: no)" if block.reasons else ""
        findings.append(
            Finding("mlperf-invalid", "warning", f"LoadGen calls this run {clean(result, 40)}{because}.", ("result",))
        )
    if mode and mode != "PerformanceOnly":
        findings.append(
            Finding(
                "mlperf-mode", "info", f"Mode {mode}: figures of such a run are not its performance result.", ("mode",)
            )
        )
    if block.conflicts:
        names = ", ".join(clean(key, 80) for key in block.conflicts[:5])
        findings.append(
            Finding("repeated-key", "warning", f"Printed twice with different values, the first was taken: {names}.")
        )
    findings += serving.check_latencies(record.metrics)
    findings += record.findings()
    if block.fields.get("SUT name"):
        findings += serving.left_out_findings(["SUT name"])
    unknown = {
        "model": "model",
        "hardware": "hardware and number of accelerators",
        "dtypes": "precision",
        "input_len": "prompt and output length",
    }
    if any(m.name == "e2e_latency_s" for m in record.metrics) and tokens:
        findings += serving.facts_finding(unknown)
    else:
        findings += serving.facts_finding({k: v for k, v in unknown.items() if k != "input_len"})
    extra: dict[str, Any] = {"percentiles": others, "also": also}
    return ParsedRun(
        name=f"MLPerf {scenario or 'inference'}",
        metrics=tuple(record.metrics),
        workload=RunWorkload(mode="serve", request_rate=rate, extra={k: v for k, v in extra.items() if v}),
        software={"client": "MLPerf LoadGen"},
        findings=tuple(findings),
    )
