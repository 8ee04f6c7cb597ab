"""Whatever is done to a file, reading it gives runs that can be stored or a refusal that says why; nothing else."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.run import METRIC_UNITS, STATS
from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.reading import Limits
from app.importers.registry import parse_upload

from .fixture_files import data
from .test_llama_bench import FORMS
from .test_native import GOOD

SEEDS: dict[str, bytes] = {
    "vllm": data("vllm-bench-serve/5.json"),
    "vllm lines": b"\n".join(data("vllm-bench-serve/3.json").split(b"\n")[:3]),
    "sglang": data("sglang-bench-serving/1.jsonl"),
    "llama json": FORMS["json"],
    "llama csv": FORMS["csv"],
    "llama sql": FORMS["sql"],
    "llama markdown": data("llama-bench/5.txt"),
    "native": json.dumps(GOOD).encode(),
}
LIMITS = Limits(max_bytes=2**20, max_items=50_000)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fit_to_show(refusal: UnreadableUpload) -> None:
    assert refusal.seen
    assert str(refusal).encode("utf-8")
    assert len(str(refusal)) < 3000
    for text in (*refusal.accepts, *(part for pair in (*refusal.tried, *refusal.problems) for part in pair)):
        assert text.encode("utf-8") is not None


def attempt(content: bytes) -> ParsedUpload | None:
    """Read the content and hold the result to what storage and pages rely on."""
    try:
        found = parse_upload(content, "upload.json", LIMITS)
    except UnreadableUpload as refusal:
        return fit_to_show(refusal)
    assert found.runs
    # One strict dump proves: no NaN, no bytes, no surrogates, nothing that JSON cannot say.
    text = json.dumps(dataclasses.asdict(found), allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")
    assert "\\u0000" not in text
    for run in found.runs:
        assert run.name
        assert len({(m.name, m.stat) for m in run.metrics}) == len(run.metrics)
        for metric in run.metrics:
            assert metric.name in METRIC_UNITS
            assert metric.stat is None or metric.stat in STATS
            assert math.isfinite(metric.value)
        assert len(run.findings) < 20
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tenth_truncation(seed: str) -> None:
    content = SEEDS[seed]
    for end in range(0, len(content), max(1, len(content) // 300)):
        attempt(content[:end])
    for start in range(0, len(content), max(1, len(content) // 100)):
        attempt(content[start:])


@pytest.mark.parametrize("seed", SEEDS)
@QUICK
@given(random=st.data())
def test_bytes_changed_anywhere(seed: str, random: st.DataObject) -> None:
    content = bytearray(SEEDS[seed])
    for _ in range(random.draw(st.integers(1, 6))):
        at = random.draw(st.integers(0, len(content) - 1))
        kind = random.draw(st.sampled_from(("set", "delete", "insert")))
        if kind == "set":
            content[at] = random.draw(st.integers(0, 255))
        elif kind == "delete":
            del content[at : at + random.draw(st.integers(1, 40))]
        else:
            content[at:at] = random.draw(
                st.sampled_from(
                    (
                        b"[",
                        b"{",
                        b'"',
                        b"\\",
                        b",",
                        b"NaN",
                        b"1e999",
                        b"-",
                        b"|",
                        b"'",
                        b"\n",
                        b"null",
                        b"\xff",
                        b"\xed\xa0\x80",
                    )
                )
            )
        if not content:
            break
    attempt(bytes(content))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.sampled_from((10**400, -(10**400), 0, -1, 2**63, 1e-320, 1e308, -1e308)),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(("inf", "NaN", "1e999", "-5", "<script>", "\x00", "\ud800", "../../etc/passwd", "1_000", "٣")),
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
) | st.sampled_from(([1e308] * 3, [1e-320], [0.1, "x"], [None], [[1, 2], ["a"]], [{}]))


def slots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document, those inside long lists left out."""
    out = [path]
    if isinstance(value, dict):
        for key, child in value.items():
            out += slots(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value[:4]):
            out += slots(child, (*path, index))
    return out


JSON_SEEDS: dict[str, Any] = {
    "vllm": json.loads(SEEDS["vllm"]),
    "vllm details": json.loads(SEEDS["vllm"])
    | {
        "ttfts": [0.1, 0.2],
        "itls": [[0.1], [0.2, 0.3]],
        "output_lens": [2, 3],
        "input_lens": [1, 1],
        "errors": ["", ""],
    },
    "sglang": json.loads(SEEDS["sglang"]),
    "llama": json.loads(SEEDS["llama json"]),
    "native": GOOD,
}
SLOTS = {name: slots(value) for name, value in JSON_SEEDS.items()}


@pytest.mark.parametrize("seed", JSON_SEEDS)
@settings(QUICK, max_examples=100)
@given(random=st.data())
def test_any_value_in_any_place(seed: str, random: st.DataObject) -> None:
    document = json.loads(json.dumps(JSON_SEEDS[seed]))
    for _ in range(random.draw(st.integers(1, 4))):
        path = random.draw(st.sampled_from(SLOTS[seed]))
        # A copy: what is drawn may be an object that other examples share, and this one writes into it.
        value = copy.deepcopy(random.draw(ANY_JSON))
        at = document
        try:
            for key in path[:-1]:
                at = at[key]
            if path:
                at[path[-1]] = value
                if isinstance(at, dict) and random.draw(st.booleans()):
                    at[random.draw(st.text(max_size=10))] = value
            else:
                document = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    attempt(json.dumps(document).encode("utf-8", errors="surrogatepass"))


@QUICK
@given(content=st.binary(max_size=400))
def test_arbitrary_bytes(content: bytes) -> None:
    attempt(content)


PIECES = (
    "| model | test | t/s |\n",
    "| --- | --- | --- |\n",
    "| x | pp512 | 1.0 ± 2.0 |\n",
    "build_commit,avg_ts,n_gen,model_filename\n",
    "a,1,2,b\n",
    "INSERT INTO llama_bench (build_commit, avg_ts) VALUES (",
    "'a', '1');\n",
    '"bytebound": 1',
    '{"request_throughput": 1, "mean_ttft_ms": 2}',
    "NaN",
    *"{}[],\n'|",
)


@QUICK
@given(text=st.lists(st.sampled_from(PIECES), max_size=25))
def test_pieces_of_formats_in_any_order(text: list[str]) -> None:
    attempt("".join(text).encode())


def test_the_seeds_themselves_are_read() -> None:
    for content in SEEDS.values():
        assert attempt(content) is not None
