"""Tables of no tool that is known here: CSV of any separator, a JSON list of flat objects, JSON lines.

What a column means is guessed from its name and confirmed by a person once; a mapping says it from then on. A cell is
text or a number and never anything else: formulas are not evaluated. Empty cells and the usual words for "no value" are
values that are not reported.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.domain.precision import PRECISIONS
from app.domain.run import METRIC_UNITS, STATS, Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.fields import Fields, is_secret, listed, model_name
from app.importers.logs import text_findings
from app.importers.reading import Content, clean
from app.importers.tables import numbered_rows, whole_lines

FORMAT = "table"
TITLE = "A table of your own (CSV, TSV, JSON list or JSON lines), with its columns explained once"

Use = Literal[
    "ignore",
    "metric",
    "series",
    "name",
    "model",
    "hardware",
    "precision",
    "batch",
    "concurrency",
    "input_len",
    "output_len",
    "context_len",
]
MAX_COLUMNS = 200
_SAMPLES = 5
_GUESS_ROWS = 200
_MAX_CELL = 500


@dataclass(frozen=True, slots=True)
class Column:
    """What one column means. `unit` is what its numbers are written in; `metric` and `stat` only for a metric."""

    use: Use = "ignore"
    metric: str | None = None
    stat: str | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class TableMapping:
    """How a table is read: its columns by name, the decimal sign of its numbers, and what kind of work it measures."""

    columns: Mapping[str, Column]
    decimal: str = "."
    mode: str | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as a person is asked about it: its name, some of its cells, and a guess."""

    name: str
    samples: tuple[str, ...]
    guess: Column
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it stands in a file. `rows` are (place, cells by column); a cell is what was written there."""

    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, Mapping[str, Any]], ...]
    uneven: int = 0


@dataclass(frozen=True, slots=True)
class TableView:
    """What is shown of a table so that it can be explained."""

    kind: str
    row_count: int
    columns: tuple[TableColumn, ...]
    decimal: str
    mode: str | None = None

    @property
    def guesses(self) -> TableMapping:
        return TableMapping({column.name: column.guess for column in self.columns}, self.decimal, self.mode)


class UnmappedTable(UnreadableUpload):
    """A table that no mapping explains yet."""

    def __init__(self, view: TableView, tried: Sequence[tuple[str, str]] = (), accepts: Sequence[str] = ()) -> None:
        self.upload_id: str | None = None
        """Where the file is kept until its columns are explained."""
        super().__init__(
            "needs-mapping",
            f"This is a table ({view.kind}) of {len(view.columns)} columns and {view.row_count} "
            f"row{'s' * (view.row_count != 1)}, of no tool that "
            "is known here.",
            hint="Say once what its columns mean; files with the same columns are read by that from then on.",
            tried=tried,
            accepts=accepts,
        )
        self.view = view

    def __reduce__(self) -> tuple[Any, ...]:
        return UnmappedTable, (self.view, self.tried, self.accepts)


def columns_key(columns: Sequence[str] | Mapping[str, Any]) -> str:
    """The SHA-256 that a set of column names is known by, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(columns), ensure_ascii=False).encode("utf-8", "replace")).hexdigest()


# --- finding the table ---------------------------------------------------------------------------------------------


def table_of(content: Content) -> Table | None:
    """The table that a text is, or None. It has at least two columns, and a number somewhere below its heading."""
    found = _json_table(content) if content.starts_as_json else _csv_table(content)
    if found is None or len(found.columns) < 2 or len(found.columns) > MAX_COLUMNS:
        return None
    some = found.rows[:_GUESS_ROWS]
    has_number = any(_is_numeric(cell) for _, cells in some for cell in cells.values())
    return found if has_number else None


def _is_numeric(cell: Any) -> bool:
    return any(parse_number(cell, decimal) is not None for decimal in (".", ","))


def _json_table(content: Content) -> Table | None:
    document = content.json
    is_list = len(document.values) == 1 and isinstance(document.values[0][1], list)
    if not document.values or not (is_list or document.is_lines):
        return None
    columns: dict[str, None] = {}
    rows: list[tuple[str, Mapping[str, Any]]] = []
    uneven = 0
    for record in document.records():
        if not isinstance(record.value, dict) or any(isinstance(cell, (dict, list)) for cell in record.value.values()):
            uneven += 1
            continue
        cells = {clean(key, 120) or "(no name)": cell for key, cell in record.value.items()}
        columns.update(dict.fromkeys(cells))
        rows.append((record.prefix, cells))
    if not rows or uneven > len(rows):
        return None
    return Table("JSON lines" if document.is_lines else "JSON list", tuple(columns), tuple(rows), uneven)


_SEPARATORS: tuple[tuple[str, str], ...] = (
    ("\t", "TSV"),
    (";", "CSV with semicolons"),
    (",", "CSV"),
    ("|", "CSV with bars"),
)


def _csv_table(content: Content) -> Table | None:
    start = next((n for n, line in enumerate(content.lines[:50]) if line.strip() and not line.startswith("#")), None)
    if start is None:
        return None
    for separator, kind in _SEPARATORS:
        if content.lines[start].count(separator) == 0 and '"' not in content.lines[start]:
            continue
        lines = whole_lines(content, separator)
        rows_of_text = numbered_rows(lines, separator, start)
        _, header = next(rows_of_text, (0, []))
        names = _names(header)
        if len(names) < 2 or all(_is_numeric(name) for name in names):
            continue
        rows, uneven = _csv_rows(rows_of_text, names)
        if rows and uneven <= len(rows) / 4:
            return Table(kind, names, rows, uneven)
    return None


def _csv_rows(
    found: Iterable[tuple[int, list[str]]], names: tuple[str, ...]
) -> tuple[tuple[tuple[str, Mapping[str, Any]], ...], int]:
    rows: list[tuple[str, Mapping[str, Any]]] = []
    uneven = 0
    for number, cells in found:
        if not any(cells) or cells[0].startswith("#"):
            continue
        if len(cells) != len(names):
            uneven += 1
            if uneven > 50 and uneven > len(rows):
                return (), uneven
            continue
        rows.append((f"line {number}: ", dict(zip(names, cells, strict=True))))
    return tuple(rows), uneven


def _names(header: Sequence[str]) -> tuple[str, ...]:
    """Column names as people see them: never empty, never twice."""
    names: list[str] = []
    for number, cell in enumerate(header, 1):
        name = " ".join(clean(cell, 120).split()) or f"column {number}"
        copies = 2
        own = name
        while own in names:
            own, copies = f"{name} ({copies})", copies + 1
        names.append(own)
    return tuple(names)


# --- numbers -------------------------------------------------------------------------------------------------------

_NOT_REPORTED = frozenset(
    {
        "",
        "-",
        "--",
        "—",
        "–",
        "n/a",
        "na",
        "#n/a",
        "null",
        "none",
        "nan",
        "nil",
        "inf",
        "-inf",
        "?",
        "oom",
        "not reported",
    }
)
_SPACES = str.maketrans("", "", " \u00a0\u202f\u2009'’_")
_POINT = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d+,?\d*|,\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WITH_UNIT = re.compile(
    r"(?P<number>[+-]?[\d.,'’_ \u00a0\u202f\u2009]*\d(?:[eE][+-]?\d+)?)\s*(?P<unit>[^\d\s.,].{0,15})?"
)


def is_reported(cell: Any) -> bool:
    """Whether a cell says anything: an empty one, N/A and the like do not."""
    return cell is not None and not (isinstance(cell, str) and cell.strip().lower() in _NOT_REPORTED)


def parse_number(cell: Any, decimal: str) -> tuple[float, str] | None:
    """The number in a cell and the unit written behind it ("" without one); None where it is no finite number."""
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, (int, float)):
        try:
            return (float(cell), "") if math.isfinite(cell) else None
        except OverflowError:
            return None
    if not isinstance(cell, str) or len(cell) > 80:
        return None
    match = _WITH_UNIT.fullmatch(cell.strip())
    if match is None:
        return None
    digits = match["number"].translate(_SPACES)
    if not (_COMMA if decimal == "," else _POINT).fullmatch(digits):
        return None
    plain = digits.replace(".", "").replace(",", ".") if decimal == "," else digits.replace(",", "")
    number = float(plain)
    return (number, (match["unit"] or "").strip()) if math.isfinite(number) else None


def _decimal_of(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The decimal sign that the cells are written with: the one that is followed by other than three digits."""
    for _, cells in rows:
        for cell in cells.values():
            match = _WITH_UNIT.fullmatch(cell.strip()) if isinstance(cell, str) and len(cell) <= 80 else None
            if match is None:
                continue
            digits = match["number"].translate(_SPACES)
            point, comma = digits.rfind("."), digits.rfind(",")
            if point >= 0 and comma >= 0:
                return "," if comma > point else "."
            for sign, at in ((",", comma), (".", point)):
                is_fraction = digits.count(sign) == 1 and (len(digits) - at - 1 != 3 or digits.startswith(("0", "-0")))
                if at >= 0 and is_fraction:
                    return sign
    return "."


# --- units ---------------------------------------------------------------------------------------------------------

_BYTES: Mapping[str, float] = {
    **{f"{prefix}B": 10.0 ** (3 * power) for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 2.0 ** (10 * power) for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}
_FLOPS: Mapping[str, float] = {
    f"{prefix}FLOP": 10.0 ** (3 * power) for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))
}
_COUNTS: Mapping[str, float] = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}

UNITS: Mapping[str, Mapping[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "1/s": {"1/s": 1.0, "1/min": 1 / 60, "k/s": 1e3},
    "tokens/s": {"tokens/s": 1.0, "ktokens/s": 1e3, "Mtokens/s": 1e6, "tokens/min": 1 / 60},
    "FLOP/s": {f"{unit}/s": factor for unit, factor in _FLOPS.items()},
    "B/s": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "B": _BYTES,
    "1": {"1": 1.0, "%": 0.01},
    "requests": _COUNTS,
    "tokens": _COUNTS,
    "parameters": _COUNTS,
    "W": {"W": 1.0, "mW": 1e-3, "kW": 1e3},
    "J": {"J": 1.0, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6},
}
"""For every SI unit of a metric, the units that a column may be written in and what one of them is."""

_SPELLINGS: Mapping[str, str] = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "msec": "ms",
    "millisecond": "ms",
    "milliseconds": "ms",
    "µs": "us",
    "μs": "us",
    "usec": "us",
    "microseconds": "us",
    "nsec": "ns",
    "nanoseconds": "ns",
    "minutes": "min",
    "hours": "h",
    "tok/s": "tokens/s",
    "toks/s": "tokens/s",
    "token/s": "tokens/s",
    "t/s": "tokens/s",
    "tps": "tokens/s",
    "tokens/sec": "tokens/s",
    "tok/sec": "tokens/s",
    "tokens/second": "tokens/s",
    "ktok/s": "ktokens/s",
    "req/s": "1/s",
    "reqs/s": "1/s",
    "requests/s": "1/s",
    "requests/sec": "1/s",
    "rps": "1/s",
    "qps": "1/s",
    "it/s": "1/s",
    "samples/s": "1/s",
    "samples/sec": "1/s",
    "images/s": "1/s",
    "hz": "1/s",
    "percent": "%",
    "pct": "%",
    "ratio": "1",
    "bytes": "B",
    "kb": "kB",
    "mb": "MB",
    "gb": "GB",
    "tb": "TB",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
    "tib": "TiB",
    "gb/sec": "GB/s",
    "gbps": "GB/s",
    "tflops": "TFLOP/s",
    "tflop/s": "TFLOP/s",
    "tflops/s": "TFLOP/s",
    "gflops": "GFLOP/s",
    "gflop/s": "GFLOP/s",
    "pflops": "PFLOP/s",
    "flops": "FLOP/s",
    "flop/s": "FLOP/s",
    "watt": "W",
    "watts": "W",
    "w": "W",
    "kw": "kW",
    "joule": "J",
    "joules": "J",
    "j": "J",
    "gb/s": "GB/s",
    "mb/s": "MB/s",
    "tb/s": "TB/s",
    "kb/s": "kB/s",
    "b/s": "B/s",
    "gib/s": "GiB/s",
    "mib/s": "MiB/s",
}
_ALL_UNITS: Mapping[str, str] = {unit.lower(): unit for units in UNITS.values() for unit in units if unit}


_UNIT_NEEDED = frozenset({"s", "B", "B/s", "FLOP/s"})
"""Quantities that are written in so many units that a bare number says nothing."""


def known_unit(written: str) -> str | None:
    """A unit as it is called here, from how people spell it; None for what is no unit."""
    plain = written.strip().replace(" per ", "/").replace(" / ", "/")
    if any(plain in units for units in UNITS.values()):
        return plain
    lowered = plain.lower()
    return _SPELLINGS.get(lowered) or (_ALL_UNITS.get(lowered) if len(lowered) > 1 else None)


def factor_of(metric: str, unit: str) -> float | None:
    """What one `unit` is in the metric's own SI unit; None where it does not measure that, or has to be said."""
    units = UNITS[METRIC_UNITS[metric]]
    own = known_unit(unit) if unit else ""
    if own is not None and own in units:
        return units[own]
    return 1.0 if unit in ("", METRIC_UNITS[metric]) and METRIC_UNITS[metric] not in _UNIT_NEEDED else None


# --- guesses -------------------------------------------------------------------------------------------------------

_UNIT_IN_NAME = re.compile(r"\s*[(\[]\s*([^()\[\]]{1,20})\s*[)\]]")
_UNIT_AT_END = re.compile(
    r"[_\s.-](s|sec|seconds|ms|us|µs|ns|tok/s|tokens/s|t/s|tps|req/s|gb|gib|mb|mib|tflops|tflop/s|gb/s|pct|percent|watts|w|joules)$",
    re.IGNORECASE,
)
_PER_SECOND = re.compile(r"(?:^|[_\s.-])([a-z]+)[_\s.-]per[_\s.-]s(?:ec(?:ond)?)?$", re.IGNORECASE)
"""`tokens_per_s` is a rate: its last letter is no column of seconds."""
_STAT_WORDS: tuple[tuple[str, str], ...] = (
    (r"p99\.9|p999", "p999"),
    (r"p99|99th", "p99"),
    (r"p95|95th", "p95"),
    (r"p90|90th", "p90"),
    (r"p75|75th", "p75"),
    (r"p50|50th|median|med", "p50"),
    (r"mean|avg|average", "mean"),
    (r"std|stdev|stddev|sd", "std"),
    (r"min|minimum|best", "min"),
    (r"max|maximum|worst", "max"),
)
_METRIC_WORDS: tuple[tuple[str, str], ...] = (
    (r"ttft|time to first token|first token", "ttft_s"),
    (r"tpot|time per output token|per token latency", "tpot_s"),
    (r"itl|inter token", "itl_s"),
    (r"e2e|end to end|e2el|request latency", "e2e_latency_s"),
    (r"step time|iter(?:ation)? time|time per (?:step|iter(?:ation)?)|step(?= ms| s)", "step_time_s"),
    (r"prefill time|prompt time|prefill latency", "prefill_time_s"),
    (r"decode time|decode latency", "decode_time_s"),
    (r"kernel time|kernel duration", "kernel_time_s"),
    (r"goodput", "goodput_requests_per_s"),
    (r"request throughput|requests s|req s|qps|rps", "requests_per_s"),
    (r"samples s|images s|it s", "samples_per_s"),
    (r"prefill (?:throughput|tokens|tps|speed)|prompt (?:throughput|tps)|pp tok", "prefill_tokens_per_s"),
    (r"decode (?:throughput|tokens|tps|speed)|generation (?:throughput|tps)|tg tok", "decode_tokens_per_s"),
    (r"input (?:throughput|tps)", "input_tokens_per_s"),
    (r"total (?:throughput|tps|tokens s)", "total_tokens_per_s"),
    (r"(?:tokens|tok) s (?:per )?(?:gpu|device)|tgs", "tokens_per_s_per_device"),
    (r"output (?:throughput|tps|tokens s)", "output_tokens_per_s"),
    (r"mfu", "mfu"),
    (r"hfu", "hfu"),
    (r"mbu", "mbu"),
    (r"tflops?|gflops?|pflops?|flops", "model_flop_per_s_per_device"),
    (r"bus bandwidth|busbw", "bus_bandwidth_bytes_per_s"),
    (r"algbw|algorithm bandwidth", "algorithm_bandwidth_bytes_per_s"),
    (r"bandwidth|hbm", "hbm_bytes_per_s"),
    (r"kv cache", "kv_cache_bytes"),
    (r"(?:peak |max )?(?:gpu )?(?:mem|memory|vram)", "peak_memory_bytes"),
    (r"power", "power_w"),
    (r"energy", "energy_j"),
    (r"loss", "loss"),
    (r"latency|time|elapsed", "latency_s"),
    (r"duration|wall", "duration_s"),
    (r"throughput|tokens s|tok s|tps|t s|speed", "output_tokens_per_s"),
)
_USE_WORDS: tuple[tuple[str, Use], ...] = (
    (r"batch|batch size|bs|micro batch(?: size)?|mbs", "batch"),
    (r"concurrency|max concurrency|num users|users|clients|concurrent requests", "concurrency"),
    (r"(?:input|prompt|isl)(?: len(?:gth)?| tokens)?|seq(?:uence)? ?len(?:gth)?", "input_len"),
    (r"(?:output|generation|gen|osl)(?: len(?:gth)?| tokens)?|max (?:new )?tokens", "output_len"),
    (r"context(?: len(?:gth)?)?|ctx|kv len", "context_len"),
    (r"model|modell|model (?:name|id)|checkpoint|network", "model"),
    (r"hardware|gpu|device|gpu (?:name|type|model)|accelerator|machine type", "hardware"),
    (r"dtype|data type|precision|quant(?:ization)?", "precision"),
    (r"name|test|case|benchmark|run|experiment|label|id|kernel|config|variant|provider", "name"),
)


def view_of(table: Table) -> TableView:
    """What a person is asked: columns with some cells and a guess each."""
    some = table.rows[:_GUESS_ROWS]
    decimal = _decimal_of(some)
    columns: list[TableColumn] = []
    taken: set[tuple[str, str | None]] = set()
    named = False
    for name in table.columns:
        cells = [cells[name] for _, cells in some if is_reported(cells.get(name))]
        numeric = sum(parse_number(cell, decimal) is not None for cell in cells) > len(cells) / 2
        secret = not numeric and (is_secret(name) or any(is_secret("", cell) for cell in cells))
        guess = Column() if secret else _guess(name, cells, decimal)
        if guess.metric is not None:
            if (guess.metric, guess.stat) in taken:
                guess = Column()
            taken.add((guess.metric or "", guess.stat))
        if guess.use == "name":
            guess = Column("series") if named else guess
            named = True
        samples = () if secret else tuple(clean(_written(cell), 60) for cell in cells[:_SAMPLES])
        columns.append(TableColumn(name, samples, guess, secret))
    return TableView(table.kind, len(table.rows), tuple(columns), decimal)


def _written(cell: Any) -> str:
    if isinstance(cell, str):
        return cell[:_MAX_CELL]
    if isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) >= 10**300:
        return "an integer of hundreds of digits"
    return str(cell)


def _guess(name: str, cells: Sequence[Any], decimal: str) -> Column:
    if not cells:
        return Column()
    unit, plain = _unit_in(name)
    numbers = [found for cell in cells if (found := parse_number(cell, decimal)) is not None]
    numeric = len(numbers) >= max(1, 0.5 * len(cells))
    use = next((use for pattern, use in _USE_WORDS if re.fullmatch(pattern, plain)), None)
    if use is not None and (numeric or use in ("model", "hardware", "precision", "name")):
        return Column(use)
    if not numeric:
        return Column("series") if len({_written(cell) for cell in cells}) > 1 else Column()
    if unit is None:
        unit = next((known for _, written in numbers if written and (known := known_unit(written))), None)
    stat = next((stat for pattern, stat in _STAT_WORDS if re.search(rf"\b(?:{pattern})\b", plain)), None)
    for pattern, metric in _METRIC_WORDS:
        if not re.search(rf"\b(?:{pattern})\b", plain):
            continue
        if unit is not None and factor_of(metric, unit) is None:
            continue
        return Column("metric", metric, stat, unit or _usual_unit(metric, numbers))
    if unit is not None:
        fallback = next((m for m in _BY_UNIT if factor_of(m, unit) is not None), None)
        if fallback is not None:
            return Column("metric", fallback, stat, unit)
    whole = all(number == int(number) for number, _ in numbers)
    return Column("series") if whole and len({number for number, _ in numbers}) > 1 else Column()


def _usual_unit(metric: str, numbers: Sequence[tuple[float, str]]) -> str:
    """The unit of a column that names none: its own SI unit, or nothing where that would be a bold guess."""
    if metric in ("mfu", "hfu", "mbu") and any(number > 1 for number, _ in numbers):
        return "%"
    unit = METRIC_UNITS[metric]
    return unit if unit in UNITS[unit] and unit not in _UNIT_NEEDED else ""


_BY_UNIT = (
    "latency_s",
    "output_tokens_per_s",
    "requests_per_s",
    "model_flop_per_s_per_device",
    "hbm_bytes_per_s",
    "power_w",
)
"""What a number in a unit is when its name says nothing."""


def _unit_in(name: str) -> tuple[str | None, str]:
    """The unit that a heading carries, and the rest of it in plain words."""
    unit: str | None = None
    rest = name
    if rate := _PER_SECOND.search(name):
        return known_unit(f"{rate[1]}/s"), _plain_words(f"{name[: rate.start()]} {rate[1]} s")
    for match in _UNIT_IN_NAME.finditer(name):
        if (unit := known_unit(match[1])) is not None:
            rest = name[: match.start()] + name[match.end() :]
            break
    if unit is None and not re.search(r"(?:tok|req|it|samples|images)[a-z]*[_\s.-]s$", name, re.IGNORECASE):
        ending = _UNIT_AT_END.search(name)
        if ending is not None and (unit := known_unit(ending[1])) is not None:
            rest = name[: ending.start()]
    if unit is None:
        unit = known_unit(name) if "/" in name else None
    return unit, _plain_words(rest)


def _plain_words(name: str) -> str:
    return " ".join(re.findall(r"[a-z0-9.]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))


# --- reading by a mapping ------------------------------------------------------------------------------------------


def mapping_problems(mapping: TableMapping) -> list[tuple[tuple[str, ...], str]]:
    """(Path in the mapping, what is wrong) for everything that keeps it from being used."""
    problems: list[tuple[tuple[str, ...], str]] = []
    taken: dict[tuple[str, str | None], str] = {}
    single: dict[str, str] = {}
    for name, column in mapping.columns.items():
        at = ("columns", name)
        if column.use != "metric":
            if column.use not in ("ignore", "series"):
                if column.use in single:
                    problems.append(((*at, "use"), f"{single[column.use]!r} is the {column.use} already"))
                single.setdefault(column.use, name)
            continue
        if column.metric not in METRIC_UNITS:
            problems.append(((*at, "metric"), "say which metric it is"))
            continue
        if column.stat is not None and column.stat not in STATS:
            problems.append(((*at, "stat"), f"must be one of {', '.join(STATS)}"))
        if factor_of(column.metric, column.unit) is None:
            units = ", ".join(unit for unit in UNITS[METRIC_UNITS[column.metric]] if unit)
            said = f"{column.unit[:40]!r} does not measure {column.metric}: use" if column.unit else "say the unit:"
            problems.append(((*at, "unit"), f"{said} {units}"))
        key = (column.metric, column.stat)
        if key in taken:
            problems.append(((*at, "metric"), f"{taken[key]!r} is that already: choose another statistic or metric"))
        taken.setdefault(key, name)
    if not taken and not problems:
        problems.append((("columns",), "at least one column must be a metric"))
    return problems


def read_table(content: Content, table: Table, mapping: TableMapping) -> ParsedUpload:
    """Every row as a run. Raises UnreadableUpload where no row has a value."""
    runs: list[ParsedRun] = []
    empty: list[str] = []
    unreadable: dict[str, int] = {}
    for place, cells in table.rows:
        run = _run(place, cells, mapping, unreadable, len(runs) + 1)
        if run is None:
            empty.append(place.removesuffix(": ") or "/")
        else:
            runs.append(run)
    if not runs:
        raise UnreadableUpload(
            "invalid",
            "No row of the table has a number in a column that is a metric.",
            hint="Check which columns are metrics, and the decimal sign.",
        )
    notes = [*text_findings(content)]
    if content.starts_as_json:
        notes += content.json.findings()
    if mapping.id:
        notes.append(
            Finding(
                "remembered-mapping",
                "info",
                "The columns were read as was said before for a file with the same columns.",
                (mapping.id,),
            )
        )
    if empty:
        notes.append(
            Finding(
                "rows-without-values",
                "warning",
                f"{len(empty)} of {len(table.rows)} rows have no value in any metric and were left out: "
                f"{listed(tuple(empty))}.",
            )
        )
    if unreadable:
        words = tuple(f"{name} ({count})" for name, count in unreadable.items())
        notes.append(
            Finding(
                "not-numbers",
                "warning",
                f"Cells that are no numbers, so their values are missing: {listed(words)}.",
                tuple(unreadable),
            )
        )
    if table.uneven:
        notes.append(
            Finding("uneven-rows", "warning", f"{table.uneven} rows do not fit the heading and were left out.")
        )
    return ParsedUpload(FORMAT, tuple(runs), tuple(notes), columns=table.columns)


@dataclass(slots=True)
class _Row:
    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    series: dict[str, float | str] = field(default_factory=dict)


def _run(
    place: str, cells: Mapping[str, Any], mapping: TableMapping, unreadable: dict[str, int], number: int
) -> ParsedRun | None:
    record = Fields(cells, place)
    row = _Row()
    for name, column in mapping.columns.items():
        cell = cells.get(name)
        if column.use == "ignore" or not is_reported(cell):
            continue
        if is_secret(name, cell) and parse_number(cell, mapping.decimal) is None:
            continue
        if column.use == "metric":
            _metric(record, name, cell, column, mapping.decimal, unreadable)
        elif column.use == "series":
            found = parse_number(cell, mapping.decimal)
            row.series[clean(name, 80)] = found[0] if found and not found[1] else clean(_written(cell), 120)
        elif column.use in ("name", "model", "hardware", "precision"):
            row.texts[column.use] = clean(_written(cell), 200)
        else:
            found = parse_number(cell, mapping.decimal)
            if found is None or found[0] < 0:
                unreadable[name] = unreadable.get(name, 0) + 1
            else:
                row.numbers[column.use] = found[0]
    if not record.metrics:
        return None
    precision = row.texts.get("precision", "").lower().replace("float", "fp").replace("bfp16", "bf16")
    axes = [f"{name} {_short(value)}" for name, value in row.series.items()]
    told = [f"{name.replace('_', ' ')} {_short(value)}" for name, value in row.numbers.items()]
    name = row.texts.get("name") or ", ".join((axes + told)[:4]) or f"row {number}"
    series: dict[str, float | str] = {**row.series, **row.numbers}
    extra = {} if precision in PRECISIONS or not precision else {"precision": row.texts["precision"]}
    checks = [*serving.check_latencies(record.metrics), *serving.check_rates(record)]
    return ParsedRun(
        name=clean(name, 200),
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode=mapping.mode,
            dtypes={"weights": precision} if precision in PRECISIONS else {},
            extra=extra,
            **{
                name: row.numbers.get(name)
                for name in ("batch", "concurrency", "input_len", "output_len", "context_len")
            },
        ),
        model_hint=model_name(row.texts["model"]) if "model" in row.texts else None,
        hardware_hint=row.texts.get("hardware"),
        series=series,
        findings=tuple(checks),
    )


def _metric(record: Fields, name: str, cell: Any, column: Column, decimal: str, unreadable: dict[str, int]) -> None:
    found = parse_number(cell, decimal)
    unit = column.unit
    if found is not None and found[1]:
        unit = known_unit(found[1]) or found[1]
    factor = None if found is None or column.metric is None else factor_of(column.metric, unit)
    if found is None or factor is None or column.metric is None:
        unreadable[name] = unreadable.get(name, 0) + 1
        return
    record.add(
        column.metric,
        found[0] * factor,
        at=record.at(name),
        raw=_written(cell),
        raw_unit=unit or METRIC_UNITS[column.metric],
        stat=column.stat,
    )


def _short(value: float | str) -> str:
    return value[:40] if isinstance(value, str) else f"{value:.6g}"


def with_mapping(
    content: Content,
    mappings: Mapping[str, TableMapping],
    chosen: TableMapping | None,
    refused: Callable[[TableView], UnreadableUpload],
) -> ParsedUpload | None:
    """The table in the content, read by the chosen mapping or a remembered one; None where there is no table.

    Raises what `refused` makes of a table that nothing explains.
    """
    table = table_of(content)
    if table is None:
        return None
    if len(table.rows) > content.limits.max_runs:
        raise UnreadableUpload(
            "too-large",
            f"The table has {len(table.rows):,} rows; at most {content.limits.max_runs:,} are read.",
            hint="Split it into several files, or keep the rows that matter.",
        )
    mapping = chosen or mappings.get(columns_key(table.columns))
    if mapping is None:
        raise refused(view_of(table))
    missing = [name for name, column in mapping.columns.items() if column.use != "ignore" and name not in table.columns]
    if missing:
        raise UnreadableUpload(
            "invalid",
            f"The mapping names columns that the table does not have: {listed(tuple(clean(n, 80) for n in missing))}.",
            hint=f"Its columns are {listed(table.columns)}.",
        )
    return read_table(content, table, replace(mapping, id="") if chosen is not None else mapping)
