"""The lint on real files: no error on any of them, and few findings on each run.

The files are the readers' own fixtures, and with BYTEBOUND_SAMPLES every file in the folders of that folder too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.catalog.loader import load_catalog
from app.domain.lint import lint
from app.domain.lint_subject import Subject
from app.domain.run_analysis import analyse_run
from app.importers.base import UnreadableUpload
from app.importers.registry import parse_upload

FIXTURES = Path(__file__).parents[1] / "fixtures" / "uploads"
SAMPLES = os.environ.get("BYTEBOUND_SAMPLES")
MOST_RUNS = 40
MOST_BYTES = 2_000_000

FILES = sorted(p for p in FIXTURES.glob("*/*") if p.suffix != ".md")
if SAMPLES:
    FILES += sorted(p for p in Path(SAMPLES).glob("*/*") if p.is_file() and p.parent.name != "hf-configs")


@pytest.mark.parametrize("path", FILES, ids=[f"{p.parent.parent.name}-{p.parent.name}-{p.name}" for p in FILES])
def test_a_real_file_has_few_findings_and_no_error(path: Path) -> None:
    if path.stat().st_size > MOST_BYTES:
        pytest.skip("large files are covered by their reader's own tests")
    catalog = load_catalog()
    try:
        upload = parse_upload(path.read_bytes(), path.name)
    except UnreadableUpload:
        pytest.skip("no reader takes this file yet")
    for run in upload.runs[:MOST_RUNS]:
        device = catalog.guess_hardware(run.hardware_hint) if run.hardware_hint else None
        meant = catalog.guess_model(run.model_hint, run.workload.parameters) if run.model_hint else None
        hardware = catalog.hardware.get(device.id) if device else None
        model = catalog.models.get(meant.id) if meant else None
        analysis = analyse_run(run, hardware, model)
        findings = lint(Subject(run, hardware, model, analysis=analysis))
        errors = [finding.message for finding in findings if finding.severity == "error"]
        assert not errors, (run.name, errors)
        assert len(findings) <= 4, (run.name, [finding.check for finding in findings])
        assert sum(finding.check == "missing-facts" for finding in findings) <= 1
