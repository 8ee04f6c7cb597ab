"""An optimisation technique as the library describes it: what it saves, where, at what price, and who measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Book: TypeAlias = Literal["kernel", "communication", "runtime", "algorithmic"]
MemoryLever: TypeAlias = Literal["dematerialize", "compress", "pack", "recompute", "shard", "allocator"]


@dataclass(frozen=True, slots=True)
class Gain:
    """A published figure with the conditions it holds under. `read` says how its source was read.

    Gains of two techniques never multiply: an estimate changes the term that each of them touches.
    """

    figure: str
    conditions: str
    source: str
    read: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a technique is described."""

    title: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Technique:
    """A technique of the library.

    `saves` are the costs it lowers (flops, hbm, net, launches, sync, imbalance, capacity), `hurts` when it costs more
    than it gains, `related` the ids of techniques that a reader looks at next. `no_lever` says why it cannot be applied
    to an estimate, where it cannot. `also_called` are other names that people search by.
    """

    id: str
    name: str
    family: str
    summary: str
    saves: tuple[str, ...]
    phases: tuple[str, ...]
    architectures: tuple[str, ...]
    gpu_generations: tuple[str, ...]
    book_as: Book
    hurts: str
    related: tuple[str, ...]
    memory_lever: MemoryLever | None = None
    gains: tuple[Gain, ...] = ()
    references: tuple[Reference, ...] = ()
    no_lever: str | None = None
    also_called: tuple[str, ...] = ()

    @property
    def documents(self) -> tuple[Reference, ...]:
        """Every document that this entry rests on, each once: where it is described, then where its figures stand."""
        known = [*self.references, *(Reference(gain.source, gain.url) for gain in self.gains)]
        by_place = {document.url or document.title: document for document in reversed(known)}
        return tuple(
            document for document in dict.fromkeys(known) if by_place[document.url or document.title] is document
        )
