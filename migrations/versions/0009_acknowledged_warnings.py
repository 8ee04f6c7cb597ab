"""Warnings that people acknowledged, with their note; and series that are found anew.

Runs of unknown model and device are of no common series any more, nor are those of two frameworks behind one client.
Series are worked out when they are next asked for.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("run_details", sa.Column("acknowledged", JSON, nullable=False, server_default="[]"))
    op.execute("UPDATE runs SET series_key = NULL")


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
