"""Nsight Compute as CSV: the details page (a row for each metric) and the raw page (a column for each metric).

Both may stand in a program's output. A file holds one run whose kernels are its rows; launches of one name are added
up. Bytes and FLOP are what the counters say: a kernel whose counters leave part of its arithmetic out has no FLOP.
The peak rates of DRAM and L2 at the clocks of the measurement are taken where the report tells them: see `_peak`.
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
from app.importers.logs import text_findings
from app.importers.printed_tables import comma_is_decimal, csv_rows, number, unit_factor
from app.importers.reading import Content, clean
from app.importers.tables import whole_lines

_HEADER: Final = re.compile(r'^\ufeff?"?ID"?([,;])"?Process ID"?\1')
"""Spreadsheets of some locales part the columns by semicolons."""
_L2_SECTOR_BYTES: Final = 32
_TENSOR: Final = re.compile(r"sm__ops_path_tensor_\w+\.sum")
_TENSOR_BUSY: Final = re.compile(r"sm__(?:pipe_tensor|inst_executed_pipe_tensor)\w*\.(?:avg|sum)(?:\.pct\w*)?")
_SASS: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_VECTOR: Final = (("fadd", 1), ("fmul", 1), ("ffma", 2), ("dadd", 1), ("dmul", 1), ("dfma", 2))

_RATIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "dram_throughput": (
        "GPU Speed Of Light Throughput/DRAM Throughput",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "compute_throughput": (
        "GPU Speed Of Light Throughput/Compute (SM) Throughput",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "memory_throughput": (
        "GPU Speed Of Light Throughput/Memory Throughput",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "l2_throughput": (
        "GPU Speed Of Light Throughput/L2 Cache Throughput",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "l2_hit_rate": ("Memory Workload Analysis/L2 Hit Rate", "lts__t_sector_hit_rate.pct"),
    "occupancy": ("Occupancy/Achieved Occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    "occupancy_limit": ("Occupancy/Theoretical Occupancy", "sm__maximum_warps_per_active_cycle_pct"),
}
"""Ratios of a launch by our name and where they stand: section and metric of the details page, or the metric itself."""

_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "sm_frequency_hz": ("GPU Speed Of Light Throughput/SM Frequency", "smsp__cycles_elapsed.avg.per_second"),
    "dram_frequency_hz": ("GPU Speed Of Light Throughput/DRAM Frequency", "dram__cycles_elapsed.avg.per_second"),
    "registers": ("Launch Statistics/Registers Per Thread", "launch__registers_per_thread"),
    "waves_per_sm": ("Launch Statistics/Waves Per SM", "launch__waves_per_multiprocessor"),
}

_OLD_NAMES: Final[Mapping[str, str]] = {
    "Memory Frequency": "DRAM Frequency",
    "SOL FB": "DRAM Throughput",
    "SOL DRAM": "DRAM Throughput",
    "SOL L2": "L2 Cache Throughput",
    "SOL L2 Cache": "L2 Cache Throughput",
    "SM [%]": "Compute (SM) Throughput",
    "SOL SM": "Compute (SM) Throughput",
    "Memory [%]": "Memory Throughput",
    "SOL Memory": "Memory Throughput",
}
"""Words of the section "GPU Speed Of Light" until 2021, and what the newer "... Throughput" calls the same."""

_DURATION: Final = ("GPU Speed Of Light Throughput/Duration", "gpu__time_duration.sum", "gpu__time_duration.avg")


@dataclass(slots=True)
class _Launch:
    """One profiled launch. `values` are in SI (or a plain number) under "section/metric" or the metric's own name."""

    name: str
    line: int
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    raw: dict[str, tuple[str, str]] = field(default_factory=dict)

    def first(self, names: tuple[str, ...]) -> float | None:
        return next((self.values[name] for name in names if name in self.values), None)


class NcuCsv:
    """The importer; see the module."""

    id = "ncu-csv"
    title = "Nsight Compute CSV"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        """The header of either page; a program's output may stand before it."""
        found = any(_HEADER.match(line) for line in content.head.split("\n"))
        return (
            Sniff(0.95, "the header of an Nsight Compute page") if found else Sniff(0, "no header with ID, Process ID")
        )

    def parse(self, content: Content) -> ParsedUpload:
        """One run with a row for each kernel name. Raises UnreadableUpload without any kernel that has a duration."""
        separator = next((header[1] for line in content.lines if (header := _HEADER.match(line))), ",")
        launches, problems = _launches(whole_lines(content, separator))
        timed = [launch for launch in launches if launch.first(_DURATION)]
        if not timed:
            raise UnreadableUpload(
                "invalid",
                "This is a page of Nsight Compute without the duration of any kernel.",
                hint="Profile with the section SpeedOfLight or the metric gpu__time_duration.sum.",
            )
        findings = list(problems)
        if len(timed) < len(launches):
            findings.append(
                Finding(
                    "no-duration",
                    "warning",
                    f"{len(launches) - len(timed):,} of {len(launches):,} launches have no duration and were left out.",
                )
            )
        findings.append(
            Finding(
                "profiled-alone",
                "info",
                "Nsight Compute times each kernel alone, with flushed caches and by default at base clocks: these "
                "times are not those of the kernels in a running program.",
                ("kernel_time_s",),
            )
        )
        rows = kernel_rows.with_shares(_rows(timed))
        findings += kernel_rows.too_many_names(len({launch.name for launch in timed}))
        record = Fields({})
        time = sum(launch.first(_DURATION) or 0.0 for launch in timed)
        record.add(
            "kernel_time_s",
            time,
            at=f"line {timed[0].line}",
            raw=_said(timed)[0],
            raw_unit=_said(timed)[1],
            count=len(timed),
        )
        moved = [_dram_bytes(launch) for launch in timed]
        if all(size is not None for size in moved) and time > 0:
            record.add(
                "hbm_bytes_per_s",
                sum(size or 0.0 for size in moved) / time,
                at=f"line {timed[0].line}",
                raw="bytes of all kernels over their time",
                raw_unit="B/s",
            )
        texts = {key: value for launch in timed for key, value in launch.texts.items()}
        run = ParsedRun(
            name=_title(content),
            metrics=tuple(record.metrics),
            workload=RunWorkload(mode="kernel", extra={k: v for k, v in texts.items() if k == "compute_capability"}),
            hardware_hint=texts.get("device"),
            software={"profiler": "Nsight Compute"},
            kernels=rows,
            findings=tuple(findings),
        )
        return ParsedUpload(self.id, (run,), text_findings(content))


def _title(content: Content) -> str:
    name = re.sub(r"\.(?:csv|log|txt)(?:\.gz)?$", "", content.filename or "", flags=re.IGNORECASE)
    return clean(name.replace("\\", "/").rsplit("/", 1)[-1], 120) or "kernels"


def _said(timed: list[_Launch]) -> tuple[str, str]:
    """What the file writes as the duration of the only kernel, else that durations were added; and the unit."""
    text, unit = next(timed[0].raw[name] for name in _DURATION if name in timed[0].raw)
    return (text if len(timed) == 1 else f"durations of {len(timed)} launches, added"), unit or "s"


def _launches(lines: list[str]) -> tuple[list[_Launch], list[Finding]]:
    found: dict[tuple[int, str, str, str], _Launch] = {}
    comma = comma_is_decimal(_number_texts(lines))
    table, last_header, units = 0, None, dict[str, str]()
    for line, header, row in csv_rows(lines, _HEADER, "Metric Value"):
        if header is not last_header:
            table, last_header, units = table + 1, header, {}
        cells = dict(zip(header, row, strict=True))
        if not cells.get("ID", "").strip().isdigit():
            if not units and "Metric Name" not in cells:  # the second row of the raw page holds the units
                units = cells
            continue
        name = kernel_rows.kernel_name(cells.get("Kernel Name", "").strip())
        key = (table, cells["ID"], cells.get("Process ID", ""), name)
        launch = found.get(key)
        if launch is None:
            launch = found[key] = _Launch(name, line)
            if capability := clean(cells.get("CC", ""), 10):
                launch.texts["compute_capability"] = capability
        if "Metric Name" in cells:
            metric = cells["Metric Name"].strip()
            if metric:
                section = cells.get("Section Name", "").strip()
                if section == "GPU Speed Of Light":
                    section, metric = f"{section} Throughput", _OLD_NAMES.get(metric, metric)
                _keep(launch, metric, cells.get("Metric Unit", ""), cells.get("Metric Value", ""), comma, section)
        else:
            for metric, text in cells.items():
                if "__" in metric and text:
                    _keep(launch, metric, units.get(metric, ""), text, comma, "")
            if device := clean(cells.get("device__attribute_display_name", ""), 200):
                launch.texts["device"] = device
    noted = []
    if comma:
        noted.append(Finding("decimal-comma", "info", "The numbers have a decimal comma and were read that way."))
    return list(found.values()), noted


def _number_texts(lines: list[str]) -> Iterator[str]:
    """Texts that tell how numbers are written: values of the details page, all cells of a raw page."""
    for _, header, row in csv_rows(lines, _HEADER, "Metric Value"):
        if "Metric Value" in header:
            yield row[header.index("Metric Value")]
        else:
            yield from row[11:]


def _keep(launch: _Launch, metric: str, unit: str, text: str, comma: bool, section: str) -> None:
    value = number(text, comma)
    if value is None:
        return
    scale = unit_factor(unit)
    value *= scale[0] if scale else 1.0
    # the same words name a share of the peak in one section and a rate in another
    keys = [f"{section}/{metric}"] if section else []
    if "__" in metric:
        keys = [metric]
    elif scale and scale[1] == "B/s":
        keys = [f"{section}/{metric} rate"]
    for key in keys:
        launch.values.setdefault(key, value)
        launch.raw.setdefault(key, (text.strip(), unit.strip()))


def _dram_bytes(launch: _Launch) -> float | None:
    values = launch.values
    if "dram__bytes.sum" in values:
        return values["dram__bytes.sum"]
    if "dram__bytes_read.sum" in values and "dram__bytes_write.sum" in values:
        return values["dram__bytes_read.sum"] + values["dram__bytes_write.sum"]
    rate = launch.first(("dram__bytes.sum.per_second", "Memory Workload Analysis/Memory Throughput rate"))
    time = launch.first(_DURATION)
    return None if rate is None or time is None else rate * time


def _l2_bytes(launch: _Launch) -> float | None:
    if "lts__t_bytes.sum" in launch.values:
        return launch.values["lts__t_bytes.sum"]
    sectors = launch.values.get("lts__t_sectors.sum")
    return None if sectors is None else sectors * _L2_SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class _Level:
    """Where a report tells how much a level of memory could move: `counters` are of its bytes (or 32-byte sectors)."""

    key: str
    unit: str
    counters: tuple[tuple[str, float], ...]
    clocks: tuple[str, ...]
    ratio: str


_LEVELS: Final = (
    _Level(
        "dram",
        "dram",
        (("dram__bytes.sum", 1.0), ("dram__bytes_read.sum", 1.0), ("dram__bytes_write.sum", 1.0)),
        ("dram__cycles_elapsed.avg.per_second", "GPU Speed Of Light Throughput/DRAM Frequency"),
        "dram_throughput",
    ),
    _Level(
        "l2",
        "lts",
        (("lts__t_bytes.sum", 1.0), ("lts__t_sectors.sum", float(_L2_SECTOR_BYTES))),
        ("lts__cycles_elapsed.avg.per_second",),
        "l2_throughput",
    ),
)
_LEAST_RATIO: Final = 0.01
"""Shares of a peak below this are too coarsely rounded to divide by."""


def _peak(launch: _Launch, level: _Level, moved: float | None) -> tuple[float, str] | None:
    """The most that a level could move, B/s at the clocks of this launch, and how the report tells it.

    "peak": the counter's own peak a cycle, times the clock; "share": the counter over its share of that peak;
    "throughput": bytes over the level's throughput, which is that of its busiest part and therefore at most the peak.
    """
    values, time = launch.values, launch.first(_DURATION)
    clock = launch.first(level.clocks)
    if clock is None and time and f"{level.unit}__cycles_elapsed.avg" in values:
        clock = values[f"{level.unit}__cycles_elapsed.avg"] / time
    for counter, size in level.counters[:1] if level.key == "dram" else level.counters:
        if clock and (a_cycle := values.get(f"{counter}.peak_sustained")):
            return a_cycle * size * clock, "peak"
    if not time:
        return None
    for counter, size in level.counters:
        for statistic in ("sum", "avg"):
            share = values.get(f"{counter.removesuffix('.sum')}.{statistic}.pct_of_peak_sustained_elapsed", 0.0)
            if share >= _LEAST_RATIO and counter in values:
                return values[counter] * size / time / share, "share"
    busiest = launch.first(_RATIOS[level.ratio])
    if moved and busiest is not None and busiest >= _LEAST_RATIO:
        return moved / time / busiest, "throughput"
    return None


def _vector_flop(launch: _Launch) -> tuple[float, bool]:
    """FLOP of the vector units by the counters, and whether adds, products and fused ones in fp32 are all there."""
    cycles = launch.values.get("smsp__cycles_elapsed.avg")
    flop, stated = 0.0, set()
    for op, weight in _VECTOR:
        metric = _SASS.format(op)
        count = launch.values.get(metric)
        if count is None and cycles is not None and f"{metric}.per_cycle_elapsed" in launch.values:
            count = launch.values[f"{metric}.per_cycle_elapsed"] * cycles
        if count is not None:
            flop += weight * count
            stated.add(op)
    return flop, {"fadd", "fmul", "ffma"} <= stated


def _flop(launch: _Launch) -> tuple[float | None, str | None]:
    """FLOP of a launch and the format of its products; None where the counters leave part of them out."""
    tensor = {name: value for name, value in launch.values.items() if _TENSOR.fullmatch(name)}
    vector, whole = _vector_flop(launch)
    done = sum(tensor.values())
    if done > 0:
        largest = max(tensor, key=lambda name: tensor[name])
        kind = re.search(r"src_(bf16|fp16|tf32|fp8|fp64|int8|fp4|fp6)", largest)
        return done + vector, kind[1] if kind else None
    if not whole:
        return None, None
    used = any(value > 0 for name, value in launch.values.items() if _TENSOR_BUSY.fullmatch(name))
    return (None, None) if used and not tensor else (vector, "fp32" if vector > 0 else None)


def _rows(timed: list[_Launch]) -> list[dict[str, Any]]:
    by_name: dict[str, list[_Launch]] = {}
    for launch in timed:
        by_name.setdefault(launch.name, []).append(launch)
    return [_row(name, launches) for name, launches in by_name.items()]


def _row(name: str, launches: list[_Launch]) -> dict[str, Any]:
    times = [launch.first(_DURATION) or 0.0 for launch in launches]
    total = sum(times)
    row: dict[str, Any] = {
        "name": name,
        "count": len(launches),
        "time_s": total,
        "mean_s": total / len(launches),
        "min_s": min(times),
        "max_s": max(times),
        "line": launches[0].line,
    }
    done = [_flop(launch) for launch in launches]
    sums = {
        "flop": [flop for flop, _ in done],
        "hbm_bytes": [_dram_bytes(launch) for launch in launches],
        "l2_bytes": [_l2_bytes(launch) for launch in launches],
    }
    for key, values in sums.items():
        if all(value is not None for value in values):
            row[key] = float(sum(value or 0.0 for value in values))
            row["work_from"] = "counters"
    for level, moved in zip(_LEVELS, (sums["hbm_bytes"], sums["l2_bytes"]), strict=True):
        told = [_peak(launch, level, size) for launch, size in zip(launches, moved, strict=True)]
        if peaks := [peak for peak in told if peak is not None]:
            firm = [peak for peak in peaks if peak[1] != "throughput"] or peaks
            row[f"{level.key}_peak_bytes_per_s"], row[f"{level.key}_peak_from"] = max(firm)
    kinds = {kind for _, kind in done}
    if len(kinds) == 1 and (only := kinds.pop()) is not None and "flop" in row:
        row["precision"] = only
    for key, places in (*_RATIOS.items(), *_OTHERS.items()):
        known = [launch.first(places) for launch in launches]
        if len(set(known)) == 1 and known[0] is not None:
            row[key] = known[0]
        elif total > 0 and all(value is not None for value in known):
            row[key] = sum((value or 0.0) * time for value, time in zip(known, times, strict=True)) / total
    return row
