"""Generated requests against every call of the API, in process.

Whatever is sent, the answer is one that the description names, of the type and shape that it names, and never a 5xx.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.openapi.loaders import from_asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.catalog.loader import load_catalog
from app.domain.precision import PRECISIONS
from app.domain.workload import MAX_TOKENS
from app.main import create_app
from app.settings import RateLimits, Settings
from app.storage import migrate

pytestmark = pytest.mark.fuzz

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = {GenerationMode.POSITIVE: 4, GenerationMode.NEGATIVE: 3}
KNOWN = {"hardware": "nvidia-h100-sxm", "model": "llama-3.1-8b"}
"""Ids that exist, for half of the requests: a made-up id seldom gets past the look-up."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """An app on its own data folder; what is generated piles up in it, which is part of the test."""
    made = create_app(Settings(data_dir=tmp_path_factory.mktemp("fuzz"), rate_limits=RateLimits(0, 0, 0)))
    migrate.upgrade(made.state.context.storage.engine)
    yield made
    made.state.context.storage.close()


def bounded(examples: int) -> settings:
    """The same examples on every run, none kept, none shrunk: a failure prints its request anyway."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def test_every_call_answers_what_it_says(app: FastAPI) -> None:
    failures: list[str] = []
    schema = from_asgi("/api/openapi.json", app)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 20
    for operation in operations:
        known = {name: KNOWN[name] for name in KNOWN if f"{{{name}}}" in operation.path}
        for mode, examples in EXAMPLES.items():
            strategies = [operation.as_strategy(mode)]
            if known:
                strategies.append(operation.as_strategy(mode, path_parameters=known))

            @seed(20261129)
            @bounded(examples)
            @given(case=st.one_of(strategies))
            def answers(case: schemathesis.Case) -> None:
                case.call_and_validate(checks=CHECKS)

            try:
                answers()
            except Unsatisfiable:
                # Nothing can be wrong about a call without parameters and body.
                assert mode is GenerationMode.NEGATIVE
            except Exception as error:
                failures.append(f"{operation.method.upper()} {operation.path} ({mode.value}):\n{error}")
    assert not failures, "\n\n".join(failures)


COUNT = st.sampled_from([1, 2, 3, 7, 8, 64, 4096, 1_000_003, 10**9, MAX_TOKENS])
DEGREE = st.sampled_from([1, 1, 1, 2, 3, 4, 8, 64, 1024, 1_048_576])
PRECISION = st.sampled_from(sorted(PRECISIONS))
MODELS = sorted(load_catalog().models)
HARDWARE = sorted(load_catalog().hardware)

WORKLOAD = st.fixed_dictionaries(
    {"phase": st.sampled_from(["train", "prefill", "decode"])},
    optional={
        "batch": COUNT,
        "seq_len": COUNT,
        "context_len": st.sampled_from([0, 1, 127, 4096, 131_072, 10**7, MAX_TOKENS]),
        "dtypes": st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ("weights", "activations", "kv", "gradients", "optimizer", "communication"), PRECISION
            ),
        ),
        "parallel": st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "etp", "micro_batches", "virtual_stages"), DEGREE),
                "sequence_parallel": st.booleans(),
                "zero_stage": st.integers(0, 3),
            },
        ),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "optimizer": st.sampled_from(["adamw", "adamw8bit", "sgd", "none"]),
        "launch_mode": st.sampled_from(["graph", "eager"]),
        "routing": st.sampled_from([{}, {"kind": "random"}, {"kind": "zipf", "alpha": 2.0}]),
        "kv": st.sampled_from([{}, {"page_tokens": 1}, {"page_tokens": 1_048_576, "shared_prefix_tokens": 10**6}]),
    },
)
BOUND = st.fixed_dictionaries(
    {"hardware": st.sampled_from(HARDWARE), "model": st.sampled_from(MODELS), "workload": WORKLOAD},
    optional={"ceilings": st.sampled_from(["peak", "achievable"])},
)
SIZE = st.sampled_from([1, 2, 17, 128, 4096, 10**6, 2**31, 2**40])
OPERATION = st.one_of(
    st.fixed_dictionaries(
        {"op": st.just("gemm"), "n": SIZE, "k": SIZE, "dtype": PRECISION},
        optional={"m": SIZE, "batch": SIZE, "groups": st.lists(st.sampled_from([0, 1, 2**40]), min_size=1)},
    ),
    st.fixed_dictionaries(
        {
            "op": st.just("attention"),
            **dict.fromkeys(("seq_q", "seq_kv", "heads", "kv_heads", "head_dim"), SIZE),
            "causal": st.booleans(),
            "direction": st.sampled_from(["fwd", "bwd", "fwd_bwd"]),
        },
        optional={"batch": SIZE, "window": SIZE, "v_head_dim": SIZE, "dtype": PRECISION},
    ),
    st.fixed_dictionaries(
        {"op": st.just("elementwise"), "elements": SIZE},
        optional={"reads": st.floats(0, 1000), "writes": st.floats(0, 1000), "dtype": PRECISION},
    ),
    st.fixed_dictionaries(
        {
            "op": st.just("collective"),
            "kind": st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]),
            "bytes": st.sampled_from([1e-300, 1.0, 1e6, 2.0**60]),
            "ranks": st.sampled_from([2, 3, 8, 9, 1_048_576]),
        },
        optional={
            "ranks_per_node": DEGREE,
            "in_switch_reduction": st.booleans(),
            "algorithm": st.sampled_from(["ring", "tree", "hierarchical"]),
        },
    ),
)


def check_estimate(app: FastAPI, path: str, body: dict[str, Any]) -> None:
    answer = TestClient(app).post(path, json=body)
    assert answer.status_code in (200, 422), f"{body}\n{answer.text}"
    found = answer.json()
    if answer.status_code == 422:
        assert found["errors"], f"{body}\n{found}"
        assert "nan" not in found["detail"].lower()
        return
    assert 0 <= found["bound_s"] <= found["serial_bound_s"] * (1 + 1e-9), f"{body}\n{found['bound_s']}"
    assert math.isfinite(found["serial_bound_s"]), body
    for total in ("flop", "executed_flop", "hbm_bytes", "net_bytes"):
        assert found[total] is not None, f"{total} is not finite: {body}"
        assert found[total] >= 0, body
    assert found["expected"]["low_s"] <= found["expected"]["time_s"] <= found["expected"]["high_s"], body
    assert found["binding"] in found["terms"] or f"{found['binding']}_s" in found["terms"], body


@seed(20261129)
@bounded(250)
@given(body=BOUND)
def test_any_step_of_any_model_has_a_bound_or_a_reason(app: FastAPI, body: dict[str, Any]) -> None:
    check_estimate(app, "/api/v1/estimates/bound", body)


@seed(20261129)
@bounded(200)
@given(hardware=st.sampled_from(HARDWARE), op=OPERATION)
def test_any_operation_has_a_bound_or_a_reason(app: FastAPI, hardware: str, op: dict[str, Any]) -> None:
    check_estimate(app, "/api/v1/estimates/op", {"hardware": hardware, "op": op})


@seed(20261129)
@bounded(120)
@given(body=BOUND, search=st.booleans(), reserve=st.sampled_from([{}, {"fragmentation": 0.9, "gathered_layers": 0}]))
def test_any_step_of_any_model_has_a_memory_or_a_reason(
    app: FastAPI, body: dict[str, Any], search: bool, reserve: dict[str, Any]
) -> None:
    answer = TestClient(app).post("/api/v1/estimates/memory", json={**body, "make_it_fit": search, "reserve": reserve})
    assert answer.status_code in (200, 422), f"{body}\n{answer.text}"
    found = answer.json()
    if answer.status_code == 422:
        assert found["errors"], f"{body}\n{found}"
        return
    total = sum(item["bytes"] for item in found["objects"])
    assert math.isclose(found["peak_bytes"], total, rel_tol=1e-12), body
    assert found["least"]["peak_bytes"] <= found["peak_bytes"], body
    for proposal in (found["make_it_fit"] or {"proposals": []})["proposals"]:
        assert proposal["peak_bytes"] <= found["capacity_bytes"], body
