"""Each exception becomes one answer: a problem document for the API, a page or fragment for readers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from app.catalog.names import AmbiguousName, UnknownName
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.importers.base import UnreadableUpload
from app.settings import Settings
from app.storage.errors import Busy, Conflict, InvalidQuery, InvalidValue, NotFound
from app.web import errors, security
from app.web.errors import FiniteJSONResponse

CASES = {
    "invalid-input": (InvalidInput(("workload", "batch"), "must be at least 1"), 422),
    "missing-figure": (MissingFigure("A100", "peak fp8 throughput"), 422),
    "unsupported-architecture": (UnsupportedArchitecture("Mamba", "state-space layers"), 422),
    "unknown-name": (UnknownName("hardware profile", "h1000", ("h100-sxm",)), 422),
    "ambiguous-name": (AmbiguousName("model", "llama", ("llama-3-8b", "llama-3-70b")), 422),
    "not-found": (NotFound("run", "abc"), 404),
    "conflict": (Conflict("a model 'x' is stored already"), 409),
    "busy": (Busy("the database is busy with another change"), 429),
    "invalid-query": (InvalidQuery("sort", "unknown key 'colour'"), 422),
    "invalid-value": (InvalidValue("text holds half of a surrogate pair"), 422),
    "unreadable-upload": (
        UnreadableUpload("not-recognised", "This is a poem.", hint="Upload numbers.", accepts=("vLLM", "llama-bench")),
        422,
    ),
    "teapot": (HTTPException(418, "short and stout"), 418),
    "too-large": (HTTPException(413), 413),
    "unexpected": (RuntimeError("secret detail of the inside"), 500),
}


@pytest.fixture(scope="module")
def raising() -> Iterator[TestClient]:
    """An app whose addresses raise the exception they are named after."""
    app = FastAPI(openapi_url=None)
    errors.register(app)

    @app.get("/api/v1/raise/{name}")
    @app.get("/raise/{name}")
    def raise_it(name: str) -> None:
        raise CASES[name][0]

    @app.get("/api/v1/named/{hardware}")
    def named(hardware: str) -> None:
        raise (UnknownName if hardware == "h1000" else AmbiguousName)("hardware profile", hardware, ("a", "b"))

    security.protect(app, Settings())
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize("name", CASES)
def test_the_api_answers_a_problem_document(raising: TestClient, name: str) -> None:
    answer = raising.get(f"/api/v1/raise/{name}")
    body = answer.json()
    assert answer.status_code == CASES[name][1] == body["status"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"].startswith("/api/docs#problem-")
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("name", CASES)
def test_a_reader_gets_a_page_and_htmx_a_fragment(raising: TestClient, name: str) -> None:
    page = raising.get(f"/raise/{name}")
    part = raising.get(f"/raise/{name}", headers={"HX-Request": "true"})
    assert page.status_code == part.status_code == CASES[name][1]
    assert page.headers["content-type"] == part.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    assert "<html" not in part.text
    assert page.headers["x-request-id"] in page.text
    assert "HX-Request" in page.headers["vary"]


def test_bad_input_names_the_field(raising: TestClient) -> None:
    body = raising.get("/api/v1/raise/invalid-input").json()
    assert body["errors"] == [{"loc": ["workload", "batch"], "msg": "must be at least 1"}]


def test_a_name_in_a_body_is_bad_input_and_one_in_the_path_is_not_found(raising: TestClient) -> None:
    in_body = raising.get("/api/v1/raise/unknown-name").json()
    assert in_body["errors"][0]["loc"] == ["hardware"]
    assert in_body["candidates"] == ["h100-sxm"]
    in_path = raising.get("/api/v1/named/h1000")
    assert in_path.status_code == 404
    shared = raising.get("/api/v1/named/h100")
    assert shared.status_code == 409
    assert shared.json()["candidates"] == ["a", "b"]


def test_busy_says_when_to_try_again(raising: TestClient) -> None:
    assert raising.get("/api/v1/raise/busy").headers["retry-after"] == "1"


def test_an_unreadable_upload_says_what_was_seen_and_what_is_read(raising: TestClient) -> None:
    body = raising.get("/api/v1/raise/unreadable-upload").json()
    assert body["seen"] == "This is a poem."
    assert body["accepts"] == ["vLLM", "llama-bench"]
    assert body["reason"] == "not-recognised"
    page = raising.get("/raise/unreadable-upload").text
    assert "This is a poem." in page
    assert "vLLM, llama-bench" in page


def test_nothing_of_an_unexpected_exception_is_shown(raising: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="bytebound.web"):
        answers = [raising.get("/api/v1/raise/unexpected"), raising.get("/raise/unexpected")]
    for answer in answers:
        assert "secret" not in answer.text
        assert "RuntimeError" not in answer.text
        assert answer.headers["content-security-policy"]
        assert answer.headers["x-request-id"] in caplog.text
    assert "secret detail of the inside" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing/here", 404),
        ("GET", "/nothing/here", 404),
        ("PATCH", "/api/v1/formats", 405),
        ("DELETE", "/healthz", 405),
    ],
)
def test_addresses_and_methods_that_do_not_exist(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    is_json = answer.headers["content-type"] == "application/problem+json"
    assert is_json == (path.startswith("/api/") or path == "/healthz")


BOUND = "/api/v1/estimates/bound"


def loc_and_message(client: TestClient, body: object, path: str = BOUND) -> list[tuple[str, str]]:
    answer = client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    return [(".".join(map(str, e["loc"])), e["msg"]) for e in answer.json()["errors"]]


def test_places_are_paths_in_the_body(client: TestClient) -> None:
    found = loc_and_message(client, {"hardware": "h", "workload": {"batch": 0, "colour": 1}})
    assert found == [
        ("model", "is missing"),
        ("workload.batch", "must be greater than or equal to 1"),
        ("workload.colour", "is not a known field"),
    ]


def test_a_field_that_takes_text_or_an_object_is_reported_once(client: TestClient) -> None:
    ((place, message),) = loc_and_message(client, {"hardware": 5, "model": "llama-3.1-8b"})
    assert place == "hardware"
    assert "string" in message
    assert "JSON object" in message


def test_names_of_types_are_no_part_of_a_place(client: TestClient) -> None:
    found = loc_and_message(client, {"hardware": "h", "op": {"op": "gemm", "n": 4}}, "/api/v1/estimates/op")
    assert found == [("op.k", "is missing")]


@pytest.mark.parametrize("value", [True, "8", 8.5, None, [8]])
def test_a_wrong_type_is_not_bent_into_a_number(client: TestClient, value: object) -> None:
    body = {"hardware": "nvidia-h100-sxm", "model": "llama-3.1-8b", "workload": {"batch": value}}
    assert [place for place, _ in loc_and_message(client, body)] == ["workload.batch"]


def test_json_out_has_no_numbers_that_json_has_not() -> None:
    content = {"a": float("nan"), "b": [float("inf"), 1.5], "c": np.float64("-inf"), "d": np.arange(2), "e": "\ud800"}
    body = json.loads(FiniteJSONResponse(content).body)
    assert body == {"a": None, "b": [None, 1.5], "c": None, "d": [0, 1], "e": "?"}


def test_every_kind_is_explained_on_the_page_that_its_type_names(client: TestClient) -> None:
    page = client.get("/api/docs").text
    for kind in errors.KINDS.values():
        assert f'id="{kind.type.partition("#")[2]}"' in page
