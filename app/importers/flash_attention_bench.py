"""What FlashAttention's benchmark scripts print.

Lines of Dao-AILab/flash-attention: benchmarks/benchmark_flash_attention.py (version 2: rates),
hopper/benchmark_attn.py (versions 3 and 4: times and rates); texts from its threads were at hand. FLOP are 4 x batch
x heads x sequence squared x head size, half of it when causal, and the backward pass counts two and a half times
that. One run is one implementation and pass; the shapes are its rows. A rate of 0.00 means that the script did not
run that case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from app.domain.run import ParsedRun
from app.importers import serving
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import as_float
from app.importers.logs import NUMBER, TERA, log_lines, log_number, text_findings
from app.importers.reading import Content, clean
from app.importers.sweep import Axis, Point, Reading, most_runs, sweep_run

_SHAPE = re.compile(
    r"\b(causal|headdim|headdim_v|batch_size|seqlen|seqlen_q|nheads|nheads_kv|varlen|window\w*)\s*=\s*([\w.-]{1,20})"
)
_PASS = re.compile(
    r"\b(fwd \+ bwd|fwd|bwd)\s*:\s*(?:(" + NUMBER + r")\s*ms\s*,\s*)?(" + NUMBER + r")\s*TFLOPs?(?:/s)?"
    r"(?:\s*,\s*(" + NUMBER + r")\s*ms)?",
    re.I,
)
_VARIANT = re.compile(r"^\s*\[([^\]]{1,60})\]\s*")
_HEADER = ("### causal=", "### headdim", "headdim =", "headdim=")
_WORDS = {"fwd": "forward", "bwd": "backward", "fwd + bwd": "forward and backward"}
_Y = (Axis("model_flop_per_s_per_device", "Rate", "FLOP/s"), Axis("time_s", "Time", "s"))


class FlashAttentionBench:
    id = "flash-attention-bench"
    title = "FlashAttention benchmark output"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        text = content.text
        if any(mark in text for mark in _HEADER) and _PASS.search(text):
            return Sniff(0.8, "shapes with headdim and rates in TFLOP/s")
        return Sniff(0.0, "no line of shapes (headdim = …) with rates in TFLOP/s")

    def parse(self, content: Content) -> ParsedUpload:
        subjects: dict[tuple[str, str], list[Point]] = {}
        shape: dict[str, float | str] = {}
        not_run: dict[tuple[str, str], int] = {}
        for number, line in log_lines(content):
            told = dict(_SHAPE.findall(line))
            if "headdim" in told:
                shape = _shape(told)
                continue
            first = _PASS.search(line)
            if first is None or not shape:
                continue
            name = _implementation(line[: first.start()])
            for direction, before, rate, after in _PASS.findall(line):
                key = (name, direction.lower())
                point = _point(shape, number, before or after, rate)
                if point is None:
                    not_run[key] = not_run.get(key, 0) + 1
                else:
                    subjects.setdefault(key, []).append(point)
        most_runs(len(subjects), content.limits.max_runs)
        if not subjects:
            raise UnreadableUpload("invalid", "This is FlashAttention output without a case that ran.")
        runs = tuple(_run(key, points, not_run.get(key, 0)) for key, points in subjects.items())
        return ParsedUpload(self.id, runs, text_findings(content))


def _shape(told: Mapping[str, str]) -> dict[str, float | str]:
    shape: dict[str, float | str] = {}
    for key, value in told.items():
        number = as_float(value)
        if number is not None and math.isfinite(number):
            shape[key] = number
        else:
            shape[key] = value.lower() if value in ("True", "False") else clean(value, 20)
    if "seqlen" not in shape and "seqlen_q" in shape:
        shape["seqlen"] = shape.pop("seqlen_q")
    return shape


def _implementation(text: str) -> str:
    """`FA Python` of `[2CTA] FA Python`, with the variant behind it."""
    match = _VARIANT.match(text)
    name = clean((text[match.end() :] if match else text).strip(" ,:#"), 60) or "attention"
    return f"{name} ({clean(match[1], 60)})" if match else name


def _point(shape: Mapping[str, float | str], number: int, time: str, rate: str) -> Point | None:
    flops, took = log_number(rate), log_number(time) if time else None
    readings: dict[str, Reading] = {}
    if took is not None and math.isfinite(took) and took > 0:
        readings["kernel_time_s"] = Reading(took * 1e-3, time, "ms")
    if flops is not None and math.isfinite(flops) and flops > 0:
        readings["model_flop_per_s_per_device"] = Reading(flops * TERA, rate, "TFLOP/s")
    if not readings:
        return None
    return Point(f"line {number}", dict(shape), readings)


def _words(shape: Mapping[str, float | str]) -> str:
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in shape.items())


def _run(key: tuple[str, str], points: list[Point], not_run: int) -> ParsedRun:
    name, direction = key
    x = "seqlen" if any("seqlen" in point.x for point in points) else "headdim"
    keys = list(dict.fromkeys(k for point in points for k in point.x))
    # The batch follows from the sequence length in these scripts (a fixed number of tokens): that parts no lines.
    lines = [k for k in keys if k != x and _parts(points, x, k)]
    if len(lines) > 1 and "batch_size" in lines:
        lines.remove("batch_size")
    varying = [k for k in keys if len({str(point.x.get(k)) for point in points}) > 1] or [x]
    for point in points:
        point.name = _words({k: v for k, v in point.x.items() if k in varying})
    sized = [point for point in points if isinstance(point.x.get(x), float)]
    head = max(sized, key=lambda point: float(point.x[x])) if sized else points[-1]
    shape = _words({k: v for k, v in head.x.items() if k in (x, *lines)})
    constant = {k: v for k, v in head.x.items() if k != x and len({str(p.x.get(k)) for p in points}) == 1}
    series: dict[str, float | str] = {"implementation": name, "pass": _WORDS[direction]}
    series |= {k: v for k, v in head.x.items() if k in lines}
    return sweep_run(
        f"{name} {_WORDS[direction]}, {shape}" if shape else f"{name} {_WORDS[direction]}",
        points,
        family="attention",
        x=Axis(x, "Sequence length" if x == "seqlen" else "Head size"),
        y=_Y,
        group=f"attention {direction}",
        label=name,
        lines=lines,
        head=head,
        extra={"implementation": name, "pass": _WORDS[direction], "cases_not_run": not_run or None} | constant,
        series=series,
        software={"benchmark": "flash-attention"},
        findings=serving.facts_finding({"hardware": "device", "dtypes": "precision", "version": "version"}),
    )


def _parts(points: list[Point], x: str, key: str) -> bool:
    seen: dict[str, set[str]] = {}
    for point in points:
        seen.setdefault(str(point.x.get(x)), set()).add(str(point.x.get(key)))
    return any(len(values) > 1 for values in seen.values())
