"""The model list and one model: its layers in words, its parameters by part, its cache by precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Final

from app.domain.errors import UnsupportedArchitecture
from app.domain.hardware import FigureSource
from app.domain.memory import kv_bytes_per_token
from app.domain.mixer_parameters import group_mixer_parameters
from app.domain.model import (
    DECODER_KINDS,
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    ModelSpec,
    MoeMlp,
    OtherMixer,
)
from app.domain.parameters import (
    ParameterCount,
    group_kv_elements,
    kv_elements_per_token,
    mlp_parameters,
)
from app.domain.precision import PRECISIONS
from app.services.catalogue import ModelEntry, all_models, model_matches, model_sizes
from app.services.context import Context
from app.services.listing import linked_runs, natural, ordered
from app.storage.records import RunFilter, RunSummary

# ---- list -----------------------------------------------------------------------------------------------------------

KIND_LABELS: Final[Mapping[str, str]] = {
    "decoder": "Dense decoder",
    "moe": "Mixture of experts",
    "vlm": "Vision-language model",
    "hybrid": "Hybrid model",
    "ssm": "State-space model",
    "encoder": "Encoder",
    "enc-dec": "Encoder-decoder",
    "dit": "Diffusion transformer",
    "unet": "U-Net",
}


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One model of the list. `refusal` says why the estimator cannot handle it, where it cannot."""

    entry: ModelEntry
    parameters: ParameterCount | None
    attention: str
    kv_bytes: float | None
    refusal: str

    @property
    def layers(self) -> int | None:
        return self.entry.model.num_layers or None

    @property
    def hidden(self) -> int | None:
        return self.entry.model.hidden_size or None


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """Filters and order of the model list, as they stand in an address; empty ones do not filter."""

    q: str = ""
    family: str = ""
    kind: str = ""
    estimable: str = ""
    sort: str = ""

    @property
    def filters_anything(self) -> bool:
        return bool(self.q or self.family or self.kind or self.estimable)


@dataclass(frozen=True, slots=True)
class ModelList:
    """The lines that match, what the filters offer as (value, label), and how many of the lines can be estimated."""

    lines: tuple[ModelLine, ...]
    total: int
    families: tuple[tuple[str, str], ...]
    kinds: tuple[tuple[str, str], ...]
    estimable: int


def _count(value: float | None) -> float | None:
    return None if value is None else float(value)


MODEL_SORTS: Final[Mapping[str, Callable[[ModelLine], float | str | None]]] = {
    "name": lambda line: natural(line.entry.name),
    "family": lambda line: (line.entry.model.family or "").casefold() or None,
    "total": lambda line: None if line.parameters is None else float(line.parameters.total),
    "active": lambda line: None if line.parameters is None else float(line.parameters.active),
    "layers": lambda line: _count(line.layers),
    "hidden": lambda line: _count(line.hidden),
    "attention": lambda line: line.attention or None,
    "kv": lambda line: line.kv_bytes,
    "context": lambda line: _count(line.entry.model.max_position),
    "year": lambda line: _count(line.entry.model.release_year),
}


def browse_models(ctx: Context, query: ModelQuery) -> ModelList:
    """The models that match. Raises InvalidQuery for an unknown sort key."""
    everything = all_models(ctx)
    found = [
        model_line(entry)
        for entry in everything
        if model_matches(entry.model, query.q)
        and (not query.family or (entry.model.family or "").casefold() == query.family.casefold())
        and (not query.kind or entry.model.kind == query.kind)
        and (not query.estimable or entry.model.supported == (query.estimable == "yes"))
    ]
    families = Counter(entry.model.family for entry in everything if entry.model.family)
    kinds = Counter(entry.model.kind for entry in everything)
    return ModelList(
        lines=tuple(ordered(found, query.sort, MODEL_SORTS, usual=_usual)),
        total=len(everything),
        families=tuple((name, f"{name} ({number})") for name, number in sorted(families.items())),
        kinds=tuple((name, f"{KIND_LABELS.get(name, name)} ({number})") for name, number in sorted(kinds.items())),
        estimable=sum(line.entry.model.supported for line in found),
    )


def _usual(line: ModelLine) -> tuple[bool | str, ...]:
    """A team's own first, then those that can be estimated, by name."""
    return (line.entry.model.shipped, bool(line.refusal), natural(line.entry.name))


def model_line(entry: ModelEntry) -> ModelLine:
    """One model as the list shows it."""
    sizes = model_sizes(entry.model)
    return ModelLine(
        entry=entry,
        parameters=sizes.parameters,
        attention=attention_words(entry.model),
        kv_bytes=sizes.kv_bytes,
        refusal=refusal_of(entry.model),
    )


def refusal_of(model: ModelSpec) -> str:
    """Why the estimator cannot handle a model, empty where it can."""
    try:
        model.require_supported()
    except UnsupportedArchitecture as error:
        return error.reason
    return ""


def attention_words(model: ModelSpec) -> str:
    """The kinds of token mixing of a model, each once, in the order of its layers."""
    return " + ".join(dict.fromkeys(mixer_kind(group.mixer) for group in model.layers if group.mixer is not None))


_OTHER_MIXERS: Final = {
    "mamba1": "Mamba",
    "mamba2": "Mamba-2",
    "gated_deltanet": "gated DeltaNet",
    "gateddeltanet": "gated DeltaNet",
    "kda": "Kimi delta attention",
    "kimideltaattention": "Kimi delta attention",
    "lightning": "lightning attention",
    "lightningattention": "lightning attention",
    "rwkv5": "RWKV-5",
    "rwkv7": "RWKV-7",
    "v4_shared_kv": "shared-KV attention",
}


def mixer_kind(mixer: object | None) -> str:
    """What a layer mixes tokens with: MHA, GQA, MQA, MLA or another name; a composite's parts in turn."""
    if isinstance(mixer, LatentAttention):
        return "sparse MLA" if mixer.indexer else "MLA"
    if isinstance(mixer, Attention):
        plain = {"full": "", "bidirectional": "bidirectional ", "cross": "cross-attention "}
        return f"{'sparse ' if mixer.indexer else ''}{plain.get(mixer.kind, mixer.kind + ' ')}{mixer.variant}"
    if isinstance(mixer, CompressedAttention):
        return "window" if not mixer.ratio else f"window and 1 entry for {mixer.ratio} tokens"
    if mixer is None or isinstance(mixer, (DenseMlp, MoeMlp)):
        return ""
    if isinstance(mixer, OtherMixer):
        return _OTHER_MIXERS.get(mixer.name, mixer.name)
    parts = [kind for part in _members(mixer) if is_dataclass(part) and (kind := mixer_kind(part))]
    name = type(mixer).__name__
    return " + ".join(parts) if parts else _OTHER_MIXERS.get(name.lower(), name)


def _members(mixer: object) -> list[object]:
    return [getattr(mixer, f.name) for f in fields(mixer)] if is_dataclass(mixer) else []


# ---- one model ------------------------------------------------------------------------------------------------------

KV_FORMATS: Final = ("bf16", "fp8", "nvfp4", "int4")
KV_CONTEXTS: Final = (8192, 131_072)


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group of equal layers in words, with its parameters and cache. Unknown ones are None."""

    layers: str
    count: int
    mixer: str
    mlp: str
    mixer_parameters: float | None
    mlp_parameters: float | None
    kv_bytes: float | None


@dataclass(frozen=True, slots=True)
class KvLine:
    """The cache in one format: of one token, and of one sequence at several lengths."""

    precision: str
    per_token: float
    per_sequence: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ModelSheet:
    """Everything that a model's page shows."""

    entry: ModelEntry
    headline: str
    refusal: str
    groups: tuple[GroupLine, ...]
    parameters: ParameterCount | None
    parts: tuple[tuple[str, int], ...]
    against: tuple[tuple[str, float, float | None, float | None], ...]
    kv: tuple[KvLine, ...]
    kv_contexts: tuple[int, ...]
    has_windows: bool
    facts: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]
    documents: tuple[FigureSource, ...]
    published: FigureSource | None
    is_published_rounded: bool
    runs: tuple[RunSummary, ...]
    run_count: int


def model_sheet(ctx: Context, entry: ModelEntry) -> ModelSheet:
    """The page of one model."""
    model = entry.model
    line = model_line(entry)
    count = line.parameters
    runs = linked_runs(ctx, RunFilter(model=model.id), limit=5)
    contexts = _contexts(model)
    return ModelSheet(
        entry=entry,
        headline=_model_headline(line),
        refusal=line.refusal,
        groups=tuple(_group_line(model, group) for group in model.layers),
        parameters=count,
        parts=_parts(count),
        against=_against(model, count),
        kv=_kv_lines(model, line.kv_bytes, contexts),
        kv_contexts=contexts,
        has_windows=any(isinstance(g.mixer, Attention) and g.mixer.window is not None for g in model.layers),
        facts=tuple((term, text) for term, text in _model_facts(model) if text),
        remarks=tuple(str(note) for note in model.record.get("notes", ())),
        documents=tuple(
            FigureSource(("layers",), _text(model.record.get("read")) or "primary", str(url))
            for url in model.record.get("sources", ())
        ),
        published=_published(model),
        is_published_rounded=model.record.get("published_digits") == "rounded",
        runs=runs.items,
        run_count=runs.total,
    )


def _published(model: ModelSpec) -> FigureSource | None:
    """Where the published totals were read."""
    source = model.record.get("published_source")
    if not isinstance(source, Mapping):
        return None
    return FigureSource(
        ("published_total_params",),
        _text(source.get("read")) or "primary",
        _text(source.get("url")),
        _text(source.get("note")),
    )


def _model_headline(line: ModelLine) -> str:
    model, count = line.entry.model, line.parameters
    kind = KIND_LABELS.get(model.kind, model.kind)
    if count is None:
        first = f"{kind} whose parameters are not counted"
    elif count.active != count.total:
        first = f"{kind} with {_billions(count.total)} parameters, of which a token uses {_billions(count.active)}"
    else:
        first = f"{kind} with {_billions(count.total)} parameters"
    if line.kv_bytes:
        return f"{first}; each token adds {line.kv_bytes / 1024:,.4g} KiB of bf16 KV cache."
    return f"{first}."


def _billions(value: float) -> str:
    for factor, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= factor * 0.9995:
            return f"{value / factor:,.3g} {word}"
    return f"{value:,.0f}"


def _group_line(model: ModelSpec, group: LayerGroup) -> GroupLine:
    last = group.first_index + group.count - 1
    indices = f"{group.first_index}" if group.count == 1 else f"{group.first_index} to {last}"
    is_interleaved = any(
        other is not group and other.first_index <= last and group.first_index < other.first_index + other.count
        for other in model.layers
    )
    mixer = group.mixer
    try:
        kv: float | None = group.count * group_kv_elements(model, group) * PRECISIONS["bf16"].element_bytes
    except UnsupportedArchitecture:
        kv = None
    return GroupLine(
        layers=f"interleaved, from {group.first_index}" if is_interleaved else indices,
        count=group.count,
        mixer=mixer_words(mixer),
        mlp=mlp_words(group.mlp),
        mixer_parameters=None
        if mixer is None or isinstance(mixer, OtherMixer)
        else float(group_mixer_parameters(group, model.hidden_size)),
        mlp_parameters=None
        if group.mlp is None or (isinstance(mixer, OtherMixer) and model.hidden_size == 0)
        else float(group.count * mlp_parameters(group.mlp, model.hidden_size)),
        kv_bytes=kv,
    )


def mixer_words(mixer: object | None) -> str:
    """One layer's token mixing with its dimensions."""
    if mixer is None:
        return "none"
    if isinstance(mixer, LatentAttention):
        query = "" if mixer.q_lora_rank is None else f", query latent {mixer.q_lora_rank:,}"
        return (
            f"{mixer_kind(mixer)}: {mixer.heads} heads, KV latent {mixer.kv_lora_rank} + rotary "
            f"{mixer.qk_rope_head_dim}, head {mixer.qk_nope_head_dim} + {mixer.qk_rope_head_dim}, "
            f"value {mixer.v_head_dim}{query}{_indexer_words(mixer)}"
        )
    if isinstance(mixer, Attention):
        return _attention_words(mixer)
    if isinstance(mixer, CompressedAttention):
        picked = "" if mixer.indexer is None else f", at most {mixer.indexer.top_keys:,} entries a query"
        return (
            f"{mixer_kind(mixer)}: {mixer.heads} heads × {mixer.head_dim}, one shared key that is also the value, "
            f"window {mixer.window:,}{picked}, query latent {mixer.q_lora_rank:,}, {mixer.streams} residual streams"
        )
    inner = [part for part in _members(mixer) if is_dataclass(part)]
    if inner:
        return "; then ".join(mixer_words(part) for part in inner)
    if isinstance(mixer, DenseMlp):
        return f"MLP {mlp_words(mixer)}"
    detail = mixer.detail if isinstance(mixer, OtherMixer) else None
    sizes = [
        f"{value:,} {word}"
        for name, word in (("heads", "heads"), ("head_dim", "wide"), ("inner", "channels"), ("state", "states"))
        if isinstance(value := detail.get(name) if detail is not None else getattr(mixer, name, None), int)
    ]
    return f"{mixer_kind(mixer)}{': ' if sizes else ''}{', '.join(sizes)}"


def _attention_words(mixer: Attention) -> str:
    value = "" if mixer.v_head_dim == mixer.head_dim else f", value {mixer.v_head_dim}"
    extras = [
        text
        for text, present in (
            (f"window {mixer.window or 0:,}", mixer.window is not None),
            ("biases on q, k, v", mixer.q_bias and mixer.k_bias and mixer.v_bias),
            ("output bias", mixer.o_bias),
            ("q/k norm", mixer.qk_norm is not None),
            ("sinks", mixer.sinks),
            ("values are keys", mixer.v_from_k),
            ("reads another layer's cache", not mixer.own_kv),
        )
        if present
    ]
    tail = f"; {', '.join(extras)}" if extras else ""
    return (
        f"{mixer_kind(mixer)}: {mixer.heads} query, {mixer.kv_heads} KV heads × {mixer.head_dim}{value}"
        f"{tail}{_indexer_words(mixer)}"
    )


def _indexer_words(mixer: Attention | LatentAttention) -> str:
    return "" if mixer.indexer is None else f"; at most {mixer.indexer.top_keys:,} keys a query"


def mlp_words(mlp: object | None) -> str:
    """One layer's MLP with its dimensions."""
    if mlp is None:
        return "none"
    if isinstance(mlp, MoeMlp):
        return _moe_words(mlp)
    if isinstance(mlp, DenseMlp):
        return f"{'gated' if mlp.gated else 'plain'} {mlp.intermediate:,}{', biases' if mlp.bias else ''}"
    width = getattr(mlp, "intermediate", None)
    return f"channel mixing {width:,}" if isinstance(width, int) else type(mlp).__name__


def _moe_words(mlp: MoeMlp) -> str:
    parts = [f"{mlp.experts} experts × {mlp.expert_intermediate:,}, top {mlp.top_k}"]
    if mlp.shared_experts:
        parts.append(f"{mlp.shared_experts} shared ({mlp.shared_intermediate:,})")
    if mlp.dense_intermediate:
        parts.append(f"dense {mlp.dense_intermediate:,} beside them")
    if mlp.latent_size is not None:
        parts.append(f"latent {mlp.latent_size:,}")
    return ", ".join(parts)


def _parts(count: ParameterCount | None) -> tuple[tuple[str, int], ...]:
    if count is None or not count.counted:
        return ()
    rows = (
        ("Token embedding", count.embedding),
        ("Output head", count.lm_head),
        ("Attention", count.attention),
        ("MLP and experts", count.mlp),
        ("Norms", count.norms),
        ("Vision or audio tower", count.tower),
        ("Positions and head bias", count.other - count.tower),
    )
    return tuple((label, value) for label, value in rows if value)


def _against(
    model: ModelSpec, count: ParameterCount | None
) -> tuple[tuple[str, float, float | None, float | None], ...]:
    """(what, counted, published, relative difference) of the totals."""
    if count is None:
        return ()
    rows = []
    for label, ours, published in (
        ("Total", count.total, model.published_total_params),
        ("Active for one token", count.active, model.published_active_params),
    ):
        difference = None if not published or not count.counted else (ours - published) / published
        rows.append((label, float(ours), published, difference))
    return tuple(rows)


def _contexts(model: ModelSpec) -> tuple[int, ...]:
    if not model.supported:
        return ()
    longest = model.max_position
    kept = [length for length in KV_CONTEXTS if longest is None or length < longest]
    return tuple([*kept, longest] if longest else kept)


def _kv_lines(model: ModelSpec, in_bf16: float | None, contexts: Sequence[int]) -> tuple[KvLine, ...]:
    if not in_bf16:
        return ()
    elements = kv_elements_per_token(model)
    lines = []
    for name in KV_FORMATS:
        size = PRECISIONS[name].element_bytes
        lines.append(
            KvLine(
                name,
                elements * size,
                tuple(float(kv_bytes_per_token(model, size, context_len=n)) * n for n in contexts),
            )
        )
    return tuple(lines)


def _model_facts(model: ModelSpec) -> Iterable[tuple[str, str | None]]:
    record = model.record
    yield "Family", model.family
    yield "Kind", KIND_LABELS.get(model.kind, model.kind)
    yield "Year", None if model.release_year is None else str(model.release_year)
    yield "Repository", model.hf_id
    yield "Hidden size", f"{model.hidden_size:,}" if model.hidden_size else None
    yield "Layers", f"{model.num_layers:,}" if model.num_layers else None
    yield "Vocabulary", f"{model.vocab_size:,}" if model.vocab_size else None
    yield "Embeddings", None if not model.vocab_size else "tied with the head" if model.tied_embeddings else "untied"
    yield "Context", None if model.max_position is None else f"{model.max_position:,} tokens"
    yield "Positions", _text(record.get("position_embedding"))
    yield "Norm", model.norm
    yield "Activation", model.activation
    yield "Block", "attention and MLP in parallel" if model.parallel_block else None
    yield "Layer pattern", _text(record.get("layer_pattern"))
    moe = record.get("moe")
    if isinstance(moe, Mapping):
        yield "Router", _text(moe.get("router_type"))
    mtp = record.get("mtp")
    if isinstance(mtp, Mapping) and isinstance(mtp.get("layers"), int):
        yield (
            "Multi-token prediction",
            f"{mtp['layers']} extra layer{'' if mtp['layers'] == 1 else 's'}, not in the totals",
        )
    if model.undescribed and model.kind in DECODER_KINDS:
        yield "Not described", model.undescribed


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
