"""The reference part of the library: claims with their sources, entries of a page, checklists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

ChecklistKind: TypeAlias = Literal["priorities", "plan", "reporting"]


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """A document that claims rest on. `read`: primary, secondary, derived (counted) or assumed (our judgement)."""

    id: str
    title: str
    read: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement in our words, with what it rests on."""

    text: str
    sources: tuple[LibrarySource, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A claim under a label ("New", "Scarce")."""

    label: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class DeviceMatch:
    """Which devices of the catalogue an entry is about; without capabilities all of the architectures' devices."""

    vendor: str
    architectures: tuple[str, ...]
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a reference page describes.

    `devices` says which devices of the catalogue belong to it, `memory_lever` and `level` which techniques or which
    modelled overlap, `rules` which rules of the lint: what the code knows is shown from there, not written twice.
    """

    id: str
    title: str
    summary: Claim
    points: tuple[Point, ...]
    techniques: tuple[str, ...]
    devices: DeviceMatch | None = None
    memory_lever: str | None = None
    level: str | None = None
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A reference page. `line` is what its card says, `answer` what the page opens with."""

    id: str
    title: str
    line: str
    answer: Claim
    entries: tuple[Entry, ...]

    @property
    def claims(self) -> Iterator[Claim]:
        yield self.answer
        for entry in self.entries:
            yield entry.summary
            yield from (point.claim for point in entry.points)


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """Something to do, and why at this place."""

    id: str
    text: str
    why: str
    techniques: tuple[str, ...]
    sources: tuple[LibrarySource, ...]


@dataclass(frozen=True, slots=True)
class Checklist:
    """Things to do in an order. `scenario` is that of the diagnosis, where there is one."""

    id: str
    title: str
    line: str
    kind: ChecklistKind
    groups: tuple[tuple[str, tuple[ChecklistItem, ...]], ...]
    scenario: str | None = None

    @property
    def items(self) -> tuple[ChecklistItem, ...]:
        return tuple(item for _, items in self.groups for item in items)


@dataclass(frozen=True, slots=True)
class TryOut:
    """A workload that techniques are tried on. `state` holds fields of the what-if lab by name, as its address does.

    `phases` are those of the library that it stands for: a denoiser's forward pass is a prefill to an estimate, and
    `denoise` to a reader. `opens` are techniques whose pages open on it, though an earlier one would do.
    """

    id: str
    title: str
    phases: tuple[str, ...]
    state: Mapping[str, Any]
    opens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """The reference part of the library, each kind in the order that pages show."""

    try_outs: tuple[TryOut, ...]
    sections: Mapping[str, Section]
    checklists: Mapping[str, Checklist]
    sources: Mapping[str, LibrarySource]
