"""The readers of serving clients hold what `test_hostile` asks of all: a fixed set of damage for each, quick to run."""

from __future__ import annotations

import copy
import json
import random
import time
from typing import Any

import pytest

from .fixture_files import data
from .test_aiperf import AIPERF_CSV, GENAI_CSV, RECORDS, SUMMARY
from .test_guidellm import OLD
from .test_hostile import attempt, slots
from .test_inferencex import AGGREGATE
from .test_optimum_benchmark import CONFIG
from .test_optimum_benchmark import REPORT as OPTIMUM
from .test_serving_console import SGLANG
from .test_sglang_bench_one_batch import SERVER
from .test_trtllm_bench import REPORT as TRTLLM
from .test_vllm_bench_offline import LATENCY, LATENCY_SIDE, THROUGHPUT

WRONG: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**400,
    -(10**25),
    1e308,
    float("nan"),
    float("-inf"),
    "inf",
    "1e999",
    "<script>",
    "\x00\u202e",
    "\ud800",
    "١",
    [],
    {},
    [None, "x", [1]],
    {"unit": 3, "avg": [], "value": {}},
    {"": {"": {"": 1}}},
)


def short_guidellm() -> dict[str, Any]:
    report = copy.deepcopy(OLD)
    item = report["benchmarks"][0]
    item["requests"] = {"successful": [{"request_latency": 1.0, "prompt_tokens": 3}], "errored": [], "incomplete": []}
    for metric in item["metrics"].values():
        metric.pop("total"), metric.pop("errored"), metric.pop("incomplete")
    return report


def short_record() -> dict[str, Any]:
    line: dict[str, Any] = json.loads(RECORDS[0])
    line["metrics"]["inter_chunk_latency"]["value"] = [18.0, 19.0]
    return line


DOCUMENTS: dict[str, Any] = {
    "vllm latency": LATENCY,
    "vllm throughput": THROUGHPUT,
    "vllm side file": LATENCY_SIDE,
    "sglang server": SERVER,
    "inferencex aggregate": AGGREGATE,
    "inferencex result": json.loads(data("inferencex-result/1.json")),
    "trtllm": TRTLLM,
    "aiperf": {k: SUMMARY[k] for k in list(SUMMARY)[:8]}
    | {k: SUMMARY[k] for k in ("error_summary", "was_cancelled", "input_config", "telemetry_data")},
    "records": short_record(),
    "guidellm": short_guidellm(),
    "optimum": {"config": CONFIG, "report": OPTIMUM},
}
TEXTS: dict[str, bytes] = {
    "mlperf": data("mlperf-loadgen-summary/1.txt"),
    "table": data("genai-perf-table/1.txt"),
    "console": SGLANG.encode(),
    "genai csv": GENAI_CSV.encode(),
    "aiperf csv": AIPERF_CSV.encode(),
    "optimum csv": b"\n".join(data("optimum-benchmark/1.csv").split(b"\n")[:3]),
    "guidellm yaml": b"benchmarks:\n- type_: generative_benchmark\n  metrics:\n    request_latency:\n"
    b"      successful: {mean: 2.0, median: 2.0, count: 4, percentiles: {p99: 3.0}}\n"
    b"  request_totals: {successful: 4}\n",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_place(name: str) -> None:
    dice = random.Random(name)
    places = slots(DOCUMENTS[name])
    for _ in range(50):
        document = copy.deepcopy(DOCUMENTS[name])
        for _ in range(dice.randint(1, 3)):
            *path, last = dice.choice(places[1:])
            at = document
            try:
                for key in path:
                    at = at[key]
                at[last] = copy.deepcopy(dice.choice(WRONG))
            except (KeyError, IndexError, TypeError):
                continue
        attempt(json.dumps(document).encode("utf-8", errors="surrogatepass"))


@pytest.mark.parametrize("name", [*DOCUMENTS, *TEXTS])
def test_cuts_and_changed_bytes(name: str) -> None:
    whole = TEXTS[name] if name in TEXTS else json.dumps(DOCUMENTS[name], indent=1).encode()
    assert attempt(whole) is not None
    for part in range(1, 16):
        attempt(whole[: len(whole) * part // 16])
    for part in range(1, 5):
        attempt(whole[len(whole) * part // 5 :])
    dice = random.Random(name)
    bits = (b"[", b"{", b'"', b",", b";", b"|", b"\n", b"NaN", b"-", b"9" * 60, b"\xff", b"\x00", b"&a ", b"*a", b"%")
    for _ in range(25):
        text = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(text))
            if dice.random() < 0.5:
                text[at:at] = dice.choice(bits)
            else:
                del text[at : at + dice.randint(1, 30)]
        attempt(bytes(text))


LONG = 300_000
SLOW: dict[str, bytes] = {
    "equals signs": b"= Serving Benchmark Result =\n" + b"=" * LONG + b"x\n" + b"=" * 250 + b"x\n",
    "a summary of blanks": b"MLPerf Results Summary\nScenario : x\n" + b" " * LONG + b"\n" + b": " * LONG,
    "a unit of blanks": json.dumps({"request_latency": {"unit": " " * LONG + "/", "avg": 1}}).encode(),
    "a label of blanks": b"Metric,avg\n" + b" " * LONG + b"(" * LONG + b",1\n" + b"1 " * LONG + b",1\n",
    "cells of digits": b"Metric,avg\nRequest Latency (ms)," + b"1 111" * LONG + b"\n" + b"1,111" * LONG,
    "a table of bars": b"| Statistic | avg |\n" + "│".encode() * LONG + b"\n| tokens " + b" " * LONG + b"| 1 |\n",
    "digits of yaml": b"benchmarks:\n- type_: generative_benchmark\n  x: " + b"1" * LONG + b"x\n",
    "cells of lists": b"forward.latency(s),environment.gpus\n1," + b"[" * LONG + b"\n",
    "a record of blanks": b'{"metadata": {' + b" " * LONG + b"\n" + b'{"metadata": ' * 2000,
}


@pytest.mark.parametrize("name", SLOW)
def test_no_text_takes_longer_than_it_is_long(name: str) -> None:
    """A pattern that tries every pair of places would need hours for these."""
    begin = time.process_time()
    attempt(SLOW[name])
    assert time.process_time() - begin < 4
