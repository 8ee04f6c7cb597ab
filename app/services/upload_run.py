"""Keep an uploaded benchmark file: read it, link its runs to what the file names, store bytes and runs together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.domain.errors import InvalidInput
from app.domain.run import Finding, ParsedRun
from app.domain.series import series_of
from app.importers.archive import is_zip, unpacked_size
from app.importers.base import ParsedUpload
from app.importers.process import read_in_process
from app.importers.reading import DEFAULT_LIMITS, Limits, clean
from app.importers.table import FORMAT as TABLE_FORMAT
from app.importers.table import Column, TableMapping, UnmappedTable
from app.importers.uploaded import read_upload
from app.services.context import Context
from app.services.contracts import WorkloadBody
from app.services.jobs import Job
from app.services.links import link_for
from app.services.references import resolve_hardware, resolve_model
from app.services.tables import mapping_of, remember, remembered
from app.storage import runs, uploads, workloads
from app.storage.errors import Busy, Conflict, NotFound
from app.storage.records import StoredRun, StoredUpload
from app.storage.spool import Spooled

MAX_RUNS = 1000
"""Runs of one file: they are stored in one transaction, and other writers wait for it."""

MAX_NAME = 200
MAX_TAGS = 20
MAX_TAG = 60


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """What an upload came to. `created` is false where these very bytes were stored already; nothing was changed then.

    `findings` are those of the file as a whole; each run carries its own.
    """

    upload: StoredUpload
    runs: tuple[StoredRun, ...]
    findings: tuple[Finding, ...]
    created: bool


@dataclass(frozen=True, slots=True)
class StatedWorkload:
    """What a person says about a run's work: the id of a saved workload, or fields of the API's workload object."""

    workload_id: str | None = None
    overrides: Mapping[str, Any] | None = None

    def fields(self, ctx: Context) -> dict[str, Any]:
        """All fields that are stated: those of the saved workload, and the given ones over them."""
        return merged_fields(ctx, self.workload_id, self.overrides or {})


@dataclass(frozen=True, slots=True)
class Stated:
    """What people say beside a file, checked."""

    file_name: str
    name: str | None
    tags: tuple[str, ...]
    hardware_id: str | None
    model_id: str | None
    workload: StatedWorkload
    baseline_id: str | None
    mapping: TableMapping | None = None
    is_example: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    """The fields as they were given, for a table that has to wait."""


def stated(
    ctx: Context,
    file_name: str,
    *,
    hardware: str | None = None,
    model: str | None = None,
    workload: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    baseline: str | None = None,
    mapping: str | Mapping[str, Any] | None = None,
    is_example: bool = False,
) -> Stated:
    """The fields of an upload, checked before its file is read.

    `hardware` and `model` are catalogue names or a team's own ids and count for every run of the file; without them
    the file's own words are matched to the catalogue and the links are marked as guesses. `workload` is an id of a
    saved workload, an object, or its JSON text; `mapping` says in the same way how a table's columns are read. Raises
    InvalidInput, or what the catalogue raises for unknown names.
    """
    return Stated(
        file_name=display_name(file_name),
        name=checked_name(name) if name is not None and name.strip() else None,
        tags=checked_tags(tags),
        hardware_id=resolve_hardware(ctx, hardware)[0].id if hardware else None,
        model_id=resolve_model(ctx, model)[0].id if model else None,
        workload=stated_workload(ctx, workload),
        baseline_id=checked_baseline(ctx, baseline) if baseline else None,
        mapping=mapping_of(mapping) if mapping else None,
        is_example=is_example,
        given={
            "hardware": hardware,
            "model": model,
            "workload": workload,
            "name": name,
            "tags": list(tags),
            "baseline": baseline,
        },
    )


def upload_file(ctx: Context, data: bytes | Path | Spooled, file_name: str, **fields: Any) -> UploadOutcome:
    """Store a file and its runs, once for the same bytes however often and by however many at a time they are sent.

    `fields` are those of `stated`. Raises UnreadableUpload, InvalidInput, or what storage raises; nothing is stored
    then. The file in `data` stays where it is, unless it is a spooled one: that is moved or discarded.
    """
    spooled = data if isinstance(data, Spooled) else ctx.storage.spool.copy(data)
    try:
        about = stated(ctx, file_name, **fields)
        return _stored_already(ctx, spooled.sha256) or _read_and_store(ctx, spooled, about)
    finally:
        spooled.discard()


def submit_file(ctx: Context, spooled: Spooled, file_name: str, **fields: Any) -> UploadOutcome | Job:
    """Like `upload_file`, but a large file is read in a process of its own: the answer is the job that does it."""
    handed_over = False
    try:
        about = stated(ctx, file_name, **fields)
        known = _stored_already(ctx, spooled.sha256)
        if known is not None:
            return known
        if not reads_slowly(ctx, spooled):
            return _read_and_store(ctx, spooled, about)

        def work(job: Job) -> None:
            outcome = _read_and_store(ctx, spooled, about, job)
            job.upload_id, job.created = outcome.upload.id, outcome.created

        job = ctx.jobs.submit(Job(about.file_name, spooled.size), work, spooled.discard)
        handed_over = True
        return job
    finally:
        if not handed_over:
            spooled.discard()


def explain_table(ctx: Context, upload_id: str, mapping: Mapping[str, Any]) -> UploadOutcome:
    """Read a table that waits by a mapping, and remember it for others with the same columns.

    Raises NotFound, Conflict where it was read already, InvalidInput or UnreadableUpload; it goes on waiting then.
    """
    with ctx.storage.read() as session:
        upload = uploads.get(session=session, upload_id=upload_id)
    if upload.waiting is None:
        raise Conflict(f"{upload.file_name!r} does not wait any more: it was read")
    about = stated(ctx, upload.file_name, **upload.waiting, mapping=mapping)
    tables = remembered(ctx, about.mapping)
    parsed = read_upload(ctx.storage.blobs.path(upload.sha256), upload.file_name, limits_of(ctx), None, tables)
    outcome = _store(ctx, upload, about, parsed)
    _remember(ctx, about.mapping, parsed)
    return outcome


def _read_and_store(ctx: Context, spooled: Spooled, about: Stated, job: Job | None = None) -> UploadOutcome:
    tables = remembered(ctx, about.mapping)
    try:
        if job is None:
            parsed = read_upload(spooled.path, about.file_name, limits_of(ctx), None, tables)
        else:
            parsed = read_in_process(spooled.path, about.file_name, limits_of(ctx), job.progress, tables)
            job.begin_storing()
    except UnmappedTable as table:
        table.upload_id = _keep_waiting(ctx, spooled, about)
        raise
    outcome = _store_patiently(ctx, spooled, about, parsed)
    _remember(ctx, about.mapping, parsed)
    return outcome


def _keep_waiting(ctx: Context, spooled: Spooled, about: Stated) -> str:
    """Keep a table until somebody says what its columns mean; the id of its upload."""
    with _moved_back(ctx, spooled), ctx.storage.write() as session:
        upload, _ = uploads.add_or_get(
            session=session,
            blobs=ctx.storage.blobs,
            data=spooled,
            file_name=about.file_name,
            format=TABLE_FORMAT,
            waiting=about.given,
        )
    return upload.id


@contextmanager
def _moved_back(ctx: Context, source: Spooled | StoredUpload) -> Iterator[None]:
    """Where the block fails, remove the file that it moved into place without rows of its own."""
    try:
        yield
    except BaseException:
        if isinstance(source, Spooled) and not source.path.exists():
            with ctx.storage.read() as session:
                uploads.remove_unused_blob(session, ctx.storage.blobs, source.sha256)
        raise


def _remember(ctx: Context, mapping: TableMapping | None, parsed: ParsedUpload) -> None:
    """A mapping given for one file serves the next ones; the columns that it leaves out are known from the file."""
    if mapping is not None and parsed.columns:
        columns = {name: mapping.columns.get(name, Column()) for name in parsed.columns}
        remember(ctx, replace(mapping, columns=columns))


def reads_slowly(ctx: Context, spooled: Spooled) -> bool:
    """Whether reading the file would take so long or so much memory that others notice."""
    most = ctx.settings.background_bytes
    with spooled.path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if is_gzip:
        return spooled.size > most / 8
    return spooled.size > most or (is_zip(spooled.path) and unpacked_size(spooled.path) > most)


def limits_of(ctx: Context) -> Limits:
    """The settings' bounds on one file."""
    return replace(
        DEFAULT_LIMITS,
        max_bytes=ctx.settings.max_text_bytes,
        max_stream_bytes=ctx.settings.max_stream_bytes,
        max_items=ctx.settings.max_json_values,
        max_members=ctx.settings.max_zip_members,
        max_runs=MAX_RUNS,
    )


def outcome_of(ctx: Context, upload_id: str, created: bool) -> UploadOutcome:
    """What an upload came to, read back. Raises NotFound where it was deleted since."""
    with ctx.storage.read() as session:
        upload = uploads.get(session=session, upload_id=upload_id)
        return UploadOutcome(upload, _runs_of(session, upload.id), upload.findings, created)


def _store_patiently(ctx: Context, spooled: Spooled, about: Stated, parsed: ParsedUpload) -> UploadOutcome:
    """Minutes of reading are not thrown away because another writer holds the database for a moment."""
    for _ in range(5):
        try:
            return _store(ctx, spooled, about, parsed)
        except Busy:
            continue
    return _store(ctx, spooled, about, parsed)


def _store(ctx: Context, source: Spooled | StoredUpload, about: Stated, parsed: ParsedUpload) -> UploadOutcome:
    """Bytes and rows together, or neither. `source` is a file that arrived, or one that waited."""
    links = [_links(ctx, run, about.hardware_id, about.model_id) for run in parsed.runs]
    named = [_run_name(about.name, parsed, run) for run in parsed.runs]
    told = about.workload.fields(ctx)
    series = [
        series_of(
            run,
            name=named[place],
            format=parsed.format_of(place),
            hardware=links[place]["hardware_id"],
            model=links[place]["model_id"],
            stated=told,
            tags=about.tags,
        ).key
        for place, run in enumerate(parsed.runs)
    ]
    with _moved_back(ctx, source), ctx.storage.write() as session:
        if isinstance(source, StoredUpload):
            upload, created = source, False
        else:
            upload, created = uploads.add_or_get(
                session=session,
                blobs=ctx.storage.blobs,
                data=source,
                file_name=about.file_name,
                format=parsed.format,
                findings=parsed.findings,
                members=[asdict(member) for member in parsed.members],
            )
        if not created and upload.waiting is not None:
            ended = uploads.end_waiting(session=session, upload_id=upload.id, findings=parsed.findings)
            upload, created = ended or upload, ended is not None
        if created:
            stored = tuple(
                runs.add_run(
                    session=session,
                    upload_id=upload.id,
                    position=position,
                    parsed=run,
                    format=parsed.format_of(position),
                    name=named[position],
                    tags=about.tags,
                    workload_id=about.workload.workload_id,
                    workload_overrides=about.workload.overrides,
                    baseline_run_id=about.baseline_id,
                    is_example=about.is_example,
                    series_key=series[position],
                    **links[position],
                )
                for position, run in enumerate(parsed.runs)
            )
    if not created:
        known = _stored_already(ctx, source.sha256)
        if known is not None:
            return known
        raise NotFound("upload", upload.id)  # deleted by somebody else in this very moment
    return UploadOutcome(upload, stored, parsed.findings, True)


def _stored_already(ctx: Context, digest: str) -> UploadOutcome | None:
    with ctx.storage.read() as session:
        upload = uploads.find_by_sha256(session=session, sha256=digest)
        if upload is None or upload.waiting is not None:
            return None
        stored = _runs_of(session, upload.id)
    note = Finding(
        "stored-already",
        "info",
        f"The same bytes were uploaded before, as {upload.file_name!r}: these are those runs, and nothing was changed.",
    )
    return UploadOutcome(upload, stored, (*upload.findings, note), False)


def _runs_of(session: Any, upload_id: str) -> tuple[StoredRun, ...]:
    summaries = runs.runs_of_upload(session=session, upload_id=upload_id)
    return tuple(runs.get_run(session=session, run_id=summary.id) for summary in summaries)


def _links(ctx: Context, run: ParsedRun, hardware_id: str | None, model_id: str | None) -> dict[str, Any]:
    links: dict[str, Any] = {"hardware_id": hardware_id, "model_id": model_id}
    if hardware_id is None:
        links["hardware_id"], links["hardware_is_guess"] = link_for(ctx, "hardware", run.hardware_hint)
    if model_id is None:
        links["model_id"], links["model_is_guess"] = link_for(ctx, "model", run.model_hint, run.workload.parameters)
    return links


def merged_fields(ctx: Context, workload_id: str | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Workload fields that people state: those of a saved workload, and a run's own over them."""
    base: dict[str, Any] = {}
    if workload_id is not None:
        with ctx.storage.read() as session:
            saved = workloads.find(session=session, entry_id=workload_id)
        base = dict(saved.payload) if saved is not None else {}
    stated = dict(overrides)
    for nested in ("dtypes", "parallel"):
        if nested in base or nested in stated:
            stated[nested] = {**dict(base.get(nested) or {}), **dict(stated.get(nested) or {})}
    return {**base, **stated}


def _run_name(given: str | None, parsed: ParsedUpload, run: ParsedRun) -> str:
    if given is None:
        return clean(run.name, MAX_NAME) or "run"
    return given if len(parsed.runs) == 1 else clean(f"{given}: {run.name}", MAX_NAME)


# --- what people type ----------------------------------------------------------------------------------------------


def display_name(file_name: str) -> str:
    """A client's file name fit to be shown: its last part, without control characters. It is never used as a path."""
    last = re.split(r"[/\\]", file_name)[-1]
    return clean(last, MAX_NAME) or "upload"


def checked_name(name: str) -> str:
    """A name as it will be stored. Raises InvalidInput for an empty, overlong or unprintable one."""
    plain = name.strip()
    if not plain:
        raise InvalidInput(("name",), "must not be empty")
    if len(plain) > MAX_NAME:
        raise InvalidInput(("name",), f"must have at most {MAX_NAME} characters, not {len(plain)}")
    if clean(plain, MAX_NAME) != plain:
        raise InvalidInput(("name",), "holds control or direction characters: type it anew")
    return plain


def checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags as they will be stored; one text may hold several, separated by commas."""
    found = [part.strip() for text in tags for part in text.split(",") if part.strip()]
    found = list(dict.fromkeys(found))
    if len(found) > MAX_TAGS:
        raise InvalidInput(("tags",), f"at most {MAX_TAGS} tags, not {len(found)}")
    for tag in found:
        if len(tag) > MAX_TAG:
            raise InvalidInput(("tags",), f"a tag has at most {MAX_TAG} characters: {tag[:30]}… has {len(tag)}")
        if clean(tag, MAX_TAG) != tag:
            raise InvalidInput(("tags",), "a tag holds control or direction characters: type it anew")
    return tuple(found)


def checked_baseline(ctx: Context, run_id: str) -> str:
    """The id of an existing run. Raises InvalidInput at `baseline`."""
    try:
        with ctx.storage.read() as session:
            return runs.get_summary(session=session, run_id=run_id).id
    except NotFound as error:
        raise InvalidInput(("baseline",), f"there is no run {run_id[:80]!r}") from error


def stated_workload(ctx: Context, workload: str | Mapping[str, Any] | None) -> StatedWorkload:
    """A saved workload's id, or the fields that were given, checked as those of an estimate. None states nothing."""
    if workload is None or workload == "":
        return StatedWorkload()
    if isinstance(workload, str) and not workload.lstrip().startswith("{"):
        with ctx.storage.read() as session:
            known = workloads.find(session=session, entry_id=workload.strip())
        if known is None:
            raise InvalidInput(
                ("workload",),
                f'there is no saved workload {workload[:80]!r}; an object is JSON text like {{"batch": 8}}',
            )
        return StatedWorkload(workload_id=known.id)
    fields: Any = workload
    if isinstance(workload, str):
        try:
            fields = json.loads(workload)
        except (ValueError, RecursionError) as error:
            reason = f"is no JSON: {error}" if isinstance(error, ValueError) else "is nested too deep"
            raise InvalidInput(("workload",), reason) from error
    return StatedWorkload(overrides=checked_overrides(fields))


def checked_overrides(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the API's workload object, only those given. Raises InvalidInput naming the field under `workload`."""
    try:
        body = WorkloadBody.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = str(first["msg"]).replace("Input should be", "must be")
        raise InvalidInput(("workload", *first["loc"]), reason) from error
    body.to_domain()
    return body.model_dump(exclude_unset=True, mode="json")
