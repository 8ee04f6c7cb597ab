"""Files of a request: a form with one or several files, or the file itself as the body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from starlette.datastructures import UploadFile

from app.domain.errors import InvalidInput
from app.storage.records import StoredUpload

MAX_FILES = 50
MAX_FIELDS = 20
MAX_FIELD = 20_000
FIELDS = ("hardware", "model", "workload", "name", "baseline")


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """The files in the order sent, and the text fields beside them as `upload_file` takes them."""

    files: tuple[ReceivedFile, ...]
    fields: Mapping[str, Any]


async def received(request: Request) -> Received:
    """Read a POST of files. Fields of a form go before those of the address.

    A body of any other type than multipart/form-data is the file itself, whatever its type says: curl calls everything
    a URL-encoded form. Raises InvalidInput where there is no file, HTTPException where the form cannot be read.
    """
    texts: dict[str, str] = {}
    tags = [text for text in request.query_params.getlist("tags") if text]
    for name in FIELDS:
        if value := request.query_params.get(name):
            texts[name] = value
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        name = request.query_params.get("filename", "").strip() or "upload"
        data = await request.body()
        return _checked(Received((ReceivedFile(name, data),), {**texts, "tags": tags}))
    form = await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS)
    try:
        files = []
        for item in form.getlist("file"):
            if isinstance(item, UploadFile):
                # browsers send an empty nameless part for a file field that was left empty
                if item.filename or item.size:
                    files.append(ReceivedFile(item.filename or "upload", await item.read()))
            elif item:
                files.append(ReceivedFile("upload", item.encode()))
        form_tags = [text for text in form.getlist("tags") if isinstance(text, str) and text.strip()]
        for name in FIELDS:
            given = form.get(name)
            if isinstance(given, str) and given.strip():
                texts[name] = given
    finally:
        await form.close()
    if not files:
        raise InvalidInput(("file",), "no file came with the form: send one or several in the field `file`")
    return _checked(Received(tuple(files), {**texts, "tags": form_tags or tags}))


def _checked(found: Received) -> Received:
    for name, value in found.fields.items():
        for text in value if isinstance(value, list) else [value]:
            if len(text) > MAX_FIELD:
                raise InvalidInput((name,), f"must have at most {MAX_FIELD:,} characters")
    return found


def attachment(upload: StoredUpload, data: bytes) -> Response:
    """An uploaded file, byte for byte, in a way that no browser runs or shows it as a page of this site."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\;%' else "_" for c in upload.file_name)
    encoded = quote(upload.file_name.encode("utf-8", "replace"), safe="")
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "ETag": f'"{upload.sha256}"',
        },
    )
