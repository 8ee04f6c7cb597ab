"""An unmodified Hugging Face `config.json` as a model of the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.catalog.fields import as_loc
from app.catalog.hf.config import Config
from app.catalog.hf.quantization import read_stored, stored_sentence
from app.catalog.hf.registry import find_family, known_families
from app.catalog.hf.text import read_config_text
from app.catalog.hf.towers import read_tower
from app.catalog.model_codec import ParsedModel, model_from_json
from app.domain.errors import InvalidInput

__all__ = ["known_families", "model_from_hf_config", "read_config_text"]


def model_from_hf_config(
    data: object, *, name: str | None = None, id_: str | None = None, loc: str | Sequence[str | int] = ("hf_config",)
) -> ParsedModel:
    """The model that a `config.json` describes, with every default that was filled in as an assumption.

    `data` is the parsed file; `read_config_text` parses text. `loc` is its path in the request. The record keeps
    `hf_import`: what the file calls itself, how its weights are stored, and the assumptions. Raises InvalidInput with
    the path of the field: for an unknown architecture that is `model_type`.
    """
    root = Config(data, as_loc(loc))
    found = find_family(root)
    draft = found.reader(found.config)
    if found.config is not root:
        draft.facts |= read_tower(root, found.root_type, draft.hidden)
        if root.has("vision_config") and draft.kind in ("decoder", "moe") and found.family not in _OWN_KIND:
            draft.kind = "vlm"
        elif not root.has("vision_config", "audio_config") and not draft.facts.get("vision"):
            root.assume(
                f"{found.root_type} wraps a text model and the file describes no other tower: the totals are those of "
                "the text model"
            )
    elif root.has("vision_config"):
        draft.facts |= read_tower(root, found.root_type, draft.hidden)
        draft.kind = "vlm" if draft.kind in ("decoder", "moe") else draft.kind
    stored = read_stored(root, found.config)
    quantized = any(c.has("quantization_config", "compression_config") for c in (root, found.config))
    sentence = None if stored is None else stored_sentence(stored, quantized)
    if sentence is not None:
        root.assume(sentence)
    record = {
        "name": name or _name(root, found.model_type),
        "hf_model_type": found.model_type[:200],
        **draft.record(),
    }
    if id_ is not None:
        record["id"] = id_
    imported: dict[str, Any] = {
        "model_type": found.root_type[:200],
        "family": found.family,
        "weights": stored.precision if stored else None,
        "stored_as": stored.words if stored else None,
        "assumptions": list(root.assumptions),
    }
    record["hf_import"] = {key: value for key, value in imported.items() if value is not None}
    try:
        return model_from_json(record, loc=())
    except InvalidInput as error:
        if error.loc[:1] in (("name",), ("id",)):
            raise
        path = ".".join(str(part) for part in error.loc)
        raise InvalidInput(as_loc(loc), f"describes a model that cannot be kept: {path} {error.reason}") from error


_OWN_KIND = frozenset({"gemma4", "llama4"})
"""Families whose catalogue entries are named after their decoder although they read pictures."""


def _name(root: Config, model_type: str) -> str:
    path = root.text("_name_or_path")
    last = path.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1] if path else ""
    return last[:200] or f"imported {model_type[:100]}"
