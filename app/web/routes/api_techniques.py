"""The technique library for scripts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from app.domain.technique import Book, MemoryLever
from app.services import techniques
from app.services.catalogue import DEFAULT_LIMIT
from app.services.techniques import TechniqueFilter
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import TechniqueAnswer, TechniqueList

router = APIRouter(prefix="/api/v1/techniques", tags=["techniques"])

Family = Literal[
    "attention", "gemm", "fusion", "precision", "kv", "moe", "comm", "memory", "scheduler", "compiler", "multimodal",
    "diffusion", "ssm",
]  # fmt: skip
Saves = Literal["flops", "hbm", "net", "launches", "sync", "imbalance", "capacity"]
Phase = Literal["train", "prefill", "decode", "denoise", "preprocess"]
Architecture = Literal["any", "dense", "gqa", "mla", "moe", "vlm", "dit", "unet", "ssm"]
Generation = Literal["any", "sm80", "sm90", "sm100", "nvl72", "mi300"]

_SUITS = "Those that name it, and those that are tied to none; `any` keeps the latter alone."


@router.get("", summary="List techniques", response_model=TechniqueList)
def list_techniques(
    ctx: Ctx,
    q: Annotated[str | None, Query(max_length=200, description="Words that must all occur.")] = None,
    saves: Annotated[Saves | None, Query(description="The cost it lowers.")] = None,
    family: Family | None = None,
    phase: Phase | None = None,
    architecture: Annotated[Architecture | None, Query(description=_SUITS)] = None,
    gpu: Annotated[Generation | None, Query(description=_SUITS)] = None,
    book_as: Book | None = None,
    memory_lever: MemoryLever | None = None,
    lever: Annotated[
        bool | None, Query(description="Only those that an estimate can apply, or only the others.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most items of one page.")] = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(max_length=4000, description="`next` of the page before.")] = None,
) -> Response:
    """Techniques by name: what they save, when they hurt, and published gains with their conditions and sources.

    `lever` is true where the technique can be listed in `levers` of an estimate, with the `params` that it takes.
    """
    wanted = TechniqueFilter(
        text=q,
        saves=saves,
        family=family,
        phase=phase,
        architecture=architecture,
        gpu=gpu,
        book_as=book_as,
        memory_lever=memory_lever,
        lever=lever,
    )
    page = techniques.list_techniques(ctx, wanted, limit=limit, cursor=cursor)
    items = [techniques.technique_json(technique) for technique in page.items]
    return FiniteJSONResponse({"items": items, "next": page.next, "total": page.total})


@router.get("/{technique}", summary="One technique", response_model=TechniqueAnswer)
def get_technique(
    ctx: Ctx, technique: Annotated[str, Path(max_length=200, description="Id of a technique.")]
) -> Response:
    """The technique with this id."""
    return FiniteJSONResponse(techniques.technique_json(techniques.get_technique(ctx, technique)))
