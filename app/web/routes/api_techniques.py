"""The technique library for scripts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from app.services import techniques
from app.services.catalogue import DEFAULT_LIMIT
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import TechniqueAnswer, TechniqueList

router = APIRouter(prefix="/api/v1/techniques", tags=["techniques"])

Family = Literal[
    "attention", "gemm", "fusion", "precision", "kv", "moe", "comm", "memory", "scheduler", "compiler", "multimodal",
    "diffusion", "ssm",
]  # fmt: skip
Phase = Literal["train", "prefill", "decode", "denoise", "preprocess"]


@router.get("", summary="List techniques", response_model=TechniqueList)
def list_techniques(
    ctx: Ctx,
    q: Annotated[str | None, Query(max_length=200, description="Words that must all occur.")] = None,
    family: Family | None = None,
    phase: Phase | None = None,
    lever: Annotated[
        bool | None, Query(description="Only those that an estimate can apply, or only the others.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most items of one page.")] = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(max_length=4000, description="`next` of the page before.")] = None,
) -> Response:
    """Techniques by name: what they save, when they hurt, and published gains with their conditions and sources.

    `lever` is true where the technique can be listed in `levers` of an estimate, with the `params` that it takes.
    """
    page = techniques.list_techniques(ctx, text=q, family=family, phase=phase, lever=lever, limit=limit, cursor=cursor)
    items = [techniques.technique_json(technique) for technique in page.items]
    return FiniteJSONResponse({"items": items, "next": page.next, "total": page.total})


@router.get("/{technique}", summary="One technique", response_model=TechniqueAnswer)
def get_technique(
    ctx: Ctx, technique: Annotated[str, Path(max_length=200, description="Id of a technique.")]
) -> Response:
    """The technique with this id."""
    return FiniteJSONResponse(techniques.technique_json(techniques.get_technique(ctx, technique)))
