"""What the states of the calculating pages share: their address, and the precisions that three controls set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from typing import Any


def address_of(state: Any, changes: dict[str, Any]) -> dict[str, str]:
    """Keys of a page's address: the fields of a state (with `changes`) that differ from their defaults, in order."""
    known: Iterable[Field[Any]] = fields(state)
    values = {f.name: changes.get(f.name, getattr(state, f.name)) for f in known}
    assert changes.keys() <= values.keys()
    return {f.name: str(values[f.name]) for f in known if f.default is MISSING or values[f.name] != f.default}


def communication_precision(activations: str) -> str:
    """What exchanges send where the page has no control for it: activations, but never narrower than 16 bits."""
    return activations if activations in ("bf16", "fp16", "fp32") else "bf16"


def step_dtypes(weights: str, activations: str, kv: str) -> dict[str, str]:
    """Precisions of a step as a body has them, from the three that pages ask for."""
    return {
        "weights": weights,
        "activations": activations,
        "kv": kv,
        "gradients": "bf16" if weights != "fp32" else "fp32",
        "optimizer": "fp32",
        "communication": communication_precision(activations),
    }
