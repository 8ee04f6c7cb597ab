"""Techniques tried on the step that a diagnosis is about: each lever on the step's own cost table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from app.domain.decision_tree import Evidence, Leaf
from app.domain.errors import DomainError, InvalidInput
from app.domain.hardware import HardwareProfile
from app.domain.levers.base import Lever, LeverRequest
from app.domain.levers.registry import LEVERS
from app.domain.lower_bound import CeilingChoice
from app.domain.model import ModelSpec
from app.domain.words import share_text
from app.domain.workload import Workload
from app.services.diagnose_words import TIMES
from app.services.estimate import BoundEstimate, LedgerRow, bound_of

PARAMS_OF: Mapping[str, tuple[str, str]] = {
    "attn-varlen": ("padding", "padding_fraction"),
    "length-bucketing": ("padding", "padding_fraction"),
    "token-budget": ("padding", "padding_fraction"),
    "seq-packing": ("padding", "padding_fraction"),
    "mm-packing": ("padding", "padding_fraction"),
    "static-pools": ("lost", "mem_frag"),
    "prefix-cache": ("hit", "prefix_repeat"),
    "cascade-prefix": ("share", "prefix_repeat"),
}
"""A number of a lever that evidence says: (parameter, metric)."""

DEPENDS: Mapping[str, str] = {
    "prefix-cache": "It saves what prompts repeat: state the prompt tokens that repeat.",
    "cascade-prefix": "It saves what the contexts have in common: state the prompt tokens that repeat.",
    "continuous-batching": "It saves what idle slots of the batch waste, and nothing says how many there are.",
}
"""Levers that act on a property of the requests; without it any number would be a guess."""

WAITS: Mapping[str, tuple[str, ...]] = {
    "dataloader": ("data_wait_share",),
    "gpu-preproc": ("preprocess_share", "data_wait_share"),
}
"""Techniques that no row describes, but that save a wait which evidence measures."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A technique tried on the step. Times are of the whole step's tokens, so that a step that emits more compares.

    `reason` says why there is no number. `already` marks what the bound takes for granted: the saving is then what a
    stack without it loses, at most what the measurement lies above its bound. `at_most` marks a saving that is a limit.
    """

    technique: str
    lever: bool
    applies: bool
    reason: str = ""
    already: bool = False
    at_most: bool = False
    before: float | None = None
    after: float | None = None
    expected_before: float | None = None
    expected_after: float | None = None
    saving: float | None = None
    bound_saving: float | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    extra: Mapping[str, float] = field(default_factory=dict)


Trier = Callable[[str], Trial]


@dataclass(frozen=True)
class TriedStep:
    """The step as asked: a question with the levers that it has already, and what was measured of it.

    `measured` is the measured step and its bound, None for an estimate.
    """

    hardware: HardwareProfile
    model: ModelSpec
    workload: Workload
    ceilings: CeilingChoice = "peak"
    chosen: tuple[LeverRequest, ...] = ()
    measured: tuple[float, float] | None = None


def trier(step: TriedStep | None, evidence: Mapping[str, Evidence]) -> Trier:
    """Tries techniques on a step, each once. `evidence` gives levers their numbers where it says them."""
    known: dict[str, Trial] = {}
    plain: list[BoundEstimate] = []

    def attempt(technique: str) -> Trial:
        lever = LEVERS.get(technique)
        if lever is None:
            return _waiting(technique, step, evidence)
        if step is None:
            return Trial(technique, lever=True, applies=True, reason="no workload to try it on")
        if technique in {item.id for item in step.chosen}:
            return Trial(technique, lever=True, applies=False, reason="the estimate has it already")
        params, told = _params(lever, step, evidence)
        asked = [*step.chosen, LeverRequest(technique, params)]
        try:
            row = bound_of(step.hardware, step.model, step.workload, step.ceilings, levers=asked).ledger[-1]
            if not plain:
                plain.append(bound_of(step.hardware, step.model, step.workload, step.ceilings, levers=step.chosen))
        except DomainError as error:
            reason = error.reason if isinstance(error, InvalidInput) else str(error)
            return Trial(technique, lever=True, applies=False, reason=reason.removeprefix(f"{technique}: "))
        if technique in DEPENDS and not told:
            return Trial(technique, lever=True, applies=True, reason=DEPENDS[technique])
        return _trial(row, plain[0], step.measured)

    def once(technique: str) -> Trial:
        if technique not in known:
            known[technique] = attempt(technique)
        return known[technique]

    return once


def _exact(evidence: Mapping[str, Evidence], name: str) -> float | None:
    item = evidence.get(name)
    if item is None or item.limit or isinstance(item.value, (bool, str)):
        return None
    return float(item.value)


def _params(lever: Lever, step: TriedStep, evidence: Mapping[str, Evidence]) -> tuple[dict[str, float], bool]:
    """The lever's numbers that the device and the evidence say, and whether evidence says one."""
    taken = {param.name: param for param in lever.params}
    found: dict[str, float] = {}
    units = step.hardware.compute_units
    if "units" in taken and units:
        found["units"] = float(units)
    name, metric = PARAMS_OF.get(lever.id, ("", ""))
    value = _exact(evidence, metric)
    if lever.id == "prefix-cache" and value is not None:
        value -= _exact(evidence, "prefix_hit") or 0.0  # what is reused already saves nothing more
    shared = step.workload.kv.shared_prefix_tokens
    if lever.id == "cascade-prefix" and value is None and shared and step.workload.context_len:
        value = min(shared / step.workload.context_len, 1.0)
    if name not in taken or value is None:
        return found, False
    found[name] = min(max(value, taken[name].least), taken[name].most)
    return found, True


def _waiting(technique: str, step: TriedStep | None, evidence: Mapping[str, Evidence]) -> Trial:
    """A technique that no row describes: where it saves a measured wait, that wait at most."""
    for name in WAITS.get(technique, ()):
        share = _exact(evidence, name)
        if share and step is not None and step.measured is not None and evidence[name].kind != "estimated":
            words = f"All of the wait that it can remove, {share_text(share)} of the step."
            return Trial(
                technique, False, True, at_most=True, saving=min(share, 1.0) * step.measured[0], notes=(words,)
            )
    return Trial(technique, lever=False, applies=True, reason="no estimate can show it")


def _trial(row: LedgerRow, plain: BoundEstimate, measured: tuple[float, float] | None) -> Trial:
    """What one lever does. `plain` is the step as asked: a lever that stands for something the bound has already
    starts from a step without it, and saves only where the stack lacks it."""
    before, after = row.before, row.after
    # adapters, say, that nobody stated: with and without the lever the step does more than was asked
    asked = plain.bound.total("executed") * (1.0 + 1e-6)
    foreign = row.lever.lack is not None and min(e.bound.total("executed") for e in (before, after)) > asked
    # seconds of the devices for the same tokens: a lever may change both
    scale = float(before.bound.table.tokens) / float(after.bound.table.tokens or 1.0)
    scale *= float(after.bound.table.devices) / float(before.bound.table.devices)
    expected_after = after.expected.time * scale
    already = row.lever.lack is not None and (row.lever.ideal or plain.expected.time <= expected_after)
    if not already:
        before = plain
    bounds = float(before.bound.overlapped), float(after.bound.overlapped) * scale
    expected = before.expected.time, expected_after
    notes = []
    if before.bound.table.devices != after.bound.table.devices:
        devices = int(before.bound.table.devices), int(after.bound.table.devices)
        notes.append(f"It changes the devices from {devices[0]:,} to {devices[1]:,}; times are device-seconds.")
    if before.bound.table.tokens != after.bound.table.tokens:
        notes.append("It changes the tokens of a step; times are for the tokens of the step before.")
    if before.runs and not after.runs:
        notes.append("With it the step no longer fits into the memory of a device.")
    elif not before.runs and after.runs and not already:
        notes.append("With it the step fits into the memory of a device.")
    saving: float | None = expected[0] - expected[1]
    reason = ""
    if already:
        saving = None if measured is None else max(min(saving or 0.0, measured[0] - measured[1]), 0.0)
        reason = (
            "The bound takes it for granted: this is what a stack without it loses, at most the gap that was measured."
            if measured is not None
            else "The estimate takes it for granted: nothing is left to save unless the stack lacks it."
        )
    limited = already
    if measured is not None and saving is not None and saving > (most := max(measured[0] - bounds[1], 0.0)):
        saving, limited = most, True
        notes.append("No more than lies between the measurement and the bound with it; the forecast says more.")
    if already and foreign:
        saving = None
        reason = (
            "It speeds up work that this workload does not state, such as adapters: nothing of it can be saved here."
        )
    extra = {
        "flop": after.bound.total("executed") - before.bound.total("executed"),
        "hbm_bytes": after.bound.hbm_bytes - before.bound.hbm_bytes,
        "net_bytes": after.bound.net_bytes - before.bound.net_bytes,
        "launches": after.bound.total("launches") - before.bound.total("launches"),
        "memory_bytes": after.memory.peak - before.memory.peak,
    }
    return Trial(
        row.lever.id,
        lever=True,
        applies=True,
        reason=reason,
        already=already,
        at_most=limited,
        before=bounds[0],
        after=bounds[1],
        expected_before=expected[0],
        expected_after=expected[1],
        saving=saving,
        bound_saving=bounds[0] - bounds[1],
        params=dict(row.params),
        notes=tuple(notes),
        extra={name: value for name, value in extra.items() if abs(value) > 1e-9},
    )


def freeing(trial: Trial) -> Trial:
    """The trial as a direction takes it that is about memory: what takes more of it does not apply there."""
    more = trial.extra.get("memory_bytes", 0.0)
    if not trial.applies or trial.already or more <= 0:
        return trial
    return replace(trial, applies=False, saving=None, reason=f"here it takes {more / 2**30:.3g} GiB more")


def freed(trial: Trial) -> float:
    """Bytes of a device that a technique frees, or keeps free where the bound has it already."""
    return max(-trial.extra.get("memory_bytes", 0.0), 0.0)


# ---- no more than a direction addresses -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Addressed:
    """The share of the step that a direction is about: nothing that it names can save more of it."""

    metric: str
    share: float


def addressed(leaf: Leaf, evidence: Mapping[str, Evidence]) -> Addressed | None:
    """The measured or stated share that a leaf addresses; None where nobody measured it.

    A fullest or slowest over the mean keeps the others waiting for 1 - 1 / ratio of the step.
    """
    for name in leaf.addresses:
        value = _exact(evidence, name)
        if value is None or evidence[name].kind == "estimated":
            continue
        share = 1.0 - 1.0 / value if name in TIMES and value >= 1 else value
        if 0 < share <= 1:
            return Addressed(name, share)
    return None


def capped(trial: Trial, about: Addressed | None, whole: float | None, label: str) -> Trial:
    """The trial with a saving of at most what its direction addresses of a step of `whole` seconds."""
    if about is None or not whole or trial.saving is None or trial.saving <= about.share * whole:
        return trial
    note = f"No more than the direction addresses ({label}, {share_text(about.share)} of the step)."
    return replace(trial, saving=about.share * whole, at_most=True, notes=(*trial.notes, note))
