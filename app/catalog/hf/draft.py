"""What a reader makes of a configuration: the catalogue's own JSON shape, layer by layer, then in groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

LayerJson: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class Draft:
    """A model on its way from a configuration to a record of the catalogue.

    `layers` has one entry for each layer, in order. `facts` are further fields of the record (`linear_layers`, `mtp`,
    `vision`, ...).
    """

    kind: str
    hidden: int
    vocab: int
    layers: list[LayerJson]
    norm: str = "rmsnorm"
    norms_per_layer: int = 2
    gated: bool = True
    tied: bool = False
    lm_head_bias: bool = False
    parallel_block: bool = False
    position_embedding: str | None = "rope"
    max_position: int | None = None
    activation: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The record without its name. What layers have in common is repeated at the top, as pages show it."""
        layers = grouped(self.layers)
        attention = next((layer for layer in layers if "heads" in layer), None)
        # Which dense width stands for the model: the first one; experts have their own fields.
        dense = next((layer["mlp_intermediate"] for layer in layers if layer.get("mlp_intermediate")), None)
        moe = next((layer["moe"] for layer in layers if layer.get("moe")), None)
        if moe:
            sparse = [layer.get("mlp") in ("moe", "dense+moe") for layer in self.layers]
            first = sparse.index(True)
            moe = {**moe, "first_dense_layers": first if all(sparse[first:]) else 0}
        biases = [any(layer.get(f"{part}_bias") for layer in layers) for part in ("q", "k", "v", "o")]
        record: dict[str, Any] = {
            "kind": self.kind,
            "hidden_size": self.hidden or None,
            "num_layers": len(self.layers),
            **_heads(attention),
            "intermediate_size": dense or (moe and moe["expert_intermediate_size"]),
            "mlp_gated": self.gated,
            "activation": self.activation,
            "norm": self.norm,
            "norms_per_layer": self.norms_per_layer,
            "vocab_size": self.vocab or None,
            "tie_word_embeddings": self.tied,
            "attention_bias": any(biases),
            "bias_detail": {
                **dict(zip(("q", "k", "v", "o"), biases, strict=True)),
                "mlp": any(layer.get("mlp_bias") for layer in layers),
                "lm_head": self.lm_head_bias,
            },
            "attention_sinks": any(layer.get("sinks") for layer in layers),
            "max_position": self.max_position,
            "position_embedding": self.position_embedding,
            "sliding_window": next((layer["window"] for layer in layers if layer.get("window")), None),
            "layers": layers,
            "parallel_block": self.parallel_block,
            "moe": moe,
            **self.facts,
        }
        return {key: value for key, value in record.items() if value is not None}


def _heads(attention: Mapping[str, Any] | None) -> dict[str, Any]:
    """The heads of the first layer with attention. With latent attention every head has keys of its own."""
    if attention is None:
        return {}
    heads, latent = attention["heads"], attention.get("mla")
    if latent is None:
        kv_heads, head_dim = attention.get("kv_heads"), attention.get("head_dim")
        return {"num_attention_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    return {
        "num_attention_heads": heads,
        "num_kv_heads": heads,
        "head_dim": latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"],
        "mla": {
            **latent,
            "cached_elements_per_token_per_layer": latent["kv_lora_rank"] + latent["qk_rope_head_dim"],
        },
    }


def grouped(layers: Iterable[LayerJson]) -> list[dict[str, Any]]:
    """Equal layers as one group with their count, in the order in which each shape first occurs."""
    groups: dict[str, dict[str, Any]] = {}
    for index, layer in enumerate(layers):
        key = json.dumps(layer, sort_keys=True)
        if key in groups:
            groups[key]["count"] += 1
        else:
            groups[key] = {"count": 1, **layer, "first_index": index}
    return list(groups.values())


def attention_layer(
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    v_head_dim: int | None = None,
    kind: str = "full",
    window: int | None = None,
    qkv_bias: tuple[bool, bool, bool] = (False, False, False),
    o_bias: bool = False,
    qk_norm: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The attention half of a layer; `more` are further flags of the shape (`sinks`, `v_from_k`, ...) that hold."""
    q, k, v = qkv_bias
    layer: dict[str, Any] = {
        "mixer": "gqa",
        "kind": kind,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": head_dim if v_head_dim is None else v_head_dim,
        "qk_norm": qk_norm or "none",
        "q_bias": q,
        "k_bias": k,
        "v_bias": v,
        "o_bias": o_bias,
    }
    if window is not None:
        layer["window"] = window
    return layer | {key: value for key, value in more.items() if value}


def dense_mlp(width: int, *, gated: bool = True, bias: bool = False) -> dict[str, Any]:
    """The MLP half of a layer."""
    return {"mlp": "dense", "mlp_intermediate": width, "mlp_gated": gated, "mlp_bias": bias}


NO_MLP: LayerJson = {"mlp": "none"}
NO_MIXER: LayerJson = {"mixer": "none"}
