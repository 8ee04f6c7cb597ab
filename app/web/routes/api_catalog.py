"""Hardware, models, workloads and formats for scripts."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Path, Query, Response

from app.services import catalogue
from app.web.deps import Ctx
from app.web.errors import FiniteJSONResponse
from app.web.schemas import (
    CopyBody,
    FormatList,
    HardwareAnswer,
    HardwareList,
    ModelAnswer,
    ModelList,
    SavedWorkloadBody,
    WorkloadAnswer,
    WorkloadList,
)

router = APIRouter(prefix="/api/v1")

Search = Annotated[str | None, Query(max_length=200, description="Words that must all occur.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Most items of one page.")]
Cursor = Annotated[str | None, Query(max_length=4000, description="`next` of the page before.")]
Name = Annotated[str, Path(max_length=200, description="An id, or any name that it goes by.")]
OwnId = Annotated[str, Path(max_length=200, description="Id of one of your own.")]

_HARDWARE_EXAMPLE = {
    "name": "Lab accelerator",
    "vendor": "Acme",
    "memory_bytes": 80e9,
    "peak": {"flop_per_s": {"bf16": 400e12}, "memory_bandwidth_bytes_per_s": 2e12},
}
_MODEL_EXAMPLE = {
    "name": "Lab 1B",
    "hidden_size": 2048,
    "num_layers": 16,
    "num_attention_heads": 32,
    "num_kv_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
_CONFIG_FILE = {
    "name": "Tiny Llama from its config.json",
    "hf_config": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
}
_COPY_OF_HARDWARE = {"copy_of": "nvidia-h100-sxm", "name": "H100 at 500 W"}
_COPY_OF_MODEL = {"copy_of": "llama-3.1-8b", "name": "Llama 3.1 8B, pruned"}

HardwareBody = Annotated[
    dict[str, Any],
    Body(
        openapi_examples={
            "own": {"summary": "Entered by hand", "value": _HARDWARE_EXAMPLE},
            "copy": {"summary": "A copy of another", "value": _COPY_OF_HARDWARE},
        }
    ),
]
ModelBody = Annotated[
    dict[str, Any],
    Body(
        openapi_examples={
            "own": {"summary": "Entered by hand", "value": _MODEL_EXAMPLE},
            "import": {"summary": "From an unmodified config.json of Hugging Face", "value": _CONFIG_FILE},
            "copy": {"summary": "A copy of another", "value": _COPY_OF_MODEL},
        }
    ),
]


def _listing(items: list[dict[str, Any]], next_: str | None, total: int) -> Response:
    return FiniteJSONResponse({"items": items, "next": next_, "total": total})


def _created(kind: str, id_: str, content: dict[str, Any]) -> Response:
    return FiniteJSONResponse(content, status_code=201, headers={"Location": f"/api/v1/{kind}/{quote(id_, safe='')}"})


# ---- hardware -------------------------------------------------------------------------------------------------------


@router.get("/hardware", tags=["hardware"], summary="List profiles", response_model=HardwareList)
def list_hardware(
    ctx: Ctx,
    q: Search = None,
    vendor: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = catalogue.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response:
    """Profiles by name, shipped ones and your own, with vendor peaks, achievable ceilings and their sources."""
    page = catalogue.list_hardware(ctx, text=q, vendor=vendor, limit=limit, cursor=cursor)
    return _listing([catalogue.hardware_json(entry) for entry in page.items], page.next, page.total)


@router.get("/hardware/{hardware:path}", tags=["hardware"], summary="One profile", response_model=HardwareAnswer)
def get_hardware(ctx: Ctx, hardware: Name) -> Response:
    """The profile with this id or alias. A name of several profiles is refused with the candidates."""
    return FiniteJSONResponse(catalogue.hardware_json(catalogue.get_hardware(ctx, hardware)))


@router.post(
    "/hardware", tags=["hardware"], summary="Store or copy a profile", status_code=201, response_model=HardwareAnswer
)
def post_hardware(ctx: Ctx, body: HardwareBody) -> Response:
    """Store a profile of your own, or copy any with `copy_of` and a new `name`.

    A profile needs `name`, `peak.memory_bandwidth_bytes_per_s` and at least one entry of `peak.flop_per_s`. Figures
    without a source are marked as entered.
    """
    if "copy_of" in body:
        copy = CopyBody.model_validate(body)
        entry = catalogue.copy_hardware(ctx, copy.copy_of, name=copy.name, id_=copy.id)
    else:
        entry = catalogue.save_hardware(ctx, body)
    return _created("hardware", entry.id, catalogue.hardware_json(entry))


@router.put("/hardware/{hardware}", tags=["hardware"], summary="Replace a profile", response_model=HardwareAnswer)
def put_hardware(ctx: Ctx, hardware: OwnId, body: HardwareBody) -> Response:
    """A new version of a profile of your own. Changed figures are marked as entered.

    With the `revision` of the answer that was edited, a change that somebody else made since is not overwritten (409).
    """
    return FiniteJSONResponse(catalogue.hardware_json(catalogue.save_hardware(ctx, body, id_=hardware)))


@router.delete("/hardware/{hardware}", tags=["hardware"], summary="Delete a profile", status_code=204)
def delete_hardware(ctx: Ctx, hardware: OwnId) -> Response:
    """Delete a profile of your own. While runs are linked to it, that is refused."""
    catalogue.delete_hardware(ctx, hardware)
    return Response(status_code=204)


# ---- models ---------------------------------------------------------------------------------------------------------


@router.get("/models", tags=["models"], summary="List models", response_model=ModelList)
def list_models(
    ctx: Ctx,
    q: Search = None,
    kind: Annotated[str | None, Query(max_length=40, description="decoder, moe, vlm, ssm, dit, ...")] = None,
    limit: Limit = catalogue.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response:
    """Models by name, shipped ones and your own, with parameters and cache bytes a token."""
    page = catalogue.list_models(ctx, text=q, kind=kind, limit=limit, cursor=cursor)
    return _listing([catalogue.model_summary_json(entry) for entry in page.items], page.next, page.total)


@router.get("/models/{model:path}", tags=["models"], summary="One model", response_model=ModelAnswer)
def get_model(ctx: Ctx, model: Name) -> Response:
    """The whole architecture of the model with this id, alias or repository name."""
    return FiniteJSONResponse(catalogue.model_json(catalogue.get_model(ctx, model)))


@router.post("/models", tags=["models"], summary="Store or copy a model", status_code=201, response_model=ModelAnswer)
def post_model(ctx: Ctx, body: ModelBody) -> Response:
    """Store an architecture of your own, import a config.json, or copy any model with `copy_of`.

    A config.json goes into `hf_config` beside a `name`, or is the whole body as it is; then it is named after its
    `_name_or_path`.

    A model needs `hidden_size`, `vocab_size` and its layers, as `layers` or flat. `assumptions` lists each default that
    was filled in. What is not understood is refused with the field's name, never guessed.
    """
    if "copy_of" in body:
        copy = CopyBody.model_validate(body)
        entry = catalogue.copy_model(ctx, copy.copy_of, name=copy.name, id_=copy.id)
    else:
        entry = catalogue.save_model(ctx, body)
    return _created("models", entry.id, catalogue.model_json(entry))


@router.put("/models/{model}", tags=["models"], summary="Replace a model", response_model=ModelAnswer)
def put_model(ctx: Ctx, model: OwnId, body: ModelBody) -> Response:
    """A new version of a model of your own; `revision` guards against overwriting somebody else's change."""
    return FiniteJSONResponse(catalogue.model_json(catalogue.save_model(ctx, body, id_=model)))


@router.delete("/models/{model}", tags=["models"], summary="Delete a model", status_code=204)
def delete_model(ctx: Ctx, model: OwnId) -> Response:
    """Delete a model of your own. While runs are linked to it, that is refused."""
    catalogue.delete_model(ctx, model)
    return Response(status_code=204)


# ---- workloads ------------------------------------------------------------------------------------------------------


@router.get("/workloads", tags=["workloads"], summary="List saved workloads", response_model=WorkloadList)
def list_workloads(
    ctx: Ctx, q: Search = None, limit: Limit = catalogue.DEFAULT_LIMIT, cursor: Cursor = None
) -> Response:
    page = catalogue.list_workloads(ctx, text=q, limit=limit, cursor=cursor)
    return _listing([catalogue.workload_json(row) for row in page.items], page.next, page.total)


@router.get("/workloads/{workload}", tags=["workloads"], summary="One saved workload", response_model=WorkloadAnswer)
def get_workload(ctx: Ctx, workload: OwnId) -> Response:
    return FiniteJSONResponse(catalogue.workload_json(catalogue.get_workload(ctx, workload)))


@router.post(
    "/workloads", tags=["workloads"], summary="Save a workload", status_code=201, response_model=WorkloadAnswer
)
def post_workload(ctx: Ctx, body: SavedWorkloadBody) -> Response:
    """Save a workload under a name; what is left out of it is saved with its default."""
    row = catalogue.save_workload(ctx, name=body.name, workload=body.workload, model=body.model)
    return _created("workloads", row.id, catalogue.workload_json(row))


@router.put("/workloads/{workload}", tags=["workloads"], summary="Replace a workload", response_model=WorkloadAnswer)
def put_workload(ctx: Ctx, workload: OwnId, body: SavedWorkloadBody) -> Response:
    """A new version; with `revision`, a change that somebody else made since is not overwritten (409)."""
    row = catalogue.save_workload(
        ctx, name=body.name, workload=body.workload, model=body.model, id_=workload, revision=body.revision
    )
    return FiniteJSONResponse(catalogue.workload_json(row))


@router.delete("/workloads/{workload}", tags=["workloads"], summary="Delete a workload", status_code=204)
def delete_workload(ctx: Ctx, workload: OwnId) -> Response:
    catalogue.delete_workload(ctx, workload)
    return Response(status_code=204)


# ---- formats --------------------------------------------------------------------------------------------------------


@router.get("/formats", tags=["formats"], summary="Formats that are recognised", response_model=FormatList)
def list_formats() -> Response:
    """The benchmark formats that uploads are recognised as, from their content alone."""
    formats = catalogue.formats_json()
    refused = catalogue.refused_formats_json()
    return FiniteJSONResponse({"items": formats, "next": None, "total": len(formats), "refused": refused})
