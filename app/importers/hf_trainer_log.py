"""What Hugging Face Trainer prints: a dictionary of Python for each logged step, and the progress bar between.

Shapes are those of huggingface/transformers, src/transformers/trainer.py (`{'loss': 1.2, 'learning_rate': …}`; from
version 5 on the numbers are texts); no whole log was at hand. Where the log holds no final `train_runtime`, the step
time comes from the elapsed times of the progress bar, the first tenth of the steps left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, model_name
from app.importers.hf_trainer_state import add_totals, whole_run_findings
from app.importers.logs import NUMBER, Values, log_lines, log_number, numbered, text_findings
from app.importers.reading import Content, clean
from app.importers.spelled_out import with_words

_PAIR = re.compile(r"'([A-Za-z][\w/@.() -]{0,60})':\s*'?(" + NUMBER + r")'?(?=\s*[,}])")
_BAR = re.compile(r"(\d{1,9})/(\d{1,9}) \[((?:\d{1,4}:)?\d{1,2}:\d\d)<")
_SETTING = re.compile(
    r"(Num examples|Num Epochs|Instantaneous batch size per device|Gradient Accumulation steps"
    r"|Total optimization steps|Number of trainable parameters|Total train batch size[^=]{0,80})\s*=\s*(" + NUMBER + ")"
)
_WORDS: Mapping[str, str] = {
    "Num examples": "train_samples",
    "Num Epochs": "epochs",
    "Instantaneous batch size per device": "batch",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
    "Total optimization steps": "max_steps",
    "Number of trainable parameters": "trainable_parameters",
}
_MODEL = re.compile(r"\bmodel_name_or_path['\"]?\s*[=:]\s*['\"]?([\w./-]{2,120})")
_START = "***** Running training *****"


def _is_step(line: str) -> bool:
    return "'loss':" in line and ("'epoch':" in line or "'learning_rate':" in line)


class HfTrainerLog:
    id = "hf-trainer-log"
    title = "Hugging Face Trainer log (printed)"
    tried_on_real_file = False
    streams = True

    def sniff(self, content: Content) -> Sniff:
        text = content.text
        if ("'train_runtime':" in text or "'loss':" in text) and (
            "'train_steps_per_second':" in text or any(_is_step(line) for _, line in log_lines(content))
        ):
            return Sniff(0.7, "printed dictionaries with loss and epoch, or train_runtime")
        return Sniff(0.0, "no printed dictionary with 'loss' and 'epoch'")

    def parse(self, content: Content) -> ParsedUpload:
        runs = [_Run()]
        for number, line in log_lines(content):
            current = runs[-1]
            if (_START in line or (_is_step(line) and current.totals)) and current.has_anything():
                if len(runs) >= content.limits.max_runs:
                    raise UnreadableUpload(
                        "too-large", f"The file holds more than {content.limits.max_runs} runs.", hint="Split it."
                    )
                current = _Run()
                runs.append(current)
            current.see(number, line)
        runs = [run for run in runs if run.has_anything()]
        out = [run.parsed(index, len(runs)) for index, run in enumerate(runs)]
        out = [run for run in out if run.metrics]
        if not out:
            raise UnreadableUpload("invalid", "This is a Trainer log without a loss or a training time.")
        return ParsedUpload(self.id, tuple(out), text_findings(content))


@dataclass(slots=True)
class _Run:
    settings: dict[str, float] = field(default_factory=dict)
    losses: Values = field(default_factory=Values)
    last_loss: tuple[float, str, str] | None = None
    bad_losses: int = 0
    totals: dict[str, str] = field(default_factory=dict)
    totals_at: str = ""
    bars: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)
    evaluations: dict[str, str] = field(default_factory=dict)
    model: str | None = None

    def has_anything(self) -> bool:
        return bool(self.losses.count or self.totals or self.bad_losses)

    def see(self, number: int, line: str) -> None:
        if "[" in line and "<" in line:
            for match in _BAR.finditer(line):
                self._bar(int(match[1]), int(match[2]), match[3], number)
        if "'" in line and ("loss'" in line or "runtime'" in line or "_second'" in line):
            pairs = dict(_PAIR.findall(line[line.find("{") :]))
            if "train_runtime" in pairs or "train_steps_per_second" in pairs:
                self.totals, self.totals_at = pairs, f"line {number}"
            elif _is_step(line) and "loss" in pairs:
                loss = log_number(pairs["loss"])
                if loss is None or not math.isfinite(loss):
                    self.bad_losses += 1
                else:
                    self.losses.add(loss)
                    self.last_loss = (loss, f"line {number}", pairs["loss"])
            elif any(key.startswith("eval_") for key in pairs):
                self.evaluations = dict(list(pairs.items())[:20])
        if "=" in line and (setting := _SETTING.search(line)):
            value = log_number(setting[2], grouped=True)
            if value is not None and math.isfinite(value):
                self.settings.setdefault(_WORDS.get(setting[1], "global_batch"), value)
        if self.model is None and "model_name_or_path" in line and (told := _MODEL.search(line)):
            self.model = model_name(told[1])

    def _bar(self, step: int, total: int, elapsed: str, line: int) -> None:
        seconds = 0.0
        for part in elapsed.split(":"):
            seconds = seconds * 60 + int(part)
        if total not in self.bars and len(self.bars) >= 50:
            return
        points = self.bars.setdefault(total, [])
        if points and points[-1][0] >= step:
            return
        points.append((step, seconds, line))
        if len(points) > 20_000:
            del points[1:-1:2]

    def parsed(self, index: int, count: int) -> ParsedRun:
        record = Fields({})
        if self.last_loss is not None:
            loss, at, raw = self.last_loss
            record.add("loss", loss, at=at, raw=raw, raw_unit="loss")
        steps = self.settings.get("max_steps")
        totals: dict[str, Any] = {key: log_number(value) for key, value in self.totals.items()}
        add_totals(record, totals, lambda _key: self.totals_at, steps)
        told = record.value("step_time_s", "mean") is not None
        findings = whole_run_findings(record) if told else self._from_bar(record)
        if self.bad_losses:
            findings.append(
                Finding("non-finite", "warning", f"loss: not a finite number in {self.bad_losses} line(s).", ("loss",))
            )
        batch, total = self.settings.get("batch"), self.settings.get("global_batch")
        rounds = self.settings.get("gradient_accumulation_steps", 1.0) or 1.0
        devices = total / (batch * rounds) if batch and total else None
        extra: dict[str, Any] = {key: value for key, value in self.settings.items() if key != "batch"}
        if devices is not None and devices == int(devices):
            extra["devices"] = int(devices)
        if rounds > 1:
            extra["micro_batches"] = int(rounds)
        if self.evaluations:
            extra["last_evaluation"] = {
                clean(key, 60): number
                for key, value in self.evaluations.items()
                if (number := log_number(value)) is not None and math.isfinite(number)
            }
        unknown = {"hardware": "hardware", "seq_len": "sequence length", "dtypes": "precision"}
        if "devices" not in extra:
            unknown["devices"] = "number of devices"
        if self.model is None:
            unknown["model"] = "model"
        findings += serving.facts_finding(unknown)
        title = f"{self.model} training" if self.model else "Hugging Face Trainer"
        return ParsedRun(
            name=numbered(title, index, count),
            metrics=tuple(record.metrics),
            workload=RunWorkload(
                mode="train",
                batch=batch,
                parameters=None,
                extra=with_words(extra),
            ),
            model_hint=self.model,
            software={"framework": "Hugging Face Trainer"},
            samples={"loss": self.losses.samples()} if self.losses.count > 1 else {},
            series={"run": float(index + 1)} if count > 1 else {},
            findings=tuple(findings),
        )

    def _from_bar(self, record: Fields) -> list[Finding]:
        """The step time between the first tenth of the steps and the last one that the bar showed."""
        wanted = self.settings.get("max_steps")
        total = int(wanted) if wanted and int(wanted) in self.bars else max(self.bars, default=0)
        points = [p for p in self.bars.get(total, ()) if p[0] >= 1]
        if points:
            begin = next((p for p in points if p[0] >= max(points[-1][0] / 10, 2)), points[0])
            end = points[-1]
            if end[0] - begin[0] >= 5 and end[1] - begin[1] >= 10:
                record.add(
                    "step_time_s",
                    (end[1] - begin[1]) / (end[0] - begin[0]),
                    at=f"line {begin[2]} to line {end[2]}",
                    raw=f"computed: {end[1] - begin[1]:g} s / {end[0] - begin[0]} steps of the progress bar",
                    raw_unit="s",
                    stat="mean",
                    count=end[0] - begin[0],
                )
                return [
                    Finding(
                        "step-time-from-bar",
                        "info",
                        f"No train_runtime in the log: the step time is that of the progress bar between steps "
                        f"{begin[0]} and {end[0]}, with evaluation and saving in it.",
                        ("step_time_s",),
                    )
                ]
        return whole_run_findings(record)
