"""Freezing comparisons and opening them by link: what stays as it was, what is refused, what is exported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from app.domain.errors import InvalidInput
from app.importers.credentials import without_secrets
from app.services import catalogue, compare, share
from app.services.compare import ComparisonRequest, csv_cell
from app.services.context import Context
from app.services.run_changes import delete_run
from app.services.share import ShareRequest
from app.services.upload_run import upload_file
from app.storage import comparisons
from app.storage.errors import NotFound
from app.storage.records import StoredComparison, utc_now

DECODE = {"phase": "decode", "batch": 32, "context_len": 1152}


def native(*runs: Mapping[str, Any]) -> bytes:
    return json.dumps({"bytebound": 1, "runs": list(runs)}).encode()


def serving(name: str, rate: float, tpot: float, **changes: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "name": name,
        "hardware": "nvidia-h100-sxm",
        "model": "llama-3.1-8b",
        "workload": {
            "mode": "serve",
            "concurrency": 32,
            "input_len": 1024,
            "output_len": 256,
            "dtypes": {"weights": "bf16"},
        },
        "software": {"engine": "vllm", "vllm": "0.9.1"},
        "metrics": {"output_tokens_per_s": rate, "tpot_s": {"mean": tpot, "p99": tpot * 2}},
    }
    return run | changes


def stored_runs(context: Context, *runs: Mapping[str, Any]) -> list[str]:
    outcome = upload_file(context, native(*runs), "result.json")
    return [run.id for run in outcome.runs]


def estimate(**changes: Any) -> dict[str, Any]:
    request = {"hardware": "nvidia-h100-sxm", "model": "llama-3.1-8b", "workload": DECODE} | changes
    return {"estimate": {"kind": "bound", "request": request}}


def frozen(context: Context, *items: Mapping[str, Any], **changes: Any) -> StoredComparison:
    request = ComparisonRequest.model_validate({"title": "Two runs", "items": list(items), **changes})
    return compare.create_comparison(context, request)


def row(stored: StoredComparison, metric: str) -> Any:
    return next(row for row in stored.snapshot["metrics"] if row["metric"] == metric)


def test_runs_are_held_against_the_baseline(context: Context) -> None:
    base, candidate = stored_runs(context, serving("base", 2000.0, 0.016), serving("candidate", 2500.0, 0.0128))
    stored = frozen(
        context, {"run": base}, {"run": candidate, "label": "New", "book_as": "kernel"}, notes="first\r\nsecond"
    )
    assert [item["label"] for item in stored.snapshot["items"]] == ["base", "New"]
    assert row(stored, "output_tokens_per_s")["cells"][1]["ratio"] == 1.25
    assert row(stored, "tpot_s.mean")["cells"][1]["words"] == "0.800×, better"
    assert stored.snapshot["sentence"] == "“New” reaches 1.25× the output tokens/s of “base”."
    assert stored.snapshot["ledger"]["by_book"] == {"kernel": 1.25}
    assert stored.notes == "first\nsecond"
    assert compare.get_comparison(context, stored.id) == stored


def test_an_estimate_stands_beside_a_run_as_its_bound(context: Context) -> None:
    (run,) = stored_runs(context, serving("measured", 2000.0, 0.0119))
    stored = frozen(context, {"run": run}, {**estimate(), "label": "Bound"})
    cell = row(stored, "tpot_s.mean")["cells"][1]
    # Llama 3.1 8B in bf16: 8.03e9 weights less the embedding (0.525e9) and 32 contexts of 1,152 tokens of 131,072 B,
    # over 3.35e12 B/s: (15.01e9 + 4.83e9) / 3.35e12 = 5.92 ms
    assert cell["kind"] == "bound"
    assert cell["value"] == pytest.approx(5.92e-3, rel=5e-3)
    assert cell["of_bound"] == pytest.approx(5.92 / 11.9, rel=5e-3)
    assert cell["words"] == "baseline reaches 50\u202f% of it"
    assert cell["expected_low"] < cell["expected_high"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"context_len": 4096}, "context"), ({"batch": 8}, "concurrency"), ({"context_len": 1200}, "")],
)
def test_a_bound_at_another_load_is_no_bound_of_the_run(context: Context, changes: Any, word: str) -> None:
    (run,) = stored_runs(context, serving("measured", 2000.0, 0.0119))
    stored = frozen(context, {"run": run}, estimate(workload=DECODE | changes))
    cell = row(stored, "tpot_s.mean")["cells"][1]
    # the run's decode steps read 1,024 + 256 / 2 = 1,152 tokens on average; 1,200 is near enough
    assert cell["reason"] == (f"it is a bound for another {word}" if word else None)
    assert (cell["ratio"] is None) == bool(word)


def test_a_prefill_bound_stands_beside_the_time_to_first_token(context: Context) -> None:
    metrics = {"ttft_s": {"mean": 0.1}, "output_tokens_per_s": 100.0}
    (run,) = stored_runs(context, serving("measured", 1, 1, metrics=metrics))
    asked = {"phase": "prefill", "batch": 1, "seq_len": 1024}
    stored = frozen(context, {"run": run}, estimate(workload=asked))
    cell = row(stored, "ttft_s.mean")["cells"][1]
    assert (cell["kind"], cell["verdict"]) == ("bound", "of_bound")
    longer = frozen(context, {"run": run}, estimate(workload=asked | {"seq_len": 8192}))
    assert row(longer, "ttft_s.mean")["cells"][1]["reason"] == "it is a bound for another input length"


def test_a_snapshot_holds_inputs_profile_and_model(context: Context) -> None:
    (run,) = stored_runs(context, serving("measured", 2000.0, 0.0119))
    stored = frozen(context, {"run": run}, estimate())
    measured, asked = stored.snapshot["items"]
    assert measured["run"]["upload"]["file_name"] == "result.json"
    assert measured["hardware"]["profile"]["peak"]["memory_bandwidth_bytes_per_s"] == 3.35e12
    assert asked["estimate"]["request"]["workload"]["batch"] == 32
    assert asked["model"]["architecture"]["name"] == "Llama 3.1 8B"
    assert asked["label"] == "decode Llama 3.1 8B on H100 SXM5 80GB, batch 32"
    assert stored.app_version


def test_nothing_changes_when_run_and_profile_do(context: Context) -> None:
    own = catalogue.copy_hardware(context, "nvidia-h100-sxm", name="Lab H100")
    base, candidate = stored_runs(context, serving("base", 2000.0, 0.016), serving("candidate", 2500.0, 0.0128))
    stored = frozen(context, {"run": base}, {"run": candidate}, estimate(hardware=own.id))
    token, _ = share.create_share(context, stored.id)
    before = share.open_share(context, token).comparison.snapshot
    delete_run(context, candidate)
    edited = catalogue.hardware_json(catalogue.get_hardware(context, own.id))
    edited["peak"]["memory_bandwidth_bytes_per_s"] = 1e12
    edited["achievable"] = None
    catalogue.save_hardware(context, {k: v for k, v in edited.items() if v is not None}, id_=own.id)
    opened = share.open_share(context, token)
    assert opened.comparison.snapshot == before
    # today's code is asked with the frozen profile, so an edit of it moves nothing
    assert opened.moved == ()
    assert before["items"][2]["hardware"]["revision"] == 1
    assert compare.existing_runs(context, before) == {base}


def test_a_figure_that_moved_is_reported_and_not_replaced(context: Context) -> None:
    stored = frozen(context, estimate(), {**estimate(model="llama-3.1-70b"), "label": "70B"})
    changed = json.loads(json.dumps(stored.snapshot))
    changed["items"][0]["estimate"]["answer"]["bound_s"] *= 1.02
    changed["items"][1]["estimate"]["answer"]["bound_s"] *= 1 + 1e-13
    with context.storage.write() as session:
        old = comparisons.add(session=session, title="old", snapshot=changed, item_count=2, app_version="0.0.1")
    token, _ = share.create_share(context, old.id)
    opened = share.open_share(context, token)
    (moved,) = opened.moved
    assert (moved.item, moved.figure, moved.unit) == (0, "bound of a step", "s")
    assert moved.frozen == pytest.approx(1.02 * (moved.now or 0))
    assert opened.comparison.snapshot == changed


def test_what_today_refuses_is_reported(context: Context) -> None:
    stored = frozen(context, estimate())
    changed = json.loads(json.dumps(stored.snapshot))
    changed["items"][0]["estimate"]["request"]["workload"]["phase"] = "dream"
    with context.storage.write() as session:
        old = comparisons.add(session=session, title="old", snapshot=changed, item_count=1, app_version="0.0.1")
    (moved,) = share.moved_figures(context, old.snapshot)
    assert moved.now is None
    assert moved.reason


@pytest.mark.parametrize(
    ("items", "changes", "loc"),
    [
        ([{"run": "nothere"}], {}, ("items", 0, "run")),
        ([estimate(hardware="h999")], {}, ("items", 0, "estimate", "request", "hardware")),
        ([estimate(), estimate(model="no-such-model")], {}, ("items", 1, "estimate", "request", "model")),
        ([estimate()], {"baseline": 1}, ("baseline",)),
        ([estimate()], {"title": "   "}, ("title",)),
        ([estimate()], {"title": "a\u202eb"}, ("title",)),
        ([{**estimate(), "label": "a\x07b"}], {}, ("items", 0, "label")),
        ([estimate()], {"notes": "a\x00b"}, ("notes",)),
        ([estimate(levers=["flash-attention"])], {}, ("items", 0, "estimate", "request", "levers", 0)),
    ],
)
def test_what_cannot_be_frozen_is_named_by_its_place(context: Context, items: Any, changes: Any, loc: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        frozen(context, *items, **changes)
    assert caught.value.loc == loc
    assert compare.list_comparisons(context).total == 0


def test_equal_labels_are_told_apart(context: Context) -> None:
    stored = frozen(
        context, estimate(), estimate(), {**estimate(), "label": "decode Llama 3.1 8B on H100 SXM5 80GB, batch 32 (2)"}
    )
    labels = [item["label"] for item in stored.snapshot["items"]]
    assert len(set(labels)) == 3


def test_list_and_delete(context: Context) -> None:
    stored = frozen(context, estimate(), title="Quarterly review")
    assert [c.id for c in compare.list_comparisons(context, text="quarterly").items] == [stored.id]
    assert compare.list_comparisons(context, text="weekly").items == ()
    token, _ = share.create_share(context, stored.id)
    compare.delete_comparison(context, stored.id)
    with pytest.raises(NotFound):
        compare.get_comparison(context, stored.id)
    with pytest.raises(NotFound):
        share.open_share(context, token)


def test_closed_links_open_nothing(context: Context) -> None:
    stored = frozen(context, estimate())
    revoked, _ = share.create_share(context, stored.id)
    share.revoke_share(context, revoked)
    short, record = share.create_share(context, stored.id, ShareRequest(expires_in_s=60.0))
    assert record.expires_at is not None
    assert share.open_share(context, short, now=utc_now()).comparison == stored
    said = set()
    for token, now in ((revoked, None), ("unknown", None), (short, record.expires_at), ("ü", None), ("x" * 500, None)):
        with pytest.raises(NotFound) as caught:
            share.open_share(context, token, now=now)
        said.add(str(caught.value))
    assert len(said) == 1
    assert share.open_share(context, short, now=record.expires_at - timedelta(seconds=1)).share == record


def test_csv_holds_no_formulas(context: Context) -> None:
    evil = '=HYPERLINK("http://evil.example")'
    base, candidate = stored_runs(context, serving("base", 2000.0, 0.016), serving("candidate", 2500.0, 0.0128))
    stored = frozen(context, {"run": base, "label": evil}, {"run": candidate, "label": "-2+3"}, title="@title")
    lines = list(csv.reader(io.StringIO(compare.export_csv(stored))))
    assert lines[0] == ["comparison", "'@title"]
    head = next(line for line in lines if line and line[0] == "metric")
    assert (head[3], head[7]) == ("'" + evil, "'-2+3")
    rate = next(line for line in lines if line and line[0] == "output_tokens_per_s")
    assert rate == [
        "output_tokens_per_s",
        "tokens/s",
        "higher",
        "2000.0",
        "measured",
        "1.0",
        "baseline",
        "2500.0",
        "measured",
        "1.25",
        "1.25×, better",
    ]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("-1", "-1"),
        (-1.5, "-1.5"),
        ("+1e3", "+1e3"),
        ("-1+1", "'-1+1"),
        (" =1", "' =1"),
        ("\t=1", "'\t=1"),
        ("@a", "'@a"),
        (None, ""),
        ("a=b", "a=b"),
        ("-\u0661", "'-\u0661"),
    ],
)
def test_only_plain_numbers_may_start_with_a_sign(value: Any, cell: str) -> None:
    assert csv_cell(value) == cell


def test_json_export_is_the_answer_of_the_api(context: Context) -> None:
    stored = frozen(context, estimate())
    assert json.loads(compare.export_json(stored)) == json.loads(json.dumps(compare.comparison_json(stored)))


def test_secrets_do_not_travel() -> None:
    shown = without_secrets(
        {
            "args": {
                "api_key": "sk-1",
                "HF_TOKEN": "hf_1",
                "tokenizer": "llama",
                "input_tokens": "5",
                "empty_secret": "",
            },
            "base_url": "https://user:pass@host/v1",
            "list": [{"password": "p"}],
        }
    )
    assert shown == {
        "args": {
            "api_key": "[removed]",
            "HF_TOKEN": "[removed]",
            "tokenizer": "llama",
            "input_tokens": "5",
            "empty_secret": "",
        },
        "base_url": "https://host/v1",
        "list": [{"password": "[removed]"}],
    }


def test_long_kernel_lists_are_cut_and_counted() -> None:
    kept = compare.frozen_run({"name": "r", "kernels": [{"name": str(n)} for n in range(250)], "samples": {"x": [1.0]}})
    assert (len(kept["kernels"]), kept["kernels_total"]) == (100, 250)
    assert "samples" not in kept
