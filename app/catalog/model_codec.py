"""A model to and from JSON: one shape for the shipped files, the API and a team's stored models.

A model states its layers either as `layers` (groups of equal layers) or flat, as configuration files do
(`num_layers`, `num_attention_heads`, `intermediate_size`, ...). Each value that the text leaves open and that is
filled in here is reported as an assumption.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

from app.catalog.diffusion_codec import read_denoiser
from app.catalog.fields import Fields, Loc, Range, as_loc, checked_integer, slug
from app.catalog.mixer_codec import (
    DECODER_SELF_CROSS,
    ENCODER_SELF,
    PARALLEL,
    SHARED,
    STATE_NAMES,
    read_shared_block,
    read_state_mixer,
    shared_block_json,
    state_mixer_json,
)
from app.catalog.stack_codec import (
    AUDIO_POSITIONS,
    EncoderEnds,
    encoder_ends,
    read_prediction,
    read_tower,
    rotates,
    sound_front,
)
from app.domain.errors import InvalidInput
from app.domain.model import (
    DECODER_KINDS,
    STATE_MIXERS,
    Attention,
    AttentionKind,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    Mamba2,
    Mixer,
    Mlp,
    ModelSpec,
    MoeMlp,
    OtherMixer,
    ParallelMixers,
    Rwkv7,
    RwkvFfn,
    SelfAndCrossAttention,
    SharedBlockThenMixer,
    SparseIndexer,
)
from app.domain.precision import PRECISIONS

KINDS = ("decoder", "moe", "vlm", "hybrid", "ssm", "encoder", "enc-dec", "dit", "unet")
NORMS = ("rmsnorm", "layernorm", "layernorm_nobias", "layernorm (adaLN)", "groupnorm")
ATTENTION_KINDS: tuple[AttentionKind, ...] = ("full", "sliding", "chunked", "bidirectional", "cross")
ATTENTION_MIXERS = ("gqa", "mha", "mqa")
MLPS = ("dense", "moe", "dense+moe", "none", "rwkv_ffn")

PARAMS = Range(1, 1e15, "parameters", "8 billion is 8e9")
MAX_WIDTH = 10_000_000
MAX_COUNT = 100_000

# fmt: off
_TOP = (
    "id", "name", "family", "kind", "release_year", "hf_id", "hf_model_type", "hidden_size", "num_layers",
    "num_attention_heads", "num_kv_heads", "head_dim", "mla", "intermediate_size", "mlp_gated",
    "activation", "norm", "norms_per_layer", "qk_norm", "vocab_size", "tie_word_embeddings",
    "attention_bias", "bias_detail", "attention_sinks", "max_position", "position_embedding",
    "sliding_window", "layer_pattern", "layers", "parallel_block", "kv_cache", "cross_layer_kv_sharing",
    "moe", "linear_layers", "sparse_attention", "mtp", "vision", "audio", "diffusion", "extra_params",
    "published_total_params", "published_active_params", "published_source", "published_digits",
    "computed_total_params", "computed_active_params", "computed_breakdown", "aliases", "notes", "sources",
    "read", "copied_from", "hf_import", "weights_stored_as", "embedding_norm", "token_types",
    "pooling",
)
# fmt: on
_READ_ONLY = (
    "shipped",
    "revision",
    "created_at",
    "updated_at",
    "params_total",
    "params_active",
    "params_counted",
    "kv_bytes_per_token",
    "estimable",
    "assumptions",
)
# fmt: off
_OBJECTS = (
    "kv_cache", "cross_layer_kv_sharing", "linear_layers", "sparse_attention", "mtp", "vision", "audio",
    "diffusion", "extra_params", "published_source", "computed_breakdown", "hf_import",
)
_LAYER = (
    "count", "mixer", "kind", "window", "heads", "kv_heads", "head_dim", "v_head_dim", "qk_norm", "q_bias",
    "k_bias", "v_bias", "o_bias", "sinks", "v_from_k", "kv_from_other_layer", "indexer", "mla", "mlp",
    "mlp_intermediate", "mlp_gated", "mlp_bias", "moe", "norms", "first_index",
    "output_gate", "linear", "shared_block",
)
_MLA = (
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "cached_elements_per_token_per_layer",
)
_MOE = (
    "num_experts", "top_k", "expert_intermediate_size", "num_shared_experts", "shared_intermediate_size",
    "first_dense_layers", "moe_layer_pattern", "dense_intermediate_size", "router_type", "router_bias",
    "expert_bias", "shared_expert_gate", "latent_size", "mlp_gated",
)
# fmt: on
_BIAS = ("qkv", "q", "k", "v", "o", "mlp", "router", "lm_head")
_IMPORT = ("model_type", "family", "weights", "stored_as", "assumptions")
_COMPRESSED = ("window", "window+CSA", "window+HCA")
_RANKS = {"q_lora_rank", "o_lora_rank", "o_groups", "hyper_connection_streams"}
_INDEXER = ("heads", "head_dim", "top_keys", "counted")

_HINTS = {
    "num_hidden_layers": "give num_layers (a Hugging Face config.json goes in hf_config)",
    "num_key_value_heads": "give num_kv_heads (a Hugging Face config.json goes in hf_config)",
    "n_layer": "give num_layers",
    "n_head": "give num_attention_heads",
    "n_embd": "give hidden_size",
    "d_model": "give hidden_size",
    "tied_embeddings": "give tie_word_embeddings",
    "params": "parameters are counted from the layers",
    "num_experts": 'give it inside moe: {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 14336}',
    "num_experts_per_tok": "give moe.top_k",
}


class ParsedModel(NamedTuple):
    """A model, and what had to be assumed to build it."""

    model: ModelSpec
    assumptions: tuple[str, ...]


def model_from_json(data: object, loc: str | Sequence[str | int] = ("model",), *, shipped: bool = False) -> ParsedModel:
    """A model from its JSON object, beside the assumptions that filled in what it leaves open.

    An inline or team model needs `hidden_size`, `vocab_size` and either `layers` or the flat fields `num_layers`,
    `num_attention_heads` and `intermediate_size` (or `moe`). Raises InvalidInput with the path of the field.
    """
    return _ModelReader(Fields(data, as_loc(loc), [*_TOP, *_READ_ONLY], _HINTS), shipped).read()


def model_to_json(model: ModelSpec) -> dict[str, Any]:
    """The JSON object of a model: its record where it has one, else an object made of its layers.

    `model_from_json` of it gives the same architecture back. Fields that are only computed are not in it.
    """
    if "hidden_size" in model.record or "diffusion" in model.record:
        data = copy.deepcopy(dict(model.record))
        data.update(id=model.id, name=model.name, aliases=list(model.aliases))
        data.pop("copied_from", None)
        if model.copied_from:
            data["copied_from"] = model.copied_from
        return data
    return _built(model)


class _ModelReader:
    """Reads one model object; collects assumptions on the way."""

    def __init__(self, fields: Fields, shipped: bool) -> None:
        self.fields = fields
        self.shipped = shipped
        self.assumptions: list[str] = []

    def read(self) -> ParsedModel:
        f = self.fields
        for key in _OBJECTS:
            f.object(key)
        f.flag("shipped")
        if self.shipped:
            f.require("id", "a shipped model is found by its id")
            f.require("name", "give the model a name")
        name = f.line("name", 200) or f.text("hf_id", 200) or "unnamed model"
        self.has_moe = f.has("moe")
        kind = f.choice("kind", KINDS)
        if kind is None:
            kind = self.assume("kind", "moe" if self.has_moe else "decoder")
        self.text_model = kind in DECODER_KINDS
        if self.text_model:
            f.require("hidden_size", "give the width of the residual stream")
            f.require("vocab_size", "give the number of rows of the token embedding")
        self.hidden = f.integer("hidden_size", 1, MAX_WIDTH) or 0
        norm = f.choice("norm", NORMS) or self.assume("norm", "rmsnorm")
        self.gated = self.flag("mlp_gated", True)
        self.bias = self._bias()
        self.qk_norm = cast(Literal["head", "full"] | None, f.choice("qk_norm", ("head", "full")))
        self.norms = f.integer("norms_per_layer", 0, 16)
        if self.norms is None:
            self.norms = self.assume("norms_per_layer", 2) if self.text_model else 2
        self.sinks = f.flag("attention_sinks") or False
        tied = f.flag("tie_word_embeddings")
        if tied is None:
            tied = self.assume("tie_word_embeddings", False) if self.text_model else False
        max_position = f.integer("max_position", 1, 10**9)
        layers = self._layers(kind)
        vocab = f.integer("vocab_size", 1, 10**8) or 0
        tower_params = self._tower_params(kind)
        encoder, layers = self._two_stacks(layers, norm) if kind == "enc-dec" else (None, layers)
        ends = encoder_ends(f, vocab, self.hidden, max_position) if kind == "encoder" else EncoderEnds()
        positions = ends.learned_positions if kind == "encoder" else self._learned_positions(kind, max_position)
        ssm = any(isinstance(group.mlp, RwkvFfn) or _is_rwkv7(group.mixer) for group in layers)
        model = ModelSpec(
            id=f.identifier("id", slug(name)),
            name=name,
            kind=kind,
            hidden_size=self.hidden,
            vocab_size=vocab,
            layers=layers,
            tied_embeddings=tied,
            lm_head_bias=self.bias["lm_head"],
            norm=norm,
            norm_has_bias=norm == "layernorm",
            final_norm=ends.final_norm,
            learned_positions=positions,
            rotary=rotates(f.text("position_embedding", 100), positions),
            parallel_block=f.flag("parallel_block") or False,
            max_position=max_position,
            activation=f.text("activation", 100),
            family=f.text("family", 200),
            release_year=f.integer("release_year", 1990, 2100),
            hf_id=f.text("hf_id", 200),
            hf_model_type=f.text("hf_model_type", 200),
            recorded_total_params=f.number("computed_total_params", PARAMS),
            recorded_active_params=f.number("computed_active_params", PARAMS),
            published_total_params=f.number("published_total_params", PARAMS),
            published_active_params=f.number("published_active_params", PARAMS),
            tower_params=tower_params,
            undescribed=self._undescribed(),
            front=ends.front,
            class_tokens=ends.class_tokens,
            token_types=ends.token_types,
            embedding_norm=f.flag("embedding_norm") or ends.embedding_norm or ssm,
            relative_positions=self._relative_positions(kind),
            residual_streams=next((g.mixer.streams for g in layers if isinstance(g.mixer, CompressedAttention)), 1),
            pooling=ends.pooling,
            encoder=encoder,
            tower=read_tower(f, tower_params) if self.text_model and tower_params else None,
            prediction=read_prediction(f, layers) if self.text_model else None,
            denoiser=read_denoiser(kind, f),
            weights_stored_as=self._stored(),
            aliases=f.texts("aliases"),
            shipped=self.shipped,
            copied_from=f.identifier("copied_from", "") or None,
            record=self._record(),
        )
        self._texts()
        return ParsedModel(model, tuple(self.assumptions))

    # -- values ---------------------------------------------------------------------------------------------------

    def _stored(self) -> str | None:
        """How the checkpoint stores its weights, where narrower than 16 bits: stated, or told by an imported file."""
        stated = self.fields.choice("weights_stored_as", tuple(PRECISIONS))
        told = (self.fields.object("hf_import") or {}).get("weights")
        known = isinstance(told, str) and told in PRECISIONS and PRECISIONS[told].bits < 16
        return stated or (told if known else None)

    def assume(self, key: str, value: Any) -> Any:
        shown = str(value).lower() if isinstance(value, bool) else value
        self.assumptions.append(f"{key} is not given: taken as {shown}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.fields.flag(key)
        return bool(self.assume(key, default)) if value is None else value

    def _bias(self) -> dict[str, bool]:
        f = self.fields
        detail = Fields(f.object("bias_detail") or {}, f.at("bias_detail"), _BIAS)
        attention = f.flag("attention_bias")
        if attention is None and not detail.data:
            attention = self.assume("attention_bias", False) if self.text_model else False
        # Without detail, a model with attention biases is of the GPT-2 and OPT kind: every linear layer has one.
        default = bool(attention) and not detail.data
        stated = {key: detail.flag(key) for key in _BIAS}
        qkv = default if stated["qkv"] is None else stated["qkv"]
        return {
            **{key: qkv if stated[key] is None else bool(stated[key]) for key in ("q", "k", "v")},
            **{key: default if stated[key] is None else bool(stated[key]) for key in ("o", "mlp")},
            **{key: bool(stated[key]) for key in ("router", "lm_head")},
        }

    def _learned_positions(self, kind: str, max_position: int | None) -> int:
        text = self.fields.text("position_embedding", 100)
        if kind == "enc-dec" and text is not None and "learned" in text:
            return self._audio("decoder_context") or max_position or 0
        if text is None or kind not in DECODER_KINDS or not text.startswith("learned"):
            return 0
        if max_position is None:
            raise self.fields.fail("max_position", "is missing: a learned position table has that many rows")
        return max_position + (2 if "+2 offset" in text else 0)

    def _audio(self, key: str) -> int | None:
        data = self.fields.object("audio")
        return Fields(data, self.fields.at("audio"), list(data)).integer(key, 1, MAX_WIDTH) if data else None

    def _relative_positions(self, kind: str) -> int:
        """Learned attention biases of one stack: a number for each of 32 distances and head (T5)."""
        if kind not in ("encoder", "enc-dec") or self.fields.text("position_embedding", 100) != "relative bias":
            return 0
        return 32 * (self.fields.integer("num_attention_heads", 1, MAX_COUNT) or 0)

    def _two_stacks(self, layers: tuple[LayerGroup, ...], norm: str) -> tuple[ModelSpec | None, tuple[LayerGroup, ...]]:
        """The encoder of an encoder-decoder, and the layers of its decoder."""
        own = tuple(g for g in layers if isinstance(g.mixer, Attention) and g.mixer.kind == "bidirectional")
        rest = tuple(g for g in layers if g not in own)
        if not own:
            return None, layers
        mel = self._audio("mel_bins")
        sound = self.fields.has("audio") and mel is not None
        text = self.fields.text("position_embedding", 100) or ""
        positions = self.fields.integer("max_position", 1, 10**9) if text == "learned" else None
        encoder = ModelSpec(
            id="encoder",
            name="encoder",
            kind="encoder",
            hidden_size=self.hidden,
            vocab_size=0,
            layers=own,
            norm=norm,
            norm_has_bias=norm == "layernorm",
            learned_positions=AUDIO_POSITIONS if sound else positions or 0,
            rotary=rotates(text, positions or 0),
            front=sound_front(mel, self.hidden) if sound and mel is not None else (),
            relative_positions=self._relative_positions("enc-dec"),
            activation=self.fields.text("activation", 100),
        )
        return encoder, rest

    def _tower_params(self, kind: str) -> int:
        if kind not in DECODER_KINDS:
            return 0
        total = 0
        for key in ("vision", "audio"):
            part = self.fields.object(key) or {}
            value = part.get("params_computed")
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**15:
                    raise InvalidInput(
                        (*self.fields.at(key), "params_computed"), "expected a whole number of parameters"
                    )
                total += value
        return total

    def _undescribed(self) -> str | None:
        extra = self.fields.object("extra_params")
        if not extra:
            return None
        if set(extra) == {"undescribed"} and isinstance(extra["undescribed"], str):
            return extra["undescribed"][:500]
        if set(extra) <= _RANKS:
            return None  # described by the layers that have them
        return f"parameters outside its layers ({', '.join(str(key)[:60] for key in list(extra)[:6])})"

    def _record(self) -> dict[str, Any]:
        stated = {k: v for k, v in self.fields.data.items() if v is not None and k not in _READ_ONLY}
        # A shipped entry was parsed from its file a moment ago: nobody else holds its parts.
        return stated if self.shipped else copy.deepcopy(stated)

    def _texts(self) -> None:
        """Check the descriptive fields that only pages show."""
        f = self.fields
        for key in ("position_embedding", "layer_pattern", "published_digits", "read"):
            f.text(key)
        f.texts("notes")
        for i, url in enumerate(f.texts("sources")):
            if not url.startswith(("http://", "https://")):
                raise InvalidInput((*f.at("sources"), i), "expected a web address that starts with http:// or https://")
        source = f.object("published_source")
        if source is not None:
            part = Fields(source, f.at("published_source"), ("url", "read", "note"))
            part.link("url"), part.text("read"), part.text("note")
        imported = f.object("hf_import")
        if imported is not None:
            part = Fields(imported, f.at("hf_import"), _IMPORT)
            for key in ("model_type", "family", "weights", "stored_as"):
                part.text(key, 200)
            # What was assumed to read a config.json stays with the model: it is told again wherever it is read.
            self.assumptions[:0] = part.texts("assumptions")

    # -- layers ---------------------------------------------------------------------------------------------------

    def _layers(self, kind: str) -> tuple[LayerGroup, ...]:
        f = self.fields
        num_layers = f.integer("num_layers", 1, MAX_COUNT)
        if f.has("layers"):
            entries = f.items("layers", 2000)
            groups = [
                group
                for i, entry in enumerate(entries)
                for group in self._group(Fields(entry, (*f.at("layers"), i), _LAYER), kind)
            ]
            total = sum(g.count for g in groups)
            if num_layers is not None and self.text_model and total != num_layers:
                raise f.fail("num_layers", f"is {num_layers}, but the groups in layers add up to {total}")
            return tuple(_with_indexers(groups, self._indexer_layers()))
        if not self.text_model:
            return ()
        return self._flat_layers(num_layers)

    def _flat_layers(self, num_layers: int | None) -> tuple[LayerGroup, ...]:
        f = self.fields
        if num_layers is None:
            raise f.fail(
                "layers", "is missing: give layers, or num_layers with num_attention_heads and intermediate_size"
            )
        mixer = self._flat_mixer()
        dense_first = 0
        groups = []
        if self.has_moe:
            moe = Fields(f.data["moe"], f.at("moe"), _MOE)
            dense_first = moe.integer("first_dense_layers", 0, num_layers) or 0
            if dense_first:
                width = moe.integer("dense_intermediate_size", 1, MAX_WIDTH)
                width = width or f.integer("intermediate_size", 1, MAX_WIDTH)
                if width is None:
                    raise moe.fail("dense_intermediate_size", "is missing: the first layers are dense")
                groups.append(self._make(dense_first, mixer, DenseMlp(width, self.gated, self.bias["mlp"]), 0))
            if dense_first < num_layers:
                groups.append(self._make(num_layers - dense_first, mixer, self._moe(moe, 0), dense_first))
            return tuple(_with_indexers(groups, self._indexer_layers()))
        f.require("intermediate_size", "give the width of the MLP, or moe")
        width = f.integer("intermediate_size", 1, MAX_WIDTH) or 0
        return tuple(
            _with_indexers(
                [self._make(num_layers, mixer, DenseMlp(width, self.gated, self.bias["mlp"]), 0)],
                self._indexer_layers(),
            )
        )

    def _flat_mixer(self) -> Mixer:
        f = self.fields
        f.require("num_attention_heads", "give the number of query heads")
        heads = f.integer("num_attention_heads", 1, MAX_COUNT) or 0
        if f.has("mla"):
            return self._latent(heads, Fields(f.data["mla"], f.at("mla"), _MLA))
        kv_heads = f.integer("num_kv_heads", 1, MAX_COUNT)
        if kv_heads is None:
            kv_heads = int(self.assume("num_kv_heads", heads))
        head_dim = f.integer("head_dim", 1, MAX_WIDTH)
        if head_dim is None:
            if self.hidden % heads:
                raise f.fail("head_dim", f"is missing, and hidden_size {self.hidden} does not divide by {heads} heads")
            head_dim = int(self.assume("head_dim", self.hidden // heads))
        _check_heads(heads, kv_heads, f.at("num_kv_heads"))
        window = f.integer("sliding_window", 1, 10**9)
        if f.has("layer_pattern"):
            raise f.fail("layer_pattern", "is only a description: give the groups in layers")
        if window is not None:
            self.assumptions.append(f"every layer attends to a sliding window of {window} tokens")
        return Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            kind="full" if window is None else "sliding",
            window=window,
            q_bias=self.bias["q"],
            k_bias=self.bias["k"],
            v_bias=self.bias["v"],
            o_bias=self.bias["o"],
            qk_norm=self.qk_norm,
            sinks=self.sinks,
        )

    def _group(self, layer: Fields, kind: str) -> list[LayerGroup]:
        layer.require("count", "give the number of layers of this shape")
        layer.require("mixer", f"use {', '.join(ATTENTION_MIXERS)}, mla, none, or the name of another mixer")
        count = layer.integer("count", 1, MAX_COUNT) or 0
        mixer = self._mixer(layer, kind)
        mlp = self._mlp(layer, mixer)
        if mixer is None and mlp is None:
            raise layer.fail("mlp", "is none and so is mixer: such a layer does nothing")
        return [self._make(count, mixer, mlp, layer.integer("first_index", 0, MAX_COUNT) or 0, layer)]

    def _make(
        self, count: int, mixer: Mixer | None, mlp: Mlp | None, first_index: int, layer: Fields | None = None
    ) -> LayerGroup:
        norms = layer.integer("norms", 0, 16) if layer else None
        if norms is None and isinstance(mixer, SelfAndCrossAttention):
            norms = (self.norms or 0) + 1  # one before each kind of attention
        if norms is None:
            # norms_per_layer is that of a whole layer; one with only a mixer or only an MLP has half of them.
            whole = self.norms or 0
            norms = whole if mixer is not None and mlp is not None else min(whole, max(1, whole // 2))
        return LayerGroup(count, mixer, mlp, first_index, norms)

    def _mixer(self, layer: Fields, model_kind: str) -> Mixer | None:
        name = layer.text("mixer", 100) or ""
        if name == "none":
            return None
        if name == "mla":
            heads = layer.integer("heads", 1, MAX_COUNT) or self.fields.integer("num_attention_heads", 1, MAX_COUNT)
            if heads is None:
                raise layer.fail("heads", "is missing: give the number of query heads")
            where = layer if layer.has("mla") else self.fields
            if not where.has("mla"):
                raise layer.fail("mla", "is missing: give kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim")
            latent = self._latent(heads, Fields(where.data["mla"], where.at("mla"), _MLA))
            return replace(latent, indexer=self._indexer(layer), output_gate=layer.flag("output_gate") or False)
        if name in (ENCODER_SELF, DECODER_SELF_CROSS):
            own = self._stack_attention(layer)
            if name == ENCODER_SELF:
                return replace(own, kind="bidirectional")
            return SelfAndCrossAttention(own, replace(own, kind="cross"))
        known = self._state_mixer(name, layer)
        if known is not None:
            return known
        if name not in ATTENTION_MIXERS:
            detail = {
                key: copy.deepcopy(layer.data[key])
                for key in ("kind", "window", "heads", "kv_heads", "head_dim", "v_head_dim")
                if layer.has(key)
            }
            compressed = self._compressed(layer) if name == "v4_shared_kv" else None
            if compressed is not None:
                return compressed
            if name == "v4_shared_kv":
                detail["missing"] = "how its entries are compressed and its low ranks"
            return OtherMixer(name, detail)
        return self._attention(layer, model_kind)

    def _compressed(self, layer: Fields) -> CompressedAttention | None:
        """DeepSeek-V4's attention; its ranks are in `extra_params`, ratios and indexer in `sparse_attention`."""
        sparse, extra = (self.fields.object(key) or {} for key in ("sparse_attention", "extra_params"))
        s = Fields(sparse, self.fields.at("sparse_attention"), list(sparse))
        e = Fields(extra, self.fields.at("extra_params"), list(extra))
        kind = layer.text("kind", 100)
        heads, width = layer.integer("heads", 1, MAX_COUNT), layer.integer("head_dim", 1, MAX_WIDTH)
        window = layer.integer("window", 1, 10**9)
        q, o = e.integer("q_lora_rank", 1, MAX_WIDTH), e.integer("o_lora_rank", 1, MAX_WIDTH)
        groups = e.integer("o_groups", 1, MAX_COUNT)
        stated = [checked_integer(n, 0, 10**6, s.at("compress_ratios")) for n in s.items("compress_ratios", 2000)]
        ratios = sorted({n for n in stated if n})
        if kind not in _COMPRESSED or not (heads and width and window and q and o and groups and ratios):
            return None
        ratio = {"window": 0, "window+CSA": ratios[0], "window+HCA": ratios[-1]}[kind]
        indexer = None
        if kind == "window+CSA":
            index_heads = s.integer("index_n_heads", 1, MAX_COUNT)
            index_width, top = s.integer("index_head_dim", 1, MAX_WIDTH), s.integer("index_topk", 1, 10**9)
            if not (index_heads and index_width and top):
                return None
            indexer = SparseIndexer(index_heads, index_width, top)
        streams = e.integer("hyper_connection_streams", 1, 1000) or 1
        return CompressedAttention(heads, width, q, o, groups, window, ratio, indexer, streams)

    def _state_mixer(self, name: str, layer: Fields) -> Mixer | None:
        """A mixer that keeps a state, alone or composed; None for another name or where no dimensions are given."""
        if name not in (*STATE_NAMES, PARALLEL, SHARED):
            return None
        where = layer if layer.has("linear") else self.fields
        key = "linear" if layer.has("linear") else "linear_layers"
        data = where.object(key)
        if not data:
            return OtherMixer(name, {"missing": "linear_layers"})
        linear = Fields(data, where.at(key), list(data))
        state = read_state_mixer(name, linear, self.fields.text("hf_model_type", 200))
        if isinstance(state, Mamba2):
            if name == SHARED:
                return SharedBlockThenMixer(read_shared_block(layer), state)
            if name == PARALLEL:
                if not layer.has("mlp_intermediate") and not self.fields.has("intermediate_size"):
                    return OtherMixer(name, {"missing": "the width of the MLP"})
                return ParallelMixers(self._attention(layer, "hybrid"), state)
        return state

    def _stack_attention(self, layer: Fields) -> Attention:
        """Attention of an encoder-decoder's layer: as stated there, or by the model's own fields."""
        f = self.fields
        heads = layer.integer("heads", 1, MAX_COUNT) or f.integer("num_attention_heads", 1, MAX_COUNT)
        head_dim = layer.integer("head_dim", 1, MAX_WIDTH) or f.integer("head_dim", 1, MAX_WIDTH)
        if heads is None or head_dim is None:
            raise f.fail("num_attention_heads", "is missing: give the number of heads, and head_dim")
        return Attention(
            heads,
            heads,
            head_dim,
            head_dim,
            q_bias=self.bias["q"],
            k_bias=self.bias["k"],
            v_bias=self.bias["v"],
            o_bias=self.bias["o"],
        )

    def _gated_output(self, layer: Fields) -> bool:
        """Attention beside gated delta nets has an output gate, unless the layer says otherwise."""
        stated = layer.flag("output_gate")
        if stated is not None:
            return stated
        return (self.fields.object("linear_layers") or {}).get("type") == "gated_deltanet"

    def _attention(self, layer: Fields, model_kind: str) -> Attention:
        layer.require("heads", "give the number of query heads")
        layer.require("head_dim", "give the width of a head")
        heads = layer.integer("heads", 1, MAX_COUNT) or 0
        kv_heads = layer.integer("kv_heads", 1, MAX_COUNT)
        if kv_heads is None:
            kv_heads = int(self.assume("kv_heads of a layer group", heads))
        _check_heads(heads, kv_heads, layer.at("kv_heads"))
        head_dim = layer.integer("head_dim", 1, MAX_WIDTH) or 0
        kind = layer.choice("kind", ATTENTION_KINDS)
        if kind is None:
            kind = "full" if model_kind != "encoder" else "bidirectional"
        window = layer.integer("window", 1, 10**9)
        if kind in ("sliding", "chunked") and window is None:
            raise layer.fail("window", f"is missing: {kind} attention has a window of so many tokens")
        flags = {key: layer.flag(key) for key in ("q_bias", "k_bias", "v_bias", "o_bias", "sinks")}
        qk_norm = cast(
            Literal["head", "full"] | None, layer.choice("qk_norm", ("head", "full", "none")) or self.qk_norm
        )
        return Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=layer.integer("v_head_dim", 1, MAX_WIDTH) or head_dim,
            kind=cast(AttentionKind, kind),
            window=window,
            q_bias=self.bias["q"] if flags["q_bias"] is None else flags["q_bias"],
            k_bias=self.bias["k"] if flags["k_bias"] is None else flags["k_bias"],
            v_bias=self.bias["v"] if flags["v_bias"] is None else flags["v_bias"],
            o_bias=self.bias["o"] if flags["o_bias"] is None else flags["o_bias"],
            qk_norm=None if layer.data.get("qk_norm") == "none" else qk_norm,
            own_kv=not (layer.flag("kv_from_other_layer") or False),
            sinks=self.sinks if flags["sinks"] is None else flags["sinks"],
            v_from_k=layer.flag("v_from_k") or False,
            indexer=self._indexer(layer),
            output_gate=self._gated_output(layer),
        )

    def _latent(self, heads: int, mla: Fields) -> LatentAttention:
        for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            mla.require(key, "latent attention needs it")
        mla.integer("cached_elements_per_token_per_layer", 1, MAX_WIDTH)
        return LatentAttention(
            heads=heads,
            kv_lora_rank=mla.integer("kv_lora_rank", 1, MAX_WIDTH) or 0,
            qk_nope_head_dim=mla.integer("qk_nope_head_dim", 1, MAX_WIDTH) or 0,
            qk_rope_head_dim=mla.integer("qk_rope_head_dim", 0, MAX_WIDTH) or 0,
            v_head_dim=mla.integer("v_head_dim", 1, MAX_WIDTH) or 0,
            q_lora_rank=mla.integer("q_lora_rank", 1, MAX_WIDTH),
        )

    def _indexer(self, layer: Fields) -> SparseIndexer | None:
        if not layer.has("indexer"):
            return None
        part = Fields(layer.data["indexer"], layer.at("indexer"), _INDEXER)
        for key in ("heads", "head_dim", "top_keys"):
            part.require(key, "an indexer needs it")
        counted = part.flag("counted")
        return SparseIndexer(
            heads=part.integer("heads", 1, MAX_COUNT) or 0,
            head_dim=part.integer("head_dim", 1, MAX_WIDTH) or 0,
            top_keys=part.integer("top_keys", 1, 10**9) or 0,
            counted=True if counted is None else counted,
        )

    def _indexer_layers(self) -> tuple[int, SparseIndexer] | None:
        """How many layers have an indexer, from `sparse_attention`; the two kinds of the catalogue are known."""
        sparse = self.fields.object("sparse_attention")
        if not sparse:
            return None
        loc = self.fields.at("sparse_attention")
        part = Fields(sparse, loc, list(sparse))
        count = part.integer("layers_with_indexer", 1, MAX_COUNT)
        if count is None:
            return None
        kind = part.text("type", 100) or ""
        if kind == "DSA":
            return count, SparseIndexer(
                part.integer("index_n_heads", 1, MAX_COUNT) or 1,
                part.integer("index_head_dim", 1, MAX_WIDTH) or 1,
                part.integer("index_topk", 1, 10**9) or 1,
            )
        if kind.startswith("block-sparse"):
            blocks = part.integer("topk_blocks", 1, MAX_WIDTH) or 1
            keys = blocks * (part.integer("block_size", 1, MAX_WIDTH) or 1)
            return count, SparseIndexer(
                part.integer("num_index_heads", 1, MAX_COUNT) or 1,
                part.integer("index_dim", 1, MAX_WIDTH) or 1,
                keys,
                counted=False,
            )
        return None

    def _mlp(self, layer: Fields, mixer: Mixer | None) -> Mlp | None:
        name = layer.choice("mlp", MLPS)
        if name is None:
            has = layer.has("mlp_intermediate") or self.fields.has("intermediate_size")
            name = "moe" if layer.has("moe") or (self.has_moe and not layer.has("mlp_intermediate")) else "dense"
            if name == "dense" and not has:
                raise layer.fail("mlp", f"is missing: use one of {', '.join(MLPS)}")
        if name == "none":
            return None
        width = layer.integer("mlp_intermediate", 1, MAX_WIDTH)
        if name in ("moe", "dense+moe"):
            where = layer if layer.has("moe") else self.fields
            if not where.has("moe"):
                raise layer.fail("moe", "is missing: give num_experts, top_k and expert_intermediate_size")
            if name == "dense+moe" and width is None:
                raise layer.fail("mlp_intermediate", "is missing: give the width of the dense MLP beside the experts")
            moe = Fields(where.data["moe"], where.at("moe"), _MOE)
            return self._moe(moe, width or 0 if name == "dense+moe" else 0)
        width = width or self.fields.integer("intermediate_size", 1, MAX_WIDTH)
        if name == "rwkv_ffn" and width is not None:
            return RwkvFfn(width)
        if width is None:
            if isinstance(mixer, OtherMixer):
                return None  # the layer cannot be estimated anyway; the record keeps what is known
            raise layer.fail("mlp_intermediate", "is missing: give the width of the MLP")
        gated, bias = layer.flag("mlp_gated"), layer.flag("mlp_bias")
        return DenseMlp(
            width,
            self.gated if gated is None else gated,
            self.bias["mlp"] if bias is None else bias,
        )

    def _moe(self, moe: Fields, dense_width: int) -> MoeMlp:
        for key in ("num_experts", "top_k", "expert_intermediate_size"):
            moe.require(key, "a mixture of experts needs it")
        experts = moe.integer("num_experts", 1, MAX_COUNT) or 0
        top_k = moe.integer("top_k", 1, MAX_COUNT) or 0
        if top_k > experts:
            raise moe.fail("top_k", f"is {top_k}, above num_experts {experts}")
        width = moe.integer("expert_intermediate_size", 1, MAX_WIDTH) or 0
        shared = moe.integer("num_shared_experts", 0, MAX_COUNT) or 0
        shared_width = moe.integer("shared_intermediate_size", 0, MAX_WIDTH) or 0
        if shared and not shared_width:
            shared_width = int(self.assume("moe.shared_intermediate_size", shared * width))
        moe.integer("first_dense_layers", 0, MAX_COUNT)
        moe.integer("dense_intermediate_size", 1, MAX_WIDTH)
        moe.text("moe_layer_pattern")
        router = moe.text("router_type", 200) or ""
        router_bias, expert_bias = moe.flag("router_bias"), moe.flag("expert_bias")
        gate, gated = moe.flag("shared_expert_gate"), moe.flag("mlp_gated")
        return MoeMlp(
            experts=experts,
            top_k=top_k,
            expert_intermediate=width,
            shared_experts=shared,
            shared_intermediate=shared_width if shared else 0,
            gated=self.gated if gated is None else gated,
            router_bias=self.bias["router"] or "_bias" in router if router_bias is None else router_bias,
            expert_bias=self.bias["mlp"] if expert_bias is None else expert_bias,
            dense_intermediate=dense_width,
            shared_expert_gate="gated shared expert" in router if gate is None else gate,
            latent_size=moe.integer("latent_size", 1, MAX_WIDTH),
        )


def _is_rwkv7(mixer: Mixer | None) -> bool:
    return isinstance(mixer, Rwkv7)


def _check_heads(heads: int, kv_heads: int, loc: Loc) -> None:
    if kv_heads > heads or heads % kv_heads:
        raise InvalidInput(loc, f"{kv_heads} KV heads do not divide {heads} query heads")


def _with_indexers(groups: list[LayerGroup], indexers: tuple[int, SparseIndexer] | None) -> list[LayerGroup]:
    """Give `count` layers an indexer, from the last layer backwards: the dense layers come first in every model
    that has both. Which of the others lack one does not change any sum."""
    if indexers is None:
        return groups
    left, indexer = indexers
    made: list[LayerGroup] = []
    for group in reversed(groups):
        if left <= 0 or not isinstance(group.mixer, (Attention, LatentAttention)) or group.mixer.indexer:
            made.append(group)
            continue
        with_it = min(left, group.count)
        left -= with_it
        mixer = replace(group.mixer, indexer=indexer)
        made.append(
            replace(group, count=with_it, mixer=mixer, first_index=group.first_index + group.count - with_it)
            if with_it < group.count
            else replace(group, mixer=mixer)
        )
        if with_it < group.count:
            made.append(replace(group, count=group.count - with_it))
    return made[::-1]


# -- writing --------------------------------------------------------------------------------------------------------


def _built(model: ModelSpec) -> dict[str, Any]:
    positions: dict[str, Any] = {} if model.rotary or model.relative_positions else {"position_embedding": "none"}
    if model.learned_positions:
        offset = model.learned_positions == (model.max_position or 0) + 2
        positions = {"position_embedding": "learned (+2 offset rows)" if offset else "learned"}
        if not offset:
            positions["max_position"] = model.learned_positions
    data: dict[str, Any] = {
        "id": model.id,
        "name": model.name,
        "family": model.family,
        "kind": model.kind,
        "release_year": model.release_year,
        "hf_id": model.hf_id,
        "hf_model_type": model.hf_model_type,
        "hidden_size": model.hidden_size or None,
        "num_layers": model.num_layers or None,
        "vocab_size": model.vocab_size or None,
        "mlp_gated": True,
        "activation": model.activation,
        "norm": model.norm,
        "norms_per_layer": 2,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": False,
        "bias_detail": {"qkv": False, "o": False, "mlp": False, "lm_head": model.lm_head_bias},
        "max_position": model.max_position,
        "embedding_norm": True if model.embedding_norm and model.kind == "decoder" else None,
        **_word_encoder_json(model),
        "parallel_block": model.parallel_block,
        **positions,
        "layers": [_layer(group) for group in model.layers],
        "vision": {"params_computed": model.tower_params} if model.tower_params else None,
        "extra_params": {"undescribed": model.undescribed} if model.undescribed else None,
        "published_total_params": model.published_total_params,
        "published_active_params": model.published_active_params,
        "computed_total_params": model.recorded_total_params,
        "computed_active_params": model.recorded_active_params,
        "aliases": list(model.aliases),
        "copied_from": model.copied_from,
        "weights_stored_as": model.weights_stored_as,
    }
    return {key: value for key, value in data.items() if value is not None}


def _word_encoder_json(model: ModelSpec) -> dict[str, Any]:
    """What a BERT-like encoder has at its ends."""
    if model.kind != "encoder" or model.front or not (model.vocab_size and model.learned_positions):
        return {}
    return {"token_types": model.token_types, "pooling": model.pooling or "none"}


def _layer(group: LayerGroup) -> dict[str, Any]:
    return {
        "count": group.count,
        **_mixer_json(group.mixer),
        **_mlp_json(group.mlp),
        "norms": group.norms,
        "first_index": group.first_index,
    }


def _indexer_json(indexer: SparseIndexer | None) -> dict[str, Any]:
    if indexer is None:
        return {}
    return {
        "indexer": {
            "heads": indexer.heads,
            "head_dim": indexer.head_dim,
            "top_keys": indexer.top_keys,
            "counted": indexer.counted,
        }
    }


def _mixer_json(mixer: Mixer | None) -> dict[str, Any]:
    if mixer is None:
        return {"mixer": "none"}
    if isinstance(mixer, OtherMixer):
        return {"mixer": mixer.name, **copy.deepcopy(dict(mixer.detail))}
    if isinstance(mixer, CompressedAttention):
        return _compressed_json(mixer)
    if isinstance(mixer, STATE_MIXERS):
        name, linear = state_mixer_json(mixer)
        return {"mixer": name, "linear": linear}
    if isinstance(mixer, ParallelMixers):
        own = {k: v for k, v in _mixer_json(mixer.attention).items() if k != "mixer"}
        return {"mixer": PARALLEL, **own, "linear": state_mixer_json(mixer.state)[1]}
    if isinstance(mixer, SharedBlockThenMixer):
        linear = state_mixer_json(mixer.mixer)[1]
        return {"mixer": SHARED, "linear": linear, "shared_block": dict(shared_block_json(mixer.block))}
    if isinstance(mixer, SelfAndCrossAttention):
        return {"mixer": DECODER_SELF_CROSS, "heads": mixer.own.heads, "head_dim": mixer.own.head_dim}
    if isinstance(mixer, LatentAttention):
        mla = {
            "q_lora_rank": mixer.q_lora_rank,
            "kv_lora_rank": mixer.kv_lora_rank,
            "qk_nope_head_dim": mixer.qk_nope_head_dim,
            "qk_rope_head_dim": mixer.qk_rope_head_dim,
            "v_head_dim": mixer.v_head_dim,
        }
        gate = {"output_gate": True} if mixer.output_gate else {}
        return {"mixer": "mla", "heads": mixer.heads, "mla": mla, **gate, **_indexer_json(mixer.indexer)}
    data: dict[str, Any] = {
        "mixer": "gqa",
        "kind": mixer.kind,
        "heads": mixer.heads,
        "kv_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "v_head_dim": mixer.v_head_dim,
        "qk_norm": mixer.qk_norm or "none",
        "q_bias": mixer.q_bias,
        "k_bias": mixer.k_bias,
        "v_bias": mixer.v_bias,
        "o_bias": mixer.o_bias,
        "sinks": mixer.sinks,
        "v_from_k": mixer.v_from_k,
        "kv_from_other_layer": not mixer.own_kv,
        **({"output_gate": True} if mixer.output_gate else {}),
        **_indexer_json(mixer.indexer),
    }
    if mixer.window is not None:
        data["window"] = mixer.window
    return data


def _compressed_json(mixer: CompressedAttention) -> dict[str, Any]:
    """Only what stands in the layer: ranks and ratios belong to the model."""
    kind = "window" if not mixer.ratio else "window+HCA" if mixer.indexer is None else "window+CSA"
    shape = {"kind": kind, "window": mixer.window, "heads": mixer.heads, "kv_heads": 1, "head_dim": mixer.head_dim}
    return {"mixer": "v4_shared_kv", **shape}


def _mlp_json(mlp: Mlp | None) -> dict[str, Any]:
    if mlp is None:
        return {"mlp": "none"}
    if isinstance(mlp, RwkvFfn):
        return {"mlp": "rwkv_ffn", "mlp_intermediate": mlp.intermediate}
    if isinstance(mlp, DenseMlp):
        return {
            "mlp": "dense",
            "mlp_intermediate": mlp.intermediate,
            "mlp_gated": mlp.gated,
            "mlp_bias": mlp.bias,
        }
    moe: dict[str, Any] = {
        "num_experts": mlp.experts,
        "top_k": mlp.top_k,
        "expert_intermediate_size": mlp.expert_intermediate,
        "num_shared_experts": mlp.shared_experts,
        "shared_intermediate_size": mlp.shared_intermediate,
        "router_bias": mlp.router_bias,
        "expert_bias": mlp.expert_bias,
        "shared_expert_gate": mlp.shared_expert_gate,
        "mlp_gated": mlp.gated,
    }
    if mlp.latent_size is not None:
        moe["latent_size"] = mlp.latent_size
    if mlp.dense_intermediate:
        return {"mlp": "dense+moe", "mlp_intermediate": mlp.dense_intermediate, "moe": moe}
    return {"mlp": "moe", "moe": moe}
