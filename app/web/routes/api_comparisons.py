"""Comparisons and share links for scripts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from app.services import compare, diagnoses, share
from app.services.compare import ComparisonRequest
from app.services.share import ShareRequest
from app.web import share_links
from app.web.comparison_view import SHARE_HEADERS, download
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse

router = APIRouter(prefix="/api/v1", tags=["comparisons"])

ComparisonId = Annotated[str, Path(max_length=80, description="Id of a comparison.")]
Token = Annotated[str, Path(max_length=200, description="Token of a link.")]
Format = Annotated[Literal["csv", "json", "html"], Query(description="csv: the metric table; html: one file.")]

_EXAMPLE = {
    "title": "FP8 against BF16, decode",
    "notes": "Same device, same load.",
    "baseline": 0,
    "items": [
        {
            "estimate": {
                "kind": "bound",
                "request": {
                    "hardware": "nvidia-h100-sxm",
                    "model": "llama-3.1-8b",
                    "workload": {"phase": "decode", "batch": 32, "context_len": 2048},
                },
            },
            "label": "BF16",
        },
        {
            "estimate": {
                "kind": "bound",
                "request": {
                    "hardware": "nvidia-h100-sxm",
                    "model": "llama-3.1-8b",
                    "workload": {
                        "phase": "decode",
                        "batch": 32,
                        "context_len": 2048,
                        "dtypes": {"weights": "fp8", "activations": "fp8"},
                    },
                },
            },
            "label": "FP8",
            "book_as": "kernel",
        },
    ],
}


_PIPELINES = {
    "title": "Two schedules of one pipeline",
    "items": [
        {
            "estimate": {
                "kind": "pipeline",
                "request": {"schedule": schedule, "stages": 8, "micro_batches": 32},
            }
        }
        for schedule in ("1f1b", "dualpipe")
    ],
}
_OVERLAPS = {
    "title": "A product and its exchange, uncut and in four chunks",
    "items": [
        {
            "estimate": {
                "kind": "overlap",
                "request": {
                    "hardware": "nvidia-h100-sxm",
                    "gemm": {"m": 8192, "n": 8192, "k": 3584},
                    "kind": "reduce_scatter",
                    "ranks": 8,
                    "chunks": chunks,
                },
            }
        }
        for chunks in (1, 4)
    ],
}
_EXPOSED = {
    "title": "Exposed communication before and after",
    "items": [
        {"estimate": {"kind": "exposed", "request": {"step_s": step, "compute_only_s": 0.8}}, "label": label}
        for step, label in ((1.0, "before"), (0.9, "after"))
    ],
}


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class ComparisonSummaryAnswer(Loose):
    id: str
    url: str
    title: str
    created_at: str
    item_count: int


class ComparisonAnswer(ComparisonSummaryAnswer):
    """The frozen comparison: items, metric table with ratios to the baseline, differences, ledger and findings."""

    baseline: int
    sentence: str
    items: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    differences: list[dict[str, Any]]
    ledger: dict[str, Any] | None
    findings: list[dict[str, Any]]


class ComparisonList(Loose):
    items: list[ComparisonSummaryAnswer]
    next: str | None
    total: int


class ShareAnswer(Loose):
    token: str
    url: str
    id: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class SharedAnswer(Loose):
    """The same content, with the link's dates, and the figures that today's code computes differently."""

    title: str
    share: dict[str, Any]
    moved: list[dict[str, Any]]


@router.get("/comparisons", summary="List comparisons", response_model=ComparisonList)
def list_comparisons(
    ctx: Ctx,
    q: Annotated[str | None, Query(max_length=200, description="Text in title or notes.")] = None,
    sort: Annotated[str, Query(max_length=40)] = "-created_at",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> Response:
    page = compare.list_comparisons(ctx, text=q, sort=sort, limit=limit, cursor=cursor)
    return FiniteJSONResponse(
        {"items": [compare.summary_json(c) for c in page.items], "next": page.next, "total": page.total}
    )


@router.post("/comparisons", status_code=201, summary="Freeze a comparison", response_model=ComparisonAnswer)
def create_comparison(
    ctx: Ctx,
    body: Annotated[
        ComparisonRequest,
        Body(
            openapi_examples={
                "precision": {"value": _EXAMPLE},
                "overlap": {"value": _OVERLAPS},
                "exposed": {"value": _EXPOSED},
                "pipeline": {"value": _PIPELINES},
            }
        ),
    ],
) -> Response:
    """Items are frozen with everything that a reader sees: later edits change nothing of it.

    An item is a run, or an estimate with its `kind` and the body of the call that makes it: `bound`
    (`POST /estimates/bound`), `op` (`/estimates/op`), `overlap` (`/estimates/overlap`), `exposed`
    (`/estimates/exposed-communication`), `pipeline` (`/estimates/pipeline`), `memory`, `kv` or `moe` (`/estimates/` and
    the same name). Ratios are given between items that did the same kind of work; where they did not, a finding says
    so.
    """
    stored = compare.create_comparison(ctx, body)
    return FiniteJSONResponse(
        compare.comparison_json(stored), status_code=201, headers={"Location": f"/api/v1/comparisons/{stored.id}"}
    )


@router.get("/comparisons/{comparison_id}", summary="One comparison", response_model=ComparisonAnswer)
def get_comparison(ctx: Ctx, comparison_id: ComparisonId) -> Response:
    return FiniteJSONResponse(compare.comparison_json(compare.get_comparison(ctx, comparison_id)))


@router.delete("/comparisons/{comparison_id}", status_code=204, summary="Delete a comparison and its links")
def delete_comparison(ctx: Ctx, comparison_id: ComparisonId) -> Response:
    compare.delete_comparison(ctx, comparison_id)
    return Response(status_code=204)


@router.get(
    "/comparisons/{comparison_id}/export",
    summary="Export a comparison",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}, "text/html": {}, "application/json": {}}}},
)
def export_comparison(ctx: Ctx, comparison_id: ComparisonId, format: Format = "json") -> Response:
    """The HTML is one self-contained file that opens without a network."""
    return download(compare.get_comparison(ctx, comparison_id), format)


@router.post("/comparisons/{comparison_id}/share", status_code=201, summary="Make a link", response_model=ShareAnswer)
def create_share(request: Request, ctx: Ctx, comparison_id: ComparisonId, body: ShareRequest | None = None) -> Response:
    """The token is answered once and never again."""
    return share_links.made_answer(request, ctx, *share.create_share(ctx, comparison_id, body))


@router.get("/comparisons/{comparison_id}/shares", summary="Links to a comparison, without their tokens")
def list_shares(ctx: Ctx, comparison_id: ComparisonId) -> dict[str, Any]:
    compare.get_comparison(ctx, comparison_id)
    return share_links.links_answer(share.list_shares(ctx, comparison_id))


@router.get("/shares/{token}", summary="Open a link", response_model=SharedAnswer)
def open_share(ctx: Ctx, token: Token) -> Response:
    """404 alike for unknown, revoked and expired links."""
    opened = share.open_any(ctx, token)
    answer = share.opened_json(opened) if isinstance(opened, share.OpenedShare) else diagnoses.shared_json(*opened)
    return FiniteJSONResponse(answer, headers=dict(SHARE_HEADERS))


@router.delete("/shares/{token}", status_code=204, summary="Revoke a link")
def revoke_share(ctx: Ctx, token: Token) -> Response:
    share.revoke_share(ctx, token)
    return Response(status_code=204)
