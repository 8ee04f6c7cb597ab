"""What an archive's files came to, and how tables of known columns are read.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("uploads", sa.Column("members", JSON, nullable=True))
    op.create_table(
        "table_mappings",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("columns_sha256", sa.Text(), nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("updated_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_mappings")),
        sa.UniqueConstraint("columns_sha256", name=op.f("uq_table_mappings_columns_sha256")),
    )


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
