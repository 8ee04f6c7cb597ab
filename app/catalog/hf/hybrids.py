"""Models with state-space, linear-attention and other token mixers.

Such layers are named with their dimensions, in the catalogue's words, so that a model can be kept and shown; whether
it can be estimated is decided by its layers, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.catalog.hf import experts as moe
from app.catalog.hf.config import MAX_HEADS, MAX_LAYERS, MAX_TOKENS, Config
from app.catalog.hf.decoders import Decoder, If, bias_of_attention, check_heads, read_head_dim
from app.catalog.hf.draft import NO_MIXER, NO_MLP, Draft, LayerJson, dense_mlp

_DEFAULT = "the default of its class in transformers"


# -- the mixers' dimensions -------------------------------------------------------------------------------------------


def _mamba1(config: Config, hidden: int, prefix: str = "") -> dict[str, Any]:
    state = config.integer_or((f"{prefix}d_state", "state_size"), 16, _DEFAULT)
    kernel = config.integer_or((f"{prefix}d_conv", "conv_kernel"), 4, _DEFAULT, high=1000)
    inner = None if prefix else config.integer(("intermediate_size", "d_inner"))
    if inner is None:
        inner = round(hidden * _expand(config, f"{prefix}expand"))
    rank = config.data.get(f"{prefix}dt_rank", config.data.get("time_step_rank"))
    if rank in (None, "auto"):
        rank = config.filled("dt_rank", -(-hidden // 16), "the hidden size over 16")
    else:
        rank = config.needed((f"{prefix}dt_rank", "time_step_rank"), "the rank of the time step")
    return {
        "type": "mamba1",
        "d_inner": inner,
        "state_size": state,
        "conv_kernel": kernel,
        "dt_rank": rank,
        "state_elements_per_layer": inner * state,
        "conv_state_elements_per_layer": inner * (kernel - 1),
    }


def _mamba2(config: Config, hidden: int, names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    state = config.integer_or(names["state"], 128, _DEFAULT)
    groups = config.integer_or(names["groups"], 1, _DEFAULT, high=MAX_HEADS)
    kernel = config.integer_or(names["kernel"], 4, _DEFAULT, high=1000)
    head_dim = config.integer_or(names["head_dim"], 64, _DEFAULT)
    inner = config.integer(names["inner"]) if "inner" in names else None
    heads = config.integer(names["heads"], 1, MAX_HEADS) if "heads" in names else None
    if inner is None and heads is not None:
        inner = heads * head_dim
    if inner is None:
        inner = round(hidden * _expand(config, names["expand"][0]))
    if heads is None:
        heads = inner // head_dim
    if heads * head_dim != inner:
        raise config.fail(names["head_dim"][0], f"{heads} heads of width {head_dim} do not make {inner}")
    return {
        "type": "mamba2",
        "d_inner": inner,
        "num_heads": heads,
        "head_dim": head_dim,
        "n_groups": groups,
        "state_size": state,
        "conv_kernel": kernel,
        "state_elements_per_layer": heads * head_dim * state,
        "conv_state_elements_per_layer": (inner + 2 * groups * state) * (kernel - 1),
    }


def _expand(config: Config, name: str) -> float:
    return config.factor(name, 2)


_PLAIN = {
    "state": ("state_size", "d_state"),
    "groups": ("n_groups", "ngroups"),
    "kernel": ("conv_kernel", "d_conv"),
    "head_dim": ("head_dim", "headdim"),
    "heads": ("num_heads",),
    "expand": ("expand",),
}
_NEMOTRON = {
    "state": ("ssm_state_size",),
    "groups": ("n_groups",),
    "kernel": ("conv_kernel",),
    "head_dim": ("mamba_head_dim",),
    "heads": ("mamba_num_heads",),
    "expand": ("expand",),
}
_PREFIXED = {
    "state": ("mamba_d_state",),
    "groups": ("mamba_n_groups", "mamba_ngroups"),
    "kernel": ("mamba_d_conv",),
    "head_dim": ("mamba_d_head", "mamba_headdim"),
    "heads": ("mamba_n_heads", "n_mamba_heads"),
    "expand": ("mamba_expand",),
}


def _with_states(draft: Draft, linear: dict[str, Any], kind: str = "hybrid") -> Draft:
    """The draft with `linear_layers`: the dimensions of its layers that keep a state."""
    draft.kind = kind
    count = sum(1 for layer in draft.layers if _keeps_state(str(layer["mixer"])))
    draft.facts["linear_layers"] = {"type": linear["type"], "count": count, **linear}
    return draft


def _keeps_state(mixer: str) -> bool:
    return mixer not in ("gqa", "mla", "none")


# -- families ---------------------------------------------------------------------------------------------------------


def qwen3_next(config: Config) -> Draft:
    """Qwen3-Next and Qwen3.5: three gated delta nets for each layer of attention, whose output is gated."""
    sparse = config.has("num_experts", "n_routed_experts")
    family = Decoder(
        **bias_of_attention(),
        head_dim=256,
        qk_norm="head",
        experts=moe.Experts(
            shared_width=("shared_expert_intermediate_size",),
            gate=True,
            router="softmax, gated shared expert",
            top_k_default=10,
            mask=moe.sparse_step,
        )
        if sparse
        else None,
    )
    count, attention = config.layers(), family.attention(config)
    attention["output_gate"] = config.flag_or("attn_output_gate", True)
    kinds = config.texts("layer_types", ("linear_attention", "full_attention"), count)
    if kinds is None:
        step = config.integer_or("full_attention_interval", 4, _DEFAULT, high=MAX_LAYERS)
        kinds = ["linear_attention" if (index + 1) % step else "full_attention" for index in range(count)]
    keys = config.integer_or("linear_num_key_heads", 16, _DEFAULT, high=MAX_HEADS)
    values = config.integer_or("linear_num_value_heads", 32, _DEFAULT, high=MAX_HEADS)
    key_dim = config.integer_or("linear_key_head_dim", 128, _DEFAULT)
    value_dim = config.integer_or("linear_value_head_dim", 128, _DEFAULT)
    linear = {
        "type": "gated_deltanet",
        "num_key_heads": keys,
        "num_value_heads": values,
        "key_head_dim": key_dim,
        "value_head_dim": value_dim,
        "conv_kernel": config.integer_or("linear_conv_kernel_dim", 4, _DEFAULT, high=1000),
        "state_elements_per_layer": values * key_dim * value_dim,
    }
    layers: list[LayerJson] = [
        {**(attention if kind == "full_attention" else {"mixer": "gated_deltanet"}), **mlp}
        for kind, mlp in zip(kinds, family.mlps(config, count), strict=True)
    ]
    return _with_states(family.draft(config, layers), linear)


def jamba(config: Config) -> Draft:
    """Jamba: attention and experts in layers given by period and offset, Mamba elsewhere."""
    family = Decoder(
        position="none", experts=moe.Experts(width=("intermediate_size",), mask=moe.periodic, top_k_default=2)
    )
    count, attention = config.layers(), family.attention(config)
    period = config.integer_or("attn_layer_period", 8, _DEFAULT, high=MAX_LAYERS)
    offset = config.integer_or("attn_layer_offset", 4, _DEFAULT, low=0, high=MAX_LAYERS)
    linear = {**_mamba1(config, config.hidden(), "mamba_"), "inner_norms": True}
    layers: list[LayerJson] = [
        {**(attention if index % period == offset else {"mixer": "mamba1"}), **mlp}
        for index, mlp in enumerate(family.mlps(config, count))
    ]
    return _with_states(family.draft(config, layers), linear)


def mamba(config: Config) -> Draft:
    """Mamba in the format of transformers, and in that of state-spaces (`d_model`, `n_layer`, `ssm_cfg`)."""
    inner = config.within("ssm_cfg")
    if inner is not None and (inner.text("layer") or "").lower() == "mamba2":
        return mamba2(config)
    linear = _mamba1(inner if inner is not None else config, config.hidden())
    draft = _states_only(config, "mamba1")
    return _with_states(draft, linear, "ssm")


def mamba2(config: Config) -> Draft:
    """Mamba-2, in both formats."""
    inner = config.within("ssm_cfg")
    linear = _mamba2(inner if inner is not None else config, config.hidden(), _PLAIN)
    draft = _states_only(config, "mamba2")
    return _with_states(draft, linear, "ssm")


def _states_only(config: Config, mixer: str) -> Draft:
    multiple = config.integer("pad_vocab_size_multiple", 1, 100_000)
    family = Decoder(norms=1, tied=True, position="none")
    draft = family.draft(config, [{"mixer": mixer, **NO_MLP}] * config.layers())
    if multiple and draft.vocab % multiple:
        padded = -(-draft.vocab // multiple) * multiple
        config.assume(f"vocab_size {draft.vocab:,} is padded to {padded:,}, a multiple of {multiple}")
        draft.vocab = padded
    return draft


def nemotron_h(config: Config) -> Draft:
    """Nemotron-H: one letter a layer: M Mamba-2, * attention, - an MLP, E experts; each with one norm."""
    pattern = config.text("hybrid_override_pattern", "layers_block_type", limit=MAX_LAYERS)
    if pattern is None:
        raise config.fail("hybrid_override_pattern", "is missing: its letters say what each layer is")
    if set(pattern) - set("M*-E"):
        raise config.fail("hybrid_override_pattern", "has other letters than M, *, - and E")
    count = config.integer("num_hidden_layers", 1, MAX_LAYERS)
    if count is not None and count != len(pattern):
        raise config.fail("num_hidden_layers", f"is {count}, but hybrid_override_pattern has {len(pattern)} letters")
    family = Decoder(
        **bias_of_attention(), gated=False, norms=1, mlp_bias=If("mlp_bias", False), activation="relu2",
        experts=moe.Experts(
            shared=("n_shared_experts",), shared_width=("moe_shared_expert_intermediate_size",),
            router="sigmoid with a bias for balance", router_bias=True,
        ),
    )  # fmt: skip
    parts: dict[str, LayerJson] = {}
    if "M" in pattern:
        parts["M"] = {"mixer": "mamba2", **NO_MLP}
    if "*" in pattern:
        parts["*"] = {**family.attention(config), **NO_MLP}
    if "-" in pattern:
        parts["-"] = {**NO_MIXER, **dense_mlp(family.dense_width(config), gated=False, bias=family_bias(config))}
    if "E" in pattern and family.experts is not None:
        mixture = family.experts.read(config, False)
        latent = config.integer("moe_latent_size")
        if latent is not None:
            mixture["latent_size"] = latent
        parts["E"] = {**NO_MIXER, "mlp": "moe", "moe": mixture}
    draft = family.draft(config, [parts[letter] for letter in pattern])
    predicted = config.text("mtp_hybrid_override_pattern")
    if predicted is not None and "mtp" in draft.facts:
        draft.facts["mtp"]["pattern"] = predicted
    if "M" not in pattern:
        return draft
    draft.facts["layer_pattern"] = pattern
    return _with_states(draft, _mamba2(config, draft.hidden, _NEMOTRON))


def family_bias(config: Config) -> bool:
    return config.flag_or("mlp_bias", False)


def falcon_h1(config: Config) -> Draft:
    """Falcon-H1: attention and Mamba-2 read the same input in every layer."""
    family = Decoder(tied=False)
    heads = config.heads()
    kv_heads = config.integer_or("num_key_value_heads", 8, _DEFAULT, high=MAX_HEADS)
    check_heads(config, heads, kv_heads)
    head_dim = read_head_dim(config, heads)
    names = {**_PREFIXED, "inner": ("mamba_d_ssm",)}
    linear = _mamba2(config, config.hidden(), names)
    mixer = {"mixer": "attention+mamba2 in parallel", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    mlp = dense_mlp(family.dense_width(config), bias=family_bias(config))
    draft = _with_states(family.draft(config, [{**mixer, **mlp}] * config.layers()), linear)
    draft.facts["linear_layers"] |= {
        "type": "mamba2 (beside attention in every layer)",
        "gated_norm": config.flag_or("mamba_rms_norm", False),
    }
    return draft


def mamba2_and_attention(config: Config) -> Draft:
    """Bamba and Granite 4 hybrids: each layer has Mamba-2 or attention, then an MLP or experts."""
    sparse = config.has("num_local_experts") and config.data.get("num_local_experts") != 0
    shared = config.integer("shared_intermediate_size", 0) or 0
    family = Decoder(
        **bias_of_attention(),
        mlp_bias=If("mlp_bias", False),
        width_names=("shared_intermediate_size",) if shared and not sparse else ("intermediate_size",),
        experts=moe.Experts(width=("intermediate_size",), shared_width=("shared_intermediate_size",))
        if sparse
        else None,
    )
    count = config.layers()
    kinds = config.texts("layer_types", ("mamba", "attention"), count)
    if kinds is None:
        kinds = config.texts("layers_block_type", ("mamba", "attention"), count)
    if kinds is None:
        indices = config.integers("attn_layer_indices", 0, MAX_LAYERS)
        if indices is None:
            raise config.fail("layer_types", "is missing: it says which layers have attention")
        kinds = ["attention" if index in set(indices) else "mamba" for index in range(count)]
    attention: LayerJson = family.attention(config) if "attention" in kinds else {}
    layers: list[LayerJson] = [
        {**(attention if kind == "attention" else {"mixer": "mamba2"}), **mlp}
        for kind, mlp in zip(kinds, family.mlps(config, count), strict=True)
    ]
    draft = family.draft(config, layers)
    return draft if "mamba" not in kinds else _with_states(draft, _mamba2(config, draft.hidden, _PREFIXED))


def zamba2(config: Config) -> Draft:
    """Zamba2: Mamba-2 layers; before some of them runs a transformer block whose weights they share."""
    names = {
        **_PREFIXED,
        "head_dim": ("mamba_headdim",),
        "groups": ("mamba_ngroups",),
        "heads": ("n_mamba_heads",),
    }
    hidden, count, heads = config.hidden(), config.layers(), config.heads()
    linear = _mamba2(config, hidden, names)
    family = Decoder(norms=1, tied=True, activation="gelu")
    width = config.integer_or("attention_hidden_size", 2 * hidden, "the layer's input beside the token's embedding")
    block = {
        "heads": heads,
        "kv_heads": config.integer_or("num_key_value_heads", heads, "one for each query head", high=MAX_HEADS),
        "head_dim": config.integer_or("attention_head_dim", max(width // heads, 1), "that width among the heads"),
        "input_width": width,
        "mlp_intermediate": family.dense_width(config),
        "mlp_gated": True,
        "weight_sets": config.integer_or("num_mem_blocks", 1, _DEFAULT, high=1000),
        "lora_rank": config.integer_or("adapter_rank", 128, _DEFAULT),
    }
    check_heads(config, heads, block["kv_heads"])
    kinds = config.texts("layers_block_type", ("mamba", "hybrid"), count)
    if kinds is None:
        uses = config.integers("hybrid_layer_ids", 0, MAX_LAYERS)
        if uses is None:
            raise config.fail("hybrid_layer_ids", "is missing: it says which layers use the shared block")
        kinds = ["hybrid" if index in set(uses) else "mamba" for index in range(count)]
    plain: LayerJson = {"mixer": "mamba2", **NO_MLP}
    shared: LayerJson = {"mixer": "shared attention block, then mamba2", **NO_MLP, "norms": 1, "shared_block": block}
    return _with_states(family.draft(config, [shared if kind == "hybrid" else plain for kind in kinds]), linear)


def rwkv(config: Config) -> Draft:
    """RWKV 4 to 7: time mixing and channel mixing."""
    version = {"rwkv5": "rwkv5", "rwkv6": "rwkv6", "rwkv7": "rwkv7"}.get(config.text("model_type") or "", "rwkv")
    hidden, count = config.hidden(), config.layers()
    width = config.integer("intermediate_size")
    if width is None:
        width = int(config.filled("intermediate_size", 4 * hidden, "4 times the hidden size"))
    head_dim = config.integer_or(("head_dim", "head_size"), 64, _DEFAULT) if version != "rwkv" else 0
    family = Decoder(norm="layernorm", gated=version != "rwkv7", position="none")
    mlp = {"mlp": "rwkv_ffn", "mlp_intermediate": width} if version != "rwkv7" else dense_mlp(width, gated=False)
    draft = family.draft(config, [{"mixer": version, **mlp}] * count)
    linear: dict[str, Any] = {"type": version}
    if head_dim:
        heads = -(-hidden // head_dim)
        linear |= {"head_dim": head_dim, "num_heads": heads, "state_elements_per_layer": heads * head_dim * head_dim}
    if version == "rwkv7":
        for ours, theirs in _RWKV7_RANKS.items():
            rank = config.integer(theirs)
            if rank is not None:
                linear[ours] = rank
    return _with_states(draft, linear, "ssm")


_RWKV7_RANKS = {
    "decay_rank": "decay_low_rank_dim",
    "rate_rank": "a_low_rank_dim",
    "value_rank": "v_low_rank_dim",
    "gate_rank": "gate_low_rank_dim",
}


def minimax_m1(config: Config) -> Draft:
    """MiniMax-Text-01 and M1: seven layers of lightning attention for each with softmax attention."""
    family = Decoder(experts=moe.Experts(width=("intermediate_size",), top_k_default=2))
    count, attention = config.layers(), family.attention(config)
    kinds = config.integers("attn_type_list", 0, 1, count)
    if kinds is None:
        typed = config.texts("layer_types", ("full_attention", "linear_attention"), count)
        if typed is None:
            raise config.fail("attn_type_list", "is missing: it says which layers have softmax attention")
        kinds = [int(kind == "full_attention") for kind in typed]
    mlps = family.mlps(config, count)
    layers: list[LayerJson] = [
        {**(attention if kind else {"mixer": "lightning"}), **mlp} for kind, mlp in zip(kinds, mlps, strict=True)
    ]
    size = attention["head_dim"]
    linear = {"type": "lightning_attention", "heads": attention["heads"], "state_shape_per_head": [size, size]}
    return _with_states(family.draft(config, layers), linear)


def kimi_linear(config: Config) -> Draft:
    """Kimi Linear: delta attention (KDA) in most layers, latent attention in the others."""
    inner = config.within("linear_attn_config")
    if inner is None:
        raise config.fail("linear_attn_config", "is missing: it says which layers have linear attention")
    count, heads = config.layers(), config.heads()
    full = set(inner.integers("full_attn_layers", 1, count) or ())
    latent = {
        name: config.needed(name, "a dimension of latent attention")
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    }
    attention = {"mixer": "mla", "heads": heads, "mla": {"q_lora_rank": config.integer("q_lora_rank"), **latent}}
    family = Decoder(
        experts=moe.Experts(
            shared=("num_shared_experts",),
            router="sigmoid with a bias for balance",
            router_bias=True,
            mask=moe.after_first,
        )
    )
    kda_heads = inner.needed("num_heads", "the heads of linear attention", high=MAX_HEADS)
    kda_dim = inner.needed("head_dim", "the head width of linear attention")
    linear = {
        "type": "kda",
        "num_heads": kda_heads,
        "head_dim": kda_dim,
        "conv_kernel": inner.integer_or("short_conv_kernel_size", 4, _DEFAULT, high=1000),
        "state_elements_per_layer": kda_heads * kda_dim * kda_dim,
    }
    # layers are numbered from 1 in this configuration
    layers: list[LayerJson] = [
        {**(attention if index + 1 in full else {"mixer": "kda"}), **mlp}
        for index, mlp in enumerate(family.mlps(config, count))
    ]
    return _with_states(family.draft(config, layers), linear)


def lfm2(config: Config) -> Draft:
    """LFM2: short convolutions and grouped attention."""
    family = Decoder(qk_norm="head", tied=True)
    count, attention = config.layers(), family.attention(config)
    kinds = config.texts("layer_types", ("conv", "full_attention"), count)
    if kinds is None:
        indices = config.integers("full_attn_idxs", 0, MAX_LAYERS)
        if indices is None:
            raise config.fail("layer_types", "is missing: it says which layers have attention")
        kinds = ["full_attention" if index in set(indices) else "conv" for index in range(count)]
    width = config.needed(("intermediate_size", "block_ff_dim"), "the width of the MLP")
    if config.flag_or("block_auto_adjust_ff_dim", True, quiet=True):
        multiple = config.integer_or("block_multiple_of", 256, _DEFAULT)
        width = int(2 * width / 3 * config.factor("block_ffn_dim_multiplier", 1.0))
        width = -(-width // multiple) * multiple
        config.assume(f"block_auto_adjust_ff_dim: the MLP is {width:,} wide")
    layers: list[LayerJson] = [
        {**(attention if kind == "full_attention" else {"mixer": "short_conv"}), **dense_mlp(width)} for kind in kinds
    ]
    kernel = config.integer_or("conv_L_cache", 3, _DEFAULT, high=1000)
    linear = {
        "type": "short_conv",
        "width": config.hidden(),
        "conv_kernel": kernel,
        "conv_bias": config.flag_or("conv_bias", False, quiet=True),
    }
    return _with_states(family.draft(config, layers), linear)


def recurrent_gemma(config: Config) -> Draft:
    """RecurrentGemma and Griffin: two recurrent layers for each with local attention."""
    family = Decoder(tied=True, o_bias=True)
    count = config.layers()
    types = config.texts("block_types", ("recurrent", "attention"))
    if not types:
        types = ["recurrent", "recurrent", "attention"]
        config.filled("block_types", "two recurrent, one attention", _DEFAULT)
    window = config.integer_or("attention_window_size", 2048, _DEFAULT, high=MAX_TOKENS)
    attention = {**family.attention(config), "kind": "sliding", "window": window}
    doubled = config.needed("intermediate_size", "twice the width of the MLP")
    mlp = dense_mlp(doubled // 2 or 1, bias=True)
    layers: list[LayerJson] = [
        {**(attention if types[index % len(types)] == "attention" else {"mixer": "rg_lru"}), **mlp}
        for index in range(count)
    ]
    linear: dict[str, Any] = {"type": "rg_lru"}
    width = config.integer("lru_width")
    if width is not None:
        linear["width"] = width
    return _with_states(family.draft(config, layers), linear)


def deepseek_v4(config: Config) -> Draft:
    """DeepSeek-V4: keys serve as values in one shared head; compressed context beside a window."""
    family = Decoder(
        experts=moe.Experts(
            shared=("n_shared_experts",), router="sqrtsoftplus with a bias for balance", router_bias=True
        )
    )
    count, heads = config.layers(), config.heads()
    ratios = config.integers("compress_ratios", 0, MAX_TOKENS)
    if ratios is None or len(ratios) < count:
        raise config.fail("compress_ratios", f"is missing or shorter than the {count} layers")
    window = config.needed("sliding_window", "the window", high=MAX_TOKENS)
    kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS) or 1
    check_heads(config, heads, kv_heads)
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": read_head_dim(config, heads), "window": window}
    mlps = family.mlps(config, count)
    layers: list[LayerJson] = [
        {"mixer": "v4_shared_kv", "kind": _V4.get(ratio, f"window+compressed by {ratio}"), **shape, **mlp}
        for ratio, mlp in zip(ratios, mlps, strict=False)
    ]
    draft = family.draft(config, layers)
    extra = {
        name: value
        for name in ("q_lora_rank", "o_lora_rank", "o_groups")
        if (value := config.integer(name)) is not None
    }
    draft.facts["extra_params"] = {**extra, "hyper_connection_streams": config.integer("hc_mult") or 1}
    draft.facts["sparse_attention"] = {
        "type": "CSA/HCA",
        "compress_ratios": ratios[:count],
        **{
            name: value
            for name in ("index_n_heads", "index_head_dim", "index_topk")
            if (value := config.integer(name)) is not None
        },
        "window": window,
    }
    return draft


_V4 = {0: "window", 4: "window+CSA", 128: "window+HCA"}


HYBRIDS: Mapping[str, Callable[[Config], Draft]] = {
    "bamba": mamba2_and_attention,
    "deepseek_v4": deepseek_v4,
    "falcon_h1": falcon_h1,
    "granitemoehybrid": mamba2_and_attention,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
    "mamba": mamba,
    "mamba2": mamba2,
    "minimax_m1": minimax_m1,
    "nemotron_h": nemotron_h,
    "qwen3_5": qwen3_next,
    "qwen3_next": qwen3_next,
    "recurrent_gemma": recurrent_gemma,
    "rwkv": rwkv,
    "zamba2": zamba2,
}
"""Reader of each family of hybrids and state-space models."""
