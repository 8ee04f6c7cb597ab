"""Configurations that are broken, by accident or on purpose: a clear refusal with its place, never anything else."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalog.codec import ParsedModel, model_from_json, model_to_json
from app.catalog.hf import model_from_hf_config, read_config_text
from app.domain.errors import InvalidInput
from tests.catalog.hf_by_hand import CONFIGS

FOLDER = Path(__file__).parents[1] / "fixtures" / "hf-configs"
REAL: list[dict[str, Any]] = [
    *(json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")) if path.name != "INDEX.json"),
    *CONFIGS.values(),
]

LLAMA = json.loads((FOLDER / "llama-3.1-8b.json").read_text())


def refused(config: object) -> InvalidInput:
    with pytest.raises(InvalidInput) as refusal:
        model_from_hf_config(config)
    return refusal.value


def outcome(read: Callable[[], object]) -> tuple[object, InvalidInput | None]:
    """What was read, or the refusal; any other exception fails the test."""
    try:
        return read(), None
    except InvalidInput as refusal:
        return None, refusal


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [None, [], "llama", 1, True, math.nan])
def test_what_is_no_object_is_refused(config: object) -> None:
    assert refused(config).loc == ("hf_config",)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", "4096", "expected a whole number, got text"),
        ("hidden_size", 4096.5, "expected a whole number, got 4096.5"),
        ("hidden_size", True, "expected a whole number, got true or false"),
        ("hidden_size", [4096], "expected a whole number, got a list"),
        ("hidden_size", -1, "out of range"),
        ("hidden_size", 10**30, "a number far outside is out of range"),
        ("hidden_size", math.nan, "expected a whole number, got nan"),
        ("hidden_size", math.inf, "expected a whole number, got inf"),
        ("num_hidden_layers", 0, "out of range: expected 1 to 2000"),
        ("num_hidden_layers", 10**9, "out of range: expected 1 to 2000"),
        ("num_attention_heads", 0, "out of range"),
        ("num_key_value_heads", 5, "5 KV heads do not divide 32 query heads"),
        ("num_key_value_heads", 64, "64 KV heads do not divide 32 query heads"),
        ("vocab_size", 10**12, "out of range"),
        ("tie_word_embeddings", "false", "expected true or false, got text"),
        ("attention_bias", 1, "expected true or false, got a number"),
        ("model_type", 7, "expected text, got a number"),
        ("model_type", "x" * 1000, "1000 characters long"),
        ("architectures", "LlamaForCausalLM", "expected a list, got text"),
        ("quantization_config", [], "expected an object, got a list"),
        ("layer_types", ["full_attention"], "has 1 entries, but there are 32 layers"),
        ("layer_types", ["magic"] * 32, "'magic' is not known here"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(field: str, value: object, words: str) -> None:
    refusal = refused({**LLAMA, field: value})
    assert refusal.loc[:2] == ("hf_config", field)
    assert words in refusal.reason


def test_two_names_of_one_field_must_agree() -> None:
    refusal = refused({**LLAMA, "n_layer": 31})
    assert refusal.loc == ("hf_config", "n_layer")
    assert refusal.reason == "is 31, but num_hidden_layers is 32: they mean the same"
    assert model_from_hf_config({**LLAMA, "n_layer": 32}).model.num_layers == 32


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    refusal = refused({**{k: v for k, v in LLAMA.items() if k != "head_dim"}, "hidden_size": 4097})
    assert refusal.loc == ("hf_config", "head_dim")
    assert "4097 does not divide by 32 heads" in refusal.reason


def test_a_nested_field_is_named_by_its_whole_path() -> None:
    config = json.loads((FOLDER / "qwen3-vl-8b.json").read_text())
    config["text_config"]["num_hidden_layers"] = "many"
    assert refused(config).loc == ("hf_config", "text_config", "num_hidden_layers")
    config["text_config"] = 3
    assert refused(config).loc == ("hf_config", "text_config")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"_class_name": "FluxTransformer2DModel"}, "diffusers"),
        ({"peft_type": "LORA"}, "adapter"),
        ({"weight_map": {}}, "index of weights"),
        ({"added_tokens_decoder": {}}, "tokenizer"),
        ({}, "without model_type and architectures"),
        ({"model_type": "esm"}, "'esm' is an architecture that is not known here"),
    ],
)
def test_another_file_is_told_what_it_is(config: dict[str, Any], words: str) -> None:
    assert words in refused(config).reason


def test_an_object_of_extreme_depth_is_no_problem() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"text_config": deep}
    assert refused(deep).loc[0] == "hf_config"
    assert model_from_hf_config({**LLAMA, "unknown": deep}).model.num_layers == 32
    while deep:  # take it apart, or freeing it would recurse as deep
        deep = deep.pop("text_config")


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("[1]", "expected the object of a config.json, got a list"),
        ('{"a": 1,}', "(line 1, column 9): remove the comma before it"),
        ('{\n  "a": 1\n  "b": 2\n}', "(line 3, column 3)"),
        ("{'a': 1}", "(line 1, column 2): JSON quotes with double quotes; this looks like Python"),
        ('{\n "a": NaN}', "NaN is no JSON number (line 2, column 7)"),
        ('{"a": -Infinity}', "-Infinity is no JSON number (line 1, column 7)"),
        ('{"a": True}', "JSON writes true in lower case (line 1, column 7)"),
        ('{"a": None}', "JSON writes null, not None (line 1, column 7)"),
        ('{"a": 1, // width\n "b": 2}', "JSON has no comments"),
        ('{"a": 1,\n "b": {"c": 1},\n "a": 2}', 'has the key "a" twice in one object (line 3, column 2)'),
        ('{"a": {"c": 1, "c": 2}}', 'has the key "c" twice in one object (line 1, column 16)'),
        ("{" * 40 + "}" * 40, "nested deeper than 32 levels (line 1, column 33)"),
        ("[" * 100_000, "nested deeper than 32 levels"),
        ('{"a": "', "is not valid JSON"),
        ("<!doctype html><p>404", "is not valid JSON"),
        ('{"a": ' + "1," * 200_000 + "}", "has more than 300,000 values"),
        ("x" * (2**20 + 1), "at most 1,048,576"),
    ],
)
def test_text_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_config_text(text)
    assert refusal.value.loc == ("hf_config",)
    assert words in refusal.value.reason


def test_bytes_are_utf8_with_or_without_a_mark() -> None:
    assert read_config_text(b'\xef\xbb\xbf{"a": "\xc3\xa9"}') == {"a": "é"}
    for data in (b"\xff\xfe{", b"\x89PNG", b"\x00" * 10):
        with pytest.raises(InvalidInput):
            read_config_text(data)


def test_the_same_key_in_two_objects_and_in_text_is_fine() -> None:
    assert read_config_text('{"a": {"b": 1}, "c": {"b": "b: a, \\"b\\": NaN"}}')["a"] == {"b": 1}


def test_a_number_of_thousands_of_digits_is_refused_by_its_field() -> None:
    config = read_config_text(json.dumps(LLAMA).replace("4096", "4" * 5000, 1))
    assert refused(config).loc == ("hf_config", "hidden_size")


@given(st.text(max_size=300) | st.text(alphabet='{}[]:,"a1 \n\\', max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_object_or_refused(text: str) -> None:
    found, refusal = outcome(lambda: read_config_text(text))
    assert isinstance(found, dict) if refusal is None else refusal.loc == ("hf_config",)


# -- mutations --------------------------------------------------------------------------------------------------------

HOSTILE_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 7, 2**31, 10**9, 10**40, 0.0, 0.5, -2.5, 1e308, math.nan, math.inf, -math.inf, "",
    "auto", "full", "llama", "x" * 5000, "\x00\x1b", "<script>", [], [0], [1, "a", None], [[]], ["full_attention"] * 32,
    [1] * 3000, {}, {"model_type": "llama"}, {"a": {"b": []}},
]  # fmt: skip
VALUES = st.sampled_from(HOSTILE_VALUES) | st.integers(-10, 10**6) | st.floats() | st.text(max_size=20)


def _paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _paths(item, (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A real configuration with some fields removed, replaced, moved or added."""
    config = copy.deepcopy(draw(st.sampled_from(REAL)))
    for _ in range(draw(st.integers(1, 4))):
        *above, last = draw(st.sampled_from(_paths(config) or [("model_type",)]))
        target: Any = config
        for key in above:
            target = target[key]
        kind = draw(st.sampled_from(["replace", "replace", "remove", "copy", "type"]))
        if kind == "remove":
            target.pop(last, None)
        elif kind == "replace":
            target[last] = copy.deepcopy(draw(VALUES))
        elif kind == "copy":
            target[draw(st.sampled_from(sorted(map(str, draw(st.sampled_from(REAL))))))] = target[last]
        else:
            config["model_type"] = draw(st.sampled_from(REAL)).get("model_type", "mamba")
    return config


@given(mutated())
@settings(max_examples=600, deadline=None)
def test_a_mutated_configuration_is_a_model_or_refused(config: dict[str, Any]) -> None:
    found, refusal = outcome(lambda: model_from_hf_config(config, name="mutated"))
    if refusal is not None:
        assert refusal.loc[0] == "hf_config"
        assert refusal.reason
        return
    assert isinstance(found, ParsedModel)
    again = model_from_json(json.loads(json.dumps(model_to_json(found.model))), loc=())
    assert again.model.layers == found.model.layers
    assert again.assumptions == found.assumptions
