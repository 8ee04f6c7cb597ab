"""Our own format: what is accepted, what is refused and where, and that the published schema says the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from app.domain.run import METRIC_UNITS
from app.importers.base import UnreadableUpload
from app.importers.native import RUN_SCHEMA
from app.importers.registry import parse_upload
from app.importers.schema import KEYWORDS, problems

from .fixture_files import checks, values

GOOD: dict[str, Any] = {
    "bytebound": 1,
    "runs": [
        {
            "name": "decode, 8 at once",
            "hardware": "nvidia-h100-sxm",
            "model": "llama-3.1-8b",
            "workload": {
                "phase": "decode",
                "batch": 8,
                "seq_len": 1,
                "context_len": 2048,
                "dtypes": {"weights": "fp8", "kv": "bf16"},
                "parallel": {"tp": 2, "sequence_parallel": True},
                "launch_mode": "graph",
                "extra": {"commit": "abc", "seed": 3},
            },
            "software": {"torch": "2.9.0", "driver": "580.1"},
            "metrics": {
                "step_time_s": {"p50": 0.010, "p99": 0.012, "count": 200},
                "output_tokens_per_s": 800.5,
                "peak_memory_bytes": None,
            },
            "kernels": [{"name": "gemm", "count": 4, "time_s": 0.004, "share": 0.4, "grid": "8,1,1"}],
            "samples": {"tpot_s": [0.01, 0.03, None, 0.02]},
            "evidence": {"data_wait_share": 0.02},
            "measured_at": "2026-03-04T05:06:07Z",
            "series": {"concurrency": 8},
            "notes": "warm cache",
        }
    ],
}


def changed(*path: Any, to: Any = ...) -> dict[str, Any]:
    """A copy of GOOD with one place set, or removed."""
    out = copy.deepcopy(GOOD)
    at: Any = out
    for key in path[:-1]:
        at = at[key]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return out


def test_a_full_run_is_read_as_written() -> None:
    found = parse_upload(json.dumps(GOOD).encode())
    assert found.format == "bytebound"
    (run,) = found.runs
    assert values(run) == {
        "step_time_s.p50": 0.010,
        "step_time_s.p99": 0.012,
        "output_tokens_per_s": 800.5,
        "tpot_s.mean": pytest.approx(0.02),
        "tpot_s.p50": 0.02,
        "tpot_s.min": 0.01,
        "tpot_s.max": 0.03,
    }
    assert run.metrics[0].pointer == "/runs/0/metrics/step_time_s/p50"
    assert run.metrics[0].count == 200
    assert run.samples == {"tpot_s": (0.01, 0.03, 0.02)}
    assert run.workload.mode == "decode"
    assert run.workload.batch == 8
    assert run.workload.context_len == 2048
    assert run.workload.dtypes == {"weights": "fp8", "kv": "bf16"}
    assert run.workload.extra["tags"] == {"commit": "abc", "seed": 3}
    assert run.parallel == {"tp": 2}
    assert run.software == {"torch": "2.9.0", "driver": "580.1"}
    assert run.hardware_hint == "nvidia-h100-sxm"
    assert run.model_hint == "llama-3.1-8b"
    assert run.evidence == {"data_wait_share": 0.02}
    assert run.kernels[0]["name"] == "gemm"
    assert run.series == {"concurrency": 8.0}
    assert run.notes == "warm cache"
    assert run.measured_at == "2026-03-04T05:06:07Z"


def test_the_smallest_file() -> None:
    text = b'{"bytebound": 1, "runs": [{"name": "a", "metrics": {"loss": 2}}]}'
    assert values(parse_upload(text).runs[0]) == {"loss": 2.0}


BAD: list[tuple[dict[str, Any], str, str]] = [
    (changed("bytebound", to=2), "/bytebound", "must be 1"),
    (changed("bytebound", to=True), "/bytebound", "must be 1"),
    (changed("runs", to=[]), "/runs", "at least 1"),
    (changed("runs", to={}), "/runs", "must be a list"),
    (changed("runs"), "", "lacks runs"),
    (changed("surprise", to=1), "/surprise", "not a known field"),
    (changed("runs", 0, "name"), "/runs/0", "lacks name"),
    (changed("runs", 0, "name", to=""), "/runs/0/name", "must not be empty"),
    (changed("runs", 0, "name", to=7), "/runs/0/name", "must be text, not 7"),
    (changed("runs", 0, "metric", to={}), "/runs/0/metric", "did you mean metrics?"),
    (changed("runs", 0, "metrics", to={}), "/runs/0/metrics", "must not be empty"),
    (changed("runs", 0, "metrics", "ttft_ms", to=3.0), "/runs/0/metrics/ttft_ms", "did you mean ttft_s?"),
    (changed("runs", 0, "metrics", "ttft_s", to="3"), "/runs/0/metrics/ttft_s", "must be a number"),
    (changed("runs", 0, "metrics", "ttft_s", to={"p42": 1}), "/runs/0/metrics/ttft_s/p42", "not a known field"),
    (changed("runs", 0, "metrics", "ttft_s", to={"p50": True}), "/runs/0/metrics/ttft_s/p50", "must be a number"),
    (changed("runs", 0, "workload", "mode", to="chat"), "/runs/0/workload/mode", "must be one of"),
    (changed("runs", 0, "workload", "batch", to=-1), "/runs/0/workload/batch", "at least 0"),
    (changed("runs", 0, "workload", "dtypes", to={"kv": "q8_0"}), "/runs/0/workload/dtypes/kv", "must be one of"),
    (changed("runs", 0, "workload", "parallel", to={"tp": 0}), "/runs/0/workload/parallel/tp", "at least 1"),
    (changed("runs", 0, "workload", "parallel", to={"tp": 1.5}), "/runs/0/workload/parallel/tp", "a whole number"),
    (changed("runs", 0, "workload", "weight_bytes", to=0), "/runs/0/workload/weight_bytes", "above 0"),
    (changed("runs", 0, "kernels", to=[{"count": 1}]), "/runs/0/kernels/0", "lacks name"),
    (changed("runs", 0, "kernels", 0, "share", to=1.5), "/runs/0/kernels/0/share", "at most 1"),
    (changed("runs", 0, "samples", to={"tpot_s": ["x"]}), "/runs/0/samples/tpot_s/0", "must be a number"),
    (changed("runs", 0, "evidence", to={"a": "b"}), "/runs/0/evidence/a", "must be a number"),
    (changed("runs", 0, "software", to={"a": {}}), "/runs/0/software/a", "must be text"),
    (changed("runs", 0, "a/b~c", to=1), "/runs/0/a~1b~0c", "not a known field"),
]


@pytest.mark.parametrize(("document", "where", "message"), BAD, ids=[f"{at or 'root'} {m}" for _, at, m in BAD])
def test_each_fault_is_named_with_its_place(document: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(UnreadableUpload) as refused:
        parse_upload(json.dumps(document).encode())
    assert refused.value.reason == "invalid"
    ((at, said),) = refused.value.problems
    assert at == where
    assert message in said
    assert where in str(refused.value)


VALIDATOR = jsonschema_rs.Draft202012Validator(RUN_SCHEMA)


@pytest.mark.parametrize("document", [GOOD, *(document for document, _, _ in BAD)])
def test_the_published_schema_and_the_check_agree(document: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(document) is (not list(problems(document, RUN_SCHEMA)))
    assert VALIDATOR.is_valid(document) is (document is GOOD)


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    yield schema
    for child in schema.get("properties", {}).values():
        yield from schemas(child)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key])


def test_the_schema_uses_only_keywords_that_are_checked() -> None:
    for schema in schemas(RUN_SCHEMA):
        assert set(schema) <= KEYWORDS


def test_the_schema_lists_every_metric_with_its_unit() -> None:
    listed = RUN_SCHEMA["properties"]["runs"]["items"]["properties"]["metrics"]["properties"]
    assert set(listed) == set(METRIC_UNITS)
    assert listed["ttft_s"]["description"] == "in s"
    json.dumps(RUN_SCHEMA, allow_nan=False)


def test_non_finite_values_are_missing_with_a_note() -> None:
    text = json.dumps(changed("runs", 0, "metrics", "ttft_s", to={"p50": float("nan"), "p99": 1e308 * 10, "mean": 0.5}))
    run = parse_upload(text.encode()).runs[0]
    assert values(run)["ttft_s.mean"] == 0.5
    assert "ttft_s.p50" not in values(run)
    assert {"ttft_s.p50", "ttft_s.p99"} <= set(next(f for f in run.findings if f.check == "non-finite").fields)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_non_finite_load_is_missing_too(value: float) -> None:
    run = parse_upload(json.dumps(changed("runs", 0, "workload", "weight_bytes", to=value)).encode()).runs[0]
    assert run.workload.weight_bytes is None
    assert "non-finite" in checks(run)


def test_contradictions_are_findings() -> None:
    text = json.dumps(changed("runs", 0, "metrics", "ttft_s", to={"p50": 2.0, "p99": 1.0}))
    assert "percentiles-disordered" in checks(parse_upload(text.encode()).runs[0])


def test_a_million_unknown_fields_are_refused_quickly() -> None:
    many = {f"metric_{i}_s": 1 for i in range(200_000)}
    with pytest.raises(UnreadableUpload) as refused:
        parse_upload(json.dumps(changed("runs", 0, "metrics", to=many)).encode())
    assert len(refused.value.problems) == 20
    assert "at least" in str(refused.value)


def test_a_cut_off_file_is_refused_as_a_whole() -> None:
    text = json.dumps(GOOD)
    with pytest.raises(UnreadableUpload, match="own format that is cut off at byte") as refused:
        parse_upload(text[: len(text) // 2].encode())
    assert refused.value.reason == "cut-off"
