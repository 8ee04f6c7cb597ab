"""Every page: hostile addresses and forms are answered, never with a 5xx, and come back as text, never as markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import RateLimits, Settings
from app.web.errors import is_api
from app.web.routes import ROUTERS

MARKUP = "<img src=x onerror=alert(1)>"
HOSTILE = ("", "nan", "1e999", "-1", "9" * 400, "\x00\x1b", "🙈", MARKUP, '"><script>alert(1)</script>', "a" * 1000)
"""What a field may be filled with. The page has to say what is wrong with it, or leave it."""

ROUTES = sorted(
    {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods or ()
        if not is_api(route.path) or route.path == "/api/docs"
    }
)
PAGES = [path for method, path in ROUTES if method == "GET" and "{" not in path]
BY_ID = [path for method, path in ROUTES if method == "GET" and "{" in path]
ACTIONS = [(method, path) for method, path in ROUTES if method not in ("GET", "HEAD")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("pages"), rate_limits=RateLimits(0, 0, 0))
    assert settings.database_path is not None
    settings.database_path.write_bytes(migrated_database.read_bytes())
    with TestClient(create_app(settings), follow_redirects=False) as made:
        yield made


def check(client: TestClient, method: str, path: str, **request: object) -> None:
    answer = client.request(method, path, **request)  # type: ignore[arg-type]
    where = f"{method} {path} {request}"[:600]
    assert answer.status_code < 500, where
    assert MARKUP not in answer.text, where
    assert "<script>alert" not in answer.text, where
    assert "Traceback" not in answer.text, where


def fields_of(html: str) -> list[str]:
    """Names of the controls on a page."""
    return sorted({unescape(name) for name in re.findall(r"<(?:input|select|textarea)[^>]*\sname=\"([^\"]+)\"", html)})


def test_there_are_pages() -> None:
    assert {"/", "/explore", "/runs", "/hardware", "/models", "/comparisons"} <= set(PAGES)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_and_its_fragment_open(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code in (200, 302, 303, 307, 404), path
    if "<html" in page.text:
        # what a reader without scripts needs: a heading, and beside each chart its numbers
        assert page.text.count("<h1") == 1
        assert page.text.count("data-chart ") == page.text.count('<details class="chart-table"')
    assert client.get(path, headers={"HX-Request": "true"}).status_code == page.status_code


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}], ids=["page", "fragment"])
def test_any_value_in_any_field_is_answered(client: TestClient, path: str, headers: dict[str, str]) -> None:
    names = [*fields_of(client.get(path).text), "cursor", "limit", "sort", "q"]
    for value in HOSTILE:
        check(client, "GET", path, params=dict.fromkeys(names, value), headers=headers)
    if not headers:
        return  # a page and its fragment read fields by the same code, and a fragment is quicker made
    for position, name in enumerate(names):
        # each field alone, since a page may stop at the first that is wrong; twice where a page may expect it once
        value = HOSTILE[position % len(HOSTILE)]
        check(client, "GET", path, params={name: value}, headers=headers)
        check(client, "GET", path, params=[(name, "1"), (name, value)], headers=headers)


@pytest.mark.parametrize("path", BY_ID)
def test_any_id_is_answered(client: TestClient, path: str) -> None:
    for value in ("nothing", "%00", "%F0%9F%99%88", "%ED%A0%80", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "a" * 3000):
        answer = client.get(re.sub(r"\{[^}]+\}", value, path))
        assert answer.status_code in (404, 422), f"{path} {value[:40]}: {answer.status_code}"
        assert "<script>alert" not in answer.text


@pytest.mark.parametrize(("method", "path"), ACTIONS)
def test_any_form_is_answered(client: TestClient, method: str, path: str) -> None:
    address = re.sub(r"\{[^}]+\}", "nothing", path)
    page = client.get(address)
    names = {*fields_of(page.text), "name", "title", "file", "items", "item", "run", "id", "baseline", "tags", "data"}
    check(client, method, address)
    for value in HOSTILE:
        form = dict.fromkeys(names, value)
        check(client, method, address, data=form)
        check(client, method, address, data=form, headers={"HX-Request": "true"})
        check(client, method, address, files={name: (value or "x", value.encode()) for name in names})
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x", "application/json", "text/plain"):
        for content in (b"", b"--x\r\nbroken", b"{}", b"\xff" * 100):
            check(client, method, address, content=content, headers={"Content-Type": content_type})
