"""The KV cache by hand-worked examples (EX-14 to EX-18), by what must hold for any input, and against `memory`."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalog.loader import load_catalog
from app.domain.errors import InvalidInput
from app.domain.kv_cache import (
    CacheShape,
    cache_layers,
    cache_use,
    expected_empty,
    largest_batch,
    largest_context,
    need,
    need_of,
    sequence_by_kind,
    shape_of,
    stage_parts,
    step_reads,
)
from app.domain.lengths import WIDEST_TAIL, Lengths
from app.domain.lower_bound import ceilings, lower_bound
from app.domain.memory import kv_bytes_per_token, memory_use, state_bytes_per_sequence
from app.domain.model import LayerGroup, Mamba1, ModelSpec
from app.domain.step import cost_table
from app.domain.workload import Dtypes, KvSettings, Parallel, Workload

MODELS = load_catalog().models
DECODERS = [model for model in MODELS.values() if model.supported and model.generates]
H200 = load_catalog().hardware["nvidia-h200-sxm"]


def shape(model: str, kv: float = 2.0, tp: float = 1.0) -> CacheShape:
    return CacheShape(MODELS[model], kv, tp)


# ---- worked examples ------------------------------------------------------------------------------------------------


def test_pages_of_five_requests():  # EX-14
    lengths = Lengths.of([100, 513, 1000, 37, 2048])
    use = cache_use(shape("llama-3-8b"), lengths, 16, longest=8192)
    assert lengths.tokens == 3698
    assert use.paged == 3744 * 131_072
    assert use.payload == 3698 * 131_072
    assert use.fragmentation / use.paged == pytest.approx(0.012286, rel=1e-3)
    assert use.page_table == 4 * (7 + 33 + 63 + 3 + 128)
    assert use.reserved == 5 * 8192 * 131_072


def test_a_prefix_that_32_requests_share():  # EX-15
    use = cache_use(shape("llama-3-8b"), Lengths.fixed(32, 2500), 1, prefix=2000, longest=2500)
    assert use.paged == 80_000 * 131_072
    assert use.shared == 18_000 * 131_072
    assert use.prefix_saved / use.paged == pytest.approx(0.775, abs=1e-12)
    # pages of 16: 2000 is 125 whole pages, 2500 is 157 pages
    paged = cache_use(shape("llama-3-8b"), Lengths.fixed(32, 2500), 16, prefix=2000, longest=2500)
    assert paged.shared == (2000 + 32 * (157 * 16 - 2000)) * 131_072
    # 2001 tokens of a prefix share no more than 2000
    assert cache_use(shape("llama-3-8b"), Lengths.fixed(32, 2500), 16, prefix=2001, longest=2500).shared == paged.shared


@pytest.mark.parametrize(
    ("model", "size"), [("llama-3-8b", 131_072), ("llama-3-70b", 327_680), ("deepseek-v3", 70_272)]
)
def test_bytes_of_a_token(model: str, size: int):  # EX-16
    assert sum(row.per_token for row in cache_layers(MODELS[model], 2.0)) == size


def test_a_batch_of_long_sequences():  # EX-17
    use = cache_use(shape("llama-3-70b"), Lengths.fixed(32, 8192), 16, longest=8192)
    assert use.payload == 80 * 2**30
    assert use.payload / 1e9 == pytest.approx(85.89934592)
    assert use.fragmentation == 0


def test_a_state_is_the_same_at_any_length():  # EX-18: a state of 5120 x 128, no convolution
    layers = (LayerGroup(48, Mamba1(inner=5120, state=128, conv=1, dt_rank=160), None),)
    model = ModelSpec("ssm", "state space", "ssm", 2560, 50_280, layers)
    (row,) = cache_layers(model, 2.0)
    assert (row.kind, row.layers, row.per_token, row.per_sequence) == ("state", 48, 0.0, 62_914_560.0)
    for length in (1, 1000, 1_000_000):
        use = cache_use(CacheShape(model, 2.0), Lengths.fixed(1, length), 16, longest=length)
        assert use.payload == use.paged == use.shared == use.reserved == 62_914_560


def test_windows_states_latents_and_copies():
    kinds = {row.kind: row for row in cache_layers(MODELS["gemma-3-27b"], 2.0)}
    assert (kinds["sliding"].layers, kinds["sliding"].window) == (52, 1024)
    assert kinds["full"].per_token == 10 * 2 * 16 * 128 * 2
    # at 5,000 tokens the sliding layers hold 1,024 each
    held = sequence_by_kind(MODELS["gemma-3-27b"], 2.0, 5000.0)
    assert held == pytest.approx({"full": 5000 * 10 * 8192, "sliding": 1024 * 52 * 8192})
    # 16 ranks share 8 KV heads: each byte twice; a latent is on every rank
    assert cache_layers(MODELS["llama-3.1-70b"], 2.0, 16.0)[0].copies == 2
    assert cache_layers(MODELS["deepseek-v3"], 2.0, 8.0)[0].copies == 8
    assert [row.kind for row in cache_layers(MODELS["deepseek-v3.2"], 2.0)] == ["latent", "index"]
    assert {row.kind for row in cache_layers(MODELS["falcon-h1-7b"], 2.0)} == {"full", "state"}
    assert {row.kind for row in cache_layers(MODELS["whisper-base"], 2.0, other_tokens=1500)} == {"full", "cross"}
    assert "shared" in {row.kind for row in cache_layers(MODELS["gemma-4-e2b"], 2.0)}
    assert "chunked" in {row.kind for row in cache_layers(MODELS["llama-4-scout"], 2.0)}


def test_a_window_that_has_left_the_prefix_behind_saves_nothing():
    # the windows of 1,024 have passed a prefix of 512 at 4,096 tokens: only the full layers still hold it
    use = cache_use(shape("gemma-3-27b"), Lengths.fixed(10, 4096), 16, prefix=512, longest=4096)
    assert use.prefix_saved == pytest.approx(9 * 512 * 10 * 8192)
    # at 1,100 tokens they still hold 1,024 - (1,104 - 512) of its slots
    use = cache_use(shape("gemma-3-27b"), Lengths.fixed(10, 1100), 16, prefix=512, longest=4096)
    assert use.prefix_saved == pytest.approx(9 * (512 * 10 + (1024 - (1104 - 512)) * 52) * 8192)


def test_pages_leave_half_of_one_empty_on_average():
    lengths = Lengths.uniform(4000, 1, 4000)
    use = cache_use(shape("llama-3-8b"), lengths, 16, longest=4000)
    assert use.fragmentation / use.payload == pytest.approx(float(expected_empty(lengths, 16.0)), rel=1e-9)
    assert float(expected_empty(lengths, 16.0)) == pytest.approx(7.5 / 2000.5)


# ---- what must hold -------------------------------------------------------------------------------------------------

any_model = st.sampled_from(DECODERS)
some_lengths = st.lists(st.integers(1, 200_000), min_size=1, max_size=40)
any_page = st.sampled_from((1, 8, 16, 64, 256))
any_prefix = st.integers(0, 50_000)


@pytest.mark.parametrize("model", DECODERS, ids=lambda model: model.id)
def test_kinds_add_up_to_the_cache(model: ModelSpec):
    for tp, kv in itertools.product((1.0, 4.0, 16.0), (2.0, 0.5625)):
        rows = cache_layers(model, kv, tp, other_tokens=77)
        assert sum(row.per_rank for row in rows) == pytest.approx(kv_bytes_per_token(model, kv, tp))
        assert sum(row.per_rank_sequence for row in rows) == pytest.approx(
            state_bytes_per_sequence(model, kv, tp, other_tokens=77)
        )
        assert all(row.copies >= 1 - 1e-12 for row in rows)
        held = CacheShape(model, kv, tp, 77)
        for tokens in (1.0, 700.0, np.array([1.0, 5000.0, 1e6])):
            kinds = sequence_by_kind(model, kv, tokens, tp, other_tokens=77)
            assert sum(kinds.values()) == pytest.approx(held.tokens(tokens) + held.fixed)


@settings(max_examples=60, deadline=None)
@given(any_model, some_lengths, any_page, any_prefix)
def test_the_four_numbers_are_in_order(model: ModelSpec, listed: list[int], page: int, prefix: int):
    lengths = Lengths.of(listed)
    use = cache_use(CacheShape(model, 2.0), lengths, page, prefix=prefix, longest=lengths.longest)
    slack = 1 + 1e-9
    assert use.payload <= use.paged * slack
    assert use.shared <= use.paged * slack
    assert use.payload <= use.reserved * slack
    assert 0 <= use.states <= use.payload * slack
    assert use.total == use.shared + use.page_table
    # sharing never goes below what the longest sequence needs
    alone = cache_use(CacheShape(model, 2.0), Lengths.fixed(1, int(lengths.longest)), page, longest=lengths.longest)
    assert use.shared - use.states >= (alone.paged - alone.states) / slack


@settings(max_examples=40, deadline=None)
@given(any_model, some_lengths, any_prefix)
def test_an_array_of_pages_answers_like_each_page(model: ModelSpec, listed: list[int], prefix: int):
    lengths, pages = Lengths.of(listed), [1, 16, 100, 4096]
    many = cache_use(CacheShape(model, 1.0), lengths, np.array(pages, dtype=float), prefix=prefix, longest=10)
    for place, page in enumerate(pages):
        one = cache_use(CacheShape(model, 1.0), lengths, page, prefix=prefix, longest=10)
        for name in ("paged", "shared", "page_table"):
            assert np.asarray(getattr(many, name))[place] == getattr(one, name)
        assert many.payload == one.payload


layouts = st.builds(
    Parallel,
    tp=st.sampled_from((1, 2, 4, 8)),
    pp=st.sampled_from((1, 1, 2, 4)),
    micro_batches=st.sampled_from((1, 1, 3)),
    cp=st.sampled_from((1, 1, 2)),
    dp=st.sampled_from((1, 2)),
)


@settings(max_examples=120, deadline=None)
@given(
    any_model, layouts, st.sampled_from((0, 5, 1000, 100_000)), any_page, st.sampled_from((24e9, 80e9, 141e9)),
    st.sampled_from(("bf16", "fp8", "nvfp4")),
)  # fmt: skip
def test_what_fits_is_what_the_memory_estimate_says(
    model: ModelSpec, parallel: Parallel, context: int, page: int, capacity: float, kv: str
):
    workload = Workload(context_len=context, parallel=parallel, kv=KvSettings(page), dtypes=Dtypes(kv=kv))
    try:
        told = memory_use(model, workload, capacity).largest_batch
    except InvalidInput:
        return  # no layout of this model
    parts, held = stage_parts(model, workload, 8), shape_of(model, workload)
    batch = largest_batch(parts, need(held, float(context), page), capacity)
    assert float(batch) == told
    assert float(largest_batch(parts, need_of(held, Lengths.fixed(1, context), page), capacity)) == told
    if not told:
        return
    most = float(largest_context(parts, held, float(told), page, 0.0, capacity))
    assert most >= context
    if np.isfinite(most):
        there = replace(workload, batch=told, context_len=int(most))
        assert memory_use(model, there, capacity).fits
        assert not memory_use(model, replace(there, context_len=int(most) + 1), capacity).fits


def test_more_context_and_less_room_fit_fewer():
    model, workload = MODELS["llama-3.1-70b"], Workload(parallel=Parallel(tp=4))
    parts, held = stage_parts(model, workload, 8), shape_of(model, workload)
    contexts = np.array([0.0, 100, 5000, 5000, 200_000, 1e9])
    batches = largest_batch(parts, need(held, contexts, 16.0, prefix=64.0), 127e9)
    assert np.all(np.diff(batches) <= 0)
    assert batches[-1] == 0
    assert [float(largest_batch(parts, need(held, c, 16.0, prefix=64.0), 127e9)) for c in contexts] == batches.tolist()
    batch = np.array([1.0, 2, 64, 1e6])
    longest = largest_context(parts, held, batch, 16.0, 0.0, 127e9)
    assert np.all(np.diff(longest) <= 0)
    assert longest[-1] == -1
    assert [float(largest_context(parts, held, b, 16.0, 0.0, 127e9)) for b in batch] == longest.tolist()
    assert float(largest_batch(parts, need(held, 5000.0, 16.0), 20e9)) == 0  # not even the weights fit


def test_a_state_has_no_longest_context():
    model, workload = MODELS["mamba2-2.7b"], Workload()
    parts, held = stage_parts(model, workload, 8), shape_of(model, workload)
    assert largest_context(parts, held, 8.0, 16.0, 0.0, 80e9) == np.inf


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "falcon-h1-7b", "deepseek-v3.2"])
def test_reads_are_those_of_the_cost_table(model: str):
    workload = Workload(batch=7, context_len=3000, parallel=Parallel(tp=2))
    bound = lower_bound(cost_table(MODELS[model], workload), ceilings(H200))
    reads = step_reads(MODELS[model], workload, Lengths.fixed(7, 3000), 0.0, 8)
    assert reads.each == pytest.approx(bound.total("kv_read"), rel=1e-12)
    assert reads.cascaded == reads.each
    shared = step_reads(MODELS[model], workload, Lengths.fixed(7, 3000), 1000.0, 8)
    assert shared.each == reads.each
    assert shared.cascaded < shared.each


def test_a_cascade_reads_the_prefix_once():
    workload = Workload(batch=32)
    reads = step_reads(MODELS["llama-3-8b"], workload, Lengths.fixed(32, 2500), 2000.0, 8)
    assert reads.each == 80_000 * 131_072
    assert reads.cascaded == 18_000 * 131_072


# ---- lengths --------------------------------------------------------------------------------------------------------


def test_the_same_distribution_has_the_same_lengths():
    for make in (
        lambda: Lengths.uniform(1000, 100, 5000),
        lambda: Lengths.lognormal(1000, 2000.0, 6000.0),
        lambda: Lengths.of([5, 3, 5, 9]).resampled(10),
    ):
        one, two = make(), make()
        assert one.values.tolist() == two.values.tolist()
        assert one.counts.tolist() == two.counts.tolist()


def test_uniform_lengths_by_hand():
    assert Lengths.uniform(3, 1, 3).values.tolist() == [1, 2, 3]
    assert Lengths.uniform(2, 10, 13).values.tolist() == [11, 13]
    assert Lengths.uniform(4, 7, 7).counts.tolist() == [4]


def test_a_lognormal_has_the_mean_and_the_percentile_it_was_given():
    lengths = Lengths.lognormal(4000, 2000.0, 6000.0)
    assert lengths.mean == pytest.approx(2000, rel=0.01)
    assert lengths.quantile(0.95) == pytest.approx(6000, rel=0.01)
    flat = Lengths.lognormal(50, 2000.0, 2000.0)
    assert flat.values.tolist() == [2000]
    for ratio in (0.99, WIDEST_TAIL * 1.01):
        with pytest.raises(InvalidInput, match="must be from the mean"):
            Lengths.lognormal(10, 1000.0, 1000.0 * ratio)


def test_a_great_many_sequences_are_counted_not_listed():
    lengths = Lengths.uniform(10_000_001, 1, 100_000)
    assert lengths.sequences == 10_000_001
    assert lengths.values.size <= 4096
    assert lengths.mean == pytest.approx(50_000, rel=0.001)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=500), st.integers(3, 50))
def test_groups_keep_sequences_and_tokens(listed: list[int], most: int):
    lengths = Lengths.of(listed)
    grouped = lengths.grouped(most)
    assert grouped.sequences == len(listed)
    assert grouped.tokens == sum(listed)
    assert grouped.values.size <= most
    assert grouped.longest == lengths.longest


def test_quantiles_are_lengths_of_the_list():
    lengths = Lengths.of([10, 20, 30, 40])
    assert [lengths.quantile(share) for share in (0.25, 0.26, 0.5, 0.95, 1.0)] == [10, 20, 20, 40, 40]
    assert lengths.resampled(2).values.tolist() == [10, 30]


@pytest.mark.parametrize(
    ("listed", "place"), [([5, -1], 1), ([0], 0), ([1.5], 0), ([3, float("nan")], 1), ([float("inf")], 0), ([2**41], 0)]
)
def test_what_is_no_length_is_refused_with_its_place(listed: list[float], place: int):
    with pytest.raises(InvalidInput) as error:
        Lengths.of(listed)
    assert error.value.loc == ("sequences", place)
    with pytest.raises(InvalidInput):
        Lengths.of([])
