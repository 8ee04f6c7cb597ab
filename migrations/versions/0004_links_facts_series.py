"""Links that are remembered by a file's wording, facts that people add to a run, and the series a run belongs to.

Series keys are filled in when they are first asked for.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "remembered_links",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("hint_key", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('hardware', 'model')", name=op.f("ck_remembered_links_kind_known")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_remembered_links")),
        sa.UniqueConstraint("kind", "hint_key", name=op.f("uq_remembered_links_kind_hint_key")),
    )
    op.add_column("run_details", sa.Column("facts", JSON, nullable=False, server_default="{}"))
    op.add_column("runs", sa.Column("series_key", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("series_name", sa.Text(), nullable=True))
    op.create_index(op.f("ix_runs_series_key"), "runs", ["series_key"])


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
