"""Text index over runs, filled from the runs that are stored already.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return  # other databases are searched with LIKE
    has_fts5 = connection.execute(sa.text("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'")).first()
    if has_fts5 is None:
        return  # so is an SQLite that was built without the index
    op.execute(
        "CREATE VIRTUAL TABLE run_search USING fts5(name, labels, notes, tokenize = 'unicode61 remove_diacritics 2')"
    )
    rows = connection.execute(
        sa.text(
            "SELECT r.seq, r.name, r.format, r.hardware_id, r.hardware_hint, r.model_id, r.model_hint, u.file_name, "
            "r.tags, d.notes FROM runs r JOIN uploads u ON u.id = r.upload_id "
            "LEFT JOIN run_details d ON d.run_id = r.id"
        )
    )
    for row in rows.all():
        labels = [*row[2:8], *json.loads(row.tags)]
        connection.execute(
            sa.text("INSERT INTO run_search (rowid, name, labels, notes) VALUES (:seq, :name, :labels, :notes)"),
            {
                "seq": row.seq,
                "name": row.name,
                "labels": " ".join(filter(None, labels)),
                "notes": row.notes or "",
            },
        )


def downgrade() -> None:
    # Forward only: the way back is the backup that was made before.
    raise NotImplementedError("there is no way back to an older version: restore a backup")
