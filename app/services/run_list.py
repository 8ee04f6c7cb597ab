"""Lists of stored runs: filters, pages, the newest files, and each run's distance from its bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock

from app.catalog.names import AmbiguousName, UnknownName
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.model import ModelSpec
from app.domain.run_analysis import analyse_run
from app.services.context import Context
from app.services.runs import linked, stated_fields
from app.storage import runs
from app.storage.errors import InvalidQuery
from app.storage.records import Page, RunFacets, RunFilter, RunSummary, StoredRun


@dataclass(frozen=True, slots=True)
class RunListItem:
    """A run in a list, with its main step against the bound where that can be computed."""

    run: RunSummary
    hardware_name: str | None
    model_name: str | None
    what: str | None
    measured: float | None
    of_bound: float | None
    binding: str | None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Filters and order of a list, as they stand in an address. `hardware` and `model` may be any name they go by."""

    format: str | None = None
    model: str | None = None
    hardware: str | None = None
    tag: str | None = None
    q: str | None = None
    since: str | None = None
    sort: str = "-created_at"

    @property
    def filters_anything(self) -> bool:
        return any(getattr(self, name) for name in ("format", "model", "hardware", "tag", "q", "since"))


def list_runs(ctx: Context, query: RunQuery, *, limit: int = 50, cursor: str | None = None) -> Page[RunListItem]:
    """One page of runs.

    Raises InvalidQuery for an unknown sort key, cursor, limit or date, InvalidInput for a name of several entries.
    """
    filters = RunFilter(
        format=query.format or None,
        hardware=_id_of("hardware", ctx.catalog.resolve_hardware, query.hardware),
        model=_id_of("model", ctx.catalog.resolve_model, query.model),
        tag=query.tag or None,
        text=query.q or None,
        since=_moment(query.since),
    )
    with ctx.storage.read() as session:
        page = runs.list_runs(session=session, filters=filters, sort=query.sort, limit=limit, cursor=cursor)
    return Page(tuple(_list_item(ctx, run) for run in page.items), page.next, page.total)


@dataclass(frozen=True, slots=True)
class RecentFile:
    """The newest run of an uploaded file, and how many runs the file has besides."""

    newest: RunListItem
    others: int


def recent_files(ctx: Context, limit: int) -> tuple[tuple[RecentFile, ...], int]:
    """The newest files, one line each however many runs they hold, and how many runs there are in all."""
    with ctx.storage.read() as session:
        page = runs.list_runs(session=session, filters=RunFilter(newest_of_file=True), limit=limit)
        number = runs.runs_per_upload(session=session, upload_ids=[run.upload_id for run in page.items])
        total = runs.count_runs(session=session)
    files = tuple(RecentFile(_list_item(ctx, run), number[run.upload_id] - 1) for run in page.items)
    return files, total


def facets(ctx: Context) -> RunFacets:
    """What the list can be filtered by, with counts."""
    with ctx.storage.read() as session:
        return runs.run_facets(session=session)


def _id_of(field: str, resolve: Callable[[str], HardwareProfile | ModelSpec], name: str | None) -> str | None:
    """The id of a catalogue name; what the catalogue does not know may be a team's own id.

    A name of several is refused with the candidates: an empty list would read as "no such runs".
    """
    if not name:
        return None
    try:
        return resolve(name).id
    except UnknownName:
        return name
    except AmbiguousName as error:
        raise InvalidInput((field,), str(error)) from error


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidQuery("since", "write a date or time like 2026-11-29 or 2026-11-29T12:00:00Z") from error


_Brief = tuple[str, float, float, str] | None


class _Briefs:
    """Main results of runs on shipped hardware and models, so that lists do not compute them again and again.

    A run's measurements never change, and what may change (links, stated fields) is part of the key.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._known: dict[tuple[str, ...], _Brief] = {}
        self._lock = Lock()

    def get(self, ctx: Context, run: StoredRun) -> _Brief:
        hardware, model, _ = linked(ctx, run)
        if hardware is None or model is None:
            return None
        stated = stated_fields(ctx, run)
        key = (run.id, hardware.id, model.id, json.dumps(stated, sort_keys=True, default=str))
        shipped = hardware.id in ctx.catalog.hardware and model.id in ctx.catalog.models
        if shipped and key in self._known:
            return self._known[key]
        main = analyse_run(run.parsed, hardware, model, stated).main
        brief = None if main is None else (main.what, main.measured, main.of_bound, main.binding)
        if shipped:
            with self._lock:
                if len(self._known) >= self._size:
                    self._known.clear()
                self._known[key] = brief
        return brief


_briefs = _Briefs()


def _list_item(ctx: Context, run: RunSummary) -> RunListItem:
    hardware, model, _ = linked(ctx, run)
    brief: _Brief = None
    if hardware is not None and model is not None:
        with ctx.storage.read() as session:
            whole = runs.get_run(session=session, run_id=run.id, with_kernels=False)
        brief = _briefs.get(ctx, whole)
    what, measured, of_bound, binding = brief or (None, None, None, None)
    return RunListItem(
        run=run,
        hardware_name=hardware.name if hardware is not None else None,
        model_name=model.name if model is not None else None,
        what=what,
        measured=measured,
        of_bound=of_bound,
        binding=binding,
    )
