"""Table classes only. They store what was validated elsewhere and are never a form nor an API schema.

Identifiers that people see are opaque text. `runs.seq` exists beside `runs.id` because the text index refers to rows by
number and VACUUM renumbers rows that have no integer key.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, ForeignKey, Index, MetaData, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name, since SQLite can only alter a table by rebuilding it from named parts."""

METADATA = MetaData(naming_convention=NAMING_CONVENTION)


def _json() -> Any:
    """JSON as text in SQLite, JSONB in PostgreSQL. Values are replaced, never edited in place (edits are not seen)."""
    return JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


class Base(SQLModel):
    metadata = METADATA


class UploadRow(Base, table=True):
    """An uploaded file; its bytes lie beside the database, named by `sha256`. `members` are the files of an archive.

    `waiting` holds what was stated beside a table that has no runs yet, since its columns are not explained.
    """

    __tablename__ = "uploads"
    __table_args__ = (
        UniqueConstraint("sha256"),
        CheckConstraint("length(sha256) = 64", name="sha256_is_hex"),
        CheckConstraint("size_bytes >= 0", name="size_not_negative"),
    )
    id: str = Field(primary_key=True, sa_type=Text)
    sha256: str = Field(sa_type=Text)
    size_bytes: int = Field(sa_type=BigInteger)
    file_name: str = Field(sa_type=Text)
    media_type: str | None = Field(default=None, sa_type=Text)
    format: str = Field(sa_type=Text)
    findings: list[dict[str, Any]] = Field(default_factory=list, sa_column=Column(_json(), nullable=False))
    members: list[dict[str, Any]] | None = Field(default=None, sa_column=Column(_json(), nullable=True))
    waiting: dict[str, Any] | None = Field(default=None, sa_column=Column(_json(), nullable=True))
    created_at: datetime


class MappingRow(Base, table=True):
    """How a table with certain columns is read; `payload` has the API's shape."""

    __tablename__ = "table_mappings"
    __table_args__ = (UniqueConstraint("columns_sha256"),)
    id: str = Field(primary_key=True, sa_type=Text)
    columns_sha256: str = Field(sa_type=Text)
    payload: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    created_at: datetime
    updated_at: datetime


class WorkloadRow(Base, table=True):
    """A saved workload; `payload` has the API's shape."""

    __tablename__ = "workloads"
    __table_args__ = (CheckConstraint("revision >= 1", name="revision_positive"),)
    id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    model_id: str | None = Field(default=None, sa_type=Text)
    payload: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    revision: int = 1
    created_at: datetime
    updated_at: datetime


class RunRow(Base, table=True):
    """What lists of runs show and filter by. Everything large is in `run_details`."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("id"),
        UniqueConstraint("upload_id", "position"),
        CheckConstraint("position >= 0", name="position_not_negative"),
        CheckConstraint("baseline_run_id <> id", name="not_its_own_baseline"),
        Index(None, "created_at"),
        Index(None, "hardware_id"),
        Index(None, "model_id"),
        Index(None, "format"),
        Index(None, "workload_id"),
        Index(None, "baseline_run_id"),
        Index(None, "series_key"),
    )
    seq: int | None = Field(default=None, primary_key=True)
    id: str = Field(sa_type=Text)
    upload_id: str = Field(sa_column=Column(Text, ForeignKey("uploads.id", ondelete="RESTRICT"), nullable=False))
    position: int
    name: str = Field(sa_type=Text)
    format: str = Field(sa_type=Text)
    created_at: datetime
    measured_at: str | None = Field(default=None, sa_type=Text)
    hardware_id: str | None = Field(default=None, sa_type=Text)
    hardware_hint: str | None = Field(default=None, sa_type=Text)
    hardware_is_guess: bool = False
    model_id: str | None = Field(default=None, sa_type=Text)
    model_hint: str | None = Field(default=None, sa_type=Text)
    model_is_guess: bool = False
    workload_id: str | None = Field(
        default=None, sa_column=Column(Text, ForeignKey("workloads.id", ondelete="SET NULL"), nullable=True)
    )
    tags: list[str] = Field(default_factory=list, sa_column=Column(_json(), nullable=False))
    is_example: bool = False
    is_baseline: bool = False
    baseline_run_id: str | None = Field(
        default=None, sa_column=Column(Text, ForeignKey("runs.id", ondelete="SET NULL"), nullable=True)
    )
    summary: dict[str, float] = Field(default_factory=dict, sa_column=Column(_json(), nullable=False))
    series_key: str | None = Field(default=None, sa_type=Text)
    series_name: str | None = Field(default=None, sa_type=Text)


class RunDetailsRow(Base, table=True):
    """The large part of a run, one row for each, read only when the run itself is opened."""

    __tablename__ = "run_details"
    run_id: str = Field(
        sa_column=Column(Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, nullable=False)
    )
    metrics: list[dict[str, Any]] = Field(sa_column=Column(_json(), nullable=False))
    workload: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    workload_overrides: dict[str, Any] = Field(default_factory=dict, sa_column=Column(_json(), nullable=False))
    facts: dict[str, Any] = Field(default_factory=dict, sa_column=Column(_json(), nullable=False, server_default="{}"))
    acknowledged: list[dict[str, str]] = Field(
        default_factory=list, sa_column=Column(_json(), nullable=False, server_default="[]")
    )
    parallel: dict[str, int] = Field(sa_column=Column(_json(), nullable=False))
    software: dict[str, str] = Field(sa_column=Column(_json(), nullable=False))
    series: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    kernels: list[dict[str, Any]] = Field(sa_column=Column(_json(), nullable=False))
    timeline: dict[str, Any] | None = Field(default=None, sa_column=Column(_json(), nullable=True))
    samples: dict[str, list[float]] = Field(sa_column=Column(_json(), nullable=False))
    evidence: dict[str, float] = Field(sa_column=Column(_json(), nullable=False))
    findings: list[dict[str, Any]] = Field(sa_column=Column(_json(), nullable=False))
    notes: str | None = Field(default=None, sa_type=Text)


class RememberedLinkRow(Base, table=True):
    """What a file's wording for a device or model means to this team, as somebody corrected it once."""

    __tablename__ = "remembered_links"
    __table_args__ = (
        UniqueConstraint("kind", "hint_key"),
        CheckConstraint("kind IN ('hardware', 'model')", name="kind_known"),
    )
    id: str = Field(primary_key=True, sa_type=Text)
    kind: str = Field(sa_type=Text)
    hint_key: str = Field(sa_type=Text)
    hint: str = Field(sa_type=Text)
    target_id: str = Field(sa_type=Text)
    created_at: datetime


class HardwareRow(Base, table=True):
    """A team's own hardware profile; the shipped ones are files. `payload` has the catalogue's JSON shape, in SI."""

    __tablename__ = "hardware_profiles"
    __table_args__ = (CheckConstraint("revision >= 1", name="revision_positive"),)
    id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    copied_from: str | None = Field(default=None, sa_type=Text)
    payload: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    revision: int = 1
    created_at: datetime
    updated_at: datetime


class ModelRow(Base, table=True):
    """A team's own model; `payload` has the catalogue's JSON shape."""

    __tablename__ = "models"
    __table_args__ = (CheckConstraint("revision >= 1", name="revision_positive"),)
    id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    copied_from: str | None = Field(default=None, sa_type=Text)
    payload: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    revision: int = 1
    created_at: datetime
    updated_at: datetime


class ComparisonRow(Base, table=True):
    """A frozen comparison. `snapshot` holds everything a reader sees; the row is never changed, only deleted."""

    __tablename__ = "comparisons"
    __table_args__ = (
        UniqueConstraint("id"),
        CheckConstraint("baseline >= 0", name="baseline_not_negative"),
        Index(None, "created_at"),
    )
    seq: int | None = Field(default=None, primary_key=True)
    id: str = Field(sa_type=Text)
    title: str = Field(sa_type=Text)
    notes: str = Field(default="", sa_type=Text)
    baseline: int = 0
    item_count: int = 0
    app_version: str = Field(sa_type=Text)
    snapshot: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    created_at: datetime


class ShareRow(Base, table=True):
    """A link to a comparison. The token itself is never stored, only its SHA-256."""

    __tablename__ = "shares"
    __table_args__ = (
        UniqueConstraint("token_sha256"),
        CheckConstraint("length(token_sha256) = 64", name="token_is_hashed"),
        CheckConstraint("expires_at IS NULL OR expires_at > created_at", name="expires_after_creation"),
        Index(None, "comparison_id"),
    )
    id: str = Field(primary_key=True, sa_type=Text)
    token_sha256: str = Field(sa_type=Text)
    comparison_id: str = Field(sa_column=Column(Text, ForeignKey("comparisons.id", ondelete="CASCADE"), nullable=False))
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class DiagnosisRow(Base, table=True):
    """A frozen walk through a decision tree. `snapshot` holds everything a reader sees; only deleted, never changed.

    `run_id` refers to nothing: a walk outlives the run that it was about.
    """

    __tablename__ = "diagnoses"
    __table_args__ = (UniqueConstraint("id"), Index(None, "created_at"), Index(None, "scenario"), Index(None, "run_id"))
    seq: int | None = Field(default=None, primary_key=True)
    id: str = Field(sa_type=Text)
    scenario: str = Field(sa_type=Text)
    title: str = Field(sa_type=Text)
    notes: str = Field(default="", sa_type=Text)
    run_id: str | None = Field(default=None, sa_type=Text)
    headline: str = Field(default="", sa_type=Text)
    app_version: str = Field(sa_type=Text)
    snapshot: dict[str, Any] = Field(sa_column=Column(_json(), nullable=False))
    created_at: datetime


class DiagnosisShareRow(Base, table=True):
    """A link to a diagnosis, as `shares` has them to comparisons."""

    __tablename__ = "diagnosis_shares"
    __table_args__ = (
        UniqueConstraint("token_sha256"),
        CheckConstraint("length(token_sha256) = 64", name="token_is_hashed"),
        CheckConstraint("expires_at IS NULL OR expires_at > created_at", name="expires_after_creation"),
        Index(None, "diagnosis_id"),
    )
    id: str = Field(primary_key=True, sa_type=Text)
    token_sha256: str = Field(sa_type=Text)
    diagnosis_id: str = Field(sa_column=Column(Text, ForeignKey("diagnoses.id", ondelete="CASCADE"), nullable=False))
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class ChecklistRow(Base, table=True):
    """A team's copy of a checklist of the library. `ticks` maps an item to when it was ticked; who did is not kept."""

    __tablename__ = "checklists"
    __table_args__ = (UniqueConstraint("id"), Index(None, "updated_at"))
    seq: int | None = Field(default=None, primary_key=True)
    id: str = Field(sa_type=Text)
    list_id: str = Field(sa_type=Text)
    title: str = Field(sa_type=Text)
    ticks: dict[str, str] = Field(default_factory=dict, sa_column=Column(_json(), nullable=False))
    created_at: datetime
    updated_at: datetime


class ChecklistShareRow(Base, table=True):
    """A link to a team's checklist. The token itself is never stored, only its SHA-256."""

    __tablename__ = "checklist_shares"
    __table_args__ = (
        UniqueConstraint("token_sha256"),
        CheckConstraint("length(token_sha256) = 64", name="token_is_hashed"),
        CheckConstraint("expires_at IS NULL OR expires_at > created_at", name="expires_after_creation"),
        Index(None, "checklist_id"),
    )
    id: str = Field(primary_key=True, sa_type=Text)
    token_sha256: str = Field(sa_type=Text)
    checklist_id: str = Field(sa_column=Column(Text, ForeignKey("checklists.id", ondelete="CASCADE"), nullable=False))
    can_tick: bool = False
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
