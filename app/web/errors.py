"""Exceptions to answers: one table, and one shape for each kind of reader.

Whatever goes wrong becomes a `Problem`. The API answers it as application/problem+json (RFC 9457), pages as the error
page or its fragment. Nothing that is shown comes from a traceback; the request id leads to the log.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.catalog.names import AmbiguousName, UnknownName
from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.importers.base import UnreadableUpload
from app.importers.table import UnmappedTable
from app.services import tables
from app.storage.errors import Busy, Conflict, InvalidQuery, InvalidValue, NotFound
from app.web import rendering

log = logging.getLogger("bytebound.web")

PROBLEM_JSON: Final = "application/problem+json"
DOCS_URL: Final = "/api/docs"
API_PATHS: Final = ("/api/", "/healthz", "/readyz", "/version")
MAX_ERRORS: Final = 50

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem: its stable word, the status it has, its title, and when it happens (for the docs page)."""

    id: str
    status: int
    title: str
    meaning: str

    @property
    def type(self) -> str:
        """Address that explains the kind."""
        return f"{DOCS_URL}#problem-{self.id}"


def _kinds(*kinds: Kind) -> dict[str, Kind]:
    return {kind.id: kind for kind in kinds}


KINDS: Final = _kinds(
    Kind("malformed", 400, "The request cannot be read", "The body is no JSON, or a part of the request is cut off."),
    Kind("cross-site", 403, "Refused: sent from another site", "A browser sent a change from a page of another site."),
    Kind("not-found", 404, "Not found", "There is no such address, catalogue entry or stored thing."),
    Kind("method-not-allowed", 405, "Not possible here", "The address exists and does not take this method."),
    Kind("conflict", 409, "Conflict", "A name is taken, a shipped entry cannot change, or somebody else edited first."),
    Kind("ambiguous-name", 409, "Several entries have this name", "Say which of `candidates` is meant."),
    Kind("unknown-host", 421, "Not this server's name", "The server listens on its own machine alone, by other names."),
    Kind("too-large", 413, "Too large", "The body is larger than the server takes."),
    Kind("unsupported-media-type", 415, "Wrong content type", "The body is not of a type that this address takes."),
    Kind("invalid-input", 422, "Some values cannot be used", "`errors` names each field and says what would be right."),
    Kind("unknown-name", 422, "Unknown name", "The body names a catalogue entry that does not exist."),
    Kind("missing-figure", 422, "A figure is missing", "The profile states no such ceiling; it is not guessed."),
    Kind("unsupported-architecture", 422, "Not estimated yet", "The model's layers cannot be turned into costs."),
    Kind(
        "unreadable-upload", 422, "The file cannot be read", "`seen` says what it looks like, `accepts` what is read."
    ),
    Kind("invalid-query", 422, "The list cannot be made", "A sort key, cursor, limit or filter does not exist."),
    Kind("too-many-requests", 429, "Too many requests", "Wait for as many seconds as `Retry-After` says."),
    Kind("busy", 429, "Busy, try again", "Another change holds the database; nothing was changed."),
    Kind("unexpected", 500, "Something went wrong on our side", "A fault of the server; its log has the request id."),
)
"""Every kind of problem that the product answers with."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong. `errors` are (path in the request, message); `extra` are further members of the JSON answer."""

    kind: Kind
    detail: str
    errors: tuple[tuple[Loc, str], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    hints: tuple[str, ...] = ()

    @property
    def status_code(self) -> int:
        return self.status or self.kind.status


def problem(kind: str, detail: str, **more: Any) -> Problem:
    """A problem of a kind of `KINDS`."""
    return Problem(KINDS[kind], detail, **more)


# ---- JSON -----------------------------------------------------------------------------------------------------------


class FiniteJSONResponse(JSONResponse):
    """JSON as the API writes it: numbers that are not finite become null, and text that is no text is replaced."""

    def render(self, content: Any) -> bytes:
        try:
            text = _dump(content)
        except ValueError:
            text = _dump(finite(content))
        return text.encode("utf-8", "replace")


def _dump(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return finite(value.tolist())
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"cannot be written as JSON: {type(value).__name__}")


def finite(value: Any) -> Any:
    """The value with every number that is not finite turned into None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


# ---- answers --------------------------------------------------------------------------------------------------------


def is_api(path: str) -> bool:
    """Whether errors at this path are answered as JSON."""
    return path.startswith(API_PATHS)


def request_id(request: Request) -> str:
    """The id of the request, as the log and the answer's X-Request-Id have it."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def answer(request: Request, found: Problem) -> Response:
    """The problem as JSON for the API, as a page or fragment for everybody else."""
    if is_api(request.url.path) and not request.url.path.startswith(DOCS_URL):
        return problem_response(found, request_id(request))
    messages = [f"{'.'.join(map(str, loc))}: {message}" if loc else message for loc, message in found.errors]
    return rendering.error(
        request,
        found.status_code,
        found.kind.title,
        found.detail,
        hints=tuple(text for text in dict.fromkeys((*messages, *found.hints)) if text not in found.detail),
        request_id=request_id(request),
        headers=found.headers,
    )


def problem_response(found: Problem, id_: str = "") -> Response:
    """The problem as application/problem+json."""
    body: dict[str, Any] = {
        "type": found.kind.type,
        "title": found.kind.title,
        "status": found.status_code,
        "detail": found.detail,
    }
    if found.errors:
        body["errors"] = [{"loc": list(loc), "msg": message} for loc, message in found.errors[:MAX_ERRORS]]
    body.update(found.extra)
    if id_:
        body["request_id"] = id_
    return FiniteJSONResponse(body, status_code=found.status_code, headers=dict(found.headers), media_type=PROBLEM_JSON)


def unexpected(request: Request, error: Exception) -> Response:
    """Log an exception that nobody expected and answer with nothing but the request id."""
    id_ = request_id(request)
    log.error("request %s: %s %s failed", id_, request.method, request.url.path, exc_info=error)
    found = problem("unexpected", f"The server met a fault of its own. Its log has the details under request {id_}.")
    try:
        return answer(request, found)
    except Exception:  # the error page itself is broken: an answer is still owed
        log.exception("request %s: the error page cannot be rendered", id_)
        return problem_response(found, id_)


# ---- the table ------------------------------------------------------------------------------------------------------


def _invalid_input(_request: Request, error: InvalidInput) -> Problem:
    cause = error.__cause__
    found = ((error.loc, error.reason),)
    if isinstance(cause, UnknownName):
        return problem("unknown-name", str(error), errors=found, extra={"candidates": list(cause.close)})
    if isinstance(cause, AmbiguousName):
        extra = {"candidates": list(cause.candidates)}
        return problem("ambiguous-name", str(error), errors=found, extra=extra, status=422)
    return problem("invalid-input", str(error), errors=found)


def _missing_figure(_request: Request, error: MissingFigure) -> Problem:
    return problem(
        "missing-figure",
        str(error),
        errors=((("hardware",), str(error)),),
        extra={"figure": error.figure, "profile": error.profile},
    )


def _unsupported(_request: Request, error: UnsupportedArchitecture) -> Problem:
    return problem("unsupported-architecture", str(error), errors=((("model",), error.reason),))


_FIELD_OF: Final = {"hardware profile": "hardware"}
"""Fields of bodies and queries that take a name, where they are not called like the thing."""


def _unknown_name(request: Request, error: UnknownName) -> Problem:
    extra = {"candidates": list(error.close)}
    if error.name in request.path_params.values():
        return problem("not-found", _sentence(error), extra=extra)
    loc = (_FIELD_OF.get(error.what, error.what),)
    return problem("unknown-name", _sentence(error), errors=((loc, str(error)),), extra=extra)


def _ambiguous_name(request: Request, error: AmbiguousName) -> Problem:
    extra = {"candidates": list(error.candidates)}
    if error.name in request.path_params.values():
        return problem("ambiguous-name", _sentence(error), extra=extra)
    loc = (_FIELD_OF.get(error.what, error.what),)
    return problem("ambiguous-name", _sentence(error), errors=((loc, str(error)),), extra=extra, status=422)


def _not_found(_request: Request, error: NotFound) -> Problem:
    if error.kind == "share":
        # one answer for all three, so that nobody learns which tokens there were
        return problem("not-found", "This link opens nothing: it never existed, has expired, or was revoked.")
    return problem("not-found", _sentence(error))


def _conflict(_request: Request, error: Conflict) -> Problem:
    return problem("conflict", _sentence(error))


def _busy(_request: Request, error: Busy) -> Problem:
    return problem("busy", _sentence(error), headers={"Retry-After": "1"})


def _invalid_query(_request: Request, error: InvalidQuery) -> Problem:
    return problem("invalid-query", str(error), errors=(((error.field,), error.reason),))


def _invalid_value(_request: Request, error: InvalidValue) -> Problem:
    return problem("invalid-input", _sentence(error))


def _unreadable(_request: Request, error: UnreadableUpload) -> Problem:
    return problem(
        "unreadable-upload",
        str(error),
        errors=tuple(((pointer,), message) for pointer, message in error.problems),
        extra={
            "reason": error.reason,
            "seen": error.seen,
            "hint": error.hint,
            "tried": [{"format": format_, "reason": reason} for format_, reason in error.tried],
            "accepts": list(error.accepts),
        },
        hints=tuple(text for text in (error.hint, _accepts(error.accepts)) if text),
    )


def _unmapped(request: Request, error: UnmappedTable) -> Problem:
    found = _unreadable(request, error)
    page = f"/tables/files/{error.upload_id}" if error.upload_id else None
    kept = {} if page is None else {"upload": error.upload_id, "page": page}
    return replace(found, extra={**found.extra, **tables.view_json(error.view), **kept})


def _accepts(formats: Sequence[str]) -> str:
    return f"What is read: {', '.join(formats)}." if formats else ""


def _validation(request: Request, error: RequestValidationError) -> Problem:
    found = error.errors()
    for one in found:
        if one["type"] == "json_invalid":
            return problem(
                "malformed", f"The body is no JSON: {one.get('ctx', {}).get('error', 'it cannot be parsed')}."
            )
    return _of_validation(found, error.body)


def _model_validation(_request: Request, error: ValidationError) -> Problem:
    return _of_validation(error.errors(include_url=False, include_context=False, include_input=False), None)


def _of_validation(found: Sequence[Mapping[str, Any]], body: Any) -> Problem:
    errors = tuple(_merged(found, body))
    count = len(errors)
    first = errors[0] if errors else ((), "cannot be used")
    where = ".".join(str(part) for part in first[0]) or "the request"
    more = f" ({count - 1} more in `errors`)" if count > 1 else ""
    return problem("invalid-input", f"{where}: {first[1]}{more}", errors=errors)


_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


def _http(request: Request, error: HTTPException) -> Problem:
    detail = str(error.detail or "")
    standard = _PHRASES.get(error.status_code, "")
    own_words = detail if detail != standard else ""
    kind = next((kind for kind in KINDS.values() if kind.status == error.status_code), None)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        own_words = own_words or f"There is nothing at {request.url.path[:200]}."
    elif error.status_code == 405:
        own_words = own_words or f"{request.method} is not possible here; {headers.get('Allow', 'another method')} is."
    if kind is None:
        name = "malformed" if error.status_code < 500 else "unexpected"
        title = Kind(name, error.status_code, standard or KINDS[name].title, "")
        return Problem(title, own_words or standard, headers=headers)
    return Problem(kind, own_words or kind.meaning, headers=headers)


TABLE: Final[Mapping[type[Exception], Callable[[Request, Any], Problem]]] = {
    InvalidInput: _invalid_input,
    MissingFigure: _missing_figure,
    UnsupportedArchitecture: _unsupported,
    UnknownName: _unknown_name,
    AmbiguousName: _ambiguous_name,
    NotFound: _not_found,
    Conflict: _conflict,
    Busy: _busy,
    InvalidQuery: _invalid_query,
    InvalidValue: _invalid_value,
    UnmappedTable: _unmapped,
    UnreadableUpload: _unreadable,
    RequestValidationError: _validation,
    ValidationError: _model_validation,
    HTTPException: _http,
}
"""Every exception that a request may meet on purpose. What is not here is a fault of ours and answers 500."""


def problem_of(request: Request, error: Exception) -> Problem | None:
    """The problem that an exception stands for; None for one that nobody expected."""
    for cls in type(error).__mro__:
        if cls in TABLE:
            return TABLE[cls](request, error)
    return None


def register(app: FastAPI) -> None:
    """Make the app answer every exception of the table."""

    async def handle(request: Request, error: Exception) -> Response:
        found = problem_of(request, error)
        return unexpected(request, error) if found is None else answer(request, found)

    for cls in TABLE:
        app.add_exception_handler(cls, handle)


# ---- what pydantic says, in the API's words -------------------------------------------------------------------------

_WORDS: Final = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "finite_number": "must be a finite number",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
}


_SHOULD: Final = re.compile(r"^(?:Input|Value|List|Dictionary|String|Number) should ")


def must(text: str) -> str:
    """A validator's sentence without its word for the input, which is the field itself: "must be greater than 0"."""
    return _SHOULD.sub("must ", text, count=1).replace(" after validation", "")


def _merged(found: Sequence[Mapping[str, Any]], body: Any) -> Iterator[tuple[Loc, str]]:
    """One entry for each place. A place that takes one of several kinds of value fails once for each of them."""
    by_place: dict[Loc, list[str]] = {}
    for one in found:
        loc = _place(tuple(one["loc"]), one["type"], body)
        message = _WORDS.get(one["type"]) or must(str(one["msg"]))
        messages = by_place.setdefault(loc, [])
        if message not in messages:
            messages.append(message)
    for loc, messages in by_place.items():
        yield loc, " or ".join(messages)


def _place(loc: Loc, kind: str, body: Any) -> Loc:
    """The path in the request: without "body", and without the names of types that pydantic puts between.

    `op.gemm.n` is `op.n` in the body: parts that are not there are left out, except a field that is missing.
    """
    if not loc or loc[0] != "body":
        return loc[1:] if loc and loc[0] in ("query", "path", "form") else loc
    here, kept = body, []
    for position, part in enumerate(loc[1:], start=2):
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            if position == len(loc) and kind == "missing":
                kept.append(part)
            continue
        kept.append(part)
    return tuple(str(part)[:200] if isinstance(part, str) else part for part in kept)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
