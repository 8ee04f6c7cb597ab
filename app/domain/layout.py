"""Where the ranks of a parallel layout sit: group sizes, strides and how much of a group shares a node.

Ranks are numbered with tensor parallelism innermost, then context, data and pipeline parallelism: neighbours in a
tensor-parallel group are neighbours in the machine. Expert parallelism regroups the tp * cp * dp ranks of one pipeline
stage, expert-tensor parallelism innermost (the order of Megatron-Core).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.errors import InvalidInput
from app.domain.model import Attention, CompressedAttention, LatentAttention, ModelSpec, MoeMlp
from app.domain.overlap import dualpipe_objection
from app.domain.units import Grid
from app.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that exchange with each other: how many, and how many of them lie in one node."""

    size: Grid
    local: Grid


@dataclass(frozen=True, slots=True)
class Layout:
    """A checked layout. `tp` may be an array (a sweep); the other degrees are whole numbers.

    `ep` and `etp` divide the experts of one stage; `expert_replicas` copies of each expert remain.
    `folded` says that experts follow tensor parallelism because neither `ep` nor `etp` was given. `stage_copies` is how
    many devices of a pipeline hold each stage.
    """

    tp: Grid
    pp: int
    dp: int
    cp: int
    ep: int
    etp: Grid
    expert_replicas: Grid
    ranks_per_node: int
    folded: bool
    stage_copies: int = 1

    @property
    def stage_ranks(self) -> Grid:
        """Ranks of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def devices(self) -> Grid:
        return self.stage_ranks * self.pp

    @property
    def tensor_group(self) -> Group:
        return self._group(self.tp, 1.0)

    @property
    def context_group(self) -> Group:
        return self._group(float(self.cp), self.tp)

    @property
    def data_group(self) -> Group:
        """Ranks that hold the same dense parameters: context parallelism replicates them too, and so does a pipeline
        that runs from both ends."""
        return self._replicas(float(self.dp * self.cp), self.tp)

    def expert_tokens(self, replica_tokens: Grid) -> Grid:
        """Tokens that meet one copy of the experts, of all ranks that share it."""
        return replica_tokens * self.dp / self.expert_replicas

    @property
    def expert_group(self) -> Group:
        return self._group(float(self.ep), self.etp)

    @property
    def expert_tensor_group(self) -> Group:
        return self._group(self.etp, 1.0)

    @property
    def expert_data_group(self) -> Group:
        return self._replicas(self.expert_replicas, self.etp * self.ep)

    def far_hand_overs(self, chunks: int) -> Grid:
        """Share of a pipeline's hand-overs that leave a node, of stages with so many chunks each.

        One stage after the other fills the nodes; behind the last stage the next chunk begins at the first one again.
        """
        nodes = np.ceil(np.asarray(self.devices, dtype=np.float64) / self.ranks_per_node)
        around = (chunks - 1) * np.minimum(nodes - 1.0, 1.0)
        far = np.minimum((chunks * (nodes - 1.0) + around) / max(chunks * self.pp - 1, 1), 1.0)
        return far if np.ndim(far) else float(far)

    def _replicas(self, of_stage: Grid, stride: Grid) -> Group:
        """Ranks with the same parameters: those of a stage, and those that hold the stage at the pipeline's other end,
        which share a node with the first ones only where the whole pipeline does."""
        group = self._group(of_stage, stride)
        if self.stage_copies == 1:
            return group
        size = of_stage * self.stage_copies
        together = np.asarray(self.devices, dtype=np.float64) <= self.ranks_per_node
        local = np.where(together, size, group.local)
        return Group(size, local if np.ndim(local) else float(local))

    def _group(self, size: Grid, stride: Grid) -> Group:
        if isinstance(size, (float, int)) and isinstance(stride, (float, int)):
            return Group(size, float(min(max(self.ranks_per_node // max(stride, 1.0), 1.0), size)))
        local = np.clip(np.floor_divide(self.ranks_per_node, np.maximum(stride, 1.0)), 1.0, size)
        return Group(size, float(local) if np.ndim(local) == 0 else local)


def layout_of(model: ModelSpec, workload: Workload, ranks_per_node: int, tp: Grid | None = None) -> Layout:
    """Check a workload's layout against the model and the machine. Raises InvalidInput with what would be right."""
    p = workload.parallel
    degree: Grid = float(p.tp) if tp is None else tp
    _check_kind(model, workload)
    if p.pp > max(model.num_layers, 1):
        raise _wrong("pp", f"{p.pp} stages for {model.num_layers} layers: use at most {model.num_layers}")
    if p.virtual_stages > 1 and p.pp == 1:
        raise _wrong("virtual_stages", "interleaving needs pipeline parallelism: set pp above 1 or virtual_stages to 1")
    if p.virtual_stages * p.pp > max(model.num_layers, 1):
        raise _wrong("virtual_stages", f"{p.pp} x {p.virtual_stages} chunks for {model.num_layers} layers are too many")
    if p.schedule == "dualpipe":
        _check_both_ways(workload)
    if p.zero_stage not in (0, 1, 2, 3):
        raise _wrong("zero_stage", "must be 0, 1, 2 or 3")
    if workload.phase != "train" and p.zero_stage:
        raise _wrong("zero_stage", "only training shards optimizer state: use 0")
    if p.cp > 1 and workload.phase != "decode" and workload.seq_len % p.cp:
        raise _wrong("cp", f"{workload.seq_len} tokens do not divide by context parallel {p.cp}")
    _check_nodes(workload)
    experts = [group.mlp for group in model.layers if isinstance(group.mlp, MoeMlp)]
    folded = p.ep == 1 and p.etp == 1
    etp: Grid = degree if folded else float(p.etp)
    if p.ep > 1 or p.etp > 1:
        if not experts:
            name = "ep" if p.ep > 1 else "etp"
            raise _wrong(name, f"{model.name} has no experts: use 1")
        uneven = next((m.experts for m in experts if m.experts % p.ep), None)
        if uneven is not None:
            fitting = ", ".join(str(n) for n in range(1, uneven + 1) if uneven % n == 0)
            raise _wrong("ep", f"{uneven} experts do not divide by expert parallel {p.ep}: use {fitting}")
    ranks = degree * p.cp * p.dp
    if np.any(ranks % (p.ep * etp)) if np.ndim(ranks) else ranks % (p.ep * etp):
        raise _wrong(
            "ep",
            f"expert parallel {p.ep} times expert tensor parallel {p.etp} must divide the {np.min(ranks):g} ranks of a "
            "stage (tp * cp * dp)",
        )
    replicas = ranks / (p.ep * etp)
    return Layout(
        tp=degree,
        pp=p.pp,
        dp=p.dp,
        cp=p.cp,
        ep=p.ep,
        etp=etp,
        expert_replicas=replicas,
        ranks_per_node=_node_size(workload, ranks_per_node),
        folded=folded,
        stage_copies=p.stage_copies,
    )


def _check_kind(model: ModelSpec, workload: Workload) -> None:
    """Layouts that only a single stack of layers over one sequence can have."""
    p = workload.parallel
    several = (
        "a denoiser"
        if model.denoiser is not None
        else "an encoder-decoder"
        if model.encoder is not None
        else "a model with its tower"
        if workload.visual_tokens and model.tower is not None
        else "a model with prediction modules"
        if workload.prediction_modules
        else None
    )
    if several and p.pp > 1:
        raise _wrong("pp", f"pipeline stages of {several} cannot be estimated: use 1")
    if several and p.cp > 1:
        raise _wrong("cp", f"context parallelism of {several} cannot be estimated: use 1")
    if p.cp > 1 and any(isinstance(group.mixer, CompressedAttention) for group in model.layers):
        raise _wrong("cp", "context parallelism of compressed attention cannot be estimated: use 1")
    if p.cp > 1 and any(True for _ in model.state_groups()):
        raise _wrong("cp", "context parallelism of layers with a recurrent state cannot be estimated: use 1")


def _check_both_ways(workload: Workload) -> None:
    """What DualPipe needs, each at its own place."""
    p = workload.parallel
    if workload.phase != "train":
        raise _wrong("schedule", "DualPipe runs forward passes beside backward ones, which only training has: use 1f1b")
    if p.pp == 1:
        raise _wrong("schedule", "DualPipe needs pipeline parallelism: set pp to an even number, or use 1f1b")
    if p.virtual_stages > 1:
        raise _wrong("virtual_stages", "DualPipe has no chunks: use 1, or the schedule 1f1b to interleave")
    objection = dualpipe_objection(p.pp, p.micro_batches)
    if objection is not None:
        raise _wrong("pp" if objection[0] == "stages" else objection[0], objection[1])


def _node_size(workload: Workload, ranks_per_node: int) -> int:
    nodes = workload.parallel.nodes
    return ranks_per_node if nodes is None else min(ranks_per_node, workload.parallel.devices // nodes)


def _check_nodes(workload: Workload) -> None:
    p = workload.parallel
    if p.nodes is None:
        return
    if p.devices % p.nodes:
        raise _wrong("nodes", f"{p.devices} devices (tp * pp * dp * cp) do not divide over {p.nodes} nodes")


def _wrong(name: str, reason: str) -> InvalidInput:
    return InvalidInput(("workload", "parallel", name), reason)


def heads_of(model: ModelSpec) -> int:
    """The fewest query heads of any layer: what tensor parallelism must divide."""
    return min(
        (group.mixer.heads for group in model.layers if isinstance(group.mixer, (Attention, LatentAttention))),
        default=1,
    )
