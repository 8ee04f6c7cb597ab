"""Roofs of a profile, what is refused, and what is only noted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.cost import CostTable, Op
from app.domain.errors import InvalidInput, MissingFigure
from app.domain.expected import expected_time
from app.domain.hardware import HardwareProfile
from app.domain.lower_bound import LEAST_LAUNCH, UNKNOWN_CACHE, ceilings, lower_bound
from app.domain.single_op import attention_table, collective_table, elementwise_table, gemm_table
from app.domain.step import cost_table
from app.domain.workload import Parallel, Workload
from tests.domain.architectures import H100, LLAMA3_8B


def table(**columns: Any) -> CostTable:
    return CostTable.of([Op("x", "x", "gemm", pipe="tensor", dtype="bf16", **columns)], tokens=1.0)


def test_the_slowest_resource_is_the_bound() -> None:
    """1e12 FLOP at 989.4e12/s is 1.011 ms; 6.7e9 bytes at 3.35e12/s are 2 ms; 450e6 bytes at 450e9/s are 1 ms."""
    bound = lower_bound(table(flop=1e12, weights=6.7e9, net={"scale_up": 450e6}), ceilings(H100))
    assert float(bound.terms["compute"]) == pytest.approx(1.0107e-3, rel=1e-4)
    assert float(bound.terms["hbm"]) == pytest.approx(2e-3)
    assert float(bound.terms["net"]) == pytest.approx(1e-3)
    assert float(bound.overlapped) == float(bound.serial) == float(bound.terms["hbm"])
    assert [name for name, _ in bound.ranked_terms()][:3] == ["hbm", "compute", "net"]
    assert bound.intensity == pytest.approx(1e12 / 6.7e9)


def test_the_serial_bound_adds_each_operations_own_maximum() -> None:
    """A second of compute and then a second of memory overlap to one second, in order they take two."""
    rows = [
        Op("compute", "x", "gemm", pipe="tensor", dtype="bf16", flop=989.4e12),
        Op("memory", "x", "copy", weights=3.35e12),
    ]
    bound = lower_bound(CostTable.of(rows, tokens=1.0), ceilings(H100))
    assert float(bound.overlapped) == pytest.approx(1.0)
    assert float(bound.serial) == pytest.approx(2.0)
    assert bound.op_binding() == ["compute", "hbm"]


def test_waiting_comes_on_top() -> None:
    bound = lower_bound(table(weights=3.35e12), ceilings(H100), sync=0.25, imbalance=0.5)
    assert float(bound.overlapped) == pytest.approx(1.75)
    assert float(bound.serial) == pytest.approx(1.75)
    assert expected_time(bound).time > 1.75


def test_activations_that_fit_in_cache_need_no_memory() -> None:
    """50 MiB of L2: the first 50 MiB read and the first 50 MiB written may stay; weights only if all of them fit."""
    cache = 50 * 2.0**20
    assert lower_bound(table(act_read=cache, act_write=cache), ceilings(H100)).hbm_bytes == 0
    assert lower_bound(table(act_read=2 * cache, act_write=cache + 1), ceilings(H100)).hbm_bytes == cache + 1
    assert lower_bound(table(weights=1e8, kv_read=2.0, kv_write=4.0, state=8.0), ceilings(H100)).hbm_bytes == 1e8 + 14
    assert lower_bound(table(weights=cache - 8, state=8.0), ceilings(H100)).hbm_bytes == 0
    assert lower_bound(table(weights=cache - 8, kv_read=9.0), ceilings(H100)).hbm_bytes == cache + 1


def test_a_call_repeated_on_its_operands_may_keep_a_cache_of_them() -> None:
    """4096 x 4096 x 1 in bf16 is 33,570,816 bytes: less than 50 MiB. 8192 x 8192 x 1 is 134,250,496."""
    cache = 50 * 2.0**20
    assert float(gemm_table(1, 4096, 4096, "bf16").repeated_bytes(cache)) == 0
    assert float(gemm_table(1, 8192, 8192, "bf16").repeated_bytes(cache)) == 134_250_496 - cache


def test_tiers_work_side_by_side() -> None:
    bound = lower_bound(table(net={"scale_up": 450e9, "scale_out": 50e9}), ceilings(H100))
    assert float(bound.terms["net"]) == pytest.approx(1.0)
    assert bound.net_bytes == 500e9


def test_a_reducing_switch_takes_its_own_column() -> None:
    """Ring 1.75 arrays, switch one: 8 ranks, 450e9 bytes, 450e9 bytes a second."""
    asked = collective_table("all_reduce", 450e9, 8, 8, in_switch=False)
    in_switch = collective_table("all_reduce", 450e9, 8, 8, in_switch=True)
    assert float(lower_bound(asked, ceilings(H100)).overlapped) == pytest.approx(1.75)
    assert float(lower_bound(in_switch, ceilings(H100)).overlapped) == pytest.approx(1.0)
    step = cost_table(LLAMA3_8B, Workload(batch=64, parallel=Parallel(tp=8)))
    assert H100.scale_up is not None
    reducing = replace(H100, scale_up=replace(H100.scale_up, in_network_reduction=True))
    ring, switch = (lower_bound(step, ceilings(profile)).net_bytes for profile in (H100, reducing))
    assert ring == 1.75 * switch == 1.75 * 64 * 64 * 4096 * 2


def test_achievable_roofs_stand_in_only_where_they_were_measured() -> None:
    measured = replace(H100, achievable_flop={"bf16": 794.5e12}, achievable_memory_bandwidth=3.0e12)
    roofs = ceilings(measured, "achievable")
    assert (roofs.flop["bf16"], roofs.flop["fp8"], roofs.memory) == (794.5e12, 1979e12, 3.0e12)
    assert (roofs.names["bf16"], roofs.names["fp8"]) == ("achievable", "peak")
    assert any("fp8" in note for note in roofs.assumptions)
    peak = ceilings(measured)
    assert (peak.flop["bf16"], peak.memory) == (989.4e12, 3.35e12)


def test_a_measurement_above_the_peak_is_the_roof() -> None:
    boosting = replace(H100, achievable_flop={"bf16": 1000e12})
    roofs = ceilings(boosting)
    assert roofs.flop["bf16"] == 1000e12
    assert "raised" in roofs.names["bf16"]


def test_missing_figures() -> None:
    bare = HardwareProfile("bare", "Bare", "x", None, 1e12, {"bf16": 1e14})
    roofs = ceilings(bare)
    assert (roofs.launch, roofs.cache, roofs.exponentials) == (LEAST_LAUNCH, UNKNOWN_CACHE, None)
    assert sum("launch overhead" in note or "cache" in note for note in roofs.assumptions) == 2
    # no vector and no special-function rate: that work is free, and the bound a bound
    assert float(lower_bound(table(flop=1e14, exponentials=1e20), roofs).overlapped) == pytest.approx(1.0)
    with pytest.raises(MissingFigure, match="Bare has no figure for memory bandwidth"):
        ceilings(replace(bare, memory_bandwidth=None))
    with pytest.raises(MissingFigure, match="scale-out link bandwidth"):
        lower_bound(table(net={"scale_out": 1.0}), roofs)
    with pytest.raises(InvalidInput, match="unknown ceilings"):
        ceilings(bare, "best")  # type: ignore[arg-type]


def test_eager_launches_cost_the_host() -> None:
    """Two norms, four products, rotation, attention and activation a layer, and four at the ends: 292 launches."""
    decode = cost_table(LLAMA3_8B, Workload())
    bound = lower_bound(decode, ceilings(H100), launch_mode="eager")
    assert float(decode.total("launches")) == 32 * 9 + 4
    assert float(bound.terms["launch"]) == pytest.approx(292 * 2e-6)


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"phase": "sleep"}, "phase"),
        ({"batch": 0}, "batch"),
        ({"seq_len": 0}, "seq_len"),
        ({"context_len": -1}, "context_len"),
        ({"batch": 2**41}, "batch"),
        ({"recompute": "some"}, "recompute"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"launch_mode": "fast"}, "launch_mode"),
        ({"parallel": Parallel(tp=0)}, "tp"),
    ],
)
def test_impossible_workloads(workload: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Workload(**workload)
    assert refused.value.loc[0] == "workload"
    assert refused.value.loc[-1] == field


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"phase": "train", "context_len": 5}, "context_len"),
        ({"parallel": Parallel(zero_stage=1)}, "zero_stage"),
        ({"phase": "train", "parallel": Parallel(zero_stage=4)}, "zero_stage"),
    ],
)
def test_layouts_that_make_no_sense(workload: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cost_table(LLAMA3_8B, Workload(**workload))
    assert refused.value.loc[-1] == field


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: gemm_table(1, 2, 3, "bf17"), "dtype"),
        (lambda: gemm_table(0, 2, 3, "bf16", groups=[]), "groups"),
        (lambda: gemm_table(0, 2, 3, "bf16", groups=[-1]), "groups"),
        (lambda: collective_table("gossip", 1.0, 2, 8, False), "kind"),
        (lambda: attention_table(batch=1, seq_q=1, seq_kv=1, heads=6, kv_heads=4, head_dim=8), "kv_heads"),
        (lambda: attention_table(batch=1, seq_q=1, seq_kv=1, heads=6, kv_heads=0, head_dim=8), "kv_heads"),
        (lambda: attention_table(batch=1, seq_q=9, seq_kv=8, heads=4, kv_heads=4, head_dim=8), "seq_q"),
        (
            lambda: attention_table(
                batch=1, seq_q=1, seq_kv=8, heads=4, kv_heads=4, head_dim=8, causal=False, window=2
            ),
            "window",
        ),
        (
            lambda: attention_table(batch=1, seq_q=1, seq_kv=8, heads=4, kv_heads=4, head_dim=8, direction="up"),
            "direction",
        ),
        (lambda: elementwise_table(1, 1, 1, "float"), "dtype"),
    ],
)
def test_impossible_operations(ask: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ask()
    assert refused.value.loc[-1] == field
