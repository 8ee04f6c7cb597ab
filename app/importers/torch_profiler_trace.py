"""PyTorch profiler traces (Kineto's Chrome trace): kernels, the timeline they make, steps, and peak memory.

The file is read event by event and never held: of an event that matters a few numbers go into compact arrays, so that
a trace of a gigabyte needs little more memory than its kernels. The order of events does not matter; what belongs
together is joined at the end by correlation and by the operation's id.

Formats of several ages are read: capital categories and whole microseconds of the first versions, and the lower-case
ones with fractions. ROCm traces have the same shape. An interrupted file gives what it holds whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, BinaryIO, Final

import ijson
import numpy as np
from numpy.typing import NDArray

from app.domain.kernels import FAMILY_IDS, KernelKind, kind_of
from app.domain.op_shapes import ATTENTION, KNOWN, PRODUCT, Work, work_of
from app.domain.run import Finding, ParsedRun, RunWorkload
from app.domain.timeline import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    UNKNOWN,
    Activities,
    Timeline,
    Window,
    merged,
    timeline,
    total,
    union_time,
)
from app.importers import kernel_rows
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float
from app.importers.reading import Content, clean

_KERNELS: Final = frozenset({"kernel", "Kernel"})
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime", "runtime"})
_OPS: Final = frozenset({"cpu_op", "Operator"})
_STEP: Final = re.compile(r"ProfilerStep#\d+")
_OWN_STEP: Final = re.compile(r"(?:[A-Za-z]+_)?(?:step|iteration)(?:[ _#:-]?\d+)?", re.IGNORECASE)
"""Steps that people mark themselves, such as `decode_step`; they split the timeline but give no step time."""

_SYNCS: Final = frozenset(
    f"{prefix}{what}Synchronize" for prefix in ("cuda", "hip", "cu") for what in ("Device", "Stream", "Event", "Ctx")
)
_GRAPHS: Final = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_ALL_TO_ALL: Final = re.compile(r"all_?to_?all", re.IGNORECASE)

MAX_ACTIVITIES: Final = 2_000_000
MAX_CALLS: Final = 6_000_000
MAX_OPS: Final = 2_000_000
MAX_NAMES: Final = 50_000
MAX_NAME_CHARACTERS: Final = 24_000_000
"""Of the names that are told apart, all together: further ones are one row, since names may be as large as the rest."""

_SHORT: Final = 120
MAX_ANNOTATIONS: Final = 20_000
_FAR: Final = 9e15
"""Microseconds beyond which a time is no clock's."""


class TorchProfilerTrace:
    """The importer; see the module."""

    id = "torch-profiler-trace"
    title = "PyTorch profiler trace"
    tried_on_real_file = True
    streams = True

    def sniff(self, content: Content) -> Sniff:
        """A Chrome trace by its beginning."""
        head = content.head.lstrip()
        if head[:1] == "{":
            if '"traceEvents"' not in head and not ('"deviceProperties"' in head and '"schemaVersion"' in head):
                return Sniff(0, "no traceEvents")
        elif not (head[:1] == "[" and '"ph"' in head[:4096] and '"ts"' in head[:4096]):
            return Sniff(0, "no list of trace events")
        if '"BeginNs"' in head:
            return Sniff(0, "a rocprof trace")
        marks = ('"deviceProperties"', '"schemaVersion"', '"cpu_op"', '"kernel"', '"cuda_runtime"')
        sure = any(mark in head for mark in marks)
        return Sniff(0.95 if sure else 0.6, "traceEvents of a profiler" if sure else "traceEvents")

    def parse(self, content: Content) -> ParsedUpload:
        """One run: the process that was profiled. Raises UnreadableUpload where nothing of a profile is found."""
        about = _beginning(content.head)
        collected, broken = _collect(content)
        if not collected.activities and not collected.steps and not collected.ops:
            if broken:
                raise UnreadableUpload(
                    "cut-off" if broken.check == "cut-off" else "damaged",
                    f"This is a Chrome trace without one whole event of a device. {broken.message}",
                    hint="Write the trace again and upload the whole file.",
                )
            raise UnreadableUpload(
                "not-supported",
                "This is a Chrome trace without any kernel, operation or step of a PyTorch profile.",
                hint="Profile with activities=[CPU, CUDA] and write the trace with export_chrome_trace().",
            )
        run = _run(content, about, collected, broken)
        return ParsedUpload(self.id, (run,))


# --- reading -------------------------------------------------------------------------------------------------------


class _Collected:
    """What is kept of the events: compact arrays, one entry for each activity, call, operation or step."""

    def __init__(self) -> None:
        self.events = 0
        self.unusable = 0
        self.negative = 0
        self.dropped = 0
        self.names: list[str] = []
        self.kinds: list[KernelKind] = []
        self.pooled = 0
        self._places: dict[str | bytes, int] = {}
        self._characters = 0
        self.start, self.length = array("q"), array("q")
        self.stream, self.device, self.kind, self.name = array("q"), array("i"), array("b"), array("i")
        self.correlation, self.op = array("q"), array("q")
        self.all_to_all = array("b")
        self.call_correlation, self.call_start = array("q"), array("q")
        self.calls: dict[str, list[int]] = {}
        self.ops = 0
        self.work: list[Work] = []
        self.work_places: dict[Work, int] = {}
        self.op_id, self.op_start, self.op_end, self.op_work = array("q"), array("q"), array("q"), array("i")
        self.steps: list[tuple[str, int, int]] = []
        self.own_steps: list[tuple[str, int, int]] = []
        self.optimizer_steps = 0
        self.allocated = self.reserved = 0.0

    @property
    def activities(self) -> int:
        return len(self.start)

    def event(self, event: Any) -> None:
        """Keep what matters of one event, whatever it holds."""
        self.events += 1
        if not isinstance(event, dict):
            self.unusable += 1
            return
        category, phase = event.get("cat"), event.get("ph")
        if phase == "X" and isinstance(category, str):
            if category in _KERNELS:
                self._activity(event, is_copy=False)
            elif category in _COPIES:
                self._activity(event, is_copy=True)
            elif category in _CALLS:
                self._call(event)
            elif category in _OPS:
                self._op(event)
            elif category == "user_annotation":
                self._annotation(event)
        elif phase == "i" and event.get("name") == "[memory]":
            self._memory(event)

    def _activity(self, event: dict[str, Any], *, is_copy: bool) -> None:
        times = self._times(event)
        if times is None:
            return
        if len(self.start) >= MAX_ACTIVITIES:
            self.dropped += 1
            return
        written = event.get("name")
        place = self._place(written if isinstance(written, str) else "(unnamed)")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        communicates = not is_copy and ("Collective name" in args or self.kinds[place].communicates)
        self.start.append(times[0])
        self.length.append(times[1])
        self.name.append(place)
        self.kind.append(COPY if is_copy else COMMUNICATION if communicates else COMPUTE)
        self.device.append(_whole(args.get("device", event.get("pid")), 0, 2**31 - 1))
        self.stream.append(_whole(args.get("stream", event.get("tid")), 0))
        self.correlation.append(_whole(args.get("correlation"), -1))
        self.op.append(_whole(args.get("External id", args.get("external id")), -1))
        # NCCL runs an all-to-all as sends and receives, so only the collective's name tells
        moved = str(args.get("Collective name", "")) if communicates else ""
        self.all_to_all.append(bool(communicates and (_ALL_TO_ALL.search(moved) or self.kinds[place].family == "moe")))

    def _place(self, name: str) -> int:
        """The index of a name. Long ones are known by a digest, so that no text is held twice."""
        place = self._places.get(_key(name))
        if place is not None:
            return place
        if len(self.names) >= MAX_NAMES or self._characters >= MAX_NAME_CHARACTERS:
            self.pooled += 1
            name = kernel_rows.REST
        label = kernel_rows.kernel_name(name)
        place = self._places.get(_key(label))  # names that differ only by signs that cannot be shown
        if place is None:
            place = len(self.names)
            self.names.append(label)
            self.kinds.append(kind_of(name))
            self._characters += len(label)
            self._places[_key(label)] = place
        if name != kernel_rows.REST:
            self._places[_key(name)] = place
        return place

    def _call(self, event: dict[str, Any]) -> None:
        times = self._times(event)
        if times is None:
            return
        name = event.get("name")
        if isinstance(name, str) and (name in _SYNCS or name in _GRAPHS or "aunchKernel" in name):
            counted = self.calls.setdefault(name, [0, 0])
            counted[0] += 1
            counted[1] += times[1]
        args = event.get("args")
        correlation = _whole(args.get("correlation") if isinstance(args, dict) else None, -1)
        if correlation >= 0 and len(self.call_start) < MAX_CALLS:
            self.call_correlation.append(correlation)
            self.call_start.append(times[0])

    def _op(self, event: dict[str, Any]) -> None:
        self.ops += 1
        name = event.get("name")
        if not isinstance(name, str) or name not in KNOWN or len(self.op_id) >= MAX_OPS:
            return
        args, times = event.get("args"), self._times(event)
        if not isinstance(args, dict) or times is None:
            return
        work = work_of(name, args.get("Input Dims"), args.get("Input type"), args.get("Concrete Inputs"))
        number = _whole(args.get("External id", args.get("external id")), -1)
        if work is None or number < 0:
            return
        place = self.work_places.get(work)
        if place is None:
            place = self.work_places[work] = len(self.work)
            self.work.append(work)
        self.op_id.append(number)
        self.op_start.append(times[0])
        self.op_end.append(times[0] + times[1])
        self.op_work.append(place)

    def _annotation(self, event: dict[str, Any]) -> None:
        name = event.get("name")
        if not isinstance(name, str):
            return
        if name.startswith("Optimizer.step#"):
            self.optimizer_steps += 1
            return
        kept = self.steps if _STEP.fullmatch(name) else self.own_steps if _OWN_STEP.fullmatch(name[:80]) else None
        if kept is not None and len(kept) < MAX_ANNOTATIONS and (times := self._times(event)) is not None:
            kept.append((clean(name, 80), times[0], times[0] + times[1]))

    def _memory(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if not isinstance(args, dict) or args.get("Device Type") != 1:
            return
        for field, name in (("allocated", "Total Allocated"), ("reserved", "Total Reserved")):
            value = as_float(args.get(name))
            if value is not None and 0 <= value < 1e18:
                setattr(self, field, max(getattr(self, field), value))

    def _times(self, event: dict[str, Any]) -> tuple[int, int] | None:
        """Start and length in nanoseconds; None for what is no time. Microseconds as numbers or as text."""
        start, length = event.get("ts"), event.get("dur", 0)
        if isinstance(start, str) or isinstance(length, str):
            start, length = as_float(start), as_float(length)
        if (
            not isinstance(start, (int, float, Decimal))
            or not isinstance(length, (int, float, Decimal))
            or not -_FAR < start < _FAR
            or not -_FAR < length < _FAR
        ):
            self.unusable += 1
            return None
        if length < 0:
            self.negative += 1
            return None
        return round(start * 1000), round(length * 1000)


def _key(name: str) -> str | bytes:
    if len(name) <= _SHORT:
        return name
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _whole(value: object, otherwise: int, most: int = 2**62) -> int:
    """A whole number that may be written as text; anything else is `otherwise`."""
    if isinstance(value, str) and len(value) < 20:
        try:
            value = int(value, 0)
        except ValueError:
            return otherwise
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else otherwise


def _collect(content: Content) -> tuple[_Collected, Finding | None]:
    """Every event of the file; where it breaks off or is damaged, those before, and a finding that says so.

    Some writers put NaN, control characters or single backslashes into a trace. Such a file is read a second time with
    these put right.
    """
    prefix = "item" if content.head.lstrip()[:1] == "[" else "traceEvents.item"
    found = _Collected()
    error = _read(content, prefix, found, mended=False)
    if error == "damaged":
        again = _Collected()
        error = _read(content, prefix, again, mended=True)
        if again.events >= found.events:
            found = again
        if error is None:
            return found, Finding(
                "damaged",
                "info",
                "The trace is not valid JSON (NaN, control characters or backslashes); read all the same.",
            )
    if error is None:
        return found, None
    where = "breaks off" if error == "cut-off" else "is damaged"
    last = f" after event {found.events:,}" if found.events else " before its first event"
    return found, Finding(
        error,
        "warning",
        f"The trace {where}{last}: what stands before was read, and what came later is missing from every number here.",
    )


def _read(content: Content, prefix: str, found: _Collected, *, mended: bool) -> str | None:
    """Feed the events to `found`; returns "cut-off" or "damaged" where the JSON does not go on to its end."""
    stream: _Watched | None = None
    try:
        with content.open_text() as opened:
            stream = _Watched(opened, mended=mended)
            for event in ijson.items(stream, prefix, buf_size=256 * 1024):
                found.event(event)
    except UnreadableUpload as error:
        if error.reason != "cut-off":  # gzip that ends early still gave its beginning
            raise
        return "cut-off"
    except (ijson.JSONError, UnicodeError, ValueError, RecursionError):
        return "cut-off" if stream is not None and stream.at_end else "damaged"
    return None


_NOT_JSON = re.compile(rb"(:\s*)(?:-?nan(?:\([a-z]*\))?|-?inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_BACKSLASH = re.compile(rb"\\(u[0-9a-fA-F]{4}|[\"\\/bfnrt]|)", re.DOTALL)
_NO_CONTROL = b" " * 32 + bytes(range(32, 256))


class _Watched:
    """A stream that knows whether its end was reached, and mends what is no JSON where asked."""

    def __init__(self, raw: BinaryIO, *, mended: bool) -> None:
        self._raw = raw
        self._mended = mended
        self._rest = b""
        self.at_end = False

    def read(self, size: int = -1) -> bytes:
        piece = self._raw.read(size)
        if size != 0 and not piece:
            self.at_end = True
        if not self._mended or size == 0:
            return piece
        # a number or an escape may lie across two pieces: a piece ends after a comma or a brace
        piece = self._rest + piece
        cut = len(piece) if self.at_end else max(piece.rfind(b","), piece.rfind(b"}")) + 1
        if not cut and not self.at_end and len(piece) < 2**22:
            self._rest = piece
            return self.read(size)
        self._rest, piece = piece[cut:], piece[:cut]
        piece = _NOT_JSON.sub(rb"\1null", piece.translate(_NO_CONTROL))
        return _BACKSLASH.sub(lambda m: m[0] if m[1] else rb"\\", piece) if b"\\" in piece else piece


def _beginning(head: str) -> Mapping[str, Any]:
    """The fields that stand before the events: device, ranks, versions. Empty where they cannot be read."""
    start, place = head.lstrip(), 0
    if start[:1] != "{":
        return {}
    place = start.find('"traceEvents"')
    text = (start[:place] if place >= 0 else start).rstrip().rstrip(",")
    try:
        found = json.loads(text + "}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- from arrays to a run ------------------------------------------------------------------------------------------


def _ints(values: array[int], kind: Any = np.int64) -> NDArray[Any]:
    return np.frombuffer(values, dtype=kind) if len(values) else np.zeros(0, kind)


def _activities(found: _Collected) -> Activities:
    """The activities, each with the start of the call that launched it. The calls are not needed any more then."""
    correlation, calls = _ints(found.correlation), _ints(found.call_correlation)
    launched = np.full(len(correlation), UNKNOWN, np.int64)
    if len(calls) and len(correlation):
        began = _ints(found.call_start)
        # a runtime call and the driver's call inside it share a number: the outer one began first
        order = np.lexsort((began, calls))
        calls = calls[order]
        place = np.minimum(np.searchsorted(calls, correlation), len(calls) - 1)
        known = (calls[place] == correlation) & (correlation >= 0)
        launched[known] = began[order][place[known]]
    start = _ints(found.start)
    end = start + _ints(found.length)
    found.call_correlation = found.call_start = found.correlation = found.length = array("q")
    return Activities(
        start=start,
        end=end,
        launched=launched,
        kind=_ints(found.kind, np.int8),
        device=_ints(found.device, np.int32),
        stream=_ints(found.stream),
        name=_ints(found.name, np.int32),
    )


def _run(content: Content, about: Mapping[str, Any], found: _Collected, broken: Finding | None) -> ParsedRun:
    ran = _activities(found)
    windows, profiler_steps = _windows(found, ran)
    split = timeline(ran, windows)
    record = Fields({})
    rows = _rows(found, ran, split)
    is_kernel = ran.kind != COPY
    _metrics(record, found, ran, is_kernel, profiler_steps)
    evidence, families = _evidence(found, ran, split, windows)
    findings = _findings(found, ran, broken, len(profiler_steps))
    drawn = None
    if found.activities:
        origin = int(ran.start.min())
        drawn = kernel_rows.timeline_json(
            split,
            events=found.events,
            kernels=int(is_kernel.sum()),
            copies=int((~is_kernel).sum()),
            kernel_time_s=_seconds((ran.end - ran.start)[is_kernel].sum()),
            kernel_busy_s=_per_device(ran, is_kernel),
            communication_kernels=int((ran.kind == COMMUNICATION).sum()),
            communication_kernel_time_s=_seconds((ran.end - ran.start)[ran.kind == COMMUNICATION].sum()),
            families=families,
            steps=[
                {"name": window.name, "start_s": _seconds(window.start - origin), **kernel_rows.split_json(step)}
                for window, step in list(zip(windows, split.steps, strict=True))[: kernel_rows.MAX_STEPS]
            ],
            host=_host(found, ran),
            **_ranks(about),
            drawing=_drawing(found, ran, origin),
        )
    return ParsedRun(
        name=_name(content, about),
        metrics=tuple(record.metrics),
        workload=_workload(found, about),
        hardware_hint=_device_name(about, ran),
        software=_software(about),
        kernels=kernel_rows.with_shares(rows),
        timeline=drawn,
        samples={"step_time_s": tuple(_seconds(w.end - w.start) for w in profiler_steps)} if profiler_steps else {},
        evidence=evidence,
        findings=findings,
    )


def _seconds(ns: Any) -> float:
    return float(ns) * 1e-9


def _per_device(ran: Activities, chosen: NDArray[np.bool_]) -> float:
    """Time in which at least one of the chosen activities runs, added over devices."""
    return sum(
        union_time(ran.start[mine], ran.end[mine])
        for device in np.unique(ran.device)
        if (mine := chosen & (ran.device == device)).any()
    )


def _windows(found: _Collected, ran: Activities) -> tuple[list[Window], list[Window]]:
    """Stretches to split the timeline by, and the profiler's own steps without the first, which warms up.

    A step in which nothing was launched is none: profiles often end with the beginning of one.

    A marked step begins on the host, and its kernels may run on while the host is in the next: a window reaches from
    one beginning to the next, so that nothing of the device's time falls between two.
    """
    chosen = found.steps or (found.own_steps if len(found.own_steps) > 1 else [])
    ordered = sorted(set(chosen), key=lambda step: (step[1], -step[2]))
    outer: list[tuple[str, int, int]] = []
    for step in ordered:  # a step inside another one is a part of it
        if not outer or step[1] >= outer[-1][2]:
            outer.append(step)
    if len(ran):
        moments = np.sort(np.where(ran.launched == UNKNOWN, ran.start, ran.launched))
        outer = [s for s in outer if np.searchsorted(moments, s[2]) > np.searchsorted(moments, s[1])]
    if not outer:
        return [], []
    ends = [step[1] for step in outer[1:]]
    last = outer[-1][2]
    if len(ran):
        last = max(last, int(ran.end.max()))
    windows = [Window(step[0], step[1], end) for step, end in zip(outer, [*ends, last], strict=True)]
    timed = [Window(*step) for step in outer] if found.steps else []
    return windows, timed[1:] if len(timed) > 1 else timed


def _metrics(
    record: Fields, found: _Collected, ran: Activities, is_kernel: NDArray[np.bool_], steps: list[Window]
) -> None:
    """Metrics in SI units, with how each was come by."""
    count = int(is_kernel.sum())
    if count:
        record.add(
            "kernel_time_s",
            _seconds((ran.end - ran.start)[is_kernel].sum()),
            at="/traceEvents",
            raw=f"dur of {count} kernels, added",
            raw_unit="us",
            count=count,
        )
    if found.activities:
        record.add(
            "duration_s",
            _seconds(ran.end.max() - ran.start.min()),
            at="/traceEvents",
            raw="from the first start on a device to the last end",
            raw_unit="us",
        )
    if steps:
        times = np.array([_seconds(step.end - step.start) for step in steps])
        stats = {"mean": times.mean(), "p50": np.median(times), "min": times.min(), "max": times.max()}
        for stat, value in stats.items():
            record.add(
                "step_time_s",
                float(value),
                at="/traceEvents",
                raw=f"{steps[0].name} to {steps[-1].name}" if len(steps) > 1 else steps[0].name,
                raw_unit="us",
                stat=stat,
                count=len(steps),
            )
    if found.allocated > 0:
        record.add(
            "peak_memory_bytes",
            found.allocated,
            at="/traceEvents",
            raw="largest Total Allocated of the [memory] events",
            raw_unit="B",
        )


def _rows(found: _Collected, ran: Activities, split: Timeline) -> list[dict[str, Any]]:
    """One row for each name; of very many, for those of most time, and one for the rest."""
    if not found.activities:
        return []
    number, many = ran.name, len(found.names)
    length = (ran.end - ran.start).astype(np.float64)
    count = np.bincount(number, minlength=many)
    time = np.bincount(number, weights=length, minlength=many) * 1e-9
    least, most = np.full(many, np.inf), np.zeros(many)
    np.minimum.at(least, number, length)
    np.maximum.at(most, number, length)
    on_path = np.bincount(number, weights=split.on_path, minlength=many)
    gaps = np.bincount(number, weights=split.gap_before, minlength=many)
    known = ran.launched != UNKNOWN
    delay = np.bincount(number[known], weights=(ran.start - ran.launched)[known].astype(np.float64), minlength=many)
    launches = np.bincount(number[known], minlength=many)
    copies = np.bincount(number[ran.kind == COPY], minlength=many) > 0
    work = _work(found, ran)
    chosen = np.arange(many)
    if many > kernel_rows.MAX_ROWS:
        rest = np.array([name == kernel_rows.REST for name in found.names])
        chosen = np.lexsort((-time, rest))[: kernel_rows.MAX_ROWS - 1]
    rows: list[dict[str, Any]] = []
    for place in chosen.tolist():
        row: dict[str, Any] = {
            "name": found.names[place],
            "count": int(count[place]),
            "time_s": float(time[place]),
            "mean_s": float(time[place] / count[place]),
            "min_s": float(least[place] * 1e-9),
            "max_s": float(most[place] * 1e-9),
            "on_path_s": float(on_path[place]),
            "gap_before_s": float(gaps[place]),
            **work.get(place, {}),
        }
        if launches[place]:
            row["launch_delay_s"] = float(delay[place] / launches[place] * 1e-9)
        if copies[place]:
            row["is_copy"] = True
            row["family"] = "copy"
        rows.append(row)
    if len(chosen) < many:
        others = np.setdiff1d(np.arange(many), chosen)
        summed = {"time_s": time, "on_path_s": on_path, "gap_before_s": gaps}
        rows.append(
            {"name": kernel_rows.REST, "family": "other", "count": int(count[others].sum())}
            | {key: float(values[others].sum()) for key, values in summed.items()}
        )
    return rows


_FITS: Final = {PRODUCT: frozenset({"gemm", "grouped-gemm", "convolution"}), ATTENTION: frozenset({"attention"})}


def _work(found: _Collected, ran: Activities) -> dict[int, dict[str, Any]]:
    """FLOP and least bytes by name, where every launch of the name is a known operation's.

    An operation's work goes to its longest kernel of the fitting family: the others prepare or reduce. The call must
    lie within the operation's time on the host, since old traces number operations and calls alike.
    """
    if not len(found.op_id):
        return {}
    op = _ints(found.op_id)
    order = np.argsort(op, kind="stable")
    mine = _ints(found.op)
    place = np.minimum(np.searchsorted(op[order], mine), len(op) - 1)
    matched = (op[order][place] == mine) & (mine >= 0) & (ran.kind == COMPUTE)
    which = order[place]
    called = ran.launched
    matched &= (called == UNKNOWN) | ((called >= _ints(found.op_start)[which]) & (called <= _ints(found.op_end)[which]))
    families = _families(found)
    fitting = np.zeros((len(found.work), len(FAMILY_IDS)), bool)
    for index, work in enumerate(found.work):
        for family in _FITS[work.kind]:
            fitting[index, FAMILY_IDS.index(family)] = True
    work_of_op = _ints(found.op_work, np.int32)
    matched &= fitting[work_of_op[which], families[ran.name]]
    chosen = np.flatnonzero(matched)
    if not len(chosen):
        return {}
    length = (ran.end - ran.start)[chosen]
    ranked = chosen[np.lexsort((-length, which[chosen]))]
    first = np.ones(len(ranked), bool)
    first[1:] = which[ranked][1:] != which[ranked][:-1]
    carriers = ranked[first]
    many = len(found.names)
    flop = np.array([work.flop for work in found.work])
    least = np.array([np.nan if work.least_bytes is None else work.least_bytes for work in found.work])
    of = work_of_op[which[carriers]]
    number = ran.name[carriers]
    covered = np.bincount(number, minlength=many)
    total = np.bincount(ran.name, minlength=many)
    sums = np.bincount(number, weights=flop[of], minlength=many)
    sizes = np.bincount(number, weights=least[of], minlength=many)
    result: dict[int, dict[str, Any]] = {}
    for name in np.flatnonzero((covered > 0) & (covered == total)):
        known: dict[str, Any] = {"flop": float(sums[name]), "work_from": "shapes"}
        if np.isfinite(sizes[name]):
            known["hbm_bytes"] = float(sizes[name])
        precisions = {found.work[index].precision for index in np.unique(of[number == name])}
        if len(precisions) == 1 and (only := precisions.pop()) is not None:
            known["precision"] = only
        result[int(name)] = known
    return result


def _families(found: _Collected) -> NDArray[np.intp]:
    """The family of each name, as its place among all."""
    return np.array([FAMILY_IDS.index(kind.family) for kind in found.kinds], np.intp)


def _evidence(
    found: _Collected, ran: Activities, split: Timeline, windows: list[Window]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Shares of a step under the ids of the decision tree, and time by family.

    A family's share counts the time that it held the device alone, so that shares add up to the busy share however many
    streams there are. Where steps are marked the shares are of those after the first, else of the whole span.
    """
    if not found.activities or split.whole.span <= 0:
        return {}, []
    many = len(FAMILY_IDS)
    steps = slice(1, None) if len(windows) > 1 else slice(None)
    base = total(split.steps[steps]) if windows else split.whole
    inside = np.ones(len(ran), bool)
    if windows:
        inside = (ran.start >= windows[steps][0].start) & (ran.start < windows[-1].end)
    span = base.span
    family = np.where(ran.kind == COPY, FAMILY_IDS.index("copy"), _families(found)[ran.name])
    on_path = np.bincount(family, weights=split.on_path, minlength=many)
    time = np.bincount(family, weights=(ran.end - ran.start).astype(np.float64), minlength=many) * 1e-9
    count = np.bincount(family, minlength=many)
    families = [
        {"family": name, "count": int(count[i]), "time_s": float(time[i]), "on_path_s": float(on_path[i])}
        for i, name in enumerate(FAMILY_IDS)
        if count[i]
    ]
    held = np.bincount(family[inside], weights=split.on_path[inside], minlength=many)
    share = {name: float(held[i]) / span for i, name in enumerate(FAMILY_IDS)}
    evidence = {
        "gpu_busy_share": base.busy / span,
        "gpu_idle_share": base.idle / span,
        "gemm_share": share["gemm"] + share["grouped-gemm"],
        "attn_share": share["attention"],
        "pointwise_share": share["norm"] + share["elementwise"],
        "copy_share": share["copy"],
        "opt_share": share["optimizer"],
    }
    if (ran.launched != UNKNOWN).any():
        evidence["launch_share"] = base.launch_gap / span
    if (ran.kind == COMMUNICATION).any():
        evidence["exposed_comm_share"] = base.exposed / span
        moved = _ints(found.all_to_all, np.int8).astype(bool)
        if moved.any():
            evidence["a2a_share"] = float(split.on_path[moved & inside].sum()) / span
    if count[FAMILY_IDS.index("grouped-gemm")] or count[FAMILY_IDS.index("moe")]:
        quiet = (ran.kind != COMMUNICATION) & (family == FAMILY_IDS.index("moe"))
        evidence["expert_gemm_share"] = share["grouped-gemm"]
        evidence["permute_share"] = float(split.on_path[quiet & inside].sum()) / span
    if count[FAMILY_IDS.index("scan")]:
        evidence["scan_share"] = share["scan"]
    if found.reserved > 0 and found.allocated > 0:
        evidence["mem_frag"] = max(0.0, 1 - found.allocated / found.reserved)
    return evidence, families


def _host(found: _Collected, ran: Activities) -> dict[str, Any]:
    """What the host did: launches, graph launches, waits, and how long launches stay in the queue."""
    answer: dict[str, Any] = {"launches": 0, "launches_time_s": 0.0}
    for name, (count, time) in found.calls.items():
        key = "waits" if name in _SYNCS else "graph_launches" if name in _GRAPHS else "launches"
        answer[key] = answer.get(key, 0) + count
        answer[f"{key}_time_s"] = answer.get(f"{key}_time_s", 0.0) + _seconds(time)
    known = ran.launched != UNKNOWN
    if known.any():
        answer["median_launch_delay_s"] = _seconds(np.median((ran.start - ran.launched)[known]))
    return answer


def _drawing(found: _Collected, ran: Activities, origin: int) -> dict[str, Any]:
    lanes, lane = kernel_rows.lanes_of(ran)
    cells = merged(ran, lane, kernel_rows.MAX_CELLS)
    used = np.unique(cells.name).tolist()
    copies = set(np.unique(ran.name[ran.kind == COPY]).tolist())
    return kernel_rows.drawing_json(
        cells,
        lanes,
        {place: found.names[place] for place in used},
        {place: "copy" if place in copies else found.kinds[place].family for place in used},
        origin,
    )


# --- what stands before the events ---------------------------------------------------------------------------------


def _devices(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    told = about.get("deviceProperties")
    return [device for device in told if isinstance(device, dict)] if isinstance(told, list) else []


def _device_name(about: Mapping[str, Any], ran: Activities) -> str | None:
    """The name of the device that ran something; where several differ, of the first."""
    devices = _devices(about)
    used = set(np.unique(ran.device).tolist())
    named = [device.get("name") for device in devices if device.get("id") in used or not used]
    named += [device.get("name") for device in devices]
    return next((clean(name, 200) for name in named if isinstance(name, str) and name.strip()), None)


def _distributed(about: Mapping[str, Any]) -> Mapping[str, Any]:
    told = about.get("distributedInfo")
    return told if isinstance(told, dict) else {}


def _ranks(about: Mapping[str, Any]) -> dict[str, int]:
    told = _distributed(about)
    return {name: number for name in ("rank", "world_size") if (number := _whole(told.get(name), -1, 10_000_000)) >= 0}


def _software(about: Mapping[str, Any]) -> dict[str, str]:
    found = {"profiler": "PyTorch profiler (Kineto)"}
    for name, key in (("cuda_runtime_version", "cuda"), ("cuda_driver_version", "cuda_driver")):
        number = _whole(about.get(name), -1, 10_000_000)
        if number >= 1000:
            found[key] = f"{number // 1000}.{number % 1000 // 10}"
    version = _distributed(about).get("nccl_version")
    if isinstance(version, str) and version.strip():
        found["nccl"] = clean(version, 40)
    return found


def _workload(found: _Collected, about: Mapping[str, Any]) -> RunWorkload:
    extra: dict[str, Any] = dict(_ranks(about))
    graphs = sum(count for name, (count, _) in found.calls.items() if name in _GRAPHS)
    launches = sum(count for name, (count, _) in found.calls.items() if "aunchKernel" in name)
    if graphs or launches:
        extra["launch_mode"] = "graph" if graphs else "eager"
    return RunWorkload(mode="train" if found.optimizer_steps else None, extra=extra)


def _name(content: Content, about: Mapping[str, Any]) -> str:
    rank = _ranks(about).get("rank")
    stem = re.sub(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", "", content.filename or "", flags=re.IGNORECASE)
    plain = clean(stem.replace("\\", "/").rsplit("/", 1)[-1], 120) or "trace"
    said = rank is None or re.search(rf"rank[_-]?{rank}(?!\d)", plain, re.IGNORECASE)
    return plain if said else f"{plain}, rank {rank}"


def _findings(found: _Collected, ran: Activities, broken: Finding | None, steps: int) -> tuple[Finding, ...]:
    out: list[Finding] = [broken] if broken else []
    if not found.activities:
        out.append(
            Finding(
                "no-device-events",
                "warning",
                "The trace has no kernel of a device: it was taken without CUDA activities, or the device's events "
                "were lost. Nothing is known of busy or idle time.",
            )
        )
    for number, what in (
        (found.negative, "lasts less than nothing"),
        (found.unusable, "has no usable time or is no object"),
    ):
        if number:
            out.append(
                Finding("unusable-events", "warning", f"{number:,} events left out: each {what}.", ("/traceEvents",))
            )
    if found.dropped:
        out.append(
            Finding(
                "too-many-events",
                "warning",
                f"Only the first {MAX_ACTIVITIES:,} activities of devices were analysed; {found.dropped:,} were left "
                "out. Profile fewer steps.",
            )
        )
    if found.pooled:
        out.append(
            Finding(
                "too-many-names",
                "warning",
                f"Only the first {len(found.names) - 1:,} kernel names are told apart; {found.pooled:,} activities of "
                f"others are in the timeline, and in the table under “{kernel_rows.REST}”.",
            )
        )
    if found.activities and not (ran.launched != UNKNOWN).any():
        out.append(
            Finding(
                "no-launch-times",
                "info",
                "No kernel can be joined to the call that launched it, so the cause of idle time is not known.",
            )
        )
    if steps == 1:
        out.append(
            Finding(
                "one-step",
                "info",
                "The trace holds one step: its time includes whatever the first profiled step costs more than others.",
                ("step_time_s",),
            )
        )
    out.extend(kernel_rows.too_many_names(len(found.names)))
    return tuple(out)
