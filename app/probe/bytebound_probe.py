#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what this machine reaches, and write it down as a benchmark run that Bytebound reads.

One file, PyTorch and nothing else:

    python bytebound_probe.py                    every device together where there are several, about two minutes
    python bytebound_probe.py --quick            fewer sizes, about half a minute
    python bytebound_probe.py --devices 1        no collectives

It measures memory bandwidth (copy, read, triad), that of the last-level cache, matrix products by precision, attention
in prefill and decode, the cost of launching kernels one by one and as a graph, and collectives. Without a GPU it
measures the processor, and says so.

How it is measured. Inputs are random (zeros draw less power and run faster) and are rotated, so that the last-level
cache does not serve them again. Kernels are timed by the device's own clock: a graph of many calls where the device can
capture one, else calls queued one behind another; the median of several such rounds counts. A rate is the *best* size
of its kind, reached on a cool card; `sustained` ones are held for a second and a half, which the power limit lowers.
Bytes and FLOP are the fewest that the work needs: each operand once, a multiply-add as two.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

VERSION = "2"
MIB = 2**20
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
BUS_SHARE = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
"""Bytes that one link carries over the bytes that nccl-tests calls the size."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bytebound_probe.py", description="Measure what this machine reaches.")
    add_arguments(parser)
    return measure(parser.parse_args(argv))


def measure(arguments: argparse.Namespace) -> int:
    """Measure, write the file, print what was found. Returns 0, or 2 for what the user can put right."""
    try:
        import torch
    except ImportError:
        print(
            "The probe needs PyTorch in this Python: install it, or run the file with the Python that has it.",
            file=sys.stderr,
        )
        return 2
    out = Path(arguments.out)
    if out.exists() and not arguments.force:
        print(f"{out} is there already: name another file with --out, or add --force.", file=sys.stderr)
        return 2
    try:
        out.touch()
    except OSError as error:
        print(f"{out} cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = count if arguments.devices is None else arguments.devices
    if wanted > max(count, 1):
        print(f"This machine has {count} devices that PyTorch sees, not {wanted}.", file=sys.stderr)
        return 2
    probe = Probe(torch, quick=arguments.quick, say=(lambda text: None) if arguments.quiet else _say)
    rows = probe.everything()
    if count and wanted > 1:
        rows += collective_rows(wanted, arguments.quick, probe.say)
    document = {"bytebound": 1, "runs": [run_of(probe.about(max(wanted, 1)), rows, name=arguments.name)]}
    out.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if not arguments.quiet:
        print(
            f"\nWritten to {out}: drop it onto the runs page, or: curl -F file=@{out} http://127.0.0.1:8000/api/v1/runs"
        )
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="bytebound-probe.json", help="file to write (bytebound-probe.json)")
    parser.add_argument("--force", action="store_true", help="write over a file of that name")
    parser.add_argument("--name", default=None, help="name of the run; default: the device and the date")
    parser.add_argument("--devices", type=_positive, default=None, help="devices for collectives (all of this machine)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _say(text: str) -> None:
    print(text, flush=True)


# ---- one device ------------------------------------------------------------------------------------------------------


class Probe:
    """Measurements of one device. Each method yields rows: dictionaries with name, family, time_s, flop, bytes."""

    def __init__(self, torch: Any, *, quick: bool = False, say: Callable[[str], None] = _say) -> None:
        self.torch = torch
        self.quick = quick
        self.say = say
        self.gpu = bool(torch.cuda.is_available())
        self.device = torch.device("cuda:0" if self.gpu else "cpu")
        self.rounds = (5 if quick else 11) if self.gpu else 3
        self.skipped: list[str] = []
        torch.manual_seed(0)

    def everything(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for title, measure in (
            ("launches", self.launches),
            ("memory", self.memory),
            ("cache", self.cache),
            ("matrix products", self.products),
            ("attention", self.attention),
        ):
            self.say(f"{title}:")
            try:
                for row in measure():
                    rows.append(row)
                    self.say("  " + described(row))
            except Exception as error:  # a kind that this machine cannot run must not lose the others
                self._skip(title, error)
            self._release()
        return rows

    def about(self, devices: int) -> dict[str, Any]:
        """What was measured, for the run's heading. No host or user name."""
        torch = self.torch
        software = {"pytorch": torch.__version__, "python": platform.python_version(), "probe": VERSION}
        if not self.gpu:
            name = processor_name()
            return {
                "device": f"CPU: {name}",
                "gpu": False,
                "devices": 1,
                "software": software,
                "facts": {"repetitions": self.rounds, "threads": torch.get_num_threads(), "processor": name},
                "skipped": self.skipped,
            }
        facts = torch.cuda.get_device_properties(0)
        if torch.version.cuda:
            software["cuda"] = torch.version.cuda
            if torch.backends.cudnn.is_available():
                software["cudnn"] = str(torch.backends.cudnn.version())
        if getattr(torch.version, "hip", None):
            software["rocm"] = torch.version.hip
        if devices > 1:
            software["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return {
            "device": facts.name,
            "gpu": True,
            "devices": devices,
            "software": software,
            "facts": {
                "repetitions": self.rounds,
                "memory_bytes": facts.total_memory,
                "compute_units": facts.multi_processor_count,
                "compute_capability": f"{facts.major}.{facts.minor}",
            },
            "skipped": self.skipped,
        }

    # -- timing

    def seconds(self, call: Callable[[int], Any], calls: int, *, graph: bool = True) -> tuple[float, float, float]:
        """Median, least and largest seconds of one call; `call` is given the number of the call, to rotate inputs."""
        torch = self.torch
        for i in range(min(calls, 3)):
            call(i)
        if not self.gpu:
            found = []
            for _ in range(self.rounds):
                start = time.perf_counter()
                for i in range(calls):
                    call(i)
                found.append((time.perf_counter() - start) / calls)
            return statistics.median(found), min(found), max(found)
        torch.cuda.synchronize()
        play = self._captured(call, calls) if graph else None
        if play is None:

            def play() -> None:
                for i in range(calls):
                    call(i)

        for _ in range(2):
            play()
        found = []
        for _ in range(self.rounds):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            play()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) * 1e-3 / calls)
        return statistics.median(found), min(found), max(found)

    def _captured(self, call: Callable[[int], Any], calls: int) -> Callable[[], None] | None:
        """The calls as one graph, or None where they cannot be captured."""
        torch = self.torch
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(calls):
                    call(i)
        except Exception:
            torch.cuda.synchronize()
            return None
        replay: Callable[[], None] = graph.replay
        return replay

    def _calls(self, seconds: float) -> int:
        """So many calls a round that a round takes some ten milliseconds, and at most a few hundred."""
        aim = 0.01 if self.gpu else 0.05
        return max(1, min(int(aim / max(seconds, 1e-7)), 200))

    def _copies(self, bytes_each: float) -> int:
        """Sets of inputs that together are larger than any cache, as far as memory goes."""
        free = self.torch.cuda.mem_get_info()[0] if self.gpu else 4096 * MIB
        return max(1, min(math.ceil(512 * MIB / bytes_each), 64, int(free * 0.4 / bytes_each)))

    def _random(self, *shape: int, dtype: Any) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.float32).to(dtype)

    def _release(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()

    def _skip(self, what: str, error: Exception) -> None:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        self.skipped.append(f"{what}: {reason}")
        self.say(f"  left out, {what}: {reason}")

    # -- what is measured

    def launches(self) -> Iterator[dict[str, Any]]:
        """Cost of a next to empty kernel: issued by the host, queued on the device, and as a graph's node."""
        torch = self.torch
        one = torch.zeros(1, device=self.device)
        calls = 1000
        issued = []
        for _ in range(self.rounds + 1):
            if self.gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                one.add_(1.0)
            if self.gpu:
                torch.cuda.synchronize()
            issued.append((time.perf_counter() - start) / calls)
        yield launch_row("eager launch, issued by the host", issued[1:])
        if not self.gpu:
            return
        queued = []
        for _ in range(self.rounds + 1):
            # the device sleeps until all kernels are queued, so that the host is not what is timed
            torch.cuda._sleep(int(4e7))
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(calls):
                one.add_(1.0)
            end.record()
            torch.cuda.synchronize()
            queued.append(begin.elapsed_time(end) * 1e-3 / calls)
        yield launch_row("eager launch, queued on the device", queued[1:])
        middle, least, most = self.seconds(lambda _: one.add_(1.0), calls)
        yield launch_row("graph node", [middle, least, most])

    def memory(self) -> Iterator[dict[str, Any]]:
        """Copy (1 read, 1 write), read (a sum) and triad (2 reads, 1 write) over sizes of one array."""
        torch = self.torch
        sizes: tuple[int, ...] = (64, 256, 1024, 4096) if self.gpu else (16, 64, 256)
        if self.quick:
            sizes = sizes[1:3]
        free = torch.cuda.mem_get_info()[0] if self.gpu else 2048 * MIB
        for size in sizes:
            if 3 * size * MIB > free * 0.8:
                continue
            count = size * MIB // 4
            sets = max(1, min(self._copies(3 * size * MIB), 8))
            arrays = [[torch.rand(count, device=self.device) for _ in range(3)] for _ in range(sets)]

            def copy(i: int, arrays: Any = arrays, sets: int = sets) -> None:
                arrays[i % sets][0].copy_(arrays[i % sets][1])

            def read(i: int, arrays: Any = arrays, sets: int = sets) -> None:
                arrays[i % sets][1].sum()

            def triad(i: int, arrays: Any = arrays, sets: int = sets) -> None:
                a, b, c = arrays[i % sets]
                torch.add(b, c, alpha=2.0, out=a)

            for name, call, passes in (("copy", copy, 2), ("read", read, 1), ("triad", triad, 3)):
                calls = self._calls(passes * size * MIB / 3e12 if self.gpu else passes * size * MIB / 2e10)
                # queued and not captured: copies of a gigabyte run slower inside a graph
                found = self.seconds(call, calls, graph=False)
                yield row(
                    f"memory {name} {size} MiB",
                    "copy" if name == "copy" else "elementwise",
                    found,
                    hbm_bytes=passes * size * MIB,
                )
            del arrays, copy, read, triad
            self._release()

    def cache(self) -> Iterator[dict[str, Any]]:
        """Copy and triad of the same arrays again and again, so small that they stay in the last-level cache."""
        torch = self.torch
        held = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) if self.gpu else 0
        # below 4 MiB the cost of a launch hides what the cache delivers; a processor's caches are not known here
        for size in (4, 6, 8, 12, 16):
            if 3 * size * MIB > held:
                continue
            a, b, c = (torch.rand(size * MIB // 4, device=self.device) for _ in range(3))

            def copy(_: int, a: Any = a, b: Any = b) -> None:
                a.copy_(b)

            def triad(_: int, a: Any = a, b: Any = b, c: Any = c) -> None:
                torch.add(b, c, alpha=2.0, out=a)

            for name, call, passes in (("copy", copy, 2), ("triad", triad, 3)):
                found = self.seconds(call, 200)
                family = "copy" if name == "copy" else "elementwise"
                yield row(f"cache {name} {size} MiB", family, found, l2_bytes=passes * size * MIB)
            del a, b, c, copy, triad
            self._release()

    def products(self) -> Iterator[dict[str, Any]]:
        """Square products over sizes and thin ones (few rows, as in decode), by precision."""
        squares: tuple[int, ...]
        thin: tuple[int, ...]
        if self.gpu:
            squares = (4096, 8192) if self.quick else (1024, 2048, 4096, 8192, 16384)
            thin = (1, 64) if self.quick else (1, 16, 64, 256)
        else:
            squares, thin = ((512, 1024) if self.quick else (512, 1024, 2048)), (1,)
        for precision, product, item in self._precisions():
            for size in squares:
                if precision == "fp32" and self.gpu and size > 8192:
                    continue
                try:
                    yield self._product(precision, product, item, size, size, size)
                except Exception as error:
                    self._skip(f"{precision} product of {size}", error)
                    break
            for rows in thin if precision in ("bf16", "fp8") else ():
                try:
                    yield self._product(
                        precision, product, item, rows, 8192 if self.gpu else 2048, 8192 if self.gpu else 2048
                    )
                except Exception as error:
                    self._skip(f"{precision} product of {rows} rows", error)
            self._release()
        if self.gpu:
            for precision, product, item in self._precisions():
                if precision in ("bf16", "fp8"):
                    try:
                        yield self._sustained(precision, product, item)
                    except Exception as error:
                        self._skip(f"{precision} sustained product", error)

    def _precisions(self) -> Iterator[tuple[str, Callable[[int, int, int], Callable[[], Any]], float]]:
        """Name, maker of a product of given sides, and bytes of an element."""
        torch = self.torch

        def dense(dtype: Any) -> Callable[[int, int, int], Callable[[], Any]]:
            def make(m: int, n: int, k: int) -> Callable[[], Any]:
                a, b = self._random(m, k, dtype=dtype), self._random(k, n, dtype=dtype)
                out = torch.empty(m, n, device=self.device, dtype=dtype)
                return lambda: torch.mm(a, b, out=out)

            return make

        def tf32(allowed: bool) -> Callable[[int, int, int], Callable[[], Any]]:
            def make(m: int, n: int, k: int) -> Callable[[], Any]:
                torch.backends.cuda.matmul.allow_tf32 = allowed
                return dense(torch.float32)(m, n, k)

            return make

        def fp8(m: int, n: int, k: int) -> Callable[[], Any]:
            kind = getattr(torch, "float8_e4m3fn", None) or torch.float8_e4m3fnuz
            a = self._random(m, k, dtype=torch.bfloat16).to(kind)
            b = self._random(n, k, dtype=torch.bfloat16).to(kind).t()
            scale = torch.ones((), device=self.device)
            return lambda: torch._scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

        def int8(m: int, n: int, k: int) -> Callable[[], Any]:
            a = torch.randint(-128, 127, (m, k), device=self.device, dtype=torch.int8)
            b = torch.randint(-128, 127, (n, k), device=self.device, dtype=torch.int8).t()
            return lambda: torch._int_mm(a, b)

        yield "fp32", tf32(False), 4.0
        if not self.gpu:
            yield "bf16", dense(torch.bfloat16), 2.0
            return
        if not getattr(torch.version, "hip", None):
            yield "tf32", tf32(True), 4.0
        yield "fp16", dense(torch.float16), 2.0
        yield "bf16", dense(torch.bfloat16), 2.0
        yield "fp8", fp8, 1.0
        yield "int8", int8, 1.0

    def _product(
        self, precision: str, make: Callable[[int, int, int], Callable[[], Any]], item: float, m: int, n: int, k: int
    ) -> dict[str, Any]:
        sets = self._copies((m * k + k * n + m * n) * max(item, 2.0))
        work = [make(m, n, k) for _ in range(sets)]
        fast = {"fp32": 5e13, "tf32": 4e14, "int8": 1e15, "fp8": 1.4e15}.get(precision, 7e14) if self.gpu else 1e11
        calls = max(self._calls(max(2.0 * m * n * k / fast, k * n * item / 3e12)), sets if m < 512 else 1)
        found = self.seconds(lambda i: work[i % sets](), calls)
        size = f"{m}" if m == n == k else f"{m}x{n}x{k}"
        out = {"fp32": 4.0, "tf32": 4.0, "int8": 4.0}.get(precision, 2.0)
        return row(
            f"gemm {precision} {size}",
            "gemm",
            found,
            flop=2.0 * m * n * k,
            hbm_bytes=(m * k + k * n) * item + m * n * out,
            precision=precision,
            m=m,
            n=n,
            k=k,
        )

    def _sustained(
        self, precision: str, make: Callable[[int, int, int], Callable[[], Any]], item: float
    ) -> dict[str, Any]:
        """The large square product over and over for a second and a half; the last half second counts."""
        torch, size = self.torch, 8192
        product = make(size, size, size)
        found: list[float] = []
        until = time.perf_counter() + (0.5 if self.quick else 1.5)
        while time.perf_counter() < until:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(10):
                product()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) * 1e-4)
        last = found[-max(len(found) // 3, 1) :]
        return row(
            f"gemm {precision} {size} sustained",
            "gemm",
            (statistics.median(last), min(last), max(last)),
            flop=2.0 * size**3,
            hbm_bytes=size * size * (2 * item + 2.0),
            precision=precision,
            sustained=True,
        )

    def attention(self) -> Iterator[dict[str, Any]]:
        """Causal prefill, and decode of one token against a long cache: 32 query and 8 key heads of 128."""
        prefill: tuple[tuple[int, int], ...] = ((1, 4096), (1, 16384)) if self.gpu else ((1, 512),)
        decode: tuple[tuple[int, int], ...] = ((16, 8192), (64, 8192)) if self.gpu else ((1, 2048),)
        if self.gpu and not self.quick:
            prefill, decode = (*prefill, (8, 4096)), (*decode, (1, 65536), (16, 65536))
        for name, cases, queries in (("prefill", prefill, None), ("decode", decode, 1)):
            for batch, length in cases:
                try:
                    yield self._attention(f"attention {name} {batch}x{length}", batch, queries or length, length)
                except Exception as error:
                    self._skip(f"attention {name} {batch}x{length}", error)
                self._release()

    def _attention(self, name: str, batch: int, queries: int, length: int) -> dict[str, Any]:
        torch, heads, shared, width = self.torch, 32, 8, 128
        kind, causal = torch.bfloat16, queries > 1
        pairs = length * (length + 1) / 2.0 if causal else float(length)
        flop = 4.0 * batch * heads * width * pairs
        moved = batch * (2 * heads * queries + 2 * shared * length) * width * 2.0
        sets = min(self._copies(moved), 4)
        work = [
            (
                self._random(batch, heads, queries, width, dtype=kind),
                self._random(batch, shared, length, width, dtype=kind),
                self._random(batch, shared, length, width, dtype=kind),
            )
            for _ in range(sets)
        ]

        def attend(i: int) -> Any:
            q, k, v = work[i % sets]
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        rates = (4e14, 2e12) if self.gpu else (5e10, 5e9)
        found = self.seconds(attend, self._calls(max(flop / rates[0], moved / rates[1])))
        return row(name, "attention", found, flop=flop, hbm_bytes=moved, precision="bf16")


# ---- several devices -------------------------------------------------------------------------------------------------


def collective_rows(devices: int, quick: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Collectives over so many devices of this machine, one process each. Sizes are counted as nccl-tests does."""
    import tempfile

    import torch.multiprocessing as processes

    say(f"collectives over {devices} devices:")
    with tempfile.TemporaryDirectory() as folder:
        try:
            processes.spawn(_rank, args=(devices, quick, folder), nprocs=devices, join=True)
            rows: list[dict[str, Any]] = json.loads(Path(folder, "rows.json").read_text(encoding="utf-8"))
        except Exception as error:
            say(f"  left out: {str(error).strip().splitlines()[-1][:160]}")
            return []
    for each in rows:
        say("  " + described(each))
    return rows


def _rank(rank: int, devices: int, quick: bool, folder: str) -> None:
    import torch
    import torch.distributed as group

    torch.cuda.set_device(rank)
    group.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=devices,
        device_id=torch.device(f"cuda:{rank}"),
    )
    rows = []
    sizes = (2**20, 2**28) if quick else (2**12, 2**16, 2**20, 2**24, 2**28, 2**30)
    for kind in COLLECTIVES:
        for size in sizes:
            count = size // 2 // devices * devices
            part = count // devices
            whole = torch.rand(count, device="cuda").to(torch.bfloat16)
            piece = torch.rand(part, device="cuda").to(torch.bfloat16)
            other = torch.empty_like(whole)

            def call(kind: str = kind, whole: Any = whole, piece: Any = piece, other: Any = other) -> None:
                if kind == "all_reduce":
                    # the largest and not the sum: sums of sums overflow, and infinities cost less power
                    group.all_reduce(whole, op=group.ReduceOp.MAX)
                elif kind == "all_gather":
                    group.all_gather_into_tensor(other, piece)
                elif kind == "reduce_scatter":
                    group.reduce_scatter_tensor(piece, whole)
                else:
                    group.all_to_all_single(other, whole)

            for _ in range(3):
                call()
            calls = 50 if size <= 2**20 else 10
            found = []
            for _ in range(5 if quick else 9):
                torch.cuda.synchronize()
                group.barrier()
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                for _ in range(calls):
                    call()
                end.record()
                torch.cuda.synchronize()
                # the slowest rank counts
                took = torch.tensor([begin.elapsed_time(end) * 1e-3 / calls], device="cuda", dtype=torch.float64)
                group.all_reduce(took, op=group.ReduceOp.MAX)
                found.append(float(took))
            size_counted = count * 2
            middle = statistics.median(found)
            rows.append(
                row(
                    f"{kind} of {size_counted} bytes",
                    "collective",
                    (middle, min(found), max(found)),
                    collective=kind,
                    size_bytes=size_counted,
                    devices=devices,
                    bus_bandwidth_bytes_per_s=BUS_SHARE[kind](devices) * size_counted / middle,
                )
            )
            del whole, piece, other
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    group.barrier()
    group.destroy_process_group()


# ---- rows and the file -----------------------------------------------------------------------------------------------


def row(name: str, family: str, found: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    """One measurement: seconds of one execution (median, least, largest) and what else is known of it."""
    middle, least, most = found
    return {"name": name, "family": family, "count": 1, "time_s": middle, "least_s": least, "largest_s": most, **more}


def launch_row(name: str, found: Sequence[float]) -> dict[str, Any]:
    return row(name, "other", (statistics.median(found), min(found), max(found)))


def described(found: dict[str, Any]) -> str:
    """A row as one line for the terminal."""
    seconds = found["time_s"]
    text = f"{found['name']:44} {seconds * 1e6:12.2f} us"
    if found.get("flop"):
        text += f" {found['flop'] / seconds / 1e12:10.1f} TFLOP/s"
    for level in ("hbm_bytes", "l2_bytes"):
        if found.get(level):
            text += f" {found[level] / seconds / 1e9:10.1f} GB/s"
    if found.get("bus_bandwidth_bytes_per_s"):
        text += f" {found['bus_bandwidth_bytes_per_s'] / 1e9:10.1f} GB/s bus"
    return text


def ceilings_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The best rate of each kind and the least launch, under the names that a hardware profile has for them."""
    best: dict[str, float] = {}

    def raise_to(name: str, value: float) -> None:
        best[name] = max(best.get(name, 0.0), value)

    for found in rows:
        name, seconds = found["name"], found["time_s"]
        if name.startswith("gemm ") and not found.get("sustained"):
            raise_to(f"achievable.flop_per_s.{found['precision']}", found["flop"] / seconds)
        elif name.startswith("memory "):
            raise_to("achievable.memory_bandwidth_bytes_per_s", found["hbm_bytes"] / seconds)
        elif name.startswith("cache "):
            raise_to("achievable.l2_bandwidth_bytes_per_s", found["l2_bytes"] / seconds)
        elif found.get("collective") == "all_reduce":
            raise_to("achievable.scale_up_bus_bandwidth_bytes_per_s", found["bus_bandwidth_bytes_per_s"])
        elif name == "eager launch, queued on the device":
            best["launch_overhead_s"] = found["least_s"]
        elif name == "graph node":
            best["graph_node_overhead_s"] = found["least_s"]
    return best


def run_of(about: dict[str, Any], rows: list[dict[str, Any]], name: str | None = None) -> dict[str, Any]:
    """The run in Bytebound's own format. Only a GPU's rates may become ceilings of a hardware profile."""
    today = datetime.datetime.now(datetime.timezone.utc)  # noqa: UP017 (the file runs on older Pythons too)
    best = ceilings_of(rows)
    metrics: dict[str, Any] = {}
    if "achievable.memory_bandwidth_bytes_per_s" in best:
        metrics["hbm_bytes_per_s"] = best["achievable.memory_bandwidth_bytes_per_s"]
    rates = {key.rsplit(".", 1)[1]: value for key, value in best.items() if ".flop_per_s." in key}
    main = next((p for p in ("bf16", "fp16", "fp32") if p in rates), None)
    if main is not None:
        metrics["model_flop_per_s_per_device"] = rates[main]
    if "achievable.scale_up_bus_bandwidth_bytes_per_s" in best:
        metrics["bus_bandwidth_bytes_per_s"] = best["achievable.scale_up_bus_bandwidth_bytes_per_s"]
    if not metrics:
        metrics["kernel_time_s"] = sum(found["time_s"] for found in rows)
    several = f", {about['devices']} devices" if about["devices"] > 1 else ""
    notes = ["Written by the Bytebound probe. Rates are the best size of each kind, bytes and FLOP the fewest."]
    if not about["gpu"]:
        notes.insert(0, "No GPU was found: these are CPU numbers.")
    notes += [f"Left out: {reason}" for reason in about["skipped"]]
    return {
        "name": name or f"Probe of {about['device']}{several}",
        **({"hardware": about["device"]} if about["gpu"] else {}),
        "workload": {
            "mode": "kernel",
            "extra": {
                "probe": VERSION,
                "measured_on": "gpu" if about["gpu"] else "cpu",
                "devices": about["devices"],
                **({"rate_precision": main} if main else {}),
                **about["facts"],
            },
        },
        "software": {key: str(value) for key, value in about["software"].items()},
        "metrics": metrics,
        "kernels": rows,
        "evidence": best if about["gpu"] else {},
        "measured_at": today.isoformat(timespec="seconds"),
        "notes": " ".join(notes),
    }


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.lower().startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
