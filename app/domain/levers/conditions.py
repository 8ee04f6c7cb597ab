"""Why a lever makes no sense for a scenario: small tests that read as sentences and combine."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.inputs import visual_tokens
from app.domain.levers.base import Scenario
from app.domain.levers.edits import plain_attention
from app.domain.model import STATE_MIXERS, Attention, DenseMlp, MoeMlp
from app.domain.precision import PRECISIONS

Objection = Callable[[Scenario], str | None]


def never(_: Scenario) -> str | None:
    return None


def first_of(*objections: Objection) -> Objection:
    """The first objection that there is."""

    def check(scenario: Scenario) -> str | None:
        return next((reason for objection in objections if (reason := objection(scenario)) is not None), None)

    return check


def only_in(*phases: str) -> Objection:
    def check(scenario: Scenario) -> str | None:
        phase = scenario.workload.phase
        return None if phase in phases else f"it acts in {' and '.join(phases)}, not in {phase}"

    return check


# ---- architecture ---------------------------------------------------------------------------------------------------


def needs_words(scenario: Scenario) -> str | None:
    """A stack of layers over tokens, not a denoiser."""
    return "it is for stacks over tokens, not for denoisers" if scenario.model.denoiser is not None else None


def needs_denoiser(scenario: Scenario) -> str | None:
    return None if scenario.model.denoiser is not None else f"{scenario.model.name} is not a denoiser"


def needs_decoder(scenario: Scenario) -> str | None:
    return None if scenario.model.generates else f"{scenario.model.name} emits no tokens"


def needs_experts(scenario: Scenario) -> str | None:
    return None if scenario.model.is_moe else f"{scenario.model.name} has no experts"


def needs_no_experts(scenario: Scenario) -> str | None:
    return "it is for dense layers, and the model has experts" if scenario.model.is_moe else None


def needs_shared_expert(scenario: Scenario) -> str | None:
    has = any(m.shared_intermediate for m in experts_of(scenario))
    return None if has else f"{scenario.model.name} has no shared expert"


def needs_attention(scenario: Scenario) -> str | None:
    model = scenario.model
    has = model.denoiser is not None or any(True for _ in model.attention_groups())
    return None if has else f"{model.name} has no attention layers"


def needs_multi_head_attention(scenario: Scenario) -> str | None:
    has = bool(plain_attention(scenario.model))
    return None if has else f"{scenario.model.name} has no layers of plain multi-head attention"


def needs_full_attention(scenario: Scenario) -> str | None:
    """Every layer with attention sees the whole context."""
    model = scenario.model
    for _, mixer in model.attention_groups():
        if isinstance(mixer, Attention) and mixer.kind != "full":
            return f"some layers of {model.name} see only part of the context ({mixer.kind})"
        if mixer.indexer is not None:
            return f"{model.name} attends to picked keys only"
    return needs_attention(scenario)


def needs_rotary(scenario: Scenario) -> str | None:
    """Rows that rotate queries and keys: those of plain multi-head attention, where positions are rotary."""
    return needs_multi_head_attention(scenario) or (
        None if scenario.model.rotary else f"{scenario.model.name} rotates no queries and keys"
    )


def needs_gated_mlp(scenario: Scenario) -> str | None:
    gated = any(group.mlp is not None and getattr(group.mlp, "gated", False) for group in scenario.model.layers)
    return None if gated else f"{scenario.model.name} has no gated MLP"


def needs_mlp(scenario: Scenario) -> str | None:
    has = any(isinstance(group.mlp, (DenseMlp, MoeMlp)) for group in scenario.model.layers)
    return None if has else f"{scenario.model.name} has no MLP layers"


def needs_state_mixer(scenario: Scenario) -> str | None:
    has = any(isinstance(mixer, STATE_MIXERS) for _, mixer in scenario.model.state_groups())
    return None if has else f"{scenario.model.name} has no state-space layers"


def needs_pictures(scenario: Scenario) -> str | None:
    """A tower that runs in this step."""
    model = scenario.model
    if model.tower is None:
        return f"{model.name} has no vision or audio tower that is described"
    if scenario.workload.phase == "decode" or not visual_tokens(model, scenario.workload):
        return "the step has no tokens of pictures or sound: give visual_tokens"
    return None


# ---- layout ---------------------------------------------------------------------------------------------------------


def needs_more_than_one(degree: str, what: str) -> Objection:
    """For levers on a parallel degree (`tp`, `dp`, `pp`, `ep`, `cp`)."""

    def check(scenario: Scenario) -> str | None:
        return None if getattr(scenario.workload.parallel, degree) > 1 else f"it needs {what} ({degree} above 1)"

    return check


def needs_devices(scenario: Scenario) -> str | None:
    return None if scenario.workload.parallel.devices > 1 else "it needs more than one device"


def launches_one_by_one(scenario: Scenario) -> str | None:
    return None if scenario.workload.launch_mode == "eager" else "the launch mode is graph already"


# ---- precision ------------------------------------------------------------------------------------------------------


def wider_than(what: str, bits: float) -> Objection:
    """The object is stored in more than `bits` bits now."""

    def check(scenario: Scenario) -> str | None:
        dtypes = scenario.workload.dtypes
        now = dtypes.bytes_of(what) * 8
        return None if now > bits else f"{what} are stored in {now:g} bits already ({getattr(dtypes, what)})"

    return check


def weights_at_least(bits: float) -> Objection:
    """Weights are not narrower than `bits` now."""

    def check(scenario: Scenario) -> str | None:
        dtypes = scenario.workload.dtypes
        now = dtypes.bytes_of("weights") * 8
        return None if now >= bits else f"weights are stored in {now:g} bits already ({dtypes.weights})"

    return check


def activations_at_least(bits: int) -> Objection:
    def check(scenario: Scenario) -> str | None:
        name = scenario.workload.dtypes.activations
        return None if PRECISIONS[name].bits >= bits else f"activations are in {name} already"

    return check


def activations_at_most(bits: int, why: str) -> Objection:
    def check(scenario: Scenario) -> str | None:
        name = scenario.workload.dtypes.activations
        return None if PRECISIONS[name].bits <= bits else f"{why} (activations are in {name})"

    return check


# ---- hardware -------------------------------------------------------------------------------------------------------


def needs_nvidia(least: int, most: int = 999, *, also: tuple[str, ...] = ()) -> Objection:
    """Compute capability times ten, where the device is known; `also` are other vendors' generations."""

    def check(scenario: Scenario) -> str | None:
        device = scenario.device
        if device is None or device in also:
            return None
        asked = (
            f"sm{least} and later" if most == 999 else f"sm{least}" if most < least + 10 else f"sm{least} to sm{most}"
        )
        if device.startswith("sm") and device[2:].isdigit():
            return (
                None if least <= int(device[2:]) <= most else f"its kernels are for {asked}, and the device is {device}"
            )
        return f"its kernels are for {asked}, and the device is {device}"

    return check


def experts_of(scenario: Scenario) -> list[MoeMlp]:
    return [group.mlp for group in scenario.model.layers if isinstance(group.mlp, MoeMlp)]
