"""The mechanism of levers: order, sums that telescope, refusals, and what ideal levers mean."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from app.catalog.loader import load_catalog
from app.domain.errors import InvalidInput
from app.domain.levers.base import LeverRequest
from app.domain.levers.registry import LEVERS
from app.domain.workload import Dtypes, Parallel, Workload
from app.services.estimate import bound_json, bound_of

CATALOG = load_catalog()
H100 = CATALOG.hardware["nvidia-h100-sxm"]
LLAMA_8B = CATALOG.models["llama-3.1-8b"]
DECODE = Workload(phase="decode", batch=8, context_len=4096, launch_mode="eager")
TRAIN = Workload(phase="train", batch=1, seq_len=4096, parallel=Parallel(dp=8))


def answer(workload: Workload, *levers: str | LeverRequest) -> dict:  # type: ignore[type-arg]
    requests = [LeverRequest(item) if isinstance(item, str) else item for item in levers]
    return bound_json(bound_of(H100, LLAMA_8B, workload, levers=requests))


@pytest.mark.parametrize(
    ("workload", "levers"),
    [(DECODE, ("cuda-graph", "int4-marlin", "kv-fp8", "fused-norm")), (TRAIN, ("zero-fsdp", "fa1", "full-recompute"))],
)
def test_rows_telescope_from_baseline_to_final(workload: Workload, levers: tuple[str, ...]) -> None:
    found = answer(workload, *levers)
    ledger = found["ledger"]
    assert [row["lever"] for row in ledger] == list(levers)
    assert ledger[0]["before"] == found["baseline"]
    for earlier, later in itertools.pairwise(ledger):
        assert later["before"] == earlier["after"]
    assert ledger[-1]["after_s"] == found["bound_s"]
    assert ledger[-1]["after"]["hbm_bytes"] == found["hbm_bytes"]
    assert sum(row["saved_bytes"] for row in ledger) == pytest.approx(
        found["baseline"]["hbm_bytes"] - found["hbm_bytes"], rel=1e-12
    )


def test_ideal_levers_end_at_the_bound_without_any() -> None:
    plain = answer(TRAIN)
    ideal = answer(TRAIN, "fa1", "fused-norm", "fused-gate-up")
    assert ideal["bound_s"] == plain["bound_s"]
    assert ideal["hbm_bytes"] == plain["hbm_bytes"]
    assert all(row["ideal"] for row in ideal["ledger"])
    assert all(row["saved_launches"] > 0 for row in ideal["ledger"])
    assert all(row["saved_bytes"] >= 0 for row in ideal["ledger"])
    assert ideal["baseline"]["hbm_bytes"] > plain["hbm_bytes"]


def test_fused_attention_saves_the_scores_by_hand() -> None:
    # one layer of Llama 3.1 8B, one sequence of 4096: 32 heads x 4096 x 4097 / 2 pairs in bf16, written and read twice
    # forward, and the same again backward; the cache of 50 MiB keeps the least part of it
    row = answer(TRAIN, "fa1")["ledger"][0]
    one_way = 2 * 32 * 4096 * 4097 / 2 * 2
    assert row["saved_bytes"] == pytest.approx(32 * 2 * 2 * one_way, rel=0.05)


def test_int4_weights_take_a_quarter_and_the_scales() -> None:
    row = answer(DECODE, "int4-marlin")["ledger"][0]
    weights = 7_504_924_672 * 2  # all but the embedding, which is gathered
    assert row["saved_bytes"] == pytest.approx(weights * (1 - 4.125 / 16), rel=1e-3)


def test_a_lever_that_makes_no_sense_is_refused_with_its_place_and_reason() -> None:
    for levers, place, words in (
        (("no-such",), 0, "no lever"),
        (("kv-fp8", "kv-fp8"), 1, "twice"),
        (("int4-marlin", "fp8-gemm"), 1, "keep one"),
        (("full-recompute",), 0, "acts in train, not in decode"),
        (("fa1",), 0, "not in decode"),
    ):
        with pytest.raises(InvalidInput, match=words) as refused:
            answer(DECODE, *levers)
        assert refused.value.loc[:2] == ("levers", place)
    with pytest.raises(InvalidInput, match="from 1 to 3"):
        answer(TRAIN, LeverRequest("zero-fsdp", {"stage": 7}))
    with pytest.raises(InvalidInput, match="takes stage"):
        answer(TRAIN, LeverRequest("zero-fsdp", {"level": 2}))


def test_a_weight_format_is_refused_where_weights_are_as_narrow_already() -> None:
    int4 = replace(DECODE, dtypes=Dtypes(weights="int4"))
    fp8 = replace(DECODE, dtypes=Dtypes(weights="fp8"))
    for workload, lever in (
        (int4, LeverRequest("fp8-gemm")),
        (fp8, LeverRequest("awq-gptq", {"bits": 8})),
    ):
        with pytest.raises(InvalidInput, match="bits"):
            answer(workload, lever)
    assert answer(fp8, "fp8-gemm")["ledger"][0]["saved_memory_bytes"] >= 0  # weights alone were narrow
    assert answer(fp8, LeverRequest("awq-gptq", {"bits": 6}))["ledger"][0]["saved_memory_bytes"] > 0
    b200 = CATALOG.hardware["nvidia-b200-sxm"]
    for workload in (int4, fp8):
        with pytest.raises(InvalidInput, match="a weight would take"):
            bound_of(b200, LLAMA_8B, workload, levers=[LeverRequest("mxfp8-nvfp4")])
    found = bound_json(bound_of(b200, LLAMA_8B, fp8, levers=[LeverRequest("mxfp8-nvfp4", {"bits": 4})]))
    assert found["ledger"][0]["saved_memory_bytes"] > 0


def test_a_memory_lever_that_raises_memory_says_so() -> None:
    short = Workload(phase="decode", batch=64, context_len=1)
    saves, raises = (
        answer(workload, "vattention")["ledger"][0] for workload in (replace(DECODE, context_len=7_000), short)
    )
    assert raises["saved_memory_bytes"] < 0
    assert "raises the memory" in raises["notes"]
    assert ("raises the memory" in saves["notes"]) == (saves["saved_memory_bytes"] < 0)


def test_every_lever_says_what_it_is() -> None:
    for id_, lever in LEVERS.items():
        assert lever.id == id_
        assert lever.change is not None or lever.lack is not None
        assert lever.model.endswith(".")
        assert all(other in LEVERS and other != id_ for other in (*lever.excludes, *lever.members))
