"""Recomputation and offload by module: the same numbers as the levels, and sizes worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from app.catalog.loader import load_catalog
from app.domain.activations import OFFLOAD_LABELS, RECOMPUTE_LABELS, modules_of
from app.domain.errors import InvalidInput
from app.domain.layout import layout_of
from app.domain.levers.base import LeverRequest, lever_path
from app.domain.levers.registry import LEVERS
from app.domain.memory import largest_unit, memory_use
from app.domain.model import ModelSpec
from app.domain.step import cost_table
from app.domain.workload import Offload, OffloadModule, Parallel, RecomputeModule, Workload

CATALOG = load_catalog()
LLAMA, DEEPSEEK = CATALOG.models["llama-3.1-8b"], CATALOG.models["deepseek-v3"]
QWEN_VL = CATALOG.models["qwen2.5-vl-7b"]
TRAIN = Workload(phase="train", batch=1, seq_len=4096)
MODELS = ("llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "mamba2-2.7b", "jamba-v0.1", "t5-v1.1-xxl", "flux.1-dev")


def acts(model: ModelSpec, **changes: object) -> float:
    return memory_use(model, replace(TRAIN, **changes), None).objects["activations"]  # type: ignore[arg-type]


def total(model: ModelSpec, column: str, **changes: object) -> float:
    return float(cost_table(model, replace(TRAIN, **changes)).total(column))  # type: ignore[arg-type]


def host(model: ModelSpec, workload: Workload) -> float:
    table = cost_table(model, workload)
    return float((table.net["host"] * table["count"]).sum())


def test_the_words_name_every_module() -> None:
    assert tuple(RECOMPUTE_LABELS) == get_args(RecomputeModule)
    assert tuple(OFFLOAD_LABELS) == get_args(OffloadModule)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("level", "module"), [("selective", "attention_core"), ("full", "layer")])
def test_the_right_modules_are_the_levels(name: str, level: str, module: str) -> None:
    model = CATALOG.models[name]
    by_level = replace(TRAIN, recompute=level, batch=2)  # type: ignore[arg-type]
    by_module = replace(TRAIN, recompute_modules=(module,), batch=2)  # type: ignore[arg-type]
    assert memory_use(model, by_level, 80e9) == memory_use(model, by_module, 80e9)
    one, two = cost_table(model, by_level), cost_table(model, by_module)
    assert one.ops == two.ops
    # the two named twice are one choice
    assert cost_table(model, replace(by_level, recompute_modules=(module,))).ops == one.ops  # type: ignore[arg-type]


def test_norms_and_activation_of_a_dense_model_by_hand() -> None:
    """Llama 3.1 8B: 32 layers, 4,096 wide, MLP of 14,336; 4,096 tokens of 2 bytes; one layer's worth comes back."""
    plain = acts(LLAMA)
    tokens, layers = 4096, 32
    norms = 2 * 4096 * 2 * tokens
    assert plain - acts(LLAMA, recompute_modules=("norms",)) == pytest.approx((layers - 1) * norms)
    product = 14336 * 2 * tokens
    assert plain - acts(LLAMA, recompute_modules=("mlp_activation",)) == pytest.approx((layers - 1) * product)
    both = plain - acts(LLAMA, recompute_modules=("norms", "mlp_activation"))
    assert both == pytest.approx((layers - 1) * (norms + product))
    # 5 FLOP an element of the product, executed and not useful
    again = {"recompute_modules": ("mlp_activation",)}
    assert total(LLAMA, "executed", **again) - total(LLAMA, "executed") == pytest.approx(5 * 14336 * tokens * layers)
    assert total(LLAMA, "flop", **again) == total(LLAMA, "flop")


def test_up_projection_of_latent_attention_by_hand() -> None:
    """DeepSeek-V3: 61 layers, 128 heads with queries and keys of 192 and values of 128; ranks 1,536 and 512."""
    plain = acts(DEEPSEEK)
    freed = 128 * (192 + 192 + 128) * 2 * 4096
    again = ("mla_up_projection",)
    assert plain - acts(DEEPSEEK, recompute_modules=again) == pytest.approx(60 * freed)
    products = 2 * 4096 * 61 * (1536 * 128 * 192 + 512 * 128 * 256)
    more = total(DEEPSEEK, "executed", recompute_modules=again) - total(DEEPSEEK, "executed")
    assert more == pytest.approx(products, rel=1e-3)  # beside it the rotation


def test_experts_from_their_tokens_send_nothing_again() -> None:
    """Recomputing the experts repeats no exchange; the whole expert layer repeats dispatch and combine."""
    workload = replace(TRAIN, parallel=Parallel(dp=64, ep=64, zero_stage=1))

    def sent(*modules: str) -> float:
        table = cost_table(DEEPSEEK, replace(workload, recompute_modules=modules))  # type: ignore[arg-type]
        return float(sum((table.net[tier] * table["count"]).sum() for tier in ("scale_up", "scale_out")))

    def held(*modules: str) -> float:
        asked = replace(workload, recompute_modules=modules)  # type: ignore[arg-type]
        return memory_use(DEEPSEEK, asked, None).objects["activations"]

    assert sent("moe_experts") == sent()
    table = cost_table(DEEPSEEK, workload)
    forward = [
        i
        for i, op in enumerate(table.ops)
        if op.direction == "forward" and op.stage == "moe" and op.kind == "collective"
    ]
    once = sum(float((table.net[t] * table["count"])[forward].sum()) for t in ("scale_up", "scale_out"))
    assert sent("moe_layer") - sent() == pytest.approx(once)
    assert held("moe_layer") < held("moe_experts") < held("mlp_activation") < held()


def test_offloaded_modules_cross_the_host_link_twice() -> None:
    """Out in the forward and back in the backward pass; two layers of them stay on the device."""
    plain = acts(LLAMA)
    mlp = (4096 + 3 * 14336) * 2 * 4096
    asked = replace(TRAIN, offload=Offload(activations=("mlp",)))
    assert plain - memory_use(LLAMA, asked, None).objects["activations"] == pytest.approx(30 * mlp)
    assert host(LLAMA, asked) == pytest.approx(2 * 32 * mlp)
    everything = replace(TRAIN, offload=Offload(activations=("layer",)))
    assert memory_use(LLAMA, everything, None).objects["activations"] == pytest.approx(plain * 2 / 32)
    # what is recomputed is not sent
    less = replace(asked, recompute_modules=("mlp_activation",))
    assert host(LLAMA, less) == pytest.approx(2 * 32 * (mlp - 14336 * 2 * 4096))


def test_state_on_the_host() -> None:
    """The optimizer's state leaves the device; of parameters two of the largest parts stay."""
    moved = replace(TRAIN, offload=Offload(optimizer=True))
    lever = lever_path(LEVERS, LLAMA, TRAIN, [LeverRequest("cpu-offload-opt")]).scenarios[-1]
    assert lever.workload == moved
    assert memory_use(LLAMA, moved, None).objects["optimizer"] == 0
    n = 8_030_261_248
    assert host(LLAMA, moved) == pytest.approx(2 * n)
    both = replace(TRAIN, offload=Offload(optimizer=True, parameters=True))
    table = 128_256 * 4096
    assert largest_unit(LLAMA, layout_of(LLAMA, TRAIN, 8)) == table  # larger than a layer of 218 million
    assert memory_use(LLAMA, both, None).objects["parameters"] == 2 * table * 2
    # all matrices come in twice (the embedding's rows of 4,096 tokens), gradients go out once
    matrices = n - table - (2 * 32 + 1) * 4096
    assert host(LLAMA, both) == pytest.approx(2 * 2 * (matrices + 4096 * 4096) + 2 * n)


def test_a_tower_keeps_its_activations_by_hand() -> None:
    """Qwen2.5-VL 7B: 32 layers, 1,280 wide, 16 heads of 80, MLP of 3,420; four patches a token of the model."""
    words, patches = 1024, 4 * 1024
    plain = acts(QWEN_VL)
    with_picture = acts(QWEN_VL, visual_tokens=words)
    norms, product = 2 * 1280 * 2, 3420 * 2
    # inputs of both norms and of what follows them, queries, keys and values, the output, the three of the gated MLP
    layer = 2 * (2 * 1280 + 2 * 1280 + 3 * 1280 + 1280 + 3 * 3420) + 4 * 16
    # the merger's two products read as one would that has all their 44.5 million elements
    projector = 2 * 44_491_264 / 3584
    assert with_picture - plain == pytest.approx(32 * layer * patches + projector * words)
    # one layer's worth comes back, of the tower or of the 28 layers, whichever has more
    again = {"recompute_modules": ("norms", "mlp_activation")}
    freed = 32 * (norms + product) * patches
    back = max((norms + product) * patches, (2 * 3584 + 18944) * 2 * 4096)
    less = 28 * (2 * 3584 + 18944) * 2 * 4096
    assert with_picture - acts(QWEN_VL, visual_tokens=words, **again) == pytest.approx(freed + less - back)
    assert total(QWEN_VL, "executed", visual_tokens=words, **again) - total(
        QWEN_VL, "executed", visual_tokens=words
    ) > total(QWEN_VL, "executed", **again) - total(QWEN_VL, "executed")
    # a whole layer keeps its input, and the projector is not run again
    full = acts(QWEN_VL, visual_tokens=words, recompute="full") - acts(QWEN_VL, recompute="full")
    assert full == pytest.approx(32 * 1280 * 2 * patches + projector * words)
    rows = cost_table(QWEN_VL, replace(TRAIN, visual_tokens=words, recompute="full")).ops
    assert [op.name for op in rows if op.base == "vision projector" and op.direction == "recompute"] == []
    moved = replace(TRAIN, visual_tokens=words, offload=Offload(activations=("mlp",)))
    without = replace(moved, visual_tokens=0)
    mlp = (1280 + 3 * 3420) * 2
    assert host(QWEN_VL, moved) - host(QWEN_VL, without) == pytest.approx(2 * 32 * mlp * patches)


def test_a_prediction_module_keeps_its_activations_by_hand() -> None:
    """DeepSeek-V3: what two norms and a projection of two widths read, and one layer with latent attention."""
    tokens, h = 4096, 7168
    front = 2 * h + 2 * h
    attention = 1536 + 576 + 128 * (192 + 192 + 128) + 128 * 128
    experts = 8 * (h + 3 * 2048 + h) + 3 * 2048
    layer = 2 * (2 * h + h + attention + h + experts) + 4 * 128 + 8 * 8
    assert acts(DEEPSEEK, prediction_modules=1) - acts(DEEPSEEK) == pytest.approx(tokens * (2 * front + layer))
    full = acts(DEEPSEEK, prediction_modules=1, recompute="full") - acts(DEEPSEEK, recompute="full")
    assert full == pytest.approx(tokens * 2 * (2 * h + h))
    logits = [memory_use(DEEPSEEK, replace(TRAIN, prediction_modules=n), None).objects["logits"] for n in (0, 1)]
    assert logits[1] - logits[0] == tokens * 129_280 * 2
    rows = cost_table(DEEPSEEK, replace(TRAIN, prediction_modules=1, recompute="full")).ops
    again = {op.base for op in rows if op.direction == "recompute"}
    assert "prediction hidden state norm" in again
    assert "prediction projection" not in again


@pytest.mark.parametrize("name", MODELS)
def test_every_module_saves_and_costs_or_is_named_absent(name: str) -> None:
    """A module of the model never adds memory or takes work away; one it lacks changes nothing and is said."""
    model = CATALOG.models[name]
    again, held = modules_of(model)
    plain = cost_table(model, TRAIN)
    before = memory_use(model, TRAIN, None).peak
    for module in RECOMPUTE_LABELS:
        asked = replace(TRAIN, recompute_modules=(module,))  # type: ignore[arg-type]
        table = cost_table(model, asked)
        if module not in again:
            assert table.ops == plain.ops
            assert any(module in note for note in table.assumptions)
        else:
            assert memory_use(model, asked, None).peak <= before
            assert float(table.total("executed")) > float(plain.total("executed"))
            assert float(table.total("flop")) == pytest.approx(float(plain.total("flop")))
    for part in held:
        asked = replace(TRAIN, offload=Offload(activations=(part,)))  # type: ignore[arg-type]
        assert memory_use(model, asked, None).peak < before
        assert host(model, asked) > 0


def test_only_training_takes_modules() -> None:
    with pytest.raises(InvalidInput, match="only training"):
        Workload(phase="decode", recompute_modules=("norms",))
    with pytest.raises(InvalidInput, match="only training"):
        Workload(phase="prefill", offload=Offload(activations=("mlp",)))
    with pytest.raises(InvalidInput, match="unknown"):
        Workload(phase="train", recompute_modules=("everything",))  # type: ignore[arg-type]
