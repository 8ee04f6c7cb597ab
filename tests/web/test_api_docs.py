"""The API's description and the page made from it."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import RateLimits, Settings

JSON = "application/json"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[TestClient]:
    """One app for all tests here: making the description takes longer than reading it."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("docs"), rate_limits=RateLimits(0, 0, 0))
    assert settings.database_path is not None
    settings.database_path.write_bytes(migrated_database.read_bytes())
    with TestClient(create_app(settings), follow_redirects=False) as made:
        yield made


def described(client: TestClient) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # two routes with one address
        found: dict[str, Any] = client.get("/api/openapi.json").json()
    return found


def operations(client: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    paths = described(client)["paths"]
    return [(path, method, op) for path, item in paths.items() for method, op in item.items()]


def test_it_is_openapi_3_1_of_the_api_alone(client: TestClient) -> None:
    schema = described(client)
    assert schema["openapi"].startswith("3.1.")
    assert {"/api/v1/estimates/bound", "/api/v1/hardware/{hardware}", "/healthz"} <= set(schema["paths"])
    assert all(path.startswith("/api/v1/") or path in ("/healthz", "/readyz", "/version") for path in schema["paths"])
    assert "HTTPValidationError" not in json.dumps(schema)


def test_every_reference_leads_somewhere(client: TestClient) -> None:
    schema = described(client)
    for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(schema)):
        assert reference in schema["components"]["schemas"]


def test_schemas_have_names_of_their_own(client: TestClient) -> None:
    """Two classes of one name are told apart by their modules, which says where our code lies and nothing else."""
    names = client.get("/api/openapi.json").json()["components"]["schemas"]
    assert [name for name in names if "__" in name] == []


def test_every_call_says_what_it_does_and_answers(client: TestClient) -> None:
    for path, method, op in operations(client):
        where = f"{method} {path}"
        assert op["summary"], where
        assert op["tags"], where
        answers = op["responses"]
        good = [status for status in answers if status.startswith("2")]
        assert good, where
        for status, answer in answers.items():
            assert answer["description"], f"{where} {status}"
            if status[0] == "4":
                assert "application/problem+json" in answer["content"], f"{where} {status}"
        if "{" in path:
            assert "404" in answers, where
        if op.get("requestBody", {}).get("content", {}).get(JSON):
            assert {"400", "413", "415", "422"} <= set(answers), where


def test_every_json_body_has_an_example_or_a_named_schema(client: TestClient) -> None:
    for path, method, op in operations(client):
        content = op.get("requestBody", {}).get("content", {}).get(JSON)
        if content is not None:
            has_example = "examples" in content or "example" in content
            assert has_example or "$ref" in json.dumps(content["schema"]), f"{method} {path}"


def example_bodies(client: TestClient) -> list[tuple[str, str, Any]]:
    return [
        (method, path, example["value"])
        for path, method, op in operations(client)
        for example in op.get("requestBody", {}).get("content", {}).get(JSON, {}).get("examples", {}).values()
    ]


def test_examples_work_as_they_are_printed(client: TestClient) -> None:
    tried = [(m, p, body) for m, p, body in example_bodies(client) if "{" not in p]
    assert len(tried) >= 6
    for method, path, body in tried:
        answer = client.request(method, path, json=body)
        assert answer.status_code in (200, 201), f"{path}: {answer.text}"


def test_the_page_lists_every_call_with_a_curl_line(client: TestClient) -> None:
    answer = client.get("/api/docs")
    assert answer.status_code == 200
    text = unescape(re.sub(r"<[^>]+>", "", answer.text))
    for path, method, _ in operations(client):
        assert f"{method.upper()} {path}" in text
    assert "workload" in text


def test_the_curl_lines_are_what_a_shell_reads(client: TestClient) -> None:
    page = client.get("/api/docs").text
    lines = [unescape(line) for line in re.findall(r"<pre[^>]*><code>(curl .*?)</code></pre>", page, re.DOTALL)]
    assert len(lines) >= 10
    for line in lines:
        words = shlex.split(line)
        assert sum(word.startswith("http://testserver/") for word in words) == 1
        if "-d" in words:
            json.loads(words[words.index("-d") + 1])


def test_a_forged_host_is_only_text_on_the_page(client: TestClient) -> None:
    forged = client.get("/api/docs", headers={"Host": 'x"><script>alert(1)</script>'})
    assert "<script>alert" not in forged.text


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_the_frameworks_own_pages_are_off(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404
