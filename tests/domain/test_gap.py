"""The gap between measured and bound, split by hand.

The device and model of test_run_analysis: a decode step of batch 1 at context 99 moves 120,448 B at 1 MB/s, so its
bound is 120.448 ms.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from app.catalog.calibration import load_calibration
from app.domain.calibration import UNCALIBRATED
from app.domain.gap import TERM_WORDS
from app.domain.run import Finding, ParsedRun
from app.domain.run_analysis import BoundRow, analyse_run
from app.domain.workload import Workload

from .test_run_analysis import DEVICE, TINY, a_run

BOUND = 0.120448


def row_of(run: ParsedRun, **more) -> BoundRow:
    row = analyse_run(run, DEVICE, TINY, **more).main
    assert row is not None
    return row


def decode(measured: float, **evidence: float) -> ParsedRun:
    return replace(a_run("decode", {"tpot_s.mean": measured}, batch=1, context_len=99), evidence=evidence)


def terms(row: BoundRow) -> dict[str, float]:
    return {part.term: part.time for part in row.gap_terms}


def test_terms_add_up_to_the_gap_exactly_whatever_is_stated():
    for measured in (0.1205, 0.13, 0.2, 0.7, 31.7):
        for evidence in (
            {},
            {"data_wait_share": 0.1, "launch_share": 0.2, "gpu_idle_share": 0.35},
            {"data_wait_share": 0.9, "exposed_comm_share": 0.9, "launch_share": 1.0},
            {"launch_share": math.nan, "exposed_comm_share": -1.0, "gpu_idle_share": 7.0},
        ):
            row = row_of(decode(measured, **evidence), calibration=UNCALIBRATED)
            assert math.fsum(part.time for part in row.gap_terms) == row.measured - row.bound, (measured, evidence)
            assert all(part.time > 0 for part in row.gap)
            assert all(part.basis for part in row.gap)
            assert {part.term for part in row.gap_terms} <= set(TERM_WORDS)


def test_stated_shares_of_the_step_become_times_and_idle_holds_only_what_they_leave():
    row = row_of(decode(0.4, data_wait_share=0.1, launch_share=0.2, gpu_idle_share=0.35, copy_share=0.05))
    found = terms(row)
    assert found["data_wait"] == pytest.approx(0.04)
    assert found["launch"] == pytest.approx(0.08)
    assert found["host_idle"] == pytest.approx(0.14 - 0.12)
    assert found["copies"] == pytest.approx(0.02)
    # serial bound less bound is compute beside HBM: a sliver, and the rest has no name
    overlap = row.serial_bound - row.bound
    assert found["unexplained"] == pytest.approx(0.4 - BOUND - 0.16 - overlap)


def test_what_is_stated_is_cut_at_the_gap_and_says_so():
    row = row_of(decode(0.2, data_wait_share=0.9))
    assert terms(row) == {"data_wait": pytest.approx(0.2 - BOUND)}
    assert "Only what was left" in row.gap_terms[0].basis


def test_eager_launches_that_bind_are_no_gap():
    # 1 us a launch; the step's launches are its bound once they cost more than its bytes
    device = replace(DEVICE, launch_overhead=0.05)
    run = decode(2.0, launch_share=0.9)
    row = analyse_run(run, device, TINY, {"launch_mode": "eager"}).main
    assert row is not None
    assert row.binding == "launch"
    assert terms(row)["launch"] == pytest.approx(0.9 * 2.0 - row.bound)


def test_expected_less_bound_is_kernels_below_their_roof():
    row = row_of(decode(5.0), calibration=load_calibration())
    assert row.expected is not None
    assert row.bound < row.expected.time < 5.0
    found = terms(row)
    assert found["kernel_inefficiency"] == pytest.approx(row.expected.time - row.serial_bound)
    assert found["unexplained"] == pytest.approx(5.0 - row.expected.time)


def test_a_step_quicker_than_expected_has_nothing_unexplained():
    slow = row_of(decode(5.0), calibration=load_calibration())
    assert slow.expected is not None
    between = (slow.serial_bound + slow.expected.time) / 2
    row = row_of(decode(between), calibration=load_calibration())
    assert "unexplained" not in terms(row)
    assert "kernel_inefficiency" in terms(row)


def serving(**metrics: float) -> ParsedRun:
    told = {"tpot_s.mean": 0.5, "ttft_s.mean": 1.0, "output_tokens_per_s": 8.0, "requests_per_s": 0.5, **metrics}
    return a_run("serve", told, input_len=100.0, output_len=16.0, concurrency=5.0)


def test_prefills_of_others_take_their_share_of_a_decode_step():
    analysis = analyse_run(serving(), DEVICE, TINY)
    row, prefill = analysis.rows
    # closed loop of 5: a sequence sees the prompts of the 4 others, 0.5 a second between them
    share = 0.5 * prefill.bound * (1 - 1 / 5)
    assert terms(row)["prefill_interference"] == pytest.approx(share * 0.5)
    alone = a_run("serve", {"tpot_s.mean": 0.5, "ttft_s.mean": 1.0, "requests_per_s": 0.5}, input_len=100.0)
    alone = replace(alone, workload=replace(alone.workload, concurrency=1.0))
    assert "prefill_interference" not in terms(row_of(alone))
    apart = replace(serving(), findings=(Finding("disaggregated", "warning", "on separate servers"),))
    assert "prefill_interference" not in terms(row_of(apart))


def test_long_gaps_between_tokens_are_stalls_beyond_the_prefills():
    row, prefill = analyse_run(serving(**{"itl_s.mean": 0.5, "itl_s.p50": 0.3}), DEVICE, TINY).rows
    prefills = 0.5 * prefill.bound * 0.8 * 0.5
    assert terms(row)["scheduling"] == pytest.approx(0.5 - 0.3 - prefills)
    # chunks of several tokens: their gaps say nothing about a step
    chunky = analyse_run(serving(**{"itl_s.mean": 1.5, "itl_s.p50": 0.3}), DEVICE, TINY).main
    assert chunky is not None
    assert "scheduling" not in terms(chunky)


def test_the_least_ttft_tells_waiting_from_work():
    _, prefill = analyse_run(serving(**{"ttft_s.min": 0.4}), DEVICE, TINY).rows
    assert terms(prefill)["queueing"] == pytest.approx(1.0 - 0.4)


def test_the_slowest_rank_makes_the_others_wait():
    run = a_run("train", {"step_time_s.mean": 10.0}, batch=1, input_len=32)
    run = replace(run, evidence={"rank_token_max_over_mean": 1.25})
    row = row_of(run)
    assert terms(row)["imbalance"] == pytest.approx(10.0 * (1 - 1 / 1.25))


def test_recomputation_is_executed_and_not_useful():
    run = a_run("train", {"step_time_s.mean": 10.0}, batch=1, input_len=32)
    plain, again = row_of(run), row_of(run, overrides={"recompute": "full"})
    assert plain.mfu is not None
    assert plain.hfu is not None
    assert again.hfu is not None
    assert again.mfu == pytest.approx(plain.mfu)
    assert again.hfu > plain.hfu >= plain.mfu
    assert isinstance(again.workload, Workload)


def test_a_contradiction_has_no_gap():
    row = row_of(decode(0.1), calibration=UNCALIBRATED)
    assert row.contradicts
    assert row.gap == ()
    assert row.gap_time < 0


def test_the_verdict_is_one_sentence_and_the_rest_stands_beside_it():
    analysis = analyse_run(serving(), DEVICE, TINY, calibration=load_calibration())
    assert analysis.verdict.endswith(".")
    assert ". " not in analysis.verdict
    assert "the gap of" in analysis.verdict
    assert len(analysis.also) == 1
    assert analysis.needs == ()
    lacking = analyse_run(a_run("train", {"step_time_s": 1.0}), DEVICE, TINY)
    assert lacking.needs == ("seq_len", "batch")
