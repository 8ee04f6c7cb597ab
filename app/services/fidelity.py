"""Bounds and forecasts against the carried measurements: the record, its report in Markdown, what the page shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.catalog.calibration import Calibrated, load_calibrated
from app.catalog.fidelity import Beaten, Fidelity, Group, load_fidelity
from app.catalog.loader import Catalog
from app.catalog.measurements import PROPERTIES, LeftOut, Measurement, load_measurements
from app.domain.calibration import Calibration
from app.domain.expected import expected_time
from app.domain.lower_bound import ceilings, repeated_bound
from app.domain.units import Bytes, Seconds
from app.services.measured import bound_of_measurement, workload_of

TARGETS: dict[str, float] = {
    "gemm": 0.15,
    "attention, decode": 0.15,
    "decode step, one stream": 0.15,
    "training, dense": 0.15,
}
"""Median absolute error that the forecast shall reach, by kind."""
OTHER_TARGET = 0.25

EXPLAINING = ("cached", "skewed", "changed", "rounding", "condition")
"""Properties of a row that can explain a time below its bound."""

PERCENTILES = (10, 25, 50, 75, 90)


@dataclass(frozen=True, slots=True)
class Judged:
    """One measured row beside its bound and its forecast, in seconds.

    `repeated` is the bound of a kernel that runs again and again on the same operands, of which the last-level cache of
    `cache` bytes keeps what fits, and `operands` are all its bytes; None where the row is a step.
    """

    row: Measurement
    bound: Seconds
    expected: Seconds
    low: Seconds
    high: Seconds
    repeated: Seconds | None = None
    operands: Bytes = 0.0
    cache: Bytes = 0.0

    @property
    def of_bound(self) -> float:
        return self.row.seconds / self.bound

    @property
    def of_expected(self) -> float:
        return self.row.seconds / self.expected

    @property
    def error(self) -> float:
        """Absolute error of the forecast, relative to what was measured."""
        return abs(self.expected / self.row.seconds - 1.0)

    @property
    def explanation(self) -> str:
        """Why the row may lie below its bound, from its own properties; empty where nothing explains it.

        A kernel whose operands the cache can hold, in full or for the most part, is measured warm by who repeats it.
        """
        found = [
            f"{PROPERTIES[name]}: {self.row.properties[name]}" for name in EXPLAINING if self.row.properties.get(name)
        ]
        if not found and self.repeated is not None and self.repeated <= self.row.seconds < self.bound:
            found.append(
                f"{PROPERTIES['cached']}: {self.operands / 1e6:.3g} MB of operands, {self.cache / 1e6:.3g} MB of cache"
            )
        return "; ".join(found)


def judge(row: Measurement, catalog: Catalog, calibration: Calibration) -> Judged:
    """Bound and forecast of one row. Raises as the estimators do."""
    bound = bound_of_measurement(row, catalog)
    workload = workload_of(row)
    forecast = expected_time(bound, calibration, workload)
    judged = Judged(row, float(bound.overlapped), forecast.time, forecast.low, forecast.high)
    if workload is not None:
        return judged
    roofs = ceilings(catalog.hardware[row.hardware])
    repeated = repeated_bound(bound, roofs)
    return replace(judged, repeated=repeated, operands=bound.hbm_bytes, cache=roofs.cache)


def judge_all(catalog: Catalog, calibration: Calibration) -> list[Judged]:
    return [judge(row, catalog, calibration) for row in load_measurements().rows]


def evaluate(judged: Sequence[Judged], date: str) -> Fidelity:
    """The record of all rows: by kind, by kind and device, and every row below its bound."""
    return Fidelity(
        date=date,
        rows=len(judged),
        sources=len({item.row.source.url or item.row.source.title for item in judged}),
        kinds=tuple(_groups(judged, lambda item: (item.row.kind, ""))),
        devices=tuple(_groups(judged, lambda item: (item.row.kind, item.row.hardware))),
        beaten=tuple(
            Beaten(
                id=item.row.id,
                kind=item.row.kind,
                hardware=item.row.hardware,
                of_bound=round(item.of_bound, 3),
                explanation=item.explanation,
                source=item.row.source.title,
                url=item.row.source.url,
            )
            for item in judged
            if item.of_bound < 1.0
        ),
    )


def _groups(judged: Sequence[Judged], key: Callable[[Judged], tuple[str, str]]) -> Iterable[Group]:
    found: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for item in judged:
        found[key(item)].append(item)
    for (kind, hardware), members in sorted(found.items()):
        tuned = [item for item in members if item.row.tuned] or members
        errors = [item.error for item in tuned]
        yield Group(
            kind=kind,
            hardware=hardware,
            rows=len(members),
            judged=sum(item.row.tuned for item in members),
            beaten=sum(item.of_bound < 1.0 for item in members),
            over_bound=_percentiles([item.of_bound for item in members]),
            over_expected=_percentiles([item.of_expected for item in tuned]),
            median_error=round(float(np.median(errors)), 4),
            p90_error=round(float(np.percentile(errors, 90)), 4),
            worst_error=round(max(errors), 4),
            inside=round(sum(item.low <= item.row.seconds <= item.high for item in tuned) / len(tuned), 3),
        )


def _percentiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in np.percentile(values, PERCENTILES))


def target_of(kind: str) -> float:
    """Median error that the forecast of a kind shall reach."""
    return TARGETS.get(kind, OTHER_TARGET)


@dataclass(frozen=True, slots=True)
class FidelityPage:
    """What the page shows: the record, how sources are predicted unseen, and what could not be asked."""

    fidelity: Fidelity
    calibrated: Calibrated
    left_out: tuple[LeftOut, ...]

    @property
    def judged_kinds(self) -> list[Group]:
        return [group for group in self.fidelity.kinds if group.judged]

    @property
    def other_kinds(self) -> list[Group]:
        return [group for group in self.fidelity.kinds if not group.judged]

    @property
    def median_error(self) -> float:
        """Median over kinds of the forecast's median error."""
        return float(np.median([group.median_error for group in self.judged_kinds]))

    @property
    def missed(self) -> list[Group]:
        """Kinds whose median error is above its target."""
        return [group for group in self.judged_kinds if group.median_error > target_of(group.kind)]

    @property
    def sentence(self) -> str:
        """The answer that the page and the report open with."""
        f = self.fidelity
        unexplained = sum(not item.explanation for item in f.beaten)
        if not f.beaten:
            bounds = "none took less than its bound"
        elif unexplained:
            bounds = f"{len(f.beaten)} took less than their bound, {unexplained} of them unexplained"
        else:
            many = "1 took less than its bound, which a property of that row explains"
            several = f"{len(f.beaten)} took less than their bound, each explained by a property of that row"
            bounds = many if len(f.beaten) == 1 else several
        return (
            f"Of {f.rows:,} measured times from {f.sources} published places, {bounds}; "
            f"forecasts are off by {self.median_error:.0%}, the median over {len(self.judged_kinds)} kinds."
        )


def fidelity_page() -> FidelityPage:
    """The recorded result with everything the page says about it."""
    return FidelityPage(load_fidelity(), load_calibrated(), load_measurements().left_out)


def report(page: FidelityPage) -> str:
    """The report in Markdown."""
    lines = [
        "# Bounds and forecasts against measurements",
        "",
        page.sentence,
        "",
        f"Recorded on {page.fidelity.date} by `make fidelity`; forecasts from the calibration of "
        f"{page.calibrated.calibration.date} (`make calibrate`). Errors are absolute, relative to the measured time.",
        "",
        "## By kind",
        "",
        *_table(page.judged_kinds, device=False),
        "",
        "Targets: a median error of at most 15 % for products, decode attention, single-stream decode and dense "
        "training, 25 % for the rest."
        + (" Missed by: " + ", ".join(g.kind for g in page.missed) + "." if page.missed else " All are reached."),
        "",
        "## Rows that no tuned stack runs",
        "",
        "Held against their bounds, and not used in any fit: unfused or eager references, uneven routing.",
        "",
        *_table(page.other_kinds, device=False),
        "",
        "## Rows below their bound",
        "",
    ]
    if page.fidelity.beaten:
        lines += ["| Row | Kind | Device | Measured / bound | Explanation |", "|---|---|---|---|---|"]
        lines += [
            f"| {b.id} | {b.kind} | {b.hardware} | {b.of_bound:.3f} | {b.explanation or '**none**'} |"
            for b in page.fidelity.beaten
        ]
    else:
        lines.append("None.")
    lines += [
        "",
        "## By kind and device",
        "",
        *_table(page.fidelity.devices, device=True),
        "",
        "## Sources predicted by a fit that has not seen them",
        "",
        "| Source | Kind | Rows | Median error | 90th percentile |",
        "|---|---|---|---|---|",
        *(f"| {v.source} | {v.kind} | {v.rows} | {v.median:.1%} | {v.p90:.1%} |" for v in page.calibrated.validation),
        "",
        "## Not asked",
        "",
        "| Source | Rows | Why |",
        "|---|---|---|",
        *(f"| {item.collection} | {item.rows} | {item.why} |" for item in page.left_out),
        "",
    ]
    return "\n".join(lines)


def _table(groups: Sequence[Group], *, device: bool) -> list[str]:
    head = "| Kind | Device |" if device else "| Kind |"
    rule = "|---|---|" if device else "|---|"
    lines = [
        f"{head} Rows | Below bound | Measured / bound, median | Error, median | p90 | worst | In range |",
        f"{rule}---|---|---|---|---|---|---|",
    ]
    for g in groups:
        name = f"| {g.kind} | {g.hardware} |" if device else f"| {g.kind} |"
        lines.append(
            f"{name} {g.rows} | {g.beaten} | {g.over_bound[2]:.2f} | {g.median_error:.1%} | {g.p90_error:.1%} | "
            f"{g.worst_error:.0%} | {g.inside:.0%} |"
        )
    return lines
