"""Decoders made of attention and MLPs: what each family's code does that its configuration does not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.catalog.hf import experts as moe
from app.catalog.hf import windows
from app.catalog.hf.config import (
    HEAD_DIM,
    INTERMEDIATE,
    KV_HEADS,
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_WIDTH,
    Config,
)
from app.catalog.hf.draft import Draft, LayerJson, attention_layer, dense_mlp

_DEFAULT = "the default of its class in transformers"


@dataclass(frozen=True, slots=True)
class If:
    """A property that a field of the configuration switches, with the family's default."""

    field: str
    default: bool
    invert: bool = False

    def read(self, config: Config) -> bool:
        stated = config.flag_or(self.field, self.default)
        return stated != self.invert


Switch = bool | If


def switched(switch: Switch, config: Config) -> bool:
    return switch.read(config) if isinstance(switch, If) else switch


@dataclass(frozen=True, slots=True)
class Decoder:
    """A family of decoders. Every property is that of the family's code in transformers, unless a field says more.

    `tied` is the class's default of `tie_word_embeddings`. `kv_heads`: "heads" when the field is absent, "field"
    when it must be there, or a number. `intermediate`: what an absent width means: None (must be there) or the factor
    of the hidden size. `qk_norm` may be a function of the configuration. `sinks`: one learned logit a head.
    """

    gated: bool = True
    norm: str = "rmsnorm"
    norms: int = 2
    tied: bool = False
    qkv_bias: Switch = False
    o_bias: Switch = False
    mlp_bias: Switch = False
    lm_head_bias: Switch = False
    qk_norm: str | Callable[[Config], str | None] | None = None
    parallel: Switch = False
    position: str = "rope"
    head_dim: int | None = None
    kv_heads: int | None = None
    intermediate: int | None = None
    width_names: tuple[str, ...] = INTERMEDIATE
    activation: str | None = None
    spans: windows.Spans = windows.all_full
    experts: moe.Experts | None = None
    sinks: bool = False
    kind: str | None = None

    def __call__(self, config: Config) -> Draft:
        return self.draft(config, self.layers(config))

    def layers(self, config: Config) -> list[LayerJson]:
        """One entry for each layer."""
        count = config.layers()
        attention = self.attention(config)
        spans = self.spans(config, count)
        mlps = self.mlps(config, count)
        return [
            {**attention, "kind": kind, **({} if window is None else {"window": window}), **mlp}
            for (kind, window), mlp in zip(spans, mlps, strict=True)
        ]

    def attention(self, config: Config) -> dict[str, Any]:
        """The attention that all layers share, apart from their windows."""
        heads = config.heads()
        kv_heads = config.integer(KV_HEADS, 1, MAX_HEADS)
        if kv_heads is None:
            kv_heads = int(
                config.filled("num_key_value_heads", heads, "one for each query head")
                if self.kv_heads is None
                else config.filled("num_key_value_heads", self.kv_heads, _DEFAULT)
            )
        check_heads(config, heads, kv_heads)
        head_dim = read_head_dim(config, heads, self.head_dim)
        qkv = switched(self.qkv_bias, config)
        return attention_layer(
            heads,
            kv_heads,
            head_dim,
            qkv_bias=(qkv, qkv, qkv),
            o_bias=switched(self.o_bias, config),
            qk_norm=self.qk_norm(config) if callable(self.qk_norm) else self.qk_norm,
            sinks=self.sinks,
        )

    def mlps(self, config: Config, count: int) -> list[LayerJson]:
        """The MLP of each layer."""
        sparse = [False] * count
        mixture: dict[str, Any] = {}
        if self.experts is not None:
            sparse = (self.experts.mask or moe.everywhere)(config, count)
            if any(sparse):
                mixture = {"mlp": "moe", "moe": self.experts.read(config, self.gated)}
        dense: dict[str, Any] = {}
        if not all(sparse):
            dense = dense_mlp(self.dense_width(config), gated=self.gated, bias=switched(self.mlp_bias, config))
        return [mixture if flag else dense for flag in sparse]

    def dense_width(self, config: Config) -> int:
        width = config.integer(self.width_names)
        if width is None and self.intermediate is not None:
            width = config.hidden() * self.intermediate
            config.filled(self.width_names[0], width, f"{self.intermediate} times the hidden size")
        return config.needed(self.width_names, "the width of the MLP") if width is None else width

    def _usual_activation(self, config: Config) -> str:
        usual = self.activation or ("silu" if self.gated else "gelu")
        return str(config.filled("hidden_act", usual, _DEFAULT))

    def draft(self, config: Config, layers: Sequence[LayerJson]) -> Draft:
        """The model around its layers."""
        has_experts = any(layer.get("mlp") in ("moe", "dense+moe") for layer in layers)
        position, longest = self.position, config.positions()
        if position.startswith("learned") and longest is None:
            raise config.fail("max_position_embeddings", "is missing: a learned position table has that many rows")
        draft = Draft(
            kind=self.kind or ("moe" if has_experts else "decoder"),
            hidden=config.hidden(),
            vocab=config.vocab(),
            layers=list(layers),
            norm=self.norm,
            norms_per_layer=self.norms,
            gated=self.gated,
            tied=read_tied(config, self.tied),
            lm_head_bias=switched(self.lm_head_bias, config),
            parallel_block=switched(self.parallel, config),
            position_embedding=position,
            max_position=longest,
            activation=config.activation() or self._usual_activation(config),
        )
        predicted = config.integer(
            ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers"), 0, MAX_LAYERS
        )
        if predicted:
            draft.facts["mtp"] = {"layers": predicted}
            config.assume(f"{predicted} multi-token-prediction layer(s) are described and not counted with the model")
        return draft


def read_tied(config: Config, default: bool) -> bool:
    """`tie_word_embeddings`, else the class's default, which is listed."""
    return config.flag_or("tie_word_embeddings", default)


def read_head_dim(config: Config, heads: int, default: int | None = None) -> int:
    """The width of a head: stated, the class's default, or the hidden size divided among the heads."""
    head_dim = config.integer(HEAD_DIM, 1, MAX_WIDTH)
    if head_dim is not None:
        return head_dim
    if default is not None:
        return int(config.filled("head_dim", default, _DEFAULT))
    hidden = config.hidden()
    if hidden % heads:
        raise config.fail("head_dim", f"is missing, and the hidden size {hidden} does not divide by {heads} heads")
    return int(config.filled("head_dim", hidden // heads, f"hidden size {hidden} over {heads} heads"))


def check_heads(config: Config, heads: int, kv_heads: int) -> None:
    if kv_heads > heads or heads % kv_heads:
        raise config.fail("num_key_value_heads", f"{kv_heads} KV heads do not divide {heads} query heads")


def bias_of_attention(default: bool = False, o: bool = True) -> dict[str, Any]:
    """Llama's `attention_bias`: it covers all four projections (with `o` false: not the output)."""
    switch = If("attention_bias", default)
    return {"qkv_bias": switch, "o_bias": switch if o else False}


# -- families with reading of their own -------------------------------------------------------------------------------


def deepseek(config: Config, value_width: int | None = None, tied: bool = False) -> Draft:
    """DeepSeek-V2, V3, V3.2, Kimi K2, GLM-5: latent attention, experts after the first layers.

    `value_width` is that of a family that derives it; elsewhere `v_head_dim` has to be there. `tied` is its default.
    """
    heads, count = config.heads(), config.layers()
    if config.flag_or("attention_bias", False, quiet=True):
        raise config.fail("attention_bias", "is true: biases of latent attention are not known here")
    latent = {
        name: config.needed(name, "a dimension of latent attention")
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    }
    latent["v_head_dim"] = value_width or config.needed("v_head_dim", "a dimension of latent attention")
    query_rank = config.integer("q_lora_rank")
    attention: dict[str, Any] = {"mixer": "mla", "heads": heads, "mla": {"q_lora_rank": query_rank, **latent}}
    chooser: dict[str, Any] = {}
    if config.has("index_topk", "index_n_heads"):
        index_heads = config.needed("index_n_heads", "the heads of the indexer", high=MAX_HEADS)
        index_dim = config.needed("index_head_dim", "the head width of the indexer")
        top = config.needed("index_topk", "how many keys the indexer picks", high=MAX_TOKENS)
        chooser = {"indexer": {"heads": index_heads, "head_dim": index_dim, "top_keys": top}}
    family = Decoder(
        experts=moe.Experts(
            shared=("n_shared_experts",),
            router=_deepseek_router(config),
            router_bias=lambda c: c.text("topk_method") == "noaux_tc",
            mask=moe.after_first,
        ),
        tied=tied,
    )
    mlps = family.mlps(config, count) if config.has("n_routed_experts") else Decoder().mlps(config, count)
    indexed = _indexed_layers(config, count) if chooser else [False] * count
    draft = family.draft(
        config,
        [{**attention, **(chooser if flag else {}), **mlp} for flag, mlp in zip(indexed, mlps, strict=True)],
    )
    if chooser:
        draft.facts["sparse_attention"] = {
            "type": "trained sparse attention",
            "index_n_heads": chooser["indexer"]["heads"],
            "index_head_dim": chooser["indexer"]["head_dim"],
            "index_topk": chooser["indexer"]["top_keys"],
        }
    return draft


def bloom(config: Config) -> Draft:
    """BLOOM: GPT-2's layers with ALiBi, and a norm behind the embedding."""
    family = Decoder(
        gated=False,
        norm="layernorm",
        tied=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        position="alibi",
        intermediate=4,
        activation="gelu",
    )
    draft = family(config)
    draft.facts["embedding_norm"] = True
    return draft


def minicpm(config: Config) -> Draft:
    """MiniCPM: a Llama with a tied head; the third generation has latent attention."""
    if config.has("kv_lora_rank"):
        # its files leave out the width of a value: the class divides the hidden size over the heads
        wide = config.integer_or("v_head_dim", config.hidden() // config.heads(), "the hidden size over the heads")
        return deepseek(config, wide, tied=True)
    return Decoder(**bias_of_attention(), tied=True)(config)


def _indexed_layers(config: Config, count: int) -> list[bool]:
    """Layers with an indexer of their own: all, unless `indexer_types` (GLM-5.2) says that some share another's."""
    kinds = config.texts("indexer_types", ("full", "shared"), count)
    return [True] * count if kinds is None else [kind == "full" for kind in kinds]


def _deepseek_router(config: Config) -> str:
    scoring = config.text("scoring_func") or "softmax"
    if config.text("topk_method") == "noaux_tc":
        return f"{scoring} with a bias for balance"
    groups = config.integer("n_group", 0, MAX_LAYERS) or 0
    return f"{scoring}, group limited" if groups > 1 else scoring


def llama4(config: Config) -> Draft:
    """Llama 4: `intermediate_size` is the experts' width, `intermediate_size_mlp` that of dense layers."""
    family = Decoder(
        **bias_of_attention(),
        width_names=("intermediate_size_mlp",),
        spans=windows.chunked,
        kind="moe",
        experts=moe.Experts(
            width=("intermediate_size",),
            always_shared=1,
            router="sigmoid",
            top_k_default=1,
            mask=moe.interleaved,
        ),
    )
    if config.flag_or("use_qk_norm", False, quiet=True):
        config.assume("use_qk_norm: Llama 4 normalises queries and keys without learned gains")
    draft = family(config)
    draft.facts["intermediate_size"] = config.integer("intermediate_size")
    return draft


def gemma(config: Config) -> Draft:
    """Gemma: transformers reads `hidden_activation` and ignores the older `hidden_act`."""
    draft = Decoder(**bias_of_attention(), tied=True, head_dim=256)(config)
    draft.activation = config.text("hidden_activation") or str(
        config.filled("hidden_activation", "gelu_pytorch_tanh", "the default of its class in transformers")
    )
    return draft


def gpt_oss(config: Config) -> Draft:
    """gpt-oss: one learned sink a head, biases also in the router and the experts, a clamped SwiGLU."""
    draft = Decoder(
        **bias_of_attention(True), head_dim=64, kv_heads=8, spans=windows.every(2, 128), sinks=True,
        experts=moe.Experts(
            width=("intermediate_size",), router="top-k, then softmax", router_bias=True, expert_bias=True,
            top_k_default=4,
        ),
    )(config)  # fmt: skip
    if config.has("swiglu_limit"):
        draft.activation = "swiglu_clamped"
    return draft


def gemma4(config: Config) -> Draft:
    """Gemma 4: two head widths, keys that serve as values, experts beside a dense MLP, shared caches."""
    family = Decoder(
        **bias_of_attention(), norms=4, tied=True, qk_norm="head", head_dim=256, spans=windows.every(6, 512)
    )
    base, count = family.attention(config), config.layers()
    spans = family.spans(config, count)
    wide = config.integer("global_head_dim") or base["head_dim"]
    k_is_v = config.flag_or("attention_k_eq_v", False, quiet=True)
    kv_full = config.integer("num_global_key_value_heads", 1, MAX_HEADS) if k_is_v else None
    shared = config.integer("num_kv_shared_layers", 0, count) or 0
    width = family.dense_width(config)
    mixture: dict[str, Any] = {}
    if config.flag_or("enable_moe_block", False, quiet=True):
        mixture = {"mlp": "dense+moe", "moe": moe.Experts().read(config, True)}
    double = config.flag_or("use_double_wide_mlp", False, quiet=True)
    layers: list[LayerJson] = []
    for index, (kind, window) in enumerate(spans):
        layer = {**base, "kind": kind}
        if window is not None:
            layer["window"] = window
        if kind == "full":
            layer |= {"head_dim": wide, "v_head_dim": wide, "kv_heads": kv_full or base["kv_heads"]}
            check_heads(config, base["heads"], layer["kv_heads"])
            if k_is_v:
                layer["v_from_k"] = True
        borrowed = index >= count - shared
        if borrowed:
            layer["kv_from_other_layer"] = True
        layers.append({**layer, **dense_mlp(width * 2 if double and borrowed else width), **mixture})
    draft = family.draft(config, layers)
    per_layer = config.integer("hidden_size_per_layer_input", 0)
    if per_layer:
        rows = config.integer_or("vocab_size_per_layer_input", draft.vocab, "the vocabulary's size", high=10**8)
        table = rows * per_layer * count
        draft.facts["extra_params"] = {"per_layer_embeddings": table, "per_layer_input_size": per_layer}
    return draft


def gpt2(config: Config) -> Draft:
    """GPT-2 and the GPT-BigCode variant with one KV head."""
    multi_query = config.flag_or("multi_query", False, quiet=True)
    return _learned(1 if multi_query else None)(config)


def gpt_bigcode(config: Config) -> Draft:
    """SantaCoder and StarCoder: GPT-2 with `multi_query`, which is the class's default."""
    return _learned(1 if config.flag_or("multi_query", True) else None)(config)


def _learned(kv_heads: int | None) -> Decoder:
    return Decoder(
        gated=False, norm="layernorm", tied=True, qkv_bias=True, o_bias=True, mlp_bias=True, position="learned",
        kv_heads=kv_heads, intermediate=4, activation="gelu_new",
    )  # fmt: skip


def opt(config: Config) -> Draft:
    """OPT: a position table with two rows more than positions; OPT-350M has a narrower embedding."""
    bias = If("enable_bias", True).read(config) if config.has("enable_bias") else True
    family = Decoder(
        gated=False, norm="layernorm", tied=True, qkv_bias=bias, o_bias=bias, mlp_bias=bias,
        position="learned (+2 offset rows)", activation="relu",
    )  # fmt: skip
    draft = family(config)
    width = config.integer("word_embed_proj_dim")
    if width is not None and width != draft.hidden:
        draft.facts["extra_params"] = {"undescribed": f"an embedding of width {width} with projections to and from it"}
    return draft


def falcon(config: Config) -> Draft:
    """Falcon of both generations: one or several KV heads, one or two norms, attention and MLP in parallel or not."""
    heads = config.heads()
    new = config.flag_or("new_decoder_architecture", config.text("model_type") == "RefinedWeb", quiet=True)
    stated = config.integer(("num_kv_heads", "n_head_kv"), 1, MAX_HEADS)
    if new:
        kv_heads = heads if stated is None else stated
    else:
        kv_heads = 1 if config.flag_or("multi_query", True) else heads
    check_heads(config, heads, kv_heads)
    parallel = config.flag_or("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", 1, 2) or (2 if new else 1)
    bias = config.flag_or("bias", False)
    family = Decoder(
        gated=False, norm="layernorm", norms=norms if parallel or new else 2, tied=True, mlp_bias=bias,
        parallel=parallel or new, position="alibi" if config.flag_or("alibi", False, quiet=True) else "rope",
        intermediate=4, activation="gelu",
    )  # fmt: skip
    attention = attention_layer(heads, kv_heads, read_head_dim(config, heads), qkv_bias=(bias, bias, bias), o_bias=bias)
    return family.draft(config, [{**attention, **mlp} for mlp in family.mlps(config, config.layers())])


def mpt(config: Config) -> Draft:
    """MPT: attention settings in `attn_config`, no biases unless `no_bias` is false."""
    heads, hidden, count = config.heads(), config.hidden(), config.layers()
    inner = config.within("attn_config") or Config({}, config.at("attn_config"), config.assumptions)
    kind = inner.text("attn_type") or "multihead_attention"
    grouped = inner.integer("kv_n_heads", 1, MAX_HEADS)
    kv_heads = {"multihead_attention": heads, "multiquery_attention": 1, "grouped_query_attention": grouped}.get(kind)
    if kv_heads is None:
        raise inner.fail("attn_type", f"{kind!r} is not known, or needs kv_n_heads")
    check_heads(config, heads, kv_heads)
    bias = not config.flag_or("no_bias", True, quiet=True)
    alibi = inner.flag_or("alibi", config.flag_or("alibi", True, quiet=True))
    width = round(hidden * config.factor("expansion_ratio", 4))
    family = Decoder(
        gated=False, norm="layernorm" if bias else "layernorm_nobias", tied=True,
        position="alibi" if alibi else "learned", activation="gelu",
    )  # fmt: skip
    norm = "full" if inner.flag_or("qk_ln", False, quiet=True) else None
    attention = attention_layer(
        heads, kv_heads, read_head_dim(config, heads), qkv_bias=(bias, bias, bias), o_bias=bias, qk_norm=norm
    )
    return family.draft(config, [{**attention, **dense_mlp(width, gated=False, bias=bias)}] * count)


def dbrx(config: Config) -> Draft:
    """DBRX: `attn_config` and `ffn_config` hold the KV heads and the experts."""
    heads, count = config.heads(), config.layers()
    inner, ffn = config.within("attn_config"), config.within("ffn_config")
    if inner is None or ffn is None:
        raise config.fail("attn_config" if inner is None else "ffn_config", "is missing: DBRX states its shape there")
    kv_heads = inner.integer_or("kv_n_heads", 1, _DEFAULT, high=MAX_HEADS)
    check_heads(config, heads, kv_heads)
    family = Decoder(norm="layernorm_nobias", activation="silu")
    attention = attention_layer(heads, kv_heads, read_head_dim(config, heads))
    mixture = moe.Experts(width=("ffn_hidden_size",), top_k_default=1).read(ffn, True)
    return family.draft(config, [{**attention, "mlp": "moe", "moe": mixture}] * count)


def phi(config: Config) -> Draft:
    """Phi-1, 1.5 and 2: biases everywhere, one LayerNorm for attention and MLP in parallel."""
    norm = "head" if config.flag_or("qk_layernorm", False, quiet=True) else None
    return Decoder(
        gated=False, norm="layernorm", norms=1, qkv_bias=True, o_bias=True, mlp_bias=True, lm_head_bias=True,
        parallel=True, qk_norm=norm, intermediate=4, activation="gelu_new",
    )(config)  # fmt: skip


def gpt_neox(config: Config) -> Draft:
    """GPT-NeoX and Pythia: two LayerNorms also where attention and MLP run in parallel."""
    return Decoder(
        gated=False, norm="layernorm", qkv_bias=If("attention_bias", True), o_bias=If("attention_bias", True),
        mlp_bias=True, parallel=If("use_parallel_residual", True), activation="gelu",
    )(config)  # fmt: skip


def cohere(config: Config) -> Draft:
    """Command R: one LayerNorm without bias for attention and MLP in parallel, tied head."""
    norm = "full" if config.flag_or("use_qk_norm", False, quiet=True) else None
    return Decoder(
        **bias_of_attention(), norm="layernorm_nobias", norms=1, tied=True, parallel=True, qk_norm=norm
    )(config)  # fmt: skip


def stablelm(config: Config) -> Draft:
    """StableLM: LayerNorm; with `use_parallel_residual` one norm for both halves."""
    parallel = config.flag_or("use_parallel_residual", False)
    norm = "full" if config.flag_or("qk_layernorm", False, quiet=True) else None
    return Decoder(
        norm="layernorm",
        norms=1 if parallel else 2,
        parallel=parallel,
        qkv_bias=If("use_qkv_bias", False),
        qk_norm=norm,
    )(config)


def nemotron_nas(config: Config) -> Draft:
    """Llama-Nemotron: `block_configs` removes attention from some layers and scales each MLP."""
    heads, hidden = config.heads(), config.hidden()
    head_dim = read_head_dim(config, heads)
    blocks = config.entries("block_configs")
    if blocks is None:
        raise config.fail("block_configs", "is missing: it states each layer's shape")
    bias = config.flag_or("attention_bias", False)
    layers: list[LayerJson] = []
    for index, entry in enumerate(blocks):
        block = Config(entry, (*config.at("block_configs"), index), config.assumptions)
        attention, ffn = block.within("attention"), block.within("ffn")
        if attention is None or ffn is None:
            raise block.fail("attention" if attention is None else "ffn", "is missing")
        for part in (attention, ffn):
            if part.flag_or("replace_with_linear", False, quiet=True):
                raise part.fail("replace_with_linear", "is true: such layers are not known here")
        layer: dict[str, Any] = {"mixer": "none"}
        if not attention.flag_or("no_op", False, quiet=True):
            group = attention.needed("n_heads_in_group", "query heads for one KV head", high=MAX_HEADS)
            if heads % group:
                raise attention.fail("n_heads_in_group", f"{group} does not divide {heads} query heads")
            layer = attention_layer(heads, heads // group, head_dim, qkv_bias=(bias, bias, bias), o_bias=bias)
        mlp: dict[str, Any] = {"mlp": "none"}
        if not ffn.flag_or("no_op", False, quiet=True):
            width = int(2 * ffn.factor("ffn_mult", 1.0) * hidden / 3)
            mlp = dense_mlp(-(-width // 256) * 256)
        if layer["mixer"] == "none" and mlp["mlp"] == "none":
            raise block.fail("ffn", "is left out and so is attention: such a layer does nothing")
        layers.append({**layer, **mlp})
    return Decoder().draft(config, layers)


def mllama(config: Config) -> Draft:
    """Llama 3.2 Vision's text model: some layers attend to the picture instead of the text."""
    family = Decoder(kv_heads=8)
    layers = [dict(layer) for layer in family.layers(config)]
    crossing = config.integers("cross_attention_layers", 0, len(layers) - 1) or []
    for index in crossing:
        layers[index] |= {"kind": "cross"}
    draft = family.draft(config, list(layers))
    if crossing:
        config.assume(f"{len(set(crossing))} layers attend to the picture (cross-attention)")
    return draft


def hunyuan(config: Config) -> Draft:
    """Hunyuan: experts' numbers may be lists by layer; with `use_cla` neighbouring layers share one cache."""
    family = Decoder(
        **bias_of_attention(),
        tied=True,
        qk_norm="head" if config.flag_or("use_qk_norm", False, quiet=True) else None,
    )
    attention, count, width = family.attention(config), config.layers(), family.dense_width(config)
    share = config.integer("cla_share_factor", 1, MAX_LAYERS) or 1
    shared_cache = share > 1 and config.flag_or("use_cla", False, quiet=True)
    layers: list[LayerJson] = []
    mixed = config.flag_or("use_mixed_mlp_moe", False, quiet=True)
    experts = moe.Experts(shared=("num_shared_expert",), top_k_default=1)
    for index in range(count):
        one: dict[str, Any] = {name: _at(config, name, index) for name in _HUNYUAN_LISTS if config.has(name)}
        one.setdefault("moe_intermediate_size", width)
        if not mixed:
            one["num_shared_expert"] = 0
        here = Config(one, config.loc, config.assumptions)
        mlp: dict[str, Any] = dense_mlp(width)
        if (here.integer("num_experts", 1, MAX_EXPERTS) or 1) > 1:
            mlp = {"mlp": "moe", "moe": experts.read(here, True)}
        borrowed = {"kv_from_other_layer": True} if shared_cache and index % share else {}
        layers.append({**attention, **borrowed, **mlp})
    return family.draft(config, layers)


_HUNYUAN_LISTS = ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")


def _at(config: Config, name: str, index: int) -> object:
    value = config.data[name]
    if not isinstance(value, list):
        return value
    if len(value) <= index:
        raise config.fail(name, f"has {len(value)} entries, fewer than layers")
    return value[index]


def mimo_v2(config: Config) -> Draft:
    """MiMo-V2-Flash: windowed layers have KV heads and sinks of their own; values are narrower than keys."""
    family = Decoder(experts=moe.Experts(router="sigmoid with a bias for balance", router_bias=True))
    count, heads = config.layers(), config.heads()
    pattern = config.integers("hybrid_layer_pattern", 0, 1, count)
    if pattern is None:
        raise config.fail("hybrid_layer_pattern", "is missing: it says which layers have a window")
    window = config.needed(("sliding_window", "sliding_window_size"), "the window", high=MAX_TOKENS)
    forms = []
    for prefix, sinks in (("", "add_full_attention_sink_bias"), ("swa_", "add_swa_attention_sink_bias")):
        own_heads = config.integer(f"{prefix}num_attention_heads", 1, MAX_HEADS) or heads
        kv_heads = config.needed(f"{prefix}num_key_value_heads", "the KV heads", high=MAX_HEADS)
        check_heads(config, own_heads, kv_heads)
        head_dim = config.needed(f"{prefix}head_dim", "the width of a head")
        v_head_dim = config.integer(f"{prefix}v_head_dim") or head_dim
        forms.append(
            attention_layer(
                own_heads, kv_heads, head_dim, v_head_dim=v_head_dim, sinks=config.flag_or(sinks, bool(prefix))
            )
        )
    masks = moe.Experts(
        router="sigmoid with a bias for balance",
        router_bias=True,
        shared=("n_shared_experts",),
        mask=moe.after_first,
    )
    mlps = Decoder(experts=masks).mlps(config, count)
    layers = [
        {**forms[local], **({"kind": "sliding", "window": window} if local else {}), **mlp}
        for local, mlp in zip(pattern, mlps, strict=True)
    ]
    return family.draft(config, layers)


def chatglm(config: Config) -> Draft:
    """ChatGLM2, 3 and GLM-4-9B in their own format."""
    heads = config.heads()
    grouped = config.flag_or("multi_query_attention", False, quiet=True)
    kv_heads = config.needed("multi_query_group_num", "the KV heads", high=MAX_HEADS) if grouped else heads
    check_heads(config, heads, kv_heads)
    rms = config.flag_or("rmsnorm", True, quiet=True)
    qkv = config.flag_or("add_qkv_bias", False, quiet=True)
    every = config.flag_or("add_bias_linear", False, quiet=True)
    family = Decoder(norm="rmsnorm" if rms else "layernorm", mlp_bias=every, activation="silu")
    attention = attention_layer(
        heads, kv_heads, read_head_dim(config, heads), qkv_bias=(qkv or every,) * 3, o_bias=every
    )
    return family.draft(config, [{**attention, **mlp} for mlp in family.mlps(config, config.layers())])


def qwen1(config: Config) -> Draft:
    """The first Qwen: `intermediate_size` counts the gate and the up projection together."""
    both = config.needed("intermediate_size", "twice the width of the MLP")
    if both % 2:
        raise config.fail("intermediate_size", f"is {both}, not even: it counts gate and up projection together")
    family = Decoder(qkv_bias=True)
    attention = family.attention(config)
    config.assume(f"intermediate_size {both} counts gate and up projection together: each is {both // 2} wide")
    return family.draft(config, [{**attention, **dense_mlp(both // 2)}] * config.layers())


def minimax_m2(config: Config) -> Draft:
    """MiniMax-M2: `intermediate_size` is the experts' width; a gain over all heads for queries and keys."""
    per_layer = config.text("qk_norm_type") in (None, "per_layer")
    norm = ("full" if per_layer else "head") if config.flag_or("use_qk_norm", True) else None
    return Decoder(
        qk_norm=norm,
        experts=moe.Experts(
            width=("intermediate_size",),
            shared_width=("shared_intermediate_size",),
            router="sigmoid with a bias for balance",
            router_bias=lambda c: c.flag_or("use_routing_bias", True),
        ),
    )(config)


def glm4_moe(config: Config) -> Draft:
    """GLM-4.5: experts after the first layers, biases on queries, keys and values."""
    return Decoder(
        qkv_bias=If("attention_bias", False),
        qk_norm="head" if config.flag_or("use_qk_norm", False) else None,
        experts=moe.Experts(
            shared=("n_shared_experts",),
            router="sigmoid with a bias for balance",
            router_bias=True,
            mask=moe.after_first,
        ),
    )(config)


LLAMA = Decoder(**bias_of_attention(), mlp_bias=If("mlp_bias", False))
QWEN2 = Decoder(qkv_bias=True, spans=windows.window_if_used)

DECODERS: Mapping[str, Callable[[Config], Draft]] = {
    "apertus": Decoder(**bias_of_attention(), gated=False, qk_norm="head", activation="xielu"),
    "arcee": Decoder(**bias_of_attention(), gated=False, mlp_bias=If("mlp_bias", False), activation="relu2"),
    "baichuan": Decoder(),
    "bloom": bloom,
    "chatglm": chatglm,
    "codegen": Decoder(
        gated=False, norm="layernorm", norms=1, mlp_bias=True, lm_head_bias=True, parallel=True, intermediate=4
    ),
    "cohere": cohere,
    "cohere2": Decoder(
        **bias_of_attention(), norm="layernorm_nobias", norms=1, tied=True, parallel=True,
        spans=windows.every(4, 4096),
    ),
    "dbrx": dbrx,
    "deepseek": Decoder(
        **bias_of_attention(),
        experts=moe.Experts(shared=("n_shared_experts",), mask=moe.after_first),
    ),
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "dots1": Decoder(
        **bias_of_attention(), qk_norm="head", spans=windows.every(1),
        experts=moe.Experts(shared=("n_shared_experts",), router_bias=True, mask=moe.after_first),
    ),
    "ernie4_5": Decoder(
        qkv_bias=If("use_bias", False), o_bias=If("use_bias", False), mlp_bias=If("use_bias", False), tied=True
    ),
    "ernie4_5_moe": Decoder(
        qkv_bias=If("use_bias", False), o_bias=If("use_bias", False), mlp_bias=If("use_bias", False), tied=True,
        experts=moe.Experts(
            shared=("moe_num_shared_experts",), router_bias=True, top_k_default=6, mask=moe.ernie
        ),
    ),
    "exaone": Decoder(),
    "exaone4": Decoder(qk_norm="head", spans=windows.every(4)),
    "falcon": falcon,
    "gemma": gemma,
    "gemma2": Decoder(
        **bias_of_attention(), norms=4, tied=True, head_dim=256, spans=windows.every(2, 4096),
        activation="gelu_pytorch_tanh",
    ),
    "gemma3": Decoder(
        **bias_of_attention(), norms=4, tied=True, head_dim=256, qk_norm="head", spans=windows.every(6, 4096),
        activation="gelu_pytorch_tanh",
    ),
    "gemma4": gemma4,
    "glm": Decoder(qkv_bias=If("attention_bias", False), head_dim=128),
    "glm4": Decoder(qkv_bias=If("attention_bias", False), norms=4, head_dim=128),
    "glm4_moe": glm4_moe,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": Decoder(
        gated=False, norm="layernorm", tied=True, o_bias=True, mlp_bias=True, position="learned", intermediate=4,
        spans=windows.alternating_local, activation="gelu_new",
    ),
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "gptj": Decoder(
        gated=False, norm="layernorm", norms=1, mlp_bias=True, lm_head_bias=True, parallel=True, intermediate=4,
        activation="gelu_new",
    ),
    "granite": Decoder(**bias_of_attention(), mlp_bias=If("mlp_bias", False)),
    "granitemoe": Decoder(**bias_of_attention(), experts=moe.Experts(width=("intermediate_size",), top_k_default=2)),
    "granitemoeshared": Decoder(
        **bias_of_attention(),
        experts=moe.Experts(
            width=("intermediate_size",), shared_width=("shared_intermediate_size",), top_k_default=2
        ),
    ),
    "grok-1": Decoder(
        norms=4, tied=True, activation="gelu", experts=moe.Experts(width=("intermediate_size",), top_k_default=2)
    ),
    "hunyuan": hunyuan,
    "internlm": Decoder(qkv_bias=If("bias", True), o_bias=If("bias", True)),
    "internlm2": Decoder(qkv_bias=If("bias", False), o_bias=If("bias", False)),
    "internlm3": Decoder(qkv_bias=If("qkv_bias", False), o_bias=If("bias", False), mlp_bias=If("bias", False)),
    "llama": LLAMA,
    "llama4": llama4,
    "mimo": Decoder(qkv_bias=If("attention_bias", True)),
    "mimo_v2_flash": mimo_v2,
    "minicpm": minicpm,
    "minimax_m2": minimax_m2,
    "mistral": Decoder(spans=windows.window_everywhere),
    "mixtral": Decoder(
        spans=windows.window_everywhere, experts=moe.Experts(width=("intermediate_size",), top_k_default=2)
    ),
    "mllama": mllama,
    "mpt": mpt,
    "nemotron": Decoder(
        **bias_of_attention(), gated=False, norm="layernorm", mlp_bias=If("mlp_bias", False), activation="relu2"
    ),
    "nemotron-nas": nemotron_nas,
    "olmo": Decoder(**bias_of_attention(), norm="layernorm_nobias"),
    "olmo2": Decoder(**bias_of_attention(), qk_norm="full"),
    "olmo3": Decoder(**bias_of_attention(), qk_norm="full", spans=windows.every(4, 4096)),
    "olmoe": Decoder(
        **bias_of_attention(), qk_norm="full", experts=moe.Experts(width=("intermediate_size",), top_k_default=8)
    ),
    "opt": opt,
    "persimmon": Decoder(
        gated=False, norm="layernorm", qkv_bias=True, o_bias=True, mlp_bias=True,
        qk_norm="head", activation="relu2",
    ),
    "phi": phi,
    "phi3": Decoder(spans=windows.window_everywhere),
    "phimoe": Decoder(
        **bias_of_attention(), norm="layernorm", lm_head_bias=If("lm_head_bias", False),
        spans=windows.window_everywhere,
        experts=moe.Experts(width=("intermediate_size",), router="sparsemixer", top_k_default=2),
    ),
    "qwen": qwen1,
    "qwen2": QWEN2,
    "qwen2_moe": Decoder(
        qkv_bias=If("qkv_bias", True), spans=windows.window_if_used,
        experts=moe.Experts(
            shared_width=("shared_expert_intermediate_size",), gate=True, top_k_default=4, mask=moe.sparse_step
        ),
    ),
    "qwen3": Decoder(**bias_of_attention(), head_dim=128, qk_norm="head", spans=windows.window_if_used),
    "qwen3_moe": Decoder(
        **bias_of_attention(), qk_norm="head", spans=windows.window_if_used,
        experts=moe.Experts(top_k_default=8, mask=moe.sparse_step),
    ),
    "seed_oss": Decoder(
        qkv_bias=If("attention_bias", True), o_bias=If("attention_out_bias", False), mlp_bias=If("mlp_bias", False)
    ),
    "smollm3": Decoder(**bias_of_attention(), mlp_bias=If("mlp_bias", False), tied=True),
    "stablelm": stablelm,
    "step3": Decoder(
        spans=windows.every(4),
        experts=moe.Experts(
            shared=("n_shared_experts",), shared_width=("share_expert_dim",), router_bias=True,
            router="sigmoid with a bias for balance", mask=moe.after_first,
        ),
    ),
    "starcoder2": Decoder(
        gated=False, norm="layernorm", tied=True, qkv_bias=If("use_bias", True), o_bias=If("use_bias", True),
        mlp_bias=If("use_bias", True), spans=windows.window_everywhere, activation="gelu_pytorch_tanh",
    ),
}  # fmt: skip
"""Reader of each family of decoders, by a name that the registry gives it."""
