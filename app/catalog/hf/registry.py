"""From a configuration to the family that reads it: by `model_type`, then by `architectures`; never by guessing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from app.catalog.fields import json_type
from app.catalog.hf.config import HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS, VOCAB, Config
from app.catalog.hf.decoders import DECODERS, LLAMA
from app.catalog.hf.draft import Draft
from app.catalog.hf.encoders import ENCODERS
from app.catalog.hf.hybrids import HYBRIDS

Reader = Callable[[Config], Draft]

READERS: Mapping[str, Reader] = {**DECODERS, **HYBRIDS, **ENCODERS}

SAME: Mapping[str, str] = {
    "Yi": "llama",
    "aquila": "llama",
    "aya_vision": "cohere2",
    "bart": "whisper",
    "camembert": "bert",
    "chameleon": "llama",
    "clip_vision_model": "vit",
    "code_llama": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "electra": "bert",
    "exaone4_text": "exaone4",
    "falcon_mamba": "mamba",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "glm4v_moe_text": "glm4_moe",
    "glm_moe_dsa": "deepseek_v32",
    "grok": "grok-1",
    "helium": "llama",
    "hunyuan-large": "hunyuan",
    "hunyuan_v1_dense": "hunyuan",
    "hunyuan_v1_moe": "hunyuan",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl_chat": "qwen2",
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "llama4_text": "llama4",
    "llava": "llama",
    "llava_llama": "llama",
    "llava_next": "llama",
    "marian": "whisper",
    "mbart": "whisper",
    "minimax_text_01": "minimax_m1",
    "MiniMaxM1": "minimax_m1",
    "minicpm3": "minicpm",
    "minimax": "minimax_m1",
    "ministral": "mistral",
    "ministral3": "mistral",
    "mistral3": "mistral",
    "mixformer-sequential": "phi",
    "mllama_text_model": "mllama",
    "mt5": "t5",
    "paligemma": "gemma",
    "pegasus": "whisper",
    "phi-msft": "phi",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "pixtral": "mistral",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "roberta": "bert",
    "rwkv5": "rwkv",
    "rwkv6": "rwkv",
    "rwkv7": "rwkv",
    "siglip": "clip",
    "siglip_vision_model": "vit",
    "smolvlm": "llama",
    "stablelm_epoch": "stablelm",
    "step3p5": "step3",
    "step3p7": "step3",
    "umt5": "t5",
    "voxtral": "llama",
    "xlm-roberta": "bert",
}  # fmt: skip
"""Names of `model_type` that another family reads."""

ARCHITECTURES: Mapping[str, str] = {
    "rw": "falcon",
    "baichuan": "baichuan",
    "qwenlmhead": "qwen",
    "yi": "llama",
    "llama4": "llama4",
    "minimaxm1": "minimax_m1",
    "minimaxtext01": "minimax_m1",
    "mixformersequential": "phi",
    "stablelmepoch": "stablelm",
    "decilm": "nemotron-nas",
    "glmmoedsa": "deepseek_v32",
    "kimik25": "deepseek_v3",
    "step3p7flash": "step3",
}
"""Names of classes, without their endings, whose family has another name."""

NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "thinker_config",
    "text_model_config",
)

CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "gemma": {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192,
    },
    "gemma3": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    },
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    },
    "llama4": {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "num_experts_per_tok": 1, "num_local_experts": 16, "attention_chunk_size": 8192,
    },
    "mllama": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
}  # fmt: skip
"""What transformers gives a field that a nested text configuration leaves out, by family.

Files leave out of nested objects what equals the class's default; at the top level every dimension is written, so there
a missing one is refused.
"""

_ENDINGS = re.compile(
    r"(ForCausalLM|ForConditionalGeneration|ForSequenceClassification|ForTokenClassification|ForMaskedLM|"
    r"ForImageTextToText|ForVision2Seq|ForQuestionAnswering|DoubleHeadsModel|LMHeadModel|WithLMHead|TextModel|Model|LM)$"
)
_FOREIGN = re.compile(
    r"expert|moe|mamba|ssm|lora_rank|conv_|_conv|linear_attn|linear_num|recurrent|lru_|rwkv|cross_attention|altup|"
    r"block_configs|state_size|time_step|compress|encoder_layers|decoder_layers|index_topk|layer_types|block_types|"
    r"hybrid|per_layer|parallel_attn|use_parallel|alibi|kv_shared|attn_type"
)


class Found(NamedTuple):
    """The family, the object that describes the decoder, and the names that led there."""

    family: str
    reader: Reader
    config: Config
    root_type: str
    model_type: str


def find_family(root: Config) -> Found:
    """The family that reads a configuration. Raises InvalidInput naming an unknown one and what is missing."""
    _refuse_other_files(root)
    root_type = root.text("model_type") or ""
    _architectures(root)
    family = _family_of(root)
    if family is not None and family in ENCODERS:
        return _found(family, root, root_type, root_type)
    nested = _nested(root)
    if nested is None:
        if family is None:
            return _llama_like(root, root_type)
        return _found(family, root, root_type, root_type)
    inner = _family_of(nested) or family
    model_type = nested.text("model_type") or root_type
    # A wrapper may hold its own flags, such as tied embeddings, beside the text model.
    data = dict(nested.data)
    for key in ("tie_word_embeddings",):
        if data.get(key) is None and root.has(key):
            data[key] = root.data[key]
    config = Config(data, nested.loc, root.assumptions, CLASS_DEFAULTS.get(inner or ""))
    if inner is None:
        return _llama_like(config, root_type, model_type)
    return _found(inner, config, root_type, model_type)


def _found(family: str, config: Config, root_type: str, model_type: str) -> Found:
    return Found(family, READERS[family], config, root_type or family, model_type or family)


def _nested(root: Config) -> Config | None:
    """The text model inside a wrapper; a wrapper may lie inside another one (omni models)."""
    config: Config | None = None
    for _ in range(3):
        at = root if config is None else config
        key = next((name for name in NESTED if at.has(name)), None)
        if key is None:
            break
        config = at.within(key)
    return config


def _family_of(config: Config) -> str | None:
    model_type = config.text("model_type")
    if model_type is not None:
        family = _by_type(model_type)
        if family is not None:
            return family
    for name in _architectures(config):
        family = _by_class(name)
        if family is not None:
            if model_type is not None:
                config.assume(f"model_type {model_type!r} is not known: read by its class {name}")
            return family
    if model_type is None and config.has("ssm_cfg"):
        config.assume("there is no model_type: read as Mamba, whose own format has ssm_cfg")
        return "mamba"
    return None


def _by_type(model_type: str) -> str | None:
    name = SAME.get(model_type, model_type)
    if name not in READERS:
        lowered = model_type.lower().replace("-", "_")
        name = SAME.get(lowered, lowered)
    return name if name in READERS else None


def _by_class(name: str) -> str | None:
    bare = _ENDINGS.sub("", _ENDINGS.sub("", name)).lower().replace("_", "")
    if bare in ARCHITECTURES:
        return ARCHITECTURES[bare]
    return _CLASSES.get(bare)


_CLASSES: Mapping[str, str] = {
    **{name.lower().replace("_", "").replace("-", ""): family for name, family in SAME.items() if family in READERS},
    **{name.replace("_", "").replace("-", ""): name for name in READERS},
}


def _architectures(config: Config) -> list[str]:
    names = config.entries("architectures") or []
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise config.fail(f"architectures.{index}", f"expected text, got {json_type(name)}")
    return [name[:200] for name in names if isinstance(name, str)][:10]


def _llama_like(config: Config, root_type: str, model_type: str = "") -> Found:
    """An unknown architecture: read like a Llama only where every dimension of one is there and nothing else is."""
    named = model_type or root_type or ", ".join(_architectures(config))
    shown = repr(named[:100]) if named else "a configuration without model_type and architectures"
    needed = {names[0]: names for names in (HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCAB)}
    missing = [first for first, names in needed.items() if not config.has(*names)]
    if not config.has("hidden_act", "hidden_activation"):
        missing.append("hidden_act")
    foreign = [key for key, value in config.data.items() if value and _FOREIGN.search(str(key))]
    if config.data.get("is_encoder_decoder"):
        foreign.append("is_encoder_decoder")
    if missing or foreign:
        reason = []
        if missing:
            reason.append(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        if foreign:
            reason.append(f"{', '.join(sorted(str(key)[:60] for key in foreign)[:6])} would be left out")
        near = difflib.get_close_matches(named, [*READERS, *SAME], n=1, cutoff=0.75) if named else []
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise config.fail(
            "model_type",
            f"{shown} is an architecture that is not known here{hint}, and it cannot be read like a Llama: "
            f"{'; '.join(reason)}",
        )
    config.assume(
        f"the architecture {shown} is not known here: it is read like a Llama (RMSNorm twice a layer, gated MLP, "
        "rotary positions, no biases unless attention_bias or mlp_bias says so); check it before relying on it"
    )
    return Found("llama", LLAMA, config, root_type or "unknown", model_type or root_type or "unknown")


def _refuse_other_files(root: Config) -> None:
    for key, what in (
        ("_class_name", "a diffusers configuration: only language models are read"),
        ("peft_type", "an adapter's configuration: give that of its base model"),
        ("added_tokens_decoder", "a tokenizer's configuration: give config.json"),
        ("weight_map", "an index of weights: give config.json"),
    ):
        if root.has(key):
            raise root.fail(key, f"this is {what}")


def known_families() -> list[str]:
    """Every `model_type` that is read, for pages and messages."""
    return sorted({*READERS, *(name for name, family in SAME.items() if family in READERS)}, key=str.casefold)
