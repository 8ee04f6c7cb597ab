"""Levers on state-space layers."""

from __future__ import annotations

from app.domain.blocks.context import StepContext
from app.domain.blocks.state_mixers import SCAN_FLOP
from app.domain.cost import Op
from app.domain.levers.base import Edit, Lever, Params, Scenario
from app.domain.levers.conditions import first_of, needs_state_mixer, only_in
from app.domain.levers.edits import each, executed, named
from app.domain.model import Mamba1, Mamba2


def _state_in_memory(_: Scenario, __: Params) -> Edit:
    def rows(op: Op, ctx: StepContext) -> Op:
        # every token's state: tokens x channels x state, written by the scan and read by the output map
        states = executed(op) / SCAN_FLOP * ctx.activation
        if op.direction == "backward":
            return op.having(act_read=op.act_read + states)
        return op.having(act_read=op.act_read + states, act_write=op.act_write + states, launches=op.launches + 2.0)

    return Edit("selective-scan", each(named("selective scan"), rows))


def _token_by_token(_: Scenario, __: Params) -> Edit:
    def rows(ops: list[Op], _: StepContext) -> list[Op]:
        # the recurrence is 4 FLOP a state element, the scan 9 operations of the vector units; states stay on chip
        scans = [
            Op(
                f"token-by-token scan of {op.name}",
                op.stage,
                "scan",
                count=op.count,
                direction=op.direction,
                pipe="vector",
                dtype="fp32",
                executed=SCAN_FLOP / 4.0 * op.flop,
                formula="9 tokens channels state / tp",
            )
            for op in ops
            if op.base == "state-space dual"
        ]
        return [*ops, *scans]

    return Edit("ssd-chunk", rows)


def _has_mamba1(scenario: Scenario) -> str | None:
    has = any(isinstance(mixer, Mamba1) for _, mixer in scenario.model.state_groups())
    return None if has else f"{scenario.model.name} has no Mamba-1 layers"


def _has_mamba2(scenario: Scenario) -> str | None:
    has = any(isinstance(mixer, Mamba2) for _, mixer in scenario.model.state_groups())
    return None if has else f"{scenario.model.name} has no Mamba-2 layers"


STATE_SPACE_LEVERS: tuple[Lever, ...] = (
    Lever(
        "selective-scan",
        "Scan whose state stays on chip",
        "kernel",
        "Without it every token's state, tokens x channels x state elements, is written and read (F-13.5).",
        first_of(only_in("train", "prefill"), needs_state_mixer, _has_mamba1),
        lack=_state_in_memory,
        memory_lever="dematerialize",
    ),
    Lever(
        "ssd-chunk",
        "State-space dual in chunks",
        "algorithmic",
        "Without it a scan of 9 tokens x channels x state operations runs on the vector units (F-13.5).",
        first_of(only_in("train", "prefill"), needs_state_mixer, _has_mamba2),
        lack=_token_by_token,
    ),
)
"""State-space layers, in the order of the technique library."""
