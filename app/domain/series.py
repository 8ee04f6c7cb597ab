"""Series: runs of the same workload on the same hardware, which differ only in when they ran and what was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.run import ParsedRun

TAG_PREFIX = "series:"
"""A tag that starts so names the series, as an explicit series name does."""

ENGINE_KEYS = ("engine", "backend", "framework")


@dataclass(frozen=True, slots=True)
class Series:
    """The identity of a series. `key` is short and stable, `label` says in words what its runs have in common."""

    key: str
    label: str


def series_of(
    run: ParsedRun,
    *,
    name: str,
    format: str,
    hardware: str | None,
    model: str | None,
    stated: Mapping[str, Any],
    tags: tuple[str, ...] = (),
    series_name: str | None = None,
) -> Series:
    """The series that a run belongs to.

    Runs are of one series when all of these are equal: the mode; the model and the device (the linked entry, else the
    file's own words); the format and the names of engine, backend and framework; the precisions, and bits of a
    quantised file; the parallel layout; batch, concurrency, request rate and context; prompt and output length to two
    digits, since mean lengths of a drawn data set wobble; and the value that tells the runs of one file apart (a
    sweep's point, a test's name). What people state goes over what the file says. Of a run without a mode, of a kernel,
    or of an unknown model, the name counts too: traces name no model, and those of two programs on one device are no
    history. A run of which neither model nor device is known is alone in its series: an equal load says nothing of two
    unknown things.

    Not part of it, since these are what a history is kept for: versions and commits of software, dates, notes, results.
    An explicit series name, or a tag `series:NAME`, replaces all of this.
    """
    tagged = next((tag[len(TAG_PREFIX) :].strip() for tag in tags if tag.startswith(TAG_PREFIX)), "")
    explicit = (series_name or "").strip() or tagged
    if explicit:
        return Series(_digest({"name": explicit.casefold()}), explicit)
    w = run.workload
    dtypes = {**w.dtypes, **dict(stated.get("dtypes") or {})}
    layout = {**run.parallel, **dict(stated.get("parallel") or {})}
    engine = " ".join(run.software[key] for key in ENGINE_KEYS if key in run.software)
    bits = None if not (w.weight_bytes and w.parameters) else round(w.weight_bytes * 8 / w.parameters, 1)
    fields: dict[str, Any] = {
        "mode": w.mode or stated.get("phase"),
        "model": model or _plain(run.model_hint),
        "hardware": hardware or _plain(run.hardware_hint),
        "format": format,
        "engine": _plain(engine),
        "dtypes": {key: str(value) for key, value in sorted(dtypes.items()) if value is not None},
        "weight_bits": bits,
        "parallel": {key: value for key, value in sorted(layout.items()) if value not in (None, 1, False)},
        "batch": stated.get("batch", w.batch),
        "concurrency": _load(w.extra.get("max_concurrency", w.concurrency)),
        "request_rate": w.request_rate,
        "context_len": _two_digits(stated.get("context_len", w.context_len)),
        "input_len": _two_digits(stated.get("seq_len", w.input_len)),
        "output_len": _two_digits(w.output_len),
        "point": {key: _two_digits(value) for key, value in sorted(run.series.items()) if key not in _CHANGES},
    }
    if fields["mode"] in (None, "kernel"):
        fields["name"] = name
    elif fields["model"] is None and fields["hardware"] is None:
        fields["alone"] = [(metric.key, metric.value) for metric in run.metrics]
    elif fields["model"] is None:
        fields["name"] = name
    told = {key: value for key, value in fields.items() if value not in (None, {}, "")}
    exact = {
        "input_len": stated.get("seq_len", w.input_len),
        "output_len": w.output_len,
        "context_len": stated.get("context_len", w.context_len),
    }
    return Series(_digest(told), _label({**told, **{k: v for k, v in exact.items() if v is not None}}))


_CHANGES = frozenset({"date", "version", "commit", "build_commit", "build_number", "run", "seed"})
"""Values by which a file may tell its runs apart that are a history of their own."""


def _digest(told: Mapping[str, Any]) -> str:
    text = json.dumps(told, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _plain(text: str | None) -> str | None:
    return " ".join(text.casefold().split()) if text else None


def _load(value: Any) -> Any:
    """The concurrency that was asked for; one that was measured, which wobbles, to two digits."""
    return value if isinstance(value, (int, float)) and value == round(value) else _two_digits(value)


def _two_digits(value: Any) -> Any:
    """A number to two significant digits; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return float(f"{value:.2g}")


def _label(told: Mapping[str, Any]) -> str:
    """What the runs have in common, in words: "decode, batch 8, context 1000, TP 2"."""
    parts: list[str] = [] if "name" in told else [str(told["mode"])]
    if "name" in told:
        parts.append(str(told["name"]))
    words = (
        ("batch", "batch"),
        ("concurrency", "concurrency"),
        ("request_rate", "request rate"),
        ("input_len", "prompt"),
        ("output_len", "output"),
        ("context_len", "context"),
    )
    for key, word in words:
        if key in told:
            value = told[key]
            parts.append(f"{word} {f'{value:,.6g}' if isinstance(value, (int, float)) else value}")
    parts += [f"{key.upper()} {value}" for key, value in dict(told.get("parallel") or {}).items()]
    if "dtypes" in told:
        parts.append(", ".join(dict.fromkeys(told["dtypes"].values())))
    elif "weight_bits" in told:
        parts.append(f"{told['weight_bits']:g}-bit weights")
    return ", ".join(parts)
