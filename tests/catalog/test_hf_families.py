"""Families that the stored samples lack, against the catalogue's own entries, and rules of single families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.catalog.codec import model_from_json, model_to_json
from app.catalog.hf import known_families, model_from_hf_config
from app.catalog.loader import load_catalog
from app.domain.errors import InvalidInput
from app.domain.model import Attention, DenseMlp, LayerGroup, ModelSpec, MoeMlp
from app.domain.parameters import count_parameters
from tests.catalog.hf_by_hand import CONFIGS
from tests.catalog.hf_compared import differences

KNOWN_DIFFERENCES: dict[str, set[str]] = {
    "internvl2-2b": {"max_position"},  # the entry has the length that was trained with pictures
    "llama-3.2-11b-vision": {"tower", "tower_params"},  # this tower is not counted from a file
    "mamba2-1.3b": {"vocab_size"},  # padded to a multiple of 16 in the file, of 8 in the entry
    "paligemma-3b-224": {"vocab_size"},  # the file counts 64 rows that the checkpoint does not have
    "qwen2.5-vl-3b": {"max_position"},
    "qwen3-next-80b-a3b": {"prediction"},  # the file does not mention its prediction module
}


def read(config: dict[str, Any]) -> ModelSpec:
    return model_from_hf_config(config, name="a model").model


def in_place(layers: tuple[LayerGroup, ...]) -> list[LayerGroup]:
    """Groups without their position, which entries of encoder-decoders do not state."""
    return [replace(group, first_index=0) for group in layers]


@pytest.mark.parametrize("id_", CONFIGS)
def test_the_catalogue_says_the_same(id_: str) -> None:
    shipped, found = load_catalog().models[id_], read(CONFIGS[id_])
    assert in_place(found.layers) == in_place(shipped.layers)
    assert differences(found, shipped) == KNOWN_DIFFERENCES.get(id_, set())


@pytest.mark.parametrize("id_", CONFIGS)
def test_it_comes_back_from_storage(id_: str) -> None:
    found = model_from_hf_config(CONFIGS[id_], name=id_)
    again = model_from_json(model_to_json(found.model), loc=())
    assert replace(again.model, record={}) == replace(found.model, record={})


@pytest.mark.parametrize(
    ("id_", "total"),
    [
        # released tensors, added up by their publishers' model cards or the catalogue's sources
        ("falcon-7b", 6_921_720_704),
        ("gpt-j-6b", 6_050_882_784),
        ("phi-2", 2_779_683_840),
        ("opt-125m", 125_239_296),
        ("mpt-7b", 6_649_286_656),
        ("gemma-3-4b", 4_300_079_472),
        ("llava-1.5-7b", 7_063_427_072),
        ("dbrx", 131_596_523_520),
        ("deepseek-v2-lite", 15_706_484_224),
    ],
)
def test_totals(id_: str, total: int) -> None:
    assert count_parameters(read(CONFIGS[id_])).total == total


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
}


def kinds(model: ModelSpec) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in model.layers:
        assert isinstance(group.mixer, Attention)
        found[group.mixer.kind] = found.get(group.mixer.kind, 0) + group.count
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "llama"}, {"full": 8}),
        ({"model_type": "mistral", "sliding_window": 1024}, {"sliding": 8}),
        ({"model_type": "mistral", "sliding_window": 4096}, {"full": 8}),
        ({"model_type": "qwen2", "sliding_window": 1024}, {"full": 8}),
        (
            {"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 6},
            {"full": 6, "sliding": 2},
        ),
        ({"model_type": "gemma2", "head_dim": 16, "sliding_window": 1024}, {"sliding": 4, "full": 4}),
        ({"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 1024}, {"sliding": 7, "full": 1}),
        (
            {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 1024, "sliding_window_pattern": 4},
            {"sliding": 6, "full": 2},
        ),
        (
            {
                "model_type": "olmo3",
                "sliding_window": 9,
                "layer_types": ["full_attention"] * 5 + ["sliding_attention"] * 3,
            },
            {"full": 5, "sliding": 3},
        ),
        ({"model_type": "exaone4", "sliding_window": 9, "sliding_window_pattern": "LLG"}, {"sliding": 5, "full": 3}),
        ({"model_type": "cohere2", "sliding_window": 9}, {"sliding": 6, "full": 2}),
        ({"model_type": "gpt_neo", "window_size": 256}, {"full": 4, "sliding": 4}),
    ],
)
def test_windows(changes: dict[str, Any], expected: dict[str, int]) -> None:
    assert kinds(read({**LLAMA, **changes})) == expected


def biases(model: ModelSpec) -> str:
    mixer, mlp = model.layers[0].mixer, model.layers[0].mlp
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, DenseMlp)
    flags = {"q": mixer.q_bias, "k": mixer.k_bias, "v": mixer.v_bias, "o": mixer.o_bias, "m": mlp.bias}
    return "".join(letter for letter, on in flags.items() if on) + ("h" if model.lm_head_bias else "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"attention_bias": True}, "qkvo"),
        ({"mlp_bias": True}, "m"),
        ({"model_type": "qwen2"}, "qkv"),
        ({"model_type": "mistral", "attention_bias": True}, ""),
        ({"model_type": "glm4", "attention_bias": True}, "qkv"),
        ({"model_type": "phi"}, "qkvomh"),
        ({"model_type": "gpt_neox"}, "qkvom"),
        ({"model_type": "gptj"}, "mh"),
        ({"model_type": "gpt_neo"}, "om"),
        ({"model_type": "bloom"}, "qkvom"),
        ({"model_type": "starcoder2"}, "qkvom"),
        ({"model_type": "starcoder2", "use_bias": False}, ""),
        ({"model_type": "stablelm", "use_qkv_bias": True}, "qkv"),
        ({"model_type": "internlm"}, "qkvo"),
        ({"model_type": "falcon", "bias": True}, "qkvom"),
        ({"model_type": "opt", "ffn_dim": 128}, "qkvom"),
    ],
)
def test_biases(changes: dict[str, Any], expected: str) -> None:
    assert biases(read({**LLAMA, **changes})) == expected


@pytest.mark.parametrize(
    ("model_type", "tied"),
    [
        ("llama", False),
        ("mistral", False),
        ("qwen2", False),
        ("gemma", True),
        ("gemma2", True),
        ("gpt2", True),
        ("gpt_neox", False),
        ("gptj", False),
        ("bloom", True),
        ("cohere", True),
        ("phi", False),
        ("starcoder2", True),
        ("falcon", True),
        ("stablelm", False),
        ("olmo2", False),
        ("smollm3", True),
    ],
)
def test_tied_embeddings_by_default(model_type: str, tied: bool) -> None:
    config = {**LLAMA, "model_type": model_type, "head_dim": 16}
    found = model_from_hf_config(config)
    assert found.model.tied_embeddings is tied
    assert any(text.startswith("tie_word_embeddings is not given") for text in found.assumptions)
    assert read({**config, "tie_word_embeddings": not tied}).tied_embeddings is not tied


FALCON = {
    "model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kv_heads", "norms", "parallel"),
    [
        ({}, 1, 1, True),
        ({"multi_query": False}, 4, 1, True),
        ({"parallel_attn": False}, 1, 2, False),
        ({"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}, 4, 2, False),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, 2, True),
        ({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 2, 1, True),
        ({"model_type": "RefinedWeb", "n_head_kv": 2}, 2, 2, True),
        ({"model_type": "RefinedWebModel", "multi_query": True}, 1, 1, True),
    ],
)
def test_falcon(changes: dict[str, Any], kv_heads: int, norms: int, parallel: bool) -> None:
    model = read({**FALCON, **changes})
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.kv_heads, model.layers[0].norms, model.parallel_block) == (kv_heads, norms, parallel)
    assert model.record["position_embedding"] == ("alibi" if changes.get("alibi") else "rope")


def test_moe_layers_by_step_and_exception() -> None:
    config = {
        **LLAMA, "model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 96, "decoder_sparse_step": 2, "mlp_only_layers": [3],
    }  # fmt: skip
    model = read(config)
    sparse = [group for group in model.layers if isinstance(group.mlp, MoeMlp)]
    assert sum(group.count for group in sparse) == 3  # layers 1, 5 and 7
    assert isinstance(sparse[0].mlp, MoeMlp)
    assert sparse[0].mlp.shared_intermediate == 96
    assert sparse[0].mlp.shared_expert_gate


def test_layers_without_attention() -> None:
    block = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}}
    without = {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 0.5}}
    model = read({**LLAMA, "model_type": "nemotron-nas", "hidden_size": 1024, "block_configs": [block, without, block]})
    with_attention, bare = model.layers
    assert with_attention.count == 2
    assert isinstance(with_attention.mixer, Attention)
    assert with_attention.mixer.kv_heads == 2
    assert isinstance(with_attention.mlp, DenseMlp)
    assert with_attention.mlp.intermediate == 1024  # 2 x 1.5 x 1024 / 3
    assert bare.mixer is None
    assert isinstance(bare.mlp, DenseMlp)
    assert bare.mlp.intermediate == 512  # 341 rounded up to a multiple of 256


def test_a_nested_text_model_takes_the_class_defaults_and_says_so() -> None:
    """Files leave out of nested objects what equals the class's default: Gemma 3's heads and vocabulary."""
    said = model_from_hf_config(CONFIGS["gemma-3-4b"]).assumptions
    assert "text_config.num_attention_heads is not given: taken as 8, the default of its class in transformers" in said
    assert "text_config.vocab_size is not given: taken as 262,208, the default of its class in transformers" in said


def test_at_the_top_level_nothing_is_a_default() -> None:
    with pytest.raises(InvalidInput, match="hidden_size: is missing"):
        read({key: value for key, value in LLAMA.items() if key != "hidden_size"})


def test_the_family_is_found_by_its_class_too() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert (
        read({**config, "architectures": ["Qwen2ForCausalLM"]}).layers == read({**LLAMA, "model_type": "qwen2"}).layers
    )
    assert read({**config, "architectures": ["Qwen2ForSequenceClassification"]}).num_layers == 8
    own = model_from_hf_config({**config, "model_type": "ours", "architectures": ["LlamaForCausalLM"]})
    assert "model_type 'ours' is not known: read by its class LlamaForCausalLM" in own.assumptions


def test_an_unknown_name_is_read_like_a_llama_only_when_everything_is_there() -> None:
    config = {**LLAMA, "model_type": "ours"}
    found = model_from_hf_config(config)
    assert found.model.layers == read(LLAMA).layers
    assert any("'ours' is not known here: it is read like a Llama" in text for text in found.assumptions)
    for missing in ("num_key_value_heads", "intermediate_size", "hidden_act", "vocab_size"):
        with pytest.raises(InvalidInput, match=missing) as refusal:
            read({key: value for key, value in config.items() if key != missing})
        assert refusal.value.loc == ("hf_config", "model_type")
        assert "'ours'" in refusal.value.reason


@pytest.mark.parametrize(
    "foreign", [{"num_experts": 8}, {"ssm_state_size": 16}, {"kv_lora_rank": 512}, {"is_encoder_decoder": True}]
)
def test_an_unknown_name_with_parts_that_a_llama_lacks_is_refused(foreign: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="would be left out"):
        read({**LLAMA, "model_type": "ours", **foreign})


def test_a_misspelled_name_is_told() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mixtral'"):
        read({"model_type": "mixtrall"})


@pytest.mark.parametrize("name", known_families())
def test_every_family_refuses_an_empty_configuration_by_field(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read({"model_type": name})
    assert refusal.value.loc[0] == "hf_config"
    assert len(refusal.value.loc) > 1
