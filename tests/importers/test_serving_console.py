"""Result blocks that serving clients print, alone and amid the lines of a log."""

from __future__ import annotations

import pytest

from app.importers.base import UnreadableUpload
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

# Made-up numbers in the shape that SGLang's client prints.
SGLANG = """
Namespace(backend='sglang', model='/home/joe/models/Qwen3-8B', api_key='sk-abcdefghijk', max_concurrency=16)
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    20.0
Max request concurrency:                 16
Successful requests:                     5
Benchmark duration (s):                  176.41
Total input tokens:                      20480
Total input text tokens:                 20480
Total generated tokens:                  20480
Total generated tokens (retokenized):    20470
Request throughput (req/s):              0.03
Input token throughput (tok/s):          116.09
Output token throughput (tok/s):         116.09
Peak concurrent requests:                2
Total token throughput (tok/s):          232.19
Concurrency:                             1.00
Accept length:                           2.50
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   35,279.06
Median E2E Latency (ms):                 35275.60
P90 E2E Latency (ms):                    35294.13
---------------Time to First Token----------------
Mean TTFT (ms):                          355.93
Median TTFT (ms):                        309.28
P99.9 TTFT (ms):                         518.36
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          nan
P99 TPOT (ms):                           9.10
---------------Inter-Token Latency----------------
Mean ITL (ms):                           8.53
P95 ITL (ms):                            9.53
Max ITL (ms):                            99.00
==================================================
"""


def test_two_results_of_a_log_with_their_load_above() -> None:
    found = upload("serving-console/1.txt")
    assert [run.name for run in found.runs] == [f"Serving run, 32 at once, result {n}" for n in (1, 2)]
    first, second = found.runs
    assert first.workload.request_rate == "inf"
    assert first.workload.concurrency == 32
    assert values(second)["tpot_s.p50"] == pytest.approx(0.09399)
    assert {m.key: m.pointer for m in first.metrics}["ttft_s.mean"] == "line 14"
    # 0.21 req/s over 150.87 s are 31.7 requests: the rate is rounded, nothing contradicts
    assert "rate-mismatch" not in checks(first)
    assert "rounded" in checks(first)


def test_a_block_of_sglang_and_the_model_of_the_line_above() -> None:
    (run,) = parse_upload(SGLANG.encode()).runs
    found = values(run)
    assert run.name == "Qwen3-8B, 20 req/s, 16 at once"
    assert run.model_hint == "Qwen3-8B"
    assert found["e2e_latency_s.mean"] == pytest.approx(35.27906)
    assert found["ttft_s.p999"] == pytest.approx(0.51836)
    assert found["total_tokens_per_s"] == 232.19
    assert found["itl_s.max"] == pytest.approx(0.099)
    assert found["accepted_tokens_per_step"] == 2.5
    assert found["peak_concurrency"] == 2
    assert "tpot_s.mean" not in found
    assert "non-finite" in checks(run)
    assert "rate-mismatch" not in checks(run)
    assert "joe" not in repr(run)
    assert "sk-abc" not in repr(run)


def test_prefixes_colours_marks_and_line_ends_of_a_log() -> None:
    odd = "\r\n".join(f"\x1b[36m(client pid=7) 12:00:01 {line}\x1b[0m" for line in SGLANG.splitlines())
    (run,) = parse_upload(b"\xef\xbb\xbf" + odd.encode()).runs
    assert values(run) == values(parse_upload(SGLANG.encode()).runs[0])


def test_a_contradiction_beyond_rounding_is_still_said() -> None:
    wrong = SGLANG.replace("116.09", "999.09")
    assert "rate-mismatch" in checks(parse_upload(wrong.encode()).runs[0])


def test_a_cut_block_keeps_its_figures_and_a_bare_heading_is_refused() -> None:
    whole = data("serving-console/1.txt").decode()
    cut = parse_upload(whole[: whole.rindex("# Mean TPOT")].encode())
    assert len(cut.runs) == 2
    assert "tpot_s.mean" not in values(cut.runs[1])
    bare = parse_upload((SGLANG + "============ Serving Benchmark Result ============\n").encode())
    assert len(bare.runs) == 1
    assert "not-a-result" in checks(bare)
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(b"============ Serving Benchmark Result ============\nOK: 3\n")
    assert caught.value.reason == "invalid"
    assert "--save-result" in caught.value.hint
