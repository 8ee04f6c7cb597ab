"""One operation by itself, cold: GEMM, attention, elementwise, collective."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.backward import FLASH_BACKWARD_EXECUTED
from app.domain.blocks.attention import attended_pairs
from app.domain.collectives import COLLECTIVES, algorithm_costs, far_hops, near_turns, unavailable, wire_bytes
from app.domain.cost import CostTable, Op
from app.domain.errors import InvalidInput
from app.domain.precision import precision
from app.domain.units import Bytes

DIRECTIONS = ("fwd", "bwd", "fwd_bwd")


def gemm_table(m: int, n: int, k: int, dtype: str, *, batch: int = 1, groups: Sequence[int] | None = None) -> CostTable:
    """`batch` products of (m x k) with (k x n); with `groups`, one product for each m in it, weights of its own each.

    Operands are read once and the result is written once, in `dtype` (F-4.1).
    """
    b = precision(dtype, ("op", "dtype")).element_bytes
    rows = list(groups) if groups is not None else [m]
    if not rows or any(row < 0 for row in rows):
        raise InvalidInput(("op", "groups"), "must be a list of at least one non-negative m")
    busy = sum(1 for row in rows if row > 0)  # a group without rows never touches its weights
    total_rows = sum(rows)
    op = Op(
        "gemm" if groups is None else "grouped gemm",
        "op",
        "gemm",
        pipe="tensor",
        dtype=dtype,
        flop=2.0 * total_rows * n * k * batch,
        weights=float(busy) * k * n * b * batch,
        act_read=float(total_rows) * k * b * batch,
        act_write=float(total_rows) * n * b * batch,
        groups=float(max(busy, 1) * batch),
        formula="2 m n k; bytes (m k + k n + m n) b",
    )
    return CostTable.of([op], tokens=float(total_rows))


def values_lie_in_keys(heads: int, kv_heads: int, head_dim: int, v_head_dim: int | None) -> bool:
    """Whether values are taken as the first elements of the keys, where nobody says: those of one KV head of several
    query heads that are narrower than its keys, as in absorbed latent attention. What may be one is counted once."""
    return heads > kv_heads == 1 and v_head_dim is not None and v_head_dim < head_dim


def attention_table(
    *,
    batch: int,
    seq_q: int,
    seq_kv: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    values_in_keys: bool | None = None,
    causal: bool = True,
    window: int | None = None,
    dtype: str = "bf16",
    direction: str = "fwd",
) -> CostTable:
    """Attention of `seq_q` queries over `seq_kv` keys, the queries the last positions when causal (F-3.2, F-4.4).

    With `values_in_keys` the values are the first elements of the keys and are read with them (F-2.2, absorbed).
    """
    b = precision(dtype, ("op", "dtype")).element_bytes
    if direction not in DIRECTIONS:
        raise InvalidInput(("op", "direction"), f"unknown direction {direction!r}: use {', '.join(DIRECTIONS)}")
    if kv_heads < 1 or heads % kv_heads:
        raise InvalidInput(("op", "kv_heads"), f"heads ({heads}) is not a multiple of kv_heads {kv_heads}")
    if causal and seq_q > seq_kv:
        raise InvalidInput(("op", "seq_q"), f"causal attention needs seq_q ({seq_q}) <= seq_kv ({seq_kv})")
    if window is not None and not causal:
        raise InvalidInput(("op", "window"), "a window is counted for causal attention only")
    dv = head_dim if v_head_dim is None else v_head_dim
    shared = values_lie_in_keys(heads, kv_heads, head_dim, v_head_dim) if values_in_keys is None else values_in_keys
    if shared and dv > head_dim:
        raise InvalidInput(("op", "values_in_keys"), f"values of {dv} elements do not lie in keys of {head_dim}")
    past = seq_kv - seq_q
    per_sequence = attended_pairs(seq_q, past, window=window) if causal else float(seq_q) * seq_kv
    pairs = batch * per_sequence
    seen = min(seq_kv, window - 1 + seq_q) if window is not None else seq_kv
    longest = float(seq_kv if window is None else min(window, seq_kv)) if causal else 0.0
    flop = 2.0 * heads * (head_dim + dv) * pairs
    q = float(batch) * seq_q * heads * head_dim * b
    o = float(batch) * seq_q * heads * dv * b
    kv = float(batch) * seen * kv_heads * (head_dim if shared else head_dim + dv) * b
    lse = 4.0 * heads * batch * seq_q
    forward = Op(
        "attention",
        "op",
        "attention",
        pipe="tensor",
        dtype=dtype,
        flop=flop,
        exponentials=float(heads * pairs),
        longest=longest,
        act_read=q + kv,
        act_write=o + (lse if direction == "fwd_bwd" else 0.0),
        formula="2 heads (head_dim + v_head_dim) pairs; bytes of q, k, v and o once",
    )
    backward = Op(
        "attention, backward",
        "op",
        "attention",
        direction="backward",
        pipe="tensor",
        dtype=dtype,
        flop=2.0 * flop,
        executed=FLASH_BACKWARD_EXECUTED * flop,
        exponentials=float(heads * pairs),
        longest=longest,
        act_read=q + kv + 2.0 * o + lse,
        act_write=q + kv,
        formula="2.5 times the forward products executed; bytes of q, k, v, o, do, dq, dk and dv once",
    )
    rows = {"fwd": [forward], "bwd": [backward], "fwd_bwd": [forward, backward]}[direction]
    return CostTable.of(rows, tokens=float(batch * seq_q))


def elementwise_table(elements: float, reads: float, writes: float, dtype: str) -> CostTable:
    """A pointwise operation: so many tensors of `elements` read and written, one FLOP for each tensor read (F-4.6)."""
    b: Bytes = precision(dtype, ("op", "dtype")).element_bytes
    op = Op(
        "elementwise",
        "op",
        "elementwise",
        pipe="vector",
        dtype="fp32",
        flop=elements * reads,
        act_read=elements * reads * b,
        act_write=elements * writes * b,
        formula="elements (reads + writes) b",
    )
    return CostTable.of([op], tokens=float(elements))


def collective_table(
    kind: str, size: Bytes, ranks: int, ranks_per_node: int, in_switch: bool, algorithm: str | None = None
) -> CostTable:
    """A collective of `size` bytes as nccl-tests counts it, by one algorithm (F-10.2) or by the one that sends least
    (F-10.1, F-10.3).

    `in_switch` is the caller's word on whether the scale-up switch reduces, whatever the profile says.
    """
    if kind not in COLLECTIVES:
        raise InvalidInput(("op", "kind"), f"unknown collective {kind!r}: use one of {', '.join(COLLECTIVES)}")
    net = wire_bytes(kind, size, ranks, ranks_per_node, in_switch=in_switch)
    hops, turns = (rule(kind, ranks, ranks_per_node) for rule in (far_hops, near_turns))
    if algorithm is not None:
        reason = unavailable(kind, algorithm, ranks, ranks_per_node, in_switch)
        if reason is not None:
            raise InvalidInput(("op", "algorithm"), reason)
        messages, net = algorithm_costs(kind, algorithm, size, ranks, ranks_per_node)
        hops, turns = float(messages.get("scale_out", 0)), float(messages.get("scale_up", 0))
    op = Op(
        kind,
        "op",
        "collective",
        net=net,
        hops=hops,
        turns=turns,
        formula="wire factor of the collective times its size",
    )
    return CostTable.of([op], tokens=1.0, devices=float(ranks))
