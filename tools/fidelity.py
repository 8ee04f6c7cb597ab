"""Asks every carried measurement's question, records how bounds and forecasts held, and writes the report.

python tools/fidelity.py              write app/catalog/data/fidelity.json and docs/fidelity.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from app.catalog.calibration import load_calibrated, load_calibration
from app.catalog.fidelity import FILE, fidelity_to_json
from app.catalog.loader import load_catalog
from app.catalog.measurements import load_measurements
from app.services.fidelity import FidelityPage, evaluate, judge_all, report

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser.add_argument("--date", default=today, help="date written into the record")
    options = parser.parse_args(arguments)
    result = evaluate(judge_all(load_catalog(), load_calibration()), options.date)
    data = fidelity_to_json(result)
    parts = [
        f'"{key}": [\n' + ",\n".join(json.dumps(item) for item in value) + "\n]"
        if isinstance(value, (list, tuple)) and value
        else f'"{key}": {json.dumps(value)}'
        for key, value in data.items()
    ]
    (ROOT / "app" / "catalog" / "data" / FILE).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    page = FidelityPage(result, load_calibrated(), load_measurements().left_out)
    folder = ROOT / "docs"
    folder.mkdir(exist_ok=True)
    (folder / "fidelity.md").write_text(report(page), encoding="utf-8")
    print(page.sentence)
    for group in page.missed:
        print(f"  above its target: {group.kind}, {group.median_error:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
