"""The what-if lab: a state that fits into an address, and what it answers in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pydantic import ValidationError

from app.domain.activations import OFFLOAD_LABELS, RECOMPUTE_LABELS, modules_of
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.gap import RESOURCE_WORDS
from app.domain.inputs import beyond_context
from app.domain.levers.base import Lever, LeverRequest
from app.domain.model import ModelSpec
from app.domain.workload import PRESETS, Parallel, default_seq_len
from app.services.context import Context
from app.services.contracts import BoundRequest, OffloadBody, ParallelBody
from app.services.estimate import BoundEstimate, estimate_bound, known_precisions, preferred_precision
from app.services.levers import refusals
from app.services.page_state import address_of, step_dtypes
from app.services.references import own_names, resolve_hardware, resolve_model
from app.services.thresholds import Crossing, crossings
from app.services.words import count_words, gib_words, time_words

DEFAULT_HARDWARE = "nvidia-h100-sxm"
DEFAULT_MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Everything the lab's controls hold, each field one key of the page's address.

    `seq` is the prompt or training sequence; in decode `drafts` extra tokens are verified beside the new one. `levers`
    are technique ids in order, parted by commas, each with its numbers in brackets where they differ from the defaults:
    `kv-fp8,zero-fsdp(stage=2)`. `beside` is the address of a second configuration to show next to this one.
    """

    hardware: str = DEFAULT_HARDWARE
    model: str = DEFAULT_MODEL
    phase: str = "decode"
    batch: int = 32
    seq: int = 4096
    context: int = 2048
    drafts: int = 0
    visual_tokens: int = 0
    source_len: int = 0
    width: int = 0
    height: int = 0
    frames: int = 0
    prediction_modules: int = 0
    weights: str = "bf16"
    activations: str = "bf16"
    kv: str = "bf16"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: int = 0
    micro_batches: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    context_exchange: str = "ring"
    routing: str = "balanced"
    alpha: float = 1.0
    zero: int = 0
    recompute: str = "none"
    recompute_modules: str = ""
    offload: str = ""
    optimizer: str = "adamw"
    launch: str = "graph"
    ceilings: str = "peak"
    levers: str = ""
    beside: str = ""

    def query(self, **changes: Any) -> dict[str, str]:
        """The address of this state (with `changes`): only what differs from the defaults, in a fixed order."""
        return address_of(self, changes)

    def request(self, model: ModelSpec) -> BoundRequest:
        """The same question as a body of `POST /estimates/bound`."""
        return BoundRequest.model_validate(self.body(model))

    def body(self, model: ModelSpec) -> dict[str, Any]:
        """The body in plain values; controls that the phase or the model does not use are left out of it."""
        train = self.phase == "train"
        degrees = ("tp", "pp", "dp", "cp", "ep", "etp")
        parallel: dict[str, Any] = {name: getattr(self, name) for name in degrees}
        if self.pp > 1 or train:
            parallel["micro_batches"] = self.micro_batches
        if self.sp:
            parallel["sequence_parallel"] = True
        if self.cp > 1 and self.phase != "decode":
            parallel["context_exchange"] = self.context_exchange
        workload: dict[str, Any] = {
            "phase": self.phase,
            "batch": self.batch,
            "context_len": 0 if train or not model.generates else self.context,
            "dtypes": step_dtypes(self.weights, self.activations, self.kv),
            "launch_mode": self.launch,
        }
        if model.denoiser is None:
            workload["seq_len"] = 1 + self.drafts if self.phase == "decode" else self.seq
        if train:
            parallel |= {"zero_stage": self.zero}
            if self.pp > 1:
                parallel |= {"virtual_stages": self.virtual_stages, "schedule": self.schedule}
            workload |= {"recompute": self.recompute, "optimizer": self.optimizer}
        workload |= self._modules(model)
        workload["parallel"] = parallel
        workload |= {name: getattr(self, name) for name in inputs_of(model) if getattr(self, name)}
        if self.routing != "balanced":
            workload["routing"] = {"kind": self.routing} | ({"alpha": self.alpha} if self.routing == "zipf" else {})
        body: dict[str, Any] = {
            "hardware": self.hardware,
            "model": self.model,
            "workload": workload,
            "ceilings": self.ceilings,
        }
        chosen = self.chosen_levers()
        if chosen:
            body["levers"] = [_lever_body(id_, params) for id_, params in chosen]
        return body

    def _modules(self, model: ModelSpec) -> dict[str, Any]:
        """Recomputation and offload by module as the body has them; known modules that the model lacks are left out."""
        body: dict[str, Any] = {}
        if not (self.recompute_modules or self.offload):
            return body
        again, held = modules_of(model)
        train = self.phase == "train"
        chosen = [name for name in _names(self.recompute_modules) if name in again or name not in RECOMPUTE_LABELS]
        if train and chosen:
            body["recompute_modules"] = chosen
        moved = [name for name in _names(self.offload) if name in held or name not in OFFLOAD_LABELS]
        state = {name: True for name in ("optimizer", "parameters") if name in moved and (train or name != "optimizer")}
        moved = [name for name in moved if name not in ("optimizer", "parameters")]
        if state or (train and moved):
            body["offload"] = state | ({"activations": moved} if train and moved else {})
        return body

    def chosen_levers(self) -> list[tuple[str, dict[str, float]]]:
        """The levers of the address in their order. Raises InvalidInput where the text cannot be read."""
        return [_read_lever(part) for part in self.levers.split(",") if part.strip()]

    def with_levers(self, chosen: Sequence[tuple[str, Mapping[str, float]]]) -> WhatIf:
        return replace(self, levers=",".join(_write_lever(id_, params) for id_, params in chosen))

    def presets(self) -> Mapping[str, dict[str, str]]:
        """Addresses of the starting points, with this state's hardware, model and precisions kept."""
        renamed = {"seq_len": "seq", "context_len": "context"}
        return {
            name: self.query(**_fitting({renamed.get(key, key): value for key, value in preset.items()}))
            for name, preset in PRESETS.items()
        }


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def offload_text(activations: Sequence[str], optimizer: bool, parameters: bool) -> str:
    """What lies on the host as the address has it."""
    state = {"optimizer": optimizer, "parameters": parameters}
    return ",".join((*activations, *(name for name, moved in state.items() if moved)))


def state_of(request: BoundRequest, model: ModelSpec) -> WhatIf | None:
    """The lab's state that asks a request's question, or None where the lab's controls cannot hold it."""
    state = nearest_state(request, model)
    return state if state is not None and asks(state.request(model), request) else None


def nearest_state(request: BoundRequest, model: ModelSpec) -> WhatIf | None:
    """The lab's state with all that its controls hold of a request; None where device or model are written out.

    What has no control (odd weight widths, dispatch, a histogram of tokens by expert) is left at its default.
    """
    if not isinstance(request.hardware, str) or not isinstance(request.model, str):
        return None
    w, plain = request.workload, WhatIf()
    decode, p, o = w.phase == "decode", w.parallel, w.offload
    state = WhatIf(
        hardware=request.hardware,
        model=request.model,
        phase=w.phase,
        batch=w.batch,
        seq=plain.seq if decode or w.seq_len is None else w.seq_len,
        context=plain.context if w.phase == "train" else w.context_len,
        drafts=(w.seq_len or 1) - 1 if decode else 0,
        weights=w.dtypes.weights,
        activations=w.dtypes.activations,
        kv=w.dtypes.kv,
        **layout_controls(p),
        schedule=p.schedule,
        context_exchange=p.context_exchange,
        routing=plain.routing if w.routing.kind == "histogram" else w.routing.kind,
        alpha=w.routing.alpha,
        recompute=w.recompute,
        recompute_modules=",".join(w.recompute_modules or ()),
        offload="" if o is None else offload_text(o.activations, o.optimizer, o.parameters),
        optimizer=w.optimizer,
        launch=w.launch_mode,
        ceilings=request.ceilings,
    ).with_levers([(item, {}) if isinstance(item, str) else (item.id, item.params) for item in request.levers])
    inputs: dict[str, Any] = {name: getattr(w, name) or 0 for name in inputs_of(model)}
    return replace(state, **inputs)


def layout_controls(parallel: Parallel | ParallelBody) -> dict[str, Any]:
    """What the controls of a layout hold, all but the choices of a schedule and of an exchange."""
    degrees = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batches", "virtual_stages")
    held = {name: getattr(parallel, name) for name in degrees}
    return held | {"sp": int(parallel.sequence_parallel), "zero": parallel.zero_stage}


def asks(request: BoundRequest, other: BoundRequest) -> bool:
    """Whether two requests ask the same question."""
    return _asked_body(request) == _asked_body(other)


def _asked_body(request: BoundRequest) -> dict[str, Any]:
    """A request with its defaults filled in, and without what does not change the answer in its phase."""
    body = request.model_dump(mode="json")
    workload = body["workload"]
    if workload["seq_len"] is None:
        workload["seq_len"] = default_seq_len(workload["phase"])
    workload["recompute_modules"] = workload["recompute_modules"] or []
    workload["offload"] = workload["offload"] or OffloadBody().model_dump(mode="json")
    if workload["routing"]["kind"] != "zipf":
        workload["routing"].pop("alpha")
    body["levers"] = [{"id": item, "params": {}} if isinstance(item, str) else item for item in body["levers"]]
    if workload["phase"] != "train":
        for name in ("recompute", "optimizer"):
            workload.pop(name)
        for name in ("gradients", "optimizer"):
            workload["dtypes"].pop(name)
    if all(workload["parallel"][name] == 1 for name in ("tp", "pp", "dp", "cp", "ep")):
        workload["dtypes"].pop("communication")
    return body


def inputs_of(model: ModelSpec) -> tuple[str, ...]:
    """The lab's fields that only some models have a use for, of those that this one has; 0 leaves each to the model."""
    names: list[str] = []
    if model.encoder is not None:
        names.append("source_len")
    if model.tower is not None or (model.reads_other_input and model.encoder is None):
        names.append("visual_tokens")
    if model.denoiser is not None:
        names += ["width", "height"] + (["frames"] if model.denoiser.latent.temporal else [])
    if model.prediction is not None:
        names.append("prediction_modules")
    return tuple(names)


def unused_by(model: ModelSpec) -> tuple[str, ...]:
    """The lab's fields that a model has no use for: a picture gives a denoiser its tokens, encoders cache none."""
    if model.denoiser is not None:
        return ("seq", "context", "kv")
    return () if model.generates else ("context", "kv")


_LEVER = re.compile(r"([a-z0-9][a-z0-9.-]{0,79})(?:\(([^()]*)\))?")


def _read_lever(text: str) -> tuple[str, dict[str, float]]:
    found = _LEVER.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(("levers",), f"{text.strip()[:60]!r} is not a lever: write name or name(number=value;...)")
    params: dict[str, float] = {}
    for pair in (found[2] or "").split(";"):
        if not pair.strip():
            continue
        name, _, value = pair.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidInput(("levers",), f"{pair.strip()[:60]!r} is not a number: write name=value")
        params[name.strip()] = number
    return found[1], params


def _lever_body(id_: str, params: dict[str, float]) -> str | dict[str, Any]:
    return {"id": id_, "params": params} if params else id_


def _write_lever(id_: str, params: Mapping[str, float]) -> str:
    inside = ";".join(f"{name}={value:g}" for name, value in params.items())
    return f"{id_}({inside})" if inside else id_


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
    ("workload", "visual_tokens"): "visual_tokens",
    ("workload", "source_len"): "source_len",
    ("workload", "width"): "width",
    ("workload", "height"): "height",
    ("workload", "frames"): "frames",
    ("workload", "prediction_modules"): "prediction_modules",
    ("workload", "recompute"): "recompute",
    ("workload", "recompute_modules"): "recompute_modules",
    ("workload", "offload"): "offload",
    ("workload", "optimizer"): "optimizer",
    ("workload", "dtypes", "weights"): "weights",
    ("workload", "dtypes", "activations"): "activations",
    ("workload", "dtypes", "kv"): "kv",
    ("workload", "parallel", "tp"): "tp",
    ("workload", "parallel", "dp"): "dp",
    ("workload", "parallel", "pp"): "pp",
    ("workload", "parallel", "cp"): "cp",
    ("workload", "parallel", "ep"): "ep",
    ("workload", "parallel", "etp"): "etp",
    ("workload", "parallel", "sequence_parallel"): "sp",
    ("workload", "parallel", "zero_stage"): "zero",
    ("workload", "parallel", "micro_batches"): "micro_batches",
    ("workload", "parallel", "virtual_stages"): "virtual_stages",
    ("workload", "parallel", "schedule"): "schedule",
    ("workload", "parallel", "context_exchange"): "context_exchange",
    ("workload", "routing", "kind"): "routing",
    ("workload", "routing", "alpha"): "alpha",
    ("levers",): "levers",
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
    inputs: tuple[str, ...] = ()


def answer(ctx: Context, state: WhatIf) -> WhatIfAnswer:
    """Evaluate a state of the lab. Errors are those of `estimate_bound`."""
    model = resolve_model(ctx, state.model)[0]
    estimate = estimate_bound(ctx, state.request(model))
    return WhatIfAnswer(
        state=state,
        estimate=estimate,
        headline=headline(estimate),
        details=details(estimate),
        request=state.body(model),
        inputs=inputs_of(model),
    )


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """What a state's model could recompute and keep on the host, as (name, label) pairs, and what is chosen of it."""

    recompute: tuple[tuple[str, str], ...]
    offload: tuple[tuple[str, str], ...]
    recomputed: tuple[str, ...]
    offloaded: tuple[str, ...]


def module_options(ctx: Context, state: WhatIf) -> ModuleOptions:
    """The choices by module: saved activations only exist in training, parameters always do."""
    try:
        again, held = modules_of(resolve_model(ctx, state.model)[0])
    except InvalidInput:
        again, held = (), ()
    train = state.phase == "train"
    activations = tuple((name, f"{OFFLOAD_LABELS[name]} activations") for name in held) if train else ()
    optimizer = (("optimizer", "Optimizer state"),) if train else ()
    return ModuleOptions(
        recompute=tuple((name, RECOMPUTE_LABELS[name]) for name in again) if train else (),
        offload=(*activations, *optimizer, ("parameters", "Parameters")),
        recomputed=tuple(_names(state.recompute_modules)),
        offloaded=tuple(_names(state.offload)),
    )


def opening(ctx: Context, state: WhatIf) -> WhatIf:
    """The state's device and model with a first question that suits both.

    A model that emits no tokens gets one forward pass instead of a decode step; a device without bf16 its own 16-bit
    format, or fp32. What cannot be found is left for the answer to refuse.
    """
    try:
        hardware, model = resolve_hardware(ctx, state.hardware)[0], resolve_model(ctx, state.model)[0]
        precision = preferred_precision(hardware)
    except (InvalidInput, MissingFigure):
        return state
    if not model.generates:
        state = replace(state, phase="prefill", batch=1)
    return replace(state, weights=precision, activations=precision, kv=precision)


def headline(estimate: BoundEstimate) -> str:
    """The answer in one sentence: what binds, the time of a step, the throughput, or that the step cannot run."""
    bound = estimate.bound
    phase = {"decode": "Decode", "prefill": "Prefill", "train": "Training"}[estimate.workload.phase]
    unit = "step" if estimate.workload.phase != "prefill" else "prompt batch"
    if estimate.workload.phase == "prefill" and not estimate.model.generates:
        phase, unit = ("Denoising", "step") if estimate.model.denoiser else ("A forward pass", "batch")
    first = (
        f"{phase} is bound by {RESOURCE_WORDS[bound.binding]}: {time_words(float(bound.overlapped))} a {unit} at least"
    )
    if not estimate.runs:
        over = estimate.memory.peak - (estimate.memory.capacity or 0.0)
        return f"{first}, but it does not fit: {gib_words(over)} too much on each device."
    rate = estimate.tokens_per_second
    per_device = (
        "" if estimate.workload.parallel.devices == 1 else f", {count_words((rate or 0) / _devices(estimate))} a device"
    )
    return f"{first}, {count_words(rate or 0.0)} tokens/s at most{per_device}."


def details(estimate: BoundEstimate) -> tuple[str, ...]:
    """Facts that explain the headline: the runner-up, what the bytes are, how much memory is left."""
    bound, memory = estimate.bound, estimate.memory
    (first, first_time), (second, second_time) = bound.ranked_terms()[:2]
    sentences = []
    if second_time > 0:
        share = second_time / first_time
        near = "both matter" if share >= 0.8 else f"{RESOURCE_WORDS[first]} decides"
        sentences.append(f"Next is {RESOURCE_WORDS[second]} at {share:.0%} of that: {near}.")
    total = bound.hbm_bytes
    if total > 0 and estimate.workload.phase == "decode":
        parts = {
            "weights": bound.total("weights"),
            estimate.model.cache_name: bound.total("kv_read") + bound.total("kv_write"),
        }
        parts["activations"] = total - sum(parts.values())
        shown = [(f"{size / total:.0%}", name) for name, size in parts.items() if size / total >= 0.005]
        words = [f"{part} {'' if place else 'are '}{name}" for place, (part, name) in enumerate(shown)]
        sentences.append(f"Of the HBM bytes {' and '.join(filter(None, (', '.join(words[:-1]), words[-1])))}.")
    if memory.capacity is not None and memory.largest_batch is not None:
        if memory.largest_batch == 0:
            sentences.append("Not even one sequence fits: use more devices or narrower weights.")
        elif memory.fits is False:
            sentences.append(f"The largest batch that fits is {memory.largest_batch:,}.")
        else:
            held = f"{gib_words(memory.peak)} of {gib_words(memory.capacity)}"
            sentences.append(f"A device holds {held}; batch {memory.largest_batch:,} would fit.")
    if far := beyond_context(estimate.model, estimate.workload):
        sentences.append(far)
    return tuple(sentences)


def _devices(estimate: BoundEstimate) -> float:
    return float(estimate.workload.parallel.devices)


@dataclass(frozen=True, slots=True)
class LeverChoice:
    """A lever as the lab offers it: `reason` says why it does not apply to what is asked, or is None."""

    lever: Lever
    reason: str | None


def lever_choices(ctx: Context, state: WhatIf) -> tuple[LeverChoice, ...]:
    """Every lever, with why it makes no sense behind the chosen ones on this state's device, model and workload."""
    try:
        model = resolve_model(ctx, state.model)[0]
        workload = state.request(model).workload.to_domain()
        hardware = resolve_hardware(ctx, state.hardware)[0]
        chosen = [LeverRequest(id_, params) for id_, params in state.chosen_levers()]
    except (InvalidInput, ValidationError):
        return ()
    return tuple(LeverChoice(lever, reason) for lever, reason in refusals(model, workload, hardware, chosen))


def what_would_have_to_be_true(ctx: Context, state: WhatIf) -> tuple[Crossing, ...]:
    """Where another resource takes over from the step of a state. Errors are those of `estimate_bound`."""
    return crossings(ctx, state.request(resolve_model(ctx, state.model)[0]))


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
