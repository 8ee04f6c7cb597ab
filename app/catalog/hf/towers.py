"""Parameters of vision towers with their projectors, from `vision_config`, for the kinds whose layout is known.

Each formula was checked against the released tensors' total of at least one model of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from app.catalog.hf.config import HIDDEN, LAYERS, MAX_HEADS, MAX_LAYERS, Config

_DEFAULT = "the default of its class in transformers"


class Tower(NamedTuple):
    """A tower's dimensions and its parameters. `facts` are further fields of the catalogue's `vision` object."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    patch_size: int
    parameters: int
    image_size: int | None = None
    facts: Mapping[str, Any] = MappingProxyType({})

    def record(self) -> dict[str, Any]:
        """The catalogue's `vision` object."""
        return {
            "hidden": self.hidden,
            "layers": self.layers,
            "heads": self.heads,
            "intermediate": self.intermediate,
            "patch_size": self.patch_size,
            "image_size": self.image_size,
            **self.facts,
            "params_computed": self.parameters,
        }


class _Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
    intermediate: int
    patch: int
    image: int


def _shape(v: Config, hidden: int, layers: int, heads: int, wide: int, patch: int, image: int = 0) -> _Shape:
    """The tower's dimensions; what the file leaves out has the class's default, given here."""
    return _Shape(
        v.integer_or(HIDDEN, hidden, _DEFAULT, high=100_000),
        v.integer_or((*LAYERS, "depth"), layers, _DEFAULT, high=MAX_LAYERS),
        v.integer_or(("num_attention_heads", "num_heads"), heads, _DEFAULT, high=MAX_HEADS),
        v.integer_or("intermediate_size", wide, _DEFAULT, high=1_000_000),
        v.integer_or("patch_size", patch, _DEFAULT, high=10_000),
        v.integer_or("image_size", image, _DEFAULT, high=100_000) if image else 0,
    )


def _block(width: int, intermediate: int) -> int:
    """A ViT block with biases everywhere: two LayerNorms, four square projections, two MLP matrices."""
    return 4 * width + 4 * (width * width + width) + 2 * width * intermediate + intermediate + width


def _qwen2_vl(v: Config, text_hidden: int) -> Tower:
    hidden = v.integer_or("embed_dim", 1280, _DEFAULT, high=100_000)
    layers = v.integer_or("depth", 32, _DEFAULT, high=MAX_LAYERS)
    heads = v.integer_or("num_heads", 16, _DEFAULT, high=MAX_HEADS)
    wide = round(hidden * v.factor("mlp_ratio", 4))
    patch = v.integer_or(("patch_size", "spatial_patch_size"), 14, _DEFAULT, high=10_000)
    frames = v.integer_or("temporal_patch_size", 2, _DEFAULT, high=1000)
    merge = v.integer_or("spatial_merge_size", 2, _DEFAULT, high=100)
    merged = hidden * merge**2
    merger = 2 * hidden + merged * merged + merged + merged * text_hidden + text_hidden
    total = 3 * frames * patch * patch * hidden + layers * _block(hidden, wide) + merger
    return Tower(hidden, layers, heads, wide, patch, total, facts={"merge": merge, "temporal_patch": frames})


def _qwen25_vl(v: Config, text_hidden: int) -> Tower:
    s = _shape(v, 3584, 32, 16, 3420, 14)
    frames = v.integer_or("temporal_patch_size", 2, _DEFAULT, high=1000)
    side = v.integer_or("spatial_merge_size", 2, _DEFAULT, high=100)
    merged = s.hidden * side**2
    out = v.integer("out_hidden_size") or text_hidden
    gated = 3 * s.hidden * s.intermediate + 2 * s.intermediate + s.hidden
    block = 2 * s.hidden + 4 * (s.hidden * s.hidden + s.hidden) + gated
    merger = s.hidden + merged * merged + merged + merged * out + out
    total = 3 * frames * s.patch * s.patch * s.hidden + s.layers * block + merger
    facts: dict[str, Any] = {"merge": side, "temporal_patch": frames, "mlp_gated": True}
    facts["window"] = v.integer_or("window_size", 112, _DEFAULT, high=1_000_000)
    facts["full_attention_blocks"] = v.integers("fullatt_block_indexes", 0, MAX_LAYERS)
    if facts["full_attention_blocks"] is None:
        facts["full_attention_blocks"] = v.filled("fullatt_block_indexes", [7, 15, 23, 31], _DEFAULT)
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total, facts=facts)


def _qwen3_vl(v: Config, text_hidden: int) -> Tower:
    s = _shape(v, 1152, 27, 16, 4304, 16)
    frames = v.integer_or("temporal_patch_size", 2, _DEFAULT, high=1000)
    side = v.integer_or("spatial_merge_size", 2, _DEFAULT, high=100)
    merged = s.hidden * side**2
    rows = v.integer_or("num_position_embeddings", 2304, _DEFAULT)
    out = v.integer("out_hidden_size") or text_hidden
    deep = len(v.integers("deepstack_visual_indexes", 0, MAX_LAYERS) or ())
    merge = merged * merged + merged + merged * out + out
    total = (
        (3 * frames * s.patch * s.patch + 1 + rows) * s.hidden
        + s.layers * _block(s.hidden, s.intermediate)
        + 2 * s.hidden
        + merge
        + deep * (2 * merged + merge)
    )
    facts = {"merge": side, "temporal_patch": frames, "position_rows": rows}
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total, facts=facts)


def _siglip(v: Config, projector: int, facts: Mapping[str, Any] = MappingProxyType({})) -> Tower:
    s = _shape(v, 768, 12, 12, 3072, 16, 224)
    positions = (s.image // s.patch) ** 2
    total = (3 * s.patch * s.patch + 1 + positions + 2) * s.hidden + s.layers * _block(s.hidden, s.intermediate)
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total + projector, s.image, facts)


def _gemma3(v: Config, text_hidden: int) -> Tower:
    hidden = v.integer(HIDDEN, high=100_000) or 768
    # 4 x 4 patches are averaged into one token
    return _siglip(v, hidden * text_hidden + hidden, {"patches_per_token": 16})


def _paligemma(v: Config, text_hidden: int) -> Tower:
    hidden = v.integer(HIDDEN, high=100_000) or 768
    return _siglip(v, hidden * text_hidden + text_hidden)


def _llava(v: Config, text_hidden: int) -> Tower | None:
    if v.text("model_type") not in (None, "clip_vision_model"):
        return None
    s = _shape(v, 768, 12, 12, 3072, 32, 224)
    positions = (s.image // s.patch) ** 2 + 1
    total = (1 + 3 * s.patch * s.patch + positions + 4) * s.hidden + s.layers * _block(s.hidden, s.intermediate)
    projector = s.hidden * text_hidden + text_hidden + text_hidden * text_hidden + text_hidden
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total + projector, s.image)


def _llama4(v: Config, text_hidden: int) -> Tower:
    s = _shape(v, 768, 34, 16, 5632, 14, 448)
    positions = (s.image // s.patch) ** 2 + 1
    into = v.integer_or("projector_input_dim", 4096, _DEFAULT)
    out = v.integer_or("projector_output_dim", 4096, _DEFAULT)
    total = (
        (3 * s.patch * s.patch + 1 + positions + 4) * s.hidden
        + s.layers * _block(s.hidden, s.intermediate)
        + s.intermediate * into
        + into * out
        + v.integer_or("vision_output_dim", 7680, _DEFAULT) * text_hidden
    )
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total, s.image, facts={"patches_per_token": 4})


def _gemma4(v: Config, text_hidden: int) -> Tower:
    s = _shape(v, 768, 16, 12, 3072, 16)
    rows = v.integer_or("position_embedding_size", 10_240, _DEFAULT)
    head = v.integer_or("head_dim", 64, _DEFAULT, high=100_000)
    block = 4 * s.hidden + 4 * s.hidden * s.heads * head + 2 * head + 3 * s.hidden * s.intermediate
    total = (3 * s.patch * s.patch + 2 * rows + text_hidden) * s.hidden + s.layers * block
    side = v.integer_or("pooling_kernel_size", 3, _DEFAULT, high=100)
    facts = {"merge": side, "mlp_gated": True, "position_rows": 2 * rows}
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total, facts=facts)


def _internvl(v: Config, text_hidden: int) -> Tower:
    s = _shape(v, 3200, 48, 25, 12_800, 14, 448)
    positions = (s.image // s.patch) ** 2 + 1
    total = (1 + 3 * s.patch * s.patch + 1 + positions) * s.hidden
    total += s.layers * (_block(s.hidden, s.intermediate) + 2 * s.hidden)
    merged = 4 * s.hidden
    projector = 2 * merged + merged * text_hidden + text_hidden + text_hidden * text_hidden + text_hidden
    total += projector
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total, s.image, facts={"patches_per_token": 4})


def _pixtral(v: Config, text_hidden: int) -> Tower:
    s = _shape(v, 1024, 24, 16, 4096, 16, 1024)
    block = 2 * s.hidden + 4 * s.hidden * s.hidden + 3 * s.hidden * s.intermediate
    projector = s.hidden + 4 * s.hidden * s.hidden + s.hidden * text_hidden + text_hidden * text_hidden
    total = (3 * s.patch * s.patch + 1) * s.hidden + s.layers * block + projector
    facts = {"merge": 2, "mlp_gated": True, "tokens_per_image": "dynamic resolution"}
    return Tower(s.hidden, s.layers, s.heads, s.intermediate, s.patch, total, s.image, facts=facts)


_TOWERS: Mapping[str, Callable[[Config, int], Tower | None]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen25_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "paligemma": _paligemma,
    "llava": _llava,
    "llama4": _llama4,
    "internvl_chat": _internvl,
    "mistral3": _pixtral,
}


def read_tower(root: Config, model_type: str, text_hidden: int) -> dict[str, Any]:
    """`vision` and `audio` objects of the record for the towers that the configuration describes.

    A tower that is described but whose layout is not known is stated as an assumption: it is not counted.
    """
    found: dict[str, Any] = {}
    vision = root.within("vision_config")
    if vision is not None:
        read = _TOWERS.get(model_type)
        tower = None if read is None else read(vision, text_hidden)
        if tower is not None:
            found["vision"] = tower.record()
            root.assume("the vision tower's parameters are counted with the model")
        else:
            root.assume(
                f"the vision tower of {model_type!r} is not counted: the totals are those of the language model"
            )
    for key in ("audio_config", "audio_encoder", "speech_config"):
        if root.has(key):
            root.assume(f"{key}: the audio tower is not counted: the totals are those of the language model")
    return found
