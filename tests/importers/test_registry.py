"""Recognition: the surest importer wins, and a refusal names what the file seems to be."""

from __future__ import annotations

import pytest

from app.importers.base import UnreadableUpload
from app.importers.reading import Content
from app.importers.registry import IMPORTERS, accepted_formats, detect, parse_upload
from app.importers.unsupported import KNOWN_UNSUPPORTED

from .fixture_files import data


def refused(text: str | bytes, filename: str | None = None) -> UnreadableUpload:
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(text.encode() if isinstance(text, str) else text, filename)
    return caught.value


def test_ids_are_unique_and_every_importer_has_a_title() -> None:
    ids = [importer.id for importer in IMPORTERS]
    assert len(set(ids)) == len(ids)
    assert all(importer.title for importer in IMPORTERS)
    assert {"bytebound", "vllm-bench-serve", "sglang-bench-serving", "llama-bench"} <= set(ids)


def test_the_name_of_the_file_does_not_matter() -> None:
    for name in ("1.txt", "trace.csv", None):
        assert parse_upload(data("vllm-bench-serve/1.json"), name).format == "vllm-bench-serve"


def test_detect_chooses_by_content() -> None:
    assert detect(Content(data("sglang-bench-serving/2.jsonl"))).id == "sglang-bench-serving"
    assert detect(Content(data("llama-bench/5.txt"))).id == "llama-bench"


UNSUPPORTED = {
    "a rocprof trace in JSON": '{"traceEvents": [{"ph": "X", "ts": "1", "args": {"BeginNs": "1"}}]}',
}


@pytest.mark.parametrize("title", UNSUPPORTED)
def test_a_known_format_that_is_not_read_yet_is_named(title: str) -> None:
    refusal = refused(UNSUPPORTED[title])
    assert refusal.reason == "not-supported"
    assert title in refusal.seen
    assert "not supported yet" in refusal.seen
    assert refusal.accepts == accepted_formats()
    assert refusal.hint


def test_no_importer_takes_what_is_listed_as_unsupported() -> None:
    assert not {known.id for known in KNOWN_UNSUPPORTED} & {importer.id for importer in IMPORTERS}


def test_an_unknown_json_says_its_keys_and_what_was_tried() -> None:
    refusal = refused('{"hello": 1, "<b>": 2}')
    assert refusal.reason == "not-recognised"
    assert "hello" in refusal.seen
    assert {name for name, _ in refusal.tried} == {importer.id for importer in IMPORTERS}
    assert all(reason for _, reason in refusal.tried)


def test_what_holds_no_key_is_said_so() -> None:
    assert refused("{}").seen == "The file is an empty JSON object."
    assert "the key epochs, which" in refused('{"epochs": 3}').seen


def test_an_unknown_text_says_how_it_begins() -> None:
    assert "Dear benchmark" in refused("\n\nDear benchmark,\nall is well\n").seen


@pytest.mark.parametrize(
    ("file", "title"),
    [
        ("vllm-bench-serve/1.json", "a vLLM serving result"),
        ("vllm-bench-serve/5.json", "a vLLM serving result"),
        ("sglang-bench-serving/1.jsonl", "an SGLang serving result"),
    ],
)
def test_a_cut_off_file_is_named_with_the_byte(file: str, title: str) -> None:
    whole = data(file)
    for share in (0.5, 0.7, 0.95):
        cut = whole[: int(len(whole) * share)]
        refusal = refused(cut)
        assert refusal.reason == "cut-off"
        assert f"{title} that is cut off at byte {len(cut.rstrip())}" in refusal.seen


def test_a_damaged_file_is_named() -> None:
    refusal = refused(data("vllm-bench-serve/2.json").replace(b'"completed": 8,', b'"completed": 8;'))
    assert refusal.reason == "damaged"
    assert "a vLLM serving result that is damaged" in refusal.seen


def test_other_json_beside_results_is_left_out_and_said() -> None:
    line = data("vllm-bench-serve/1.json").strip()
    found = parse_upload(b'{"event": "start"}\n' + line + b"\n")
    assert len(found.runs) == 1
    assert [f.check for f in found.findings] == ["not-a-result"]
