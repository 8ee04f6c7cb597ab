"""Attention rows: visible pairs by brute force, latent attention by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.blocks.attention import attended_pairs, cached_tokens_read
from app.domain.errors import InvalidInput
from app.domain.lower_bound import ceilings, lower_bound
from app.domain.model import Attention
from app.domain.single_op import attention_table
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Workload
from tests.domain.architectures import DEEPSEEK_V3, H100, LLAMA3_70B, WINDOWED, row_of

quickly = settings(max_examples=100, deadline=None, derandomize=True, database=None)
new, cached, reach = st.integers(1, 40), st.integers(0, 60), st.integers(1, 30)


def visible(query: int, key: int, window: int | None, chunked: bool) -> bool:
    if window is None:
        return key <= query
    if chunked:
        return key <= query and key // window == query // window
    return query - window < key <= query


@quickly
@given(new, cached, st.none() | reach, st.booleans())
def test_pairs_are_those_of_a_mask(q: int, c: int, window: int | None, chunked: bool) -> None:
    chunked = chunked and window is not None
    expected = sum(visible(i, j, window, chunked) for i in range(c, c + q) for j in range(c + q))
    assert attended_pairs(q, c, window=window, chunked=chunked) == expected


@quickly
@given(new, cached)
def test_without_a_mask_every_query_sees_every_key(q: int, c: int) -> None:
    assert attended_pairs(q, c, causal=False) == q * (q + c)


@quickly
@given(new, cached, st.none() | reach, st.booleans())
def test_cached_tokens_read_are_those_some_query_sees(q: int, c: int, window: int | None, chunked: bool) -> None:
    chunked = chunked and window is not None
    kind = "full" if window is None else ("chunked" if chunked else "sliding")
    expected = sum(any(visible(i, j, window, chunked) for i in range(c, c + q)) for j in range(c))
    assert cached_tokens_read(c, Attention(1, 1, 1, 1, kind=kind, window=window)) == expected


def test_a_window_caps_what_a_decode_step_reads() -> None:
    """Context 4096: ten layers read 1023 cached tokens, two read all, 8 heads of 2 * 128 in bf16 each."""
    table = cost_table(WINDOWED, Workload(context_len=4096))
    read = [float(table["kv_read"][i] * table["count"][i]) for i, op in enumerate(table.ops) if op.name == "attention"]
    assert read == [10 * 1023 * 8 * 256 * 2, 2 * 4096 * 8 * 256 * 2]


def test_kv_heads_are_projected_by_every_rank_that_keeps_them() -> None:
    """64 query and 8 KV heads of 128: TP8 has 8 + 2 head widths a rank, TP16 has 4 + 2, not 4 + 1."""
    eight, sixteen = (
        cost_table(LLAMA3_70B, Workload(phase="prefill", seq_len=16, parallel=Parallel(tp=tp)), ranks_per_node=16)
        for tp in (8, 16)
    )
    assert row_of(eight, "qkv projection") == 2 * 16 * 8192 * (8 + 2) * 128
    assert row_of(sixteen, "qkv projection") == 2 * 16 * 8192 * (4 + 2) * 128


def test_heads_that_do_not_divide_are_refused_with_the_degrees_that_do() -> None:
    with pytest.raises(
        InvalidInput, match=r"\(64\) is not a multiple of tensor parallel 3: use 1, 2, 4, 8, 16, 32, 64"
    ):
        cost_table(LLAMA3_70B, Workload(parallel=Parallel(tp=3)))
    with pytest.raises(InvalidInput, match="tensor parallel 5"):
        cost_table(LLAMA3_70B, Workload(), grid={"tp": [1, 5, 7]})


def test_values_without_a_projection_are_cached_all_the_same() -> None:
    (group,) = LLAMA3_70B.layers
    assert isinstance(group.mixer, Attention)
    shared = replace(LLAMA3_70B, layers=(replace(group, mixer=replace(group.mixer, v_from_k=True)),))
    step = Workload(batch=2, context_len=100)
    assert row_of(cost_table(shared, step), "qkv projection") == 2 * 2 * 8192 * (64 + 8) * 128
    assert row_of(cost_table(shared, step), "attention", "kv_read") == 2 * 100 * 8 * 256 * 2


# ---- latent attention: DeepSeek-V3, one token of one sequence on top of 4096 ----

ONE_TOKEN = {
    "query and latent down": 2 * 7168 * (1536 + 512 + 64),
    "query up": 2 * 1536 * 128 * (128 + 64),
    "query absorb": 2 * 128 * 128 * 512,
    "attention": 2 * 128 * (2 * 512 + 64) * 4097,
    "value absorb": 2 * 128 * 512 * 128,
    "output projection": 2 * 128 * 128 * 7168,
}


@pytest.mark.parametrize(("name", "flop"), ONE_TOKEN.items())
def test_absorbed_decode(name: str, flop: int) -> None:
    table = cost_table(DEEPSEEK_V3, Workload(context_len=4096))
    found = [float(table["flop"][i]) for i, op in enumerate(table.ops) if op.name == name and op.stage == "attention"]
    assert found == [flop, flop]  # layers with a dense MLP and layers with experts


def test_absorbed_decode_reads_the_latent_once_for_all_heads() -> None:
    """70_272 bytes a token in bf16: 4096 of them read, one written, however many ranks share the heads."""
    for tp in (1, 8):
        table = cost_table(DEEPSEEK_V3, Workload(context_len=4096, parallel=Parallel(tp=tp)))
        assert float(table.total("kv_read")) == 4096 * 70_272
        assert float(table.total("kv_write")) == 70_272
    # the matrices of a layer without its norms: 187_107_328 - 1536 - 512
    assert sum(ONE_TOKEN[name] for name in ONE_TOKEN if name != "attention") == 2 * (187_107_328 - 2048)


def test_a_kernel_of_absorbed_decode_reads_values_with_their_keys() -> None:
    """FlashMLA reads 576 elements a token, not 1,088: its published times would beat a bound that counted both."""
    shape: dict[str, Any] = {
        "batch": 128,
        "seq_q": 1,
        "seq_kv": 4096,
        "heads": 128,
        "kv_heads": 1,
        "head_dim": 576,
        "causal": False,
    }
    assumed = attention_table(**shape, v_head_dim=512)
    queries = 128 * 128 * 576 * 2
    assert float(assumed.total("act_read")) == queries + 128 * 4096 * 576 * 2
    assert float(attention_table(**shape, v_head_dim=512, values_in_keys=False).total("act_read")) == (
        queries + 128 * 4096 * 1088 * 2
    )
    one_head = {**shape, "heads": 1, "head_dim": 192}
    assert float(attention_table(**one_head, v_head_dim=128).total("act_read")) == 128 * 2 * (192 + 4096 * 320)
    with pytest.raises(InvalidInput, match="do not lie"):
        attention_table(**shape, v_head_dim=600, values_in_keys=True)
    assert float(lower_bound(assumed, ceilings(H100)).overlapped) < 228e-6  # measured: 640 TFLOP/s


def test_absorbed_decode_nears_the_ridge() -> None:
    """256 FLOP times 1088 for 1152 bytes of a cached token: 241.8 FLOP a byte, below 295 on an H100."""
    table = cost_table(DEEPSEEK_V3, Workload(batch=128, context_len=100_000))
    bound = lower_bound(table, ceilings(H100))
    names = [op.name for op in table.ops]
    at = names.index("attention")
    assert float(table["flop"][at]) / float(table["kv_read"][at]) == pytest.approx(241.8, rel=1e-3)
    assert bound.op_binding()[at] == "hbm"


def test_prefill_expands_the_latent() -> None:
    """512 tokens after 1000: every visible token's keys and values are made, and 192 + 128 wide products follow."""
    table = cost_table(DEEPSEEK_V3, Workload(phase="prefill", seq_len=512, context_len=1000))
    pairs = 512 * 1000 + 512 * 513 / 2
    up = [i for i, op in enumerate(table.ops) if op.name == "key and value up"]
    attention = [i for i, op in enumerate(table.ops) if op.name == "attention"]
    assert [float(table["flop"][i]) for i in up] == [2 * 1512 * 512 * 128 * 256] * 2
    assert [float(table["kv_read"][i]) for i in up] == [1000 * 576 * 2] * 2
    assert [float(table["flop"][i]) for i in attention] == [2 * 128 * 320 * pairs] * 2


def test_a_narrow_cache_halves_what_is_read() -> None:
    bf16, fp8 = (
        cost_table(LLAMA3_70B, Workload(batch=4, context_len=1000, dtypes=Dtypes(kv=kv))) for kv in ("bf16", "fp8")
    )
    assert float(bf16.total("kv_read")) == 4 * 1000 * 327_680
    assert float(fp8.total("kv_read")) == 4 * 1000 * 163_840


def test_exponentials_are_one_for_each_head_and_pair() -> None:
    table = cost_table(LLAMA3_70B, Workload(phase="prefill", seq_len=4096))
    assert row_of(table, "attention", "exponentials") == 64 * 4096 * 4097 / 2
