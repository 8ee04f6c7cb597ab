"""Logs of Megatron-LM and of what grew out of it: Megatron-DeepSpeed, Megatron Bridge, Primus.

Field meanings are those of NVIDIA/Megatron-LM, megatron/training/training.py; logs of Megatron-DeepSpeed of 2021 and
2023 were at hand. Only the last rank prints the iteration line. Its time is the mean over the iterations since the last
such line. `a/b` (Primus) is the last interval's value and the average so far: the first one counts. Settings come from
the argument dump where the log holds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.run import Finding
from app.domain.units import GIBI, MEBI
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.logs import (
    MILLI,
    NUMBER,
    TERA,
    Described,
    Runs,
    Setup,
    Step,
    holds,
    is_true,
    log_lines,
    log_number,
    rank_of,
    text_findings,
    training_runs,
    whole,
    word,
)
from app.importers.reading import Content, clean

_MARK = "elapsed time per iteration (ms):"
_ITERATION = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_ARGUMENT = re.compile(r"(?:^|\s)([a-z][a-z0-9_]{1,60})\s?\.{3,}\s(.{0,300})$")
_WORLD = re.compile(r"using world size:\s*(\d+)(.*)")
_WORLD_DEGREE = re.compile(r"([a-z-]+parallel)[- ]size:\s*(\d+)")
_MEMORY = re.compile(
    r"memory \(MB\) \|.*?max[ _]allocated:\s*(" + NUMBER + r")(?:.*?max[ _]reserved:\s*(" + NUMBER + r"))?"
)
_HIP_MEMORY = re.compile(r"mem usage[^:|]*:\s*(" + NUMBER + r")\s*GB")
_VERSION = re.compile(
    r"\b(DeepSpeed|Megatron-LM|Megatron Core|Transformer Engine)[^|]{0,40}?version[=: ]+v?([\w.+-]{1,40})"
)

UNITS: Mapping[str, tuple[str, float]] = {
    "step_time_s": ("ms", MILLI),
    "model_flop_per_s_per_device": ("TFLOP/s", TERA),
    "samples_per_s": ("1/s", 1.0),
    "tokens_per_s_per_device": ("tok/s", 1.0),
    "total_tokens_per_s": ("tok/s", 1.0),
    "power_w": ("W", 1.0),
    "loss": ("lm loss", 1.0),
    "peak_memory_bytes": ("MiB", float(MEBI)),
}
_FIELDS: Mapping[str, str] = {
    "elapsed time per iteration (ms)": "step_time_s",
    "throughput per gpu (tflop/s/gpu)": "model_flop_per_s_per_device",
    "tflops": "model_flop_per_s_per_device",
    "samples per second": "samples_per_s",
    "tokens per gpu (tokens/s/gpu)": "tokens_per_s_per_device",
    "tokens per second per device": "tokens_per_s_per_device",
    "tokens-per-second-per-gpu": "tokens_per_s_per_device",
    "tokens per second": "total_tokens_per_s",
    "power per gpu (w/gpu)": "power_w",
    "lm loss": "loss",
    "lm-loss": "loss",
}
"""`TFLOPs` of Megatron-DeepSpeed is per device as well."""

_DEGREES: Mapping[str, str] = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
}
_MODEL_FACTS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "padded_vocab_size",
    "num_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "multi_latent_attention",
    "swiglu",
)
_OTHER_FACTS = (
    "train_iters",
    "log_interval",
    "transformer_impl",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
    "attention_backend",
    "moe_token_dispatcher_type",
    "moe_grouped_gemm",
    "cuda_graph_impl",
    "enable_cuda_graph",
    "fp8_recipe",
)
_KEPT = {
    *_DEGREES,
    *_MODEL_FACTS,
    *_OTHER_FACTS,
    "world_size",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "group_query_attention",
    "bf16",
    "fp16",
    "fp8",
    "fp8_format",
    "fp4",
    "params_dtype",
    "optimizer",
    "use_distributed_optimizer",
    "data_parallel_sharding_strategy",
    "zero_stage",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "virtual_pipeline_model_parallel_size",
}
"""Arguments that are read. All others stay out: they hold paths, user names and keys."""


class MegatronLog:
    id = "megatron-log"
    title = "Megatron-LM training log (also Megatron-DeepSpeed, Bridge, Primus)"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        if holds(content, _MARK) and _ITERATION.search(content.text):
            return Sniff(0.8, "lines with an iteration and its elapsed time in ms")
        if holds(content, "- arguments -", "tensor_model_parallel_size ..."):
            return Sniff(0.5, "the argument dump of Megatron")
        return Sniff(0.0, f"no iteration line with “{_MARK}”")

    def parse(self, content: Content) -> ParsedUpload:
        reader = _Reader(content.limits.max_runs)
        for number, line in log_lines(content):
            reader.line(number, line)
        runs = reader.runs
        if not runs.logs:
            raise UnreadableUpload(
                "cut-off",
                "This is a Megatron log without a whole iteration line.",
                hint="The job ended before its first step was logged, or the copy was cut: upload a longer part.",
            )

        def describe(index: int, settings: Mapping[str, str]) -> Described:
            facts = reader.facts[index]
            at = f", {facts.global_batch:g} sequences a step" if facts.global_batch else ""
            name = f"{_title(settings)} training{at}"
            return Described(name, _setup(settings, facts), facts.began, facts.findings())

        return ParsedUpload(self.id, training_runs(runs, UNITS, describe, reader.cut_at), text_findings(content))


@dataclass(slots=True)
class _Facts:
    """What the iteration lines of one run say beside their metrics."""

    global_batch: float | None = None
    seq_len: float | None = None
    skipped: int = 0
    nan: int = 0
    began: str | None = None

    def findings(self) -> list[Finding]:
        out = []
        if self.skipped or self.nan:
            parts = [f"{self.skipped} skipped"] if self.skipped else []
            parts += [f"{self.nan} with a NaN"] if self.nan else []
            out.append(
                Finding(
                    "steps-skipped",
                    "warning",
                    f"Iterations {' and '.join(parts)}: they took time but did not train.",
                )
            )
        return out


class _Reader:
    def __init__(self, limit: int) -> None:
        self.runs = Runs(limit)
        self.facts: list[_Facts] = []
        self.cut_at = 0
        self._memory: tuple[float, str, str] | None = None
        self._versions: dict[str, str] = {}

    def line(self, number: int, line: str) -> None:
        if _MARK in line:
            self._iterations(number, line)
        elif "iteration" in line and _ITERATION.search(line):
            self.cut_at = number
        elif "..." in line and (match := _ARGUMENT.search(line)):
            if match[1] in _KEPT:
                self.runs.setting(match[1], match[2].strip())
        elif "memory (MB)" in line and (match := _MEMORY.search(line)):
            self._note_memory(match, f"line {number}")
        elif "- arguments -" in line and "end of" not in line:
            self.runs.start()
        elif "using world size" in line and (match := _WORLD.search(line)):
            self.runs.start()
            self.runs.setting("world_size", match[1])
            for degree in _WORLD_DEGREE.finditer(match[2]):
                self.runs.setting(degree[1].replace("-", "_") + "_size", degree[2])
        elif "version" in line and (match := _VERSION.search(line)):
            self.runs.setting(f"version {match[1]}", match[2])

    def _note_memory(self, match: re.Match[str], at: str) -> None:
        """Memory is printed once, by itself, after the first iterations; it belongs to the run around it."""
        used = log_number(match[1])
        if used is None or not used > 0:
            return
        if self._memory is None or used * MEBI > self._memory[0]:
            self._memory = (used * MEBI, at, match[1])
        self.runs.setting("memory_kind", "max allocated")
        reserved = log_number(match[2])
        if reserved:
            self.runs.setting("reserved_memory_bytes", f"{reserved * MEBI:.0f}")
        if self.runs.logs:
            self._give_memory()

    def _give_memory(self) -> None:
        log = self.runs.logs[-1]
        if self._memory is None or log.last is None:
            return
        used, at, raw = self._memory
        step = Step(log.last.number, at, {"peak_memory_bytes": used}, {"peak_memory_bytes": raw})
        if log.peak is None or used > log.peak[0]:
            log.peak = (used, step)
        self._memory = None

    def _iterations(self, number: int, line: str) -> None:
        """Every iteration of a line: interrupted writers leave several on one."""
        starts = list(_ITERATION.finditer(line))
        for place, match in enumerate(starts):
            end = starts[place + 1].start() if place + 1 < len(starts) else len(line)
            part = line[match.start() : end]
            if _MARK not in part or not self._iteration(number, match, line, part):
                self.cut_at = number

    def _iteration(self, number: int, match: re.Match[str], line: str, part: str) -> bool:
        values: dict[str, float] = {}
        raw: dict[str, str] = {}
        told: dict[str, str] = {}
        for piece in part[match.end() - match.start() :].split("|"):
            key, colon, written = piece.rpartition(":")
            if not colon:
                continue
            key, written = key.strip().lower(), written.strip().split("/")[0].strip()
            name = _FIELDS.get(key)
            found = log_number(written, grouped=name != "loss") if name else None
            if name and found is not None:
                scale = UNITS[name][1]
                values[name], raw[name] = found * scale, written
            elif len(key) < 60:
                told[key] = written
        if "step_time_s" not in values or not values["step_time_s"] > 0:
            return False
        if hip := _HIP_MEMORY.search(part):
            used = log_number(hip[1])
            if used:
                values["peak_memory_bytes"], raw["peak_memory_bytes"] = used * GIBI, f"{hip[1]} GB"
        at = f"line {number}"
        self.runs.add(Step(int(match[1]), at, values, raw), rank_of(line))
        while len(self.facts) < len(self.runs.logs):
            stamp = _STAMP.search(line)
            self.facts.append(_Facts(began=stamp[1] if stamp else None))
        self._give_memory()
        facts = self.facts[-1]
        facts.global_batch = log_number(told.get("global batch size"), grouped=True) or facts.global_batch
        facts.seq_len = log_number(told.get("actual seqlen"), grouped=True) or facts.seq_len
        facts.skipped += int(log_number(told.get("number of skipped iterations")) or 0)
        facts.nan += int(log_number(told.get("number of nan iterations")) or 0)
        return True


def _title(settings: Mapping[str, str]) -> str:
    return "Megatron-DeepSpeed" if "version DeepSpeed" in settings else "Megatron"


def _setup(settings: Mapping[str, str], facts: _Facts) -> Setup:
    """The arguments of a run as a workload. `batch` is a replica's micro-batch, as the estimates count it."""
    parallel = {degree: n for key, degree in _DEGREES.items() if (n := whole(settings.get(key))) is not None}
    setup = Setup(parallel=parallel)
    setup.devices = whole(settings.get("world_size"))
    if "dp" not in parallel and setup.devices:
        others = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("cp", 1)
        if "tp" in parallel and setup.devices % others == 0:
            parallel["dp"] = setup.devices // others
    setup.batch = whole(settings.get("micro_batch_size"))
    setup.global_batch = facts.global_batch or whole(settings.get("global_batch_size"))
    setup.seq_len = facts.seq_len or whole(settings.get("seq_length"))
    extra = setup.extra
    if setup.batch and setup.global_batch and parallel.get("dp"):
        rounds = setup.global_batch / (setup.batch * parallel["dp"])
        if rounds == int(rounds) and rounds >= 1:
            extra["micro_batches"] = int(rounds)
    if is_true(settings.get("sequence_parallel")):
        extra["sequence_parallel"] = True
    virtual = whole(settings.get("virtual_pipeline_model_parallel_size"))
    if virtual:
        extra["virtual_stages"] = virtual
    if is_true(settings.get("use_distributed_optimizer")):
        sharding = settings.get("data_parallel_sharding_strategy", "")
        extra["zero_stage"] = {"optim_grads": 2, "optim_grads_params": 3}.get(sharding, 1)
    elif whole(settings.get("zero_stage")) in (1, 2, 3):
        extra["zero_stage"] = whole(settings.get("zero_stage"))
    recompute = word(settings.get("recompute_granularity"))
    if "recompute_granularity" in settings:
        extra["recompute"] = recompute if recompute in ("selective", "full") else "none"
    optimizer = (word(settings.get("optimizer")) or "").lower()
    if optimizer:
        extra["optimizer"] = {"adam": "adamw", "sgd": "sgd"}.get(optimizer, optimizer)
    eight = word(settings.get("fp8")) or word(settings.get("fp8_format"))
    four = word(settings.get("fp4"))
    sixteen = "bf16" if is_true(settings.get("bf16")) else "fp16" if is_true(settings.get("fp16")) else None
    named = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.half": "fp16", "torch.float32": "fp32"}
    precision = sixteen or named.get(settings.get("params_dtype", ""))
    if eight or four:
        narrow = "fp8" if eight else "nvfp4"
        setup.dtypes = {"weights": narrow, "activations": narrow}
        extra["low_precision"] = eight or four
    elif precision:
        setup.dtypes = {"weights": precision, "activations": precision}
    for key in (*_MODEL_FACTS, *_OTHER_FACTS):
        told = word(settings.get(key))
        if told is not None:
            number = whole(told)
            extra[key] = number if number is not None else told
    for key in ("memory_kind", "reserved_memory_bytes"):
        if key in settings:
            extra[key] = whole(settings[key]) or settings[key]
    if "version DeepSpeed" not in settings:  # Megatron-DeepSpeed counts recomputed work as well
        extra["flop_basis"] = "useful"
    setup.software = {"framework": _title(settings)} | {
        key.removeprefix("version "): clean(value, 40) for key, value in settings.items() if key.startswith("version ")
    }
    return setup
