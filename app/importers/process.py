"""Reading a large file in a process of its own, so that everybody else's pages stay quick and its memory comes back."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.reading import Limits, Progress
from app.importers.registry import NO_TABLES, Tables
from app.importers.uploaded import read_upload

_REPORT_EVERY_S = 0.1
_LOOK_EVERY_S = 0.1


def read_in_process(
    path: Path, filename: str | None, limits: Limits, progress: Progress, tables: Tables = NO_TABLES
) -> ParsedUpload:
    """What `read_upload` gives, or raises. What `progress` raises (UploadCancelled) ends the process at once."""
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    ours, theirs = context.Pipe(duplex=False)
    reader = context.Process(
        target=_read, args=(theirs, path, filename, limits, tables), daemon=True, name="bytebound-reader"
    )
    reader.start()
    theirs.close()
    done, total = 0, path.stat().st_size
    try:
        while True:
            progress(done, total)
            if not ours.poll(_LOOK_EVERY_S):
                continue
            try:
                word, *rest = ours.recv()
            except EOFError:
                reader.join(10)
                if reader.exitcode is not None and reader.exitcode > 0:
                    # Its traceback is on standard error: a fault of ours, not of the file.
                    raise RuntimeError(f"the reader of {path.name} ended with exit code {reader.exitcode}") from None
                raise _gave_up() from None
            if word == "progress":
                done, total = rest
            elif word == "read":
                parsed: ParsedUpload = rest[0]
                return parsed
            else:
                raise rest[0]
    finally:
        ours.close()
        if reader.is_alive():
            reader.kill()
        reader.join()
        reader.close()


def _gave_up() -> UnreadableUpload:
    return UnreadableUpload(
        "too-large",
        "Reading the file needs more memory than the server has: the system ended its process.",
        hint="Record fewer steps, or upload a part of the file.",
    )


# --- in the process -----------------------------------------------------------------------------------------------


def _read(told: Connection, path: Path, filename: str | None, limits: Limits, tables: Tables) -> None:
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(10)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    last, told_all = 0.0, False

    def progress(done: int, total: int) -> None:
        nonlocal last, told_all
        now = time.monotonic()
        if now - last >= _REPORT_EVERY_S or (done >= total and not told_all):
            last, told_all = now, done >= total
            told.send(("progress", done, total))

    answer: tuple[Any, ...]
    try:
        answer = ("read", read_upload(path, filename, limits, progress, tables))
    except UnreadableUpload as refusal:
        answer = ("refused", refusal)
    except MemoryError:
        answer = ("refused", _gave_up())
    told.send(answer)
    told.close()


def _end_with_parent() -> None:
    """A server that is killed cannot end its readers; they notice by themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
