"""What every importer offers and returns, and the one exception an upload may raise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from app.domain.run import Finding, ParsedRun

if TYPE_CHECKING:
    from app.importers.reading import Content

Refusal = Literal[
    "empty",
    "too-large",
    "binary",
    "too-deep",
    "duplicate-key",
    "cut-off",
    "damaged",
    "invalid",
    "not-supported",
    "not-recognised",
    "encrypted",
    "needs-mapping",
]


class UnreadableUpload(Exception):
    """The file cannot become runs.

    `reason` is a stable word for machines, `seen` says what the file looks like, `tried` names each format that was
    tried and why it did not fit, `accepts` lists the formats that would be read, `hint` says what to do next, and
    `problems` holds (JSON pointer, message) pairs where the format is known but the content is not valid.
    """

    def __init__(
        self,
        reason: Refusal,
        seen: str,
        *,
        hint: str = "",
        tried: Sequence[tuple[str, str]] = (),
        accepts: Sequence[str] = (),
        problems: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.reason: Refusal = reason
        self.seen = seen
        self.hint = hint
        self.tried = tuple(tried)
        self.accepts = tuple(accepts)
        self.problems = tuple(problems)
        super().__init__(f"{seen} {hint}".strip())

    def __reduce__(self) -> tuple[Any, ...]:
        # Large files are read in a process of their own, and a refusal has to come back from it whole.
        return _unreadable, (self.reason, self.seen, self.hint, self.tried, self.accepts, self.problems)


def _unreadable(reason: Refusal, seen: str, hint: str, tried: Any, accepts: Any, problems: Any) -> UnreadableUpload:
    return UnreadableUpload(reason, seen, hint=hint, tried=tried, accepts=accepts, problems=problems)


class UploadCancelled(Exception):
    """The reading of a file was stopped because nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Sniff:
    """How sure an importer is (0 to 1) that the content is its format, and what that rests on."""

    confidence: float
    reason: str


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive: `count` runs of the upload from position `first` on, or why it gave none."""

    name: str
    format: str | None = None
    first: int = 0
    count: int = 0
    reason: str = ""
    seen: str = ""
    hint: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedUpload:
    """Everything one file holds. `findings` are those of the file; each run carries its own.

    `members` are the files of an archive in its order, `columns` the names in a table's heading; others have none.
    """

    format: str
    runs: tuple[ParsedRun, ...]
    findings: tuple[Finding, ...] = ()
    members: tuple[Member, ...] = ()
    columns: tuple[str, ...] = ()

    def format_of(self, position: int) -> str:
        """The format that a run was read from: its member's, in an archive."""
        inside = (m.format for m in self.members if m.format and m.first <= position < m.first + m.count)
        return next(inside, self.format)


class Importer(Protocol):
    """One format. `tried_on_real_file` is False where only the tool's source or manual was at hand.

    An importer that reads its files piece by piece (`content.open()`) says `streams = True` and may be given files up
    to `Limits.max_stream_bytes`; it judges by `content.head` alone. Without that attribute a format is read whole.
    """

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def tried_on_real_file(self) -> bool: ...

    def sniff(self, content: Content) -> Sniff:
        """Judge by content alone, of large files by their beginning; never raises on a readable text."""
        ...

    def parse(self, content: Content) -> ParsedUpload:
        """Read every run. Raises UnreadableUpload when nothing in the file can become a run."""
        ...


def streams(importer: Importer) -> bool:
    """Whether an importer reads piece by piece."""
    return bool(getattr(importer, "streams", False))
