"""Teams' checklists, and links to them.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "checklists",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("list_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("ticks", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_checklists")),
        sa.UniqueConstraint("id", name=op.f("uq_checklists_id")),
    )
    with op.batch_alter_table("checklists", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checklists_updated_at"), ["updated_at"], unique=False)
    op.create_table(
        "checklist_shares",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("checklist_id", sa.Text(), nullable=False),
        sa.Column("can_tick", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "expires_at IS NULL OR expires_at > created_at", name=op.f("ck_checklist_shares_expires_after_creation")
        ),
        sa.CheckConstraint("length(token_sha256) = 64", name=op.f("ck_checklist_shares_token_is_hashed")),
        sa.ForeignKeyConstraint(
            ["checklist_id"],
            ["checklists.id"],
            name=op.f("fk_checklist_shares_checklist_id_checklists"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checklist_shares")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_checklist_shares_token_sha256")),
    )
    with op.batch_alter_table("checklist_shares", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checklist_shares_checklist_id"), ["checklist_id"], unique=False)


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
