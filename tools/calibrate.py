"""Fits the forecast's efficiencies to the carried measurements and writes `app/catalog/data/calibration.json`.

    python tools/calibrate.py                 fit, cross-validate by source, write the file
    python tools/calibrate.py --dry-run       the same without writing

Robust least squares on the logarithm of measured over forecast, with NumPy alone. Classes are nested (kind, precision,
device family): a class with few rows is held near its parent. Rows that are not what a tuned stack runs are left out of
the fit and stay in the report. Fits are repeated without each source, to see how a source is predicted that the fit has
not seen, and parents without each family, to see how a family is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.catalog.loader import load_catalog
from app.catalog.measurements import Measurement, load_measurements
from app.domain.calibration import (
    JUDGED_KERNEL,
    NEUTRAL,
    PARAMETERS,
    Fit,
    KernelFeatures,
    combine,
    executed_seconds,
    kernel_features,
    kernel_seconds,
    shares_of,
    starting_seconds,
    step_class,
)
from app.domain.lower_bound import Bound
from app.domain.workload import Workload
from app.services.measured import bound_of_measurement, workload_of

Array = NDArray[np.float64]
FILE = Path(__file__).resolve().parent.parent / "app" / "catalog" / "data" / "calibration.json"

ACTIVE: dict[str, tuple[str, ...]] = {
    "gemm": ("floor", "compute", "memory", "wave", "depth"),
    "gemm grouped": ("floor", "compute", "memory", "wave", "depth"),
    "gemm experts": ("floor", "compute", "memory", "wave", "depth"),
    "attention": ("floor", "compute", "memory", "exponent", "wave", "depth"),
    "attention backward": ("floor", "compute", "memory", "exponent", "wave", "depth"),
    "attention decode": ("floor", "memory", "block"),
    "attention latent": ("floor", "compute", "memory"),
    "elementwise": ("floor", "memory"),
    "collective": ("floor", "link", "ramp", "turn"),
}
"""What is fitted for each kind, in the order in which kinds are fitted: later ones hold the earlier ones fixed."""

START: dict[str, float] = {
    "floor": 3e-6,
    "compute": 0.7,
    "memory": 0.85,
    "exponent": 0.7,
    "wave": 0.5,
    "depth": 100.0,
    "link": 0.75,
    "ramp": 1e6,
    "block": 1e-6,
    "turn": 1e-6,
}
MOST: dict[str, float] = {"compute": 1.0, "memory": 1.0, "exponent": 8.0, "link": 1.0, "wave": 1.2}
MOST_DEPTH = 1024.0
"""Longest prologue of a product, in elements of its inner dimension: eight tiles. A longer one would stand for
something else, and then shallow products are forecast far too slow."""
LEAST: dict[str, float] = {
    "floor": 2e-7,
    "block": 1e-9,
    "compute": 0.02,
    "memory": 0.05,
    "exponent": 0.05,
    "wave": 0.02,
    "link": 0.02,
}
NOISE = 0.12
"""Scatter of a good fit, as a share: what a prior is weighed against."""
TIGHTNESS = {1: 1.5, 2: 0.6, 3: 0.4}
"""How far, in natural logarithms, a class of one, two or three parts may lie from its parent."""
LEAST_SPREAD = 0.05
ONE_STACK = 0.15
"""Least spread of a class of steps that one source measured: others run other software (judgement, from sources of one
class that lie 0.87 to 1.27 of a forecast)."""


@dataclass
class Case:
    """One measured row with the features of its table."""

    row: Measurement
    bound: Bound
    features: KernelFeatures
    workload: Workload | None
    family: str


def cases(rows: Iterable[Measurement]) -> list[Case]:
    catalog = load_catalog()
    found = []
    for row in rows:
        bound = bound_of_measurement(row, catalog)
        found.append(Case(row, bound, kernel_features(bound), workload_of(row), catalog.hardware[row.hardware].family))
    return found


class Stack:
    """Rows of many tables in one set of arrays, so that one evaluation is one pass."""

    def __init__(self, members: Sequence[Case]) -> None:
        self.members = list(members)
        self.owner = np.concatenate([np.full(len(c.features.keys), i) for i, c in enumerate(self.members)])
        self.keys = [key for c in self.members for key in c.features.keys]
        join: Callable[[str], Array] = lambda name: np.concatenate([getattr(c.features, name) for c in self.members])  # noqa: E731
        self.features = KernelFeatures(
            tuple(self.keys),
            *(
                join(n)
                for n in (
                    "products",
                    "exponentials",
                    "bytes",
                    "wire",
                    "starts",
                    "turns",
                    "link_rate",
                    "utilisation",
                    "length",
                    "launches",
                    "waves",
                )
            ),
        )
        self.count = np.concatenate([c.bound.table["count"] for c in self.members])
        self.least = np.concatenate([c.bound.op_time for c in self.members])
        self.measured = np.array([c.row.seconds for c in self.members])

    def totals(self, columns: Array) -> Array:
        each = np.maximum(kernel_seconds(self.features, columns), self.least) * self.count
        return np.asarray(np.bincount(self.owner, weights=each, minlength=len(self.members)), dtype=np.float64)


def columns_for(keys: Sequence[str], fits: dict[str, dict[str, float]]) -> Array:
    """Parameter columns by the nearest fit of each key."""
    table = []
    for key in keys:
        parts = key.split("/")
        chosen = next(
            (fits[name] for up in range(len(parts)) if (name := "/".join(parts[: len(parts) - up])) in fits),
            dict(JUDGED_KERNEL.parameters),
        )
        table.append([chosen.get(name, NEUTRAL[name]) for name in PARAMETERS])
    return np.array(table, dtype=float).T


def fit_class(
    stack: Stack,
    key: str,
    names: Sequence[str],
    start: dict[str, float],
    tight: float,
    fits: dict[str, dict[str, float]],
) -> dict[str, float]:
    """Parameters of one class: log-residuals over NOISE with Huber weights, and a pull towards `start`."""
    base = columns_for(stack.keys, fits)
    inside = np.array([name == key or name.startswith(key + "/") for name in stack.keys])
    spots = [PARAMETERS.index(name) for name in names]
    origin = np.log([start[name] for name in names])
    most = {**MOST, "depth": MOST_DEPTH} if key.startswith("gemm") else MOST
    top = np.log([most.get(name, np.inf) for name in names])
    bottom = np.log([LEAST.get(name, 1e-12) for name in names])
    point = np.clip(origin, bottom, top)

    def residuals(at: Array) -> Array:
        columns = base.copy()
        for spot, value in zip(spots, np.exp(at), strict=True):
            columns[spot, inside] = value
        return np.asarray(np.log(stack.totals(columns) / stack.measured) / NOISE)

    damping = 1e-2
    weights = balance(stack)

    def cost(at: Array) -> float:
        r = residuals(at)
        huber = np.where(np.abs(r) < 1.5, r * r, 3.0 * np.abs(r) - 2.25)
        return float(np.sum(weights * huber) + np.sum(((at - origin) / tight) ** 2))

    best = cost(point)
    for _ in range(60):
        r = residuals(point)
        w = weights * np.minimum(1.0, 1.5 / np.maximum(np.abs(r), 1e-12))
        jacobian = np.empty((len(r), len(names)))
        for j in range(len(names)):
            moved = point.copy()
            moved[j] += 1e-4
            jacobian[:, j] = (residuals(moved) - r) / 1e-4
        normal = (jacobian * w[:, None]).T @ jacobian + np.eye(len(names)) / tight**2
        gradient = (jacobian * w[:, None]).T @ r + (point - origin) / tight**2
        improved = False
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = np.clip(point - np.clip(step, -1.0, 1.0), bottom, top)
            found = cost(trial)
            if found < best - 1e-9:
                improved = best - found > 1e-5 * best
                point, best, damping = trial, found, damping / 3
                break
            damping *= 4
        if not improved:
            break
    return dict(zip(names, (float(v) for v in np.exp(point)), strict=True))


def balance(stack: Stack) -> Array:
    """Weight of each row: a collection of many rows counts as their number to the power of 0.7."""
    many: dict[str, int] = defaultdict(int)
    for case in stack.members:
        many[case.row.collection] += 1
    weights = np.array([many[c.row.collection] ** -0.3 for c in stack.members], dtype=np.float64)
    return np.asarray(weights * max(many.values()) ** 0.3)


def parents(keys: Iterable[str]) -> dict[str, set[str]]:
    """Every class and its ancestors, with the leaves below each."""
    found: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        parts = key.split("/")
        for n in range(1, len(parts) + 1):
            found["/".join(parts[:n])].add(key)
    return found


def fit_kernels(all_cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Parameters of every class of kernels, fitted kind by kind from the widest class down."""
    usable = [c for c in all_cases if c.workload is None and c.row.tuned]
    fits: dict[str, dict[str, float]] = {}
    for kind in sorted(ACTIVE, key=lambda k: list(ORDER).index(k)):
        names = ACTIVE[kind]
        members = [c for c in usable if any(key.split("/")[0] == kind for key in c.features.keys)]
        # a table of several kernels speaks about the kind fitted last
        members = [c for c in members if last_kind(c) == kind]
        if not members:
            continue
        tree = parents(key for c in members for key in c.features.keys if key.split("/")[0] == kind)
        for key in sorted(tree, key=lambda k: (k.count("/"), k)):
            depth = key.count("/") + 1
            stack = Stack([c for c in members if any(k == key or k.startswith(key + "/") for k in c.features.keys)])
            if depth > 1:
                start = dict(fits[key.rsplit("/", 1)[0]])
            else:
                start = {name: START[name] for name in names}
            fits[key] = fit_class(stack, key, names, start, TIGHTNESS[depth], fits)
    return fits


ORDER = (
    "elementwise",
    "collective",
    "gemm",
    "attention",
    "attention backward",
    "attention decode",
    "attention latent",
    "gemm grouped",
    "gemm experts",
)


def last_kind(case: Case) -> str:
    """The kind that a row of several kernels is used to fit: the last of ORDER that it holds."""
    kinds = {key.split("/")[0] for key in case.features.keys}
    return max(kinds, key=lambda k: ORDER.index(k) if k in ORDER else -1)


def forecast_kernels(some: Sequence[Case], fits: dict[str, dict[str, float]]) -> Array:
    stack = Stack(some)
    return stack.totals(columns_for(stack.keys, fits))


def row_seconds(case: Case, fits: dict[str, dict[str, float]]) -> Array:
    return executed_seconds(case.bound, case.features, columns_for(case.features.keys, fits))


def step_time(case: Case, fits: dict[str, dict[str, float]], step: Mapping[str, float], workload: Workload) -> float:
    """A step with the kernels of `fits` and the parameters of a class of steps."""
    starting = starting_seconds(case.bound, case.features, columns_for(case.features.keys, fits))
    shares = shares_of(case.bound.table, row_seconds(case, fits), starting, workload)
    return combine(case.bound, shares, Fit("", step, 0, (), 1, 1), workload)


def fit_steps(all_cases: Sequence[Case], fits: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Residual factor and host time of every class of steps: medians, held near the parent's."""
    usable = [c for c in all_cases if c.workload is not None and c.row.tuned]
    stages = {key: stage_share(members, fits) for key, members in over_stages(usable).items()}
    ratios: dict[str, list[float]] = defaultdict(list)
    for case in usable:
        assert case.workload is not None
        if case.workload.launch_mode == "eager":
            continue
        key = class_of(case)
        ratios[key].append(math.log(case.row.seconds / alone(case, fits, stages.get(key, 0.0))))
    found: dict[str, dict[str, float]] = {}
    tree = parents(class_of(c) for c in usable)
    for key in sorted(tree, key=lambda k: (k.count("/"), k)):
        leaves = [ratios[leaf] for leaf in tree[key] if ratios[leaf]]
        parent = found.get(key.rsplit("/", 1)[0], {"factor": 1.15, "host": 20e-6}) if "/" in key else None
        value = math.log((parent or {"factor": 1.15})["factor"])
        if leaves:
            pooled = [r for leaf in leaves for r in leaf]
            weights = [len(leaf) ** -0.5 for leaf in leaves for _ in leaf]
            middle = weighted_median(pooled, weights)
            hold = 2.0 if parent else 0.0
            value = (middle * len(pooled) + value * hold) / (len(pooled) + hold)
        found[key] = {"factor": math.exp(value), "host": (parent or {"host": 20e-6})["host"]}
        shares = [stages[leaf] for leaf in tree[key] if leaf in stages]
        if shares:
            found[key]["stage"] = float(np.median(shares))
    waits: dict[str, list[tuple[Case, float]]] = defaultdict(list)
    for case in usable:
        assert case.workload is not None
        if case.workload.launch_mode == "eager" and "layer" not in case.row.question:
            key = class_of(case)
            device = step_time(case, fits, found[key], graph(case.workload))
            waits[key].append((case, device))
    for key in sorted(tree, key=lambda k: (k.count("/"), k)):
        waited = [pair for leaf in tree[key] for pair in waits[leaf]]
        if waited:
            found[key]["host"] = host_seconds(waited)
        elif "/" in key:
            found[key]["host"] = found[key.rsplit("/", 1)[0]]["host"]
    return found


def alone(case: Case, fits: dict[str, dict[str, float]], stage: float) -> float:
    """A step's kernels with their waiting, before any residual factor and without a host."""
    assert case.workload is not None
    return step_time(case, fits, {"factor": 1.0, "stage": stage}, graph(case.workload))


def graph(workload: Workload) -> Workload:
    return replace(workload, launch_mode="graph")


def over_stages(usable: Sequence[Case]) -> dict[str, list[Case]]:
    """Prompts that pass several pipeline stages in pieces, by class."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in usable:
        w = case.workload
        if w is not None and w.phase == "prefill" and w.parallel.pp > 1 and w.parallel.micro_batches > 1:
            found[class_of(case)].append(case)
    return found


def stage_share(members: Sequence[Case], fits: dict[str, dict[str, float]]) -> float:
    """Share of its work that a prompt waits for each further stage: least scatter of measured over forecast."""
    best, least = 0.3, math.inf
    for share in np.arange(0.0, 1.05, 0.05):
        logs = np.array([math.log(c.row.seconds / alone(c, fits, float(share))) for c in members])
        scatter = float(np.abs(logs - np.median(logs)).sum()) + abs(float(share) - 0.3) * 0.2
        if scatter < least:
            best, least = float(share), scatter
    return best


def host_seconds(pooled: Sequence[tuple[Case, float]]) -> float:
    """Host time of a row with the least sum of absolute log-errors: eager times scatter twofold from run to run."""
    launches = np.array([float(case.bound.table.total("launches")) for case, _ in pooled])
    device = np.array([seconds for _, seconds in pooled])
    measured = np.array([case.row.seconds for case, _ in pooled])
    tried = np.geomspace(5e-6, 3e-4, 120)
    errors = [np.abs(np.log(np.cbrt(device**3 + (launches * host) ** 3) / measured)).sum() for host in tried]
    return float(tried[int(np.argmin(errors))])


def class_of(case: Case) -> str:
    assert case.workload is not None
    return step_class(case.bound.table, case.workload, case.family)


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    order = np.argsort(values)
    total = np.cumsum(np.asarray(weights)[order])
    return float(np.asarray(values)[order][int(np.searchsorted(total, total[-1] / 2))])


@dataclass
class Fitted:
    kernels: dict[str, dict[str, float]]
    steps: dict[str, dict[str, float]]

    def forecast(self, case: Case) -> float:
        if case.workload is None:
            total = float(row_seconds(case, self.kernels).sum())
        else:
            parts = class_of(case).split("/")
            names = ["/".join(parts[: len(parts) - up]) for up in range(len(parts))]
            step = next((self.steps[n] for n in names if n in self.steps), {"factor": 1.15, "host": 20e-6})
            total = step_time(case, self.kernels, step, case.workload)
        return max(total, float(case.bound.overlapped))


def fit(all_cases: Sequence[Case]) -> Fitted:
    kernels = fit_kernels(all_cases)
    return Fitted(kernels, fit_steps(all_cases, kernels))


def principal(case: Case) -> str:
    """The class that a row speaks about: its step's, or that of the kernel that was fitted on it."""
    if case.workload is not None:
        return class_of(case)
    kind = last_kind(case)
    return next(key for key in reversed(case.features.keys) if key.split("/")[0] == kind)


def ancestors(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def spread(residuals: Sequence[float]) -> tuple[float, float]:
    """Tenth and ninetieth percentile of measured over forecast, at least LEAST_SPREAD apart from one."""
    low, high = np.exp(np.percentile(residuals, [10, 90]))
    return min(float(low), 1 - LEAST_SPREAD), max(float(high), 1 + LEAST_SPREAD)


def without(all_cases: Sequence[Case], attribute: Callable[[Case], str]) -> dict[str, tuple[Fitted, list[Case]]]:
    """For each value of an attribute: a fit that has not seen its rows, and those rows."""
    found = {}
    for value in sorted({attribute(c) for c in all_cases}):
        kept = [c for c in all_cases if attribute(c) != value]
        found[value] = (fit(kept), [c for c in all_cases if attribute(c) == value and c.row.tuned])
    return found


def records(
    fitted: dict[str, dict[str, float]],
    tuned: Sequence[Case],
    own: dict[str, list[float]],
    other: dict[str, list[float]],
) -> list[dict[str, Any]]:
    """What is written of each class: parameters, sample, sources and spread.

    The spread of a leaf is that of its own rows; that of a parent is how families are predicted that it has not seen.
    """
    written = []
    for key, parameters in sorted(fitted.items()):
        members = [c for c in tuned if principal(c) == key or principal(c).startswith(key + "/")]
        if not members:
            continue
        inside = [r for leaf, rs in own.items() if leaf == key or leaf.startswith(key + "/") for r in rs]
        leaf = key in own
        sample = inside if leaf or len(other.get(key, [])) < 5 else other[key]
        low, high = spread(sample)
        if not leaf and sample is inside:
            low, high = low / 1.3, high * 1.3  # one family only: nobody knows how another would be predicted
        if len(sample) < 5:
            low, high = min(low, 0.8), max(high, 1.25)
        sources = sorted({c.row.collection for c in members})
        if len(sources) == 1 and all(c.workload is not None for c in members):
            low, high = min(low, 1 - ONE_STACK), max(high, 1 + ONE_STACK)
        written.append(
            {
                "key": key,
                "parameters": {name: float(f"{value:.4g}") for name, value in parameters.items()},
                "rows": len(members),
                "sources": sources,
                "low": round(low, 3),
                "high": round(high, 3),
            }
        )
    return written


def summary(title: str, some: Sequence[Case], fitted: Callable[[Case], float]) -> None:
    by: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in some:
        error = abs(fitted(case) / case.row.seconds - 1.0)
        by[(case.row.kind, "")].append(error)
    print(title)
    for (kind, _), errors in sorted(by.items()):
        errors.sort()
        middle, tail = np.median(errors), np.percentile(errors, 90)
        print(f"  {kind:46} {len(errors):4}  median {middle:6.1%}  p90 {tail:7.1%}  worst {errors[-1]:7.0%}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="fit and print, write nothing")
    parser.add_argument("--no-validation", action="store_true", help="skip the fits without a source or a family")
    parser.add_argument(
        "--date",
        default=datetime.datetime.now(datetime.UTC).date().isoformat(),
        help="date written into the file",
    )
    options = parser.parse_args(arguments)
    everything = cases(load_measurements().rows)
    fitted = fit(everything)
    summary("fitted on everything", everything, fitted.forecast)
    tuned = [c for c in everything if c.row.tuned]
    own: dict[str, list[float]] = defaultdict(list)
    for case in tuned:
        own[principal(case)].append(math.log(case.row.seconds / fitted.forecast(case)))
    other: dict[str, list[float]] = defaultdict(list)
    validation = []
    if not options.no_validation:
        for family, (unseen, members) in without(everything, lambda c: c.family).items():
            print("without family", family, len(members))
            for case in members:
                for key in ancestors(principal(case)):
                    other[key].append(math.log(case.row.seconds / unseen.forecast(case)))
        for source, (unseen, members) in without(everything, lambda c: c.row.collection).items():
            summary(f"without source {source}", members, unseen.forecast)
            by: dict[str, list[float]] = defaultdict(list)
            for case in members:
                by[case.row.kind].append(abs(unseen.forecast(case) / case.row.seconds - 1.0))
            validation += [
                {
                    "source": source,
                    "kind": kind,
                    "rows": len(errors),
                    "median": round(float(np.median(errors)), 3),
                    "p90": round(float(np.percentile(errors, 90)), 3),
                }
                for kind, errors in sorted(by.items())
            ]
    if options.dry_run:
        return 0
    measured = load_measurements().rows
    data = {
        "date": options.date,
        "note": "Written by tools/calibrate.py from app/catalog/data/measurements. Times in seconds, shares of vendor "
        "peaks, elements and bytes; low and high are the 10th and 90th percentile of measured over forecast.",
        "sources": {
            name: next(r.source.title for r in measured if r.collection == name)
            for name in sorted({r.collection for r in measured})
        },
        "kernels": records(fitted.kernels, tuned, own, other),
        "steps": records(fitted.steps, tuned, own, other),
        "validation": validation,
    }
    FILE.write_text(json_lines(data), encoding="utf-8")
    print(f"wrote {FILE.name}: {len(data['kernels'])} kernel and {len(data['steps'])} step classes")
    return 0


def json_lines(data: dict[str, Any]) -> str:
    """JSON with one line an item of each list, so that a new fit shows up line by line."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list):
            parts.append(f'"{key}": [\n' + ",\n".join(json.dumps(item) for item in value) + "\n]")
        else:
            parts.append(f'"{key}": {json.dumps(value, indent=1)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
