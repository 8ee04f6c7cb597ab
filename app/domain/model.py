"""An architecture: layers with their dimensions, and nothing about how or where it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from app.domain.denoiser import Denoiser
from app.domain.errors import UnsupportedArchitecture

AttentionKind: TypeAlias = Literal["full", "sliding", "chunked", "bidirectional", "cross"]


@dataclass(frozen=True, slots=True)
class SparseIndexer:
    """A small scorer that picks the keys a query attends to (DeepSeek sparse attention, trained block sparsity).

    At most `top_keys` keys are attended to. `counted` is false where the dimensions of its projections are not known
    well enough to count their parameters.
    """

    heads: int
    head_dim: int
    top_keys: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention; MHA, GQA and MQA differ only in `kv_heads`.

    `window` limits a query to its last `window` keys (sliding) or to its own chunk of `window` tokens (chunked).
    `own_kv` is false where the layer reads another layer's cache. `qk_norm`: "head" has a gain vector of `head_dim`
    for queries and keys, "full" one over all heads' width. `sinks` adds one learned logit a head (gpt-oss).
    `v_from_k`: values are the key projection, so there is no value projection (Gemma 4's full layers); both are cached.
    `indexer`: a query attends to chosen keys only. `output_gate`: a second projection as wide as the queries scales the
    output (Qwen3-Next).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    kind: AttentionKind = "full"
    window: int | None = None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None
    own_kv: bool = True
    sinks: bool = False
    v_from_k: bool = False
    indexer: SparseIndexer | None = None
    output_gate: bool = False

    @property
    def variant(self) -> str:
        """MHA, GQA or MQA."""
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): one compressed latent and one shared rotary key are cached.

    `indexer` is DeepSeek sparse attention: a query attends to the keys that it picks. `output_gate` scales the heads'
    outputs by a projection of the layer's input (Kimi K3).
    """

    heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    indexer: SparseIndexer | None = None
    output_gate: bool = False

    @property
    def cached_elements(self) -> int:
        """Elements cached per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention to a window of tokens and to compressed entries of everything before (DeepSeek-V4).

    One key of `head_dim` serves all heads as key and value. With a `ratio`, each `ratio` tokens are pooled into one
    more entry; windows that overlap (those with an `indexer`, which picks entries) pool twice as many. Queries and
    outputs pass low ranks, outputs in `o_groups` groups. `streams` residual streams are mixed around both halves of the
    layer (hyper-connections).
    """

    heads: int
    head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    window: int
    ratio: int = 0
    indexer: SparseIndexer | None = None
    streams: int = 1

    @property
    def pooled_width(self) -> int:
        """Width of what a token brings to its pooled entries, and again of the weights it is pooled by."""
        return 0 if not self.ratio else self.head_dim * (1 if self.indexer is None else 2)

    @property
    def mixed(self) -> int:
        """Outputs of a hyper-connection: where to read, where to write, and how streams mix."""
        return 0 if self.streams == 1 else (2 + self.streams) * self.streams


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state space (S6): `inner` channels with a state of `state` elements each, scanned in order.

    `inner_norms` normalises the step size and the input and output maps (Jamba).
    """

    inner: int
    state: int
    conv: int
    dt_rank: int
    inner_norms: bool = False

    @property
    def state_elements(self) -> int:
        """Recurrent state of one layer and sequence."""
        return self.inner * self.state

    @property
    def conv_elements(self) -> int:
        """Past inputs that the causal convolution keeps for one layer and sequence."""
        return self.inner * (self.conv - 1)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space duality (SSD): `heads` heads of `head_dim` channels share a scalar decay and `groups` input maps."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    gated_norm: bool = True

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.groups * self.state

    @property
    def state_elements(self) -> int:
        return self.inner * self.state

    @property
    def conv_elements(self) -> int:
        return self.conv_channels * (self.conv - 1)


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated delta rule (Qwen3-Next): a matrix of key by value dimensions per value head is the state."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_head_dim

    @property
    def state_elements(self) -> int:
        return self.value_width * self.key_head_dim

    @property
    def conv_elements(self) -> int:
        return (2 * self.key_width + self.value_width) * (self.conv - 1)


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention:
    """Delta rule with a decay per channel (KDA). `gate_rank` None: the output gate is one full matrix."""

    heads: int
    head_dim: int
    conv: int
    gate_rank: int | None = None

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        return self.width * self.head_dim

    @property
    def conv_elements(self) -> int:
        return 3 * self.width * (self.conv - 1)


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay per head and an output gate (MiniMax)."""

    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        return self.width * self.head_dim

    @property
    def conv_elements(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Rwkv5:
    """RWKV-5 time mixing: linear attention with learned decay, bonus and gate. The last input is kept as well."""

    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        return self.width * self.head_dim

    @property
    def conv_elements(self) -> int:
        return self.width


@dataclass(frozen=True, slots=True)
class Rwkv7:
    """RWKV-7 time mixing: a delta rule whose decay, learning rate, value mix and gate are low-rank maps."""

    heads: int
    head_dim: int
    decay_rank: int
    rate_rank: int
    value_rank: int
    gate_rank: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        return self.width * self.head_dim

    @property
    def conv_elements(self) -> int:
        return self.width


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A causal convolution of few taps between two gates, all three of one projection (LFM2). Its last inputs stay."""

    width: int
    conv: int
    bias: bool = False

    @property
    def state_elements(self) -> int:
        return 0

    @property
    def conv_elements(self) -> int:
        return self.width * (self.conv - 1)


StateMixer: TypeAlias = (
    Mamba1 | Mamba2 | GatedDeltaNet | KimiDeltaAttention | LightningAttention | Rwkv5 | Rwkv7 | ShortConvolution
)
"""Mixers that keep a state of constant size instead of a cache that grows with the context."""


@dataclass(frozen=True, slots=True)
class ParallelMixers:
    """Attention and a state-space mixer that read the same input; their outputs are added (Falcon-H1)."""

    attention: Attention
    state: Mamba2


@dataclass(frozen=True, slots=True)
class SharedAttentionBlock:
    """A whole attention and MLP block that runs before a state-space layer with weights shared between layers (Zamba2).

    Attention reads the layer's input beside the token's embedding (`input_width`, twice the hidden size). `weight_sets`
    sets of weights serve all layers in turn; each use adds a low-rank update of the MLP's first matrix (`lora_rank`)
    and a projection of its own. Each use has its own cache.
    """

    attention: Attention
    input_width: int
    mlp: DenseMlp
    weight_sets: int
    lora_rank: int


@dataclass(frozen=True, slots=True)
class SharedBlockThenMixer:
    """A layer of a stack with a shared attention block: the block, then the layer's own state-space mixer."""

    block: SharedAttentionBlock
    mixer: Mamba2


@dataclass(frozen=True, slots=True)
class SelfAndCrossAttention:
    """Attention of an encoder-decoder's decoder layer: to its own tokens, then to the encoder's output."""

    own: Attention
    cross: Attention


@dataclass(frozen=True, slots=True)
class OtherMixer:
    """A token mixer that the cost table does not know: named, so that a refusal can say what is missing."""

    name: str
    detail: Mapping[str, Any] = field(default_factory=dict)


Mixer: TypeAlias = (
    Attention
    | LatentAttention
    | CompressedAttention
    | StateMixer
    | ParallelMixers
    | SharedBlockThenMixer
    | SelfAndCrossAttention
    | OtherMixer
)


def mixer_parts(mixer: Mixer | None) -> tuple[Attention | LatentAttention | CompressedAttention | StateMixer, ...]:
    """The plain mixers that a layer's mixer is made of."""
    if isinstance(mixer, ParallelMixers):
        return (mixer.attention, mixer.state)
    if isinstance(mixer, SharedBlockThenMixer):
        return (mixer.block.attention, mixer.mixer)
    if isinstance(mixer, SelfAndCrossAttention):
        return (mixer.own, mixer.cross)
    return () if mixer is None or isinstance(mixer, OtherMixer) else (mixer,)


STATE_MIXERS = (
    Mamba1, Mamba2, GatedDeltaNet, KimiDeltaAttention, LightningAttention, Rwkv5, Rwkv7, ShortConvolution,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """`gated` has three matrices (gate, up, down), plain has two."""

    intermediate: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts, `top_k` of them per token, and shared experts that every token uses.

    `shared_intermediate` is the width of all shared experts together. `router_bias` is a per-expert bias that is part
    of the routing product; `expert_bias` biases inside the experts. `dense_intermediate` is the width of a dense MLP
    that runs beside the experts in the same layer, where there is one. `shared_expert_gate`: the shared experts' output
    is scaled by one learned gate (a vector of the hidden size). `latent_size`: routed experts read and write this
    width instead of the hidden size, between two projections of the layer.
    """

    experts: int
    top_k: int
    expert_intermediate: int
    shared_experts: int = 0
    shared_intermediate: int = 0
    gated: bool = True
    router_bias: bool = False
    expert_bias: bool = False
    dense_intermediate: int = 0
    shared_expert_gate: bool = False
    latent_size: int | None = None


@dataclass(frozen=True, slots=True)
class RwkvFfn:
    """RWKV-5 channel mixing: two matrices and a receptance matrix that gates the output. The last input is kept."""

    intermediate: int


Mlp: TypeAlias = DenseMlp | MoeMlp | RwkvFfn


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` layers of one shape. `mixer` or `mlp` is None where such layers have only the other half."""

    count: int
    mixer: Mixer | None
    mlp: Mlp | None
    first_index: int = 0
    norms: int = 2


@dataclass(frozen=True, slots=True)
class InputProduct:
    """A product that turns raw input into tokens: a patch projection or a convolution.

    It runs `per_token` times for each token of the stack, with `inputs` numbers in and `outputs` out.
    """

    name: str
    inputs: int
    outputs: int
    per_token: int = 1
    bias: bool = True


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision or audio encoder beside a language model.

    `merge` of its tokens become one token of the language model, by products of `projector_elements` matrix elements
    in all. `item_tokens` of its tokens are one picture (or half a minute of sound); None where pictures differ in size.
    """

    modality: Literal["vision", "audio"]
    stack: ModelSpec
    merge: int
    projector_elements: int
    item_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PredictionModules:
    """Multi-token prediction (DeepSeek-V3): `count` modules, each of a projection from two hidden widths and `layers`.

    Embedding and output head are those of the model.
    """

    count: int
    layers: tuple[LayerGroup, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the cost table needs it.

    `norm_has_bias` is true for LayerNorm with a bias vector. `parallel_block` computes attention and MLP from the same
    input (PaLM, Falcon, GPT-J). `learned_positions` counts rows of a learned position table, and without `rotary`
    queries and keys are not rotated (learned positions, ALiBi, relative biases, none at all). `tower_params` counts the
    vision or audio tower beside the language model. `undescribed` names parameters that no layer describes, where there
    are some. `record` is the whole catalogue entry, for pages that show everything.

    Beyond decoders: `front` turns raw input into tokens where there is no embedding of words; `class_tokens` are
    learned tokens put before them; `token_types` rows of a second table and `embedding_norm` a norm right behind the
    embedding (BERT, RWKV); `relative_positions` learned attention biases; `residual_streams` that
    a last product collapses; `pooling` what follows an encoder's last
    layer. `encoder` is the encoder of an encoder-decoder, whose decoder is `layers`. `tower` and `prediction` run when
    the workload asks for them. `denoiser` stands instead of layers.
    """

    id: str
    name: str
    kind: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerGroup, ...]
    tied_embeddings: bool = False
    lm_head_bias: bool = False
    norm: str = "rmsnorm"
    norm_has_bias: bool = False
    final_norm: bool = True
    learned_positions: int = 0
    rotary: bool = True
    parallel_block: bool = False
    max_position: int | None = None
    activation: str | None = None
    family: str | None = None
    release_year: int | None = None
    hf_id: str | None = None
    hf_model_type: str | None = None
    recorded_total_params: float | None = None
    recorded_active_params: float | None = None
    published_total_params: float | None = None
    published_active_params: float | None = None
    tower_params: int = 0
    undescribed: str | None = None
    front: tuple[InputProduct, ...] = ()
    class_tokens: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    relative_positions: int = 0
    residual_streams: int = 1
    pooling: Literal["dense", "attention"] | None = None
    encoder: ModelSpec | None = None
    tower: Tower | None = None
    prediction: PredictionModules | None = None
    denoiser: Denoiser | None = None
    aliases: tuple[str, ...] = ()
    shipped: bool = True
    copied_from: str | None = None
    weights_stored_as: str | None = None
    """Precision of the published checkpoint's weights, where that is not 16 bits and somebody states it."""
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def is_moe(self) -> bool:
        return any(isinstance(group.mlp, MoeMlp) for group in self.layers)

    def with_prediction(self, modules: int) -> ModelSpec:
        """The model with the layers of so many of its prediction modules behind its own: they cache what those do."""
        if self.prediction is None or not modules:
            return self
        more = tuple(replace(group, count=group.count * modules) for group in self.prediction.layers)
        return replace(self, layers=(*self.layers, *more))

    @property
    def cache_name(self) -> str:
        """What lies in the memory that the cache's bytes count: keys and values, a state of constant size, or both."""
        if not any(True for _ in self.state_groups()):
            return "KV cache"
        return "KV cache and state" if any(True for _ in self.attention_groups()) else "recurrent state"

    def attention_groups(self) -> Iterator[tuple[LayerGroup, Attention | LatentAttention]]:
        """Layer groups with attention to a sequence's own tokens or to another input, beside that attention."""
        for group in self.layers:
            for part in mixer_parts(group.mixer):
                if isinstance(part, (Attention, LatentAttention)):
                    yield group, part

    def state_groups(self) -> Iterator[tuple[LayerGroup, StateMixer]]:
        """Layer groups that keep a state of constant size, beside the mixer that keeps it."""
        for group in self.layers:
            for part in mixer_parts(group.mixer):
                if isinstance(part, STATE_MIXERS):
                    yield group, part

    @property
    def reads_other_input(self) -> bool:
        """Whether some layer attends to another input than the sequence: an encoder's output or a picture."""
        return any(isinstance(a, Attention) and a.kind == "cross" for _, a in self.attention_groups())

    @property
    def generates(self) -> bool:
        """Whether the model emits token after token, so that it can decode."""
        return self.denoiser is None and self.kind in (*DECODER_KINDS, "enc-dec")

    def require_supported(self) -> None:
        """Raise UnsupportedArchitecture, naming what is missing, unless every layer can become cost rows."""
        if self.denoiser is not None:
            return
        if self.kind in ("dit", "unet"):
            raise UnsupportedArchitecture(self.name, "its blocks are not described well enough: see diffusion")
        if not self.layers:
            raise UnsupportedArchitecture(self.name, f"a {self.kind} model has no layers to estimate")
        for group in self.layers:
            if isinstance(group.mixer, OtherMixer):
                missing = group.mixer.detail.get("missing")
                raise UnsupportedArchitecture(
                    self.name,
                    f"layers of kind {group.mixer.name!r} cannot be estimated"
                    + (f": {missing} is not known" if missing else ""),
                )
        if self.kind == "enc-dec" and self.encoder is None:
            raise UnsupportedArchitecture(self.name, "an encoder-decoder needs an encoder")
        if self.vocab_size <= 0 and self.kind != "encoder":
            raise UnsupportedArchitecture(self.name, "the number of rows of the token embedding is not known")

    @property
    def supported(self) -> bool:
        try:
            self.require_supported()
        except UnsupportedArchitecture:
            return False
        return True


DECODER_KINDS: frozenset[str] = frozenset({"decoder", "moe", "vlm", "hybrid", "ssm"})
"""Kinds that are a stack of layers over one sequence of words; a vlm has a tower beside it."""
