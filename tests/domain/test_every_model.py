"""Every shipped model becomes a cost table, and a bound on every shipped device that has the figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.catalog.loader import load_catalog
from app.domain.cost import COLUMNS, TIERS
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.domain.expected import expected_time
from app.domain.hardware import HardwareProfile
from app.domain.layout import layout_of
from app.domain.lower_bound import ceilings, lower_bound
from app.domain.memory import kv_bytes_per_token, memory_use, running_parameters, sharded_parameters
from app.domain.model import Attention, CompressedAttention, ModelSpec, OtherMixer, SharedBlockThenMixer
from app.domain.parameters import count_parameters, index_key_elements, kv_elements_per_token
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Workload

CATALOG = load_catalog()
SUPPORTED = [model for model in CATALOG.models.values() if model.supported]
LLAMA = CATALOG.models["llama-3.1-8b"]
PROFILES = list(CATALOG.hardware.values())
STEPS = {
    "decode": Workload(batch=4, context_len=3000),
    "drafts": Workload(batch=4, seq_len=4, context_len=3000),
    "prefill": Workload(phase="prefill", batch=2, seq_len=700, context_len=1200),
    "train": Workload(phase="train", batch=2, seq_len=512, recompute="full", parallel=Parallel(dp=2, zero_stage=3)),
}


def steps_of(model: ModelSpec) -> dict[str, Workload]:
    """The steps that make sense: only what emits tokens decodes, and only it has a context."""
    if model.generates:
        return STEPS
    return {
        name: replace(step, context_len=0, seq_len=step.seq_len // 2 * 2)
        for name, step in STEPS.items()
        if step.phase != "decode"
    }


def by_id(value: object) -> str | None:
    return value.id if isinstance(value, (ModelSpec, HardwareProfile)) else None


def test_every_entry_has_a_cost_table() -> None:
    assert len(SUPPORTED) == len(CATALOG.models) == 193
    assert len(PROFILES) > 50


@pytest.mark.parametrize("model", SUPPORTED, ids=by_id)
def test_tables_are_finite_and_not_negative(model: ModelSpec) -> None:
    for name, workload in steps_of(model).items():
        table = cost_table(model, workload)
        for column in COLUMNS:
            assert np.all(np.isfinite(table[column])), (name, column)
            assert np.all(table[column] >= 0), (name, column)
        for tier in TIERS:
            assert np.all(np.isfinite(table.net[tier])), name
        if model.denoiser is None:
            forward = [i for i, op in enumerate(table.ops) if op.direction == "forward"]
            own = [g.count for g, a in model.attention_groups() if not (isinstance(a, Attention) and a.kind == "cross")]
            own += [g.count for g in model.layers if isinstance(g.mixer, CompressedAttention)]
            attending = sum(table["count"][i] for i in forward if table.ops[i].name == "attention")
            assert attending == sum(own)
            scanning = sum(table["count"][i] for i in forward if table.ops[i].kind == "scan")
            assert scanning == sum(group.count for group, _ in model.state_groups())
        assert float(table.total("flop")) > 0


@pytest.mark.parametrize("model", SUPPORTED, ids=by_id)
def test_one_device_holds_what_the_model_counts(model: ModelSpec) -> None:
    """Parameters of one rank and those of the catalogue agree. Towers run only in steps that give them tokens."""
    count = count_parameters(model)
    if not count.counted:
        assert model.undescribed is not None
        return
    assert sharded_parameters(model).total == count.total - count.tower
    index = sum(group.count * index_key_elements(a) for group, a in model.attention_groups())
    index += sum(
        g.count * index_key_elements(g.mixer) for g in model.layers if isinstance(g.mixer, CompressedAttention)
    )
    assert kv_bytes_per_token(model, 1.0) == kv_elements_per_token(model) + index


@pytest.mark.parametrize("model", [m for m in SUPPORTED if m.generates], ids=by_id)
def test_decode_reads_the_active_parameters(model: ModelSpec) -> None:
    """One token: every matrix element that it uses is read once and multiplied once. Left out of the products are the
    table (gathered), gains, biases, sinks and positions: of a model's active parameters less than half a percent. Of
    small models with a state it is up to 1.2 percent: decays, skips and convolutions are no products.
    """
    count = count_parameters(model)
    if not count.counted:
        assert model.undescribed is not None
        return
    if model.reads_other_input or any(isinstance(g.mixer, SharedBlockThenMixer) for g in model.layers):
        return  # keys and values of another input are computed once; shared weights are read by each layer
    table = cost_table(model, Workload())
    products = sum(table["flop"][i] * table["count"][i] for i, op in enumerate(table.ops) if op.kind == "gemm")
    left_out = count.embedding * (0 if model.tied_embeddings else 1) + count.norms + count.other
    assert products / 2 == pytest.approx(
        count.active - left_out, rel=12e-3 if any(True for _ in model.state_groups()) else 5e-3
    )
    read = sum(table["weights"][i] * table["count"][i] for i, op in enumerate(table.ops) if op.kind == "gemm")
    assert read == pytest.approx(products, rel=1e-9)  # two bytes and two FLOP an element


@pytest.mark.parametrize("model", [m for m in SUPPORTED if m.generates], ids=by_id)
def test_what_is_left_out_is_said(model: ModelSpec) -> None:
    notes = " ".join(cost_table(model, Workload()).assumptions)
    assert ("tower" in notes) == (model.kind == "vlm" or model.tower_params > 0)
    assert model.undescribed is None or model.undescribed in notes


def test_a_model_with_unknown_layers_is_refused_by_name() -> None:
    known = CATALOG.models["falcon-h1-1.5b"]
    groups = tuple(replace(group, mixer=OtherMixer("new", {"missing": "its width"})) for group in known.layers)
    for workload in STEPS.values():
        with pytest.raises(UnsupportedArchitecture, match="'new' cannot be estimated: its width") as refused:
            cost_table(replace(known, layers=groups), workload)
        assert refused.value.model == known.name


@pytest.mark.parametrize("model", [m for m in SUPPORTED if not m.generates], ids=by_id)
def test_what_emits_no_tokens_does_not_decode(model: ModelSpec) -> None:
    with pytest.raises(InvalidInput) as refused:
        cost_table(model, Workload())
    assert refused.value.loc == ("workload", "phase")
    assert "cannot decode" in refused.value.reason


@pytest.mark.parametrize("model", [m for m in CATALOG.models.values() if m.recorded_total_params], ids=by_id)
def test_every_recorded_total_is_met(model: ModelSpec) -> None:
    count = count_parameters(model)
    assert count.total == pytest.approx(model.recorded_total_params, rel=5e-3)
    assert count.active == pytest.approx(model.recorded_active_params, rel=5e-3)
    assert count.counted or model.id == "gemma-4-e2b"


PREDICTING = [m for m in CATALOG.models.values() if (m.record.get("mtp") or {}).get("params_each")]


@pytest.mark.parametrize("model", PREDICTING, ids=by_id)
def test_a_prediction_module_has_the_recorded_size(model: ModelSpec) -> None:
    """Those of released checkpoints; GLM-5.2's module lacks the indexer of the layers it is like."""
    steps = [Workload(prediction_modules=n) for n in (0, 1)]
    without, with_one = (running_parameters(model, step, layout_of(model, step, 8)).total for step in steps)
    assert with_one - without == pytest.approx(model.record["mtp"]["params_each"], rel=1e-3)


@pytest.mark.parametrize("model", [m for m in SUPPORTED if m.tower is not None], ids=by_id)
def test_a_tower_is_no_larger_than_recorded(model: ModelSpec) -> None:
    assert model.tower is not None
    stack = sharded_parameters(model.tower.stack).total
    assert stack + model.tower.projector_elements == pytest.approx(model.tower_params, rel=0.09)
    step = Workload(phase="prefill", batch=1, seq_len=2048, visual_tokens=model.tower.item_tokens or 256)
    table = cost_table(model, step)
    tower = [i for i, op in enumerate(table.ops) if op.name.startswith(model.tower.modality)]
    assert sum(table["count"][i] for i in tower if table.ops[i].kind == "attention") == model.tower.stack.num_layers


@pytest.mark.parametrize("profile", PROFILES, ids=by_id)
def test_bounds_on_every_device(profile: HardwareProfile) -> None:
    """Each profile against a third of the models in turn, so that every model meets many devices."""
    precision = next((name for name in ("bf16", "fp16", "fp32") if name in profile.peak), None)
    if profile.memory_bandwidth is None or precision is None:
        with pytest.raises(MissingFigure) as missing:
            lower_bound(cost_table(LLAMA, STEPS["decode"]), ceilings(profile))
        assert missing.value.profile == profile.name
        return
    start = PROFILES.index(profile) % 3
    dtypes = Dtypes(weights=precision, activations=precision, kv=precision, gradients=precision)
    for number, model in enumerate(SUPPORTED[start::3]):
        steps = list(steps_of(model).values())
        workload = steps[number % len(steps)]
        workload = Workload(
            phase=workload.phase,
            batch=workload.batch,
            seq_len=workload.seq_len,
            context_len=workload.context_len,
            dtypes=dtypes,
        )
        for choice in ("peak", "achievable"):
            bound = lower_bound(cost_table(model, workload), ceilings(profile, choice))
            assert 0 < float(bound.overlapped) <= float(bound.serial) * (1 + 1e-12) < np.inf, model.id
        forecast = expected_time(bound)
        assert float(bound.overlapped) <= forecast.low <= forecast.time <= forecast.high < np.inf
        use = memory_use(model, workload, profile.memory_capacity)
        assert 0 < use.peak < np.inf


@pytest.mark.parametrize("profile", [p for p in PROFILES if "fp8" not in p.peak], ids=by_id)
def test_a_missing_peak_is_named_and_never_guessed(profile: HardwareProfile) -> None:
    fp8 = Workload(dtypes=Dtypes(weights="fp8", activations="fp8", kv="fp8"))
    with pytest.raises(MissingFigure, match="peak fp8 throughput") as missing:
        lower_bound(cost_table(LLAMA, fp8), ceilings(profile))
    assert missing.value.profile == profile.name
    assert "fp8" in missing.value.figure


def test_a_missing_link_is_named() -> None:
    lonely = replace(CATALOG.hardware["nvidia-h100-sxm"], scale_up=None, pcie_bandwidth=None)
    model = CATALOG.models["llama-3.1-8b"]
    shared = cost_table(model, Workload(parallel=Parallel(tp=2)))
    with pytest.raises(MissingFigure, match="scale-up link bandwidth"):
        lower_bound(shared, ceilings(lonely))
    by_pcie = ceilings(replace(lonely, pcie_bandwidth=63e9))
    assert by_pcie.names["scale-up bandwidth"] == "PCIe"
    assert float(lower_bound(shared, by_pcie).terms["net"]) == 64 * 4096 * 2 / 63e9  # an array each way, 2 (2 - 1) / 2
    assert float(lower_bound(cost_table(model, Workload()), ceilings(lonely)).overlapped) > 0
