"""Encoders and encoder-decoders: kept with their shapes; whether they can be estimated is not decided here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.catalog.hf.config import HEADS, HIDDEN, INTERMEDIATE, LAYERS, MAX_HEADS, MAX_LAYERS, Config
from app.catalog.hf.decoders import read_head_dim, read_tied
from app.catalog.hf.draft import Draft, attention_layer, dense_mlp

_DEFAULT = "the default of its class in transformers"


def bert(config: Config) -> Draft:
    """BERT and its descendants: biases everywhere, LayerNorm, learned positions, a tied head."""
    heads = config.heads()
    attention = attention_layer(
        heads,
        heads,
        read_head_dim(config, heads),
        kind="bidirectional",
        qkv_bias=(True, True, True),
        o_bias=True,
    )
    width = config.needed(INTERMEDIATE, "the width of the MLP")
    types = config.integer("type_vocab_size", 0, 1000)
    return Draft(
        kind="encoder",
        hidden=config.hidden(),
        vocab=config.vocab(),
        layers=[{**attention, **dense_mlp(width, gated=False, bias=True)}] * config.layers(),
        facts={} if types is None else {"token_types": types},
        norm="layernorm",
        gated=False,
        tied=read_tied(config, True),
        position_embedding="learned",
        max_position=config.positions(),
        activation=config.activation(),
    )


def distilbert(config: Config) -> Draft:
    """DistilBERT: BERT under other names, without types of tokens and without what pools."""
    draft = bert(
        Config(
            {
                **config.data,
                "hidden_size": config.needed(("dim", "hidden_size"), "the width"),
                "intermediate_size": config.needed(("hidden_dim", "intermediate_size"), "the width of the MLP"),
            },
            config.loc,
            config.assumptions,
        )
    )
    draft.facts |= {"token_types": 0, "pooling": "none"}
    return draft


def modernbert(config: Config) -> Draft:
    """ModernBERT: gated MLPs, no biases, two of three layers with a window."""
    heads, count = config.heads(), config.layers()
    step = config.integer_or("global_attn_every_n_layers", 3, _DEFAULT, high=MAX_LAYERS)
    config.assume(f"every {step}. layer attends to all tokens; the windows of the others are not kept")
    bias = config.flag_or("attention_bias", False)
    attention = attention_layer(
        heads, heads, read_head_dim(config, heads), kind="bidirectional", qkv_bias=(bias,) * 3, o_bias=bias
    )
    mlp = dense_mlp(config.needed(INTERMEDIATE, "the width of the MLP"), bias=config.flag_or("mlp_bias", False))
    return Draft(
        kind="encoder",
        hidden=config.hidden(),
        vocab=config.vocab(),
        layers=[{**attention, **mlp}] * count,
        norm="layernorm_nobias",
        tied=read_tied(config, True),
        max_position=config.positions(),
        activation=config.activation(),
    )


def vit(config: Config) -> Draft:
    """A vision transformer: CLIP's or SigLIP's tower on its own, ViT."""
    heads = config.needed(HEADS, "the number of heads", high=MAX_HEADS)
    hidden = config.needed(HIDDEN, "the width")
    count = config.needed(LAYERS, "the number of layers", high=MAX_LAYERS)
    attention = attention_layer(
        heads,
        heads,
        read_head_dim(config, heads),
        kind="bidirectional",
        qkv_bias=(True, True, True),
        o_bias=True,
    )
    width = config.needed(INTERMEDIATE, "the width of the MLP")
    draft = Draft(
        kind="encoder",
        hidden=hidden,
        vocab=0,
        layers=[{**attention, **dense_mlp(width, gated=False, bias=True)}] * count,
        norm="layernorm",
        gated=False,
        position_embedding="learned 2D grid",
        activation=config.activation(),
    )
    draft.facts["vision"] = {
        "hidden": hidden,
        "layers": count,
        "heads": heads,
        "intermediate": width,
        "patch_size": config.integer("patch_size", 1, 10_000),
        "image_size": config.integer("image_size", 1, 100_000),
        **_ends(config),
    }
    return draft


def _ends(config: Config) -> dict[str, Any]:
    """What stands before and behind a tower's layers, by its class."""
    kind = config.text("model_type") or "clip"
    if kind.startswith("siglip"):
        return {"pooling": "attention"} if config.flag_or("vision_use_head", True) else {}
    if kind.startswith("clip"):
        return {"class_token": True, "patch_bias": False, "embedding_norm": True}
    return {"class_token": True, "pooling": "dense"}


def clip(config: Config) -> Draft:
    """CLIP and SigLIP: the vision tower is kept, the text tower only said."""
    vision = config.within("vision_config")
    if vision is None:
        raise config.fail("vision_config", "is missing: the vision tower is what is kept of this kind")
    config.assume("the vision tower is kept as the model; the text tower is left out")
    filled = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    data = {"model_type": f"{config.text('model_type') or 'clip'}_vision_model", **vision.data}
    return vit(Config(data, vision.loc, config.assumptions, filled))


def t5(config: Config) -> Draft:
    """T5: `d_kv` is the head width, relative position biases instead of positions."""
    heads = config.heads()
    head_dim = config.needed("d_kv", "the width of a head")
    activation = config.text("feed_forward_proj", "dense_act_fn") or str(
        config.filled("feed_forward_proj", "relu", _DEFAULT)
    )
    encoder = config.needed(LAYERS, "the number of encoder layers", high=MAX_LAYERS)
    decoder = config.integer_or("num_decoder_layers", encoder, "as many as encoder layers", high=MAX_LAYERS)
    draft = _two_stacks(config, encoder, decoder, heads, head_dim)
    draft.gated = activation.startswith("gated")
    draft.norm, draft.position_embedding, draft.activation = "rmsnorm", "relative bias", activation
    draft.tied = read_tied(config, True)
    return draft


def whisper(config: Config) -> Draft:
    """Whisper, and BART-like models: an encoder and a decoder with biases."""
    hidden = config.hidden()
    heads = config.needed(("decoder_attention_heads", "num_attention_heads"), "the number of heads", high=MAX_HEADS)
    encoder = config.needed(("encoder_layers",), "the number of encoder layers", high=MAX_LAYERS)
    decoder = config.needed(("decoder_layers",), "the number of decoder layers", high=MAX_LAYERS)
    if hidden % heads:
        raise config.fail("decoder_attention_heads", f"{heads} heads do not divide the hidden size {hidden}")
    draft = _two_stacks(config, encoder, decoder, heads, hidden // heads)
    draft.norm, draft.gated = "layernorm", False
    draft.tied = read_tied(config, True)
    draft.max_position = config.integer(("max_target_positions", "max_position_embeddings"), 1, 10**9)
    draft.activation = config.activation()
    no_key_bias = config.text("model_type") == "whisper"
    draft.facts |= {
        "attention_bias": True,
        "bias_detail": {"q": True, "k": not no_key_bias, "v": True, "o": True, "mlp": True},
    }
    if no_key_bias:
        draft.position_embedding = "sinusoidal (encoder), learned (decoder)"
        mel = config.integer("num_mel_bins", 1, 10_000)
        draft.facts["audio"] = {
            "mel_bins": mel,
            "encoder_layers": encoder,
            "decoder_layers": decoder,
            "hidden": hidden,
            "heads": heads,
            "decoder_context": draft.max_position,
        }
    else:
        draft.position_embedding = "learned"
    return draft


def _two_stacks(config: Config, encoder: int, decoder: int, heads: int, head_dim: int) -> Draft:
    width = config.needed(("d_ff", "decoder_ffn_dim", "intermediate_size"), "the width of the MLP")
    first: dict[str, Any] = {"mixer": "encoder self-attention", "mlp": "dense", "mlp_intermediate": width}
    second: dict[str, Any] = {"mixer": "decoder self+cross attention", "mlp": "dense", "mlp_intermediate": width}
    draft = Draft(
        kind="enc-dec",
        hidden=config.hidden(),
        vocab=config.vocab(),
        layers=[first] * encoder + [second] * decoder,
    )
    draft.facts |= {
        "num_layers": decoder,
        "num_attention_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim,
        "intermediate_size": width,
    }
    return draft


ENCODERS: Mapping[str, Callable[[Config], Draft]] = {
    "bert": bert,
    "clip": clip,
    "distilbert": distilbert,
    "modernbert": modernbert,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
}
"""Reader of each family of encoders and encoder-decoders."""
