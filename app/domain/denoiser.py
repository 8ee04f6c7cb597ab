"""Denoisers of diffusion models: diffusion transformers and convolutional U-nets, as dimensions only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

TextAttention: TypeAlias = Literal["none", "joint", "joint, shared weights", "cross"]
Modulation: TypeAlias = Literal["per block", "shared"]


@dataclass(frozen=True, slots=True)
class LatentGrid:
    """How an image or a video becomes latent tokens.

    `spatial` pixels a latent element (the autoencoder's factor) and `temporal` frames a latent frame, the first frame
    on its own; `patch` latent elements (frames, rows, columns) a token.
    """

    channels: int
    spatial: int
    temporal: int | None
    patch: tuple[int, int, int]
    width: int
    height: int
    frames: int

    def latent_frames(self, frames: int) -> int:
        """Latent frames of so many frames."""
        return 1 if self.temporal is None else (frames - 1) // self.temporal + 1

    def tokens(self, width: int, height: int, frames: int) -> int:
        """Tokens of one picture or clip (F-13.4); edges are padded to whole patches."""
        t, rows, columns = self.patch
        side = self.spatial
        return -(-self.latent_frames(frames) // t) * -(-(height // side) // rows) * -(-(width // side) // columns)

    @property
    def patch_elements(self) -> int:
        """Latent elements of one token."""
        return self.channels * self.patch[0] * self.patch[1] * self.patch[2]


@dataclass(frozen=True, slots=True)
class DiffusionTransformer:
    """A stack of transformer blocks over latent tokens, conditioned on the time step by adaptive norms.

    `text_attention`: "none" is conditioned on a class only (DiT); "joint" has a second stream of text tokens with its
    own weights in `double_blocks` and one fused stream in `single_blocks` (MMDiT, Flux); "joint, shared weights" uses
    one set of weights for both (CogVideoX); "cross" attends to text between self-attention and MLP (PixArt, Wan).
    `modulation`: a block computes its shifts and scales by a product of its own from a vector of `modulation_width`, or
    all share one product. `dual_attention` blocks attend to the picture a second time. `last_text_stream` is false
    where the last double block only reads the text. `networks` are stored, of which one runs in a step. `refiners`
    transformer blocks run over the text first.
    """

    hidden: int
    heads: int
    head_dim: int
    intermediate: int
    double_blocks: int
    single_blocks: int
    text_attention: TextAttention
    modulation: Modulation
    modulation_width: int
    latent: LatentGrid
    out_channels: int
    text_tokens: int
    text_width: int
    pooled_width: int = 0
    classes: int = 0
    guidance: bool = False
    qk_norm: bool = False
    dual_attention: int = 0
    last_text_stream: bool = True
    networks: int = 1
    refiners: int = 0

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class UNet:
    """A convolutional U-net with transformer blocks (Stable Diffusion 1 and XL).

    `channels` by level, `depth` transformer blocks behind each residual block of a level, `middle_depth` in the middle.
    `head_dim` None: `heads` heads at every level, so that heads widen with the channels. `cross_width` is the width of
    the text tokens; `pooled_width` that of further conditioning beside the time step.
    """

    channels: tuple[int, ...]
    depth: tuple[int, ...]
    middle_depth: int
    layers_per_block: int
    heads: int | None
    head_dim: int | None
    cross_width: int
    pooled_width: int
    latent: LatentGrid
    text_tokens: int


Denoiser: TypeAlias = DiffusionTransformer | UNet
