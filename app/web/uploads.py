"""Files of a request: a form with one or several files, or the file itself as the body.

A file goes to the spool as it arrives, piece by piece; it is never whole in memory.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse

from app.domain.errors import InvalidInput
from app.importers.base import UnreadableUpload
from app.importers.reading import check_size
from app.services.context import Context
from app.storage.records import StoredUpload
from app.storage.spool import Spooled, SpoolWriter

MAX_FILES = 200
MAX_FIELDS = 20
MAX_FIELD = 20_000
MAX_HEADERS = 16
MAX_HEADER = 8192
FIELDS = ("hardware", "model", "workload", "name", "baseline", "mapping")

_FLUSH_BYTES = 2**20


@dataclass(slots=True)
class ReceivedFile:
    """A file that arrived, or why it was not kept. `take` gives it away; what nobody takes is discarded."""

    name: str
    _spooled: Spooled | None
    _refusal: UnreadableUpload | None = None

    def take(self) -> Spooled:
        """The file, for whoever discards it in the end. Raises UnreadableUpload where it was not kept."""
        if self._spooled is None:
            assert self._refusal is not None
            raise self._refusal
        spooled, self._spooled = self._spooled, None
        return spooled

    def discard(self) -> None:
        if self._spooled is not None:
            self._spooled.discard()


@dataclass(frozen=True, slots=True)
class Received:
    """The files in the order sent, and the text fields beside them as `upload_file` takes them."""

    files: tuple[ReceivedFile, ...]
    fields: Mapping[str, Any]


@asynccontextmanager
async def received(request: Request, ctx: Context) -> AsyncIterator[Received]:
    """Read a POST of files. Fields of a form go before those of the address.

    A body of any other type than multipart/form-data is the file itself, whatever its type says: curl calls everything
    a URL-encoded form. Raises InvalidInput where there is no file, HTTPException where the form cannot be read.
    """
    texts: dict[str, str] = {}
    tags = [text for text in request.query_params.getlist("tags") if text]
    for name in FIELDS:
        if value := request.query_params.get(name):
            texts[name] = value
    arriving = _Arriving(ctx)
    try:
        content_type, options = parse_options_header(request.headers.get("content-type", ""))
        if content_type.strip().lower() != b"multipart/form-data":
            arriving.begin_file(request.query_params.get("filename", "").strip() or "upload")
            async for piece in request.stream():
                arriving.add(piece)
                await arriving.flush(_FLUSH_BYTES)
            await arriving.end_file()
            found = Received(tuple(arriving.files), {**texts, "tags": tags})
        else:
            await _read_form(request, arriving, options)
            if not arriving.files:
                raise InvalidInput(("file",), "no file came with the form: send one or several in the field `file`")
            form_tags = [text for name, text in arriving.texts if name == "tags" and text.strip()]
            texts |= {name: text for name, text in arriving.texts if name in FIELDS and text.strip()}
            found = Received(tuple(arriving.files), {**texts, "tags": form_tags or tags})
        yield _checked(found)
    except ClientDisconnect as error:
        raise HTTPException(400, "The upload was cut off: send it again.") from error
    finally:
        arriving.discard()


def _checked(found: Received) -> Received:
    for name, value in found.fields.items():
        for text in value if isinstance(value, list) else [value]:
            if len(text) > MAX_FIELD:
                raise InvalidInput((name,), f"must have at most {MAX_FIELD:,} characters")
    return found


class _Arriving:
    """Files and fields as far as they have come."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._most = ctx.settings.max_stream_bytes
        self._writer: SpoolWriter | None = None
        self._name = ""
        self._pieces: list[bytes] = []
        self._held = 0
        self._size = 0
        self.files: list[ReceivedFile] = []
        self.texts: list[tuple[str, str]] = []

    def begin_file(self, name: str) -> None:
        self._name, self._pieces, self._held, self._size = name, [], 0, 0

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._most:  # what comes beyond is counted and dropped, so that the next file is reached
            self._pieces.append(piece)
            self._held += len(piece)

    async def flush(self, from_bytes: int = 1) -> None:
        """Write what is held, in a thread: the disk may be slow."""
        if self._held >= from_bytes:
            if self._writer is None:
                self._writer = await run_in_threadpool(self._ctx.storage.spool.new)
            held, self._pieces, self._held = b"".join(self._pieces), [], 0
            await run_in_threadpool(self._writer.write, held)

    async def end_file(self) -> None:
        try:
            check_size(self._size, self._most, "The file")
        except UnreadableUpload as refusal:
            self.files.append(ReceivedFile(self._name, None, refusal))
            self._drop_writer()
            return
        await self.flush()
        if self._writer is None:
            self._writer = await run_in_threadpool(self._ctx.storage.spool.new)
        writer, self._writer = self._writer, None
        self.files.append(ReceivedFile(self._name, await run_in_threadpool(writer.finish)))

    @property
    def is_nothing(self) -> bool:
        return self._size == 0

    def discard(self) -> None:
        """Remove what arrived and was not given away."""
        self._drop_writer()
        for file in self.files:
            file.discard()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None


# ---- multipart/form-data --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    file_name: str | None = None
    is_file: bool = False
    text: bytearray = field(default_factory=bytearray)


class _Form:
    """Turns the parser's callbacks into a list of events, which the asynchronous reader then acts on."""

    def __init__(self, boundary: bytes) -> None:
        self.part = _Part()
        self.events: list[tuple[str, _Part, bytes]] = []
        self._header = bytearray()
        self._value = bytearray()
        self._counts = {"files": 0, "fields": 0}
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._grow(self._header, data[start:end]),
                "on_header_value": lambda data, start, end: self._grow(self._value, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": lambda data, start, end: self._data(data[start:end]),
                "on_part_end": lambda: self.events.append(("end", self.part, b"")),
            },
        )

    def _begin(self) -> None:
        self.part = _Part()

    def _grow(self, kept: bytearray, piece: bytes) -> None:
        if len(kept) + len(piece) > MAX_HEADER or len(self.part.headers) >= MAX_HEADERS:
            raise HTTPException(400, "A part of the form has too long headers.")
        kept += piece

    def _header_end(self) -> None:
        self.part.headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self.part.headers.get(b"content-disposition", b""))
        if b"name" not in options:
            raise HTTPException(400, "A part of the form has no name.")
        self.part.name = _text(options[b"name"])
        self.part.file_name = _text(options[b"filename"]) if b"filename" in options else None
        # A field `file` without a file name carries the content as text.
        self.part.is_file = self.part.name == "file"
        is_some_file = self.part.is_file or self.part.file_name is not None
        kind, most = ("files", MAX_FILES) if is_some_file else ("fields", MAX_FIELDS)
        self._counts[kind] += 1
        if self._counts[kind] > most:
            raise HTTPException(400, f"The form has more than {most} {kind}: send them in several requests.")
        self.events.append(("begin", self.part, b""))

    def _data(self, piece: bytes) -> None:
        if self.part.is_file:
            self.events.append(("data", self.part, piece))
        elif self.part.file_name is None:
            if len(self.part.text) + len(piece) > 4 * MAX_FIELD + 1:
                raise InvalidInput((self.part.name[:80],), f"must have at most {MAX_FIELD:,} characters")
            self.part.text += piece


async def _read_form(request: Request, arriving: _Arriving, options: Mapping[bytes, bytes]) -> None:
    boundary = options.get(b"boundary")
    if not boundary:
        raise HTTPException(400, "The form has no boundary in its Content-Type.")
    try:
        form = _Form(boundary)
        async for chunk in request.stream():
            form.parser.write(chunk)
            await _act(form, arriving)
        form.parser.finalize()
        await _act(form, arriving)
        if form.parser.state not in (MultipartState.START, MultipartState.END):
            # The parser takes a form without its end for complete, and would lose what came last.
            raise FormParserError("no closing boundary")
    except FormParserError as error:
        raise HTTPException(400, "The form cannot be read: it is damaged or cut off.") from error


async def _act(form: _Form, arriving: _Arriving) -> None:
    events, form.events = form.events, []
    for kind, part, piece in events:
        if not part.is_file:
            if kind == "end" and part.file_name is None:
                arriving.texts.append((part.name, _text(bytes(part.text))))
        elif kind == "begin":
            arriving.begin_file(part.file_name or "upload")
        elif kind == "data":
            arriving.add(piece)
            await arriving.flush(_FLUSH_BYTES)
        elif part.file_name or not arriving.is_nothing:
            # browsers send an empty nameless part for a file field that was left empty
            await arriving.end_file()


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return codecs.decode(data, "latin-1")


# ---- the way back ---------------------------------------------------------------------------------------------------


def attachment(upload: StoredUpload, file: Path) -> Response:
    """An uploaded file, byte for byte, in a way that no browser runs or shows it as a page of this site."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\;%' else "_" for c in upload.file_name)
    encoded = quote(upload.file_name.encode("utf-8", "replace"), safe="")
    return FileResponse(
        file,
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "ETag": f'"{upload.sha256}"',
        },
    )
