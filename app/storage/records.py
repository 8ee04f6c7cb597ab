"""What storage gives and takes: frozen records, detached from any session."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar

from app.domain.run import Finding, Metric, ParsedRun

T = TypeVar("T")

MAX_PAGE = 200
"""Most items that one page of a list holds."""

HEADLINE_METRICS: tuple[str, ...] = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "tokens_per_s_per_device",
    "requests_per_s",
    "samples_per_s",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_latency_s",
    "step_time_s",
    "latency_s",
    "kernel_time_s",
    "duration_s",
    "bus_bandwidth_bytes_per_s",
    "hbm_bytes_per_s",
    "model_flop_per_s_per_device",
    "algorithm_bandwidth_bytes_per_s",
    "mfu",
    "mbu",
    "peak_memory_bytes",
    "concurrency",
    "loss",
)
"""Metrics that lists of runs can show and sort by."""

HEADLINE_STATS: tuple[str | None, ...] = (None, "mean", "p50", "p99")

_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 signs, none of which looks like another


class Unset(Enum):
    """Tells "leave as it is" from "set to nothing"."""

    UNSET = "unset"


UNSET: Final[Literal[Unset.UNSET]] = Unset.UNSET


def new_id() -> str:
    """A new opaque identifier: 12 characters, 60 random bits."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(12))


def utc_now() -> datetime:
    return datetime.now(UTC)


def headline_of(metrics: Iterable[Metric]) -> dict[str, float]:
    """The few metrics of a run that lists show, by key (`ttft_s.p99`)."""
    return {m.key: m.value for m in metrics if m.name in HEADLINE_METRICS and m.stat in HEADLINE_STATS}


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `next` is the cursor of the following page, `total` counts all pages' items."""

    items: tuple[T, ...]
    next: str | None
    total: int


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """An uploaded file. `file_name` is what the client called it: for display, never a path.

    `members` are the files of an archive: name, format, position of the first run and their count, or why it gave none.
    `waiting` is what was stated beside a table without runs, whose columns nobody explained yet; None otherwise.
    """

    id: str
    sha256: str
    size_bytes: int
    file_name: str
    media_type: str | None
    format: str
    findings: tuple[Finding, ...]
    created_at: datetime
    members: tuple[Mapping[str, Any], ...] = ()
    waiting: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredMapping:
    """How tables of certain columns are read; `payload` has the API's shape."""

    id: str
    columns_sha256: str
    payload: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What lists show of a run. `headline` maps metric keys (`ttft_s.p99`) to SI values.

    `hardware_id` and `model_id` name a catalogue entry or a team's own; `*_is_guess` says that nobody confirmed the
    link yet, `*_hint` is the file's own wording.
    """

    id: str
    upload_id: str
    position: int
    name: str
    format: str
    created_at: datetime
    measured_at: str | None
    hardware_id: str | None
    hardware_hint: str | None
    hardware_is_guess: bool
    model_id: str | None
    model_hint: str | None
    model_is_guess: bool
    workload_id: str | None
    tags: tuple[str, ...]
    is_example: bool
    is_baseline: bool
    baseline_run_id: str | None
    headline: Mapping[str, float]
    series_key: str | None
    series_name: str | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A warning that somebody has read and accepted: the check and its words at that moment, why, and when (ISO)."""

    check: str
    message: str
    note: str
    at: str


@dataclass(frozen=True, slots=True)
class StoredRun(RunSummary):
    """A whole run: `parsed` as the importer read it (with the current name), and what people stated since.

    `workload_overrides` are fields of the API's workload object that a person entered over the file's own, `facts` what
    people added that no file carries (keys of the lint's facts), `acknowledged` the warnings that they accepted.
    """

    parsed: ParsedRun
    workload_overrides: Mapping[str, Any]
    upload: StoredUpload
    facts: Mapping[str, Any]
    acknowledged: tuple[Acknowledgement, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a list holds; None does not filter. `text` must match by every word.

    `newest_of_file` keeps one run of each uploaded file: the last that was added.
    """

    format: str | None = None
    model: str | None = None
    hardware: str | None = None
    tag: str | None = None
    text: str | None = None
    since: datetime | None = None
    is_example: bool | None = None
    is_baseline: bool | None = None
    newest_of_file: bool = False


@dataclass(frozen=True, slots=True)
class RunChanges:
    """What `update_run` sets; UNSET leaves a field alone."""

    name: str | Unset = UNSET
    hardware_id: str | Unset | None = UNSET
    hardware_is_guess: bool | Unset = UNSET
    model_id: str | Unset | None = UNSET
    model_is_guess: bool | Unset = UNSET
    workload_id: str | Unset | None = UNSET
    tags: tuple[str, ...] | Unset = UNSET
    is_baseline: bool | Unset = UNSET
    baseline_run_id: str | Unset | None = UNSET
    workload_overrides: Mapping[str, Any] | Unset = UNSET
    notes: str | Unset | None = UNSET
    facts: Mapping[str, Any] | Unset = UNSET
    acknowledged: tuple[Acknowledgement, ...] | Unset = UNSET
    series_name: str | Unset | None = UNSET
    series_key: str | Unset | None = UNSET


@dataclass(frozen=True, slots=True)
class RememberedLink:
    """A wording of files (`hint`) and the id that it stands for. `kind` is hardware or model."""

    id: str
    kind: str
    hint: str
    target_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SeriesCount:
    """A series with how many runs it has, when the newest was added, and its newest run."""

    key: str
    runs: int
    newest_at: datetime
    newest: RunSummary


@dataclass(frozen=True, slots=True)
class RunFacets:
    """Values that runs have, with how many runs have each: the choices of the list's filters."""

    formats: Mapping[str, int]
    hardware: Mapping[str, int]
    models: Mapping[str, int]
    tags: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoredHardware:
    """A team's own profile. `payload` has the catalogue's JSON shape, in SI; `revision` counts its edits from 1."""

    id: str
    name: str
    copied_from: str | None
    payload: Mapping[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A team's own model. `payload` has the catalogue's JSON shape; `revision` counts its edits from 1."""

    id: str
    name: str
    copied_from: str | None
    payload: Mapping[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A saved workload. `payload` is the API's workload object."""

    id: str
    name: str
    model_id: str | None
    payload: Mapping[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ComparisonSummary:
    """What lists show of a comparison."""

    id: str
    title: str
    notes: str
    baseline: int
    item_count: int
    app_version: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredComparison(ComparisonSummary):
    """A frozen comparison; `snapshot` is everything that a reader sees."""

    snapshot: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiagnosisSummary:
    """What lists show of a diagnosis. `headline` is the answer in a sentence."""

    id: str
    scenario: str
    title: str
    notes: str
    run_id: str | None
    headline: str
    app_version: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredDiagnosis(DiagnosisSummary):
    """A frozen walk; `snapshot` is everything that a reader sees."""

    snapshot: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredShare:
    """A link to a comparison or a diagnosis (`target_id`), without its token (which only its creator has seen)."""

    id: str
    target_id: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_open(self, now: datetime) -> bool:
        """Whether the link still works at `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class StoredChecklist:
    """A team's copy of a checklist. `ticks` maps the ids of ticked items to when that was, oldest first."""

    id: str
    list_id: str
    title: str
    ticks: Mapping[str, datetime]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredChecklistShare:
    """A link to a team's checklist, without its token. `can_tick`: whoever has it may tick, not only read."""

    id: str
    checklist_id: str
    can_tick: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_open(self, now: datetime) -> bool:
        """Whether the link still works at `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def values_of(row: object, record: type[Any]) -> dict[str, Any]:
    """The fields of a record's dataclass, from a row's columns of their names."""
    return {one.name: getattr(row, one.name) for one in fields(record)}
