"""Benchmark runs: a small row that lists read, and a large one that only the run's own page reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, String, cast, exists, func, literal_column
from sqlalchemy import select as sql_select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from app.domain.run import Metric, ParsedRun, RunWorkload
from app.storage import search, uploads
from app.storage.blobs import BlobStore
from app.storage.engine import after_commit
from app.storage.errors import InvalidValue, NotFound, translated
from app.storage.paging import rows_of_page
from app.storage.records import (
    HEADLINE_METRICS,
    HEADLINE_STATS,
    Acknowledgement,
    Page,
    RunChanges,
    RunFacets,
    RunFilter,
    RunSummary,
    SeriesCount,
    StoredRun,
    Unset,
    headline_of,
    new_id,
    utc_now,
)
from app.storage.tables import RunDetailsRow, RunRow, UploadRow, WorkloadRow

SORT_KEYS: tuple[str, ...] = (
    "created_at",
    "name",
    *HEADLINE_METRICS,
    *(f"{name}.{stat}" for name in HEADLINE_METRICS if name.endswith("_s") for stat in HEADLINE_STATS if stat),
)
"""What a list of runs can be sorted by. A metric without a statistic sorts by the plain value, mean or median."""


def add_run(
    *,
    session: Session,
    upload_id: str,
    position: int,
    parsed: ParsedRun,
    format: str,
    name: str | None = None,
    hardware_id: str | None = None,
    hardware_is_guess: bool = False,
    model_id: str | None = None,
    model_is_guess: bool = False,
    workload_id: str | None = None,
    tags: tuple[str, ...] = (),
    is_example: bool = False,
    is_baseline: bool = False,
    baseline_run_id: str | None = None,
    workload_overrides: Mapping[str, Any] | None = None,
    series_key: str | None = None,
    series_name: str | None = None,
    now: datetime | None = None,
) -> StoredRun:
    """Store one run of an upload; `position` counts the file's runs from 0. `name` replaces the file's own."""
    upload = session.get(UploadRow, upload_id)
    if upload is None:
        raise NotFound("upload", upload_id)
    _require_links(session, workload_id, baseline_run_id)
    row = RunRow(
        id=new_id(),
        upload_id=upload_id,
        position=position,
        name=name or parsed.name,
        format=format,
        created_at=now or utc_now(),
        measured_at=parsed.measured_at,
        hardware_id=hardware_id,
        hardware_hint=parsed.hardware_hint,
        hardware_is_guess=hardware_is_guess,
        model_id=model_id,
        model_hint=parsed.model_hint,
        model_is_guess=model_is_guess,
        workload_id=workload_id,
        tags=_tags(tags),
        is_example=is_example,
        is_baseline=is_baseline,
        baseline_run_id=baseline_run_id,
        summary=headline_of(parsed.metrics),
        series_key=series_key,
        series_name=series_name,
    )
    details = RunDetailsRow(
        run_id=row.id,
        metrics=[_metric_json(metric) for metric in parsed.metrics],
        workload=_workload_json(parsed.workload),
        workload_overrides=dict(workload_overrides or {}),
        parallel=dict(parsed.parallel),
        software=dict(parsed.software),
        series=dict(parsed.series),
        kernels=[dict(kernel) for kernel in parsed.kernels],
        timeline=None if parsed.timeline is None else dict(parsed.timeline),
        samples={name: list(values) for name, values in parsed.samples.items()},
        evidence=dict(parsed.evidence),
        findings=[asdict(finding) for finding in parsed.findings],
        notes=parsed.notes,
    )
    with translated():
        session.add(row)
        session.flush()
        session.add(details)
        session.flush()
        search.index_run(session, row, file_name=upload.file_name, notes=details.notes)
    return _whole(row, details, upload)


def get_run(*, session: Session, run_id: str, with_kernels: bool = True) -> StoredRun:
    """The whole run, or NotFound. Without its kernels and timeline, which may be large, they are not even read."""
    large: tuple[Any, ...] = (RunDetailsRow.kernels, RunDetailsRow.timeline)
    left_out = () if with_kernels else tuple(defer(column) for column in large)
    found = session.exec(
        select(RunRow, RunDetailsRow, UploadRow)
        .join(RunDetailsRow, col(RunDetailsRow.run_id) == col(RunRow.id))
        .join(UploadRow, col(UploadRow.id) == col(RunRow.upload_id))
        .where(RunRow.id == run_id)
        .options(*left_out)
    ).first()
    if found is None:
        raise NotFound("run", run_id)
    return _whole(*found, with_kernels=with_kernels)


def get_summary(*, session: Session, run_id: str) -> RunSummary:
    """The run as lists show it, or NotFound."""
    return _summary(_row(session, run_id))


def runs_of_upload(*, session: Session, upload_id: str) -> tuple[RunSummary, ...]:
    """The runs that an upload still has, in the file's order."""
    rows = session.exec(select(RunRow).where(RunRow.upload_id == upload_id).order_by(col(RunRow.position)))
    return tuple(_summary(row) for row in rows)


def list_runs(
    *,
    session: Session,
    filters: RunFilter | None = None,
    sort: str = "-created_at",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[RunSummary]:
    """One page of runs. `sort` is one of SORT_KEYS, with `-` before it for descending. Raises InvalidQuery."""
    sorts = {key: _sort_value(key) for key in SORT_KEYS}
    query = sql_select(RunRow).where(*_conditions(session, filters or RunFilter()))
    rows, following, total = rows_of_page(
        session, query, sorts=sorts, tie_breaker=col(RunRow.seq), sort=sort, limit=limit, cursor=cursor
    )
    return Page(tuple(_summary(row[0]) for row in rows), following, total)


def run_facets(*, session: Session) -> RunFacets:
    """Which formats, hardware, models and tags there are, and how many runs have each; the most frequent first."""

    def counted(column: Any) -> dict[str, int]:
        number = func.count()
        rows = session.execute(
            sql_select(column, number).where(column.is_not(None)).group_by(column).order_by(number.desc(), column)
        )
        return {row[0]: row[1] for row in rows}

    tag = _each_tag(session)
    number = func.count()
    tags = session.execute(
        sql_select(tag.c.value, number)
        .select_from(RunRow)
        .join(tag, literal_column("1") == literal_column("1"))
        .group_by(tag.c.value)
        .order_by(number.desc(), tag.c.value)
    )
    return RunFacets(
        formats=counted(col(RunRow.format)),
        hardware=counted(col(RunRow.hardware_id)),
        models=counted(col(RunRow.model_id)),
        tags={row[0]: row[1] for row in tags},
    )


def runs_per_upload(*, session: Session, upload_ids: Sequence[str]) -> dict[str, int]:
    """How many runs each of these files has."""
    counted = sql_select(col(RunRow.upload_id), func.count()).where(col(RunRow.upload_id).in_(upload_ids))
    return {row[0]: row[1] for row in session.execute(counted.group_by(col(RunRow.upload_id)))}


def count_runs(*, session: Session, hardware_id: str | None = None, model_id: str | None = None) -> int:
    """How many runs there are, or are linked to a hardware profile or a model."""
    query = sql_select(func.count()).select_from(RunRow)
    if hardware_id is not None:
        query = query.where(col(RunRow.hardware_id) == hardware_id)
    if model_id is not None:
        query = query.where(col(RunRow.model_id) == model_id)
    return int(session.execute(query).scalar_one())


def iterate_runs(*, session: Session) -> Iterator[StoredRun]:
    """Every run, oldest first, one in memory at a time."""
    for run_id in session.exec(select(RunRow.id).order_by(col(RunRow.seq))).all():
        yield get_run(session=session, run_id=run_id)
        session.expunge_all()


def update_run(*, session: Session, run_id: str, changes: RunChanges) -> StoredRun:
    """Change what people may change of a run; what the file said stays. Raises NotFound."""
    row = _row(session, run_id)
    details = session.get_one(RunDetailsRow, run_id)
    upload = session.get_one(UploadRow, row.upload_id)
    given = {f.name: getattr(changes, f.name) for f in fields(changes)}
    given = {name: value for name, value in given.items() if not isinstance(value, Unset)}
    _require_links(session, given.get("workload_id"), given.get("baseline_run_id"))
    if given.get("baseline_run_id") == run_id:
        raise InvalidValue("a run cannot be its own baseline")
    if "tags" in given:
        given["tags"] = _tags(given["tags"])
    if "workload_overrides" in given:
        details.workload_overrides = dict(given.pop("workload_overrides"))
    if "facts" in given:
        details.facts = dict(given.pop("facts"))
    if "acknowledged" in given:
        details.acknowledged = [asdict(one) for one in given.pop("acknowledged")]
    if "notes" in given:
        details.notes = given.pop("notes")
    for name, value in given.items():
        setattr(row, name, value)
    with translated():
        session.add(row)
        session.add(details)
        session.flush()
        search.index_run(session, row, file_name=upload.file_name, notes=details.notes)
    return _whole(row, details, upload)


def runs_of_series(*, session: Session, key: str, limit: int = 500) -> tuple[RunSummary, ...]:
    """The newest runs of a series, oldest first."""
    newest_first = (col(RunRow.created_at).desc(), col(RunRow.seq).desc())
    rows = session.exec(select(RunRow).where(RunRow.series_key == key).order_by(*newest_first).limit(limit)).all()
    return tuple(_summary(row) for row in reversed(rows))


def count_series(*, session: Session, key: str) -> int:
    """How many runs a series has."""
    query = sql_select(func.count()).select_from(RunRow).where(col(RunRow.series_key) == key)
    return int(session.execute(query).scalar_one())


def list_series(*, session: Session, limit: int, offset: int = 0) -> tuple[tuple[SeriesCount, ...], int]:
    """Series by their newest run, the newest first, and how many there are; a run alone is no series."""
    counted: Any = (
        sql_select(
            col(RunRow.series_key).label("key"),
            func.count().label("number"),
            func.max(RunRow.created_at).label("newest_at"),
            func.max(RunRow.seq).label("newest"),
        )
        .where(col(RunRow.series_key).is_not(None))
        .group_by(col(RunRow.series_key))
        .having(func.count() > 1)
    )
    total = int(session.execute(sql_select(func.count()).select_from(counted.subquery())).scalar_one())
    inner = counted.subquery()
    rows = session.execute(
        sql_select(inner.c.key, inner.c.number, inner.c.newest_at, RunRow)
        .join(RunRow, col(RunRow.seq) == inner.c.newest)
        .order_by(inner.c.newest_at.desc(), inner.c.newest.desc())
        .limit(limit)
        .offset(offset)
    )
    return tuple(SeriesCount(row[0], row[1], row[2], _summary(row[3])) for row in rows), total


def runs_without_series(*, session: Session, limit: int) -> tuple[str, ...]:
    """Ids of runs whose series nobody worked out yet, oldest first."""
    query = select(RunRow.id).where(col(RunRow.series_key).is_(None)).order_by(col(RunRow.seq)).limit(limit)
    return tuple(session.exec(query))


def delete_run(*, session: Session, blobs: BlobStore, run_id: str) -> None:
    """Delete a run; with its upload's last run go the upload and its file.

    Comparisons keep what they show themselves, so nothing a reader sees is lost. Raises NotFound.
    """
    row = _row(session, run_id)
    upload = session.get_one(UploadRow, row.upload_id)
    with translated():
        search.unindex_run(session, row)
        session.delete(row)
        session.flush()
        left = session.exec(select(RunRow.id).where(RunRow.upload_id == upload.id)).first()
        if left is None:
            digest = upload.sha256
            session.delete(upload)
            session.flush()
            after_commit(session, lambda: uploads.remove_unused_blob(session, blobs, digest))


def _row(session: Session, run_id: str) -> RunRow:
    row = session.exec(select(RunRow).where(RunRow.id == run_id)).first()
    if row is None:
        raise NotFound("run", run_id)
    return row


def _require_links(session: Session, workload_id: str | None, baseline_run_id: str | None) -> None:
    if workload_id is not None and session.get(WorkloadRow, workload_id) is None:
        raise NotFound("workload", workload_id)
    if baseline_run_id is not None:
        _row(session, baseline_run_id)


def _tags(tags: tuple[str, ...]) -> list[str]:
    """Each tag once, in the order given."""
    return list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))


def _sort_value(key: str) -> Any:
    if key == "created_at":
        return col(RunRow.created_at)
    if key == "name":
        return func.lower(col(RunRow.name), type_=String)
    summary: Any = col(RunRow.summary)
    if "." in key:
        return cast(summary[key].as_float(), Float)
    return func.coalesce(*(summary[k].as_float() for k in (key, f"{key}.mean", f"{key}.p50")), type_=Float)


def _conditions(session: Session, filters: RunFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    for column, wanted in (
        (col(RunRow.format), filters.format),
        (col(RunRow.model_id), filters.model),
        (col(RunRow.hardware_id), filters.hardware),
        (col(RunRow.is_example), filters.is_example),
        (col(RunRow.is_baseline), filters.is_baseline),
    ):
        if wanted is not None:
            conditions.append(column == wanted)
    if filters.since is not None:
        conditions.append(col(RunRow.created_at) >= filters.since)
    if filters.tag is not None:
        tag = _each_tag(session)
        conditions.append(exists().select_from(tag).where(tag.c.value == filters.tag))
    if filters.text is not None and filters.text.strip():
        conditions.append(search.run_matches(session, filters.text))
    if filters.newest_of_file:
        newest = sql_select(func.max(RunRow.seq)).group_by(col(RunRow.upload_id))
        conditions.append(col(RunRow.seq).in_(newest))
    return conditions


def _each_tag(session: Session) -> Any:
    """A run's tags as rows of one column, `value`."""
    if session.get_bind().dialect.name == "sqlite":
        return func.json_each(col(RunRow.tags)).table_valued("value", name="tag")
    tags = cast(col(RunRow.tags), JSONB)
    return func.jsonb_array_elements_text(tags).table_valued("value", name="tag")


def _metric_json(metric: Metric) -> dict[str, Any]:
    return {name: value for name, value in asdict(metric).items() if value not in (None, "")}


def _workload_json(workload: RunWorkload) -> dict[str, Any]:
    stored = {f.name: getattr(workload, f.name) for f in fields(workload)}
    stored["dtypes"], stored["extra"] = dict(workload.dtypes), dict(workload.extra)
    return {name: value for name, value in stored.items() if value is not None}


def _summary_fields(row: RunRow) -> dict[str, Any]:
    names = (f.name for f in fields(RunSummary) if f.name not in ("tags", "headline"))
    return {name: getattr(row, name) for name in names} | {
        "tags": tuple(row.tags),
        "headline": dict(row.summary),
    }


def _summary(row: RunRow) -> RunSummary:
    return RunSummary(**_summary_fields(row))


def _whole(row: RunRow, details: RunDetailsRow, upload: UploadRow, *, with_kernels: bool = True) -> StoredRun:
    parsed = ParsedRun(
        name=row.name,
        metrics=tuple(Metric(**metric) for metric in details.metrics),
        workload=RunWorkload(**details.workload),
        model_hint=row.model_hint,
        hardware_hint=row.hardware_hint,
        parallel=details.parallel,
        software=details.software,
        kernels=tuple(details.kernels) if with_kernels else (),
        timeline=details.timeline if with_kernels else None,
        samples={name: tuple(values) for name, values in details.samples.items()},
        evidence=details.evidence,
        measured_at=row.measured_at,
        notes=details.notes,
        series=details.series,
        findings=tuple(uploads.finding_of(finding) for finding in details.findings),
    )
    return StoredRun(
        **_summary_fields(row),
        parsed=parsed,
        workload_overrides=details.workload_overrides,
        facts=details.facts or {},
        acknowledged=tuple(Acknowledgement(**one) for one in details.acknowledged or ()),
        upload=uploads.to_record(upload),
    )
