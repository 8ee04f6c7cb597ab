"""Which layers see the whole context and which a window, from the fields that families use for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from app.catalog.hf.config import MAX_LAYERS, MAX_TOKENS, Config

Span: TypeAlias = tuple[str, int | None]
"""(kind, window) of one layer's attention."""
Spans: TypeAlias = Callable[[Config, int], list[Span]]

FULL: Span = ("full", None)
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


def all_full(config: Config, layers: int) -> list[Span]:
    """Every layer sees everything; a `layer_types` list that says otherwise is refused."""
    kinds = config.texts("layer_types", LAYER_TYPES, layers)
    if kinds and set(kinds) != {"full_attention"}:
        return _typed(config, kinds)
    return [FULL] * layers


def window_everywhere(config: Config, layers: int) -> list[Span]:
    """Mistral: `sliding_window`, where it is set, holds in every layer."""
    kinds = config.texts("layer_types", LAYER_TYPES, layers)
    if kinds:
        return _typed(config, kinds)
    window = _window(config)
    return [FULL if window is None else ("sliding", window)] * layers


def window_if_used(config: Config, layers: int) -> list[Span]:
    """Qwen: `sliding_window` counts only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    kinds = config.texts("layer_types", LAYER_TYPES, layers)
    if kinds:
        return _typed(config, kinds)
    if not config.flag_or("use_sliding_window", False, quiet=True):
        if config.has("sliding_window"):
            config.assume(
                f"{config.path('sliding_window')} is set and not used: use_sliding_window is not true, "
                "so every layer attends to the whole context"
            )
        return [FULL] * layers
    window = _window(config)
    if window is None:
        return [FULL] * layers
    first = config.integer_or(
        "max_window_layers", 28, "the default of its class in transformers", low=0, high=MAX_LAYERS
    )
    return [("sliding", window) if index >= first else FULL for index in range(layers)]


def every(period: int, window_default: int | None = None) -> Spans:
    """Each `period`-th layer sees everything, the others a window (Gemma 2 and 3, gpt-oss, OLMo 3, Cohere 2)."""

    def spans(config: Config, layers: int) -> list[Span]:
        kinds = config.texts("layer_types", LAYER_TYPES, layers)
        if kinds:
            return _typed(config, kinds)
        window = _window(config)
        if window is None and window_default is not None and not config.has("sliding_window"):
            window = int(config.filled("sliding_window", window_default, "the default of its class in transformers"))
        if window is None:
            return [FULL] * layers
        pattern = config.data.get("sliding_window_pattern")
        if isinstance(pattern, str):
            if not pattern or len(pattern) > MAX_LAYERS or set(pattern) - set("LG"):
                raise config.fail("sliding_window_pattern", "expected a number, or letters L (local) and G (global)")
            # EXAONE: the letters repeat, and the last layer is always global
            letters = [pattern[index % len(pattern)] for index in range(layers)]
            letters[-1] = "G"
            return [FULL if letter == "G" else ("sliding", window) for letter in letters]
        names = ("sliding_window_pattern", "_sliding_window_pattern")
        step = config.integer(names, 1, MAX_LAYERS)
        if step is None:
            step = period
            config.filled(
                "layer_types", f"full attention in every {_ordinal(period)} layer", "the default of its class"
            )
        return [FULL if (index + 1) % step == 0 else ("sliding", window) for index in range(layers)]

    return spans


def chunked(config: Config, layers: int) -> list[Span]:
    """Llama 4: chunks in the layers with rotary positions; each 4th layer (`no_rope_layers`) sees everything."""
    kinds = config.texts("layer_types", LAYER_TYPES, layers)
    if kinds:
        return _typed(config, kinds)
    size = config.integer("attention_chunk_size", 1, MAX_TOKENS)
    if size is None:
        return [FULL] * layers
    rope = config.integers("no_rope_layers", 0, 1)
    if rope:
        if len(rope) != layers:
            raise config.fail("no_rope_layers", f"has {len(rope)} entries, but there are {layers} layers")
        return [("chunked", size) if flag else FULL for flag in rope]
    step = config.integer_or(
        "no_rope_layer_interval", 4, "the default of its class in transformers: that layer has no chunks", 1, MAX_LAYERS
    )
    return [FULL if (index + 1) % step == 0 else ("chunked", size) for index in range(layers)]


def alternating_local(config: Config, layers: int) -> list[Span]:
    """GPT-Neo: `attention_types` says which layers are local, `window_size` how far those see."""
    window = config.integer_or("window_size", 256, "the default of its class in transformers", high=MAX_TOKENS)
    kinds = config.texts("attention_layers", ("global", "local"), layers)
    if kinds is None:
        config.filled("attention_layers", "global and local in turn", "the default of its class in transformers")
        kinds = ["global" if index % 2 == 0 else "local" for index in range(layers)]
    return [FULL if kind == "global" else ("sliding", window) for kind in kinds]


def _typed(config: Config, kinds: list[str]) -> list[Span]:
    spans: list[Span] = []
    window = _window(config)
    chunk = config.integer("attention_chunk_size", 1, MAX_TOKENS)
    for kind in kinds:
        if kind == "full_attention":
            spans.append(FULL)
        elif kind == "chunked_attention":
            if chunk is None:
                raise config.fail("attention_chunk_size", "is missing: layer_types has chunked layers")
            spans.append(("chunked", chunk))
        elif window is None:
            if not config.has("sliding_window"):
                raise config.fail("sliding_window", "is missing: layer_types has sliding layers")
            spans.append(FULL)
        else:
            spans.append(("sliding", window))
    return spans


def _window(config: Config) -> int | None:
    """The window, unless it is as wide as the longest context: then it never limits anything."""
    if config.data.get("sliding_window") is False:
        return None
    window = config.integer("sliding_window", 1, MAX_TOKENS)
    longest = config.positions()
    if window is not None and longest is not None and window >= longest:
        config.assume(
            f"{config.path('sliding_window')} is {window:,}, not less than the longest context of {longest:,}: "
            "it never limits, so layers count as full attention"
        )
        return None
    return window


def _ordinal(number: int) -> str:
    return {1: "single", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")
