"""CSV of Triton's `perf_report` and of harnesses around `do_bench` that save the same shape.

Shape of triton-lang/triton, python/triton/testing.py: the x columns, then one column a provider; a fork's file of
2023 was at hand. Newer versions write the unit behind the provider's name (`Triton (TFLOPS)`), older ones nothing:
then it is concluded from how the numbers grow with the work, and a finding says so. `do_bench` gives milliseconds.
One run is one provider; the rows are its sizes. Neither device nor precision is in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from app.domain.run import Finding
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import as_float
from app.importers.logs import log_number, text_findings
from app.importers.reading import Content, clean
from app.importers.sweep import Axis, Point, Reading, most_runs, size_words, sweep_run
from app.importers.tables import csv_rows, header_of

_UNIT = re.compile(
    r"^(.{1,80}?)\s*[(\[]\s*(TFLOPS|TFLOP/s|TFLOPs/s|GFLOPS|GFLOP/s|GB/s|GBPS|TB/s|ms|us|µs|s)\s*[)\]]$", re.I
)
_UNITS: dict[str, tuple[str, float, str]] = {
    "tflops": ("model_flop_per_s_per_device", 1e12, "TFLOP/s"),
    "tflop/s": ("model_flop_per_s_per_device", 1e12, "TFLOP/s"),
    "tflops/s": ("model_flop_per_s_per_device", 1e12, "TFLOP/s"),
    "gflops": ("model_flop_per_s_per_device", 1e9, "GFLOP/s"),
    "gflop/s": ("model_flop_per_s_per_device", 1e9, "GFLOP/s"),
    "gb/s": ("hbm_bytes_per_s", 1e9, "GB/s"),
    "gbps": ("hbm_bytes_per_s", 1e9, "GB/s"),
    "tb/s": ("hbm_bytes_per_s", 1e12, "TB/s"),
    "ms": ("kernel_time_s", 1e-3, "ms"),
    "us": ("kernel_time_s", 1e-6, "us"),
    "µs": ("kernel_time_s", 1e-6, "us"),
    "s": ("kernel_time_s", 1.0, "s"),
}
_PROVIDER = re.compile(
    r"triton|torch|cublas|rocblas|hipblas|cudnn|cutlass|flash|liger|naive|(?<![a-z])(?:native|ref|hip)|fused|eager|compile"
    r"|inductor|apex|xformers|huggingface|tilelang|vllm|sglang|deepgemm|flashinfer|cuda",
    re.I,
)
_OF_A_SERVICE = re.compile(
    r"(?:tok(?:en)?|req(?:uest)?|sample|image|step|prompt|it)s?\s*(?:/|_?per_?)\s*s|(?<![a-z])(?:ttft|tpot|itl|e2el?|tps|qps|rps)"
    r"(?![a-z])|concurrency",
    re.I,
)
"""What a harness for serving or training writes into the names of its columns, and none for kernels does."""
_QUANTITY = re.compile(
    r"(?<![a-z])(?:lat|latency|throughput|time|duration|speed|mem|memory|vram|power|loss|mfu|util\w*|mean|median|avg|std|p\d\d)"
    r"(?![a-z])",
    re.I,
)
"""Names that say what was measured, where perf_report has who did it."""
_SIZE_NAME = re.compile(
    r"[MNKBHSTDLE]|N_CTX|BATCH|HEADS?|D_HEAD|HEAD_DIM|size|n_elements|num_\w{1,20}|seq_?len|batch_?size|hidden_?\w{0,8}"
    r"|vocab_?\w{0,8}|dim|\w{1,12}_size|\w{1,12}_len|tokens|rows|cols|n|m|k",
    re.I,
)
_SPREAD = re.compile(r"^(.*?)-(min|max)$")
_Y = (
    Axis("time_s", "Time", "s"),
    Axis("model_flop_per_s_per_device", "Rate", "FLOP/s"),
    Axis("hbm_bytes_per_s", "Bandwidth", "B/s"),
)


class TritonPerfReport:
    id = "triton-perf-report"
    title = "Triton perf_report or do_bench CSV"
    tried_on_real_file = True

    def sniff(self, content: Content) -> Sniff:
        table = _table(content.head, most=40)
        if table is None:
            return Sniff(0.0, "no CSV of sizes and one column a provider")
        names, providers = table
        for place in providers:
            name = names[place]
            if _OF_A_SERVICE.search(name) or (_QUANTITY.search(name) and not _PROVIDER.search(name)):
                return Sniff(0.0, f"a CSV of numbers whose column {clean(name, 40)} names a quantity, not a provider")
        named = any(_UNIT.match(names[p]) or _PROVIDER.search(names[p]) for p in providers)
        if named and all(_SIZE_NAME.fullmatch(names[x]) for x in range(min(providers)) if names[x]):
            return Sniff(0.6, "a CSV of sizes and one column a provider")
        return Sniff(0.0, "a CSV of numbers, but none of its columns is named after a kernel's provider or has a unit")

    def parse(self, content: Content) -> ParsedUpload:
        names, separator = header_of(next(line for line in content.head.split("\n") if line.strip()).rstrip("\r"))
        table = _table(content.head, most=40)
        if table is None:
            raise UnreadableUpload("invalid", "This CSV has no column of numbers beside its sizes.")
        providers = table[1]
        xs = [place for place in range(min(providers)) if names[place]]
        rows: list[tuple[int, list[float | None]]] = []
        unread: list[int] = []
        for number, cells in csv_rows(content, names, separator):
            if cells is None:
                unread.append(number)
            else:
                rows.append((number, [_number(cell, separator) for cell in cells]))
        most_runs(len(providers), content.limits.max_runs)
        work = _work(xs, rows)
        groups = _spreads(names, providers)
        runs = []
        for place, spread in groups.items():
            points, findings = _points(names, xs, rows, place, spread, work)
            if not points:
                continue
            if unread:
                shown = ", ".join(str(n) for n in unread[:5])
                findings.append(
                    Finding(
                        "rows-unread", "warning", f"{len(unread)} row(s) have another number of cells (line {shown})."
                    )
                )
            x = max(xs, key=lambda p: len({row[p] for _, row in rows}))
            others = [names[p] for p in xs if p != x and _free(rows, x, p)]
            provider = _provider(names[place])
            head = max(points, key=lambda p: float(p.other["work"]))
            for point in points:
                del point.other["work"]
            findings += serving.facts_finding(
                {"hardware": "device", "dtypes": "precision", "kernel": "which kernel it is"}
            )
            runs.append(
                sweep_run(
                    f"{provider}, {', '.join(f'{names[p]} {size_words(float(head.x[names[p]]))}' for p in xs)}",
                    points,
                    family="kernel",
                    x=Axis(names[x], names[x]),
                    y=_Y,
                    group="report",
                    label=provider,
                    lines=others,
                    head=head,
                    extra={"provider": provider, "columns": ", ".join(names[p] for p in xs)},
                    series={"provider": provider} | dict(head.x),
                    findings=findings,
                )
            )
        if not runs:
            raise UnreadableUpload("invalid", "No column of this CSV holds a finite number.")
        return ParsedUpload(self.id, tuple(runs), text_findings(content))


def _number(cell: str, separator: str) -> float | None:
    value = log_number(cell) if separator != "," else as_float(cell)
    return value if value is not None and math.isfinite(value) else None


def _table(text: str, most: int) -> tuple[list[str], list[int]] | None:
    """The header and the places of the provider columns; None where the text is no such table.

    x columns come first and hold whole numbers; at least one column is left to be a provider's.
    """
    lines = [line for line in text.replace("\r", "").split("\n") if line.strip()][:most]
    if len(lines) < 2:
        return None
    names, separator = header_of(lines[0])
    names = [clean(name, 60) for name in names]
    if not 2 <= len(names) <= 40 or any(as_float(name) is not None for name in names if name):
        return None
    rows = [line.split(separator) for line in lines[1:]]
    good = [[_number(cell.strip(), separator) for cell in row] for row in rows if len(row) == len(names)]
    if not good or len(good) < len(rows) - 1 or len(set(names)) != len(names):
        return None
    first = 1
    while first < len(names) - 1 and _is_size(names[first], [row[first] for row in good]):
        first += 1
    if not _is_size(names[0], [row[0] for row in good]) or all(v is None for row in good for v in row[first:]):
        return None
    if not names[0]:  # the index of a data frame
        first = max(first, 2)
        if first >= len(names):
            return None
    return names, list(range(first, len(names)))


def _is_size(name: str, values: Sequence[float | None]) -> bool:
    if _UNIT.match(name) or _PROVIDER.search(name):
        return False
    return all(value is not None and value == int(value) and value >= 0 for value in values)


def _free(rows: Sequence[tuple[int, list[float | None]]], x: int, other: int) -> bool:
    """Whether a column takes several values at one value of x: only then does it part the rows into lines."""
    seen: dict[float | None, set[float | None]] = {}
    for _, row in rows:
        seen.setdefault(row[x], set()).add(row[other])
    return any(len(values) > 1 for values in seen.values())


def _spreads(names: Sequence[str], providers: Sequence[int]) -> dict[int, dict[str, int]]:
    """Providers' columns, each with the columns of its least and largest value where the file has them."""
    places = {names[p]: p for p in providers}
    found: dict[int, dict[str, int]] = {}
    for place in providers:
        match = _SPREAD.match(names[place])
        if match and match[1] in places:
            continue
        found[place] = {
            word: places[f"{names[place]}-{word}"] for word in ("min", "max") if f"{names[place]}-{word}" in places
        }
    return found


def _provider(name: str) -> str:
    match = _UNIT.match(name)
    return match[1].strip() if match else name


def _work(xs: Sequence[int], rows: Sequence[tuple[int, list[float | None]]]) -> list[float]:
    """What each row has to do, up to a factor: the product of its sizes."""
    return [math.prod(float(row[p] or 1.0) for p in xs) for _, row in rows]


def _points(
    names: Sequence[str],
    xs: Sequence[int],
    rows: Sequence[tuple[int, list[float | None]]],
    place: int,
    spread: dict[str, int],
    work: Sequence[float],
) -> tuple[list[Point], list[Finding]]:
    told = _UNIT.match(names[place])
    findings: list[Finding] = []
    if told:
        metric, scale, unit = _UNITS[told[2].lower()]
    else:
        column = [(work[i], row[place]) for i, (_, row) in enumerate(rows)]
        metric, scale, unit, why = _concluded(names, xs, [(w, v) for w, v in column if v is not None and v > 0])
        findings.append(
            Finding(
                "unit-concluded",
                "warning",
                f"The file states no unit; its numbers are read as {unit}, because {why}. A newer Triton writes the "
                "unit into the header.",
                (metric,),
            )
        )
    points: list[Point] = []
    for index, (number, row) in enumerate(rows):
        value = row[place]
        if value is None or value <= 0:  # a provider that did not run is nan or 0
            continue
        x: dict[str, float | str] = {names[p]: float(row[p] or 0.0) for p in xs}
        readings = {metric: Reading(value * scale, f"{value!r}", unit)}
        for word, where in spread.items():
            extreme = row[where]
            if extreme is not None and extreme > 0:
                readings[f"{metric}.{word}"] = Reading(extreme * scale, f"{extreme!r}", unit)
        name = ", ".join(f"{key} {size_words(told_x)}" for key, told_x in x.items() if isinstance(told_x, float))
        points.append(Point(f"line {number}", x, readings, {"work": work[index]}, name))
    return points, findings


def _concluded(
    names: Sequence[str], xs: Sequence[int], column: Sequence[tuple[float, float]]
) -> tuple[str, float, str, str]:
    """Metric, scale, unit and reason for numbers without a unit: a time grows with the work, a rate levels off."""
    if len(column) > 1:
        least, most = min(column), max(column)
        grown = most[0] / least[0] if least[0] > 0 else 1.0
        if grown >= 4 and most[1] / least[1] > grown**0.75:
            return (
                "kernel_time_s",
                1e-3,
                "ms",
                "they grow with the sizes as a time does, and do_bench gives milliseconds",
            )
    sizes = {names[p].upper() for p in xs}
    if len({"M", "N", "K"} & sizes) == 3 or {"N_CTX"} & sizes or len(xs) >= 3:
        return (
            "model_flop_per_s_per_device",
            1e12,
            "TFLOP/s",
            "they level off while the sizes grow, as a rate of products does",
        )
    return (
        "hbm_bytes_per_s",
        1e9,
        "GB/s",
        "they level off while one size grows, as the bandwidth of an element-wise kernel does",
    )
