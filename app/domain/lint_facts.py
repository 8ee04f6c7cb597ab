"""Facts that a file may lack: what each stops one from concluding, and how a person adds it.

A missing fact is never an error. All that a run lacks becomes one finding, so that a plain file shows one line and not
a wall of them. Rule ids are those of the benchmark lint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from app.domain.lint_subject import Subject
from app.domain.run import METRIC_UNITS, Finding

CHECK = "missing-facts"

BOUND = "its distance from the bound is not known or rests on an assumption"
REPEAT = "the run cannot be repeated"
QUALITY = "a gain in speed cannot be told from a loss of quality"
COMPARE = "it cannot be compared with a run that counts otherwise"
CAUSE = "what the rest of the time goes to is not known"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a reader needs and a file may not say.

    `stops` completes "without it ...". `form` is `links` where the link form has a field for it, `facts` where it is
    stored as a fact of its own (`kind` says what is typed: text, a number, a share of 0 to 1), and empty where only the
    tool can report it. `weighs` makes the finding a warning.
    """

    key: str
    label: str
    stops: str
    rule: str
    lacks: Callable[[Subject], bool]
    form: Literal["links", "facts", ""] = "facts"
    kind: Literal["text", "number", "share"] = "text"
    weighs: bool = False
    hint: str = ""


def _untold(*keys: str) -> Callable[[Subject], bool]:
    return lambda s: s.told(*keys) is None


def _in(modes: tuple[str, ...], test: Callable[[Subject], bool]) -> Callable[[Subject], bool]:
    return lambda s: s.mode in modes and test(s)


_SERVED = ("serve", "decode", "prefill", "latency")
_STEPS = (*_SERVED, "train", "diffusion")


def _timed_kernel(s: Subject) -> bool:
    """A micro-benchmark of a kernel: no collective, and no profile (a profiler says itself how it measures)."""
    return s.mode == "kernel" and not s.run.kernels and not s.reports("bus_bandwidth_bytes_per_s")


def _no_precision(s: Subject) -> bool:
    w = s.run.workload
    named = s.told("quantization", "dtype", "quant_scheme")
    return "weights" not in s.dtypes and not (w.weight_bytes and w.parameters) and named is None


FACTS: tuple[Fact, ...] = (
    Fact("hardware", "device", BOUND, "BL-40", _in(_STEPS, lambda s: s.hardware is None), "links", weighs=True),
    Fact("model", "model", BOUND, "BL-40", _in(_STEPS, lambda s: s.model is None), "links", weighs=True),
    Fact("parallel", "parallel layout", BOUND, "BL-40", _in(("serve", "train"), lambda s: not s.layout), "links"),
    Fact("dtypes", "precision", BOUND, "BL-40", _in(_STEPS, _no_precision), "links", weighs=True),
    Fact(
        "version", "software version", REPEAT, "BL-41",
        lambda s: not s.versions and s.told("version", "engine_version") is None,
        hint="of the engine or framework, such as 0.11.0 or a commit",
    ),
    Fact(
        "quality", "a quality result", QUALITY, "BL-08", lambda s: s.is_narrow and not s.has_quality,
        hint="for the narrower precision, such as MMLU 68.1 against 68.4",
    ),
    Fact(
        "repetitions", "number of repetitions", "noise cannot be told from a change", "BL-32",
        _in(("decode", "prefill", "kernel"), lambda s: _repetitions(s) is None and s.told("repetitions") is None),
        kind="number",
    ),
    Fact(
        "prefix_hit", "prefix-cache hit rate", "a TTFT with a warm cache cannot be told from a cold one", "BL-39",
        lambda s: _is_on(s, "enable_prefix_caching", "prefix_caching") and s.number("prefix_hit") is None,
        kind="share",
        hint="cached prompt tokens over prompt tokens",
    ),
    Fact(
        "exposed_comm_share", "exposed communication", CAUSE, "BL-11",
        lambda s: s.number("communication_s", "comm_share", "comm_s") is not None
        and s.number("exposed_comm_share", "exposed_communication_s") is None
        and (s.devices or 0) > 1,
        kind="share",
        hint="communication on the critical path over the step's time",
    ),
    Fact(
        "load_max_over_mean", "load of the fullest expert or rank", CAUSE, "BL-13",
        lambda s: s.is_moe
        and s.mode in ("train", "serve")
        and s.number("load_max_over_mean", "load_p99_over_mean") is None,
        kind="number",
        hint="most tokens over the mean",
    ),
    Fact(
        "flop_basis", "whether FLOP/s counts useful or executed work", COMPARE, "BL-02",
        lambda s: s.mode == "train"
        and s.reports("model_flop_per_s_per_device", "mfu")
        and s.told("flop_basis", "flops_basis") is None,
        hint="useful or executed",
    ),
    Fact(
        "clocks", "clocks and power limit", REPEAT, "BL-37",
        lambda s: s.mode == "kernel" and not s.run.kernels and s.told("clocks", "clock") is None,
    ),
    Fact(
        "timed_region", "whether layout conversion and quantisation are timed", COMPARE, "BL-04",
        lambda s: _timed_kernel(s) and s.told("timed_region", "includes_layout_conversion") is None,
    ),
    Fact(
        "cache_flush", "whether the cache was flushed", COMPARE, "BL-38",
        lambda s: _timed_kernel(s) and s.told("cache_flush") is None,
    ),
    Fact(
        "correctness", "which edge cases were checked", QUALITY, "BL-16",
        lambda s: _timed_kernel(s) and s.told("correctness", "correctness_cases") is None,
    ),
    *(
        Fact(key, label, COMPARE, "BL-14", _in(("diffusion",), _untold(*names)))
        for key, label, names in (
            ("steps", "denoising steps", ("steps", "diffusion_steps", "num_inference_steps")),
            ("resolution", "resolution", ("resolution", "height", "width")),
            ("guidance", "guidance", ("guidance", "guidance_scale", "cfg_passes")),
            ("scheduler", "scheduler", ("scheduler",)),
            ("seed", "seed", ("seed",)),
        )
    ),
    Fact("image_quality", "a quality result", QUALITY, "BL-15", _in(("diffusion",), lambda s: not s.has_quality)),
)  # fmt: skip
"""Every fact that is asked for, in the order in which a page lists them."""

BY_KEY: Mapping[str, Fact] = {fact.key: fact for fact in FACTS}

STATABLE: tuple[Fact, ...] = tuple(fact for fact in FACTS if fact.form == "facts")
"""Facts that are stored with a run when a person adds them."""

_READER_WORDS = {"count": "repetitions"}
"""What readers of formats call a fact of this table."""

_OTHER_WORDS = {"input_len": "prompt and output lengths"}
"""What the readers' own facts are called where the field's name does not say it."""


def missing(s: Subject) -> tuple[Fact, ...]:
    """The facts that neither the file nor a person states."""
    return tuple(fact for fact in FACTS if fact.lacks(s))


def missing_facts(s: Subject) -> Finding | None:
    """One finding for all that is missing, by what it stops one from concluding."""
    lacking = list(missing(s))
    named = {fact.key for fact in lacking}
    # what the reader of the format misses besides; facts of the table above are judged by what is known now
    others = [
        field
        for finding in s.run.findings
        if finding.check == CHECK
        for field in finding.fields
        if _READER_WORDS.get(field, field) not in BY_KEY
        and field.partition(".")[0] not in METRIC_UNITS
        and s.told(field) is None
    ]
    if not lacking and not others:
        return None
    by_stop: dict[str, list[str]] = {}
    for fact in lacking:
        by_stop.setdefault(fact.stops, []).append(fact.label)
    if others:
        by_stop.setdefault(REPEAT, []).extend(_OTHER_WORDS.get(f, f.replace("_", " ")) for f in dict.fromkeys(others))
    said = "; ".join(f"{_listed(labels)}, so {stops}" for stops, labels in by_stop.items())
    weighs = any(fact.weighs for fact in lacking)
    return Finding(
        CHECK,
        "warning" if weighs else "info",
        f"Not stated: {said}. Add what you know.",
        tuple(dict.fromkeys((*(fact.key for fact in lacking), *(f for f in others if f not in named)))),
    )


def _repetitions(s: Subject) -> int | None:
    """Observations behind the run's main numbers, where anything says so."""
    counts = [metric.count for metric in s.run.metrics if metric.count]
    counts += [len(values) for values in s.run.samples.values() if values]
    told = s.number("iters", "iterations", "repetitions")
    counts += [int(told)] if told is not None and told >= 1 else []
    return max(counts) if counts else None


repetitions = _repetitions


def _is_on(s: Subject, *keys: str) -> bool:
    value = s.told(*keys)
    return value is True or (isinstance(value, str) and value.lower() in ("true", "on", "yes", "1"))


def _listed(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
