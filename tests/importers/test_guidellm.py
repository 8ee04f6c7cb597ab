"""GuideLLM: sweeps, its two meanings of time per output token, YAML, and what is not kept."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.domain.run import ParsedRun
from app.importers.base import UnreadableUpload
from app.importers.reading import Limits
from app.importers.registry import parse_upload
from app.importers.yaml_text import read_yaml

from .fixture_files import checks, data, upload, values

OLD: dict[str, Any] = json.loads(data("guidellm/1.json"))


def changed(strategy: dict[str, Any] | None = None, **benchmark: Any) -> dict[str, Any]:
    report = copy.deepcopy(OLD)
    item = report["benchmarks"][0]
    item |= benchmark
    if strategy is not None:
        item["args"]["strategy"] = strategy
    return report


def read(report: object) -> list[ParsedRun]:
    return list(parse_upload(json.dumps(report).encode()).runs)


def test_each_benchmark_is_a_run_told_apart_by_its_load() -> None:
    runs = upload("guidellm/2.json").runs
    assert [run.name for run in runs] == ["e2e-mock-model, constant 2 req/s", "e2e-mock-model, constant 4 req/s"]
    assert [run.series["request_rate"] for run in runs] == [2.0, 4.0]
    assert runs[0].software["guidellm"] == "0.8.0.dev18"
    assert runs[0].measured_at == "2026-08-14T03:29:08+00:00"


@pytest.mark.parametrize(
    ("strategy", "name", "rate", "concurrency"),
    [
        ({"type_": "synchronous"}, "Qwen3-0.6B, synchronous", None, 1.0),
        ({"type_": "concurrent", "streams": 8}, "Qwen3-0.6B, 8 at once", None, 8.0),
        ({"type_": "throughput", "max_concurrency": 512}, "Qwen3-0.6B, throughput", "inf", 22.783126411617154),
        ({"type_": "poisson", "rate": 2.5}, "Qwen3-0.6B, poisson 2.5 req/s", 2.5, 22.783126411617154),
    ],
)
def test_strategies(strategy: dict[str, Any], name: str, rate: object, concurrency: float) -> None:
    (run,) = read(changed(strategy))
    assert run.name == name
    assert run.workload.request_rate == rate
    assert run.workload.concurrency == pytest.approx(concurrency)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("guidellm/1.json", "divides the time after the first token by all tokens"),
        ("guidellm/2.json", "TTFT counted in"),
    ],
)
def test_its_own_time_per_token_is_shown_apart_and_explained(file: str, words: str) -> None:
    run = upload(file).runs[0]
    finding = next(f for f in run.findings if f.check == "own-tpot")
    assert words in finding.message


def test_nothing_of_prompts_answers_addresses_and_keys_is_kept() -> None:
    found = upload("guidellm/1.json")
    kept = repr(found)
    for word in ("drive", "Collins", "cloudy", "svc.cluster"):
        assert word not in kept
    new = json.loads(data("guidellm/2.json"))
    new["benchmarks"][0]["config"]["backend"]["api_key"] = "sk-verysecret12345"
    new["benchmarks"][0]["config"]["backend"]["model"] = "/Users/joe/models/Llama"
    run = read(new)[0]
    assert "verysecret" not in repr(run)
    assert "joe" not in repr(run)
    assert "backend.api_key" in next(f for f in run.findings if f.check == "left-out").message


def test_samples_only_where_every_request_is_listed() -> None:
    assert upload("guidellm/1.json").runs[0].samples == {}
    requests = OLD["benchmarks"][0]["requests"]
    totals = {"successful": len(requests["successful"]), "errored": 0, "incomplete": 0, "total": 4}
    (run,) = read(changed(request_totals=totals))
    assert run.samples["ttft_s"][0] == pytest.approx(1.014298677444458)
    assert run.samples["input_tokens"][0] == 124


def test_zeros_of_an_empty_distribution_are_missing() -> None:
    report = changed(request_totals={"successful": 0, "errored": 5, "incomplete": 0, "total": 5})
    (run,) = read(report)
    assert "all-failed" in checks(run)
    assert "ttft_s.mean" not in values(run)
    empty = changed()
    for branch in empty["benchmarks"][0]["metrics"]["time_to_first_token_ms"].values():
        branch |= {"count": 0, "mean": 0.0, "median": 0.0}
    assert "ttft_s.mean" not in values(read(empty)[0])
    odd = changed(metrics={"request_latency": {"successful": {"mean": "x", "median": None, "percentiles": []}}})
    assert values(read(odd)[0]).keys() == {"requests_completed", "requests_failed", "duration_s", "request_rate_per_s"}


def test_a_negative_first_token_is_a_contradiction() -> None:
    report = changed()
    report["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]["min"] = -4.0
    assert "negative-latency" in checks(read(report)[0])


def test_yaml_says_the_same_as_json() -> None:
    text = yaml.safe_dump(OLD, sort_keys=False).encode()
    found = parse_upload(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert found.format == "guidellm"
    assert values(found.runs[0]) == values(upload("guidellm/1.json").runs[0])
    assert "form-not-tried" in checks(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("benchmarks:\n- type_: generative_benchmark\n  metrics: {a: [1, 2\n", "damaged"),
        ("benchmarks:\n- type_: generative_benchmark\n  metrics: !!python/object/apply:os.system ['ls']\n", "damaged"),
        ("benchmarks:\n- type_: generative_benchmark\n  x: 1\n  x: 2\n", "duplicate-key"),
        ("benchmarks:\n- type_: generative_benchmark\n  x: " + "[" * 200 + "]" * 200 + "\n", "too-deep"),
        ("benchmarks: []\nnote: 'guidellm_version: 1'\n", "invalid"),
        ("benchmarks:\n- type_: generative_benchmark\n  ? [a]\n  : 1\n", "damaged"),
        ("benchmarks:\n- type_: generative_benchmark\n  x: *y\n", "damaged"),
    ],
)
def test_hostile_yaml_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(text.encode())
    assert caught.value.reason == reason
    assert caught.value.hint


def test_aliases_count_with_what_they_stand_for() -> None:
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
    )
    with pytest.raises(UnreadableUpload) as caught:
        read_yaml(bomb, Limits())
    assert caught.value.reason == "too-large"
    assert read_yaml("a: &x {b: .inf, c: ~}\nd: *x\ne: '1'\nf: 1_0.5\n", Limits()) == {
        "a": {"b": float("inf"), "c": None},
        "d": {"b": float("inf"), "c": None},
        "e": "1",
        "f": 10.5,
    }
