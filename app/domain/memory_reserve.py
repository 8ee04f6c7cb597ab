"""What a device holds beside the payload: buffers of the exchanges, the driver's context, what the allocator loses.

A bound counts none of it, since none of it is necessary. A real run has it, and whether a step fits is decided by the
sum, so it is added to the payload as one more edit of the objects, with defaults that are stated and can be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.denoiser import DiffusionTransformer, UNet
from app.domain.inputs import latent_tokens
from app.domain.layout import Layout
from app.domain.memory import MemoryEdit, sharded_parameters, stage_parameters
from app.domain.model import ModelSpec, MoeMlp
from app.domain.parameters import mixer_kv_elements
from app.domain.units import Bytes
from app.domain.workload import Workload

MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes and shares that belong to the software, not to the step.

    `fragmentation` is the share of what the allocator holds that no tensor uses (F-6.8), `workspace` the driver's
    context with loaded kernels and library workspaces, `bucket` what gradients are gathered in before they are reduced,
    `gathered_layers` how many layers a fully sharded step holds whole at once: the running one and those fetched ahead.
    """

    fragmentation: float = 0.05
    workspace: Bytes = 512 * MIB
    bucket: Bytes = 25 * MIB
    gathered_layers: int = 2


def communication_buffers(
    model: ModelSpec, workload: Workload, layout: Layout, reserve: Reserve, held: Mapping[str, float]
) -> dict[str, float]:
    """Bytes of the buffers that exchanges need on one device, by what they are for.

    `held` are the objects without them: a gradient bucket is never larger than the gradients.
    """
    p, dtypes = workload.parallel, workload.dtypes
    a, wire = dtypes.bytes_of("activations"), dtypes.bytes_of("communication")
    training = workload.phase == "train"
    decoding = workload.phase == "decode"
    tokens = float(workload.new_tokens) / (1 if decoding else p.cp)
    if model.denoiser is not None:
        tokens = float(workload.batch * latent_tokens(model, workload))
    stream = tokens * _stream_width(model)
    parts: dict[str, float] = {}
    replicated = p.dp * p.cp > 1
    if training and replicated and p.zero_stage < 3:
        # one bucket is filled while the other one is on the links
        parts["gradient buckets"] = min(2.0 * reserve.bucket, held["gradients"])
    if training and replicated and p.zero_stage == 3:
        layer = _gathered_layer(model, layout)
        gradients = min(reserve.gathered_layers, 1) * dtypes.bytes_of("gradients")
        parts["gathered layers"] = layer * (reserve.gathered_layers * dtypes.bytes_of("weights") + gradients)
    if p.tp > 1:
        # the full sequence that is gathered before a product, or the partial sums that are reduced after it
        parts["tensor exchange"] = stream * a
    if p.pp > 1:
        # one stage's output and the next one's input, and the same for gradients
        shards = p.tp if p.sequence_parallel else 1
        parts["stage hand-over"] = (4.0 if training else 2.0) * stream * wire / shards
    if p.cp > 1 and not decoding:
        widest = max((float(mixer_kv_elements(m, p.tp)) for _, m in model.attention_groups()), default=0.0)
        # the block that is read and the one that arrives
        parts["context exchange"] = 2.0 * tokens * widest * a
    if p.ep > 1:
        fan_out = max((min(m.top_k, p.ep) for m in _experts(model)), default=0)
        # what is sent and what is received: a tensor group shares its tokens out, and so do ranks that decode the same
        own = stream / (p.tp * (p.cp if decoding else 1))
        parts["expert exchange"] = 2.0 * fan_out * own * wire
    return {name: size for name, size in parts.items() if size > 0}


def reserve_edit(model: ModelSpec, layout: Layout, reserve: Reserve) -> MemoryEdit:
    """The reserve as an edit of a device's objects: buffers and workspace added, then the allocator's loss on all but
    the driver's own bytes."""

    def edit(objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        buffers = sum(communication_buffers(model, workload, layout, reserve, objects).values())
        payload = sum(objects.values()) + buffers
        lost = payload * reserve.fragmentation / (1.0 - reserve.fragmentation)
        return {
            **objects,
            "workspace": objects["workspace"] + reserve.workspace,
            "communication": objects["communication"] + buffers,
            "fragmentation": objects["fragmentation"] + lost,
        }

    return edit


def _stream_width(model: ModelSpec) -> float:
    """Elements a token has between layers."""
    if isinstance(model.denoiser, DiffusionTransformer):
        return float(model.denoiser.hidden)
    if isinstance(model.denoiser, UNet):
        return float(model.denoiser.channels[0])
    return float(model.hidden_size)


def _experts(model: ModelSpec) -> list[MoeMlp]:
    return [group.mlp for group in model.layers if isinstance(group.mlp, MoeMlp)]


def _gathered_layer(model: ModelSpec, layout: Layout) -> float:
    """Parameters of the mean layer on one rank when its shards are together; experts that have one copy stay."""
    if not model.num_layers:
        return 0.0
    whole = sharded_parameters(model, layout.tp, expert_shards=layout.ep * layout.etp)
    dense = float(whole.attention + whole.mlp + whole.norms)
    experts = float(stage_parameters(model, layout).experts) > 0 and layout.expert_replicas > 1
    return (dense + (float(whole.experts) if experts else 0.0)) / model.num_layers
