"""Warnings of the lint that somebody has read and accepted, with a note that says why.

An acknowledgement is of a warning's words: where they change, as a link or a fact did, the warning stands open again.
Errors are contradictions and cannot be accepted; notes need it not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from app.domain.errors import InvalidInput
from app.domain.run import Finding
from app.importers.reading import clean
from app.storage.records import Acknowledgement, StoredRun

MAX_NOTE = 500


class _Linted(Protocol):
    @property
    def run(self) -> StoredRun: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...


def acknowledged_of(run: StoredRun, findings: Iterable[Finding]) -> dict[Finding, Acknowledgement]:
    """The warnings among a run's findings that were accepted in these words."""
    known = {(one.check, one.message): one for one in run.acknowledged}
    return {
        finding: known[finding.check, finding.message]
        for finding in findings
        if finding.severity == "warning" and (finding.check, finding.message) in known
    }


def checked_acknowledgements(view: _Linted, given: Mapping[str, str | None]) -> tuple[Acknowledgement, ...]:
    """What a run's acknowledgements are after a change, by check: a note for its warnings, or None to take back.

    Those of warnings that the run has no more are dropped. Raises InvalidInput at `acknowledge` for a check of which
    the run has no warning, and for a note that is empty or too long.
    """
    warnings = [finding for finding in view.findings if finding.severity == "warning"]
    kept = {finding: one for finding, one in acknowledged_of(view.run, warnings).items() if finding.check not in given}
    for check, note in given.items():
        mine = [finding for finding in warnings if finding.check == check]
        if not mine:
            raise InvalidInput(("acknowledge", check[:80]), _no_such_warning(view, check, warnings))
        if note is None:
            continue
        text = clean(note, MAX_NOTE + 1)
        if not text:
            raise InvalidInput(("acknowledge", check[:80]), "say in a note why the warning is accepted")
        if len(text) > MAX_NOTE:
            raise InvalidInput(("acknowledge", check[:80]), f"the note must have at most {MAX_NOTE} characters")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        kept |= {finding: Acknowledgement(check, finding.message, text, now) for finding in mine}
    return tuple(kept.values())


def _no_such_warning(view: _Linted, check: str, warnings: list[Finding]) -> str:
    found = next((finding for finding in view.findings if finding.check == check), None)
    if found is not None and found.severity == "error":
        return "is a contradiction: it is resolved by another file or link, not accepted"
    if found is not None:
        return "is a note, which needs no acknowledgement"
    names = ", ".join(dict.fromkeys(finding.check for finding in warnings))
    return f"is no warning of this run: its warnings are {names}" if names else "is no warning: this run has none"
