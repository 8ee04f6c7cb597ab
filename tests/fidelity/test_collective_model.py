"""The alpha-beta model with its default start-up costs against every collective that somebody measured."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from app.catalog.loader import load_catalog
from app.catalog.measurements import Measurement, load_measurements
from app.domain.collectives import fastest_algorithm
from app.services.communication import link_models
from app.services.measured import bound_of_measurement

CATALOG = load_catalog()
ROWS = [row for row in load_measurements().rows if row.question.get("op") == "collective"]


def model_of(row: Measurement) -> float:
    q = row.question
    links = link_models(CATALOG.hardware[row.hardware])
    return fastest_algorithm(q["kind"], q["size"], q["ranks"], q["ranks_per_node"], links, q["in_switch"])[1]


def size_class(size: float) -> str:
    return "up to 256 KiB" if size <= 2**18 else "up to 16 MiB" if size <= 2**24 else "above 16 MiB"


def test_the_model_is_never_below_the_bound() -> None:
    for row in ROWS:
        assert model_of(row) >= float(bound_of_measurement(row, CATALOG).overlapped) * (1 - 1e-9), row.id


def test_the_model_against_measurements() -> None:
    """Large messages run near the model. Small ones take longer: a kernel launch is not among the start-up costs, and
    our own rows of two devices were issued one by one from Python."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in ROWS:
        found["all", size_class(row.question["size"])].append(row.seconds / model_of(row))
        found[row.collection, size_class(row.question["size"])].append(row.seconds / model_of(row))
    text = "measured / model, median (least to most, rows): " + "; ".join(
        f"{' '.join(key)} {median(v):.2f} ({min(v):.2f} to {max(v):.2f}, {len(v)})" for key, v in sorted(found.items())
    )
    assert 1.0 <= median(found["all", "above 16 MiB"]) <= 1.5, text
    assert 1.0 <= median(found["all", "up to 16 MiB"]) <= 3.0, text
    assert 1.0 <= median(found["aiconfigurator", "up to 256 KiB"]) <= 2.0, text
    assert min(found["all", "above 16 MiB"]) >= 0.7, text
