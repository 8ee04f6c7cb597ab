"""What logs have in common: lines with colours and prefixes, numbers as people print them, steps of training.

A training log is read line by line. Of every metric a bounded number of values is kept; count, mean, deviation and
extremes are exact however long the log is, percentiles are those of the kept values.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.run import METRIC_UNITS, Finding, ParsedRun, RunWorkload
from app.importers import serving
from app.importers.base import UnreadableUpload
from app.importers.fields import Fields
from app.importers.reading import Content, clean
from app.importers.spelled_out import with_words

TERA = 1e12
MILLI = 1e-3

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07|\[(?:\d{1,3};?){1,4}m")
"""Terminal colours; the last form has lost its escape character, as copied logs have."""

NUMBER = r"[-+]?(?:\d[\d.,\u202f\u00a0' _]*\d|\d)(?:[eE][-+]?\d{1,4})?|[-+]?(?i:nan|inf(?:inity)?)"
"""A number as a log prints it, thousands and decimals marked either way; read it with `log_number`."""

_RANK = re.compile(r"^\s*(?:\[?(?:rank|RANK)[\s_]*(\d{1,6})[\]:]?|(\d{1,6}):|\[\d+,(\d{1,6})\]<std(?:out|err)>:)")
_TWO_MARKS = re.compile(r"[.,].*[.,]")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")


def plain(line: str) -> str:
    """The line without terminal colours and control characters."""
    if "\x1b" in line or "m" in line:
        line = _COLOUR.sub("", line)
    return line.replace("\x00", "").replace("\u200b", "")


def rank_of(line: str) -> str | None:
    """The rank or node that a launcher wrote before the line (`3: `, `[rank 3]`, `[1,3]<stdout>:`)."""
    match = _RANK.match(line)
    return None if match is None else next(group for group in match.groups() if group is not None)


def log_number(written: str | None, *, grouped: bool = False) -> float | None:
    """A number of a log, possibly a non-finite one; None when it is none.

    `6,785` is ambiguous: `grouped` says that this field is printed with thousands separators, elsewhere a single comma
    is a decimal one. Where both marks occur, the last one is the decimal mark.
    """
    if written is None or len(written) > 60:
        return None
    text = re.sub(r"[\s\u202f\u00a0'_]", "", written)
    if _TWO_MARKS.search(text):
        comma, point = text.rfind(","), text.rfind(".")
        if comma >= 0 and point >= 0:
            text = text.replace("." if comma > point else ",", "").replace(",", ".")
        elif _GROUPED.fullmatch(text.lstrip("+-")):
            text = text.replace(",", "")
        elif re.fullmatch(r"[-+]?\d{1,3}(?:\.\d{3})+", text):
            text = text.replace(".", "")
    elif "," in text:
        text = text.replace(",", "" if grouped and _GROUPED.fullmatch(text.lstrip("+-")) else ".")
    try:
        return float(text)
    except ValueError:
        return None


def log_lines(content: Content) -> Iterator[tuple[int, str]]:
    """Numbered lines without colours. A last line that breaks off is left out: its last number may be cut in half."""
    earlier: deque[str] = deque(maxlen=_LINES_COMPARED)
    held: tuple[int, str] | None = None
    for number, line in content.each_line():
        if held is not None:
            yield held
            earlier.append(held[1][:_MOST_COMPARED])
        held = number, plain(line)
    if held is None:
        return
    if content.ends_open and _breaks_off(held[1], earlier):
        content.cut_line = held[0]
    else:
        yield held


_LINES_COMPARED, _MOST_COMPARED = 64, 4000
_DIGITS = re.compile(r"[\d.,]*\d[.,]?")
_FRACTION_AT_END = re.compile(r"\.(\d+)$")


def _shape(line: str) -> str:
    """A line with every number as 0 and every gap as one space: lines of one kind have the same."""
    return " ".join(_DIGITS.sub("0", line).split())


def _breaks_off(line: str, earlier: Iterable[str]) -> bool:
    """Whether a line without an end is the beginning of one like an earlier line, or ends in the midst of a number."""
    line = line.rstrip()
    shape = _shape(line)
    if not shape or len(line) > _MOST_COMPARED:
        return False
    alike = [before.rstrip() for before in earlier if _shape(before).startswith(shape)]
    same = [before for before in alike if _shape(before) == shape]
    if not same:
        return bool(alike)
    decimals = {len(match[1]) for before in same if (match := _FRACTION_AT_END.search(before))}
    mine = _FRACTION_AT_END.search(line)
    return len(decimals) == 1 and (len(mine[1]) if mine else 0) < min(decimals)


def text_findings(content: Content) -> tuple[Finding, ...]:
    """Notes on how the text was read, once it was; a log that is read piece by piece has only that of a cut line."""
    noted = _end_findings(content)
    return noted if content.is_large else (*content.findings(), *noted)


def _end_findings(content: Content) -> tuple[Finding, ...]:
    if content.cut_cell is not None:
        said = (
            f"Line {content.cut_cell}, the last, has no line end, and its last number fewer digits than the others: it "
            "may be cut and was left out. If it is whole, end the line and upload the file again."
        )
        return (Finding("cut-off", "warning", said),)
    if content.cut_line is not None:
        return (Finding("cut-off", "warning", f"Line {content.cut_line}, the last, breaks off: it was left out."),)
    if content.open_line is not None:
        said = (
            f"Line {content.open_line}, the last, has no line end: if the file was cut there, its last number lacks "
            "digits."
        )
        return (Finding("open-end", "info", said),)
    return ()


def holds(content: Content, *marks: str) -> bool:
    """Whether each mark stands in the text: logs begin with pages of settings, so the head does not do.

    Of a large log this is asked of its first MiB.
    """
    return all(mark in content.text for mark in marks)


# --- values of one metric ------------------------------------------------------------------------------------------

MOST_KEPT = 100_000
MOST_SAMPLES = 2_000
"""Values of a metric that are stored with the run, evenly spaced where there are more."""


@dataclass(slots=True)
class Values:
    """The values of one metric in order. Beyond MOST_KEPT every second one is dropped, again and again."""

    kept: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    _stride: int = 1

    def add(self, value: float) -> None:
        if self.count % self._stride == 0:
            if len(self.kept) >= MOST_KEPT:
                self.kept = self.kept[::2]
                self._stride *= 2
            if self.count % self._stride == 0:
                self.kept.append(value)
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)
        self.least, self.most = min(self.least, value), max(self.most, value)

    def join(self, later: Values) -> None:
        """Put the values of a later part behind these."""
        count = self.count + later.count
        step = later.mean - self.mean
        self.squares += later.squares + step * step * self.count * later.count / count
        self.mean += step * later.count / count
        self.kept = self.kept[:: later._stride] + later.kept
        self.least, self.most = min(self.least, later.least), max(self.most, later.most)
        self.count = count

    def statistics(self) -> dict[str, float]:
        """Statistics of several values; p90 needs ten and p99 a hundred of them."""
        ordered = sorted(self.kept)
        found = {"mean": self.mean, "p50": _percentile(ordered, 0.5), "min": self.least, "max": self.most}
        if self.count >= 10:
            found["p90"] = _percentile(ordered, 0.9)
        if self.count >= 100:
            found["p99"] = _percentile(ordered, 0.99)
        if self.count >= 3:
            found["std"] = math.sqrt(max(self.squares, 0.0) / (self.count - 1))
        return {stat: value for stat, value in found.items() if math.isfinite(value)}

    def samples(self) -> tuple[float, ...]:
        """At most MOST_SAMPLES of the values in order, the last one among them."""
        if len(self.kept) <= MOST_SAMPLES:
            return tuple(self.kept)
        stride = -(-len(self.kept) // (MOST_SAMPLES - 1))
        picked = list(self.kept[::stride])
        if (len(self.kept) - 1) % stride:
            picked.append(self.kept[-1])
        return tuple(picked)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between neighbours, as NumPy's default."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# --- steps of training ---------------------------------------------------------------------------------------------

_WARM_UP_SHARE, _LEAST_WARM_UP, _MOST_WARM_UP = 10, 2, 10
_HEAD = 256
"""Steps held whole until it is known how many of them are warm-up; the rest goes straight into the statistics."""

_LATE = 3
"""Other ranks may log a step while the first one has gone on by this many."""


def warm_up_steps(logged: int) -> int:
    """Logged steps that are left out: a tenth of them, at least two and at most ten; half of three or fewer.

    Compilation, memory growth and asynchronous dispatch make the first steps long, or impossibly short.
    """
    if logged < 4:
        return logged // 2
    return min(max(_LEAST_WARM_UP, logged // _WARM_UP_SHARE), _MOST_WARM_UP)


@dataclass(frozen=True, slots=True)
class Step:
    """One logged step: SI values by metric name, what was written there, and where, if not all in one place."""

    number: int
    at: str
    values: Mapping[str, float]
    raw: Mapping[str, str]
    places: Mapping[str, str] = field(default_factory=dict)

    def where(self, name: str) -> str:
        return self.places.get(name, self.at)


class StepLog:
    """The steps of one training run as they come."""

    def __init__(self) -> None:
        self.head: list[Step] = []
        self.rest: dict[str, Values] = {}
        self.count = 0
        self.repeated = 0
        self.ranks: set[str] = set()
        self.first: Step | None = None
        self.last: Step | None = None
        self.final: dict[str, Step] = {}
        self.peak: tuple[float, Step] | None = None
        self.non_finite: dict[str, list[int]] = {}
        self._recent: deque[tuple[int, float | None]] = deque(maxlen=_LATE)

    def is_repeat(self, step: Step) -> bool:
        """Whether another rank has logged this step already."""
        loss = step.values.get("loss")
        return any(
            number == step.number and (known is None or loss is None or known == loss) for number, known in self._recent
        )

    def goes_back(self, step: Step) -> bool:
        return self.last is not None and step.number <= self.last.number

    def repeat(self, step: Step, rank: str | None) -> None:
        self.repeated += 1
        if rank is not None:
            self.ranks.add(rank)
        self._see_memory(step)

    def add(self, step: Step, rank: str | None) -> None:
        finite: dict[str, float] = {}
        for name, value in step.values.items():
            if math.isfinite(value):
                finite[name] = value
            else:
                self.non_finite.setdefault(name, []).append(step.number)
        self._recent.append((step.number, step.values.get("loss")))
        step = replace(step, values=finite)
        if rank is not None:
            self.ranks.add(rank)
        self.count += 1
        self.first = self.first or step
        self.last = step
        for name in finite:
            self.final[name] = step
        self._see_memory(step)
        if len(self.head) < _HEAD:
            self.head.append(step)
            return
        for name, value in finite.items():
            self.rest.setdefault(name, Values()).add(value)

    def _see_memory(self, step: Step) -> None:
        used = step.values.get("peak_memory_bytes")
        if used is not None and math.isfinite(used) and (self.peak is None or used > self.peak[0]):
            self.peak = (used, step)

    def steady(self) -> tuple[int, dict[str, Values]]:
        """How many steps are warm-up, and the values of all others by metric."""
        left_out = warm_up_steps(self.count)
        found: dict[str, Values] = {}
        for step in self.head[left_out:]:
            for name, value in step.values.items():
                found.setdefault(name, Values()).add(value)
        for name, values in self.rest.items():
            if name not in found:
                found[name] = values
                continue
            # The head is short: its values go before those that were counted already.
            found[name].join(values)
        return left_out, found


class Runs:
    """Splits the steps of a file into runs: another one begins where the step number goes back, or at a start mark."""

    def __init__(self, limit: int) -> None:
        self.logs: list[StepLog] = []
        self.settings: list[dict[str, str]] = []
        self._pending: dict[str, str] = {}
        self._limit = limit
        self._start = True
        self._armed = False

    def start(self) -> None:
        """The log says that a run begins; settings that follow belong to it.

        Right after the first step this may be another rank that lags behind: then only a step that goes back counts.
        """
        if self._start:
            return
        if self.logs[-1].count < _LATE:
            self._armed = True
        else:
            self._start, self._pending = True, {}

    def setting(self, name: str, value: str) -> None:
        """A setting of the run that is beginning or, once steps were seen, of the one that is running."""
        target = self._pending if self._start or not self.settings else self.settings[-1]
        if len(target) < 400:
            target.setdefault(name, value)

    def add(self, step: Step, rank: str | None = None) -> None:
        if not self._start and self.logs:
            log = self.logs[-1]
            if not self._armed and log.is_repeat(step):
                log.repeat(step, rank)
                return
            if not log.goes_back(step):
                log.add(step, rank)
                return
        if len(self.logs) >= self._limit:
            raise UnreadableUpload(
                "too-large", f"The file holds more than {self._limit} runs.", hint="Split it into several files."
            )
        log = StepLog()
        log.add(step, rank)
        settings = self._pending if self._start else dict(self.settings[-1])
        self.logs.append(log)
        self.settings.append(settings)
        self._start, self._armed, self._pending = False, False, {}


# --- a run out of its steps ----------------------------------------------------------------------------------------

_WHOLE_RUN = frozenset({"loss", "peak_memory_bytes"})


def add_statistics(record: Fields, log: StepLog, units: Mapping[str, tuple[str, float]]) -> dict[str, Values]:
    """Metrics of a run: statistics of the steady steps, the last loss, the highest memory.

    `units` gives for each metric the unit in the file and what one of it is in SI. Returns the steady values.
    """
    left_out, steady = log.steady()
    assert log.last is not None  # a run begins with a step
    for name, values in steady.items():
        if name in _WHOLE_RUN:
            continue
        unit, scale = units[name]
        begin = next((s for s in log.head[left_out:] if name in s.values), log.final[name])
        step = log.final[name]
        where = f"{begin.where(name)} to {step.where(name)}"
        if values.count == 1:
            record.add(
                name,
                values.mean,
                at=step.where(name),
                raw=step.raw.get(name, f"{values.mean / scale:g}"),
                raw_unit=unit,
            )
            continue
        for stat, value in values.statistics().items():
            record.add(
                name,
                value,
                at=where,
                raw=f"computed from {values.count} steps",
                raw_unit=unit,
                stat=stat,
                count=values.count,
            )
    if "loss" in log.final:
        step = log.final["loss"]
        record.add(
            "loss", step.values["loss"], at=step.where("loss"), raw=step.raw.get("loss", ""), raw_unit=units["loss"][0]
        )
    if log.peak is not None:
        used, step = log.peak
        raw = step.raw.get("peak_memory_bytes", f"{used:g}")
        record.add(
            "peak_memory_bytes",
            used,
            at=step.where("peak_memory_bytes"),
            raw=raw,
            raw_unit=units["peak_memory_bytes"][0],
        )
    return steady


def step_samples(steady: Mapping[str, Values]) -> dict[str, tuple[float, ...]]:
    """The steady values of each metric, in order, a bounded number of them."""
    return {name: values.samples() for name, values in steady.items() if values.count > 1 and name in METRIC_UNITS}


def step_findings(log: StepLog) -> list[Finding]:
    """What was left out of the statistics and what was not a number."""
    assert log.first is not None
    assert log.last is not None
    left_out = warm_up_steps(log.count)
    times = [f"{s.values['step_time_s']:.4g} s" for s in log.head[:left_out] if "step_time_s" in s.values]
    out: list[Finding] = []
    if left_out:
        early = log.head[:left_out]
        steps = f"step {early[0].number}" if left_out == 1 else f"steps {early[0].number} to {early[-1].number}"
        took = f": {', '.join(times[:3])}{' …' if len(times) > 3 else ''}" if times else ""
        out.append(
            Finding(
                "warm-up-left-out",
                "info",
                f"Left out as warm-up: the first {left_out} of {log.count} logged steps ({steps}{took}). "
                f"Statistics are of steps {log.head[left_out].number} to {log.last.number}.",
            )
        )
    else:
        out.append(
            Finding(
                "warm-up-left-out",
                "info",
                f"Only step {log.first.number} is logged: nothing could be left out as warm-up, and one step has no "
                "spread.",
            )
        )
    for name, steps_at in log.non_finite.items():
        shown = ", ".join(str(n) for n in steps_at[:5]) + (" …" if len(steps_at) > 5 else "")
        out.append(
            Finding(
                "non-finite",
                "warning",
                f"{name}: not a finite number at {len(steps_at)} step(s): {shown}.",
                (name,),
            )
        )
    if log.repeated:
        out.append(
            Finding(
                "ranks-repeat",
                "info",
                f"{log.repeated} line(s) repeat a step that another rank had logged; each step counts once.",
            )
        )
    return out


def cut_off_finding(line: int) -> Finding:
    return Finding(
        "cut-off", "warning", f"The log breaks off in line {line}, in the middle of a step; the rest was read."
    )


@dataclass(slots=True)
class Setup:
    """What the settings of a run say, in the words of a workload."""

    parallel: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    batch: float | None = None
    global_batch: float | None = None
    seq_len: float | None = None
    parameters: float | None = None
    devices: int | None = None
    model: str | None = None
    hardware: str | None = None
    software: dict[str, str] = field(default_factory=dict)


def training_run(
    name: str,
    log: StepLog,
    setup: Setup,
    units: Mapping[str, tuple[str, float]],
    *,
    measured_at: str | None = None,
    findings: Iterable[Finding] = (),
    series: Mapping[str, float | str] | None = None,
) -> ParsedRun:
    """A run from its steps and settings; rates that follow from both are computed and say so."""
    record = Fields({})
    steady = add_statistics(record, log, units)
    _derive(record, setup)
    unknown: dict[str, str] = {}
    if not any(m.name == "step_time_s" for m in record.metrics):
        unknown["step_time_s"] = "step time"
    if setup.hardware is None:
        unknown["hardware"] = "hardware"
    if not setup.parallel and setup.devices != 1:
        unknown["parallel"] = "parallel layout"
    if setup.model is None:
        unknown["model"] = "model"
    if setup.seq_len is None:
        unknown["seq_len"] = "sequence length"
    if setup.batch is None:
        unknown["batch"] = "batch of a replica"
    if not setup.dtypes:
        unknown["dtypes"] = "precision"
    notes = [*step_findings(log), *findings, *serving.check_latencies(record.metrics)]
    if unknown:
        notes += serving.facts_finding(unknown)
    extra = {key: value for key, value in setup.extra.items() if value is not None}
    if setup.global_batch is not None:
        extra.setdefault("global_batch", setup.global_batch)
    if setup.devices is not None:
        extra.setdefault("devices", setup.devices)
    left_out = warm_up_steps(log.count)
    extra["steps"] = {
        "logged": log.count,
        "first": log.first.number if log.first else 0,
        "last": log.last.number if log.last else 0,
        "warm_up": left_out,
        "steady_from": log.head[left_out].number if left_out < len(log.head) else 0,
    }
    early = [s.values["step_time_s"] for s in log.head[:left_out] if "step_time_s" in s.values]
    if early:
        extra["warm_up_step_time_s"] = early
    return ParsedRun(
        name=name,
        metrics=tuple(record.metrics),
        workload=RunWorkload(
            mode="train",
            batch=setup.batch,
            input_len=setup.seq_len,
            parameters=setup.parameters,
            dtypes=setup.dtypes,
            extra=with_words(extra),
        ),
        model_hint=setup.model,
        hardware_hint=setup.hardware,
        parallel=setup.parallel,
        software=setup.software,
        samples=step_samples(steady),
        measured_at=measured_at,
        series=dict(series or {}),
        findings=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class Described:
    """What a format makes of the settings of one run."""

    name: str
    setup: Setup
    measured_at: str | None
    findings: Sequence[Finding] = ()


def training_runs(
    runs: Runs,
    units: Mapping[str, tuple[str, float]],
    describe: Callable[[int, Mapping[str, str]], Described],
    cut_at: int,
) -> tuple[ParsedRun, ...]:
    """Every run of a log, told apart by its place where there are several. `describe` gets the index (from 0) and the
    settings of a run; `cut_at` is the line in which the last one breaks off, 0 for none."""
    count = len(runs.logs)
    out = []
    for index, (log, settings) in enumerate(zip(runs.logs, runs.settings, strict=True)):
        told = describe(index, settings)
        cut_off = [cut_off_finding(cut_at)] if cut_at and index == count - 1 else []
        out.append(
            training_run(
                numbered(told.name, index, count),
                log,
                told.setup,
                units,
                measured_at=told.measured_at,
                findings=(*told.findings, *cut_off),
                series={"run": float(index + 1)} if count > 1 else None,
            )
        )
    return tuple(out)


def _derive(record: Fields, setup: Setup) -> None:
    """Tokens per second out of batch, sequence length and step time where the log does not print them."""
    rate = record.value("tokens_per_s_per_device", "mean") or record.value("tokens_per_s_per_device")
    if rate and rate > 0 and setup.devices and setup.global_batch and setup.seq_len:
        at = next(m.pointer for m in record.metrics if m.name == "tokens_per_s_per_device")
        if not any(m.name == "step_time_s" for m in record.metrics):
            record.add(
                "step_time_s",
                setup.global_batch * setup.seq_len / (rate * setup.devices),
                at=at,
                raw=f"computed: {setup.global_batch:g} x {setup.seq_len:g} / ({rate:.6g} x {setup.devices})",
                raw_unit="s",
                stat="mean",
            )
    time = record.value("step_time_s", "mean") or record.value("step_time_s")
    where = next((m.pointer for m in record.metrics if m.name == "step_time_s"), "")
    if time and time > 0 and setup.global_batch and setup.seq_len:
        tokens = setup.global_batch * setup.seq_len
        raw = f"computed: {setup.global_batch:g} x {setup.seq_len:g} / {time:.6g} s"
        record.add("total_tokens_per_s", tokens / time, at=where, raw=raw, raw_unit="tok/s")
        if setup.devices and not any(m.name == "tokens_per_s_per_device" for m in record.metrics):
            record.add(
                "tokens_per_s_per_device",
                tokens / time / setup.devices,
                at=where,
                raw=f"{raw} / {setup.devices}",
                raw_unit="tok/s",
            )
    if time and time > 0 and setup.global_batch and not any(m.name == "samples_per_s" for m in record.metrics):
        record.add(
            "samples_per_s",
            setup.global_batch / time,
            at=where,
            raw=f"computed: {setup.global_batch:g} / {time:.6g} s",
            raw_unit="1/s",
        )


# --- settings ------------------------------------------------------------------------------------------------------


def whole(written: str | None) -> int | None:
    """A positive whole number of a setting."""
    number = log_number(written, grouped=True)
    if number is None or not math.isfinite(number) or not 1 <= number < 2**40 or number != int(number):
        return None
    return int(number)


def word(written: str | None, limit: int = 80) -> str | None:
    """A setting's text fit to keep; nothing for None, False and empty ones."""
    text = clean(written or "", limit).strip("'\"")
    return None if text.lower() in ("", "none", "null", "false", "-1", "[]", "{}") else text


def is_true(written: str | None) -> bool:
    return (written or "").strip().lower() in ("true", "1", "yes", "on")


def numbered(name: str, index: int, count: int) -> str:
    """Names of the runs of one file: told apart by their place where there are several."""
    return name if count == 1 else f"{name}, run {index + 1}"
