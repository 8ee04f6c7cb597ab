"""Is it up, ready, and which version is it?"""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from app import __version__
from app.main import create_app
from app.settings import Settings


def test_up_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready", "reason": None}


def test_the_version(client: TestClient) -> None:
    answer = client.get("/version").json()
    assert (answer["version"], answer["api"]) == (__version__, "v1")


def test_without_tables_it_is_up_and_not_ready_and_says_what_to_do(tmp_path: Path) -> None:
    client = TestClient(create_app(Settings(data_dir=tmp_path / "new")))
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "bytebound migrate" in answer.json()["reason"]
