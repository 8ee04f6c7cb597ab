"""Answers about communication in the API's shape: quantities with their unit in the name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.domain.hardware import HardwareProfile
from app.domain.overlap import Segment
from app.services.communication import AlgorithmRow, CollectiveEstimate, LinkFact, MeasuredPoint
from app.services.communication_layouts import ContextParallelEstimate, PipelineEstimate, ShardingEstimate
from app.services.communication_overlap import LEVEL_WORDS, ExposedEstimate, OverlapEstimate
from app.services.estimate import expected_json, sources_of

MOST_SEGMENTS = 4000
"""Longest timeline that an answer spells out."""


def _hardware(hardware: HardwareProfile) -> dict[str, Any]:
    return {"id": hardware.id, "name": hardware.name}


def _link(fact: LinkFact) -> dict[str, Any]:
    return {
        "tier": fact.tier,
        "name": fact.name,
        "rate_bytes_per_s": fact.rate,
        "alpha_s": fact.model.alpha,
        "alpha_basis": fact.alpha_basis,
        "bandwidth_bytes_per_s": fact.model.bandwidth,
        "bandwidth_basis": fact.bandwidth_basis,
    }


def _segments(segments: Sequence[Segment], lanes: Sequence[str] | None = None) -> list[dict[str, Any]]:
    if len(segments) > MOST_SEGMENTS:
        return []
    return [
        {
            "lane": lanes[s.lane] if lanes else s.lane,
            "what": s.what,
            "index": s.index,
            "part": s.part,
            "start_s": s.start,
            "end_s": s.end,
        }
        for s in segments
    ]


LANES = ("compute", "communication")


def _algorithm(row: AlgorithmRow, found: CollectiveEstimate) -> dict[str, Any]:
    return {
        "algorithm": row.algorithm,
        "available": row.reason is None,
        "reason": row.reason,
        "messages": dict(row.messages),
        "sent_bytes": dict(row.sent),
        "time_s": row.time,
        "bus_bandwidth_bytes_per_s": None if row.time is None else found.bus(row.time),
    }


def _measured(point: MeasuredPoint) -> dict[str, Any]:
    return {
        "bytes": point.size,
        "ranks": point.ranks,
        "time_s": point.seconds,
        "bus_bandwidth_bytes_per_s": point.bus_bandwidth,
        "name": point.name,
        "source": point.source,
        "url": point.url,
        "uploaded": point.uploaded,
    }


def collective_json(found: CollectiveEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/collective`."""
    time, bound, request = found.time, found.bound, found.request
    return {
        "bound_s": bound,
        "expected": expected_json(found.op.expected),
        "time_s": time,
        "algorithm": found.chosen.algorithm,
        "algorithm_bandwidth_bytes_per_s": request.bytes / time if time > 0 else None,
        "bus_bandwidth_bytes_per_s": found.bus(time),
        "bound_bus_bandwidth_bytes_per_s": found.bus(bound),
        "binding": found.op.bound.binding,
        "net_bytes": found.op.bound.net_bytes,
        "kind": request.kind,
        "bytes": request.bytes,
        "ranks": request.ranks,
        "ranks_per_node": found.ranks_per_node,
        "in_switch_reduction": found.in_switch,
        "algorithms": [_algorithm(row, found) for row in found.algorithms],
        "links": [_link(fact) for fact in found.links],
        "sizes": [
            {
                "bytes": point.size,
                "bound_s": point.bound,
                "bound_bus_bandwidth_bytes_per_s": found.bus(point.bound, point.size),
                "algorithms": {
                    name: {"time_s": t, "bus_bandwidth_bytes_per_s": found.bus(t, point.size)}
                    for name, t in point.times.items()
                },
            }
            for point in found.curve
        ],
        "halves": {f"{kind}_s": seconds for kind, seconds in found.halves.items()},
        "measured": [_measured(point) for point in found.measured],
        "hardware": _hardware(found.hardware),
        "assumptions": list(dict.fromkeys(found.assumptions)),
        # memory and special functions have roofs too, but no collective is held against them
        "sources": [s for s in sources_of(found.hardware, found.op.bound) if not s["figure"].startswith("peak.")],
    }


def overlap_json(found: OverlapEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/overlap`."""
    return {
        "compute_s": found.compute,
        "communication_s": found.communication,
        "communication_bytes": found.bytes,
        "algorithm": found.algorithm,
        "launch_s": found.launch,
        "contention": found.contention,
        "compute_units": found.units,
        "communication_units": found.taken,
        "link_share": found.link_share,
        "slowed_s": found.slowed,
        "compute_only_s": found.compute_only,
        "best_chunks": found.best,
        "chunks": found.shown,
        "time_s": found.level("L2").timeline.total,
        "exposed_s": found.level("L2").exposed,
        "levels": [
            {
                "level": row.level,
                "how": LEVEL_WORDS[row.level],
                "chunks": row.timeline.chunks,
                "time_s": row.timeline.total,
                "exposed_s": row.exposed,
                "judged_exposed_s": row.forecast,
                "timeline": _segments(row.timeline.segments, LANES),
            }
            for row in found.levels
        ],
        "chunk_counts": [
            {"chunks": p.chunks, "time_s": p.time, "waves_of_a_chunk": p.waves or None} for p in found.curve
        ],
        "links": [_link(fact) for fact in found.links],
        "basis": found.basis,
        "hardware": _hardware(found.hardware),
        "assumptions": list(dict.fromkeys(found.assumptions)),
    }


def exposed_json(found: ExposedEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/exposed-communication`."""
    return {
        "exposed_s": found.exposed,
        "exposed_share": found.share,
        "step_s": found.step,
        "compute_only_s": found.compute_only,
        "other_s": found.other,
        "streams_sum_s": found.streams,
        "run": found.run,
        "origins": dict(found.origins),
        "assumptions": [
            "The step is the whole span of the trace. Compute is when a kernel computes, alone or beside a collective, "
            "which may slow it; other waits are copies and gaps."
            if found.traced
            else "The step without communication ran the same batch on the same device."
        ],
    }


def sharding_json(found: ShardingEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/sharding`."""
    return {
        "stages": [
            {
                "zero_stage": row.stage,
                "parameters_bytes": row.held("parameters"),
                "gradients_bytes": row.held("gradients"),
                "optimizer_bytes": row.held("optimizer"),
                "peak_bytes": row.estimate.memory.peak,
                "fits": row.estimate.memory.fits,
                "sent_bytes": row.sent,
                "exchange_s": row.exchange,
                "bound_s": float(row.estimate.bound.overlapped),
            }
            for row in found.stages
        ],
        "units": found.units,
        "unit_bytes": found.unit_bytes,
        "live_bytes": found.unit_bytes * (1 + found.request.prefetch),
        "gather_s": found.gather,
        "reduce_scatter_s": found.scatter,
        "forward_s": found.forward,
        "backward_s": found.backward,
        "exposed_s": found.exposed,
        "tokens_per_device": found.tokens,
        "tokens_to_hide": found.tokens_to_hide,
        "hides": found.hides,
        "forward_timeline": _segments(found.forward_line.segments, LANES),
        "backward_timeline": _segments(found.backward_line.segments, LANES),
        "links": [_link(fact) for fact in found.links],
        "hardware": _hardware(found.hardware),
        "model": {"id": found.model.id, "name": found.model.name},
        "assumptions": list(found.assumptions),
        "sources": sources_of(found.hardware, found.stages[3].estimate.bound),
    }


def pipeline_json(found: PipelineEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/pipeline`."""
    line = found.timeline
    busy = line.work
    return {
        "schedule": found.request.schedule,
        "time_s": line.total,
        "work_s": busy,
        "bubble_s": line.bubble,
        "bubble_of_work": line.bubble_of_work,
        "bubble_share": line.bubble_share,
        "formula_bubble_of_work": found.formula,
        "in_flight_micro_batches": [n / found.request.virtual_stages for n in line.in_flight],
        "parameter_copies": line.parameter_copies,
        "schedules": [
            {
                "schedule": name,
                "virtual_stages": chunks,
                "time_s": other.total,
                "bubble_share": other.bubble_share,
                "in_flight_micro_batches": max(other.in_flight) / chunks,
                "parameter_copies": other.parameter_copies,
            }
            for name, chunks, other in found.others
        ],
        "timeline": _segments(line.segments),
        "assumptions": [
            "Every stage takes as long as every other.",
            "A stage runs its passes in the schedule's order, each as soon as its input is there.",
            *(
                [
                    "DualPipe: half of the micro-batches enter at either end, each device holds two stages, "
                    "and a forward pass beside a backward pass takes as long as both: what it gains beyond its bubble "
                    "is the exchange that the pair hides. Bubble (p/2 - 1)(F&B + B - 3W), p + 1 micro-batches held: "
                    "DeepSeek-V3, arXiv 2412.19437, and its published schedule."
                ]
                if found.request.schedule == "dualpipe"
                else []
            ),
            *(
                [
                    "Zero bubble: weight gradients run apart (ZB-H1, as much memory as 1F1B). Bubble "
                    "(p - 1)(F + B - 2W), with B the whole backward pass: arXiv 2401.10241."
                ]
                if found.request.schedule == "zero_bubble"
                else []
            ),
        ],
    }


def context_parallel_json(found: ContextParallelEstimate) -> dict[str, Any]:
    """The answer of `POST /estimates/context-parallel`."""
    return {
        "exchanges": [
            {
                "exchange": row.exchange,
                "available": row.reason is None,
                "reason": row.reason,
                "sent_bytes": None if row.estimate is None else row.sent,
                "bound_s": None if row.estimate is None else row.bound,
                "attention_s": None if row.estimate is None else row.attention,
                "step_bound_s": None if row.estimate is None else float(row.estimate.bound.overlapped),
                "step_expected_s": None if row.estimate is None else row.estimate.expected.time,
            }
            for row in found.rows
        ],
        "hop_s": found.hop,
        "block_s": found.block,
        "exposed_s": found.exposed,
        "tokens_per_rank": found.tokens,
        "tokens_to_hide": found.tokens_to_hide,
        "hides": found.hides,
        "timeline": _segments(found.line.segments, LANES),
        "links": [_link(fact) for fact in found.links],
        "hardware": _hardware(found.hardware),
        "model": {"id": found.model.id, "name": found.model.name},
        "assumptions": list(found.assumptions),
    }
