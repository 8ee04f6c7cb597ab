"""Parameter counts against worked examples, the recorded totals and the published ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.catalog.loader import load_catalog
from app.domain.errors import UnsupportedArchitecture
from app.domain.model import (
    Attention,
    DenseMlp,
    LatentAttention,
    LayerGroup,
    Mamba2,
    ModelSpec,
    MoeMlp,
    OtherMixer,
)
from app.domain.parameters import (
    attention_parameters,
    count_parameters,
    index_key_elements,
    kv_elements_per_token,
    mlp_parameters,
    state_elements_per_sequence,
)

MODELS = load_catalog().models
COUNTED = sorted(id_ for id_, model in MODELS.items() if count_parameters(model).counted)

# Recorded totals that hold a few tensors which no layer describes; the difference is below 0.01 %.
NEARLY = {
    "gemma-4-26b-a4b": "a scalar a layer, router scales and the norms between the dense MLP and the experts",
    "kimi-k3": "a norm of the latent that the routed experts read",
    "rwkv7-0.4b": "the mix of the last token before the MLP",
    "llama-3.2-11b-vision": "norms and gates of the cross-attention layers, and 8 rows of image-token embeddings",
}

# Totals of denoisers were added up without biases, tables or norms of queries and keys, in one way or another.
DENOISERS = sorted(id_ for id_ in COUNTED if MODELS[id_].denoiser is not None)

# Published totals that are not those of the model as described.
PUBLISHED_OTHERWISE = {
    "falcon-40b": "the published name rounds; the tied count is 41.3 B",
    "devstral-2-123b": "the name carries over an older size; the tensors add up to 125 B",
    "mimo-7b": "the published figure includes one multi-token-prediction layer of about 0.21 B",
    "kimi-k2": "published as 1T in round words",
    "kimi-k2.5": "published as 1T in round words",
    "wan2.1-t2v-1.3b": "the name rounds 1.42 B down",
    "wan2.2-t2v-a14b": "published as 27B, two networks of 14.3 B",
}


def dense(h: int, heads: int, kv: int, d: int, i: int, layers: int, v: int, **kwargs: object) -> ModelSpec:
    bias = bool(kwargs.pop("qkv_bias", False))
    mixer = Attention(heads, kv, d, d, q_bias=bias, k_bias=bias, v_bias=bias)
    group = LayerGroup(layers, mixer, DenseMlp(i))
    return ModelSpec("m", "M", "decoder", h, v, (group,), **kwargs)  # type: ignore[arg-type]


def test_llama_3_8b() -> None:
    """EX-03."""
    model = dense(4096, 32, 8, 128, 14336, 32, 128256)
    count = count_parameters(model)
    assert attention_parameters(model.layers[0].mixer, 4096) == 41_943_040  # type: ignore[arg-type]
    assert mlp_parameters(model.layers[0].mlp, 4096) == 176_160_768
    assert count.total == count.active == 8_030_261_248
    assert count.embedding == count.lm_head == 128256 * 4096
    assert kv_elements_per_token(model) * 2 == 131_072  # EX-16, bf16


def test_llama_3_70b() -> None:
    """EX-04."""
    model = dense(8192, 64, 8, 128, 28672, 80, 128256)
    assert count_parameters(model).total == 70_553_706_496
    assert kv_elements_per_token(model) * 2 == 327_680  # EX-16, bf16


def test_qwen2_5_half_b_tied_with_qkv_bias() -> None:
    """EX-05."""
    model = dense(896, 14, 2, 64, 4864, 24, 151936, tied_embeddings=True, qkv_bias=True)
    count = count_parameters(model)
    assert count.total == 494_032_768
    assert count.lm_head == 0


def test_mixtral_8x7b() -> None:
    """EX-06."""
    group = LayerGroup(32, Attention(32, 8, 128, 128), MoeMlp(8, 2, 14336))
    count = count_parameters(ModelSpec("m", "M", "moe", 4096, 32000, (group,)))
    assert count.total == 46_702_792_704
    assert count.active == 12_879_925_248


def test_deepseek_v3() -> None:
    """EX-07."""
    latent = LatentAttention(128, 512, 128, 64, 128, 1536)
    layers = (
        LayerGroup(3, latent, DenseMlp(18432)),
        LayerGroup(58, latent, MoeMlp(256, 8, 2048, 1, 2048, router_bias=True), 3),
    )
    model = ModelSpec("m", "M", "moe", 7168, 129280, layers)
    count = count_parameters(model)
    assert attention_parameters(latent, 7168) == 187_107_328
    assert count.total == 671_026_419_200
    assert count.active == 37_552_297_472
    assert kv_elements_per_token(model) * 2 == 70_272  # EX-16, bf16


def test_shipped_models_have_the_known_totals() -> None:
    assert count_parameters(MODELS["llama-3.1-8b"]).total == 8_030_261_248
    assert count_parameters(MODELS["gpt2"]).total == 124_439_808
    assert count_parameters(MODELS["gpt-oss-120b"]).total == 116_829_156_672
    assert count_parameters(MODELS["qwen3-30b-a3b"]).total == 30_532_122_624


def test_most_decoders_are_counted() -> None:
    decoders = [m for m in MODELS.values() if m.kind in ("decoder", "moe", "vlm")]
    assert len(decoders) == 137
    assert len(COUNTED) == 192
    assert {m.id for m in decoders} - set(COUNTED) == {"gemma-4-e2b"}


@pytest.mark.parametrize("id_", DENOISERS)
def test_a_denoisers_count_is_close_to_the_recorded_one(id_: str) -> None:
    model = MODELS[id_]
    count = count_parameters(model)
    assert count.total == count.attention + count.mlp + count.other
    recorded = model.recorded_total_params or model.published_total_params
    assert count.total == pytest.approx(recorded, rel=1e-3)
    assert count.active == pytest.approx(model.recorded_active_params or recorded, rel=1e-3)


def test_u_nets_and_mmdit_are_counted_to_the_last_parameter() -> None:
    """Sizes of the released files: 859,520,964 and 2,567,463,684 (U-nets), 2,028,328,000 (SD3 medium)."""
    assert count_parameters(MODELS["sd-1.5"]).total == 859_520_964
    assert count_parameters(MODELS["sdxl-base"]).total == 2_567_463_684
    assert count_parameters(MODELS["sd3-medium"]).total == 2_028_328_000


@pytest.mark.parametrize("id_", sorted(set(COUNTED) - set(DENOISERS)))
def test_the_count_is_the_recorded_one(id_: str) -> None:
    model = MODELS[id_]
    count = count_parameters(model)
    parts = count.embedding + count.lm_head + count.attention + count.mlp + count.norms + count.other
    assert count.total == parts
    if id_ in NEARLY:
        assert count.total == pytest.approx(model.recorded_total_params, rel=1e-3)
        assert count.active == pytest.approx(model.recorded_active_params, rel=1e-3)
        assert count.total != model.recorded_total_params
    else:
        assert count.total == model.recorded_total_params
        assert count.active == model.recorded_active_params


@pytest.mark.parametrize("id_", [i for i in COUNTED if "norms" in (MODELS[i].record.get("computed_breakdown") or {})])
def test_the_parts_are_the_recorded_ones(id_: str) -> None:
    model = MODELS[id_]
    count = count_parameters(model)
    recorded = model.record["computed_breakdown"]
    shared = 426_327_040 if id_ == "zamba2-2.7b" else 0  # recorded beside the mixers, counted with them
    assert count.embedding == recorded["embedding"]
    assert count.lm_head == recorded["lm_head"] or count.lm_head + model.vocab_size == recorded["lm_head"]
    assert count.norms == recorded["norms"]
    assert count.attention == pytest.approx(recorded["attention_or_mixer"] + shared, rel=1e-5)
    assert count.mlp == pytest.approx(recorded["mlp"], rel=1e-4)
    assert count.tower == (recorded["vision_or_audio_tower"] or 0)


@pytest.mark.parametrize("id_", [i for i in COUNTED if MODELS[i].published_total_params is not None])
def test_the_count_agrees_with_what_was_published(id_: str) -> None:
    model = MODELS[id_]
    total, published = count_parameters(model).total, model.published_total_params
    assert published is not None
    if model.record["published_digits"] == "exact":
        assert total == pytest.approx(published, rel=0.005)
    elif id_ in PUBLISHED_OTHERWISE:
        assert total == pytest.approx(published, rel=0.1)
        assert total != pytest.approx(published, rel=0.015)
    else:
        assert abs(total - published) <= max(rounding(published), 0.015 * published)


def rounding(published: float) -> float:
    """Half a unit of the last digit that is stated: 0.05e9 for 1.3e9."""
    digits = str(int(published))
    return 0.5 * 10 ** (len(digits) - len(digits.rstrip("0")))


@pytest.mark.parametrize("id_", [i for i in COUNTED if "growing_layers" in (MODELS[i].record.get("kv_cache") or {})])
def test_kv_elements_are_the_recorded_ones(id_: str) -> None:
    recorded = MODELS[id_].record["kv_cache"]
    index = sum(group.count * index_key_elements(a) for group, a in MODELS[id_].attention_groups())
    assert index == recorded.get("indexer_key_elements_per_token", 0)
    windowed = recorded["windowed_elements_per_token"] or 0
    assert kv_elements_per_token(MODELS[id_]) == recorded["growing_elements_per_token"] + windowed


def test_what_cannot_be_counted_quotes_its_record_and_says_so() -> None:
    known = MODELS["falcon-h1-1.5b"]
    (group,) = known.layers
    layers = (replace(group, mixer=OtherMixer("attention+mamba2 in parallel")),)
    unknown = replace(known, layers=layers, recorded_total_params=None, recorded_active_params=None)
    falcon = count_parameters(unknown)
    assert (falcon.total, falcon.active, falcon.counted) == (1_550_000_000, 1_550_000_000, False)
    assert "'attention+mamba2 in parallel'" in (falcon.note or "")
    assert "published" in (falcon.note or "")
    assert "per_layer_embeddings" in (count_parameters(MODELS["gemma-4-e2b"]).note or "")


def test_what_cannot_be_counted_and_has_no_record_is_refused() -> None:
    model = ModelSpec("m", "M", "decoder", 64, 100, (LayerGroup(1, OtherMixer("new"), DenseMlp(8)),))
    with pytest.raises(UnsupportedArchitecture, match="'new'"):
        count_parameters(model)
    with pytest.raises(UnsupportedArchitecture, match="'new'"):
        kv_elements_per_token(model)


def test_a_state_has_no_growing_cache_and_shared_caches_count_once() -> None:
    assert kv_elements_per_token(MODELS["mamba-2.8b"]) == 0
    assert kv_elements_per_token(MODELS["qwen3-next-80b-a3b"]) == 12_288
    assert kv_elements_per_token(MODELS["falcon-h1-3b"]) == 16_384
    assert kv_elements_per_token(MODELS["hunyuan-large"]) == 32 * 2 * 8 * 80
    assert kv_elements_per_token(MODELS["falcon-h1-1.5b"]) == 12_288
    # windows of 43 layers, an entry for 4 tokens in 21 of them and one for 128 in 20
    assert kv_elements_per_token(MODELS["deepseek-v4-flash"]) == 43 * 512 + 21 * 128 + 20 * 4


def test_one_expert_that_is_always_used_is_a_dense_mlp_with_a_router() -> None:
    assert mlp_parameters(MoeMlp(1, 1, 128), 64) == mlp_parameters(DenseMlp(128), 64) + 64
    group = LayerGroup(1, Attention(4, 4, 16, 16), MoeMlp(1, 1, 128))
    count = count_parameters(ModelSpec("m", "M", "moe", 64, 100, (group,)))
    assert count.total == count.active


def test_biases_sinks_and_norms_by_hand() -> None:
    plain = Attention(4, 2, 16, 16)
    assert attention_parameters(plain, 64) == 2 * 64 * 64 + 2 * 64 * 32
    full = Attention(4, 2, 16, 16, q_bias=True, k_bias=True, v_bias=True, o_bias=True, qk_norm="head", sinks=True)
    assert attention_parameters(full, 64) - attention_parameters(plain, 64) == 64 + 32 + 32 + 64 + 32 + 4
    wide = Attention(4, 2, 16, 16, qk_norm="full")
    assert attention_parameters(wide, 64) - attention_parameters(plain, 64) == 64 + 32
    assert attention_parameters(Attention(4, 2, 16, 16, own_kv=False), 64) == 2 * 64 * 64
    assert attention_parameters(Attention(4, 2, 16, 16, v_from_k=True), 64) == 2 * 64 * 64 + 64 * 32
    assert mlp_parameters(DenseMlp(128, gated=False, bias=True), 64) == 2 * 64 * 128 + 128 + 64
    assert mlp_parameters(None, 64) == 0


def test_states_of_recurrent_layers() -> None:
    """EX-18: 48 layers, 5120 channels, 128 states are 62.9 MB in 16 bits; the convolution's inputs come on top."""
    layer = LayerGroup(48, Mamba2(80, 64, 1, 128, 4), None, norms=1)
    model = ModelSpec("m", "M", "ssm", 2560, 50280, (layer,))
    recurrent = 48 * 5120 * 128
    assert recurrent * 2 == 62_914_560
    assert state_elements_per_sequence(model) == recurrent + 48 * (5120 + 2 * 128) * 3
    assert state_elements_per_sequence(model, 2) == state_elements_per_sequence(model) / 2


@pytest.mark.parametrize("id_", [i for i in COUNTED if (MODELS[i].record.get("linear_layers") or {}).get("count")])
def test_states_are_the_recorded_ones(id_: str) -> None:
    linear = MODELS[id_].record["linear_layers"]
    per_layer = {mixer.state_elements for _, mixer in MODELS[id_].state_groups()}
    shape = linear.get("state_shape_per_head")
    recorded = linear["heads"] * shape[0] * shape[1] if shape else linear["state_elements_per_layer"]
    assert per_layer == {recorded}
    assert sum(group.count for group, _ in MODELS[id_].state_groups()) == linear["count"]
    if "conv_state_elements_per_layer" in linear:
        assert {mixer.conv_elements for _, mixer in MODELS[id_].state_groups()} == {
            linear["conv_state_elements_per_layer"]
        }
