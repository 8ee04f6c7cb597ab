"""What must hold for every shape, layout and device."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import cost
from app.domain.cost import COLUMNS, TIERS
from app.domain.errors import InvalidInput
from app.domain.expected import expected_time
from app.domain.hardware import HardwareProfile, Link
from app.domain.lower_bound import RESOURCES, Bound, ceilings, lower_bound
from app.domain.model import ModelSpec
from app.domain.step import KnownRows, cost_table, step_rows
from app.domain.workload import Dtypes, KvSettings, Offload, Parallel, Workload
from tests.domain.architectures import ALL, DEEPSEEK_V3, H100, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, WINDOWED

some = settings(max_examples=40, deadline=None, derandomize=True, database=None)
models = st.sampled_from(ALL)
degrees = st.sampled_from([1, 2, 4, 8, 16])
sizes = st.integers(1, 300)


@st.composite
def workloads(draw: st.DrawFn, phase: str | None = None) -> Workload:
    chosen = phase or draw(st.sampled_from(["decode", "prefill", "train"]))
    training = chosen == "train"
    dp = draw(st.sampled_from([1, 2, 16])) if training else 1
    return Workload(
        phase=chosen,
        batch=draw(sizes),
        seq_len=draw(st.integers(1, 4)) if chosen == "decode" else draw(st.integers(1, 9000)),
        context_len=0 if training else draw(st.integers(0, 20000)),
        dtypes=draw(st.sampled_from([Dtypes(), Dtypes(weights="fp8", kv="fp8"), Dtypes(weights="int4")])),
        parallel=Parallel(
            tp=draw(degrees),
            dp=dp,
            zero_stage=draw(st.integers(0, 3)) if training else 0,
            micro_batches=draw(st.sampled_from([1, 3])) if training else 1,
            sequence_parallel=draw(st.booleans()),
        ),
        recompute=draw(st.sampled_from(["none", "selective", "full"])) if training else "none",
        launch_mode=draw(st.sampled_from(["graph", "eager"])),
    )


def bound_of(model: ModelSpec, workload: Workload, profile: HardwareProfile = H100) -> Bound:
    return lower_bound(cost_table(model, workload), ceilings(profile), launch_mode=workload.launch_mode)


def overlapped(model: ModelSpec, workload: Workload, profile: HardwareProfile = H100) -> float:
    return float(bound_of(model, workload, profile).overlapped)


@some
@given(models, workloads())
def test_every_column_is_finite_and_not_negative(model: ModelSpec, workload: Workload) -> None:
    table = cost_table(model, workload)
    for name in COLUMNS:
        assert np.all(np.isfinite(table[name])), name
        assert np.all(table[name] >= 0), name
    for tier in TIERS:
        assert np.all(table.net[tier] >= table.net_in_switch[tier] - 1e-6)
        assert np.all(table.net_in_switch[tier] >= 0)
    assert np.all(table["count"] > 0)
    fused = np.array([op.base == "histogram" for op in table.ops])  # counted in the kernel of the top-k
    assert np.all(table["launches"][~fused] >= 1)
    assert np.all(table["launches"][fused] == 0)


@some
@given(models, workloads())
def test_overlap_never_costs_time(model: ModelSpec, workload: Workload) -> None:
    bound = bound_of(model, workload)
    assert 0 < float(bound.overlapped) <= float(bound.serial) * (1 + 1e-12)
    assert float(bound.overlapped) == max(float(bound.terms[name]) for name in RESOURCES)
    assert float(bound.terms[bound.binding]) == float(bound.overlapped)


@some
@given(models, workloads())
def test_rows_times_count_are_the_totals_exactly(model: ModelSpec, workload: Workload) -> None:
    bound = bound_of(model, workload)
    table = bound.table

    def added(values: Any) -> float:
        total = 0.0
        for value, count in zip(values.tolist(), table["count"].tolist(), strict=True):
            total += value * count
        return total

    for name in COLUMNS:
        assert float(table.total(name)) == added(table[name]), name
    assert bound.hbm_bytes == added(bound.op_hbm_bytes)
    assert bound.net_bytes == added(bound.op_net_bytes)


@some
@given(models, workloads(), st.sampled_from(["batch", "seq_len", "context_len"]), st.integers(1, 5000))
def test_more_work_never_takes_less(model: ModelSpec, workload: Workload, axis: str, more: int) -> None:
    if axis == "context_len" and workload.phase == "train":
        axis = "seq_len"
    grown = replace(workload, **{axis: getattr(workload, axis) + more})
    before, after = bound_of(model, workload), bound_of(model, grown)
    for name in RESOURCES:
        assert float(after.terms[name]) >= float(before.terms[name]) * (1 - 1e-12), name
    assert float(after.serial) >= float(before.serial) * (1 - 1e-12)


FASTER: dict[str, Any] = {
    "compute": {"peak": {name: 2 * rate for name, rate in H100.peak.items()}},
    "memory": {"memory_bandwidth": 1.5 * 3.35e12},
    "exponentials": {"peak_exponentials": 2 * 3.86e12},
    "scale-up": {"scale_up": Link("faster", 900e9, domain_size=8)},
    "scale-out": {"scale_out": Link("faster", 100e9)},
    "cache": {"l2_capacity": 4 * 50 * 2.0**20},
    "launch": {"launch_overhead": 1e-6},
    "switch": {"scale_up": Link("reducing", 450e9, domain_size=8, in_network_reduction=True)},
}


@pytest.mark.parametrize("what", FASTER)
@settings(some, max_examples=12)
@given(models, workloads())
def test_a_faster_device_never_takes_longer(what: str, model: ModelSpec, workload: Workload) -> None:
    before, after = bound_of(model, workload), bound_of(model, workload, replace(H100, **FASTER[what]))
    assert float(after.overlapped) <= float(before.overlapped) * (1 + 1e-12)
    assert float(after.serial) <= float(before.serial) * (1 + 1e-12)


@some
@given(models, workloads())
def test_launching_from_the_host_never_takes_less(model: ModelSpec, workload: Workload) -> None:
    graph = bound_of(model, replace(workload, launch_mode="graph"))
    eager = bound_of(model, replace(workload, launch_mode="eager"))
    assert float(eager.overlapped) >= float(graph.overlapped)
    assert float(graph.terms["launch"]) == 0
    assert float(eager.terms["launch"]) == float(eager.table.total("launches")) * 2e-6


@some
@given(models, workloads())
def test_the_forecast_surrounds_itself_and_respects_the_bound(model: ModelSpec, workload: Workload) -> None:
    bound = bound_of(model, workload)
    forecast = expected_time(bound)
    assert float(bound.overlapped) <= forecast.low <= forecast.time <= forecast.high


# ---- a sweep is the same question asked many times ----


@some
@given(
    models,
    workloads(),
    st.lists(st.tuples(sizes, st.integers(1, 9000), st.integers(0, 20000), degrees), min_size=1, max_size=6),
)
def test_a_sweep_answers_each_point_exactly(
    model: ModelSpec, workload: Workload, points: list[tuple[int, int, int, int]]
) -> None:
    training = workload.phase == "train"
    grid = {
        "batch": [p[0] for p in points],
        "seq_len": [p[1] for p in points],
        "context_len": [0 if training else p[2] for p in points],
        "tp": [p[3] for p in points],
    }
    sweep = lower_bound(cost_table(model, workload, grid=grid), ceilings(H100), launch_mode=workload.launch_mode)
    for i, (batch, seq_len, context_len, tp) in enumerate(points):
        asked = replace(
            workload,
            batch=batch,
            seq_len=seq_len,
            context_len=0 if training else context_len,
            parallel=replace(workload.parallel, tp=tp),
        )
        one = bound_of(model, asked)
        assert sweep.overlapped[i] == one.overlapped
        assert sweep.serial[i] == one.serial
        for name in RESOURCES:
            assert sweep.terms[name][i] == one.terms[name], name
        for name in ("flop", "executed", "weights", "kv_read", "kv_write", "state", "act_read", "launches"):
            assert sweep.table.total(name)[i] == one.table.total(name), name
        assert np.broadcast_to(sweep.table.tokens, len(points))[i] == one.table.tokens
        assert np.broadcast_to(sweep.table.devices, len(points))[i] == one.table.devices


def test_axes_broadcast_against_each_other() -> None:
    grid = {"batch": np.array([[1], [8]]), "context_len": np.array([[0, 1000, 5000]])}
    sweep = lower_bound(cost_table(LLAMA3_8B, Workload(), grid=grid), ceilings(H100))
    assert sweep.overlapped.shape == (2, 3)
    assert float(sweep.overlapped[1, 2]) == overlapped(LLAMA3_8B, Workload(batch=8, context_len=5000))


PASSES_LEAVE = {
    "recompute": "full",
    "recompute_modules": ("norms",),
    "optimizer": "sgd",
    "launch_mode": "eager",
    "kv": KvSettings(page_tokens=1, shared_prefix_tokens=64),
    "overlap": "tile",
    "offload": Offload(activations=("layer",), optimizer=True, parameters=True),
}
LAYOUTS_LEAVE = {"zero_stage": 3, "virtual_stages": 2, "schedule": "dualpipe"}


@pytest.mark.parametrize("model", [LLAMA3_8B, DEEPSEEK_V3, WINDOWED], ids=lambda model: model.id)
def test_a_pass_is_known_by_all_that_its_rows_depend_on(model: ModelSpec) -> None:
    """Steps that differ in anything else share its rows, and are what they are without sharing."""
    layout = Parallel(tp=2, pp=2, dp=2, micro_batches=4)
    start = Workload(phase="train", batch=2, seq_len=128, parallel=layout)
    others = [replace(start, **{name: value}) for name, value in PASSES_LEAVE.items()]
    others += [replace(start, parallel=replace(layout, **{name: value})) for name, value in LAYOUTS_LEAVE.items()]
    others += [replace(start, dtypes=Dtypes(weights="fp8", activations="fp8")), replace(start, batch=3)]
    known = KnownRows()
    step_rows(model, start, 8, known=known)
    for workload in others:
        assert step_rows(model, workload, 8, known=known).rows == step_rows(model, workload, 8).rows, workload
    # another precision, another batch, and DualPipe's two stages on a device
    assert len(known.passes) == 1 + 3


def test_every_part_of_a_workload_is_weighed_for_passes() -> None:
    """Whoever adds a field decides whether rows of a pass depend on it: `_pass_key` has it, or it stands above."""
    in_key = {"phase", "batch", "seq_len", "context_len", "dtypes", "parallel", "routing", "dispatch"}
    in_key |= {"visual_tokens", "source_len", "width", "height", "frames", "prediction_modules"}
    assert {field.name for field in fields(Workload)} == in_key | set(PASSES_LEAVE)
    in_layout = {"tp", "pp", "dp", "cp", "ep", "etp", "nodes"}
    in_key = {"micro_batches", "sequence_parallel", "context_exchange"}
    assert {field.name for field in fields(Parallel)} == in_layout | in_key | set(LAYOUTS_LEAVE)


@pytest.mark.parametrize("first", [5, 1])
def test_a_large_sweep_is_bounded_in_blocks(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """To the last bit what it is in one piece, with the rows worked out when they are asked for."""
    grid = {"batch": np.arange(1, first + 1)[:, None], "context_len": np.array([[0, 1000, 5000]]), "tp": [1, 2, 4]}
    workload = Workload(parallel=Parallel(dp=2))
    roofs = ceilings(H100)
    whole = lower_bound(cost_table(MIXTRAL_8X7B, workload, grid=grid), roofs)
    monkeypatch.setattr(cost, "POINTS_AT_ONCE", 2)
    table = cost_table(MIXTRAL_8X7B, workload, grid=grid)
    assert [block["count"].shape[1] for block in table.blocks()] == [1] * first
    blocks = lower_bound(table, roofs)
    for name in ("overlapped", "serial", "serial_waiting", "op_time", "op_hbm_bytes"):
        assert np.array_equal(getattr(blocks, name), getattr(whole, name)), name
    for name in RESOURCES:
        assert np.array_equal(blocks.terms[name], whole.terms[name]), name
    assert all(np.array_equal(blocks.units[name], whole.units[name]) for name in whole.units)
    assert np.array_equal(blocks.table.net["scale_up"], whole.table.net["scale_up"])
    assert np.array_equal(blocks.table.total("weights"), whole.table.total("weights"))


@pytest.mark.parametrize(
    ("grid", "field"),
    [
        ({"batch": [1, 0]}, "batch"),
        ({"tp": [-1]}, "tp"),
        ({"context_len": [-1]}, "context_len"),
        ({"seq_len": [1.5]}, "seq_len"),
        ({"batch": [float("nan")]}, "batch"),
        ({"batch": [float("inf")]}, "batch"),
        ({"batch": [2**41]}, "batch"),
        ({"pp": [1, 2]}, "pp"),
    ],
)
def test_axes_are_checked(grid: dict[str, list[float]], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cost_table(LLAMA3_8B, Workload(), grid=grid)
    assert refused.value.loc[-1] == field


def test_the_largest_shapes_stay_finite() -> None:
    huge = 2**40
    bound = bound_of(LLAMA3_8B, Workload(phase="prefill", batch=huge, seq_len=huge, context_len=huge))
    assert np.isfinite(bound.overlapped)
    grid = lower_bound(
        cost_table(LLAMA3_8B, Workload(phase="prefill"), grid={"batch": [huge], "seq_len": [huge]}), ceilings(H100)
    )
    assert np.all(np.isfinite(grid.overlapped))
    assert np.all(grid.overlapped > 0)


# ---- tensor parallelism ----


@some
@given(st.sampled_from([LLAMA3_8B, LLAMA3_70B, WINDOWED]), workloads(), st.sampled_from([2, 4, 8]))
def test_a_group_computes_what_one_device_computes(model: ModelSpec, workload: Workload, tp: int) -> None:
    alone = cost_table(model, replace(workload, parallel=replace(workload.parallel, tp=1)))
    shared = cost_table(model, replace(workload, parallel=replace(workload.parallel, tp=tp)))
    for name in ("flop", "executed"):
        one = sum(alone[name][i] * alone["count"][i] for i, op in enumerate(alone.ops) if op.pipe == "tensor")
        each = sum(shared[name][i] * shared["count"][i] for i, op in enumerate(shared.ops) if op.pipe == "tensor")
        assert tp * each == pytest.approx(one, rel=1e-12)


@some
@given(models, workloads())
def test_a_larger_group_reads_fewer_weights_a_device(model: ModelSpec, workload: Workload) -> None:
    read = [
        float(cost_table(model, replace(workload, parallel=replace(workload.parallel, tp=tp))).total("weights"))
        for tp in (1, 2, 4, 8, 16)
    ]
    assert read == sorted(read, reverse=True)
    assert len(set(read)) == 5


def test_a_group_of_one_sends_nothing() -> None:
    table = cost_table(LLAMA3_70B, Workload(batch=8))
    assert not any(op.kind == "collective" for op in table.ops)


def test_a_group_larger_than_its_node_crosses_the_slow_tier() -> None:
    """Batch 8, 16 ranks in nodes of 8: 7/8 * 2 of the array in the node, and 1/8 of it between the two nodes."""
    table = cost_table(LLAMA3_70B, Workload(batch=8, parallel=Parallel(tp=16)), ranks_per_node=8)
    (at,) = [i for i, op in enumerate(table.ops) if op.name == "attention all-reduce"]
    size = 8 * 8192 * 2
    assert float(table.net["scale_up"][at]) == 1.75 * size
    assert float(table.net["scale_out"][at]) == size / 8


# ---- training ----


@some
@given(st.sampled_from([LLAMA3_8B, WINDOWED, DEEPSEEK_V3]), workloads("train"))
def test_full_recomputation_runs_every_layer_product_four_times(model: ModelSpec, workload: Workload) -> None:
    """Useful forward and backward are three times the forward products; recomputed they are executed four times. The
    IO-aware attention backward executes 2.5 times its forward: 4.5 instead of 3."""
    table = cost_table(model, replace(workload, recompute="full"))
    ends = ("output head", "cross-entropy", "final norm", "embedding")
    for kind, times in (("gemm", 4 / 3), ("attention", 4.5 / 3)):
        rows = [i for i, op in enumerate(table.ops) if op.kind == kind and not op.name.startswith(ends)]
        useful = sum(table["flop"][i] * table["count"][i] for i in rows)
        executed = sum(table["executed"][i] * table["count"][i] for i in rows)
        assert executed == pytest.approx(times * useful, rel=1e-12)


@some
@given(models, workloads("train"))
def test_recomputation_adds_executed_work_and_no_useful_work(model: ModelSpec, workload: Workload) -> None:
    tables = [cost_table(model, replace(workload, recompute=r)) for r in ("none", "selective", "full")]
    useful = [float(t.total("flop")) for t in tables]
    executed = [float(t.total("executed")) for t in tables]
    assert useful == pytest.approx([useful[0]] * 3, rel=1e-12)
    assert executed[0] < executed[1] < executed[2]


def test_accumulation_writes_gradients_once_and_adds_to_them_after() -> None:
    """Three micro-batches: written three times and read twice, against written once."""
    one = cost_table(LLAMA3_8B, Workload(phase="train", seq_len=64, optimizer="none"))
    three = cost_table(
        LLAMA3_8B, Workload(phase="train", seq_len=64, optimizer="none", parallel=Parallel(micro_batches=3))
    )

    def gradients(table: Any) -> float:
        return sum(table["state"][i] * table["count"][i] for i, op in enumerate(table.ops) if op.kind == "gemm")

    assert gradients(one) == 2 * 7_504_658_432
    assert gradients(three) == pytest.approx(5 * gradients(one), rel=1e-12)


def test_backward_of_a_residual_norm_moves_four_tensors() -> None:
    """Read the sum and both results' gradients, write the one gradient that both summands share."""
    table = cost_table(LLAMA3_8B, Workload(phase="train", batch=2, seq_len=1024))
    (at,) = [i for i, op in enumerate(table.ops) if op.name == "mlp norm, backward"]
    tensor = 2 * 1024 * 4096 * 2
    assert (float(table["act_read"][at]), float(table["act_write"][at])) == (3 * tensor, tensor)
