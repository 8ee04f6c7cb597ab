"""Work of a framework's operation by the shapes that a profile recorded with it: FLOP, and the least bytes it can move.

Only products and attention, whose work follows from their inputs alone. What the shapes do not tell is None, never a
guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.units import Bytes, Flop

ELEMENT_BYTES: dict[str, float] = {
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "float": 4,
    "double": 8,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "signed char": 1,
    "unsigned char": 1,
    "int": 4,
    "long int": 8,
}
"""Size of an element by the type's name in a PyTorch trace."""

PRECISION_OF_TYPE: dict[str, str] = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "signed char": "int8",
}

PRODUCT, ATTENTION = "product", "attention"


@dataclass(frozen=True, slots=True)
class Work:
    """FLOP of one call (2 for a multiply-add) and the bytes of its inputs and output, each once; `kind` says which."""

    kind: str
    flop: Flop
    least_bytes: Bytes | None
    precision: str | None


@dataclass(frozen=True, slots=True)
class _Attention:
    """Where an attention operation has its tensors and its mask. `heads_first`: [batch, heads, length, dim]."""

    query: int
    causal: int
    heads_first: bool
    backward: bool = False


_ATTENTION: dict[str, _Attention] = {
    "aten::_flash_attention_forward": _Attention(0, 8, heads_first=False),
    "aten::_cudnn_attention_forward": _Attention(0, 10, heads_first=True),
    "aten::_efficient_attention_forward": _Attention(0, 9, heads_first=False),
    "aten::_flash_attention_backward": _Attention(1, 11, heads_first=False, backward=True),
    "aten::_cudnn_attention_backward": _Attention(1, 14, heads_first=True, backward=True),
}

_PRODUCTS: dict[str, int] = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Operations that multiply two inputs, by the place of the first one."""

KNOWN: frozenset[str] = frozenset(_PRODUCTS) | frozenset(_ATTENTION)

BACKWARD_OVER_FORWARD = 2.5
"""Attention's backward pass has five products where the forward pass has two."""


def work_of(name: str, dims: object, types: object, values: object) -> Work | None:
    """The work of a call by its name and recorded inputs; None where they do not tell.

    `dims` are the shapes, `types` the names of the element types and `values` the scalars as text, in order of the
    operation's parameters, as PyTorch's profiler records them.
    """
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    if name in _PRODUCTS:
        return _product(_PRODUCTS[name], dims, types, scaled=name == "aten::_scaled_mm")
    if name in _ATTENTION and isinstance(values, list):
        return _attention(_ATTENTION[name], dims, types, values)
    return None


def _shape(dims: list[object], place: int, ranks: Sequence[int]) -> list[int] | None:
    found = dims[place] if place < len(dims) else None
    if not isinstance(found, list) or len(found) not in ranks:
        return None
    if not all(isinstance(d, int) and not isinstance(d, bool) and 0 < d < 2**31 for d in found):
        return None
    return [int(d) for d in found]


def _product(place: int, dims: list[object], types: list[object], *, scaled: bool) -> Work | None:
    a, b = _shape(dims, place, (2, 3)), _shape(dims, place + 1, (2, 3))
    if a is None or b is None or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
        return None
    batch = a[0] if len(a) == 3 else 1
    m, k, n = a[-2], a[-1], b[-1]
    flop = 2.0 * batch * m * n * k
    type_name = str(types[place]) if place < len(types) else ""
    size = ELEMENT_BYTES.get(type_name)
    same = place + 1 < len(types) and types[place] == types[place + 1]
    # a scaled product's output type is not among its inputs
    least = None if size is None or not same or scaled else size * batch * (float(m) * k + float(k) * n + float(m) * n)
    return Work(PRODUCT, flop, least, PRECISION_OF_TYPE.get(type_name))


def _attention(where: _Attention, dims: list[object], types: list[object], values: list[object]) -> Work | None:
    shapes = [_shape(dims, where.query + i, (4,)) for i in range(3)]
    query, key, value = shapes
    if query is None or key is None or value is None or where.causal >= len(values):
        return None
    length, heads = (2, 1) if where.heads_first else (1, 2)
    batch, d, dv = query[0], query[3], value[3]
    n_query, n_key = query[length], key[length]
    if key[0] != batch or key[3] != d or value[length] != n_key:
        return None
    # the efficient kernel's mask is a number: 0 none, else causal
    mask = str(values[where.causal])
    if mask in ("True", "1", "2"):
        if n_key != n_query:  # libraries differ in which corner of the rectangle they mask
            return None
        pairs = n_query * (n_query + 1) / 2
    elif mask in ("False", "0"):
        pairs = float(n_query) * n_key
    else:
        return None
    flop = 2.0 * batch * query[heads] * pairs * (d + dv)
    type_name = str(types[where.query]) if where.query < len(types) else ""
    size = ELEMENT_BYTES.get(type_name)
    sizes = (query, key, value, [*query[:3], dv])
    elements = float(sum(float(s[0]) * s[1] * s[2] * s[3] for s in sizes))
    # backward reads these and the output's gradient, and writes a gradient for each input
    factor = 2.0 if where.backward else 1.0
    least = None if size is None else size * elements * factor
    times = BACKWARD_OVER_FORWARD if where.backward else 1.0
    return Work(ATTENTION, flop * times, least, PRECISION_OF_TYPE.get(type_name))
