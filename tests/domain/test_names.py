"""Quantities are SI inside; a unit in a name is for the edges that read and print other units."""

from __future__ import annotations

import ast
import re
from pathlib import Path

APP = Path(__file__).parents[2] / "app"
EDGES = {"web", "importers", "catalog"}
SUFFIX = re.compile(r"_(ms|us|gb|gib|tflops)(_|$)", re.IGNORECASE)
ALLOWED = {("storage/engine.py", "BUSY_TIMEOUT_MS")}  # the value of an SQLite pragma


def names(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.add(value)
    return found


def test_the_pattern_finds_what_it_should() -> None:
    assert all(SUFFIX.search(name) for name in ("ttft_ms", "memory_gb", "LIMIT_GIB", "peak_tflops_bf16", "launch_us"))
    assert not any(SUFFIX.search(name) for name in ("items", "num_gbest", "status", "bus_bandwidth", "focus_us3"))


def test_no_name_inside_carries_a_unit_that_is_not_si() -> None:
    files = [file for file in APP.rglob("*.py") if file.relative_to(APP).parts[0] not in EDGES]
    assert len(files) > 20
    found = {
        (file.relative_to(APP).as_posix(), name) for file in files for name in names(file) if SUFFIX.search(name)
    } - ALLOWED
    assert not found, f"convert these to SI where they are read: {sorted(found)}"
