"""Where the upload fixtures lie, and short ways to read them."""

from __future__ import annotations

from pathlib import Path

from app.domain.run import ParsedRun
from app.importers.base import ParsedUpload
from app.importers.registry import parse_upload

UPLOADS = Path(__file__).parents[1] / "fixtures" / "uploads"


def data(name: str) -> bytes:
    return (UPLOADS / name).read_bytes()


def upload(name: str) -> ParsedUpload:
    return parse_upload(data(name), Path(name).name)


def values(run: ParsedRun) -> dict[str, float]:
    return {metric.key: metric.value for metric in run.metrics}


def checks(found: ParsedUpload | ParsedRun) -> set[str]:
    return {finding.check for finding in found.findings}
