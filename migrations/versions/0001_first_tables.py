"""First tables: uploads, runs, a team's own hardware, models and workloads, comparisons and their links.

Revision ID: 0001
Revises: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "comparisons",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("baseline", sa.Integer(), nullable=False),
        sa.Column("item_count", sa.Integer(), nullable=False),
        sa.Column("app_version", sa.Text(), nullable=False),
        sa.Column("snapshot", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("baseline >= 0", name=op.f("ck_comparisons_baseline_not_negative")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_comparisons")),
        sa.UniqueConstraint("id", name=op.f("uq_comparisons_id")),
    )
    with op.batch_alter_table("comparisons", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_comparisons_created_at"), ["created_at"], unique=False)

    op.create_table(
        "hardware_profiles",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("copied_from", sa.Text(), nullable=True),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_hardware_profiles_revision_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware_profiles")),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("copied_from", sa.Text(), nullable=True),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_models_revision_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=True),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("findings", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_uploads_sha256_is_hex")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_uploads_size_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
        sa.UniqueConstraint("sha256", name=op.f("uq_uploads_sha256")),
    )
    op.create_table(
        "workloads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_workloads_revision_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workloads")),
    )
    op.create_table(
        "runs",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measured_at", sa.Text(), nullable=True),
        sa.Column("hardware_id", sa.Text(), nullable=True),
        sa.Column("hardware_hint", sa.Text(), nullable=True),
        sa.Column("hardware_is_guess", sa.Boolean(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("model_hint", sa.Text(), nullable=True),
        sa.Column("model_is_guess", sa.Boolean(), nullable=False),
        sa.Column("workload_id", sa.Text(), nullable=True),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("is_example", sa.Boolean(), nullable=False),
        sa.Column("is_baseline", sa.Boolean(), nullable=False),
        sa.Column("baseline_run_id", sa.Text(), nullable=True),
        sa.Column("summary", JSON, nullable=False),
        sa.CheckConstraint("baseline_run_id <> id", name=op.f("ck_runs_not_its_own_baseline")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_runs_position_not_negative")),
        sa.ForeignKeyConstraint(
            ["baseline_run_id"], ["runs.id"], name=op.f("fk_runs_baseline_run_id_runs"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name=op.f("fk_runs_upload_id_uploads"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name=op.f("fk_runs_workload_id_workloads"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
        sa.UniqueConstraint("upload_id", "position", name=op.f("uq_runs_upload_id_position")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_baseline_run_id"), ["baseline_run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_format"), ["format"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_hardware_id"), ["hardware_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_model_id"), ["model_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_workload_id"), ["workload_id"], unique=False)

    op.create_table(
        "shares",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("comparison_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "expires_at IS NULL OR expires_at > created_at", name=op.f("ck_shares_expires_after_creation")
        ),
        sa.CheckConstraint("length(token_sha256) = 64", name=op.f("ck_shares_token_is_hashed")),
        sa.ForeignKeyConstraint(
            ["comparison_id"], ["comparisons.id"], name=op.f("fk_shares_comparison_id_comparisons"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shares")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_shares_token_sha256")),
    )
    with op.batch_alter_table("shares", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_shares_comparison_id"), ["comparison_id"], unique=False)

    op.create_table(
        "run_details",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("metrics", JSON, nullable=False),
        sa.Column("workload", JSON, nullable=False),
        sa.Column("workload_overrides", JSON, nullable=False),
        sa.Column("parallel", JSON, nullable=False),
        sa.Column("software", JSON, nullable=False),
        sa.Column("series", JSON, nullable=False),
        sa.Column("kernels", JSON, nullable=False),
        sa.Column("samples", JSON, nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("findings", JSON, nullable=False),
        sa.Column("notes", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_details_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_details")),
    )


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
