"""Which steps a file's numbers describe: what was measured of each, its shape, its precisions and its layout.

Where a file leaves a quantity open, the value that makes the bound smaller is taken (fewer sequences, shorter context,
faster precision). The one exception is a layout nobody states: the fewest devices that hold the model are assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.memory import memory_use
from app.domain.model import ModelSpec
from app.domain.precision import PRECISIONS
from app.domain.run import Finding, ParsedRun
from app.domain.units import Seconds
from app.domain.workload import MAX_TOKENS, Dtypes, Parallel, Workload

What: TypeAlias = Literal["decode", "prefill", "train"]

WHAT_WORDS: Mapping[str, str] = {"decode": "Decode", "prefill": "Prefill", "train": "A training step"}
QUANTISED_BELOW = 15.0
"""Average bits of a stored weight under which a file is quantised (16-bit files average a little above 16)."""


@dataclass(frozen=True, slots=True)
class NotHeld:
    """A step that cannot be held against a bound. `needs` names what would make it possible."""

    what: str
    reason: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step before its layout is known."""

    what: What
    measured: Seconds
    measured_from: str
    how: str
    workload: Workload
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def has_a_step(run: ParsedRun) -> bool:
    return any(first_stated(run, name, ("mean", None, "p50")) is not None for name in ("step_time_s", "tpot_s"))


# --- which steps a run measured ------------------------------------------------------------------------------------
def steps_of(
    run: ParsedRun, template: Workload, parallel: Mapping[str, Any], stated: Mapping[str, Any]
) -> list[MeasuredStep | NotHeld]:
    mode = run.workload.mode
    phase = stated.get("phase")

    def serving() -> list[MeasuredStep | NotHeld]:
        return [
            _read("decode", lambda: _serving_decode(run, template, parallel, stated)),
            _read("prefill", lambda: _serving_prefill(run, template, parallel, stated)),
        ]

    if mode == "train" or phase == "train":
        return [_read("train", lambda: _train(run, template, parallel, stated))]
    if mode == "serve":
        return serving()
    if mode == "decode" or (mode is None and phase == "decode"):
        return [_read("decode", lambda: _plain_decode(run, template, stated))]
    if mode == "prefill" or (mode is None and phase == "prefill"):
        return [_read("prefill", lambda: _plain_prefill(run, template, stated))]
    if mode == "latency" and (apart := _phases_apart(run)):
        # A harness that times prefill and decode of one batch each on their own (SGLang, optimum-benchmark).
        plain = {"decode": _plain_decode, "prefill": _plain_prefill}
        return [_read(what, partial(plain[what], run, template, stated)) for what in apart]
    if mode == "latency" and run.workload.input_len and run.workload.output_len:
        reason = "Prompt and generation were timed as one, so neither can be held against a bound of its own."
        return [NotHeld("run", reason)]
    if run.value("tpot_s") is not None or run.value("tpot_s", "p50") is not None:
        return serving()
    if run.value("step_time_s") is not None:
        return [_read("train", lambda: _train(run, template, parallel, stated))]
    return [
        NotHeld(
            "run",
            "The file does not say which step its times are of: state the phase (train, prefill or decode) to hold it "
            "against a bound.",
            ("phase",),
        )
    ]


def _phases_apart(run: ParsedRun) -> list[What]:
    """The phases of a batch that the run has a time of its own for, decode first."""
    found: list[What] = []
    for what, names in (("decode", ("tpot_s", "decode_time_s")), ("prefill", ("prefill_time_s",))):
        if any(first_stated(run, name, ("mean", None, "p50")) is not None for name in names):
            found.append("decode" if what == "decode" else "prefill")
    return found


def _read(what: What, build: Callable[[], MeasuredStep | NotHeld]) -> MeasuredStep | NotHeld:
    """The step, or why the file's numbers make none (a batch of half a sequence, a context of 1e15 tokens)."""
    try:
        return build()
    except InvalidInput as error:
        field = ".".join(str(part) for part in error.loc)
        return NotHeld(what, f"{WHAT_WORDS[what]} has no bound: {field} {error.reason}.", (field,))


def _applies(stated: Mapping[str, Any], name: str, what: What, *, main: bool) -> Any:
    """A stated field where it is meant for this step."""
    phase = stated.get("phase")
    if name not in stated or (phase is not None and phase != what) or (phase is None and not main):
        return None
    return stated[name]


def _serving_decode(
    run: ParsedRun, template: Workload, parallel: Mapping[str, Any], stated: Mapping[str, Any]
) -> MeasuredStep | NotHeld:
    """A decode step of a server, from its TPOT.

    In-flight sequences by Little's law: decoded tokens per second times the time each takes. The first token of a
    request comes from its prefill, so it is not counted. The average over time is not above the average that a token
    sees (crowded steps emit more tokens), and the bound of a dense model is convex in the batch, so the bound of this
    batch, rounded down, is not above the mean of the steps' bounds. (Experts are not convex: a few more sequences touch
    ever fewer new ones, so a batch that swings widely may have a slightly lower mean.)
    Context: a request decodes its second to last token with `input` to `input + output - 2` tokens cached.
    """
    told = first_stated(run, "tpot_s", ("mean", "p50", None))
    if told is None:
        return NotHeld("decode", "The file reports no TPOT, so its decode steps have no measured time.", ("tpot_s",))
    tpot, key = told
    notes: list[str] = []
    assumptions: list[str] = []
    how = f"TPOT, {'mean' if key.endswith('mean') else 'median' if key.endswith('p50') else 'as reported'}"
    accepted = run.value("accepted_tokens_per_step")
    measured = tpot
    if accepted is not None and accepted > 1:
        measured = tpot * accepted
        how += f" times {accepted:.3g} accepted tokens a step"
        notes.append("Drafted tokens are checked in one step, so a step's time is TPOT times the tokens it yields.")
    replicas = whole(parallel.get("dp")) * whole(parallel.get("pp"))
    batch = _applies(stated, "batch", "decode", main=True)
    if batch is None:
        batch, how_many = _in_flight(run, tpot, replicas)
        assumptions.append(how_many)
    context = _applies(stated, "context_len", "decode", main=True)
    if context is None:
        inputs, outputs = run.workload.input_len, run.workload.output_len
        if inputs is None:
            assumptions.append("The file gives no prompt length: an empty context is assumed, which reads no KV cache.")
        context = math.floor((inputs or 0.0) + max((outputs or 0.0) - 2.0, 0.0) / 2.0)
        if inputs is not None:
            assumptions.append(
                f"Context {context:,} tokens: the mean prompt and half of the mean output, rounded down."
                if outputs
                else f"Context {context:,} tokens: the mean prompt; the file gives no output length."
            )
    workload = replace(
        template,
        phase="decode",
        batch=max(int(batch), 1),
        seq_len=int(_applies(stated, "seq_len", "decode", main=False) or 1),
        context_len=int(context),
    )
    return MeasuredStep("decode", measured, key, how, workload, tuple(notes), tuple(assumptions))


def _in_flight(run: ParsedRun, tpot: Seconds, replicas: int) -> tuple[int, str]:
    """Sequences that one replica decodes together, and in words where the number comes from."""
    per_second = run.value("output_tokens_per_s")
    requests = run.value("requests_per_s")
    if per_second is None or per_second <= 0:
        return 1, "Batch 1: without output tokens per second the number of sequences decoded together is not known."
    decoded = per_second - requests if requests is not None and requests < per_second else per_second
    together = decoded * tpot
    cap = run.workload.concurrency or math.inf
    capped = 1 <= cap < together
    together = min(together, cap if capped else float(MAX_TOKENS))
    batch = max(math.floor(together / replicas + 1e-9), 1)
    words = (
        f"Batch {batch}: {together:.3g} sequences in flight by Little's law "
        f"({decoded:.4g} decoded tokens/s times TPOT{', at most the concurrency' if capped else ''})"
    )
    if replicas > 1:
        words += f", divided over {replicas} replicas or stages"
    return batch, words + ", rounded down."


def _serving_prefill(
    run: ParsedRun, template: Workload, parallel: Mapping[str, Any], stated: Mapping[str, Any]
) -> MeasuredStep | NotHeld:
    """Prefill of one prompt of the mean length, against the mean TTFT.

    The bound of a prefill is convex in its length, so the mean of the requests' bounds is not below the bound of the
    mean length, and the mean TTFT is not below that. Minimum and median have no such guarantee: they may belong to
    prompts shorter than the mean.
    """
    told = first_stated(run, "ttft_s", ("mean", None, "p50"))
    length = _applies(stated, "seq_len", "prefill", main=False) or run.workload.input_len
    if told is None:
        return NotHeld("prefill", "The file reports no TTFT, so its prefills have no measured time.", ("ttft_s",))
    if length is None or length < 1:
        return NotHeld("prefill", "The file gives no prompt length, so its prefill has no bound.", ("input_len",))
    if whole(parallel.get("pp")) > 1:
        return NotHeld(
            "prefill", "Prefill has no bound here: pipeline stages may work on chunks of one prompt at the same time."
        )
    ttft, key = told
    notes = ["TTFT also holds queueing, tokenisation and the way to the client; a prefix cache can skip prompt tokens."]
    if key.endswith("p50"):
        notes.append("The file has no mean TTFT; its median may belong to prompts shorter than the mean.")
    workload = replace(
        template,
        phase="prefill",
        batch=int(_applies(stated, "batch", "prefill", main=False) or 1),
        seq_len=int(length),
        context_len=int(_applies(stated, "context_len", "prefill", main=False) or 0),
    )
    how = "TTFT, mean" if key.endswith("mean") else "TTFT, median" if key.endswith("p50") else "TTFT, as reported"
    assumption = f"One prompt of {int(length):,} tokens (the mean) at a time, nothing of it cached."
    return MeasuredStep("prefill", ttft, key, how, workload, tuple(notes), (assumption,))


def _plain_decode(run: ParsedRun, template: Workload, stated: Mapping[str, Any]) -> MeasuredStep | NotHeld:
    """Decode alone (llama-bench tg, a harness's decode step): the step's time is total time over generated tokens."""
    w = run.workload
    batch = int(_applies(stated, "batch", "decode", main=True) or w.batch or 1)
    generated = w.output_len
    told: tuple[Seconds, str] | None = None
    how = ""
    total = first_stated(run, "decode_time_s", ("mean", None, "p50"))
    if (found := first_stated(run, "tpot_s", ("mean", None, "p50"))) is not None:
        told, how = found, "time per token"
    elif total is not None and generated is not None and generated >= 1:
        told, how = (total[0] / generated, total[1]), f"decode time over {generated:,.0f} generated tokens"
    elif (found := first_stated(run, "step_time_s", ("mean", None, "p50"))) is not None:
        told, how = found, "step time"
    elif total is not None:
        told, how = total, "decode time of a step"
    elif (rate := run.value("decode_tokens_per_s")) is not None and rate > 0:
        told, how = (batch / rate, "decode_tokens_per_s"), "batch over decoded tokens per second"
    elif (found := first_stated(run, "latency_s", ("mean", None, "p50"))) is not None:
        told, how = found, "latency"
    if told is None:
        return NotHeld("decode", "The file reports no time of a decode step.", ("decode_time_s", "tpot_s"))
    assumptions = []
    context = _applies(stated, "context_len", "decode", main=True)
    if context is None:
        depth = w.context_len if w.context_len is not None else (w.input_len or 0.0)
        context = math.floor(depth + max((generated or 1.0) - 1.0, 0.0) / 2.0)
        assumptions.append(
            f"Context {context:,} tokens: {depth:,.0f} at the start and half of the {generated:,.0f} generated ones."
            if generated is not None and generated > 1
            else f"Context {context:,} tokens, as the file says."
        )
    workload = replace(
        template,
        phase="decode",
        batch=batch,
        seq_len=int(_applies(stated, "seq_len", "decode", main=True) or w.extra.get("seq_len") or 1),
        context_len=int(context),
    )
    return MeasuredStep("decode", told[0], told[1], how, workload, (), tuple(assumptions))


def _plain_prefill(run: ParsedRun, template: Workload, stated: Mapping[str, Any]) -> MeasuredStep | NotHeld:
    """Prefill alone (llama-bench pp, a harness's prefill): its time at the stated length and depth."""
    w = run.workload
    length = _applies(stated, "seq_len", "prefill", main=True) or w.input_len
    if length is None or length < 1:
        return NotHeld("prefill", "The file gives no prompt length, so its prefill has no bound.", ("input_len",))
    batch = int(_applies(stated, "batch", "prefill", main=True) or w.batch or 1)
    told: tuple[Seconds, str] | None = None
    how = ""
    for name, words in (("prefill_time_s", "prefill time"), ("ttft_s", "TTFT"), ("step_time_s", "step time")):
        told = first_stated(run, name, ("mean", None, "p50"))
        if told is not None:
            how = words
            break
    rate = run.value("prefill_tokens_per_s")
    if told is None and rate is not None and rate > 0:
        told, how = (batch * length / rate, "prefill_tokens_per_s"), "prompt tokens over prefill tokens per second"
    if told is None:
        found = first_stated(run, "latency_s", ("mean", None, "p50"))
        if found is None:
            return NotHeld("prefill", "The file reports no time of a prefill.", ("prefill_time_s",))
        told, how = found, "latency"
    depth = _applies(stated, "context_len", "prefill", main=True)
    workload = replace(
        template,
        phase="prefill",
        batch=batch,
        seq_len=int(length),
        context_len=int(depth if depth is not None else w.context_len or 0),
    )
    return MeasuredStep("prefill", told[0], told[1], how, workload)


def _train(
    run: ParsedRun, template: Workload, parallel: Mapping[str, Any], stated: Mapping[str, Any]
) -> MeasuredStep | NotHeld:
    """A training step: forward, backward and update of one replica's batch.

    Without a step time it follows from the tokens that a device handles in a second, once shape and layout are known.
    """
    w = run.workload
    told = first_stated(run, "step_time_s", ("mean", None, "p50"))
    rate = first_stated(run, "tokens_per_s_per_device", ("mean", None, "p50"))
    if told is None and rate is None:
        return NotHeld("train", "The file reports no step time.", ("step_time_s",))
    length = stated.get("seq_len") or w.input_len
    batch = stated.get("batch") or w.batch
    if length is None or batch is None:
        lacking = tuple(n for n, v in (("seq_len", length), ("batch", batch)) if v is None)
        words = {"seq_len": "sequence length", "batch": "batch of a replica"}
        reason = f"The file does not give the {' and the '.join(words[n] for n in lacking)} of a step: state it."
        return NotHeld("train", reason, lacking)
    how = "step time"
    if told is None:
        assert rate is not None
        if "tp" not in parallel:
            reason = (
                "The file reports tokens per second of a device and no step time: state the layout, tensor parallel 1 "
                "where there is none."
            )
            return NotHeld("train", reason, ("parallel",))
        ranks = math.prod(whole(parallel.get(name)) for name in ("tp", "pp", "cp"))
        tokens = int(batch) * int(length) * whole(parallel.get("micro_batches"))
        told = tokens / rate[0] / ranks, rate[1]
        how = f"{tokens:,} tokens of a replica at {rate[0]:,.4g} a second on each of its {ranks:,} devices"
    recompute: Any = stated.get("recompute", w.extra.get("recompute", "none"))
    optimizer: Any = stated.get("optimizer", w.extra.get("optimizer", "adamw"))
    assumptions = []
    if "recompute" not in stated and "recompute" not in w.extra:
        assumptions.append("No recomputation: the file does not say.")
    if "optimizer" not in stated and "optimizer" not in w.extra:
        assumptions.append("AdamW: the file does not say.")
    workload = replace(
        template,
        phase="train",
        batch=int(batch),
        seq_len=int(length),
        context_len=0,
        recompute=recompute if recompute in ("none", "selective", "full") else "none",
        optimizer=optimizer if optimizer in ("adamw", "adamw8bit", "sgd", "none") else "adamw",
    )
    return MeasuredStep("train", told[0], told[1], how, workload, (), tuple(assumptions))


def first_stated(run: ParsedRun, name: str, stats: tuple[str | None, ...]) -> tuple[float, str] | None:
    """The first wanted statistic with a positive value, and its key."""
    for stat in stats:
        value = run.value(name, stat)
        if value is not None and value > 0:
            return value, f"{name}.{stat}" if stat else name
    return None


# --- precision and layout ------------------------------------------------------------------------------------------
def stated_dtypes(
    run: ParsedRun, hardware: HardwareProfile, model: ModelSpec, stated: Mapping[str, Any]
) -> tuple[Dtypes, tuple[str, ...]]:
    """Precisions, and a sentence for each that nobody states.

    Unstated weights are taken as the checkpoint is published: an engine loads it as it lies, and a wider guess would
    make a bound that the run beats.
    """
    notes: list[str] = []
    told: dict[str, Any] = {k: v for k, v in run.workload.dtypes.items() if v in PRECISIONS}
    told |= {k: v for k, v in dict(stated.get("dtypes") or {}).items() if v is not None}
    bits: float | None = told.pop("weights_bits", None)
    w = run.workload
    if bits is None and "weights" not in dict(stated.get("dtypes") or {}) and w.weight_bytes and w.parameters:
        bits = w.weight_bytes * 8 / w.parameters
        if not 0.1 <= bits <= 64:
            bits = None
        else:
            notes.append(f"Weights of {bits:.3g} bits on average: the file's bytes over its parameters.")
    sixteen = next((name for name in ("bf16", "fp16", "fp32") if name in hardware.peak), "bf16")
    quantised = bits is not None and bits < QUANTISED_BELOW
    if quantised and "weights" not in told:
        # ggml multiplies quantised weights as 8-bit integers where the device can, else at 16 bits
        eight = hardware.peak.get("int8", 0.0) > hardware.peak.get(sixteen, 0.0)
        told["weights"] = "int8" if eight else sixteen
        told.setdefault("activations", told["weights"])
        notes.append(
            f"Quantised weights are multiplied at the {'int8' if eight else sixteen} peak, the fastest that may apply."
        )
        told.setdefault("kv", sixteen)
    named = None if quantised or w.mode == "train" else _weights_in_name(run.model_hint)
    by_person = dict(stated.get("dtypes") or {})
    if named and not by_person.get("weights") and PRECISIONS[told.get("weights", "bf16")].bits >= 16:
        # a server's `dtype` is what it computes in beside the checkpoint's own quantisation
        told["weights"] = named
        notes.append(f"Weights in {named}: so the model's name in the file says.")
        if named != "int4" and not by_person.get("activations"):
            told.pop("activations", None)
    stored = model.weights_stored_as
    if "weights" not in told and stored is not None and w.mode != "train" and PRECISIONS[stored].bits < 16:
        told["weights"] = stored
        notes.append(f"Weights in {stored}, as the model is published: the file does not say.")
    if "weights" not in told:
        told["weights"] = sixteen
        notes.append(f"Weights in {sixteen}: the file does not say.")
    if "activations" not in told:
        weights = PRECISIONS[told["weights"]]
        narrow = weights.bits == 8 or weights.name in ("nvfp4", "mxfp4", "fp4")
        if weights.bits >= 16 or (narrow and weights.peak in hardware.peak):
            told["activations"] = told["weights"]
        else:
            told["activations"] = sixteen
        if told["activations"] != told["weights"] or weights.bits < 16:
            notes.append(f"Activations in {told['activations']}: the file does not say.")
    if "kv" not in told:
        activations = PRECISIONS[told["activations"]]
        told["kv"] = told["activations"] if activations.bits >= 16 else sixteen
        notes.append(f"KV cache in {told['kv']}: the file does not say.")
    told.setdefault("communication", told["activations"])
    known = {k: str(v) for k, v in told.items() if k in Dtypes.__slots__}
    return Dtypes(**known, weights_bits=bits), tuple(notes)


_NAMED_WEIGHTS: tuple[tuple[str, str], ...] = (
    (r"mxfp4", "mxfp4"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"w4a16|w4a8|awq|int4|4bit|4-bit|nf4|gptq(?!.*(?:int8|8bit))", "int4"),
    (r"fp8", "fp8"),
    (r"w8a8|w8a16|int8|8bit|8-bit", "int8"),
)


def _weights_in_name(hint: str | None) -> str | None:
    """The precision that the name of a quantised checkpoint carries (`-FP8`, `-AWQ-INT4`, `.w8a8`)."""
    name = (hint or "").lower().replace("\\", "/").rstrip("/").rsplit("/", 1)[-1][:200]
    return next((p for words, p in _NAMED_WEIGHTS if re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", name)), None)


def stated_layout(run: ParsedRun, stated: Mapping[str, Any]) -> dict[str, Any]:
    told = {**run.workload.extra, **run.parallel}
    layout: dict[str, Any] = {k: told[k] for k in Parallel.__slots__ if told.get(k)}
    layout |= {k: v for k, v in dict(stated.get("parallel") or {}).items() if v is not None}
    return layout


def whole(value: Any) -> int:
    return max(int(value), 1) if value else 1


def laid_out(
    step: MeasuredStep, hardware: HardwareProfile, model: ModelSpec, layout: Mapping[str, Any]
) -> tuple[Workload, list[str], list[Finding]]:
    """The step with its layout; where no tensor-parallel degree is stated, the smallest that fits."""
    notes: list[str] = []
    findings: list[Finding] = []
    degrees = dict(layout)
    if step.what != "train":
        degrees.pop("zero_stage", None)
        if whole(degrees.get("ep")) > 1:
            group = whole(degrees.get("tp"))
            if degrees["ep"] > group:
                raise InvalidInput(
                    ("workload", "parallel", "ep"),
                    "experts spread over data-parallel replicas cannot be held against a bound yet",
                )
            notes.append("Experts spread over the tensor-parallel devices read the same bytes a device as sliced ones.")
            degrees["ep"] = 1
        if whole(degrees.get("pp")) > 1:
            notes.append(
                f"The {degrees['pp']} pipeline stages of a decode step run one after another: "
                "the bound is that of one stage's devices reading the whole model."
            )
            degrees["pp"] = 1
    stages = whole(layout.get("pp"))
    capacity = None if hardware.memory_capacity is None else hardware.memory_capacity * stages

    def at(tp: int) -> Workload:
        return replace(step.workload, parallel=Parallel(**{**degrees, "tp": tp}))

    if "tp" in degrees:
        workload = at(whole(degrees["tp"]))
        use = memory_use(model, workload, capacity)
        if use.fits is False:
            findings.append(_does_not_fit(step, workload, use.peak, hardware))
        return workload, notes, findings
    tp, domain = 1, hardware.ranks_per_node
    while memory_use(model, at(tp), capacity).fits is False and tp * 2 <= domain and _divides(model, tp * 2):
        tp *= 2
    use = memory_use(model, at(tp), capacity)
    if use.fits is False:
        findings.append(_does_not_fit(step, at(tp), use.peak, hardware))
        notes.append(f"Tensor parallel {tp} is assumed: the file gives no layout, and this is the largest usual one.")
    elif hardware.memory_capacity is None:
        notes.append("One device is assumed: neither the layout nor the device's memory is known.")
    else:
        spread = any(whole(degrees.get(name)) > 1 for name in ("dp", "pp", "cp"))
        least = "No tensor parallelism" if spread else "One device"
        notes.append(
            f"{least if tp == 1 else f'Tensor parallel {tp}'} is assumed, the fewest that hold the step: "
            f"{'nobody stated its degree' if spread else 'the file gives no layout'}."
        )
    return at(tp), notes, findings


def _divides(model: ModelSpec, tp: int) -> bool:
    return all(attention.heads % tp == 0 for _, attention in model.attention_groups())


def _does_not_fit(step: MeasuredStep, workload: Workload, peak: float, hardware: HardwareProfile) -> Finding:
    held = (hardware.memory_capacity or 0.0) / 1e9
    return Finding(
        "does-not-fit",
        "warning",
        f"{WHAT_WORDS[step.what]} needs {peak / 1e9:,.1f} GB a device at tensor parallel {workload.parallel.tp}, but "
        f"{hardware.name} has {held:,.1f} GB: the layout, a precision or the batch differs from what is stated.",
        ("parallel", "dtypes", "batch"),
    )
