"""Mixture-of-experts rows by hand: DeepSeek-V3, 256 experts of 2048, 8 a token and one shared, hidden size 7168."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.domain.lower_bound import Bound, ceilings, lower_bound
from app.domain.model import LayerGroup, MoeMlp
from app.domain.routing import reached_places
from app.domain.step import cost_table
from app.domain.workload import Dtypes, Parallel, Routing, Workload
from tests.domain.architectures import DEEPSEEK_V3, H100, MIXTRAL_8X7B, row_of, step_total

FP8 = Dtypes(weights="fp8", activations="fp8")
EXPERT = 3 * 7168 * 2048


@pytest.mark.parametrize(("tokens", "megabytes"), [(1, 352), (8, 2529), (32, 7192), (64, 9796), (256, 11271)])
def test_routed_weights_of_a_layer(tokens: int, megabytes: float) -> None:
    """Distinct experts 8, 57.4, 163.3, 222.4, 255.9 of 44.04 MB each in fp8."""
    table = cost_table(DEEPSEEK_V3, Workload(batch=tokens, context_len=100, dtypes=FP8))
    read = row_of(table, "expert gate and up", "weights") + row_of(table, "expert down", "weights")
    assert read == pytest.approx(megabytes * 1e6, rel=1e-3)


@pytest.mark.parametrize("tokens", [1, 8, 256])
def test_flop_of_a_layer(tokens: int) -> None:
    """Eight experts a token whoever they are, the shared one, and 7168 x 256 of router."""
    table = cost_table(DEEPSEEK_V3, Workload(batch=tokens, context_len=100))
    assert row_of(table, "expert gate and up") + row_of(table, "expert down") == tokens * 8 * 2 * EXPERT
    assert row_of(table, "shared expert gate and up") + row_of(table, "shared expert down") == tokens * 2 * EXPERT
    assert row_of(table, "router") == tokens * 2 * 7168 * 256


def test_active_parameters_are_multiplied_once() -> None:
    """Mixtral, one token: 12_879_925_248 active parameters less the table (131_072_000) and the gains (65 * 4096)."""
    table = cost_table(MIXTRAL_8X7B, Workload(context_len=0))
    products = step_total(table, "flop", kind="gemm")
    assert products == 2 * (12_879_925_248 - 131_072_000 - 65 * 4096)


def test_permutation_moves_every_copy() -> None:
    """256 tokens in bf16: read once and written eight times, and back."""
    table = cost_table(DEEPSEEK_V3, Workload(batch=256, context_len=100))
    tokens = 256 * 7168 * 2
    assert (row_of(table, "permute", "act_read"), row_of(table, "permute", "act_write")) == (tokens, 8 * tokens)
    assert (row_of(table, "unpermute", "act_read"), row_of(table, "unpermute", "act_write")) == (8 * tokens, tokens)


def test_gradients_of_the_routers_weights_need_what_the_experts_put_out() -> None:
    """Backward, 256 tokens: a gradient and its eight outputs are read, eight gradients written. Of latents 512 + 1536
    are normalised, 128 x 64 + 64 rotated: norms need what went in."""
    table = cost_table(DEEPSEEK_V3, Workload(phase="train", batch=1, seq_len=256))
    tokens = 256 * 7168 * 2
    back = [row_of(table, "unpermute, backward", column) for column in ("act_read", "act_write")]
    assert back == [9 * tokens, 8 * tokens]
    name = "latent norm, rotary and cache append"
    rows = [i for i, op in enumerate(table.ops) if op.name.startswith(name)]
    sizes = {(float(table["act_read"][i]), float(table["act_write"][i])) for i in rows}
    forward, norms = 129 * 64 + 2048, 2048
    assert sizes == {(256 * 2 * forward, 256 * 2 * forward), (256 * 2 * (forward + norms), 256 * 2 * forward)}


def test_the_busiest_rank_reads_no_more_weights_and_answers_each_token_once() -> None:
    """Two ranks of four experts, top 2, of which the first rank's have 3/4 of the copies: half as many again as the
    mean. Few tokens wait for weights, which both ranks read; a token with both experts there is answered once."""
    routing = Routing(kind="histogram", tokens_per_expert=(4, 4, 2, 2, 1, 1, 1, 1))
    layout = Parallel(dp=2, ep=2)
    few, many = (
        lower_bound(
            cost_table(MIXTRAL_8X7B, Workload(batch=batch, context_len=64, parallel=layout, routing=routing)),
            ceilings(replace(H100, l2_capacity=0.0)),
        )
        for batch in (8, 4096)
    )
    chosen = [0.5, 0.5, 0.25, 0.25], [0.125] * 4
    reached = [1 - np.prod(1 - np.array(rank)) for rank in chosen]
    once = max(reached) / np.mean(reached) - 1
    assert reached_places(routing, 8, 2, 2) == pytest.approx(np.array(reached))
    # a token goes to fewer ranks than the 1.571 of two that it would reach if all experts were alike
    sent = 4096 * 4096 * 2 * min(sum(reached), 2 * (1 - 4 * 3 / (8 * 7))) / 2
    assert row_of(many.table, "combine", "count") == 32
    (place,) = (i for i, op in enumerate(many.table.ops) if op.name == "combine")
    assert float(many.table.net["scale_up"][place]) == pytest.approx(sent)

    def waits(bound: Bound, name: str) -> float:
        (row,) = (i for i, op in enumerate(bound.table.ops) if op.name == name)
        return float(bound.op_time[row] * bound.table["count"][row])

    products = ("expert gate and up", "expert down")
    assert float(few.terms["imbalance"]) < 0.01 * sum(waits(few, name) for name in products)
    expected = 0.5 * sum(waits(many, name) for name in products) + once * waits(many, "combine")
    assert float(many.terms["imbalance"]) == pytest.approx(expected)


def test_tensor_parallel_divides_every_expert() -> None:
    table = cost_table(DEEPSEEK_V3, Workload(batch=8, context_len=100, parallel=Parallel(tp=8)))
    whole = cost_table(DEEPSEEK_V3, Workload(batch=8, context_len=100))
    for name in ("expert gate and up", "expert down", "shared expert down"):
        assert row_of(table, name, "weights") == row_of(whole, name, "weights") / 8
    assert row_of(table, "router") == row_of(whole, "router")


def test_one_expert_is_a_dense_layer() -> None:
    """The limit: one expert that every token takes, against a dense MLP of its width, is the same products."""
    (group,) = MIXTRAL_8X7B.layers
    one = replace(MIXTRAL_8X7B, layers=(replace(group, mlp=MoeMlp(1, 1, 14336)),))
    table = cost_table(one, Workload(batch=16))
    assert row_of(table, "expert gate and up") == 2 * 16 * 4096 * 2 * 14336
    assert row_of(table, "expert down", "weights") == 14336 * 4096 * 2


def test_latent_experts_work_on_the_latent_width() -> None:
    (group,) = MIXTRAL_8X7B.layers
    latent = MoeMlp(8, 2, 1024, latent_size=512, shared_experts=1, shared_intermediate=1024, shared_expert_gate=True)
    model = replace(MIXTRAL_8X7B, layers=(LayerGroup(group.count, group.mixer, latent),))
    table = cost_table(model, Workload(batch=4))
    assert row_of(table, "latent down") == 2 * 4 * 4096 * 512
    assert row_of(table, "latent up") == 2 * 4 * 512 * 4096
    assert row_of(table, "expert gate and up") == 2 * 8 * 512 * 2 * 1024
    assert row_of(table, "expert down") == 2 * 8 * 1024 * 512
    assert row_of(table, "shared expert gate and up") == 2 * 4 * 4096 * 2 * 1024
    assert row_of(table, "shared expert gate") == 2 * 4 * 4096
    assert row_of(table, "router") == 2 * 4 * 4096 * 8
