"""Hardware profiles, models and workloads: the shipped ones and a team's own, in one list each.

Shipped entries cannot change. A team copies one and edits the copy, or enters its own; each figure that differs from
the entry it came from is then marked as entered.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn, Protocol, TypeVar

from app.catalog.codec import (
    ParsedModel,
    hardware_from_json,
    hardware_to_json,
    mark_entered,
    model_from_json,
    model_to_json,
)
from app.catalog.names import UnknownName
from app.domain.errors import InvalidInput, UnsupportedArchitecture
from app.domain.hardware import FigureSource, HardwareProfile
from app.domain.model import ModelSpec
from app.domain.parameters import ParameterCount, count_parameters, kv_elements_per_token
from app.domain.precision import PRECISIONS
from app.importers import guide
from app.services.context import Context
from app.services.contracts import WorkloadBody
from app.services.references import parse_model, resolve_model
from app.storage import hardware as stored_hardware
from app.storage import models as stored_models
from app.storage import workloads as stored_workloads
from app.storage.errors import Conflict, InvalidQuery, NotFound
from app.storage.records import MAX_PAGE, Page, StoredHardware, StoredModel, StoredWorkload

DEFAULT_LIMIT: Final = 50


@dataclass(frozen=True, slots=True)
class HardwareEntry:
    """A profile; `revision` and `updated_at` are None for a shipped one."""

    profile: HardwareProfile
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def id(self) -> str:
        return self.profile.id

    @property
    def name(self) -> str:
        return self.profile.name


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """An architecture; `revision` and `updated_at` are None for a shipped one."""

    model: ModelSpec
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def name(self) -> str:
        return self.model.name


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What a model weighs. `parameters` is None where its layers cannot be counted, `kv_bytes` (of one token, bf16)
    where it has no cache that grows with the context, or none that is known."""

    parameters: ParameterCount | None
    kv_bytes: float | None


# ---- hardware -------------------------------------------------------------------------------------------------------


def list_hardware(
    ctx: Context,
    *,
    text: str | None = None,
    vendor: str | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
) -> Page[HardwareEntry]:
    """Profiles by name. Every word of `text` must begin one in a name, an alias, the vendor or the architecture.

    Raises InvalidQuery for a limit or cursor that is none.
    """
    found = [
        entry
        for entry in all_hardware(ctx)
        if (vendor is None or entry.profile.vendor.casefold() == vendor.strip().casefold())
        and hardware_matches(entry.profile, text)
    ]
    return page_of(found, limit, cursor)


def all_hardware(ctx: Context) -> list[HardwareEntry]:
    """Every profile, by name."""
    with ctx.storage.read() as session:
        rows = stored_hardware.list_all(session=session)
    own = [_hardware_entry(row) for row in rows]
    return sorted([*own, *map(HardwareEntry, ctx.catalog.hardware.values())], key=_by_name)


def get_hardware(ctx: Context, name: str) -> HardwareEntry:
    """The profile with this id or alias. Raises UnknownName or AmbiguousName."""
    own = _own_hardware(ctx, name)
    return own if own is not None else HardwareEntry(ctx.catalog.resolve_hardware(name))


def save_hardware(
    ctx: Context, data: Mapping[str, Any], *, id_: str | None = None, source: FigureSource | None = None
) -> HardwareEntry:
    """Store a team's own profile: a new one, or with `id_` a new version of that one, whose changed figures are marked
    as entered unless `source` names them.

    `data` has the catalogue's shape; a `revision` in it must be the stored one. Raises InvalidInput for what cannot be
    a profile, NotFound for an `id_` that nobody stored, Conflict for a shipped id, a taken name or an old revision.
    """
    revision = _revision(data)
    if id_ is None:
        profile = hardware_from_json(data, loc=())
        _refuse_taken(profile.id, ctx.catalog.resolve_hardware)
        with ctx.storage.write() as session:
            row = stored_hardware.add(
                session=session,
                entry_id=profile.id,
                name=profile.name,
                payload=hardware_to_json(profile),
                copied_from=profile.copied_from,
            )
        return _hardware_entry(row)
    before = _changeable_hardware(ctx, id_)
    profile = hardware_from_json(_with_id(data, before.id), loc=())
    profile = mark_entered(before.profile, profile, source)
    with ctx.storage.write() as session:
        row = stored_hardware.update(
            session=session,
            entry_id=before.id,
            name=profile.name,
            payload=hardware_to_json(profile),
            expected_revision=revision,
        )
    return _hardware_entry(row)


def copy_hardware(
    ctx: Context,
    copied: str,
    *,
    name: str,
    id_: str | None = None,
    data: Mapping[str, Any] | None = None,
    source: FigureSource | None = None,
) -> HardwareEntry:
    """A team's own copy of any profile, under a new name and (by default) an id made of it.

    `data` is the profile as edited on the way, in the catalogue's shape; what differs from the copied one is marked as
    entered, unless `source` names it. Raises InvalidInput (at `copy_of` for a source that is not known) or Conflict.
    """
    try:
        original = get_hardware(ctx, copied).profile
    except LookupError as error:
        raise InvalidInput(("copy_of",), str(error)) from error
    wanted = {"name": name} if id_ is None else {"name": name, "id": id_}
    whole = {**(hardware_to_json(original) if data is None else data), "copied_from": original.id}
    if data is None:
        whole["aliases"] = []
    whole.pop("id", None)
    profile = mark_entered(original, hardware_from_json({**whole, **wanted}, loc=()), source)
    return save_hardware(ctx, hardware_to_json(profile))


def delete_hardware(ctx: Context, id_: str) -> None:
    """Delete a team's own profile. Raises NotFound, or Conflict for a shipped one and while runs are linked to it."""
    entry = _changeable_hardware(ctx, id_)
    with ctx.storage.write() as session:
        stored_hardware.delete(session=session, entry_id=entry.id)


def hardware_json(entry: HardwareEntry) -> dict[str, Any]:
    """The profile as the API answers it."""
    return {**hardware_to_json(entry.profile), "shipped": entry.profile.shipped, **_stamps(entry)}


def _changeable_hardware(ctx: Context, id_: str) -> HardwareEntry:
    own = _own_hardware(ctx, id_)
    return _refuse_unchangeable("hardware profile", id_, ctx.catalog.resolve_hardware) if own is None else own


def _own_hardware(ctx: Context, id_: str) -> HardwareEntry | None:
    if id_ in ctx.catalog.hardware:
        return None
    with ctx.storage.read() as session:
        row = stored_hardware.find(session=session, entry_id=id_)
    return None if row is None else _hardware_entry(row)


def _hardware_entry(row: StoredHardware) -> HardwareEntry:
    profile = hardware_from_json(row.payload, loc=("hardware",))
    return HardwareEntry(profile, row.revision, row.created_at, row.updated_at)


def hardware_matches(profile: HardwareProfile, text: str | None) -> bool:
    """Whether every word of `text` begins one in a name, an alias, the vendor or the architecture."""
    return words_match(text, _hardware_names(profile))


def _hardware_names(profile: HardwareProfile) -> tuple[str, ...]:
    names = (profile.id, profile.name, profile.vendor, profile.architecture, profile.generation, profile.gfx)
    return tuple(name for name in (*names, *profile.aliases) if name)


# ---- models ---------------------------------------------------------------------------------------------------------


def list_models(
    ctx: Context,
    *,
    text: str | None = None,
    kind: str | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
) -> Page[ModelEntry]:
    """Models by name. Every word of `text` must begin one in a name, an alias, the family or the repository name.

    Raises InvalidQuery for a limit or cursor that is none.
    """
    found = [
        entry
        for entry in all_models(ctx)
        if (kind is None or entry.model.kind == kind) and model_matches(entry.model, text)
    ]
    return page_of(found, limit, cursor)


def all_models(ctx: Context) -> list[ModelEntry]:
    """Every model, by name."""
    with ctx.storage.read() as session:
        rows = stored_models.list_all(session=session)
    own = [_model_entry(row) for row in rows]
    return sorted([*own, *map(ModelEntry, ctx.catalog.models.values())], key=_by_name)


def get_model(ctx: Context, name: str) -> ModelEntry:
    """The model with this id, alias or repository name. Raises UnknownName or AmbiguousName."""
    own = _own_model(ctx, name)
    return own if own is not None else ModelEntry(ctx.catalog.resolve_model(name))


def save_model(ctx: Context, data: Mapping[str, Any], *, id_: str | None = None) -> ModelEntry:
    """Store a team's own model: a new one, or with `id_` a new version of that one. Errors as for `save_hardware`.

    `data` is our own shape, or `{"name": ..., "hf_config": {...}}` with an unmodified Hugging Face `config.json`. The
    entry's `assumptions` list every default that was filled in.
    """
    revision = _revision(data)
    if id_ is None:
        parsed = parse_model(data)
        _refuse_taken(parsed.model.id, ctx.catalog.resolve_model)
        with ctx.storage.write() as session:
            row = stored_models.add(
                session=session,
                entry_id=parsed.model.id,
                name=parsed.model.name,
                payload=_model_payload(parsed),
                copied_from=parsed.model.copied_from,
            )
        return _model_entry(row)
    before = _changeable_model(ctx, id_)
    parsed = parse_model(_with_id(data, before.id))
    with ctx.storage.write() as session:
        row = stored_models.update(
            session=session,
            entry_id=before.id,
            name=parsed.model.name,
            payload=_model_payload(parsed),
            expected_revision=revision,
        )
    return _model_entry(row)


def copy_model(
    ctx: Context, source: str, *, name: str, id_: str | None = None, data: Mapping[str, Any] | None = None
) -> ModelEntry:
    """A team's own copy of any model; `data` is the model as edited on the way. Errors as for `copy_hardware`."""
    try:
        original = get_model(ctx, source).model
    except LookupError as error:
        raise InvalidInput(("copy_of",), str(error)) from error
    wanted = {"name": name} if id_ is None else {"name": name, "id": id_}
    whole = {**(model_to_json(original) if data is None else data), "copied_from": original.id}
    if data is None:
        whole["aliases"] = []
    whole.pop("id", None)
    return save_model(ctx, {**whole, **wanted})


def delete_model(ctx: Context, id_: str) -> None:
    """Delete a team's own model. Raises NotFound, or Conflict for a shipped one and while runs are linked to it."""
    entry = _changeable_model(ctx, id_)
    with ctx.storage.write() as session:
        stored_models.delete(session=session, entry_id=entry.id)


def model_json(entry: ModelEntry) -> dict[str, Any]:
    """The model as the API answers it: its architecture and what follows from it."""
    return {
        **model_to_json(entry.model),
        **_sizes_json(entry.model),
        "shipped": entry.model.shipped,
        "assumptions": list(entry.assumptions),
        **_stamps(entry),
    }


def model_summary_json(entry: ModelEntry) -> dict[str, Any]:
    """The model as lists show it."""
    model = entry.model
    return {
        "id": model.id,
        "name": model.name,
        "family": model.family,
        "kind": model.kind,
        "release_year": model.release_year,
        "hf_id": model.hf_id,
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        **_sizes_json(model),
        "aliases": list(model.aliases),
        "shipped": model.shipped,
        **_stamps(entry),
    }


def model_sizes(model: ModelSpec) -> ModelSizes:
    """Parameters and cache of a model."""
    try:
        parameters = count_parameters(model)
    except UnsupportedArchitecture:
        parameters = None
    try:
        cached = kv_elements_per_token(model) * PRECISIONS["bf16"].element_bytes
    except UnsupportedArchitecture:
        cached = 0.0
    return ModelSizes(parameters, cached or None)


def _sizes_json(model: ModelSpec) -> dict[str, Any]:
    sizes = model_sizes(model)
    count = sizes.parameters
    return {
        "params_total": None if count is None else count.total,
        "params_active": None if count is None else count.active,
        "params_counted": None if count is None else count.counted,
        "kv_bytes_per_token": sizes.kv_bytes,
        "estimable": model.supported,
    }


def _changeable_model(ctx: Context, id_: str) -> ModelEntry:
    own = _own_model(ctx, id_)
    return _refuse_unchangeable("model", id_, ctx.catalog.resolve_model) if own is None else own


def _own_model(ctx: Context, id_: str) -> ModelEntry | None:
    if id_ in ctx.catalog.models:
        return None
    with ctx.storage.read() as session:
        row = stored_models.find(session=session, entry_id=id_)
    return None if row is None else _model_entry(row)


def _model_payload(parsed: ParsedModel) -> dict[str, Any]:
    # What was filled in looks like what was given once it is stored, so the list of it is kept beside.
    return {**model_to_json(parsed.model), "assumptions": list(parsed.assumptions)}


def _model_entry(row: StoredModel) -> ModelEntry:
    model = model_from_json(row.payload, loc=("model",)).model
    assumptions = tuple(map(str, row.payload.get("assumptions", ())))
    return ModelEntry(model, row.revision, row.created_at, row.updated_at, assumptions)


def model_matches(model: ModelSpec, text: str | None) -> bool:
    """Whether every word of `text` begins one in a name, an alias, the family, the repository name or the kind."""
    return words_match(text, _model_names(model))


def _model_names(model: ModelSpec) -> tuple[str, ...]:
    names = (model.id, model.name, model.family, model.hf_id, model.kind)
    return tuple(name for name in (*names, *model.aliases) if name)


# ---- workloads ------------------------------------------------------------------------------------------------------


def list_workloads(
    ctx: Context, *, text: str | None = None, limit: int = DEFAULT_LIMIT, cursor: str | None = None
) -> Page[StoredWorkload]:
    """Saved workloads by name. Raises InvalidQuery."""
    with ctx.storage.read() as session:
        rows = stored_workloads.list_all(session=session)
    return page_of(sorted((row for row in rows if words_match(text, (row.name,))), key=_by_name), limit, cursor)


def get_workload(ctx: Context, id_: str) -> StoredWorkload:
    """The saved workload. Raises NotFound."""
    with ctx.storage.read() as session:
        return stored_workloads.get(session=session, entry_id=id_)


def save_workload(
    ctx: Context,
    *,
    name: str,
    workload: WorkloadBody,
    model: str | None = None,
    id_: str | None = None,
    revision: int | None = None,
) -> StoredWorkload:
    """Store a workload, or with `id_` a new version of one; `model` is the model it is meant for.

    Raises InvalidInput for a workload that makes no sense or an unknown model, NotFound, Conflict for an old revision.
    """
    workload.to_domain()
    model_id = None if model is None else resolve_model(ctx, model)[0].id
    payload = workload.model_dump(mode="json")
    with ctx.storage.write() as session:
        if id_ is None:
            return stored_workloads.add(session=session, name=name, payload=payload, model_id=model_id)
        return stored_workloads.update(
            session=session, entry_id=id_, name=name, payload=payload, model_id=model_id, expected_revision=revision
        )


def delete_workload(ctx: Context, id_: str) -> None:
    """Delete a saved workload. Raises NotFound."""
    with ctx.storage.write() as session:
        stored_workloads.delete(session=session, entry_id=id_)


def workload_json(row: StoredWorkload) -> dict[str, Any]:
    """The saved workload as the API answers it."""
    return {
        "id": row.id,
        "name": row.name,
        "model": row.model_id,
        "workload": dict(row.payload),
        "revision": row.revision,
        "created_at": row.created_at.isoformat(),
        "updated_at": row.updated_at.isoformat(),
    }


# ---- formats --------------------------------------------------------------------------------------------------------


def formats_json() -> list[dict[str, Any]]:
    """The benchmark formats that uploads are recognised as."""
    return [asdict(entry) for entry in guide.formats()]


def refused_formats_json() -> list[dict[str, Any]]:
    """Formats that are recognised and not read, with what to do instead."""
    return [{"id": id_, "title": title, "advice": advice} for id_, title, advice in guide.refused_formats()]


# ---- shared ---------------------------------------------------------------------------------------------------------


class _Stored(Protocol):
    @property
    def revision(self) -> int | None: ...

    @property
    def created_at(self) -> datetime | None: ...

    @property
    def updated_at(self) -> datetime | None: ...


class _Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _stamps(entry: _Stored) -> dict[str, Any]:
    if entry.revision is None or entry.created_at is None or entry.updated_at is None:
        return {}
    return {
        "revision": entry.revision,
        "created_at": entry.created_at.isoformat(),
        "updated_at": entry.updated_at.isoformat(),
    }


def _revision(data: Mapping[str, Any]) -> int | None:
    """The revision that an edited answer was made from."""
    revision = data.get("revision")
    if revision is not None and (isinstance(revision, bool) or not isinstance(revision, int)):
        raise InvalidInput(("revision",), "expected the whole number that the entry was answered with")
    return revision


def _with_id(data: Mapping[str, Any], id_: str) -> dict[str, Any]:
    given = data.get("id", id_)
    if given != id_:
        raise InvalidInput(("id",), f"an id does not change: leave it out, or give {id_!r}")
    return {**data, "id": id_}


def _refuse_unchangeable(noun: str, id_: str, resolve: Callable[[str], Any]) -> NoReturn:
    """Raises Conflict for a shipped entry, which nobody changes, and NotFound for a name that means nothing."""
    try:
        shipped = resolve(id_)
    except LookupError:
        raise NotFound(noun, id_) from None
    raise Conflict(f"{shipped.name} is shipped and stays as it is: copy it and change the copy")


def _refuse_taken(id_: str, resolve: Callable[[str], Any]) -> None:
    """A team's entry must not take a name that already means a shipped one: links would change their meaning."""
    if id_ == "new":
        raise Conflict("'new' is the address of the form for new entries: give another name or an id")
    try:
        shipped = resolve(id_)
    except UnknownName:
        return
    except LookupError:
        raise Conflict(f"{id_!r} is a name of several shipped entries: give another name or an id") from None
    raise Conflict(f"{id_!r} already means {shipped.name}: give another name or an id")


def words_match(text: str | None, names: tuple[str, ...]) -> bool:
    """Whether each word of `text` begins one of some name, or several written as one (h100sxm, llama3.1)."""
    if not text or not text.strip():
        return True
    wanted = _words(text[:500])
    beginnings = _beginnings(names)
    return bool(wanted) and all(f"\n{word}" in beginnings for word in wanted)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:\.[^\W_]+)*\+?", text.casefold())


@lru_cache(maxsize=2048)
def _beginnings(names: tuple[str, ...]) -> str:
    """What a searched word may begin: every name from each of its words on, without what parts them; one a line."""
    found = ("".join(words[start:]) for words in map(_words, names) for start in range(len(words)))
    return "\n" + "\n".join(dict.fromkeys(found))


def _by_name(entry: _Named) -> tuple[str, str]:
    return entry.name.casefold(), entry.id


def page_of(entries: Sequence[N] | Iterable[N], limit: int, cursor: str | None) -> Page[N]:
    """The entries (sorted by `_by_name`) after the one that the cursor names."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidQuery("limit", f"must be from 1 to {MAX_PAGE}, not {limit}")
    everything = list(entries)
    rest = everything
    if cursor:
        last = _cursor_key(cursor)
        rest = [entry for entry in everything if _by_name(entry) > last]
    items = rest[:limit]
    following = _cursor(_by_name(items[-1])) if len(rest) > limit else None
    return Page(tuple(items), following, len(everything))


def _cursor(key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _cursor_key(cursor: str) -> tuple[str, str]:
    refusal = InvalidQuery("cursor", "not a cursor of this list: start again without one")
    if len(cursor) > 4000:
        raise refusal
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        name, id_ = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise refusal from None
    if not (isinstance(name, str) and isinstance(id_, str)):
        raise refusal
    return name, id_
