"""The KV cache of a batch: bytes by what they are, what fits on the devices, and how long a step reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.domain.errors import InvalidInput
from app.domain.hardware import DEFAULT_RANKS_PER_NODE, HardwareProfile
from app.domain.inputs import source_tokens
from app.domain.kv_cache import (
    CacheLayers,
    CacheShape,
    CacheUse,
    StagePart,
    StepReads,
    cache_layers,
    cache_use,
    largest_batch,
    largest_context,
    need_of,
    shape_of,
    stage_parts,
    step_reads,
)
from app.domain.lengths import Lengths
from app.domain.lower_bound import Ceilings, ceilings
from app.domain.memory import kv_bytes_per_token
from app.domain.model import ModelSpec
from app.domain.workload import Dtypes, KvSettings, Parallel, Workload
from app.services.context import Context
from app.services.contracts import KvRequest
from app.services.estimate import cited_figure
from app.services.references import resolve_hardware, resolve_model
from app.services.run_lengths import stored_lengths


@dataclass(frozen=True, slots=True)
class KvEstimate:
    """A whole answer. `whole` is the cache of one replica with every byte once, `device` that of its fullest device.

    `workload` is one decode step of the batch at its mean length. `capacity` is what a device has after the reserve;
    what needs a device or its capacity is None where there is none.
    """

    model: ModelSpec
    hardware: HardwareProfile | None
    roofs: Ceilings | None
    workload: Workload
    lengths: Lengths
    longest: float
    reserve: float
    layers: tuple[CacheLayers, ...]
    whole: CacheUse
    device: CacheUse
    reads: StepReads
    shape: CacheShape
    parts: tuple[StagePart, ...]
    capacity: float | None
    max_batch: float | None
    max_context: float | None
    assumptions: tuple[str, ...]

    @property
    def ranks_per_node(self) -> int:
        return ranks_of(self.hardware)

    @property
    def page(self) -> int:
        return self.workload.kv.page_tokens

    @property
    def prefix(self) -> int:
        return self.workload.kv.shared_prefix_tokens

    @property
    def bytes_per_token(self) -> float:
        """Of the whole model, every byte once (F-5.1)."""
        return float(kv_bytes_per_token(self.shape.model, self.shape.kv))

    @property
    def copies(self) -> float:
        """How often the tensor-parallel group keeps a byte of this batch, on average: some layers have fewer copies."""
        whole = float(self.whole.payload)
        kept = self.lengths.total(self.shape.tokens(self.lengths.values)) + self.shape.fixed * self.lengths.sequences
        return float(kept) * self.shape.tp / whole if whole else 1.0

    @property
    def fullest(self) -> StagePart:
        return max(self.parts, key=lambda part: (part.weights + float(self.device.total) * part.tokens, -part.stage))

    @property
    def for_cache(self) -> float | None:
        """Bytes of the fullest device that are left for the cache; below zero where the weights do not fit."""
        return None if self.capacity is None else self.capacity - max(part.weights for part in self.parts)

    @property
    def read_time(self) -> float | None:
        """Seconds that one device reads cache in a decode step."""
        return None if self.roofs is None else self.reads.each / self.roofs.memory

    @property
    def cascade_time(self) -> float | None:
        return None if self.roofs is None else self.reads.cascaded / self.roofs.memory


def ranks_of(hardware: HardwareProfile | None) -> int:
    return DEFAULT_RANKS_PER_NODE if hardware is None else hardware.ranks_per_node


def estimate_kv(ctx: Context, request: KvRequest, lengths: Lengths | None = None) -> KvEstimate:
    """Answer `POST /estimates/kv`; `lengths` stands for `sequences` where a page made them.

    Raises InvalidInput, MissingFigure or UnsupportedArchitecture.
    """
    hardware, notes = (None, ()) if request.hardware is None else resolve_hardware(ctx, request.hardware)
    model, model_notes = resolve_model(ctx, request.model)
    if request.run is not None and lengths is None:
        lengths, told = _of_run(ctx, request)
        notes = (*notes, told)
    said = [*_defaults(request, listed=lengths is not None), *notes, *model_notes]
    try:
        return _estimate(request, lengths, hardware, model, said)
    except InvalidInput as error:
        raise InvalidInput(_place(error.loc), error.reason) from error


def _estimate(
    request: KvRequest, lengths: Lengths | None, hardware: HardwareProfile | None, model: ModelSpec, said: list[str]
) -> KvEstimate:
    model.require_supported()
    if not model.generates:
        raise InvalidInput(("model",), f"{model.name} keeps no cache: it does not emit token after token")
    parallel = Parallel(**request.parallel.model_dump())
    lengths, note = _lengths(request, lengths, parallel.micro_batches)
    sequences = lengths.sequences / parallel.micro_batches
    workload = Workload(
        phase="decode",
        batch=max(round(sequences), 1),
        context_len=round(lengths.mean),
        dtypes=Dtypes(weights=request.weights_dtype, activations=request.activations_dtype, kv=request.kv_dtype),
        parallel=parallel,
        kv=KvSettings(request.page_tokens, request.shared_prefix_tokens),
        prediction_modules=request.prediction_modules,
    )
    ranks = ranks_of(hardware)
    page, prefix = workload.kv.page_tokens, float(workload.kv.shared_prefix_tokens)
    if prefix > lengths.longest:
        raise InvalidInput(
            ("shared_prefix_tokens",),
            f"{prefix:,.0f} tokens are more than the longest sequence has: use at most {lengths.longest:,.0f}",
        )
    reads = step_reads(model, workload, lengths, prefix, ranks)
    others = source_tokens(model, workload)
    kv = workload.dtypes.bytes_of("kv")
    longest = max(float(request.reserved_len or model.max_position or 0), lengths.longest)
    shape = shape_of(model, workload)
    parts = stage_parts(model, workload, ranks)
    whole = cache_use(CacheShape(shape.model, kv, 1.0, others), lengths, page, prefix=prefix, longest=longest)
    rank = cache_use(shape, lengths, page, prefix=prefix, longest=longest)
    device = rank.on_device(max(parts, key=lambda part: part.tokens + part.states))
    roofs = None if hardware is None else ceilings(hardware, request.ceilings)
    known = None if hardware is None else hardware.memory_capacity
    capacity = None if known is None else known * (1.0 - request.reserve_fraction)
    most: float | None = None
    furthest: float | None = None
    if capacity is not None:
        most = float(largest_batch(parts, need_of(shape, lengths, page, prefix), capacity))
        furthest = float(largest_context(parts, shape, float(workload.batch), page, prefix, capacity))
    return KvEstimate(
        model=model,
        hardware=hardware,
        roofs=roofs,
        workload=workload,
        lengths=lengths,
        longest=longest,
        reserve=request.reserve_fraction,
        layers=cache_layers(shape.model, kv, shape.tp, other_tokens=others),
        whole=whole,
        device=device,
        reads=reads,
        shape=shape,
        parts=parts,
        capacity=capacity,
        max_batch=most,
        max_context=furthest,
        assumptions=(*said, *note, *_notes(request, model, hardware, others, longest)),
    )


def _of_run(ctx: Context, request: KvRequest) -> tuple[Lengths, str]:
    """The lengths of a stored run, and in words where they come from."""
    for name in ("sequences", "context_len"):
        if getattr(request, name) is not None:
            raise InvalidInput((name,), "the lengths come from the run: leave it out, or leave out run")
    found, what, name = stored_lengths(ctx, str(request.run))
    if "batch" in request.model_fields_set:
        found = found.resampled(request.batch)
    return found, f"Lengths are those of the run {name}: {what}."


def _lengths(request: KvRequest, given: Lengths | None, micro_batches: int) -> tuple[Lengths, list[str]]:
    if given is not None:
        return given, []
    if request.sequences is not None:
        notes = []
        if request.context_len is not None or "batch" in request.model_fields_set:
            notes.append("sequences was given: batch and context_len follow from it.")
        return Lengths.of(request.sequences), notes
    if request.context_len is None:
        raise InvalidInput(("context_len",), "is needed: the tokens each sequence has cached, or give sequences")
    return Lengths.fixed(request.batch * micro_batches, request.context_len), []


def _defaults(request: KvRequest, listed: bool) -> list[str]:
    unused = {"sequences", "run", "reserved_len", "prediction_modules"}
    if request.hardware is None:
        unused |= {"reserve_fraction", "ceilings", "weights_dtype"}
    if listed or request.sequences is not None:
        unused |= {"batch", "context_len"}
    return [note for note in request.filled_defaults() if note.split(" ")[0] not in unused]


def _notes(
    request: KvRequest, model: ModelSpec, hardware: HardwareProfile | None, others: int, longest: float
) -> list[str]:
    notes = [
        "Payload, pages, sharing and reservation count each byte once; a device's figures hold the copies that its "
        "layout keeps.",
        "A page table has a 4-byte entry for each page of a sequence, and every device keeps the whole table.",
        "What fits is counted with room for the token that each sequence is writing, with activations and logits.",
    ]
    if request.shared_prefix_tokens:
        notes.append(
            "The prefix is shared in whole pages; what is left of it is each sequence's own. Every sequence still "
            "reads all of it, unless a kernel reads the shared part once for all (cascade attention)."
        )
    if request.reserved_len is None:
        stated = (
            "the model's longest context" if model.max_position and longest == model.max_position else "the longest"
        )
        notes.append(f"reserved_len was not given: {stated}, {longest:,.0f} tokens, is assumed.")
    if any(row.kind == "latent" for row in cache_layers(model, 1.0)) and request.parallel.tp > 1:
        notes.append(
            "Every rank of the tensor-parallel group keeps the whole latent; data-parallel attention keeps it once."
        )
    if others:
        notes.append(f"Cross-attention keeps keys and values of {others:,} tokens of another input.")
    if request.prediction_modules:
        notes.append("Layers of prediction modules cache every token as the model's own do, and are listed with them.")
    elif model.prediction is not None:
        notes.append("Multi-token prediction modules do not run and keep no cache.")
    if any(True for _ in model.state_groups()):
        notes.append("States are kept in the precision of the cache.")
    if hardware is not None and hardware.memory_capacity is None:
        notes.append("The profile states no memory capacity: what fits is not known.")
    return notes


_PLACES = {
    ("workload", "context_len"): ("context_len",),
    ("workload", "batch"): ("batch",),
    ("workload", "prediction_modules"): ("prediction_modules",),
    ("workload", "dtypes", "kv"): ("kv_dtype",),
    ("workload", "dtypes", "weights"): ("weights_dtype",),
    ("workload", "dtypes", "activations"): ("activations_dtype",),
    ("axes", "context_len"): ("context_len",),
}


def _place(loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Where a calculator's complaint belongs in this call's body."""
    where = tuple(loc)
    if where[:2] == ("workload", "parallel"):
        return where[1:]
    return _PLACES.get(tuple(map(str, where)), where)


def kv_json(estimate: KvEstimate) -> dict[str, Any]:
    """The answer in the API's shape."""
    whole, device = estimate.whole, estimate.device
    parallel, lengths = estimate.workload.parallel, estimate.lengths
    return {
        "bytes_per_token": estimate.bytes_per_token,
        "payload_bytes": float(whole.payload),
        "fragmentation_bytes": float(whole.fragmentation),
        "page_table_bytes": float(whole.page_table),
        "prefix_saved_bytes": float(whole.prefix_saved),
        "total_bytes": float(whole.total),
        "paged_bytes": float(whole.paged),
        "shared_bytes": float(whole.shared),
        "allocated_bytes": float(whole.reserved),
        "state_bytes": float(whole.states),
        "per_device_bytes": float(device.total),
        "per_device": {
            "payload_bytes": float(device.payload),
            "paged_bytes": float(device.paged),
            "shared_bytes": float(device.shared),
            "allocated_bytes": float(device.reserved),
            "weights_bytes": max(part.weights for part in estimate.parts),
            "beside_bytes_per_sequence": max(part.beside for part in estimate.parts),
            "available_bytes": estimate.for_cache,
        },
        "by_layer_kind": [
            {
                "kind": row.kind,
                "layers": row.layers,
                "kv_heads": row.heads,
                "bytes_per_token": row.per_token,
                "bytes_per_sequence": row.per_sequence,
                "window": row.window,
                "copies": row.copies,
            }
            for row in estimate.layers
        ],
        "copies": estimate.copies,
        "sequences": lengths.sequences,
        "lengths": {
            "mean": lengths.mean,
            "p50": lengths.quantile(0.5),
            "p95": lengths.quantile(0.95),
            "max": lengths.longest,
        },
        "devices": parallel.devices,
        "max_batch": whole_number(estimate.max_batch),
        "max_batch_all_replicas": None
        if estimate.max_batch is None
        else whole_number(estimate.max_batch * parallel.dp),
        "max_context_len": whole_number(None if estimate.max_context is None else max(estimate.max_context, 0.0)),
        "read_bytes_per_step": estimate.reads.each,
        "read_s_per_step": estimate.read_time,
        "read_s_per_step_cascade": estimate.cascade_time,
        "model": {"id": estimate.model.id, "name": estimate.model.name},
        "hardware": None if estimate.hardware is None else {"id": estimate.hardware.id, "name": estimate.hardware.name},
        "assumptions": list(dict.fromkeys(estimate.assumptions)),
        "sources": kv_sources(estimate),
    }


def whole_number(value: float | None) -> int | None:
    """A count; None where it is not known or has no end."""
    return None if value is None or not np.isfinite(value) else int(value)


def kv_sources(estimate: KvEstimate) -> list[dict[str, Any]]:
    """The figures of the hardware profile that the answer rests on, with the sources it cites."""
    hardware, roofs = estimate.hardware, estimate.roofs
    if hardware is None or roofs is None:
        return []
    group = "achievable" if roofs.names["memory bandwidth"] not in ("peak", "PCIe") else "peak"
    figures = [(f"{group}.memory_bandwidth_bytes_per_s", roofs.memory, "B/s")]
    if hardware.memory_capacity is not None:
        figures.insert(0, ("memory_bytes", hardware.memory_capacity, "B"))
    return [cited_figure(hardware, *row) for row in figures]
