"""The words of the library's pages, and what a list of techniques and a technique's page hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from app.catalog.technique_codec import ARCHITECTURES, FAMILIES, GENERATIONS, PHASES, SAVES
from app.domain.levers.registry import LEVERS
from app.domain.technique import Technique
from app.services.context import Context
from app.services.reference_pages import mentions
from app.services.techniques import TechniqueFilter, find_techniques, suits

FAMILY_LABELS: Final[Mapping[str, str]] = {
    "attention": "Attention",
    "gemm": "Products (GEMM)",
    "fusion": "Fusion",
    "precision": "Precision",
    "kv": "KV cache",
    "moe": "Experts (MoE)",
    "comm": "Communication",
    "memory": "Memory",
    "scheduler": "Batching and scheduling",
    "compiler": "Compilers and runtimes",
    "multimodal": "Multimodal",
    "diffusion": "Diffusion",
    "ssm": "State space",
}
SAVES_LABELS: Final[Mapping[str, str]] = {
    "flops": "Compute",
    "hbm": "HBM traffic",
    "net": "Link traffic",
    "launches": "Launches",
    "sync": "Synchronisation",
    "imbalance": "Imbalance",
    "capacity": "Memory capacity",
}
SAVES_RESOURCE: Final[Mapping[str, str]] = {
    "flops": "compute",
    "hbm": "hbm",
    "net": "net",
    "launches": "launch",
    "sync": "sync",
    "imbalance": "imbalance",
    "capacity": "other",
}
"""The resource whose colour a saving has. Capacity is no time, so it has the colour of none of them."""

PHASE_LABELS: Final[Mapping[str, str]] = {
    "train": "Training",
    "prefill": "Prefill",
    "decode": "Decode",
    "denoise": "Denoising",
    "preprocess": "Preprocessing",
}
ARCHITECTURE_LABELS: Final[Mapping[str, str]] = {
    "any": "Tied to none",
    "dense": "Dense transformer",
    "gqa": "Grouped-query attention",
    "mla": "Latent attention",
    "moe": "Mixture of experts",
    "vlm": "Vision or audio language model",
    "dit": "Diffusion transformer",
    "unet": "U-net",
    "ssm": "State space",
}
GENERATION_LABELS: Final[Mapping[str, str]] = {
    "any": "Tied to none",
    "sm80": "sm80, Ampere",
    "sm90": "sm90, Hopper",
    "sm100": "sm100, Blackwell",
    "nvl72": "NVL72 rack",
    "mi300": "MI300, CDNA 3",
}
BOOK_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "kernel": ("Kernel", "The same model, computed by better kernels or in a narrower format."),
    "communication": ("Communication", "The same numbers, with less or better hidden traffic between devices."),
    "runtime": ("Runtime", "The same kernels, launched, scheduled, batched or placed better."),
    "algorithmic": ("Algorithmic", "Something else is computed: a quality result belongs beside the gain."),
}
LEVER_LABELS: Final[Mapping[str, str]] = {
    "dematerialize": "Dematerialise",
    "compress": "Compress",
    "pack": "Pack, page, lay out",
    "recompute": "Recompute",
    "shard": "Shard, offload, prefetch",
    "allocator": "Allocator and lifetime",
}


@dataclass(frozen=True, slots=True)
class TechniqueQuery:
    """What the list's form asks for, as typed: empty does not filter, an unknown value keeps nothing."""

    q: str = ""
    saves: str = ""
    family: str = ""
    phase: str = ""
    architecture: str = ""
    book_as: str = ""
    gpu: str = ""
    memory_lever: str = ""
    lever: str = ""

    @property
    def filters_anything(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def wanted(self) -> TechniqueFilter:
        return TechniqueFilter(
            text=self.q or None,
            saves=self.saves or None,
            family=self.family or None,
            phase=self.phase or None,
            architecture=self.architecture or None,
            gpu=self.gpu or None,
            book_as=self.book_as or None,
            memory_lever=self.memory_lever or None,
            lever=None if not self.lever else self.lever == "yes",
        )


@dataclass(frozen=True, slots=True)
class TechniqueLine:
    """A technique in a list. `made_for` says that it names what the list is filtered by, not only suits it."""

    technique: Technique
    has_lever: bool
    made_for: bool


@dataclass(frozen=True, slots=True)
class TechniqueList:
    """What the form finds, with the choices of its selects and how many techniques each would keep alone."""

    lines: tuple[TechniqueLine, ...]
    total: int
    choices: Mapping[str, tuple[tuple[str, str], ...]]


def browse_techniques(ctx: Context, query: TechniqueQuery) -> TechniqueList:
    """Techniques by name; with an architecture or generation asked for, those made for it first."""
    asked = query.lever in ("", "yes", "no")
    found = find_techniques(ctx, query.wanted()) if asked else []
    lines = [TechniqueLine(t, t.id in LEVERS, _made_for(t, query)) for t in found]
    lines.sort(key=lambda line: not line.made_for)
    return TechniqueList(tuple(lines), len(ctx.catalog.techniques), _choices(ctx))


def _made_for(technique: Technique, query: TechniqueQuery) -> bool:
    return (not query.architecture or query.architecture in technique.architectures) and (
        not query.gpu or query.gpu in technique.gpu_generations
    )


def _choices(ctx: Context) -> dict[str, tuple[tuple[str, str], ...]]:
    """Options of each select, with the number of techniques behind each."""
    techniques = tuple(ctx.catalog.techniques.values())
    saves = Counter(name for t in techniques for name in t.saves)
    phases = Counter(name for t in techniques for name in t.phases)
    families = Counter(t.family for t in techniques)
    books = Counter(str(t.book_as) for t in techniques)
    levers = Counter(str(t.memory_lever) for t in techniques)
    applied = sum(t.id in LEVERS for t in techniques)
    return {
        "saves": tuple((name, f"{SAVES_LABELS[name]} ({saves[name]})") for name in SAVES),
        "family": tuple((name, f"{FAMILY_LABELS[name]} ({families[name]})") for name in FAMILIES),
        "phase": tuple((name, f"{PHASE_LABELS[name]} ({phases[name]})") for name in PHASES),
        "architecture": tuple(
            (name, f"{ARCHITECTURE_LABELS[name]} ({sum(suits(name, t.architectures) for t in techniques)})")
            for name in ARCHITECTURES
        ),
        "gpu": tuple(
            (name, f"{GENERATION_LABELS[name]} ({sum(suits(name, t.gpu_generations) for t in techniques)})")
            for name in GENERATIONS
        ),
        "book_as": tuple((name, f"{words} ({books[name]})") for name, (words, _) in BOOK_WORDS.items()),
        "memory_lever": tuple((name, f"{words} ({levers[name]})") for name, words in LEVER_LABELS.items()),
        "lever": (("yes", f"Yes ({applied})"), ("no", f"No ({len(techniques) - applied})")),
    }


@dataclass(frozen=True, slots=True)
class TechniqueSheet:
    """Everything of a technique's page that is no estimate. Other techniques are those it names, in full."""

    technique: Technique
    model: str
    is_ideal: bool
    params: tuple[tuple[str, str, str], ...]
    related: tuple[Technique, ...]
    excludes: tuple[Technique, ...]
    members: tuple[Technique, ...]
    part_of: tuple[Technique, ...]
    mentions: tuple[tuple[str, str], ...]


def technique_sheet(ctx: Context, technique: Technique) -> TechniqueSheet:
    """The page of one technique."""
    lever = LEVERS.get(technique.id)
    known = ctx.catalog.techniques

    def named(ids: tuple[str, ...]) -> tuple[Technique, ...]:
        return tuple(known[id_] for id_ in ids)

    return TechniqueSheet(
        technique=technique,
        model="" if lever is None else lever.model,
        is_ideal=lever is not None and lever.ideal,
        params=()
        if lever is None
        else tuple((p.meaning, f"{p.default:g}", f"{p.least:g} to {p.most:g}") for p in lever.params),
        related=named(technique.related),
        excludes=() if lever is None else named(lever.excludes),
        members=() if lever is None else named(lever.members),
        part_of=named(tuple(id_ for id_, other in LEVERS.items() if technique.id in other.members)),
        mentions=mentions(ctx, technique),
    )
