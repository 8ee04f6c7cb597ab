"""The API's description, for machines and as a page that needs no script from elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from app.importers.native import RUN_SCHEMA
from app.web import rendering
from app.web.deps import Ctx
from app.web.errors import KINDS, FiniteJSONResponse

router = APIRouter()

OPENAPI_URL: Final = "/api/openapi.json"


@router.get(OPENAPI_URL, include_in_schema=False)
def openapi_json(request: Request) -> Response:
    """The OpenAPI 3.1 description."""
    return FiniteJSONResponse(request.app.openapi())


@router.get(
    "/api/v1/schema/run.json",
    tags=["formats"],
    summary="JSON Schema of our own run format",
    responses={200: {"content": {"application/schema+json": {"schema": {"type": "object"}}}}},
    response_class=FiniteJSONResponse,
)
def run_schema() -> Response:
    """The schema of files that a harness of your own can write; uploads of that format are checked against it."""
    return FiniteJSONResponse(RUN_SCHEMA, media_type="application/schema+json")


@router.get("/api/docs", include_in_schema=False)
def api_docs(request: Request, ctx: Ctx) -> Response:
    """Every call with its parameters, an example body and a curl line, made from the description itself."""
    schema = request.app.openapi()
    base = ctx.settings.public_url or str(request.base_url).rstrip("/")
    context = {
        "groups": _groups(schema, base),
        "objects": list(_objects(schema)),
        "kinds": list(KINDS.values()),
        "about": _paragraphs(schema["info"]["description"]),
        "openapi_url": OPENAPI_URL,
    }
    return rendering.page(request, "api_docs.html", context)


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter, or one field of an object."""

    name: str
    type: str
    required: bool
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    title: str
    body: str
    curl: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One call as the page shows it; `id` is its anchor."""

    id: str
    method: str
    path: str
    summary: str
    text: tuple[str, ...]
    parameters: tuple[Field, ...]
    body: str
    examples: tuple[Example, ...]
    answers: tuple[tuple[str, str, str], ...]


def _groups(schema: Mapping[str, Any], base: str) -> list[tuple[str, str, list[Operation]]]:
    """Tag, its description, and its operations, in the order of the tags."""
    texts = {tag["name"]: tag.get("description", "") for tag in schema.get("tags", ())}
    found: dict[str, list[Operation]] = {name: [] for name in texts}
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            tag = (operation.get("tags") or ["other"])[0]
            found.setdefault(tag, []).append(_operation(base, path, method, operation))
    return [(tag, texts.get(tag, ""), operations) for tag, operations in found.items() if operations]


def _operation(base: str, path: str, method: str, operation: Mapping[str, Any]) -> Operation:
    content = operation.get("requestBody", {}).get("content", {})
    body_schema = next((part.get("schema", {}) for part in content.values()), None)
    return Operation(
        id=f"{method}-{path.strip('/').replace('/', '-').replace('{', '').replace('}', '')}",
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        text=_paragraphs(operation.get("description", "")),
        parameters=tuple(
            Field(
                parameter["name"],
                _type(parameter.get("schema", {})),
                bool(parameter.get("required")),
                parameter.get("description") or parameter.get("schema", {}).get("description", ""),
                parameter["in"],
            )
            for parameter in operation.get("parameters", ())
        ),
        body="" if body_schema is None else f"{', '.join(content)}: {_type(body_schema)}",
        examples=tuple(_examples(base, path, method, content)),
        answers=tuple(
            (status, answer.get("description", ""), _answer_type(answer))
            for status, answer in sorted(operation.get("responses", {}).items())
        ),
    )


def _paragraphs(text: str) -> tuple[str, ...]:
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())


def _examples(base: str, path: str, method: str, content: Mapping[str, Any]) -> Iterator[Example]:
    address = base + path.replace("{", "<").replace("}", ">")
    verb = [] if method == "get" else ["-X", method.upper()]
    if "multipart/form-data" in content:
        yield Example("", "", f"curl -F file=@result.json {shlex.quote(address)}")
        return
    json_content = content.get("application/json")
    if json_content is None:
        yield Example("", "", " ".join(["curl", *verb, shlex.quote(address)]))
        return
    given: dict[str, Any] = {
        name: (example.get("summary", name), example.get("value"))
        for name, example in json_content.get("examples", {}).items()
    }
    if "example" in json_content:
        given.setdefault("example", ("", json_content["example"]))
    for title, value in given.values() or [("", {})]:
        # -d makes it a POST by itself
        words = ["curl", *([] if method == "post" else verb), shlex.quote(address)]
        curl = f"{' '.join(words)} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(json.dumps(value))}"
        yield Example(title, json.dumps(value, indent=2) if value else "", curl)


def _answer_type(answer: Mapping[str, Any]) -> str:
    for media_type, part in answer.get("content", {}).items():
        return f"{media_type}: {_type(part.get('schema', {}))}"
    return ""


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Field]]]:
    """Every object of the description with its fields."""
    for name, part in sorted(schema.get("components", {}).get("schemas", {}).items()):
        required = set(part.get("required", ()))
        fields = [
            Field(field, _type(value), field in required, _field_text(value))
            for field, value in part.get("properties", {}).items()
        ]
        if fields:
            yield name, part.get("description", ""), fields


def _field_text(value: Mapping[str, Any]) -> str:
    text = str(value.get("description", ""))
    default = value.get("default")
    if default is None or isinstance(default, (dict, list)):
        return text
    return f"{text} Default {json.dumps(default)}.".strip()


def _type(schema: Mapping[str, Any]) -> str:
    """A type in words: `integer 1..200`, `bf16 | fp16`, `list of OpRow`, `BoundAnswer or null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(part) for part in schema[key]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if kind == "string" and schema.get("format") == "binary":
        return "file"
    return f"{kind}{_range(schema)}"


def _range(schema: Mapping[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    if high is None:
        return f" from {low:g}"
    return f" up to {high:g}" if low is None else f" {low:g} to {high:g}"
