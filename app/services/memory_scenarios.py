"""Memory of one device in a scenario of levers, with what the software keeps beside the payload."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.hardware import HardwareProfile
from app.domain.layout import layout_of
from app.domain.levers.base import Scenario
from app.domain.memory import MemoryEdit, MemoryUse, memory_use
from app.domain.memory_reserve import Reserve, reserve_edit
from app.domain.workload import Workload


def scenario_memory(scenario: Scenario, hardware: HardwareProfile, reserve: Reserve) -> MemoryUse:
    """Memory of one device in a scenario, with the reserve."""
    domain = hardware.ranks_per_node
    return memory_use(
        scenario.model,
        scenario.workload,
        hardware.memory_capacity,
        ranks_per_node=domain,
        edit=with_reserve(scenario, domain, reserve),
    )


def with_reserve(scenario: Scenario, domain: int, reserve: Reserve) -> MemoryEdit:
    """The levers' edits of memory, and the reserve after them."""
    added = reserve_edit(scenario.model, layout_of(scenario.model, scenario.workload, domain), reserve)

    def edit(objects: Mapping[str, float], workload: Workload) -> Mapping[str, float]:
        return added(scenario.edited_memory(objects, workload), workload)

    return edit
