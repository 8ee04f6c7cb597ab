"""What the codec accepts, fills in and refuses, with the place and a remedy."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.catalog.codec import (
    ParsedModel,
    hardware_from_json,
    hardware_to_json,
    mark_entered,
    model_from_json,
    model_to_json,
)
from app.catalog.loader import load_catalog
from app.domain.errors import InvalidInput
from app.domain.model import Attention, DenseMlp, LatentAttention, MoeMlp
from app.domain.parameters import count_parameters

SMALL_DEVICE = {
    "name": "Bench Board 1",
    "peak": {"flop_per_s": {"bf16": 100e12}, "memory_bandwidth_bytes_per_s": 1e12},
}
SMALL_MODEL = {
    "hidden_size": 64,
    "vocab_size": 1000,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "mlp_gated": True,
    "norm": "rmsnorm",
    "norms_per_layer": 2,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "kind": "decoder",
}


def device(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SMALL_DEVICE), **changes}


def model(**changes: Any) -> dict[str, Any]:
    made = {**copy.deepcopy(SMALL_MODEL), **changes}
    return {key: value for key, value in made.items() if value is not ...}


# -- hardware -------------------------------------------------------------------------------------------------------


def test_a_minimal_inline_device_works() -> None:
    profile = hardware_from_json(SMALL_DEVICE)
    assert profile.id == "bench-board-1"
    assert profile.peak == {"bf16": 100e12}
    assert profile.memory_bandwidth == 1e12
    assert profile.memory_capacity is None
    assert not profile.shipped
    assert [s.read for s in profile.sources_of("peak.flop_per_s.bf16")] == ["entered"]


def test_an_inline_device_round_trips() -> None:
    profile = hardware_from_json(device(memory_bytes=16e9, tile_facts={"gemm_tile_mn_example": [128, 64]}))
    assert hardware_from_json(hardware_to_json(profile)) == profile


def test_an_edited_copy_keeps_only_the_sources_of_what_it_kept() -> None:
    h100 = load_catalog().hardware["nvidia-h100-sxm"]
    copied = h100.renamed("our-h100", "Our H100")
    assert h100.scale_up is not None
    edited = replace(copied, memory_bandwidth=3.2e12, scale_up=replace(h100.scale_up, bandwidth=460e9))
    marked = mark_entered(copied, edited)
    assert {s.read for s in marked.sources_of("peak.memory_bandwidth_bytes_per_s")} == {"entered"}
    assert {s.read for s in marked.sources_of("scale_up.bandwidth_bytes_per_s")} == {"entered"}
    assert {s.read for s in marked.sources_of("scale_up.domain_size")} == {"secondary"}
    assert marked.sources_of("peak.flop_per_s.bf16") == h100.sources_of("peak.flop_per_s.bf16")
    assert marked.copied_from == "nvidia-h100-sxm"
    assert hardware_from_json(hardware_to_json(marked)) == marked
    assert mark_entered(copied, copied) == copied


@pytest.mark.parametrize(
    ("data", "loc", "says"),
    [
        ([], (), "expected an object, got a list"),
        ({}, ("name",), "is missing"),
        ({"name": "x"}, ("peak",), "is missing"),
        (device(name=7), ("name",), "expected text, got a number"),
        (device(name="  "), ("name",), "is empty"),
        (device(name="a" * 300), ("name",), "at most 200"),
        (device(name="a\x00b"), ("name",), "control characters"),
        (device(id="Not An Id"), ("id",), "lower-case"),
        (device(peak={"memory_bandwidth_bytes_per_s": 1e12}), ("peak", "flop_per_s"), "at least one"),
        (device(peak={"flop_per_s": {"bf16": 1e14}}), ("peak", "memory_bandwidth_bytes_per_s"), "3.35e12"),
        (device(memory_bytes=80), ("memory_bytes",), "80 GB is 80e9"),
        (device(memory_bytes=-80e9), ("memory_bytes",), "negative"),
        (device(memory_bytes="80e9"), ("memory_bytes",), "expected a number of bytes, got text"),
        (device(memory_bytes=True), ("memory_bytes",), "got true or false"),
        (device(memory_bytes=math.nan), ("memory_bytes",), "finite"),
        (device(memory_bytes=10**400), ("memory_bytes",), "finite"),
        (device(memory_gb=80), ("memory_gb",), "80e9"),
        (device(memory_byte=80e9), ("memory_byte",), "did you mean 'memory_bytes'"),
        (device(sm_count=132), ("sm_count",), "compute_units"),
        (device(compute_units=13.5), ("compute_units",), "whole number"),
        (device(l2_bytes=50), ("l2_bytes",), "50 MiB is 52428800"),
        (device(boost_clock_hz=1830), ("boost_clock_hz",), "1.83e9"),
        (device(launch_overhead_s=2.45), ("launch_overhead_s",), "2e-6"),
        (device(release_year=22), ("release_year",), "1990 to 2100"),
        (device(scale_up={"bidirectional_bytes_per_s": 900e9}), ("scale_up", "bidirectional_bytes_per_s"), "one way"),
        (device(scale_up={"name": "L", "bandwidth_bytes_per_s": 450}), ("scale_up", "bandwidth_bytes_per_s"), "450e9"),
        (
            device(scale_up={"bandwidth_bytes_per_s": 450e9, "peer_to_peer_bytes_per_s": 900e9}),
            ("scale_up", "peer_to_peer_bytes_per_s"),
            "bidirectional",
        ),
        (device(scale_up=450e9), ("scale_up",), "expected an object, got a number"),
        (device(scale_out={"gbit_per_s_per_device": 400}), ("scale_out", "gbit_per_s_per_device"), "50e9"),
        (device(achievable={"flop_per_s": {"bf16": 1e15}}), ("achievable", "flop_per_s", "bf16"), "10.0 times"),
        (
            device(achievable={"memory_bandwidth_bytes_per_s": 2e12}),
            ("achievable", "memory_bandwidth_bytes_per_s"),
            "exceeds the peak",
        ),
        (device(aliases="H100"), ("aliases",), "expected a list, got text"),
        (device(aliases=["ok", 3]), ("aliases", 1), "expected text"),
        (device(tile_facts={"gemm_tile_mn_example": [128]}), ("tile_facts", "gemm_tile_mn_example"), "two whole"),
        (device(tile_facts={"surprise": 1}), ("tile_facts", "surprise"), "unknown field"),
        (device(sources=[{"read": "primary"}]), ("sources", 0, "fields"), "is missing"),
        (device(sources=[{"fields": ["memory_bytes"]}]), ("sources", 0, "read"), "primary"),
        (device(sources=[{"fields": ["memory"], "read": "primary"}]), ("sources", 0, "fields", 0), "not a field"),
        (
            device(sources=[{"fields": ["name"], "read": "primary", "url": "javascript:alert(1)"}]),
            ("sources", 0, "url"),
            "http://",
        ),
    ],
)
def test_a_wrong_device_is_refused_where_it_is_wrong(data: Any, loc: tuple[str | int, ...], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        hardware_from_json(data, ("hardware",))
    assert caught.value.loc == ("hardware", *loc)
    assert says in caught.value.reason


@pytest.mark.parametrize(
    ("peak", "loc", "says"),
    [
        ({"flop_per_s": {"bf16": 989.4}}, ("flop_per_s", "bf16"), "989.4e12"),
        ({"flop_per_s": {"bf16": 1e21}}, ("flop_per_s", "bf16"), "too large"),
        ({"flop_per_s": {"bf16_sparse": 2e15}}, ("flop_per_s", "bf16_sparse"), "dense"),
        ({"flop_per_s": {"bfloat16": 2e15}}, ("flop_per_s", "bfloat16"), "did you mean 'bf16'"),
        ({"memory_bandwidth_bytes_per_s": 3350}, ("memory_bandwidth_bytes_per_s",), "3.35e12"),
        ({"memory_bandwidth_bytes_per_s": 1e18}, ("memory_bandwidth_bytes_per_s",), "too large"),
        ({"memory_bandwidth_bytes_per_s": 0}, ("memory_bandwidth_bytes_per_s",), "too small"),
    ],
)
def test_peaks_in_other_units_are_refused(peak: dict[str, Any], loc: tuple[str, ...], says: str) -> None:
    whole = {"flop_per_s": {"bf16": 1e14}, "memory_bandwidth_bytes_per_s": 1e12, **peak}
    with pytest.raises(InvalidInput) as caught:
        hardware_from_json(device(peak=whole))
    assert caught.value.loc == ("hardware", "peak", *loc)
    assert says in caught.value.reason


def test_null_is_absent() -> None:
    profile = hardware_from_json(device(memory_bytes=None, scale_up=None, notes=None))
    assert profile.memory_capacity is None
    assert profile.scale_up is None


# -- models ---------------------------------------------------------------------------------------------------------


def test_a_flat_model_becomes_layers() -> None:
    parsed = model_from_json(SMALL_MODEL)
    assert parsed.assumptions == ()
    (group,) = parsed.model.layers
    assert group.count == 2
    assert group.mixer == Attention(4, 2, 16, 16)
    assert group.mlp == DenseMlp(128)
    # by hand: embedding 64000; a layer has q and o 64x64 each, k and v 64x32 each, three 64x128; 2 norms; final norm
    assert count_parameters(parsed.model).total == 64_000 + 2 * (12_288 + 24_576 + 128) + 64


def test_every_filled_in_default_is_told() -> None:
    model_, assumptions = model_from_json(
        {
            "hidden_size": 64,
            "vocab_size": 1000,
            "num_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        }
    )
    told = " ".join(assumptions)
    for key in (
        "kind",
        "norm",
        "mlp_gated",
        "norms_per_layer",
        "attention_bias",
        "tie_word_embeddings",
        "num_kv_heads",
        "head_dim",
    ):
        assert f"{key} is not given" in told
    assert len(assumptions) == 8
    assert model_.layers[0].mixer == Attention(4, 4, 16, 16)


def test_a_flat_mixture_of_experts() -> None:
    parsed = model_from_json(
        model(
            kind="moe",
            moe={
                "num_experts": 8,
                "top_k": 2,
                "expert_intermediate_size": 32,
                "num_shared_experts": 2,
                "first_dense_layers": 1,
            },
        )
    )
    assert [(g.count, g.first_index) for g in parsed.model.layers] == [(1, 0), (1, 1)]
    assert parsed.model.layers[0].mlp == DenseMlp(128)
    assert parsed.model.layers[1].mlp == MoeMlp(8, 2, 32, 2, 64)
    assert parsed.assumptions == ("moe.shared_intermediate_size is not given: taken as 64",)


def test_a_flat_latent_attention() -> None:
    mla = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    parsed = model_from_json(model(mla=mla))
    assert parsed.model.layers[0].mixer == LatentAttention(4, 32, 16, 8, 16)


def test_a_sliding_window_is_said_to_hold_everywhere() -> None:
    parsed = model_from_json(model(sliding_window=256))
    assert parsed.model.layers[0].mixer == Attention(4, 2, 16, 16, kind="sliding", window=256)
    assert parsed.assumptions == ("every layer attends to a sliding window of 256 tokens",)


def test_a_model_without_a_record_writes_its_layers() -> None:
    for id_ in ("llama-3.1-8b", "gpt2", "deepseek-v3.2", "gpt-oss-20b", "gemma-4-26b-a4b", "phi-2", "opt-125m"):
        shipped = load_catalog().models[id_]
        again = model_from_json(json.loads(json.dumps(model_to_json(replace(shipped, record={}))))).model
        assert again.layers == shipped.layers
        assert replace(count_parameters(again), note=None) == replace(count_parameters(shipped), note=None)


def test_a_renamed_model_keeps_its_record() -> None:
    shipped = load_catalog().models["llama-3.1-8b"]
    data = model_to_json(replace(shipped, id="ours", name="Ours", aliases=(), copied_from=shipped.id, shipped=False))
    parsed = model_from_json(data)
    assert (parsed.model.id, parsed.model.copied_from, parsed.model.aliases) == ("ours", "llama-3.1-8b", ())
    assert parsed.model.layers == shipped.layers


def test_computed_fields_of_an_answer_may_be_sent_back() -> None:
    sent = model(params_total=1, kv_bytes_per_token=2, shipped=False)
    assert "params_total" not in model_from_json(sent).model.record


@pytest.mark.parametrize(
    ("data", "loc", "says"),
    [
        ("llama", (), "expected an object, got text"),
        (model(hidden_size=...), ("hidden_size",), "is missing"),
        (model(vocab_size=...), ("vocab_size",), "is missing"),
        (model(vocab_size=0), ("vocab_size",), "out of range"),
        (model(hidden_size=64.5), ("hidden_size",), "whole number"),
        (model(hidden_size="64"), ("hidden_size",), "got text"),
        (model(hidden_size=10**30), ("hidden_size",), "out of range"),
        (model(num_layers=...), ("layers",), "is missing"),
        (model(num_hidden_layers=2), ("num_hidden_layers",), "hf_config"),
        (model(num_attention_heads=...), ("num_attention_heads",), "is missing"),
        (model(num_kv_heads=3), ("num_kv_heads",), "do not divide"),
        (model(num_kv_heads=8), ("num_kv_heads",), "do not divide"),
        (model(head_dim=..., num_attention_heads=6, num_kv_heads=6), ("head_dim",), "does not divide"),
        (model(intermediate_size=...), ("intermediate_size",), "is missing"),
        (model(mlp_gated="yes"), ("mlp_gated",), "true or false"),
        (model(norm="batchnorm"), ("norm",), "rmsnorm"),
        (model(kind="gnn"), ("kind",), "decoder"),
        (model(position_embedding="learned"), ("max_position",), "is missing"),
        (model(bias_detail={"qvk": True}), ("bias_detail", "qvk"), "did you mean 'qkv'"),
        (model(moe={"num_experts": 4, "top_k": 8, "expert_intermediate_size": 8}), ("moe", "top_k"), "above"),
        (model(moe={"num_experts": 4}), ("moe", "top_k"), "is missing"),
        (model(moe=[1]), ("moe",), "expected an object"),
        (model(layers=[]), ("num_layers",), "add up to 0"),
        (model(layers=[{}]), ("layers", 0, "count"), "is missing"),
        (model(layers=[{"count": 2}]), ("layers", 0, "mixer"), "is missing"),
        (model(layers=[{"count": 2, "mixer": "gqa"}]), ("layers", 0, "heads"), "is missing"),
        (
            model(layers=[{"count": 3, "mixer": "gqa", "heads": 4, "head_dim": 16, "mlp": "dense"}]),
            ("num_layers",),
            "add up to 3",
        ),
        (
            model(layers=[{"count": 2, "mixer": "gqa", "heads": 4, "head_dim": 16, "kind": "sliding"}]),
            ("layers", 0, "window"),
            "is missing",
        ),
        (model(layers=[{"count": 2, "mixer": "mla", "heads": 4}]), ("layers", 0, "mla"), "kv_lora_rank"),
        (model(layers=[{"count": 2, "mixer": "none", "mlp": "none"}]), ("layers", 0, "mlp"), "does nothing"),
        (model(layers=[{"count": 2, "mixer": "none", "mlp": "moe"}]), ("layers", 0, "moe"), "is missing"),
        (model(layer_pattern="5xsliding 1xfull"), ("layer_pattern",), "give the groups in layers"),
        (model(vision={"params_computed": "many"}), ("vision", "params_computed"), "whole number"),
        (model(sources=["file:///etc/passwd"]), ("sources", 0), "http://"),
        (model(hiden_size=3), ("hiden_size",), "did you mean 'hidden_size'"),
    ],
)
def test_a_wrong_model_is_refused_where_it_is_wrong(data: Any, loc: tuple[str | int, ...], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        model_from_json(data, ("model",))
    assert caught.value.loc == ("model", *loc)
    assert says in caught.value.reason


# -- hostile values everywhere --------------------------------------------------------------------------------------

HOSTILE: list[Any] = ["", "<script>", -1, 0, 0.5, 1e308, math.inf, math.nan, 10**400, True, [], [[]], {}, {"a": {}}]


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def with_value(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    made = copy.deepcopy(data)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (hardware_from_json, hardware_to_json(load_catalog().hardware["nvidia-h200-sxm"])),
        (model_from_json, model_to_json(load_catalog().models["deepseek-v3.2"])),
        (model_from_json, model_to_json(load_catalog().models["gpt-oss-20b"])),
        (model_from_json, SMALL_MODEL),
    ],
)
def test_a_hostile_value_anywhere_is_read_or_refused(read: Callable[..., Any], data: Any) -> None:
    refused = 0
    for path in list(paths(data)):
        for value in HOSTILE:
            answer = answer_or_refusal(read, with_value(data, path, value))
            if isinstance(answer, InvalidInput):
                refused += 1
                assert answer.loc[0] == "x"
                assert len(answer.reason) < 1500
            elif isinstance(answer, ParsedModel) and answer.model.supported:
                assert count_parameters(answer.model).total > 0
    assert refused > len(HOSTILE)


def answer_or_refusal(read: Callable[..., Any], data: Any) -> Any:
    """What reading gives; any exception but InvalidInput fails the test."""
    try:
        return read(data, ("x",))
    except InvalidInput as error:
        return error
