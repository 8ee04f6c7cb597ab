"""What every block needs to know to state its rows: the step's shape, precisions and layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.domain.collectives import far_hops, near_turns, wire_bytes
from app.domain.cost import Op, Tier, gemm
from app.domain.errors import InvalidInput
from app.domain.layout import Group, Layout
from app.domain.model import ModelSpec
from app.domain.precision import attention_precision
from app.domain.units import Bytes, Grid
from app.domain.workload import Workload


@dataclass(frozen=True)  # no slots: the derived numbers below are computed once and kept
class StepContext:
    """A model and a workload with the derived numbers that blocks share.

    `batch`, `seq_len`, `context_len` and the layout's `tp` may be arrays (a sweep); everything else is one value.
    Rows are those of the mean pipeline stage: `runs` is how often it executes each layer of the whole model, so a layer
    that lies on one of `pp` stages counts 1/pp of a run for each micro-batch.
    """

    model: ModelSpec
    workload: Workload
    batch: Grid
    seq_len: Grid
    context_len: Grid
    layout: Layout

    @cached_property
    def halves(self) -> dict[object, tuple[float, list[Op]]]:
        """What was built so far for a mixer or an MLP, with the layers it was built for."""
        return {}

    @cached_property
    def replica_tokens(self) -> Grid:
        """New tokens in one (micro-)batch of one replica."""
        return self.batch * self.seq_len

    @cached_property
    def tokens(self) -> Grid:
        """New tokens that one rank works on: context parallelism divides a sequence, except for a decoded token."""
        return self.replica_tokens if self.decoding else self.replica_tokens / self.layout.cp

    @property
    def tp(self) -> Grid:
        return self.layout.tp

    @property
    def runs(self) -> float:
        """How often the mean stage executes each layer of the model in a step."""
        return self.micro_batches / self.layout.pp

    @property
    def decoding(self) -> bool:
        return self.workload.phase == "decode"

    @property
    def training(self) -> bool:
        return self.workload.phase == "train"

    @property
    def cacheless(self) -> bool:
        """Whether nothing is read from or kept in a cache: in training, and in a stack that sees its input once."""
        return self.training or not self.model.generates

    @property
    def micro_batches(self) -> int:
        return self.workload.parallel.micro_batches

    @property
    def hidden(self) -> int:
        return self.model.hidden_size

    @cached_property
    def weight(self) -> Bytes:
        return self.workload.dtypes.bytes_of("weights")

    @cached_property
    def activation(self) -> Bytes:
        return self.workload.dtypes.bytes_of("activations")

    @cached_property
    def kv(self) -> Bytes:
        return self.workload.dtypes.bytes_of("kv")

    @cached_property
    def wire(self) -> Bytes:
        """Bytes of an activation element on a link."""
        return self.workload.dtypes.bytes_of("communication")

    @cached_property
    def gradient(self) -> Bytes:
        return self.workload.dtypes.bytes_of("gradients")

    @property
    def activation_exponentials(self) -> float:
        """Special-function evaluations for one element of the MLP's activation: none for the ReLU family."""
        return 0.0 if (self.model.activation or "").startswith("relu") else 1.0

    @cached_property
    def product(self) -> str:
        """Precision of the weight products: that of the activations.

        Both in fp8 are FP8 products. A narrower weight is dequantised to the activation's format first (weight-only
        quantisation); a wider one is cast to it (mixed-precision training keeps fp32 weights and multiplies in bf16).
        """
        return self.workload.dtypes.activations

    def gemm(
        self,
        name: str,
        stage: str,
        *,
        m: Grid,
        n: Grid,
        k: Grid,
        count: Grid,
        formula: str = "2 m n k",
        groups: Grid = 1.0,
        output: Bytes | None = None,
    ) -> Op:
        """A product of activations (m x k) with weights (k x n) in this workload's precisions."""
        return gemm(
            name,
            stage,
            m=m,
            n=n,
            k=k,
            dtype=self.product,
            weight=self.weight,
            activation=self.activation,
            output=output,
            count=count,
            groups=groups,
            formula=formula,
        )

    @cached_property
    def attention_product(self) -> str:
        """Precision of the attention products."""
        return attention_precision(self.workload.dtypes.kv, self.workload.dtypes.activations)

    @cached_property
    def sequence_shards(self) -> Grid:
        """Ranks that divide norms and the residual stream between them: the group's, with sequence parallelism."""
        return self.tp if self.workload.parallel.sequence_parallel else 1.0

    @cached_property
    def _hidden_sum(self) -> tuple[Grid, Mapping[Tier, Grid], Mapping[Tier, Grid], Grid, Grid]:
        """How often (0 or 1), how many bytes and by how many hops between and turns inside nodes the tensor-parallel
        group adds one activation up."""
        if isinstance(self.tp, (float, int)) and self.tp == 1:
            return 0.0, {}, {}, 0.0, 0.0
        size = self.tokens * self.hidden * self.wire
        shared = np.asarray(self.tp) > 1
        group = self.layout.tensor_group
        net = wire_bytes("all_reduce", size, group.size, group.local)
        # a reduce-scatter and an all-gather send (t-1)/t each even where the switch reduces or multicasts
        split = self.workload.parallel.sequence_parallel
        in_switch = net if split else wire_bytes("all_reduce", size, group.size, group.local, in_switch=True)
        hops = far_hops("all_reduce", group.size, group.local)
        turns = near_turns("all_reduce", group.size, group.local)
        return shared.astype(np.float64) if np.ndim(self.tp) else float(shared), net, in_switch, hops, turns

    def exchange(
        self,
        name: str,
        stage: str,
        kind: str,
        size: Grid,
        group: Group,
        count: Grid,
        *,
        backward: float = 1.0,
    ) -> list[Op]:
        """A collective of `size` bytes over a group, as a row; nothing where the group is one rank.

        The backward pass does it `backward` times.
        """
        if isinstance(group.size, (float, int)) and group.size <= 1:
            return []
        shared = np.asarray(group.size) > 1
        return [
            Op(
                name=name,
                stage=stage,
                kind="collective",
                count=count * (shared.astype(np.float64) if np.ndim(shared) else float(shared)),
                net=wire_bytes(kind, size, group.size, group.local),
                net_in_switch=wire_bytes(kind, size, group.size, group.local, in_switch=True),
                rounds_backward=backward,
                hops=far_hops(kind, group.size, group.local),
                turns=near_turns(kind, group.size, group.local),
                formula=f"{kind.replace('_', '-')} of {name}",
            )
        ]

    def all_reduce(self, name: str, stage: str, count: Grid, *, gathers: bool = True) -> Op:
        """Sum of a hidden-size activation over the tensor-parallel group (F-7.1), or nothing on one device.

        With sequence parallelism it is a reduce-scatter and an all-gather, which send the same bytes; the gather brings
        what the next products read, unless `gathers` says that what they read is kept.
        """
        shared, net, in_switch, hops, turns = self._hidden_sum
        split = self.workload.parallel.sequence_parallel
        return Op(
            name=name,
            stage=stage,
            kind="collective",
            count=count * shared,
            net=net,
            net_in_switch=in_switch,
            hops=hops,
            launches=2.0 if split else 1.0,
            gathered=0.5 if split and gathers else 0.0,
            turns=turns,
            formula="2 (t-1)/t tokens hidden bytes",
        )

    def divide_heads(self, heads: int, what: str) -> Grid:
        """Query heads of one rank. Raises InvalidInput with the degrees that divide them."""
        if heads % self.tp if isinstance(self.tp, (float, int)) else np.any(np.remainder(heads, self.tp) != 0):
            fitting = ", ".join(str(t) for t in range(1, heads + 1) if heads % t == 0 and t <= 1024)
            raise InvalidInput(
                ("workload", "parallel", "tp"),
                f"{what} ({heads}) is not a multiple of tensor parallel {_worst(heads, self.tp):g}: use {fitting}",
            )
        return heads / self.tp


def _worst(heads: int, tp: Grid) -> float:
    """The first degree that does not divide the heads."""
    degrees = np.atleast_1d(np.asarray(tp, dtype=np.float64))
    return float(degrees[np.remainder(heads, degrees) != 0][0])
