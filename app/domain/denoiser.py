"""Denoisers of diffusion models: diffusion transformers and convolutional U-nets, their products and parameters.

Each product is stated once, with what it runs over; parameters and cost rows are both made from that list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.domain.units import Grid

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
    def coarsest(self) -> int:
        """Latent elements along the longer side of a patch."""
        return max(self.patch[1], self.patch[2])

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

Over: TypeAlias = Literal["image", "text", "both", "sample"]
Part: TypeAlias = Literal["attention", "mlp", "other"]
Split: TypeAlias = Literal["outputs", "inputs", "whole"]


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products of `inputs` x `outputs` with a bias, over latent tokens, text tokens, both or once a sample.

    `split`: what tensor parallelism divides; "inputs" needs a sum over the group afterwards.
    """

    name: str
    inputs: int
    outputs: int
    over: Over
    count: int = 1
    part: Part = "other"
    split: Split = "whole"
    bias: bool = True

    def parameters(self, tp: Grid = 1) -> Grid:
        """Parameters of all of them on one rank."""
        matrix: Grid = self.inputs * self.outputs / (1 if self.split == "whole" else tp)
        bias: Grid = self.outputs / (tp if self.split == "outputs" else 1)
        return self.count * (matrix + (bias if self.bias else 0.0))


def transformer_products(d: DiffusionTransformer) -> Iterator[Product]:
    """Every product of a diffusion transformer, in the order of a step."""
    yield Product("patch embedding", d.latent.patch_elements, d.hidden, "image")
    yield from _conditioning(d)
    width, mlp = d.attention_width, d.intermediate
    blocks = d.double_blocks
    for i, over in enumerate(_streams(d)):
        whole = blocks if over != "text" or d.last_text_stream else blocks - 1
        name = ("", "text ")[i]
        yield Product(f"{name}query, key and value", d.hidden, 3 * width, over, blocks, "attention", "outputs")
        yield Product(f"{name}attention output", width, d.hidden, over, whole, "attention", "inputs")
        yield Product(f"{name}mlp up", d.hidden, mlp, over, whole, "mlp", "outputs")
        yield Product(f"{name}mlp down", mlp, d.hidden, over, whole, "mlp", "inputs")
    if d.text_attention == "cross":
        yield Product("cross query", d.hidden, width, "image", blocks, "attention", "outputs")
        yield Product("cross key and value", d.hidden, 2 * width, "text", blocks, "attention", "outputs")
        yield Product("cross output", width, d.hidden, "image", blocks, "attention", "inputs")
    if d.dual_attention:
        n = d.dual_attention
        yield Product("second query, key and value", d.hidden, 3 * width, "image", n, "attention", "outputs")
        yield Product("second attention output", width, d.hidden, "image", n, "attention", "inputs")
    if d.single_blocks:
        n = d.single_blocks
        yield Product(
            "fused query, key, value and mlp up", d.hidden, 3 * width + mlp, "both", n, "attention", "outputs"
        )
        yield Product("fused attention output and mlp down", width + mlp, d.hidden, "both", n, "mlp", "inputs")
    yield Product("final projection", d.hidden, _final_width(d), "image")


def _final_width(d: DiffusionTransformer) -> int:
    return d.latent.patch_elements // d.latent.channels * d.out_channels


def _streams(d: DiffusionTransformer) -> tuple[Over, ...]:
    """What double blocks have weights for."""
    if d.text_attention == "joint":
        return ("image", "text")
    return ("both",) if d.text_attention == "joint, shared weights" else ("image",)


def _conditioning(d: DiffusionTransformer) -> Iterator[Product]:
    """Text input, time step, and the shifts and scales of the blocks."""
    h, m = d.hidden, d.modulation_width
    if d.text_width:
        yield Product("text projection", d.text_width, h, "text")
        if d.text_attention == "cross":
            yield Product("text projection 2", h, h, "text")
    if d.refiners:
        yield Product("text refiner query, key and value", h, 3 * h, "text", d.refiners, "attention", "outputs")
        yield Product("text refiner output", h, h, "text", d.refiners, "attention", "inputs")
        yield Product("text refiner up", h, d.intermediate, "text", d.refiners, "mlp", "outputs")
        yield Product("text refiner down", d.intermediate, h, "text", d.refiners, "mlp", "inputs")
        yield Product("text refiner modulation", h, 2 * h, "sample", d.refiners)
    # a block of shared weights embeds the time step at the width of its hidden state, others at 256 frequencies
    frequencies = h if m != h else 256
    for name, inputs, present in (
        ("time step", frequencies, True),
        ("pooled text", d.pooled_width, d.pooled_width > 0),
        ("guidance", 256, d.guidance),
    ):
        if present:
            yield Product(f"{name} embedding", inputs, m, "sample")
            yield Product(f"{name} embedding 2", m, m, "sample")
    if d.modulation == "shared":
        yield Product("modulation", h, 6 * h, "sample")
        return
    both = 12 if d.text_attention == "joint, shared weights" else 6
    yield Product("modulation", m, both * h, "sample", d.double_blocks)
    if d.text_attention == "joint":
        full = d.double_blocks if d.last_text_stream else d.double_blocks - 1
        yield Product("text modulation", m, 6 * h, "sample", full)
        if not d.last_text_stream:
            yield Product("last text modulation", m, 2 * h, "sample")
    if d.dual_attention:
        yield Product("second modulation", m, 3 * h, "sample", d.dual_attention)
    if d.single_blocks:
        yield Product("fused modulation", m, 3 * h, "sample", d.single_blocks)
    yield Product("final modulation", m, 2 * h, "sample")


@dataclass(frozen=True, slots=True)
class UNetStep:
    """One part of a U-net at one resolution, in the order of a step.

    `factor` divides width and height of the latent. "residual" is two 3x3 convolutions with a time embedding between
    them, "transformer" `depth` blocks of self-attention, attention to text and a gated MLP.
    """

    kind: Literal["convolution", "residual", "transformer"]
    name: str
    inputs: int
    outputs: int
    factor: int
    depth: int = 0


def unet_steps(u: UNet) -> Iterator[UNetStep]:
    """The parts of a U-net: down, middle, up, with the widths that skip connections add on the way up."""
    first = u.channels[0]
    yield UNetStep("convolution", "input convolution", u.latent.channels, first, 1)
    skips = [first]
    width = first
    last = len(u.channels) - 1
    for level, channels in enumerate(u.channels):
        for _ in range(u.layers_per_block):
            yield UNetStep("residual", "down residual", width, channels, 2**level)
            width = channels
            if u.depth[level]:
                yield UNetStep("transformer", "down transformer", width, width, 2**level, u.depth[level])
            skips.append(width)
        if level < last:
            yield UNetStep("convolution", "downsampling", width, width, 2 ** (level + 1))
            skips.append(width)
    yield UNetStep("residual", "middle residual", width, width, 2**last)
    if u.middle_depth:
        yield UNetStep("transformer", "middle transformer", width, width, 2**last, u.middle_depth)
    yield UNetStep("residual", "middle residual", width, width, 2**last)
    for level in range(last, -1, -1):
        channels = u.channels[level]
        for _ in range(u.layers_per_block + 1):
            yield UNetStep("residual", "up residual", width + skips.pop(), channels, 2**level)
            width = channels
            if u.depth[level]:
                yield UNetStep("transformer", "up transformer", width, width, 2**level, u.depth[level])
        if level:
            yield UNetStep("convolution", "upsampling", width, width, 2 ** (level - 1))
    yield UNetStep("convolution", "output convolution", width, u.latent.channels, 1)


def time_width(u: UNet) -> int:
    """Width of a U-net's time embedding."""
    return 4 * u.channels[0]


def _unet_step_parameters(u: UNet, step: UNetStep) -> tuple[Part, int]:
    i, o = step.inputs, step.outputs
    if step.kind == "convolution":
        return "other", 9 * i * o + o
    if step.kind == "residual":
        shortcut = i * o + o if i != o else 0
        return "other", 2 * i + 9 * i * o + o + time_width(u) * o + o + 2 * o + 9 * o * o + o + shortcut
    ends = 2 * o + 2 * (o * o + o)
    own = 4 * o * o + o
    cross = 2 * o * o + 2 * u.cross_width * o + o
    mlp = 8 * o * o + 8 * o + 4 * o * o + o
    return "attention", ends + step.depth * (6 * o + own + cross + mlp)


@dataclass(frozen=True, slots=True)
class DenoiserParameters:
    """Parameters on one rank. `total` counts every stored network, `active` the one that runs."""

    total: Grid
    active: Grid
    attention: Grid
    mlp: Grid


def denoiser_parameters(denoiser: Denoiser, tp: Grid = 1) -> DenoiserParameters:
    """Parameters of a denoiser, from its products; gains and tables of a few vectors a block included."""
    if isinstance(denoiser, UNet):
        t = time_width(denoiser)
        embedding = denoiser.channels[0] * t + t + t * t + t
        if denoiser.pooled_width:
            embedding += denoiser.pooled_width * t + t + t * t + t
        parts = [_unet_step_parameters(denoiser, step) for step in unet_steps(denoiser)]
        attention = float(sum(size for part, size in parts if part == "attention"))
        total = float(sum(size for _, size in parts) + embedding + 2 * denoiser.channels[0])
        return DenoiserParameters(total, total, attention, 0.0)
    sums: dict[Part, Grid] = {"attention": 0.0, "mlp": 0.0, "other": 0.0}
    for product in transformer_products(denoiser):
        sums[product.part] = sums[product.part] + product.parameters(tp)
    h = denoiser.hidden
    tables = float(denoiser.classes * h + (6 * h * denoiser.double_blocks + 2 * h) * (denoiser.modulation == "shared"))
    one = sums["attention"] + sums["mlp"] + sums["other"] + tables
    n = denoiser.networks
    return DenoiserParameters(n * one, one, n * sums["attention"], n * sums["mlp"])
