"""The KV cache of a batch: what it holds, what pages and reservations add, what prefixes save, and what fits.

Bytes a token, of a state and of what a stage's device holds come from `memory`, reads from the cost table; this module
only counts slots. Lengths, page sizes and batches may be arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np

from app.domain.cost import Array
from app.domain.inputs import source_tokens
from app.domain.lengths import Lengths
from app.domain.memory import kv_bytes_per_token, memory_by_stage, state_bytes_per_sequence
from app.domain.model import (
    STATE_MIXERS,
    Attention,
    CompressedAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    ModelSpec,
    RwkvFfn,
    mixer_parts,
)
from app.domain.step import cost_table
from app.domain.units import Bytes, Grid
from app.domain.workload import MAX_TOKENS, Workload

PAGE_ENTRY: Bytes = 4.0
"""Bytes of one entry of a page table: a 32-bit block number (F-5.3)."""

CacheKind: TypeAlias = Literal[
    "full", "sliding", "chunked", "latent", "compressed", "index", "state", "cross", "shared"
]
CACHE_KINDS: tuple[CacheKind, ...] = get_args(CacheKind)
"""What layers keep, in the order that tables show it."""


@dataclass(frozen=True, slots=True)
class CacheLayers:
    """Layers that keep the same kind of thing.

    `per_token` bytes more for each token (up to `window` of them), `per_sequence` bytes whatever the length, of the
    whole model. `per_rank` and `per_rank_sequence` are those of one rank of the tensor-parallel group. `copies` says
    how often the group keeps each byte.
    """

    kind: CacheKind
    layers: int
    window: int | None
    heads: int | None
    per_token: Bytes
    per_sequence: Bytes
    per_rank: Bytes
    per_rank_sequence: Bytes
    tp: float

    @property
    def copies(self) -> float:
        whole = self.per_token + self.per_sequence
        return (self.per_rank + self.per_rank_sequence) * self.tp / whole if whole else 1.0


def cache_layers(model: ModelSpec, kv: Bytes, tp: float = 1.0, *, other_tokens: int = 0) -> tuple[CacheLayers, ...]:
    """What each kind of layer keeps, with `kv` bytes an element; their sums are those of `memory` (F-5.1).

    Layers of one kind that differ in window or heads are listed apart.
    """
    found: dict[tuple[CacheKind, int | None, int | None], CacheLayers] = {}

    def bytes_of(part: _Part, degree: float) -> tuple[float, float]:
        growing = part.of(lambda model: float(kv_bytes_per_token(model, kv, degree)))
        fixed = part.of(lambda model: float(state_bytes_per_sequence(model, kv, degree, other_tokens=other_tokens)))
        return growing, fixed

    for part in _parts(model):
        key = (part.kind, part.window, part.heads)
        old = found.get(key, CacheLayers(*key[:1], 0, *key[1:], 0.0, 0.0, 0.0, 0.0, tp))
        (growing, fixed), (ranks, ranks_fixed) = bytes_of(part, 1.0), bytes_of(part, tp)
        found[key] = replace(
            old,
            layers=old.layers + part.layers,
            per_token=old.per_token + growing,
            per_sequence=old.per_sequence + fixed,
            per_rank=old.per_rank + ranks,
            per_rank_sequence=old.per_rank_sequence + ranks_fixed,
        )
    return tuple(sorted(found.values(), key=lambda row: (CACHE_KINDS.index(row.kind), -row.layers)))


def sequence_by_kind(
    model: ModelSpec, kv: Bytes, tokens: Grid, tp: float = 1.0, *, other_tokens: int = 0
) -> dict[CacheKind, Grid]:
    """Bytes that one sequence of `tokens` keeps on one rank, by kind; their sum is that of the whole cache."""
    found: dict[CacheKind, Grid] = {}

    def held(part: ModelSpec) -> Grid:
        shape = CacheShape(part, kv, tp, other_tokens)
        return shape.tokens(tokens) + shape.fixed

    for part in _parts(model):
        found[part.kind] = found.get(part.kind, 0.0) + part.of(held)
    return {kind: found[kind] for kind in CACHE_KINDS if kind in found}


_Number = TypeVar("_Number", float, Grid)


@dataclass(frozen=True, slots=True)
class _Part:
    """Layers that keep one kind of thing: what `model` keeps and `without` does not."""

    kind: CacheKind
    layers: int
    window: int | None
    heads: int | None
    model: ModelSpec
    without: ModelSpec | None = None

    def of(self, size: Callable[[ModelSpec], _Number]) -> _Number:
        whole = size(self.model)
        return whole if self.without is None else whole - size(self.without)


def _parts(model: ModelSpec) -> Iterator[_Part]:
    """The model cut into what its layers keep; the formulas stay those of `memory`."""

    def alone(group: LayerGroup, mixer: Mixer) -> ModelSpec:
        mlp = group.mlp if isinstance(group.mlp, RwkvFfn) and isinstance(mixer, STATE_MIXERS) else None
        return replace(model, layers=(replace(group, mixer=mixer, mlp=mlp),))

    for group in model.layers:
        for mixer in mixer_parts(group.mixer):
            count, whole = group.count, alone(group, mixer)
            if isinstance(mixer, STATE_MIXERS):
                yield _Part("state", count, None, None, whole)
                continue
            unpicked = alone(group, replace(mixer, indexer=None))
            if isinstance(mixer, CompressedAttention):
                recent = alone(group, replace(mixer, indexer=None, ratio=0))
                yield _Part("sliding", count, mixer.window, 1, recent)
                if mixer.ratio:
                    yield _Part("compressed", count, None, 1, unpicked, recent)
            elif isinstance(mixer, LatentAttention):
                yield _Part("latent", count, None, None, unpicked)
            elif mixer.kind != "bidirectional":
                yield _Part(_kind_of(mixer), count, mixer.window, mixer.kv_heads, unpicked)
            if mixer.indexer is not None and mixer.indexer.counted:
                yield _Part("index", count, None, None, whole, unpicked)


def _kind_of(mixer: Attention) -> CacheKind:
    if mixer.kind == "cross":
        return "cross"
    if not mixer.own_kv:
        return "shared"
    return "full" if mixer.window is None else "chunked" if mixer.kind == "chunked" else "sliding"


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A model's cache with `kv` bytes an element on one rank of a tensor-parallel group."""

    model: ModelSpec
    kv: Bytes
    tp: float = 1.0
    other_tokens: int = 0

    def tokens(self, slots: Grid) -> Grid:
        """Bytes of `slots` tokens of one sequence, states left out: windowed layers keep the last ones only."""
        return slots * kv_bytes_per_token(self.model, self.kv, self.tp, context_len=slots)

    @property
    def fixed(self) -> Bytes:
        """Bytes of one sequence that do not grow."""
        return float(state_bytes_per_sequence(self.model, self.kv, self.tp, other_tokens=self.other_tokens))


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The bytes that people confuse, of one batch (F-5.3, F-5.4). `states` are those that every number holds.

    payload     keys, values, latents and states of the tokens that there are
    paged       the same in whole pages
    shared      in whole pages, with each page of a common prefix once
    reserved    one contiguous piece for each sequence, as long as the longest that is allowed
    page_table  entries of the page tables beside them
    """

    payload: Grid
    paged: Grid
    shared: Grid
    reserved: Grid
    page_table: Grid
    states: Bytes

    @property
    def fragmentation(self) -> Grid:
        return self.paged - self.payload

    @property
    def prefix_saved(self) -> Grid:
        return self.paged - self.shared

    @property
    def total(self) -> Grid:
        """What a paged cache takes: pages, those of a common prefix once, and the tables."""
        return self.shared + self.page_table

    def on_device(self, part: StagePart) -> CacheUse:
        """The same on one device of a stage, where this is the use of one rank. Page tables are kept whole."""

        def size(whole: Grid) -> Grid:
            return (whole - self.states) * part.tokens + self.states * part.states

        return CacheUse(
            size(self.payload),
            size(self.paged),
            size(self.shared),
            size(self.reserved),
            self.page_table,
            self.states * part.states,
        )


def slots_of(lengths: Grid, page: Grid) -> Grid:
    """Tokens that whole pages of `page` tokens have room for (F-5.3)."""
    return np.ceil(np.asarray(lengths, dtype=np.float64) / page) * page


def expected_empty(lengths: Lengths, page: Grid) -> Grid:
    """Share of the tokens by which pages exceed them on average, where lengths end anywhere in a page (F-5.3)."""
    tokens = lengths.tokens
    return (page - 1.0) / 2.0 * lengths.sequences / tokens if tokens else np.zeros_like(page)


def cache_use(shape: CacheShape, lengths: Lengths, page: Grid, *, prefix: float = 0.0, longest: float) -> CacheUse:
    """Bytes of one batch. `page` may be an array of page sizes; `longest` is what a reservation is made for.

    A prefix is shared in whole pages; a sequence that is shorter shares all its whole pages.
    """
    pages = np.asarray(page, dtype=np.float64)[..., np.newaxis]
    values = lengths.values
    slots = slots_of(values, pages)
    common = np.floor(np.minimum(prefix, values) / pages) * pages
    held = held_prefix(shape, slots, common)
    states = shape.fixed * lengths.sequences

    def total(sizes: Grid) -> Grid:
        summed = (np.asarray(sizes, dtype=np.float64) * lengths.counts).sum(axis=-1)
        return float(summed) if np.ndim(summed) == 0 else summed

    paged = total(shape.tokens(slots)) + states
    most = held.max(axis=-1)
    saved = total(held) - (most if np.ndim(most) else float(most))
    return CacheUse(
        payload=total(shape.tokens(values)) + states,
        paged=paged,
        shared=paged - saved,
        reserved=lengths.sequences * float(shape.tokens(float(longest))) + states,
        page_table=PAGE_ENTRY * total(slots / pages),
        states=states,
    )


def held_prefix(shape: CacheShape, slots: Grid, common: Grid) -> Array:
    """Bytes of the first `common` slots that a sequence of `slots` slots still holds.

    A layer without a window holds all of them; one with a window holds what its last slots overlap. So it is what the
    whole sequence holds less what it would hold without the prefix.
    """
    behind = np.maximum(np.asarray(slots, dtype=np.float64) - common, 0.0)
    return np.asarray(shape.tokens(np.asarray(slots, dtype=np.float64)) - shape.tokens(behind))


# ---- one device -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagePart:
    """What a device of one pipeline stage holds: parts of a rank's cache, and bytes beside it.

    `tokens` and `states` are the shares of a rank's cached tokens and states. `weights` bytes are there whatever the
    batch, `beside` bytes are activations and logits for each sequence of a micro-batch.
    """

    stage: int
    tokens: float
    states: float
    weights: Bytes
    beside: Bytes
    micro_batches: int


def shape_of(model: ModelSpec, workload: Workload) -> CacheShape:
    """The cache of one rank of a workload's tensor-parallel group, that of prediction modules included."""
    caching = model.with_prediction(workload.prediction_modules)
    return CacheShape(
        caching, workload.dtypes.bytes_of("kv"), float(workload.parallel.tp), source_tokens(model, workload)
    )


def stage_parts(model: ModelSpec, workload: Workload, ranks_per_node: int) -> tuple[StagePart, ...]:
    """What devices hold in decode, read off `memory`'s own objects for one sequence. Raises as `memory_use` does."""
    one = replace(workload, phase="decode", batch=1, seq_len=1, context_len=1)
    shape, cp, micro = shape_of(model, one), one.parallel.cp, one.parallel.micro_batches
    slots = float(slots_of(2.0, one.kv.page_tokens))
    whole = float(shape.tokens(slots)) / cp + shape.fixed
    parts = []
    ends = tuple(dict.fromkeys((0, one.parallel.pp - 1)))  # one of them is the fullest
    for stage, objects in memory_by_stage(model, one, ranks_per_node=ranks_per_node, stages=ends).items():
        share = objects["kv_cache"] / micro / whole if whole else 1.0
        beside = objects["activations"] + objects["logits"]
        parts.append(StagePart(stage, share / cp, share, objects["parameters"], beside, micro))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a rank's cache that sequences need: `once` for their common prefix, `own` and `fixed` for each one."""

    once: Grid
    own: Grid
    fixed: Bytes

    def on(self, part: StagePart, batch: Grid) -> Grid:
        """Bytes on a device that holds `batch` of them in each micro-batch, weights and activations included."""
        each = part.micro_batches * (self.own * part.tokens + self.fixed * part.states) + part.beside
        return part.weights + self.once * part.tokens + batch * each


def need(shape: CacheShape, context: Grid, page: float, prefix: float = 0.0) -> Need:
    """Of sequences with `context` tokens cached that each write one more."""
    context = np.asarray(context, dtype=np.float64)
    slots = slots_of(context + 1.0, page)
    once = held_prefix(shape, slots, np.floor(np.minimum(prefix, context) / page) * page)
    return Need(once, shape.tokens(slots) - once, shape.fixed)


def need_of(shape: CacheShape, lengths: Lengths, page: float, prefix: float = 0.0) -> Need:
    """Of sequences spread like `lengths`: the mean one, and the most that any of them keeps of the prefix."""
    slots = slots_of(lengths.values + 1.0, page)
    once = held_prefix(shape, slots, np.floor(np.minimum(prefix, lengths.values) / page) * page)
    own = np.asarray(shape.tokens(slots)) - once
    return Need(float(once.max()), lengths.total(own) / lengths.sequences, shape.fixed)


def largest_batch(parts: tuple[StagePart, ...], needed: Need, capacity: Bytes) -> Array:
    """Sequences (in each micro-batch) with which the fullest device still has no more than `capacity` bytes."""

    def fits(batch: Array) -> Array:
        return np.asarray(np.all([np.asarray(needed.on(part, batch)) <= capacity for part in parts], axis=0))

    return _most(fits, np.shape(needed.own), 0.0)


def largest_context(
    parts: tuple[StagePart, ...], shape: CacheShape, batch: Grid, page: float, prefix: float, capacity: Bytes
) -> Array:
    """Tokens that each of `batch` sequences may have cached: inf without an end, -1 where not even none do."""
    batch = np.asarray(batch, dtype=np.float64)

    def fits(context: Array) -> Array:
        needed = need(shape, context, page, prefix)
        return np.asarray(np.all([np.asarray(needed.on(part, batch)) <= capacity for part in parts], axis=0))

    most = _most(fits, batch.shape, 0.0)
    return np.where((most == 0) & np.logical_not(fits(np.zeros(batch.shape))), -1.0, most)


def _most(fits: Callable[[Array], Array], shape: tuple[int, ...], least: float) -> Array:
    """The largest whole numbers for which a test holds that never comes back once it fails; inf beyond MAX_TOKENS."""
    if shape == ():
        return _most_of_one(fits, least)
    low = np.full(shape, least)
    high = np.full(shape, float(MAX_TOKENS))
    endless = fits(high)
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        good = fits(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return np.where(endless, np.inf, low)


_SECTIONS = 64


def _most_of_one(fits: Callable[[Array], Array], least: float) -> Array:
    """`_most` of a single number: many candidates are tried at once, which takes hardly longer than one."""
    low, high = least, float(MAX_TOKENS)
    if np.all(fits(np.asarray(high))):
        return np.asarray(np.inf)
    while high - low > 1:
        tried = np.unique(np.floor(np.linspace(low, high, _SECTIONS + 1)[1:-1]))
        tried = tried[(tried > low) & (tried < high)]
        good = int(np.count_nonzero(fits(tried)))
        low, high = (tried[good - 1] if good else low), (tried[good] if good < tried.size else high)
    return np.asarray(low)


# ---- what a decode step reads ---------------------------------------------------------------------------------------

_AT_ONCE = 4096


def cache_reads(model: ModelSpec, workload: Workload, contexts: Array, ranks_per_node: int) -> Array:
    """Bytes of cache that one device reads in a decode step for one sequence of each context (F-4.5).

    From the cost table: windows, picked keys and states included. Raises as `cost_table` does.
    """
    one = replace(workload, phase="decode", batch=1, seq_len=1, context_len=0)
    found = []
    for start in range(0, contexts.size, _AT_ONCE):
        axis = contexts[start : start + _AT_ONCE]
        table = cost_table(model, one, ranks_per_node=ranks_per_node, grid={"context_len": axis})
        found.append(np.broadcast_to(table.total("kv_read"), axis.shape))
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class StepReads:
    """Bytes of cache that one device reads in a decode step: `each` sequence for itself, or the prefix `cascaded`."""

    each: Bytes
    cascaded: Bytes


def step_reads(model: ModelSpec, workload: Workload, lengths: Lengths, prefix: float, ranks_per_node: int) -> StepReads:
    """Reads of a batch. Sharing pages saves no reads by itself: only a kernel that reads the prefix once does (F-5.4).

    `lengths` are all sequences that the device holds, those of every micro-batch; a pipeline's device reads the cache
    of its mean stage.
    """
    micro = workload.parallel.micro_batches
    whole = cache_reads(model, workload, lengths.values, ranks_per_node) / micro
    if prefix <= 0:
        return StepReads(lengths.total(whole), lengths.total(whole))
    behind = np.maximum(lengths.values - prefix, 0.0)
    common = np.maximum(whole - cache_reads(model, workload, behind, ranks_per_node) / micro, 0.0)
    each = lengths.total(whole)
    return StepReads(each, each - lengths.total(common) + float(common.max()))
