"""What every block needs to know to state its rows: the step's shape, precisions and layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.domain.collectives import wire_bytes
from app.domain.cost import Op, Tier
from app.domain.errors import InvalidInput
from app.domain.model import ModelSpec
from app.domain.precision import product_precision
from app.domain.units import Bytes, Grid
from app.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class StepContext:
    """A model and a workload with the derived numbers that blocks share.

    `batch`, `seq_len`, `context_len` and `tp` may be arrays (a sweep); everything else is one value. `ranks_per_node`
    is the size of the scale-up domain. `micro_batches` multiplies how often each layer runs in a step.
    """

    model: ModelSpec
    workload: Workload
    batch: Grid
    seq_len: Grid
    context_len: Grid
    tp: Grid
    ranks_per_node: int

    @property
    def tokens(self) -> Grid:
        """New tokens in one (micro-)batch."""
        return self.batch * self.seq_len

    @property
    def training(self) -> bool:
        return self.workload.phase == "train"

    @property
    def micro_batches(self) -> int:
        return self.workload.parallel.micro_batches

    @property
    def hidden(self) -> int:
        return self.model.hidden_size

    @property
    def weight(self) -> Bytes:
        return self.workload.dtypes.bytes_of("weights")

    @property
    def activation(self) -> Bytes:
        return self.workload.dtypes.bytes_of("activations")

    @property
    def kv(self) -> Bytes:
        return self.workload.dtypes.bytes_of("kv")

    @property
    def gradient(self) -> Bytes:
        return self.workload.dtypes.bytes_of("gradients")

    @property
    def activation_exponentials(self) -> float:
        """Special-function evaluations for one element of the MLP's activation: none for the ReLU family."""
        return 0.0 if (self.model.activation or "").startswith("relu") else 1.0

    @property
    def product(self) -> str:
        """Precision of the weight products."""
        return product_precision(self.workload.dtypes.weights, self.workload.dtypes.activations)

    @property
    def attention_product(self) -> str:
        """Precision of the attention products: a narrower cache is dequantised to the activations' format."""
        return product_precision(self.workload.dtypes.kv, self.workload.dtypes.activations)

    def all_reduce(self, name: str, stage: str, count: float) -> Op:
        """Sum of a hidden-size activation over the tensor-parallel group (F-7.1), or nothing on one device."""
        size = self.tokens * self.hidden * self.workload.dtypes.bytes_of("communication")
        net: Mapping[Tier, Grid] = wire_bytes("all_reduce", size, self.tp, self.ranks_per_node)
        in_switch = wire_bytes("all_reduce", size, self.tp, self.ranks_per_node, in_switch=True)
        shared = np.asarray(self.tp) > 1
        times = count * shared.astype(np.float64) if np.ndim(self.tp) else count * float(shared)
        return Op(
            name=name,
            stage=stage,
            kind="collective",
            count=times,
            net=net,
            net_in_switch=in_switch,
            formula="2 (t-1)/t tokens hidden bytes",
        )

    def divide_heads(self, heads: int, what: str) -> Grid:
        """Query heads of one rank. Raises InvalidInput with the degrees that divide them."""
        if np.any(np.remainder(heads, self.tp) != 0):
            fitting = ", ".join(str(t) for t in range(1, heads + 1) if heads % t == 0 and t <= 1024)
            raise InvalidInput(
                ("workload", "parallel", "tp"),
                f"{what} ({heads}) is not a multiple of tensor parallel {self.tp}: use {fitting}",
            )
        return heads / self.tp
