"""Formulas run with physical quantities must come out with the dimension they declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pint
import pytest

from app.domain.collectives import algorithm_costs, wire_bytes
from app.domain.cost import Op, elementwise, gemm
from app.domain.lower_bound import ceilings, ridge
from app.domain.model import ModelSpec
from app.domain.step import step_rows
from app.domain.workload import Dtypes, Parallel, Workload
from tests.domain.architectures import DEEPSEEK_V3, H100, LLAMA3_8B, MIXTRAL_8X7B, WINDOWED

# FLOP, elements and exponentials are counts; FLOP get a dimension of their own only where rates are divided
ureg = pint.UnitRegistry()
ureg.define("flop_count = [flop]")
BYTE, SECOND, FLOP = ureg.byte, ureg.second, ureg.flop_count
BYTES = ("weights", "kv_read", "kv_write", "state", "act_read", "act_write")


def has(quantity: Any, unit: Any) -> bool:
    return bool(quantity.check(unit.dimensionality))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"])
def test_wire_bytes_are_bytes(kind: str) -> None:
    for in_switch in (False, True):
        sent = wire_bytes(kind, 1e6 * BYTE, 16, 8, in_switch=in_switch)
        for quantity in sent.values():
            assert not quantity or has(quantity, BYTE)


def test_what_algorithms_send_is_bytes() -> None:
    for algorithm in ("ring", "tree"):
        for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast", "p2p"):
            sent = algorithm_costs(kind, algorithm, 1e6 * BYTE, 8, 8)[1]
            assert all(not quantity or has(quantity, BYTE) for quantity in sent.values())


def test_ridge_is_flop_a_byte() -> None:
    roofs = replace(ceilings(H100), flop={"bf16": 989.4e12 * FLOP / SECOND}, memory=3.35e12 * BYTE / SECOND)
    point = ridge(roofs, "bf16")
    assert has(point, FLOP / BYTE)
    assert point.to("flop_count / byte").magnitude == pytest.approx(295.3, rel=1e-3)


def test_product_bytes() -> None:
    row = gemm("x", "x", m=3, n=5, k=7, dtype="bf16", weight=2 * BYTE, activation=1 * BYTE, output=4 * BYTE)
    assert row.weights == 5 * 7 * 2 * BYTE
    assert row.act_read == 3 * 7 * 1 * BYTE
    assert row.act_write == 3 * 5 * 4 * BYTE
    assert row.flop == 2 * 3 * 5 * 7  # a count: no byte gets into it


def test_elementwise_bytes() -> None:
    row = elementwise("x", "x", elements=10, reads=2, writes=1, activation=2 * BYTE, flop_per_element=3)
    assert (row.act_read, row.act_write, row.flop) == (40 * BYTE, 20 * BYTE, 30)


def rows_of(monkeypatch: pytest.MonkeyPatch, model: ModelSpec, phase: str) -> Sequence[Op]:
    """Rows of a step whose bytes per element are quantities: every product with one of them carries its unit."""
    monkeypatch.setattr(Dtypes, "bytes_of", lambda self, what: 2.0 * BYTE)
    training = phase == "train"
    workload = Workload(
        phase=phase,
        batch=2,
        seq_len=1 if phase == "decode" else 64,
        context_len=0 if training else 3000,
        parallel=Parallel(tp=2, dp=2 if training else 1, zero_stage=3 if training else 0),
        optimizer="none",
    )
    return step_rows(model, workload, 8).rows


@pytest.mark.parametrize("phase", ["decode", "prefill", "train"])
@pytest.mark.parametrize("model", [LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, WINDOWED], ids=lambda model: model.id)
def test_rows_keep_bytes_and_counts_apart(monkeypatch: pytest.MonkeyPatch, model: ModelSpec, phase: str) -> None:
    seen = set()
    for row in rows_of(monkeypatch, model, phase):
        if row.name.startswith(("router", "top-k", "histogram")):
            continue  # their logits and ids are 4 bytes whatever the workload's formats
        sent = [value for net in (row.net, row.net_in_switch or {}) for value in net.values()]
        for name, value in [*((name, getattr(row, name)) for name in BYTES), *(("net", value) for value in sent)]:
            if isinstance(value, pint.Quantity):
                assert has(value, BYTE), (row.name, name)
                seen.add(name)
            else:
                assert value == 0, f"{row.name}: {name} is no multiple of the bytes of an element"
        for name in ("flop", "exponentials", "count"):
            assert not isinstance(getattr(row, name), pint.Quantity), (row.name, name)
    assert {"weights", "act_read", "act_write", "net"} < seen
    assert ("state" in seen) == (phase == "train")
    assert ("kv_write" in seen) == (phase != "train")
