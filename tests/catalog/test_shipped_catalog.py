"""The shipped catalogue: known figures, a source for each, and files that load as they stand."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from app.catalog.check import lint_catalog, main
from app.catalog.codec import (
    hardware_figures,
    hardware_from_json,
    hardware_to_json,
    model_from_json,
    model_to_json,
)
from app.catalog.hardware_codec import READS
from app.catalog.loader import Catalog, load_catalog
from app.domain.model import Attention, LatentAttention, MoeMlp


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def shipped_files(kind: str) -> dict[str, Any]:
    folder = resources.files("app.catalog") / "data" / kind
    return {f.name: json.loads(f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".json")}


def test_every_entry_is_there(catalog: Catalog) -> None:
    assert len(catalog.hardware) == 90
    assert len(catalog.models) == 193


def test_nothing_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_catalog() == []
    assert main([]) == 0
    assert capsys.readouterr().out == "90 hardware profiles, 193 models and 127 techniques, all valid\n"


def test_it_loads_once() -> None:
    assert load_catalog() is load_catalog()


def test_h100_sxm_has_the_vendors_dense_figures(catalog: Catalog) -> None:
    h100 = catalog.hardware["nvidia-h100-sxm"]
    assert h100.peak["bf16"] == 989.4e12
    assert h100.peak["fp8"] == 1979e12
    assert h100.memory_bandwidth == 3.35e12
    assert h100.memory_capacity == 80e9
    assert h100.l2_capacity == 50 * 2**20
    assert h100.shared_memory_per_unit == 228 * 1024
    assert h100.compute_units == 132
    assert h100.boost_clock == 1.83e9
    assert h100.launch_overhead == 1.6e-6
    assert h100.scale_up is not None
    assert h100.scale_up.bandwidth == 450e9  # "900 GB/s" counts both directions
    assert h100.scale_up.domain_size == 8
    assert h100.scale_out is not None
    assert h100.scale_out.bandwidth == 50e9  # 400 Gbit/s
    assert h100.achievable_flop == {"bf16": 794.5e12, "fp8": 1402.6e12}
    assert h100.achievable_memory_bandwidth is None


@pytest.mark.parametrize(
    ("id_", "bf16", "bandwidth", "capacity"),
    [
        ("nvidia-a100-sxm4-80gb", 312e12, 2.039e12, 80e9),
        ("nvidia-h200-sxm", 989.4e12, 4.8e12, 141e9),
        ("nvidia-b200-sxm", 2250e12, 8e12, 180e9),
        ("amd-mi300x", 1307.4e12, 5.3e12, 192e9),
        ("amd-mi355x", 2516.6e12, 8e12, 288e9),
        ("google-tpu-v5p", 459e12, 2.765e12, 95e9),
        ("nvidia-rtx-4090", 165e12, 1.008e12, 24e9),
        ("intel-gaudi3", 1835e12, 3.67e12, 128e9),
    ],
)
def test_known_peaks(catalog: Catalog, id_: str, bf16: float, bandwidth: float, capacity: float) -> None:
    profile = catalog.hardware[id_]
    assert profile.peak["bf16"] == pytest.approx(bf16, rel=0.002)
    assert profile.memory_bandwidth == pytest.approx(bandwidth, rel=0.001)
    assert profile.memory_capacity == capacity


def test_a_driver_reported_cache_is_exact(catalog: Catalog) -> None:
    assert catalog.hardware["nvidia-h200-sxm"].l2_capacity == 62_914_560


def test_an_unknown_domain_size_stays_unknown(catalog: Catalog) -> None:
    link = catalog.hardware["nvidia-gh200-96gb"].scale_up
    assert link is not None
    assert link.domain_size is None


def test_a_missing_figure_is_absent_not_zero(catalog: Catalog) -> None:
    assert catalog.hardware["amd-epyc-9654"].memory_capacity is None
    assert "bf16" not in catalog.hardware["apple-m5"].peak


@pytest.mark.parametrize("name", sorted(shipped_files("hardware")))
def test_every_figure_of_a_profile_has_a_source(name: str) -> None:
    profile = hardware_from_json(shipped_files("hardware")[name], (name,), shipped=True)
    figures = hardware_figures(profile)
    assert len(figures) >= 3
    assert [f for f in figures if not profile.sources_of(f)] == []
    for source in profile.sources:
        assert source.read in READS
        assert source.url or source.note, "a source without an address says in words where it comes from"


def test_hardware_files_round_trip(catalog: Catalog) -> None:
    for data in shipped_files("hardware").values():
        profile = hardware_from_json(data, (), shipped=True)
        assert hardware_to_json(profile) == data
        assert profile == catalog.hardware[data["id"]]


def test_model_files_round_trip(catalog: Catalog) -> None:
    for data in shipped_files("models").values():
        parsed = model_from_json(data, (), shipped=True)
        assert parsed.assumptions == ()
        assert model_to_json(parsed.model) == data
        assert parsed.model == catalog.models[data["id"]]


def test_files_read_well() -> None:
    folder = resources.files("app.catalog") / "data"
    for kind in ("hardware", "models"):
        for file in (folder / kind).iterdir():
            text = file.read_text("utf-8")
            assert "000000000.0" not in text, f"{file.name}: write rates as 3.35e12"


def test_architectures_are_mapped(catalog: Catalog) -> None:
    llama = catalog.models["llama-3.1-8b"]
    assert llama.layers[0].mixer == Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128)
    assert (llama.num_layers, llama.norm_has_bias, llama.tied_embeddings) == (32, False, False)

    gpt2 = catalog.models["gpt2"]
    attention = gpt2.layers[0].mixer
    assert isinstance(attention, Attention)
    assert (attention.q_bias, attention.k_bias, attention.v_bias, attention.o_bias) == (True,) * 4
    assert gpt2.norm_has_bias
    assert gpt2.learned_positions == 1024

    assert catalog.models["opt-125m"].learned_positions == 2050

    deepseek = catalog.models["deepseek-v3"]
    assert [g.count for g in deepseek.layers] == [3, 58]
    assert deepseek.layers[0].mixer == LatentAttention(128, 512, 128, 64, 128, 1536)
    assert deepseek.layers[1].mlp == MoeMlp(256, 8, 2048, 1, 2048, router_bias=True)

    oss = catalog.models["gpt-oss-20b"].layers[0].mixer
    assert isinstance(oss, Attention)
    assert (oss.kind, oss.window, oss.sinks) == ("sliding", 128, True)

    assert catalog.models["gemma-2-9b"].layers[0].norms == 4
    assert catalog.models["qwen3-8b"].layers[0].mixer.qk_norm == "head"  # type: ignore[union-attr]
    assert catalog.models["olmo-2-7b"].layers[0].mixer.qk_norm == "full"  # type: ignore[union-attr]
    assert not catalog.models["mpt-7b"].norm_has_bias
    assert catalog.models["qwen3-vl-8b"].tower_params == 576_388_336


def test_sparse_attention_is_on_the_layers_that_have_it(catalog: Catalog) -> None:
    groups = catalog.models["glm-5.2"].layers
    with_indexer = sum(g.count for g in groups if getattr(g.mixer, "indexer", None) is not None)
    assert with_indexer == 21
    assert sum(g.count for g in groups) == 78
    m3 = catalog.models["minimax-m3"].layers
    assert [g.count for g in m3 if g.mixer.indexer is None] == [3]  # type: ignore[union-attr]
    assert m3[-1].mixer.indexer.top_keys == 16 * 128  # type: ignore[union-attr]
