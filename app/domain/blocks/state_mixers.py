"""Mixers with a state of constant size: state-space models, gated linear attention and delta rules (F-13.5).

A sequence of `seq_len` tokens and a state of `K x V` numbers a head. In prefill and training the state stays on chip:
chunks of tokens are products, and only the last state is written out. In decode the state is read and written once a
step, whatever the context. Shapes: `tokens` rows through the projections; heads and channels are divided by tensor
parallelism, low-rank inner maps are copied.
"""

from __future__ import annotations

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.cost import Op, elementwise
from app.domain.mixer_parameters import per_rank
from app.domain.model import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Rwkv5,
    Rwkv7,
    RwkvFfn,
    ShortConvolution,
    StateMixer,
)
from app.domain.units import Grid

CHUNK = 16
"""Tokens of a chunk: the narrowest tile of a tensor core. Longer chunks multiply more, so this is the fewest FLOP that
products can do it with."""

SCAN_FLOP = 9.0
"""Vector operations of a selective scan for one token, channel and state element (F-13.5)."""

STAGE = "state mixer"


def state_mixer_rows(ctx: StepContext, mixer: StateMixer, count: float) -> list[Op]:
    """Rows of `count` layers' mixers, from the residual stream to the all-reduce behind the output projection."""
    if isinstance(mixer, Mamba1):
        rows = _mamba1(ctx, mixer, count)
    elif isinstance(mixer, Mamba2):
        rows = _mamba2(ctx, mixer, count)
    elif isinstance(mixer, GatedDeltaNet):
        rows = _gated_deltanet(ctx, mixer, count)
    elif isinstance(mixer, KimiDeltaAttention):
        rows = _kimi_delta(ctx, mixer, count)
    elif isinstance(mixer, LightningAttention):
        rows = _lightning(ctx, mixer, count)
    elif isinstance(mixer, Rwkv5):
        rows = _rwkv5(ctx, mixer, count)
    elif isinstance(mixer, ShortConvolution):
        rows = _short_convolution(ctx, mixer, count)
    else:
        rows = _rwkv7(ctx, mixer, count)
    rows.append(ctx.all_reduce(f"{STAGE} all-reduce", STAGE, count))
    return rows


def rwkv_ffn_rows(ctx: StepContext, mlp: RwkvFfn, count: float) -> list[Op]:
    """Channel mixing: shift, key product, squared ReLU, value product, and a receptance product that gates."""
    t, h, width = ctx.tokens, ctx.hidden, mlp.intermediate / ctx.tp
    return [
        _shift(ctx, "mlp", count, writes=2),
        _product(ctx, "key", width, h, count, "2 tokens hidden intermediate / tp", stage="mlp"),
        elementwise(
            "activation", "mlp", elements=t * width, reads=1, writes=1, activation=ctx.activation, flop_per_element=2,
            count=count,
        ),
        _product(ctx, "value", h, width, count, "2 tokens intermediate hidden / tp", stage="mlp"),
        _product(ctx, "receptance", h / ctx.tp, h, count, "2 tokens hidden hidden / tp", stage="mlp"),
        elementwise(
            "receptance gate", "mlp", elements=t * h / ctx.tp, reads=2, writes=1, activation=ctx.activation,
            flop_per_element=4, exponentials=t * h / ctx.tp, count=count,
        ),
        ctx.all_reduce("mlp all-reduce", "mlp", count),
    ]  # fmt: skip


def chunked_flop(key_dim: int, value_dim: int, *, delta: bool, chunk: float = CHUNK) -> tuple[float, float]:
    """FLOP of one token and head: those of the recurrence (useful), and those of the chunked form (executed).

    The recurrence adds an outer product to the state and multiplies it with the query: 4 K V, and a delta rule reads
    the state with the key before: 6 K V. Within a chunk of Q tokens the visible half of queries times keys and scores
    times values is added (Q + 1) (K + V); a delta rule also solves a triangular system of keys against keys and applies
    it to keys and values: (Q + 1) (2 K + V) more.
    """
    state = (6.0 if delta else 4.0) * key_dim * value_dim
    within = (chunk + 1) * (key_dim + value_dim)
    if delta:
        within += (chunk + 1) * (2 * key_dim + value_dim)
    return state, state + within


def _recurrence(
    ctx: StepContext,
    name: str,
    *,
    heads: Grid,
    key_dim: int,
    value_dim: int,
    reads: Grid,
    writes: Grid,
    count: float,
    delta: bool = False,
) -> Op:
    """The recurrence itself: `reads` and `writes` elements a token, the state in the precision of the cache."""
    t = ctx.tokens
    useful, executed = chunked_flop(key_dim, value_dim, delta=delta)
    decode = ctx.decoding
    state = ctx.batch * heads * key_dim * value_dim * ctx.kv
    rule = "6" if delta else "4"
    return Op(
        name,
        STAGE,
        "scan",
        count=count,
        pipe="vector" if decode else "tensor",
        dtype="fp32" if decode else ctx.attention_product,
        flop=useful * t * heads,
        executed=None if decode else executed * t * heads,
        exponentials=t * heads,
        kv_read=_earlier(ctx, state),
        kv_write=0.0 if ctx.cacheless else state,
        act_read=t * reads * ctx.activation,
        act_write=t * writes * ctx.activation,
        formula=f"{rule} tokens heads key_dim value_dim / tp"
        + ("; state read and written once" if decode else f" in chunks of {CHUNK}; state on chip"),
    )


def _earlier(ctx: StepContext, size: Grid) -> Grid:
    """Bytes of a state read at the start of the step: none where nothing came before."""
    if ctx.cacheless:
        return 0.0
    if ctx.decoding:
        return size
    before = np.asarray(ctx.context_len) > 0
    return size * (before.astype(np.float64) if np.ndim(before) else float(before))


def _convolution(ctx: StepContext, channels: Grid, width: int, count: float, *, gates: int = 0) -> Op:
    """Causal convolution over time; the last inputs are kept for the next step.

    Its result goes through an activation, or is multiplied with `gates` inputs of the same width instead.
    """
    t = ctx.tokens
    row = elementwise(
        "gated convolution" if gates else "causal convolution",
        STAGE,
        elements=t * channels,
        reads=1 + gates,
        writes=1,
        activation=ctx.activation,
        flop_per_element=2.0 * width + (gates or 4),
        exponentials=0.0 if gates else t * channels,
        count=count,
        formula=f"{width} taps a channel",
    )
    if ctx.cacheless:
        return row
    kept = ctx.batch * channels * (width - 1) * ctx.kv
    new = ctx.batch * channels * np.minimum(ctx.seq_len, width - 1) * ctx.kv
    return row.having(kv_read=_earlier(ctx, kept), kv_write=new if np.ndim(new) else float(new))


def _shift(ctx: StepContext, stage: str, count: float, *, writes: int) -> Op:
    """Token shift: each input mixed with the one before it, once for each of `writes` projections."""
    row = elementwise(
        "token shift", stage, elements=ctx.tokens * ctx.hidden, reads=1, writes=writes, activation=ctx.activation,
        flop_per_element=3.0 * writes, count=count,
    )  # fmt: skip
    if ctx.cacheless:
        return row
    last = ctx.batch * ctx.hidden * ctx.kv
    return row.having(kv_read=_earlier(ctx, last), kv_write=last)


def _product(
    ctx: StepContext, name: str, n: Grid, k: Grid, count: float, formula: str, *, groups: float = 1.0,
    stage: str = STAGE,
) -> Op:  # fmt: skip
    return ctx.gemm(name, stage, m=ctx.tokens, n=n, k=k, count=count, groups=groups, formula=formula)


def _gated_norm(ctx: StepContext, width: Grid, count: float) -> Op:
    return elementwise(
        "gated norm", STAGE, elements=ctx.tokens * width, reads=2, writes=1, activation=ctx.activation,
        flop_per_element=8, exponentials=ctx.tokens * width, count=count,
    )  # fmt: skip


def _mamba1(ctx: StepContext, m: Mamba1, count: float) -> list[Op]:
    """Input product, convolution, step size and maps from the convolved input, scan with its gate, output product."""
    t, h = ctx.tokens, ctx.hidden
    inner = ctx.divide_heads(m.inner, "state-space channels")
    maps = m.dt_rank + 2 * m.state
    state = ctx.batch * inner * m.state * ctx.kv
    scan = Op(
        "selective scan",
        STAGE,
        "scan",
        count=count,
        pipe="vector",
        dtype="fp32",
        flop=SCAN_FLOP * t * inner * m.state,
        exponentials=t * inner * (m.state + 2.0),
        kv_read=_earlier(ctx, state),
        kv_write=0.0 if ctx.cacheless else state,
        act_read=t * (3 * inner + 2 * m.state) * ctx.activation,
        act_write=t * inner * ctx.activation,
        formula="9 tokens channels state / tp; reads x, step, gate and both maps, writes y; state on chip",
    )
    return [
        _product(ctx, "input projection", 2 * inner, h, count, "2 tokens hidden 2 channels / tp"),
        _convolution(ctx, inner, m.conv, count),
        _product(ctx, "step and map projection", maps, inner, count, "2 tokens channels (rank + 2 state) / tp"),
        *([_inner_norm(ctx, maps, count)] if m.inner_norms else []),
        _product(ctx, "step expansion", inner, m.dt_rank, count, "2 tokens rank channels / tp"),
        scan,
        _product(ctx, "output projection", h, inner, count, "2 tokens channels hidden / tp"),
    ]


def _inner_norm(ctx: StepContext, width: int, count: float) -> Op:
    return elementwise(
        "step and map norms", STAGE, elements=ctx.tokens * width, reads=1, writes=1, activation=ctx.activation,
        flop_per_element=4, count=count,
    )  # fmt: skip


def _mamba2(ctx: StepContext, m: Mamba2, count: float) -> list[Op]:
    """One input product for x, gate, both maps and step sizes; convolution; state-space dual; gate; output product."""
    h = ctx.hidden
    heads = ctx.divide_heads(m.heads, "state-space heads")
    inner = heads * m.head_dim
    maps = 2 * per_rank(m.groups, ctx.tp) * m.state
    # without a norm of its own the gate is applied where the recurrence writes its output
    gate: Grid = 0.0 if m.gated_norm else inner
    return [
        _product(
            ctx, "input projection", 2 * inner + maps + heads, h, count,
            "2 tokens hidden (2 channels + heads + 2 groups state) / tp",
        ),
        _convolution(ctx, inner + maps, m.conv, count),
        _recurrence(
            ctx, "state-space dual", heads=heads, key_dim=m.state, value_dim=m.head_dim,
            reads=inner + maps + heads + gate, writes=inner, count=count,
        ),
        *([_gated_norm(ctx, inner, count)] if m.gated_norm else []),
        _product(ctx, "output projection", h, inner, count, "2 tokens channels hidden / tp"),
    ]  # fmt: skip


def _gated_deltanet(ctx: StepContext, m: GatedDeltaNet, count: float) -> list[Op]:
    """Products for queries, keys, values and gate and for decay and rate; convolution; delta rule; norm; output."""
    h = ctx.hidden
    heads = ctx.divide_heads(m.value_heads, "value heads")
    key = per_rank(m.key_heads, ctx.tp) * m.key_head_dim
    value = heads * m.value_head_dim
    return [
        _product(
            ctx, "query, key, value and gate", 2 * key + 2 * value, h, count, "2 tokens hidden (2 keys + 2 values) / tp"
        ),
        _product(ctx, "decay and rate", 2 * heads, h, count, "2 tokens hidden 2 value_heads / tp"),
        _convolution(ctx, 2 * key + value, m.conv, count),
        _recurrence(
            ctx, "gated delta rule", heads=heads, key_dim=m.key_head_dim, value_dim=m.value_head_dim,
            reads=2 * key + value + 2 * heads, writes=value, count=count, delta=True,
        ),
        _gated_norm(ctx, value, count),
        _product(ctx, "output projection", h, value, count, "2 tokens values hidden / tp"),
    ]  # fmt: skip


def _kimi_delta(ctx: StepContext, m: KimiDeltaAttention, count: float) -> list[Op]:
    """Products for queries, keys, values; low-rank decay per channel; rate; gate; convolution; delta rule; output."""
    h, d = ctx.hidden, m.head_dim
    heads = ctx.divide_heads(m.heads, "delta-attention heads")
    w = heads * d
    gate = (
        [_product(ctx, "output gate", w, h, count, "2 tokens hidden heads head_dim / tp")]
        if m.gate_rank is None
        else [
            _product(ctx, "output gate down", m.gate_rank, h, count, "2 tokens hidden rank"),
            _product(ctx, "output gate up", w, m.gate_rank, count, "2 tokens rank heads head_dim / tp"),
        ]
    )
    return [
        _product(ctx, "query, key and value", 3 * w, h, count, "2 tokens hidden 3 heads head_dim / tp"),
        _product(ctx, "decay down", d, h, count, "2 tokens hidden head_dim"),
        _product(ctx, "decay up", w, d, count, "2 tokens head_dim heads head_dim / tp"),
        _product(ctx, "rate", heads, h, count, "2 tokens hidden heads / tp"),
        *gate,
        _convolution(ctx, 3 * w, m.conv, count),
        _recurrence(
            ctx, "delta rule", heads=heads, key_dim=d, value_dim=d, reads=4 * w + heads, writes=w, count=count,
            delta=True,
        ).having(exponentials=ctx.tokens * w),  # a decay for each channel
        _gated_norm(ctx, w, count),
        _product(ctx, "output projection", h, w, count, "2 tokens heads head_dim hidden / tp"),
    ]  # fmt: skip


def _lightning(ctx: StepContext, m: LightningAttention, count: float) -> list[Op]:
    """Products for queries, keys and values and for the gate; linear attention with a fixed decay; norm; output."""
    h = ctx.hidden
    heads = ctx.divide_heads(m.heads, "linear-attention heads")
    w = heads * m.head_dim
    return [
        _product(ctx, "query, key and value", 3 * w, h, count, "2 tokens hidden 3 heads head_dim / tp"),
        _recurrence(
            ctx, "linear attention", heads=heads, key_dim=m.head_dim, value_dim=m.head_dim, reads=3 * w, writes=w,
            count=count,
        ).having(exponentials=3.0 * ctx.tokens * w),  # the activation of queries, keys and values
        _product(ctx, "output gate", w, h, count, "2 tokens hidden heads head_dim / tp"),
        _gated_norm(ctx, w, count),
        _product(ctx, "output projection", h, w, count, "2 tokens heads head_dim hidden / tp"),
    ]  # fmt: skip


def _short_convolution(ctx: StepContext, m: ShortConvolution, count: float) -> list[Op]:
    """One product for the input and both gates, the convolution between the gates, output product."""
    h = ctx.hidden
    w = ctx.divide_heads(m.width, "convolution channels")
    return [
        _product(ctx, "input and gates", 3 * w, h, count, "2 tokens hidden 3 channels / tp"),
        _convolution(ctx, w, m.conv, count, gates=2),
        _product(ctx, "output projection", h, w, count, "2 tokens channels hidden / tp"),
    ]


def _rwkv5(ctx: StepContext, m: Rwkv5, count: float) -> list[Op]:
    """Token shift, four products, linear attention with a bonus for the newest token, gated norm, output product."""
    h = ctx.hidden
    heads = ctx.divide_heads(m.heads, "time-mixing heads")
    w = heads * m.head_dim
    return [
        _shift(ctx, STAGE, count, writes=4),
        _product(
            ctx, "receptance, key, value and gate", w, h, count, "2 tokens hidden 4 heads head_dim / tp", groups=4.0
        ),
        _recurrence(
            ctx, "linear attention", heads=heads, key_dim=m.head_dim, value_dim=m.head_dim, reads=3 * w, writes=w,
            count=count,
        ),
        _gated_norm(ctx, w, count),
        _product(ctx, "output projection", h, w, count, "2 tokens heads head_dim hidden / tp"),
    ]  # fmt: skip


def _rwkv7(ctx: StepContext, m: Rwkv7, count: float) -> list[Op]:
    """Token shift, three products, four low-rank maps, delta rule, gated norm, output product."""
    h = ctx.hidden
    heads = ctx.divide_heads(m.heads, "time-mixing heads")
    w = heads * m.head_dim
    low_rank: list[Op] = []
    for name, rank in (
        ("decay", m.decay_rank),
        ("rate", m.rate_rank),
        ("value mix", m.value_rank),
        ("gate", m.gate_rank),
    ):
        low_rank += [
            _product(ctx, f"{name} down", rank, h, count, "2 tokens hidden rank"),
            _product(ctx, f"{name} up", w, rank, count, "2 tokens rank heads head_dim / tp"),
        ]
    return [
        _shift(ctx, STAGE, count, writes=6),
        _product(ctx, "receptance, key and value", w, h, count, "2 tokens hidden 3 heads head_dim / tp", groups=3.0),
        *low_rank,
        _recurrence(
            ctx, "delta rule", heads=heads, key_dim=m.head_dim, value_dim=m.head_dim, reads=5 * w, writes=w,
            count=count, delta=True,
        ).having(exponentials=ctx.tokens * w),
        _gated_norm(ctx, w, count),
        _product(ctx, "output projection", h, w, count, "2 tokens heads head_dim hidden / tp"),
    ]  # fmt: skip
