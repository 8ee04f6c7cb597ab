"""An upload on disk: read from its beginning, piece by piece, within limits, reporting progress, and stopped."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from app.importers import registry
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload, UploadCancelled
from app.importers.reading import Content, Limits
from app.importers.registry import parse_upload

from .fixture_files import data

MIB = 2**20
SMALL = Limits(max_bytes=2 * MIB, max_stream_bytes=8 * MIB)


class Pieces:
    """A format that streams: it counts the lines."""

    id = "pieces"
    title = "Pieces"
    tried_on_real_file = False
    streams = True

    def sniff(self, content: Content) -> Sniff:
        return Sniff(0.9 if content.head.startswith("PIECES") else 0.0, "begins with PIECES")

    def parse(self, content: Content) -> ParsedUpload:
        with content.open() as stream:
            self.lines = sum(1 for _ in stream)
        return ParsedUpload(self.id, ())


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    importer = Pieces()
    monkeypatch.setattr(registry, "IMPORTERS", (*registry.IMPORTERS, importer))
    return importer


def stored(tmp_path: Path, content: bytes, packed: bool = False) -> Path:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_on_disk_is_read_as_its_bytes_are(tmp_path: Path, packed: bool) -> None:
    original = data("vllm-bench-serve/1.json")
    path = stored(tmp_path, original, packed)
    content = Content(path)
    assert content.was_gzip is packed
    assert content.size == path.stat().st_size
    assert content.data == original
    with content.open() as stream:
        assert stream.read(10) + stream.read() == original
    assert parse_upload(path).runs == parse_upload(original).runs


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_file_is_streamed_and_reports_how_far_it_is(tmp_path: Path, pieces: Pieces, packed: bool) -> None:
    path = stored(tmp_path, b"PIECES\n" + b"0123456789abcde\n" * 5 * 65_536, packed)
    seen: list[tuple[int, int]] = []
    assert parse_upload(path, None, SMALL, lambda done, total: seen.append((done, total))).format == "pieces"
    assert pieces.lines == 5 * 65_536 + 1
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_recognising_a_huge_file_reads_only_its_beginning(tmp_path: Path, pieces: Pieces) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.write(b"PIECES\n" + b"x" * 2 * MIB)
        file.truncate(2**30)
    seen: list[int] = []
    content = Content(path, None, Limits(), lambda done, _total: seen.append(done))
    assert registry.detect(content) is pieces
    assert seen[-1] < 4 * MIB


def test_a_large_trace_of_one_event_a_line_is_recognised(tmp_path: Path) -> None:
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":5,"args":{"device":0,"stream":7}}'
    text = '{"traceEvents": [\n' + ",\n".join(event % (10 * n) for n in range(30_000)) + "\n]}\n"
    path = stored(tmp_path, text.encode())
    assert registry.detect(Content(path, None, Limits(max_bytes=MIB, max_runs=10))).id == "torch-profiler-trace"


def test_the_limits_for_text_and_for_streams(tmp_path: Path, pieces: Pieces) -> None:
    line = data("vllm-bench-serve/1.json").strip().replace(b"\n", b"") + b"\n"
    many = line * (3 * MIB // len(line))
    for content in (many, gzip.compress(many)):
        with pytest.raises(UnreadableUpload, match=r"larger than 2 MiB") as text:
            parse_upload(content, None, SMALL)
        assert text.value.reason == "too-large"
    for content in (b"PIECES" * 2 * MIB, gzip.compress(b"PIECES" * 2 * MIB)):
        with pytest.raises(UnreadableUpload, match=r"larger than 8 MiB") as stream:
            parse_upload(content, None, SMALL)
        assert stream.value.reason == "too-large"
    with pytest.raises(UnreadableUpload, match=r"no format that is read piece by piece"):
        parse_upload(json.dumps(["nothing of ours"] * 200_000).encode(), None, SMALL)


def test_reading_stops_when_it_is_cancelled(tmp_path: Path, pieces: Pieces) -> None:
    def progress(done: int, _total: int) -> None:
        if done > 3 * MIB:
            raise UploadCancelled

    path = stored(tmp_path, b"PIECES\n" + b"0123456789abcde\n" * 5 * 65_536)
    with pytest.raises(UploadCancelled):
        parse_upload(path, None, SMALL, progress)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_the_beginning_is_cut_between_characters(encoding: str) -> None:
    for shift in range(4):
        text = "a" * shift + "€😀" * 200_000
        start = Content(text.encode(encoding)).preview
        assert text.startswith(start.text.removeprefix("\ufeff"))
        assert not start.findings()


def test_a_refusal_comes_back_whole_from_another_process() -> None:
    with pytest.raises(UnreadableUpload) as refused:
        parse_upload(b'{"a": 1}')
    again = pickle.loads(pickle.dumps(refused.value))
    assert vars(again) == vars(refused.value)
    assert str(again) == str(refused.value)
