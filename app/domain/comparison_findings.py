"""What makes a comparison unfair or doubtful, as findings by rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from app.domain.comparison_items import (
    FIELD_OF_KEY,
    FROZEN_FIELDS,
    Item,
    Row,
    disagree,
    quoted,
    stated_text,
    unlike,
)
from app.domain.run import Finding
from app.domain.words import factor_text, share_text


def findings_of(
    items: Sequence[Item],
    baseline: int,
    rows: Sequence[Row],
    headline: Row | None,
) -> list[Finding]:
    """What a reader must know before believing a ratio: the rules BC-01 to BC-12 of the benchmark lint.

    BC-13 needs no check: published gains of techniques are never multiplied here, since every estimate computes anew.
    """
    base = items[baseline]
    others = [item for number, item in enumerate(items) if number != baseline]
    found: list[Finding] = []

    def against(rule: str) -> list[tuple[Item, list[str]]]:
        keys = [known.key for known in FROZEN_FIELDS if known.rule == rule]
        pairs = [(item, [key for key in keys if disagree(item, base, key)]) for item in others]
        return [(item, fields) for item, fields in pairs if fields]

    def add(
        rule: str, severity: Literal["error", "warning", "info"], text: str, hits: list[tuple[Item, list[str]]]
    ) -> None:
        if hits:
            fields = tuple(dict.fromkeys(key for _, keys in hits for key in keys))
            found.append(Finding(rule, severity, f"{text} {_named(hits, base)}", fields))

    unlike_items = [item for item in others if unlike(item, base)]
    if unlike_items:
        found.append(
            Finding(
                "not-comparable",
                "error",
                f"Not the same work as the baseline {quoted(base.label)}: "
                + "; ".join(f"{quoted(item.label)} measures {item.frozen.get('mode')}" for item in unlike_items)
                + f", the baseline {base.frozen.get('mode')}. No ratios are given.",
                ("mode",),
            )
        )
    models = against("BC-01")
    add(
        "BC-01",
        "error",
        "Not the same model: only an algorithmic comparison, with quality on both sides, may do this.",
        [hit for hit in models if hit[0].book_as != "algorithmic"],
    )
    add(
        "BC-01",
        "warning",
        "Different models booked as algorithmic, without a quality figure on both sides.",
        [hit for hit in models if hit[0].book_as == "algorithmic" and not (hit[0].has_quality and base.has_quality)],
    )
    add(
        "BC-02",
        "error",
        "Not the same timed region: one side was given prepared inputs, or counts their conversion.",
        against("BC-02"),
    )
    add(
        "BC-03",
        "warning",
        "Not the same launch mode, and the gain is not booked as runtime: it may be launch overhead.",
        [hit for hit in against("BC-03") if hit[0].book_as != "runtime" and hit[0].kind == base.kind],
    )
    precisions = against("BC-04")
    measured = [h for h in precisions if h[0].kind == base.kind == "run"]
    add(
        "BC-04",
        "error",
        "Not the same precision, and no quality figure on both sides.",
        [hit for hit in measured if not (hit[0].has_quality and base.has_quality)],
    )
    add(
        "BC-04",
        "info",
        "Not the same precision: an estimate says nothing about quality.",
        [hit for hit in precisions if "estimate" in (hit[0].kind, base.kind)],
    )
    add(
        "BC-05",
        "warning",
        "Not the same workload: read this as a scaling study, or repeat it at equal load.",
        [(item, fields) for item, found_ in against("BC-05") if (fields := _without_mode(item, base, found_))],
    )
    diffusion = against("BC-06")
    add(
        "BC-06",
        "error",
        "Fewer steps, other guidance or caching is an algorithmic change, not a gain of kernel or runtime.",
        [hit for hit in diffusion if hit[0].book_as in ("kernel", "runtime")],
    )
    add(
        "BC-06",
        "warning",
        "Not the same diffusion settings: this is an algorithmic change and needs a quality figure.",
        [hit for hit in diffusion if hit[0].book_as not in ("kernel", "runtime")],
    )
    add(
        "BC-07",
        "warning",
        "Not the same hardware or layout: compare the share of the bound that each reaches, not seconds.",
        against("BC-07"),
    )
    add("BC-11", "warning", "Tokens are not counted alike: compare real tokens/s without padding.", against("BC-11"))
    contradictions = [
        row.label for row in rows if any(c is not None and c.verdict == "contradiction" for c in row.cells)
    ]
    if contradictions:
        found.append(
            Finding(
                "faster-than-bound",
                "error",
                "A measurement is faster than its bound in "
                + ", ".join(contradictions)
                + ": check precision, device count, batch and units.",
                ("values",),
            )
        )
    found += _doubts(items, baseline, headline)
    unstated = _unstated(items)
    if unstated:
        found.append(
            Finding(
                "not-stated",
                "info",
                "Not every item states "
                + ", ".join(FIELD_OF_KEY[key].label for key in unstated)
                + ": whether they agree there is not known.",
                unstated,
            )
        )
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


_CHANGES: Mapping[str, tuple[str, ...]] = {
    "precision": ("dtypes.weights", "dtypes.activations", "dtypes.kv", "dtypes.gradients", "dtypes.optimizer"),
    "launch mode": ("launch_mode",),
    "layout": ("parallel", "devices", "nodes"),
    "software": ("engine", "software"),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "diffusion settings": ("steps", "guidance", "cache"),
}
"""Fields that change together when one thing is changed."""


def _changes(item: Item, base: Item) -> set[str]:
    return {name for name, keys in _CHANGES.items() if any(disagree(item, base, key) for key in keys)}


def _doubts(items: Sequence[Item], baseline: int, headline: Row | None) -> list[Finding]:
    """What makes the headline ratio hard to believe or to attribute: contradictions, noise, several changes at once."""
    base = items[baseline]
    runs = [item for item in items if item.kind == "run"]
    others = [(number, item) for number, item in enumerate(items) if number != baseline and item.kind == base.kind]
    found: list[Finding] = []
    broken = [item for item in runs if item.contradictions]
    if broken:
        said = "; ".join(f"{quoted(item.label)}: {', '.join(item.contradictions)}" for item in broken[:4])
        found.append(
            Finding(
                "run-contradicts-itself",
                "error",
                f"Runs hold contradictions and are not to be ranked before they are explained: {said}.",
                tuple(dict.fromkeys(check for item in broken for check in item.contradictions)),
            )
        )
    several = [
        (item, sorted(changed))
        for _, item in others
        if base.kind == "run"
        and len(changed := _changes(item, base)) > 1
        # another model or device is no optimisation: BC-01 and BC-07 speak of those
        and not any(disagree(item, base, key) for key in ("model", "hardware"))
        # an ablation is a run beside it that changes just one of these things
        and not any(len(one := _changes(other, base)) == 1 and one <= changed for _, other in others)
    ]
    if several:
        said = "; ".join(f"{quoted(item.label)} changes {', '.join(changed)}" for item, changed in several[:4])
        found.append(
            Finding(
                "BC-08",
                "warning",
                f"Several changes at once, and no run that changes one alone: the gain cannot be attributed. {said}.",
                tuple(dict.fromkeys(name for _, changed in several for name in changed)),
            )
        )
    found += _noise(items, baseline, headline, [number for number, _ in others])
    kernels = [item for _, item in others if item.book_as == "kernel" and item.frozen.get("mode") == "kernel"]
    if kernels and all(item.frozen.get("mode") == "kernel" for item in runs):
        found.append(
            Finding(
                "BC-10",
                "warning",
                "A kernel's gain without an end-to-end run on both sides: copies, breaks or contention can undo it.",
                ("mode",),
            )
        )
    found += _above_share(base, headline, others)
    return found


def _noise(items: Sequence[Item], baseline: int, headline: Row | None, others: Sequence[int]) -> list[Finding]:
    base = items[baseline]
    if headline is None or base.kind != "run" or base.frozen.get("mode") == "serve":
        return []
    within, unrepeated = [], []
    for number in others:
        cell = headline.cells[number]
        if cell is None or cell.ratio is None or cell.verdict not in ("better", "worse"):
            continue
        spreads = [_spread(item, headline.name) for item in (items[number], base)]
        if any(spread is None for spread in spreads):
            unrepeated.append(items[number])
            continue
        pooled = math.sqrt(sum(spread * spread for spread in spreads if spread is not None) / 2)
        if abs(cell.ratio - 1) < 2 * pooled:
            within.append((items[number], pooled))
    found = []
    if within:
        said = "; ".join(f"{quoted(item.label)} (runs vary by {share_text(pooled)})" for item, pooled in within[:4])
        found.append(
            Finding(
                "BC-09",
                "warning",
                f"The difference in {headline.label} is within noise, less than twice the spread: {said}.",
                (headline.key,),
            )
        )
    if unrepeated:
        found.append(
            Finding(
                "repetitions-missing",
                "info",
                f"Whether the difference in {headline.label} is noise is not known: not both sides report repetitions "
                f"of it ({', '.join(quoted(item.label) for item in unrepeated[:4])}).",
                (headline.key,),
            )
        )
    return found


def _spread(item: Item, name: str) -> float | None:
    """Relative spread of a metric; a rate spreads as the time that it was made from."""
    if name in item.spread:
        return item.spread[name]
    return max(item.spread.values()) if item.spread else None


def _above_share(base: Item, headline: Row | None, others: Sequence[tuple[int, Item]]) -> list[Finding]:
    """F-1.4: replacing a share f of a step gains at most 1 / (1 - f)."""
    found: list[Finding] = []
    if headline is None or headline.direction is None:
        return found
    for number, item in others:
        share = item.changed_share if item.changed_share is not None else base.changed_share
        cell = headline.cells[number]
        if share is None or not 0 < share < 1 or cell is None or not cell.ratio or item.book_as is None:
            continue
        gain = cell.ratio if headline.direction == "higher" else 1 / cell.ratio
        ceiling = 1 / (1 - share)
        if gain > ceiling * (1 + 1e-9):
            found.append(
                Finding(
                    "BC-12",
                    "info",
                    f"{quoted(item.label)} gains {factor_text(gain)}, but the changed part is {share_text(share)} of "
                    f"the step and allows {factor_text(ceiling)} at most: something else changed too.",
                    (headline.key, "changed_share"),
                )
            )
    return found


def _without_mode(item: Item, base: Item, fields: list[str]) -> list[str]:
    """The fields without the mode where that has a finding of its own."""
    return [key for key in fields if key != "mode" or not unlike(item, base)]


def _named(hits: Sequence[tuple[Item, list[str]]], base: Item) -> str:
    """Which items differ from the baseline in what: up to four of them by name."""
    parts = [
        f"{quoted(item.label)} has "
        + ", ".join(
            f"{FIELD_OF_KEY[key].label} {stated_text(item.frozen[key])} instead of {stated_text(base.frozen[key])}"
            for key in fields
        )
        for item, fields in hits[:4]
    ]
    more = f"; {len(hits) - 4} more differ too" if len(hits) > 4 else ""
    return "; ".join(parts) + more + "."


def _unstated(items: Sequence[Item]) -> tuple[str, ...]:
    """Main facts that some item does not state. A field that nobody states is not the comparison's affair."""
    runs = [item for item in items if item.kind == "run"]
    watched: tuple[str, ...] = ("model", "hardware", "concurrency", "dtypes.weights", "launch_mode")
    if any(item.frozen.get("mode") == "kernel" for item in runs):
        watched = (*watched, "clocks", "timed_region")
    if len(items) < 2 or not runs:
        return ()
    return tuple(
        key
        for key in watched
        if any(item.frozen.get(key) is None for item in items)
        and any(item.frozen.get(key) is not None for item in items)
    )
