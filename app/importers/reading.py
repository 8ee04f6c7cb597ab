"""Bytes of an upload to text and JSON. The content is hostile: sizes, depth and counts are bounded before they cost.

Non-finite numbers (NaN, Infinity, 1e999, integers of thousands of digits) arrive here as non-finite floats; the
record readers turn them into missing values with a note. Nothing here knows a format.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from app.domain.run import Finding
from app.importers.base import UnreadableUpload

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one upload, each on the size as sent and on the unpacked size.

    `max_bytes` is for formats that are held in memory, `max_stream_bytes` for those that are read piece by piece.
    `max_items` counts JSON values of all kinds, which bounds the memory of the parsed tree; `max_members` counts the
    files of an archive, whose unpacked sizes together are bounded by `max_stream_bytes`.
    """

    max_bytes: int = 64 * _MIB
    max_stream_bytes: int = 2048 * _MIB
    max_depth: int = 64
    max_runs: int = 10_000
    max_items: int = 4_000_000
    max_text: int = 500
    max_members: int = 200


DEFAULT_LIMITS = Limits()

MAX_LINE = 64 * 1024
"""Characters of a line that are handed out at once; log lines have hundreds."""

_MAX_FAILED_STARTS = 100
"""A text of many broken JSON starts is not JSON; without a bound the search for a good one would be quadratic."""

_BINARY_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive", "Unpack it and upload the text file inside."),
    (
        b"SQLite format 3\x00",
        "an SQLite database",
        "Nsight Systems exports are read as text: run `nsys stats --format csv` and upload that.",
    ),
    (b"PAR1", "a Parquet file", "Export it as CSV or JSON lines."),
    (b"NVR\x00", "an Nsight Compute report", "Export it with `ncu --import FILE --csv --page raw`."),
    (b"QDSTRM", "an Nsight Systems recording", "Run `nsys stats --format csv` on it and upload that."),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data", "Unpack it first (gzip is unpacked here, zstd is not)."),
    (b"BZh", "bzip2-compressed data", "Unpack it first (gzip is unpacked here, bzip2 is not)."),
    (b"\xfd7zXZ\x00", "xz-compressed data", "Unpack it first (gzip is unpacked here, xz is not)."),
    (b"GGUF", "a GGUF model file", "Upload the result that the benchmark wrote, not the model."),
    (b"\x89HDF", "an HDF5 file", "Export the numbers as JSON or CSV."),
    (b"\x89PNG", "a PNG picture", "Upload the numbers as the tool wrote them, not a picture of them."),
    (b"\xff\xd8\xff", "a JPEG picture", "Upload the numbers as the tool wrote them, not a picture of them."),
    (b"%PDF", "a PDF document", "Upload the numbers as the tool wrote them."),
    (b"\x7fELF", "a program", "Upload the text that the benchmark printed."),
)

_BINARY_NAMES: tuple[tuple[str, str, str], ...] = (
    (".nsys-rep", "an Nsight Systems report", "Run `nsys stats --format csv` on it and upload that."),
    (".qdrep", "an Nsight Systems report", "Run `nsys stats --format csv` on it and upload that."),
    (".ncu-rep", "an Nsight Compute report", "Export it with `ncu --import FILE --csv --page raw`."),
    (".pb", "a protocol-buffer file", "Export the profile as a Chrome trace in JSON."),
    (".pt", "a PyTorch file", "Upload the text or JSON that the benchmark wrote."),
    (".safetensors", "a model file", "Upload the result that the benchmark wrote, not the model."),
)

_GENERIC_BINARY_HINT = "Upload the text, JSON or CSV that the tool wrote, not a binary report."


# --- bytes, packed or not ------------------------------------------------------------------------------------------

_GZIP = b"\x1f\x8b"
_MAX_GZIP_MEMBERS = 1000
"""Each member costs a fresh decompressor, so a file of thousands of empty members is refused."""

_PREVIEW_BYTES = _MIB
_PIECE = 256 * 1024

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are done. It stops the work by raising UploadCancelled."""


class _Stored(io.RawIOBase):
    """The bytes as they were sent; says how far they have been read."""

    def __init__(self, raw: BinaryIO, moved: Callable[[int], None]) -> None:
        super().__init__()
        self._raw = raw
        self._moved = moved
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = self._raw.read(len(buffer))
        buffer[: len(piece)] = piece
        self._done += len(piece)
        self._moved(self._done)
        return len(piece)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Inflated(io.RawIOBase):
    """Gzip members, unpacked one after another. Raises UnreadableUpload where they are damaged, cut off or too long."""

    def __init__(self, packed: io.RawIOBase, limits: Limits) -> None:
        super().__init__()
        self._packed = packed
        self._limits = limits
        self._unzip = zlib.decompressobj(wbits=31)
        self._rest = b""
        self._members = 1
        self._given = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ended:
            if self._unzip.eof and not self._next_member():
                break
            piece = self._unpacked(len(buffer))
            if piece:
                if self._given == 0 and piece.startswith(_GZIP):
                    raise UnreadableUpload("binary", "This is gzip inside gzip.", hint="Unpack the outer layer first.")
                self._given += len(piece)
                check_size(self._given, self._limits.max_stream_bytes, "The unpacked file")
                buffer[: len(piece)] = piece
                return len(piece)
        return 0

    def _unpacked(self, most: int) -> bytes:
        if not self._rest:
            self._rest = self._packed.read(_PIECE) or b""
        at_end = not self._rest
        try:
            piece = self._unzip.decompress(self._rest, most)
        except zlib.error as err:
            raise UnreadableUpload(
                "damaged", "The gzip data is damaged.", hint="Compress the file again, or upload it unpacked."
            ) from err
        self._rest = self._unzip.unused_data if self._unzip.eof else self._unzip.unconsumed_tail
        if at_end and not piece and not self._unzip.eof:
            raise UnreadableUpload(
                "cut-off", "The gzip data ends too early.", hint="The upload or the copy was interrupted; try again."
            )
        return piece

    def _next_member(self) -> bool:
        """Begin the member that follows; zeros may stand between, anything else ends the file."""
        while True:
            self._rest = self._rest.lstrip(b"\x00")
            if len(self._rest) > 1:
                break
            more = self._packed.read(_PIECE) or b""
            if not more:
                break
            self._rest += more
        if not self._rest.startswith(_GZIP):
            self._ended = True
            return False
        self._members += 1
        if self._members > _MAX_GZIP_MEMBERS:
            raise UnreadableUpload("binary", "The gzip file has too many parts.", hint="Upload it unpacked.")
        self._unzip = zlib.decompressobj(wbits=31)
        return True

    def close(self) -> None:
        self._packed.close()
        super().close()


def check_size(size: int, most: int, what: str) -> None:
    """Raises UnreadableUpload when `size` bytes are above `most`."""
    if size > most:
        raise UnreadableUpload(
            "too-large",
            f"{what} is larger than {most / _MIB:,.6g} MiB.",
            hint="Leave out per-request details, or upload the summary that the tool writes.",
        )


# --- bytes to text -------------------------------------------------------------------------------------------------


def decode(data: bytes, filename: str | None) -> tuple[str, int]:
    """Text of the bytes and the number of characters that were not valid UTF-8 (each became U+FFFD).

    Raises UnreadableUpload for binary content, with what to export instead.
    """
    if not data.strip():
        raise UnreadableUpload("empty", "The file is empty.", hint="Check that the benchmark ran to its end.")
    for magic, what, hint in _BINARY_KINDS:
        if data.startswith(magic):
            raise UnreadableUpload("binary", f"This is {what}.", hint=hint)
    if data[257:262] == b"ustar":
        raise UnreadableUpload("binary", "This is a tar archive.", hint="Unpack it and upload the file inside.")
    encoding = _encoding_of(data)
    if encoding != "utf-8":
        return _decode_wide(data, encoding)
    if b"\x00" in data:
        if b"\x00" not in data[0:64:2] and data[1:64:2].count(0) > len(data[1:64:2]) / 2:
            raise UnreadableUpload(
                "binary", "This looks like UTF-16 text without its mark.", hint="Save it as UTF-8 and try again."
            )
        _refuse_binary(filename)
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
        wrong = 0
    except UnicodeDecodeError:
        text = data.decode("utf-8", errors="replace")
        wrong = text.count("\ufffd")
    if wrong > 20 and wrong > len(text) / 50:
        _refuse_binary(filename)
    if not text.strip():
        raise UnreadableUpload(
            "empty", "The file holds nothing but blanks.", hint="Check that the benchmark ran to its end."
        )
    return text, wrong


def _encoding_of(data: bytes) -> str:
    """What the byte-order mark says; UTF-8 without one."""
    if data.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "utf-32"
    return "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"


def _decode_wide(data: bytes, encoding: str) -> tuple[str, int]:
    text = data.decode(encoding, errors="replace")
    wrong = text.count("\ufffd")
    if "\x00" in text or wrong > max(4, len(text) / 50):
        _refuse_binary(None)
    if not text.strip():
        raise UnreadableUpload("empty", "The file is empty.", hint="Check that the benchmark ran to its end.")
    return text, wrong


def _refuse_binary(filename: str | None) -> NoReturn:
    lowered = (filename or "").lower()
    for ending, what, hint in _BINARY_NAMES:
        if lowered.endswith(ending):
            raise UnreadableUpload("binary", f"This is {what}.", hint=hint)
    raise UnreadableUpload("binary", "The file is binary, not text.", hint=_GENERIC_BINARY_HINT)


# --- text to JSON --------------------------------------------------------------------------------------------------


class _DuplicateKey(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON value of interest and where it stands: "" , "/3" or "line 7: "."""

    prefix: str
    value: Any


@dataclass(slots=True)
class JsonDocument:
    """What the text holds as JSON.

    `values` are the top-level values in order with the line each starts on; one value is a plain JSON file, several are
    JSON lines or objects written one after another. `cut_at` is the byte at which the last value breaks off.
    """

    values: list[tuple[int, Any]] = field(default_factory=list)
    skipped_lines: int = 0
    noise_lines: int = 0
    damaged_lines: list[int] = field(default_factory=list)
    cut_at: int | None = None
    error: str = ""

    @property
    def is_lines(self) -> bool:
        return len(self.values) > 1

    def records(self) -> Iterator[Record]:
        """Top-level objects, and the items of top-level lists, one after another."""
        for line, value in self.values:
            prefix = f"line {line}: " if self.is_lines else ""
            if isinstance(value, list):
                for index, item in enumerate(value):
                    yield Record(f"{prefix}/{index}", item)
            else:
                yield Record(prefix, value)

    def findings(self) -> tuple[Finding, ...]:
        """What a reader should know about how the JSON was found."""
        out: list[Finding] = []
        if self.cut_at is not None:
            out.append(
                Finding(
                    "cut-off",
                    "warning",
                    f"The file breaks off at byte {self.cut_at}; everything before the break was read.",
                )
            )
        if self.damaged_lines:
            shown = ", ".join(str(n) for n in self.damaged_lines[:10])
            out.append(
                Finding(
                    "damaged-lines",
                    "warning",
                    f"{_plural(len(self.damaged_lines), 'line')} could not be read as JSON (line {shown}); "
                    "the others were.",
                )
            )
        if self.skipped_lines:
            out.append(
                Finding(
                    "skipped-lines",
                    "info",
                    f"{_plural(self.skipped_lines, 'line')} before the JSON "
                    f"{'was' if self.skipped_lines == 1 else 'were'} skipped.",
                )
            )
        return tuple(out)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen and not _same(seen[key], value):
                raise _DuplicateKey(key)
            seen[key] = value
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b) or (a != a and b != b)


def _long_int(digits: str) -> int | float:
    """Integers beyond any count become floats (infinite ones later read as missing); Python caps digits as well."""
    return int(digits) if len(digits) < 400 else float(digits)


# `strict` stays on: raw control characters in a string are a sign of damage, and failed attempts end at the line.
_decoder = json.JSONDecoder(object_pairs_hook=_object)
_decoder_long_ints = json.JSONDecoder(object_pairs_hook=_object, parse_int=_long_int)

_BLANK = re.compile(r"[ \t\r\n]*")
# The last alternative takes an unclosed string to the end, so that no position is scanned twice.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


class JsonReader:
    """Finds the JSON values of a text: one value, one a line, one after another, or after lines of a log."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._failed = 0
        self._wasted = 0

    def read(self) -> JsonDocument:
        """Raises UnreadableUpload for too deep, too many values or conflicting duplicate keys."""
        text, document = self._text, JsonDocument()
        self._check_items()
        pos = self._skip_blank(0)
        line, counted_to = 1, 0
        broken: list[tuple[int, int, json.JSONDecodeError]] = []
        while pos < len(text) and self._failed < _MAX_FAILED_STARTS and self._wasted < 2 * len(text) + _MIB:
            line += text.count("\n", counted_to, pos)
            counted_to = pos
            if text[pos] not in "{[":
                self._count_noise(document)
                pos = self._next_line(pos)
                continue
            try:
                value, end = self._decode_at(pos)
            except json.JSONDecodeError as err:
                if text[pos] == "[" and (items := self._whole_items(pos)):
                    document.values.append((line, items))
                    document.cut_at = self._byte_offset(len(text) if self._at_end(err) else err.pos)
                    document.error = err.msg
                    break
                self._failed += 1
                self._wasted += max(0, err.pos - pos)
                broken.append((pos, line, err))
                pos = self._next_line(pos)
                continue
            if _interesting(value):
                self._check_depth(value)
                document.values.append((line, value))
                if len(document.values) > self._limits.max_runs:
                    self._too_many_values()
            else:
                self._count_noise(document)
            pos = self._after_value(end)
        self._note_broken(document, broken)
        return document

    def _count_noise(self, document: JsonDocument) -> None:
        if document.values:
            document.noise_lines += 1
        else:
            document.skipped_lines += 1

    def _note_broken(self, document: JsonDocument, broken: list[tuple[int, int, json.JSONDecodeError]]) -> None:
        if not broken:
            return
        # A text that begins as JSON and never parses is judged by its first fault, not by what was tried after it.
        position, _, err = broken[-1] if document.values else broken[0]
        document.error = document.error or err.msg
        if self._at_end(err) and document.cut_at is None:
            document.cut_at = self._byte_offset(len(self._text.rstrip()))
            broken = [b for b in broken if b[0] < position]
        if document.values:
            document.damaged_lines = [line for _, line, _ in broken]

    def _at_end(self, err: json.JSONDecodeError) -> bool:
        """Whether the fault is that the text ended, rather than something wrong inside it."""
        if err.msg.startswith("Unterminated string"):
            return "\n" not in self._text[err.pos :].strip()
        # A half-written literal or escape (`tru`, `\\u12`, `-`) is reported where it starts.
        return len(self._text) - err.pos <= 12 or not self._text[err.pos :].strip()

    def _decode_at(self, pos: int) -> tuple[Any, int]:
        try:
            try:
                return _decoder.raw_decode(self._text, pos)
            except json.JSONDecodeError:
                raise
            except ValueError:  # an integer of more digits than Python converts
                return _decoder_long_ints.raw_decode(self._text, pos)
        except RecursionError:
            self._too_deep()
        except _DuplicateKey as err:
            line = self._text.count("\n", 0, pos) + 1
            raise UnreadableUpload(
                "duplicate-key",
                f"The key {shown(err.key)} stands twice in one object with different values "
                f"(in the JSON value that starts on line {line}).",
                hint="Remove one of the two: it cannot be known which is meant.",
            ) from None

    def _whole_items(self, pos: int) -> list[Any]:
        """The complete items of a list that is never closed, as an interrupted writer leaves it."""
        items: list[Any] = []
        pos = self._skip_blank(pos + 1)
        while pos < len(self._text) and self._text[pos] in "{[":
            try:
                item, end = self._decode_at(pos)
            except json.JSONDecodeError:
                break
            self._check_depth(item)
            items.append(item)
            end = self._skip_blank(end)
            if not self._text.startswith(",", end):
                break
            pos = self._skip_blank(end + 1)
        return items if _interesting(items) else []

    def _after_value(self, end: int) -> int:
        """Where to look for the next value: right after this one, or on the next line when other text follows it."""
        pos = self._skip_blank(end)
        if pos < len(self._text) and self._text[pos] not in "{[" and "\n" not in self._text[end:pos]:
            return self._next_line(pos)
        return pos

    def _skip_blank(self, pos: int) -> int:
        match = _BLANK.match(self._text, pos)
        return match.end() if match else pos

    def _next_line(self, pos: int) -> int:
        newline = self._text.find("\n", pos)
        return len(self._text) if newline < 0 else self._skip_blank(newline + 1)

    def _byte_offset(self, pos: int) -> int:
        return len(self._text[:pos].encode("utf-8", errors="replace"))

    def _check_items(self) -> None:
        text, most = self._text, self._limits.max_items
        if _separators(text) <= most:
            return
        # Commas and brackets inside strings (generated texts) are not values: count again without them.
        if _separators(_STRING.sub("", text)) > most:
            raise UnreadableUpload(
                "too-large",
                f"The file holds more than {most} values.",
                hint="Leave out per-request details, or upload the summary that the tool writes.",
            )

    def _check_depth(self, value: Any) -> None:
        level: list[Any] = [value]
        for _ in range(self._limits.max_depth):
            inner: list[Any] = []
            for container in level:
                children = container.values() if isinstance(container, dict) else container
                inner.extend(child for child in children if isinstance(child, (dict, list)))
            if not inner:
                return
            level = inner
        self._too_deep()

    def _too_deep(self) -> NoReturn:
        raise UnreadableUpload(
            "too-deep",
            f"The JSON is nested more than {self._limits.max_depth} levels deep.",
            hint="No benchmark format needs that; upload the file as the tool wrote it.",
        ) from None

    def _too_many_values(self) -> NoReturn:
        raise UnreadableUpload(
            "too-large",
            f"The file holds more than {self._limits.max_runs} results.",
            hint="Split it into several files.",
        )


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _interesting(value: Any) -> bool:
    """Objects and lists with objects in them; a log line such as `[1,0]` is valid JSON too and is not meant."""
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


# --- text from the file, made fit to show --------------------------------------------------------------------------

_UNSHOWABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean(text: str, limit: int = DEFAULT_LIMITS.max_text) -> str:
    """Text that can be stored and shown: no control or direction characters, no lone surrogates, bounded length.

    HTML is left as it is; escaping belongs to the page.
    """
    text = text[: 4 * limit]
    text = _SURROGATE.sub("\ufffd", _UNSHOWABLE.sub("\ufffd", text)).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown(text: str, limit: int = 80) -> str:
    """A name from the file, quoted for a message."""
    return f"“{clean(text, limit)}”"


def pointer(prefix: str, *keys: str | int) -> str:
    """JSON pointer (RFC 6901) below `prefix`."""
    return prefix + "".join("/" + clean(str(key), 120).replace("~", "~0").replace("/", "~1") for key in keys)


# --- one upload ----------------------------------------------------------------------------------------------------


class Content:
    """An upload as the importers see it, on a file on disk or on bytes: a stream, text and JSON, made when asked for.

    Formats that fit in memory use `data`, `text`, `lines` and `json`, which refuse what is above `Limits.max_bytes`.
    Those that are read piece by piece (`streams = True`) use `open()` in `parse`, and in `sniff` only `head`.
    """

    def __init__(
        self,
        source: bytes | Path,
        filename: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        progress: Progress | None = None,
    ) -> None:
        self.filename = filename
        self.limits = limits
        self.size = source.stat().st_size if isinstance(source, Path) else len(source)
        """Bytes as sent, packed where they are."""
        self._source = source
        self._progress = progress
        self._done = 0
        self.ends_open = False
        """Whether the last line that `each_line` gave had no line end: a copy may have been cut in its midst."""
        self.cut_line: int | None = None
        """Number of a last line that breaks off and was therefore not read, once the text was read."""
        self.cut_cell: int | None = None
        """Like `cut_line`, where of a table's last line only the last cell was not read."""
        self.open_line: int | None = None
        """Number of a table's last line that ends in a number without a line end, once the text was read."""
        check_size(self.size, limits.max_stream_bytes, "The file")
        with self._stored() as stored:
            self.was_gzip = stored.read(2) == _GZIP

    def _stored(self) -> BinaryIO:
        return self._source.open("rb") if isinstance(self._source, Path) else io.BytesIO(self._source)

    def open(self) -> io.BufferedReader:
        """The unpacked bytes as a new stream, to be closed by the caller.

        Reading reports progress, and raises UnreadableUpload where gzip data is damaged, ends early or unpacks to more
        than `Limits.max_stream_bytes`, and UploadCancelled where the work is no longer wanted.
        """
        stored: io.RawIOBase = _Stored(self._stored(), self.checkpoint)
        return io.BufferedReader(_Inflated(stored, self.limits) if self.was_gzip else stored, _PIECE)

    def open_text(self) -> BinaryIO:
        """As `open`, the text always in UTF-8 without a byte-order mark. Bytes that are no text raise UnicodeError."""
        stream = self.open()
        start = stream.peek(4)[:4]
        if (encoding := _encoding_of(start)) != "utf-8":
            return cast("BinaryIO", codecs.EncodedFile(stream, "utf-8", encoding))
        if start.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        return cast("BinaryIO", stream)

    def checkpoint(self, bytes_done: int | None = None) -> None:
        """Report progress, and raise UploadCancelled where the work is no longer wanted.

        Streams of `open()` call this while they are read; an importer calls it in long loops that read nothing.
        `bytes_done` counts bytes as sent (of `size`); left out, it is as far as was read.
        """
        if bytes_done is not None:
            self._done = min(max(self._done, bytes_done), self.size)
        if self._progress is not None:
            self._progress(self._done, self.size)

    @cached_property
    def _whole(self) -> bytes | None:
        """All unpacked bytes, or None where they are more than the limit for text."""
        most = self.limits.max_bytes
        if self.size > most:
            return None
        if isinstance(self._source, bytes) and not self.was_gzip:
            return self._source
        pieces: list[bytes] = []
        total = 0
        with self.open() as stream:
            while piece := stream.read(_MIB):
                total += len(piece)
                if total > most:
                    return None
                pieces.append(piece)
        return b"".join(pieces)

    @property
    def is_large(self) -> bool:
        """Whether the content is above the limit for text, so that only a format that streams can be read."""
        return self._whole is None

    @property
    def data(self) -> bytes:
        """All unpacked bytes. Raises UnreadableUpload above the limit for text."""
        if self._whole is None:
            check_size(self.limits.max_bytes + 1, self.limits.max_bytes, "The file" + " unpacked" * self.was_gzip)
        return self._whole or b""

    @cached_property
    def preview(self) -> Content:
        """The beginning as content of its own: at most 1 MiB, cut between characters. It is enough to judge by."""
        start, whole = b"", False
        with self.open() as stream:
            try:
                while len(start) < _PREVIEW_BYTES and not whole:
                    piece = stream.read1(_PREVIEW_BYTES - len(start))
                    start, whole = start + piece, not piece
                whole = whole or not stream.read(1)
            except UnreadableUpload as error:
                if error.reason != "cut-off" or not start:
                    raise  # of gzip data that ends early the beginning still tells the format
        if whole:
            return Content(start, self.filename, self.limits)
        decoder = codecs.getincrementaldecoder(_encoding_of(start))(errors="replace")
        decoder.decode(start)
        half_character = len(decoder.getstate()[0])
        # A count that is too high for a file says nothing of its beginning.
        limits = replace(self.limits, max_runs=_PREVIEW_BYTES, max_items=_PREVIEW_BYTES)
        return Content(start[: len(start) - half_character], self.filename, limits)

    @cached_property
    def _decoded(self) -> tuple[str, int]:
        return decode(self.data, self.filename)

    @property
    def text(self) -> str:
        """Raises UnreadableUpload when the bytes are empty or no text."""
        return self._decoded[0]

    @cached_property
    def head(self) -> str:
        """The first 64 K characters: enough to recognise a format by. Reads no more than the beginning."""
        return self.preview.text[: 64 * 1024]

    @cached_property
    def lines(self) -> list[str]:
        return self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def each_line(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1, read from the stream: a log of any size takes the memory of a line.

        A lone carriage return (progress bars) parts a line without counting one. A line longer than MAX_LINE comes in
        pieces. Characters that are not valid become U+FFFD.
        """
        with self.open() as stream:
            encoding = _encoding_of(stream.peek(4)[:4])
            text = io.TextIOWrapper(
                stream, "utf-8-sig" if encoding == "utf-8" else encoding, errors="replace", newline="\n"
            )
            number = 1
            self.ends_open = False
            while line := text.readline(MAX_LINE):
                whole = line.endswith("\n")
                self.ends_open = not whole
                line = line.rstrip("\r\n") if whole else line
                if "\r" in line:
                    yield from ((number, part) for part in line.split("\r") if part)
                else:
                    yield number, line
                number += whole

    @cached_property
    def json(self) -> JsonDocument:
        """The JSON in the text; without any, `values` is empty and `error` says why."""
        return JsonReader(self.text, self.limits).read()

    @cached_property
    def first_record(self) -> dict[str, Any] | None:
        """The first object of the JSON: the file itself, the first item of a list, or the first line."""
        return self.first_records[0] if self.first_records else None

    @cached_property
    def first_records(self) -> list[dict[str, Any]]:
        """The first few objects: a log may hold other ones before the results."""
        objects = (r.value for r in self.json.records() if isinstance(r.value, dict))
        return list(islice(objects, 20))

    @property
    def starts_as_json(self) -> bool:
        return self.text.lstrip()[:1] in ("{", "[")

    def findings(self) -> tuple[Finding, ...]:
        """Notes on how the text was read, whatever its format."""
        wrong = self._decoded[1]
        if not wrong:
            return ()
        return (
            Finding(
                "encoding",
                "info",
                f"{_plural(wrong, 'character')} not valid in UTF-8; shown as \ufffd.",
            ),
        )
