"""Megatron's golden values: the scalars that its functional tests compare with, one JSON object of series.

Shapes are those of NVIDIA/Megatron-LM, tests/functional_tests: `{start_step, end_step, step_interval, values}` for each
series, values by step (2025 on) or as a list. `iteration-time` is in seconds, memory in bytes; "nan" stands for a step
without a value, such as a first step that was not timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import as_float
from app.importers.logs import Setup, Step, StepLog, training_run
from app.importers.reading import Content, pointer

UNITS: Mapping[str, tuple[str, float]] = {
    "step_time_s": ("s", 1.0),
    "loss": ("lm loss", 1.0),
    "peak_memory_bytes": ("bytes", 1.0),
    "model_flop_per_s_per_device": ("TFLOP/s", 1e12),
}
_SERIES: Mapping[str, str] = {
    "lm loss": "loss",
    "iteration-time": "step_time_s",
    "iteration_time": "step_time_s",
    "mem-max-allocated-bytes": "peak_memory_bytes",
    "throughput": "model_flop_per_s_per_device",
}


def looks_like(fields: Mapping[str, Any]) -> bool:
    first = next((value for value in fields.values() if isinstance(value, dict)), {})
    return {"start_step", "end_step", "values"} <= first.keys()


class MegatronGoldenValues:
    id = "megatron-golden-values"
    title = "Megatron golden values (functional test)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        first = content.first_record
        if first is not None and looks_like(first):
            return Sniff(0.9, "series with start_step, end_step and values")
        return Sniff(0.0, "no series with start_step, end_step and values")

    def parse(self, content: Content) -> ParsedUpload:
        runs = []
        records = [r for r in content.json.records() if isinstance(r.value, dict) and looks_like(r.value)]
        for index, record in enumerate(records[: content.limits.max_runs]):
            log = _steps(record.value, record.prefix)
            if log is None:
                continue
            others = [name for name in record.value if name not in _SERIES and isinstance(record.value[name], dict)]
            setup = Setup(extra={"other_series": ", ".join(others)[:200], "memory_kind": "max allocated"})
            setup.software = {"framework": "Megatron"}
            name = "Megatron golden values" + (f", part {index + 1}" if len(records) > 1 else "")
            runs.append(training_run(name, log, setup, UNITS))
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "These golden values hold no series that is read here.",
                hint=f"One of these is needed: {', '.join(_SERIES)}.",
            )
        return ParsedUpload(self.id, tuple(runs), (*content.findings(), *content.json.findings()))


def _steps(series: Mapping[str, Any], prefix: str) -> StepLog | None:
    """The series of a file as steps; what a step lacks in one series, it has in another."""
    steps: dict[int, Step] = {}
    for key, name in _SERIES.items():
        told = series.get(key)
        if not isinstance(told, dict):
            continue
        for number, value, at in _values(told, pointer(prefix, key, "values")):
            found = as_float(value)
            # A first step that was not timed is written as "nan": it is absent, not broken.
            if found is None or (name == "step_time_s" and not math.isfinite(found)):
                continue
            step = steps.setdefault(number, Step(number, at, {}, {}))
            steps[number] = Step(
                number,
                at,
                {**step.values, name: found * UNITS[name][1]},
                {**step.raw, name: str(value)[:60]},
                {**step.places, name: at},
            )
    log = StepLog()
    for number in sorted(steps):
        log.add(steps[number], None)
    return log if log.count else None


def _values(told: Mapping[str, Any], at: str) -> Iterator[tuple[int, Any, str]]:
    values = told.get("values")
    if isinstance(values, dict):
        for step, value in values.items():
            if step.isascii() and step.isdigit() and len(step) < 13:
                yield int(step), value, pointer(at, step)
    elif isinstance(values, list):
        start, end = as_float(told.get("start_step")), as_float(told.get("end_step"))
        interval = as_float(told.get("step_interval"))
        if start is None or not math.isfinite(start):
            start = 0.0
        if interval is None or not 1 <= interval < 1e9:
            # The older form states the ends only.
            span = (end - start) / len(values) if end is not None and math.isfinite(end) and values else 1.0
            interval = max(round(span), 1)
        if abs(start) < 1e12:
            for place, value in enumerate(values):
                yield int(start) + place * int(interval), value, pointer(at, place)
