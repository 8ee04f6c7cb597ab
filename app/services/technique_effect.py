"""What a technique does to a workload of the reader's choice, by the same levers as every estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.catalog.library import load_library
from app.domain.errors import InvalidInput
from app.domain.levers.base import Lever, Scenario
from app.domain.levers.registry import LEVERS
from app.domain.library import TryOut
from app.domain.technique import Technique
from app.services.context import Context
from app.services.estimate import BoundEstimate, generation_code
from app.services.levers import why_not
from app.services.references import resolve_hardware, resolve_model
from app.services.what_if import FIELDS, WhatIf, WhatIfAnswer, answer
from app.services.words import count_words, gib_words, time_words

SMALL = 5e-4
"""Relative change that a sentence calls none."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A step before and after a lever. `headline` says what it does, `notes` what else changes with it."""

    lever: Lever
    found: WhatIfAnswer
    headline: str
    notes: tuple[str, ...]

    @property
    def before(self) -> BoundEstimate:
        return self.found.estimate.ledger[0].before

    @property
    def after(self) -> BoundEstimate:
        return self.found.estimate.ledger[0].after

    @property
    def labels(self) -> tuple[str, str]:
        """What to call the two: an estimate has an ideal lever already, so that its baseline is without it."""
        return ("Without it", "With it") if self.lever.ideal else ("Before", "After")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a lever makes no sense for a workload."""

    lever: Lever
    reason: str


def effect_of(ctx: Context, id_: str, state: WhatIf) -> Effect | Refusal:
    """The effect of one lever on the state's workload; `state` lists that lever alone, with its numbers.

    Raises what an estimate raises for a question that makes no sense without the lever, or for numbers of the lever
    that are out of range.
    """
    lever = LEVERS[id_]
    model = resolve_model(ctx, state.model)[0]
    workload = state.request(model).workload.to_domain()
    device = generation_code(resolve_hardware(ctx, state.hardware)[0])
    reason = lever.objection(Scenario(model, workload, device=device))
    if reason is not None:
        return Refusal(lever, reason)
    try:
        found = answer(ctx, state)
    except InvalidInput as error:
        if error.loc != ("levers", 0):
            raise
        return Refusal(lever, error.reason.removeprefix(f"{id_}: "))
    row = found.estimate.ledger[0]
    return Effect(lever, found, _headline(lever, row.before, row.after), _notes(row.before, row.after))


def try_outs(technique: Technique) -> tuple[TryOut, ...]:
    """Workloads of the library that the technique's lever accepts, the one that its page opens on first."""
    lever = LEVERS.get(technique.id)
    if lever is None:
        return ()
    fitting = [item for item in load_library().try_outs if set(item.phases) & set(technique.phases)]
    return tuple(sorted(fitting, key=lambda item: technique.id not in item.opens))


def accepted_try_outs(ctx: Context, technique: Technique) -> tuple[TryOut, ...]:
    """Those of `try_outs` on which the lever makes sense."""
    return tuple(item for item in try_outs(technique) if _accepts(ctx, LEVERS[technique.id], WhatIf(**item.state)))


def with_lever(state: WhatIf, technique: Technique) -> WhatIf:
    """The state with the technique's lever alone, with the numbers that the state gives it."""
    numbers = dict(state.chosen_levers()).get(technique.id, {})
    return state.with_levers([(technique.id, numbers)])


def _accepts(ctx: Context, lever: Lever, state: WhatIf) -> bool:
    model, hardware = ctx.catalog.models[state.model], ctx.catalog.hardware[state.hardware]
    workload = state.request(model).workload.to_domain()
    return why_not(lever, Scenario(model, workload, device=generation_code(hardware))) is None


def _headline(lever: Lever, before: BoundEstimate, after: BoundEstimate) -> str:
    """The effect in one sentence: the expected time, then the bound, then memory where only that changes."""
    what, one, two = _compared(before, after)
    expected, bound = (one[0], two[0]), (one[1], two[1])
    memory = (before.memory.peak, after.memory.peak)
    if _same(*expected) and _same(*bound):
        if _same(*memory):
            return "It changes neither the time nor the memory of this step."
        return f"It changes no time of this step, but a device's memory {_from_to(*memory, gib_words)}."
    first = f"The expected {what} {_from_to(*expected, time_words)}" if not _same(*expected) else ""
    if _same(*bound):
        second = f"the bound stays at {time_words(bound[1])}" + (", which has it already" if lever.ideal else "")
    else:
        second = f"the bound {_from_to(*bound, time_words)}"
    if not first:
        return f"The expected {what} stays at {time_words(expected[1])}; {second}."
    return f"{first}; {second}."


def _compared(before: BoundEstimate, after: BoundEstimate) -> tuple[str, tuple[float, float], tuple[float, float]]:
    """What is compared, a step or a token where the lever changes how many a step emits; (expected, bound) of both."""
    one, two = float(before.bound.table.tokens), float(after.bound.table.tokens)
    if not one or not two or _same(one, two):
        one = two = 1.0
        what = "step"
    else:
        what = "time a token"
    return (
        what,
        (before.expected.time / one, float(before.bound.overlapped) / one),
        (after.expected.time / two, float(after.bound.overlapped) / two),
    )


def _notes(before: BoundEstimate, after: BoundEstimate) -> tuple[str, ...]:
    notes = []
    is_timed = not _same(before.expected.time, after.expected.time) or not _same(
        float(before.bound.overlapped), float(after.bound.overlapped)
    )
    if is_timed and not _same(before.memory.peak, after.memory.peak):  # else the headline says it
        notes.append(f"A device's memory {_from_to(before.memory.peak, after.memory.peak, gib_words)}.")
    one, two = before.workload.parallel.devices, after.workload.parallel.devices
    if one != two:
        notes.append(f"It changes the devices from {one:,} to {two:,}.")
    tokens = float(before.bound.table.tokens), float(after.bound.table.tokens)
    if not _same(*tokens):
        notes.append(
            f"Tokens of a step: {count_words(tokens[1])} instead of {count_words(tokens[0])}, "
            "so times are compared a token."
        )
    if before.bound.binding != after.bound.binding:
        notes.append(f"What binds changes from {before.bound.binding} to {after.bound.binding}.")
    for estimate, words in ((before, "Before it"), (after, "With it")):
        if not estimate.runs:
            over = estimate.memory.peak - (estimate.memory.capacity or 0.0)
            notes.append(f"{words} the step does not fit: {gib_words(over)} too much on each device.")
    return tuple(notes)


def _same(one: float, two: float) -> bool:
    return abs(one - two) <= SMALL * max(abs(one), abs(two))


def _from_to(one: float, two: float, words: Callable[[float], str]) -> str:
    change = f" ({two / one - 1.0:+.1%})".replace("-", "\u2212").replace("%", " %") if one else ""
    verb = "falls" if two < one else "rises"
    if words(one) == words(two):
        return f"{verb} a little from {words(one)}{change}"
    return f"{verb} from {words(one)} to {words(two)}{change}"


def stated_fields(query: Mapping[str, str]) -> dict[str, str]:
    """The fields of a workload that an address states."""
    return {name: query[name] for name in FIELDS if query.get(name, "").strip()}


def workload_query(state: WhatIf) -> dict[str, str]:
    """The workload in an address: device, model and phase always, so that it is told from no workload at all."""
    named = {"hardware": state.hardware, "model": state.model, "phase": state.phase}
    return named | {name: text for name, text in state.query(beside="").items() if name != "levers"}
