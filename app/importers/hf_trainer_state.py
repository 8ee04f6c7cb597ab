"""Hugging Face Trainer's state (`trainer_state.json`) and its result files (`all_results.json`, `train_results.json`).

Field meanings are those of huggingface/transformers, src/transformers/trainer_callback.py and trainer.py; a state of
2024 was at hand. The entries of log_history carry losses but no times: the only times are of the whole run, in its
last entry, with warm-up, evaluation and saving in them. `total_flos` is the work of all devices, whose number the
file does not say; `num_input_tokens_seen` 0 means that nobody counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float
from app.importers.logs import Values
from app.importers.reading import Content, clean, pointer
from app.importers.spelled_out import with_words

_TOTALS = ("train_runtime", "train_steps_per_second", "train_samples_per_second")
_MOST_EVALUATIONS = 60


def looks_like(fields: Mapping[str, Any]) -> bool:
    if isinstance(fields.get("log_history"), list) and "global_step" in fields:
        return True
    return "train_runtime" in fields and "train_steps_per_second" in fields


class HfTrainerState:
    id = "hf-trainer-state"
    title = "Hugging Face Trainer state (trainer_state.json, all_results.json)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if content.first_record is not None and looks_like(content.first_record):
            return Sniff(0.93, "has log_history and global_step, or train_runtime")
        return Sniff(0.0, "no log_history with global_step")

    def parse(self, content: Content) -> ParsedUpload:
        runs, findings = serving.read_runs(content, looks_like, _run)
        whole = tuple(run for run in runs if run.metrics)
        if not whole:
            raise UnreadableUpload(
                "invalid",
                "This trainer state holds no loss and no training time.",
                hint="It was saved before the first step was logged: upload a later checkpoint's trainer_state.json.",
            )
        return ParsedUpload(self.id, whole, tuple(findings))


def _run(record: Fields) -> ParsedRun:
    history = record.raw("log_history")
    entries = [e for e in history if isinstance(e, dict)] if isinstance(history, list) else []
    totals, totals_at = _totals(record, entries, history)
    losses, bad_losses = Values(), 0
    loss_steps: list[int] = []
    evaluations: dict[str, dict[str, Any]] = {}
    for index, entry in enumerate(history if isinstance(history, list) else ()):
        if not isinstance(entry, dict):
            continue
        loss = as_float(entry.get("loss"))
        if loss is not None:
            if math.isfinite(loss):
                losses.add(loss)
                step = as_float(entry.get("step"))
                if step is not None and 0 <= step < 2**40:
                    loss_steps = [*loss_steps[:1], int(step)]
                last = (loss, record.at("log_history", index, "loss"), entry["loss"])
            else:
                bad_losses += 1
        _note_evaluation(evaluations, entry, record.at("log_history", index))
    if not entries:
        _note_evaluation(evaluations, record.fields, record.prefix)
    if losses.count:
        record.add("loss", last[0], at=last[1], raw=last[2], raw_unit="loss")
    elif (mean := as_float(totals.get("train_loss"))) is not None and math.isfinite(mean):
        record.add("loss", mean, at=pointer(totals_at, "train_loss"), raw=totals["train_loss"], raw_unit="train_loss")
    steps = record.count("max_steps") or record.count("global_step")
    done = record.count("global_step")
    add_totals(record, totals, lambda key: pointer(totals_at, key), steps)
    runtime = record.value("duration_s")
    flop = record.count("total_flos") or _positive(totals.get("total_flos"))
    tokens = record.count("num_input_tokens_seen")
    if runtime and tokens and tokens > 0:
        raw = f"computed: {tokens:g} / {runtime:g} s"
        record.add(
            "total_tokens_per_s", tokens / runtime, at=record.at("num_input_tokens_seen"), raw=raw, raw_unit="tok/s"
        )
    batch = record.count("train_batch_size")
    extra: dict[str, Any] = {
        "global_step": done,
        "max_steps": record.count("max_steps"),
        "epochs": record.number("epoch"),
        "log_entries": len(entries) or None,
        "total_flop": flop or None,
        "flop_per_s_of_all_devices": flop / runtime if flop and runtime else None,
        "steps": _steps(losses.count, loss_steps),
        "evaluations": list(evaluations.values())[:_MOST_EVALUATIONS] or None,
    }
    findings = [*serving.check_latencies(record.metrics), *serving.left_out_findings(_private(record))]
    if bad_losses:
        findings.append(
            Finding("non-finite", "warning", f"loss: not a finite number in {bad_losses} entries: left out.", ("loss",))
        )
    findings += whole_run_findings(record)
    findings += serving.facts_finding(
        {
            "hardware": "hardware",
            "devices": "number of devices",
            "model": "model",
            "seq_len": "sequence length",
            "dtypes": "precision",
        }
    )
    return ParsedRun(
        name=f"Hugging Face Trainer, {done:.0f} steps" if done else "Hugging Face Trainer",
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="train",
            batch=batch or None,
            extra=with_words(extra),
        ),
        software={"framework": "Hugging Face Trainer"},
        samples={"loss": losses.samples()} if losses.count > 1 else {},
        findings=tuple(findings),
    )


def add_totals(record: Fields, totals: Mapping[str, Any], at: Any, steps: float | None) -> None:
    """Metrics of the whole run. `at` gives the place of a key; `steps` those that were done in that time."""
    runtime = _positive(totals.get("train_runtime"))
    rate = _positive(totals.get("train_steps_per_second"))
    samples = _positive(totals.get("train_samples_per_second"))
    if runtime:
        record.add("duration_s", runtime, at=at("train_runtime"), raw=totals["train_runtime"], raw_unit="s")
    if samples:
        record.add(
            "samples_per_s",
            samples,
            at=at("train_samples_per_second"),
            raw=totals["train_samples_per_second"],
            raw_unit="1/s",
        )
    if runtime and rate and steps and abs(steps / runtime - rate) <= 0.0006:
        # The rate is rounded to three places, which is coarse for long steps; time over steps is the same number.
        record.add(
            "step_time_s",
            runtime / steps,
            at=at("train_runtime"),
            raw=f"computed: {runtime:g} s / {steps:g} steps",
            raw_unit="s",
            stat="mean",
            count=steps,
        )
    elif rate:
        raw = f"computed: 1 / {rate:g}"
        record.add("step_time_s", 1 / rate, at=at("train_steps_per_second"), raw=raw, raw_unit="s", stat="mean")
    per_device = _positive(totals.get("train_tokens_per_second"))
    if per_device:
        key = "train_tokens_per_second"
        record.add("tokens_per_s_per_device", per_device, at=at(key), raw=totals[key], raw_unit="tok/s")


def whole_run_findings(record: Fields) -> list[Finding]:
    if record.value("duration_s") is None:
        return [
            Finding(
                "not-finished",
                "warning",
                "No train_runtime is in the file, so there is no step time: the run was interrupted, or this is the "
                "state of a checkpoint before its end.",
                ("step_time_s",),
            )
        ]
    return [
        Finding(
            "whole-run-mean",
            "info",
            "The step time is the mean of the whole run: warm-up, evaluation and saving are in it, and no step could "
            "be left out.",
            ("step_time_s",),
        )
    ]


def _totals(record: Fields, entries: list[dict[str, Any]], history: Any) -> tuple[Mapping[str, Any], str]:
    """The last entry with the run's times, or the file itself where it is a result file."""
    if not entries:
        return (record.fields if "train_runtime" in record.fields else {}), record.prefix
    for index in range(len(history) - 1, -1, -1):
        if isinstance(history[index], dict) and any(key in history[index] for key in _TOTALS):
            return history[index], record.at("log_history", index)
    return {}, record.prefix


def _note_evaluation(found: dict[str, dict[str, Any]], entry: Mapping[str, Any], at: str) -> None:
    """The last result of every evaluation set: names are `eval_…`, with the set's own name between."""
    for key, value in entry.items():
        if not key.startswith("eval") or not key.endswith("_runtime"):
            continue
        name = clean(key.removesuffix("_runtime"), 60)
        prefix = key.removesuffix("runtime")
        told = {
            "name": name,
            "step": as_float(entry.get("step")),
            "runtime_s": as_float(value),
            "loss": as_float(entry.get(f"{prefix}loss")),
            "samples_per_s": as_float(entry.get(f"{prefix}samples_per_second")),
            "at": at,
        }
        found[name] = {k: v for k, v in told.items() if not isinstance(v, float) or math.isfinite(v)}


def _steps(count: int, ends: list[int]) -> dict[str, int] | None:
    """The steps whose loss is logged; none of them is left out, since no times hang on them."""
    if count < 2 or len(ends) < 2 or ends[0] < 1:
        return None
    return {"logged": count, "first": ends[0], "last": ends[-1], "warm_up": 0, "steady_from": ends[0]}


def _positive(value: Any) -> float | None:
    number = as_float(value)
    return number if number is not None and math.isfinite(number) and number > 0 else None


def _private(record: Fields) -> list[str]:
    return [key for key in ("best_model_checkpoint", "trial_params", "trial_name") if record.fields.get(key)]
