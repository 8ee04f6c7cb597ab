"""Names to things: a catalogue id or alias, a team's own id, or the object itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.catalog.codec import ParsedModel, hardware_from_json, model_from_json
from app.catalog.fields import Fields
from app.catalog.hf import model_from_hf_config
from app.catalog.names import AmbiguousName, UnknownName
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.model import ModelSpec
from app.services.context import Context
from app.storage import hardware as stored_hardware
from app.storage import models as stored_models


def resolve_hardware(ctx: Context, reference: str | Mapping[str, Any]) -> tuple[HardwareProfile, tuple[str, ...]]:
    """The profile meant, and what was assumed to read it. A team's own id goes before the catalogue's names.

    Raises InvalidInput at `hardware`: an unknown name with near ones, an ambiguous one with its candidates, or the
    field of an inline object that is wrong.
    """
    if not isinstance(reference, str):
        return hardware_from_json(reference), ()
    own = own_hardware(ctx, reference)
    if own is not None:
        return own, ()
    try:
        return ctx.catalog.resolve_hardware(reference), ()
    except (UnknownName, AmbiguousName) as error:
        raise InvalidInput(("hardware",), str(error)) from error


def resolve_model(ctx: Context, reference: str | Mapping[str, Any]) -> tuple[ModelSpec, tuple[str, ...]]:
    """The architecture meant, and every default that was filled in to read it. Errors as above, at `model`."""
    if not isinstance(reference, str):
        parsed = parse_model(reference, ("model",))
        return parsed.model, tuple(parsed.assumptions)
    own = _own_model(ctx, reference)
    if own is not None:
        return own
    try:
        return ctx.catalog.resolve_model(reference), ()
    except (UnknownName, AmbiguousName) as error:
        raise InvalidInput(("model",), str(error)) from error


def parse_model(data: Mapping[str, Any], loc: tuple[str, ...] = ()) -> ParsedModel:
    """A model from its object: our own shape, `{"hf_config": {...}}` with a Hugging Face `config.json` in it, or that
    file itself, which names its `model_type` or `architectures` where our shape has neither.

    Beside `hf_config` only `name` and `id` may stand (and the `revision` of an edit): everything else is in the file.
    Raises InvalidInput at `loc`.
    """
    if "hf_config" not in data:
        if "model_type" in data or "architectures" in data:
            return model_from_hf_config(data, loc=loc)
        return model_from_json(data, loc=loc)
    allowed = ("hf_config", "name", "id", "revision")
    for key in data:
        if key not in allowed:
            raise InvalidInput(
                (*loc, str(key)[:100]),
                "cannot stand beside hf_config: store the model, then change what is wrong in it",
            )
    fields = Fields(data, loc, allowed)
    return model_from_hf_config(
        data["hf_config"],
        name=fields.text("name", 200),
        id_=fields.identifier("id", "") or None,
        loc=(*loc, "hf_config"),
    )


def own_hardware(ctx: Context, id_: str) -> HardwareProfile | None:
    """A team's own profile with this id, or None."""
    if id_ in ctx.catalog.hardware:
        return None
    with ctx.storage.read() as session:
        row = stored_hardware.find(session=session, entry_id=id_)
    return None if row is None else hardware_from_json(row.payload)


def own_model(ctx: Context, id_: str) -> ModelSpec | None:
    """A team's own model with this id, or None."""
    found = _own_model(ctx, id_)
    return None if found is None else found[0]


def _own_model(ctx: Context, id_: str) -> tuple[ModelSpec, tuple[str, ...]] | None:
    """A team's own model, and what was filled in when it was entered: an estimate on it assumes that still."""
    if id_ in ctx.catalog.models:
        return None
    with ctx.storage.read() as session:
        row = stored_models.find(session=session, entry_id=id_)
    if row is None:
        return None
    return model_from_json(row.payload).model, tuple(map(str, row.payload.get("assumptions", ())))


def own_names(ctx: Context) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """(id, name) of a team's own profiles and of its own models."""
    with ctx.storage.read() as session:
        hardware = stored_hardware.list_all(session=session)
        models = stored_models.list_all(session=session)
    return tuple((h.id, h.name) for h in hardware), tuple((m.id, m.name) for m in models)
