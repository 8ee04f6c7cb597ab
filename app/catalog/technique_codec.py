"""The shape of a technique's file."""

from __future__ import annotations

from typing import Any, TypeVar, cast, get_args

from app.catalog.fields import Fields, Loc
from app.catalog.links import checked_link
from app.domain.errors import InvalidInput
from app.domain.technique import Book, Gain, MemoryLever, Reference, Technique

FAMILIES = (
    "attention", "gemm", "fusion", "precision", "kv", "moe", "comm", "memory", "scheduler", "compiler", "multimodal",
    "diffusion", "ssm",
)  # fmt: skip
SAVES = ("flops", "hbm", "net", "launches", "sync", "imbalance", "capacity")
PHASES = ("train", "prefill", "decode", "denoise", "preprocess")
ARCHITECTURES = ("any", "dense", "gqa", "mla", "moe", "vlm", "dit", "unet", "ssm")
GENERATIONS = ("any", "sm80", "sm90", "sm100", "nvl72", "mi300")
READ = ("primary", "secondary", "derived")

_TECHNIQUE = (
    "id", "name", "also_called", "family", "summary", "saves", "memory_lever", "phases", "architectures",
    "gpu_generations", "book_as", "hurts", "gains", "references", "related", "no_lever",
)  # fmt: skip
_GAIN = ("figure", "conditions", "source", "read", "url")
_REFERENCE = ("title", "url")

T = TypeVar("T")


def technique_from_json(data: Any, loc: Loc = ()) -> Technique:
    """Read a technique. Raises InvalidInput with the field and what would be right.

    A gain needs its conditions and its source: a figure without them says nothing, and an entry with neither gains nor
    references says nowhere where it comes from. Whether related ids exist is checked where all entries are known.
    """
    fields = Fields(data, loc, _TECHNIQUE)
    if not fields.items("gains") and not fields.items("references"):
        raise fields.fail("references", "is missing: name a document that describes it, or give a gain with its source")
    return Technique(
        id=fields.identifier("id", ""),
        name=_stated(fields, "name", fields.line("name", 120)),
        family=_stated(fields, "family", fields.choice("family", FAMILIES)),
        summary=_stated(fields, "summary", fields.text("summary", 600)),
        saves=_choices(fields, "saves", SAVES),
        phases=_choices(fields, "phases", PHASES),
        architectures=_choices(fields, "architectures", ARCHITECTURES),
        gpu_generations=_choices(fields, "gpu_generations", GENERATIONS),
        book_as=cast(Book, _stated(fields, "book_as", fields.choice("book_as", get_args(Book)))),
        memory_lever=cast("MemoryLever | None", fields.choice("memory_lever", get_args(MemoryLever))),
        hurts=_stated(fields, "hurts", fields.text("hurts", 600)),
        related=_related(fields),
        gains=tuple(_gain(item, fields.at("gains"), i) for i, item in enumerate(fields.items("gains", 20))),
        references=tuple(
            _reference(item, fields.at("references"), i) for i, item in enumerate(fields.items("references", 20))
        ),
        no_lever=fields.text("no_lever", 600),
        also_called=fields.texts("also_called", 12),
    )


def _gain(item: Any, loc: Loc, place: int) -> Gain:
    fields = Fields(item, (*loc, place), _GAIN)
    return Gain(
        figure=_stated(fields, "figure", fields.line("figure", 200)),
        conditions=_stated(fields, "conditions", fields.line("conditions", 300)),
        source=_stated(fields, "source", fields.line("source", 200)),
        read=_stated(fields, "read", fields.choice("read", READ)),
        url=checked_link(fields, "url"),
    )


def _reference(item: Any, loc: Loc, place: int) -> Reference:
    fields = Fields(item, (*loc, place), _REFERENCE)
    return Reference(title=_stated(fields, "title", fields.line("title", 200)), url=checked_link(fields, "url"))


def _related(fields: Fields) -> tuple[str, ...]:
    found = fields.texts("related", 12)
    if not found:
        raise fields.fail("related", "is missing: name one or more techniques to look at next")
    for i, id_ in enumerate(found):
        if id_ in found[:i] or id_ == fields.data.get("id"):
            raise InvalidInput((*fields.at("related"), i), f"{id_[:60]!r} is the entry itself, or listed twice")
    return found


def _stated(fields: Fields, key: str, value: T | None) -> T:
    if value is None:
        raise fields.fail(key, "is missing")
    return value


def _choices(fields: Fields, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    found = fields.texts(key, 20)
    if not found:
        raise fields.fail(key, f"is missing: name one or more of {', '.join(known)}")
    for i, value in enumerate(found):
        if value not in known:
            raise InvalidInput((*fields.at(key), i), f"unknown value {value[:60]!r}: use {', '.join(known)}")
    return found
