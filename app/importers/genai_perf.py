"""NVIDIA GenAI-Perf: its JSON (`profile_export_genai_perf.json`), its CSV, and the table that it prints.

Field meanings are those of triton-inference-server/perf_analyzer (genai-perf/docs, export_data/json_exporter.py). CSV
and printed tables were seen, JSON was not. AIPerf, its successor, prints the same table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.run import Finding, ParsedRun
from app.importers import perf_export, serving
from app.importers.aiperf import load_of, model_of
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields
from app.importers.measures import decimal_mark, within
from app.importers.perf_csv import csv_kind, csv_runs
from app.importers.perf_export import Facts, Measure
from app.importers.reading import Content


def looks_like(fields: Mapping[str, Any]) -> bool:
    """Whether an object is an export of GenAI-Perf."""
    return perf_export.holds_measures(fields) and not perf_export.is_aiperf(fields)


class GenaiPerf:
    id = "genai-perf"
    title = "GenAI-Perf export (JSON or CSV)"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        if any(looks_like(fields) for fields in content.first_records):
            return Sniff(0.9, "measures with unit and avg")
        if csv_kind(content) == "genai-perf":
            return Sniff(0.85, "a CSV of measures with the columns of GenAI-Perf")
        return Sniff(0.0, "no measures with unit and avg")

    def parse(self, content: Content) -> ParsedUpload:
        if any(looks_like(fields) for fields in content.first_records):
            runs, notes = serving.read_runs(content, looks_like, _run)
            untried = Finding(
                "form-not-tried", "info", "The JSON form has not been tried on a real file yet; the CSV beside it has."
            )
            return ParsedUpload(self.id, serving.with_series(runs), (*notes, untried))
        return csv_runs(content, self.id, "GenAI-Perf")


def _run(record: Fields) -> ParsedRun:
    measures = perf_export.measures_of(record)
    config = record.raw("input_config")
    facts = Facts("GenAI-Perf", model=model_of(config))
    load_of(config, facts)
    if isinstance(config, dict) and config:
        facts.left_out.append("input_config (except model and load)")
    if within(record.fields, "telemetry_stats"):
        facts.left_out.append("telemetry_stats")
    return perf_export.read_run(record, measures, facts)


# --- the printed table ---------------------------------------------------------------------------------------------

_BAR = re.compile(r"[│┃┆|║]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TITLE = re.compile(r"NVIDIA (GenAI-Perf|AIPerf) \|")
_COLUMN = re.compile(r"avg|min|max|std|p\d{1,2}(?:\.\d)?", re.IGNORECASE)


class GenaiPerfTable:
    id = "genai-perf-table"
    title = "table printed by GenAI-Perf or AIPerf"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        head = content.head
        if (_TITLE.search(head) or "token" in head.lower()) and any(True for _ in _headers(head.split("\n"))):
            return Sniff(0.8, "a table with the columns of GenAI-Perf's statistics")
        return Sniff(0.0, "no printed table with a column avg and rows such as Time To First Token")

    def parse(self, content: Content) -> ParsedUpload:
        runs: list[ParsedRun] = []
        for line, client, measures in _tables(content):
            if len(runs) >= content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} tables.",
                    hint="Split it into several files.",
                )
            runs.append(perf_export.read_run(Fields({}, f"line {line}"), measures, Facts(client)))
        if not runs:
            raise UnreadableUpload(
                "invalid",
                "This is a table of GenAI-Perf or AIPerf without a measure that is known here.",
                hint="Upload the JSON export that the tool wrote beside it.",
            )
        if len(runs) > 1:
            runs = [replace(run, name=f"{run.name} {number}") for number, run in enumerate(runs, start=1)]
        return ParsedUpload(self.id, serving.with_series(runs), content.findings())


def _row(line: str) -> list[str] | None:
    """Cells of a line of a table, its outer bars taken off; None for any other line."""
    bare = _COLOUR.sub("", line).strip()
    if len(bare) < 3 or len(bare) > 2000 or not _BAR.match(bare) or not _BAR.match(bare[-1]):
        return None
    return [cell.strip() for cell in _BAR.split(bare)[1:-1]]


def _headers(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    for index, line in enumerate(lines):
        cells = _row(line)
        if cells and cells[0].lower() in ("statistic", "metric") and "avg" in (c.lower() for c in cells[1:]):
            yield index, cells


def _tables(content: Content) -> Iterator[tuple[int, str, dict[str, Measure]]]:
    """Each table that holds a known measure: its line, who printed it, and its measures."""
    lines = content.lines
    starts = list(_headers(lines))
    for place, (start, columns) in enumerate(starts):
        end = starts[place + 1][0] if place + 1 < len(starts) else len(lines)
        title = next((m for line in lines[max(0, start - 5) : start][::-1] if (m := _TITLE.search(line))), None)
        rows: list[tuple[int, list[str]]] = []
        for index in range(start + 1, end):
            cells = _row(lines[index])
            if cells is None or len(cells) != len(columns):
                continue
            if rows and (not cells[0] or not any(cells[1:])):
                # A narrow terminal breaks a label, or a number, over two lines.
                last = rows[-1][1]
                rows[-1] = (
                    rows[-1][0],
                    [f"{last[0]} {cells[0]}".strip(), *(a + b for a, b in zip(last[1:], cells[1:], strict=True))],
                )
            elif cells[0]:
                rows.append((index, cells))
        mark = decimal_mark(cell for _, cells in rows for cell in cells[1:])
        measures: dict[str, Measure] = {}
        names = [name.lower() for name in columns[1:]]
        for index, cells in rows:
            told = {n: c for n, c in zip(names, cells[1:], strict=True) if _COLUMN.fullmatch(n)}
            perf_export.put_row(measures, cells[0], told, mark, f"line {index + 1}")
        if any(key in measures for key in (*perf_export.DISTRIBUTIONS, *perf_export.SCALARS)):
            yield start + 1, title[1] if title else "GenAI-Perf", measures
