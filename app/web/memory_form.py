"""The controls of the memory page: those of the lab, and the reserve beside the payload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from app.domain.memory_reserve import Reserve
from app.services.memory_page import EXAMPLE, RESERVE_FIELDS, MemoryState
from app.services.what_if import FIELDS
from app.web.forms import FormErrors, LabForm, lab_form, parse_quantity, quantity_text

RESERVE_CONTROLS: Final = (
    {
        "name": "lost",
        "label": "Lost to fragmentation",
        "unit": "%",
        "hint": "Of what the allocator holds. Assumed: 0.6 to 22 in 19 of our own training runs, half below 5",
    },
    {
        "name": "workspace",
        "label": "Workspace",
        "unit": "MiB",
        "hint": "Driver context, loaded kernels, library workspaces. Assumed: a few hundred MiB is usual",
    },
    {
        "name": "bucket",
        "label": "Gradient bucket",
        "unit": "MiB",
        "hint": "Two are held at once; 25 MiB is PyTorch's default, 0 where gradients are reduced in place",
    },
    {
        "name": "gathered",
        "label": "Layers gathered at once",
        "unit": "",
        "hint": "Under ZeRO-3 or FSDP: the running layer and those fetched ahead",
    },
)
MOST_BYTES: Final = 2.0**50


def memory_form(query: Mapping[str, str]) -> tuple[LabForm, MemoryState]:
    """Read the page's controls from an address; an empty one is the example.

    An unreadable control keeps its default in the state and has a message in the form's errors.
    """
    asked = any(name in query for name in (*FIELDS, *RESERVE_FIELDS, "add_lever"))
    form = lab_form(query if asked else EXAMPLE.query())
    errors = dict(form.errors.by_field)
    reserve, plain = Reserve(), Reserve()
    typed = {
        "lost": f"{plain.fragmentation * 100:g}",
        "workspace": quantity_text(plain.workspace, "B", "MiB"),
        "bucket": quantity_text(plain.bucket, "B", "MiB"),
        "gathered": str(plain.gathered_layers),
    }
    for name in RESERVE_FIELDS:
        text = query.get(name, "").strip()
        if not text:
            continue
        typed[name] = text
        try:
            reserve = replace(reserve, **_reserve_field(name, text))
        except ValueError as error:
            errors[name] = str(error)
    read = LabForm({**form.typed, **typed}, form.state, FormErrors(errors, form.errors.general))
    return read, MemoryState(replace(form.state, beside=""), reserve)


def _reserve_field(name: str, text: str) -> dict[str, Any]:
    """One control of the reserve. Raises ValueError with what would be right."""
    if name == "lost":
        share = _number(text.removesuffix("%"), "Lost to fragmentation")
        if not 0 <= share <= 90:
            raise ValueError("Lost to fragmentation must be between 0 and 90 %.")
        return {"fragmentation": share / 100}
    if name == "gathered":
        count = _number(text, "Layers gathered at once")
        if count != int(count) or not 0 <= count <= 1024:
            raise ValueError("Layers gathered at once must be a whole number from 0 to 1,024.")
        return {"gathered_layers": int(count)}
    size = parse_quantity(text, "B", "MiB")
    if not 0 <= size <= MOST_BYTES:
        raise ValueError("Must be between 0 and 1 PiB.")
    return {name: size}


def _number(text: str, label: str) -> float:
    try:
        number = float(text.strip())
    except ValueError as error:
        raise ValueError(f"{label}: {text[:40]!r} is not a number.") from error
    if not abs(number) < 1e9:
        raise ValueError(f"{label}: {text[:40]!r} is not a number that can be used.")
    return number
