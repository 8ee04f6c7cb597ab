"""Comparisons: runs and estimates side by side, frozen with everything that a reader sees."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag

from app import __version__
from app.catalog.codec import hardware_to_json, model_to_json
from app.domain.collectives import bus_bandwidth
from app.domain.comparison import compare, estimate_values
from app.domain.comparison_items import BOOKS, Book, Cell, Comparison, Item, Ledger, Value
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.hardware import HardwareProfile
from app.domain.lint_subject import Subject
from app.domain.model import ModelSpec
from app.domain.run import Finding
from app.domain.workload import Workload
from app.importers.credentials import REMOVED, without_secrets
from app.importers.reading import clean
from app.services.compare_answer import Answered
from app.services.compare_communication import (
    FrozenCommunication,
    FrozenExposed,
    FrozenOverlap,
    FrozenPipeline,
    answer_of,
)
from app.services.compare_pages import FrozenKv, FrozenMemory, FrozenMoe, FrozenPage, page_answer
from app.services.context import Context
from app.services.contracts import BoundRequest, CollectiveBody, Contract, OpRequest
from app.services.estimate import BoundEstimate, OpEstimate, bound_json, estimate_bound, estimate_op, op_json
from app.services.run_json import run_json
from app.services.runs import RunView, get_view
from app.storage import comparisons, runs
from app.storage import hardware as stored_hardware
from app.storage import models as stored_models
from app.storage.errors import NotFound
from app.storage.records import ComparisonSummary, Page, RunSummary, StoredComparison

SNAPSHOT_VERSION = 1
MAX_ITEMS = 50
MAX_TITLE = 200
MAX_LABEL = 200
MAX_NOTES = 20_000
MAX_KERNELS = 100
"""Kernel rows of a run that a snapshot keeps; the rest stay with the run."""

Label = Annotated[str, Field(max_length=MAX_LABEL)]
BookName = Literal["kernel", "communication", "runtime", "algorithmic"]
T = TypeVar("T")


# ---- what is asked --------------------------------------------------------------------------------------------------


class FrozenEstimate(Contract):
    """An estimate to freeze: which kind, and the body of the call that makes it."""

    kind: Literal["bound"]
    request: BoundRequest


class FrozenOp(Contract):
    """One operation to freeze, a collective for example: the body of `POST /estimates/op`."""

    kind: Literal["op"]
    request: OpRequest


class RunItem(Contract):
    run: Annotated[str, Field(min_length=1, max_length=80)]
    label: Label | None = None
    book_as: BookName | None = None


def _estimate_kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return f"{kind} item"


class EstimateItem(Contract):
    """An estimate of any of eight kinds: a step, one operation, what `/comm` answers of overlap, exposed time and
    pipelines, or what `/memory`, `/kv` and `/moe` answer."""

    estimate: Annotated[
        Annotated[FrozenEstimate, Tag("bound item")]
        | Annotated[FrozenOp, Tag("op item")]
        | Annotated[FrozenOverlap, Tag("overlap item")]
        | Annotated[FrozenExposed, Tag("exposed item")]
        | Annotated[FrozenPipeline, Tag("pipeline item")]
        | Annotated[FrozenMemory, Tag("memory item")]
        | Annotated[FrozenKv, Tag("kv item")]
        | Annotated[FrozenMoe, Tag("moe item")],
        Discriminator(
            _estimate_kind,
            custom_error_type="estimate_kind",
            custom_error_message="must have a `kind` that is bound, op, overlap, exposed, pipeline, memory, kv or moe",
        ),
    ]
    label: Label | None = None
    book_as: BookName | None = None


def _kind_of(value: Any) -> str:
    """Which body an item has. The words are none of its fields, so that an error's path can leave them out."""
    keys = value if isinstance(value, Mapping) else getattr(value, "model_fields_set", ())
    return "estimate item" if "estimate" in keys else "run item"


ItemBody = Annotated[
    Annotated[RunItem, Tag("run item")] | Annotated[EstimateItem, Tag("estimate item")],
    Discriminator(_kind_of),
]


class ComparisonRequest(Contract):
    """Body of `POST /comparisons`. `baseline` is an item's place in the list, from 0."""

    title: Annotated[str, Field(min_length=1, max_length=MAX_TITLE)]
    notes: Annotated[str, Field(max_length=MAX_NOTES)] = ""
    baseline: Annotated[int, Field(ge=0, lt=MAX_ITEMS)] = 0
    items: Annotated[list[ItemBody], Field(min_length=1, max_length=MAX_ITEMS)]


# ---- use cases ------------------------------------------------------------------------------------------------------


def create_comparison(ctx: Context, request: ComparisonRequest) -> StoredComparison:
    """Freeze a comparison. Raises InvalidInput that names the item for a run or estimate that cannot be had."""
    title = checked_text(request.title, ("title",), MAX_TITLE)
    if not title:
        raise InvalidInput(("title",), "must not be empty")
    notes = checked_notes(request.notes)
    snapshot = freeze(ctx, request.items, request.baseline)
    with ctx.storage.write() as session:
        return comparisons.add(
            session=session,
            title=title,
            notes=notes,
            snapshot=snapshot,
            item_count=len(request.items),
            baseline=request.baseline,
            app_version=__version__,
        )


def get_comparison(ctx: Context, comparison_id: str) -> StoredComparison:
    """Raises NotFound."""
    with ctx.storage.read() as session:
        return comparisons.get(session=session, comparison_id=comparison_id)


def list_comparisons(
    ctx: Context, *, text: str | None = None, sort: str = "-created_at", limit: int = 50, cursor: str | None = None
) -> Page[ComparisonSummary]:
    """Raises InvalidQuery."""
    with ctx.storage.read() as session:
        return comparisons.list_comparisons(session=session, text=text, sort=sort, limit=limit, cursor=cursor)


def delete_comparison(ctx: Context, comparison_id: str) -> None:
    """Delete it with every link to it. Raises NotFound."""
    with ctx.storage.write() as session:
        comparisons.delete(session=session, comparison_id=comparison_id)


def preview(ctx: Context, items: Sequence[RunItem | EstimateItem], baseline: int) -> dict[str, Any]:
    """What freezing these items would hold, without storing anything."""
    return freeze(ctx, items, baseline)


def existing_runs(ctx: Context, snapshot: Mapping[str, Any]) -> frozenset[str]:
    """Ids of the frozen runs that are still stored, so that a page links to nothing that is gone."""
    ids = [item["run"]["id"] for item in snapshot["items"] if item["kind"] == "run"]
    return frozenset(id_ for id_ in ids if _exists(ctx, id_))


def _exists(ctx: Context, run_id: str) -> bool:
    try:
        run_summary(ctx, run_id)
    except NotFound:
        return False
    return True


def run_summary(ctx: Context, run_id: str) -> RunSummary:
    """What the form shows of a run. Raises NotFound."""
    with ctx.storage.read() as session:
        return runs.get_summary(session=session, run_id=run_id)


def checked_text(text: str, loc: tuple[str | int, ...], most: int) -> str:
    """One line as it will be stored. Raises InvalidInput for control and direction characters or too much of it."""
    plain = text.strip()
    if len(plain) > most:
        raise InvalidInput(loc, f"must have at most {most} characters, not {len(plain)}")
    if clean(plain, most) != plain:
        raise InvalidInput(loc, "holds control or direction characters: type it anew")
    return plain


def checked_notes(text: str) -> str:
    """Notes as they will be stored: several lines, otherwise like any text."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(
        checked_text(line.replace("\t", "    ").rstrip(), ("notes",), MAX_NOTES) if line.strip() else ""
        for line in lines
    ).strip()


# ---- freezing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gathered:
    """An item with what was read for it."""

    label: str
    book_as: BookName | None
    run: RunView | None = None
    estimate: BoundEstimate | None = None
    request: BoundRequest | None = None
    op: OpEstimate | None = None
    op_request: OpRequest | None = None
    answered: Answered | None = None


def freeze(ctx: Context, items: Sequence[RunItem | EstimateItem], baseline: int) -> dict[str, Any]:
    """Everything that a reader will see of these items, as plain JSON. Nothing in it refers to what may change."""
    if not 0 <= baseline < len(items):
        raise InvalidInput(("baseline",), f"must be one of the items 0 to {len(items) - 1}, not {baseline}")
    gathered = [_gather(ctx, item, number) for number, item in enumerate(items)]
    labels = _unique([one.label for one in gathered])
    reported = {
        m.key for one in gathered if one.run is not None and one.answered is None for m in one.run.run.parsed.metrics
    }
    sides = [_side(one, label, reported) for one, label in zip(gathered, labels, strict=True)]
    result = compare(sides, baseline)
    frozen_items = [
        _item_json(ctx, one, side, number) for number, (one, side) in enumerate(zip(gathered, sides, strict=True))
    ]
    return {"version": SNAPSHOT_VERSION, "items": frozen_items, **result_json(result)}


def _gather(ctx: Context, item: RunItem | EstimateItem, number: int) -> _Gathered:
    label = checked_text(item.label or "", ("items", number, "label"), MAX_LABEL)
    if isinstance(item, RunItem):
        try:
            view = get_view(ctx, item.run)
        except NotFound as error:
            raise InvalidInput(("items", number, "run"), f"there is no run {item.run[:40]!r}") from error
        return _Gathered(label or view.run.name, item.book_as, run=view)
    if isinstance(item.estimate, FrozenOp):
        asked = item.estimate.request
        op = _at(("items", number, "estimate", "request"), lambda: estimate_op(ctx, asked))
        return _Gathered(label or op_label(op, asked), item.book_as, op=op, op_request=asked)
    if isinstance(item.estimate, FrozenCommunication | FrozenPage):
        of = item.estimate
        found: Answered = _at(
            ("items", number, "estimate", "request"),
            lambda: answer_of(ctx, of) if isinstance(of, FrozenCommunication) else page_answer(ctx, of),
        )
        told = None if found.run is None else get_view(ctx, found.run)
        return _Gathered(label or found.label[:MAX_LABEL], item.book_as, run=told, answered=found)
    request = item.estimate.request
    estimate = _at(("items", number, "estimate", "request"), lambda: estimate_bound(ctx, request))
    return _Gathered(label or estimate_label(estimate), item.book_as, estimate=estimate, request=request)


def _at(loc: tuple[str | int, ...], work: Callable[[], T]) -> T:
    """The work's result; what it refuses is said of its place in the request."""
    try:
        return work()
    except InvalidInput as error:
        raise InvalidInput((*loc, *error.loc), error.reason) from error
    except MissingFigure as error:
        raise InvalidInput((*loc, "hardware"), str(error)) from error
    except NotFound as error:
        raise InvalidInput((*loc, "run"), "there is no such run") from error
    except UnsupportedArchitecture as error:
        raise InvalidInput((*loc, "model"), str(error)) from error


def estimate_label(estimate: BoundEstimate) -> str:
    """A name for an estimate that nobody named."""
    w = estimate.workload
    return f"{w.phase} {estimate.model.name} on {estimate.hardware.name}, batch {w.batch:,}"[:MAX_LABEL]


def op_label(estimate: OpEstimate, request: OpRequest) -> str:
    """A name for an operation that nobody named."""
    return f"{operation_words(request)} on {estimate.hardware.name}"[:MAX_LABEL]


def operation_words(request: OpRequest) -> str:
    """What is run, with its size: two operations are alike where these words are."""
    op = request.op
    if isinstance(op, CollectiveBody):
        return f"{op.kind.replace('_', '-')} of {_size_words(op.bytes)} over {op.ranks:,} ranks"
    stated = op.model_dump(exclude={"op", "dtype"}, exclude_none=True)
    return f"{op.op} {op.dtype}, " + ", ".join(f"{name} {value}" for name, value in stated.items())[:400]


def _size_words(size: float) -> str:
    """A size in the largest binary unit that holds it whole, since these words tell two operations apart."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power and size % 2**power == 0:
            return f"{size / 2**power:,.0f} {unit}"
    return f"{size:,.12g} B"


def _op_values(estimate: OpEstimate, request: OpRequest) -> dict[str, Value]:
    """An operation's numbers: its least and its expected time, and for a collective the bus bandwidth at most."""
    least, expected = float(estimate.bound.overlapped), estimate.expected
    values = {
        "kernel_time_s": Value(least, "bound", float(expected.low), float(expected.high)),
        "operation_expected_s": Value(float(expected.time), "expected", float(expected.low), float(expected.high)),
    }
    op = request.op
    if isinstance(op, CollectiveBody) and least > 0:
        most = float(bus_bandwidth(op.kind, op.bytes, op.ranks, least))
        values["bus_bandwidth_bytes_per_s"] = Value(most, "bound")
    return values


def _unique(labels: Sequence[str]) -> list[str]:
    """Labels with a number behind those that were there before: a sentence must say which one it means."""
    seen: dict[str, int] = {}
    taken = set(labels)
    unique = []
    for label in labels:
        seen[label] = number = seen.get(label, 0) + 1
        own = label
        while number > 1 and (own == label or own in taken):
            own = f"{label[: MAX_LABEL - 8]} ({number})"
            number += 1
        taken.add(own)
        unique.append(own)
    return unique


def _side(one: _Gathered, label: str, reported: set[str]) -> Item:
    if one.answered is not None:
        # the run that told the times also says what ran
        stated = {} if one.run is None else run_frozen(one.run)
        if one.answered.step is not None:
            stated |= _estimate_frozen(*one.answered.step)
        stated |= one.answered.frozen
        if "layout" in stated:
            stated["parallel"] = layout_text(stated.pop("layout"))
        return Item(label, "estimate", one.answered.values, stated, one.book_as)
    if one.run is not None:
        return Item(
            label,
            "run",
            _run_values(one.run),
            run_frozen(one.run),
            one.book_as,
            _has_quality(one.run),
            _run_spread(one.run),
            tuple(dict.fromkeys(f.check for f in one.run.findings if f.severity == "error")),
            one.run.run.parsed.evidence.get("changed_share"),
        )
    if one.op is not None and one.op_request is not None:
        asked = one.op_request
        stated = {"hardware": one.op.hardware.name, "operation": operation_words(asked), "ceilings": asked.ceilings}
        return Item(label, "estimate", _op_values(one.op, asked), stated, one.book_as)
    assert one.estimate is not None
    assert one.request is not None
    estimate, answer = one.estimate, bound_json(one.estimate)
    expected = estimate.expected
    values = estimate_values(
        estimate.workload.phase,
        estimate.workload.seq_len,
        bound=answer["bound_s"],
        serial_bound=answer["serial_bound_s"],
        expected=(float(expected.time), float(expected.low), float(expected.high)),
        tokens_per_second=answer["tokens_per_s"],
        tokens_per_second_per_device=answer["tokens_per_s_per_device"],
        peak_memory=answer["memory"]["peak_bytes"],
        reported=reported,
    )
    return Item(label, "estimate", values, _estimate_frozen(estimate, one.request), one.book_as)


def _run_values(view: RunView) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for metric in view.run.parsed.metrics:
        values.setdefault(metric.key, Value(metric.value))
    main = view.analysis.main
    if main is not None:
        values["of_bound"] = Value(main.of_bound)
    return values


def _has_quality(view: RunView) -> bool:
    return Subject(view.run.parsed, stated=view.stated, facts=view.run.facts).has_quality


def _run_spread(view: RunView) -> dict[str, float]:
    """Standard deviation over mean of what a run repeated. Of a serving run none: its requests differ anyway."""
    parsed = view.run.parsed
    if parsed.workload.mode == "serve":
        return {}
    found: dict[str, float] = {}
    for name in dict.fromkeys(metric.name for metric in parsed.metrics):
        samples = [value for value in parsed.samples.get(name, ()) if math.isfinite(value)]
        mean, spread = parsed.value(name, "mean", None), parsed.value(name, "std")
        if len(samples) >= 2 and (middle := statistics.fmean(samples)):
            found[name] = statistics.stdev(samples) / abs(middle)
        elif mean and spread:
            found[name] = abs(spread / mean)
    return found


_DIFFUSION = {"steps": ("steps", "diffusion_steps"), "guidance": ("guidance", "guidance_scale", "cfg_scale")}
_EXTRA = {
    **_DIFFUSION,
    "cache": ("step_cache", "cache_settings"),
    "resolution": ("resolution",),
    "clocks": ("clocks",),
    "timed_region": ("timed_region", "includes_layout_conversion"),
    "tokens_basis": ("tokens_basis",),
    "padding_fraction": ("padding_fraction",),
    "seq_len": ("seq_len",),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "launch_mode": ("launch_mode",),
}


def run_frozen(view: RunView) -> dict[str, Any]:
    """What a run and the people who linked it state about the work; what nobody states is left out."""
    run, parsed, stated = view.run, view.run.parsed, view.stated
    told = parsed.workload
    main = view.analysis.main
    found: dict[str, Any] = {
        "model": view.model.name if view.model is not None else run.model_hint,
        "parameters": told.parameters,
        "mode": told.mode or stated.get("phase"),
        "batch": stated.get("batch", told.batch),
        "concurrency": told.concurrency,
        "request_rate": told.request_rate,
        "input_len": told.input_len,
        "output_len": told.output_len,
        "context_len": stated.get("context_len", told.context_len),
        "seq_len": stated.get("seq_len"),
        "hardware": view.hardware.name if view.hardware is not None else run.hardware_hint,
        "launch_mode": stated.get("launch_mode") or parsed.software.get("launch_mode"),
    }
    if found["context_len"] is None and told.mode in ("serve", "latency") and told.input_len and told.output_len:
        # what a decode step reads on average: the prompt and half of the answer
        found["context_len"] = told.input_len + told.output_len / 2
    for name, keys in _EXTRA.items():
        places = (view.run.facts, told.extra)
        said = (place[key] for place in places for key in keys if isinstance(place.get(key), (str, int, float)))
        value = next(said, None)
        if found.get(name) is None:
            found[name] = value
    for name, precision in {**told.dtypes, **dict(stated.get("dtypes") or {})}.items():
        found[f"dtypes.{name}"] = precision
    layout = {key: value for key, value in view.parallel.items() if isinstance(value, int)}
    if layout:
        found["parallel"] = layout_text(layout)
        found["nodes"] = layout.get("nodes")
        found["devices"] = main.devices if main is not None else _devices(layout)
    software = {key: value for key, value in without_secrets(parsed.software).items() if value != REMOVED}
    engine = next((software[key] for key in ("engine", "backend", "framework") if key in software), None)
    apart = ("launch_mode", "client", "endpoint_type", "endpoint")
    versions = [f"{key} {value}" for key, value in sorted(software.items()) if value != engine and key not in apart]
    found |= {"engine": engine, "software": ", ".join(versions)[:300] or None}
    return {key: value for key, value in found.items() if value not in (None, "")}


def _recompute_text(w: Workload) -> str:
    """What runs again and what lies on the host, in one word where no module was chosen."""
    named: list[str] = sorted(w.recompute_modules)
    if w.recompute != "none" or not named:
        named = [w.recompute, *named]
    moved = [*sorted(w.offload.activations), *(n for n in ("optimizer", "parameters") if getattr(w.offload, n))]
    return " + ".join(named) + (f"; on the host: {', '.join(moved)}" if moved else "")


def _estimate_frozen(estimate: BoundEstimate, request: BoundRequest) -> dict[str, Any]:
    w = estimate.workload
    layout = {
        key: value
        for key, value in asdict(w.parallel).items()
        if (isinstance(value, int) and value is not False) or key == "schedule"
    }
    found: dict[str, Any] = {
        "model": estimate.model.name,
        "mode": w.phase,
        "batch": w.batch,
        "hardware": estimate.hardware.name,
        "devices": w.parallel.devices,
        "nodes": w.parallel.nodes,
        "parallel": layout_text(layout),
        "launch_mode": w.launch_mode,
        "ceilings": request.ceilings,
    }
    shown = ["weights", "activations", "kv"]
    if w.phase == "train":
        found |= {"recompute": _recompute_text(w), "optimizer": w.optimizer}
        shown += ["gradients", "optimizer"]
    if w.phase == "decode":
        found["context_len"] = w.context_len
        # what a serving run calls concurrency: sequences in flight on all replicas
        found["concurrency"] = w.batch * w.parallel.dp
    if w.phase == "prefill":
        found["input_len"] = w.seq_len + w.context_len
        if w.context_len:
            found["cached_len"] = w.context_len
    if w.phase != "decode" or w.seq_len != 1:
        found["seq_len"] = w.seq_len
    found |= {f"dtypes.{name}": getattr(w.dtypes, name) for name in shown}
    return {key: value for key, value in found.items() if value is not None}


def layout_text(layout: Mapping[str, Any]) -> str:
    """Parallel degrees in one line: "TP 4, DP 2", or "one device"."""
    parts = [f"{key.upper()} {layout[key]}" for key in ("tp", "pp", "dp", "cp", "ep", "etp") if layout.get(key, 1) != 1]
    if layout.get("zero_stage"):
        parts.append(f"ZeRO {layout['zero_stage']}")
    for key, word in (("micro_batches", "micro-batches"), ("virtual_stages", "virtual stages")):
        if layout.get(key, 1) != 1:
            parts.append(f"{layout[key]} {word}")
    if layout.get("pp", 1) != 1 and layout.get("schedule", "1f1b") != "1f1b":
        parts.append(f"schedule {str(layout['schedule']).replace('_', ' ')}")
    return ", ".join(parts) or "one device"


def _devices(layout: Mapping[str, int]) -> int:
    count = 1
    for key in ("tp", "pp", "dp", "cp"):
        count *= layout.get(key, 1)
    return count


def _item_json(ctx: Context, one: _Gathered, side: Item, number: int) -> dict[str, Any]:
    item: dict[str, Any] = {
        "index": number,
        "label": side.label,
        "kind": side.kind,
        "book_as": side.book_as,
        "frozen": {key: _plain(value) for key, value in side.frozen.items()},
        "values": {
            key: {k: v for k, v in asdict(value).items() if v is not None} for key, value in side.values.items()
        },
    }
    hardware: HardwareProfile | None
    model: ModelSpec | None
    if one.answered is not None:
        found = one.answered
        hardware, model = found.hardware, found.model
        item["estimate"] = {"kind": found.kind, "request": _plain(found.request), "answer": _plain(found.answer)}
    elif one.run is not None:
        item["run"] = frozen_run(run_json(one.run))
        hardware, model = one.run.hardware, one.run.model
    elif one.op is not None and one.op_request is not None:
        hardware, model = one.op.hardware, None
        request = one.op_request.model_dump(mode="json")
        item["estimate"] = {"kind": "op", "request": request, "answer": op_json(one.op)}
    else:
        assert one.estimate is not None
        assert one.request is not None
        hardware, model = one.estimate.hardware, one.estimate.model
        item["estimate"] = {
            "kind": "bound",
            "request": one.request.model_dump(mode="json"),
            "answer": bound_json(one.estimate),
        }
    item["hardware"] = None if hardware is None else _hardware_json(ctx, hardware)
    item["model"] = None if model is None else _model_json(ctx, model)
    return item


def _hardware_json(ctx: Context, profile: HardwareProfile) -> dict[str, Any]:
    with ctx.storage.read() as session:
        own = None if profile.shipped else stored_hardware.find(session=session, entry_id=profile.id)
    revision = None if own is None else own.revision
    return {"id": profile.id, "name": profile.name, "revision": revision, "profile": hardware_to_json(profile)}


def _model_json(ctx: Context, model: ModelSpec) -> dict[str, Any]:
    with ctx.storage.read() as session:
        own = None if model.id in ctx.catalog.models else stored_models.find(session=session, entry_id=model.id)
    revision = None if own is None else own.revision
    return {"id": model.id, "name": model.name, "revision": revision, "architecture": model_to_json(model)}


def frozen_run(shown: Mapping[str, Any]) -> dict[str, Any]:
    """A run's JSON as a snapshot keeps it: without secrets, series of samples and the long tail of kernels."""
    kept = {key: value for key, value in shown.items() if key not in ("samples", "upload", "kernels")}
    upload = shown.get("upload") or {}
    kept["upload"] = {key: upload.get(key) for key in ("file_name", "format", "sha256", "size_bytes", "created_at")}
    kernels = list(shown.get("kernels") or ())
    if kernels:
        kept["kernels"] = kernels[:MAX_KERNELS]
        kept["kernels_total"] = shown.get("kernel_count") or len(kernels)
    plain: dict[str, Any] = without_secrets(_plain(kept))
    return plain


def _plain(value: Any) -> Any:
    """Plain JSON values: no tuples, no NumPy, nothing that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value


# ---- results as JSON ------------------------------------------------------------------------------------------------


def result_json(result: Comparison) -> dict[str, Any]:
    """The computed part: sentence, metric table, differences, ledger and findings."""
    return {
        "sentence": result.sentence,
        "headline": result.headline,
        "metrics": [
            {
                "metric": row.key,
                "name": row.name,
                "stat": row.stat,
                "label": row.label,
                "unit": row.unit,
                "better": row.direction,
                "cells": [None if cell is None else _cell_json(cell) for cell in row.cells],
            }
            for row in result.rows
        ],
        "differences": [{"field": d.field, "label": d.label, "values": list(d.values)} for d in result.differences],
        "ledger": None if result.ledger is None else _ledger_json(result.ledger),
        "findings": [finding_json(finding) for finding in result.findings],
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "value": cell.value,
        "kind": cell.kind,
        "ratio": cell.ratio,
        "verdict": cell.verdict,
        "words": cell.words,
        "reason": cell.reason or None,
        "of_bound": cell.of_bound,
        "expected_low": cell.low,
        "expected_high": cell.high,
    }


def _ledger_json(ledger: Ledger) -> dict[str, Any]:
    return {
        "metric": ledger.metric,
        "label": ledger.label,
        "unit": ledger.unit,
        "entries": [
            {
                "item": entry.item,
                "previous": entry.previous,
                "book_as": entry.book_as,
                "before": entry.before,
                "after": entry.after,
                "gain": float(entry.gain),
                "changed": list(entry.changed),
            }
            for entry in ledger.entries
        ],
        "by_book": {book: float(_gain(ledger.by_book, book)) for book in BOOKS if book in ledger.by_book},
        "total": float(ledger.total),
        "refused": [{"item": number, "reason": reason} for number, reason in ledger.refused],
    }


def _gain(by_book: Mapping[Book, Fraction], book: Book) -> Fraction:
    return by_book.get(book, Fraction(1))


def finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "severity": finding.severity,
        "message": finding.message,
        "fields": list(finding.fields),
    }


def comparison_json(stored: StoredComparison) -> dict[str, Any]:
    """A comparison in the API's shape: the snapshot with what its record says."""
    return {**summary_json(stored), **stored.snapshot}


def summary_json(stored: ComparisonSummary) -> dict[str, Any]:
    """What lists answer of a comparison."""
    return {
        "id": stored.id,
        "url": f"/comparisons/{stored.id}",
        "title": stored.title,
        "notes": stored.notes,
        "baseline": stored.baseline,
        "item_count": stored.item_count,
        "created_at": stored.created_at.isoformat(),
        "app_version": stored.app_version,
    }


# ---- exports --------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def csv_cell(value: object) -> str:
    """A cell that no spreadsheet takes for a formula; plain numbers stay numbers."""
    text = "" if value is None else repr(value) if isinstance(value, float) else str(value)
    risky = text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r", "\n")
    return f"'{text}" if risky and not _NUMBER.fullmatch(text) else text


def export_csv(stored: StoredComparison) -> str:
    """The metric table: for each metric one row, and for each item its SI value, ratio to the baseline and words."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")

    def line(*cells: object) -> None:
        writer.writerow([csv_cell(cell) for cell in cells])

    items = stored.snapshot["items"]
    line("comparison", stored.title)
    line("baseline", items[stored.baseline]["label"])
    line("frozen", stored.created_at.isoformat(), "version", stored.app_version)
    line()
    head: list[object] = ["metric", "unit", "better"]
    for item in items:
        label = item["label"]
        head += [label, f"{label} kind", f"{label} ratio", f"{label} in words"]
    line(*head)
    for row in stored.snapshot["metrics"]:
        cells: list[object] = [row["metric"], row["unit"], row["better"]]
        for cell in row["cells"]:
            if cell is None:
                cells += [None, None, None, "not reported"]
            else:
                cells += [cell["value"], cell["kind"], cell["ratio"], cell["reason"] or cell["words"]]
        line(*cells)
    return out.getvalue()


def export_json(stored: StoredComparison) -> str:
    """The whole snapshot, indented."""
    return json.dumps(comparison_json(stored), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def file_stem(title: str) -> str:
    """A file name made from a title: plain signs only."""
    plain = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-")
    return plain or "comparison"
