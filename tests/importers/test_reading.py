"""Bytes to text to JSON, on content that means harm or was damaged on the way."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tracemalloc
import zipfile

import pytest

from app.importers.base import UnreadableUpload
from app.importers.reading import Content, Limits, clean, pointer
from app.importers.registry import parse_upload

from .fixture_files import checks, data, values

VLLM = data("vllm-bench-serve/2.json")
TTFT = 0.21553594200008774


def refused(content: bytes, filename: str | None = None, limits: Limits | None = None) -> UnreadableUpload:
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(content, filename, limits or Limits())
    return caught.value


def ttft(content: bytes) -> float:
    return values(parse_upload(content).runs[0])["ttft_s.mean"]


# --- encodings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + VLLM,
        VLLM.replace(b"\n", b"\r\n"),
        VLLM.replace(b"\n", b"\r"),
        VLLM.decode().encode("utf-16"),
        b"\xfe\xff" + VLLM.decode().encode("utf-16-be"),
        VLLM.decode().encode("utf-32"),
        b"\n\n  " + VLLM + b"\n\n\n",
        gzip.compress(VLLM),
        gzip.compress(VLLM[:300]) + gzip.compress(VLLM[300:]),
    ],
    ids=["bom", "crlf", "cr", "utf-16", "utf-16-be", "utf-32", "blanks", "gzip", "gzip members"],
)
def test_the_same_result_in_other_clothes(content: bytes) -> None:
    assert ttft(content) == pytest.approx(TTFT)


@pytest.mark.parametrize(
    "content", [b"", b" ", b"\n\t \r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", "\u3000\n".encode(), b"\xff\xfe"]
)
def test_empty_files(content: bytes) -> None:
    assert refused(content).reason == "empty"


def zip_of(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, VLLM)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "filename", "seen", "hint"),
    [
        (zip_of("a.json"), None, "zip", "Unpack"),
        (b"SQLite format 3\x00" + bytes(100), "report.sqlite", "SQLite", "nsys stats"),
        (b"PAR1" + bytes(50), None, "Parquet", "CSV"),
        (bytes(range(256)) * 4, "profile.nsys-rep", "Nsight Systems", "nsys stats"),
        (b"NVR\x00" + bytes(40), "x.ncu-rep", "Nsight Compute", "--csv"),
        (bz2.compress(VLLM), None, "bzip2", "Unpack"),
        (b"GGUF" + bytes(50), None, "GGUF", "result"),
        (bytes(100), None, "binary", "text"),
        (bytes(range(128, 256)) * 10, None, "binary", "text"),
        (VLLM.decode().encode("utf-16-le"), None, "UTF-16", "UTF-8"),
        (VLLM + b"\x00", None, "binary", "text"),
        (b"\x01" * 9 + b"\x00" + b"\x01" * 200, None, "The file is binary", "text"),
        (gzip.compress(gzip.compress(VLLM)), None, "gzip inside gzip", "Unpack"),
    ],
)
def test_binary_files_are_refused_with_what_to_do(content: bytes, filename: str | None, seen: str, hint: str) -> None:
    refusal = refused(content, filename)
    assert refusal.reason == "binary"
    assert seen in refusal.seen
    assert hint in refusal.hint


def test_a_few_wrong_bytes_are_replaced_and_said() -> None:
    found = parse_upload(VLLM.replace(b'"label": null', b'"label": "caf\xe9"'))
    assert found.runs[0].name == "caf\ufffd"
    assert "encoding" in checks(found)


# --- size ----------------------------------------------------------------------------------------------------------


def test_a_gzip_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(b"[" + b" " * 60_000_000, compresslevel=6)
    tracemalloc.start()
    try:
        refusal = refused(bomb, limits=Limits(max_bytes=1_000_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refusal.reason == "too-large"
    assert peak < 8_000_000


def test_cut_off_and_damaged_gzip() -> None:
    packed = gzip.compress(VLLM)
    assert refused(packed[: len(packed) // 2]).reason == "cut-off"
    assert refused(packed[:20] + b"\x00\xff" * 20 + packed[60:]).reason == "damaged"
    assert refused(b"\x1f\x8b").reason in ("cut-off", "damaged")


def test_thousands_of_empty_gzip_members_are_refused() -> None:
    assert refused(gzip.compress(b"") * 5000).reason == "binary"


def test_a_file_above_the_limit_is_refused() -> None:
    assert refused(VLLM, limits=Limits(max_bytes=100)).reason == "too-large"


def test_too_many_results_and_too_many_values_are_refused() -> None:
    line = data("vllm-bench-serve/1.json").strip()
    assert refused(b"\n".join([line] * 11), limits=Limits(max_runs=10)).reason == "too-large"
    assert refused(b"[" + b",".join([line] * 11) + b"]", limits=Limits(max_runs=10)).reason == "too-large"
    assert len(parse_upload(b"\n".join([line] * 10), limits=Limits(max_runs=10)).runs) == 10
    assert refused(b"[" + b"{}," * 2000 + b"{}]", limits=Limits(max_items=1000)).reason == "too-large"


def test_commas_in_generated_texts_are_no_values() -> None:
    fields = json.loads(VLLM) | {"generated_texts": ['a, b, [c], {d} \\" ' * 1000]}
    assert parse_upload(json.dumps(fields).encode(), limits=Limits(max_items=1000)).runs


def test_unclosed_strings_are_counted_in_one_pass() -> None:
    hostile = b'{"a": "' + b'\\"' * 500_000 + b"," * 2000
    assert refused(hostile, limits=Limits(max_items=1000)).reason in ("cut-off", "damaged")


# --- depth ---------------------------------------------------------------------------------------------------------


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_fifty_levels_inside_a_fine_file_are_fine() -> None:
    assert ttft(VLLM.replace(b'"label": null', f'"label": {nested(50)}'.encode())) == pytest.approx(TTFT)


@pytest.mark.parametrize("levels", [70, 900, 5000, 100_000])
def test_deeper_than_the_limit_is_refused(levels: int) -> None:
    assert refused(VLLM.replace(b'"label": null', f'"label": {nested(levels)}'.encode())).reason == "too-deep"
    assert (
        refused(VLLM.replace(b'"label": null', ('"label": ' + '{"a":' * levels + "1" + "}" * levels).encode())).reason
        == "too-deep"
    )


def test_unclosed_depth_is_refused() -> None:
    assert refused(b"[" * 100_000).reason == "too-deep"
    assert refused(b'{"a":' * 100_000).reason == "too-deep"


# --- values --------------------------------------------------------------------------------------------------------


def test_conflicting_duplicate_keys_are_refused_by_name() -> None:
    refusal = refused(VLLM.replace(b'"completed": 8', b'"completed": 8, "completed": 9'))
    assert refusal.reason == "duplicate-key"
    assert "completed" in refusal.seen


@pytest.mark.parametrize("again", [b"8", b"8.0", b"8e0"])
def test_duplicate_keys_that_agree_are_ignored(again: bytes) -> None:
    assert ttft(VLLM.replace(b'"completed": 8', b'"completed": 8, "completed": ' + again)) == pytest.approx(TTFT)


def test_duplicate_nan_agrees_with_itself() -> None:
    assert ttft(VLLM.replace(b'"label": null', b'"label": NaN, "label": NaN')) == pytest.approx(TTFT)


@pytest.mark.parametrize("digits", [30, 400, 5000, 1_000_000])
def test_huge_integers_do_not_stop_the_import(digits: int) -> None:
    found = parse_upload(VLLM.replace(b'"num_prompts": 8', b'"num_prompts": ' + b"9" * digits))
    assert found.runs[0].value("ttft_s") == pytest.approx(TTFT)
    in_place = parse_upload(VLLM.replace(b'"total_output_tokens": 128', b'"total_output_tokens": -' + b"9" * digits))
    assert in_place.runs[0].value("ttft_s") == pytest.approx(TTFT)


def test_overflowing_floats_are_missing() -> None:
    run = parse_upload(VLLM.replace(b"215.53594200008774", b"1e999")).runs[0]
    assert run.value("ttft_s", "mean") is None
    assert "non-finite" in checks(run)


# --- where the JSON is ---------------------------------------------------------------------------------------------


def test_lines_before_the_json_are_skipped_and_counted() -> None:
    found = parse_upload(b"INFO starting\n[1,0]<stdout> hello\n\n" + VLLM)
    assert found.runs[0].value("ttft_s") == pytest.approx(TTFT)
    assert "2 lines before the JSON were skipped" in found.findings[0].message


def test_a_cut_last_line_is_said_and_the_others_are_read() -> None:
    content = data("vllm-bench-serve/3.json")
    found = parse_upload(content[:-100])
    assert len(found.runs) == 11
    assert "cut-off" in checks(found)
    assert str(len(content) - 100) in found.findings[0].message


def test_a_broken_line_in_the_middle_costs_only_itself() -> None:
    lines = data("vllm-bench-serve/3.json").strip().split(b"\n")
    lines[4] = lines[4][:200]
    found = parse_upload(b"\n".join(lines))
    assert len(found.runs) == 11
    assert "line 5" in next(f for f in found.findings if f.check == "damaged-lines").message
    assert found.runs[4].metrics[0].pointer == "line 6: /completed"


def test_log_lines_between_results_are_passed_over() -> None:
    lines = data("vllm-bench-serve/3.json").strip().split(b"\n")
    found = parse_upload(b"\nsome progress 50%\n".join(lines))
    assert len(found.runs) == 12


def test_separators_that_python_counts_as_line_ends_do_not_split_a_line() -> None:
    text = data("vllm-bench-serve/1.json").decode().strip().replace('"vllm"', '"v\u2028l\u0085m"', 1)
    assert len(parse_upload(f"{text}\n{text}\n".encode()).runs) == 2


def test_many_false_starts_are_given_up() -> None:
    hostile = b"[1,\n" * 90 + b"1," * 1_000_000
    assert refused(hostile).reason in ("cut-off", "damaged", "not-recognised")
    assert refused(b'{"a": 1\n' * 200_000).reason in ("cut-off", "damaged", "not-recognised")


# --- text that can be shown ----------------------------------------------------------------------------------------


def test_clean_removes_what_cannot_be_stored_or_shown() -> None:
    assert clean("a\x00b\x1b[0m\u202ec\ud800") == "a\ufffdb\ufffd[0m\ufffdc\ufffd"
    assert clean("<b>&amp;</b>") == "<b>&amp;</b>"
    assert len(clean("x" * 10_000, 50)) == 50
    assert clean("x" * 10_000, 50).endswith("…")


def test_pointers_are_escaped() -> None:
    assert pointer("/3", "a/b~c", 0) == "/3/a~1b~0c/0"


# --- speed ---------------------------------------------------------------------------------------------------------


def test_twenty_megabytes_of_details_are_read_in_bounded_memory() -> None:
    gaps = [[round(0.01 + (i * 37 + j * 11) % 1000 * 1.0000001e-6, 18) for j in range(500)] for i in range(2300)]
    fields = json.loads(VLLM) | {
        "itls": gaps,
        "ttfts": [0.2] * 2300,
        "output_lens": [501] * 2300,
        "errors": [""] * 2300,
    }
    content = json.dumps(fields).encode()
    del gaps, fields
    assert 18_000_000 < len(content) < 25_000_000
    run = parse_upload(content).runs[0]
    assert run.samples == {"output_tokens": (501.0,) * 2300}
    tracemalloc.start()
    try:
        Content(content).json  # noqa: B018 - the parsed tree is the largest thing an import holds
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(content)
