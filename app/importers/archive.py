"""Zip archives: every file inside is read as if it had been sent alone. Names inside are shown, never used as paths.

What an archive may cost is bounded before anything is unpacked (members, total size, ratio) and again while reading,
since its directory may lie. There is no archive inside an archive.
"""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

from app.domain.run import ParsedRun
from app.importers.base import Member, ParsedUpload, UnreadableUpload
from app.importers.reading import DEFAULT_LIMITS, Content, Limits, Progress, check_size, clean
from app.importers.registry import NO_TABLES, Tables, accepted_formats, parse_content
from app.importers.table import UnmappedTable

FORMAT = "zip"
ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"

_MAX_RATIO = 300
"""Repetitive JSON packs to a twentieth at best; a member that unpacks to hundreds of times its size is an attack."""

_RATIO_FROM = 2**20
_IN_MEMORY = 8 * 2**20
_PIECE = 2**20


def is_zip(source: bytes | Path) -> bool:
    """Whether the content begins as a zip archive does."""
    if isinstance(source, bytes):
        start = source[:4]
    else:
        with source.open("rb") as file:
            start = file.read(4)
    return start in (ZIP, _EMPTY_ZIP)


def unpacked_size(source: Path) -> int:
    """What the archive's directory says that all members take; 0 where it cannot be read."""
    try:
        with zipfile.ZipFile(source) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return 0


def parse_zip(
    source: Path,
    filename: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    tables: Tables = NO_TABLES,
) -> ParsedUpload:
    """Read every member. Raises UnreadableUpload where none can be read, naming each with its reason."""
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UnreadableUpload(
            "damaged", "The zip archive is damaged or cut off.", hint="Pack the files again, or upload them unpacked."
        ) from error
    with archive:
        infos = _members(archive, limits)
        members: list[Member] = []
        runs: list[ParsedRun] = []
        for number, info in enumerate(infos):
            name = _shown_name(info.filename, number)
            within = _part_of(progress, sum(i.compress_size for i in infos[:number]), info, source.stat().st_size)
            try:
                parsed = _read(archive, info, name, source.parent, limits, within, tables)
            except UnmappedTable as table:
                hint = "Upload it by itself once to say what its columns mean; then send the archive again."
                members.append(Member(name, reason=table.reason, seen=table.seen, hint=hint))
                continue
            except UnreadableUpload as refusal:
                members.append(Member(name, reason=refusal.reason, seen=refusal.seen, hint=refusal.hint))
                continue
            if len(runs) + len(parsed.runs) > limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The files of the archive hold more than {limits.max_runs} results.",
                    hint="Split it into several archives.",
                )
            members.append(Member(name, parsed.format, len(runs), len(parsed.runs), findings=parsed.findings))
            runs += (_from_member(run, name) for run in parsed.runs)
    if not runs:
        raise UnreadableUpload(
            "not-recognised" if members else "empty",
            f"None of the {len(members)} files in the zip archive can be read."
            if len(members) != 1
            else "The file in the zip archive cannot be read.",
            hint="Pack result files as the tools wrote them.",
            problems=[(member.name, f"{member.seen} {member.hint}".strip()) for member in members],
            accepts=accepted_formats(),
        )
    return ParsedUpload(FORMAT, tuple(runs), (), tuple(members))


def _members(archive: zipfile.ZipFile, limits: Limits) -> list[zipfile.ZipInfo]:
    """The files worth reading, in the archive's order."""
    names = archive.namelist()
    for test, what, hint in _OTHER_ZIPS:
        if any(test(name) for name in names[:50]):
            raise UnreadableUpload("binary", f"This is {what}.", hint=hint)
    infos = [info for info in archive.infolist() if not info.is_dir() and not _is_litter(info.filename)]
    if len(infos) > limits.max_members:
        raise UnreadableUpload(
            "too-large",
            f"The zip archive holds {len(infos):,} files; at most {limits.max_members:,} are read.",
            hint="Split it into several archives.",
        )
    check_size(sum(info.file_size for info in infos), limits.max_stream_bytes, "The unpacked archive")
    if not infos:
        raise UnreadableUpload("empty", "The zip archive is empty.", hint="Pack the result files anew.")
    return infos


_OTHER_ZIPS: tuple[tuple[Callable[[str], bool], str, str], ...] = (
    (lambda name: name == "[Content_Types].xml", "an Excel or Word document", "Save the table as CSV."),
    (lambda name: name.endswith("/data.pkl"), "a PyTorch file", "Upload the text or JSON that the benchmark wrote."),
    (lambda name: name.endswith(".npy"), "a NumPy archive", "Export the numbers as JSON or CSV."),
    (lambda name: name == "META-INF/MANIFEST.MF", "a Java archive", "Upload the result that the benchmark wrote."),
)


def _is_litter(name: str) -> bool:
    """What systems add to archives by themselves."""
    last = name.rsplit("/", 1)[-1]
    return name.startswith("__MACOSX/") or last in (".DS_Store", "Thumbs.db", "desktop.ini")


def _shown_name(name: str, number: int) -> str:
    return clean(name.replace("\\", "/"), 200) or f"file {number + 1}"


def _read(
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    name: str,
    folder: Path,
    limits: Limits,
    progress: Progress | None,
    tables: Tables,
) -> ParsedUpload:
    if info.flag_bits & 0x1:
        raise UnreadableUpload("encrypted", "The file is encrypted.", hint="Pack it without a password.")
    if info.file_size > _RATIO_FROM and info.file_size > _MAX_RATIO * max(info.compress_size, 1):
        raise UnreadableUpload(
            "too-large",
            f"The file unpacks to more than {_MAX_RATIO} times its packed size.",
            hint="Upload it by itself, unpacked.",
        )
    # The file gets a name of ours and vanishes with the block, whatever the archive calls it.
    with tempfile.NamedTemporaryFile(dir=folder, prefix="member-", suffix=".part") as file:
        try:
            with archive.open(info) as packed:
                held = packed.read(_IN_MEMORY + 1)
                if len(held) > _IN_MEMORY:
                    _unpack(packed, held, file, limits, progress)
        except UnreadableUpload:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise UnreadableUpload("damaged", "The file is damaged in the archive.", hint="Pack it anew.") from error
        except (NotImplementedError, RuntimeError) as error:
            raise UnreadableUpload(
                "binary",
                "The file is packed in a way that is not read here.",
                hint="Pack it with deflate, the usual way.",
            ) from error
        source: bytes | Path = held if len(held) <= _IN_MEMORY else Path(file.name)
        if is_zip(source):
            raise UnreadableUpload("binary", "This is a zip archive inside the archive.", hint="Upload it by itself.")
        return parse_content(Content(source, name, limits, progress), tables)


def _unpack(packed: IO[bytes], start: bytes, file: IO[bytes], limits: Limits, progress: Progress | None) -> None:
    size, piece = 0, start
    while piece:
        size += len(piece)
        check_size(size, limits.max_stream_bytes, "The unpacked file")
        file.write(piece)
        if progress is not None:
            progress(0, 1)
        piece = packed.read(_PIECE)
    file.flush()


def _part_of(progress: Progress | None, before: int, info: zipfile.ZipInfo, whole: int) -> Progress | None:
    """Progress within one member as progress in the whole archive."""
    if progress is None:
        return None

    def told(done: int, total: int) -> None:
        progress(min(before + int(info.compress_size * done / max(total, 1)), whole), whole)

    told(0, 1)
    return told


def _from_member(run: ParsedRun, name: str) -> ParsedRun:
    """The run with every metric's place saying which file it is in."""
    metrics = tuple(replace(metric, pointer=f"{name}: {metric.pointer}") for metric in run.metrics)
    return replace(run, metrics=metrics)
