"""The files under static/: compressed twins where there are some, kept for ever where the address has a version."""

from __future__ import annotations

import os
import stat
from typing import Final

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOR_EVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"


class VersionedFiles(StaticFiles):
    """Static files that a browser need not ask for twice.

    Files in vendor/ carry their version in the name, others a hash in `?v=`. `FILE.gz` beside a file is its compressed
    twin and is served in its place to whoever takes gzip.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        if any(part.startswith(".") and part != "." for part in path.split(os.sep)) or path.endswith(".gz"):
            raise HTTPException(status_code=404)
        response = await self._twin(path, scope) or await super().get_response(path, scope)
        if response.status_code < 400:
            versioned = path.startswith(f"vendor{os.sep}") or b"v=" in scope.get("query_string", b"")
            response.headers["Cache-Control"] = FOR_EVER if versioned else ASK_AGAIN
        return response

    async def _twin(self, path: str, scope: Scope) -> Response | None:
        if scope["method"] != "GET" or not takes_gzip(Headers(scope=scope).get("accept-encoding", "")):
            return None
        try:
            full_path, found = await anyio.to_thread.run_sync(self.lookup_path, f"{path}.gz")
        except (OSError, ValueError):
            return None
        if found is None or not stat.S_ISREG(found.st_mode):
            return None
        # The type is guessed from the name without .gz; only the encoding has to be said.
        response = self.file_response(full_path, found, scope)
        if response.status_code == 200:
            response.headers["Content-Encoding"] = "gzip"
        # Answers that are compressed on the fly get this from that middleware.
        response.headers["Vary"] = "Accept-Encoding"
        return response


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header admits gzip (`gzip;q=0` does not)."""
    for entry in accept_encoding.lower().split(","):
        name, _, parameters = entry.partition(";")
        if name.strip() in ("gzip", "*"):
            quality = parameters.replace(" ", "").removeprefix("q=")
            return not quality or quality.strip("0.") != ""
    return False
