"""The forms of a run's page: what they hold, and what was typed as a change of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.lint_facts import STATABLE
from app.services.run_changes import RunPatch
from app.services.runs import RunView

PRECISION_FIELDS = ("weights", "activations", "kv")
LAYOUT_FIELDS = ("tp", "pp", "dp", "ep")
SHAPE_FIELDS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "serve": (
        ("batch", "Sequences decoded together", "Of one replica; else from Little's law"),
        ("context_len", "Context in decode", "Tokens in the cache; else from the lengths in the file"),
    ),
    "decode": (
        ("batch", "Batch", "Sequences of one replica"),
        ("context_len", "Context", "Tokens in the cache"),
    ),
    "prefill": (
        ("batch", "Batch", "Prompts at once"),
        ("seq_len", "Prompt", "New tokens of a prompt"),
        ("context_len", "Context", "Tokens in the cache before"),
    ),
    "train": (
        ("batch", "Batch of a replica", "Sequences of one micro-batch"),
        ("seq_len", "Sequence length", "Tokens of a sequence"),
    ),
}


class NotWhole(Exception):
    """A number of the form cannot be read; its message is noted already."""


def form_values(view: RunView, typed: Mapping[str, str] | None) -> dict[str, Any]:
    """What the fields hold: what is stored of the run, or what was typed into a form that was refused."""
    run, overrides = view.run, view.run.workload_overrides
    layout = dict(overrides.get("parallel") or {})
    dtypes = dict(overrides.get("dtypes") or {})
    stored = {
        "hardware": view.hardware.name if view.hardware else run.hardware_id or "",
        "model": view.model.name if view.model else run.model_id or "",
        **{name: layout.get(name, "") for name in LAYOUT_FIELDS},
        **{name: dtypes.get(name, "") for name in PRECISION_FIELDS},
        **{name: overrides.get(name, "") for name, _, _ in SHAPE_FIELDS[shape_mode(view)]},
        "phase": overrides.get("phase", ""),
        "name": run.name,
        "tags": ", ".join(run.tags),
        "notes": run.parsed.notes or "",
        "baseline": run.baseline_run_id or "",
        "is_baseline": "1" if run.is_baseline else "",
        "series": run.series_name or "",
        "remember": "1" if typed is None else "",
        **{f"fact_{fact.key}": run.facts.get(fact.key, "") for fact in STATABLE},
        # checkboxes that are off are not sent: after a refusal, what was sent counts
        "whole_file": "1" if typed is None and len(view.siblings) > 1 and needs_links(view) else "",
    }
    return stored | dict(typed or {})


def patch_of(view: RunView, typed: Mapping[str, str], problems: dict[str, str]) -> RunPatch:
    """The change that a form asks for. Raises NotWhole where a number cannot be read, with the words in `problems`."""
    if typed.get("part") == "finding":
        note = None if typed.get("reopen") == "1" else typed.get("note", "")
        return RunPatch(acknowledge={typed.get("check", ""): note})
    if typed.get("part") == "about":
        return RunPatch.model_validate(
            {
                "name": typed.get("name", ""),
                "tags": [typed.get("tags", "")],
                "notes": typed.get("notes") or None,
                "baseline": typed.get("baseline") or None,
                "is_baseline": typed.get("is_baseline") == "1",
                "series": typed.get("series") or None,
            }
        )
    stated = dict(view.run.workload_overrides)
    mode = shape_mode(view)
    for name in ("batch", "seq_len", "context_len"):
        if any(name == field for field, _, _ in SHAPE_FIELDS[mode]):
            _set(stated, name, _whole(name, typed, problems))
    layout = dict(stated.get("parallel") or {})
    for name in LAYOUT_FIELDS:
        _set(layout, name, _whole(name, typed, problems))
    dtypes = dict(stated.get("dtypes") or {})
    for name in PRECISION_FIELDS:
        _set(dtypes, name, typed.get(name) or None)
    _set(stated, "parallel", layout or None)
    _set(stated, "dtypes", dtypes or None)
    if "phase" in typed:
        _set(stated, "phase", typed["phase"] or None)
    if problems:
        raise NotWhole
    facts = {fact.key: typed[f"fact_{fact.key}"] or None for fact in STATABLE if f"fact_{fact.key}" in typed}
    patch: dict[str, Any] = {"workload": stated, "facts": facts, "remember": typed.get("remember") == "1"}
    for name in ("hardware", "model"):
        if name in typed:
            patch[name] = typed[name] or None
    return RunPatch.model_validate(patch)


def _set(fields: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        fields.pop(name, None)
    else:
        fields[name] = value


def _whole(name: str, typed: Mapping[str, str], problems: dict[str, str]) -> int | None:
    text = typed.get(name, "").replace(",", "").replace("\u202f", "").replace(" ", "").replace("_", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 13:
        problems[name] = f"{typed[name][:30]!r} is not a whole number: write for example 8, or leave it empty."
        return None
    return int(text)


def shape_mode(view: RunView) -> str:
    """Which of SHAPE_FIELDS the run is described by."""
    mode = view.run.parsed.workload.mode or ""
    if mode in SHAPE_FIELDS:
        return mode
    phase = str(view.stated.get("phase") or "")
    return phase if phase in SHAPE_FIELDS else "prefill"


def needs_links(view: RunView) -> bool:
    """Whether the run lacks what a bound is computed from."""
    return view.hardware is None or view.model is None


FIELD_WORDS: Mapping[str, str] = {
    **{f"fact_{fact.key}": fact.label for fact in STATABLE},
    "hardware": "Device",
    "model": "Model",
    "tp": "Tensor parallel",
    "pp": "Pipeline stages",
    "dp": "Data parallel",
    "ep": "Expert parallel",
    "kv": "KV cache",
    "batch": "Batch",
    "seq_len": "Tokens",
    "context_len": "Context",
}


def field_id(name: str) -> str:
    """The id that the field macro gives a field of this name."""
    return f"f-{name.replace('_', '-')}"
