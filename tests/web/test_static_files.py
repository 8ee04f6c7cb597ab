"""Files under /static: compressed twins, caching, and what is not served."""

from __future__ import annotations

import gzip

import pytest
from fastapi.testclient import TestClient

from app.web.rendering import STATIC, vendor
from app.web.static_files import takes_gzip


def test_a_versioned_file_is_kept_for_ever_and_others_are_asked_for(client: TestClient) -> None:
    for_ever = "public, max-age=31536000, immutable"
    assert client.get(vendor("htmx.js")).headers["cache-control"] == for_ever
    assert client.get("/static/css/app.css?v=0123456789ab").headers["cache-control"] == for_ever
    assert client.get("/static/css/app.css").headers["cache-control"] == "no-cache"


def test_the_compressed_twin_is_served_to_who_takes_it(client: TestClient) -> None:
    address = vendor("plotly.js")
    plain = (STATIC / address.removeprefix("/static/")).read_bytes()
    twin = (STATIC / f"{address.removeprefix('/static/')}.gz").read_bytes()
    assert gzip.decompress(twin) == plain
    compressed = client.get(address, headers={"Accept-Encoding": "gzip"})
    assert compressed.headers["content-encoding"] == "gzip"
    assert int(compressed.headers["content-length"]) == len(twin)
    assert compressed.headers["content-type"].startswith("text/javascript")
    assert compressed.headers["vary"] == "Accept-Encoding"
    assert compressed.content == plain
    identity = client.get(address, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in identity.headers
    assert identity.content == plain


def test_a_known_file_is_not_sent_again(client: TestClient) -> None:
    for headers in ({"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity"}):
        first = client.get(vendor("htmx.js"), headers=headers)
        again = client.get(vendor("htmx.js"), headers={**headers, "If-None-Match": first.headers["etag"]})
        assert again.status_code == 304
        assert again.content == b""


@pytest.mark.parametrize(
    "path",
    [
        "/static/vendor/.stamp",
        "/static/../pyproject.toml",
        "/static/%2e%2e/pyproject.toml",
        "/static/vendor/htmx-4.0.1.min.js.gz",
        "/static/css",
        "/static/",
        "/static/nothing.css",
        "/static/%00",
        "/static/" + "a" * 5000,
    ],
)
def test_what_is_not_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_change_of_a_file_is_refused(client: TestClient) -> None:
    assert client.put("/static/css/app.css", content=b"x").status_code == 405


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        ("", False),
        ("gzip", True),
        ("br, gzip;q=0.8", True),
        ("GZIP", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("deflate, br", False),
    ],
)
def test_accept_encoding(header: str, taken: bool) -> None:
    assert takes_gzip(header) is taken
