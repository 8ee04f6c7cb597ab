"""The OpenAPI description: that of the API and the service calls, with every error answer as a problem document."""

from __future__ import annotations

import copy
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.web import errors

DESCRIPTION: Final = """\
Everything that the pages show, for scripts and CI jobs. The pages use the same calculations.

Quantities are SI and their names say the unit: `_s`, `_bytes`, `_flop`, `_flop_per_s`, `_bytes_per_s`, `_tokens`,
`_w`, `_j`. Ratios are 0 to 1. A number that cannot be known is null, never a guess. Errors are problem documents
(`application/problem+json`); for bad input `errors` names each field. Lists answer `items`, `next` (a cursor, or null)
and `total`."""

TAGS: Final = (
    {"name": "estimates", "description": "Least possible and expected times, with their terms, rows and sources."},
    {"name": "hardware", "description": "Hardware profiles, shipped ones and a team's own."},
    {"name": "models", "description": "Model architectures, shipped ones and a team's own."},
    {"name": "workloads", "description": "Saved workloads."},
    {"name": "techniques", "description": "What techniques save, at what price, and which an estimate can apply."},
    {"name": "runs", "description": "Uploaded benchmark results, measured against their bounds."},
    {"name": "comparisons", "description": "Frozen comparisons of runs and estimates, and links to them."},
    {"name": "diagnoses", "description": "Decision trees, walks through them, and links to these."},
    {"name": "formats", "description": "What uploads may look like."},
    {"name": "service", "description": "Is the server up, ready, and which version is it?"},
)

PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457). Kinds carry further members, such as candidates for a name.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "Address that explains the kind of problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["loc", "msg"],
                "properties": {
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "msg": {"type": "string"},
                },
            },
        },
        "request_id": {"type": "string"},
    },
    "additionalProperties": True,
    "example": {
        "type": errors.KINDS["invalid-input"].type,
        "title": errors.KINDS["invalid-input"].title,
        "status": 422,
        "detail": "workload.batch: must be greater than or equal to 1",
        "errors": [{"loc": ["workload", "batch"], "msg": "must be greater than or equal to 1"}],
        "request_id": "5f0c1d2e3a4b",
    },
}

_MEANING: Final = {
    400: "The body is no JSON.",
    403: "A browser sent the change from another site.",
    404: "There is no such thing.",
    409: "It contradicts what is there: a name is taken, a shipped entry cannot change, or another edit came first.",
    413: "The body is too large.",
    415: "The body is of another type.",
    422: "Some values cannot be used; `errors` names each field.",
    429: "Too many requests; wait as long as `Retry-After` says.",
}


def install(app: FastAPI) -> None:
    """Make `app.openapi()` give this description."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def is_described(path: str) -> bool:
    """Whether a path belongs to the API; pages do not."""
    return errors.is_api(path)


def _schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=DESCRIPTION,
        routes=app.routes,
        tags=[dict(tag) for tag in TAGS],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schema["paths"] = {path: item for path, item in schema.get("paths", {}).items() if is_described(path)}
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            _add_problems(path, method, operation)
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    components["Problem"] = copy.deepcopy(PROBLEM_SCHEMA)
    used = {tag for item in schema["paths"].values() for op in item.values() for tag in op.get("tags", ())}
    schema["tags"] = [tag for tag in schema["tags"] if tag["name"] in used]
    return schema


def _add_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    """Name each status that the call may refuse with. What a route documents itself is kept."""
    statuses = {422} if operation.get("parameters") or operation.get("requestBody") else set()
    if "{" in path:
        statuses.add(404)
    if method not in ("get", "head"):
        statuses |= {403, 409, 422, 429}
        if method != "delete":
            statuses |= {400, 404, 413, 415}
    if path.startswith(("/api/v1/estimates/", "/api/v1/shares/")):
        statuses.add(429)
    responses = operation.setdefault("responses", {})
    default_422 = responses.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if default_422.get("$ref", "").endswith("HTTPValidationError"):
        del responses["422"]
    for status in sorted(statuses):
        found = responses.setdefault(str(status), {"description": _MEANING[status]})
        found.setdefault("content", {errors.PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}})
