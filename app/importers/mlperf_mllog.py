"""MLPerf training logs (`:::MLLOG` lines).

Keys are those of mlcommons/logging; logs of training round 5.0 were at hand. One file is one run: its score is the time
from run_start to run_stop, kept as `duration_s`; the published result is a mean over several such files. The same line
may come from every rank: equal key, value and metadata within a run count once. Source files and lines in the metadata
are paths of the submitter and are not kept; nor is the shell trace between the lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json import JSONDecodeError, JSONDecoder
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float
from app.importers.logs import Values, cut_off_finding, holds, log_lines, numbered, text_findings
from app.importers.reading import Content, clean
from app.importers.spelled_out import with_words

_MARK = ":::MLLOG"
_DEVICE = re.compile(r"((?:MI|GB|GH|H|B|A|L|V|T)\d{2,4}[A-Z]?|TPU[- ]?v\d\w?|[Vv]\d[ep]|Gaudi ?\d)(?![A-Za-z0-9])")
_LOSS_BENCHMARKS = ("gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b", "llama3_8b")
"""Benchmarks whose `eval_accuracy` is a validation loss (log perplexity); lower is better there."""

_TEXTS = {
    "submission_benchmark": "benchmark",
    "submission_org": "organisation",
    "submission_platform": "platform",
    "submission_division": "division",
    "submission_status": "submission_status",
}
_NUMBERS = {
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_sequence_length": "seq_len",
    "train_samples": "train_samples",
    "eval_samples": "eval_samples",
    "seed": "seed",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "opt_base_learning_rate": "learning_rate",
    "target_accuracy": "target_accuracy",
    "max_steps": "max_steps",
}
_DEGREES = {
    "tensor_parallel": "tp",
    "tensor_model_parallel": "tp",
    "tensor_model_parallel_size": "tp",
    "pipeline_parallel": "pp",
    "pipeline_model_parallel": "pp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel": "cp",
    "context_parallel_size": "cp",
    "expert_parallel": "ep",
    "expert_model_parallel_size": "ep",
}
_EVALUATIONS = ("eval_accuracy", "eval_error", "eval_loss")
_MOST_EVALUATIONS = 200
_decoder = JSONDecoder()


class MlperfMllog:
    id = "mlperf-mllog"
    title = "MLPerf training log (MLLOG)"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        if holds(content, _MARK):
            return Sniff(0.92, "lines with :::MLLOG")
        return Sniff(0.0, "no line with :::MLLOG")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[_Run] = [_Run()]
        damaged: list[int] = []
        last_line = others = 0
        for number, line in log_lines(content):
            start = line.find(_MARK)
            if line.strip():
                last_line = number
            if start < 0:
                others += bool(line.strip())
                continue
            event = _event(line[start + len(_MARK) :])
            if event is None:
                damaged.append(number)
                continue
            if runs[-1].stopped and event["key"] in ("init_start", "run_start", "submission_benchmark"):
                if len(runs) >= content.limits.max_runs:
                    raise UnreadableUpload(
                        "too-large", f"The file holds more than {content.limits.max_runs} runs.", hint="Split it."
                    )
                runs.append(_Run())
            runs[-1].see(event, f"line {number}")
        out: list[ParsedRun] = []
        for index, run in enumerate(runs):
            notes = []
            if damaged and index == len(runs) - 1 and damaged[-1] == last_line:
                notes.append(cut_off_finding(damaged.pop()))
            parsed = run.parsed(numbered(run.title(), index, len(runs)), notes)
            if parsed is not None:
                out.append(parsed)
        if not out:
            raise UnreadableUpload(
                "cut-off",
                "This is an MLPerf training log without a result: no run_stop and no throughput is in it.",
                hint="The run was stopped, or the copy was cut: upload the whole log.",
            )
        findings = list(text_findings(content))
        if others:
            findings.append(
                Finding(
                    "left-out",
                    "info",
                    f"{others} line(s) between the events (program output, shell traces, paths) were not kept.",
                )
            )
        if damaged:
            lines = ", ".join(str(n) for n in damaged[:10])
            findings.append(
                Finding(
                    "damaged-lines",
                    "warning",
                    f"{len(damaged)} MLLOG line(s) could not be read (line {lines}); the others were.",
                )
            )
        return ParsedUpload(self.id, tuple(out), tuple(findings))


def _event(text: str) -> dict[str, Any] | None:
    """The event of a line; other output may follow it on the same line."""
    try:
        event, _ = _decoder.raw_decode(text.lstrip(" :"))
    except (JSONDecodeError, RecursionError, ValueError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("key"), str):
        return None
    return event


@dataclass(slots=True)
class _Told:
    value: Any
    at: str


@dataclass(slots=True)
class _Run:
    """What the events of one run said; the first of a key counts, since every rank may write it."""

    told: dict[str, _Told] = field(default_factory=dict)
    began: tuple[float, str] | None = None
    ended: tuple[float, str] | None = None
    status: str = ""
    stopped: bool = False
    lines: int = 0
    throughput: Values = field(default_factory=Values)
    step_time: Values = field(default_factory=Values)
    losses: Values = field(default_factory=Values)
    where: dict[str, list[str]] = field(default_factory=dict)
    last: dict[str, tuple[float, str]] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def see(self, event: Mapping[str, Any], at: str) -> None:
        self.lines += 1
        key, value = str(event["key"]), event.get("value")
        metadata = event.get("metadata") if isinstance(event.get("metadata"), dict) else {}
        assert isinstance(metadata, dict)
        moment = as_float(event.get("time_ms"))
        if moment is None or not math.isfinite(moment):
            moment = None
        if key == "run_start" and self.began is None and moment is not None:
            self.began = (moment, at)
        elif key == "run_stop" and not self.stopped:
            self.stopped = True
            self.status = clean(str(metadata.get("status", ""))[:60], 40)
            self.ended = (moment, at) if moment is not None else None
        elif key == "tracked_stats" and isinstance(value, dict):
            if self._first(key, value, metadata):
                self._stats(value, at)
        elif key == "train_loss":
            number = as_float(value)
            if number is not None and math.isfinite(number) and self._first(key, value, metadata):
                self._count("train_loss", self.losses, number, at)
        elif key in _EVALUATIONS:
            number = as_float(value)
            if number is not None and math.isfinite(number) and self._first(key, value, metadata):
                self.last[key] = (number, at)
                done = metadata.get("samples_count", metadata.get("step_num", metadata.get("epoch_num")))
                if len(self.evaluations) < _MOST_EVALUATIONS:
                    self.evaluations.append({"samples": as_float(done), key: number, "at": at})
        elif key not in self.told and len(self.told) < 300:
            self.told[key] = _Told(value, at)

    def _first(self, key: str, value: Any, metadata: Mapping[str, Any]) -> bool:
        """Whether no rank has said this before."""
        place = [metadata.get(name) for name in ("step", "samples_count", "step_num", "epoch_num", "block_num")]
        mark = f"{key} {value} {place}"[:400]
        if mark in self._seen:
            return False
        if len(self._seen) < 200_000:
            self._seen.add(mark)
        return True

    def _stats(self, value: Mapping[str, Any], at: str) -> None:
        rate = as_float(value.get("throughput"))
        if rate is not None and math.isfinite(rate) and rate > 0:
            self._count("throughput", self.throughput, rate, at)
        time = as_float(value.get("train_step_time"))
        if time is not None and math.isfinite(time) and time > 0:
            self._count("train_step_time", self.step_time, time, at)

    def _count(self, key: str, values: Values, number: float, at: str) -> None:
        values.add(number)
        self.where.setdefault(key, []).append(at)
        del self.where[key][1:-1]
        self.last[key] = (number, at)

    def text(self, key: str) -> str | None:
        value = self.told[key].value if key in self.told else None
        return (clean(value, 120) or None) if isinstance(value, str) else None

    def number(self, key: str) -> float | None:
        value = as_float(self.told[key].value) if key in self.told else None
        return value if value is not None and math.isfinite(value) else None

    def title(self) -> str:
        platform = self.text("submission_platform")
        name = self.text("submission_benchmark") or "MLPerf training"
        return f"{name} on {platform}" if platform else name

    def parsed(self, name: str, notes: list[Finding]) -> ParsedRun | None:
        record = Fields({})
        benchmark = (self.text("submission_benchmark") or "").lower()
        if self.began is not None and self.ended is not None and self.ended[0] >= self.began[0]:
            took = (self.ended[0] - self.began[0]) / 1000
            raw = f"computed: {self.ended[0]:.0f} - {self.began[0]:.0f}"
            record.add("duration_s", took, at=f"{self.began[1]} to {self.ended[1]}", raw=raw, raw_unit="ms")
        self._add(record, "step_time_s", "train_step_time", self.step_time, "s")
        self._add(record, "samples_per_s", "throughput", self.throughput, "samples/s")
        batch = self.number("global_batch_size")
        if self.throughput.count and not self.step_time.count and batch and batch > 0:
            rate = record.value("samples_per_s", "mean") or record.value("samples_per_s")
            if rate:
                raw = f"computed: {batch:g} / {rate:.6g} samples/s"
                where = self.where["throughput"]
                record.add("step_time_s", batch / rate, at=f"{where[0]} to {where[-1]}", raw=raw, raw_unit="s")
        evaluation = self._evaluation(record, benchmark)
        if not record.metrics:
            return None
        extra: dict[str, Any] = {word: self.text(key) for key, word in _TEXTS.items()}
        extra |= {word: self.number(key) for key, word in _NUMBERS.items()}
        extra |= evaluation
        extra |= {"mllog_lines": self.lines, "status": self.status or None}
        whole = record.value("duration_s")
        if whole is not None and self.status in ("", "success"):
            extra["time_to_train"] = f"{whole / 60:.7g} min"
        if self.evaluations:
            extra["evaluations"] = self.evaluations
        parallel = {
            degree: int(n) for key, degree in _DEGREES.items() if (n := self.number(key)) is not None and 1 <= n < 1e6
        }
        platform = self.text("submission_platform")
        devices = _DEVICE.findall(platform or "")
        began = datetime.fromtimestamp(self.began[0] / 1000, UTC) if self.began and self.began[0] < 1e14 else None
        return ParsedRun(
            name=name,
            metrics=tuple(record.metrics),
            workload=RunWorkload(
                mode="train",
                input_len=self.number("max_sequence_length"),
                extra=with_words(extra),
            ),
            model_hint=self.text("submission_benchmark"),
            hardware_hint=devices[-1] if devices else platform,
            parallel=parallel,
            software={"benchmark": "MLPerf training"},
            samples={
                metric: values.samples()
                for metric, values in (
                    ("samples_per_s", self.throughput),
                    ("step_time_s", self.step_time),
                    ("loss", self.losses),
                )
                if values.count > 1
            },
            measured_at=began.isoformat(timespec="seconds") if began else None,
            findings=(*notes, *self._findings(record, parallel)),
        )

    def _add(self, record: Fields, name: str, key: str, values: Values, unit: str) -> None:
        """Each tracked value is a mean over a block of steps between two evaluations; warm-up is before run_start."""
        if not values.count:
            return
        where = f"{self.where[key][0]} to {self.where[key][-1]}"
        if values.count == 1:
            record.add(name, values.mean, at=self.where[key][0], raw=f"{values.mean!r}", raw_unit=unit)
            return
        for stat, value in values.statistics().items():
            raw = f"computed from {values.count} blocks"
            record.add(name, value, at=where, raw=raw, raw_unit=unit, stat=stat, count=values.count)

    def _evaluation(self, record: Fields, benchmark: str) -> dict[str, Any]:
        """The last evaluation: a loss where the benchmark's accuracy is one, else a number of its own."""
        key = next((name for name in _EVALUATIONS if name in self.last), None)
        found: dict[str, Any] = {}
        if key is not None:
            value, at = self.last[key]
            found = {f"last_{key}": value}
            if key == "eval_loss" or (key == "eval_accuracy" and benchmark in _LOSS_BENCHMARKS):
                record.add("loss", value, at=at, raw=f"{value!r}", raw_unit=key)
        elif self.losses.count:
            value, at = self.last["train_loss"]
            record.add("loss", value, at=at, raw=f"{value!r}", raw_unit="train_loss")
        return found

    def _findings(self, record: Fields, parallel: Mapping[str, int]) -> list[Finding]:
        out: list[Finding] = []
        if self.began is not None and not self.stopped:
            out.append(
                Finding(
                    "not-finished",
                    "warning",
                    "The log has no run_stop: the run did not end, or the log is cut; there is no time to train.",
                    ("duration_s",),
                )
            )
        elif self.stopped and self.status and self.status != "success":
            out.append(
                Finding(
                    "run-aborted",
                    "warning",
                    f"The run ended as “{self.status}”: its duration is not a time to train.",
                    ("duration_s",),
                )
            )
        out += serving.check_latencies(record.metrics)
        unknown = {"dtypes": "precision", "batch": "batch of a replica", "peak_memory_bytes": "peak memory"}
        if not parallel:
            unknown = {"parallel": "parallel layout"} | unknown
        if self.number("max_sequence_length") is None:
            unknown["seq_len"] = "sequence length"
        return out + serving.facts_finding(unknown)
