"""The KV page: a state that fits into an address, the curves that it asks for, and the answer in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from app.domain.cost import Array
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.kv_cache import (
    CacheShape,
    cache_use,
    expected_empty,
    largest_batch,
    largest_context,
    need,
    need_of,
    sequence_by_kind,
    shape_of,
    stage_parts,
)
from app.domain.lengths import Lengths
from app.domain.lower_bound import lower_bound
from app.domain.memory import kv_bytes_per_token
from app.domain.model import ModelSpec
from app.domain.precision import PRECISIONS, Precision
from app.domain.step import cost_table
from app.domain.thresholds import thresholds
from app.domain.workload import MAX_TOKENS, Workload
from app.services.context import Context
from app.services.contracts import MAX_SEQUENCES, BoundRequest, KvRequest
from app.services.estimate import BoundEstimate, estimate_bound
from app.services.kv import KvEstimate, estimate_kv
from app.services.page_state import address_of, communication_precision
from app.services.references import resolve_model
from app.services.run_lengths import stored_lengths
from app.services.runs import get_view
from app.storage.errors import NotFound

DISTRIBUTIONS: tuple[str, ...] = ("fixed", "uniform", "lognormal", "list", "run")
MOST_LINES = 6
MOST_DISTINCT = 400
"""Distinct lengths that an address carries; longer lists are put into groups."""

MOST_REPEATED = 1000
"""Most lengths that a body repeats one by one for people to copy."""

PAGE_SIZES: tuple[int, ...] = tuple(2**power for power in range(11))


@dataclass(frozen=True, slots=True)
class KvState:
    """Everything the page's controls hold, each field one key of its address.

    `dist` says which fields give the lengths: `context`; `low` and `high`; `mean` and `p95`; `lengths`, a list such as
    `512x3,1024`; or `run`, the id of a run that carries lengths. `reserve` is in percent of a device's memory,
    `longest` what a contiguous cache reserves (0: the model's longest context), `prediction` how many prediction
    modules keep a cache too. `lines` are further curves, each `model@precision of the cache@tp`; `-` is none.
    """

    hardware: str = "nvidia-h200-sxm"
    model: str = "llama-3.1-70b"
    batch: int = 32
    dist: str = "fixed"
    context: int = 8192
    low: int = 1024
    high: int = 16384
    mean: int = 4096
    p95: int = 10240
    lengths: str = ""
    run: str = ""
    prefix: int = 1024
    page: int = 16
    longest: int = 0
    prediction: int = 0
    weights: str = "bf16"
    activations: str = "bf16"
    kv: str = "bf16"
    tp: int = 4
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    reserve: int = 10
    ceilings: str = "peak"
    lines: str = "llama-3.1-70b@fp8@4,gemma-3-27b@bf16@4,deepseek-v3@bf16@16"

    def query(self, **changes: Any) -> dict[str, str]:
        """The address of this state (with `changes`): only what differs from the defaults, in a fixed order."""
        return address_of(self, changes)

    def body(self, lengths: Lengths) -> dict[str, Any]:
        """The same question as a body of `POST /estimates/kv`, with the lengths one by one where they differ.

        Beyond a thousand sequences the mean stands for them.
        """
        body: dict[str, Any] = {
            "hardware": self.hardware,
            "model": self.model,
            "kv_dtype": self.kv,
            "weights_dtype": self.weights,
            "activations_dtype": self.activations,
            "page_tokens": self.page,
            "shared_prefix_tokens": self.prefix,
            "parallel": self._parallel(),
            "reserve_fraction": self.reserve / 100,
            "ceilings": self.ceilings,
        }
        if self.longest:
            body["reserved_len"] = self.longest
        if self.prediction:
            body["prediction_modules"] = self.prediction
        if self.dist == "run" and self.run:
            return body | {"run": self.run, "batch": self.batch}
        if lengths.values.size == 1:
            return body | {"batch": int(lengths.counts[0]), "context_len": int(lengths.values[0])}
        if lengths.sequences > MOST_REPEATED:
            return body | {"batch": max(round(lengths.sequences), 1), "context_len": round(lengths.mean)}
        listed = np.repeat(lengths.values, lengths.counts.astype(np.int64))
        return body | {"sequences": [int(length) for length in listed]}

    def bound_body(self, estimate: KvEstimate) -> dict[str, Any]:
        """A decode step of this batch at its mean length, as a body of `POST /estimates/bound`."""
        dtypes = {
            "weights": self.weights,
            "activations": self.activations,
            "kv": self.kv,
            "communication": communication_precision(self.activations),
        }
        workload: dict[str, Any] = {
            "phase": "decode",
            "batch": estimate.workload.batch,
            "seq_len": 1,
            "context_len": estimate.workload.context_len,
            "dtypes": dtypes,
            "parallel": self._parallel(),
        }
        if self.page != 16:
            workload["kv"] = {"page_tokens": self.page}
        if self.prediction:
            workload["prediction_modules"] = self.prediction
        return {"hardware": self.hardware, "model": self.model, "workload": workload, "ceilings": self.ceilings}

    def _parallel(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("tp", "pp", "dp", "cp", "ep")}

    def further(self) -> list[tuple[str, str, int]]:
        """Model, precision and tensor parallelism of each further line. Raises InvalidInput at `lines`."""
        if self.lines.strip() in ("", "-"):
            return []
        found = [_line(part) for part in self.lines.split(",") if part.strip()]
        if len(found) > MOST_LINES:
            raise InvalidInput(("lines",), f"at most {MOST_LINES} further lines, not {len(found)}: remove some")
        return found

    def with_lines(self, lines: Sequence[tuple[str, str, int]]) -> KvState:
        return replace(self, lines=",".join(f"{model}@{kv}@{tp}" for model, kv, tp in lines) or "-")


def state_of(request: KvRequest) -> KvState | None:
    """The page's state that asks a request's question, or None where its controls cannot hold it."""
    if not isinstance(request.hardware, str) or not isinstance(request.model, str):
        return None
    parallel = {name: getattr(request.parallel, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    asked: dict[str, Any] = {"dist": "fixed", "batch": request.batch, "context": request.context_len or 0}
    lengths = Lengths.fixed(request.batch, request.context_len or 0)
    if request.run is not None:
        asked = {"dist": "run", "run": request.run, "batch": request.batch}
    elif request.sequences is not None:
        lengths = Lengths.of(request.sequences)
        if lengths.values.size > MOST_DISTINCT:
            return None
        asked = {"dist": "list", "lengths": write_lengths(lengths)}
    state = KvState(
        hardware=request.hardware,
        model=request.model,
        prefix=request.shared_prefix_tokens,
        page=request.page_tokens,
        longest=request.reserved_len or 0,
        prediction=request.prediction_modules,
        weights=request.weights_dtype,
        activations=request.activations_dtype,
        kv=request.kv_dtype,
        reserve=round(request.reserve_fraction * 100),
        ceilings=request.ceilings,
        lines="-",
        **parallel,
        **asked,
    )
    again = KvRequest.model_validate(state.body(lengths))
    length_names = {"batch", "context_len", "sequences"}
    same = again.model_dump(exclude=length_names) == request.model_dump(exclude=length_names)
    return state if same else None


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(KvState))
"""Keys of the page's address, in the order of the controls."""

FIELD_OF_LOC: Mapping[tuple[str, ...], str] = {
    ("hardware",): "hardware",
    ("model",): "model",
    ("batch",): "batch",
    ("context_len",): "context",
    ("sequences",): "lengths",
    ("shared_prefix_tokens",): "prefix",
    ("page_tokens",): "page",
    ("reserved_len",): "longest",
    ("prediction_modules",): "prediction",
    ("workload", "prediction_modules"): "prediction",
    ("weights_dtype",): "weights",
    ("activations_dtype",): "activations",
    ("kv_dtype",): "kv",
    ("reserve_fraction",): "reserve",
    ("ceilings",): "ceilings",
    **{("parallel", name): name for name in ("tp", "pp", "dp", "cp", "ep")},
    **{(name,): name for name in ("dist", "high", "p95", "lengths", "run", "lines")},
}
"""Where an error of the API's body belongs among the page's controls."""


def _line(text: str) -> tuple[str, str, int]:
    parts = [part.strip() for part in text.split("@")]
    if len(parts) != 3 or not parts[0]:
        raise InvalidInput(("lines",), f"{text.strip()[:60]!r} is not a line: write model@precision@tp")
    model, kv, tp = parts
    if kv not in PRECISIONS:
        raise InvalidInput(("lines",), f"unknown precision {kv[:20]!r}: use one of {', '.join(PRECISIONS)}")
    if not (tp.isascii() and tp.isdigit() and 1 <= int(tp[:9]) <= 4096):
        raise InvalidInput(("lines",), f"tensor parallel {tp[:20]!r} is not a whole number from 1 to 4096")
    return model, kv, int(tp)


# ---- lengths --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """The lengths that a state asks for, and where they come from in words."""

    lengths: Lengths
    words: str


def lengths_of(ctx: Context, state: KvState) -> Asked:
    """Raises InvalidInput at the control that is wrong."""
    batch = f"{state.batch:,} {'sequence' if state.batch == 1 else 'sequences'}"
    if state.dist == "uniform":
        return Asked(
            Lengths.uniform(state.batch, state.low, state.high),
            f"{batch}, uniform from {state.low:,} to {state.high:,}",
        )
    if state.dist == "lognormal":
        words = f"{batch}, lognormal with mean {state.mean:,} and 95th percentile {state.p95:,}"
        return Asked(Lengths.lognormal(state.batch, float(state.mean), float(state.p95)), words)
    if state.dist == "list":
        found = read_lengths(state.lengths)
        return Asked(found, f"{found.sequences:,.0f} listed lengths")
    if state.dist == "run":
        return _of_run(ctx, state)
    if state.dist != "fixed":
        raise InvalidInput(
            ("dist",), f"unknown distribution {state.dist[:20]!r}: use one of {', '.join(DISTRIBUTIONS)}"
        )
    return Asked(Lengths.fixed(state.batch, state.context), f"{batch} of {state.context:,} tokens")


def read_lengths(text: str) -> Lengths:
    """Lengths as people paste them: numbers parted by anything that is no part of a number, `512x3` for three of 512.

    A JSON array or a column of a table reads the same. Raises InvalidInput at `lengths` with the first that is wrong.
    """
    for sign in ",;|[](){}\t\r\n":
        text = text.replace(sign, " ")
    values: list[float] = []
    counts: list[float] = []
    total = 0
    for place, item in enumerate(text.split()):
        number, _, times = item.replace("×", "x").lower().partition("x")
        value, count = _whole(number), _whole(times) if times else 1
        if value is None or count is None:
            raise InvalidInput(
                ("lengths",),
                f"{item[:40]!r} (number {place + 1:,}) is not a length: write whole tokens, as 512 or 512x3",
            )
        if not 1 <= value <= MAX_TOKENS:
            raise InvalidInput(
                ("lengths",), f"number {place + 1:,} must be from 1 to {MAX_TOKENS:,} tokens, not {value:,}"
            )
        if count < 1:
            raise InvalidInput(("lengths",), f"number {place + 1:,} must stand for at least one sequence, not {count}")
        total += count
        if total > MAX_SEQUENCES:
            raise InvalidInput(
                ("lengths",),
                f"more than {MAX_SEQUENCES:,} lengths: give a sample of them, or mean and 95th percentile as lognormal",
            )
        values.append(float(value))
        counts.append(float(count))
    if not values:
        raise InvalidInput(("lengths",), "no lengths: paste whole numbers of tokens, such as 512, 1024x3")
    return Lengths.of(values, counts)


def _whole(text: str) -> int | None:
    """A whole number; a trailing .0 (as spreadsheets and JSON write them) is none of it."""
    plain = text[:-2] if text.endswith(".0") else text
    sign, digits = plain[:1] == "-", plain.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        return None
    return -int(digits) if sign else int(digits)


def write_lengths(lengths: Lengths) -> str:
    """As `read_lengths` reads them again, each distinct length once."""
    pairs = zip(lengths.values.tolist(), lengths.counts.tolist(), strict=True)
    return ",".join(f"{value:.0f}" if count == 1 else f"{value:.0f}x{count:.0f}" for value, count in pairs)


def _of_run(ctx: Context, state: KvState) -> Asked:
    if not state.run:
        raise InvalidInput(("run",), "choose a run whose lengths to take")
    lengths, what, name = stored_lengths(ctx, state.run)
    held = lengths.resampled(state.batch)
    return Asked(held, f"{state.batch:,} sequences as long as those of the run {name}: {what}")


def state_of_run(ctx: Context, run_id: str, given: Mapping[str, str]) -> dict[str, str]:
    """What a run adds to an address that names it: its model, device, layout and concurrency, where it is not given."""
    try:
        view = get_view(ctx, run_id)
    except NotFound:
        return {"dist": "run"}
    told = view.run.parsed.workload
    # nothing says that its requests share a prompt
    found: dict[str, str] = {"dist": "run", "prefix": "0"}
    if view.hardware is not None:
        found["hardware"] = view.hardware.id
    if view.model is not None:
        found["model"] = view.model.id
    parallel = view.stated.get("parallel") or view.run.parsed.parallel
    found |= {name: str(parallel.get(name, 1)) for name in ("tp", "pp", "dp", "cp", "ep")}
    held = view.stated.get("batch") or told.concurrency or told.batch
    if held and held >= 1:
        found["batch"] = str(round(held))
    for name in ("weights", "kv", "activations"):
        if told.dtypes.get(name) in PRECISIONS:
            found[name] = told.dtypes[name]
    return {name: text for name, text in found.items() if name not in given}


# ---- the answer -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvAnswer:
    """The estimate with its sentences; `step` is the decode step of the same batch at its mean length."""

    state: KvState
    asked: Asked
    estimate: KvEstimate
    step: BoundEstimate
    crossover: int | None
    headline: str
    details: tuple[str, ...]
    request: Mapping[str, Any]
    bound_request: Mapping[str, Any]


def answer_kv(ctx: Context, state: KvState) -> KvAnswer:
    """Evaluate a state of the page. Errors are those of `estimate_kv` and `estimate_bound`.

    The prefix that the page starts with is an example: sequences too short to have it share nothing, and the answer
    says so. Any other prefix that no sequence has is refused.
    """
    asked = lengths_of(ctx, state)
    state.further()
    said: tuple[str, ...] = ()
    if state.prefix == KvState().prefix and state.prefix > asked.lengths.longest:
        said = (
            f"No shared prefix is counted: the longest sequence has {asked.lengths.longest:,.0f} tokens, fewer than "
            f"the {state.prefix:,} of this page's example.",
        )
        state = replace(state, prefix=0)
    body = state.body(asked.lengths)
    plain = {name: value for name, value in body.items() if name not in ("sequences", "run")}
    estimate = estimate_kv(ctx, KvRequest.model_validate(plain), asked.lengths)
    bound_body = state.bound_body(estimate)
    try:
        step = estimate_bound(ctx, BoundRequest.model_validate(bound_body))
    except InvalidInput as error:
        raise InvalidInput(
            error.loc[1:] if error.loc[:2] == ("workload", "parallel") else error.loc, error.reason
        ) from error
    found = thresholds(
        step.model, step.workload, step.bound.ceilings, estimate.ranks_per_node, only=("kv-over-weights",)
    )
    crossover = found[0].value if found else None
    return KvAnswer(
        state=state,
        asked=asked,
        estimate=estimate,
        step=step,
        crossover=crossover,
        headline=headline(estimate),
        details=(*said, *details(estimate, step, crossover)),
        request=body,
        bound_request=bound_body,
    )


def headline(estimate: KvEstimate) -> str:
    """The answer in one sentence: what the batch holds, and how many sequences and how long ones fit."""
    lengths = estimate.lengths
    many = f"{lengths.sequences:,.0f} {'sequence' if lengths.sequences == 1 else 'sequences'}"
    long = f"{lengths.mean:,.0f} tokens" if lengths.values.size == 1 else f"{lengths.mean:,.0f} tokens on average"
    devices = estimate.workload.parallel.devices // estimate.workload.parallel.dp
    spread = f", {_size(float(estimate.device.total))} on each of {devices} devices" if devices > 1 else ""
    takes = "takes" if lengths.sequences == 1 else "take"
    held = f"{many} of {long} {takes} {_size(float(estimate.whole.total))} of cache{spread}"
    if estimate.max_batch is None:
        return f"{held}; the profile states no capacity, so what fits is not known."
    if estimate.for_cache is not None and estimate.for_cache <= 0:
        return f"{held}, but the weights alone are {_size(-estimate.for_cache)} more than a device has for them."
    if estimate.max_batch < 1:
        return f"{held}, but not even one such sequence fits beside the weights."
    fit = f"{estimate.max_batch:,.0f} such sequences fit"
    if estimate.max_batch < estimate.workload.batch:
        return f"{held}, which is too much: {fit}."
    furthest = estimate.max_context
    if furthest is None or not np.isfinite(furthest):
        return f"{held}; {fit}, and at this batch the context has no end that memory sets."
    return f"{held}; {fit}, or {estimate.workload.batch:,} of up to {furthest:,.0f} tokens."


def details(estimate: KvEstimate, step: BoundEstimate, crossover: int | None) -> tuple[str, ...]:
    """What a reader asks next: what a step reads, where the cache outweighs the weights, what is wasted or copied."""
    said = []
    # of every length as it is: a window caps long sequences, so the step at the mean length reads something else
    kv, weights = estimate.reads.each, step.bound.total("weights")
    if weights > 0:
        said.append(f"A decode step reads {_size(kv)} of cache and {_size(weights)} of weights on each device.")
    now = estimate.workload.context_len
    if crossover is not None and crossover > 0:
        where = "beyond" if now >= crossover else "below"
        many = "token" if crossover == 1 else "tokens"
        said.append(
            f"The cache outweighs the weights from {crossover:,} {many} a sequence at this batch: this is {where} it."
        )
    stated, furthest = estimate.model.max_position, estimate.max_context
    if stated and estimate.lengths.longest > stated:
        said.append(
            f"The model itself states contexts up to {stated:,} tokens: the longest sequence here goes beyond them."
        )
    elif stated and furthest is not None and np.isfinite(furthest) and furthest > stated:
        said.append(f"The model itself states contexts up to {stated:,} tokens.")
    if estimate.copies > 1.0001:
        said.append(f"Tensor parallelism keeps each cached byte {estimate.copies:.3g} times.")
    whole = estimate.whole
    saved = float(whole.prefix_saved)
    if saved > 0:
        said.append(f"Sharing the prefix saves {saved / float(whole.paged):.0%} of the pages.")
    over = float(whole.reserved) / float(whole.payload) if float(whole.payload) > 0 else 1.0
    if over > 1.05:
        said.append(
            f"A contiguous reservation of {estimate.longest:,.0f} tokens each would take {over:,.3g} times the payload."
        )
    return tuple(said)


def _size(value: float) -> str:
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if value >= factor:
            return f"{value / factor:,.3g} {unit}" if value / factor < 1000 else f"{value / factor:,.0f} {unit}"
    return f"{value:,.0f} B"


# ---- curves ---------------------------------------------------------------------------------------------------------


def contexts_for(answer: KvAnswer) -> Array:
    """Contexts that the curves are drawn over: from 256 to what the model or the question reaches."""
    model, asked = answer.estimate.model, answer.estimate.workload.context_len
    end = max(model.max_position or 131_072, 4 * asked, 16_384)
    points = np.round(np.geomspace(256, min(end, MAX_TOKENS), 41))
    return np.unique(np.append(points, float(max(asked, 1))))


@dataclass(frozen=True, slots=True)
class Curve:
    """One model with one precision of the cache on one layout, over contexts. `problem` says why it cannot be drawn."""

    name: str
    model: str
    kv: str
    tp: int
    sequence: Array | None = None
    device: Array | None = None
    batch: Array | None = None
    step: Array | None = None
    problem: str = ""


def curves(ctx: Context, answer: KvAnswer, contexts: Array) -> tuple[Curve, ...]:
    """The page's own line and the further ones: bytes of a sequence, the largest batch, the step's bound."""
    state = answer.state
    own = Curve(_name(answer.estimate.model, state.kv, state.tp), state.model, state.kv, state.tp)
    drawn = [_drawn(answer, answer.estimate.model, answer.estimate.workload, own, contexts)]
    for model_id, kv, tp in state.further():
        try:
            model = resolve_model(ctx, model_id)[0]
        except InvalidInput as error:
            drawn.append(Curve(f"{model_id[:60]}, {kv}, TP {tp}", model_id, kv, tp, problem=error.reason))
            continue
        line = Curve(_name(model, kv, tp), model_id, kv, tp)
        parallel = replace(answer.estimate.workload.parallel, tp=tp, pp=1, cp=1, ep=1)
        dtypes = replace(answer.estimate.workload.dtypes, kv=kv)
        try:
            modules = min(
                answer.estimate.workload.prediction_modules, model.prediction.count if model.prediction else 0
            )
            workload = replace(answer.estimate.workload, parallel=parallel, dtypes=dtypes, prediction_modules=modules)
            model.require_supported()
            drawn.append(_drawn(answer, model, workload, line, contexts))
        except (InvalidInput, MissingFigure, UnsupportedArchitecture) as error:
            reason = error.reason if isinstance(error, InvalidInput | UnsupportedArchitecture) else str(error)
            drawn.append(replace(line, problem=reason))
    return tuple(drawn)


def _name(model: ModelSpec, kv: str, tp: int) -> str:
    return f"{model.name}, {kv}" + (f", TP {tp}" if tp > 1 else "")


def _drawn(answer: KvAnswer, model: ModelSpec, workload: Workload, line: Curve, contexts: Array) -> Curve:
    estimate = answer.estimate
    shape = shape_of(model, workload)
    table = cost_table(model, workload, ranks_per_node=estimate.ranks_per_node, grid={"context_len": contexts})
    bound = lower_bound(table, answer.step.bound.ceilings)
    whole = CacheShape(shape.model, shape.kv, 1.0, shape.other_tokens)
    batch = None
    if estimate.capacity is not None:
        parts = stage_parts(model, workload, estimate.ranks_per_node)
        needed = need(shape, contexts, float(estimate.page), float(estimate.prefix))
        # a sequence that is no longer than the prefix has nothing of its own
        alone = contexts > estimate.prefix + estimate.page if estimate.prefix else np.full(contexts.shape, True)
        batch = np.where(alone, largest_batch(parts, needed, estimate.capacity), np.nan)
    return replace(
        line,
        sequence=np.asarray(whole.tokens(contexts) + whole.fixed),
        device=np.asarray(shape.tokens(contexts) + shape.fixed),
        batch=batch,
        step=np.broadcast_to(bound.overlapped, contexts.shape),
    )


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Seconds of a decode step by what is moved, over contexts: from the rows of the cost table."""

    weights: Array
    cache: Array
    rest: Array
    bound: Array


def step_split(answer: KvAnswer, contexts: Array) -> StepSplit:
    """HBM time of one device split into weights, cache and what is left of the overlapped bound."""
    estimate, roofs = answer.estimate, answer.step.bound.ceilings
    table = cost_table(
        estimate.model, estimate.workload, ranks_per_node=estimate.ranks_per_node, grid={"context_len": contexts}
    )
    bound = np.broadcast_to(lower_bound(table, roofs).overlapped, contexts.shape)
    weights = np.broadcast_to(table.total("weights"), contexts.shape) / roofs.memory
    cache = np.broadcast_to(table.total("kv_read") + table.total("kv_write"), contexts.shape) / roofs.memory
    return StepSplit(weights, cache, np.maximum(bound - weights - cache, 0.0), bound)


def by_kind(answer: KvAnswer, contexts: Array) -> dict[str, Array]:
    """Bytes that one sequence keeps, over contexts, by kind of layer."""
    estimate = answer.estimate
    found = sequence_by_kind(
        estimate.shape.model, estimate.shape.kv, contexts, other_tokens=estimate.shape.other_tokens
    )
    return {kind: np.broadcast_to(np.asarray(size), contexts.shape) for kind, size in found.items()}


@dataclass(frozen=True, slots=True)
class PageRow:
    page: int
    fragmentation: float
    table: float
    saved: float
    expected: float
    payload: float


def page_rows(answer: KvAnswer) -> tuple[PageRow, ...]:
    """The same batch with pages of other sizes (F-5.3), the chosen one among them."""
    estimate = answer.estimate
    sizes = sorted({*PAGE_SIZES, estimate.page})
    shape = CacheShape(estimate.shape.model, estimate.shape.kv, 1.0, estimate.shape.other_tokens)
    use = cache_use(
        shape,
        estimate.lengths,
        np.array(sizes, dtype=np.float64),
        prefix=float(estimate.prefix),
        longest=estimate.longest,
    )
    expected = expected_empty(estimate.lengths, np.array(sizes, dtype=np.float64))
    columns = (use.fragmentation, use.page_table, use.prefix_saved, expected)
    payload = float(estimate.whole.payload)
    return tuple(
        PageRow(size, lost, table, saved, usual, payload)
        for size, lost, table, saved, usual in zip(
            sizes, *(np.asarray(column).tolist() for column in columns), strict=True
        )
    )


KV_FORMATS: tuple[tuple[str, Precision], ...] = (
    ("bf16", PRECISIONS["bf16"]),
    ("fp8, one scale a tensor", PRECISIONS["fp8"]),
    ("fp8, 16-bit scale for 128", Precision("fp8", 8, "fp8", scale_bits=16, group=128)),
    ("int8, 32-bit scale for 128", Precision("int8", 8, "int8", scale_bits=32, group=128)),
    ("mxfp8", PRECISIONS["mxfp8"]),
    ("int4, 16-bit scale for 128", PRECISIONS["int4"]),
    ("int4, 16-bit scale for 64", Precision("int4", 4, "int4", scale_bits=16, group=64)),
    ("nvfp4", PRECISIONS["nvfp4"]),
    ("mxfp4", PRECISIONS["mxfp4"]),
)
"""Cache formats with their scales (F-5.6), widest first. Only those of the API can be chosen."""


@dataclass(frozen=True, slots=True)
class FormatRow:
    name: str
    bits: float
    effective_bits: float
    bytes_per_token: float
    total: float
    max_batch: float | None
    max_context: float | None


def format_rows(answer: KvAnswer) -> tuple[FormatRow, ...]:
    """The same batch with its cache in other formats, and what fits then."""
    estimate = answer.estimate
    rows = []
    for name, held in KV_FORMATS:
        kv = held.element_bytes
        whole = CacheShape(estimate.shape.model, kv, 1.0, estimate.shape.other_tokens)
        use = cache_use(whole, estimate.lengths, estimate.page, prefix=float(estimate.prefix), longest=estimate.longest)
        most: float | None = None
        furthest: float | None = None
        if estimate.capacity is not None:
            shape = replace(estimate.shape, kv=kv)
            page, prefix = float(estimate.page), float(estimate.prefix)
            most = float(
                largest_batch(estimate.parts, need_of(shape, estimate.lengths, page, prefix), estimate.capacity)
            )
            furthest = float(
                largest_context(estimate.parts, shape, float(estimate.workload.batch), page, prefix, estimate.capacity)
            )
        per_token = float(kv_bytes_per_token(estimate.shape.model, kv))
        rows.append(FormatRow(name, held.bits, kv * 8, per_token, float(use.total), most, furthest))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class FitRow:
    """What fits at one batch or one context, on a device, in a replica and in all of them."""

    batch: float
    context: float


def fit_rows(answer: KvAnswer) -> tuple[FitRow, ...]:
    """The largest context at batches of powers of two, as far as anything fits."""
    estimate = answer.estimate
    if estimate.capacity is None:
        return ()
    batches = np.unique(np.array([*(2.0**power for power in range(13)), float(estimate.workload.batch)]))
    furthest = largest_context(
        estimate.parts, estimate.shape, batches, float(estimate.page), float(estimate.prefix), estimate.capacity
    )
    return tuple(
        FitRow(float(batch), float(context)) for batch, context in zip(batches, furthest, strict=True) if context >= 1
    )


@dataclass(frozen=True, slots=True)
class HitRow:
    hit: float
    computed: float
    time: float


def hit_rows(answer: KvAnswer) -> tuple[HitRow, ...]:
    """Prefill of one prompt of the mean length with a share of it found in the cache (F-5.5)."""
    estimate = answer.estimate
    prompt = estimate.workload.context_len
    if prompt < 2 or estimate.workload.parallel.cp > 1 or estimate.workload.parallel.pp > 1:
        return ()
    own = estimate.prefix / prompt
    shares = np.unique(np.append(np.linspace(0.0, 0.95, 20), own if own < 1 else 0.0))
    cached = np.minimum(np.floor(shares * prompt + 0.5), prompt - 1.0)
    workload = replace(estimate.workload, phase="prefill", batch=1, seq_len=prompt, context_len=0)
    table = cost_table(
        estimate.model,
        workload,
        ranks_per_node=estimate.ranks_per_node,
        grid={"seq_len": prompt - cached, "context_len": cached},
    )
    times = np.broadcast_to(lower_bound(table, answer.step.bound.ceilings).overlapped, cached.shape)
    return tuple(
        HitRow(float(share), float(prompt - held), float(time))
        for share, held, time in zip(shares, cached, times, strict=True)
    )
