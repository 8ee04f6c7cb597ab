"""What most tests need: a data folder of their own with tables, the running product's context, and a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import settings as hypothesis_settings

from app.main import create_app
from app.services.context import Context
from app.settings import RateLimits, Settings
from app.storage import migrate
from app.storage.store import open_storage

# The same examples on every run: a change is judged by what it changes, not by luck. `--hypothesis-profile=search`
# looks for new ones.
hypothesis_settings.register_profile("fixed", derandomize=True)
hypothesis_settings.register_profile("search", derandomize=False)
hypothesis_settings.load_profile("fixed")

NO_LIMITS = RateLimits(uploads_per_minute=0, estimates_per_minute=0, share_lookups_per_minute=0)


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all tables; tests copy it, since a copy is faster than a migration."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("migrated"))
    storage = open_storage(settings)
    migrate.upgrade(storage.engine)
    storage.close()
    assert settings.database_path is not None
    return settings.database_path


@pytest.fixture
def settings(tmp_path: Path, migrated_database: Path) -> Settings:
    """Settings with a fresh data folder whose database has all tables, and without rate limits."""
    found = Settings(data_dir=tmp_path / "data", rate_limits=NO_LIMITS)
    assert found.database_path is not None
    found.data_dir.mkdir()
    found.database_path.write_bytes(migrated_database.read_bytes())
    return found


@pytest.fixture
def app(settings: Settings) -> Iterator[FastAPI]:
    """The app on the fresh data folder."""
    made = create_app(settings)
    yield made
    made.state.context.storage.close()


@pytest.fixture
def context(app: FastAPI) -> Context:
    """What services work with; the same storage as `client`'s."""
    found: Context = app.state.context
    return found


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A client of the app that does not follow redirects, as scripts do not."""
    with TestClient(app, follow_redirects=False) as made:
        yield made
