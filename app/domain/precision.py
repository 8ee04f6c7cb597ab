"""Storage and compute formats by name: their bytes per element, and the peak they compute at."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import InvalidInput
from app.domain.units import Bytes


@dataclass(frozen=True, slots=True)
class Precision:
    """A number format.

    `scale_bits` are spent once per `group` elements: block-scaled formats carry their scales in the same traffic
    (OCP Microscaling v1.0 for mxfp8 and mxfp4; NVFP4 has an 8-bit scale for 16 elements).
    `peak` is the key of the hardware peak at which products of this format run.
    """

    name: str
    bits: int
    peak: str
    scale_bits: int = 0
    group: int = 1

    @property
    def element_bytes(self) -> Bytes:
        """Average bytes of one element, scales included (formula F-5.6)."""
        return (self.bits + self.scale_bits / self.group) / 8


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp64", 64, "fp64"),
        Precision("fp32", 32, "fp32"),
        Precision("tf32", 32, "tf32"),
        Precision("bf16", 16, "bf16"),
        Precision("fp16", 16, "fp16"),
        Precision("fp8", 8, "fp8"),
        Precision("int8", 8, "int8"),
        Precision("fp6", 6, "fp6"),
        Precision("fp4", 4, "fp4"),
        Precision("int4", 4, "int4", scale_bits=16, group=128),
        Precision("mxfp8", 8, "fp8", scale_bits=8, group=32),
        Precision("mxfp4", 4, "fp4", scale_bits=8, group=32),
        Precision("nvfp4", 4, "fp4", scale_bits=8, group=16),
    )
}
"""Every precision the API names. int4 counts one 16-bit scale for each group of 128, as GPTQ and AWQ store it."""


def precision(name: str, loc: tuple[str | int, ...] = ("dtype",)) -> Precision:
    """Look a precision up by its API name. Raises InvalidInput naming the known ones."""
    found = PRECISIONS.get(name)
    if found is None:
        raise InvalidInput(loc, f"unknown precision {name!r}: use one of {', '.join(PRECISIONS)}")
    return found


def attention_precision(cache: str, activations: str) -> str:
    """Precision of the attention products: the wider of the cache's and the activations' formats.

    A narrower cache is dequantised to the activations' format; a cache kept wider than quantised activations means
    that attention stays at its precision.
    """
    return cache if PRECISIONS[cache].bits > PRECISIONS[activations].bits else activations


INDEX_KEY_BYTES: Bytes = 1 + 4 / 128
"""Bytes of an element of a sparse attention's cached index key at most: 8 bits, and 32 bits of scale for each 128."""


def index_key_bytes(kv: Bytes) -> Bytes:
    """Bytes of an element of a cached index key, where the cache has `kv` bytes an element (DeepSeek-V3.2)."""
    return min(kv, INDEX_KEY_BYTES)
