"""What a profile's timeline came to, beside the kernels of a run.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("run_details", sa.Column("timeline", JSON, nullable=True))


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
