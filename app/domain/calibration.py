"""Fitted efficiencies: what kernels and whole steps take beyond their bounds, by kind, precision and device family.

Every kernel follows one form with few parameters, after how kernels behave rather than after single rows:

    t = floor + block S + ((C^3 + M^3)^(1/3)) + N
    C = (F / (compute P) + X / (exponent P_X)) u^-wave (1 + depth / L)   products and exponentials
    M = B / (memory BW)                                                  bytes
    N = T / link + sqrt(T ramp / BW_near) / link + turns b + hops a      T = W / BW_net, messages

`floor` is the least time of one kernel (launch, prologue, first bytes, or the latency of a collective), `u` the share
of the last wave of tiles that is busy (F-11.3), `L` the length of the inner loop (the inner dimension of a product,
the keys of a query) with `depth` its prologue; an `exponent` above one says that exponentials hide behind products.
`S` counts waves of (sequence, KV head) pairs in a decode, each with a cost of its own however short its context. Under
a causal mask the last tiles of queries are the longest, which `u` counts too, and `L` is the keys of the mean query
over how much more the last one sees: without a mask all tiles are alike, and none is worked in vain. `turns` are
messages inside a node that follow one another, and `b` what each takes; `hops` those between nodes, and `a` what each
takes to start (F-10.3: judgement by the fabric's name, not fitted). A power mean joins products and bytes: near the
ridge both cost. A whole step is the sum of its kernels times a residual factor; a step issued by the host one kernel
at a time also waits for the host.

Parameters come from a file that a tool writes; this module evaluates them. Where no measurement speaks about a device
family or a precision, the parent class does (all families together), with a spread that was found by leaving families
out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from app.domain.cost import Array, CostTable, Kind, Op
from app.domain.lower_bound import Bound
from app.domain.precision import PRECISIONS
from app.domain.units import Seconds
from app.domain.workload import Workload

PARAMETERS: tuple[str, ...] = (
    "floor",
    "compute",
    "memory",
    "exponent",
    "wave",
    "depth",
    "link",
    "ramp",
    "block",
    "turn",
)
"""Parameters of a kernel fit, in the order of a column: seconds, shares of a roof, powers, elements, bytes."""

NEUTRAL: Mapping[str, float] = {
    "floor": 0.0,
    "compute": 1.0,
    "memory": 1.0,
    "exponent": 1.0,
    "wave": 0.0,
    "depth": 0.0,
    "link": 1.0,
    "ramp": 0.0,
    "block": 0.0,
    "turn": 0.0,
}

TILE = 128
"""Rows and columns of the tile that wave quantisation is counted with: the usual one of 16-bit products."""

SPLIT_DEPTH = 1024
"""Inner elements that a product needs before its inner dimension is split over idle units."""

DECODE_INTENSITY = 400.0
LATENT_INTENSITY = 64.0
LATENT_WIDTH = 512.0
"""FLOP for a byte read up to which attention of few queries is a decode, and from which heads share what is read. Heads
wider than the last are those of latents: a narrow cache of them is read at more FLOP a byte than any other decode."""

WIDEST_HEAD = 256.0
"""Elements of a key and value up to which heads are heads: wider ones are the latent that all of them share."""

FEW_KEYS = 16.0
"""Keys of a query below which attention is one of few queries, however little there is to read."""

LAST_TILES = 1.35
"""Waves of mean tiles for which a device waits for the longest tiles of a causal mask, over how much more the last
query sees than the mean one. Measured on H200 (cuDNN, with and without a mask, 1 to 31 waves)."""

UNKNOWN_UNITS = 100
"""Compute units taken where a profile states none; wave quantisation is then a rough guess."""

EXPONENT_RATIO = 256.0
"""16-bit FLOP for one exponential, where a profile has no such rate: that of Hopper (4096 to 16 a clock)."""

HIDDEN_EXCHANGE = 0.7
"""Share of a data-parallel exchange that runs behind the backward pass. Judgement from two-rank measurements: 0.62 to
0.85 of an all-reduce beside products is hidden."""

HIDDEN_DISPATCH = 0.7
"""Share of an exchange with experts that runs behind other work: with other nodes behind the other half of a served
batch, under DualPipe behind the other direction's micro-batch. Judgement: DeepSeek-V3 (arXiv 2412.19437, sections 3.2
and 3.4) and SGLang divide their batches for this, and reach a step near the longer of exchange and work. What messages
take to start stays in the open: halves send twice as many."""

MODEL_PARALLEL = " model parallel"
"""What the class of a training step ends in where tensor or pipeline parallelism divides the model."""

LOCAL_ENGINES = frozenset({"autoawq", "llama-bench", "llama-mmq"})
"""Sources that measured engines for one user's machine (llama.cpp, AutoAWQ), also on devices of a data centre."""

KEPT_TABLES = 512
"""Row layouts whose parameter columns are kept."""

WIDENING = 1.15
"""Factor on both ends of a range for each step up to a parent class (judgement), beside the parent's own spread."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of one class. `low` and `high` are the tenth and ninetieth percentile of measured over forecast."""

    key: str
    parameters: Mapping[str, float]
    rows: int
    sources: tuple[str, ...]
    low: float
    high: float
    judged: bool = False


@dataclass(frozen=True)
class Calibration:
    """Fits by class. A key is `kind/precision/family`; shorter keys are the parents of longer ones."""

    kernels: Mapping[str, Fit]
    steps: Mapping[str, Fit]
    date: str
    note: str = ""
    _found: dict[tuple[str, bool], tuple[Fit, int]] = field(default_factory=dict, repr=False, compare=False)
    _columns: dict[tuple[str, ...], tuple[Array, tuple[tuple[Fit, int], ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def kernel(self, key: str) -> tuple[Fit, int]:
        """The nearest fit of a kernel class, and how many steps up it lies."""
        return self._nearest(key, False)

    def step(self, key: str) -> tuple[Fit, int]:
        """The nearest fit of a step class, and how many steps up it lies."""
        return self._nearest(key, True)

    def _nearest(self, key: str, step: bool) -> tuple[Fit, int]:
        found = self._found.get((key, step))
        if found is None:
            fits = self.steps if step else self.kernels
            parts = key.split("/")
            found = (JUDGED_STEP if step else JUDGED_KERNEL, len(parts))
            for up in range(len(parts)):
                fit = fits.get("/".join(parts[: len(parts) - up]))
                if fit is not None:
                    found = (fit, up)
                    break
            self._found[(key, step)] = found
        return found


JUDGED_KERNEL = Fit(
    "any kernel",
    {"floor": 2e-6, "compute": 0.6, "memory": 0.8, "exponent": 0.6, "wave": 0.5, "depth": 64.0, "link": 0.7, "ramp": 0},
    0,
    (),
    0.6,
    1.8,
    judged=True,
)
JUDGED_STEP = Fit("any step", {"factor": 1.15, "host": 20e-6, "stage": 0.3}, 0, (), 0.6, 2.0, judged=True)
"""Taken where no class has a measurement: judgement from published spreads.

Of a step, `factor` is over the sum of its kernels, `host` the seconds that the host takes to issue what a row stands
for, `stage` the share of its work that a prompt waits for each further pipeline stage.
"""

UNCALIBRATED = Calibration({}, {}, "")
"""No measurement at all: every class is judged."""

PRECISION_CLASSES: Mapping[str, str] = {
    "fp64": "32bit",
    "fp32": "32bit",
    "tf32": "tf32",
    "bf16": "16bit",
    "fp16": "16bit",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "int8": "int8",
    "fp6": "fp8",
    "fp4": "4bit",
    "int4": "4bit",
    "mxfp4": "4bit",
    "nvfp4": "4bit",
}


@dataclass(frozen=True, slots=True)
class KernelFeatures:
    """What a fit is evaluated on, one value an operation: seconds at full rate, and shapes.

    `products`, `exponentials`, `bytes` and `wire` are seconds of one execution at the roofs, `starts` those that its
    messages to other nodes take to start, one after another, `turns` how many there are inside its node; `utilisation`
    the busy share of the last wave, `length` the inner loop's elements, `launches` kernels, `waves` those of a decode,
    `link_rate` the bytes per second inside the node, which `ramp` is held against.
    """

    keys: tuple[str, ...]
    products: Array
    exponentials: Array
    bytes: Array
    wire: Array
    starts: Array
    turns: Array
    link_rate: Array
    utilisation: Array
    length: Array
    launches: Array
    waves: Array


def kernel_features(bound: Bound) -> KernelFeatures:
    """Features of each row of a single question's table, on the roofs of its bound.

    Row by row in plain numbers: a table has some tens of rows, for which arrays cost more than they save.
    """
    table, roofs = bound.table, bound.ceilings
    units = float(roofs.units or UNKNOWN_UNITS)
    rate = roofs.exponentials or roofs.flop.get("bf16", roofs.flop.get("fp16", 0.0)) / EXPONENT_RATIO
    names = ("executed", "exponentials", "taken", "made", "kv_read", "groups")
    keys: list[str] = []
    products: list[float] = []
    scores: list[float] = []
    busy: list[float] = []
    length: list[float] = []
    waves: list[float] = []
    turns: list[float] = []
    for op, *cells in zip(table.ops, *(table[name].tolist() for name in names), strict=True):
        key, share, depth, exponential_time, pairs = _row_features(
            op.kind,
            op.direction,
            op.dtype,
            roofs.family,
            *cells,
            float(op.longest),
            "gemm experts" if op.stage == "moe" else "gemm grouped" if op.base == "grouped gemm" else "gemm",
            rate,
            units,
        )
        keys.append(key)
        products.append(cells[0] / roofs.flop_rate(op.dtype) if op.pipe == "tensor" else 0.0)
        scores.append(exponential_time)
        busy.append(share)
        length.append(depth)
        waves.append(pairs / units)
        turns.append(float(op.turns))
    return KernelFeatures(
        keys=tuple(keys),
        products=np.array(products),
        exponentials=np.array(scores),
        bytes=bound.op_hbm,
        wire=bound.op_net,
        starts=table["hops"] * roofs.far_start,
        turns=np.array(turns),
        link_rate=np.full(len(keys), roofs.links.get("scale_up") or roofs.links.get("scale_out") or 1.0),
        utilisation=np.array(busy),
        length=np.array(length),
        launches=table["launches"],
        waves=np.array(waves),
    )


@lru_cache(maxsize=8192)  # most levers leave most rows alone, and each step of a path has its forecast
def _row_features(
    op_kind: Kind,
    direction: str,
    dtype: str,
    family: str,
    executed: float,
    exponentials: float,
    read: float,
    written: float,
    cached: float,
    groups: float,
    longest: float,
    many: str,
    rate: float,
    units: float,
) -> tuple[str, float, float, float, float]:
    """Class, busy share, inner length, seconds of exponentials and decode pairs of one row."""
    kind, share, depth, exponential_time, pairs = _kind(op_kind, direction), 1.0, math.inf, 0.0, 0.0
    item = PRECISIONS[dtype].element_bytes if dtype else 1.0
    if kind == "gemm" and executed > 0:
        m, n, depth = _product_shape(executed, read, written, item, max(groups, 1.0))
        share = _busy_share(m, n, depth, max(groups, 1.0), units)
        if groups > 1.5:
            # an engine's experts, a library's products of unequal sides, or a batch of equal ones like a large product
            kind = many
    elif op_kind == "attention" and exponentials > 0:
        exponential_time = exponentials / rate if rate else 0.0
        kind, share, depth, pairs = _attention(
            kind, executed, exponentials, read, written, cached, longest, item, units
        )
    return _key(kind, dtype, family), share, depth, exponential_time, pairs


def _attention(
    kind: str,
    executed: float,
    exponentials: float,
    read: float,
    written: float,
    cached: float,
    longest: float,
    item: float,
    units: float,
) -> tuple[str, float, float, float]:
    """Kind, busy share of the last wave and keys of a query of an attention row, and (sequence, KV head) pairs of a
    decode: all from its FLOP and bytes."""
    seen = read + cached
    backward = kind == "attention backward"
    # FLOP for one exponential: twice the sum of key and value dimensions, 2.5 times that backward
    width = max(executed / exponentials / (10.0 if backward else 4.0), 1.0)
    # backward rows read q, k, v, o and the output's gradient, and write as much as q, k and v
    outputs = max(read - written, 0.0) / 2.0 if backward else written
    queries = max(outputs / (item * width), 1.0)
    keys = exponentials / queries
    if not backward and width > LATENT_WIDTH:
        return "attention latent", 1.0, math.inf, 0.0
    if not backward and (keys < FEW_KEYS or written * 8.0 < seen) and executed < DECODE_INTENSITY * seen:
        if executed > LATENT_INTENSITY * seen and width > WIDEST_HEAD:
            return "attention latent", 1.0, math.inf, 0.0
        return "attention decode", 1.0, math.inf, max(seen - written, 0.0) / (item * 2.0 * width * keys)
    waves = math.ceil(queries / TILE) / units
    uneven = max(longest / keys - 1.0, 0.0)
    # whole waves where tiles are alike, else the wait for the longest ones; a single wave takes as long as its longest
    taken = waves + (math.ceil(waves) - waves) * max(1.0 - uneven, 0.0) + LAST_TILES * uneven
    return kind, waves / max(taken, 1.0 + uneven), keys / uneven if uneven else math.inf, 0.0


def kernel_seconds(features: KernelFeatures, parameters: Array) -> Array:
    """Seconds of one execution of each row. `parameters` has one column a row of PARAMETERS."""
    floor, compute, memory, exponent, wave, depth, link, ramp, block, turn = parameters
    products = features.products / compute + features.exponentials / exponent
    products = products / features.utilisation**wave * (1.0 + depth / features.length)
    moved = features.bytes / memory
    busy = np.cbrt(products * products * products + moved * moved * moved)
    busy = busy + floor * features.launches + block * features.waves
    if not features.wire.any():
        return np.asarray(busy)
    wire = features.wire / link
    wire = wire + np.sqrt(wire * ramp / (link * features.link_rate))
    return np.asarray(busy + wire + turn * features.turns + features.starts)


def parameters_of(calibration: Calibration, keys: tuple[str, ...]) -> tuple[Array, tuple[tuple[Fit, int], ...]]:
    """Parameter columns for rows of these classes, and the fits they came from."""
    found = calibration._columns.get(keys)
    if found is None:
        fits = tuple(calibration.kernel(key) for key in keys)
        columns = [[fit.parameters.get(name, NEUTRAL[name]) for name in PARAMETERS] for fit, _ in fits]
        found = (np.array(columns, dtype=np.float64).reshape(len(keys), len(PARAMETERS)).T.copy(), fits)
        if len(calibration._columns) >= KEPT_TABLES:
            calibration._columns.clear()
        calibration._columns[keys] = found
    return found


def _kind(op_kind: Kind, direction: str) -> str:
    if op_kind == "attention":
        return "attention backward" if direction == "backward" else "attention"
    if op_kind == "scan":
        return "scan"
    if op_kind in ("gemm", "collective"):
        return op_kind
    return "elementwise"


def _key(kind: str, dtype: str, family: str) -> str:
    if kind in ("elementwise", "collective"):
        return f"{kind}/any/{family}"
    return f"{kind}/{PRECISION_CLASSES.get(dtype, '16bit')}/{family}"


def _product_shape(flop: float, read: float, written: float, item: float, groups: float) -> tuple[float, float, float]:
    """m, n and k of each of a row's products, from its FLOP and bytes: mnk, mk and mn say all three.

    A weight gradient writes no activations: its sides, taken as equal, follow from what it reads, and so its depth.
    """
    if written > 0 and read > 0:
        n, k = flop * item / (2.0 * read), flop * item / (2.0 * written)
        return flop / (2.0 * n * k * groups), n, k
    if read <= 0:
        return TILE, TILE, math.inf
    side = flop * item / read  # twice n k / (n + k), where both sides are alike
    return side, side, flop / (2.0 * side * side * groups)


def _busy_share(m: float, n: float, k: float, groups: float, units: float) -> float:
    """Useful share of the tiles and waves of a product (F-11.3); a deep one is split over idle units."""
    rows, columns = math.ceil(max(m, 1.0) / TILE), math.ceil(max(n, 1.0) / TILE)
    tiles = rows * columns * groups
    splits = min(max(k // SPLIT_DEPTH, 1.0), max(units // tiles, 1.0)) if k < math.inf else 1.0
    waves = math.ceil(tiles * splits / units)
    padded = m * n / (rows * columns * TILE * TILE)
    return min(tiles * splits / (waves * units), 1.0) * min(max(padded, 1e-3), 1.0)


def step_class(table: CostTable, workload: Workload, family: str) -> str:
    """Class of a whole step: phase, experts, how its products take their weights, device family.

    Families differ in what they reach of the peaks of narrow products, so in prefill these stand apart. A decode step
    reads bytes, whatever their width: one class holds all native widths. Training that divides the model runs on other
    stacks than training that only divides the batch, with fused kernels and exchanges behind products.
    """
    weights = "native"
    for op in table.ops:
        if op.kind == "gemm" and op.direction == "forward":
            stored, product = workload.dtypes.bytes_of("weights"), PRECISIONS[op.dtype].element_bytes
            if workload.phase == "train":
                weights = PRECISION_CLASSES[op.dtype]
                # nobody measured steps of wider products: what surrounds them is the stack of 16-bit ones
                weights = "16bit" if weights in ("32bit", "tf32") else weights
            elif stored < 0.9 * product:
                weights = "dequantised"
            if workload.phase == "prefill" and PRECISION_CLASSES[op.dtype] != "16bit":
                weights += f" {PRECISION_CLASSES[op.dtype]}"
            break
    if workload.phase != "train" and workload.parallel.pp > 1:
        weights += " over stages"
    if workload.phase == "train" and workload.parallel.tp * workload.parallel.pp > 1:
        weights += MODEL_PARALLEL
    experts = "experts" if any(op.stage == "moe" for op in table.ops) else "dense"
    return f"{workload.phase}/{experts}/{weights}/{family}"


def serving_step(calibration: Calibration, key: str, fit: Fit) -> Fit | None:
    """The nearest fit of native weights where only local engines measured the step's own class; None where others did,
    or where nobody else measured such devices."""
    phase, experts, _, family = key.split("/")
    if not fit.sources or not LOCAL_ENGINES.issuperset(fit.sources):
        return None
    native, _ = calibration.step(f"{phase}/{experts}/native/{family}")
    return None if LOCAL_ENGINES.issuperset(native.sources) else native


def undecided_stack(calibration: Calibration, key: str, stack: str) -> str | None:
    """The class of wide weights that a decode stays on when a lever narrows them, where other engines than the stack's
    measured dequantised ones on such devices, or nobody did; None where the class of dequantised weights speaks."""
    phase, experts, weights, family = key.split("/")
    before = stack.split("/")[2].removesuffix(" over stages")
    if phase != "decode" or before != "native" or not weights.startswith("dequantised"):
        return None
    fit, up = calibration.step(key)
    if not up and serving_step(calibration, key, fit) is None:
        return None
    over = " over stages" if weights.endswith(" over stages") else ""
    return f"{phase}/{experts}/native{over}/{family}"


def on_stack(key: str, stack: str) -> str:
    """The class of a step whose kernels run on the stack of another step, as after a lever.

    Classes of narrow and wide products can rest on measurements of different engines. A lever that narrows products
    does not change the engine, so it must neither gain nor lose what lies between two of them. A decode whose weights
    are dequantised keeps its class where the same engines measured both (`undecided_stack` says where not).
    """
    phase, experts, weights, family = key.split("/")
    if phase == "train":
        divided = MODEL_PARALLEL if stack.split("/")[2].endswith(MODEL_PARALLEL) else ""
        return f"{phase}/{experts}/{weights.removesuffix(MODEL_PARALLEL)}{divided}/{family}"
    over = " over stages" if weights.endswith(" over stages") else ""
    before, now = stack.split("/")[2].removesuffix(" over stages"), weights.removesuffix(over)
    if before == "native" and now.startswith("native"):
        weights = f"native{over}"
    elif phase == "prefill" and before.startswith("native") and now.startswith("dequantised"):
        weights = f"{before}{over}"
    return f"{phase}/{experts}/{weights}/{family}"


def executed_seconds(bound: Bound, features: KernelFeatures, parameters: Array) -> Array:
    """Seconds of all executions of each row, never below its bound. `parameters` as in `kernel_seconds`."""
    table = bound.table
    each = np.maximum(kernel_seconds(features, parameters), bound.op_time)
    # a worse kernel is slower at its work; what every launch costs is no work. A collective's latency is.
    fixed = np.where(bound.op_net > 0, 0.0, parameters[PARAMETERS.index("floor")] * features.launches)
    each = fixed + (each - fixed) * table["effort"]
    if table["hidden"].any():
        each = np.where(bound.op_net > 0, each * (1.0 - table["hidden"]), each)
    return each * table["count"]


def starting_seconds(bound: Bound, features: KernelFeatures, parameters: Array) -> Array:
    """What of the same seconds passes before anything is sent: kernels launch, and messages to other nodes start."""
    starts = parameters[PARAMETERS.index("floor")] * features.launches + features.starts
    return np.asarray(starts * bound.table["count"])


@dataclass(frozen=True, slots=True)
class RowForecast:
    """Seconds of all executions of each row of a single question, of them those before it sends, and its fits."""

    seconds: Array
    starting: Array
    fits: tuple[tuple[Fit, int], ...]


def forecast_rows(bound: Bound, calibration: Calibration) -> RowForecast:
    """Forecast of each row by the fit of its class."""
    features = kernel_features(bound)
    parameters, fits = parameters_of(calibration, features.keys)
    return RowForecast(
        executed_seconds(bound, features, parameters), starting_seconds(bound, features, parameters), fits
    )


def counts_exchange_apart(table: CostTable, workload: Workload) -> bool:
    """Whether what is sent to experts stands beside the step's other work: in serving where they lie in other nodes,
    and in training under DualPipe, which is made to run it behind products."""
    if workload.phase == "train":
        return workload.parallel.schedule == "dualpipe" and any(map(_is_dispatch, table.ops))
    hops = table["hops"]
    return bool(hops.any()) and any(_is_dispatch(op) and bool(hops[place].any()) for place, op in enumerate(table.ops))


def hides_exchange(table: CostTable, workload: Workload) -> bool:
    """Whether other work of the step hides some of it: the other direction's in training, the other half of the batch
    in serving, where there is something to halve."""
    return (workload.phase != "decode" or workload.batch > 1) and counts_exchange_apart(table, workload)


def _is_dispatch(op: Op) -> bool:
    """An exchange with experts of which no lever hides more than is taken as hidden anyhow."""
    return op.kind == "collective" and op.in_layer in ("dispatch", "combine") and op.hidden <= HIDDEN_DISPATCH


def waits_for_pieces(workload: Workload) -> bool:
    """Whether a prompt runs through pipeline stages in pieces that follow each other."""
    return workload.phase == "prefill" and workload.parallel.pp > 1 and workload.parallel.micro_batches > 1


def _shown(exchange: Seconds, work: Seconds, hidden: float) -> Seconds:
    """What is left of an exchange of which a share runs behind work, as far as there is any."""
    return max(exchange - work, 0.0) + (1.0 - hidden) * min(exchange, work)


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of a step's rows by how they make its time: what replicas exchange, what is sent to experts apart from
    the rest and what that takes to start, all other `work`, and the part of all that runs for micro-batches. `hides`
    says whether work hides some of what is sent."""

    work: Seconds
    gradients: Seconds
    dispatched: Seconds
    started: Seconds
    pipelined: Seconds
    hides: bool


def shares_of(table: CostTable, seconds: Array, starting: Array, workload: Workload) -> Shares:
    """How the seconds of each row add up in a step."""
    apart = counts_exchange_apart(table, workload)
    gradients = dispatched = started = hidden = 0.0
    for op, time, start in zip(table.ops, seconds.tolist(), starting.tolist(), strict=True):
        if op.stage == "data parallel":
            gradients += time
        elif apart and _is_dispatch(op):
            whole = time / (1.0 - op.hidden)
            started += min(start, whole)
            dispatched += whole - min(start, whole)
            hidden += whole - time
    waits = table.bubble or waits_for_pieces(workload)
    return Shares(
        work=float(seconds.sum()) + hidden - gradients - dispatched - started,
        gradients=gradients,
        dispatched=dispatched,
        started=started,
        pipelined=float((seconds * table.pipelined).sum()) if waits else 0.0,
        hides=apart and hides_exchange(table, workload),
    )


def combine(
    bound: Bound, shares: Shares, fit: Fit, workload: Workload, hidden_dispatch: float = HIDDEN_DISPATCH
) -> Seconds:
    """A step's time from those of its rows: exchanges partly hidden, waiting, residual factor and host.

    The residual factor is that of the stack's kernels. An exchange with experts that stands apart, which few of the
    fitted steps have, is not multiplied by it; `hidden_dispatch` is the share of its bytes that other work hides.
    """
    table, parallel = bound.table, workload.parallel
    shown = _shown(shares.gradients, shares.work, HIDDEN_EXCHANGE)
    waiting = float(bound.terms["imbalance"])
    idle = table.bubble
    if waits_for_pieces(workload):
        # the pieces of a prompt follow each other through the stages, but no engine keeps all stages busy
        idle = max(idle, fit.parameters.get("stage", JUDGED_STEP.parameters["stage"]) * (parallel.pp - 1))
    waiting += idle * shares.pipelined if idle else float(bound.terms["sync"])
    total = fit.parameters["factor"] * (shares.work + shown + waiting)
    total += _shown(shares.dispatched, total, hidden_dispatch if shares.hides else 0.0) + shares.started
    if workload.launch_mode == "eager":
        issued = float(table.total("launches")) * fit.parameters.get("host", JUDGED_STEP.parameters["host"])
        total = float(np.cbrt(total**3 + issued**3))
    return total
