"""The CSV files of GenAI-Perf and AIPerf: blocks of rows with a header each, parted by empty lines.

The columns are those of genai-perf/genai_perf/export_data/csv_exporter.py and of aiperf's metrics_csv_exporter.py. The
older tool groups digits by commas. Both round to two decimals, so the JSON beside it is the better file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from app.domain.run import Finding, ParsedRun
from app.importers import perf_export, serving
from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.fields import Fields
from app.importers.logs import text_findings
from app.importers.measures import decimal_mark
from app.importers.perf_export import Facts, Measure
from app.importers.reading import Content, clean
from app.importers.tables import cells_of, whole_lines

_HEADER = re.compile(r'^\s*"?Metric"?\s*(?P<by>[,;\t])\s*"?avg"?\s*(?:[,;\t]|$)', re.IGNORECASE)
_LAST_HEADER_LINE = 200
_ROUNDED = Finding(
    "rounded",
    "info",
    "The CSV rounds to two decimals and names neither model nor load: the JSON export beside it has them.",
)


def csv_kind(content: Content) -> Literal["aiperf", "genai-perf"] | None:
    """Whose CSV the text is: AIPerf writes `Time to First Token` and a column std, GenAI-Perf title case and no std."""
    head = content.head
    if "etric" not in head[:4096]:
        return None
    for line in head.split("\n")[:_LAST_HEADER_LINE]:
        if _HEADER.match(line):
            columns = [cell.strip().strip('"').lower() for cell in re.split(r"[,;\t]", line)]
            newer = "std" in columns or "Time to First Token" in head or "(tokens/sec)" in head
            return "aiperf" if newer and "Time To First Token" not in head else "genai-perf"
    return None


def csv_runs(content: Content, format_id: str, client: str) -> ParsedUpload:
    """Every run of such a CSV. Raises UnreadableUpload when no row holds a number."""
    runs: list[ParsedRun] = []
    for line, measures, hardware in _blocks(content):
        record = Fields({}, f"line {line}")
        facts = Facts(client, hardware=hardware, findings=[_ROUNDED])
        if hardware is not None:
            facts.left_out.append("host names and serial numbers of GPUs")
        if not any(key in measures for key in (*perf_export.DISTRIBUTIONS, *perf_export.SCALARS)):
            continue
        if len(runs) >= content.limits.max_runs:
            raise UnreadableUpload(
                "too-large",
                f"The file holds more than {content.limits.max_runs} results.",
                hint="Split it into several files.",
            )
        runs.append(perf_export.read_run(record, measures, facts))
    if not runs:
        raise UnreadableUpload(
            "invalid",
            f"This is a CSV of {client} without a measure that is known here.",
            hint="Upload the JSON export that stands beside it.",
        )
    return ParsedUpload(format_id, serving.with_series(runs), text_findings(content))


def _blocks(content: Content) -> Iterator[tuple[int, dict[str, Measure], str | None]]:
    """Each run's measures, the line it begins on and its device. A block with statistics begins the next run."""
    measures: dict[str, Measure] = {}
    devices: list[str] = []
    begin = 1
    columns: list[str] = []
    mark = "."
    by = next((header["by"] for line in content.lines if (header := _HEADER.match(line))), ",")
    lines = whole_lines(content, by)
    for number, line in enumerate(lines, start=1):
        header = _HEADER.match(line)
        if header is not None:
            if measures:
                yield begin, measures, ", ".join(dict.fromkeys(devices)) or None
                measures, devices = {}, []
            begin, by = number, header["by"]
            mark = _mark(lines, number, by)
        cells = cells_of(line, by)
        if not any(cells):
            columns = []
            continue
        lowered = [cell.lower() for cell in cells]
        if lowered[0] == "metric" or ("metric" in lowered and "gpu_name" in lowered):
            columns = lowered
            continue
        if not columns or len(cells) < 2 or len(cells) > len(columns):
            continue
        row = dict(zip(columns, cells, strict=False))
        if "gpu_name" in row:
            if len(devices) < 1000 and row["gpu_name"]:
                devices.append(clean(row["gpu_name"], 120))
        elif "gpu" not in row:
            label = row.pop("metric", "")
            perf_export.put_row(measures, label, row, mark, f"line {number}")
    if measures:
        yield begin, measures, ", ".join(dict.fromkeys(devices)) or None


def _mark(lines: Sequence[str], number: int, by: str) -> str:
    rows = (cells_of(line, by)[1:] for line in lines[number : number + 60])
    return decimal_mark((cell for row in rows for cell in row), by)
