"""What a comparison holds of a question that a call of its own answers: communication, memory, a cache, experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from app.domain.comparison_items import Value
from app.domain.hardware import HardwareProfile
from app.domain.model import ModelSpec
from app.services.contracts import BoundRequest
from app.services.estimate import BoundEstimate


@dataclass(frozen=True, slots=True)
class Answered:
    """One answered question: its request and answer as JSON, a name, its numbers, and what a fair comparison needs
    equal. `step` is the step that it is about, with the question of its bound, which says most of the latter. `run` is
    the run that told it times or lengths."""

    kind: Literal["overlap", "exposed", "pipeline", "memory", "kv", "moe"]
    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    label: str
    values: Mapping[str, Value]
    frozen: Mapping[str, Any]
    model: ModelSpec | None = None
    hardware: HardwareProfile | None = None
    step: tuple[BoundEstimate, BoundRequest] | None = None
    run: str | None = None


Figure: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A figure of a frozen answer that a reader sees: in words, its unit, and where it stands in the answer."""
