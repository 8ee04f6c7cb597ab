"""Every format is described on the page and by the API, and says whether it was tried on a real file."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.importers import guide
from app.importers.registry import IMPORTERS


def test_every_format_says_how_it_is_made_and_what_is_read() -> None:
    missing = {importer.id for importer in IMPORTERS} - set(guide.GUIDES)
    assert not missing, f"say in app/importers/guide.py how such files are made: {sorted(missing)}"


def test_the_page_and_the_api_name_all_of_them(client: TestClient) -> None:
    page = client.get("/formats").text
    answer = client.get("/api/v1/formats").json()
    assert {item["id"] for item in answer["items"]} == {importer.id for importer in IMPORTERS} | {"table", "zip"}
    for item in answer["items"]:
        assert f'id="{item["id"]}"' in page
        assert all(item[key] for key in ("tool", "make", "reads"))
    untried = sum(not importer.tried_on_real_file for importer in IMPORTERS)
    assert page.count("not yet tried on a real file") == untried
    assert all(item["advice"] or item["title"] for item in answer["refused"])


def test_the_page_is_linked_from_the_runs(client: TestClient) -> None:
    assert 'href="/formats"' in client.get("/runs").text
