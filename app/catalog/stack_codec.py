"""Stacks beside a decoder: towers from `vision` and `audio`, what stands at an encoder's ends, prediction modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

from app.catalog.fields import Fields
from app.domain.mixer_parameters import attention_parameters
from app.domain.model import (
    Attention,
    DenseMlp,
    InputProduct,
    LatentAttention,
    LayerGroup,
    ModelSpec,
    PredictionModules,
    Tower,
)
from app.domain.parameters import extra_parameters, mlp_parameters

_MAX_WIDTH = 1_000_000
_MAX_COUNT = 100_000
AUDIO_POSITIONS = 1500
"""Tokens of half a minute of sound in Whisper's encoder: 100 frames a second, halved by the second convolution."""


class EncoderEnds(NamedTuple):
    """What an encoder has before its layers and behind them."""

    front: tuple[InputProduct, ...] = ()
    class_tokens: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    learned_positions: int = 0
    pooling: Literal["dense", "attention"] | None = None
    final_norm: bool = True


def rotates(positions: str | None, learned: int) -> bool:
    """Whether queries and keys are rotated: by what the record says of positions, else unless a table is learned."""
    return "rope" in positions if positions else learned == 0


def encoder_ends(top: Fields, vocab: int, hidden: int, positions: int | None) -> EncoderEnds:
    """The ends of a model of kind `encoder`: of words as in BERT, or of patches of a picture."""
    data = top.object("vision")
    if not data:
        if vocab and (top.text("position_embedding", 100) or "").startswith("learned"):
            types = top.integer("token_types", 0, 1000)
            pooled: Literal["dense"] | None = None if top.choice("pooling", ("dense", "none")) == "none" else "dense"
            return EncoderEnds((), 0, 2 if types is None else types, True, positions or 0, pooled, final_norm=False)
        return EncoderEnds(embedding_norm=bool(vocab))
    f = Fields(data, top.at("vision"), list(data))
    patch, image = f.integer("patch_size", 1, 10_000), f.integer("image_size", 1, 100_000)
    if patch is None:
        return EncoderEnds()
    class_tokens = 1 if f.flag("class_token") else 0
    rows = f.integer("position_rows", 0, 10**7)
    if rows is None:
        rows = 0 if image is None else (image // patch) ** 2 + class_tokens
    pooling = cast(Literal["dense", "attention"] | None, f.choice("pooling", ("dense", "attention")))
    front = (InputProduct("patch embedding", 3 * patch * patch, hidden, bias=f.flag("patch_bias") is not False),)
    return EncoderEnds(front, class_tokens, 0, f.flag("embedding_norm") or False, rows, pooling)


def sound_front(mel_bins: int, hidden: int) -> tuple[InputProduct, ...]:
    """Whisper's two convolutions over three frames; the first runs at twice the rate of the tokens."""
    return (
        InputProduct("sound convolution", 3 * mel_bins, hidden, per_token=2),
        InputProduct("sound convolution 2", 3 * hidden, hidden),
    )


def read_tower(top: Fields, params: int) -> Tower | None:
    """The tower beside a language model, None where its dimensions are not given.

    What `params_computed` holds beyond layers, input and positions is the projector, without `projector_params`.
    """
    modality: Literal["vision", "audio"]
    for modality in ("vision", "audio"):
        data = top.object(modality)
        if data:
            f = Fields(data, top.at(modality), list(data))
            return _tower(modality, f, params)
    return None


def _tower(modality: Literal["vision", "audio"], f: Fields, params: int) -> Tower | None:
    width, layers = f.integer("hidden", 1, _MAX_WIDTH), f.integer("layers", 1, _MAX_COUNT)
    heads = f.integer("heads", 1, _MAX_COUNT)
    if width is None or layers is None or heads is None or width % heads:
        return None
    mlp = DenseMlp(f.integer("intermediate", 1, _MAX_WIDTH) or 4 * width, f.flag("mlp_gated") or False, bias=True)
    attention = Attention(
        heads,
        heads,
        width // heads,
        width // heads,
        "bidirectional",
        q_bias=True,
        k_bias=True,
        v_bias=True,
        o_bias=True,
    )
    front: tuple[InputProduct, ...]
    if modality == "audio":
        merge, item, positions = _sound(f)
        front = sound_front(f.integer("mel_bins", 1, 10_000) or 80, width)
    else:
        patch = f.integer("patch_size", 1, 10_000)
        if patch is None:
            return None
        merge, item, positions = _pictures(f, patch)
        frames = f.integer("temporal_patch", 1, 1000) or 1
        front = (InputProduct("patch embedding", 3 * frames * patch * patch, width),)
    stack = ModelSpec(
        id=f"{modality}-tower",
        name=f"{modality} tower",
        kind="encoder",
        hidden_size=width,
        vocab_size=0,
        layers=_tower_layers(f, layers, attention, mlp),
        norm="layernorm",
        norm_has_bias=True,
        learned_positions=positions,
        rotary=rotates(None, positions),
        front=front,
        activation="gelu",
    )
    counted = layers * (attention_parameters(attention, width) + mlp_parameters(mlp, width) + 4 * width)
    rest = params - int(counted) - positions * width - extra_parameters(stack)
    projector = f.integer("projector_params", 0, 10**12)
    return Tower(modality, stack, merge, max(rest, 0) if projector is None else projector, item)


def _tower_layers(f: Fields, layers: int, attention: Attention, mlp: DenseMlp) -> tuple[LayerGroup, ...]:
    """All layers see the whole picture, or most of them only windows of `window` pixels (Qwen2.5-VL)."""
    window, patch = f.integer("window", 1, 1_000_000), f.integer("patch_size", 1, 10_000)
    whole = f.items("full_attention_blocks", 1000)
    if window is None or patch is None or not 0 < len(whole) < layers:
        return (LayerGroup(layers, attention, mlp),)
    local = replace(attention, window=max(window // patch, 1) ** 2)
    return (LayerGroup(layers - len(whole), local, mlp), LayerGroup(len(whole), attention, mlp, layers - len(whole)))


def _sound(f: Fields) -> tuple[int, int | None, int]:
    item = f.integer("tokens_per_30s", 1, 100_000)
    return (1, None, AUDIO_POSITIONS) if item is None else (max(AUDIO_POSITIONS // item, 1), item, AUDIO_POSITIONS)


def _pictures(f: Fields, patch: int) -> tuple[int, int | None, int]:
    """Patches that become one token, tokens of a picture of fixed size, and rows of the position table."""
    merge = f.integer("patches_per_token", 1, 10_000)
    if merge is None:
        side = f.data.get("merge")
        merge = side * side if isinstance(side, int) and 1 <= side <= 100 else 1
        if isinstance(side, list) and len(side) == 2 and all(isinstance(n, int) and 1 <= n <= 100 for n in side):
            merge = side[0] * side[1]
    image = f.integer("image_size", 1, 100_000)
    item = f.integer("tokens_per_item", 1, 10**7)
    fixed = image is not None and "dynamic" not in (f.text("tokens_per_image") or "")
    patches = 0 if image is None else (image // patch) ** 2
    if item is None and fixed:
        item = max(patches // merge, 1)
    rows = f.integer("position_rows", 0, 10**7)
    return merge, item, rows if rows is not None else patches if fixed else 0


def read_prediction(top: Fields, layers: tuple[LayerGroup, ...]) -> PredictionModules | None:
    """Multi-token prediction modules: one layer of the model's last kind with attention, or as `pattern` says.

    In a pattern `*` is an attention layer and `E` a layer of experts. None where modules are not described.
    """
    data: Mapping[str, Any] | None = top.object("mtp")
    if not data:
        return None
    f = Fields(data, top.at("mtp"), list(data))
    count = f.integer("layers", 0, 1000)
    if not count:
        return None
    attention = [g for g in layers if isinstance(g.mixer, (Attention, LatentAttention))]
    if "pattern" in data:
        parts = {"*": attention, "E": [g for g in layers if g.mixer is None]}
        pattern = f.text("pattern", 20) or ""
        if not pattern or any(not parts.get(letter) for letter in pattern):
            return None
        return PredictionModules(count, tuple(replace(parts[letter][-1], count=1) for letter in pattern))
    if not attention or any(g.mlp is None for g in attention):
        return None
    return PredictionModules(count, (replace(attention[-1], count=1),))
