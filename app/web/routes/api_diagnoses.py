"""Decision trees and diagnoses for scripts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from app.services import diagnose_trees, diagnoses, share
from app.services.diagnose import DiagnosisRequest, ScenarioName
from app.services.share import ShareRequest
from app.web import share_links
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.routes.api_comparisons import ShareAnswer

router = APIRouter(prefix="/api/v1", tags=["diagnoses"])

DiagnosisId = Annotated[str, Path(max_length=80, description="Id of a diagnosis.")]

_EXAMPLES = {
    "evidence": {
        "summary": "Values from a profile",
        "value": {"scenario": "decode", "evidence": {"mbu": 0.31, "launch_share": 0.52}},
    },
    "estimate": {
        "summary": "A step that nobody has run yet",
        "value": {
            "scenario": "decode",
            "estimate": {
                "hardware": "nvidia-h100-sxm",
                "model": "llama-3.1-8b",
                "workload": {"phase": "decode", "batch": 32, "context_len": 16384},
            },
            "answers": {"dc7": "no"},
        },
    },
}


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class ScenarioAnswer(Loose):
    """A tree: its questions with their tests, and its directions."""

    id: str
    title: str
    line: str
    start: str
    nodes: list[dict[str, Any]]
    leaves: list[dict[str, Any]]


class ScenarioList(Loose):
    """`metrics` is the glossary of evidence, `symptoms` another way in."""

    items: list[ScenarioAnswer]
    next: str | None
    total: int
    metrics: list[dict[str, Any]]
    symptoms: list[dict[str, Any]]


class NodeCheckAnswer(Loose):
    """A comparison. `limit` says that the value is only known to be at most, or at least, this."""

    name: str
    value: bool | float | str | None
    threshold: bool | float | str | None
    source: str | None
    near: bool


class StepAnswer(Loose):
    node: str
    question: str
    answer: Literal["yes", "no", "unknown"]
    decided_by: Literal["data", "user", "assumed"]
    near_threshold: bool
    evidence: list[NodeCheckAnswer]


class NextAnswer(Loose):
    node: str
    question: str
    needs: list[dict[str, Any]]
    choices: list[str]


class DirectionTechnique(Loose):
    """`predicted_saving_s` is null where no number can be had; `reason` says why. `at_most` marks a saving that is a
    limit, `params` are the numbers that the lever was tried with."""

    id: str
    predicted_saving_s: float | None
    bound_saving_s: float | None
    lever: bool
    applies: bool
    reason: str | None
    at_most: bool = False
    params: dict[str, float] = {}


class AddressedAnswer(Loose):
    """The measured or stated share of the step that a direction is about."""

    metric: str
    label: str
    share: float


class RemarkAnswer(Loose):
    """What must be known before the walk is trusted. `metrics` are those it is about, `scenario` the one that fits."""

    kind: Literal["contradiction", "scenario", "memory"]
    text: str
    metrics: list[str]
    scenario: str | None


class DirectionAnswer(Loose):
    """`status` is found (the walk ends here), likely (decided behind an open question), afterwards (next once the first
    is cured) or possible (not ruled out). With the goal memory, techniques are ranked by what they free of it.
    `confirm_url` opens, in words, `confirm_words`."""

    leaf: str
    title: str
    why: str
    status: Literal["found", "likely", "afterwards", "possible"]
    techniques: list[DirectionTechnique]
    measure_next: str
    avoid: str
    goal: Literal["time", "memory"] = "time"
    addresses: AddressedAnswer | None = None
    confirm_url: str | None = None
    confirm_words: str | None = None


class DiagnosisSummaryAnswer(Loose):
    id: str
    url: str
    title: str
    scenario: str
    headline: str
    created_at: str


class DiagnosisAnswer(DiagnosisSummaryAnswer):
    """The frozen walk. `next` is the question to answer; null at the end."""

    remarks: list[RemarkAnswer] = []
    path: list[StepAnswer]
    next: NextAnswer | None
    directions: list[DirectionAnswer]
    also_check: list[str]
    evidence: list[dict[str, Any]]


class DiagnosisList(Loose):
    items: list[DiagnosisSummaryAnswer]
    next: str | None
    total: int


class MovedAnswer(Loose):
    """Two walks of one scenario side by side."""

    sentence: str
    evidence: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    directions: list[dict[str, Any]]


@router.get("/scenarios", summary="Decision trees", response_model=ScenarioList)
def list_scenarios(ctx: Ctx) -> Response:
    """The roots of the trees with their questions, thresholds and directions, the metrics that they read, and the
    symptom table."""
    items = diagnose_trees.scenarios_json(ctx)
    metrics = [diagnose_trees.metric_json(metric) for metric in ctx.catalog.trees.metrics.values()]
    symptoms = diagnose_trees.symptoms_json(ctx)
    answer = {"items": items, "next": None, "total": len(items), "metrics": metrics, "symptoms": symptoms}
    return FiniteJSONResponse(answer)


@router.post("/diagnoses", status_code=201, summary="Walk a tree and freeze it", response_model=DiagnosisAnswer)
def create_diagnosis(ctx: Ctx, body: Annotated[DiagnosisRequest, Body(openapi_examples=_EXAMPLES)]) -> Response:
    """Evidence comes from the run, the estimate and the body; a person's `answers` stand over it.

    Without a `next` the walk is at its end. Directions come in the order of their standing, those of one standing by
    the best predicted saving of their techniques on this very workload.
    """
    stored = diagnoses.create_diagnosis(ctx, body)
    headers = {"Location": f"/api/v1/diagnoses/{stored.id}"}
    return FiniteJSONResponse(diagnoses.stored_json(stored), status_code=201, headers=headers)


@router.get("/diagnoses", summary="List diagnoses", response_model=DiagnosisList)
def list_diagnoses(
    ctx: Ctx,
    scenario: Annotated[ScenarioName | None, Query(description="Only walks of this tree.")] = None,
    run: Annotated[str | None, Query(max_length=80, description="Only walks about this run.")] = None,
    q: Annotated[str | None, Query(max_length=200, description="Text in title, notes or answer.")] = None,
    sort: Annotated[str, Query(max_length=40)] = "-created_at",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> Response:
    page = diagnoses.list_diagnoses(ctx, scenario=scenario, run=run, text=q, sort=sort, limit=limit, cursor=cursor)
    return FiniteJSONResponse(
        {"items": [diagnoses.summary_json(d) for d in page.items], "next": page.next, "total": page.total}
    )


@router.get("/diagnoses/{diagnosis_id}", summary="One diagnosis", response_model=DiagnosisAnswer)
def get_diagnosis(ctx: Ctx, diagnosis_id: DiagnosisId) -> Response:
    return FiniteJSONResponse(diagnoses.stored_json(diagnoses.get_diagnosis(ctx, diagnosis_id)))


@router.get("/diagnoses/{diagnosis_id}/moved", summary="Did it move?", response_model=MovedAnswer)
def moved(
    ctx: Ctx,
    diagnosis_id: DiagnosisId,
    since: Annotated[str, Query(max_length=80, description="The earlier diagnosis of the same scenario.")],
) -> Response:
    """This walk beside an earlier one: evidence, answers that changed, directions that are gone."""
    before, after = diagnoses.get_diagnosis(ctx, since), diagnoses.get_diagnosis(ctx, diagnosis_id)
    return FiniteJSONResponse(diagnoses.moved_json(ctx, before, after))


@router.delete("/diagnoses/{diagnosis_id}", status_code=204, summary="Delete a diagnosis and its links")
def delete_diagnosis(ctx: Ctx, diagnosis_id: DiagnosisId) -> Response:
    diagnoses.delete_diagnosis(ctx, diagnosis_id)
    return Response(status_code=204)


@router.post("/diagnoses/{diagnosis_id}/share", status_code=201, summary="Make a link", response_model=ShareAnswer)
def create_share(request: Request, ctx: Ctx, diagnosis_id: DiagnosisId, body: ShareRequest | None = None) -> Response:
    """The token is answered once and never again; `GET /shares/{token}` opens it, `DELETE` revokes it."""
    return share_links.made_answer(request, ctx, *share.create_share_for(ctx, "diagnosis", diagnosis_id, body))


@router.get("/diagnoses/{diagnosis_id}/shares", summary="Links to a diagnosis, without their tokens")
def list_shares(ctx: Ctx, diagnosis_id: DiagnosisId) -> dict[str, Any]:
    diagnoses.get_diagnosis(ctx, diagnosis_id)
    return share_links.links_answer(share.list_diagnosis_shares(ctx, diagnosis_id))
