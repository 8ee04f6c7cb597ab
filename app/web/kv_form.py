"""The controls of the KV page as typed, and as a state where every one of them could be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from app.domain.errors import InvalidInput, MissingFigure, UnsupportedArchitecture
from app.services.kv_what_if import DISTRIBUTIONS, FIELD_OF_LOC, FIELDS, KvState
from app.web.forms import MAX_TEXT, FormErrors, placed_errors, read_controls, sentence

_LONG: Mapping[str, int] = {"lengths": 6000, "lines": 1000}

_WHOLE: Mapping[str, tuple[str, int, int]] = {
    "batch": ("Sequences", 1, 10_000_000),
    "context": ("Context", 0, 100_000_000),
    "low": ("Shortest", 1, 100_000_000),
    "high": ("Longest", 1, 100_000_000),
    "mean": ("Mean", 1, 100_000_000),
    "p95": ("95th percentile", 1, 100_000_000),
    "prefix": ("Shared prefix", 0, 100_000_000),
    "page": ("Page size", 1, 1_048_576),
    "longest": ("Reserved length", 0, 1_000_000_000),
    "prediction": ("Prediction modules", 0, 64),
    "tp": ("Tensor parallel", 1, 4096),
    "pp": ("Pipeline parallel", 1, 4096),
    "dp": ("Data parallel", 1, 1_000_000),
    "cp": ("Context parallel", 1, 4096),
    "ep": ("Expert parallel", 1, 4096),
    "reserve": ("Reserve", 0, 99),
}


@dataclass(frozen=True, slots=True)
class KvForm:
    typed: Mapping[str, str]
    state: KvState
    errors: FormErrors


def kv_form(query: Mapping[str, str]) -> KvForm:
    """Read the controls from an address. An unreadable one keeps its default in the state and has a message."""
    plain = KvState()
    values, errors = read_controls(query, plain, _WHOLE, {}, _LONG)
    if "lengths" in errors:
        errors["lengths"] += " Paste longer lists below: they are put into groups."
    if values.get("dist", plain.dist) not in DISTRIBUTIONS:
        del values["dist"]
        errors["dist"] = f"Use one of {', '.join(DISTRIBUTIONS)}."
    typed = {name: query.get(name, str(getattr(plain, name))) for name in FIELDS}
    state = KvState(**values)
    if query.get("add") and "lines" not in errors:
        try:
            state = _with_added(state, query)
        except InvalidInput as error:
            errors["lines"] = sentence(error.reason)
    return KvForm(typed, state, FormErrors(errors))


def _with_added(state: KvState, query: Mapping[str, str]) -> KvState:
    """The state with the line that was put together beside the list."""
    model = query.get("add_model", "").strip()[:MAX_TEXT] or state.model
    kv = query.get("add_kv", "").strip()[:20] or state.kv
    tp = query.get("add_tp", "").strip()[:20] or str(state.tp)
    added = KvState(lines=f"{model.replace(',', ' ')}@{kv}@{tp}").further()
    lines = state.further()
    changed = state.with_lines([*lines, *(line for line in added if line not in lines)])
    changed.further()
    return changed


def kv_errors(error: ValidationError | InvalidInput | MissingFigure | UnsupportedArchitecture) -> FormErrors:
    """What a refused estimate says, beside the control it belongs to."""
    return placed_errors(error, _field_of)


def _field_of(loc: Sequence[object]) -> str | None:
    where = tuple(str(part) for part in loc)
    return FIELD_OF_LOC.get(where) or FIELD_OF_LOC.get(where[:1])
