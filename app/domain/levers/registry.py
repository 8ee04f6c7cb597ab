"""Every lever there is, by technique id.

Techniques of the library that are no levers, because nothing in a step of one model changes with them:

| technique | why not |
|---|---|
| chunked-prefill, pd-disagg | they trade one request's latency for another's: a queue decides, not a step (F-13.7) |
| dataloader, gpu-preproc | the step waits for data that no row describes |
| chunked-contrastive | the contrastive loss over a batch of pairs is in no model's rows |
| vae-tiling | the autoencoder is not part of a denoiser's step |
| flashfftconv | no model of the catalogue has long convolutions |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.domain.levers.attention import ATTENTION_LEVERS
from app.domain.levers.base import Lever
from app.domain.levers.batching import BATCHING_LEVERS
from app.domain.levers.cache import CACHE_LEVERS
from app.domain.levers.communication import COMMUNICATION_LEVERS
from app.domain.levers.experts import EXPERT_LEVERS
from app.domain.levers.fusion import FUSION_LEVERS
from app.domain.levers.pictures import PICTURE_LEVERS
from app.domain.levers.precision import PRECISION_LEVERS
from app.domain.levers.products import PRODUCT_LEVERS
from app.domain.levers.runtime import RUNTIME_LEVERS
from app.domain.levers.state_space import STATE_SPACE_LEVERS

FAMILIES: Mapping[str, tuple[Lever, ...]] = {
    "attention": ATTENTION_LEVERS,
    "products": PRODUCT_LEVERS,
    "precision": PRECISION_LEVERS,
    "fusion": FUSION_LEVERS,
    "cache": CACHE_LEVERS,
    "experts": EXPERT_LEVERS,
    "communication": COMMUNICATION_LEVERS,
    "runtime": RUNTIME_LEVERS,
    "batching": BATCHING_LEVERS,
    "pictures": PICTURE_LEVERS,
    "state space": STATE_SPACE_LEVERS,
}
"""Levers by what they act on, in the order that pages show."""


def _both_ways(levers: Sequence[Lever]) -> dict[str, Lever]:
    """Levers by id, each excluding also what excludes it."""
    excluded: dict[str, list[str]] = {lever.id: list(lever.excludes) for lever in levers}
    for lever in levers:
        for other in lever.excludes:
            if lever.id not in excluded[other]:
                excluded[other].append(lever.id)
    return {lever.id: replace(lever, excludes=tuple(excluded[lever.id])) for lever in levers}


LEVERS: Mapping[str, Lever] = _both_ways([lever for family in FAMILIES.values() for lever in family])
