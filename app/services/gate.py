"""The gate as a command: the same check over a server's API or in the local database, and its report in words."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from app.domain.comparison_metrics import metric_label
from app.domain.errors import DomainError
from app.importers.base import UnreadableUpload
from app.services.check import SERIES, CheckRequest, check_run
from app.services.context import Context
from app.services.upload_run import upload_file
from app.storage import runs
from app.storage.errors import NotFound, StorageError

TIMEOUT = 60.0
MOST_WAIT = 3600.0
"""Seconds that a large file may take to be read by a server."""


class GateError(Exception):
    """The check could not be made; the message is one line for its user."""


class Gate(Protocol):
    """Where a check is made."""

    def upload(self, path: Path, about: Mapping[str, str | None]) -> list[str]:
        """Store a file and answer the ids of its runs."""
        ...

    def own_baseline(self, run: str) -> str | None:
        """The baseline that a run names itself."""
        ...

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of `POST /runs/check`."""
        ...


def parse_rule(text: str) -> dict[str, Any]:
    """`tpot_s.p99=5%` or `tpot_s.p99=0.05`. Raises ValueError with what would be right."""
    metric, equals, limit = text.partition("=")
    plain = limit.strip()
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        value = None
    if not equals or not metric.strip() or value is None:
        raise ValueError(f"{text!r} is no rule: write METRIC=LIMIT, for example tpot_s.p99=5%")
    return {"metric": metric.strip(), "max_regression": value}


def check_all(
    gate: Gate,
    run_or_file: str,
    baseline: str | None,
    rules: Sequence[Mapping[str, Any]],
    *,
    last: int,
    about: Mapping[str, str | None],
) -> list[dict[str, Any]]:
    """One answer for each run that is checked. Raises GateError."""
    path = Path(run_or_file)
    ids = gate.upload(path, about) if path.is_file() else [run_or_file]
    if not ids:
        raise GateError(f"{run_or_file}: the file holds no run")
    answers = []
    for run in ids:
        wanted = baseline or gate.own_baseline(run) or SERIES
        answers.append(gate.check({"run": run, "baseline": wanted, "last": last, "rules": list(rules)}))
    return answers


def report(answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The answers in lines that a job's log can hold."""
    for answer in answers:
        against = {
            "marked": "the marked baseline of its series",
            "last": f"the median of the {len(answer['baseline_runs'])} runs before it",
            "previous": "the run before it",
        }.get(str(answer["baseline_kind"]), "its baseline")
        ids = ", ".join(answer["baseline_runs"])
        yield f"{'PASS' if answer['passed'] else 'FAIL'} run {answer['run']} against {against} ({ids})"
        for row in answer["rows"]:
            yield f"  {'ok  ' if row['passed'] else 'FAIL'} {_row_words(row)}"
        for finding in answer["findings"]:
            yield f"  {finding['severity']}: {finding['message']}"


def _row_words(row: Mapping[str, Any]) -> str:
    label = f"{row['metric']} ({metric_label(row['metric'])})"
    if row["regression"] is None:
        return f"{label}: {row.get('note', 'cannot be compared')}"
    change = f"{abs(row['regression']):.2%} {'worse' if row['regression'] > 0 else 'better'}"
    text = f"{label}: {row['value']:.6g} {row['unit']} against {row['baseline']:.6g}, {change}"
    text += f", {row['max_regression']:.2%} allowed"
    return f"{text}; {row['note']}" if row.get("note") else text


class LocalGate:
    """The check in the local database."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def upload(self, path: Path, about: Mapping[str, str | None]) -> list[str]:
        try:
            stored = upload_file(
                self.ctx,
                path.read_bytes(),
                path.name,
                hardware=about.get("hardware"),
                model=about.get("model"),
                tags=[about["tags"] or ""] if about.get("tags") else (),
            )
        except OSError as error:
            raise GateError(f"{path}: {error.strerror or error}") from error
        except (UnreadableUpload, DomainError, StorageError) as error:
            raise GateError(f"{path}: {error}") from error
        return [run.id for run in stored.runs]

    def own_baseline(self, run: str) -> str | None:
        try:
            with self.ctx.storage.read() as session:
                return runs.get_summary(session=session, run_id=run).baseline_run_id
        except NotFound as error:
            raise GateError(f"there is no run {run[:80]!r}, and no file of that name") from error

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return check_run(self.ctx, CheckRequest.model_validate(dict(body)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise GateError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
        except (DomainError, StorageError) as error:
            raise GateError(str(error)) from error


class RemoteGate:
    """The check over a server's API."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise GateError(f"{url[:80]!r} is no address of a server: write for example http://127.0.0.1:8000")
        self.base = url.rstrip("/")

    def upload(self, path: Path, about: Mapping[str, str | None]) -> list[str]:
        query = {"filename": path.name, **{key: value for key, value in about.items() if value}}
        try:
            with path.open("rb") as file:
                answer = self._ask(
                    f"/api/v1/runs?{urllib.parse.urlencode(query)}",
                    file,
                    {"content-type": "application/octet-stream", "content-length": str(path.stat().st_size)},
                )
        except OSError as error:
            raise GateError(f"{path}: {error.strerror or error}") from error
        waited = 0.0
        while "job" in answer and "runs" not in answer:
            state = answer.get("state")
            if state not in ("waiting", "reading", "storing"):
                problem = answer.get("problem")
                said = problem.get("detail") if isinstance(problem, dict) else None
                raise GateError(f"{path}: the server did not keep it: {said or state}")
            if waited > MOST_WAIT:
                raise GateError(f"{path}: the server is still reading it after {MOST_WAIT:.0f} s")
            time.sleep(1.0)
            waited += 1.0
            job = self._ask(f"/api/v1/jobs/{urllib.parse.quote(str(answer['job']), safe='')}")
            result = job.get("result")
            answer = result if isinstance(result, dict) and "runs" in result else job
        return [str(run["id"]) for run in answer.get("runs", [])]

    def own_baseline(self, run: str) -> str | None:
        answer = self._ask(f"/api/v1/runs/{urllib.parse.quote(run, safe='')}")
        found = answer.get("baseline")
        return None if found is None else str(found)

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps(dict(body)).encode()
        return self._ask("/api/v1/runs/check", data, {"content-type": "application/json"})

    def _ask(self, path: str, data: Any = None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self.base + path, data=data, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise GateError(_problem(error)) from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise GateError(f"{self.base} cannot be asked: {reason}") from error
        if not isinstance(answer, dict):
            raise GateError(f"{self.base} answers something else than this program expects")
        return answer


def _problem(error: urllib.error.HTTPError) -> str:
    """What a server says is wrong, in a line."""
    try:
        body = json.loads(error.read())
        detail = str(body.get("detail") or body.get("title") or error.reason)
        for item in body.get("errors", [])[:3]:
            told = f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            detail += "" if told in detail else f" {told}"
    except (ValueError, AttributeError, KeyError, TypeError):
        detail = str(error.reason)
    return f"the server answers {error.code}: {detail}"
