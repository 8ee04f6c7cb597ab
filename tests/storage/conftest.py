"""A real database file and a real blob folder for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import migrate
from app.storage.store import Storage, open_storage


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all tables, made by the migrations once; tests copy it."""
    path = tmp_path_factory.mktemp("migrated") / "empty.sqlite3"
    migrate.upgrade(path)
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def storage(settings: Settings, migrated_database: Path) -> Iterator[Storage]:
    assert settings.database_path is not None
    settings.data_dir.mkdir()
    shutil.copyfile(migrated_database, settings.database_path)
    opened = open_storage(settings)
    yield opened
    opened.close()
