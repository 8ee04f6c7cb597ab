"""Files of families that neither the samples nor the catalogue have, against the totals their publishers state."""

from __future__ import annotations

from typing import Any

import pytest

from app.catalog.codec import model_from_json, model_to_json
from app.catalog.hf import model_from_hf_config
from app.catalog.loader import load_catalog
from app.domain.model import LatentAttention, ShortConvolution
from app.domain.parameters import count_parameters
from app.domain.workload import Workload
from app.services.estimate import bound_of
from app.services.references import parse_model

LFM2: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "conv_L_cache": 3, "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "LFM2-1.2B": (LFM2, 1_170_340_608),
    "MiniCPM-2B": (
        {
            "model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_hidden_layers": 40,
            "num_attention_heads": 36, "num_key_value_heads": 36, "vocab_size": 122753,
        },
        2_724_880_896,
    ),
    "Falcon-Mamba-7B": (
        {
            "model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 16, "expand": 16,
            "intermediate_size": 8192, "conv_kernel": 4, "time_step_rank": 256, "vocab_size": 65024,
            "tie_word_embeddings": False,
        },
        7_272_665_088,
    ),
    "Command R+": (
        {
            "model_type": "cohere", "hidden_size": 12288, "intermediate_size": 33792, "num_hidden_layers": 64,
            "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 256000, "use_qk_norm": True,
        },
        103_810_674_688,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_those_of_the_released_files(name: str) -> None:
    config, total = PUBLISHED[name]
    model = model_from_hf_config(config, name=name).model
    assert count_parameters(model).total == total
    again = model_from_json(model_to_json(model), loc=()).model
    assert count_parameters(again).total == total


def test_the_third_minicpm_has_latent_attention_and_a_tied_head() -> None:
    config = {
        "model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
        "num_attention_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "vocab_size": 73448,
    }  # fmt: skip
    found = model_from_hf_config(config, name="MiniCPM3-4B")  # the file leaves the width of a value out
    model = found.model
    assert isinstance(model.layers[0].mixer, LatentAttention)
    assert model.layers[0].mixer.v_head_dim == 64
    assert sum("tie_word_embeddings" in note for note in found.assumptions) == 1
    assert count_parameters(model).total == pytest.approx(4.07e9, rel=0.005)


def test_short_convolutions_by_hand() -> None:
    """One sequence: ten layers of 4 h^2 + 3 h weights, and a state of two inputs of each channel in 16 bits."""
    model = model_from_hf_config(LFM2, name="LFM2").model
    mixer = model.layers[0].mixer
    assert isinstance(mixer, ShortConvolution)
    assert (mixer.state_elements, mixer.conv_elements) == (0, 2 * 2048)
    step = bound_of(load_catalog().hardware["nvidia-h100-sxm"], model, Workload(batch=1, context_len=1024))
    rows = {op.name: op for op in step.bound.table.ops if op.stage == "state mixer"}
    assert rows["input and gates"].weights == 2 * 3 * 2048 * 2048
    assert rows["output projection"].flop == 2 * 2048 * 2048
    convolution = rows["gated convolution"]
    assert (convolution.count, convolution.kv_read, convolution.act_read) == (10, 2 * 2048 * 2, 3 * 2048 * 2)


def test_a_file_as_it_is_is_a_model() -> None:
    parsed = parse_model({**LFM2, "architectures": ["Lfm2ForCausalLM"], "_name_or_path": "maker/LFM2-1.2B"})
    assert parsed.model.name == "LFM2-1.2B"
    assert count_parameters(parsed.model).total == 1_170_340_608


@pytest.mark.parametrize(
    ("quantization", "precision", "words"),
    [
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            "int4",
            "64",
        ),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8", "int8_weight_only"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8DynamicConfig"}}}, "fp8", "float8"),
        ({"quant_method": "aqlm", "in_group_size": 8, "nbits_per_codebook": 16, "num_codebooks": 1}, None, "2 bits"),
    ],
)
def test_what_a_quantised_file_says(quantization: dict[str, Any], precision: str | None, words: str) -> None:
    record = model_from_hf_config({**LFM2, "quantization_config": quantization}, name="a model").model.record
    assert record["hf_import"].get("weights") == precision
    assert words in record["hf_import"]["stored_as"]


@pytest.mark.parametrize(
    ("config", "published"),
    [
        pytest.param(
            {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880},
            559_214_592,
            id="bloom-560m: a norm behind the embedding",
        ),
        pytest.param(
            {
                "model_type": "roberta", "hidden_act": "gelu", "hidden_size": 1024, "intermediate_size": 4096,
                "max_position_embeddings": 514, "num_attention_heads": 16, "num_hidden_layers": 24,
                "type_vocab_size": 1, "vocab_size": 50265,
            },
            355_359_744,
            id="roberta-large: one type of token",
        ),
        pytest.param(
            {
                "model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "max_position_embeddings": 512,
                "n_heads": 12, "n_layers": 6, "vocab_size": 30522, "activation": "gelu",
            },
            66_362_880,
            id="distilbert-base: no types and no pooler",
        ),
    ],
)  # fmt: skip
def test_ends_of_a_stack_are_counted_to_the_last_parameter(config: dict[str, object], published: int) -> None:
    model = model_from_hf_config(config, name="m").model
    assert count_parameters(model).total == published
