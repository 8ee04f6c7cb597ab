"""Token mixers with a state, and what is composed of them, to and from the JSON of a model.

Their dimensions stand in `linear_layers` for all such layers of a model, or in `linear` of one group of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.catalog.fields import Fields
from app.domain.model import (
    Attention,
    DenseMlp,
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    OtherMixer,
    Rwkv5,
    Rwkv7,
    SharedAttentionBlock,
    ShortConvolution,
    StateMixer,
)

PARALLEL = "attention+mamba2 in parallel"
SHARED = "shared attention block, then mamba2"
ENCODER_SELF = "encoder self-attention"
DECODER_SELF_CROSS = "decoder self+cross attention"
STATE_NAMES = ("mamba1", "mamba2", "gated_deltanet", "kda", "lightning", "rwkv5", "rwkv7", "short_conv")

_MAX_WIDTH = 10_000_000
_MAX_HEADS = 100_000


class _Missing(Exception):
    """A dimension that is not given."""


class _Dimensions:
    """Reads whole numbers; what is missing ends the reading, and its name is kept."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields

    def need(self, *names: str) -> int:
        for name in names:
            value = self.fields.integer(name, 1, _MAX_WIDTH)
            if value is not None:
                return value
        raise _Missing(names[0])

    def get(self, name: str, default: int) -> int:
        value = self.fields.integer(name, 1, _MAX_WIDTH)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.flag(name)
        return default if value is None else value


def read_state_mixer(name: str, linear: Fields, model_type: str | None) -> StateMixer | OtherMixer:
    """The mixer of this name with the dimensions of `linear`; an unknown one where a dimension is missing."""
    d = _Dimensions(linear)
    try:
        return _read(name, d, model_type)
    except _Missing as missing:
        return OtherMixer(name, {"missing": f"{missing} of linear_layers"})


def _read(name: str, d: _Dimensions, model_type: str | None) -> StateMixer:
    if name == "mamba1":
        return Mamba1(
            d.need("d_inner"),
            d.need("state_size"),
            d.need("conv_kernel"),
            d.need("dt_rank"),
            inner_norms=d.flag("inner_norms", model_type == "jamba"),
        )
    if name in ("mamba2", PARALLEL, SHARED):
        return Mamba2(
            d.need("num_heads"),
            d.need("head_dim"),
            d.need("n_groups"),
            d.need("state_size"),
            d.need("conv_kernel"),
            gated_norm=d.flag("gated_norm", name != PARALLEL),
        )
    if name == "gated_deltanet":
        return GatedDeltaNet(
            d.need("num_key_heads"),
            d.need("num_value_heads"),
            d.need("key_head_dim"),
            d.need("value_head_dim"),
            d.need("conv_kernel"),
        )
    if name == "kda":
        head_dim = d.need("head_dim")
        rank = None if d.flag("full_rank_gate", False) else d.get("gate_rank", head_dim)
        return KimiDeltaAttention(d.need("num_heads"), head_dim, d.need("conv_kernel"), rank)
    if name == "lightning":
        shape = d.fields.data.get("state_shape_per_head")
        square = isinstance(shape, list) and len(shape) == 2 and shape[0] == shape[1] and isinstance(shape[0], int)
        width = shape[0] if square and isinstance(shape, list) and 1 <= shape[0] <= _MAX_WIDTH else None
        return LightningAttention(d.need("heads"), d.need("head_dim") if width is None else width)
    if name == "rwkv5":
        return Rwkv5(d.need("num_heads"), d.need("head_dim"))
    if name == "short_conv":
        return ShortConvolution(d.need("width"), d.need("conv_kernel"), bias=d.flag("conv_bias", False))
    return Rwkv7(
        d.need("num_heads"),
        d.need("head_dim"),
        d.need("decay_rank"),
        d.need("rate_rank"),
        d.need("value_rank"),
        d.need("gate_rank"),
    )


def state_mixer_json(mixer: StateMixer) -> tuple[str, dict[str, Any]]:
    """Name and dimensions of a mixer, as `read_state_mixer` takes them."""
    if isinstance(mixer, Mamba1):
        return "mamba1", {
            "d_inner": mixer.inner,
            "state_size": mixer.state,
            "conv_kernel": mixer.conv,
            "dt_rank": mixer.dt_rank,
            "inner_norms": mixer.inner_norms,
        }
    if isinstance(mixer, Mamba2):
        return "mamba2", {
            "num_heads": mixer.heads,
            "head_dim": mixer.head_dim,
            "n_groups": mixer.groups,
            "state_size": mixer.state,
            "conv_kernel": mixer.conv,
            "gated_norm": mixer.gated_norm,
        }
    if isinstance(mixer, GatedDeltaNet):
        return "gated_deltanet", {
            "num_key_heads": mixer.key_heads,
            "num_value_heads": mixer.value_heads,
            "key_head_dim": mixer.key_head_dim,
            "value_head_dim": mixer.value_head_dim,
            "conv_kernel": mixer.conv,
        }
    if isinstance(mixer, KimiDeltaAttention):
        gate: dict[str, Any] = {"full_rank_gate": True} if mixer.gate_rank is None else {"gate_rank": mixer.gate_rank}
        return "kda", {
            "num_heads": mixer.heads,
            "head_dim": mixer.head_dim,
            "conv_kernel": mixer.conv,
            **gate,
        }
    if isinstance(mixer, LightningAttention):
        return "lightning", {"heads": mixer.heads, "head_dim": mixer.head_dim}
    if isinstance(mixer, Rwkv5):
        return "rwkv5", {"num_heads": mixer.heads, "head_dim": mixer.head_dim}
    if isinstance(mixer, ShortConvolution):
        return "short_conv", {"width": mixer.width, "conv_kernel": mixer.conv, "conv_bias": mixer.bias}
    return "rwkv7", {
        "num_heads": mixer.heads,
        "head_dim": mixer.head_dim,
        "decay_rank": mixer.decay_rank,
        "rate_rank": mixer.rate_rank,
        "value_rank": mixer.value_rank,
        "gate_rank": mixer.gate_rank,
    }


SHARED_BLOCK = (
    "heads", "kv_heads", "head_dim", "input_width", "mlp_intermediate", "mlp_gated", "weight_sets", "lora_rank",
)  # fmt: skip


def read_shared_block(layer: Fields) -> SharedAttentionBlock:
    """`shared_block` of a layer group. Raises InvalidInput for what is missing."""
    layer.require("shared_block", "give the block that the layers share")
    part = Fields(layer.data["shared_block"], layer.at("shared_block"), SHARED_BLOCK)
    for name in ("heads", "head_dim", "input_width", "mlp_intermediate", "weight_sets", "lora_rank"):
        part.require(name, "a shared block needs it")
    heads = part.integer("heads", 1, _MAX_HEADS) or 0
    head_dim = part.integer("head_dim", 1, _MAX_WIDTH) or 0
    gated = part.flag("mlp_gated")
    return SharedAttentionBlock(
        Attention(heads, part.integer("kv_heads", 1, _MAX_HEADS) or heads, head_dim, head_dim),
        part.integer("input_width", 1, _MAX_WIDTH) or 0,
        DenseMlp(part.integer("mlp_intermediate", 1, _MAX_WIDTH) or 0, True if gated is None else gated),
        part.integer("weight_sets", 1, 1000) or 0,
        part.integer("lora_rank", 1, _MAX_WIDTH) or 0,
    )


def shared_block_json(block: SharedAttentionBlock) -> Mapping[str, Any]:
    return {
        "heads": block.attention.heads,
        "kv_heads": block.attention.kv_heads,
        "head_dim": block.attention.head_dim,
        "input_width": block.input_width,
        "mlp_intermediate": block.mlp.intermediate,
        "mlp_gated": block.mlp.gated,
        "weight_sets": block.weight_sets,
        "lora_rank": block.lora_rank,
    }
