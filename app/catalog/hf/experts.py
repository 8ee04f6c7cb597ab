"""Which layers have experts, and what those are, from the fields that families use for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.catalog.hf.config import INTERMEDIATE, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Config

Mask: TypeAlias = Callable[[Config, int], list[bool]]
"""For each layer, whether it has experts."""

COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk", "top_k_experts")
_DEFAULT = "the default of its class in transformers"


@dataclass(frozen=True, slots=True)
class Experts:
    """How a family states its experts.

    `width` are the fields of an expert's width; `shared` those of the number of shared experts, `shared_width` those
    of their width together (without it each is as wide as a routed one). `router_bias`, `expert_bias` and `gate` are
    facts of the family's code. `mask` says which layers have experts.
    """

    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared: tuple[str, ...] = ()
    shared_width: tuple[str, ...] = ()
    always_shared: int = 0
    router: str = "softmax"
    router_bias: bool | Callable[[Config], bool] = False
    expert_bias: bool = False
    gate: bool = False
    top_k_default: int | None = None
    mask: Mask | None = None

    def read(self, config: Config, gated: bool) -> dict[str, Any]:
        """The `moe` object of the record."""
        count = config.needed(COUNT, "the number of experts", high=MAX_EXPERTS)
        top_k = config.integer(TOP_K, 1, MAX_EXPERTS)
        if top_k is None:
            if self.top_k_default is None:
                raise config.fail(TOP_K[0], "is missing: give the number of experts that a token uses")
            top_k = int(config.filled(TOP_K[0], self.top_k_default, _DEFAULT))
        if top_k > count:
            raise config.fail(TOP_K[0], f"is {top_k}, above the number of experts {count}")
        width = config.integer(self.width) if len(self.width) == 1 else _first(config, self.width)
        if width is None:
            raise config.fail(self.width[0], "is missing: give the width of one expert")
        shared, shared_width = self._shared(config, width)
        bias = self.router_bias(config) if callable(self.router_bias) else self.router_bias
        return {
            "num_experts": count,
            "top_k": top_k,
            "expert_intermediate_size": width,
            "num_shared_experts": shared,
            "shared_intermediate_size": shared_width if shared else None,
            "router_type": self.router,
            "router_bias": bias,
            "expert_bias": self.expert_bias,
            "shared_expert_gate": bool(self.gate and shared),
            "mlp_gated": gated,
        }

    def _shared(self, config: Config, width: int) -> tuple[int, int]:
        count = config.integer(self.shared, 0, MAX_EXPERTS) if self.shared else None
        together = config.integer(self.shared_width, 0) if self.shared_width else None
        if count is None:
            count = 1 if together else self.always_shared
        return count, together if together is not None and together > 0 else count * width


def _first(config: Config, names: tuple[str, ...]) -> int | None:
    for name in names:
        if config.has(name):
            return config.integer(name)
    return config.integer(names[0])


def everywhere(config: Config, layers: int) -> list[bool]:
    return [True] * layers


def after_first(config: Config, layers: int) -> list[bool]:
    """DeepSeek: `first_k_dense_replace` dense layers, then each `moe_layer_freq`-th has experts."""
    first = config.integer("first_k_dense_replace", 0, MAX_LAYERS)
    if first is None:
        first = int(config.filled("first_k_dense_replace", 0, _DEFAULT))
    if isinstance(config.data.get("moe_layer_freq"), list):
        listed = config.integers("moe_layer_freq", 0, 1, layers) or []
        return [bool(flag) for flag in listed]
    step = config.integer("moe_layer_freq", 1, MAX_LAYERS) or 1
    return [index >= first and index % step == 0 for index in range(layers)]


def sparse_step(config: Config, layers: int) -> list[bool]:
    """Qwen: each `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    step = config.integer_or("decoder_sparse_step", 1, _DEFAULT, high=MAX_LAYERS) if _states(config) else 1
    dense = set(config.integers("mlp_only_layers", 0, MAX_LAYERS) or ())
    return [index not in dense and (index + 1) % step == 0 for index in range(layers)]


def _states(config: Config) -> bool:
    return config.has("decoder_sparse_step")


def interleaved(config: Config, layers: int) -> list[bool]:
    """Llama 4: the listed `moe_layers`, or each `interleave_moe_layer_step`-th layer."""
    listed = config.integers("moe_layers", 0, MAX_LAYERS)
    if listed is not None:
        return [index in set(listed) for index in range(layers)]
    step = config.integer_or("interleave_moe_layer_step", 1, _DEFAULT, high=MAX_LAYERS)
    return [(index + 1) % step == 0 for index in range(layers)]


def periodic(config: Config, layers: int) -> list[bool]:
    """Jamba: `expert_layer_period` and `expert_layer_offset`; one expert means a dense MLP."""
    if (config.integer("num_experts", 1, MAX_EXPERTS) or 16) == 1:
        return [False] * layers
    period = config.integer_or("expert_layer_period", 2, _DEFAULT, high=MAX_LAYERS)
    offset = config.integer_or("expert_layer_offset", 1, _DEFAULT, low=0, high=MAX_LAYERS)
    return [index % period == offset for index in range(layers)]


def ernie(config: Config, layers: int) -> list[bool]:
    """ERNIE 4.5: layers from `moe_layer_start_index` to `moe_layer_end_index`, each `moe_layer_interval`-th."""
    first = config.integer("moe_layer_start_index", 0, MAX_LAYERS) or 0
    last = config.integer("moe_layer_end_index", -1, MAX_LAYERS)
    last = layers - 1 if last is None or last < 0 else last
    step = config.integer("moe_layer_interval", 1, MAX_LAYERS) or 1
    return [first <= index <= last and (index + 1) % step == 0 for index in range(layers)]


def dense_width(config: Config, names: tuple[str, ...] = INTERMEDIATE) -> int:
    """The width of a dense MLP."""
    return config.needed(names, "the width of the MLP", high=MAX_WIDTH)
