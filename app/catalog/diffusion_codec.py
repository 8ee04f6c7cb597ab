"""The `diffusion` object of a model to a denoiser."""

from __future__ import annotations

import re
from typing import Any, cast, get_args

from app.catalog.fields import Fields
from app.domain.denoiser import Denoiser, DiffusionTransformer, LatentGrid, Modulation, TextAttention, UNet
from app.domain.errors import InvalidInput

_MAX_WIDTH = 10_000_000
_MAX_COUNT = 100_000


def read_denoiser(kind: str, top: Fields) -> Denoiser | None:
    """The denoiser of a `dit` or `unet` model, None where `diffusion` does not describe one.

    A transformer needs `text_attention` and `modulation`: names of families do not say how blocks are built.
    Raises InvalidInput for values that make no sense.
    """
    data = top.object("diffusion")
    if not data or kind not in ("dit", "unet"):
        return None
    f = Fields(data, top.at("diffusion"), list(data))
    grid = _grid(f)
    if grid is None:
        return None
    return _unet(f, grid) if kind == "unet" else _transformer(f, top, grid)


def _grid(f: Fields) -> LatentGrid | None:
    channels, spatial = f.integer("latent_channels", 1, _MAX_WIDTH), f.integer("vae_spatial_factor", 1, 1000)
    size = _resolution(f)
    if channels is None or spatial is None or size is None:
        return None
    frames = f.integer("default_frames", 1, 100_000) or 1
    temporal = f.integer("vae_temporal_factor", 1, 1000)
    return LatentGrid(channels, spatial, temporal, _patch(f), *size, frames if temporal else 1)


def _patch(f: Fields) -> tuple[int, int, int]:
    value = f.data.get("patch")
    if value is None:
        return (1, 1, 1)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000:
        return (1, value, value)
    whole = isinstance(value, list) and all(isinstance(n, int) and 1 <= n <= 1000 for n in value)
    if whole and len(cast(list[Any], value)) == 3:
        t, rows, columns = cast(list[int], value)
        return (t, rows, columns)
    raise InvalidInput(f.at("patch"), "expected the side of a patch, or frames, rows and columns in a list")


def _resolution(f: Fields) -> tuple[int, int] | None:
    value = f.data.get("default_resolution")
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000:
        return (value, value)
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})", value) if isinstance(value, str) else None
    if found is None or "0" in (found[1].lstrip("0") or "0", found[2].lstrip("0") or "0"):
        raise InvalidInput(f.at("default_resolution"), 'expected pixels of a side, or "width x height" like "832x480"')
    return (int(found[1]), int(found[2]))


def _transformer(f: Fields, top: Fields, grid: LatentGrid) -> DiffusionTransformer | None:
    text_attention = f.choice("text_attention", get_args(TextAttention))
    modulation = f.choice("modulation", get_args(Modulation))
    hidden = f.integer("hidden", 1, _MAX_WIDTH) or top.integer("hidden_size", 1, _MAX_WIDTH)
    heads = f.integer("heads", 1, _MAX_COUNT) or top.integer("num_attention_heads", 1, _MAX_COUNT)
    blocks = f.integer("double_blocks", 1, _MAX_COUNT)
    if text_attention is None or modulation is None or hidden is None or heads is None or blocks is None:
        return None
    if hidden % heads:
        raise InvalidInput(f.at("heads"), f"{heads} heads do not divide the hidden size {hidden}")
    last, guidance = f.flag("last_text_stream"), f.flag("guidance_embedding")
    return DiffusionTransformer(
        hidden=hidden,
        heads=heads,
        head_dim=top.integer("head_dim", 1, _MAX_WIDTH) or hidden // heads,
        intermediate=top.integer("intermediate_size", 1, _MAX_WIDTH) or 4 * hidden,
        double_blocks=blocks,
        single_blocks=f.integer("single_blocks", 0, _MAX_COUNT) or 0,
        text_attention=cast(TextAttention, text_attention),
        modulation=cast(Modulation, modulation),
        modulation_width=f.integer("modulation_width", 1, _MAX_WIDTH) or hidden,
        latent=grid,
        out_channels=f.integer("out_channels", 1, _MAX_WIDTH) or grid.channels,
        text_tokens=f.integer("text_tokens", 0, _MAX_WIDTH) or 0,
        text_width=f.integer("context_dim", 1, _MAX_WIDTH) or 0,
        pooled_width=f.integer("pooled_conditioning_dim", 1, _MAX_WIDTH) or 0,
        classes=f.integer("class_rows", 1, _MAX_WIDTH) or 0,
        guidance=guidance or False,
        dual_attention=f.integer("dual_attention_layers", 0, _MAX_COUNT) or 0,
        last_text_stream=True if last is None else last,
        networks=f.integer("networks", 1, 1000) or 1,
        refiners=f.integer("text_refiner_blocks", 0, _MAX_COUNT) or 0,
    )


def _unet(f: Fields, grid: LatentGrid) -> UNet | None:
    channels = _whole_numbers(f, "block_out_channels")
    depth = _whole_numbers(f, "transformer_depth", least=0)
    layers, cross = f.integer("layers_per_block", 1, 1000), f.integer("cross_attention_dim", 1, _MAX_WIDTH)
    if not channels or depth is None or layers is None or cross is None:
        return None
    if len(depth) != len(channels):
        raise InvalidInput(f.at("transformer_depth"), f"has {len(depth)} levels, block_out_channels {len(channels)}")
    heads, head_dim = f.integer("heads", 1, _MAX_COUNT), f.integer("attention_head_dim", 1, _MAX_WIDTH)
    if heads is None and head_dim is None:
        return None
    return UNet(
        channels=channels,
        depth=depth,
        middle_depth=f.integer("middle_transformer_depth", 0, 1000) or 0,
        layers_per_block=layers,
        heads=heads,
        head_dim=head_dim,
        cross_width=cross,
        pooled_width=f.integer("pooled_conditioning_dim", 1, _MAX_WIDTH) or 0,
        latent=grid,
        text_tokens=f.integer("text_tokens", 0, _MAX_WIDTH) or 0,
    )


def _whole_numbers(f: Fields, key: str, least: int = 1) -> tuple[int, ...] | None:
    value = f.data.get(key)
    if value is None:
        return None
    whole = isinstance(value, list) and len(value) <= 32
    if not whole or not all(isinstance(n, int) and not isinstance(n, bool) and least <= n <= 10**6 for n in value):
        raise InvalidInput(f.at(key), "expected a list of at most 32 whole numbers")
    return tuple(value)
