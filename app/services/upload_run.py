"""Keep an uploaded benchmark file: read it, link its runs to what the file names, store bytes and runs together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.domain.errors import InvalidInput
from app.domain.run import Finding, ParsedRun
from app.importers.base import ParsedUpload
from app.importers.reading import DEFAULT_LIMITS, clean
from app.importers.registry import parse_upload
from app.services.context import Context
from app.services.contracts import WorkloadBody
from app.services.references import resolve_hardware, resolve_model
from app.storage import runs, uploads, workloads
from app.storage.blobs import sha256_of
from app.storage.errors import NotFound
from app.storage.records import StoredRun, StoredUpload

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


def upload_file(
    ctx: Context,
    data: bytes | Path,
    file_name: str,
    *,
    hardware: str | None = None,
    model: str | None = None,
    workload: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    baseline: str | None = None,
    is_example: bool = False,
) -> UploadOutcome:
    """Store a file and its runs, once for the same bytes however often and by however many at a time they are sent.

    `hardware` and `model` are catalogue names or a team's own ids and count for every run of the file; without them
    the file's own words are matched to the catalogue and the links are marked as guesses. `workload` is an id of a
    saved workload, an object, or its JSON text. Raises UnreadableUpload, InvalidInput, or what storage raises; nothing
    is stored then.
    """
    content = data.read_bytes() if isinstance(data, Path) else data
    shown_name = display_name(file_name)
    given_tags = checked_tags(tags)
    given_name = checked_name(name) if name is not None and name.strip() else None
    profile_id = resolve_hardware(ctx, hardware)[0].id if hardware else None
    model_id = resolve_model(ctx, model)[0].id if model else None
    stated = stated_workload(ctx, workload)
    baseline_id = checked_baseline(ctx, baseline) if baseline else None
    digest = sha256_of(content)
    known = _stored_already(ctx, digest)
    if known is not None:
        return known
    limits = replace(
        DEFAULT_LIMITS,
        max_bytes=ctx.settings.max_text_bytes,
        max_stream_bytes=ctx.settings.max_stream_bytes,
        max_runs=MAX_RUNS,
    )
    parsed = parse_upload(content, shown_name, limits)
    links = [_links(ctx, run, profile_id, model_id) for run in parsed.runs]
    # The file is written before the database is locked, so that no other writer waits for the disk.
    ctx.storage.blobs.put(content, digest)
    try:
        with ctx.storage.write() as session:
            upload, created = uploads.add_or_get(
                session=session,
                blobs=ctx.storage.blobs,
                data=content,
                file_name=shown_name,
                format=parsed.format,
                findings=parsed.findings,
                sha256=digest,
            )
            if created:
                stored = tuple(
                    runs.add_run(
                        session=session,
                        upload_id=upload.id,
                        position=position,
                        parsed=run,
                        format=parsed.format,
                        name=_run_name(given_name, parsed, run),
                        tags=given_tags,
                        workload_id=stated.workload_id,
                        workload_overrides=stated.overrides,
                        baseline_run_id=baseline_id,
                        is_example=is_example,
                        **links[position],
                    )
                    for position, run in enumerate(parsed.runs)
                )
    except BaseException:
        with ctx.storage.read() as session:
            uploads.remove_unused_blob(session, ctx.storage.blobs, digest)
        raise
    if not created:
        known = _stored_already(ctx, digest)
        if known is not None:
            return known
        raise NotFound("upload", upload.id)  # deleted by somebody else in this very moment
    return UploadOutcome(upload, stored, parsed.findings, True)


def _stored_already(ctx: Context, digest: str) -> UploadOutcome | None:
    with ctx.storage.read() as session:
        upload = uploads.find_by_sha256(session=session, sha256=digest)
        if upload is None:
            return None
        summaries = runs.runs_of_upload(session=session, upload_id=upload.id)
        stored = tuple(runs.get_run(session=session, run_id=summary.id) for summary in summaries)
    note = Finding(
        "stored-already",
        "info",
        f"The same bytes were uploaded before, as {upload.file_name!r}: these are those runs, and nothing was changed.",
    )
    return UploadOutcome(upload, stored, (*upload.findings, note), False)


def _links(ctx: Context, run: ParsedRun, hardware_id: str | None, model_id: str | None) -> dict[str, Any]:
    links: dict[str, Any] = {"hardware_id": hardware_id, "model_id": model_id}
    if hardware_id is None and run.hardware_hint:
        guess = ctx.catalog.guess_hardware(run.hardware_hint)
        links |= {"hardware_id": guess.id, "hardware_is_guess": True} if guess is not None else {}
    if model_id is None and run.model_hint:
        guess = ctx.catalog.guess_model(run.model_hint, run.workload.parameters)
        links |= {"model_id": guess.id, "model_is_guess": True} if guess is not None else {}
    return links


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
