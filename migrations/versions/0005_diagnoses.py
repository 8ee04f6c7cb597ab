"""Diagnoses, and links to them.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "diagnoses",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("scenario", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("headline", sa.Text(), nullable=False),
        sa.Column("app_version", sa.Text(), nullable=False),
        sa.Column("snapshot", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_diagnoses")),
        sa.UniqueConstraint("id", name=op.f("uq_diagnoses_id")),
    )
    with op.batch_alter_table("diagnoses", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_diagnoses_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_diagnoses_run_id"), ["run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_diagnoses_scenario"), ["scenario"], unique=False)
    op.create_table(
        "diagnosis_shares",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("diagnosis_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "expires_at IS NULL OR expires_at > created_at", name=op.f("ck_diagnosis_shares_expires_after_creation")
        ),
        sa.CheckConstraint("length(token_sha256) = 64", name=op.f("ck_diagnosis_shares_token_is_hashed")),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name=op.f("fk_diagnosis_shares_diagnosis_id_diagnoses"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_diagnosis_shares")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_diagnosis_shares_token_sha256")),
    )
    with op.batch_alter_table("diagnosis_shares", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_diagnosis_shares_diagnosis_id"), ["diagnosis_id"], unique=False)


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
