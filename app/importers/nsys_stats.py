"""Nsight Systems statistics (`nsys stats`, `--stats=true`): text, CSV and JSON, one report after another in one file.

Kernel and memory reports become rows of kernels; the reports on API calls and NVTX ranges are kept as the host's side.
Nothing here tells when a kernel ran, so there is no timeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.domain.run import Finding, ParsedRun, RunWorkload
from app.importers import kernel_rows
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields
from app.importers.printed_tables import TIMES, comma_is_decimal, csv_fields, number
from app.importers.reading import Content, clean

_TIME_COLUMN: Final = re.compile(r"Total Time(?: \((ns|us|ms|s|sec|nanoseconds)\))?")
_COUNTS: Final = ("Instances", "Num Calls", "Count", "Calls", "Operations")
_NAMES: Final = ("Name", "Operation", "Range", "Kernel Name")
_AVERAGES: Final = {"mean_s": ("Avg", "Average"), "min_s": ("Min", "Minimum"), "max_s": ("Max", "Maximum")}
_HEADER: Final = re.compile(r"Total Time(?: \(\w+\))?[\s,\"].*?(?:Instances|Num Calls|Count|Calls)\b")
_TITLE: Final = re.compile(r"'(\w+)' stats report|\((\w+)\):\s*$|[/\\](\w+)\.py\b|Running \[?.*?(\w+)\.py")
_RULE: Final = re.compile(r"\s*-{2,}(?:\s+-{2,})+\s*")
_DEVICE: Final = re.compile(r"GPU \d+: .*?\bfor (NVIDIA [^(\n]{1,60}?)\s*(?:\(|$)")
_JSON: Final = re.compile(r"\s*\[?\s*\{")
_MOST_CALLS: Final = 100


@dataclass(slots=True)
class _Report:
    """One table. `kind` is kernels, copies, calls (of the CUDA API), system (of the operating system) or ranges."""

    kind: str
    rows: list[dict[str, Any]] = field(default_factory=list)


class NsysStats:
    """The importer; see the module."""

    id = "nsys-stats"
    title = "Nsight Systems statistics"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        """A report's header: total time and a count, as text, CSV or keys."""
        head = content.head
        if _JSON.match(head):
            found = re.search(r'"Total Time(?: \(\w+\))?"', head) and re.search(
                r'"(?:Instances|Num Calls|Count)"', head
            )
        else:
            found = _HEADER.search(head)
        return Sniff(0.9, "the header of a statistics report") if found else Sniff(0, "no Total Time with a count")

    def parse(self, content: Content) -> ParsedUpload:
        """One run with the kernels of the reports. Raises UnreadableUpload where no report has a row."""
        reports = list(_json_reports(content) if _JSON.match(content.head) else _reports(content.lines))
        by_kind = {kind: [r for r in reports if r.kind == kind] for kind in ("kernels", "copies", "calls", "ranges")}
        findings = []
        chosen = {}
        for kind, found in by_kind.items():
            chosen[kind] = found[0].rows if found else []
            if len(found) > 1 and kind == "kernels":
                findings.append(
                    Finding(
                        "several-reports",
                        "warning",
                        f"The file has {len(found)} reports on kernels; the first was read. Upload each by itself.",
                    )
                )
        if not any(chosen.values()):
            raise UnreadableUpload(
                "invalid",
                "This looks like Nsight Systems statistics without a row of kernels, copies, CUDA calls or ranges.",
                hint="Run `nsys stats --report cuda_gpu_kern_sum --format csv` and upload what it prints.",
            )
        if not chosen["kernels"]:
            findings.append(
                Finding(
                    "no-kernel-report",
                    "warning",
                    "No report on kernels (cuda_gpu_kern_sum) is in the file: nothing is known of the device's time.",
                )
            )
        rows = [*_merged(chosen["kernels"]), *({**row, "is_copy": True, "family": "copy"} for row in chosen["copies"])]
        record = Fields({})
        if chosen["kernels"]:
            count = int(sum(row["count"] for row in chosen["kernels"]))
            record.add(
                "kernel_time_s",
                sum(row["time_s"] for row in chosen["kernels"]),
                at=f"line {chosen['kernels'][0]['line']}",
                raw="Total Time of all kernels, added",
                raw_unit="ns",
                count=count,
            )
        match = _DEVICE.search(content.text)
        run = ParsedRun(
            name=_title(content),
            metrics=tuple(record.metrics),
            workload=RunWorkload(),
            hardware_hint=clean(match[1], 100) if match else None,
            software={"profiler": "Nsight Systems"},
            kernels=kernel_rows.with_shares(rows),
            timeline=_host(chosen),
            findings=(*findings, *kernel_rows.too_many_names(len(rows))),
        )
        return ParsedUpload(self.id, (run,), content.findings())


def _title(content: Content) -> str:
    name = re.sub(r"\.(?:csv|log|txt|json)(?:\.gz)?$", "", content.filename or "", flags=re.IGNORECASE)
    return clean(name.replace("\\", "/").rsplit("/", 1)[-1], 120) or "nsys"


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a name: a report by grid lists a kernel once for each grid."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        twin = found.get(row["name"])
        if twin is None:
            found[row["name"]] = dict(row)
            continue
        twin["count"] += row["count"]
        twin["time_s"] += row["time_s"]
        twin["mean_s"] = twin["time_s"] / twin["count"] if twin["count"] else 0.0
        for key, choose in (("min_s", min), ("max_s", max)):
            if key in twin and key in row:
                twin[key] = choose(twin[key], row[key])
    return list(found.values())


def _host(chosen: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    """What the host did, for the page: launches, waits, the longest calls, and named ranges."""
    calls, ranges = chosen["calls"], chosen["ranges"]
    if not calls and not ranges:
        return None
    host: dict[str, Any] = {}
    for key, pattern in (("launches", r"LaunchKernel"), ("graph_launches", r"GraphLaunch"), ("waits", r"Synchronize")):
        found = [row for row in calls if re.search(pattern, row["name"])]
        if found:
            host[key] = int(sum(row["count"] for row in found))
            host[f"{key}_time_s"] = sum(row["time_s"] for row in found)

    def listed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ordered = sorted(rows, key=lambda row: -row["time_s"])[:_MOST_CALLS]
        return [{key: row[key] for key in ("name", "count", "time_s")} for row in ordered]

    return {"host": {**host, "calls": listed(calls), "ranges": listed(ranges)}}


# --- tables --------------------------------------------------------------------------------------------------------


def _reports(lines: list[str]) -> Iterator[_Report]:
    """Every table of the text or CSV, in order."""
    title, place = "", 0
    while place < len(lines):
        line = lines[place]
        named = _TITLE.search(line)
        if named:
            title = next(part for part in named.groups() if part)
        elif _HEADER.search(line):
            following = lines[place + 1] if place + 1 < len(lines) else ""
            text = _RULE.fullmatch(following) is not None
            columns = _spans(following) if text else []
            header = [line[a:b].strip() for a, b in columns] if text else csv_fields(line)
            place += 2 if text else 1
            rows: list[tuple[int, list[str]]] = []
            while place < len(lines) and lines[place].strip():
                cells = _cells(lines[place], columns) if text else csv_fields(lines[place])
                if len(cells) != len(header):
                    break
                rows.append((place + 1, cells))
                place += 1
            report = _report(title, [name.strip() for name in header], rows)
            if report is not None:
                yield report
            title = ""
            continue
        place += 1


def _spans(rule: str) -> list[tuple[int, int]]:
    """Where each column of a printed table lies, by its line of dashes; the last one reaches to the end."""
    found = [match.span() for match in re.finditer(r"-+", rule)]
    return [*found[:-1], (found[-1][0], 100_000)] if found else []


def _cells(line: str, columns: list[tuple[int, int]]) -> list[str]:
    return [line[a:b].strip() for a, b in columns]


def _json_reports(content: Content) -> Iterator[_Report]:
    """Lists of objects whose keys are the columns (`--format json`)."""
    for line, value in content.json.values:
        items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        if items:
            header = [str(key) for key in items[0]]
            rows = [(line, [str(item.get(key, "")) for key in header]) for item in items]
            report = _report("", header, rows)
            if report is not None:
                yield report


def _report(title: str, header: list[str], rows: list[tuple[int, list[str]]]) -> _Report | None:
    """A table as rows in SI; None for what is not about time (memory sizes) or not known."""
    total = next((name for name in header if _TIME_COLUMN.fullmatch(name)), None)
    count = next((name for name in _COUNTS if name in header), None)
    named = next((name for name in _NAMES if name in header), None)
    if total is None or count is None or named is None:
        return None
    kind = _kind(title, count, named, [dict(zip(header, cells, strict=True)).get(named, "") for _, cells in rows])
    unit = _TIME_COLUMN.fullmatch(total)
    factor = TIMES.get((unit[1] if unit else None) or "ns", 1e-9)
    # the fraction of the percentages tells how numbers are written
    comma = comma_is_decimal(cell for _, cells in rows for cell in cells)
    report = _Report(kind)
    for line, cells in rows:
        values = dict(zip(header, cells, strict=True))
        time, times = number(values[total], comma), number(values[count], comma)
        if time is None or times is None or time < 0 or times < 0 or times != int(times):
            continue
        row: dict[str, Any] = {
            "name": kernel_rows.kernel_name(values[named]),
            "count": int(times),
            "time_s": time * factor,
            "line": line,
        }
        for key, words in _AVERAGES.items():
            column = next((name for name in header if name.split(" (")[0] in words), None)
            stated = number(values[column], comma) if column else None
            if stated is not None:
                row[key] = stated * factor
        if "mean_s" not in row and times:
            row["mean_s"] = row["time_s"] / times
        report.rows.append(row)
    return report


def _kind(title: str, count: str, named: str, names: list[str]) -> str:
    """What a table is about: by its title where there is one, else by its columns and names."""
    plain = title.lower().replace("_", "")
    for words, kind in (
        ("gpukern", "kernels"),
        ("gpusum", "kernels"),
        ("gpumemtime", "copies"),
        ("gpumemsize", "sizes"),
        ("cudaapisum", "calls"),
        ("nvtx", "ranges"),
        ("osrt", "system"),
    ):
        if words in plain:
            return kind
    if plain.endswith("sum") or plain:
        return "system" if count == "Num Calls" else "other"
    if named == "Range":
        return "ranges"
    if any(name.startswith("[CUDA mem") for name in names) or named == "Operation":
        return "copies"
    if count == "Num Calls":
        return "calls" if any(re.match(r"cu(?:da)?[A-Z]", name) for name in names) else "system"
    return "kernels" if count == "Instances" else "other"
