"""MaxText's training log.

Field meanings are those of AI-Hypercomputer/maxtext, docs/guides/monitoring_and_debugging; a log of its documentation
was at hand. Step 0 compiles and step 1 is dispatched before step 0 has ended, so it shows an impossible rate: both are
warm-up. Settings come from the `Config param` lines; only those named here are read, since others hold paths and keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import model_name
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
    word,
)
from app.importers.reading import Content

_STEP = re.compile(r"completed step:\s*(\d{1,12})")
_FIELD = re.compile(r",\s*([A-Za-z_/ ]{2,40}):\s*(" + NUMBER + r")(?=,\s*[A-Za-z_]|\s*$|,\s*$|\s)")
_CONFIG = re.compile(r"Config param ([a-z][a-z0-9_]{1,60}):\s*(.{0,200})$")
_PARAMETERS = re.compile(r"number parameters:\s*(" + NUMBER + r")\s*billion", re.IGNORECASE)
_JAX = re.compile(r"\bJax(?:lib)? Version:?\s*v?(\d[\w.+-]{1,30})", re.IGNORECASE)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")

UNITS: Mapping[str, tuple[str, float]] = {
    "step_time_s": ("s", 1.0),
    "model_flop_per_s_per_device": ("TFLOP/s", TERA),
    "tokens_per_s_per_device": ("tok/s", 1.0),
    "loss": ("loss", 1.0),
}
_NAMES: Mapping[str, str] = {
    "seconds": "step_time_s",
    "tflop/s/device": "model_flop_per_s_per_device",
    "tokens/s/device": "tokens_per_s_per_device",
    "loss": "loss",
}
_AXES: Mapping[str, tuple[str, ...]] = {
    "tp": ("tensor", "tensor_transpose", "tensor_sequence"),
    "pp": ("pipeline",),
    "cp": ("context", "sequence"),
    "ep": ("expert",),
}
_DATA_AXES = ("data", "fsdp", "fsdp_transpose")
_FACTS = (
    "base_emb_dim",
    "emb_dim",
    "base_mlp_dim",
    "mlp_dim",
    "num_decoder_layers",
    "base_num_decoder_layers",
    "num_query_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "attention",
    "quantization",
    "remat_policy",
    "hardware",
    "compile_topology",
    "gradient_accumulation_steps",
    "scan_layers",
)
_READ = {
    *_FACTS,
    "model_name",
    "per_device_batch_size",
    "global_batch_size_to_train_on",
    "max_target_length",
    "dtype",
    "weight_dtype",
    "opt_type",
    *(f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for group in _AXES.values() for axis in group),
    *(f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for axis in _DATA_AXES),
}


class MaxtextLog:
    id = "maxtext-log"
    title = "MaxText training log"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        if holds(content, "completed step:", "TFLOP/s/device:"):
            return Sniff(0.8, "lines with completed step and TFLOP/s/device")
        if holds(content, "Config param ici_tensor_parallelism:", "Config param per_device_batch_size:"):
            return Sniff(0.5, "the settings of MaxText")
        return Sniff(0.0, "no line with completed step: and TFLOP/s/device:")

    def parse(self, content: Content) -> ParsedUpload:
        runs, began, cut_at = Runs(content.limits.max_runs), list[str | None](), 0
        for number, line in log_lines(content):
            match = _STEP.search(line)
            if match is not None:
                step = _step(number, match, line)
                cut_at = 0 if step else number
                if step is not None:
                    runs.add(step, rank_of(line))
                    if len(began) < len(runs.logs):
                        stamp = _STAMP.search(line[: match.start()])
                        began.append(stamp[1] if stamp else None)
            elif "Config param" in line and (found := _CONFIG.search(line)):
                # The dump is in order of the alphabet: its first lines begin a run.
                if found[1] < "b" and runs.logs:
                    runs.start()
                if found[1] in _READ:
                    runs.setting(found[1], found[2].strip())
            elif "billion" in line and (found := _PARAMETERS.search(line)):
                runs.setting("parameters", found[1])
            elif "ersion" in line and (found := _JAX.search(line)):
                runs.setting("jax", found[1])
        if not runs.logs:
            raise UnreadableUpload("invalid", "This is a MaxText log without a whole step line.")

        def describe(index: int, settings: Mapping[str, str]) -> Described:
            setup = _setup(settings)
            return Described(f"{setup.model or 'MaxText'} training", setup, began[index])

        return ParsedUpload(self.id, training_runs(runs, UNITS, describe, cut_at), text_findings(content))


def _step(number: int, match: re.Match[str], line: str) -> Step | None:
    """The step of a line; None when the line breaks off before its time or its loss."""
    values: dict[str, float] = {}
    raw: dict[str, str] = {}
    for key, written in _FIELD.findall(line[match.end() :] + " "):
        name = _NAMES.get(key.strip().lower())
        found = log_number(written) if name else None
        if name and found is not None:
            values[name], raw[name] = found * UNITS[name][1], written
    if "step_time_s" not in values or "tokens_per_s_per_device" not in values:
        return None
    return Step(int(match[1]), f"line {number}", values, raw)


def _setup(settings: Mapping[str, str]) -> Setup:
    setup = Setup(software={"framework": "MaxText"}, extra={"flop_basis": "useful"})
    if "jax" in settings:
        setup.software["JAX"] = settings["jax"]
    name = word(settings.get("model_name"))
    setup.model = model_name(name) if name and name != "default" else None
    parameters = log_number(settings.get("parameters"))
    setup.parameters = parameters * 1e9 if parameters else None
    setup.seq_len = whole(settings.get("max_target_length"))
    setup.global_batch = whole(settings.get("global_batch_size_to_train_on"))
    share = log_number(settings.get("per_device_batch_size"))
    rounds = whole(settings.get("gradient_accumulation_steps")) or 1
    if setup.global_batch and share and share > 0:
        devices = setup.global_batch / (share * rounds)
        setup.devices = int(devices) if devices == int(devices) else None
    if any(key.startswith("ici_") for key in settings):
        setup.parallel = {degree: _degree(settings, axes) for degree, axes in _AXES.items()}
        data = [whole(settings.get(f"{w}_{axis}_parallelism", "1")) for w in ("ici", "dcn") for axis in _DATA_AXES]
        others = setup.parallel["tp"] * setup.parallel["pp"] * setup.parallel["cp"]
        if None not in data:  # -1 means: whatever is left
            replicas = setup.parallel["ep"]
            for degree in data:
                replicas *= degree or 1
            setup.parallel["dp"] = replicas
            setup.devices = setup.devices or replicas * others
        elif setup.devices and setup.devices % others == 0:
            setup.parallel["dp"] = setup.devices // others
        if settings.get("ici_fsdp_parallelism", "1") != "1" or settings.get("dcn_fsdp_parallelism", "1") != "1":
            setup.extra["zero_stage"] = 3
    if setup.global_batch and setup.parallel.get("dp"):
        batch = setup.global_batch / (setup.parallel["dp"] * rounds)
        setup.batch = batch if batch >= 1 else None
    setup.dtypes = _dtypes(settings)
    policy = word(settings.get("remat_policy"))
    if policy:
        kind = {"full": "full", "minimal": "selective", "none": "none"}.get(policy)
        if kind:
            setup.extra["recompute"] = kind
    optimizer = word(settings.get("opt_type"))
    if optimizer:
        setup.extra["optimizer"] = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd"}.get(optimizer, optimizer)
    for key in _FACTS:
        told = word(settings.get(key))
        if told is not None:
            number = whole(told)
            setup.extra[key] = number if number is not None else told
    return setup


def _degree(settings: Mapping[str, str], axes: tuple[str, ...]) -> int:
    degree = 1
    for where in ("ici", "dcn"):
        for axis in axes:
            degree *= whole(settings.get(f"{where}_{axis}_parallelism")) or 1
    return degree


def _dtypes(settings: Mapping[str, str]) -> dict[str, str]:
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    quantised = word(settings.get("quantization")) or ""
    if "fp8" in quantised:
        return {"weights": "fp8", "activations": "fp8"}
    if quantised == "int8":
        return {"weights": "int8", "activations": "int8"}
    computed = names.get(word(settings.get("dtype")) or "")
    return {"weights": computed, "activations": computed} if computed else {}
