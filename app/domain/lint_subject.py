"""What a check of the lint may look at: a run as its file tells it, what people state, what was computed from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from app.domain.hardware import HardwareProfile
from app.domain.model import ModelSpec, MoeMlp
from app.domain.precision import PRECISIONS
from app.domain.run import ParsedRun
from app.domain.run_analysis import MeasuredAgainstBound

NARROW_BELOW = 15.0
"""Average bits of a weight under which it counts as narrower than 16 bits (16-bit files average a little above 16)."""


@dataclass(frozen=True)  # no slots: derived values are worked out once, when a check first asks
class Subject:
    """A run under the lint.

    `stated` are fields of the API's workload object that people state, `facts` what they add that no file carries
    (keys of app.domain.lint_facts.FACTS), `analysis` the run against its bound as it is computed now.
    """

    run: ParsedRun
    hardware: HardwareProfile | None = None
    model: ModelSpec | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    analysis: MeasuredAgainstBound = field(default_factory=MeasuredAgainstBound)

    @property
    def mode(self) -> str:
        return self.run.workload.mode or str(self.stated.get("phase") or "")

    @cached_property
    def values(self) -> dict[tuple[str, str | None], float]:
        """Metrics by (name, statistic); the first of a key counts."""
        found: dict[tuple[str, str | None], float] = {}
        for metric in self.run.metrics:
            found.setdefault((metric.name, metric.stat), metric.value)
        return found

    def metric(self, name: str, *stats: str | None) -> float | None:
        """The first of the wanted statistics; without any named, the plain value, the mean or the median."""
        for stat in stats or (None, "mean", "p50"):
            value = self.values.get((name, stat))
            if value is not None and math.isfinite(value):
                return value
        return None

    def reports(self, *names: str) -> bool:
        return any(name in names for name, _ in self.values)

    def told(self, *keys: str) -> Any:
        """What anybody says under one of these names: people first, then the file's workload, evidence and software."""
        extra = self.run.workload.extra
        tags = extra.get("tags")
        places: tuple[Mapping[str, Any], ...] = (
            self.facts,
            self.stated,
            extra,
            tags if isinstance(tags, Mapping) else {},
            self.run.evidence,
            self.run.software,
        )
        for key in keys:
            for place in places:
                value = place.get(key)
                if value is not None and value != "":
                    return value
        return None

    def number(self, *keys: str) -> float | None:
        """The same where it is a finite number."""
        value = self.told(*keys)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)

    @cached_property
    def layout(self) -> dict[str, int]:
        """Parallel degrees that the file or people state."""
        found = {key: value for key, value in self.run.parallel.items() if isinstance(value, int)}
        for key, value in dict(self.stated.get("parallel") or {}).items():
            if isinstance(value, int) and not isinstance(value, bool):
                found[key] = value
        return found

    @property
    def devices(self) -> int | None:
        """Devices of the stated layout; None where nobody states one."""
        degrees = [self.layout[key] for key in ("tp", "pp", "dp", "cp") if key in self.layout]
        return math.prod(degrees) if degrees else None

    @cached_property
    def dtypes(self) -> dict[str, str]:
        told = {**self.run.workload.dtypes, **dict(self.stated.get("dtypes") or {})}
        return {key: str(value) for key, value in told.items() if value is not None}

    @cached_property
    def narrowest(self) -> float | None:
        """The fewest bits of weights, activations or KV cache that anybody states; None where nobody states any."""
        bits: list[float] = [
            PRECISIONS[self.dtypes[key]].bits
            for key in ("weights", "activations", "kv")
            if self.dtypes.get(key) in PRECISIONS
        ]
        w = self.run.workload
        if w.weight_bytes and w.parameters:
            average = w.weight_bytes * 8 / w.parameters
            if 0.1 <= average <= 64:
                bits.append(16.0 if NARROW_BELOW <= average <= 20 else average)
        return min(bits) if bits else None

    @property
    def is_narrow(self) -> bool:
        return self.narrowest is not None and self.narrowest < NARROW_BELOW

    @property
    def has_quality(self) -> bool:
        """Whether a quality figure stands beside the speed: a loss, or anything called quality or accuracy."""
        names = {name for name, _ in self.values} | set(self.run.evidence) | set(self.facts)
        names |= set(self.run.workload.extra) | set(self.run.workload.extra.get("tags") or {})
        return any(name == "loss" or "quality" in name or "accuracy" in name for name in names)

    @property
    def is_moe(self) -> bool:
        return self.model is not None and any(isinstance(group.mlp, MoeMlp) for group in self.model.layers)

    @property
    def versions(self) -> tuple[str, ...]:
        """Software that is named with a version or commit: its value holds a digit, or its name says so."""
        words = ("version", "commit", "build", "revision")
        return tuple(
            key
            for key, value in self.run.software.items()
            if key not in ("client", "backend", "endpoint_type", "launch_mode")
            and (any(ch.isdigit() for ch in value) or any(word in key for word in words))
        )
