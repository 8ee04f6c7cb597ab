"""The communication page: six questions whose controls fit into an address, each asked as its body of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.services import communication_answers as answers
from app.services.communication import estimate_collective
from app.services.communication_layouts import estimate_context_parallel, estimate_pipeline, estimate_sharding
from app.services.communication_overlap import estimate_exposed, estimate_overlap
from app.services.communication_requests import (
    CollectiveRequest,
    ContextParallelRequest,
    ExposedRequest,
    OverlapRequest,
    PipelineRequest,
    ShardingRequest,
)
from app.services.context import Context
from app.services.contracts import BoundRequest, CollectiveBody
from app.services.estimate import bound_json, estimate_bound
from app.services.words import rate_words, size_words, time_words

Values = Mapping[str, Any]
"""Control values of one question by name, read; an empty control is None."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the page: the call that answers it, its controls, and where its errors belong."""

    id: str
    label: str
    call: str
    controls: tuple[str, ...]
    places: Mapping[str, str]


_LINKS = ("alpha_up", "alpha_out", "efficiency")
_LINK_PLACES = {"scale_up_alpha_s": "alpha_up", "scale_out_alpha_s": "alpha_out", "efficiency": "efficiency"}
_GROUP = ("ranks", "per_node", "in_switch")
_GROUP_PLACES = {"ranks": "ranks", "ranks_per_node": "per_node", "in_switch_reduction": "in_switch"}
_STEP_PLACES = {"batch": "batch", "dp": "dp", "tp": "tp", "cp": "cp", "phase": "phase", "recompute": "recompute"}

QUESTIONS: tuple[Question, ...] = (
    Question(
        "collective",
        "Collectives",
        "collective",
        ("hardware", "kind", "size", *_GROUP, "algorithm", "ceilings", *_LINKS),
        {"kind": "kind", "bytes": "size", "algorithm": "algorithm", **_GROUP_PLACES, **_LINK_PLACES},
    ),
    Question(
        "overlap",
        "Overlap",
        "overlap",
        ("hardware", "pattern", "m", "n", "k", "dtype", *_GROUP, "chunks", "launch", "contention", "units", *_LINKS),
        {
            "kind": "pattern",
            **{name: name for name in ("m", "n", "k", "dtype", "chunks", "contention")},
            "launch_s": "launch",
            "communication_units": "units",
            **_GROUP_PLACES,
            **_LINK_PLACES,
        },
    ),
    Question(
        "exposed",
        "Exposed time",
        "exposed-communication",
        ("step", "compute_only", "other", "streams", "run"),
        {"step_s": "step", "compute_only_s": "compute_only", "other_s": "other", "streams_s": "streams", "run": "run"},
    ),
    Question(
        "sharding",
        "ZeRO and FSDP",
        "sharding",
        ("hardware", "model", "batch", "seq", "dp", "tp", "accumulate", "recompute", "prefetch", *_LINKS),
        {"seq_len": "seq", "micro_batches": "accumulate", "prefetch": "prefetch", **_STEP_PLACES, **_LINK_PLACES},
    ),
    Question(
        "pipeline",
        "Pipelines",
        "pipeline",
        (
            "schedule",
            "stages",
            "micro_batches",
            "virtual_stages",
            "forward",
            "backward",
            "weight_gradient",
            "hand_over",
        ),
        {
            **{name: name for name in ("schedule", "stages", "micro_batches", "virtual_stages")},
            "forward_s": "forward",
            "backward_s": "backward",
            "weight_gradient_s": "weight_gradient",
            "hand_over_s": "hand_over",
        },
    ),
    Question(
        "context",
        "Context parallel",
        "context-parallel",
        ("hardware", "model", "phase", "batch", "prompt", "cp", "tp", *_LINKS),
        {"seq_len": "prompt", **_STEP_PLACES, **_LINK_PLACES},
    ),
)
BY_ID: Mapping[str, Question] = {question.id: question for question in QUESTIONS}


def place_of(question: Question, loc: tuple[str | int, ...]) -> str | None:
    """The control that an error of the body belongs beside, or None."""
    for part in reversed(loc):
        name = question.places.get(str(part))
        if name is not None:
            return name
        if part in ("hardware", "model") and str(part) in question.controls:
            return str(part)
    return None


def body_of(question: Question, values: Values) -> dict[str, Any]:
    """The body of the question's call; what was left empty is left out."""
    return _BODIES[question.id](values)


def _given(pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in pairs.items() if value is not None}


def _links(values: Values) -> dict[str, Any]:
    links = _given(
        {
            "scale_up_alpha_s": values["alpha_up"],
            "scale_out_alpha_s": values["alpha_out"],
            "efficiency": values["efficiency"],
        }
    )
    return {"links": links} if links else {}


def _group(values: Values) -> dict[str, Any]:
    in_switch = {"yes": True, "no": False}.get(values["in_switch"])
    return {"ranks": values["ranks"]} | _given({"ranks_per_node": values["per_node"], "in_switch_reduction": in_switch})


def _collective(v: Values) -> dict[str, Any]:
    body = {"hardware": v["hardware"], "kind": v["kind"], "bytes": v["size"], **_group(v)}
    return body | _given({"algorithm": v["algorithm"] or None}) | {"ceilings": v["ceilings"]} | _links(v)


def _overlap(v: Values) -> dict[str, Any]:
    gemm = {name: v[name] for name in ("m", "n", "k", "dtype")}
    body = {"hardware": v["hardware"], "gemm": gemm, "kind": v["pattern"], **_group(v)}
    asked = {"chunks": v["chunks"], "launch_s": v["launch"], "contention": v["contention"]}
    asked["communication_units"] = v["units"]
    return body | _given(asked) | _links(v)


def _exposed(v: Values) -> dict[str, Any]:
    run = v["run"] or None
    times = {"step_s": v["step"], "compute_only_s": v["compute_only"], "other_s": v["other"]}
    return _given({"run": run, **times, "streams_s": v["streams"]})


def _sharding(v: Values) -> dict[str, Any]:
    parallel = {"dp": v["dp"], "tp": v["tp"], "micro_batches": v["accumulate"], "zero_stage": 3}
    workload = {
        "phase": "train",
        "batch": v["batch"],
        "seq_len": v["seq"],
        "parallel": parallel,
        "recompute": v["recompute"],
    }
    body = {"hardware": v["hardware"], "model": v["model"], "workload": workload, "prefetch": v["prefetch"]}
    return body | _links(v)


def _pipeline(v: Values) -> dict[str, Any]:
    names = ("schedule", "stages", "micro_batches", "virtual_stages")
    times = {
        "forward_s": v["forward"],
        "backward_s": v["backward"],
        "weight_gradient_s": v["weight_gradient"],
        "hand_over_s": v["hand_over"],
    }
    return {name: v[name] for name in names} | _given(times)


def _context(v: Values) -> dict[str, Any]:
    workload = {
        "phase": v["phase"],
        "batch": v["batch"],
        "seq_len": v["prompt"],
        "parallel": {"cp": v["cp"], "tp": v["tp"]},
    }
    return {"hardware": v["hardware"], "model": v["model"], "workload": workload} | _links(v)


_BODIES: Mapping[str, Callable[[Values], dict[str, Any]]] = {
    "collective": _collective,
    "overlap": _overlap,
    "exposed": _exposed,
    "sharding": _sharding,
    "pipeline": _pipeline,
    "context": _context,
}


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """An answer in the API's shape with its sentence; `bound_request` is the step or operation that a comparison can
    hold. Without one it holds the question itself (`frozen`), where its kind is one of them."""

    question: Question
    body: Mapping[str, Any]
    result: Mapping[str, Any]
    headline: str
    details: tuple[str, ...]
    bound_request: Mapping[str, Any] | None = None
    step: Mapping[str, Any] | None = None
    capacity: float | None = None

    @property
    def frozen(self) -> Mapping[str, Any] | None:
        """What the page adds to a comparison; None where comparisons have nothing for the question as it was asked."""
        if self.bound_request is not None:
            return {"kind": "estimate", "request": self.bound_request}
        if self.question.id in ("overlap", "exposed", "pipeline"):
            return {"kind": "estimate", "estimate": self.question.id, "request": self.body}
        return None


def answer(ctx: Context, question: Question, values: Values) -> PageAnswer:
    """Ask one question of the page. Raises ValidationError and what the estimates raise."""
    body = body_of(question, values)
    return _ANSWERS[question.id](ctx, question, body)


def _answer_collective(ctx: Context, question: Question, body: dict[str, Any]) -> PageAnswer:
    found = estimate_collective(ctx, CollectiveRequest.model_validate(body))
    result = answers.collective_json(found)
    name = KIND_WORDS[found.request.kind]
    how = {
        "ring": "around a ring",
        "tree": "by trees",
        "hierarchical": "node by node",
        "in_switch": "reduced in the switch",
    }
    ratio = found.time / found.bound if found.bound else None
    bus = found.bus(found.time)
    headline = (
        f"{name} of {size_words(found.request.bytes)} over {found.request.ranks:,} × {found.hardware.name} takes about "
        f"{time_words(found.time)} {how[found.chosen.algorithm]}"
        + (f", {ratio:,.{2 if ratio < 100 else 0}f} times its bound" if ratio else "")
        + (f": {rate_words(bus)} bus bandwidth." if bus else ".")
    )
    details = []
    start = sum(
        count * next(f.model.alpha for f in found.links if f.tier == tier)
        for tier, count in found.chosen.messages.items()
    )
    if found.time > 0:
        share = start / found.time
        follows = "a smaller array would take hardly less" if share > 0.5 else "bytes decide"
        amount = "less than 1%" if share < 0.01 else f"{share:.0%}"
        details.append(f"Start-up costs are {amount} of it: {follows}.")
    same = [m for m in found.measured if m.ranks == found.request.ranks]
    near = min(same, key=lambda m: abs(m.size - found.request.bytes), default=None)
    if near is not None and found.request.bytes / 2 <= near.size <= found.request.bytes * 2:
        details.append(
            f"Measured with {near.ranks} ranks at {size_words(near.size)}: {time_words(near.seconds)}, "
            f"{rate_words(near.bus_bandwidth)}."
        )
    # a comparison holds the operation, whose bound knows no start-up costs
    op = {"op": "collective"} | {name: value for name, value in body.items() if name in CollectiveBody.model_fields}
    fits = op.get("algorithm") != "in_switch" and not found.request.links.model_fields_set
    frozen = {"hardware": body["hardware"], "op": op, "ceilings": found.request.ceilings} if fits else None
    return PageAnswer(question, body, result, headline, tuple(details), frozen)


def _answer_overlap(ctx: Context, question: Question, body: dict[str, Any]) -> PageAnswer:
    found = estimate_overlap(ctx, OverlapRequest.model_validate(body))
    result = answers.overlap_json(found)
    serial, chunked = found.level("L0"), found.level("L2")
    word = KIND_WORDS[found.request.kind].split(" ", 1)[1]
    gained = serial.timeline.total - chunked.timeline.total
    cut = "Uncut" if found.shown == 1 else f"In {found.shown} chunks"
    headline = (
        f"{cut}, the product and its {word} take {time_words(chunked.timeline.total)} instead of "
        f"{time_words(serial.timeline.total)} one after the other; {time_words(chunked.exposed)} still shows."
    )
    if gained <= 0:
        headline = (
            f"{cut}, the product and its {word} take {time_words(chunked.timeline.total)}: no less than "
            f"{time_words(serial.timeline.total)} one after the other."
        )
    few, many = found.curve[0], found.curve[-1]
    details = [
        f"Best is {found.best} {'chunk' if found.best == 1 else 'chunks'}: {few.chunks} leaves the {word} in the open, "
        f"{many.chunks} take {time_words(many.time)} for launches, start-up costs and waves that are not full."
    ]
    return PageAnswer(question, body, result, headline, tuple(details))


def _answer_exposed(ctx: Context, question: Question, body: dict[str, Any]) -> PageAnswer:
    found = estimate_exposed(ctx, ExposedRequest.model_validate(body))
    amount = time_words(found.exposed) if found.exposed else "Nothing"
    headline = (
        f"{amount} of the {'trace' if found.traced else 'step'} is exposed communication, "
        f"{found.share:.1%} of its "
        f"{time_words(found.step)}."
    )
    details = []
    if found.streams is not None and found.streams > 0:
        hidden = found.streams - found.step
        details.append(
            f"The streams add up to {time_words(found.streams)}"
            + (f", {time_words(hidden)} more than the step: they ran beside each other." if hidden > 0 else ".")
        )
    verdict = (
        "Above 10%, a usual threshold, it is worth work."
        if found.share > 0.10
        else "Below 10%, a usual threshold, other parts come first."
    )
    return PageAnswer(question, body, answers.exposed_json(found), headline, (*details, verdict))


def _answer_sharding(ctx: Context, question: Question, body: dict[str, Any]) -> PageAnswer:
    found = estimate_sharding(ctx, ShardingRequest.model_validate(body))
    first, last = found.stages[0], found.stages[3]
    headline = (
        f"ZeRO 3 takes a device from {size_words(first.estimate.memory.peak)} to "
        f"{size_words(last.estimate.memory.peak)}; its gathers "
        + ("hide behind compute" if found.hides else "do not hide behind compute")
        + f": {found.tokens:,.0f} tokens a device, {found.tokens_to_hide:,.0f} needed."
    )
    details = [
        f"Every rank gathers each of {found.units} units whole ({size_words(found.unit_bytes)}, "
        f"{time_words(found.gather)}) beside {time_words(found.forward)} of forward compute, "
        f"{found.request.prefetch} {'unit' if found.request.prefetch == 1 else 'units'} ahead."
    ]
    bound_request = {"hardware": body["hardware"], "model": body["model"], "workload": body["workload"]}
    return PageAnswer(
        question,
        body,
        answers.sharding_json(found),
        headline,
        tuple(details),
        bound_request,
        bound_json(estimate_bound(ctx, BoundRequest.model_validate(bound_request))),
        found.hardware.memory_capacity,
    )


def _answer_pipeline(ctx: Context, question: Question, body: dict[str, Any]) -> PageAnswer:
    found = estimate_pipeline(PipelineRequest.model_validate(body))
    line = found.timeline
    best = min(found.others, key=lambda other: other[2].total)
    plural = "stage" if found.request.stages == 1 else "stages"
    headline = (
        f"{SCHEDULE_WORDS[found.request.schedule]} over {found.request.stages} {plural} waits {line.bubble_share:.1%} "
        f"of the step: {time_words(line.bubble)} of {time_words(line.total)}."
    )
    details = []
    if best[2].total < line.total * (1 - 1e-9):
        name = SCHEDULE_WORDS[best[0]] + (f" with {best[1]} chunks" if best[0] == "interleaved" else "")
        details.append(f"{name} would wait {best[2].bubble_share:.1%}.")
    held = max(line.in_flight) / found.request.virtual_stages
    details.append(f"The fullest stage holds the activations of {held:.3g} micro-batches.")
    if line.parameter_copies > 1:
        details.append("Each device holds the parameters of two stages.")
    return PageAnswer(question, body, answers.pipeline_json(found), headline, tuple(details))


def _answer_context(ctx: Context, question: Question, body: dict[str, Any]) -> PageAnswer:
    found = estimate_context_parallel(ctx, ContextParallelRequest.model_validate(body))
    ring, gathered = found.rows[0], found.rows[1]
    headline = (
        f"A ring's hop over {found.slowest.name} "
        + ("hides" if found.hides else "does not hide")
        + f" behind attention: each rank holds {found.tokens:,.0f} tokens, {found.tokens_to_hide:,.0f} needed."
    )
    details = [
        f"A hop takes {time_words(found.hop)}, attention to a block {time_words(found.block)}.",
        f"A layer's ring sends {size_words(ring.sent)}, "
        + (
            f"an all-to-all {size_words(gathered.sent)}."
            if gathered.reason is None
            else f"and an all-to-all does not apply: {gathered.reason}."
        ),
    ]
    bound_request = {"hardware": body["hardware"], "model": body["model"], "workload": body["workload"]}
    return PageAnswer(
        question,
        body,
        answers.context_parallel_json(found),
        headline,
        tuple(details),
        bound_request,
        bound_json(estimate_bound(ctx, BoundRequest.model_validate(bound_request))),
    )


_ANSWERS: Mapping[str, Callable[[Context, Question, dict[str, Any]], PageAnswer]] = {
    "collective": _answer_collective,
    "overlap": _answer_overlap,
    "exposed": _answer_exposed,
    "sharding": _answer_sharding,
    "pipeline": _answer_pipeline,
    "context": _answer_context,
}

KIND_WORDS: Mapping[str, str] = {
    "all_reduce": "An all-reduce",
    "all_gather": "An all-gather",
    "reduce_scatter": "A reduce-scatter",
    "all_to_all": "An all-to-all",
    "broadcast": "A broadcast",
    "p2p": "A point-to-point send",
}
SCHEDULE_WORDS: Mapping[str, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved 1F1B",
    "zero_bubble": "Zero bubble (ZB-H1)",
    "dualpipe": "DualPipe",
}
