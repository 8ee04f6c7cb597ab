"""torchtitan's training log.

Field meanings are those of pytorch/torchtitan, torchtitan/components/metrics.py; logs of 2025 were at hand. `tps` is
per device: tokens of a data-parallel rank over time and over the devices that share its batch. `memory` is the most
that the allocator had reserved since the last line, in GiB. `mfu` rests on the peak that the log names. Every rank may
print. There is no step time in the log: it follows from the tokens of a step, where the log says how many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.domain.run import Finding
from app.domain.units import GIBI
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.logs import (
    NUMBER,
    TERA,
    Described,
    Runs,
    Setup,
    Step,
    holds,
    log_lines,
    log_number,
    rank_of,
    text_findings,
    training_runs,
    whole,
)
from app.importers.reading import Content, clean

_STEP = re.compile(r"\bstep:\s*(\d[\d,]{0,14})\b")
_VALUE = re.compile(r"\b(loss|global_avg_loss|memory|tps|tflops|mfu):\s*(" + NUMBER + r"|N/A)")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_CAPACITY = re.compile(r"\b(?:CUDA|XPU|HPU|NPU) capacity: (.{2,80}?) with ([\d.,]+)\s*GiB")
_MODEL = re.compile(r"\bModel (\S{1,60}(?: \S{1,40})?) size: ([\d,]{1,20}) total parameters")
_PEAK = re.compile(r"Peak FLOPS used for computing MFU: (" + NUMBER + ")")
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([\d, ]{1,80})\]")
_DIMS = re.compile(r"device mesh with parallelism: ((?:[a-z_]+=\d+,? ?){1,12})")
_BATCH = re.compile(r"local batch size (\d+), global batch size (\d+)")
_LENGTH = re.compile(r"sequence length (\d+)")
_CHECKPOINTING = re.compile(r"Applied (\w{1,20}) activation checkpointing", re.IGNORECASE)

UNITS: Mapping[str, tuple[str, float]] = {
    "tokens_per_s_per_device": ("tok/s", 1.0),
    "model_flop_per_s_per_device": ("TFLOP/s", TERA),
    "mfu": ("%", 0.01),
    "loss": ("loss", 1.0),
    "peak_memory_bytes": ("GiB", float(GIBI)),
}
_NAMES: Mapping[str, str] = {
    "tps": "tokens_per_s_per_device",
    "tflops": "model_flop_per_s_per_device",
    "mfu": "mfu",
    "loss": "loss",
    "global_avg_loss": "loss",
    "memory": "peak_memory_bytes",
}


class TorchtitanLog:
    id = "torchtitan-log"
    title = "torchtitan training log"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        if holds(content, "step:", "tps:", "mfu:") and any(_is_step(line) for _, line in log_lines(content)):
            return Sniff(0.8, "lines with step, tps and mfu")
        if holds(content, "[titan]", "Starting job:"):
            return Sniff(0.5, "the beginning of a torchtitan log")
        return Sniff(0.0, "no line with step:, tps: and mfu:")

    def parse(self, content: Content) -> ParsedUpload:
        runs, began, cut_at = Runs(content.limits.max_runs), list[str | None](), 0
        for number, line in log_lines(content):
            if _is_step(line):
                _add_step(runs, number, line)
                if len(began) < len(runs.logs):
                    stamp = _STAMP.search(line)
                    began.append(stamp[1] if stamp else None)
                cut_at = 0
            elif _STEP.search(line) and "loss:" in line:
                cut_at = number
            else:
                _settings(runs, line)
        if not runs.logs:
            raise UnreadableUpload("invalid", "This is a torchtitan log without a whole step line.")

        def describe(index: int, settings: Mapping[str, str]) -> Described:
            setup = _setup(settings)
            return Described(f"{setup.model or 'torchtitan'} training", setup, began[index], _findings(settings))

        return ParsedUpload(self.id, training_runs(runs, UNITS, describe, cut_at), text_findings(content))


def _is_step(line: str) -> bool:
    return "tps:" in line and "mfu:" in line and _STEP.search(line) is not None


def _add_step(runs: Runs, number: int, line: str) -> None:
    match = _STEP.search(line)
    step = whole(match[1]) if match else None
    if step is None:
        step = 0
    values: dict[str, float] = {}
    raw: dict[str, str] = {}
    for key, written in _VALUE.findall(line):
        name = _NAMES[key]
        found = log_number(written, grouped=key in ("tps", "tflops"))
        if found is not None and name not in values:  # `N/A` on a device whose peak is not known
            values[name], raw[name] = found * UNITS[name][1], written
    runs.add(Step(step, f"line {number}", values, raw), rank_of(line))


def _settings(runs: Runs, line: str) -> None:
    if "Starting job:" in line:
        runs.start()
    if match := _CAPACITY.search(line):
        runs.setting("device", clean(match[1], 80))
    if match := _MODEL.search(line):
        runs.setting("model", clean(match[1], 80))
        runs.setting("parameters", match[2])
    if match := _PEAK.search(line):
        runs.setting("peak", match[1])
    if match := _MESH.search(line):
        names = [name.strip(" '\"") for name in match[1].split(",")]
        for name, degree in zip(names, match[2].split(","), strict=False):
            runs.setting(f"mesh {name}", degree.strip())
    if match := _DIMS.search(line):
        for pair in match[1].split(","):
            name, _, degree = pair.strip().partition("=")
            runs.setting(f"mesh {name}", degree)
    if match := _BATCH.search(line):
        runs.setting("local batch", match[1])
        runs.setting("global batch", match[2])
        if length := _LENGTH.search(line):
            runs.setting("sequence length", length[1])
    if match := _CHECKPOINTING.search(line):
        runs.setting("checkpointing", match[1].lower())
    if "fallback to A100" in line:
        runs.setting("assumed peak", "A100")
    if "Float8" in line and ("Swapped" in line or "training active" in line):
        runs.setting("float8", "true")


def _setup(settings: Mapping[str, str]) -> Setup:
    mesh = {name.removeprefix("mesh "): whole(value) or 1 for name, value in settings.items() if name[:5] == "mesh "}
    setup = Setup(software={"framework": "torchtitan"})
    if mesh:
        dp = mesh.get("dp", 1) * mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
        setup.parallel = {"dp": dp} | {name: mesh[name] for name in ("tp", "pp", "cp", "ep") if name in mesh}
        setup.devices = dp * mesh.get("tp", 1) * mesh.get("pp", 1) * mesh.get("cp", 1)
        if mesh.get("dp_shard", 1) > 1:
            setup.extra["zero_stage"] = 3
    setup.batch = whole(settings.get("local batch"))
    setup.global_batch = whole(settings.get("global batch"))
    setup.seq_len = whole(settings.get("sequence length"))
    setup.parameters = whole(settings.get("parameters"))
    setup.model = settings.get("model")
    setup.hardware = settings.get("device")
    peak = log_number(settings.get("peak"))
    if peak:
        setup.extra["peak_flop_per_s_of_mfu"] = peak
    checkpointing = settings.get("checkpointing", "")
    if checkpointing:
        setup.extra["recompute"] = "full" if "full" in checkpointing else "selective"
    if "float8" in settings:
        setup.extra["low_precision"] = "float8 linear layers"
        setup.dtypes = {"weights": "fp8", "activations": "fp8"}
    setup.extra["memory_kind"] = "max reserved"
    setup.extra["flop_basis"] = "useful"
    return setup


def _findings(settings: Mapping[str, str]) -> list[Finding]:
    if "assumed peak" not in settings:
        return []
    return [
        Finding(
            "mfu-assumed-peak",
            "warning",
            "The log says that the peak of this device was not known and an A100's was taken: its MFU is against "
            "312 TFLOP/s.",
            ("mfu",),
        )
    ]
