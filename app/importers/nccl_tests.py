"""nccl-tests and rccl-tests: the printed table, CSV made of it, nccl-tests' JSON report and rccl-tests' rows.

Field meanings are those of NVIDIA/nccl-tests, src/util.cu and doc/PERFORMANCE.md (GB/s are 1e9 bytes, algbw is size
over time, busbw is algbw times a factor of the collective); tables of 2.x to 2.17 and CSV were at hand, the JSON
forms were not. One run is one collective of the file, its sizes are rows, out-of-place and in-place apart. The
metrics are those of the largest message out of place: "Avg bus bandwidth" averages over sizes and depends on which
were asked for. Host names and process ids of the device list are not kept, nor is the environment in the JSON report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.domain.run import Finding, ParsedRun
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float
from app.importers.logs import log_lines, text_findings
from app.importers.printed_tables import comma_is_decimal
from app.importers.printed_tables import number as printed_number
from app.importers.reading import Content, clean, pointer
from app.importers.sweep import Axis, Point, Reading, bytes_word, most_runs, sweep_run
from app.importers.tables import cells_of

MICRO = 1e-6
GIGA = 1e9

_KINDS: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
    "hypercube": "hypercube",
}
_KIND_IN_TEXT = re.compile(
    r"(?<![a-z])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|broadcast|send_?recv|hypercube)(?![a-z])", re.I
)
_PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv|hypercube)_perf\b"
)
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_NODE_PREFIX = re.compile(r"^\s*(?:\d{1,6}:|\[\d{1,6}\])\s?(?=\s*(?:#|\d))")
_STARTING = re.compile(r"# Collective test starting:\s*(\w{1,60})")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.{0,80})"
)
_CONFIG = re.compile(r"(nThread|nGpus|minBytes|maxBytes|warmup iters|iters|agg iters|validation|graph)\s*:?\s*(\d+)")
_VERSION = re.compile(r"# (nccl-tests|rccl-tests) version (\S{1,40})(?:.*?(?:nccl|rccl)-library=(\d{3,6}))?", re.I)
_LIBRARY = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*(\d[\w.+-]{1,40})")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*([-\d.,eE+]{1,30})")
_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(\d+)\s*(\w*)")
_ROW = re.compile(r"^\s*\d{1,16}\s+\d{1,16}\s+[a-z]\w{2,15}\s")
_TIME_COLUMNS = ("time", "cputime")
_WRONG_COLUMNS = ("#wrong", "error", "wrong")
_CSV_NAMES: Mapping[str, str] = {
    "size(bytes)": "size",
    "size(b)": "size",
    "size_bytes": "size",
    "time(us)": "time",
    "algbw(gb/s)": "algbw",
    "busbw(gb/s)": "busbw",
    "operation": "name",
    "collective": "name",
    "test": "name",
}
_X = Axis("size_bytes", "Message size", "B")
_Y = (
    Axis("bus_bandwidth_bytes_per_s", "Bus bandwidth", "B/s"),
    Axis("time_s", "Time", "s"),
    Axis("algorithm_bandwidth_bytes_per_s", "Algorithm bandwidth", "B/s", charted=False),
)
_MOST_BLOCKS = 500


@dataclass(slots=True)
class _Block:
    """One collective test: what was printed around its table, and the rows."""

    kind: str | None = None
    how: str = ""
    ranks: int | None = None
    listed: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    devices: dict[str, None] = field(default_factory=dict)
    config: dict[str, int] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    empty_rows: int = 0
    unread: list[int] = field(default_factory=list)
    average: tuple[float, str, str] | None = None
    bounds: str = ""
    left_out: list[str] = field(default_factory=list)
    nodes: int | None = None

    def begun(self) -> bool:
        return bool(self.points or self.config or self.columns or self.listed)


class NcclTests:
    id = "nccl-tests"
    title = "nccl-tests and rccl-tests (text, CSV or JSON)"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        first = _first_object(content)
        if first is not None:
            if {"results", "config", "nccl_version"} <= first.keys():
                return Sniff(0.95, "has nccl_version, config and results")
            if "busBw" in first and "size" in first:
                return Sniff(0.9, "rows with size and busBw")
            return Sniff(0.0, "no nccl_version with results")
        text = content.text
        if re.search(r"^.{0,40}# (?:nccl|rccl)-tests version|^.{0,40}# nThread ", text, re.M):
            return Sniff(0.9, "the header of nccl-tests")
        if re.search(r"\balgbw\b[^\n]*\bbusbw\b", text, re.I):
            return Sniff(0.85, "columns algbw and busbw")
        return Sniff(0.0, "no columns algbw and busbw")

    def parse(self, content: Content) -> ParsedUpload:
        if _first_object(content) is not None:
            blocks, notes = _json_blocks(content), content.json.findings()
        elif (header := _csv_header(content)) is not None:
            blocks, notes = _csv_blocks(content, header), ()
        else:
            blocks, notes = _text_blocks(content), ()
        whole = [block for block in blocks if block.points]
        most_runs(len(whole), content.limits.max_runs)
        if not whole:
            raise UnreadableUpload(
                "cut-off",
                "This is nccl-tests output without a row of results.",
                hint="The test stopped before its first size (or validation failed at once): upload a whole run.",
            )
        runs = tuple(_run(block, content.filename) for block in whole)
        return ParsedUpload(self.id, runs, (*text_findings(content), *notes))


def _first_object(content: Content) -> Mapping[str, Any] | None:
    """The first JSON object, where the text is JSON; lines tagged `[1,0]<stdout>:` are not."""
    if content.is_large or content.head.lstrip()[:1] not in ("{", "["):
        return None
    return content.first_record


# --- the printed table ---------------------------------------------------------------------------------------------


def _text_blocks(content: Content) -> list[_Block]:
    blocks = [_Block()]
    program: str | None = None
    decimal_comma = _has_decimal_comma(content)
    for number, line in log_lines(content):
        if len(blocks) > _MOST_BLOCKS:
            break
        line = _plain(line)
        block = blocks[-1]
        if "algbw" in line and "busbw" in line:
            names = line.replace("#wrong", "\0wrong").replace("#", " ").replace("\0", "#").lower().split()
            if block.points:
                block = _next(blocks)
            block.columns = names
        elif _ROW.match(line):
            if not _read_row(block, line, number, decimal_comma):
                block.unread.append(number)
        elif match := _VERSION.search(line):
            if block.begun():
                block = _next(blocks)
            block.software["benchmark"] = f"{match[1].lower()} {clean(match[2], 40)}"
            if match[3]:
                block.software["NCCL" if match[1].lower() == "nccl-tests" else "RCCL"] = library_version(int(match[3]))
        elif match := _STARTING.search(line):
            if block.begun():
                block = _next(blocks)
            block.kind, block.how = _kind(match[1]), "named"
        elif "# nThread" in line:
            if block.points or block.config:
                block = _next(blocks)
            block.config = {key: int(value[:15]) for key, value in _CONFIG.findall(line)}
            if block.kind is None and program is not None:
                block.kind, block.how = _kind(program), "named"
        elif match := _RANK.search(line):
            block.listed.add(int(match[1][:9]))
            if len(block.hosts) < 100_000:
                block.hosts.add(match[2])
            block.devices[clean(match[3], 80)] = None
        elif match := _AVERAGE.search(line):
            value = printed_number(match[1], decimal_comma)
            if value is not None and math.isfinite(value) and value > 0:
                block.average = (value, match[1], f"line {number}")
        elif match := _BOUNDS.search(line):
            block.bounds = match[2] if match[2].isupper() else ("OK" if match[1] == "0" else "FAILED")
        elif match := _LIBRARY.search(line):
            block.software.setdefault(match[1], match[2])
        if "_perf" in line and (found := _PROGRAM.search(line)) and "concluded" not in line:
            program = found[1]
            if block.kind is None and not block.points:
                block.kind, block.how = _kind(program), "named"
    for block in blocks:
        if block.listed:
            block.ranks = len(block.listed)
            block.nodes = len(block.hosts)
            block.left_out = ["host names", "process ids"]
    return blocks


def _plain(line: str) -> str:
    """A line without what launchers write before it."""
    return _NODE_PREFIX.sub("", _TAG.sub("", line))


def _has_decimal_comma(content: Content) -> bool:
    """Whether the rows were passed through a program of another locale; the tool itself writes points."""
    if "," not in content.head:
        return False
    rows = (line for _, told in log_lines(content) if _ROW.match(line := _plain(told)))
    return comma_is_decimal(cell for line in rows for cell in line.split())


def _next(blocks: list[_Block]) -> _Block:
    """Another test begins; versions hold on, the library's is printed once."""
    before = blocks[-1]
    blocks.append(_Block(software=dict(before.software)))
    return blocks[-1]


def _read_row(block: _Block, line: str, number: int, decimal_comma: bool) -> bool:
    """Read a row from its right end: what stands left of the times differs by version. False where it does not fit."""
    cells = line.split()
    groups = _groups(block.columns)
    if groups is None:
        group = ["time", "algbw", "busbw", "#wrong"]
        groups = [group, group] if len(cells) >= 11 else [group]
    tail = sum(len(group) for group in groups)
    if len(cells) < tail + 3:
        return False
    lead, told = cells[: len(cells) - tail], cells[len(cells) - tail :]
    if not all(_is_cell(cell) for cell in told):
        return False
    row = {"size": lead[0], "type": lead[2]}
    if len(lead) > 3 and not _is_number(lead[3]):
        row["redop"] = lead[3]
    if len(lead) > 3 and _is_number(lead[-1]):
        row["root"] = lead[-1]
    start = 0
    for place, group in zip(("out-of-place", "in-place"), groups, strict=False):
        half = dict(zip(group, told[start : start + len(group)], strict=True))
        _add_point(block, row, half, place, f"line {number}", decimal_comma)
        start += len(group)
    return True


def _groups(columns: Sequence[str]) -> list[list[str]] | None:
    """The columns of each half of the table, from the times on."""
    starts = [place for place, name in enumerate(columns) if name in _TIME_COLUMNS]
    if not starts or len(starts) > 2:
        return None
    ends = [*starts[1:], len(columns)]
    return [list(columns[start:end]) for start, end in zip(starts, ends, strict=True)]


def _is_number(cell: str) -> bool:
    return as_float(cell) is not None


def _is_cell(cell: str) -> bool:
    return cell.upper() == "N/A" or _is_number(cell.replace(",", ""))


def _add_point(
    block: _Block,
    row: Mapping[str, str],
    told: Mapping[str, str],
    place: str,
    at: str,
    decimal_comma: bool = False,
) -> None:
    """One half of a row. Zeros are rounding (bandwidths below 5 MB/s) or absence, never a measurement."""
    size = as_float(row.get("size"))
    time = next((told[name] for name in _TIME_COLUMNS if name in told), None)
    seconds = printed_number(time or "", decimal_comma)
    if size is None or not math.isfinite(size) or size <= 0:
        block.empty_rows += place == "out-of-place"
        return
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        return
    x: dict[str, float | str] = {"size_bytes": size, "placement": place}
    for key in ("type", "redop", "root"):
        if row.get(key) and not (key == "root" and row[key] == "-1") and not (key == "redop" and row[key] == "none"):
            x[key] = clean(row[key], 20)
    readings = {"latency_s": Reading(seconds * MICRO, time, "us")}
    for column, key in (
        ("algbw", "algorithm_bandwidth_bytes_per_s"),
        ("busbw", "bus_bandwidth_bytes_per_s"),
    ):
        value = printed_number(told.get(column, ""), decimal_comma)
        if value is not None and math.isfinite(value) and value > 0:
            readings[key] = Reading(value * GIGA, told[column], "GB/s")
    wrong = next((as_float(told[name]) for name in _WRONG_COLUMNS if name in told), None)
    # Before 2.13 the column held the largest error, which is not zero for sums of halves; it is no count.
    counted = "error" not in told
    other = {"wrong": int(wrong)} if wrong is not None and math.isfinite(wrong) and counted and wrong > 0 else {}
    block.points.append(Point(at, x, readings, dict(other), f"{bytes_word(size)}, {place}"))


# --- CSV, as people make it of the table, and as rccl-tests writes it ----------------------------------------------


def _csv_header(content: Content) -> int | None:
    for number, line in enumerate(content.head.split("\n")[:100], 1):
        if "algbw" in line.lower() and line.count(",") + line.count(";") + line.count("\t") >= 4:
            return number
    return None


def _csv_blocks(content: Content, header: int) -> list[_Block]:
    blocks: dict[tuple[str, ...], _Block] = {}
    names: list[str] = []
    separator = ","
    for number, line in log_lines(content):
        if number < header or not line.strip():
            continue
        if number == header:
            separator = max(",;\t", key=line.count)
        cells = cells_of(line, separator)
        if number == header:
            names = [_CSV_NAMES.get(name.lower().replace(" ", ""), name.lower().strip()) for name in cells]
            continue
        if len(cells) != len(names):
            continue
        starts = [place for place, name in enumerate(names) if name in _TIME_COLUMNS]
        lead = dict(zip(names[: starts[0]], cells, strict=False)) if starts else {}
        told = {name: cells[place] for place, name in enumerate(names)}
        key = (told.get("name", ""), told.get("ranks", ""), told.get("nodes", ""))
        block = blocks.setdefault(key, _Block())
        if not block.points:
            block.kind = _kind(key[0]) if key[0] else None
            block.how = "named" if block.kind else ""
            ranks, nodes = as_float(key[1]), as_float(key[2])
            block.ranks = int(ranks) if ranks and 1 <= ranks < 10**7 else None
            block.nodes = int(nodes) if nodes and 1 <= nodes < 10**7 else None
        comma = separator != ","
        for place, group in zip(("out-of-place", "in-place"), _groups(names) or [], strict=False):
            start = starts[0 if place == "out-of-place" else 1]
            values = [cell.replace(",", ".") if comma else cell for cell in cells[start : start + len(group)]]
            half = dict(zip(group, values, strict=True))
            if "inplace" in told:
                place = "in-place" if told["inplace"].lower() in ("1", "true") else "out-of-place"
            _add_point(block, lead, half, place, f"line {number}")
    return list(blocks.values())


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json_blocks(content: Content) -> list[_Block]:
    blocks: list[_Block] = []
    rows: dict[tuple[str, str], _Block] = {}
    for record in content.json.records():
        told = record.value
        if not isinstance(told, dict):
            continue
        if isinstance(told.get("results"), list):
            blocks += _report(told, record.prefix)
        elif "busBw" in told:
            name, ranks = str(told.get("name", ""))[:60], str(told.get("ranks", ""))[:12]
            block = rows.setdefault((name, ranks), _Block(software={"benchmark": "rccl-tests"}))
            block.kind, block.how = (_kind(name), "named") if name else (None, "")
            count = as_float(ranks)
            block.ranks = int(count) if count and 1 <= count < 10**7 else None
            place = "in-place" if told.get("inPlace") in (1, "1", True, "true") else "out-of-place"
            lead = {key: str(told[key])[:30] for key in ("size", "type", "redop") if told.get(key) is not None}
            half = {
                "time": str(told.get("time", ""))[:30],
                "algbw": str(told.get("algBw", ""))[:30],
                "busbw": str(told.get("busBw", ""))[:30],
                "#wrong": str(told.get("wrong", ""))[:30],
            }
            _add_point(block, lead, half, place, record.prefix or "/")
    return [*blocks, *rows.values()][:_MOST_BLOCKS]


def _report(told: Mapping[str, Any], prefix: str) -> Iterator[_Block]:
    """The blocks of one JSON report: one for each experiment name in it. Booleans and NaN are texts there."""
    args = told.get("args") if isinstance(told.get("args"), list) else []
    config = told.get("config") if isinstance(told.get("config"), dict) else {}
    assert isinstance(args, list)
    assert isinstance(config, dict)
    program = next((match[1] for arg in args if isinstance(arg, str) and (match := _PROGRAM.search(arg))), None)
    devices = [d for d in told.get("devices", ()) if isinstance(d, dict)] if _is_list(told.get("devices")) else []
    blocks: dict[str, _Block] = {}
    for index, result in enumerate(told["results"]):
        if not isinstance(result, dict):
            continue
        experiment = clean(str(result.get("experiment_name") or "")[:100], 60)
        block = blocks.setdefault(experiment, _Block(software={"benchmark": "nccl-tests"}))
        named = _kind(experiment) if experiment else None
        if block.kind is None:
            block.kind = named or (_kind(program) if program else None)
            block.how = "named" if block.kind else ""
        lead = {key: str(result[key])[:30] for key in ("size", "type", "redop", "root") if result.get(key) is not None}
        for place, key in (("out-of-place", "out_of_place"), ("in-place", "in_place")):
            half = result.get(key)
            if not isinstance(half, dict):
                continue
            time = half.get("time", half.get("cpu_time"))
            values = {
                "time": str(time if time is not None else "")[:30],
                "algbw": str(half.get("alg_bw", ""))[:30],
                "busbw": str(half.get("bus_bw", ""))[:30],
                "#wrong": str(half.get("nwrong", ""))[:30],
            }
            _add_point(block, lead, values, place, pointer(prefix, "results", index, key))
    version = told.get("nccl_version")
    average = told.get("average_bus_bandwidth")
    bounds = told.get("out_of_bounds")
    for block in blocks.values():
        if isinstance(version, int) and 100 < version < 10**6:
            block.software["NCCL"] = library_version(version)
        block.ranks = len({d.get("rank") for d in devices if isinstance(d.get("rank"), int)}) or None
        block.nodes = len({d["hostname"] for d in devices if isinstance(d.get("hostname"), str)}) or None
        block.devices = {clean(str(d["device_info"])[:200], 80): None for d in devices if d.get("device_info")}
        for key, name in (("iterations", "iters"), ("warmup_iters", "warmup iters"), ("graph", "graph")):
            value = as_float(config.get(key))
            if value is not None and math.isfinite(value) and 0 <= value < 10**9:
                block.config[name] = int(value)
        if isinstance(average, dict) and len(blocks) == 1:
            value = as_float(average.get("bandwidth"))
            if value is not None and math.isfinite(value) and value > 0:
                at = pointer(prefix, "average_bus_bandwidth", "bandwidth")
                block.average = (value, str(average["bandwidth"])[:30], at)
        if isinstance(bounds, dict) and str(bounds.get("okay", "true")).lower() == "false":
            block.bounds = "FAILED"
        kept_out = [key for key in ("env", "args") if told.get(key)] + (["devices[].hostname"] if devices else [])
        block.left_out = [word for word in kept_out if word != "args"]
        if args:
            block.left_out.append("args")
    yield from blocks.values()


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


# --- a run ---------------------------------------------------------------------------------------------------------


def library_version(code: int) -> str:
    """2.29.2 of 22902; before 2.9 the code had one digit less for the minor version."""
    if code >= 10_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"


def _kind(name: str) -> str:
    plain = re.sub(r"_?perf$", "", name.strip().lower()).replace("_", "").replace("-", "").replace(" ", "")
    return _KINDS.get(plain, clean(plain, 40) or "collective")


def _run(block: _Block, file_name: str | None) -> ParsedRun:
    findings: list[Finding] = []
    if block.kind is None:
        _infer(block, file_name, findings)
    good = [p for p in block.points if "wrong" not in p.other]
    outside = [p for p in good if p.x["placement"] == "out-of-place"]
    candidates = outside or good or block.points
    head = max(candidates, key=lambda p: float(p.x["size_bytes"]))
    wrong = [p for p in block.points if "wrong" in p.other]
    if wrong or block.bounds == "FAILED":
        shown = ", ".join(p.name for p in wrong[:4])
        findings.append(
            Finding(
                "wrong-results",
                "error",
                f"The test found wrong values{f' at {shown}' if shown else ''}: those bandwidths are not of a working "
                "collective.",
                ("bus_bandwidth_bytes_per_s",),
            )
        )
    if block.unread:
        lines = ", ".join(str(n) for n in block.unread[:5])
        findings.append(
            Finding(
                "rows-unread", "warning", f"{len(block.unread)} row(s) broke off or ran into others (line {lines})."
            )
        )
    record = Fields({})
    if block.average is not None:
        value, raw, at = block.average
        sizes = len({p.x["size_bytes"] for p in block.points})
        record.add("bus_bandwidth_bytes_per_s", value * GIGA, at=at, raw=raw, raw_unit="GB/s", stat="mean", count=sizes)
    varying = [
        key for key in ("type", "redop", "root", "placement") if len({str(p.x.get(key)) for p in block.points}) > 1
    ]
    unknown: dict[str, str] = {}
    if not block.devices:
        unknown["hardware"] = "device"
    if block.ranks is None:
        unknown["ranks"] = "number of ranks"
    if block.kind is None:
        unknown["collective"] = "which collective it is"
    if unknown:
        findings += serving.facts_finding(unknown)
    findings += serving.left_out_findings(block.left_out)
    kind = block.kind or "collective"
    title = kind.replace("_", "-")
    ranks = f", {block.ranks} ranks" if block.ranks else ""
    extra: dict[str, Any] = {
        "collective": block.kind,
        "ranks": block.ranks,
        "nodes": block.nodes,
        "iterations": block.config.get("iters"),
        "warmup_iters": block.config.get("warmup iters"),
        "graph": bool(block.config["graph"]) if "graph" in block.config else None,
        "sizes_of_zero_left_out": block.empty_rows or None,
        "timed_region": "the collective alone",
        "correctness": "checked by the test" if block.config.get("validation") else None,
    }
    for key in ("type", "redop", "root"):
        if key not in varying and key in head.x:
            extra[key] = head.x[key]
    for point in block.points:
        point.x = {key: value for key, value in point.x.items() if key in ("size_bytes", "placement") or key in varying}
    series: dict[str, float | str] = {"collective": kind}
    if block.ranks:
        series["ranks"] = float(block.ranks)
    return sweep_run(
        f"{title}{ranks}, up to {bytes_word(float(head.x['size_bytes']))}",
        block.points,
        family="collective",
        x=_X,
        y=_Y,
        group="collectives",
        label=title,
        lines=varying,
        head=head,
        extra=extra,
        series=series,
        counts={"latency_s": block.config["iters"]} if block.config.get("iters") else None,
        hardware=", ".join(block.devices) or None,
        software=block.software or {"benchmark": "nccl-tests"},
        findings=findings,
        metrics=record,
    )


def _infer(block: _Block, file_name: str | None, findings: list[Finding]) -> None:
    """Which collective a table without a name is of: busbw over algbw is known for each, given the ranks.

    Where two have the same factor, the file's name decides between them; without it the question stays open.
    """
    best = max(
        (
            p
            for p in block.points
            if p.value("algorithm_bandwidth_bytes_per_s") and p.value("bus_bandwidth_bytes_per_s")
        ),
        key=lambda p: p.value("algorithm_bandwidth_bytes_per_s") or 0.0,
        default=None,
    )
    if best is None:
        return
    algorithm = best.value("algorithm_bandwidth_bytes_per_s") or 0.0
    ratio = (best.value("bus_bandwidth_bytes_per_s") or 0.0) / algorithm
    # Both numbers are rounded to 0.01 GB/s.
    slack = 0.005e9 * (1 + ratio) / algorithm
    reduces = "redop" in best.x
    n = block.ranks
    possible: list[str] = []
    if ratio > 1 + slack:
        possible = ["all_reduce"]
        n = n or _only_rank_count(ratio, slack)
    elif n is not None and n > 1 and abs(ratio - (n - 1) / n) <= slack:
        possible = ["reduce_scatter"] if reduces else ["all_gather", "all_to_all"]
    elif abs(ratio - 1) <= slack:
        if "root" in best.x:
            possible = ["reduce"] if reduces else ["broadcast"]
        elif not reduces:
            possible = ["send_recv"]
        elif n in (None, 2):  # without a root and with an operation: 2(n-1)/n is 1 for two ranks
            possible, n = ["all_reduce"], 2
    named = _KIND_IN_TEXT.search(file_name or "")
    by_name = _kind(named[1]) if named else None
    if len(possible) == 1:
        block.kind, block.how = possible[0], "factor"
        told = f"busbw is {ratio:.4g} times algbw" + (f" with {n} ranks" if n else "")
    elif by_name is not None and (not possible or by_name in possible):
        block.kind, block.how = by_name, "name"
        told = "from the file's name"
    else:
        return
    if block.ranks is None and n is not None:
        block.ranks = n
        told += ", which is the only number of ranks that fits"
    findings.append(
        Finding(
            "collective-inferred",
            "info",
            f"The output does not name its collective; read as {block.kind.replace('_', '-')} ({told}).",
            ("collective",),
        )
    )


def _only_rank_count(ratio: float, slack: float) -> int | None:
    """The one number of ranks for which 2(n-1)/n is the ratio, or None where the rounding leaves several."""
    low, high = ratio - slack, ratio + slack
    if high >= 2:
        return None
    least, most = math.ceil(2 / (2 - low) - 1e-9), math.floor(2 / (2 - high) + 1e-9)
    return least if least == most and least > 1 else None
