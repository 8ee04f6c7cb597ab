"""LoadGen summaries: nanoseconds, scenarios, invalid runs, several in one file, accuracy runs without a figure."""

from __future__ import annotations

import pytest

from app.importers.base import UnreadableUpload
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

SERVER = data("mlperf-loadgen-summary/1.txt")
OFFLINE = data("mlperf-loadgen-summary/2.txt")


def test_scenarios_and_limits() -> None:
    server, offline = (upload(f"mlperf-loadgen-summary/{n}.txt").runs[0] for n in (1, 2))
    assert server.name == "MLPerf Server"
    assert server.workload.request_rate == 83.5
    assert server.workload.extra["also"]["TTFT allowed (s)"] == 2.0
    assert server.workload.extra["percentiles"]["ttft_s.p97"] == pytest.approx(1.68389962)
    assert offline.workload.request_rate == "inf"
    assert "ttft_s.p99" not in values(offline)
    assert {m.key: m.pointer for m in server.metrics}["ttft_s.p99"] == "line 41"


def test_several_summaries_are_several_runs_whatever_the_line_ends() -> None:
    found = parse_upload(b"\xef\xbb\xbf" + (SERVER + b"\n" + OFFLINE).replace(b"\n", b"\r\n"))
    assert [run.name for run in found.runs] == ["MLPerf Server", "MLPerf Offline"]
    assert values(found.runs[1]) == values(upload("mlperf-loadgen-summary/2.txt").runs[0])


def test_an_invalid_run_says_why() -> None:
    text = SERVER.replace(b"Result is : VALID", b"Result is : INVALID").replace(
        b"Min duration satisfied : Yes", b"Min duration satisfied : NO"
    )
    (run,) = parse_upload(text).runs
    finding = next(f for f in run.findings if f.check == "mlperf-invalid")
    assert "INVALID" in finding.message
    assert "Min duration satisfied" in finding.message


def test_a_vision_run_has_samples_and_no_requests() -> None:
    text = OFFLINE.replace(b"Tokens per second: 1655.36\n", b"")
    assert "requests_per_s" not in values(parse_upload(text).runs[0])
    assert values(parse_upload(text).runs[0])["samples_per_s"] == 2.53447


def test_odd_numbers() -> None:
    text = (
        SERVER.replace(b": 24593.77", b": 24,593.77").replace(b": 3298049084", b": nan").replace(b": 30262518", b": 0")
    )
    found = values(parse_upload(text).runs[0])
    assert found["output_tokens_per_s"] == 24593.77
    assert "tpot_s.max" not in found
    assert "tpot_s.min" not in found
    again = SERVER.replace(
        b"Completed tokens per second                 : 24593.77", b"Completed tokens per second : 1.0"
    )
    assert "repeated-key" in checks(parse_upload(again).runs[0])


def test_an_accuracy_run_is_refused_in_its_own_words() -> None:
    for text in (
        b"\nNo warnings encountered during test.\n\nNo errors encountered during test.\n",
        b"MLPerf Results Summary\nScenario : Offline\nMode     : AccuracyOnly\n",
    ):
        with pytest.raises(UnreadableUpload) as caught:
            parse_upload(text)
        assert caught.value.reason == "invalid"
        assert "accuracy run" in caught.value.seen
        assert "performance run" in caught.value.hint
