"""Every stored config.json against the dimensions and totals that were written down when it was collected."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from app.catalog.codec import ParsedModel, model_from_json, model_to_json
from app.catalog.hf import model_from_hf_config, read_config_text
from app.catalog.loader import load_catalog
from app.domain.model import Attention, LatentAttention
from app.domain.parameters import count_parameters, group_kv_elements
from tests.catalog.hf_compared import differences

FOLDER = Path(__file__).parents[1] / "fixtures" / "hf-configs"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "INDEX.json").read_text())
IDS = [entry["id"] for entry in INDEX]
INEXACT = {"gemma-4-26b-a4b": 2e-5}
"""Totals that include a few scalars which no layer describes (router scales of Gemma 4)."""
NO_TOWER = {"llama-4-scout", "llama-4-maverick"}
"""Files that hold only the text model, though the released checkpoint has a vision tower."""


@lru_cache(maxsize=200)
def parsed(id_: str) -> ParsedModel:
    entry = next(entry for entry in INDEX if entry["id"] == id_)
    return model_from_hf_config(read_config_text((FOLDER / entry["file"]).read_bytes()), name=id_)


def test_every_stored_file_is_tried() -> None:
    assert {entry["file"] for entry in INDEX} == {path.name for path in FOLDER.glob("*.json")} - {"INDEX.json"}
    assert len(INDEX) == 73


@pytest.mark.parametrize("entry", INDEX, ids=IDS)
def test_dimensions(entry: dict[str, Any]) -> None:
    record = parsed(entry["id"]).model.record
    expected = dict(entry["expected_dims"])
    expected.pop("layer_pattern")
    for part in ("moe", "mla"):
        for key, value in expected.pop(part, {}).items():
            assert record[part][key] == value, f"{part}.{key}"
    for key, value in expected.items():
        assert record.get(key) == value, key


@pytest.mark.parametrize("entry", INDEX, ids=IDS)
def test_parameters(entry: dict[str, Any]) -> None:
    model = parsed(entry["id"]).model
    count = count_parameters(model)
    tower = 0 if entry["id"] in NO_TOWER else entry["expected_encoder_params"] or 0
    tolerance = INEXACT.get(entry["id"], 0)
    assert count.counted
    assert count.tower == tower
    assert count.total == pytest.approx(entry["expected_text_params"] + tower, rel=tolerance, abs=0)
    left_out = (entry["expected_encoder_params"] or 0) - tower
    assert count.active == pytest.approx(
        entry["expected_active_params"] - left_out, rel=1e-4 if tolerance else 0, abs=0
    )


@pytest.mark.parametrize("entry", INDEX, ids=IDS)
def test_cache(entry: dict[str, Any]) -> None:
    model = parsed(entry["id"]).model
    expected = entry["expected_kv_cache"]
    attention = [g for g in model.layers if isinstance(g.mixer, (Attention, LatentAttention))]
    windowed = [g for g in attention if isinstance(g.mixer, Attention) and g.mixer.window is not None]
    # the keys of an indexer are cached beside what the expected figure counts
    growing = [replace(g, mixer=replace(g.mixer, indexer=None)) for g in attention if g not in windowed]
    assert sum(g.count for g in growing) == expected["growing_layers"]
    assert sum(g.count * group_kv_elements(model, g) for g in growing) == expected["growing_elements_per_token"]
    assert sum(g.count for g in windowed) == (expected["windowed_layers"] or 0)
    elements = sum(g.count * group_kv_elements(model, g) for g in windowed)
    assert elements == (expected["windowed_elements_per_token"] or 0)
    assert {g.mixer.window for g in windowed if isinstance(g.mixer, Attention)} == (
        {expected["window"]} if expected["window"] else set()
    )


@pytest.mark.parametrize("id_", sorted(set(IDS) & set(load_catalog().models)))
def test_the_catalogue_says_the_same(id_: str) -> None:
    shipped, read = load_catalog().models[id_], parsed(id_).model
    assert read.layers == shipped.layers
    allowed = {"tower", "tower_params"} if id_ in NO_TOWER else set()
    # this file is that of the checkpoint with 4-bit weights
    allowed |= {"weights_stored_as"} if id_ == "qwen2-vl-2b" else set()
    assert differences(read, shipped) == allowed
    assert read.activation == shipped.activation


@pytest.mark.parametrize("id_", IDS)
def test_it_comes_back_from_storage(id_: str) -> None:
    before = parsed(id_)
    after = model_from_json(json.loads(json.dumps(model_to_json(before.model))), loc=())
    assert replace(after.model, record={}) == replace(before.model, record={})
    assert after.model.record["hf_import"] == before.model.record["hf_import"]
    assert after.assumptions == before.assumptions


@pytest.mark.parametrize("id_", IDS)
def test_the_codec_has_nothing_left_to_fill_in(id_: str) -> None:
    """Everything is decided by the family's reader, which gives its reason."""
    assert not [text for text in parsed(id_).assumptions if text.count("taken as") and ", " not in text]


def test_what_is_filled_in_is_said() -> None:
    said = parsed("gpt2").assumptions
    assert "num_key_value_heads is not given: taken as 12, one for each query head" in said
    assert "head_dim is not given: taken as 64, hidden size 768 over 12 heads" in said
    assert "intermediate_size is not given: taken as 3,072, 4 times the hidden size" in said
    assert any(text.startswith("tie_word_embeddings is not given: taken as true") for text in said)


def test_a_window_that_is_not_used_is_said() -> None:
    said = parsed("qwen2-7b").assumptions
    assert any(text.startswith("sliding_window is set and not used") for text in said)


@pytest.mark.parametrize(
    ("id_", "precision", "words"),
    [
        ("deepseek-v3", "fp8", "fp8, one scale for a block of 128 x 128"),
        ("gpt-oss-20b", "mxfp4", "mxfp4"),
        ("qwen2-vl-2b", "int4", "awq with 4 bits, one scale for 128 weights"),
        ("llama-3.1-8b", "bf16", "bfloat16"),
    ],
)
def test_stored_weights_are_noted_and_change_no_layer(id_: str, precision: str, words: str) -> None:
    found = parsed(id_)
    assert found.model.record["hf_import"]["weights"] == precision
    assert found.model.record["hf_import"]["stored_as"] == words
    assert any("stores its weights as" in text for text in found.assumptions) is (precision != "bf16")


def test_layers_of_prediction_are_left_out_and_said() -> None:
    found = parsed("deepseek-v3")
    assert found.model.num_layers == 61
    assert "1 multi-token-prediction layer(s) are described and not counted with the model" in found.assumptions
