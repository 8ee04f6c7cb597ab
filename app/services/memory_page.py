"""The memory page: a state that fits into an address, its answer in words, and links that apply what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.domain.fit_search import Proposal
from app.domain.memory_reserve import Reserve
from app.domain.model import ModelSpec
from app.services import what_if
from app.services.context import Context
from app.services.contracts import BoundRequest, MemoryRequest
from app.services.memory import MemoryEstimate, estimate_memory
from app.services.references import resolve_model
from app.services.what_if import WhatIf, inputs_of, layout_controls, offload_text

EXAMPLE: Final = WhatIf(
    model="llama-3.1-70b",
    phase="train",
    batch=1,
    seq=8192,
    tp=8,
    dp=4,
    levers="zero-fsdp(stage=1),tp-sp",
)
"""What an empty address asks: a training step on four hosts of eight that two levers do not make fit yet."""

RESERVE_FIELDS: Final = ("lost", "workspace", "bucket", "gathered")


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Controls of the page: those of the lab, and the reserve."""

    lab: WhatIf = EXAMPLE
    reserve: Reserve = field(default_factory=Reserve)

    def query(self) -> dict[str, str]:
        """The address of this state. The phase always stands in it: an empty address is the example."""
        plain = Reserve()
        values = {
            "lost": (f"{self.reserve.fragmentation * 100:.12g}", self.reserve.fragmentation != plain.fragmentation),
            "workspace": (f"{self.reserve.workspace / 2**20:.12g}", self.reserve.workspace != plain.workspace),
            "bucket": (f"{self.reserve.bucket / 2**20:.12g}", self.reserve.bucket != plain.bucket),
            "gathered": (str(self.reserve.gathered_layers), self.reserve.gathered_layers != plain.gathered_layers),
        }
        own = {name: text for name, (text, differs) in values.items() if differs}
        return {"phase": self.lab.phase} | self.lab.query() | own

    def body(self, lab: Mapping[str, Any]) -> dict[str, Any]:
        """The body of `POST /estimates/memory` for the lab's body of the same question."""
        body = {**lab, "make_it_fit": True}
        if self.reserve != Reserve():
            body["reserve"] = {
                "fragmentation": self.reserve.fragmentation,
                "workspace_bytes": self.reserve.workspace,
                "bucket_bytes": self.reserve.bucket,
                "gathered_layers": self.reserve.gathered_layers,
            }
        return body


def state_of(request: MemoryRequest, model: ModelSpec) -> MemoryState | None:
    """The page's state that asks a request's question, or None where its controls cannot hold it."""
    bound = BoundRequest(**{name: getattr(request, name) for name in BoundRequest.model_fields})
    lab = what_if.state_of(bound, model)
    told = request.reserve
    reserve = Reserve(told.fragmentation, told.workspace_bytes, told.bucket_bytes, told.gathered_layers)
    return None if lab is None else MemoryState(lab, reserve)


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The estimate with its sentences; `request` asks the API the same, `bound_request` for the step's time."""

    state: MemoryState
    estimate: MemoryEstimate
    headline: str
    details: tuple[str, ...]
    request: Mapping[str, Any]
    bound_request: Mapping[str, Any]
    inputs: tuple[str, ...]

    @property
    def frozen(self) -> Mapping[str, Any]:
        """What the page adds to a comparison: the question without the search for what would fit."""
        return {name: value for name, value in self.request.items() if name != "make_it_fit"}


def answer(ctx: Context, state: MemoryState) -> MemoryAnswer:
    """Evaluate a state of the page. Errors are those of `estimate_bound`."""
    model = resolve_model(ctx, state.lab.model)[0]
    lab = state.lab.body(model)
    body = state.body(lab)
    estimate = estimate_memory(ctx, MemoryRequest.model_validate(body))
    return MemoryAnswer(
        state=state,
        estimate=estimate,
        headline=headline(estimate),
        details=details(estimate),
        request=body,
        bound_request=lab,
        inputs=inputs_of(model),
    )


PRESETS: Final[Mapping[str, MemoryState]] = {
    "70B training on 32": MemoryState(EXAMPLE),
    "8B fine-tuning on one": MemoryState(WhatIf(phase="train", batch=1, seq=4096)),
    "70B decode on 4": MemoryState(WhatIf(model="llama-3.1-70b", batch=64, context=8192, tp=4)),
    "MoE in a pipeline": MemoryState(
        WhatIf(
            hardware="nvidia-h200-sxm",
            model="deepseek-v3",
            phase="train",
            batch=1,
            seq=4096,
            pp=16,
            dp=16,
            ep=16,
            micro_batches=32,
            levers="zero-fsdp(stage=1)",
        )
    ),
}
"""Starting points of the page."""


def applied(state: MemoryState, proposal: Proposal) -> MemoryState:
    """The state that asks a proposal's question."""
    w = proposal.workload
    lab = replace(
        state.lab,
        batch=w.batch,
        **layout_controls(w.parallel),
        recompute_modules=",".join(w.recompute_modules),
        offload=offload_text(w.offload.activations, w.offload.optimizer, w.offload.parameters),
    )
    return replace(state, lab=lab.with_levers([(lever.id, lever.params) for lever in proposal.levers]))


# ---- words ----------------------------------------------------------------------------------------------------------

OBJECT_WORDS: Final[Mapping[str, str]] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "logits": "logits",
    "kv_cache": "the KV cache",
    "workspace": "workspace",
    "communication": "communication buffers",
    "fragmentation": "fragmentation",
}


def headline(estimate: MemoryEstimate) -> str:
    """The answer in one sentence: whether the fullest device holds the step, and what would make it do so."""
    bound, use = estimate.bound, estimate.use
    phase = {"decode": "decode", "prefill": "prefill", "train": "training"}[bound.workload.phase]
    devices = bound.workload.parallel.devices
    where = bound.hardware.name if devices == 1 else f"{devices:,} × {bound.hardware.name}"
    what = f"{bound.model.name} {phase} on {where}"
    if use.capacity is None:
        return f"{what} needs {size(use.peak)} on the fullest device; its capacity is not stated."
    if use.fits:
        return f"{what} fits: {size(use.peak)} of {size(use.capacity)}, {size(use.capacity - use.peak)} to spare."
    over = f"{what} does not fit: {size(use.peak)} of {size(use.capacity)}, {size(use.peak - use.capacity)} too much."
    fit = estimate.fit
    if fit is None or not fit.proposals:
        return f"{over} No combination that was tried makes it fit."
    best = fit.proposals[0]
    moves = [lower_first(step.move.label) for step in best.steps]
    listed = moves[0] if len(moves) == 1 else f"{', '.join(moves[:-1])} and {moves[-1]}"
    verb = "makes" if len(moves) == 1 else "make"
    return f"{over} {listed[:1].upper()}{listed[1:]} {verb} it fit, {cost_words(best.time, fit.start_time)}."


def details(estimate: MemoryEstimate) -> tuple[str, ...]:
    """What a reader asks next: the largest objects, what the bound counts, the batch that would fit."""
    use, least = estimate.use, estimate.bound.memory
    largest = sorted(use.objects.items(), key=lambda item: -item[1])[:2]
    first, second = ((OBJECT_WORDS[name], held / use.peak) for name, held in largest)
    sentences = [f"Most of it: {first[0]} {first[1]:.0%}, {second[0]} {second[1]:.0%}."]
    reserve = use.peak - least.peak
    sentences.append(f"The bound counts {size(least.peak)}; buffers and reserve add {size(reserve)}.")
    if use.largest_batch is not None and use.capacity is not None:
        batch = estimate.bound.workload.batch
        if use.largest_batch == 0:
            sentences.append("Not even a batch of one fits this way.")
        elif use.largest_batch != batch:
            sentences.append(f"The largest batch that fits this way is {use.largest_batch:,}.")
    fit = estimate.fit
    narrow = next((proposal for proposal in fit.proposals[1:] if not proposal.exact), None) if fit else None
    if fit is not None and narrow is not None:
        moves = ", ".join(lower_first(step.move.label) for step in narrow.steps)
        sentences.append(f"With narrower formats: {moves}, {cost_words(narrow.time, fit.start_time)}.")
    return tuple(sentences)


def cost_words(after: float, before: float) -> str:
    """A change of the expected time of a step, in words."""
    change = after / before - 1.0
    if abs(change) < 0.005:
        return "at the same expected time"
    share = f"{abs(change):.0%}" if abs(change) < 10 else f"{abs(change) + 1:,.0f} times"
    if change > 10:
        return f"at {share} the expected time"
    return f"at {share} {'more' if change > 0 else 'less'} expected time"


def lower_first(text: str) -> str:
    """A label inside a sentence: a name that is spelled in capitals keeps them."""
    word = text.split(" ", 1)[0].rstrip(",")
    return text if not word[1:].islower() else text[:1].lower() + text[1:]


def size(value: float) -> str:
    gib = value / 2**30
    return f"{gib:,.0f} GiB" if gib >= 1000 else f"{gib:.3g} GiB" if gib >= 0.1 else f"{value / 2**20:.3g} MiB"
