"""Credentials that a file happens to hold: what is kept of a file, and what is shared of it, goes without them.

Importers leave out what they know to be private. This is the net behind all of them: text under names of secrets, and
text that looks like one (a key of a known service, a login in an address, `--api-key KEY`, `HF_TOKEN=...`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from app.domain.run import Finding, ParsedRun
from app.importers.base import ParsedUpload

REMOVED: Final = "[removed]"

_NAME = re.compile(
    r"(?:^|[_\-.])(?:api[_-]?key|secret|secrets|password|passwd|pwd|authorization|bearer|credentials?|private[_-]?key"
    r"|(?:hf|auth|access|session|refresh|api|id|bearer)[_-]?token)(?:$|[_\-.])",
    re.IGNORECASE,
)
KEY_BEGINS: Final = r"(?:sk-|hf_|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)"
"""How keys of known services begin, as a pattern."""

_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_KEY = re.compile(rf"\bBearer\s+[\w.~+/-]{{8,}}=*|\b{KEY_BEGINS}(?=[\w-]*\d)[\w-]{{16,}}")
_GIVEN = re.compile(
    r"(?P<name>\b[\w-]*(?:api[_-]?key|secret|passw(?:or)?d|credentials?|[_-]token|\btoken(?==))[\"']?"
    r"(?:\s*[=:]\s*[\"']?|\s+))"
    r"(?P<value>[^\s,;\"']+)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[\d.,]+\w{0,3}")


def without_secrets(value: Any) -> Any:
    """The value without text under keys that name a secret, and without what looks like one in any text."""
    if isinstance(value, Mapping):
        return {
            key: REMOVED if isinstance(item, str) and item and _NAME.search(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(without_secrets(item) for item in value)
    return _plain_text(value) if isinstance(value, str) else value


def _plain_text(text: str) -> str:
    return _GIVEN.sub(_unless_harmless, _KEY.sub(REMOVED, _LOGIN.sub("", text)))


def _unless_harmless(found: re.Match[str]) -> str:
    """`--api-key X`, `token=X` and the like lose their value; "per-token: 12 ms" and prose keep theirs."""
    name, value = found["name"], found["value"]
    is_stated = "=" in name or ":" in name or name.startswith("--") or found.string[: found.start()].endswith("--")
    is_count = "token" in name.lower() and _NUMBER.fullmatch(value)
    if not is_stated or is_count or value.startswith(REMOVED):
        return found[0]
    return f"{name}{REMOVED}"


def without_credentials(upload: ParsedUpload) -> ParsedUpload:
    """What was read of a file without credentials, with a finding on each run that held some."""
    return replace(upload, runs=tuple(_of_run(run) for run in upload.runs))


def _of_run(run: ParsedRun) -> ParsedRun:
    workload = run.workload
    software = {name: text for name, text in without_secrets(run.software).items() if text != REMOVED}
    extra = without_secrets(workload.extra)
    texts = {name: _plain_text(text) for name in ("name", "model_hint", "notes") if (text := getattr(run, name))}
    changed = [name for name, text in texts.items() if text != getattr(run, name)]
    if software != dict(run.software):
        changed += [f"software.{name}" for name, text in run.software.items() if software.get(name) != text]
    if extra != workload.extra:
        changed.append("settings")
    if not changed:
        return run
    finding = Finding(
        "left-out",
        "info",
        f"{', '.join(changed[:10])}: what looks like a credential was not kept. The uploaded file still holds it.",
        tuple(changed[:10]),
    )
    return replace(
        run,
        name=texts.get("name", run.name),
        model_hint=texts.get("model_hint", run.model_hint),
        notes=texts.get("notes", run.notes),
        software=software,
        workload=replace(workload, extra=extra),
        findings=(*run.findings, finding),
    )
