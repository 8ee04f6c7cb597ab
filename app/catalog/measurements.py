"""Published and own measurements that the project carries: what was run, on which profile, how long it took.

One file a collection in `data/measurements`. A row's `question` is what an estimate answers:

* `{"op": "gemm" | "attention" | "elementwise" | "collective", ...}`: one operation with cold operands, its arguments
  those of the calculators in `app.domain.single_op`.
* `{"layer": "moe" | "latent attention" | "decoder", ...}`: the kernels of one layer, or of a stack of equal layers
  without its ends.
* `{"step": {...}, "model": ..., "layers"?: ...}`: a step; `model` is a catalogue id or the dimensions of equal layers,
  `layers` replaces their number where fewer were run.

Choices made in reading the sources: times printed as rates are converted back by the source's own formula; a context
that grows is its mean; recomputation that a source does not state is taken as none; sharded mixed-precision training is
read as bf16 weights and gradients; a quantised file's weights have the average bits of the file; a micro-batch that is
not stated is one sequence. None of these raises the bound. In-switch reduction is taken where the source used or may
have used it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from app.domain.units import Seconds

PROPERTIES: Mapping[str, str] = {
    "untuned": "not what a tuned stack runs",
    "cached": "its working set stays in the last-level cache between repetitions",
    "skewed": "routing more uneven than the even one of the question",
    "changed": "the source changed the work",
    "reduced": "a device below the profile",
    "condition": "an unusual condition",
    "rounding": "the time is printed with few digits",
}
"""What a row may say about itself beyond its question; these may explain a time below the bound."""


@dataclass(frozen=True, slots=True)
class MeasurementSource:
    """Where rows were read. `read` is primary, secondary or measured (by ourselves)."""

    title: str
    url: str | None
    read: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured time. `properties` are those of PROPERTIES, `engine` names the kernel or software where given."""

    id: str
    collection: str
    kind: str
    hardware: str
    question: Mapping[str, Any]
    seconds: Seconds
    source: MeasurementSource
    published: str
    engine: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tuned(self) -> bool:
        """Whether a forecast for a well-tuned stack speaks about this row at all."""
        return not {"untuned", "skewed", "changed", "condition"} & self.properties.keys()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of a source that no question can be asked about, and why."""

    collection: str
    why: str
    rows: int


@dataclass(frozen=True, slots=True)
class Measurements:
    rows: tuple[Measurement, ...]
    left_out: tuple[LeftOut, ...]


@cache
def load_measurements() -> Measurements:
    """Every carried row, by collection. The files are the project's own: a broken one raises."""
    rows: list[Measurement] = []
    left: list[LeftOut] = []
    folder = files("app.catalog") / "data" / "measurements"
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if not path.name.endswith(".json"):
            continue
        collection = path.name.removesuffix(".json")
        data = json.loads(path.read_text(encoding="utf-8"))
        if collection == "left-out":
            left += [LeftOut(item["source"], item["why"], sum(item["kinds"].values())) for item in data]
            continue
        sources = {key: MeasurementSource(**value) for key, value in data["sources"].items()}
        left += [LeftOut(collection, item["why"], sum(item["kinds"].values())) for item in data["left_out"]]
        rows += [
            Measurement(
                id=row["id"],
                collection=collection,
                kind=row["kind"],
                hardware=row["hardware"],
                question=row["question"],
                seconds=row["seconds"],
                source=sources[row["source"]],
                published=row["published"],
                engine=row.get("engine"),
                properties={name: row[name] for name in PROPERTIES if name in row},
            )
            for row in data["rows"]
        ]
    return Measurements(tuple(rows), tuple(left))
