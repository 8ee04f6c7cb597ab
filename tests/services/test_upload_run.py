"""Uploads: stored once, linked by the file's own words, and nothing kept of what cannot be read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.domain.errors import InvalidInput
from app.importers.base import UnreadableUpload
from app.services import run_changes, run_list, runs
from app.services.check import CheckRequest, check_run
from app.services.context import Context
from app.services.examples import MARKER, offer_examples, remove_examples
from app.services.run_changes import RunPatch
from app.services.run_list import RunQuery
from app.services.run_sweep import sweeps_of
from app.services.upload_run import display_name, upload_file
from tests.services.native_runs import native

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"


def stored_blobs(context: Context) -> list[Path]:
    return [path for path in context.storage.blobs.root.rglob("*") if path.is_file()]


def test_the_file_and_its_runs_are_kept_together(context: Context):
    data = (UPLOADS / "llama-bench" / "2.jsonl").read_bytes()
    outcome = upload_file(context, data, "2.jsonl", tags=["nightly, ci", "ci"])
    assert outcome.created
    assert len(outcome.runs) == 10
    assert {run.model_id for run in outcome.runs} == {"llama-3.2-1b"}
    assert all(run.model_is_guess and run.hardware_is_guess for run in outcome.runs)
    assert outcome.runs[0].tags == ("nightly", "ci")
    assert context.storage.blobs.read(outcome.upload.sha256) == data


def test_a_path_is_read_like_bytes(context: Context):
    outcome = upload_file(context, UPLOADS / "vllm-bench-serve" / "1.json", "1.json")
    assert outcome.upload.format == "vllm-bench-serve"


def test_what_a_person_states_is_no_guess_and_goes_by_any_name(context: Context):
    outcome = upload_file(context, native(hardware=None), "x.json", hardware="h200 sxm", model="Llama 3.1 8B")
    run = outcome.runs[0]
    assert (run.hardware_id, run.hardware_is_guess) == ("nvidia-h200-sxm", False)
    assert (run.model_id, run.model_is_guess) == ("llama-3.1-8b", False)


def test_the_same_bytes_again_change_nothing(context: Context):
    first = upload_file(context, native(), "first.json", tags=["a"])
    again = upload_file(context, native(), "second.json", tags=["b"], name="another name")
    assert not again.created
    assert [run.id for run in again.runs] == [run.id for run in first.runs]
    assert again.runs[0].tags == ("a",)
    assert again.findings[-1].check == "stored-already"
    assert run_list.list_runs(context, RunQuery()).total == 1
    assert len(stored_blobs(context)) == 1


def test_two_uploads_of_the_same_bytes_at_the_same_time_make_one(context: Context):
    senders = 6
    barrier = threading.Barrier(senders)
    outcomes, failures = [], []

    def send(number: int) -> None:
        barrier.wait()
        try:
            outcomes.append(upload_file(context, native(), f"{number}.json"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len({outcome.runs[0].id for outcome in outcomes}) == 1
    assert run_list.list_runs(context, RunQuery()).total == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b'{"a": 1}', "not-recognised"),
        (b"\x00\x01\x02\x03" * 50, "binary"),
        (b'{"bytebound": 1, "runs": [{"name": "x"', "cut-off"),
        (b'{"bytebound": 1, "runs": [{"name": "x", "metrics": {}}]}', "invalid"),
    ],
)
def test_nothing_is_kept_of_a_file_that_cannot_be_read(context: Context, data: bytes, reason: str):
    with pytest.raises(UnreadableUpload) as refused:
        upload_file(context, data, "x.json")
    assert refused.value.reason == reason
    assert stored_blobs(context) == []
    assert run_list.list_runs(context, RunQuery()).total == 0


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"hardware": "no such device"}, ("hardware",)),
        ({"model": "no such model"}, ("model",)),
        ({"workload": "{"}, ("workload",)),
        ({"workload": "nowhere"}, ("workload",)),
        ({"workload": '{"batch": 0}'}, ("workload", "batch")),
        ({"workload": '{"parallel": {"tp": "two"}}'}, ("workload", "parallel", "tp")),
        ({"workload": {"unknown": 1}}, ("workload", "unknown")),
        ({"name": "x" * 201}, ("name",)),
        ({"tags": ["t" * 61]}, ("tags",)),
        ({"tags": ["a\u202eb"]}, ("tags",)),
        ({"baseline": "nobody"}, ("baseline",)),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_kept(context: Context, fields: dict, loc: tuple):
    with pytest.raises(InvalidInput) as refused:
        upload_file(context, native(), "x.json", **fields)
    assert refused.value.loc == loc
    assert stored_blobs(context) == []


def test_a_file_name_is_never_a_path():
    assert display_name("../../etc/passwd") == "passwd"
    assert display_name("C:\\temp\\result.json") == "result.json"
    assert "\u202e" not in display_name("a\u202egnp.json")
    assert display_name("///") == "upload"


def test_stated_fields_change_the_bound(context: Context):
    run_id = upload_file(context, native(), "x.json", workload={"batch": 4}).runs[0].id
    view = runs.get_view(context, run_id)
    assert view.analysis.main.workload.batch == 4
    view = run_changes.update_run(context, run_id, RunPatch(parallel={"tp": 2}))
    assert view.analysis.main.workload.parallel.tp == 2
    assert view.analysis.main.workload.batch == 4  # what was stated before stays
    view = run_changes.update_run(context, run_id, RunPatch(workload=None))
    assert (view.analysis.main.workload.batch, view.analysis.main.workload.parallel.tp) == (1, 1)


def test_links_can_be_changed_confirmed_and_taken_back(context: Context):
    run_id = upload_file(context, native(), "x.json").runs[0].id
    assert runs.get_view(context, run_id).run.hardware_is_guess
    view = run_changes.update_run(context, run_id, RunPatch(hardware="nvidia-h100-sxm"))
    assert (view.run.hardware_id, view.run.hardware_is_guess) == ("nvidia-h100-sxm", False)
    view = run_changes.update_run(context, run_id, RunPatch(hardware=None))
    assert view.run.hardware_id is None
    assert "Link a hardware profile" in view.analysis.verdict


def test_a_deleted_run_is_gone_with_its_file(context: Context):
    outcome = upload_file(context, (UPLOADS / "llama-bench" / "2.jsonl").read_bytes(), "2.jsonl")
    first, *others = outcome.runs
    run_changes.delete_run(context, first.id)
    assert len(stored_blobs(context)) == 1  # nine runs still need it
    for run in others:
        run_changes.delete_run(context, run.id)
    assert stored_blobs(context) == []
    assert upload_file(context, (UPLOADS / "llama-bench" / "2.jsonl").read_bytes(), "2.jsonl").created


def test_the_gate_passes_and_fails_by_its_rules(context: Context):
    base = upload_file(context, native(), "base.json").runs[0].id
    slower = native(metrics={"tpot_s": {"mean": 0.011}, "decode_tokens_per_s": 95.0})
    run = upload_file(context, slower, "slower.json", baseline=base).runs[0].id

    def check(*rules: dict) -> dict:
        return check_run(context, CheckRequest.model_validate({"run": run, "rules": list(rules)}))

    passed = check(
        {"metric": "tpot_s", "max_regression": 0.101}, {"metric": "decode_tokens_per_s", "max_regression": 0.06}
    )
    assert passed["passed"]
    assert passed["baseline"] == base
    assert [row["regression"] for row in passed["rows"]] == [pytest.approx(0.1), pytest.approx(0.05)]
    assert not check({"metric": "tpot_s.mean", "max_regression": 0.09})["passed"]
    missing = check({"metric": "tpot_s.p99", "max_regression": 1.0})
    assert not missing["passed"]
    assert missing["rows"][0]["note"] == "tpot_s.p99 is not reported by the run"
    with pytest.raises(InvalidInput, match="unknown metric"):
        check({"metric": "speed", "max_regression": 0.1})
    with pytest.raises(InvalidInput, match="neither more nor less"):
        check({"metric": "concurrency", "max_regression": 0.1})


def test_runs_of_a_file_make_a_sweep(context: Context):
    outcome = upload_file(context, (UPLOADS / "llama-bench" / "2.jsonl").read_bytes(), "2.jsonl")
    sweeps = {sweep.what: sweep for sweep in sweeps_of(context, outcome.runs)}
    assert set(sweeps) == {"decode", "prefill"}
    decode = sweeps["decode"]
    assert decode.x_key == "n_depth"
    (line,) = decode.lines.values()
    assert [point.x for point in line] == sorted(point.x for point in line)
    assert all(point.bound is not None and point.bound < point.measured for point in line)


def test_experiments_of_a_file_are_lines_and_what_differs_in_every_run_is_not(context: Context):
    data = (UPLOADS / "optimum-benchmark" / "1.csv").read_bytes()
    outcome = upload_file(context, data, "1.csv")
    (prefill,) = sweeps_of(context, outcome.runs)
    assert (prefill.what, prefill.x_key) == ("prefill", "batch")
    assert {label: len(line) for label, line in prefill.lines.items()} == {
        "experiment llama_baseline": 5,
        "experiment llama_gptq": 5,
        "experiment llama_bnb": 5,
    }
    mock = upload_file(context, (UPLOADS / "guidellm" / "2.json").read_bytes(), "2.json")
    # each run has a concurrency and a rate of its own: one line, not a line for each run
    assert {sweep.what: len(sweep.lines) for sweep in sweeps_of(context, mock.runs)} == {"decode": 1, "prefill": 1}


def test_the_example_is_offered_once_to_an_empty_product(context: Context):
    offered = offer_examples(context)
    assert all(run.is_example for run in offered)
    steps = [run for run in offered if run.model_id is not None]
    assert len(steps) == 6
    for run in steps:
        main = runs.get_view(context, run.id).analysis.main
        assert 0.4 < main.of_bound < 1  # measured on the very device: below its bound, and not absurdly far
    assert offer_examples(context) == []
    assert remove_examples(context) == len(offered)
    assert offer_examples(context) == []  # they do not come back
    assert stored_blobs(context) == []


def test_a_product_in_use_gets_no_example(context: Context):
    upload_file(context, native(), "mine.json")
    assert offer_examples(context) == []
    assert (context.settings.data_dir / MARKER).exists()
    assert run_list.list_runs(context, RunQuery()).total == 1
