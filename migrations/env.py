"""Runs migrations on the connection that `app.storage.migrate` hands over, or on the settings' database."""

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa
from alembic import context
from sqlmodel.sql.sqltypes import UTCDateTime

from app.settings import load_settings
from app.storage.migrate import migration_engine
from app.storage.tables import METADATA

INDEX_TABLE = "run_search"
"""The text index and its shadow tables (`run_search_data`, ...) are SQLite's own and have no table class."""


def is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    return not (kind == "table" and name is not None and name.split("_")[:2] == INDEX_TABLE.split("_"))


def render_type(kind: str, item: Any, _autogen: Any) -> str | Literal[False]:
    """Write types into a new migration as SQLAlchemy's own, so that an old migration needs nothing of this project."""
    if kind == "type" and isinstance(item, sa.JSON):
        return 'sa.JSON(none_as_null=True).with_variant(sa.dialects.postgresql.JSONB(none_as_null=True), "postgresql")'
    if kind == "type" and isinstance(item, UTCDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        include_name=is_ours,
        render_item=render_type,
        render_as_batch=True,
        compare_type=True,
        # Everything happens in the one transaction that the connection has begun: all migrations or none.
        transactional_ddl=True,
    )
    context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("migrations need a database: they read what it holds, so they cannot be written out as SQL")

given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    settings = load_settings()
    engine = migration_engine(settings.database_path or settings.database_url or "")
    with engine.begin() as opened:
        run(opened)
