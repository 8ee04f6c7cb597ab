"""Every lever there is, by technique id."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.levers.base import Lever
from app.domain.levers.fusion import FUSION_LEVERS
from app.domain.levers.precision import PRECISION_LEVERS
from app.domain.levers.runtime import RUNTIME_LEVERS

LEVERS: Mapping[str, Lever] = {
    lever.id: lever for family in (FUSION_LEVERS, PRECISION_LEVERS, RUNTIME_LEVERS) for lever in family
}
