"""The what-if lab: a state that fits into an address, and what it answers in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from app.domain.errors import InvalidInput
from app.domain.model import ModelSpec
from app.domain.workload import PRESETS, default_seq_len
from app.services.context import Context
from app.services.contracts import BoundRequest
from app.services.estimate import BoundEstimate, estimate_bound, known_precisions
from app.services.references import own_names, resolve_hardware

DEFAULT_HARDWARE = "nvidia-h100-sxm"
DEFAULT_MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Everything the lab's controls hold, each field one key of the page's address.

    `seq` is the prompt or training sequence; in decode `drafts` extra tokens are verified beside the new one.
    """

    hardware: str = DEFAULT_HARDWARE
    model: str = DEFAULT_MODEL
    phase: str = "decode"
    batch: int = 32
    seq: int = 4096
    context: int = 2048
    drafts: int = 0
    weights: str = "bf16"
    activations: str = "bf16"
    kv: str = "bf16"
    tp: int = 1
    dp: int = 1
    micro_batches: int = 1
    zero: int = 0
    recompute: str = "none"
    optimizer: str = "adamw"
    launch: str = "graph"
    ceilings: str = "peak"

    def query(self, **changes: Any) -> dict[str, str]:
        """The address of this state (with `changes`): only what differs from the defaults, in a fixed order."""
        values = asdict(self) | changes
        plain = asdict(WhatIf())
        return {name: str(values[name]) for name in plain if values[name] != plain[name]}

    def request(self) -> BoundRequest:
        """The same question as a body of `POST /estimates/bound`."""
        return BoundRequest.model_validate(self.body())

    def body(self) -> dict[str, Any]:
        """The body in plain values; controls that a phase does not use are left out of it."""
        train = self.phase == "train"
        parallel: dict[str, Any] = {"tp": self.tp, "dp": self.dp}
        workload: dict[str, Any] = {
            "phase": self.phase,
            "batch": self.batch,
            "seq_len": 1 + self.drafts if self.phase == "decode" else self.seq,
            "context_len": 0 if train else self.context,
            "dtypes": {
                "weights": self.weights,
                "activations": self.activations,
                "kv": self.kv,
                "gradients": "bf16" if self.weights != "fp32" else "fp32",
                "optimizer": "fp32",
                "communication": self.activations if self.activations in ("bf16", "fp16", "fp32") else "bf16",
            },
            "launch_mode": self.launch,
        }
        if train:
            parallel |= {"zero_stage": self.zero, "micro_batches": self.micro_batches}
            workload |= {"recompute": self.recompute, "optimizer": self.optimizer}
        workload["parallel"] = parallel
        return {"hardware": self.hardware, "model": self.model, "workload": workload, "ceilings": self.ceilings}

    def presets(self) -> Mapping[str, dict[str, str]]:
        """Addresses of the starting points, with this state's hardware, model and precisions kept."""
        renamed = {"seq_len": "seq", "context_len": "context"}
        return {
            name: self.query(**_fitting({renamed.get(key, key): value for key, value in preset.items()}))
            for name, preset in PRESETS.items()
        }


def _fitting(preset: dict[str, int | str]) -> dict[str, int | str]:
    """A preset as the lab's fields: in decode the new token is implied."""
    if preset["phase"] == "decode":
        return {key: value for key, value in preset.items() if key != "seq"} | {"drafts": 0}
    return preset | {"seq": preset.get("seq", default_seq_len(str(preset["phase"])))}


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(WhatIf))
"""Keys of the page's address, in the order of the controls."""

FIELD_OF_LOC: Mapping[tuple[str, ...], str] = {
    ("hardware",): "hardware",
    ("model",): "model",
    ("ceilings",): "ceilings",
    ("workload", "phase"): "phase",
    ("workload", "batch"): "batch",
    ("workload", "seq_len"): "seq",
    ("workload", "context_len"): "context",
    ("workload", "launch_mode"): "launch",
    ("workload", "recompute"): "recompute",
    ("workload", "optimizer"): "optimizer",
    ("workload", "dtypes", "weights"): "weights",
    ("workload", "dtypes", "activations"): "activations",
    ("workload", "dtypes", "kv"): "kv",
    ("workload", "parallel", "tp"): "tp",
    ("workload", "parallel", "dp"): "dp",
    ("workload", "parallel", "zero_stage"): "zero",
    ("workload", "parallel", "micro_batches"): "micro_batches",
}
"""Where an error of the API's body belongs among the lab's controls."""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The estimate with its sentences. `headline` is the answer, `details` what a reader asks next."""

    state: WhatIf
    estimate: BoundEstimate
    headline: str
    details: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)


def answer(ctx: Context, state: WhatIf) -> WhatIfAnswer:
    """Evaluate a state of the lab. Errors are those of `estimate_bound`."""
    request = state.request()
    estimate = estimate_bound(ctx, request)
    return WhatIfAnswer(
        state=state,
        estimate=estimate,
        headline=headline(estimate),
        details=details(estimate),
        request=state.body(),
    )


_RESOURCE_WORDS = {
    "compute": "compute",
    "hbm": "HBM",
    "net": "the network",
    "launch": "kernel launches",
    "sync": "synchronisation",
    "imbalance": "imbalance",
}


def headline(estimate: BoundEstimate) -> str:
    """The answer in one sentence: what binds, the time of a step, the throughput, or that the step cannot run."""
    bound = estimate.bound
    phase = {"decode": "Decode", "prefill": "Prefill", "train": "Training"}[estimate.workload.phase]
    unit = "step" if estimate.workload.phase != "prefill" else "prompt batch"
    first = f"{phase} is bound by {_RESOURCE_WORDS[bound.binding]}: {_time(float(bound.overlapped))} a {unit} at least"
    if not estimate.runs:
        over = estimate.memory.peak - (estimate.memory.capacity or 0.0)
        return f"{first}, but it does not fit: {_size(over)} too much on each device."
    rate = estimate.tokens_per_second
    per_device = (
        "" if estimate.workload.parallel.devices == 1 else f", {_count((rate or 0) / _devices(estimate))} a device"
    )
    return f"{first}, {_count(rate or 0.0)} tokens/s at most{per_device}."


def details(estimate: BoundEstimate) -> tuple[str, ...]:
    """Facts that explain the headline: the runner-up, what the bytes are, how much memory is left."""
    bound, memory = estimate.bound, estimate.memory
    (first, first_time), (second, second_time) = bound.ranked_terms()[:2]
    sentences = []
    if second_time > 0:
        share = second_time / first_time
        near = "both matter" if share >= 0.8 else f"{_RESOURCE_WORDS[first]} decides"
        sentences.append(f"Next is {_RESOURCE_WORDS[second]} at {share:.0%} of that: {near}.")
    streamed = bound.total("weights") + bound.total("kv_read") + bound.total("kv_write") + bound.total("state")
    total = bound.hbm_bytes
    if total > 0 and estimate.workload.phase == "decode":
        kv = bound.total("kv_read") + bound.total("kv_write")
        sentences.append(
            f"Of the HBM bytes {bound.total('weights') / total:.0%} are weights, {kv / total:.0%} KV cache"
            f" and {(total - streamed) / total:.0%} activations."
        )
    if memory.capacity is not None and memory.largest_batch is not None:
        if memory.largest_batch == 0:
            sentences.append("Not even one sequence fits: use more devices or narrower weights.")
        elif memory.fits is False:
            sentences.append(f"The largest batch that fits is {memory.largest_batch:,}.")
        else:
            held = f"{_size(memory.peak)} of {_size(memory.capacity)}"
            sentences.append(f"A device holds {held}; batch {memory.largest_batch:,} would fit.")
    return tuple(sentences)


def _devices(estimate: BoundEstimate) -> float:
    return float(estimate.workload.parallel.devices)


def _time(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= factor * 0.9995:
            return f"{value / factor:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    return f"{value / 1e-9:.3g} ns"


def _size(value: float) -> str:
    return f"{value / 2**30:.3g} GiB" if value < 1000 * 2**30 else f"{value / 2**30:,.0f} GiB"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class LabChoices:
    """What the lab's selects offer: (value, label) pairs in groups, and the precisions the device can multiply."""

    hardware: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    models: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    precisions: tuple[str, ...]


def choices(ctx: Context, state: WhatIf) -> LabChoices:
    """Groups for the pickers: a team's own entries first, then the catalogue by vendor and by family."""
    hardware: dict[str, list[tuple[str, str]]] = {}
    for profile in ctx.catalog.hardware.values():
        if profile.memory_bandwidth is not None and profile.peak:
            hardware.setdefault(profile.vendor, []).append((profile.id, profile.name))
    models: dict[str, list[tuple[str, str]]] = {}
    for model in ctx.catalog.models.values():
        if model.supported:
            models.setdefault(_family(model), []).append((model.id, model.name))
    own = own_names(ctx)
    try:
        known = tuple(known_precisions(resolve_hardware(ctx, state.hardware)[0]))
    except InvalidInput:
        known = ()
    return LabChoices(
        hardware=_groups(own[0], hardware),
        models=_groups(own[1], models),
        precisions=known,
    )


def _family(model: ModelSpec) -> str:
    return model.family or "Other"


def _groups(
    own: tuple[tuple[str, str], ...], shipped: Mapping[str, list[tuple[str, str]]]
) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    groups = [(name, tuple(items)) for name, items in shipped.items()]
    return (("Your own", own), *groups) if own else tuple(groups)
